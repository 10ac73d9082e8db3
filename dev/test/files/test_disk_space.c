// Whether a disk will hold a run: every number against a run that is made for show, save by save.
#include "llmc/files/disk_space.h"
#include "dev/test/refused.h"

enum { MOST = 256 };

typedef struct {
    int64_t steps[MOST]; // newest first
    int count;
} Shelf;

static void add(Shelf *shelf, int64_t step) {
    memmove(shelf->steps + 1, shelf->steps, (size_t)shelf->count * sizeof(int64_t));
    shelf->steps[0] = step;
    shelf->count++;
}

// What checkpoint_prune leaves. good: an older checkpoint that stays; -1: none.
static void prune(Shelf *shelf, int64_t keep, int64_t major, int64_t good) {
    int kept = 0, places = (int)keep - (good >= 0 && keep > 1);
    if (keep == 0) { return; }
    for (int i = 0; i < shelf->count; i++) {
        bool stays = shelf->steps[i] == good || places-- > 0 || (major > 0 && shelf->steps[i] % major == 0);
        if (stays) { shelf->steps[kept++] = shelf->steps[i]; }
    }
    shelf->count = kept;
}

static void check_run(Test *t, const DiskRun *run) {
    Shelf shelf;
    int64_t saves = 0, most, saved = run->from;
    DiskCourse all = disk_follow(run, INT64_MAX);
    shelf.count = run->num_existing;
    for (int i = 0; i < shelf.count; i++) { shelf.steps[i] = run->existing[i]; }
    prune(&shelf, run->keep, run->keep_major, run->good_step);
    most = shelf.count;
    for (int64_t step = run->from + 1; step <= run->last; step++) {
        if (step != run->last && (run->every == 0 || step % run->every != 0)) { continue; }
        CHECK(t, disk_next_save(run, saved) == step, "after step %d: step %d", (int)saved, (int)step);
        DiskCourse before = disk_follow(run, shelf.count), now = disk_follow(run, shelf.count + 1);
        bool fits = shelf.count + 1 > most;
        CHECK(t, !fits || (before.saves == saves && before.step == saved && before.most == most),
              "every %d keep %d major %d from %d: %d places hold %d saves until step %d", (int)run->every,
              (int)run->keep, (int)run->keep_major, (int)run->from, shelf.count, (int)before.saves, (int)before.step);
        CHECK(t, !fits || now.saves > saves, "%d places hold only %d saves", shelf.count + 1, (int)now.saves);
        add(&shelf, step);
        saves++, saved = step;
        most = max_i64(most, shelf.count);
        prune(&shelf, run->keep, run->keep_major, -1);
    }
    CHECK(t, all.saves == saves && all.step == saved && all.most == most,
          "every %d keep %d major %d from %d: %d saves until %d, %d at once, not %d until %d, %d", (int)run->every,
          (int)run->keep, (int)run->keep_major, (int)run->from, (int)all.saves, (int)all.step, (int)all.most,
          (int)saves, (int)saved, (int)most);
    for (int64_t room = disk_there(run); room <= most + 1; room++) {
        DiskCourse possible = disk_follow(run, room);
        CHECK(t, possible.most <= room, "%d saves in %d places", (int)possible.saves, (int)room);
        CHECK(t, possible.saves == saves || disk_follow(run, room + 1).most == room + 1, "only %d saves in %d places",
              (int)possible.saves, (int)room);
    }
}

// Whatever a message advises lets the run begin, and then the disk lasts, however full it is.
static void check_advice(Test *t, const DiskRun *run) {
    char text[sizeof(Error)];
    for (int64_t free_bytes = 0; free_bytes <= 300; free_bytes += 50) {
        DiskRun advised = *run;
        Error error;
        bool begins = disk_check(run, "run", free_bytes, &error);
        if (!begins) { snprintf(text, sizeof(text), "%s", error.text); }
        if (begins && disk_outlook(run, "run", free_bytes, text, sizeof(text)) == DISK_LASTS) { continue; }
        const char *keep = strstr(text, begins ? "with --keep " : "give --keep "),
                   *major = strstr(text, " --keep-major 0");
        if (keep == NULL) { keep = strstr(text, "give --keep "); }
        if (keep == NULL) { continue; }
        advised.keep = strtol(keep + strlen("give --keep "), NULL, 10);
        if (major != NULL) { advised.keep_major = 0; }
        CHECK(t, disk_check(&advised, "run", free_bytes, &error), "%s: %s", text, error.text);
        CHECK(t, disk_outlook(&advised, "run", free_bytes, text, sizeof(text)) == DISK_LASTS, "then: %s", text);
    }
}

TEST(test_against_simulation) {
    static const int64_t existing[] = {12, 11, 10, 8, 5, 4};
    int runs = 0;
    for (int64_t every = 0; every <= 7; every++) {
        for (int64_t keep = 0; keep <= 5; keep++) {
            for (int64_t major = 0; major <= (keep > 0 ? 9 : 0); major++) {
                for (int num = 0; num <= 6; num += 2) {
                    for (int64_t last = num > 0 ? 12 : 0; last <= 43; last += 3 + last % 2) {
                        int64_t good = num > 0 && runs % 3 == 0 ? existing[1 + runs % (num - 1)] : -1;
                        DiskRun run = {num > 0 ? 12 : 0, last, every, keep, major, good, existing, num, 100, 10};
                        check_run(t, &run);
                        check_advice(t, &run);
                        runs++;
                    }
                }
            }
        }
    }
    CHECK(t, runs > 10000, "%d runs", runs);
}

