// Files that appear complete or not at all, the lock on a folder, globs, whole files, and what each says when it
// cannot.
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#if defined(__linux__)
#include <sys/mount.h>
#endif

#include "llmc/base/files.h"
#include "dev/test/temp_dir.h"
#include "dev/test/test.h"

static void check_message(Test *t, const Error *error, const char *want, const char *path) {
    char expected[8192];
    snprintf(expected, sizeof(expected), want, path, path);
    CHECK(t, strcmp(error->text, expected) == 0, "got  '%s'\n    want '%s'", error->text, expected);
}

TEST(test_paths) {
    Error error;
    char *longer = (char *)malloc(6000), out[MAX_PATH_BYTES];
    memset(longer, 'x', 5000);
    longer[5000] = '\0';
    CHECK(t, !path_check("", "--out-dir", &error), "empty");
    check_message(t, &error, "--out-dir: the path is empty", "");
    CHECK(t, !path_check(longer, "--out-dir", &error), "5000 bytes");
    check_message(t, &error, "--out-dir: the path has 5000 bytes, at most 4032 are possible", "");
    longer[PATH_LIMIT] = '\0';
    CHECK(t, path_check(longer, "--out-dir", &error), "%s", error.text);
    longer[PATH_LIMIT] = 'x';
    CHECK(t, !path_join(out, longer, "name", &error) && strstr(error.text, "path longer than 4095 bytes"), "%s",
          error.text);
    AtomicFile file;
    InputFile input;
    PathList list;
    uint8_t *data;
    int64_t size;
    DirectoryLock lock;
    bool any = atomic_open(&file, longer, &error) || input_open(&input, longer, &error) ||
               list_glob(longer, &list, &error) || read_whole_file(longer, 10, &data, &size, &error) ||
               directory_lock(&lock, longer, &error) || make_directories(longer, &error);
    CHECK(t, !any, "a path of 5000 bytes was accepted");
    free(longer);
    static const char *const parents[][2] = {{"a/b", "a"}, {"b", "."}, {"/b", "/"}, {"/a/b/c", "/a/b"}};
    for (int i = 0; i < 4; i++) {
        path_parent(out, parents[i][0]);
        CHECK(t, strcmp(out, parents[i][1]) == 0, "parent of %s: %s", parents[i][0], out);
    }
    CHECK(t, path_join(out, "a/", "b", &error) && strcmp(out, "a/b") == 0, "%s", out);
    CHECK(t, path_join(out, "a", "b", &error) && strcmp(out, "a/b") == 0, "%s", out);
}

TEST(test_directories) {
    Error error;
    CHECK(t, make_directories(test_path(t, "a/b//c/"), &error), "%s", error.text);
    CHECK(t, path_is_directory(test_path(t, "a/b/c")), "all levels exist");
    CHECK(t, make_directories(test_path(t, "a/b"), &error), "existing folders are fine: %s", error.text);
    temp_write(test_path(t, "file"), "x", 1);
    CHECK(t, !make_directories(test_path(t, "file"), &error), "a file is no folder");
    check_message(t, &error, "%s: cannot be used as a folder: a file is in the way", test_path(t, "file"));
    CHECK(t, !make_directories(test_path(t, "file/sub"), &error), "nor can it hold one");
}

