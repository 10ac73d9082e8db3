// The command line: strictness of values, the exact words of every refusal, help, and the trainers' option table.
#include "llmc/run/train_options.h"
#include "dev/test/refused.h"

#define MAX_WORDS 64

enum { ON_CPU_ONLY = 1, ON_GPU_ONLY = 2, ON_BOTH = 3 }; // the trainers of a case

// Parses a command line given as words separated by single spaces ("~" stands for an empty word). The words are kept in
// `memory`, into which text options point. For the CPU trainer, the batch is settled.
typedef struct {
    char memory[8192];
    TrainOptions options;
    ArgsOutcome outcome;
} Parsed;

static Parsed p;

static bool parse(Parsed *p, bool gpu_trainer, const char *words) {
    char *argv[MAX_WORDS + 1];
    int argc = 0;
    snprintf(p->memory, sizeof(p->memory), "train_gpt2 %s", words);
    for (char *word = strtok(p->memory, " "); word != NULL && argc < MAX_WORDS; word = strtok(NULL, " ")) {
        argv[argc++] = strcmp(word, "~") == 0 ? word + 1 : word;
    }
    argv[argc] = NULL;
    error.text[0] = '\0';
    bool ok = train_options_parse(&p->options, argv[0], argc, argv, gpu_trainer, &p->outcome, &error);
    if (!ok || gpu_trainer || p->outcome != ARGS_RUN) { return ok; }
    if (p->options.seq_len == 0) { p->options.seq_len = 64; } // as a trainer does, when it knows the model
    return train_options_check_batch(&p->options, 1, &error);
}

static int option_index(const char *name, size_t length) { return args_find_name(&train_programs[0], name, length); }

// Takes the next word of a list; NULL: there is none.
static const char *take_word(const char **list, const char *separators) {
    *list += strspn(*list, separators);
    size_t n = strcspn(*list, separators);
    const char *word = n > 0 ? format("%.*s", (int)n, *list) : NULL;
    *list += n;
    return word;
}

// ---- Values ----

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
        const char *words = spec->type == ARG_CHOICE ? spec->value : "";
        for (const char *word; (word = take_word(&words, "|")) != NULL;) {
            const char *cut = format("%.*s", (int)strlen(word) - 1, word);
            CHECK(t, args_store(spec, &options, word), "--%s %s refused", spec->name, word);
            CHECK(t, !args_store(spec, &options, cut), "--%s %s accepted", spec->name, cut);
        }
        CHECK(t, spec->type != ARG_CHOICE || !args_store(spec, &options, spec->value), "--%s: all words", spec->name);
    }
}

// ---- What is refused ----

#define UNKNOWN "': unknown option; "
#define LISTS " (--help all lists all)"
#define STRAY "': unexpected word; options begin with a dash, patterns ('x*.bin') need quotes"
#define GPU_ONLY TRAIN_GPU_ONLY
#define BOTH_VAL "--val-batches (-m): contradicts --val-sequences; give one of the two"

typedef struct {
    int trainers;
    const char *words, *says; // the message, or the values that the record of the run has of some options
} Row;

static void check_rows(Test *t, const Row *rows, size_t num_rows, bool accepted) {
    for (size_t i = 0; i < 2 * num_rows; i++) {
        const Row *row = &rows[i / 2];
        bool gpu = i % 2 == 1;
        if ((row->trainers & (gpu ? ON_GPU_ONLY : ON_CPU_ONLY)) == 0) { continue; }
        CHECK(t, parse(&p, gpu, row->words) == accepted, "%s: %s", row->words, accepted ? error.text : "accepted");
        if (!accepted) {
            CHECK(t, strcmp(error.text, row->says) == 0, "%s\n    said:     %s\n    expected: %s", row->words,
                  error.text, row->says);
            continue;
        }
        const char *values = row->says;
        for (const char *word; (word = take_word(&values, " ")) != NULL;) {
            char text[64];
            size_t name = strcspn(word, "=");
            train_options_text(&p.options, option_index(word, name), text, sizeof(text));
            CHECK(t, strcmp(text, word + name + 1) == 0, "%s: %s, not %s", row->words, word, text);
        }
    }
}

