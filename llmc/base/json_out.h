// Writes JSON (RFC 8259) into memory, value by value:
//
//   JsonOut out;
//   json_out_begin(&out);                            // {
//   json_out_int(&out, "format", 1);                 //   "format": 1,
//   json_out_open(&out, "command", '[', JSON_FLAT);  //   "command": [
//   json_out_text(&out, NULL, "./a \"b\"");          //                "./a \"b\""
//   json_out_close(&out);                            //               ]
//   ...
//   if (!json_out_end(&out)) { out of memory }       // }
//   ... out.data, out.used ...
//   json_out_free(&out);
//
// What comes out is valid whatever bytes the texts hold: bytes that are no UTF-8 become U+FFFD. Members have keys,
// elements of arrays NULL.
#ifndef LLMC_JSON_OUT_H
#define LLMC_JSON_OUT_H

#include "llmc/run/args.h"
#include "llmc/base/json.h"

typedef enum { JSON_LINES, JSON_FLAT } JsonLayout; // a line for each member, or all on one

typedef struct {
    char *data; // NUL-terminated; NULL: out of memory, and nothing more is written
    size_t used, capacity;
    int depth;                     // containers that are open
    bool failed;                   // out of memory
    bool has_members;              // the innermost container
    char closing[JSON_MAX_DEPTH];  // '}' or ']'
    bool in_lines[JSON_MAX_DEPTH]; //
} JsonOut;

static inline void json_out_free(JsonOut *out) {
    free(out->data);
    memset(out, 0, sizeof(*out));
}

// ---- Bytes ----

static inline void json_out_bytes(JsonOut *out, const char *bytes, size_t count) {
    if (out->failed) { return; }
    if (count >= out->capacity - out->used) { // a NUL follows
        size_t capacity = 2 * (out->used + count) + 1024;
        char *larger = (char *)realloc(out->data, capacity);
        out->failed = larger == NULL;
        if (out->failed) { return; }
        out->data = larger;
        out->capacity = capacity;
    }
    memcpy(out->data + out->used, bytes, count);
    out->used += count;
    out->data[out->used] = '\0';
}

static inline void json_out_words(JsonOut *out, const char *words) { json_out_bytes(out, words, strlen(words)); }

// One character of a text, of n bytes in UTF-8; n = 0: a byte that is none.
static inline void json_out_character(JsonOut *out, const char *c, int n) {
    char escape[8];
    if (n == 0) {
        json_out_words(out, "\xef\xbf\xbd");
    } else if (*c == '"' || *c == '\\') {
        snprintf(escape, sizeof(escape), "\\%c", *c);
        json_out_words(out, escape);
    } else if (*c == '\n' || *c == '\t') {
        json_out_words(out, *c == '\n' ? "\\n" : "\\t");
    } else if ((unsigned char)*c < 32 || *c == 127) {
        snprintf(escape, sizeof(escape), "\\u%04x", (unsigned)(unsigned char)*c);
        json_out_words(out, escape);
    } else {
        json_out_bytes(out, c, (size_t)n);
    }
}

static inline void json_out_quoted(JsonOut *out, const char *text) {
    size_t bytes = strlen(text);
    json_out_words(out, "\"");
    for (size_t at = 0; at < bytes;) {
        int n = json_utf8_length(text + at, 0, (int)min_i64((int64_t)(bytes - at), 4));
        json_out_character(out, text + at, n);
        at += n == 0 ? 1 : (size_t)n;
    }
    json_out_words(out, "\"");
}

static inline void json_out_new_line(JsonOut *out) {
    json_out_words(out, "\n");
    for (int i = 0; i < out->depth; i++) { json_out_words(out, "  "); }
}

// What stands before a value: a comma, the place where it begins, its key.
static inline void json_out_before(JsonOut *out, const char *key) {
    bool lines = out->depth > 0 && out->in_lines[out->depth - 1];
    if (out->has_members) { json_out_words(out, lines ? "," : ", "); }
    if (lines) { json_out_new_line(out); }
    out->has_members = true;
    if (key == NULL) { return; }
    json_out_quoted(out, key);
    json_out_words(out, ": ");
}

// ---- Values ----

// kind: '{' or '['.
static inline void json_out_open(JsonOut *out, const char *key, char kind, JsonLayout layout) {
    json_out_before(out, key);
    json_out_bytes(out, &kind, 1);
    out->closing[out->depth] = kind == '{' ? '}' : ']';
    out->in_lines[out->depth++] = layout == JSON_LINES;
    out->has_members = false;
}

static inline void json_out_close(JsonOut *out) {
    bool lines = out->in_lines[--out->depth] && out->has_members;
    if (lines) { json_out_new_line(out); }
    json_out_bytes(out, &out->closing[out->depth], 1);
    out->has_members = true;
}

static inline void json_out_begin(JsonOut *out) {
    memset(out, 0, sizeof(*out));
    json_out_open(out, NULL, '{', JSON_LINES);
}

// False when memory did not suffice.
static inline bool json_out_end(JsonOut *out) {
    json_out_close(out);
    json_out_words(out, "\n");
    return !out->failed;
}

static inline void json_out_text(JsonOut *out, const char *key, const char *text) {
    json_out_before(out, key);
    json_out_quoted(out, text);
}

// JSON that exists already.
static inline void json_out_raw(JsonOut *out, const char *key, const char *json, size_t bytes) {
    json_out_before(out, key);
    json_out_bytes(out, json, bytes);
}

static inline void json_out_bool(JsonOut *out, const char *key, bool value) {
    json_out_raw(out, key, value ? "true" : "false", value ? 4 : 5);
}

static inline void json_out_int(JsonOut *out, const char *key, int64_t value) {
    char digits[32];
    snprintf(digits, sizeof(digits), "%lld", (long long)value);
    json_out_raw(out, key, digits, strlen(digits));
}

// As few digits as give the number back exactly; what is no number is null.
static inline void json_out_real(JsonOut *out, const char *key, double value) {
    char digits[40] = "null";
    if (isfinite(value)) { args_real_text(digits, sizeof(digits), value); }
    json_out_raw(out, key, digits, strlen(digits));
}

static inline void json_out_hex(JsonOut *out, const char *key, uint64_t value) {
    char digits[32];
    snprintf(digits, sizeof(digits), "%016llx", (unsigned long long)value);
    json_out_text(out, key, digits);
}

static inline void json_out_texts(JsonOut *out, const char *key, char *const *texts, int count) {
    json_out_open(out, key, '[', JSON_FLAT);
    for (int i = 0; i < count; i++) { json_out_text(out, NULL, texts[i]); }
    json_out_close(out);
}

#endif // LLMC_JSON_OUT_H
