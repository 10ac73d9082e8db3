// The tokenizer against the definition of merging on random vocabularies, against the ids of a small vocabulary, and
// against OpenAI's where vocab.bpe is present. Every kind of damaged file with its message.
#include "dev/test/data/fuzz_round_trip.h"
#include "dev/test/data/small_bpe.h"
#include "dev/test/refused.h"
#include "dev/test/temp_dir.h"
#include "llmc/base/rand.h"
#include "llmc/data/tokenizer.h"

#define VOCAB_BPE "../shared/data/vocab.bpe"
#define FIXTURES "dev/test/fixtures/"

// ---- Helpers ----

typedef struct {
    uint64_t seed, drawn;
} Random;

static int draw(Random *r, int below) { return (int)(rand_u64(r->seed, 0, r->drawn++) % (uint64_t)below); }

// Loads a file with these bytes.
static bool load_bytes(Test *t, const void *data, int64_t size, Tokenizer *tok, Error *error) {
    temp_write(test_path(t, "tokenizer"), data, (size_t)size);
    return tokenizer_load(tok, test_path(t, "tokenizer"), error);
}

// Loads the byte-pair encoding of these tokens, which `|` separates, with these rules. Fails if no merges make them.
static bool load_rules(Test *t, Tokenizer *tok, const char *tokens, WordRule words, MergeRule merges, Error *error) {
    Text file = {NULL, 0, 0, false};
    small_bpe_file(&file, tokens);
    int32_t *header = (int32_t *)(void *)file.data;
    const int32_t rules[4] = {(int32_t)words, (int32_t)merges, 0, header[2] - 1};
    if (words != WORDS_GPT2 || merges != MERGE_BY_ORDER) { header[1] = 3, memcpy(header + 4, rules, sizeof(rules)); }
    bool ok = load_bytes(t, file.data, (int64_t)file.used, tok, error);
    text_free(&file);
    return ok;
}

// Loads tokens that each rule can take.
static bool load_bpe(Test *t, Tokenizer *tok, const char *tokens, int words) {
    MergeRule merges = words == WORDS_LLAMA3 ? MERGE_BY_BYTES : MERGE_BY_ORDER;
    return OK(t, load_rules(t, tok, tokens, (WordRule)words, merges, &error));
}

// Writes count tokens over the letters a, b, c: each joins two earlier tokens.
static void random_tokens(Random *r, int count, char *text) {
    char tokens[64][96] = {"a", "b", "c"}, joined[96];
    int known = 3;
    text[0] = '\0';
    while (known < 3 + count) {
        const char *left = tokens[draw(r, known)], *right = tokens[draw(r, known)];
        if (strlen(left) + strlen(right) > 40) { continue; }
        sprintf(joined, "%.40s%.40s", left, right);
        int same = 0;
        while (same < known && strcmp(tokens[same], joined) != 0) { same++; }
        if (same < known) { continue; }
        sprintf(text + strlen(text), "%s%s", text[0] == '\0' ? "" : "|", joined);
        memcpy(tokens[known++], joined, sizeof(joined));
    }
}

// What two tokens merge to. By bytes: compares all tokens.
static uint32_t naive_merged(const Tokenizer *t, uint32_t left, uint32_t right) {
    int n = 0, more = 0, all = 0;
    if (t->merge_rule == MERGE_BY_ORDER) { return tokenizer_merged(t, left, right); }
    const uint8_t *a = tokenizer_decode(t, (int)left, &n), *b = tokenizer_decode(t, (int)right, &more);
    for (int id = 256; id < t->ranked; id++) {
        const uint8_t *token = tokenizer_decode(t, id, &all);
        if (all == n + more && memcmp(token, a, (size_t)n) == 0 && memcmp(token + n, b, (size_t)more) == 0) {
            return (uint32_t)id;
        }
    }
    return NO_TOKEN;
}

