// What a fuzz target defines, and the temporary file it feeds to a reader.
//
// A target is one reader: dev/test/<room>/fuzz_<reader>.c. Its require() ends the program when the reader accepts an
// input and then hands out something out of range. The sanitizers find crashes, leaks and undefined behaviour. Two ways
// to run one:
//   clang -g -O1 -fsanitize=fuzzer,address,undefined -I. dev/test/base/fuzz_json.c -o build/fuzz_json -lm
//   cc -g -O1 -fsanitize=address,undefined -I. dev/test/base/fuzz_json.c dev/test/fuzz_main.c -o build/fuzz_json -lm
#ifndef FUZZ_H
#define FUZZ_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size); // libFuzzer's entry; returns 0

// Writes valid input number `which` (0, 1, ...) into buffer and returns its bytes; 0 when there is no such input.
size_t fuzz_seed_input(int which, uint8_t *buffer, size_t capacity);

// What must hold for every input.
static inline void require(bool condition) {
    if (!condition) { abort(); }
}

static char fuzz_temp_path[4096];

// A folder in memory, if the machine has one.
static inline const char *fuzz_temp_base(void) {
    struct stat info;
    const char *folder = stat("/dev/shm", &info) == 0 && S_ISDIR(info.st_mode) ? "/dev/shm" : getenv("TMPDIR");
    return folder != NULL ? folder : "/tmp";
}

static inline void fuzz_write(const char *path, const uint8_t *data, size_t size) {
    FILE *file = fopen(path, "wb");
    if (file == NULL || fwrite(data, 1, size, file) != size || fclose(file) != 0) {
        perror(path);
        exit(EXIT_FAILURE);
    }
}

static inline void fuzz_remove_temp_file(void) { unlink(fuzz_temp_path); }

// Puts data into a file in memory (if the machine has such a folder) and returns its path. The same file is used again
// by the next call and removed when the process ends.
static inline const char *fuzz_temp_file(const uint8_t *data, size_t size) {
    if (fuzz_temp_path[0] == '\0') {
        snprintf(fuzz_temp_path, sizeof(fuzz_temp_path), "%s/llmc_fuzz_%ld.bin", fuzz_temp_base(), (long)getpid());
        atexit(fuzz_remove_temp_file);
    }
    fuzz_write(fuzz_temp_path, data, size);
    return fuzz_temp_path;
}

// For a reader of several files: makes, once, a folder that whoever calls this first removes at the end (true).
static inline bool fuzz_make_temp_folder(char *folder, size_t size) {
    if (folder[0] != '\0') { return false; }
    snprintf(folder, size, "%s/llmc_fuzz_XXXXXX", fuzz_temp_base()); // what mkdtemp fills in
    if (mkdtemp(folder) == NULL) {
        perror(folder);
        exit(EXIT_FAILURE);
    }
    return true;
}

static inline void fuzz_put(const char *folder, const char *name, const uint8_t *data, size_t size) {
    char path[512];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    fuzz_write(path, data, size);
}

#endif // FUZZ_H
