// Predicts a training step on a GPU, kernel by kernel: the bytes that each kernel moves, the operations that it
// computes, and the time that follows from both. Every time follows from the datasheet. No time is measured.
// No trainer uses it. Chapter 14 predicts the time of its recipe with it.
//
// The assumptions:
//
// A kernel that moves bytes reaches STEP_MEMORY of the memory's bandwidth. Every tensor comes from memory, because
// the L2 cache has seen more than it holds before the next kernel uses the tensor.
//
// A matrix multiply reaches STEP_MATMUL of the tensor cores' peak on full tiles. A multiprocessor computes one tile
// at a time, so tiles come in waves, and the last wave counts as a whole one. The model takes the fastest of some
// tile shapes and of the splits of the sum that the workspace allows. The arithmetic does not hide the bytes that a
// multiply writes beside its product, or reads to add its product to them.
//
// Attention's softmax costs as much for a score as products over STEP_SOFTMAX_CHANNELS channels.
//
// From the end of a kernel to full speed of the next one, STEP_LAUNCH_SECONDS pass.
#ifndef LLMC_STEP_MODEL_H
#define LLMC_STEP_MODEL_H

#include "llmc/model/activations.h"
#include "llmc/model/muon.h"
#include "llmc/model/gpu_peak.h"
#include "llmc/base/utils.h"

#define STEP_MEMORY 0.88
#define STEP_MATMUL 0.73
#define STEP_MATMUL_FP8 0.65 // of the 8-bit peak
#define STEP_LAUNCH_SECONDS 2e-6
#define STEP_MIN_DEPTH 1024 // a sum that is split among multiprocessors is not cut into shorter pieces
#define STEP_MAX_SPLITS 16

#define STEP_ATTENTION_FORWARD 0.55 // of the tensor cores' peak, by cuDNN, the softmax counted as channels
#define STEP_ATTENTION_BACKWARD 0.45
#define STEP_SOFTMAX_CHANNELS 64
#define STEP_OWN_ATTENTION 0.65  // of cuDNN's speed: our kernels on tensor cores
#define STEP_PLAIN_ATTENTION 0.3 // of the peak without tensor cores

// The part of the cross entropy that --head-overlap hides behind the multiplies of other rows.
#define STEP_LM_HEAD_OVERLAP 0.5

// STEP_LINK: the part of NVLink's or PCIe's datasheet figure in one direction that a ring of GPUs reaches.
// STEP_LINK_BETWEEN: the most bytes a second that a GPU sends to another machine, whatever its link in the machine.
#define STEP_LINK 0.8
#define STEP_LINK_BETWEEN 50e9

typedef struct StepGpu {
    double flops_per_second;       // of matrix multiplies in the run's precision, by the datasheet
    double fp8_flops_per_second;   // 0: it has no 8-bit multiplies
    double plain_flops_per_second; // without tensor cores
    double bytes_per_second;       // of its memory
    double link_bytes_per_second;  // sent to other GPUs while all send
    int multiprocessors;
    int64_t l2_bytes;
} StepGpu;

// The bytes a second that such GPUs send, all in one machine or not. A ring takes the time of its slowest link.
static inline double step_link(const GpuPeak *peak, bool one_machine) {
    double inside = STEP_LINK * 1e9 * peak->link_gigabytes_per_second;
    return one_machine || inside < STEP_LINK_BETWEEN ? inside : STEP_LINK_BETWEEN;
}

// The card of a row, all in one machine or not.
static inline StepGpu step_gpu(const GpuPeak *peak, GpuPrecision precision, bool one_machine) {
    StepGpu gpu;
    gpu.flops_per_second = 1e12 * peak->teraflops[precision];
    gpu.fp8_flops_per_second = 1e12 * peak->teraflops[GPU_FP8];
    gpu.plain_flops_per_second = 1e12 * peak->teraflops[GPU_FP32];
    gpu.bytes_per_second = 1e9 * peak->gigabytes_per_second;
    gpu.link_bytes_per_second = step_link(peak, one_machine);
    gpu.multiprocessors = peak->multiprocessors;
    gpu.l2_bytes = (int64_t)peak->l2_mib << 20;
    return gpu;
}

