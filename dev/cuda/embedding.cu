// The ladder of the embedding's backward. The formulas are at the top of llmc/layers/embedding.cuh.
// dout (B,T,C); tokens (B,T); dwte (V,C) and dwpe (T,C) in fp32. N = B*T rows.
//
// The tokens are distributed as in a text: the k-th most frequent token comes about 1/k times as often as the first.
// So some rows of dwte add many rows, and most add none or one. The forward has a warp a row, 16 bytes a lane.
#include <set>

#include "dev/cuda/ladder.cuh"
#include "llmc/layers/embedding.cuh"

// Returns N tokens below V. floor(V^u) - 1 is k with probability log(1 + 1/(k+1)) / log V, if u is uniform.
static std::vector<int32_t> text_tokens(int64_t N, int V) {
    std::vector<int32_t> tokens = random_ids(N, 1 << 20, 1);
    for (int32_t &token : tokens) { token = (int32_t)pow(V, token / (double)(1 << 20)) - 1; }
    return tokens;
}

struct Backward {
    int B = ladder_size(32, 16), T = ladder_size(32, 1024), C = 768, V = ladder_size(256, 50257), N = B * T;
    std::vector<int32_t> ids;
    std::vector<float> before_dwte, before_dwpe, want_dwte, want_dwpe;
    DeviceArray<floatX> dout;
    DeviceArray<float> dwte, dwpe;
    DeviceArray<int32_t> tokens, order;

    // All gradients are eighths, so that their sums are exact in any order.
    Backward()
        : ids(text_tokens(N, V)), before_dwte(random_eighths((int64_t)V * C, 4)),
          before_dwpe(random_eighths((int64_t)T * C, 5)), want_dwte(before_dwte), want_dwpe(before_dwpe),
          dout((int64_t)N * C), dwte((int64_t)V * C), dwpe((int64_t)T * C), tokens(ids), order(sorted_rows()) {
        std::vector<float> eighths = random_eighths((int64_t)N * C, 6);
        dout.set(eighths);
        cpu_embedding_backward(want_dwte.data(), want_dwpe.data(), eighths.data(), ids.data(), B, T, C);
    }
    std::vector<int32_t> sorted_rows() const {
        std::vector<int32_t> rows((size_t)N), counts((size_t)V + 1);
        embedding_order_tokens(rows.data(), ids.data(), N, V, counts.data());
        return rows;
    }
    void clear() { dwte.set(before_dwte), dwpe.set(before_dwpe); }
    void check(Test *t) const {
        check_equal(t, "dwte", dwte.get(), want_dwte);
        check_equal(t, "dwpe", dwpe.get(), want_dwpe);
    }
};

// Version 1. Each thread takes a channel and goes through all rows, as the CPU does. No two threads add to one number,
// so the sums need no atomics. But each row reads and writes 16 bytes of gradients for 2 bytes of dout (`moved`). And
// 768 threads are 24 warps, where a GPU holds thousands. Each of them waits for memory N times, one wait after another.
// The bound does not see this.
static __global__ void backward_kernel1(float *dwte, float *dwpe, const floatX *dout, const int32_t *tokens, int N,
                                        int T, int C) {
    int c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= C) { return; }
    for (int row = 0; row < N; row++) {
        float d = to_float(dout[(int64_t)row * C + c]);
        dwte[(int64_t)tokens[row] * C + c] += d;
        dwpe[(int64_t)(row % T) * C + c] += d;
    }
}

static void backward1(Backward &p) {
    backward_kernel1<<<blocks_for(p.C, 64), 64>>>(p.dwte.data, p.dwpe.data, p.dout.data, p.tokens.data, p.N, p.T, p.C);
}

// Version 2. Each thread takes a number of dout and adds it with atomics, so that all threads work at once. Rows of one
// token add to one address, one after another. The sums depend on the order in which the threads come, so two runs
// differ in their last bits. The trainer has no such sums. The gradients do not count in `moved`, but they travel too.
static __global__ void backward_kernel2(float *dwte, float *dwpe, const floatX *dout, const int32_t *tokens, int N,
                                        int T, int C) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= (int64_t)N * C) { return; }
    int row = (int)(i / C), c = (int)(i % C);
    float d = to_float(dout[i]);
    atomicAdd(dwte + (int64_t)tokens[row] * C + c, d);
    atomicAdd(dwpe + (int64_t)(row % T) * C + c, d);
}

static void backward2(Backward &p) {
    backward_kernel2<<<blocks_for((int64_t)p.N * p.C, 256), 256>>>(p.dwte.data, p.dwpe.data, p.dout.data, p.tokens.data,
                                                                   p.N, p.T, p.C);
}

// A lane's sums of a row of 768 numbers. A vector of dout gives 8 sums: 32 bytes of fp32, which go in two vectors of 16
// bytes. So a request for gradients uses half of its sectors (`used`).
#define VECTORS (768 / WARP_SIZE / x128::size)
typedef float LaneSums[VECTORS][x128::size];

