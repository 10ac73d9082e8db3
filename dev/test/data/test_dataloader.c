// The data loader: which windows an epoch holds and in what order, reads over borders, large files, every kind of bad
// file with its message, and text.
#include "dev/test/refused.h"
#include "dev/test/temp_dir.h"
#include "llmc/data/dataloader.h"
#include "llmc/data/text_data.h"
#include <sys/resource.h>

enum { V = 65536, MAX_SHARDS = 16 };

// ---- Shards in the test's folder ----

// A shard whose header has the given values, followed by bytes / 2 tokens first, first + 1, ...
static void write_raw_shard(Test *t, const char *name, int magic, int version, int count, size_t bytes, int first) {
    uint8_t *data = (uint8_t *)calloc(1, DATA_HEADER_BYTES + bytes + 1);
    int32_t *header = (int32_t *)data;
    header[0] = magic, header[1] = version, header[2] = count;
    for (size_t i = 0; 2 * i < bytes; i++) {
        uint16_t token = (uint16_t)(first + (int)i);
        memcpy(data + DATA_HEADER_BYTES + 2 * i, &token, 2);
    }
    temp_write(test_path(t, name), data, DATA_HEADER_BYTES + bytes);
    free(data);
}

static void write_shard(Test *t, const char *name, int count, int first) {
    write_raw_shard(t, name, SHARD_MAGIC, 1, count, 2 * (size_t)count, first);
}

// Shards 00.bin, 01.bin, ... with these sizes. Their tokens count up through all of them, so that a window's first
// token says where it lies.
static void write_shards(Test *t, const int *sizes, int count) {
    int first = 0;
    for (int i = 0; i < count; i++) {
        char name[32];
        snprintf(name, sizeof(name), "%02d.bin", i);
        write_shard(t, name, sizes[i], first);
        first += sizes[i];
    }
}

static DataLoader open_ok(Test *t, int T, bool shuffle, uint64_t seed) {
    DataLoader dl;
    Error error;
    CHECK(t, dataloader_open(&dl, test_path(t, "*.bin"), T, V, shuffle, seed, &error), "%s", error.text);
    return dl;
}

// Opening fails, and the message is `want` with each %s replaced by the folder.
static void check_open_refused(Test *t, int T, const char *want) {
    DataLoader dl;
    Error error = {""};
    char full[8192] = "";
    for (const char *p = want; *p != '\0'; p += p[0] == '%' ? 2 : 1) {
        size_t used = strlen(full);
        snprintf(full + used, sizeof(full) - used, "%.*s", p[0] == '%' ? 512 : 1, p[0] == '%' ? test_folder(t) : p);
    }
    bool ok = dataloader_open(&dl, test_path(t, "*.bin"), T, 50257, false, 1, &error);
    CHECK(t, !ok, "accepted, expected: %s", full);
    CHECK(t, strcmp(error.text, full) == 0, "message\n    %s\n  expected\n    %s", error.text, full);
    if (ok) { dataloader_close(&dl); }
    CHECK(t, dl.shards == NULL && dl.window == NULL && dl.file.fd == -1, "something is left after a failure");
    dataloader_close(&dl); // harmless
}

// ---- Windows and order ----

// Reads `count` sequences from `begin` in batches and writes the first token of each; checks that tokens count up.
static void read_firsts(Test *t, DataLoader *dl, int64_t begin, int count, int batch, int32_t *firsts) {
    int T = dl->seq_len;
    int32_t *inputs = (int32_t *)malloc(sizeof(int32_t) * (size_t)(batch * T));
    int32_t *targets = (int32_t *)malloc(sizeof(int32_t) * (size_t)(batch * T));
    for (int done = 0; done < count; done += batch) {
        int n = count - done < batch ? count - done : batch;
        Error error;
        if (!CHECK(t, dataloader_read(dl, begin + done, n, inputs, targets, &error), "%s", error.text)) { break; }
        for (int b = 0; b < n; b++) {
            firsts[done + b] = inputs[b * T];
            for (int i = 0; i < T; i++) {
                int at = b * T + i;
                CHECK(t, inputs[at] == inputs[b * T] + i && targets[at] == inputs[at] + 1,
                      "sequence %lld, T %d, position %d: input %d, target %d", (long long)begin + done + b, T, i,
                      inputs[at], targets[at]);
            }
        }
    }
    free(inputs), free(targets);
}

