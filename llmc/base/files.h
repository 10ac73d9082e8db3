// Files and folders: paths, globs, whole files, reads at an offset, files that appear complete or not at all, and the
// lock that keeps two processes out of one run folder.
//
// All files of this project are little-endian, as are all machines it runs on; files over 2 GiB are ordinary.
#ifndef LLMC_FILES_H
#define LLMC_FILES_H

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/syscall.h>
#endif

#include "llmc/base/hash.h"
#include "llmc/base/utils.h"

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the file formats are little-endian and are read and written without conversion"
#endif
typedef char files_need_64_bit_offsets[sizeof(off_t) == 8 ? 1 : -1];

#define MAX_IO_BYTES ((int64_t)1 << 30)     // one read() or write(): Linux and macOS refuse or cut more than 2 GiB
#define HASH_CHUNK_BYTES ((int64_t)1 << 20) // read or written, and hashed, in one go
#define SUM_CHUNK_BYTES ((int64_t)4 << 20)  // the same for SUM64, which divides so much among threads
#define PATH_LIMIT (MAX_PATH_BYTES - 64)    // leaves room for a name of ours behind a folder, or for ".tmp"
#define TEMPORARY_SUFFIX ".tmp"

// A program that is started with its standard input, output or errors closed would get a file of its own under their
// number, and what it prints would end up in there. Closed ones become a file that is empty and cannot be written to.
static inline void reserve_standard_files(void) {
    int fd;
    do { fd = open("/dev/null", O_RDONLY); } while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0) { close(fd); }
}

// ---- Paths ----

// Refuses an empty path and one longer than PATH_LIMIT bytes. `what` begins the message: the option it came from.
static inline bool path_check(const char *path, const char *what, Error *error) {
    size_t n = strlen(path);
    if (n == 0) { return fail(error, "%s: the path is empty", what); }
    if (n > PATH_LIMIT) {
        return fail(error, "%s: the path has %zu bytes, at most %d are possible", what, n, PATH_LIMIT);
    }
    return true;
}

// Copies the first n bytes of text and a NUL; n < MAX_PATH_BYTES.
static inline void path_copy(char *out, const char *text, size_t n) {
    memcpy(out, text, n);
    out[n] = '\0';
}

// Writes dir/name into out (MAX_PATH_BYTES).
static inline bool path_join(char *out, const char *dir, const char *name, Error *error) {
    size_t n = strlen(dir), m = strlen(name);
    if (n + m + 1 >= MAX_PATH_BYTES) {
        return fail(error, "%.200s...: path longer than %d bytes", dir, MAX_PATH_BYTES - 1);
    }
    path_copy(out, dir, n);
    if (n > 0 && dir[n - 1] != '/') { out[n++] = '/'; }
    path_copy(out + n, name, m);
    return true;
}

// Writes the folder that holds path into out (MAX_PATH_BYTES); path must fit there.
static inline void path_parent(char *out, const char *path) {
    const char *slash = strrchr(path, '/');
    if (slash == NULL) {
        path_copy(out, ".", 1);
    } else {
        path_copy(out, path, slash == path ? 1 : (size_t)(slash - path));
    }
}