typedef enum { ATTENTION_PLAIN, ATTENTION_TENSOR, ATTENTION_CUDNN } StepAttention;

// The shape of a run that its time depends on.
typedef struct {
    ModelConfig config;
    int B, T, recompute; // recompute: the level of --recompute
    int gelu_fusion;     // the level of --gelu-fusion
    bool fp8;            // the blocks' linear layers multiply in 8 bits
    StepAttention attention;
    int attention_chunk; // sequences whose dS cuDNN's backward stores at a time; 0: it stores none
    int head_rows;       // of the logits at a time
    bool head_overlap;
    bool has_master;       // fp32 weights beside the weights of the layers
    int sizeof_activation; // 2 or 4 bytes
    int64_t matmul_workspace_bytes;
    int num_ranks;
    bool shards_state, shards_gradients, shards_parameters; // among the ranks
    int64_t micro_batches;                                  // of a step, on each rank
    OptimizerKind optimizer;
} StepShape;

typedef enum { BOUND_MEMORY, BOUND_MATH, BOUND_LINK } StepBound;

// Holds all launches of one kernel in a step. The name of our kernel is the beginning of its name in a trace. "matmul
// ..." and "cudnn ..." are kernels of libraries. A trace does not tell their names apart.
typedef struct {
    const char *name;
    StepBound bound;
    double calls, bytes, flops, seconds;
} StepRow;

#define STEP_MAX_ROWS 48

typedef struct {
    StepRow rows[STEP_MAX_ROWS];
    int count;
} StepRows;

// ---- Kernels ----

// Adds launches to the row of that name. bytes, flops, seconds: of one launch, whose start is counted here.
static inline void step_add(StepRows *r, const char *name, double calls, double bytes, double flops, double seconds,
                            StepBound bound) {
    int i = 0;
    while (i < r->count && strcmp(r->rows[i].name, name) != 0) { i++; }
    if (calls <= 0.0) { return; }
    if (i == STEP_MAX_ROWS) { abort(); } // the rows are written by hand: a programming error
    if (i == r->count) {
        StepRow empty = {name, bound, 0.0, 0.0, 0.0, 0.0};
        r->rows[r->count++] = empty;
    }
    StepRow *row = &r->rows[i];
    row->calls += calls, row->bytes += calls * bytes, row->flops += calls * flops;
    row->seconds += calls * (seconds + STEP_LAUNCH_SECONDS);
}

static inline double step_move_seconds(const StepGpu *gpu, double bytes) {
    return bytes / (STEP_MEMORY * gpu->bytes_per_second);
}

// A kernel that moves bytes.
static inline void step_move(StepRows *r, const StepGpu *gpu, const char *name, double calls, double bytes) {
    step_add(r, name, calls, bytes, 0.0, step_move_seconds(gpu, bytes), BOUND_MEMORY);
}

// C (m, n) = A (m, k) B (k, n). A and B have elements of sizeof_in bytes.
typedef struct {
    int64_t m, n, k;
    bool fp8;
    int sizeof_in, sizeof_out;
    double beside; // bytes that it writes beside C, or reads to add C to them
} StepMatmul;

// Seconds with one shape of tile and one split of the sum. peak: of full tiles.
static inline double step_tiled_seconds(const StepGpu *gpu, const StepMatmul *p, double peak, int rows, int columns,
                                        int64_t split) {
    int64_t tiles = ceil_div_i64(p->m, rows) * ceil_div_i64(p->n, columns);
    double waves = (double)ceil_div_i64(tiles * split, gpu->multiprocessors);
    double compute = waves * gpu->multiprocessors * 2.0 * rows * columns * (double)p->k / (double)split / peak;
    double m = (double)p->m, n = (double)p->n, k = (double)p->k;
    double moved = step_move_seconds(gpu, (m * k + k * n) * p->sizeof_in + m * n * p->sizeof_out);
    double parts = split > 1 ? 2.0 * (double)split * m * n * sizeof(float) : 0.0; // partial sums, written and read
    return (compute > moved ? compute : moved) + step_move_seconds(gpu, p->beside + parts);
}