static const int uneven_sizes[] = {0, 13, 1, 200, 2, 7, 8, 9, 64, 65, 66, 1500, 0, 35, 1};
enum { NUM_UNEVEN = sizeof(uneven_sizes) / sizeof(uneven_sizes[0]), MAX_WINDOWS = 4000 };

// Each window of each shard appears exactly once in each epoch.
static void check_epochs(Test *t, int T, bool shuffle) {
    DataLoader dl = open_ok(t, T, shuffle, 5);
    int32_t firsts[MAX_WINDOWS];
    int n = (int)dl.num_sequences;
    for (int epoch = 0; epoch < 3; epoch++) {
        int seen[MAX_WINDOWS] = {0}, want = 0, begin = 0; // by first token
        read_firsts(t, &dl, (int64_t)epoch * n, n, 1 + epoch * 5, firsts);
        for (int i = 0; i < n; i++) { seen[firsts[i]]++; }
        for (int s = 0; s < NUM_UNEVEN; s++) {
            for (int at = 0; at < uneven_sizes[s]; at++) {
                int times = at % T == 0 && at + T + 1 <= uneven_sizes[s];
                CHECK(t, seen[begin + at] == times, "T %d, epoch %d: the window at token %d of shard %d comes %d times",
                      T, epoch, at, s, seen[begin + at]);
                want += times;
            }
            begin += uneven_sizes[s];
        }
        CHECK(t, n == want && dl.num_tokens == begin, "T %d: %d windows, want %d", T, n, want);
    }
    dataloader_close(&dl);
}

// One shard is open at a time: the process may have few files open.
TEST(test_every_window_once) {
    struct rlimit limit, low;
    write_shards(t, uneven_sizes, NUM_UNEVEN);
    getrlimit(RLIMIT_NOFILE, &limit);
    low = limit;
    low.rlim_cur = 16; // there are 15 shards
    setrlimit(RLIMIT_NOFILE, &low);
    const int lengths[] = {1, 2, 3, 7, 8, 64, 65, 199, 1499};
    for (int i = 0; i < 9; i++) {
        check_epochs(t, lengths[i], false);
        check_epochs(t, lengths[i], true);
    }
    setrlimit(RLIMIT_NOFILE, &limit);
}

// Without shuffling: shards in order of their names, windows in order of their places, alike in every epoch, and
// reads that cross from shard to shard and from epoch to epoch.
TEST(test_plain_order_over_borders) {
    int sizes[] = {21, 3, 11, 34}; // 2, 0, 1 and 3 windows of T = 10
    int32_t want[] = {0, 10, 24, 35, 45, 55}, firsts[40];
    write_shards(t, sizes, 4);
    DataLoader dl = open_ok(t, 10, false, 5);
    CHECK(t, dl.num_sequences == 6, "%lld windows", (long long)dl.num_sequences);
    for (int batch = 1; batch <= 13; batch += 4) {
        for (int begin = 0; begin < 13; begin++) {
            read_firsts(t, &dl, begin, 20, batch, firsts);
            for (int i = 0; i < 20; i++) {
                CHECK(t, firsts[i] == want[(begin + i) % 6], "sequence %d begins at %d", begin + i, firsts[i]);
            }
        }
    }
    dataloader_close(&dl);
}

// The order is a function of seed and sequence number: alike in batches of any size, in any order of the reads, by a
// loader opened anew at that point (a resume), from file and from memory.
TEST(test_order_is_a_pure_function) {
    write_shards(t, uneven_sizes, NUM_UNEVEN);
    int32_t want[MAX_WINDOWS], firsts[MAX_WINDOWS];
    DataLoader dl = open_ok(t, 7, true, 99);
    int n = 2 * (int)dl.num_sequences + 11;
    read_firsts(t, &dl, 0, n, 1, want);
    const int batches[] = {2, 5, 64, 1000};
    for (int i = 0; i < 4; i++) {
        read_firsts(t, &dl, 0, n, batches[i], firsts);
        CHECK(t, memcmp(firsts, want, (size_t)n * sizeof(int32_t)) == 0, "another order in batches of %d", batches[i]);
    }
    for (uint64_t i = 0; i < 300; i++) {
        int at = (int)rand_permute(3, 3, i, (uint64_t)n);
        read_firsts(t, &dl, at, 1, 1, firsts);
        CHECK(t, firsts[0] == want[at], "sequence %d read alone differs", at);
    }
    for (int at = 0; at < n; at += 37) {
        DataLoader resumed = open_ok(t, 7, true, 99);
        int count = n - at < 40 ? n - at : 40;
        read_firsts(t, &resumed, at, count, 4, firsts);
        CHECK(t, memcmp(firsts, want + at, (size_t)count * sizeof(int32_t)) == 0, "resumed at %d: another order", at);
        dataloader_close(&resumed);
    }
    dataloader_close(&dl);
}

