// What a fuzz target defines, and the temporary files it feeds to a reader.
//
// A target is one reader: dev/test/<room>/fuzz_<reader>.c. Its require() ends the program when the reader accepts an
// input and then hands out something out of range. The sanitizers find crashes, leaks and undefined behaviour. Two ways
// to run one:
//   clang -g -O1 -fsanitize=fuzzer,address,undefined -I. dev/test/run/fuzz_args.c -o build/fuzz_args -lm
//   cc -g -O1 -fsanitize=address,undefined -I. dev/test/run/fuzz_args.c dev/test/fuzz_main.c -o build/fuzz_args -lm
#ifndef FUZZ_H
#define FUZZ_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "dev/test/refused.h"
#include "dev/test/temp_dir.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size); // libFuzzer's entry; returns 0

// Writes valid input number `which` (0, 1, ...) into buffer and returns its bytes; 0 when there is no such input.
size_t fuzz_seed_input(int which, uint8_t *buffer, size_t capacity);

// What must hold for every input.
static inline void require(bool condition) {
    if (!condition) { abort(); }
}

static Test fuzz_test; // has the folder
static inline void fuzz_remove_folder(void) { temp_remove_tree(fuzz_test.folder); }

// The folder of this process, made when it is first asked for and removed when the process ends.
static inline const char *fuzz_folder(void) {
    if (fuzz_test.folder[0] == '\0') { atexit(fuzz_remove_folder); }
    return test_folder(&fuzz_test);
}

// The path of a file of the folder.
static inline const char *fuzz_path(const char *name) {
    fuzz_folder();
    return test_path(&fuzz_test, name);
}

// Writes a file of the folder and returns its path.
static inline const char *fuzz_put(const char *name, const void *data, size_t size) {
    const char *path = fuzz_path(name);
    temp_write(path, data, size);
    return path;
}

static inline const char *fuzz_temp_file(const uint8_t *data, size_t size) {
    return fuzz_put("llmc_fuzz.bin", data, size);
}

// Gives a valid input: these bytes.
static inline size_t fuzz_seed(const void *bytes, size_t size, uint8_t *buffer, size_t capacity) {
    require(size <= capacity);
    memcpy(buffer, bytes, size);
    return size;
}

// A target whose inputs are texts. `seeds`: an array of valid ones; reader(data, size) takes any bytes.
#define FUZZ_TEXT(seeds, reader)                                                                                       \
    size_t fuzz_seed_input(int which, uint8_t *buffer, size_t capacity) {                                              \
        bool there = which < (int)COUNT_OF(seeds);                                                                     \
        return there ? fuzz_seed(seeds[which], strlen(seeds[which]), buffer, capacity) : 0;                            \
    }                                                                                                                  \
    int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {                                                     \
        reader(data, size);                                                                                            \
        return 0;                                                                                                      \
    }

#endif // FUZZ_H
