// A training run around the model: its options, its inputs, its folder and its position. The CPU and the GPU trainer
// share it. A run calls functions that the trainer defines (trainer.h).
//
// Several processes, the ranks, may share a run: each trains on its part of every batch. Rank 0 alone keeps the run
// folder in order and writes the log. All ranks write their parts of checkpoints. A failure of one rank ends all ranks
// (ranks_agree).
//
// A run stands before step `step`: it has done that many updates. The order at a step is: save, validate, evaluate
// (HellaSwag, MMLU), sample, update. So a checkpoint holds the run before anything of its step is logged, and a resumed
// run logs every line once. (seed, next_sequence) alone decide which sequences a step trains on.
#ifndef LLMC_TRAIN_RUN_H
#define LLMC_TRAIN_RUN_H

#include "llmc/data/dataloader.h"
#include "llmc/data/evalloader.h"
#include "llmc/data/tokenizer.h"
#include "llmc/files/state_file.h"
#include "llmc/model/muon.h"
#include "llmc/run/log.h"
#include "llmc/run/lowest.h"
#include "llmc/run/outlier.h"
#include "llmc/run/ranks_api.h"
#include "llmc/run/train_options.h"
#include "llmc/run/trainer.h"

#define RUN_SECTIONS 3
#define RUN_TOKENIZER_NAME "tokenizer.bin" // in the run folder: a copy of the tokenizer

// The evaluations: a name for people, a name for main.log, and the command that fetches the questions.
enum { EVAL_HELLASWAG, EVAL_MMLU, NUM_EVALS };
static const struct {
    const char *name, *log_key, *option, *command;
} run_evals[NUM_EVALS] = {{"HellaSwag", "eval", "--hellaswag-data", "python3 dev/data/hellaswag.py"},
                          {"MMLU", "mmlu", "--mmlu", "python3 dev/data/mmlu.py"}};

typedef struct {
    DirectoryLock lock; // open once the run has claimed the folder
    bool disk_is_short; // a warning has said so
    int64_t newest;     // step of the newest checkpoint that was in the folder at the start, -1: none
    int64_t resumes;    // step of the checkpoint that the run goes on from, -1: it starts afresh
    int64_t saved;      // step of this run's newest checkpoint, -1: none
    StateHeader facts;  // of the checkpoint that the run goes on from
    char *taken;        // a copy of their lines, into which options point; NULL: no run goes on
} RunFolder;

typedef struct {
    bool is_open, is_found; // is_found: it came with the model or the data
    Tokenizer tokenizer;
    uint64_t fingerprint;           // of its tokens; 0: it is not open
    char note[MAX_PATH_BYTES + 64]; // which tokenizer, or why none
} RunTokenizer;

typedef struct {
    uint32_t *train, *val; // tokens of text files; NULL for shards
    uint32_t *prompt;      // (prompt_count), at least one token: a sample goes on from them
    int64_t prompt_count;
    bool prompt_is_given;
    FILE *out; // of samples: standard output, which holds nothing else if the run does not train
} RunTexts;

// The statistics of losses and norms, which a training state keeps beside its arrays.
typedef struct {
    Outliers outliers;
    Lowest lowest;
    StateSection sections[RUN_SECTIONS];
} RunKept;

typedef struct {
    char **arguments; // (num_arguments): the command line
    int num_arguments;
    LogFile file;        // run.jsonl, open on rank 0 between start and end of the run (run_record.h)
    char arithmetic[64]; // what the bits depend on besides the options: the CPU's kernels and vectors; "" on a GPU
    char attention[64];  // and on a GPU: what computes attention; "": no attention is trained, or a CPU
    double train_loss, val_loss, accuracy[NUM_EVALS];       // the newest results
    int64_t train_step, val_step, accuracy_step[NUM_EVALS]; // after so many steps; -1: there is none
    double bits_per_byte, began; // of a run that only evaluates, 0: unknown; its start in seconds_now()
} RunRecord;

// What a run leaves to the memory of its GPUs (llmc/trainer/gpu_choices.h).
typedef struct {
    int64_t gpu_bytes;             // that the run may take of each GPU, with what no plan counts
    int offload, offloads;         // what waits on the host, and what could: OFFLOAD_..
    ShortText offloaded;           // what --auto has left there
    char note[384], no_cudnn[256]; // the choices and their reason; why cuDNN computes no attention; "": none
} RunChoices;

