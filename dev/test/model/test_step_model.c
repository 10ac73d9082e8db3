// Unit tests of the predicted time of a step: operations and bytes of its kernels against sums worked out by hand, and
// an order of times as a GPU must have it.
#include "dev/test/test.h"
#include "llmc/model/step_model.h"

enum { V = 50257, Vp = 50304 };

static StepGpu h100(void) { return step_gpu(gpu_peak_of_option("h100"), GPU_BF16, true); }

static StepShape shape_of(const char *model, int B, int recompute, int64_t micro_batches) {
    StepShape s;
    memset(&s, 0, sizeof(s));
    model_config_from_size(&s.config, model);
    s.config.vocab_size = V, s.config.padded_vocab_size = Vp;
    s.B = B, s.T = 1024, s.recompute = recompute, s.head_rows = 8192, s.sizeof_activation = 2;
    s.attention = ATTENTION_CUDNN, s.attention_chunk = 8, s.has_master = true;
    s.matmul_workspace_bytes = 32 << 20;
    s.num_ranks = 1, s.micro_batches = micro_batches;
    return s;
}

// Of 512 sequences a step.
static double seconds_of(const char *model, int B, int recompute) {
    StepGpu gpu = h100();
    StepShape s = shape_of(model, B, recompute, 512 / B);
    return step_seconds(&gpu, &s);
}

static StepRows rows_of(const StepShape *s) {
    StepGpu gpu = h100();
    StepRows rows;
    step_rows(&rows, &gpu, s);
    return rows;
}

// The sum of all rows whose names begin so.
static StepRow sum_of(const StepRows *rows, const char *begin) {
    StepRow sum = {begin, BOUND_MEMORY, 0.0, 0.0, 0.0, 0.0};
    for (int i = 0; i < rows->count; i++) {
        const StepRow *row = &rows->rows[i];
        if (strncmp(row->name, begin, strlen(begin)) != 0) { continue; }
        sum.calls += row->calls, sum.bytes += row->bytes, sum.flops += row->flops, sum.seconds += row->seconds;
    }
    return sum;
}

static bool near(double got, double want) { return fabs(got - want) <= 1e-12 * fabs(want); }

static void check_sum(Test *t, const StepShape *s, const char *begin, double calls, double bytes, double flops) {
    StepRows rows = rows_of(s);
    StepRow sum = sum_of(&rows, begin);
    CHECK(t, calls < 0.0 || sum.calls == calls, "%s: %g calls, expected %g", begin, sum.calls, calls);
    CHECK(t, bytes < 0.0 || near(sum.bytes, bytes), "%s: %.17g bytes, expected %.17g", begin, sum.bytes, bytes);
    CHECK(t, flops < 0.0 || near(sum.flops, flops), "%s: %.17g FLOPs, expected %.17g", begin, sum.flops, flops);
}

// ---- Operations and bytes ----

// 6 for each weight and token, in bf16 and in 8 bits, however the rows of the head are cut; and the recomputed work.
TEST(test_operations_of_multiplies) {
    const char *const models[] = {"d12", "d48"};
    for (int i = 0; i < 16; i++) {
        StepShape s = shape_of(models[i % 2], 8, 0, 3);
        double C = s.config.channels, L = s.config.num_layers, tokens = 3 * 8 * 1024.0;
        double once = 6.0 * tokens * (12.0 * L * C * C + Vp * C);
        s.fp8 = i / 2 % 2 == 1, s.head_rows = i / 4 % 2 == 1 ? 3000 : 8192;
        s.gelu_fusion = i / 8 % 2 == 1 ? 2 : 0;
        check_sum(t, &s, "matmul ", -1.0, -1.0, once);
        s.recompute = 3; // qkv, attproj and fc of all layers but the last
        check_sum(t, &s, "matmul ", -1.0, -1.0, once + 2.0 * tokens * (L - 1) * 8.0 * C * C);
        s.recompute = 1; // fc where GELU is inside it
        double again = s.gelu_fusion > 0 && !s.fp8 ? 2.0 * tokens * (L - 1) * 4.0 * C * C : 0.0;
        check_sum(t, &s, "matmul ", -1.0, -1.0, once + again);
    }
}

