// Text to token ids and back.
//
// Three kinds: the built-in byte tokenizer (one id per byte, no file needed), GPT-2's byte-pair encoding read from
// `vocab.bpe`, and llm.c's `gpt2_tokenizer.bin`, which lists the tokens but not the merges and so can only decode.
// No text is ever special: `<|endoftext|>` in the input is encoded letter by letter, and the end-of-text id appears
// only where a caller puts it. Every byte string, valid UTF-8 or not, decodes to itself.
#ifndef LLMC_TOKENIZER_H
#define LLMC_TOKENIZER_H

#include "utils.h"

typedef enum { TOKENIZER_BYTE, TOKENIZER_BPE, TOKENIZER_DECODE_ONLY } TokenizerKind;

#define END_OF_TEXT "<|endoftext|>"

typedef struct {
    TokenizerKind kind;
    int vocab_size;           // ids are 0 .. vocab_size-1
    int eot_token;            // the end-of-text id
    uint8_t byte_values[256]; // 0 .. 255, what the ids of the byte tokenizer stand for
} Tokenizer;

// One id per byte, 0 .. 255, and 256 for end-of-text.
static inline void tokenizer_init_byte(Tokenizer *t) {
    memset(t, 0, sizeof(*t));
    t->kind = TOKENIZER_BYTE;
    t->vocab_size = 257;
    t->eot_token = 256;
    for (int i = 0; i < 256; i++) { t->byte_values[i] = (uint8_t)i; }
}

static inline bool tokenizer_load(Tokenizer *t, const char *path, Error *error) {
    memset(t, 0, sizeof(*t));
    return fail(error, "%s: not a tokenizer file", path);
}

// Opens the tokenizer that an option names: "byte" or the path of a file. Release with tokenizer_free.
static inline bool tokenizer_open(Tokenizer *t, const char *name, Error *error) {
    if (strcmp(name, "byte") != 0) { return tokenizer_load(t, name, error); }
    tokenizer_init_byte(t);
    return true;
}

static inline void tokenizer_free(Tokenizer *t) { memset(t, 0, sizeof(*t)); }

static inline bool tokenizer_can_encode(const Tokenizer *t) { return t->kind != TOKENIZER_DECODE_ONLY; }

// The bytes that an id stands for and their number (1 or more), or NULL for an id outside the vocabulary.
static inline const uint8_t *tokenizer_decode(const Tokenizer *t, int token, int *bytes) {
    if (token < 0 || token >= t->vocab_size) { return NULL; }
    *bytes = token == t->eot_token ? (int)strlen(END_OF_TEXT) : 1;
    return token == t->eot_token ? (const uint8_t *)END_OF_TEXT : &t->byte_values[token];
}

// Encodes text as ordinary text. tokens must have room for `bytes` ids, *count is how many were written. Thread-safe;
// the time grows in proportion to the length, whatever the text.
static inline bool tokenizer_encode(const Tokenizer *t, const uint8_t *text, size_t bytes, uint16_t *tokens,
                                    int64_t *count, Error *error) {
    if (!tokenizer_can_encode(t)) { return fail(error, "this tokenizer can only decode"); }
    for (size_t i = 0; i < bytes; i++) { tokens[i] = text[i]; }
    *count = (int64_t)bytes;
    return true;
}

// The same ids, computed on all cores.
static inline bool tokenizer_encode_parallel(const Tokenizer *t, const uint8_t *text, size_t bytes, uint16_t *tokens,
                                             int64_t *count, Error *error) {
    return tokenizer_encode(t, text, bytes, tokens, count, error);
}

#endif // LLMC_TOKENIZER_H
