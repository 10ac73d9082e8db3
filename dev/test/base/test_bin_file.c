// Binary files: what a file is by its first bytes, and who refuses what. test_checkpoint.c, test_dataloader.c,
// test_evalloader.c and test_tokenizer.c damage the headers of their kinds.
#include "dev/test/refused.h"
#include "dev/test/temp_dir.h"
#include "llmc/base/input_file.h"

// A file that begins with these bytes is named where a kind of ours or a text is expected.
static void check_named(Test *t, const void *start, size_t bytes, const char *name, const char *use) {
    char data[2048];
    const char *path = test_path(t, "file");
    for (int kind = 0; kind <= BIN_KINDS; kind++) { // the last one is text
        BinFile bin;
        const char *expected = kind < BIN_KINDS ? bin_formats[kind].name : "plain text";
        if (strcmp(expected, name) == 0) { continue; }
        memset(data, 'x', sizeof(data));
        memcpy(data, start, bytes);
        const char *want = format(": is %s, expected %s; %s", name, expected, use);
        for (size_t size = bytes; size <= sizeof(data); size += sizeof(data) - bytes) {
            temp_write(path, data, size);
            bool ok = kind < BIN_KINDS ? bin_open(&bin, path, (BinKind)kind, &error)
                                       : bin_check_text(path, data, (int64_t)size, &error);
            REFUSED(t, ok, path, want);
        }
    }
    OK(t, bin_check_kind("f", "plain text", data, (int64_t)bytes - 1, &error));
}

TEST(test_kinds) {
    for (int i = 0; i < BIN_KINDS; i++) {
        check_named(t, &bin_formats[i].magic, 4, bin_formats[i].name, bin_formats[i].use);
    }
    FOR_EACH(i, bin_others) {
        check_named(t, bin_others[i].magic, strlen(bin_others[i].magic), bin_others[i].name, bin_others[i].use);
    }
}

TEST(test_text) {
    static const char *const texts[] = {"",        "x", "PK is a name", "a\r\nb", "\xef\xbb\xbfmarked", "{\"text\": 1}",
                                        "\xff\xd8"};
    char bytes[2048];
    FOR_EACH(i, texts) { OK(t, bin_check_text("f", texts[i], (int64_t)strlen(texts[i]), &error)); }
    memset(bytes, 'x', sizeof(bytes));
    bytes[1024] = 0; // behind the start
    OK(t, bin_check_text("f", bytes, sizeof(bytes), &error));
    bytes[1023] = 0;
    REFUSED(t, bin_check_text("f", bytes, sizeof(bytes), &error), "f", ": is binary, expected plain text");
}

TEST(test_rest) {
    int32_t data[260] = {SHARD_MAGIC, 1, 8, [256] = 1, 2, 3, 4};
    const char *path = test_path(t, "shard.bin");
    BinFile bin;
    uint8_t *rest;
    int64_t bytes;
    temp_write(path, data, sizeof(data));
    OK(t, bin_open(&bin, path, BIN_SHARD, &error));
    REFUSED(t, bin_read_rest(&bin, 15, &rest, &bytes, &error), path,
            ": larger than 15 bytes, the most that makes sense here");
    CHECK(t, rest == NULL && bin.file.fd == -1, "something is left");
}
