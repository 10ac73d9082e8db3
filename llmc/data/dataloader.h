// Training and validation data: which tokens sequence number g holds.
//
// A data set is a list of windows of T + 1 tokens: T inputs and, shifted by one, T targets. The list of an epoch is
// ordered by shard and position or, shuffled, by a permutation of the shards and of the windows inside each. Reading is
// a pure function of (seed, sequence number); no position is kept, so a resumed run, another batch size or another
// number of ranks reads the same sequence g.
//
// A shard of n tokens has floor((n - 1) / T) windows; the rest at its end (fewer than T + 1 tokens) is not used.
// Windows never cross from one shard into another.
#ifndef LLMC_DATALOADER_H
#define LLMC_DATALOADER_H

#include "llmc/base/files.h"
#include "llmc/base/hash.h"
#include "llmc/base/rand.h"
#include "llmc/data/tokenizer.h"
#include "llmc/base/utils.h"

#define SHARD_MAGIC 20240520
#define SHARD_MAGIC_32_BIT 20240801 // llm.c's shards for the Llama 3 tokenizer
#define SHARD_VERSION 1
#define SHARD_HEADER_BYTES 1024
#define TEXT_MAX_BYTES ((int64_t)1 << 36) // of a text file that is tokenised in memory

typedef struct {
    char *path;
    int64_t num_tokens;
    int64_t num_windows; // may be 0
} DataShard;

typedef struct DataLoader {
    int seq_len; // T
    int vocab_size;
    bool shuffle;
    uint64_t seed;
    int64_t num_sequences; // windows per epoch, at least 1
    int64_t num_tokens;    // in all shards
    uint64_t fingerprint;

    DataShard *shards; // (num_shards), in order of their names
    int num_shards;
    const uint16_t *memory; // the tokens of the only shard, borrowed; NULL when shards are files
    InputFile file;         // the shard read last: one file is open at a time, however many there are
    int open_shard;         // which one, -1: none
    uint16_t *window;       // (T + 1) tokens

    int64_t epoch;       // that the rest is made for; it follows from the run's seed alone
    uint64_t epoch_seed; // of this epoch's permutations
    int *order;          // (num_shards): the shard at place i of this epoch
    int64_t *first;      // (num_shards): the first sequence of this epoch that the shard at place i holds
} DataLoader;

// ---- Token shards ----

// Checks magic, version and count of a shard's header against the size of the file. Messages do not name the file.
static inline bool shard_check_header(const int32_t *header, int64_t file_bytes, Error *error) {
    int64_t tokens = header[2], data_bytes = file_bytes - SHARD_HEADER_BYTES;
    if (header[0] == SHARD_MAGIC_32_BIT) {
        return fail(error,
                    "holds 32-bit tokens of another tokenizer (magic %d), expected 16-bit GPT-2 tokens (magic %d)",
                    header[0], SHARD_MAGIC);
    }
    if (header[0] != SHARD_MAGIC) {
        return fail(error, "is not a token shard: magic %d, expected %d (use `tokenize` to make shards of text)",
                    header[0], SHARD_MAGIC);
    }
    if (header[1] != SHARD_VERSION) {
        return fail(error, "token shard of version %d, expected %d", header[1], SHARD_VERSION);
    }
    if (tokens < 0) { return fail(error, "header says %lld tokens, expected 0 or more", (long long)tokens); }
    if (data_bytes == 2 * tokens) { return true; }
    if (data_bytes == 4 * tokens) {
        return fail(error, "holds %lld tokens of 4 bytes (another tokenizer?), expected 2 bytes", (long long)tokens);
    }
    return fail(error, "header says %lld tokens, file holds %lld%s (%s? fetch it again)", (long long)tokens,
                (long long)(data_bytes / 2), data_bytes % 2 ? " and a half" : "",
                data_bytes < 2 * tokens ? "truncated download" : "padded or damaged");
}