// 2 T C operations a token and product. The mask leaves half of them: 7 products by cuDNN, 9 by our kernels.
TEST(test_operations_of_attention) {
    StepShape s = shape_of("d12", 4, 0, 2);
    double product = 8 * 1024.0 * 1024.0 * 768.0 * 12.0;
    check_sum(t, &s, "cudnn ", 48.0, -1.0, 7.0 * product);
    s.attention = ATTENTION_TENSOR;
    check_sum(t, &s, "attention_", 4 * 24.0, -1.0, 9.0 * product);
    check_sum(t, &s, "cudnn ", 0.0, 0.0, 0.0);
    s.recompute = 3;
    check_sum(t, &s, "attention_forward", 24.0 + 22.0, -1.0, 2.0 * product * 23.0 / 12.0);
}

// 20 n^2 m + 10 n^3 operations for each matrix: 30 C^3 for the four square ones of a block, 90 C^3 for each of the two
// others. Each rank has its share of the matrices, and of the elements. The momentum reads 8 bytes of an element and
// writes 6, the update reads 6 and writes 6.
TEST(test_muon) {
    for (int ranks = 1; ranks <= 8; ranks++) {
        StepShape s = shape_of("d12", 16, 0, 2);
        double C = 768.0, L = 12.0, own = 12.0 * L * C * C / ranks;
        s.optimizer = OPTIMIZER_MUON;
        s.num_ranks = ranks, s.shards_state = ranks > 1;
        check_sum(t, &s, "matmul muon", -1.0, -1.0, L * 300.0 * C * C * C / ranks);
        check_sum(t, &s, "muon_momentum", 1.0, 14.0 * own, 0.0);
        check_sum(t, &s, "muon_apply", 1.0, 12.0 * own, 0.0);
        check_sum(t, &s, "muon_norm", -1.0, (1.0 + 2.0) * 2.0 * own, 0.0);
        check_sum(t, &s, "adamw_update", 1.0, 30.0 * ((double)model_num_params(&s.config) / ranks - own), 0.0);
        s.optimizer = OPTIMIZER_ADAMW;
        check_sum(t, &s, "muon", 0.0, 0.0, 0.0);
    }
}

TEST(test_bytes) {
    StepShape s = shape_of("d12", 16, 0, 2);
    double N = 16 * 1024.0, C = 768.0, params = (double)model_num_params(&s.config);
    check_sum(t, &s, "gelu_forward", 24.0, 24 * 8 * N * C * 2, 0.0);
    check_sum(t, &s, "gelu_backward", 24.0, 24 * 12 * N * C * 2, 0.0);
    check_sum(t, &s, "fused_residual_layernorm_forward", 48.0, 48 * 4 * N * C * 2, 0.0);
    check_sum(t, &s, "layernorm_backward", 50.0, (48 * 4 + 2 * 3) * N * C * 2 + 50 * 8 * N, 0.0);
    check_sum(t, &s, "matmul_sum_rows", 24.0, 24 * 3 * N * C * 2, 0.0);
    check_sum(t, &s, "cross_entropy", 4.0, 2 * 2 * N * V * 2.0, 0.0);
    check_sum(t, &s, "adamw_update", 1.0, 30 * params, 0.0);
    check_sum(t, &s, "global_norm_squared", 1.0, 4 * params, 0.0);
    // qkv reads N C and 3 C C, writes 3 N C; its weight's gradient is fp32, read and written.
    check_sum(t, &s, "matmul qkv forward", 24.0, 24 * 2 * (N * C + 3 * C * C + 3 * N * C), -1.0);
    check_sum(t, &s, "matmul qkv backward weight", 24.0, 24 * (2 * 4 * N * C + 8 * 3 * C * C), -1.0);
    s.recompute = 1;
    check_sum(t, &s, "gelu_forward", 46.0, 46 * 8 * N * C * 2, 0.0);
    s.recompute = 2;
    check_sum(t, &s, "layernorm_forward", 2.0 + 44.0, 46 * 2 * N * C * 2, 0.0);
    s.head_rows = 10000; // 10,000 and 6,384
    check_sum(t, &s, "cross_entropy", 4.0, 2 * 2 * N * V * 2.0, 0.0);
    s.has_master = false;
    check_sum(t, &s, "adamw_update", 1.0, 24 * params, 0.0);
}

TEST(test_bytes_of_ranks) {
    StepShape s = shape_of("d12", 16, 0, 2);
    double params = (double)model_num_params(&s.config);
    s.num_ranks = 8;
    for (int stage = 0; stage < 4; stage++) {
        s.shards_state = stage > 0, s.shards_gradients = stage > 1, s.shards_parameters = stage > 2;
        double own = stage > 0 ? params / 8 : params;
        check_sum(t, &s, "adamw_update", 1.0, 30 * own, 0.0);
        check_sum(t, &s, "fill", stage < 2 ? 1.0 : 26.0, (stage < 2 ? 4 : 8) * params, 0.0);
        check_sum(t, &s, "add_checksum", stage < 3 ? 1.0 : 0.0, stage < 3 ? 2 * params : 0.0, 0.0);
    }
}

