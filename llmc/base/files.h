// Files and folders: paths, patterns, reading, files that appear complete or not at all, and the lock that keeps two
// processes out of one folder.
//
// Somebody else may write to our folders, too, and put anything under our names. So there are three ways to open a
// file: atomic_open makes a new one under a temporary name, files_open_own opens a log, a lock or another rank's file
// to write to it, files_open_input opens a file to read it. Only read_whole_stream takes a pipe, which the user names
// as data.
//
// All files of this project are little-endian, and so are all machines it runs on. Files over 2 GiB are ordinary.
#ifndef LLMC_FILES_H
#define LLMC_FILES_H

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/types.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/syscall.h>
#endif

#include "llmc/base/utils.h"

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the file formats are little-endian and are read and written without conversion"
#endif
typedef char files_need_64_bit_offsets[sizeof(off_t) == 8 ? 1 : -1];

#define MAX_IO_BYTES ((int64_t)1 << 30)  // per read() or write(): Linux and macOS refuse or cut more than 2 GiB
#define PATH_LIMIT (MAX_PATH_BYTES - 64) // leaves room for a file name of ours in a folder, or for ".tmp"
#define TEMPORARY_SUFFIX ".tmp"
#define LOCK_NAME ".lock"

// Opens an empty file that refuses writes for each standard stream that is closed. Otherwise one of our files could get
// the number of standard output, and everything printed would end up in it.
static inline void reserve_standard_files(void) {
    int fd;
    do { fd = open("/dev/null", O_RDONLY); } while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0) { close(fd); }
}

// ---- Paths ----

// Refuses an empty path and a path of more than PATH_LIMIT bytes. `what` (the option it came from) begins the message.
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

// Writes the folder that holds path into out (MAX_PATH_BYTES). path is shorter than MAX_PATH_BYTES.
static inline void path_parent(char *out, const char *path) {
    const char *slash = strrchr(path, '/');
    if (slash == NULL) { slash = path = "."; }
    path_copy(out, path, slash == path ? 1 : (size_t)(slash - path));
}

// Returns the name at the end of a path.
static inline const char *path_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash == NULL ? path : slash + 1;
}

static inline bool path_is_directory(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

static inline bool path_exists(const char *path) {
    struct stat info;
    return stat(path, &info) == 0;
}

// Reports the system call that has just failed. Reads errno.
static inline bool fail_system(Error *error, const char *path, const char *action) {
    return fail(error, "%s: cannot %s: %s", path, action, strerror(errno));
}

// Removes a file, if it is there.
static inline bool files_remove(const char *path, Error *error) {
    return unlink(path) == 0 || errno == ENOENT || fail_system(error, path, "remove");
}

// Makes a rename or a new name in the folder of `path` survive a power failure. EINVAL means that the file system
// cannot do this. It is no error, because nothing more can be done.
static inline bool sync_parent(const char *path, Error *error) {
    char parent[MAX_PATH_BYTES];
    path_parent(parent, path);
    int fd = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) { return fail_system(error, parent, "open folder"); }
    bool ok = fsync(fd) == 0 || errno == EINVAL || errno == ENOTSUP || fail_system(error, parent, "flush folder");
    close(fd);
    return ok;
}

static inline bool files_make_one_directory(const char *path, Error *error) {
    if (path_is_directory(path)) { return true; }
    if (mkdir(path, 0777) == 0) { return sync_parent(path, error); }
    int code = errno;
    if (code == EEXIST && path_is_directory(path)) { return true; } // another process was faster
    return fail(error, "%s: cannot be used as a folder: %s", path,
                code == EEXIST || code == ENOTDIR ? "a file is in the way" : strerror(code));
}

// Creates a folder and all missing folders above it.
static inline bool make_directories(const char *path, Error *error) {
    char part[MAX_PATH_BYTES];
    if (!path_check(path, "folder", error)) { return false; }
    for (size_t i = 1, n = strlen(path); i <= n; i++) {
        path_copy(part, path, i);
        if ((path[i] == '/' || path[i] == '\0') && !files_make_one_directory(part, error)) { return false; }
    }
    return true;
}

// Creates a folder of ours. A link in its place is refused.
static inline bool make_own_directory(const char *path, Error *error) {
    struct stat info;
    return make_directories(path, error) && ((lstat(path, &info) == 0 && S_ISDIR(info.st_mode)) ||
                                             fail(error, "%s: cannot be used as a folder: a link is in the way", path));
}

