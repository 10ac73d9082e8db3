// `make bench-gpu`: how far each kernel of the GPU trainer is from this GPU's own limits, in one run: the time of each
// launcher at a model's shapes beside its floor, which is the least memory traffic at the speed of a device-to-device
// copy, or the arithmetic at the speed of a large matrix multiply, whichever is longer; both are measured first.
//
// Times are medians of many batches of launches. Operands rotate through several copies, together larger than the L2
// cache, as in a training step, where everything has been pushed out of it since it was last used.
// In the emulator only `--model tiny` makes sense, and its times mean nothing.
#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "llmc/optim/adamw.cuh"
#include "llmc/run/args.h"
#include "llmc/layers/attention.cuh"
#include "llmc/base/openmp.h"
#include "llmc/cuda/cuda_utils.cuh"
#include "llmc/layers/embedding.cuh"
#include "llmc/layers/loss.cuh"
#include "llmc/layers/gelu.cuh"
#include "llmc/optim/global_norm.cuh"
#include "llmc/optim/muon.cuh"
#include "llmc/model/params.h"
#include "llmc/model/gpu_peak.h"
#include "llmc/layers/layernorm.cuh"
#include "llmc/layers/linear.cuh"

#define POOL_BYTES ((int64_t)12 << 30) // at most; less where the GPU has less
#define MAX_COPIES 16                  // of the operands
#define CHUNK_ROWS 8192                // of the logits, of which a step never holds all
#define TINY_CHUNK_ROWS 8              // the same in a test of this program

// ---- Options ----

typedef struct {
    const char *model, *csv;
    int64_t batch_size, seq_len;
} Options;

static const ArgSpec specs[] = {
    {"model", "", ARG_TEXT, offsetof(Options, model), "d12", 1, 64, "SIZE", "",
     "of the model whose shapes are timed: d6, d12 ... d84, gpt3:c768 ..., or tiny"},
    {"batch-size", "b", ARG_INT, offsetof(Options, batch_size), "16", 1, 65536, "B", "",
     "sequences in a micro-batch; halved until everything fits the GPU's memory"},
    {"seq-len", "t", ARG_INT, offsetof(Options, seq_len), "0", 0, 65536, "T", "",
     "tokens in a sequence; 0: the model's context"},
    {"csv", "", ARG_TEXT, offsetof(Options, csv), "", 1, ARGS_MAX_PATH, "FILE", "",
     "also write the rows to FILE, as comma-separated values"},
};

static const ArgsProgram program = {
    "bench_gpu",
    "[options]",
    "Times each kernel of the GPU trainer against the least time that this GPU's memory and arithmetic allow it.",
    "--model d12 --csv times.csv",
    specs,
    sizeof(specs) / sizeof(specs[0]),
    false,
    NULL,
    NULL,
    NULL,
    NULL,
    false,
    NULL,
    NULL,
};

// ---- What is measured with ----

typedef struct {
    ModelConfig config;
    int B, T;
    int64_t N;               // B * T
    bool tiny;               // a test of this program: few repetitions
    int64_t workspace_bytes; // cuBLASLt's
    bool has_fp8;            // bf16 build, and a GPU that multiplies 8-bit numbers
    cudaStream_t stream;
    cudaEvent_t start, stop;
    CublasContext cublas;
    char *pool;
    int64_t pool_bytes, l2_bytes;
    double bytes_per_second, flops_per_second; // measured
    FILE *csv;                                 // or NULL
} Bench;

// What lies in a buffer before the kernel runs. Random: arithmetic on zeros takes less power, and so less time.
typedef enum { FILL_FLOATX, FILL_F32, FILL_F64, FILL_TOKENS, FILL_FP8, FILL_SCALE } Fill;
static const int64_t fill_bytes[] = {sizeof(floatX), 4, 8, 4, 1, sizeof(Fp8Scale)};

typedef struct {
    Fill fill;
    int64_t count;
    int limit; // FILL_TOKENS: 0 .. limit-1
} Buffer;

static int64_t chunk_rows(const Bench *b) { return min_i64(b->N, b->tiny ? TINY_CHUNK_ROWS : CHUNK_ROWS); }

static Buffer floatXs(int64_t count) { return {FILL_FLOATX, count, 0}; } // -1 to 1
static Buffer floats(int64_t count) { return {FILL_F32, count, 0}; }     // 0 to 1
static Buffer doubles(int64_t count) { return {FILL_F64, count, 0}; }    // 0 to 1
static Buffer fp8s(int64_t count) { return {FILL_FP8, count, 0}; }       // of either format, finite
static Buffer fp8_scale(void) { return {FILL_SCALE, 1, 0}; }             // of amax 1
static Buffer tokens_below(int limit, int64_t count) { return {FILL_TOKENS, count, limit}; }

static int64_t buffer_size(const Buffer &buffer) {
    return round_up_i64(buffer.count * fill_bytes[buffer.fill], PLAN_ALIGNMENT);
}

