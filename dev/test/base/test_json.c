// The JSON parser: values, strings, whole numbers, and every way a text can be wrong, with the byte where.
#include "llmc/base/json.h"
#include "dev/test/test.h"

static bool parse(Json *json, const char *text, Error *error) {
    return json_parse(json, "x.json", text, (int64_t)strlen(text), error);
}

TEST(test_values) {
    const char *text =
        " {\"a\": [1, 2.5e1, -0, [], {}], \"b\": {\"c\": null, \"d\": true, \"e\": false},\t\"f\":\"g\"}\r\n";
    Json json;
    Error error;
    double number;
    int64_t whole;
    char string[8];
    CHECK(t, parse(&json, text, &error), "%s", error.text);
    CHECK(t, json.count == 18 && json.values[0].kind == JSON_OBJECT && json.values[0].count == 3, "outer object");
    CHECK(t, json.values[0].next == json.count, "the outer value holds all others");
    int a = json_find(&json, 0, "a"), b = json_find(&json, 0, "b"), f = json_find(&json, 0, "f");
    CHECK(t, json.values[a].kind == JSON_ARRAY && json.values[a].count == 5, "array of %d", json.values[a].count);
    CHECK(t, json_int(&json, a + 1, 0, 9, &whole, &error) && whole == 1, "1");
    CHECK(t, json_double(&json, a + 2, &number, &error) && number == 25.0, "2.5e1");
    CHECK(t, json_int(&json, a + 3, 0, 0, &whole, &error) && whole == 0, "-0");
    CHECK(t, json.values[a + 4].count == 0 && json.values[a + 5].kind == JSON_OBJECT, "empty containers");
    CHECK(t, json_find(&json, b, "d") > 0 && json.values[json_find(&json, b, "d")].kind == JSON_BOOL, "true");
    CHECK(t, json_find(&json, b, "a") == -1 && json_find(&json, 0, "") == -1, "members that do not exist");
    CHECK(t, json_find(&json, a, "a") == -1, "an array has no members");
    CHECK(t, json_string(&json, f, string, sizeof(string), &error) && strcmp(string, "g") == 0, "string");
    CHECK(t, !json_string(&json, f, string, 1, &error), "a string that does not fit is refused");
    json_free(&json);
    const char *single[] = {"0", "null", "\"\"", "[]", "{}", "-1.5E+300"};
    for (int i = 0; i < 6; i++) {
        CHECK(t, parse(&json, single[i], &error) && json.count == 1, "%s: %s", single[i], error.text);
        json_free(&json);
    }
}

