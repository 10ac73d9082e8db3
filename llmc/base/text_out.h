// Writes a model's text to a terminal, piece by piece. A token may end in the middle of a character, and a model may
// write any bytes. Each character passes text_show (utils.h). Newlines and tabs stay.
#ifndef LLMC_TEXT_OUT_H
#define LLMC_TEXT_OUT_H

#include "llmc/base/text.h"

typedef struct {
    FILE *out;
    char held[4]; // the beginning of a character whose end has not come yet
    int num_held;
} TextOut;

static inline void text_out_begin(TextOut *text, FILE *out) {
    text->out = out;
    text->num_held = 0;
}

// Writes the held characters that are complete. Four bytes are a character or begin none. at_end: writes all held
// bytes.
static inline void text_out_write_held(TextOut *text, bool at_end) {
    while (text->num_held > 0) {
        uint32_t c;
        char shown[TEXT_SHOWN_BYTES];
        size_t taken, held = (size_t)text->num_held;
        if (!at_end && held < 4 && utf8_decode((const uint8_t *)text->held, held, &c) == 0) { return; }
        fwrite(shown, 1, text_show(shown, text->held, held, true, &taken), text->out);
        text->num_held -= (int)taken;
        memmove(text->held, text->held + taken, (size_t)text->num_held);
    }
}

static inline void text_out_write(TextOut *text, const uint8_t *bytes, int count) {
    for (int i = 0; i < count; i++) {
        text->held[text->num_held++] = (char)bytes[i];
        text_out_write_held(text, false);
    }
    fflush(text->out);
}

static inline void text_out_end(TextOut *text) {
    text_out_write_held(text, true);
    fflush(text->out);
}

#endif // LLMC_TEXT_OUT_H
