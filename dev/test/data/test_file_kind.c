// What a file is, by its first bytes: each row of the table, what looks alike, and who refuses what.
#include "dev/test/refused.h"
#include "dev/test/temp_dir.h"
#include "llmc/data/tokenizer.h"

enum { NUM_MAGICS = sizeof(file_magics) / sizeof(file_magics[0]) };

static void check_kind(Test *t, const void *bytes, int64_t n, const char *want) {
    const char *found = file_kind((const uint8_t *)bytes, n).name;
    CHECK(t, found == want || (found != NULL && want != NULL && strcmp(found, want) == 0), "%s, expected %s",
          found != NULL ? found : "nothing", want != NULL ? want : "nothing");
}

// No row hides another one, and no row needs more bytes than its magic.
TEST(test_every_row) {
    for (int i = 0; i < NUM_MAGICS; i++) {
        uint8_t bytes[FILE_START_BYTES];
        memset(bytes, 'x', sizeof(bytes));
        memcpy(bytes + file_magics[i].at, file_magics[i].magic, (size_t)file_magics[i].length);
        int64_t n = file_magics[i].at + file_magics[i].length;
        check_kind(t, bytes, n, file_magics[i].name);
        check_kind(t, bytes, sizeof(bytes), file_magics[i].name);
        // A UTF-32 mark may begin with that of UTF-16, and rich text with the bracket of JSON.
        const char *shorter = n == 5 && bytes[0] == '{' ? "JSON" : n == 4 && bytes[0] == 0xff ? "text in UTF-16" : NULL;
        check_kind(t, bytes, n - 1, shorter);
    }
    for (int i = 0; i < DATA_KINDS; i++) { check_kind(t, &data_formats[i].magic, 4, data_formats[i].name); }
}

// A safetensors file begins with the length of its header, which may look like any magic number of a few bytes.
TEST(test_safetensors_of_any_length) {
    for (int i = 0; i < NUM_MAGICS; i++) {
        uint8_t bytes[16] = {0, 0, 0, 0, 0, 0, 0, 0, '{', '"', '}'};
        if (file_magics[i].at > 0 || file_magics[i].length > 4) { continue; }
        memcpy(bytes, file_magics[i].magic, (size_t)file_magics[i].length);
        check_kind(t, bytes, sizeof(bytes), FILE_SAFETENSORS);
    }
}

static bool is_text(const void *bytes, int64_t n, Error *error) {
    error->text[0] = '\0';
    return file_check_kind("f", FILE_TEXT, bytes, n, error);
}

TEST(test_text) {
    static const char *const texts[] = {
        "", "x", "GNU", "PK is a name", "a\r\nb", "\xef\xbb\xbfmarked", "{\"text\": 1}", "%PD", "caf\xe9", "\xff\xd8"};
    Error error;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        CHECK(t, is_text(texts[i], (int64_t)strlen(texts[i]), &error), "%s", error.text);
    }
    uint8_t noise[4096];
    for (int i = 0; i < 4096; i++) { noise[i] = (uint8_t)((i * 89) ^ (i >> 4)); } // every byte about as often
    CHECK(t, is_text(noise, sizeof(noise), &error), "%s", error.text);
    for (int i = 0; i < 20; i++) { noise[50 * i] = 0; } // 2 of 100 bytes
    CHECK(t, is_text(noise, sizeof(noise), &error), "%s", error.text);
}

TEST(test_binary_and_wide_text) {
    char bytes[FILE_START_BYTES] = {0};
    Error error;
    CHECK(t, !is_text(bytes, sizeof(bytes), &error) && strstr(error.text, "is binary (many") != NULL, "%s", error.text);
    CHECK(t, is_text(bytes, 7, &error), "seven bytes: %s", error.text);
    for (int i = 0; i < FILE_START_BYTES; i++) { bytes[i] = i % 2 == 0 ? 'a' : '\0'; }
    CHECK(t, !is_text(bytes, sizeof(bytes), &error) && strstr(error.text, "-f UTF-16LE") != NULL, "%s", error.text);
    CHECK(t, !is_text(bytes + 1, sizeof(bytes) - 1, &error) && strstr(error.text, "-f UTF-16BE") != NULL, "%s",
          error.text);
}

TEST(test_windows_line_ends) {
    CHECK(t, text_has_crlf((const uint8_t *)"a\r\nb\n", 5) && text_has_crlf((const uint8_t *)"\r\n", 2), "CR LF");
    CHECK(t, !text_has_crlf((const uint8_t *)"a\nb\r\n", 5), "the first line decides");
    CHECK(t, !text_has_crlf((const uint8_t *)"\n", 1) && !text_has_crlf((const uint8_t *)"a\r", 2), "no CR LF");
    CHECK(t, !text_has_crlf((const uint8_t *)"", 0), "nothing");
}

static void check_tokenizer(Test *t, const char *name, const char *bytes, size_t n, const char *want) {
    Tokenizer tokenizer;
    Error error;
    const char *path = test_path(t, name);
    if (bytes != NULL) { temp_write(path, bytes, n); }
    CHECK_REFUSED(t, tokenizer_open(&tokenizer, path, &error), &error, path, want);
}

TEST(test_tokenizers) {
    char want[1024];
    check_tokenizer(t, "tokenizer.json", "{\n \"version\"", 12, ": is JSON, expected a tokenizer; " USE_JSON);
    check_tokenizer(t, "old.pth", "\x80\x02}", 3, ": is " A_PICKLE ", expected a tokenizer; " USE_TORCH);
    check_tokenizer(t, "state.bin", "GPT2STAT", 8, ": is a training state, expected a tokenizer; " USE_STATE);
    check_tokenizer(
        t, "book.txt", "It was the best\n", 16,
        ": line 1: 'It' is neither a byte nor made by an earlier line; is it GPT-2's vocab.bpe? " FETCH_VOCAB);
    mkdir(test_path(t, "model"), 0777);
    check_tokenizer(t, "model", NULL, 0, ": is a folder, expected a tokenizer; " VOCAB_HINT);
    temp_write(test_path(t, "model/merges.txt"), "x", 1);
    snprintf(want, sizeof(want), ": is a folder; give the merges in it, %s", test_path(t, "model/merges.txt"));
    check_tokenizer(t, "model", NULL, 0, want);
}
