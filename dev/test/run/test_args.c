// The command line: strictness of values, the exact words of every refusal, help, and the trainers' option table.
#include "llmc/run/train_options.h"
#include "dev/test/test.h"

#include <unistd.h>

#define MAX_WORDS 64

// Parses a command line given as words separated by single spaces ("~" stands for an empty word). The words are kept in
// `memory`, into which text options point. Help and version go to /dev/null, notes to `notes`. For the CPU trainer, the
// batch is settled.
typedef struct {
    char memory[8192], notes[1024];
    TrainOptions options;
    ArgsOutcome outcome;
    Error error;
} Parsed;

static bool parse(Parsed *p, bool gpu_trainer, const char *words) {
    char *argv[MAX_WORDS + 1];
    int argc = 0;
    snprintf(p->memory, sizeof(p->memory), "train_gpt2 %s", words);
    for (char *word = strtok(p->memory, " "); word != NULL && argc < MAX_WORDS; word = strtok(NULL, " ")) {
        argv[argc++] = strcmp(word, "~") == 0 ? word + 1 : word;
    }
    argv[argc] = NULL;
    fflush(stdout);
    FILE *notes = tmpfile();
    int screen = dup(STDOUT_FILENO), errors = dup(STDERR_FILENO);
    if (notes == NULL || freopen("/dev/null", "w", stdout) == NULL) { return false; }
    dup2(fileno(notes), STDERR_FILENO);
    p->error.text[0] = '\0';
    bool ok = train_options_parse(&p->options, argv[0], argc, argv, gpu_trainer, &p->outcome, &p->error);
    fflush(stdout);
    dup2(screen, STDOUT_FILENO);
    dup2(errors, STDERR_FILENO);
    close(screen);
    close(errors);
    rewind(notes);
    p->notes[fread(p->notes, 1, sizeof(p->notes) - 1, notes)] = '\0';
    fclose(notes);
    if (!ok || gpu_trainer || p->outcome != ARGS_RUN) { return ok; }
    if (p->options.seq_len == 0) { p->options.seq_len = 64; } // as a trainer does, when it knows the model
    return train_options_check_batch(&p->options, 1, &p->error);
}

typedef struct {
    const char *words, *message;
} Refusal;

static void check_refusals(Test *t, bool gpu_trainer, const Refusal *refusals, size_t count) {
    static Parsed p;
    for (size_t i = 0; i < count; i++) {
        bool ok = parse(&p, gpu_trainer, refusals[i].words);
        CHECK(t, !ok, "accepted: %s", refusals[i].words);
        CHECK(t, strcmp(p.error.text, refusals[i].message) == 0, "%s\n    said:     %s\n    expected: %s",
              refusals[i].words, p.error.text, refusals[i].message);
    }
}
#define CHECK_REFUSALS(t, gpu, refusals) check_refusals((t), (gpu), (refusals), sizeof(refusals) / sizeof(refusals[0]))

// What is refused as the value of each type, beside what is out of range.
static const char *const no_values[][12] = {
    [ARG_INT] = {"", "-", "foo", "1e4", "8x", "0x10", "+4", "4.0", " 4", "18446744073709551620"},
    [ARG_REAL] = {"", "-", "foo", "nan", "inf", "1e400", "0x1p3", "1e", " 1"},
    [ARG_TEXT] = {NULL},
    [ARG_CHOICE] = {"", "|", "foo"},
    [ARG_FLAG] = {"", "2", "-1", "yes", "01"},
};

// Each row takes the ends of its range and its words. It refuses what lies one further, and no_values.
TEST(test_bounds) {
    static TrainOptions options;
    for (int i = 0; i < 2 * NUM_TRAIN_OPTIONS; i++) {
        const ArgSpec *spec = i < NUM_TRAIN_OPTIONS ? &train_specs_cpu[i] : &train_specs_gpu[i - NUM_TRAIN_OPTIONS];
        bool real = spec->type == ARG_REAL;
        char value[1 << 17];
        for (int at = 0; at < 4; at++) { // below, the ends, above
            double end = at < 2 ? spec->min : spec->max, beyond = at < 2 ? -HUGE_VAL : HUGE_VAL;
            bool taken = at == 1 || at == 2;
            if (!taken) { end = real ? nextafter(end, beyond) : end + (at < 2 ? -1 : 1); }
            if (spec->type == ARG_CHOICE || spec->type == ARG_FLAG || (spec->type == ARG_TEXT && end < 0)) { continue; }
            snprintf(value, sizeof(value), real ? "%.17g" : "%.0f", end);
            if (spec->type == ARG_TEXT) { memset(value, 'x', (size_t)end), value[(size_t)end] = '\0'; }
            CHECK(t, args_store(spec, &options, value) == taken, "--%s %.40s", spec->name, value);
        }
        for (const char *const *text = no_values[spec->type]; *text != NULL; text++) {
            CHECK(t, !args_store(spec, &options, *text), "--%s '%s' accepted", spec->name, *text);
        }
        size_t length;
        for (const char *word = spec->value; spec->type == ARG_CHOICE && *word != '\0';
             word += length + (word[length] == '|')) {
            length = strcspn(word, "|");
            snprintf(value, sizeof(value), "%.*s", (int)length, word);
            CHECK(t, args_store(spec, &options, value), "--%s %s refused", spec->name, value);
            snprintf(value, sizeof(value), "%.*s", (int)length - 1, word);
            CHECK(t, !args_store(spec, &options, value), "--%s %s accepted", spec->name, value);
        }
        CHECK(t, spec->type != ARG_CHOICE || !args_store(spec, &options, spec->value), "--%s: all words", spec->name);
    }
}

