// A small strict JSON parser (RFC 8259): safetensors headers, config.json and JSON lines.
//
// The text becomes a flat array of values in the order they appear; a container is followed by its contents, an
// object's contents are key, value, key, value. Nesting is kept on a small stack of its own, so no input can exhaust
// the C stack. Refused with the byte offset: anything the grammar does not allow, invalid UTF-8, half of a surrogate
// pair, a key given twice, more than JSON_MAX_DEPTH levels.
#ifndef LLMC_JSON_H
#define LLMC_JSON_H

#include "llmc/base/hash.h"
#include "llmc/base/utils.h"

#define JSON_MAX_DEPTH 64
#define JSON_MAX_VALUES (1 << 22) // bounds the memory for hostile input; the header of any GPT has a few thousand

typedef enum { JSON_NULL, JSON_BOOL, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT } JsonKind;

typedef struct {
    JsonKind kind;
    int start, end; // its bytes in the text; for a string those between the quotes
    int next;       // index of the first value after this one and all it contains
    int count;      // elements of an array, members of an object
} JsonValue;

typedef struct {
    const char *name; // of the text, for messages; borrowed
    const char *text; // borrowed
    JsonValue *values;
    int count, capacity; // value 0 is the outermost one
} Json;

typedef struct {
    Json *json;
    const char *text;
    int at, end;
    int open[JSON_MAX_DEPTH]; // indices of the containers around the current place
    int depth;
    Error *error;
} JsonParser;

static inline void json_free(Json *json) {
    free(json->values);
    json->values = NULL;
    json->count = json->capacity = 0;
}

// ---- Strings ----

static inline bool json_fail(const JsonParser *p, int at, const char *what) {
    return fail(p->error, "%s: byte %d: %s", p->json->name, at, what);
}

// Bytes of the UTF-8 character at text[at] (RFC 3629: no overlong forms, no surrogates, at most U+10FFFF), 0 if
// invalid.
static inline int json_utf8_length(const char *text, int at, int end) {
    const uint8_t *p = (const uint8_t *)text + at;
    int n = p[0] < 0x80 ? 1 : p[0] < 0xc2 ? 0 : p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : p[0] < 0xf5 ? 4 : 0;
    if (n > end - at) { return 0; }
    for (int i = 1; i < n; i++) {
        if ((p[i] & 0xc0) != 0x80) { return 0; }
    }
    bool bad = (p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] > 0x9f) || (p[0] == 0xf0 && p[1] < 0x90) ||
               (p[0] == 0xf4 && p[1] > 0x8f);
    return n > 1 && bad ? 0 : n;
}

// The value of four hexadecimal digits at text[at], -1 if they are not there.
static inline int json_hex4(const char *text, int at, int end) {
    if (end - at < 4) { return -1; }
    int value = 0;
    for (int i = at; i < at + 4; i++) {
        char c = text[i];
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0) { return -1; }
        value = 16 * value + digit;
    }
    return value;
}

// Bytes of the escape at text[at] == '\\' (2, 6, or 12 for a surrogate pair) and the code point it means; 0 if invalid.
static inline int json_escape(const char *text, int at, int end, int *code) {
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    if (end - at < 2) { return 0; }
    if (text[at + 1] != 'u') {
        const char *found = text[at + 1] == '\0' ? NULL : strchr(names, text[at + 1]);
        if (found == NULL) { return 0; }
        *code = values[found - names];
        return 2;
    }
    int high = json_hex4(text, at + 2, end);
    *code = high;
    if (high < 0 || (high >= 0xdc00 && high <= 0xdfff)) { return 0; }
    if (high < 0xd800 || high > 0xdbff) { return 6; }
    if (end - at < 12 || text[at + 6] != '\\' || text[at + 7] != 'u') { return 0; }
    int low = json_hex4(text, at + 8, end);
    if (low < 0xdc00 || low > 0xdfff) { return 0; }
    *code = 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
    return 12;
}

