// Text that grows as pieces are added, and the characters of UTF-8. A text remembers that memory ran out, so the caller
// checks once, at the end.
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
    char *data; // (used), then a NUL; NULL while empty
    size_t used, capacity;
    bool failed; // out of memory; nothing more is added
} Text;

static inline void text_free(Text *text) {
    free(text->data);
    memset(text, 0, sizeof(*text));
}

// Makes room for `count` more bytes and a NUL. Returns false when out of memory.
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
    if (count > 0) { memcpy(text->data + text->used, bytes, count); }
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

static inline Text text_copy(const Text *text) {
    Text copy = {NULL, 0, 0, text->failed};
    text_bytes(&copy, text->data, text->used);
    return copy;
}

// ---- UTF-8 ----

#define UTF8_REPLACEMENT "\xef\xbf\xbd" // U+FFFD stands for a byte that belongs to no character

// Decodes one character of strict UTF-8 (no overlong forms, no surrogates) of at most n bytes, n >= 1. Returns its
// length, or 0 when the bytes at p are not a character.
static inline int utf8_decode(const uint8_t *p, size_t n, uint32_t *code_point) {
    if (p[0] < 0x80) { return *code_point = p[0], 1; }
    int length = p[0] >= 0xf0 ? 4 : p[0] >= 0xe0 ? 3 : 2;
    if (p[0] < 0xc2 || p[0] > 0xf4 || (size_t)length > n) { return 0; }
    uint32_t c = p[0] & (0xffu >> (length + 1));
    for (int i = 1; i < length; i++) {
        if ((p[i] & 0xc0) != 0x80) { return 0; }
        c = c << 6 | (p[i] & 0x3f);
    }
    bool overlong = (length == 3 && c < 0x800) || (length == 4 && c < 0x10000);
    if (overlong || (c >= 0xd800 && c < 0xe000) || c > 0x10ffff) { return 0; }
    *code_point = c;
    return length;
}

// Writes a code point as UTF-8 and returns its length.
static inline int utf8_encode(uint32_t code_point, char out[4]) {
    static const uint32_t lead[] = {0, 0, 0xc0, 0xe0, 0xf0};
    int n = code_point < 0x80 ? 1 : code_point < 0x800 ? 2 : code_point < 0x10000 ? 3 : 4;
    for (int i = n - 1; i > 0; i--, code_point >>= 6) { out[i] = (char)(0x80 | (code_point & 0x3f)); }
    out[0] = (char)(lead[n] | code_point);
    return n;
}

#endif // LLMC_TEXT_H
