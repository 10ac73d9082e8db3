// Agreement: what the ranks tell and ask each other, each in one exchange (ranks.h): numbers, whether all are well,
// whether all know the same facts, who found something. All ranks call these functions at once and in one order.
#ifndef LLMC_AGREE_H
#define LLMC_AGREE_H

#include "llmc/base/hash.h"
#include "llmc/ranks/star.h"

#define FINDING_BYTES 160

// ---- Numbers ----

// Exchanges `mine` (bytes; size is equal on all ranks), and copies what all ranks brought to all (total bytes).
static inline bool comm_copy(Comm *comm, const char *name, int64_t size, const void *mine, int64_t bytes, void *all,
                             int64_t total, Error *error) {
    Text brought;
    bool ok = comm_exchange(comm, name, size, mine, bytes, &brought, error);
    if (ok && (int64_t)brought.used != total) { ok = fail(error, "rank 0 answers %s with something else", name); }
    if (ok && total > 0) { memcpy(all, brought.data, (size_t)total); }
    text_free(&brought);
    return ok;
}

// Fills all with num_ranks times `bytes` bytes, in order of rank.
static inline bool comm_all_gather(Comm *comm, const void *mine, void *all, int64_t bytes, Error *error) {
    return comm_copy(comm, "an all-gather", bytes, mine, bytes, all, comm->num_ranks * bytes, error);
}

// Sends rank 0's bytes to all. `bytes` must be equal everywhere.
static inline bool comm_broadcast(Comm *comm, void *data, int64_t bytes, Error *error) {
    return comm_copy(comm, "a broadcast", bytes, data, comm->rank == 0 ? bytes : 0, data, bytes, error);
}

// Gathers `count` numbers from each rank. The caller frees *all, which is NULL on failure.
static inline bool comm_gather_u64(Comm *comm, const char *name, const uint64_t *mine, int count, uint64_t **all,
                                   Error *error) {
    int64_t bytes = (int64_t)sizeof(uint64_t) * count;
    *all = (uint64_t *)malloc((size_t)(comm->num_ranks * bytes) + 1);
    if (*all == NULL) { return fail(error, "out of memory for the numbers of %d ranks", comm->num_ranks); }
    return comm_copy(comm, name, bytes, mine, bytes, *all, comm->num_ranks * bytes, error);
}

// Makes values[i] the sum over all ranks, modulo 2^64.
static inline bool comm_sum_u64(Comm *comm, uint64_t *values, int count, Error *error) {
    uint64_t *all;
    bool ok = comm_gather_u64(comm, "a sum", values, count, &all, error);
    for (int i = 0; ok && i < count; i++) {
        values[i] = 0;
        for (int r = 0; r < comm->num_ranks; r++) { values[i] += all[r * count + i]; }
    }
    free(all);
    return ok;
}

// Finds out whether `mine` is true on some rank.
static inline bool comm_any(Comm *comm, bool mine, bool *any, Error *error) {
    uint64_t count = mine;
    bool ok = comm_sum_u64(comm, &count, 1, error);
    *any = count > 0;
    return ok;
}

// ---- Texts ----

// Holds the first text of a rank that is not "". text is "" if there is none.
typedef struct {
    int rank, alike; // alike: how many ranks say the same
    char text[COMM_TEXT_BYTES];
} CommFirst;

// Returns the next text of what other ranks have brought, and moves *at behind its final zero. NULL: no text is left.
static inline const char *comm_next_text(const char **at, const char *end) {
    const char *text = *at, *zero = text < end ? (const char *)memchr(text, '\0', (size_t)(end - text)) : NULL;
    if (zero != NULL) { *at = zero + 1; }
    return zero != NULL ? text : NULL;
}

// Finds the first text that is not "" in what the ranks have brought, which must be one text each.
static inline bool comm_find_text(const Comm *comm, const char *name, const Text *all, CommFirst *first, Error *error) {
    const int room = COMM_TEXT_BYTES - (int)sizeof(CommName) - 4; // for the rank's name before it
    const char *at = all->data, *end = at + all->used, *text = at;
    memset(first, 0, sizeof(*first));
    for (int r = 0; r < comm->num_ranks && (text = comm_next_text(&at, end)) != NULL; r++) {
        if (text[0] != '\0' && first->alike == 0) {
            first->rank = r;
            snprintf(first->text, sizeof(first->text), "%.*s", room, text);
        }
        first->alike += text[0] != '\0' && strncmp(first->text, text, (size_t)room) == 0;
    }
    return (text != NULL && at == end) || fail(error, "a rank answers %s with something else", name);
}

// Asks each rank for a text, which may be "".
static inline bool comm_first_text(Comm *comm, const char *name, const char *mine, CommFirst *first, Error *error) {
    Text all;
    bool ok = comm_exchange(comm, name, 0, mine, (int64_t)strlen(mine) + 1, &all, error) &&
              comm_find_text(comm, name, &all, first, error);
    text_free(&all);
    return ok;
}

