// The functions on ranks (ranks_api.h) for a process that trains alone: it agrees with itself.
#ifndef LLMC_ONE_RANK_H
#define LLMC_ONE_RANK_H

#include "llmc/base/launcher.h"
#include "llmc/run/ranks_api.h"

#define ONE_RANK __attribute__((weak)) // several objects may include this file

ONE_RANK bool ranks_agree(Comm *comm, bool ok, Error *error) { return (void)comm, (void)error, ok; }
ONE_RANK bool ranks_broadcast(Comm *comm, void *data, int64_t bytes, Error *error) {
    return (void)comm, (void)data, (void)bytes, (void)error, true;
}
ONE_RANK bool ranks_sum(Comm *comm, uint64_t *values, int count, Error *error) {
    return (void)comm, (void)values, (void)count, (void)error, true;
}
ONE_RANK bool ranks_any(Comm *comm, bool mine, bool *any, Error *error) {
    *any = mine;
    return (void)comm, (void)error, true;
}
ONE_RANK bool ranks_alike(Comm *comm, const char *facts, size_t bytes, Error *error) {
    return (void)comm, (void)facts, (void)bytes, (void)error, true;
}
ONE_RANK bool ranks_are_broken(const Comm *comm) { return (void)comm, false; }
ONE_RANK void ranks_all_know(Comm *comm, const Error *error) { (void)comm, (void)error; }
ONE_RANK void ranks_slow(Comm *comm, bool slow) { (void)comm, (void)slow; }
ONE_RANK void ranks_resumable(Comm *comm, bool resumable) { (void)comm, (void)resumable; }
ONE_RANK void ranks_fail(Comm *comm, const Error *error) { (void)comm, (void)error; }
ONE_RANK bool ranks_print(const Comm *comm) { return (void)comm, launcher_shows(); }
ONE_RANK void ranks_close(Comm *comm) { (void)comm; }

// Refuses to be one of several processes: each would train the same run.
static inline bool one_rank_check(const char *program, Error *error) {
    Launcher launcher = launcher_find();
    return launcher.size <= 1 || fail(error,
                                      "%s has started %d processes, and %s runs as one; start it without %s, or start "
                                      "%scu or %semu on several GPUs",
                                      launcher.name, launcher.size, program, launcher.name, program, program);
}

#endif // LLMC_ONE_RANK_H
