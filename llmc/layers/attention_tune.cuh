// Who does the attention of a run where --attention auto leaves it open, found by timing at the start: cuDNN, whose
// backward takes so many sequences at a time, or our own kernels.
//
// A small chunk may keep the backward's dS in the GPU's L2 cache; a large one fills the GPU better. cuDNN and our own
// kernels round differently, so this choice, unlike one among matrix multiplies, changes the bits of a run. Therefore
// rank 0 makes it for all ranks, the file of tuned choices keeps it for later runs, and a file in the run's folder
// keeps it for a resumed run on the same kind of GPU with the same cuDNN.
#ifndef LLMC_ATTENTION_TUNE_CUH
#define LLMC_ATTENTION_TUNE_CUH

#include "llmc/layers/attention_cudnn.h"
#include "llmc/cuda/matmul_tune.cuh"

#define ATTENTION_CHOICE_NAME "attention.txt" // in the run's folder, in the form of llmc/cuda/tune_file.h
#define ATTENTION_OWN 0                       // the choice of our own kernels; any other one is cuDNN's chunk
#define ATTENTION_MAX_CANDIDATES 4

typedef struct {
    CudnnAttention *cudnn;      // open, with its workspaces; of the choice afterwards
    CudnnShape shape;           // of the run's batches
    void (*run)(void *context); // queues a forward and a backward of one layer, by cuDNN if it is open
    void *context;
    cudaStream_t stream;
} AttentionTuner;

// The choices that are timed; [0] is what is taken without timing. All fit into the workspace of [0]. Returns how many.
static inline int attention_candidates(const CudnnShape *shape, int *choices) {
    int count = 0, usual = cudnn_att_chunk(shape);
    choices[count++] = usual;
    for (int chunk = 2; chunk > 0; chunk--) {
        if (chunk < usual) { choices[count++] = chunk; }
    }
    choices[count++] = ATTENTION_OWN;
    return count;
}

static inline void attention_choice_text(char *text, size_t size, int choice) {
    snprintf(text, size, choice == ATTENTION_OWN ? "own" : "cudnn %d", choice);
}

// The number of the choice that reads like this; -1: none of the candidates does.
static inline int attention_choice_number(const CudnnShape *shape, const char *text) {
    int choices[ATTENTION_MAX_CANDIDATES], count = attention_candidates(shape, choices);
    for (int i = 0; i < count; i++) {
        char known[TUNE_CHOICE_BYTES];
        attention_choice_text(known, sizeof(known), choices[i]);
        if (strcmp(known, text) == 0) { return i; }
    }
    return -1;
}

// ---- Timing ----

// Opens cuDNN with the chunk of a choice, or closes it.
static inline bool attention_use(AttentionTuner *t, int choice, Error *error) {
    void *forward = t->cudnn->forward_workspace, *backward = t->cudnn->backward_workspace;
    if (t->cudnn->is_open ? t->cudnn->chunk == choice : choice == ATTENTION_OWN) { return true; }
    cudnn_att_close(t->cudnn);
    bool ok = choice == ATTENTION_OWN || cudnn_att_open_chunked(t->cudnn, &t->shape, choice, error);
    cudnn_att_set_workspace(t->cudnn, forward, backward);
    return ok;
}

// The median time of what is open now. One run goes ahead.
static inline float attention_milliseconds(AttentionTuner *t) {
    float times[TUNE_ROUNDS];
    cudaEvent_t events[TUNE_ROUNDS + 1];
    t->run(t->context);
    for (int i = 0; i <= TUNE_ROUNDS; i++) {
        cuda_check(cudaEventCreateWithFlags(&events[i], cudaEventDefault));
        cuda_check(cudaEventRecord(events[i], t->stream));
        if (i < TUNE_ROUNDS) { t->run(t->context); }
    }
    cuda_check(cudaStreamSynchronize(t->stream));
    for (int i = 0; i < TUNE_ROUNDS; i++) { cuda_check(cudaEventElapsedTime(&times[i], events[i], events[i + 1])); }
    for (cudaEvent_t event : events) { cuda_check(cudaEventDestroy(event)); }
    return tune_median(times, TUNE_ROUNDS);
}

// The number of the least time; the first one's, unless another is clearly less.
static inline int attention_fastest(const float *milliseconds, int count) {
    int best = 0;
    float least = TUNE_GAIN * milliseconds[0];
    for (int i = 1; i < count; i++) {
        if (milliseconds[i] < least) { best = i, least = milliseconds[i]; }
    }
    return best;
}