TEST(test_memory_equals_file) {
    uint16_t tokens[1000];
    for (int i = 0; i < 1000; i++) { tokens[i] = (uint16_t)i; }
    write_shard(t, "a.bin", 1000, 0);
    for (int shuffle = 0; shuffle < 2; shuffle++) {
        DataLoader file = open_ok(t, 9, shuffle, 4), memory;
        Error error;
        CHECK(t, dataloader_open_tokens(&memory, "text", tokens, 1000, 9, V, shuffle, 4, &error), "%s", error.text);
        int32_t a[300], b[300];
        read_firsts(t, &file, 0, 300, 8, a);
        read_firsts(t, &memory, 0, 300, 8, b);
        CHECK(t, memcmp(a, b, sizeof(a)) == 0, "file and memory give another order, shuffle %d", shuffle);
        dataloader_close(&file), dataloader_close(&memory);
    }
}

// Two epochs, two seeds and two shards are shuffled differently, and a shard's windows come one after another.
TEST(test_shuffle) {
    int sizes[] = {301, 301, 301, 301, 301, 301}; // 100 windows of T = 3 each
    int32_t a[1200], b[1200];
    write_shards(t, sizes, 6);
    DataLoader dl = open_ok(t, 3, true, 1), other = open_ok(t, 3, true, 2);
    read_firsts(t, &dl, 0, 1200, 50, a);
    read_firsts(t, &other, 0, 1200, 50, b);
    int same_epoch = 0, same_seed = 0, unmoved = 0, switches = 0, same_shards = 0, same_windows = 0;
    for (int i = 0; i < 1200; i++) {
        unmoved += a[i] == i % 600 / 100 * 301 + i % 100 * 3;
        same_seed += a[i] == b[i];
        same_epoch += i < 600 && a[i] == a[i + 600];
        switches += i > 0 && a[i] / 301 != a[i - 1] / 301;
        same_shards += i % 100 == 0 && i < 600 && a[i] / 301 == a[i + 600] / 301;
        same_windows += i < 500 && a[i] % 301 == a[i + 100] % 301;
    }
    // Of 600 places a random order keeps one on average; 8 or more has a probability of 1e-5.
    CHECK(t, unmoved < 12, "%d windows of 1200 where they are without shuffling", unmoved);
    CHECK(t, same_epoch < 8, "%d windows of 600 at the same place in both epochs", same_epoch);
    CHECK(t, same_seed < 12, "%d windows of 1200 at the same place with another seed", same_seed);
    CHECK(t, same_windows < 16, "%d of 500 windows in the same order in two shards", same_windows);
    CHECK(t, switches >= 10 && switches <= 11, "%d switches between 6 shards in 2 epochs", switches);
    CHECK(t, same_shards < 6, "both epochs have the same order of shards");
    dataloader_close(&dl), dataloader_close(&other);
}

// ---- Large and many files ----

// The largest shard there can be: 2,147,483,647 tokens, 4 GiB. Its last window is beyond every 32-bit offset.
TEST(test_shard_over_2_gib) {
    const int64_t n = 2147483647;
    const int T = 1024;
    write_raw_shard(t, "large.bin", SHARD_MAGIC, 1, (int)n, 2050, 0);
    int64_t last = (n - 1) / T - 1; // window
    uint16_t tokens[1025];
    for (int i = 0; i <= T; i++) { tokens[i] = (uint16_t)(7 + i); }
    int fd = open(test_path(t, "large.bin"), O_WRONLY);
    bool sparse = ftruncate(fd, DATA_HEADER_BYTES + 2 * n) == 0 &&
                  pwrite(fd, tokens, sizeof(tokens), DATA_HEADER_BYTES + 2 * last * T) == (ssize_t)sizeof(tokens);
    close(fd);
    if (!sparse) { SKIP(t, "no sparse file of 4 GiB possible here"); }
    write_shard(t, "small.bin", 1025, 5);
    DataLoader dl = open_ok(t, T, false, 1);
    CHECK(t, dl.num_sequences == last + 2, "%lld windows", (long long)dl.num_sequences);
    CHECK(t, dl.num_tokens == n + 1025, "%lld tokens", (long long)dl.num_tokens);
    int32_t firsts[3];
    read_firsts(t, &dl, last, 3, 3, firsts); // the last, the next shard, the first of the next epoch
    CHECK(t, firsts[0] == 7 && firsts[1] == 5 && firsts[2] == 0, "windows begin at %d, %d, %d, want 7, 5, 0", firsts[0],
          firsts[1], firsts[2]);
    read_firsts(t, &dl, 1000000000 * dl.num_sequences + last, 1, 1, firsts);
    CHECK(t, firsts[0] == 7, "epoch 1,000,000,000: begins at %d", firsts[0]);
    dataloader_close(&dl);
}

