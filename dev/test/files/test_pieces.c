// Arrays in pieces: a range of the initial parameters, a range of a model file, and checkpoints written and read in
// pieces, by one process and by several: the bits of the whole, wherever it is cut.
#include "dev/test/files/checkpoint_group.h"
#include "dev/test/files/whole_model.h"
#include "llmc/files/model_file.h"
#include "dev/test/refused.h"

static GPT2Config odd_config(void) {
    GPT2Config config = {5, 11, 128, 3, 1, 7}; // odd sizes, so that pairs of random numbers straddle every border
    return config;
}

static float *new_floats(int64_t n) { return (float *)malloc((size_t)n * sizeof(float)); }

static bool same_bits(const float *a, const float *b, int64_t n) {
    return memcmp(a, b, (size_t)n * sizeof(float)) == 0;
}

// ---- Ranges ----

// Something that gives elements first .. first + n - 1 of a model.
typedef bool (*ReadRange)(const void *source, int64_t first, int64_t n, float *out, Error *error);

// One range into memory with marks before and behind.
static void check_range(Test *t, ReadRange read, const void *source, const float *whole, int64_t first, int64_t n) {
    static const float mark = 123456.0f;
    Error error = {""};
    float *out = new_floats(n + 2);
    for (int64_t i = 0; i < n + 2; i++) { out[i] = mark; }
    CHECK(t, read(source, first, n, out + 1, &error), "%s", error.text);
    CHECK(t, same_bits(out + 1, whole + first, n), "elements %lld to %lld", (long long)first, (long long)(first + n));
    CHECK(t, out[0] == mark && out[n + 1] == mark, "written beside elements %lld to %lld", (long long)first,
          (long long)(first + n));
    free(out);
}

// Every cut in two, every element alone where there are few, and ranges at random.
static void check_ranges(Test *t, ReadRange read, const void *source, const float *whole, int64_t total, int draws) {
    for (int64_t cut = 0; cut <= total && total < 6000; cut += 1 + total / 150) {
        check_range(t, read, source, whole, 0, cut);
        check_range(t, read, source, whole, cut, total - cut);
        check_range(t, read, source, whole, cut, min_i64(1, total - cut));
    }
    for (int i = 0; i < draws && t->failures == 0; i++) {
        int64_t first = (int64_t)(rand_u64(1, 1, (uint64_t)i) % (uint64_t)(total + 1));
        int64_t longest = rand_u64(1, 3, (uint64_t)i) % 2 == 0 ? total - first : min_i64(total - first, 100);
        check_range(t, read, source, whole, first, (int64_t)(rand_u64(1, 2, (uint64_t)i) % (uint64_t)(longest + 1)));
    }
}

static bool init_range(const void *source, int64_t first, int64_t n, float *out, Error *error) {
    (void)error;
    gpt2_init_range(out, (const GPT2Config *)source, 42, first, n);
    return true;
}

TEST(test_init_range) {
    GPT2Config config = odd_config();
    int64_t n = gpt2_num_params(&config);
    float *whole = new_floats(n);
    gpt2_init_params(whole, &config, 42);
    check_ranges(t, init_range, &config, whole, n, 300);
    for (int i = 0; i < NUM_PARAM_TENSORS; i++) { // the values, drawn one by one
        const GPT2ParamSpec *spec = &gpt2_param_specs[i];
        for (int64_t j = 0; j < gpt2_param_size(&config, i); j++) {
            float want = spec->init == INIT_ONE ? 1.0f : 0.0f, pair[2];
            rand_normal_pair(42, RAND_INIT + (uint64_t)i, (uint64_t)j / 2, pair);
            if (spec->init == INIT_NORMAL) { want = 0.02f * pair[j % 2]; }
            if (spec->init == INIT_RESIDUAL) { want = 0.02f / sqrtf(6.0f) * pair[j % 2]; }
            if (i == PARAM_wte && j >= 11 * 7) { want = 0.0f; }
            float got = whole[gpt2_param_offset(&config, i) + j];
            CHECK(t, got == want, "%s[%lld]: %g, not %g", spec->name, (long long)j, (double)got, (double)want);
        }
    }
    free(whole);
}

