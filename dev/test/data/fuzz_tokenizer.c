// Fuzz target: the readers of vocab.bpe and of llm.c's gpt2_tokenizer.bin. Every token of what they accept must be
// readable; merges must encode; the copy that a run keeps must be the same tokenizer.
#include "dev/test/data/fuzz_round_trip.h"

static void check_copy(const Tokenizer *t) {
    Text text = {NULL, 0, 0, false}, again = {NULL, 0, 0, false};
    Tokenizer copy;
    Error error;
    require(tokenizer_write(t, &text, &error));
    require(tokenizer_load(&copy, fuzz_temp_file((const uint8_t *)text.data, text.used), &error));
    require(tokenizer_write(&copy, &again, &error));
    require(again.used == text.used && memcmp(again.data, text.data, text.used) == 0);
    tokenizer_free(&copy);
    text_free(&text);
    text_free(&again);
}

static void check_tokens(const Tokenizer *t) {
    int bytes = 0;
    unsigned sum = 0;
    require(t->vocab_size >= 1 && t->vocab_size <= MAX_VOCAB && (t->kind != TOKENIZER_BYTE || t->vocab_size == 257));
    require(t->eot_token >= 0 && t->eot_token < t->vocab_size);
    for (int i = 0; i < t->vocab_size; i++) {
        const uint8_t *piece = tokenizer_decode(t, i, &bytes);
        require(piece != NULL && bytes >= 1 && bytes <= MAX_TOKEN_BYTES);
        for (int k = 0; k < bytes; k++) { sum += piece[k]; } // the sanitizer sees whether they are there
    }
    require(sum < UINT32_MAX && tokenizer_decode(t, t->vocab_size, &bytes) == NULL);
    check_copy(t);
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

// gpt2_tokenizer.bin with the tokens of an encoding, from which its merges follow, or with the bytes.
static size_t copy_of_tokenizer(bool bytes, uint8_t *buffer) {
    static const char merges[] = "a b\nab c\na a\naa aa\nc a\nca ab\n";
    Tokenizer t;
    Error error;
    Text text = {NULL, 0, 0, false};
    memset(&t, 0, sizeof(t));
    if (bytes) { tokenizer_init_byte(&t); }
    require(bytes || tokenizer_parse_merges(&t, "seed", (const uint8_t *)merges, (int64_t)strlen(merges), 0, &error));
    require(tokenizer_write(&t, &text, &error));
    size_t size = text.used;
    memcpy(buffer, text.data, size);
    text_free(&text);
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
    if (which >= 7 || capacity < (1 << 13)) { return 0; }
    if (which < 3) {
        memcpy(buffer, merges[which], strlen(merges[which]));
        return strlen(merges[which]);
    }
    if (which >= 5) { return copy_of_tokenizer(which == 6, buffer); }
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
