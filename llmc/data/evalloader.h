// Multiple-choice questions (HellaSwag, MMLU): which tokens to score, and what an accuracy is.
//
// A question, here an example, is a context and two or more completions. One completion, the label, is right. The model
// picks the completion with the lowest mean loss over the completion's own tokens, the first of equals. The accuracy is
// the fraction of examples where it picks the label.
//
// A sequence is one completion behind its context. Sequences are numbered through all examples in the order of the
// file. A sequence of c + k tokens takes c + k - 1 inputs; the last input predicts the last token. All sequences of a
// file have one length T, that of the longest. A sequence with more inputs than the model has positions loses the
// beginning of its context. A batch has B sequences in the order of the file. The file and the room for a batch decide
// which sequences share a batch, file and model what a sequence holds; the number of ranks decides nothing.
#ifndef LLMC_EVALLOADER_H
#define LLMC_EVALLOADER_H

#include <math.h>

#include "llmc/base/input_file.h"
#include "llmc/base/hash.h"
#include "llmc/data/data_file.h"

#define EVAL_EXAMPLE_START(size) ((size) == 4 ? UINT32_MAX : UINT16_MAX) // in a file whose ids have `size` bytes
#define EVAL_MAX_WORDS 32767 // of an example: its bytes fit 16 bits if its ids do
#define EVAL_MAX_COMPLETIONS 256
#define EVAL_LENGTH_UNIT 64 // T is a multiple of it where nothing limits it: such sequences fill the tiles of a GPU

typedef struct {
    int64_t first_sequence;
    int num_completions, label;
} EvalExample;

typedef struct {
    const uint32_t *context, *completion; // in the file
    int context_length, completion_length;
} EvalSequence;

typedef struct EvalLoader {
    char path[MAX_PATH_BYTES];
    uint32_t *words;         // the file without the header
    int id_bytes;            // of a word in the file
    EvalExample *examples;   // (in_file)
    EvalSequence *sequences; // (num_sequences)
    int64_t in_file;         // examples in the file
    int64_t num_examples;    // in use; 0: not open
    int64_t num_sequences;   // in use
    uint64_t fingerprint;    // of the file
    uint64_t tokenizer;      // its hash, 0: unknown
    int max_seq_len;         // the model's positions
    int B, T;                // sequences of a batch, of which the last one may have fewer, and inputs of a sequence
    int64_t longest;         // inputs of the longest sequence
    int64_t num_cut;         // sequences that lose a part of their context
} EvalLoader;

static inline bool eval_is_open(const EvalLoader *eval) { return eval->num_examples > 0; }

// ---- The file: eval_open adds its name to messages, and eval_parse the number of the example ----

enum { EVAL_START, EVAL_BYTES, EVAL_INDEX, EVAL_LABEL, EVAL_COMPLETIONS, EVAL_FIELDS }; // an example begins with these

#define EVAL_DAMAGED "(damaged? fetch the file again)"

// Checks the fields at the beginning of example number e, of which `left` words are there.
static inline bool eval_check_fields(const uint32_t *field, int size, int64_t left, int64_t e, Error *error) {
    uint32_t bytes = field[EVAL_BYTES], label = field[EVAL_LABEL], completions = field[EVAL_COMPLETIONS];
    if (field[EVAL_START] != EVAL_EXAMPLE_START(size) || field[EVAL_INDEX] != e) {
        return fail(error, "begins with %u, its number is %u, expected %u and %lld " EVAL_DAMAGED, field[EVAL_START],
                    field[EVAL_INDEX], EVAL_EXAMPLE_START(size), (long long)e);
    }
    left = min_i64(left, EVAL_MAX_WORDS) * size;
    if (bytes % (uint32_t)size != 0 || bytes < (uint32_t)(size * EVAL_FIELDS) || bytes > left) {
        return fail(error, "says it has %u bytes, expected a multiple of %d from %d to %lld " EVAL_DAMAGED, bytes, size,
                    size * EVAL_FIELDS, (long long)left);
    }
    if (completions < 2 || completions > EVAL_MAX_COMPLETIONS) {
        return fail(error, "%u completions, expected 2 to %d", completions, EVAL_MAX_COMPLETIONS);
    }
    return label < completions ||
           fail(error, "label %u, but there are %u completions (counted from 0)", label, completions);
}

