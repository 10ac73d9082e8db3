// Names parts of a step for a profiler.
#ifndef LLMC_RANGE_H
#define LLMC_RANGE_H

#include <nvtx3/nvToolsExt.h>

// Names everything launched until the end of the scope, for the profiler's time line.
struct Range {
    explicit Range(const char *name) { nvtxRangePushA(name); }
    ~Range() { nvtxRangePop(); }
    Range(const Range &) = delete;
    Range &operator=(const Range &) = delete;
};

#endif // LLMC_RANGE_H
