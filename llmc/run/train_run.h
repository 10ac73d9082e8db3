// A training run around the model: what the options ask for, checked and opened (tokenizer, data, run folder,
// schedule), where the run stands, and how it is saved and resumed. Nothing here knows how the model computes, so that
// the CPU and the GPU trainer share it.
//
// Several processes, the ranks, may share a run: each trains on its part of every batch. Rank 0
// alone keeps the run folder in order and writes the log; all write their parts of checkpoints. What one of them cannot
// do ends all of them (run_agree).
//
// A run stands before step `step`: that many updates are done. The order at a step is: save, validate, evaluate
// (HellaSwag, MMLU), sample, update.
// A checkpoint therefore holds the run as it was before anything of its step was logged, and a resumed run logs every
// line once. Which sequences a step trains on follows from (seed, next_sequence) alone.
#ifndef LLMC_TRAIN_RUN_H
#define LLMC_TRAIN_RUN_H

#include "llmc/files/checkpoint.h"
#include "llmc/data/dataloader.h"
#include "llmc/base/disk_space.h"
#include "llmc/data/evalloader.h"
#include "llmc/base/files.h"
#include "llmc/model/gpt2.h"
#include "llmc/files/hf_export.h"
#include "llmc/files/hf_tokenizer.h"
#include "llmc/base/json_out.h"
#include "llmc/run/log.h"
#include "llmc/run/loss_svg.h"
#include "llmc/files/model_file.h"
#include "llmc/run/text_out.h"
#include "llmc/data/tokenizer.h"
#include "llmc/run/train_options.h"
#include "llmc/base/utils.h"

#define RUN_MAX_CHECKPOINTS 4096
#define BYTE_VOCAB_SIZE 257
#define TOKENIZER_FILE "gpt2_tokenizer.bin" // read from the working directory when it is there, as llm.c does

// The evaluations: a name for people, one for main.log, and the command that fetches the questions.
enum { EVAL_HELLASWAG, EVAL_MMLU, NUM_EVALS };
static const struct {
    const char *name, *log_key, *option, *command;
} run_evals[NUM_EVALS] = {{"HellaSwag", "eval", "--hellaswag-data", "python3 dev/data/hellaswag.py"},
                          {"MMLU", "mmlu", "--mmlu-data", "python3 dev/data/mmlu.py"}};

// The ranks of a run, as far as a run deals with them. The trainer fills in the functions (llmc/ranks). One rank needs
// none of them.
typedef struct Comm Comm;
typedef struct {
    int rank, num_ranks;
    bool launched; // mpirun or srun started the processes
    Comm *comm;    // given to each function
    bool (*agree)(Comm *comm, bool ok, Error *error);
    bool (*broadcast)(Comm *comm, void *data, int64_t bytes, Error *error); // from rank 0
    bool (*sum)(Comm *comm, uint64_t *values, int count, Error *error);
    bool (*alike)(Comm *comm, const char *facts, size_t bytes, Error *error); // facts: name NUL value NUL ...
    bool (*is_broken)(const Comm *comm);                                      // no exchange can succeed any more
    void (*all_know)(Comm *comm, const Error *error);                         // all ranks have this error
    void (*slow)(Comm *comm, bool slow);                                      // for the watch: this may take long
    void (*on_failure)(Comm *comm, void (*note)(void *context, const char *words), void *context);
} RunRanks;

static inline RunRanks run_one_rank(void) {
    RunRanks ranks;
    memset(&ranks, 0, sizeof(ranks));
    ranks.num_ranks = 1;
    return ranks;
}

#define RUN_MAX_SECTIONS 4

typedef struct TrainRun {
    TrainOptions options;
    GPT2Config config;
    const char *precision; // of activations and matrix multiplies: "fp32" or "bf16"

    RunRanks ranks; // those that are there
    int num_ranks;  // of the run; while it is only planned, one is there

    ModelFile model_file; // where the parameters of a fresh run come from
    bool resumes;         // or they come from a checkpoint, one of these:
    int64_t checkpoints[RUN_MAX_CHECKPOINTS];
    int num_checkpoints, first_usable;

    bool has_tokenizer, tokenizer_is_models; // is_models: it came with the model
    Tokenizer tokenizer;
    char tokenizer_note[MAX_PATH_BYTES + 64]; // which one, or why none
    uint16_t *train_text, *val_text;          // tokens of text files; NULL for shards
    DataLoader train, val;
    bool has_train, has_val;
    EvalLoader evals[NUM_EVALS]; // open where wanted

    uint16_t *prompt_tokens; // what a sample goes on from; at least one
    int64_t prompt_count;

    int64_t gpu_bytes;   // the memory of the smallest GPU of all ranks; with --plan, of the one supposed
    char auto_note[512]; // what was left to the GPU: what was chosen, and why; "": nothing
    int64_t num_steps, sequences_per_step, micro_batches; // of a step
    int64_t step, next_sequence;                          // where the run stands
    int64_t updates;                                      // steps whose update was not skipped
    int64_t saved_step;                                   // of the newest checkpoint of this run, -1: none
    StateSection sections[RUN_MAX_SECTIONS];              // what the trainer keeps in a training state beside arrays
    int num_sections;

    DiskState disk; // what was last said of it
    bool locked;
    DirectoryLock lock;
    Logger logger;
    char **arguments; // (num_arguments): the command line
    int num_arguments;
    JsonOut record; // run.json without its end; rank 0 has it from the run's beginning to its end (run_json.h)
} TrainRun;

static inline bool run_writes_files(const TrainRun *run) { return run->options.out_dir[0] != '\0'; }
static inline bool run_leads(const TrainRun *run) { return run->ranks.rank == 0; }

// ---- Ranks ----

// Goes on if all ranks can. Otherwise all fail, with the words of the first that failed.
static inline bool run_agree(TrainRun *run, bool ok, Error *error) {
    return run->ranks.num_ranks == 1 ? ok : run->ranks.agree(run->ranks.comm, ok, error);
}

// All ranks take rank 0's data.
static inline bool run_broadcast(TrainRun *run, void *data, int64_t bytes, Error *error) {
    return run->ranks.num_ranks == 1 || run->ranks.broadcast(run->ranks.comm, data, bytes, error);
}