static inline double step_matmul_seconds(const StepGpu *gpu, const StepMatmul *p, int64_t workspace_bytes) {
    // Rows and columns of a tile, and what a narrow one loses because it reads its factors more often.
    static const struct {
        int rows, columns;
        double speed;
    } shapes[] = {{128, 256, 1.0},  {256, 128, 1.0},  {128, 192, 0.97}, {192, 128, 0.97},
                  {128, 160, 0.94}, {160, 128, 0.94}, {128, 128, 0.9}};
    double peak = p->fp8 ? STEP_MATMUL_FP8 * gpu->fp8_flops_per_second : STEP_MATMUL * gpu->flops_per_second;
    int64_t depth = max_i64(1, p->k / STEP_MIN_DEPTH), fit = workspace_bytes / (p->m * p->n * (int64_t)sizeof(float));
    int64_t splits = max_i64(1, min_i64(min_i64(depth, fit), STEP_MAX_SPLITS));
    double best = 0.0;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        for (int64_t split = 1; split <= splits; split++) {
            double seconds =
                step_tiled_seconds(gpu, p, shapes[i].speed * peak, shapes[i].rows, shapes[i].columns, split);
            if (best == 0.0 || seconds < best) { best = seconds; }
        }
    }
    return best;
}

static inline void step_matmul(StepRows *r, const StepGpu *gpu, const StepShape *s, const char *name, double calls,
                               const StepMatmul *p) {
    double m = (double)p->m, n = (double)p->n, k = (double)p->k, flops = 2.0 * m * n * k;
    double bytes = (m * k + k * n) * p->sizeof_in + m * n * p->sizeof_out + p->beside;
    double seconds = step_matmul_seconds(gpu, p, s->matmul_workspace_bytes);
    double arithmetic = flops / (p->fp8 ? gpu->fp8_flops_per_second : gpu->flops_per_second);
    bool math = arithmetic >= bytes / gpu->bytes_per_second;
    step_add(r, name, calls, bytes, flops, seconds, math ? BOUND_MATH : BOUND_MEMORY);
}

// ---- How often kernels run ----

typedef struct {
    double once;   // for each micro-batch
    double layers; // for each layer of each micro-batch
    // For each layer that computes again what the level of --recompute gives up; 0: a lower level was chosen. The last
    // layer's activations are still there.
    double again[NUM_RECOMPUTE_LEVELS];
} StepCalls;

static inline StepCalls step_calls(const StepShape *s) {
    StepCalls c = {(double)s->micro_batches, (double)s->micro_batches * s->config.num_layers, {0.0}};
    for (int level = RECOMPUTE_GELU; level <= s->recompute; level++) { c.again[level] = c.layers - c.once; }
    return c;
}

static inline double step_tokens(const StepShape *s) { return (double)s->B * s->T; }

// Returns the bytes of an activation of so many channels.
static inline double step_bytes(const StepShape *s, double channels) {
    return step_tokens(s) * channels * s->sizeof_activation;
}

// True if the multiplies of this pass (FUSE_GELU_..) compute GELU, too.
static inline bool step_fuses(const StepShape *s, int pass) { return s->gelu_fusion >= pass && !s->fp8; }

// ---- Linear layers ----

// A linear layer: the names of its three products, its widths, and the level of --recompute that gives up its input.
typedef struct {
    const char *forward, *input, *weight;
    int64_t C, OC;
    int given_up;
} StepLinear;

#define STEP_LINEAR(name, C, OC, given_up)                                                                             \
    { "matmul " name " forward", "matmul " name " backward input", "matmul " name " backward weight", C, OC, given_up }

