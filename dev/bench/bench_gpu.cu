// `make bench-gpu`: how far each kernel of the GPU trainers is from this GPU's own limits, in one run: the time of each
// launcher at a model's shapes beside its floor, which is the least memory traffic at the speed of a device-to-device
// copy, or the arithmetic at the speed of a large matrix multiply, whichever is longer; both are measured first.
//
// Times are medians of many batches of launches. Operands rotate through several copies, together larger than the L2
// cache, as in a training step, where everything has been pushed out of it since it was last used.
//
//     build/cuda/bench_gpu [SIZE [B]]   of the model (d12), and sequences in a micro-batch (16)
//     build/emu/bench_gpu tiny          in the emulator, where times mean nothing
#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "llmc/base/openmp.h"
#include "llmc/cuda/cuda_utils.cuh"
#include "llmc/layers/attention.cuh"
#include "llmc/layers/embedding.cuh"
#include "llmc/layers/gelu.cuh"
#include "llmc/layers/layernorm.cuh"
#include "llmc/layers/linear.cuh"
#include "llmc/layers/loss.cuh"
#include "llmc/layers/rope.cuh"
#include "llmc/layers/swiglu.cuh"
#include "llmc/model/params.h"
#include "llmc/optim/adamw.cuh"
#include "llmc/optim/global_norm.cuh"
#include "llmc/optim/muon.cuh"

#define POOL_BYTES ((int64_t)12 << 30) // at most; less where the GPU has less
#define MAX_COPIES 16                  // of the operands

// ---- Operands ----

// What lies in a buffer before the kernel runs. Random: arithmetic on zeros takes less power, and so less time.
typedef enum { FILL_FLOATX, FILL_F32, FILL_TOKENS, FILL_FP8, FILL_SCALE } Fill;
static const int64_t fill_bytes[] = {sizeof(floatX), 4, 4, 1, sizeof(Fp8Scale)};

__global__ void fill_kernel(char *data, Fill fill, int64_t count, int limit, uint64_t key) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) { return; }
    uint32_t bits = rounding_bits(key, (uint64_t)i);
    float uniform = (float)(bits >> 8) * 0x1p-24f; // 0 to 1
    switch (fill) {
    case FILL_FLOATX: ((floatX *)data)[i] = from_float<floatX>(2.0f * uniform - 1.0f); break;
    case FILL_F32: ((float *)data)[i] = uniform; break;
    case FILL_TOKENS: ((int32_t *)data)[i] = (int32_t)(bits % (uint32_t)limit); break;
    case FILL_FP8: ((uint8_t *)data)[i] = (uint8_t)(bits & 0xbf); break; // of either format, finite
    case FILL_SCALE: ((Fp8Scale *)data)[i] = {amax_of(1.0f), fp8_inverse<fp8e4>(amax_of(1.0f))}; break;
    }
}

// Memory that is handed out from its start to its end, filled.
struct Pool {
    char *base;
    int64_t bytes, used;
    cudaStream_t stream;

    char *take(Fill fill, int64_t count, int limit = 0) {
        int64_t size = round_up_i64(count * fill_bytes[fill], PLAN_ALIGNMENT);
        char *data = base + used;
        Error error = {"the operands need more memory than this GPU has free; give a smaller B"};
        exit_unless(size <= bytes - used, "bench_gpu", &error);
        if (count > 0) {
            fill_kernel<<<blocks_for(count, 256), 256, 0, stream>>>(data, fill, count, limit, rounding_key(5, used));
            cuda_check_launch("fill_kernel");
        }
        used += size;
        return data;
    }
    floatX *x(int64_t count) { return (floatX *)take(FILL_FLOATX, count); } // -1 to 1
    float *f(int64_t count) { return (float *)take(FILL_F32, count); }      // 0 to 1
    int32_t *tokens(int64_t count, int limit) { return (int32_t *)take(FILL_TOKENS, count, limit); }
    fp8e4 *e4(int64_t count) { return (fp8e4 *)take(FILL_FP8, count); }
    Fp8Scale *scale() { return (Fp8Scale *)take(FILL_SCALE, 1); } // of amax 1

    // An operand of a multiply: in floatX, or in 8 bits with its scale.
    template <typename T> floatX *operand(bool fp8, int64_t count, T **codes, Fp8Scale **its_scale) {
        if (!fp8) { return x(count); }
        *codes = (T *)take(FILL_FP8, count), *its_scale = scale();
        return NULL;
    }
};

