// Chapter 2, tokens and embeddings: the worked example of doc/02_tokens.md, and the checks of its exercises.
#include "dev/exercises/chapter.h"
#include ANSWERS
#include "dev/test/data/small_bpe.h"
#include "llmc/data/tokenizer.h"

enum { B = 2, T = 3, C = 2, N = B * T, MERGES = 8, VOCAB = 256 + MERGES + 1 };

// The tokens that the first merges of GPT-2 make.
static const char *const merged[MERGES] = {" t", " a", "he", "in", "re", "on", " the", "er"};

// A tokenizer of the bytes and these tokens, or of bytes if there are none. The trainer's reader finds the merges.
static Tokenizer tokenizer_of(const char *const *tokens, int count) {
    Tokenizer t;
    Error error;
    char joined[256] = "";
    Text file = {NULL, 0, 0, false};
    memset(&t, 0, sizeof(t));
    if (count == 0) {
        tokenizer_init_byte(&t);
        return t;
    }
    for (int i = 0; i < count; i++) { sprintf(joined + strlen(joined), "%s%s", i > 0 ? "|" : "", tokens[i]); }
    small_bpe_file(&file, joined);
    t.version = 2, t.eot_token = t.ranked = 256 + count;
    const uint8_t *data = (const uint8_t *)file.data + DATA_HEADER_BYTES;
    if (!tokenizer_take_tokens(&t, data, (int64_t)file.used - DATA_HEADER_BYTES, 257 + count, &error) ||
        !tokenizer_recover(&t, &error)) {
        print_error("chapter", &error);
        exit(1);
    }
    text_free(&file);
    return t;
}

static int64_t encode_text(const Tokenizer *t, const char *text, uint32_t *tokens) {
    int64_t count;
    Error error;
    if (!tokenizer_encode(t, (const uint8_t *)text, strlen(text), tokens, &count, &error)) {
        print_error("chapter", &error);
        exit(1);
    }
    return count;
}

// Prints the tokens of a text with the first `count` merges, with a bar between two of them. Returns their number.
static int64_t print_tokens(const char *text, int count, uint32_t *tokens) {
    Tokenizer t = tokenizer_of(merged, count);
    int64_t n = encode_text(&t, text, tokens);
    printf("merges %d, tokens %2d    ", count, (int)n);
    for (int64_t i = 0; i < n; i++) {
        int bytes = 0;
        const uint8_t *token = tokenizer_decode(&t, tokens[i], &bytes);
        printf("%s%.*s", i > 0 ? "|" : "", bytes, (const char *)token);
    }
    printf("\n");
    tokenizer_free(&t);
    return n;
}

static void example(void) {
    const int shown[] = {0, 1, 3, 5, 7, 8};
    uint32_t ids[32];
    for (int i = 0; i < 6; i++) { print_tokens("the then there", shown[i], ids); }
    int32_t tokens[N];
    printf("ids                    ");
    for (int i = 0; i < N; i++) { tokens[i] = (int32_t)ids[i], printf("%d%s", tokens[i], i + 1 < N ? " " : "\n"); }
    static float wte[VOCAB * C], dwte[VOCAB * C];
    const float wpe[T * C] = {0.5f, 0, 0, 0.5f, 0.5f, 0.5f}, dout[N * C] = {1, 0, 0, 1, 1, 1, 2, 0, 0, 2, 3, 1};
    const int used[] = {77, 83, 258, 260, 262};
    for (int i = 0; i < 5; i++) { wte[used[i] * C] = (float)i, wte[used[i] * C + 1] = (float)(i * i); }
    float out[N * C], dwpe[T * C] = {0};
    cpu_embedding_forward(out, tokens, wte, wpe, B, T, C);
    cpu_embedding_backward(dwte, dwpe, dout, tokens, B, T, C);
    for (int i = 0; i < 5; i++) { print_numbered("wte", used[i], wte + used[i] * C, C); }
    print_rows("wpe", wpe, T, C, C), print_rows("out", out, N, C, C), print_rows("dout", dout, N, C, C);
    for (int i = 0; i < 5; i++) { print_numbered("dwte", used[i], dwte + used[i] * C, C); }
    print_rows("dwpe", dwpe, T, C, C);
}

// ---- The checks ----

// GPT-2 gives the visible character c the id c - 33.
#define ID(c) ((c)-33)

