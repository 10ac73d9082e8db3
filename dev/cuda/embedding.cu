// The ladder of the embedding. The formulas are at the top of llmc/layers/embedding.cuh.
// out, dout (B,T,C); tokens (B,T); wte, dwte (V,C); wpe, dwpe (T,C). dwte and dwpe are fp32. N = B*T rows.
//
// The tokens are distributed as in a text: the k-th most frequent token comes about 1/k times as often as the first.
// So some rows of wte serve many rows, and most serve none or one. A kernel reads the frequent rows more than once,
// from the caches, so `moved` is more than 1.
#include <set>

#include "dev/cuda/ladder.cuh"
#include "llmc/layers/embedding.cuh"

// Returns N tokens below V. floor(V^u) - 1 is k with probability log(1 + 1/(k+1)) / log V, if u is uniform.
static std::vector<int32_t> text_tokens(int64_t N, int V) {
    std::vector<int32_t> tokens = random_ids(N, 1 << 20, 1);
    for (int32_t &token : tokens) { token = (int32_t)pow(V, token / (double)(1 << 20)) - 1; }
    return tokens;
}

struct Embedding {
    int B = ladder_size(32, 16), T = ladder_size(32, 1024), C = 768, V = ladder_size(256, 50257), N = B * T;
    std::vector<int32_t> ids;
    double distinct; // tokens
    std::vector<float> want_out;
    DeviceArray<int32_t> tokens;
    DeviceArray<floatX> wte, wpe, out;

    Embedding()
        : ids(text_tokens(N, V)), distinct((double)std::set<int32_t>(ids.begin(), ids.end()).size()),
          want_out((size_t)N * (size_t)C), tokens(ids), wte((int64_t)V * C), wpe((int64_t)T * C), out((int64_t)N * C) {
        std::vector<float> of_token = random_values((int64_t)V * C, 1.0f, 2);
        std::vector<float> of_position = random_values((int64_t)T * C, 0.3f, 3);
        wte.set(of_token);
        wpe.set(of_position);
        cpu_embedding_forward(want_out.data(), ids.data(), of_token.data(), of_position.data(), B, T, C);
        for (float &x : want_out) { x = rounded(x); }
    }
    // One sum, rounded once: no other bits are right.
    void check(Test *t) const { check_equal(t, "out", out.get(), want_out); }
};

// ---- Forward ----

// Version 1. Each thread takes a row. The lanes of a warp are in different rows, so each of 32 lanes needs a sector of
// its own and uses 2 of its 32 bytes.
static __global__ void forward_kernel1(floatX *out, const int32_t *tokens, const floatX *wte, const floatX *wpe, int N,
                                       int T, int C) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= N) { return; }
    const floatX *token = wte + (int64_t)tokens[row] * C, *position = wpe + (int64_t)(row % T) * C;
    for (int c = 0; c < C; c++) {
        out[(int64_t)row * C + c] = from_float<floatX>(to_float(token[c]) + to_float(position[c]));
    }
}

static void forward1(Embedding &p) {
    forward_kernel1<<<blocks_for(p.N, 64), 64>>>(p.out.data, p.tokens.data, p.wte.data, p.wpe.data, p.N, p.T, p.C);
}

// Version 2. Each thread takes a number. The lanes of a warp take neighbouring numbers of a row, 64 bytes in 2 sectors.
// All of them also load the row's token: one sector more for every 32 numbers, which use 4 of its bytes.
static __global__ void forward_kernel2(floatX *out, const int32_t *tokens, const floatX *wte, const floatX *wpe, int N,
                                       int T, int C) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= (int64_t)N * C) { return; }
    int row = (int)(i / C), c = (int)(i % C);
    float token = to_float(wte[(int64_t)tokens[row] * C + c]);
    out[i] = from_float<floatX>(token + to_float(wpe[(int64_t)(row % T) * C + c]));
}

static void forward2(Embedding &p) {
    forward_kernel2<<<blocks_for((int64_t)p.N * p.C, 256), 256>>>(p.out.data, p.tokens.data, p.wte.data, p.wpe.data,
                                                                  p.N, p.T, p.C);
}

// Version 3. Each thread takes 16 bytes. It divides and loads the token once for 8 numbers. C % 8 == 0.
static __global__ void forward_kernel3(floatX *out, const int32_t *tokens, const floatX *wte, const floatX *wpe, int N,
                                       int T, int C) {
    int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * x128::size;
    if (i >= (int64_t)N * C) { return; }
    int row = (int)(i / C), c = (int)(i % C);
    x128 token = load128(wte + (int64_t)tokens[row] * C + c), position = load128(wpe + (int64_t)(row % T) * C + c);
    for (int k = 0; k < x128::size; k++) { token[k] = from_float<floatX>(to_float(token[k]) + to_float(position[k])); }
    store128(out + i, token);
}

static void forward3(Embedding &p) {
    int64_t packs = (int64_t)p.N * p.C / x128::size;
    forward_kernel3<<<blocks_for(packs, 256), 256>>>(p.out.data, p.tokens.data, p.wte.data, p.wpe.data, p.N, p.T, p.C);
}

