// Makes the bytes of evaluation files, for test_evalloader.c and fuzz_evalloader.c.
#ifndef EVAL_FILE_H
#define EVAL_FILE_H

#include <stdint.h>
#include <string.h>

#define EVAL_FILE_BYTES 65536

typedef struct {
    uint8_t data[EVAL_FILE_BYTES];
    size_t bytes, id_bytes; // id_bytes: of a word, 2 or 4
    int examples, longest;  // longest: bytes
    size_t example;         // where the last one begins
} EvalFile;

static inline void eval_file_set_word(EvalFile *file, size_t at, int word) {
    memcpy(file->data + at, &word, file->id_bytes); // the lower bytes come first
}

static inline void eval_file_word(EvalFile *file, int word) {
    eval_file_set_word(file, file->bytes, word);
    file->bytes += file->id_bytes;
}

static inline void eval_file_set_header(EvalFile *file, int field, int32_t value) {
    memcpy(file->data + 4 * (size_t)field, &value, sizeof(value));
}

static inline void eval_file_begin(EvalFile *file, size_t id_bytes) {
    memset(file, 0, sizeof(*file));
    file->id_bytes = id_bytes;
    file->bytes = 1024;
    eval_file_set_header(file, 0, 20240522);
    eval_file_set_header(file, 1, id_bytes == 4 ? 7 : 1);
}

static inline void eval_file_begin_example(EvalFile *file, int label, int completions) {
    file->example = file->bytes;
    eval_file_word(file, -1);
    eval_file_word(file, 0);
    eval_file_word(file, file->examples++);
    eval_file_word(file, label);
    eval_file_word(file, completions);
}

// The context, then each completion: `count` tokens first, first + 1, ...
static inline void eval_file_tokens(EvalFile *file, int count, int first) {
    eval_file_word(file, count);
    for (int i = 0; i < count; i++) { eval_file_word(file, first + i); }
}

static inline void eval_file_end_example(EvalFile *file) {
    int bytes = (int)(file->bytes - file->example);
    eval_file_set_word(file, file->example + file->id_bytes, bytes);
    if (bytes > file->longest) { file->longest = bytes; }
    eval_file_set_header(file, 2, file->examples);
    eval_file_set_header(file, 3, file->longest);
}

#endif // EVAL_FILE_H
