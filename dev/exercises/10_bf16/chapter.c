// Chapter 10, bf16: the worked example of doc/10_bf16.md, and the checks of its exercises.
#include "dev/exercises/chapter.h"
#include ANSWERS
#include "llmc/cpu/shuffles.h"

static uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

static float float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

// The CPU trainer's rounding, for one number.
static float nearest_bf16(float x) { return vf_round_bf16(vf_set1(x))[0]; }

// What llmc/cuda/cuda_utils.cuh does on a GPU: adds 16 random bits below those that stay, and cuts.
static float random_bf16(float x, uint64_t key, uint64_t index) {
    uint32_t random = (uint32_t)(rand_mix(key + (index + 1) * RAND_GOLDEN) >> 32);
    return float_of((bits_of(x) + (random & 0xffff)) & 0xffff0000u);
}

// The value of an 8-bit code without sign: the format has `mantissa` bits of mantissa.
static double fp8_value(int code, int mantissa) {
    int bias = mantissa == 3 ? 7 : 15, exponent = code >> mantissa, fraction = code & ((1 << mantissa) - 1);
    if (exponent == 0) { return ldexp(fraction, 1 - bias - mantissa); }
    return ldexp((1 << mantissa) + fraction, exponent - bias - mantissa);
}

// The code of the nearest number, up to the largest one. The lower code of two is taken in a tie if it is even.
static int fp8_code(double x, int mantissa) {
    int best = 0, largest = mantissa == 3 ? 0x7e : 0x7b;
    for (int code = 1; code <= largest; code++) {
        double before = fabs(fabs(x) - fp8_value(best, mantissa)), now = fabs(fabs(x) - fp8_value(code, mantissa));
        if (now < before || (now == before && code % 2 == 0)) { best = code; }
    }
    return best;
}

static void print_format(const char *name, uint32_t bits, int exponent, int mantissa, double value) {
    printf("%-6s 0 ", name);
    for (int i = exponent + mantissa - 1; i >= 0; i--) { printf("%u%s", (bits >> i) & 1, i == mantissa ? " " : ""); }
    printf("%*s%.10g\n", 34 - exponent - mantissa, "", value);
}

static void formats(float x) {
    float rounded = nearest_bf16(x);
    int e4m3 = fp8_code((double)x, 3), e5m2 = fp8_code((double)x, 2);
    print_format("float", bits_of(x), 8, 23, (double)x);
    print_format("bf16", bits_of(rounded) >> 16, 8, 7, (double)rounded);
    print_format("e4m3", (uint32_t)e4m3, 4, 3, fp8_value(e4m3, 3));
    print_format("e5m2", (uint32_t)e5m2, 5, 2, fp8_value(e5m2, 2));
}

enum { WEIGHTS = 4096 };

// Weights of 1 get 1,024 updates of 2^-12, in four ways.
static void small_updates(void) {
    static float random[WEIGHTS];
    float nearest = 1.0f, master = 1.0f;
    for (int i = 0; i < WEIGHTS; i++) { random[i] = 1.0f; }
    printf("updates    exact   nearest   at random   mean of 4096   master, rounded\n");
    for (int update = 1; update <= 1024; update++) {
        const float step = 1.0f / 4096;
        uint64_t key = rand_u64(42, RAND_ROUNDING, (uint64_t)update);
        double sum = 0.0;
        nearest = nearest_bf16(nearest + step);
        for (int i = 0; i < WEIGHTS; i++) {
            sum += (double)(random[i] = random_bf16(random[i] + step, key, (uint64_t)i));
        }
        master += step;
        if ((update & (update - 1)) == 0 && update >= 128) {
            printf("%7d %8.5f %9.5f %11.5f %14.3f %17.5f\n", update, 1.0 + update / 4096.0, (double)nearest,
                   (double)random[0], sum / WEIGHTS, (double)nearest_bf16(master));
        }
    }
}

static void scaled_row(void) {
    const float x[] = {0.001f, -0.02f, 0.3f, 0.007f};
    const double factor = 1024.0; // 2^10: 0.3 * 2^10 = 307.2 is at most 448, and 0.3 * 2^11 is more
    printf("x          e4m3 of x   e4m3 of 1024 x   / 1024\n");
    for (int i = 0; i < 4; i++) {
        double sign = x[i] < 0.0f ? -1.0 : 1.0, scaled = sign * fp8_value(fp8_code(factor * (double)x[i], 3), 3);
        printf("%6.3f %13.6f %16.2f %11.6f\n", (double)x[i], sign * fp8_value(fp8_code((double)x[i], 3), 3), scaled,
               scaled / factor);
    }
}

static void example(void) {
    formats(0.3f);
    printf("\n");
    small_updates();
    printf("\n");
    scaled_row();
}

