// The ladder of AdamW. The formulas are at the top of llmc/optim/adamw.cuh. All arrays have n elements: the master copy
// of the weights, m, v and the gradients in fp32, and the parameters, which are the master copy rounded at random.
#include "dev/cuda/ladder.cuh"
#include "llmc/optim/adamw.cuh"

#define UPDATE 10
#define GRAD_SCALE 0.5f

struct Update {
    int64_t n = ladder_size(1 << 16, 1 << 25); // a quarter of GPT-2 124M: the host's part takes seconds, not minutes
    std::vector<float> weights, m0, v0, gradient, want_w, want_m, want_v;
    AdamWFactors f = adamw_factors(0.01f, 0.9f, 0.95f, 1e-8f, 0.1f, UPDATE, rounding_key(77, UPDATE));
    DeviceArray<floatX> params;
    DeviceArray<float> w, m, v, grads;
    DeviceArray<StepResult> result;

    Update()
        : weights(random_values(n, 0.5f, 1)), m0(random_values(n, 0.1f, 2)), v0(random_values(n, 0.1f, 3)),
          gradient(random_values(n, 0.2f, 4)), params(n), w(n), m(n), v(n), grads(gradient), result(1) {
        StepResult goes_on = {0.0, 0.0, GRAD_SCALE, STEP_GOES_ON, 0, 0};
        for (float &x : v0) { x = x * x + 0.01f; }
        want_w = weights, want_m = m0, want_v = v0;
        cpu_adamw(want_w.data(), want_m.data(), want_v.data(), gradient.data(), n, f.lr, f.beta1, f.beta2, f.epsilon,
                  f.weight_decay, GRAD_SCALE, UPDATE);
        result.put(goes_on);
    }
    void clear() { w.set(weights), m.set(m0), v.set(v0), params.poison(); }
    void check(Test *t) const;
};

// Returns what a parameter of this master copy must be. Adding random bits below the 16 that stay, and cutting off the
// lower 16, rounds up with the probability that makes the mean exact.
static float host_rounded_at_random(float w, uint64_t key, int64_t i) {
    uint32_t bits;
    memcpy(&bits, &w, sizeof(bits));
    bits = (bits + (rounding_bits(key, (uint64_t)i) & 0xffffu)) & 0xffff0000u;
    float cut;
    memcpy(&cut, &bits, sizeof(cut));
    return PRECISION_IS_FP32 ? w : cut;
}

// m and v are sums of two terms of size 1 at most, each off by some half epsilons. The step divides the corrected m,
// 1.5 m, by the root of the corrected v, which is at least 0.15. So the step is off by 10 times the error of m, and by
// some epsilons of its own size, which is 5 at most. All of it is multiplied by lr.
void Update::check(Test *t) const {
    const double few = 4.0 * FLT_EPSILON;
    check_values(t, "m", m.get(), want_m, few, few);
    check_values(t, "v", v.get(), want_v, 0.0, few);
    check_values(t, "master copy", w.get(), want_w, (double)f.lr * 20.0 * few, few);
    std::vector<float> rounded_w = w.get();
    for (size_t i = 0; i < rounded_w.size(); i++) {
        rounded_w[i] = host_rounded_at_random(rounded_w[i], f.key, (int64_t)i);
    }
    check_equal(t, "parameters", params.get(), rounded_w);
}

// Version 1. Each line of the formula is a kernel, as in a library of operations on arrays. What one kernel has
// computed, the next kernel reads from memory again. The bytes count: `moved` is 1.5 times what the layer needs.
static __global__ void m_kernel1(float *m, const float *grads, AdamWFactors f, int64_t n) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { m[i] = f.beta1 * m[i] + (1.0f - f.beta1) * GRAD_SCALE * grads[i]; }
}

static __global__ void v_kernel1(float *v, const float *grads, AdamWFactors f, int64_t n) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) { return; }
    float g = GRAD_SCALE * grads[i];
    v[i] = f.beta2 * v[i] + (1.0f - f.beta2) * g * g;
}

static __global__ void step_kernel1(float *w, const float *m, const float *v, AdamWFactors f, int64_t n) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) { return; }
    float direction = f.correction1 * m[i] / (sqrtf(f.correction2 * v[i]) + f.epsilon);
    w[i] -= f.lr * (direction + f.weight_decay * w[i]);
}

static __global__ void round_kernel1(floatX *params, const float *w, AdamWFactors f, int64_t n) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { params[i] = round_parameter(w[i], f.key, i); }
}

static void update1(Update &p) {
    unsigned blocks = blocks_for(p.n, 256);
    m_kernel1<<<blocks, 256>>>(p.m.data, p.grads.data, p.f, p.n);
    v_kernel1<<<blocks, 256>>>(p.v.data, p.grads.data, p.f, p.n);
    step_kernel1<<<blocks, 256>>>(p.w.data, p.m.data, p.v.data, p.f, p.n);
    round_kernel1<<<blocks, 256>>>(p.params.data, p.w.data, p.f, p.n);
}

