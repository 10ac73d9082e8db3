// Several processes that save checkpoints together: one leads, and forks the other processes, which pipes join.
#ifndef CHECKPOINT_GROUP_H
#define CHECKPOINT_GROUP_H

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dev/test/files/checkpoint_run.h"
#include "dev/test/temp_dir.h"

enum { GROUP_MAX = 8 };

typedef struct {
    Run *run;
    const char *dir;
    int size;                                                   // processes, this one included
    int rank;                                                   // 0: this is the leader
    pid_t pids[GROUP_MAX];                                      // of the followers: [1..size)
    int commands[GROUP_MAX], replies[GROUP_MAX];                // the leader's ends of the pipes
    void (*at_start)(int rank, void *context), *at_start_state; // called in each follower before it does anything
} Group;

typedef struct {
    int64_t step, generation;
} GroupCommand;

typedef struct {
    bool ok;
    CheckpointSums sums;
} GroupReply;

// This rank's pieces of all arrays, the last first: pieces of a length that divides nothing, dealt out like cards.
static inline bool group_write_pieces(const Group *group, CheckpointWriter *w, Error *error) {
    int64_t n = gpt2_num_params(&group->run->config), piece = n / 13 + 1;
    for (int a = CHECKPOINT_ARRAYS - 1; a >= 0; a--) {
        for (int64_t j = n / piece; j >= 0; j--) {
            if ((j * 7 + a) % group->size != group->rank) { continue; }
            if (!run_write_piece(group->run, w, a, j * piece, min_i64((j + 1) * piece, n), error)) { return false; }
        }
    }
    return checkpoint_write_flush(w, error);
}

static inline bool group_begin(const Group *group, CheckpointWriter *w, GroupCommand what, Error *error) {
    run_fill(group->run, what.generation);
    return run_write_begin(group->run, w, group->dir, what.step, group->rank == 0, error);
}

// A follower: saves its part whenever it is told to, until the leader has gone.
static inline void group_follow(const Group *group, int command, int reply) {
    for (GroupCommand what; read(command, &what, sizeof(what)) == (ssize_t)sizeof(what);) {
        static CheckpointWriter w;
        GroupReply answer;
        Error error;
        memset(&answer, 0, sizeof(answer));
        answer.ok = group_begin(group, &w, what, &error) && group_write_pieces(group, &w, &error);
        answer.sums = w.sums;
        if (!answer.ok) { checkpoint_write_close(&w); }
        if (write(reply, &answer, sizeof(answer)) != (ssize_t)sizeof(answer)) { break; }
    }
    _exit(0);
}

static inline void group_fork(Group *group, int rank) {
    int command[2], reply[2];
    temp_must(pipe(command) == 0 && pipe(reply) == 0, "pipe");
    fflush(stdout);
    group->pids[rank] = fork();
    if (group->pids[rank] == 0) {
        for (int i = 1; i < rank; i++) { close(group->commands[i]), close(group->replies[i]); }
        close(command[1]), close(reply[0]);
        group->rank = rank;
        if (group->at_start != NULL) { group->at_start(rank, group->at_start_state); }
        group_follow(group, command[0], reply[1]);
    }
    close(command[0]), close(reply[1]);
    group->commands[rank] = command[1], group->replies[rank] = reply[0];
}

// Forks the followers; their memory is what this process's is now. at_start, unless NULL, is called in each.
static inline void group_open(Group *group, Run *run, const char *dir, int size, void (*at_start)(int, void *),
                              void *state) {
    memset(group, 0, sizeof(*group));
    group->run = run;
    group->dir = dir;
    group->size = size;
    group->at_start = at_start;
    group->at_start_state = state;
    signal(SIGPIPE, SIG_IGN);
    for (int rank = 1; rank < size; rank++) { group_fork(group, rank); }
}

static inline void group_close(Group *group) {
    for (int i = 1; i < group->size; i++) { close(group->commands[i]), close(group->replies[i]); }
    for (int i = 1; i < group->size; i++) { waitpid(group->pids[i], NULL, 0); }
}

// Adds the followers' sums to the leader's; false if one of them has failed or is gone.
static inline bool group_collect(const Group *group, CheckpointSums *sums) {
    bool ok = true;
    for (int rank = 1; rank < group->size; rank++) {
        GroupReply answer;
        if (read(group->replies[rank], &answer, sizeof(answer)) != (ssize_t)sizeof(answer) || !answer.ok) {
            ok = false;
            continue;
        }
        for (int a = 0; a < CHECKPOINT_ARRAYS; a++) { sums->sums[a] += answer.sums.sums[a]; }
    }
    return ok;
}

// For the leader: saves a checkpoint of this generation together with the other processes.
static inline bool group_save(const Group *group, int64_t step, int64_t generation, Error *error) {
    static CheckpointWriter w;
    GroupCommand what = {step, generation};
    if (!group_begin(group, &w, what, error)) { return false; }
    bool told = true;
    for (int i = 1; i < group->size; i++) {
        told = write(group->commands[i], &what, sizeof(what)) == (ssize_t)sizeof(what) && told;
    }
    bool ok = group_write_pieces(group, &w, error);
    CheckpointSums all = w.sums;
    bool others = group_collect(group, &all);
    if (ok && !(told && others)) { ok = fail(error, "a follower has failed"); }
    ok = ok && checkpoint_write_commit(&w, &all, error);
    if (!ok) { checkpoint_write_close(&w); }
    return ok;
}

#endif // CHECKPOINT_GROUP_H