TEST(test_strings) {
    static const struct {
        const char *json, *want;
    } cases[] = {
        {"\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"", "\"\\/\b\f\n\r\t"},
        {"\"\\u0041\\u00e9\\u20AC\\uD83D\\ude00\"", "A\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"},
        {"\"plain \xc3\xa9 \xed\x9f\xbf \xf4\x8f\xbf\xbf\"", "plain \xc3\xa9 \xed\x9f\xbf \xf4\x8f\xbf\xbf"},
        {"\"\\uFFFFx\\u007f\\u0080\\u07ff\\u0800\"", "\xef\xbf\xbfx\x7f\xc2\x80\xdf\xbf\xe0\xa0\x80"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        Json json;
        Error error;
        char text[64];
        bool ok = parse(&json, cases[i].json, &error) && json_string(&json, 0, text, sizeof(text), &error);
        CHECK(t, ok && strcmp(text, cases[i].want) == 0, "%s: got '%s' (%s)", cases[i].json, text, error.text);
        CHECK(t, json_equals(&json, 0, cases[i].want) && !json_equals(&json, 0, "plain"), "%s: equality",
              cases[i].json);
        json_free(&json);
    }
    Json json;
    Error error;
    char text[8];
    CHECK(t, parse(&json, "\"a\\u0000b\"", &error), "an escaped NUL is a legal string: %s", error.text);
    CHECK(t, !json_string(&json, 0, text, sizeof(text), &error), "but not a C string");
    json_free(&json);
    CHECK(t, parse(&json, "{\"\\u0061\": 7}", &error) && json_find(&json, 0, "a") == 2, "an escaped key is found");
    json_free(&json);
}

TEST(test_whole_numbers) {
    static const struct {
        const char *json;
        bool ok;
        int64_t want;
    } cases[] = {
        {"9007199254740992", true, LARGEST_WHOLE},
        {"-9007199254740992", true, -LARGEST_WHOLE},
        {"9007199254740993", false, 0},
        {"-9007199254740993", false, 0},
        {"9223372036854775807", false, 0},
        {"9223372036854775808", false, 0},
        {"-9223372036854775809", false, 0},
        {"99999999999999999999999", false, 0},
        {"1e3", true, 1000},
        {"2.0", true, 2},
        {"-3.5e1", true, -35},
        {"1.5", false, 0},
        {"1e300", false, 0},
        {"1e999", false, 0},
        {"9007199254740992.0", true, 9007199254740992},
        {"9007199254740993e0", true, 9007199254740992}, // through a double, where the two are one number
        {"1e16", false, 0},
        {"\"1\"", false, 0},
        {"true", false, 0},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        Json json;
        Error error;
        int64_t got = 0;
        CHECK(t, parse(&json, cases[i].json, &error), "%s", error.text);
        bool ok = json_int(&json, 0, INT64_MIN, INT64_MAX, &got, &error);
        CHECK(t, ok == cases[i].ok && (!ok || got == cases[i].want), "%s: %d %lld", cases[i].json, ok, (long long)got);
        json_free(&json);
    }
    Json json;
    Error error;
    int64_t got;
    CHECK(t, parse(&json, "[1, 50257]", &error) && !json_int(&json, 2, 1, 1000, &got, &error), "out of range");
    CHECK(t, strcmp(error.text, "x.json: byte 4: expected a whole number from 1 to 1000, found 50257") == 0, "%s",
          error.text);
    json_free(&json);
}

TEST(test_refused) {
    static const struct {
        const char *json, *message;
    } cases[] = {
        {"", "x.json: byte 0: ends where a value is expected (truncated?)"},
        {"  ", "x.json: byte 2: ends where a value is expected (truncated?)"},
        {"{\"a\":1", "x.json: byte 6: expected ',' or '}'"},
        {"{\"a\":", "x.json: byte 5: ends where a value is expected (truncated?)"},
        {"{\"a\"", "x.json: byte 4: expected ':' after a key"},
        {"{\"a", "x.json: byte 1: a string begins here and does not end (truncated?)"},
        {"{a:1}", "x.json: byte 1: expected a key in quotes"},
        {"{\"a\":1,}", "x.json: byte 7: expected a key in quotes"},
        {"[1,]", "x.json: byte 3: expected a value"},
        {"[1 2]", "x.json: byte 3: expected ',' or ']'"},
        {"[1}", "x.json: byte 2: expected ',' or ']'"},
        {"{} {}", "x.json: byte 3: the value has ended, but more text follows"},
        {"01", "x.json: byte 0: a number must not begin with 0"},
        {"-", "x.json: byte 0: expected a value"},
        {"+1", "x.json: byte 0: expected a value"},
        {".5", "x.json: byte 0: expected a value"},
        {"1.", "x.json: byte 2: expected a digit after the decimal point"},
        {"1e+", "x.json: byte 3: expected a digit in the exponent"},
        {"NaN", "x.json: byte 0: expected a value"},
        {"nul", "x.json: byte 0: expected a value"},
        {"truely", "x.json: byte 4: the value has ended, but more text follows"},
        {"\"\t\"", "x.json: byte 1: control character in a string, it must be escaped"},
        {"\"\\x\"", "x.json: byte 1: invalid escape in a string (or half a surrogate pair)"},
        {"\"\\u12g4\"", "x.json: byte 1: invalid escape in a string (or half a surrogate pair)"},
        {"\"\\ud800\"", "x.json: byte 1: invalid escape in a string (or half a surrogate pair)"},
        {"\"\\ud800\\u0041\"", "x.json: byte 1: invalid escape in a string (or half a surrogate pair)"},
        {"\"\\udc00\"", "x.json: byte 1: invalid escape in a string (or half a surrogate pair)"},
        {"\"\xff\"", "x.json: byte 1: invalid UTF-8 in a string"},
        {"\"\xc0\x80\"", "x.json: byte 1: invalid UTF-8 in a string"},
        {"\"\xed\xa0\x80\"", "x.json: byte 1: invalid UTF-8 in a string"},
        {"\"\xf4\x90\x80\x80\"", "x.json: byte 1: invalid UTF-8 in a string"},
        {"\"\xe2\x82\"", "x.json: byte 1: invalid UTF-8 in a string"},
        {"\xef\xbb\xbf{}", "x.json: byte 0: expected a value"},
        {"{\"a\":1,\"b\":2,\"\\u0061\":3}", "x.json: byte 14: key \"\\u0061\" is given twice"},
        {"[{\"a\":1},{\"a\":1,\"a\":1}]", "x.json: byte 17: key \"a\" is given twice"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        Json json;
        Error error = {"(accepted)"};
        CHECK(t, !parse(&json, cases[i].json, &error), "accepted: %s", cases[i].json);
        CHECK(t, strcmp(error.text, cases[i].message) == 0, "%s: got '%s'", cases[i].json, error.text);
        json_free(&json);
    }
}

TEST(test_depth_and_size) {
    enum { MANY = 200000 };
    char *text = (char *)malloc(MANY);
    Json json;
    Error error;
    memset(text, '[', MANY);
    CHECK(t, !json_parse(&json, "x.json", text, MANY, &error), "200,000 open brackets are refused");
    CHECK(t, strcmp(error.text, "x.json: byte 64: nested too deeply") == 0, "%s", error.text);
    json_free(&json);
    memset(text + 64, ']', 64);
    CHECK(t, json_parse(&json, "x.json", text, 128, &error) && json.count == 64, "64 levels are fine: %s", error.text);
    json_free(&json);
    for (int i = 0; i < MANY / 2; i++) { memcpy(text + 2 * i, "1,", 2); }
    text[0] = '[', text[MANY - 1] = ']', text[1] = ' ';
    CHECK(t, json_parse(&json, "x.json", text, MANY, &error) && json.values[0].count == MANY / 2 - 1, "long array: %s",
          error.text);
    json_free(&json);
    CHECK(t, !json_parse(&json, "x.json", text, (int64_t)1 << 40, &error), "sizes beyond int are refused");
    json_free(&json);
    free(text);
}

TEST(test_member) {
    const char *line = "{\"id\": 3, \"text\": \"one\\ntwo \\ud83d\\ude00\", \"n\": 5}";
    Json json;
    int value;
    Error error;
    CHECK(t, parse(&json, line, &error), "%s", error.text);
    CHECK(t, json_member(&json, "text", JSON_STRING, "a string", &value, &error), "%s", error.text);
    CHECK(t, json.values[value].count == 12 && strcmp(json_decoded(&json, value), "one\ntwo \xf0\x9f\x98\x80") == 0,
          "'%s' of %d bytes", json_decoded(&json, value), json.values[value].count);
    CHECK(t, !json_member(&json, "txt", JSON_STRING, "a string", &value, &error), "field missing");
    CHECK(t, strcmp(error.text, "x.json: no field \"txt\"") == 0, "%s", error.text);
    CHECK(t, !json_member(&json, "n", JSON_STRING, "a string", &value, &error), "field not a string");
    CHECK(t, strcmp(error.text, "x.json: field \"n\" is not a string") == 0, "%s", error.text);
    json_free(&json);
    CHECK(t, parse(&json, "[1]", &error) && !json_member(&json, "n", JSON_NUMBER, "a number", &value, &error),
          "not an object");
    CHECK(t, strcmp(error.text, "x.json: not an object ({...})") == 0, "%s", error.text);
    json_free(&json);
    for (size_t n = 0; n < strlen(line); n++) {
        CHECK(t, !json_parse(&json, "x.json", line, (int64_t)n, &error), "cut after %zu bytes", n);
        json_free(&json);
    }
}
