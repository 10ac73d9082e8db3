// The training state: everything beside the weights that a run needs to go on exactly from where it stopped. It is one
// versioned, checksummed file of readable facts and binary sections.
//
//   bytes  0..7    "GPT2STAT"
//          8..11   uint32 version (4)
//         12..15   uint32 T: bytes of the text
//         16..19   uint32 N: number of records
//         20..23   uint32 0
//   then           T bytes of text: lines "key value\n"
//                  N records of 56 bytes: name (36 bytes, NUL-padded), uint32 kind, int64 bytes, uint64 checksum
//                  uint64 hash of everything above (hash.h)
//                  the sections' bytes, one after another, in the order of the records, to the end of the file
//
// A record has the hash of its section, which several processes can write and read in pieces. Its kind: 0: the section
// is in this file. 1: it lies in another file.
#ifndef LLMC_STATE_FILE_H
#define LLMC_STATE_FILE_H

#include "llmc/base/files.h"
#include "llmc/base/hash.h"
#include "llmc/base/input_file.h"
#include "llmc/base/text.h"

#define SUM_CHUNK_BYTES ((int64_t)4 << 20) // read or written, and summed by several threads, at a time
#define STATE_TEXT_BYTES 65536             // room for several paths of 4 KiB each
#define STATE_MAX_SECTIONS 64
#define STATE_NAME_BYTES 36
#define STATE_VERSION 4

// Facts as lines "key value\n". A fact that cannot be stored sets `length` to -1, and writing refuses the header. So no
// single call needs a check.
typedef struct {
    char text[STATE_TEXT_BYTES];
    int length;
} StateHeader;

typedef enum { STATE_SECTION, STATE_ELSEWHERE } StateKind;

typedef struct {
    const char *name; // at most 35 bytes
    void *data;       // source of a write, destination of a read
    int64_t bytes;
    bool (*is_sound)(const void *data); // tells whether a run can compute with what was read; NULL: with any bytes
} StateSection;

// ---- Checksums of what is not kept ----

// Computes the hash of `bytes` bytes from offset.
static inline bool input_checksum(const InputFile *file, int64_t offset, int64_t bytes, uint64_t *hash, Error *error) {
    uint64_t sum = 0;
    uint8_t *buffer = (uint8_t *)malloc((size_t)min_i64(bytes, SUM_CHUNK_BYTES) + 3);
    bool ok = buffer != NULL || fail(error, "%s: out of memory", file->path);
    for (int64_t done = 0; ok && done < bytes; done += SUM_CHUNK_BYTES) {
        int64_t n = min_i64(bytes - done, SUM_CHUNK_BYTES);
        ok = input_read(file, offset + done, buffer, n, error);
        if (!ok) { break; }
        memset(buffer + n, 0, 3); // the last word may be filled up
        sum += sum64(done / 4, buffer, ceil_div_i64(n, 4));
    }
    free(buffer);
    *hash = hash64_end(sum, bytes);
    return ok;
}

// Computes the hash of a whole file.
static inline bool file_checksum(const char *path, uint64_t *checksum, Error *error) {
    InputFile file;
    if (!input_open(&file, path, error)) { return false; }
    bool ok = input_checksum(&file, 0, file.size, checksum, error);
    input_close(&file);
    return ok;
}

// ---- Facts ----

static inline void state_init(StateHeader *header) { memset(header, 0, sizeof(*header)); }

// Returns the value of a fact, up to the end of its line. NULL: there is none.
static inline const char *state_find(const StateHeader *header, const char *key) {
    size_t n = strlen(key);
    for (const char *line = header->text; *line != '\0'; line = strchr(line, '\n') + 1) {
        if (strncmp(line, key, n) == 0 && line[n] == ' ') { return line + n + 1; }
    }
    return NULL;
}

// Adds facts: lines "key value\n" of new keys.
PRINTF_LIKE(2, 3) static inline void state_add(StateHeader *header, const char *format, ...) {
    if (header->length < 0) { return; }
    int room = STATE_TEXT_BYTES - header->length;
    va_list arguments;
    va_start(arguments, format);
    int n = vsnprintf(header->text + header->length, (size_t)room, format, arguments);
    va_end(arguments);
    bool fits = n >= 0 && n < room;
    header->text[header->length + (fits ? n : 0)] = '\0'; // whole lines only
    header->length = fits ? header->length + n : -1;
}