// The addresses of one copy of a kernel's buffers, in their order.
struct Operands {
    std::vector<char *> addresses;
    floatX *x(int i) const { return (floatX *)addresses[(size_t)i]; }
    float *f(int i) const { return (float *)addresses[(size_t)i]; }
    fp8e4 *e4(int i) const { return (fp8e4 *)addresses[(size_t)i]; }
    fp8e5 *e5(int i) const { return (fp8e5 *)addresses[(size_t)i]; }
    Fp8Scale *s(int i) const { return (Fp8Scale *)addresses[(size_t)i]; }
    double *d(int i) const { return (double *)addresses[(size_t)i]; }
    int32_t *ids(int i) const { return (int32_t *)addresses[(size_t)i]; }
};
typedef std::function<void(const Operands &)> Launch;

typedef struct {
    std::string name;
    double bytes, flops; // that it must move and compute at least
    std::vector<Buffer> buffers;
    Launch launch;
    Launch prepare; // once for each copy, before; may be empty
} Kernel;

__global__ void fill_kernel(char *data, Fill fill, int64_t count, int limit, uint64_t key) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) { return; }
    uint32_t bits = rounding_bits(key, (uint64_t)i);
    float uniform = (float)(bits >> 8) * 0x1p-24f; // 0 to 1
    switch (fill) {
    case FILL_FLOATX: ((floatX *)data)[i] = from_float<floatX>(2.0f * uniform - 1.0f); break;
    case FILL_F32: ((float *)data)[i] = uniform; break;
    case FILL_F64: ((double *)data)[i] = uniform; break;
    case FILL_TOKENS: ((int32_t *)data)[i] = (int32_t)(bits % (uint32_t)limit); break;
    case FILL_FP8: ((uint8_t *)data)[i] = (uint8_t)(bits & 0xbf); break;
    case FILL_SCALE: ((Fp8Scale *)data)[i] = {amax_of(1.0f), fp8_inverse<fp8e4>(amax_of(1.0f))}; break;
    }
}

// Lays out copy number `copy` of the buffers in the pool and fills them.
static Operands make_operands(Bench *b, const std::vector<Buffer> &buffers, int copy, int64_t copy_bytes) {
    Operands operands;
    char *at = b->pool + copy * copy_bytes;
    for (const Buffer &buffer : buffers) {
        if (buffer.count > 0) {
            uint64_t key = rounding_key(5, copy * 100 + (int64_t)operands.addresses.size());
            fill_kernel<<<blocks_for(buffer.count, 256), 256, 0, b->stream>>>(at, buffer.fill, buffer.count,
                                                                              buffer.limit, key);
            cuda_check_launch("fill_kernel");
        }
        operands.addresses.push_back(at);
        at += buffer_size(buffer);
    }
    return operands;
}

// Seconds of `launches` launches that take the copies by turns.
static double time_batch(Bench *b, const Launch &launch, const std::vector<Operands> &copies, int launches) {
    float ms = 0.0f;
    cuda_check(cudaEventRecord(b->start, b->stream));
    for (int i = 0; i < launches; i++) { launch(copies[(size_t)i % copies.size()]); }
    cuda_check(cudaEventRecord(b->stop, b->stream));
    cuda_check(cudaEventSynchronize(b->stop));
    cuda_check(cudaEventElapsedTime(&ms, b->start, b->stop));
    return 1e-3 * ms;
}

// Median seconds of a launch: batches of at least a millisecond, for about 0.1 s, after as much to wake the clocks up.
static double time_launches(Bench *b, const Launch &launch, const std::vector<Operands> &copies) {
    int per_batch = (int)copies.size();
    double warm = time_batch(b, launch, copies, per_batch);
    if (b->tiny) { return warm / per_batch; }
    warm = time_batch(b, launch, copies, per_batch) / per_batch;
    per_batch = (int)max_i64(per_batch, (int64_t)(1e-3 / fmax(warm, 1e-7)) + 1);
    int batches = (int)min_i64(51, max_i64(5, (int64_t)(0.1 / (warm * per_batch))));
    std::vector<double> seconds;
    for (int i = 0; i < 2 * batches; i++) { seconds.push_back(time_batch(b, launch, copies, per_batch) / per_batch); }
    seconds.erase(seconds.begin(), seconds.begin() + batches);
    std::sort(seconds.begin(), seconds.end());
    return seconds[seconds.size() / 2];
}

// Seconds of a launch, or -1 if one copy of its buffers does not fit the pool.
static double time_kernel(Bench *b, const Kernel &kernel) {
    int64_t copy_bytes = 0;
    for (const Buffer &buffer : kernel.buffers) { copy_bytes += buffer_size(buffer); }
    if (copy_bytes > b->pool_bytes) { return -1.0; }
    int64_t wanted = 2 * b->l2_bytes / max_i64(copy_bytes, 1) + 1;
    int count = (int)min_i64(min_i64(wanted, MAX_COPIES), b->pool_bytes / max_i64(copy_bytes, 1));
    std::vector<Operands> copies;
    for (int copy = 0; copy < (b->tiny ? 1 : count); copy++) {
        copies.push_back(make_operands(b, kernel.buffers, copy, copy_bytes));
        if (kernel.prepare) { kernel.prepare(copies.back()); }
    }
    return fmax(time_launches(b, kernel.launch, copies), 1e-9); // the emulator's clock may stand still
}

// ---- The rows ----