// Returns the bytes that this process may still write to a folder's disk, -1 if unknown. The folder need not exist yet:
// then the one above it tells.
static inline int64_t disk_free_bytes(const char *folder) {
    struct statvfs disk;
    char path[MAX_PATH_BYTES], above[MAX_PATH_BYTES];
    path_copy(path, folder, strlen(folder));
    while (statvfs(path, &disk) != 0) {
        path_parent(above, path);
        if (strcmp(above, path) == 0) { return -1; }
        path_copy(path, above, strlen(above));
    }
    double bytes = (double)disk.f_bavail * (double)disk.f_frsize;
    return disk.f_blocks == 0 ? -1 : bytes < 9e18 ? (int64_t)bytes : INT64_MAX;
}

// ---- Lists of files ----

typedef struct {
    char **paths; // (count)
    int count;
    glob_t matches; // holds the paths
} PathList;

static inline void path_list_free(PathList *list) {
    globfree(&list->matches);
    memset(list, 0, sizeof(*list));
}

// Lists what a pattern (* ? [...]) matches, in byte order, folders included. No match is an error, unless the pattern
// is the name of an existing file, which it then means. hint: ends the message then. The caller frees the list, also
// after a failure.
static inline bool list_glob(const char *pattern, const char *hint, PathList *list, Error *error) {
    memset(list, 0, sizeof(*list));
    if (!path_check(pattern, "file pattern", error)) { return false; }
    int status =
        glob(pattern, GLOB_ERR | GLOB_NOCHECK, NULL, &list->matches); // without a match, returns the pattern itself
    if (status == GLOB_NOSPACE) { return fail(error, "%s: out of memory while listing files", pattern); }
    bool no_folder = status == GLOB_ABORTED && errno == ENOENT;
    if (status != 0 && !no_folder) {
        return fail(error, "%s: a folder in this pattern cannot be read: %s", pattern, strerror(errno));
    }
    char **paths = list->matches.gl_pathv;
    if (no_folder || (list->matches.gl_pathc == 1 && strcmp(paths[0], pattern) == 0 && !path_exists(pattern))) {
        return fail(error, "%s: no such file (nothing matches the name or pattern)%s", pattern, hint);
    }
    if (list->matches.gl_pathc >= INT32_MAX) { return fail(error, "%s: matches too many files", pattern); }
    list->paths = paths;
    list->count = (int)list->matches.gl_pathc;
    return true;
}

// ---- Reading ----

typedef struct {
    char path[MAX_PATH_BYTES];
    int fd;
    int64_t size; // bytes, when the file was opened
} InputFile;

static inline void input_close(InputFile *file) {
    if (file->fd >= 0) { close(file->fd); }
    file->fd = -1;
}

// Checks that an open file is an ordinary one.
static inline bool files_check_ordinary(int fd, const char *path, struct stat *info, Error *error) {
    if (fstat(fd, info) != 0) { return fail_system(error, path, "read"); }
    if (S_ISDIR(info->st_mode)) { return fail(error, "%s: is a folder, expected a file", path); }
    return S_ISREG(info->st_mode) || fail(error, "%s: is a device or pipe, expected an ordinary file", path);
}

// Opens an ordinary file for reading at any offset. A pipe or device under its name is refused at once. The file is
// closed after a failure.
static inline bool input_open(InputFile *file, const char *path, Error *error) {
    struct stat info;
    file->fd = -1;
    if (!path_check(path, "file", error)) { return false; }
    path_copy(file->path, path, strlen(path));
    file->fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (file->fd < 0) { return fail_system(error, path, "open"); }
    bool ok = files_check_ordinary(file->fd, path, &info, error);
    file->size = ok ? (int64_t)info.st_size : 0;
    if (!ok) { input_close(file); }
    return ok;
}

// Reads exactly `bytes` bytes at offset. Fails if the file has become shorter. Safe to call from several threads.
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

// Opens a file and reads its first `bytes` bytes into `start`. Zeros stand for bytes behind the end of the file.
static inline bool input_open_start(InputFile *file, const char *path, void *start, int64_t bytes, Error *error) {
    memset(start, 0, (size_t)bytes);
    if (!input_open(file, path, error)) { return false; }
    bool ok = input_read(file, 0, start, min_i64(file->size, bytes), error);
    if (!ok) { input_close(file); }
    return ok;
}