// Reads a string whose opening quote is at p->at; p->at goes behind the closing one.
static inline bool json_read_string(JsonParser *p, int *start, int *end) {
    *start = p->at + 1;
    for (int at = p->at + 1; at < p->end;) {
        uint8_t c = (uint8_t)p->text[at];
        if (c == '"') {
            *end = at;
            p->at = at + 1;
            return true;
        }
        if (c == '\\') {
            int code, n = json_escape(p->text, at, p->end, &code);
            if (n == 0) { return json_fail(p, at, "invalid escape in a string (or half a surrogate pair)"); }
            at += n;
        } else if (c < 0x20) {
            return json_fail(p, at, "control character in a string, it must be escaped");
        } else if (c < 0x80) {
            at++;
        } else {
            int n = json_utf8_length(p->text, at, p->end);
            if (n == 0) { return json_fail(p, at, "invalid UTF-8 in a string"); }
            at += n;
        }
    }
    return json_fail(p, p->at, "a string begins here and does not end (truncated?)");
}

// The next piece of a string that the parser has accepted: a run of plain bytes, or one escape decoded to UTF-8 in
// buffer. Moves *at on; returns the bytes of the piece, 0 at the end.
static inline int json_next_piece(const char *text, int *at, int end, char buffer[4], const char **piece) {
    int start = *at, code = 0;
    if (start >= end) { return 0; }
    if (text[start] == '\\') {
        *at += json_escape(text, start, end, &code);
        *piece = buffer;
        int n = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
        for (int i = n - 1; i > 0; i--, code >>= 6) { buffer[i] = (char)(0x80 | (code & 0x3f)); }
        static const int lead[] = {0, 0, 0xc0, 0xe0, 0xf0};
        buffer[0] = (char)(lead[n] | code);
        return n;
    }
    const char *escape = (const char *)memchr(text + start, '\\', (size_t)(end - start));
    *piece = text + start;
    *at = escape == NULL ? end : (int)(escape - text);
    return *at - start;
}

// ---- Parsing ----

static inline void json_skip_space(JsonParser *p) {
    while (p->at < p->end &&
           (p->text[p->at] == ' ' || p->text[p->at] == '\n' || p->text[p->at] == '\r' || p->text[p->at] == '\t')) {
        p->at++;
    }
}

// The character at the current place, 0 at the end (a NUL in the text is refused wherever this is compared).
static inline char json_peek(const JsonParser *p) { return p->at < p->end ? p->text[p->at] : '\0'; }

static inline bool json_append(JsonParser *p, JsonKind kind, int start, int end) {
    Json *json = p->json;
    if (json->count == json->capacity) {
        int capacity = json->capacity == 0 ? 64 : 2 * json->capacity;
        if (capacity > JSON_MAX_VALUES) { return json_fail(p, start, "more values than make sense here"); }
        JsonValue *larger = (JsonValue *)realloc(json->values, (size_t)capacity * sizeof(JsonValue));
        if (larger == NULL) { return json_fail(p, start, "out of memory"); }
        json->values = larger;
        json->capacity = capacity;
    }
    JsonValue value = {kind, start, end, json->count + 1, 0};
    json->values[json->count++] = value;
    return true;
}

static inline int json_skip_digits(JsonParser *p) {
    int start = p->at;
    while (json_peek(p) >= '0' && json_peek(p) <= '9') { p->at++; }
    return p->at - start;
}

static inline bool json_read_number(JsonParser *p) {
    int start = p->at;
    if (json_peek(p) == '-') { p->at++; }
    bool zero = json_peek(p) == '0';
    int digits = json_skip_digits(p);
    if (digits == 0) { return json_fail(p, start, "expected a value"); }
    if (zero && digits > 1) { return json_fail(p, start, "a number must not begin with 0"); }
    if (json_peek(p) == '.') {
        p->at++;
        if (json_skip_digits(p) == 0) { return json_fail(p, p->at, "expected a digit after the decimal point"); }
    }
    if (json_peek(p) == 'e' || json_peek(p) == 'E') {
        p->at++;
        if (json_peek(p) == '+' || json_peek(p) == '-') { p->at++; }
        if (json_skip_digits(p) == 0) { return json_fail(p, p->at, "expected a digit in the exponent"); }
    }
    return json_append(p, JSON_NUMBER, start, p->at);
}

