// Trains on text files without shards: tokenises them in memory and splits them for training and validation.
#ifndef LLMC_TEXT_DATA_H
#define LLMC_TEXT_DATA_H

#include "llmc/base/input_file.h"
#include "llmc/data/data_file.h"
#include "llmc/data/tokenizer.h"

#define TEXT_MAX_BYTES ((int64_t)1 << 36) // of one text file

// Does a --train-data pattern mean token shards? Its name then ends with .bin. Otherwise it means text.
static inline bool data_is_shards(const char *pattern) { return ends_with(pattern, ".bin"); }

// Appends end-of-text and the tokens of one text file to *tokens, which grows. named: the user names this file, so it
// may be a pipe.
static inline bool text_append(const char *path, bool named, const Tokenizer *tokenizer, uint16_t **tokens,
                               int64_t *count, Error *error) {
    uint8_t *text;
    int64_t bytes, added = 0;
    Error reason;
    bool opens = named ? read_whole_stream(path, TEXT_MAX_BYTES, &text, &bytes, error)
                       : read_whole_file(path, TEXT_MAX_BYTES, &text, &bytes, error);
    if (!opens) { return false; }
    bool ok = bytes > 0 || fail(error, "%s: the file is empty, expected text to train on", path);
    ok = ok && bin_check_text(path, text, bytes, error);
    if (ok) {
        uint16_t *larger = (uint16_t *)realloc(*tokens, (size_t)(*count + 1 + bytes) * sizeof(uint16_t));
        ok = larger != NULL || fail(error, "%s: out of memory for %lld bytes of text (use `tokenize` to make shards)",
                                    path, (long long)bytes);
        if (larger != NULL) { *tokens = larger; }
    }
    if (ok) {
        (*tokens)[(*count)++] = (uint16_t)tokenizer->eot_token;
        ok = tokenizer_encode_parallel(tokenizer, text, (size_t)bytes, *tokens + *count, &added, &reason) ||
             fail(error, "%s: %s", path, reason.text);
        *count += added;
    }
    free(text);
    return ok;
}

// Tokenises the text files that a pattern (* ? [...]) matches, in the order of their names. End-of-text comes before
// each file. The caller frees *tokens, which is NULL after a failure. No match, an empty file, a folder and a file of
// another kind are errors.
static inline bool text_load(const char *pattern, const Tokenizer *tokenizer, uint16_t **tokens, int64_t *count,
                             Error *error) {
    glob_t files;
    memset(&files, 0, sizeof(files));
    *tokens = NULL;
    *count = 0;
    bool ok = true;
    if (path_is_directory(pattern)) {
        ok = fail(error, "%s: is a folder, expected text; give texts as '%s/*.txt', or shards as '%s/*_train_*.bin'",
                  pattern, pattern, pattern);
    }
    ok = ok && list_glob(pattern, data_hint(pattern), &files, error);
    for (int i = 0; ok && i < (int)files.gl_pathc; i++) {
        bool named = strcmp(files.gl_pathv[i], pattern) == 0;
        ok = text_append(files.gl_pathv[i], named, tokenizer, tokens, count, error);
    }
    globfree(&files);
    if (ok) {
        uint16_t *fitting = (uint16_t *)realloc(*tokens, (size_t)*count * sizeof(uint16_t));
        if (fitting != NULL) { *tokens = fitting; }
    } else {
        free(*tokens);
        *tokens = NULL;
    }
    return ok;
}

// Splits a text of `count` tokens: tokens 0 .. *train_count-1 are for training, the rest for validation. The rest is
// the last tenth, or one window of T + 1 tokens if a tenth is shorter. It is empty if training would get less than a
// window.
static inline void text_split(int64_t count, int seq_len, int64_t *train_count) {
    int64_t window = (int64_t)seq_len + 1, validation = max_i64(count / 10, window);
    *train_count = count - validation >= window ? count - validation : count;
}

#endif // LLMC_TEXT_DATA_H
