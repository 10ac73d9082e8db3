// Model files, training states and checkpoints: exact round trips; damage of every kind at every byte. (What a kill
// leaves: test_kill.c.)
#include <signal.h>
#include <sys/resource.h>

#include "dev/test/files/one_process.h"
#include "dev/test/files/checkpoint_run.h"
#include "dev/test/files/state_sections.h"
#include "dev/test/temp_dir.h"
#include "dev/test/test.h"

enum { TINY_PARAMS = 90, TINY_BYTES = 1024 + 4 * TINY_PARAMS };

static void fill_params(float *params, const GPT2Config *config, float first) {
    for (int64_t i = 0; i < gpt2_num_params(config); i++) { params[i] = first + 0.25f * (float)i; }
    model_zero_padding(params, config);
}

static bool same(const float *a, const float *b, int64_t n) { return memcmp(a, b, (size_t)n * sizeof(float)) == 0; }

static void check_text(Test *t, const Error *error, const char *path, const char *rest) {
    size_t n = strlen(path);
    CHECK(t, strncmp(error->text, path, n) == 0 && strcmp(error->text + n, rest) == 0, "got  '%s'\n    want '%s%s'",
          error->text, path, rest);
}

// ---- 16-bit types ----

TEST(test_16_bit_floats) {
    for (int i = 0; i < 65536; i++) {
        uint16_t bits = (uint16_t)i;
        double sign = i & 0x8000 ? -1.0 : 1.0;
        int exponent = (i >> 10) & 31, fraction = i & 1023;
        double half = exponent == 0 ? ldexp(fraction, -24) : ldexp(1024 + fraction, exponent - 25);
        if (exponent == 31) { half = fraction ? NAN : INFINITY; }
        float got = float_from_f16(bits);
        CHECK(t, isnan(half) ? isnan(got) : (double)got == sign * half, "f16 %04x: %g", i, (double)got);
        CHECK(t, (bits_from_float(got) >> 31) == (uint32_t)(i >> 15), "f16 %04x: sign", i);
        CHECK(t, bits_from_float(float_from_bf16(bits)) == (uint32_t)i << 16, "bf16 %04x", i);
    }
    static const float odd[] = {0.0f, -0.0f, 1e-45f, 3.4e38f, NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 7; i++) { CHECK(t, float_is_finite(odd[i]) == (i < 4), "finite? %g", (double)odd[i]); }
    float *many = (float *)calloc(10000, sizeof(float));
    CHECK(t, first_not_finite(many, 10000) == 10000 && first_not_finite(many, 0) == 0, "all finite");
    many[9999] = INFINITY, many[5000] = NAN;
    CHECK(t, first_not_finite(many, 10000) == 5000, "the first one");
    free(many);
}

// ---- Model files ----

TEST(test_model_round_trip) {
    Error error;
    GPT2Config config = tiny_config(), found;
    float params[TINY_PARAMS], loaded[TINY_PARAMS];
    int version = 0;
    const char *path = test_path(t, "m.bin");
    CHECK(t, gpt2_num_params(&config) == TINY_PARAMS, "%lld parameters", (long long)gpt2_num_params(&config));
    fill_params(params, &config, -3.0f);
    CHECK(t, model_bin_write(path, &config, params, &error), "%s", error.text);
    CHECK(t, model_bin_read_config(path, &found, &version, &error) && version == 3, "%s", error.text);
    CHECK(t, model_configs_equal(&config, &found), "config");
    memset(loaded, 0xff, sizeof(loaded));
    CHECK(t, model_bin_read(path, &found, loaded, &error), "%s", error.text);
    CHECK(t, same(params, loaded, TINY_PARAMS), "all bits");
    size_t bytes;
    uint8_t *data = temp_read(path, &bytes);
    int32_t head[9];
    memcpy(head, data, sizeof(head));
    CHECK(t,
          bytes == TINY_BYTES && head[0] == 20240326 && head[1] == 3 && head[2] == 2 && head[3] == 3 && head[4] == 1 &&
              head[5] == 1 && head[6] == 2 && head[7] == 4 && head[8] == 0,
          "header as documented");
    free(data);
    config.num_heads = 2;
    CHECK(t, !model_bin_read(path, &config, loaded, &error), "another config");
    check_text(t, &error, path, ": holds a model of another shape");
}

