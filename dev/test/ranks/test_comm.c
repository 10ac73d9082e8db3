// The processes of a run: this program starts itself as several ranks, which connect, exchange, fail, hang and die.
//
// A rank is `test_comm rank KEY=VALUE...` (rank_main). It prints "open ..." when it is connected, then does what do=
// says; it ends as a trainer's main would. Limits here are generous: a slow machine may take its time, only a rank that
// is not found out at all fails a test. That a death is found at once and not by silence is seen from the message.
#include "llmc/ranks/agree.h"
#include "llmc/ranks/meet.h"
#include "llmc/base/rand.h"
#include "dev/test/ranks/processes.h"
#include "dev/test/temp_dir.h"
#include "dev/test/test_main.h"

#define MAX_TEST_RANKS 8
#define LIMIT 40.0 // seconds for anything that must end
#define SECRET "0123456789abcdef0123456789ABCDEFfedcba9876543210fedcba9876543210"
#define OTHER_SECRET "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"
#define NO_ANSWER "no answer of this run's rank 0: another program, or a rank 0 with another secret?"
#define TURNED_AWAY "connections turned away at the start, because they did not show this run's token: "

static const char *self; // this program

// ---- A rank ----

typedef struct {
    int argc;
    char **argv;
    Comm comm;
    CommOptions options;
    int who; // the rank that does something special
    Error error;
} Rank;

static const char *rank_text(const Rank *r, const char *key, const char *otherwise) {
    size_t n = strlen(key);
    for (int i = 2; i < r->argc; i++) {
        if (strncmp(r->argv[i], key, n) == 0 && r->argv[i][n] == '=') { return r->argv[i] + n + 1; }
    }
    return otherwise;
}

static double rank_number(const Rank *r, const char *key, double otherwise) {
    const char *text = rank_text(r, key, NULL);
    return text != NULL ? strtod(text, NULL) : otherwise;
}

static bool rank_wrong(Rank *r, const char *what) { return fail(&r->error, "wrong: %s", what); }

static void rank_sleep(double seconds) {
    double end = seconds_now() + seconds;
    while (seconds_now() < end) { poll(NULL, 0, 10); }
}

// Every kind of exchange, with results that only the right order and all contributions give.
static bool do_exchanges(Rank *r) {
    Comm *comm = &r->comm;
    int n = comm->num_ranks;
    for (int round = 0; round < 20; round++) {
        uint64_t mine[3] = {(uint64_t)(comm->rank + 10 * round), 7, UINT64_MAX}, sum[2];
        Text all;
        if (!comm_gather(comm, "numbers", mine, sizeof(mine), &all, &r->error)) { return false; }
        for (int i = 0; i < n; i++) {
            const uint64_t *its = (const uint64_t *)all.data + 3 * i;
            if (its[0] != (uint64_t)(i + 10 * round) || its[2] != UINT64_MAX) { return rank_wrong(r, "gather"); }
        }
        text_free(&all);
        sum[0] = (uint64_t)comm->rank + 1, sum[1] = UINT64_MAX;
        if (!comm_sum_u64(comm, sum, 2, &r->error)) { return false; }
        if (sum[0] != (uint64_t)(n * (n + 1) / 2) || sum[1] != 0 - (uint64_t)n) { return rank_wrong(r, "sum"); }
        double data[2] = {comm->rank == 0 ? 3.25 : -1.0, comm->rank == 0 ? round : -1.0};
        if (!comm_broadcast(comm, data, sizeof(data), &r->error)) { return false; }
        if (data[0] != 3.25 || data[1] != round) { return rank_wrong(r, "broadcast"); }
        if (!comm_agree(comm, true, &r->error)) { return false; }
    }
    return true;
}

// More than any socket holds at once, and nothing at all.
static bool do_large(Rank *r) {
    int64_t bytes = 5000000;
    int n = r->comm.num_ranks;
    char *mine = (char *)malloc((size_t)bytes);
    Text all, none = {NULL, 0, 0, false};
    memset(mine, r->comm.rank + 1, (size_t)bytes);
    bool ok = comm_gather(&r->comm, "much", mine, bytes, &all, &r->error);
    for (int64_t i = 0; ok && i < n * bytes; i++) {
        if (all.data[i] != (char)(i / bytes + 1)) { ok = rank_wrong(r, "large gather"); }
    }
    ok = ok && comm_broadcast(&r->comm, mine, bytes, &r->error) &&
         (mine[bytes - 1] == 1 || rank_wrong(r, "large broadcast"));
    ok = ok && comm_gather(&r->comm, "nothing", NULL, 0, &none, &r->error) &&
         comm_broadcast(&r->comm, NULL, 0, &r->error);
    free(mine), text_free(&all), text_free(&none);
    return ok;
}

// Ranks who and who + 1 fail to agree.
static bool do_agree(Rank *r) {
    int rank = r->comm.rank;
    fail(&r->error, "disk full on %d", rank);
    return comm_agree(&r->comm, rank != r->who && rank != r->who + 1, &r->error);
}

static void add_fact(char *facts, size_t *bytes, const char *name, const char *value) {
    *bytes += (size_t)sprintf(facts + *bytes, "%s%c%s", name, '\0', value) + 1;
}

// Rank who has another value, or with `fact=`, one fact more.
static bool do_facts(Rank *r) {
    char facts[20000];
    size_t bytes = 0;
    const char *extra = rank_text(r, "fact", NULL);
    bool other = r->comm.rank == r->who;
    add_fact(facts, &bytes, "model", "");
    add_fact(facts, &bytes, "--seq-len", other && extra == NULL ? "32" : "64");
    if (other && extra != NULL) { add_fact(facts, &bytes, extra, "1"); }
    for (int i = 0; i < 500; i++) { add_fact(facts, &bytes, "shard", "a checksum of some length"); }
    return comm_check_facts(&r->comm, facts, bytes, &r->error);
}

// Rank who is in another exchange of one size (how=name), or brings another size (how=size, broadcast).
static bool do_mismatch(Rank *r) {
    const char *how = rank_text(r, "how", "size");
    uint64_t values[2] = {1, 2};
    bool other = r->comm.rank == r->who, by_name = strcmp(how, "name") == 0;
    if (strcmp(how, "broadcast") == 0) { return comm_broadcast(&r->comm, values, other ? 16 : 8, &r->error); }
    Text all;
    return comm_gather(&r->comm, other && by_name ? "a sum" : "numbers", values, other && !by_name ? 16 : 8, &all,
                       &r->error);
}

// Waits for the other ranks in an exchange. Rank `who` does not come.
static bool wait_in_exchange(Rank *r) {
    uint64_t none = 0;
    return comm_sum_u64(&r->comm, &none, 1, &r->error);
}

static bool do_wait(Rank *r) {
    if (r->comm.rank == r->who) { rank_sleep(1000.0); }
    return wait_in_exchange(r);
}

// Computes, with progress but without any exchange, until the watch ends it, or for `seconds`.
static bool do_compute(Rank *r) {
    double end = seconds_now() + rank_number(r, "seconds", 1000.0);
    for (int step = 1; seconds_now() < end; step++) {
        comm_progress(&r->comm, "step %d", step);
        poll(NULL, 0, 5);
    }
    return true;
}

// All compute, then rank who gets no further; how=all: nor does any other, and all say that they wait.
static bool do_hang(Rank *r) {
    bool all = strcmp(rank_text(r, "how", ""), "all") == 0;
    comm_progress(&r->comm, "step 1");
    if (all && r->comm.rank != r->who) { comm_progress(&r->comm, "step 2"); }
    if (all) { comm_waits(&r->comm, true); }
    if (all || r->comm.rank == r->who) { rank_sleep(1000.0); }
    return wait_in_exchange(r);
}

// Rank who takes `seconds`, longer than the watchdog, but has said that this is normal.
static bool do_slow(Rank *r) {
    if (r->comm.rank == r->who) {
        comm_slow(&r->comm, true);
        rank_sleep(rank_number(r, "seconds", 0.0));
        comm_slow(&r->comm, false);
    }
    return wait_in_exchange(r) && do_exchanges(r);
}

// Rank who fails on its own. Without who, all fail at once. The other ranks wait for it, or compute.
static bool do_fail(Rank *r) {
    bool mine = r->comm.rank == r->who || r->who < 0;
    if (mine) { return fail(&r->error, "no more paper"); }
    return strcmp(rank_text(r, "how", ""), "compute") == 0 ? do_compute(r) : wait_in_exchange(r);
}

// Rank who leaves in order. The other ranks go on for a while without it, then miss it (how=miss) or not, or wait for
// it on the GPU (how=gpu).
static bool do_leave(Rank *r) {
    if (r->comm.rank == r->who) { return true; }
    if (strcmp(rank_text(r, "how", ""), "gpu") == 0) { comm_waits(&r->comm, true), rank_sleep(1000.0); }
    rank_sleep(0.5);
    comm_progress(&r->comm, "alone");
    return strcmp(rank_text(r, "how", ""), "miss") != 0 || wait_in_exchange(r);
}

// Rank who fails. The other ranks cannot print it: nobody reads their stderr, a pipe that is full.
static bool do_mute(Rank *r) {
    int ends[2];
    if (r->comm.rank == r->who) { return wait_in_exchange(r) && fail(&r->error, "no more paper"); }
    if (pipe(ends) != 0) { return fail_system(&r->error, "a pipe", "make"); }
    fcntl(ends[1], F_SETFL, O_NONBLOCK);
    while (write(ends[1], "x", 1) == 1) {}
    fcntl(ends[1], F_SETFL, 0);
    dup2(ends[1], STDERR_FILENO);
    return wait_in_exchange(r) && wait_in_exchange(r);
}

// An error that is the consequence of another rank's death.
static bool do_consequence(Rank *r) {
    if (r->comm.rank == r->who) { raise(SIGKILL); }
    comm_await_verdict(&r->comm, LIMIT);
    return fail(&r->error, "the collective has failed");
}

static int count_open_files(void) {
    int count = 0;
    for (int fd = 0; fd < 256; fd++) { count += fcntl(fd, F_GETFD) != -1; }
    return count;
}

