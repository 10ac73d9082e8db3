// Fuzz target: the reader of training states. Half of the inputs get a right header checksum, or the fuzzer would never
// come past it.
#include "dev/test/fuzz.h"
#include "llmc/files/state_file.h"

// Puts the checksum that the header asks for where it belongs, if the header's own sizes allow it.
static void repair(uint8_t *data, size_t size) {
    StatePreamble preamble;
    if (size < sizeof(preamble)) { return; }
    memcpy(&preamble, data, sizeof(preamble));
    uint64_t head = sizeof(preamble) + (uint64_t)preamble.text_bytes + (uint64_t)preamble.num_records * 56;
    if (head + 8 > size) { return; }
    uint64_t checksum = hash64(data, (size_t)head);
    memcpy(data + head, &checksum, sizeof(checksum));
}

// Is section i, whose bytes are given, what its record says?
static bool read_section(const StateFile *state, int i, const uint8_t *want, int64_t bytes) {
    const StateRecord *record = &state->records[i];
    Error error;
    if (record->kind == STATE_ELSEWHERE) { return true; }
    if (record->kind == STATE_ARRAY) { return sum64(0, want, bytes / 4) == record->checksum; }
    StateSection section = {record->name, malloc((size_t)bytes + 1), bytes};
    bool ok = state_read_section(state, i, &section, &error) && memcmp(section.data, want, (size_t)bytes) == 0;
    free(section.data);
    return ok;
}

static void read_state(const uint8_t *data, size_t size) {
    static StateHeader header;
    static StateFile state;
    const char *path = fuzz_temp_file(data, size);
    Error error;
    if (!state_open(&state, path, &header, &error)) { return; }
    int64_t step;
    char file[16];
    require((int)strlen(header.text) == header.length && state_find(&header, "no such key") == NULL);
    state_get_i64(&header, "step", &step);
    state_get_text(&header, "data", file, sizeof(file));
    bool whole = state_verify_sections(&state, &error);
    for (int i = 0; i < state.count; i++) {
        int64_t offset = state_section_offset(&state, i), bytes = state_bytes_here(&state.records[i]);
        require(bytes >= 0 && offset >= (int64_t)sizeof(StatePreamble) && offset + bytes <= (int64_t)size);
        require(!whole || read_section(&state, i, data + offset, bytes));
    }
    require(state_section_offset(&state, state.count) == (int64_t)size);
    input_close(&state.file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    read_state(data, size);
    uint8_t *copy = (uint8_t *)malloc(size + 1);
    if (size > 0) { memcpy(copy, data, size); }
    repair(copy, size);
    read_state(copy, size);
    free(copy);
    return 0;
}

size_t fuzz_seed_input(int which, uint8_t *buffer, size_t capacity) {
    StateRecord records[4];
    StatePreamble preamble;
    const char *text = "step 20\nloss 0.10000000000000001\ndata a file\n";
    uint8_t contents[30] = "these are thirty bytes of data";
    if (which > 0 || capacity < 1024) { return 0; }
    memset(records, 0, sizeof(records));
    memcpy(preamble.magic, STATE_MAGIC, 8);
    preamble.version = STATE_VERSION, preamble.text_bytes = (uint32_t)strlen(text);
    preamble.num_records = 4, preamble.zero = 0;
    memcpy(records[0].name, "params", 6), memcpy(records[1].name, "adam_m", 6), memcpy(records[2].name, "adam_v", 6);
    memcpy(records[3].name, "outliers", 8);
    records[0].kind = STATE_ELSEWHERE, records[1].kind = records[2].kind = STATE_ARRAY;
    records[0].bytes = 400, records[1].bytes = 8, records[2].bytes = 12, records[3].bytes = 10;
    records[1].checksum = sum64(0, contents, 2), records[2].checksum = sum64(0, contents + 8, 3);
    records[3].checksum = hash64(contents + 20, 10);
    size_t at = 0;
    memcpy(buffer, &preamble, sizeof(preamble)), at += sizeof(preamble);
    memcpy(buffer + at, text, strlen(text)), at += strlen(text);
    memcpy(buffer + at, records, sizeof(records)), at += sizeof(records);
    at += 8;
    memcpy(buffer + at, contents, sizeof(contents)), at += sizeof(contents);
    repair(buffer, at);
    return at;
}
