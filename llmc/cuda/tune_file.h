// What earlier starts found out about this machine's matrix multiplies: a text file, one line for each problem.
//
//   gpt2.c matmul choices 1 | NVIDIA H100 80GB HBM3, 132 multiprocessors | cuBLASLt 130100
//   <XXH64 of the rest of the line> <the choice, 64 bytes in hex> <the problem>
//
// It only saves time, so nothing about it is an error: what cannot be used is left out, in a line of notice. A choice
// means something to the same GPU and version of cuBLASLt only. The sums tell a damaged line, also one that two
// programs have written to at once.
#ifndef LLMC_TUNE_FILE_H
#define LLMC_TUNE_FILE_H

#include "llmc/base/files.h"

#define TUNE_MAGIC "gpt2.c matmul choices 1 | "
#define TUNE_KEY_BYTES 192
#define TUNE_CHOICE_BYTES 64
#define TUNE_MAX_ENTRIES 1024 // some 20 for each shape of a run: the oldest make room
#define TUNE_LINE_BYTES (16 + 1 + 2 * TUNE_CHOICE_BYTES + 1 + TUNE_KEY_BYTES)
#define TUNE_HEADER_BYTES 512
#define TUNE_MAX_FILE_BYTES ((int64_t)2 * TUNE_MAX_ENTRIES * TUNE_LINE_BYTES)

typedef struct {
    char key[TUNE_KEY_BYTES]; // the problem, in words
    uint8_t choice[TUNE_CHOICE_BYTES];
} TuneEntry;

typedef struct {
    char header[TUNE_HEADER_BYTES]; // the first line, without its newline
    int count;
    TuneEntry entries[TUNE_MAX_ENTRIES]; // oldest first
} TuneTable;

// What a file begins with, in header (TUNE_HEADER_BYTES).
static inline void tune_header(char *header, const char *gpu, int multiprocessors, long version) {
    snprintf(header, TUNE_HEADER_BYTES, TUNE_MAGIC "%.300s, %d multiprocessors | cuBLASLt %ld", gpu, multiprocessors,
             version);
}

// An empty table for a GPU. The table is large: not for the stack.
static inline void tune_table_init(TuneTable *table, const char *gpu, int multiprocessors, long version) {
    memset(table, 0, sizeof(*table));
    tune_header(table->header, gpu, multiprocessors, version);
}

static inline TuneEntry *tune_table_find(TuneTable *table, const char *key) {
    for (int i = 0; i < table->count; i++) {
        if (strcmp(table->entries[i].key, key) == 0) { return &table->entries[i]; }
    }
    return NULL;
}

// Sets the choice for a problem; as the newest entry if there was none.
static inline void tune_table_set(TuneTable *table, const char *key, const void *choice) {
    TuneEntry *entry = tune_table_find(table, key);
    if (entry == NULL && table->count == TUNE_MAX_ENTRIES) {
        memmove(table->entries, table->entries + 1, (TUNE_MAX_ENTRIES - 1) * sizeof(TuneEntry));
        table->count--;
    }
    if (entry == NULL) { entry = &table->entries[table->count++]; }
    snprintf(entry->key, sizeof(entry->key), "%s", key);
    memcpy(entry->choice, choice, TUNE_CHOICE_BYTES);
}

// ---- Lines ----

// Writes an entry's line, with its newline, into text (TUNE_LINE_BYTES + 2). Returns its length.
static inline int64_t tune_format_line(char *text, const TuneEntry *entry) {
    char rest[TUNE_LINE_BYTES + 1];
    for (int i = 0; i < TUNE_CHOICE_BYTES; i++) { snprintf(rest + 2 * i, 3, "%02x", entry->choice[i]); }
    snprintf(rest + 2 * TUNE_CHOICE_BYTES, sizeof(rest) - 2 * TUNE_CHOICE_BYTES, " %s", entry->key);
    return snprintf(text, TUNE_LINE_BYTES + 2, "%016llx %s\n", (unsigned long long)hash64(rest, strlen(rest)), rest);
}

// The value of a hex digit, or -1.
static inline int tune_hex_digit(char c) {
    static const char digits[] = "0123456789abcdef";
    const char *found = c != '\0' ? strchr(digits, c) : NULL;
    return found != NULL ? (int)(found - digits) : -1;
}

// Reads a line of n bytes, without its newline. False: it is damaged.
static inline bool tune_parse_line(const char *line, int64_t n, TuneEntry *entry) {
    const int64_t choice_at = 17, key_at = choice_at + 2 * TUNE_CHOICE_BYTES + 1;
    char sum[17];
    if (n <= key_at || n - key_at >= TUNE_KEY_BYTES || memchr(line, '\0', (size_t)n) != NULL) { return false; }
    snprintf(sum, sizeof(sum), "%016llx", (unsigned long long)hash64(line + choice_at, (size_t)(n - choice_at)));
    if (memcmp(line, sum, 16) != 0 || line[16] != ' ' || line[key_at - 1] != ' ') { return false; }
    for (int i = 0; i < TUNE_CHOICE_BYTES; i++) {
        int high = tune_hex_digit(line[choice_at + 2 * i]), low = tune_hex_digit(line[choice_at + 2 * i + 1]);
        if (high < 0 || low < 0) { return false; }
        entry->choice[i] = (uint8_t)(16 * high + low);
    }
    memcpy(entry->key, line + key_at, (size_t)(n - key_at));
    entry->key[n - key_at] = '\0';
    return true;
}

