// Any bytes as main.log or speed.log: resuming leaves only whole lines of earlier steps.
#include "dev/test/fuzz.h"
#include "dev/test/plain.h"
#include "llmc/run/log.h"

// What a resume at `step` leaves of main.log or, if speed, of speed.log.
static void check_trim(const uint8_t *data, size_t size, int64_t step, bool speed) {
    const char *path = fuzz_temp_file(data, size), *line;
    Error error;
    uint8_t *text;
    int64_t bytes, position = 0;
    size_t length;
    LogLine parsed, last = {LOG_SPEED, -1, 0.0};
    require(log_trim_lines(path, step, speed, &last, &error));
    require(last.step < step);
    require(read_whole_file(path, MAIN_LOG_MAX_BYTES, &text, &bytes, &error));
    while (log_next_line((const char *)text, bytes, &position, &line, &length)) {
        require(log_parse_line(line, length, &parsed) && (parsed.kind == LOG_SPEED) == speed && parsed.step >= 0 &&
                parsed.step < step);
    }
    require(position == bytes && bytes <= (int64_t)size && is_plain((const char *)text, (size_t)bytes));
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    check_trim(data, size, 2, false);
    check_trim(data, size, 2, true);
    return 0;
}

size_t fuzz_seed_input(int which, uint8_t *buffer, size_t capacity) {
    static const char *const seeds[] = {
        ("s:0 tel:10.9876\ns:0 trl:10.9912 lr:0.000300 norm:15.12\ns:1 trl:9.1234 lr:0.000300 norm:3.02\n"
         "s:2 tel:8.5000\ns:2 eval:0.2495\ns:2 mmlu:0.2601\ns:2 trl:8.4567 lr:0.000299 norm:2.22\n"),
        "s:0 trl:0.0000 lr:0.000000 norm:0.00\ns:1 trl:900000.0000 lr:0.1 norm:1e9\ns:3 trl:nan lr:1 norm:inf\n",
        "s:0 ms:12.345 tps:1234567 sec:3.210\ns:1 ms:0.001 tps:0 sec:1e9\ns:2 ms:1.000 tps:1 sec:nan\n",
        "s:999999999999999999 tel:1.0\ns:0 tel:1.0\ns:5 tel:0x1p3\ns:7 tel:-3\n",
    };
    if (which >= (int)(sizeof(seeds) / sizeof(seeds[0])) || strlen(seeds[which]) > capacity) { return 0; }
    memcpy(buffer, seeds[which], strlen(seeds[which]));
    return strlen(seeds[which]);
}
