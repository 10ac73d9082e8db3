// The ladder of the gradient's norm: the sum of squares of all n gradients (fp32). Squares and sums are double, so that
// they neither overflow nor vanish.
#include "dev/cuda/ladder.cuh"
#include "llmc/optim/global_norm.cuh"

#define BLOCK 256

struct Norm {
    int64_t n = ladder_size(1 << 17, 124439808); // GPT-2 124M: a multiple of 4 and of BLOCK
    std::vector<float> gradients;
    double want = 0.0;
    DeviceArray<float> grads;
    DeviceArray<double> partials, loss_sum;
    DeviceArray<StepRecord> record; // the sum is record->squares
    DeviceArray<uint64_t> checksum;
    double *sum = &record.data->squares;

    Norm()
        : gradients(random_values(n, 0.1f, 1)), grads(gradients), partials(n / BLOCK), loss_sum(1), record(1),
          checksum(1) {
        for (float g : gradients) { want += (double)g * (double)g; }
        loss_sum.clear(), checksum.clear();
    }
    // All terms are positive. Rounding errors of random sign grow as the square root of their number.
    void check(Test *t) const {
        double got = record.raw()[0].squares, tolerance = want * 4.0 * sqrt((double)n) * DBL_EPSILON;
        CHECK(t, fabs(got - want) <= tolerance, "sum %.17g, expected %.17g", got, want);
    }
};

// The square of a gradient, as double.
__device__ __forceinline__ double square_of(float g) { return (double)g * (double)g; }

// Version 1. Each thread adds its square to one number. All n additions meet at one address, where the L2 cache does
// one after another: `by` says atomics. The order of the additions changes from run to run, and the sum's last bits
// with it, so the trainer adds no floating-point numbers by atomics. The table counts the cudaMemset as a kernel.
static __global__ void squares_kernel1(double *sum, const float *grads, int64_t n) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { atomicAdd(sum, square_of(grads[i])); }
}

static void squares1(Norm &p) {
    cuda_check(cudaMemsetAsync(p.sum, 0, sizeof(double), 0));
    squares_kernel1<<<blocks_for(p.n, BLOCK), BLOCK>>>(p.sum, p.grads.data, p.n);
}

// Version 2. The lanes of a warp add their squares by shuffles, which need no memory, and one lane adds the warp's sum:
// a 32nd of the atomics. All warps still meet at one address, in any order.
static __global__ void squares_kernel2(double *sum, const float *grads, int64_t n) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    double of_warp = warp_sum(i < n ? square_of(grads[i]) : 0.0);
    if (threadIdx.x % WARP_SIZE == 0) { atomicAdd(sum, of_warp); }
}

static void squares2(Norm &p) {
    cuda_check(cudaMemsetAsync(p.sum, 0, sizeof(double), 0));
    squares_kernel2<<<blocks_for(p.n, BLOCK), BLOCK>>>(p.sum, p.grads.data, p.n);
}

// Returns the sum over the threads of a block, in thread 0. In each round half of the threads that are left add a
// neighbour's number to their own.
__device__ double tree_sum(double x) {
    __shared__ double tree[BLOCK];
    tree[threadIdx.x] = x;
    for (int half = BLOCK / 2; half > 0; half /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < half) { tree[threadIdx.x] += tree[threadIdx.x + half]; }
    }
    return tree[threadIdx.x];
}

// Version 3. No atomics: a block adds its squares in shared memory and writes their sum to a place of its own. A second
// kernel adds the blocks' sums. The order of all additions is fixed, so every run gives equal bits. The tree costs
// shared memory (`waves`: 8 bytes a lane need 2) and idle lanes (`lanes`).
static __global__ void squares_kernel3(double *partials, const float *grads, int64_t n) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    double of_block = tree_sum(i < n ? square_of(grads[i]) : 0.0);
    if (threadIdx.x == 0) { partials[blockIdx.x] = of_block; }
}

// One block adds all partial sums. Each thread takes every 256th.
static __global__ void partials_kernel3(double *sum, const double *partials, int64_t count) {
    double of_thread = 0.0;
    for (int64_t i = threadIdx.x; i < count; i += BLOCK) { of_thread += partials[i]; }
    double total = tree_sum(of_thread);
    if (threadIdx.x == 0) { *sum = total; }
}

static void squares3(Norm &p) {
    squares_kernel3<<<blocks_for(p.n, BLOCK), BLOCK>>>(p.partials.data, p.grads.data, p.n);
    partials_kernel3<<<1, BLOCK>>>(p.sum, p.partials.data, p.n / BLOCK);
}

// Version 4. A thread reads 16 bytes at a time and adds 64 squares in registers before it meets the other threads. So
// shuffles, barriers and partial sums are a 64th, and the time is the time of the loads. n is a multiple of 4.
#define SPAN (64 * BLOCK) // gradients of a block

static __global__ void squares_kernel4(double *partials, const float *grads, int64_t n) {
    __shared__ double of_warps[WARP_SIZE];
    int64_t begin = (int64_t)blockIdx.x * SPAN, end = min(begin + SPAN, n);
    double sum = 0.0;
    for (int64_t i = begin + threadIdx.x * f128::size; i < end; i += BLOCK * f128::size) {
        f128 g = load128(grads + i);
        sum += (square_of(g[0]) + square_of(g[1])) + (square_of(g[2]) + square_of(g[3]));
    }
    sum = block_sum(sum, of_warps);
    if (threadIdx.x == 0) { partials[blockIdx.x] = sum; }
}

static void squares4(Norm &p) {
    unsigned blocks = blocks_for(p.n, SPAN);
    squares_kernel4<<<blocks, BLOCK>>>(p.partials.data, p.grads.data, p.n);
    partials_kernel3<<<1, BLOCK>>>(p.sum, p.partials.data, blocks);
}

// Version 5. The trainer's: version 4 with 512 threads that add 64 squares each, for any n and for all layers of a
// model in one launch. The second kernel also collects what the step's decision needs: the losses, and a checksum.
static void squares5(Norm &p) {
    global_norm_squared(p.partials.data, p.grads.data, p.n, 0);
    step_record(p.record.data, p.partials.data, global_norm_scratch_doubles(p.n), p.loss_sum.data, 0, p.checksum.data,
                0, 0);
}

static void norm_ladder(Ladder &ladder, Norm &p) {
    ladder.layer({format("sum of the squares of %lld gradients", (long long)p.n), (double)p.n * sizeof(float), 0.0,
                  [&p] { p.record.poison(), p.partials.poison(); }, [&p](Test *t) { p.check(t); }});
    ladder.version("an atomic a gradient", [&p] { squares1(p); });
    ladder.version("an atomic a warp", [&p] { squares2(p); });
    ladder.version("a tree in shared memory", [&p] { squares3(p); });
    ladder.version("64 squares a thread", [&p] { squares4(p); });
    ladder.version("llmc", [&p] { squares5(p); });
}

int main(int argc, char **argv) {
    Ladder ladder(argc, argv);
    Norm norm;
    norm_ladder(ladder, norm);
    return ladder.end();
}
