// Opens the inputs that the options name: the checkpoint or the model, the tokenizer, the data, the questions.
// Completes the options: the vocabulary and the length of a sequence first, the rest when a trainer settles. Writes
// nothing.
#ifndef LLMC_RUN_INPUTS_H
#define LLMC_RUN_INPUTS_H

#include "llmc/base/openmp.h"
#include "llmc/data/text_data.h"
#include "llmc/files/model_file.h"
#include "llmc/run/run_state.h"

#define BYTE_VOCAB_SIZE 257

// ---- The run folder and the model ----

// Checks that the run may have its folder. A fresh run does not begin in the folder of an older run unless an option
// allows it.
static inline bool run_check_use(const TrainRun *run, Error *error) {
    const TrainOptions *o = run->options;
    char log[MAX_PATH_BYTES];
    if (!path_join(log, o->out_dir, MAIN_LOG_NAME, error)) { return false; }
    bool has_saved = run->folder.newest >= 0, is_used = has_saved || path_exists(log);
    if (o->resume && run->folder.newest < 0 && checkpoint_before(o->out_dir, "model", "", INT64_MAX) >= 0) {
        return fail(error,
                    "%.4000s: has models, but no state file (state_*.bin), so no run can resume here; give one of "
                    "them to --init with another --out-dir, --overwrite starts afresh in its place",
                    o->out_dir);
    }
    if (o->resume || o->overwrite || !is_used) { return true; }
    return fail(error, "%s: holds an earlier run%s--overwrite to start afresh in its place, or another --out-dir",
                o->out_dir, has_saved ? "; give --resume to go on with it, " : " that has saved nothing; give ");
}

// Looks at the run folder, and finds the checkpoint that --resume goes on from. Only reads.
static inline bool run_look_at_folder(TrainRun *run, Error *error) {
    const TrainOptions *o = run->options;
    if (!path_check(o->out_dir, "--out-dir (-o)", error)) { return false; }
    run->folder.newest = checkpoint_before(o->out_dir, "state", "", INT64_MAX);
    if (!train_options_plan(o) && !run_check_use(run, error)) { return false; }
    return !o->resume || run->folder.newest < 0 || run_find_checkpoint(run, INT64_MAX, error);
}

// Finds out what --init is, which may mean reading a whole checkpoint. Rank 0 does that for all ranks. run_check_same
// finds out whether they have equal files. Options give a new model its sizes, and an existing model refuses them.
static inline bool run_open_model_file(TrainRun *run, Error *error) {
    ModelFile *file = run->model_file = (ModelFile *)malloc(sizeof(ModelFile));
    bool ok = file != NULL || fail(error, "out of memory");
    ok = ok && (!run_leads(run) || model_file_open(file, run->options->init, error));
    ok = ranks_agree(run->comm, ok, error) && ranks_broadcast(run->comm, file, (int64_t)sizeof(*file), error) &&
         model_file_check(file, error);
    if (!ok) { return false; }
    if (file->note.text[0] != '\0') { logger_event(&run->logger, "passed over: %s", file->note.text); }
    run->config = file->config;
    if (file->path[0] == '\0') { // a size
        free(file);
        run->model_file = NULL;
    }
    int given = train_options_take_sizes(run->options, &run->config);
    return given < 0 || run->model_file == NULL ||
           fail(error, "--%s: is for new models; --init %.4000s names a model that exists", train_specs_cpu[given].name,
                run->options->init);
}

// Refuses sizes that are not those of the model that the run goes on with.
static inline bool run_check_sizes(const TrainRun *run, Error *error) {
    ModelConfig asked = run->config;
    train_options_take_sizes(run->options, &asked);
    return model_configs_equal(&asked, &run->config) || fail(error,
                                                             "--layers, --heads, --channels, --kv-heads, --context and "
                                                             "--vocab are for new models; %.4000s holds another",
                                                             run->options->out_dir);
}

