// What the ranks find out together about their machines, GPUs and weights: who is alike, and what any of them found.
// For all ranks at once. With one rank there is nothing to exchange.
#ifndef LLMC_FINDINGS_H
#define LLMC_FINDINGS_H

#include "llmc/ranks/ranks.h"

#define FINDING_BYTES 160

// All ranks have this error. comm_fail then tells nobody.
static inline void comm_all_know(Comm *comm, const Error *error) {
    snprintf(comm->known, sizeof(comm->known), "%.*s", COMM_TEXT_BYTES - 1, error->text);
}

static inline bool comm_is_broken(const Comm *comm) { return comm->broken; }

// comm_check_facts for facts in one text: name NUL value NUL name ...
static inline bool comm_check_facts_text(Comm *comm, const char *text, size_t bytes, Error *error) {
    const CommFacts facts = {(char *)text, bytes, bytes, false};
    return comm_check_facts(comm, &facts, error);
}

// For the watch: this rank got further, to "step 12".
static inline void comm_progress_to(Comm *comm, const char *what, int64_t number) {
    char phase[64];
    if (comm->num_ranks == 1) { return; }
    snprintf(phase, sizeof(phase), "%s %lld", what, (long long)number);
    comm_progress(comm, phase);
}

// The number of machines that the ranks are on.
static inline int comm_num_machines(const Comm *comm) {
    int machines = 0;
    for (int r = 0; r < comm->num_ranks; r++) {
        bool known = false;
        for (int before = 0; before < r && !known; before++) {
            known = strcmp(comm_host(comm, before), comm_host(comm, r)) == 0;
        }
        if (!known) { machines++; }
    }
    return machines;
}

// One text of each rank, FINDING_BYTES apart. The caller frees *texts.
static inline bool comm_gather_texts(Comm *comm, const char *mine, char **texts, Error *error) {
    char text[FINDING_BYTES];
    memset(text, 0, sizeof(text));
    snprintf(text, sizeof(text), "%s", mine);
    *texts = (char *)malloc((size_t)comm->num_ranks * FINDING_BYTES);
    if (*texts == NULL) { return fail(error, "out of memory for the words of %d ranks", comm->num_ranks); }
    return comm_all_gather(comm, text, *texts, FINDING_BYTES, error);
}

// A rank found something in its own part. *found becomes whether any did, place the words of the first of them.
static inline bool comm_share_finding(Comm *comm, bool *found, char *place, size_t size, Error *error) {
    char *texts;
    if (comm->num_ranks == 1) { return true; }
    bool ok = comm_gather_texts(comm, *found ? place : "", &texts, error);
    *found = false;
    for (int r = 0; ok && r < comm->num_ranks && !*found; r++) {
        const char *text = texts + (int64_t)r * FINDING_BYTES;
        *found = text[0] != '\0';
        if (*found) { snprintf(place, size, "%s on rank %d (%s)", text, r, comm_host(comm, r)); }
    }
    free(texts);
    return ok;
}

// Fails when two ranks have equal texts. A text names what each rank should have for itself.
static inline bool comm_check_unlike(Comm *comm, const char *mine, const char *what, const char *remedy, Error *error) {
    char *texts;
    if (comm->num_ranks == 1) { return true; }
    bool ok = comm_gather_texts(comm, mine, &texts, error);
    for (int b = 1; ok && b < comm->num_ranks; b++) {
        for (int a = 0; ok && a < b; a++) {
            if (strcmp(texts + (int64_t)a * FINDING_BYTES, texts + (int64_t)b * FINDING_BYTES) != 0) { continue; }
            ok = fail(error, "ranks %d and %d (%s) have the same %s; %s", a, b, comm_host(comm, a), what, remedy);
            comm_all_know(comm, error);
        }
    }
    free(texts);
    return ok;
}

// Describes that the weights of a rank are not those of rank 0 after step `step`. All ranks know.
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
    int64_t ranks = comm->num_ranks;
    uint64_t *all = (uint64_t *)malloc((size_t)ranks * sizeof(uint64_t));
    if (all == NULL) { return fail(error, "out of memory for the checksums of %lld ranks", (long long)ranks); }
    bool ok = comm_all_gather(comm, &checksum, all, (int64_t)sizeof(checksum), error);
    for (int r = 1; ok && r < ranks; r++) { ok = all[r] == all[0] || comm_fail_replicas(comm, r, step, error); }
    free(all);
    return ok;
}

#endif // LLMC_FINDINGS_H
