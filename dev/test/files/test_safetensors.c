// Hugging Face models: exact round trips, and every way in which a file or its config can be wrong. And what --init
// takes.
#include "llmc/files/model_file.h"
#include "dev/test/files/one_process.h"
#include "dev/test/temp_dir.h"
#include "dev/test/test.h"

static GPT2Config tiny_config(void) {
    GPT2Config config = {2, 3, 128, 1, 2, 2}; // maxT, V, Vp, L, NH, C
    return config;
}

static void write_tiny(const char *dir, float *params) {
    GPT2Config config = tiny_config();
    Error error;
    for (int64_t i = 0; i < gpt2_num_params(&config); i++) { params[i] = 0.5f * (float)i - 7.0f; }
    model_zero_padding(params, &config);
    temp_must(safetensors_write(dir, &config, params, &error), error.text);
}

// A file that is then damaged: its header text and its data.
typedef struct {
    char header[8192];
    uint8_t data[2048];
    size_t data_bytes;
} Parts;

static void take_apart(const char *path, Parts *parts) {
    size_t bytes;
    uint64_t length;
    uint8_t *file = temp_read(path, &bytes);
    memcpy(&length, file, 8);
    memcpy(parts->header, file + 8, (size_t)length);
    parts->header[length] = '\0';
    parts->data_bytes = bytes - 8 - (size_t)length;
    memcpy(parts->data, file + 8 + length, parts->data_bytes);
    free(file);
}

static void put_together(const char *path, const Parts *parts) {
    static uint8_t file[16384];
    uint64_t length = strlen(parts->header);
    memcpy(file, &length, 8);
    memcpy(file + 8, parts->header, (size_t)length);
    memcpy(file + 8 + length, parts->data, parts->data_bytes);
    temp_write(path, file, 8 + (size_t)length + parts->data_bytes);
}

static void replace(Test *t, char *text, size_t size, const char *from, const char *to) {
    static char rest[8192];
    char *at = strstr(text, from);
    if (!CHECK(t, at != NULL, "the test looks for '%s' in vain", from)) { return; }
    snprintf(rest, sizeof(rest), "%s", at + strlen(from));
    snprintf(at, size - (size_t)(at - text), "%s%s", to, rest);
}

// Appends a tensor with its data.
static void append(Test *t, Parts *parts, const char *entry, const void *data, size_t bytes) {
    char member[300];
    snprintf(member, sizeof(member), ",%s,\"data_offsets\":[%zu,%zu]}}", entry, parts->data_bytes,
             parts->data_bytes + bytes);
    memcpy(parts->data + parts->data_bytes, data, bytes);
    parts->data_bytes += bytes;
    parts->header[strrchr(parts->header, '}') - parts->header + 1] = '\0'; // padding
    char *last = strrchr(parts->header, '}');
    CHECK(t, last != NULL, "no header");
    snprintf(last, sizeof(parts->header) - (size_t)(last - parts->header), "%s", member);
}

static void check_text(Test *t, const Error *error, const char *path, const char *rest) {
    size_t n = strlen(path);
    CHECK(t, strncmp(error->text, path, n) == 0 && strcmp(error->text + n, rest) == 0, "got  '%s'\n    want '%s%s'",
          error->text, path, rest);
}

static bool reads(const char *path, Error *error) {
    GPT2Config config;
    float *params = NULL;
    bool ok = safetensors_read_config(path, &config, error);
    if (ok) {
        params = (float *)malloc((size_t)gpt2_num_params(&config) * sizeof(float));
        ok = safetensors_read(path, &config, params, error);
    }
    free(params);
    return ok;
}

