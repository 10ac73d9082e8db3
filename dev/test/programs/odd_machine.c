// Loaded before the C library (LD_PRELOAD), makes the machine odd:
//   the wall clock goes back by an hour each time it is read
//   ODD_READ_ONLY=N: from the N-th new file on, the file system is read-only
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *now) {
    static long reads;
    int status = (int)syscall(SYS_clock_gettime, clock, now);
    if (clock == CLOCK_REALTIME) { now->tv_sec -= 3600 * __atomic_add_fetch(&reads, 1, __ATOMIC_RELAXED); }
    return status;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out != NULL) { *out = now.tv_sec; }
    return now.tv_sec;
}

int open(const char *path, int flags, ...) {
    static int files;
    const char *last = getenv("ODD_READ_ONLY");
    va_list more;
    va_start(more, flags);
    int mode = (flags & O_CREAT) != 0 ? va_arg(more, int) : 0;
    va_end(more);
    if (last != NULL && (flags & O_CREAT) != 0 && ++files >= atoi(last)) {
        errno = EROFS;
        return -1;
    }
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

int open64(const char *path, int flags, ...) __attribute__((alias("open")));
