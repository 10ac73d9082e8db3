// Finds updates to skip, by the z-score of a loss or gradient norm over its last 128 accepted values. A value far above
// them comes from a bad batch or a numerical accident, and one such update can undo many good updates.
//
// A rejected value never enters the statistics, so a spike does not hide the next spike. After 16 rejections in a row
// the level itself has changed, and the window starts empty.
#ifndef LLMC_OUTLIER_H
#define LLMC_OUTLIER_H

#include "llmc/base/utils.h"
#include <float.h>
#include <math.h>

#define OUTLIER_WINDOW 128
#define OUTLIER_MAX_REJECTED 16

#define OUTLIER_LARGEST 1e100 // far beyond any loss and any norm of floats; sums of its square are finite

// Plain data without padding, because the training state saves and restores its bytes.
typedef struct {
    uint64_t count;                // values accepted since the window was last empty
    int64_t rejected;              // outliers since the last accepted value
    double values[OUTLIER_WINDOW]; // the accepted value i lies at i % OUTLIER_WINDOW
} OutlierDetector;

static inline void outlier_init(OutlierDetector *detector) { memset(detector, 0, sizeof(*detector)); }

// Tells whether a detector that was read holds numbers that outlier_check leaves there.
static inline bool outlier_is_sound(const void *data) {
    const OutlierDetector *detector = (const OutlierDetector *)data;
    bool sound = detector->count <= (uint64_t)LARGEST_WHOLE && detector->rejected >= 0 &&
                 detector->rejected < OUTLIER_MAX_REJECTED;
    for (int i = 0; i < OUTLIER_WINDOW; i++) { sound = sound && fabs(detector->values[i]) <= OUTLIER_LARGEST; }
    return sound;
}

// The number of standard deviations that `value` lies above the mean of the window. It is NaN until the window is full,
// and for a value that is not finite. The values are fp32 measurements. A spread below the resolution of a float is
// rounding and counts as that resolution. If the window is all zeros, any other value is infinitely far away.
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

// Takes one value into the statistics, and returns whether to skip its update. It skips if the value's z-score is above
// the threshold or the value is not finite. A fall of any size is no outlier. Writes the z-score to *z. With threshold
// 0 it never skips, and the statistics go on. A value that is not finite says nothing about the level and leaves the
// detector unchanged. The 16th outlier in a row is skipped, too, and empties the window.
static inline bool outlier_check(OutlierDetector *detector, double value, double threshold, double *z) {
    *z = outlier_zscore(detector, value);
    if (!isfinite(value)) { return threshold > 0.0; }
    bool skip = threshold > 0.0 && *z > threshold;
    if (!skip) {
        detector->values[detector->count++ % OUTLIER_WINDOW] = value;
        detector->rejected = 0;
    } else if (++detector->rejected >= OUTLIER_MAX_REJECTED) {
        outlier_init(detector);
    }
    return skip;
}

// The statistics of a run. The training state keeps both.
typedef struct {
    OutlierDetector loss, norm;
} Outliers;

// Takes a step's loss and norm into the statistics. Returns true if the update must be skipped, because one of them is
// an outlier and its limit is not 0. `why` then names the reason.
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