static bool rank_do(Rank *r, const char *what) {
    static const struct {
        const char *name;
        bool (*function)(Rank *);
    } actions[] = {{"exchanges", do_exchanges},
                   {"large", do_large},
                   {"agree", do_agree},
                   {"facts", do_facts},
                   {"mismatch", do_mismatch},
                   {"wait", do_wait},
                   {"compute", do_compute},
                   {"hang", do_hang},
                   {"slow", do_slow},
                   {"fail", do_fail},
                   {"leave", do_leave},
                   {"mute", do_mute},
                   {"consequence", do_consequence}};
    for (size_t i = 0; i < sizeof(actions) / sizeof(actions[0]); i++) {
        if (strcmp(actions[i].name, what) == 0) { return actions[i].function(r); }
    }
    return strcmp(what, "nothing") == 0 || fail(&r->error, "do=%s: unknown", what);
}

static void rank_options(Rank *r) {
    CommOptions *o = &r->options;
    const char *start = rank_text(r, "start", "tcp");
    o->start = strcmp(start, "mpi") == 0 ? COMM_MPI : strcmp(start, "fs") == 0 ? COMM_FOLDER : COMM_TCP;
    o->num_ranks = (int)rank_number(r, "n", 0);
    o->rank = (int)rank_number(r, "rank", -1);
    o->gpus_per_node = (int)rank_number(r, "gpus", 0);
    o->address = o->folder = rank_text(r, "at", "");
    o->start_timeout = rank_number(r, "timeout", LIMIT);
    o->watchdog = rank_number(r, "watchdog", 0);
    o->silence = rank_number(r, "silence", LIMIT);
    o->program = "test";
    o->host = rank_text(r, "host", NULL);
    o->secret = rank_text(r, "file", NULL);
    const char *secret = rank_text(r, "secret", NULL); // a word for SECRET or OTHER_SECRET, or itself
    if (secret != NULL) {
        bool ours = strcmp(secret, "ours") == 0, other = strcmp(secret, "other") == 0;
        setenv(TOKEN_VARIABLE, ours ? SECRET : other ? OTHER_SECRET : secret, 1);
    }
    r->who = (int)rank_number(r, "who", -1);
}

// As a trainer's main.
static int rank_main(int argc, char **argv) {
    static Rank rank;
    Rank *r = &rank;
    int files = count_open_files();
    r->argc = argc, r->argv = argv;
    rank_options(r);
    bool ok = comm_open(&r->comm, &r->options, &r->error);
    if (ok) {
        Comm *comm = &r->comm;
        printf("open %d of %d, local %d of %d, prints %d.\n", comm->rank, comm->num_ranks, comm->local_rank,
               comm->num_local, comm->prints);
        fflush(stdout);
        comm_change(comm, &comm->resumable, rank_number(r, "resumable", 0) != 0.0);
        ok = rank_do(r, rank_text(r, "do", "exchanges"));
        if (!ok) { comm_fail(comm, &r->error); }
    }
    comm_close(&r->comm);
    if (r->options.start != COMM_MPI && count_open_files() != files) { // MPI keeps its own
        ok = rank_wrong(r, "files are left open");
    }
    if (!ok && r->comm.prints) { fprintf(stderr, "test: %s\n", r->error.text); }
    printf(ok ? "done\n" : "failed\n");
    return ok ? EXIT_SUCCESS : EXIT_FAILURE;
}

// ---- Several ranks ----

typedef struct {
    int n;
    char at[600]; // address or folder
    Process p[MAX_TEST_RANKS];
    double began;
} Run;

// A port that was free a moment ago, and that no earlier call has given.
static int free_port(void) {
    static bool given[65536];
    int fd = meet_listen(0, true), port = meet_port(fd);
    close(fd);
    if (given[port]) { return free_port(); }
    given[port] = true;
    return port;
}

// "rank=1 n=4 ..." apart, at its spaces, and `at` as it is.
static void start_process(Process *p, const char *at, const char *format, ...) {
    char text[1024], place[700];
    const char *argv[32] = {self, "rank", place};
    int count = 3;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    snprintf(place, sizeof(place), "at=%s", at);
    char *rest = text;
    for (char *word; (word = strtok_r(rest, " ", &rest)) != NULL && count < 31;) { argv[count++] = word; }
    argv[count] = NULL;
    process_start(p, argv);
}

static void run_at_free_port(Run *run, const char *host) {
    snprintf(run->at, sizeof(run->at), "%s:%d", host, free_port());
}

// Starts n ranks: by TCP at a free port of the loopback address.
static void run_start(Run *run, int n, const char *options) {
    run->n = n;
    run->began = process_now();
    run_at_free_port(run, "127.0.0.1");
    for (int i = 0; i < n; i++) { start_process(&run->p[i], run->at, "n=%d rank=%d host=host%d %s", n, i, i, options); }
}

static bool run_wait_open(Test *t, Run *run) {
    bool ok = true;
    for (int i = 0; i < run->n; i++) {
        ok = process_wait_text(&run->p[i], "open ", LIMIT) && ok;
        CHECK(t, ok, "rank %d does not open: %s", i, run->p[i].err.text);
    }
    return ok;
}

static void run_wait_end(Test *t, Run *run, double seconds) {
    CHECK(t, process_wait_all(run->p, run->n, seconds), "ranks have not ended within %g s", seconds);
}

// All have ended well, without a word but, if given, rank 0's, in one line.
static void check_all_well_but(Test *t, Run *run, const char *word) {
    run_wait_end(t, run, LIMIT);
    for (int i = 0; i < run->n; i++) {
        const char *err = run->p[i].err.text;
        bool said = i == 0 && word != NULL;
        bool right = said ? strstr(err, word) != NULL && strchr(err, '\n') == err + strlen(err) - 1 : err[0] == '\0';
        CHECK(t, run->p[i].status == 0 && right, "rank %d: status %d: %s%s", i, run->p[i].status, run->p[i].out.text,
              err);
    }
}

static void check_all_well(Test *t, Run *run) { check_all_well_but(t, run, NULL); }

// Takes the process numbers out of a message: "rank 1 (host, pid 12)" becomes "rank 1 (host)".
static char *without_pids(char *text) {
    for (char *at = text; (at = strstr(at, ", pid ")) != NULL;) {
        char *after = at + 6 + strspn(at + 6, "0123456789");
        memmove(at, after, strlen(after) + 1);
    }
    return text;
}

// The process ended with status 1 and one line that begins and ends like this. Process numbers count only if they are
// expected at the begin.
static void check_message(Test *t, Process *p, const char *who, const char *begin, const char *end) {
    char line[COMM_TEXT_BYTES];
    snprintf(line, sizeof(line), "test: %s", begin);
    const char *said = strstr(begin, ", pid ") != NULL ? p->err.text : without_pids(p->err.text);
    size_t n = strlen(said), m = strlen(end);
    CHECK(t, p->status == 1, "%s: status %d, expected 1: %s", who, p->status, said);
    CHECK(t, n > 0 && strchr(said, '\n') == said + n - 1, "%s: not one line: %s", who, said);
    CHECK(t, strncmp(said, line, strlen(line)) == 0, "%s: said '%s', expected '%s...'", who, said, line);
    CHECK(t, n > m && strncmp(said + n - 1 - m, end, m) == 0, "%s: said '%s', expected '...%s'", who, said, end);
}

// All but `except` ended with that message.
static void check_messages(Test *t, Run *run, int except, const char *begin, const char *end) {
    for (int i = 0; i < run->n; i++) {
        char who[32];
        snprintf(who, sizeof(who), "rank %d", i);
        if (i != except) { check_message(t, &run->p[i], who, begin, end); }
    }
}

// ---- Starting ----

TEST(test_addresses) {
    static const struct {
        const char *text, *host; // NULL: refused
        int port;
    } cases[] = {{"node1", "node1", 29500},
                 {"node1:80", "node1", 80},
                 {"10.0.0.1:65535", "10.0.0.1", 65535},
                 {"[::1]:29", "::1", 29},
                 {"[fe80::1]", NULL, 0},
                 {"fe80::1:2", NULL, 0},
                 {"", NULL, 0},
                 {":80", NULL, 0},
                 {"node1:", NULL, 0},
                 {"node1:0", NULL, 0},
                 {"node1:65536", NULL, 0},
                 {"node1:8x", NULL, 0},
                 {"node1:-1", NULL, 0},
                 {"[::1", NULL, 0},
                 {"[]:80", NULL, 0},
                 {"node1:80x", NULL, 0},
                 {"[::1]80", NULL, 0},
                 {"[", NULL, 0},
                 {"node1:999999999999", NULL, 0}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        static Start found;
        Error error;
        bool ok = meet_parse_address(&found, cases[i].text, &error);
        if (!CHECK(t, ok == (cases[i].host != NULL), "'%s': %d", cases[i].text, ok) || !ok) { continue; }
        CHECK(t, strcmp(found.hosts, cases[i].host) == 0 && found.port == cases[i].port, "'%s': %s %d", cases[i].text,
              found.hosts, found.port);
    }
}

// What a launcher leaves in the environment; here, nothing.
static const char *const launcher_names[] = {
    "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "PMI_RANK",      "PMI_SIZE",
    "MPI_LOCALRANKID",      "SLURM_PROCID",         "SLURM_STEP_NUM_TASKS",       "SLURM_LOCALID", "PMIX_RANK"};

static void clean_environment(void) {
    for (size_t i = 0; i < sizeof(launcher_names) / sizeof(launcher_names[0]); i++) { unsetenv(launcher_names[i]); }
    unsetenv(TOKEN_VARIABLE);
}

