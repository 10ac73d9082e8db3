// Arrays in pieces: a range of the initial parameters, and checkpoints written and read in pieces, by one process and
// by several: the bits of the whole, wherever it is cut. (Ranges of a model file: fuzz_model_bin.c.)
#include "dev/test/files/checkpoint_group.h"
#include "dev/test/files/whole_model.h"
#include "llmc/files/model_file.h"
#include "dev/test/refused.h"

static Run run;

static ModelConfig odd_config(void) {
    ModelConfig config =
        GPT2_CONFIG(5, 11, 128, 3, 1, 7); // odd sizes, so that pairs of random numbers straddle every border
    return config;
}

static float *new_floats(int64_t n) { return (float *)malloc((size_t)n * sizeof(float)); }

static bool same_bits(const float *a, const float *b, int64_t n) {
    return memcmp(a, b, (size_t)n * sizeof(float)) == 0;
}

// ---- Ranges ----

// One range into memory with marks before and behind.
static void check_init_range(Test *t, const ModelConfig *config, const float *whole, int64_t first, int64_t n) {
    static const float mark = 123456.0f;
    float *out = new_floats(n + 2);
    for (int64_t i = 0; i < n + 2; i++) { out[i] = mark; }
    param_init_range(out + 1, config, 42, first, n);
    CHECK(t, same_bits(out + 1, whole + first, n), "elements %lld to %lld", (long long)first, (long long)(first + n));
    CHECK(t, out[0] == mark && out[n + 1] == mark, "written beside %lld to %lld", (long long)first,
          (long long)(first + n));
    free(out);
}