static bool file_range(const void *source, int64_t first, int64_t n, float *out, Error *error) {
    return model_file_read_range((const ModelFile *)source, first, n, out, error);
}

static void check_file_ranges(Test *t, const char *init, const GPT2Config *config, const float *whole, int draws) {
    static ModelFile file;
    Error error = {""};
    int64_t n = gpt2_num_params(config);
    if (!CHECK(t, model_file_open(&file, init, &error), "%s", error.text)) { return; }
    CHECK(t, model_configs_equal(&file.config, config), "%s: another config", init);
    check_ranges(t, file_range, &file, whole, n, draws);
    float one;
    CHECK(t, model_file_read_range(&file, n, 0, &one, &error), "nothing, at the end: %s", error.text);
    CHECK(t, !model_file_read_range(&file, n, 1, &one, &error), "an element behind the last");
    CHECK(t, strstr(error.text, "do not exist") != NULL, "%s", error.text);
    CHECK(t, !model_file_read_range(&file, -1, 1, &one, &error), "an element before the first");
}

TEST(test_file_ranges) {
    static const GPT2Config configs[] = {{5, 11, 128, 3, 1, 7}, {4, 129, 256, 1, 3, 600}};
    for (int i = 0; i < 2; i++) {
        TempDir dir = temp_dir_make();
        Error error;
        int64_t n = gpt2_num_params(&configs[i]);
        float *params = new_floats(n);
        gpt2_init_params(params, &configs[i], 7);
        const char *bin = temp_path(&dir, "m.bin");
        CHECK(t, model_bin_write(bin, &configs[i], params, &error), "%s", error.text);
        check_file_ranges(t, bin, &configs[i], params, i == 0 ? 200 : 20);
        free(params);
        temp_dir_remove(&dir);
    }
}

// A NaN is refused by the range that holds it, and by no other.
TEST(test_range_not_finite) {
    static ModelFile file;
    Error error;
    GPT2Config config = odd_config();
    int64_t n = gpt2_num_params(&config), bad = gpt2_param_offset(&config, PARAM_fcw) + 300;
    float *params = new_floats(n), *out = new_floats(n);
    gpt2_init_params(params, &config, 7);
    params[bad] = NAN;
    const char *bin = test_path(t, "m.bin");
    CHECK(t, model_bin_write(bin, &config, params, &error), "%s", error.text);
    CHECK(t, model_file_open(&file, bin, &error), "%s", error.text);
    CHECK(t, model_file_read_range(&file, 0, bad, out, &error), "%s", error.text);
    CHECK(t, model_file_read_range(&file, bad + 1, n - bad - 1, out, &error), "%s", error.text);
    CHECK_REFUSED(t, model_file_read_range(&file, bad, 1, out, &error), &error, file.path,
                  ": tensor fcw holds nan at element 300 of (3, 28, 7); the file is damaged or its training diverged");
    free(params), free(out);
}