// The words of a refusal, for each type.
TEST(test_malformed_values) {
    static const Refusal refusals[] = {
        {"-i x -b foo", "--batch-size (-b): got 'foo', expected a whole number from 1 to 65536 (default 4)"},
        {"-i x --batch-size=", "--batch-size (-b): got '', expected a whole number from 1 to 65536 (default 4)"},
        {"-i x -b -", "--batch-size (-b): got '-', expected a whole number from 1 to 65536 (default 4)"},
        {"-i x -x -2", "--steps (-x): got '-2', expected a whole number from -1 to 1000000000 (default -1)"},
        {"-i x -l -0.1", "--lr (-l): got '-0.1', expected a number from 0 to 100 (default 3e-4)"},
        {"-i x --optimizer Muon", "--optimizer: got 'Muon', expected one of adamw|muon (default adamw)"},
        {"-i x -y 2", "--resume (-y): got '2', expected 0 or 1 (default 0)"},
        {"-i x --resume=yes", "--resume (-y): got 'yes', expected 0 or 1 (default 0)"},
        {"-i ~", "--train-data (-i): got 0 bytes, expected FILES of 1 to 4000 bytes"},
    };
    CHECK_REFUSALS(t, false, refusals);
    CHECK_REFUSALS(t, true, refusals);
}

TEST(test_malformed_options) {
    static const Refusal refusals[] = {
        {"--batchsize 4", "'--batchsize': unknown option; the nearest is --batch-size (--help all lists all)"},
        {"--batch=4", "'--batch': unknown option; the nearest is --batch-size (--help all lists all)"},
        {"--batch_size 4", "'--batch_size': unknown option; the nearest is --batch-size (--help all lists all)"},
        {"-batch-size 4", "'-batch-size': unknown option; the nearest is --batch-size (--help all lists all)"},
        {"--stpes=4", "'--stpes': unknown option; the nearest is --steps (--help all lists all)"},
        {"-lr 4", "'-lr': unknown option; the nearest is --lr (--help all lists all)"},
        {"--recieve", "'--recieve': unknown option (--help all lists all)"},
        {"--frobnicate 4", "'--frobnicate': unknown option (--help all lists all)"},
        {"--temprature 1", "'--temprature': unknown option; the nearest is --temperature (--help all lists all)"},
        {"--hlep", "'--hlep': unknown option; the nearest is --help (--help all lists all)"},
        {"-nx 3", "'-nx': unknown option (--help all lists all)"},
        {"-b4", "'-b4': unknown option (--help all lists all)"},
        {"--=3", "'--': unknown option (--help all lists all)"},
        {"-i", "--train-data (-i): value missing, expected FILES of 1 to 4000 bytes"},
        {"-i --lr 3", "--train-data (-i): value missing, expected FILES of 1 to 4000 bytes"},
        {"-i x -l --warmup=3", "--lr (-l): value missing, expected a number from 0 to 100 (default 3e-4)"},
        {"-h 2", "--hellaswag (-h): got '2', expected 0 or 1 (default 0)"},
        {"-h -1", "--hellaswag (-h): got '-1', expected 0 or 1 (default 0)"},
        {"-h steps", "--hellaswag (-h): got 'steps', expected 0 or 1 (default 0)"},
        {"foo", "'foo': unexpected word; options begin with a dash, patterns such as 'x*.bin' need quotes"},
        {"-i a.bin b.bin",
         "'b.bin': unexpected word; options begin with a dash, patterns such as 'x*.bin' need quotes"},
        {"-z 1", "--zero-stage (-z): is an option of the GPU trainer (train_gpt2cu; without a GPU: train_gpt2emu)"},
        {"-pm mpi", "--nccl-init (-pi): is an option of the GPU trainer (train_gpt2cu; without a GPU: train_gpt2emu)"},
    };
    static const Refusal of_the_cpu[] = {
        {"-i x --precision fp32", "--precision: " TRAIN_CPU_ONLY},
        {"-i x --cpu-kernels auto", "--cpu-kernels: " TRAIN_CPU_ONLY},
    };
    CHECK_REFUSALS(t, false, refusals);
    CHECK_REFUSALS(t, true, of_the_cpu);
}

// Of an option given twice the last value counts. A note says so if the values differ.
TEST(test_given_twice) {
    static const struct {
        const char *words, *notes;
        double lr;
    } rows[] = {
        {"-i x --lr 1 --lr 2", "--lr (-l): given more than once; the last value, '2', is taken", 2},
        {"-i x --lr=2 -l 0.5", "--lr (-l): given more than once; the last value, '0.5', is taken", 0.5},
        {"-i x -l 3 --lr 2 -l 3",
         "--lr (-l): given more than once; the last value, '2', is taken\ntrain_gpt2: --lr (-l): given more than "
         "once; the last value, '3', is taken",
         3},
        {"-i x -l 3e-4 --lr 0.0003", "", 3e-4},
        {"-i x --lr 1 -i y -l 1", "--train-data (-i): given more than once; the last value, 'y', is taken", 1},
    };
    static Parsed p;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char expected[256] = "";
        if (rows[i].notes[0] != '\0') { snprintf(expected, sizeof(expected), "train_gpt2: %s\n", rows[i].notes); }
        CHECK(t, parse(&p, false, rows[i].words), "%s: %s", rows[i].words, p.error.text);
        CHECK(t, p.options.lr == rows[i].lr, "%s: %g", rows[i].words, p.options.lr);
        CHECK(t, strcmp(p.notes, expected) == 0, "%s\n    said: %s    not: %s", rows[i].words, p.notes, expected);
    }
    CHECK(t, parse(&p, false, "-i x -o run --resume -y 0") && !p.options.resume, "a flag: %s", p.error.text);
    CHECK(t, !parse(&p, false, "-i x --lr 2 --lr foo") && p.notes[0] == '\0', "refused and noted: %s", p.notes);
}