TEST(test_model_bf16) {
    Error error;
    GPT2Config config = {300, 37, 40, 2, 3, 24}; // more elements than one buffer holds
    int64_t n = gpt2_num_params(&config);
    uint8_t *file = (uint8_t *)malloc((size_t)(1024 + 2 * n));
    float *params = (float *)malloc((size_t)n * sizeof(float));
    int32_t header[256];
    int version = 0;
    model_bin_make_header(header, &config, MODEL_BIN_BF16);
    memcpy(file, header, 1024);
    for (int64_t i = 0; i < n; i++) {
        uint16_t bits = (uint16_t)(i * 37);
        if ((bits & 0x7f80) == 0x7f80) { bits = 0x3f80; } // no NaN, no infinity
        memcpy(file + 1024 + 2 * i, &bits, 2);
    }
    const char *path = test_path(t, "m.bin");
    temp_write(path, file, (size_t)(1024 + 2 * n));
    CHECK(t, model_bin_read_config(path, &config, &version, &error) && version == 5, "%s", error.text);
    CHECK(t, model_bin_read(path, &config, params, &error), "%s", error.text);
    int64_t used = 37 * 24, padded = 40 * 24;
    for (int64_t i = 0; i < n; i++) {
        uint16_t bits;
        memcpy(&bits, file + 1024 + 2 * i, 2);
        uint32_t want = i >= used && i < padded ? 0 : (uint32_t)bits << 16;
        CHECK(t, bits_from_float(params[i]) == want, "element %lld: %08x", (long long)i, bits_from_float(params[i]));
    }
    free(file), free(params);
}

// Makes a valid tiny file of 1384 bytes.
static void tiny_file(uint8_t *bytes) {
    GPT2Config config = tiny_config();
    float params[TINY_PARAMS];
    int32_t header[256];
    fill_params(params, &config, 1.0f);
    model_bin_make_header(header, &config, MODEL_BIN_FP32);
    memcpy(bytes, header, 1024);
    memcpy(bytes + 1024, params, sizeof(params));
}

TEST(test_model_cut_anywhere) {
    Error error;
    GPT2Config config;
    int version;
    uint8_t bytes[TINY_BYTES + 1];
    char want[200];
    const char *path = test_path(t, "m.bin");
    tiny_file(bytes);
    bytes[TINY_BYTES] = 0;
    for (int n = 0; n <= TINY_BYTES + 1; n++) {
        if (n == TINY_BYTES) { continue; }
        temp_write(path, bytes, (size_t)n);
        CHECK(t, !model_bin_read_config(path, &config, &version, &error), "%d bytes were accepted", n);
        if (n < 1024) {
            snprintf(want, sizeof(want),
                     ": %d bytes, less than the header of a model, 1024 (truncated download? fetch it again)", n);
        } else {
            snprintf(want, sizeof(want), ": header asks for %d bytes, file has %d (%s)", TINY_BYTES, n,
                     n < TINY_BYTES ? "truncated? fetch it again" : "damaged?");
        }
        check_text(t, &error, path, want);
    }
}

