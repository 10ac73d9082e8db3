// A state file of sections alone, written and read at once. (What the trainers do, in pieces and with arrays:
// llmc/files/checkpoint.h.)
#ifndef STATE_SECTIONS_H
#define STATE_SECTIONS_H

#include "llmc/files/state_file.h"

// Makes the records of sections, checksums included.
static inline bool state_describe(StateRecord *records, const char *path, const StateSection *sections, int count,
                                  Error *error) {
    for (int i = 0; i < count; i++) {
        const StateSection *section = &sections[i];
        if (!state_make_record(&records[i], section, STATE_SECTION, path, error)) { return false; }
        records[i].checksum = hash64(section->data, (size_t)section->bytes);
    }
    return true;
}

// Writes a state file of sections alone, complete or not at all.
static inline bool state_write(const char *path, const StateHeader *header, const StateSection *sections, int count,
                               Error *error) {
    StateRecord records[STATE_MAX_SECTIONS];
    AtomicFile file;
    if (!state_check_fits(path, header, count, error) || !state_describe(records, path, sections, count, error) ||
        !atomic_open(&file, path, error) || !state_write_head(&file, header, records, count, error)) {
        return false;
    }
    for (int i = 0; i < count; i++) {
        int64_t offset = state_offset(header->length, records, count, i);
        if (!atomic_write_at(&file, offset, sections[i].data, sections[i].bytes, error)) { return false; }
    }
    return atomic_commit(&file, error);
}

// Reads the facts after checking magic, version, exact size and the header's checksum.
static inline bool state_read_header(const char *path, StateHeader *header, Error *error) {
    StateFile state;
    if (!state_open(&state, path, header, error)) { return false; }
    input_close(&state.file);
    return true;
}

// Reads what state_write has written; the caller's sections must have the names and sizes of the file's. All of it is
// verified; after a failure the sections' memory holds nothing of use.
static inline bool state_read(const char *path, StateHeader *header, const StateSection *sections, int count,
                              Error *error) {
    StateFile state;
    if (!state_open(&state, path, header, error)) { return false; }
    bool ok = state_read_sections(&state, 0, sections, count, error);
    input_close(&state.file);
    return ok;
}

#endif // STATE_SECTIONS_H
