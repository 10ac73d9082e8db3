// What another user may put into a folder that we write to or read from: links, second names, pipes and folders under
// our names. Nothing outside the folder changes, and nothing waits. (Pipes to read: test_hostile.py. Our own folders:
// test_comm.c.)
#include <fcntl.h>
#include <sys/stat.h>

#include "llmc/base/files.h"
#include "dev/test/refused.h"
#include "dev/test/temp_dir.h"

typedef enum { LINK, DANGLING_LINK, HARD_LINK, PIPE, FOLDER, NUM_PLANTED } Planted;
static const char *const planted_names[] = {"a link", "a dangling link", "a hard link", "a pipe", "a folder"};

// Copies a path, because test_path's result is soon overwritten.
static void keep(char out[1024], const char *path) { snprintf(out, 1024, "%s", path); }

// Plants something under a name. Links lead to the file "outside", which says "precious"; the dangling one to "new".
static void plant(Test *t, Planted what, const char *path) {
    const char *outside = test_path(t, "outside");
    temp_write(outside, "precious", 8);
    unlink(test_path(t, "new"));
    temp_remove_tree(path);
    switch (what) {
    case LINK: temp_must(symlink(outside, path) == 0, path); break;
    case DANGLING_LINK: temp_must(symlink(test_path(t, "new"), path) == 0, path); break;
    case HARD_LINK: temp_must(link(outside, path) == 0, path); break;
    case PIPE: temp_must(mkfifo(path, 0666) == 0, path); break;
    default: temp_must(mkdir(path, 0777) == 0, path); break;
    }
}

static void check_outside(Test *t, Planted what) {
    size_t n;
    uint8_t *data = temp_read(test_path(t, "outside"), &n);
    CHECK(t, n == 8 && memcmp(data, "precious", 8) == 0, "%s: the file outside has changed", planted_names[what]);
    CHECK(t, !temp_exists(test_path(t, "new")), "%s: a file was made outside", planted_names[what]);
    free(data);
}

TEST(test_planted_temporary) {
    char path[1024], temporary[1024];
    keep(path, test_path(t, "f")), keep(temporary, test_path(t, "f.tmp"));
    for (int what = 0; what < NUM_PLANTED; what++) {
        struct stat info;
        unlink(path);
        plant(t, (Planted)what, temporary);
        bool ok = write_whole_file(path, "new one", 7, 0666, &error);
        check_outside(t, (Planted)what);
        if (what == FOLDER) {
            FAILS(t, ok, "f.tmp: cannot remove: ");
            continue;
        }
        CHECK(t, ok && lstat(path, &info) == 0 && S_ISREG(info.st_mode) && info.st_nlink == 1, "%s: %s",
              planted_names[what], error.text);
    }
}

// A rank joins a file that another rank has made, and a run locks its folder.
TEST(test_planted_for_join_and_lock) {
    static const char *const link = ": is a link, and links are not followed here; remove it";
    const char *const says[] = {link, link,
                                ": is also the file of another name (a hard link), which would change too; remove it",
                                ": is a device or pipe, expected an ordinary file", ": cannot open: Is a directory"};
    char path[1024], temporary[1024], lock_path[1024];
    keep(path, test_path(t, "f")), keep(temporary, test_path(t, "f.tmp")), keep(lock_path, test_path(t, ".lock"));
    for (int what = 0; what < NUM_PLANTED; what++) {
        AtomicFile file;
        DirectoryLock lock;
        plant(t, (Planted)what, temporary);
        REFUSED(t, atomic_join(&file, path, 8, &error), temporary,
                what == PIPE ? ": cannot open: No such device or address" : says[what]);
        check_outside(t, (Planted)what);
        temp_remove_tree(temporary);
        plant(t, (Planted)what, lock_path);
        REFUSED(t, directory_lock(&lock, test_folder(t), &error), lock_path, says[what]);
        check_outside(t, (Planted)what);
    }
}

static int mode_of(const char *path) {
    struct stat info;
    temp_must(stat(path, &info) == 0, path);
    return info.st_mode & 0777;
}

// Whoever can open a file can lock it. The lock of an older version, which all could read, is closed to others, too.
TEST(test_private_files) {
    DirectoryLock lock;
    const char *path = test_path(t, ".lock");
    for (int old = 0; old < 2; old++) {
        if (old) { temp_must(chmod(path, 0644) == 0, path); }
        OK(t, directory_lock(&lock, test_folder(t), &error));
        CHECK(t, mode_of(path) == 0600, "%s: mode %o", path, (unsigned)mode_of(path));
        directory_unlock(&lock);
    }
}
