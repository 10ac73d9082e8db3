// Threads: how many there are, and how they wait. At the end of a parallel loop a thread spins before it sleeps: for 5
// to 20 ms with gcc's runtime, for 200 ms with clang's. That takes time from other programs and from the thread that
// all wait for. Here it sleeps after 2,000 looks (gcc, 0.01 to 0.1 ms) or 1 ms (clang), unless the environment says
// how.
#ifndef LLMC_OPENMP_H
#define LLMC_OPENMP_H

#include <unistd.h>

#include "llmc/base/processor.h" // so every program has it
#include "llmc/base/utils.h"

#if defined(_OPENMP)
#include <omp.h>
#else
static inline int omp_get_max_threads(void) { return 1; }
static inline int omp_get_thread_num(void) { return 0; }
static inline void omp_set_num_threads(int threads) { (void)threads; }
#endif
#if defined(__linux__)
#include <sys/auxv.h>
#endif

#define OPENMP_MAX_THREADS 1024 // the runtime keeps a few hundred bytes for each thread on the stack

// Sets the number of threads; 0: as many as OpenMP wants.
static inline bool openmp_set_threads(int64_t threads, Error *error) {
#if !defined(_OPENMP)
    if (threads > 1) { return fail(error, "--threads: this build has no OpenMP and uses 1 thread; see `make doctor`"); }
#endif
    if (threads > 0) { omp_set_num_threads((int)threads); }
    int now = omp_get_max_threads();
    return now <= OPENMP_MAX_THREADS ||
           fail(error, "OMP_NUM_THREADS: %d threads, expected at most %d; or give --threads", now, OPENMP_MAX_THREADS);
}

// Call this first in main. clang's runtime reads its setting at its first use. gcc's reads it before main, so the
// program starts again, as the same process. It goes on without the setting where it cannot: without /proc, and where
// no loader has loaded it (AT_BASE), because it is static or somebody has started the loader itself.
static inline void openmp_wait_briefly(char **argv) {
    (void)argv;
    if (getenv("OMP_WAIT_POLICY") != NULL || getenv("GOMP_SPINCOUNT") != NULL) { return; }
    setenv("KMP_BLOCKTIME", "1", 0);
#if defined(_OPENMP) && !defined(__clang__) && defined(__linux__)
    char path[MAX_PATH_BYTES] = "";
    if (readlink("/proc/self/exe", path, sizeof(path) - 1) <= 0 || getauxval(AT_BASE) == 0) { return; }
    if (setenv("GOMP_SPINCOUNT", "2000", 0) == 0) { execv(path, argv); }
#endif
}

#endif // LLMC_OPENMP_H
