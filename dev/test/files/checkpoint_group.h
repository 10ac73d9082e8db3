// Several processes that save a checkpoint together: one leads, and forks the other processes.
#ifndef CHECKPOINT_GROUP_H
#define CHECKPOINT_GROUP_H

#include <sys/wait.h>
#include <unistd.h>

#include "dev/test/files/checkpoint_run.h"
#include "dev/test/refused.h"
#include "dev/test/temp_dir.h"

typedef struct {
    bool ok;
    CheckpointSums sums;
} GroupReply;

// A rank's pieces of all arrays, the last first: pieces of a length that divides nothing, dealt out like cards.
static inline bool group_write_pieces(const Run *run, CheckpointWriter *w, int rank, int size, Error *error) {
    int64_t n = model_num_params(&run->config), piece = n / 13 + 1;
    for (int a = CHECKPOINT_ARRAYS - 1; a >= 0; a--) {
        for (int64_t j = n / piece; j >= 0; j--) {
            if ((j * 7 + a) % size != rank) { continue; }
            if (!run_write_piece(run, w, a, j * piece, min_i64((j + 1) * piece, n), error)) { return false; }
        }
    }
    return checkpoint_write_flush(w, error);
}

// A follower saves its part and tells the leader.
static inline void group_follow(const Run *run, const char *dir, int64_t step, int rank, int size, int reply) {
    static CheckpointWriter w;
    GroupReply answer;
    memset(&answer, 0, sizeof(answer));
    answer.ok = run_write_begin(run, &w, dir, step, false, &error) && group_write_pieces(run, &w, rank, size, &error);
    answer.sums = w.sums;
    _exit(write(reply, &answer, sizeof(answer)) == (ssize_t)sizeof(answer) ? 0 : 1);
}

// Saves a checkpoint of this generation by `size` processes. at_start, unless NULL, is called in each follower first.
static inline bool group_save(Run *run, const char *dir, int size, int64_t step, int64_t generation,
                              void (*at_start)(int rank), Error *error) {
    static CheckpointWriter w;
    int reply[2], saved = 1;
    run_fill(run, generation);
    if (!run_write_begin(run, &w, dir, step, true, error)) { return false; }
    temp_must(pipe(reply) == 0, "pipe");
    fflush(stdout);
    for (int rank = 1; rank < size; rank++) {
        if (fork() != 0) { continue; }
        if (at_start != NULL) { at_start(rank); }
        group_follow(run, dir, step, rank, size, reply[1]);
    }
    close(reply[1]);
    bool ok = group_write_pieces(run, &w, 0, size, error);
    CheckpointSums all = w.sums;
    for (GroupReply answer; read(reply[0], &answer, sizeof(answer)) == (ssize_t)sizeof(answer);) { // until all ended
        saved += answer.ok;
        for (int a = 0; a < CHECKPOINT_ARRAYS; a++) { all.sums[a] += answer.sums.sums[a]; }
    }
    close(reply[0]);
    while (wait(NULL) > 0) {}
    ok = ok && (saved == size || fail(error, "a follower has failed")) && checkpoint_write_commit(&w, &all, error);
    if (!ok) { checkpoint_write_close(&w); }
    return ok;
}

#endif // CHECKPOINT_GROUP_H
