// What the tests of the kernels share: device arrays, random inputs rounded to the build's precision, tolerances, and
// the repetition over schedules. Runs in the emulator and on hardware alike.
#ifndef GPU_TEST_H
#define GPU_TEST_H

#include <float.h>

#include <string>
#include <vector>

#include "llmc/cuda/cuda_utils.cuh"
#include "llmc/base/hash.h"
#include "dev/test/layers/oracle.h"
#include "dev/test/layers/oracle_llama3.h"
#include "dev/test/test.h"
#ifdef GPT2_EMU
#include <emu.h>
#endif

// The relative distance between neighbouring values of floatX: an operation rounded to it is off by half of this.
#ifdef PRECISION_FP32
#define FLOATX_EPSILON FLT_EPSILON
#else
#define FLOATX_EPSILON 0.0078125 // 2^-7
#endif

static inline float floatX_to_host(float x) { return x; }
static inline float floatX_to_host(__nv_bfloat16 x) { return __bfloat162float(x); }
static inline void floatX_from_host(float *out, float x) { *out = x; }
static inline void floatX_from_host(__nv_bfloat16 *out, float x) { *out = __float2bfloat16_rn(x); }

// What x becomes when it is stored as floatX: inputs of tests are of this kind, so that both sides begin alike.
static inline float rounded(float x) {
    floatX stored;
    floatX_from_host(&stored, x);
    return floatX_to_host(stored);
}

// Standard normal numbers times scale, rounded to floatX; another stream, other numbers.
static inline std::vector<float> random_values(int64_t n, float scale, int stream) {
    std::vector<float> values((size_t)n + 1);
    for (int64_t i = 0; i < n; i += 2) {
        float pair[2];
        rand_normal_pair(4321, (uint64_t)stream, (uint64_t)i, pair);
        values[(size_t)i] = rounded(scale * pair[0]);
        values[(size_t)i + 1] = rounded(scale * pair[1]);
    }
    values.resize((size_t)n);
    return values;
}

// Multiples of 1/8 below 2: float32 sums of them are exact in any order, so that a term missed or added twice is seen.
static inline std::vector<float> random_eighths(int64_t n, int stream) {
    std::vector<float> values((size_t)n);
    for (int64_t i = 0; i < n; i++) {
        values[(size_t)i] = (float)((int)(rand_u64(99, (uint64_t)stream, (uint64_t)i) % 31) - 15) / 8.0f;
    }
    return values;
}

// 0 .. limit-1.
static inline std::vector<int32_t> random_ids(int64_t n, int limit, int stream) {
    std::vector<int32_t> ids((size_t)n);
    for (int64_t i = 0; i < n; i++) {
        ids[(size_t)i] = (int32_t)(rand_u64(99, (uint64_t)stream, (uint64_t)i) % (uint64_t)limit);
    }
    return ids;
}

// An array of T on the device. A new one holds NaN bytes.
template <class T> struct DeviceArray {
    T *data = nullptr;
    int64_t count = 0;

    explicit DeviceArray(int64_t n) : count(n) {
        cuda_check(cudaMalloc((void **)&data, (size_t)max_i64(n, 1) * sizeof(T)));
        poison();
    }
    explicit DeviceArray(const std::vector<float> &values) : DeviceArray((int64_t)values.size()) { set(values); }
    explicit DeviceArray(const std::vector<int32_t> &values) : DeviceArray((int64_t)values.size()) {
        static_assert(sizeof(T) == sizeof(int32_t), "integers");
        cuda_check(cudaMemcpy(data, values.data(), values.size() * sizeof(int32_t), cudaMemcpyHostToDevice));
    }
    DeviceArray(const DeviceArray &) = delete;
    DeviceArray &operator=(const DeviceArray &) = delete;
    ~DeviceArray() { cudaFree(data); }

    void poison() { cuda_check(cudaMemset(data, 0xff, (size_t)count * sizeof(T))); }
    void put(const T &value, int64_t at = 0) {
        cuda_check(cudaMemcpy(data + at, &value, sizeof(T), cudaMemcpyHostToDevice));
    }
    void clear() { cuda_check(cudaMemset(data, 0, (size_t)count * sizeof(T))); }
    void set(const std::vector<float> &values) {
        std::vector<T> stored(values.size());
        for (size_t i = 0; i < values.size(); i++) { floatX_from_host(&stored[i], values[i]); }
        cuda_check(cudaMemcpy(data, stored.data(), stored.size() * sizeof(T), cudaMemcpyHostToDevice));
    }
    std::vector<T> raw() const {
        std::vector<T> stored((size_t)count);
        cuda_check(cudaMemcpy(stored.data(), data, stored.size() * sizeof(T), cudaMemcpyDeviceToHost));
        return stored;
    }
    std::vector<float> get() const {
        std::vector<T> stored = raw();
        std::vector<float> values(stored.size());
        for (size_t i = 0; i < values.size(); i++) { values[i] = floatX_to_host(stored[i]); }
        return values;
    }
    uint64_t hash() const {
        std::vector<T> stored = raw();
        return hash64(stored.data(), stored.size() * sizeof(T));
    }
};

// Does this GPU multiply 8-bit numbers? It quantises to them in any case.
static inline bool gpu_has_fp8(void) {
    struct cudaDeviceProp device;
    cuda_check(cudaGetDeviceProperties(&device, 0));
    return 10 * device.major + device.minor >= 89;
}

