// The file of choices for matrix multiplies: stored choices come back, and nothing damaged or foreign does.
#include "llmc/cuda/tune_file.h"
#include "dev/test/temp_dir.h"
#include "dev/test/test.h"

static TuneTable table, other; // large

static void new_table(TuneTable *t) { tune_table_init(t, "GPU 7", 132, 130100); }

static void fill_choice(uint8_t *choice, int n) {
    for (int i = 0; i < TUNE_CHOICE_BYTES; i++) { choice[i] = (uint8_t)(7 * i + 31 * n); }
}

static void add(TuneTable *t, int n) {
    char key[TUNE_KEY_BYTES];
    uint8_t choice[TUNE_CHOICE_BYTES];
    snprintf(key, sizeof(key), "problem m %d n 8", n);
    fill_choice(choice, n);
    tune_table_set(t, key, choice);
}

static bool has(TuneTable *t, int n) {
    char key[TUNE_KEY_BYTES];
    uint8_t choice[TUNE_CHOICE_BYTES];
    snprintf(key, sizeof(key), "problem m %d n 8", n);
    fill_choice(choice, n);
    const TuneEntry *entry = tune_table_find(t, key);
    return entry != NULL && memcmp(entry->choice, choice, sizeof(choice)) == 0;
}

TEST(test_round_trip) {
    Error notice;
    const char *path = test_path(t, "a/b/choices.txt"); // its folders are made
    new_table(&table), new_table(&other);
    CHECK(t, tune_file_read(&table, path, &notice) == TUNE_FILE_READ && table.count == 0, "no file is no choices");
    for (int i = 0; i < 5; i++) { add(&table, i); }
    CHECK(t, tune_file_write(&table, path, &notice), "%s", notice.text);
    CHECK(t, tune_file_read(&other, path, &notice) == TUNE_FILE_READ, "%s", notice.text);
    CHECK(t, other.count == 5, "%d entries, not 5", other.count);
    for (int i = 0; i < 5; i++) { CHECK(t, has(&other, i), "entry %d is another", i); }
    CHECK(t, !has(&other, 5), "an entry that nobody wrote");
    temp_write(path, "", 0);
    new_table(&other);
    CHECK(t, tune_file_read(&other, path, &notice) == TUNE_FILE_READ && other.count == 0, "an empty file");
}

TEST(test_set) {
    uint8_t choice[TUNE_CHOICE_BYTES];
    new_table(&table);
    for (int i = 0; i < TUNE_MAX_ENTRIES; i++) { add(&table, i); }
    fill_choice(choice, 99);
    tune_table_set(&table, "problem m 3 n 8", choice);
    CHECK(t, table.count == TUNE_MAX_ENTRIES && !has(&table, 3), "another choice for the same problem replaces it");
    add(&table, 3);
    add(&table, TUNE_MAX_ENTRIES);
    CHECK(t, table.count == TUNE_MAX_ENTRIES, "%d entries", table.count);
    CHECK(t, !has(&table, 0) && has(&table, 1) && has(&table, 3) && has(&table, TUNE_MAX_ENTRIES),
          "the oldest makes room, no other");
}

