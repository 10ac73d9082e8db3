// What test_transformers.py compares with the library's numbers:
//   numbers_tool logits MODEL OUT TOKEN...   writes, as float32, the logits (T,V) after each of the T tokens, computed
//                                            as a sample is, and the losses (T) of each token's successor (of the last:
//                                            token 0), computed as a validation is
//   numbers_tool encode TOKENIZER FILE       prints the ids of a text; TOKENIZER is byte or a file
#define main train_gpt2_main
#include "train_gpt2.c"
#undef main

typedef struct {
    Model model;
    MemoryPlan plan;
    ModelFile file;
} Tool;

static bool load_model(Tool *tool, const char *init, int T, Error *error) {
    if (!model_file_open(&tool->file, init, error)) { return false; }
    RunShape shape = {RUN_EVALUATES, 1, T, 0};
    if (T > tool->file.config.max_seq_len) { return fail(error, "%d tokens are too many", T); }
    model_plan(&tool->model, &tool->plan, &tool->file.config, shape, &gemm_portable);
    return plan_allocate(&tool->plan, error) && model_file_read(&tool->file, tool->model.params, error);
}

static bool write_logits(const char *init, const char *path, char **tokens, int T, Error *error) {
    static Tool tool; // zero
    AtomicFile out;
    Model *model = &tool.model;
    if (!load_model(&tool, init, T, error) || !atomic_open(&out, path, 0666, error)) { return false; }
    bool ok = true;
    for (int t = 0; ok && t < T; t++) {
        int token = atoi(tokens[t]);
        ok = (token >= 0 && token < model->config.vocab_size) || fail(error, "no token %d", token);
        if (!ok) { break; }
        generate_append(model, token);
        ok = atomic_write(&out, generate_logits(model), 4 * (int64_t)model->config.vocab_size, error);
    }
    if (ok) {
        for (int t = 0; t < T; t++) { // not before: the batch and what generates share memory
            model->tokens[t] = atoi(tokens[t]);
            model->targets[t] = t + 1 < T ? atoi(tokens[t + 1]) : 0;
        }
        model_forward(model, 1, T, 0.0f, false);
        ok = atomic_write(&out, model->acts.losses.data, 4 * (int64_t)T, error) && atomic_commit(&out, error);
    }
    atomic_close(&out);
    plan_free(&tool.plan);
    return ok;
}

static bool print_ids(const char *name, const char *path, Error *error) {
    Tokenizer t;
    uint8_t *text;
    int64_t bytes, count = 0;
    if (!tokenizer_open(&t, name, error)) { return false; }
    bool ok = read_whole_file(path, 1 << 20, &text, &bytes, error);
    uint32_t *tokens = ok ? (uint32_t *)malloc(4 * (size_t)bytes + 4) : NULL;
    ok = ok && tokenizer_encode(&t, text, (size_t)bytes, tokens, &count, error);
    for (int64_t i = 0; i < count; i++) { printf("%u ", tokens[i]); }
    printf("\n");
    free(tokens);
    free(text);
    tokenizer_free(&t);
    return ok;
}

int main(int argc, char **argv) {
    Error error = {"usage: logits MODEL OUT TOKEN... | encode TOKENIZER FILE"};
    bool ok = false;
    if (argc > 4 && strcmp(argv[1], "logits") == 0) { ok = write_logits(argv[2], argv[3], argv + 4, argc - 4, &error); }
    if (argc == 4 && strcmp(argv[1], "encode") == 0) { ok = print_ids(argv[2], argv[3], &error); }
    exit_unless(ok, "numbers_tool", &error);
    return EXIT_SUCCESS;
}
