// Fuzz target: evaluation files. Whatever the file holds, the reader refuses it or hands out sequences whose tokens are
// in the vocabulary and whose scored inputs are in the sequence, and judges exactly the examples it says it has.
#include "dev/test/data/eval_file.h"
#include "dev/test/fuzz.h"
#include "llmc/data/evalloader.h"

enum { V = 50257, MAX_T = 40, ROOM = 4 * MAX_T };

size_t fuzz_seed_input(int which, uint8_t *buffer, size_t capacity) {
    static EvalFile file;
    const int examples[] = {1, 3, 8};
    if (which >= 6) { return 0; }
    eval_file_begin(&file, which < 3 ? 2 : 4);
    for (int e = 0; e < examples[which % 3]; e++) {
        int completions = e % 3 == 2 ? 2 : 4;
        eval_file_begin_example(&file, e % completions, completions);
        eval_file_tokens(&file, 1 + 9 * e, 50256 - 9 * e);
        for (int i = 0; i < completions; i++) { eval_file_tokens(&file, 1 + (e + i) % 5, 100 * i + e); }
        eval_file_end_example(&file);
    }
    return fuzz_seed(file.data, file.bytes, buffer, capacity);
}

// Each sequence's inputs are followed by its targets, and the scored inputs exist.
static void check_sequence(const EvalLoader *eval, int64_t sequence) {
    int32_t inputs[MAX_T], targets[MAX_T];
    int begin, end, T = eval->T;
    EvalBatch one = {sequence, 1};
    eval_read(eval, one, inputs, targets);
    eval_scored(eval, sequence, &begin, &end);
    require(0 <= begin && begin < end && end <= T && end - begin == eval->sequences[sequence].completion_length);
    for (int t = 0; t < T; t++) {
        require(inputs[t] >= 0 && inputs[t] < V && targets[t] >= 0 && targets[t] < V);
        require(t + 1 >= end || targets[t] == inputs[t + 1]);
        require(t < begin || t >= end || targets[t] == (int)eval->sequences[sequence].completion[t - begin]);
    }
}

// The batches have each sequence once and fit into the room.
static void check_batches(const EvalLoader *eval) {
    int64_t next = 0;
    require(eval->T >= 1 && eval->T <= MAX_T && (int64_t)eval->B * eval->T <= ROOM);
    for (int64_t b = 0; b < eval_num_batches(eval); b++) {
        EvalBatch batch = eval_batch(eval, b);
        require(batch.first == next && batch.sequences >= 1 && batch.sequences <= eval->B);
        for (int i = 0; i < batch.sequences; i++) { check_sequence(eval, next++); }
    }
    require(next == eval->num_sequences);
}

static void check_scores(const EvalLoader *eval) {
    double *means = (double *)calloc((size_t)eval->num_sequences, sizeof(double));
    int64_t firsts = 0;
    for (int64_t e = 0; e < eval->num_examples; e++) {
        require(eval->examples[e].label >= 0 && eval->examples[e].label < eval->examples[e].num_completions);
        firsts += eval->examples[e].label == 0; // all means are equal: the first completion is taken
    }
    require(eval_judge(eval, means) == firsts);
    free(means);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static EvalLoader eval;
    const char *path = fuzz_temp_file(data, size);
    for (int max_examples = 0; max_examples < 3; max_examples += 2) {
        error.text[0] = '\0';
        if (!eval_open(&eval, path, V, MAX_T, max_examples, &error)) {
            require(strncmp(error.text, path, strlen(path)) == 0 && strchr(error.text, '\n') == NULL);
            eval_close(&eval);
            continue;
        }
        eval.B = eval_batch_sequences(&eval, ROOM);
        require(eval.num_examples >= 1 && (max_examples == 0 || eval.num_examples <= max_examples));
        check_batches(&eval);
        check_scores(&eval);
        eval_close(&eval);
    }
    return 0;
}
