// Evaluation files: what a sequence holds, how long sequences are, the choice among completions, and every kind of bad
// file with its message. (Batches and scored inputs: fuzz_evalloader.c.)
#include "dev/test/data/eval_file.h"
#include "dev/test/refused.h"
#include "dev/test/temp_dir.h"
#include "llmc/data/evalloader.h"

enum { V = 1000 };

static EvalFile file;
static EvalLoader eval;
static size_t id_bytes = 2; // of a word in files

// Writes what `file` holds, cut or padded to `bytes`, and opens it.
static bool open_bytes(Test *t, size_t bytes, int vocab_size, int max_seq_len, int64_t max_examples, Error *error) {
    const char *path = test_path(t, "eval.bin");
    temp_write(path, file.data, bytes);
    return eval_open(&eval, path, vocab_size, max_seq_len, max_examples, error);
}

// Three examples of 4, 2 and 3 completions. The tokens of an example count up, through its context and, each time anew,
// through the completion.
static void make_file(void) {
    static const struct {
        int label, context, first, completions, lengths[4];
    } examples[] = {{2, 5, 10, 4, {1, 2, 3, 4}}, {0, 1, 50, 2, {7, 1}}, {2, 9, 100, 3, {2, 2, 6}}};
    eval_file_begin(&file, id_bytes);
    FOR_EACH(e, examples) {
        eval_file_begin_example(&file, examples[e].label, examples[e].completions);
        eval_file_tokens(&file, examples[e].context, examples[e].first);
        for (int i = 0; i < examples[e].completions; i++) {
            eval_file_tokens(&file, examples[e].lengths[i], examples[e].first + examples[e].context);
        }
        eval_file_end_example(&file);
    }
}

static bool open_file(Test *t, int max_seq_len, int64_t max_examples) {
    make_file();
    return OK(t, open_bytes(t, file.bytes, V, max_seq_len, max_examples, &error));
}

// ---- Sequences ----

TEST(test_examples) {
    const int contexts[] = {5, 5, 5, 5, 1, 1, 9, 9, 9}, completions[] = {1, 2, 3, 4, 7, 1, 2, 2, 6};
    const int64_t limits[][3] = {{0, 3, 9}, {2, 2, 6}, {99, 3, 9}}; // examples asked for and in use, sequences
    for (size_t i = 0; i < 2 * COUNT_OF(limits); i++) {
        const size_t k = i / 2;
        id_bytes = i % 2 == 0 ? 4 : 2; // of one file in both versions
        if (!open_file(t, 1024, limits[k][0])) { return; }
        CHECK(t, eval.num_examples == limits[k][1] && eval.num_sequences == limits[k][2] && eval.in_file == 3,
              "%lld examples, %lld sequences", (long long)eval.num_examples, (long long)eval.num_sequences);
        for (int n = 0; n < eval.num_sequences; n++) {
            const EvalSequence *s = &eval.sequences[n];
            bool right = s->context_length == contexts[n] && s->completion_length == completions[n] &&
                         s->completion[0] == s->context[0] + (uint32_t)contexts[n];
            CHECK(t, right, "sequence %d: %d and %d", n, s->context_length, s->completion_length);
        }
        CHECK(t, eval.examples[0].label == 2 && eval.examples[1].label == 0 && eval.examples[2].label == 2, "labels");
        CHECK(t, eval.examples[1].first_sequence == 4 && eval.examples[2].first_sequence == 6, "first sequences");
        eval_close(&eval);
    }
}

// T is the longest sequence, rounded up, as far as the model allows, however small the batches are. Longer sequences
// lose their beginning. (What a batch holds: fuzz_evalloader.c.)
TEST(test_packing) {
    static const struct {
        int batch_size, seq_len, max_seq_len, T, B, num_cut;
    } cases[] = {{4, 1024, 1024, 64, 9, 0}, {2, 64, 1024, 64, 2, 0}, {4, 20, 1024, 64, 1, 0}, {1, 64, 64, 64, 1, 0},
                 {4, 16, 24, 24, 2, 0},     {3, 5, 16, 16, 1, 0},    {8, 8, 8, 8, 8, 3},      {2, 4, 1024, 64, 1, 0},
                 {2, 7, 13, 13, 1, 1},      {64, 1, 10, 10, 6, 1},   {1, 7, 7, 7, 1, 4}};
    FOR_EACH(i, cases) {
        if (!open_file(t, cases[i].max_seq_len, 0)) { return; }
        eval.B = eval_batch_sequences(&eval, (int64_t)cases[i].batch_size * cases[i].seq_len);
        CHECK(t, eval.T == cases[i].T && eval.B == cases[i].B && eval.num_cut == cases[i].num_cut && eval.longest == 14,
              "case %zu: T %d, B %d, %lld sequences lose", i, eval.T, eval.B, (long long)eval.num_cut);
        eval_close(&eval);
    }
}

// ---- Scores ----

