// Will the disk hold a run? Which checkpoints there are at any time follows from when a run saves and what it keeps;
// counted here, before the first one is written, and again whenever one has been.
#ifndef LLMC_DISK_SPACE_H
#define LLMC_DISK_SPACE_H

#include <sys/statvfs.h>

#include "llmc/base/files.h"

// What a run saves from now on: at each multiple of `every` after `from`, and at `last`.
typedef struct {
    int64_t from, last;
    int64_t every;            // 0: only at the end
    int64_t keep, keep_major; // as checkpoint_prune has them
    const int64_t *existing;  // (num_existing): steps of the checkpoints that it has, newest first, none after `from`
    int num_existing;
    int64_t checkpoint_bytes; // of one, at least 1
    int64_t other_bytes;      // logs and the like, until the end
} DiskRun;

// ---- How many there are ----

// Checkpoints that the run will save.
static inline int64_t disk_saves(const DiskRun *run) {
    if (run->last <= run->from) { return 0; }
    if (run->every == 0) { return 1; }
    return run->last / run->every - run->from / run->every + (run->last % run->every != 0);
}

// The step of the i-th of them, i from 1.
static inline int64_t disk_save_step(const DiskRun *run, int64_t i) {
    return run->every == 0 ? run->last : min_i64((run->from / run->every + i) * run->every, run->last);
}

static inline int64_t disk_common_multiple(int64_t a, int64_t b) {
    int64_t x = a, y = b;
    while (y != 0) {
        int64_t rest = x % y;
        x = y, y = rest;
    }
    return a / x * b;
}

// How many of the first n saves are never removed.
static inline int64_t disk_majors(const DiskRun *run, int64_t n) {
    if (n <= 0 || run->keep_major == 0) { return 0; }
    int64_t step = disk_save_step(run, n), majors = 0;
    bool odd_end = run->every == 0 || step % run->every != 0; // the last save need not be a multiple
    if (run->every > 0) {
        int64_t multiple = disk_common_multiple(run->every, run->keep_major);
        majors = step / multiple - run->from / multiple;
    }
    return majors + (odd_end && step % run->keep_major == 0);
}

// Checkpoints on the disk after n saves and the removals that follow each.
static inline int64_t disk_kept(const DiskRun *run, int64_t n) {
    int64_t all = run->num_existing + n;
    if (run->keep == 0 || n == 0) { return all; }
    int64_t kept = min_i64(run->keep, all) + disk_majors(run, n - run->keep);
    for (int64_t i = max_i64(0, run->keep - n); i < run->num_existing && run->keep_major > 0; i++) {
        kept += run->existing[i] % run->keep_major == 0;
    }
    return kept;
}

// The most that there are at a time until n saves are done: each is complete before an older one goes.
static inline int64_t disk_most(const DiskRun *run, int64_t n) {
    return n == 0 ? run->num_existing : max_i64(run->num_existing, disk_kept(run, n - 1)) + 1;
}

// How many saves are possible with `most` at a time.
static inline int64_t disk_possible_saves(const DiskRun *run, int64_t most) {
    int64_t possible = 0, too_many = disk_saves(run) + 1;
    while (too_many - possible > 1) {
        int64_t middle = possible + (too_many - possible) / 2;
        if (disk_most(run, middle) <= most) {
            possible = middle;
        } else {
            too_many = middle;
        }
    }
    return possible;
}

// The fewest at a time with which the run could begin: what --keep asks for, else the last good one, and the one being
// written.
static inline int64_t disk_least(const DiskRun *run) {
    int64_t all = run->num_existing + disk_saves(run);
    return max_i64(min_i64(all, run->keep > 0 ? run->keep + 1 : 2), run->num_existing + (disk_saves(run) > 0));
}

// ---- How many bytes ----

// Bytes that must be free so that there can be `most` at a time.
static inline int64_t disk_bytes(const DiskRun *run, int64_t most) {
    return (most - run->num_existing) * run->checkpoint_bytes + run->other_bytes;
}

// How many there can be at a time with so many bytes free.
static inline int64_t disk_room(const DiskRun *run, int64_t free_bytes) {
    return run->num_existing + max_i64(0, free_bytes - run->other_bytes) / run->checkpoint_bytes;
}