TEST(test_bytes_in_8_bits) {
    StepShape s = shape_of("d12", 16, 0, 1);
    double N = 16 * 1024.0, C = 768.0, weights = 12 * C * C;
    s.fp8 = true;
    // Inputs C, C, C and 4 C, gradients of outputs C, 4 C, C and 3 C: 2 bytes read, 1 and 1 written.
    check_sum(t, &s, "fp8_quantize", 12 * 8.0 + 48.0, 12 * 4 * (16 * N * C + weights), 0.0);
    // GELU's output, and what cuDNN's forward writes: 4 C and C.
    check_sum(t, &s, "fp8_amax", 12 * 2.0 + 48.0, 12 * 2 * (5 * N * C + weights), 0.0);
    check_sum(t, &s, "gelu_forward", 0.0, 0.0, 0.0);
    s.attention = ATTENTION_TENSOR;
    check_sum(t, &s, "fp8_amax", 12.0 + 48.0, 12 * 2 * (4 * N * C + weights), 0.0);
    // Level 1: 11 of GELU's transposed copies are not written in the forward pass, but read and written in the
    // backward. Level 2: those of the other inputs neither. Level 3: the three inputs that multiply again are written
    // twice.
    double all = 12 * 4 * (16 * N * C + weights);
    s.recompute = 1;
    check_sum(t, &s, "fp8_quantize", 12 * 8.0 + 48.0 + 11.0, all + 11 * (3 - 1) * 4 * N * C, 0.0);
    s.recompute = 2;
    check_sum(t, &s, "fp8_quantize", 12 * 8.0 + 48.0 + 44.0, all + 11 * (3 - 1) * 7 * N * C, 0.0);
    s.recompute = 3;
    check_sum(t, &s, "fp8_quantize", 12 * 8.0 + 48.0 + 44.0, all + 11 * ((3 - 1) * 4 + (4 - 1) * 3) * N * C, 0.0);
    check_sum(t, &s, "fp8_amax", 12.0 + 48.0, 12 * 2 * (4 * N * C + weights), 0.0);
}

// The scores' gradients stay in the L2 cache where those of a chunk fit it.
TEST(test_scores_in_the_cache) {
    StepShape s = shape_of("d12", 16, 0, 1);
    double N = 16 * 1024.0, C = 768.0, rest = 12 * (8 * N * C * 2 + 8 * N * 12);
    check_sum(t, &s, "cudnn backward", 12.0, rest + 12 * 16 * 12 * 1024.0 * 1024.0 * 2, -1.0);
    s.attention_chunk = 2; // 48 MiB of 50
    check_sum(t, &s, "cudnn backward", 12.0, rest, -1.0);
}

// ---- Times ----

// No kernel is faster than the datasheet, none takes three times as long, and launches have their time.
TEST(test_hardware_limits) {
    StepGpu gpu = h100();
    for (int i = 0; i < 32; i++) {
        StepShape s = shape_of(i % 2 == 0 ? "d12" : "d48", 16, i / 2 % 4, 1);
        s.fp8 = i / 8 % 2 == 1;
        if (i / 16 == 1) { s.attention = ATTENTION_TENSOR; }
        StepRows rows = rows_of(&s);
        for (int k = 0; k < rows.count; k++) {
            const StepRow *row = &rows.rows[k];
            bool in_8_bits = s.fp8 && strncmp(row->name, "matmul lm_head", 14) != 0;
            double peak = in_8_bits ? gpu.fp8_flops_per_second : gpu.flops_per_second;
            double memory = row->bytes / gpu.bytes_per_second, math = row->flops / peak;
            double floor = memory > math ? memory : math, launches = row->calls * STEP_LAUNCH_SECONDS;
            CHECK(t, row->seconds >= floor && row->seconds >= launches, "%s: faster than the GPU", row->name);
            bool slow = strncmp(row->name, "attention", 9) == 0 || strncmp(row->name, "cudnn", 5) == 0;
            CHECK(t, row->seconds <= launches + (slow ? 16.0 : 3.0) * floor, "%s: %g s, at least %g", row->name,
                  row->seconds, floor);
        }
    }
}

