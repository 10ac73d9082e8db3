// What another rank has sent is checked before it is used: here, of what rank 0 found out about --init and the folder.
#include "llmc/run/run_inputs.h"
#include "dev/test/refused.h"

// Stands for rank 0.
typedef struct {
    ModelFile file;
    int64_t step;
} Sent;

bool ranks_agree(Comm *sent, bool ok, Error *error) { return (void)sent, (void)error, ok; }

bool ranks_broadcast(Comm *sent, void *data, int64_t bytes, Error *error) {
    const Sent *s = (const Sent *)(void *)sent;
    (void)error;
    if (bytes == (int64_t)sizeof(s->file)) { memcpy(data, &s->file, sizeof(s->file)); }
    if (bytes == (int64_t)sizeof(s->step)) { memcpy(data, &s->step, sizeof(s->step)); }
    return true;
}

// Lets rank 1 take what was sent. Returns whether it did.
static bool takes(Sent *sent, bool folder) {
    static TrainRun run;
    static TrainOptions options;
    memset(&run, 0, sizeof(run));
    run.folder.resumes = -1;
    run.rank = 1, run.connected = 2;
    run.comm = (Comm *)(void *)sent;
    run.options = &options;
    options.out_dir = options.init = "somewhere";
    bool ok = folder ? run_share_checkpoint(&run, &run.config, &error) : run_open_model_file(&run, &error);
    free(run.model_file);
    return ok;
}

static Sent sent_model(const char *path) {
    Sent sent;
    memset(&sent, 0, sizeof(sent));
    model_config_from_size(&sent.file.config, "d12");
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

// A step is taken if it is one; none of them has a checkpoint here, which the error then says.
TEST(test_sent_steps) {
    static const struct {
        int64_t step;
        const char *error; // NULL: taken
    } cases[] = {{-1, NULL},
                 {10, "somewhere/state_00000010.bin"},
                 {-2, "rank 0 has not sent"},
                 {INT64_MIN, "rank 0 has not sent"},
                 {INT64_MAX, "rank 0 has not sent"}};
    FOR_EACH(i, cases) {
        Sent sent = sent_model("");
        sent.step = cases[i].step;
        if (cases[i].error == NULL) { OK(t, takes(&sent, true)); }
        if (cases[i].error != NULL) { FAILS(t, takes(&sent, true), cases[i].error); }
    }
}
