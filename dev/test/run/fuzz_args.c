// Any command line is either refused with one line, or gives options that are all within their ranges.
#include "dev/test/fuzz.h"
#include "llmc/run/train_options.h"

#define MAX_WORDS 200

static bool prints(const char *word) {
    return strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 || strcmp(word, "--version") == 0;
}

// The input is the words of a command line, each ended by a newline.
static void parse(const uint8_t *data, size_t size) {
    char *memory = (char *)malloc(size + 1), *argv[MAX_WORDS + 1], name[] = "train_gpt2";
    int argc = 1;
    bool quiet = true;
    memcpy(memory, data, size);
    memory[size] = '\0';
    argv[0] = name;
    for (char *word = memory; *word != '\0' && argc < MAX_WORDS;) {
        char *end = word + strcspn(word, "\n");
        bool last = *end == '\0';
        *end = '\0';
        quiet = quiet && !prints(word);
        argv[argc++] = word;
        word = last ? end : end + 1;
    }
    argv[argc] = NULL;
    TrainOptions options;
    ArgsOutcome outcome;
    error.text[0] = '\0';
    for (int gpu = 0; gpu < 2 && quiet; gpu++) {
        if (!train_options_parse(&options, "fuzz", argc, argv, gpu == 1, &outcome, &error)) {
            require(error.text[0] != '\0' && strchr(error.text, '\n') == NULL && strlen(error.text) < 1000);
            continue;
        }
        require(options.batch_size >= 1 && options.seq_len >= 0 && options.lr >= 0 && options.lr <= 100);
        if (options.seq_len > 0 && train_options_check_batch(&options, 1, &error)) {
            require(options.total_batch > 0 && options.total_batch <= TRAIN_MAX_TOTAL_BATCH);
            require(options.total_batch % (options.batch_size * options.seq_len) == 0);
        }
        require(options.temperature >= 0 && options.top_p >= 0 && options.top_p <= 1 && options.steps >= -1);
        require(strlen(options.out_dir) <= ARGS_MAX_PATH && strlen(options.init) <= ARGS_MAX_PATH);
        for (int i = 0; i < NUM_TRAIN_OPTIONS; i++) {
            char text[64];
            train_options_text(&options, i, text, sizeof(text));
        }
    }
    free(memory);
}

static const char *const seeds[] = {
    "-i\nx.txt\n-b\n4\n--seq-len=64\n-l\n3e-4\n-y\n1\n-o\nrun\n-nk\n5\n",
    "--train-data\nx\n--schedule\nwsd\n--total-batch\n1024\n--skip-loss-z=3.5\n--plan\n",
    "-i\nx\n-z\n1\n-pn\n8\n-pm\ntcp\n-h\n1\n--steps\n-1\n",
    "--steps\n0\n--prompt\nOnce upon a time\n--temperature=0.8\n--top-p\n0.4\n--\n",
};

FUZZ_TEXT(seeds, parse)
