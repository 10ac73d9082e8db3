// What a list of kernels and copies with their times says of a training step: which take how long, and where the GPU
// waits for work. Nothing here needs a GPU: trace_kernels.cpp collects such lists, and test_kernel_trace.c makes some
// up.
#ifndef KERNEL_TRACE_H
#define KERNEL_TRACE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "llmc/base/utils.h"

#define TRACE_NAME_BYTES 96

// A kernel, copy or fill that ran from start to end (ns of one clock).
typedef struct {
    char name[TRACE_NAME_BYTES]; // see trace_short_name
    uint64_t start, end;
    uint32_t stream;
} TraceRecord;

// All launches of one name in the steps that count.
typedef struct {
    char name[TRACE_NAME_BYTES];
    int64_t calls;
    uint64_t ns;      // together
    uint64_t idle_ns; // for which nothing ran before them: waiting for the launch, the host or an event
} TraceKernel;

typedef struct {
    int64_t steps;
    uint64_t ns, busy_ns, overlap_ns; // of all steps; anything runs; two or more run, counted for each beyond the first
    int64_t gaps;                     // times that nothing ran
    uint64_t median_gap_ns, largest_gap_ns;
    TraceKernel *kernels; // longest first; trace_free gives them back
    int64_t num_kernels;
} TraceSummary;

// Where the parameters of the function begin whose name ends at `end`; `end` if there are none.
static inline const char *trace_parameters(const char *begin, const char *end) {
    int depth = 0;
    for (const char *at = end; at > begin; at--) {
        depth += (at[-1] == ')') - (at[-1] == '(');
        if (depth == 0) { return at[-1] == '(' ? at - 1 : end; }
    }
    return end;
}

// A name that fits a table, of a demangled one: without result, template arguments, parameters and our kernels' ending.
// CUTLASS' kernels have what tells them apart in the template argument: that is their name.
static inline void trace_short_name(char name[TRACE_NAME_BYTES], const char *demangled) {
    const char *begin = strncmp(demangled, "void ", 5) == 0 ? demangled + 5 : demangled;
    const char *end = trace_parameters(begin, begin + strlen(begin));
    const char *template_begin = (const char *)memchr(begin, '<', (size_t)(end - begin));
    if (template_begin != NULL && strncmp(begin, "cutlass", 7) == 0) {
        begin = template_begin + 1;
        end = begin + strcspn(begin, "<>,");
    } else if (template_begin != NULL) {
        end = template_begin;
    }
    size_t length = (size_t)(end - begin);
    if (length > 7 && strncmp(end - 7, "_kernel", 7) == 0) { length -= 7; }
    if (length >= TRACE_NAME_BYTES) { length = TRACE_NAME_BYTES - 1; }
    for (size_t i = 0; i < length; i++) { name[i] = strchr(",\"\n", begin[i]) == NULL ? begin[i] : ' '; }
    name[length] = '\0';
}

static inline int trace_compare_starts(const void *a, const void *b) {
    const TraceRecord *x = (const TraceRecord *)a, *y = (const TraceRecord *)b;
    if (x->start != y->start) { return x->start < y->start ? -1 : 1; }
    return x->end < y->end ? -1 : x->end > y->end;
}

static inline int trace_compare_times(const void *a, const void *b) {
    const TraceKernel *x = (const TraceKernel *)a, *y = (const TraceKernel *)b;
    if (x->ns != y->ns) { return x->ns > y->ns ? -1 : 1; }
    return strcmp(x->name, y->name);
}

