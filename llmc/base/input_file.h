// Reads files: ordinary ones at any offset, whole ones, lists of them. Opens llm.c's binary files (models, tokenizers,
// token shards, questions), and tells other files by their first bytes.
//
// A pipe or device under the name of a file is refused at once. Only read_whole_stream takes a pipe, which the user
// names as data. Files over 2 GiB are ordinary. All are little-endian, and so are all machines this runs on.
#ifndef LLMC_INPUT_FILE_H
#define LLMC_INPUT_FILE_H

#include <fcntl.h>
#include <glob.h>
#include <unistd.h>

#include "llmc/base/utils.h"

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the file formats are little-endian and are read and written without conversion"
#endif
// ---- Lists of files ----

// Lists what a pattern (* ? [...]) matches, in byte order, folders included. No match is an error, unless the pattern
// is the name of an existing file, which it then means. hint: ends the message then. The caller calls globfree, also
// after a failure.
static inline bool list_glob(const char *pattern, const char *hint, glob_t *list, Error *error) {
    memset(list, 0, sizeof(*list));
    if (!path_check(pattern, "file pattern", error)) { return false; }
    int status = glob(pattern, GLOB_ERR | GLOB_NOCHECK, NULL, list); // without a match, returns the pattern itself
    bool missing = status == GLOB_ABORTED && errno == ENOENT;
    if (status != 0 && !missing) {
        return fail(error, "%s: a folder in this pattern cannot be read: %s", pattern, strerror(errno));
    }
    missing = missing || (list->gl_pathc == 1 && strcmp(list->gl_pathv[0], pattern) == 0 && !path_exists(pattern));
    return !missing || fail(error, "%s: no such file (nothing matches the name or pattern)%s", pattern, hint);
}

// ---- Files ----

typedef struct {
    char path[MAX_PATH_BYTES];
    int fd;
    int64_t size; // bytes, when the file was opened
} InputFile;

static inline void input_close(InputFile *file) {
    if (file->fd >= 0) { close(file->fd); }
    file->fd = -1;
}

// Opens an ordinary file for reading at any offset. A pipe or device under its name is refused at once. The file is
// closed after a failure.
static inline bool input_open(InputFile *file, const char *path, Error *error) {
    struct stat info;
    file->fd = -1;
    if (!path_check(path, "file", error)) { return false; }
    path_copy(file->path, path, strlen(path));
    file->fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (file->fd < 0) { return fail_system(error, path, "open"); }
    bool ok = files_check_ordinary(file->fd, path, &info, error);
    file->size = ok ? (int64_t)info.st_size : 0;
    if (!ok) { input_close(file); }
    return ok;
}

// Reads exactly `bytes` bytes at offset. Fails if the file has become shorter. Safe to call from several threads.
static inline bool input_read(const InputFile *file, int64_t offset, void *data, int64_t bytes, Error *error) {
    uint8_t *out = (uint8_t *)data;
    while (bytes > 0) {
        ssize_t n = pread(file->fd, out, (size_t)min_i64(bytes, MAX_IO_BYTES), (off_t)offset);
        if (n < 0 && errno == EINTR) { continue; }
        if (n < 0) { return fail_system(error, file->path, "read"); }
        if (n == 0) {
            return fail(error, "%s: ends at byte %lld, %lld more expected (truncated?)", file->path, (long long)offset,
                        (long long)bytes);
        }
        out += n, offset += n, bytes -= n;
    }
    return true;
}

