// Drives the readers and writers from test_formats.py:
//   formats_tool convert INIT OUT         reads what --init accepts, writes OUT (a .bin, or a Hugging Face folder)
//   formats_tool state PATH               writes a small training state
//   formats_tool checksum PATH            prints the XXH64 of a file
#include <inttypes.h>

#include "llmc/model_file.h"

static bool convert(const char *init, const char *out, Error *error) {
    ModelFile file;
    if (!model_file_open(&file, init, error)) { return false; }
    if (file.kind == MODEL_FROM_SIZE) { return fail(error, "%s: a size has no weights", init); }
    float *params = (float *)malloc((size_t)gpt2_num_params(&file.config) * sizeof(float));
    bool ok = model_file_read(&file, params, error) &&
              (ends_with(out, ".bin") ? model_bin_write(out, &file.config, params, error)
                                      : safetensors_write(out, &file.config, params, error));
    free(params);
    return ok;
}

static bool write_state(const char *path, Error *error) {
    static StateHeader header;
    float m[5] = {0.5f, -1.25f, 3.0f, 1e-30f, 65504.0f};
    uint8_t bytes[3] = {0, 127, 255};
    StateSection sections[2] = {{"adam_m", m, sizeof(m)}, {"flags", bytes, sizeof(bytes)}};
    state_init(&header);
    state_set_i64(&header, "step", 20);
    state_set_f64(&header, "loss", 0.1);
    state_set_text(&header, "train_data", "a folder/with spaces/*.bin");
    return state_write(path, &header, sections, 2, error);
}

static bool print_checksum(const char *path, Error *error) {
    uint64_t checksum = 0;
    if (!file_checksum(path, &checksum, error)) { return false; }
    printf("%016" PRIx64 "\n", checksum);
    return true;
}

int main(int argc, char **argv) {
    Error error = {"usage: convert INIT OUT | state PATH | checksum PATH"};
    bool ok = false;
    if (argc == 4 && strcmp(argv[1], "convert") == 0) { ok = convert(argv[2], argv[3], &error); }
    if (argc == 3 && strcmp(argv[1], "state") == 0) { ok = write_state(argv[2], &error); }
    if (argc == 3 && strcmp(argv[1], "checksum") == 0) { ok = print_checksum(argv[2], &error); }
    exit_unless(ok, "formats_tool", &error);
    return EXIT_SUCCESS;
}
