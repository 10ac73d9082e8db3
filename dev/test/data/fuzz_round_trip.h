// For fuzzers of tokenizers: what is encoded comes back.
#ifndef FUZZ_ROUND_TRIP_H
#define FUZZ_ROUND_TRIP_H

#include "dev/test/fuzz.h"
#include "llmc/data/tokenizer.h"

static inline void check_round_trip(const Tokenizer *t, const uint8_t *all, size_t size, const uint32_t *tokens,
                                    int64_t count) {
    uint8_t *text = (uint8_t *)malloc(size + 1); // what has tokens
    size_t at = 0;
    size = tokenizer_keep_bytes(t, all, size, text);
    for (int64_t i = 0; i < count; i++) {
        int bytes = 0;
        const uint8_t *piece = tokenizer_decode(t, tokens[i], &bytes);
        require(piece != NULL && !tokenizer_is_special(t, (int)tokens[i]) && (size_t)bytes <= size - at);
        require(memcmp(piece, text + at, (size_t)bytes) == 0);
        at += (size_t)bytes;
    }
    require(at == size);
    free(text);
}

// A text comes back that also holds bytes which are no characters. t can encode.
static inline void check_encodes(const Tokenizer *t) {
    static const char text[] = "abc  aab's\n\xc3\xa9\xff 12 caab";
    uint32_t tokens[sizeof(text)];
    int64_t count;
    require(tokenizer_encode(t, (const uint8_t *)text, strlen(text), tokens, &count, &error));
    check_round_trip(t, (const uint8_t *)text, strlen(text), tokens, count);
}

#endif // FUZZ_ROUND_TRIP_H
