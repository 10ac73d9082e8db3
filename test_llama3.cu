// Tests the GPU trainer for Llama against the numbers of transformers in float64 (dev/test/fixtures/README.md,
// "Llama"), and runs what test_gpt2.cu says of any model. Under another name it is the trainer: a quick run compiles it
// once.
#define TEST_LLAMA3
#include "test_gpt2.cu"

#include <fstream>

// How far transformers' own losses in bfloat16 are from its float64, on average, as distances.txt says.
static double distance_of_bf16(const std::string &name) {
    std::ifstream file(FIXTURES "llama/distances.txt");
    std::string word, fp32;
    double mean = NAN;
    while (file >> word) {
        if (word == name) { file >> fp32 >> mean; }
    }
    return mean;
}

// Checks the loss at each position, and the gradient of each tensor.
static void check_reference(Test *t, const std::string &name) {
    Wanted w = wanted_open(t, "llama/" + name);
    Rig m(t, &w.config, trains(w.B, w.T, RECOMPUTE_NOTHING, FUSE_NOTHING));
    if (!rig_load(t, &m, w.model.c_str())) { return; }
    Trainer *trainer = &m.trainer;
    BatchRole role;
    role.loss_sum = trainer->stats.loss_sum;
    run_tokens(trainer, w.inputs, w.targets, w.B, w.T, &role);
    std::vector<float> losses = to_host(trainer->model.acts.losses.data, w.N); // a backward pass would write over them
    check_loss(t, trainer, name + ", loss", gradient_of(trainer, w), w);
    check_tensor(t, name + ", losses", losses, w.losses, tolerance(longest_reduction(trainer), forward_depth(trainer)));
    check_gradients(t, trainer, w.grads, name.c_str());
    double mean = 0.0;
    for (int i = 0; i < w.N; i++) { mean += fabs((double)losses[(size_t)i] - (double)w.losses[i]) / w.N; }
    CHECK(t, mean <= distance_of_bf16(name), "%s: losses are %g off on average, those of transformers in bf16 %g",
          name.c_str(), mean, distance_of_bf16(name));
}

TEST(test_like_transformers) {
    const char *const names[] = {"g4_untied_bias_hs16", "g1_untied",      "g2_tied_bias",
                                 "g3_tied_scaled",      "g2_tied_scaled", "g4_untied_scaled_hs16",
                                 "g8_tied_hs8"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i += test_is_quick() ? 3 : 1) {
        check_reference(t, names[i]);
    }
}

int main(int argc, char **argv) {
    const char *slash = strrchr(argv[0], '/'), *name = slash != NULL ? slash + 1 : argv[0];
    return strncmp(name, "test", 4) == 0 ? test_main(argc, argv) : train_llama3cu_main(argc, argv);
}
