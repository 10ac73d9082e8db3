// Every kernel of llmc/ against the CPU trainer's layer, in the emulator (make build/emu/test_kernels) and on hardware
// (make build/cuda/test_kernels); for the other precision with PRECISION=FP32.
//
//   test_kernels                        all
//   test_kernels attention layernorm    these groups only
//   test_kernels --hashes ...           prints the hash of what each schedule test computed, to compare machines
//   test_kernels --list                 the names of the groups
#include "dev/test/layers/gpu_test.h"
#include "dev/test/test_main.h"
#include "dev/test/layers/kernels_embedding.cuh"
#include "dev/test/layers/kernels_layernorm.cuh"
#include "dev/test/layers/kernels_matmul.cuh"
#include "dev/test/layers/kernels_terms.cuh"
#include "dev/test/layers/kernels_gelu.cuh"
#include "dev/test/layers/kernels_swiglu.cuh"
#include "dev/test/layers/kernels_rope.cuh"
#include "dev/test/layers/kernels_fp8.cuh"
#include "dev/test/layers/kernels_attention.cuh"
#include "dev/test/layers/kernels_context.cuh"
#include "dev/test/layers/kernels_cudnn.cuh"
#include "dev/test/layers/kernels_cross_entropy.cuh"
#include "dev/test/optim/kernels_update.cuh"
#include "dev/test/optim/kernels_muon.cuh"
#include "dev/test/cuda/kernels_checksum.cuh"

int main(int argc, char **argv) {
    bool hashes = argc > 1 && strcmp(argv[1], "--hashes") == 0;
    if (hashes) { setenv("GPU_TEST_HASHES", "1", 1), argv[1] = argv[0]; }
    return test_main(argc - hashes, argv + hashes);
}
