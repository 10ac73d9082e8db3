// Training and validation data: which tokens sequence number g holds.
//
// A data set is a list of windows of T + 1 tokens: T inputs and, shifted by one, T targets. An epoch reads every window
// once, in the order of the shards or, shuffled, by a permutation of the shards and of the windows in each shard.
// Reading is a pure function of (seed, sequence number). No position is kept, so a resumed run, another batch size and
// another number of ranks read equal sequences g.
//
// A shard of n tokens has floor((n - 1) / T) windows. The rest at its end, fewer than T + 1 tokens, is not used. A
// window never crosses from one shard into another.
#ifndef LLMC_DATALOADER_H
#define LLMC_DATALOADER_H

#include "llmc/base/input_file.h"
#include "llmc/base/hash.h"
#include "llmc/base/rand.h"
#include "llmc/base/text.h"
#include "llmc/data/data_file.h"

typedef struct {
    const char *path; // borrowed
    int64_t num_tokens;
    int64_t num_windows; // may be 0
    uint64_t tokenizer;  // its hash, 0: unknown
} DataShard;

typedef struct DataLoader {
    int seq_len; // T
    int vocab_size;
    bool shuffle;
    uint64_t seed;
    int64_t num_sequences; // windows per epoch, at least 1
    int64_t num_tokens;    // in all shards
    // A hash of the number, order, sizes and contents of the shards, by which a resumed run finds out that its data
    // changed. The names do not count. Of a file's contents three samples count.
    uint64_t fingerprint;

    glob_t files;      // holds the paths of the shards
    DataShard *shards; // (num_shards), in order of their names
    int num_shards;
    const uint32_t *memory; // the tokens of the only shard, borrowed; NULL when shards are files
    BinFile bin;            // the shard read last: one file is open at a time
    int open_shard;         // its number; -1: none
    uint32_t *window;       // (T + 1) tokens

    int64_t epoch;       // the fields below are those of this epoch; they follow from the run's seed alone
    uint64_t epoch_seed; // seed of this epoch's permutations
    int *order;          // (num_shards): the shard at place i of this epoch
    int64_t *first;      // (num_shards): the first sequence of this epoch that the shard at place i holds
} DataLoader;

// ---- Token shards ----

// Opens a shard, checks its header and exact size. The file is closed after a failure.
static inline bool shard_open(BinFile *bin, const char *path, Error *error) {
    return bin_open(bin, path, BIN_SHARD, error) && bin_check_size(bin, bin->header[2], error);
}

// Makes a shard the open file. The shard must have the size that it had when the data set was opened.
static inline bool dataloader_switch_shard(DataLoader *dl, int shard, Error *error) {
    if (dl->open_shard == shard) { return true; }
    input_close(&dl->bin.file);
    dl->open_shard = -1;
    const char *path = dl->shards[shard].path;
    if (!shard_open(&dl->bin, path, error)) { return false; }
    if (dl->bin.header[2] != dl->shards[shard].num_tokens) {
        input_close(&dl->bin.file);
        return fail(error, "%s: has %d tokens now, had %lld when the run began", path, dl->bin.header[2],
                    (long long)dl->shards[shard].num_tokens);
    }
    dl->open_shard = shard;
    return true;
}

// Reads `count` tokens of a shard from token `begin` on, without checking them.
static inline bool dataloader_read_tokens(DataLoader *dl, int shard, int64_t begin, int64_t count, uint32_t *out,
                                          Error *error) {
    if (dl->memory != NULL) {
        memcpy(out, dl->memory + begin, (size_t)count * sizeof(uint32_t));
        return true;
    }
    if (!dataloader_switch_shard(dl, shard, error)) { return false; }
    const int64_t size = dl->bin.element, rest = (4 - size) * count; // ids of 16 bits are read to the end of `out`
    bool ok = input_read(&dl->bin.file, DATA_HEADER_BYTES + size * begin, (uint8_t *)out + rest, size * count, error);
    if (ok && size == 2) { data_widen(out, count); }
    return ok;
}

// ---- The order of an epoch ----

