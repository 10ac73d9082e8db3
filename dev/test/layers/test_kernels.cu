// Every kernel of llmc/ against the CPU trainer's layer, in the emulator (make build/emu/test_kernels) and on hardware
// (make build/cuda/test_kernels); for the other precision with PRECISION=FP32.
//
//   test_kernels                        all
//   test_kernels attention layernorm    these groups only
//   test_kernels --hashes ...           prints the hash of what each schedule test computed, to compare machines
//   test_kernels --list                 the names of the groups
#include "dev/test/layers/gpu_test.h"
#include "dev/test/layers/kernels_embedding.cuh"
#include "dev/test/layers/kernels_layernorm.cuh"
#include "dev/test/layers/kernels_matmul.cuh"
#include "dev/test/cuda/kernels_tune.cuh"
#include "dev/test/layers/kernels_gelu.cuh"
#include "dev/test/layers/kernels_fp8.cuh"
#include "dev/test/cuda/kernels_ptx.cuh"
#include "dev/test/layers/kernels_attention.cuh"
#include "dev/test/layers/kernels_cudnn.cuh"
#include "dev/test/layers/kernels_cross_entropy.cuh"
#include "dev/test/optim/kernels_update.cuh"
#include "dev/test/cuda/kernels_checksum.cuh"
#include "dev/test/cuda/kernels_graph.cuh"

typedef struct {
    const char *name;
    void (*run)(Suite *suite);
} Group;

static const Group GROUPS[] = {
    {"embedding", embedding_tests},
    {"layernorm", layernorm_tests},
    {"matmul", matmul_tests},
    {"tune", tune_tests},
    {"gelu", gelu_tests},
    {"fp8", fp8_tests},
    {"ptx", ptx_tests},
    {"attention", attention_tests},
    {"cudnn", cudnn_tests},
    {"cross_entropy", cross_entropy_tests},
    {"update", update_tests},
    {"checksum", checksum_tests},
    {"graph", graph_tests},
};
#define NUM_GROUPS (sizeof(GROUPS) / sizeof(GROUPS[0]))

static const Group *find_group(const char *name) {
    for (size_t i = 0; i < NUM_GROUPS; i++) {
        if (strcmp(GROUPS[i].name, name) == 0) { return &GROUPS[i]; }
    }
    return NULL;
}

static int list_groups(FILE *out) {
    for (size_t i = 0; i < NUM_GROUPS; i++) { fprintf(out, "%s\n", GROUPS[i].name); }
    return EXIT_SUCCESS;
}

int main(int argc, char **argv) {
    std::vector<const Group *> wanted;
    for (int i = 1; i < argc; i++) {
        const Group *group = find_group(argv[i]);
        if (strcmp(argv[i], "--list") == 0) { return list_groups(stdout); }
        if (strcmp(argv[i], "--hashes") == 0) {
            setenv("GPU_TEST_HASHES", "1", 1);
        } else if (group != NULL) {
            wanted.push_back(group);
        } else {
            fprintf(stderr, "test_kernels: there is no group '%s'; there are:\n", argv[i]);
            list_groups(stderr);
            return EXIT_FAILURE;
        }
    }
    Suite suite = suite_begin("kernels_" PRECISION_NAME);
    for (size_t i = 0; i < NUM_GROUPS && wanted.empty(); i++) { GROUPS[i].run(&suite); }
    for (const Group *group : wanted) { group->run(&suite); }
    return suite_end(&suite);
}
