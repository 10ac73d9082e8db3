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
//   ... out.text.data, out.text.used ...
//   json_out_free(&out);
//
// What comes out is valid whatever bytes the texts hold: bytes that are no UTF-8 become U+FFFD. Members have keys,
// elements of arrays NULL.
#ifndef LLMC_JSON_OUT_H
#define LLMC_JSON_OUT_H

#include "llmc/base/json.h"
#include "llmc/base/text.h"

#include <math.h>

typedef enum { JSON_LINES, JSON_FLAT } JsonLayout; // a line for each member, or all on one

typedef struct {
    Text text;
    int depth;                     // containers that are open
    bool has_members;              // the innermost container
    char closing[JSON_MAX_DEPTH];  // '}' or ']'
    bool in_lines[JSON_MAX_DEPTH]; //
} JsonOut;

static inline void json_out_free(JsonOut *out) {
    text_free(&out->text);
    memset(out, 0, sizeof(*out));
}

// ---- Texts ----

// One character of a text, of n bytes in UTF-8; n = 0: a byte that is none.
static inline void json_out_character(JsonOut *out, const char *c, int n) {
    if (n == 0) {
        text_words(&out->text, "\xef\xbf\xbd");
    } else if (*c == '"' || *c == '\\') {
        text_printf(&out->text, "\\%c", *c);
    } else if (*c == '\n' || *c == '\t') {
        text_words(&out->text, *c == '\n' ? "\\n" : "\\t");
    } else if ((unsigned char)*c < 32 || *c == 127) {
        text_printf(&out->text, "\\u%04x", (unsigned)(unsigned char)*c);
    } else {
        text_bytes(&out->text, c, (size_t)n);
    }
}

static inline void json_out_quoted(JsonOut *out, const char *text) {
    size_t bytes = strlen(text);
    text_words(&out->text, "\"");
    for (size_t at = 0; at < bytes;) {
        int n = json_utf8_length(text + at, 0, (int)min_i64((int64_t)(bytes - at), 4));
        json_out_character(out, text + at, n);
        at += n == 0 ? 1 : (size_t)n;
    }
    text_words(&out->text, "\"");
}

static inline void json_out_new_line(JsonOut *out) {
    text_words(&out->text, "\n");
    for (int i = 0; i < out->depth; i++) { text_words(&out->text, "  "); }
}

// What stands before a value: a comma, the place where it begins, its key.
static inline void json_out_before(JsonOut *out, const char *key) {
    bool lines = out->depth > 0 && out->in_lines[out->depth - 1];
    if (out->has_members) { text_words(&out->text, lines ? "," : ", "); }
    if (lines) { json_out_new_line(out); }
    out->has_members = true;
    if (key == NULL) { return; }
    json_out_quoted(out, key);
    text_words(&out->text, ": ");
}

// ---- Values ----

// kind: '{' or '['.
static inline void json_out_open(JsonOut *out, const char *key, char kind, JsonLayout layout) {
    json_out_before(out, key);
    text_bytes(&out->text, &kind, 1);
    out->closing[out->depth] = kind == '{' ? '}' : ']';
    out->in_lines[out->depth++] = layout == JSON_LINES;
    out->has_members = false;
}

static inline void json_out_close(JsonOut *out) {
    bool lines = out->in_lines[--out->depth] && out->has_members;
    if (lines) { json_out_new_line(out); }
    text_bytes(&out->text, &out->closing[out->depth], 1);
    out->has_members = true;
}

static inline void json_out_begin(JsonOut *out) {
    memset(out, 0, sizeof(*out));
    json_out_open(out, NULL, '{', JSON_LINES);
}

// False when memory did not suffice.
static inline bool json_out_end(JsonOut *out) {
    json_out_close(out);
    text_words(&out->text, "\n");
    return !out->text.failed;
}

static inline void json_out_text(JsonOut *out, const char *key, const char *text) {
    json_out_before(out, key);
    json_out_quoted(out, text);
}

// JSON that exists already.
static inline void json_out_raw(JsonOut *out, const char *key, const char *json, size_t bytes) {
    json_out_before(out, key);
    text_bytes(&out->text, json, bytes);
}

static inline void json_out_bool(JsonOut *out, const char *key, bool value) {
    json_out_raw(out, key, value ? "true" : "false", value ? 4 : 5);
}

static inline void json_out_int(JsonOut *out, const char *key, int64_t value) {
    json_out_before(out, key);
    text_printf(&out->text, "%lld", (long long)value);
}

// As few digits as give the number back exactly; what is no number is null.
static inline void json_out_real(JsonOut *out, const char *key, double value) {
    char digits[40] = "null";
    if (isfinite(value)) { format_real(digits, sizeof(digits), value); }
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
