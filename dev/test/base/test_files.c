// Files that appear complete or not at all, the lock on a folder, globs, whole files, and what each says when it
// cannot.
#include "llmc/base/files.h"
#include "llmc/base/input_file.h"
#include "dev/test/refused.h"
#include "dev/test/temp_dir.h"
#include <sys/wait.h>

// A file holds these bytes and nothing else.
static void check_holds(Test *t, const char *path, const char *want, size_t bytes, const char *when) {
    size_t n;
    uint8_t *data = temp_read(path, &n);
    CHECK(t, n == bytes && memcmp(data, want, n) == 0, "%s: %zu bytes, or other ones", when, n);
    free(data);
}

TEST(test_paths) {
    char *longer = (char *)malloc(6000), out[MAX_PATH_BYTES];
    memset(longer, 'x', 5000);
    longer[5000] = '\0';
    REFUSED(t, path_check("", "--out-dir", &error), "--out-dir", ": the path has 0 bytes, expected 1 to 4032");
    REFUSED(t, path_check(longer, "--out-dir", &error), "--out-dir", ": the path has 5000 bytes, expected 1 to 4032");
    OK(t, path_check(longer + 5000 - PATH_LIMIT, "--out-dir", &error));
    FAILS(t, path_join(out, longer, "name", &error), "path longer than 4095 bytes");
    free(longer);
    static const char *const parents[][2] = {{"a/b", "a"}, {"b", "."}, {"/b", "/"}, {"/a/b/c", "/a/b"}};
    FOR_EACH(i, parents) {
        path_parent(out, parents[i][0]);
        CHECK(t, strcmp(out, parents[i][1]) == 0, "parent of %s: %s", parents[i][0], out);
    }
    OK(t, path_join(out, "a/", "b", &error) && strcmp(out, "a/b") == 0);
}

TEST(test_directories) {
    OK(t, make_directories(test_path(t, "a/b//c/"), &error));
    CHECK(t, path_is_directory(test_path(t, "a/b/c")), "all levels exist");
    CHECK(t, make_directories(test_path(t, "a/b"), &error), "existing folders are fine: %s", error.text);
    temp_write(test_path(t, "file"), "x", 1);
    REFUSED(t, make_directories(test_path(t, "file"), &error), test_path(t, "file"),
            ": cannot be used as a folder: a file is in the way");
}

TEST(test_glob) {
    glob_t list;
    static const char *const names[] = {"b_2.bin", "b_10.bin", "B_1.bin", "a[1].bin"};
    FOR_EACH(i, names) { temp_write(test_path(t, names[i]), "", 0); }
    OK(t, list_glob(test_path(t, "*_*.bin"), "", &list, &error) && list.gl_pathc == 3);
    CHECK(t, ends_with(list.gl_pathv[0], "/B_1.bin") && ends_with(list.gl_pathv[1], "/b_10.bin"), "byte order");
    globfree(&list);
    CHECK(t, list_glob(test_path(t, "a[1].bin"), "", &list, &error) && list.gl_pathc == 1, "a name with brackets: %s",
          error.text);
    globfree(&list);
    REFUSED(t, list_glob(test_path(t, "c*"), "; look", &list, &error), test_path(t, "c*"),
            ": no such file (nothing matches the name or pattern); look");
    globfree(&list);
}

TEST(test_read_whole_file) {
    uint8_t *data;
    int64_t size;
    const char *path = test_path(t, "f");
    temp_write(path, "hello", 5);
    OK(t, read_whole_file(path, 5, &data, &size, &error) && size == 5 && strcmp((char *)data, "hello") == 0);
    free(data);
    REFUSED(t, read_whole_file(path, 4, &data, &size, &error), path,
            ": larger than 4 bytes, the most that makes sense here");
    CHECK(t, data == NULL, "data after a failure");
    temp_write(path, "", 0);
    CHECK(t, read_whole_file(path, 4, &data, &size, &error) && size == 0 && data[0] == 0, "empty: %s", error.text);
    free(data);
    REFUSED(t, read_whole_file(test_folder(t), 4, &data, &size, &error), test_folder(t),
            ": is a folder, expected a file");
    CHECK(t, !read_whole_stream("/dev/zero", 1 << 20, &data, &size, &error), "an endless file ends at the limit");
}

TEST(test_atomic) {
    AtomicFile file;
    const char *path = test_path(t, "f"), *temporary = test_path(t, "f.tmp");
    temp_write(path, "old", 3);
    OK(t, atomic_open(&file, path, 0666, &error) && atomic_write(&file, "new one", 7, &error));
    check_holds(t, path, "old", 3, "before the commit");
    OK(t, temp_exists(temporary) && atomic_commit(&file, &error));
    check_holds(t, path, "new one", 7, "after the commit");
    CHECK(t, !temp_exists(temporary), "a temporary file after the commit");
    atomic_close(&file);
    CHECK(t, temp_exists(path), "an abort after the commit does nothing");
    OK(t, atomic_open(&file, path, 0666, &error) && atomic_write(&file, "x", 1, &error));
    CHECK(t, atomic_flush(&file, &error) && temp_exists(temporary), "flushed, not visible: %s", error.text);
    atomic_close(&file);
    check_holds(t, path, "new one", 7, "after an abort");
    CHECK(t, !temp_exists(temporary), "a temporary file after an abort");
    REFUSED(t, atomic_open(&file, test_folder(t), 0666, &error), test_folder(t),
            ": is a folder, a file is to be written");
    REFUSED(t, atomic_open(&file, test_path(t, "none/f"), 0666, &error), test_path(t, "none/f"),
            ".tmp: cannot create: No such file or directory");
}

