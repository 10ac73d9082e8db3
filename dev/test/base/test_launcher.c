// What a launcher leaves in the environment: who started this process, as which of how many.
#include "dev/test/test.h"
#include "llmc/base/launcher.h"

static void forget_launcher(void) {
    static const char *const names[] = {
        "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "PMI_RANK",      "PMI_SIZE",
        "MPI_LOCALRANKID",      "SLURM_PROCID",         "SLURM_STEP_NUM_TASKS",       "SLURM_LOCALID", "PMIX_RANK"};
    FOR_EACH(n, names) { unsetenv(names[n]); }
}

TEST(test_launchers) {
    static const struct {
        const char *variables[6], *found;
    } cases[] = {
        {{NULL}, "none -1 -1 -1"},
        {{"OMPI_COMM_WORLD_RANK", "3", "OMPI_COMM_WORLD_SIZE", "8", "OMPI_COMM_WORLD_LOCAL_RANK", "1"}, "mpirun 3 8 1"},
        {{"PMI_RANK", "2", "PMI_SIZE", "4"}, "mpirun 2 4 -1"},
        {{"SLURM_PROCID", "1", "SLURM_STEP_NUM_TASKS", "2", "SLURM_LOCALID", "0"}, "srun 1 2 0"},
        {{"SLURM_PROCID", "0"}, "none -1 -1 -1"}, // a batch script, not started by srun
        {{"PMIX_RANK", "5"}, "a PMIx launcher 5 -1 -1"},
        {{"OMPI_COMM_WORLD_RANK", "x", "OMPI_COMM_WORLD_SIZE", "8"}, "none -1 -1 -1"}};
    FOR_EACH(i, cases) {
        forget_launcher();
        for (int v = 0; v < 6 && cases[i].variables[v] != NULL; v += 2) {
            setenv(cases[i].variables[v], cases[i].variables[v + 1], 1);
        }
        Launcher l = launcher_find();
        const char *found = format("%s %d %d %d", l.name != NULL ? l.name : "none", l.rank, l.size, l.local_rank);
        CHECK(t, strcmp(found, cases[i].found) == 0, "case %zu: %s", i, found);
    }
    forget_launcher();
}