// Names of folders that exist or not, through a link, and with dots.
TEST(test_resolve) {
    Error error;
    char base[MAX_PATH_BYTES], out[MAX_PATH_BYTES], expected[2 * MAX_PATH_BYTES];
    temp_must(mkdir(test_path(t, "real"), 0777) == 0, "mkdir");
    temp_must(symlink("real", test_path(t, "link")) == 0, "symlink");
    CHECK(t, path_resolve(base, test_folder(t), &error) && base[0] == '/', "%s", error.text);
    static const char *const cases[][2] = {{"real", "real"},
                                           {"link", "real"},
                                           {"link/", "real"},
                                           {"link/./new//sub/", "real/new/sub"},
                                           {"new/../link/a", "real/a"},
                                           {"link/a/../../b", "b"}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        CHECK(t, path_resolve(out, test_path(t, cases[i][0]), &error), "%s", error.text);
        snprintf(expected, sizeof(expected), "%s/%s", base, cases[i][1]);
        CHECK(t, strcmp(out, expected) == 0, "%s: got %s", cases[i][0], out);
    }
    CHECK(t, path_resolve(out, "/", &error) && strcmp(out, "/") == 0, "%s", out);
    CHECK(t, path_resolve(out, "/../none", &error) && strcmp(out, "/none") == 0, "%s", out);
    temp_write(test_path(t, "file"), "", 0);
    CHECK(t, !path_resolve(out, test_path(t, "file/sub"), &error), "a file is no folder");
}

TEST(test_glob) {
    Error error;
    PathList list;
    static const char *const names[] = {"b_2.bin", "b_10.bin", "B_1.bin", "a[1].bin"};
    for (int i = 0; i < 4; i++) { temp_write(test_path(t, names[i]), "", 0); }
    CHECK(t, list_glob(test_path(t, "*_*.bin"), &list, &error) && list.count == 3, "%s", error.text);
    CHECK(t, ends_with(list.paths[0], "/B_1.bin") && ends_with(list.paths[1], "/b_10.bin"), "byte order");
    path_list_free(&list);
    CHECK(t, list_glob(test_path(t, "a[1].bin"), &list, &error) && list.count == 1, "a name with brackets: %s",
          error.text);
    path_list_free(&list);
    CHECK(t, !list_glob(test_path(t, "c*"), &list, &error) && list.count == 0, "nothing matches");
    check_message(t, &error, "%s: no such file (nothing matches the name or pattern)", test_path(t, "c*"));
    path_list_free(&list);
}

TEST(test_read_whole_file) {
    Error error;
    uint8_t *data;
    int64_t size;
    const char *path = test_path(t, "f");
    temp_write(path, "hello", 5);
    CHECK(t, read_whole_file(path, 5, &data, &size, &error) && size == 5 && strcmp((char *)data, "hello") == 0, "%s",
          error.text);
    free(data);
    CHECK(t, !read_whole_file(path, 4, &data, &size, &error) && data == NULL, "one byte too many");
    check_message(t, &error, "%s: larger than 4 bytes, the most that makes sense here", path);
    temp_write(path, "", 0);
    CHECK(t, read_whole_file(path, 4, &data, &size, &error) && size == 0 && data[0] == 0, "empty: %s", error.text);
    free(data);
    CHECK(t, !read_whole_file(test_folder(t), 4, &data, &size, &error), "a folder");
    check_message(t, &error, "%s: is a folder, expected a file", test_folder(t));
    CHECK(t, !read_whole_file(test_path(t, "none"), 4, &data, &size, &error), "no file");
    check_message(t, &error, "%s: cannot open: No such file or directory", test_path(t, "none"));
    int64_t limit = (int64_t)1 << 20;
    if (path_exists("/dev/zero")) {
        CHECK(t, !read_whole_file("/dev/zero", limit, &data, &size, &error), "an endless file ends at the limit");
    }
}

TEST(test_input) {
    Error error;
    InputFile file;
    char bytes[8] = "";
    const char *path = test_path(t, "f");
    temp_write(path, "0123456789", 10);
    CHECK(t, input_open(&file, path, &error) && file.size == 10, "%s", error.text);
    CHECK(t, input_read(&file, 3, bytes, 4, &error) && memcmp(bytes, "3456", 4) == 0, "%s", error.text);
    CHECK(t, !input_read(&file, 7, bytes, 4, &error), "beyond the end");
    check_message(t, &error, "%s: ends at byte 10, 1 more expected (truncated?)", path);
    input_close(&file);
    CHECK(t, !input_open(&file, test_folder(t), &error), "a folder");
    check_message(t, &error, "%s: is a folder, expected a file", test_folder(t));
    CHECK(t, !input_open(&file, "/dev/null", &error), "a device");
    check_message(t, &error, "%s: is a device or pipe, expected an ordinary file", "/dev/null");
}