// Whatever byte of a file of three entries is changed or missing: no other choice is read for a problem, and those of
// the other lines are.
TEST(test_damage) {
    const char *path = test_path(t, "choices.txt");
    Error notice;
    size_t bytes;
    new_table(&table);
    for (int i = 0; i < 3; i++) { add(&table, i); }
    CHECK(t, tune_file_write(&table, path, &notice), "%s", notice.text);
    char *text = (char *)temp_read(path, &bytes);
    size_t header = strlen(table.header) + 1, line = (bytes - header) / 3;
    for (size_t at = 0; at < bytes; at++) {
        for (int kind = 0; kind < 2; kind++) { // another byte; the end of the file
            char kept = text[at];
            text[at] ^= 1;
            new_table(&other);
            notice.text[0] = '\0';
            TuneFileState state = tune_read_text(&other, path, text, (int64_t)(kind == 0 ? bytes : at), &notice);
            text[at] = kept;
            int whole = 0;
            for (int i = 0; i < 3; i++) { whole += has(&other, i); }
            bool at_boundary = kind == 1 && at >= header && (at - header) % line == 0;
            bool cut_header = kind == 1 && at == header - 1; // all of it but the newline
            int expected = at < header ? 0 : kind == 0 ? 2 : (int)((at - header) / line);
            bool newline =
                kind == 0 && at >= header && (at - header) % line == line - 1; // joins two lines, or is missing
            CHECK(t, other.count == whole, "byte %zu, kind %d: a choice that was not written", at, kind);
            CHECK(t, whole == expected || (newline && whole >= 1), "byte %zu, kind %d: %d entries, not %d", at, kind,
                  whole, expected);
            CHECK(t, (state == TUNE_FILE_READ) == (at_boundary || cut_header), "byte %zu, kind %d: state %d", at, kind,
                  (int)state);
            CHECK(t, (notice.text[0] != '\0') == (state != TUNE_FILE_READ), "byte %zu, kind %d: notice '%s'", at, kind,
                  notice.text);
            if (at < strlen(TUNE_MAGIC)) { CHECK(t, state == TUNE_FILE_FOREIGN, "byte %zu is ours to write to", at); }
        }
    }
    free(text);
}

TEST(test_other_machines) {
    const char *path = test_path(t, "choices.txt");
    Error notice;
    const struct {
        const char *gpu;
        int multiprocessors;
        long version;
    } machines[] = {{"GPU 8", 132, 130100}, {"GPU 7", 66, 130100}, {"GPU 7", 132, 130200}, {"GPU 70", 132, 130100}};
    new_table(&table);
    add(&table, 1);
    CHECK(t, tune_file_write(&table, path, &notice), "%s", notice.text);
    for (size_t i = 0; i < sizeof(machines) / sizeof(machines[0]); i++) {
        tune_table_init(&other, machines[i].gpu, machines[i].multiprocessors, machines[i].version);
        TuneFileState state = tune_file_read(&other, path, &notice);
        CHECK(t, state == TUNE_FILE_NOTICE && other.count == 0, "machine %zu reads %d choices", i, other.count);
        CHECK(t, strstr(notice.text, "another GPU or cuBLASLt") != NULL, "%s", notice.text);
    }
}

// What is not ours is left alone, and what cannot be read or written is said.
TEST(test_refusals) {
    const char *file = test_path(t, "poem.txt"), *below = test_path(t, "poem.txt/x/choices.txt");
    Error notice;
    new_table(&table);
    temp_write(file, "Whose woods these are\n", 22);
    CHECK(t, tune_file_read(&table, file, &notice) == TUNE_FILE_FOREIGN, "a poem is read");
    CHECK(t, strstr(notice.text, "poem.txt") && strstr(notice.text, "--matmul-tune-file"), "%s", notice.text);
    CHECK(t, tune_file_read(&table, test_folder(t), &notice) == TUNE_FILE_FOREIGN, "a folder is read");
    CHECK(t, tune_file_read(&table, below, &notice) == TUNE_FILE_READ, "there is nothing behind a file");
    notice.text[0] = '\0';
    CHECK(t, !tune_file_write(&table, below, &notice), "written into a file as if it were a folder");
    CHECK(t, strstr(notice.text, "a file is in the way") != NULL, "%s", notice.text);
}

