// What a run calls of its ranks: plain functions. one_rank.h defines them for a process that trains alone. For many
// ranks the GPU trainer defines them by llmc/ranks. The ranks of a run call each exchange at once.
#ifndef LLMC_RANKS_API_H
#define LLMC_RANKS_API_H

#include "llmc/base/utils.h"

typedef struct Comm Comm; // the ranks' own, passed to each function

bool ranks_agree(Comm *comm, bool ok, Error *error); // true if ok on all; otherwise the first rank's error on all
bool ranks_broadcast(Comm *comm, void *data, int64_t bytes, Error *error); // from rank 0
bool ranks_sum(Comm *comm, uint64_t *values, int count, Error *error);
bool ranks_any(Comm *comm, bool mine, bool *any, Error *error);
bool ranks_alike(Comm *comm, const char *facts, size_t bytes, Error *error); // facts: name NUL value NUL ...
bool ranks_are_broken(const Comm *comm);                                     // no exchange can succeed any more

// These functions exchange nothing.
void ranks_all_know(Comm *comm, const Error *error); // all ranks have this error
void ranks_slow(Comm *comm, bool slow);              // tells the watch that this may take long
void ranks_resumable(Comm *comm, bool resumable);    // tells the watch of a checkpoint, so that it may name --resume
void ranks_fail(Comm *comm, const Error *error);     // the other ranks end with this error
bool ranks_print(const Comm *comm);                  // this process prints an error that all ranks have
void ranks_close(Comm *comm);

#endif // LLMC_RANKS_API_H