// Sums over the ranks.
static inline bool run_sum(TrainRun *run, uint64_t *values, int count, Error *error) {
    return run->ranks.num_ranks == 1 || run->ranks.sum(run->ranks.comm, values, count, error);
}

// What follows may take long: the watch is patient.
static inline void run_slow(TrainRun *run, bool slow) {
    if (run->ranks.num_ranks > 1) { run->ranks.slow(run->ranks.comm, slow); }
}

// Calls note with the words of a failure that ends this process. note NULL: no longer.
static inline void run_on_failure(TrainRun *run, void (*note)(void *context, const char *words)) {
    if (run->ranks.num_ranks > 1) { run->ranks.on_failure(run->ranks.comm, note, run); }
}

static inline void run_add_fact(Text *facts, const char *name, const char *value) {
    text_bytes(facts, name, strlen(name) + 1);
    text_bytes(facts, value, strlen(value) + 1);
}

// Ranks that were started with other options, by another program, or see other files, would train nonsense.
static inline bool run_check_same(TrainRun *run, Error *error) {
    Text facts = {NULL, 0, 0, false};
    uint64_t program = 0, model = 0;
    char text[MAX_PATH_BYTES];
    if (run->ranks.num_ranks == 1) { return true; }
    bool ok = run->resumes || run->model_file.kind == MODEL_FROM_SIZE ||
              model_file_fingerprint(&run->model_file, &model, error);
    if (!run_agree(run, ok, error)) { return false; }
    Error ignored;
    if (!file_checksum("/proc/self/exe", &program, &ignored)) { program = 0; }
    run_add_fact(&facts, "the version of the program", GPT2C_VERSION);
    run_add_fact(&facts, "the precision it was built for", run->precision);
    snprintf(text, sizeof(text), "%016llx", (unsigned long long)program);
    run_add_fact(&facts, "the program file's checksum", text);
    for (int i = 0; i < train_options_count(); i++) {
        char name[64];
        if (train_options_is_of_rank(i)) { continue; }
        snprintf(name, sizeof(name), "--%s", train_options_name(i));
        train_options_text(&run->options, i, text, sizeof(text));
        run_add_fact(&facts, name, text);
    }
    const struct {
        const char *name;
        uint64_t value;
    } hashes[] = {{"the checkpoint to go on from", (uint64_t)(run->resumes ? run->checkpoints[run->first_usable] : 0)},
                  {"the model file's fingerprint", model},
                  {"the training data's fingerprint", run->has_train ? dataloader_fingerprint(&run->train) : 0},
                  {"the validation data's fingerprint", run->has_val ? dataloader_fingerprint(&run->val) : 0},
                  {"the HellaSwag file's fingerprint", run->evals[EVAL_HELLASWAG].fingerprint},
                  {"the MMLU file's fingerprint", run->evals[EVAL_MMLU].fingerprint}};
    for (size_t i = 0; i < sizeof(hashes) / sizeof(hashes[0]); i++) {
        snprintf(text, sizeof(text), "%016llx", (unsigned long long)hashes[i].value);
        run_add_fact(&facts, hashes[i].name, text);
    }
    ok = run_agree(run, !facts.failed || fail(error, "out of memory"), error) &&
         run->ranks.alike(run->ranks.comm, facts.data, facts.used, error);
    text_free(&facts);
    return ok;
}

// ---- Opening ----

static inline bool run_folder_is_used(TrainRun *run) {
    char log[MAX_PATH_BYTES];
    Error ignored;
    return run->num_checkpoints > 0 || (path_join(log, run->options.out_dir, "main.log", &ignored) && path_exists(log));
}

// Makes the run folder this process's own and finds the checkpoints in it. A fresh run does not begin in the folder of
// an older one unless told to.
static inline bool run_claim_folder(TrainRun *run, Error *error) {
    const TrainOptions *o = &run->options;
    if (!directory_lock(&run->lock, o->out_dir, error)) { return false; }
    run->locked = true;
    if (!checkpoint_clean(o->out_dir, error)) { return false; }
    run->num_checkpoints = checkpoint_list(o->out_dir, run->checkpoints, RUN_MAX_CHECKPOINTS);
    if (o->resume || o->overwrite || !run_folder_is_used(run)) { return true; }
    return fail(error,
                "%s: holds an earlier run; give --resume to go on with it, --overwrite to start afresh in its "
                "place, or another --out-dir",
                o->out_dir);
}

// What rank 0 found in the run folder.
typedef struct {
    int64_t checkpoints[RUN_MAX_CHECKPOINTS];
    int32_t num_checkpoints;
    int32_t resumes;
} RunFolder;

// The other ranks take rank 0's word for what the folder holds: only one may clean it up, and a network file system may
// show each something else.
static inline bool run_share_folder(TrainRun *run, Error *error) {
    if (run->ranks.num_ranks == 1) { return true; }
    RunFolder *folder = (RunFolder *)calloc(1, sizeof(RunFolder));
    if (!run_agree(run, folder != NULL || fail(error, "out of memory"), error)) {
        free(folder);
        return false;
    }
    memcpy(folder->checkpoints, run->checkpoints, sizeof(folder->checkpoints));
    folder->num_checkpoints = run->num_checkpoints;
    folder->resumes = run->resumes;
    bool ok = run_broadcast(run, folder, (int64_t)sizeof(*folder), error);
    memcpy(run->checkpoints, folder->checkpoints, sizeof(folder->checkpoints));
    run->num_checkpoints = folder->num_checkpoints;
    run->resumes = folder->resumes != 0;
    free(folder);
    return ok;
}

// Looks at the run folder. One that does not exist is made when all else has proved to be in order (run_begin); --plan
// only reads.
static inline bool run_look_at_folder(TrainRun *run, Error *error) {
    const TrainOptions *o = &run->options;
    if (!path_check(o->out_dir, "--out-dir (-o)", error)) { return false; }
    if (o->plan) {
        run->num_checkpoints = checkpoint_list(o->out_dir, run->checkpoints, RUN_MAX_CHECKPOINTS);
    } else if (path_exists(o->out_dir) && !run_claim_folder(run, error)) {
        return false;
    }
    run->resumes = o->resume && run->num_checkpoints > 0;
    return true;
}

