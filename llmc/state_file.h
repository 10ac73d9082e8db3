// The training state: what a run needs beside the weights to go on exactly where it stopped. One versioned, checksummed
// file of readable facts and binary sections.
//
//   bytes  0..7    "GPT2STAT"
//          8..11   uint32 version (1)
//         12..15   uint32 T: bytes of the text
//         16..19   uint32 N: number of sections
//         20..23   uint32 0
//   then           T bytes of text: lines "key value\n"
//                  N records of 56 bytes: name (40 bytes, NUL-padded), int64 bytes, uint64 XXH64 of the section
//                  uint64 XXH64 of everything above
//                  the sections' bytes, one after another, to the end of the file
#ifndef LLMC_STATE_FILE_H
#define LLMC_STATE_FILE_H

#include "files.h"
#include "hash.h"
#include "utils.h"

#define STATE_TEXT_BYTES 65536 // several paths of 4 KiB each fit
#define STATE_MAX_SECTIONS 64
#define STATE_NAME_BYTES 40
#define STATE_VERSION 1

// Facts as lines "key value\n". A fact that cannot be stored makes `length` -1, and the header is refused when written:
// no single call needs to be checked.
typedef struct {
    char text[STATE_TEXT_BYTES];
    int length;
} StateHeader;

typedef struct {
    const char *name; // up to 39 bytes
    void *data;       // written from here, or read to here
    int64_t bytes;
} StateSection;

// ---- Facts ----

static inline void state_init(StateHeader *header) { memset(header, 0, sizeof(*header)); }

// One line of the header; pointers into its text.
typedef struct {
    const char *key, *value;
    int key_bytes, value_bytes;
} StateLine;

// Visits all lines: int at = 0; while (state_next(header, &at, &line)) ...
static inline bool state_next(const StateHeader *header, int *at, StateLine *line) {
    if (*at >= header->length) { return false; }
    const char *start = header->text + *at, *space = strchr(start, ' '), *end = strchr(start, '\n');
    line->key = start;
    line->key_bytes = (int)(space - start);
    line->value = space + 1;
    line->value_bytes = (int)(end - line->value);
    *at += (int)(end + 1 - start);
    return true;
}

static inline bool state_find(const StateHeader *header, const char *key, StateLine *line) {
    size_t n = strlen(key);
    for (int at = 0; state_next(header, &at, line);) {
        if ((size_t)line->key_bytes == n && memcmp(line->key, key, n) == 0) { return true; }
    }
    return false;
}

static inline void state_remove(StateHeader *header, const char *key) {
    StateLine line;
    if (!state_find(header, key, &line)) { return; }
    char *start = header->text + (line.key - header->text), *after = start + line.key_bytes + 1 + line.value_bytes + 1;
    memmove(start, after, (size_t)(header->text + header->length - after) + 1); // with the NUL at the end
    header->length -= (int)(after - start);
}

// Sets a fact (one line; a key without spaces), replacing the one of that key.
static inline void state_set_text(StateHeader *header, const char *key, const char *value) {
    if (header->length < 0) { return; }
    state_remove(header, key);
    size_t room = sizeof(header->text) - (size_t)header->length, n = strlen(key) + strlen(value) + 2;
    bool storable = key[0] != '\0' && strpbrk(key, " \n") == NULL && strchr(value, '\n') == NULL && n < room;
    if (!storable) {
        header->length = -1;
        return;
    }
    snprintf(header->text + header->length, room, "%s %s\n", key, value);
    header->length += (int)n;
}

static inline void state_set_i64(StateHeader *header, const char *key, int64_t value) {
    char text[32];
    snprintf(text, sizeof(text), "%lld", (long long)value);
    state_set_text(header, key, text);
}

static inline void state_set_u64(StateHeader *header, const char *key, uint64_t value) {
    char text[32];
    snprintf(text, sizeof(text), "%llu", (unsigned long long)value);
    state_set_text(header, key, text);
}