// The names that users of other trainers type are answered with ours.
TEST(test_foreign_options) {
    static const Refusal refusals[] = {
        {"--learning-rate 1", "'--learning-rate': unknown option; give --lr (-l)"},
        {"--learning_rate=1", "'--learning_rate': unknown option; give --lr (-l)"},
        {"--epochs 3", "'--epochs': unknown option; give --steps (-x): -1, the default, is once through the data"},
        {"--max_iters=5", "'--max_iters': unknown option; give --steps (-x)"},
        {"--n_layer 5", "'--n_layer': unknown option; give --layers"},
        {"--optim muon", "'--optim': unknown option; give --optimizer adamw or muon"},
        {"--matrix_lr 0.02", "'--matrix_lr': unknown option; give --muon-lr, with --optimizer muon"},
        {"--compile=False", "'--compile': unknown option; leave it out: make has compiled the program"},
    };
    CHECK_REFUSALS(t, false, refusals);
    CHECK_REFUSALS(t, true, refusals);
}

// No name is ours or stands there twice, and every option in an answer exists.
TEST(test_foreign_names) {
    char word[128];
    const ArgsProgram *program = &train_programs[1];
    for (const char *const(*row)[2] = program->foreign; row[0][0] != NULL; row++) {
        size_t length;
        for (const char *name = row[0][0]; *name != '\0'; name += length + (name[length] == ' ')) {
            length = strcspn(name, " ");
            snprintf(word, sizeof(word), "--%.*s", (int)length, name);
            CHECK(t, length > 1 && args_find(program, word, length + 2) < 0, "%s is an option of ours", word);
            CHECK(t, args_find_foreign(program, word + 2) == row[0][1], "%s stands in two rows", word);
        }
        for (const char *at = row[0][1]; (at = strchr(at, '-')) != NULL; at += length) {
            length = 1 + strspn(at + 1, "-abcdefghijklmnopqrstuvwxyz12");
            bool option = (at == row[0][1] || at[-1] == ' ' || at[-1] == '(') && (at[1] < '0' || at[1] > '9');
            bool of_mpirun = strncmp(at, "-np", 3) == 0;
            CHECK(t, !option || of_mpirun || args_find(program, at, length) >= 0, "%.*s in an answer", (int)length, at);
        }
    }
}

TEST(test_contradictions) {
    static const Refusal refusals[] = {
        {"", "--train-data (-i): missing; give a text file or token shards to train on, or --steps 0 to only sample"},
        {"-i x -y", "--resume (-y): needs --out-dir (-o)"},
        {"-i x -o d --resume --overwrite", "--resume (-y): needs no --overwrite"},
        {"-i x -o d --allow-changes", "--allow-changes: needs --resume (-y)"},
        {"-i x -o d -nm 2", "--keep-major (-nm): needs --keep (-nk) other than 0"},
        {"-i x --prompt y -s 0", "--prompt: needs --sample-every (-s) other than 0"},
        {"-x 0 -o d", "--out-dir (-o): needs --steps (-x) other than 0"},
        {"-i x --eval-examples 5", "--eval-examples: needs --hellaswag (-h) or --mmlu"},
        {"-i x --muon-warmup 300", "--muon-warmup: needs --optimizer muon"},
        {"-i x -h 1 -v 0", "--hellaswag (-h): needs --val-every (-v) other than 0 or --steps 0"},
        {"-i x --mmlu y -v 0", "--mmlu: needs --val-every (-v) other than 0 or --steps 0"},
    };
    static const Refusal of_gpus[] = {
        {"-i x -pr 1 -pn 2", "--process-rank (-pr): needs --nccl-init tcp or --nccl-init fs"},
        {"-i x -pi tcp -pn 2", "--nccl-init tcp: needs --server-ip (-ps)"},
        {"-i x -pi tcp -ps a", "--nccl-init tcp: needs --num-processes (-pn) other than 0"},
        {"-x 0 --attention cudnn", "--attention cudnn: needs --steps (-x) other than 0"},
        {"-i x --deterministic 0 --attention own", "--deterministic 0: needs no --attention own"},
        {"-i x --auto -d 4096 -x 0", "--auto: needs --steps (-x) other than 0"},
        {"-i x -r 1 --gpu-memory 8", "--gpu-memory: needs --auto or --plan or --recompute -1"},
    };
    CHECK_REFUSALS(t, false, refusals);
    CHECK_REFUSALS(t, true, of_gpus);
}