static inline bool run_open_folder(TrainRun *run, Error *error) {
    if (!run_writes_files(run)) { return true; }
    bool ok = !run_leads(run) || run_look_at_folder(run, error);
    return run_agree(run, ok, error) && run_share_folder(run, error);
}

static inline void run_report_damage(TrainRun *run, const Error *error) {
    logger_event(&run->logger, "damaged checkpoint: %s", error->text);
}

static inline bool run_fail_all_damaged(const TrainRun *run, const Error *reason, Error *error) {
    Error newest = *reason; // reason may be error
    return fail(error, "%s: none of its checkpoints is whole (%.4000s); give --overwrite to start afresh",
                run->options.out_dir, newest.text);
}

// Takes the config of the newest checkpoint whose header can be read.
static inline bool run_config_from_checkpoint(TrainRun *run, Error *error) {
    for (int i = 0; i < run->num_checkpoints; i++) {
        StateHeader header;
        run->first_usable = i;
        if (checkpoint_load_header(run->options.out_dir, run->checkpoints[i], &run->config, &header, error)) {
            return true;
        }
        run_report_damage(run, error);
    }
    return run_fail_all_damaged(run, error, error);
}

static inline bool run_refuse_size_options(const TrainOptions *o, Error *error) {
    const struct {
        const char *name;
        int64_t value;
    } sizes[] = {{"--layers", o->layers},
                 {"--heads", o->heads},
                 {"--channels", o->channels},
                 {"--context", o->context},
                 {"--vocab", o->vocab}};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        if (sizes[i].value != 0) {
            return fail(error, "%s: is for new models; --init %.4000s names a model that exists", sizes[i].name,
                        o->init);
        }
    }
    return true;
}

// Rank 0 finds out what --init is, which may mean to read a whole checkpoint; the others take its word. That they have
// the same file there, run_check_same finds out.
static inline bool run_open_model_file(TrainRun *run, Error *error) {
    bool ok = !run_leads(run) || model_file_open(&run->model_file, run->options.init, error);
    return run_agree(run, ok, error) && run_broadcast(run, &run->model_file, (int64_t)sizeof(run->model_file), error);
}

// Where the model comes from, and its config as far as that tells: a size leaves the vocabulary 0.
static inline bool run_open_model(TrainRun *run, Error *error) {
    const TrainOptions *o = &run->options;
    if (run->resumes) { return run_config_from_checkpoint(run, error); }
    if (!run_open_model_file(run, error)) { return false; }
    if (run->model_file.note.text[0] != '\0') { run_report_damage(run, &run->model_file.note); }
    run->config = run->model_file.config;
    if (run->model_file.kind != MODEL_FROM_SIZE) { return run_refuse_size_options(o, error); }
    if (o->layers) { run->config.num_layers = (int)o->layers; }
    if (o->heads) { run->config.num_heads = (int)o->heads; }
    if (o->channels) { run->config.channels = (int)o->channels; }
    if (o->context) { run->config.max_seq_len = (int)o->context; }
    run->config.vocab_size = (int)o->vocab;
    return true;
}

static inline bool run_trains_on_text(const TrainRun *run) {
    const char *data = run->options.train_data;
    return data[0] != '\0' && !data_is_shards(data);
}

// Without --tokenizer, a model of Hugging Face's brings its own in its folder. False without a message: it has none.
static inline bool run_finds_model_tokenizer(const TrainRun *run, char dir[MAX_PATH_BYTES]) {
    const char *init = run->options.init;
    GPT2Config size;
    bool folder = path_is_directory(init), file = !folder && ends_with(init, ".safetensors");
    bool is_path = (folder || file) && strlen(init) <= PATH_LIMIT && !gpt2_config_from_size(&size, init);
    if (run->options.tokenizer[0] != '\0' || !is_path) { return false; }
    path_copy(dir, init, strlen(init));
    if (file) { path_parent(dir, init); }
    return hf_tokenizer_exists(dir);
}

static inline bool run_open_model_tokenizer(TrainRun *run, const char *dir, Error *error) {
    snprintf(run->tokenizer_note, sizeof(run->tokenizer_note), "%.4000s, the model's own", dir);
    run->has_tokenizer = run->tokenizer_is_models = hf_tokenizer_load(&run->tokenizer, dir, error);
    return run->has_tokenizer;
}

// The tokenizer that --tokenizer names; without it the model's own; else the built-in bytes for a text or a model of
// bytes, else llm.c's file if it lies in the working directory, else none. Training on shards needs none: samples are
// then printed as ids.
static inline bool run_open_tokenizer(TrainRun *run, Error *error) {
    const char *name = run->options.tokenizer;
    char dir[MAX_PATH_BYTES];
    bool needed = run_trains_on_text(run) || run->options.prompt[0] != '\0';
    if (run_finds_model_tokenizer(run, dir)) { return run_open_model_tokenizer(run, dir, error); }
    if (name[0] == '\0') {
        bool bytes = run_trains_on_text(run) || run->config.vocab_size == BYTE_VOCAB_SIZE;
        name = bytes ? "byte" : path_exists(TOKENIZER_FILE) ? TOKENIZER_FILE : "";
    } else if (strcmp(name, "byte") != 0 && !path_exists(name) && !needed) {
        snprintf(run->tokenizer_note, sizeof(run->tokenizer_note), "none (%s: not found), samples are token ids", name);
        return true;
    }
    if (name[0] == '\0') {
        if (run->options.prompt[0] != '\0') {
            return fail(error, "--prompt: needs a tokenizer for the model's %d tokens; give --tokenizer vocab.bpe",
                        run->config.vocab_size);
        }
        snprintf(run->tokenizer_note, sizeof(run->tokenizer_note), "none, samples are token ids");
        return true;
    }
    snprintf(run->tokenizer_note, sizeof(run->tokenizer_note), "%s", name);
    run->has_tokenizer = tokenizer_open(&run->tokenizer, name, error);
    if (!run->has_tokenizer) { return false; }
    if (!needed || tokenizer_can_encode(&run->tokenizer)) { return true; }
    return fail(error, "--tokenizer: %s can only decode, and %s needs encoding; give vocab.bpe", name,
                run->options.prompt[0] != '\0' ? "--prompt" : "training on text");
}