typedef std::function<void()> Launch;
typedef std::function<Launch(Pool &)> Make; // takes a copy of a kernel's operands, returns what launches it on them

typedef struct {
    ModelConfig config;
    int B, T;
    int64_t N;    // B * T
    bool tiny;    // a test of this program: few repetitions
    bool has_fp8; // bf16 build, and a GPU that multiplies 8-bit numbers
    cudaStream_t stream;
    cudaEvent_t start, stop;
    CublasContext cublas;
    Pool pool;
    int64_t l2_bytes;
    double bytes_per_second, flops_per_second; // measured; 0 before
} Bench;

// ---- A row ----

// Seconds of `launches` launches that take the copies by turns.
static double time_batch(Bench *b, const std::vector<Launch> &copies, int launches) {
    float ms = 0.0f;
    cuda_check(cudaEventRecord(b->start, b->stream));
    for (int i = 0; i < launches; i++) { copies[(size_t)i % copies.size()](); }
    cuda_check(cudaEventRecord(b->stop, b->stream));
    cuda_check(cudaEventSynchronize(b->stop));
    cuda_check(cudaEventElapsedTime(&ms, b->start, b->stop));
    return fmax(1e-3 * ms, 1e-9); // the emulator's clock may stand still
}

// Median seconds of a launch: batches of at least a millisecond, for about 0.1 s, after as much to wake the clocks up.
static double time_launches(Bench *b, const std::vector<Launch> &copies) {
    int per_batch = (int)copies.size();
    double warm = time_batch(b, copies, per_batch) / per_batch;
    if (b->tiny) { return warm; }
    warm = time_batch(b, copies, per_batch) / per_batch;
    per_batch = (int)max_i64(per_batch, (int64_t)(1e-3 / fmax(warm, 1e-7)) + 1);
    int batches = (int)min_i64(51, max_i64(5, (int64_t)(0.1 / (warm * per_batch))));
    std::vector<double> seconds;
    for (int i = 0; i < 2 * batches; i++) { seconds.push_back(time_batch(b, copies, per_batch) / per_batch); }
    seconds.erase(seconds.begin(), seconds.begin() + batches);
    std::sort(seconds.begin(), seconds.end());
    return seconds[seconds.size() / 2];
}

// Times a kernel that must move so many bytes and compute so many FLOPs at least, and prints its row. Returns seconds.
static double measure(Bench *b, const std::string &name, double bytes, double flops, const Make &make) {
    b->pool.used = 0;
    std::vector<Launch> copies = {make(b->pool)};
    int64_t one = max_i64(b->pool.used, 1), more = min_i64(2 * b->l2_bytes / one, b->pool.bytes / one - 1);
    for (int64_t i = b->tiny ? more : 0; i < min_i64(more, MAX_COPIES - 1); i++) { copies.push_back(make(b->pool)); }
    double seconds = time_launches(b, copies);
    double memory = b->bytes_per_second > 0.0 ? bytes / b->bytes_per_second : seconds;
    double arithmetic = b->flops_per_second > 0.0 ? flops / b->flops_per_second : flops > 0.0 ? seconds : 0.0;
    printf("%-28s %10.1f %8.3f %9.1f %8.0f %9.1f  %-6s %6.1f%%\n", name.c_str(), 1e6 * seconds, 1e-9 * bytes,
           1e-9 * flops, 1e-9 * bytes / seconds, 1e-12 * flops / seconds, memory >= arithmetic ? "memory" : "math",
           100.0 * fmax(memory, arithmetic) / seconds);
    return seconds;
}

// ---- The floors ----

static void measure_copy(Bench *b) {
    int64_t bytes = b->tiny ? 1 << 20 : min_i64((int64_t)1 << 30, b->pool.bytes / 4);
    double seconds = measure(b, "device-to-device copy", 2.0 * (double)bytes, 0.0, [=](Pool &p) {
        return [=, from = p.f(bytes / 4), to = p.f(bytes / 4)] {
            cuda_check(cudaMemcpyAsync(to, from, (size_t)bytes, cudaMemcpyDeviceToDevice, b->stream));
        };
    });
    b->bytes_per_second = 2.0 * (double)bytes / seconds;
}