// Checks what follows the fields of an example, and adds its sequences: the tokens of the context and of each
// completion, behind their number.
static inline bool eval_parse_texts(EvalLoader *eval, const uint32_t *field, int vocab_size, Error *error) {
    const uint32_t *word = field + EVAL_FIELDS, *end = field + field[EVAL_BYTES] / (uint32_t)eval->id_bytes;
    EvalSequence s;
    for (int i = -1; i < (int)field[EVAL_COMPLETIONS]; i++) { // -1: the context
        char name[32] = "the context", where[64];
        if (i >= 0) { snprintf(name, sizeof(name), "completion %d", i); }
        int64_t room = max_i64(end - word - 1, 0);
        uint32_t says = word < end ? *word++ : 0;
        if (says == 0 || says > room) {
            return fail(error, "%s has %u tokens, expected 1 to %lld, as many as there is room for " EVAL_DAMAGED, name,
                        says, (long long)room);
        }
        int length = (int)says;
        int64_t bad = data_find_bad_token(word, length, vocab_size);
        snprintf(where, sizeof(where), "token %d of %s", (int)bad, name);
        if (bad < length) { return data_fail_token(where, word[bad], vocab_size, error); }
        if (i < 0) {
            s.context = word, s.context_length = length;
        } else if (length > eval->max_seq_len) {
            return fail(error, "%s has %d tokens, and the model knows only %d positions; leave this evaluation out",
                        name, length, eval->max_seq_len);
        } else {
            s.completion = word, s.completion_length = length;
            eval->sequences[eval->num_sequences++] = s;
        }
        word += length;
    }
    return word == end || fail(error, "%lld bytes behind its last completion " EVAL_DAMAGED,
                               (long long)(eval->id_bytes * (end - word)));
}

// Checks all examples, which are `bytes` bytes, and their end. Keeps the examples in use.
static inline bool eval_parse(EvalLoader *eval, int64_t bytes, int vocab_size, Error *error) {
    const int size = eval->id_bytes;
    const uint32_t *word = eval->words, *end = word + bytes / size;
    Error reason;
    for (int64_t e = 0; e < eval->in_file; e++) {
        if (end - word < EVAL_FIELDS) { return fail(error, "ends before example %lld " EVAL_DAMAGED, (long long)e); }
        EvalExample example = {eval->num_sequences, (int)word[EVAL_COMPLETIONS], (int)word[EVAL_LABEL]};
        if (!eval_check_fields(word, size, end - word, e, &reason) ||
            !eval_parse_texts(eval, word, vocab_size, &reason)) {
            return fail(error, "example %lld: %s", (long long)e, reason.text);
        }
        eval->examples[e] = example;
        word += word[EVAL_BYTES] / (uint32_t)size;
    }
    if (eval->num_examples < eval->in_file) { eval->num_sequences = eval->examples[eval->num_examples].first_sequence; }
    bytes -= size * (word - eval->words);
    return bytes == 0 || fail(error, "%lld bytes behind the last of %lld examples " EVAL_DAMAGED, (long long)bytes,
                              (long long)eval->in_file);
}

// Frees everything. It may be called twice, and on a loader that failed to open.
static inline void eval_close(EvalLoader *eval) {
    free(eval->words);
    free(eval->examples);
    free(eval->sequences);
    memset(eval, 0, sizeof(*eval));
}

static inline int64_t eval_inputs(const EvalSequence *s) {
    return (int64_t)s->context_length + s->completion_length - 1;
}

// Takes the words of a file. Those of 16 bits are widened.
static inline bool eval_take_words(EvalLoader *eval, uint8_t *data, int64_t bytes, int id_bytes) {
    const int64_t count = bytes / id_bytes;
    uint8_t *wide = id_bytes == 2 ? (uint8_t *)realloc(data, (size_t)(4 * count) + 1) : data;
    eval->words = (uint32_t *)(void *)(wide != NULL ? wide : data);
    eval->id_bytes = id_bytes;
    if (wide == NULL || id_bytes == 4) { return wide != NULL; }
    memmove(wide + 2 * count, wide, (size_t)(2 * count));
    data_widen(eval->words, count);
    return true;
}

// Sets T: the inputs of the longest sequence, rounded up, unless the model allows less.
static inline void eval_set_length(EvalLoader *eval) {
    for (int64_t i = 0; i < eval->num_sequences; i++) {
        int64_t inputs = eval_inputs(&eval->sequences[i]);
        eval->longest = max_i64(eval->longest, inputs);
        eval->num_cut += inputs > eval->max_seq_len;
    }
    eval->T = (int)min_i64(round_up_i64(eval->longest, EVAL_LENGTH_UNIT), eval->max_seq_len);
}

