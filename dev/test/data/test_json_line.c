// A line of JSON: members, decoded strings, and every way a line can be wrong, with the byte where.
#include "llmc/data/json_line.h"
#include "dev/test/refused.h"

// Finds the text of the field "t" of the line.
static bool find(const char *line, Text *out, Error *error) {
    JsonLine value;
    memset(out, 0, sizeof(*out));
    return json_line_find(line, strlen(line), "t", &value, error) && json_line_string(&value, out);
}

TEST(test_texts) {
    static const struct {
        const char *line, *want;
    } cases[] = {
        {"{\"t\":\"\"}", ""},
        {" { \"a\" : [1, {\"t\": 2.5e1}, -0, [], {}, null, true, false] , \"t\" :\t\"g\" } \r\n", "g"},
        {"{\"tt\": 1, \"\": 2, \"t\": \"x\", \"u\": {\"t\": {}}}", "x"},
        {"{\"t\": \"\\\"\\\\\\/\\b\\f\\n\\r\\t\"}", "\"\\/\b\f\n\r\t"},
        {"{\"t\": \"\\u0041\\u00e9\\u20AC\\uD83D\\ude00\"}", "A\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"},
        {"{\"t\": \"plain \xc3\xa9 \xed\x9f\xbf \xf4\x8f\xbf\xbf\"}", "plain \xc3\xa9 \xed\x9f\xbf \xf4\x8f\xbf\xbf"},
        {"{\"t\": \"\\uFFFFx\\u007f\\u0080\\u07ff\\u0800\"}", "\xef\xbf\xbfx\x7f\xc2\x80\xdf\xbf\xe0\xa0\x80"},
    };
    FOR_EACH(i, cases) {
        Text text;
        bool ok = find(cases[i].line, &text, &error);
        CHECK(t, ok && text.used == strlen(cases[i].want) && strcmp(text.data, cases[i].want) == 0, "%s: %s",
              cases[i].line, error.text);
        text_free(&text);
    }
    Text text;
    CHECK(t, find("{\"t\": \"a\\u0000b\"}", &text, &error) && text.used == 3 && memcmp(text.data, "a\0b", 3) == 0,
          "a NUL is a character like another: %s", error.text);
    text_free(&text);
}

TEST(test_refused) {
#define NO_CHARACTER "byte 6: no character of a string: a bad escape, or no UTF-8"
    static const struct {
        const char *line, *message;
    } cases[] = {
        {"", "not an object ({...})"},
        {"{}", "no field \"t\""},
        {"{\"t\":1}", "byte 5: expected a string"},
        {"{\"t\":\"a\"", "byte 8: an object or a list does not end"},
        {"{\"t", "byte 1: a string begins here and does not end"},
        {"{\"a\":\"t\",\"b\":\"t\"}", "no field \"t\""},
        {"{\"a\":[1}", "byte 8: an object or a list does not end"},
        {"{\"t\":\"a\"} {}", "byte 10: the object has ended, but more text follows"},
        {"{\"t\":\"a\",\"t\":2}", "byte 13: expected a string"},
        {"{\"t\":\"\t\"}", NO_CHARACTER},
        {"{\"t\":\"\\u12g4\"}", NO_CHARACTER},
        {"{\"t\":\"\\ud800\\u0041\"}", NO_CHARACTER},
        {"{\"t\":\"\xff\"}", NO_CHARACTER},
    };
    FOR_EACH(i, cases) {
        Text text;
        REFUSED(t, find(cases[i].line, &text, &error), "JSON line: ", cases[i].message);
        text_free(&text);
    }
}