// Settles the vocabulary and checks that model and tokenizer agree on it: the same size, or with --vocab, or a
// tokenizer from the model's folder, a model with room for more.
static inline bool run_settle_vocab(TrainRun *run, Error *error) {
    GPT2Config *config = &run->config;
    int tokens = run->has_tokenizer ? run->tokenizer.vocab_size : GPT2_VOCAB_SIZE;
    if (config->vocab_size == 0) { config->vocab_size = tokens; }
    if (run->model_file.kind == MODEL_FROM_SIZE && !run->resumes) {
        config->padded_vocab_size = gpt2_pad_vocab(config->vocab_size);
    }
    bool room = run->options.vocab != 0 || run->tokenizer_is_models; // rows that no token has
    if (run->has_tokenizer && (room ? tokens > config->vocab_size : tokens != config->vocab_size)) {
        return fail(error,
                    "tokenizer %.4000s has %d tokens, the model %d; give the tokenizer the model was made with "
                    "(--tokenizer), or a model of its own (--init d12)",
                    run->tokenizer_note, tokens, config->vocab_size);
    }
    return gpt2_check_config(config, run->resumes ? run->options.out_dir : "--init", error);
}

static inline bool run_open_loader(TrainRun *run, DataLoader *loader, const char *name, const uint16_t *tokens,
                                   int64_t count, bool shuffle, Error *error) {
    const TrainOptions *o = &run->options;
    int T = (int)o->seq_len, V = run->config.vocab_size;
    if (tokens == NULL) { return dataloader_open(loader, name, T, V, shuffle, (uint64_t)o->seed, error); }
    return dataloader_open_tokens(loader, name, tokens, count, T, V, shuffle, (uint64_t)o->seed, error);
}

// Opens the training and validation data. A text without --val-data gives up its last part for validation.
static inline bool run_open_data(TrainRun *run, Error *error) {
    const TrainOptions *o = &run->options;
    int64_t train_count = 0, val_count = 0;
    const uint16_t *val_tokens = NULL;
    if (o->val_data[0] != '\0' && !data_is_shards(o->val_data)) {
        if (!run->has_tokenizer) {
            return fail(error, "--val-data (-j): a text needs a tokenizer; give --tokenizer vocab.bpe");
        }
        if (!text_load(o->val_data, &run->tokenizer, &run->val_text, &val_count, error)) { return false; }
        val_tokens = run->val_text;
    }
    if (o->train_data[0] != '\0') {
        if (run_trains_on_text(run)) {
            if (!text_load(o->train_data, &run->tokenizer, &run->train_text, &train_count, error)) { return false; }
            if (o->val_data[0] == '\0') {
                int64_t all = train_count;
                text_split(all, (int)o->seq_len, &train_count);
                val_tokens = run->train_text + train_count;
                val_count = all - train_count;
            }
        }
        run->has_train =
            run_open_loader(run, &run->train, o->train_data, run->train_text, train_count, o->shuffle, error);
        if (!run->has_train) { return false; }
    }
    if (o->val_data[0] == '\0' && val_count <= o->seq_len) { return true; } // nothing was split off, or too little
    run->has_val = run_open_loader(run, &run->val, o->val_data[0] ? o->val_data : o->train_data, val_tokens, val_count,
                                   false, error);
    return run->has_val;
}

static inline bool run_open_eval(TrainRun *run, int which, const char *path, Error *error) {
    const TrainOptions *o = &run->options;
    EvalLoader *eval = &run->evals[which];
    if (!path_exists(path)) {
        return fail(error, "%s: no such file; `%s` fetches it, %s names another", path, run_evals[which].command,
                    run_evals[which].option);
    }
    return eval_open(eval, path, run->config.vocab_size, o->eval_examples, error) &&
           eval_pack(eval, (int)o->batch_size, (int)o->seq_len, run->config.max_seq_len, error);
}

// Opens the questions of the evaluations that are wanted.
static inline bool run_open_evals(TrainRun *run, Error *error) {
    const TrainOptions *o = &run->options;
    return (!o->hellaswag || run_open_eval(run, EVAL_HELLASWAG, o->hellaswag_data, error)) &&
           (!o->mmlu || run_open_eval(run, EVAL_MMLU, o->mmlu_data, error));
}

// Encodes --prompt. Without one, a sample begins at the start of a document.
static inline bool run_encode_prompt(TrainRun *run, Error *error) {
    const char *prompt = run->options.prompt;
    size_t bytes = strlen(prompt);
    run->prompt_tokens = (uint16_t *)malloc((bytes + 1) * sizeof(uint16_t));
    if (run->prompt_tokens == NULL) { return fail(error, "--prompt: out of memory"); }
    if (bytes > 0) {
        return tokenizer_encode(&run->tokenizer, (const uint8_t *)prompt, bytes, run->prompt_tokens, &run->prompt_count,
                                error);
    }
    int end_of_text = run->has_tokenizer ? run->tokenizer.eot_token : GPT2_VOCAB_SIZE - 1;
    run->prompt_tokens[0] = (uint16_t)min_i64(end_of_text, run->config.vocab_size - 1);
    run->prompt_count = 1;
    return true;
}

// Steps and micro-batches.
static inline bool run_settle_schedule(TrainRun *run, Error *error) {
    const TrainOptions *o = &run->options;
    run->sequences_per_step = o->total_batch / o->seq_len;
    run->micro_batches = o->total_batch / (o->batch_size * o->seq_len * run->num_ranks);
    run->num_steps = o->steps;
    if (o->steps < 0 && run->has_train) { run->num_steps = run->train.num_sequences / run->sequences_per_step; }
    if (o->plan && !run->has_train) { run->num_steps = 0; }
    if (o->steps < 0 && run->num_steps < 1 && run->has_train) {
        return fail(error,
                    "--steps (-x): one epoch is %lld sequences, less than the %lld of one step; give --steps, a "
                    "smaller --total-batch or more data",
                    (long long)run->train.num_sequences, (long long)run->sequences_per_step);
    }
    return true;
}

// A run that only samples sees all positions of its model; otherwise 0 means 64, or the context of a smaller model.
static inline bool run_settle_seq_len(TrainRun *run, int default_seq_len, Error *error) {
    TrainOptions *o = &run->options;
    bool samples_only = o->steps == 0 && o->train_data[0] == '\0' && o->val_data[0] == '\0';
    if (o->seq_len == 0) {
        o->seq_len = samples_only ? run->config.max_seq_len : min_i64(default_seq_len, run->config.max_seq_len);
    }
    return train_options_check_context(o, run->config.max_seq_len, error);
}