// Byte-pair encoding as its definition says: find the pair of lowest rank, merge the leftmost, repeat. ranks is kept
// over the merges, because a comparison with all tokens is slow.
static int64_t naive_merge(const Tokenizer *t, const uint8_t *word, int64_t n, uint32_t *tokens) {
    static uint32_t ranks[4096];
    for (int64_t i = 0; i < n; i++) { tokens[i] = t->byte_ids[word[i]]; }
    for (int64_t i = 0; i + 1 < n; i++) { ranks[i] = naive_merged(t, tokens[i], tokens[i + 1]); }
    for (;;) {
        int64_t at = 0;
        for (int64_t i = 0; i + 1 < n; i++) { at = ranks[i] < ranks[at] ? i : at; }
        if (n < 2 || ranks[at] == NO_TOKEN) { return n; }
        tokens[at] = ranks[at];
        for (int64_t i = at + 1; i + 1 < n; i++) { tokens[i] = tokens[i + 1], ranks[i] = ranks[i + 1]; }
        n--;
        if (at > 0) { ranks[at - 1] = naive_merged(t, tokens[at - 1], tokens[at]); }
        if (at + 1 < n) { ranks[at] = naive_merged(t, tokens[at], tokens[at + 1]); }
    }
}

// ---- Encoding, against the definitions ----

// A word in windows, as a text's, and all at once. By bytes, a word that is a token is taken whole.
static void check_word(Test *t, const Tokenizer *tok, const uint8_t *word, int n) {
    static uint32_t got[4096], want[4096];
    int64_t expected = naive_merge(tok, word, n, want);
    if (tok->merge_rule == MERGE_BY_BYTES && tokenizer_word_slot(tok, word, (size_t)n)->length != 0) { return; }
    for (int windows = 0; windows < 2; windows++) {
        int64_t count = (windows ? tokenizer_encode_word : tokenizer_merge_window)(tok, word, n, got);
        bool same = count == expected && memcmp(got, want, (size_t)count * sizeof(uint32_t)) == 0;
        CHECK(t, same, "%.*s: %d tokens, expected %d, or others", n, (const char *)word, (int)count, (int)expected);
    }
}

// Vocabularies no training would make: merges that compete for letters.
TEST(test_merging) {
    Random r = {11, 0};
    char tokens[8192];
    uint8_t word[4096];
    int encode = 0, step = test_is_quick() ? 3 : 1;
    for (int round = 0; round < 900; round += step) {
        Tokenizer tok;
        MergeRule merges = round < 600 ? MERGE_BY_ORDER : MERGE_BY_BYTES;
        random_tokens(&r, 1 + draw(&r, 50), tokens);
        // Merges by order may not arrive at some of these tokens.
        if (!load_rules(t, &tok, tokens, WORDS_GPT2, merges, &error)) { continue; }
        encode++;
        for (int k = 0; k < 20; k++) {
            int n = 1 + draw(&r, k < 15 ? 40 : 1500), letters = 1 + draw(&r, 3), period = 1 + draw(&r, 8);
            for (int i = 0; i < n; i++) {
                bool repeat = k % 4 == 3 && i >= period;
                word[i] = repeat ? word[i - period] : (uint8_t)('a' + draw(&r, letters));
            }
            check_word(t, &tok, word, n);
        }
        tokenizer_free(&tok);
    }
    CHECK(t, encode >= 400 / step, "only %d vocabularies encode", encode);
}

// A chain of ever stronger merges that carries a change at the end of a word far to its front: the encoder must take
// back many tokens.
TEST(test_long_reach) {
    enum { CHAIN = 26, N = 8 * CHAIN };
    static const char pairs[] = "yz|xy|wx|vw|uv|tu|st|rs|qr|pq|op|no|mn|lm|kl|jk|ij|hi|gh|fg|ef|de|cd|bc|ab";
    uint8_t word[N];
    Tokenizer tok;
    if (!load_bpe(t, &tok, pairs, WORDS_GPT2)) { return; }
    for (int cut = 1; cut <= CHAIN; cut++) { // the merges pair up from the last letter to the first
        for (int i = 0; i < N; i++) { word[i] = (uint8_t)('a' + i % cut); }
        check_word(t, &tok, word, N);
        check_word(t, &tok, word, N - cut / 2);
    }
    tokenizer_free(&tok);
}