static void print_row(Bench *b, const Kernel &kernel, double seconds, const char *bound, double floor) {
    double gigabytes = 1e-9 * kernel.bytes, gigaflop = 1e-9 * kernel.flops;
    printf("%-28s %10.1f %8.3f %9.1f %8.0f %9.1f  %-6s %6.1f%%\n", kernel.name.c_str(), 1e6 * seconds, gigabytes,
           gigaflop, gigabytes / seconds, 1e-3 * gigaflop / seconds, bound, 100.0 * floor / seconds);
    if (b->csv == NULL) { return; }
    fprintf(b->csv, "%s,%s,%d,%d,%d,%.3f,%.6f,%.3f,%.1f,%.3f,%s,%.2f\n", kernel.name.c_str(), PRECISION_NAME, b->B,
            b->T, b->config.channels, 1e6 * seconds, gigabytes, gigaflop, gigabytes / seconds,
            1e-3 * gigaflop / seconds, bound, 100.0 * floor / seconds);
}

static void measure(Bench *b, const Kernel &kernel) {
    double seconds = time_kernel(b, kernel);
    if (seconds < 0.0) {
        printf("%-28s needs more memory than this GPU has free; give a smaller --batch-size\n", kernel.name.c_str());
        return;
    }
    double memory = kernel.bytes / b->bytes_per_second, arithmetic = kernel.flops / b->flops_per_second;
    print_row(b, kernel, seconds, memory >= arithmetic ? "memory" : "math", fmax(memory, arithmetic));
}

// ---- The floors ----

static void measure_copy(Bench *b) {
    int64_t bytes = b->tiny ? 1 << 20 : min_i64((int64_t)1 << 30, b->pool_bytes / 2 / PLAN_ALIGNMENT * PLAN_ALIGNMENT);
    Kernel copy = {"device-to-device copy", 2.0 * (double)bytes, 0.0, {floats(bytes / 4), floats(bytes / 4)}, {}, {}};
    copy.launch = [=](const Operands &o) {
        cuda_check(cudaMemcpyAsync(o.f(1), o.f(0), (size_t)bytes, cudaMemcpyDeviceToDevice, b->stream));
    };
    double seconds = time_kernel(b, copy);
    b->bytes_per_second = copy.bytes / seconds;
    print_row(b, copy, seconds, "memory", seconds);
}

static void measure_matmul(Bench *b) {
    int M = b->tiny ? 128 : 8192;
    int64_t MM = (int64_t)M * M;
    Kernel square = {"matmul " + std::to_string(M) + "^3",
                     3.0 * (double)MM * sizeof(floatX),
                     2.0 * (double)MM * M,
                     {floatXs(MM), floatXs(MM), floatXs(MM)},
                     {},
                     {}};
    square.launch = [=](const Operands &o) {
        linear_forward(&b->cublas, {M, M, o.x(2), NULL}, o.x(0), NULL, o.x(1), M, b->stream);
    };
    double seconds = time_kernel(b, square);
    b->flops_per_second = square.flops / seconds;
    print_row(b, square, seconds, "math", seconds);
}

// ---- The kernels ----

static const double X = sizeof(floatX);

static void bench_embedding(Bench *b) {
    int B = b->B, T = b->T, C = b->config.channels, V = b->config.vocab_size, Vp = b->config.padded_vocab_size;
    int64_t N = b->N;
    double NC = (double)N * C, rows = (double)min_i64(N, V) * C, TC = (double)T * C; // rows of wte, if none repeats
    Kernel forward = {"embedding_forward",
                      X * (NC + rows + TC) + 4.0 * (double)N,
                      0.0,
                      {floatXs(N * C), tokens_below(V, N), floatXs((int64_t)Vp * C), floatXs((int64_t)T * C)},
                      {},
                      {}};
    forward.launch = [=](const Operands &o) {
        embedding_forward(o.x(0), o.ids(1), o.x(2), o.x(3), B, T, C, b->stream);
    };
    measure(b, forward);
    Kernel backward = {
        "embedding_backward",
        X * NC + 8.0 * (rows + TC) + 8.0 * (double)N,
        0.0,
        {floats((int64_t)Vp * C), floats((int64_t)T * C), floatXs(N * C), tokens_below(V, N), tokens_below(V, N)},
        {},
        {}};
    backward.prepare = [=](const Operands &o) {
        std::vector<int32_t> tokens((size_t)N), order((size_t)N), counts((size_t)V + 1);
        cuda_check(cudaMemcpyAsync(tokens.data(), o.ids(3), (size_t)N * 4, cudaMemcpyDeviceToHost, b->stream));
        cuda_check(cudaStreamSynchronize(b->stream));
        embedding_order_tokens(order.data(), tokens.data(), N, V, counts.data());
        cuda_check(cudaMemcpyAsync(o.ids(4), order.data(), (size_t)N * 4, cudaMemcpyHostToDevice, b->stream));
        cuda_check(cudaStreamSynchronize(b->stream));
    };
    backward.launch = [=](const Operands &o) {
        embedding_backward(o.f(0), o.f(1), o.x(2), o.ids(3), o.ids(4), B, T, C, b->stream);
    };
    measure(b, backward);
}

