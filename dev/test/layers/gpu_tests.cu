// The kernels' tests and the GPU trainer's in one program, so that the headers of llmc/ are compiled once for both.
// Under another name it is the trainer: a quick run compiles train_gpt2.cu once.
//
//   build/emu/gpu_tests              all
//   build/emu/gpu_tests layernorm    a group of test_kernels.cu; gpt2: the tests of test_gpt2.cu
#define main kernels_main
#include "dev/test/layers/test_kernels.cu"
#undef main
#define IN_GPU_TESTS
#include "test_gpt2.cu"

int main(int argc, char **argv) {
    const char *slash = strrchr(argv[0], '/'), *name = slash != NULL ? slash + 1 : argv[0];
    return strcmp(name, "gpu_tests") == 0 ? test_main(argc, argv) : train_gpt2cu_main(argc, argv);
}
