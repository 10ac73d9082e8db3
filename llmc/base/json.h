// Reads JSON (RFC 8259) strictly, and writes it.
//
// Reading: the text becomes a flat array of values in the order in which they appear. A container is followed by its
// contents. An object's contents are key, value, key, value. The reader refuses, with the byte offset: anything that
// the grammar does not allow, invalid UTF-8, half of a surrogate pair, a key given twice, and more than JSON_MAX_DEPTH
// levels (so no input can exhaust the stack).
//
// Writing: value by value into memory. Members have keys. Elements of arrays have the key NULL. The result is valid
// JSON whatever bytes the texts hold: a byte that belongs to no character becomes U+FFFD.
//   JsonOut out;
//   json_out_begin(&out);                            // {
//   json_out_int(&out, "format", 1);                 //   "format": 1,
//   json_out_open(&out, "command", '[', JSON_FLAT);  //   "command": [
//   json_out_text(&out, NULL, "./a \"b\"");          //                "./a \"b\""
//   json_out_close(&out);                            //               ]
//   if (!json_out_end(&out)) { out of memory }       // }
//   ... out.text.data, out.text.used ...
//   json_out_free(&out);
#ifndef LLMC_JSON_H
#define LLMC_JSON_H

#include <math.h>

#include "llmc/base/files.h"
#include "llmc/base/text.h"
#include "llmc/base/utils.h"

#define JSON_MAX_DEPTH 64
#define JSON_MAX_VALUES (1 << 22) // bounds the memory for hostile input; any GPT's header has a few thousand values

typedef enum { JSON_NULL, JSON_BOOL, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT } JsonKind;

typedef struct {
    JsonKind kind;
    int start, end; // its bytes in the text; a string's bytes without the quotes
    int next;       // index of the first value after this value and its contents
    int count;      // elements of an array, members of an object, decoded bytes of a string
    int decoded;    // a string's place in `strings`, where a NUL follows it
} JsonValue;

typedef struct {
    const char *name; // name of the text, for messages; borrowed
    const char *text; // borrowed, or `file`
    uint8_t *file;    // the bytes that json_load has read
    Text strings;     // all strings, decoded
    JsonValue *values;
    int count, capacity; // value 0 is the outermost value
    int at, end;         // while parsing: the place in the text, and its bytes
    Error *error;
} Json;

static inline void json_free(Json *json) {
    free(json->values);
    free(json->file);
    text_free(&json->strings);
    memset(json, 0, sizeof(*json));
}

static inline bool json_fail(const Json *json, int at, const char *what) {
    return fail(json->error, "%s: byte %d: %s", json->name, at, what);
}

static inline bool json_append(Json *json, JsonKind kind, int start, int end) {
    if (json->count == json->capacity) {
        int capacity = json->capacity == 0 ? 64 : 2 * json->capacity;
        if (capacity > JSON_MAX_VALUES) { return json_fail(json, start, "more values than make sense here"); }
        JsonValue *larger = (JsonValue *)realloc(json->values, (size_t)capacity * sizeof(JsonValue));
        if (larger == NULL) { return json_fail(json, start, "out of memory"); }
        json->values = larger;
        json->capacity = capacity;
    }
    JsonValue value = {kind, start, end, json->count + 1, 0, 0};
    json->values[json->count++] = value;
    return true;
}

// ---- Strings ----

// Returns the value of four hexadecimal digits at text[at], -1 if they are not there.
static inline int json_hex4(const char *text, int at, int end) {
    int value = 0;
    if (end - at < 4) { return -1; }
    for (int i = at; i < at + 4; i++) {
        static const char digits[] = "0123456789abcdef0123456789ABCDEF";
        const char *digit = text[i] == '\0' ? NULL : strchr(digits, text[i]);
        if (digit == NULL) { return -1; }
        value = 16 * value + (int)(digit - digits) % 16;
    }
    return value;
}

