// Text that grows as pieces are added. A text remembers that memory ran out, so the caller checks once, at the end.
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

// Adds a line of a report. A newline that came with an argument forges no line (utils.h).
PRINTF_LIKE(2, 3) static inline void text_line(Text *text, const char *format, ...) {
    char line[SAY_MAX_BYTES], seen[SAY_MAX_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof(line), format, arguments);
    va_end(arguments);
    text_bytes(text, seen, shown(seen, line, 0, 0));
    text_words(text, "\n");
}

// Writes a code point as UTF-8 and returns its length.
static inline int utf8_encode(uint32_t code_point, char out[4]) {
    static const uint32_t lead[] = {0, 0, 0xc0, 0xe0, 0xf0};
    int n = code_point < 0x80 ? 1 : code_point < 0x800 ? 2 : code_point < 0x10000 ? 3 : 4;
    for (int i = n - 1; i > 0; i--, code_point >>= 6) { out[i] = (char)(0x80 | (code_point & 0x3f)); }
    out[0] = (char)(lead[n] | code_point);
    return n;
}

// ---- A model's text, written to a terminal piece by piece ----
//
// A token may end in the middle of a character, and a model may write any bytes. Each character passes text_show
// (utils.h). Newlines and tabs stay.

typedef struct {
    FILE *out;
    char held[4]; // the beginning of a character whose end has not come yet
    int num_held;
} TextOut;

// Writes the held characters that are complete. Four bytes are a character or begin none. at_end: writes all held
// bytes.
static inline void text_out_write_held(TextOut *text, bool at_end) {
    while (text->num_held > 0) {
        uint32_t c;
        char shown[TEXT_SHOWN_BYTES];
        size_t taken, held = (size_t)text->num_held;
        if (!at_end && held < 4 && utf8_decode((const uint8_t *)text->held, held, &c) == 0) { return; }
        fwrite(shown, 1, text_show(shown, text->held, held, true, &taken), text->out);
        text->num_held -= (int)taken;
        memmove(text->held, text->held + taken, (size_t)text->num_held);
    }
}

static inline void text_out_write(TextOut *text, const uint8_t *bytes, int count) {
    for (int i = 0; i < count; i++) {
        text->held[text->num_held++] = (char)bytes[i];
        text_out_write_held(text, false);
    }
    fflush(text->out);
}

static inline void text_out_end(TextOut *text) {
    text_out_write_held(text, true);
    fflush(text->out);
}

#endif // LLMC_TEXT_H