// Over 4 GiB, without taking the room: a file with a hole.
TEST(test_large_offsets) {
    Error error;
    InputFile file;
    char bytes[4] = "";
    const int64_t offset = (int64_t)5 << 30;
    const char *path = test_path(t, "sparse");
    int fd = open(path, O_CREAT | O_WRONLY, 0666);
    bool written = pwrite(fd, "tail", 4, (off_t)offset) == 4;
    close(fd);
    if (!written) { SKIP(t, "this file system holds no sparse file of 5 GiB"); }
    CHECK(t, input_open(&file, path, &error) && file.size == offset + 4, "%s", error.text);
    CHECK(t, input_read(&file, offset, bytes, 4, &error) && memcmp(bytes, "tail", 4) == 0, "%s", error.text);
    input_close(&file);
}

TEST(test_atomic) {
    Error error;
    AtomicFile file;
    const char *path = test_path(t, "f"), *temporary = test_path(t, "f.tmp");
    temp_write(path, "old", 3);
    CHECK(t, atomic_open(&file, path, &error) && atomic_write(&file, "new one", 7, &error), "%s", error.text);
    size_t n;
    uint8_t *data = temp_read(path, &n);
    CHECK(t, n == 3 && memcmp(data, "old", 3) == 0 && temp_exists(temporary), "nothing changes before the commit");
    free(data);
    CHECK(t, atomic_commit(&file, &error), "%s", error.text);
    data = temp_read(path, &n);
    CHECK(t, n == 7 && memcmp(data, "new one", 7) == 0 && !temp_exists(temporary), "the new content, no temporary");
    free(data);
    atomic_abort(&file);
    CHECK(t, temp_exists(path), "an abort after the commit does nothing");
    CHECK(t, atomic_open(&file, path, &error) && atomic_write(&file, "x", 1, &error), "%s", error.text);
    CHECK(t, atomic_flush(&file, &error) && temp_exists(temporary), "flushed, not visible: %s", error.text);
    atomic_abort(&file);
    data = temp_read(path, &n);
    CHECK(t, n == 7 && !temp_exists(temporary), "an abort leaves the old file");
    free(data);
    CHECK(t, !atomic_open(&file, test_folder(t), &error), "over a folder");
    check_message(t, &error, "%s: is a folder, a file is to be written", test_folder(t));
    CHECK(t, !atomic_open(&file, test_path(t, "none/f"), &error), "into a folder that does not exist");
    check_message(t, &error, "%s.tmp: cannot create: No such file or directory", test_path(t, "none/f"));
}

// One file of known size, written through two descriptors in any order.
TEST(test_joined_writers) {
    Error error;
    AtomicFile file, other;
    const char *path = test_path(t, "f"), *temporary = test_path(t, "f.tmp");
    temp_write(path, "old", 3);
    temp_write(temporary, "left by a killed process", 24);
    CHECK(t, atomic_create(&file, path, 10, &error), "%s", error.text);
    CHECK(t, atomic_join(&other, path, 10, &error), "%s", error.text);
    CHECK(t, atomic_write_at(&other, 7, "hij", 3, &error) && atomic_write_at(&file, 0, "ab", 2, &error), "%s",
          error.text);
    CHECK(t, atomic_write_at(&other, 2, "cd", 2, &error) && atomic_flush(&other, &error), "%s", error.text);
    size_t n;
    uint8_t *data = temp_read(path, &n);
    CHECK(t, n == 3 && memcmp(data, "old", 3) == 0, "nothing changes before the commit");
    free(data);
    CHECK(t, atomic_commit(&file, &error), "%s", error.text);
    data = temp_read(path, &n);
    CHECK(t, n == 10 && memcmp(data, "abcd\0\0\0hij", 10) == 0 && !temp_exists(temporary), "zeros between");
    free(data);
    CHECK(t, !atomic_join(&other, path, 10, &error), "after the commit");
    check_message(t, &error, "%s: cannot open: No such file or directory", temporary);
    CHECK(t, atomic_create(&file, path, 10, &error), "%s", error.text);
    CHECK(t, !atomic_join(&other, path, 11, &error), "another size");
    check_message(t, &error, "%s: does not have the 11 bytes expected: is it another process's?", temporary);
    CHECK(t, atomic_join(&other, path, 10, &error), "%s", error.text);
    atomic_abort(&other);
    CHECK(t, temp_exists(temporary), "the one that joined leaves it");
    atomic_abort(&file);
    CHECK(t, !temp_exists(temporary) && temp_exists(path), "the one that created it does not");
    CHECK(t, !atomic_create(&file, test_path(t, "none/f"), 10, &error), "into a folder that does not exist");
    check_message(t, &error, "%s.tmp: cannot create: No such file or directory", test_path(t, "none/f"));
}