static inline bool json_read_word(JsonParser *p) {
    static const struct {
        const char *word;
        int bytes;
        JsonKind kind;
    } words[] = {{"null", 4, JSON_NULL}, {"true", 4, JSON_BOOL}, {"false", 5, JSON_BOOL}};
    for (int i = 0; i < 3; i++) {
        int n = words[i].bytes;
        if (p->end - p->at >= n && memcmp(p->text + p->at, words[i].word, (size_t)n) == 0) {
            p->at += n;
            return json_append(p, words[i].kind, p->at - n, p->at);
        }
    }
    return json_fail(p, p->at, p->at == p->end ? "ends where a value is expected (truncated?)" : "expected a value");
}

// Reads `"key" :` and appends the key.
static inline bool json_read_key(JsonParser *p) {
    int start, end;
    json_skip_space(p);
    if (json_peek(p) != '"') { return json_fail(p, p->at, "expected a key in quotes"); }
    if (!json_read_string(p, &start, &end) || !json_append(p, JSON_STRING, start, end)) { return false; }
    json_skip_space(p);
    if (json_peek(p) != ':') { return json_fail(p, p->at, "expected ':' after a key"); }
    p->at++;
    return true;
}

// Reads [ or {. *complete stays false if contents follow (of an object, the first key has then been read).
static inline bool json_open_container(JsonParser *p, bool *complete) {
    bool object = p->text[p->at] == '{';
    if (p->depth == JSON_MAX_DEPTH) { return json_fail(p, p->at, "nested too deeply"); }
    if (!json_append(p, object ? JSON_OBJECT : JSON_ARRAY, p->at, p->at)) { return false; }
    int index = p->json->count - 1;
    p->at++;
    json_skip_space(p);
    if (json_peek(p) == (object ? '}' : ']')) {
        p->json->values[index].end = ++p->at;
        *complete = true;
        return true;
    }
    p->open[p->depth++] = index;
    *complete = false;
    return !object || json_read_key(p);
}

static inline bool json_read_value(JsonParser *p, bool *complete) {
    int start, end;
    json_skip_space(p);
    *complete = true;
    switch (json_peek(p)) {
    case '{':
    case '[': return json_open_container(p, complete);
    case '"': return json_read_string(p, &start, &end) && json_append(p, JSON_STRING, start, end);
    case 'n':
    case 't':
    case 'f':
    case '\0': return json_read_word(p);
    default: return json_read_number(p);
    }
}

// After a complete value: closes the containers that end here, until a comma announces another value (*more) or nothing
// is open.
static inline bool json_after_value(JsonParser *p, bool *more) {
    *more = false;
    while (p->depth > 0) {
        JsonValue *container = &p->json->values[p->open[p->depth - 1]];
        bool object = container->kind == JSON_OBJECT;
        container->count++;
        json_skip_space(p);
        char c = json_peek(p);
        if (c == ',') {
            p->at++;
            *more = true;
            return !object || json_read_key(p);
        }
        if (c != (object ? '}' : ']')) {
            return json_fail(p, p->at, object ? "expected ',' or '}'" : "expected ',' or ']'");
        }
        container->end = ++p->at;
        container->next = p->json->count;
        p->depth--;
    }
    return true;
}

// ---- Keys given twice ----

typedef struct {
    uint64_t hash;
    int value;
} JsonKey;

static inline int json_compare_keys(const void *a, const void *b) {
    const JsonKey *x = (const JsonKey *)a, *y = (const JsonKey *)b;
    if (x->hash != y->hash) { return x->hash < y->hash ? -1 : 1; }
    return x->value < y->value ? -1 : x->value > y->value;
}

static inline uint64_t json_string_hash(const Json *json, int value) {
    Hash64 hash;
    hash64_init(&hash, 0);
    char buffer[4];
    const char *piece;
    int at = json->values[value].start, n;
    while ((n = json_next_piece(json->text, &at, json->values[value].end, buffer, &piece)) > 0) {
        hash64_update(&hash, piece, (size_t)n);
    }
    return hash64_final(&hash);
}

