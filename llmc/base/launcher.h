// Finds the launcher that started this process: mpirun, srun or none. The launcher says so in the environment.
#ifndef LLMC_LAUNCHER_H
#define LLMC_LAUNCHER_H

#include "llmc/base/utils.h"

#define LAUNCHER_MAX_RANKS 4096

typedef struct {
    const char *name;           // NULL: no launcher
    int rank, size, local_rank; // -1: the launcher does not say
} Launcher;

// Reads a number from the environment. Returns -1 if there is none.
static inline int launcher_number(const char *name) {
    const char *text = name != NULL ? getenv(name) : NULL;
    int64_t value = -1;
    return text != NULL && read_whole(text, &value) && value <= LAUNCHER_MAX_RANKS ? (int)max_i64(value, -1) : -1;
}

// SLURM_NTASKS does not count, because the batch script has it too, and srun did not start the batch script.
static inline Launcher launcher_find(void) {
    static const char *const known[][4] = {
        {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},
        {"mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"},
        {"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"},
        {"a PMIx launcher", "PMIX_RANK", NULL, NULL},
    };
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        Launcher launcher = {known[i][0], launcher_number(known[i][1]), launcher_number(known[i][2]),
                             launcher_number(known[i][3])};
        if (launcher.rank >= 0 && (known[i][2] == NULL || launcher.size >= 1)) { return launcher; }
    }
    Launcher none = {NULL, -1, -1, -1};
    return none;
}

// Tells whether this process speaks for all processes of its launcher. Use it where all have one thing to say.
static inline bool launcher_shows(void) { return launcher_find().rank <= 0; }

#endif // LLMC_LAUNCHER_H
