// Reads a line of JSON that is one object: finds a member by its key, the last of equals, and decodes strings. Strings
// are checked in the whole line, and brackets are counted. Nothing is allocated but a decoded string.
#ifndef LLMC_JSON_LINE_H
#define LLMC_JSON_LINE_H

#include "llmc/base/text.h"

// A place in a line.
typedef struct {
    const char *text; // (end), without a NUL at its end
    size_t at, end;
    Error *error;
} JsonLine;

static inline bool json_line_fail(const JsonLine *j, size_t at, const char *what) {
    return fail(j->error, "JSON line: byte %zu: %s", at, what);
}

// Returns the character k bytes behind the place, 0 at the end. A NUL in the line is refused wherever this is compared.
static inline char json_line_peek(const JsonLine *j, size_t k) {
    return k < j->end - j->at ? j->text[j->at + k] : '\0';
}

static inline void json_line_space(JsonLine *j) {
    while (json_line_peek(j, 0) != '\0' && strchr(" \t\r\n", json_line_peek(j, 0)) != NULL) { j->at++; }
}

// Returns the value of the four hexadecimal digits from the k-th byte on, -1 if they are not there.
static inline int json_line_hex(const JsonLine *j, size_t k) {
    char digits[5] = "";
    for (size_t i = 0; i < 4; i++) { digits[i] = json_line_peek(j, k + i); }
    return strspn(digits, "0123456789abcdefABCDEF") == 4 ? (int)strtol(digits, NULL, 16) : -1;
}

// Returns the bytes of the escape at the place (2, 6, or 12 for a surrogate pair), 0 if it is invalid. Sets *code.
static inline int json_line_escape(const JsonLine *j, uint32_t *code) {
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    char c = json_line_peek(j, 1);
    const char *found = c == '\0' ? NULL : strchr(names, c);
    if (found != NULL) { *code = (uint32_t)values[found - names]; }
    if (c != 'u') { return found != NULL ? 2 : 0; }
    int high = json_line_hex(j, 2),
        low = json_line_peek(j, 6) == '\\' && json_line_peek(j, 7) == 'u' ? json_line_hex(j, 8) : -1;
    bool pair = high >= 0xd800 && high < 0xdc00 && low >= 0xdc00 && low <= 0xdfff;
    *code = pair ? 0x10000u + ((uint32_t)(high - 0xd800) << 10) + (uint32_t)(low - 0xdc00) : (uint32_t)high;
    return pair ? 12 : high < 0 || (high >= 0xd800 && high <= 0xdfff) ? 0 : 6;
}

// Reads the string at the place, and moves behind it. Adds it to *out, if that is not NULL.
static inline bool json_line_string(JsonLine *j, Text *out) {
    size_t start = j->at;
    if (json_line_peek(j, 0) != '"') { return json_line_fail(j, start, "expected a string"); }
    if (out != NULL) { text_bytes(out, "", 0); } // data is never NULL
    for (j->at++; j->at < j->end && j->text[j->at] != '"';) {
        uint32_t code = 0;
        char utf8[4];
        const char *p = j->text + j->at;
        bool escaped = *p == '\\';
        int n = escaped ? json_line_escape(j, &code) : utf8_decode((const uint8_t *)p, j->end - j->at, &code);
        if (n == 0 || (!escaped && code < 32)) {
            return json_line_fail(j, j->at, "no character of a string: a bad escape, or no UTF-8");
        }
        if (out != NULL) { text_bytes(out, escaped ? utf8 : p, (size_t)(escaped ? utf8_encode(code, utf8) : n)); }
        j->at += (size_t)n;
    }
    if (j->at == j->end) { return json_line_fail(j, start, "a string begins here and does not end"); }
    j->at++;
    return out == NULL || !out->failed || json_line_fail(j, start, "out of memory");
}

// Finds a member of the line's object. Sets *value to the place of the member's value.
static inline bool json_line_find(const char *text, size_t bytes, const char *key, JsonLine *value, Error *error) {
    JsonLine j = {text, 0, bytes, error};
    size_t depth = 0; // of brackets
    memset(value, 0, sizeof(*value));
    json_line_space(&j);
    if (json_line_peek(&j, 0) != '{') { return fail(error, "JSON line: not an object ({...})"); }
    do {
        char c = json_line_peek(&j, 0);
        size_t at = j.at;
        if (c == '\0') { return json_line_fail(&j, at, "an object or a list does not end"); }
        if (c == '"') {
            if (!json_line_string(&j, NULL)) { return false; }
            bool same = j.at - at - 2 == strlen(key) && memcmp(text + at + 1, key, strlen(key)) == 0;
            json_line_space(&j);
            if (depth != 1 || !same || json_line_peek(&j, 0) != ':') { continue; }
            *value = j, value->at++;
            json_line_space(value);
        } else {
            j.at++;
            depth = c == '{' || c == '[' ? depth + 1 : c == '}' || c == ']' ? depth - 1 : depth;
        }
    } while (depth > 0);
    json_line_space(&j);
    if (j.at < bytes) { return json_line_fail(&j, j.at, "the object has ended, but more text follows"); }
    return value->text != NULL || fail(error, "JSON line: no field \"%s\"", key);
}

#endif // LLMC_JSON_LINE_H
