// The ladder of the softmax of rows:
//   out[i,j] = exp(inp[i,j] - max) / sum over j of exp(inp[i,j] - max), where max is the largest inp[i,j] of row i
// inp, out (N,T): scores of attention and its weights, a row for each query of each head. The rows of this ladder have
// no mask. max cancels in the quotient. It keeps exp from overflowing.
//
// The trainer has no softmax kernel, so the last version is not the trainer's. Its attention computes scores, softmax
// and the sum over values in one kernel (llmc/layers/attention.cuh), and its loss computes softmax and gradient in one
// (llmc/layers/loss.cuh). So the N*T weights never travel to memory. Both use the online softmax of version 3.
//
// From version 2 on the bound is the time of memory, which counts a row once: the caches hold it for the next pass.
// `moved` shows the passes. Each pass also waits for its loads, which the bound does not see.
#include "dev/cuda/ladder.cuh"

struct Softmax {
    int N = ladder_size(64, 12 * 1024), T = 1024; // on a GPU: all heads of a sequence
    std::vector<float> scores, want;
    DeviceArray<floatX> inp, out;

    Softmax() : scores(random_values((int64_t)N * T, 2.0f, 1)), want(scores.size()), inp(scores), out((int64_t)N * T) {
        for (int64_t row = 0; row < N; row++) { softmax_row(want.data() + row * T, scores.data() + row * T); }
    }
    // The CPU trainer has no such function either: this one follows the formula.
    void softmax_row(float *p, const float *x) const {
        double max = (double)*std::max_element(x, x + T), sum = 0.0;
        for (int j = 0; j < T; j++) { sum += exp((double)x[j] - max); }
        for (int j = 0; j < T; j++) { p[j] = (float)(exp((double)x[j] - max) / sum); }
    }
    // The sum has T terms. exp(d) is off by 2 units in the last place, and by |d| half units more, because d is
    // rounded. |d| is at most twice the largest score. out is a quotient of two such values, and the online softmax
    // corrects a sum a few times: 4 times the error of one.
    void check(Test *t) const {
        double exponential = (2.0 + 2.0 * largest(scores)) * FLT_EPSILON;
        check_values(t, "out", out.get(), want, 0.0, sum_tolerance(T) + 4.0 * exponential + 0.5 * FLOATX_EPSILON);
    }
};

// Version 1. Each thread takes a row and passes over it three times: maximum, sum, quotient. Neighbouring lanes read
// addresses that are 2 T bytes apart, so each of 32 lanes needs a sector of its own and uses 2 of its 32 bytes.
static __global__ void softmax_kernel1(floatX *out, const floatX *inp, int N, int T) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= N) { return; }
    const floatX *x = inp + (int64_t)row * T;
    float max = -INFINITY, sum = 0.0f;
    for (int j = 0; j < T; j++) { max = fmaxf(max, to_float(x[j])); }
    for (int j = 0; j < T; j++) { sum += expf(to_float(x[j]) - max); }
    for (int j = 0; j < T; j++) { out[(int64_t)row * T + j] = from_float<floatX>(expf(to_float(x[j]) - max) / sum); }
}

static void softmax1(Softmax &p) { softmax_kernel1<<<blocks_for(p.N, 64), 64>>>(p.out.data, p.inp.data, p.N, p.T); }

// Version 2. Each warp takes a row. Its lanes read neighbouring numbers, and join their maxima and sums by shuffles.
// The row is still read three times (`moved`: 3 reads and 1 write, where 1 and 1 are needed).
static __global__ void softmax_kernel2(floatX *out, const floatX *inp, int N, int T) {
    int row = blockIdx.x * blockDim.y + threadIdx.y, lane = threadIdx.x;
    if (row >= N) { return; }
    const floatX *x = inp + (int64_t)row * T;
    float max = -INFINITY, sum = 0.0f;
    for (int j = lane; j < T; j += WARP_SIZE) { max = fmaxf(max, to_float(x[j])); }
    max = warp_max(max);
    for (int j = lane; j < T; j += WARP_SIZE) { sum += expf(to_float(x[j]) - max); }
    float factor = 1.0f / warp_sum(sum);
    for (int j = lane; j < T; j += WARP_SIZE) {
        out[(int64_t)row * T + j] = from_float<floatX>(expf(to_float(x[j]) - max) * factor);
    }
}

static void softmax2(Softmax &p) {
    softmax_kernel2<<<blocks_for(p.N, 4), dim3(WARP_SIZE, 4)>>>(p.out.data, p.inp.data, p.N, p.T);
}

