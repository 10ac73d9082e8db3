// What a run shows and records: step lines, main.log and speed.log across resumes and a full disk. (test_options.py has
// terminals of several widths, and none.)
#include "llmc/run/log.h"
#include "dev/test/refused.h"
#include "dev/test/temp_dir.h"

static const StepInfo example = {2, 7.123456, 1.2345, 3e-4, 0.81235, 256, 0.62};

// ---- Helpers: whole files of the test's folder ----

// Reads a file into text (cut at size - 1); "(none)" if there is no such file.
static void read_text(Test *t, const char *name, char *text, size_t size) {
    snprintf(text, size, "(none)");
    if (!temp_exists(test_path(t, name))) { return; }
    size_t bytes;
    uint8_t *data = temp_read(test_path(t, name), &bytes);
    snprintf(text, size, "%.*s", (int)bytes, (char *)data);
    free(data);
}

static void write_log(Test *t, const char *text) { temp_write(test_path(t, MAIN_LOG_NAME), text, strlen(text)); }

static void check_log(Test *t, const char *when, const char *want) {
    char text[4096];
    read_text(t, MAIN_LOG_NAME, text, sizeof(text));
    CHECK(t, strcmp(text, want) == 0, "%s: %s", when, text);
}

// ---- Texts ----

// A duration is that of a clock which never goes back, whatever becomes of the wall clock.
TEST(test_clock) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    CHECK(t, fabs(seconds_now() - (double)now.tv_sec) < 60.0, "%g seconds: of another clock", seconds_now());
}

TEST(test_durations) {
    const double seconds[] = {0, 30.6, 59.6, 725, 3599.4, 3599.7, 11264, 183659, -1, 1e300};
    const char *const texts[] = {"0:00",    "0:31",    "1:00",     "12:05", "59:59",
                                 "1:00:00", "3:07:44", "51:00:59", "0:00",  "2777777:46:40"};
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        char text[32];
        format_duration(text, sizeof(text), seconds[i]);
        CHECK(t, strcmp(text, texts[i]) == 0, "%g s is %s, expected %s", seconds[i], text, texts[i]);
    }
}

TEST(test_step_line) {
    char line[512];
    logger_step_line(line, sizeof(line), &example, 40, 31.2, false);
    const char *expected =
        "step    3/40 | loss 7.123456 | norm 1.2345 | lr 3.00e-04 | 812.35 ms | 315 tok/s | 62% of peak | "
        "0:31 left";
    CHECK(t, strcmp(line, expected) == 0, "%s", line);
    logger_step_line(line, sizeof(line), &example, 40, 31.2, true);
    CHECK(t, strcmp(line, "step    3/40 | loss 7.123456 | 315 tok/s | 62% of peak | 0:31 left") == 0, "%s", line);
    StepInfo odd = example;
    odd.peak_fraction = 0.0;
    odd.loss = (double)NAN;
    odd.step = 123455;
    logger_step_line(line, sizeof(line), &odd, 200000, -1, false);
    expected = "step 123456/200000 | loss nan | norm 1.2345 | lr 3.00e-04 | 812.35 ms | 315 tok/s | 0:00 left";
    CHECK(t, strcmp(line, expected) == 0 || strstr(line, "loss -nan") != NULL, "%s", line);
}

// ---- Screen ----

static void read_back(FILE *file, char *text, size_t size) {
    rewind(file);
    text[fread(text, 1, size - 1, file)] = '\0';
    fclose(file);
}

TEST(test_plain_output) {
    Logger logger;
    Error error;
    char text[1024];
    if (!CHECK(t, logger_open(&logger, NULL, 0, 3, &error), "no folder is needed")) { return; }
    logger.out = tmpfile();
    logger.terminal = false;
    bool ok = logger_val(&logger, 2, 3.25, &error) && logger_step(&logger, &example, &error);
    logger_event(&logger, "saved %s", "x");
    logger_close(&logger);
    read_back(logger.out, text, sizeof(text));
    const char *expected =
        "step    2/3 | val loss 3.250000\n"
        "step    3/3 | loss 7.123456 | norm 1.2345 | lr 3.00e-04 | 812.35 ms | 315 tok/s | 62% of peak | 0:00 left\n"
        "saved x\n";
    CHECK(t, ok && strcmp(text, expected) == 0, "%s", text);
}

// A step takes the place of the one before, an event removes it, and the last step stays.
TEST(test_terminal_output) {
    Logger logger;
    Error error;
    char text[2048];
    StepInfo last = example;
    last.step = 39;
    if (!CHECK(t, logger_open(&logger, NULL, 0, 40, &error), "no folder is needed")) { return; }
    logger.out = tmpfile();
    logger.terminal = true;
    bool ok = logger_step(&logger, &example, &error) && logger_val(&logger, 3, 3.25, &error) &&
              logger_step(&logger, &last, &error);
    logger_close(&logger);
    read_back(logger.out, text, sizeof(text));
    CHECK(t, ok && strncmp(text, "\rstep    3/40 | loss 7.123456 | 315 tok/s", 41) == 0, "%s", text);
    const char *after = strstr(text, " left\033[J\r\033[Jstep    3/40 | val loss 3.250000\nstep   40/40 | loss ");
    CHECK(t, after != NULL && ends_with(text, " left\n"), "%s", text);
}

