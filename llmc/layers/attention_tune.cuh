// Chooses the kernels for attention by timing at the start, for --attention auto: cuDNN or our own kernels. cuDNN's
// backward takes a chunk of sequences at a time, and each chunk size is one choice.
//
// A small chunk may keep the backward's dS in the GPU's L2 cache. A large chunk fills the GPU better. cuDNN and our own
// kernels round differently, so this choice changes the bits of a run. Rank 0 chooses for all ranks. The files of
// llmc/cuda/tune_file.h keep the choice. Later runs and resumed runs read it if GPU type and cuDNN version are equal.
#ifndef LLMC_ATTENTION_TUNE_CUH
#define LLMC_ATTENTION_TUNE_CUH

#include "llmc/layers/attention_cudnn.h"
#include "llmc/cuda/matmul_tune.cuh"

#define ATTENTION_OWN 0 // the choice of our own kernels; any other choice is cuDNN's chunk size
#define ATTENTION_MAX_CANDIDATES 4

typedef struct {
    CudnnAttention *cudnn;      // each timing opens or closes it for its choice
    CudnnShape shape;           // of the run's batches
    void (*run)(void *context); // queues a forward and a backward of one layer, with cuDNN if it is open
    void *context;
    cudaStream_t stream;
} AttentionTuner;

// Writes the choices to time and returns their number. A run without timing takes choices[0]. All choices fit into the
// workspace of choices[0].
static inline int attention_candidates(const CudnnShape *shape, int *choices) {
    int count = 0, usual = cudnn_att_chunk(shape);
    choices[count++] = usual;
    for (int chunk = 2; chunk > 0; chunk--) {
        if (chunk < usual && shape->B % chunk == 0) { choices[count++] = chunk; }
    }
    choices[count++] = ATTENTION_OWN;
    return count;
}

static inline void attention_choice_text(char *text, size_t size, int choice) {
    snprintf(text, size, choice == ATTENTION_OWN ? "own" : "cudnn %d", choice);
}

// Finds the candidate with this text. Returns false if no candidate has it.
static inline bool attention_parse_choice(const CudnnShape *shape, const char *text, int *choice) {
    int choices[ATTENTION_MAX_CANDIDATES], count = attention_candidates(shape, choices);
    for (int i = 0; i < count; i++) {
        char known[TUNE_CHOICE_BYTES];
        attention_choice_text(known, sizeof(known), choices[i]);
        if (strncmp(known, text, sizeof(known)) != 0) { continue; }
        *choice = choices[i];
        return true;
    }
    return false;
}

// ---- Timing ----

// Opens cuDNN with the chunk of a choice, or closes it.
static inline bool attention_use(AttentionTuner *t, int choice, Error *error) {
    if (t->cudnn->is_open ? t->cudnn->chunk == choice : choice == ATTENTION_OWN) { return true; }
    cudnn_att_close(t->cudnn);
    return choice == ATTENTION_OWN || cudnn_att_open(t->cudnn, &t->shape, choice, error);
}

// Times all candidates and returns the fastest choice. A candidate that does not open counts as infinitely slow.
static inline int attention_time(AttentionTuner *t, Text *text) {
    int choices[ATTENTION_MAX_CANDIDATES], count = attention_candidates(&t->shape, choices);
    float milliseconds[ATTENTION_MAX_CANDIDATES];
    double start = seconds_now();
    for (int i = 0; i < count; i++) {
        Error ignored;
        milliseconds[i] = INFINITY;
        if (!attention_use(t, choices[i], &ignored)) { continue; }
        tune_time(&milliseconds[i], 1, t->stream, [&](int) { t->run(t->context); });
    }
    text_printf(text, "attention  ");
    for (int i = 0; i < count; i++) {
        char name[TUNE_CHOICE_BYTES];
        attention_choice_text(name, sizeof(name), choices[i]);
        text_printf(text, " %s: %.3g ms,", name, milliseconds[i]);
    }
    text_printf(text, " timed in %.1f s\n", seconds_now() - start);
    return choices[tune_least(milliseconds, count)];
}

// ---- For a person ----

// What a run plans for its attention.
typedef struct {
    bool tensor_cores;       // our own kernels use them
    bool cudnn, times_cudnn; // cuDNN computes it; or timing decides
    bool repeats;            // with equal bits each time
} AttentionPlan;

// Writes "by cuDNN 9.19.0", or the cores that our own kernels use.
static inline void attention_plan_text(char *text, size_t size, const AttentionPlan *plan) {
    const char *own = plan->tensor_cores ? "tensor cores" : "plain cores";
    char version[32];
    cudnn_att_version_text(version, sizeof(version));
    if (!plan->cudnn) {
        snprintf(text, size, "on %s", own);
    } else if (plan->times_cudnn) {
        snprintf(text, size, "by cuDNN %s or our own on %s", version, own);
    } else {
        snprintf(text, size, "by cuDNN %s%s", version,
                 plan->repeats ? "" : ", whose backward has other bits each time");
    }
}

// Writes "by cuDNN 9.19.0, in the backward 8 sequences at a time", once attention is settled.
static inline void attention_used_text(char *text, size_t size, const CudnnAttention *cudnn) {
    char version[32];
    cudnn_att_version_text(version, sizeof(version));
    if (cudnn->is_open) {
        snprintf(text, size, "by cuDNN %s, in the backward %d sequence%s at a time%s", version, cudnn->chunk,
                 cudnn->chunk == 1 ? "" : "s", cudnn->shape.deterministic ? "" : ", with other bits each time");
    } else {
        snprintf(text, size, "by our own kernels");
    }
}

// ---- With the files of choices ----

static inline void attention_key(char *key, const CudnnShape *s) {
    char version[32];
    cudnn_att_version_text(version, sizeof(version));
    snprintf(key, TUNE_KEY_BYTES, "attention B %d T %d C %d NH %d, cuDNN %s or own", s->B, s->T, s->C, s->NH, version);
}

// Returns the choice of a run: from the files if they have one, else by timing. files: open. They keep the choice.
static inline int attention_choose(AttentionTuner *t, Tuning *files) {
    char key[TUNE_KEY_BYTES], text[TUNE_CHOICE_BYTES] = "";
    int choice = ATTENTION_OWN;
    attention_key(key, &t->shape);
    const TuneEntry *entry = tuning_find(files, key, true);
    bool known = entry != NULL && attention_parse_choice(&t->shape, (const char *)entry->choice, &choice);
    if (known) {
        bool of_run = tuning_is_of_run(files, entry);
        text_printf(&files->text, "attention   %s\n", of_run ? "as this run has had it before" : "known from before");
    } else {
        choice = attention_time(t, &files->text);
    }
    attention_choice_text(text, sizeof(text), choice);
    if (!known) { tuning_set_timed(files, key, text); }
    tune_table_set(&files->run, key, text);
    return choice;
}

#endif // LLMC_ATTENTION_TUNE_CUH
