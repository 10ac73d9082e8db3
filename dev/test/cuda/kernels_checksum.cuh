// Tests of llmc/cuda/cuda_utils.cuh and cuda_common.h.
#ifndef KERNELS_CHECKSUM_CUH
#define KERNELS_CHECKSUM_CUH

#include "llmc/cuda/cuda_utils.cuh"
#include "dev/test/layers/gpu_test.h"

typedef std::vector<uint32_t> Words;

// The formula once more, from its description.
static uint64_t host_checksum(const Words &words) {
    uint64_t sum = 0;
    for (uint64_t i = 0; i < words.size(); i++) {
        uint64_t x = (i << 32 | i >> 32) + words[i] + 1;
        x ^= x >> 33, x *= 0xff51afd7ed558ccdULL;
        x ^= x >> 33, x *= 0xc4ceb9fe1a85ec53ULL;
        x ^= x >> 33;
        sum += x;
    }
    return sum;
}

// Of the words at `skipped` words behind the beginning of an allocation, added to `before`.
static uint64_t gpu_checksum(const Words &words, size_t skipped = 0, uint64_t before = 0) {
    DeviceArray<uint32_t> device((int64_t)(words.size() + skipped));
    DeviceArray<uint64_t> sum(1);
    sum.put(before);
    cuda_check(
        cudaMemcpy(device.data + skipped, words.data(), words.size() * sizeof(uint32_t), cudaMemcpyHostToDevice));
    add_checksum(sum.data, device.data + skipped, (int64_t)(words.size() * sizeof(uint32_t)), 0);
    return sum.raw()[0];
}

static Words random_words(int64_t n, int stream) {
    Words words((size_t)n);
    for (int64_t i = 0; i < n; i++) { words[(size_t)i] = (uint32_t)rand_u64(77, (uint64_t)stream, (uint64_t)i); }
    return words;
}

// Sizes around a warp, a block, and all threads of the largest grid, some of which then take two words. Where the words
// lie does not count, nor what lies before them. The sum is added to the number before it, however large that is.
TEST(test_checksum) {
    const int64_t grid = 1024 * CHECKSUM_BLOCK;
    for (int64_t n : {(int64_t)0, (int64_t)1, (int64_t)33, (int64_t)255, (int64_t)257, grid - 1, grid, grid + 1}) {
        Words words = random_words(n, 1);
        uint64_t sum = host_checksum(words);
        for (size_t skipped : {0, 1, 2, 31}) {
            uint64_t before = ~(uint64_t)0 - skipped, got = gpu_checksum(words, skipped, before), want = before + sum;
            CHECK(t, got == want, "%lld words, %zu further: %016llx, expected %016llx", (long long)n, skipped,
                  (unsigned long long)got, (unsigned long long)want);
        }
    }
    for (uint32_t word : {0u, 0xffffffffu, 0x7fc00000u}) {
        Words words(1000, word);
        CHECK(t, gpu_checksum(words) == host_checksum(words), "another sum of 1000 words 0x%08x", word);
    }
    Words words = random_words(grid + 5000, 4);
    for_each_schedule(t, "checksum", [&] { return gpu_checksum(words); });
}

// What the user is told to do where the driver, the GPU and the program do not fit each other.
TEST(test_cuda_remedies) {
    const struct {
        cudaError_t status;
        const char *says;
    } cases[] = {{cudaErrorInsufficientDriver, "no NVIDIA driver, or one too old"},
                 {cudaErrorUnsupportedPtxVersion, "the driver is too old to translate it"},
                 {cudaErrorUnsupportedPtxVersion, "GPU_ARCH="},
                 {cudaErrorNoKernelImageForDevice, "GPU_ARCH="}};
    for (auto c : cases) {
        const char *remedy = cuda_remedy(c.status);
        CHECK(t, strstr(remedy, c.says) != NULL, "%s: '%s' lacks '%s'", cudaGetErrorName(c.status), remedy, c.says);
    }
}

#endif // KERNELS_CHECKSUM_CUH