// Version 3. Online softmax (Milakov and Gimelshein 2018): maximum and sum in one pass. The sum is of exp(x - max) for
// the largest x so far. If a larger x comes, exp(old max - new max) corrects the sum. It saves a read of the row and
// costs an exponential for each number. max begins with -FLT_MAX, because -INFINITY - -INFINITY is NaN.
static __global__ void softmax_kernel3(floatX *out, const floatX *inp, int N, int T) {
    int row = blockIdx.x * blockDim.y + threadIdx.y, lane = threadIdx.x;
    if (row >= N) { return; }
    const floatX *x = inp + (int64_t)row * T;
    float max = -FLT_MAX, sum = 0.0f;
    for (int j = lane; j < T; j += WARP_SIZE) {
        float value = to_float(x[j]), larger = fmaxf(max, value);
        sum = sum * expf(max - larger) + expf(value - larger);
        max = larger;
    }
    float row_max = warp_max(max);
    float factor = 1.0f / warp_sum(sum * expf(max - row_max));
    for (int j = lane; j < T; j += WARP_SIZE) {
        out[(int64_t)row * T + j] = from_float<floatX>(expf(to_float(x[j]) - row_max) * factor);
    }
}

static void softmax3(Softmax &p) {
    softmax_kernel3<<<blocks_for(p.N, 4), dim3(WARP_SIZE, 4)>>>(p.out.data, p.inp.data, p.N, p.T);
}

// Version 4. A lane takes 16 bytes at a time, and corrects its sum once for these 8 numbers: an eighth of the loads,
// and almost half of the exponentials of the first pass. T % 8 == 0.
static __global__ void softmax_kernel4(floatX *out, const floatX *inp, int N, int T) {
    int row = blockIdx.x * blockDim.y + threadIdx.y, first = threadIdx.x * x128::size, step = WARP_SIZE * x128::size;
    if (row >= N) { return; }
    const floatX *x = inp + (int64_t)row * T;
    float max = -FLT_MAX, sum = 0.0f;
    for (int j = first; j < T; j += step) {
        x128 values = load128(x + j);
        float larger = max;
        for (int k = 0; k < x128::size; k++) { larger = fmaxf(larger, to_float(values[k])); }
        sum *= expf(max - larger);
        for (int k = 0; k < x128::size; k++) { sum += expf(to_float(values[k]) - larger); }
        max = larger;
    }
    float row_max = warp_max(max);
    float factor = 1.0f / warp_sum(sum * expf(max - row_max));
    for (int j = first; j < T; j += step) {
        x128 values = load128(x + j);
        for (int k = 0; k < x128::size; k++) {
            values[k] = from_float<floatX>(expf(to_float(values[k]) - row_max) * factor);
        }
        store128(out + (int64_t)row * T + j, values);
    }
}

static void softmax4(Softmax &p) {
    softmax_kernel4<<<blocks_for(p.N, 4), dim3(WARP_SIZE, 4)>>>(p.out.data, p.inp.data, p.N, p.T);
}

// Version 5. The row stays in registers, so it is read once. The maximum then costs no second read, and nothing has to
// be corrected: one exponential for each number, kept for the quotient. VECTORS is known when the kernel is compiled.
// A row that no warp's registers can hold needs version 4, as the loss with its 50,257 columns does.
template <int VECTORS> static __global__ void softmax_kernel5(floatX *out, const floatX *inp, int N) {
    constexpr int T = VECTORS * WARP_SIZE * x128::size;
    int row = blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= N) { return; }
    int64_t first = (int64_t)row * T + threadIdx.x * x128::size;
    float x[VECTORS][x128::size], max = -INFINITY, sum = 0.0f;
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
        x128 values = load128(inp + first + i * WARP_SIZE * x128::size);
        for (int k = 0; k < x128::size; k++) { x[i][k] = to_float(values[k]), max = fmaxf(max, x[i][k]); }
    }
    max = warp_max(max);
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
        for (int k = 0; k < x128::size; k++) { x[i][k] = expf(x[i][k] - max), sum += x[i][k]; }
    }
    float factor = 1.0f / warp_sum(sum);
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
        x128 values;
        for (int k = 0; k < x128::size; k++) { values[k] = from_float<floatX>(x[i][k] * factor); }
        store128(out + first + i * WARP_SIZE * x128::size, values);
    }
}

static void softmax5(Softmax &p) {
    constexpr int VECTORS = 1024 / WARP_SIZE / x128::size;
    softmax_kernel5<VECTORS><<<blocks_for(p.N, 4), dim3(WARP_SIZE, 4)>>>(p.out.data, p.inp.data, p.N);
}

int main(int argc, char **argv) {
    Ladder ladder(argc, argv);
    Softmax p;
    ladder.layer({format("softmax, %d x %d", p.N, p.T), 2.0 * (double)sizeof(floatX) * p.N * p.T, 0.0,
                  [&p] { p.out.poison(); }, [&p](Test *t) { p.check(t); }});
    ladder.version("a thread a row", [&p] { softmax1(p); });
    ladder.version("a warp a row", [&p] { softmax2(p); });
    ladder.version("online: max and sum", [&p] { softmax3(p); });
    ladder.version("16 bytes a lane", [&p] { softmax4(p); });
    ladder.version("row in registers", [&p] { softmax5(p); });
    return ladder.end();
}
