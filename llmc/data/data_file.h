// Checks the contents of data files: bounds each number of a header and each token id.
//
// llm.c's binary files begin with a header of 256 int32: magic, version, a count, and facts of each kind of file.
#ifndef LLMC_DATA_FILE_H
#define LLMC_DATA_FILE_H

#include "llmc/base/utils.h"

#define DATA_HEADER_BYTES 1024
#define DATA_HEADER_INTS 256
#define MODEL_BIN_MAGIC 20240326
#define TOKENIZER_MAGIC 20240328
#define SHARD_MAGIC 20240520
#define SHARD_VERSION 1
#define EVAL_MAGIC 20240522
#define EVAL_VERSION 1
#define EVAL_MAX_EXAMPLES 65536 // an example's number has 16 bits
#define MAX_VOCAB 65535         // token ids are uint16

typedef enum { DATA_MODEL, DATA_TOKENIZER, DATA_SHARD, DATA_EVAL, DATA_TWIN, DATA_LLAMA_SHARD, DATA_KINDS } DataKind;

// All kinds of files with such a header. A kind without versions is never read: its row only names it.
typedef struct {
    const char *name;
    int32_t magic, versions[2]; // the two versions that are read
    const char *counted;        // by header[2]; NULL: it counts nothing
    int64_t least, most;        // bounds of the count
    const char *remedy;         // for a file of another kind
    const char *about_versions;
} DataFormat;

static const DataFormat data_formats[DATA_KINDS] = {
    {"a model", MODEL_BIN_MAGIC, {3, 5}, NULL, 0, 0, "", " (3: float32, 5: bfloat16; export an older model again)"},
    {"a tokenizer", TOKENIZER_MAGIC, {1, 2}, "tokens", 1, MAX_VOCAB, "", ""},
    {"a token shard", SHARD_MAGIC, {1, 1}, "tokens", 0, INT32_MAX, " (use `tokenize` to make shards of text)", ""},
    {"an evaluation file", EVAL_MAGIC, {1, 1}, "examples", 1, EVAL_MAX_EXAMPLES, "", ""},
    {"a debug state of a PyTorch twin", 20240327, {0, 0}, NULL, 0, 0, "", ""},
    {"a shard of 32-bit tokens of another tokenizer", 20240801, {0, 0}, NULL, 0, 0, "", ""},
};

// Checks size, magic and version, and the count against its bounds. Does not look at the header of a file that is
// shorter than a header.
static inline bool data_check_header(const char *path, DataKind kind, const int32_t *header, int64_t file_bytes,
                                     Error *error) {
    const DataFormat *format = &data_formats[kind];
    const int32_t *versions = format->versions;
    char other[80] = "", or_more[32] = "";
    if (file_bytes < DATA_HEADER_BYTES) {
        return fail(error, "%s: %lld bytes, less than the header of %s, %d (truncated download? fetch it again)", path,
                    (long long)file_bytes, format->name, DATA_HEADER_BYTES);
    }
    for (int i = 0; i < DATA_KINDS; i++) {
        if (header[0] == data_formats[i].magic) { snprintf(other, sizeof(other), " (%s)", data_formats[i].name); }
    }
    if (header[0] != format->magic) {
        return fail(error, "%s: is not %s: magic %d%s, expected %d%s", path, format->name, header[0], other,
                    format->magic, format->remedy);
    }
    if (header[1] != versions[0] && header[1] != versions[1]) {
        if (versions[1] != versions[0]) { snprintf(or_more, sizeof(or_more), " or %d", versions[1]); }
        return fail(error, "%s: %s of version %d, expected %d%s%s", path, strchr(format->name, ' ') + 1, header[1],
                    versions[0], or_more, format->about_versions);
    }
    if (format->counted == NULL || (header[2] >= format->least && header[2] <= format->most)) { return true; }
    return fail(error, "%s: header says %d %s, expected %lld to %lld", path, header[2], format->counted,
                (long long)format->least, (long long)format->most);
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