// ---- Bad files ----

TEST(test_bad_headers) {
    const struct {
        int magic, version, count;
        size_t bytes;
        const char *message;
    } cases[] = {
        {SHARD_MAGIC, 1, 100, 199, "%s/a.bin: header asks for 1224 bytes, file has 1223 (truncated? fetch it again)"},
        {SHARD_MAGIC, 1, 100, 201, "%s/a.bin: header asks for 1224 bytes, file has 1225 (damaged?)"},
        {SHARD_MAGIC, 1, 2147483647, 200,
         "%s/a.bin: header asks for 4294968318 bytes, file has 1224 (truncated? fetch it again)"},
        {SHARD_MAGIC, 1, -1, 200, "%s/a.bin: header says -1 tokens, expected 0 to 2147483647"},
        {SHARD_MAGIC, 1, INT32_MIN, 0, "%s/a.bin: header says -2147483648 tokens, expected 0 to 2147483647"},
        {SHARD_MAGIC, 2, 100, 200, "%s/a.bin: token shard of version 2, expected 1"},
        {SHARD_MAGIC, 7, 100, 400, "%s/a.bin: token shard of version 7, expected 1"},
        {SHARD_MAGIC, 1, 100, 400, "%s/a.bin: header asks for 1224 bytes, file has 1424 (damaged?)"},
        {20240326, 3, 1024, 200, "%s/a.bin: is a model, expected a token shard; give it to --init"},
        {0, 0, 0, 0, "%s/a.bin: is not a token shard: magic 0, expected 20240520; `tokenize` makes shards of text"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        write_raw_shard(t, "a.bin", cases[i].magic, cases[i].version, cases[i].count, cases[i].bytes, 0);
        check_open_refused(t, 8, cases[i].message);
    }
}

TEST(test_bad_files_are_listed_together) {
    write_shard(t, "good.bin", 100, 0);
    write_raw_shard(t, "cut.bin", SHARD_MAGIC, 1, 100, 64, 0);
    write_raw_shard(t, "old.bin", SHARD_MAGIC, 0, 100, 200, 0);
    mkdir(test_path(t, "dir.bin"), 0777);
    mkfifo(test_path(t, "pipe.bin"), 0666); // must not wait for a writer
    CHECK(t, symlink("nowhere", test_path(t, "lost.bin")) == 0, "no link");
    check_open_refused(t, 8,
                       "5 of 6 files are unusable: "
                       "%s/cut.bin: header asks for 1224 bytes, file has 1088 (truncated? fetch it again); "
                       "%s/dir.bin: is a folder, expected a file; "
                       "%s/lost.bin: cannot open: No such file or directory; "
                       "%s/old.bin: token shard of version 0, expected 1; "
                       "%s/pipe.bin: is a device or pipe, expected an ordinary file");
}

TEST(test_a_long_list_is_cut) {
    for (int i = 0; i < 60; i++) {
        char name[300];
        snprintf(name, sizeof(name), "%02d.bin", i);
        write_raw_shard(t, name, SHARD_MAGIC, 1, i % 2 ? 9 : 8, 16, 0); // the odd ones are bad
    }
    DataLoader dl;
    Error error;
    CHECK(t, !dataloader_open(&dl, test_path(t, "*.bin"), 4, V, false, 1, &error), "accepted");
    int named = 0;
    for (const char *p = error.text; (p = strstr(p, "header asks for 1042 bytes, file has 1040")) != NULL; p++) {
        named++;
    }
    CHECK(t, named == 8, "%d files named", named);
    CHECK(t, strncmp(error.text, "30 of 60 files are unusable: ", 29) == 0, "%s", error.text);
    CHECK(t, ends_with(error.text, "fetch it again); and 22 more"), "%s", error.text);
}

TEST(test_bad_patterns) {
    check_open_refused(t, 8, "%s/*.bin: no such file (nothing matches the name or pattern)");
    DataLoader dl;
    Error error;
    char *path = (char *)malloc(5001);
    memset(path, 'x', 5000);
    path[5000] = '\0';
    CHECK(t, !dataloader_open(&dl, path, 8, V, false, 1, &error), "a path of 5000 bytes is accepted");
    CHECK(t, strstr(error.text, "the path has 5000 bytes, expected ") != NULL, "%s", error.text);
    CHECK(t, !dataloader_open(&dl, "", 8, V, false, 1, &error), "an empty path is accepted");
    CHECK(t, strstr(error.text, "the path has 0 bytes") != NULL, "%s", error.text);
    free(path);
}

TEST(test_shards_too_short) {
    write_shard(t, "a.bin", 8, 0);
    check_open_refused(
        t, 8,
        "%s/*.bin: a sequence of --seq-len 8 needs 9 tokens in one piece, the longest piece has 8; choose a "
        "shorter sequence or more data");
    write_shard(t, "b.bin", 0, 0);
    write_shard(t, "c.bin", 5, 0);
    check_open_refused(
        t, 1024,
        "%s/*.bin: a sequence of --seq-len 1024 needs 1025 tokens in one piece, the longest piece has 8; "
        "choose a shorter sequence or more data");
    DataLoader dl = open_ok(t, 7, false, 1); // one window, and a batch larger than the data
    int32_t firsts[5];
    read_firsts(t, &dl, 0, 5, 5, firsts);
    CHECK(t, dl.num_sequences == 1 && firsts[4] == 0, "%lld windows", (long long)dl.num_sequences);
    dataloader_close(&dl);
}

// A token id outside the vocabulary is found when it is first read, as input or only as target, and named.
TEST(test_token_outside_vocabulary) {
    write_shard(t, "a.bin", 41, 0);
    write_shard(t, "b.bin", 48, 40); // tokens 40 .. 87; the window of tokens 40 .. 47 is not used
    for (int vocab = 40; vocab <= 90; vocab++) {
        DataLoader dl;
        Error error;
        int32_t inputs[8 * 10], targets[8 * 10];
        CHECK(t, dataloader_open(&dl, test_path(t, "*.bin"), 10, vocab, false, 1, &error), "%s", error.text);
        CHECK(t, dl.num_sequences == 8, "%lld windows", (long long)dl.num_sequences);
        bool ok = dataloader_read(&dl, 0, 8, inputs, targets, &error);
        CHECK(t, ok == (vocab > 80), "vocabulary of %d: %s", vocab, ok ? "accepted" : "refused");
        char want[700];
        snprintf(want, sizeof(want),
                 "%s/%c.bin: token %d is id %d, the model's vocabulary has %d (made by another "
                 "tokenizer?)",
                 test_folder(t), vocab == 40 ? 'a' : 'b', vocab == 40 ? 40 : vocab - 40, vocab, vocab);
        CHECK(t, ok || strcmp(error.text, want) == 0, "message\n    %s\n  expected\n    %s", error.text, want);
        dataloader_close(&dl);
    }
}

// A shard that is cut, replaced or removed while training runs, and a negative position.
TEST(test_files_that_change) {
    write_shard(t, "a.bin", 100, 0);
    write_shard(t, "b.bin", 100, 100);
    DataLoader dl = open_ok(t, 9, false, 1);
    int32_t inputs[9 * 22], targets[9 * 22];
    Error error;
    CHECK(t, dataloader_read(&dl, 0, 22, inputs, targets, &error), "%s", error.text);
    CHECK(t, truncate(test_path(t, "b.bin"), 1024 + 100) == 0, "not cut"); // while b is the open file
    CHECK(t, !dataloader_read(&dl, 21, 1, inputs, targets, &error), "reads beyond the end");
    CHECK(t, strstr(error.text, "b.bin: ends at byte ") != NULL, "%s", error.text);
    CHECK(t, dataloader_read(&dl, 0, 11, inputs, targets, &error), "%s", error.text); // a is still good
    CHECK(t, !dataloader_read(&dl, 11, 1, inputs, targets, &error), "opens a cut file");
    CHECK(t, strstr(error.text, "b.bin: header asks for 1224 bytes, file has 1124 (truncated") != NULL, "%s",
          error.text);
    write_shard(t, "b.bin", 101, 100);
    CHECK(t, !dataloader_read(&dl, 11, 1, inputs, targets, &error), "opens another file");
    CHECK(t, strstr(error.text, "b.bin: has 101 tokens now, had 100 when the run began") != NULL, "%s", error.text);
    unlink(test_path(t, "b.bin"));
    CHECK(t, !dataloader_read(&dl, 11, 1, inputs, targets, &error), "opens a removed file");
    CHECK(t, strstr(error.text, "b.bin: cannot open: No such file") != NULL, "%s", error.text);
    write_shard(t, "b.bin", 100, 100);
    CHECK(t, dataloader_read(&dl, 11, 11, inputs, targets, &error), "%s", error.text);
    dataloader_close(&dl);
}

// A sequence number may come from a damaged training state.
TEST(test_numbers_of_sequences) {
    static const int64_t bad[] = {-1, INT64_MIN, LARGEST_WHOLE + 1, INT64_MAX - 1, INT64_MAX};
    write_shard(t, "a.bin", 50, 0);
    for (int shuffle = 0; shuffle < 2; shuffle++) {
        DataLoader dl = open_ok(t, 7, shuffle == 1, 5);
        int32_t inputs[3 * 7], targets[3 * 7];
        char says[128];
        Error error = {""};
        CHECK(t, dataloader_read(&dl, LARGEST_WHOLE, 3, inputs, targets, &error), "%s", error.text);
        for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
            snprintf(says, sizeof(says), "data: sequence %lld asked for, expected 0 to 9007199254740992",
                     (long long)bad[i]);
            CHECK_REFUSED(t, dataloader_read(&dl, bad[i], 3, inputs, targets, &error), &error, "", says);
        }
        dataloader_close(&dl);
    }
}