// Each term of each row's needs: it names options, and a command line that gives the option without them is refused.
TEST(test_needs) {
    const ArgsProgram *program = &train_programs[1];
    for (int i = 0; i < program->num_specs; i++) {
        char terms[256], *rest, *further;
        snprintf(terms, sizeof(terms), "%s", program->specs[i].needs);
        CHECK(t, strlen(program->specs[i].needs) < sizeof(terms), "--%s: too long", program->specs[i].name);
        for (char *term = strtok_r(terms, " ", &rest); term != NULL; term = strtok_r(NULL, " ", &rest)) {
            char *colon = strchr(term, ':');
            if (strcmp(term, "GPU") == 0 || strcmp(term, "CPU") == 0) { continue; }
            term = strtok_r(colon != NULL ? colon + 1 : term, "|", &further);
            for (; term != NULL; term = strtok_r(NULL, "|", &further)) {
                char *name = term + (term[0] == '!');
                int row = args_find_name(program, name, strcspn(name, "="));
                if (!CHECK(t, row >= 0, "--%s needs %s", program->specs[i].name, name)) { continue; }
                const ArgSpec *other = &program->specs[row];
                const char *value = strchr(name, '=');
                CHECK(t,
                      value == NULL || other->type == ARG_INT ||
                          args_list_has(other->value, '|', value + 1, strlen(value + 1)),
                      "--%s needs %s", program->specs[i].name, name);
            }
        }
    }
}

TEST(test_total_batch) {
    static const Refusal refusals[] = {
        {"-i x -d 1000",
         "--total-batch (-d): 1000 tokens is not a multiple of B x T = 256; the nearest is 768 or 1024"},
        {"-i x -d 1", "--total-batch (-d): 1 tokens is not a multiple of B x T = 256; the nearest is 256"},
        {"-i x -d 2147483647",
         "--total-batch (-d): 2147483647 tokens is not a multiple of B x T = 256; the nearest is 2147483392"},
        {"-i x -b 65536 -t 65536", "--batch-size (-b): 65536 x 65536 tokens are 4294967296 in a micro-batch, at most "
                                   "2147483647 are possible"},
    };
    CHECK_REFUSALS(t, false, refusals);
    static Parsed p;
    CHECK(t, parse(&p, false, "-i x -b 3 -t 5") && p.options.total_batch == 15, "0 is one micro-batch");
    CHECK(t, parse(&p, false, "-i x -b 3 -t 5 -d 45") && p.options.total_batch == 45, "%s", p.error.text);
    CHECK(t, parse(&p, true, "-i x -b 3 -t 5 -d 100") && p.options.total_batch == 100, "the GPU trainer waits");
    const char *expected =
        "--total-batch (-d): 100 tokens is not a multiple of B x T x 8 ranks = 120; the nearest is 120";
    CHECK(t, !train_options_check_batch(&p.options, 8, &p.error), "100 tokens on 8 ranks accepted");
    CHECK(t, strcmp(p.error.text, expected) == 0, "%s", p.error.text);
    CHECK(t, train_options_check_context(&p.options, 5, &p.error), "%s", p.error.text);
    CHECK(t, !train_options_check_context(&p.options, 4, &p.error), "T 5 accepted for 4 positions");
    expected = "--seq-len (-t): 5 tokens, but the model knows 4 positions; give at most that many";
    CHECK(t, strcmp(p.error.text, expected) == 0, "%s", p.error.text);
}

TEST(test_long_and_strange_words) {
    static char words[6000];
    static Parsed p;
    snprintf(words, sizeof(words), "-i x -o %0*d", 5000, 0);
    CHECK(t, !parse(&p, false, words), "a path of 5000 bytes accepted");
    CHECK(t, strcmp(p.error.text, "--out-dir (-o): got 5000 bytes, expected DIR of 1 to 4000 bytes") == 0, "%s",
          p.error.text);
    snprintf(words, sizeof(words), "-i x -b 7%s\n\x1b[31m", "11111111112222222222333333333344444444445555555555");
    CHECK(t, !parse(&p, false, words), "accepted");
    CHECK(t,
          strcmp(p.error.text, "--batch-size (-b): got '71111111111222222222233333333334444444444...', expected a "
                               "whole number from 1 to 65536 (default 4)") == 0,
          "%s", p.error.text);
    CHECK(t, parse(&p, false, "-i \xc3\xa9\xff --prompt a\nb\x1b -j a\nb -o a\tb"), "%s", p.error.text);
    CHECK(t, !parse(&p, false, "a\nb\x1b"), "accepted");
    CHECK(t, strstr(p.error.text, "'a\nb\x1b': unexpected word") == p.error.text, "%s", p.error.text);
    snprintf(words, sizeof(words), "--%0*d", 3000, 0);
    CHECK(t, !parse(&p, false, words) && strlen(p.error.text) < 200, "%s", p.error.text);
}

