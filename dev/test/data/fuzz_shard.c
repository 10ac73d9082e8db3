// Fuzz target: token shards. Whatever the file holds, the loader refuses it or hands out only tokens of the vocabulary,
// in as many windows as the size of the file allows.
#include "dev/test/fuzz.h"
#include "llmc/data/dataloader.h"

enum { V = 50257, MAX_T = 8, BATCH = 5 };

size_t fuzz_seed_input(int which, uint8_t *buffer, size_t capacity) {
    const int sizes[] = {100, 9, 0, 1, 50, 9};
    if (which >= 6 || capacity < 1024 + 200) { return 0; }
    const size_t id_bytes = which < 4 ? 2 : 4;
    int32_t header[256] = {which < 4 ? SHARD_MAGIC : SHARD32_MAGIC, which < 4 ? 1 : 7, sizes[which]};
    memcpy(buffer, header, sizeof(header));
    for (int i = 0; i < sizes[which]; i++) {
        int token = i == 0 ? 50256 : i * 499; // the lower bytes come first
        memcpy(buffer + sizeof(header) + id_bytes * (size_t)i, &token, id_bytes);
    }
    return sizeof(header) + id_bytes * (size_t)sizes[which];
}

// Reads an epoch and a little more; aborts on a token outside the vocabulary or a target that is not the next input.
static void read_all(DataLoader *dl) {
    int32_t inputs[BATCH * MAX_T], targets[BATCH * MAX_T];
    for (int64_t g = 0; g < dl->num_sequences + BATCH; g += BATCH) {
        if (!dataloader_read(dl, g, BATCH, inputs, targets, &error)) {
            require(strstr(error.text, "the model's vocabulary has 50257") != NULL);
            return;
        }
        for (int i = 0; i < BATCH * dl->seq_len; i++) {
            require(inputs[i] >= 0 && inputs[i] < V && targets[i] >= 0 && targets[i] < V);
            require((i + 1) % dl->seq_len == 0 || targets[i] == inputs[i + 1]);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const char *path = fuzz_temp_file(data, size);
    int T = 1 + (int)(size % MAX_T);
    for (int shuffle = 0; shuffle < 2; shuffle++) {
        DataLoader dl;
        error.text[0] = '\0';
        if (!dataloader_open(&dl, path, NULL, 0, T, V, shuffle, size, &error)) {
            require(strncmp(error.text, path, strlen(path)) == 0 && strchr(error.text, '\n') == NULL);
            continue;
        }
        int64_t id_bytes = dl.bin.element;
        require(dl.num_tokens == ((int64_t)size - 1024) / id_bytes && dl.num_sequences == (dl.num_tokens - 1) / T);
        read_all(&dl);
        dataloader_close(&dl);
    }
    return 0;
}