// ---- Fingerprint ----

static uint64_t fingerprint(Test *t, const char *pattern) {
    DataLoader dl;
    Error error;
    CHECK(t, dataloader_open(&dl, test_path(t, pattern), 8, V, false, 1, &error), "%s", error.text);
    uint64_t hash = dl.fingerprint;
    dataloader_close(&dl);
    return hash;
}

TEST(test_fingerprint) {
    write_shard(t, "a.bin", 5000, 0);
    write_shard(t, "b.bin", 5001, 1);
    uint64_t hashes[10];
    hashes[0] = fingerprint(t, "*.bin");
    CHECK(t, rename(test_path(t, "b.bin"), test_path(t, "c.bin")) == 0, "not renamed");
    CHECK(t, fingerprint(t, "*.bin") == hashes[0], "another fingerprint of data under other names");
    unlink(test_path(t, "c.bin"));
    write_shard(t, "b.bin", 5001, 2); // other content
    hashes[1] = fingerprint(t, "*.bin");
    write_shard(t, "b.bin", 5002, 1); // other size
    hashes[2] = fingerprint(t, "*.bin");
    write_shard(t, "c.bin", 9, 0); // one more
    hashes[3] = fingerprint(t, "*.bin");
    write_shard(t, "a.bin", 5002, 1), write_shard(t, "b.bin", 5000, 0); // another order
    hashes[4] = fingerprint(t, "*.bin");
    write_raw_shard(t, "a.bin", SHARD_MAGIC, 1, 5002, 10004, 1);
    FILE *file = fopen(test_path(t, "a.bin"), "r+b");
    fseek(file, -1, SEEK_END), fputc(77, file), fclose(file); // the last byte
    hashes[5] = fingerprint(t, "*.bin");
    uint16_t tokens[5000] = {0};
    for (int i = 6; i < 10; i++) { // in memory every token counts
        DataLoader dl;
        Error error;
        tokens[1234 * (i - 6)]++;
        CHECK(t, dataloader_open_tokens(&dl, "text", tokens, 5000, 8, V, false, 1, &error), "%s", error.text);
        hashes[i] = dl.fingerprint;
        dataloader_close(&dl);
    }
    for (int i = 0; i < 10; i++) {
        for (int j = 0; j < i; j++) { CHECK(t, hashes[i] != hashes[j], "data %d and %d look the same", i, j); }
    }
}

