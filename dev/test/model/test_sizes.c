// Unit tests of the sizes that --init names.
#include "dev/test/refused.h"
#include "llmc/model/params.h"

// Parameters of a size with GPT-2's vocabulary, the padding of wte not counted.
static int64_t parameters_of(const char *name) {
    ModelConfig config = GPT2_CONFIG(0, GPT2_VOCAB_SIZE, GPT2_VOCAB_SIZE, 0, 0, 0);
    return model_config_from_size(&config, name) ? model_num_params(&config) : -1;
}

// The four models of GPT-2's release have two names each. The sums of their parameters are those of the released files.
TEST(test_released_sizes) {
    static const struct {
        const char *names[2];
        int64_t parameters;
    } released[] = {{{"d12", "124M"}, 124439808},
                    {{"d24", "350M"}, 354823168},
                    {{"d36", "774M"}, 774030080},
                    {{"d48", "1558M"}, 1557611200}};
    for (int i = 0; i < 8; i++) {
        const char *name = released[i / 2].names[i % 2];
        int64_t parameters = parameters_of(name);
        CHECK(t, parameters == released[i / 2].parameters, "%s has %lld parameters", name, (long long)parameters);
    }
    static const char *const none[] = {"", "d13", "12", "124m", "124M ", "gpt2"};
    FOR_EACH(i, none) { CHECK(t, model_find_size(none[i]) == NULL, "'%s' names a new model", none[i]); }
}

// Every name in the list of names is known, and none stands there twice. Every size of the table can be built.
TEST(test_size_names) {
    char names[] = MODEL_SIZE_NAMES;
    size_t count = 0, released = 0;
    for (char *name = strtok(names, " "); name != NULL; name = strtok(NULL, " "), count++) {
        ModelConfig config = GPT2_CONFIG(0, GPT2_VOCAB_SIZE, model_pad_vocab(GPT2_VOCAB_SIZE), 0, 0, 0);
        CHECK(t, model_config_from_size(&config, name) && model_check_config(&config, name, &error), "%s", name);
    }
    for (size_t i = 0; i < NUM_MODEL_SIZES; i++) {
        released += model_sizes[i].millions[0] != '\0';
        CHECK(t, model_find_size(model_sizes[i].name) == &model_sizes[i], "%s is not the first", model_sizes[i].name);
    }
    CHECK(t, released == 4 && count == NUM_MODEL_SIZES + released, "%zu names of %zu sizes", count, NUM_MODEL_SIZES);
}

// Heads that another process sends are checked before they divide anything. A model of one kind is told what helps it.
TEST(test_heads_that_do_not_fit) {
    ModelConfig config = GPT2_CONFIG(8, 9, 9, 1, 4, 8);
    OK(t, model_check_config(&config, "m", &error));
    for (int kv = -1; kv < 4; kv++) {
        for (int rotary = 0; rotary < 2; rotary++) {
            config.num_kv_heads = kv, config.rope_theta = rotary ? 1e4f : 1.0f;
            bool fits = rotary && (kv == 1 || kv == 2);
            bool ok = model_check_config(&config, "m", &error);
            CHECK(t, ok == fits, "%d heads of keys", kv);
            if (!fits) { FAILS(t, ok, rotary ? "divide heads" : "(no --kv-heads)"); }
        }
    }
}