static void bench_layernorm(Bench *b) {
    int C = b->config.channels;
    int64_t N = b->N, NC = N * C;
    double x = X * (double)NC, statistics = 8.0 * (double)N;
    Kernel forward = {"layernorm_forward",
                      2 * x + statistics,
                      0.0,
                      {floatXs(NC), floats(N), floats(N), floatXs(NC), floatXs(C), floatXs(C)},
                      {},
                      {}};
    forward.launch = [=](const Operands &o) {
        LayerNorm ln = {C, 1e-5f, o.x(4), o.x(5), NULL, NULL, o.x(0), o.f(1), o.f(2), NULL};
        layernorm_forward(ln, o.x(3), N, b->stream);
    };
    measure(b, forward);
    Kernel fused = {"fused_residual_layernorm",
                    4 * x + statistics,
                    0.0,
                    {floatXs(NC), floatXs(NC), floats(N), floats(N), floatXs(NC), floatXs(NC), floatXs(C), floatXs(C)},
                    {},
                    {}};
    fused.launch = [=](const Operands &o) {
        LayerNorm ln = {C, 1e-5f, o.x(6), o.x(7), NULL, NULL, o.x(1), o.f(2), o.f(3), NULL};
        fused_residual_layernorm_forward(ln, o.x(0), o.x(4), o.x(5), N, b->stream);
    };
    measure(b, fused);
    Kernel backward = {"layernorm_backward",
                       4 * x + statistics,
                       0.0,
                       {floatXs(NC), floats(C), floats(C), floatXs(NC), floatXs(NC), floats(N), floats(N), floatXs(C),
                        floats(layernorm_backward_scratch_floats(N, C)), floats(C)},
                       {},
                       {}};
    backward.launch = [=](const Operands &o) {
        LayerNorm ln = {C, 1e-5f, o.x(7), NULL, o.f(1), o.f(2), NULL, o.f(5), o.f(6), NULL};
        layernorm_backward_with_column_sums({o.x(0), false, o.f(9), NULL}, ln, o.x(3), o.x(4), o.f(8), N, b->stream);
    };
    measure(b, backward);
}

static void bench_gelu(Bench *b) {
    int width = 4 * b->config.channels;
    int64_t N = b->N, n = N * width;
    Kernel forward = {"gelu_forward", 2 * X * (double)n, 0.0, {floatXs(n), floatXs(n)}, {}, {}};
    forward.launch = [=](const Operands &o) { gelu_forward(o.x(0), o.x(1), n, b->stream); };
    measure(b, forward);
    Kernel backward = {
        "gelu_backward",
        3 * X * (double)n,
        0.0,
        {floatXs(n), floatXs(n), floatXs(n), floats(width), floats(gelu_backward_scratch_floats(N, width))},
        {},
        {}};
    backward.launch = [=](const Operands &o) {
        gelu_backward(o.x(0), o.x(1), o.x(2), o.f(3), o.f(4), N, width, b->stream);
    };
    measure(b, backward);
}

// One linear layer (N,C) -> (N,OC): forward, and the three parts of its backward pass.
static void bench_linear(Bench *b, const char *layer, int64_t N, int C, int OC, bool has_bias) {
    int64_t inp = N * C, out = N * OC, weight = (int64_t)C * OC;
    double flops = 2.0 * (double)N * (double)weight, moved = X * (double)(inp + out + weight);
    std::string name = layer;
    Kernel forward = {
        name + " forward", moved, flops, {floatXs(out), floatXs(inp), floatXs(weight), floatXs(OC)}, {}, {}};
    forward.launch = [=](const Operands &o) {
        linear_forward(&b->cublas, {C, OC, o.x(2), has_bias ? o.x(3) : NULL}, o.x(0), NULL, o.x(1), N, b->stream);
    };
    measure(b, forward);
    Kernel input = {name + " backward input", moved, flops, {floatXs(inp), floatXs(out), floatXs(weight)}, {}, {}};
    input.launch = [=](const Operands &o) {
        linear_backward_input(&b->cublas, {C, OC, o.x(2)}, o.x(0), o.x(1), NULL, N, b->stream);
    };
    measure(b, input);
    Kernel weights = {name + " backward weight",
                      X * (double)(inp + out) + 8.0 * (double)weight,
                      flops,
                      {floats(weight), floatXs(out), floatXs(inp)},
                      {},
                      {}};
    weights.launch = [=](const Operands &o) {
        linear_backward_weight(&b->cublas, {C, OC, NULL, NULL, o.f(0)}, o.x(1), o.x(2), N, b->stream);
    };
    measure(b, weights);
    if (!has_bias) { return; }
    Kernel bias = {name + " backward bias",
                   X * (double)out,
                   0.0,
                   {floats(OC), floatXs(out), floats(linear_backward_bias_scratch_floats(N, OC))},
                   {},
                   {}};
    bias.launch = [=](const Operands &o) {
        linear_backward_bias({8, OC, NULL, NULL, NULL, o.f(0)}, o.x(1), o.f(2), N, b->stream);
    };
    measure(b, bias);
}