static void measure_matmul(Bench *b) {
    int M = b->tiny ? 128 : 8192;
    int64_t MM = (int64_t)M * M;
    double flops = 2.0 * (double)MM * M, bytes = 3.0 * (double)MM * sizeof(floatX);
    double seconds = measure(b, "matmul " + std::to_string(M) + "^3", bytes, flops, [=](Pool &p) {
        return [=, out = p.x(MM), inp = p.x(MM), weight = p.x(MM)] {
            linear_forward(&b->cublas, {M, M, weight, NULL}, out, NULL, inp, M, b->stream);
        };
    });
    b->flops_per_second = flops / seconds;
}

// ---- The kernels ----

static const double X = sizeof(floatX);

static void copy_now(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
    cuda_check(cudaMemcpyAsync(to, from, bytes, kind, stream));
    cuda_check(cudaStreamSynchronize(stream));
}

static void bench_embedding(Bench *b) {
    int B = b->B, T = b->T, C = b->config.channels, V = b->config.vocab_size;
    int64_t N = b->N, VC = (int64_t)b->config.padded_vocab_size * C, TC = (int64_t)T * C;
    double n = (double)N, rows = (double)(min_i64(N, V) * C + TC); // of wte and wpe, if no token repeats
    measure(b, "embedding_forward", X * (n * C + rows) + 4.0 * n, 0.0, [=](Pool &p) {
        return [=, out = p.x(N * C), tokens = p.tokens(N, V), wte = p.x(VC), wpe = p.x(TC)] {
            embedding_forward(out, tokens, wte, wpe, B, T, C, b->stream);
        };
    });
    measure(b, "embedding_backward", X * n * C + 8.0 * rows + 8.0 * n, 0.0, [=](Pool &p) {
        int32_t *tokens = p.tokens(N, V), *order = p.tokens(N, V);
        std::vector<int32_t> ids((size_t)N), sorted((size_t)N), counts((size_t)V + 1);
        copy_now(ids.data(), tokens, (size_t)N * 4, cudaMemcpyDeviceToHost, b->stream);
        embedding_order_tokens(sorted.data(), ids.data(), N, V, counts.data());
        copy_now(order, sorted.data(), (size_t)N * 4, cudaMemcpyHostToDevice, b->stream);
        return [=, dwte = p.f(VC), dwpe = p.f(TC), dout = p.x(N * C)] {
            embedding_backward(dwte, dwpe, dout, tokens, order, B, T, C, b->stream);
        };
    });
}

static void bench_layernorm(Bench *b) {
    int C = b->config.channels;
    int64_t N = b->N, NC = N * C;
    double x = X * (double)NC, statistics = 8.0 * (double)N;
    measure(b, "residual_forward", 3 * x, 0.0, [=](Pool &p) {
        return [=, out = p.x(NC), inp = p.x(NC), more = p.x(NC)] { residual_forward(out, inp, more, NC, b->stream); };
    });
    auto layer = [=](Pool &p) { // braces take the operands in their order
        return LayerNorm{C, 1e-5f, p.x(C), p.x(C), p.f(C), p.f(C), p.x(NC), p.f(N), p.f(N), NULL};
    };
    measure(b, "layernorm_forward", 2 * x + statistics, 0.0,
            [=](Pool &p) { return [=, ln = layer(p), inp = p.x(NC)] { layernorm_forward(ln, inp, N, b->stream); }; });
    measure(b, "fused_residual_layernorm", 4 * x + statistics, 0.0, [=](Pool &p) {
        return [=, ln = layer(p), residual = p.x(NC), inp = p.x(NC), more = p.x(NC)] {
            fused_residual_layernorm_forward(ln, residual, inp, more, N, b->stream);
        };
    });
    measure(b, "layernorm_backward", 4 * x + statistics, 0.0, [=](Pool &p) {
        LayerNormDinp dinp = {p.x(NC), false, p.f(C), NULL};
        return
            [=, ln = layer(p), dout = p.x(NC), inp = p.x(NC), scratch = p.f(layernorm_backward_scratch_floats(N, C))] {
                layernorm_backward_with_column_sums(dinp, ln, dout, inp, scratch, N, b->stream);
            };
    });
}