// Lists the shards in the order of an epoch and where each begins. A few thousand shards cost microseconds.
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
    int low = 0, high = dl->num_shards; // the shard's place is in [low, high)
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

// Frees everything. It may be called twice, and on a loader that failed to open.
static inline void dataloader_close(DataLoader *dl) {
    input_close(&dl->bin.file);
    globfree(&dl->files);
    free(dl->shards);
    free(dl->window);
    free(dl->order);
    free(dl->first);
    memset(dl, 0, sizeof(*dl));
    dl->bin.file.fd = -1;
}

static inline void dataloader_init(DataLoader *dl, int seq_len, int vocab_size, bool shuffle, uint64_t seed) {
    memset(dl, 0, sizeof(*dl));
    dl->seq_len = seq_len, dl->vocab_size = vocab_size;
    dl->shuffle = shuffle, dl->seed = seed;
    dl->bin.file.fd = dl->open_shard = -1;
    dl->epoch = -1;
}

static inline bool dataloader_allocate(DataLoader *dl, int num_shards, Error *error) {
    size_t n = (size_t)num_shards;
    dl->num_shards = num_shards;
    dl->shards = (DataShard *)calloc(n, sizeof(DataShard));
    dl->order = (int *)calloc(n, sizeof(int));
    dl->first = (int64_t *)calloc(n, sizeof(int64_t));
    dl->window = (uint32_t *)malloc(((size_t)dl->seq_len + 1) * sizeof(uint32_t));
    if (dl->shards != NULL && dl->order != NULL && dl->first != NULL && dl->window != NULL) { return true; }
    return fail(error, "out of memory for the list of %d data shards", num_shards);
}

static inline void dataloader_set_shard(DataLoader *dl, int shard, const char *path, int64_t num_tokens) {
    DataShard *s = &dl->shards[shard];
    s->path = path;
    s->num_tokens = num_tokens;
    s->num_windows = num_tokens > 0 ? (num_tokens - 1) / dl->seq_len : 0;
    dl->num_tokens += s->num_tokens;
    dl->num_sequences += s->num_windows;
}

// Returns the hash64 of ids as a file has them.
static inline uint64_t data_hash(const uint32_t *ids, int64_t count, int id_bytes) {
    uint64_t sum = 0;
    if (id_bytes == 4) { return hash64(ids, (size_t)count * 4); }
#pragma omp parallel for schedule(static) reduction(+ : sum)
    for (int64_t i = 0; i < (count + 1) / 2; i++) {
        sum += sum64_word((uint64_t)i, ids[2 * i] | (2 * i + 1 < count ? ids[2 * i + 1] << 16 : 0));
    }
    return hash64_end(sum, 2 * count);
}

// Adds a shard to the hash: its size and its tokens, or three samples of them if the shard is a file.
static inline bool dataloader_hash_shard(DataLoader *dl, int shard, uint64_t *hash, Error *error) {
    enum { SAMPLE = 1024, NUM_SAMPLES = 3 };
    uint32_t sample[SAMPLE];
    const uint32_t *tokens = dl->memory != NULL ? dl->memory : sample;
    int64_t n = dl->shards[shard].num_tokens, count = dl->memory != NULL ? n : min_i64(n, SAMPLE);
    *hash = hash64_join(*hash, &n, sizeof(n));
    for (int i = 0; i < (dl->memory != NULL ? 1 : NUM_SAMPLES); i++) {
        int64_t begin = (n - count) / (NUM_SAMPLES - 1) * i;
        if (tokens == sample && !dataloader_read_tokens(dl, shard, begin, count, sample, error)) { return false; }
        int id_bytes = tokens == sample ? dl->bin.element : data_id_bytes(dl->vocab_size);
        const uint64_t both[2] = {*hash, data_hash(tokens, count, id_bytes)};
        *hash = hash64(both, sizeof(both));
    }
    return true;
}

// Checks that there is something to read, and computes the fingerprint.
static inline bool dataloader_finish(DataLoader *dl, const char *name, Error *error) {
    int64_t longest = 0;
    uint64_t hash = 0;
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
    dl->fingerprint = hash;
    return true;
}