// The products of a layer for N rows: out, dweight and dinp. dweight is added to in fp32. beside: bytes that the
// products of the two passes move beside out and dinp.
static inline void step_products(StepRows *r, const StepGpu *gpu, const StepShape *s, const StepLinear *l, int64_t N,
                                 bool fp8, const double calls[2], const double beside[2]) {
    int in = fp8 ? 1 : s->sizeof_activation, out = s->sizeof_activation;
    double sums = (double)l->OC * (double)l->C * sizeof(float);
    StepMatmul forward = {N, l->OC, l->C, fp8, in, out, beside[0]}, dinp = {N, l->C, l->OC, fp8, in, out, beside[1]};
    StepMatmul dweight = {l->OC, l->C, N, fp8, in, sizeof(float), sums};
    step_matmul(r, gpu, s, l->forward, calls[0], &forward);
    step_matmul(r, gpu, s, l->weight, calls[1], &dweight);
    step_matmul(r, gpu, s, l->input, calls[1], &dinp);
}

// An activation of so many channels is brought to 8 bits. copies: 2 with a transposed copy, else 1.
static inline void step_quantize(StepRows *r, const StepGpu *gpu, const StepShape *s, double calls, double channels,
                                 int copies) {
    step_move(r, gpu, "fp8_quantize", calls, step_tokens(s) * channels * (s->sizeof_activation + copies));
}

// What a linear layer of a block needs in 8 bits: weights, input and dout. The input's transposed copy serves the
// backward pass. If --recompute gives up the input, only the last layer stores this copy in the forward pass. The other
// layers store it when they compute again. Only a whole block also multiplies again.
static inline void step_linear_in_8_bits(StepRows *r, const StepGpu *gpu, const StepShape *s, const StepLinear *l) {
    StepCalls c = step_calls(s);
    double C = (double)l->C, OC = (double)l->OC, X = s->sizeof_activation;
    double updates = s->shards_parameters ? 2 * c.layers : s->config.num_layers;
    double kept = s->recompute < l->given_up ? c.layers : c.once;
    bool multiplies_again = s->recompute == RECOMPUTE_BLOCK && l->given_up > RECOMPUTE_GELU;
    step_move(r, gpu, "fp8_amax", updates, OC * C * X);
    step_move(r, gpu, "fp8_quantize", updates, OC * C * (X + 2));
    step_quantize(r, gpu, s, kept, C, 2);
    step_quantize(r, gpu, s, c.layers - kept, C, 1);
    step_quantize(r, gpu, s, c.again[l->given_up], C, multiplies_again ? 2 : 1);
    step_quantize(r, gpu, s, c.layers, OC, 2);
}

// A multiply that computes GELU or its gradient also writes or reads fc.
static inline void step_linears(StepRows *r, const StepGpu *gpu, const StepShape *s) {
    enum { QKV, ATTPROJ, FC, FCPROJ, COUNT };
    int64_t C = s->config.channels;
    const StepLinear layers[COUNT] = {
        STEP_LINEAR("qkv", C, 3 * C, RECOMPUTE_LAYERNORM), STEP_LINEAR("attproj", C, C, RECOMPUTE_LAYERNORM),
        STEP_LINEAR("fc", C, 4 * C, RECOMPUTE_LAYERNORM), STEP_LINEAR("fcproj", 4 * C, C, RECOMPUTE_GELU)};
    StepCalls c = step_calls(s);
    for (int i = 0; i < COUNT; i++) {
        bool forward = i == FC && step_fuses(s, FUSE_GELU_FORWARD);
        bool backward = i == FCPROJ && step_fuses(s, FUSE_GELU_BACKWARD);
        double again = i == FCPROJ ? 0.0 : c.again[forward ? RECOMPUTE_GELU : RECOMPUTE_BLOCK];
        double fc = step_bytes(s, 4 * (double)C), beside[2] = {forward ? fc : 0.0, backward ? fc : 0.0};
        double calls[2] = {c.layers + again, c.layers};
        step_products(r, gpu, s, &layers[i], (int64_t)s->B * s->T, s->fp8, calls, beside);
        if (s->fp8) { step_linear_in_8_bits(r, gpu, s, &layers[i]); }
    }
}

