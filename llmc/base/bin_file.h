// Opens llm.c's binary files: models, tokenizers, token shards and questions. Tells other files by their first bytes.
//
// Each file begins with a header of 256 int32: magic, version, and facts of its kind. bin_open bounds the header.
// bin_check_size compares the file's exact size. Both come before memory is taken for what a header says.
#ifndef LLMC_BIN_FILE_H
#define LLMC_BIN_FILE_H

#include "llmc/base/files.h"

#define DATA_HEADER_BYTES 1024
#define DATA_HEADER_INTS 256
#define MODEL_BIN_MAGIC 20240326
#define TOKENIZER_MAGIC 20240328
#define SHARD_MAGIC 20240520
#define EVAL_MAGIC 20240522
#define EVAL_MAX_EXAMPLES 65536 // an example's number has 16 bits
#define MAX_VOCAB 65535         // token ids are uint16
#define MAKE_TOKENIZER "`python3 dev/data/vocab.py` makes GPT-2's"

typedef enum { BIN_MODEL, BIN_TOKENIZER, BIN_SHARD, BIN_EVAL, BIN_KINDS } BinKind;

typedef struct {
    const char *name; // with its article
    int32_t magic;
    int32_t versions[2]; // those that are read
    int element[2];      // bytes of an element, by version
    const char *counted; // by header[2]; NULL: it counts nothing
    int64_t least, most; // bounds of the count
    const char *use;     // where such a file belongs
    const char *hint;    // what belongs in its place
} BinFormat;

static const BinFormat bin_formats[BIN_KINDS] = {
    {"a model",
     MODEL_BIN_MAGIC,
     {3, 5},
     {4, 2},
     NULL,
     0,
     0,
     "give it to --init",
     "--init takes a size, a model's file or a run's folder"},
    {"a tokenizer", TOKENIZER_MAGIC, {1, 2}, {1, 1}, "tokens", 1, MAX_VOCAB, "give it to --tokenizer", MAKE_TOKENIZER},
    {"a token shard",
     SHARD_MAGIC,
     {1, 1},
     {2, 2},
     "tokens",
     0,
     INT32_MAX,
     "give it to --train-data or --val-data, under a name that ends with .bin",
     "`tokenize` makes shards of text"},
    {"an evaluation file",
     EVAL_MAGIC,
     {1, 1},
     {2, 2},
     "examples",
     1,
     EVAL_MAX_EXAMPLES,
     "give it to --hellaswag-data or --mmlu",
     "`tokenize --eval` makes one"},
};

// Other files that users give, by their first bytes.
static const struct {
    const char *magic, *name, *use;
} bin_others[] = {
    {"\x1f\x8b", "packed with gzip", "unpack it: gunzip -k FILE"},
    {"PK\x03\x04", "a zip archive (PyTorch's .pt and .pth are, too)", "give what is in it"},
    {"PAR1", "a Parquet table", "write its texts as JSON lines, then tokenize --jsonl FIELD"},
    {"GPT2STAT", "a training state", "give its folder: --resume with --out-dir goes on, --init takes the model"},
    {"#version:", "a list of merges", "`python3 dev/data/vocab.py --merges FILE` makes a tokenizer of it"},
};

// Refuses a file whose first n bytes show that it is of another kind than `expected`.
static inline bool bin_check_kind(const char *path, const char *expected, const void *start, int64_t n, Error *error) {
    const char *name = NULL, *use = NULL;
    for (int i = 0; i < BIN_KINDS && n >= 4; i++) {
        if (memcmp(start, &bin_formats[i].magic, 4) == 0) { name = bin_formats[i].name, use = bin_formats[i].use; }
    }
    for (size_t i = 0; i < sizeof(bin_others) / sizeof(bin_others[0]); i++) {
        size_t bytes = strlen(bin_others[i].magic);
        if ((size_t)n < bytes || memcmp(start, bin_others[i].magic, bytes) != 0) { continue; }
        name = bin_others[i].name, use = bin_others[i].use;
    }
    return name == NULL || strcmp(name, expected) == 0 ||
           fail(error, "%s: is %s, expected %s; %s", path, name, expected, use);
}

