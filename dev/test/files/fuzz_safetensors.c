// Fuzz target: the reader of Hugging Face models. An input is config.json in one line, a newline, model.safetensors.
#include "dev/test/files/whole_model.h"
#include "dev/test/fuzz.h"
#include "llmc/files/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const uint8_t *newline = size > 0 ? (const uint8_t *)memchr(data, '\n', size) : NULL;
    if (newline == NULL) { return 0; }
    GPT2Config config;
    Error error;
    fuzz_put("config.json", data, (size_t)(newline - data));
    const char *path = fuzz_put("model.safetensors", newline + 1, size - (size_t)(newline + 1 - data));
    if (!safetensors_read_config(path, &config, &error)) { return 0; }
    if (!gpt2_check_config(&config, "fuzz", &error)) { abort(); }
    int64_t positions = safetensors_trained_positions(path, &config), n = gpt2_num_params(&config);
    if (positions < 0 || positions > config.max_seq_len) { abort(); }
    int64_t padding = ((int64_t)config.padded_vocab_size - config.vocab_size) * config.channels;
    if (2 * (n - padding) > (int64_t)size) { abort(); } // more weights than the file has room for
    float *params = (float *)malloc((size_t)n * sizeof(float));
    if (safetensors_read(path, &config, params, &error)) {
        float part[16];
        int64_t first = (int64_t)size % n, count = min_i64(16, n - first);
        bool ok = first_not_finite(params, n) == n &&
                  safetensors_read_range(path, &config, first, count, part, &error) &&
                  memcmp(part, params + first, (size_t)count * sizeof(float)) == 0;
        if (!ok) { abort(); }
    }
    free(params);
    return 0;
}

// Which 0: float32. 1: half precision, names with a prefix, mask buffers and a head.
size_t fuzz_seed_input(int which, uint8_t *buffer, size_t capacity) {
    GPT2Config config = {2, 3, 128, 1, 2, 2};
    char *header = (char *)malloc(16384);
    size_t n = 0;
    int64_t offset = 0;
    n += (size_t)snprintf(header + n, 16384 - n, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (int i = 0; i < NUM_PARAM_TENSORS; i++) {
        int64_t shape[2];
        char name[64], dims[64];
        int rank = safetensors_shape(&config, i, shape);
        int64_t end = offset + (rank == 1 ? shape[0] : shape[0] * shape[1]) * (which == 0 ? 4 : 2);
        gpt2_hf_name(name, sizeof(name), i, 0);
        snprintf(dims, sizeof(dims), rank == 1 ? "%lld" : "%lld,%lld", (long long)shape[0], (long long)shape[1]);
        n += (size_t)snprintf(header + n, 16384 - n,
                              ",\"%s%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%lld,%lld]}",
                              which == 0 ? "" : "transformer.", name, which == 0 ? "F32" : "F16", dims,
                              (long long)offset, (long long)end);
        offset = end;
    }
    if (which == 1) {
        n += (size_t)snprintf(header + n, 16384 - n,
                              ",\"h.0.attn.bias\":{\"dtype\":\"U8\",\"shape\":[1,2,2],\"data_offsets\":[%lld,%lld]},"
                              "\"lm_head.weight\":{\"dtype\":\"F16\",\"shape\":[3,2],\"data_offsets\":[%lld,%lld]}",
                              (long long)offset, (long long)offset + 4, (long long)offset + 4, (long long)offset + 16);
        offset += 16;
    }
    header[n++] = '}';
    uint64_t length = n;
    size_t at = (size_t)snprintf(
        (char *)buffer, capacity,
        "{\"n_layer\":1,\"n_head\":2,\"n_embd\":2,\"n_positions\":2,\"vocab_size\":3,"
        "\"gpt2c_trained_positions\":1,\"activation_function\":\"gelu_new\",\"layer_norm_epsilon\":1e-05}\n");
    memcpy(buffer + at, &length, 8), at += 8;
    memcpy(buffer + at, header, n), at += n;
    memset(buffer + at, 0x3c, (size_t)offset), at += (size_t)offset; // 0.01 in float, 1.06 in half precision
    free(header);
    return which <= 1 ? at : 0;
}