// Finds the model's config, and completes the options of a run that goes on. A size leaves the vocabulary at 0. Only
// rank 0 looks at the run folder, because a network file system may show the other ranks something else.
static inline bool run_open_model(TrainRun *run, TrainOptions *o, Error *error) {
    bool ok = !run_writes_files(run) ||
              (run_lead(run, run_look_at_folder, error) && run_share_checkpoint(run, &run->config, error));
    if (!ok) { return false; }
    if (run_resumes(run)) { return run_take_options(run, o, error) && run_check_sizes(run, error); }
    if (o->resume && o->train_data[0] == '\0' && !train_options_plan(o)) {
        return fail(error, "--resume (-y): %.4000s: holds no checkpoint; --overwrite, with all options, begins a run",
                    o->out_dir);
    }
    return run_open_model_file(run, error);
}

// ---- The tokenizer ----

static inline bool run_trains_on_text(const TrainRun *run) {
    const char *data = run->options->train_data;
    return data[0] != '\0' && !data_is_shards(data);
}

// Finds the tokenizer of a model: the copy in a run's folder, or for m.bin what dev/hf.py calls m_tokenizer.bin. model:
// the folder of a run, a checkpoint's model in it, or another .bin file.
static inline bool run_finds_tokenizer_of_model(const char *model, char name[MAX_PATH_BYTES]) {
    char dir[MAX_PATH_BYTES];
    Error ignored;
    bool folder = path_is_directory(model), of_run = checkpoint_step_of_name(path_name(model), "model", "") >= 0 ||
                                                     strcmp(path_name(model), CHECKPOINT_BEST_NAME) == 0;
    if (strlen(model) > PATH_LIMIT || (!folder && !ends_with(model, ".bin"))) { return false; }
    path_copy(dir, model, strlen(model));
    if (!folder && !of_run) {
        snprintf(name, MAX_PATH_BYTES, "%.*s_" RUN_TOKENIZER_NAME, (int)(strlen(model) - strlen(".bin")), model);
        return path_exists(name);
    }
    if (of_run) { path_parent(dir, model); }
    return path_join(name, dir, RUN_TOKENIZER_NAME, &ignored) && path_exists(name);
}

// Finds the copy that `tokenize` has left beside the first of these shards.
static inline bool run_finds_tokenizer_of_data(const char *pattern, char name[MAX_PATH_BYTES]) {
    glob_t files;
    Error ignored; // opening the data reports it
    if (!data_is_shards(pattern)) { return false; }
    bool found = list_glob(pattern, "", &files, &ignored) && tokenizer_beside_shard(name, files.gl_pathv[0]) &&
                 path_exists(name);
    globfree(&files);
    return found;
}

// Chooses what --tokenizer names, otherwise the model's own tokenizer, or the data's. By default a text or a model of
// bytes has bytes, and all else llm.c's file in the working directory. Writes a file, "byte" or "" (none). Returns
// whose it is, for people.
static inline const char *run_choose_tokenizer(const TrainRun *run, char name[MAX_PATH_BYTES]) {
    const TrainOptions *o = run->options;
    const char *usual = path_exists(MODEL_TOKENIZER) ? MODEL_TOKENIZER : "";
    if (run_trains_on_text(run) || run->config.vocab_size == BYTE_VOCAB_SIZE) { usual = "byte"; }
    if (o->tokenizer[0] != '\0') {
        usual = o->tokenizer;
    } else if ((run_resumes(run) && run_finds_tokenizer_of_model(o->out_dir, name)) ||
               (model_find_size(o->init) == NULL && run_finds_tokenizer_of_model(o->init, name))) {
        return ", the model's own";
    } else if (run_finds_tokenizer_of_data(o->train_data, name) || run_finds_tokenizer_of_data(o->val_data, name)) {
        return ", the data's own";
    }
    path_copy(name, usual, strlen(usual));
    return "";
}

