// The ladder of the loss. The formulas are at the top of llmc/layers/loss.cuh: softmax and cross entropy of each row of
// logits (N,Vp), whose gradient replaces the logits. Columns V..Vp-1 are padding, and their gradient is 0.
// targets (N); losses (N) fp32. A block has one row in all versions.
#include "dev/cuda/ladder.cuh"
#include "llmc/layers/loss.cuh"

#define BLOCK 256

struct Classifier {
    int N = ladder_size(8, 2048), Vp = ladder_size(16384, 50304), V = Vp - 47; // GPT-2: 50257 of 50304
    float dloss = 1.0f / (float)N;
    std::vector<float> values, want_losses, want;
    std::vector<int32_t> ids;
    DeviceArray<floatX> logits;
    DeviceArray<int32_t> targets;
    DeviceArray<float> losses, probabilities; // probabilities (N,Vp): of version 1

    Classifier()
        : values(random_values((int64_t)N * Vp, 3.0f, 1)), want_losses((size_t)N), want(values),
          ids(random_ids(N, Vp / 2 - 47, 2)), // also for problem 1
          logits((int64_t)N * Vp), targets(ids), losses(N), probabilities((int64_t)N * Vp) {
        cpu_cross_entropy(want_losses.data(), want.data(), ids.data(), N, V, Vp, dloss, true);
        for (size_t i = 0; i < want.size(); i++) { want[i] = (int)(i % (size_t)Vp) < V ? want[i] : 0.0f; }
    }
    void clear() { logits.set(values), losses.poison(), probabilities.poison(); }
    void check(Test *t) const;
};

// An exponential is off by up to 4 + 1.2 |x| epsilons; |x| is at most the range of the logits. The sum adds its error.
// At a target softmax - 1 keeps the absolute error only.
void Classifier::check(Test *t) const {
    double range = 2.0 * largest(values), softmax_error = 2.0 * (4.0 + 1.2 * range) * FLT_EPSILON + sum_tolerance(V);
    std::vector<float> got = logits.get(), rest = want, got_targets, want_targets;
    for (size_t i = 0; i < (size_t)N; i++) {
        size_t at = i * (size_t)Vp + (size_t)ids[i];
        got_targets.push_back(got[at]), want_targets.push_back(rest[at]);
        got[at] = rest[at] = 0.0f;
    }
    check_values(t, "losses", losses.get(), want_losses, softmax_error + 4.0 * range * FLT_EPSILON, 0.0);
    check_values(t, "gradient", got, rest, FLT_MIN, softmax_error + 0.51 * FLOATX_EPSILON);
    check_values(t, "gradient at targets", got_targets, want_targets, dloss * softmax_error, 0.51 * FLOATX_EPSILON);
}

// Version 1. Three kernels, as the formulas stand: the probabilities, the losses, the gradient. The probabilities go to
// memory in fp32 and come back, 8 bytes for each logit of 2, and the first kernel reads the logits three times. The
// loss is the logarithm of a rounded probability: it is infinite where the probability has become 0.
static __global__ void softmax_kernel1(float *probabilities, const floatX *logits, int V, int Vp) {
    __shared__ float partial[WARP_SIZE];
    const floatX *row = logits + (int64_t)blockIdx.x * Vp;
    float max = -FLT_MAX, sum = 0.0f;
    for (int v = threadIdx.x; v < V; v += BLOCK) { max = fmaxf(max, to_float(row[v])); }
    max = block_max(max, partial);
    for (int v = threadIdx.x; v < V; v += BLOCK) { sum += expf(to_float(row[v]) - max); }
    sum = block_sum(sum, partial);
    for (int v = threadIdx.x; v < V; v += BLOCK) {
        probabilities[(int64_t)blockIdx.x * Vp + v] = expf(to_float(row[v]) - max) / sum;
    }
}

static __global__ void losses_kernel1(float *losses, const float *probabilities, const int32_t *targets, int N,
                                      int Vp) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N) { losses[i] = -logf(probabilities[(int64_t)i * Vp + targets[i]]); }
}

