// Validation and questions: their rounds, the best model, and what is shown and logged of them.
#ifndef LLMC_RUN_EVALUATE_H
#define LLMC_RUN_EVALUATE_H

#include "llmc/run/run_state.h"

// Asks all ranks whether one of them must stop.
static inline bool run_ask_to_stop(TrainRun *run, Error *error) {
    StopRequest *stop = trainer_facts.stop;
    bool any = false;
    if (!stop->by_agreement) { return true; }
    if (!ranks_any(run->comm, stop->asked != 0, &any, error)) { return false; }
    stop->agreed = stop->agreed || any;
    return true;
}

// ---- Rounds ----

static inline Round run_first_round(const TrainRun *run, int64_t batches) {
    Round round = {batches, ceil_div_i64(batches, run->data.ranks), -1, 0};
    return round;
}

// Goes on to the next round. Returns false after the last round, or if the run stops or fails.
static inline bool run_next_round(TrainRun *run, Round *round, bool *ok, Error *error) {
    if (++round->number == round->rounds) { return false; }
    int64_t batch = round->number * run->data.ranks + run->data.rank;
    round->batch = batch < round->batches ? batch : 0;
    *ok = run_ask_to_stop(run, error);
    return *ok && !run_is_stopping();
}

// Shows on a terminal how far an evaluation in batches of B is. The GPU may be behind the host.
static inline void run_show_progress(TrainRun *run, const char *name, Round round, int64_t B, int64_t sequences) {
    int64_t done = (round.number + 1 - trainer_facts.rounds_ahead) * run->data.ranks * B;
    char text[80];
    if (done <= 0) { return; }
    snprintf(text, sizeof(text), "%s %lld of %lld sequences", name, (long long)min_i64(done, sequences),
             (long long)sequences);
    logger_show(&run->logger, text);
}

// ---- Validation ----

// Computes the bits that the model needs for a byte of the validation's text, from the mean loss of a token in nats.
// *bits is 0 if there is no tokenizer.
static inline bool run_bits_per_byte(TrainRun *run, double loss, double *bits, Error *error) {
    int64_t T = run->options->seq_len, sequences = run_val_sequences(run), bytes = 0;
    int32_t *tokens = (int32_t *)malloc((size_t)(2 * T) * sizeof(int32_t));
    bool ok = tokens != NULL || fail(error, "out of memory");
    for (int64_t i = 0; ok && i < sequences && run->tokenizer.is_open; i++) {
        ok = run_read_val(run, i, 1, tokens, tokens + T, error);
        bytes += ok ? tokenizer_count_bytes(&run->tokenizer.tokenizer, tokens + T, T) : 0;
    }
    free(tokens);
    *bits = bytes > 0 ? loss * (double)(sequences * T) / (log(2.0) * (double)bytes) : 0.0;
    return ok;
}

// Logs the loss of a validation. A run that only evaluates shows its perplexity and bits per byte as well.
static inline bool run_log_validation(TrainRun *run, double loss, Error *error) {
    char text[160];
    size_t size = sizeof(text),
           used = (size_t)snprintf(text, size, "(%lld of %lld sequences)", (long long)run_val_sequences(run),
                                   (long long)run->val.num_sequences);
    double *bits = &run->record.bits_per_byte;
    run->record.val_loss = loss, run->record.val_step = run->step;
    if (run_kind(run) != RUN_TRAINS && run_leads(run)) {
        if (!run_bits_per_byte(run, loss, bits, error)) { return false; }
        used += (size_t)snprintf(text + used, size - used, " | perplexity %.4f", exp(loss));
        if (*bits > 0.0) { snprintf(text + used, size - used, " | %.4f bits per byte", *bits); }
    }
    return logger_val(&run->logger, run->step, loss, text, error);
}

// Computes and logs the mean loss over the validation sequences, which never change, and keeps the model if no loss was
// lower before. Returns early if the run stops.
static inline bool run_validate(TrainRun *run, Error *error) {
    int64_t B = run->options->batch_size, sequences = run_val_sequences(run);
    Round round = run_first_round(run, ceil_div_i64(sequences, B));
    bool ok = true;
    while (run_next_round(run, &round, &ok, error)) {
        if (!trainer_validate_batch(run->trainer, run, round, error)) { return false; }
        run_show_progress(run, "validation", round, B, sequences);
    }
    if (!ok || run_is_stopping()) { return ok; }
    double loss = trainer_validation_loss(run->trainer, run, round);
    int64_t which[] = {sequences, run->options->seq_len, run->options->val_batches >= 0}; // the last: the first ones
    uint64_t source = hash64_join(run->val.fingerprint, which, sizeof(which));
    bool lower = lowest_take(&run->kept.lowest, source, run->step, loss);
    return run_log_validation(run, loss, error) &&
           (!lower || !run_writes_files(run) || run_write(run, RUN_WRITES_BEST, error));
}

// ---- Questions ----

// Logs the score of an evaluation. Returns early if the run stops.
static inline bool run_ask(TrainRun *run, int which, Error *error) {
    const EvalLoader *eval = &run->evals[which];
    Round round = run_first_round(run, eval_num_batches(eval));
    bool ok = true;
    while (run_next_round(run, &round, &ok, error)) {
        trainer_evaluate_batch(run->trainer, run, which, round);
        run_show_progress(run, run_evals[which].name, round, eval->B, eval->num_sequences);
    }
    if (!ok || run_is_stopping()) { return ok; }
    int64_t correct = eval_judge(eval, trainer_evaluation_means(run->trainer, run, which, round));
    run->record.accuracy[which] = (double)correct / (double)eval->num_examples;
    run->record.accuracy_step[which] = run->step;
    return logger_eval(&run->logger, run->step, run_evals[which].name, run_evals[which].log_key, correct,
                       eval->num_examples, error);
}

static inline bool run_ask_all(TrainRun *run, Error *error) {
    for (int which = 0; which < NUM_EVALS && !run_is_stopping(); which++) {
        if (eval_is_open(&run->evals[which]) && !run_ask(run, which, error)) { return false; }
    }
    return true;
}

#endif // LLMC_RUN_EVALUATE_H
