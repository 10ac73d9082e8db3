// Fuzz target: the readers of Hugging Face's tokenizer files. An input is merges.txt, a NUL and vocab.json, or without
// a NUL tokenizer.json. What is accepted must give its files again, and encode and decode within its vocabulary.
#include "dev/test/data/fuzz_round_trip.h"
#include "llmc/files/hf_tokenizer.h"

static const char *const names[] = {HF_MERGES_NAME, HF_VOCAB_NAME, HF_TOKENIZER_NAME};

static void remove_files(void) {
    for (int i = 0; i < 3; i++) { unlink(temp_path(fuzz_folder(), names[i])); }
}

// One of the files that t gives; `which` counts as in `names`.
static Text file_text(const Tokenizer *t, int which) {
    Text text;
    memset(&text, 0, sizeof(text));
    uint32_t *pairs = hf_merge_pairs(t);
    require(pairs != NULL);
    if (which == 0) { hf_add_merges_text(&text, t, pairs); }
    if (which == 1) { hf_add_vocab(&text, t); }
    if (which == 2) { hf_add_tokenizer_json(&text, t, pairs); }
    free(pairs);
    require(!text.failed);
    return text;
}

// Writes what t says, reads it, and compares.
static void check_again(const Tokenizer *t) {
    Tokenizer again;
    Error error;
    remove_files();
    for (int i = 0; i < 2; i++) {
        Text text = file_text(t, i);
        fuzz_put(names[i], text.data, text.used);
        text_free(&text);
    }
    require(hf_tokenizer_load(&again, fuzz_folder()->path, &error));
    require(again.kind == t->kind && again.vocab_size == t->vocab_size && again.eot_token == t->eot_token);
    tokenizer_free(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Tokenizer t;
    Error error;
    const uint8_t *nul = size > 0 ? (const uint8_t *)memchr(data, 0, size) : NULL;
    remove_files();
    if (nul == NULL) {
        fuzz_put(HF_TOKENIZER_NAME, data, size);
    } else {
        fuzz_put(HF_MERGES_NAME, data, (size_t)(nul - data));
        fuzz_put(HF_VOCAB_NAME, nul + 1, size - (size_t)(nul + 1 - data));
    }
    if (!hf_tokenizer_load(&t, fuzz_folder()->path, &error)) {
        require(strlen(error.text) > 0 && strchr(error.text, '\n') == NULL);
        return 0;
    }
    check_encodes(&t);
    check_again(&t);
    tokenizer_free(&t);
    return 0;
}

// Even: a pair of files; odd: tokenizer.json. First with merges, then the bytes alone.
size_t fuzz_seed_input(int which, uint8_t *buffer, size_t capacity) {
    static const char *const seeds[] = {"#version: 0.2\na b\nab c\n\xc4\xa0 a\n' s\n", "#version: 0.2\n"};
    Tokenizer t;
    Error error;
    size_t size = 0;
    if (which >= 4) { return 0; }
    memset(&t, 0, sizeof(t));
    require(hf_parse_merges(&t, "seed", (const uint8_t *)seeds[which / 2], (int64_t)strlen(seeds[which / 2]), &error));
    for (int i = which % 2 == 0 ? 0 : 2; i < (which % 2 == 0 ? 2 : 3); i++) {
        Text text = file_text(&t, i);
        require(size + text.used + 1 <= capacity);
        memcpy(buffer + size, text.data, text.used);
        size += text.used;
        if (i == 0) { buffer[size++] = 0; }
        text_free(&text);
    }
    tokenizer_free(&t);
    return size;
}