// ---- main.log ----

static bool log_some_steps(Logger *logger, int64_t from, int64_t to, Error *error) {
    for (int64_t step = from; step < to; step++) {
        StepInfo info = {step, 5.0 - (double)step, 1.256, 6e-4, 0.5, 256, 0.5};
        if (step % 2 == 0 && !logger_val(logger, step, 6.0 - (double)step, error)) { return false; }
        if (!logger_step(logger, &info, error)) { return false; }
    }
    return true;
}

// Opens the log, as a run whose first step is `from`, and takes the steps up to `to`. Nothing is shown.
static void run_steps(Test *t, int64_t from, int64_t to) {
    Logger logger;
    Error error = {""};
    if (!CHECK(t, logger_open(&logger, test_folder(t), from, 10, &error), "%s", error.text)) { return; }
    logger.out = fopen("/dev/null", "w");
    logger.terminal = false;
    CHECK(t, logger.out != NULL && log_some_steps(&logger, from, to, &error), "%s", error.text);
    logger_close(&logger);
    fclose(logger.out);
}

static const char four_steps[] = "s:0 tel:6.0000\ns:0 trl:5.0000 lr:0.000600 norm:1.26\n"
                                 "s:1 trl:4.0000 lr:0.000600 norm:1.26\ns:2 tel:4.0000\n"
                                 "s:2 trl:3.0000 lr:0.000600 norm:1.26\ns:3 trl:2.0000 lr:0.000600 norm:1.26\n";

// A resumed run goes on behind the last line. A fresh run begins anew.
TEST(test_log_and_resume) {
    run_steps(t, 0, 4);
    check_log(t, "four steps", four_steps);
    run_steps(t, 3, 4);
    char twice[1024];
    snprintf(twice, sizeof(twice), "%ss:3 trl:2.0000 lr:0.000600 norm:1.26\n", four_steps);
    check_log(t, "resumed", twice);
    write_log(t, "s:0 tel:6.0"); // cut by a crash
    run_steps(t, 3, 4);
    check_log(t, "cut", "s:0 tel:6.0\ns:3 trl:2.0000 lr:0.000600 norm:1.26\n");
    run_steps(t, 0, 1);
    check_log(t, "a fresh run", "s:0 tel:6.0000\ns:0 trl:5.0000 lr:0.000600 norm:1.26\n");
}

// What is shown of an accuracy, and kept of it.
TEST(test_evaluations) {
    char text[4096], shown[4096];
    Logger logger;
    Error error = {""};
    CHECK(t, logger_open(&logger, test_folder(t), 0, 1000, &error), "%s", error.text);
    logger.out = tmpfile();
    logger.terminal = true;
    logger_show(&logger, "HellaSwag 1/9");
    logger_show(&logger, "HellaSwag 2/9");
    bool ok = logger_eval(&logger, 250, "HellaSwag", "eval", 2967, 10042, &error);
    logger_show(&logger, "MMLU 1/9");
    ok = ok && logger_eval(&logger, 250, "MMLU", "mmlu", 0, 7, &error);
    CHECK(t, ok, "%s", error.text);
    read_back(logger.out, shown, sizeof(shown));
    CHECK(t,
          strcmp(shown,
                 "\rHellaSwag 1/9\033[J\rHellaSwag 2/9\033[J\r\033[Jstep  250/1000 | HellaSwag 0.2955 (2967/10042)\n"
                 "\rMMLU 1/9\033[J\r\033[Jstep  250/1000 | MMLU 0.0000 (0/7)\n") == 0,
          "%s", shown);
    logger_close(&logger);
    read_text(t, MAIN_LOG_NAME, text, sizeof(text));
    CHECK(t, strncmp(text, "s:250 eval:0.2955\n", 18) == 0 && strstr(text, "\ns:250 mmlu:0.0000\n") != NULL, "%s",
          text);
}

TEST(test_log_errors) {
    Logger logger;
    Error error = {""};
    CHECK_REFUSED(t, logger_open(&logger, test_path(t, "none"), 0, 10, &error), &error, test_path(t, "none/main.log"),
                  ": cannot open: No such file or directory");
    if (access("/dev/full", W_OK) != 0) { SKIP(t, "no /dev/full, a disk that is always full"); }
    CHECK(t, logger_open(&logger, NULL, 0, 10, &error), "%s", error.text);
    logger.out = fopen("/dev/null", "w");
    logger.terminal = false;
    snprintf(logger.main.path, sizeof(logger.main.path), "run/main.log");
    logger.main.fd = open("/dev/full", O_WRONLY);
    CHECK_REFUSED(t, logger_step(&logger, &example, &error), &error, "run/main.log",
                  ": cannot write the log: no space left on device; free some space, then continue with --resume");
    logger_close(&logger);
    if (logger.out != NULL) { fclose(logger.out); }
}
