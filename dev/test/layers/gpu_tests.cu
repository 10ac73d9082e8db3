// The kernels' tests and the GPU trainer's in one program, so that the headers of llmc/ are compiled once for both:
//
//   build/emu/gpu_tests              all
//   build/emu/gpu_tests layernorm    a group of test_kernels.cu; gpt2: the tests of test_gpt2.cu
#define main kernels_main
#include "dev/test/layers/test_kernels.cu"
#undef main
#include "test_gpt2.cu" // has the main function
