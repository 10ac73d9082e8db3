// Predicts a training step on a GPU, kernel by kernel: the bytes that each kernel moves, the operations that it
// computes, and the time that follows from both. Every time follows from the datasheet. No time is measured.
// `--plan` prints the rows, `--auto` and the table of --recompute compare their sums, and dev/gpu_check.py lays the
// rows beside the kernels of a traced step.
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
#include "llmc/model/gpt2.h"
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
// STEP_LINK_BETWEEN: the bytes a second that a GPU sends to another machine, unless --link-speed says so.
#define STEP_LINK 0.8
#define STEP_LINK_BETWEEN 50e9

typedef struct {
    double flops_per_second;       // of matrix multiplies in the run's precision, by the datasheet
    double fp8_flops_per_second;   // 0: it has no 8-bit multiplies
    double plain_flops_per_second; // without tensor cores
    double bytes_per_second;       // of its memory
    double link_bytes_per_second;  // sent to other GPUs while all send
    int multiprocessors;
    int64_t l2_bytes;
} StepGpu;

// The card of a row that --gpu names, in machines of their own or all in one.
static inline StepGpu step_gpu(const GpuPeak *peak, GpuPrecision precision, bool one_machine) {
    StepGpu gpu;
    gpu.flops_per_second = 1e12 * peak->teraflops[precision];
    gpu.fp8_flops_per_second = 1e12 * peak->teraflops[GPU_FP8];
    gpu.plain_flops_per_second = 1e12 * peak->teraflops[GPU_FP32];
    gpu.bytes_per_second = 1e9 * peak->gigabytes_per_second;
    gpu.link_bytes_per_second = one_machine ? STEP_LINK * 1e9 * peak->link_gigabytes_per_second : STEP_LINK_BETWEEN;
    gpu.multiprocessors = peak->multiprocessors;
    gpu.l2_bytes = (int64_t)peak->l2_mib << 20;
    return gpu;
}

typedef enum { ATTENTION_PLAIN, ATTENTION_TENSOR, ATTENTION_CUDNN } StepAttention;

// The shape of a run that its time depends on.
typedef struct {
    GPT2Config config;
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
} StepShape;

typedef enum { BOUND_MEMORY, BOUND_MATH, BOUND_LINK } StepBound;
static const char *const step_bounds[] = {"memory", "math", "link"};

// All launches of one kernel in a step. The name of our kernel is the beginning of its name in a trace. "matmul ..."
// and "cudnn ..." are kernels of libraries. A trace does not tell their names apart.
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

