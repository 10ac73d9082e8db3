// Which checkpoints of a run stay, and will the disk hold them? Steps, --keep and --keep-major decide how many there
// are at a time. They are counted before the first one is written, and again after each save.
#ifndef LLMC_DISK_SPACE_H
#define LLMC_DISK_SPACE_H

#include "llmc/base/files.h"

// Tells whether checkpoint i of `steps`, newest first, stays: one of the `keep` newest (0: all), a step divisible by
// keep_major (0: none), or good_step, which takes the place of one of the newest, or stays beside them if keep is 1.
static inline bool checkpoint_stays(const int64_t *steps, int i, int64_t keep, int64_t keep_major, int64_t good_step) {
    bool apart = good_step >= 0 && good_step < steps[0];
    int64_t place = i + (apart && keep > 1) - (apart && steps[i] < good_step);
    return keep == 0 || place < keep || steps[i] == good_step || (keep_major > 0 && steps[i] % keep_major == 0);
}

// Describes a run: it saves at each multiple of `every` after `from`, and at `last`.
typedef struct {
    int64_t from, last;
    int64_t every;            // 0: only at the end
    int64_t keep, keep_major; // as checkpoint_stays takes them, and good_step. The run begins with a prune
    int64_t good_step;
    const int64_t *existing; // (num_existing): steps of the checkpoints that it has, newest first, none after `from`
    int num_existing;
    int64_t checkpoint_bytes; // of one, at least 1
    int64_t other_bytes;      // logs and the like, until the end
} DiskRun;

// ---- How many there are ----

typedef struct {
    int64_t saves; // that are possible
    int64_t step;  // of the last one
    int64_t most;  // checkpoints at a time until then
} DiskCourse;

// Returns the step of the first save after `step`, 0 if there is none.
static inline int64_t disk_next_save(const DiskRun *run, int64_t step) {
    if (step >= run->last) { return 0; }
    return run->every == 0 ? run->last : min_i64((step / run->every + 1) * run->every, run->last);
}

static inline bool disk_is_removed(const DiskRun *run, int64_t step) {
    return run->keep_major == 0 || step % run->keep_major != 0;
}

// Tells whether an existing checkpoint outlives the prune at the beginning of the run.
static inline bool disk_stays(const DiskRun *run, int64_t i) {
    return checkpoint_stays(run->existing, (int)i, run->keep, run->keep_major, run->good_step);
}

// Returns the checkpoints that the prune at the beginning leaves.
static inline int64_t disk_there(const DiskRun *run) {
    int64_t there = 0;
    for (int i = 0; i < run->num_existing; i++) { there += disk_stays(run, i); }
    return there;
}

// Follows the run save by save, as long as `room` checkpoints at a time suffice. A new checkpoint is complete before an
// old one goes.
static inline DiskCourse disk_follow(const DiskRun *run, int64_t room) {
    int64_t there = disk_there(run), oldest = run->from; // oldest: the save that leaves the `keep` newest ones
    DiskCourse course = {0, run->from, there};
    for (int64_t step = disk_next_save(run, run->from); step > 0 && there < room; step = disk_next_save(run, step)) {
        course.saves++;
        course.step = step;
        course.most = max_i64(course.most, ++there);
        if (run->keep == 0) { continue; }
        int64_t first = run->keep - course.saves; // existing[first] leaves now; the first save removes all behind it
        int64_t end = min_i64(run->num_existing, course.saves == 1 ? INT64_MAX : first + 1);
        for (int64_t i = max_i64(0, first); i < end; i++) {
            there -= disk_stays(run, i) && disk_is_removed(run, run->existing[i]);
        }
        if (first < 0) {
            oldest = disk_next_save(run, oldest);
            there -= disk_is_removed(run, oldest);
        }
    }
    return course;
}

// Returns the fewest checkpoints at a time with which the run can begin: those of --keep, or else the last good one,
// and the one being written.
static inline int64_t disk_least(const DiskRun *run) {
    int64_t saves = disk_follow(run, INT64_MAX).saves, there = disk_there(run), all = there + saves;
    return max_i64(min_i64(all, run->keep > 0 ? run->keep + 1 : 2), there + (saves > 0));
}

// Returns the bytes that must be free for `most` checkpoints at a time.
static inline int64_t disk_bytes(const DiskRun *run, int64_t most) {
    return (most - run->num_existing) * run->checkpoint_bytes + run->other_bytes;
}

