// Lets OpenMP's threads wait in a way that leaves the machine to other programs.
//
// A thread that waits for others at the end of a parallel loop looks for them again and again (it spins) before it
// sleeps: for 5 to 20 ms with gcc's runtime, for 200 ms with clang's. If another program has the core of the thread
// that all wait for, the spinning takes the time in which this thread could go on. Here a waiting thread sleeps after
// 0.05 ms (gcc) or 1 ms (clang). OMP_WAIT_POLICY, GOMP_SPINCOUNT or KMP_BLOCKTIME in the environment overrule this.
#ifndef LLMC_OPENMP_H
#define LLMC_OPENMP_H

#include "llmc/base/processor.h" // so every program has it
#include "llmc/base/utils.h"

#if !defined(_OPENMP)
static inline void openmp_wait_briefly(char **argv) { (void)argv; }

#elif defined(__clang__)
// clang's runtime reads its settings when the program first uses it. Call this first in main.
static inline void openmp_wait_briefly(char **argv) {
    (void)argv;
    if (getenv("OMP_WAIT_POLICY") == NULL) { setenv("KMP_BLOCKTIME", "1", 0); }
}

#elif defined(__linux__)
#include <sys/auxv.h>
#include <unistd.h>

#define OPENMP_SPIN_SECONDS 5e-5

// Returns how often a thread can look in OPENMP_SPIN_SECONDS. Between two looks gcc's runtime pauses, for 4 to 60 ns on
// an x86. The fastest of some tries counts, because other programs interrupt.
static inline int openmp_spins(void) {
    const int looks = 200;
    double least = 1.0;
    for (int i = 0; i < 5; i++) {
        double start = seconds_now();
        for (volatile int k = 0; k < looks; k++) {
#if defined(__x86_64__) || defined(__i386__)
            __asm__ volatile("pause");
#endif
        }
        double seconds = seconds_now() - start;
        least = seconds < least ? seconds : least;
    }
    return (int)(looks * OPENMP_SPIN_SECONDS / (least + 1e-9)) + 1;
}

// Tells whether a debugger runs this program, which would meet main twice, or valgrind, which would lose the program.
// True where this is unknown.
static inline bool openmp_is_watched(void) {
    char status[1024];
    const char *preload = getenv("LD_PRELOAD");
    FILE *file = fopen("/proc/self/status", "r");
    if (file == NULL) { return true; }
    status[fread(status, 1, sizeof(status) - 1, file)] = '\0';
    fclose(file);
    return strstr(status, "\nTracerPid:\t0\n") == NULL || (preload != NULL && strstr(preload, "/vgpreload_") != NULL);
}

// gcc's runtime reads its settings before main, so the program starts again, as the same process, with the setting in
// its environment. Call this first in main. It goes on without the setting in a debugger, without /proc, and in a
// program that no loader has loaded (AT_BASE): it is static, or somebody has started the loader itself.
static inline void openmp_wait_briefly(char **argv) {
    char spins[32], path[MAX_PATH_BYTES];
    if (getenv("OMP_WAIT_POLICY") != NULL || getenv("GOMP_SPINCOUNT") != NULL) { return; }
    ssize_t bytes = readlink("/proc/self/exe", path, sizeof(path) - 1);
    if (bytes <= 0 || getauxval(AT_BASE) == 0 || openmp_is_watched()) { return; }
    path[bytes] = '\0';
    snprintf(spins, sizeof(spins), "%d", openmp_spins());
    if (setenv("GOMP_SPINCOUNT", spins, 0) == 0) { execv(path, argv); }
}

#else // gcc elsewhere has no such way
static inline void openmp_wait_briefly(char **argv) { (void)argv; }
#endif

#endif // LLMC_OPENMP_H
