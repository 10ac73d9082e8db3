// Arrays in pieces: a range of the initial parameters, and checkpoints written and read in pieces, by one writer and by
// several: the bits of the whole, wherever it is cut. (Ranges of a model file: fuzz_model_bin.c.)
#include "dev/test/files/checkpoint_run.h"
#include "dev/test/files/whole_model.h"
#include "dev/test/refused.h"
#include "dev/test/temp_dir.h"
#include "llmc/files/model_file.h"

static Run run;

// Odd sizes, so that pairs of random numbers straddle every border.
static const ModelConfig odd = GPT2_CONFIG(5, 11, 128, 3, 1, 7);

// ---- Ranges ----

// One range of the parameters in memory with marks before and behind.
static void check_init_range(Test *t, const float *whole, int64_t first, int64_t n) {
    static const float mark = 123456.0f;
    float *out = (float *)malloc((size_t)(n + 2) * sizeof(float));
    out[0] = out[n + 1] = mark;
    param_init_range(out + 1, &odd, 42, first, n);
    bool same = memcmp(out + 1, whole + first, (size_t)n * sizeof(float)) == 0;
    CHECK(t, same && out[0] == mark && out[n + 1] == mark, "elements %lld to %lld, or beside them", (long long)first,
          (long long)(first + n));
    free(out);
}

// Cuts in two, elements alone, and the values, drawn one by one.
TEST(test_init_range) {
    int64_t n = model_num_params(&odd);
    float *whole = (float *)malloc((size_t)n * sizeof(float));
    param_init_range(whole, &odd, 42, 0, n);
    for (int64_t cut = 0; cut <= n; cut += 1 + n / 150) {
        check_init_range(t, whole, 0, cut);
        check_init_range(t, whole, cut, n - cut);
        check_init_range(t, whole, cut, min_i64(1, n - cut));
    }
    for (int i = 0; i < NUM_PARAM_TENSORS; i++) {
        const ParamSpec *spec = &param_specs[i];
        for (int64_t j = 0; j < param_size(&odd, i); j++) {
            float want = spec->init == INIT_ONE ? 1.0f : 0.0f, pair[2];
            rand_normal_pair(42, RAND_INIT + (uint64_t)i, (uint64_t)j / 2, pair);
            if (spec->init == INIT_NORMAL) { want = 0.02f * pair[j % 2]; }
            if (spec->init == INIT_RESIDUAL) { want = 0.02f / sqrtf(6.0f) * pair[j % 2]; }
            if (i == PARAM_wte && j >= 11 * 7) { want = 0.0f; }
            float got = whole[param_offset(&odd, i) + j];
            CHECK(t, got == want, "%s[%lld]: %g, not %g", spec->name, (long long)j, (double)got, (double)want);
        }
    }
    free(whole);
}

static uint64_t fingerprint(Test *t, const char *init) {
    static ModelFile file;
    uint64_t hash = 0;
    OK(t, model_file_open(&file, init, &error) && model_file_fingerprint(&file, &hash, &error));
    return hash;
}

// A model of 0.5 MB, of which not all is looked at: the first and the last parameter are.
TEST(test_fingerprint) {
    ModelConfig config = GPT2_CONFIG(64, 500, 512, 2, 2, 64);
    int64_t n = model_num_params(&config);
    float *params = (float *)calloc((size_t)n, sizeof(float));
    const char *path = test_path(t, "m.bin");
    OK(t, model_bin_write(path, &config, params, &error));
    uint64_t hash = fingerprint(t, path);
    const long places[] = {DATA_HEADER_BYTES, DATA_HEADER_BYTES + 4 * (long)n - 4};
    FOR_EACH(i, places) {
        temp_flip(path, places[i]);
        CHECK(t, fingerprint(t, path) != hash, "byte %ld does not count", places[i]);
        temp_flip(path, places[i]);
    }
    CHECK(t, fingerprint(t, path) == hash && fingerprint(t, "d12") != fingerprint(t, "d24"), "d12 is not d24");
    free(params);
}

// ---- Checkpoints ----

// Both files of step 1 have the same bytes in two folders.
static void compare_checkpoints(Test *t, const char *a, const char *b, const char *what) {
    static const char *const names[] = {"model_00000001.bin", "state_00000001.bin"};
    FOR_EACH(i, names) {
        size_t sizes[2];
        uint8_t *x = temp_read(format("%s/%s", a, names[i]), &sizes[0]);
        uint8_t *y = temp_read(format("%s/%s", b, names[i]), &sizes[1]);
        CHECK(t, sizes[0] == sizes[1] && memcmp(x, y, sizes[0]) == 0, "%s: %s has other bytes", what, names[i]);
        free(x), free(y);
    }
}

