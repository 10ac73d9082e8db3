// The tests that see the structs and static functions of train_gpt2.c, in one program, so that it is compiled once for
// all of them:
//
//   build/test_trainer          all
//   build/test_trainer model    the suite of test_model.c; also layers, gpt2 (test_gpt2.c)

// Static: the compiler leaves out what only main needs.
static int train_gpt2_main(int argc, char *argv[]) __attribute__((unused));
#include "dev/test/cpu/test_model.c" // comes first, because it counts the allocations of what it includes
#include "dev/test/cpu/test_layers.c"
#include "test_gpt2.c" // has the main function
