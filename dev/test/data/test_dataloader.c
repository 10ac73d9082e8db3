// The data loader: which windows an epoch holds and in what order, reads over borders, large files, every kind of bad
// file with its message, and text.
#include "dev/test/refused.h"
#include "dev/test/temp_dir.h"
#include "llmc/data/dataloader.h"
#include "llmc/data/text_data.h"
#include <sys/resource.h>

enum { V = 130000 };

// ---- Shards in the test's folder ----

// A shard whose header has the given values, followed by bytes of tokens first, first + 1, ..., of 32 bits in
// version 7.
static void write_raw_shard(Test *t, const char *name, int magic, int version, int count, size_t bytes, int first) {
    uint8_t *data = (uint8_t *)calloc(1, DATA_HEADER_BYTES + bytes + 1);
    int32_t *header = (int32_t *)data;
    header[0] = magic, header[1] = version, header[2] = count;
    const size_t id_bytes = version == 7 ? 4 : 2;
    for (size_t i = 0; id_bytes * i < bytes; i++) {
        int token = first + (int)i; // the lower bytes come first
        memcpy(data + DATA_HEADER_BYTES + id_bytes * i, &token, id_bytes);
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
        write_shard(t, format("%02d.bin", i), sizes[i], first);
        first += sizes[i];
    }
}

static DataLoader open_ok(Test *t, int T, bool shuffle, uint64_t seed) {
    DataLoader dl;
    OK(t, dataloader_open(&dl, test_path(t, "*.bin"), NULL, 0, T, V, shuffle, seed, &error));
    return dl;
}

