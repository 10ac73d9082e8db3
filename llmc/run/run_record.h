// run.jsonl: the record that a run folder holds of itself, for people and for plots. Rank 0 appends one line of JSON at
// each start of the run, and one at each end. Nothing of it is read back.
//   start   event, format, time, step, program, version, revision (of the source), command, directory, options (all,
//           and what the run has settled, as texts), model, tokens_per_step, steps, sequences_per_epoch, data,
//           hardware, versions
//   end     event, time, step, status ("done", "stopped" or "failed"), message, tokens, seconds (since the start),
//           train_loss, val_loss and lowest_val_loss, each {"step", "loss"}, after so many steps,
//           HellaSwag and MMLU, weights_hash
// A start without an end was killed, ended because another rank was lost, or still runs. Unknown values are left out.
// --overwrite begins a new file. A run of 0 steps appends a line "evaluation" to another file (record_evaluation).
#ifndef LLMC_RUN_RECORD_H
#define LLMC_RUN_RECORD_H

#include "llmc/base/json_out.h"
#include "llmc/files/model_file.h"
#include "llmc/run/run_state.h"

#define RUN_RECORD_NAME "run.jsonl"
#define RUN_RECORD_FORMAT 2
#define RUN_EVALUATION_NAME "evaluation.jsonl"

// Facts about the machines of a run: the members of two objects. A trainer begins them with what only it knows.
typedef struct {
    Text hardware, versions;
} RunMachine;

static inline void record_machine(RunMachine *machine, const TrainRun *run) {
    char host[256] = "";
    int64_t memory = (int64_t)sysconf(_SC_PHYS_PAGES) * (int64_t)sysconf(_SC_PAGESIZE);
    if (gethostname(host, sizeof(host) - 1) == 0) { json_put_text(&machine->hardware, "host", host); }
    json_put(&machine->hardware, "cores", "%ld", sysconf(_SC_NPROCESSORS_ONLN));
    json_put(&machine->hardware, "memory_bytes", "%lld", (long long)memory);
    json_put(&machine->hardware, "ranks", "%d", run->connected);
    json_put_text(&machine->versions, "compiler", __VERSION__);
}

static inline void record_time(Text *out) {
    char text[40] = "";
    time_t now = time(NULL);
    struct tm parts;
    if (gmtime_r(&now, &parts) == NULL || strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts) == 0) { return; }
    json_put_text(out, "time", text);
}

// Quotes the list of options and of settled values (run_list_options).
static inline void record_options(Text *out, const TrainRun *run) {
    Text list = {NULL, 0, 0, false};
    run_list_options(run, true, '\0', '\0', &list);
    json_put(out, "options", "{");
    const char *name = list.data;
    while (!list.failed && name < list.data + list.used) {
        const char *value = name + strlen(name) + 1;
        bool settled = strncmp(name, "--", 2) != 0;
        json_put_text(out, settled ? name : name + 2, value);
        name = value + strlen(value) + 1;
    }
    text_words(out, "}");
    out->failed = out->failed || list.failed;
    text_free(&list);
}

static inline void record_loader(Text *out, const char *key, const DataLoader *loader) {
    json_put(out, key, "{\"files\": %d, \"tokens\": %lld, \"fingerprint\": \"%016llx\"}", (int)loader->num_shards,
             (long long)loader->num_tokens, (unsigned long long)loader->fingerprint);
}

static inline void record_event(Text *out, const TrainRun *run, const char *event) {
    json_put(out, NULL, "{");
    json_put_text(out, "event", event);
    if (strcmp(event, "start") == 0) { json_put(out, "format", "%d", RUN_RECORD_FORMAT); }
    record_time(out);
    json_put(out, "step", "%lld", (long long)run->step);
}

// Appends the line and frees it.
static inline bool record_append(const TrainRun *run, Text *line, Error *error) {
    text_words(line, "}");
    text_words(line, "\n");
    bool ok = line->failed ? fail(error, "%s: out of memory", run->record.file.path)
                           : log_append(&run->record.file, line->data, line->used, error);
    text_free(line);
    return ok;
}

static inline bool record_start(TrainRun *run, const RunMachine *machine, Error *error) {
    char directory[MAX_PATH_BYTES];
    Text line = {NULL, 0, 0, false};
    const RunRecord *record = &run->record;
    const ModelConfig *c = &run->config;
    if (!log_open(&run->record.file, run->options->out_dir, RUN_RECORD_NAME, run->options->overwrite, error)) {
        return false;
    }
    record_event(&line, run, "start");
    json_put_text(&line, "program", trainer_facts.program);
    json_put_text(&line, "version", GPT2C_VERSION);
    json_put_text(&line, "revision", trainer_facts.revision());
    json_put(&line, "command", "[");
    for (int i = 0; i < record->num_arguments; i++) { json_put_text(&line, NULL, record->arguments[i]); }
    text_words(&line, "]");
    if (getcwd(directory, sizeof(directory)) != NULL) { json_put_text(&line, "directory", directory); }
    record_options(&line, run);
    json_put(&line, "model",
             "{\"layers\": %d, \"heads\": %d, \"channels\": %d, \"context\": %d, \"vocab\": %d, \"padded_vocab\": %d, "
             "\"parameters\": %lld}",
             c->num_layers, c->num_heads, c->channels, c->max_seq_len, c->vocab_size, c->padded_vocab_size,
             (long long)run_num_params(run));
    json_put(&line, "tokens_per_step", "%lld", (long long)run->options->total_batch);
    json_put(&line, "steps", "%lld", (long long)run->num_steps);
    if (run_has_train(run)) { json_put(&line, "sequences_per_epoch", "%lld", (long long)run->train.num_sequences); }
    json_put(&line, "data", "{");
    if (run_has_train(run)) { record_loader(&line, "train", &run->train); }
    if (run_has_val(run)) { record_loader(&line, "val", &run->val); }
    text_words(&line, "}");
    json_put(&line, "hardware", "{%s}", machine->hardware.data);
    json_put(&line, "versions", "{%s}", machine->versions.data);
    line.failed = line.failed || machine->hardware.failed || machine->versions.failed;
    return record_append(run, &line, error);
}

