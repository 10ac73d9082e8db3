// A training run around the model: what the options ask for, checked and opened (tokenizer, data, run folder,
// schedule), where the run stands, and how it is saved and resumed. Nothing here knows how the model computes, so that
// the CPU and the GPU trainer share it.
//
// A run stands before step `step`: that many updates are done. The order at a step is: save, validate, sample, update.
// A checkpoint therefore holds the run as it was before anything of its step was logged, and a resumed run logs every
// line once. Which sequences a step trains on follows from (seed, next_sequence) alone.
#ifndef LLMC_TRAIN_RUN_H
#define LLMC_TRAIN_RUN_H

#include "checkpoint.h"
#include "dataloader.h"
#include "files.h"
#include "gpt2.h"
#include "logger.h"
#include "loss_svg.h"
#include "model_file.h"
#include "outlier.h"
#include "schedulers.h"
#include "text_out.h"
#include "tokenizer.h"
#include "train_options.h"
#include "utils.h"

#define RUN_MAX_CHECKPOINTS 4096
#define BYTE_VOCAB_SIZE 257
#define TOKENIZER_FILE "gpt2_tokenizer.bin" // read from the working directory when it is there, as llm.c does

typedef struct {
    TrainOptions options;
    GPT2Config config;
    const char *precision; // of activations and matrix multiplies: "fp32" or "bf16"

    ModelFile model_file; // where the parameters of a fresh run come from
    bool resumes;         // or they come from a checkpoint, one of these:
    int64_t checkpoints[RUN_MAX_CHECKPOINTS];
    int num_checkpoints, first_usable;

    bool has_tokenizer;
    Tokenizer tokenizer;
    char tokenizer_note[MAX_PATH_BYTES + 64]; // which one, or why none
    uint16_t *train_text, *val_text;          // tokens of text files; NULL for shards
    DataLoader train, val;
    bool has_train, has_val;

    uint16_t *prompt_tokens; // what a sample goes on from; at least one
    int64_t prompt_count;

    Schedule schedule;
    int64_t num_steps, sequences_per_step, micro_batches; // of a step
    int64_t step, next_sequence;                          // where the run stands
    int64_t updates;                                      // steps whose update was not skipped
    int64_t saved_step;                                   // of the newest checkpoint of this run, -1: none
    OutlierDetector loss_outliers, norm_outliers;

    bool locked;
    DirectoryLock lock;
    Logger logger;
} TrainRun;

static inline bool run_writes_files(const TrainRun *run) { return run->options.out_dir[0] != '\0'; }

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

