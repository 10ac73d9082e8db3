// Fuzz target: the reader of vocab.bpe. What it accepts must encode and decode within its vocabulary.
#include "dev/test/fuzz.h"
#include "llmc/data/tokenizer.h"

static void check_tokens(const Tokenizer *t) {
    static const char text[] = "abc  aab's\n\xc3\xa9\xff 12 caab";
    uint16_t tokens[sizeof(text)];
    Error error;
    int64_t count;
    int bytes = 0;
    require(t->vocab_size > 257 && t->vocab_size <= MAX_VOCAB && t->eot_token == t->vocab_size - 1);
    for (int i = 0; i < t->vocab_size; i++) {
        require(tokenizer_decode(t, i, &bytes) != NULL && bytes >= 1 && bytes <= MAX_TOKEN_BYTES);
    }
    require(tokenizer_encode(t, (const uint8_t *)text, strlen(text), tokens, &count, &error));
    size_t at = 0;
    for (int64_t i = 0; i < count; i++) {
        const uint8_t *piece = tokenizer_decode(t, tokens[i], &bytes);
        require(tokens[i] < t->eot_token && memcmp(piece, text + at, (size_t)bytes) == 0);
        at += (size_t)bytes;
    }
    require(at == strlen(text));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Tokenizer t;
    Error error;
    memset(&t, 0, sizeof(t));
    if (tokenizer_parse_merges(&t, "fuzz", data, (int64_t)size, 0, &error)) { check_tokens(&t); }
    tokenizer_free(&t);
    return 0;
}

size_t fuzz_seed_input(int which, uint8_t *buffer, size_t capacity) {
    static const char *const seeds[] = {
        "#version: 0.2\na b\nab c\na a\naa aa\nb c\nca ab\n",
        "\xc4\xa0 a\n\xc4\xa0 \xc4\xa0\n' s\n\xc3\x83 \xc2\xa9\n\xc4\x8a \xc4\x8a\n1 2\n\xc4\xa0\x61 a\n",
        "# #\n## ##\n#### ####\n######## ########\n################ ################\n",
    };
    if (which >= (int)(sizeof(seeds) / sizeof(seeds[0])) || strlen(seeds[which]) > capacity) { return 0; }
    memcpy(buffer, seeds[which], strlen(seeds[which]));
    return strlen(seeds[which]);
}
