// Hugging Face's files of a GPT-2 tokenizer, in a model's folder:
//   vocab.json      {"token": id, ...}; each byte of a token is written as the character that GPT-2's files show it as
//   merges.txt      GPT-2's vocab.bpe
//   tokenizer.json  both, and what else the fast tokenizers need; transformers 5 saves only this file
// Any tokenizer that encodes can be written. The byte tokenizer is byte-pair encoding without merges. Reading checks
// every id: it must be the id that the merges imply, because a merge's id is its rank here.
#ifndef LLMC_HF_TOKENIZER_H
#define LLMC_HF_TOKENIZER_H

#include "llmc/base/files.h"
#include "llmc/base/json.h"
#include "llmc/base/text.h"
#include "llmc/data/tokenizer.h"
#include "llmc/base/utils.h"

#define HF_VOCAB_NAME "vocab.json"
#define HF_MERGES_NAME "merges.txt"
#define HF_TOKENIZER_NAME "tokenizer.json"
#define HF_MERGES_VERSION "#version: 0.2\n"
#define HF_MAX_TOKENIZER_BYTES ((int64_t)1 << 26) // GPT-2's tokenizer.json has 3.5 MB

enum { HF_MAX_STAND_IN = 2 * MAX_TOKEN_BYTES + 1 }; // bytes of the longest token in vocab.json, and a NUL

// ---- Tokens as the files show them ----

// Returns the character that stands for a byte. A visible byte stands for itself, any other byte for the next character
// from U+0100 on. Bytes 0 to 32, 127 to 160 and 173 are not visible. 94 visible bytes are below 127, 12 more below 173.
static inline uint32_t hf_byte_symbol(int byte) {
    if (tokenizer_byte_is_visible(byte)) { return (uint32_t)byte; }
    return (uint32_t)(256 + byte - (byte < 127 ? 0 : byte < 173 ? 94 : 94 + 12));
}

// Writes the token's text into out (HF_MAX_STAND_IN), in UTF-8, as vocab.json has it.
static inline void hf_stand_in(const Tokenizer *t, int token, char *out) {
    int n = 0;
    const uint8_t *bytes = tokenizer_decode(t, token, &n);
    for (int i = 0; i < n; i++) {
        char utf8[4];
        int length = utf8_encode(hf_byte_symbol(bytes[i]), utf8);
        memcpy(out, utf8, (size_t)length);
        out += length;
    }
    *out = '\0';
}

// Adds a token as a JSON string in ASCII.
static inline void hf_add_token(Text *text, const Tokenizer *t, int token) {
    char stand_in[HF_MAX_STAND_IN];
    hf_stand_in(t, token, stand_in);
    json_quote(text, stand_in, 0x7e);
}

// ---- Out ----

// Writes vocab.json. It equals OpenAI's encoder.json byte for byte when the vocabulary is OpenAI's.
static inline void hf_add_vocab(Text *text, const Tokenizer *t) {
    for (int i = 0; i < t->vocab_size; i++) {
        text_words(text, i == 0 ? "{" : ", ");
        hf_add_token(text, t, i);
        text_printf(text, ": %d", i);
    }
    text_words(text, "}");
}

static inline int hf_num_merges(const Tokenizer *t) { return t->kind == TOKENIZER_BPE ? t->vocab_size - 257 : 0; }

// Returns the pairs that merge, in the order of their ranks: left << 16 | right. NULL when out of memory.
static inline uint32_t *hf_merge_pairs(const Tokenizer *t) {
    int merges = hf_num_merges(t);
    uint32_t *pairs = (uint32_t *)calloc((size_t)merges + 1, sizeof(uint32_t));
    for (int i = 0; pairs != NULL && merges > 0 && i < 1 << t->table_bits; i++) {
        if (t->merges[i].merged != NO_TOKEN) { pairs[t->merges[i].merged - 256] = t->merges[i].key; }
    }
    return pairs;
}

// Writes merges.txt. It equals OpenAI's vocab.bpe byte for byte when the vocabulary is OpenAI's.
static inline void hf_add_merges_text(Text *text, const Tokenizer *t, const uint32_t *pairs) {
    char left[HF_MAX_STAND_IN], right[HF_MAX_STAND_IN];
    text_words(text, HF_MERGES_VERSION);
    for (int i = 0; i < hf_num_merges(t); i++) {
        hf_stand_in(t, (int)(pairs[i] >> 16), left);
        hf_stand_in(t, (int)(pairs[i] & 0xffff), right);
        text_printf(text, "%s %s\n", left, right);
    }
}

