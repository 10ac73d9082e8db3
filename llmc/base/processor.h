// Ends a program in one line before main if it was built with instructions that this processor lacks (-march=native on
// another machine). It runs where they are missing, so it is compiled for the first x86-64 and calls nothing of ours.
#ifndef LLMC_PROCESSOR_H
#define LLMC_PROCESSOR_H

// The newest instructions of this build. A processor that has them has the older ones, too.
#if defined(__XOP__)
#define PROCESSOR_NEEDS "xop"
#elif defined(__AVX512BF16__) && (defined(__clang__) || __GNUC__ > 10) // gcc 10 cannot ask for it
#define PROCESSOR_NEEDS "avx512bf16"
#elif defined(__AVX512F__)
#define PROCESSOR_NEEDS "avx512f"
#elif defined(__AVX2__)
#define PROCESSOR_NEEDS "avx2"
#endif

#if defined(PROCESSOR_NEEDS) && !defined(__CUDACC__)
#include <unistd.h>
#define PROCESSOR_ANY __attribute__((target("arch=x86-64,no-avx,no-bmi,no-bmi2,no-lzcnt,no-popcnt,no-movbe,no-sse3")))
PROCESSOR_ANY __attribute__((constructor(101))) static void processor_check(void) {
    static const char text[] = "error: this program was built for a processor with " PROCESSOR_NEEDS
                               ", which this one lacks; build it here (`make clean; make`), or for all of them with "
                               "`make ARCH=`\n";
    __builtin_cpu_init();
    if (!__builtin_cpu_supports(PROCESSOR_NEEDS)) { _exit(write(2, text, sizeof(text) - 1) < 0 ? 2 : 1); }
}
#endif

#endif // LLMC_PROCESSOR_H