static void round_trip(Test *t, GPT2Config config) {
    TempDir dir = temp_dir_make();
    Error error;
    GPT2Config found;
    size_t bytes = (size_t)gpt2_num_params(&config) * sizeof(float);
    float *params = (float *)malloc(bytes), *loaded = (float *)malloc(bytes);
    gpt2_init_params(params, &config, 7);
    memset(loaded, 0xff, bytes);
    const char *path = temp_path(&dir, "new/folder/model.safetensors");
    CHECK(t, safetensors_write(temp_path(&dir, "new/folder"), &config, params, &error), "%s", error.text);
    CHECK(t, safetensors_read_config(path, &found, &error), "%s", error.text);
    CHECK(t, model_configs_equal(&config, &found), "config");
    CHECK(t, safetensors_read(path, &config, loaded, &error), "%s", error.text);
    CHECK(t, memcmp(params, loaded, bytes) == 0, "all bits of %lld channels", (long long)config.channels);
    found.channels++;
    CHECK(t, !safetensors_read(path, &found, loaded, &error), "another config");
    check_text(t, &error, path, ": holds a model of another shape");
    free(params), free(loaded);
    temp_dir_remove(&dir);
}

TEST(test_round_trip) {
    GPT2Config tiny = tiny_config(), odd = {17, 131, 256, 3, 5, 35}, wide = {4, 129, 256, 1, 3, 600};
    round_trip(t, tiny);
    round_trip(t, odd);
    round_trip(t, wide); // linear weights of more than one staging block: 4C x C floats = 1.4 M
}

TEST(test_layout) {
    static Parts parts;
    GPT2Config config = tiny_config();
    float *params = (float *)malloc((size_t)gpt2_num_params(&config) * sizeof(float)), got[12];
    write_tiny(test_folder(t), params);
    take_apart(test_path(t, "model.safetensors"), &parts);
    CHECK(t, strlen(parts.header) % 8 == 0, "data begins at a multiple of 8");
    const char *start = "{\"__metadata__\":{\"format\":\"pt\"},\"wte.weight\":{\"dtype\":\"F32\",\"shape\":[3,2],"
                        "\"data_offsets\":[0,24]},";
    CHECK(t, strncmp(parts.header, start, strlen(start)) == 0, "%.120s", parts.header);
    const char *entry = "\"h.0.attn.c_attn.weight\":{\"dtype\":\"F32\",\"shape\":[2,6],\"data_offsets\":[56,104]}";
    CHECK(t, strstr(parts.header, entry) != NULL, "c_attn is (in, out)");
    memcpy(got, parts.data + 56, sizeof(got));
    const float *ours = params + gpt2_param_offset(&config, PARAM_qkvw); // (out, in)
    for (int in = 0; in < 2; in++) {
        for (int out = 0; out < 6; out++) { CHECK(t, got[6 * in + out] == ours[2 * out + in], "(%d, %d)", in, out); }
    }
    free(params);
}

TEST(test_cut_anywhere) {
    Error error;
    GPT2Config config = tiny_config();
    float *params = (float *)malloc((size_t)gpt2_num_params(&config) * sizeof(float));
    write_tiny(test_folder(t), params);
    free(params);
    const char *path = test_path(t, "model.safetensors");
    size_t bytes;
    uint8_t *file = temp_read(path, &bytes);
    for (size_t n = 0; n < bytes; n++) {
        temp_write(path, file, n);
        CHECK(t, !safetensors_read_config(path, &config, &error), "cut after %zu bytes, accepted", n);
    }
    check_text(t, &error, path, ": tensor ln_f.bias: data_offsets are not within the 351 bytes of data (truncated?)");
    file = (uint8_t *)realloc(file, bytes + 1);
    file[bytes] = 0;
    temp_write(path, file, bytes + 1);
    CHECK(t, !safetensors_read_config(path, &config, &error), "a byte to spare");
    check_text(t, &error, path, ": tensors cover 352 bytes, the file has 353 bytes of data");
    temp_write(path, file, 7);
    CHECK(t, !safetensors_read_config(path, &config, &error), "7 bytes");
    check_text(t, &error, path, ": has 7 bytes, too few for a safetensors file (truncated?)");
    static const uint64_t lengths[] = {UINT64_MAX, 1ULL << 63, 100000001, 0};
    for (int i = 0; i < 4; i++) {
        memcpy(file, &lengths[i], 8);
        temp_write(path, file, bytes);
        CHECK(t, !safetensors_read_config(path, &config, &error), "header length %llu", (unsigned long long)lengths[i]);
    }
    free(file);
}