// What --export names must be a place for an export, and neither the run's own folder nor one above it.
static inline bool run_look_at_export(const TrainRun *run, Error *error) {
    const TrainOptions *o = &run->options;
    char place[MAX_PATH_BYTES], folder[MAX_PATH_BYTES];
    size_t n = strlen(o->export_dir);
    if (!hf_export_check(o->export_dir, error)) { return false; }
    if (!run_writes_files(run)) { return true; }
    if (!path_resolve(place, o->export_dir, error) || !path_resolve(folder, o->out_dir, error)) { return false; }
    while (n > 1 && o->export_dir[n - 1] == '/') { n--; }
    if (strcmp(place, folder) == 0) {
        return fail(error, "--export: %.2000s is --out-dir (-o), too; choose another folder, for example %.*s/hf",
                    o->export_dir, (int)min_i64((int64_t)n, 2000), o->export_dir);
    }
    n = strlen(place);
    if (strncmp(place, folder, n) != 0 || (place[n - 1] != '/' && folder[n] != '/')) { return true; }
    return fail(error, "--export: --out-dir (-o), %.2000s, is inside %.2000s; choose another folder", o->out_dir,
                o->export_dir);
}

// Rank 0 looks, since it writes. All meet here, also where only some were told to export: run_check_same will say so.
static inline bool run_check_export(TrainRun *run, Error *error) {
    bool looks = run_leads(run) && run->options.export_dir[0] != '\0';
    return run_agree(run, !looks || run_look_at_export(run, error), error);
}

// --auto chooses the micro-batch when the GPU is open (run_change_batch_size). Until then it is the largest that there
// may be: an evaluation that does not fit into that one fits into none.
static inline bool run_settle_batch(TrainRun *run, Error *error) {
    TrainOptions *o = &run->options;
    bool chooses = o->auto_plan && !o->given[TRAIN_ROW_batch_size];
    if (chooses) { o->batch_size = 1; }
    if (!train_options_check_batch(o, run->num_ranks, error)) { return false; }
    if (chooses) { o->batch_size = train_options_next_batch(o->total_batch / (o->seq_len * run->num_ranks), 0); }
    return true;
}

// Gives the run another micro-batch than it was opened with, one that divides a step. Fails if an evaluation does not
// fit into it.
static inline bool run_change_batch_size(TrainRun *run, int64_t batch_size, Error *error) {
    TrainOptions *o = &run->options;
    o->batch_size = batch_size;
    for (int i = 0; i < NUM_EVALS; i++) {
        EvalLoader *eval = &run->evals[i];
        if (!eval_is_open(eval)) { continue; }
        if (!eval_pack(eval, (int)batch_size, (int)o->seq_len, run->config.max_seq_len, error)) { return false; }
    }
    return run_settle_schedule(run, error);
}

static inline bool run_open_inputs(TrainRun *run, int default_seq_len, Error *error) {
    return run_check_export(run, error) && run_open_model(run, error) && run_open_tokenizer(run, error) &&
           run_settle_vocab(run, error) && run_settle_seq_len(run, default_seq_len, error) &&
           run_settle_batch(run, error) && run_encode_prompt(run, error) && run_open_data(run, error) &&
           run_open_evals(run, error) && run_settle_schedule(run, error);
}

// Opens everything that the options (parsed and checked) name. Nothing is trained, written or allocated for the model
// yet. run->ranks and run->num_ranks are set. precision: "fp32" or "bf16", what the trainer computes in.
static inline bool run_open(TrainRun *run, int default_seq_len, const char *precision, Error *error) {
    run->precision = precision;
    run->saved_step = -1;
    run->logger.out = stdout;
    run->logger.fd = run->logger.speed_fd = -1;
    run_slow(run, true);
    bool ok = run_open_folder(run, error) && run_agree(run, run_open_inputs(run, default_seq_len, error), error) &&
              run_check_same(run, error);
    run_slow(run, false);
    return ok;
}

static inline void run_close(TrainRun *run) {
    logger_close(&run->logger);
    json_out_free(&run->record);
    if (run->has_train) { dataloader_close(&run->train); }
    if (run->has_val) { dataloader_close(&run->val); }
    for (int i = 0; i < NUM_EVALS; i++) { eval_close(&run->evals[i]); }
    if (run->has_tokenizer) { tokenizer_free(&run->tokenizer); }
    if (run->locked) { directory_unlock(&run->lock); }
    free(run->prompt_tokens);
    free(run->train_text);
    free(run->val_text);
}

// ---- Saving and resuming ----

// Keeps data in each training state, under this name. Large arrays go another way (RunArrays).
static inline void run_keep_section(TrainRun *run, const char *name, void *data, size_t bytes) {
    StateSection section = {name, data, (int64_t)bytes};
    run->sections[run->num_sections++] = section;
}

// How a trainer moves parameters and moments, as far as this rank owns them, to and from files.
typedef struct {
    void *model;
    // From a checkpoint, or with reader NULL those of a fresh run (run_read_params).
    bool (*read)(void *model, struct TrainRun *run, CheckpointReader *reader, Error *error);
    bool (*write)(void *model, CheckpointWriter *writer, Error *error);
} RunArrays;

static inline void run_option_key(char *key, size_t size, int i) {
    snprintf(key, size, "option.%s", train_options_name(i));
}

// Writes down where the run stands and every option that shapes it, or its roundings.
static inline void run_describe(const TrainRun *run, StateHeader *header) {
    state_init(header);
    state_set_i64(header, "step", run->step);
    state_set_i64(header, "next_sequence", run->next_sequence);
    state_set_i64(header, "updates", run->updates);
    state_set_u64(header, "data", dataloader_fingerprint(&run->train));
    state_set_text(header, "precision", run->precision);
    for (int i = 0; i < train_options_count(); i++) {
        char key[64], text[MAX_PATH_BYTES];
        if (!train_options_shapes_run(i) && !train_options_rounds(i)) { continue; }
        run_option_key(key, sizeof(key), i);
        train_options_text(&run->options, i, text, sizeof(text));
        state_set_text(header, key, text);
    }
}

