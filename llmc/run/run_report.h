// Tells a person about a run: the table at the start, the memory plan, a loss that is not a number, a sample, the end.
// Both trainers use these words.
#ifndef LLMC_RUN_REPORT_H
#define LLMC_RUN_REPORT_H

#include "llmc/base/rand.h"
#include "llmc/base/text.h"
#include "llmc/files/model_file.h"
#include "llmc/model/memory_plan.h"
#include "llmc/run/run_state.h"
#include "llmc/run/sampler.h"

// ---- The beginning ----

static inline void run_print_data(const char *what, const char *name, const DataLoader *loader) {
    say(stdout, "%s %s: %lld tokens, %lld sequences\n", what, name, (long long)loader->num_tokens,
        (long long)loader->num_sequences);
}

static inline void run_print_eval(const TrainRun *run, int which) {
    const EvalLoader *eval = &run->evals[which];
    if (!eval_is_open(eval)) { return; }
    say(stdout, "%-11s %s: %lld of %lld questions, %lld sequences in batches of %d x %d tokens\n",
        run_evals[which].name, eval->path, (long long)eval->num_examples, (long long)eval->in_file,
        (long long)eval->num_sequences, eval->B, eval->T);
    if (eval->num_cut == 0) { return; }
    say(stdout, "            %lld of them are longer, up to %lld, and lose the beginning of their context\n",
        (long long)eval->num_cut, (long long)eval->longest);
}

// Prints the model and the data as options, files and defaults settle them.
static inline void run_print_inputs(const TrainRun *run) {
    const TrainOptions *o = run->options;
    const ModelConfig *c = &run->config;
    char from[MAX_PATH_BYTES + 100];
    if (run_resumes(run)) {
        snprintf(from, sizeof(from), "the checkpoint of step %lld", (long long)run->folder.resumes);
    } else {
        snprintf(from, sizeof(from), "%s", run_is_new(run) ? "the seed" : run->model_file->path);
    }
    say(stdout, "gpt2.c %s\n", GPT2C_VERSION);
    char shared[40] = "";
    if (c->num_kv_heads != c->num_heads) { snprintf(shared, sizeof(shared), " (%d of keys)", c->num_kv_heads); }
    say(stdout, "model       %d layers, %d heads%s, %d channels, context %d, vocabulary %d (padded %d)\n",
        c->num_layers, c->num_heads, shared, c->channels, c->max_seq_len, c->vocab_size, c->padded_vocab_size);
    say(stdout, "parameters  %lld, from %s\n", (long long)run_num_params(run), from);
    say(stdout, "tokenizer   %s\n", run->tokenizer.note);
    if (run_has_train(run)) { run_print_data("train data ", o->train_data, &run->train); }
    if (run_has_val(run)) {
        run_print_data("val data   ", o->val_data[0] ? o->val_data : "(the last part of it)", &run->val);
    } else if (run->texts.train != NULL && o->val_fraction > 0.0) {
        say(stdout,
            "val data    none: validation and training need a sequence of %lld tokens each, the text has %lld; give "
            "--val-data, more text or a smaller --seq-len\n",
            (long long)o->seq_len + 1, (long long)run->train.num_tokens);
    }
    for (int i = 0; i < NUM_EVALS; i++) { run_print_eval(run, i); }
}

// Prints the steps and the optimizer of a run that trains.
static inline void run_print_training(const TrainRun *run) {
    const TrainOptions *o = run->options;
    if (!run_has_train(run) || run->num_steps == 0) { return; }
    char ranks[32] = "";
    if (run->data.ranks > 1) { snprintf(ranks, sizeof(ranks), " x %d ranks", run->data.ranks); }
    say(stdout, "batch       %lld sequences x %lld tokens%s x %lld micro-batches = %lld tokens a step\n",
        (long long)o->batch_size, (long long)o->seq_len, ranks, (long long)run->micro_batches,
        (long long)o->total_batch);
    say(stdout, "steps       %lld, %.2f epochs\n", (long long)run->num_steps,
        (double)run->num_steps * (double)run_step_sequences(run) / (double)run->train.num_sequences);
    bool muon = train_options_optimizer(o) == OPTIMIZER_MUON;
    if (muon) {
        Schedule schedule = train_options_schedule(o, o->muon_lr, run->num_steps);
        say(stdout, "optimizer   Muon for the matrices of the blocks, learning rate %s, momentum %g, scale %s\n",
            schedule_text(&schedule).text, (double)MUON_MOMENTUM, o->muon_scale);
    }
    say(stdout, "%s, learning rate %s, weight decay %g\n",
        muon ? "            AdamW for the rest" : "optimizer   AdamW", schedule_text(&run->schedule).text,
        o->weight_decay);
}