static inline void hf_add_merges_json(Text *text, const Tokenizer *t, const uint32_t *pairs) {
    text_words(text, "[");
    for (int i = 0; i < hf_num_merges(t); i++) {
        text_words(text, i == 0 ? "[" : ", [");
        hf_add_token(text, t, (int)(pairs[i] >> 16));
        text_bytes(text, ", ", 2);
        hf_add_token(text, t, (int)(pairs[i] & 0xffff));
        text_words(text, "]");
    }
    text_words(text, "]");
}

// The flags of the one token that transformers takes as a whole when a text spells it.
#define HF_END_OF_TEXT_FLAGS                                                                                           \
    "\"content\": \"" END_OF_TEXT                                                                                      \
    "\", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": false, \"special\": true"

static inline void hf_add_tokenizer_json(Text *text, const Tokenizer *t, const uint32_t *pairs) {
    static const char byte_level[] = "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": %s, "
                                     "\"use_regex\": true}";
    text_printf(text,
                "{\n\"version\": \"1.0\",\n\"truncation\": null,\n\"padding\": null,\n\"added_tokens\": [{\"id\": %d, "
                "%s}],\n\"normalizer\": null,\n\"pre_tokenizer\": ",
                t->eot_token, HF_END_OF_TEXT_FLAGS);
    text_printf(text, byte_level, "true");
    text_words(text, ",\n\"post_processor\": ");
    text_printf(text, byte_level, "false");
    text_words(text, ",\n\"decoder\": ");
    text_printf(text, byte_level, "true");
    text_printf(text, ",\n\"model\": {\"type\": \"BPE\", \"dropout\": null, \"unk_token\": null, "
                      "\"continuing_subword_prefix\": \"\", \"end_of_word_suffix\": \"\", \"fuse_unk\": false, "
                      "\"byte_fallback\": false,\n\"vocab\": ");
    hf_add_vocab(text, t);
    text_words(text, ",\n\"merges\": ");
    hf_add_merges_json(text, t, pairs);
    text_words(text, "}\n}\n");
}

// context: the number of positions of the model. Decoding must keep spaces, which older releases would change.
static inline void hf_add_tokenizer_config(Text *text, const Tokenizer *t, int context) {
    text_printf(text,
                "{\n  \"add_bos_token\": false,\n  \"add_prefix_space\": false,\n"
                "  \"added_tokens_decoder\": {\"%d\": {%s}},\n  \"bos_token\": \"%s\",\n"
                "  \"clean_up_tokenization_spaces\": false,\n  \"eos_token\": \"%s\",\n  \"errors\": \"replace\",\n"
                "  \"model_max_length\": %d,\n  \"tokenizer_class\": \"GPT2Tokenizer\",\n  \"unk_token\": \"%s\"\n}\n",
                t->eot_token, HF_END_OF_TEXT_FLAGS, END_OF_TEXT, END_OF_TEXT, context, END_OF_TEXT);
}

// ---- In ----

// Tells whether a folder has a tokenizer, whole or damaged, that hf_tokenizer_load would read.
static inline bool hf_tokenizer_exists(const char *dir) {
    static const char *const names[] = {HF_VOCAB_NAME, HF_MERGES_NAME, HF_TOKENIZER_NAME};
    char path[MAX_PATH_BYTES];
    Error ignored;
    for (int i = 0; i < 3; i++) {
        if (path_join(path, dir, names[i], &ignored) && path_exists(path)) { return true; }
    }
    return false;
}

static inline bool hf_fail_ids(const Json *json, const char *what, Error *error) {
    return fail(error,
                "%s: %s; only vocabularies with GPT-2's order of ids are read (bytes, merges, " END_OF_TEXT
                "): name a tokenizer of the model's with --tokenizer",
                json->name, what);
}