// Where a text may be cut. (That a cut changes nothing: fuzz_encode.c.)
TEST(test_places_to_cut) {
    const uint8_t *text = (const uint8_t *)"ab cd ef";
    Tokenizer tok;
    if (!load_bpe(t, &tok, "ab", WORDS_GPT2)) { return; }
    CHECK(t, tokenizer_last_split(&tok, text, 8) == 2, "the last characters may be incomplete");
    CHECK(t, tokenizer_last_split(&tok, (const uint8_t *)"abcdefgh", 8) == 0, "nowhere");
    CHECK(t, tokenizer_next_split(&tok, text, 3, 8) == 5, "the next place");
    CHECK(t, tokenizer_next_split(&tok, text, 6, 8) == 8, "none is left");
    tokenizer_free(&tok);
}

// A text that several threads encode has the tokens that one gives it, also where one word goes over several parts.
TEST(test_parallel) {
    enum { N = 600000 };
    Random r = {14, 0};
    uint8_t *text = (uint8_t *)malloc(N);
    uint32_t *serial = (uint32_t *)malloc(4 * N), *parallel = (uint32_t *)malloc(4 * N);
    for (int k = 0; k < 2 * WORDS_RULES; k++) {
        Tokenizer tok;
        int64_t a = 0, b = 0;
        if (!load_bpe(t, &tok, "ab|abc", k / 2)) { return; }
        for (int i = 0; i < N && k % 2 == 0; i++) { text[i] = (uint8_t) "abc'sl 1\n\r!\xc3\xa9"[draw(&r, 13)]; }
        if (k % 2 == 1) { memset(text + 100000, 'a', 300000); }
        OK(t, tokenizer_encode(&tok, text, N, serial, &a, &error));
        OK(t, tokenizer_encode_parallel(&tok, text, N, parallel, &b, &error));
        CHECK(t, a == b && memcmp(serial, parallel, (size_t)a * 4) == 0, "%d and %d ids", (int)a, (int)b);
        tokenizer_free(&tok);
    }
    free(text), free(serial), free(parallel);
}

// A method whose time grows with the square of the length would need hours.
TEST(test_hostile) {
    enum { N = 1 << 19 };
    static const char *const units[] = {"a",    " ",  "\n", "ab", "\xff", "\x80", "\xc2\xa0", "\xe4\xb8\xad",
                                        "\xf0", "'s", "=",  "=-", "1",    "\xc3", "aA",       " \n"};
    static uint8_t text[N];
    static uint32_t tokens[N];
    for (int words = 0; words < WORDS_RULES; words++) {
        Tokenizer tok;
        if (!load_bpe(t, &tok, "aa|aaaa|aaaaaaaa|ba", words)) { return; }
        FOR_EACH(i, units) {
            int64_t count = 0;
            clock_t start = clock();
            for (size_t at = 0; at < N; at++) { text[at] = (uint8_t)units[i][at % strlen(units[i])]; }
            OK(t, tokenizer_encode(&tok, text, N, tokens, &count, &error));
            CHECK(t, clock() - start < 10 * CLOCKS_PER_SEC, "unit %zu takes long", i);
            CHECK(t, comes_back(&tok, text, N, tokens, count), "unit %zu does not come back", i);
        }
        tokenizer_free(&tok);
    }
}

// A signal ends encoding within a word, which may be long.
TEST(test_stop) {
    enum { N = 1000 };
    static volatile sig_atomic_t stop = 0;
    uint8_t word[N];
    uint32_t tokens[N];
    int64_t count;
    Tokenizer tok;
    if (!load_bpe(t, &tok, "ab", WORDS_GPT2)) { return; }
    for (int i = 0; i < N; i++) { word[i] = (uint8_t) "ab"[i % 2]; }
    tok.stop = &stop;
    CHECK(t, tokenizer_merge_window(&tok, word, N, tokens) == 500, "not merged");
    stop = 1;
    REFUSED(t, tokenizer_encode_parallel(&tok, word, N, tokens, &count, &error), "encoding was stopped", "");
    CHECK(t, tokenizer_merge_window(&tok, word, N, tokens) == N, "merges on after the signal");
    tokenizer_free(&tok);
}

