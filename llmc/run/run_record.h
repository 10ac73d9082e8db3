// run.jsonl: the record that a run folder holds of itself, for people and for plots. Rank 0 appends one line of JSON at
// each start of the run, and one at each end. Nothing of it is read back.
//   start   event, format, time, step, program, version, git, command, directory, precision, arithmetic (of the CPU),
//           options (all, as texts), model, tokens_per_step, steps, sequences_per_epoch, data, hardware, versions
//   end     event, time, step, status ("done", "stopped" or "failed"), message, weights_hash, seconds of training
// A start without an end was killed, or still runs. Unknown values are left out. --overwrite begins a new file.
#ifndef LLMC_RUN_RECORD_H
#define LLMC_RUN_RECORD_H

#include <sys/utsname.h>

#include "llmc/base/json_out.h"
#include "llmc/run/train_run.h"

#define RUN_RECORD_NAME "run.jsonl"
#define RUN_RECORD_FORMAT 2

// Facts about the machines of a run: the members of two objects. A trainer begins them with what only it knows.
typedef struct {
    Text hardware, versions;
} RunMachine;

// Finds the processor's name in /proc/cpuinfo ("" if there is none).
static inline void record_cpu_name(char *text, size_t size) {
    char line[512];
    text[0] = '\0';
    FILE *file = fopen("/proc/cpuinfo", "r");
    while (file != NULL && text[0] == '\0' && fgets(line, sizeof(line), file) != NULL) {
        char *colon = strchr(line, ':');
        if (colon == NULL || strncmp(line, "model name", 10) != 0) { continue; }
        colon += 1 + strspn(colon + 1, " \t");
        colon[strcspn(colon, "\n")] = '\0';
        snprintf(text, size, "%s", colon);
    }
    if (file != NULL) { fclose(file); }
}

static inline void record_versions(Text *versions) {
    struct utsname system;
#if defined(__clang__)
    json_put(versions, "compiler", "\"clang %d.%d.%d\"", __clang_major__, __clang_minor__, __clang_patchlevel__);
#else
    json_put(versions, "compiler", "\"gcc %d.%d.%d\"", __GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__);
#endif
    if (uname(&system) == 0) { json_put_text(versions, "kernel", system.release); }
}

static inline void record_hardware(Text *hardware, const TrainRun *run) {
    char host[256] = "", cpu[256];
    int64_t memory = (int64_t)sysconf(_SC_PHYS_PAGES) * (int64_t)sysconf(_SC_PAGESIZE);
    record_cpu_name(cpu, sizeof(cpu));
    if (gethostname(host, sizeof(host) - 1) == 0) { json_put_text(hardware, "host", host); }
    if (cpu[0] != '\0') { json_put_text(hardware, "cpu", cpu); }
    json_put(hardware, "cores", "%ld", sysconf(_SC_NPROCESSORS_ONLN));
    json_put(hardware, "memory_bytes", "%lld", (long long)memory);
    json_put(hardware, "ranks", "%d", run->connected);
}

static inline void record_time(Text *out) {
    char text[40] = "";
    time_t now = time(NULL);
    struct tm parts;
    if (gmtime_r(&now, &parts) == NULL || strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts) == 0) { return; }
    json_put_text(out, "time", text);
}

// revision: 40 digits, and "-dirty" if files had changed; "": unknown.
static inline void record_git(Text *out, const char *revision) {
    int digits = (int)strcspn(revision, "-");
    const char *dirty = revision[digits] == '-' ? "true" : "false";
    if (digits > 0) { json_put(out, "git", "{\"revision\": \"%.*s\", \"dirty\": %s}", digits, revision, dirty); }
}

// Adds each option that this program takes, with its settled value.
static inline void record_options(Text *out, const TrainRun *run) {
    char text[MAX_PATH_BYTES];
    json_put_open(out, "options", "{");
    for (int i = 0; i < NUM_TRAIN_OPTIONS; i++) {
        if (!train_options_takes(i, trainer_facts.on_gpu)) { continue; }
        train_options_text(&run->options, i, text, sizeof(text));
        json_put_text(out, train_options_name(i), text);
    }
    json_put_close(out, "}");
}

static inline void record_model(Text *out, const GPT2Config *c) {
    int64_t padding = (int64_t)(c->padded_vocab_size - c->vocab_size) * c->channels;
    json_put(out, "model",
             "{\"layers\": %d, \"heads\": %d, \"channels\": %d, \"context\": %d, \"vocab\": %d, \"padded_vocab\": %d, "
             "\"parameters\": %lld}",
             c->num_layers, c->num_heads, c->channels, c->max_seq_len, c->vocab_size, c->padded_vocab_size,
             (long long)(gpt2_num_params(c) - padding));
}