// Checks that all tokens equal those of t and have their ids. No two members have one key, so no id is there twice, and
// the number of members shows that none is missing.
static inline bool hf_check_ids(const Json *json, int vocab, const Tokenizer *t, Error *error) {
    char stand_in[HF_MAX_STAND_IN], name[101], what[HF_MAX_STAND_IN + 256];
    for (int key = vocab + 1; key < json->values[vocab].next; key = json->values[key + 1].next) {
        int64_t id;
        if (!json_int(json, key + 1, 0, INT32_MAX, &id, error)) { return false; }
        json_show(json, key, name);
        if (id >= t->vocab_size) {
            snprintf(what, sizeof(what), "token \"%s\" has id %lld, of %d tokens", name, (long long)id, t->vocab_size);
            return hf_fail_ids(json, what, error);
        }
        hf_stand_in(t, (int)id, stand_in);
        if (json_equals(json, key, stand_in)) { continue; }
        snprintf(what, sizeof(what), "id %lld is \"%s\", by the merges it is \"%s\"", (long long)id, name, stand_in);
        return hf_fail_ids(json, what, error);
    }
    return true;
}

// Compares t, which was made from the merges, with the object `vocab` of a file. A different number of tokens shows
// that the list of merges was cut.
static inline bool hf_check_vocab(const Json *json, int vocab, const Tokenizer *t, Error *error) {
    if (json->values[vocab].kind != JSON_OBJECT) {
        return fail(error, "%s: expected an object of tokens and their ids", json->name);
    }
    int found = json->values[vocab].count;
    if (found != t->vocab_size) {
        return fail(error,
                    "%s: has %d tokens, but its %d merges make %d (256 bytes, the merges, " END_OF_TEXT
                    "): damaged, or not of one model; fetch both again",
                    json->name, found, hf_num_merges(t), t->vocab_size);
    }
    return hf_check_ids(json, vocab, t, error);
}

// Makes a tokenizer from the text of merges.txt. Without any merge it is the byte tokenizer. name begins messages.
static inline bool hf_parse_merges(Tokenizer *t, const char *name, const uint8_t *data, int64_t size, Error *error) {
    const uint8_t *newline = (const uint8_t *)memchr(data, '\n', (size_t)size);
    if (newline == data + size - 1 && size >= 8 &&
        memcmp(data, "#version", 8) == 0) { // the first line is the last line
        tokenizer_init_byte(t);
        return true;
    }
    return tokenizer_parse_merges(t, name, data, size, 0, error);
}

// Loads vocab.json and merges.txt. Each needs the other.
static inline bool hf_load_vocab_and_merges(Tokenizer *t, const char *vocab_path, const char *merges_path,
                                            Error *error) {
    const char *missing = !path_exists(vocab_path) ? vocab_path : !path_exists(merges_path) ? merges_path : NULL;
    if (missing != NULL) {
        return fail(error, "%s: missing; it belongs beside %s, or name a tokenizer with --tokenizer", missing,
                    missing == vocab_path ? HF_MERGES_NAME : HF_VOCAB_NAME);
    }
    uint8_t *merges = NULL;
    int64_t bytes;
    Json json;
    memset(&json, 0, sizeof(json));
    bool ok = read_whole_file(merges_path, HF_MAX_TOKENIZER_BYTES, &merges, &bytes, error) &&
              hf_parse_merges(t, merges_path, merges, bytes, error) &&
              json_load(&json, vocab_path, HF_MAX_TOKENIZER_BYTES, error) && hf_check_vocab(&json, 0, t, error);
    json_free(&json);
    free(merges);
    return ok;
}

// ---- tokenizer.json ----

static inline bool hf_fail_variant(const Json *json, const char *what, Error *error) {
    return fail(error, "%s: %s: not GPT-2's kind of tokenizer; name one with --tokenizer", json->name, what);
}

// Tells whether a member of an object is a string or word (true, false, null) with this text.
static inline bool hf_member_is(const Json *json, int object, const char *key, const char *text) {
    int member = object < 0 ? -1 : json_find(json, object, key);
    return member >= 0 && json->values[member].kind != JSON_OBJECT && json->values[member].kind != JSON_ARRAY &&
           json_equals(json, member, text);
}