TEST(test_predictions) {
    static const struct {
        double means[4];
        int prediction;
    } cases[] = {{{4, 3, 2, 1}, 3},          {{1, 2, 3, 4}, 0},        {{2, 1, 1, 2}, 1},
                 {{5, 5, 5, 5}, 0},          {{NAN, 3, 2, NAN}, 2},    {{NAN, NAN, NAN, NAN}, -1},
                 {{2, NAN, 1, INFINITY}, 2}, {{INFINITY, 9, 9, 9}, 1}, {{-0.0, 0.0, 1, 1}, 0}};
    FOR_EACH(i, cases) {
        int got = eval_prediction(cases[i].means, 4);
        CHECK(t, got == cases[i].prediction, "case %zu: %d", i, got);
    }
}

// ---- Bad files ----

// Opening fails with `path: want`.
static void check_open_refused(Test *t, size_t bytes, int vocab_size, const char *want) {
    REFUSED(t, open_bytes(t, bytes, vocab_size, 1024, 0, &error), test_path(t, "eval.bin"), format(": %s", want));
    CHECK(t, eval.words == NULL && eval.sequences == NULL && !eval_is_open(&eval), "something is left after a failure");
    eval_close(&eval);
}

// One number of the file is not what it should be: a field of the header, or a word of the last example (9 tokens of
// context; completions of 2, 2 and 6).
TEST(test_fields) {
#define ROOM ", as many as there is room for "
#define AGAIN "(damaged? fetch the file again)"
    static const struct {
        size_t id_bytes;
        bool in_header;
        int at, value;
        const char *want;
    } cases[] = {{2, true, 1, 2, "evaluation file of version 2, expected 1 or 7"},
                 {2, true, 2, 65537, "header says 65537 examples, expected 1 to 65536"},
                 {2, true, 2, 2, "56 bytes behind the last of 2 examples " AGAIN},
                 {2, true, 2, 4, "ends before example 3 " AGAIN},
                 {2, false, 0, 0, "example 2: begins with 0, its number is 2, expected 65535 and 2 " AGAIN},
                 {2, false, 1, 49, "example 2: says it has 49 bytes, expected a multiple of 2 from 10 to 56 " AGAIN},
                 {2, false, 1, 58, "example 2: says it has 58 bytes, expected a multiple of 2 from 10 to 56 " AGAIN},
                 {2, false, 1, 54, "example 2: completion 2 has 6 tokens, expected 1 to 5" ROOM AGAIN},
                 {2, false, 2, 3, "example 2: begins with 65535, its number is 3, expected 65535 and 2 " AGAIN},
                 {2, false, 3, 3, "example 2: label 3, but there are 3 completions (counted from 0)"},
                 {2, false, 4, 257, "example 2: 257 completions, expected 2 to 256"},
                 {2, false, 5, 23, "example 2: the context has 23 tokens, expected 1 to 22" ROOM AGAIN},
                 {2, false, 15, 0, "example 2: completion 0 has 0 tokens, expected 1 to 12" ROOM AGAIN},
                 {2, false, 21, 5, "example 2: 2 bytes behind its last completion " AGAIN},
                 {2, false, 6, 1000,
                  "example 2: token 0 of the context is id 1000, the model's vocabulary has 1000 (made by another "
                  "tokenizer?)"},
                 {4, false, 3, -1, "example 2: label 4294967295, but there are 3 completions (counted from 0)"},
                 {4, false, 6, -1,
                  "example 2: token 0 of the context is id 4294967295, the model's vocabulary has 1000 (made by "
                  "another tokenizer?)"}};
    FOR_EACH(i, cases) {
        id_bytes = cases[i].id_bytes;
        make_file();
        if (cases[i].in_header) {
            eval_file_set_header(&file, cases[i].at, cases[i].value);
        } else {
            eval_file_set_word(&file, file.example + id_bytes * (size_t)cases[i].at, cases[i].value);
        }
        check_open_refused(t, file.bytes, V, cases[i].want);
    }
    id_bytes = 2;
}

// An id that 16 bits do not hold.
TEST(test_32_bits) {
    id_bytes = 4;
    make_file();
    eval_file_set_word(&file, file.example + 4 * 6, 128255);
    OK(t, open_bytes(t, file.bytes, 128256, 1024, 0, &error));
    CHECK(t, eval.sequences[6].context[0] == 128255, "id %u", eval.sequences[6].context[0]);
    eval_close(&eval);
    id_bytes = 2;
}

// A file that is longer; a vocabulary and a context that are too small. (Files that are cut: fuzz_evalloader.c.)
TEST(test_sizes) {
    make_file();
    check_open_refused(t, file.bytes + 2, V, "2 bytes behind the last of 3 examples " AGAIN);
    check_open_refused(t, file.bytes, 114,
                       "example 2: token 5 of completion 2 is id 114, the model's vocabulary has 114 (made by another "
                       "tokenizer?)");
    OK(t, open_bytes(t, file.bytes, 115, 7, 0, &error));
    eval_close(&eval);
    REFUSED(t, open_bytes(t, file.bytes, V, 6, 0, &error), test_path(t, "eval.bin"),
            ": example 1: completion 0 has 7 tokens, and the model knows only 6 positions; leave this evaluation "
            "out");
}