// ---- Unicode ----

// Writes the class of the code points that a table takes: the lengths of runs, in turn outside and inside.
static void set_classes(uint8_t *classes, const uint32_t *runs, size_t count, CharClass class) {
    for (size_t i = 0, c = 0; i < count; i += 2) {
        c += runs[i];
        memset(classes + c, (int)class, runs[i + 1]);
        c += runs[i + 1];
    }
}

// Every code point has the class that the tables say; surrogates are invalid bytes.
TEST(test_classes) {
    static uint8_t classes[UNICODE_CODE_POINTS];
    Tokenizer tok;
    int wrong = 0, length = 0;
    if (!load_bpe(t, &tok, "ab", WORDS_GPT2)) { return; }
    memset(classes, CHAR_OTHER, sizeof(classes));
    set_classes(classes, unicode_letters, COUNT_OF(unicode_letters), CHAR_LETTER);
    set_classes(classes, unicode_numbers, COUNT_OF(unicode_numbers), CHAR_NUMBER);
    set_classes(classes, unicode_spaces, COUNT_OF(unicode_spaces), CHAR_SPACE);
    for (uint32_t c = 0; c < UNICODE_CODE_POINTS; c++) {
        uint8_t bytes[4];
        size_t n = (size_t)utf8_encode(c, (char *)bytes);
        bool surrogate = c >= 0xd800 && c < 0xe000;
        CharClass got = tokenizer_char_class(&tok, bytes, n, &length);
        wrong += got != (CharClass)classes[c] || (size_t)length != (surrogate ? 1 : n);
        if (n > 1) { wrong += tokenizer_char_class(&tok, bytes, n - 1, &length) != CHAR_OTHER || length != 1; }
    }
    CHECK(t, wrong == 0, "%d code points have a wrong class or length", wrong);
    tokenizer_free(&tok);
}

// ---- Files on disk ----

static void check_load_refused(Test *t, const void *data, int64_t size, const char *message) {
    Tokenizer tok;
    REFUSED(t, load_bytes(t, data, size, &tok, &error), test_path(t, "tokenizer"), message);
}

// A header, and 20 tokens of 1 to 3 bytes, which no merges make.
static Text twenty_tokens(uint32_t version, uint32_t vocab, uint32_t eot) {
    const uint32_t header[DATA_HEADER_INTS] = {TOKENIZER_MAGIC, version, vocab, eot};
    Text file = {NULL, 0, 0, false};
    text_bytes(&file, (const char *)header, sizeof(header));
    for (int i = 0; i < 20; i++) {
        const char c = (char)('a' + i), token[3] = {c, c, c};
        small_bpe_token(&file, token, (size_t)(1 + i % 3));
    }
    return file;
}