static inline bool shard_check_file(const InputFile *file, int64_t *num_tokens, Error *error) {
    if (file->size < SHARD_HEADER_BYTES) {
        return fail(error,
                    "%s: %lld bytes, less than the header of a token shard, %d (truncated download? fetch it again)",
                    file->path, (long long)file->size, SHARD_HEADER_BYTES);
    }
    int32_t header[SHARD_HEADER_BYTES / sizeof(int32_t)];
    Error reason;
    if (!input_read(file, 0, header, SHARD_HEADER_BYTES, error)) { return false; }
    if (!shard_check_header(header, file->size, &reason)) { return fail(error, "%s: %s", file->path, reason.text); }
    *num_tokens = header[2];
    return true;
}

// Opens a shard, checks its header and exact size, and writes its number of tokens. Closed again after a failure.
static inline bool shard_open(InputFile *file, const char *path, int64_t *num_tokens, Error *error) {
    bool ok = input_open(file, path, error) && shard_check_file(file, num_tokens, error);
    if (!ok) { input_close(file); }
    return ok;
}

// Makes a shard the open file. It must still have the size it had when the data set was opened.
static inline bool dataloader_switch_shard(DataLoader *dl, int shard, Error *error) {
    if (dl->open_shard == shard) { return true; }
    input_close(&dl->file);
    dl->open_shard = -1;
    const char *path = dl->shards[shard].path;
    int64_t num_tokens = 0;
    if (!shard_open(&dl->file, path, &num_tokens, error)) { return false; }
    if (num_tokens != dl->shards[shard].num_tokens) {
        input_close(&dl->file);
        return fail(error, "%s: has %lld tokens now, had %lld when the run began", path, (long long)num_tokens,
                    (long long)dl->shards[shard].num_tokens);
    }
    dl->open_shard = shard;
    return true;
}

// Reads `count` tokens of a shard from token `begin`, unchecked.
static inline bool dataloader_read_tokens(DataLoader *dl, int shard, int64_t begin, int64_t count, uint16_t *out,
                                          Error *error) {
    if (dl->memory != NULL) {
        memcpy(out, dl->memory + begin, (size_t)count * sizeof(uint16_t));
        return true;
    }
    return dataloader_switch_shard(dl, shard, error) &&
           input_read(&dl->file, SHARD_HEADER_BYTES + 2 * begin, out, 2 * count, error);
}

// ---- The order of an epoch ----

// Lists the shards in the order of an epoch and where each begins; a few thousand of them cost microseconds.
static inline void dataloader_set_epoch(DataLoader *dl, int64_t epoch) {
    if (dl->epoch == epoch) { return; }
    dl->epoch = epoch;
    dl->epoch_seed = rand_u64(dl->seed, RAND_SHARDS, (uint64_t)epoch);
    uint64_t n = (uint64_t)dl->num_shards;
    int64_t first = 0;
    for (uint64_t i = 0; i < n; i++) {
        dl->order[i] = (int)(dl->shuffle ? rand_permute(dl->epoch_seed, RAND_SHARDS, i, n) : i);
        dl->first[i] = first;
        first += dl->shards[dl->order[i]].num_windows;
    }
}

// Finds the shard and the window in it of a sequence, counted from the beginning of the run.
static inline void dataloader_locate(DataLoader *dl, int64_t sequence, int *shard, int64_t *window) {
    int64_t in_epoch = sequence % dl->num_sequences;
    dataloader_set_epoch(dl, sequence / dl->num_sequences);
    int low = 0, high = dl->num_shards; // the last place whose first sequence is not beyond is in [low, high)
    while (high - low > 1) {
        int middle = low + (high - low) / 2;
        if (dl->first[middle] <= in_epoch) {
            low = middle;
        } else {
            high = middle;
        }
    }
    *shard = dl->order[low];
    *window = in_epoch - dl->first[low];
    if (dl->shuffle) { // each shard of each epoch has its own seed
        uint64_t seed = rand_u64(dl->epoch_seed, RAND_WINDOWS, (uint64_t)*shard);
        uint64_t n = (uint64_t)dl->shards[*shard].num_windows;
        *window = (int64_t)rand_permute(seed, RAND_WINDOWS, (uint64_t)*window, n);
    }
}