TEST(test_launchers) {
    static const struct {
        const char *variables[6], *name;
        int rank, size, local_rank;
    } cases[] = {{{NULL}, NULL, -1, -1, -1},
                 {{"OMPI_COMM_WORLD_RANK", "3", "OMPI_COMM_WORLD_SIZE", "8", "OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                  "mpirun",
                  3,
                  8,
                  1},
                 {{"PMI_RANK", "2", "PMI_SIZE", "4", NULL}, "mpirun", 2, 4, -1},
                 {{"SLURM_PROCID", "1", "SLURM_STEP_NUM_TASKS", "2", "SLURM_LOCALID", "0"}, "srun", 1, 2, 0},
                 {{"SLURM_PROCID", "0", NULL}, NULL, -1, -1, -1}, // a batch script, not started by srun
                 {{"PMIX_RANK", "5", NULL}, "a PMIx launcher", 5, -1, -1},
                 {{"OMPI_COMM_WORLD_RANK", "x", "OMPI_COMM_WORLD_SIZE", "8", NULL}, NULL, -1, -1, -1}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        for (int v = 0; v < 6 && cases[i].variables[v] != NULL; v += 2) {
            setenv(cases[i].variables[v], cases[i].variables[v + 1], 1);
        }
        Launcher launcher = launcher_find();
        bool named = launcher.name != NULL && cases[i].name != NULL && strcmp(launcher.name, cases[i].name) == 0;
        CHECK(t, named || launcher.name == cases[i].name, "case %zu: %s", i, launcher.name ? launcher.name : "none");
        CHECK(t,
              launcher.rank == cases[i].rank && launcher.size == cases[i].size &&
                  launcher.local_rank == cases[i].local_rank,
              "case %zu: rank %d of %d, local %d", i, launcher.rank, launcher.size, launcher.local_rank);
        clean_environment();
    }
}

// Opens with these options, which must be refused (or give one process) without any connection.
static void check_place(Test *t, CommOptions o, const char *size, const char *expected) {
    Comm comm;
    Error error = {""};
    if (size != NULL) { setenv("OMPI_COMM_WORLD_SIZE", size, 1), setenv("OMPI_COMM_WORLD_RANK", "0", 1); }
    o.start_timeout = 0.5;
    bool ok = comm_open(&comm, &o, &error);
    CHECK(t, ok == (expected == NULL), "%s: %d %s", expected ? expected : "one process", ok, error.text);
    if (expected != NULL) { CHECK(t, strstr(error.text, expected) != NULL, "said: %s", error.text); }
    if (expected == NULL) { CHECK(t, comm.num_ranks == 1 && comm.rank == 0, "not one process"); }
    comm_close(&comm);
    clean_environment();
}

TEST(test_places) {
    CommOptions o;
    memset(&o, 0, sizeof(o));
    o.rank = -1;
    o.start = COMM_MPI;
    check_place(t, o, NULL, NULL);
    check_place(t, o, "1", NULL);
#ifndef USE_MPI
    check_place(t, o, "8", "mpirun has started several processes, but this program was built without MPI");
#endif
    o.num_ranks = 4;
    check_place(t, o, "8", "--num-processes is 4, but mpirun has started 8");
    check_place(t, o, NULL, "neither mpirun nor srun has started several");
    o.start = COMM_TCP, o.num_ranks = 0;
    check_place(t, o, NULL, "--num-processes is missing");
    o.num_ranks = 1;
    check_place(t, o, NULL, NULL);
    o.num_ranks = 3;
    check_place(t, o, NULL, "--process-rank is missing");
    o.rank = 3;
    check_place(t, o, NULL, "--process-rank is 3, but must be from 0 to 2");
    o.rank = 1;
    check_place(t, o, NULL, "--server-ip is missing");
    o.address = "node:0";
    check_place(t, o, NULL, "a port from 1 to 65535");
    o.start = COMM_FOLDER;
    check_place(t, o, NULL, "--nccl-fs-path is missing");
    o.rank = 0, o.folder = "/dev/null/x";
    check_place(t, o, NULL, "/dev/null");
}

// Runs three ranks that are told this host; those that do not start with rank 0 come first.
static void check_host(Test *t, const char *host) {
    Run run;
    run.n = 3;
    run_at_free_port(&run, host);
    for (int i = 2; i >= 0; i--) { start_process(&run.p[i], run.at, "n=3 rank=%d secret=ours", i); }
    check_all_well(t, &run);
    CHECK(t, strstr(run.p[1].out.text, "open 1 of 3, local 1 of 3") != NULL, "%s: %s", host, run.p[1].out.text);
}

TEST(test_names) {
    static const char *const always[] = {"localhost", "[::1]", NULL};
    char own[256] = "";
    struct addrinfo *list;
    Error error;
    gethostname(own, sizeof(own) - 1);
    for (int i = 0; i < 3; i++) { // an address that this machine does not have is left out
        const char *host = i < 2 ? always[i] : own;
        int fd =
            meet_look_up(i == 1 ? "::1" : host, 0, &list, &error) ? socket_listen(list->ai_addr, list->ai_addrlen) : -1;
        if (fd >= 0) { check_host(t, host), close(fd), freeaddrinfo(list); }
    }
}

// Which GPU: by the names of the machines in order of rank, or by --gpus-per-node.
TEST(test_local_ranks) {
    static const char *const hosts[] = {"a", "b", "a", "a", "b"};
    static const char *const by_name[] = {"local 0 of 3", "local 0 of 2", "local 1 of 3", "local 2 of 3",
                                          "local 1 of 2"};
    static const char *const by_count[] = {"local 0 of 2", "local 1 of 2", "local 0 of 2", "local 1 of 2",
                                           "local 0 of 1"};
    for (int gpus = 0; gpus <= 2; gpus += 2) {
        Run run;
        run.n = 5;
        run_at_free_port(&run, "127.0.0.1");
        for (int i = 0; i < 5; i++) {
            start_process(&run.p[i], run.at, "n=5 rank=%d host=%s gpus=%d", i, hosts[i], gpus);
        }
        check_all_well(t, &run);
        for (int i = 0; i < 5; i++) {
            const char *expected = gpus == 0 ? by_name[i] : by_count[i];
            CHECK(t, strstr(run.p[i].out.text, expected) != NULL, "rank %d, gpus %d: %s", i, gpus, run.p[i].out.text);
        }
    }
}

// ---- A shared folder ----

static void shared_folder(Test *t, Run *run) { snprintf(run->at, sizeof(run->at), "%s", test_path(t, "shared")); }

static const char *address_file(Test *t, const char *folder) {
    char name[64];
    snprintf(name, sizeof(name), "%s/gpt2c_start/address", folder);
    return test_path(t, name);
}

// Leaves a file as an earlier run may have left it.
static void leave_address(Test *t, const void *text, size_t bytes) {
    Error error;
    temp_must(make_directories(test_path(t, "shared/gpt2c_start"), &error), error.text);
    temp_write(address_file(t, "shared"), text, bytes);
    temp_must(chmod(address_file(t, "shared"), 0600) == 0, "chmod");
}

static void check_folder_clean(Test *t) {
    CHECK(t, !path_exists(address_file(t, "shared")), "%s is left behind", address_file(t, "shared"));
}

#define STALE "token 0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\n"

// Files that earlier runs left, or that are damaged: the ranks read them first, wait, and find the new one in the end.
TEST(test_folder_stale) {
    int silent = meet_listen(0, true); // nobody answers there
    char texts[6][200];
    snprintf(texts[0], 200, STALE "port %d\naddresses 127.0.0.1\n", free_port());
    snprintf(texts[1], 200, STALE "port %d\naddresses 127.0.0.1\n", meet_port(silent));
    snprintf(texts[2], 200, "token 12");
    snprintf(texts[3], 200, "%s", "");
    snprintf(texts[4], 200, STALE "port 1\naddresses no-such..host [ 999.1.2.3\n");
    snprintf(texts[5], 200, "token %064d0\nport 70000\naddresses\n", 0);
    for (int i = 0; i < 6; i++) {
        Run run;
        leave_address(t, texts[i], strlen(texts[i]));
        run.n = 2;
        shared_folder(t, &run);
        start_process(&run.p[1], run.at, "start=fs n=2 rank=1 timeout=%g", i == 1 ? 3.0 : LIMIT);
        if (i == 1) { // rank 1 is at the silent port before the new file is written
            socket_wait(silent, POLLIN, seconds_now() + LIMIT);
        } else { // it has read the file
            process_wait_text(&run.p[1], "never", 0.5);
            CHECK(t, !run.p[1].ended, "file %d: rank 1 does not wait: %s", i, run.p[1].err.text);
        }
        start_process(&run.p[0], run.at, "start=fs n=2 rank=0");
        if (i == 1) { // it gives up after its 3 s; a second attempt of this rank counts
            process_wait_all(&run.p[1], 1, LIMIT);
            check_message(t, &run.p[1], "rank 1", "rank 1 (", "come between?");
            start_process(&run.p[1], run.at, "start=fs n=2 rank=1");
        }
        check_all_well(t, &run);
        check_folder_clean(t);
    }
    close(silent);
}

// A stale file with many addresses, at which nobody answers: --start-timeout holds for all of them together.
TEST(test_folder_silent_addresses) {
    enum { ADDRESSES = 40 };
    Run run;
    Process *p = &run.p[1];
    int silent = meet_listen(0, true);
    char text[1000];
    int n = snprintf(text, sizeof(text), STALE "port %d\naddresses", meet_port(silent));
    for (int i = 0; i < ADDRESSES; i++) { n += snprintf(text + n, sizeof(text) - (size_t)n, " 127.0.0.1"); }
    leave_address(t, text, (size_t)n);
    shared_folder(t, &run);
    start_process(p, run.at, "start=fs n=2 rank=1 timeout=1");
    CHECK(t, process_wait_all(p, 1, 1.0 + ADDRESSES / 4), "rank 1 tries on after its --start-timeout of 1 s");
    check_message(t, p, "rank 1", "rank 1 (", "come between?");
    unlink(address_file(t, "shared"));
    close(silent);
}

// The address of another run that is starting right now, with an older token: that run is not disturbed.
TEST(test_folder_other_run) {
    Run run, other;
    other.n = 2;
    snprintf(other.at, sizeof(other.at), "%s", test_path(t, "other"));
    start_process(&other.p[0], other.at, "start=fs n=2 rank=0");
    const char *file = address_file(t, "other");
    for (double end = seconds_now() + LIMIT; !path_exists(file) && seconds_now() < end;) { process_pause(); }
    size_t bytes;
    uint8_t *text = temp_read(file, &bytes);
    char *token = strstr((char *)text, "token ");
    if (CHECK(t, token == (char *)text && bytes > 70, "no token in the file")) {
        token[6] = token[6] == '1' ? '2' : '1'; // of the run that had this port before
        leave_address(t, text, bytes);
    }
    free(text);
    shared_folder(t, &run);
    start_process(&run.p[1], run.at, "start=fs n=2 rank=1 timeout=3");
    CHECK(t, process_wait_all(&run.p[1], 1, LIMIT), "does not end");
    CHECK(t, strstr(run.p[1].err.text, NO_ANSWER) != NULL, "%s", run.p[1].err.text);
    start_process(&other.p[1], other.at, "start=fs n=2 rank=1");
    check_all_well_but(t, &other, TURNED_AWAY);
}

// The file with the token is for this user only, while it is there; a file that others may have written is not read.
TEST(test_folder_private) {
    Run run;
    struct stat info;
    memset(&info, 0, sizeof(info));
    run.n = 2;
    shared_folder(t, &run);
    start_process(&run.p[0], run.at, "start=fs n=2 rank=0 do=nothing");
    const char *file = address_file(t, "shared");
    for (double end = seconds_now() + LIMIT; stat(file, &info) != 0 && seconds_now() < end;) { process_pause(); }
    CHECK(t, (info.st_mode & 0777) == 0600, "mode %03o", (unsigned)(info.st_mode & 0777));
    temp_must(chmod(file, 0644) == 0, "chmod");
    start_process(&run.p[1], run.at, "start=fs n=2 rank=1 timeout=1");
    process_wait_all(&run.p[1], 1, LIMIT);
    CHECK(t, strstr(run.p[1].err.text, "others may use it (mode 644)") != NULL, "%s", run.p[1].err.text);
    temp_must(chmod(file, 0600) == 0, "chmod");
    start_process(&run.p[1], run.at, "start=fs n=2 rank=1 do=nothing");
    check_all_well(t, &run);
}

// A link in place of our folder in the shared one would send the address to another folder.
TEST(test_folder_is_a_link) {
    Run run;
    shared_folder(t, &run);
    temp_must(mkdir(run.at, 0777) == 0 && mkdir(test_path(t, "elsewhere"), 0777) == 0, run.at);
    temp_must(symlink("../elsewhere", test_path(t, "shared/gpt2c_start")) == 0, "symlink");
    start_process(&run.p[0], run.at, "start=fs n=2 rank=0");
    process_wait_all(run.p, 1, LIMIT);
    check_message(t, &run.p[0], "rank 0", test_path(t, "shared/gpt2c_start"), "a link is in the way");
}

TEST(test_folder_in_use) {
    Run run;
    DirectoryLock lock;
    Error error;
    char folder[700], begin[800];
    shared_folder(t, &run);
    snprintf(folder, sizeof(folder), "%s/gpt2c_start", run.at);
    bool ok = make_directories(folder, &error) && directory_lock(&lock, folder, &error);
    CHECK(t, ok, "%s", error.text);
    start_process(&run.p[0], run.at, "start=fs n=2 rank=0");
    process_wait_all(run.p, 1, LIMIT);
    snprintf(begin, sizeof(begin), "%s: in use by another process (pid %ld)", folder, (long)getpid());
    check_message(t, &run.p[0], "rank 0", begin, "choose another folder");
    directory_unlock(&lock);
}

// ---- Refusals at the start ----

// A connection to rank 0, which may have to start first.
static int connect_to(const char *at) {
    static Start start;
    struct addrinfo *list;
    Error error;
    int fd = -1;
    meet_parse_address(&start, at, &error);
    temp_must(meet_look_up(start.hosts, start.port, &list, &error), error.text);
    for (double end = seconds_now() + LIMIT; fd < 0 && seconds_now() < end; process_pause()) {
        fd = socket_connect(list);
    }
    freeaddrinfo(list);
    return fd;
}

// A token of this text; NULL: none.
static StarToken token_of(const char *text) {
    StarToken token;
    Error error;
    memset(&token, 0, sizeof(token));
    if (text != NULL) { temp_must(token_take(&token, "", text, &error), error.text); }
    return token;
}

static void must_write(int fd, const void *data, size_t bytes) {
    temp_must(write(fd, data, bytes) == (ssize_t)bytes, "write");
}

// What rank 0 answers; its words are "" if it welcomes.
typedef struct {
    bool answered, half; // half: it shows its half of the token
    char words[COMM_TEXT_BYTES];
} Answer;

// Reads a message of rank 0. words: the reason of a failure.
static bool read_message(int fd, char *words) {
    StarHead head;
    Text said = {NULL, 0, 0, false};
    bool ok = star_read(fd, &head, &said, seconds_now() + LIMIT);
    if (ok && head.kind == TALK_FAILURE) { snprintf(words, COMM_TEXT_BYTES, "%s", said.data); }
    text_free(&said);
    return ok;
}

// Greets rank 0 as a rank would. Returns the socket.
static int greet(const char *at, const char *secret, int rank, int num_ranks, int protocol, bool watches, Answer *got) {
    StarToken token = token_of(secret);
    StarJoin join;
    uint8_t half[TOKEN_HALF];
    int fd = connect_to(at);
    memset(&join, 0, sizeof(join)), memset(got, 0, sizeof(*got));
    memcpy(join.token, token.caller, sizeof(join.token));
    join.protocol = protocol, join.rank = rank, join.num_ranks = num_ranks, join.watches = watches;
    join.who = comm_who_am_i("greeter");
    must_write(fd, &join, sizeof(join));
    got->half = socket_read(fd, half, sizeof(half), seconds_now() + LIMIT) && token_equal(half, token.zero);
    got->answered = got->half && read_message(fd, got->words);
    return fd;
}

// One rank has come (this test, so that there is no doubt about the order); what rank 0 then finds ends it, and that
// rank is told too. watches: that rank has come with both sockets.
static void check_refused(Test *t, int rank, int num_ranks, int protocol, bool watches, const char *expected) {
    Run run;
    Answer got;
    char words[COMM_TEXT_BYTES] = "";
    run.n = 1;
    run_at_free_port(&run, "127.0.0.1");
    start_process(&run.p[0], run.at, "n=3 rank=0 host=a secret=ours");
    int talk = greet(run.at, SECRET, 1, 3, STAR_PROTOCOL, false, &got), watch = -1;
    CHECK(t, got.answered && got.words[0] == '\0', "%s: a good rank is not welcome", expected);
    if (watches) { watch = greet(run.at, SECRET, 1, 3, STAR_PROTOCOL, true, &got); }
    CHECK(t, got.answered && got.words[0] == '\0', "%s: a good watch is not welcome", expected);
    int other = greet(run.at, SECRET, rank, num_ranks, protocol, watches, &got);
    CHECK(t, got.answered && strstr(got.words, expected) != NULL, "%s: not refused: %s", expected, got.words);
    bool told = read_message(talk, words);
    CHECK(t, told && strstr(words, expected) != NULL, "told: '%s', expected '%s'", words, expected);
    int late = greet(run.at, SECRET, 2, 3, STAR_PROTOCOL, false, &got); // one that comes a moment later
    CHECK(t, got.answered && strstr(got.words, expected) != NULL, "%s: told the late one: %s", expected, got.words);
    socket_close(&talk), socket_close(&watch), socket_close(&other), socket_close(&late);
    run_wait_end(t, &run, LIMIT);
    CHECK(t, run.p[0].status == 1 && strstr(run.p[0].err.text, expected) != NULL, "rank 0: %s", run.p[0].err.text);
}

TEST(test_refused) {
    check_refused(t, 1, 3, STAR_PROTOCOL, false, "has that rank already: each process needs its own --process-rank");
    check_refused(t, 1, 3, STAR_PROTOCOL, true, "has that rank already: each process needs its own --process-rank");
    check_refused(t, 2, 3, STAR_PROTOCOL, true, "has that rank already"); // a watch without a talk
    check_refused(t, 0, 3, STAR_PROTOCOL, false, "came, but rank 0 (a, pid ");
    check_refused(t, 3, 3, STAR_PROTOCOL, false, "each a --process-rank below it");
    check_refused(t, -1, 3, STAR_PROTOCOL, false, "each a --process-rank below it");
    check_refused(t, 2, 3, STAR_PROTOCOL + 1, false, "runs another version of the program");
    check_refused(t, 2, 8, STAR_PROTOCOL, false, "was started as one of 8 processes, rank 0 (a, pid ");
}

TEST(test_missing) {
    Run run;
    run.n = 3;
    run_at_free_port(&run, "127.0.0.1");
    // The others have all the time in the world: they end when rank 0's is over.
    start_process(&run.p[0], run.at, "n=6 rank=0 host=a timeout=2");
    start_process(&run.p[1], run.at, "n=6 rank=1 host=a timeout=%g", LIMIT);
    start_process(&run.p[2], run.at, "n=6 rank=4 host=a timeout=%g", LIMIT);
    run_wait_end(t, &run, LIMIT);
    check_messages(t, &run, -1, "no connection within 2 s (--start-timeout) from rank 2, 3, 5 of 6: are they started",
                   "(a)?");
    double apart = run.p[1].end_time - run.p[0].end_time;
    CHECK(t, apart < 10.0, "rank 1 ends %g s after rank 0", apart);
}

// What one process alone finds out: nobody answers, the address is wrong or in use, or it may mean another machine and
// there is no token.
TEST(test_alone) {
#define NO_SECRET                                                                                                      \
    "without a secret the ranks are on one machine, and this must be localhost, 127.0.0.1 or [::1]:PORT; for several "
    int fd = meet_listen(0, true);
    char taken[64], free[64];
    snprintf(taken, sizeof(taken), "127.0.0.1:%d", meet_port(fd)),
        snprintf(free, sizeof(free), "127.0.0.1:%d", free_port());
    struct {
        const char *at, *options, *begin, *inside;
    } cases[] = {
        {free, "rank=1 timeout=1", "rank 1 (a) cannot reach rank 0 within 1 s (--start-t", ": Connection refused;"},
        {"192.0.2.1", "rank=1 timeout=1 secret=ours", "rank 1 (a) cannot reach rank 0 within 1 s", "come between?"},
        {"no-such..host", "rank=1 timeout=1 secret=ours", "rank 1 (a) cannot reach rank 0 within 1 s",
         ": no-such..host: no such address: "},
        {"no-such..host", "rank=1", "--server-ip no-such..host: ", NO_SECRET},
        {"127.evil.com", "rank=1", "--server-ip 127.evil.com: ", NO_SECRET},
        {taken, "rank=0", "--server-ip 127.0.0.1:", "rank 0 (a) cannot listen at this port: Address already in use"},
        {"192.0.2.1", "rank=0", "--server-ip 192.0.2.1: ", NO_SECRET},
        {"192.0.2.1", "rank=1", "--server-ip 192.0.2.1: ", NO_SECRET},
        {"0.0.0.0", "rank=0", "--server-ip 0.0.0.0: ", NO_SECRET},
        {"0.0.0.0", "rank=1", "--server-ip 0.0.0.0: ", NO_SECRET},
        {"[::]:29500", "rank=0", "--server-ip ::: ", NO_SECRET},
        {"[2001:db8::1]:29500", "rank=1", "--server-ip 2001:db8::1: ", NO_SECRET}};
    enum { CASES = sizeof(cases) / sizeof(cases[0]) };
    static Process p[CASES];
    for (int i = 0; i < CASES; i++) { start_process(&p[i], cases[i].at, "n=2 host=a %s timeout=5", cases[i].options); }
    CHECK(t, process_wait_all(p, CASES, LIMIT), "they do not end");
    for (int i = 0; i < CASES; i++) {
        check_message(t, &p[i], cases[i].at, cases[i].begin, "");
        CHECK(t, strstr(p[i].err.text, cases[i].inside) != NULL, "case %d: %s", i, p[i].err.text);
    }
    close(fd);
}

// Something else listens at rank 0's address: it is silent, answers in its own language, or hangs up.
TEST(test_other_program) {
    for (int i = 0; i < 3; i++) {
        Process p;
        char at[64];
        int fd = meet_listen(0, true), caller = -1;
        snprintf(at, sizeof(at), "127.0.0.1:%d", meet_port(fd));
        start_process(&p, at, "n=2 rank=1 timeout=1");
        while (i > 0 && !p.ended) { // it may come several times
            if (socket_wait(fd, POLLIN, seconds_now() + 0.05) && (caller = accept(fd, NULL, NULL)) >= 0) {
                if (i == 1) {
                    ssize_t n = write(caller, "SSH-2.0-OpenSSH_9.2 and some more text\r\n", 40);
                    (void)n; // it may have gone again
                    socket_wait(caller, POLLIN, seconds_now() + 1.0);
                }
                socket_close(&caller);
            }
            process_look(&p);
        }
        CHECK(t, process_wait_all(&p, 1, LIMIT), "does not end");
        CHECK(t, p.status == 1 && strstr(p.err.text, NO_ANSWER) != NULL, "%d: %s", i, p.err.text);
        close(fd);
    }
}

// What callers that know no token, or a wrong one, say about themselves ends no run, and they do not come in: each
// alone is told, or sent away.
static void check_wrong_callers(Test *t, const char *ours) {
    static const int wrong[][3] = {{1, 3, STAR_PROTOCOL},  {1, 4, STAR_PROTOCOL},        {3, 3, STAR_PROTOCOL},
                                   {-1, 3, STAR_PROTOCOL}, {0, 3, STAR_PROTOCOL},        {2, 3, STAR_PROTOCOL + 1},
                                   {2, 3, INT32_MIN},      {INT32_MAX, 3, STAR_PROTOCOL}};
    Run run;
    int first = ours == NULL; // without a token, the first one is right
    run_at_free_port(&run, "127.0.0.1");
    const char *said = ours != NULL ? "secret=ours" : "";
    start_process(&run.p[0], run.at, "n=3 rank=0 host=a %s", said);
    for (int i = first; i < 8; i++) {
        for (int other = 0; other < (ours != NULL ? 2 : 1); other++) {
            Answer got;
            int fd = greet(run.at, other ? OTHER_SECRET : NULL, wrong[i][0], wrong[i][1], wrong[i][2], false, &got);
            CHECK(t, ours != NULL ? !got.half : got.words[0] != '\0', "case %d: answered %d: %s", i, got.answered,
                  got.words);
            socket_close(&fd);
        }
    }
    for (int i = 1; i < 3; i++) { start_process(&run.p[i], run.at, "n=3 rank=%d %s", i, said); }
    run.n = 3;
    check_all_well_but(t, &run, ours != NULL ? TURNED_AWAY "16\n" : TURNED_AWAY "7\n");
}

TEST(test_wrong_callers) {
    check_wrong_callers(t, SECRET);
    check_wrong_callers(t, NULL);
}

// Answers a caller as rank 0 would. words: "": it is welcome; bytes: as many as are announced.
static void play_answer(int fd, const StarToken *token, int64_t bytes, const char *words) {
    CommWho zero = comm_who_am_i("a");
    StarHead head;
    memset(&head, 0, sizeof(head));
    socket_write(fd, token->zero, TOKEN_HALF, 0.0);
    if (words[0] == '\0') { star_say(fd, head, TALK_RESULT, &zero, sizeof(zero)); }
    head.kind = TALK_FAILURE, head.bytes = bytes;
    if (words[0] != '\0') { socket_write(fd, &head, sizeof(head), 0.0), socket_write(fd, words, strlen(words), 0.0); }
}

// Each byte of the token counts, on both sides: a caller that knows all but one is turned away, and a rank 0 that
// answers all but one is not believed, whatever it says then.
TEST(test_tokens) {
    StarToken ours = token_of(SECRET), other;
    for (int i = 0; i < TOKEN_HALF; i++) {
        other = ours;
        CHECK(t, token_equal(other.caller, ours.caller), "equal tokens are not");
        other.caller[i] ^= (uint8_t)(1 << i % 8);
        CHECK(t, !token_equal(other.caller, ours.caller), "byte %d does not count", i);
    }
    CHECK(t, ours.caller[0] == 0x01 && ours.caller[15] == 0xef && ours.zero[0] == 0xfe && ours.zero[15] == 0x10,
          "the digits are read wrongly");
    int fd = meet_listen(0, true);
    char at[64];
    Process p;
    other = ours, other.zero[15] ^= 1;
    snprintf(at, sizeof(at), "127.0.0.1:%d", meet_port(fd));
    start_process(&p, at, "n=2 rank=1 host=a secret=ours timeout=2");
    while (!p.ended) {
        StarJoin join;
        int caller = socket_wait(fd, POLLIN, seconds_now() + 0.05) ? accept(fd, NULL, NULL) : -1;
        if (caller >= 0 && socket_read(caller, &join, sizeof(join), seconds_now() + LIMIT)) {
            CHECK(t, token_equal(join.token, ours.caller), "the caller shows something else");
            play_answer(caller, &other, 7, "go away");
            socket_hang_up(&caller, seconds_now() + 1.0);
        }
        socket_close(&caller);
        process_look(&p);
    }
    check_message(t, &p, "rank 1", "rank 1 (a) cannot reach rank 0 within 2 s", "come between?");
    CHECK(t, strstr(p.err.text, NO_ANSWER) != NULL, "%s", p.err.text);
    close(fd);
}

// Ranks with unlike secrets say so; each waits for the right one as long as it may.
TEST(test_unlike_secrets) {
    static const char *const secrets[][2] = {{"secret=ours", "secret=other"}, {"secret=ours", ""}, {"", "secret=ours"}};
    static Run runs[3];
    for (int i = 0; i < 3; i++) {
        run_at_free_port(&runs[i], "127.0.0.1");
        start_process(&runs[i].p[0], runs[i].at, "n=2 rank=0 host=a timeout=4 %s", secrets[i][0]);
    }
    for (int i = 0; i < 3; i++) {
        int fd = connect_to(runs[i].at); // rank 0 is there
        start_process(&runs[i].p[1], runs[i].at, "n=2 rank=1 host=a timeout=3 %s", secrets[i][1]);
        socket_close(&fd);
    }
    for (int i = 0; i < 3; i++) {
        runs[i].n = 2;
        run_wait_end(t, &runs[i], LIMIT);
        check_message(t, &runs[i].p[0], "rank 0", "no connection within 4 s (--start-timeout) from rank 1 of 2", "");
        check_message(t, &runs[i].p[1], "rank 1", "rank 1 (a) cannot reach rank 0 within 3 s", "come between?");
        CHECK(t, strstr(runs[i].p[0].err.text, TURNED_AWAY) != NULL, "rank 0: %s", runs[i].p[0].err.text);
        CHECK(t, strstr(runs[i].p[1].err.text, NO_ANSWER) != NULL, "rank 1: %s", runs[i].p[1].err.text);
    }
}

static bool answers(const char *host, int port) {
    struct addrinfo *list;
    Error error;
    temp_must(meet_look_up(host, port, &list, &error), error.text);
    int fd = socket_connect(list);
    bool answered = fd >= 0;
    freeaddrinfo(list);
    socket_close(&fd);
    return answered;
}

// Rank 0 listens at all addresses of its machine with a secret, and at 127.0.0.1 alone without one.
TEST(test_listens) {
    char all[256];
    meet_own_addresses(all, sizeof(all));
    char *third = strstr(all, "::1 "), *own = third != NULL ? third + 4 : all + strlen(all);
    own[strcspn(own, " ")] = '\0';
    for (int i = 0; i < 4; i++) {
        Run run;
        bool secret = i >= 2;
        run_at_free_port(&run, i % 2 == 0 ? "127.0.0.2" : "localhost");
        int port = atoi(strrchr(run.at, ':') + 1);
        start_process(&run.p[0], run.at, "n=2 rank=0 %s", secret ? "secret=ours" : "");
        while (!answers("127.0.0.1", port) && !run.p[0].ended) { process_look(&run.p[0]); }
        CHECK(t, !run.p[0].ended, "%s: does not listen: %s", run.at, run.p[0].err.text);
        CHECK(t, answers("127.0.0.3", port) == secret, "%s: 127.0.0.3, with a secret: %d", run.at, secret);
        CHECK(t, own[0] == '\0' || answers(own, port) == secret, "%s: %s, with a secret: %d", run.at, own, secret);
        process_signal(&run.p[0], SIGKILL);
        process_wait_all(run.p, 1, LIMIT);
    }
}

// A token comes from a file that only its owner may use, or from the environment, and has 64 digits.
TEST(test_secret_files) {
    static const struct {
        const char *text;
        int mode;
        const char *expected; // NULL: taken
    } cases[] = {{SECRET "\n", 0600, NULL},
                 {SECRET "\r\n", 0400, NULL},
                 {SECRET, 0640, "others may use it (mode 640), expected 600: chmod 600"},
                 {SECRET, 0602, "others may use it (mode 602)"},
                 {SECRET "0", 0600, "expected 64 hexadecimal digits"},
                 {SECRET "\nx", 0600, "expected 64 hexadecimal digits"},
                 {SECRET SECRET, 0600, "expected 64 hexadecimal digits"},
                 {"g" SECRET, 0600, "expected 64 hexadecimal digits"},
                 {"too short\n", 0600, "expected 64 hexadecimal digits"},
                 {"", 0600, "expected 64 hexadecimal digits"}};
    const char *file = test_path(t, "secret"), *pipe = test_path(t, "pipe");
    StarToken token, same = token_of(SECRET);
    Error error;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        unlink(file);
        temp_write(file, cases[i].text, strlen(cases[i].text));
        chmod(file, (mode_t)cases[i].mode);
        bool ok = token_find(&token, file, &error);
        CHECK(t, ok == (cases[i].expected == NULL), "case %zu: %d %s", i, ok, error.text);
        if (ok) { CHECK(t, token.known && memcmp(&token, &same, sizeof(same)) == 0, "case %zu: another token", i); }
        if (!ok) { CHECK(t, strstr(error.text, cases[i].expected) != NULL, "case %zu: %s", i, error.text); }
        if (!ok) { CHECK(t, strstr(error.text, "too short") == NULL, "the token is printed: %s", error.text); }
    }
    temp_must(mkfifo(pipe, 0600) == 0, "mkfifo");
    CHECK(t, !token_find(&token, pipe, &error), "waits for a pipe, or takes it");
    unlink(file);
    temp_write(file, SECRET, strlen(SECRET));
    if (geteuid() == 0 && chmod(file, 0600) == 0 && chown(file, 12345, 0) == 0) {
        CHECK(t, !token_find(&token, file, &error) && strstr(error.text, "belongs to user 12345") != NULL, "%s",
              error.text);
    }
    setenv(TOKEN_VARIABLE, SECRET, 1);
    CHECK(t, token_find(&token, NULL, &error) && memcmp(&token, &same, sizeof(same)) == 0, "%s", error.text);
    CHECK(t, getenv(TOKEN_VARIABLE) == NULL, "the environment still has it");
    CHECK(t, token_find(&token, "", &error) && !token.known, "a token without one");
    setenv(TOKEN_VARIABLE, "short", 1);
    CHECK(t, !token_find(&token, NULL, &error) && strstr(error.text, TOKEN_VARIABLE ": expected 64") != NULL, "%s",
          error.text);
    unsetenv(TOKEN_VARIABLE);
}

