// Checks a layer: the forward against the formula in double precision, the backward against finite differences of that
// formula.
#ifndef CHECK_LAYER_H
#define CHECK_LAYER_H

#include <float.h>

#include "dev/test/test.h"

// The forward of a layer in double: reads the inputs (all in one array), writes the outputs.
typedef struct Layer Layer;
struct Layer {
    const char *name;
    void (*forward)(const Layer *layer, const double *inputs, double *outputs);
    int B, T, C, OC, NH, V;
    const int32_t *ids; // tokens or targets
    int num_inputs, num_outputs;
    int reduction; // the longest sum behind a value: what the tolerance grows with
    int written;   // so many inputs, the first ones, have their gradient written. The others have it added to.
    int KV, HS;    // of attention, NH too
};

static float *random_floats(int64_t n, float scale, int stream) {
    float *x = (float *)malloc((size_t)(n + 1) * sizeof(float));
    for (int64_t i = 0; i < n; i += 2) {
        float pair[2];
        rand_normal_pair(1234, (uint64_t)stream, (uint64_t)i, pair);
        x[i] = scale * pair[0];
        x[i + 1] = scale * pair[1];
    }
    return x;
}

static float *ones(int64_t n) {
    float *x = (float *)malloc((size_t)n * sizeof(float));
    for (int64_t i = 0; i < n; i++) { x[i] = 1.0f; }
    return x;
}

typedef struct {
    float *in, *weights, *out, *din; // weights: of the outputs, in the sum whose gradient is taken
} Arrays;

static Arrays new_arrays(const Layer *layer, float scale, int stream) {
    Arrays a = {random_floats(layer->num_inputs, scale, stream), random_floats(layer->num_outputs, 1.0f, stream + 1),
                ones(layer->num_outputs), ones(layer->num_inputs)};
    return a;
}

static void free_arrays(Arrays *a) { free(a->in), free(a->weights), free(a->out), free(a->din); }

static double largest_double(const double *x, int n) {
    double max = 0.0;
    for (int i = 0; i < n; i++) { max = fmax(max, fabs(x[i])); }
    return max;
}

// A sum of K products in fp32 is off by at most about K epsilon times the size of its terms; 16 more for the few
// operations around it (exp, tanh, division). The size of the terms is taken as the largest value of the tensor.
static void close_to(Test *t, const Layer *layer, const char *what, const float *got, const double *want, int n) {
    double tolerance = (layer->reduction + 16) * (double)FLT_EPSILON * fmax(largest_double(want, n), 1e-3);
    float *rounded = (float *)malloc((size_t)n * sizeof(float));
    for (int i = 0; i < n; i++) { rounded[i] = (float)want[i]; }
    check_close(t, format("%s: %s", layer->name, what), got, rounded, (size_t)n, tolerance, 0.0);
    free(rounded);
}

// d(sum of outputs * weights)/d(input i) by central differences of the double forward.
static void finite_differences(const Layer *layer, const float *inputs, const float *weights, double *gradient) {
    double *x = (double *)malloc((size_t)layer->num_inputs * sizeof(double));
    double *y = (double *)malloc((size_t)layer->num_outputs * sizeof(double));
    const double h = 1e-5;
    for (int i = 0; i < layer->num_inputs; i++) { x[i] = inputs[i]; }
    for (int i = 0; i < layer->num_inputs; i++) {
        double loss[2];
        for (int side = 0; side < 2; side++) {
            x[i] = (double)inputs[i] + (side ? h : -h);
            layer->forward(layer, x, y);
            loss[side] = 0.0;
            for (int j = 0; j < layer->num_outputs; j++) { loss[side] += y[j] * weights[j]; }
        }
        x[i] = inputs[i];
        gradient[i] = (loss[1] - loss[0]) / (2.0 * h);
    }
    free(x), free(y);
}

// Compares a forward's outputs, and a backward's gradients (which were written over ones or added to ones), with the
// formula.
static void check_layer(Test *t, const Layer *layer, const Arrays *a) {
    double *x = (double *)malloc((size_t)layer->num_inputs * sizeof(double));
    double *y = (double *)malloc((size_t)layer->num_outputs * sizeof(double));
    double *gradient = (double *)malloc((size_t)layer->num_inputs * sizeof(double));
    for (int i = 0; i < layer->num_inputs; i++) { x[i] = a->in[i]; }
    layer->forward(layer, x, y);
    close_to(t, layer, "forward", a->out, y, layer->num_outputs);
    finite_differences(layer, a->in, a->weights, gradient);
    CHECK(t, largest_double(gradient, layer->num_inputs) > 1e-3, "%s: the gradient is all zero", layer->name);
    for (int i = layer->written; i < layer->num_inputs; i++) { gradient[i] += 1.0; }
    close_to(t, layer, "backward", a->din, gradient, layer->num_inputs);
    free(x), free(y), free(gradient);
}

#endif // CHECK_LAYER_H
