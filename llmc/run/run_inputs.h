// Opens the inputs that the options name, when the model's config is known: tokenizer, data, questions, prompt. Settles
// the micro-batch and the number of steps. Writes nothing.
#ifndef LLMC_RUN_INPUTS_H
#define LLMC_RUN_INPUTS_H

#include "llmc/data/text_data.h"
#include "llmc/files/hf_tokenizer.h"
#include "llmc/run/train_run.h"

#define BYTE_VOCAB_SIZE 257
#define TOKENIZER_FILE "gpt2_tokenizer.bin" // read from the working directory if it is there, as llm.c does

// ---- The tokenizer ----

static inline bool run_trains_on_text(const TrainRun *run) {
    const char *data = run->options.train_data;
    return data[0] != '\0' && !data_is_shards(data);
}

// Without --tokenizer, uses the tokenizer in a Hugging Face model's folder. Returns false without a message if it has
// none.
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

// Chooses the built-in bytes for a text or a model of bytes. Otherwise chooses llm.c's file if it is in the working
// directory, or none ("").
static inline const char *run_default_tokenizer(const TrainRun *run) {
    if (run_trains_on_text(run) || run->config.vocab_size == BYTE_VOCAB_SIZE) { return "byte"; }
    return path_exists(TOKENIZER_FILE) ? TOKENIZER_FILE : "";
}

// Opens the tokenizer that --tokenizer names, otherwise the model's own, otherwise the default. Training on shards
// needs no tokenizer: samples are then token ids.
static inline bool run_open_tokenizer(TrainRun *run, Error *error) {
    const char *given = run->options.tokenizer, *name = given[0] != '\0' ? given : run_default_tokenizer(run);
    char dir[MAX_PATH_BYTES];
    RunTokenizer *t = &run->tokenizer;
    bool prompts = run->options.prompt[0] != '\0', needed = run_trains_on_text(run) || prompts;
    if (run_finds_model_tokenizer(run, dir)) {
        snprintf(t->note, sizeof(t->note), "%.4000s, the model's own", dir);
        t->is_open = t->is_models = hf_tokenizer_load(&t->tokenizer, dir, error);
        return t->is_open;
    }
    if (name[0] == '\0' && prompts) {
        return fail(error, "--prompt: needs a tokenizer for the model's %d tokens; " VOCAB_HINT,
                    run->config.vocab_size);
    }
    bool missing = given[0] != '\0' && strcmp(name, "byte") != 0 && !path_exists(name) && !needed;
    if (missing || name[0] == '\0') {
        snprintf(t->note, sizeof(t->note), "none%s%.4000s%s, samples are token ids", missing ? " (" : "", name,
                 missing ? ": not found)" : "");
        return true;
    }
    snprintf(t->note, sizeof(t->note), "%.4000s", name);
    t->is_open = tokenizer_open(&t->tokenizer, name, error);
    if (!t->is_open) { return false; }
    if (!needed || tokenizer_can_encode(&t->tokenizer)) { return true; }
    return fail(error, "--tokenizer: %s can only decode, and %s needs encoding; " VOCAB_HINT, name,
                prompts ? "--prompt" : "training on text");
}

// Settles the vocabulary and checks that model and tokenizer agree on it. With --vocab, or a tokenizer from the model's
// folder, the model may have room for more tokens.
static inline bool run_settle_vocab(TrainRun *run, Error *error) {
    GPT2Config *config = &run->config;
    int tokens = run->tokenizer.is_open ? run->tokenizer.tokenizer.vocab_size : GPT2_VOCAB_SIZE;
    if (config->vocab_size == 0) { config->vocab_size = tokens; }
    if (run_is_new(run)) { config->padded_vocab_size = gpt2_pad_vocab(config->vocab_size); }
    bool room = run->options.vocab != 0 || run->tokenizer.is_models; // rows that no token has
    if (run->tokenizer.is_open && (room ? tokens > config->vocab_size : tokens != config->vocab_size)) {
        return fail(error,
                    "tokenizer %.4000s has %d tokens, the model %d; give the tokenizer the model was made with "
                    "(--tokenizer), or a model of its own (--init d12)",
                    run->tokenizer.note, tokens, config->vocab_size);
    }
    return gpt2_check_config(config, run->found.resumes ? run->options.out_dir : "--init", error);
}

// ---- The data ----

// tokens (count), or NULL: the loader reads the shards that `name` names.
static inline bool run_open_loader(TrainRun *run, DataLoader *loader, const char *name, const uint16_t *tokens,
                                   int64_t count, bool shuffle, Error *error) {
    const TrainOptions *o = &run->options;
    int T = (int)o->seq_len, V = run->config.vocab_size;
    uint64_t seed = (uint64_t)o->seed;
    bool ok = tokens == NULL ? dataloader_open(loader, name, T, V, shuffle, seed, error)
                             : dataloader_open_tokens(loader, name, tokens, count, T, V, shuffle, seed, error);
    if (!ok) { memset(loader, 0, sizeof(*loader)); }
    return ok;
}

// Loads the tokens of a text. Leaves shards to the loader.
static inline bool run_load_text(TrainRun *run, const char *name, uint16_t **tokens, int64_t *count, Error *error) {
    *count = 0;
    if (name[0] == '\0' || data_is_shards(name)) { return true; }
    if (!run->tokenizer.is_open) { // training has one
        return fail(error, "--val-data (-j): a text needs a tokenizer; " VOCAB_HINT);
    }
    bool crlf = false, ok = text_load(name, &run->tokenizer.tokenizer, tokens, count, &crlf, error);
    run->texts.crlf = run->texts.crlf || crlf;
    return ok;
}

