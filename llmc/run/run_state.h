// Saves a run in checkpoints, resumes it from a checkpoint, and looks whether the disk has room for the next one.
#ifndef LLMC_RUN_STATE_H
#define LLMC_RUN_STATE_H

#include "llmc/base/text.h"
#include "llmc/files/checkpoint.h"
#include "llmc/run/train_run.h"

// ---- The checkpoint to go on from ----

// Finds the newest checkpoint before step `before` whose header can be read. *error comes with what is wrong with the
// checkpoint of that step.
static inline bool run_find_checkpoint(TrainRun *run, int64_t before, Error *error) {
    CheckpointFound found;
    Error problem;
    if (checkpoint_newest(&found, run->options->out_dir, before, CHECKPOINT_TO_RESUME, &problem)) {
        if (found.passed.text[0] != '\0') { logger_event(&run->logger, "passed over: %s", found.passed.text); }
        run->folder.resumes = found.step;
        if (found.step == run->folder.newest) { return true; }
        logger_event(&run->logger, "going back to the checkpoint of step %lld", (long long)found.step);
        return true;
    }
    if (found.step < 0) { problem = *error; }
    return fail(error, "%s: none of its checkpoints can be read (%.4000s); give another --out-dir to start afresh",
                run->options->out_dir, problem.text);
}

// Gives all ranks the step that rank 0 has found, and each reads the facts and the config of that checkpoint.
static inline bool run_share_checkpoint(TrainRun *run, ModelConfig *config, Error *error) {
    CheckpointFound found;
    int64_t *step = &run->folder.resumes;
    if (!ranks_broadcast(run->comm, step, (int64_t)sizeof(*step), error)) { return false; }
    if (*step < -1 || *step > LARGEST_WHOLE) {
        return fail(error, "rank 0 has not sent the step of a checkpoint, but something else");
    }
    if (*step < 0) { return true; }
    if (!checkpoint_look(&found, run->options->out_dir, *step, CHECKPOINT_TO_RESUME, error)) { return false; }
    *config = found.config, run->folder.facts = found.header;
    return true;
}

// ---- The record of a run ----

// Returns the precision as states record it. The GPU rounds all activations, the CPU only what it multiplies.
static inline const char *run_precision(const TrainRun *run) {
    if (trainer_facts.precision != NULL) { return trainer_facts.precision; }
    return strcmp(run->options->precision, "bf16") == 0 ? "bf16 multiplies" : "fp32";
}

// Lists options and what the run has settled, each as a name and a value with a character after either. The training
// state stores this list, and a resumed run compares it with its own. The ranks compare it, and run.jsonl quotes it.
// all: every option that this trainer takes; otherwise those that shape a run of either trainer, or its rounding, and
// those that the command line gives and another start may take over.
static inline void run_list_options(const TrainRun *run, bool all, char after_name, char after_value, Text *list) {
    for (int i = 0; i < NUM_TRAIN_OPTIONS; i++) {
        char text[MAX_PATH_BYTES];
        bool given = run->options->given[i] && train_shapes_run[i] != LOCAL;
        bool listed = all ? train_options_takes(i, trainer_facts.on_gpu) : train_shapes_run[i] >= SHAPES || given;
        if (!listed || i == OPTION_process_rank) { continue; } // each rank has its own number
        train_options_text(run->options, i, text, sizeof(text));
        text_printf(list, "--%s%c%s%c", train_specs_cpu[i].name, after_name, text, after_value);
    }
    text_printf(list, "computed-in%c%s%c", after_name, run_precision(run), after_value);
    const char *arithmetic = run->record.arithmetic, *attention = run->record.attention;
    if (arithmetic[0] != '\0') { text_printf(list, "arithmetic%c%s%c", after_name, arithmetic, after_value); }
    if (attention[0] != '\0') { text_printf(list, "attention-by%c%s%c", after_name, attention, after_value); }
}

#define RUN_DATA_KEY "training-data-fingerprint"
#define RUN_TOKENIZER_KEY "tokenizer-fingerprint"
#define RUN_RATE_KEY "next-learning-rate"

// Records the run's position, its data and its options. The checkpoint adds the step.
static inline void run_fill_header(const TrainRun *run, StateHeader *header) {
    Text options = {NULL, 0, 0, false};
    state_init(header);
    state_add(header, "next_sequence %lld\nupdates %lld\n", (long long)run->next_sequence, (long long)run->updates);
    state_add(header, RUN_RATE_KEY " %.6g\n", (double)schedule_lr(&run->schedule, run->step));
    state_add(header, RUN_DATA_KEY " %llu\n", (unsigned long long)run->train.fingerprint);
    if (run->tokenizer.is_open) {
        state_add(header, RUN_TOKENIZER_KEY " %llu\n", (unsigned long long)run->tokenizer.fingerprint);
    }
    run_list_options(run, false, ' ', '\n', &options);
    if (options.failed) { header->length = -1; } // out of memory: writing refuses the header
    state_add(header, "%s", options.data);
    text_free(&options);
}