TEST(test_large_numbers) {
    DiskRun run = {0, 10000000, 1, 3, 9999937, -1, NULL, 0, (int64_t)1 << 40, 1 << 20};
    DiskCourse course = disk_follow(&run, INT64_MAX);
    CHECK(t, course.saves == 10000000 && course.most == 5, "%lld", (long long)course.most);
    CHECK(t, disk_room(&run, INT64_MAX) == (INT64_MAX - (1 << 20)) >> 40, "room");
    run.last = 1000000000, run.every = 999999999;
    run.keep_major = 1000000000;
    course = disk_follow(&run, INT64_MAX);
    CHECK(t, course.saves == 2 && course.most == 2 && course.step == run.last, "two saves");
}

TEST(test_refusal) {
    enum { MIB = 1 << 20, LOGS = 1 << 10 };
    static const int64_t existing[] = {50};
    static const struct {
        DiskRun run;
        int64_t mib; // needed, beside the logs
        const char *what, *remedy;
    } cases[] = {
        {{0, 100, 10, 0, 0, -1, NULL, 0, MIB, LOGS},
         2,
         "2 checkpoints of 1.00 MiB, the last good one and the one being written, and logs",
         ", or choose another folder"},
        {{0, 100, 0, 0, 0, -1, NULL, 0, MIB, LOGS},
         1,
         "a checkpoint of 1.00 MiB, and logs",
         ", or choose another folder"},
        {{0, 100, 10, 3, 0, -1, NULL, 0, MIB, LOGS},
         4,
         "4 checkpoints of 1.00 MiB, for --keep 3 and the one being written, and logs",
         ", or give --keep 2, or choose another folder"},
        {{0, 15, 10, 3, 0, -1, NULL, 0, MIB, LOGS},
         2,
         "2 checkpoints of 1.00 MiB, for --keep 3 and the one being written, and logs",
         ", or choose another folder"},
        {{50, 100, 10, 0, 0, -1, existing, 1, MIB, LOGS}, 1, "a checkpoint of 1.00 MiB, and logs", ""},
        {{50, 100, 10, 2, 0, -1, existing, 1, MIB, LOGS},
         2,
         "2 more checkpoints of 1.00 MiB, for --keep 2 and the one being written, and logs",
         ", or give --keep 1"},
    };
    Error error;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char rest[512];
        int64_t needed = cases[i].mib * MIB + LOGS;
        snprintf(rest, sizeof(rest),
                 ": run: not enough space: %d.00 MiB needed (%s), %d.00 MiB free; free some space%s", (int)cases[i].mib,
                 cases[i].what, (int)cases[i].mib, cases[i].remedy);
        CHECK(t, disk_check(&cases[i].run, "run", needed, &error), "case %d: %s", (int)i, error.text);
        CHECK_REFUSED(t, disk_check(&cases[i].run, "run", needed - 1, &error), &error, "--out-dir (-o)", rest);
        CHECK(t, disk_check(&cases[i].run, "run", -1, &error), "case %d: unknown", (int)i);
    }
    DiskRun finished = {100, 100, 10, 2, 0, -1, existing, 1, MIB, LOGS};
    CHECK(t, disk_check(&finished, "run", 0, &error), "nothing left to save");
}

TEST(test_outlook) {
    static const int64_t existing[] = {50, 40};
    char text[1024] = "";
    DiskRun run = {0, 100, 10, 0, 0, -1, NULL, 0, 1 << 20, 1 << 10};
    CHECK(t, disk_outlook(&run, "run", (10 << 20) + (1 << 10), text, sizeof(text)) == DISK_LASTS, "all of it: %s",
          text);
    CHECK(t, disk_outlook(&run, "run", -1, text, sizeof(text)) == DISK_LASTS, "unknown: %s", text);
    CHECK(t, disk_outlook(&run, "run", (10 << 20) + (1 << 10) - 1, text, sizeof(text)) == DISK_WILL_FILL, "%s", text);
    const char *expected =
        "the disk of run has 10.00 MiB free, the rest of the run needs 10.00 MiB: it lasts until step "
        "90 of 100; free some space, or give --keep 5";
    CHECK(t, strcmp(text, expected) == 0, "%s", text);
    run.from = 50, run.existing = existing;
    CHECK(t, disk_outlook(&run, "run", (3 << 20) + (1 << 10), text, sizeof(text)) == DISK_WILL_FILL, "%s", text);
    expected = "the disk of run has 3.00 MiB free, the rest of the run needs 5.00 MiB: it lasts until step 80 of 100; "
               "free some space, or stop the run and --resume with --keep 2";
    CHECK(t, strcmp(text, expected) == 0, "%s", text);
    run.num_existing = 2;
    CHECK(t, disk_outlook(&run, "run", 1 << 20, text, sizeof(text)) == DISK_IS_FULL, "%s", text);
    expected = "the disk of run has 1.00 MiB free, the next checkpoint (step 60) and the logs need 1.00 MiB; free some "
               "space, or stop the run and --resume with --keep 1";
    CHECK(t, strcmp(text, expected) == 0, "%s", text);
    run.keep = 2, run.keep_major = 20, run.num_existing = 0;
    CHECK(t, disk_outlook(&run, "run", 3 << 20, text, sizeof(text)) == DISK_WILL_FILL, "%s", text);
    CHECK(t, strstr(text, "; free some space, or stop the run and --resume with --keep 1 --keep-major 0") != NULL, "%s",
          text);
}

TEST(test_free_bytes) {
    int64_t here = disk_free_bytes("."), missing = disk_free_bytes("no/such/folder"), root = disk_free_bytes("/none");
    CHECK(t, here > 0 && missing > 0 && root > 0, "%lld %lld %lld", (long long)here, (long long)missing,
          (long long)root);
    CHECK(t, disk_free_bytes("") != 0, "an empty path");
}