static inline bool path_is_directory(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

static inline bool path_exists(const char *path) {
    struct stat info;
    return stat(path, &info) == 0;
}

// Reports the system call that just failed: reads errno.
static inline bool fail_system(Error *error, const char *path, const char *action) {
    return fail(error, "%s: cannot %s: %s", path, action, strerror(errno));
}

// Makes a rename or a new name in this folder survive a power failure. Some file systems cannot (EINVAL): that is not
// an error, there is nothing more one could do.
static inline bool sync_directory(const char *dir, Error *error) {
    int fd = open(dir, O_RDONLY | O_CLOEXEC);
    if (fd < 0) { return fail_system(error, dir, "open folder"); }
    int status = fsync(fd), code = errno;
    close(fd);
    errno = code;
    return status == 0 || code == EINVAL || code == ENOTSUP || fail_system(error, dir, "flush folder");
}

static inline bool files_make_one_directory(const char *path, Error *error) {
    if (path_is_directory(path)) { return true; }
    if (mkdir(path, 0777) != 0 && !(errno == EEXIST && path_is_directory(path))) {
        if (errno == EEXIST || errno == ENOTDIR) {
            return fail(error, "%s: cannot be used as a folder: a file is in the way", path);
        }
        return fail_system(error, path, "create folder");
    }
    char parent[MAX_PATH_BYTES];
    path_parent(parent, path);
    return sync_directory(parent, error);
}

// Creates a folder and the folders above it, as far as they are missing.
static inline bool make_directories(const char *path, Error *error) {
    if (!path_check(path, "folder", error)) { return false; }
    char part[MAX_PATH_BYTES];
    path_copy(part, path, strlen(path));
    for (char *slash = strchr(part + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        if (!files_make_one_directory(part, error)) { return false; }
        *slash = '/';
    }
    size_t n = strlen(part);
    if (n > 1 && part[n - 1] == '/') { return true; } // made by the loop
    return files_make_one_directory(part, error);
}

// Appends the parts of a path to the absolute path in out (MAX_PATH_BYTES).
static inline bool files_append_parts(char *out, const char *parts, Error *error) {
    while (*parts != '\0') {
        size_t n = strcspn(parts, "/"), m = strlen(out);
        if (n == 2 && strncmp(parts, "..", 2) == 0) {
            char *slash = strrchr(out, '/');
            slash[slash == out ? 1 : 0] = '\0';
        } else if (n > 0 && !(n == 1 && parts[0] == '.')) {
            if (m + n + 1 >= MAX_PATH_BYTES) { return fail(error, "%.200s...: the path is too long", out); }
            if (m > 1) { out[m++] = '/'; }
            path_copy(out + m, parts, n);
        }
        parts += n + (parts[n] == '/');
    }
    return true;
}

// Writes into out (MAX_PATH_BYTES) the one absolute name of a folder, which need not exist yet: links are followed as
// far as there are some, and what is missing is taken for folders.
static inline bool path_resolve(char *out, const char *path, Error *error) {
    char there[MAX_PATH_BYTES], parent[MAX_PATH_BYTES];
    if (!path_check(path, "folder", error)) { return false; }
    size_t end = strlen(path); // what is behind it is missing
    path_copy(there, path, end);
    char *real = realpath(there, NULL);
    while (real == NULL && errno == ENOENT && strcmp(there, ".") != 0 && strcmp(there, "/") != 0) {
        path_parent(parent, there);
        end = strchr(there, '/') == NULL ? 0 : strlen(parent);
        path_copy(there, parent, strlen(parent));
        real = realpath(there, NULL);
    }
    if (real == NULL) { return fail_system(error, path, "find"); }
    size_t n = strlen(real);
    if (n < MAX_PATH_BYTES) { path_copy(out, real, n); }
    free(real);
    return n < MAX_PATH_BYTES ? files_append_parts(out, path + end, error)
                              : fail(error, "%.200s...: the path is too long", path);
}

// ---- Lists of files ----

typedef struct {
    char **paths;
    int count;
} PathList;

static inline void path_list_free(PathList *list) {
    for (int i = 0; i < list->count; i++) { free(list->paths[i]); }
    free(list->paths);
    list->paths = NULL;
    list->count = 0;
}

static inline int files_compare_names(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static inline bool files_copy_names(PathList *list, char **names, size_t count, Error *error) {
    list->paths = (char **)calloc(count, sizeof(char *));
    if (list->paths == NULL) { return fail(error, "out of memory for a list of %zu files", count); }
    for (size_t i = 0; i < count; i++) {
        size_t n = strlen(names[i]) + 1;
        list->paths[i] = (char *)malloc(n);
        if (list->paths[i] == NULL) { return fail(error, "out of memory for a list of %zu files", count); }
        memcpy(list->paths[i], names[i], n);
        list->count++;
    }
    qsort(list->paths, count, sizeof(char *), files_compare_names); // by bytes, whatever the locale
    return true;
}

// Lists what a pattern (* ? [...]) matches, in byte order, folders included; no match is an error. A pattern that
// matches nothing but is the name of an existing file means that file. The caller frees the list, also after a failure.
static inline bool list_glob(const char *pattern, PathList *list, Error *error) {
    list->paths = NULL;
    list->count = 0;
    if (!path_check(pattern, "file pattern", error)) { return false; }
    glob_t matches;
    memset(&matches, 0, sizeof(matches));
    int status = glob(pattern, GLOB_ERR | GLOB_NOSORT, NULL, &matches);
    bool ok;
    if (status == 0 && matches.gl_pathc > 0) {
        ok = matches.gl_pathc < INT32_MAX ? files_copy_names(list, matches.gl_pathv, matches.gl_pathc, error)
                                          : fail(error, "%s: matches too many files", pattern);
    } else if (status == GLOB_NOSPACE) {
        ok = fail(error, "%s: out of memory while listing files", pattern);
    } else if (status == GLOB_ABORTED) {
        ok = fail(error, "%s: a folder in this pattern cannot be read: %s", pattern, strerror(errno));
    } else if (path_exists(pattern)) {
        char *name = (char *)pattern;
        ok = files_copy_names(list, &name, 1, error);
    } else {
        ok = fail(error, "%s: no such file (nothing matches the name or pattern)", pattern);
    }
    globfree(&matches);
    return ok;
}

// ---- Reading ----

typedef struct {
    char path[MAX_PATH_BYTES];
    int fd;
    int64_t size; // bytes, when it was opened
} InputFile;

static inline void input_close(InputFile *file) {
    if (file->fd >= 0) { close(file->fd); }
    file->fd = -1;
}

// Opens a regular file for reading at any offset. Closed again after a failure.
static inline bool input_open(InputFile *file, const char *path, Error *error) {
    file->fd = -1;
    if (!path_check(path, "file", error)) { return false; }
    path_copy(file->path, path, strlen(path));
    struct stat info;
    if (stat(path, &info) != 0) { return fail_system(error, path, "open"); } // before open(), which waits on a pipe
    if (S_ISDIR(info.st_mode)) { return fail(error, "%s: is a folder, expected a file", path); }
    if (!S_ISREG(info.st_mode)) { return fail(error, "%s: is a device or pipe, expected an ordinary file", path); }
    file->fd = open(path, O_RDONLY | O_CLOEXEC);
    if (file->fd < 0) { return fail_system(error, path, "open"); }
    file->size = (int64_t)info.st_size;
    return true;
}

// Reads exactly `bytes` bytes at offset; the file having become shorter is an error. Safe to call from several threads.
static inline bool input_read(const InputFile *file, int64_t offset, void *data, int64_t bytes, Error *error) {
    uint8_t *out = (uint8_t *)data;
    while (bytes > 0) {
        ssize_t n = pread(file->fd, out, (size_t)min_i64(bytes, MAX_IO_BYTES), (off_t)offset);
        if (n < 0 && errno == EINTR) { continue; }
        if (n < 0) { return fail_system(error, file->path, "read"); }
        if (n == 0) {
            return fail(error, "%s: ends at byte %lld, %lld more expected (truncated?)", file->path, (long long)offset,
                        (long long)bytes);
        }
        out += n, offset += n, bytes -= n;
    }
    return true;
}

// Like input_read, and adds the bytes to hash while they are still in the cache.
static inline bool input_read_hashed(const InputFile *file, int64_t offset, void *data, int64_t bytes, Hash64 *hash,
                                     Error *error) {
    for (int64_t done = 0; done < bytes; done += HASH_CHUNK_BYTES) {
        uint8_t *chunk = (uint8_t *)data + done;
        int64_t n = min_i64(bytes - done, HASH_CHUNK_BYTES);
        if (!input_read(file, offset + done, chunk, n, error)) { return false; }
        hash64_update(hash, chunk, (size_t)n);
    }
    return true;
}

// Adds `bytes` bytes from offset to hash without keeping them.
static inline bool input_hash(const InputFile *file, int64_t offset, int64_t bytes, Hash64 *hash, Error *error) {
    uint8_t *buffer = (uint8_t *)malloc(HASH_CHUNK_BYTES);
    bool ok = buffer != NULL || fail(error, "%s: out of memory", file->path);
    for (int64_t done = 0; ok && done < bytes; done += HASH_CHUNK_BYTES) {
        ok = input_read_hashed(file, offset + done, buffer, min_i64(bytes - done, HASH_CHUNK_BYTES), hash, error);
    }
    free(buffer);
    return ok;
}

// The XXH64 of a whole file.
static inline bool file_checksum(const char *path, uint64_t *checksum, Error *error) {
    InputFile file;
    Hash64 hash;
    hash64_init(&hash, 0);
    if (!input_open(&file, path, error)) { return false; }
    bool ok = input_hash(&file, 0, file.size, &hash, error);
    input_close(&file);
    *checksum = hash64_final(&hash);
    return ok;
}

// The SUM64 of n 4-byte words from offset, as words 0 .. n - 1.
static inline bool input_sum64(const InputFile *file, int64_t offset, int64_t n, uint64_t *sum, Error *error) {
    const int64_t capacity = SUM_CHUNK_BYTES / 4;
    uint8_t *buffer = (uint8_t *)malloc((size_t)SUM_CHUNK_BYTES);
    bool ok = buffer != NULL || fail(error, "%s: out of memory", file->path);
    *sum = 0;
    for (int64_t done = 0; ok && done < n; done += capacity) {
        int64_t count = min_i64(n - done, capacity);
        ok = input_read(file, offset + 4 * done, buffer, 4 * count, error);
        if (ok) { *sum += sum64(done, buffer, count); }
    }
    free(buffer);
    return ok;
}

// Reads from fd until its end into *data, which grows from `capacity`; refuses more than max_bytes.
static inline bool files_read_to_end(int fd, const char *path, int64_t capacity, int64_t max_bytes, uint8_t **data,
                                     int64_t *size, Error *error) {
    for (;;) {
        uint8_t *larger = (uint8_t *)realloc(*data, (size_t)capacity + 1);
        if (larger == NULL) { return fail(error, "%s: out of memory (%lld bytes)", path, (long long)capacity); }
        *data = larger;
        while (*size < capacity) {
            ssize_t n = read(fd, *data + *size, (size_t)min_i64(capacity - *size, MAX_IO_BYTES));
            if (n < 0 && errno == EINTR) { continue; }
            if (n < 0) { return fail_system(error, path, "read"); }
            if (n == 0) { return true; }
            *size += n;
            if (*size > max_bytes) {
                return fail(error, "%s: larger than %lld bytes, the most that makes sense here", path,
                            (long long)max_bytes);
            }
        }
        capacity = min_i64(2 * capacity, max_bytes) + 1;
    }
}

// Reads a whole file (a pipe also) of at most max_bytes into fresh memory; a NUL byte follows the last one. The caller
// frees *data; it is NULL after a failure.
static inline bool read_whole_file(const char *path, int64_t max_bytes, uint8_t **data, int64_t *size, Error *error) {
    *data = NULL;
    *size = 0;
    if (!path_check(path, "file", error)) { return false; }
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) { return fail_system(error, path, "open"); }
    struct stat info;
    bool ok = fstat(fd, &info) == 0 || fail_system(error, path, "read");
    if (ok && S_ISDIR(info.st_mode)) { ok = fail(error, "%s: is a folder, expected a file", path); }
    if (ok) {
        int64_t expected = S_ISREG(info.st_mode) ? (int64_t)info.st_size : 4096;
        ok = files_read_to_end(fd, path, min_i64(expected, max_bytes) + 1, max_bytes, data, size, error);
    }
    close(fd);
    if (ok) {
        (*data)[*size] = 0;
    } else {
        free(*data);
        *data = NULL;
    }
    return ok;
}

// ---- Writing: complete or not at all ----

// A file that is written under a temporary name and gets its own name only when all its bytes are on the disk.
// Whatever fails, and wherever the process is killed, the old file of that name (if any) stays as it was.
typedef struct {
    char path[MAX_PATH_BYTES];
    char temporary[MAX_PATH_BYTES];
    int fd;        // -1: not open
    bool pending;  // the temporary file exists
    int64_t bytes; // written so far
} AtomicFile;

// Gives up: closes and removes the temporary file. Harmless after a failure or a commit.
static inline void atomic_abort(AtomicFile *file) {
    if (file->fd >= 0) { close(file->fd); }
    if (file->pending) { unlink(file->temporary); }
    file->fd = -1;
    file->pending = false;
}

// Describes what could not be done (code: the errno of it) and removes the partial file.
static inline bool files_failed(AtomicFile *file, const char *what, int code, Error *error) {
    atomic_abort(file);
    const char *full = code == ENOSPC ? "no space left on device" : code == EDQUOT ? "disk quota exceeded" : NULL;
    if (full != NULL) {
        return fail(error, "%s: %s: could not %s; the partial file was removed, free some space", file->path, full,
                    what);
    }
    return fail(error, "%s: could not %s: %s; the partial file was removed", file->path, what, strerror(code));
}

// The same for a write, flush, close or rename.
static inline bool files_write_failed(AtomicFile *file, const char *action, int code, Error *error) {
    char what[64];
    snprintf(what, sizeof(what), "%s it after %lld bytes", action, (long long)file->bytes);
    return files_failed(file, what, code, error);
}

static inline bool atomic_name(AtomicFile *file, const char *path, Error *error) {
    file->fd = -1;
    file->pending = false;
    file->bytes = 0;
    if (!path_check(path, "output file", error)) { return false; }
    if (path_is_directory(path)) { return fail(error, "%s: is a folder, a file is to be written", path); }
    size_t n = strlen(path);
    path_copy(file->path, path, n);
    path_copy(file->temporary, path, n);
    path_copy(file->temporary + n, TEMPORARY_SUFFIX, strlen(TEMPORARY_SUFFIX));
    return true;
}

// Begins a file; its folder must exist. After any failure of this or the following functions nothing remains open, and
// no temporary file.
static inline bool atomic_open(AtomicFile *file, const char *path, Error *error) {
    if (!atomic_name(file, path, error)) { return false; }
    file->fd = open(file->temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    file->pending = file->fd >= 0;
    return file->pending || fail_system(error, file->temporary, "create");
}

static inline bool atomic_write(AtomicFile *file, const void *data, int64_t bytes, Error *error) {
    const uint8_t *in = (const uint8_t *)data;
    while (bytes > 0) {
        ssize_t n = write(file->fd, in, (size_t)min_i64(bytes, MAX_IO_BYTES));
        if (n < 0 && errno == EINTR) { continue; }
        if (n <= 0) { return files_write_failed(file, "write", n == 0 ? EIO : errno, error); }
        in += n, bytes -= n, file->bytes += n;
    }
    return true;
}

// Writes at an offset, of a file begun in any of the ways above and below.
static inline bool atomic_write_at(AtomicFile *file, int64_t offset, const void *data, int64_t bytes, Error *error) {
    const uint8_t *in = (const uint8_t *)data;
    while (bytes > 0) {
        ssize_t n = pwrite(file->fd, in, (size_t)min_i64(bytes, MAX_IO_BYTES), (off_t)offset);
        if (n < 0 && errno == EINTR) { continue; }
        if (n <= 0) { return files_write_failed(file, "write", n == 0 ? EIO : errno, error); }
        in += n, offset += n, bytes -= n, file->bytes += n;
    }
    return true;
}

// Gives an open file its size and, where the file system can, its place on the disk. Returns 0, or why not (as errno).
// Not by posix_fallocate: where a file system cannot do it, that one writes into every block.
static inline int files_reserve(int fd, int64_t bytes) {
    int status;
#if defined(SYS_fallocate) && defined(__LP64__)
    do { status = (int)syscall(SYS_fallocate, fd, 0, (off_t)0, (off_t)bytes); } while (status != 0 && errno == EINTR);
    if (status == 0) { return 0; }
    if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG) { return errno; }
#endif
    do { status = ftruncate(fd, (off_t)bytes); } while (status != 0 && errno == EINTR);
    return status == 0 ? 0 : errno;
}

// Begins a file of known size that several processes, maybe on several machines, write together with atomic_write_at:
// one creates it, the others join, all flush, and then the one that created it commits. A full disk shows here. Where
// something was not written there are zeros.
static inline bool atomic_create(AtomicFile *file, const char *path, int64_t bytes, Error *error) {
    char folder[MAX_PATH_BYTES];
    if (!atomic_name(file, path, error)) { return false; }
    // A new file, not an old one emptied: what is left of a killed run may still write into that.
    if (unlink(file->temporary) != 0 && errno != ENOENT) { return fail_system(error, file->temporary, "remove"); }
    file->fd = open(file->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    file->pending = file->fd >= 0;
    if (!file->pending) { return fail_system(error, file->temporary, "create"); }
    int code = files_reserve(file->fd, bytes);
    if (code != 0) {
        char what[64];
        snprintf(what, sizeof(what), "reserve %lld bytes for it", (long long)bytes);
        return files_failed(file, what, code, error);
    }
    path_parent(folder, path);
    bool ok = sync_directory(folder, error);
    if (!ok) { atomic_abort(file); }
    return ok;
}

// A network file system may not show a file at once that another machine made: opening the folder makes it look again,
// for up to three seconds.
static inline int files_open_new(const char *path, int flags) {
    const struct timespec pause = {0, 50000000};
    char folder[MAX_PATH_BYTES];
    path_parent(folder, path);
    for (int attempt = 0;; attempt++) {
        int fd = open(path, flags);
        if (fd >= 0 || errno != ENOENT || attempt == 60) { return fd; }
        Error ignored;
        sync_directory(folder, &ignored);
        nanosleep(&pause, NULL);
    }
}

// Opens the temporary file that another process made with atomic_create, when that one is done. An abort leaves it.
// That it has its full size by then matters: a network file system writes the part of a page that this process changed
// and no more, as long as the page does not lie at the end of the file.
static inline bool atomic_join(AtomicFile *file, const char *path, int64_t bytes, Error *error) {
    struct stat info;
    if (!atomic_name(file, path, error)) { return false; }
    file->fd = files_open_new(file->temporary, O_WRONLY | O_CLOEXEC);
    if (file->fd < 0) { return fail_system(error, file->temporary, "open"); }
    if (fstat(file->fd, &info) == 0 && (int64_t)info.st_size == bytes) { return true; }
    atomic_abort(file);
    return fail(error, "%s: does not have the %lld bytes expected: is it another process's?", file->temporary,
                (long long)bytes);
}

// Flushes a file to the disk itself. macOS's fsync stops at the drive's cache; F_FULLFSYNC does not.
static inline int files_flush(int fd) {
#if defined(F_FULLFSYNC)
    if (fcntl(fd, F_FULLFSYNC) == 0) { return 0; }
#endif
    int status;
    do { status = fsync(fd); } while (status != 0 && errno == EINTR);
    return status;
}

// All bytes are written: brings them to the disk and closes the file, which keeps its temporary name until the commit.
static inline bool atomic_flush(AtomicFile *file, Error *error) {
    if (files_flush(file->fd) != 0) { return files_write_failed(file, "flush", errno, error); }
    int status = close(file->fd);
    file->fd = -1;
    return status == 0 || files_write_failed(file, "close", errno, error);
}

// Ends a file: flush (unless done), rename, flush of the folder. Only then does the new content exist, and for good.
static inline bool atomic_commit(AtomicFile *file, Error *error) {
    if (file->fd >= 0 && !atomic_flush(file, error)) { return false; }
    if (rename(file->temporary, file->path) != 0) { return files_write_failed(file, "rename", errno, error); }
    file->pending = false;
    char folder[MAX_PATH_BYTES];
    path_parent(folder, file->path);
    return sync_directory(folder, error);
}

// Writes a whole small file atomically.
static inline bool write_whole_file(const char *path, const void *data, int64_t bytes, Error *error) {
    AtomicFile file;
    return atomic_open(&file, path, error) && atomic_write(&file, data, bytes, error) && atomic_commit(&file, error);
}

// ---- One process per folder ----

// Held by an open file: the kernel releases it however the process ends, so that no stale lock can remain.
typedef struct {
    int fd; // of the file .lock in the folder, which holds the owner's process id as text
} DirectoryLock;

static inline void directory_unlock(DirectoryLock *lock) {
    if (lock->fd >= 0) { close(lock->fd); }
    lock->fd = -1;
}

// Claims an existing folder for this process; fails at once when another one holds it.
static inline bool directory_lock(DirectoryLock *lock, const char *dir, Error *error) {
    char path[MAX_PATH_BYTES], owner[32] = "";
    lock->fd = -1;
    if (!path_check(dir, "folder", error) || !path_join(path, dir, ".lock", error)) { return false; }
    lock->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (lock->fd < 0) { return fail_system(error, path, "create"); }
    if (flock(lock->fd, LOCK_EX | LOCK_NB) != 0) {
        bool taken = errno == EWOULDBLOCK;
        if (!taken) { fail_system(error, path, "lock"); }
        ssize_t n = pread(lock->fd, owner, sizeof(owner) - 1, 0);
        directory_unlock(lock);
        if (!taken) { return false; }
        long pid = n > 0 ? strtol(owner, NULL, 10) : 0;
        return fail(error, "%s: in use by another process (pid %ld); wait for it to end or choose another folder", dir,
                    pid);
    }
    int n = snprintf(owner, sizeof(owner), "%ld\n", (long)getpid());
    if (ftruncate(lock->fd, 0) != 0 || pwrite(lock->fd, owner, (size_t)n, 0) != n) {
        fail_system(error, path, "write");
        directory_unlock(lock);
        return false;
    }
    return true;
}

#endif // LLMC_FILES_H
