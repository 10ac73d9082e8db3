// Fuzz target: the reader of llm.c's gpt2_tokenizer.bin and of our version 3. Every token of what it accepts must be
// readable; merges must encode; the copy that a run keeps must be the same tokenizer.
#include "dev/test/data/fuzz_round_trip.h"
#include "dev/test/data/small_bpe.h"

static void check_copy(const Tokenizer *t) {
    Text text = {NULL, 0, 0, false}, again = {NULL, 0, 0, false};
    Tokenizer copy;
    require(tokenizer_write(t, &text, &error));
    require(tokenizer_load(&copy, fuzz_temp_file((const uint8_t *)text.data, text.used), &error));
    require(copy.kind == t->kind && tokenizer_write(&copy, &again, &error));
    require(again.used == text.used && memcmp(again.data, text.data, text.used) == 0);
    tokenizer_free(&copy);
    text_free(&text);
    text_free(&again);
}

static void check_tokens(const Tokenizer *t) {
    int bytes = 0;
    unsigned sum = 0;
    require(t->vocab_size >= 1 && t->vocab_size <= MAX_VOCAB && (t->kind != TOKENIZER_BYTE || t->vocab_size == 257));
    require(t->eot_token >= 0 && t->eot_token < t->vocab_size);
    for (int i = 0; i < t->vocab_size; i++) {
        const uint8_t *piece = tokenizer_decode(t, i, &bytes);
        require(piece != NULL && bytes >= 1 && bytes <= MAX_TOKEN_BYTES);
        for (int k = 0; k < bytes; k++) { sum += piece[k]; } // the sanitizer sees whether they are there
    }
    require(sum < UINT32_MAX && tokenizer_decode(t, t->vocab_size, &bytes) == NULL);
    check_copy(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Tokenizer t;
    error.text[0] = '\0';
    if (!tokenizer_load(&t, fuzz_temp_file(data, size), &error)) {
        require(strlen(error.text) > 0 && strchr(error.text, '\n') == NULL);
        return 0;
    }
    check_tokens(&t);
    check_encodes(&t);
    tokenizer_free(&t);
    return 0;
}

size_t fuzz_seed_input(int which, uint8_t *buffer, size_t capacity) {
    static const char *const tokens[] = {"ab|abc|aa|aaaa|ca|caab", " a|  |'s|\xc3\xa9|\n\n|12| aa",
                                         "##|####|########|################|################################"};
    Text file = {NULL, 0, 0, false};
    Tokenizer t;
    if (which >= 6) { return 0; }
    if (which < 3) { small_bpe_file(&file, tokens[which]); }
    if (which == 3) {
        tokenizer_init_byte(&t);
        require(tokenizer_write(&t, &file, &error));
    }
    if (which > 3) {
        const char *path =
            which == 4 ? "dev/test/fixtures/llama3_tokenizer.bin" : "dev/test/fixtures/smollm2_tokenizer.bin";
        require(tokenizer_load(&t, path, &error) && tokenizer_write(&t, &file, &error));
        tokenizer_free(&t);
    }
    size_t size = fuzz_seed(file.data, file.used, buffer, capacity);
    text_free(&file);
    return size;
}