TEST(test_more_sequences_take_longer) {
    StepGpu gpu = h100();
    for (int level = 0; level < 4; level++) {
        double before = 0.0;
        for (int B = 1; B <= 64; B++) {
            StepShape s = shape_of("d12", B, level, 1);
            double seconds = step_seconds(&gpu, &s);
            CHECK(t, seconds > before, "level %d: B %d is faster than B %d", level, B, B - 1);
            before = seconds;
        }
    }
}

TEST(test_levels_cost_time) {
    const char *const models[] = {"d12", "d24", "d48", "gpt3:c4096"};
    for (size_t m = 0; m < sizeof(models) / sizeof(models[0]); m++) {
        for (int B = 1; B <= 64; B *= 2) {
            double before = seconds_of(models[m], B, 0);
            for (int level = 1; level < 4; level++) {
                double seconds = seconds_of(models[m], B, level);
                CHECK(t, seconds > before, "%s, B %d: level %d costs nothing", models[m], B, level);
                before = seconds;
            }
            CHECK(t, before < 1.4 * seconds_of(models[m], B, 0), "more than one forward pass of three");
        }
    }
}

// Of 512 sequences a step, few at a time fill no GPU.
TEST(test_few_rows_are_slow) {
    CHECK(t, seconds_of("d12", 1, 0) > 1.2 * seconds_of("d12", 32, 0), "one sequence at a time costs nothing");
    for (int B = 1; B < 64; B *= 2) {
        double slack = 1.0 + 3e-2; // waves that are not quite full
        CHECK(t, seconds_of("d12", 2 * B, 0) <= slack * seconds_of("d12", B, 0), "B %d is slower", 2 * B);
    }
}

// Half the time of the blocks' multiplies is saved, and some of it lost to making 8 bits of everything.
TEST(test_8_bits_are_faster) {
    StepGpu gpu = h100();
    StepShape s = shape_of("d48", 16, 0, 32), narrow = s;
    narrow.fp8 = true;
    double ratio = step_seconds(&gpu, &s) / step_seconds(&gpu, &narrow);
    CHECK(t, ratio > 1.2 && ratio < 2.0, "8 bits: %.3f times as fast", ratio);
}

static double matmul_seconds(int64_t m, int64_t n, int64_t k, int64_t workspace_bytes) {
    StepGpu gpu = h100();
    StepMatmul p = {m, n, k, false, 2, 2, 0.0};
    return step_matmul_seconds(&gpu, &p, workspace_bytes);
}

TEST(test_multiplies) {
    const int64_t MiB = 1 << 20;
    double twice = matmul_seconds(65536, 4096, 1024, 0) / matmul_seconds(32768, 4096, 1024, 0);
    CHECK(t, twice > 1.9 && twice < 2.1, "twice the work: %g", twice);
    double one = matmul_seconds(1, 768, 768, 0), tile = matmul_seconds(128, 768, 768, 0);
    CHECK(t, one == tile, "a row costs as much as a tile");
    // 18 tiles of 128 x 256 leave most of 132 multiprocessors idle, unless the sum is split.
    double deep = matmul_seconds(768, 768, 65536, 64 * MiB), unsplit = matmul_seconds(768, 768, 65536, 0);
    CHECK(t, deep < 0.4 * unsplit, "a deep sum is not split: %g of %g", deep, unsplit);
    // The gradient of fc's weight: 9 MiB for each part of the sum.
    CHECK(t, matmul_seconds(3072, 768, 65536, 128 * MiB) < matmul_seconds(3072, 768, 65536, 32 * MiB),
          "more workspace is not faster");
}

// What options that move work between kernels change, by the arithmetic of the bytes read and written.
TEST(test_options) {
    StepGpu gpu = h100();
    StepShape s = shape_of("d12", 64, 0, 1), other = s;
    double seconds = step_seconds(&gpu, &s);
    other.gelu_fusion = 2;
    CHECK(t, step_seconds(&gpu, &other) < seconds, "GELU in the multiplies is slower");
    other = s, other.head_overlap = true;
    CHECK(t, step_seconds(&gpu, &other) < seconds, "the cross entropy beside multiplies is slower");
    other = s, other.head_rows = 16384;
    CHECK(t, step_seconds(&gpu, &other) < seconds, "more rows of logits are slower");
    other = s, other.attention = ATTENTION_TENSOR;
    CHECK(t, step_seconds(&gpu, &other) > seconds, "our attention is faster than cuDNN's");
}