// ---- Text ----

TEST(test_text_load) {
    Tokenizer tokenizer;
    Error error;
    uint16_t *tokens;
    int64_t count;
    tokenizer_init_byte(&tokenizer);
    temp_write(test_path(t, "b.txt"), "xyz", 3);
    temp_write(test_path(t, "a.txt"), "a\r\xff", 3);
    uint16_t want[] = {256, 'a', '\r', 255, 256, 'x', 'y', 'z'};
    CHECK(t, text_load(test_path(t, "*.txt"), &tokenizer, &tokens, &count, &error), "%s", error.text);
    CHECK(t, count == 8 && memcmp(tokens, want, sizeof(want)) == 0, "%lld tokens, or other ones", (long long)count);
    free(tokens);

    DataLoader dl;
    const char *path = test_path(t, "b.txt");
    CHECK(t, text_load(path, &tokenizer, &tokens, &count, &error), "%s", error.text);
    CHECK_REFUSED(t, dataloader_open_tokens(&dl, path, tokens, count, 4, 257, false, 1, &error), &error, path,
                  ": a sequence of --seq-len 4 needs 5 tokens in one piece, the longest piece has 4; choose a shorter "
                  "sequence or more data");
    CHECK(t, dataloader_open_tokens(&dl, path, tokens, count, 3, 256, false, 1, &error), "%s", error.text);
    int32_t inputs[3], targets[3];
    CHECK_REFUSED(t, dataloader_read(&dl, 0, 1, inputs, targets, &error), &error, path,
                  ": token 0 is id 256, the model's vocabulary has 256 (made by another tokenizer?)");
    dataloader_close(&dl);
    free(tokens);
}

