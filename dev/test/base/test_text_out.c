// What a model writes, on its way to the terminal: always valid UTF-8, never a control sequence.
#include "llmc/base/text_out.h"
#include "dev/test/test.h"

// Sends bytes in pieces of a given size and compares what comes out.
static void check_output(Test *t, const char *bytes, size_t count, int piece, const char *want) {
    FILE *file = tmpfile();
    if (!CHECK(t, file != NULL, "no temporary file")) { return; }
    TextOut text;
    text_out_begin(&text, file);
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
    check_all_pieces(t, "\x1b[2J\r\x07\x7f", "?[2J???");
    check_all_pieces(t,
                     "\xc2\x9b"
                     "31m\xc2\x80\xc2\x9f\xc2\xa0",
                     "?31m??\xc2\xa0"); // C1: ESC [ in two bytes
    check_output(t, "a\0b", 3, 2, "a?b");
}