// Every GPU with a short name has all figures, and predicts something.
TEST(test_gpus) {
    int named = 0;
    for (size_t i = 0; i < NUM_GPU_PEAKS; i++) {
        const GpuPeak *peak = &gpu_peaks[i];
        if (peak->option[0] == '\0') { continue; }
        named++;
        CHECK(t, gpu_peak_of_option(peak->option) == peak, "%s: another row", peak->option);
        CHECK(t, strstr(GPU_OPTION_NAMES " ", peak->option) != NULL, "%s: not among the names", peak->option);
        CHECK(t,
              peak->gigabytes_per_second > 0 && peak->link_gigabytes_per_second > 0 && peak->multiprocessors > 0 &&
                  peak->gib > 0 && peak->l2_mib > 0,
              "%s: a figure is missing", peak->option);
        StepGpu gpu = step_gpu(peak, GPU_BF16, true);
        StepShape s = shape_of("d12", 16, 0, 1);
        double flops = 16384.0 * 6.0 * (12.0 * 12 * 768 * 768 + V * 768.0 + 12 * 768 * 1024.0);
        double mfu = flops / gpu.flops_per_second / step_seconds(&gpu, &s);
        CHECK(t, mfu > 0.2 && mfu < STEP_MATMUL, "%s: MFU %.3f", peak->option, mfu);
    }
    CHECK(t, named >= 5 && gpu_peak_of_option("") == NULL && gpu_peak_of_option("h1000") == NULL, "%d names", named);
    CHECK(t, gpu_peak_of_option("A40") == NULL, "a card without all figures");
}

// As devices report them, and as people type them.
TEST(test_names_of_gpus) {
    static const struct {
        const char *name, *option;
    } cases[] = {
        {"NVIDIA H200", "h200"},
        {"NVIDIA A100-SXM4-40GB", "a100-40gb"},
        {"A100-PCIE-40GB", "a100-40gb"},
        {"a100-40", "a100-40gb"},
        {"A100 40GB", "a100-40gb"},
        {"NVIDIA A100-SXM4-80GB", "a100"},
        {"NVIDIA A100 80GB PCIe", "a100"},
        {"a100-80gb", "a100"},
        {"A100", "a100"},
        {"H100", "h100"},
        {"nvidia h100 80gb hbm3", "h100"},
        {"NVIDIA H100 PCIe", "h100-pcie"},
        {"RTX 4090", "4090"},
        {"rtx4090", "4090"},
        {"NVIDIA GeForce RTX 4090", "4090"},
        {"L40S", "l40s"},
        {"A6000", "a6000"},
        {"NVIDIA RTX A6000", "a6000"},
    };
    static const char *const unknown[] = {"RTX", "-", "*", "NVIDIA", "4090 Ti", "A10G", "RTX 4090 Laptop GPU", "a10*"};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const GpuPeak *peak = gpu_peak_of_option(cases[i].name);
        CHECK(t, peak != NULL && strcmp(peak->option, cases[i].option) == 0, "%s is %s, expected %s", cases[i].name,
              peak != NULL ? peak->option : "unknown", cases[i].option);
    }
    for (size_t i = 0; i < sizeof(unknown) / sizeof(unknown[0]); i++) {
        CHECK(t, gpu_peak_of_option(unknown[i]) == NULL, "%s is known", unknown[i]);
    }
    StepGpu small = step_gpu(gpu_peak_of_option("NVIDIA A100-SXM4-40GB"), GPU_BF16, true);
    CHECK(t, small.bytes_per_second == 1.555e12 && gpu_peak_of_option("a100-40gb")->gib == 39, "an A100 of 80 GB");
}

// A network between machines does not make GPUs without NVLink faster than in one.
TEST(test_links) {
    static const struct {
        const char *name;
        double inside, between;
    } cases[] = {{"h100", 360e9, 50e9}, {"h100-pcie", 51.2e9, 50e9}, {"4090", 25.6e9, 25.6e9}, {"l4", 25.6e9, 25.6e9}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const GpuPeak *peak = gpu_peak_of_option(cases[i].name);
        double inside = step_gpu(peak, GPU_BF16, true).link_bytes_per_second;
        double between = step_gpu(peak, GPU_BF16, false).link_bytes_per_second;
        CHECK(t, near(inside, cases[i].inside) && near(between, cases[i].between), "%s: %g and %g bytes a second",
              cases[i].name, inside, between);
    }
}
