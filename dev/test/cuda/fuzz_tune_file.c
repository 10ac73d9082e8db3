// Fuzz target: the file of choices for matrix multiplies, as the user's file and as a run's. What is accepted is whole
// and plain, can be written, and comes back; a file of another kind stays as it is. The checksum of a line is no
// secret: every second input gets those that belong to its lines.
#include "dev/test/fuzz.h"
#include "dev/test/plain.h"
#include "llmc/cuda/tune_file.h"

#define GPU "GPU 7"

static void add_checksums(char *text, size_t size) {
    char sum[17];
    for (size_t at = 0, n; at < size; at += n + 1) {
        const char *end = (const char *)memchr(text + at, '\n', size - at);
        n = end != NULL ? (size_t)(end - (text + at)) : size - at;
        if (at == 0 || n < 18) { continue; } // the first line has none
        snprintf(sum, sizeof(sum), "%016llx", (unsigned long long)hash64(text + at + 17, n - 17));
        memcpy(text + at, sum, 16);
    }
}

static void check_table(const TuneTable *table) {
    require(table->count >= 0 && table->count <= TUNE_MAX_ENTRIES);
    for (int i = 0; i < table->count; i++) {
        const TuneEntry *entry = &table->entries[i];
        require(strlen(entry->key) >= 1 && strlen(entry->key) < TUNE_KEY_BYTES);
        require(is_plain(entry->key, strlen(entry->key)) && strpbrk(entry->key, "\n\t") == NULL);
        require(tune_table_find(table, entry->key) == entry); // no key twice
    }
}

static bool tables_are_equal(const TuneTable *a, const TuneTable *b) {
    bool equal = a->count == b->count && strcmp(a->header, b->header) == 0;
    for (int i = 0; equal && i < a->count; i++) {
        equal = strcmp(a->entries[i].key, b->entries[i].key) == 0 &&
                memcmp(a->entries[i].choice, b->entries[i].choice, TUNE_CHOICE_BYTES) == 0;
    }
    return equal;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static Tuning first, again; // large
    static const uint8_t choice[TUNE_CHOICE_BYTES] = {7};
    const char *folder = fuzz_folder()->path;
    char *text = (char *)malloc(size + 1), path[MAX_PATH_BYTES];
    Error error;
    memcpy(text, data, size);
    if (size % 2 == 0) { add_checksums(text, size); }
    snprintf(path, sizeof(path), "%s", fuzz_put(TUNE_RUN_FILE, text, size)); // the file of both
    TuneWants wants = {path, folder, true, false, false};
    require(tuning_open(&first, &wants, GPU, 132, 130100, &error));
    check_table(&first.user), check_table(&first.run);
    require(tables_are_equal(&first.user, &first.run) && is_plain(first.text.data, first.text.used));
    bool foreign = first.user_state == TUNE_FILE_FOREIGN;
    tuning_set_timed(&first, "problem m 8 n 8", choice);
    require(tuning_save(&first, "", &error) && is_plain(first.text.data, first.text.used));
    require(tuning_open(&again, &wants, GPU, 132, 130100, &error));
    if (foreign) {
        uint8_t *kept = NULL;
        int64_t bytes = 0;
        require(again.user_state == TUNE_FILE_FOREIGN && read_whole_file(path, INT32_MAX, &kept, &bytes, &error));
        require(bytes == (int64_t)size && memcmp(kept, text, size) == 0);
        free(kept);
    } else {
        require(again.user_state == TUNE_FILE_READ && tables_are_equal(&again.user, &first.user));
        require(memcmp(tuning_find(&again, "problem m 8 n 8", true)->choice, choice, sizeof(choice)) == 0);
    }
    tuning_close(&first), tuning_close(&again);
    free(text);
    return 0;
}

// A file of this GPU, one of another, one without entries.
size_t fuzz_seed_input(int which, uint8_t *buffer, size_t capacity) {
    static TuneTable table;
    static char longest[TUNE_KEY_BYTES];
    memset(longest, 'k', sizeof(longest) - 1);
    const char *const keys[] = {"problem m 8 n 8", TUNE_ANY_BITS_KEY "m 1024 n 768 k 64", longest};
    Text text = {NULL, 0, 0, false};
    if (which >= 3) { return 0; }
    tune_table_init(&table, which == 1 ? "GPU 8" : GPU, 132, 130100);
    for (int i = 0; which < 2 && i < 3; i++) {
        uint8_t choice[TUNE_CHOICE_BYTES];
        for (int k = 0; k < TUNE_CHOICE_BYTES; k++) { choice[k] = (uint8_t)(7 * k + i); }
        tune_table_set(&table, keys[i], choice);
    }
    text_printf(&text, "%s\n", table.header);
    for (int i = 0; i < table.count; i++) { tune_format_line(&text, &table.entries[i]); }
    require(!text.failed && text.used <= capacity);
    memcpy(buffer, text.data, text.used);
    size_t bytes = text.used;
    text_free(&text);
    return bytes;
}
