// Fuzz target: an evaluation as the CPU trainer makes it, from the file of questions over the plan, the batches and the
// model to the score. Each completion's mean loss must be what the model gives when the sequence is alone, and the
// score must follow from the means.
#ifndef TRAIN_GPT2_INCLUDED
#define TRAIN_GPT2_INCLUDED
#define main train_gpt2_main
#include "train_gpt2.c"
#undef main
#endif

#include "dev/test/data/eval_file.h"
#include "dev/test/fuzz.h"

static const ModelConfig config = GPT2_CONFIG(80, 101, 128, 1, 1, 4); // maxT, V, Vp, L, NH, C

size_t fuzz_seed_input(int which, uint8_t *buffer, size_t capacity) {
    static EvalFile file;
    const int examples[] = {1, 2, 5};
    if (which >= 3) { return 0; }
    eval_file_begin(&file, 2);
    for (int e = 0; e < examples[which]; e++) {
        int completions = e % 3 == 2 ? 2 : 4;
        eval_file_begin_example(&file, e % completions, completions);
        eval_file_tokens(&file, 1 + 20 * e, 5); // the last contexts are longer than the model's
        for (int i = 0; i < completions; i++) { // of an even example all are alike: the first of equals counts
            int kind = e % 2 == 0 ? 0 : i;
            eval_file_tokens(&file, 1 + (e + kind) % 5, 10 * kind + e);
        }
        eval_file_end_example(&file);
    }
    return fuzz_seed(file.data, file.bytes, buffer, capacity);
}

// The mean loss of a sequence that is evaluated alone, with as many inputs as the sequence has.
static double mean_alone(Trainer *t, const EvalLoader *eval, int64_t sequence) {
    Model *model = &t->model;
    int n = (int)min_i64(eval_inputs(&eval->sequences[sequence]), eval->T), begin, end;
    double sum = 0.0;
    EvalBatch one = {sequence, 1};
    eval_read(eval, one, model->tokens, model->targets);
    model_forward(model, 1, n, 0.0f, false);
    eval_scored(eval, sequence, &begin, &end);
    for (int j = begin; j < end; j++) { sum += model->acts.losses.data[j]; }
    return sum / (end - begin);
}

static void check_means(Trainer *t, const EvalLoader *eval) {
    for (int64_t sequence = 0; sequence < eval->num_sequences; sequence++) {
        double mean = t->model.eval_means[sequence];
        require(mean > 0.0 && mean == mean_alone(t, eval, sequence));
    }
}

// The line that the run prints has the score that its means give.
static void check_score(const TrainRun *run, const double *means) {
    const EvalLoader *eval = &run->evals[EVAL_HELLASWAG];
    char line[256];
    int64_t correct = 0;
    for (int64_t e = 0; e < eval->num_examples; e++) {
        const EvalExample *example = &eval->examples[e];
        const double *of = means + example->first_sequence;
        bool best = true;
        for (int i = 0; i < example->num_completions; i++) {
            best = best && (of[example->label] < of[i] || (of[example->label] == of[i] && example->label <= i));
        }
        correct += best;
    }
    rewind(run->logger.out);
    require(fgets(line, sizeof(line), run->logger.out) != NULL);
    require(ends_with(line, format(" (%lld/%lld)\n", (long long)correct, (long long)eval->num_examples)));
}

static void evaluate(Trainer *t, TrainRun *run, TrainOptions *options) {
    require(settle(t, run, options, &error));
    plan_run(t, run);
    require(plan_allocate(&t->plan, &error));
    param_init_all(t->model.params, &config, 7);
    rewind(run->logger.out);
    require(run_ask(run, EVAL_HELLASWAG, &error));
    check_score(run, t->model.eval_means);
    check_means(t, &run->evals[EVAL_HELLASWAG]);
    plan_free(&t->plan);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static Trainer trainer;
    static TrainRun run;
    static TrainOptions options;
    error.text[0] = '\0';
    if (run.trainer == NULL) {
        logger_init(&run.logger);
        run.logger.out = tmpfile();
        require(run.logger.out != NULL);
        run.trainer = &trainer, run.config = config;
        run.num_ranks = run.data.ranks = run.connected = 1;
        run.options = &options, run.folder.resumes = -1;
        options.batch_size = 4, options.seq_len = 48, options.threads = 1, options.hellaswag = true;
        options.precision = "fp32", options.optimizer = "adamw", options.cpu_kernels = "auto", options.plan = "0";
        options.schedule = "cosine", options.mmlu = "";
    }
    options.hellaswag_data = fuzz_temp_file(data, size);
    options.eval_examples = size % 3 == 0 ? 2 : 0;
    if (run_open_evals(&run, &error)) {
        evaluate(&trainer, &run, &options);
    } else {
        require(strstr(error.text, options.hellaswag_data) != NULL && strchr(error.text, '\n') == NULL);
    }
    eval_close(&run.evals[EVAL_HELLASWAG]);
    return 0;
}