static __global__ void gradient_kernel1(floatX *logits, const float *probabilities, const int32_t *targets, int V,
                                        int Vp, float dloss) {
    int64_t row = (int64_t)blockIdx.x * Vp;
    int target = targets[blockIdx.x];
    for (int v = threadIdx.x; v < Vp; v += BLOCK) {
        float p = v < V ? probabilities[row + v] - (v == target ? 1.0f : 0.0f) : 0.0f;
        logits[row + v] = from_float<floatX>(dloss * p);
    }
}

static void classifier1(Classifier &p) {
    softmax_kernel1<<<p.N, BLOCK>>>(p.probabilities.data, p.logits.data, p.V, p.Vp);
    losses_kernel1<<<blocks_for(p.N, 32), 32>>>(p.losses.data, p.probabilities.data, p.targets.data, p.N, p.Vp);
    gradient_kernel1<<<p.N, BLOCK>>>(p.logits.data, p.probabilities.data, p.targets.data, p.V, p.Vp, p.dloss);
}

// Returns the gradient of logit number v of a row.
__device__ __forceinline__ float logit_gradient(float logit, int v, int V, int target, float max, float sum,
                                                float dloss) {
    if (v >= V) { return 0.0f; }
    return dloss * (expf(logit - max) / sum - (v == target ? 1.0f : 0.0f));
}

// Version 2. One kernel, and no memory for probabilities: the third pass computes each exponential again and writes the
// gradient over the logit. The row is read three times, so `moved` is 2. The bound counts what a perfect cache would
// move, so it sees no difference between this version and the next ones.
static __global__ void classifier_kernel2(float *losses, floatX *logits, const int32_t *targets, int V, int Vp,
                                          float dloss) {
    __shared__ float partial[WARP_SIZE];
    floatX *row = logits + (int64_t)blockIdx.x * Vp;
    int target = targets[blockIdx.x];
    float max = -FLT_MAX, sum = 0.0f, target_logit = to_float(row[target]);
    for (int v = threadIdx.x; v < V; v += BLOCK) { max = fmaxf(max, to_float(row[v])); }
    max = block_max(max, partial);
    for (int v = threadIdx.x; v < V; v += BLOCK) { sum += expf(to_float(row[v]) - max); }
    sum = block_sum(sum, partial);
    if (threadIdx.x == 0) { losses[blockIdx.x] = logf(sum) + max - target_logit; }
    for (int v = threadIdx.x; v < Vp; v += BLOCK) {
        row[v] = from_float<floatX>(logit_gradient(to_float(row[v]), v, V, target, max, sum, dloss));
    }
}

static void classifier2(Classifier &p) {
    classifier_kernel2<<<p.N, BLOCK>>>(p.losses.data, p.logits.data, p.targets.data, p.V, p.Vp, p.dloss);
}

// Version 3. Maximum and sum in one pass: when the maximum grows from a to b, the sum so far is multiplied by
// exp(a - b). At the end each thread's sum is brought to the block's maximum. The row is read twice, so `moved` is 1.5.
// The price is an exponential more for each logit.
static __global__ void classifier_kernel3(float *losses, floatX *logits, const int32_t *targets, int V, int Vp,
                                          float dloss) {
    __shared__ float partial[WARP_SIZE];
    floatX *row = logits + (int64_t)blockIdx.x * Vp;
    int target = targets[blockIdx.x];
    float thread_max = -FLT_MAX, sum = 0.0f, target_logit = to_float(row[target]);
    for (int v = threadIdx.x; v < V; v += BLOCK) {
        float logit = to_float(row[v]), larger = fmaxf(thread_max, logit);
        sum = sum * expf(thread_max - larger) + expf(logit - larger);
        thread_max = larger;
    }
    float max = block_max(thread_max, partial);
    sum = block_sum(sum * expf(thread_max - max), partial);
    if (threadIdx.x == 0) { losses[blockIdx.x] = logf(sum) + max - target_logit; }
    for (int v = threadIdx.x; v < Vp; v += BLOCK) {
        row[v] = from_float<floatX>(logit_gradient(to_float(row[v]), v, V, target, max, sum, dloss));
    }
}

