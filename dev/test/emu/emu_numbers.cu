// The emulator's bf16, half and fp8 against NVIDIA's: conversions over all 16-bit and 8-bit patterns, or over a
// million floats (all exponents, ties at each place and their neighbours, subnormals, infinities, NaNs), as a hash of
// all results. The hashes below are those of NVIDIA's headers, whose conversions run on the host as well, and this file
// compiles with both:
//     nvcc -std=c++17 -I. -o emu_numbers dev/test/emu/emu_numbers.cu && ./emu_numbers
// Then a conversion with a wrong hash here says what NVIDIA's headers give.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <vector>

#include "llmc/base/hash.h"
#include "dev/test/test_main.h"

typedef uint64_t Bits;

template <class T> static T of_bits(Bits bits) {
    T x;
    static_assert(sizeof(T) <= sizeof(bits), "little-endian: the low bytes");
    memcpy((void *)&x, &bits, sizeof(x));
    return x;
}
template <class T> static Bits to_bits(T x) {
    Bits bits = 0;
    memcpy(&bits, (const void *)&x, sizeof(x));
    return bits;
}

// ---- Inputs ----

// Every float that is a tie, or next to one, when cut at any place, at every exponent; every upper half with ties and
// their neighbours below it; and 2^18 others.
static std::vector<Bits> float_inputs(void) {
    std::vector<Bits> inputs;
    const uint32_t kept[] = {0, 1, 2, 3, 0x2aaaaa, 0x7fffff};
    for (uint32_t top = 0; top < 512; top++) { // sign and exponent
        for (int place = 0; place < 23; place++) {
            for (uint32_t above : kept) {
                uint32_t tie = ((above << (place + 1)) | (1u << place)) & 0x7fffff;
                for (int by = -1; by <= 1; by++) { inputs.push_back((top << 23) | ((tie + (uint32_t)by) & 0x7fffff)); }
            }
        }
    }
    const uint32_t rests[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
    for (uint32_t upper = 0; upper < 65536; upper++) {
        for (uint32_t rest : rests) { inputs.push_back(upper << 16 | rest); }
    }
    uint64_t state = 1;
    for (int i = 0; i < 1 << 18; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        inputs.push_back(state >> 32);
    }
    return inputs;
}

// The floats above as doubles, and neighbours that no float holds. Some come out wrong if rounded to a float first.
static std::vector<Bits> double_inputs(void) {
    std::vector<Bits> inputs;
    for (Bits bits : float_inputs()) {
        const double x = of_bits<float>(bits);
        inputs.push_back(to_bits(x));
        if (inputs.size() % 3 == 0 && x - x == 0.0) {
            inputs.push_back(to_bits(x) + 1), inputs.push_back(to_bits(x) - 1);
        }
    }
    return inputs;
}

// Integers of 64 bits: sums of two powers of two and their neighbours, ties among them, with both signs.
static std::vector<Bits> integer_inputs(void) {
    std::vector<Bits> inputs;
    for (int power = 0; power < 64; power++) {
        for (int other = 0; other <= power; other++) {
            for (int by = -3; by <= 3; by++) {
                const Bits x = ((Bits)1 << power | (Bits)1 << other) + (Bits)by;
                inputs.push_back(x), inputs.push_back(0 - x);
            }
        }
    }
    return inputs;
}

static std::vector<Bits> patterns(int count) {
    std::vector<Bits> inputs;
    for (int i = 0; i < count; i++) { inputs.push_back((Bits)i); }
    return inputs;
}
static std::vector<Bits> pattern16_inputs(void) { return patterns(65536); }
static std::vector<Bits> pattern8_inputs(void) { return patterns(256); }

// Two 16-bit numbers: every one with itself, a neighbour, its negative, a few fixed ones, and others of like size.
static std::vector<Bits> pair_inputs(void) {
    std::vector<Bits> inputs;
    const Bits fixed[] = {0, 0x8000, 1, 0x3f80, 0x3c00, 0x7f80, 0xff80, 0x7c00, 0x7f81, 0x7fff, 0xffff, 0x7f7f, 0x7bff};
    uint64_t state = 1;
    for (Bits a = 0; a < 65536; a++) {
        const Bits near[] = {a, (a + 1) & 0xffff, a ^ 0x8000};
        for (Bits b : near) { inputs.push_back(a | b << 16); }
        for (Bits b : fixed) { inputs.push_back(a | b << 16); }
        for (int i = 0; i < 8; i++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            inputs.push_back(a | (a ^ ((state >> 40) & (i % 2 == 0 ? 0x87ff : 0xffff))) << 16);
        }
    }
    return inputs;
}

// ---- Conversions, from bits to bits ----

typedef std::vector<Bits> (*Inputs)(void);
typedef struct {
    const char *name;
    Inputs inputs;
    Bits (*convert)(Bits);
    uint64_t hash; // of NVIDIA's results
} Conversion;

#define BF16(bits) of_bits<__nv_bfloat16>(bits)
#define HALF(bits) of_bits<__half>(bits)
#define FLOAT(bits) of_bits<float>(bits)
#define DOUBLE(bits) of_bits<double>(bits)
#define CONVERSION(name, inputs, expression, hash)                                                                     \
    {                                                                                                                  \
        name, inputs, [](Bits x) { return to_bits(expression); }, hash                                                 \
    }
// The results of an operation on two numbers a and b.
#define PAIR(T, name, expression, hash)                                                                                \
    {                                                                                                                  \
        name, pair_inputs,                                                                                             \
            [](Bits x) {                                                                                               \
                T a = of_bits<T>(x & 0xffff), b = of_bits<T>(x >> 16);                                                 \
                return to_bits(expression);                                                                            \
            },                                                                                                         \
            hash                                                                                                       \
    }
#define BF16_PAIR(...) PAIR(__nv_bfloat16, __VA_ARGS__)
#define HALF_PAIR(...) PAIR(__half, __VA_ARGS__)

static float2 two_floats(Bits x) { return make_float2(FLOAT(x), -0.75f * FLOAT(x)); }
static float4 four_floats(Bits x) { return make_float4(FLOAT(x), -0.75f * FLOAT(x), 3.0f * FLOAT(x), 1.0f); }
static __nv_bfloat162 two_bf16(Bits x) { return __nv_bfloat162(BF16(x), BF16(x ^ 0x8001)); }

static const Conversion conversions[] = {
    CONVERSION("bf16 to float", pattern16_inputs, __bfloat162float(BF16(x)), 0x10c6c9ab73646fe7),
    CONVERSION("float to bf16, rn", float_inputs, __float2bfloat16_rn(FLOAT(x)), 0xde3514cd5576c9ac),
    CONVERSION("float to bf16, rz", float_inputs, __float2bfloat16_rz(FLOAT(x)), 0x5be8799de8dd5109),
    CONVERSION("float to bf16, rd", float_inputs, __float2bfloat16_rd(FLOAT(x)), 0x439b06774eae25f8),
    CONVERSION("float to bf16, ru", float_inputs, __float2bfloat16_ru(FLOAT(x)), 0xcf5ad34fc9799dd4),
    CONVERSION("double to bf16", double_inputs, __double2bfloat16(DOUBLE(x)), 0xdc05e8204e938c19),
    CONVERSION("long long to bf16", integer_inputs, __ll2bfloat16_rn((long long)x), 0x1bd1f91ff087220f),
    CONVERSION("bf16 to int", pattern16_inputs, __bfloat162int_rz(BF16(x)), 0xfa28cb87f85f811c),
    CONVERSION("bf16 is NaN, is infinite", pattern16_inputs, 2 * __hisnan(BF16(x)) + __hisinf(BF16(x)),
               0x4b89a68300eecbd4),
    CONVERSION("bf16 negated", pattern16_inputs, __hneg(BF16(x)), 0x9c99f9bdf8200966),
    CONVERSION("bf16 without sign", pattern16_inputs, __habs(BF16(x)), 0xb666f655f3f0fd83),
    CONVERSION("two floats to bf16, halves", float_inputs,
               __lowhigh2highlow(__floats2bfloat162_rn(FLOAT(x), -FLOAT(x))), 0x89e15e9917076488),
    CONVERSION("two bf16 to float", pattern16_inputs, __bfloat1622float2(two_bf16(x)), 0x5eae167cb7a9e8e3),
    CONVERSION("two bf16, lower and upper", pattern16_inputs,
               __low2float(two_bf16(x)) - 2 * __high2float(two_bf16(x)) > 0, 0xb85e18a584431d4e),
    BF16_PAIR("bf16 a + b", __hadd(a, b), 0xf498e6f922587341),
    BF16_PAIR("bf16 a - b", __hsub(a, b), 0xce68110c1ea05d54),
    BF16_PAIR("bf16 a * b", __hmul(a, b), 0x9ede6a2d9727b289),
    BF16_PAIR("bf16 a / b", __hdiv(a, b), 0xb1923650b2972f34),
    BF16_PAIR("bf16 larger", __hmax(a, b), 0xdb05abc896675a89),
    BF16_PAIR("bf16 smaller", __hmin(a, b), 0xd711c2f638a1bcc4),
    BF16_PAIR("bf16 comparisons", (a < b) + 2 * (a <= b) + 4 * (a == b) + 8 * (a != b) + 16 * (a > b) + 32 * (a >= b),
              0xa792202e3d4412bb),
    CONVERSION("half to float", pattern16_inputs, __half2float(HALF(x)), 0x99c5cb6eaa3d2f2f),
    CONVERSION("float to half, rn", float_inputs, __float2half_rn(FLOAT(x)), 0xb11ca733534276cd),
    CONVERSION("float to half, rz", float_inputs, __float2half_rz(FLOAT(x)), 0x6fc939c4cb60e1bc),
    CONVERSION("float to half, rd", float_inputs, __float2half_rd(FLOAT(x)), 0x99c2530515d82517),
    CONVERSION("float to half, ru", float_inputs, __float2half_ru(FLOAT(x)), 0xcbf1faa6fc701653),
    CONVERSION("double to half", double_inputs, __double2half(DOUBLE(x)), 0x7cbc43a3cc69b461),
    CONVERSION("long long to half", integer_inputs, __ll2half_rn((long long)x), 0xfec93479966cf913),
    CONVERSION("half to int", pattern16_inputs, __half2int_rz(HALF(x)), 0xf2a06acf9d0f6cf0),
    HALF_PAIR("half a + b", __hadd(a, b), 0xd03849f28b944123),
    HALF_PAIR("half a * b", __hmul(a, b), 0x743f5e18f1d92ab3),
    HALF_PAIR("half a / b", __hdiv(a, b), 0xd8f0818ee9a51aca),
    HALF_PAIR("half comparisons", (a < b) + 2 * (a <= b) + 4 * (a == b) + 8 * (a != b), 0x04726e3ead1884b6),
    CONVERSION("e4m3 to half", pattern8_inputs, __nv_cvt_fp8_to_halfraw((__nv_fp8_storage_t)x, __NV_E4M3),
               0x8bb18d83dfee5e48),
    CONVERSION("e5m2 to half", pattern8_inputs, __nv_cvt_fp8_to_halfraw((__nv_fp8_storage_t)x, __NV_E5M2),
               0x77a3452cba9e2fda),
    CONVERSION("e4m3 to float", pattern8_inputs, (float)of_bits<__nv_fp8_e4m3>(x), 0xe47d61a048633968),
    CONVERSION("e5m2 to float", pattern8_inputs, (float)of_bits<__nv_fp8_e5m2>(x), 0x8bcba62c77a2fd0b),
    CONVERSION("e4m3 to bf16", pattern8_inputs, (__nv_bfloat16)of_bits<__nv_fp8_e4m3>(x), 0xdc628604412c827f),
    CONVERSION("float to e4m3", float_inputs, __nv_cvt_float_to_fp8(FLOAT(x), __NV_NOSAT, __NV_E4M3),
               0xebce49745e1cd927),
    CONVERSION("float to e5m2", float_inputs, __nv_cvt_float_to_fp8(FLOAT(x), __NV_NOSAT, __NV_E5M2),
               0x0b775082ebda5828),
    CONVERSION("double to e4m3", double_inputs, __nv_cvt_double_to_fp8(DOUBLE(x), __NV_SATFINITE, __NV_E4M3),
               0x135e8c196cf32def),
    CONVERSION("float to e4m3, limited", float_inputs, __nv_cvt_float_to_fp8(FLOAT(x), __NV_SATFINITE, __NV_E4M3),
               0x86cec0c95ec94f34),
    CONVERSION("float to e5m2, limited", float_inputs, __nv_cvt_float_to_fp8(FLOAT(x), __NV_SATFINITE, __NV_E5M2),
               0x6d119526c7b05d87),
    CONVERSION("bf16 to e4m3", pattern16_inputs, __nv_cvt_bfloat16raw_to_fp8(BF16(x), __NV_SATFINITE, __NV_E4M3),
               0x77a4ea6a1d2200a0),
    CONVERSION("half to e5m2", pattern16_inputs, __nv_cvt_halfraw_to_fp8(HALF(x), __NV_NOSAT, __NV_E5M2),
               0x12c5474c9c755b8c),
    CONVERSION("two floats to e4m3", float_inputs, __nv_cvt_float2_to_fp8x2(two_floats(x), __NV_SATFINITE, __NV_E4M3),
               0x423ab6fa4892bad0),
    CONVERSION("two floats to e5m2, constructor", float_inputs, __nv_fp8x2_e5m2(two_floats(x)), 0xd46d24729703975f),
    CONVERSION("four floats to e4m3", float_inputs, __nv_fp8x4_e4m3(four_floats(x)), 0x2bffdb2954e19da0),
    CONVERSION("four e4m3 to float", pattern16_inputs, ((float4)of_bits<__nv_fp8x4_e4m3>(x << 9)).z,
               0x89e8e318368efca8),
    CONVERSION("two e5m2 to half", pattern16_inputs, __nv_cvt_fp8x2_to_halfraw2((__nv_fp8x2_storage_t)x, __NV_E5M2),
               0x4a33028a3a707c7e),
};

static uint64_t hash_of(const Conversion *c) {
    std::vector<Bits> results = c->inputs();
    for (Bits &x : results) { x = c->convert(x); }
    return hash64(results.data(), results.size() * sizeof(Bits));
}

TEST(test_conversions) {
    for (const Conversion &c : conversions) {
        uint64_t hash = hash_of(&c);
        CHECK(t, hash == c.hash, "%s: hash of all results 0x%016llx, expected 0x%016llx", c.name,
              (unsigned long long)hash, (unsigned long long)c.hash);
    }
}

#ifdef EMU_FLOAT_H
// The operation that NVIDIA has on the GPU only. (1 + 2^-7) 1.5 lies midway between two neighbours; the addend, far
// below what a double holds beside it, decides.
TEST(test_fused_multiply_add) {
    __nv_bfloat16 x = __ushort_as_bfloat16(0x3f81), y = 1.5f, zero = 0.0f, tiny = __ushort_as_bfloat16(1);
    CHECK(t, to_bits(__hfma(x, y, zero)) == 0x3fc2, "a tie, to the even neighbour");
    CHECK(t, to_bits(__hfma(x, y, tiny)) == 0x3fc2, "above the tie");
    CHECK(t, to_bits(__hfma(x, y, -tiny)) == 0x3fc1, "below the tie");
}
#endif

int main(int argc, char **argv) { return test_main(argc, argv); }
