// Draws loss.svg, a picture of the curves of main.log. Thousands of steps are gathered into columns. A line joins the
// means, and a pale band spans the lowest to the highest loss. The loss axis is logarithmic if the losses span a factor
// of LOSS_LOG_RATIO or more. The picture follows the reader's light or dark theme.
#ifndef LLMC_LOSS_SVG_H
#define LLMC_LOSS_SVG_H

#include "llmc/base/text.h"
#include "llmc/run/log.h"

#define LOSS_SVG_NAME "loss.svg"
#define LOSS_COLUMNS 240    // a curve of more points is gathered into this many columns
#define LOSS_LOG_RATIO 20.0 //
#define LOSS_LEAST 1e-4     // main.log has four digits: a logarithmic axis shows 0.0000 here
#define LOSS_MOST 1e12      // larger losses and NaN are not drawn

// The size of the picture and the plot's frame, in the picture's units.
enum { SVG_WIDTH = 640, SVG_HEIGHT = 400, PLOT_LEFT = 76, PLOT_RIGHT = 620, PLOT_TOP = 22, PLOT_BOTTOM = 348 };

typedef struct {
    int64_t points;
    double step, loss; // first sums over the points, then means
    double low, high;
} LossColumn;

typedef struct {
    int64_t points, first, last; // steps
    double low, high;
    double last_loss;
    LossColumn columns[LOSS_COLUMNS];
    int num_columns; // columns with points; empty columns are dropped
} LossCurve;

typedef struct {
    double low, high, tick; // linear: ticks at multiples of `tick`
    bool logarithmic;       // ticks at 1, 2, 5 times powers of ten, or only at every tick-th power
} LossAxis;

// ---- From main.log to curves ----

// Returns the curve of a line: 0 for train, 1 for validation, -1 for none.
static inline int loss_curve_of(const char *line, size_t length, LogLine *parsed) {
    if (!log_parse_line(line, length, parsed) || parsed->kind > LOG_VAL) { return -1; }
    if (!(parsed->value >= 0.0 && parsed->value <= LOSS_MOST)) { return -1; }
    return parsed->kind == LOG_TRAIN ? 0 : 1;
}

static inline void loss_measure(LossCurve *curve, const LogLine *line) {
    bool is_first = curve->points == 0;
    if (is_first || line->step < curve->first) { curve->first = line->step; }
    if (is_first || line->step >= curve->last) { curve->last = line->step, curve->last_loss = line->value; }
    if (is_first || line->value < curve->low) { curve->low = line->value; }
    if (is_first || line->value > curve->high) { curve->high = line->value; }
    curve->points++;
}

static inline void loss_gather(LossCurve *curve, const LogLine *line) {
    double place = (double)(line->step - curve->first) / ((double)(curve->last - curve->first) + 1.0);
    LossColumn *column = &curve->columns[min_i64((int64_t)(place * LOSS_COLUMNS), LOSS_COLUMNS - 1)];
    if (column->points == 0 || line->value < column->low) { column->low = line->value; }
    if (column->points == 0 || line->value > column->high) { column->high = line->value; }
    column->points++;
    column->step += (double)line->step;
    column->loss += line->value;
}

// Turns sums into means, and drops the columns without points.
static inline void loss_take_means(LossCurve *curve) {
    for (int i = 0; i < LOSS_COLUMNS; i++) {
        LossColumn column = curve->columns[i];
        if (column.points == 0) { continue; }
        column.step /= (double)column.points;
        column.loss /= (double)column.points;
        curve->columns[curve->num_columns++] = column;
    }
}

// Fills both curves from the text of main.log. Skips damaged lines.
static inline void loss_read_curves(LossCurve curves[2], const char *text, int64_t bytes) {
    const char *line;
    size_t length;
    LogLine parsed;
    memset(curves, 0, 2 * sizeof(curves[0]));
    for (int pass = 0; pass < 2; pass++) {
        int64_t position = 0;
        while (log_next_line(text, bytes, &position, &line, &length)) {
            int which = loss_curve_of(line, length, &parsed);
            if (which < 0) { continue; }
            if (pass == 0) {
                loss_measure(&curves[which], &parsed);
            } else {
                loss_gather(&curves[which], &parsed);
            }
        }
    }
    for (int i = 0; i < 2; i++) { loss_take_means(&curves[i]); }
}