// What making 8-bit tensors costs: of a block's input, and of the MLP's GELU.
static void bench_fp8_quantize(Bench *b) {
    int C = b->config.channels;
    int64_t N = b->N, x = N * C, Np = fp8_padded_rows(N);
    Kernel amax = {"fp8_amax", X * (double)x, 0.0, {floatXs(x), fp8_scale()}, {}, {}};
    amax.launch = [=](const Operands &o) { fp8_amax(o.s(1), o.x(0), x, b->stream); };
    measure(b, amax);
    Kernel quantize = {
        "fp8_quantize", (X + 2) * (double)x, 0.0, {floatXs(x), fp8s(Np * C), fp8s(Np * C), fp8_scale()}, {}, {}};
    quantize.launch = [=](const Operands &o) { fp8_quantize(o.e4(1), o.e4(2), o.s(3), o.x(0), N, C, b->stream); };
    measure(b, quantize);
    Kernel of_gelu = {"gelu_amax", X * 4.0 * (double)x, 0.0, {floatXs(4 * x), fp8_scale()}, {}, {}};
    of_gelu.launch = [=](const Operands &o) { fp8_amax<GeluOfPack>(o.s(1), o.x(0), 4 * x, b->stream); };
    measure(b, of_gelu);
    Kernel gelu = {"gelu_quantize",
                   (X + 2) * 4.0 * (double)x,
                   0.0,
                   {floatXs(4 * x), fp8s(4 * Np * C), fp8s(4 * Np * C), fp8_scale()},
                   {},
                   {}};
    gelu.launch = [=](const Operands &o) {
        fp8_quantize<fp8e4, GeluOfPack>(o.e4(1), o.e4(2), o.s(3), o.x(0), N, 4 * C, b->stream);
    };
    measure(b, gelu);
}

static Linear fp8_layer(int C, int OC) {
    Linear l;
    l.C = C, l.OC = OC, l.fp8.on = true;
    return l;
}

// bench_linear with 8-bit factors. The floor of the arithmetic is still that of the bf16 multiply, so that its percent
// is the gain: 200 % is what the tensor cores could do.
static void bench_linear_fp8(Bench *b, const char *layer, int64_t N, int C, int OC) {
    int64_t inp = N * C, out = N * OC, weight = (int64_t)C * OC, Np = fp8_padded_rows(N);
    double flops = 2.0 * (double)N * (double)weight;
    std::string name = std::string(layer) + " fp8";
    Kernel forward = {name + " forward",
                      (double)(inp + weight) + X * (double)out,
                      flops,
                      {floatXs(Np * OC), fp8s(Np * C), fp8_scale(), fp8s(weight), fp8_scale(), floatXs(OC)},
                      {},
                      {}};
    forward.launch = [=](const Operands &o) {
        Linear l = fp8_layer(C, OC);
        l.bias = o.x(5), l.fp8.inp = o.e4(1), l.fp8.inp_scale = o.s(2);
        l.fp8.weight = o.e4(3), l.fp8.weight_scale = o.s(4);
        linear_forward(&b->cublas, l, o.x(0), NULL, NULL, N, b->stream);
    };
    measure(b, forward);
    Kernel input = {name + " backward input",
                    (double)(out + weight) + X * (double)inp,
                    flops,
                    {floatXs(Np * C), fp8s(Np * OC), fp8_scale(), fp8s(weight), fp8_scale()},
                    {},
                    {}};
    input.launch = [=](const Operands &o) {
        Linear l = fp8_layer(C, OC);
        l.fp8.dout = o.e5(1), l.fp8.dout_scale = o.s(2), l.fp8.weight_t = o.e4(3), l.fp8.weight_scale = o.s(4);
        linear_backward_input(&b->cublas, l, o.x(0), NULL, NULL, N, b->stream);
    };
    measure(b, input);
    Kernel weights = {name + " backward weight",
                      (double)(inp + out) + 8.0 * (double)weight,
                      flops,
                      {floats(weight), fp8s(Np * OC), fp8_scale(), fp8s(Np * C), fp8_scale()},
                      {},
                      {}};
    weights.launch = [=](const Operands &o) {
        Linear l = fp8_layer(C, OC);
        l.dweight = o.f(0);
        l.fp8.dout_t = o.e5(1), l.fp8.dout_scale = o.s(2), l.fp8.inp_t = o.e4(3), l.fp8.inp_scale = o.s(4);
        linear_backward_weight(&b->cublas, l, NULL, NULL, N, b->stream);
    };
    measure(b, weights);
}

static void bench_fp8(Bench *b) {
    int C = b->config.channels;
    bench_fp8_quantize(b);
    if (!b->has_fp8) {
        printf("8-bit multiplies: not in this build or not on this GPU (bf16, compute capability 8.9 or later)\n");
        return;
    }
    bench_linear_fp8(b, "qkv", b->N, C, 3 * C);
    bench_linear_fp8(b, "attproj", b->N, C, C);
    bench_linear_fp8(b, "fc", b->N, C, 4 * C);
    bench_linear_fp8(b, "fcproj", b->N, 4 * C, C);
}

