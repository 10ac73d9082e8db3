// Hugging Face models: exact round trips, and every way in which a file or its config can be wrong. And what --init
// takes.
#include "dev/test/files/checkpoint_run.h"
#include "dev/test/files/whole_model.h"
#include "dev/test/refused.h"
#include "dev/test/temp_dir.h"
#include "llmc/files/model_file.h"

enum { SMALL_PARAMS = 338 };
static const GPT2Config small = {2, 3, 128, 1, 2, 2}; // maxT, V, Vp, L, NH, C
static float small_params[SMALL_PARAMS];

static void write_small(const char *dir) {
    Error error;
    temp_must(gpt2_num_params(&small) == SMALL_PARAMS, "SMALL_PARAMS");
    for (int i = 0; i < SMALL_PARAMS; i++) { small_params[i] = 0.5f * (float)i - 7.0f; }
    model_zero_padding(small_params, &small);
    temp_must(safetensors_write(dir, &small, small_params, &error), error.text);
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

TEST(test_layout) {
    static Parts parts;
    float got[12];
    write_small(test_folder(t));
    take_apart(test_path(t, "model.safetensors"), &parts);
    CHECK(t, strlen(parts.header) % 8 == 0, "data begins at a multiple of 8");
    const char *start = "{\"__metadata__\":{\"format\":\"pt\"},\"wte.weight\":{\"dtype\":\"F32\",\"shape\":[3,2],"
                        "\"data_offsets\":[0,24]},";
    CHECK(t, strncmp(parts.header, start, strlen(start)) == 0, "%.120s", parts.header);
    const char *entry = "\"h.0.attn.c_attn.weight\":{\"dtype\":\"F32\",\"shape\":[2,6],\"data_offsets\":[56,104]}";
    CHECK(t, strstr(parts.header, entry) != NULL, "c_attn is (in, out)");
    memcpy(got, parts.data + 56, sizeof(got));
    const float *ours = small_params + gpt2_param_offset(&small, PARAM_qkvw); // (out, in)
    for (int in = 0; in < 2; in++) {
        for (int out = 0; out < 6; out++) { CHECK(t, got[6 * in + out] == ours[2 * out + in], "(%d, %d)", in, out); }
    }
}

TEST(test_cut_anywhere) {
    Error error;
    GPT2Config config;
    write_small(test_folder(t));
    const char *path = test_path(t, "model.safetensors");
    size_t bytes;
    uint8_t *file = temp_read(path, &bytes);
    for (size_t n = 0; n < bytes; n++) {
        temp_write(path, file, n);
        CHECK(t, !safetensors_read_config(path, &config, &error), "cut after %zu bytes, accepted", n);
    }
    CHECK_REFUSED(t, false, &error, path,
                  ": tensor ln_f.bias: data_offsets are not within the 351 bytes of data (truncated?)");
    file[bytes] = 0; // temp_read has room for it
    temp_write(path, file, bytes + 1);
    CHECK_REFUSED(t, safetensors_read_config(path, &config, &error), &error, path,
                  ": tensors cover 352 bytes, the file has 353 bytes of data");
    temp_write(path, file, 7);
    CHECK_REFUSED(t, safetensors_read_config(path, &config, &error), &error, path,
                  ": has 7 bytes, too few for a safetensors file (truncated?)");
    static const uint64_t lengths[] = {UINT64_MAX, 1ULL << 63, 100000001, 0};
    for (int i = 0; i < 4; i++) {
        memcpy(file, &lengths[i], 8);
        temp_write(path, file, bytes);
        CHECK(t, !safetensors_read_config(path, &config, &error), "header length %llu", (unsigned long long)lengths[i]);
    }
    free(file);
}

typedef struct {
    const char *from, *to, *message; // message NULL: accepted
} Change;

// Changes the text of config.json, or of the header of model.safetensors, in one place.
static void check_changes(Test *t, bool in_config, const Change *changes, size_t count) {
    static Parts good, parts;
    const char *path = test_path(t, "model.safetensors"), *config_path = test_path(t, "config.json");
    write_small(test_folder(t));
    take_apart(path, &good);
    if (in_config) {
        size_t bytes;
        uint8_t *text = temp_read(config_path, &bytes);
        snprintf(good.header, sizeof(good.header), "%.*s", (int)bytes, (char *)text);
        free(text);
    }
    for (size_t i = 0; i < count; i++) {
        Error error;
        parts = good;
        replace(t, parts.header, sizeof(parts.header), changes[i].from, changes[i].to);
        if (in_config) { temp_write(config_path, parts.header, strlen(parts.header)); }
        if (!in_config) { put_together(path, &parts); }
        bool ok = reads(path, &error);
        if (changes[i].message == NULL) { CHECK(t, ok, "%s: %s", changes[i].to, error.text); }
        if (changes[i].message == NULL) { continue; }
        CHECK_REFUSED(t, ok, &error, in_config ? config_path : path, changes[i].message);
    }
}

TEST(test_header) {
    static const Change changes[] = {
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
        {"\"shape\":[3,2]", "\"shape\":[9007199254740992,1]",
         ": tensor wte.weight: 24 bytes of data do not fit its shape"},
        {"\"shape\":[3,2]", "\"shape\":[4611686018427387910,1]",
         ": byte 69: expected a whole number from 0 to 9007199254740992, found 4611686018427387910"},
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
    check_changes(t, false, changes, sizeof(changes) / sizeof(changes[0]));
}

// Tensors behind those of the model, with their data.
TEST(test_other_tensors) {
    Error error;
    static Parts good, parts;
    const char *path = test_path(t, "model.safetensors");
    write_small(test_folder(t));
    take_apart(path, &good);
    parts = good;
    append(t, &parts, "\"h.0.attn.bias\":{\"dtype\":\"U8\",\"shape\":[1,1,2,2]", "\1\0\1\1", 4);
    append(t, &parts, "\"h.0.attn.masked_bias\":{\"dtype\":\"F32\",\"shape\":[]", "\0\0\0\0", 4);
    append(t, &parts, "\"lm_head.weight\":{\"dtype\":\"F32\",\"shape\":[3,2]", small_params, 24);
    put_together(path, &parts);
    CHECK(t, reads(path, &error), "mask buffers and a tied head: %s", error.text);
    small_params[5] += 1.0f;
    parts = good;
    append(t, &parts, "\"lm_head.weight\":{\"dtype\":\"F32\",\"shape\":[3,2]", small_params, 24);
    put_together(path, &parts);
    CHECK_REFUSED(t, reads(path, &error), &error, path,
                  ": lm_head.weight differs from wte.weight; only models with a tied head are supported");
    parts = good;
    append(t, &parts, "\"lm_head.weight\":{\"dtype\":\"F32\",\"shape\":[2,2]", small_params, 16);
    put_together(path, &parts);
    CHECK_REFUSED(t, reads(path, &error), &error, path,
                  ": tensor lm_head.weight: shape is [2,2], config.json asks for [3, 2]");
}

TEST(test_config) {
    static const Change changes[] = {
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
    char rest[1100];
    check_changes(t, true, changes, sizeof(changes) / sizeof(changes[0]));
    unlink(test_path(t, "config.json"));
    const char *path = test_path(t, "model.safetensors");
    snprintf(rest, sizeof(rest), ": missing; it belongs beside %s and tells the number of heads", path);
    CHECK_REFUSED(t, reads(path, &error), &error, test_path(t, "config.json"), rest);
}

// ---- What --init takes ----

TEST(test_init_files) {
    Error error;
    static ModelFile file;
    float loaded[SMALL_PARAMS];
    write_small(test_path(t, "hf"));
    CHECK(t, model_bin_write(test_path(t, "m.bin"), &small, small_params, &error), "%s", error.text);
    const char *inits[] = {test_path(t, "hf"), test_path(t, "hf/model.safetensors"), test_path(t, "m.bin")};
    for (int i = 0; i < 3; i++) {
        memset(loaded, 0xff, sizeof(loaded));
        CHECK(t, model_file_open(&file, inits[i], &error), "%s", error.text);
        CHECK(t, file.kind == (i < 2 ? MODEL_FROM_SAFETENSORS : MODEL_FROM_BIN), "kind of %s", inits[i]);
        CHECK(t, model_file_read(&file, loaded, &error), "%s", error.text);
        CHECK(t, memcmp(small_params, loaded, sizeof(loaded)) == 0, "%s: other weights", inits[i]);
    }
    CHECK(t, model_file_open(&file, "d12", &error) && file.kind == MODEL_FROM_SIZE, "%s", error.text);
    CHECK(t, file.config.num_layers == 12 && file.config.channels == 768 && file.config.vocab_size == 0, "d12");
}

TEST(test_init_refused) {
    static const char again[] = "; load it with transformers and save it as one model.safetensors (save_pretrained, "
                                "max_shard_size='1TB')";
    static ModelFile file;
    Error error;
    char rest[300];
    CHECK_REFUSED(t, model_file_open(&file, "d13", &error), &error, "--init d13",
                  ": neither a size (one of" GPT2_SIZE_NAMES ") nor a model's file nor a folder with a model");
    CHECK_REFUSED(t, model_file_open(&file, "", &error), &error, "--init", ": the path is empty");
    if (!path_exists("dev/data/gpt2/gpt2-xl")) {
        CHECK_REFUSED(t, model_file_open(&file, "dev/data/gpt2/gpt2-xl", &error), &error, "--init gpt2-xl",
                      ": its weights are not in dev/data/gpt2/gpt2-xl; `python3 dev/data/gpt2.py gpt2-xl` fetches "
                      "them, --init 1558M is a new model of this size");
    }
    CHECK_REFUSED(t, model_file_open(&file, test_path(t, "none.bin"), &error), &error, test_path(t, "none.bin"),
                  ": cannot open: No such file or directory");
    CHECK_REFUSED(t, model_file_open(&file, test_folder(t), &error), &error, test_folder(t),
                  ": this folder holds no model: neither model.safetensors nor model_<step>.bin");
    const char *pytorch = test_path(t, "pytorch_model.bin"), *index = test_path(t, "model.safetensors.index.json");
    temp_write(pytorch, "x", 1);
    snprintf(rest, sizeof(rest), ": is in PyTorch's own format%s", again);
    CHECK_REFUSED(t, model_file_open(&file, test_folder(t), &error), &error, pytorch, rest);
    temp_write(index, "x", 1);
    snprintf(rest, sizeof(rest), ": the model is in several files%s", again);
    CHECK_REFUSED(t, model_file_open(&file, test_folder(t), &error), &error, index, rest);
}

static void check_opens(Test *t, ModelFile *file, const char *name) {
    Error error;
    CHECK(t, model_file_open(file, test_folder(t), &error), "%s", error.text);
    CHECK(t, file->kind == MODEL_FROM_BIN && strcmp(file->path, test_path(t, name)) == 0, "%s, expected %s", file->path,
          name);
}

TEST(test_init_run_folder) {
    Error error;
    static ModelFile file;
    static Run run;
    run_init(&run, tiny_config());
    for (int64_t step = 1; step <= 3; step++) {
        CHECK(t, run_save(&run, test_folder(t), step, step, &error), "%s", error.text);
    }
    check_opens(t, &file, "model_00000003.bin");
    CHECK(t, file.note.text[0] == '\0', "nothing passed over");
    const char *newest = test_path(t, "model_00000003.bin"), *temporary = test_path(t, "model_00000003.bin.tmp");
    temp_must(rename(newest, temporary) == 0, newest); // killed before the model got its name
    check_opens(t, &file, "model_00000003.bin.tmp");
    temp_must(rename(temporary, newest) == 0, newest);
    temp_flip(test_path(t, "model_00000003.bin"), 1030);
    check_opens(t, &file, "model_00000002.bin");
    CHECK_REFUSED(t, false, &file.note, test_path(t, "model_00000003.bin"),
                  ": is damaged: its checksum does not match");
    unlink(test_path(t, "state_00000003.bin")); // without a state nobody knows; the header is sound
    check_opens(t, &file, "model_00000003.bin");
    for (int i = 1; i <= 3; i++) {
        char name[32];
        snprintf(name, sizeof(name), "model_%08d.bin", i);
        temp_write(test_path(t, name), "x", 1);
    }
    CHECK(t, !model_file_open(&file, test_folder(t), &error), "all damaged");
    CHECK(t, strstr(error.text, "model_00000003.bin: 1 bytes, less than the header of a model") != NULL, "%s",
          error.text);
    run_free(&run);
}
