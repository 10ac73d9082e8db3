// Agreement: what the ranks tell and ask each other, each in one exchange (star.h): numbers, whether all are well,
// whether all know the same facts. All ranks call these functions at once and in one order.
#ifndef LLMC_AGREE_H
#define LLMC_AGREE_H

#include "llmc/ranks/star.h"

// ---- Numbers ----

// Gathers `bytes` bytes from each rank, in order of rank. The caller frees *all, which is empty on failure.
static inline bool comm_gather(Comm *comm, const char *name, const void *mine, int64_t bytes, Text *all, Error *error) {
    if (!comm_exchange(comm, name, bytes, mine, bytes, all, error)) { return false; }
    if ((int64_t)all->used == comm->num_ranks * bytes) { return true; }
    text_free(all);
    return fail(error, "rank 0 answers %s with something else", name);
}

// Sends rank 0's bytes to all. `bytes` must be equal everywhere.
static inline bool comm_broadcast(Comm *comm, void *data, int64_t bytes, Error *error) {
    Text all;
    bool ok = comm_exchange(comm, "a broadcast", bytes, data, comm->rank == 0 ? bytes : 0, &all, error);
    if (ok && (int64_t)all.used != bytes) { ok = fail(error, "rank 0 answers a broadcast with something else"); }
    if (ok && bytes > 0) { memcpy(data, all.data, (size_t)bytes); }
    text_free(&all);
    return ok;
}

// Makes values[i] the sum over all ranks, modulo 2^64.
static inline bool comm_sum_u64(Comm *comm, uint64_t *values, int count, Error *error) {
    Text all;
    if (!comm_gather(comm, "a sum", values, (int64_t)sizeof(uint64_t) * count, &all, error)) { return false; }
    for (int i = 0; i < count; i++) {
        values[i] = 0;
        for (int r = 0; r < comm->num_ranks; r++) { values[i] += ((const uint64_t *)all.data)[r * count + i]; }
    }
    text_free(&all);
    return true;
}

// ---- Texts ----

// Reads what the ranks say in an agreement: one zero from each that is well, its error from each that is not. False:
// *error is the error of the lowest rank that has one, after "rank 3 (host, pid 12): ".
static inline bool comm_all_well(const Comm *comm, const Text *all, Error *error) {
    int rank = 0;
    while (rank < comm->num_ranks && (size_t)rank < all->used && all->data[rank] == '\0') { rank++; }
    if (rank == comm->num_ranks && all->used == (size_t)rank) { return true; }
    if (rank == comm->num_ranks || (size_t)rank == all->used) {
        return fail(error, "a rank answers an agreement with something else");
    }
    const char *text = all->data + rank;
    bool known = strcmp(text, comm->known) == 0; // from an agreement before: it names its rank already
    return fail(error, "%s%s%s", known ? "" : comm_name(comm, rank).text, known ? "" : ": ", text);
}

// Returns true if ok is true on all ranks. Otherwise returns false on all, and *error is everywhere the error of the
// lowest rank that failed.
static inline bool comm_agree(Comm *comm, bool ok, Error *error) {
    Text all;
    if (comm->num_ranks == 1) { return ok; }
    const char *mine = ok ? "" : error->text[0] != '\0' ? error->text : "failed";
    if (!comm_exchange(comm, "an agreement", 0, mine, (int64_t)strlen(mine) + 1, &all, error)) { return false; }
    ok = comm_all_well(comm, &all, error);
    if (!ok) { comm_all_know(comm, error); }
    text_free(&all);
    return ok;
}

// Compares this rank's facts [b, b_end) with rank 0's [a, a_end), behind which is a zero.
static inline bool comm_compare_facts(const Comm *comm, const char *a, const char *a_end, const char *b,
                                      const char *b_end, Error *error) {
    const char *name = "";
    bool value = false;
    for (; a < a_end && b < b_end && strcmp(a, b) == 0; value = !value) {
        name = a;
        a += strlen(a) + 1, b += strlen(b) + 1;
    }
    if (a >= a_end && b >= b_end) { return true; }
    CommName zero = comm_name(comm, 0);
    if (value && a < a_end) { return fail(error, "%.200s is %.1000s, but %.1000s on %s", name, b, a, zero.text); }
    return fail(error, "runs another program than %s: only one of them knows '%.200s'", zero.text, b < b_end ? b : a);
}

// Compares rank 0's facts ("name NUL value NUL name NUL ...") with those of all ranks. A difference gives one error on
// all ranks, e.g. "rank 2 (hostB, pid 12): --seq-len is 32, but 64 on rank 0 (hostA, pid 7)".
static inline bool comm_check_facts(Comm *comm, const char *facts, size_t bytes, Error *error) {
    Text zero;
    if (comm->num_ranks == 1) { return true; }
    int64_t own = comm->rank == 0 ? (int64_t)bytes : 0;
    if (!comm_exchange(comm, "a comparison of facts", 0, facts, own, &zero, error)) { return false; }
    bool ok = comm_compare_facts(comm, zero.data, zero.data + zero.used, facts, facts + bytes, error);
    text_free(&zero);
    return comm_agree(comm, ok, error);
}

// ---- Weights ----

// Reports that the weights of a rank differ from those of the first rank that should have equal ones, after step
// `step`. All ranks know it.
static inline bool comm_fail_replicas(Comm *comm, int odd_one, int leader, int64_t step, Error *error) {
    fail(error,
         "after step %lld: the weights of %s are not those of %s: memory or network are faulty; these weights are not "
         "saved, --resume goes on from the last checkpoint",
         (long long)step, comm_name(comm, odd_one).text, comm_name(comm, leader).text);
    comm_all_know(comm, error);
    return false;
}

// Fails when a rank's checksum of its weights is not its leader's: the first rank that should have equal weights.
static inline bool comm_check_replicas(Comm *comm, uint64_t checksum, int leader, int64_t step, Error *error) {
    Text all;
    int odd = 1;
    uint64_t mine[2] = {checksum, (uint64_t)leader};
    if (!comm_gather(comm, "checksums", mine, (int64_t)sizeof(mine), &all, error)) { return false; }
    const uint64_t(*sums)[2] = (const uint64_t(*)[2])all.data;
    for (; odd < comm->num_ranks; odd++) {
        leader = sums[odd][1] < (uint64_t)odd ? (int)sums[odd][1] : odd;
        if (sums[odd][0] != sums[leader][0]) { break; }
    }
    text_free(&all);
    return odd == comm->num_ranks || comm_fail_replicas(comm, odd, leader, step, error);
}

#endif // LLMC_AGREE_H