TEST(test_model_header_fields) {
    static const struct {
        int slot;
        int32_t value;
        const char *message;
    } cases[] = {
        {0, 0, ": is not a model: magic 0, expected 20240326"},
        {0, 20240520, ": is not a model: magic 20240520 (a token shard), expected 20240326"},
        {0, 20240327, ": is not a model: magic 20240327 (a debug state of a PyTorch twin), expected 20240326"},
        {1, 1, ": model of version 1, expected 3 or 5 (3: float32, 5: bfloat16; export an older model again)"},
        {1, 2, ": model of version 2, expected 3 or 5 (3: float32, 5: bfloat16; export an older model again)"},
        {1, 4, ": model of version 4, expected 3 or 5 (3: float32, 5: bfloat16; export an older model again)"},
        {1, -1, ": model of version -1, expected 3 or 5 (3: float32, 5: bfloat16; export an older model again)"},
        {1, 5, ": header asks for 1204 bytes, file has 1384 (damaged?)"},
        {2, 0, ": context length is 0, expected 1 to 1048576"},
        {2, -5, ": context length is -5, expected 1 to 1048576"},
        {3, 0, ": vocabulary size is 0, expected 1 to 1048576"},
        {3, INT32_MAX, ": vocabulary size is 2147483647, expected 1 to 1048576"},
        {3, 5, ": padded vocabulary is 4, expected 5 (vocabulary size) to 1048576"},
        {4, 0, ": number of layers is 0, expected 1 to 1000"},
        {4, INT32_MIN, ": number of layers is -2147483648, expected 1 to 1000"},
        {5, 0, ": number of heads is 0, expected 1 to 1024"},
        {5, 3, ": 2 channels cannot be divided among 3 heads; choose heads that divide channels"},
        {6, -2, ": channels is -2, expected 1 to 65536"},
        {6, 65537, ": channels is 65537, expected 1 to 65536"},
        {7, -1, ": padded vocabulary is -1, expected 3 (vocabulary size) to 1048576"},
        {7, INT32_MAX, ": padded vocabulary is 2147483647, expected 3 (vocabulary size) to 1048576"},
    };
    const char *path = test_path(t, "m.bin");
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        Error error;
        GPT2Config config;
        int version;
        uint8_t bytes[TINY_BYTES];
        tiny_file(bytes);
        memcpy(bytes + 4 * cases[i].slot, &cases[i].value, 4);
        temp_write(path, bytes, TINY_BYTES);
        CHECK(t, !model_bin_read_config(path, &config, &version, &error), "case %zu was accepted", i);
        check_text(t, &error, path, cases[i].message);
    }
    // The largest values that pass one by one: the product must not overflow into a size that fits.
    uint8_t bytes[TINY_BYTES];
    tiny_file(bytes);
    int32_t largest[8] = {20240326, 3, 1 << 20, 1 << 20, 1000, 1024, 1 << 16, 1 << 20};
    Error error;
    GPT2Config config;
    int version;
    memcpy(bytes, largest, sizeof(largest));
    temp_write(path, bytes, TINY_BYTES);
    CHECK(t, !model_bin_read_config(path, &config, &version, &error), "206 TB in 1384 bytes");
    CHECK(t, strstr(error.text, ": header asks for 206711594419200 bytes, file has 1384 (truncated?") != NULL, "%s",
          error.text);
}

TEST(test_model_not_finite) {
    Error error;
    GPT2Config config = tiny_config();
    float params[TINY_PARAMS], loaded[TINY_PARAMS];
    const char *path = test_path(t, "m.bin");
    fill_params(params, &config, 1.0f);
    int64_t offset = gpt2_param_offset(&config, PARAM_qkvb);
    params[offset + 4] = INFINITY;
    CHECK(t, model_bin_write(path, &config, params, &error), "%s", error.text);
    CHECK(t, !model_bin_read(path, &config, loaded, &error), "an infinity was accepted");
    check_text(t, &error, path,
               ": tensor qkvb holds inf at element 4 of (1, 6); the file is damaged or its training diverged");
    params[offset + 4] = 0.0f;
    params[7] = NAN; // in the padding row of wte, where nobody looks
    CHECK(t, model_bin_write(path, &config, params, &error), "%s", error.text);
    CHECK(t, model_bin_read(path, &config, loaded, &error), "%s", error.text);
    CHECK(t, bits_from_float(loaded[6]) == 0 && bits_from_float(loaded[7]) == 0, "padding becomes zero");
}

// ---- Training states ----

