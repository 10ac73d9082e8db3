// OpenMP's threads: how many they are, and how they wait so that other programs have the machine.
//
// A thread that waits for others at the end of a parallel loop looks for them again and again (it spins) before it
// sleeps: for 5 to 20 ms with gcc's runtime, for 200 ms with clang's. If another program has the core of the thread
// that all wait for, the spinning takes the time in which this thread could go on. Here a waiting thread sleeps after
// 2,000 looks (gcc, 0.01 to 0.1 ms) or 1 ms (clang). OMP_WAIT_POLICY, GOMP_SPINCOUNT or KMP_BLOCKTIME overrule this.
#ifndef LLMC_OPENMP_H
#define LLMC_OPENMP_H

#include "llmc/base/processor.h" // so every program has it
#include "llmc/base/utils.h"

#if defined(_OPENMP)
#include <omp.h>
#else
static inline int omp_get_max_threads(void) { return 1; }
static inline int omp_get_thread_num(void) { return 0; }
#endif

#define OPENMP_MAX_THREADS 1024 // the runtime keeps a few hundred bytes for each thread on the stack

// Sets the number of threads; 0: as many as OpenMP wants.
static inline bool openmp_set_threads(int64_t threads, Error *error) {
#if defined(_OPENMP)
    if (threads > 0) { omp_set_num_threads((int)threads); }
    int now = omp_get_max_threads();
    return now <= OPENMP_MAX_THREADS ||
           fail(error, "OMP_NUM_THREADS: %d threads, expected at most %d; or give --threads", now, OPENMP_MAX_THREADS);
#else
    return threads <= 1 || fail(error, "--threads: this build has no OpenMP and uses 1 thread; see `make doctor`");
#endif
}

#if defined(_OPENMP) && !defined(__clang__) && defined(__linux__)
#include <sys/auxv.h>
#include <unistd.h>

// gcc's runtime reads its settings before main, so the program starts again, as the same process, with the setting in
// its environment. Call this first in main. Without /proc, or if no loader has loaded the program (AT_BASE), it goes on
// without the setting: the program is static, or somebody has started the loader itself. valgrind would lose the
// program; give it GOMP_SPINCOUNT.
static inline void openmp_wait_briefly(char **argv) {
    char path[MAX_PATH_BYTES];
    if (getenv("OMP_WAIT_POLICY") != NULL || getenv("GOMP_SPINCOUNT") != NULL) { return; }
    ssize_t bytes = readlink("/proc/self/exe", path, sizeof(path) - 1);
    if (bytes <= 0 || getauxval(AT_BASE) == 0) { return; }
    path[bytes] = '\0';
    if (setenv("GOMP_SPINCOUNT", "2000", 0) == 0) { execv(path, argv); }
}

#else
// clang's runtime reads its settings when the program first uses it. Call this first in main.
static inline void openmp_wait_briefly(char **argv) {
    (void)argv;
    if (getenv("OMP_WAIT_POLICY") == NULL) { setenv("KMP_BLOCKTIME", "1", 0); }
}
#endif

#endif // LLMC_OPENMP_H
