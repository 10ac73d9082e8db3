// Opens the inputs that the options name, when the model's config is known: tokenizer, data, questions, prompt. Settles
// the micro-batch and the number of steps. Writes nothing.
#ifndef LLMC_RUN_INPUTS_H
#define LLMC_RUN_INPUTS_H

#include "llmc/data/text_data.h"
#include "llmc/files/checkpoint.h"
#include "llmc/run/train_run.h"

#define BYTE_VOCAB_SIZE 257
#define TOKENIZER_FILE "gpt2_tokenizer.bin" // read from the working directory if it is there, as llm.c does

// ---- The tokenizer ----

static inline bool run_trains_on_text(const TrainRun *run) {
    const char *data = run->options.train_data;
    return data[0] != '\0' && !data_is_shards(data);
}

// Finds the tokenizer of a model: the copy in a run's folder, or for m.bin what dev/hf.py calls m_tokenizer.bin. model:
// the folder of a run, a checkpoint's model in it, or another .bin file.
static inline bool run_finds_tokenizer_of(const char *model, char name[MAX_PATH_BYTES]) {
    char dir[MAX_PATH_BYTES];
    Error ignored;
    bool folder = path_is_directory(model), of_run = checkpoint_step_of_name(path_name(model), "model", "") >= 0;
    if (strlen(model) > PATH_LIMIT || (!folder && !ends_with(model, ".bin"))) { return false; }
    path_copy(dir, model, strlen(model));
    if (!folder && !of_run) {
        snprintf(name, MAX_PATH_BYTES, "%.*s_" RUN_TOKENIZER_NAME, (int)(strlen(model) - strlen(".bin")), model);
        return path_exists(name);
    }
    if (of_run) { path_parent(dir, model); }
    return path_join(name, dir, RUN_TOKENIZER_NAME, &ignored) && path_exists(name);
}

// Finds the tokenizer that made the run's model: in the folder of a resumed run, otherwise where --init is.
static inline bool run_finds_model_tokenizer(const TrainRun *run, char name[MAX_PATH_BYTES]) {
    const TrainOptions *o = &run->options;
    GPT2Config size;
    if (run->found.resumes && run_finds_tokenizer_of(o->out_dir, name)) { return true; }
    return !gpt2_config_from_size(&size, o->init) && run_finds_tokenizer_of(o->init, name);
}

// Finds the copy that `tokenize` has left beside the shards.
static inline bool run_finds_data_tokenizer(const TrainRun *run, char name[MAX_PATH_BYTES]) {
    const char *const patterns[] = {run->options.train_data, run->options.val_data};
    bool found = false;
    for (int i = 0; i < 2 && !found; i++) {
        glob_t files;
        Error ignored; // opening the data reports it
        if (patterns[i][0] == '\0' || !data_is_shards(patterns[i])) { continue; }
        bool listed = list_glob(patterns[i], "", &files, &ignored);
        for (int k = 0; listed && k < (int)files.gl_pathc && !found; k++) {
            found = tokenizer_beside_shard(name, files.gl_pathv[k]) && path_exists(name);
        }
        globfree(&files);
    }
    return found;
}

// Chooses the built-in bytes for a text or a model of bytes. Otherwise chooses llm.c's file if it is in the working
// directory, or none ("").
static inline const char *run_default_tokenizer(const TrainRun *run) {
    if (run_trains_on_text(run) || run->config.vocab_size == BYTE_VOCAB_SIZE) { return "byte"; }
    return path_exists(TOKENIZER_FILE) ? TOKENIZER_FILE : "";
}

// Chooses what --tokenizer names, otherwise the model's own tokenizer, the data's, or the default. Writes a file,
// "byte" or "" (none). Returns whose it is, for people.
static inline const char *run_choose_tokenizer(const TrainRun *run, char name[MAX_PATH_BYTES]) {
    const char *given = run->options.tokenizer;
    if (given[0] == '\0' && run_finds_model_tokenizer(run, name)) { return ", the model's own"; }
    if (given[0] == '\0' && run_finds_data_tokenizer(run, name)) { return ", the data's own"; }
    const char *other = given[0] != '\0' ? given : run_default_tokenizer(run);
    path_copy(name, other, strlen(other));
    return "";
}

// Computes the number by which a resumed run knows its tokenizer again.
static inline bool run_identify_tokenizer(RunTokenizer *t, Error *error) {
    Text text = {NULL, 0, 0, false};
    bool ok = tokenizer_write(&t->tokenizer, &text, error);
    t->fingerprint = ok ? hash64(text.data, text.used) : 0;
    t->bytes = (int64_t)text.used;
    text_free(&text);
    return ok;
}

// Opens the tokenizer. Training on shards needs none: samples are then token ids.
static inline bool run_open_tokenizer(TrainRun *run, Error *error) {
    char name[MAX_PATH_BYTES];
    RunTokenizer *t = &run->tokenizer;
    const char *whose = run_choose_tokenizer(run, name);
    bool prompts = run->options.prompt[0] != '\0', needed = run_trains_on_text(run) || prompts;
    t->is_found = whose[0] != '\0';
    if (name[0] == '\0' && prompts) {
        return fail(error, "--prompt: needs a tokenizer for the model's %d tokens; " VOCAB_HINT,
                    run->config.vocab_size);
    }
    bool missing = !t->is_found && name[0] != '\0' && strcmp(name, "byte") != 0 && !path_exists(name) && !needed;
    if (missing || name[0] == '\0') {
        snprintf(t->note, sizeof(t->note), "none%s%.4000s%s, samples are token ids; " VOCAB_HINT, missing ? " (" : "",
                 name, missing ? ": not found)" : "");
        return true;
    }
    snprintf(t->note, sizeof(t->note), "%.4000s%s", name, whose);
    t->is_open = tokenizer_open(&t->tokenizer, name, error);
    if (!t->is_open || !run_identify_tokenizer(t, error)) { return false; }
    if (!needed || tokenizer_can_encode(&t->tokenizer)) { return true; }
    return fail(error, "--tokenizer: %s can only decode, and %s needs encoding; " VOCAB_HINT, name,
                prompts ? "--prompt" : "training on text");
}