TEST(test_facts) {
    static StateHeader header;
    state_init(&header);
    int64_t i = 0;
    uint64_t u = 0;
    char text[64];
    state_set_i64(&header, "step", INT64_MIN);
    state_set_u64(&header, "seed", UINT64_MAX);
    state_set_text(&header, "data", "a path with  spaces ");
    state_set_text(&header, "empty", "");
    CHECK(t, state_get_i64(&header, "step", &i) && i == INT64_MIN, "int64");
    CHECK(t, state_get_u64(&header, "seed", &u) && u == UINT64_MAX, "uint64");
    CHECK(t, state_get_text(&header, "data", text, sizeof(text)) && strcmp(text, "a path with  spaces ") == 0, "text");
    CHECK(t, state_get_text(&header, "empty", text, sizeof(text)) && text[0] == '\0', "empty text");
    CHECK(t, !state_get_text(&header, "data", text, 10), "a text that does not fit");
    CHECK(t, !state_get_i64(&header, "seed", &i) && !state_get_i64(&header, "data", &i), "not an int64");
    CHECK(t, !state_get_i64(&header, "empty", &i), "not a number");
    CHECK(t, !state_get_u64(&header, "step", &u), "a negative number is no uint64");
    CHECK(t, !state_get_i64(&header, "ste", &i) && !state_get_i64(&header, "step2", &i), "no such key");
    state_set_i64(&header, "seed", 3);
    CHECK(t, state_get_i64(&header, "seed", &i) && i == 3, "replaced");
    int count = 0;
    for (int j = 0; j < header.length; j++) { count += header.text[j] == '\n'; }
    CHECK(t, count == 4 && state_text_is_valid(&header), "%d lines", count);
    CHECK(t, ends_with(header.text, "\nseed 3\n"), "the last line is the newest: %s", header.text);
    static const char *const bad[][2] = {{"a b", "1"}, {"", "1"}, {"a", "1\n2"}, {"a\n", "1"}};
    for (int j = 0; j < 4; j++) {
        static StateHeader copy;
        copy = header;
        state_set_text(&copy, bad[j][0], bad[j][1]);
        CHECK(t, copy.length == -1, "case %d was stored", j);
        state_set_i64(&copy, "more", 1);
        CHECK(t, copy.length == -1, "and is forgotten later");
    }
    for (int j = 0; j < 10000; j++) {
        snprintf(text, sizeof(text), "key%d", j);
        state_set_text(&header, text, "0123456789");
    }
    CHECK(t, header.length == -1, "more than fits");
    Error error;
    CHECK(t, !state_write("/nonexistent/state.bin", &header, NULL, 0, &error), "a full header");
    check_text(t, &error, "/nonexistent/state.bin", ": the facts or the 0 sections do not fit into a state file");
}

typedef struct {
    float m[13];
    uint8_t flags[5];
    StateSection sections[3];
} TinyState;

static void tiny_state(TinyState *state, float value) {
    for (int i = 0; i < 13; i++) { state->m[i] = value * (float)(i + 1); }
    memset(state->flags, (int)value, sizeof(state->flags));
    StateSection sections[3] = {{"adam_m", state->m, sizeof(state->m)},
                                {"empty", NULL, 0},
                                {"outlier flags, a name of 35 bytes..", state->flags, sizeof(state->flags)}};
    memcpy(state->sections, sections, sizeof(sections));
}

TEST(test_state_round_trip) {
    static StateHeader header, found;
    Error error;
    TinyState state, loaded;
    const char *path = test_path(t, "s.bin");
    tiny_state(&state, 3.0f);
    tiny_state(&loaded, 0.0f);
    state_init(&header);
    state_set_i64(&header, "step", 20);
    CHECK(t, state_write(path, &header, state.sections, 3, &error), "%s", error.text);
    CHECK(t, state_read_header(path, &found, &error) && found.length == header.length, "%s", error.text);
    CHECK(t, strcmp(found.text, "step 20\n") == 0, "%s", found.text);
    size_t bytes;
    uint8_t *all = temp_read(path, &bytes);
    uint64_t sum = 0;
    CHECK(t, file_checksum(path, &sum, &error) && sum == hash64(all, bytes), "checksum of the file: %s", error.text);
    free(all);
    CHECK(t, state_read(path, &found, loaded.sections, 3, &error), "%s", error.text);
    CHECK(t, memcmp(state.m, loaded.m, sizeof(state.m)) == 0 && memcmp(state.flags, loaded.flags, 5) == 0, "bits");
    CHECK(t, !state_read(path, &found, loaded.sections, 2, &error), "two of three sections");
    check_text(t, &error, path, ": has 3 sections, expected 2");
    loaded.sections[0].bytes--;
    CHECK(t, !state_read(path, &found, loaded.sections, 3, &error), "another size");
    check_text(t, &error, path, ": section \"adam_m\" has 52 bytes, expected 51");
    loaded.sections[0].bytes++;
    loaded.sections[1].name = "adam_v";
    CHECK(t, !state_read(path, &found, loaded.sections, 3, &error), "another name");
    check_text(t, &error, path, ": section 1 is \"empty\" (kind 0), expected \"adam_v\" (kind 0)");
    state.sections[0].name = "a name of 36 bytes, 1 too many......";
    CHECK(t, !state_write(path, &header, state.sections, 3, &error), "a name too long");
    CHECK(t, !temp_exists(test_path(t, "s.bin.tmp")) && temp_exists(path), "nothing half-written");
}