// The layer before GELU and the gradient through it, with GELU inside the multiply.
static void bench_fused_gelu(Bench *b) {
    int C = b->config.channels, OC = 4 * C;
    int64_t N = b->N, inp = N * C, out = N * OC, weight = (int64_t)C * OC;
    double flops = 2.0 * (double)N * (double)weight, moved = X * (double)(inp + 2 * out + weight);
    Kernel forward = {"fc forward with GELU",
                      moved,
                      flops,
                      {floatXs(out), floatXs(out), floatXs(inp), floatXs(weight), floatXs(OC)},
                      {},
                      {}};
    forward.launch = [=](const Operands &o) {
        linear_forward(&b->cublas, {C, OC, o.x(3), o.x(4)}, o.x(0), o.x(1), o.x(2), N, b->stream);
    };
    measure(b, forward);
    Kernel backward = {
        "fcproj backward with GELU", moved, flops, {floatXs(out), floatXs(inp), floatXs(weight), floatXs(out)}, {}, {}};
    backward.launch = [=](const Operands &o) { // fcproj: (N,4C) -> (N,C)
        linear_backward_input(&b->cublas, {OC, C, o.x(2)}, o.x(0), o.x(1), o.x(3), N, b->stream);
    };
    measure(b, backward);
}

static void bench_attention(Bench *b) {
    int T = b->T, C = b->config.channels, NH = b->config.num_heads;
    AttentionShape shape = {b->B, T, NH, NH, C / NH};
    int64_t NC = b->N * C, heads = b->N * NH;
    double x = X * (double)NC,
           flops = 2.0 * (double)NC * (T + 1); // two multiplies, of which the causal mask halves each
    Kernel forward = {
        "attention_forward", 4 * x + 4.0 * (double)heads, flops, {floatXs(NC), floats(heads), floatXs(3 * NC)}, {}, {}};
    forward.launch = [=](const Operands &o) { attention_forward(o.x(0), o.f(1), o.x(2), shape, b->stream); };
    measure(b, forward);
    Kernel backward = {"attention_backward",
                       8 * x + 4.0 * (double)heads,
                       2.5 * flops, // five multiplies
                       {floatXs(3 * NC), floatXs(NC), floatXs(3 * NC), floatXs(NC), floats(heads), floats(heads)},
                       {},
                       {}};
    backward.prepare = [=](const Operands &o) { attention_forward(o.x(3), o.f(4), o.x(2), shape, b->stream); };
    backward.launch = [=](const Operands &o) {
        attention_backward(o.x(0), o.x(1), o.x(2), o.x(3), o.f(4), o.f(5), shape, b->stream);
    };
    measure(b, backward);
}

static void bench_cross_entropy(Bench *b) {
    int V = b->config.vocab_size, Vp = b->config.padded_vocab_size;
    int64_t N = b->N, rows = chunk_rows(b);
    double logits = X * (double)rows * V;
    for (bool want_gradient : {true, false}) {
        Kernel kernel = {want_gradient ? "cross_entropy" : "cross_entropy loss only",
                         (want_gradient ? 2 : 1) * logits,
                         0.0,
                         {floats(rows), floatXs(rows * Vp), tokens_below(V, rows)},
                         {},
                         {}};
        kernel.launch = [=](const Operands &o) {
            cross_entropy(o.f(0), o.x(1), o.ids(2), rows, V, Vp, 1.0f / (float)N, want_gradient, b->stream);
        };
        measure(b, kernel);
    }
    Kernel sum = {"sum_losses", 4.0 * (double)N, 0.0, {doubles(1), floats(N)}, {}, {}};
    sum.launch = [=](const Operands &o) { sum_losses(o.d(0), o.f(1), N, false, b->stream); };
    measure(b, sum);
}

// A step result that says: go on, no clipping. In device memory, 0 to 1 as filled would also stop or scale.
static void set_result(Bench *b, void *result) {
    StepResult go_on;
    memset(&go_on, 0, sizeof(go_on));
    go_on.grad_scale = 1.0f;
    cuda_check(cudaMemcpyAsync(result, &go_on, sizeof(go_on), cudaMemcpyHostToDevice, b->stream));
    cuda_check(cudaStreamSynchronize(b->stream));
}

static void bench_optimizer(Bench *b) {
    int64_t n = min_i64(model_num_params(&b->config), b->pool_bytes / 32) / 8 * 8; // a part of a very large model
    bool has_master = sizeof(floatX) == 2;
    Kernel norm = {
        "global_norm_squared", 4.0 * (double)n, 0.0, {doubles(global_norm_scratch_doubles(n)), floats(n)}, {}, {}};
    norm.launch = [=](const Operands &o) { global_norm_squared(o.d(0), o.f(1), n, b->stream); };
    measure(b, norm);
    Kernel adamw = {"adamw_update",
                    (has_master ? 28 + X : 28) * (double)n,
                    0.0,
                    {floatXs(n), floats(has_master ? n : 0), floats(n), floats(n), floats(n), doubles(8)},
                    {},
                    {}};
    AdamWFactors factors = adamw_factors(1e-4f, 0.9f, 0.95f, 1e-8f, 0.1f, 10, rounding_key(1, 10));
    adamw.prepare = [=](const Operands &o) { set_result(b, o.d(5)); };
    adamw.launch = [=](const Operands &o) {
        UpdatePart part = {o.x(0), has_master ? o.f(1) : NULL, o.f(2), o.f(3), o.f(4), NULL, n, n, 0};
        adamw_update(part, factors, (const StepResult *)o.d(5), b->stream);
    };
    measure(b, adamw);
    Kernel rounding = {"params_from_master", (4 + X) * (double)n, 0.0, {floatXs(n), floats(n)}, {}, {}};
    rounding.launch = [=](const Operands &o) { params_from_master(o.x(0), o.f(1), n, 0, 7, true, b->stream); };
    measure(b, rounding);
    Kernel checksum = {"add_checksum", 4.0 * (double)n, 0.0, {doubles(1), floats(n)}, {}, {}};
    checksum.launch = [=](const Operands &o) {
        add_checksum((uint64_t *)o.d(0), o.f(1), n * (int64_t)sizeof(float), b->stream);
    };
    measure(b, checksum);
}

