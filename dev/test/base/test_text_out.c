// What the programs print, and what a model writes: always valid UTF-8, never a control sequence or a forged line.
#include "llmc/base/text.h"
#include "dev/test/test.h"

// Sends bytes in pieces of a given size and compares what comes out.
static void check_output(Test *t, const char *bytes, size_t count, int piece, const char *want) {
    FILE *file = tmpfile();
    if (!CHECK(t, file != NULL, "no temporary file")) { return; }
    TextOut text = {file, {0}, 0};
    for (size_t i = 0; i < count; i += (size_t)piece) {
        text_out_write(&text, (const uint8_t *)bytes + i, (int)min_i64(piece, (int64_t)(count - i)));
    }
    text_out_end(&text);
    char got[256] = "";
    rewind(file);
    size_t n = fread(got, 1, sizeof(got) - 1, file);
    CHECK(t, n == strlen(want) && memcmp(got, want, n) == 0, "pieces of %d: got '%s', want '%s'", piece, got, want);
    fclose(file);
}

static void check_all_pieces(Test *t, const char *bytes, const char *want) {
    for (int piece = 1; piece <= 5; piece++) { check_output(t, bytes, strlen(bytes), piece, want); }
}

#define BAD "\xef\xbf\xbd" // U+FFFD

TEST(test_characters_pass) {
    check_all_pieces(t, "plain\n\ttext", "plain\n\ttext");
    check_all_pieces(t, "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80");
}

TEST(test_invalid_bytes_are_replaced) {
    check_all_pieces(t,
                     "a\xff\xfe"
                     "b",
                     "a" BAD BAD "b");
    check_all_pieces(t, "\x80\xbf", BAD BAD);
    check_all_pieces(t, "\xe2\x82", BAD BAD);         // cut off at the end
    check_all_pieces(t, "\xe2\x82x", BAD BAD "x");    // cut off by a letter
    check_all_pieces(t, "\xc0\xaf", BAD BAD);         // overlong
    check_all_pieces(t, "\xed\xa0\x80", BAD BAD BAD); // a surrogate
    check_all_pieces(t, "\xf0\x9f\xc3\xa9", BAD BAD "\xc3\xa9");
}

TEST(test_control_characters_are_replaced) {
    check_all_pieces(t, "\x1b[2J\r\x07\x7f", "\\x1b[2J\\x0d\\x07\\x7f");
    check_all_pieces(t, "\xc2\x9b[m\xc2\x80\xc2\x9f\xc2\xa0", "\\u009b[m\\u0080\\u009f\xc2\xa0"); // C1
    check_all_pieces(t, "\x9b\xe2\x80\xae", BAD "\\u202e");
    check_output(t, "a\0b", 3, 2, "a\\x00b");
}

// ---- Reports and errors ----

// Prints one argument as an error does, and compares. NULL: it passes unchanged.
static void check_said(Test *t, const char *text, const char *want) {
    char got[256] = "", line[256];
    FILE *file = tmpfile();
    if (!CHECK(t, file != NULL, "no temporary file")) { return; }
    say(file, "\n%s: x\n\n", text);
    snprintf(line, sizeof(line), "\n%s: x\n\n", want == NULL ? text : want);
    rewind(file);
    size_t n = fread(got, 1, sizeof(got) - 1, file);
    CHECK(t, n == strlen(line) && memcmp(got, line, n) == 0, "got '%s', want '%s'", got, line);
    fclose(file);
}

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

TEST(test_arguments_forge_no_line) {
    check_said(t, "a\nb: b", "a\\x0ab: b");
    check_said(t, "\n\t\r", "\\x0a\\x09\\x0d");
    check_said(t, "\x1b]0;title\x07", "\\x1b]0;title\\x07");
    check_said(t, "\xe2\x81\xa6\xd8\x9c", "\\u2066\\u061c");
    check_said(t, "\x9b\xc2", BAD BAD); // a raw C1 byte, half a character
    check_said(t, "", NULL);
    check_said(t,
               "Gr\xc3\xbc\xc3\x9f"
               "e \xe4\xb8\x96\xe7\x95\x8c",
               NULL);
    // a family: four people, joined by U+200D; a flag; a heart with its selector
    check_said(t, "\xf0\x9f\x91\xa8\xe2\x80\x8d\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x91\xa7", NULL);
    check_said(t, "\xf0\x9f\x87\xa9\xf0\x9f\x87\xaa \xe2\x9d\xa4\xef\xb8\x8f", NULL);
    check_said(t, "\xd7\xa9\xd7\x9c\xd7\x95\xd7\x9d", NULL); // Hebrew letters need no marks
}

// Long texts are cut, but never within what say() must keep: the newline at the end.
TEST(test_long_texts) {
    static char text[2 * SAY_MAX_BYTES], got[2 * SAY_MAX_BYTES];
    memset(text, '\x1b', sizeof(text) - 1);
    FILE *file = tmpfile();
    if (!CHECK(t, file != NULL, "no temporary file")) { return; }
    say(file, "%s\n", text);
    rewind(file);
    size_t n = fread(got, 1, sizeof(got), file);
    CHECK(t, n > SAY_MAX_BYTES - 16 && n <= SAY_MAX_BYTES && got[n - 1] == '\n', "%zu bytes", n);
    CHECK(t, memchr(got, '\x1b', n) == NULL && memchr(got, '\n', n) == got + n - 1, "not filtered to the end");
    fclose(file);
}
