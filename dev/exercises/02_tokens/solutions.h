// Solutions of the exercises of chapter 2.

static int encode(int *tokens, int n, const int pairs[][2], int count) {
    for (int m = 0; m < count; m++) {
        int kept = 0;
        for (int i = 0; i < n; i++) {
            bool merges_here = i + 1 < n && tokens[i] == pairs[m][0] && tokens[i + 1] == pairs[m][1];
            tokens[kept++] = merges_here ? 256 + m : tokens[i];
            if (merges_here) { i++; }
        }
        n = kept;
    }
    return n;
}

static void most_frequent_pair(int *left, int *right, const int *tokens, int n) {
    int most = 0;
    for (int i = 0; i + 1 < n; i++) {
        int times = 0;
        for (int j = 0; j + 1 < n; j++) { times += tokens[j] == tokens[i] && tokens[j + 1] == tokens[i + 1]; }
        if (times > most) { most = times, *left = tokens[i], *right = tokens[i + 1]; }
    }
}

static void order_rows(int32_t *order, const int32_t *tokens, int N, int V, int32_t *counts) {
    for (int v = 0; v <= V; v++) { counts[v] = 0; }
    for (int row = 0; row < N; row++) { counts[tokens[row] + 1]++; }
    for (int v = 0; v < V; v++) { counts[v + 1] += counts[v]; } // counts[v]: where token v begins
    for (int row = 0; row < N; row++) { order[counts[tokens[row]]++] = row; }
}
