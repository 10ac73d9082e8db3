// Exercises of chapter 10, bf16. Write the bodies; `make chapter-10` says which are right.

// 10.1 Rounds a float to the nearest bf16, and returns its 16 bits. In a tie the number whose last bit is 0 is taken.
// A number beyond the largest bf16 becomes infinity, and a NaN stays a NaN, also one whose upper 7 bits of mantissa are
// 0. The body below cuts: it rounds towards zero. Hint: what must be added to the bits, so that cutting rounds?
static uint16_t to_bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return (uint16_t)(bits >> 16);
}

// 10.2 Rounds a float to one of its two neighbours in bf16, by chance: away from zero in as many of the 65,536 cases of
// the lower 16 bits of `random` as the lower 16 bits of x say. So a bf16 does not change, and the mean over all cases
// is x. Infinities stay, and a NaN stays a NaN.
static uint16_t to_bf16_at_random(float x, uint32_t random) {
    (void)random;
    return to_bf16(x);
}

// 10.3 The largest e for which amax * 2^e is at most 448, the largest number of e4m3. 0 if amax is 0. amax is finite
// and not negative. No loop is needed: frexpf(x, &e) gives m with x = m * 2^e and 0.5 <= m < 1. 448 is 0.875 * 2^9.
static int factor_exponent(float amax) {
    (void)amax;
    return 0;
}