// All ranks write their parts into the files that rank 0 has made; when they are all on the disk, rank 0 gives the
// files their names.
static inline bool run_write_checkpoint(TrainRun *run, const RunArrays *arrays, CheckpointWriter *writer,
                                        Error *error) {
    StateHeader header;
    run_describe(run, &header);
    for (int leader = 1; leader >= 0; leader--) {
        bool mine = run_leads(run) == (leader != 0);
        bool ok = !mine || checkpoint_write_begin(writer, run->options.out_dir, run->step, &run->config, &header,
                                                  run->sections, run->num_sections, leader != 0, error);
        if (!run_agree(run, ok, error)) { return false; }
    }
    bool ok = arrays->write(arrays->model, writer, error) && checkpoint_write_flush(writer, error);
    CheckpointSums sums = writer->sums;
    if (!run_agree(run, ok, error) || !run_sum(run, sums.sums, CHECKPOINT_ARRAYS, error)) { return false; }
    ok = !run_leads(run) || checkpoint_write_commit(writer, &sums, error);
    return run_agree(run, ok, error);
}

// ---- The disk ----

// Which of the checkpoints in the folder the run builds on: not those of an older run, nor those that come after the
// one that it goes back to. *replaced: how many of these it will remove or overwrite.
static inline void run_disk_existing(const TrainRun *run, DiskRun *disk, int *replaced) {
    bool begins = run->logger.path[0] == '\0', removes_all = begins && run->options.overwrite;
    int newer = 0;
    *replaced = 0;
    while (newer < run->num_checkpoints && (removes_all || run->checkpoints[newer] > disk->from)) {
        int64_t step = run->checkpoints[newer++];
        bool due = step == disk->last || (disk->every > 0 && step % disk->every == 0);
        *replaced += removes_all || (step <= disk->last && (due || disk->keep > 0));
    }
    disk->existing = run->checkpoints + newer;
    disk->num_existing = run->num_checkpoints - newer;
}

// What a run that stands at step `from` still writes. False for one that saves nothing.
#define RUN_LOG_LINE_BYTES 100                   // of main.log and speed.log together
#define RUN_SMALL_FILES_BYTES ((int64_t)1 << 16) // run.json and loss.svg, while they are replaced
static inline bool run_disk_plan(TrainRun *run, int64_t from, DiskRun *disk, int *replaced) {
    const int64_t block = 4096;
    const TrainOptions *o = &run->options;
    int64_t model_bytes, state_bytes;
    StateHeader header;
    Error ignored;
    memset(disk, 0, sizeof(*disk));
    if (!run_writes_files(run) || !run->has_train) { return false; }
    run_describe(run, &header);
    if (!checkpoint_size(&run->config, &header, run->sections, run->num_sections, &model_bytes, &state_bytes,
                         &ignored)) {
        return false;
    }
    disk->from = from, disk->last = run->num_steps, disk->every = o->checkpoint_every;
    disk->keep = o->keep, disk->keep_major = o->keep_major;
    disk->checkpoint_bytes = round_up_i64(model_bytes, block) + round_up_i64(state_bytes, block);
    disk->other_bytes = RUN_SMALL_FILES_BYTES + max_i64(0, disk->last - from) * RUN_LOG_LINE_BYTES;
    run_disk_existing(run, disk, replaced);
    return true;
}

// Before the run touches its folder: refuses one that the disk cannot hold, and warns of one that will fill it.
static inline bool run_check_disk(TrainRun *run, Error *error) {
    char text[MAX_PATH_BYTES + 512];
    DiskRun disk;
    int replaced;
    if (!run_disk_plan(run, run->step, &disk, &replaced)) { return true; }
    int64_t free_bytes = disk_free_bytes(run->options.out_dir);
    if (free_bytes >= 0) { free_bytes += replaced * disk.checkpoint_bytes; }
    if (!disk_check(&disk, run->options.out_dir, free_bytes, error)) { return false; }
    run->disk = disk_outlook(&disk, run->options.out_dir, free_bytes, text, sizeof(text));
    if (run->disk != DISK_LASTS) { logger_event(&run->logger, "warning: %s", text); }
    return true;
}

// After a save: warns when the rest of the disk will not last, once until that changes.
static inline void run_watch_disk(TrainRun *run) {
    char text[MAX_PATH_BYTES + 512];
    DiskRun disk;
    int replaced;
    if (!run_leads(run)) { return; }
    run->num_checkpoints = checkpoint_list(run->options.out_dir, run->checkpoints, RUN_MAX_CHECKPOINTS);
    if (!run_disk_plan(run, run->step, &disk, &replaced)) { return; }
    DiskState now =
        disk_outlook(&disk, run->options.out_dir, disk_free_bytes(run->options.out_dir), text, sizeof(text));
    if (now > run->disk) { logger_event(&run->logger, "warning: %s", text); }
    run->disk = now;
}

// Writes a checkpoint of the run as it stands, and removes those that --keep no longer wants. Parameters that are not
// finite are refused: they would be refused again when loaded, with the good checkpoints gone by then.
static inline bool run_save(TrainRun *run, const RunArrays *arrays, Error *error) {
    const TrainOptions *o = &run->options;
    CheckpointWriter writer;
    writer.model.fd = writer.state.fd = -1; // nothing to give up yet
    writer.model.pending = writer.state.pending = false;
    run_slow(run, true);
    bool ok = run_write_checkpoint(run, arrays, &writer, error);
    run_slow(run, false);
    if (!ok) {
        checkpoint_write_abort(&writer);
        return false;
    }
    run->saved_step = run->step;
    if (o->keep > 0 && run_leads(run)) { checkpoint_prune(o->out_dir, run->step, (int)o->keep, o->keep_major); }
    return true;
}

// Says which options round otherwise than those that the run was saved under. A training state may not have them.
static inline void run_report_roundings(TrainRun *run, const StateHeader *header) {
    for (int i = 0; i < train_options_count(); i++) {
        char key[64], now[64], then[64];
        if (!train_options_rounds(i)) { continue; }
        run_option_key(key, sizeof(key), i);
        train_options_text(&run->options, i, now, sizeof(now));
        if (!state_get_text(header, key, then, sizeof(then)) || strcmp(now, then) == 0) { continue; }
        logger_event(&run->logger, "resuming with other roundings: --%s was %s, is %s", train_options_name(i), then,
                     now);
    }
}