// ---- Opening ----

// Releases everything; harmless on a loader that failed to open, and twice.
static inline void dataloader_close(DataLoader *dl) {
    for (int i = 0; dl->shards != NULL && i < dl->num_shards; i++) { free(dl->shards[i].path); }
    input_close(&dl->file);
    free(dl->shards);
    free(dl->window);
    free(dl->order);
    free(dl->first);
    memset(dl, 0, sizeof(*dl));
    dl->file.fd = -1;
}

static inline void dataloader_init(DataLoader *dl, int seq_len, int vocab_size, bool shuffle, uint64_t seed) {
    memset(dl, 0, sizeof(*dl));
    dl->seq_len = seq_len;
    dl->vocab_size = vocab_size;
    dl->shuffle = shuffle;
    dl->seed = seed;
    dl->file.fd = -1;
    dl->open_shard = -1;
    dl->epoch = -1;
}

static inline bool dataloader_allocate(DataLoader *dl, int num_shards, Error *error) {
    size_t n = (size_t)num_shards;
    dl->num_shards = num_shards;
    dl->shards = (DataShard *)calloc(n, sizeof(DataShard));
    dl->order = (int *)calloc(n, sizeof(int));
    dl->first = (int64_t *)calloc(n, sizeof(int64_t));
    dl->window = (uint16_t *)malloc(((size_t)dl->seq_len + 1) * sizeof(uint16_t));
    if (dl->shards != NULL && dl->order != NULL && dl->first != NULL && dl->window != NULL) { return true; }
    return fail(error, "out of memory for the list of %d data shards", num_shards);
}

static inline bool dataloader_set_shard(DataLoader *dl, int shard, const char *path, int64_t num_tokens, Error *error) {
    DataShard *s = &dl->shards[shard];
    size_t bytes = strlen(path) + 1;
    s->path = (char *)malloc(bytes);
    if (s->path == NULL) { return fail(error, "out of memory for the list of %d data shards", dl->num_shards); }
    memcpy(s->path, path, bytes);
    s->num_tokens = num_tokens;
    s->num_windows = num_tokens > 0 ? (num_tokens - 1) / dl->seq_len : 0;
    dl->num_tokens += s->num_tokens;
    dl->num_sequences += s->num_windows;
    return true;
}

// Adds to the hash what tells one shard from another: its size and its tokens (of a file, three samples).
static inline bool dataloader_hash_shard(DataLoader *dl, int shard, Hash64 *hash, Error *error) {
    enum { SAMPLE = 1024, NUM_SAMPLES = 3 };
    uint16_t tokens[SAMPLE];
    int64_t n = dl->shards[shard].num_tokens;
    hash64_update(hash, &n, sizeof(n));
    if (dl->memory != NULL) { hash64_update(hash, dl->memory, (size_t)n * sizeof(uint16_t)); }
    if (dl->memory != NULL) { return true; }
    int64_t count = min_i64(n, SAMPLE);
    for (int i = 0; i < NUM_SAMPLES; i++) {
        int64_t begin = (n - count) / (NUM_SAMPLES - 1) * i;
        if (!dataloader_read_tokens(dl, shard, begin, count, tokens, error)) { return false; }
        hash64_update(hash, tokens, (size_t)count * sizeof(uint16_t));
    }
    return true;
}

// Checks that there is something to read, and computes the fingerprint.
static inline bool dataloader_finish(DataLoader *dl, const char *name, Error *error) {
    int64_t longest = 0;
    Hash64 hash;
    hash64_init(&hash, 0);
    for (int i = 0; i < dl->num_shards; i++) { longest = max_i64(longest, dl->shards[i].num_tokens); }
    if (dl->num_sequences == 0) {
        return fail(error,
                    "%s: a sequence of --seq-len %d needs %lld tokens in one piece, the longest piece has %lld; "
                    "choose a shorter sequence or more data",
                    name, dl->seq_len, (long long)dl->seq_len + 1, (long long)longest);
    }
    for (int i = 0; i < dl->num_shards; i++) {
        if (!dataloader_hash_shard(dl, i, &hash, error)) { return false; }
    }
    dl->fingerprint = hash64_final(&hash);
    return true;
}