// ---- The disk ----

// Returns about the bytes of a checkpoint, -1 if the run saves none.
static inline int64_t run_checkpoint_bytes(const TrainRun *run) {
    if (!run_writes_files(run) || !run_has_train(run)) { return -1; }
    return checkpoint_size(&run->config, train_options_optimizer(run->options), run->kept.sections, RUN_SECTIONS);
}

// Returns the bytes of model_best.bin, 0 if the run writes none.
static inline int64_t run_best_bytes(const TrainRun *run) {
    bool validates = run_has_val(run) && run->options->val_every > 0;
    return run_writes_files(run) && validates ? model_bin_bytes(&run->config, MODEL_BIN_FP32) : 0;
}

// Fails if the disk has no room for the next checkpoint and best model. Warns once if it has no room for two of each: a
// new file is whole before an old one goes.
static inline bool run_check_disk(TrainRun *run, Error *error) {
    const char *dir = run->options->out_dir;
    int64_t bytes = run_checkpoint_bytes(run), free_bytes = disk_free_bytes(dir);
    if (bytes >= 0) { bytes += run_best_bytes(run); }
    if (bytes < 0 || free_bytes < 0 || run->step >= run->num_steps) { return true; }
    ShortText each = bytes_text(bytes), there = bytes_text(free_bytes);
    if (free_bytes < bytes) {
        return fail(error,
                    "--out-dir (-o): %.4000s: not enough space: saving takes %s, %s are free; free some space, "
                    "keep fewer checkpoints (--keep), or choose another folder",
                    dir, each.text, there.text);
    }
    if (free_bytes < 2 * bytes && !run->folder.disk_is_short) {
        logger_event(&run->logger, "warning: the disk of %.4000s has %s free, less than twice the %s that saving takes",
                     dir, there.text, each.text);
        run->folder.disk_is_short = true;
    }
    return true;
}

// ---- Saving ----

typedef enum { RUN_WRITES_CHECKPOINT, RUN_WRITES_BEST } RunWrites;

static inline bool run_write_begin(TrainRun *run, RunWrites what, CheckpointWriter *writer, Error *error) {
    const char *dir = run->options->out_dir;
    StateHeader header;
    if (run_leads(run) && !directory_check_lock(&run->folder.lock, error)) { return false; }
    if (what == RUN_WRITES_BEST) { return checkpoint_write_best(writer, dir, &run->config, run_leads(run), error); }
    run_fill_header(run, &header);
    return checkpoint_write_begin(writer, dir, run->step, &run->config, &header, run->kept.sections, RUN_SECTIONS,
                                  run_leads(run), error);
}

// Rank 0 creates the files, if the folder is still its own, and all ranks write their parts. When all parts are on the
// disk, rank 0 gives the files their names.
static inline bool run_write_parts(TrainRun *run, RunWrites what, CheckpointWriter *writer, Error *error) {
    for (int leader = 1; leader >= 0; leader--) {
        bool mine = run_leads(run) == (leader != 0), ok = !mine || run_write_begin(run, what, writer, error);
        if (!ranks_agree(run->comm, ok, error)) { return false; }
    }
    bool ok = trainer_write_state(run->trainer, writer, error) && checkpoint_write_flush(writer, error);
    CheckpointSums sums = writer->sums;
    if (!ranks_agree(run->comm, ok, error) || !ranks_sum(run->comm, sums.sums, CHECKPOINT_ARRAYS, error)) {
        return false;
    }
    ok = !run_leads(run) || checkpoint_write_commit(writer, &sums, error);
    return ranks_agree(run->comm, ok, error);
}

// Writes a checkpoint or the best model. Refuses parameters and moments that the next start would refuse.
static inline bool run_write(TrainRun *run, RunWrites what, Error *error) {
    CheckpointWriter writer;
    if (!trainer_check_state(run->trainer, run, error)) { return false; }
    checkpoint_write_init(&writer);
    ranks_slow(run->comm, true);
    bool ok = run_write_parts(run, what, &writer, error);
    ranks_slow(run->comm, false);
    if (!ok) { checkpoint_write_close(&writer); }
    return ok;
}

