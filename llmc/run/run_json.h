// run.json: one JSON object, the record that a run folder holds of itself, for people and for plots. Rank 0 writes it
// whole or not at all, when a run begins or goes on, and once more at its end:
//   format, program, version, git      which program wrote it, and from which revision of its source it was built
//   command, directory                 how and where it was started
//   precision, arithmetic, options     every option by its long name, with defaults; arithmetic: of the CPU
//   model, tokens_per_step, steps, sequences_per_epoch, data
//   hardware, versions                 of rank 0's machine; a GPU for each rank
//   starts                             the first start and each --resume: time, step, command; and its end, if it ended
//                                      in order and another start followed
//   end                                how the last start ended; none: it still runs, or was killed
// Unknown values are left out. The next start takes over `starts`.
#ifndef LLMC_RUN_JSON_H
#define LLMC_RUN_JSON_H

#include <sys/utsname.h>

#include "llmc/base/json.h"
#include "llmc/run/train_run.h"

#define RUN_JSON_NAME "run.json"
#define RUN_JSON_FORMAT 1
#define RUN_JSON_MAX_BYTES ((int64_t)64 << 20)
#define RUN_MAX_VERSIONS 16

// A GPU as its rank sees it.
typedef struct {
    char name[128];
    int64_t memory_bytes;
    int32_t major, minor; // compute capability
} RunGpu;

// Facts about the machines of a run. The trainer fills in what only it knows.
typedef struct {
    RunGpu *gpus; // (num_gpus), of all ranks, on rank 0; NULL on the CPU
    int num_gpus;
    int num_machines;    // that the ranks run on
    char attention[128]; // its kernels on the GPUs; "" on the CPU
    struct {
        const char *name;
        char text[128];
    } versions[RUN_MAX_VERSIONS];
    int num_versions;
} RunMachine;

PRINTF_LIKE(3, 4)
static inline void run_machine_version(RunMachine *machine, const char *name, const char *format, ...) {
    if (machine->num_versions == RUN_MAX_VERSIONS) { return; }
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(machine->versions[machine->num_versions].text, sizeof(machine->versions[0].text), format, arguments);
    va_end(arguments);
    machine->versions[machine->num_versions++].name = name;
}

// ---- Facts about the machine that every program can find ----

// Finds the processor's name in /proc/cpuinfo ("" if there is none).
static inline void run_cpu_name(char *text, size_t size) {
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

// Fills in compiler, libraries and kernel, which every program has.
static inline void run_machine_common(RunMachine *machine) {
    struct utsname system;
#if defined(__clang__)
    run_machine_version(machine, "compiler", "clang %d.%d.%d", __clang_major__, __clang_minor__, __clang_patchlevel__);
#elif defined(__GNUC__)
    run_machine_version(machine, "compiler", "gcc %d.%d.%d", __GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__);
#endif
#if defined(__GLIBC__)
    run_machine_version(machine, "libc", "glibc %d.%d", __GLIBC__, __GLIBC_MINOR__);
#endif
#if defined(_OPENMP)
    run_machine_version(machine, "openmp", "%d", _OPENMP);
#endif
    if (uname(&system) == 0) { run_machine_version(machine, "kernel", "%.30s %.90s", system.sysname, system.release); }
}

static inline void run_json_time(JsonOut *out, const char *key) {
    char text[40] = "";
    time_t now = time(NULL);
    struct tm parts;
    if (gmtime_r(&now, &parts) == NULL || strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts) == 0) { return; }
    json_out_text(out, key, text);
}

// ---- The parts ----

// revision: 40 digits, and "-dirty" if files had changed; "": none.
static inline void run_json_git(JsonOut *out, const char *revision) {
    char digits[64];
    size_t n = strcspn(revision, "-");
    if (n == 0 || n >= sizeof(digits)) { return; }
    path_copy(digits, revision, n);
    json_out_open(out, "git", '{', JSON_FLAT);
    json_out_text(out, "revision", digits);
    json_out_bool(out, "dirty", revision[n] != '\0');
    json_out_close(out);
}

// Writes each option that this program takes, with its current value.
static inline void run_json_options(JsonOut *out, const TrainRun *run) {
    const ArgSpec *specs = train_programs[trainer_facts.on_gpu].specs;
    json_out_open(out, "options", '{', JSON_LINES);
    for (int i = 0; i < NUM_TRAIN_OPTIONS; i++) {
        const void *place = (const char *)&run->options + specs[i].place;
        if (!train_options_takes(i, trainer_facts.on_gpu)) { continue; }
        switch (specs[i].type) {
        case ARG_INT: json_out_int(out, specs[i].name, *(const int64_t *)place); break;
        case ARG_REAL: json_out_real(out, specs[i].name, *(const double *)place); break;
        case ARG_TEXT:
        case ARG_CHOICE: json_out_text(out, specs[i].name, *(const char *const *)place); break;
        case ARG_FLAG: json_out_bool(out, specs[i].name, *(const bool *)place); break;
        }
    }
    json_out_close(out);
}