// A port that the network can see gets garbage, silence, and half a greeting. The run starts nevertheless.
TEST(test_strangers) {
    Run run;
    char whole[300];
    int fds[5];
    run_at_free_port(&run, "127.0.0.1");
    start_process(&run.p[0], run.at, "n=3 rank=0 secret=ours");
    memset(whole, 1, sizeof(whole));
    for (int i = 0; i < 5; i++) { fds[i] = connect_to(run.at); }
    must_write(fds[0], "GET / HTTP/1.1\r\nHost: x\r\n\r\n", 27);
    must_write(fds[1], whole, sizeof(StarJoin) / 2);
    socket_close(&fds[1]);
    StarToken token = token_of(SECRET);
    must_write(fds[2], token.caller, TOKEN_HALF); // no more than the token; fds[3] says nothing
    must_write(fds[4], whole, sizeof(whole));     // more than any greeting
    char byte;
    for (int i = 0; i < 5; i += 2) {
        socket_wait(fds[i], POLLIN, seconds_now() + LIMIT);
        CHECK(t, recv(fds[i], &byte, 1, 0) <= 0 && !socket_would_wait(), "garbage %d is not sent away", i);
    }
    for (int i = 1; i < 3; i++) { start_process(&run.p[i], run.at, "n=3 rank=%d secret=ours", i); }
    run.n = 3;
    check_all_well_but(t, &run, TURNED_AWAY "5\n");
    socket_close(&fds[0]), socket_close(&fds[2]), socket_close(&fds[3]), socket_close(&fds[4]);
}

