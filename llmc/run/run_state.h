// Saves a run in checkpoints, resumes it from a checkpoint, and looks whether the disk has room for the next one.
#ifndef LLMC_RUN_STATE_H
#define LLMC_RUN_STATE_H

#include "llmc/base/text.h"
#include "llmc/files/checkpoint.h"
#include "llmc/run/train_run.h"

// ---- The checkpoints in the run folder ----

static inline void run_list_checkpoints(TrainRun *run) {
    run->found.num_checkpoints = checkpoint_list(run->options.out_dir, run->found.checkpoints, RUN_MAX_CHECKPOINTS);
}

static inline void run_report_damage(TrainRun *run, const Error *error) {
    logger_event(&run->logger, "damaged checkpoint: %s", error->text);
}

static inline bool run_fail_all_damaged(const TrainRun *run, const Error *reason, Error *error) {
    Error newest = *reason; // reason may be error
    return fail(error, "%s: none of its checkpoints is whole (%.4000s); give --overwrite to start afresh",
                run->options.out_dir, newest.text);
}

// ---- The record of a run ----

static inline void run_option_key(char *key, size_t size, int i) {
    snprintf(key, size, "option.%s", train_options_name(i));
}

// Returns the precision as states record it. The CPU rounds what it multiplies, the GPU all activations.
static inline const char *run_saved_precision(const TrainRun *run) {
    bool multiplies = trainer_facts.precision == NULL && strcmp(run->options.precision, "bf16") == 0;
    return multiplies ? "bf16 multiplies" : run_precision(run);
}

// Records the run's position, and each option that shapes the run or its rounding. trained_positions: how many of the
// model's positions are trained, so that a later run samples with no others; absent: all.
static inline void run_fill_header(const TrainRun *run, StateHeader *header) {
    state_init(header);
    state_set_i64(header, "step", run->step);
    state_set_i64(header, "next_sequence", run->next_sequence);
    state_set_i64(header, "updates", run->updates);
    state_set_i64(header, "trained_positions", run_trained_positions(run));
    state_set_u64(header, "data", run->train.fingerprint);
    if (run->tokenizer.is_open) { state_set_u64(header, "tokenizer", run->tokenizer.fingerprint); }
    state_set_text(header, "precision", run_saved_precision(run));
    if (run->record.arithmetic[0] != '\0') { state_set_text(header, "arithmetic", run->record.arithmetic); }
    for (int i = 0; i < NUM_TRAIN_OPTIONS; i++) {
        char key[64], text[MAX_PATH_BYTES];
        if (train_shapes_run[i] == FREE) { continue; }
        run_option_key(key, sizeof(key), i);
        train_options_text(&run->options, i, text, sizeof(text));
        state_set_text(header, key, text);
    }
}

// ---- The disk ----

// Returns the bytes of a checkpoint, -1 if the run saves none.
static inline int64_t run_checkpoint_bytes(const TrainRun *run) {
    int64_t model_bytes, state_bytes;
    StateHeader header;
    Error ignored;
    if (!run_writes_files(run) || !run_has_train(run)) { return -1; }
    run_fill_header(run, &header);
    bool known = checkpoint_size(&run->config, &header, run->kept.sections, run->kept.count, &model_bytes, &state_bytes,
                                 &ignored);
    return known ? model_bytes + state_bytes : -1;
}

// Fails if the disk has no room for the next checkpoint. Warns once if it has no room for two: a new checkpoint is
// whole before an old one goes. removed: checkpoints that the run removes first.
static inline bool run_check_disk(TrainRun *run, int removed, Error *error) {
    char each[32], there[32];
    const char *dir = run->options.out_dir;
    int64_t bytes = run_checkpoint_bytes(run), free_bytes = disk_free_bytes(dir);
    if (bytes < 0 || free_bytes < 0 || run->step >= run->num_steps) { return true; }
    free_bytes += removed * bytes;
    format_bytes(each, sizeof(each), bytes);
    format_bytes(there, sizeof(there), free_bytes);
    if (free_bytes < bytes) {
        return fail(error,
                    "--out-dir (-o): %.4000s: not enough space: a checkpoint takes %s, %s are free; free some space, "
                    "keep fewer checkpoints (--keep), or choose another folder",
                    dir, each, there);
    }
    if (free_bytes < 2 * bytes && !run->folder.disk_is_short) {
        logger_event(&run->logger, "warning: the disk of %.4000s has %s free, less than two checkpoints of %s", dir,
                     there, each);
        run->folder.disk_is_short = true;
    }
    return true;
}