static inline void run_json_model(JsonOut *out, const GPT2Config *c) {
    json_out_open(out, "model", '{', JSON_FLAT);
    json_out_int(out, "layers", c->num_layers);
    json_out_int(out, "heads", c->num_heads);
    json_out_int(out, "channels", c->channels);
    json_out_int(out, "context", c->max_seq_len);
    json_out_int(out, "vocab", c->vocab_size);
    json_out_int(out, "padded_vocab", c->padded_vocab_size);
    json_out_int(out, "parameters", gpt2_num_params(c) - (int64_t)(c->padded_vocab_size - c->vocab_size) * c->channels);
    json_out_close(out);
}

static inline void run_json_loader(JsonOut *out, const char *key, const DataLoader *loader) {
    json_out_open(out, key, '{', JSON_FLAT);
    json_out_int(out, "files", loader->num_shards);
    json_out_int(out, "tokens", loader->num_tokens);
    json_out_hex(out, "fingerprint", loader->fingerprint);
    json_out_close(out);
}

static inline void run_json_data(JsonOut *out, const TrainRun *run) {
    json_out_int(out, "tokens_per_step", run->options.total_batch);
    json_out_int(out, "steps", run->num_steps);
    if (run_has_train(run)) { json_out_int(out, "sequences_per_epoch", run->train.num_sequences); }
    json_out_open(out, "data", '{', JSON_LINES);
    if (run_has_train(run)) { run_json_loader(out, "train", &run->train); }
    if (run_has_val(run)) { run_json_loader(out, "val", &run->val); }
    json_out_close(out);
}

static inline void run_json_gpus(JsonOut *out, const RunMachine *machine) {
    if (machine->gpus == NULL) { return; }
    json_out_open(out, "gpus", '[', JSON_LINES);
    for (int i = 0; i < machine->num_gpus; i++) {
        const RunGpu *gpu = &machine->gpus[i];
        char capability[32];
        snprintf(capability, sizeof(capability), "%d.%d", (int)gpu->major, (int)gpu->minor);
        json_out_open(out, NULL, '{', JSON_FLAT);
        json_out_text(out, "name", gpu->name);
        json_out_int(out, "memory_bytes", gpu->memory_bytes);
        json_out_text(out, "compute_capability", capability);
        json_out_close(out);
    }
    json_out_close(out);
}

static inline void run_json_machine(JsonOut *out, const TrainRun *run, const RunMachine *machine) {
    char host[256] = "", cpu[256];
    int64_t pages = (int64_t)sysconf(_SC_PHYS_PAGES), page = (int64_t)sysconf(_SC_PAGESIZE);
    int64_t cores = (int64_t)sysconf(_SC_NPROCESSORS_ONLN);
    run_cpu_name(cpu, sizeof(cpu));
    json_out_open(out, "hardware", '{', JSON_LINES);
    if (gethostname(host, sizeof(host) - 1) == 0) { json_out_text(out, "host", host); }
    if (cpu[0] != '\0') { json_out_text(out, "cpu", cpu); }
    if (cores > 0) { json_out_int(out, "cores", cores); }
    if (pages > 0 && page > 0) { json_out_int(out, "memory_bytes", pages * page); }
    run_json_gpus(out, machine);
    json_out_int(out, "ranks", run->ranks.num_ranks);
    json_out_int(out, "machines", machine->num_machines);
    if (machine->attention[0] != '\0') { json_out_text(out, "attention", machine->attention); }
    json_out_close(out);
    json_out_open(out, "versions", '{', JSON_LINES);
    for (int i = 0; i < machine->num_versions; i++) {
        json_out_text(out, machine->versions[i].name, machine->versions[i].text);
    }
    json_out_close(out);
}

// ---- Starts ----

// Copies the starts of an earlier run.json (json_add_again). The last start gets its end.
static inline void run_json_copy_starts(JsonOut *out, const Json *json, int starts) {
    int end = json_find(json, 0, "end");
    const JsonValue *values = json->values;
    for (int i = starts + 1; i < values[starts].next; i = values[i].next) {
        bool last =
            values[i].next == values[starts].next && end >= 0 && values[i].count > 0 && json_find(json, i, "end") < 0;
        json_out_raw(out, NULL, json->text + values[i].start, (size_t)(values[i].end - values[i].start - last));
        if (!last) { continue; }
        text_words(&out->text, ", \"end\": ");
        json_add_again(&out->text, json->text + values[end].start, (size_t)(values[end].end - values[end].start));
        text_words(&out->text, "}");
    }
}

// A resumed run continues the starts of its run.json. It replaces a damaged run.json and says so.
static inline void run_json_take_starts(JsonOut *out, TrainRun *run, const char *path) {
    Json json;
    Error error;
    if (!run->options.resume || !path_exists(path)) { return; }
    bool ok = json_load(&json, path, RUN_JSON_MAX_BYTES, &error);
    int starts = ok ? json_find(&json, 0, "starts") : -1;
    bool listed = starts >= 0 && json.values[starts].kind == JSON_ARRAY;
    for (int i = starts + 1; listed && i < json.values[starts].next; i = json.values[i].next) {
        listed = json.values[i].kind == JSON_OBJECT;
    }
    if (ok && !listed) { ok = fail(&error, "%s: no list of starts in it", path); }
    if (ok) { run_json_copy_starts(out, &json, starts); }
    json_free(&json);
    if (!ok) { logger_event(&run->logger, "%s; written anew, the earlier starts are lost", error.text); }
}

