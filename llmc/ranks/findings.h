// What the ranks find out together about their machines, GPUs and weights: which ranks differ, and what any rank found.
// All ranks call these functions at once. A single rank has nothing to exchange.
#ifndef LLMC_FINDINGS_H
#define LLMC_FINDINGS_H

#include "llmc/base/hash.h"
#include "llmc/ranks/ranks.h"

#define FINDING_BYTES 160

// Notes that all ranks have this error, so that comm_fail tells nobody.
static inline void comm_all_know(Comm *comm, const Error *error) {
    snprintf(comm->known, sizeof(comm->known), "%.*s", COMM_TEXT_BYTES - 1, error->text);
}

static inline bool comm_is_broken(const Comm *comm) { return comm->broken; }

// Tells the watch that this rank has got further, to "step 12".
static inline void comm_progress_to(Comm *comm, const char *what, int64_t number) {
    char phase[64];
    if (comm->num_ranks == 1) { return; }
    snprintf(phase, sizeof(phase), "%s %lld", what, (long long)number);
    comm_progress(comm, phase);
}

// Returns the number of machines that the ranks run on.
static inline int comm_num_machines(const Comm *comm) {
    int machines = 0;
    for (int r = 0; r < comm->num_ranks; r++) { machines += comm_is_first_of_machine(comm, r); }
    return machines;
}

// The place where rank 0 notes the first finding.
typedef struct {
    const Comm *comm;
    char text[COMM_TEXT_BYTES];
} CommFinding;

static inline void comm_take_finding(void *context, int rank, const uint8_t *data, int64_t bytes) {
    CommFinding *first = (CommFinding *)context;
    if (bytes == 0 || first->text[0] != '\0') { return; }
    snprintf(first->text, sizeof(first->text), "%.*s on rank %d (%s)", FINDING_BYTES, (const char *)data, rank,
             comm_host(first->comm, rank));
}

// Shares whether a rank found something in its own part. *found becomes whether any rank did. place becomes the words
// of the first rank that did.
static inline bool comm_share_finding(Comm *comm, bool *found, char *place, size_t size, Error *error) {
    if (comm->num_ranks == 1) { return true; }
    CommFinding first = {comm, ""};
    const char *mine = *found ? place : "";
    Exchange x = {"a finding",       0,      mine,       (int64_t)strlen(mine), true,
                  comm_take_finding, &first, first.text, COMM_TEXT_BYTES};
    if (!comm_exchange(comm, &x, error)) { return false; }
    *found = first.text[0] != '\0';
    if (*found) { snprintf(place, size, "%s", first.text); }
    return true;
}

// Gathers a number from each rank. The caller frees *all, which is NULL on failure.
static inline bool comm_gather_u64(Comm *comm, uint64_t mine, uint64_t **all, Error *error) {
    *all = (uint64_t *)malloc((size_t)comm->num_ranks * sizeof(uint64_t));
    if (*all == NULL) { return fail(error, "out of memory for the numbers of %d ranks", comm->num_ranks); }
    return comm_all_gather(comm, &mine, *all, (int64_t)sizeof(mine), error);
}

// Fails when two ranks have equal texts. Each rank's text names something that must be its own.
static inline bool comm_check_unlike(Comm *comm, const char *mine, const char *what, const char *remedy, Error *error) {
    uint64_t *all = NULL;
    bool ok = comm_gather_u64(comm, hash64(mine, strlen(mine)), &all, error);
    for (int b = 1; ok && b < comm->num_ranks; b++) {
        for (int a = 0; ok && a < b; a++) {
            if (all[a] != all[b]) { continue; }
            ok = fail(error, "ranks %d and %d (%s) have the same %s; %s", a, b, comm_host(comm, a), what, remedy);
            comm_all_know(comm, error);
        }
    }
    free(all);
    return ok;
}

// Reports that the weights of a rank differ from the weights of rank 0 after step `step`. All ranks know it.
static inline bool comm_fail_replicas(Comm *comm, int odd_one, int64_t step, Error *error) {
    fail(error,
         "after step %lld: the weights of rank %d (%s) are not those of rank 0 (%s): memory or network are "
         "faulty; these weights are not saved, --resume goes on from the last checkpoint",
         (long long)step, odd_one, comm_host(comm, odd_one), comm_host(comm, 0));
    comm_all_know(comm, error);
    return false;
}

// Fails when the ranks' checksums of their weights differ.
static inline bool comm_check_replicas(Comm *comm, uint64_t checksum, int64_t step, Error *error) {
    uint64_t *all = NULL;
    bool ok = comm_gather_u64(comm, checksum, &all, error);
    for (int r = 1; ok && r < comm->num_ranks; r++) {
        ok = all[r] == all[0] || comm_fail_replicas(comm, r, step, error);
    }
    free(all);
    return ok;
}

#endif // LLMC_FINDINGS_H
