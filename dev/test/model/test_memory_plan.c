// Unit tests of the memory that a machine has for a process.
#include "dev/test/temp_dir.h"
#include "llmc/model/memory_plan.h"

// Writes a file of the kernel below `root`, with the folders above it.
static void put(const char *root, const char *path, const char *text) {
    char name[1024];
    snprintf(name, sizeof(name), "%s%s", root, path);
    for (char *slash = strchr(name + strlen(root) + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(name, 0700);
        *slash = '/';
    }
    FILE *file = fopen(name, "w");
    temp_must(file != NULL && fputs(text, file) >= 0 && fclose(file) == 0, name);
}

// A limit of version 2 counts, also of a group that holds the process's, or of the root that a container sees.
TEST(test_machine_memory) {
    static const struct {
        const char *group, *file, *text;
        int64_t limit; // 0: none
    } cases[] = {
        {"0::/\n", "/sys/fs/cgroup/memory.max", "3145728\n", 3 << 20},
        {"0::/a/job 1\n", "/sys/fs/cgroup/a/job 1/memory.max", "3145728\n", 3 << 20},
        {"0::/a/job/step\n", "/sys/fs/cgroup/a/memory.max", "1048576\n", 1 << 20},
        {"0::/a\n", "/sys/fs/cgroup/a/memory.max", "max\n", 0},
        {"0::/a\n", "/sys/fs/cgroup/b/memory.max", "1048576\n", 0},
        {"4:memory:/b\n", "/sys/fs/cgroup/memory.max", "1048576\n", 0},
    };
    const char *empty = test_new_folder(t);
    int64_t all = machine_memory(empty);
    CHECK(t, all > 3 << 20 && all < INT64_MAX && machine_memory("") <= all, "this machine has %lld", (long long)all);
    FOR_EACH(i, cases) {
        const char *root = test_new_folder(t);
        put(root, "/proc/self/cgroup", cases[i].group);
        put(root, cases[i].file, cases[i].text);
        int64_t memory = machine_memory(root), expected = cases[i].limit > 0 ? cases[i].limit : all;
        CHECK(t, memory == expected, "case %zu: %lld, not %lld", i, (long long)memory, (long long)expected);
    }
}

// Does the kernel know that this memory is to lie in huge pages? True where it has none.
static bool is_advised(const void *memory) {
    FILE *maps = fopen("/proc/self/smaps", "r");
    char line[512];
    bool inside = false, advised = false;
    if (maps == NULL || access("/sys/kernel/mm/transparent_hugepage", F_OK) != 0) { advised = true; }
    while (maps != NULL && fgets(line, sizeof(line), maps) != NULL) {
        unsigned long long begin, end;
        if (sscanf(line, "%llx-%llx ", &begin, &end) == 2) {
            inside = begin <= (uintptr_t)memory && (uintptr_t)memory < end;
        }
        if (inside && strncmp(line, "VmFlags:", 8) == 0) { advised = advised || strstr(line, " hg") != NULL; }
    }
    if (maps != NULL) { fclose(maps); }
    return advised;
}

TEST(test_large_memory_lies_in_huge_pages) {
    const int64_t sizes[] = {PLAN_ALIGNMENT, PLAN_HUGE_FROM};
    FOR_EACH(i, sizes) {
        void *memory = plan_take_memory(sizes[i]);
        CHECK(t, memory != NULL && (uintptr_t)memory % (i == 0 ? PLAN_ALIGNMENT : PLAN_HUGE_PAGE) == 0, "%p", memory);
        CHECK(t, i == 0 || is_advised(memory), "no advice about %lld bytes", (long long)sizes[i]);
        free(memory);
    }
}

// Four rows of 256 bytes in four phases. A row of a later phase overwrites what lies in its place, byte for byte.
TEST(test_what_stays_in_memory) {
    static const char *const phases[] = {"0", "1", "2", "3"};
    static char memory[4 * PLAN_ALIGNMENT];
    float *pointers[4];
    const struct {
        int first, last;
        bool is_kept;
    } rows[] = {{0, 3, true}, {0, 1, false}, {1, 1, true}, {2, 3, true}}; // the last one lies where row 1 was
    MemoryPlan plan;
    plan_init(&plan, phases);
    for (int i = 0; i < 4; i++) {
        plan_add(&plan, &pointers[i], "row", PLAN_DATA, PLAN_F32, shape1(64), rows[i].first, rows[i].last);
    }
    plan_layout(&plan);
    plan_set_pointers(&plan, memory);
    CHECK(t, pointers[3] == pointers[1] && plan.total == 3 * 256, "the plan has another layout than this test expects");
    for (int i = 0; i < 4; i++) {
        CHECK(t, plan_keeps(&plan, pointers[i], 256, rows[i].last) == rows[i].is_kept, "row %d", i);
    }
    CHECK(t, plan_keeps(&plan, pointers[3] - 64, 256, 1) && plan_keeps(&plan, pointers[3] + 64, 256, 1),
          "the rows beside a later row");
    CHECK(t, !plan_keeps(&plan, pointers[3] - 64, 260, 1) && !plan_keeps(&plan, pointers[3] + 63, 4, 1),
          "a row that a later row touches");
}