static inline void run_json_starts(JsonOut *out, TrainRun *run, const char *path) {
    json_out_open(out, "starts", '[', JSON_LINES);
    run_json_take_starts(out, run, path);
    json_out_open(out, NULL, '{', JSON_FLAT);
    run_json_time(out, "time");
    json_out_int(out, "from_step", run->step);
    json_out_texts(out, "command", run->record.arguments, run->record.num_arguments);
    json_out_close(out);
    json_out_close(out);
}

// ---- Writing ----

// Writes the record. The record stays open, because the end comes later.
static inline bool run_json_write(const TrainRun *run, const JsonOut *record, Error *error) {
    const char *path = run->record.path;
    Text whole = text_copy(&record->text);
    text_words(&whole, "\n}\n");
    bool ok = !whole.failed || fail(error, "%s: out of memory", path);
    ok = ok && write_whole_file(path, whole.data, (int64_t)whole.used, error);
    text_free(&whole);
    return ok;
}

static inline bool run_json_compose(TrainRun *run, const RunMachine *machine, Error *error) {
    char directory[MAX_PATH_BYTES];
    JsonOut *out = &run->record.json;
    const TrainerFacts *facts = &trainer_facts;
    if (!path_join(run->record.path, run->options.out_dir, RUN_JSON_NAME, error)) { return false; }
    json_out_begin(out);
    json_out_int(out, "format", RUN_JSON_FORMAT);
    json_out_text(out, "program", facts->program);
    json_out_text(out, "version", GPT2C_VERSION);
    run_json_git(out, facts->revision());
    json_out_texts(out, "command", run->record.arguments, run->record.num_arguments);
    if (getcwd(directory, sizeof(directory)) != NULL) { json_out_text(out, "directory", directory); }
    json_out_text(out, "precision", run_precision(run));
    if (run->record.arithmetic[0] != '\0') { json_out_text(out, "arithmetic", run->record.arithmetic); }
    run_json_options(out, run);
    run_json_model(out, &run->config);
    run_json_data(out, run);
    run_json_machine(out, run, machine);
    run_json_starts(out, run, run->record.path);
    return run_json_write(run, out, error);
}

// Writes the record of the start again, with the end. status: "done", "stopped" or "failed". message: one line, or "".
// hash: of the weights, or NULL.
static inline bool run_json_write_end(const TrainRun *run, const char *status, const char *message,
                                      const uint64_t *hash, Error *error) {
    JsonOut out = run->record.json;
    out.text = text_copy(&run->record.json.text);
    json_out_open(&out, "end", '{', JSON_FLAT);
    run_json_time(&out, "time");
    json_out_int(&out, "step", run->step);
    json_out_text(&out, "status", status);
    if (message[0] != '\0') { json_out_text(&out, "message", message); }
    if (hash != NULL) { json_out_hex(&out, "weights_hash", *hash); }
    json_out_real(&out, "seconds", round(1e3 * logger_seconds(&run->logger)) / 1e3); // as speed.log rounds
    json_out_close(&out);
    bool ok = run_json_write(run, &out, error);
    json_out_free(&out);
    return ok;
}

// The watch of several ranks calls this before it ends the process.
static inline void run_json_note_failure(void *run, const char *message) {
    Error ignored;
    run_json_write_end((const TrainRun *)run, "failed", message, NULL, &ignored);
}

// Writes run.json at the start of a run, when its log has begun (run_begin_log). machine: what the trainer knows of the
// machines, zero elsewhere. All ranks call this.
static inline bool run_json_begin(TrainRun *run, RunMachine *machine, Error *error) {
    machine->num_machines = (int)max_i64(1, machine->num_machines);
    run_machine_common(machine);
    bool writes = run_writes_files(run) && run_leads(run);
    bool ok = !writes || run_json_compose(run, machine, error);
    if (ok && writes) { run_on_failure(run, run_json_note_failure); }
    free(machine->gpus);
    return run_agree(run, ok, error);
}

// Writes how the run has ended (run_json_write_end). Does nothing for a run that has not begun, or the second time.
static inline bool run_json_end(TrainRun *run, const char *status, const char *message, const uint64_t *hash,
                                Error *error) {
    if (run->record.json.text.data == NULL) { return true; }
    run_on_failure(run, NULL);
    bool ok = run_json_write_end(run, status, message, hash, error);
    json_out_free(&run->record.json);
    return ok;
}

// Writes that the run has failed. Ignores a failure to write this.
static inline void run_json_fail(TrainRun *run, const Error *why) {
    Error ignored;
    run_json_end(run, "failed", why->text, NULL, &ignored);
}

#endif // LLMC_RUN_JSON_H
