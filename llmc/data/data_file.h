// Token ids that are not in the vocabulary, and where data that are missing come from.
#ifndef LLMC_DATA_FILE_H
#define LLMC_DATA_FILE_H

#include "llmc/base/utils.h"

// ---- Where data come from ----

#define FETCHES "; `python3 dev/data/"

// Returns which program of dev/data fetches a file that is not there, by its name, to end a message. "": none is known.
static inline const char *data_hint(const char *path) {
    static const char *const hints[][2] = {
        {"edu_fineweb100B", FETCHES "fineweb.py -t edu -v 100B` fetches FineWeb-Edu's shards"},
        {"edu_fineweb", FETCHES "fineweb.py -t edu` fetches FineWeb-Edu's shards"},
        {"fineweb100B", FETCHES "fineweb.py -v 100B` fetches FineWeb's shards"},
        {"fineweb", FETCHES "fineweb.py` fetches FineWeb's shards"},
        {"TinyStories", FETCHES "tinystories.py` fetches TinyStories"},
        {"tiny_shakespeare", FETCHES "tinyshakespeare.py` fetches tiny Shakespeare"},
        {"hellaswag", FETCHES "hellaswag.py` fetches HellaSwag"},
        {"mmlu", FETCHES "mmlu.py` fetches MMLU"},
    };
    for (size_t i = 0; i < sizeof(hints) / sizeof(hints[0]); i++) {
        if (strstr(path, hints[i][0]) != NULL) { return hints[i][1]; }
    }
    return "";
}

// ---- Tokens ----

// The place of the first token that is not in the vocabulary, or count.
static inline int64_t data_find_bad_token(const uint16_t *tokens, int64_t count, int vocab_size) {
    int64_t i = 0;
    while (i < count && tokens[i] < vocab_size) { i++; }
    return i;
}

// where: "token 7 of the context".
static inline bool data_fail_token(const char *where, int token, int vocab_size, Error *error) {
    return fail(error, "%s is id %d, the model's vocabulary has %d (made by another tokenizer?)", where, token,
                vocab_size);
}

#endif // LLMC_DATA_FILE_H
