// Drives the readers and writers from test_formats.py:
//   formats_tool convert MODEL OUT        reads a .bin, writes it in fp32
//   formats_tool state PATH               writes a small training state
//   formats_tool ranges MODEL             reads a .bin at once and in ranges, and compares
//   formats_tool checkpoint INIT FOLDER [muon]
//                                         writes the weights as a checkpoint of step 7, in pieces, with moments of
//                                         p / 2 and p / 4 for each parameter p; prints the sums of the three arrays
#include <inttypes.h>

#include "llmc/files/model_file.h"
#include "dev/test/files/whole_model.h"
#include "llmc/files/checkpoint.h"

static bool convert(const char *init, const char *out, Error *error) {
    ModelFile file;
    if (!model_file_open(&file, init, error)) { return false; }
    float *params = (float *)malloc((size_t)gpt2_num_params(&file.config) * sizeof(float));
    bool ok = model_file_read(&file, params, error) && model_bin_write(out, &file.config, params, error);
    free(params);
    return ok;
}

// A state file of two sections and no arrays.
static bool write_state(const char *path, Error *error) {
    static StateHeader header;
    AtomicFile file;
    StateTable table;
    float m[5] = {0.5f, -1.25f, 3.0f, 1e-30f, 65504.0f};
    uint8_t bytes[3] = {0, 127, 255};
    StateSection sections[2] = {{"adam_m", m, sizeof(m), NULL}, {"flags", bytes, sizeof(bytes), NULL}};
    state_init(&header);
    state_set_u64(&header, "step", 20);
    state_set_text(&header, "loss", "0.10000000000000001");
    state_set_text(&header, "train_data", "a folder/with spaces/*.bin");
    table.text_bytes = header.length, table.count = 2;
    for (int i = 0; i < 2; i++) {
        table.records[i] = state_record(sections[i].name, STATE_SECTION, sections[i].bytes);
        table.records[i].checksum = hash64(sections[i].data, (size_t)sections[i].bytes);
    }
    bool ok = atomic_open(&file, path, 0666, error) && state_write_head(&file, &header, &table, error);
    for (int i = 0; ok && i < 2; i++) {
        int64_t offset = state_offset(&table, i);
        ok = atomic_write_at(&file, offset, sections[i].data, sections[i].bytes, error);
    }
    return ok && atomic_commit(&file, error);
}

static bool compare_ranges(const char *init, Error *error) {
    ModelFile file;
    if (!model_file_open(&file, init, error)) { return false; }
    int64_t n = gpt2_num_params(&file.config);
    float *whole = (float *)malloc((size_t)n * sizeof(float)), *part = (float *)malloc((size_t)n * sizeof(float));
    bool ok = model_file_read(&file, whole, error);
    for (uint64_t i = 0; ok && i < 300; i++) {
        int64_t first = (int64_t)(rand_u64(1, 1, i) % (uint64_t)n);
        int64_t count = 1 + (int64_t)(rand_u64(1, 2, i) % (uint64_t)(i % 2 == 0 ? n - first : 1));
        ok = model_file_read_range(&file, first, count, part, error);
        if (ok && memcmp(part, whole + first, (size_t)count * sizeof(float)) != 0) {
            ok = fail(error, "%" PRId64 " elements from %" PRId64 " are others than in the whole", count, first);
        }
    }
    free(whole), free(part);
    return ok;
}

// Writes the elements first .. end - 1 of one array in pieces, the last first.
static bool write_pieces(CheckpointWriter *w, int array, const float *data, int64_t first, int64_t end, Error *error) {
    for (int64_t at = first + (end - first - 1) / 1000 * 1000; at >= first; at -= 1000) {
        if (!checkpoint_write(w, array, at, data + at, min_i64(1000, end - at), error)) { return false; }
    }
    return true;
}

// adam_v of Muon leaves tensors out, so it is written tensor by tensor. In the other arrays pieces straddle tensors.
static bool write_array(CheckpointWriter *w, int array, const float *data, Error *error) {
    const GPT2Config *config = &w->config;
    if (array != CHECKPOINT_ADAM_V) { return write_pieces(w, array, data, 0, gpt2_num_params(config), error); }
    for (int i = 0; i < NUM_PARAM_TENSORS; i++) {
        int64_t first = gpt2_param_offset(config, i), end = gpt2_param_offset(config, i + 1);
        if (!muon_takes(w->optimizer, i) && !write_pieces(w, array, data, first, end, error)) { return false; }
    }
    return true;
}

static bool write_checkpoint(const char *init, const char *folder, const char *optimizer, Error *error) {
    static CheckpointWriter w;
    static StateHeader header;
    static ModelFile file;
    uint8_t bytes[3] = {0, 127, 255};
    StateSection section = {"flags", bytes, sizeof(bytes), NULL};
    if (!model_file_open(&file, init, error)) { return false; }
    int64_t n = gpt2_num_params(&file.config);
    float *data = (float *)malloc((size_t)n * sizeof(float));
    state_init(&header);
    if (optimizer != NULL) { state_set_text(&header, "--optimizer", optimizer); }
    bool ok = model_file_read(&file, data, error) && make_directories(folder, error) &&
              checkpoint_write_begin(&w, folder, 7, &file.config, &header, &section, 1, true, error);
    for (int a = 0; ok && a < CHECKPOINT_ARRAYS; a++) {
        ok = write_array(&w, a, data, error);
        for (int64_t i = 0; i < n; i++) { data[i] = a == CHECKPOINT_PARAMS ? 0.5f * data[i] : fabsf(data[i]); }
    }
    ok = ok && checkpoint_write_flush(&w, error) && checkpoint_write_commit(&w, &w.sums, error);
    for (int a = 0; ok && a < CHECKPOINT_ARRAYS; a++) { printf("%016" PRIx64 "\n", w.sums.sums[a]); }
    free(data);
    return ok;
}

int main(int argc, char **argv) {
    Error error = {"usage: convert MODEL OUT | state PATH | ranges MODEL | checkpoint INIT FOLDER [muon]"};
    bool ok = false;
    if (argc == 4 && strcmp(argv[1], "convert") == 0) { ok = convert(argv[2], argv[3], &error); }
    if (argc == 3 && strcmp(argv[1], "state") == 0) { ok = write_state(argv[2], &error); }
    if (argc == 3 && strcmp(argv[1], "ranges") == 0) { ok = compare_ranges(argv[2], &error); }
    if ((argc == 4 || argc == 5) && strcmp(argv[1], "checkpoint") == 0) {
        ok = write_checkpoint(argv[2], argv[3], argv[4], &error); // argv[argc] is NULL
    }
    exit_unless(ok, "formats_tool", &error);
    return EXIT_SUCCESS;
}