TEST(test_default_path) {
    char path[MAX_PATH_BYTES];
    Error notice;
    const struct {
        const char *cache, *home, *want; // NULL: not set, or no path
    } cases[] = {{"/c", "/h", "/c/gpt2.c/matmul_NVIDIA_H100_80GB__1_-2.x_130100.txt"},
                 {NULL, "/h", "/h/.cache/gpt2.c/matmul_NVIDIA_H100_80GB__1_-2.x_130100.txt"},
                 {"c", "/h", "/h/.cache/gpt2.c/matmul_NVIDIA_H100_80GB__1_-2.x_130100.txt"}, // must be absolute
                 {"", "/h", "/h/.cache/gpt2.c/matmul_NVIDIA_H100_80GB__1_-2.x_130100.txt"},
                 {NULL, NULL, NULL},
                 {NULL, "", NULL}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        if (cases[i].cache != NULL) { setenv("XDG_CACHE_HOME", cases[i].cache, 1); }
        if (cases[i].cache == NULL) { unsetenv("XDG_CACHE_HOME"); }
        if (cases[i].home != NULL) { setenv("HOME", cases[i].home, 1); }
        if (cases[i].home == NULL) { unsetenv("HOME"); }
        bool there = tune_file_default(path, "NVIDIA H100 80GB/(1)-2.x", 130100, &notice);
        CHECK(t, there == (cases[i].want != NULL), "case %zu", i);
        CHECK(t, !there || strcmp(path, cases[i].want) == 0, "case %zu: %s", i, path);
        CHECK(t, there || strstr(notice.text, "--matmul-tune-file") != NULL, "case %zu: %s", i, notice.text);
    }
}

static bool open_tuning(Tuning *tuning, const TempDir *dir, bool must_know, Error *error) {
    TuneWants wants = {temp_path(dir, "user.txt"), dir->path, true, must_know, false};
    return tuning_open(tuning, &wants, "GPU 7", 132, 130100, error);
}

// A resumed run takes its own choices before the user's, also from the files of old names. A choice that changes no bit
// is the user's.
TEST(test_choices_of_a_run) {
    static const char any[] = TUNE_ANY_BITS_KEY "m 8";
    static Tuning tuning; // large
    TempDir dir = temp_dir_make();
    uint8_t ours[TUNE_CHOICE_BYTES], old[TUNE_CHOICE_BYTES], users[TUNE_CHOICE_BYTES];
    Error error;
    fill_choice(ours, 1), fill_choice(old, 2), fill_choice(users, 3);
    CHECK(t, !open_tuning(&tuning, &dir, true, &error) && strstr(error.text, "--allow-changes"), "no choices to know");
    tuning_close(&tuning);
    new_table(&table);
    tune_table_set(&table, "attention", old);
    CHECK(t, tune_file_write(&table, temp_path(&dir, "attention.txt"), &error), "%s", error.text);
    CHECK(t, !open_tuning(&tuning, &dir, true, &error), "attention is no algorithm of a matmul");
    tuning_close(&tuning);
    new_table(&table);
    tune_table_set(&table, any, old);
    CHECK(t, tune_file_write(&table, temp_path(&dir, "matmul_choices.txt"), &error), "%s", error.text);
    CHECK(t, open_tuning(&tuning, &dir, true, &error), "%s", error.text);
    tuning_set_timed(&tuning, any, users);
    const TuneEntry *attention = tuning_find(&tuning, "attention", true), *found = tuning_find(&tuning, any, true);
    CHECK(t, attention && found && memcmp(found->choice, old, sizeof(old)) == 0, "files of old names are not read");
    CHECK(t, tuning_is_of_run(&tuning, found), "the run's choice is taken for the user's");
    found = tuning_find(&tuning, any, false);
    CHECK(t, found && memcmp(found->choice, users, sizeof(users)) == 0, "the user's choice is not found");
    CHECK(t, tuning_find(&tuning, "attention", false) == NULL, "the run's choice is found where bits do not change");
    tune_table_set(&tuning.run, any, ours);
    CHECK(t, tuning_save(&tuning, dir.path, &error), "%s", error.text);
    CHECK(t, strstr(tuning.text.data, "kept in") && strstr(tuning.text.data, TUNE_RUN_FILE), "%s", tuning.text.data);
    tuning_close(&tuning);
    CHECK(t, open_tuning(&tuning, &dir, true, &error), "%s", error.text);
    found = tuning_find(&tuning, any, true);
    CHECK(t, found && memcmp(found->choice, ours, sizeof(ours)) == 0, "an old file counts more than the new one");
    CHECK(t, tuning_find(&tuning, any, false) != NULL && tuning.text.used == 0, "the user's file is not read again");
    tuning_close(&tuning);
    temp_dir_remove(&dir);
}
