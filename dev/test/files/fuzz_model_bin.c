// Fuzz target: the reader of llm.c model files, float32 and bfloat16.
#include "dev/test/files/whole_model.h"
#include "dev/test/fuzz.h"
#include "llmc/files/model_bin.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const char *path = fuzz_temp_file(data, size);
    ModelConfig config;
    BinFile bin;
    if (!model_bin_open(&bin, path, &config, &error)) { return 0; }
    input_close(&bin.file);
    require(model_check_config(&config, "fuzz", &error) && model_bin_bytes(&config, bin.header[1]) == (int64_t)size);
    int64_t n = model_num_params(&config);
    float *params = (float *)malloc((size_t)n * sizeof(float)); // never more than the file's size times two
    if (model_bin_read_range(path, &config, 0, n, params, &error)) {
        require(first_outside(params, n, -FLT_MAX) == n);
        for (int64_t i = (int64_t)config.vocab_size * config.channels;
             i < (int64_t)config.padded_vocab_size * config.channels; i++) {
            require(params[i] == 0.0f);
        }
        float part[16];
        int64_t first = (int64_t)size % n, count = min_i64(16, n - first);
        require(model_bin_read_range(path, &config, first, count, part, &error));
        require(memcmp(part, params + first, (size_t)count * sizeof(float)) == 0);
    }
    free(params);
    return 0;
}

size_t fuzz_seed_input(int which, uint8_t *buffer, size_t capacity) {
    ModelConfig config = GPT2_CONFIG(2, 3, 4, 1, 1, 2);
    int version = which == 0 ? MODEL_BIN_FP32 : MODEL_BIN_BF16;
    size_t size = (size_t)model_bin_bytes(&config, version);
    int32_t header[DATA_HEADER_INTS];
    if (which > 1 || size > capacity) { return 0; }
    model_bin_make_header(header, &config, version);
    memcpy(buffer, header, sizeof(header));
    for (size_t i = sizeof(header); i < size; i++) { buffer[i] = (uint8_t)(i * 7 & 0x3f); }
    return size;
}
