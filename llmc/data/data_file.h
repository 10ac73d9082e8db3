// Tells by its first bytes what a file is, and checks the contents of data files: bounds each number of a header and
// each token id.
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

#define USE_TEXT "give plain text, or token shards that `tokenize` made of it"
#define USE_TOKENIZER "give it to --tokenizer"
#define SHARD_HINT " (use `tokenize` to make shards of text)"
#define EVAL_HINT " (`tokenize --eval` makes one)"
#define USE_MODEL "give it to --init"
#define MODEL_HINT " (--init takes a size, a model's file or a folder with a model)"
#define USE_SHARD "give it to --train-data or --val-data, under a name that ends with .bin"
#define USE_QUESTIONS "give it to --hellaswag-data or --mmlu-data"
#define MODEL_VERSIONS " (3: float32, 5: bfloat16; export an older model again)"

// All kinds of files with such a header. A kind without versions is never read: its row only names it.
typedef struct {
    const char *name;
    int32_t magic, versions[2]; // the two versions that are read
    const char *counted;        // by header[2]; NULL: it counts nothing
    int64_t least, most;        // bounds of the count
    const char *use;            // what to do with such a file
    const char *hint;           // for a file of no known kind in its place
    const char *about_versions;
} DataFormat;

static const DataFormat data_formats[DATA_KINDS] = {
    {"a model", MODEL_BIN_MAGIC, {3, 5}, NULL, 0, 0, USE_MODEL, MODEL_HINT, MODEL_VERSIONS},
    {"a tokenizer", TOKENIZER_MAGIC, {1, 2}, "tokens", 1, MAX_VOCAB, USE_TOKENIZER, "", ""},
    {"a token shard", SHARD_MAGIC, {1, 1}, "tokens", 0, INT32_MAX, USE_SHARD, SHARD_HINT, ""},
    {"an evaluation file", EVAL_MAGIC, {1, 1}, "examples", 1, EVAL_MAX_EXAMPLES, USE_QUESTIONS, EVAL_HINT, ""},
    {"a debug state of a PyTorch twin", 20240327, {0, 0}, NULL, 0, 0, "nothing here reads it", "", ""},
    {"a shard of 32-bit tokens of another tokenizer", 20240801, {0, 0}, NULL, 0, 0, USE_TEXT, "", ""},
};

// ---- What a file is ----

// Other kinds of files, by their first bytes.
typedef struct {
    int at, length; // of the magic bytes
    const char *magic;
    const char *name, *use;
    bool is_text; // no error where text is expected
} FileMagic;

#define FILE_START_BYTES DATA_HEADER_BYTES // tell what a file is
#define FILE_TEXT "plain text"
#define FILE_SAFETENSORS "a safetensors file"
#define A_PICKLE "a Python pickle (an old PyTorch file?)"
#define A_ZIP "a zip archive (PyTorch's .pt and .pth are, and office documents)"
#define USE_TORCH "save a model with transformers' save_pretrained (model.safetensors)"
#define USE_ZIP USE_TORCH ", a document as plain text"
#define USE_STATE "give its folder: --resume with --out-dir goes on, --init takes the model"
#define USE_SAFE "give it to --init, under a name that ends with .safetensors"
#define USE_PARQUET "write its texts as JSON lines, then tokenize --jsonl FIELD"
#define USE_JSON "--init takes a model's whole folder, --tokenizer vocab.bpe or merges.txt, tokenize --jsonl JSON lines"
#define AS_UTF8(from) "convert it: iconv -f " from " -t UTF-8 FILE > NEW"

static const FileMagic file_magics[] = {
    {4, 5, "\0\0\0\0{", FILE_SAFETENSORS, USE_SAFE, false}, // first: it begins with any number
    {0, 3, "\x1f\x8b\x08", "packed with gzip", "unpack it: gunzip -k FILE", false},
    {0, 4, "\x28\xb5\x2f\xfd", "packed with zstd", "unpack it: unzstd FILE", false},
    {0, 6, "\xfd\x37zXZ", "packed with xz", "unpack it: unxz -k FILE", false},
    {4, 6, "1AY&SY", "packed with bzip2", "unpack it: bunzip2 -k FILE", false},
    {0, 4, "\x04\x22\x4d\x18", "packed with lz4", "unpack it: unlz4 FILE", false},
    {0, 6, "7z\xbc\xaf\x27\x1c", "a 7z archive", "unpack it: 7z x FILE", false},
    {257, 5, "ustar", "a tar archive", "unpack it: tar xf FILE", false},
    {0, 4, "PK\x03\x04", A_ZIP, USE_ZIP, false},
    {0, 2, "\x80\x02", A_PICKLE, USE_TORCH, false},
    {0, 2, "\x80\x03", A_PICKLE, USE_TORCH, false},
    {0, 2, "\x80\x04", A_PICKLE, USE_TORCH, false},
    {0, 2, "\x80\x05", A_PICKLE, USE_TORCH, false},
    {0, 4, "\xff\xfe\0", "text in UTF-32", AS_UTF8("UTF-32"), false}, // before UTF-16, which begins alike
    {0, 4, "\0\0\xfe\xff", "text in UTF-32", AS_UTF8("UTF-32"), false},
    {0, 2, "\xff\xfe", "text in UTF-16", AS_UTF8("UTF-16"), false},
    {0, 2, "\xfe\xff", "text in UTF-16", AS_UTF8("UTF-16"), false},
    {0, 5, "%PDF-", "a PDF", "take its text out: pdftotext FILE", false},
    {0, 5, "{\\rtf", "rich text (RTF)", "save it as plain text", false},
    {0, 4, "\x89PNG", "an image", USE_TEXT, false},
    {0, 3, "\xff\xd8\xff", "an image", USE_TEXT, false},
    {0, 4, "GIF8", "an image", USE_TEXT, false},
    {0, 4, "RIFF", "sound, an image or a video", USE_TEXT, false},
    {4, 4, "ftyp", "sound or a video", USE_TEXT, false},
    {0, 4, "\x7f\x45LF", "a program", USE_TEXT, false},
    {0, 4, "PAR1", "a Parquet table", USE_PARQUET, false},
    {0, 4, "GGUF", "a GGUF model", "give the safetensors model that it was made from", false},
    {0, 4, "\x89HDF", "an HDF5 file", "give the model as model.safetensors", false},
    {0, 6, "\x93NUMPY", "a NumPy array", USE_TEXT, false},
    {0, 8, "GPT2STAT", "a training state", USE_STATE, false},
    {0, 9, "#version:", "a tokenizer", USE_TOKENIZER, false}, // vocab.bpe, merges.txt
    {0, 1, "{", "JSON", USE_JSON, true},
};