TEST(test_header_refused) {
    static const struct {
        const char *from, *to, *message;
    } cases[] = {
        {"\"wte.weight\"", "\"wtf.weight\"", ": tensor wtf.weight does not belong to a GPT-2 of 1 layers"},
        {"\"h.0.ln_1.bias\"", "\"h.1.ln_1.bias\"", ": tensor h.1.ln_1.bias does not belong to a GPT-2 of 1 layers"},
        {"\"h.0.ln_1.bias\"", "\"h.00.ln_1.bias\"", ": tensor h.00.ln_1.bias does not belong to a GPT-2 of 1 layers"},
        {"\"h.0.ln_1.bias\"", "\"ln_1.bias\"", ": tensor ln_1.bias does not belong to a GPT-2 of 1 layers"},
        {"\"h.0.ln_1.bias\"", "\"h.0.attn.masked_bias\"", ": tensor h.0.ln_1.bias is missing"},
        {"\"h.0.ln_1.bias\"", "\"transformer.h.0.ln_1.weight\"",
         ": tensor h.0.ln_1.weight is there twice, with and without \"transformer.\""},
        {"\"shape\":[3,2]", "\"shape\":[2,3]", ": tensor wte.weight: shape is [2,3], config.json asks for [3, 2]"},
        {"\"shape\":[3,2]", "\"shape\":[6]", ": tensor wte.weight: shape is [6], config.json asks for [3, 2]"},
        {"\"shape\":[3,2]", "\"shape\":[3,2,1]", ": tensor wte.weight: shape is [3,2,1], config.json asks for [3, 2]"},
        {"\"shape\":[3,2]", "\"shape\":[3,1]", ": tensor wte.weight: 24 bytes of data do not fit its shape"},
        {"\"shape\":[3,2]", "\"shape\":[4294967296,4294967296,4294967296]",
         ": tensor wte.weight: 24 bytes of data do not fit its shape"},
        {"\"shape\":[3,2]", "\"shape\":[4611686018427387910,1]",
         ": tensor wte.weight: 24 bytes of data do not fit its shape"},
        {"\"shape\":[3,2]", "\"shape\":7", ": tensor wte.weight: expected dtype, shape and two data_offsets"},
        {"\"data_offsets\":[0,24]", "\"data_offsets\":[0]",
         ": tensor wte.weight: expected dtype, shape and two data_offsets"},
        {"\"data_offsets\":[0,24]", "\"data_offsets\":[0,24,30]",
         ": tensor wte.weight: expected dtype, shape and two data_offsets"},
        {"\"data_offsets\":[0,24]", "\"data_offsets\":[-24,0]",
         ": tensor wte.weight: data_offsets are not within the 352 bytes of data (truncated?)"},
        {"\"data_offsets\":[0,24]", "\"data_offsets\":[24,0]",
         ": tensor wte.weight: data_offsets are not within the 352 bytes of data (truncated?)"},
        {"\"data_offsets\":[0,24]", "\"data_offsets\":[9223372036854775800,24]",
         ": tensor wte.weight: data_offsets are not within the 352 bytes of data (truncated?)"},
        {"\"data_offsets\":[0,24]", "\"data_offsets\":[16,40]", ": data at byte 16: tensors leave a gap"},
        {"\"data_offsets\":[24,40]", "\"data_offsets\":[0,16]", ": data at byte 0: tensors overlap"},
        {"\"dtype\":\"F32\"", "\"dtype\":\"I32\"", ": tensor wte.weight: its dtype is none of F32, F16, BF16"},
        {"\"dtype\":\"F32\"", "\"dtype\":\"F16\"", ": tensor wte.weight: 24 bytes of data do not fit its shape"},
        {"\"dtype\":\"F32\"", "\"dtype\":\"F33\"", ": tensor wte.weight: unknown dtype F33"},
        {"\"dtype\":\"F32\",", "", ": tensor wte.weight: expected dtype, shape and two data_offsets"},
        {"{\"__metadata__\"", " {\"__metadata__\"", ": the header does not begin with {"},
        {"{\"__metadata__\"", "[{\"__metadata__\"", ": byte 1193: expected ',' or ']'"},
        {"\"wpe.weight\"", "\"wte.weight\"", ": byte 98: key \"wte.weight\" is given twice"},
    };
    Error error;
    static Parts good, parts;
    GPT2Config config = tiny_config();
    float *params = (float *)malloc((size_t)gpt2_num_params(&config) * sizeof(float));
    const char *path = test_path(t, "model.safetensors");
    write_tiny(test_folder(t), params);
    free(params);
    take_apart(path, &good);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        parts = good;
        replace(t, parts.header, sizeof(parts.header), cases[i].from, cases[i].to);
        put_together(path, &parts);
        CHECK(t, !reads(path, &error), "case %zu was accepted", i);
        check_text(t, &error, path, cases[i].message);
    }
}