TEST(test_forms) {
    static Parsed p;
    TrainOptions *o = &p.options;
    CHECK(t, parse(&p, false, "--train-data=a=b --lr=6e-4 -b=2 -sl 3.5 -y=0 -o d --prompt= --steps -1"), "%s",
          p.error.text);
    CHECK(t, strcmp(o->train_data, "a=b") == 0 && o->lr == 6e-4 && o->batch_size == 2 && o->skip_loss_z == 3.5,
          "values");
    CHECK(t, !o->resume && o->prompt[0] == '\0' && o->steps == -1, "values");
    CHECK(t, parse(&p, false, "-i - -o d -y -nk 3"), "%s", p.error.text);
    CHECK(t, o->resume && o->keep == 3 && strcmp(o->train_data, "-") == 0, "a bare flag, a lone dash as a value");
    CHECK(t, parse(&p, false, "-i x -o d -y 1 -a 0") && o->resume && !o->overfit, "flags with a digit");
    CHECK(t, parse(&p, false, "--prompt=--lr --steps 0") && strcmp(o->prompt, "--lr") == 0, "a value like an option");
    CHECK(t, parse(&p, false, "--steps 0 --") && o->steps == 0, "%s", p.error.text);
    CHECK(t, parse(&p, true, "-i x --matmul-tune 2") && o->matmul_tune == 2, "%s", p.error.text);
    CHECK(t, !parse(&p, true, "-i x --matmul-tune 3"), "a level of 3");
    CHECK(t, parse(&p, false, "--plan") && train_options_plan(o) && !train_options_plans_all(o),
          "--plan needs no data: %s", p.error.text);
    CHECK(t, parse(&p, false, "--plan all -x 5") && train_options_plans_all(o) && o->steps == 5, "%s", p.error.text);
    CHECK(t, parse(&p, false, "--plan -x 5") && train_options_plan(o) && o->steps == 5, "%s", p.error.text);
    CHECK(t, parse(&p, false, "-i x --plan 0") && !train_options_plan(o), "%s", p.error.text);
    CHECK(t, !parse(&p, false, "--plan largest") && strstr(p.error.text, "expected one of 0|1|all") != NULL, "%s",
          p.error.text);
    CHECK(t, parse(&p, true, "--plan -x 0 --gpu-memory 8"), "%s", p.error.text);
    CHECK(t, parse(&p, false, "-i x -e 1558M") && strcmp(o->init, "d48") == 0, "a size has one name in records");
}

// A schedule that falls does so by default. One that does not fall takes no other fraction than 1.
TEST(test_final_rate) {
    static const Refusal refusals[] = {
        {"-i x -k constant -q 0.1", "--final-lr-frac (-q): contradicts this --schedule (-k), whose rate does not fall; "
                                    "leave one of the two out"},
    };
    static Parsed p;
    CHECK_REFUSALS(t, false, refusals);
    for (int i = 0; i < NUM_SCHEDULES; i++) {
        char words[80];
        snprintf(words, sizeof(words), "-i x -k %s", schedule_names[i]);
        CHECK(t, parse(&p, false, words), "%s: %s", words, p.error.text);
        CHECK(t, p.options.final_lr_frac == (i == SCHEDULE_CONSTANT ? 1.0 : 0.1), "%s: to %g", words,
              p.options.final_lr_frac);
        snprintf(words, sizeof(words), "-i x -q 1 -k %s", schedule_names[i]);
        CHECK(t, parse(&p, false, words) && p.options.final_lr_frac == 1.0, "%s: %s", words, p.error.text);
    }
}

// Muon's learning rate follows from --muon-scale where it is not given.
TEST(test_muon_rate) {
    static const struct {
        const char *words;
        double rate;
    } rates[] = {{"-i x", 0.0},
                 {"-i x --optimizer muon", 0.02},
                 {"-i x --optimizer muon --muon-scale rms", 3e-4},
                 {"-i x --optimizer muon --muon-scale rms -l 6e-4", 6e-4},
                 {"-i x --optimizer muon -l 6e-4", 0.02},
                 {"-i x --optimizer muon --muon-scale rms -l 6e-4 --muon-lr 1e-3", 1e-3}};
    static Parsed p;
    const TrainOptions *o = &p.options;
    for (int gpu = 0; gpu < 2; gpu++) {
        for (size_t i = 0; i < sizeof(rates) / sizeof(rates[0]); i++) {
            CHECK(t, parse(&p, gpu, rates[i].words) && o->muon_lr == rates[i].rate, "%s: %g", rates[i].words,
                  o->muon_lr);
        }
    }
    CHECK(t, parse(&p, false, "-i x") && train_options_optimizer(o) == OPTIMIZER_ADAMW, "the default");
    CHECK(t, parse(&p, false, "-i x --optimizer muon") && train_options_optimizer(o) == OPTIMIZER_MUON, "muon");
    CHECK(t, o->muon_warmup == 300 && strcmp(o->muon_scale, "original") == 0, "defaults");
    Schedule schedule = train_options_muon_schedule(o, 100), adamw = train_options_schedule(o, 100);
    CHECK(t, schedule.peak == 0.02f && adamw.peak == 3e-4f, "peaks %g, %g", (double)schedule.peak, (double)adamw.peak);
}

TEST(test_llmc_script) {
    static Parsed p;
    const TrainOptions *o = &p.options;
    const char *words = "-i tr.bin -j va.bin -o log124M -v 250 -s 20000 -g 144 -h 0 -b 64 -t 1024 -d 524288 -r 0 "
                        "-c 0.1 -l 0.0006 -q 0.0 -u 700 -n 5000 -nk 5 -nm 50000 -y 1 -e d12 -x 18865 -k cosine "
                        "-sl 7 -sg 6 -a 0 -m 20";
    CHECK(t, parse(&p, false, words), "%s", p.error.text);
    CHECK(t, o->val_every == 250 && o->sample_every == 20000 && o->sample_tokens == 144 && o->seq_len == 1024,
          "values");
    CHECK(t, o->total_batch == 524288 && o->weight_decay == 0.1 && o->lr == 6e-4 && o->final_lr_frac == 0.0, "values");
    CHECK(t, o->warmup == 700 && o->checkpoint_every == 5000 && o->keep == 5 && o->keep_major == 50000, "values");
    CHECK(t, o->steps == 18865 && o->skip_loss_z == 7 && o->skip_grad_z == 6, "values");
    CHECK(t, o->val_sequences == 20 * 64, "20 batches of 64: %lld sequences", (long long)o->val_sequences);
    words = "-i tr.bin -h 0 -z 1 -f 0 -w 0 -ge 1 -lg 9";
    CHECK(t, parse(&p, true, words), "%s", p.error.text);
    CHECK(t, !o->hellaswag && o->zero_stage == 1 && !o->tf32 && !o->master_weights && o->gelu_fusion == 1, "values");
    CHECK(t, o->gpu_log_every == 9 && strcmp(o->init, "d12") == 0 && o->recompute == -1, "values");
}