static void bench_attention(Bench *b) {
    int T = b->T, NH = b->config.num_heads, HS = b->config.channels / NH;
    AttentionShape shape = {b->B, T, NH, NH, HS};
    int64_t N = b->N, NC = N * b->config.channels, heads = N * NH;
    double x = X * (double)NC, flops = 2.0 * (double)NC * (T + 1); // two multiplies; the causal mask halves each
    measure(b, "attention_forward", 4 * x + 4.0 * (double)heads, flops, [=](Pool &p) {
        return [=, out = p.x(NC), lse = p.f(heads), qkv = p.x(3 * NC)] {
            attention_forward(out, lse, qkv, shape, b->stream);
        };
    });
    measure(b, "attention_backward", 8 * x + 4.0 * (double)heads, 2.5 * flops, [=](Pool &p) { // five multiplies
        floatX *out = p.x(NC), *qkv = p.x(3 * NC);
        float *lse = p.f(heads);
        attention_forward(out, lse, qkv, shape, b->stream);
        return [=, dqkv = p.x(3 * NC), dout = p.x(NC), delta = p.f(heads)] {
            attention_backward(dqkv, dout, qkv, out, lse, delta, shape, b->stream);
        };
    });
    measure(b, "rope_forward", 4 * x, 0.0, [=](Pool &p) { // of Llama; its backward turns the other way
        return [=, qkv = p.x(3 * NC), table = p.f((int64_t)T * HS)] {
            rope_forward(qkv, table, N, {1, 0, T}, NH, NH, HS, b->stream);
        };
    });
}

// GPT-2's GELU and Llama's SwiGLU, of 4 C channels.
static void bench_activations(Bench *b) {
    int F = 4 * b->config.channels;
    int64_t N = b->N, n = N * F;
    double x = X * (double)n;
    measure(b, "gelu_forward", 2 * x, 0.0,
            [=](Pool &p) { return [=, out = p.x(n), inp = p.x(n)] { gelu_forward(out, inp, n, b->stream); }; });
    measure(b, "gelu_backward", 3 * x, 0.0, [=](Pool &p) {
        return [=, dinp = p.x(n), inp = p.x(n), dout = p.x(n), dbias = p.f(F),
                scratch = p.f(gelu_backward_scratch_floats(N, F))] {
            gelu_backward(dinp, inp, dout, dbias, scratch, N, F, b->stream);
        };
    });
    measure(b, "swiglu_forward", 3 * x, 0.0,
            [=](Pool &p) { return [=, out = p.x(n), fc = p.x(2 * n)] { swiglu_forward(out, fc, N, F, b->stream); }; });
    measure(b, "swiglu_backward", 5 * x, 0.0, [=](Pool &p) {
        return
            [=, dfc = p.x(2 * n), fc = p.x(2 * n), dout = p.x(n)] { swiglu_backward(dfc, fc, dout, N, F, b->stream); };
    });
}

// One linear layer (N,C) -> (N,OC): forward, and the parts of its backward pass. With fp8 the factors have 8 bits. The
// floor of the arithmetic is still that of the bf16 multiply, so that the percent is the gain: 200 % is what the tensor
// cores could do.
static void bench_linear(Bench *b, const std::string &name, int64_t N, int C, int OC, bool has_bias, bool fp8) {
    int64_t rows = linear_rows(fp8, N), weight = (int64_t)C * OC;
    double inp = (double)(N * C), out = (double)(N * OC), W = (double)weight, factor = fp8 ? 1.0 : X;
    double flops = 2.0 * (double)N * W;
    Linear layer;
    layer.C = C, layer.OC = OC, layer.fp8.on = fp8;
    measure(b, name + " forward", factor * (inp + W) + X * out, flops, [=](Pool &p) {
        Linear l = layer;
        l.weight = p.operand(fp8, weight, &l.fp8.weight, &l.fp8.weight_scale), l.bias = has_bias ? p.x(OC) : NULL;
        floatX *from = p.operand(fp8, rows * C, &l.fp8.inp, &l.fp8.inp_scale);
        return [=, to = p.x(rows * OC)] { linear_forward(&b->cublas, l, to, NULL, from, N, b->stream); };
    });
    measure(b, name + " backward input", factor * (out + W) + X * inp, flops, [=](Pool &p) {
        Linear l = layer;
        l.weight = p.operand(fp8, weight, &l.fp8.weight_t, &l.fp8.weight_scale);
        floatX *dout = p.operand(fp8, rows * OC, &l.fp8.dout, &l.fp8.dout_scale);
        return [=, dinp = p.x(rows * C)] { linear_backward_input(&b->cublas, l, dinp, dout, NULL, N, b->stream); };
    });
    measure(b, name + " backward weight", factor * (inp + out) + 8.0 * W, flops, [=](Pool &p) {
        Linear l = layer;
        l.dweight = p.f(weight);
        floatX *dout = p.operand(fp8, rows * OC, &l.fp8.dout_t, &l.fp8.dout_scale);
        floatX *from = p.operand(fp8, rows * C, &l.fp8.inp_t, &l.fp8.inp_scale);
        return [=] { linear_backward_weight(&b->cublas, l, dout, from, N, b->stream); };
    });
    if (!has_bias || fp8) { return; }
    measure(b, name + " backward bias", X * out, 0.0, [=](Pool &p) {
        Linear l = layer;
        l.dbias = p.f(OC);
        return [=, dout = p.x(N * OC), scratch = p.f(linear_backward_bias_scratch_floats(N, OC))] {
            linear_backward_bias(l, dout, scratch, N, b->stream);
        };
    });
}