TEST(test_other_tensors) {
    Error error;
    static Parts good, parts;
    GPT2Config config = tiny_config();
    float *params = (float *)malloc((size_t)gpt2_num_params(&config) * sizeof(float));
    const char *path = test_path(t, "model.safetensors");
    write_tiny(test_folder(t), params);
    take_apart(path, &good);
    parts = good;
    append(t, &parts, "\"h.0.attn.bias\":{\"dtype\":\"U8\",\"shape\":[1,1,2,2]", "\1\0\1\1", 4);
    append(t, &parts, "\"h.0.attn.masked_bias\":{\"dtype\":\"F32\",\"shape\":[]", "\0\0\0\0", 4);
    append(t, &parts, "\"lm_head.weight\":{\"dtype\":\"F32\",\"shape\":[3,2]", params, 24);
    put_together(path, &parts);
    CHECK(t, reads(path, &error), "mask buffers and a tied head: %s", error.text);
    params[5] += 1.0f;
    parts = good;
    append(t, &parts, "\"lm_head.weight\":{\"dtype\":\"F32\",\"shape\":[3,2]", params, 24);
    put_together(path, &parts);
    CHECK(t, !reads(path, &error), "a head of its own");
    check_text(t, &error, path, ": lm_head.weight differs from wte.weight; only models with a tied head are supported");
    parts = good;
    append(t, &parts, "\"lm_head.weight\":{\"dtype\":\"F32\",\"shape\":[2,2]", params, 16);
    put_together(path, &parts);
    CHECK(t, !reads(path, &error), "a head of another shape");
    check_text(t, &error, path, ": tensor lm_head.weight: shape is [2,2], config.json asks for [3, 2]");
    parts = good;
    float infinity = -INFINITY;
    memcpy(parts.data + 56 + 4, &infinity, 4); // h.0.attn.c_attn.weight, (in 0, out 1): element 2 here
    put_together(path, &parts);
    CHECK(t, !reads(path, &error), "an infinity");
    check_text(t, &error, path,
               ": tensor qkvw holds -inf at element 2 of (1, 6, 2); the file is damaged or its training diverged");
    free(params);
}

