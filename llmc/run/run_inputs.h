// Opens what the options name: model, tokenizer, data, questions. Nothing is trained or written yet.
#ifndef LLMC_RUN_INPUTS_H
#define LLMC_RUN_INPUTS_H

#include "llmc/data/dataloader.h"
#include "llmc/data/evalloader.h"
#include "llmc/data/tokenizer.h"
#include "llmc/files/hf_export.h"
#include "llmc/files/hf_tokenizer.h"
#include "llmc/files/model_file.h"
#include "llmc/run/run_folder.h"

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

// ---- All of them ----

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

#endif // LLMC_RUN_INPUTS_H
