// Writes files that appear complete or not at all, makes and flushes folders, and keeps two processes out of one
// folder.
//
// Somebody else may write to our folders, too, and put anything under our names. So atomic_open makes a new file under
// a temporary name, and files_open_own opens a log, a lock or another rank's file to write to it. input_file.h reads.
#ifndef LLMC_FILES_H
#define LLMC_FILES_H

#include <fcntl.h>
#include <sys/file.h>
#include <sys/statvfs.h>
#include <sys/types.h>
#include <unistd.h>

#include "llmc/base/utils.h"

typedef char files_need_64_bit_offsets[sizeof(off_t) == 8 ? 1 : -1];

#define TEMPORARY_SUFFIX ".tmp"
#define LOCK_NAME ".lock"

// Opens an empty file that refuses writes for each standard stream that is closed. Otherwise one of our files could get
// the number of standard output, and everything printed would end up in it.
static inline void reserve_standard_files(void) {
    int fd;
    do { fd = open("/dev/null", O_RDONLY); } while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0) { close(fd); }
}

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

// Creates a folder and all missing folders above it.
static inline bool make_directories(const char *path, Error *error) {
    char part[MAX_PATH_BYTES];
    if (!path_check(path, "folder", error)) { return false; }
    for (size_t i = 1, n = strlen(path); i <= n; i++) {
        path_copy(part, path, i);
        if ((path[i] != '/' && path[i] != '\0') || path_is_directory(part)) { continue; }
        int code = mkdir(part, 0777) == 0 ? 0 : errno;
        if (code != 0 && !path_is_directory(part)) { // another process may be faster
            return fail(error, "%s: cannot be used as a folder: %s", part,
                        code == EEXIST || code == ENOTDIR ? "a file is in the way" : strerror(code));
        }
        if (!sync_parent(part, error)) { return false; }
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

static inline bool atomic_name(AtomicFile *file, const char *path, Error *error) {
    atomic_init(file);
    if (!path_check(path, "output file", error)) { return false; }
    if (path_is_directory(path)) { return fail(error, "%s: is a folder, a file is to be written", path); }
    snprintf(file->path, MAX_PATH_BYTES, "%s", path);
    snprintf(file->temporary, MAX_PATH_BYTES, "%.*s" TEMPORARY_SUFFIX, PATH_LIMIT, path);
    return true;
}

// Begins a file in an existing folder. The file is new: processes of a killed run may still write into the old
// temporary file, and another user may have put a link in its place. After any failure of this or the following
// functions, the file is closed and the temporary file is gone.
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

// Begins a file of known size that several processes, maybe on several machines, write with atomic_write_at. One
// creates it, the others join it, all flush it, and then the first commits it.
static inline bool atomic_create(AtomicFile *file, const char *path, int64_t bytes, Error *error) {
    if (!atomic_open(file, path, 0666, error)) { return false; }
    if (ftruncate(file->fd, (off_t)bytes) != 0) { return atomic_fail(file, "extend it to", bytes, errno, error); }
    if (sync_parent(path, error)) { return true; }
    atomic_close(file);
    return false;
}

// Opens a file of ours to write to it: a log, a lock, a file that another rank has made. Somebody else may have put a
// link, a pipe or a second name of another file there, and all of them are refused. Returns -1 and keeps errno after a
// failure.
static inline int files_open_own(const char *path, int flags, mode_t mode, Error *error) {
    struct stat info;
    int fd = open(path, flags | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, mode);
    int code = fd < 0 ? errno : EINVAL;
    if (code == ELOOP) {
        fail(error, "%s: is a link, and links are not followed here; remove it", path);
    } else if (fd < 0) {
        fail_system(error, path, "open");
    } else if (files_check_ordinary(fd, path, &info, error)) {
        if (info.st_nlink <= 1) { return fd; }
        fail(error, "%s: is also the file of another name (a hard link), which would change too; remove it", path);
    }
    if (fd >= 0) { close(fd); }
    errno = code;
    return -1;
}

// Opens the temporary file of another process. Closing leaves it there. A network file system may show it late: opening
// the folder makes it look again, for up to three seconds. The file must have its full size, because such a system
// writes only the changed part of a page, unless the page is at the file's end.
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

// Flushes all bytes to the disk and closes the file, which keeps its temporary name until the commit.
static inline bool atomic_flush(AtomicFile *file, Error *error) {
    int status;
#if defined(F_FULLFSYNC)
    fcntl(file->fd, F_FULLFSYNC); // macOS's fsync stops at the drive's cache
#endif
    do { status = fsync(file->fd); } while (status != 0 && errno == EINTR);
    if (status != 0) { return atomic_fail(file, "flush it after", file->bytes, errno, error); }
    status = close(file->fd);
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
    if (!path_check(dir, "folder", error) || !path_join(lock->path, dir, LOCK_NAME, error)) { return false; }
    lock->fd = files_open_own(lock->path, O_RDWR | O_CREAT, 0600, error);
    if (lock->fd < 0) { return false; }
    fchmod(lock->fd, 0600); // whoever can open a file can lock it
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
