// A text that grows as pieces are added. Running out of memory is remembered: the caller asks once, at the end.
//
//   Text text = {0};
//   text_words(&text, "step ");
//   text_printf(&text, "%d\n", 7);
//   if (text.failed) { out of memory }
//   ... text.data, text.used ...
//   text_free(&text);
#ifndef LLMC_TEXT_H
#define LLMC_TEXT_H

#include "llmc/base/utils.h"

typedef struct {
    char *data; // (used), and a NUL behind them; NULL while nothing was added
    size_t used, capacity;
    bool failed; // out of memory: nothing more is added
} Text;

static inline void text_free(Text *text) {
    free(text->data);
    memset(text, 0, sizeof(*text));
}

// Makes room for `count` more bytes and a NUL. False when out of memory.
static inline bool text_reserve(Text *text, size_t count) {
    if (!text->failed && count >= text->capacity - text->used) {
        size_t capacity = 2 * (text->used + count) + 1024;
        char *larger = (char *)realloc(text->data, capacity);
        text->failed = larger == NULL;
        if (larger != NULL) { text->data = larger, text->capacity = capacity; }
    }
    return !text->failed;
}

static inline void text_bytes(Text *text, const char *bytes, size_t count) {
    if (!text_reserve(text, count)) { return; }
    memcpy(text->data + text->used, bytes, count);
    text->used += count;
    text->data[text->used] = '\0';
}

static inline void text_words(Text *text, const char *words) { text_bytes(text, words, strlen(words)); }

PRINTF_LIKE(2, 3) static inline void text_printf(Text *text, const char *format, ...) {
    va_list arguments, again;
    va_start(arguments, format);
    va_copy(again, arguments);
    int n = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    if (n > 0 && text_reserve(text, (size_t)n)) {
        text->used += (size_t)vsnprintf(text->data + text->used, (size_t)n + 1, format, again);
    }
    va_end(again);
}

#endif // LLMC_TEXT_H
