// Reads a file of named arrays, as dev/test/fixtures/make_fixtures.py writes them for the tests (dev/test/fixtures).
// Little-endian, no padding anywhere:
//
//   int32 magic 20240601, int32 version 1, int32 number of arrays; then for each array
//   char name[32] (filled up with zero bytes), int32 type (0: float32, 1: int32), int32 number of dimensions (0 to 4),
//   int32 shape[4] (dimensions that are not there: 1), then the elements, row-major, 4 bytes each
//
// A fixture is part of the test: one that is missing or not as expected ends the program.
#ifndef FIXTURE_H
#define FIXTURE_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *path;
    unsigned char *data; // the whole file
    int64_t size;
} Fixture;

typedef struct {
    char name[32];
    int32_t type, num_dims, shape[4];
} FixtureArray; // as in the file; the elements follow

enum { FIXTURE_FLOAT32, FIXTURE_INT32 };

static inline void fixture_fail(const char *path, const char *what, const char *name) {
    printf("%s: %s%s; write it again with: python3 dev/test/fixtures/make_fixtures.py\n", path, what, name);
    exit(EXIT_FAILURE);
}

// Reads a whole file of any kind; the caller frees it. *size is its bytes.
static inline unsigned char *fixture_read_file(const char *path, int64_t *size) {
    FILE *file = fopen(path, "rb");
    if (file == NULL) { fixture_fail(path, "cannot open (run tests from the repository's root)", ""); }
    fseek(file, 0, SEEK_END);
    *size = (int64_t)ftell(file);
    rewind(file);
    unsigned char *data = (unsigned char *)malloc((size_t)*size + 1);
    if (data == NULL || fread(data, 1, (size_t)*size, file) != (size_t)*size) { fixture_fail(path, "cannot read", ""); }
    fclose(file);
    return data;
}

static inline Fixture fixture_open(const char *path) {
    Fixture fixture = {path, NULL, 0};
    int32_t magic[2] = {0, 0};
    fixture.data = fixture_read_file(path, &fixture.size);
    if (fixture.size >= 12) { memcpy(magic, fixture.data, sizeof(magic)); }
    if (magic[0] != 20240601 || magic[1] != 1) { fixture_fail(path, "not a file of named arrays", ""); }
    return fixture;
}

static inline void fixture_close(Fixture *fixture) {
    free(fixture->data);
    fixture->data = NULL;
}

// The elements of an array of the given type and number of elements.
static inline const void *fixture_elements(const Fixture *fixture, const char *name, int32_t type, int64_t count) {
    int64_t at = 12;
    while (at + (int64_t)sizeof(FixtureArray) <= fixture->size) {
        FixtureArray array;
        memcpy(&array, fixture->data + at, sizeof(array));
        at += (int64_t)sizeof(array);
        int64_t bytes = 4;
        for (int i = 0; i < 4; i++) { bytes *= array.shape[i]; }
        if (bytes < 0 || bytes > fixture->size - at) { break; }
        if (strncmp(array.name, name, sizeof(array.name)) == 0) {
            if (array.type != type || bytes != 4 * count) { fixture_fail(fixture->path, "another shape of ", name); }
            return fixture->data + at;
        }
        at += bytes;
    }
    fixture_fail(fixture->path, "no array ", name);
    return NULL;
}

static inline const float *fixture_floats(const Fixture *fixture, const char *name, int64_t count) {
    return (const float *)fixture_elements(fixture, name, FIXTURE_FLOAT32, count);
}

static inline const int32_t *fixture_ints(const Fixture *fixture, const char *name, int64_t count) {
    return (const int32_t *)fixture_elements(fixture, name, FIXTURE_INT32, count);
}

static inline float fixture_float(const Fixture *fixture, const char *name) {
    return *fixture_floats(fixture, name, 1);
}

#endif // FIXTURE_H