static inline uint64_t hash_of(const std::vector<float> &values) {
    return hash64(values.data(), values.size() * sizeof(float));
}

static inline double largest(const std::vector<float> &values) {
    double max = 0.0;
    for (float x : values) { max = fmax(max, fabs((double)x)); }
    return max;
}

// A kernel's amax: memory for it that holds `before`, and what the kernel must have left of that and its results.
struct Amax {
    DeviceArray<float> value;
    explicit Amax(float before = 0.0f) : value(1) { value.put(before); }
    uint32_t *data() { return reinterpret_cast<uint32_t *>(value.data); }
    void check(Test *t, const std::string &what, const std::vector<float> &results, float before = 0.0f) const {
        double got = (double)value.raw()[0], want = fmax(largest(results), (double)before);
        CHECK(t, got == want, "%s: amax is %.9g, expected %.9g", what.c_str(), got, want);
    }
};

// Each value within absolute + relative * |want|; a NaN fails.
static inline bool check_values(Test *t, const std::string &what, const std::vector<float> &got,
                                const std::vector<float> &want, double absolute, double relative) {
    if (!CHECK(t, got.size() == want.size(), "%s: %zu values, expected %zu", what.c_str(), got.size(), want.size())) {
        return false;
    }
    return check_close(t, what.c_str(), got.data(), want.data(), want.size(), absolute, relative);
}

// check_values to the bit, but for -0 and 0.
static inline bool check_equal(Test *t, const std::string &what, const std::vector<float> &got,
                               const std::vector<float> &want) {
    return check_values(t, what, got, want, 0.0, 0.0);
}

// Columns [first, first + width) of a matrix whose rows have `stride` values.
static inline std::vector<float> columns_of(const std::vector<float> &matrix, int64_t first, int64_t width,
                                            int64_t stride) {
    std::vector<float> strip;
    for (auto row = matrix.begin(); row < matrix.end(); row += stride) {
        strip.insert(strip.end(), row + first, row + first + width);
    }
    return strip;
}

// Passes values within their bounds + relative * |want|, + FLT_MIN, below which a value may as well be 0. A NaN fails.
static inline void check_within(Test *t, const std::string &what, const std::vector<float> &got,
                                const std::vector<float> &want, const std::vector<float> &bounds, double relative) {
    size_t bad = 0, first = 0;
    CHECK(t, got.size() == want.size() && got.size() == bounds.size(), "%s: %zu values", what.c_str(), got.size());
    for (size_t i = 0; i < got.size(); i++) {
        double error = fabs((double)got[i] - (double)want[i]);
        bool ok = error <= (double)bounds[i] + relative * fabs((double)want[i]) + FLT_MIN;
        if (!ok && bad++ == 0) { first = i; }
    }
    CHECK(t, bad == 0, "%s: %zu of %zu values differ; the first is %zu: got %.9g, want %.9g +- %.3g", what.c_str(), bad,
          got.size(), first, (double)got[first], (double)want[first],
          (double)bounds[first] + relative * fabs((double)want[first]));
}

// What a float32 sum of K terms of random sign may be off by, relative to the size of the result's largest values:
// about sqrt(K) half epsilons, 4 times that for the worst of thousands.
static inline double sum_tolerance(int64_t K) { return 2.0 * sqrt((double)K) * FLT_EPSILON; }

// Sums over the columns of values (N, want.size()), added to what `want` holds. Both sides take the values that were
// stored, so that only the order of the sum differs.
static inline void check_column_sums(Test *t, const std::string &what, const std::vector<float> &got,
                                     std::vector<float> want, const std::vector<float> &values) {
    size_t columns = want.size(), N = columns > 0 ? values.size() / columns : 0;
    double sizes = 0.0;
    for (size_t c = 0; c < columns; c++) {
        double sum = (double)want[c], size = fabs(sum);
        for (size_t row = 0; row < N; row++) {
            sum += (double)values[row * columns + c], size += fabs((double)values[row * columns + c]);
        }
        want[c] = (float)sum, sizes = fmax(sizes, size);
    }
    check_values(t, what, got, want, sum_tolerance((int64_t)N + 1) * sizes, FLT_EPSILON);
}

// Runs `body` under three schedules of the emulator (on hardware twice, for determinism). body returns a hash of what
// it computed; all must be equal. With GPU_TEST_HASHES in the environment it is printed, so that machines can be
// compared.
template <class Body> static inline void for_each_schedule(Test *t, const char *what, Body body) {
#ifdef GPT2_EMU
    const char *schedules[] = {"forward", "reversed", "random:7"};
#else
    const char *schedules[] = {"first run", "second run"};
#endif
    uint64_t first = 0;
    bool is_first = true;
    for (const char *schedule : schedules) {
#ifdef GPT2_EMU
        emu::set_schedule(schedule);
#endif
        uint64_t hash = body();
        CHECK(t, is_first || hash == first, "%s: other bits with schedule %s: %016llx, %016llx before", what, schedule,
              (unsigned long long)hash, (unsigned long long)first);
        if (is_first) { first = hash; }
        is_first = false;
    }
#ifdef GPT2_EMU
    emu::set_schedule("forward");
#endif
    if (getenv("GPU_TEST_HASHES") != NULL) {
        printf("hash %s %s %016llx\n", PRECISION_NAME, what, (unsigned long long)first);
    }
}

#endif // GPU_TEST_H