// Appends printf-style text to a string of `size` bytes, cut to fit.
PRINTF_LIKE(3, 4) static inline void dataloader_append_text(char *text, size_t size, const char *format, ...) {
    size_t used = strlen(text);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text + used, size - used, format, arguments);
    va_end(arguments);
}

// Checks all files and lists every bad one (the first of them by name) in one message.
static inline bool dataloader_set_files(DataLoader *dl, const PathList *files, Error *error) {
    enum { MAX_NAMED = 8 };
    char list[sizeof(error->text) - 100] = "";
    int bad = 0;
    for (int i = 0; i < files->count; i++) {
        int64_t num_tokens = 0;
        InputFile file;
        Error reason;
        if (shard_open(&file, files->paths[i], &num_tokens, &reason)) {
            input_close(&file);
            if (!dataloader_set_shard(dl, i, files->paths[i], num_tokens, error)) { return false; }
        } else if (bad++ < MAX_NAMED) {
            dataloader_append_text(list, sizeof(list), "%s%s", bad > 1 ? "; " : "", reason.text);
        }
    }
    if (bad == 0) { return true; }
    if (files->count == 1) { return fail(error, "%s", list); }
    fail(error, "%d of %d files are unusable: %s", bad, files->count, list);
    if (bad > MAX_NAMED) { dataloader_append_text(error->text, sizeof(error->text), "; and %d more", bad - MAX_NAMED); }
    return false;
}

// Opens the token shards that a pattern (* ? [...]) matches, in the order of their names, and checks the header and the
// exact size of each: all bad files are named in one message. T = seq_len and vocab_size must be positive. Close with
// dataloader_close; after a failure that is done.
static inline bool dataloader_open(DataLoader *dl, const char *pattern, int seq_len, int vocab_size, bool shuffle,
                                   uint64_t seed, Error *error) {
    PathList files;
    dataloader_init(dl, seq_len, vocab_size, shuffle, seed);
    bool ok = list_glob(pattern, &files, error) && dataloader_allocate(dl, files.count, error) &&
              dataloader_set_files(dl, &files, error) && dataloader_finish(dl, pattern, error);
    path_list_free(&files);
    if (!ok) { dataloader_close(dl); }
    return ok;
}

// The same for tokens in memory, as one shard; `name` stands for the file in messages. The tokens are borrowed and must
// stay until the loader is closed.
static inline bool dataloader_open_tokens(DataLoader *dl, const char *name, const uint16_t *tokens, int64_t count,
                                          int seq_len, int vocab_size, bool shuffle, uint64_t seed, Error *error) {
    dataloader_init(dl, seq_len, vocab_size, shuffle, seed);
    dl->memory = tokens;
    bool ok = dataloader_allocate(dl, 1, error) && dataloader_set_shard(dl, 0, name, count, error) &&
              dataloader_finish(dl, name, error);
    if (!ok) { dataloader_close(dl); }
    return ok;
}

// ---- Reading ----

// Reads one window into inputs (T) and targets (T), and checks that every token is in the vocabulary.
static inline bool dataloader_read_window(DataLoader *dl, int shard, int64_t window, int32_t *inputs, int32_t *targets,
                                          Error *error) {
    int T = dl->seq_len;
    int64_t begin = window * T;
    if (!dataloader_read_tokens(dl, shard, begin, (int64_t)T + 1, dl->window, error)) { return false; }
    for (int i = 0; i <= T; i++) {
        if (dl->window[i] >= dl->vocab_size) {
            return fail(error, "%s: token %lld is id %d, the model's vocabulary has %d (made by another tokenizer?)",
                        dl->shards[shard].path, (long long)(begin + i), dl->window[i], dl->vocab_size);
        }
    }
    for (int i = 0; i < T; i++) {
        inputs[i] = dl->window[i];
        targets[i] = dl->window[i + 1];
    }
    return true;
}

