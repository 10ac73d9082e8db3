// Fuzz target: a line of JSON. What is found lies inside, and decoding never makes a string longer.
#include "dev/test/fuzz.h"
#include "llmc/data/json_line.h"

static void read_line(const uint8_t *data, size_t size) {
    JsonLine value;
    Text text = {NULL, 0, 0, false};
    if (json_line_find((const char *)data, size, "text", &value, &error)) {
        require(value.at > 0 && value.at < size);
        if (json_line_string(&value, &text)) { require(text.used < size && value.at <= size); }
    }
    text_free(&text);
}

static const char *const seeds[] = {
    "{\"text\": \"a\\u00e9\\ud83d\\ude00 b\\n\", \"n\": [1, -2.5e3, true, null, {}]}",
    "{\"x\": {\"y\": [[[]]]}, \"text\": \"\\\\\"}\r\n",
};

FUZZ_TEXT(seeds, read_line)