// Writes a checkpoint if the run writes files and has not saved this step.
static inline bool run_save(TrainRun *run, Error *error) {
    const TrainOptions *o = run->options;
    Error full;
    if (!run_writes_files(run) || run->folder.saved == run->step) { return true; }
    if (!run_write(run, RUN_WRITES_CHECKPOINT, error)) { return false; }
    run->folder.saved = run->step;
    ranks_resumable(run->comm, true);
    if (run_leads(run)) { checkpoint_prune(o->out_dir, run->step, o->keep, o->keep_major); }
    logger_event(&run->logger, "saved the checkpoint of step %lld in %s", (long long)run->step, o->out_dir);
    if (run_leads(run) && !run_check_disk(run, &full)) { logger_event(&run->logger, "warning: %s", full.text); }
    return true;
}

// ---- Comparison with the saved run ----

// Adds "--lr was 0.1, is 0.2" to a list if the saved run has another value of this fact.
static inline void run_list_change(const StateHeader *saved, const StateHeader *own, const char *name, Text *list) {
    char was[MAX_PATH_BYTES], is[MAX_PATH_BYTES];
    if (!state_get_text(saved, name, was, sizeof(was)) || !state_get_text(own, name, is, sizeof(is))) { return; }
    if (strcmp(was, is) == 0) { return; }
    text_printf(list, "%s%s was %.200s, is %.200s", list->used > 0 ? "; " : "", name, was[0] ? was : "''",
                is[0] ? is : "''");
}

// Lists what has changed since the run was saved: what shapes the run, and what only rounds otherwise. A tokenizer is
// compared by its tokens and data by their fingerprint, whatever their names.
static inline void run_list_changes(const TrainRun *run, const StateHeader *saved, Text *changes, Text *roundings) {
    StateHeader own;
    run_fill_header(run, &own);
    for (int i = 0; i < NUM_TRAIN_OPTIONS; i++) {
        char name[64];
        if (i == OPTION_tokenizer || i == OPTION_train_data || train_shapes_run[i] < SHAPES) { continue; }
        snprintf(name, sizeof(name), "--%s", train_specs_cpu[i].name);
        run_list_change(saved, &own, name, train_shapes_run[i] == ROUNDS ? roundings : changes);
    }
    run_list_change(saved, &own, "computed-in", changes);
    run_list_change(saved, &own, "arithmetic", changes);
    run_list_change(saved, &own, "attention-by", changes);
    run_list_change(saved, &own, RUN_TOKENIZER_KEY, changes);
    size_t before = changes->used;
    run_list_change(saved, &own, RUN_DATA_KEY, changes);
    if (changes->used > before) { text_printf(changes, " (%.1000s)", run->options->train_data); }
}

// Says where the learning rate jumps: to go on for more steps moves a run to an earlier place on a schedule that falls.
static inline void run_list_rate(const TrainRun *run, Text *changes) {
    char was[32], is[32];
    snprintf(is, sizeof(is), "%.6g", (double)schedule_lr(&run->schedule, run->folder.resumes));
    if (!state_get_text(&run->folder.facts, RUN_RATE_KEY, was, sizeof(was)) || strcmp(was, is) == 0) { return; }
    const char *way = " (--schedule constant, or wsd before its last fifth, goes on without a jump)";
    text_printf(changes, "; the learning rate of the next step was %s, is %s%s", was, is,
                strtod(is, NULL) > strtod(was, NULL) ? way : "");
}

// Refuses a run that differs from the saved run, unless --allow-changes is given. The message names every difference.
static inline bool run_compare_options(TrainRun *run, Error *error) {
    Text changes = {NULL, 0, 0, false}, roundings = {NULL, 0, 0, false};
    if (!run_resumes(run)) { return true; }
    run_list_changes(run, &run->folder.facts, &changes, &roundings);
    bool ok = !(changes.failed || roundings.failed) || fail(error, "out of memory");
    if (ok && roundings.used > 0) { logger_event(&run->logger, "resuming with other roundings: %s", roundings.data); }
    if (ok && changes.used > 0 && run->options->allow_changes) {
        run_list_rate(run, &changes);
        logger_event(&run->logger, "resuming with changes: %s", changes.data);
    } else if (ok && changes.used > 0) {
        ok = fail(error, "--resume (-y): %s: %.3000s; give these as they were, or --allow-changes to go on",
                  run->options->out_dir, changes.data);
    }
    text_free(&changes), text_free(&roundings);
    return ok;
}

// ---- Resuming ----