// The bytes that this process may still write to the disk of a folder, which need not exist yet. -1: unknown.
static inline int64_t disk_free_bytes(const char *folder) {
    char path[MAX_PATH_BYTES], parent[MAX_PATH_BYTES];
    struct statvfs disk;
    path_copy(path, folder, strlen(folder));
    while (statvfs(path, &disk) != 0) {
        path_parent(parent, path);
        if (strcmp(parent, path) == 0) { return -1; }
        path_copy(path, parent, strlen(parent));
    }
    if (disk.f_blocks == 0) { return -1; } // a file system that does not tell
    double bytes = (double)disk.f_bavail * (double)disk.f_frsize;
    return bytes < 9e18 ? (int64_t)bytes : INT64_MAX;
}

// ---- What is said ----

// Fails when the run could not even begin. name: of its folder.
static inline bool disk_check(const DiskRun *run, const char *name, int64_t free_bytes, Error *error) {
    char needed[32], there[32], each[32], what[160];
    int64_t least = disk_least(run), more = least - run->num_existing;
    if (more == 0 || free_bytes < 0 || free_bytes >= disk_bytes(run, least)) { return true; }
    format_bytes(needed, sizeof(needed), disk_bytes(run, least));
    format_bytes(there, sizeof(there), free_bytes);
    format_bytes(each, sizeof(each), run->checkpoint_bytes);
    if (more == 1) {
        snprintf(what, sizeof(what), "a checkpoint of %s", each);
    } else if (run->keep > 0) {
        snprintf(what, sizeof(what), "%lld%s checkpoints of %s, for --keep %lld and the one being written",
                 (long long)more, run->num_existing > 0 ? " more" : "", each, (long long)run->keep);
    } else {
        snprintf(what, sizeof(what), "2 checkpoints of %s, the last good one and the one being written", each);
    }
    return fail(error,
                "--out-dir (-o): %.4000s: not enough space: %s needed (%s, and logs), %s free; free some space, or "
                "choose another folder%s",
                name, needed, what, there, run->keep > 1 ? " or a smaller --keep" : "");
}

typedef enum { DISK_LASTS, DISK_WILL_FILL, DISK_IS_FULL } DiskState;

// What would make a disk last on which so many checkpoints have room.
static inline void disk_remedy(char *text, size_t size, const DiskRun *run, int64_t room) {
    if (run->keep > 0) {
        snprintf(text, size, "free some space%s", run->keep_major > 0 ? ", or give a larger --keep-major or 0" : "");
    } else {
        snprintf(text, size, "free some space, or %s--keep %lld",
                 run->from > 0 ? "stop the run and --resume with " : "give ",
                 (long long)max_i64(1, min_i64(room - 1, 5)));
    }
}

// How long will the disk last? text: one line, for all but DISK_LASTS.
static inline DiskState disk_outlook(const DiskRun *run, const char *name, int64_t free_bytes, char *text,
                                     size_t size) {
    char there[32], needed[32], remedy[128];
    int64_t saves = disk_saves(run), room = disk_room(run, free_bytes), possible = disk_possible_saves(run, room);
    if (free_bytes < 0 || possible == saves) { return DISK_LASTS; }
    format_bytes(there, sizeof(there), free_bytes);
    disk_remedy(remedy, sizeof(remedy), run, room);
    if (possible == 0) {
        format_bytes(needed, sizeof(needed), disk_bytes(run, run->num_existing + 1));
        snprintf(text, size,
                 "the disk of %.4000s has %s free, the next checkpoint (step %lld) and the logs need %s; %s", name,
                 there, (long long)disk_save_step(run, 1), needed, remedy);
        return DISK_IS_FULL;
    }
    format_bytes(needed, sizeof(needed), disk_bytes(run, disk_most(run, saves)));
    snprintf(text, size,
             "the disk of %.4000s has %s free, the rest of the run needs %s: it lasts until step %lld of %lld; %s",
             name, there, needed, (long long)disk_save_step(run, possible), (long long)run->last, remedy);
    return DISK_WILL_FILL;
}

#endif // LLMC_DISK_SPACE_H