static bool verifies(const char *path, StateHeader *header, Error *error) {
    StateFile state;
    if (!state_open(&state, path, header, error)) { return false; }
    bool ok = state_verify_sections(&state, error);
    input_close(&state.file);
    return ok;
}

TEST(test_state_damage) {
    static StateHeader header, found;
    Error error;
    TinyState state, loaded;
    const char *path = test_path(t, "s.bin");
    tiny_state(&state, 3.0f);
    tiny_state(&loaded, 0.0f);
    state_init(&header);
    state_set_text(&header, "data", "shakespeare");
    CHECK(t, state_write(path, &header, state.sections, 3, &error), "%s", error.text);
    size_t bytes;
    uint8_t *good = temp_read(path, &bytes);
    for (size_t i = 0; i < bytes; i++) { // every byte of preamble, text, records, checksum, and of each section
        temp_flip(path, (long)i);
        CHECK(t, !state_read(path, &found, loaded.sections, 3, &error), "flipped byte %zu was not found", i);
        CHECK(t, !verifies(path, &found, &error), "flipped byte %zu was not found without loading", i);
        temp_flip(path, (long)i);
    }
    CHECK(t, verifies(path, &found, &error), "whole again: %s", error.text);
    temp_flip(path, (long)bytes - 1);
    CHECK(t, !verifies(path, &found, &error), "last byte");
    check_text(t, &error, path,
               ": section \"outlier flags, a name of 35 bytes..\" is damaged: its checksum does not match");
    for (size_t n = 0; n < bytes; n++) {
        temp_write(path, good, n);
        CHECK(t, !state_read_header(path, &found, &error), "cut after %zu bytes, accepted", n);
    }
    good = (uint8_t *)realloc(good, bytes + 1);
    good[bytes] = 0;
    temp_write(path, good, bytes + 1);
    CHECK(t, !state_read_header(path, &found, &error), "a byte to spare");
    check_text(t, &error, path, ": has 275 bytes, its header tells another size (truncated?)");
    good[8] = 1;
    temp_write(path, good, bytes);
    CHECK(t, !state_read_header(path, &found, &error), "version 1");
    check_text(t, &error, path, ": training state version is 1, expected 2; resume with the program that wrote it");
    good[0] = 'X';
    temp_write(path, good, bytes);
    CHECK(t, !state_read_header(path, &found, &error), "wrong magic");
    check_text(t, &error, path, ": not a training state: it does not begin with GPT2STAT");
    free(good);
}

// ---- Checkpoints ----