// Compares the options and data that shape a run with those it was saved under. Every difference is named; they are
// refused unless --allow-changes is given.
static inline bool run_compare_options(TrainRun *run, const StateHeader *header, Error *error) {
    char list[MAX_PATH_BYTES] = "";
    size_t used = 0;
    for (int i = 0; i < train_options_count(); i++) {
        char key[64], now[MAX_PATH_BYTES], then[MAX_PATH_BYTES] = "(not recorded)";
        if (!train_options_shapes_run(i)) { continue; }
        run_option_key(key, sizeof(key), i);
        train_options_text(&run->options, i, now, sizeof(now));
        bool recorded = state_get_text(header, key, then, sizeof(then));
        if (train_options_alike(i, recorded ? then : "(not recorded)", now) || used >= sizeof(list) / 2) { continue; }
        used += (size_t)snprintf(list + used, sizeof(list) - used, "%s--%s was %.200s, is %.200s", used ? "; " : "",
                                 train_options_name(i), then[0] ? then : "''", now[0] ? now : "''");
    }
    char precision[32] = "fp32";
    state_get_text(header, "precision", precision, sizeof(precision));
    if (strcmp(precision, run->precision) != 0) {
        used += (size_t)snprintf(list + used, sizeof(list) - used, "%sthe precision was %s, is %s", used ? "; " : "",
                                 precision, run->precision);
    }
    uint64_t data = 0;
    if (!state_get_u64(header, "data", &data) || data != dataloader_fingerprint(&run->train)) {
        used +=
            (size_t)snprintf(list + used, sizeof(list) - used, "%sthe training data is not the same", used ? "; " : "");
    }
    if (used == 0) { return true; }
    if (run->options.allow_changes) {
        logger_event(&run->logger, "resuming with changes: %s", list);
        return true;
    }
    return fail(error, "--resume (-y): %s: %s; give the same again, or --allow-changes to go on with these",
                run->options.out_dir, list);
}

static inline bool run_restore_position(TrainRun *run, const StateHeader *header, Error *error) {
    char seq_len[32];
    int64_t old_T = run->options.seq_len;
    if (!state_get_i64(header, "step", &run->step) || !state_get_i64(header, "next_sequence", &run->next_sequence) ||
        !state_get_i64(header, "updates", &run->updates) || run->step < 0 || run->next_sequence < 0 ||
        run->updates < 0) {
        return fail(error, "%s: the state does not say where the run stands", run->options.out_dir);
    }
    if (state_get_text(header, "option.seq-len", seq_len, sizeof(seq_len))) { old_T = atoll(seq_len); }
    if (old_T > 0 && old_T != run->options.seq_len) { // another length: go on at the same token
        run->next_sequence = run->next_sequence * old_T / run->options.seq_len;
    }
    return true;
}

// Loads one checkpoint. Each rank reads its part; that the whole is undamaged they find out together.
static inline bool run_read_checkpoint(TrainRun *run, int64_t step, const RunArrays *arrays, CheckpointReader *reader,
                                       StateHeader *header, Error *error) {
    bool ok = checkpoint_read_begin(reader, run->options.out_dir, step, &run->config, header, error);
    if (!run_agree(run, ok, error)) { return false; }
    ok = run_restore_position(run, header, error) && arrays->read(arrays->model, run, reader, error);
    CheckpointSums sums = reader->sums;
    if (!run_agree(run, ok, error) || !run_sum(run, sums.sums, CHECKPOINT_ARRAYS, error)) { return false; }
    ok = checkpoint_read_end(reader, &sums, run->sections, run->num_sections, error);
    if (!run_agree(run, ok, error)) { return false; }
    run->saved_step = step;
    return true;
}

// Loads the newest checkpoint that is whole, going back over damaged ones and saying so.
static inline bool run_resume(TrainRun *run, const RunArrays *arrays, Error *error) {
    CheckpointReader reader;
    StateHeader header;
    for (int i = run->first_usable; i < run->num_checkpoints; i++) {
        if (i > 0) {
            logger_event(&run->logger, "going back to the checkpoint of step %lld", (long long)run->checkpoints[i]);
        }
        reader.model.fd = reader.state.file.fd = -1; // nothing to give up yet
        bool ok = run_read_checkpoint(run, run->checkpoints[i], arrays, &reader, &header, error);
        if (ok) {
            run_report_roundings(run, &header);
            return run_agree(run, run_compare_options(run, &header, error), error);
        }
        checkpoint_read_abort(&reader);
        if (run->ranks.num_ranks > 1 && run->ranks.is_broken(run->ranks.comm)) {
            return false;
        } // nothing is wrong with the checkpoint
        run_report_damage(run, error);
    }
    run_fail_all_damaged(run, error, error);
    if (run->ranks.num_ranks > 1) { run->ranks.all_know(run->ranks.comm, error); }
    return false;
}

// Begins the log, when the parameters are in place. A fresh run that was told to overwrite an older one removes that
// one's checkpoints now, not before everything else has proved to be in order.
static inline bool run_begin_folder(TrainRun *run, Error *error) {
    const char *dir = run->options.out_dir;
    if (!run_check_disk(run, error)) { return false; }
    if (run_writes_files(run) && !run->locked && !(make_directories(dir, error) && run_claim_folder(run, error))) {
        return false;
    }
    if (run->options.overwrite) {
        for (int i = 0; i < run->num_checkpoints; i++) { checkpoint_delete(dir, run->checkpoints[i]); }
    }
    if (!logger_open(&run->logger, dir, run->step, run->num_steps, error)) { return false; }
    // mpirun gives the processes terminals of its own making, wherever their output goes: no bar, whole lines.
    if (run->ranks.launched) { run->logger.terminal = false; }
    return true;
}

