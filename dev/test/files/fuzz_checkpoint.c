// Fuzz target: loading a checkpoint. The model is always one good file; the input is the state beside it. All but
// the untouched inputs get a right header checksum, or the fuzzer would never come past it.
#include "dev/test/files/one_process.h"
#include "dev/test/fuzz.h"
#include "llmc/files/checkpoint.h"
#include "dev/test/temp_dir.h"

enum { PARAMS = 90 };

static TempDir folder;
static float arrays[CHECKPOINT_ARRAYS][PARAMS];
static uint8_t flags[5] = {1, 2, 3, 4, 5};
static const GPT2Config config = {2, 3, 4, 1, 1, 2};

static void remove_folder(void) { temp_dir_remove(&folder); }

static void make_folder(void) {
    static StateHeader header;
    Error error;
    if (folder.path[0] != '\0') { return; }
    folder = temp_dir_make();
    atexit(remove_folder);
    for (int i = 0; i < CHECKPOINT_ARRAYS * PARAMS; i++) { arrays[i / PARAMS][i % PARAMS] = 0.5f * (float)i; }
    model_zero_padding(arrays[CHECKPOINT_PARAMS], &config);
    const StateSection sections[3] = {{"adam_m", arrays[CHECKPOINT_ADAM_M], sizeof(arrays[0])},
                                      {"adam_v", arrays[CHECKPOINT_ADAM_V], sizeof(arrays[0])},
                                      {"flags", flags, sizeof(flags)}};
    state_init(&header);
    state_set_text(&header, "data", "a file");
    require(checkpoint_save(folder.path, 1, &config, arrays[CHECKPOINT_PARAMS], &header, sections, 3, &error));
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

// Whatever loads must be the model that is there; its header and its checksum are in the state.
static void load(const uint8_t *data, size_t size) {
    static StateHeader header;
    static float loaded[CHECKPOINT_ARRAYS][PARAMS];
    uint8_t loaded_flags[5];
    GPT2Config found;
    Error error;
    const StateSection sections[3] = {{"adam_m", loaded[CHECKPOINT_ADAM_M], sizeof(loaded[0])},
                                      {"adam_v", loaded[CHECKPOINT_ADAM_V], sizeof(loaded[0])},
                                      {"flags", loaded_flags, sizeof(loaded_flags)}};
    temp_write(temp_path(&folder, "state_00000001.bin"), data, size);
    bool whole = checkpoint_verify(folder.path, 1, &error);
    bool known = checkpoint_load_header(folder.path, 1, &found, &header, &error);
    require(known || !whole);
    require(!known || model_configs_equal(&found, &config));
    if (!checkpoint_load(folder.path, 1, &config, loaded[0], &header, sections, 3, &error)) { return; }
    require(whole && memcmp(loaded[0], arrays[0], sizeof(loaded[0])) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    make_folder();
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
    if (which > 0) { return 0; }
    make_folder();
    uint8_t *data = temp_read(temp_path(&folder, "state_00000001.bin"), &bytes);
    require(bytes <= capacity);
    memcpy(buffer, data, bytes);
    free(data);
    return bytes;
}