// More silent connections than rank 0 listens to at once, and none of them ends: the oldest give way.
TEST(test_many_silent) {
    enum { SILENT = 500 };
    Run run;
    int fds[SILENT];
    run_at_free_port(&run, "127.0.0.1");
    start_process(&run.p[0], run.at, "n=2 rank=0 secret=ours");
    for (int i = 0; i < SILENT; i++) { fds[i] = connect_to(run.at); }
    double began = process_now();
    start_process(&run.p[1], run.at, "n=2 rank=1 secret=ours");
    run.n = 2;
    check_all_well_but(t, &run, TURNED_AWAY "500\n");
    CHECK(t, run.p[1].end_time - began < STAR_GREETING_SECONDS / 2, "rank 1 waits for silent callers");
    for (int i = 0; i < SILENT; i++) { socket_close(&fds[i]); }
}

// A rank that has come and then dies ends the start, with one socket or both; so does rank 0.
TEST(test_death_while_starting) {
    for (int both = 0; both < 2; both++) {
        Run run;
        Answer got;
        char begin[100];
        run.n = 2;
        run_at_free_port(&run, "127.0.0.1");
        start_process(&run.p[0], run.at, "n=4 rank=0 host=a");
        int talk = greet(run.at, NULL, 1, 4, STAR_PROTOCOL, false, &got), watch = -1;
        if (both) { watch = greet(run.at, NULL, 1, 4, STAR_PROTOCOL, true, &got); }
        start_process(&run.p[1], run.at, "n=4 rank=2 host=b timeout=5");
        CHECK(t, got.answered && got.words[0] == '\0', "not welcome");
        rank_sleep(0.2);
        socket_close(&talk), socket_close(&watch);
        run_wait_end(t, &run, LIMIT);
        snprintf(begin, sizeof(begin), "rank 1 (greeter, pid %d) ended without a word", (int)getpid());
        check_message(t, &run.p[0], "rank 0", begin, "crashed?)");
        CHECK(t, run.p[1].status == 1, "rank 2 has started alone: %s", run.p[1].out.text);
    }
}

