// What --offload keeps in the host's memory. The GPU gets it when it needs it.
#ifndef LLMC_OFFLOAD_H
#define LLMC_OFFLOAD_H

#include "llmc/base/utils.h"

enum {
    OFFLOAD_OPTIMIZER = 1,
    OFFLOAD_MASTER = 2,
    OFFLOAD_GRADIENTS = 4,
    OFFLOAD_RESIDUALS = 8,
    OFFLOAD_PARAMETERS = 16
};
#define NUM_OFFLOADS 5

// In the order in which --auto takes them: what costs a step least time comes first. Ranks that share buckets share out
// what waits on the host, from this stage of ZeRO on.
static const struct {
    const char *name;
    int stage;
    const char *needs;
} offloads[NUM_OFFLOADS] = {
    {"optimizer", 1, "a run that trains, and on several GPUs --zero-stage 1 or more"}, // m and v, Muon's momentum
    {"master", 1, "fp32 master weights, and on several GPUs --zero-stage 1 or more"},
    {"gradients", 2, "a run that trains without --pp, and on several GPUs --zero-stage 2 or 3"},
    {"residuals", 0, "a run that trains without --pp"}, // the input of each block
    {"parameters", 3, "a run without --pp, and on several GPUs --zero-stage 3"},
};

// Writes the names of a set, with commas between them.
static inline ShortText offload_text(int set) {
    ShortText text = {""};
    for (int i = 0; i < NUM_OFFLOADS; i++) {
        size_t n = strlen(text.text);
        const char *comma = n > 0 ? "," : "";
        if (set & 1 << i) { snprintf(text.text + n, sizeof(text.text) - n, "%s%s", comma, offloads[i].name); }
    }
    return text;
}

// Reads a list of names with commas. "all" is everything that the run can have: `possible`.
static inline bool offload_parse(int *set, const char *list, int possible, Error *error) {
    char names[sizeof(ShortText)], *rest = NULL;
    snprintf(names, sizeof(names), "%s", strcmp(list, "all") == 0 ? offload_text(possible).text : list);
    *set = 0;
    if (list[0] != '\0' && names[strspn(names, ",")] == '\0') { return fail(error, "--offload: names nothing"); }
    for (const char *name = strtok_r(names, ",", &rest); name != NULL; name = strtok_r(NULL, ",", &rest)) {
        int i = 0;
        while (i < NUM_OFFLOADS && strcmp(offloads[i].name, name) != 0) { i++; }
        if (i == NUM_OFFLOADS) {
            return fail(error, "--offload: '%s' is none of %s,all", name, offload_text((1 << NUM_OFFLOADS) - 1).text);
        }
        if (!(possible & 1 << i)) { return fail(error, "--offload %s: needs %s", name, offloads[i].needs); }
        *set |= 1 << i;
    }
    return true;
}

#endif // LLMC_OFFLOAD_H
