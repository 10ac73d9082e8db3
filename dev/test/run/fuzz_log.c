// Any bytes as speed.log: the time that a resumed run goes on from makes sense.
#include "dev/test/fuzz.h"
#include "llmc/run/log.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    LogFile speed;
    speed.fd = open(fuzz_temp_file(data, size), O_RDONLY);
    double seconds = logger_seconds_of(&speed);
    require(seconds >= 0.0 && seconds < LOG_MOST_SECONDS);
    log_close(&speed);
    return 0;
}

size_t fuzz_seed_input(int which, uint8_t *buffer, size_t capacity) {
    static const char *const seeds[] = {
        "s:0 ms:12.345 tps:1234567 sec:3.210\ns:1 ms:0.001 tps:0 sec:1e9\ns:2 ms:1.000 tps:1 sec:nan\n",
        "s:0 ms:1.000 tps:1 sec:7.000\ns:1 ms:1.000 tps:1 sec:",
    };
    if (which >= (int)(sizeof(seeds) / sizeof(seeds[0])) || strlen(seeds[which]) > capacity) { return 0; }
    memcpy(buffer, seeds[which], strlen(seeds[which]));
    return strlen(seeds[which]);
}
