// JSON as it is written. test_run_folder.py reads it with Python's parser.
#include "llmc/base/json_out.h"
#include "dev/test/test.h"

TEST(test_layout) {
    Text out = {NULL, 0, 0, false};
    json_put(&out, NULL, "{");
    json_put(&out, "words", "[");
    json_put_text(&out, NULL, "a");
    json_put_text(&out, NULL, "b [{");
    text_words(&out, "]");
    json_put(&out, "empty", "{");
    text_words(&out, "}");
    json_put(&out, "half", "%.1f", 0.5);
    text_words(&out, "}");
    const char *expected = "{\"words\": [\"a\", \"b [{\"], \"empty\": {}, \"half\": 0.5}";
    CHECK(t, !out.failed && strcmp(out.data, expected) == 0, "%s", out.data);
    text_free(&out);
}

TEST(test_texts) {
    static const struct {
        const char *text, *expected;
    } cases[] = {{"", ""},
                 {"a/b'c {}", "a/b'c {}"},
                 {"\"q\" \\", "\\\"q\\\" \\\\"},
                 {"\t\n\r\x01\x1f\x7f", "\\u0009\\u000a\\u000d\\u0001\\u001f\\u007f"},
                 {"\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80", "\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80"},
                 {"\xc2\x9b\x33\xe2\x80\xae\xe2\x81\xa6\xd8\x9c", "\\u009b3\\u202e\\u2066\\u061c"},
                 {"a\xc3", "a\xef\xbf\xbd"}, // U+FFFD for each byte that belongs to no character
                 {"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
                 {"\xc0\x80(", "\xef\xbf\xbd\xef\xbf\xbd("}};
    FOR_EACH(i, cases) {
        Text out = {NULL, 0, 0, false};
        const char *expected = format("\"%s\"", cases[i].expected);
        json_put_text(&out, NULL, cases[i].text);
        CHECK(t, strcmp(out.data, expected) == 0, "%s, expected %s", out.data, expected);
        text_free(&out);
    }
}
