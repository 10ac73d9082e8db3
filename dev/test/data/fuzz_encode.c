// Fuzz target: encoding by each rule. Any bytes come back from their tokens, in one piece and in parallel, and cutting
// the text where that is said to be harmless is harmless.
#include "dev/test/data/fuzz_round_trip.h"

static const Tokenizer *fuzz_tokenizer(int rule) {
    static const char *const files[] = {"dev/test/fixtures/small_tokenizer.bin",
                                        "dev/test/fixtures/llama3_tokenizer.bin",
                                        "dev/test/fixtures/smollm2_tokenizer.bin"};
    static Tokenizer t[3];
    require(t[rule].vocab_size > 0 || tokenizer_load(&t[rule], files[rule], &error));
    return &t[rule];
}

// Encodes both parts of a text and compares with the tokens of the whole.
static void check_cut(const Tokenizer *t, const uint8_t *data, size_t size, size_t cut, const uint32_t *whole,
                      int64_t count) {
    int64_t first, second;
    uint32_t *parts = (uint32_t *)malloc(size * sizeof(uint32_t) + 1);
    require(tokenizer_encode(t, data, cut, parts, &first, &error));
    require(tokenizer_encode(t, data + cut, size - cut, parts + first, &second, &error));
    require(first + second == count && memcmp(whole, parts, (size_t)count * sizeof(uint32_t)) == 0);
    free(parts);
}

static void check_encoding(const Tokenizer *t, const uint8_t *data, size_t size) {
    int64_t count, again;
    uint32_t *whole = (uint32_t *)malloc(size * sizeof(uint32_t) + 1); // exactly the room that is promised to suffice
    uint32_t *parallel = (uint32_t *)malloc(size * sizeof(uint32_t) + 1);
    require(tokenizer_encode(t, data, size, whole, &count, &error));
    require(comes_back(t, data, size, whole, count));
    require(tokenizer_encode_parallel(t, data, size, parallel, &again, &error) && again == count);
    require(memcmp(whole, parallel, (size_t)count * sizeof(uint32_t)) == 0);
    size_t last = tokenizer_last_split(t, data, size);
    if (last > 0) { check_cut(t, data, size, last, whole, count); }
    for (size_t cut = 1; cut < size && size < 150; cut++) {
        if (tokenizer_can_split(t, data, cut, size)) { check_cut(t, data, size, cut, whole, count); }
    }
    free(whole), free(parallel);
}

static void encode(const uint8_t *data, size_t size) {
    for (int rule = 0; rule < 3; rule++) { check_encoding(fuzz_tokenizer(rule), data, size); }
}

static const char *const seeds[] = {
    "It's a text, isn't it?  We'll\n\n  see: 3.14 = x1; \xe4\xbd\xa0\xe5\xa5\xbd \xf0\x9f\x98\x80!\r\n",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "IT'S 12345\r\n\n!\r\n  \xc5\xbf '\xc5\xbf'LL\t\xf0\x9f\x91\x8d \r 'Ve -a\n \x01\xf4 1  2",
    "\xc2\xa0\xe2\x80\x83 \xd9\xa3\xc2\xbd' s 'll\t\t \xff\xfe \xed\xa0\x80\xc0\x80 <|endoftext|>",
};

FUZZ_TEXT(seeds, encode)
