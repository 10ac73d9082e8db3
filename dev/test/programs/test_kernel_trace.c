// What is made of a list of kernels and their times: names, steps, sums, gaps and overlap.
#include "dev/bench/kernel_trace.h"
#include "dev/test/test.h"

static TraceRecord at(const char *name, uint64_t start, uint64_t end, uint32_t stream) {
    TraceRecord record;
    memset(&record, 0, sizeof(record));
    snprintf(record.name, sizeof(record.name), "%s", name);
    record.start = start, record.end = end, record.stream = stream;
    return record;
}

// Step number i of 1000 ns: begin 0..100, gap of 50, work 150..400 beside copy 300..500 on another stream, gap of 100,
// work 600..900, gap of 100 until the next one begins.
static void add_step(TraceRecord *records, uint64_t i) {
    records[0] = at("work", 1000 * i + 600, 1000 * i + 900, 1); // not in the order of time, as they arrive
    records[1] = at("begin", 1000 * i, 1000 * i + 100, 1);
    records[2] = at("copy", 1000 * i + 300, 1000 * i + 500, 2);
    records[3] = at("work", 1000 * i + 150, 1000 * i + 400, 1);
}

static const TraceKernel *find(const TraceSummary *s, const char *name) {
    for (int64_t i = 0; i < s->num_kernels; i++) {
        if (strcmp(s->kernels[i].name, name) == 0) { return &s->kernels[i]; }
    }
    return NULL;
}

static void check_row(Test *t, const TraceSummary *s, const char *name, int64_t calls, uint64_t ns, uint64_t idle_ns) {
    const TraceKernel *k = find(s, name);
    if (!CHECK(t, k != NULL, "no row for %s", name)) { return; }
    CHECK(t, k->calls == calls && k->ns == ns && k->idle_ns == idle_ns, "%s: %lld calls, %llu ns, idle %llu", name,
          (long long)k->calls, (unsigned long long)k->ns, (unsigned long long)k->idle_ns);
}

TEST(test_sums) {
    Error error;
    TraceSummary s;
    TraceRecord records[5 * 4];
    for (uint64_t i = 0; i < 5; i++) { add_step(records + 4 * i, 4 - i); } // the last step first
    if (!CHECK(t, trace_summarise(&s, records, 20, "begin", 2, &error), "%s", error.text)) { return; }
    CHECK(t, s.steps == 2 && s.ns == 2000, "%lld steps, %llu ns", (long long)s.steps, (unsigned long long)s.ns);
    CHECK(t, s.busy_ns == 2 * 750 && s.overlap_ns == 2 * 100, "busy %llu, overlap %llu", (unsigned long long)s.busy_ns,
          (unsigned long long)s.overlap_ns);
    CHECK(t, s.gaps == 6 && s.median_gap_ns == 100 && s.largest_gap_ns == 100, "%lld gaps, median %llu, largest %llu",
          (long long)s.gaps, (unsigned long long)s.median_gap_ns, (unsigned long long)s.largest_gap_ns);
    CHECK(t, s.num_kernels == 3 && strcmp(s.kernels[0].name, "work") == 0, "%lld rows, first %s",
          (long long)s.num_kernels, s.kernels[0].name);
    check_row(t, &s, "work", 4, 2 * 550, 2 * 150);
    check_row(t, &s, "copy", 2, 2 * 200, 0);
    check_row(t, &s, "begin", 2, 2 * 100, 2 * 100); // the gap before the next step's
    trace_free(&s);
}

// A kernel that runs through others' starts and ends hides their gaps; equal starts are no gap either.
TEST(test_one_covers_the_rest) {
    Error error;
    TraceSummary s;
    TraceRecord records[] = {at("m", 0, 10, 1), at("long", 0, 900, 2), at("a", 100, 200, 1), at("a", 300, 400, 1),
                             at("m", 1000, 1010, 1)};
    if (!CHECK(t, trace_summarise(&s, records, 5, "m", 0, &error), "%s", error.text)) { return; }
    CHECK(t, s.gaps == 1 && s.largest_gap_ns == 100 && s.busy_ns == 900, "%lld gaps, busy %llu", (long long)s.gaps,
          (unsigned long long)s.busy_ns);
    CHECK(t, s.overlap_ns == 210, "overlap %llu", (unsigned long long)s.overlap_ns);
    check_row(t, &s, "a", 2, 200, 0);
    trace_free(&s);
}

