// A folder for functions that take an open one.
#ifndef OPEN_FOLDER_H
#define OPEN_FOLDER_H

#include "llmc/base/files.h"

// Opens a folder. It stays open until the next call. If it cannot be opened, its files are looked up by their paths.
static inline const Folder *opened(const char *path) {
    static Folder folder = {"", AT_FDCWD};
    Error ignored;
    folder_close(&folder);
    folder_open(&folder, path, &ignored);
    return &folder;
}

#endif // OPEN_FOLDER_H
