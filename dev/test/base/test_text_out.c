// What the programs print, and what a model writes: always valid UTF-8, never a control sequence or a forged line.
#include "llmc/base/text.h"
#include "dev/test/test.h"

// What has been written to a file, which this closes, until the next call.
static const char *read_back(FILE *file) {
    static char got[2 * SAY_MAX_BYTES];
    rewind(file);
    got[fread(got, 1, sizeof(got) - 1, file)] = '\0';
    fclose(file);
    return got;
}

// Sends bytes in pieces of a given size and compares what comes out.
static void check_output(Test *t, const char *bytes, size_t count, int piece, const char *want) {
    TextOut text = {tmpfile(), {0}, 0};
    if (!CHECK(t, text.out != NULL, "no temporary file")) { return; }
    for (size_t i = 0; i < count; i += (size_t)piece) {
        text_out_write(&text, (const uint8_t *)bytes + i, (int)min_i64(piece, (int64_t)(count - i)));
    }
    text_out_end(&text);
    const char *got = read_back(text.out);
    CHECK(t, strcmp(got, want) == 0, "pieces of %d: got '%s', want '%s'", piece, got, want);
}

#define BAD "\xef\xbf\xbd" // U+FFFD

TEST(test_what_a_model_writes) {
    static const char *const cases[][2] = {
        {"plain\n\ttext", "plain\n\ttext"},
        {"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"},
        {"a\xff\xfe-", "a" BAD BAD "-"},                  // bytes that belong to no character
        {"\xe2\x82", BAD BAD},                            // cut off at the end
        {"\xe2\x82x", BAD BAD "x"},                       // cut off by a letter
        {"\xc0\xaf", BAD BAD},                            // overlong
        {"\xed\xa0\x80", BAD BAD BAD},                    // a surrogate
        {"\x1b[2J\r\x07\x7f", "\\x1b[2J\\x0d\\x07\\x7f"}, // characters that steer
        {"\xc2\x9b[m\xc2\x80\xc2\x9f\xc2\xa0", "\\u009b[m\\u0080\\u009f\xc2\xa0"},
    };
    FOR_EACH(i, cases) {
        for (int piece = 1; piece <= 5; piece++) {
            check_output(t, cases[i][0], strlen(cases[i][0]), piece, cases[i][1]);
        }
    }
    check_output(t, "a\0b", 3, 2, "a\\x00b");
}

// ---- Reports and errors ----

// Each character that steers, as bytes, and its neighbours, which pass.
TEST(test_every_character_is_judged) {
    for (uint32_t c = 1; c < 0x110000; c++) {
        bool c0 = c < 0x20 || c == 0x7f, c1 = c >= 0x80 && c <= 0x9f;
        bool lines = c == 0x2028 || c == 0x2029;
        bool bidi =
            (c >= 0x202a && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069) || c == 0x200e || c == 0x200f || c == 0x061c;
        char utf8[5] = "", shown[TEXT_SHOWN_BYTES], want[16];
        size_t taken, n = (size_t)utf8_encode(c, utf8);
        if (c >= 0xd800 && c < 0xe000) { continue; } // no characters
        snprintf(want, sizeof(want), c0 ? "\\x%02x" : "\\u%04x", (unsigned)c);
        if (!c0 && !c1 && !lines && !bidi) { memcpy(want, utf8, sizeof(utf8)); }
        size_t length = text_show(shown, utf8, n, false, &taken);
        if (taken == n && length == strlen(want) && memcmp(shown, want, length) == 0) { continue; }
        CHECK(t, false, "U+%04X becomes %.*s, want %s", (unsigned)c, (int)length, shown, want);
        return;
    }
}

static const char *said(Test *t, const char *words, const char *text) {
    FILE *file = tmpfile();
    if (!CHECK(t, file != NULL, "no temporary file")) { return ""; }
    say(file, words, text);
    return read_back(file);
}

TEST(test_arguments_forge_no_line) {
    static const char *const cases[][2] = {{"a\nb: b", "a\\x0ab: b"},
                                           {"\n\t\r", "\\x0a\\x09\\x0d"},
                                           {"\x9b\xc2", BAD BAD}}; // a raw C1 byte, half a character
    FOR_EACH(i, cases) {
        const char *want = format("\n%s: x\n\n", cases[i][1]), *got = said(t, "\n%s: x\n\n", cases[i][0]);
        CHECK(t, strcmp(got, want) == 0, "%s: %s", want, got);
    }
}

// Long texts are cut, but never within what say() must keep: the newline at the end.
TEST(test_long_texts) {
    static char text[2 * SAY_MAX_BYTES];
    memset(text, '\x1b', sizeof(text) - 1);
    const char *got = said(t, "%s\n", text);
    size_t n = strlen(got);
    CHECK(t, n > SAY_MAX_BYTES - 16 && n <= SAY_MAX_BYTES && strchr(got, '\n') == got + n - 1, "%zu bytes", n);
    CHECK(t, strchr(got, '\x1b') == NULL, "not filtered to the end");
}