static void append_number(char *words, int number) { sprintf(words + strlen(words), " %d", number); }

static void check_encode(Test *t) {
    const char *const made[] = {"he", "aa", "re", "the", "aaa", "rere"};
    const int pairs[6][2] = {{ID('h'), ID('e')}, {ID('a'), ID('a')}, {ID('r'), ID('e')},
                             {ID('t'), 256},     {257, ID('a')},     {258, 258}};
    Tokenizer tokenizer = tokenizer_of(made, 6);
    for (uint64_t word = 0; word < 200; word++) {
        char text[24] = "";
        uint32_t want[24];
        int tokens[24], n = 1 + (int)(word % 20);
        for (int i = 0; i < n; i++) { text[i] = "theraa"[rand_u64(2, word, (uint64_t)i) % 6], tokens[i] = ID(text[i]); }
        int64_t want_count = encode_text(&tokenizer, text, want);
        int count = encode(tokens, n, pairs, 6);
        bool equal = count == want_count;
        for (int i = 0; i < count && equal; i++) { equal = (uint32_t)tokens[i] == want[i]; }
        if (!equal) {
            char got_words[160] = "", want_words[160] = "";
            for (int i = 0; i < count && i < n; i++) { append_number(got_words, tokens[i]); }
            for (int i = 0; i < want_count; i++) { append_number(want_words, (int)want[i]); }
            CHECK(t, false, "%s: got%s, expected%s", text, got_words, want_words);
        }
    }
    tokenizer_free(&tokenizer);
    if (t->failures > 0) {
        printf("  The merges: 256 h e, 257 a a, 258 r e, 259 t 256, 260 257 a, 261 258 258. Merge 256 goes through the "
               "whole word first, then 257.\n");
    }
}

static void check_most_frequent_pair(Test *t) {
    const struct {
        int n, tokens[12], left, right;
    } cases[] = {{2, {5, 4}, 5, 4},
                 {6, {1, 2, 3, 1, 2, 4}, 1, 2},
                 {7, {9, 1, 2, 3, 2, 3, 1}, 2, 3},
                 {8, {1, 2, 9, 2, 1, 8, 2, 1}, 2, 1},
                 {6, {3, 4, 7, 7, 7, 3}, 7, 7},
                 {4, {6, 5, 4, 3}, 6, 5},
                 {12, {0, 300, 0, 300, 1, 0, 300, 2, 1, 0, 1, 0}, 0, 300}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int left = -1, right = -1, *tokens = (int *)malloc((size_t)cases[i].n * sizeof(int)); // so long, and no longer
        memcpy(tokens, cases[i].tokens, (size_t)cases[i].n * sizeof(int));
        most_frequent_pair(&left, &right, tokens, cases[i].n);
        free(tokens);
        char words[96] = "";
        for (int j = 0; j < cases[i].n; j++) { append_number(words, cases[i].tokens[j]); }
        CHECK(t, left == cases[i].left && right == cases[i].right, "tokens%s: (%d, %d), expected (%d, %d)", words, left,
              right, cases[i].left, cases[i].right);
    }
}

// The place of a row is the number of rows with a smaller token, or with an equal token before it.
static void check_order_rows(Test *t) {
    enum { ROWS = 300, WORDS = 50 };
    int32_t tokens[ROWS], order[ROWS], scratch[WORDS + 1];
    for (int row = 0; row < ROWS; row++) { tokens[row] = (int32_t)(rand_u64(2, 1000, (uint64_t)row) % WORDS); }
    tokens[0] = WORDS - 1, tokens[1] = 0;
    for (int row = 0; row < ROWS; row++) { order[row] = -1; }
    order_rows(order, tokens, ROWS, WORDS, scratch);
    for (int row = 0; row < ROWS; row++) {
        int place = 0;
        for (int other = 0; other < ROWS; other++) {
            place += tokens[other] < tokens[row] || (tokens[other] == tokens[row] && other < row);
        }
        CHECK(t, order[place] == row, "place %d holds row %d, expected row %d, which has token %d", place, order[place],
              row, (int)tokens[row]);
    }
}

static const Exercise exercises[] = {{"2.1 encode a word", check_encode},
                                     {"2.2 the next merge", check_most_frequent_pair},
                                     {"2.3 sort the rows by token", check_order_rows}};

int main(void) { return run_chapter("02_tokens", example, exercises); }
