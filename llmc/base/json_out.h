// Writes JSON into a text, value by value. A member of an object has a key. An element of a list has the key NULL. The
// result is valid JSON whatever bytes the strings hold.
//   Text out = {NULL, 0, 0, false};
//   json_put(&out, NULL, "{");
//   json_put(&out, "format", "%d", 2);
//   json_put_text(&out, "program", "./a \"b\"");
//   text_words(&out, "}");                         // {"format": 2, "program": "./a \"b\""}
#ifndef LLMC_JSON_OUT_H
#define LLMC_JSON_OUT_H

#include "llmc/base/text.h"

// Adds a string in quotes. Characters that steer a terminal are escaped, and so are newlines: the string stays on its
// line. A byte that belongs to no character becomes U+FFFD.
static inline void json_put_string(Text *out, const char *string) {
    const uint8_t *at = (const uint8_t *)string, *end = at + strlen(string);
    text_words(out, "\"");
    for (int n; at < end; at += max_i64(n, 1)) {
        uint32_t c = 0;
        n = utf8_decode(at, (size_t)(end - at), &c);
        if (n == 0) {
            text_words(out, UTF8_REPLACEMENT);
        } else if (c == '"' || c == '\\') {
            text_printf(out, "\\%c", (int)c);
        } else if (text_steers(c)) {
            text_printf(out, "\\u%04x", (unsigned)c);
        } else {
            text_bytes(out, (const char *)at, (size_t)n);
        }
    }
    text_words(out, "\"");
}

// Adds what precedes a value: a comma, unless the value is the first of its object or list, and the key.
static inline void json_put_key(Text *out, const char *key) {
    bool is_first = out->used == 0 || out->data[out->used - 1] == '{' || out->data[out->used - 1] == '[';
    if (!is_first) { text_words(out, ", "); }
    if (key == NULL) { return; }
    json_put_string(out, key);
    text_words(out, ": ");
}

static inline void json_put_text(Text *out, const char *key, const char *string) {
    json_put_key(out, key);
    json_put_string(out, string);
}

// Adds a number, a word of JSON, or the bracket that opens an object or a list.
#define json_put(out, key, ...) (json_put_key(out, key), text_printf(out, __VA_ARGS__))

#endif // LLMC_JSON_OUT_H