static void check_text_refused(Test *t, const char *name, const Tokenizer *tokenizer, const char *want) {
    Error error = {""};
    uint16_t *tokens = (uint16_t *)&error;
    int64_t count = 1;
    const char *path = test_path(t, name);
    CHECK_REFUSED(t, text_load(path, tokenizer, &tokens, &count, &error), &error, path, want);
    CHECK(t, tokens == NULL, "%s: tokens after a failure", path);
}

TEST(test_text_refused) {
    Tokenizer tokenizer, decoder;
    tokenizer_init_byte(&tokenizer);
    tokenizer_init_byte(&decoder);
    decoder.kind = TOKENIZER_DECODE_ONLY;
    temp_write(test_path(t, "good.txt"), "good", 4);
    check_text_refused(t, "good.txt", &decoder, ": is text, but the tokenizer only decodes; " VOCAB_HINT ", or byte");
    temp_write(test_path(t, "empty.txt"), "", 0);
    check_text_refused(t, "empty.txt", &tokenizer, ": the file is empty, expected text to train on");
    mkdir(test_path(t, "folder.txt"), 0777);
    char want[512];
    const char *folder = test_path(t, "folder.txt");
    snprintf(want, sizeof(want),
             ": is a folder, expected text; give texts as '%.200s/*.txt', or shards as '%.200s/*_train_*.bin'", folder,
             folder);
    check_text_refused(t, "folder.txt", &tokenizer, want);
    temp_write(test_path(t, "packed.txt"), "\x1f\x8b\x08\0", 4);
    check_text_refused(t, "packed.txt", &tokenizer,
                       ": is packed with gzip, expected plain text; unpack it: gunzip -k FILE");
    check_text_refused(t, "none*", &tokenizer, ": no such file (nothing matches the name or pattern)");
}

TEST(test_text_split) {
    static const int64_t cases[][3] = {{1000, 64, 900},
                                       {50000000000LL, 1024, 45000000000LL}, // tokens, T, for training
                                       {200, 64, 135},                       // one window is more than a tenth
                                       {130, 64, 65},
                                       {129, 64, 129}}; // not enough for both
    int64_t train;
    for (int i = 0; i < 5; i++) {
        text_split(cases[i][0], (int)cases[i][1], &train);
        CHECK(t, train == cases[i][2], "%lld tokens: %lld for training", (long long)cases[i][0], (long long)train);
    }
    for (int64_t n = 0; n < 400; n++) {
        for (int T = 1; T < 100; T += 7) {
            text_split(n, T, &train);
            bool both = n >= 2 * (T + 1);
            CHECK(t, train <= n && (both ? train > T && n - train > T : train == n), "%lld tokens, T %d: %lld",
                  (long long)n, T, (long long)train);
        }
    }
}