TEST(test_fingerprint) {
    static ModelFile file;
    Error error;
    GPT2Config config = {64, 500, 512, 2, 2, 64}; // 0.5 MB: not all of it is looked at
    int64_t n = gpt2_num_params(&config);
    float *params = new_floats(n);
    uint64_t first = 0, again = 0, other = 0;
    gpt2_init_params(params, &config, 7);
    const char *path = test_path(t, "m.bin"), *copy = test_path(t, "copy.bin");
    CHECK(t, model_bin_write(path, &config, params, &error), "%s", error.text);
    CHECK(t, model_bin_write(copy, &config, params, &error), "%s", error.text);
    CHECK(t, model_file_open(&file, path, &error) && model_file_fingerprint(&file, &first, &error), "%s", error.text);
    CHECK(t, model_file_open(&file, copy, &error) && model_file_fingerprint(&file, &again, &error), "%s", error.text);
    CHECK(t, first == again, "a copy is the same model");
    const long places[] = {1024, DATA_HEADER_BYTES + 4 * (long)n - 1}; // the first and the last parameter
    for (int i = 0; i < 2; i++) {
        temp_flip(copy, places[i]);
        CHECK(t, model_file_fingerprint(&file, &other, &error) && other != first, "byte %ld: %s", places[i],
              error.text);
        temp_flip(copy, places[i]);
    }
    gpt2_init_params(params, &config, 8);
    CHECK(t, model_bin_write(copy, &config, params, &error), "%s", error.text);
    CHECK(t, model_file_fingerprint(&file, &other, &error) && other != first, "another seed: %s", error.text);
    CHECK(t, model_file_open(&file, "d12", &error) && model_file_fingerprint(&file, &first, &error), "%s", error.text);
    CHECK(t, model_file_open(&file, "d24", &error) && model_file_fingerprint(&file, &other, &error), "%s", error.text);
    CHECK(t, first != other, "d12 is not d24");
    unlink(copy);
    snprintf(file.path, sizeof(file.path), "%s", copy);
    CHECK(t, !model_file_fingerprint(&file, &other, &error), "the file has gone");
    free(params);
}

// ---- Checkpoints ----

static void compare_files(Test *t, const char *a, const char *b, const char *what) {
    size_t na, nb;
    uint8_t *x = temp_read(a, &na), *y = temp_read(b, &nb);
    CHECK(t, na == nb && memcmp(x, y, na) == 0, "%s: not the same bytes", what);
    free(x), free(y);
}

TEST(test_write_by_several_processes) {
    static const GPT2Config configs[] = {{2, 3, 4, 1, 1, 2}, {64, 500, 512, 2, 2, 64}, {5, 11, 128, 3, 1, 7}};
    for (int c = 0; c < 3; c++) {
        static Run run;
        TempDir alone = temp_dir_make();
        Error error = {""};
        run_init(&run, configs[c]);
        if (c == 2) { run.optimizer = OPTIMIZER_MUON; }
        CHECK(t, run_save(&run, alone.path, 9, 4, &error), "%s", error.text);
        for (int size = 1; size <= 5; size++) {
            TempDir together = temp_dir_make();
            Group group;
            char what[40];
            snprintf(what, sizeof(what), "%d processes", size);
            group_open(&group, &run, together.path, size, NULL, NULL);
            CHECK(t, group_save(&group, 9, 3, &error), "%s: %s", what, error.text);
            CHECK(t, run_load(&run, together.path, 9, &error) == 3, "%s: %s", what, error.text);
            CHECK(t, group_save(&group, 9, 4, &error), "%s, over the first: %s", what, error.text);
            group_close(&group);
            CHECK(t, count_files(together.path) == 2, "%s: %d files", what, count_files(together.path));
            const char *names[] = {"model_00000009.bin", "state_00000009.bin"};
            for (int i = 0; i < 2; i++) {
                compare_files(t, temp_path(&alone, names[i]), temp_path(&together, names[i]), what);
            }
            temp_dir_remove(&together);
        }
        run_free(&run);
        temp_dir_remove(&alone);
    }
}

// Copies the elements that an array has, one after another.
static void copy_without_gaps(const Run *run, int array, float *out) {
    for (int64_t i = 0; i < gpt2_num_params(&run->config); i++) {
        if (run_has(run, array, i)) { *out++ = run->arrays[array][i]; }
    }
}

static bool write_whole(const Run *run, const char *dir, const float *const arrays[], Error *error) {
    static CheckpointWriter w;
    return run_write_begin(run, &w, dir, 1, true, error) && checkpoint_write_whole(&w, arrays, error) &&
           run_write_end(&w, error);
}

