// Checks the contents of data files: bounds each number of a header and each token id.
//
// A token shard, a file of questions and llm.c's gpt2_tokenizer.bin begin with a header of 256 int32: magic, version,
// a count. Messages do not name the file; the caller puts its path before them.
#ifndef LLMC_DATA_FILE_H
#define LLMC_DATA_FILE_H

#include "llmc/base/utils.h"

#define DATA_HEADER_BYTES 1024
#define DATA_HEADER_INTS 256

typedef struct {
    const char *article, *name; // "a", "token shard"
    int32_t magic, least_version, most_version;
    const char *remedy; // for a file of another kind
} DataFormat;

static inline bool data_check_size(const DataFormat *format, int64_t file_bytes, Error *error) {
    return file_bytes >= DATA_HEADER_BYTES ||
           fail(error, "%lld bytes, less than the header of %s %s, %d (truncated download? fetch it again)",
                (long long)file_bytes, format->article, format->name, DATA_HEADER_BYTES);
}

// Checks a number of a header. what: "examples".
static inline bool data_check_number(const char *what, int64_t number, int64_t least, int64_t most, Error *error) {
    return (number >= least && number <= most) || fail(error, "header says %lld %s, expected %lld to %lld",
                                                       (long long)number, what, (long long)least, (long long)most);
}

// Checks magic and version, and the count against its bounds.
static inline bool data_check_header(const DataFormat *format, const int32_t *header, const char *counted,
                                     int64_t least, int64_t most, Error *error) {
    if (header[0] != format->magic) {
        return fail(error, "is not %s %s: magic %d, expected %d%s", format->article, format->name, header[0],
                    format->magic, format->remedy);
    }
    if (header[1] < format->least_version || header[1] > format->most_version) {
        char or_more[32] = "";
        if (format->most_version > format->least_version) {
            snprintf(or_more, sizeof(or_more), " or %d", format->most_version);
        }
        return fail(error, "%s of version %d, expected %d%s", format->name, header[1], format->least_version, or_more);
    }
    return data_check_number(counted, header[2], least, most, error);
}

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