TEST(test_too_few_steps) {
    Error error;
    TraceSummary s;
    TraceRecord records[3 * 4];
    for (uint64_t i = 0; i < 3; i++) { add_step(records + 4 * i, i); }
    CHECK(t, !trace_summarise(&s, records, 12, "begin", 2, &error), "two steps skipped, the third is unfinished");
    CHECK(t, strstr(error.text, "12 kernels and copies with fewer than 4 times begin") != NULL, "%s", error.text);
    CHECK(t, !trace_summarise(&s, records, 12, "no such kernel", 0, &error), "no mark");
    CHECK(t, !trace_summarise(&s, records, 0, "begin", 0, &error), "no records");
    CHECK(t, trace_summarise(&s, records, 12, "begin", 1, &error), "%s", error.text);
    CHECK(t, s.steps == 1 && s.kernels != NULL, "%lld steps", (long long)s.steps);
    trace_free(&s);
}

TEST(test_names) {
    static const char *const names[][2] = {
        {"gelu_forward_kernel(__nv_bfloat16*, __nv_bfloat16 const*, long)", "gelu_forward"},
        {"void attention_forward_mma_kernel<64>(float*, int (*)(int), int)", "attention_forward_mma"},
        {"void (anonymous namespace)::fill<float, 4>(float*)", "(anonymous namespace)::fill"},
        {"nvjet_tst_128x256_64x4_2x1_v_bz_coopA_bias_TNN", "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_bias_TNN"},
        {"void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_256x128_nn_align8>(cutlass_80::Params)",
         "cutlass_80_tensorop_bf16_s16816gemm_256x128_nn_align8"},
        {"a,b\"c", "a b c"},
        {"_kernel", "_kernel"},
        {"", ""},
    };
    char name[TRACE_NAME_BYTES], longer[3 * TRACE_NAME_BYTES];
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        trace_short_name(name, names[i][0]);
        CHECK(t, strcmp(name, names[i][1]) == 0, "'%s' becomes '%s'", names[i][0], name);
    }
    memset(longer, 'x', sizeof(longer));
    longer[sizeof(longer) - 1] = '\0';
    trace_short_name(name, longer);
    CHECK(t, strlen(name) == TRACE_NAME_BYTES - 1, "%zu bytes", strlen(name));
}

TEST(test_table) {
    Error error;
    TraceSummary s;
    TraceRecord records[3 * 4];
    char text[1000] = "";
    for (uint64_t i = 0; i < 3; i++) { add_step(records + 4 * i, i); }
    if (!CHECK(t, trace_summarise(&s, records, 12, "begin", 0, &error), "%s", error.text)) { return; }
    FILE *file = tmpfile();
    if (!CHECK(t, file != NULL, "no temporary file")) { return; }
    trace_write(file, &s);
    rewind(file);
    text[fread(text, 1, sizeof(text) - 1, file)] = '\0';
    fclose(file);
    trace_free(&s);
    const char *want = "kernel,calls,us_per_call,ms,percent,idle_before_us\n"
                       "(step),1,1.000,0.001000,100.00,0.250\n"
                       "(gap: median and largest),3.00,0.100,0.000250,25.00,0.100\n"
                       "(two at once),0,0,0.000100,10.00,0\n"
                       "work,2.00,0.275,0.000550,55.00,0.150\n"
                       "copy,1.00,0.200,0.000200,20.00,0.000\n"
                       "begin,1.00,0.100,0.000100,10.00,0.100\n";
    CHECK(t, strcmp(text, want) == 0, "got\n%s", text);
}