// What the first n bytes of a file tell. name: NULL if they tell nothing.
typedef struct {
    const char *name, *use;
    bool is_text;
} FileKind;

static inline FileKind file_kind(const uint8_t *start, int64_t n) {
    FileKind kind = {NULL, NULL, false};
    for (int i = 0; n >= 4 && i < DATA_KINDS; i++) {
        if (memcmp(start, &data_formats[i].magic, 4) != 0) { continue; }
        kind.name = data_formats[i].name, kind.use = data_formats[i].use;
        return kind;
    }
    for (size_t i = 0; i < sizeof(file_magics) / sizeof(file_magics[0]); i++) {
        const FileMagic *m = &file_magics[i];
        if (n < m->at + m->length || memcmp(start + m->at, m->magic, (size_t)m->length) != 0) { continue; }
        kind.name = m->name, kind.use = m->use, kind.is_text = m->is_text;
        return kind;
    }
    return kind;
}

// Tells from its NUL bytes whether something is no text.
static inline FileKind file_kind_by_nul(const uint8_t *start, int64_t n) {
    int64_t odd = 0, count = 0; // odd: those at odd places
    for (int64_t i = 0; i < n; i++) {
        count += start[i] == 0;
        odd += start[i] == 0 && i % 2 == 1;
    }
    bool wide = count * 3 > n && (odd == 0 || odd == count); // Latin letters in UTF-16 without its mark
    FileKind kind = {NULL, NULL, false};
    if (count < 8 || count * 32 < n) { return kind; }
    kind.name = wide ? "text in UTF-16" : "binary (many of its bytes are NUL)";
    kind.use = !wide ? USE_TEXT : odd > 0 ? AS_UTF8("UTF-16LE") : AS_UTF8("UTF-16BE");
    return kind;
}

// Refuses a file whose first n bytes (at most FILE_START_BYTES are looked at) show that it is of another kind than
// `expected`: FILE_TEXT, or the name of a kind above. A file that they do not tell is left to its reader.
static inline bool file_check_kind(const char *path, const char *expected, const void *start, int64_t n, Error *error) {
    const uint8_t *bytes = (const uint8_t *)start;
    bool text = strcmp(expected, FILE_TEXT) == 0;
    n = min_i64(n, FILE_START_BYTES);
    FileKind kind = file_kind(bytes, n);
    if (kind.name == NULL && text) { kind = file_kind_by_nul(bytes, n); }
    if (kind.name == NULL || (text && kind.is_text) || strcmp(kind.name, expected) == 0) { return true; }
    return fail(error, "%s: is %s, expected %s; %s", path, kind.name, expected, kind.use);
}

// Does the first line end in CR LF, as Windows writes it?
static inline bool text_has_crlf(const uint8_t *text, size_t n) {
    const uint8_t *end = n > 1 ? (const uint8_t *)memchr(text + 1, '\n', n - 1) : NULL;
    return end != NULL && end[-1] == '\r';
}

// ---- Headers ----

// Checks kind, size, magic and version, and the count against its bounds. Looks at no more bytes of the header than the
// file has.
static inline bool data_check_header(const char *path, DataKind kind, const int32_t *header, int64_t file_bytes,
                                     Error *error) {
    const DataFormat *format = &data_formats[kind];
    const int32_t *versions = format->versions;
    char or_more[32] = "";
    if (!file_check_kind(path, format->name, header, file_bytes, error)) { return false; }
    if (file_bytes < DATA_HEADER_BYTES) {
        return fail(error, "%s: %lld bytes, less than the header of %s, %d (truncated download? fetch it again)", path,
                    (long long)file_bytes, format->name, DATA_HEADER_BYTES);
    }
    if (header[0] != format->magic) {
        return fail(error, "%s: is not %s: magic %d, expected %d%s", path, format->name, header[0], format->magic,
                    format->hint);
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