// Refuses a file that shows by its first n bytes that it is no text. Looks at the first 1,024 bytes.
static inline bool bin_check_text(const char *path, const void *start, int64_t n, Error *error) {
    n = min_i64(n, DATA_HEADER_BYTES);
    if (!bin_check_kind(path, "plain text", start, n, error)) { return false; }
    return memchr(start, 0, (size_t)n) == NULL || fail(error, "%s: is binary, expected plain text", path);
}

// ---- Headers ----

typedef struct {
    InputFile file;
    int32_t header[DATA_HEADER_INTS];
    int element; // bytes of an element
} BinFile;

// Checks kind, version and the bounds of the count. The header has zeros where the file ends before it.
static inline bool bin_check_header(const char *path, const BinFormat *format, const int32_t *header,
                                    int64_t file_bytes, Error *error) {
    const int32_t *versions = format->versions;
    char or_more[32] = "";
    if (!bin_check_kind(path, format->name, header, min_i64(file_bytes, DATA_HEADER_BYTES), error)) { return false; }
    if (file_bytes >= 4 && header[0] != format->magic) {
        return fail(error, "%s: is not %s: magic %d, expected %d; %s", path, format->name, header[0], format->magic,
                    format->hint);
    }
    if (file_bytes < DATA_HEADER_BYTES) {
        return fail(error, "%s: %lld bytes, less than the header of %s, %d (truncated? fetch it again)", path,
                    (long long)file_bytes, format->name, DATA_HEADER_BYTES);
    }
    if (header[1] != versions[0] && header[1] != versions[1]) {
        if (versions[1] != versions[0]) { snprintf(or_more, sizeof(or_more), " or %d", versions[1]); }
        return fail(error, "%s: %s of version %d, expected %d%s", path, strchr(format->name, ' ') + 1, header[1],
                    versions[0], or_more);
    }
    if (format->counted == NULL || (header[2] >= format->least && header[2] <= format->most)) { return true; }
    return fail(error, "%s: header says %d %s, expected %lld to %lld", path, header[2], format->counted,
                (long long)format->least, (long long)format->most);
}

// Opens a file of this kind and checks its header. It is closed after a failure.
static inline bool bin_open(BinFile *bin, const char *path, BinKind kind, Error *error) {
    const BinFormat *format = &bin_formats[kind];
    if (!input_open_start(&bin->file, path, bin->header, DATA_HEADER_BYTES, error)) { return false; }
    bin->element = format->element[bin->header[1] == format->versions[1]];
    if (bin_check_header(path, format, bin->header, bin->file.size, error)) { return true; }
    input_close(&bin->file);
    return false;
}

// Checks that exactly so many elements follow the header. The file is closed after a failure.
static inline bool bin_check_size(BinFile *bin, int64_t elements, Error *error) {
    int64_t expected = DATA_HEADER_BYTES + elements * bin->element, size = bin->file.size;
    const char *why = size < expected ? "truncated? fetch it again" : "damaged?";
    if (size == expected) { return true; }
    if (size == DATA_HEADER_BYTES + elements * (bin->element == 2 ? 4 : 2)) {
        why = "are its elements of another size?";
    }
    input_close(&bin->file);
    return fail(error, "%s: header asks for %lld bytes, file has %lld (%s)", bin->file.path, (long long)expected,
                (long long)size, why);
}

// Reads what follows the header, at most `most` bytes, into new memory, and closes the file.
static inline bool bin_read_rest(BinFile *bin, int64_t most, uint8_t **data, int64_t *bytes, Error *error) {
    *bytes = bin->file.size - DATA_HEADER_BYTES;
    *data = NULL;
    bool ok = *bytes <= most || fail(error, "%s: %lld bytes, at most %lld are possible (damaged?)", bin->file.path,
                                     (long long)bin->file.size, (long long)(DATA_HEADER_BYTES + most));
    if (ok) {
        *data = (uint8_t *)malloc((size_t)*bytes + 1);
        ok = *data != NULL || fail(error, "%s: out of memory (%lld bytes)", bin->file.path, (long long)*bytes);
    }
    ok = ok && input_read(&bin->file, DATA_HEADER_BYTES, *data, *bytes, error);
    input_close(&bin->file);
    if (!ok) { free(*data), *data = NULL; }
    return ok;
}

#endif // LLMC_BIN_FILE_H