// Opens the training and validation data. A text without --val-data gives its last part to validation.
static inline bool run_open_data(TrainRun *run, Error *error) {
    const TrainOptions *o = &run->options;
    RunTexts *texts = &run->texts;
    int64_t train_count, val_count;
    bool has_val_data = o->val_data[0] != '\0';
    if (!run_load_text(run, o->val_data, &texts->val, &val_count, error) ||
        !run_load_text(run, o->train_data, &texts->train, &train_count, error)) {
        return false;
    }
    const uint16_t *val_tokens = texts->val;
    if (texts->train != NULL && !has_val_data) {
        val_count = train_count;
        text_split(val_count, (int)o->seq_len, &train_count);
        val_count -= train_count;
        val_tokens = texts->train + train_count;
    }
    if (o->train_data[0] != '\0' &&
        !run_open_loader(run, &run->train, o->train_data, texts->train, train_count, o->shuffle, error)) {
        return false;
    }
    if (!has_val_data && val_count <= o->seq_len) { return true; } // nothing was split off, or too little
    return run_open_loader(run, &run->val, has_val_data ? o->val_data : o->train_data, val_tokens, val_count, false,
                           error);
}

// Sorts the questions into batches of --batch-size. Fails if the model is too short for one.
static inline bool run_pack_evals(TrainRun *run, Error *error) {
    const TrainOptions *o = &run->options;
    for (int i = 0; i < NUM_EVALS; i++) {
        EvalLoader *eval = &run->evals[i];
        if (!eval_is_open(eval)) { continue; }
        if (!eval_pack(eval, (int)o->batch_size, (int)o->seq_len, run->config.max_seq_len, error)) { return false; }
    }
    return true;
}

// Opens the questions of the requested evaluations.
static inline bool run_open_evals(TrainRun *run, Error *error) {
    const TrainOptions *o = &run->options;
    const char *paths[NUM_EVALS] = {o->hellaswag ? o->hellaswag_data : NULL, o->mmlu ? o->mmlu_data : NULL};
    for (int i = 0; i < NUM_EVALS; i++) {
        if (paths[i] == NULL) { continue; }
        if (!path_exists(paths[i])) {
            return fail(error, "%s: no such file; `%s` fetches it, %s names another", paths[i], run_evals[i].command,
                        run_evals[i].option);
        }
        if (!eval_open(&run->evals[i], paths[i], run->config.vocab_size, o->eval_examples, error)) { return false; }
    }
    return run_pack_evals(run, error);
}

// ---- Settling ----

// Encodes --prompt. Without a prompt, a sample begins at the start of a document.
static inline bool run_encode_prompt(TrainRun *run, Error *error) {
    const char *prompt = run->options.prompt;
    size_t bytes = strlen(prompt);
    run->texts.prompt = (uint16_t *)malloc((bytes + 1) * sizeof(uint16_t));
    if (run->texts.prompt == NULL) { return fail(error, "--prompt: out of memory"); }
    if (bytes > 0) {
        return tokenizer_encode(&run->tokenizer.tokenizer, (const uint8_t *)prompt, bytes, run->texts.prompt,
                                &run->texts.prompt_count, error);
    }
    int end_of_text = run->tokenizer.is_open ? run->tokenizer.tokenizer.eot_token : GPT2_VOCAB_SIZE - 1;
    run->texts.prompt[0] = (uint16_t)min_i64(end_of_text, run->config.vocab_size - 1);
    run->texts.prompt_count = 1;
    return true;
}

// Settles the numbers of steps and micro-batches.
static inline bool run_settle_steps(TrainRun *run, Error *error) {
    const TrainOptions *o = &run->options;
    int64_t sequences = run_step_sequences(run);
    run->micro_batches = o->total_batch / (o->batch_size * o->seq_len * run->num_ranks);
    run->num_steps = o->steps;
    if (o->steps < 0 && run_has_train(run)) { run->num_steps = run->train.num_sequences / sequences; }
    if (train_options_plan(o) && !run_has_train(run)) { run->num_steps = 0; }
    if (o->steps >= 0 || run->num_steps >= 1 || !run_has_train(run)) { return true; }
    return fail(error,
                "--steps (-x): one epoch is %lld sequences, less than the %lld of one step; give --steps, a "
                "smaller --total-batch or more data",
                (long long)run->train.num_sequences, (long long)sequences);
}

// A run that only samples uses all positions of its model. Otherwise 0 means the default, or a smaller model's context.
static inline bool run_settle_seq_len(TrainRun *run, Error *error) {
    TrainOptions *o = &run->options;
    int context = run->config.max_seq_len;
    bool samples_only = o->steps == 0 && o->train_data[0] == '\0' && o->val_data[0] == '\0';
    if (o->seq_len == 0) { o->seq_len = samples_only ? context : min_i64(run->ops->facts.default_seq_len, context); }
    return train_options_check_context(o, context, error);
}

// --auto chooses the micro-batch when the GPU is open (run_change_batch_size). Until then it is the largest possible:
// an evaluation that does not fit into it fits into no smaller micro-batch.
static inline bool run_settle_batch(TrainRun *run, Error *error) {
    TrainOptions *o = &run->options;
    bool chooses = o->auto_plan && !o->given[TRAIN_ROW_batch_size];
    if (chooses) { o->batch_size = 1; }
    if (!train_options_check_batch(o, run->num_ranks, error)) { return false; }
    if (chooses) { o->batch_size = train_options_next_batch(o->total_batch / (o->seq_len * run->num_ranks), 0); }
    return true;
}

// Gives the run another micro-batch, which divides a step.
static inline bool run_change_batch_size(TrainRun *run, int64_t batch_size, Error *error) {
    run->options.batch_size = batch_size;
    return run_pack_evals(run, error) && run_settle_steps(run, error);
}

#endif // LLMC_RUN_INPUTS_H