// Version 2. One kernel for all lines: what they share stays in registers, so each array is read once and written once.
// `moved` is 1, and no version can need fewer bytes.
static __global__ void update_kernel2(floatX *params, float *w, float *m, float *v, const float *grads, AdamWFactors f,
                                      int64_t n) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) { return; }
    float wi = w[i], mi = m[i], vi = v[i];
    adamw_element(&wi, &mi, &vi, grads[i], GRAD_SCALE, f.weight_decay, f);
    w[i] = wi, m[i] = mi, v[i] = vi;
    params[i] = round_parameter(wi, f.key, i);
}

static void update2(Update &p) {
    update_kernel2<<<blocks_for(p.n, 256), 256>>>(p.params.data, p.w.data, p.m.data, p.v.data, p.grads.data, p.f, p.n);
}

// Updates 4 elements from i on, with one access of 16 bytes to each fp32 array. Returns the new master copy.
__device__ __forceinline__ f128 update_four(float *w, float *m, float *v, const float *grads, const AdamWFactors &f,
                                            int64_t i) {
    f128 wi = load128(w + i), mi = load128(m + i), vi = load128(v + i), g = load128(grads + i);
    for (int k = 0; k < 4; k++) { adamw_element(&wi[k], &mi[k], &vi[k], g[k], GRAD_SCALE, f.weight_decay, f); }
    store128(w + i, wi), store128(m + i, mi), store128(v + i, vi);
    return wi;
}

// Version 3. A thread takes 8 elements, because 8 parameters in bf16 are one access of 16 bytes. An fp32 array then
// needs two accesses, and neighbouring lanes are 32 bytes apart in each. A warp's access touches 32 sectors and uses
// half of each; the second access needs the other halves, and finds them in a cache at best. So `used` falls and
// `moved` grows. The bound does not see it, because the L2 cache is fast enough. n is a multiple of 8.
static __global__ void update_kernel3(floatX *params, float *w, float *m, float *v, const float *grads, AdamWFactors f,
                                      int64_t n) {
    int64_t i = 8 * ((int64_t)blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= n) { return; }
    f128 four[2] = {update_four(w, m, v, grads, f, i), update_four(w, m, v, grads, f, i + 4)};
    for (int begin = 0; begin < 8; begin += x128::size) {
        x128 rounded_w;
        for (int k = 0; k < x128::size; k++) {
            rounded_w[k] = round_parameter(four[(begin + k) / 4][(begin + k) % 4], f.key, i + begin + k);
        }
        store128(params + i + begin, rounded_w);
    }
}

static void update3(Update &p) {
    update_kernel3<<<blocks_for(p.n, 8 * 256), 256>>>(p.params.data, p.w.data, p.m.data, p.v.data, p.grads.data, p.f,
                                                      p.n);
}

// Version 4. A thread takes 4 elements: 16 bytes of each fp32 array, 8 bytes of the parameters in bf16. Lanes access
// neighbouring bytes everywhere. A warp has a quarter of the instructions of version 2, each with four times the bytes,
// so more bytes are on their way at once, and memory is busy with fewer warps. The bound counts bytes only: it stays.
static __global__ void update_kernel4(floatX *params, float *w, float *m, float *v, const float *grads, AdamWFactors f,
                                      int64_t n) {
    int64_t i = 4 * ((int64_t)blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= n) { return; }
    f128 four = update_four(w, m, v, grads, f, i);
    floatX rounded_w[4];
    for (int k = 0; k < 4; k++) { rounded_w[k] = round_parameter(four[k], f.key, i + k); }
    store_group<false>(params + i, rounded_w);
}

static void update4(Update &p) {
    update_kernel4<<<blocks_for(p.n, 4 * 256), 256>>>(p.params.data, p.w.data, p.m.data, p.v.data, p.grads.data, p.f,
                                                      p.n);
}

// Version 5. The trainer's: version 4 with accesses that do not fill the caches, for shards that begin anywhere.
static void update5(Update &p) {
    UpdatePart part = {p.params.data, p.w.data, p.m.data, p.v.data, p.grads.data, NULL, p.n, p.n, 0};
    adamw_update(part, p.f, p.result.data, 0);
}

int main(int argc, char **argv) {
    Ladder ladder(argc, argv);
    Update p;
    double each = 7.0 * sizeof(float) + (double)sizeof(floatX), of_124M = 124439808.0; // bytes; parameters
    auto choose = [&p, n = p.n](int problem) { p.n = problem == 0 ? n : n / 2; };
    ladder.layer({format("AdamW, %lld parameters", (long long)p.n), (double)p.n * each, 0.0, [&p] { p.clear(); },
                  [&p](Test *t) { p.check(t); },
                  rows_real_shape("124439808 parameters", (double)p.n, of_124M, of_124M * each, choose)});
    ladder.version("a kernel a line", [&p] { update1(p); });
    ladder.version("one kernel", [&p] { update2(p); });
    ladder.version("8 elements a thread", [&p] { update3(p); });
    ladder.version("4 elements a thread", [&p] { update4(p); });
    ladder.version("llmc", [&p] { update5(p); });
    return ladder.end();
}
