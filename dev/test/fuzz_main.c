// A small deterministic driver for fuzz targets, for machines without libFuzzer and for the short run in the tests:
//   build/fuzz_x [iterations, default 3000] [seed]
//   build/fuzz_x --seeds FOLDER          writes the valid inputs there: a corpus for libFuzzer to begin with
// Each iteration takes one of the target's valid inputs, damages it in one to four ways and runs the target.
// The numbers on the command line give equal inputs on every machine.
#include <stdbool.h>
#include <string.h>

#include "dev/test/fuzz.h"
#include "llmc/base/openmp.h"
#include "llmc/base/rand.h"

#define FUZZ_CAPACITY (1 << 20)
#define FUZZ_MAX_SEEDS 64

typedef struct {
    uint8_t *data;
    size_t size;
} FuzzInput;

typedef struct {
    uint64_t seed, drawn;
} FuzzRandom;

static size_t draw(FuzzRandom *random, size_t below) {
    return below == 0 ? 0 : (size_t)(rand_u64(random->seed, 0, random->drawn++) % below);
}

// A place in the input; half of the draws fall into its first 256 bytes, where headers are.
static size_t draw_place(FuzzRandom *random, size_t size) {
    return draw(random, 2) == 0 && size > 256 ? draw(random, 256) : draw(random, size);
}

static void overwrite_number(FuzzInput *input, FuzzRandom *random) {
    static const int64_t edges[] = {
        0,          1,         -1,        2,         127,       128,       255,
        256,        32767,     32768,     65535,     65536,     50256,     50257,
        50304,      1048576,   INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, 0x7ff0000000000000LL,
        0x7f800000, 1LL << 33, 1LL << 62};
    int64_t value = edges[draw(random, sizeof(edges) / sizeof(edges[0]))];
    size_t width = (size_t)1 << draw(random, 4), place = draw_place(random, input->size);
    if (draw(random, 2) == 0) { place -= place % width; }
    if (place + width <= input->size) { memcpy(input->data + place, &value, width); }
}

// Inserts bytes: a copy of a piece of `source`, or printable or arbitrary noise.
static void insert_bytes(FuzzInput *input, FuzzRandom *random, const FuzzInput *source) {
    static const char printable[] = "{}[]\",:\\-+0123456789eE.truefalsnl \n";
    size_t place = draw(random, input->size + 1), length = 1 + draw(random, draw(random, 8) == 0 ? 4096 : 16);
    size_t from = draw(random, source->size), kind = draw(random, 3);
    if (kind == 0 && length > source->size - from) { length = source->size - from; }
    if (input->size + length > FUZZ_CAPACITY) { return; }
    memmove(input->data + place + length, input->data + place, input->size - place);
    for (size_t i = 0; i < length; i++) {
        uint8_t noise =
            kind == 1 ? (uint8_t)printable[draw(random, sizeof(printable) - 1)] : (uint8_t)draw(random, 256);
        input->data[place + i] = kind == 0 ? source->data[from + i] : noise;
    }
    input->size += length;
}

static void remove_bytes(FuzzInput *input, FuzzRandom *random) {
    size_t place = draw(random, input->size), length = 1 + draw(random, 16);
    if (place + length > input->size) { return; }
    memmove(input->data + place, input->data + place + length, input->size - place - length);
    input->size -= length;
}

static void damage(FuzzInput *input, FuzzRandom *random, const FuzzInput *source) {
    if (input->size == 0) { return; }
    switch (draw(random, 7)) {
    case 0: input->data[draw_place(random, input->size)] ^= (uint8_t)(1 << draw(random, 8)); break;
    case 1: input->data[draw_place(random, input->size)] = (uint8_t)draw(random, 256); break;
    case 2: input->size = draw(random, input->size); break;
    case 3: insert_bytes(input, random, source); break;
    case 4: remove_bytes(input, random); break;
    default: overwrite_number(input, random); break;
    }
}

static FuzzInput seeds[FUZZ_MAX_SEEDS]; // the valid inputs

static int make_seeds(void) {
    int count = 0;
    uint8_t *buffer = (uint8_t *)malloc(FUZZ_CAPACITY);
    for (size_t size; count < FUZZ_MAX_SEEDS && (size = fuzz_seed_input(count, buffer, FUZZ_CAPACITY)) > 0; count++) {
        seeds[count].data = (uint8_t *)malloc(size);
        seeds[count].size = size;
        memcpy(seeds[count].data, buffer, size);
    }
    free(buffer);
    return count;
}

static int write_seeds(int count, const char *folder) {
    for (int i = 0; i < count; i++) {
        char path[1024];
        snprintf(path, sizeof(path), "%s/seed_%02d", folder, i);
        FILE *file = fopen(path, "wb");
        if (file == NULL || fwrite(seeds[i].data, 1, seeds[i].size, file) != seeds[i].size || fclose(file) != 0) {
            perror(path);
            return EXIT_FAILURE;
        }
    }
    return EXIT_SUCCESS;
}

int main(int argc, char **argv) {
    openmp_wait_briefly(argv);
    bool only_seeds = argc == 3 && strcmp(argv[1], "--seeds") == 0;
    long iterations = argc > 1 && !only_seeds ? strtol(argv[1], NULL, 10) : 3000;
    FuzzRandom random = {argc > 2 && !only_seeds ? strtoull(argv[2], NULL, 10) : 1, 0};
    int count = make_seeds();
    if (only_seeds) { return write_seeds(count, argv[2]); }
    if (count == 0 || iterations < 0) {
        fprintf(stderr, "%s: no valid inputs to begin with, or a bad number of iterations\n", argv[0]);
        return EXIT_FAILURE;
    }
    static uint8_t damaged[FUZZ_CAPACITY];
    FuzzInput input = {damaged, 0};
    for (int i = 0; i < count; i++) { LLVMFuzzerTestOneInput(seeds[i].data, seeds[i].size); }
    LLVMFuzzerTestOneInput(input.data, 0);
    for (long i = 0; i < iterations; i++) {
        const FuzzInput *seed = &seeds[draw(&random, (size_t)count)], *other = &seeds[draw(&random, (size_t)count)];
        memcpy(input.data, seed->data, seed->size);
        input.size = seed->size;
        for (size_t n = 1 + draw(&random, 4); n > 0; n--) { damage(&input, &random, other); }
        uint8_t *exact = (uint8_t *)malloc(input.size > 0 ? input.size : 1); // a sanitizer sees any byte beyond
        memcpy(exact, input.data, input.size);
        LLVMFuzzerTestOneInput(exact, input.size);
        free(exact);
    }
    printf("%s: %ld damaged inputs of %d valid ones: all refused or read within bounds\n", argv[0], iterations, count);
    return EXIT_SUCCESS;
}