// Muon's passes over a whole model's gradients: before the rounds, and after them.
static void bench_muon_elements(Bench *b) {
    int64_t n = min_i64(model_num_params(&b->config), b->pool_bytes / 32) / 8 * 8;
    bool has_master = sizeof(floatX) == 2;
    std::vector<Buffer> buffers = {floatXs(n), floats(has_master ? n : 0), floats(n), floats(n), floatXs(n),
                                   doubles(8)};
    MuonFactors factors = {0.02f, 0.95f, 0.1f, rounding_key(1, 10)};
    Launch prepare = [=](const Operands &o) { set_result(b, o.d(5)); };
    auto part = [=](const Operands &o) {
        return UpdatePart{o.x(0), has_master ? o.f(1) : NULL, o.f(2), NULL, o.f(3), o.x(4), n, n, 0};
    };
    Kernel momentum = {"muon_momentum", (12 + X) * (double)n, 0.0, buffers, {}, prepare};
    momentum.launch = [=](const Operands &o) {
        muon_momentum(part(o), factors, (const StepResult *)o.d(5), b->stream);
    };
    measure(b, momentum);
    Kernel apply = {"muon_apply", (has_master ? 8 + 2 * X : 3 * X) * (double)n, 0.0, buffers, {}, prepare};
    apply.launch = [=](const Operands &o) { muon_apply(part(o), factors, (const StepResult *)o.d(5), b->stream); };
    measure(b, apply);
}

// Returns the floating-point operations of NS5 for one matrix. With n the smaller side and m the larger one, a round
// takes 2 n^2 m for A, 2 n^3 for A A, 2 n^2 m for the product with X.
static double muon_flops(int64_t rows, int64_t cols) {
    double n = (double)min_i64(rows, cols), m = (double)max_i64(rows, cols);
    return MUON_ROUNDS * (4.0 * n * n * m + 2.0 * n * n * n);
}

// The rounds of a full batch of matrices.
static void bench_muon_rounds(Bench *b, const char *layer, int64_t rows, int64_t cols) {
    const MuonBatch batch = {rows, cols, rows * cols, b->tiny ? 2 : MUON_BATCH};
    double elements = (double)(batch.count * rows * cols);
    Kernel rounds = {std::string(layer) + " muon rounds",
                     2 * X * elements,
                     (double)batch.count * muon_flops(rows, cols),
                     {floatXs((int64_t)elements), floatXs(muon_scratch_elements(batch))},
                     {},
                     {}};
    rounds.launch = [=](const Operands &o) { muon_orthogonalize(&b->cublas, o.x(0), o.x(1), batch, 1.0f, b->stream); };
    measure(b, rounds);
}

static void bench_muon(Bench *b) {
    int64_t C = b->config.channels;
    bench_muon_elements(b);
    bench_muon_rounds(b, "attproj", C, C);
    bench_muon_rounds(b, "fc", 4 * C, C);
}

static void bench_kernels(Bench *b) {
    int C = b->config.channels, Vp = b->config.padded_vocab_size;
    int64_t head_rows = chunk_rows(b);
    bench_embedding(b);
    bench_layernorm(b);
    bench_linear(b, "qkv", b->N, C, 3 * C, true);
    bench_attention(b);
    bench_linear(b, "attproj", b->N, C, C, true);
    bench_linear(b, "fc", b->N, C, 4 * C, true);
    bench_linear(b, "fcproj", b->N, 4 * C, C, true);
    bench_fused_gelu(b);
    bench_gelu(b);
    bench_fp8(b);
    bench_linear(b, "lm_head", head_rows, C, Vp, false);
    bench_cross_entropy(b);
    bench_optimizer(b);
    bench_muon(b);
}

// ---- The start ----

static bool set_shapes(Bench *b, const Options *options, Error *error) {
    b->config.vocab_size = GPT2_VOCAB_SIZE;
    b->tiny = strcmp(options->model, "tiny") == 0;
    if (b->tiny) {
        const ModelConfig tiny = GPT2_CONFIG(64, 257, 0, 2, 2, 128);
        b->config = tiny;
    } else if (!model_config_from_size(&b->config, options->model)) {
        return fail(error, "--model: no size '%s'; there are tiny" MODEL_SIZE_NAMES, options->model);
    }
    b->config.padded_vocab_size = model_pad_vocab(b->config.vocab_size);
    b->T = options->seq_len > 0 ? (int)options->seq_len : b->config.max_seq_len;
    b->B = b->tiny ? (int)min_i64(options->batch_size, 2) : (int)options->batch_size;
    if (options->seq_len > b->config.max_seq_len) {
        return fail(error, "--seq-len: %d, but %s knows %d positions; give at most that many", b->T, options->model,
                    b->config.max_seq_len);
    }
    return true;
}