// Reads from fd until its end into *data, which grows. Refuses more than max_bytes.
static inline bool files_read_to_end(int fd, const char *path, int64_t max_bytes, uint8_t **data, int64_t *size,
                                     Error *error) {
    struct stat info;
    bool known = fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
    int64_t room = min_i64(known ? (int64_t)info.st_size : 4096, max_bytes) + 1;
    for (ssize_t n = 1; n != 0;) {
        if (*data == NULL || *size == room) {
            if (*data != NULL) { room = min_i64(2 * room, max_bytes) + 1; }
            uint8_t *larger = (uint8_t *)realloc(*data, (size_t)room + 1);
            if (larger == NULL) { return fail(error, "%s: out of memory (%lld bytes)", path, (long long)room); }
            *data = larger;
        }
        n = read(fd, *data + *size, (size_t)min_i64(room - *size, MAX_IO_BYTES));
        if (n < 0 && errno != EINTR) { return fail_system(error, path, "read"); }
        *size += n > 0 ? n : 0;
        if (*size > max_bytes) {
            return fail(error, "%s: larger than %lld bytes, the most that makes sense here", path,
                        (long long)max_bytes);
        }
    }
    (*data)[*size] = 0;
    return true;
}

// Reads an open file in this way, and closes it. *data is NULL after a failure.
static inline bool files_read_whole(int fd, const char *path, int64_t max_bytes, uint8_t **data, int64_t *size,
                                    Error *error) {
    bool ok = files_read_to_end(fd, path, max_bytes, data, size, error);
    close(fd);
    if (!ok) { free(*data), *data = NULL; }
    return ok;
}

// Reads a whole ordinary file of at most max_bytes into new memory, and adds a NUL byte. The caller frees *data.
static inline bool read_whole_file(const char *path, int64_t max_bytes, uint8_t **data, int64_t *size, Error *error) {
    InputFile file;
    *data = NULL, *size = 0;
    return input_open(&file, path, error) && files_read_whole(file.fd, path, max_bytes, data, size, error);
}

// Reads what the user names as data in this way. It may be a pipe, whose other end it waits for.
static inline bool read_whole_stream(const char *path, int64_t max_bytes, uint8_t **data, int64_t *size, Error *error) {
    *data = NULL, *size = 0;
    if (!path_check(path, "file", error)) { return false; }
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) { return fail_system(error, path, "open"); }
    return files_read_whole(fd, path, max_bytes, data, size, error);
}

// ---- Writing: complete or not at all ----

// Holds a file that is written under a temporary name. It gets its own name only when all its bytes are on the disk. An
// old file of that name stays unchanged, whatever fails and wherever the process is killed.
typedef struct {
    char path[MAX_PATH_BYTES];
    char temporary[MAX_PATH_BYTES];
    int fd;        // -1: not open
    bool pending;  // the temporary file exists
    int64_t bytes; // written so far
} AtomicFile;

// Makes a file that is not begun, and may be closed.
static inline void atomic_init(AtomicFile *file) {
    file->fd = -1;
    file->pending = false;
    file->bytes = 0;
}

// Closes the file. Removes the temporary file if the file is neither committed nor joined.
static inline void atomic_close(AtomicFile *file) {
    if (file->fd >= 0) { close(file->fd); }
    if (file->pending) { unlink(file->temporary); }
    atomic_init(file);
}

// Removes the partial file and reports what could not be done. code: an errno.
static inline bool atomic_fail(AtomicFile *file, const char *action, int64_t bytes, int code, Error *error) {
    atomic_close(file);
    return fail(error, "%s: could not %s %lld bytes: %s; the partial file was removed%s", file->path, action,
                (long long)bytes, strerror(code), code == ENOSPC || code == EDQUOT ? ", free some space" : "");
}

// Sets both names.
static inline bool atomic_name(AtomicFile *file, const char *path, Error *error) {
    atomic_init(file);
    if (!path_check(path, "output file", error)) { return false; }
    if (path_is_directory(path)) { return fail(error, "%s: is a folder, a file is to be written", path); }
    snprintf(file->path, MAX_PATH_BYTES, "%s", path);
    snprintf(file->temporary, MAX_PATH_BYTES, "%.*s" TEMPORARY_SUFFIX, PATH_LIMIT, path);
    return true;
}