// Returns the bytes of the escape at text[at] == '\\' (2, 6, or 12 for a surrogate pair), 0 if invalid. Sets *code.
static inline int json_escape(const char *text, int at, int end, uint32_t *code) {
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    if (end - at < 2) { return 0; }
    if (text[at + 1] != 'u') {
        const char *found = text[at + 1] == '\0' ? NULL : strchr(names, text[at + 1]);
        if (found == NULL) { return 0; }
        *code = (uint32_t)values[found - names];
        return 2;
    }
    int high = json_hex4(text, at + 2, end);
    *code = (uint32_t)high;
    if (high < 0 || (high >= 0xdc00 && high <= 0xdfff)) { return 0; }
    if (high < 0xd800 || high > 0xdbff) { return 6; }
    if (end - at < 12 || text[at + 6] != '\\' || text[at + 7] != 'u') { return 0; }
    int low = json_hex4(text, at + 8, end);
    if (low < 0xdc00 || low > 0xdfff) { return 0; }
    *code = 0x10000u + ((uint32_t)(high - 0xd800) << 10) + (uint32_t)(low - 0xdc00);
    return 12;
}

// Returns the bytes of the character or escape at text[at], 0 if it is invalid. Sets its code point.
static inline int json_character(const Json *json, int at, uint32_t *code) {
    if (json->text[at] == '\\') { return json_escape(json->text, at, json->end, code); }
    return (uint8_t)json->text[at] < 0x20
               ? 0
               : utf8_decode((const uint8_t *)json->text + at, (size_t)(json->end - at), code);
}

static inline bool json_fail_character(const Json *json, int at) {
    uint8_t c = (uint8_t)json->text[at];
    return json_fail(json, at,
                     c == '\\'  ? "invalid escape in a string (or half a surrogate pair)"
                     : c < 0x20 ? "control character in a string, it must be escaped"
                                : "invalid UTF-8 in a string");
}

// Reads and decodes a string whose opening quote is at json->at. Moves json->at behind the closing quote.
static inline bool json_read_string(Json *json) {
    Text *strings = &json->strings;
    int start = json->at + 1, plain = start, at = start; // the bytes from `plain` on are not decoded yet
    size_t decoded = strings->used;
    while (at < json->end && json->text[at] != '"') {
        uint32_t code = 0;
        int n = json_character(json, at, &code);
        if (n == 0) { return json_fail_character(json, at); }
        if (json->text[at] == '\\') {
            char utf8[4];
            text_bytes(strings, json->text + plain, (size_t)(at - plain));
            text_bytes(strings, utf8, (size_t)utf8_encode(code, utf8));
            plain = at + n;
        }
        at += n;
    }
    if (at == json->end) { return json_fail(json, json->at, "a string begins here and does not end (truncated?)"); }
    text_bytes(strings, json->text + plain, (size_t)(at - plain));
    text_bytes(strings, "", 1);
    if (strings->failed || strings->used > INT32_MAX) { return json_fail(json, start, "out of memory"); }
    json->at = at + 1;
    if (!json_append(json, JSON_STRING, start, at)) { return false; }
    json->values[json->count - 1].decoded = (int)decoded;
    json->values[json->count - 1].count = (int)(strings->used - decoded - 1);
    return true;
}

// Returns a string without escapes: `count` bytes and a NUL. Returns "" for other kinds of values.
static inline const char *json_decoded(const Json *json, int value) {
    bool is_string = json->values[value].kind == JSON_STRING;
    return is_string ? json->strings.data + json->values[value].decoded : "";
}

// ---- Values ----

// Returns the character at the current place, 0 at the end. A NUL in the text is refused wherever this is compared.
static inline char json_peek(const Json *json) { return json->at < json->end ? json->text[json->at] : '\0'; }

static inline void json_skip_space(Json *json) {
    while (json_peek(json) != '\0' && strchr(" \n\r\t", json_peek(json)) != NULL) { json->at++; }
}