// A caller that has given up, as while rank 0 was stopped, and comes again is no dead rank.
TEST(test_given_up) {
    Run run;
    StarJoin join;
    run.n = 2;
    run_at_free_port(&run, "127.0.0.1");
    start_process(&run.p[0], run.at, "n=2 rank=0 host=a");
    int fd = connect_to(run.at);
    process_signal(&run.p[0], SIGSTOP);
    socket_close(&fd);
    fd = connect_to(run.at);
    memset(&join, 0, sizeof(join));
    join.protocol = STAR_PROTOCOL, join.rank = 1, join.num_ranks = 2, join.who = comm_who_am_i("b");
    must_write(fd, &join, sizeof(join));
    socket_close(&fd);
    process_signal(&run.p[0], SIGCONT);
    rank_sleep(0.2);
    start_process(&run.p[1], run.at, "n=2 rank=1 host=b");
    run_wait_end(t, &run, LIMIT);
    CHECK(t, run.p[0].status == 0 && run.p[1].status == 0, "%s%s", run.p[0].err.text, run.p[1].err.text);
}

// Plays rank 0, without a token, for the next caller's socket.
static int play_zero(Test *t, int listener, int64_t bytes, const char *words) {
    StarJoin join;
    StarToken none = token_of(NULL);
    socket_wait(listener, POLLIN, seconds_now() + LIMIT);
    int fd = accept(listener, NULL, NULL);
    CHECK(t, fd >= 0 && socket_read(fd, &join, sizeof(join), seconds_now() + LIMIT), "no greeting");
    play_answer(fd, &none, bytes, words);
    return fd;
}

// Starts rank 1, whose rank 0 is this test.
static int play_rank_one(Process *p, const char *options) {
    char at[64];
    int fd = meet_listen(0, true);
    snprintf(at, sizeof(at), "127.0.0.1:%d", meet_port(fd));
    start_process(p, at, "n=2 rank=1 %s", options);
    return fd;
}

// Rank 0 welcomes, and then closes the connection, or lives on and does nothing, longer than rank 1 may wait.
TEST(test_rank_zero_while_starting) {
    static const char *const expected[] = {"rank 0 (a, pid %d) has ended (in order, killed, or crashed?)",
                                           "rank 0 (a) has come, but does not begin the run within the time (--start-"};
    for (int i = 0; i < 2; i++) {
        Process p;
        char begin[100];
        int fd = play_rank_one(&p, "timeout=1"), talk = play_zero(t, fd, 0, ""), watch = play_zero(t, fd, 0, "");
        if (i == 0) { socket_close(&talk), socket_close(&watch); }
        CHECK(t, process_wait_all(&p, 1, LIMIT), "does not end");
        snprintf(begin, sizeof(begin), expected[i], (int)getpid());
        check_message(t, &p, "rank 1", begin, "");
        socket_close(&talk), socket_close(&watch), close(fd);
    }
}

// ---- How a run ends ----

// A run whose ranks end by themselves. All but rank `except` say a message with this begin and this end; without one,
// they end well and in silence. Rank `except` says `own`, or ends well too.
typedef struct {
    const char *options;
    int n, except;
    const char *begin, *end, *own;
} Outcome;

static void check_outcome(Test *t, Run *run, const Outcome *outcome) {
    run_wait_end(t, run, LIMIT);
    if (outcome->begin == NULL) {
        check_all_well(t, run);
        return;
    }
    check_messages(t, run, outcome->except, outcome->begin, outcome->end);
    Process *own = outcome->except >= 0 ? &run->p[outcome->except] : NULL;
    if (own != NULL && outcome->own == NULL) { CHECK(t, own->status == 0, "%s", own->err.text); }
    if (outcome->own != NULL) { check_message(t, own, outcome->options, outcome->own, outcome->own); }
}

// ---- Ranks that end, die, stop, hang ----

// Many ranks of one machine join in some seconds.
TEST(test_many_ranks) {
    enum { MANY = 300 };
    Process *p = (Process *)calloc(MANY, sizeof(Process));
    Run run;
    run_at_free_port(&run, "127.0.0.1");
    double began = process_now(), opened = 0.0;
    for (int i = MANY - 1; i >= 0; i--) { start_process(&p[i], run.at, "n=%d rank=%d do=nothing", MANY, i); }
    CHECK(t, process_wait_text(&p[0], "open ", LIMIT), "rank 0 does not open: %s", p[0].err.text);
    opened = process_now();
    CHECK(t, process_wait_all(p, MANY, LIMIT), "do not end");
    for (int i = 0; i < MANY; i++) {
        CHECK(t, p[i].status == 0 && p[i].err.text[0] == '\0', "rank %d: %d %s", i, p[i].status, p[i].err.text);
    }
    CHECK(t, opened - began < LIMIT / 2, "%d ranks take %g s", MANY, opened - began);
    if (getenv("TEST_VERBOSE") != NULL) {
        printf("%d ranks: open after %.2f s, ended after %.2f s\n", MANY, opened - began, process_now() - began);
    }
    free(p);
}