// Begins a file in an existing folder; mode: who may read it, less the process's umask. The file is new: processes of a
// killed run may still write into the old temporary file, and another user may have put a link in its place. After any
// failure of this or the following functions, the file is closed and the temporary file is gone.
static inline bool atomic_open(AtomicFile *file, const char *path, mode_t mode, Error *error) {
    if (!atomic_name(file, path, error) || !files_remove(file->temporary, error)) { return false; }
    file->fd = open(file->temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
    file->pending = file->fd >= 0;
    return file->pending || fail_system(error, file->temporary, "create");
}

// Writes bytes at an offset of an open file. *written counts them. Returns 0 or an errno.
static inline int files_write_at(int fd, int64_t offset, const void *data, int64_t bytes, int64_t *written) {
    const uint8_t *in = (const uint8_t *)data;
    while (bytes > 0) {
        ssize_t n = pwrite(fd, in, (size_t)min_i64(bytes, MAX_IO_BYTES), (off_t)offset);
        if (n < 0 && errno == EINTR) { continue; }
        if (n <= 0) { return n == 0 ? EIO : errno; }
        in += n, offset += n, bytes -= n, *written += n;
    }
    return 0;
}

static inline bool atomic_write_at(AtomicFile *file, int64_t offset, const void *data, int64_t bytes, Error *error) {
    int code = files_write_at(file->fd, offset, data, bytes, &file->bytes);
    return code == 0 || atomic_fail(file, "write it after", file->bytes, code, error);
}

// Appends to a file that is written from its beginning to its end.
static inline bool atomic_write(AtomicFile *file, const void *data, int64_t bytes, Error *error) {
    return atomic_write_at(file, file->bytes, data, bytes, error);
}

// Gives an open file its size and, where the file system can, reserves its place on the disk. Returns 0 or an errno.
// posix_fallocate is not used, because it writes into every block where the file system cannot reserve blocks.
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

// Begins a file of known size that several processes, maybe on several machines, write together with atomic_write_at.
// One process creates it, and the other processes join it. All flush it. Then the process that created it commits it. A
// full disk shows here. Bytes that nobody writes are zeros.
static inline bool atomic_create(AtomicFile *file, const char *path, int64_t bytes, Error *error) {
    if (!atomic_open(file, path, 0666, error)) { return false; }
    int code = files_reserve(file->fd, bytes);
    if (code != 0) { return atomic_fail(file, "reserve", bytes, code, error); }
    bool ok = sync_parent(path, error);
    if (!ok) { atomic_close(file); }
    return ok;
}

// Opens a file of ours to write to it: a log, a lock, a file that another rank has made. Somebody else may have put a
// link, a pipe or a second name of another file there, and all of them are refused. Returns -1 and keeps errno after a
// failure.
static inline int files_open_own(const char *path, int flags, mode_t mode, Error *error) {
    struct stat info;
    int fd = open(path, flags | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, mode);
    int code = errno;
    if (fd < 0 && code == ELOOP) {
        fail(error, "%s: is a link, and links are not followed here; remove it", path);
    } else if (fd < 0 && code == ENXIO) {
        fail(error, "%s: is a device or pipe, expected an ordinary file", path);
    } else if (fd < 0) {
        fail_system(error, path, "open");
    } else if (files_check_ordinary(fd, path, &info, error)) {
        if (info.st_nlink <= 1) { return fd; }
        fail(error, "%s: is also the file of another name (a hard link), which would change too; remove it", path);
    }
    if (fd >= 0) {
        close(fd);
        code = EINVAL;
    }
    errno = code;
    return -1;
}

// Opens the temporary file after another process has made it with atomic_create. Closing leaves the file there. A
// network file system may show it late. Opening the folder makes it look again, for up to three seconds. The file must
// have its full size: such a system writes only the changed part of a page, unless the page is at the file's end.
static inline bool atomic_join(AtomicFile *file, const char *path, int64_t bytes, Error *error) {
    const struct timespec pause = {0, 50000000};
    struct stat info;
    Error ignored;
    if (!atomic_name(file, path, error)) { return false; }
    for (int attempt = 0; attempt < 60; attempt++) {
        file->fd = files_open_own(file->temporary, O_WRONLY, 0, error);
        if (file->fd >= 0 || errno != ENOENT) { break; }
        sync_parent(path, &ignored);
        nanosleep(&pause, NULL);
    }
    bool ok = file->fd >= 0 && ((fstat(file->fd, &info) == 0 && (int64_t)info.st_size == bytes) ||
                                fail(error, "%s: does not have the %lld bytes expected: is it another process's?",
                                     file->temporary, (long long)bytes));
    if (!ok) { atomic_close(file); }
    return ok;
}

// Flushes a file to the disk. macOS's fsync stops at the drive's cache; F_FULLFSYNC does not.
static inline int files_flush(int fd) {
#if defined(F_FULLFSYNC)
    if (fcntl(fd, F_FULLFSYNC) == 0) { return 0; }
#endif
    int status;
    do { status = fsync(fd); } while (status != 0 && errno == EINTR);
    return status;
}

// Flushes all bytes to the disk and closes the file, which keeps its temporary name until the commit.
static inline bool atomic_flush(AtomicFile *file, Error *error) {
    if (files_flush(file->fd) != 0) { return atomic_fail(file, "flush it after", file->bytes, errno, error); }
    int status = close(file->fd);
    file->fd = -1;
    return status == 0 || atomic_fail(file, "close it after", file->bytes, errno, error);
}

// Gives a file its name, after a flush (unless done). A failure removes the temporary file.
static inline bool atomic_place(AtomicFile *file, Error *error) {
    if (file->fd >= 0 && !atomic_flush(file, error)) { return false; }
    if (rename(file->temporary, file->path) != 0) {
        return atomic_fail(file, "rename it after", file->bytes, errno, error);
    }
    file->pending = false;
    return true;
}

// Gives a file its name. After this the new content survives a power failure.
static inline bool atomic_commit(AtomicFile *file, Error *error) {
    return atomic_place(file, error) && sync_parent(file->path, error);
}

// Writes a whole small file atomically. mode: 0600 for a file that holds a secret, otherwise 0666.
static inline bool write_whole_file(const char *path, const void *data, int64_t bytes, mode_t mode, Error *error) {
    AtomicFile file;
    return atomic_open(&file, path, mode, error) && atomic_write(&file, data, bytes, error) &&
           atomic_commit(&file, error);
}

// ---- One process per folder ----

// The kernel releases the lock of an open file however the process ends, so no stale lock can remain. The file stays,
// because another process may have opened it to wait for its lock.
typedef struct {
    char path[MAX_PATH_BYTES]; // of .lock in the folder
    int fd;                    // the file holds the owner's process id as text
} DirectoryLock;

static inline void directory_unlock(DirectoryLock *lock) {
    if (lock->fd >= 0) { close(lock->fd); }
    lock->fd = -1;
}

// Opens the file .lock of a folder. Only this user may open it, because whoever can open a file can lock it.
static inline bool directory_open_lock(DirectoryLock *lock, const char *dir, Error *error) {
    struct stat info;
    lock->fd = files_open_own(lock->path, O_RDWR | O_CREAT, 0600, error);
    int code = errno;
    if (lock->fd >= 0) {
        fchmod(lock->fd, 0600);
    } else if (code == EACCES && lstat(lock->path, &info) == 0) {
        fail(error,
             "%s: is the file of user %ld; choose another folder, or remove it when no process of theirs uses %s",
             lock->path, (long)info.st_uid, dir);
    } else if (code == EACCES || code == EROFS) {
        fail(error, "%s: this folder cannot be written to: %s; choose another", dir, strerror(code));
    }
    return lock->fd >= 0;
}

// Writes this process's id into the lock that it holds.
static inline bool directory_sign_lock(DirectoryLock *lock, Error *error) {
    char text[32];
    int64_t written = 0;
    int n = snprintf(text, sizeof(text), "%ld\n", (long)getpid());
    int code = ftruncate(lock->fd, 0) != 0 ? errno : files_write_at(lock->fd, 0, text, n, &written);
    return code == 0 || fail(error, "%s: cannot write: %s", lock->path, strerror(code));
}

// Claims an existing folder for this process. Fails at once when another process holds it.
static inline bool directory_lock(DirectoryLock *lock, const char *dir, Error *error) {
    char owner[32] = "";
    lock->fd = -1;
    if (!path_check(dir, "folder", error) || !path_join(lock->path, dir, LOCK_NAME, error) ||
        !directory_open_lock(lock, dir, error)) {
        return false;
    }
    ssize_t read = pread(lock->fd, owner, sizeof(owner) - 1, 0);
    bool ok = flock(lock->fd, LOCK_EX | LOCK_NB) == 0;
    if (!ok && errno != EWOULDBLOCK) {
        fail_system(error, lock->path, "lock");
    } else if (!ok) {
        fail(error, "%s: in use by another process (pid %ld); wait for it to end or choose another folder", dir,
             read > 0 ? strtol(owner, NULL, 10) : 0);
    } else {
        ok = directory_sign_lock(lock, error);
    }
    if (!ok) { directory_unlock(lock); }
    return ok;
}

// Checks that .lock is still the file whose lock this process holds. If somebody has removed it, another process can
// make a new one and lock that.
static inline bool directory_check_lock(const DirectoryLock *lock, Error *error) {
    struct stat held, named;
    return (fstat(lock->fd, &held) == 0 && lstat(lock->path, &named) == 0 && held.st_dev == named.st_dev &&
            held.st_ino == named.st_ino) ||
           fail(error,
                "%s: was removed or replaced while this process held its lock, so another may write here; stopped",
                lock->path);
}

#endif // LLMC_FILES_H