// Do all ranks see rank 0's folder? It is locked by a file that holds rank 0's process id.
static inline bool run_check_shared_folder(TrainRun *run, Error *error) {
    char path[MAX_PATH_BYTES], text[32] = "", expected[32];
    int64_t pid = (int64_t)getpid();
    if (!run_writes_files(run) || run->ranks.num_ranks == 1) { return true; }
    if (!run_broadcast(run, &pid, (int64_t)sizeof(pid), error)) { return false; }
    snprintf(expected, sizeof(expected), "%lld\n", (long long)pid);
    bool ok = path_join(path, run->options.out_dir, ".lock", error);
    int fd = ok ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd >= 0 && read(fd, text, sizeof(text) - 1) < 0) { text[0] = '\0'; }
    if (fd >= 0) { close(fd); }
    ok = ok && (strcmp(text, expected) == 0 ||
                fail(error,
                     "--out-dir (-o): %.4000s is not the folder that rank 0 sees under this name; choose one on "
                     "a file system that all machines share",
                     run->options.out_dir));
    return run_agree(run, ok, error);
}

static inline bool run_begin(TrainRun *run, Error *error) {
    bool ok = !run_leads(run) || run_begin_folder(run, error);
    return run_agree(run, ok, error) && run_check_shared_folder(run, error);
}

// Elements [first, first + n) of a fresh run's parameters, in the order of the parameter table.
static inline bool run_read_params(TrainRun *run, int64_t first, int64_t n, float *out, Error *error) {
    if (run->model_file.kind != MODEL_FROM_SIZE) {
        return model_file_read_range(&run->model_file, first, n, out, error);
    }
    gpt2_init_range(out, &run->config, (uint64_t)run->options.seed, first, n);
    return true;
}

// Fills the parameters of a fresh run, or of a resumed one together with both moments and the position, and begins the
// log.
static inline bool run_load(TrainRun *run, const RunArrays *arrays, Error *error) {
    run_slow(run, true);
    bool ok = run->resumes ? run_resume(run, arrays, error)
                           : run_agree(run, arrays->read(arrays->model, run, NULL, error), error);
    ok = ok && run_begin(run, error);
    run_slow(run, false);
    return ok;
}

// ---- Arrays in host memory, all of them: what the CPU trainer has ----

typedef struct {
    float *params, *adam_m, *adam_v; // (count) each
    int64_t count;                   // number of parameters
} HostArrays;

static inline bool host_arrays_read(void *model, TrainRun *run, CheckpointReader *reader, Error *error) {
    const HostArrays *host = (const HostArrays *)model;
    float *const arrays[CHECKPOINT_ARRAYS] = {host->params, host->adam_m, host->adam_v};
    if (reader == NULL) { return run_read_params(run, 0, host->count, host->params, error); }
    for (int i = 0; i < CHECKPOINT_ARRAYS; i++) {
        if (!checkpoint_read(reader, i, 0, arrays[i], host->count, error)) { return false; }
    }
    return true;
}

static inline bool host_arrays_write(void *model, CheckpointWriter *writer, Error *error) {
    const HostArrays *host = (const HostArrays *)model;
    const float *const arrays[CHECKPOINT_ARRAYS] = {host->params, host->adam_m, host->adam_v};
    for (int i = 0; i < CHECKPOINT_ARRAYS; i++) {
        if (!checkpoint_write(writer, i, 0, arrays[i], host->count, error)) { return false; }
    }
    return true;
}

static inline RunArrays run_host_arrays(HostArrays *host) {
    RunArrays arrays = {host, host_arrays_read, host_arrays_write};
    return arrays;
}

// ---- During the run ----

// In each micro-batch the ranks' sequences follow one another. Which sequences a step has does not depend on how many
// ranks there are.
static inline int64_t run_batch_sequence(const TrainRun *run, int64_t micro_batch) {
    int64_t first = run->options.overfit ? 0 : run->next_sequence;
    return first + (micro_batch * run->num_ranks + run->ranks.rank) * run->options.batch_size;
}

// Reads this rank's part of micro-batch i of the current step. tokens, targets (B,T).
static inline bool run_read_batch(TrainRun *run, int64_t i, int32_t *tokens, int32_t *targets, Error *error) {
    return dataloader_read(&run->train, run_batch_sequence(run, i), (int)run->options.batch_size, tokens, targets,
                           error);
}

// The sequences of one validation: --val-batches of them, or all, but none twice.
static inline int64_t run_val_sequences(const TrainRun *run) {
    int64_t wanted = run->options.val_batches * run->options.batch_size;
    return wanted == 0 ? run->val.num_sequences : min_i64(wanted, run->val.num_sequences);
}

static inline void run_advance(TrainRun *run) {
    run->step++;
    run->next_sequence += run->sequences_per_step;
}

// Is something that happens every N steps due before the current step? It also is at the end; N = 0: never.
static inline bool run_is_due(const TrainRun *run, int64_t every) {
    return every > 0 && (run->step % every == 0 || run->step == run->num_steps);
}

static inline bool run_has_evals(const TrainRun *run) {
    return eval_is_open(&run->evals[EVAL_HELLASWAG]) || eval_is_open(&run->evals[EVAL_MMLU]);
}

// The longest sequence of an evaluation, and the most completions of one.
static inline int run_eval_length(const TrainRun *run) {
    return (int)max_i64(run->evals[EVAL_HELLASWAG].T, run->evals[EVAL_MMLU].T);
}
static inline int64_t run_eval_rows(const TrainRun *run) {
    return max_i64(run->evals[EVAL_HELLASWAG].num_rows, run->evals[EVAL_MMLU].num_rows);
}

// Are the evaluations due before the current step?
static inline bool run_evals_are_due(const TrainRun *run) {
    const TrainOptions *o = &run->options;
    return run_has_evals(run) && run_is_due(run, o->eval_every < 0 ? o->val_every : o->eval_every);
}

// Redraws loss.svg from main.log.
static inline bool run_draw_losses(const TrainRun *run, Error *error) {
    return !run_writes_files(run) || !run_leads(run) || loss_svg_write(run->options.out_dir, error);
}

// Writes a token's text to the screen, or its id when there is no tokenizer.
static inline void run_print_token(const TrainRun *run, TextOut *out, int token) {
    int bytes = 0;
    const uint8_t *text = run->has_tokenizer ? tokenizer_decode(&run->tokenizer, token, &bytes) : NULL;
    if (text == NULL) { fprintf(out->out, "%d ", token); }
    text_out_write(out, text, bytes);
}

#endif // LLMC_TRAIN_RUN_H