// Opens the tokenizer, and computes the number by which a resumed run knows it again. Training on shards needs no
// tokenizer: samples are then token ids.
static inline bool run_open_tokenizer(TrainRun *run, Error *error) {
    char name[MAX_PATH_BYTES];
    RunTokenizer *t = &run->tokenizer;
    const char *whose = run_choose_tokenizer(run, name);
    bool prompts = run->options->prompt[0] != '\0' || run->options->prompt_file[0] != '\0',
         needed = run_trains_on_text(run) || prompts;
    t->is_found = whose[0] != '\0';
    if (name[0] == '\0' && prompts) {
        return fail(error, "--prompt: needs a tokenizer for the model's %d tokens; " VOCAB_HINT,
                    run->config.vocab_size);
    }
    bool missing = !needed && strcmp(name, "byte") != 0 && !path_exists(name);
    if (missing) {
        snprintf(t->note, sizeof(t->note), name[0] == '\0' ? "none%s%s" : "none (%.4000s: not found)%s", name,
                 ", samples are token ids; " VOCAB_HINT);
        return true;
    }
    snprintf(t->note, sizeof(t->note), "%.4000s%s", name, whose);
    t->is_open = tokenizer_open(&t->tokenizer, name, error);
    return t->is_open && tokenizer_hash(&t->tokenizer, &t->fingerprint, error);
}

// Refuses data or a model of another tokenizer than the run's, by the hash of theirs.
static inline bool run_check_tokenizer(const TrainRun *run, const char *path, uint64_t theirs, Error *error) {
    return bin_check_tokenizer(path, theirs, run->tokenizer.note, run->tokenizer.fingerprint, error);
}

// Settles the vocabulary and checks that model and tokenizer agree on it. With --vocab, or a tokenizer that was found,
// the model may have room for more tokens.
static inline bool run_settle_vocab(TrainRun *run, Error *error) {
    ModelConfig *config = &run->config;
    const ModelSize *size = model_find_size(run->options->init);
    int usual = size != NULL ? size->config.vocab_size : MODEL_VOCAB_SIZE;
    int tokens = run->tokenizer.is_open ? run->tokenizer.tokenizer.vocab_size : usual;
    if (config->vocab_size == 0) { config->vocab_size = tokens; }
    if (run_is_new(run)) { config->padded_vocab_size = model_pad_vocab(config->vocab_size); }
    bool room = run->options->vocab != 0 || run->tokenizer.is_found; // rows that no token has
    if (run_is_new(run) && tokens > config->vocab_size && run->tokenizer.is_open) {
        return fail(error, "--vocab: %d is less than the %d tokens of %.4000s; leave it out, or give at least these",
                    config->vocab_size, tokens, run->tokenizer.note);
    }
    if (run->tokenizer.is_open && (room ? tokens > config->vocab_size : tokens != config->vocab_size)) {
        return fail(error,
                    "tokenizer %.4000s has %d tokens, the model %d; give the tokenizer the model was made with "
                    "(--tokenizer), or a model of its own (--init " MODEL_GPU_SIZE ")",
                    run->tokenizer.note, tokens, config->vocab_size);
    }
    uint64_t known = run_resumes(run) ? 0 : config->tokenizer; // a resumed run has its own check
    if (!run_check_tokenizer(run, run_shape_origin(run), known, error)) { return false; }
    if (run->tokenizer.is_open) { config->tokenizer = run->tokenizer.fingerprint; }
    bool fits = !run_is_new(run) || config->num_heads * config->head_size == config->channels;
    return model_check_config(config, run_shape_origin(run), error) &&
           (fits || fail(error, "%s: %d channels cannot be divided among %d heads; choose heads that divide channels",
                         run_shape_origin(run), config->channels, config->num_heads));
}

// A run that only samples uses its model's context. Otherwise 0 means the default, or a smaller model's context.
static inline bool run_settle_seq_len(TrainRun *run, TrainOptions *o, Error *error) {
    int context = run->config.max_seq_len;
    bool samples_only = o->steps == 0 && o->train_data[0] == '\0' && o->val_data[0] == '\0';
    int64_t usual = samples_only ? context : trainer_facts.default_seq_len;
    if (o->seq_len == 0) { o->seq_len = min_i64(usual, context); }
    return train_options_settle_context(o, run_is_new(run), &run->config, error);
}

