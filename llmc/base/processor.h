// Ends a program before main, in one line, if it was built for a processor that has more instructions than this one:
// built with -march=native there and run here, it would die of an illegal instruction. Every program has this from
// openmp.h.
#ifndef LLMC_PROCESSOR_H
#define LLMC_PROCESSOR_H

#if defined(__x86_64__) && !defined(__CUDACC__)
#include <cpuid.h>
#include <string.h>
#include <unistd.h>

#define PROCESSOR_TEXT(x) #x
#define PROCESSOR_VALUE(macro) PROCESSOR_TEXT(macro) // "1", or the name of the macro if it is not defined

// An instruction set that compilers use where they may, and its bit in what CPUID returns.
typedef struct {
    const char *name, *built;         // built: "1..." if this program may use it
    unsigned leaf, subleaf, reg, bit; // reg: 0 .. 3 for EAX .. EDX
} ProcessorSet;

static const ProcessorSet processor_sets[] = {
    {"SSE3", PROCESSOR_VALUE(__SSE3__), 1, 0, 2, 0},
    {"SSSE3", PROCESSOR_VALUE(__SSSE3__), 1, 0, 2, 9},
    {"SSE4.1", PROCESSOR_VALUE(__SSE4_1__), 1, 0, 2, 19},
    {"SSE4.2", PROCESSOR_VALUE(__SSE4_2__), 1, 0, 2, 20},
    {"MOVBE", PROCESSOR_VALUE(__MOVBE__), 1, 0, 2, 22},
    {"POPCNT", PROCESSOR_VALUE(__POPCNT__), 1, 0, 2, 23},
    {"LZCNT", PROCESSOR_VALUE(__LZCNT__), 0x80000001, 0, 2, 5},
    {"BMI", PROCESSOR_VALUE(__BMI__), 7, 0, 1, 3},
    {"BMI2", PROCESSOR_VALUE(__BMI2__), 7, 0, 1, 8},
    {"F16C", PROCESSOR_VALUE(__F16C__), 1, 0, 2, 29},
    {"FMA", PROCESSOR_VALUE(__FMA__), 1, 0, 2, 12},
    {"AVX2", PROCESSOR_VALUE(__AVX2__), 7, 0, 1, 5},
    {"AVX-512DQ", PROCESSOR_VALUE(__AVX512DQ__), 7, 0, 1, 17},
    {"AVX-512CD", PROCESSOR_VALUE(__AVX512CD__), 7, 0, 1, 28},
    {"AVX-512BW", PROCESSOR_VALUE(__AVX512BW__), 7, 0, 1, 30},
    {"AVX-512VL", PROCESSOR_VALUE(__AVX512VL__), 7, 0, 1, 31},
    {"AVX-512VBMI", PROCESSOR_VALUE(__AVX512VBMI__), 7, 0, 2, 1},
    {"AVX-512VBMI2", PROCESSOR_VALUE(__AVX512VBMI2__), 7, 0, 2, 6},
    {"GFNI", PROCESSOR_VALUE(__GFNI__), 7, 0, 2, 8},
    {"AVX-512VNNI", PROCESSOR_VALUE(__AVX512VNNI__), 7, 0, 2, 11},
    {"AVX-512BITALG", PROCESSOR_VALUE(__AVX512BITALG__), 7, 0, 2, 12},
    {"AVX-512VPOPCNTDQ", PROCESSOR_VALUE(__AVX512VPOPCNTDQ__), 7, 0, 2, 14},
    {"AVX-512FP16", PROCESSOR_VALUE(__AVX512FP16__), 7, 0, 3, 23},
    {"AVX-VNNI", PROCESSOR_VALUE(__AVXVNNI__), 7, 1, 0, 4},
    {"AVX-512BF16", PROCESSOR_VALUE(__AVX512BF16__), 7, 1, 0, 5},
};

// These run where the program's own instructions are missing. So they are compiled for the first x86-64, and call
// nothing of ours.
#define PROCESSOR_ANY __attribute__((target("arch=x86-64,no-avx,no-bmi,no-bmi2,no-lzcnt,no-popcnt,no-movbe,no-sse3")))

PROCESSOR_ANY static inline int processor_has(const ProcessorSet *set) {
    unsigned found[4] = {0}, most;
    __cpuid(set->leaf & 0x80000000, most, found[1], found[2], found[3]);
    if (most < set->leaf) { return 0; }
    __cpuid_count(set->leaf, set->subleaf, found[0], found[1], found[2], found[3]);
    return found[set->reg] >> set->bit & 1;
}

PROCESSOR_ANY __attribute__((constructor(101))) static void processor_check(void) {
    const char *lacks = NULL, *texts[3];
    __builtin_cpu_init(); // it also asks whether the operating system keeps the wide registers
    if (PROCESSOR_VALUE(__AVX512F__)[0] == '1' && !__builtin_cpu_supports("avx512f")) { lacks = "AVX-512F"; }
    if (PROCESSOR_VALUE(__AVX__)[0] == '1' && !__builtin_cpu_supports("avx")) { lacks = "AVX"; }
    for (unsigned i = 0; i < sizeof(processor_sets) / sizeof(processor_sets[0]) && lacks == NULL; i++) {
        const ProcessorSet *set = &processor_sets[i];
        if (set->built[0] == '1' && !processor_has(set)) { lacks = set->name; }
    }
    if (lacks == NULL) { return; }
    texts[0] = "error: this program was built for a processor with ", texts[1] = lacks;
    texts[2] = ", which this one lacks; build it here (`make clean; make`), or for all of them with `make ARCH=`\n";
    for (int i = 0; i < 3; i++) {
        if (write(2, texts[i], strlen(texts[i])) < 0) { break; }
    }
    _exit(1);
}
#endif // __x86_64__

#endif // LLMC_PROCESSOR_H