// Prints the memory of a plan, then the sum that it is: its categories, less what buffers of different lifetimes share.
// where: "" on the CPU, " on the GPU" beside other plans.
static inline void run_print_memory(const MemoryPlan *plan, const char *where) {
    double scale, shared = -(double)plan->total;
    bytes_unit(plan->total, &scale);
    say(stdout, "memory      %s%s, planned\n", bytes_text(plan->total).text, where);
    say(stdout, "           ");
    for (int c = PLAN_PARAMETER; c <= PLAN_DATA; c++) {
        double part = (double)plan_category_bytes(plan, (PlanCategory)c);
        shared += part;
        if (part > 0.0) {
            say(stdout, " %c %.2f %s", c == PLAN_PARAMETER ? '=' : '+', part / scale, plan_categories[c]);
        }
    }
    if (shared > 0.0) { say(stdout, " - %.2f shared", shared / scale); }
    say(stdout, "\n");
}

// Prints the run before it starts. A trainer then adds its own lines.
static inline void run_print_config(const TrainRun *run) {
    run_print_inputs(run);
    if (run->choices.note[0] != '\0') { say(stdout, "auto        %s\n", run->choices.note); }
    run_print_training(run);
}

// Prints what the run takes of memory and disk.
static inline void run_print_needs(TrainRun *run, const MemoryPlan *plan) {
    run_print_memory(plan, trainer_facts.on_gpu ? " on the GPU" : "");
    if (run_writes_files(run)) { say(stdout, "output      %s\n", run->options->out_dir); }
    int64_t checkpoint_bytes = run_checkpoint_bytes(run);
    if (checkpoint_bytes < 0) { return; }
    say(stdout, "checkpoints about %s each", bytes_text(checkpoint_bytes).text);
    if (run_best_bytes(run) > 0) { say(stdout, ", " CHECKPOINT_BEST_NAME " %s", bytes_text(run_best_bytes(run)).text); }
    say(stdout, "\n");
}

// Prints the work of a CPU run's step, whether its plan fits into this machine, and which program plans for GPUs.
static inline void run_print_machine_fit(const TrainRun *run, const MemoryPlan *plan) {
    const char *name = trainer_facts.program;
    int64_t memory = machine_memory("");
    if (run_kind(run) == RUN_TRAINS) { say(stdout, "a step      %.4g FLOPs\n", run_step_flops(run)); }
    say(stdout, "fits        %s, %s of %s\n", plan->total <= memory ? "yes" : "no", bytes_text(plan->total).text,
        bytes_text(memory).text);
    say(stdout, "            %scu --plan plans for GPUs, and so does %semu, which needs no GPU\n", name, name);
}

// Prints for --plan all the buffers of the machine that computes.
static inline void run_print_buffers(const MemoryPlan *plan) {
    say_lines(stdout, trainer_facts.on_gpu ? "\nOn the GPU\n" : "\n");
    plan_print(plan, stdout);
}

// ---- Steps ----

// Reports that a loss or gradient norm of step `step` allows no update. The run ends there.
static inline bool run_fail_nonfinite(const TrainRun *run, int64_t step, const char *what, double value,
                                      const char *place, Error *error) {
    char saved[MAX_PATH_BYTES + 64] = "nothing was saved", number[32];
    if (run->folder.saved >= 0) {
        snprintf(saved, sizeof(saved), "the last checkpoint in %s is that of step %lld", run->options->out_dir,
                 (long long)run->folder.saved);
    }
    snprintf(number, sizeof(number), isnan(value) ? "NaN" : "%.3g", value);
    return fail(error, "step %lld: the %s is %s, first found in %s; %s; try a lower --lr, more --warmup or --grad-clip",
                (long long)step + 1, what, number, place, saved);
}

// Begins the line of the current step in the log. The caller fills in loss, norm and time.
static inline StepInfo run_begin_step(const TrainRun *run, double lr) {
    StepInfo info = {run->step, 0.0, 0.0, lr, 0.0, run->options->total_batch, 0.0};
    return info;
}

// Takes a step's loss and norm into the statistics. Returns true, and says why, if its update must be skipped.
static inline bool run_skips_update(TrainRun *run, const StepInfo *info) {
    const TrainOptions *o = run->options;
    char why[96];
    bool skip =
        outliers_skip(&run->kept.outliers, info->loss, info->norm, o->skip_loss_z, o->skip_grad_z, why, sizeof(why));
    if (skip) { logger_event(&run->logger, "step %lld: update skipped, %s", (long long)info->step + 1, why); }
    return skip;
}

static inline bool run_log_step(TrainRun *run, const StepInfo *info, Error *error) {
    run->record.train_loss = info->loss, run->record.train_step = info->step + 1;
    return logger_step(&run->logger, info, error);
}

// ---- Samples ----

// Writes a token's text, or its id if there is no tokenizer.
static inline void run_print_token(const TrainRun *run, TextOut *out, int token) {
    int bytes = 0;
    const uint8_t *text = run->tokenizer.is_open ? tokenizer_decode(&run->tokenizer.tokenizer, token, &bytes) : NULL;
    if (text == NULL) { say(out->out, "%d ", token); }
    text_out_write(out, text, bytes);
}

#endif // LLMC_RUN_REPORT_H
