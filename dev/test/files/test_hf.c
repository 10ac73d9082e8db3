// A folder as Hugging Face has them: the tokenizer's files both ways and in every damaged form, merges recovered from
// the order of tokens, where an export may go, and what a killed one leaves.
#include <signal.h>
#include <sys/wait.h>

#include "llmc/files/hf_export.h"
#include "llmc/files/model_file.h"
#include "dev/test/temp_dir.h"
#include "dev/test/test.h"

#define VOCAB_BPE "../shared/data/vocab.bpe"

// "Ġ" is a space and "Ċ" a newline, as GPT-2's files show them.
static const char merges[] = "#version: 0.2\nt h\nth e\n\xc4\xa0 the\na a\naa aa\n\" \\\n\xc3\xa9 \xc4\x8a\nh e\n";
static const char text[] = " the they aaaaaaa \"\\\" h\xc3\xa9\n\n he's 12 \xf0\x9f\x8e\xb8\x01\xff the";

static void make_tokenizer(Tokenizer *t, const char *data, size_t size) {
    Error error;
    memset(t, 0, sizeof(*t));
    temp_must(hf_parse_merges(t, "test", (const uint8_t *)data, (int64_t)size, &error), error.text);
}

static GPT2Config config_for(const Tokenizer *t) {
    GPT2Config config = {5, t->vocab_size, gpt2_pad_vocab(t->vocab_size), 2, 3, 6};
    return config;
}

static void export_to(Test *t, const char *dir, const Tokenizer *tokenizer, uint64_t seed) {
    Error error;
    bool has_tokenizer = false;
    GPT2Config config = config_for(tokenizer);
    float *params = (float *)malloc((size_t)gpt2_num_params(&config) * sizeof(float));
    gpt2_init_params(params, &config, seed);
    CHECK(t, hf_export(dir, &config, config.max_seq_len, params, tokenizer, &has_tokenizer, &error), "%s", error.text);
    CHECK(t, has_tokenizer == tokenizer_can_encode(tokenizer), "with a tokenizer");
    free(params);
}

// The same ids for all tokens, and for a text.
static void check_same(Test *t, const Tokenizer *a, const Tokenizer *b) {
    uint16_t tokens[2][sizeof(text)];
    int64_t counts[2] = {0, 0};
    Error error;
    if (!CHECK(t, a->kind == b->kind && a->vocab_size == b->vocab_size && a->eot_token == b->eot_token, "%d and %d",
               a->vocab_size, b->vocab_size)) {
        return;
    }
    for (int i = 0; i < a->vocab_size; i++) {
        int n = 0, m = 0;
        const uint8_t *p = tokenizer_decode(a, i, &n), *q = tokenizer_decode(b, i, &m);
        if (!CHECK(t, n == m && memcmp(p, q, (size_t)n) == 0, "token %d", i)) { return; }
    }
    const Tokenizer *both[2] = {a, b};
    for (int i = 0; i < 2; i++) {
        CHECK(t, tokenizer_encode(both[i], (const uint8_t *)text, strlen(text), tokens[i], &counts[i], &error), "%s",
              error.text);
    }
    CHECK(t, counts[0] == counts[1] && memcmp(tokens[0], tokens[1], (size_t)counts[0] * 2) == 0, "the text's ids");
}