// ---- Saving ----

// Rank 0 creates the files, if the folder is still its own, and all ranks write their parts. When all parts are on the
// disk, rank 0 gives the files their names.
static inline bool run_write_checkpoint(TrainRun *run, CheckpointWriter *writer, Error *error) {
    StateHeader header;
    run_fill_header(run, &header);
    for (int leader = 1; leader >= 0; leader--) {
        bool mine = run_leads(run) == (leader != 0);
        bool ok = !mine || ((leader == 0 || directory_check_lock(&run->folder.lock, error)) &&
                            checkpoint_write_begin(writer, run->options.out_dir, run->step, &run->config, &header,
                                                   run->kept.sections, run->kept.count, leader != 0, error));
        if (!run_agree(run, ok, error)) { return false; }
    }
    bool ok = trainer_write_state(run->trainer, writer, error) && checkpoint_write_flush(writer, error);
    CheckpointSums sums = writer->sums;
    if (!run_agree(run, ok, error) || !run_sum(run, sums.sums, CHECKPOINT_ARRAYS, error)) { return false; }
    ok = !run_leads(run) || checkpoint_write_commit(writer, &sums, error);
    return run_agree(run, ok, error);
}

// Removes the checkpoints up to the current step that --keep no longer wants.
static inline void run_prune(const TrainRun *run) {
    const TrainOptions *o = &run->options;
    checkpoint_prune(o->out_dir, run->step, o->keep, o->keep_major);
}

// Writes a checkpoint if the run writes files and has not saved this step. Refuses parameters and moments that the next
// start would refuse.
static inline bool run_save(TrainRun *run, Error *error) {
    CheckpointWriter writer;
    Error full;
    if (!run_writes_files(run) || run->folder.saved_step == run->step) { return true; }
    if (!trainer_check_state(run->trainer, run, error)) { return false; }
    atomic_init(&writer.model);
    atomic_init(&writer.state);
    run_slow(run, true);
    bool ok = run_write_checkpoint(run, &writer, error);
    run_slow(run, false);
    if (!ok) {
        checkpoint_write_abort(&writer);
        return false;
    }
    run->folder.saved_step = run->step;
    run_resumable(run, true);
    if (run_leads(run)) { run_prune(run); }
    logger_event(&run->logger, "saved the checkpoint of step %lld in %s", (long long)run->step, run->options.out_dir);
    if (run_leads(run) && !run_check_disk(run, 0, &full)) { logger_event(&run->logger, "warning: %s", full.text); }
    return true;
}

// ---- Comparison with the saved run ----

// Adds "--lr was 0.1, is 0.2" to a list.
static inline void run_add_change(Text *list, const char *what, const char *then, const char *now) {
    text_printf(list, "%s%s was %.200s, is %.200s", list->used > 0 ? "; " : "", what, then[0] ? then : "''",
                now[0] ? now : "''");
}

// Compares an option that shapes the run. A tokenizer is compared by its tokens, whatever its name, and none for shards
// is no change. An older training state has no record of them.
static inline bool run_option_changed(const TrainRun *run, const StateHeader *header, int i, const char *then,
                                      const char *now) {
    const RunTokenizer *t = &run->tokenizer;
    uint64_t fingerprint;
    if (i == TRAIN_ROW_tokenizer && state_get_u64(header, "tokenizer", &fingerprint)) {
        return t->is_open && t->fingerprint != fingerprint;
    }
    return train_options_shapes_run(i) && !train_options_alike(i, then, now);
}

