// Finds updates to skip: a loss or a gradient norm far above its recent values (a z-score over the last 128 accepted
// ones) comes from a bad batch or a numerical accident, and one such update can undo many good ones.
//
// What is rejected never enters the statistics, so a spike does not hide the next one. After 16 rejections in a row the
// level itself has changed, and the window starts anew.
#ifndef LLMC_OUTLIER_H
#define LLMC_OUTLIER_H

#include "llmc/base/utils.h"
#include <float.h>
#include <math.h>

// The square of a larger gradient overflows fp32, and AdamW's v would never recover. Clipping makes it harmless.
#define LARGEST_NORM 1e18

#define OUTLIER_WINDOW 128
#define OUTLIER_MAX_REJECTED 16

// Plain data without padding: the training state saves and restores its bytes. No content of the fields can lead to an
// index outside the window.
typedef struct {
    uint64_t count;                // values accepted since the window was last empty
    int64_t rejected;              // outliers in a row up to now
    double values[OUTLIER_WINDOW]; // the accepted value i lies at i % OUTLIER_WINDOW
} OutlierDetector;

static inline void outlier_init(OutlierDetector *detector) { memset(detector, 0, sizeof(*detector)); }

// How many standard deviations value lies above the mean of the window; NaN until the window is full, and for a value
// that is not finite. The values are fp32 measurements: a spread below the resolution of a float is rounding and counts
// as that resolution. If the window is all zeros, any other value is infinitely far away.
static inline double outlier_zscore(const OutlierDetector *detector, double value) {
    if (detector->count < OUTLIER_WINDOW || !isfinite(value)) { return NAN; }
    double sum = 0.0, squares = 0.0;
    for (int i = 0; i < OUTLIER_WINDOW; i++) { sum += detector->values[i]; }
    double mean = sum / OUTLIER_WINDOW;
    for (int i = 0; i < OUTLIER_WINDOW; i++) {
        double d = detector->values[i] - mean;
        squares += d * d;
    }
    double deviation = fmax(sqrt(squares / OUTLIER_WINDOW), FLT_EPSILON * fabs(mean));
    return value == mean ? 0.0 : (value - mean) / deviation;
}

// Takes a value into the window, in place of the oldest when it is full. A value that is not finite is ignored.
static inline void outlier_accept(OutlierDetector *detector, double value) {
    if (!isfinite(value)) { return; }
    detector->values[detector->count++ % OUTLIER_WINDOW] = value;
    detector->rejected = 0;
}

// Looks at one value and keeps the books: true when the update it belongs to is to be skipped, which is when its
// z-score is above the threshold (a fall is welcome, whatever its size) or it is not finite. Writes the z-score to *z.
// Threshold 0: never skips, the statistics go on. Values that are not finite say nothing about the level and leave the
// detector as it is. The 16th outlier in a row is skipped like the others, and empties the window.
static inline bool outlier_check(OutlierDetector *detector, double value, double threshold, double *z) {
    *z = outlier_zscore(detector, value);
    if (threshold > 0.0 && !isfinite(value)) { return true; }
    bool skip = threshold > 0.0 && *z > threshold;
    if (!skip) {
        outlier_accept(detector, value);
    } else if (++detector->rejected >= OUTLIER_MAX_REJECTED) {
        outlier_init(detector);
    }
    return skip;
}

// The statistics of a run. The training state keeps both.
typedef struct {
    OutlierDetector loss, norm;
} Outliers;

// Takes a step's loss and norm into the statistics. True if one of them is an outlier and its limit is not 0: the
// update is then to be skipped, and `why` says so.
static inline bool outliers_skip(Outliers *outliers, double loss, double norm, double loss_limit, double norm_limit,
                                 char *why, size_t size) {
    double loss_z, norm_z;
    bool skip_loss = outlier_check(&outliers->loss, loss, loss_limit, &loss_z);
    bool skip_norm = outlier_check(&outliers->norm, norm, norm_limit, &norm_z);
    snprintf(why, size, "the %s is %.1f standard deviations above normal", skip_loss ? "loss" : "gradient norm",
             skip_loss ? loss_z : norm_z);
    return skip_loss || skip_norm;
}

#endif // LLMC_OUTLIER_H
