// Solutions of the exercises of chapter 10.

// Adding 0x7fff carries into the upper half if the lower half is above 0x8000. The last bit that stays, added, makes a
// tie carry if that bit is 1.
static uint16_t to_bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    if (x != x) { return (uint16_t)(bits >> 16 | 0x40); }
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static uint16_t to_bf16_at_random(float x, uint32_t random) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    if (!isfinite(x)) { return to_bf16(x); }
    return (uint16_t)((bits + (random & 0xffff)) >> 16);
}

static int factor_exponent(float amax) {
    int exponent;
    float m = frexpf(amax, &exponent);
    if (amax == 0.0f) { return 0; }
    return 9 - exponent - (m > 0.875f);
}