// Reads sequences first_sequence .. first_sequence + count - 1 into inputs (count, T) and targets (count, T), where
// targets[b, t] follows inputs[b, t] in the text. Sequence g is number g % num_sequences of epoch g / num_sequences; a
// read may cross from one shard or epoch to the next. Fails when a file cannot be read or has changed, and on a token
// id outside the vocabulary (with shard, position and id); the arrays are not to be used then.
static inline bool dataloader_read(DataLoader *dl, int64_t first_sequence, int count, int32_t *inputs, int32_t *targets,
                                   Error *error) {
    if (first_sequence < 0) {
        return fail(error, "data: sequence %lld asked for, the first is 0", (long long)first_sequence);
    }
    for (int i = 0; i < count; i++) {
        int shard;
        int64_t window, at = (int64_t)i * dl->seq_len;
        dataloader_locate(dl, first_sequence + i, &shard, &window);
        if (!dataloader_read_window(dl, shard, window, inputs + at, targets + at, error)) { return false; }
    }
    return true;
}

// A hash over number, order, sizes and contents of the shards (of files: samples at the beginning, middle and end),
// not their names: a resumed run finds out that its data changed.
static inline uint64_t dataloader_fingerprint(const DataLoader *dl) { return dl->fingerprint; }

// ---- Text ----

// Whether a --train-data pattern means token shards (its name ends with .bin); otherwise it means text.
static inline bool data_is_shards(const char *pattern) { return ends_with(pattern, ".bin"); }

// Appends end-of-text and the tokens of one text file; *tokens grows.
static inline bool text_append(const char *path, const Tokenizer *tokenizer, uint16_t **tokens, int64_t *count,
                               Error *error) {
    uint8_t *text;
    int64_t bytes, added = 0;
    Error reason;
    if (!read_whole_file(path, TEXT_MAX_BYTES, &text, &bytes, error)) { return false; }
    bool ok = bytes > 0 || fail(error, "%s: the file is empty, expected text to train on", path);
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

// Tokenises the text files that a pattern (* ? [...]) matches, in the order of their names, each preceded by
// end-of-text. The caller frees *tokens; it is NULL after a failure. No match, an empty file, a folder and a tokenizer
// that only decodes are errors.
static inline bool text_load(const char *pattern, const Tokenizer *tokenizer, uint16_t **tokens, int64_t *count,
                             Error *error) {
    PathList files;
    memset(&files, 0, sizeof(files));
    *tokens = NULL;
    *count = 0;
    bool ok = tokenizer_can_encode(tokenizer) ||
              fail(error, "%s: is text, but the tokenizer only decodes; use --tokenizer vocab.bpe or byte", pattern);
    ok = ok && list_glob(pattern, &files, error);
    for (int i = 0; ok && i < files.count; i++) { ok = text_append(files.paths[i], tokenizer, tokens, count, error); }
    path_list_free(&files);
    if (ok) {
        uint16_t *fitting = (uint16_t *)realloc(*tokens, (size_t)*count * sizeof(uint16_t));
        if (fitting != NULL) { *tokens = fitting; }
    } else {
        free(*tokens);
        *tokens = NULL;
    }
    return ok;
}

// Splits a text of `count` tokens for training and validation: tokens 0 .. *train_count-1 are for training, the rest
// for validation. That is the last tenth, or one window of T + 1 tokens when a tenth is shorter; nothing when that
// would leave less than one window for training.
static inline void text_split(int64_t count, int seq_len, int64_t *train_count) {
    int64_t window = (int64_t)seq_len + 1, validation = max_i64(count / 10, window);
    *train_count = count - validation >= window ? count - validation : count;
}

#endif // LLMC_DATALOADER_H
