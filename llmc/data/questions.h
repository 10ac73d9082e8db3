// Writes the questions that evalloader.h reads: encodes a line of JSON,
//
//   {"context": "...", "completions": ["...", "...", "...", "..."], "label": 2}
//
// as an example of the file. Texts are encoded as they are, so a completion begins with its space.
#ifndef LLMC_QUESTIONS_H
#define LLMC_QUESTIONS_H

#include "llmc/data/evalloader.h"
#include "llmc/data/json_line.h"
#include "llmc/data/tokenizer.h"

#define QUESTION_COMPLETIONS 4 // llm.c's readers expect 4

// Encodes the string at the place after its number of tokens, and moves *out behind its last token.
static inline bool question_encode_text(const Tokenizer *t, JsonLine *place, uint32_t **out, Error *error) {
    Text text = {NULL, 0, 0, false};
    int64_t count = 0;
    size_t start = place->at;
    bool ok = json_line_string(place, &text) &&
              tokenizer_encode(t, (const uint8_t *)text.data, text.used, *out + 1, &count, error) &&
              (count > 0 || json_line_fail(place, start, "the text is empty, so it has no loss"));
    text_free(&text);
    (*out)[0] = (uint32_t)count;
    *out += 1 + count;
    return ok;
}

// Encodes the list of completions at the place.
static inline bool question_encode_list(const Tokenizer *t, JsonLine *list, uint32_t **out, Error *error) {
    int count = 0;
    if (json_line_peek(list, 0) != '[') { return json_line_fail(list, list->at, "expected a list ([...])"); }
    do {
        list->at++; // the bracket or a comma
        json_line_space(list);
        if (json_line_peek(list, 0) == ']') { break; }
        if (!question_encode_text(t, list, out, error)) { return false; }
        json_line_space(list);
        count++;
    } while (json_line_peek(list, 0) == ',');
    return count == QUESTION_COMPLETIONS ||
           fail(error, "JSON line: %d completions, expected %d", count, QUESTION_COMPLETIONS);
}

// Encodes a line of n bytes to `example`, which has room for n numbers: keys, quotes and brackets take more bytes than
// fields and counts. The caller sets the example's number, field EVAL_INDEX.
static inline bool question_encode(const Tokenizer *t, const char *line, size_t n, uint32_t *example, int64_t *count,
                                   Error *error) {
    uint32_t *out = example + EVAL_FIELDS;
    JsonLine context, completions, label;
    if (!json_line_find(line, n, "context", &context, error) ||
        !json_line_find(line, n, "completions", &completions, error) ||
        !json_line_find(line, n, "label", &label, error) || !question_encode_text(t, &context, &out, error) ||
        !question_encode_list(t, &completions, &out, error)) {
        return false;
    }
    int right = json_line_peek(&label, 0) - '0';
    bool ends = label.at + 1 < n && strchr(", }\t\r\n", line[label.at + 1]) != NULL;
    if (!ends || right < 0 || right >= QUESTION_COMPLETIONS) {
        return json_line_fail(&label, label.at, "expected a whole number from 0 to 3");
    }
    *count = out - example;
    if (*count > EVAL_MAX_WORDS) {
        const int counts = EVAL_FIELDS + 1 + QUESTION_COMPLETIONS;
        return fail(error, "JSON line: %lld tokens, at most %d fit", (long long)*count - counts,
                    EVAL_MAX_WORDS - counts);
    }
    const int id_bytes = data_id_bytes(t->vocab_size);
    example[EVAL_START] = EVAL_EXAMPLE_START(id_bytes);
    example[EVAL_BYTES] = (uint32_t)(id_bytes * *count);
    example[EVAL_INDEX] = 0;
    example[EVAL_LABEL] = (uint32_t)right;
    example[EVAL_COMPLETIONS] = QUESTION_COMPLETIONS;
    return true;
}

#endif // LLMC_QUESTIONS_H