// Exact: 17 digits give back the same double, NaN and infinities included.
static inline void state_set_f64(StateHeader *header, const char *key, double value) {
    char text[48];
    snprintf(text, sizeof(text), "%.17g", value);
    state_set_text(header, key, text);
}

// The getters are false if the key is missing or its value is not of that kind (or does not fit).
static inline bool state_get_text(const StateHeader *header, const char *key, char *value, size_t size) {
    StateLine line;
    if (!state_find(header, key, &line) || (size_t)line.value_bytes >= size) { return false; }
    memcpy(value, line.value, (size_t)line.value_bytes);
    value[line.value_bytes] = '\0';
    return true;
}

static inline bool state_get_i64(const StateHeader *header, const char *key, int64_t *value) {
    char text[32], *end;
    if (!state_get_text(header, key, text, sizeof(text)) || strchr(" \t+", text[0]) != NULL) { return false; }
    errno = 0;
    *value = strtoll(text, &end, 10);
    return errno == 0 && *end == '\0';
}

static inline bool state_get_u64(const StateHeader *header, const char *key, uint64_t *value) {
    char text[32], *end;
    if (!state_get_text(header, key, text, sizeof(text)) || strchr(" \t+-", text[0]) != NULL) { return false; }
    errno = 0;
    *value = strtoull(text, &end, 10);
    return errno == 0 && *end == '\0';
}

static inline bool state_get_f64(const StateHeader *header, const char *key, double *value) {
    char text[48], *end;
    if (!state_get_text(header, key, text, sizeof(text)) || strchr(" \t", text[0]) != NULL) { return false; }
    *value = strtod(text, &end);
    return *end == '\0';
}

// True if the text consists of lines "key value\n" and nothing else.
static inline bool state_text_is_valid(const StateHeader *header) {
    const char *end = header->text + header->length;
    for (const char *line = header->text; line < end;) {
        const char *stop = (const char *)memchr(line, '\n', (size_t)(end - line));
        if (stop == NULL || memchr(line, '\0', (size_t)(stop - line)) != NULL) { return false; }
        const char *space = (const char *)memchr(line, ' ', (size_t)(stop - line));
        if (space == NULL || space == line) { return false; }
        line = stop + 1;
    }
    return true;
}

// ---- The file ----

typedef struct {
    char name[STATE_NAME_BYTES];
    int64_t bytes;
    uint64_t checksum;
} StateRecord; // as in the file

typedef struct {
    char magic[8];
    uint32_t version, text_bytes, num_sections, zero;
} StatePreamble; // as in the file

typedef char state_layout_has_no_gaps[sizeof(StateRecord) == 56 && sizeof(StatePreamble) == 24 ? 1 : -1];

#define STATE_MAGIC "GPT2STAT"

static inline bool state_make_record(StateRecord *record, const StateSection *section, const char *path, Error *error) {
    memset(record, 0, sizeof(*record));
    if (strlen(section->name) == 0 || strlen(section->name) >= STATE_NAME_BYTES || section->bytes < 0) {
        return fail(error, "%s: section \"%.80s\" of %lld bytes cannot be stored", path, section->name,
                    (long long)section->bytes);
    }
    memcpy(record->name, section->name, strlen(section->name));
    record->bytes = section->bytes;
    record->checksum = hash64(section->data, (size_t)section->bytes);
    return true;
}