// The evaluations: with each validation; without training also where nothing is validated. They shape no run.
TEST(test_evaluations) {
    static const char *const taken[] = {"-i x -h 1",      "-i x --mmlu y",  "-i x -h 1 --eval-examples 9",
                                        "-x 0 -h 1 -v 0", "-i x -h 0 -v 0", "-x 0 --hellaswag --mmlu y"};
    static Parsed p;
    for (size_t i = 0; i < sizeof(taken) / sizeof(taken[0]); i++) {
        for (int gpu = 0; gpu < 2; gpu++) { CHECK(t, parse(&p, gpu, taken[i]), "%s: %s", taken[i], p.error.text); }
    }
    for (int i = OPTION_hellaswag; i <= OPTION_eval_examples; i++) {
        CHECK(t, train_shapes_run[i] == FREE, "--%s shapes the run", train_options_name(i));
    }
}

// A validation has as many sequences with any micro-batch. Only -m counts micro-batches, as llm.c does.
TEST(test_sequences_of_a_validation) {
    static const struct {
        const char *words;
        int64_t sequences; // 0: all
    } cases[] = {{"-i x", 80},
                 {"-i x -b 64", 80},
                 {"-i x -b 3 --val-sequences 7", 7},
                 {"-i x --val-sequences 0", 0},
                 {"-i x -m 20", 80},
                 {"-i x -m 20 -b 8", 160},
                 {"-i x --val-batches 3 -b 1", 3},
                 {"-i x -b 8 -m 0", 0},
                 {"-i x -m -1", 80},
                 {"-i x -m -1 --val-sequences 7", 7}};
    static const Refusal both[] = {
        {"-i x -m 20 --val-sequences 80", "--val-batches (-m): contradicts --val-sequences; give one of the two"},
        {"-i x -m 0 --val-sequences 80", "--val-batches (-m): contradicts --val-sequences; give one of the two"}};
    static const Refusal open[] = {{"-i x --auto -d 4096 -m 20",
                                    "--val-batches (-m): counts batches of --batch-size (-b), which --auto chooses; "
                                    "give --val-sequences instead"}};
    static Parsed p;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        CHECK(t, parse(&p, false, cases[i].words) && p.options.val_sequences == cases[i].sequences,
              "%s: %lld sequences, %s", cases[i].words, (long long)p.options.val_sequences, p.error.text);
    }
    CHECK_REFUSALS(t, false, both);
    CHECK_REFUSALS(t, true, open);
    CHECK(t, parse(&p, true, "-i x --auto -b 4 -m 5") && p.options.val_sequences == 20, "%s", p.error.text);
    CHECK(t, parse(&p, true, "-i x --auto -d 4096 --val-sequences 5") && p.options.val_sequences == 5, "%s",
          p.error.text);
}

// llm.c's flags for several processes, in both of its spellings; what contradicts or is missing is refused.
TEST(test_several_processes) {
    static const char *const taken[] = {"-pi tcp -ps 10.0.0.1 -pn 16 -pr 15 -pg 4",
                                        "-pm tcp -ps [::1]:9 -pn 2 -pr 0",
                                        "-pi fs -pf /tmp -pn 2 -pr 1",
                                        "-pm fs -pp /tmp -pn 2",
                                        "-pi mpi -pn 8",
                                        "--plan -np 512 -z 3"};
    static const char *const refused[][2] = {
        {"-pi tcp -pn 2", "--server-ip (-ps)"},     {"-pi fs -pn 2", "--nccl-fs-path (-pf)"},
        {"-pi tcp -ps a", "--num-processes (-pn)"}, {"-pi fs -pf a", "--num-processes (-pn)"},
        {"-pn 2 -pr 2", "--process-rank (-pr)"},    {"-pn 8 -pr 1", "--process-rank (-pr): needs"},
        {"-ps a", "--server-ip (-ps): needs"},      {"-pf a", "--nccl-fs-path (-pf): needs"},
        {"--secret-file a", "--secret-file: needs"}};
    static Parsed p;
    for (size_t i = 0; i < sizeof(taken) / sizeof(taken[0]); i++) {
        char line[128];
        snprintf(line, sizeof(line), "-i x %s", taken[i]);
        CHECK(t, parse(&p, true, line), "%s: %s", line, p.error.text);
        CHECK(t, !parse(&p, false, line) && strstr(p.error.text, TRAIN_GPU_ONLY) != NULL, "%s: %s", line, p.error.text);
    }
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        char line[128];
        snprintf(line, sizeof(line), "-i x %s", refused[i][0]);
        CHECK(t, !parse(&p, true, line) && strstr(p.error.text, refused[i][1]) != NULL, "%s: %s", line, p.error.text);
    }
}