// Settles the vocabulary and checks that model and tokenizer agree on it. With --vocab, or a tokenizer that was found,
// the model may have room for more tokens.
static inline bool run_settle_vocab(TrainRun *run, Error *error) {
    GPT2Config *config = &run->config;
    int tokens = run->tokenizer.is_open ? run->tokenizer.tokenizer.vocab_size : GPT2_VOCAB_SIZE;
    if (config->vocab_size == 0) { config->vocab_size = tokens; }
    if (run_is_new(run)) { config->padded_vocab_size = gpt2_pad_vocab(config->vocab_size); }
    bool room = run->options.vocab != 0 || run->tokenizer.is_found; // rows that no token has
    if (run_is_new(run) && tokens > config->vocab_size && run->tokenizer.is_open) {
        return fail(error, "--vocab: %d is less than the %d tokens of %.4000s; leave it out, or give at least these",
                    config->vocab_size, tokens, run->tokenizer.note);
    }
    if (run->tokenizer.is_open && (room ? tokens > config->vocab_size : tokens != config->vocab_size)) {
        return fail(error,
                    "tokenizer %.4000s has %d tokens, the model %d; give the tokenizer the model was made with "
                    "(--tokenizer), or a model of its own (--init d12)",
                    run->tokenizer.note, tokens, config->vocab_size);
    }
    return gpt2_check_config(config, run_shape_origin(run), error);
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
    return text_load(name, &run->tokenizer.tokenizer, tokens, count, error);
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

// Opens the questions of the requested evaluations, and divides them into batches.
static inline bool run_open_evals(TrainRun *run, Error *error) {
    const TrainOptions *o = &run->options;
    const GPT2Config *c = &run->config;
    const char *paths[NUM_EVALS] = {o->hellaswag ? o->hellaswag_data : "", o->mmlu};
    for (int i = 0; i < NUM_EVALS; i++) {
        EvalLoader *eval = &run->evals[i];
        if (paths[i][0] == '\0') { continue; }
        if (!path_exists(paths[i])) {
            return fail(error, "%s: no such file; `%s` fetches it, %s names another", paths[i], run_evals[i].command,
                        run_evals[i].option);
        }
        if (!eval_open(eval, paths[i], c->vocab_size, c->max_seq_len, o->eval_examples, error)) { return false; }
        eval_pack(eval, (int)o->batch_size, (int)o->seq_len);
    }
    return true;
}

// ---- Settling ----

// Encodes --prompt. Without a prompt, a sample begins at the start of a document. A text without documents has its one
// end-of-text at its end, too rarely to learn what follows, so there the sample begins a line. Byte models are trained
// on such texts.
static inline bool run_encode_prompt(TrainRun *run, Error *error) {
    const RunTokenizer *t = &run->tokenizer;
    bool of_one_text = run_trains_on_text(run) || (t->is_open && t->tokenizer.kind == TOKENIZER_BYTE);
    const char *prompt = of_one_text && run->options.prompt[0] == '\0' ? "\n" : run->options.prompt;
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

// A run that only samples uses its model's context. Otherwise 0 means the default, or a smaller model's context.
static inline bool run_settle_seq_len(TrainRun *run, Error *error) {
    TrainOptions *o = &run->options;
    int context = run->config.max_seq_len;
    bool samples_only = o->steps == 0 && o->train_data[0] == '\0' && o->val_data[0] == '\0';
    int64_t usual = samples_only ? context : trainer_facts.default_seq_len;
    if (o->seq_len == 0) { o->seq_len = min_i64(usual, context); }
    if (run_is_new(run)) { train_options_take_context(o, &run->config); }
    return train_options_check_context(o, run->config.max_seq_len, error);
}

// --auto chooses the micro-batch when the GPU is open (run_change_batch_size). Until then it is the largest possible:
// an evaluation that does not fit into it fits into no smaller micro-batch.
static inline bool run_settle_batch(TrainRun *run, Error *error) {
    TrainOptions *o = &run->options;
    bool chooses = o->auto_plan && !o->given[OPTION_batch_size];
    if (chooses) { o->batch_size = 1; }
    if (!train_options_check_batch(o, run->num_ranks, error)) { return false; }
    if (chooses) { o->batch_size = train_options_next_batch(o->total_batch / (o->seq_len * run->num_ranks), 0); }
    return true;
}

// Gives the run another micro-batch, which divides a step.
static inline bool run_change_batch_size(TrainRun *run, int64_t batch_size, Error *error) {
    run->options.batch_size = batch_size;
    for (int i = 0; i < NUM_EVALS; i++) {
        EvalLoader *eval = &run->evals[i];
        if (eval_is_open(eval)) { eval_pack(eval, (int)batch_size, (int)run->options.seq_len); }
    }
    return run_settle_steps(run, error);
}

#endif // LLMC_RUN_INPUTS_H