static inline int json_skip_digits(Json *json) {
    int start = json->at;
    while (json_peek(json) >= '0' && json_peek(json) <= '9') { json->at++; }
    return json->at - start;
}

static inline bool json_read_number(Json *json) {
    int start = json->at;
    if (json_peek(json) == '-') { json->at++; }
    bool zero = json_peek(json) == '0';
    int digits = json_skip_digits(json);
    if (digits == 0) { return json_fail(json, start, "expected a value"); }
    if (zero && digits > 1) { return json_fail(json, start, "a number must not begin with 0"); }
    if (json_peek(json) == '.') {
        json->at++;
        if (json_skip_digits(json) == 0) {
            return json_fail(json, json->at, "expected a digit after the decimal point");
        }
    }
    if (json_peek(json) == 'e' || json_peek(json) == 'E') {
        json->at++;
        if (json_peek(json) == '+' || json_peek(json) == '-') { json->at++; }
        if (json_skip_digits(json) == 0) { return json_fail(json, json->at, "expected a digit in the exponent"); }
    }
    return json_append(json, JSON_NUMBER, start, json->at);
}

static inline bool json_read_word(Json *json) {
    static const char *const words[] = {"null", "true", "false"};
    for (int i = 0; i < 3; i++) {
        int n = (int)strlen(words[i]);
        if (json->end - json->at >= n && memcmp(json->text + json->at, words[i], (size_t)n) == 0) {
            json->at += n;
            return json_append(json, i == 0 ? JSON_NULL : JSON_BOOL, json->at - n, json->at);
        }
    }
    return json_fail(json, json->at,
                     json->at == json->end ? "ends where a value is expected (truncated?)" : "expected a value");
}

// Reads `"key" :` and appends the key.
static inline bool json_read_key(Json *json) {
    json_skip_space(json);
    if (json_peek(json) != '"') { return json_fail(json, json->at, "expected a key in quotes"); }
    if (!json_read_string(json)) { return false; }
    json_skip_space(json);
    if (json_peek(json) != ':') { return json_fail(json, json->at, "expected ':' after a key"); }
    json->at++;
    return true;
}

static inline bool json_read_value(Json *json, int depth);

// Reads [ or { and everything up to its end.
static inline bool json_read_container(Json *json, int depth) {
    bool object = json->text[json->at] == '{';
    int index = json->count, count = 0;
    if (depth == JSON_MAX_DEPTH) { return json_fail(json, json->at, "nested too deeply"); }
    if (!json_append(json, object ? JSON_OBJECT : JSON_ARRAY, json->at, json->at)) { return false; }
    json->at++;
    json_skip_space(json);
    for (bool more = json_peek(json) != (object ? '}' : ']'); more; count++) {
        if ((object && !json_read_key(json)) || !json_read_value(json, depth + 1)) { return false; }
        json_skip_space(json);
        more = json_peek(json) == ',';
        json->at += more;
    }
    if (json_peek(json) != (object ? '}' : ']')) {
        return json_fail(json, json->at, object ? "expected ',' or '}'" : "expected ',' or ']'");
    }
    json->values[index].end = ++json->at;
    json->values[index].next = json->count;
    json->values[index].count = count;
    return true;
}

// Reads a value inside `depth` containers.
static inline bool json_read_value(Json *json, int depth) {
    json_skip_space(json);
    switch (json_peek(json)) {
    case '{':
    case '[': return json_read_container(json, depth);
    case '"': return json_read_string(json);
    case 'n':
    case 't':
    case 'f':
    case '\0': return json_read_word(json);
    default: return json_read_number(json);
    }
}

// ---- Keys given twice ----

