// Death at any moment of a save, a prune or a cleaning: before every system call that changes the disk, also twice in a
// row, of one process and of any of several that save together. A quick run takes every third moment of the first
// death.
#include <fcntl.h>

#include "dev/test/refused.h"
#include "dev/test/temp_dir.h"

static int calls_left = -1; // system calls until this process dies; negative: it lives

static void crash_point(void) {
    if (calls_left == 0) { _exit(99); } // as after kill -9: nothing is cleaned up, what was written stays
    if (calls_left > 0) { calls_left--; }
}

// The headers under test reach the calls that change the disk through these macros: each is a moment to die before it.
#define write(fd, data, bytes) (crash_point(), write(fd, data, bytes))
#define pwrite(fd, data, bytes, offset) (crash_point(), pwrite(fd, data, bytes, offset))
#define rename(from, to) (crash_point(), rename(from, to))
#define unlink(path) (crash_point(), unlink(path))
#define syscall(...) (crash_point(), syscall(__VA_ARGS__))
#include "dev/test/files/checkpoint_group.h"
#undef syscall
#undef write
#undef pwrite
#undef rename
#undef unlink

static Run run;

typedef enum { SAVE_OVER, SAVE_NEXT, PRUNE, CLEAN } Action;
static const char *const action_names[] = {"overwrite", "next save", "prune", "clean"};

static void act(Run *run, const char *dir, Action action, int64_t generation) {
    bool ok = true;
    switch (action) {
    case SAVE_OVER: ok = run_save(run, dir, 1, generation, &error); break;
    case SAVE_NEXT: ok = run_save(run, dir, 2, generation, &error); break;
    case PRUNE: checkpoint_prune(dir, 1, 1, 0); break;
    case CLEAN: ok = checkpoint_clean(dir, &error); break;
    }
    if (!ok) { _exit(1); }
}

// Performs an action in a process that dies before system call number `call`; false if it came to its end alive.
static bool dies(Test *t, Run *run, const char *dir, Action action, int64_t generation, int call) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        calls_left = call;
        act(run, dir, action, generation);
        _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    bool died = WIFEXITED(status) && WEXITSTATUS(status) == 99;
    CHECK(t, died || (WIFEXITED(status) && WEXITSTATUS(status) == 0), "%s, call %d: status %d", action_names[action],
          call, status);
    return died;
}

// What must hold at every moment: the newest checkpoint that verifies loads and is whole, and is one of the generations
// lowest..highest.
static void check_usable(Test *t, Run *run, const char *dir, int64_t lowest, int64_t highest, const char *when) {
    static CheckpointFound found;
    bool usable = checkpoint_newest(&found, dir, INT64_MAX, CHECKPOINT_AS_MODEL, &error);
    if (!CHECK(t, usable, "%s: nothing usable: %s", when, error.text)) { return; }
    int64_t generation = run_load(run, dir, found.step, &error);
    CHECK(t, generation >= lowest && generation <= highest, "%s: generation %lld of step %lld, expected %lld to %lld",
          when, (long long)generation, (long long)found.step, (long long)lowest, (long long)highest);
}

// What must hold when the folder is cleaned: that, and no files but whole checkpoints.
static void check_cleaned(Test *t, Run *run, const char *dir, int64_t lowest, int64_t highest, const char *when) {
    int64_t steps[4];
    act(run, dir, CLEAN, 0);
    check_usable(t, run, dir, lowest, highest, when);
    int pairs = list_steps(dir, steps, 4), files = count_files(dir);
    CHECK(t, files == 2 * pairs, "%s: %d files for %d checkpoints", when, files, pairs);
}

// A folder with the pair of step 1 (generation 1), for prune also with step 0.
static void make_folder(Run *run, const char *dir, Action action) {
    if (action == PRUNE) { temp_must(run_save(run, dir, 0, 0, &error), error.text); }
    temp_must(run_save(run, dir, 1, 1, &error), error.text);
}