// Returns the checkpoints that there can be at a time with so many bytes free. Logs may need the space of some.
static inline int64_t disk_room(const DiskRun *run, int64_t free_bytes) {
    int64_t spare = free_bytes - run->other_bytes, each = run->checkpoint_bytes;
    return run->num_existing + (spare >= 0 ? spare / each : -ceil_div_i64(-spare, each));
}

// ---- Messages ----

// Writes what makes a disk last that has room for `room` checkpoints: the largest --keep up to 5, with --keep-major 0
// if nothing else helps. how: what the person does to give it.
static inline void disk_remedy(char *text, size_t size, const DiskRun *run, int64_t room, const char *how) {
    DiskRun other = *run;
    for (int drop = 0; drop <= (run->keep_major > 0); drop++) {
        if (drop == 1) { other.keep_major = 0; }
        for (other.keep = run->keep > 0 ? run->keep : 5; other.keep > 0; other.keep--) {
            if (disk_follow(&other, INT64_MAX).most > room) { continue; }
            snprintf(text, size, "free some space, or %s--keep %lld%s", how, (long long)other.keep,
                     drop == 0 ? "" : " --keep-major 0");
            return;
        }
    }
    snprintf(text, size, "free some space");
}

// Fails when the run cannot even begin. name: of its folder.
static inline bool disk_check(const DiskRun *run, const char *name, int64_t free_bytes, Error *error) {
    char needed[32], there[32], each[32], what[160], remedy[128];
    int64_t least = disk_least(run), more = least - run->num_existing;
    if (disk_next_save(run, run->from) == 0 || free_bytes < 0 || free_bytes >= disk_bytes(run, least)) { return true; }
    format_bytes(needed, sizeof(needed), disk_bytes(run, least));
    format_bytes(there, sizeof(there), free_bytes);
    format_bytes(each, sizeof(each), run->checkpoint_bytes);
    if (more <= 0) { // --keep makes room for it
        snprintf(what, sizeof(what), "logs");
    } else if (more == 1) {
        snprintf(what, sizeof(what), "a checkpoint of %s, and logs", each);
    } else if (run->keep > 0) {
        snprintf(what, sizeof(what), "%lld%s checkpoints of %s, for --keep %lld and the one being written, and logs",
                 (long long)more, run->num_existing > 0 ? " more" : "", each, (long long)run->keep);
    } else {
        snprintf(what, sizeof(what), "2 checkpoints of %s, the last good one and the one being written, and logs",
                 each);
    }
    disk_remedy(remedy, sizeof(remedy), run, disk_room(run, free_bytes), "give ");
    return fail(error, "--out-dir (-o): %.4000s: not enough space: %s needed (%s), %s free; %s%s", name, needed, what,
                there, remedy, run->from > 0 ? "" : ", or choose another folder");
}

typedef enum { DISK_LASTS, DISK_WILL_FILL, DISK_IS_FULL } DiskState;

// Says how long the disk will last. Writes one line into text, unless it is DISK_LASTS.
static inline DiskState disk_outlook(const DiskRun *run, const char *name, int64_t free_bytes, char *text,
                                     size_t size) {
    char there[32], needed[32], remedy[128], rest[160];
    int64_t room = disk_room(run, free_bytes);
    DiskCourse all = disk_follow(run, INT64_MAX), possible = disk_follow(run, room);
    if (free_bytes < 0 || possible.saves == all.saves) { return DISK_LASTS; }
    bool full = possible.saves == 0;
    format_bytes(there, sizeof(there), free_bytes);
    format_bytes(needed, sizeof(needed), disk_bytes(run, full ? run->num_existing + 1 : all.most));
    disk_remedy(remedy, sizeof(remedy), run, room, run->from > 0 ? "stop the run and --resume with " : "give ");
    if (full) {
        snprintf(rest, sizeof(rest), "the next checkpoint (step %lld) and the logs need %s",
                 (long long)disk_next_save(run, run->from), needed);
    } else {
        snprintf(rest, sizeof(rest), "the rest of the run needs %s: it lasts until step %lld of %lld", needed,
                 (long long)possible.step, (long long)run->last);
    }
    snprintf(text, size, "the disk of %.4000s has %s free, %s; %s", name, there, rest, remedy);
    return full ? DISK_IS_FULL : DISK_WILL_FILL;
}

#endif // LLMC_DISK_SPACE_H