// Writes everything above the sections, and its checksum.
static inline bool state_write_head(AtomicFile *file, const StateHeader *header, const StateSection *sections,
                                    int count, Error *error) {
    StatePreamble preamble;
    StateRecord record;
    Hash64 hash;
    memcpy(preamble.magic, STATE_MAGIC, sizeof(preamble.magic));
    preamble.version = STATE_VERSION;
    preamble.text_bytes = (uint32_t)header->length;
    preamble.num_sections = (uint32_t)count;
    preamble.zero = 0;
    hash64_init(&hash, 0);
    if (!atomic_write_hashed(file, &preamble, (int64_t)sizeof(preamble), &hash, error) ||
        !atomic_write_hashed(file, header->text, header->length, &hash, error)) {
        return false;
    }
    for (int i = 0; i < count; i++) {
        if (!state_make_record(&record, &sections[i], file->path, error)) {
            atomic_abort(file);
            return false;
        }
        if (!atomic_write_hashed(file, &record, (int64_t)sizeof(record), &hash, error)) { return false; }
    }
    uint64_t checksum = hash64_final(&hash);
    return atomic_write(file, &checksum, (int64_t)sizeof(checksum), error);
}

// Writes a state file up to, but without, the rename that makes it visible (atomic_commit).
static inline bool state_write_pending(AtomicFile *file, const char *path, const StateHeader *header,
                                       const StateSection *sections, int count, Error *error) {
    file->fd = -1;
    file->pending = false;
    if (header->length < 0 || count < 0 || count > STATE_MAX_SECTIONS) {
        return fail(error, "%s: the facts or the %d sections do not fit into a state file", path, count);
    }
    if (!atomic_open(file, path, error) || !state_write_head(file, header, sections, count, error)) { return false; }
    for (int i = 0; i < count; i++) {
        if (!atomic_write(file, sections[i].data, sections[i].bytes, error)) { return false; }
    }
    return atomic_flush(file, error);
}

// Writes a state file, complete or not at all.
static inline bool state_write(const char *path, const StateHeader *header, const StateSection *sections, int count,
                               Error *error) {
    AtomicFile file;
    return state_write_pending(&file, path, header, sections, count, error) && atomic_commit(&file, error);
}

typedef struct {
    InputFile file;
    StateRecord records[STATE_MAX_SECTIONS];
    int count;
    int64_t data_offset; // of the first section
} StateFile;

static inline bool state_check_preamble(const StateFile *state, const StatePreamble *preamble, Error *error) {
    const char *path = state->file.path;
    if (memcmp(preamble->magic, STATE_MAGIC, sizeof(preamble->magic)) != 0) {
        return fail(error, "%s: not a training state: it does not begin with %s", path, STATE_MAGIC);
    }
    if (preamble->version != STATE_VERSION) {
        return fail(error, "%s: training state version is %u, expected %d; resume with the program that wrote it", path,
                    preamble->version, STATE_VERSION);
    }
    if (preamble->text_bytes >= STATE_TEXT_BYTES || preamble->num_sections > STATE_MAX_SECTIONS ||
        preamble->zero != 0) {
        return fail(error, "%s: header is damaged: %u bytes of text, %u sections", path, preamble->text_bytes,
                    preamble->num_sections);
    }
    return true;
}

static inline bool state_read_head(StateFile *state, StateHeader *header, Error *error) {
    const char *path = state->file.path;
    StatePreamble preamble;
    Hash64 hash;
    hash64_init(&hash, 0);
    state_init(header);
    if (state->file.size < (int64_t)sizeof(preamble)) {
        return fail(error, "%s: has %lld bytes, too few for a training state (truncated?)", path,
                    (long long)state->file.size);
    }
    if (!input_read_hashed(&state->file, 0, &preamble, (int64_t)sizeof(preamble), &hash, error) ||
        !state_check_preamble(state, &preamble, error)) {
        return false;
    }
    state->count = (int)preamble.num_sections;
    header->length = (int)preamble.text_bytes;
    int64_t at = (int64_t)sizeof(preamble), record_bytes = state->count * (int64_t)sizeof(StateRecord);
    uint64_t checksum;
    if (!input_read_hashed(&state->file, at, header->text, header->length, &hash, error) ||
        !input_read_hashed(&state->file, at + header->length, state->records, record_bytes, &hash, error) ||
        !input_read(&state->file, at + header->length + record_bytes, &checksum, (int64_t)sizeof(checksum), error)) {
        return false;
    }
    state->data_offset = at + header->length + record_bytes + (int64_t)sizeof(checksum);
    if (checksum != hash64_final(&hash) || !state_text_is_valid(header)) {
        return fail(error, "%s: header is damaged: its checksum does not match", path);
    }
    return true;
}