// What making 8-bit tensors costs: of a block's input.
static void bench_fp8_quantize(Bench *b) {
    int C = b->config.channels;
    int64_t N = b->N, n = N * C, padded = fp8_padded_rows(N) * C;
    measure(b, "fp8_amax", X * (double)n, 0.0,
            [=](Pool &p) { return [=, x = p.x(n), scale = p.scale()] { fp8_amax(scale, x, n, b->stream); }; });
    measure(b, "fp8_quantize", (X + 2) * (double)n, 0.0, [=](Pool &p) {
        return [=, x = p.x(n), q = p.e4(padded), q_t = p.e4(padded), scale = p.scale()] {
            fp8_quantize(q, q_t, scale, x, N, C, b->stream);
        };
    });
}

static void bench_cross_entropy(Bench *b, int64_t rows) {
    int V = b->config.vocab_size, Vp = b->config.padded_vocab_size;
    float scale = 1.0f / (float)b->N;
    measure(b, "cross_entropy", 2 * X * (double)rows * V, 0.0, [=](Pool &p) {
        return [=, losses = p.f(rows), logits = p.x(rows * Vp), targets = p.tokens(rows, V)] {
            cross_entropy(losses, logits, targets, rows, V, Vp, scale, true, b->stream);
        };
    });
}

// A step result that says: go on, no clipping. In device memory, 0 to 1 as filled would also stop or scale.
static const StepResult *go_on(Pool &p) {
    StepResult result = {};
    result.grad_scale = 1.0f;
    float *data = p.f(16);
    copy_now(data, &result, sizeof(result), cudaMemcpyHostToDevice, p.stream);
    return (const StepResult *)data;
}

static void bench_optimizers(Bench *b) {
    int64_t n = min_i64(model_num_params(&b->config), b->pool.bytes / 32) / 8 * 8; // a part of a very large model
    bool has_master = sizeof(floatX) == 2;
    double elements = (double)n;
    measure(b, "global_norm_squared", 4.0 * elements, 0.0, [=](Pool &p) {
        return [=, partials = (double *)p.f(2 * global_norm_scratch_doubles(n)), grads = p.f(n)] {
            global_norm_squared(partials, grads, n, b->stream);
        };
    });
    auto part = [=](Pool &p, bool muon) { // Muon has no v; the rounds read and write floatX
        float *master = has_master ? p.f(n) : NULL;
        return UpdatePart{p.x(n), master, p.f(n), muon ? NULL : p.f(n), p.f(n), muon ? p.x(n) : NULL, n, n, 0};
    };
    AdamWFactors adamw = adamw_factors(1e-4f, 0.9f, 0.95f, 1e-8f, 0.1f, 10, rounding_key(1, 10));
    MuonFactors muon = {0.02f, 0.95f, 0.1f, rounding_key(1, 10)};
    measure(b, "adamw_update", (has_master ? 28 + X : 28) * elements, 0.0, [=](Pool &p) {
        return [=, of = part(p, false), result = go_on(p)] { adamw_update(of, adamw, result, b->stream); };
    });
    measure(b, "muon_momentum", (12 + X) * elements, 0.0, [=](Pool &p) {
        return [=, of = part(p, true), result = go_on(p)] { muon_momentum(of, muon, result, b->stream); };
    });
    measure(b, "muon_apply", (has_master ? 8 + 2 * X : 3 * X) * elements, 0.0, [=](Pool &p) {
        return [=, of = part(p, true), result = go_on(p)] { muon_apply(of, muon, result, b->stream); };
    });
}