// Tells whether the options of a saved run name its model's shape, and those of this run name it, too, maybe by other
// options: --init d12, or --layers, --heads and --channels. init: the saved run's.
static inline bool run_names_equal_shape(const TrainRun *run, const char *init) {
    GPT2Config named = run->config;
    named.vocab_size = run_num_tokens(run);
    if (gpt2_find_size(init) == NULL || !gpt2_config_from_size(&named, run->options.init)) { return false; }
    train_options_take_sizes(&run->options, &named);
    return model_configs_equal(&named, &run->config);
}

// The differences between a saved run and this one.
typedef struct {
    Text list;        // for people
    bool is_programs; // the saved run's program did what this program cannot do
} RunChanges;

// Lists option i if it has changed since the run was saved. An older training state may lack it.
static inline void run_list_option(TrainRun *run, const StateHeader *header, int i, RunChanges *changes) {
    char key[64], name[64], now[MAX_PATH_BYTES], then[MAX_PATH_BYTES];
    bool is_mine = train_options_takes(i, trainer_facts.on_gpu);
    snprintf(name, sizeof(name), "--%s", train_options_name(i));
    run_option_key(key, sizeof(key), i);
    train_options_text(&run->options, i, now, sizeof(now));
    bool recorded = state_get_text(header, key, then, sizeof(then));
    bool of_muon = i >= TRAIN_ROW_optimizer && i <= TRAIN_ROW_muon_scale; // a run from before Muon had AdamW
    if (!recorded) { snprintf(then, sizeof(then), "%s", of_muon ? train_specs_cpu[i].fallback : "(not recorded)"); }
    if (!is_mine && !recorded) { return; }
    if (is_mine && train_shapes_run[i] == ROUNDS && recorded && strcmp(now, then) != 0) {
        logger_event(&run->logger, "resuming with other roundings: %s was %s, is %s", name, then, now);
    }
    if (!run_option_changed(run, header, i, then, now)) { return; }
    run_add_change(&changes->list, name, then,
                   !is_mine                 ? "an option of the GPU trainer"
                   : strcmp(then, now) == 0 ? "another file"
                                            : now);
    changes->is_programs = changes->is_programs || !is_mine;
}

// Lists the options, the precision and the data that shape the run and have changed since it was saved. Reports options
// that round otherwise.
static inline void run_list_changes(TrainRun *run, const StateHeader *header, RunChanges *changes) {
    const char *precision = run_saved_precision(run);
    char then[MAX_PATH_BYTES];
    uint64_t data = 0;
    bool equal_shape = state_get_text(header, "option.init", then, sizeof(then)) && run_names_equal_shape(run, then);
    bool other_optimizer = checkpoint_optimizer(header) != train_options_optimizer(&run->options);
    for (int i = 0; i < NUM_TRAIN_OPTIONS; i++) {
        if (equal_shape && i >= TRAIN_ROW_init && i <= TRAIN_ROW_vocab) { continue; }
        if (other_optimizer && i > TRAIN_ROW_optimizer && i <= TRAIN_ROW_muon_scale) { continue; }
        run_list_option(run, header, i, changes);
    }
    if (!state_get_text(header, "precision", then, sizeof(then))) { snprintf(then, sizeof(then), "fp32"); }
    if (strcmp(then, precision) != 0) {
        run_add_change(&changes->list, "the precision", then, precision);
        changes->is_programs = trainer_facts.precision != NULL || strcmp(then, "bf16") == 0;
    }
    if (run->record.arithmetic[0] != '\0' && state_get_text(header, "arithmetic", then, sizeof(then)) &&
        strcmp(then, run->record.arithmetic) != 0) {
        run_add_change(&changes->list, "the arithmetic", then, run->record.arithmetic);
    }
    if (!state_get_u64(header, "data", &data) || data != run->train.fingerprint) {
        text_printf(&changes->list, "%sthe training data has changed", changes->list.used > 0 ? "; " : "");
    }
}