// Version 4. The trainer's: a warp takes a row. It loads the token once a row, and a lane has the loads of several
// vectors on their way, all behind one token. In version 3 each of them waits for a token of its own.
static void forward4(Embedding &p) {
    embedding_forward(p.out.data, p.tokens.data, p.wte.data, p.wpe.data, p.B, p.T, p.C, 0);
}

static void forward_ladder(Ladder &ladder, Embedding &p) {
    double bytes = (double)sizeof(floatX) * p.C * (p.distinct + p.T + p.N) + 4.0 * p.N;
    ladder.layer({format("embedding forward, %d x %d x %d", p.B, p.T, p.C), bytes, 0.0, [&p] { p.out.poison(); },
                  [&p](Test *t) { p.check(t); }});
    ladder.version("a thread a row", [&p] { forward1(p); });
    ladder.version("a thread a number", [&p] { forward2(p); });
    ladder.version("16 bytes a lane", [&p] { forward3(p); });
    ladder.version("llmc", [&p] { forward4(p); });
}

// ---- Backward ----

struct Backward {
    const Embedding &f;
    std::vector<float> before_dwte, before_dwpe, want_dwte, want_dwpe;
    DeviceArray<floatX> dout;
    DeviceArray<float> dwte, dwpe;
    DeviceArray<int32_t> order;

    // All gradients are eighths, so that their sums are exact in any order.
    explicit Backward(const Embedding &f)
        : f(f), before_dwte(random_eighths((int64_t)f.V * f.C, 4)), before_dwpe(random_eighths((int64_t)f.T * f.C, 5)),
          want_dwte(before_dwte), want_dwpe(before_dwpe), dout((int64_t)f.N * f.C), dwte((int64_t)f.V * f.C),
          dwpe((int64_t)f.T * f.C), order(sorted_rows(f)) {
        std::vector<float> eighths = random_eighths((int64_t)f.N * f.C, 6);
        dout.set(eighths);
        cpu_embedding_backward(want_dwte.data(), want_dwpe.data(), eighths.data(), f.ids.data(), f.B, f.T, f.C);
    }
    static std::vector<int32_t> sorted_rows(const Embedding &f) {
        std::vector<int32_t> order((size_t)f.N), counts((size_t)f.V + 1);
        embedding_order_tokens(order.data(), f.ids.data(), f.N, f.V, counts.data());
        return order;
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
    backward_kernel1<<<blocks_for(p.f.C, 64), 64>>>(p.dwte.data, p.dwpe.data, p.dout.data, p.f.tokens.data, p.f.N,
                                                    p.f.T, p.f.C);
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
    backward_kernel2<<<blocks_for((int64_t)p.f.N * p.f.C, 256), 256>>>(p.dwte.data, p.dwpe.data, p.dout.data,
                                                                       p.f.tokens.data, p.f.N, p.f.T, p.f.C);
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
    backward_tokens_kernel3<<<p.f.V, WARP_SIZE>>>(p.dwte.data, p.dout.data, p.f.tokens.data, p.f.N, p.f.C);
    backward_positions_kernel3<<<p.f.T, WARP_SIZE>>>(p.dwpe.data, p.dout.data, p.f.B, p.f.T, p.f.C);
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
    backward_tokens_kernel4<<<p.f.N, WARP_SIZE>>>(p.dwte.data, p.dout.data, p.f.tokens.data, p.order.data, p.f.N,
                                                  p.f.C);
    backward_positions_kernel3<<<p.f.T, WARP_SIZE>>>(p.dwpe.data, p.dout.data, p.f.B, p.f.T, p.f.C);
}

// Version 5. The trainer's: a block takes 512 places and a part of the channels. Groups of 8 threads take the short
// runs of tokens. The whole block takes a run of more than 32 rows, so that a frequent token is no serial chain. The
// bound does not see chains.
static void backward5(Backward &p) {
    embedding_backward(p.dwte.data, p.dwpe.data, p.dout.data, p.f.tokens.data, p.order.data, p.f.B, p.f.T, p.f.C, 0);
}

static void backward_ladder(Ladder &ladder, Backward &p) {
    const Embedding &f = p.f;
    double bytes = (double)sizeof(floatX) * f.N * f.C + 8.0 * f.C * (f.distinct + f.T) + 4.0 * f.N;
    ladder.layer({format("embedding backward, %d x %d x %d", f.B, f.T, f.C), bytes, 0.0, [&p] { p.clear(); },
                  [&p](Test *t) { p.check(t); }});
    ladder.version("a lane a channel, 24 warps", [&p] { backward1(p); });
    ladder.version("a thread a number, atomics", [&p] { backward2(p); });
    ladder.version("a warp a token", [&p] { backward3(p); });
    ladder.version("rows sorted by token", [&p] { backward4(p); });
    ladder.version("llmc", [&p] { backward5(p); });
}

int main(int argc, char **argv) {
    Ladder ladder(argc, argv);
    Embedding embedding;
    forward_ladder(ladder, embedding);
    ladder.end_layer();
    Backward backward(embedding);
    backward_ladder(ladder, backward);
    return ladder.end();
}