// The sections must end exactly where the file ends.
static inline bool state_check_size(const StateFile *state, Error *error) {
    int64_t left = state->file.size - state->data_offset;
    bool fits = true;
    for (int i = 0; i < state->count; i++) {
        const StateRecord *record = &state->records[i];
        fits = fits && record->bytes >= 0 && record->bytes <= left && record->name[STATE_NAME_BYTES - 1] == '\0';
        left -= fits ? record->bytes : 0;
    }
    return (fits && left == 0) || fail(error, "%s: has %lld bytes, its header tells another size (truncated?)",
                                       state->file.path, (long long)state->file.size);
}

// Opens a state file and checks all but its sections' contents. Open only after success.
static inline bool state_open(StateFile *state, const char *path, StateHeader *header, Error *error) {
    if (!input_open(&state->file, path, error)) { return false; }
    bool ok = state_read_head(state, header, error) && state_check_size(state, error);
    if (!ok) { input_close(&state->file); }
    return ok;
}

// Reads the facts after checking magic, version, exact size and the header's checksum.
static inline bool state_read_header(const char *path, StateHeader *header, Error *error) {
    StateFile state;
    if (!state_open(&state, path, header, error)) { return false; }
    input_close(&state.file);
    return true;
}

static inline bool state_read_section(const StateFile *state, int i, int64_t offset, const StateSection *section,
                                      Error *error) {
    const StateRecord *record = &state->records[i];
    const char *path = state->file.path;
    if (strcmp(record->name, section->name) != 0) {
        return fail(error, "%s: section %d is \"%s\", expected \"%s\"", path, i, record->name, section->name);
    }
    if (record->bytes != section->bytes) {
        return fail(error, "%s: section \"%s\" has %lld bytes, expected %lld", path, record->name,
                    (long long)record->bytes, (long long)section->bytes);
    }
    Hash64 hash;
    hash64_init(&hash, 0);
    if (!input_read_hashed(&state->file, offset, section->data, section->bytes, &hash, error)) { return false; }
    return hash64_final(&hash) == record->checksum ||
           fail(error, "%s: section \"%s\" is damaged: its checksum does not match", path, record->name);
}

// Reads a state file; the caller's sections must have the names and sizes of the file's. All of it is verified; after a
// failure the sections' memory holds nothing of use.
static inline bool state_read(const char *path, StateHeader *header, const StateSection *sections, int count,
                              Error *error) {
    StateFile state;
    if (!state_open(&state, path, header, error)) { return false; }
    bool ok = state.count == count || fail(error, "%s: has %d sections, expected %d", path, state.count, count);
    int64_t offset = state.data_offset;
    for (int i = 0; ok && i < count; i++) {
        ok = state_read_section(&state, i, offset, &sections[i], error);
        offset += state.records[i].bytes;
    }
    input_close(&state.file);
    return ok;
}

// Verifies a whole state file without keeping the sections.
static inline bool state_verify(const char *path, StateHeader *header, Error *error) {
    StateFile state;
    if (!state_open(&state, path, header, error)) { return false; }
    bool ok = true;
    int64_t offset = state.data_offset;
    for (int i = 0; ok && i < state.count; i++) {
        Hash64 hash;
        hash64_init(&hash, 0);
        ok = input_hash(&state.file, offset, state.records[i].bytes, &hash, error);
        if (ok && hash64_final(&hash) != state.records[i].checksum) {
            ok = fail(error, "%s: section \"%s\" is damaged: its checksum does not match", path, state.records[i].name);
        }
        offset += state.records[i].bytes;
    }
    input_close(&state.file);
    return ok;
}

#endif // LLMC_STATE_FILE_H
