// Shows a run to a person, and keeps its records main.log and speed.log.
//
// On a terminal, a step replaces the line of the step before. Elsewhere (a pipe, a file, a dumb terminal) each step is
// a line. --log-every N shows every N-th step, and its line stays. There are no colours. Our own lines count updates
// from 1: step N is the state after N updates. main.log holds one line per event, in llm.c's format:
//   s:<step> trl:<train loss> lr:<learning rate> norm:<gradient norm>     of an update, counted from 0 as llm.c does
//   s:<step> tel:<validation loss>                                        after <step> updates
//   s:<step> eval:<accuracy on HellaSwag>                                 after <step> updates
//   s:<step> mmlu:<accuracy on MMLU>                                      after <step> updates; not in llm.c's log
// speed.log holds one line per update, with the numbers that differ each time a run is made:
//   s:<step> ms:<of this step> tps:<tokens per second>
// Logs only grow. A run that was killed and goes on from an earlier checkpoint writes the steps after it again: of two
// lines for a step, the later one counts.
#ifndef LLMC_LOGGER_H
#define LLMC_LOGGER_H

#include "llmc/base/files.h"

#include <math.h>

#define MAIN_LOG_NAME "main.log"
#define SPEED_LOG_NAME "speed.log"

typedef struct {
    int64_t step;         // updates before this step: 0 for the first
    double loss;          // before the update
    double norm;          // of the gradient, before clipping
    double lr;            //
    double seconds;       // time that this step took
    int64_t tokens;       // in this step
    double peak_fraction; // of the machine's arithmetic peak; 0: unknown, not shown
} StepInfo;

typedef struct {
    char path[MAX_PATH_BYTES];
    int fd; // -1: no log is kept
} LogFile;

typedef struct {
    FILE *out;           // standard output, for a person
    bool terminal;       // `out` can redraw a line in place
    int64_t total_steps; // of the run
    int64_t show_every;  // steps; 0 is 1
    LogFile main, speed;
    int64_t steps_seen; // by this process
    double first_start; // start of this process's first step, in seconds_now()
    bool shows_line;    // a line that the next one replaces, on a terminal
} Logger;

// ---- Texts ----

