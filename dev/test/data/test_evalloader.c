// Evaluation files: what a sequence holds and which of its inputs are scored, batches, the choice among completions,
// and every kind of bad file with its message.
#include "dev/test/data/eval_file.h"
#include "dev/test/refused.h"
#include "dev/test/temp_dir.h"
#include "llmc/data/evalloader.h"

enum { V = 1000 };

static EvalFile file;
static EvalLoader eval;

// Opens what `file` holds, cut or padded to `bytes`.
static bool open_bytes(Test *t, size_t bytes, int vocab_size, int64_t max_examples, Error *error) {
    const char *path = test_path(t, "eval.bin");
    temp_write(path, file.data, bytes);
    return eval_open(&eval, path, vocab_size, max_examples, error);
}

static bool open_file(Test *t, int64_t max_examples) {
    Error error = {""};
    return CHECK(t, open_bytes(t, file.bytes, V, max_examples, &error), "%s", error.text);
}

// An example with this context and completions of these lengths (0: no more). Its tokens count up from `first`, through
// the context and, each time anew, through the completion.
static void add_example(int label, int context, int first, int a, int b, int c, int d) {
    const int lengths[] = {a, b, c, d};
    int completions = 2 + (c > 0) + (d > 0);
    eval_file_begin_example(&file, label, completions);
    eval_file_tokens(&file, context, first);
    for (int i = 0; i < completions; i++) { eval_file_tokens(&file, lengths[i], first + context); }
    eval_file_end_example(&file);
}

// Three examples of 4, 2 and 3 completions.
static void make_file(void) {
    eval_file_begin(&file);
    add_example(2, 5, 10, 1, 2, 3, 4);
    add_example(0, 1, 50, 7, 1, 0, 0);
    add_example(2, 9, 100, 2, 2, 6, 0);
}

// ---- Sequences ----

TEST(test_examples) {
    const int contexts[] = {5, 5, 5, 5, 1, 1, 9, 9, 9}, completions[] = {1, 2, 3, 4, 7, 1, 2, 2, 6};
    make_file();
    if (!open_file(t, 0)) { return; }
    CHECK(t, eval.num_examples == 3 && eval.in_file == 3 && eval.num_sequences == 9, "%lld examples, %lld sequences",
          (long long)eval.num_examples, (long long)eval.num_sequences);
    for (int i = 0; i < 9; i++) {
        const EvalSequence *s = &eval.sequences[i];
        CHECK(t, s->context_length == contexts[i] && s->completion_length == completions[i], "sequence %d: %d and %d",
              i, s->context_length, s->completion_length);
        CHECK(t, s->completion[0] == s->context[0] + contexts[i], "sequence %d: its completion begins with %d", i,
              s->completion[0]);
    }
    CHECK(t, eval.examples[0].label == 2 && eval.examples[1].label == 0 && eval.examples[2].label == 2, "labels");
    CHECK(t, eval.examples[1].first_sequence == 4 && eval.examples[2].first_sequence == 6, "first sequences");
    uint64_t fingerprint = eval.fingerprint;
    eval_close(&eval);
    eval_close(&eval);
    CHECK(t, !eval_is_open(&eval), "open after it was closed");
    if (open_file(t, 2)) {
        CHECK(t, eval.num_examples == 2 && eval.num_sequences == 6 && eval.in_file == 3, "the first 2 examples");
        CHECK(t, eval.fingerprint == fingerprint, "the fingerprint is that of the file");
    }
    eval_close(&eval);
    if (open_file(t, 99)) { CHECK(t, eval.num_examples == 3, "99 of 3 examples"); }
    eval_close(&eval);
}

