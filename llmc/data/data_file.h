// Token ids in memory and in files, ids that are not in the vocabulary, and where data that are missing come from.
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

// ---- Tokens: ids have 32 bits in memory, and in files of a vocabulary that is too large for 16 ----

#define MAX_VOCAB_16 65535 // of 16 bits

// Returns the bytes of an id in a file.
static inline int data_id_bytes(int vocab_size) { return vocab_size > MAX_VOCAB_16 ? 4 : 2; }

// Widens `count` ids of 16 bits, which are the second half of their memory.
static inline void data_widen(uint32_t *ids, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        uint16_t id;
        memcpy(&id, (const uint8_t *)ids + 2 * (count + i), sizeof(id));
        ids[i] = id;
    }
}

// Narrows ids to those of a file, in their memory.
static inline void data_narrow(uint32_t *ids, int64_t count, int id_bytes) {
    for (int64_t i = 0; i < count && id_bytes == 2; i++) {
        const uint16_t id = (uint16_t)ids[i];
        memcpy((uint8_t *)ids + 2 * i, &id, sizeof(id));
    }
}

// The place of the first token that is not in the vocabulary, or count.
static inline int64_t data_find_bad_token(const uint32_t *tokens, int64_t count, int vocab_size) {
    int64_t i = 0;
    while (i < count && tokens[i] < (uint32_t)vocab_size) { i++; }
    return i;
}

// where: "token 7 of the context".
static inline bool data_fail_token(const char *where, uint32_t token, int vocab_size, Error *error) {
    return fail(error, "%s is id %u, the model's vocabulary has %d (made by another tokenizer?)", where, token,
                vocab_size);
}

#endif // LLMC_DATA_FILE_H