// What --auto may choose is what was not given, though it be given as it is by default.
TEST(test_what_was_given) {
    static const Refusal refused[] = {
        {"-i x --auto",
         "--auto: chooses micro-batches of --total-batch (-d), the tokens in a step; give it, or --batch-size (-b)"},
        {"-i x --auto -b 4 -r 1",
         "--auto: chooses --batch-size (-b) and --recompute (-r), and both are given; leave out one of the three"}};
    static Parsed p;
    const bool *given = p.options.given;
    check_refusals(t, true, refused, sizeof(refused) / sizeof(refused[0]));
    CHECK(t, parse(&p, true, "-i x --auto -d 4096"), "%s", p.error.text);
    CHECK(t, !given[OPTION_batch_size] && !given[OPTION_recompute], "not given");
    CHECK(t, given[OPTION_auto_plan] && given[OPTION_total_batch] && given[OPTION_train_data], "given");
    CHECK(t, parse(&p, true, "-i x --auto -b 4 -r -1"), "the level is left to --auto: %s", p.error.text);
    CHECK(t, parse(&p, true, "-i x --gpu-memory 8") && p.options.recompute == -1, "%s", p.error.text);
    CHECK(t, !parse(&p, false, "-i x -r -1"), "the CPU trainer takes level -1");
    CHECK(t, parse(&p, true, "-i x --auto -b 4") && given[OPTION_batch_size], "-b: %s", p.error.text);
    CHECK(t, parse(&p, true, "-i x --auto -d 4096 --recompute=1") && given[OPTION_recompute], "%s", p.error.text);
    CHECK(t, !given[OPTION_batch_size], "given by the command line before");
    CHECK(t, !parse(&p, false, "-i x --auto") && strstr(p.error.text, TRAIN_GPU_ONLY) != NULL, "%s", p.error.text);
}

TEST(test_help_and_version) {
    static Parsed p;
    CHECK(t, parse(&p, false, "--help") && p.outcome == ARGS_SHOWED_HELP, "--help");
    CHECK(t, parse(&p, false, "-b 2 -h") && p.outcome == ARGS_SHOWED_HELP, "-h at the end");
    CHECK(t, parse(&p, false, "-h -b 2") && p.outcome == ARGS_SHOWED_HELP, "-h before an option");
    CHECK(t, parse(&p, false, "-h all") && p.outcome == ARGS_SHOWED_HELP, "-h all");
    CHECK(t, parse(&p, false, "--version") && p.outcome == ARGS_SHOWED_VERSION, "--version");
    CHECK(t, parse(&p, true, "-i x -h 1") && p.outcome == ARGS_RUN && p.options.hellaswag, "-h 1 is HellaSwag");
    CHECK(t, parse(&p, false, "-i x -h 0") && p.outcome == ARGS_RUN && !p.options.hellaswag, "-h 0 is HellaSwag");
}

// --help fits a screen of 24 lines and 80 columns. --help all has every option that this program takes, no other, and
// no long line.
TEST(test_help_text) {
    static char help[1 << 16];
    for (int gpu = 0; gpu < 2; gpu++) {
        ArgsProgram program = train_programs[gpu];
        program.name = "train_gpt2cu";
        for (int all = 0; all < 2; all++) {
            FILE *file = tmpfile();
            int lines = 0, width = all ? ARGS_HELP_WIDTH : 80;
            if (!CHECK(t, file != NULL, "no temporary file")) { return; }
            args_print_help(file, &program, all);
            rewind(file);
            help[fread(help, 1, sizeof(help) - 1, file)] = '\0';
            fclose(file);
            for (const char *line = help; *line != '\0'; line += strcspn(line, "\n") + 1, lines++) {
                CHECK(t, (int)strcspn(line, "\n") <= width, "too long: %.110s", line);
            }
            CHECK(t, all ? lines > 90 : lines <= 24, "%d lines", lines);
            for (int i = 0; i < program.num_specs; i++) {
                char left[256];
                const ArgSpec *spec = &program.specs[i];
                args_usage(left, sizeof(left), spec);
                bool shown = !args_lacks(&program, spec) &&
                             (all || args_list_has(program.common, ' ', spec->name, strlen(spec->name)));
                CHECK(t, (strstr(help, left) != NULL) == shown, "%s %s in the help", left, shown ? "is not" : "is");
            }
        }
    }
    CHECK(t, strstr(help, "(1 to 65536;") != NULL && strstr(help, "  -nk, --keep N  ") != NULL, "range and alias");
}

// The table itself: names unique, defaults valid, groups in one piece.
TEST(test_table) {
    const ArgSpec *tables[2] = {train_specs_cpu, train_specs_gpu};
    TrainOptions options;
    char expected[512], left[256];
    int n = NUM_TRAIN_OPTIONS;
    CHECK(t, n <= ARGS_MAX_SPECS, "%d options", n);
    for (const char *word = TRAIN_COMMON; *word != '\0'; word += strcspn(word, " ") + (strchr(word, ' ') != NULL)) {
        int length = (int)strcspn(word, " ");
        CHECK(t, args_find_name(&train_programs[0], word, (size_t)length) >= 0, "--%.*s is no option", length, word);
    }
    for (int i = 0; i < 2 * n; i++) {
        const ArgSpec *spec = &tables[i / n][i % n];
        bool valid = args_store(spec, &options, spec->fallback);
        CHECK(t, valid || (spec->type == ARG_TEXT && spec->fallback[0] == '\0'), "--%s: its default", spec->name);
        args_expected(expected, sizeof(expected), spec);
        args_usage(left, sizeof(left), spec);
        CHECK(t, strlen(expected) + 1 < sizeof(expected) && strlen(left) + 1 < sizeof(left), "--%s", spec->name);
        CHECK(t, strlen(spec->help) + 200 < 1024, "--%s", spec->name);
    }
    for (int i = 0; i < n; i++) {
        const ArgSpec *a = &train_specs_cpu[i];
        for (int j = 0; j < i; j++) {
            const ArgSpec *b = &train_specs_cpu[j];
            CHECK(t, strcmp(a->name, b->name) != 0, "--%s twice", a->name);
            CHECK(t, a->aliases[0] == '\0' || !args_list_has(b->aliases, ' ', a->aliases, strcspn(a->aliases, " ")),
                  "-%s twice", a->aliases);
            bool apart = strcmp(a->group, b->group) == 0 && strcmp(train_specs_cpu[i - 1].group, a->group) != 0;
            CHECK(t, !apart, "group %s is in pieces", a->group);
        }
    }
}