static void classifier3(Classifier &p) {
    classifier_kernel3<<<p.N, BLOCK>>>(p.losses.data, p.logits.data, p.targets.data, p.V, p.Vp, p.dloss);
}

// Version 4. A lane takes 16 bytes at a time: an eighth of the accesses in bf16. It corrects the sum once for 8 logits,
// not for each logit, so nearly all further exponentials of version 3 are gone. Vp is a multiple of 8.
static __global__ void classifier_kernel4(float *losses, floatX *logits, const int32_t *targets, int V, int Vp,
                                          float dloss) {
    __shared__ float partial[WARP_SIZE];
    floatX *row = logits + (int64_t)blockIdx.x * Vp;
    int target = targets[blockIdx.x];
    float thread_max = -FLT_MAX, sum = 0.0f, target_logit = to_float(row[target]);
    for (int first = threadIdx.x * x128::size; first < V; first += BLOCK * x128::size) {
        float x[x128::size], larger = thread_max;
        unpack_logits(x, load128(row + first), first, V); // padding becomes -infinity
        for (int k = 0; k < x128::size; k++) { larger = fmaxf(larger, x[k]); }
        sum *= expf(thread_max - larger);
        for (int k = 0; k < x128::size; k++) { sum += expf(x[k] - larger); }
        thread_max = larger;
    }
    float max = block_max(thread_max, partial);
    sum = block_sum(sum * expf(thread_max - max), partial);
    if (threadIdx.x == 0) { losses[blockIdx.x] = logf(sum) + max - target_logit; }
    for (int first = threadIdx.x * x128::size; first < Vp; first += BLOCK * x128::size) {
        x128 x = load128(row + first);
        for (int k = 0; k < x128::size; k++) {
            x[k] = from_float<floatX>(logit_gradient(to_float(x[k]), first + k, V, target, max, sum, dloss));
        }
        store128(row + first, x);
    }
}

static void classifier4(Classifier &p) {
    classifier_kernel4<<<p.N, BLOCK>>>(p.losses.data, p.logits.data, p.targets.data, p.V, p.Vp, p.dloss);
}

// Version 5. The trainer's: version 4 with the row in shared memory, where both passes read it. `moved` is 1 but for
// the targets, and no version can need fewer bytes. A row has 1,024 threads, because only two rows of GPT-2's
// vocabulary in bf16 fit into shared memory, and their threads must keep memory busy. Where two rows do not fit, the
// trainer reads a row twice, the second time from the L2 cache at best. The exponentials are the hardware's exp2.
static void classifier5(Classifier &p) {
    cross_entropy(p.losses.data, p.logits.data, p.targets.data, p.N, p.V, p.Vp, p.dloss, true, 0);
}

int main(int argc, char **argv) {
    Ladder ladder(argc, argv);
    Classifier p;
    auto bytes_of = [](double N, double Vp) { return 2.0 * (double)sizeof(floatX) * N * Vp + 8.0 * N; };
    auto choose = [&p, Vp = p.Vp](int problem) { p.Vp = problem == 0 ? Vp : Vp / 2, p.V = p.Vp - 47; };
    double N = p.N, logits = N * p.Vp, real_N = 16384.0, real_Vp = 50304.0;
    RealShape real = {"16384 x 50257",
                      {{logits, N}, {logits / 2.0, N}, {real_N * real_Vp, real_N}},
                      bytes_of(real_N, real_Vp),
                      0.0,
                      false,
                      choose};
    ladder.layer({format("loss and its gradient, %d x %d", p.N, p.V), bytes_of(p.N, p.Vp), 0.0, [&p] { p.clear(); },
                  [&p](Test *t) { p.check(t); }, real});
    ladder.version("probabilities in memory", [&p] { classifier1(p); });
    ladder.version("one kernel, three passes", [&p] { classifier2(p); });
    ladder.version("online maximum and sum", [&p] { classifier3(p); });
    ladder.version("16 bytes a lane", [&p] { classifier4(p); });
    ladder.version("llmc, row in shared memory", [&p] { classifier5(p); });
    return ladder.end();
}
