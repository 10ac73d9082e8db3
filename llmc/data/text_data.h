// Trains on text files without shards: tokenises them in memory and splits them for training and validation.
#ifndef LLMC_TEXT_DATA_H
#define LLMC_TEXT_DATA_H

#include "llmc/base/input_file.h"
#include "llmc/data/data_file.h"
#include "llmc/data/tokenizer.h"
#include "llmc/model/memory_plan.h"

// Of a text: the file, which grows by doubling, and 4 bytes for each token.
#define TEXT_MEMORY_BYTES 6

// Does a --train-data pattern mean token shards? Its name then ends with .bin. Otherwise it means text.
static inline bool data_is_shards(const char *pattern) { return ends_with(pattern, ".bin"); }

// Appends end-of-text and the tokens of one text file to *tokens, which grows. named: the user names this file, so it
// may be a pipe.
static inline bool text_append(const char *path, bool named, const Tokenizer *tokenizer, uint32_t **tokens,
                               int64_t *count, Error *error) {
    uint8_t *text;
    int64_t bytes, added = 0;
    Error reason;
    int64_t memory = machine_memory(""), most = memory / TEXT_MEMORY_BYTES;
    bool opens =
        named ? read_whole_stream(path, most, &text, &bytes, error) : read_whole_file(path, most, &text, &bytes, error);
    if (!opens && bytes > most) {
        return fail(error,
                    "%s: has more than %s; a text takes %d times its size of memory, and this machine has %s for a "
                    "process; `tokenize` makes shards of a text of any size",
                    path, bytes_text(most).text, TEXT_MEMORY_BYTES, bytes_text(memory).text);
    }
    if (!opens) { return false; }
    bool ok = bytes > 0 || fail(error, "%s: the file is empty, expected text to train on", path);
    ok = ok && bin_check_text(path, text, bytes, error);
    if (ok) {
        uint32_t *larger = (uint32_t *)realloc(*tokens, (size_t)(*count + 1 + bytes) * sizeof(uint32_t));
        ok = larger != NULL || fail(error, "%s: out of memory for %lld bytes of text (use `tokenize` to make shards)",
                                    path, (long long)bytes);
        if (larger != NULL) { *tokens = larger; }
    }
    if (ok) {
        (*tokens)[(*count)++] = (uint32_t)tokenizer->eot_token;
        ok = tokenizer_encode_parallel(tokenizer, text, (size_t)bytes, *tokens + *count, &added, &reason) ||
             fail(error, "%s: %s", path, reason.text);
        *count += added;
    }
    free(text);
    return ok;
}

// Tokenises the text files that a pattern (* ? [...]) matches, or standard input ("-"), in the order of their names.
// End-of-text comes before each file. The caller frees *tokens, which is NULL after a failure. No match, an empty file,
// a folder and a file of another kind are errors.
static inline bool text_load(const char *pattern, const Tokenizer *tokenizer, uint32_t **tokens, int64_t *count,
                             Error *error) {
    glob_t files;
    memset(&files, 0, sizeof(files));
    *tokens = NULL;
    *count = 0;
    bool ok = true;
    if (strcmp(pattern, "-") == 0) { pattern = "/dev/stdin"; }
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
        uint32_t *fitting = (uint32_t *)realloc(*tokens, (size_t)*count * sizeof(uint32_t));
        if (fitting != NULL) { *tokens = fitting; }
    } else {
        free(*tokens);
        *tokens = NULL;
    }
    return ok;
}

// Reads a prompt from a file, or from standard input ("-"), without its last newline. The caller frees *prompt.
static inline bool text_read_prompt(const char *file, uint8_t **prompt, int64_t *bytes, Error *error) {
    const char *path = strcmp(file, "-") == 0 ? "/dev/stdin" : file;
    if (!read_whole_stream(path, 1 << 24, prompt, bytes, error)) { return false; }
    *bytes -= *bytes > 0 && (*prompt)[*bytes - 1] == '\n';
    return true;
}

// Splits a text of `count` tokens: tokens 0 .. *train_count-1 are for training, the rest for validation. The rest is a
// fraction of all, or one window of T + 1 tokens if the fraction is shorter. It is empty if the fraction is 0, or if
// training would get less than a window.
static inline void text_split(int64_t count, int seq_len, double fraction, int64_t *train_count) {
    int64_t window = (int64_t)seq_len + 1, validation = max_i64((int64_t)(fraction * (double)count), window);
    *train_count = fraction > 0.0 && count - validation >= window ? count - validation : count;
}

#endif // LLMC_TEXT_DATA_H