// Many short runs whose ranks end together: no rank may take another's end for a death.
TEST(test_ending_together) {
    for (int i = 0; i < 12 && t->failures == 0; i++) {
        Run run;
        run_start(&run, 2 + i % 4, i % 3 == 0 ? "do=nothing" : "do=agree who=100");
        check_all_well(t, &run);
    }
}

static void check_death(Test *t, const char *action, int victim, bool resumable) {
    Run run;
    char options[64], begin[100], end[200];
    snprintf(options, sizeof(options), "do=%s who=%d resumable=%d", action, victim, resumable);
    run_start(&run, 4, options);
    if (!run_wait_open(t, &run)) {
        run_wait_end(t, &run, 0.0);
        return;
    }
    double began = process_now();
    process_signal(&run.p[victim], SIGKILL);
    run_wait_end(t, &run, LIMIT);
    for (int i = 0; i < 4; i++) {
        CHECK(t, run.p[i].end_time - began < LIMIT / 2, "rank %d took %g s", i, run.p[i].end_time - began);
    }
    CHECK(t, run.p[victim].status == 128 + SIGKILL, "the victim: %d", run.p[victim].status);
    snprintf(begin, sizeof(begin), "rank %d (host%d, pid %d) ended without a word (killed, or crashed?)", victim,
             victim, (int)run.p[victim].pid);
    snprintf(end, sizeof(end), "crashed?)%s", resumable ? COMM_REMEDY : "");
    check_messages(t, &run, victim, begin, end);
}

TEST(test_killed) {
    check_death(t, "wait", 2, true);
    check_death(t, "wait", 0, true);
    check_death(t, "compute", 3, false);
    check_death(t, "compute", 0, false);
    Run run; // an error that is the consequence of a death
    run_start(&run, 3, "do=consequence who=1");
    run_wait_end(t, &run, LIMIT);
    check_messages(t, &run, 1, "rank 1 (host1, pid ", "ended without a word (killed, or crashed?)");
    run_start(&run, 2, "do=mute who=1"); // the alarm ends rank 0
    run_wait_end(t, &run, LIMIT);
    CHECK(t, run.p[0].status == 1 && run.p[0].err.text[0] == '\0', "%d %s", run.p[0].status, run.p[0].err.text);
    run_start(&run, 4, "do=compute"); // two at once: one of them is named
    if (run_wait_open(t, &run)) { process_signal(&run.p[0], SIGKILL), process_signal(&run.p[2], SIGKILL); }
    run_wait_end(t, &run, LIMIT);
    for (int i = 1; i < 4; i += 2) {
        CHECK(t, run.p[i].status == 1 && strstr(run.p[i].err.text, "ended without a word") != NULL, "rank %d: %s", i,
              run.p[i].err.text);
    }
}

// A watch over two ranks that has not begun.
static Watch *watch_of_two(int rank) {
    CommOptions options;
    Error error;
    Comm *comm = (Comm *)calloc(1, sizeof(Comm));
    Watch *w = (Watch *)malloc(sizeof(Watch));
    memset(&options, 0, sizeof(options));
    temp_must(comm != NULL && w != NULL && comm_create(comm, &options, rank, 2, &error), "malloc");
    comm->peers[0].who = comm->peers[1].who = comm_who_am_i("host");
    watch_begin(w, comm);
    return w;
}

static void free_watch(Watch *w) {
    comm_free(w->comm);
    free(w->comm), free(w);
}

// A caller that says nothing has STAR_GREETING_SECONDS.
TEST(test_silent_callers) {
    for (int late = 0; late < 2; late++) {
        static Start s;
        Error error;
        int fds[2];
        Watch *w = watch_of_two(0);
        start_begin(&s, w->comm);
        temp_must(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0, "socketpair");
        s.callers[3] = fds[0], s.came[3] = seconds_now() - late * (STAR_GREETING_SECONDS + 0.1);
        CHECK(t, star_hear(&s, 3, &error), "the run ends: %s", error.text);
        CHECK(t, (s.callers[3] < 0) == late && s.num_strangers == late, "late %d: %d", late, s.callers[3]);
        socket_close(&s.callers[3]), close(fds[1]);
        free_watch(w);
    }
}

// Each rank must bring a zero or a text, and a text without a zero of its own is not read beyond its end.
TEST(test_texts_end) {
    static const struct {
        const char *bytes;
        size_t count;
        const char *says; // NULL: all are well
    } cases[] = {{"\0\0", 2, NULL},
                 {"\0late\0", 6, "rank 1 (host, pid "},
                 {"a\0b\0", 4, ": a"},
                 {"\0ab", 3, ": ab"},
                 {"", 0, "something else"},
                 {"\0", 1, "something else"},
                 {"\0\0\0", 3, "something else"}};
    Watch *w = watch_of_two(0);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        Text all = {(char *)malloc(cases[i].count + 1), cases[i].count, cases[i].count + 1, false};
        Error error = {""};
        memcpy(all.data, cases[i].bytes, cases[i].count);
        all.data[cases[i].count] = '\0';
        bool ok = comm_all_well(w->comm, &all, &error);
        CHECK(t, ok == (cases[i].says == NULL) && (ok || strstr(error.text, cases[i].says) != NULL), "case %zu: %d %s",
              i, ok, error.text);
        text_free(&all);
    }
    free_watch(w);
}

// The head of an exchange may lack its final zero, be of another kind or promise more than there may be: what lies
// behind it is not read, and no memory is taken.
TEST(test_heads_make_sense) {
    static const struct {
        uint32_t kind;
        int64_t bytes;
        bool good;
    } cases[] = {
        {TALK_MINE, 8, true}, {TALK_MINE, STAR_MAX_BYTES + 1, false}, {TALK_MINE, -1, false},  {TALK_RESULT, 8, false},
        {0, 8, false},        {TALK_MINE, INT64_MAX, false},          {TALK_FAILURE, 8, false}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        Watch *w = watch_of_two(0);
        StarHead head, zero;
        Text all = {NULL, 0, 0, false};
        Error error;
        int fds[2];
        memset(&head, 0, sizeof(head)), memset(&zero, 0, sizeof(zero));
        head.kind = cases[i].kind, head.bytes = cases[i].bytes;
        memset(head.name, 'n', sizeof(head.name));
        temp_must(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0, "socketpair");
        w->comm->peers[1].talk = fds[0];
        must_write(fds[1], &head, sizeof(head)), must_write(fds[1], "12345678", 8);
        shutdown(fds[1], SHUT_WR);
        bool ok = star_receive(w->comm, 1, "a sum", &head, &all, &error);
        CHECK(t, ok == cases[i].good && all.capacity < 1 << 20, "case %zu: %d", i, ok);
        if (ok) {
            CHECK(t, !star_check_head(w->comm, &zero, 1, &head, &error), "another name was taken");
            CHECK(t, strstr(error.text, "nn of 0") != NULL, "%s", error.text);
        }
        text_free(&all);
        close(fds[1]);
        free_watch(w);
    }
}

// A beat with times that are no numbers is refused: they would never be too long.
TEST(test_beats_make_sense) {
    Watch *w = watch_of_two(0);
    const double none = 0.0, infinite = 1.0 / none, nan = none / none;
    const double times[][2] = {{0, 0},        {7, 45},         {nan, 45}, {7, nan}, {infinite, 45},
                               {7, infinite}, {-infinite, 45}, {-1, 45},  {7, -1}};
    for (size_t i = 0; i < sizeof(times) / sizeof(times[0]); i++) {
        CommBeat beat;
        memset(&beat, 0, sizeof(beat));
        beat.kind = BEAT_ALIVE, beat.idle = times[i][0], beat.limit = times[i][1];
        CHECK(t, watch_take(w, 1, &beat) == (i < 2), "case %zu", i);
        memset(beat.phase, 'x', sizeof(beat.phase));
        CHECK(t, !watch_take(w, 1, &beat), "case %zu: a phase without an end", i);
    }
    free_watch(w);
}

// A watch that has heard of the other rank `silent` seconds before a round that began `ago` seconds before now, and
// whose own rank has got no further for as long.
static Watch *watch_at(int rank, double silent, double ago) {
    Watch *w = watch_of_two(rank);
    w->comm->options.silence = w->comm->options.watchdog = 3.0;
    w->round = seconds_now() - ago;
    w->comm->peers[1 - rank].watch = open("/dev/null", O_RDWR);
    w->comm->since = w->comm->peers[1 - rank].heard = w->round - silent;
    return w;
}

static void check_round(Test *t, Watch *w, bool begins, Verdict silence, Verdict progress) {
    if (begins) { watch_begin_round(w); }
    w->verdict = VERDICT_NONE;
    watch_judge_silence(w);
    CHECK(t, w->verdict == silence, "silence: verdict %d, expected %d: %s", w->verdict, silence, w->words.text);
    w->verdict = VERDICT_NONE;
    watch_judge_progress(w);
    CHECK(t, w->verdict == progress, "progress: verdict %d, expected %d: %s", w->verdict, progress, w->words.text);
}

// A process that was stopped has heard of nobody and got no further meanwhile, wherever in a round that was: between
// its beginning and its judgement, or while it waits for the next.
TEST(test_stopped_in_a_round) {
    for (int rank = 0; rank < 2; rank++) {
        Watch *w = watch_at(rank, 0.2, 4.0);
        CommPeer *peer = &w->comm->peers[1 - rank];
        check_round(t, w, false, VERDICT_NONE, VERDICT_NONE);
        check_round(t, w, true, VERDICT_NONE, VERDICT_NONE);
        w->round -= 3.5, w->comm->since -= 3.5, peer->heard -= 3.5; // again
        check_round(t, w, true, VERDICT_NONE, VERDICT_NONE);
        w->round -= 3.5; // both since the stop: a later silence must not be excused as well
        watch_begin_round(w);
        CHECK(t, peer->heard <= w->round && w->comm->since <= w->round, "rank %d: the future is excused", rank);
        free_watch(w);
        w = watch_at(rank, 3.1, 0.0);
        check_round(t, w, true, VERDICT_SILENT, VERDICT_HANGS);
        free_watch(w);
    }
}

// Time counts from the beginning and the end of a slow phase and of a wait, and only from there.
TEST(test_changes_start_the_clock) {
    Watch *w = watch_of_two(0);
    for (int i = 0; i < 8; i++) {
        bool value = i / 2 % 2 == 0, changes = i % 2 == 0;
        w->comm->since = 0.0;
        if (i < 4) { comm_slow(w->comm, value); }
        if (i >= 4) { comm_waits(w->comm, value); }
        CHECK(t, (w->comm->since > 0.0) == changes, "case %d: since %g", i, w->comm->since);
    }
    free_watch(w);
}