// Dies in `first` before every call, then in `second` before every call, then cleans.
static void die_twice(Test *t, Action first, Action second) {
    const bool is_quick = test_is_quick() && first <= SAVE_NEXT; // a prune has few moments
    int deaths = 0;
    run_init(&run, tiny_config());
    for (int i = 0, first_died = 1; first_died && t->failures == 0; i += is_quick ? 3 : 1) {
        for (int j = 0, second_died = 1; second_died && t->failures == 0; j++) {
            const char *dir = test_new_folder(t);
            make_folder(&run, dir, first);
            first_died = dies(t, &run, dir, first, 2, i);
            const char *when = format("%s dead at call %d", action_names[first], i);
            check_usable(t, &run, dir, first_died ? 1 : 1 + (first <= SAVE_NEXT), 2, when);
            second_died = dies(t, &run, dir, second, 3, j);
            when = format("%s dead at call %d, %s at %d", action_names[first], i, action_names[second], j);
            check_usable(t, &run, dir, second_died || second >= PRUNE ? 1 : 3, 3, when);
            check_cleaned(t, &run, dir, second_died || second >= PRUNE ? 1 : 3, 3, when);
            deaths += first_died + second_died;
        }
    }
    CHECK(t, deaths > 5, "only %d deaths: the system calls are not seen", deaths);
}

TEST(test_overwrite_twice) { die_twice(t, SAVE_OVER, SAVE_OVER); }
TEST(test_overwrite_then_clean) { die_twice(t, SAVE_OVER, CLEAN); }
TEST(test_overwrite_then_next) { die_twice(t, SAVE_OVER, SAVE_NEXT); }
TEST(test_next_twice) { die_twice(t, SAVE_NEXT, SAVE_NEXT); }
TEST(test_next_then_clean) { die_twice(t, SAVE_NEXT, CLEAN); }
TEST(test_prune_then_clean) { die_twice(t, PRUNE, CLEAN); }
TEST(test_prune_then_overwrite) { die_twice(t, PRUNE, SAVE_OVER); }

// ---- Several processes ----

enum { GROUP_SIZE = 3, LEADER_DIED = 99, SAVED = 0, NOT_SAVED = 2 };

// Waits until every process that inherited the other end of this pipe has ended.
static void wait_for_all(int life) {
    char byte;
    while (read(life, &byte, 1) > 0) {}
    close(life);
}

typedef struct {
    int victim, call; // this rank dies before this system call
} Death;

static Death death; // of the next save

static void arm(int rank) { calls_left = rank == death.victim ? death.call : -1; }

// A group saves generation 2, and one of its processes dies. Returns how the leader ended.
static int save_with_a_death(Run *run, const char *dir, int64_t step) {
    int life[2], status = 0;
    temp_must(pipe(life) == 0, "pipe");
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        arm(0);
        bool ok = group_save(run, dir, GROUP_SIZE, step, 2, arm, &error);
        calls_left = -1;
        _exit(ok ? SAVED : NOT_SAVED);
    }
    close(life[1]);
    waitpid(child, &status, 0);
    wait_for_all(life[0]); // followers may outlive their leader
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int die_once(Test *t, Run *run, int64_t step) {
    const char *dir = test_new_folder(t);
    OK(t, run_save(run, dir, 1, 1, &error));
    int end = save_with_a_death(run, dir, step);
    const char *when = format("step %d, rank %d dead at call %d", (int)step, death.victim, death.call);
    CHECK(t, end == SAVED || end == (death.victim == 0 ? LEADER_DIED : NOT_SAVED), "%s: the leader ended with %d", when,
          end);
    check_usable(t, run, dir, end == SAVED ? 2 : 1, end == NOT_SAVED ? 1 : 2, when);
    if (end == NOT_SAVED) { CHECK(t, count_files(dir) == 2, "%s: the leader left something", when); }
    check_cleaned(t, run, dir, end == SAVED ? 2 : 1, end == NOT_SAVED ? 1 : 2, when);
    return end;
}

// Step 1: over the old checkpoint; 2: beside it.
TEST(test_one_of_a_group_dies) {
    run_init(&run, tiny_config());
    for (int64_t step = 1; step <= 2; step++) {
        for (int victim = 0; victim < GROUP_SIZE; victim++) {
            int deaths = 0;
            death.victim = victim, death.call = 0;
            while (t->failures == 0 && die_once(t, &run, step) != SAVED) { deaths++, death.call++; }
            CHECK(t, deaths > 5, "rank %d: only %d deaths: the system calls are not seen", victim, deaths);
        }
    }
}