// The lm_head, forward and backward, for `rows` rows: logits, the cross entropy in place, two products. It is in bf16.
static inline void step_lm_head_rows(StepRows *r, const StepGpu *gpu, const StepShape *s, double calls, int64_t rows) {
    StepLinear head = STEP_LINEAR("lm_head", s->config.channels, s->config.padded_vocab_size, NEVER);
    double both[2] = {calls, calls}, beside[2] = {0.0, 0.0};
    double bytes = 2.0 * (double)rows * s->config.vocab_size * s->sizeof_activation;
    double shown = s->head_overlap && rows < (int64_t)s->B * s->T ? 1.0 - STEP_LM_HEAD_OVERLAP : 1.0;
    if (rows == 0) { return; }
    step_products(r, gpu, s, &head, rows, false, both, beside);
    step_add(r, "cross_entropy", calls, bytes, 0.0, shown * step_move_seconds(gpu, bytes), BOUND_MEMORY);
}

static inline void step_lm_head(StepRows *r, const StepGpu *gpu, const StepShape *s) {
    int64_t N = (int64_t)s->B * s->T, rows = min_i64(N, s->head_rows);
    double once = (double)s->micro_batches;
    step_lm_head_rows(r, gpu, s, once * (double)(N / rows), rows);
    step_lm_head_rows(r, gpu, s, once, N % rows);
}

// ---- Attention ----

// An attention kernel. Each head has so many products of (T, T) and (T, HS), and the causal mask halves each product.
// efficiency: part of the peak, with the softmax counted as channels. beside: bytes that the arithmetic does not hide.
static inline void step_scores(StepRows *r, const StepGpu *gpu, const StepShape *s, const char *name, double calls,
                               int products, double efficiency, double bytes, double beside) {
    double HS = (double)s->config.channels / s->config.num_heads;
    double flops = products * step_tokens(s) * s->T * s->config.channels;
    double peak = gpu->flops_per_second * HS / (HS + STEP_SOFTMAX_CHANNELS);
    if (s->attention == ATTENTION_TENSOR) { peak *= STEP_OWN_ATTENTION; }
    if (s->attention == ATTENTION_PLAIN) { peak = gpu->plain_flops_per_second, efficiency = STEP_PLAIN_ATTENTION; }
    double compute = flops / (efficiency * peak), moved = step_move_seconds(gpu, bytes);
    double seconds = (compute > moved ? compute : moved) + step_move_seconds(gpu, beside);
    step_add(r, name, calls, bytes + beside, flops, seconds, compute > moved ? BOUND_MATH : BOUND_MEMORY);
}

// cuDNN's deterministic backward writes the gradients of the scores below the diagonal in bf16 and reads them again.
// They do not count if a chunk of them stays in the L2 cache.
static inline double step_score_bytes(const StepGpu *gpu, const StepShape *s) {
    double of_sequence = 2.0 * s->config.num_heads * s->T * (double)s->T;
    if (s->attention_chunk * of_sequence <= (double)gpu->l2_bytes) { return 0.0; }
    return s->B * of_sequence; // half of it, twice
}

// Our backward has no memory for scores. Keys compute them anew in four products, queries in three.
static inline void step_attention(StepRows *r, const StepGpu *gpu, const StepShape *s) {
    StepCalls c = step_calls(s);
    double tensor = step_bytes(s, s->config.channels), statistics = 4.0 * step_tokens(s) * s->config.num_heads;
    double forward = STEP_ATTENTION_FORWARD, backward = STEP_ATTENTION_BACKWARD, runs = c.layers;
    double with_again = runs + c.again[RECOMPUTE_BLOCK], scores = step_score_bytes(gpu, s);
    if (s->attention == ATTENTION_CUDNN) {
        step_scores(r, gpu, s, "cudnn forward", with_again, 2, forward, 4 * tensor + statistics, 0.0);
        step_scores(r, gpu, s, "cudnn backward", runs, 5, backward, 8 * tensor + 2 * statistics, scores);
        if (s->fp8) { step_move(r, gpu, "fp8_amax", runs, tensor); } // cuDNN leaves no largest magnitude
        return;
    }
    step_scores(r, gpu, s, "attention_forward", with_again, 2, forward, 4 * tensor + statistics, 0.0);
    step_move(r, gpu, "attention_delta", runs, 2 * tensor + statistics);
    step_scores(r, gpu, s, "attention_backward_kv", runs, 4, backward, 6 * tensor + 2 * statistics, 0.0);
    step_scores(r, gpu, s, "attention_backward_q", runs, 3, backward, 5 * tensor + 2 * statistics, 0.0);
}

