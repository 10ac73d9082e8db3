// Fuzz target: loading a checkpoint, and the reader of training states alone. The model is always one good file; the
// input is the state beside it. Each input comes once more with a right header checksum, or the fuzzer would never come
// past it.
#include "dev/test/files/checkpoint_run.h"
#include "dev/test/fuzz.h"

static Run good, loaded;

// The bytes of the model file do not depend on the optimizer.
static void save_good(OptimizerKind optimizer) {
    if (good.arrays[0] == NULL) { run_init(&good, tiny_config()), run_init(&loaded, tiny_config()); }
    good.optimizer = optimizer;
    require(run_save(&good, fuzz_folder(), 1, 7, &error));
}

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

// Whatever opens has its text and its sections inside the file.
static void read_state(size_t size) {
    static StateHeader header;
    static StateFile state;
    int64_t step;
    char file[16];
    if (!state_open(&state, fuzz_path("state_00000001.bin"), &header, &error)) { return; }
    const char *found = state_find(&header, "step");
    require((int)strlen(header.text) == header.length);
    require(found == NULL || (found > header.text && found < header.text + header.length));
    state_get_number(&header, "", "step", 0, LARGEST_WHOLE, &step, &error);
    state_get_text(&header, "generation", file, sizeof(file));
    for (int i = 0; i < state.table.count; i++) {
        int64_t offset = state_offset(&state.table, i), bytes = state_bytes_here(&state.table.records[i]);
        require(bytes >= 0 && offset >= (int64_t)sizeof(StatePreamble) && offset + bytes <= (int64_t)size);
    }
    require(state_offset(&state.table, state.table.count) == (int64_t)size);
    input_close(&state.file);
}

// Whatever loads must be the model that is there; its header and its checksum are in the state.
static void load(const uint8_t *data, size_t size) {
    static CheckpointFound found;
    fuzz_put("state_00000001.bin", data, size);
    read_state(size);
    bool sound = checkpoint_verify(fuzz_folder(), 1, &error);
    bool known = checkpoint_look(&found, fuzz_folder(), 1, CHECKPOINT_TO_RESUME, &error);
    require(known || !sound);
    require(!known || model_configs_equal(&found.config, &good.config));
    if (known) { loaded.optimizer = checkpoint_optimizer(&found.header); }
    if (run_load(&loaded, fuzz_folder(), 1, &error) == -1) { return; }
    size_t bytes = (size_t)model_num_params(&good.config) * sizeof(float);
    require(sound && memcmp(loaded.arrays[CHECKPOINT_PARAMS], good.arrays[CHECKPOINT_PARAMS], bytes) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (good.arrays[0] == NULL) { save_good(OPTIMIZER_ADAMW); }
    load(data, size);
    uint8_t *copy = (uint8_t *)malloc(size + 1);
    if (size > 0) { memcpy(copy, data, size); }
    repair(copy, size);
    load(copy, size);
    free(copy);
    return 0;
}

size_t fuzz_seed_input(int which, uint8_t *buffer, size_t capacity) {
    size_t bytes;
    if (which > 1) { return 0; }
    save_good(which == 0 ? OPTIMIZER_ADAMW : OPTIMIZER_MUON);
    uint8_t *data = temp_read(fuzz_path("state_00000001.bin"), &bytes);
    fuzz_seed(data, bytes, buffer, capacity);
    free(data);
    return bytes;
}
