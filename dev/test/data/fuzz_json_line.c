// Fuzz target: a line of JSON. What is found lies inside, and decoding never makes a string longer.
#include "dev/test/fuzz.h"
#include "llmc/data/json_line.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    JsonLine value;
    Error error;
    Text text = {NULL, 0, 0, false};
    char *line = (char *)malloc(size > 0 ? size : 1); // exactly its bytes, so that a sanitizer sees a read behind them
    memcpy(line, data, size);
    if (json_line_find(line, size, "text", &value, &error)) {
        require(value.at > 0 && value.at < size);
        if (json_line_string(&value, &text)) { require(text.used < size && value.at <= size); }
    }
    text_free(&text);
    free(line);
    return 0;
}

size_t fuzz_seed_input(int which, uint8_t *buffer, size_t capacity) {
    static const char *const seeds[] = {
        "{\"text\": \"a\\u00e9\\ud83d\\ude00 b\\n\", \"n\": [1, -2.5e3, true, null, {}]}",
        "{\"x\": {\"y\": [[[]]]}, \"text\": \"\\\\\"}\r\n",
    };
    if (which >= (int)(sizeof(seeds) / sizeof(seeds[0])) || strlen(seeds[which]) > capacity) { return 0; }
    memcpy(buffer, seeds[which], strlen(seeds[which]));
    return strlen(seeds[which]);
}
