// For tests of tokenizers: what is encoded comes back.
#ifndef FUZZ_ROUND_TRIP_H
#define FUZZ_ROUND_TRIP_H

#include "dev/test/fuzz.h"
#include "llmc/data/tokenizer.h"

static inline bool comes_back(const Tokenizer *t, const uint8_t *all, size_t size, const uint32_t *tokens,
                              int64_t count) {
    uint8_t *text = (uint8_t *)malloc(size + 1); // what has tokens
    size_t at = 0;
    bool same = true;
    size = tokenizer_keep_bytes(t, all, size, text);
    for (int64_t i = 0; i < count && same; i++) {
        int bytes = 0;
        const uint8_t *piece = tokenizer_decode(t, tokens[i], &bytes);
        same = piece != NULL && !tokenizer_is_special(t, (int)tokens[i]) && (size_t)bytes <= size - at &&
               memcmp(piece, text + at, (size_t)bytes) == 0;
        at += (size_t)bytes;
    }
    free(text);
    return same && at == size;
}

// A text comes back that also holds bytes which are no characters. t can encode.
static inline void check_encodes(const Tokenizer *t) {
    static const char text[] = "abc  aab's\n\xc3\xa9\xff 12 caab";
    uint32_t tokens[sizeof(text)];
    int64_t count;
    require(tokenizer_encode(t, (const uint8_t *)text, strlen(text), tokens, &count, &error));
    require(comes_back(t, (const uint8_t *)text, strlen(text), tokens, count));
}

#endif // FUZZ_ROUND_TRIP_H