// All kinds of floats: ties, subnormal numbers, the largest ones, infinities, NaNs.
static float awkward(int i) {
    const uint32_t lower[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff},
                   upper[] = {0, 0x0001, 0x3f80, 0x3f81, 0x7f7f, 0x7f80, 0xc2f6, 0xff80};
    if (i < 48) { return float_of(upper[i / 6] << 16 | lower[i % 6]); }
    return float_of((uint32_t)(rand_u64(10, 1, (uint64_t)i) >> 32));
}

enum { AWKWARD = 20000 };

// Says by which wrong rule a float may have become these 16 bits.
static const char *wrong_rule(uint32_t bits, uint16_t got) {
    uint32_t magnitude = bits & 0x7fffffff, infinity = 0x7f800000, cut = bits >> 16;
    if (magnitude > infinity) { return ". Likely: a NaN needs a bit of mantissa that stays"; }
    if (magnitude == infinity) { return ". Likely: infinity is rounded like a number"; }
    if ((bits & 0xffff) == 0x8000 && got == cut + 1) {
        return ". Likely: a tie goes to the number whose last bit is 0";
    }
    if (got == cut) { return ". Likely: the lower half is cut off, or too little is added to it"; }
    return got == cut + 1 ? ". Likely: too much is added before the cut" : "";
}

static void check_nearest(Test *t) {
    for (int i = 0; i < AWKWARD; i++) {
        float x = awkward(i), want = nearest_bf16(x);
        uint16_t bits = to_bf16(x);
        float got = float_of((uint32_t)bits << 16);
        bool equal = x == x ? bits_of(got) == bits_of(want) : got != got;
        if (!CHECK(t, equal, "%.9g (bits %08x): got %.9g (%04x), want %.9g (%04x)%s", (double)x, bits_of(x),
                   (double)got, bits, (double)want, bits_of(want) >> 16, wrong_rule(bits_of(x), bits))) {
            return;
        }
    }
}

// Of the 65,536 random numbers, as many must round away from zero as the 16 bits below say: then the mean is exact.
static void check_stochastic(Test *t) {
    for (int i = 0; i < 60; i++) {
        float x = awkward(i);
        uint32_t cut = bits_of(x) & 0xffff0000u, away = 0, odd = 0, strange = 0;
        bool finite = x - x == 0.0f;
        for (uint32_t random = 0; random < 65536; random++) {
            uint32_t got = (uint32_t)to_bf16_at_random(x, random * 0x10001u) << 16;
            away += got == cut + 0x10000u;
            bool right = finite   ? got == cut || got == cut + 0x10000u
                         : x == x ? got == bits_of(x)
                                  : float_of(got) != float_of(got);
            if (!right) { strange = got, odd++; }
        }
        uint32_t want = bits_of(x) & 0xffffu;
        if (!CHECK(t, odd == 0, "%.9g (bits %08x): %u of 65536 random numbers give, for example, %.9g, want %s",
                   (double)x, bits_of(x), odd, (double)float_of(strange),
                   finite   ? "one of its two neighbours"
                   : x == x ? "the infinity again"
                            : "a NaN") ||
            !CHECK(t, !finite || away == want, "%.9g (bits %08x): %u of 65536 go away from zero, want %u%s", (double)x,
                   bits_of(x), away, want,
                   away == 0 || away == 65536 ? ". Likely: the random bits are not used"
                   : away == want + 1         ? ". Likely: random <= the lower half instead of random < it"
                                              : "")) {
            return;
        }
    }
}

static void check_factor(Test *t) {
    for (int i = 0; i < 400; i++) {
        float amax = ldexpf(1.0f + (float)(i % 16) / 16.0f, i / 16 * 6 - 70);
        if (i % 16 == 13) { amax = nextafterf(ldexpf(1.75f, i / 16 * 6 - 70), INFINITY); }
        int want = -200;
        while (ldexp((double)amax, want + 1) <= 448.0) { want++; }
        int got = factor_exponent(amax);
        double scaled = ldexp((double)amax, got);
        if (!CHECK(t, got == want, "amax %.9g: the exponent is %d, want %d; amax * 2^%d is %.9g, which %s",
                   (double)amax, got, want, got, scaled,
                   scaled > 448.0 ? "is above 448" : "leaves room for another factor of 2")) {
            return;
        }
    }
    CHECK(t, factor_exponent(0.0f) == 0, "amax 0: the exponent is %d, want 0", factor_exponent(0.0f));
}

static const Exercise exercises[] = {{"10.1 to bf16", check_nearest},
                                     {"10.2 to bf16 at random", check_stochastic},
                                     {"10.3 a factor for 8 bits", check_factor}};

int main(void) { return run_chapter("10_bf16", example, exercises); }