TEST(test_config_refused) {
    static const struct {
        const char *from, *to, *message; // message NULL: accepted
    } cases[] = {
        {"\"n_ctx\": 2,", "\"n_ctx\": 2, \"n_inner\": null, \"scale_attn_weights\": true,", NULL},
        {"\"n_ctx\": 2,", "\"n_inner\": 8,", NULL},
        {"\"n_ctx\": 2,", "\"n_inner\": 9,", ": \"n_inner\" is not 8: a variant of GPT-2 that is not supported"},
        {"\"n_head\": 2,", "", ": \"n_head\" is missing"},
        {"\"n_head\": 2", "\"n_head\": 0", ": \"n_head\" is not a positive whole number"},
        {"\"n_head\": 2", "\"n_head\": \"2\"", ": \"n_head\" is not a positive whole number"},
        {"\"n_head\": 2", "\"n_head\": 3",
         ": 2 channels cannot be divided among 3 heads; choose heads that divide channels"},
        {"\"n_layer\": 1", "\"n_layer\": 99999999999999999999", ": \"n_layer\" is not a positive whole number"},
        {"\"n_layer\": 1", "\"n_layer\": 2000000000", ": number of layers is 2000000000, expected 1 to 1000"},
        {"\"vocab_size\": 3", "\"vocab_size\": 2147483647", ": vocabulary size is 2147483647, expected 1 to 1048576"},
        {"\"gelu_new\"", "\"relu\"",
         ": \"activation_function\" is not gelu_new: a variant of GPT-2 that is not supported"},
        {"\"model_type\": \"gpt2\"", "\"model_type\": \"gptj\"",
         ": \"model_type\" is not gpt2: a variant of GPT-2 that is not supported"},
        {"1e-05", "1e-6", ": \"layer_norm_epsilon\" is 1e-06, expected 1e-05"},
        {"\"n_ctx\": 2,", "\"scale_attn_by_inverse_layer_idx\": true,",
         ": \"scale_attn_by_inverse_layer_idx\" is not false: a variant of GPT-2 that is not supported"},
        {"}", "", ": byte 476: expected ',' or '}'"},
    };
    Error error;
    GPT2Config config = tiny_config();
    float *params = (float *)malloc((size_t)gpt2_num_params(&config) * sizeof(float));
    const char *path = test_path(t, "model.safetensors"), *config_path = test_path(t, "config.json");
    write_tiny(test_folder(t), params);
    size_t bytes;
    uint8_t *good = temp_read(config_path, &bytes);
    good[bytes] = '\0';
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[2048];
        snprintf(text, sizeof(text), "%s", (char *)good);
        replace(t, text, sizeof(text), cases[i].from, cases[i].to);
        temp_write(config_path, text, strlen(text));
        bool ok = reads(path, &error);
        CHECK(t, ok == (cases[i].message == NULL), "case %zu: %s", i, ok ? "accepted" : error.text);
        if (!ok && cases[i].message != NULL) { check_text(t, &error, config_path, cases[i].message); }
    }
    unlink(config_path);
    CHECK(t, !reads(path, &error), "no config.json");
    char rest[1100];
    snprintf(rest, sizeof(rest), ": missing; it belongs beside %s and tells the number of heads", path);
    check_text(t, &error, config_path, rest);
    free(good), free(params);
}

// ---- What --init takes ----