static inline int trace_compare_gaps(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

// The steps that count are those between the record `first` and the record `last`, both of the marking kernel: all but
// `skip` at the start, and the last one, whose end nothing marks. False if there are none.
static inline bool trace_find_steps(const TraceRecord *records, int64_t n, const char *mark, int64_t skip,
                                    int64_t *first, int64_t *last, int64_t *steps) {
    int64_t marks = 0;
    for (int64_t i = 0; i < n; i++) {
        if (strcmp(records[i].name, mark) != 0) { continue; }
        if (marks == skip) { *first = i; }
        *last = i;
        marks++;
    }
    *steps = marks - 1 - skip;
    return *steps > 0;
}

// The row of a name; a new one where there is none yet.
static inline TraceKernel *trace_row(TraceSummary *s, const char *name) {
    for (int64_t i = 0; i < s->num_kernels; i++) {
        if (strcmp(s->kernels[i].name, name) == 0) { return &s->kernels[i]; }
    }
    TraceKernel *row = &s->kernels[s->num_kernels++];
    memset(row, 0, sizeof(*row));
    memcpy(row->name, name, TRACE_NAME_BYTES);
    return row;
}

static inline void trace_free(TraceSummary *s) { free(s->kernels); }

// Adds up the records [first, last), which are in the order of their starts, and puts the gaps between them into
// `gaps`.
static inline void trace_add_up(TraceSummary *s, const TraceRecord *records, int64_t first, int64_t last,
                                uint64_t *gaps) {
    uint64_t reached = records[first].start, end = records[last].start, idle = 0;
    s->ns = end - reached;
    for (int64_t i = first; i <= last; i++) {
        uint64_t gap = records[i].start > reached ? records[i].start - reached : 0;
        if (gap > 0) { gaps[s->gaps++] = gap, idle += gap; }
        // The gap at the end of the last step stands before the next step's first kernel, which is what it waited for.
        TraceKernel *row = trace_row(s, records[i].name);
        row->idle_ns += gap;
        if (i == last) { break; }
        uint64_t ns = records[i].end - records[i].start;
        reached += gap; // nothing ran until this started
        uint64_t alone = records[i].end > reached ? records[i].end - reached : 0;
        row->calls++, row->ns += ns;
        s->overlap_ns += ns - alone;
        reached += alone;
    }
    s->busy_ns = s->ns - idle;
}

// Sorts the records and sums them up over the steps, each of which begins with the kernel `mark`. The first `skip`
// steps do not count. `s` is empty if this fails.
static inline bool trace_summarise(TraceSummary *s, TraceRecord *records, int64_t n, const char *mark, int64_t skip,
                                   Error *error) {
    int64_t first = 0, last = 0, steps = 0;
    memset(s, 0, sizeof(*s));
    qsort(records, (size_t)n, sizeof(*records), trace_compare_starts);
    if (!trace_find_steps(records, n, mark, skip, &first, &last, &steps)) {
        return fail(
            error,
            "%lld kernels and copies with fewer than %lld times %s, expected one at the start of each step; train "
            "for more steps",
            (long long)n, (long long)skip + 2, mark);
    }
    s->steps = steps;
    uint64_t *gaps = (uint64_t *)calloc((size_t)(last - first + 1), sizeof(*gaps));
    s->kernels = (TraceKernel *)calloc((size_t)(last - first + 1), sizeof(*s->kernels));
    if (gaps == NULL || s->kernels == NULL) {
        free(gaps), free(s->kernels), s->kernels = NULL;
        return fail(error, "no memory for %lld kernels; train for fewer steps", (long long)n);
    }
    trace_add_up(s, records, first, last, gaps);
    qsort(gaps, (size_t)s->gaps, sizeof(*gaps), trace_compare_gaps);
    s->median_gap_ns = s->gaps > 0 ? gaps[s->gaps / 2] : 0;
    s->largest_gap_ns = s->gaps > 0 ? gaps[s->gaps - 1] : 0;
    qsort(s->kernels, (size_t)s->num_kernels, sizeof(*s->kernels), trace_compare_times);
    free(gaps);
    return true;
}

// As comma-separated values, of one step on average. Three rows in brackets come first.
static inline void trace_write(FILE *out, const TraceSummary *s) {
    double steps = (double)s->steps, ns = (double)s->ns, idle = ns - (double)s->busy_ns;
    fprintf(out, "kernel,calls,us_per_call,ms,percent,idle_before_us\n");
    fprintf(out, "(step),1,%.3f,%.6f,100.00,%.3f\n", 1e-3 * ns / steps, 1e-6 * ns / steps, 1e-3 * idle / steps);
    fprintf(out, "(gap: median and largest),%.2f,%.3f,%.6f,%.2f,%.3f\n", (double)s->gaps / steps,
            1e-3 * (double)s->median_gap_ns, 1e-6 * idle / steps, 100.0 * idle / ns, 1e-3 * (double)s->largest_gap_ns);
    fprintf(out, "(two at once),0,0,%.6f,%.2f,0\n", 1e-6 * (double)s->overlap_ns / steps,
            100.0 * (double)s->overlap_ns / ns);
    for (int64_t i = 0; i < s->num_kernels; i++) {
        const TraceKernel *k = &s->kernels[i];
        double total = (double)k->ns;
        fprintf(out, "%s,%.2f,%.3f,%.6f,%.2f,%.3f\n", k->name, (double)k->calls / steps,
                k->calls > 0 ? 1e-3 * total / (double)k->calls : 0.0, 1e-6 * total / steps, 100.0 * total / ns,
                1e-3 * (double)k->idle_ns / steps);
    }
}

#endif
