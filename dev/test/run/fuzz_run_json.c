// Any bytes as run.json: a resumed run takes over its starts or says that it cannot, and writes valid JSON.
#include "dev/test/fuzz.h"
#include "dev/test/plain.h"
#include "llmc/run/run_json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static TrainRun run;
    static FILE *nowhere;
    static char *words[] = {(char *)"./train_gpt2", (char *)"--resume", NULL};
    JsonOut out;
    Json json;
    Error error;
    if (nowhere == NULL) { nowhere = fopen("/dev/null", "w"); }
    run.logger.out = nowhere;
    run.options.resume = true;
    run.step = 7;
    run.record.arguments = words, run.record.num_arguments = 2;
    json_out_begin(&out);
    run_json_starts(&out, &run, fuzz_temp_file(data, size));
    require(json_out_end(&out));
    require(is_plain(out.text.data, out.text.used));
    require(json_parse(&json, "what was written", out.text.data, (int64_t)out.text.used, &error));
    int starts = json_find(&json, 0, "starts"), last = -1;
    require(starts > 0 && json.values[starts].kind == JSON_ARRAY && json.values[starts].count >= 1);
    for (int i = starts + 1; i < json.values[starts].next; i = json.values[i].next) {
        require(json.values[i].kind == JSON_OBJECT);
        last = i;
    }
    int64_t step = 0;
    require(json_int(&json, json_find(&json, last, "from_step"), 7, 7, &step, &error));
    json_free(&json);
    json_out_free(&out);
    return 0;
}

size_t fuzz_seed_input(int which, uint8_t *buffer, size_t capacity) {
    static const char *const seeds[] = {
        ("{\n  \"format\": 1,\n  \"starts\": [\n    {\"time\": \"2026-11-21T19:40:00Z\", \"from_step\": 0, "
         "\"command\": [\"./a\"]},\n    {\"from_step\": 5, \"command\": []}\n  ],\n  \"end\": {\"step\": 9}\n}\n"),
        "{\"starts\": [{}, {\"end\": {}}], \"end\": {\"status\": \"done\"}}",
        "{\"end\": [], \"starts\": [{\"a\": \"\\ud83d\\ude00\"}]}",
    };
    if (which >= (int)(sizeof(seeds) / sizeof(seeds[0])) || strlen(seeds[which]) > capacity) { return 0; }
    memcpy(buffer, seeds[which], strlen(seeds[which]));
    return strlen(seeds[which]);
}