TEST(test_round_trip) {
    static const char *const none = "#version: 0.2\n";
    Error error;
    Tokenizer tok, found;
    for (int bytes = 0; bytes < 2; bytes++) {
        TempDir dir = temp_dir_make();
        make_tokenizer(&tok, bytes ? none : merges, bytes ? strlen(none) : strlen(merges));
        CHECK(t, tok.kind == (bytes ? TOKENIZER_BYTE : TOKENIZER_BPE), "kind %d", tok.kind);
        export_to(t, temp_path(&dir, "a/hf"), &tok, 1);
        CHECK(t, hf_tokenizer_exists(temp_path(&dir, "a/hf")), "it is there");
        CHECK(t, hf_tokenizer_load(&found, temp_path(&dir, "a/hf"), &error), "%s", error.text);
        check_same(t, &tok, &found);
        tokenizer_free(&found);
        unlink(temp_path(&dir, "a/hf/vocab.json")); // what transformers 5 saves
        unlink(temp_path(&dir, "a/hf/merges.txt"));
        CHECK(t, hf_tokenizer_load(&found, temp_path(&dir, "a/hf"), &error), "%s", error.text);
        check_same(t, &tok, &found);
        tokenizer_free(&found);
        unlink(temp_path(&dir, "a/hf/tokenizer.json"));
        CHECK(t, !hf_tokenizer_exists(temp_path(&dir, "a/hf")), "it is gone");
        tokenizer_free(&tok);
        temp_dir_remove(&dir);
    }
}

static void check_file(Test *t, const char *path, const char *want) {
    size_t bytes;
    char *got = (char *)temp_read(path, &bytes);
    CHECK(t, bytes == strlen(want) && memcmp(got, want, bytes) == 0, "%s:\n%.*s\nexpected\n%s", path, (int)bytes, got,
          want);
    free(got);
}

TEST(test_text_of_files) {
    Tokenizer tok;
    make_tokenizer(&tok, merges, strlen(merges));
    export_to(t, test_folder(t), &tok, 1);
    check_file(t, test_path(t, "merges.txt"), merges);
    check_file(t, test_path(t, "generation_config.json"),
               "{\n  \"bos_token_id\": 264,\n  \"eos_token_id\": 264,\n  \"pad_token_id\": 264\n}\n");
    size_t bytes;
    char *vocab = (char *)temp_read(test_path(t, "vocab.json"), &bytes);
    vocab = (char *)realloc(vocab, bytes + 1);
    vocab[bytes] = '\0';
    CHECK(t, strncmp(vocab, "{\"!\": 0, \"\\\"\": 1, \"#\": 2, ", 26) == 0, "%.60s", vocab);
    const char *end =
        "\"\\u0120the\": 258, \"aa\": 259, \"aaaa\": 260, \"\\\"\\\\\": 261, \"\\u00e9\\u010a\": 262, \"he\": "
        "263, \"<|endoftext|>\": 264}";
    CHECK(t, ends_with(vocab, end), "%s", vocab + (bytes > 150 ? bytes - 150 : 0));
    free(vocab);
    tokenizer_free(&tok);
}

// Replaces the first `from` in a file; an empty `from` cuts it in half.
static void change_file(Test *t, const char *path, const char *from, const char *to) {
    size_t bytes;
    char *old = (char *)temp_read(path, &bytes);
    old = (char *)realloc(old, bytes + 1);
    old[bytes] = '\0';
    if (from[0] == '\0') {
        temp_write(path, old, bytes / 2);
        free(old);
        return;
    }
    char *at = strstr(old, from), *fresh = (char *)malloc(bytes + strlen(to) + 1);
    if (CHECK(t, at != NULL, "%s: the test looks for '%s' in vain", path, from)) {
        size_t n =
            (size_t)snprintf(fresh, bytes + strlen(to) + 1, "%.*s%s%s", (int)(at - old), old, to, at + strlen(from));
        temp_write(path, fresh, n);
    }
    free(fresh);
    free(old);
}

// Exports, changes one file, and expects this message of the reader, behind the folder.
static void refused(Test *t, const char *file, const char *from, const char *to, const char *message, bool only_json) {
    TempDir dir = temp_dir_make();
    Error error;
    Tokenizer tok, found;
    make_tokenizer(&tok, merges, strlen(merges));
    export_to(t, dir.path, &tok, 1);
    tokenizer_free(&tok);
    change_file(t, temp_path(&dir, file), from, to);
    if (only_json) {
        unlink(temp_path(&dir, "vocab.json"));
        unlink(temp_path(&dir, "merges.txt"));
    }
    error.text[0] = '\0';
    bool ok = hf_tokenizer_load(&found, dir.path, &error);
    const char *got = strlen(error.text) > strlen(dir.path) ? error.text + strlen(dir.path) + 1 : "";
    CHECK(t, !ok && strncmp(got, message, strlen(message)) == 0 && strchr(got, '\n') == NULL, "got  '%s'\nwant '%s'",
          error.text, message);
    if (ok) { tokenizer_free(&found); }
    temp_dir_remove(&dir);
}