// Reads the checkpoint of step 1 into arrays without gaps, and compares them with `want`.
static void check_read_whole(Test *t, Run *run, float *const want[CHECKPOINT_ARRAYS]) {
    static CheckpointReader r;
    Error error = {""};
    float *found[CHECKPOINT_ARRAYS];
    for (int a = 0; a < CHECKPOINT_ARRAYS; a++) {
        found[a] = (float *)calloc((size_t)gpt2_num_params(&run->config), sizeof(float)); // no freed copy of `want`
    }
    CHECK(t, run_read_begin(run, &r, test_folder(t), 1, &error), "%s", error.text);
    CHECK(t, checkpoint_read_whole(&r, found, &error) && run_read_end(run, &r, 1, &error), "%s", error.text);
    for (int a = 0; a < CHECKPOINT_ARRAYS; a++) {
        int64_t n =
            a == CHECKPOINT_ADAM_V ? gpt2_length_of_v(&run->config, run->optimizer) : gpt2_num_params(&run->config);
        CHECK(t, same_bits(want[a], found[a], n), "array %d", a);
        free(found[a]);
    }
}

// One process writes arrays without gaps, and reads them. The bytes are those of a checkpoint in pieces.
static void check_whole(Test *t, Run *run) {
    Error error = {""};
    TempDir pieces = temp_dir_make();
    float *arrays[CHECKPOINT_ARRAYS];
    CHECK(t, run_save(run, pieces.path, 1, 5, &error), "%s", error.text);
    for (int a = 0; a < CHECKPOINT_ARRAYS; a++) {
        arrays[a] = new_floats(gpt2_num_params(&run->config));
        copy_without_gaps(run, a, arrays[a]);
    }
    const float *const given[] = {arrays[0], arrays[1], arrays[2]};
    CHECK(t, write_whole(run, test_folder(t), given, &error), "%s", error.text);
    compare_files(t, temp_path(&pieces, "state_00000001.bin"), test_path(t, "state_00000001.bin"), "state");
    compare_files(t, temp_path(&pieces, "model_00000001.bin"), test_path(t, "model_00000001.bin"), "model");
    check_read_whole(t, run, arrays);
    for (int a = 0; a < CHECKPOINT_ARRAYS; a++) { free(arrays[a]); }
    temp_dir_remove(&pieces);
}

TEST(test_whole_arrays) {
    static const GPT2Optimizer optimizers[] = {OPTIMIZER_ADAMW, OPTIMIZER_MUON};
    for (int i = 0; i < 2; i++) {
        static Run run;
        run_init(&run, odd_config());
        run.optimizer = optimizers[i];
        check_whole(t, &run);
        run_free(&run);
    }
}

// What a file holds in the padding of wte is read as zeros, and is no damage.
TEST(test_padding_is_read_as_zeros) {
    static Run run;
    Error error = {""};
    run_init(&run, odd_config());
    run_fill(&run, 5);
    for (int i = 11 * 7; i < 128 * 7; i++) { run.arrays[CHECKPOINT_PARAMS][i] = 3.0f; }
    CHECK(t, run_write(&run, test_folder(t), 1, &error), "%s", error.text);
    CHECK(t, run_load(&run, test_folder(t), 1, &error) == 5, "%s", error.text);
    run_free(&run);
}