// Adds the entries of text, what stands behind the first line. Returns how many lines are damaged, a last one without
// its newline among them.
static inline int tune_read_lines(TuneTable *table, const char *text, int64_t bytes) {
    int damaged = 0;
    while (bytes > 0) {
        const char *end = (const char *)memchr(text, '\n', (size_t)bytes);
        int64_t n = end != NULL ? end - text : bytes;
        TuneEntry entry;
        if (end != NULL && tune_parse_line(text, n, &entry)) {
            tune_table_set(table, entry.key, entry.choice);
        } else {
            damaged++;
        }
        n = min_i64(n + 1, bytes);
        text += n, bytes -= n;
    }
    return damaged;
}

// ---- Files ----

typedef enum {
    TUNE_FILE_READ,   // with what it holds for this machine, or it does not exist
    TUNE_FILE_NOTICE, // the same, and there is something to say
    TUNE_FILE_FOREIGN // not a file of this kind, or not readable: it must not be written to. There is something to say
} TuneFileState;

static inline TuneFileState tune_read_text(TuneTable *table, const char *path, const char *text, int64_t bytes,
                                           Error *notice) {
    const char *end = (const char *)memchr(text, '\n', (size_t)bytes);
    int64_t n = end != NULL ? end - text : bytes;
    if (n < (int64_t)strlen(TUNE_MAGIC) || memcmp(text, TUNE_MAGIC, strlen(TUNE_MAGIC)) != 0) {
        fail(notice, "%s: not a file of choices for matrix multiplies; left as it is, give another --matmul-tune-file",
             path);
        return TUNE_FILE_FOREIGN;
    }
    if (n != (int64_t)strlen(table->header) || memcmp(text, table->header, (size_t)n) != 0) {
        fail(notice, "%s: from another GPU or cuBLASLt, or its first line is damaged; begun anew", path);
        return TUNE_FILE_NOTICE;
    }
    int damaged = end != NULL ? tune_read_lines(table, end + 1, bytes - n - 1) : 0;
    if (damaged == 0) { return TUNE_FILE_READ; }
    fail(notice, "%s: %d damaged line%s left out", path, damaged, damaged == 1 ? "" : "s");
    return TUNE_FILE_NOTICE;
}

// Adds the entries of a file to a table that tune_table_init has made.
static inline TuneFileState tune_file_read(TuneTable *table, const char *path, Error *notice) {
    uint8_t *text;
    int64_t bytes;
    struct stat info;
    if (stat(path, &info) != 0 && (errno == ENOENT || errno == ENOTDIR)) { return TUNE_FILE_READ; }
    if (!read_whole_file(path, TUNE_MAX_FILE_BYTES, &text, &bytes, notice)) { return TUNE_FILE_FOREIGN; }
    TuneFileState state = bytes == 0 ? TUNE_FILE_READ : tune_read_text(table, path, (const char *)text, bytes, notice);
    free(text);
    return state;
}

// Writes a table, whole or not at all, and the folders above it. A failure is for a line of notice.
static inline bool tune_file_write(const TuneTable *table, const char *path, Error *notice) {
    char folder[MAX_PATH_BYTES];
    char *text = (char *)malloc(TUNE_HEADER_BYTES + 1 + (size_t)table->count * (TUNE_LINE_BYTES + 2));
    if (text == NULL) { return fail(notice, "%s: out of memory", path); }
    int64_t used = snprintf(text, TUNE_HEADER_BYTES + 1, "%s\n", table->header);
    for (int i = 0; i < table->count; i++) { used += tune_format_line(text + used, &table->entries[i]); }
    path_parent(folder, path);
    bool ok = make_directories(folder, notice) && write_whole_file(path, text, used, notice);
    free(text);
    return ok;
}

// Where the choices for a GPU are kept when nobody says otherwise, in path (MAX_PATH_BYTES): in the user's folder for
// caches, $XDG_CACHE_HOME or ~/.cache. False, with a notice, when there is none.
static inline bool tune_file_default(char *path, const char *gpu, long version, Error *notice) {
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char name[160];
    bool has_cache = cache != NULL && cache[0] == '/', has_home = home != NULL && home[0] == '/';
    if (!has_cache && !has_home) {
        return fail(notice, "neither HOME nor XDG_CACHE_HOME is set, so that choices are not kept; give "
                            "--matmul-tune-file");
    }
    int n = snprintf(name, sizeof(name), "matmul_%.100s_%ld.txt", gpu, version);
    for (int i = 0; i < n; i++) {
        char c = name[i];
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.';
        if (!plain && c != '-') { name[i] = '_'; }
    }
    const char *above = has_cache ? cache : home, *between = has_cache ? "" : "/.cache";
    n = snprintf(path, MAX_PATH_BYTES, "%s%s/gpt2.c/%s", above, between, name);
    return n <= PATH_LIMIT || fail(notice, "%.200s...: the path of the folder for caches is too long", above);
}

#endif // LLMC_TUNE_FILE_H