TEST(test_refusals) {
    static const Row rows[] = {
        // values: the words of each type
        {ON_BOTH, "-i x -b foo", "--batch-size (-b): got 'foo', expected a whole number from 1 to 65535 (default 4)"},
        {ON_BOTH, "-i x --optimizer Muon", "--optimizer: got 'Muon', expected one of adamw|muon (default adamw)"},
        {ON_BOTH, "-i", "--train-data (-i): value missing, expected FILES of 1 to 4000 bytes"},
        {ON_BOTH, "-h -1", "--hellaswag (-h): got '-1', expected 0 or 1 (default 0)"},
        {ON_CPU_ONLY, "-i x -r -1", "--recompute (-r): got '-1', expected a whole number from 0 to 3 (default 0)"},
        {ON_BOTH, "-i x -b 711111111112222222222333333333344444444445555555555\n\x1b[31m",
         "--batch-size (-b): got '71111111111222222222233333333334444444444...', expected a whole number from 1 to "
         "65535 (default 4)"},
        // names that are not ours
        {ON_BOTH, "--batch_size 4", "'--batch_size" UNKNOWN "the nearest is --batch-size" LISTS},
        {ON_BOTH, "--stpes=4", "'--stpes" UNKNOWN "the nearest is --steps" LISTS},
        {ON_BOTH, "-lr 4", "'-lr" UNKNOWN "the nearest is --lr" LISTS},
        {ON_BOTH, "--hlep", "'--hlep': unknown option" LISTS},
        {ON_BOTH, "foo", "'foo" STRAY},
        // names of other trainers
        {ON_BOTH, "--learning_rate=1", "'--learning_rate" UNKNOWN "give --lr (-l)"},
        // the other trainer's options
        {ON_CPU_ONLY, "-z 1", "--zero-stage (-z): " GPU_ONLY},
        {ON_GPU_ONLY, "-i x --cpu-kernels auto", "--cpu-kernels: " TRAIN_CPU_ONLY},
        // what an option needs
        {ON_BOTH, "-i x -y", "--resume (-y): needs --out-dir (-o)"},
        {ON_BOTH, "-i x -o d --resume --overwrite", "--resume (-y): needs no --overwrite"},
        {ON_BOTH, "-i x -o d -nm 2", "--keep-major (-nm): needs --keep (-nk) other than 0"},
        {ON_BOTH, "-i x -h 1 -v 0", "--hellaswag (-h): needs --val-every (-v) other than 0 or --steps 0"},
        {ON_GPU_ONLY, "-i x -pi tcp -pn 2", "--nccl-init tcp: needs --server-ip (-ps)"},
        {ON_GPU_ONLY, "-i x --deterministic 0 --attention own", "--deterministic 0: needs no --attention own"},
        {ON_GPU_ONLY, "-i x -r 1 --gpu-memory 8", "--gpu-memory: needs --auto or --plan or --recompute -1"},
        // what contradicts itself
        {ON_BOTH, "",
         "--train-data (-i): missing; give a text file or token shards to train on, or --steps 0 to only sample"},
        {ON_BOTH, "-i x -m 20 --val-sequences 80", BOTH_VAL},
        {ON_GPU_ONLY, "-i x --auto -d 4096 -m 20",
         "--val-batches (-m): counts batches of --batch-size (-b), which --auto chooses; give --val-sequences instead"},
        {ON_GPU_ONLY, "-i x -pi fs -pf a -pn 2 -pr 2",
         "--process-rank (-pr): is counted from 0, it must be less than --num-processes (-pn)"},
        {ON_GPU_ONLY, "-i x --auto",
         "--auto: chooses micro-batches of --total-batch (-d), the tokens in a step; give it, or --batch-size (-b)"},
        {ON_GPU_ONLY, "-i x --auto -b 4 -r 1",
         "--auto: chooses --batch-size (-b) and --recompute (-r), and both are given; leave out one of the three"},
        // the batch
        {ON_CPU_ONLY, "-i x -d 1000", "--total-batch (-d): 1000 tokens is not a multiple of B x T = 256; give 768"},
        {ON_CPU_ONLY, "-i x -b 65535 -t 65536",
         "--batch-size (-b): 65535 x 65536 tokens are 4294901760 in a micro-batch, at most 2147483647 are possible"},
    };
    check_rows(t, rows, COUNT_OF(rows), false);
}

// With several ranks, and when the model is known.
TEST(test_batch_and_context) {
    const char *expected = "--total-batch (-d): 100 tokens is not a multiple of B x T x 8 ranks = 120; give 120";
    CHECK(t, parse(&p, true, "-i x -b 3 -t 5 -d 100") && p.options.total_batch == 100, "the GPU trainer waits");
    REFUSED(t, train_options_check_batch(&p.options, 8, &error), "", expected);
    ModelConfig config = {0};
    CHECK(t, train_options_settle_context(&p.options, true, &config, &error) && config.max_seq_len == 5, "of T");
    config.max_seq_len = 4;
    expected = "--seq-len (-t): 5 tokens, but the model knows 4 positions; give at most that many";
    REFUSED(t, train_options_settle_context(&p.options, false, &config, &error), "", expected);
}

// ---- What is accepted ----