// ---- Axes ----

// Returns the least of 1, 2, 5, 10, 20, ... (or 0.5, 0.2, ...) that divides range into at most `count` parts.
static inline double loss_nice_tick(double range, int count) {
    double power = pow(10.0, floor(log10(range / count)));
    static const double steps[] = {1.0, 2.0, 5.0};
    for (int i = 0; i < 3; i++) {
        if (steps[i] * power * count >= range * (1.0 - 1e-9)) { return steps[i] * power; }
    }
    return 10.0 * power;
}

static inline LossAxis loss_y_axis(const LossCurve curves[2]) {
    const LossCurve *a = &curves[curves[0].points > 0 ? 0 : 1], *b = &curves[curves[1].points > 0 ? 1 : 0];
    LossAxis axis = {fmin(a->low, b->low), fmax(a->high, b->high), 1.0, false};
    if (axis.high >= LOSS_LOG_RATIO * fmax(axis.low, LOSS_LEAST)) {
        axis.logarithmic = true;
        axis.low = fmax(axis.low, LOSS_LEAST) / 1.15;
        axis.high *= 1.15;
        axis.tick = ceil(log10(axis.high / axis.low) / 6.0);
        return axis;
    }
    if (axis.high - axis.low < 1e-3 * fmax(axis.high, 0.1)) { // one point, or a flat curve
        axis.low = fmax(axis.low - 0.5, 0.0);
        axis.high += 0.5;
    }
    axis.tick = loss_nice_tick(axis.high - axis.low, 6);
    axis.low = floor(axis.low / axis.tick + 1e-9) * axis.tick;
    axis.high = ceil(axis.high / axis.tick - 1e-9) * axis.tick;
    return axis;
}

static inline double loss_x(double step, double last_step) {
    return PLOT_LEFT + (PLOT_RIGHT - PLOT_LEFT) * step / last_step;
}

static inline double loss_y(const LossAxis *axis, double loss) {
    double part = (loss - axis->low) / (axis->high - axis->low);
    if (axis->logarithmic) { part = log(fmax(loss, LOSS_LEAST) / axis->low) / log(axis->high / axis->low); }
    return PLOT_BOTTOM - (PLOT_BOTTOM - PLOT_TOP) * part;
}

// ---- Drawing ----

