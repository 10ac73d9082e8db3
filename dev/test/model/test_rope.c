// Unit tests of the rotary embedding's frequencies and its table (llmc/model/rope.h).
#include "dev/test/test.h"
#include "llmc/model/rope.h"

static ModelConfig rope_model(int head_size, float theta, float factor) {
    ModelConfig c;
    memset(&c, 0, sizeof(c));
    c.head_size = head_size, c.rope_theta = theta, c.rope_factor = factor;
    c.rope_low = 1.0f, c.rope_high = factor > 1.0f ? 4.0f : 1.0f, c.rope_context = factor > 1.0f ? 8192 : 0;
    return c;
}

// Frequencies on both sides of the two wavelengths, and between them, as transformers' ROPE_INIT_FUNCTIONS["llama3"]
// and "default" compute them in fp32: off by a few roundings.
TEST(test_frequencies) {
    const ModelConfig llama_1B = rope_model(64, 5e5f, 32.0f), llama_8B = rope_model(128, 5e5f, 8.0f);
    const ModelConfig smol = rope_model(64, 1e5f, 1.0f);
    const struct {
        const ModelConfig *model;
        int j;
        double want;
    } cases[] = {{&llama_1B, 0, 1.0},
                 {&llama_1B, 1, 0.663601279258728},
                 {&llama_1B, 14, 0.0032114461064338684},
                 {&llama_1B, 15, 0.0012905480107292533},
                 {&llama_1B, 17, 9.708286233944818e-05},
                 {&llama_8B, 28, 0.0032114461064338684},
                 {&llama_8B, 31, 0.0008567514596506953},
                 {&llama_8B, 63, 3.068925877869333e-07},
                 {&smol, 1, 0.6978305848598664},
                 {&smol, 31, 1.4330125702369627e-05}};
    FOR_EACH(i, cases) {
        double got = rope_frequency(cases[i].model, cases[i].j), want = cases[i].want;
        CHECK(t, fabs(got - want) <= 8.0 * 0x1p-24 * want, "f[%d] of case %d is %.9g, expected %.9g", cases[i].j,
              (int)i, got, want);
    }
}

// Each pair of a row is the cosine and the sine of its angle, far from position 0, too, where an angle in fp32 would be
// off by 0.004. Cosine and sine are rounded once.
TEST(test_table) {
    enum { T = 9000, HS = 6 };
    const ModelConfig c = rope_model(HS, 500.0f, 1.0f);
    int64_t floats = rope_table_floats(&c, T);
    CHECK(t, floats == T * HS, "%lld floats", (long long)floats);
    float *table = (float *)malloc((size_t)floats * sizeof(float));
    if (table == NULL) { abort(); }
    rope_table(table, T, &c);
    const int positions[] = {0, 1, 17, 8999};
    FOR_EACH(i, positions) {
        for (int j = 0; j < HS / 2; j++) {
            const float *pair = table + (positions[i] * (HS / 2) + j) * 2;
            double angle = positions[i] * pow(500.0, -j / 3.0);
            CHECK(t, fabs((double)pair[0] - cos(angle)) <= 0x1p-24 && fabs((double)pair[1] - sin(angle)) <= 0x1p-24,
                  "position %d, pair %d: %.9g, %.9g", positions[i], j, (double)pair[0], (double)pair[1]);
        }
    }
    free(table);
}
