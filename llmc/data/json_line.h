// Reads a line of JSON that is one object: finds a member by its key, the last of equals, and decodes strings. Strings
// and brackets are checked in the whole line, the rest only in what a caller reads. Nothing is allocated but a decoded
// string.
//
//   JsonLine value;
//   Text text = {NULL, 0, 0, false};
//   if (json_line_find(line, bytes, "text", &value, &error) && json_line_text(&value, &text)) { ... text.data }
#ifndef LLMC_JSON_LINE_H
#define LLMC_JSON_LINE_H

#include <ctype.h>

#include "llmc/base/text.h"

#define JSON_LINE_DEPTH 64 // no input can exhaust the stack

// A place in a line.
typedef struct {
    const char *text; // (end), without a NUL at its end
    size_t at, end;
    Error *error;
} JsonLine;

static inline bool json_line_fail(const JsonLine *j, size_t at, const char *what) {
    return fail(j->error, "JSON line: byte %zu: %s", at, what);
}

// Returns the character at the place, 0 at the end. A NUL in the line is refused wherever this is compared.
static inline char json_line_peek(const JsonLine *j) { return j->at < j->end ? j->text[j->at] : '\0'; }

static inline void json_line_space(JsonLine *j) {
    while (json_line_peek(j) != '\0' && strchr(" \t\r\n", json_line_peek(j)) != NULL) { j->at++; }
}

// Returns the value of four hexadecimal digits, -1 if they are not there.
static inline int json_line_hex(const JsonLine *j, size_t at) {
    int value = 0;
    for (size_t i = at; i < at + 4; i++) {
        char c = i < j->end ? j->text[i] : '\0';
        if (!isxdigit((unsigned char)c)) { return -1; }
        value = 16 * value + (c <= '9' ? c - '0' : (c | 32) - 'a' + 10);
    }
    return value;
}

// Returns the bytes of the escape at the place (2, 6, or 12 for a surrogate pair), 0 if it is invalid. Sets *code.
static inline int json_line_escape(const JsonLine *j, uint32_t *code) {
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    char c = j->at + 1 < j->end ? j->text[j->at + 1] : '\0';
    const char *found = c == '\0' ? NULL : strchr(names, c);
    *code = found != NULL ? (uint32_t)values[found - names] : 0;
    if (c != 'u') { return found != NULL ? 2 : 0; }
    int high = json_line_hex(j, j->at + 2);
    *code = (uint32_t)high;
    if (high >= 0 && (high < 0xd800 || high > 0xdfff)) { return 6; }
    bool pair = high >= 0xd800 && high < 0xdc00 && j->at + 8 < j->end && memcmp(j->text + j->at + 6, "\\u", 2) == 0;
    int low = pair ? json_line_hex(j, j->at + 8) : -1;
    if (low < 0xdc00 || low > 0xdfff) { return 0; }
    *code = 0x10000u + ((uint32_t)(high - 0xd800) << 10) + (uint32_t)(low - 0xdc00);
    return 12;
}

// Reads the string whose opening quote is at the place, and moves behind it. Adds it to *out, if that is not NULL.
static inline bool json_line_string(JsonLine *j, Text *out) {
    size_t start = j->at++;
    if (out != NULL) { text_bytes(out, "", 0); } // data is never NULL
    while (j->at < j->end && j->text[j->at] != '"') {
        uint32_t code = 0;
        char utf8[4];
        const uint8_t *p = (const uint8_t *)j->text + j->at;
        bool escaped = *p == '\\';
        int n = escaped ? json_line_escape(j, &code) : *p < 32 ? 0 : utf8_decode(p, j->end - j->at, &code);
        if (n == 0) { return json_line_fail(j, j->at, "no character of a string: a bad escape, or no UTF-8"); }
        if (out != NULL && escaped) { text_bytes(out, utf8, (size_t)utf8_encode(code, utf8)); }
        if (out != NULL && !escaped) { text_bytes(out, (const char *)p, (size_t)n); }
        j->at += (size_t)n;
    }
    if (j->at == j->end) { return json_line_fail(j, start, "a string begins here and does not end"); }
    j->at++;
    return out == NULL || !out->failed || json_line_fail(j, start, "out of memory");
}

// Finds a member of the line's object. Sets *value to the place of the member's value.
static inline bool json_line_find(const char *text, size_t bytes, const char *key, JsonLine *value, Error *error) {
    JsonLine j = {text, 0, bytes, error};
    char closing[JSON_LINE_DEPTH]; // the brackets that close what is open
    int depth = 0;
    *value = j;
    value->text = NULL;
    json_line_space(&j);
    if (json_line_peek(&j) != '{') { return fail(error, "JSON line: not an object ({...})"); }
    do {
        char c = json_line_peek(&j);
        size_t at = j.at;
        if (c == '"') {
            if (!json_line_string(&j, NULL)) { return false; }
            bool same = j.at - at - 2 == strlen(key) && memcmp(text + at + 1, key, strlen(key)) == 0;
            json_line_space(&j);
            if (depth != 1 || !same || json_line_peek(&j) != ':') { continue; }
            j.at++;
            json_line_space(&j);
            *value = j;
            continue;
        }
        j.at++;
        if (c == '{' || c == '[') {
            if (depth == JSON_LINE_DEPTH) { return json_line_fail(&j, at, "nested too deeply"); }
            closing[depth++] = c == '{' ? '}' : ']';
        } else if (c == '\0' || strchr("]}", c) != NULL) {
            depth--;
            if (c != closing[depth]) { return json_line_fail(&j, at, "an object or a list does not end"); }
        }
    } while (depth > 0);
    json_line_space(&j);
    if (j.at < bytes) { return json_line_fail(&j, j.at, "the object has ended, but more text follows"); }
    return value->text != NULL || fail(error, "JSON line: no field \"%s\"", key);
}

// Adds the string at the place to *out, and moves behind it.
static inline bool json_line_text(JsonLine *j, Text *out) {
    if (json_line_peek(j) != '"') { return json_line_fail(j, j->at, "expected a string"); }
    return json_line_string(j, out);
}

#endif // LLMC_JSON_LINE_H