TEST(test_several_writers) {
    static const ModelConfig configs[] = {GPT2_CONFIG(2, 3, 4, 1, 1, 2), GPT2_CONFIG(64, 500, 512, 2, 2, 64),
                                          GPT2_CONFIG(5, 11, 128, 3, 1, 7)};
    FOR_EACH(c, configs) {
        const char *alone = test_new_folder(t);
        run_init(&run, configs[c]);
        run.optimizer = c == 2 ? OPTIMIZER_MUON : OPTIMIZER_ADAMW;
        OK(t, run_save(&run, alone, 1, 4, &error));
        for (int size = 2; size <= RUN_WRITERS; size++) {
            const char *together = test_new_folder(t), *what = format("%d writers", size);
            run_fill(&run, 4);
            OK(t, run_write(&run, together, size, 1, &error) && run_load(&run, together, 1, &error) == 4);
            CHECK(t, count_files(together) == 2, "%s: %d files", what, count_files(together));
            compare_checkpoints(t, alone, together, what);
        }
    }
}

// Arrays in one piece, over what Muon's second moment leaves out. What a file holds in the padding of wte is read as
// zeros, and is no damage.
TEST(test_one_piece) {
    static CheckpointWriter w;
    const char *pieces = test_new_folder(t);
    run_init(&run, odd);
    run.optimizer = OPTIMIZER_MUON;
    int64_t n = model_num_params(&odd);
    run_fill(&run, 5);
    for (int i = 11 * 7; i < 128 * 7; i++) { run.arrays[CHECKPOINT_PARAMS][i] = 3.0f; }
    OK(t, run_write(&run, pieces, 1, 1, &error));
    OK(t, run_write_begin(&run, &w, test_folder(t), 1, true, &error));
    for (int a = 0; a < CHECKPOINT_ARRAYS; a++) {
        int64_t count = 0;
        for (int64_t i = 0; i < n; i++) {
            if (run_has(&run, a, i)) { run.arrays[a][count++] = run.arrays[a][i]; }
        }
        OK(t, checkpoint_write(&w, a, 0, run.arrays[a], n, &error));
    }
    OK(t, checkpoint_write_flush(&w, &error) && checkpoint_write_commit(&w, &w.sums, &error));
    compare_checkpoints(t, pieces, test_folder(t), "one piece");
    OK(t, run_load(&run, pieces, 1, &error) == 5);
}

// What one process reads twice, or nobody reads, does not pass for a whole checkpoint.
TEST(test_pieces_missing_or_twice) {
    static CheckpointReader r;
    run_init(&run, odd);
    int64_t n = model_num_params(&odd);
    OK(t, run_save(&run, test_folder(t), 1, 5, &error));
    for (int i = 0; i < 2 * CHECKPOINT_ARRAYS; i++) {
        int a = i / 2;
        bool twice = i % 2 == 1;
        OK(t, run_read_begin(&run, &r, test_folder(t), 1, &error));
        for (int b = 0; b < CHECKPOINT_ARRAYS; b++) {
            OK(t, checkpoint_read(&r, b, 0, run.arrays[b], a == b && !twice ? n - 1 : n, &error));
        }
        if (twice) { OK(t, checkpoint_read(&r, a, 3, run.arrays[a] + 3, 1, &error)); }
        FAILS(t, run_read_end(&run, &r, 1, &error), "is damaged: its checksum does not match");
    }
    OK(t, run_read_begin(&run, &r, test_folder(t), 1, &error));
    FAILS(t, checkpoint_read(&r, 0, n - 1, run.arrays[0], 2, &error), "do not exist"); // behind the end
    run.config.num_heads = 7;
    REFUSED(t, run_read_begin(&run, &r, test_folder(t), 1, &error), test_path(t, "model_00000001.bin"),
            ": holds a model of another shape");
    checkpoint_read_close(&r);
}

// Followers that disagree with the leader, or come when it is not there, and leaders with something that is not stored.
TEST(test_cannot_begin) {
    static Run other;
    static CheckpointWriter w, leader;
    const char *in = test_folder(t);
    run_init(&run, odd);
    run_fill(&run, 1);
    FAILS(t, run_write_begin(&run, &w, in, 1, false, &error), "/model_00000001.bin.tmp: cannot open: No such file");
    OK(t, run_write_begin(&run, &leader, in, 1, true, &error));
    other = run, other.config.max_seq_len++;
    FAILS(t, run_write_begin(&other, &w, in, 1, false, &error), "model_00000001.bin.tmp: does not have the ");
    other = run, state_add(&other.header, "more facts\n");
    FAILS(t, run_write_begin(&other, &w, in, 1, false, &error), "state_00000001.bin.tmp: does not have the ");
    CHECK(t, count_files(in) == 2, "a follower removes nothing");
    checkpoint_write_close(&leader);
    CHECK(t, count_files(in) == 0, "the leader does");
    other = run, other.header.length = -1;
    FAILS(t, run_write_begin(&other, &w, in, 1, true, &error), ": the facts or the 4 sections do not fit into a state");
    CHECK(t, count_files(in) == 0, "something is left");
}