TEST(test_damaged) {
    static const struct {
        const char *file, *from, *to, *message;
    } cases[] = {
        {"vocab.json", "", "", "vocab.json: byte 1"}, // cut
        {"vocab.json", "\"a\": 64", "\"a\": 65", "vocab.json: id 65 is \"a\", by the merges it is \"b\""},
        {"vocab.json", "\"a\": 64", "\"a\": 265", "vocab.json: token \"a\" has id 265, of 265 tokens; only"},
        {"vocab.json", "\"a\": 64", "\"a\": -1", "vocab.json: byte "},
        {"vocab.json", "\"a\": 64", "\"a\": \"64\"", "vocab.json: byte "},
        {"vocab.json", "\"a\": 64, ", "",
         "vocab.json: has 264 tokens, but its 8 merges make 265 (256 bytes, the merges, <|endoftext|>): damaged, or "
         "not of one model; fetch both again"},
        {"vocab.json", "\"a\": 64, \"b\": 65", "\"b\": 64, \"a\": 65",
         "vocab.json: id 64 is \"b\", by the merges it is \"a\"; only vocabularies with GPT-2's order of ids are read "
         "(bytes, merges, <|endoftext|>): name a tokenizer of the model's with --tokenizer"},
        {"vocab.json", "<|endoftext|>", "</s>",
         "vocab.json: id 264 is \"</s>\", by the merges it is \"<|endoftext|>\""},
        {"vocab.json", "\"b\": 65", "\"a\": 65", "vocab.json: byte "}, // a key twice
        {"vocab.json", "{", "[", "vocab.json: byte "},
        {"merges.txt", "\xc4\x8a\nh e\n", "\xc4\x8a\n", "vocab.json: has 265 tokens, but its 7 merges make 264"},
        {"merges.txt", "", "", "merges.txt: line 4: ends in mid-line (truncated?)"}, // cut
        {"merges.txt", "th e", "t e", "merges.txt: line 4: 'the' is neither a byte nor made by an earlier line"},
        {"merges.txt", "t h\nth e\n", "h e\nt he\n", "merges.txt: line 9: makes the same token as line 2"},
        {"merges.txt", "a a\n", "a\n", "merges.txt: line 5: expected two symbols with one space between them"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        refused(t, cases[i].file, cases[i].from, cases[i].to, cases[i].message, false);
    }
}

TEST(test_damaged_json) {
    static const struct {
        const char *from, *to, *message;
    } cases[] = {
        {"", "", "tokenizer.json: byte "},
        {"\"BPE\"", "\"Unigram\"",
         "tokenizer.json: \"model\" is not byte-pair encoding: not GPT-2's kind of tokenizer"},
        {"\"normalizer\": null", "\"normalizer\": {\"type\": \"NFC\"}", "tokenizer.json: \"normalizer\" is not null"},
        {"\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false",
         "\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": true",
         "tokenizer.json: \"pre_tokenizer\" is not ByteLevel without a prefix space"},
        {"\"pre_tokenizer\": {\"type\": \"ByteLevel\"", "\"pre_tokenizer\": {\"type\": \"Whitespace\"",
         "tokenizer.json: \"pre_tokenizer\" is not ByteLevel"},
        {"\"merges\": [", "\"merges\": [7, ", "tokenizer.json: byte "},
        {"\"merges\": [[\"t\", \"h\"]", "\"merges\": [[\"t\", \"hh\"]",
         "tokenizer.json: merges: line 2: 'hh' is neither a byte nor made by an earlier line"},
        {"\"merges\": [[\"t\", \"h\"]", "\"merges\": [[\"t\\n\", \"h\"]", "tokenizer.json: byte "},
        {"\"merges\"", "\"no merges\"", "tokenizer.json: expected \"merges\", an array"},
        {"\"vocab\"", "\"no vocab\"", "tokenizer.json: \"vocab\" is missing"},
        {"\"a\": 64", "\"a\": 65", "tokenizer.json: id 65 is \"a\", by the merges it is \"b\""},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        refused(t, "tokenizer.json", cases[i].from, cases[i].to, cases[i].message, true);
    }
}

TEST(test_one_of_two_files) {
    static const char *const names[] = {"vocab.json", "merges.txt"};
    for (int i = 0; i < 2; i++) {
        TempDir dir = temp_dir_make();
        Error error;
        Tokenizer tok, found;
        char want[256];
        make_tokenizer(&tok, merges, strlen(merges));
        export_to(t, dir.path, &tok, 1);
        unlink(temp_path(&dir, names[i]));
        CHECK(t, hf_tokenizer_load(&found, dir.path, &error), "tokenizer.json is enough: %s", error.text);
        check_same(t, &tok, &found);
        tokenizer_free(&found);
        tokenizer_free(&tok);
        unlink(temp_path(&dir, "tokenizer.json"));
        CHECK(t, hf_tokenizer_exists(dir.path) && !hf_tokenizer_load(&found, dir.path, &error), "half of it");
        snprintf(want, sizeof(want), "/%s: missing; it belongs beside %s, or name a tokenizer with --tokenizer",
                 names[i], names[1 - i]);
        CHECK(t, ends_with(error.text, want), "got '%s', want '%s'", error.text, want);
        temp_dir_remove(&dir);
    }
}

// ---- Merges from the order of tokens ----

// A gpt2_tokenizer.bin of these tokens; order: which token has id i, NULL for as they are.
static void write_bin(const char *path, const Tokenizer *t, const int *order) {
    size_t size = (size_t)DATA_HEADER_BYTES;
    uint8_t *data = (uint8_t *)calloc(1, size + (size_t)t->vocab_size * 256);
    uint32_t header[4] = {TOKENIZER_MAGIC, 2, (uint32_t)t->vocab_size, (uint32_t)t->eot_token};
    memcpy(data, header, sizeof(header));
    for (int i = 0; i < t->vocab_size; i++) {
        int n = 0;
        const uint8_t *bytes = tokenizer_decode(t, order == NULL ? i : order[i], &n);
        data[size++] = (uint8_t)n;
        memcpy(data + size, bytes, (size_t)n);
        size += (size_t)n;
    }
    temp_write(path, data, size);
    free(data);
}

TEST(test_recovered_merges) {
    const char *path = test_path(t, "t.bin");
    Error error;
    Tokenizer tok, found;
    int order[265];
    make_tokenizer(&tok, merges, strlen(merges));
    write_bin(path, &tok, NULL);
    CHECK(t, tokenizer_load(&found, path, &error), "%s", error.text);
    CHECK(t, tokenizer_can_encode(&found), "it encodes");
    check_same(t, &tok, &found);
    tokenizer_free(&found);
    static const int swaps[][2] = {{0, 1}, {256, 257}, {255, 256}, {259, 260}, {263, 264}}; // no order of merges
    for (size_t i = 0; i < sizeof(swaps) / sizeof(swaps[0]); i++) {
        for (int k = 0; k < 265; k++) {
            order[k] = k == swaps[i][0] ? swaps[i][1] : k == swaps[i][1] ? swaps[i][0] : k;
        }
        write_bin(path, &tok, order);
        CHECK(t, tokenizer_load(&found, path, &error), "%s", error.text);
        CHECK(t, !tokenizer_can_encode(&found) && found.vocab_size == 265, "swap %zu: only decodes", i);
        tokenizer_free(&found);
    }
    tokenizer_free(&tok);
}

TEST(test_gpt2_from_its_tokens) {
    if (!path_exists(VOCAB_BPE)) { SKIP(t, "../shared/data is not here"); }
    Error error;
    Tokenizer tok, found;
    Text again;
    size_t bytes;
    memset(&again, 0, sizeof(again));
    temp_must(tokenizer_load(&tok, VOCAB_BPE, &error), error.text);
    write_bin(test_path(t, "gpt2_tokenizer.bin"), &tok, NULL);
    CHECK(t, tokenizer_load(&found, test_path(t, "gpt2_tokenizer.bin"), &error), "%s", error.text);
    CHECK(t, found.kind == TOKENIZER_BPE, "it encodes");
    check_same(t, &tok, &found);
    uint32_t *pairs = hf_merge_pairs(&found);
    hf_add_merges_text(&again, &found, pairs);
    uint8_t *file = temp_read(VOCAB_BPE, &bytes);
    CHECK(t, again.used == bytes && memcmp(again.data, file, bytes) == 0, "vocab.bpe, to the byte");
    text_free(&again);
    free(pairs), free(file);
    tokenizer_free(&found), tokenizer_free(&tok);
}

// ---- Where an export may go ----

static void check_place(Test *t, const char *dir, const char *message) {
    Error error;
    error.text[0] = '\0';
    bool ok = hf_export_check(dir, &error);
    CHECK(t, ok == (message[0] == '\0') && strstr(error.text, message) != NULL, "%s: got '%s', want '%s'", dir,
          error.text, message);
}

TEST(test_places) {
    Error error;
    Tokenizer tok;
    make_tokenizer(&tok, merges, strlen(merges));
    check_place(t, test_path(t, "new/folder/"), "");
    check_place(t, test_folder(t), "");
    temp_write(test_path(t, ".gitattributes"), "x", 1);
    temp_write(test_path(t, "model.safetensors.tmp"), "x", 1); // of an export that was killed
    check_place(t, test_folder(t), "");
    temp_write(test_path(t, "model.safetensors"), "x", 1);
    check_place(t, test_folder(t),
                ": holds 'model.safetensors', which no export wrote; choose a new or an empty folder");
    temp_write(test_path(t, "config.json"), "{\"model_type\": \"gpt2\"}", 22); // a model of another program's
    check_place(t, test_folder(t), ": holds 'config.json', which no export wrote");
    check_place(t, test_path(t, "config.json"), "config.json is a file, not a folder");
    check_place(t, test_path(t, "config.json/hf"), "config.json is a file, not a folder");
    unlink(test_path(t, "config.json"));
    unlink(test_path(t, "model.safetensors"));
    export_to(t, test_folder(t), &tok, 1);
    temp_write(test_path(t, "README.md"), "x", 1); // beside an export of ours
    check_place(t, test_folder(t), "");
    temp_write(test_path(t, "main.log"), "x", 1);
    check_place(t, test_folder(t), ": is the folder of a run; choose another one, for example ");
    unlink(test_path(t, "main.log"));
    check_place(t, "", "--export: the path is empty");
    tokenizer_free(&tok);
    CHECK(t, make_directories(test_path(t, "sub"), &error), "%s", error.text);
}

TEST(test_export_again) {
    Error error;
    Tokenizer tok, bytes, found, decoder;
    make_tokenizer(&tok, merges, strlen(merges));
    tokenizer_init_byte(&bytes);
    export_to(t, test_folder(t), &tok, 1);
    export_to(t, test_folder(t), &bytes, 2);
    CHECK(t, hf_tokenizer_load(&found, test_folder(t), &error), "%s", error.text);
    check_same(t, &bytes, &found);
    tokenizer_free(&found);
    const char *path = test_path(t, "vocab.json"); // a failure leaves the earlier export alone
    unlink(path);
    CHECK(t, make_directories(path, &error), "%s", error.text);
    GPT2Config config = config_for(&tok), read = config;
    float *params = (float *)calloc((size_t)gpt2_num_params(&config), sizeof(float));
    bool has_tokenizer;
    CHECK(t, !hf_export(test_folder(t), &config, config.max_seq_len, params, &tok, &has_tokenizer, &error),
          "a folder in the way");
    CHECK(t, strstr(error.text, "vocab.json: is a folder") != NULL, "%s", error.text);
    CHECK(t, safetensors_read_config(test_path(t, "model.safetensors"), &read, &error), "%s", error.text);
    CHECK(t, read.vocab_size == 257 && !path_exists(test_path(t, "config.json.tmp")), "the earlier export");
    rmdir(path);
    memset(&decoder, 0, sizeof(decoder)); // a tokenizer that only decodes: the earlier one's files must go
    decoder.kind = TOKENIZER_DECODE_ONLY;
    decoder.eot_token = 7;
    CHECK(t,
          hf_export(test_folder(t), &config, config.max_seq_len, params, &decoder, &has_tokenizer, &error) &&
              !has_tokenizer,
          "%s", error.text);
    CHECK(t, !hf_tokenizer_exists(test_folder(t)) && !path_exists(test_path(t, "tokenizer_config.json")),
          "no tokenizer");
    check_file(t, test_path(t, "generation_config.json"),
               "{\n  \"bos_token_id\": 7,\n  \"eos_token_id\": 7,\n  \"pad_token_id\": 7\n}\n");
    CHECK(t,
          hf_export(test_folder(t), &config, config.max_seq_len, params, NULL, &has_tokenizer, &error) &&
              !has_tokenizer,
          "%s", error.text);
    free(params);
    tokenizer_free(&tok);
}

// ---- Killed ----

// Of each of two models in turn, again and again, until it is killed.
static void export_for_ever(Test *t, const char *dir, const Tokenizer *a, const Tokenizer *b) {
    for (uint64_t i = 0;; i++) { export_to(t, dir, i % 2 == 0 ? a : b, i % 2); }
}

// A folder with weights must be one of the two models, with its tokenizer.
static bool check_whole(Test *t, const TempDir *dir, const Tokenizer *a, const Tokenizer *b) {
    static ModelFile file;
    Error error;
    Tokenizer found;
    if (!path_exists(temp_path(dir, "hf/model.safetensors"))) { return false; }
    if (!CHECK(t, model_file_open(&file, temp_path(dir, "hf"), &error), "%s", error.text)) { return false; }
    bool first = file.config.vocab_size == a->vocab_size;
    size_t bytes = (size_t)gpt2_num_params(&file.config) * sizeof(float);
    float *got = (float *)malloc(bytes), *want = (float *)malloc(bytes);
    gpt2_init_params(want, &file.config, first ? 0 : 1);
    CHECK(t, model_file_read(&file, got, &error) && memcmp(got, want, bytes) == 0, "the weights");
    CHECK(t, hf_tokenizer_load(&found, temp_path(dir, "hf"), &error), "%s", error.text);
    check_same(t, first ? a : b, &found);
    tokenizer_free(&found);
    free(got), free(want);
    return true;
}

TEST(test_killed) {
    TempDir dir = temp_dir_make();
    Tokenizer a, b;
    make_tokenizer(&a, merges, strlen(merges));
    tokenizer_init_byte(&b);
    export_to(t, temp_path(&dir, "hf"), &a, 0);
    int whole = 0, rounds = 30;
    for (int i = 0; i < rounds; i++) {
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) { export_for_ever(t, temp_path(&dir, "hf"), &a, &b); }
        if (!CHECK(t, child > 0, "fork")) { break; }
        struct timespec pause = {0, 200000 + 300000L * i}; // any moment will do
        nanosleep(&pause, NULL);
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        whole += check_whole(t, &dir, &a, &b);
    }
    CHECK(t, whole > 0, "it was never whole in %d rounds", rounds);
    export_to(t, temp_path(&dir, "hf"), &b, 1); // and an export into the rest is whole
    CHECK(t, check_whole(t, &dir, &a, &b), "at last");
    CHECK(t, !path_exists(temp_path(&dir, "hf/model.safetensors.tmp")), "a temporary file");
    tokenizer_free(&a);
    temp_dir_remove(&dir);
}