// A file that shows up late, as on a network file system, and then has its size: it is made under another name.
TEST(test_join_waits_for_the_name) {
    Error error;
    AtomicFile file, other;
    const char *path = test_path(t, "f"), *made = test_path(t, "made");
    const char *made_name = test_path(t, "made.tmp"), *name = test_path(t, "f.tmp");
    int go[2];
    temp_must(pipe(go) == 0, "pipe");
    pid_t child = fork();
    if (child == 0) {
        char byte;
        bool ok = read(go[0], &byte, 1) == 1;
        const struct timespec pause = {0, 200000000};
        nanosleep(&pause, NULL);
        _exit(ok && atomic_create(&file, made, 10, &error) && rename(made_name, name) == 0 ? 0 : 1);
    }
    CHECK(t, write(go[1], "", 1) == 1 && atomic_join(&other, path, 10, &error), "%s", error.text);
    atomic_abort(&other);
    int status = 1;
    waitpid(child, &status, 0);
    CHECK(t, status == 0, "the file was made");
    close(go[0]), close(go[1]);
}

// A full disk, three ways: a device that is always full, a limit on the file size, a tiny file system.
TEST(test_dev_full) {
    if (!path_exists("/dev/full")) { SKIP(t, "no /dev/full here"); }
    Error error;
    AtomicFile file;
    InputFile old;
    const char *path = test_path(t, "f"), *temporary = test_path(t, "f.tmp");
    temp_write(path, "old", 3);
    temp_must(symlink(path, temporary) == 0, temporary);
    CHECK(t, atomic_open(&file, path, &error), "%s", error.text);
    int full = open("/dev/full", O_WRONLY);
    temp_must(full >= 0 && dup2(full, file.fd) == file.fd, "/dev/full");
    close(full);
    CHECK(t, !atomic_write(&file, "new", 3, &error), "a write to a full disk succeeded");
    check_message(t, &error,
                  "%s: no space left on device: could not write it after 0 bytes; the partial file was removed, free "
                  "some space",
                  path);
    CHECK(t, temp_exists(path) && !temp_exists(temporary), "the old file stays, the partial one is gone");
    CHECK(t, input_open(&old, path, &error) && old.size == 3, "a link under the temporary name is not followed");
    input_close(&old);
}