TEST(test_checkpoint) {
    Error error, problem;
    static Run run;
    int64_t steps[2] = {0, 0}, step = -1;
    run_init(&run, tiny_config());
    CHECK(t, checkpoint_list(test_path(t, "none"), steps, 2) == 0, "no folder, no checkpoints");
    for (int64_t s = 5; s <= 15; s += 5) { CHECK(t, run_save(&run, test_folder(t), s, s, &error), "%s", error.text); }
    CHECK(t, run_save(&run, test_folder(t), 123456789012, 7, &error), "%s", error.text);
    CHECK(t, temp_exists(test_path(t, "model_00000005.bin")) && temp_exists(test_path(t, "state_00000005.bin")),
          "names");
    temp_write(test_path(t, "state_0000001.bin"), "", 0);    // 7 digits: not ours
    temp_write(test_path(t, "state_00000001_0.bin"), "", 0); // llm.c's
    temp_write(test_path(t, "state_000000001.bin"), "", 0);  // a zero too many
    CHECK(t, checkpoint_list(test_folder(t), steps, 2) == 2 && steps[0] == 123456789012 && steps[1] == 15,
          "newest first");
    CHECK(t, run_load(&run, test_folder(t), 123456789012, &error) == 7, "%s", error.text);
    CHECK(t, run_load(&run, test_folder(t), 10, &error) == 10, "%s", error.text);
    CHECK(t, checkpoint_find_good(test_folder(t), &step, &problem) && step == 123456789012 && !problem.text[0], "good");
    rename(test_path(t, "state_123456789012.bin"), test_path(t, "state_00000020.bin"));
    CHECK(t, run_load(&run, test_folder(t), 20, &error) == -1, "a renamed state");
    check_text(t, &error, test_path(t, "state_00000020.bin"), ": is the training state of step 123456789012, renamed?");
    CHECK(t, checkpoint_find_good(test_folder(t), &step, &problem) && step == 15, "falls back to %lld",
          (long long)step);
    CHECK(t, strcmp(problem.text, error.text) == 0, "and says why: %s", problem.text);
    run_free(&run);
}

TEST(test_damaged_checkpoint) {
    Error error, problem;
    static Run run;
    int64_t step = -1;
    run_init(&run, tiny_config());
    CHECK(t, run_save(&run, test_folder(t), 1, 1, &error) && run_save(&run, test_folder(t), 2, 2, &error), "%s",
          error.text);
    const char *model = test_path(t, "model_00000002.bin"), *state = test_path(t, "state_00000002.bin");
    for (long i = 0; i < TINY_BYTES; i++) { // unused header slots included
        temp_flip(model, i);
        CHECK(t, run_load(&run, test_folder(t), 2, &error) == -1, "flipped byte %ld of the model was not found", i);
        CHECK(t, !checkpoint_verify(test_folder(t), 2, &error), "nor by verifying");
        temp_flip(model, i);
    }
    temp_flip(model, TINY_BYTES - 1);
    CHECK(t, !checkpoint_verify(test_folder(t), 2, &error), "last byte");
    check_text(t, &error, model, ": is damaged: its checksum does not match");
    CHECK(t, checkpoint_find_good(test_folder(t), &step, &problem) && step == 1, "the one before is good");
    CHECK(t, strcmp(problem.text, error.text) == 0, "%s", problem.text);
    temp_flip(model, TINY_BYTES - 1);
    CHECK(t, run_load(&run, test_folder(t), 2, &error) == 2, "whole again: %s", error.text);
    temp_flip(state, 100);
    CHECK(t, checkpoint_find_good(test_folder(t), &step, &problem) && step == 1, "a damaged state");
    temp_flip(state, 100);
    unlink(model);
    CHECK(t, run_load(&run, test_folder(t), 2, &error) == -1, "no model");
    check_text(t, &error, model, ": cannot open: No such file or directory");
    CHECK(t, checkpoint_find_good(test_folder(t), &step, &problem) && step == 1, "a missing model");
    temp_flip(test_path(t, "model_00000001.bin"), 1100);
    CHECK(t, !checkpoint_find_good(test_folder(t), &step, &problem), "none is left");
    run_free(&run);
}