static inline int json_compare_keys(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

// Refuses an object with a key given twice. Keys that differ only behind a NUL count as equal. Sorts the keys, so that
// a hostile object of a million keys costs little.
static inline bool json_check_keys(const Json *json, int object) {
    int n = 0, last = object + 1;
    const char *twice = NULL, **keys = (const char **)malloc((size_t)json->values[object].count * sizeof(char *));
    if (keys == NULL) { return json_fail(json, 0, "out of memory"); }
    for (int key = object + 1; key < json->values[object].next; key = json->values[key + 1].next) {
        keys[n++] = json_decoded(json, key);
    }
    qsort(keys, (size_t)n, sizeof(char *), json_compare_keys);
    for (int i = 1; i < n; i++) { twice = strcmp(keys[i - 1], keys[i]) == 0 ? keys[i] : twice; }
    free(keys);
    if (twice == NULL) { return true; }
    for (int key = last; key < json->values[object].next; key = json->values[key + 1].next) {
        if (strcmp(json_decoded(json, key), twice) == 0) { last = key; }
    }
    const JsonValue *key = &json->values[last];
    return fail(json->error, "%s: byte %d: key \"%.*s\" is given twice", json->name, key->start,
                (int)min_i64(key->end - key->start, 100), json->text + key->start);
}

// Parses text, which is not NUL-terminated. text and `name`, which begins messages, must outlive *json. The caller
// frees *json, also after a failure.
static inline bool json_parse(Json *json, const char *name, const char *text, int64_t bytes, Error *error) {
    memset(json, 0, sizeof(*json));
    json->name = name;
    json->text = text;
    if (bytes >= INT32_MAX) { return fail(error, "%s: %lld bytes of JSON are too many", name, (long long)bytes); }
    json->end = (int)bytes;
    json->error = error;
    if (!json_read_value(json, 0)) { return false; }
    json_skip_space(json);
    if (json->at < json->end) { return json_fail(json, json->at, "the value has ended, but more text follows"); }
    bool ok = true;
    for (int i = 0; ok && i < json->count; i++) {
        if (json->values[i].kind == JSON_OBJECT && json->values[i].count > 1) { ok = json_check_keys(json, i); }
    }
    return ok;
}

// Parses a file of at most max_bytes. The path must outlive *json. The caller frees *json, also after a failure.
static inline bool json_load(Json *json, const char *path, int64_t max_bytes, Error *error) {
    uint8_t *file;
    int64_t bytes;
    memset(json, 0, sizeof(*json));
    if (!read_whole_file(path, max_bytes, &file, &bytes, error)) { return false; }
    bool ok = json_parse(json, path, (const char *)file, bytes, error);
    json->file = file;
    return ok;
}

// ---- Access ----

// Returns true if a string, or the text of another value, is exactly `text`.
static inline bool json_equals(const Json *json, int value, const char *text) {
    const JsonValue *v = &json->values[value];
    bool is_string = v->kind == JSON_STRING;
    size_t n = (size_t)(is_string ? v->count : v->end - v->start);
    return strlen(text) == n && memcmp(text, is_string ? json_decoded(json, value) : json->text + v->start, n) == 0;
}

// Copies a value as it is in the text, cut for messages.
static inline const char *json_show(const Json *json, int value, char text[101]) {
    const JsonValue *v = &json->values[value];
    snprintf(text, 101, "%.*s", v->end - v->start, json->text + v->start);
    return text;
}

// Returns the index of an object's member, -1 if there is none or `object` is no object. To visit all members:
//   for (int key = object + 1; key < json.values[object].next; key = json.values[key + 1].next) { value is key + 1 }
static inline int json_find(const Json *json, int object, const char *key) {
    if (json->values[object].kind != JSON_OBJECT) { return -1; }
    for (int i = object + 1; i < json->values[object].next; i = json->values[i + 1].next) {
        if (json_equals(json, i, key)) { return i + 1; }
    }
    return -1;
}

// Finds a member of the outermost object. what: the member's kind for messages, such as "a string".
static inline bool json_member(const Json *json, const char *key, JsonKind kind, const char *what, int *value,
                               Error *error) {
    *value = json_find(json, 0, key);
    if (json->values[0].kind != JSON_OBJECT) { return fail(error, "%s: not an object ({...})", json->name); }
    if (*value < 0) { return fail(error, "%s: no field \"%s\"", json->name, key); }
    return json->values[*value].kind == kind || fail(error, "%s: field \"%s\" is not %s", json->name, key, what);
}

// Copies a string value as a C string. Refuses more than size - 1 bytes and strings that hold a NUL.
static inline bool json_string(const Json *json, int value, char *text, size_t size, Error *error) {
    const JsonValue *v = &json->values[value];
    if (v->kind != JSON_STRING) { return fail(error, "%s: byte %d: expected a string", json->name, v->start); }
    if ((size_t)v->count >= size || strlen(json_decoded(json, value)) != (size_t)v->count) {
        return fail(error, "%s: byte %d: string longer than %zu bytes or with a NUL in it", json->name, v->start,
                    size - 1);
    }
    memcpy(text, json_decoded(json, value), (size_t)v->count + 1);
    return true;
}

// Copies a number's digits as a C string.
static inline bool json_digits(const Json *json, int value, char *digits, size_t size, Error *error) {
    const JsonValue *v = &json->values[value];
    size_t n = (size_t)(v->end - v->start);
    if (v->kind != JSON_NUMBER) { return fail(error, "%s: byte %d: expected a number", json->name, v->start); }
    if (n >= size) { return fail(error, "%s: byte %d: number of %zu digits", json->name, v->start, n); }
    memcpy(digits, json->text + v->start, n);
    digits[n] = '\0';
    return true;
}

static inline bool json_double(const Json *json, int value, double *out, Error *error) {
    char digits[400];
    *out = 0.0;
    if (!json_digits(json, value, digits, sizeof(digits), error)) { return false; }
    *out = strtod(digits, NULL);
    return isfinite(*out) || fail(error, "%s: byte %d: number out of range", json->name, json->values[value].start);
}

// Reads a whole number of at most LARGEST_WHOLE exactly: plain digits, or a form like 1e3 or 2.0.
static inline bool json_whole(const Json *json, int value, int64_t *out) {
    char digits[400];
    Error ignored;
    *out = 0;
    if (!json_digits(json, value, digits, sizeof(digits), &ignored)) { return false; }
    if (strpbrk(digits, ".eE") == NULL) { return read_whole(digits, out); }
    double number = strtod(digits, NULL);
    if (!(fabs(number) <= (double)LARGEST_WHOLE)) { return false; }
    *out = (int64_t)number;
    return (double)*out == number;
}

// Reads a whole number from min to max.
static inline bool json_int(const Json *json, int value, int64_t min, int64_t max, int64_t *out, Error *error) {
    const JsonValue *v = &json->values[value];
    if (!json_whole(json, value, out) || *out < min || *out > max) {
        return fail(error, "%s: byte %d: expected a whole number from %lld to %lld, found %.*s", json->name, v->start,
                    (long long)min, (long long)max, (int)min_i64(v->end - v->start, 40), json->text + v->start);
    }
    return true;
}

// ---- Writing ----

typedef enum { JSON_LINES, JSON_FLAT } JsonLayout; // one line for each member, or one line for all

typedef struct {
    Text text;
    int depth;                     // containers that are open
    bool has_members;              // of the innermost container
    char closing[JSON_MAX_DEPTH];  // '}' or ']' of each container
    bool in_lines[JSON_MAX_DEPTH]; // layout of each container
} JsonOut;

static inline void json_out_free(JsonOut *out) {
    text_free(&out->text);
    memset(out, 0, sizeof(*out));
}

// Adds a string in quotes. Characters that steer a terminal and characters above `last` are escaped; these must be
// below U+10000.
static inline void json_quote(Text *out, const char *string, uint32_t last) {
    const uint8_t *at = (const uint8_t *)string, *end = at + strlen(string);
    text_words(out, "\"");
    for (int n; at < end; at += max_i64(n, 1)) {
        uint32_t c = 0;
        n = utf8_decode(at, (size_t)(end - at), &c);
        if (n == 0) {
            text_words(out, UTF8_REPLACEMENT);
        } else if (c == '"' || c == '\\') {
            text_printf(out, "\\%c", (int)c);
        } else if (c == '\n' || c == '\t') {
            text_words(out, c == '\n' ? "\\n" : "\\t");
        } else if (text_steers(c) || c > last) {
            text_printf(out, "\\u%04x", (unsigned)c);
        } else {
            text_bytes(out, (const char *)at, (size_t)n);
        }
    }
    text_words(out, "\"");
}

static inline void json_out_new_line(JsonOut *out) {
    text_words(&out->text, "\n");
    for (int i = 0; i < out->depth; i++) { text_words(&out->text, "  "); }
}

// Writes everything that precedes a value: the comma, the line break or space, the key.
static inline void json_out_before(JsonOut *out, const char *key) {
    bool lines = out->depth > 0 && out->in_lines[out->depth - 1];
    if (out->has_members) { text_words(&out->text, lines ? "," : ", "); }
    if (lines) { json_out_new_line(out); }
    out->has_members = true;
    if (key == NULL) { return; }
    json_quote(&out->text, key, 0x10ffff);
    text_words(&out->text, ": ");
}

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

// Returns false when out of memory.
static inline bool json_out_end(JsonOut *out) {
    json_out_close(out);
    text_words(&out->text, "\n");
    return !out->text.failed;
}

static inline void json_out_text(JsonOut *out, const char *key, const char *string) {
    json_out_before(out, key);
    json_quote(&out->text, string, 0x10ffff);
}

// Adds valid JSON, but escapes the characters of its strings that steer a terminal. Every space between values is ' '.
static inline void json_add_again(Text *out, const char *json, size_t bytes) {
    const uint8_t *at = (const uint8_t *)json, *end = at + bytes;
    for (int n; at < end; at += max_i64(n, 1)) {
        uint32_t c = 0;
        n = utf8_decode(at, (size_t)(end - at), &c);
        if (c < 32) {
            text_words(out, " ");
        } else if (text_steers(c)) {
            text_printf(out, "\\u%04x", (unsigned)c);
        } else {
            text_bytes(out, (const char *)at, (size_t)n);
        }
    }
}

// Adds a value that already is JSON.
static inline void json_out_raw(JsonOut *out, const char *key, const char *json, size_t bytes) {
    json_out_before(out, key);
    json_add_again(&out->text, json, bytes);
}

static inline void json_out_bool(JsonOut *out, const char *key, bool value) {
    json_out_raw(out, key, value ? "true" : "false", value ? 4 : 5);
}

static inline void json_out_int(JsonOut *out, const char *key, int64_t value) {
    json_out_before(out, key);
    text_printf(&out->text, "%lld", (long long)value);
}

// Writes the fewest digits that give the number back exactly, and null for NaN and the infinities.
static inline void json_out_real(JsonOut *out, const char *key, double value) {
    char digits[40] = "null";
    if (isfinite(value)) { format_real(digits, sizeof(digits), value); }
    json_out_raw(out, key, digits, strlen(digits));
}

static inline void json_out_hex(JsonOut *out, const char *key, uint64_t value) {
    json_out_before(out, key);
    text_printf(&out->text, "\"%016llx\"", (unsigned long long)value);
}

static inline void json_out_texts(JsonOut *out, const char *key, char *const *texts, int count) {
    json_out_open(out, key, '[', JSON_FLAT);
    for (int i = 0; i < count; i++) { json_out_text(out, NULL, texts[i]); }
    json_out_close(out);
}

#endif // LLMC_JSON_H
