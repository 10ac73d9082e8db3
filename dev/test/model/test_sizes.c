// Unit tests of the sizes that --init names.
#include "dev/test/test.h"
#include "llmc/model/gpt2.h"

// Parameters of a size with GPT-2's vocabulary, the padding of wte not counted.
static int64_t parameters_of(const char *name) {
    GPT2Config config = {0, GPT2_VOCAB_SIZE, GPT2_VOCAB_SIZE, 0, 0, 0};
    return gpt2_config_from_size(&config, name) ? gpt2_num_params(&config) : -1;
}

// The four models of GPT-2's release have two names each. The sums of their parameters are those of the released files.
TEST(test_released_sizes) {
    static const struct {
        const char *name, *millions;
        int64_t parameters;
    } released[] = {{"d12", "124M", 124439808},
                    {"d24", "350M", 354823168},
                    {"d36", "774M", 774030080},
                    {"d48", "1558M", 1557611200}};
    for (int i = 0; i < 4; i++) {
        CHECK(t, parameters_of(released[i].name) == released[i].parameters, "%s has %lld parameters", released[i].name,
              (long long)parameters_of(released[i].name));
        CHECK(t, parameters_of(released[i].millions) == released[i].parameters, "%s has %lld parameters",
              released[i].millions, (long long)parameters_of(released[i].millions));
    }
    static const char *const none[] = {"",     "d13",         "12",         "124m",   "124M ",
                                       "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"};
    for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++) {
        CHECK(t, gpt2_find_size(none[i]) == NULL, "'%s' names a new model", none[i]);
    }
}

// Released weights have a name, which no new model has.
TEST(test_released_weights) {
    const GPT2Size *xl = gpt2_find_release("gpt2-xl");
    CHECK(t, xl != NULL && strcmp(xl->name, "d48") == 0, "gpt2-xl");
    CHECK(t, gpt2_find_release("") == NULL && gpt2_find_release("d6") == NULL && gpt2_find_release("124M") == NULL,
          "none");
}

// Every name in the list of names is known, and none stands there twice. Every size of the table can be built.
TEST(test_size_names) {
    char names[] = GPT2_SIZE_NAMES;
    size_t count = 0, released = 0;
    for (char *name = strtok(names, " "); name != NULL; name = strtok(NULL, " "), count++) {
        GPT2Config config = {0, GPT2_VOCAB_SIZE, gpt2_pad_vocab(GPT2_VOCAB_SIZE), 0, 0, 0};
        Error error;
        CHECK(t, gpt2_config_from_size(&config, name) && gpt2_check_config(&config, name, &error), "%s", name);
    }
    for (size_t i = 0; i < NUM_GPT2_SIZES; i++) {
        released += gpt2_sizes[i].millions[0] != '\0';
        CHECK(t, gpt2_find_size(gpt2_sizes[i].name) == &gpt2_sizes[i], "%s is not the first", gpt2_sizes[i].name);
    }
    CHECK(t, released == 4 && count == NUM_GPT2_SIZES + released, "%zu names of %zu sizes", count, NUM_GPT2_SIZES);
}