// Reads to the end into memory that grows, adds a NUL byte, and closes the file. *data is NULL after a failure.
static inline bool files_read_to_end(int fd, const char *path, int64_t max_bytes, uint8_t **data, int64_t *size,
                                     Error *error) {
    bool ok = true;
    int64_t room = 0;
    for (ssize_t n = 1; ok && n != 0;) {
        if (*size + 1 >= room) {
            room = 2 * room + 65536;
            uint8_t *larger = (uint8_t *)realloc(*data, (size_t)room);
            ok = larger != NULL || fail(error, "%s: out of memory (%lld bytes)", path, (long long)room);
            if (!ok) { break; }
            *data = larger;
        }
        n = read(fd, *data + *size, (size_t)min_i64(room - *size - 1, MAX_IO_BYTES));
        *size += n > 0 ? n : 0;
        ok = (n >= 0 || errno == EINTR || fail_system(error, path, "read")) &&
             (*size <= max_bytes ||
              fail(error, "%s: larger than %lld bytes, the most that makes sense here", path, (long long)max_bytes));
    }
    close(fd);
    if (ok) { (*data)[*size] = 0; }
    if (!ok) { free(*data), *data = NULL; }
    return ok;
}

// Reads a whole ordinary file of at most max_bytes into new memory, and adds a NUL byte. The caller frees *data.
static inline bool read_whole_file(const char *path, int64_t max_bytes, uint8_t **data, int64_t *size, Error *error) {
    InputFile file;
    *data = NULL, *size = 0;
    return input_open(&file, path, error) && files_read_to_end(file.fd, path, max_bytes, data, size, error);
}

// Reads what the user names as data. It may be a pipe, whose other end it waits for.
static inline bool read_whole_stream(const char *path, int64_t max_bytes, uint8_t **data, int64_t *size, Error *error) {
    *data = NULL, *size = 0;
    if (!path_check(path, "file", error)) { return false; }
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    return fd >= 0 ? files_read_to_end(fd, path, max_bytes, data, size, error) : fail_system(error, path, "open");
}

// ---- Kinds of files ----
//
// llm.c's binary files begin with a header of 256 int32: magic, version, and facts of its kind. bin_open bounds the
// header. bin_check_size compares the file's exact size. Both come before memory is taken for what a header says.

#define DATA_HEADER_BYTES 1024
#define DATA_HEADER_INTS 256
#define MODEL_BIN_MAGIC 20240326
#define TOKENIZER_MAGIC 20240328
#define SHARD_MAGIC 20240520
#define SHARD32_MAGIC 20240801
#define EVAL_MAGIC 20240522
#define EVAL_MAX_EXAMPLES 65536 // an example's number has 16 bits
#define MAX_VOCAB (1 << 20)
#define MAKE_TOKENIZER "`python3 dev/data/vocab.py` makes GPT-2's"

typedef enum { BIN_MODEL, BIN_TOKENIZER, BIN_SHARD, BIN_EVAL, BIN_KINDS } BinKind;

typedef struct {
    const char *name; // with its article
    int32_t magic, late_magic;
    int32_t late_version;      // it has its own magic and elements
    const char *versions;      // those that are read, in words: single digits
    int element, late_element; // bytes of an element
    const char *counted;       // by header[2]; NULL: it counts nothing
    int64_t least, most;       // bounds of the count
    const char *use;           // where such a file belongs
    const char *hint;          // what belongs in its place
} BinFormat;

