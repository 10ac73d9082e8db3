// The tests that see the structs and static functions of train_gpt2.c, in one program, so that it is compiled once for
// all of them:
//
//   build/test_trainer          all
//   build/test_trainer model    the suite of test_model.c; also layers, gpt2 (test_gpt2.c), trainer (this file)

// Static: the compiler leaves out what only main needs.
static int train_gpt2_main(int argc, char *argv[]) __attribute__((unused));
#include "dev/test/cpu/test_model.c" // comes first, because it counts the allocations of what it includes
#include "dev/test/cpu/test_layers.c"
#include "dev/test/cpu/fuzz_evaluate.c"
#include "test_gpt2.c" // has the main function

#define main fuzz_main
#include "dev/test/fuzz_main.c"
#undef main

// The fuzzer of evaluations, which is a program of its own for libFuzzer.
TEST(test_fuzzed_evaluations) {
    char name[] = "fuzz_evaluate", few[] = "200", many[] = "2000", *argv[] = {name, test_is_quick() ? few : many, NULL};
    CHECK(t, fuzz_main(2, argv) == EXIT_SUCCESS, "the fuzzer has no valid inputs");
}