// ---- The data ----

// tokens (count), or NULL: the loader reads the shards that `name` names.
static inline bool run_open_loader(TrainRun *run, DataLoader *loader, const char *name, const uint32_t *tokens,
                                   int64_t count, bool shuffle, Error *error) {
    const TrainOptions *o = run->options;
    bool ok = dataloader_open(loader, name, tokens, count, (int)o->seq_len, run->config.vocab_size, shuffle,
                              (uint64_t)o->seed, error);
    if (!ok) { memset(loader, 0, sizeof(*loader)); }
    for (int i = 0; ok && i < loader->num_shards; i++) {
        ok = run_check_tokenizer(run, loader->shards[i].path, loader->shards[i].tokenizer, error);
    }
    return ok;
}

// Loads the tokens of a text. Leaves shards to the loader.
static inline bool run_load_text(TrainRun *run, const char *name, uint32_t **tokens, int64_t *count, Error *error) {
    *count = 0;
    if (name[0] == '\0' || data_is_shards(name)) { return true; }
    // Training has a tokenizer.
    return run->tokenizer.is_open ? text_load(name, &run->tokenizer.tokenizer, tokens, count, error)
                                  : fail(error, "--val-data (-j): a text needs a tokenizer; " VOCAB_HINT);
}

// Opens the training and validation data. A text without --val-data gives its last part to validation.
static inline bool run_open_data(TrainRun *run, Error *error) {
    const TrainOptions *o = run->options;
    RunTexts *texts = &run->texts;
    int64_t train_count, val_count;
    bool has_val_data = o->val_data[0] != '\0';
    if (o->given[OPTION_val_fraction] && !run_trains_on_text(run)) {
        return fail(error, "--val-fraction: is for a text; give --val-data for shards");
    }
    if (!run_load_text(run, o->val_data, &texts->val, &val_count, error) ||
        !run_load_text(run, o->train_data, &texts->train, &train_count, error)) {
        return false;
    }
    const uint32_t *val_tokens = texts->val;
    if (texts->train != NULL && !has_val_data) {
        val_count = train_count;
        text_split(val_count, (int)o->seq_len, o->val_fraction, &train_count);
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

// Opens the questions of the requested evaluations.
static inline bool run_open_evals(TrainRun *run, Error *error) {
    const TrainOptions *o = run->options;
    const ModelConfig *c = &run->config;
    const char *paths[NUM_EVALS] = {o->hellaswag ? o->hellaswag_data : "", o->mmlu};
    for (int i = 0; i < NUM_EVALS; i++) {
        if (paths[i][0] == '\0') { continue; }
        if (!path_exists(paths[i])) {
            return fail(error, "%s: no such file; `%s` fetches it, %s names another", paths[i], run_evals[i].command,
                        run_evals[i].option);
        }
        if (!eval_open(&run->evals[i], paths[i], c->vocab_size, c->max_seq_len, o->eval_examples, error) ||
            !run_check_tokenizer(run, paths[i], run->evals[i].tokenizer, error)) {
            return false;
        }
    }
    return true;
}

// Encodes the prompt. Without a prompt, a sample begins at the start of a document. A text without documents has its
// one end-of-text at its end, too rarely to learn what follows, so there the sample begins a line. Byte models are
// trained on such texts.
static inline bool run_encode_prompt(TrainRun *run, Error *error) {
    const TrainOptions *o = run->options;
    const RunTokenizer *t = &run->tokenizer;
    RunTexts *texts = &run->texts;
    const char *text = o->prompt;
    int64_t bytes = (int64_t)strlen(text);
    uint8_t *file = NULL;
    if (o->prompt_file[0] != '\0' && !text_read_prompt(o->prompt_file, &file, &bytes, error)) { return false; }
    if (file != NULL) { text = (const char *)file; }
    texts->prompt_is_given = bytes > 0;
    bool of_one_text = run_trains_on_text(run) || (t->is_open && t->tokenizer.kind == TOKENIZER_BYTE);
    if (bytes == 0 && of_one_text) { text = "\n", bytes = 1; }
    texts->prompt = (uint32_t *)malloc(((size_t)bytes + 1) * sizeof(uint32_t));
    bool ok = texts->prompt != NULL || fail(error, "--prompt: out of memory");
    if (ok && bytes > 0) {
        // A prompt for Llama 3 begins a document, as in transformers.
        int begins = texts->prompt_is_given && t->tokenizer.word_rule == WORDS_LLAMA3;
        texts->prompt[0] = (uint32_t)t->tokenizer.eot_token;
        ok = tokenizer_encode(&t->tokenizer, (const uint8_t *)text, (size_t)bytes, texts->prompt + begins,
                              &texts->prompt_count, error);
        texts->prompt_count += begins;
    } else if (ok) {
        int end_of_text = t->is_open ? t->tokenizer.eot_token : MODEL_END_OF_TEXT;
        texts->prompt[0] = (uint32_t)min_i64(end_of_text, run->config.vocab_size - 1);
        texts->prompt_count = 1;
    }
    free(file);
    return ok;
}

// ---- All inputs ----

// Lists what all ranks must have in common, as name NUL value NUL. model: the model file's fingerprint.
static inline void run_list_facts(const TrainRun *run, uint64_t model, Text *facts) {
    uint64_t program = 0;
    Error ignored;
    if (!file_checksum("/proc/self/exe", &program, &ignored)) { program = 0; }
    const struct {
        const char *name;
        uint64_t value;
    } files[] = {{"the program file's checksum", program},
                 {"the checkpoint to go on from", (uint64_t)run->folder.resumes},
                 {"the model file's fingerprint", model},
                 {"the tokenizer's fingerprint", run->tokenizer.fingerprint},
                 {"the training data's fingerprint", run->train.fingerprint},
                 {"the validation data's fingerprint", run->val.fingerprint},
                 {"the HellaSwag file's fingerprint", run->evals[EVAL_HELLASWAG].fingerprint},
                 {"the MMLU file's fingerprint", run->evals[EVAL_MMLU].fingerprint}};
    text_printf(facts, "the version of the program%c" GPT2C_VERSION "%c", '\0', '\0');
    run_list_options(run, true, '\0', '\0', facts);
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        text_printf(facts, "%s%c%016llx%c", files[i].name, '\0', (unsigned long long)files[i].value, '\0');
    }
}

// Fails if a rank has other options, is another program, or sees other files. Training would then be wrong.
static inline bool run_check_same(TrainRun *run, Error *error) {
    Text facts = {NULL, 0, 0, false};
    uint64_t model = 0;
    if (run->connected == 1) { return true; }
    bool ok = run->model_file == NULL || model_file_fingerprint(run->model_file, &model, error);
    if (!ranks_agree(run->comm, ok, error)) { return false; }
    run_list_facts(run, model, &facts);
    ok = ranks_agree(run->comm, !facts.failed || fail(error, "out of memory"), error) &&
         ranks_alike(run->comm, facts.data, facts.used, error);
    text_free(&facts);
    return ok;
}

// Leaves standard output to the samples of a run that does not train, so that programs can read them. All else goes to
// standard error.
static inline bool run_split_output(TrainRun *run, Error *error) {
    const TrainOptions *o = run->options;
    run->texts.out = stdout;
    if (o->steps != 0 || train_options_plan(o) || !run_leads(run)) { return true; }
    int copy = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    FILE *out = copy < 0 ? NULL : fdopen(copy, "w");
    if (out == NULL || dup2(STDERR_FILENO, STDOUT_FILENO) < 0) { return fail_system(error, "standard output", "copy"); }
    run->texts.out = out;
    return true;
}

// Opens everything that the options name, and completes the options that the inputs decide. run->comm and
// run->num_ranks are set. Several ranks stop together from here on.
static inline bool run_open_inputs(TrainRun *run, TrainOptions *options, Error *error) {
    RunRecord *record = &run->record;
    run->folder.newest = run->folder.resumes = run->folder.saved = -1;
    record->train_step = record->val_step = record->accuracy_step[0] = record->accuracy_step[1] = -1;
    run_keep_statistics(run);
    logger_init(&run->logger);
    ranks_slow(run->comm, true);
    bool ok = run_split_output(run, error) && openmp_set_threads(options->threads, error) &&
              run_open_model(run, options, error) && run_open_tokenizer(run, error) && run_settle_vocab(run, error) &&
              run_settle_seq_len(run, options, error) && run_encode_prompt(run, error) && run_open_data(run, error) &&
              run_open_evals(run, error);
    ok = ranks_agree(run->comm, ok, error) && run_check_same(run, error);
    ranks_slow(run->comm, false);
    trainer_facts.stop->by_agreement = run->connected > 1;
    catch_stop_signal(SIGUSR1, trainer_facts.on_signal); // its sender wants the run to end in order, and has time
    return ok;
}

// ---- What a run computes, when its inputs are open ----

// Settles the tokens of a step, and checks that micro-batches add up to them. Any divisor of them is then possible. A
// run that only evaluates has a batch that is fast, unless options say otherwise.
static inline bool run_settle_batch(const TrainRun *run, TrainOptions *o, Error *error) {
    bool free_batch = !o->given[OPTION_batch_size] && o->val_batches < 0 && o->total_batch == 0;
    if (run_chooses_batch(run)) { o->batch_size = 1; }
    int64_t busy_tokens = trainer_facts.on_gpu ? 16384 : 1024; // keep the machine busy
    if (run_kind(run) == RUN_EVALUATES && free_batch) { o->batch_size = max_i64(1, busy_tokens / o->seq_len); }
    if (run_kind(run) == RUN_GENERATES && (o->json[0] != '\0' || o->out_dir[0] != '\0')) {
        return fail(error, "%s: there is nothing to evaluate; give --val-data, --hellaswag 1 or --mmlu",
                    o->json[0] != '\0' ? "--json" : "--out-dir (-o)");
    }
    return train_options_check_batch(o, run->data.ranks, error);
}

// Settles the rest, when micro-batch and level of recomputation are known: the number of steps, the schedules, the
// batches of evaluations. A resumed run must be like the run that was saved.
static inline bool run_settle_steps(TrainRun *run, TrainOptions *o, Error *error) {
    int64_t sequences = run_step_sequences(run), tokens = o->batch_size * o->seq_len;
    run->micro_batches = o->total_batch / (tokens * run->data.ranks);
    run->num_steps = o->steps;
    if (o->steps < 0 && run_has_train(run)) { run->num_steps = run->train.num_sequences / sequences; }
    if (train_options_plan(o) && !run_has_train(run)) { run->num_steps = 0; }
    if (o->steps < 0 && run->num_steps < 1 && run_has_train(run)) {
        return fail(error,
                    "--steps (-x): one epoch is %lld sequences, less than the %lld of one step; give --steps, a "
                    "smaller --total-batch or more data",
                    (long long)run->train.num_sequences, (long long)sequences);
    }
    if (o->warmup < 0) { o->warmup = run_is_new(run) ? min_i64(run->num_steps / 10, 100) : 0; } // as LOG.md measured
    run->schedule = train_options_schedule(o, o->lr, run->num_steps);
    if (o->patience > 0 && run_has_train(run) && !run_has_val(run)) {
        return fail(error, "--patience: there are no data to validate on");
    }
    for (int i = 0; i < NUM_EVALS; i++) {
        EvalLoader *eval = &run->evals[i];
        if (eval_is_open(eval)) { eval->B = eval_batch_sequences(eval, tokens); }
    }
    return run_compare_options(run, error);
}

#endif // LLMC_RUN_INPUTS_H