// Cuts in two, and elements alone.
TEST(test_init_range) {
    ModelConfig config = odd_config();
    int64_t n = model_num_params(&config);
    float *whole = new_floats(n);
    param_init_range(whole, &config, 42, 0, n);
    for (int64_t cut = 0; cut <= n; cut += 1 + n / 150) {
        check_init_range(t, &config, whole, 0, cut);
        check_init_range(t, &config, whole, cut, n - cut);
        check_init_range(t, &config, whole, cut, min_i64(1, n - cut));
    }
    for (int i = 0; i < NUM_PARAM_TENSORS; i++) { // the values, drawn one by one
        const ParamSpec *spec = &param_specs[i];
        for (int64_t j = 0; j < param_size(&config, i); j++) {
            float want = spec->init == INIT_ONE ? 1.0f : 0.0f, pair[2];
            rand_normal_pair(42, RAND_INIT + (uint64_t)i, (uint64_t)j / 2, pair);
            if (spec->init == INIT_NORMAL) { want = 0.02f * pair[j % 2]; }
            if (spec->init == INIT_RESIDUAL) { want = 0.02f / sqrtf(6.0f) * pair[j % 2]; }
            if (i == PARAM_wte && j >= 11 * 7) { want = 0.0f; }
            float got = whole[param_offset(&config, i) + j];
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

TEST(test_fingerprint) {
    ModelConfig config = GPT2_CONFIG(64, 500, 512, 2, 2, 64); // 0.5 MB: not all of it is looked at
    int64_t n = model_num_params(&config);
    float *params = new_floats(n);
    param_init_range(params, &config, 7, 0, n);
    const char *path = test_path(t, "m.bin"), *copy = test_path(t, "copy.bin");
    OK(t, model_bin_write(path, &config, params, &error));
    OK(t, model_bin_write(copy, &config, params, &error));
    uint64_t hash = fingerprint(t, path);
    CHECK(t, fingerprint(t, copy) == hash, "a copy is the same model");
    const long places[] = {1024, DATA_HEADER_BYTES + 4 * (long)n - 1}; // the first and the last parameter
    FOR_EACH(i, places) {
        temp_flip(copy, places[i]);
        CHECK(t, fingerprint(t, copy) != hash, "byte %ld does not count", places[i]);
        temp_flip(copy, places[i]);
    }
    CHECK(t, fingerprint(t, "d12") != fingerprint(t, "d24"), "d12 is not d24");
    free(params);
}

// ---- Checkpoints ----

// Both files of step 1 have the same bytes in two folders.
static void compare_checkpoints(Test *t, const char *a, const char *b, const char *what) {
    for (int i = 0; i < 2; i++) {
        const char *name = i == 0 ? "model_00000001.bin" : "state_00000001.bin";
        const char *paths[2] = {format("%s/%s", a, name), format("%s/%s", b, name)};
        size_t sizes[2];
        uint8_t *x = temp_read(paths[0], &sizes[0]), *y = temp_read(paths[1], &sizes[1]);
        CHECK(t, sizes[0] == sizes[1] && memcmp(x, y, sizes[0]) == 0, "%s: %s has other bytes", what, paths[1]);
        free(x), free(y);
    }
}

TEST(test_write_by_several_processes) {
    static const ModelConfig configs[] = {GPT2_CONFIG(2, 3, 4, 1, 1, 2), GPT2_CONFIG(64, 500, 512, 2, 2, 64),
                                          GPT2_CONFIG(5, 11, 128, 3, 1, 7)};
    FOR_EACH(c, configs) {
        const char *alone = test_new_folder(t);
        run_init(&run, configs[c]);
        if (c == 2) { run.optimizer = OPTIMIZER_MUON; }
        OK(t, run_save(&run, alone, 1, 4, &error));
        for (int size = 1; size <= 5; size++) {
            const char *together = test_new_folder(t);
            const char *what = format("%d processes", size);
            CHECK(t, group_save(&run, together, size, 1, 3, NULL, &error), "%s: %s", what, error.text);
            CHECK(t, run_load(&run, together, 1, &error) == 3, "%s: %s", what, error.text);
            CHECK(t, group_save(&run, together, size, 1, 4, NULL, &error), "%s, again: %s", what, error.text);
            CHECK(t, count_files(together) == 2, "%s: %d files", what, count_files(together));
            compare_checkpoints(t, alone, together, what);
        }
    }
}

// Arrays in one piece, over what Muon's second moment leaves out. (As a CPU trainer writes and reads them:
// test_resume.py, test_formats.py.)
TEST(test_one_piece) {
    static CheckpointWriter w;
    const char *pieces = test_new_folder(t);
    run_init(&run, odd_config());
    run.optimizer = OPTIMIZER_MUON;
    int64_t n = model_num_params(&run.config);
    OK(t, run_save(&run, pieces, 1, 5, &error));
    OK(t, run_write_begin(&run, &w, test_folder(t), 1, true, &error));
    for (int a = 0; a < CHECKPOINT_ARRAYS; a++) {
        int64_t count = 0;
        for (int64_t i = 0; i < n; i++) {
            if (run_has(&run, a, i)) { run.arrays[a][count++] = run.arrays[a][i]; }
        }
        OK(t, checkpoint_write(&w, a, 0, run.arrays[a], n, &error));
    }
    OK(t, run_write_end(&w, &error));
    compare_checkpoints(t, pieces, test_folder(t), "one piece");
}

// What a file holds in the padding of wte is read as zeros, and is no damage.
TEST(test_padding_is_read_as_zeros) {
    run_init(&run, odd_config());
    run_fill(&run, 5);
    for (int i = 11 * 7; i < 128 * 7; i++) { run.arrays[CHECKPOINT_PARAMS][i] = 3.0f; }
    OK(t, run_write(&run, test_folder(t), 1, &error));
    OK(t, run_load(&run, test_folder(t), 1, &error) == 5);
}

// What one process reads twice, or nobody reads, does not pass for a whole checkpoint.
TEST(test_pieces_missing_or_twice) {
    static CheckpointReader r;
    run_init(&run, odd_config());
    int64_t n = model_num_params(&run.config);
    OK(t, run_save(&run, test_folder(t), 1, 5, &error));
    for (int a = 0; a < CHECKPOINT_ARRAYS; a++) {
        for (int twice = 0; twice < 2; twice++) {
            OK(t, run_read_begin(&run, &r, test_folder(t), 1, &error));
            for (int b = 0; b < CHECKPOINT_ARRAYS; b++) {
                int64_t count = a == b && !twice ? n - 1 : n;
                OK(t, checkpoint_read(&r, b, 0, run.arrays[b], count, &error));
            }
            if (twice) { OK(t, checkpoint_read(&r, a, 3, run.arrays[a] + 3, 1, &error)); }
            FAILS(t, run_read_end(&run, &r, 1, &error), "is damaged: its checksum does not match");
        }
    }
    OK(t, run_read_begin(&run, &r, test_folder(t), 1, &error));
    FAILS(t, checkpoint_read(&r, 0, n - 1, run.arrays[0], 2, &error), "do not exist"); // behind the end
    run.config.num_heads = 7;
    REFUSED(t, run_read_begin(&run, &r, test_folder(t), 1, &error), test_path(t, "model_00000001.bin"),
            ": holds a model of another shape");
    checkpoint_read_close(&r);
}

// A process cannot begin to write step 1, and says so.
static void check_cannot_begin(Test *t, const Run *run, bool is_leader, const char *message) {
    static CheckpointWriter w;
    FAILS(t, run_write_begin(run, &w, test_folder(t), 1, is_leader, &error), message);
}

// Followers that disagree with the leader, or come when it is not there, and leaders with something that is not stored.
TEST(test_cannot_begin) {
    static Run other;
    static CheckpointWriter leader;
    run_init(&run, odd_config());
    run_fill(&run, 1);
    check_cannot_begin(t, &run, false, "model_00000001.bin.tmp: cannot open: No such file or directory");
    OK(t, run_write_begin(&run, &leader, test_folder(t), 1, true, &error));
    other = run, other.config.max_seq_len++;
    check_cannot_begin(t, &other, false, "model_00000001.bin.tmp: does not have the ");
    other = run, state_add(&other.header, "more facts\n");
    check_cannot_begin(t, &other, false, "state_00000001.bin.tmp: does not have the ");
    CHECK(t, count_files(test_folder(t)) == 2, "a follower removes nothing");
    checkpoint_write_close(&leader);
    CHECK(t, count_files(test_folder(t)) == 0, "the leader does");
    other = run, other.header.length = -1;
    check_cannot_begin(t, &other, true, ": the facts or the 4 sections do not fit into a state file");
    CHECK(t, count_files(test_folder(t)) == 0, "something is left");
}