// A sequence's inputs count up, its targets are one ahead, and the scored ones are its completion. skipped: how many
// tokens its context loses.
static void check_sequence(Test *t, int sequence, int skipped) {
    int32_t inputs[128], targets[128];
    int begin, end;
    const EvalSequence *s = &eval.sequences[sequence];
    int first = s->context[0] + skipped, n = s->context_length + s->completion_length - 1 - skipped;
    eval_read_one(&eval, sequence, inputs, targets);
    eval_scored(&eval, sequence, &begin, &end);
    CHECK(t, end == n && end - begin == s->completion_length, "sequence %d: scored %d to %d of %d", sequence, begin,
          end, n);
    for (int i = 0; i < eval.T; i++) {
        int input = i < n ? first + i : 0, target = i < n ? first + i + 1 : 0;
        CHECK(t, inputs[i] == input && targets[i] == target, "sequence %d, T %d: input %d is %d, target %d", sequence,
              eval.T, i, inputs[i], targets[i]);
    }
    CHECK(t, targets[begin] == s->completion[0] && targets[end - 1] == s->completion[s->completion_length - 1],
          "sequence %d: scored are %d to %d", sequence, targets[begin], targets[end - 1]);
}

// The batches have each sequence once, in order. A batch is its sequences, one after another.
static void check_batches(Test *t) {
    int32_t inputs[9 * 64], targets[9 * 64], one_inputs[64], one_targets[64];
    int64_t next = 0;
    size_t bytes = (size_t)eval.T * sizeof(int32_t);
    for (int64_t b = 0; b < eval_num_batches(&eval); b++) {
        EvalBatch batch = eval_batch(&eval, b);
        CHECK(t, batch.first == next && batch.sequences >= 1 && batch.sequences <= eval.B,
              "batch %lld: %d sequences from %lld", (long long)b, batch.sequences, (long long)batch.first);
        eval_read(&eval, batch, inputs, targets);
        for (int i = 0; i < batch.sequences; i++) {
            eval_read_one(&eval, batch.first + i, one_inputs, one_targets);
            CHECK(t, memcmp(one_inputs, inputs + eval.T * i, bytes) == 0, "inputs of sequence %lld",
                  (long long)next + i);
            CHECK(t, memcmp(one_targets, targets + eval.T * i, bytes) == 0, "targets of sequence %lld",
                  (long long)next + i);
        }
        next += batch.sequences;
    }
    CHECK(t, next == eval.num_sequences, "%lld sequences", (long long)next);
}

// T is the longest sequence, rounded up, as far as the model allows, however small the batches are. Longer sequences
// lose their beginning. The batches have all sequences, in order.
TEST(test_packing) {
    static const struct {
        int batch_size, seq_len, max_seq_len;
        int T, B, num_cut;
    } cases[] = {{4, 1024, 1024, 64, 9, 0}, {2, 64, 1024, 64, 2, 0}, {4, 20, 1024, 64, 1, 0}, {1, 64, 64, 64, 1, 0},
                 {4, 16, 24, 24, 2, 0},     {3, 5, 16, 16, 1, 0},    {8, 8, 8, 8, 8, 3},      {2, 4, 1024, 64, 1, 0},
                 {2, 7, 13, 13, 1, 1},      {64, 1, 10, 10, 6, 1},   {1, 7, 7, 7, 1, 4}};
    make_file();
    if (!open_file(t, 0)) { return; }
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        Error error = {""};
        bool ok = eval_pack(&eval, cases[i].batch_size, cases[i].seq_len, cases[i].max_seq_len, &error);
        if (!CHECK(t, ok, "case %zu: %s", i, error.text)) { continue; }
        CHECK(t, eval.T == cases[i].T && eval.B == cases[i].B && eval.num_cut == cases[i].num_cut,
              "case %zu: T %d, B %d, %lld sequences lose", i, eval.T, eval.B, (long long)eval.num_cut);
        CHECK(t, eval.longest == 14, "case %zu", i);
        check_batches(t);
        int losing = 0;
        for (int sequence = 0; sequence < 9; sequence++) {
            int n = eval.sequences[sequence].context_length + eval.sequences[sequence].completion_length - 1;
            losing += n > eval.T;
            check_sequence(t, sequence, n > eval.T ? n - eval.T : 0);
        }
        CHECK(t, losing == eval.num_cut, "case %zu: %d sequences", i, losing);
    }
    eval_close(&eval);
}