// Reads an evaluation file and checks all of it, for a model of this vocabulary and so many positions. max_examples:
// how many examples to use, from the first; 0: all. The caller sets B (eval_batch_sequences). Close with eval_close.
// After a failure the loader is closed.
static inline bool eval_open(EvalLoader *eval, const char *path, int vocab_size, int max_seq_len, int64_t max_examples,
                             Error *error) {
    BinFile bin;
    uint8_t *data;
    int64_t bytes;
    Error reason;
    memset(eval, 0, sizeof(*eval));
    if (!bin_open(&bin, path, BIN_EVAL, error) ||
        !bin_read_rest(&bin, (int64_t)EVAL_MAX_EXAMPLES * 32768 * bin.element, &data, &bytes, error)) {
        return false;
    }
    path_copy(eval->path, path, strlen(path));
    eval->fingerprint = hash64_join(hash64(bin.header, DATA_HEADER_BYTES), data, (size_t)bytes);
    eval->tokenizer = bin_tokenizer(bin.header);
    eval->max_seq_len = max_seq_len;
    eval->in_file = bin.header[2];
    eval->num_examples = max_examples > 0 ? min_i64(max_examples, eval->in_file) : eval->in_file;
    eval->examples = (EvalExample *)calloc((size_t)eval->in_file, sizeof(EvalExample));
    // A sequence has a count and a token or more.
    eval->sequences = (EvalSequence *)calloc((size_t)(bytes / (2 * bin.element)) + 1, sizeof(EvalSequence));
    bool ok = (eval_take_words(eval, data, bytes, bin.element) && eval->examples != NULL && eval->sequences != NULL) ||
              fail(&reason, "out of memory for a list of examples");
    if (ok && eval_parse(eval, bytes, vocab_size, &reason)) {
        eval_set_length(eval);
        return true;
    }
    eval_close(eval);
    return fail(error, "%s: %s", path, reason.text);
}

// ---- Batches ----

// Returns the sequences of a batch: as many as have this number of tokens together, at least one.
static inline int eval_batch_sequences(const EvalLoader *eval, int64_t tokens) {
    return (int)min_i64(max_i64(1, tokens / eval->T), eval->num_sequences);
}

static inline int64_t eval_num_batches(const EvalLoader *eval) { return ceil_div_i64(eval->num_sequences, eval->B); }

// Sequences first .. first + sequences - 1, which are evaluated together.
typedef struct {
    int64_t first;
    int sequences;
} EvalBatch;

static inline EvalBatch eval_batch(const EvalLoader *eval, int64_t number) {
    EvalBatch batch = {number * eval->B, (int)min_i64(eval->B, eval->num_sequences - number * eval->B)};
    return batch;
}

// The inputs whose losses count, [begin, end) of T: those that predict the completion's tokens.
static inline void eval_scored(const EvalLoader *eval, int64_t sequence, int *begin, int *end) {
    const EvalSequence *s = &eval->sequences[sequence];
    *end = (int)min_i64(eval_inputs(s), eval->T);
    *begin = *end - s->completion_length;
}

// Sets inputs and targets, (batch.sequences, T) each: the last tokens of each sequence, as many as fit, and zeros
// behind them.
static inline void eval_read(const EvalLoader *eval, EvalBatch batch, int32_t *inputs, int32_t *targets) {
    for (int64_t k = 0; k < batch.sequences * (int64_t)eval->T; k++) {
        const EvalSequence *s = &eval->sequences[batch.first + k / eval->T];
        int64_t n = eval_inputs(s), i = max_i64(0, n - eval->T) + k % eval->T, after = i + 1 - s->context_length;
        inputs[k] =
            i >= n ? 0 : (int32_t)(i < s->context_length ? s->context[i] : s->completion[i - s->context_length]);
        targets[k] = i >= n ? 0 : (int32_t)(after < 0 ? s->context[i + 1] : s->completion[after]);
    }
}

// ---- Scores ----

// The completion with the lowest of these mean losses, the first of equals. A loss that is no number does not count.
// Returns -1 if no loss is a number.
static inline int eval_prediction(const double *means, int num_completions) {
    int best = -1;
    for (int i = 0; i < num_completions; i++) {
        if (means[i] < (best < 0 ? INFINITY : means[best])) { best = i; }
    }
    return best;
}

// Returns in how many examples the model picks the label. means (num_sequences): the mean loss of each sequence over
// its completion's tokens, by the sequence's number.
static inline int64_t eval_judge(const EvalLoader *eval, const double *means) {
    int64_t correct = 0;
    for (int64_t i = 0; i < eval->num_examples; i++) {
        const EvalExample *e = &eval->examples[i];
        correct += eval_prediction(means + e->first_sequence, e->num_completions) == e->label;
    }
    return correct;
}

#endif // LLMC_EVALLOADER_H