// This process among those that share the batches out. Others work on the batches of one of them.
typedef struct {
    int rank, ranks;
} RunShare;

typedef struct ModelFile ModelFile; // llmc/files/model_file.h

struct TrainRun {
    Trainer *trainer;
    const TrainOptions *options; // run_open_inputs and settle complete them; they stay constant from then on
    ModelConfig config;
    Comm *comm;    // the ranks; NULL: this process trains alone
    int rank;      // of this process
    int connected; // ranks: those of the run, or one for a plan
    int num_ranks; // of the run
    RunShare data;

    ModelFile *model_file; // source of a fresh run's parameters; NULL: a checkpoint, or the seed
    RunTokenizer tokenizer;
    RunTexts texts;
    DataLoader train, val;
    EvalLoader evals[NUM_EVALS]; // open if requested

    RunChoices choices;               // on a GPU
    int64_t num_steps, micro_batches; // micro_batches: of a step
    int64_t step, next_sequence;      // the run's position
    int64_t updates;                  // steps whose update was not skipped
    Schedule schedule;                // of the learning rate

    RunFolder folder;
    RunKept kept;
    Logger logger;
    RunRecord record;
};

// Tells whether the run keeps a folder. An evaluation alone writes one line (run_record.h).
static inline bool run_writes_files(const TrainRun *run) {
    return run->options->out_dir[0] != '\0' && run->options->steps != 0;
}
static inline bool run_leads(const TrainRun *run) { return run->rank == 0; }
static inline bool run_resumes(const TrainRun *run) { return run->folder.resumes >= 0; }
static inline bool run_is_new(const TrainRun *run) { return run->model_file == NULL && !run_resumes(run); }
static inline bool run_has_train(const TrainRun *run) { return run->train.num_sequences > 0; }
static inline bool run_has_val(const TrainRun *run) { return run->val.num_sequences > 0; }

// Returns the parameters of the model, without the padding of the vocabulary.
static inline int64_t run_num_params(const TrainRun *run) {
    int64_t n = 0;
    for (int i = 0; i < NUM_PARAM_TENSORS; i++) { n += param_used(&run->config, i); }
    return n;
}

static inline bool run_is_stopping(void) { return is_stopping(trainer_facts.stop); }

// Returns the sequences of a step over all ranks.
static inline int64_t run_step_sequences(const TrainRun *run) {
    return run->options->total_batch / run->options->seq_len;
}

// Returns the operations of a step.
static inline double run_step_flops(const TrainRun *run) {
    return flops_per_token(&run->config, run->options->seq_len) * (double)run->options->total_batch;
}

// Tells whether --auto chooses the micro-batch.
static inline bool run_chooses_batch(const TrainRun *run) {
    return run->options->auto_plan && !run->options->given[OPTION_batch_size];
}

// Names what gives the model its heads and channels, for an error about them.
static inline const char *run_shape_origin(const TrainRun *run) {
    const TrainOptions *o = run->options;
    if (!run_is_new(run)) { return run_resumes(run) ? o->out_dir : o->init; }
    if (o->heads != 0) { return o->channels != 0 ? "--channels and --heads" : "--heads"; }
    return o->channels != 0 ? "--channels" : "--init";
}

// Names the statistics as sections of a training state.
static inline void run_keep_statistics(TrainRun *run) {
    const StateSection sections[RUN_SECTIONS] = {
        {"loss_outliers", &run->kept.outliers.loss, sizeof(run->kept.outliers.loss), outlier_is_sound},
        {"norm_outliers", &run->kept.outliers.norm, sizeof(run->kept.outliers.norm), outlier_is_sound},
        {"lowest", &run->kept.lowest, sizeof(run->kept.lowest), lowest_is_sound}};
    memcpy(run->kept.sections, sections, sizeof(sections));
}

// ---- Ranks ----

// Rank 0 alone does something, and all ranks go on if it could.
static inline bool run_lead(TrainRun *run, bool (*task)(TrainRun *run, Error *error), Error *error) {
    return ranks_agree(run->comm, !run_leads(run) || task(run, error), error);
}