// Takes the pool, and halves B until the largest sets of operands fit: the optimizer's, and GELU's.
static bool take_memory(Bench *b, Error *error) {
    size_t available = 0, installed = 0;
    cuda_check(cudaMemGetInfo(&available, &installed));
    b->pool_bytes = b->tiny ? (int64_t)64 << 20 : min_i64((int64_t)(0.8 * (double)available), POOL_BYTES);
    b->pool_bytes = b->pool_bytes / PLAN_ALIGNMENT * PLAN_ALIGNMENT;
    while (b->B > 1 && 14 * (int64_t)b->B * b->T * b->config.channels * (int64_t)sizeof(floatX) > b->pool_bytes) {
        b->B /= 2;
    }
    b->N = (int64_t)b->B * b->T;
    if (cudaMalloc((void **)&b->pool, (size_t)b->pool_bytes) == cudaSuccess) { return true; }
    return fail(error, "the GPU has no %lld MiB free; end other programs that use it",
                (long long)(b->pool_bytes >> 20));
}

static bool open_gpu(Bench *b, Error *error) {
    struct cudaDeviceProp device;
    int count = 0, runtime = 0;
    cudaError_t status = cudaGetDeviceCount(&count);
    if (status != cudaSuccess) { return fail(error, "%s: %s", cudaGetErrorString(status), cuda_remedy(status)); }
    cuda_check(cudaGetDeviceProperties(&device, 0));
    cuda_check(cudaRuntimeGetVersion(&runtime));
    b->l2_bytes = device.l2CacheSize;
    b->workspace_bytes = CUBLAS_WORKSPACE;
    b->has_fp8 = sizeof(floatX) == 2 && fp8_is_supported(device.major, device.minor);
    double peak = gpu_peak_tflops(device.name, sizeof(floatX) == 2 ? GPU_BF16 : GPU_TF32);
    printf("device: %s, compute capability %d.%d, %d multiprocessors, L2 %.0f MiB, CUDA %d.%d\n", device.name,
           device.major, device.minor, device.multiProcessorCount, (double)b->l2_bytes / 1048576.0, runtime / 1000,
           runtime % 1000 / 10);
    printf("datasheet: %.1f TFLOP/s dense %s%s\n", peak, sizeof(floatX) == 2 ? "bf16" : "tf32",
           peak > 0.0 ? "" : " (0: not known of this device)");
    cuda_check(cudaStreamCreateWithFlags(&b->stream, cudaStreamNonBlocking));
    cuda_check(cudaEventCreate(&b->start));
    cuda_check(cudaEventCreate(&b->stop));
    return true;
}

static bool open_csv(Bench *b, const char *path, Error *error) {
    if (path[0] == '\0') { return true; }
    b->csv = fopen(path, "w");
    if (b->csv == NULL) { return fail(error, "--csv: %s: %s", path, strerror(errno)); }
    fprintf(b->csv, "kernel,precision,B,T,C,us,gigabytes,gigaflop,gigabytes_per_s,teraflop_per_s,bound,"
                    "percent_of_floor\n");
    return true;
}

static bool run(Bench *b, const Options *options, Error *error) {
    void *workspace = NULL;
    if (!set_shapes(b, options, error) || !open_gpu(b, error) || !take_memory(b, error) ||
        !open_csv(b, options->csv, error) || !cublas_open(&b->cublas, true, error)) {
        return false;
    }
    cuda_check(cudaMalloc(&workspace, (size_t)b->workspace_bytes));
    cublas_set_workspace(&b->cublas, workspace, (size_t)b->workspace_bytes);
    printf("shapes: %s, %s, B %d, T %d, C %d, V %d\n\n", options->model, PRECISION_NAME, b->B, b->T, b->config.channels,
           b->config.vocab_size);
    printf("%-28s %10s %8s %9s %8s %9s  %-6s %7s\n", "kernel", "us", "GB", "GFLOP", "GB/s", "TFLOP/s", "bound",
           "of floor");
    measure_copy(b);
    measure_matmul(b);
    bench_kernels(b);
    cuda_check(cudaDeviceSynchronize());
    cublas_close(&b->cublas);
    cudaFree(workspace);
    cudaFree(b->pool);
    cudaEventDestroy(b->start), cudaEventDestroy(b->stop), cudaStreamDestroy(b->stream);
    if (b->csv == NULL) { return true; }
    bool written = ferror(b->csv) == 0;
    written = fclose(b->csv) == 0 && written;
    return written || fail(error, "--csv: %s: could not be written whole; free some space", options->csv);
}

int main(int argc, char **argv) {
    static Error error;
    static Bench bench;
    Options options;
    ArgsOutcome outcome;
    openmp_wait_briefly(argv);
    exit_unless(args_parse(&program, &options, argc, argv, NULL, &outcome, &error), "bench_gpu", &error);
    if (outcome != ARGS_RUN) { return EXIT_SUCCESS; }
    exit_unless(run(&bench, &options, &error), "bench_gpu", &error);
    return EXIT_SUCCESS;
}