// Returns true if ok is true on all ranks. Otherwise returns false on all, and *error is everywhere the error of the
// lowest rank that failed, after "rank 3 (host): " unless all say the same.
static inline bool comm_agree(Comm *comm, bool ok, Error *error) {
    CommFirst first;
    if (comm->num_ranks == 1) { return ok; }
    const char *mine = ok ? "" : error->text[0] != '\0' ? error->text : "failed";
    if (!comm_first_text(comm, "an agreement", mine, &first, error)) { return false; }
    if (first.alike == 0) { return true; }
    bool all = first.alike == comm->num_ranks;
    CommName who = comm_name(comm, first.rank);
    fail(error, "%s%s%s", all ? "" : who.text, all ? "" : ": ", first.text);
    comm_all_know(comm, error);
    return false;
}

// Describes the first difference between rank 0's facts [a, a_end) and this rank's [b, b_end) in text.
static inline void comm_compare_facts(const Comm *comm, const char *a, const char *a_end, const char *b,
                                      const char *b_end, char *text, size_t size) {
    const char *zero = comm_host(comm, 0), *other = comm_host(comm, comm->rank), *name = "";
    bool value = false;
    for (; a < a_end && b < b_end && strcmp(a, b) == 0; value = !value) {
        name = a;
        a += strlen(a) + 1, b += strlen(b) + 1;
    }
    if (a >= a_end && b >= b_end) { return; }
    if (value && a < a_end && b < b_end) {
        snprintf(text, size, "%.200s is %.1000s on rank 0 (%s), %.1000s on rank %d (%s)", name, a, zero, b, comm->rank,
                 other);
        return;
    }
    bool here = a < a_end;
    snprintf(text, size, "%.200s is known on rank %d (%s) only: the ranks run different programs", here ? a : b,
             here ? 0 : comm->rank, here ? zero : other);
}

// Compares rank 0's facts ("name NUL value NUL name NUL ...") with those of all ranks. A difference gives one error on
// all ranks, e.g. "--seq-len is 64 on rank 0 (hostA), 32 on rank 2 (hostB)".
static inline bool comm_check_facts(Comm *comm, const char *facts, size_t bytes, Error *error) {
    Text zero;
    CommFirst first;
    char mine[COMM_TEXT_BYTES] = "";
    if (comm->num_ranks == 1) { return true; }
    const char *name = "a comparison of facts";
    bool ok = comm_exchange(comm, name, 0, facts, comm->rank == 0 ? (int64_t)bytes : 0, &zero, error);
    if (ok && zero.used > 0 && zero.data[zero.used - 1] != '\0') {
        ok = fail(error, "rank 0 answers %s with something else", name);
    }
    if (ok) { comm_compare_facts(comm, zero.data, zero.data + zero.used, facts, facts + bytes, mine, sizeof(mine)); }
    text_free(&zero);
    if (!ok || !comm_first_text(comm, name, mine, &first, error)) { return false; }
    if (first.alike == 0) { return true; }
    fail(error, "%s", first.text);
    comm_all_know(comm, error);
    return false;
}

// Shares whether a rank found something in its own part. *found becomes whether any rank did. place becomes the words
// of the first rank that did.
static inline bool comm_share_finding(Comm *comm, bool *found, char *place, size_t size, Error *error) {
    CommFirst first;
    if (comm->num_ranks == 1) { return true; }
    if (!comm_first_text(comm, "a finding", *found ? place : "", &first, error)) { return false; }
    *found = first.alike > 0;
    if (!*found) { return true; }
    snprintf(place, size, "%.*s on rank %d (%s)", FINDING_BYTES, first.text, first.rank, comm_host(comm, first.rank));
    return true;
}

// ---- Machines and weights ----

// Fails when a text differs between two ranks. name: for the message.
static inline bool comm_check_alike(Comm *comm, const char *name, const char *text, Error *error) {
    char facts[256];
    int n = snprintf(facts, sizeof(facts), "%s%c%s", name, '\0', text);
    return comm_check_facts(comm, facts, (size_t)n + 1, error);
}

// Fails when two ranks have equal texts. Each rank's text names something that must be its own.
static inline bool comm_check_unlike(Comm *comm, const char *mine, const char *what, const char *remedy, Error *error) {
    uint64_t *all, hash = hash64(mine, strlen(mine));
    bool ok = comm_gather_u64(comm, "an all-gather", &hash, 1, &all, error);
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
    uint64_t *all;
    bool ok = comm_gather_u64(comm, "an all-gather", &checksum, 1, &all, error);
    for (int r = 1; ok && r < comm->num_ranks; r++) {
        ok = all[r] == all[0] || comm_fail_replicas(comm, r, step, error);
    }
    free(all);
    return ok;
}

#endif // LLMC_AGREE_H
