// Fuzz target: the JSON parser and its getters.
#include "dev/test/fuzz.h"
#include "llmc/base/json.h"

// Every index and place a caller may follow must lie inside.
static void check_value(const Json *json, int i, int64_t size) {
    const JsonValue *v = &json->values[i];
    require(v->start >= 0 && v->start <= v->end && v->end <= size);
    require(v->next > i && v->next <= json->count);
    int64_t whole;
    double number;
    char text[16];
    Error error;
    if (json_int(json, i, -5, 1000, &whole, &error)) { require(whole >= -5 && whole <= 1000); }
    json_double(json, i, &number, &error);
    json_string(json, i, text, sizeof(text), &error);
    if (v->kind == JSON_STRING) {
        require(v->count <= v->end - v->start); // decoding never makes it longer
        require(json_decoded(json, i)[v->count] == '\0');
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Json json;
    Error error;
    int value;
    if (json_parse(&json, "fuzz", (const char *)data, (int64_t)size, &error)) {
        for (int i = 0; i < json.count; i++) { check_value(&json, i, (int64_t)size); }
        bool found = json_member(&json, "text", JSON_STRING, "a string", &value, &error);
        require(!found || json.values[value].kind == JSON_STRING);
    }
    json_free(&json);
    return 0;
}

size_t fuzz_seed_input(int which, uint8_t *buffer, size_t capacity) {
    static const char *const seeds[] = {
        "{\"text\": \"a\\u00e9\\ud83d\\ude00 b\\n\", \"n\": [1, -2.5e3, true, null, {}]}",
        "{\"__metadata__\":{\"format\":\"pt\"},\"wte.weight\":{\"dtype\":\"F32\",\"shape\":[3,4],\"data_offsets\":[0,"
        "48]}}",
        "{\"n_layer\": 12, \"layer_norm_epsilon\": 1e-05, \"activation_function\": \"gelu_new\", \"x\": {\"y\": "
        "[[[]]]}}",
    };
    if (which >= (int)(sizeof(seeds) / sizeof(seeds[0])) || strlen(seeds[which]) > capacity) { return 0; }
    memcpy(buffer, seeds[which], strlen(seeds[which]));
    return strlen(seeds[which]);
}
