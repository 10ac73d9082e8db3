// Arrays in pieces: a range of the initial parameters, a range of a model file, and checkpoints written and read in
// pieces, by one process and by several: the bits of the whole, wherever it is cut.
#include <sys/resource.h>

#include "dev/test/files/one_process.h"
#include "dev/test/files/checkpoint_group.h"
#include "llmc/files/model_file.h"
#include "dev/test/test.h"

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

static void check_file_ranges(Test *t, const char *init, const float *whole, int64_t n, int draws) {
    static ModelFile file;
    Error error = {""};
    if (!CHECK(t, model_file_open(&file, init, &error), "%s", error.text)) { return; }
    check_ranges(t, file_range, &file, whole, n, draws);
    float one;
    CHECK(t, model_file_read_range(&file, n, 0, &one, &error), "nothing, at the end: %s", error.text);
    CHECK(t, !model_file_read_range(&file, n, 1, &one, &error), "an element behind the last");
    CHECK(t, strstr(error.text, "do not exist") != NULL, "%s", error.text);
    CHECK(t, !model_file_read_range(&file, -1, 1, &one, &error), "an element before the first");
}

TEST(test_file_ranges) {
    static const GPT2Config configs[] = {
        {5, 11, 128, 3, 1, 7}, {4, 129, 256, 1, 3, 600}}; // of the second, a weight exceeds the staging buffer
    for (int i = 0; i < 2; i++) {
        TempDir dir = temp_dir_make();
        Error error;
        int64_t n = gpt2_num_params(&configs[i]);
        float *params = new_floats(n);
        gpt2_init_params(params, &configs[i], 7);
        const char *bin = temp_path(&dir, "m.bin");
        CHECK(t, model_bin_write(bin, &configs[i], params, &error), "%s", error.text);
        CHECK(t, safetensors_write(dir.path, &configs[i], params, &error), "%s", error.text);
        check_file_ranges(t, bin, params, n, i == 0 ? 200 : 20);
        check_file_ranges(t, dir.path, params, n, i == 0 ? 200 : 20);
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
    const char *bin = test_path(t, "m.bin"), *hf = test_path(t, "hf");
    CHECK(t, model_bin_write(bin, &config, params, &error), "%s", error.text);
    CHECK(t, safetensors_write(hf, &config, params, &error), "%s", error.text);
    for (int i = 0; i < 2; i++) {
        CHECK(t, model_file_open(&file, i == 0 ? bin : hf, &error), "%s", error.text);
        CHECK(t, model_file_read_range(&file, 0, bad, out, &error), "%s", error.text);
        CHECK(t, model_file_read_range(&file, bad + 1, n - bad - 1, out, &error), "%s", error.text);
        CHECK(t, !model_file_read_range(&file, bad, 1, out, &error), "a NaN");
        CHECK(t, strstr(error.text, ": tensor fcw holds nan at element 300 of (3, 28, 7); ") != NULL, "%s", error.text);
    }
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
    file.kind = MODEL_FROM_BIN;
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
    static const GPT2Config configs[] = {{2, 3, 4, 1, 1, 2}, {64, 500, 512, 2, 2, 64}};
    for (int c = 0; c < 2; c++) {
        static Run run;
        TempDir alone = temp_dir_make();
        Error error = {""};
        run_init(&run, configs[c]);
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

enum { READERS = 3 };

// Reads a checkpoint by several readers, each its pieces, with the sums added; the generation, or -1 and the error.
static int64_t read_by_several(Run *run, const char *dir, int64_t step, Error *error) {
    static CheckpointReader readers[READERS];
    CheckpointSums all = {{0, 0, 0}};
    int64_t n = gpt2_num_params(&run->config), piece = n / 11 + 1;
    for (int i = 0; i < READERS; i++) {
        if (!checkpoint_read_begin(&readers[i], dir, step, &run->config, &run->header, error)) { return -1; }
    }
    for (int64_t at = 0, j = 0; at < n; at += piece, j++) {
        for (int a = 0; a < CHECKPOINT_ARRAYS; a++) {
            CheckpointReader *r = &readers[(j + a) % READERS];
            if (!checkpoint_read(r, a, at, run->arrays[a] + at, min_i64(piece, n - at), error)) { return -1; }
        }
    }
    for (int i = 0; i < READERS; i++) {
        for (int a = 0; a < CHECKPOINT_ARRAYS; a++) { all.sums[a] += readers[i].sums.sums[a]; }
    }
    bool ok = true;
    for (int i = 0; i < READERS; i++) {
        ok = checkpoint_read_end(&readers[i], &all, &run->sections[2], 1, error) && ok;
    }
    return ok ? run_generation(run) : -1;
}

TEST(test_read_in_pieces) {
    static Run run;
    Error error = {""};
    run_init(&run, odd_config());
    CHECK(t, run_save(&run, test_folder(t), 1, 5, &error), "%s", error.text);
    run_fill(&run, 0);
    CHECK(t, read_by_several(&run, test_folder(t), 1, &error) == 5, "%s", error.text);
    const char *files[] = {test_path(t, "model_00000001.bin"), test_path(t, "state_00000001.bin")};
    for (int i = 0; i < 2; i++) { // every byte of both files
        struct stat info;
        temp_must(stat(files[i], &info) == 0, files[i]);
        for (long at = 0; at < info.st_size; at += at < 2000 ? 1 : 61) {
            temp_flip(files[i], at);
            CHECK(t, read_by_several(&run, test_folder(t), 1, &error) == -1, "byte %ld of file %d: not found", at, i);
            temp_flip(files[i], at);
        }
    }
    CHECK(t, read_by_several(&run, test_folder(t), 1, &error) == 5, "whole again: %s", error.text);
    run_free(&run);
}

// What a file holds in the padding of wte is read as zeros, and is no damage.
TEST(test_padding_is_read_as_zeros) {
    static Run run;
    Error error = {""};
    run_init(&run, odd_config());
    run_fill(&run, 5);
    float *params = run.arrays[CHECKPOINT_PARAMS];
    for (int i = 11 * 7; i < 128 * 7; i++) { params[i] = 3.0f; }
    CHECK(t, checkpoint_save(test_folder(t), 1, &run.config, params, &run.header, run.sections, 3, &error), "%s",
          error.text);
    CHECK(t, read_by_several(&run, test_folder(t), 1, &error) == 5, "in pieces: %s", error.text);
    CHECK(t, run_load(&run, test_folder(t), 1, &error) == 5, "at once: %s", error.text);
    run_free(&run);
}

// Damage in each part of the files, and who is named for it.
TEST(test_damage_is_named) {
    static Run run;
    Error error = {""};
    char want[1200];
    run_init(&run, odd_config());
    CHECK(t, run_save(&run, test_folder(t), 1, 5, &error), "%s", error.text);
    const char *model = test_path(t, "model_00000001.bin"), *state = test_path(t, "state_00000001.bin");
    struct stat info;
    temp_must(stat(state, &info) == 0, state);
    const long array = 4 * (long)gpt2_num_params(&run.config), sections = (long)info.st_size - 8000;
    const struct {
        const char *path;
        long at;
        const char *text;
    } cases[] = {
        {model, 1024, "is damaged: its checksum does not match"},
        {model, 1024 + array - 1, "is damaged: its checksum does not match"},
        {model, 1000, "is damaged: its header is not the one its training state expects"},
        {state, sections - 2 * array, "section \"adam_m\" is damaged: its checksum does not match"},
        {state, sections - array - 1, "section \"adam_m\" is damaged: its checksum does not match"},
        {state, sections - array, "section \"adam_v\" is damaged: its checksum does not match"},
        {state, sections, "section \"generation\" is damaged: its checksum does not match"},
        {state, sections - 2 * array - 1, "header is damaged: its checksum does not match"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        temp_flip(cases[i].path, cases[i].at);
        CHECK(t, read_by_several(&run, test_folder(t), 1, &error) == -1, "case %zu: not found", i);
        snprintf(want, sizeof(want), "%s: %s", cases[i].path, cases[i].text);
        CHECK(t, strcmp(error.text, want) == 0, "case %zu: %s, not %s", i, error.text, want);
        temp_flip(cases[i].path, cases[i].at);
    }
    size_t bytes;
    uint8_t *copy = temp_read(model, &bytes);
    copy[20] = 7; // heads: the file would be as large
    temp_write(model, copy, bytes);
    CHECK(t, read_by_several(&run, test_folder(t), 1, &error) == -1, "another number of heads");
    snprintf(want, sizeof(want), "%s: is damaged: its header is not the one its training state expects", model);
    CHECK(t, strcmp(error.text, want) == 0, "%s", error.text);
    GPT2Config config;
    CHECK(t, !checkpoint_load_header(test_folder(t), 1, &config, &run.header, &error),
          "nor is it taken for the config");
    CHECK(t, strcmp(error.text, want) == 0, "%s", error.text);
    free(copy);
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
            CHECK(t, checkpoint_read_begin(&r, test_folder(t), 1, &run.config, &run.header, &error), "%s", error.text);
            for (int b = 0; b < CHECKPOINT_ARRAYS; b++) {
                int64_t count = a == b && !twice ? n - 1 : n;
                CHECK(t, checkpoint_read(&r, b, 0, run.arrays[b], count, &error), "%s", error.text);
            }
            if (twice) { CHECK(t, checkpoint_read(&r, a, 3, run.arrays[a] + 3, 1, &error), "%s", error.text); }
            CHECK(t, !checkpoint_read_end(&r, &r.sums, &run.sections[2], 1, &error), "array %d, %d", a, twice);
            CHECK(t, strstr(error.text, "is damaged: its checksum does not match") != NULL, "%s", error.text);
        }
    }
    CHECK(t, checkpoint_read_begin(&r, test_folder(t), 1, &run.config, &run.header, &error), "%s", error.text);
    CHECK(t, !checkpoint_read(&r, 0, n - 1, run.arrays[0], 2, &error), "behind the end");
    CHECK(t, strstr(error.text, "do not exist") != NULL, "%s", error.text);
    run.config.num_heads = 7;
    CHECK(t, !checkpoint_read_begin(&r, test_folder(t), 1, &run.config, &run.header, &error), "another model");
    CHECK(t, strstr(error.text, ": holds a model of another shape") != NULL, "%s", error.text);
    checkpoint_read_abort(&r);
    run_free(&run);
}

TEST(test_not_finite) {
    static Run run;
    static CheckpointWriter w;
    static CheckpointReader r;
    Error error = {""};
    run_init(&run, odd_config());
    int64_t n = gpt2_num_params(&run.config), bad = gpt2_param_offset(&run.config, PARAM_qkvb) + 2;
    float *params = run.arrays[CHECKPOINT_PARAMS];
    CHECK(t, run_save(&run, test_folder(t), 1, 5, &error), "%s", error.text);
    params[bad] = INFINITY;
    CHECK(t, checkpoint_write_begin(&w, test_folder(t), 1, &run.config, &run.header, &run.sections[2], 1, true, &error),
          "%s", error.text);
    CHECK(t, checkpoint_write(&w, CHECKPOINT_PARAMS, 0, params, bad, &error), "%s", error.text);
    CHECK(t, !checkpoint_write(&w, CHECKPOINT_PARAMS, bad - 1, params + bad - 1, 2, &error), "an infinity was saved");
    CHECK(t, strstr(error.text, "the model to be saved: tensor qkvb holds inf at element 2 of (3, 21); ") != NULL, "%s",
          error.text);
    checkpoint_write_abort(&w);
    CHECK(t, count_files(test_folder(t)) == 2 && run_load(&run, test_folder(t), 1, &error) == 5, "the old one: %s",
          error.text);

    // A file whose checksums are right, but which holds an infinity, as no program of ours writes it.
    run_fill(&run, 6);
    CHECK(t, checkpoint_write_begin(&w, test_folder(t), 2, &run.config, &run.header, &run.sections[2], 1, true, &error),
          "%s", error.text);
    for (int a = 0; a < CHECKPOINT_ARRAYS; a++) {
        CHECK(t, checkpoint_write(&w, a, 0, run.arrays[a], n, &error), "%s", error.text);
    }
    float infinity = INFINITY;
    w.sums.sums[0] += sum64(bad, &infinity, 1) - sum64(bad, params + bad, 1);
    CHECK(t, atomic_write_at(&w.model, DATA_HEADER_BYTES + 4 * bad, &infinity, 4, &error), "%s", error.text);
    CHECK(t, checkpoint_write_flush(&w, &error) && checkpoint_write_commit(&w, &w.sums, &error), "%s", error.text);
    CHECK(t, checkpoint_verify(test_folder(t), 2, &error), "%s", error.text);
    CHECK(t, checkpoint_read_begin(&r, test_folder(t), 2, &run.config, &run.header, &error), "%s", error.text);
    for (int a = 0; a < CHECKPOINT_ARRAYS; a++) { checkpoint_read(&r, a, 0, run.arrays[a], n, &error); }
    CHECK(t, !checkpoint_read_end(&r, &r.sums, &run.sections[2], 1, &error), "an infinity was loaded");
    CHECK(t, strstr(error.text, "model_00000002.bin: tensor qkvb holds inf at element 2 of (3, 21); ") != NULL, "%s",
          error.text);
    run_free(&run);
}

// The disk fills up in the middle: where space cannot be reserved, or a quota is lowered.
TEST(test_disk_full_in_the_middle) {
    static Run run;
    static CheckpointWriter w;
    Error error = {""};
    struct rlimit old, tight;
    run_init(&run, odd_config());
    int64_t n = gpt2_num_params(&run.config);
    CHECK(t, run_save(&run, test_folder(t), 1, 5, &error), "%s", error.text);
    getrlimit(RLIMIT_FSIZE, &old);
    tight = old;
    tight.rlim_cur = 4000;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    for (int array = 0; array < CHECKPOINT_ARRAYS; array++) {
        CHECK(
            t,
            checkpoint_write_begin(&w, test_folder(t), 1, &run.config, &run.header, &run.sections[2], 1, true, &error),
            "%s", error.text);
        setrlimit(RLIMIT_FSIZE, &tight);
        bool ok = checkpoint_write(&w, array, 0, run.arrays[array], n, &error);
        setrlimit(RLIMIT_FSIZE, &old);
        CHECK(t, !ok && strstr(error.text, ": File too large; the partial file was removed") != NULL, "array %d: %s",
              array, error.text);
        checkpoint_write_abort(&w);
        CHECK(t, count_files(test_folder(t)) == 2 && run_load(&run, test_folder(t), 1, &error) == 5, "array %d: %s",
              array, error.text);
    }
    signal(SIGXFSZ, handler);
    run_free(&run);
}

// Followers that disagree with the leader, or come when it is not there.
TEST(test_followers_refused) {
    static Run run;
    static CheckpointWriter leader, follower;
    Error error = {""};
    run_init(&run, odd_config());
    run_fill(&run, 1);
    const StateSection *section = &run.sections[2];
    GPT2Config other = run.config;
    other.max_seq_len++;
    CHECK(t,
          !checkpoint_write_begin(&follower, test_folder(t), 1, &run.config, &run.header, section, 1, false, &error) &&
              strstr(error.text, "model_00000001.bin.tmp: cannot open: No such file or directory") != NULL,
          "no leader: %s", error.text);
    CHECK(t, checkpoint_write_begin(&leader, test_folder(t), 1, &run.config, &run.header, section, 1, true, &error),
          "%s", error.text);
    CHECK(t,
          !checkpoint_write_begin(&follower, test_folder(t), 1, &other, &run.header, section, 1, false, &error) &&
              strstr(error.text, "model_00000001.bin.tmp: does not have the ") != NULL,
          "another model: %s", error.text);
    state_set_text(&run.header, "more", "facts");
    CHECK(t,
          !checkpoint_write_begin(&follower, test_folder(t), 1, &run.config, &run.header, section, 1, false, &error) &&
              strstr(error.text, "state_00000001.bin.tmp: does not have the ") != NULL,
          "another text: %s", error.text);
    CHECK(t, count_files(test_folder(t)) == 2, "a follower removes nothing");
    checkpoint_write_abort(&leader);
    CHECK(t, count_files(test_folder(t)) == 0, "the leader does");
    StateSection misnamed = {"", run.generation, 8};
    CHECK(t, !checkpoint_write_begin(&leader, test_folder(t), 1, &run.config, &run.header, &misnamed, 1, true, &error),
          "a section without a name");
    run.header.length = -1;
    CHECK(t, !checkpoint_write_begin(&leader, test_folder(t), 1, &run.config, &run.header, section, 1, true, &error),
          "facts that do not fit");
    CHECK(t, count_files(test_folder(t)) == 0, "nothing is left");
    run_free(&run);
}

// A state that cannot get its name leaves no temporary file, and the message says so.
TEST(test_state_without_its_name) {
    static Run run;
    static CheckpointWriter w;
    CheckpointPaths paths;
    Error error = {""};
    run_init(&run, odd_config());
    run_fill(&run, 1);
    int64_t n = gpt2_num_params(&run.config);
    bool ok =
        checkpoint_paths(&paths, test_folder(t), 1, &error) &&
        checkpoint_write_begin(&w, test_folder(t), 1, &run.config, &run.header, &run.sections[2], 1, true, &error);
    for (int a = 0; ok && a < CHECKPOINT_ARRAYS; a++) { ok = checkpoint_write(&w, a, 0, run.arrays[a], n, &error); }
    CHECK(t, ok && checkpoint_write_flush(&w, &error) && mkdir(paths.state, 0755) == 0, "%s", error.text);
    CHECK(t, !checkpoint_write_commit(&w, &w.sums, &error), "a folder is replaced by a file");
    CHECK(t, strstr(error.text, "could not rename it") != NULL, "%s", error.text);
    checkpoint_write_abort(&w);
    CHECK(t, !path_exists(paths.temporary_state) && !path_exists(paths.temporary_model), "a temporary file stays");
    CHECK(t, !path_exists(paths.model), "the model has its name without a state");
    run_free(&run);
}

// What a process of an earlier, killed run still writes into its temporary file does not reach the new one.
TEST(test_stale_writer) {
    static Run run;
    static CheckpointWriter stale, w;
    Error error = {""};
    run_init(&run, odd_config());
    run_fill(&run, 1);
    int64_t n = gpt2_num_params(&run.config);
    const StateSection *section = &run.sections[2];
    CHECK(t, checkpoint_write_begin(&w, test_folder(t), 1, &run.config, &run.header, section, 1, true, &error), "%s",
          error.text);
    w.model.pending = w.state.pending = false; // its leader is dead: nobody removes the files
    CHECK(t, checkpoint_write_begin(&stale, test_folder(t), 1, &run.config, &run.header, section, 1, false, &error),
          "%s", error.text);
    checkpoint_write_abort(&w);
    run_fill(&run, 2);
    CHECK(t, checkpoint_write_begin(&w, test_folder(t), 1, &run.config, &run.header, section, 1, true, &error), "%s",
          error.text);
    for (int a = 0; a < CHECKPOINT_ARRAYS; a++) {
        CHECK(t, checkpoint_write(&w, a, 0, run.arrays[a], n, &error), "%s", error.text);
        CHECK(t, checkpoint_write(&stale, a, 0, run.arrays[(a + 1) % 3], n, &error), "%s", error.text);
    }
    CHECK(t, checkpoint_write_flush(&w, &error) && checkpoint_write_commit(&w, &w.sums, &error), "%s", error.text);
    checkpoint_write_abort(&stale);
    CHECK(t, run_load(&run, test_folder(t), 1, &error) == 2, "%s", error.text);
    run_free(&run);
}