// Sorted by hash, so that a hostile object of a million keys costs no more than n log n. Two keys of one hash count as
// equal: a collision of 64 bits does not happen unless it is made on purpose.
static inline bool json_check_keys(const JsonParser *p, int object, JsonKey *keys) {
    const Json *json = p->json;
    int n = 0;
    for (int key = object + 1; key < json->values[object].next; key = json->values[key + 1].next) {
        keys[n].hash = json_string_hash(json, key);
        keys[n++].value = key;
    }
    qsort(keys, (size_t)n, sizeof(JsonKey), json_compare_keys);
    for (int i = 1; i < n; i++) {
        if (keys[i].hash != keys[i - 1].hash) { continue; }
        const JsonValue *key = &json->values[keys[i].value];
        return fail(p->error, "%s: byte %d: key \"%.*s\" is given twice", json->name, key->start,
                    (int)min_i64(key->end - key->start, 100), json->text + key->start);
    }
    return true;
}

static inline bool json_check_all_keys(const JsonParser *p) {
    int most = 0;
    for (int i = 0; i < p->json->count; i++) {
        const JsonValue *value = &p->json->values[i];
        if (value->kind == JSON_OBJECT && value->count > most) { most = value->count; }
    }
    if (most < 2) { return true; }
    JsonKey *keys = (JsonKey *)malloc((size_t)most * sizeof(JsonKey));
    if (keys == NULL) { return json_fail(p, 0, "out of memory"); }
    bool ok = true;
    for (int i = 0; ok && i < p->json->count; i++) {
        if (p->json->values[i].kind == JSON_OBJECT) { ok = json_check_keys(p, i, keys); }
    }
    free(keys);
    return ok;
}

// Parses text (not NUL-terminated; it and `name`, which begins messages, must outlive *json). The caller frees *json,
// also after a failure.
static inline bool json_parse(Json *json, const char *name, const char *text, int64_t bytes, Error *error) {
    memset(json, 0, sizeof(*json));
    json->name = name;
    json->text = text;
    if (bytes >= INT32_MAX) { return fail(error, "%s: %lld bytes of JSON are too many", name, (long long)bytes); }
    JsonParser parser;
    memset(&parser, 0, sizeof(parser));
    parser.json = json;
    parser.text = text;
    parser.end = (int)bytes;
    parser.error = error;
    for (bool more = true; more;) {
        bool complete;
        if (!json_read_value(&parser, &complete)) { return false; }
        if (complete && !json_after_value(&parser, &more)) { return false; }
    }
    json_skip_space(&parser);
    if (parser.at < parser.end) { return json_fail(&parser, parser.at, "the value has ended, but more text follows"); }
    return json_check_all_keys(&parser);
}

// ---- Access ----

// True if the string `value` is exactly `text`.
static inline bool json_equals(const Json *json, int value, const char *text) {
    char buffer[4];
    const char *piece;
    size_t left = strlen(text);
    int at = json->values[value].start, n;
    while ((n = json_next_piece(json->text, &at, json->values[value].end, buffer, &piece)) > 0) {
        if ((size_t)n > left || memcmp(piece, text, (size_t)n) != 0) { return false; }
        text += n, left -= (size_t)n;
    }
    return left == 0;
}

// The index of an object's member, -1 if there is none or `object` is something else. To visit all members:
//   for (int key = object + 1; key < json.values[object].next; key = json.values[key + 1].next) { value is key + 1 }
static inline int json_find(const Json *json, int object, const char *key) {
    if (json->values[object].kind != JSON_OBJECT) { return -1; }
    for (int i = object + 1; i < json->values[object].next; i = json->values[i + 1].next) {
        if (json_equals(json, i, key)) { return i + 1; }
    }
    return -1;
}