// Copies the value of a fact. Returns false if there is none, or if it does not fit.
static inline bool state_get_text(const StateHeader *header, const char *key, char *value, size_t size) {
    const char *found = state_find(header, key);
    size_t n = found == NULL ? size : strcspn(found, "\n");
    if (n >= size) { return false; }
    memcpy(value, found, n);
    value[n] = '\0';
    return true;
}

// Reads a number that a run computes with, from least to most. path: of the state.
static inline bool state_get_number(const StateHeader *header, const char *path, const char *key, int64_t least,
                                    int64_t most, int64_t *value, Error *error) {
    char text[32];
    if (state_get_text(header, key, text, sizeof(text)) && read_whole(text, value) && *value >= least &&
        *value <= most) {
        return true;
    }
    const char *found = state_find(header, key);
    if (found == NULL) { return fail(error, "%s: the training state does not say %s", path, key); }
    return fail(error, "%s: the training state says %s %.*s, expected a whole number from %lld to %lld", path, key,
                (int)min_i64((int64_t)strcspn(found, "\n"), 40), found, (long long)least, (long long)most);
}

// ---- The file ----

typedef struct {
    char name[STATE_NAME_BYTES];
    uint32_t kind; // StateKind
    int64_t bytes;
    uint64_t checksum;
} StateRecord; // as in the file

typedef struct {
    char magic[8];
    uint32_t version, text_bytes, num_records, zero;
} StatePreamble; // as in the file

typedef char state_layout_has_no_gaps[sizeof(StateRecord) == 56 && sizeof(StatePreamble) == 24 ? 1 : -1];

#define STATE_MAGIC "GPT2STAT"

// Lists the sections of a file.
typedef struct {
    int64_t text_bytes; // the header's length
    int count;
    StateRecord records[STATE_MAX_SECTIONS];
} StateTable;

// Returns the bytes of a record's section in the file.
static inline int64_t state_bytes_here(const StateRecord *record) {
    return record->kind == STATE_ELSEWHERE ? 0 : record->bytes;
}

// Returns the first byte of section i in the file. For i = count it is the file's size.
static inline int64_t state_offset(const StateTable *table, int i) {
    int64_t records = table->count * (int64_t)sizeof(StateRecord);
    int64_t offset = (int64_t)sizeof(StatePreamble) + table->text_bytes + records + (int64_t)sizeof(uint64_t);
    for (int j = 0; j < i; j++) { offset += state_bytes_here(&table->records[j]); }
    return offset;
}

// Makes a record whose checksum is not known yet. name: at most 35 bytes.
static inline StateRecord state_record(const char *name, StateKind kind, int64_t bytes) {
    StateRecord record = {{0}, (uint32_t)kind, bytes, 0};
    strncpy(record.name, name, sizeof(record.name) - 1);
    return record;
}

// Writes everything above the sections, and its checksum. The records already have their checksums.
static inline bool state_write_head(AtomicFile *file, const StateHeader *header, const StateTable *table,
                                    Error *error) {
    StatePreamble preamble = {{0}, STATE_VERSION, (uint32_t)header->length, (uint32_t)table->count, 0};
    memcpy(preamble.magic, STATE_MAGIC, sizeof(preamble.magic));
    Text head = {NULL, 0, 0, false};
    text_bytes(&head, (const char *)&preamble, sizeof(preamble));
    text_bytes(&head, header->text, (size_t)header->length);
    text_bytes(&head, (const char *)table->records, (size_t)table->count * sizeof(StateRecord));
    uint64_t checksum = hash64(head.data, head.used);
    text_bytes(&head, (const char *)&checksum, sizeof(checksum));
    bool ok = (!head.failed || fail(error, "%s: out of memory", file->path)) &&
              atomic_write_at(file, 0, head.data, (int64_t)head.used, error);
    text_free(&head);
    return ok;
}

typedef struct {
    InputFile file;
    StateTable table;
} StateFile;

static inline bool state_check_preamble(const StatePreamble *preamble, const char *path, Error *error) {
    if (memcmp(preamble->magic, STATE_MAGIC, sizeof(preamble->magic)) != 0) {
        return fail(error, "%s: not a training state: it does not begin with %s", path, STATE_MAGIC);
    }
    if (preamble->version != STATE_VERSION) {
        return fail(error,
                    "%s: training state version is %u, expected %d; resume with the program that wrote it, or give "
                    "the model of this step to --init",
                    path, preamble->version, STATE_VERSION);
    }
    if (preamble->text_bytes >= STATE_TEXT_BYTES || preamble->num_records > STATE_MAX_SECTIONS || preamble->zero != 0) {
        return fail(error, "%s: header is damaged: %u bytes of text, %u sections", path, preamble->text_bytes,
                    preamble->num_records);
    }
    return true;
}