// Looks at the run folder. One that does not exist is made when all else has proved to be in order (run_begin); --plan
// only reads.
static inline bool run_open_folder(TrainRun *run, Error *error) {
    const TrainOptions *o = &run->options;
    if (!run_writes_files(run)) { return true; }
    if (!path_check(o->out_dir, "--out-dir (-o)", error)) { return false; }
    if (o->plan) {
        run->num_checkpoints = checkpoint_list(o->out_dir, run->checkpoints, RUN_MAX_CHECKPOINTS);
    } else if (path_exists(o->out_dir) && !run_claim_folder(run, error)) {
        return false;
    }
    run->resumes = o->resume && run->num_checkpoints > 0;
    return true;
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

// Where the model comes from, and its config as far as that tells: a size leaves the vocabulary 0.
static inline bool run_open_model(TrainRun *run, Error *error) {
    const TrainOptions *o = &run->options;
    if (run->resumes) { return run_config_from_checkpoint(run, error); }
    if (!model_file_open(&run->model_file, o->init, error)) { return false; }
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

// The tokenizer that --tokenizer names; without it the built-in bytes for a text or a model of bytes, else llm.c's file
// if it lies in the working directory, else none. Training on shards needs none: samples are then printed as ids.
static inline bool run_open_tokenizer(TrainRun *run, Error *error) {
    const char *name = run->options.tokenizer;
    bool needed = run_trains_on_text(run) || run->options.prompt[0] != '\0';
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

// Settles the vocabulary and checks that model and tokenizer agree on it: the same size, or with --vocab a model with
// room for more.
static inline bool run_settle_vocab(TrainRun *run, Error *error) {
    GPT2Config *config = &run->config;
    int tokens = run->has_tokenizer ? run->tokenizer.vocab_size : GPT2_VOCAB_SIZE;
    if (config->vocab_size == 0) { config->vocab_size = tokens; }
    if (run->model_file.kind == MODEL_FROM_SIZE && !run->resumes) {
        config->padded_vocab_size = gpt2_pad_vocab(config->vocab_size);
    }
    if (run->has_tokenizer && (run->options.vocab ? tokens > config->vocab_size : tokens != config->vocab_size)) {
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

// Steps, micro-batches and the learning rate's schedule.
static inline bool run_settle_schedule(TrainRun *run, Error *error) {
    const TrainOptions *o = &run->options;
    run->sequences_per_step = o->total_batch / o->seq_len;
    run->micro_batches = o->total_batch / (o->batch_size * o->seq_len);
    run->num_steps = o->steps;
    if (o->steps < 0 && run->has_train) { run->num_steps = run->train.num_sequences / run->sequences_per_step; }
    if (o->plan && !run->has_train) { run->num_steps = 0; }
    if (o->steps < 0 && run->num_steps < 1 && run->has_train) {
        return fail(error,
                    "--steps (-x): one epoch is %lld sequences, less than the %lld of one step; give --steps, a "
                    "smaller --total-batch or more data",
                    (long long)run->train.num_sequences, (long long)run->sequences_per_step);
    }
    run->schedule.peak = (float)o->lr;
    run->schedule.warmup = o->warmup;
    run->schedule.total = run->num_steps;
    run->schedule.final_fraction = (float)o->final_lr_frac;
    return schedule_parse(o->schedule, &run->schedule.kind) ||
           fail(error, "--schedule (-k): unknown '%s'", o->schedule);
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

// Opens everything that the options (parsed and checked) name. Nothing is trained, written or allocated for the model
// yet. num_ranks: how many processes share a step. precision: "fp32" or "bf16", what the trainer computes in.
static inline bool run_open(TrainRun *run, int num_ranks, int default_seq_len, const char *precision, Error *error) {
    run->precision = precision;
    run->saved_step = -1;
    run->logger.out = stdout;
    run->logger.fd = -1;
    outlier_init(&run->loss_outliers);
    outlier_init(&run->norm_outliers);
    return run_open_folder(run, error) && run_open_model(run, error) && run_open_tokenizer(run, error) &&
           run_settle_vocab(run, error) && run_settle_seq_len(run, default_seq_len, error) &&
           train_options_check_batch(&run->options, num_ranks, error) && run_encode_prompt(run, error) &&
           run_open_data(run, error) && run_settle_schedule(run, error);
}

static inline void run_close(TrainRun *run) {
    logger_close(&run->logger);
    if (run->has_train) { dataloader_close(&run->train); }
    if (run->has_val) { dataloader_close(&run->val); }
    if (run->has_tokenizer) { tokenizer_free(&run->tokenizer); }
    if (run->locked) { directory_unlock(&run->lock); }
    free(run->prompt_tokens);
    free(run->train_text);
    free(run->val_text);
}

// ---- Saving and resuming ----

// The sections of a training state, beside the parameters, which are a model file of their own.
enum { RUN_SECTIONS = 4 };

static inline void run_state_sections(TrainRun *run, float *adam_m, float *adam_v, StateSection *sections) {
    int64_t moments = gpt2_num_params(&run->config) * (int64_t)sizeof(float);
    const StateSection all[RUN_SECTIONS] = {{"adam_m", adam_m, moments},
                                            {"adam_v", adam_v, moments},
                                            {"loss_outliers", &run->loss_outliers, sizeof(run->loss_outliers)},
                                            {"norm_outliers", &run->norm_outliers, sizeof(run->norm_outliers)}};
    memcpy(sections, all, sizeof(all));
}

static inline void run_option_key(char *key, size_t size, int i) {
    snprintf(key, size, "option.%s", train_options_name(i));
}

// Writes down where the run stands and every option that shapes it.
static inline void run_describe(const TrainRun *run, StateHeader *header) {
    state_init(header);
    state_set_i64(header, "step", run->step);
    state_set_i64(header, "next_sequence", run->next_sequence);
    state_set_i64(header, "updates", run->updates);
    state_set_u64(header, "data", dataloader_fingerprint(&run->train));
    state_set_text(header, "precision", run->precision);
    for (int i = 0; i < train_options_count(); i++) {
        char key[64], text[MAX_PATH_BYTES];
        if (!train_options_shapes_run(i)) { continue; }
        run_option_key(key, sizeof(key), i);
        train_options_text(&run->options, i, text, sizeof(text));
        state_set_text(header, key, text);
    }
}

// Writes a checkpoint of the run as it stands, and removes those that --keep no longer wants. Parameters that are not
// finite are refused: they would be refused again when loaded, with the good checkpoints gone by then.
static inline bool run_save(TrainRun *run, const float *params, float *adam_m, float *adam_v, Error *error) {
    const TrainOptions *o = &run->options;
    StateHeader header;
    StateSection sections[RUN_SECTIONS];
    run_state_sections(run, adam_m, adam_v, sections);
    if (!model_check_finite(params, &run->config, "the model to be saved", error)) { return false; }
    run_describe(run, &header);
    if (!checkpoint_save(o->out_dir, run->step, &run->config, params, &header, sections, RUN_SECTIONS, error)) {
        return false;
    }
    run->saved_step = run->step;
    if (o->keep > 0) { checkpoint_prune(o->out_dir, run->step, (int)o->keep, o->keep_major); }
    return true;
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
        if ((state_get_text(header, key, then, sizeof(then)) && strcmp(now, then) == 0) || used >= sizeof(list) / 2) {
            continue;
        }
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

// Loads the newest checkpoint that is whole, going back over damaged ones and saying so.
static inline bool run_resume(TrainRun *run, float *params, float *adam_m, float *adam_v, Error *error) {
    StateSection sections[RUN_SECTIONS];
    run_state_sections(run, adam_m, adam_v, sections);
    for (int i = run->first_usable; i < run->num_checkpoints; i++) {
        StateHeader header;
        if (i > 0) {
            logger_event(&run->logger, "going back to the checkpoint of step %lld", (long long)run->checkpoints[i]);
        }
        if (checkpoint_load(run->options.out_dir, run->checkpoints[i], &run->config, params, &header, sections,
                            RUN_SECTIONS, error)) {
            run->saved_step = run->checkpoints[i];
            return run_compare_options(run, &header, error) && run_restore_position(run, &header, error);
        }
        run_report_damage(run, error);
    }
    return run_fail_all_damaged(run, error, error);
}

// Begins the log, when the parameters are in place. A fresh run that was told to overwrite an older one removes that
// one's checkpoints now, not before everything else has proved to be in order.
static inline bool run_begin(TrainRun *run, Error *error) {
    const char *dir = run->options.out_dir;
    if (run_writes_files(run) && !run->locked && !(make_directories(dir, error) && run_claim_folder(run, error))) {
        return false;
    }
    if (run->options.overwrite) {
        for (int i = 0; i < run->num_checkpoints; i++) { checkpoint_delete(dir, run->checkpoints[i]); }
    }
    return logger_open(&run->logger, dir, run->step, run->num_steps, error);
}

// Fills the parameters of a fresh run, or of a resumed one together with both moments and the position, and begins the
// log.
static inline bool run_load(TrainRun *run, float *params, float *adam_m, float *adam_v, Error *error) {
    bool ok = true;
    if (run->resumes) {
        ok = run_resume(run, params, adam_m, adam_v, error);
    } else if (run->model_file.kind == MODEL_FROM_SIZE) {
        gpt2_init_params(params, &run->config, (uint64_t)run->options.seed);
    } else {
        ok = model_file_read(&run->model_file, params, error);
    }
    return ok && run_begin(run, error);
}

// ---- During the run ----

static inline int64_t run_batch_sequence(const TrainRun *run, int64_t micro_batch) {
    int64_t first = run->options.overfit ? 0 : run->next_sequence;
    return first + micro_batch * run->options.batch_size;
}

// Reads micro-batch i of the current step. tokens, targets (B,T).
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

// Redraws loss.svg from main.log.
static inline bool run_draw_losses(const TrainRun *run, Error *error) {
    return !run_writes_files(run) || loss_svg_write(run->options.out_dir, error);
}

// Writes a token's text to the screen, or its id when there is no tokenizer.
static inline void run_print_token(const TrainRun *run, TextOut *out, int token) {
    int bytes = 0;
    const uint8_t *text = run->has_tokenizer ? tokenizer_decode(&run->tokenizer, token, &bytes) : NULL;
    if (text == NULL) { fprintf(out->out, "%d ", token); }
    text_out_write(out, text, bytes);
}

#endif // LLMC_TRAIN_RUN_H