// Fails with an error that all ranks have.
static inline bool run_fail_together(TrainRun *run, const Error *error) {
    ranks_all_know(run->comm, error);
    return false;
}

// ---- During the run ----

// Reads this rank's part of micro-batch i of the current step. tokens, targets (B,T). The ranks' sequences follow one
// another, so the sequences of a step do not depend on the number of ranks.
static inline bool run_read_batch(TrainRun *run, int64_t i, int32_t *tokens, int32_t *targets, Error *error) {
    int64_t B = run->options->batch_size, first = run->options->overfit ? 0 : run->next_sequence;
    first += (i * run->data.ranks + run->data.rank) * B;
    return dataloader_read(&run->train, first, (int)B, tokens, targets, error);
}

// Returns the sequences of one validation: --val-sequences of them, or all, but none twice. An evaluation alone takes
// all unless an option says otherwise. 0: there is no data for it.
static inline int64_t run_val_sequences(const TrainRun *run) {
    const TrainOptions *o = run->options;
    bool all = o->val_sequences == 0 || (o->steps == 0 && !o->given[OPTION_val_sequences] && o->val_batches < 0);
    return all ? run->val.num_sequences : min_i64(o->val_sequences, run->val.num_sequences);
}

// Reads sequences first .. first+rows-1 of a validation. They are spread evenly over the data, or with --val-batches,
// as in llm.c, its first ones. tokens, targets (rows,T).
static inline bool run_read_val(TrainRun *run, int64_t first, int rows, int32_t *tokens, int32_t *targets,
                                Error *error) {
    int64_t all = run->val.num_sequences, count = run_val_sequences(run), T = run->options->seq_len;
    bool ok = true;
    for (int64_t b = 0; ok && b < rows; b++) {
        int64_t i = first + b, spread = all / count * i + all % count * i / count; // all * i may overflow
        int64_t sequence = run->options->val_batches >= 0 ? i : spread;
        ok = dataloader_read(&run->val, sequence, 1, tokens + b * T, targets + b * T, error);
    }
    return ok;
}

static inline void run_advance(TrainRun *run) {
    run->step++;
    run->next_sequence += run_step_sequences(run);
}

static inline MuonScale run_muon_scale(const TrainRun *run) {
    return strcmp(run->options->muon_scale, "rms") == 0 ? MUON_SCALE_RMS : MUON_SCALE_ORIGINAL;
}

// Return Muon's learning rate and momentum of the current step.
static inline float run_muon_rate(const TrainRun *run) {
    Schedule schedule = train_options_schedule(run->options, run->options->muon_lr, run->num_steps);
    return schedule_lr(&schedule, run->step);
}

static inline float run_muon_momentum(const TrainRun *run) {
    return muon_momentum_of_step(MUON_MOMENTUM, run->options->muon_warmup, run->step);
}

// Tells whether something that happens every N steps and at the end is due before the current step. N = 0: never.
static inline bool run_is_due(const TrainRun *run, int64_t every) {
    return every > 0 && (run->step % every == 0 || run->step == run->num_steps);
}

static inline bool run_has_evals(const TrainRun *run) {
    return eval_is_open(&run->evals[EVAL_HELLASWAG]) || eval_is_open(&run->evals[EVAL_MMLU]);
}

// The kinds of run differ in memory. An evaluation needs no gradients and keeps the activations of one layer only.
typedef enum { RUN_GENERATES, RUN_EVALUATES, RUN_TRAINS } RunKind;

static inline RunKind run_kind(const TrainRun *run) {
    if (run->options->steps != 0) { return RUN_TRAINS; }
    return run_has_val(run) || run_has_evals(run) ? RUN_EVALUATES : RUN_GENERATES;
}

// Return the longest sequence of an evaluation, and the most completions of a question.
static inline int run_eval_length(const TrainRun *run) {
    return (int)max_i64(run->evals[EVAL_HELLASWAG].T, run->evals[EVAL_MMLU].T);
}
static inline int64_t run_eval_sequences(const TrainRun *run) {
    return max_i64(run->evals[EVAL_HELLASWAG].num_sequences, run->evals[EVAL_MMLU].num_sequences);
}

#endif // LLMC_TRAIN_RUN_H
