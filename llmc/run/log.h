// Shows a run to a person, and keeps its records main.log and speed.log.
//
// On a terminal, a progress bar is redrawn in place and everything else scrolls above it. Elsewhere (a pipe, a file, a
// dumb terminal) each step is a line. There are no colours. main.log holds one line per event, in llm.c's format:
//   s:<step> trl:<train loss> lr:<learning rate> norm:<gradient norm>     update number <step>, counted from 0
//   s:<step> tel:<validation loss>                                        after <step> updates
//   s:<step> eval:<accuracy on HellaSwag>                                 after <step> updates
//   s:<step> mmlu:<accuracy on MMLU>                                      after <step> updates; not in llm.c's log
// speed.log holds one line per update, with the numbers that differ each time a run is made:
//   s:<step> ms:<of this step> tps:<tokens per second> sec:<seconds of training so far, including everything done in
//   them>
// Each line reaches its file at once and whole.
#ifndef LLMC_LOGGER_H
#define LLMC_LOGGER_H

#include "llmc/base/files.h"

#include <math.h>
#include <sys/ioctl.h>

#define MAIN_LOG_NAME "main.log"
#define SPEED_LOG_NAME "speed.log"
#define LOG_MOST_SECONDS 1e10                 // 300 years
#define MAIN_LOG_MAX_BYTES ((int64_t)1 << 30) // for each log

typedef struct {
    int64_t step;         // updates before this step: 0 for the first
    double loss;          // before the update
    double norm;          // of the gradient, before clipping
    double lr;            //
    double seconds;       // time that this step took
    int64_t tokens;       // in this step
    double peak_fraction; // of the machine's arithmetic peak; 0: unknown, not shown
    double usual_norm;    // the running median of the norm before this step, not shown; NaN: unknown
} StepInfo;

typedef struct {
    char path[MAX_PATH_BYTES];
    int fd; // -1: no log is kept
} LogFile;

typedef struct {
    FILE *out;           // standard output, for a person
    bool terminal;       // `out` can redraw a line in place
    int64_t total_steps; // of the run
    LogFile main, speed;
    double opened;         // when this process began to train, in seconds_now()
    double seconds_before; // the training time of earlier processes
    int64_t steps_seen;    // by this process
    double first_start;    // start of this process's first step, in seconds_now()
    StepInfo last;         // the step that the bar shows
    double seconds_left;   //
    bool bar_visible;      //
    double bar_time;       // when the bar was last drawn
    bool progress_visible; // progress of something other than steps, over the bar
    double progress_time;  // when it was last drawn
} Logger;

// ---- Texts ----

