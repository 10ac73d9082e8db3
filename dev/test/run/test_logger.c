// What a run shows and records: step lines, main.log and speed.log across resumes and a full disk. (Terminals:
// test_options.py.)
#include "llmc/run/log.h"
#include "dev/test/refused.h"
#include "dev/test/temp_dir.h"

static const StepInfo example = {2, 7.123456, 1.2345, 3e-4, 0.81235, 256, 0.62};

// ---- Helpers ----

// Opens a logger whose screen is a file. dir: NULL, or the folder of the logs.
static Logger open_logger(Test *t, const char *dir, int64_t first_step, int64_t total_steps, bool terminal) {
    Logger logger;
    OK(t, logger_open(&logger, dir, first_step, total_steps, &error));
    logger.out = tmpfile();
    logger.terminal = terminal;
    return logger;
}

// Closes a logger, and returns what it has shown.
static const char *close_logger(Logger *logger) {
    static char shown[4096];
    logger_close(logger);
    rewind(logger->out);
    shown[fread(shown, 1, sizeof(shown) - 1, logger->out)] = '\0';
    fclose(logger->out);
    return shown;
}

static void check_log(Test *t, const char *when, const char *want) {
    size_t bytes;
    uint8_t *data = temp_read(test_path(t, MAIN_LOG_NAME), &bytes);
    CHECK(t, bytes == strlen(want) && memcmp(data, want, bytes) == 0, "%s: %.*s", when, (int)bytes, (char *)data);
    free(data);
}

// ---- Texts ----

// A duration is that of a clock which never goes back, whatever becomes of the wall clock.
TEST(test_clock) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    CHECK(t, fabs(seconds_now() - (double)now.tv_sec) < 60.0, "%g seconds: of another clock", seconds_now());
}

TEST(test_durations) {
    const double seconds[] = {30.6, 59.6, 725, 3599.7, 11264, -1, 1e300};
    const char *const texts[] = {"0:31", "1:00", "12:05", "1:00:00", "3:07:44", "0:00", "2777777:46:40"};
    FOR_EACH(i, texts) {
        ShortText text = duration_text(seconds[i]);
        CHECK(t, strcmp(text.text, texts[i]) == 0, "%g s is %s, expected %s", seconds[i], text.text, texts[i]);
    }
}

// ---- Screen ----

TEST(test_plain_output) {
    Logger logger = open_logger(t, NULL, 0, 3, false);
    bool ok = logger_val(&logger, 2, 3.25, "(8 of 9 sequences)", &error) && logger_step(&logger, &example, &error);
    logger_event(&logger, "saved %s", "x");
    const char *text = close_logger(&logger);
    const char *expected =
        "step    2/3 | val loss 3.250000 (8 of 9 sequences)\n"
        "step    3/3 | loss 7.123456 | norm 1.2345 | lr 3.00e-04 | 812.35 ms | 315 tok/s | 62% of peak | 0:00 left\n"
        "saved x\n";
    CHECK(t, ok && strcmp(text, expected) == 0, "%s", text);
}

// --log-every shows every N-th step, and the last. On a terminal the other steps are overwritten.
TEST(test_log_every) {
    for (int terminal = 0; terminal <= 1; terminal++) {
        int stay = 0, shown = 0;
        Logger logger = open_logger(t, NULL, 0, 8, terminal != 0);
        logger.show_every = 3;
        for (StepInfo info = example; shown < 8; shown++) {
            info.step = shown;
            OK(t, logger_step(&logger, &info, &error));
        }
        const char *text = close_logger(&logger);
        for (const char *at = text; (at = strchr(at, '\n')) != NULL; at++) { stay++; }
        CHECK(t, stay == 3 && strstr(text, "step    6/8 | loss 7.123456 | norm") != NULL, "%d: %s", terminal, text);
        CHECK(t, (strstr(text, "step    2/8") != NULL) == terminal, "step 2: %s", text);
    }
}

// ---- main.log ----

// A run whose first step is `from` takes the steps up to `to`.
static void run_steps(Test *t, int64_t from, int64_t to) {
    Logger logger = open_logger(t, test_folder(t), from, 10, false);
    for (int64_t step = from; step < to; step++) {
        StepInfo info = {step, 5.0 - (double)step, 1.256, 6e-4, 0.5, 256, 0.5};
        bool ok = (step % 2 != 0 || logger_val(&logger, step, 6.0 - (double)step, "", &error)) &&
                  logger_step(&logger, &info, &error);
        OK(t, ok);
    }
    close_logger(&logger);
}

static const char four_steps[] = "s:0 tel:6.0000\ns:0 trl:5.0000 lr:0.000600 norm:1.26\n"
                                 "s:1 trl:4.0000 lr:0.000600 norm:1.26\ns:2 tel:4.0000\n"
                                 "s:2 trl:3.0000 lr:0.000600 norm:1.26\ns:3 trl:2.0000 lr:0.000600 norm:1.26\n";

// A resumed run goes on behind the last line. A fresh run begins anew.
TEST(test_log_and_resume) {
    run_steps(t, 0, 4);
    check_log(t, "four steps", four_steps);
    run_steps(t, 3, 4);
    check_log(t, "resumed", format("%ss:3 trl:2.0000 lr:0.000600 norm:1.26\n", four_steps));
    temp_write(test_path(t, MAIN_LOG_NAME), "s:0 tel:6.0", 11); // cut by a crash
    run_steps(t, 3, 4);
    check_log(t, "cut", "s:0 tel:6.0\ns:3 trl:2.0000 lr:0.000600 norm:1.26\n");
    run_steps(t, 0, 1);
    check_log(t, "a fresh run", "s:0 tel:6.0000\ns:0 trl:5.0000 lr:0.000600 norm:1.26\n");
}

// What is shown of an accuracy, and kept of it.
TEST(test_evaluations) {
    Logger logger = open_logger(t, test_folder(t), 0, 1000, true);
    logger_show(&logger, "HellaSwag 1/9");
    logger_show(&logger, "HellaSwag 2/9");
    OK(t, logger_eval(&logger, 250, "HellaSwag", "eval", 2967, 10042, &error));
    const char *shown = close_logger(&logger);
    const char *expected = "\rHellaSwag 1/9\033[J\rHellaSwag 2/9\033[J\r\033[J"
                           "step  250/1000 | HellaSwag 0.2955 (2967/10042)\n";
    CHECK(t, strcmp(shown, expected) == 0, "%s", shown);
    check_log(t, "an evaluation", "s:250 eval:0.2955\n");
}

TEST(test_log_errors) {
    Logger logger;
    REFUSED(t, logger_open(&logger, test_path(t, "none"), 0, 10, &error), test_path(t, "none/main.log"),
            ": cannot open: No such file or directory");
    if (access("/dev/full", W_OK) != 0) { SKIP(t, "no /dev/full, a disk that is always full"); }
    logger = open_logger(t, NULL, 0, 10, false);
    snprintf(logger.main.path, sizeof(logger.main.path), "run/main.log");
    logger.main.fd = open("/dev/full", O_WRONLY);
    REFUSED(t, logger_step(&logger, &example, &error), "run/main.log",
            ": cannot write the log: no space left on device; free some space, then continue with --resume");
    close_logger(&logger);
}