TEST(test_completions_that_do_not_fit) {
    Error error = {""};
    make_file();
    if (!open_file(t, 0)) { return; }
    CHECK(t, eval_pack(&eval, 3, 2, 7, &error), "%s", error.text);
    CHECK_REFUSED(t, eval_pack(&eval, 64, 6, 6, &error), &error, eval.path,
                  ": example 1: completion 0 has 7 tokens, and the model knows only 6 positions; leave this evaluation "
                  "out");
    eval_close(&eval);
    if (open_file(t, 1)) { CHECK(t, eval_pack(&eval, 1, 4, 4, &error), "%s", error.text); }
    eval_close(&eval);
}

// ---- Scores ----

TEST(test_predictions) {
    static const struct {
        double means[4];
        int prediction;
    } cases[] = {{{4, 3, 2, 1}, 3},          {{1, 2, 3, 4}, 0},        {{2, 1, 1, 2}, 1},
                 {{5, 5, 5, 5}, 0},          {{NAN, 3, 2, NAN}, 2},    {{NAN, NAN, NAN, NAN}, -1},
                 {{2, NAN, 1, INFINITY}, 2}, {{INFINITY, 9, 9, 9}, 1}, {{-0.0, 0.0, 1, 1}, 0}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int got = eval_prediction(cases[i].means, 4);
        CHECK(t, got == cases[i].prediction, "case %zu: %d", i, got);
    }
}

TEST(test_judging) {
    const double means[9] = {3, 2, 1, 4, 1, 2, 5, 4, 3}; // picks 2, 0, 2: all right
    const double wrong[9] = {1, 2, 1, 4, 1, 2, 5, 3, 3}; // picks 0, 0, 1
    make_file();
    if (!open_file(t, 0)) { return; }
    CHECK(t, eval_judge(&eval, means) == 3, "%lld of 3", (long long)eval_judge(&eval, means));
    CHECK(t, eval_judge(&eval, wrong) == 1, "%lld of 3, 1 is right", (long long)eval_judge(&eval, wrong));
    eval_close(&eval);
}

// ---- Bad files ----

// Opening fails with `path: want`.
static void check_open_refused(Test *t, size_t bytes, int vocab_size, const char *want) {
    Error error = {""};
    char rest[512];
    snprintf(rest, sizeof(rest), ": %s", want);
    CHECK_REFUSED(t, open_bytes(t, bytes, vocab_size, 0, &error), &error, test_path(t, "eval.bin"), rest);
    CHECK(t, eval.words == NULL && eval.sequences == NULL && !eval_is_open(&eval), "something is left after a failure");
    eval_close(&eval);
}

TEST(test_headers) {
    static const struct {
        int field, value;
        const char *want;
    } cases[] = {{0, 20240520,
                  "is a token shard, expected an evaluation file; give it to --train-data or --val-data, under a name "
                  "that ends with .bin"},
                 {0, 0, "is not an evaluation file: magic 0, expected 20240522; `tokenize --eval` makes one"},
                 {1, 2, "evaluation file of version 2, expected 1"},
                 {2, 0, "header says 0 examples, expected 1 to 65536"},
                 {2, -1, "header says -1 examples, expected 1 to 65536"},
                 {2, 65537, "header says 65537 examples, expected 1 to 65536"},
                 {2, 2, "56 bytes behind the last of 2 examples (damaged? fetch the file again)"},
                 {2, 4, "ends before example 3 (damaged? fetch the file again)"},
                 {3, 0, "header says the longest example has 0 bytes, it has 56 (damaged? fetch the file again)"},
                 {3, 52, "header says the longest example has 52 bytes, it has 56 (damaged? fetch the file again)"}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        make_file();
        eval_file_set_header(&file, cases[i].field, cases[i].value);
        check_open_refused(t, file.bytes, V, cases[i].want);
    }
}