// A kernel that moves bytes. part: of a copy's speed.
static inline void step_move(StepRows *r, const StepGpu *gpu, const char *name, double calls, double bytes,
                             double part) {
    step_add(r, name, calls, bytes, 0.0, step_move_seconds(gpu, bytes) / part, BOUND_MEMORY);
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

// ---- Layers ----

static inline double step_tokens(const StepShape *s) { return (double)s->B * s->T; }

// A kernel that reads and writes activations of so many channels, all together.
static inline void step_channels(StepRows *r, const StepGpu *gpu, const StepShape *s, const char *name, double calls,
                                 double channels, double part) {
    step_move(r, gpu, name, calls, step_tokens(s) * channels * s->sizeof_activation, part);
}

// An activation of so many channels is brought to 8 bits. copies: 2 with a transposed copy, else 1.
static inline void step_quantize(StepRows *r, const StepGpu *gpu, const StepShape *s, double calls, double channels,
                                 int copies) {
    if (!s->fp8) { return; }
    step_move(r, gpu, "fp8_quantize", calls, step_tokens(s) * channels * (s->sizeof_activation + copies), 1.0);
}

// A kernel reads an activation for its largest magnitude, if the kernel that writes it leaves none.
static inline void step_amax(StepRows *r, const StepGpu *gpu, const StepShape *s, double calls, double channels) {
    if (s->fp8) { step_channels(r, gpu, s, "fp8_amax", calls, channels, 1.0); }
}

// The input of a linear layer of a block. Its transposed copy serves the backward pass. From the level `given_up` of
// --recompute on, only the last layer stores the copy in the forward pass. The other layers store it when they compute
// again. Only a whole block also multiplies again.
static inline void step_quantize_input(StepRows *r, const StepGpu *gpu, const StepShape *s, double calls,
                                       double channels, int given_up, bool again) {
    double kept = s->recompute < given_up ? calls : calls / s->config.num_layers;
    if (again) {
        step_quantize(r, gpu, s, calls, channels, s->recompute >= RECOMPUTE_BLOCK && given_up > RECOMPUTE_GELU ? 2 : 1);
    } else {
        step_quantize(r, gpu, s, kept, channels, 2);
        step_quantize(r, gpu, s, calls - kept, channels, 1);
    }
}

// The products of a linear layer from C to OC channels: out, dinp and dweight. In 8 bits the factors have one byte.
static inline StepMatmul step_product(const StepShape *s, int64_t m, int64_t n, int64_t k, int sizeof_out,
                                      double beside) {
    StepMatmul p = {m, n, k, s->fp8, s->fp8 ? 1 : s->sizeof_activation, sizeof_out, beside};
    return p;
}

static inline void step_linear(StepRows *r, const StepGpu *gpu, const StepShape *s, const char *name, double calls,
                               int64_t C, int64_t OC, double beside) {
    StepMatmul p = step_product(s, (int64_t)s->B * s->T, OC, C, s->sizeof_activation, beside);
    step_matmul(r, gpu, s, name, calls, &p);
}

static inline void step_linear_backward(StepRows *r, const StepGpu *gpu, const StepShape *s, const char *input,
                                        const char *weight, double calls, int64_t C, int64_t OC, double beside) {
    int64_t N = (int64_t)s->B * s->T;
    StepMatmul dinp = step_product(s, N, C, OC, s->sizeof_activation, beside);
    StepMatmul dweight = step_product(s, OC, C, N, sizeof(float), (double)OC * (double)C * sizeof(float));
    step_matmul(r, gpu, s, weight, calls, &dweight);
    step_matmul(r, gpu, s, input, calls, &dinp);
}

// An attention kernel. Each head has so many products of (T, T) and (T, HS), and the causal mask halves each product.
// efficiency: part of the peak, with the softmax counted as channels.
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

static inline void step_attention(StepRows *r, const StepGpu *gpu, const StepShape *s, double calls) {
    double C = s->config.channels, N = step_tokens(s), statistics = 4.0 * N * s->config.num_heads;
    const char *name = s->attention == ATTENTION_CUDNN ? "cudnn forward" : "attention_forward";
    double bytes = 4 * C * N * s->sizeof_activation + statistics;
    step_scores(r, gpu, s, name, calls, 2, STEP_ATTENTION_FORWARD, bytes, 0.0);
}

// cuDNN's deterministic backward writes the gradients of the scores below the diagonal in bf16 and reads them again.
// They do not count if a chunk of them stays in the L2 cache.
static inline double step_score_bytes(const StepGpu *gpu, const StepShape *s) {
    double of_sequence = 2.0 * s->config.num_heads * s->T * (double)s->T;
    if (s->attention_chunk * of_sequence <= (double)gpu->l2_bytes) { return 0.0; }
    return s->B * of_sequence; // half of it, twice
}

// Our attention has no memory for scores. Keys compute them anew in four products, queries in three.
static inline void step_attention_backward(StepRows *r, const StepGpu *gpu, const StepShape *s, double calls) {
    double C = s->config.channels, N = step_tokens(s), X = s->sizeof_activation;
    double statistics = 8.0 * N * s->config.num_heads, efficiency = STEP_ATTENTION_BACKWARD;
    if (s->attention == ATTENTION_CUDNN) {
        double scores = step_score_bytes(gpu, s);
        step_scores(r, gpu, s, "cudnn backward", calls, 5, efficiency, 8 * C * N * X + statistics, scores);
        return;
    }
    step_move(r, gpu, "attention_delta", calls, 2 * C * N * X + statistics / 2, 1.0);
    step_scores(r, gpu, s, "attention_backward_kv", calls, 4, efficiency, 6 * C * N * X + statistics, 0.0);
    step_scores(r, gpu, s, "attention_backward_q", calls, 3, efficiency, 5 * C * N * X + statistics, 0.0);
}

// Another kernel adds up the sums that the blocks of a kernel leave.
static inline void step_column_sums(StepRows *r, const StepGpu *gpu, double calls, double floats) {
    step_move(r, gpu, "column_sums", calls, floats * sizeof(float), 1.0);
}

// The gradient of a bias of so many channels, if the kernel that writes dout leaves no sums. Each sum covers 128 rows.
static inline void step_bias_sum(StepRows *r, const StepGpu *gpu, const StepShape *s, double calls, double channels) {
    step_channels(r, gpu, s, "matmul_sum_rows", calls, channels, 1.0);
    step_column_sums(r, gpu, calls, step_tokens(s) / 128 * channels);
}

// read_and_written: tensors of C channels. Each thread leaves sums of 8 channels; one wave of them is 108 x 1,024.
static inline void step_layernorm_backward(StepRows *r, const StepGpu *gpu, const StepShape *s, double calls,
                                           int read_and_written) {
    double N = step_tokens(s), C = s->config.channels, sums = 3.0 * 108 * 1024 * 8;
    step_move(r, gpu, "layernorm_backward", calls, read_and_written * C * N * s->sizeof_activation + 8 * N, 1.0);
    step_column_sums(r, gpu, calls, sums < 3.0 * C * N / 16 ? sums : 3.0 * C * N / 16);
}

// GELU forward as a kernel of its own. In 8 bits it is part of the kernel that turns the next layer's
// input into 8 bits.
static inline void step_gelu(StepRows *r, const StepGpu *gpu, const StepShape *s, double calls, bool again) {
    double C = s->config.channels;
    if (s->fp8) {
        if (!again) { step_amax(r, gpu, s, calls, 4 * C); }
        step_quantize_input(r, gpu, s, calls, 4 * C, RECOMPUTE_GELU, again);
    } else {
        step_channels(r, gpu, s, "gelu_forward", calls, 8 * C, 1.0);
    }
}

// fc, and GELU in it where it is fused: the multiply then writes its input too.
static inline void step_fc(StepRows *r, const StepGpu *gpu, const StepShape *s, double calls) {
    int64_t C = s->config.channels;
    bool fused = s->gelu_fusion >= FUSE_GELU_FORWARD && !s->fp8;
    double beside = fused ? 4.0 * (double)C * step_tokens(s) * s->sizeof_activation : 0.0;
    step_linear(r, gpu, s, "matmul fc forward", calls, C, 4 * C, beside);
}

// A block up to the input of its last multiply. --recompute 3 computes it again.
static inline void step_block(StepRows *r, const StepGpu *gpu, const StepShape *s, double calls, bool again) {
    int64_t C = s->config.channels;
    step_quantize_input(r, gpu, s, calls, (double)C, RECOMPUTE_LAYERNORM, again);
    step_linear(r, gpu, s, "matmul qkv forward", calls, C, 3 * C, 0.0);
    step_attention(r, gpu, s, calls);
    if (s->attention == ATTENTION_CUDNN && !again) { step_amax(r, gpu, s, calls, (double)C); }
    step_quantize_input(r, gpu, s, calls, (double)C, RECOMPUTE_LAYERNORM, again);
    step_linear(r, gpu, s, "matmul attproj forward", calls, C, C, 0.0);
    step_channels(r, gpu, s, "fused_residual_layernorm_forward", calls, 4.0 * (double)C, 1.0);
    step_quantize_input(r, gpu, s, calls, (double)C, RECOMPUTE_LAYERNORM, again);
    step_fc(r, gpu, s, calls);
    if (s->gelu_fusion == FUSE_NOTHING || s->fp8) { step_gelu(r, gpu, s, calls, again); }
}

// The part of a layer's forward pass that its backward pass computes again.
static inline void step_recompute(StepRows *r, const StepGpu *gpu, const StepShape *s, double calls) {
    double C = s->config.channels;
    if (s->recompute >= RECOMPUTE_LAYERNORM) { step_channels(r, gpu, s, "layernorm_forward", calls, 2 * C, 1.0); }
    if (s->recompute >= RECOMPUTE_BLOCK) {
        step_block(r, gpu, s, calls, true);
        return;
    }
    if (s->recompute >= RECOMPUTE_LAYERNORM) {
        step_channels(r, gpu, s, "layernorm_forward", calls, 2 * C, 1.0);
        for (int input = 0; input < 3; input++) { step_quantize_input(r, gpu, s, calls, C, RECOMPUTE_LAYERNORM, true); }
    }
    if (s->recompute < RECOMPUTE_GELU) { return; }
    if (s->gelu_fusion >= FUSE_GELU_FORWARD && !s->fp8) {
        step_fc(r, gpu, s, calls);
    } else {
        step_gelu(r, gpu, s, calls, true);
    }
}

static inline void step_block_backward(StepRows *r, const StepGpu *gpu, const StepShape *s, double calls) {
    int64_t C = s->config.channels;
    double N = step_tokens(s), X = s->sizeof_activation;
    bool fused = s->gelu_fusion >= FUSE_GELU_BACKWARD && !s->fp8;
    step_quantize(r, gpu, s, calls, (double)C, 2);
    step_linear_backward(r, gpu, s, "matmul fcproj backward input", "matmul fcproj backward weight", calls, 4 * C, C,
                         fused ? 4.0 * (double)C * N * X : 0.0);
    if (fused) {
        step_bias_sum(r, gpu, s, calls, 4.0 * (double)C);
    } else {
        step_channels(r, gpu, s, "gelu_backward", calls, 12.0 * (double)C, 1.0);
        step_column_sums(r, gpu, calls, N / 64 * 4 * (double)C);
    }
    step_quantize(r, gpu, s, calls, 4.0 * (double)C, 2);
    step_linear_backward(r, gpu, s, "matmul fc backward input", "matmul fc backward weight", calls, C, 4 * C, 0.0);
    step_layernorm_backward(r, gpu, s, calls, 4);
    step_quantize(r, gpu, s, calls, (double)C, 2);
    step_linear_backward(r, gpu, s, "matmul attproj backward input", "matmul attproj backward weight", calls, C, C,
                         0.0);
    step_attention_backward(r, gpu, s, calls);
    step_bias_sum(r, gpu, s, calls, 3.0 * (double)C);
    step_quantize(r, gpu, s, calls, 3.0 * (double)C, 2);
    step_linear_backward(r, gpu, s, "matmul qkv backward input", "matmul qkv backward weight", calls, C, 3 * C, 0.0);
    step_layernorm_backward(r, gpu, s, calls, 4);
}

// The lm_head, forward and backward, for `rows` rows: logits, the cross entropy in place, two products. It is in bf16.
static inline void step_lm_head_rows(StepRows *r, const StepGpu *gpu, const StepShape *s, double calls, int64_t rows) {
    int64_t C = s->config.channels, Vp = s->config.padded_vocab_size;
    int size = s->sizeof_activation;
    if (rows == 0) { return; }
    StepMatmul logits = {rows, Vp, C, false, size, size, 0.0}, dinp = {rows, C, Vp, false, size, size, 0.0};
    StepMatmul dweight = {Vp, C, rows, false, size, sizeof(float), (double)Vp * (double)C * sizeof(float)};
    step_matmul(r, gpu, s, "matmul lm_head forward", calls, &logits);
    step_matmul(r, gpu, s, "matmul lm_head backward input", calls, &dinp);
    step_matmul(r, gpu, s, "matmul lm_head backward weight", calls, &dweight);
    double bytes = 2.0 * (double)rows * s->config.vocab_size * size;
    double part = 1.0 / (s->head_overlap && rows < (int64_t)s->B * s->T ? 1.0 - STEP_LM_HEAD_OVERLAP : 1.0);
    step_move(r, gpu, "cross_entropy", calls, bytes, part);
}

static inline void step_lm_head(StepRows *r, const StepGpu *gpu, const StepShape *s, double calls) {
    int64_t N = (int64_t)s->B * s->T, rows = min_i64(N, s->head_rows);
    step_lm_head_rows(r, gpu, s, calls * (double)(N / rows), rows);
    step_lm_head_rows(r, gpu, s, calls, N % rows);
    step_move(r, gpu, "sum_losses", calls, 4.0 * (double)N, 1.0);
}

// The embeddings: each row of wte that occurs is read once, and its fp32 gradient is read and written once.
static inline void step_embeddings(StepRows *r, const StepGpu *gpu, const StepShape *s, double calls) {
    double N = step_tokens(s), C = s->config.channels, X = s->sizeof_activation;
    double rows = (N < s->config.vocab_size ? N : s->config.vocab_size) * C, positions = s->T * C;
    step_move(r, gpu, "embedding_forward", calls, X * (N * C + rows + positions) + 4 * N, 1.0);
    step_move(r, gpu, "embedding_backward_position", calls, X * N * C + 8 * positions, 1.0);
    step_move(r, gpu, "embedding_backward_token", calls, X * N * C + 8 * rows + 8 * N, 1.0);
}

// The weights of the blocks in 8 bits, and transposed.
static inline void step_quantize_weights(StepRows *r, const StepGpu *gpu, const StepShape *s, double calls) {
    double C = s->config.channels, X = s->sizeof_activation, weights = 12 * C * C;
    if (!s->fp8) { return; }
    for (int linear = 0; linear < 4; linear++) {
        step_move(r, gpu, "fp8_amax", calls, weights / 4 * X, 1.0);
        step_move(r, gpu, "fp8_quantize", calls, weights / 4 * (X + 2), 1.0);
    }
}

static inline void step_micro_batches(StepRows *r, const StepGpu *gpu, const StepShape *s) {
    double C = s->config.channels, times = (double)s->micro_batches, layers = times * s->config.num_layers;
    step_embeddings(r, gpu, s, times);
    step_channels(r, gpu, s, "layernorm_forward", times, 2 * C, 1.0);
    step_block(r, gpu, s, layers, false);
    step_linear(r, gpu, s, "matmul fcproj forward", layers, 4 * (int64_t)C, (int64_t)C, 0.0);
    step_channels(r, gpu, s, "fused_residual_layernorm_forward", layers, 4 * C, 1.0);
    step_lm_head(r, gpu, s, times);
    step_layernorm_backward(r, gpu, s, times, 3);
    step_recompute(r, gpu, s, layers - times); // the last layer's activations are still there
    step_block_backward(r, gpu, s, layers);
    if (s->shards_parameters) { step_quantize_weights(r, gpu, s, 2 * layers); }
}

// The gradients are set to zero, and the norm reads a rank's part of them. AdamW reads this part again, reads and
// writes both moments and the fp32 weights, and writes the weights of the layers.
static inline void step_update(StepRows *r, const StepGpu *gpu, const StepShape *s) {
    double parameters = (double)gpt2_num_params(&s->config), X = s->sizeof_activation;
    double own = s->shards_state ? parameters / s->num_ranks : parameters;
    double weights = s->has_master ? 8 + X : 2 * X;
    bool parts = s->shards_gradients; // then room for whole buckets is cleared in every micro-batch
    step_move(r, gpu, "fill", parts ? (double)s->micro_batches * (1 + s->config.num_layers) : 1.0,
              4 * parameters / (parts ? 1 + s->config.num_layers : 1), 1.0);
    step_move(r, gpu, "global_norm_squared", 1.0, 4 * own, 1.0);
    if (s->num_ranks > 1 && !s->shards_parameters) { step_move(r, gpu, "add_checksum", 1.0, X * parameters, 1.0); }
    step_move(r, gpu, "adamw_update", 1.0, own * (4 + 16 + weights), 1.0);
    if (!s->shards_parameters) { step_quantize_weights(r, gpu, s, s->config.num_layers); }
}

// ---- A step ----

static inline double step_rows_seconds(const StepRows *r) {
    double seconds = 0.0;
    for (int i = 0; i < r->count; i++) { seconds += r->rows[i].seconds; }
    return seconds;
}

// Every kernel of a step on one GPU. llmc/ranks/step_link.h adds the traffic between GPUs.
static inline void step_rows(StepRows *r, const StepGpu *gpu, const StepShape *s) {
    r->count = 0;
    step_micro_batches(r, gpu, s);
    step_update(r, gpu, s);
}

static inline double step_seconds(const StepGpu *gpu, const StepShape *s) {
    StepRows rows;
    step_rows(&rows, gpu, s);
    return step_rows_seconds(&rows);
}

static inline int step_compare_rows(const void *a, const void *b) {
    const StepRow *x = (const StepRow *)a, *y = (const StepRow *)b;
    if (x->seconds != y->seconds) { return x->seconds < y->seconds ? 1 : -1; }
    return strcmp(x->name, y->name);
}

// Prints the rows, the longest first, and their sum. dev/bench/step_table.py reads them.
static inline void step_print(const StepRows *rows, FILE *out) {
    StepRows sorted = *rows;
    double sum[4] = {0.0, 0.0, 0.0, 0.0};
    qsort(sorted.rows, (size_t)sorted.count, sizeof(sorted.rows[0]), step_compare_rows);
    fprintf(out, "%10s %8s %11s %12s  %-6s  %s\n", "ms a step", "calls", "GB", "GFLOP", "bound", "kernel");
    for (int i = 0; i < sorted.count; i++) {
        const StepRow *row = &sorted.rows[i];
        fprintf(out, "%10.3f %8.0f %11.3f %12.1f  %-6s  %s\n", 1e3 * row->seconds, row->calls, 1e-9 * row->bytes,
                1e-9 * row->flops, step_bounds[row->bound], row->name);
        sum[0] += row->seconds, sum[1] += row->calls, sum[2] += row->bytes, sum[3] += row->flops;
    }
    fprintf(out, "%10.3f %8.0f %11.3f %12.1f  %-6s  %s\n", 1e3 * sum[0], sum[1], 1e-9 * sum[2], 1e-9 * sum[3], "-",
            "the step");
}

#endif // LLMC_STEP_MODEL_H