// Damaged files, files of another kind, and no files.
TEST(test_refused) {
#define AGAIN "(truncated? fetch it again)"
#define MISFIT                                                                                                         \
    ": its tokens are not those of a byte-pair encoding (256 bytes, one for each merge, "                              \
    "<|endoftext|>); " MAKE_TOKENIZER
    static const struct {
        uint32_t version, vocab, eot;
        int more; // bytes behind the tokens; fewer than 0: so many are missing
        const char *message;
    } cases[] = {{2, 20, 19, -60, ": 1023 bytes, less than the header of a tokenizer, 1024 " AGAIN},
                 {2, 20, 19, -1, ": ends inside token 19 of 20 " AGAIN},
                 {2, 20, 19, 3, ": 3 bytes follow the last of 20 tokens"},
                 {4, 20, 19, 0, ": tokenizer of version 4, expected 1, 2 or 3"},
                 {2, 20, 20, 0, ": end-of-text id 20 is outside the vocabulary of 20 tokens"},
                 {1, 20, 0, 0, ": end-of-text id 50256 is outside the vocabulary of 20 tokens"},
                 {2, 0xffffffffu, 0, 0, ": header says -1 tokens, expected 1 to 1048576"}};
    Tokenizer tok;
    FOR_EACH(i, cases) {
        Text file = twenty_tokens(cases[i].version, cases[i].vocab, cases[i].eot);
        text_bytes(&file, "\0\0", 3);
        check_load_refused(t, file.data, (int64_t)file.used - 3 + cases[i].more, cases[i].message);
        text_free(&file);
    }
    Text file = twenty_tokens(2, 20, 19);
    check_load_refused(t, file.data, (int64_t)file.used, MISFIT);
    file.data[DATA_HEADER_BYTES + 2] = 0;
    check_load_refused(t, file.data, (int64_t)file.used, ": token 1 is empty");
    text_free(&file);
    bool ok = load_rules(t, &tok, "hell|ll|he|\xc3\xa9", WORDS_GPT2, MERGE_BY_ORDER, &error); // hell before he and ll
    REFUSED(t, ok, test_path(t, "tokenizer"), MISFIT);
    check_load_refused(t, "#version: 0.2\na b\n", 18,
                       ": is a list of merges, expected a tokenizer; "
                       "`python3 dev/data/vocab.py --merges FILE` makes a tokenizer of it");
    check_load_refused(t, "a b\n", 4, ": is not a tokenizer: magic 174202977, expected 20240328; " MAKE_TOKENIZER);
    REFUSED(t, tokenizer_open(&tok, "no/such", &error), "no/such", ": no such file; " MAKE_TOKENIZER);
}

// ---- Known ids ----

// Each line: the bytes of a text in hexadecimal, then its ids.
static void check_encodings(Test *t, const Tokenizer *tok, const char *path) {
    uint8_t *data;
    int64_t size, lines = 0;
    if (!OK(t, read_whole_file(path, 1 << 24, &data, &size, &error))) { return; }
    for (char *line = strtok((char *)data, "\n"); line != NULL; line = strtok(NULL, "\n"), lines++) {
        uint8_t text[1024];
        uint32_t tokens[1024];
        size_t n = strcspn(line, " ") / 2;
        int64_t count = 0, i = 0;
        if (!CHECK(t, n <= sizeof(text), "line %d is too long", (int)lines + 1)) { break; }
        for (size_t k = 0; k < n; k++) {
            char hex[3] = {line[2 * k], line[2 * k + 1], '\0'};
            text[k] = (uint8_t)strtol(hex, NULL, 16);
        }
        OK(t, tokenizer_encode(tok, text, n, tokens, &count, &error));
        bool same = true;
        for (char *at = line + 2 * n; *at != '\0'; i++) {
            same = strtol(at, &at, 10) == tokens[i] && i < count && same;
        }
        CHECK(t, same && i == count, "%s: line %d: other ids", path, (int)lines + 1);
        CHECK(t, comes_back(tok, text, n, tokens, count), "line %d does not come back", (int)lines + 1);
    }
    CHECK(t, lines > 150, "%d lines", (int)lines);
    free(data);
}