// One field of the last example (9 tokens of context; completions of 2, 2 and 6) is not what it should be. at: words
// from the example's beginning.
TEST(test_fields) {
#define AGAIN "(damaged? fetch the file again)"
    static const struct {
        int at, value;
        const char *want;
    } cases[] = {{0, 0, "example 2: begins with 0, expected 65535 " AGAIN},
                 {1, 49, "example 2: says it has 49 bytes, expected an even number from 10 to 56 " AGAIN},
                 {1, 8, "example 2: says it has 8 bytes, expected an even number from 10 to 56 " AGAIN},
                 {1, 58, "example 2: says it has 58 bytes, expected an even number from 10 to 56 " AGAIN},
                 {1, 65534, "example 2: says it has 65534 bytes, expected an even number from 10 to 56 " AGAIN},
                 {1, 54, "example 2: completion 2 has 6 tokens, room is for 5 " AGAIN},
                 {1, 10, "example 2: the context has 0 tokens, room is for 0 " AGAIN},
                 {2, 3, "example 2: says it is number 3 " AGAIN},
                 {3, 3, "example 2: label 3, but there are 3 completions (counted from 0)"},
                 {3, 65535, "example 2: label 65535, but there are 3 completions (counted from 0)"},
                 {4, 0, "example 2: 0 completions, expected 2 to 256"},
                 {4, 1, "example 2: 1 completions, expected 2 to 256"},
                 {4, 257, "example 2: 257 completions, expected 2 to 256"},
                 {4, 4, "example 2: completion 3 has 0 tokens, room is for 0 " AGAIN},
                 {5, 0, "example 2: the context is empty, expected 1 token or more"},
                 {5, 23, "example 2: the context has 23 tokens, room is for 22 " AGAIN},
                 {5, 65535, "example 2: the context has 65535 tokens, room is for 22 " AGAIN},
                 {15, 0, "example 2: completion 0 is empty, expected 1 token or more"},
                 {21, 5, "example 2: 2 bytes behind its last completion " AGAIN},
                 {6, 1000,
                  "example 2: token 0 of the context is id 1000, the model's vocabulary has 1000 (made by another "
                  "tokenizer?)"},
                 {23, 65535,
                  "example 2: token 1 of completion 2 is id 65535, the model's vocabulary has 1000 (made by another "
                  "tokenizer?)"}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        make_file();
        eval_file_set_word(&file, file.example + 2 * (size_t)cases[i].at, cases[i].value);
        check_open_refused(t, file.bytes, V, cases[i].want);
    }
}

// Cut after any number of bytes, or longer by some.
TEST(test_sizes) {
    Error error;
    make_file();
    for (size_t bytes = 0; bytes < file.bytes; bytes += bytes >= 1000 || bytes == 0 ? 1 : 333) {
        CHECK(t, !open_bytes(t, bytes, V, 0, &error), "cut to %zu bytes: accepted", bytes);
        CHECK(t, strstr(error.text, test_path(t, "eval.bin")) == error.text, "%s", error.text);
    }
    check_open_refused(t, 0, V,
                       "0 bytes, less than the header of an evaluation file, 1024 (truncated? fetch it again)");
    check_open_refused(t, file.bytes + 1, V, "141 bytes, expected an even number " AGAIN);
    check_open_refused(t, file.bytes + 2, V, "2 bytes behind the last of 3 examples " AGAIN);
    check_open_refused(t, file.bytes, 114,
                       "example 2: token 5 of completion 2 is id 114, the model's vocabulary has 114 (made by another "
                       "tokenizer?)");
    CHECK(t, open_bytes(t, file.bytes, 115, 0, &error), "%s", error.text);
    eval_close(&eval);
    CHECK(t, !eval_open(&eval, test_path(t, "none.bin"), V, 0, &error), "no file");
    CHECK(t, strstr(error.text, "none.bin: cannot open: No such file or directory") != NULL, "%s", error.text);
    CHECK(t, !eval_open(&eval, test_folder(t), V, 0, &error) && strstr(error.text, "is a folder") != NULL, "%s",
          error.text);
}