// Checks that the steps before the merges are GPT-2's: no normaliser, its rule for words, no space before the text.
static inline bool hf_check_steps(const Json *json, int model, Error *error) {
    int normalizer = json_find(json, 0, "normalizer"), words = json_find(json, 0, "pre_tokenizer");
    if (model < 0 || !hf_member_is(json, model, "type", "BPE")) {
        return hf_fail_variant(json, "\"model\" is not byte-pair encoding", error);
    }
    if (normalizer >= 0 && json->values[normalizer].kind != JSON_NULL) {
        return hf_fail_variant(json, "\"normalizer\" is not null", error);
    }
    if (!hf_member_is(json, words, "type", "ByteLevel") || hf_member_is(json, words, "use_regex", "false") ||
        hf_member_is(json, words, "add_prefix_space", "true")) {
        return hf_fail_variant(json, "\"pre_tokenizer\" is not ByteLevel without a prefix space", error);
    }
    return true;
}

static inline bool hf_add_decoded(Text *text, const Json *json, int value) {
    const char *decoded = json_decoded(json, value);
    size_t n = (size_t)json->values[value].count;
    if (json->values[value].kind != JSON_STRING || memchr(decoded, '\n', n) != NULL) { return false; }
    text_bytes(text, decoded, n);
    return true;
}

// Writes the array of merges, each ["a", "b"] or "a b", in the form of merges.txt.
static inline bool hf_merges_from_json(const Json *json, int merges, Text *text, Error *error) {
    if (merges < 0 || json->values[merges].kind != JSON_ARRAY) {
        return fail(error, "%s: expected \"merges\", an array", json->name);
    }
    text_words(text, HF_MERGES_VERSION);
    for (int m = merges + 1; m < json->values[merges].next; m = json->values[m].next) {
        bool pair = json->values[m].kind == JSON_ARRAY && json->values[m].count == 2, ok;
        if (pair) {
            ok = hf_add_decoded(text, json, m + 1);
            text_words(text, " ");
            ok = hf_add_decoded(text, json, json->values[m + 1].next) && ok;
        } else {
            ok = hf_add_decoded(text, json, m);
        }
        if (!ok) { return fail(error, "%s: byte %d: expected two symbols", json->name, json->values[m].start); }
        text_words(text, "\n");
    }
    return !text->failed || fail(error, "%s: out of memory", json->name);
}

static inline bool hf_load_tokenizer_json(Tokenizer *t, const char *path, Error *error) {
    Json json;
    Text text = {NULL, 0, 0, false};
    char name[MAX_PATH_BYTES + 32];
    bool ok = json_load(&json, path, HF_MAX_TOKENIZER_BYTES, error);
    int model = ok ? json_find(&json, 0, "model") : -1;
    ok = ok && hf_check_steps(&json, model, error) &&
         hf_merges_from_json(&json, json_find(&json, model, "merges"), &text, error);
    snprintf(name, sizeof(name), "%s: merges", path);
    ok = ok && hf_parse_merges(t, name, (const uint8_t *)text.data, (int64_t)text.used, error);
    int vocab = ok ? json_find(&json, model, "vocab") : -1;
    if (ok && vocab < 0) { ok = fail(error, "%s: \"vocab\" is missing", path); }
    ok = ok && hf_check_vocab(&json, vocab, t, error);
    text_free(&text);
    json_free(&json);
    return ok;
}

// Loads the tokenizer of a model's folder from vocab.json and merges.txt, or otherwise from tokenizer.json. The caller
// releases it with tokenizer_free. After a failure there is nothing to release.
static inline bool hf_tokenizer_load(Tokenizer *t, const char *dir, Error *error) {
    char vocab[MAX_PATH_BYTES], merges[MAX_PATH_BYTES], whole[MAX_PATH_BYTES];
    memset(t, 0, sizeof(*t));
    if (!path_join(vocab, dir, HF_VOCAB_NAME, error) || !path_join(merges, dir, HF_MERGES_NAME, error) ||
        !path_join(whole, dir, HF_TOKENIZER_NAME, error)) {
        return false;
    }
    bool pair = (path_exists(vocab) && path_exists(merges)) || !path_exists(whole);
    bool ok = pair ? hf_load_vocab_and_merges(t, vocab, merges, error) : hf_load_tokenizer_json(t, whole, error);
    if (!ok) { tokenizer_free(t); }
    return ok;
}

#endif // LLMC_HF_TOKENIZER_H