// Command lines, and what the record of the run then has of some options.
TEST(test_accepted) {
    static const Row rows[] = {
        // forms
        {ON_BOTH, "--train-data=a=b --lr=6e-4 -b=2 -sl 3.5 -y=0 -o d --prompt= --steps -1",
         "train-data=a=b lr=0.0006 batch-size=2 skip-loss-z=3.5 resume=0 prompt= steps=-1"},
        {ON_BOTH, "-i - -o d -y -nk 3", "train-data=- resume=1 keep=3"},
        {ON_BOTH, "-i x -y 0 -nk 0", "resume=0 keep=0"}, // as by default, so nothing is needed
        {ON_BOTH, "--prompt=--lr -e m --steps 0", "prompt=--lr"},
        {ON_BOTH, "-i \xc3\xa9\xff --prompt a\nb\x1b -j a\nb -o a\tb", "val-data=a\\x0ab"},
        {ON_BOTH, "-x 0 -e m -h 1 -v 0 --mmlu y", "hellaswag=1 mmlu=y"}, // without training they need no validation
        {ON_GPU_ONLY, "--plan -x 0 --gpu-memory 8", "gpu-memory=8"},
        {ON_GPU_ONLY, "-i x --auto -b 4 -r -1", "batch-size=4"},
        // what follows from other options
        {ON_BOTH, "-i x -e 1558M", "init=d48"}, // a size has one name in records
        {ON_BOTH, "-i x -k constant", "final-lr-frac=1"},
        {ON_BOTH, "-i x", "muon-lr=0 optimizer=adamw"},
        {ON_BOTH, "-i x --optimizer muon -l 6e-4", "muon-lr=0.02 muon-warmup=300 muon-scale=original"},
        {ON_BOTH, "-i x --optimizer muon --muon-scale rms", "muon-lr=0.0003"},
        {ON_BOTH, "-i x --optimizer muon --muon-scale rms -l 6e-4 --muon-lr 1e-3", "muon-lr=0.001"},
        // a validation has as many sequences with any micro-batch; only -m counts micro-batches, as llm.c does
        {ON_BOTH, "-i x -m 20 -b 8", "val-sequences=160"},
        {ON_GPU_ONLY, "-i x --auto -b 4 -m 5", "val-sequences=20"},
        // llm.c's scripts
        {ON_BOTH,
         "-i tr.bin -j va.bin -o log124M -v 250 -s 20000 -g 144 -h 0 -b 64 -t 1024 -d 524288 -r 0 -c 0.1 -l 0.0006 "
         "-q 0.0 -u 700 -n 5000 -nk 5 -nm 50000 -y 1 -e d12 -x 18865 -k cosine -sl 7 -sg 6 -a 0 -m 20",
         "val-every=250 sample-every=20000 sample-tokens=144 seq-len=1024 total-batch=524288 weight-decay=0.1 "
         "lr=0.0006 final-lr-frac=0 warmup=700 checkpoint-every=5000 keep=5 keep-major=50000 steps=18865 skip-loss-z=7 "
         "skip-grad-z=6 val-sequences=1280"},
        {ON_GPU_ONLY, "-i x -h 0 -z 1 -f 0 -w 0 -ge 1",
         "hellaswag=0 zero-stage=1 tf32=0 master-weights=0 gelu-fusion=1 init=d12 recompute=-1"},
        {ON_GPU_ONLY, "-i x -pi tcp -ps 10.0.0.1 -pn 16 -pr 15 -pg 4", "nccl-init=tcp process-rank=15"},
    };
    check_rows(t, rows, COUNT_OF(rows), true);
}

// ---- Help ----

// --help fits a screen of 24 lines and 80 columns. --help all has every option that this program takes, and no other.
TEST(test_help_text) {
    static char help[1 << 16];
    for (int gpu = 0; gpu < 2; gpu++) {
        ArgsProgram program = train_programs[gpu];
        program.name = "train_gpt2cu";
        for (int all = 0; all < 2; all++) {
            FILE *file = tmpfile();
            int lines = 0, width = all ? 120 : 80;
            if (!CHECK(t, file != NULL, "no temporary file")) { return; }
            args_print_help(file, &program, all);
            rewind(file);
            help[fread(help, 1, sizeof(help) - 1, file)] = '\0';
            fclose(file);
            for (const char *line = help; *line != '\0'; line += strcspn(line, "\n") + 1, lines++) {
                CHECK(t, (int)strcspn(line, "\n") <= width, "too long: %.150s", line);
            }
            CHECK(t, all ? lines > 90 : lines <= 24, "%d lines", lines);
            for (int i = 0; i < program.num_specs; i++) {
                const ArgSpec *spec = &program.specs[i];
                const char *name =
                    format(" --%s%s%s%s", spec->name, spec->value[0] != '\0' ? " " : "", spec->value, all ? "\n" : " ");
                bool shown = !args_lacks(&program, spec) &&
                             (all || args_list_has(program.common, ' ', spec->name, strlen(spec->name)));
                CHECK(t, (strstr(help, name) != NULL) == shown, "%s %s in the help", name, shown ? "is not" : "is");
            }
        }
    }
    CHECK(t, strstr(help, "(default 8192)\n") != NULL && strstr(help, "  -nk, --keep N\n") != NULL, "%s", help);
}