// Times all candidates; what cannot be opened takes forever.
static inline int attention_time(AttentionTuner *t, TuneReport *report) {
    int choices[ATTENTION_MAX_CANDIDATES], count = attention_candidates(&t->shape, choices);
    float milliseconds[ATTENTION_MAX_CANDIDATES];
    double start = seconds_now();
    for (int i = 0; i < count; i++) {
        Error ignored;
        milliseconds[i] = attention_use(t, choices[i], &ignored) ? attention_milliseconds(t) : INFINITY;
    }
    tune_add_line(report, "attention  ");
    for (int i = 0; i < count; i++) {
        char text[TUNE_CHOICE_BYTES];
        attention_choice_text(text, sizeof(text), choices[i]);
        tune_add_line(report, " %s: %.3g ms,", text, milliseconds[i]);
    }
    tune_add_line(report, " timed in %.1f s\n", seconds_now() - start);
    return choices[attention_fastest(milliseconds, count)];
}

// ---- With the files of earlier starts ----

static inline void attention_key(char *key, const CudnnShape *s) {
    char version[32];
    cudnn_att_version_text(version, sizeof(version));
    snprintf(key, TUNE_KEY_BYTES, "attention B %d T %d C %d NH %d, cuDNN %s or own", s->B, s->T, s->C, s->NH, version);
}

// Reads a file into an empty table, and its choice for this shape, if it has one.
static inline bool attention_read(TuneTable *table, const char *path, const cudaDeviceProp *gpu,
                                  const CudnnShape *shape, int *choice, TuneFileState *state, Error *notice) {
    char key[TUNE_KEY_BYTES], text[TUNE_CHOICE_BYTES];
    int choices[ATTENTION_MAX_CANDIDATES];
    tune_table_init(table, gpu->name, gpu->multiProcessorCount, (long)cublasLtGetVersion());
    *state = path[0] != '\0' ? tune_file_read(table, path, notice) : TUNE_FILE_FOREIGN;
    attention_key(key, shape);
    const TuneEntry *entry = tune_table_find(table, key);
    if (entry == NULL) { return false; }
    memcpy(text, entry->choice, sizeof(text));
    text[sizeof(text) - 1] = '\0';
    int number = attention_choice_number(shape, text);
    attention_candidates(shape, choices);
    if (number >= 0) { *choice = choices[number]; }
    return number >= 0;
}

static inline bool attention_write(TuneTable *table, const char *path, const CudnnShape *shape, int choice,
                                   Error *notice) {
    char key[TUNE_KEY_BYTES], text[TUNE_CHOICE_BYTES] = "";
    attention_key(key, shape);
    attention_choice_text(text, sizeof(text), choice);
    tune_table_set(table, key, text);
    return tune_file_write(table, path, notice);
}

// The choice of a run: that of run_path ("": none), a file in the folder of a run that is resumed; else that of the
// file in report->path; else by timing, which that file then keeps. Fails only when there is no memory for the table.
static inline bool attention_choose(AttentionTuner *t, const char *run_path, const cudaDeviceProp *gpu,
                                    TuneReport *report, int *choice, Error *error) {
    TuneTable *table = (TuneTable *)malloc(sizeof(TuneTable));
    TuneFileState state;
    Error notice;
    if (table == NULL) { return fail(error, "out of memory"); }
    bool known = attention_read(table, run_path, gpu, &t->shape, choice, &state, &notice);
    if (run_path[0] != '\0' && state != TUNE_FILE_READ) { tune_add_notice(report, &notice); }
    if (known) {
        tune_add_line(report, "attention   as this run has had it before\n");
    } else if (attention_read(table, report->path, gpu, &t->shape, choice, &state, &notice)) { // matmul_tune has told
        tune_add_line(report, "attention   known from before\n");
    } else {
        *choice = attention_time(t, report);
        bool writes = report->writes && state != TUNE_FILE_FOREIGN;
        if (writes && !attention_write(table, report->path, &t->shape, *choice, &notice)) {
            tune_add_notice(report, &notice);
        }
    }
    free(table);
    return true;
}

// Keeps a choice in a file of its own.
static inline bool attention_keep(const char *path, const cudaDeviceProp *gpu, const CudnnShape *shape, int choice,
                                  Error *error) {
    TuneTable *table = (TuneTable *)malloc(sizeof(TuneTable));
    if (table == NULL) { return fail(error, "out of memory"); }
    tune_table_init(table, gpu->name, gpu->multiProcessorCount, (long)cublasLtGetVersion());
    bool ok = attention_write(table, path, shape, choice, error);
    free(table);
    return ok;
}

#endif // LLMC_ATTENTION_TUNE_CUH