TEST(test_prune) {
    static const struct {
        int keep;
        int64_t major, newest;
        const char *left;
    } cases[] = {
        {0, 0, 60, "60 50 40 30 20 10 0"}, {2, 0, 60, "60 50"},       {1, 30, 60, "60 30 0"},
        {3, 20, 60, "60 50 40 20 0"},      {1, 0, 30, "60 50 40 30"}, {9, 7, 60, "60 50 40 30 20 10 0"},
    };
    static Run run;
    run_init(&run, tiny_config());
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        TempDir dir = temp_dir_make();
        Error error;
        int64_t steps[16];
        char left[100] = "";
        for (int64_t s = 0; s <= 60; s += 10) { run_save(&run, dir.path, s, s, &error); }
        checkpoint_prune(dir.path, cases[i].newest, cases[i].keep, cases[i].major);
        int count = checkpoint_list(dir.path, steps, 16);
        for (int j = 0; j < count; j++) {
            size_t n = strlen(left);
            snprintf(left + n, sizeof(left) - n, j ? " %lld" : "%lld", (long long)steps[j]);
        }
        CHECK(t, strcmp(left, cases[i].left) == 0, "case %zu: %s", i, left);
        CHECK(t, count_files(dir.path) == 2 * count, "case %zu: models go with their states", i);
        temp_dir_remove(&dir);
    }
    run_free(&run);
}

TEST(test_clean_keeps_what_is_not_ours) {
    Error error;
    static Run run;
    run_init(&run, tiny_config());
    run_save(&run, test_folder(t), 1, 1, &error);
    static const char *const stay[] = {
        "model_00000007.bin",    "model_00000009.bin",       "model_00000010.bin",      "notes.tmp",
        "model_7.bin.tmp",       "mymodel_00000007.bin.tmp", "model_00000007.bin.tmp2", "state_00000011.bin",
        "model_00000011.bin.tmp"};
    static const char *const go[] = {"model_00000001.bin.tmp", "model_00000008.bin.tmp", "state_00000009.bin.tmp",
                                     "model_00000010.bin.tmp"};
    for (int i = 0; i < 9; i++) { temp_write(test_path(t, stay[i]), "x", 1); }
    for (int i = 0; i < 4; i++) { temp_write(test_path(t, go[i]), "x", 1); }
    CHECK(t, checkpoint_clean(test_folder(t), &error), "%s", error.text);
    for (int i = 0; i < 9; i++) { CHECK(t, temp_exists(test_path(t, stay[i])), "%s was removed", stay[i]); }
    for (int i = 0; i < 4; i++) { CHECK(t, !temp_exists(test_path(t, go[i])), "%s stayed", go[i]); }
    CHECK(t, run_load(&run, test_folder(t), 1, &error) == 1, "%s", error.text);
    CHECK(t, !checkpoint_clean(test_path(t, "none"), &error), "no folder");
    check_text(t, &error, test_path(t, "none"), ": cannot read folder: No such file or directory");
    run_free(&run);
}

// A limit on the size of files stands for the full disk: the model does not fit; the state does not.
TEST(test_full_disk) {
    static Run run;
    static const struct {
        rlim_t limit;
        const char *message;
    } cases[] = {
        {1000,
         "/model_00000001.bin: could not reserve 1384 bytes for it: File too large; the partial file was removed"},
        {2000,
         "/state_00000001.bin: could not reserve 9047 bytes for it: File too large; the partial file was removed"}};
    struct rlimit old;
    getrlimit(RLIMIT_FSIZE, &old);
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    run_init(&run, tiny_config());
    for (int i = 0; i < 2; i++) {
        TempDir dir = temp_dir_make();
        Error error;
        struct rlimit tight = {cases[i].limit, old.rlim_max};
        CHECK(t, run_save(&run, dir.path, 1, 1, &error), "%s", error.text);
        setrlimit(RLIMIT_FSIZE, &tight);
        bool saved = run_save(&run, dir.path, 1, 2, &error);
        setrlimit(RLIMIT_FSIZE, &old);
        CHECK(t, !saved, "saved on a full disk");
        check_text(t, &error, dir.path, cases[i].message);
        CHECK(t, run_load(&run, dir.path, 1, &error) == 1, "the previous checkpoint stays: %s", error.text);
        CHECK(t, count_files(dir.path) == 2, "nothing half-written: %d files", count_files(dir.path));
        temp_dir_remove(&dir);
    }
    signal(SIGXFSZ, handler);
    run_free(&run);
}