__device__ __forceinline__ void add_row(LaneSums &sums, const floatX *row) {
#pragma unroll
    for (int i = 0; i < VECTORS; i++) { embedding_add_row(sums[i], row + (i * WARP_SIZE + threadIdx.x) * x128::size); }
}

__device__ __forceinline__ void add_to_gradient(float *gradient, const LaneSums &sums) {
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
        embedding_add_to_gradient(gradient + (i * WARP_SIZE + threadIdx.x) * x128::size, sums[i]);
    }
}

// Version 3. Each warp takes a token of the vocabulary. It looks at all N tokens, 32 at a time, and adds the rows that
// hold its own, in their order. So each gradient has one owner again, and is read and written once. A second kernel
// gives each position a warp. It reads dout again, so the bound grows: this is the price of a fixed order. The search
// reads V*N tokens (`moved`). For GPT-2 and 16 x 1024 tokens these are 3.3 GB, beside 25 MB of dout.
static __global__ void backward_tokens_kernel3(float *dwte, const floatX *dout, const int32_t *tokens, int N, int C) {
    int token = blockIdx.x;
    LaneSums sums = {};
    bool found = false;
    for (int first = 0; first < N; first += WARP_SIZE) {
        int row = first + threadIdx.x;
        unsigned hits = __ballot_sync(FULL_WARP, row < N && tokens[row] == token);
        for (; hits != 0; hits &= hits - 1) { // from the lowest bit to the highest
            add_row(sums, dout + (int64_t)(first + __ffs(hits) - 1) * C);
            found = true;
        }
    }
    if (found) { add_to_gradient(dwte + (int64_t)token * C, sums); }
}

static __global__ void backward_positions_kernel3(float *dwpe, const floatX *dout, int B, int T, int C) {
    int position = blockIdx.x;
    LaneSums sums = {};
    for (int b = 0; b < B; b++) { add_row(sums, dout + ((int64_t)b * T + position) * C); }
    add_to_gradient(dwpe + (int64_t)position * C, sums);
}

static void backward3(Backward &p) {
    backward_tokens_kernel3<<<p.V, WARP_SIZE>>>(p.dwte.data, p.dout.data, p.tokens.data, p.N, p.C);
    backward_positions_kernel3<<<p.T, WARP_SIZE>>>(p.dwpe.data, p.dout.data, p.B, p.T, p.C);
}

// Version 4. The host sorts the rows by token, while the GPU works on the batch before. Then the rows of a token are
// neighbours in `order`, and no warp searches. Each warp takes a place of the order. If a token begins there, the warp
// adds the token's rows. It adds all rows of a frequent token alone, one after another.
static __global__ void backward_tokens_kernel4(float *dwte, const floatX *dout, const int32_t *tokens,
                                               const int32_t *order, int N, int C) {
    int place = blockIdx.x, token = tokens[order[place]];
    if (place > 0 && tokens[order[place - 1]] == token) { return; }
    LaneSums sums = {};
    for (; place < N && tokens[order[place]] == token; place++) { add_row(sums, dout + (int64_t)order[place] * C); }
    add_to_gradient(dwte + (int64_t)token * C, sums);
}

static void backward4(Backward &p) {
    backward_tokens_kernel4<<<p.N, WARP_SIZE>>>(p.dwte.data, p.dout.data, p.tokens.data, p.order.data, p.N, p.C);
    backward_positions_kernel3<<<p.T, WARP_SIZE>>>(p.dwpe.data, p.dout.data, p.B, p.T, p.C);
}

// Version 5. The trainer's: a block takes 512 places and a part of the channels. Groups of 8 threads take the short
// runs of tokens. The whole block takes a run of more than 32 rows, so that a frequent token is no serial chain. The
// bound does not see chains.
static void backward5(Backward &p) {
    embedding_backward(p.dwte.data, p.dwpe.data, p.dout.data, p.tokens.data, p.order.data, p.B, p.T, p.C, 0);
}

int main(int argc, char **argv) {
    Ladder ladder(argc, argv);
    Backward p;
    double distinct = (double)std::set<int32_t>(p.ids.begin(), p.ids.end()).size();
    double bytes = (double)sizeof(floatX) * p.N * p.C + 8.0 * p.C * (distinct + p.T) + 4.0 * p.N;
    ladder.layer({format("embedding backward, %d x %d x %d", p.B, p.T, p.C), bytes, 0.0, [&p] { p.clear(); },
                  [&p](Test *t) { p.check(t); }});
    ladder.version("a lane a channel, 24 warps", [&p] { backward1(p); });
    ladder.version("a thread a number, atomics", [&p] { backward2(p); });
    ladder.version("a warp a token", [&p] { backward3(p); });
    ladder.version("rows sorted by token", [&p] { backward4(p); });
    ladder.version("llmc", [&p] { backward5(p); });
    return ladder.end();
}