// What one process reads twice, or nobody reads, does not pass for a whole checkpoint.
TEST(test_pieces_missing_or_twice) {
    static Run run;
    static CheckpointReader r;
    Error error = {""};
    run_init(&run, odd_config());
    int64_t n = gpt2_num_params(&run.config);
    CHECK(t, run_save(&run, test_folder(t), 1, 5, &error), "%s", error.text);
    for (int a = 0; a < CHECKPOINT_ARRAYS; a++) {
        for (int twice = 0; twice < 2; twice++) {
            CHECK(t, run_read_begin(&run, &r, test_folder(t), 1, &error), "%s", error.text);
            for (int b = 0; b < CHECKPOINT_ARRAYS; b++) {
                int64_t count = a == b && !twice ? n - 1 : n;
                CHECK(t, checkpoint_read(&r, b, 0, run.arrays[b], count, &error), "%s", error.text);
            }
            if (twice) { CHECK(t, checkpoint_read(&r, a, 3, run.arrays[a] + 3, 1, &error), "%s", error.text); }
            CHECK(t, !run_read_end(&run, &r, 1, &error), "array %d, %d", a, twice);
            CHECK(t, strstr(error.text, "is damaged: its checksum does not match") != NULL, "%s", error.text);
        }
    }
    CHECK(t, run_read_begin(&run, &r, test_folder(t), 1, &error), "%s", error.text);
    CHECK(t, !checkpoint_read(&r, 0, n - 1, run.arrays[0], 2, &error), "behind the end");
    CHECK(t, strstr(error.text, "do not exist") != NULL, "%s", error.text);
    run.config.num_heads = 7;
    CHECK_REFUSED(t, run_read_begin(&run, &r, test_folder(t), 1, &error), &error, test_path(t, "model_00000001.bin"),
                  ": holds a model of another shape");
    checkpoint_read_close(&r);
    run_free(&run);
}

// A process cannot begin to write step 1, and says so.
static void check_cannot_begin(Test *t, const Run *run, bool is_leader, const char *message) {
    static CheckpointWriter w;
    Error error = {""};
    CHECK(t, !run_write_begin(run, &w, test_folder(t), 1, is_leader, &error), "accepted, expected: %s", message);
    CHECK(t, strstr(error.text, message) != NULL, "said %s, expected %s", error.text, message);
}

// Followers that disagree with the leader, or come when it is not there, and leaders with something that is not stored.
TEST(test_cannot_begin) {
    static Run run, other;
    static CheckpointWriter leader;
    Error error = {""};
    run_init(&run, odd_config());
    run_fill(&run, 1);
    check_cannot_begin(t, &run, false, "model_00000001.bin.tmp: cannot open: No such file or directory");
    CHECK(t, run_write_begin(&run, &leader, test_folder(t), 1, true, &error), "%s", error.text);
    other = run, other.config.max_seq_len++;
    check_cannot_begin(t, &other, false, "model_00000001.bin.tmp: does not have the ");
    other = run, state_set_text(&other.header, "more", "facts");
    check_cannot_begin(t, &other, false, "state_00000001.bin.tmp: does not have the ");
    CHECK(t, count_files(test_folder(t)) == 2, "a follower removes nothing");
    checkpoint_write_close(&leader);
    CHECK(t, count_files(test_folder(t)) == 0, "the leader does");
    other = run, other.header.length = -1;
    check_cannot_begin(t, &other, true, ": the facts or the 4 sections do not fit into a state file");
    CHECK(t, count_files(test_folder(t)) == 0, "something is left");
    run_free(&run);
}

// What a process of an earlier, killed run still writes into its temporary file does not reach the new one.
TEST(test_stale_writer) {
    static Run run;
    static CheckpointWriter stale, w;
    Error error = {""};
    run_init(&run, odd_config());
    run_fill(&run, 1);
    CHECK(t, run_write_begin(&run, &w, test_folder(t), 1, true, &error), "%s", error.text);
    w.model.pending = w.state.pending = false; // its leader is dead: nobody removes the files
    CHECK(t, run_write_begin(&run, &stale, test_folder(t), 1, false, &error), "%s", error.text);
    checkpoint_write_close(&w);
    run_fill(&run, 2);
    CHECK(t, run_write_begin(&run, &w, test_folder(t), 1, true, &error), "%s", error.text);
    CHECK(t, run_write_arrays(&run, &w, &error), "%s", error.text);
    run_fill(&run, 3);
    CHECK(t, run_write_arrays(&run, &stale, &error), "%s", error.text);
    run_fill(&run, 2); // of the section, which is written at the end
    CHECK(t, run_write_end(&w, &error), "%s", error.text);
    checkpoint_write_close(&stale);
    CHECK(t, run_load(&run, test_folder(t), 1, &error) == 2, "%s", error.text);
    run_free(&run);
}
