// Files of small byte-pair encodings, for tests.
#ifndef SMALL_BPE_H
#define SMALL_BPE_H

#include "llmc/base/input_file.h"
#include "llmc/base/text.h"

static inline void small_bpe_token(Text *file, const char *bytes, size_t n) {
    const char length = (char)n;
    text_bytes(file, &length, 1);
    text_bytes(file, bytes, n);
}

// Appends a gpt2_tokenizer.bin: the bytes in GPT-2's order, the tokens, which `|` separates, and end-of-text.
static inline void small_bpe_file(Text *file, const char *tokens) {
    int count = 1;
    for (const char *at = tokens; *at != '\0'; at++) { count += *at == '|'; }
    const uint32_t header[DATA_HEADER_INTS] = {TOKENIZER_MAGIC, 2, (uint32_t)(256 + count + 1),
                                               (uint32_t)(256 + count)};
    text_bytes(file, (const char *)header, sizeof(header));
    for (int turn = 0; turn < 2; turn++) {
        for (int i = 0; i < 256; i++) {
            bool visible = (i >= 33 && i <= 126) || (i >= 161 && i <= 172) || i >= 174;
            const char byte = (char)i;
            if (visible == (turn == 0)) { small_bpe_token(file, &byte, 1); }
        }
    }
    for (int i = 0; i < count; i++) {
        size_t n = strcspn(tokens, "|");
        small_bpe_token(file, tokens, n);
        tokens += n + 1;
    }
    small_bpe_token(file, "<|endoftext|>", 13);
}

#endif // SMALL_BPE_H
