// Writes the questions that evalloader.h reads: encodes a line of JSON,
//
//   {"context": "...", "completions": ["...", "...", "...", "..."], "label": 2}
//
// as an example of the file. Texts are encoded as they are, so a completion begins with its space.
#ifndef LLMC_QUESTIONS_H
#define LLMC_QUESTIONS_H

#include "llmc/base/json.h"
#include "llmc/data/evalloader.h"
#include "llmc/data/tokenizer.h"

#define QUESTION_COMPLETIONS 4    // llm.c's readers expect 4
#define QUESTION_MAX_TOKENS 32757 // all bytes of an example, with five fields and five counts, fit a uint16

// Encodes a string value after its number of tokens, and moves *out behind its last token.
static inline bool question_encode_text(const Tokenizer *t, const Json *json, int value, uint16_t **out, Error *error) {
    const JsonValue *v = &json->values[value];
    const uint8_t *text = (const uint8_t *)json_decoded(json, value);
    int64_t count = 0;
    if (v->kind != JSON_STRING) { return fail(error, "%s: byte %d: expected a string", json->name, v->start); }
    if (!tokenizer_encode(t, text, (size_t)v->count, *out + 1, &count, error)) { return false; }
    if (count == 0) { return fail(error, "%s: byte %d: the text is empty, so it has no loss", json->name, v->start); }
    (*out)[0] = (uint16_t)min_i64(count, UINT16_MAX); // an example with too many tokens is refused as a whole
    *out += 1 + count;
    return true;
}

// Encodes a question that is parsed. The caller sets its number, field EVAL_INDEX.
static inline bool question_encode_parsed(const Tokenizer *t, const Json *json, uint16_t *example, int64_t *count,
                                          Error *error) {
    uint16_t *out = example + EVAL_FIELDS;
    int context, completions, label;
    int64_t right;
    if (!json_member(json, "context", JSON_STRING, "a string", &context, error) ||
        !json_member(json, "completions", JSON_ARRAY, "a list ([...])", &completions, error) ||
        !json_member(json, "label", JSON_NUMBER, "a number", &label, error)) {
        return false;
    }
    if (json->values[completions].count != QUESTION_COMPLETIONS) {
        return fail(error, "%s: %d completions, expected %d", json->name, json->values[completions].count,
                    QUESTION_COMPLETIONS);
    }
    if (!json_int(json, label, 0, QUESTION_COMPLETIONS - 1, &right, error)) { return false; }
    if (!question_encode_text(t, json, context, &out, error)) { return false; }
    for (int i = completions + 1; i < json->values[completions].next; i = json->values[i].next) {
        if (!question_encode_text(t, json, i, &out, error)) { return false; }
    }
    *count = out - example;
    if (2 * *count > UINT16_MAX) {
        int64_t tokens = *count - EVAL_FIELDS - 1 - QUESTION_COMPLETIONS;
        return fail(error, "%s: %lld tokens, at most %d fit", json->name, (long long)tokens, QUESTION_MAX_TOKENS);
    }
    example[EVAL_START] = EVAL_EXAMPLE_START;
    example[EVAL_BYTES] = (uint16_t)(2 * *count);
    example[EVAL_INDEX] = 0;
    example[EVAL_LABEL] = (uint16_t)right;
    example[EVAL_COMPLETIONS] = QUESTION_COMPLETIONS;
    return true;
}

// Encodes a line of n bytes to `example`, which has room for n numbers: keys, quotes and brackets take more bytes than
// fields and counts.
static inline bool question_encode(const Tokenizer *t, const char *line, int64_t n, uint16_t *example, int64_t *count,
                                   Error *error) {
    Json json;
    bool ok = json_parse(&json, "JSON line", line, n, error) && question_encode_parsed(t, &json, example, count, error);
    json_free(&json);
    return ok;
}

#endif // LLMC_QUESTIONS_H