TEST(test_size_limit) {
    Error error;
    AtomicFile file;
    struct rlimit old, tight;
    uint8_t block[4096] = {0};
    const char *path = test_path(t, "f");
    getrlimit(RLIMIT_FSIZE, &old);
    tight = old;
    tight.rlim_cur = 10000;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &tight);
    CHECK(t, atomic_open(&file, path, &error), "%s", error.text);
    bool ok = true;
    for (int i = 0; i < 4 && ok; i++) { ok = atomic_write(&file, block, sizeof(block), &error); }
    AtomicFile reserved;
    Error refusal;
    bool created = atomic_create(&reserved, test_path(t, "g"), 10001, &refusal);
    setrlimit(RLIMIT_FSIZE, &old);
    signal(SIGXFSZ, handler);
    CHECK(t, !created, "10,001 bytes were reserved");
    check_message(t, &refusal, "%s: could not reserve 10001 bytes for it: File too large; the partial file was removed",
                  test_path(t, "g"));
    CHECK(t, !temp_exists(test_path(t, "g.tmp")), "nothing is left");
    CHECK(t, !ok, "16,384 bytes went into a limit of 10,000");
    check_message(t, &error, "%s: could not write it after 10000 bytes: File too large; the partial file was removed",
                  path);
    CHECK(t, !temp_exists(path) && !temp_exists(test_path(t, "f.tmp")), "nothing is left");
}

TEST(test_full_file_system) {
#if defined(__linux__)
    Error error;
    if (mount("tmpfs", test_folder(t), "tmpfs", 0, "size=64k") != 0) {
        SKIP(t, "mounting a small tmpfs is not permitted");
    }
    AtomicFile file;
    uint8_t *block = (uint8_t *)calloc(1, 100000);
    const char *path = test_path(t, "f");
    CHECK(t, write_whole_file(path, "old", 3, &error), "%s", error.text);
    CHECK(t, atomic_open(&file, path, &error), "%s", error.text);
    CHECK(t, !atomic_write(&file, block, 100000, &error), "100,000 bytes went into 64 KiB");
    CHECK(t, strstr(error.text, ": no space left on device: could not write it after ") != NULL, "%s", error.text);
    CHECK(t, temp_exists(path) && !temp_exists(test_path(t, "f.tmp")), "the old file stays alone");
    CHECK(t, !atomic_create(&file, path, 100000, &error), "100,000 bytes were reserved in 64 KiB");
    check_message(t, &error,
                  "%s: no space left on device: could not reserve 100000 bytes for it; the partial file was removed, "
                  "free some space",
                  path);
    CHECK(t, temp_exists(path) && !temp_exists(test_path(t, "f.tmp")), "the old file stays alone");
    CHECK(t, write_whole_file(path, block, 30000, &error), "and there is room again: %s", error.text);
    free(block);
    umount2(test_folder(t), MNT_DETACH);
#else
    SKIP(t, "needs Linux's tmpfs");
#endif
}

TEST(test_lock) {
    Error error;
    DirectoryLock lock, second;
    int ready[2];
    const char *folder = test_folder(t); // before the fork, so that both processes have it
    temp_must(pipe(ready) == 0, "pipe");
    pid_t child = fork();
    if (child == 0) { // holds the lock until it is killed
        bool held = directory_lock(&lock, folder, &error);
        if (write(ready[1], held ? "y" : "n", 1) != 1) { _exit(1); }
        for (;;) { pause(); }
    }
    char answer = 0;
    CHECK(t, read(ready[0], &answer, 1) == 1 && answer == 'y', "the child holds the lock");
    CHECK(t, !directory_lock(&second, folder, &error), "two processes hold one folder");
    char want[1024];
    snprintf(want, sizeof(want), "%s: in use by another process (pid %ld); wait for it to end or choose another folder",
             folder, (long)child);
    CHECK(t, strcmp(error.text, want) == 0, "%s", error.text);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    CHECK(t, directory_lock(&second, folder, &error), "free after kill -9: %s", error.text);
    CHECK(t, !directory_lock(&lock, folder, &error), "held by this process");
    directory_unlock(&second);
    CHECK(t, directory_lock(&lock, folder, &error), "free after unlock: %s", error.text);
    directory_unlock(&lock);
    close(ready[0]), close(ready[1]);
    CHECK(t, !directory_lock(&lock, test_path(t, "none"), &error), "a folder that does not exist");
    check_message(t, &error, "%s/.lock: cannot create: No such file or directory", test_path(t, "none"));
}
