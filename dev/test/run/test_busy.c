// When a run says that the machine is busy: series of fractions of the peak, and the steps at which it says so.
#include "dev/test/test.h"
#include "llmc/run/train_loop.h"

// A part of a series: so many steps with this fraction.
typedef struct {
    int steps;
    double fraction; // 0: unknown
} Part;

typedef struct {
    const char *name;
    Part parts[5];
    const char *says; // the steps, counted from 1
} Series;

static const Series series[] = {
    {"a quiet machine", {{300, 0.45}}, ""},
    {"a peak that is unknown", {{300, 0}}, ""},
    {"19 slow steps", {{50, 0.45}, {19, 0.05}, {50, 0.45}}, ""},
    {"20 slow steps", {{50, 0.45}, {20, 0.05}, {50, 0.45}}, " 70"},
    {"a machine that stays busy", {{50, 0.45}, {900, 0.05}}, " 70"},
    {"just a third", {{50, 0.45}, {100, 0.1501}}, ""},
    {"just below a third", {{50, 0.45}, {100, 0.1499}}, " 70"},
    {"a row that one step interrupts", {{50, 0.45}, {19, 0.05}, {1, 0.3}, {19, 0.05}}, ""},
    {"steps in between that do not count", {{50, 0.45}, {10, 0.05}, {7, 0}, {10, 0.05}}, " 77"},
    {"two episodes", {{50, 0.45}, {30, 0.05}, {1, 0.4}, {30, 0.05}}, " 70"},
    {"the best comes late", {{50, 0.1}, {1, 0.45}, {30, 0.1}}, " 71"},
    {"a run that is slow from its start", {{100, 0.05}}, ""},
    {"no number", {{50, 0.45}, {30, (double)NAN}}, ""},
};

TEST(test_series) {
    for (size_t i = 0; i < sizeof(series) / sizeof(series[0]); i++) {
        char says[100] = "";
        Busy busy = {0.0, 0, false, 0};
        int step = 0;
        for (int part = 0; part < 5; part++) {
            for (int k = 0; k < series[i].parts[part].steps; k++) {
                step++;
                size_t n = strlen(says);
                if (busy_take(&busy, step, series[i].parts[part].fraction)) {
                    snprintf(says + n, sizeof(says) - n, " %d", step);
                }
            }
        }
        CHECK(t, strcmp(says, series[i].says) == 0, "%s: says so at%s, expected%s", series[i].name, says,
              series[i].says);
    }
}

// A trainer that computes nothing. Its first step, and each step that follows a validation, seem 20 times as fast as
// they are. From step `slow` on, a step has a tenth of the speed.
struct Trainer {
    int slow;
};

static bool validate_nothing(Trainer *t, TrainRun *run, Round round, Error *error) {
    return (void)t, (void)run, (void)round, (void)error, true;
}
static double no_loss(Trainer *t, TrainRun *run, Round last) { return (void)t, (void)run, (void)last, 1.0; }

static bool seem_to_train(Trainer *t, TrainRun *run, Error *error) {
    StepInfo info = {run->step, 1.0, 1.0, 1e-3, 0.1, 64, run->step < t->slow ? 0.4 : 0.04, (double)NAN};
    if (run->step == 7 || run->step % 10 == 0) { info.peak_fraction *= 20; }
    run->step++;
    return run_log_step(run, &info, error);
}

// Runs steps 7 to 106, with a validation before each 10th step. Writes what the run says.
static void run_steps(int slow, char *out, size_t size) {
    static StopRequest stop;
    static TrainRun run;
    TrainerOps ops;
    Trainer trainer = {slow};
    Error error;
    memset(&ops, 0, sizeof(ops));
    memset(&run, 0, sizeof(run));
    ops.facts.stop = &stop;
    ops.train_step = seem_to_train, ops.validate_batch = validate_nothing, ops.validation_loss = no_loss;
    logger_init(&run.logger);
    run.logger.out = tmpfile();
    run.ops = &ops, run.trainer = &trainer, run.num_ranks = run.ranks.num_ranks = 1, run.config.vocab_size = 300;
    run.options.out_dir = "", run.options.val_every = 10;
    run.val.num_sequences = run.options.batch_size = run.options.val_batches = 1;
    run.step = 7, run.num_steps = 107;
    loop_train(&run, &error);
    rewind(run.logger.out);
    out[fread(out, 1, size - 1, run.logger.out)] = '\0';
    fclose(run.logger.out);
}

// A run says it once, in one line. The first step and those that follow a validation do not count.
TEST(test_a_run_says_so) {
    static const char says[] = "\nstep 73: for 20 steps less than a third of the best step's speed (40.0% of peak, now "
                               "4.0%): the machine is busy with other programs\n";
    static char out[1 << 16];
    run_steps(1000, out, sizeof(out));
    CHECK(t, strstr(out, "busy") == NULL && strstr(out, "val loss") != NULL, "a quiet machine: %s", out);
    run_steps(50, out, sizeof(out));
    const char *line = strstr(out, says);
    CHECK(t, line != NULL && strstr(line + strlen(says), "busy") == NULL, "%s", out);
}