static inline void svg_y_tick(Text *svg, const LossAxis *axis, double loss) {
    double y = loss_y(axis, loss);
    text_printf(svg, "<path class=\"grid\" d=\"M%d %.1fH%d\"/>", PLOT_LEFT, y, PLOT_RIGHT);
    text_printf(svg, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%g</text>\n", PLOT_LEFT - 8, y + 4.0, loss);
}

static inline void svg_y_axis(Text *svg, const LossAxis *axis) {
    if (!axis->logarithmic) {
        int count = (int)lround((axis->high - axis->low) / axis->tick);
        for (int i = 0; i <= count; i++) {
            double loss = axis->low + i * axis->tick;
            svg_y_tick(svg, axis, fabs(loss) < 1e-9 * axis->tick ? 0.0 : loss);
        }
        return;
    }
    bool fine = log10(axis->high / axis->low) < 3.0;
    for (int power = -5; power <= 13; power += (int)axis->tick) {
        for (int digit = 1; digit <= (fine ? 5 : 1); digit += digit == 1 ? 1 : 3) {
            double loss = digit * pow(10.0, power);
            if (loss >= axis->low && loss <= axis->high) { svg_y_tick(svg, axis, loss); }
        }
    }
}

// Draws the ticks of the step axis, in thousands or millions if the numbers are long.
static inline void svg_x_axis(Text *svg, double last_step) {
    double tick = fmax(loss_nice_tick(last_step, 8), 1.0);
    double unit = last_step >= 1e7 ? 1e6 : last_step >= 1e4 ? 1e3 : 1.0;
    const char *suffix = unit == 1e6 ? "M" : unit == 1e3 ? "k" : "";
    for (int i = 0; i * tick <= last_step * (1.0 + 1e-9); i++) {
        double x = loss_x(i * tick, last_step);
        text_printf(svg, "<path class=\"grid\" d=\"M%.1f %dV%d\"/>", x, PLOT_TOP, PLOT_BOTTOM);
        text_printf(svg, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%g%s</text>\n", x, PLOT_BOTTOM + 19,
                    i * tick / unit, i > 0 ? suffix : "");
    }
    text_printf(svg, "<path class=\"frame\" d=\"M%d %dV%dH%d\"/>\n", PLOT_LEFT, PLOT_TOP, PLOT_BOTTOM, PLOT_RIGHT);
}

// Draws the line through the means. band: draws the area between the lowest and the highest loss of each column, along
// the top, and back along the bottom.
static inline void svg_path(Text *svg, const LossCurve *curve, const LossAxis *axis, double last_step, const char *name,
                            bool band) {
    int n = curve->num_columns;
    text_printf(svg, "<path class=\"%s %s\" d=\"", name, band ? "band" : "line");
    for (int i = 0; i < (band ? 2 * n : n); i++) {
        const LossColumn *column = &curve->columns[i < n ? i : 2 * n - 1 - i];
        double loss = !band ? column->loss : i < n ? column->high : column->low;
        text_printf(svg, "%c%.1f %.1f", i == 0 ? 'M' : 'L', loss_x(column->step, last_step), loss_y(axis, loss));
    }
    text_printf(svg, "%s\"/>\n", band ? "Z" : "");
}

// Draws a curve. A curve of few points gets dots, so that a single point can be seen.
static inline void svg_curve(Text *svg, const LossCurve *curve, const LossAxis *axis, double last_step,
                             const char *name, int max_dots) {
    if (curve->points > LOSS_COLUMNS) { svg_path(svg, curve, axis, last_step, name, true); }
    svg_path(svg, curve, axis, last_step, name, false);
    for (int i = 0; i < curve->num_columns && curve->points <= max_dots; i++) {
        const LossColumn *column = &curve->columns[i];
        text_printf(svg, "<circle class=\"%s dot\" cx=\"%.1f\" cy=\"%.1f\" r=\"2.6\"/>\n", name,
                    loss_x(column->step, last_step), loss_y(axis, column->loss));
    }
}

// Draws one row of the legend: the curve's colour, its name and its last loss.
static inline void svg_legend(Text *svg, const LossCurve *curve, const char *name, int row) {
    int x = PLOT_RIGHT - 132, y = PLOT_TOP + 20 + 20 * row;
    text_printf(svg, "<path class=\"%s line\" d=\"M%d %dh22\"/>", name, x, y - 4);
    text_printf(svg, "<text x=\"%d\" y=\"%d\">%s</text>", x + 30, y, name);
    text_printf(svg, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">%.4g</text>\n", PLOT_RIGHT - 10, y, curve->last_loss);
}

static inline void svg_begin(Text *svg) {
    text_printf(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" role=\"img\">\n",
        SVG_WIDTH, SVG_HEIGHT, SVG_WIDTH, SVG_HEIGHT);
    text_printf(svg, "<title>Training and validation loss</title>\n<style>\n"
                     ".paper{fill:#fff} .legend{fill:#fff;fill-opacity:.85}\n"
                     "text{font:13px system-ui,\"Helvetica Neue\",Arial,sans-serif;fill:#333}\n"
                     ".grid{stroke:#e6e6e6;fill:none} .frame{stroke:#666;fill:none}\n"
                     ".line{fill:none;stroke-width:1.7;stroke-linejoin:round;stroke-linecap:round}\n"
                     ".band{stroke:none;fill-opacity:.2}\n"
                     ".train.line{stroke:#2f6db3} .train.band,.train.dot{fill:#2f6db3}\n"
                     ".val.line{stroke:#d2691e} .val.band,.val.dot{fill:#d2691e}\n");
    text_printf(svg, "@media (prefers-color-scheme:dark){\n"
                     ".paper,.legend{fill:#16181c} text{fill:#c9ccd1} .grid{stroke:#2b2f36} .frame{stroke:#8a8f98}\n"
                     ".train.line{stroke:#74a9e8} .train.band,.train.dot{fill:#74a9e8}\n"
                     ".val.line{stroke:#f0975a} .val.band,.val.dot{fill:#f0975a}\n}\n</style>\n");
    text_printf(svg, "<rect class=\"paper\" width=\"%d\" height=\"%d\"/>\n", SVG_WIDTH, SVG_HEIGHT);
}

static inline void svg_picture(Text *svg, const LossCurve curves[2]) {
    static const char *const names[2] = {"train", "val"};
    static const int max_dots[2] = {1, 60};
    double last_step = (double)max_i64(max_i64(curves[0].last, curves[1].last), 1);
    LossAxis axis = loss_y_axis(curves);
    int rows = (curves[0].points > 0) + (curves[1].points > 0), row = 0;
    svg_begin(svg);
    svg_y_axis(svg, &axis);
    svg_x_axis(svg, last_step);
    text_printf(svg, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">step</text>\n", (PLOT_LEFT + PLOT_RIGHT) / 2,
                PLOT_BOTTOM + 40);
    text_printf(svg, "<text transform=\"translate(17 %d) rotate(-90)\" text-anchor=\"middle\">loss%s</text>\n",
                (PLOT_TOP + PLOT_BOTTOM) / 2, axis.logarithmic ? " (log scale)" : "");
    for (int i = 0; i < 2; i++) {
        if (curves[i].points > 0) { svg_curve(svg, &curves[i], &axis, last_step, names[i], max_dots[i]); }
    }
    text_printf(svg, "<rect class=\"legend\" x=\"%d\" y=\"%d\" width=\"140\" height=\"%d\"/>\n", PLOT_RIGHT - 140,
                PLOT_TOP + 2, 20 * rows + 6);
    for (int i = 0; i < 2; i++) {
        if (curves[i].points > 0) { svg_legend(svg, &curves[i], names[i], row++); }
    }
    text_printf(svg, "</svg>\n");
}

// Draws dir/loss.svg from dir/main.log, atomically. A log without a loss that can be drawn gives no picture and no
// error; *drawn tells. Fails if the log cannot be read or the picture cannot be written.
static inline bool loss_svg_write(const char *dir, bool *drawn, Error *error) {
    char log_path[MAX_PATH_BYTES], svg_path[MAX_PATH_BYTES];
    uint8_t *log;
    int64_t bytes;
    if (!path_join(log_path, dir, MAIN_LOG_NAME, error) || !path_join(svg_path, dir, LOSS_SVG_NAME, error) ||
        !read_whole_file(log_path, MAIN_LOG_MAX_BYTES, &log, &bytes, error)) {
        return false;
    }
    Text svg = {NULL, 0, 0, false};
    LossCurve *curves = (LossCurve *)malloc(2 * sizeof(LossCurve));
    if (curves != NULL) { loss_read_curves(curves, (const char *)log, bytes); }
    *drawn = curves != NULL && curves[0].points + curves[1].points > 0;
    if (*drawn) { svg_picture(&svg, curves); }
    bool ok = (curves != NULL && !svg.failed) || fail(error, "%s: out of memory for a picture", svg_path);
    ok = ok && (!*drawn || write_whole_file(svg_path, svg.data, (int64_t)svg.used, error));
    text_free(&svg);
    free(curves);
    free(log);
    return ok;
}

#endif // LLMC_LOSS_SVG_H
