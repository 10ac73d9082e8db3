// SHA-256 against the digests of FIPS 180-4's examples and RFC 6234, HMAC-SHA256 against RFC 4231.
#include "llmc/ranks/hmac.h"
#include "dev/test/test.h"

typedef struct {
    char text[2 * SHA256_BYTES + 1];
} Hex;

static Hex hex(const uint8_t *digest) {
    Hex hex;
    for (int i = 0; i < SHA256_BYTES; i++) { sprintf(hex.text + 2 * i, "%02x", digest[i]); }
    return hex;
}

// RFC 6234 repeats a text; the last rows have its messages of odd lengths.
TEST(test_sha256) {
    static const struct {
        const char *text;
        int times;
        const char *digest;
    } cases[] = {
        {"", 1, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {"abc", 1, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 1,
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
        {"a", 1000000, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"},
        {"0123456701234567012345670123456701234567012345670123456701234567", 10,
         "594847328451bdfa85056225462cc1d867d877fb388df0ce35f25ab5562bfbb5"},
        {"\x19", 1, "68aa2e2ee5dff96e3355e6c7ee373e3d6a4e17f75f9518d843709c0c9bc3e3d4"},
        {"\xe3\xd7\x25\x70\xdc\xdd\x78\x7c\xe3\x88\x7a\xb2\xcd\x68\x46\x52", 1,
         "175ee69b02ba9b58e2b0a5fd13819cea573f3940a94f825128cf4209beabb4e8"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint8_t digest[SHA256_BYTES];
        Sha256 hash;
        sha256_init(&hash);
        for (int k = 0; k < cases[i].times; k++) { sha256_update(&hash, cases[i].text, strlen(cases[i].text)); }
        sha256_final(&hash, digest);
        CHECK(t, strcmp(hex(digest).text, cases[i].digest) == 0, "case %zu: %s", i, hex(digest).text);
    }
}

// Each length around the border of a block, at once and in pieces.
TEST(test_sha256_pieces) {
    uint8_t data[200], whole[SHA256_BYTES], pieces[SHA256_BYTES];
    for (size_t i = 0; i < sizeof(data); i++) { data[i] = (uint8_t)(37 * i); }
    for (size_t n = 0; n <= sizeof(data); n++) {
        Sha256 hash;
        sha256(data, n, whole);
        for (size_t first = 0; first <= n; first += 13) {
            sha256_init(&hash);
            sha256_update(&hash, data, first);
            sha256_update(&hash, data + first, n - first);
            sha256_final(&hash, pieces);
            CHECK(t, memcmp(whole, pieces, sizeof(whole)) == 0, "%zu bytes, %zu first", n, first);
        }
    }
}

// RFC 4231, section 4: `count` times a byte, or a text. Test case 5 has only the first 128 bits.
TEST(test_hmac) {
    static const struct {
        const char *key;
        size_t key_bytes; // of key[0], if key is NULL: 1, 2, 3, ...
        const char *data;
        size_t data_bytes; // of data[0]; 0: the text
        const char *code;
    } cases[] = {
        {"\x0b", 20, "Hi There", 0, "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"},
        {"Jefe", 0, "what do ya want for nothing?", 0,
         "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"},
        {"\xaa", 20, "\xdd", 50, "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe"},
        {NULL, 25, "\xcd", 50, "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b"},
        {"\x0c", 20, "Test With Truncation", 0, "a3b6167473100ee06e0c796c2955552b"},
        {"\xaa", 131, "Test Using Larger Than Block-Size Key - Hash Key First", 0,
         "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"},
        {"\xaa", 131,
         "This is a test using a larger than block-size key and a larger than block-size data. The key needs to be "
         "hashed before being used by the HMAC algorithm.",
         0, "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint8_t key[131], data[200], digest[SHA256_BYTES];
        size_t n = cases[i].key_bytes, m = cases[i].data_bytes;
        HmacSha256 code;
        for (size_t k = 0; k < n; k++) { key[k] = cases[i].key != NULL ? (uint8_t)cases[i].key[0] : (uint8_t)(k + 1); }
        if (n == 0) { memcpy(key, cases[i].key, n = strlen(cases[i].key)); }
        for (size_t k = 0; k < m; k++) { data[k] = (uint8_t)cases[i].data[0]; }
        if (m == 0) { memcpy(data, cases[i].data, m = strlen(cases[i].data)); }
        hmac_init(&code, key, n);
        sha256_update(&code.inner, data, m / 2);
        sha256_update(&code.inner, data + m / 2, m - m / 2);
        hmac_final(&code, digest);
        CHECK(t, strncmp(hex(digest).text, cases[i].code, strlen(cases[i].code)) == 0, "case %zu: %s", i + 1,
              hex(digest).text);
    }
}

TEST(test_secrets) {
    uint8_t a[SHA256_BYTES], b[SHA256_BYTES];
    Error error;
    CHECK(t, secret_random(a, sizeof(a), &error) && secret_random(b, sizeof(b), &error), "%s", error.text);
    CHECK(t, memcmp(a, b, sizeof(a)) != 0, "random bytes repeat");
    memcpy(b, a, sizeof(a));
    CHECK(t, secret_equal(a, b, sizeof(a)), "equal bytes differ");
    for (size_t i = 0; i < 8 * sizeof(a); i++) { // any one bit
        b[i / 8] ^= (uint8_t)(1 << i % 8);
        CHECK(t, !secret_equal(a, b, sizeof(a)), "bit %zu does not count", i);
        b[i / 8] ^= (uint8_t)(1 << i % 8);
    }
}