static inline void record_loader(Text *out, const char *key, const DataLoader *loader) {
    json_put(out, key, "{\"files\": %d, \"tokens\": %lld, \"fingerprint\": \"%016llx\"}", (int)loader->num_shards,
             (long long)loader->num_tokens, (unsigned long long)loader->fingerprint);
}

static inline void record_data(Text *out, const TrainRun *run) {
    json_put(out, "tokens_per_step", "%lld", (long long)run->options.total_batch);
    json_put(out, "steps", "%lld", (long long)run->num_steps);
    if (run_has_train(run)) { json_put(out, "sequences_per_epoch", "%lld", (long long)run->train.num_sequences); }
    json_put_open(out, "data", "{");
    if (run_has_train(run)) { record_loader(out, "train", &run->train); }
    if (run_has_val(run)) { record_loader(out, "val", &run->val); }
    json_put_close(out, "}");
}

static inline void record_event(Text *out, const TrainRun *run, const char *event) {
    json_put_open(out, NULL, "{");
    json_put_text(out, "event", event);
    if (strcmp(event, "start") == 0) { json_put(out, "format", "%d", RUN_RECORD_FORMAT); }
    record_time(out);
    json_put(out, "step", "%lld", (long long)run->step);
}

// Appends the line and frees it.
static inline bool record_append(const TrainRun *run, Text *line, Error *error) {
    json_put_close(line, "}");
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
    if (!log_open(&run->record.file, run->options.out_dir, RUN_RECORD_NAME, run->options.overwrite, error)) {
        return false;
    }
    record_event(&line, run, "start");
    json_put_text(&line, "program", trainer_facts.program);
    json_put_text(&line, "version", GPT2C_VERSION);
    record_git(&line, trainer_facts.revision());
    json_put_open(&line, "command", "[");
    for (int i = 0; i < record->num_arguments; i++) { json_put_text(&line, NULL, record->arguments[i]); }
    json_put_close(&line, "]");
    if (getcwd(directory, sizeof(directory)) != NULL) { json_put_text(&line, "directory", directory); }
    json_put_text(&line, "precision", run_precision(run));
    if (record->arithmetic[0] != '\0') { json_put_text(&line, "arithmetic", record->arithmetic); }
    record_options(&line, run);
    record_model(&line, &run->config);
    record_data(&line, run);
    json_put(&line, "hardware", "{%s}", machine->hardware.data);
    json_put(&line, "versions", "{%s}", machine->versions.data);
    line.failed = line.failed || machine->hardware.failed || machine->versions.failed;
    return record_append(run, &line, error);
}

// status: "done", "stopped" or "failed". message: one line, or "". hash: of the weights, or NULL.
static inline bool record_end(const TrainRun *run, const char *status, const char *message, const uint64_t *hash,
                              Error *error) {
    Text line = {NULL, 0, 0, false};
    record_event(&line, run, "end");
    json_put_text(&line, "status", status);
    if (message[0] != '\0') { json_put_text(&line, "message", message); }
    if (hash != NULL) { json_put(&line, "weights_hash", "\"%016llx\"", (unsigned long long)*hash); }
    json_put(&line, "seconds", "%.3f", logger_seconds(&run->logger));
    return record_append(run, &line, error);
}

// The watch of several ranks calls this before it ends the process.
static inline void record_note_failure(void *run, const char *message) {
    Error ignored;
    record_end((const TrainRun *)run, "failed", message, NULL, &ignored);
}

// Records the start of a run, when its log has begun (run_begin_log). All ranks call this. Frees *machine.
static inline bool run_record_start(TrainRun *run, RunMachine *machine, Error *error) {
    record_hardware(&machine->hardware, run);
    record_versions(&machine->versions);
    bool writes = run_writes_files(run) && run_leads(run);
    bool ok = !writes || record_start(run, machine, error);
    if (ok && writes) { ranks_on_failure(run->comm, record_note_failure, run); }
    text_free(&machine->hardware);
    text_free(&machine->versions);
    return ranks_agree(run->comm, ok, error);
}

// Records how the run has ended (record_end). Does nothing for a run that has not begun, or the second time.
static inline bool run_record_end(TrainRun *run, const char *status, const char *message, const uint64_t *hash,
                                  Error *error) {
    if (run->record.file.fd < 0) { return true; }
    ranks_on_failure(run->comm, NULL, run);
    bool ok = record_end(run, status, message, hash, error);
    log_close(&run->record.file);
    return ok;
}

#endif // LLMC_RUN_RECORD_H