// Opening `name` fails with its path and `rest`, or with `rest` alone where name is NULL.
static void check_open_refused(Test *t, int T, const char *name, const char *rest) {
    DataLoader dl;
    bool ok = dataloader_open(&dl, test_path(t, name != NULL ? name : "*.bin"), NULL, 0, T, V, false, 1, &error);
    REFUSED(t, ok, name != NULL ? test_path(t, name) : "", rest);
    CHECK(t, dl.shards == NULL && dl.window == NULL && dl.bin.file.fd == -1, "something is left after a failure");
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
        if (!OK(t, dataloader_read(dl, begin + done, n, inputs, targets, &error))) { break; }
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
enum { NUM_UNEVEN = COUNT_OF(uneven_sizes), MAX_WINDOWS = 4000 };

static int compare_firsts(const void *a, const void *b) { return *(const int32_t *)a - *(const int32_t *)b; }

// Each epoch has every window of every shard once: without shuffling in the order of their names and places.
static void check_epochs(Test *t, int T, bool shuffle) {
    DataLoader dl = open_ok(t, T, shuffle, 5);
    int32_t want[MAX_WINDOWS], firsts[2 * MAX_WINDOWS];
    int n = 0, begin = 0;
    for (int s = 0; s < NUM_UNEVEN; begin += uneven_sizes[s++]) {
        for (int at = 0; at + T + 1 <= uneven_sizes[s]; at += T) { want[n++] = begin + at; }
    }
    CHECK(t, n == dl.num_sequences && dl.num_tokens == begin, "T %d: not %d windows", T, n);
    for (int epoch = 0; epoch < 3; epoch++) { // this one and the next, over the border
        read_firsts(t, &dl, (int64_t)epoch * n, 2 * n, 1 + epoch * 5, firsts);
        for (int half = 0; half < 2; half++) {
            int32_t *found = firsts + half * n;
            if (shuffle) { qsort(found, (size_t)n, sizeof(int32_t), compare_firsts); }
            CHECK(t, memcmp(found, want, (size_t)n * sizeof(int32_t)) == 0, "T %d, epoch %d: other windows", T, epoch);
        }
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
    FOR_EACH(i, lengths) {
        check_epochs(t, lengths[i], false);
        check_epochs(t, lengths[i], true);
    }
    setrlimit(RLIMIT_NOFILE, &limit);
}

// The order is a function of seed and sequence number: alike in batches of any size, in any order of the reads, and by
// a loader opened anew at that point (a resume).
TEST(test_order_is_a_pure_function) {
    write_shards(t, uneven_sizes, NUM_UNEVEN);
    int32_t want[MAX_WINDOWS], firsts[MAX_WINDOWS];
    DataLoader dl = open_ok(t, 7, true, 99);
    int n = 2 * (int)dl.num_sequences + 11;
    read_firsts(t, &dl, 0, n, 1, want);
    for (uint64_t i = 0; i < 80; i++) {
        int at = (int)rand_permute(3, 3, i, (uint64_t)n), count = n - at < 90 ? n - at : 90;
        DataLoader resumed = open_ok(t, 7, true, 99), *loaders[] = {&dl, &resumed};
        FOR_EACH(k, loaders) {
            read_firsts(t, loaders[k], at, count, 1 + (int)i, firsts);
            CHECK(t, memcmp(firsts, want + at, (size_t)count * sizeof(int32_t)) == 0, "from %d: another order", at);
        }
        dataloader_close(&resumed);
    }
    dataloader_close(&dl);
}

// A run goes on only with the order and the fingerprint that it began with: neither may change from version to version.
TEST(test_order_stays) {
    int32_t firsts[1000];
    write_shards(t, uneven_sizes, NUM_UNEVEN);
    DataLoader dl = open_ok(t, 7, true, 99);
    read_firsts(t, &dl, 0, 1000, 10, firsts); // over the border of an epoch
    const uint64_t order = hash64(firsts, sizeof(firsts));
    CHECK(t, dl.fingerprint == 0xc9c981ee6f1152cb && order == 0xa6b95e8ea12df252, "%llx, %llx",
          (unsigned long long)dl.fingerprint, (unsigned long long)order);
    dataloader_close(&dl);
}

// Ids of 32 bits, beside a shard of 16 bits.
TEST(test_32_bits) {
    enum { N = 1000, FIRST = 127256 };
    int32_t firsts[122];
    write_raw_shard(t, "b.bin", SHARD32_MAGIC, 7, N, 4 * N, FIRST);
    write_shard(t, "a.bin", 100, 0);
    DataLoader dl = open_ok(t, 9, false, 4);
    read_firsts(t, &dl, 0, 122, 10, firsts);
    CHECK(t, firsts[10] == 90 && firsts[11] == FIRST && firsts[121] == FIRST + 990, "%d, %d, %d", firsts[10],
          firsts[11], firsts[121]);
    dataloader_close(&dl);
}

// A shard knows its tokenizer by the hash in its header. (Which ones fit together: test_kept_tokenizer.py.)
TEST(test_tokenizer_hash) {
    int32_t data[DATA_HEADER_INTS + 8] = {SHARD_MAGIC, 1, 16};
    bin_set_tokenizer(data, 0xfedcba9876543210);
    CHECK(t, data[254] == 0x76543210 && (uint32_t)data[255] == 0xfedcba98, "%x %x", data[254], data[255]);
    temp_write(test_path(t, "a.bin"), data, sizeof(data));
    write_shard(t, "b.bin", 16, 0);
    DataLoader dl = open_ok(t, 8, false, 1);
    const uint64_t known = dl.shards[0].tokenizer, unknown = dl.shards[1].tokenizer;
    CHECK(t, known == 0xfedcba9876543210 && unknown == 0, "%llx, %llx", (unsigned long long)known,
          (unsigned long long)unknown);
    dataloader_close(&dl);
}

// Two epochs, two seeds and two shards are shuffled differently, and a shard's windows come one after another.
TEST(test_shuffle) {
    int sizes[] = {301, 301, 301, 301, 301, 301}; // 100 windows of T = 3 each
    int32_t a[1200], b[1200];
    write_shards(t, sizes, 6);
    DataLoader dl = open_ok(t, 3, true, 1), other = open_ok(t, 3, true, 2);
    read_firsts(t, &dl, 0, 1200, 50, a);
    read_firsts(t, &other, 0, 1200, 50, b);
    int unmoved = 0, same_epoch = 0, same_seed = 0, same_windows = 0, switches = 0, same_shards = 0;
    for (int i = 0; i < 600; i++) {
        unmoved += a[i] == i / 100 * 301 + i % 100 * 3;
        same_epoch += a[i] == a[i + 600];
        same_seed += a[i] == b[i];
        same_windows += i < 500 && a[i] % 301 == a[i + 100] % 301;
        switches += a[i] / 301 != a[i + 1] / 301;
        same_shards += i % 100 == 0 && a[i] / 301 == a[i + 600] / 301;
    }
    // Of 600 places a random order keeps one on average; 8 or more has a probability of 1e-5.
    CHECK(t, unmoved < 8 && same_epoch < 8 && same_seed < 8 && same_windows < 16,
          "windows as without shuffling %d, as in the next epoch %d, with another seed %d, in the next shard %d",
          unmoved, same_epoch, same_seed, same_windows);
    CHECK(t, switches >= 5 && switches <= 6, "%d switches between 6 shards", switches);
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
    CHECK(t, dl.num_sequences == last + 2 && dl.num_tokens == n + 1025, "%lld windows", (long long)dl.num_sequences);
    int32_t firsts[3];
    read_firsts(t, &dl, last, 3, 3, firsts); // the last, the next shard, the first of the next epoch
    CHECK(t, firsts[0] == 7 && firsts[1] == 5 && firsts[2] == 0, "windows begin at %d, %d, %d, want 7, 5, 0", firsts[0],
          firsts[1], firsts[2]);
    read_firsts(t, &dl, 1000000000 * dl.num_sequences + last, 1, 1, firsts);
    CHECK(t, firsts[0] == 7, "epoch 1,000,000,000: begins at %d", firsts[0]);
    dataloader_close(&dl);
}

// ---- Bad files ----

// What all files with such a header are asked for: test_bin_file.c.
TEST(test_bad_shards) {
    static const struct {
        int magic, version, count;
        size_t bytes;
        const char *message;
    } cases[] = {
        {SHARD_MAGIC, 1, 100, 199, ": header asks for 1224 bytes, file has 1223 (truncated? fetch it again)"},
        {SHARD_MAGIC, 1, -1, 200, ": header says -1 tokens, expected 0 to 2147483647"},
        {SHARD_MAGIC, 7, 100, 400, ": token shard of version 7, expected 1 or 7"}, // a version needs its magic
        {SHARD32_MAGIC, 7, 100, 200, ": header asks for 1424 bytes, file has 1224 (truncated? fetch it again)"},
        {0, 0, 0, 0, ": is not a token shard: magic 0, expected 20240520; `tokenize` makes shards of text"},
    };
    FOR_EACH(i, cases) {
        write_raw_shard(t, "a.bin", cases[i].magic, cases[i].version, cases[i].count, cases[i].bytes, 0);
        check_open_refused(t, 8, "a.bin", cases[i].message);
    }
}

TEST(test_bad_files_are_listed_together) {
    const char *in = test_folder(t);
    write_shard(t, "good.bin", 100, 0);
    write_raw_shard(t, "cut.bin", SHARD_MAGIC, 1, 100, 64, 0);
    mkdir(test_path(t, "dir.bin"), 0777);
    mkfifo(test_path(t, "pipe.bin"), 0666); // must not wait for a writer
    CHECK(t, symlink("nowhere", test_path(t, "lost.bin")) == 0, "no link");
    const char *says = format("4 of 5 files are unusable: "
                              "%s/cut.bin: header asks for 1224 bytes, file has 1088 (truncated? fetch it again); "
                              "%s/dir.bin: is a folder, expected a file; "
                              "%s/lost.bin: cannot open: No such file or directory; "
                              "%s/pipe.bin: is a device or pipe, expected an ordinary file",
                              in, in, in, in);
    check_open_refused(t, 8, NULL, says);
}

TEST(test_shards_too_short) {
    write_shard(t, "a.bin", 8, 0), write_shard(t, "b.bin", 0, 0), write_shard(t, "c.bin", 5, 0);
    check_open_refused(t, 8, "*.bin",
                       ": a sequence of --seq-len 8 needs 9 tokens in one piece, the longest piece has 8; choose a "
                       "shorter sequence or more data");
    DataLoader dl = open_ok(t, 7, false, 1);
    CHECK(t, dl.num_sequences == 1, "%lld windows", (long long)dl.num_sequences);
    dataloader_close(&dl);
}

// Reading sequence 11, the first of b.bin, fails.
static void check_read_refused(Test *t, DataLoader *dl, const char *says) {
    int32_t inputs[9], targets[9];
    REFUSED(t, dataloader_read(dl, 11, 1, inputs, targets, &error), test_path(t, "b.bin"), says);
}

// A shard that is cut, replaced or removed while training runs.
TEST(test_files_that_change) {
    write_shard(t, "a.bin", 100, 0);
    write_shard(t, "b.bin", 100, 100);
    DataLoader dl = open_ok(t, 9, false, 1);
    int32_t firsts[22];
    read_firsts(t, &dl, 0, 22, 22, firsts);
    CHECK(t, truncate(test_path(t, "b.bin"), 1024) == 0, "not cut"); // while b is the open file
    check_read_refused(t, &dl, ": ends at byte 1024, 20 more expected (truncated?)");
    read_firsts(t, &dl, 0, 11, 11, firsts); // a is still good
    check_read_refused(t, &dl, ": header asks for 1224 bytes, file has 1024 (truncated? fetch it again)");
    write_shard(t, "b.bin", 101, 100);
    check_read_refused(t, &dl, ": has 101 tokens now, had 100 when the run began");
    unlink(test_path(t, "b.bin"));
    check_read_refused(t, &dl, ": cannot open: No such file or directory");
    write_shard(t, "b.bin", 100, 100);
    read_firsts(t, &dl, 11, 11, 11, firsts);
    dataloader_close(&dl);
}

// ---- Fingerprint ----

// Each change of the data gives another fingerprint: of its files the last, of text every token. Another name does not.
TEST(test_fingerprint) {
    enum { CHANGES = 6, IN_MEMORY = 4, ALL = CHANGES + IN_MEMORY };
    static const struct {
        const char *name;
        int count, first;
    } changes[CHANGES] = {{"a.bin", 5000, 0}, {"b.bin", 5001, 1}, {"b.bin", 5001, 2},
                          {"b.bin", 5002, 1}, {"c.bin", 9, 0},    {"a.bin", 5002, 1}};
    uint64_t hashes[ALL];
    uint32_t tokens[5000] = {0};
    DataLoader dl;
    for (int i = 0; i < ALL; i++) {
        if (i < CHANGES) { write_shard(t, changes[i].name, changes[i].count, changes[i].first); }
        if (i >= CHANGES) { tokens[1234 * (i - CHANGES)]++; }
        OK(t, dataloader_open(&dl, test_path(t, "*.bin"), i < CHANGES ? NULL : tokens, 5000, 8, V, false, 1, &error));
        hashes[i] = dl.fingerprint;
        dataloader_close(&dl);
        for (int j = 0; j < i; j++) { CHECK(t, hashes[i] != hashes[j], "data %d and %d look the same", i, j); }
    }
    CHECK(t, rename(test_path(t, "c.bin"), test_path(t, "d.bin")) == 0, "not renamed");
    for (int changed = 0; changed < 2; changed++) {
        if (changed) { temp_flip(test_path(t, "a.bin"), DATA_HEADER_BYTES + 2 * 5002 - 1); }
        dl = open_ok(t, 8, false, 1);
        CHECK(t, (dl.fingerprint == hashes[CHANGES - 1]) != changed, "another name, or the last byte: %d", changed);
        dataloader_close(&dl);
    }
}

// ---- Text ----

TEST(test_text_load) {
    Tokenizer tokenizer;
    uint32_t *tokens;
    int64_t count;
    tokenizer_init_byte(&tokenizer);
    temp_write(test_path(t, "b.txt"), "xyz", 3);
    temp_write(test_path(t, "a.txt"), "a\r\xff", 3);
    uint32_t want[] = {256, 'a', '\r', 255, 256, 'x', 'y', 'z'};
    OK(t, text_load(test_path(t, "*.txt"), &tokenizer, &tokens, &count, &error));
    CHECK(t, count == 8 && memcmp(tokens, want, sizeof(want)) == 0, "%lld tokens, or other ones", (long long)count);
    free(tokens);
}

TEST(test_text_refused) {
    Tokenizer tokenizer;
    tokenizer_init_byte(&tokenizer);
    temp_write(test_path(t, "empty.txt"), "", 0);
    temp_write(test_path(t, "packed.txt"), "\x1f\x8b\x08\0", 4);
    mkdir(test_path(t, "folder.txt"), 0777);
    const char *folder =
        format(": is a folder, expected text; give texts as '%s/*.txt', or shards as '%s/*_train_*.bin'",
               test_path(t, "folder.txt"), test_path(t, "folder.txt"));
    const struct {
        const char *name, *says;
    } cases[] = {{"empty.txt", ": the file is empty, expected text to train on"},
                 {"packed.txt", ": is packed with gzip, expected plain text; unpack it: gunzip -k FILE"},
                 {"folder.txt", folder},
                 {"none*", ": no such file (nothing matches the name or pattern)"}};
    FOR_EACH(i, cases) {
        uint32_t *tokens = (uint32_t *)&error;
        int64_t count = 1;
        const char *path = test_path(t, cases[i].name);
        REFUSED(t, text_load(path, &tokenizer, &tokens, &count, &error), path, cases[i].says);
        CHECK(t, tokens == NULL, "%s: tokens after a failure", path);
    }
}

TEST(test_text_split) {
    // Tokens, T, for training, percent for validation.
    static const int64_t cases[][4] = {{50000000000LL, 1024, 45000000000LL, 10},
                                       {200, 64, 135, 10}, // one window is more than a tenth
                                       {130, 64, 65, 10},
                                       {129, 64, 129, 10}, // not enough for both
                                       {1000, 64, 750, 25},
                                       {1000, 64, 1000, 0}};
    FOR_EACH(i, cases) {
        int64_t train;
        text_split(cases[i][0], (int)cases[i][1], 0.01 * (double)cases[i][3], &train);
        CHECK(t, train == cases[i][2], "%lld tokens: %lld for training", (long long)cases[i][0], (long long)train);
    }
}