// Copies a string, decoded, without a NUL at its end. A capacity of its bytes in the text (end - start) always
// suffices.
static inline bool json_decode(const Json *json, int value, uint8_t *out, size_t capacity, size_t *bytes) {
    char buffer[4];
    const char *piece;
    int at = json->values[value].start, n;
    *bytes = 0;
    while ((n = json_next_piece(json->text, &at, json->values[value].end, buffer, &piece)) > 0) {
        if ((size_t)n > capacity - *bytes) { return false; }
        memcpy(out + *bytes, piece, (size_t)n);
        *bytes += (size_t)n;
    }
    return true;
}

// Copies a string value as a C string of at most size - 1 bytes; one that is longer or holds a NUL is refused.
static inline bool json_string(const Json *json, int value, char *text, size_t size, Error *error) {
    size_t n = 0;
    int start = json->values[value].start;
    if (json->values[value].kind != JSON_STRING) {
        return fail(error, "%s: byte %d: expected a string", json->name, start);
    }
    if (!json_decode(json, value, (uint8_t *)text, size - 1, &n) || memchr(text, 0, n) != NULL) {
        return fail(error, "%s: byte %d: string longer than %zu bytes or with a NUL in it", json->name, start,
                    size - 1);
    }
    text[n] = '\0';
    return true;
}

static inline bool json_double(const Json *json, int value, double *out, Error *error) {
    const JsonValue *v = &json->values[value];
    char digits[400];
    size_t n = (size_t)(v->end - v->start);
    *out = 0.0;
    if (v->kind != JSON_NUMBER) { return fail(error, "%s: byte %d: expected a number", json->name, v->start); }
    if (n >= sizeof(digits)) { return fail(error, "%s: byte %d: number of %zu digits", json->name, v->start, n); }
    memcpy(digits, json->text + v->start, n);
    digits[n] = '\0';
    *out = strtod(digits, NULL);
    bool finite = *out >= -1.7976931348623157e308 && *out <= 1.7976931348623157e308;
    return finite || fail(error, "%s: byte %d: number out of range", json->name, v->start);
}

// Reads a whole number exactly: plain digits over the whole range of int64, or a form like 1e3 or 2.0 up to 2^53.
static inline bool json_whole(const Json *json, int value, int64_t *out) {
    const JsonValue *v = &json->values[value];
    Error ignored;
    double number;
    *out = 0;
    if (v->kind != JSON_NUMBER) { return false; }
    bool negative = json->text[v->start] == '-';
    int64_t total = 0; // counted downwards: the smallest int64 has no positive twin
    int at = v->start + negative;
    for (; at < v->end && json->text[at] >= '0' && json->text[at] <= '9'; at++) {
        int digit = json->text[at] - '0';
        if (total < (INT64_MIN + digit) / 10) { return false; }
        total = 10 * total - digit;
    }
    if (at == v->end) {
        if (!negative && total == INT64_MIN) { return false; }
        *out = negative ? total : -total;
        return true;
    }
    if (!json_double(json, value, &number, &ignored) || number < -9007199254740992.0 || number > 9007199254740992.0) {
        return false;
    }
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

// Decodes the string member `field` of one JSON line (an object) into out; a capacity of n always suffices. Messages do
// not name the file or line: the caller knows them.
static inline bool json_string_field(const char *line, size_t n, const char *field, uint8_t *out, size_t capacity,
                                     size_t *bytes, Error *error) {
    Json json;
    bool ok = json_parse(&json, "JSON line", line, n < INT32_MAX ? (int64_t)n : INT32_MAX, error);
    if (ok && json.values[0].kind != JSON_OBJECT) { ok = fail(error, "JSON line: not an object ({...})"); }
    int value = ok ? json_find(&json, 0, field) : -1;
    if (ok && value < 0) { ok = fail(error, "JSON line: no field \"%s\"", field); }
    if (ok && json.values[value].kind != JSON_STRING) {
        ok = fail(error, "JSON line: field \"%s\" is not a string", field);
    }
    if (ok && !json_decode(&json, value, out, capacity, bytes)) {
        ok = fail(error, "JSON line: field \"%s\" is longer than %zu bytes", field, capacity);
    }
    json_free(&json);
    return ok;
}

#endif // LLMC_JSON_H