// Records the start of a run, when its log has begun (run_begin_log). All ranks call this. Frees *machine.
static inline bool run_record_start(TrainRun *run, RunMachine *machine, Error *error) {
    record_machine(machine, run);
    run->record.began = seconds_now();
    bool writes = run_writes_files(run) && run_leads(run);
    bool ok = !writes || record_start(run, machine, error);
    text_free(&machine->hardware);
    text_free(&machine->versions);
    return ranks_agree(run->comm, ok, error);
}

// Records a result, if there is one.
static inline void record_result(Text *out, const char *key, const char *what, double value, int64_t step) {
    if (step < 0 || !isfinite(value)) { return; }
    json_put(out, key, "{\"step\": %lld, \"%s\": %.9g}", (long long)step, what, value);
}

static inline void record_accuracies(Text *out, const TrainRun *run) {
    for (int i = 0; i < NUM_EVALS; i++) {
        record_result(out, run_evals[i].name, "accuracy", run->record.accuracy[i], run->record.accuracy_step[i]);
    }
}

// Records how the run has ended. status: "done", "stopped" or "failed". message: one line, or "". hash: of the weights,
// or NULL. Does nothing for a run that has not begun, or the second time.
static inline bool run_record_end(TrainRun *run, const char *status, const char *message, const uint64_t *hash,
                                  Error *error) {
    Text line = {NULL, 0, 0, false};
    if (run->record.file.fd < 0) { return true; }
    record_event(&line, run, "end");
    json_put_text(&line, "status", status);
    if (message[0] != '\0') { json_put_text(&line, "message", message); }
    json_put(&line, "tokens", "%lld", (long long)(run->step * run->options->total_batch));
    json_put(&line, "seconds", "%.3f", seconds_now() - run->record.began);
    const Lowest *lowest = &run->kept.lowest;
    record_result(&line, "train_loss", "loss", run->record.train_loss, run->record.train_step);
    record_result(&line, "val_loss", "loss", run->record.val_loss, run->record.val_step);
    record_result(&line, "lowest_val_loss", "loss", lowest->loss, lowest->source != 0 ? lowest->step : -1);
    record_accuracies(&line, run);
    if (hash != NULL) { json_put(&line, "weights_hash", "\"%016llx\"", (unsigned long long)*hash); }
    bool ok = record_append(run, &line, error);
    log_close(&run->record.file);
    return ok;
}

// Describes what a run of 0 steps has evaluated, on what, and the results.
static inline void record_evaluation(Text *out, const TrainRun *run) {
    const TrainOptions *o = run->options;
    const RunRecord *record = &run->record;
    double loss = record->val_loss;
    record_event(out, run, "evaluation");
    json_put_text(out, "model", run->model_file != NULL ? run->model_file->path : o->init);
    if (record->val_step >= 0 && isfinite(loss)) {
        json_put_text(out, "data", o->val_data[0] != '\0' ? o->val_data : o->train_data);
        json_put(out, "sequences", "%lld", (long long)run_val_sequences(run));
        json_put(out, "sequences_in_data", "%lld", (long long)run->val.num_sequences);
        json_put(out, "tokens", "%lld", (long long)(run_val_sequences(run) * o->seq_len));
        json_put(out, "loss", "%.9g", loss);
        json_put(out, "perplexity", "%.9g", exp(loss));
        if (record->bits_per_byte > 0.0) { json_put(out, "bits_per_byte", "%.9g", record->bits_per_byte); }
    }
    record_accuracies(out, run);
    text_words(out, "}");
    text_words(out, "\n");
}

// Writes the results of a run of 0 steps as a line: to --json, otherwise to evaluation.jsonl in --out-dir.
static inline bool run_record_evaluation(const TrainRun *run, Error *error) {
    const TrainOptions *o = run->options;
    const char *name = o->json[0] != '\0' ? path_name(o->json) : RUN_EVALUATION_NAME;
    char dir[MAX_PATH_BYTES];
    LogFile file;
    Text line = {NULL, 0, 0, false};
    if (o->json[0] == '\0' && o->out_dir[0] == '\0') { return true; }
    path_copy(dir, o->out_dir, strlen(o->out_dir));
    if (o->json[0] != '\0') { path_parent(dir, o->json); }
    record_evaluation(&line, run);
    bool ok = !line.failed || fail(error, "out of memory");
    if (ok && strcmp(o->json, "-") == 0) {
        fwrite(line.data, 1, line.used, run->texts.out);
    } else if (ok && make_directories(dir, error) && log_open(&file, dir, name, false, error)) {
        ok = log_append(&file, line.data, line.used, error);
        log_close(&file);
    } else {
        ok = false;
    }
    text_free(&line);
    return ok;
}

#endif // LLMC_RUN_RECORD_H
