// Fuzz target: the reader of llm.c's gpt2_tokenizer.bin. Every token of what it accepts must be readable.
#include "dev/test/fuzz.h"
#include "llmc/data/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Tokenizer t;
    Error error;
    int bytes = 0;
    unsigned sum = 0;
    if (!tokenizer_load(&t, fuzz_temp_file(data, size), &error)) {
        require(strlen(error.text) > 0 && strchr(error.text, '\n') == NULL);
        return 0;
    }
    require(t.kind != TOKENIZER_BYTE && t.vocab_size >= 1 && t.eot_token < t.vocab_size && t.eot_token >= 0);
    for (int i = 0; i < t.vocab_size; i++) {
        const uint8_t *piece = tokenizer_decode(&t, i, &bytes);
        require(piece != NULL && bytes >= 1);
        for (int k = 0; k < bytes; k++) { sum += piece[k]; } // the sanitizer sees whether they are there
    }
    require(sum < UINT32_MAX && tokenizer_decode(&t, t.vocab_size, &bytes) == NULL);
    tokenizer_free(&t);
    return 0;
}

size_t fuzz_seed_input(int which, uint8_t *buffer, size_t capacity) {
    static const uint32_t headers[][4] = {
        {TOKENIZER_MAGIC, 2, 12, 11}, {TOKENIZER_MAGIC, 2, 1, 0}, {TOKENIZER_MAGIC, 1, 50257, 0}};
    if (which >= (int)(sizeof(headers) / sizeof(headers[0]))) { return 0; }
    size_t size = (size_t)DATA_HEADER_BYTES;
    if (size + 3 * headers[which][2] > capacity) { return 0; }
    memset(buffer, 0, size);
    memcpy(buffer, headers[which], sizeof(headers[which]));
    for (uint32_t i = 0; i < headers[which][2]; i++) {
        buffer[size++] = (uint8_t)(1 + i % 2);
        for (uint32_t k = 0; k < 1 + i % 2; k++) { buffer[size++] = (uint8_t)i; }
    }
    return size;
}