// Refuses a run that differs from the saved run, unless --allow-changes is given. The message names every difference.
static inline bool run_compare_options(TrainRun *run, const StateHeader *header, Error *error) {
    RunChanges changes = {{NULL, 0, 0, false}, false};
    Text *list = &changes.list;
    run_list_changes(run, header, &changes);
    bool ok = !list->failed || fail(error, "out of memory");
    if (ok && list->used > 0 && run->options.allow_changes) {
        logger_event(&run->logger, "resuming with changes: %s", list->data);
    } else if (ok && list->used > 0) {
        ok = fail(error, "--resume (-y): %s: %.3000s; %s", run->options.out_dir, list->data,
                  changes.is_programs ? "another program saved this run: --allow-changes goes on with this one"
                                      : "give these as they were, or --allow-changes to go on");
    }
    text_free(list);
    return ok;
}

// ---- Resuming ----

// Reads the run's position from the facts of the state `path`, and bounds each number: a step updates the weights at
// most once, and the tokens that were read are a whole number, too. An older training state may lack --seq-len.
static inline bool run_restore_position(TrainRun *run, const StateHeader *header, const char *path, Error *error) {
    int64_t T = run->options.seq_len, old_T = T, next;
    bool has_length = state_find(header, "option.seq-len") != NULL;
    if ((has_length && !state_get_number(header, path, "option.seq-len", 1, run->config.max_seq_len, &old_T, error)) ||
        !state_get_number(header, path, "step", 0, LARGEST_WHOLE, &run->step, error) ||
        !state_get_number(header, path, "updates", 0, run->step, &run->updates, error) ||
        !state_get_number(header, path, "next_sequence", 0, LARGEST_WHOLE / old_T, &next, error)) {
        return false;
    }
    run->next_sequence = next * old_T / T; // if the length has changed, the run goes on at the token that was next
    return true;
}

// Loads one checkpoint. Each rank reads its part. Together they find out whether the whole checkpoint is undamaged.
static inline bool run_read_checkpoint(TrainRun *run, int64_t step, CheckpointReader *reader, StateHeader *header,
                                       Error *error) {
    bool ok = checkpoint_read_begin(reader, run->options.out_dir, step, &run->config, header, error);
    if (!run_agree(run, ok, error)) { return false; }
    reader->skips_moments = reader->optimizer != train_options_optimizer(&run->options);
    ok = run_restore_position(run, header, reader->state.file.path, error) &&
         trainer_read_state(run->trainer, run, reader, error);
    CheckpointSums sums = reader->sums;
    if (!run_agree(run, ok, error) || !run_sum(run, sums.sums, CHECKPOINT_ARRAYS, error)) { return false; }
    ok = checkpoint_read_end(reader, &sums, run->kept.sections, run->kept.count, error);
    if (!run_agree(run, ok, error)) { return false; }
    run->folder.saved_step = step;
    if (reader->skips_moments) { run->updates = 0; } // another optimizer begins anew
    return true;
}

// Loads the newest checkpoint that is whole. Skips damaged checkpoints and says so.
static inline bool run_resume(TrainRun *run, Error *error) {
    const RunFound *found = &run->found;
    CheckpointReader reader;
    StateHeader header;
    for (int i = found->first_usable; i < found->num_checkpoints; i++) {
        if (i > 0) {
            logger_event(&run->logger, "going back to the checkpoint of step %lld", (long long)found->checkpoints[i]);
        }
        reader.model.fd = reader.state.file.fd = -1; // no file is open yet
        if (run_read_checkpoint(run, found->checkpoints[i], &reader, &header, error)) {
            if (!run_agree(run, run_compare_options(run, &header, error), error)) { return false; }
            if (reader.skips_moments) { logger_event(&run->logger, "the optimizer begins anew, from moments of zero"); }
            return true;
        }
        checkpoint_read_abort(&reader);
        if (ranks_are_broken(run->ranks.comm)) { return false; } // not damage
        run_report_damage(run, error);
    }
    run_fail_all_damaged(run, error, error);
    return run_fail_together(run, error);
}

#endif // LLMC_RUN_STATE_H