// ---- Kernels that only move bytes ----

typedef struct {
    const char *name;
    double calls, bytes; // of one launch
} StepMove;

static inline void step_moves(StepRows *r, const StepGpu *gpu, const StepMove *moves, size_t count) {
    for (size_t i = 0; i < count; i++) { step_move(r, gpu, moves[i].name, moves[i].calls, moves[i].bytes); }
}

// The layers beside the multiplies and attention. Each row of wte that occurs is read once, and its fp32 gradient is
// read and written once. Blocks of kernels leave sums of columns, which another kernel adds up: LayerNorm's backward
// a sum of 8 channels for each thread of a wave of 108 x 1,024, matmul_sum_rows a sum for each 128 rows, GELU's
// backward for each 64. matmul_sum_rows computes gradients of biases if the kernel that writes dout leaves no sums. In
// 8 bits GELU's forward is part of the kernel that brings fcproj's input to 8 bits.
static inline void step_layers(StepRows *r, const StepGpu *gpu, const StepShape *s) {
    StepCalls c = step_calls(s);
    double N = step_tokens(s), C = s->config.channels, V = s->config.vocab_size, X = s->sizeof_activation;
    double rows = (N < V ? N : V) * C, positions = s->T * C, tensor = step_bytes(s, C);
    double wave = 3.0 * 108 * 1024 * 8, all = 3.0 * C * N / 16, norm_sums = sizeof(float) * (wave < all ? wave : all);
    double fused = step_fuses(s, FUSE_GELU_BACKWARD) ? c.layers : 0.0, apart = c.layers - fused;
    double gelus = step_fuses(s, FUSE_GELU_FORWARD) ? 0.0 : c.layers + c.again[RECOMPUTE_GELU];
    double norms = c.once + 2 * c.again[RECOMPUTE_LAYERNORM] - c.again[RECOMPUTE_BLOCK];
    const StepMove moves[] = {
        {"embedding_forward", c.once, X * (N * C + rows + positions) + 4 * N},
        {"embedding_backward_position", c.once, X * N * C + 8 * positions},
        {"embedding_backward_token", c.once, X * N * C + 8 * rows + 8 * N},
        {"sum_losses", c.once, 4 * N},
        {"layernorm_forward", norms, 2 * tensor},
        {"fused_residual_layernorm_forward", 2 * c.layers + c.again[RECOMPUTE_BLOCK], 4 * tensor},
        {"layernorm_backward", c.once, 3 * tensor + 8 * N},
        {"layernorm_backward", 2 * c.layers, 4 * tensor + 8 * N},
        {"column_sums", c.once + 2 * c.layers, norm_sums},
        {"gelu_forward", s->fp8 ? 0.0 : gelus, 8 * tensor},
        {"fp8_amax", s->fp8 ? c.layers : 0.0, 4 * tensor},
        {"gelu_backward", apart, 12 * tensor},
        {"column_sums", apart, N / 64 * 4 * C * sizeof(float)},
        {"matmul_sum_rows", fused, 4 * tensor},
        {"column_sums", fused, N / 128 * 4 * C * sizeof(float)},
        {"matmul_sum_rows", c.layers, 3 * tensor},
        {"column_sums", c.layers, N / 128 * 3 * C * sizeof(float)},
    };
    step_moves(r, gpu, moves, sizeof(moves) / sizeof(moves[0]));
}