// Takes the options that the command line does not give from the checkpoint that the run goes on from. The run folder
// has the tokenizer. What this program cannot take stays different, and the comparison finds it.
static inline bool run_take_options(TrainRun *run, TrainOptions *o, Error *error) {
    const ArgSpec *specs = trainer_facts.on_gpu ? train_specs_gpu : train_specs_cpu;
    const StateHeader *facts = &run->folder.facts;
    char name[64], *taken = run->folder.taken = strdup(facts->text);
    if (taken == NULL) { return fail(error, "out of memory"); }
    for (char *end; (end = strchr(taken, '\n')) != NULL; taken = end + 1) { *end = '\0'; }
    taken = run->folder.taken;
    for (int i = 0; i < NUM_TRAIN_OPTIONS; i++) {
        snprintf(name, sizeof(name), "--%s", specs[i].name);
        const char *value = state_find(facts, name);
        bool stays = o->given[i] || train_shapes_run[i] == LOCAL || i == OPTION_tokenizer;
        if (stays || value == NULL || !train_options_takes(i, trainer_facts.on_gpu)) { continue; }
        bool is_taken = args_store(&specs[i], o, taken + (value - facts->text));
        o->given[i] = is_taken && train_shapes_run[i] == FREE; // such an option is in a state only if it was given
    }
    return train_options_settle(o, error);
}

// Reads the run's position from the facts of the state `path`, and bounds each number: a step updates the weights at
// most once, and the tokens that were read are a whole number, too.
static inline bool run_restore_position(TrainRun *run, const StateHeader *header, const char *path, Error *error) {
    int64_t T = run->options->seq_len, old_T, next;
    if (!state_get_number(header, path, "--seq-len", 1, run->config.max_seq_len, &old_T, error) ||
        !state_get_number(header, path, "step", 0, LARGEST_WHOLE, &run->step, error) ||
        !state_get_number(header, path, "updates", 0, run->step, &run->updates, error) ||
        !state_get_number(header, path, "next_sequence", 0, LARGEST_WHOLE / old_T, &next, error)) {
        return false;
    }
    run->next_sequence = next * old_T / T; // if the length has changed, the run goes on at the token that was next
    return true;
}

// Loads the checkpoint that the run goes on from. Each rank reads its part. Together they find out whether the whole
// checkpoint is undamaged.
static inline bool run_read_checkpoint(TrainRun *run, CheckpointReader *reader, Error *error) {
    const char *dir = run->options->out_dir;
    bool ok = checkpoint_read_begin(reader, dir, run->folder.resumes, &run->config, &run->folder.facts, error);
    if (!ranks_agree(run->comm, ok, error)) { return false; }
    reader->skips_moments = reader->optimizer != train_options_optimizer(run->options);
    ok = run_restore_position(run, &run->folder.facts, reader->state.file.path, error) &&
         trainer_read_state(run->trainer, run, reader, error);
    CheckpointSums sums = reader->sums;
    if (!ranks_agree(run->comm, ok, error) || !ranks_sum(run->comm, sums.sums, CHECKPOINT_ARRAYS, error)) {
        return false;
    }
    ok = checkpoint_read_end(reader, &sums, run->kept.sections, RUN_SECTIONS, error);
    if (!ranks_agree(run->comm, ok, error)) { return false; }
    run->folder.saved = run->folder.resumes;
    if (reader->skips_moments) { // another optimizer begins anew
        run->updates = 0;
        logger_event(&run->logger, "the optimizer begins anew, from moments of zero");
    }
    return true;
}

// Goes back to the checkpoint before a damaged one.
static inline bool run_go_back(TrainRun *run, Error *error) {
    ModelConfig config;
    bool ok = !run_leads(run) || run_find_checkpoint(run, run->folder.resumes, error);
    if (!ranks_agree(run->comm, ok, error)) { return false; }
    ok = run_share_checkpoint(run, &config, error) && run_compare_options(run, error);
    return ranks_agree(run->comm, ok, error);
}

// Loads the newest checkpoint that is whole. Skips damaged checkpoints and says so.
static inline bool run_resume(TrainRun *run, Error *error) {
    CheckpointReader reader;
    for (;;) {
        reader.model.fd = reader.state.file.fd = -1; // no file is open yet
        if (run_read_checkpoint(run, &reader, error)) { return true; }
        checkpoint_read_close(&reader);
        if (ranks_are_broken(run->comm)) { return false; } // not damage
        logger_event(&run->logger, "passed over: %s", error->text);
        if (!run_go_back(run, error)) { return false; }
    }
}

#endif // LLMC_RUN_STATE_H
