// A folder for a test, and small file helpers. A folder is removed with all that is in it.
#ifndef TEMP_DIR_H
#define TEMP_DIR_H

#include <dirent.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dev/test/test.h"

static inline void temp_must(int ok, const char *what) {
    if (ok) { return; }
    perror(what);
    exit(EXIT_FAILURE);
}

static inline void temp_remove_tree(const char *path) {
    struct stat info;
    if (lstat(path, &info) != 0) { return; }
    DIR *folder = S_ISDIR(info.st_mode) ? opendir(path) : NULL;
    for (struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) { continue; }
        size_t n = strlen(path) + strlen(entry->d_name) + 2;
        char *inner = (char *)malloc(n);
        snprintf(inner, n, "%s/%s", path, entry->d_name);
        temp_remove_tree(inner);
        free(inner);
    }
    if (folder != NULL) { closedir(folder); }
    remove(path);
}

// The folder of a test, made when it is first asked for. The harness removes it after the test. It is in $TMPDIR, else
// in memory where the machine has such a folder (flushing a thousand files to a busy disk takes minutes), else in /tmp.
static inline const char *test_folder(Test *t) {
    if (t->folder[0] != '\0') { return t->folder; }
    const char *base = getenv("TMPDIR");
    if (base == NULL || strlen(base) > 400) { base = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp"; }
    snprintf(t->folder, sizeof(t->folder), "%s/llmc_test_XXXXXX", base);
    temp_must(mkdtemp(t->folder) != NULL, t->folder);
    return t->folder;
}

// The path of a name in the test's folder; valid until the eighth call after this one.
static inline const char *test_path(Test *t, const char *name) {
    static char paths[8][1024];
    static int next = 0;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof(paths[0]), "%s/%s", test_folder(t), name);
    return path;
}

// Makes a folder in the test's; the path is valid as long as one of test_path.
static inline const char *test_new_folder(Test *t) {
    static int count = 0;
    const char *path = test_path(t, format("%d", count++));
    temp_must(mkdir(path, 0777) == 0, path);
    return path;
}

// Writes a file anew; an old one is removed first, for truncating it makes some file systems flush to the disk.
static inline void temp_write(const char *path, const void *data, size_t bytes) {
    unlink(path);
    FILE *file = fopen(path, "wb");
    temp_must(file != NULL && fwrite(data, 1, bytes, file) == bytes && fclose(file) == 0, path);
}

// Reads a whole file; the caller frees.
static inline uint8_t *temp_read(const char *path, size_t *bytes) {
    struct stat info;
    FILE *file = fopen(path, "rb");
    temp_must(file != NULL && fstat(fileno(file), &info) == 0, path);
    uint8_t *data = (uint8_t *)malloc((size_t)info.st_size + 1);
    *bytes = fread(data, 1, (size_t)info.st_size, file);
    fclose(file);
    return data;
}

static inline int temp_exists(const char *path) {
    struct stat info;
    return lstat(path, &info) == 0;
}

// Limits the size of files that this process writes, and returns the limit before. It stands for a full disk: a write
// beyond it fails, after it has written as much as fits.
static inline rlim_t temp_limit_files(rlim_t bytes) {
    struct rlimit limit;
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &limit);
    rlim_t before = limit.rlim_cur;
    limit.rlim_cur = bytes;
    setrlimit(RLIMIT_FSIZE, &limit);
    return before;
}

// Inverts the bits of one byte of a file.
static inline void temp_flip(const char *path, long offset) {
    FILE *file = fopen(path, "r+b");
    temp_must(file != NULL && fseek(file, offset, SEEK_SET) == 0, path);
    int byte = fgetc(file);
    temp_must(byte != EOF && fseek(file, offset, SEEK_SET) == 0 && fputc(~byte & 0xff, file) != EOF, path);
    fclose(file);
}

#endif // TEMP_DIR_H