static void bench_kernels(Bench *b) {
    int C = b->config.channels;
    int64_t N = b->N, rows = min_i64(N, b->tiny ? 8 : 8192); // of the logits, of which a step never holds all
    bench_embedding(b);
    bench_layernorm(b);
    bench_attention(b);
    bench_activations(b);
    bench_fp8_quantize(b);
    for (bool fp8 : {false, true}) {
        if (fp8 && !b->has_fp8) { break; }
        std::string kind = fp8 ? " fp8" : "";
        bench_linear(b, "qkv" + kind, N, C, 3 * C, true, fp8);
        bench_linear(b, "attproj" + kind, N, C, C, true, fp8);
        bench_linear(b, "fc" + kind, N, C, 4 * C, true, fp8);
        bench_linear(b, "fcproj" + kind, N, 4 * C, C, true, fp8);
    }
    bench_linear(b, "lm_head", rows, C, b->config.padded_vocab_size, false, false);
    bench_cross_entropy(b, rows);
    bench_optimizers(b);
}

// ---- The start ----

// bench_gpu [SIZE [B]]
static bool set_shapes(Bench *b, int argc, char **argv, Error *error) {
    const char *model = argc > 1 ? argv[1] : "d12";
    b->tiny = strcmp(model, "tiny") == 0;
    const ModelConfig start = GPT2_CONFIG(64, b->tiny ? 257 : GPT2_VOCAB_SIZE, 0, 2, 2, 128);
    b->config = start; // which is the tiny model's
    if (!b->tiny && !model_config_from_size(&b->config, model)) {
        return fail(error, "no size '%s'; there are tiny" MODEL_SIZE_NAMES, model);
    }
    b->config.padded_vocab_size = model_pad_vocab(b->config.vocab_size);
    b->T = b->config.max_seq_len;
    b->B = argc > 2 ? atoi(argv[2]) : b->tiny ? 2 : 16;
    b->N = (int64_t)b->B * b->T;
    return (argc <= 3 && b->B > 0) || fail(error, "expected bench_gpu [SIZE [B]], such as bench_gpu d48 16");
}

static bool take_memory(Bench *b, Error *error) {
    size_t available = 0, installed = 0;
    cuda_check(cudaMemGetInfo(&available, &installed));
    Pool *p = &b->pool;
    p->bytes = b->tiny ? (int64_t)64 << 20 : min_i64((int64_t)(0.8 * (double)available), POOL_BYTES);
    p->stream = b->stream;
    if (cudaMalloc((void **)&p->base, (size_t)p->bytes) == cudaSuccess) { return true; }
    return fail(error, "the GPU has no %lld MiB free; end other programs that use it", (long long)(p->bytes >> 20));
}

static bool open_gpu(Bench *b, Error *error) {
    struct cudaDeviceProp device;
    int count = 0;
    cudaError_t status = cudaGetDeviceCount(&count);
    if (status != cudaSuccess) { return fail(error, "%s: %s", cudaGetErrorString(status), cuda_remedy(status)); }
    cuda_check(cudaGetDeviceProperties(&device, 0));
    b->l2_bytes = device.l2CacheSize;
    b->has_fp8 = sizeof(floatX) == 2 && fp8_is_supported(device.major, device.minor);
    printf("device: %s, compute capability %d.%d, %d multiprocessors, L2 %.0f MiB\n", device.name, device.major,
           device.minor, device.multiProcessorCount, (double)b->l2_bytes / 1048576.0);
    cuda_check(cudaStreamCreateWithFlags(&b->stream, cudaStreamNonBlocking));
    cuda_check(cudaEventCreate(&b->start));
    cuda_check(cudaEventCreate(&b->stop));
    return true;
}

int main(int argc, char **argv) {
    static Error error;
    static Bench b;
    void *workspace = NULL;
    openmp_wait_briefly(argv);
    exit_unless(set_shapes(&b, argc, argv, &error) && open_gpu(&b, &error) && take_memory(&b, &error) &&
                    cublas_open(&b.cublas, true, &error),
                "bench_gpu", &error);
    cuda_check(cudaMalloc(&workspace, CUBLAS_WORKSPACE));
    cublas_set_workspace(&b.cublas, workspace, CUBLAS_WORKSPACE);
    printf("shapes: %s, B %d, T %d, C %d, V %d\n\n%-28s %10s %8s %9s %8s %9s  %-6s %7s\n", PRECISION_NAME, b.B, b.T,
           b.config.channels, b.config.vocab_size, "kernel", "us", "GB", "GFLOP", "GB/s", "TFLOP/s", "bound",
           "of floor");
    measure_copy(&b);
    measure_matmul(&b);
    bench_kernels(&b);
    cuda_check(cudaDeviceSynchronize());
    return EXIT_SUCCESS;
}
