// Death at any moment of a save, a prune or a cleaning: before every system call that changes the disk, also twice in a
// row, of one writer and of several. A quick run takes every third moment of the first death.
#include <fcntl.h>
#include <sys/wait.h>

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
#include "dev/test/files/checkpoint_run.h"

static Run run;

typedef enum { SAVE_OVER, SAVE_NEXT, PRUNE, CLEAN } Action;
static const char *const action_names[] = {"overwrite", "next save", "prune", "clean"};

static void act(const char *dir, Action action, int writers, int64_t generation) {
    bool ok = true;
    run_fill(&run, generation);
    switch (action) {
    case SAVE_OVER: ok = run_write(&run, dir, writers, 1, &error); break;
    case SAVE_NEXT: ok = run_write(&run, dir, writers, 2, &error); break;
    case PRUNE: checkpoint_prune(dir, 1, 1, 0); break;
    case CLEAN: ok = checkpoint_clean(dir, &error); break;
    }
    if (!ok) { _exit(1); }
}

// Performs an action in a process that dies before system call number `call`; false if it came to its end alive.
static bool dies(Test *t, const char *dir, Action action, int writers, int64_t generation, int call) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        calls_left = call;
        act(dir, action, writers, generation);
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
// lowest..3.
static void check_usable(Test *t, const char *dir, int64_t lowest, const char *when) {
    static CheckpointFound found;
    bool usable = checkpoint_newest(&found, dir, INT64_MAX, CHECKPOINT_AS_MODEL, &error);
    if (!CHECK(t, usable, "%s: nothing usable: %s", when, error.text)) { return; }
    int64_t generation = run_load(&run, dir, found.step, &error);
    CHECK(t, generation >= lowest && generation <= 3, "%s: generation %lld of step %lld, expected %lld to 3", when,
          (long long)generation, (long long)found.step, (long long)lowest);
}

// Dies in `first` before every call, then in `second` before every call, then cleans: no files stay but whole
// checkpoints.
static void die_twice(Test *t, Action first, Action second, int writers) {
    const bool is_quick = test_is_quick() && first <= SAVE_NEXT; // a prune has few moments
    int deaths = 0;
    run_init(&run, tiny_config());
    for (int i = 0, first_died = 1; first_died && t->failures == 0; i += is_quick ? 3 : 1) {
        for (int j = 0, second_died = 1; second_died && t->failures == 0; j++) {
            const char *dir = test_new_folder(t);
            int64_t steps[4];
            OK(t, first != PRUNE || run_save(&run, dir, 0, 0, &error));
            OK(t, run_save(&run, dir, 1, 1, &error));
            first_died = dies(t, dir, first, writers, 2, i);
            const char *when = format("%s dead at call %d", action_names[first], i);
            check_usable(t, dir, first_died ? 1 : 1 + (first <= SAVE_NEXT), when);
            second_died = dies(t, dir, second, writers, 3, j);
            when = format("%s dead at call %d, %s at %d", action_names[first], i, action_names[second], j);
            check_usable(t, dir, second_died || second >= PRUNE ? 1 : 3, when);
            act(dir, CLEAN, 1, 0);
            check_usable(t, dir, second_died || second >= PRUNE ? 1 : 3, when);
            int pairs = list_steps(dir, steps, 4), files = count_files(dir);
            CHECK(t, files == 2 * pairs, "%s: %d files for %d checkpoints", when, files, pairs);
            deaths += first_died + second_died;
        }
    }
    CHECK(t, deaths > 5, "only %d deaths: the system calls are not seen", deaths);
}

TEST(test_overwrite_twice) { die_twice(t, SAVE_OVER, SAVE_OVER, 1); }
TEST(test_overwrite_then_clean) { die_twice(t, SAVE_OVER, CLEAN, 1); }
TEST(test_overwrite_then_next) { die_twice(t, SAVE_OVER, SAVE_NEXT, 1); }
TEST(test_next_twice) { die_twice(t, SAVE_NEXT, SAVE_NEXT, 1); }
TEST(test_next_then_clean) { die_twice(t, SAVE_NEXT, CLEAN, 1); }
TEST(test_prune_then_clean) { die_twice(t, PRUNE, CLEAN, 1); }
TEST(test_prune_then_overwrite) { die_twice(t, PRUNE, SAVE_OVER, 1); }
TEST(test_overwrite_by_three) { die_twice(t, SAVE_OVER, CLEAN, 3); }
TEST(test_next_by_three) { die_twice(t, SAVE_NEXT, CLEAN, 3); }
