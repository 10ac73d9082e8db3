// Fuzz target: the readers of vocab.bpe and of llm.c's gpt2_tokenizer.bin. Every token of what they accept must be
// readable; merges must encode.
#include "dev/test/data/fuzz_round_trip.h"

static void check_tokens(const Tokenizer *t) {
    int bytes = 0;
    unsigned sum = 0;
    require(t->kind != TOKENIZER_BYTE && t->vocab_size >= 1 && t->vocab_size <= MAX_VOCAB);
    require(t->eot_token >= 0 && t->eot_token < t->vocab_size);
    for (int i = 0; i < t->vocab_size; i++) {
        const uint8_t *piece = tokenizer_decode(t, i, &bytes);
        require(piece != NULL && bytes >= 1 && bytes <= MAX_TOKEN_BYTES);
        for (int k = 0; k < bytes; k++) { sum += piece[k]; } // the sanitizer sees whether they are there
    }
    require(sum < UINT32_MAX && tokenizer_decode(t, t->vocab_size, &bytes) == NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Tokenizer t;
    Error error;
    memset(&t, 0, sizeof(t));
    if (tokenizer_parse_merges(&t, "fuzz", data, (int64_t)size, 0, &error)) {
        require(t.vocab_size > 257 && t.eot_token == t.vocab_size - 1);
        check_tokens(&t);
        check_encodes(&t);
    }
    tokenizer_free(&t);
    if (!tokenizer_load(&t, fuzz_temp_file(data, size), &error)) {
        require(strlen(error.text) > 0 && strchr(error.text, '\n') == NULL);
        return 0;
    }
    check_tokens(&t);
    if (tokenizer_can_encode(&t)) { check_encodes(&t); }
    tokenizer_free(&t);
    return 0;
}

// gpt2_tokenizer.bin with the tokens of an encoding: its merges follow from them.
static size_t encoding_tokens(uint8_t *buffer) {
    static const char merges[] = "a b\nab c\na a\naa aa\nc a\nca ab\n";
    Tokenizer t;
    Error error;
    size_t size = (size_t)DATA_HEADER_BYTES;
    memset(&t, 0, sizeof(t));
    require(tokenizer_parse_merges(&t, "seed", (const uint8_t *)merges, (int64_t)strlen(merges), 0, &error));
    const uint32_t header[4] = {TOKENIZER_MAGIC, 2, (uint32_t)t.vocab_size, (uint32_t)t.eot_token};
    memset(buffer, 0, size);
    memcpy(buffer, header, sizeof(header));
    for (int i = 0; i < t.vocab_size; i++) {
        int bytes = 0;
        const uint8_t *piece = tokenizer_decode(&t, i, &bytes);
        buffer[size++] = (uint8_t)bytes;
        memcpy(buffer + size, piece, (size_t)bytes);
        size += (size_t)bytes;
    }
    tokenizer_free(&t);
    return size;
}

size_t fuzz_seed_input(int which, uint8_t *buffer, size_t capacity) {
    static const char *const merges[] = {
        "#version: 0.2\na b\nab c\na a\naa aa\nc a\nca ab\n",
        "\xc4\xa0 a\n\xc4\xa0 \xc4\xa0\n' s\n\xc3\x83 \xc2\xa9\n\xc4\x8a \xc4\x8a\n1 2\n\xc4\xa0\x61 a\n",
        "# #\n## ##\n#### ####\n######## ########\n################ ################\n",
    };
    static const uint32_t headers[][4] = {{TOKENIZER_MAGIC, 2, 12, 11}, {TOKENIZER_MAGIC, 2, 1, 0}};
    if (which >= 6 || capacity < (1 << 13)) { return 0; }
    if (which < 3) {
        memcpy(buffer, merges[which], strlen(merges[which]));
        return strlen(merges[which]);
    }
    if (which == 5) { return encoding_tokens(buffer); }
    const uint32_t *header = headers[which - 3];
    size_t size = (size_t)DATA_HEADER_BYTES;
    memset(buffer, 0, size);
    memcpy(buffer, header, sizeof(headers[0]));
    for (uint32_t i = 0; i < header[2]; i++) {
        buffer[size++] = (uint8_t)(1 + i % 2);
        for (uint32_t k = 0; k < 1 + i % 2; k++) { buffer[size++] = (uint8_t)i; }
    }
    return size;
}