static inline bool state_read_head(StateFile *state, StateHeader *header, Error *error) {
    const char *path = state->file.path;
    StatePreamble preamble;
    uint64_t checksum, found;
    if (!input_read(&state->file, 0, &preamble, (int64_t)sizeof(preamble), error) ||
        !state_check_preamble(&preamble, path, error)) {
        return false;
    }
    header->length = (int)preamble.text_bytes;
    state->table.count = (int)preamble.num_records, state->table.text_bytes = header->length;
    int64_t at = (int64_t)sizeof(preamble), record_bytes = state->table.count * (int64_t)sizeof(StateRecord);
    int64_t end = at + header->length + record_bytes;
    if (!input_read(&state->file, at, header->text, header->length, error) ||
        !input_read(&state->file, at + header->length, state->table.records, record_bytes, error) ||
        !input_read(&state->file, end, &checksum, (int64_t)sizeof(checksum), error) ||
        !input_checksum(&state->file, 0, end, &found, error)) {
        return false;
    }
    bool ends = header->length == 0 || header->text[header->length - 1] == '\n';
    return (checksum == found && ends && strlen(header->text) == (size_t)header->length) ||
           fail(error, "%s: header is damaged: its checksum does not match", path);
}

// Checks that the sections end exactly where the file ends.
static inline bool state_check_size(const StateFile *state, Error *error) {
    int64_t left = state->file.size - state_offset(&state->table, 0);
    bool fits = true;
    for (int i = 0; i < state->table.count; i++) {
        const StateRecord *record = &state->table.records[i];
        fits = fits && record->kind <= STATE_ELSEWHERE && record->bytes >= 0 &&
               record->name[STATE_NAME_BYTES - 1] == '\0' && state_bytes_here(record) <= left;
        left -= fits ? state_bytes_here(record) : 0;
    }
    return (fits && left == 0) || fail(error, "%s: has %lld bytes, its header tells another size (truncated?)",
                                       state->file.path, (long long)state->file.size);
}

// Opens a state file and checks everything but the contents of its sections. The file stays open only after success.
static inline bool state_open(StateFile *state, const char *path, StateHeader *header, Error *error) {
    state_init(header);
    memset(&state->table, 0, sizeof(state->table));
    if (!input_open(&state->file, path, error)) { return false; }
    bool ok = state_read_head(state, header, error) && state_check_size(state, error);
    if (!ok) { input_close(&state->file); }
    return ok;
}

// Compares the hash of a section with its record. path: of the file that it lies in.
static inline bool state_check_sum(const StateRecord *record, const char *path, uint64_t found, Error *error) {
    return found == record->checksum ||
           fail(error, "%s: section \"%s\" is damaged: its checksum does not match", path, record->name);
}

// Checks that section i has the name, kind and size of `expected`.
static inline bool state_expect(const StateFile *state, int i, StateRecord expected, Error *error) {
    const StateRecord *record = &state->table.records[i];
    return (strcmp(record->name, expected.name) == 0 && record->kind == expected.kind &&
            record->bytes == expected.bytes) ||
           fail(error, "%s: section %d is \"%s\" (kind %u, %lld bytes), expected \"%s\" (kind %u, %lld bytes)",
                state->file.path, i, record->name, record->kind, (long long)record->bytes, expected.name, expected.kind,
                (long long)expected.bytes);
}

// Reads all sections from number `first` on. They must have these names and sizes.
static inline bool state_read_sections(const StateFile *state, int first, const StateSection *sections, int count,
                                       Error *error) {
    const char *path = state->file.path;
    bool ok = state->table.count == first + count ||
              fail(error, "%s: has %d sections, expected %d", path, state->table.count, first + count);
    for (int i = 0; ok && i < count; i++) {
        const StateSection *s = &sections[i];
        ok = state_expect(state, first + i, state_record(s->name, STATE_SECTION, s->bytes), error) &&
             input_read(&state->file, state_offset(&state->table, first + i), s->data, s->bytes, error) &&
             state_check_sum(&state->table.records[first + i], path, hash64(s->data, (size_t)s->bytes), error) &&
             (s->is_sound == NULL || s->is_sound(s->data) ||
              fail(error, "%s: section \"%s\" holds numbers that no run writes", path, s->name));
    }
    return ok;
}

#endif // LLMC_STATE_FILE_H