// ---- How runs end by themselves, and when ranks are stopped: all at once, because most of them wait ----

#define MISMATCH "the ranks do not do the same: rank 2 (host2) is in exchange 1, "
static const Outcome outcomes[] = {
    {"do=exchanges", 1, -1, NULL, NULL, NULL},
    {"do=exchanges", 2, -1, NULL, NULL, NULL},
    {"do=exchanges", 8, -1, NULL, NULL, NULL},
    {"do=large", 3, -1, NULL, NULL, NULL},
    {"do=agree who=1", 4, -1, "rank 1 (host1): disk full on 1", "disk full on 1", NULL},
    {"do=facts", 3, -1, NULL, NULL, NULL},
    {"do=facts who=2", 3, -1, "rank 2 (host2): --seq-len is 32, but 64 on rank 0 (host0)", "(host0)", NULL},
    {"do=facts who=1 fact=--new", 2, -1, "rank 1 (host1): runs another program than rank 0 (host0): ", "'--new'", NULL},
    {"do=mismatch who=2 how=name", 4, -1, MISMATCH "a sum of 8 bytes; rank 0 (host0) in exchange 1, numbers of 8",
     "bytes", NULL},
    {"do=mismatch who=2 how=size", 4, -1, MISMATCH "numbers of 16 bytes; rank 0 (host0) in exchange 1, numbers of 8",
     "bytes", NULL},
    {"do=mismatch who=2 how=broadcast", 4, -1,
     MISMATCH "a broadcast of 16 bytes; rank 0 (host0) in exchange 1, a broadcast of 8", "bytes", NULL},
    {"do=leave who=0", 3, -1, NULL, NULL, NULL},
    {"do=leave who=1", 3, -1, NULL, NULL, NULL},
    {"do=leave how=miss who=0", 3, 0, "rank 0 (host0) has ended (in order, ", "in a sum", NULL},
    {"do=leave how=miss who=1", 3, 1, "rank 1 (host1) has ended (in order, ", "in a sum", NULL},
    {"do=fail who=2 how=wait", 4, 2, "rank 2 (host2): no more paper", "paper", "no more paper"},
    {"do=fail who=0 how=wait", 4, 0, "rank 0 (host0): no more paper", "paper", "no more paper"},
    {"do=fail who=3 how=compute", 4, 3, "rank 3 (host3): no more paper", "paper", "no more paper"},
    {"do=fail who=0 how=compute", 4, 0, "rank 0 (host0): no more paper", "paper", "no more paper"},
    // All fail at once: each says it itself, or is told it by another.
    {"do=fail", 5, -1, "", "no more paper", NULL},

    {"do=hang who=0 watchdog=1.5 resumable=1", 3, -1, "rank 0 (host0) hangs: no progress for ",
     " s (--watchdog) in step 1" COMM_REMEDY, NULL},
    {"do=hang who=2 watchdog=1.5 resumable=1", 3, -1, "rank 2 (host2) hangs: no progress for ",
     " s (--watchdog) in step 1" COMM_REMEDY, NULL},
    {"do=hang how=all who=1 watchdog=1.5", 3, -1, "rank 1 (host1) waits, as all ranks do: a rank has ended, ",
     "(--watchdog) in step 1", NULL},
    // All wait for a rank that has ended.
    {"do=leave how=gpu who=0 watchdog=1.5", 3, 0, "rank ", "s (--watchdog) in the start", NULL},
    {"do=leave how=gpu who=1 watchdog=1.5", 3, 1, "rank ", "s (--watchdog) in the start", NULL},
    // Longer than the watchdog allows, but announced. The other ranks wait, and are not blamed either.
    {"do=slow who=0 seconds=5 watchdog=3", 3, -1, NULL, NULL, NULL},
};
enum { NUM_OUTCOMES = sizeof(outcomes) / sizeof(outcomes[0]) };
static Run runs[NUM_OUTCOMES], stopped[2], pausing[3];

// Ranks 0 and 1 are stopped for good, each in its run.
static void stop_for_good(Test *t) {
    for (int victim = 0; victim < 2; victim++) {
        if (run_wait_open(t, &stopped[victim])) { process_signal(&stopped[victim].p[victim], SIGSTOP); }
    }
}

// Stopped for less than the silence that is allowed (rank 0, or 1), or all together (a virtual machine is moved, say):
// nobody is blamed, the run goes on.
static void check_stopped_for_a_while(Test *t) {
    for (int i = 0; i < 3; i++) {
        if (!run_wait_open(t, &pausing[i])) { continue; }
        for (int r = 0; r < 3; r++) {
            if (i == 2 || r == i) { process_signal(&pausing[i].p[r], SIGSTOP); }
        }
    }
    rank_sleep(4.0);
    for (int i = 0; i < 3; i++) {
        for (int r = 0; r < 3; r++) { process_signal(&pausing[i].p[r], SIGCONT); }
    }
    for (int i = 0; i < 3; i++) { check_all_well(t, &pausing[i]); }
}

static void check_stopped(Test *t) {
    for (int victim = 0; victim < 2; victim++) {
        Run *run = &stopped[victim];
        char begin[100];
        for (int i = 0; i < 3; i++) { // the other ranks end while it is still stopped
            if (i != victim) { process_wait_text(&run->p[i], "never", LIMIT); }
        }
        process_signal(&run->p[victim], SIGCONT);
        run_wait_end(t, run, LIMIT);
        snprintf(begin, sizeof(begin), "rank %d (host%d, pid %d) has not been heard of for 3 s: stopped, or", victim,
                 victim, (int)run->p[victim].pid);
        check_messages(t, run, -1, begin, "network is down" COMM_REMEDY);
    }
}

TEST(test_outcomes) {
    for (int i = 0; i < 2; i++) { run_start(&stopped[i], 3, "do=compute silence=3 resumable=1"); }
    for (int i = 0; i < 3; i++) {
        run_start(&pausing[i], 3, i < 2 ? "do=compute seconds=6 silence=20" : "do=compute seconds=6 silence=2.5");
    }
    for (int i = 0; i < NUM_OUTCOMES; i++) { run_start(&runs[i], outcomes[i].n, outcomes[i].options); }
    stop_for_good(t);
    check_stopped_for_a_while(t);
    check_stopped(t);
    for (int i = 0; i < NUM_OUTCOMES; i++) { check_outcome(t, &runs[i], &outcomes[i]); }
}

// ---- MPI ----

static bool succeeds(const char *const *argv) {
    Process p;
    process_start(&p, argv);
    return process_wait_all(&p, 1, 120.0) && p.status == 0;
}

// This program, built with MPI and without (for a launcher must find that out); false where that is not possible.
static bool build_for_mpi(const char *with, const char *without) {
    const char *const find[] = {"mpicc", "--version", NULL}, *const launch[] = {"mpirun", "--version", NULL};
    if (!succeeds(find) || !succeeds(launch)) { return false; }
    const char *argv[] = {"mpicc", "-std=gnu11", "-w",        "-I.", "-o", with, "-O0", "dev/test/ranks/test_comm.c",
                          "-lm",   "-pthread",   "-DUSE_MPI", NULL};
    bool ok = succeeds(argv);
    argv[5] = without, argv[10] = "-UUSE_MPI";
    return ok && succeeds(argv);
}

static void start_mpirun(Process *p, const char *program, const char *n, const char *action, const char *how,
                         const char *more) {
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1), setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", 1); // more processes than cores: Open MPI 4; MPICH just does it
    setenv("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe", 1); // Open MPI 5
    const char *const argv[] = {"mpirun", "-n", n, program, "rank", "start=mpi", action, how, more, "host=host", NULL};
    process_start(p, argv);
}

static int count_text(const char *text, const char *part) {
    int count = 0;
    for (const char *at = text; (at = strstr(at, part)) != NULL; at++) { count++; }
    return count;
}

// Runs n ranks; returns whether it ended with a status that is 0 or not, as expected.
static void run_mpi(Test *t, Process *p, const char *program, const char *n, const char *action, const char *how,
                    bool well) {
    start_mpirun(p, program, n, action, how, strcmp(action, "do=hang") == 0 ? "watchdog=1.5" : "watchdog=0");
    bool ended = process_wait_all(p, 1, LIMIT);
    CHECK(t, ended && (p->status == 0) == well, "%s: status %d: %s%s", action, p->status, p->out.text, p->err.text);
}

TEST(test_mpi) {
    char with[700], without[700];
    snprintf(with, sizeof(with), "%s/with", test_folder(t));
    snprintf(without, sizeof(without), "%s/without", test_folder(t));
    if (!build_for_mpi(with, without)) { SKIP(t, "no mpicc and mpirun that work here"); }
    Process p;
    run_mpi(t, &p, with, "4", "do=exchanges", "", true);
    CHECK(t, count_text(p.out.text, "done") == 4, "%s", p.out.text);
    for (int i = 0; i < 4; i++) {
        char open[64];
        snprintf(open, sizeof(open), "open %d of 4, local %d of 4, prints %d.", i, i, i == 0);
        CHECK(t, strstr(p.out.text, open) != NULL, "rank %d: %s", i, p.out.text);
    }
    run_mpi(t, &p, with, "3", "do=agree", "who=1", false); // an error that all know is printed once
    CHECK(t, count_text(p.err.text, "disk full on 1") == 1, "%s", p.err.text);
    run_mpi(t, &p, with, "3", "do=fail", "who=2", false); // the other ranks are told, and one of them says so
    CHECK(t, count_text(p.err.text, "): no more paper") == 1, "%s", p.err.text);
    run_mpi(t, &p, with, "3", "do=consequence", "who=1", false); // who speaks first, mpirun or the watch, is open
    run_mpi(t, &p, with, "2", "do=hang", "who=1", false);
    CHECK(t, count_text(p.err.text, "hangs: no progress for ") == 1, "%s", p.err.text);
    run_mpi(t, &p, without, "2", "do=exchanges", "", false);
    CHECK(t, count_text(p.err.text, "this program was built without MPI") == 1, "%s", p.err.text);
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "rank") == 0) { return rank_main(argc, argv); }
    self = argv[0];
    clean_environment();
    signal(SIGPIPE, SIG_IGN); // for what this program writes to processes that have ended
    return test_main(argc, argv);
}