// Returns a duration for people: "0:31", "12:05", "3:07:44", "51:00:59".
static inline ShortText duration_text(double seconds) {
    ShortText text;
    long long s = (long long)(fmin(fmax(seconds, 0.0), 1e10) + 0.5); // 300 years are shown at most
    if (s < 3600) {
        snprintf(text.text, sizeof(text.text), "%lld:%02lld", s / 60, s % 60);
    } else {
        snprintf(text.text, sizeof(text.text), "%lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60);
    }
    return text;
}

// Returns what begins a line: "step    3/40", or for a run of 0 steps "evaluation".
static inline ShortText step_text(int64_t step, int64_t total) {
    ShortText text;
    int width = snprintf(NULL, 0, "%lld", (long long)total);
    snprintf(text.text, sizeof(text.text), "step %*lld/%lld", width < 4 ? 4 : width, (long long)step, (long long)total);
    if (total == 0) { snprintf(text.text, sizeof(text.text), "evaluation"); }
    return text;
}

// Writes "step    3/40 | loss 7.123456 | norm 1.2345 | lr 3.00e-04 | 812.35 ms | 315 tok/s | 62% of peak | 0:31 left".
// brief: for a line of a terminal, which may have 80 columns, without norm, learning rate and milliseconds.
static inline void logger_step_line(char *text, size_t size, const StepInfo *info, int64_t total, double seconds_left,
                                    bool brief) {
    char details[96] = "", peak[48] = "";
    if (!brief) {
        snprintf(details, sizeof(details), " | norm %.4f | lr %.2e | %.2f ms", info->norm, info->lr,
                 1e3 * info->seconds);
    }
    if (info->peak_fraction > 0.0) { snprintf(peak, sizeof(peak), " | %.0f%% of peak", 100.0 * info->peak_fraction); }
    snprintf(text, size, "%s | loss %.6f%s | %.0f tok/s%s | %s left", step_text(info->step + 1, total).text, info->loss,
             details, (double)info->tokens / fmax(info->seconds, 1e-9), peak, duration_text(seconds_left).text);
}

// ---- Files to which a run appends ----

// Appends a line, which ends with a newline, whole or not at all: cuts off the part that a full disk has taken.
static inline bool log_append(const LogFile *file, const char *line, size_t bytes, Error *error) {
    ssize_t written;
    do { written = write(file->fd, line, bytes); } while (written < 0 && errno == EINTR);
    if (written == (ssize_t)bytes) { return true; }
    const char *why = written >= 0 || errno == ENOSPC ? "no space left on device" : strerror(errno);
    if (written > 0 && ftruncate(file->fd, lseek(file->fd, 0, SEEK_END) - written) != 0) {
        why = "its last line is cut";
    }
    return fail(error, "%s: cannot write the log: %s; free some space, then continue with --resume", file->path, why);
}

// Opens a log of the run folder and goes on behind its last line. Completes a last line that a crash of the
// machine has cut: readers skip it. anew: removes what is there.
static inline bool log_open(LogFile *file, const char *dir, const char *name, bool anew, Error *error) {
    char last = '\n';
    if (!path_join(file->path, dir, name, error) || (anew && !files_remove(file->path, error))) { return false; }
    file->fd = files_open_own(file->path, O_RDWR | O_APPEND | O_CREAT, 0666, error);
    if (file->fd < 0) { return false; }
    off_t end = lseek(file->fd, 0, SEEK_END);
    return end <= 0 || pread(file->fd, &last, 1, end - 1) != 1 || last == '\n' || log_append(file, "\n", 1, error);
}

static inline void log_close(LogFile *file) {
    if (file->fd >= 0) { close(file->fd); }
    file->fd = -1;
}

PRINTF_LIKE(3, 4) static inline bool log_write(const LogFile *file, Error *error, const char *format, ...) {
    char line[512];
    if (file->fd < 0) { return true; }
    va_list arguments;
    va_start(arguments, format);
    int bytes = vsnprintf(line, sizeof(line), format, arguments);
    va_end(arguments);
    return log_append(file, line, (size_t)min_i64(bytes, (int64_t)sizeof(line) - 1), error);
}

// ---- The terminal ----

// Shows a line in place of the one before. It is cut at 79 columns: a line that wraps could not be replaced.
static inline void logger_show(Logger *logger, const char *line) {
    if (!logger->terminal) { return; }
    fprintf(logger->out, "\r%.79s\033[J", line);
    fflush(logger->out);
    logger->shows_line = true;
}

// Removes the line that was shown in place, so that something else may write to the terminal.
static inline void logger_clear(Logger *logger) {
    if (logger->shows_line) { fputs("\r\033[J", logger->out); }
    logger->shows_line = false;
}

// ---- The logger ----

// Prints a line for a person (a newline is added).
PRINTF_LIKE(2, 3) static inline void logger_event(Logger *logger, const char *format, ...) {
    logger_clear(logger);
    va_list arguments;
    va_start(arguments, format);
    say_list(logger->out, format, arguments);
    va_end(arguments);
    say(logger->out, "\n");
    fflush(logger->out);
}

// Makes a logger without files.
static inline void logger_init(Logger *logger) {
    memset(logger, 0, sizeof(*logger));
    logger->out = stdout;
    logger->main.fd = logger->speed.fd = -1;
}

// Begins the log of a run whose next step is first_step of total_steps. Step 0 begins dir/main.log and dir/speed.log
// anew. A later step (resume) goes on behind their lines. dir NULL: no files. Fails if a file cannot be opened.
static inline bool logger_open(Logger *logger, const char *dir, int64_t first_step, int64_t total_steps, Error *error) {
    const char *term = getenv("TERM");
    logger_init(logger);
    logger->terminal = isatty(STDOUT_FILENO) && term != NULL && term[0] != '\0' && strcmp(term, "dumb") != 0;
    logger->total_steps = total_steps;
    if (dir == NULL) { return true; }
    return log_open(&logger->main, dir, MAIN_LOG_NAME, first_step == 0, error) &&
           log_open(&logger->speed, dir, SPEED_LOG_NAME, first_step == 0, error);
}

static inline void logger_close(Logger *logger) {
    logger_clear(logger);
    log_close(&logger->main);
    log_close(&logger->speed);
}

// Shows and records an update. The time left follows from the mean time of a step so far, with validation and
// checkpoints. Fails if a log cannot be written (the disk is full).
static inline bool logger_step(Logger *logger, const StepInfo *info, Error *error) {
    char line[512];
    double now = seconds_now();
    if (logger->steps_seen == 0) { logger->first_start = now - info->seconds; }
    logger->steps_seen++;
    int64_t every = max_i64(logger->show_every, 1);
    double mean = (now - logger->first_start) / (double)logger->steps_seen;
    int64_t steps_left = logger->total_steps - info->step - 1;
    bool stays = steps_left <= 0 || (info->step + 1) % every == 0;
    bool in_place = logger->terminal && steps_left > 0 && (every == 1 || !stays);
    logger_step_line(line, sizeof(line), info, logger->total_steps, mean * (double)steps_left, in_place);
    if (in_place) {
        logger_show(logger, line);
    } else if (stays) {
        logger_event(logger, "%s", line);
    }
    return log_write(&logger->main, error, "s:%lld trl:%.4f lr:%.6f norm:%.2f\n", (long long)info->step, info->loss,
                     info->lr, info->norm) &&
           log_write(&logger->speed, error, "s:%lld ms:%.3f tps:%.0f\n", (long long)info->step + 1, 1e3 * info->seconds,
                     (double)info->tokens / fmax(info->seconds, 1e-9));
}

// Shows and records the validation loss after `step` updates. details: what else its line says. Fails as logger_step
// does.
static inline bool logger_val(Logger *logger, int64_t step, double loss, const char *details, Error *error) {
    logger_event(logger, "%s | val loss %.6f %s", step_text(step, logger->total_steps).text, loss, details);
    return log_write(&logger->main, error, "s:%lld tel:%.4f\n", (long long)step, loss);
}

// Shows and records an accuracy after `step` updates: `correct` of `total` questions were answered correctly. key: the
// evaluation's name in main.log. Fails as logger_step does.
static inline bool logger_eval(Logger *logger, int64_t step, const char *name, const char *key, int64_t correct,
                               int64_t total, Error *error) {
    double accuracy = (double)correct / (double)max_i64(total, 1);
    logger_event(logger, "%s | %s %.4f (%lld/%lld)", step_text(step, logger->total_steps).text, name, accuracy,
                 (long long)correct, (long long)total);
    return log_write(&logger->main, error, "s:%lld %s:%.4f\n", (long long)step, key, accuracy);
}

#endif // LLMC_LOGGER_H