// The rounds of Muon for the matrices (n,m) of one tensor, of which each rank has its share. A multiply takes up to
// STEP_MUON_BATCH at once, as if they were one matrix with so many times the rows. The last batch may be a part of one.
// X is read and written in each round, and to normalise it.
#define STEP_MUON_BATCH 16
static inline void step_muon_rounds(StepRows *r, const StepGpu *gpu, const StepShape *s, int tensor) {
    int64_t rows = muon_rows(&s->config, tensor), cols = muon_cols(&s->config, tensor);
    int64_t n = min_i64(rows, cols), m = max_i64(rows, cols), owners = s->shards_state ? s->num_ranks : 1;
    int64_t all = param_layers(&s->config, tensor) * param_specs[tensor].muon;
    int64_t batch = min_i64(STEP_MUON_BATCH, ceil_div_i64(all, owners));
    int X = s->sizeof_activation;
    double batches = (double)all / (double)(owners * batch), x_bytes = (double)(batch * n * m) * X;
    StepMatmul gram = {batch * n, n, m, false, X, X, 0.0}, square = {batch * n, n, n, false, X, X, 0.0},
               product = square;
    square.beside = (double)(batch * n * n) * X;
    product.n = m, product.beside = x_bytes;
    step_matmul(r, gpu, s, "matmul muon", MUON_ROUNDS * batches, &gram);
    step_matmul(r, gpu, s, "matmul muon", MUON_ROUNDS * batches, &square);
    step_matmul(r, gpu, s, "matmul muon", MUON_ROUNDS * batches, &product);
    step_move(r, gpu, "muon_norm", batches, x_bytes);
    step_move(r, gpu, "muon_normalize", batches, 2.0 * x_bytes);
}

// Muon for this rank's `own` elements: the momentum reads gradients, reads and writes M and writes N; then the rounds;
// then the update is read, and the weights are as with AdamW.
static inline void step_muon(StepRows *r, const StepGpu *gpu, const StepShape *s, double own) {
    double X = s->sizeof_activation;
    step_move(r, gpu, "muon_momentum", 1.0, own * (4 + 8 + X));
    for (int i = 0; i < NUM_PARAM_TENSORS; i++) {
        if (muon_takes(s->optimizer, i)) { step_muon_rounds(r, gpu, s, i); }
    }
    step_move(r, gpu, "muon_apply", 1.0, own * (X + (s->has_master ? 8 + X : 2 * X)));
}

// The gradients are set to zero, and the norm reads a rank's part of them. AdamW reads this part again, reads and
// writes both moments and the fp32 weights, and writes the weights of the layers. Gradients in parts have room for
// whole buckets, which is cleared in every micro-batch.
static inline void step_update(StepRows *r, const StepGpu *gpu, const StepShape *s) {
    double parameters = (double)model_num_params(&s->config), X = s->sizeof_activation;
    double own = s->shards_state ? parameters / s->num_ranks : parameters;
    double by_adamw = (double)param_length_of_v(&s->config, s->optimizer) / parameters;
    double buckets = s->shards_gradients ? 1 + s->config.num_layers : 1;
    bool checks = s->num_ranks > 1 && !s->shards_parameters;
    const StepMove moves[] = {
        {"fill", s->shards_gradients ? (double)s->micro_batches * buckets : 1.0, 4 * parameters / buckets},
        {"global_norm_squared", 1.0, 4 * own},
        {"add_checksum", checks ? 1.0 : 0.0, X * parameters},
        {"adamw_update", 1.0, by_adamw * own * (4 + 16 + (s->has_master ? 8 + X : 2 * X))},
    };
    step_moves(r, gpu, moves, sizeof(moves) / sizeof(moves[0]));
    if (s->optimizer == OPTIMIZER_MUON) { step_muon(r, gpu, s, (1.0 - by_adamw) * own); }
}

// ---- A step ----

static inline double step_rows_seconds(const StepRows *r) {
    double seconds = 0.0;
    for (int i = 0; i < r->count; i++) { seconds += r->rows[i].seconds; }
    return seconds;
}

// Lists every kernel of a step on one GPU. llmc/ranks/step_link.h adds the traffic between GPUs.
static inline void step_rows(StepRows *r, const StepGpu *gpu, const StepShape *s) {
    r->count = 0;
    step_linears(r, gpu, s);
    step_lm_head(r, gpu, s);
    step_attention(r, gpu, s);
    step_layers(r, gpu, s);
    step_update(r, gpu, s);
}

static inline double step_seconds(const StepGpu *gpu, const StepShape *s) {
    StepRows rows;
    step_rows(&rows, gpu, s);
    return step_rows_seconds(&rows);
}

#endif // LLMC_STEP_MODEL_H
