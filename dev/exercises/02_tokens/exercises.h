// Exercises of chapter 2, tokens and embeddings. Write the bodies; `make chapter-2` says which are right.

// 2.1 Byte-pair encoding of one word, in place. tokens (n) holds the ids of the word's bytes. Merge m of `count` joins
// the neighbours pairs[m][0] and pairs[m][1] to the token 256 + m. Lower merges go first, and of overlapping pairs the
// leftmost one. Returns the number of tokens that are left.
static int encode(int *tokens, int n, const int pairs[][2], int count) {
    (void)tokens, (void)pairs, (void)count;
    return n;
}

// 2.2 Where merges come from: the next merge of a vocabulary joins the pair of neighbours that occurs most often in the
// text. Find it in tokens (n), n >= 2. Of pairs that occur equally often take the one that comes first in the text. All
// neighbours count: 7 7 7 holds the pair (7, 7) twice.
static void most_frequent_pair(int *left, int *right, const int *tokens, int n) {
    (void)n;
    *left = tokens[0], *right = tokens[1];
}

// 2.3 The sort that the GPU's backward needs: order (N) = the rows sorted by token, and rows of one token in their
// order. tokens (N) are in 0 .. V-1. counts (V+1) is scratch memory. The time may grow with N + V, not with N log N or
// N V. So no two tokens may be compared.
static void order_rows(int32_t *order, const int32_t *tokens, int N, int V, int32_t *counts) {
    (void)tokens, (void)V, (void)counts;
    for (int row = 0; row < N; row++) { order[row] = row; }
}