static int option_index(const char *name) {
    for (int i = 0; i < NUM_TRAIN_OPTIONS; i++) {
        if (strcmp(train_options_name(i), name) == 0) { return i; }
    }
    return -1;
}

TEST(test_record) {
    static const char *const shapes[] = {"train-data", "seed", "lr",        "schedule", "steps",       "total-batch",
                                         "seq-len",    "init", "optimizer", "muon-lr",  "muon-warmup", "muon-scale"};
    static const char *const free_ones[] = {"batch-size", "threads", "recompute",     "out-dir",    "val-every",
                                            "prompt",     "resume",  "val-sequences", "val-batches"};
    static Parsed a, b;
    char text[64], other[64];
    CHECK(t, parse(&a, false, "-i x -l 3e-4 -c 0.1 -o d") && parse(&b, false, "-i x -l 0.0003 -c .1 -o d"), "parse");
    for (int i = 0; i < NUM_TRAIN_OPTIONS; i++) {
        train_options_text(&a.options, i, text, sizeof(text));
        train_options_text(&b.options, i, other, sizeof(other));
        CHECK(t, strcmp(text, other) == 0, "--%s: %s and %s", train_options_name(i), text, other);
    }
    CHECK(t, parse(&b, false, "-i a\nb\x7f -o \xc3\xa9"), "%s", b.error.text);
    train_options_text(&b.options, option_index("train-data"), text, sizeof(text));
    train_options_text(&b.options, option_index("out-dir"), other, sizeof(other));
    CHECK(t, strcmp(text, "a\\x0ab\\x7f") == 0 && strcmp(other, "\xc3\xa9") == 0, "%s %s", text, other);
    train_options_text(&a.options, option_index("lr"), text, sizeof(text));
    CHECK(t, strcmp(text, "0.0003") == 0, "%s", text);
    train_options_text(&a.options, option_index("total-batch"), text, sizeof(text));
    CHECK(t, strcmp(text, "256") == 0, "the batch that is meant, not 0: %s", text);
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        CHECK(t, train_shapes_run[option_index(shapes[i])] == SHAPES, "%s", shapes[i]);
    }
    for (size_t i = 0; i < sizeof(free_ones) / sizeof(free_ones[0]); i++) {
        CHECK(t, train_shapes_run[option_index(free_ones[i])] == FREE, "%s", free_ones[i]);
    }
}

TEST(test_real_text) {
    const double values[] = {0.0, 1.0, 0.1, 3e-4, 1.0 / 3.0, 1e-8, 1e22, 5e-324, 1.7976931348623157e308, 0.1 + 0.2};
    char text[40];
    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
        double back = 0.0;
        format_real(text, sizeof(text), values[i]);
        CHECK(t, args_read_real(text, &back) && back == values[i], "%.17g became %s", values[i], text);
    }
    format_real(text, sizeof(text), 0.1);
    CHECK(t, strcmp(text, "0.1") == 0, "%s", text);
}

typedef struct {
    int64_t count;
    bool quiet;
} Words;

TEST(test_positionals) {
    const ArgSpec specs[] = {
        {"count", "c", ARG_INT, offsetof(Words, count), "1", 0, 9, "N", "", "Options", "how many"},
        {"quiet", "q", ARG_FLAG, offsetof(Words, quiet), "0", 0, 1, "", "", "Options", "say nothing"},
    };
    ArgsProgram program = {"words", "words FILE...", "Words.", NULL, specs, 2, true, NULL, NULL,
                           NULL,    false,           NULL,     NULL};
    char a0[] = "words", a1[] = "a", a2[] = "-q", a3[] = "b", a4[] = "-", a5[] = "-c", a6[] = "3", a7[] = "--",
         a8[] = "-q";
    char *argv[] = {a0, a1, a2, a3, a4, a5, a6, a7, a8, NULL};
    Words words;
    int count;
    ArgsOutcome outcome;
    Error error;
    bool ok = args_parse(&program, &words, 9, argv, &count, &outcome, &error);
    if (!CHECK(t, ok && count == 4, "%d words: %s", count, ok ? "" : error.text)) { return; }
    CHECK(t, argv[1] == a1 && argv[2] == a3 && argv[3] == a4 && argv[4] == a8, "the words in order");
    CHECK(t, words.count == 3 && words.quiet, "options among words");
}

TEST(test_edit_distance) {
    const struct {
        const char *a, *b;
        int distance;
    } cases[] = {{"", "", 0},       {"", "abc", 3},    {"abc", "abc", 0},
                 {"abc", "abd", 1}, {"abc", "acb", 1}, {"kitten", "sitting", 3}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int d = args_edit_distance(cases[i].a, cases[i].b);
        CHECK(t, d == cases[i].distance, "%s %s: %d", cases[i].a, cases[i].b, d);
    }
}