// ---- The table ----

// Names are unique, defaults valid, headings before options, and texts fit their buffers.
TEST(test_table) {
    const ArgSpec *tables[2] = {train_specs_cpu, train_specs_gpu};
    TrainOptions options;
    int n = NUM_TRAIN_OPTIONS;
    CHECK(t, n <= ARGS_MAX_SPECS, "%d options", n);
    for (const char *word, *common = TRAIN_COMMON; (word = take_word(&common, " ")) != NULL;) {
        CHECK(t, option_index(word, strlen(word)) >= 0, "--%s: no option", word);
    }
    for (const char *const *group = train_groups; *group != NULL; group += 2) {
        CHECK(t, option_index(group[0], strlen(group[0])) >= 0, "%s before no option", group[1]);
    }
    for (int i = 0; i < 2 * n; i++) {
        const ArgSpec *spec = &tables[i / n][i % n];
        bool valid = args_store(spec, &options, spec->fallback);
        CHECK(t, valid || (spec->type == ARG_TEXT && spec->fallback[0] == '\0'), "--%s: its default", spec->name);
        CHECK(t, strlen(spec->help) < 800 && strlen(spec->fallback) < 100 && strlen(spec->value) < 150, "--%s: long",
              spec->name);
        const char *alias = format("-%s", spec->aliases);
        CHECK(t, option_index(spec->name, strlen(spec->name)) == i % n, "--%s twice", spec->name);
        CHECK(t, alias[1] == '\0' || args_find(&train_programs[0], alias, strcspn(alias, " ")) == i % n, "%s twice",
              alias);
    }
}

// Each term of each row's needs names an option and one of its values.
TEST(test_needs) {
    for (int i = 0; i < NUM_TRAIN_OPTIONS; i++) {
        const ArgSpec *spec = &train_specs_gpu[i];
        for (const char *term, *needs = spec->needs; (term = take_word(&needs, " |")) != NULL;) {
            const char *colon = strchr(term, ':'), *value = strchr(term, '=');
            if (strcmp(term, "GPU") == 0 || strcmp(term, "CPU") == 0) { continue; }
            const char *name = colon != NULL ? colon + 1 : term;
            name += name[0] == '!';
            int row = option_index(name, strcspn(name, "="));
            if (!CHECK(t, row >= 0, "--%s needs %s", spec->name, name)) { continue; }
            const ArgSpec *other = &train_specs_gpu[row];
            CHECK(t, value == NULL || other->type == ARG_INT || args_store(other, &(TrainOptions){0}, value + 1),
                  "--%s needs %s", spec->name, name);
        }
    }
}

// Of the names of other trainers' options, none is ours or stands there twice. Every option in an answer exists.
TEST(test_foreign_names) {
    const ArgsProgram *program = &train_programs[1];
    for (const char *const(*row)[2] = program->foreign; row[0][0] != NULL; row++) {
        size_t length;
        for (const char *name, *names = row[0][0]; (name = take_word(&names, " ")) != NULL;) {
            const char *word = format("--%s", name);
            CHECK(t, strlen(name) > 1 && !parse(&p, true, word), "%s is an option of ours", word);
            CHECK(t, strstr(error.text, row[0][1]) != NULL, "%s: %s", word, error.text);
        }
        for (const char *at = row[0][1]; (at = strchr(at, '-')) != NULL; at += length) {
            length = 1 + strspn(at + 1, "-abcdefghijklmnopqrstuvwxyz12");
            bool option = (at == row[0][1] || at[-1] == ' ' || at[-1] == '(') && (at[1] < '0' || at[1] > '9');
            bool of_mpirun = strncmp(at, "-np", 3) == 0;
            CHECK(t, !option || of_mpirun || args_find(program, at, length) >= 0, "%.*s in an answer", (int)length, at);
        }
    }
}

// A number comes back from its text.
TEST(test_real_text) {
    const double values[] = {0.0, 0.1, 3e-4, 1.0 / 3.0, 1e22, 5e-324, 1.7976931348623157e308};
    FOR_EACH(i, values) {
        char text[40];
        double back = 0.0;
        format_real(text, sizeof(text), values[i]);
        CHECK(t, args_read_real(text, &back) && back == values[i], "%.17g became %s", values[i], text);
    }
}
