// JSON as it is written: read again with the parser of llmc/base/json.h, everything is what it was.
#include "llmc/base/json.h"
#include "dev/test/plain.h"
#include "dev/test/test.h"

TEST(test_layout) {
    JsonOut out;
    char *const words[] = {(char *)"a", (char *)"b c"};
    json_out_begin(&out);
    json_out_int(&out, "format", 1);
    json_out_open(&out, "flat", '{', JSON_FLAT);
    json_out_bool(&out, "yes", true);
    json_out_bool(&out, "no", false);
    json_out_close(&out);
    json_out_texts(&out, "words", words, 2);
    json_out_texts(&out, "none", words, 0);
    json_out_open(&out, "lines", '[', JSON_LINES);
    json_out_open(&out, NULL, '{', JSON_FLAT);
    json_out_hex(&out, "hash", 0xabc);
    json_out_close(&out);
    json_out_real(&out, NULL, 0.5);
    json_out_close(&out);
    json_out_open(&out, "empty", '{', JSON_LINES);
    json_out_close(&out);
    CHECK(t, json_out_end(&out), "out of memory");
    const char *expected = "{\n  \"format\": 1,\n  \"flat\": {\"yes\": true, \"no\": false},\n"
                           "  \"words\": [\"a\", \"b c\"],\n  \"none\": [],\n"
                           "  \"lines\": [\n    {\"hash\": \"0000000000000abc\"},\n    0.5\n  ],\n  \"empty\": {}\n}\n";
    CHECK(t, strcmp(out.text.data, expected) == 0 && out.text.used == strlen(expected), "%s", out.text.data);
    json_out_free(&out);
}

// {"v": ...}, written and read again.
typedef struct {
    JsonOut out;
    Json json;
    int value;
} Again;

// After the value was written: reads it. again_end frees what is there, also after a failure.
static bool again_read(Test *t, Again *a) {
    Error error = {""};
    memset(&a->json, 0, sizeof(a->json));
    bool ok = CHECK(t, json_out_end(&a->out), "out of memory") &&
              CHECK(t, json_parse(&a->json, "JSON", a->out.text.data, (int64_t)a->out.text.used, &error), "%s: %s",
                    error.text, a->out.text.data);
    a->value = ok ? json_find(&a->json, 0, "v") : -1;
    return ok && CHECK(t, a->value > 0, "no value: %s", a->out.text.data);
}

static void again_end(Again *a) { json_free(&a->json), json_out_free(&a->out); }

static void check_text(Test *t, const char *text, const char *expected) {
    Again a;
    char got[1024];
    Error error = {""};
    json_out_begin(&a.out);
    json_out_text(&a.out, "v", text);
    if (again_read(t, &a)) {
        CHECK(t, json_string(&a.json, a.value, got, sizeof(got), &error), "%s", error.text);
        CHECK(t, strcmp(got, expected) == 0, "'%s' became '%s'", text, got);
    }
    CHECK(t, is_plain(a.out.text.data, a.out.text.used), "a control character: %s", a.out.text.data);
    again_end(&a);
}

TEST(test_texts) {
    static const char *const same[] = {"",
                                       "plain",
                                       "\"quoted\" \\ back\\slash",
                                       "tab\tline\nreturn\r",
                                       "\x01\x1f\x7f",
                                       "\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80",
                                       "a/b'c",
                                       "\xc2\x9b\x33\x31m \xe2\x80\xae \xe2\x81\xa6 \xd8\x9c",
                                       "{\"not\": [json]}"};
    static const struct {
        const char *text, *expected; // U+FFFD for each byte that is none of a character
    } cases[] = {{"\xff", "\xef\xbf\xbd"},
                 {"a\xc3", "a\xef\xbf\xbd"},
                 {"\xc3(", "\xef\xbf\xbd("},
                 {"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"}, // half of a surrogate pair
                 {"\xf0\x9f\x98", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
                 {"\xc0\x80", "\xef\xbf\xbd\xef\xbf\xbd"}};
    for (size_t i = 0; i < sizeof(same) / sizeof(same[0]); i++) { check_text(t, same[i], same[i]); }
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) { check_text(t, cases[i].text, cases[i].expected); }
    for (int byte = 1; byte < 256; byte++) { // every byte, alone and between others
        char text[4] = {(char)byte, '\0', 'z', '\0'}, between[4] = {'y', (char)byte, 'z', '\0'};
        char expected[8], expected_between[16];
        snprintf(expected, sizeof(expected), "%s", byte < 128 ? text : "\xef\xbf\xbd");
        snprintf(expected_between, sizeof(expected_between), "y%sz", expected);
        check_text(t, text, expected);
        check_text(t, between, expected_between);
    }
}

// JSON of another file, copied: its strings stay the same, and nothing in it steers a terminal.
TEST(test_copied_json) {
    static const char copied[] = "{\r\"\xc2\x9b\x7f\xe2\x80\xae\": [1,\t\n2]\r}";
    Again a;
    json_out_begin(&a.out);
    json_out_raw(&a.out, "v", copied, strlen(copied));
    if (again_read(t, &a)) {
        int list = json_find(&a.json, a.value, "\xc2\x9b\x7f\xe2\x80\xae");
        CHECK(t, list > 0 && a.json.values[list].count == 2, "%s", a.out.text.data);
        CHECK(t, is_plain(a.out.text.data, a.out.text.used) && strchr(a.out.text.data, '\t') == NULL, "%s",
              a.out.text.data);
    }
    again_end(&a);
}

TEST(test_numbers) {
    static const double reals[] = {0.0, 1.0, -1.5, 3e-4, 1e-8, 0.1, 1.0 / 3.0, 1e300, 5e-324, 1.7976931348623157e308};
    static const int64_t wholes[] = {0, 1, -1, LARGEST_WHOLE, -LARGEST_WHOLE};
    Again a;
    Error error = {""};
    for (size_t i = 0; i < sizeof(reals) / sizeof(reals[0]); i++) {
        double got = NAN;
        json_out_begin(&a.out);
        json_out_real(&a.out, "v", reals[i]);
        bool ok = again_read(t, &a) && json_double(&a.json, a.value, &got, &error);
        CHECK(t, ok && got == reals[i], "%.17g became %.17g", reals[i], got);
        again_end(&a);
    }
    for (size_t i = 0; i < sizeof(wholes) / sizeof(wholes[0]); i++) {
        int64_t got = 7;
        json_out_begin(&a.out);
        json_out_int(&a.out, "v", wholes[i]);
        bool ok = again_read(t, &a) && json_int(&a.json, a.value, INT64_MIN, INT64_MAX, &got, &error);
        CHECK(t, ok && got == wholes[i], "%lld became %lld", (long long)wholes[i], (long long)got);
        again_end(&a);
    }
    JsonOut out;
    json_out_begin(&out);
    json_out_real(&out, "nan", NAN);
    json_out_real(&out, "inf", -INFINITY);
    CHECK(t, json_out_end(&out) && strcmp(out.text.data, "{\n  \"nan\": null,\n  \"inf\": null\n}\n") == 0, "%s",
          out.text.data);
    json_out_free(&out);
}

TEST(test_long) {
    enum { MANY = 20000 };
    Again a;
    json_out_begin(&a.out);
    json_out_open(&a.out, "v", '[', JSON_FLAT);
    for (int i = 0; i < MANY; i++) { json_out_text(&a.out, NULL, "a somewhat longer text"); }
    json_out_close(&a.out);
    if (again_read(t, &a)) { CHECK(t, a.json.values[a.value].count == MANY, "elements are lost"); }
    again_end(&a);
}