TEST(test_init_files) {
    Error error;
    static ModelFile file;
    GPT2Config config = tiny_config();
    size_t bytes = (size_t)gpt2_num_params(&config) * sizeof(float);
    float *params = (float *)malloc(bytes), *loaded = (float *)malloc(bytes);
    write_tiny(test_path(t, "hf"), params);
    CHECK(t, model_bin_write(test_path(t, "m.bin"), &config, params, &error), "%s", error.text);
    const char *inits[] = {test_path(t, "hf"), test_path(t, "hf/model.safetensors"), test_path(t, "m.bin")};
    for (int i = 0; i < 3; i++) {
        memset(loaded, 0xff, bytes);
        CHECK(t, model_file_open(&file, inits[i], &error), "%s", error.text);
        CHECK(t, file.kind == (i < 2 ? MODEL_FROM_SAFETENSORS : MODEL_FROM_BIN), "kind of %s", inits[i]);
        CHECK(t, model_configs_equal(&file.config, &config), "config of %s", inits[i]);
        CHECK(t, model_file_read(&file, loaded, &error) && memcmp(params, loaded, bytes) == 0, "%s", error.text);
    }
    CHECK(t, model_file_open(&file, "d12", &error) && file.kind == MODEL_FROM_SIZE, "%s", error.text);
    CHECK(t, file.config.num_layers == 12 && file.config.channels == 768 && file.config.vocab_size == 0, "d12");
    CHECK(t, !model_file_open(&file, "d13", &error), "no such size");
    check_text(t, &error, "--init d13: neither a size (" GPT2_SIZE_NAMES,
               ") nor a file .bin or .safetensors nor a folder with a model");
    CHECK(t, !model_file_open(&file, "", &error), "empty");
    check_text(t, &error, "--init", ": the path is empty");
    CHECK(t, !model_file_open(&file, test_path(t, "none.bin"), &error), "no such file");
    check_text(t, &error, test_path(t, "none.bin"), ": cannot open: No such file or directory");
    CHECK(t, !model_file_open(&file, test_folder(t), &error), "a folder without a model");
    check_text(t, &error, test_folder(t),
               ": this folder holds no model: neither model.safetensors nor model_<step>.bin");
    temp_write(test_path(t, "pytorch_model.bin"), "x", 1);
    CHECK(t, !model_file_open(&file, test_folder(t), &error), "PyTorch's format");
    check_text(t, &error, test_path(t, "pytorch_model.bin"),
               ": is in PyTorch's own format; load it with transformers and save it as one model.safetensors "
               "(save_pretrained, max_shard_size='1TB')");
    temp_write(test_path(t, "model.safetensors.index.json"), "x", 1);
    CHECK(t, !model_file_open(&file, test_folder(t), &error), "several files");
    CHECK(t, strstr(error.text, ".index.json: the model is in several files; load it") != NULL, "%s", error.text);
    free(params), free(loaded);
}

TEST(test_init_run_folder) {
    Error error;
    static ModelFile file;
    static StateHeader header;
    GPT2Config config = tiny_config();
    float *params = (float *)calloc((size_t)gpt2_num_params(&config), sizeof(float));
    int64_t bytes = gpt2_num_params(&config) * (int64_t)sizeof(float);
    const StateSection moments[2] = {{"adam_m", params, bytes}, {"adam_v", params, bytes}};
    for (int64_t step = 1; step <= 3; step++) {
        state_init(&header);
        CHECK(t, checkpoint_save(test_folder(t), step, &config, params, &header, moments, 2, &error), "%s", error.text);
    }
    CHECK(t, model_file_open(&file, test_folder(t), &error) && ends_with(file.path, "/model_00000003.bin"), "%s",
          error.text);
    CHECK(t, file.note.text[0] == '\0' && file.kind == MODEL_FROM_BIN, "nothing passed over");
    const char *newest = test_path(t, "model_00000003.bin"), *temporary = test_path(t, "model_00000003.bin.tmp");
    CHECK(t,
          rename(newest, temporary) == 0 && model_file_open(&file, test_folder(t), &error) &&
              strcmp(file.path, temporary) == 0 && rename(temporary, newest) == 0,
          "killed before the model got its name: %s", file.path);
    temp_flip(test_path(t, "model_00000003.bin"), 1030);
    CHECK(t, model_file_open(&file, test_folder(t), &error) && ends_with(file.path, "/model_00000002.bin"), "%s",
          error.text);
    check_text(t, &file.note, test_path(t, "model_00000003.bin"), ": is damaged: its checksum does not match");
    unlink(test_path(t, "state_00000003.bin")); // without a state nobody knows; the header is sound
    CHECK(t, model_file_open(&file, test_folder(t), &error) && ends_with(file.path, "/model_00000003.bin"), "%s",
          error.text);
    for (int i = 1; i <= 3; i++) {
        char name[32];
        snprintf(name, sizeof(name), "model_%08d.bin", i);
        temp_write(test_path(t, name), "x", 1);
    }
    CHECK(t, !model_file_open(&file, test_folder(t), &error), "all damaged");
    CHECK(t, strstr(error.text, "model_00000003.bin: 1 bytes, less than the header of a model") != NULL, "%s",
          error.text);
    free(params);
}
