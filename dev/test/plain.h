// Whether a text can be shown on a terminal as it is: valid UTF-8, and nothing that steers but newlines and tabs.
#ifndef PLAIN_H
#define PLAIN_H

#include "llmc/base/utils.h"

static inline bool is_plain(const char *bytes, size_t count) {
    char shown[TEXT_SHOWN_BYTES];
    size_t taken;
    for (size_t i = 0; i < count; i += taken) {
        size_t n = text_show(shown, bytes + i, count - i, true, &taken);
        if (n != taken || memcmp(shown, bytes + i, n) != 0) { return false; }
    }
    return true;
}

#endif // PLAIN_H
