// What another rank has sent is checked before it is used: here, of what rank 0 found out about --init and the folder.
#include "llmc/run/run_start.h"
#include "dev/test/test.h"

// Stands for rank 0.
typedef struct {
    ModelFile file;
    RunFound found;
} Sent;

bool ranks_agree(Comm *sent, bool ok, Error *error) { return (void)sent, (void)error, ok; }

bool ranks_broadcast(Comm *sent, void *data, int64_t bytes, Error *error) {
    const Sent *s = (const Sent *)(void *)sent;
    (void)error;
    if (bytes == (int64_t)sizeof(s->file)) { memcpy(data, &s->file, sizeof(s->file)); }
    if (bytes == (int64_t)sizeof(s->found)) { memcpy(data, &s->found, sizeof(s->found)); }
    return true;
}

// Lets rank 1 take what was sent. Returns whether it did.
static bool takes(Sent *sent, bool folder) {
    static TrainRun run;
    Error error;
    memset(&run, 0, sizeof(run));
    run.rank = 1, run.connected = 2;
    run.comm = (Comm *)(void *)sent;
    run.options.out_dir = "somewhere", run.options.init = "somewhere";
    bool (*volatile open)(TrainRun *, Error *) = folder ? run_open_folder : run_open_model;
    bool ok = open(&run, &error);
    free(run.model_file);
    return ok;
}

static Sent sent_model(const char *path) {
    Sent sent;
    memset(&sent, 0, sizeof(sent));
    gpt2_config_from_size(&sent.file.config, "d12");
    sent.file.config.vocab_size = 50257, sent.file.config.padded_vocab_size = 50304;
    strcpy(sent.file.path, path);
    return sent;
}

TEST(test_sent_models) {
    Sent sent = sent_model("");
    CHECK(t, takes(&sent, false), "a size is refused");
    sent = sent_model("model.bin");
    CHECK(t, takes(&sent, false), "a file is refused");
    memset(sent.file.path, 'x', sizeof(sent.file.path));
    CHECK(t, !takes(&sent, false), "a path without an end is taken");
    sent = sent_model("");
    memset(sent.file.note.text, 'x', sizeof(sent.file.note.text));
    CHECK(t, !takes(&sent, false), "a note without an end is taken");
    sent = sent_model("model.bin");
    sent.file.config.num_layers = -12;
    CHECK(t, !takes(&sent, false), "a config out of range is taken");
}

TEST(test_sent_folders) {
    static const struct {
        int32_t count, first, resumes;
        int64_t step;
        bool good;
    } cases[] = {{0, 0, 0, 0, true},         {2, 1, 1, 10, true},
                 {2, 2, 1, 10, false},       {2, -1, 1, 10, false},
                 {0, 0, 1, 0, false},        {2, 0, -1, 10, false},
                 {2, 0, 2, 10, false},       {2, 0, 1, -1, false},
                 {-1, 0, 0, 0, false},       {RUN_MAX_CHECKPOINTS + 1, 0, 1, 10, false},
                 {1, 0, 1, INT64_MAX, false}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        Sent sent = sent_model("");
        sent.found.num_checkpoints = cases[i].count, sent.found.first_usable = cases[i].first;
        sent.found.resumes = cases[i].resumes;
        for (int k = 0; k < RUN_MAX_CHECKPOINTS; k++) { sent.found.checkpoints[k] = cases[i].step; }
        CHECK(t, takes(&sent, true) == cases[i].good, "case %zu", i);
    }
}