// One file of known size, written through two descriptors in any order.
TEST(test_joined_writers) {
    AtomicFile file, other;
    const char *path = test_path(t, "f"), *temporary = test_path(t, "f.tmp");
    temp_write(path, "old", 3);
    temp_write(temporary, "left by a killed process", 24);
    OK(t, atomic_create(&file, path, 10, &error));
    OK(t, atomic_join(&other, path, 10, &error));
    OK(t, atomic_write_at(&other, 7, "hij", 3, &error) && atomic_write_at(&file, 0, "ab", 2, &error));
    OK(t, atomic_write_at(&other, 2, "cd", 2, &error) && atomic_flush(&other, &error));
    check_holds(t, path, "old", 3, "before the commit");
    OK(t, atomic_commit(&file, &error));
    check_holds(t, path, "abcd\0\0\0hij", 10, "after the commit");
    OK(t, atomic_create(&file, path, 10, &error));
    REFUSED(t, atomic_join(&other, path, 11, &error), temporary,
            ": does not have the 11 bytes expected: is it another process's?");
    OK(t, atomic_join(&other, path, 10, &error));
    atomic_close(&other);
    CHECK(t, temp_exists(temporary), "the one that joined leaves it");
    atomic_close(&file);
    CHECK(t, !temp_exists(temporary) && temp_exists(path), "the one that created it does not");
}

// A file that shows up late, as on a network file system, and then has its size: it is made under another name.
TEST(test_join_waits_for_the_name) {
    AtomicFile file, other;
    const char *path = test_path(t, "f"), *made = test_path(t, "made");
    const char *made_name = test_path(t, "made.tmp"), *name = test_path(t, "f.tmp");
    pid_t child = fork();
    if (child == 0) {
        const struct timespec pause = {0, 200000000};
        nanosleep(&pause, NULL);
        _exit(atomic_create(&file, made, 10, &error) && rename(made_name, name) == 0 ? 0 : 1);
    }
    OK(t, atomic_join(&other, path, 10, &error));
    atomic_close(&other);
    int status = 1;
    waitpid(child, &status, 0);
    CHECK(t, status == 0, "the file was made");
}

// A full disk: a limit on the file size stands for it.
TEST(test_size_limit) {
    AtomicFile file;
    uint8_t block[4096] = {0};
    const char *path = test_path(t, "f");
    rlim_t old = temp_limit_files(10000);
    bool ok = atomic_open(&file, path, 0666, &error);
    for (int i = 0; i < 4 && ok; i++) { ok = atomic_write(&file, block, sizeof(block), &error); }
    temp_limit_files(old);
    REFUSED(t, ok, path, ": could not write it after 10000 bytes: File too large; the partial file was removed");
    temp_limit_files(10000);
    ok = atomic_create(&file, path, 10001, &error);
    temp_limit_files(old);
    REFUSED(t, ok, path, ": could not extend it to 10001 bytes: File too large; the partial file was removed");
    CHECK(t, rmdir(test_folder(t)) == 0, "something is left");
}

TEST(test_lock) {
    DirectoryLock lock, second;
    OK(t, directory_lock(&lock, test_folder(t), &error));
    FAILS(t, directory_lock(&second, test_folder(t), &error), ": in use by another process (pid ");
    directory_unlock(&lock);
    OK(t, directory_lock(&lock, test_folder(t), &error));
    directory_unlock(&lock);
    REFUSED(t, directory_lock(&lock, test_path(t, "none"), &error), test_path(t, "none/.lock"),
            ": cannot open: No such file or directory");
}

// Another run may write to the folder when somebody has removed or replaced .lock.
TEST(test_lock_that_lost_its_name) {
    DirectoryLock lock, second;
    const char *path = test_path(t, ".lock");
    const char *rest = ": was removed or replaced while this process held its lock, so another may write here; stopped";
    OK(t, directory_lock(&lock, test_folder(t), &error) && directory_check_lock(&lock, &error));
    temp_must(unlink(path) == 0, path);
    REFUSED(t, directory_check_lock(&lock, &error), path, rest);
    OK(t, directory_lock(&second, test_folder(t), &error) && directory_check_lock(&second, &error));
    REFUSED(t, directory_check_lock(&lock, &error), path, rest);
    directory_unlock(&lock), directory_unlock(&second);
    CHECK(t, temp_exists(path), "nobody but that somebody removes it");
}