// Vocabularies that were trained on a few texts (fixtures/make_tokenizer.py), of each rule. The hash is that of the
// file, as dev/hf_tokenizer.py computes it.
TEST(test_small_encodings) {
    static const struct {
        const char *name;
        int vocab, eot, other; // other: another special id
        uint64_t hash;
    } kinds[] = {{"small", 557, 556, 556, 0xda0b5fddfd93f950},
                 {"llama3", 563, 561, 562, 0x679738af8385cce9},
                 {"smollm2", 556, 0, 1, 0xe50724f38313ef10}};
    FOR_EACH(i, kinds) {
        Tokenizer tok;
        Text copy = {NULL, 0, 0, false};
        uint8_t *data;
        int64_t size;
        uint64_t hash = 0;
        const char *path = format(FIXTURES "%s_tokenizer.bin", kinds[i].name);
        if (!OK(t, tokenizer_load(&tok, path, &error))) { return; }
        CHECK(t, tok.vocab_size == kinds[i].vocab && tok.eot_token == kinds[i].eot, "%d ids, eot %d", tok.vocab_size,
              tok.eot_token);
        const int32_t ids[] = {kinds[i].eot, 300, kinds[i].other};
        CHECK(t, tokenizer_count_bytes(&tok, ids, 3) == tokenizer_token_length(&tok, 300), "special ids are no text");
        CHECK(t,
              read_whole_file(path, 1 << 20, &data, &size, &error) && tokenizer_write(&tok, &copy, &error) &&
                  (int64_t)copy.used == size && memcmp(copy.data, data, copy.used) == 0,
              "%s: another copy", path);
        CHECK(t, tokenizer_hash(&tok, &hash, &error) && hash == kinds[i].hash, "hash %llx", (unsigned long long)hash);
        check_encodings(t, &tok, format(FIXTURES "%s_encodings.txt", kinds[i].name));
        text_free(&copy), free(data), tokenizer_free(&tok);
    }
}

// What a header of version 3 can say wrongly, and tokens that its rules cannot have.
TEST(test_version_3_refused) {
#define RANKS(count, first, eot)                                                                                       \
    ": ranks " count " tokens from id " first " on, of 563, whose end-of-text " eot                                    \
    " must not be one of them (damaged?)"
    static const struct {
        int at, value;
        const char *message;
    } cases[] = {{4, 3, ": cuts words by rule 3 and merges by rule 1, known are 0 to 2 and 0 to 1 (damaged?)"},
                 {5, 0, MISFIT}, // some tokens have no merge
                 {6, INT32_MAX, RANKS("561", "2147483647", "561")},
                 {6, 1, RANKS("561", "1", "561")}, // end-of-text is ranked
                 {7, 255, MISFIT},                 // a byte has no token
                 {3, 7, RANKS("561", "0", "7")}};
    uint8_t *data;
    int64_t size;
    OK(t, read_whole_file(FIXTURES "llama3_tokenizer.bin", 1 << 20, &data, &size, &error));
    FOR_EACH(i, cases) {
        int32_t *header = (int32_t *)(void *)data, kept = header[cases[i].at];
        header[cases[i].at] = cases[i].value;
        check_load_refused(t, data, size, cases[i].message);
        header[cases[i].at] = kept;
    }
    Tokenizer tok;
    bool twice = load_rules(t, &tok, "ab|abc|ab", WORDS_LLAMA3, MERGE_BY_BYTES, &error);
    REFUSED(t, twice, test_path(t, "tokenizer"), MISFIT);
    free(data);
}

TEST(test_gpt2) {
    Tokenizer tok;
    uint32_t tokens[MAX_TOKEN_BYTES];
    int wrong = 0;
    if (!path_exists(VOCAB_BPE)) { SKIP(t, VOCAB_BPE " is not here"); }
    const char *command =
        format("python3 dev/data/vocab.py --merges " VOCAB_BPE " --out '%s' > /dev/null", test_folder(t));
    CHECK(t, system(command) == 0, "%s fails", command);
    OK(t, tokenizer_load(&tok, test_path(t, "gpt2_tokenizer.bin"), &error));
    CHECK(t, tok.vocab_size == 50257 && tok.eot_token == 50256, "%d ids, eot %d", tok.vocab_size, tok.eot_token);
    check_encodings(t, &tok, FIXTURES "gpt2_encodings.txt"); // OpenAI's
    for (int id = 0; id < 50256; id++) {                     // every token is reached by merging its bytes
        int bytes = 0;
        const uint8_t *piece = tokenizer_decode(&tok, id, &bytes);
        wrong += tokenizer_merge_window(&tok, piece, bytes, tokens) != 1 || tokens[0] != (uint32_t)id;
    }
    CHECK(t, wrong == 0, "%d tokens do not encode to themselves", wrong);
    tokenizer_free(&tok);
}