static const BinFormat bin_formats[BIN_KINDS] = {
    {"a model", MODEL_BIN_MAGIC, MODEL_BIN_MAGIC, 5, "3 or 5", 4, 2, NULL, 0, 0, "give it to --init",
     "--init takes a size, a model's file or a run's folder"},
    {"a tokenizer", TOKENIZER_MAGIC, TOKENIZER_MAGIC, 3, "1, 2 or 3", 1, 1, "tokens", 1, MAX_VOCAB,
     "give it to --tokenizer", MAKE_TOKENIZER},
    {"a token shard", SHARD_MAGIC, SHARD32_MAGIC, 7, "1 or 7", 2, 4, "tokens", 0, INT32_MAX,
     "give it to --train-data or --val-data, under a name that ends with .bin", "`tokenize` makes shards of text"},
    {"an evaluation file", EVAL_MAGIC, EVAL_MAGIC, 7, "1 or 7", 2, 4, "examples", 1, EVAL_MAX_EXAMPLES,
     "give it to --hellaswag-data or --mmlu", "`tokenize --eval` makes one"},
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
        const BinFormat *f = &bin_formats[i];
        if (memcmp(start, &f->magic, 4) == 0 || memcmp(start, &f->late_magic, 4) == 0) { name = f->name, use = f->use; }
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
    if (!bin_check_kind(path, format->name, header, min_i64(file_bytes, DATA_HEADER_BYTES), error)) { return false; }
    const int32_t magic = header[1] == format->late_version ? format->late_magic : format->magic;
    if (file_bytes >= 4 && header[0] != format->late_magic && header[0] != format->magic) {
        return fail(error, "%s: is not %s: magic %d, expected %d; %s", path, format->name, header[0], magic,
                    format->hint);
    }
    if (file_bytes < DATA_HEADER_BYTES) {
        return fail(error, "%s: %lld bytes, less than the header of %s, %d (truncated? fetch it again)", path,
                    (long long)file_bytes, format->name, DATA_HEADER_BYTES);
    }
    if (header[0] != magic || header[1] < 1 || header[1] > 9 || strchr(format->versions, '0' + header[1]) == NULL) {
        return fail(error, "%s: %s of version %d, expected %s", path, strchr(format->name, ' ') + 1, header[1],
                    format->versions);
    }
    if (format->counted == NULL || (header[2] >= format->least && header[2] <= format->most)) { return true; }
    return fail(error, "%s: header says %d %s, expected %lld to %lld", path, header[2], format->counted,
                (long long)format->least, (long long)format->most);
}

// Opens a file of this kind and checks its header. It is closed after a failure.
static inline bool bin_open(BinFile *bin, const char *path, BinKind kind, Error *error) {
    const BinFormat *format = &bin_formats[kind];
    memset(bin->header, 0, sizeof(bin->header));
    if (!input_open(&bin->file, path, error)) { return false; }
    bool ok = input_read(&bin->file, 0, bin->header, min_i64(bin->file.size, DATA_HEADER_BYTES), error) &&
              bin_check_header(path, format, bin->header, bin->file.size, error);
    bin->element = bin->header[1] == format->late_version ? format->late_element : format->element;
    if (!ok) { input_close(&bin->file); }
    return ok;
}

// Checks that exactly so many elements follow the header. The file is closed after a failure.
static inline bool bin_check_size(BinFile *bin, int64_t elements, Error *error) {
    int64_t expected = DATA_HEADER_BYTES + elements * bin->element, size = bin->file.size;
    if (size == expected) { return true; }
    input_close(&bin->file);
    return fail(error, "%s: header asks for %lld bytes, file has %lld (%s)", bin->file.path, (long long)expected,
                (long long)size, size < expected ? "truncated? fetch it again" : "damaged?");
}

// Reads what follows the header, at most `most` bytes, into new memory, and closes the file.
static inline bool bin_read_rest(BinFile *bin, int64_t most, uint8_t **data, int64_t *bytes, Error *error) {
    int fd = bin->file.fd;
    *data = NULL, *bytes = 0, bin->file.fd = -1;
    lseek(fd, DATA_HEADER_BYTES, SEEK_SET); // cannot fail: an ordinary file, which has a header
    return files_read_to_end(fd, bin->file.path, most, data, bytes, error);
}

// ---- Whose tokens a file has: the last two numbers of a header are the hash of their tokenizer, 0: unknown ----

static inline uint64_t bin_tokenizer(const int32_t *header) {
    return (uint32_t)header[254] | (uint64_t)(uint32_t)header[255] << 32;
}
static inline void bin_set_tokenizer(int32_t *header, uint64_t hash) { memcpy(header + 254, &hash, sizeof(hash)); }

// Refuses a file of another tokenizer than the one in use, which `name` names.
static inline bool bin_check_tokenizer(const char *path, uint64_t file, const char *name, uint64_t used, Error *error) {
    return file == 0 || used == 0 || file == used ||
           fail(error,
                "%s: was made with another tokenizer (%016llx) than %.2000s (%016llx); give --tokenizer the file's own",
                path, (unsigned long long)file, name, (unsigned long long)used);
}

#endif // LLMC_INPUT_FILE_H