// Writes a duration for people: "0:31", "12:05", "3:07:44", "2d 03h".
static inline void format_duration(char *text, size_t size, double seconds) {
    if (!(seconds >= 0.0 && seconds < LOG_MOST_SECONDS)) {
        snprintf(text, size, "?");
        return;
    }
    long long s = (long long)(seconds + 0.5);
    if (s < 3600) {
        snprintf(text, size, "%lld:%02lld", s / 60, s % 60);
    } else if (s < 86400) {
        snprintf(text, size, "%lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60);
    } else {
        snprintf(text, size, "%lldd %02lldh", s / 86400, s / 3600 % 24);
    }
}

// The parts of a step's line, in order.
enum { PART_STEP, PART_LOSS, PART_NORM, PART_LR, PART_TIME, PART_SPEED, PART_PEAK, PART_LEFT, NUM_PARTS };
typedef struct {
    char text[NUM_PARTS][48]; // "" for an unknown part
} StepParts;

#define LOGGER_CELLS_DONE "########################################"
#define LOGGER_CELLS_LEFT "----------------------------------------"

static inline void logger_step_number(char *text, size_t size, int64_t step, int64_t total) {
    int width = snprintf(NULL, 0, "%lld", (long long)total);
    snprintf(text, size, "step %*lld/%lld", width < 4 ? 4 : width, (long long)step, (long long)total);
}

static inline void logger_step_parts(StepParts *parts, const StepInfo *info, int64_t total, double seconds_left) {
    const size_t size = sizeof(parts->text[0]);
    char left[32];
    format_duration(left, sizeof(left), seconds_left);
    logger_step_number(parts->text[PART_STEP], size, info->step + 1, total);
    snprintf(parts->text[PART_LOSS], size, "loss %.6f", info->loss);
    snprintf(parts->text[PART_NORM], size, "norm %.4f", info->norm);
    snprintf(parts->text[PART_LR], size, "lr %.2e", info->lr);
    snprintf(parts->text[PART_TIME], size, "%.2f ms", 1e3 * info->seconds);
    snprintf(parts->text[PART_SPEED], size, "%.0f tok/s", (double)info->tokens / fmax(info->seconds, 1e-9));
    parts->text[PART_PEAK][0] = '\0';
    if (info->peak_fraction > 0.0) {
        snprintf(parts->text[PART_PEAK], size, "%.0f%% of peak", 100.0 * info->peak_fraction);
    }
    snprintf(parts->text[PART_LEFT], size, "%s left", left);
}

// Appends the parts that are shown, with " | " between them, and cuts what does not fit into `size` bytes.
static inline void logger_join(char *text, size_t size, const StepParts *parts, const bool shown[NUM_PARTS]) {
    const char *between = "";
    for (int i = 0; i < NUM_PARTS; i++) {
        if (!shown[i] || parts->text[i][0] == '\0') { continue; }
        size_t n = strlen(text);
        snprintf(text + n, size - n, "%s%s", between, parts->text[i]);
        between = " | ";
    }
}

// Writes "step    3/40 | loss 7.123456 | norm 1.2345 | ... | 0:31 left".
static inline void logger_step_line(char *text, size_t size, const StepParts *parts) {
    static const bool all[NUM_PARTS] = {true, true, true, true, true, true, true, true};
    text[0] = '\0';
    logger_join(text, size, parts, all);
}

// Writes the progress bar for a terminal of `width` columns: "step    3/40 [##--------] loss 7.123456 | 0:31 left". It
// takes as many parts as fit, the important parts first. One column stays free, because a full line may wrap.
static inline void logger_bar_line(char *text, size_t size, const StepParts *parts, int width, double fraction) {
    static const struct {
        int part, usual_columns; // a fixed width, so that a part does not come and go
    } by_importance[] = {{PART_LOSS, 13}, {PART_LEFT, 13}, {PART_SPEED, 14}, {PART_PEAK, 11},
                         {PART_NORM, 11}, {PART_LR, 11},   {PART_TIME, 13}};
    bool shown[NUM_PARTS] = {false};
    int num_cells = width / 6 < 8 ? 8 : width / 6 > 40 ? 40 : width / 6;
    int room = width - 1 - (int)strlen(parts->text[PART_STEP]) - (num_cells + 3);
    for (size_t i = 0; i < sizeof(by_importance) / sizeof(by_importance[0]); i++) {
        int part = by_importance[i].part, columns = (int)strlen(parts->text[part]);
        if (columns == 0) { continue; }
        room -= (int)max_i64(columns, by_importance[i].usual_columns) + (i == 0 ? 1 : 3); // with " " or " | " before it
        if (room < 0) { break; }
        shown[part] = true;
    }
    int done = (int)(fmin(fmax(fraction, 0.0), 1.0) * num_cells);
    snprintf(text, size, "%s [%.*s%.*s] ", parts->text[PART_STEP], done, LOGGER_CELLS_DONE, num_cells - done,
             LOGGER_CELLS_LEFT);
    logger_join(text, size, parts, shown);
    size_t n = strlen(text);
    if (text[n - 1] == ' ') { text[n - 1] = '\0'; }                     // no part fits
    if (width >= 1 && (size_t)width < size) { text[width - 1] = '\0'; } // the terminal is very narrow
}

// ---- main.log: lines ----

typedef enum { LOG_TRAIN, LOG_VAL, LOG_EVAL, LOG_SPEED } LogKind; // LOG_EVAL: any accuracy
typedef struct {
    LogKind kind;
    int64_t step;
    double value; // loss or accuracy, may be NaN or infinite as a run's loss may; LOG_SPEED: seconds so far
} LogLine;

// The formats of all lines: step, value, and the bytes read.
static const struct {
    LogKind kind;
    const char *format;
} log_formats[] = {{LOG_TRAIN, "s:%15lld trl:%lf lr:%*f norm:%*f%n"}, // 15 digits: less than LARGEST_WHOLE
                   {LOG_VAL, "s:%15lld tel:%lf%n"},
                   {LOG_EVAL, "s:%15lld eval:%lf%n"},
                   {LOG_EVAL, "s:%15lld mmlu:%lf%n"},
                   {LOG_SPEED, "s:%15lld ms:%*f tps:%*f sec:%lf%n"}};

// Reads one line (bytes, without the newline). Returns false for anything that is not a line of one of the logs.
// Control characters, which sscanf takes for spaces, are in none.
static inline bool log_parse_line(const char *line, size_t bytes, LogLine *out) {
    char text[160];
    if (bytes >= sizeof(text)) { return false; }
    for (size_t i = 0; i < bytes; i++) {
        if (line[i] < ' ' || line[i] > '~') { return false; }
    }
    path_copy(text, line, bytes);
    for (size_t i = 0; i < sizeof(log_formats) / sizeof(log_formats[0]); i++) {
        long long step = -1;
        int end = -1;
        sscanf(text, log_formats[i].format, &step, &out->value, &end);
        out->kind = log_formats[i].kind;
        out->step = step;
        if (end != (int)bytes || step < 0) { continue; }
        return out->kind != LOG_SPEED || (out->value >= 0.0 && out->value < LOG_MOST_SECONDS);
    }
    return false;
}

// Finds the next line of text[*position ... bytes): its start and length. Moves *position behind it. Returns false at
// the end, and for a last line without a newline: the process was killed while it wrote that line.
static inline bool log_next_line(const char *text, int64_t bytes, int64_t *position, const char **line,
                                 size_t *length) {
    *line = text + *position;
    const char *newline = (const char *)memchr(*line, '\n', (size_t)(bytes - *position));
    if (newline == NULL) { return false; }
    *length = (size_t)(newline - *line);
    *position += (int64_t)*length + 1;
    return true;
}

// Makes a log anew, cut back to the start of step `step`, atomically. Leaves out every line of this step or a later
// step, because the resumed run writes them again, with the validation before update `step`. Also leaves out every
// damaged line, and every line of the other log (speed: this is speed.log). *last becomes the last line that stays, if
// there is one. The log is a new file even if all lines stay or none: what had its name may have been a link, or the
// file of another name, too.
static inline bool log_trim_lines(const char *path, int64_t step, bool speed, LogLine *last, Error *error) {
    if (step == 0 || !path_exists(path)) { return write_whole_file(path, "", 0, error); }
    uint8_t *data;
    int64_t bytes, kept = 0, position = 0;
    if (!read_whole_file(path, MAIN_LOG_MAX_BYTES, &data, &bytes, error)) { return false; }
    const char *line;
    size_t length;
    LogLine parsed;
    while (log_next_line((const char *)data, bytes, &position, &line, &length)) {
        bool ours = log_parse_line(line, length, &parsed) && (parsed.kind == LOG_SPEED) == speed;
        if (!ours || parsed.step >= step) { continue; }
        *last = parsed;
        memmove(data + kept, line, length + 1);
        kept += (int64_t)length + 1;
    }
    bool ok = write_whole_file(path, data, kept, error);
    free(data);
    return ok;
}

// Appends a line whole or not at all: if a full disk took only a part, that part is cut off again.
static inline bool log_append(int fd, const char *path, const char *line, int bytes, Error *error) {
    off_t before = lseek(fd, 0, SEEK_END);
    ssize_t written;
    do { written = write(fd, line, (size_t)bytes); } while (written < 0 && errno == EINTR);
    if (written == bytes) { return true; }
    const char *why = written >= 0 || errno == ENOSPC ? "no space left on device" : strerror(errno);
    bool cut = written <= 0 || (before >= 0 && ftruncate(fd, before) == 0);
    return fail(error, "%s: cannot write the log: %s%s; free some space, then continue with --resume", path, why,
                cut ? "" : " (its last line is damaged)");
}

PRINTF_LIKE(3, 4) static inline bool log_write(const LogFile *file, Error *error, const char *format, ...) {
    if (file->fd < 0) { return true; }
    char line[160];
    va_list arguments;
    va_start(arguments, format);
    int bytes = vsnprintf(line, sizeof(line), format, arguments);
    va_end(arguments);
    if (bytes >= (int)sizeof(line)) { return fail(error, "%s: a line is too long to be logged", file->path); }
    return log_append(file->fd, file->path, line, bytes, error);
}

// Opens main.log or speed.log in dir. Keeps the lines before first_step, and sets *last to the last kept line.
static inline bool log_open(LogFile *file, const char *dir, bool speed, int64_t first_step, LogLine *last,
                            Error *error) {
    if (!path_join(file->path, dir, speed ? SPEED_LOG_NAME : MAIN_LOG_NAME, error) ||
        !log_trim_lines(file->path, first_step, speed, last, error)) {
        return false;
    }
    file->fd = files_open_own(file->path, O_WRONLY | O_APPEND, 0, error);
    return file->fd >= 0;
}

static inline void log_close(LogFile *file) {
    if (file->fd >= 0) { close(file->fd); }
    file->fd = -1;
}

// ---- The terminal ----

// Returns the terminal's current columns. A person may have resized it since the last call.
static inline int logger_terminal_width(FILE *out) {
    struct winsize size;
    if (ioctl(fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col > 0) { return size.ws_col; }
    const char *columns = getenv("COLUMNS");
    int width = columns != NULL ? atoi(columns) : 0;
    return width > 0 ? width : 80;
}

// Tells whether `out` can redraw a line in place. A pipe, a file or an editor's terminal without escape codes cannot.
static inline bool logger_is_terminal(FILE *out) {
    const char *term = getenv("TERM");
    return isatty(fileno(out)) && term != NULL && term[0] != '\0' && strcmp(term, "dumb") != 0;
}

// Removes the bar, so that something else may write to the terminal. The next step draws it again.
static inline void logger_clear(Logger *logger) {
    if (!logger->bar_visible && !logger->progress_visible) { return; }
    fputs("\r\033[J", logger->out);
    fflush(logger->out);
    logger->bar_visible = logger->progress_visible = false;
}

// Draws a line of at most `columns` bytes over the previous line. One write per picture overwrites the old text without
// erasing it first, so there is no flicker. The cursor waits at the line's beginning and everything behind the line is
// erased. This also replaces a line that a narrower window has broken into two lines.
static inline double logger_redraw(FILE *out, const char *line, int columns) {
    fprintf(out, "\r%.*s\033[J\r", columns, line);
    fflush(out);
    return seconds_now();
}

static inline void logger_draw(Logger *logger) {
    StepParts parts;
    char line[512];
    int width = logger_terminal_width(logger->out);
    double fraction = (double)(logger->last.step + 1) / (double)max_i64(logger->total_steps, 1);
    logger_step_parts(&parts, &logger->last, logger->total_steps, logger->seconds_left);
    logger_bar_line(line, sizeof(line), &parts, width, fraction);
    logger->bar_time = logger_redraw(logger->out, line, width);
    logger->bar_visible = true;
}

// Shows the progress of something that takes longer than a step, over the bar on a terminal. The next line for a person
// replaces it.
static inline void logger_progress(Logger *logger, const char *text) {
    if (!logger->terminal || (logger->progress_visible && seconds_now() - logger->progress_time < 0.1)) { return; }
    logger->progress_time = logger_redraw(logger->out, text, logger_terminal_width(logger->out) - 1);
    logger->progress_visible = true;
}

// ---- The logger ----

// Prints a line for a person (a newline is added). On a terminal they scroll above the bar.
PRINTF_LIKE(2, 3) static inline void logger_event(Logger *logger, const char *format, ...) {
    bool redraw = logger->bar_visible;
    logger_clear(logger);
    va_list arguments;
    va_start(arguments, format);
    say_list(logger->out, format, arguments);
    va_end(arguments);
    say(logger->out, "\n");
    fflush(logger->out);
    if (redraw) { logger_draw(logger); }
}

// Returns the seconds of training so far, including those before a resume.
static inline double logger_seconds(const Logger *logger) {
    return logger->seconds_before + seconds_now() - logger->opened;
}

// Makes a logger without files.
static inline void logger_init(Logger *logger) {
    memset(logger, 0, sizeof(*logger));
    logger->out = stdout;
    logger->main.fd = logger->speed.fd = -1;
}

// Begins the log of a run whose next step is first_step of total_steps. Step 0 empties dir/main.log and dir/speed.log.
// A later step (resume) keeps the lines before it. dir NULL: no files. Fails if a file cannot be read or written.
static inline bool logger_open(Logger *logger, const char *dir, int64_t first_step, int64_t total_steps, Error *error) {
    LogLine last_event, last = {LOG_SPEED, 0, 0.0};
    logger_init(logger);
    logger->terminal = logger_is_terminal(stdout);
    logger->total_steps = total_steps;
    logger->opened = seconds_now();
    if (dir == NULL) { return true; }
    bool ok = log_open(&logger->main, dir, false, first_step, &last_event, error) &&
              log_open(&logger->speed, dir, true, first_step, &last, error);
    logger->seconds_before = last.value;
    return ok;
}

// Leaves the last bar on the screen and closes the files.
static inline void logger_close(Logger *logger) {
    if (logger->bar_visible) {
        logger_draw(logger);
        say(logger->out, "\n");
        fflush(logger->out);
        logger->bar_visible = logger->progress_visible = false;
    }
    logger_clear(logger);
    log_close(&logger->main);
    log_close(&logger->speed);
}

// Shows and records an update. The time left follows from the mean time of a step so far, with validation and
// checkpoints. Fails if a log cannot be written (the disk is full).
static inline bool logger_step(Logger *logger, const StepInfo *info, Error *error) {
    double now = seconds_now();
    if (logger->steps_seen == 0) { logger->first_start = now - info->seconds; }
    logger->steps_seen++;
    logger->last = *info;
    double mean = (now - logger->first_start) / (double)logger->steps_seen;
    logger->seconds_left = mean * (double)(logger->total_steps - info->step - 1);
    if (logger->terminal) {
        bool is_last = info->step + 1 >= logger->total_steps;
        if (!logger->bar_visible || is_last || now - logger->bar_time >= 0.1) { logger_draw(logger); }
    } else {
        StepParts parts;
        char line[512];
        logger_step_parts(&parts, info, logger->total_steps, logger->seconds_left);
        logger_step_line(line, sizeof(line), &parts);
        logger_event(logger, "%s", line);
    }
    return log_write(&logger->main, error, "s:%lld trl:%.4f lr:%.6f norm:%.2f\n", (long long)info->step, info->loss,
                     info->lr, info->norm) &&
           log_write(&logger->speed, error, "s:%lld ms:%.3f tps:%.0f sec:%.3f\n", (long long)info->step,
                     1e3 * info->seconds, (double)info->tokens / fmax(info->seconds, 1e-9), logger_seconds(logger));
}

// Shows and records the validation loss after `step` updates. Fails as logger_step does.
static inline bool logger_val(Logger *logger, int64_t step, double loss, Error *error) {
    char number[64];
    logger_step_number(number, sizeof(number), step, logger->total_steps);
    logger_event(logger, "%s | val loss %.6f", number, loss);
    return log_write(&logger->main, error, "s:%lld tel:%.4f\n", (long long)step, loss);
}

// Shows and records an accuracy after `step` updates: `correct` of `total` questions were answered correctly. key: the
// evaluation's name in main.log. Fails as logger_step does.
static inline bool logger_eval(Logger *logger, int64_t step, const char *name, const char *key, int64_t correct,
                               int64_t total, Error *error) {
    char number[64];
    double accuracy = (double)correct / (double)max_i64(total, 1);
    logger_step_number(number, sizeof(number), step, logger->total_steps);
    logger_event(logger, "%s | %s %.4f (%lld/%lld)", number, name, accuracy, (long long)correct, (long long)total);
    return log_write(&logger->main, error, "s:%lld %s:%.4f\n", (long long)step, key, accuracy);
}

#endif // LLMC_LOGGER_H