// Checks all files and names every bad one, or the first eight, in one message.
static inline bool dataloader_set_files(DataLoader *dl, Error *error) {
    enum { MAX_NAMED = 8, MAX_LIST = (int)sizeof(error->text) - 100 };
    const int count = (int)dl->files.gl_pathc;
    Text list = {NULL, 0, 0, false};
    char more[32] = "";
    int bad = 0;
    for (int i = 0; i < count; i++) {
        BinFile bin;
        Error reason;
        if (shard_open(&bin, dl->files.gl_pathv[i], &reason)) {
            input_close(&bin.file);
            dataloader_set_shard(dl, i, dl->files.gl_pathv[i], bin.header[2]);
            dl->shards[i].tokenizer = bin_tokenizer(bin.header);
        } else if (bad++ < MAX_NAMED) {
            text_printf(&list, "%s%s", bad > 1 ? "; " : "", reason.text);
        }
    }
    if (bad > MAX_NAMED) { snprintf(more, sizeof(more), "; and %d more", bad - MAX_NAMED); }
    if (bad > 0 && count == 1) { fail(error, "%s", list.data); }
    if (bad > 0 && count > 1) {
        fail(error, "%d of %d files are unusable: %.*s%s", bad, count, MAX_LIST, list.data, more);
    }
    text_free(&list);
    return bad == 0;
}

// Opens tokens in memory as one shard, or, if `tokens` is NULL, the shards that the pattern `name` (* ? [...]) matches,
// in the order of their names. Checks the header and the exact size of each; one message names all bad files. T =
// seq_len and vocab_size must be positive. Name and tokens (count) must stay until the loader is closed. Close with
// dataloader_close. After a failure the loader is closed.
static inline bool dataloader_open(DataLoader *dl, const char *name, const uint32_t *tokens, int64_t count, int seq_len,
                                   int vocab_size, bool shuffle, uint64_t seed, Error *error) {
    dataloader_init(dl, seq_len, vocab_size, shuffle, seed);
    dl->memory = tokens;
    bool ok = tokens != NULL || list_glob(name, data_hint(name), &dl->files, error);
    ok = ok && dataloader_allocate(dl, tokens != NULL ? 1 : (int)dl->files.gl_pathc, error);
    if (ok && tokens != NULL) { dataloader_set_shard(dl, 0, name, count); }
    ok = ok && (tokens != NULL || dataloader_set_files(dl, error)) && dataloader_finish(dl, name, error);
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
    int64_t bad = data_find_bad_token(dl->window, (int64_t)T + 1, dl->vocab_size);
    if (bad <= T) {
        char where[MAX_PATH_BYTES + 64];
        snprintf(where, sizeof(where), "%s: token %lld", dl->shards[shard].path, (long long)(begin + bad));
        return data_fail_token(where, dl->window[bad], dl->vocab_size, error);
    }
    for (int i = 0; i < T; i++) {
        inputs[i] = (int32_t)dl->window[i];
        targets[i] = (int32_t)dl->window[i + 1];
    }
    return true;
}

// Reads sequences first_sequence .. first_sequence + count - 1 into inputs (count, T) and targets (count, T), where
// targets[b, t] follows inputs[b, t] in the text. Sequence g >= 0 is number g % num_sequences of epoch g /
// num_sequences. A read may cross from one shard or epoch to the next. Fails if a file cannot be read or has changed,
// and on a token id outside the vocabulary (with shard, position and id). After a failure the arrays hold nothing of
// use.
static inline bool dataloader_read(DataLoader *dl, int64_t first_sequence, int count, int32_t *inputs, int32_t *targets,
                                   Error *error) {
    for (int i = 0; i < count; i++) {
        int shard;
        int64_t window, at = (int64_t)i * dl->seq_len;
        dataloader_locate(dl, first_sequence + i, &shard, &window);
        if (!dataloader_read_window(dl, shard, window, inputs + at, targets + at, error)) { return false; }
    }
    return true;
}

#endif // LLMC_DATALOADER_H
