// The processes of a run: this program starts itself as several ranks, which connect, exchange, fail, hang and die.
//
// A rank is `test_comm rank KEY=VALUE...` (rank_main). It prints "open ..." when it is connected, then does what do=
// says, or rank who= what mine= says; it ends as a trainer's main would. Limits here are generous: a slow machine may
// take its time, only a rank that is not found out at all fails a test. That a death is found at once and not by
// silence is seen from the message. Ranks wait most of the time: runs that do not depend on each other start together.
#include "llmc/ranks/agree.h"
#include "llmc/ranks/meet.h"
#include "dev/test/ranks/processes.h"
#include "dev/test/refused.h"
#include "dev/test/temp_dir.h"
#include "dev/test/test_main.h"

#define MAX_TEST_RANKS 8
#define LIMIT 40.0 // seconds for anything that must end
#define SECRET "0123456789abcdef0123456789ABCDEFfedcba9876543210fedcba9876543210"

static const char *self; // this program

// ---- A rank ----

typedef struct {
    int argc;
    char **argv;
    Comm comm;
    CommOptions options;
    int who; // the rank that does something special
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

static bool rank_wrong(const char *what) { return fail(&error, "wrong: %s", what); }

static bool rank_sleep(double seconds) {
    double end = seconds_now() + seconds;
    while (seconds_now() < end) { poll(NULL, 0, 10); }
    return true;
}

// Every kind of exchange, with results that only the right order and all contributions give. count: of the numbers that
// each rank brings; many are more than any socket holds at once.
static bool do_exchanges(Rank *r) {
    Comm *comm = &r->comm;
    int n = comm->num_ranks, count = (int)rank_number(r, "count", 3);
    uint64_t *mine = (uint64_t *)calloc((size_t)count + 1, sizeof(uint64_t)), sum[2];
    for (int round = 0; round < 20; round++) {
        Text all;
        int64_t bytes = (int64_t)sizeof(uint64_t) * count;
        for (int i = 0; i < count; i++) { mine[i] = (uint64_t)(comm->rank + 10 * round + 1000 * i); }
        if (!comm_gather(comm, "numbers", mine, bytes, &all, &error)) { return false; }
        for (int i = 0; i < n * count; i++) {
            uint64_t expected = (uint64_t)(i / count + 10 * round + 1000 * (i % count));
            if (((const uint64_t *)all.data)[i] != expected) { return rank_wrong("gather"); }
        }
        text_free(&all);
        sum[0] = (uint64_t)comm->rank + 1, sum[1] = UINT64_MAX;
        if (!comm_sum_u64(comm, sum, 2, &error)) { return false; }
        if (sum[0] != (uint64_t)(n * (n + 1) / 2) || sum[1] != 0 - (uint64_t)n) { return rank_wrong("sum"); }
        if (!comm_broadcast(comm, mine, bytes, &error)) { return false; }
        if (count > 0 && mine[0] != (uint64_t)(10 * round)) { return rank_wrong("broadcast"); }
        if (!comm_agree(comm, true, &error)) { return false; }
    }
    free(mine);
    return true;
}

// Ranks who and who + 1 fail to agree. All fail then, and agree on that: the error names its rank once.
static bool do_agree(Rank *r) {
    int rank = r->comm.rank;
    fail(&error, "disk full on %d", rank);
    bool ok = comm_agree(&r->comm, rank != r->who && rank != r->who + 1, &error);
    return comm_agree(&r->comm, ok, &error);
}

// Rank who has other facts.
static bool do_facts(Rank *r) {
    char facts[200];
    const char *all = "model,,-t,64";
    int n = snprintf(facts, sizeof(facts), "%s", r->comm.rank == r->who ? rank_text(r, "facts", all) : all);
    for (int i = 0; i < n; i++) { facts[i] = facts[i] == ',' ? '\0' : facts[i]; }
    return comm_check_facts(&r->comm, facts, (size_t)n + 1, &error);
}

// Rank who is in an exchange of another size, or with other=, of another name. The exchange itself tells all ranks what
// is wrong. No later one succeeds, and the error stays.
static bool do_mismatch(Rank *r) {
    const char *other = rank_text(r, "other", NULL);
    uint64_t values[2] = {1, 2};
    Text all;
    bool mine = r->comm.rank == r->who;
    bool ok = other == NULL ? comm_broadcast(&r->comm, values, mine ? 16 : 8, &error)
                            : comm_gather(&r->comm, mine ? other : "numbers", values, 8, &all, &error);
    if (ok || strstr(error.text, "do not do the same") == NULL) { abort(); } // before another rank's watch tells
    return comm_agree(&r->comm, ok, &error);
}

// Waits for the other ranks in an exchange.
static bool do_wait(Rank *r) {
    uint64_t none = 0;
    return comm_sum_u64(&r->comm, &none, 1, &error);
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

// Gets no further after step 1.
static bool do_hang(Rank *r) {
    comm_progress(&r->comm, "step 1");
    return rank_sleep(1000.0);
}

// Waits for the GPU, which waits for the other ranks, in step 2; rank who in step 1.
static bool do_gpu(Rank *r) {
    comm_progress(&r->comm, "step 1");
    if (r->comm.rank != r->who) { comm_progress(&r->comm, "step 2"); }
    comm_waits(&r->comm, true);
    return rank_sleep(1000.0);
}

// Takes `seconds`, longer than the watchdog, but has said that this is normal.
static bool do_slow(Rank *r) {
    comm_slow(&r->comm, true);
    rank_sleep(rank_number(r, "seconds", 0.0));
    comm_slow(&r->comm, false);
    return do_wait(r);
}

static bool do_fail(Rank *r) { return (void)r, fail(&error, "no more paper"); }

// Rank who fails. The other ranks cannot print it: nobody reads their stderr, a pipe that is full.
static bool do_mute(Rank *r) {
    int ends[2];
    if (r->comm.rank == r->who) { return do_wait(r) && do_fail(r); }
    if (pipe(ends) != 0) { return fail_system(&error, "a pipe", "make"); }
    fcntl(ends[1], F_SETFL, O_NONBLOCK);
    while (write(ends[1], "x", 1) == 1) {}
    fcntl(ends[1], F_SETFL, 0);
    dup2(ends[1], STDERR_FILENO);
    return do_wait(r) && do_wait(r);
}

static bool do_nothing(Rank *r) { return (void)r, true; }

static int count_open_files(void) {
    int count = 0;
    for (int fd = 0; fd < 256; fd++) { count += fcntl(fd, F_GETFD) != -1; }
    return count;
}

static bool rank_do(Rank *r) {
#define DO(name)                                                                                                       \
    { #name, do_##name }
    static const struct {
        const char *name;
        bool (*function)(Rank *);
    } actions[] = {DO(exchanges), DO(agree), DO(facts), DO(mismatch), DO(wait), DO(compute),
                   DO(hang),      DO(gpu),   DO(slow),  DO(fail),     DO(mute), DO(nothing)};
    const char *what = rank_text(r, "do", "exchanges");
    if (r->comm.rank == r->who) { what = rank_text(r, "mine", what); }
    FOR_EACH(i, actions) {
        if (strcmp(actions[i].name, what) == 0) { return actions[i].function(r); }
    }
    return fail(&error, "do=%s: unknown", what);
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
    if (rank_text(r, "secret", NULL) != NULL) { setenv(TOKEN_VARIABLE, SECRET, 1); }
    r->who = (int)rank_number(r, "who", -1);
}

// As a trainer's main.
static int rank_main(int argc, char **argv) {
    static Rank rank;
    Rank *r = &rank;
    int files = count_open_files();
    r->argc = argc, r->argv = argv;
    rank_options(r);
    bool ok = comm_open(&r->comm, &r->options, &error);
    if (ok) {
        Comm *comm = &r->comm;
        printf("open %d of %d, local %d of %d, prints %d.\n", comm->rank, comm->num_ranks, comm->local_rank,
               comm->num_local, comm->prints);
        fflush(stdout);
        comm_change(comm, &comm->resumable, rank_number(r, "resumable", 0) != 0.0);
        bool limited = comm->start_deadline > 0.0; // the time limit of the start must not hold for the run
        ok = !limited ? rank_do(r) : rank_wrong("the start has not ended");
        if (!ok) { comm_fail(comm, &error); }
    }
    comm_close(&r->comm);
    bool left = r->options.start != COMM_MPI && count_open_files() != files; // MPI keeps its own
    if (left) { ok = rank_wrong("files are left open"); }
    if (!ok && r->comm.prints) { fprintf(stderr, "test: %s\n", error.text); }
    printf(ok ? "done\n" : "failed\n");
    return ok ? EXIT_SUCCESS : EXIT_FAILURE;
}

// ---- Several ranks ----

typedef struct {
    int n, port;
    char at[600]; // address or folder
    Process p[MAX_TEST_RANKS];
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

// Prepares a run of n ranks, none of which has started: by TCP at a free port of this host.
static void run_prepare(Run *run, int n, const char *host) {
    memset(run, 0, sizeof(*run));
    run->n = n;
    run->port = free_port();
    snprintf(run->at, sizeof(run->at), "%s:%d", host, run->port);
    for (int i = 0; i < MAX_TEST_RANKS; i++) {
        run->p[i].ended = true; // nothing waits for it
        run->p[i].out.fd = run->p[i].err.fd = -1;
    }
}

// Starts a rank with these options, at the run's address or folder. Of two options with one name, the first counts.
static void start_rank(Run *run, int rank, const char *options) {
    char text[1024], *rest = text;
    const char *argv[32] = {self, "rank", format("at=%s", run->at)};
    snprintf(text, sizeof(text), "%s n=%d rank=%d host=host%d", options, run->n, rank, rank);
    int count = 3;
    for (char *word; (word = strtok_r(rest, " ", &rest)) != NULL && count < 31;) { argv[count++] = word; }
    argv[count] = NULL;
    process_start(&run->p[rank], argv);
}

static void start_rank_zero(Run *run, int n, const char *options) {
    run_prepare(run, n, "127.0.0.1");
    start_rank(run, 0, options);
}

static void start_other_ranks(Run *run, const char *options) {
    for (int i = 1; i < run->n; i++) { start_rank(run, i, options); }
}

static void wait_end(Test *t, Run *run) {
    CHECK(t, process_wait_all(run->p, run->n, LIMIT), "ranks have not ended within %g s", LIMIT);
}

// All end well and in silence, but for rank 0 when it has turned callers away: it says how many.
static void check_all_well(Test *t, Run *run, int turned_away) {
    const char *said = turned_away > 0 ? format("test: " STAR_STRANGERS "\n", turned_away) : "";
    wait_end(t, run);
    for (int i = 0; i < run->n; i++) {
        const Process *p = &run->p[i];
        CHECK(t, p->status == 0 && strcmp(p->err.text, i == 0 ? said : "") == 0, "rank %d: status %d: %s%s", i,
              p->status, p->out.text, p->err.text);
    }
}

// Takes the process numbers out of a message: "rank 1 (host, pid 12)" becomes "rank 1 (host)".
static char *without_pids(char *text) {
    for (char *at = text; (at = strstr(at, ", pid ")) != NULL;) {
        char *after = at + 6 + strspn(at + 6, "0123456789");
        memmove(at, after, strlen(after) + 1);
    }
    return text;
}

// The process ended with status 1 and one line that begins and ends like this; without an end, is this. It is compared
// without process numbers, but has this one, if it is not 0.
static void check_message(Test *t, Process *p, const char *who, const char *begin, const char *end, pid_t pid) {
    const char *line = format("test: %s", begin), *number = format(", pid %d)", (int)pid);
    CHECK(t, pid == 0 || strstr(p->err.text, number) != NULL, "%s: said '%s' without%s", who, p->err.text, number);
    char *said = without_pids(p->err.text);
    size_t n = strlen(said), m = end != NULL ? strlen(end) : 0;
    CHECK(t, p->status == 1, "%s: status %d, expected 1: %s", who, p->status, said);
    if (!CHECK(t, n > m && strchr(said, '\n') == said + n - 1, "%s: not one line: %s", who, said)) { return; }
    said[--n] = '\0';
    CHECK(t, strncmp(said, line, strlen(line)) == 0, "%s: said '%s', expected '%s...'", who, said, line);
    CHECK(t, end != NULL ? strcmp(said + n - m, end) == 0 : strlen(line) == n, "%s: said '%s', expected '...%s'", who,
          said, end != NULL ? end : begin);
}

// A rank of two in this process, without connections.
static Comm *comm_of_two(int rank) {
    Comm *comm = (Comm *)calloc(1, sizeof(Comm));
    CommOptions options = {.host = "host"};
    temp_must(comm != NULL && comm_create(comm, &options, rank, 2, &error), "malloc");
    comm->peers[1 - rank].who = comm->peers[rank].who;
    return comm;
}

static void free_comm(Comm *comm) {
    comm_free(comm);
    free(comm);
}

// ---- Starting ----

TEST(test_addresses) {
    // The last word says whether the address means this machine on each machine.
    static const char *const taken[][2] = {{"node1", "node1 29500 no"},
                                           {"10.0.0.1:65535", "10.0.0.1 65535 no"},
                                           {"[2001:db8::1]:29", "2001:db8::1 29 no"},
                                           {"127.evil.com", "127.evil.com 29500 no"},
                                           {"127.0.0.2:80", "127.0.0.2 80 yes"},
                                           {"localhost", "localhost 29500 yes"},
                                           {"[::1]:29", "::1 29 yes"}};
    static const char *const refused[] = {"fe80::1:2",   "",         ":80",  "node1:", "node1:0",
                                          "node1:65536", "node1:8x", "[::1", "[]:80",  "[::1]80"};
    static Start s;
    FOR_EACH(i, taken) {
        OK(t, meet_parse_address(&s, taken[i][0], &error));
        const char *found = format("%s %d %s", s.hosts, s.port, meet_is_loopback(s.hosts) ? "yes" : "no");
        CHECK(t, strcmp(found, taken[i][1]) == 0, "%s: %s", taken[i][0], found);
    }
    FOR_EACH(i, refused) { CHECK(t, !meet_parse_address(&s, refused[i], &error), "'%s': taken", refused[i]); }
}

// What a launcher leaves in the environment; here, nothing.
static void clean_environment(void) {
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK",  "PMI_SIZE",
                                        "SLURM_PROCID",         "SLURM_STEP_NUM_TASKS", "PMIX_RANK", TOKEN_VARIABLE};
    FOR_EACH(i, names) { unsetenv(names[i]); }
}

#define ONE_MACHINE ": without a secret the ranks are on one machine, and this must be localhost, 127.0.0.1 or "

// What one process finds out alone: that it is the only one, or why it cannot start.
TEST(test_places) {
    int listener = meet_listen(0, true);
    const char *secret = test_path(t, "secret");
    const char *taken = format("127.0.0.1:%d", meet_port(listener));
    temp_write(secret, SECRET, strlen(SECRET)), chmod(secret, 0600);
#define PLACE(how, of, place) .start = COMM_##how, .num_ranks = (of), .rank = (place)
    const struct {
        CommOptions o;
        const char *size, *expected; // size: the launcher's, NULL: there is none
    } cases[] = {
        {{PLACE(MPI, 0, -1)}, "1", "one process"},
#ifndef USE_MPI
        {{PLACE(MPI, 0, -1)}, "8", "mpirun has started several processes, but this program was built without MPI"},
#endif
        {{PLACE(MPI, 4, -1)}, "8", "--num-processes is 4, but mpirun has started 8"},
        {{PLACE(TCP, 0, -1)}, NULL, "--num-processes is missing"},
        {{PLACE(TCP, 1, -1)}, NULL, "one process"},
        {{PLACE(TCP, 3, -1)}, NULL, "--process-rank is missing"},
        {{PLACE(TCP, 3, 3)}, NULL, "--process-rank is 3, but must be from 0 to 2"},
        {{PLACE(TCP, 3, 1)}, NULL, "--server-ip is missing"},
        {{PLACE(TCP, 3, 1), .address = "192.0.2.1"}, NULL, "--server-ip 192.0.2.1" ONE_MACHINE},
        {{PLACE(TCP, 3, 0), .address = taken}, NULL, "cannot listen at this port: Address already in use; choose an"},
        {{PLACE(TCP, 3, 1), .address = "192.0.2.1", .secret = secret}, NULL, "cannot reach rank 0 within 0.3 s"},
        {{PLACE(TCP, 3, 1), .address = "no-such..host", .secret = secret}, NULL, ": no-such..host: no such address: "},
        {{PLACE(FOLDER, 3, 1)}, NULL, "--nccl-fs-path is missing"}};
    FOR_EACH(i, cases) {
        Comm comm;
        CommOptions o = cases[i].o;
        if (cases[i].size != NULL) { setenv("OMPI_COMM_WORLD_RANK", "0", 1); }
        if (cases[i].size != NULL) { setenv("OMPI_COMM_WORLD_SIZE", cases[i].size, 1); }
        o.start_timeout = 0.3;
        bool ok = comm_open(&comm, &o, &error) && comm.num_ranks == 1 && comm.rank == 0;
        const char *found = ok ? "one process" : error.text;
        CHECK(t, strstr(found, cases[i].expected) != NULL, "found '%s', expected '%s'", found, cases[i].expected);
        comm_close(&comm);
        clean_environment();
    }
    close(listener);
}

// Which GPU: by the names of the machines in order of rank, or by --gpus-per-node.
TEST(test_local_ranks) {
    static const char *const places[][3] = {{"host=a", "local 0 of 3", "local 0 of 2"},
                                            {"host=b", "local 0 of 2", "local 1 of 2"},
                                            {"host=a", "local 1 of 3", "local 0 of 2"},
                                            {"host=a", "local 2 of 3", "local 1 of 2"},
                                            {"host=b", "local 1 of 2", "local 0 of 1"}};
    for (int by_count = 0; by_count < 2; by_count++) {
        Run run;
        run_prepare(&run, 5, "127.0.0.1");
        for (int i = 0; i < 5; i++) { start_rank(&run, i, format("%s gpus=%d", places[i][0], 2 * by_count)); }
        check_all_well(t, &run, 0);
        for (int i = 0; i < 5; i++) {
            const char *out = run.p[i].out.text;
            CHECK(t, strstr(out, places[i][1 + by_count]) != NULL, "rank %d, by count: %d: %s", i, by_count, out);
        }
    }
}

// ---- A shared folder ----

#define STALE "token 0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\n"

static void folder_start(Start *s, const char *folder, int rank) {
    start_begin(s, comm_of_two(rank));
    s->comm->options.start = COMM_FOLDER, s->comm->options.folder = folder;
}

// Rank 0 alone writes the file, for this user only. What others may have written is not read, and a link in place of
// our folder is refused: it would send the address to another folder.
TEST(test_folder_address) {
    static Start starts[4];
    Start *zero = &starts[0], *one = &starts[1], *late = &starts[2], *linked = &starts[3];
    const char *folder = test_path(t, "folder"), *other = test_path(t, "other");
    struct stat info;
    for (int i = 0; i < 4; i++) { folder_start(&starts[i], i < 3 ? folder : other, i == 1); }
    OK(t, meet_by_folder(zero, &error) && meet_by_folder(one, &error));
    OK(t, meet_read_contact(one, &error));
    CHECK(t, memcmp(&one->token, &zero->token, sizeof(one->token)) == 0 && one->token.known, "another token");
    CHECK(t, one->port == meet_port(zero->listener), "port %d", one->port);
    CHECK(t, stat(one->file, &info) == 0 && (info.st_mode & 0777) == 0600, "mode %03o", (unsigned)info.st_mode);
    chmod(one->file, 0644);
    FAILS(t, meet_read_contact(one, &error), "others may use it (mode 644)");
    FAILS(t, meet_by_folder(late, &error), "in use by another process (pid ");
    directory_unlock(&zero->lock);
    OK(t, meet_by_folder(late, &error));
    CHECK(t, !token_equal(late->token.caller, zero->token.caller) && !token_equal(late->token.zero, zero->token.zero),
          "two runs have one token");
    temp_must(mkdir(other, 0777) == 0 && symlink(folder, test_path(t, "other/" MEET_FOLDER)) == 0, "symlink");
    FAILS(t, meet_by_folder(linked, &error), "a link is in the way");
    for (int i = 0; i < 4; i++) {
        directory_unlock(&starts[i].lock), socket_close(&starts[i].listener);
        free_comm(starts[i].comm);
    }
}

// Rank 1 reads a file that an earlier run left, and waits until it finds the new one.
TEST(test_folder_stale) {
    Run run;
    char file[1024];
    run_prepare(&run, 2, "");
    snprintf(run.at, sizeof(run.at), "%s/0", test_folder(t));
    snprintf(file, sizeof(file), "%s/" MEET_FOLDER, run.at);
    temp_must(make_directories(file, &error), error.text);
    strcat(file, "/" MEET_FILE);
    const char *text = format(STALE "port %d\naddresses no-such..host [ 999.1.2.3 127.0.0.1", run.port);
    temp_write(file, text, strlen(text)), chmod(file, 0600);
    start_rank(&run, 1, "start=fs");
    rank_sleep(0.5); // it has read the file
    process_look(&run.p[1]);
    CHECK(t, !run.p[1].ended, "rank 1 does not wait: %s", run.p[1].err.text);
    start_rank(&run, 0, "start=fs");
    check_all_well(t, &run, 0);
    CHECK(t, !path_exists(file), "%s is left behind", file);
}

// ---- Refusals at the start ----

static int connect_to(const char *host, int port) {
    struct addrinfo *list;
    temp_must(meet_look_up(host, port, &list, &error), error.text);
    int fd = socket_connect(list);
    freeaddrinfo(list);
    return fd;
}

// Rank 0 may have to start first.
static int connect_to_rank_zero(const Run *run) {
    int fd;
    double end = seconds_now() + LIMIT;
    while ((fd = connect_to("127.0.0.1", run->port)) < 0 && seconds_now() < end) { process_pause(); }
    return fd;
}

static StarToken our_token(void) {
    StarToken token;
    temp_must(token_take(&token, "", SECRET, &error), error.text);
    return token;
}

static void must_write(int fd, const void *data, size_t bytes) {
    temp_must(write(fd, data, bytes) == (ssize_t)bytes, "write");
}

// Reads a message of rank 0, and returns the reason of a failure, "" for another message, until the next is read.
static char *read_message(int fd) {
    static char words[COMM_TEXT_BYTES];
    StarHead head;
    Text said = {NULL, 0, 0, false};
    bool ok = star_read(fd, &head, &said, seconds_now() + LIMIT);
    snprintf(words, sizeof(words), "%s", !ok ? "no message" : head.kind == TALK_FAILURE ? said.data : "");
    text_free(&said);
    return words;
}

// What a caller says of itself, and what rank 0 answers.
typedef struct {
    int rank, num_ranks, protocol;
    bool watches;
} Caller;
typedef struct {
    int fd;
    const char *words; // "": welcome
} Answer;

static StarJoin join_of(Caller caller) {
    StarJoin join;
    memset(&join, 0, sizeof(join));
    memcpy(join.token, our_token().caller, sizeof(join.token));
    join.protocol = caller.protocol, join.rank = caller.rank, join.num_ranks = caller.num_ranks;
    join.watches = caller.watches, join.who = comm_who_am_i("greeter");
    return join;
}

// Greets rank 0 as a rank would.
static Answer greet(const Run *run, Caller caller) {
    Answer got = {connect_to_rank_zero(run), "no answer"};
    StarJoin join = join_of(caller);
    char half[TOKEN_HALF];
    must_write(got.fd, &join, sizeof(join));
    bool knows = socket_read(got.fd, half, sizeof(half), seconds_now() + LIMIT) && token_equal(half, our_token().zero);
    if (knows) { got.words = read_message(got.fd); }
    return got;
}

// Greets as rank 1, which is welcome: first to talk, then to watch. Returns the socket.
static int greet_well(Test *t, const Run *run, bool watches) {
    Answer got = greet(run, (Caller){1, run->n, STAR_PROTOCOL, watches});
    CHECK(t, got.words[0] == '\0', "rank 1 is not welcome: %s", got.words);
    return got.fd;
}

// One rank has come (this test, so that there is no doubt about the order); what rank 0 then finds ends it, and that
// rank is told too, and one that comes a moment later. If the refused caller watches, the first rank has come with both
// sockets.
static void check_turned_away(Test *t, const Run *run, Caller caller, const char *expected) {
    int talk = greet_well(t, run, false), watch = caller.watches ? greet_well(t, run, true) : -1;
    Answer other = greet(run, caller);
    CHECK(t, strstr(other.words, expected) != NULL, "not refused: %s", other.words);
    const char *words = read_message(talk);
    CHECK(t, strstr(words, expected) != NULL, "told: %s", words);
    Answer late = greet(run, (Caller){2, 3, STAR_PROTOCOL, false});
    CHECK(t, strstr(late.words, expected) != NULL, "told the late one: %s", late.words);
    socket_close(&talk), socket_close(&watch), socket_close(&other.fd), socket_close(&late.fd);
}

TEST(test_refused) {
    static const struct {
        Caller caller;
        const char *expected;
    } cases[] = {{{1, 3, STAR_PROTOCOL, false}, "has that rank already: each process needs its own --process-rank"},
                 {{1, 3, STAR_PROTOCOL, true}, "has that rank already: each process needs its own --process-rank"},
                 {{0, 3, STAR_PROTOCOL, false}, "came, but rank 0 (host0, pid "},
                 {{3, 3, STAR_PROTOCOL, false}, "each a --process-rank below it"},
                 {{2, 3, STAR_PROTOCOL + 1, false}, "runs another version of the program"},
                 {{2, 8, STAR_PROTOCOL, false}, "was started as one of 8 processes, rank 0 (host0, pid "}};
    enum { CASES = COUNT_OF(cases) };
    static Run runs[CASES];
    for (int i = 0; i < CASES; i++) { start_rank_zero(&runs[i], 3, "secret=1"); }
    for (int i = 0; i < CASES; i++) { check_turned_away(t, &runs[i], cases[i].caller, cases[i].expected); }
    for (int i = 0; i < CASES; i++) {
        wait_end(t, &runs[i]);
        CHECK(t, runs[i].p[0].status == 1, "rank 0: status %d", runs[i].p[0].status);
        CHECK(t, strstr(runs[i].p[0].err.text, cases[i].expected) != NULL, "rank 0: %s", runs[i].p[0].err.text);
    }
}

// Rank 0 says who has not come in time, to those that have, too.
TEST(test_missing) {
    Run run;
    start_rank_zero(&run, 4, "secret=1 timeout=2");
    int talk = greet_well(t, &run, false), watch = greet_well(t, &run, true);
    int stranger = connect_to_rank_zero(&run);
    must_write(stranger, "GET / HTTP/1.1\r\n\r\n", 18);
    char *words = read_message(talk);
    wait_end(t, &run);
    const char *expected =
        format("no connection within 2 s (--start-timeout) from rank 2, 3 of 4: are they started, and can they reach "
               "rank 0 (host0)? " STAR_STRANGERS,
               1);
    CHECK(t, strcmp(without_pids(words), expected) == 0, "told: %s", words);
    check_message(t, &run.p[0], "rank 0", expected, NULL, run.p[0].pid);
    socket_close(&talk), socket_close(&watch), socket_close(&stranger);
}

// What is at rank 0's address: one that refuses rank 1, or that welcomes it and then leaves or rests. (One that does
// not know the token: fuzz_wire.c.)
typedef enum { REFUSES, LEAVES, RESTS, NUM_ZEROS } Zero;

// Answers the next caller as such a rank 0. Returns the socket.
static int zero_answers(Test *t, Zero zero, int listener) {
    StarToken token = our_token();
    StarHead head = {.kind = 0};
    CommWho who = comm_who_am_i("a");
    StarJoin join;
    socket_wait(listener, POLLIN, seconds_now() + LIMIT);
    int fd = accept(listener, NULL, NULL);
    bool greets = socket_read(fd, &join, sizeof(join), seconds_now() + LIMIT);
    CHECK(t, greets && token_equal(join.token, token.caller), "no greeting");
    socket_write(fd, token.zero, TOKEN_HALF, 0.0);
    if (zero == REFUSES) { star_say(fd, head, TALK_FAILURE, "go away", 7); }
    if (zero != REFUSES) { star_say(fd, head, TALK_RESULT, &who, sizeof(who)); }
    return fd;
}

TEST(test_other_zeros) {
    static const char *const cases[NUM_ZEROS][3] = {
        {"secret=1", "go away", NULL},
        {"secret=1", "rank 0 (a) has ended (in order, killed, or crashed?)", "for it in names"},
        {"secret=1 timeout=1", "rank 0 (a) has come, but does not begin the run within the time (--start-timeout), ",
         "wait for it in names"}};
    for (int i = 0; i < NUM_ZEROS; i++) {
        Run run;
        run_prepare(&run, 2, "127.0.0.1");
        int listener = meet_listen(run.port, true);
        start_rank(&run, 1, cases[i][0]);
        int talk = zero_answers(t, (Zero)i, listener), watch = i == REFUSES ? -1 : zero_answers(t, (Zero)i, listener);
        if (i == LEAVES) { socket_close(&talk), socket_close(&watch); }
        wait_end(t, &run);
        check_message(t, &run.p[1], cases[i][0], cases[i][1], cases[i][2], i >= LEAVES ? getpid() : 0);
        socket_close(&talk), socket_close(&watch), close(listener);
    }
}

// Rank 0 listens at all addresses of its machine with a secret, and at 127.0.0.1 alone without one.
TEST(test_listens) {
    for (int secret = 0; secret < 2; secret++) {
        static Start s;
        start_begin(&s, comm_of_two(0));
        s.comm->options.start = COMM_TCP, s.comm->options.address = format("127.0.0.1:%d", free_port());
        if (secret) { setenv(TOKEN_VARIABLE, SECRET, 1); }
        OK(t, meet_by_tcp(&s, &error));
        int third = connect_to("127.0.0.3", s.port);
        CHECK(t, (third >= 0) == (secret == 1), "a secret: %d, a connection: %d", secret, third);
        socket_close(&third), socket_close(&s.listener);
        free_comm(s.comm);
    }
}

// A token has 64 digits, and each counts. It comes from a file that only its owner may use, or from the environment.
TEST(test_secrets) {
    static const struct {
        const char *text;
        int mode;
        const char *expected; // NULL: taken
    } cases[] = {{SECRET "\n", 0600, NULL},
                 {SECRET "\r\n", 0400, NULL},
                 {SECRET, 0640, "others may use it (mode 640), expected 600: chmod 600"},
                 {SECRET "0", 0600, "expected 64 hexadecimal digits"},
                 {"too short\n", 0600, "expected 64 hexadecimal digits"}};
    const char *file = test_path(t, "secret");
    StarToken token, ours = our_token(), other = ours;
    CHECK(t, memcmp(ours.caller, SECRET, TOKEN_HALF) == 0 && memcmp(ours.zero, &SECRET[TOKEN_HALF], TOKEN_HALF) == 0,
          "the digits are read wrongly");
    CHECK(t, token_equal(other.caller, ours.caller), "equal tokens are not");
    for (int i = 0; i < TOKEN_HALF; i++) {
        other = ours, other.caller[i] ^= (char)(1 << i % 7);
        CHECK(t, !token_equal(other.caller, ours.caller), "byte %d does not count", i);
    }
    FOR_EACH(i, cases) {
        temp_write(file, cases[i].text, strlen(cases[i].text));
        chmod(file, (mode_t)cases[i].mode);
        bool ok = token_find(&token, file, &error);
        CHECK(t, ok || strstr(error.text, "too short") == NULL, "the token is printed: %s", error.text);
        if (cases[i].expected == NULL) {
            OK(t, ok && token.known && memcmp(&token, &ours, sizeof(ours)) == 0);
        } else {
            FAILS(t, ok, cases[i].expected);
        }
    }
    temp_write(file, SECRET, strlen(SECRET));
    if (geteuid() == 0 && chmod(file, 0600) == 0 && chown(file, 12345, 0) == 0) {
        FAILS(t, token_find(&token, file, &error), "belongs to user 12345");
    }
    setenv(TOKEN_VARIABLE, SECRET, 1);
    OK(t, token_find(&token, NULL, &error) && memcmp(&token, &ours, sizeof(ours)) == 0);
    CHECK(t, getenv(TOKEN_VARIABLE) == NULL, "the environment still has it");
    CHECK(t, token_find(&token, "", &error) && !token.known, "a token without one");
}

// A port that the network can see gets garbage, half a greeting, a wrong token, and many silent connections. The run
// starts nevertheless, and at once.
TEST(test_strangers) {
    enum { STRANGERS = 500, LOUD = 5 };
    Run run;
    int fds[STRANGERS];
    char whole[300], byte;
    StarJoin join = join_of((Caller){1, 3, STAR_PROTOCOL, false});
    join.token[TOKEN_HALF - 1] ^= 1;
    memset(whole, 1, sizeof(whole));
    start_rank_zero(&run, 3, "secret=1");
    for (int i = 0; i < LOUD; i++) { fds[i] = connect_to_rank_zero(&run); }
    must_write(fds[0], "GET / HTTP/1.1\r\nHost: x\r\n\r\n", 27);
    must_write(fds[1], our_token().caller, TOKEN_HALF); // no more than the token
    must_write(fds[2], whole, sizeof(whole));           // more than any greeting
    must_write(fds[3], &join, sizeof(join));
    must_write(fds[4], &join, sizeof(join) / 2), shutdown(fds[4], SHUT_WR);
    for (int i = 0; i < LOUD; i++) {
        socket_wait(fds[i], POLLIN, seconds_now() + LIMIT);
        ssize_t got = recv(fds[i], &byte, 1, 0); // 0, an orderly end, leaves errno as it was
        CHECK(t, got == 0 || (got < 0 && !socket_would_wait()), "garbage %d is not sent away", i);
    }
    for (int i = LOUD; i < STRANGERS; i++) { fds[i] = connect_to_rank_zero(&run); }
    double began = seconds_now();
    start_other_ranks(&run, "secret=1");
    check_all_well(t, &run, LOUD);
    CHECK(t, seconds_now() - began < STAR_ANSWER_SECONDS / 2, "rank 1 waits for silent callers");
    for (int i = 0; i < STRANGERS; i++) { socket_close(&fds[i]); }
}

// A rank that has come and then dies ends the start, with one socket or both.
TEST(test_death_while_starting) {
    static Run runs[2];
    for (int both = 0; both < 2; both++) {
        start_rank_zero(&runs[both], 4, "secret=1");
        int talk = greet_well(t, &runs[both], false), watch = both ? greet_well(t, &runs[both], true) : -1;
        start_rank(&runs[both], 2, "secret=1 timeout=5");
        rank_sleep(0.2);
        socket_close(&talk), socket_close(&watch);
    }
    for (int both = 0; both < 2; both++) {
        Process *p = runs[both].p;
        wait_end(t, &runs[both]);
        check_message(t, &p[0], "rank 0", "rank 1 (greeter) ended without a word", "crashed?)", getpid());
        CHECK(t, p[2].status == 1, "rank 2 has started alone: %s", p[2].out.text);
    }
}

// ---- Parts of the star and the watch, in this process ----

// A process that was stopped has heard of nobody and got no further meanwhile, wherever in a round that was: between
// its beginning and its judgement, or while it waits for the next.
static void check_round(Test *t, Watch *w, bool begins, Verdict silence, Verdict progress) {
    if (begins) { watch_begin_round(w); }
    w->verdict = VERDICT_NONE;
    watch_judge_silence(w);
    CHECK(t, w->verdict == silence, "silence: verdict %d, expected %d: %s", w->verdict, silence, w->words.text);
    w->verdict = VERDICT_NONE;
    watch_judge_progress(w);
    CHECK(t, w->verdict == progress, "progress: verdict %d, expected %d: %s", w->verdict, progress, w->words.text);
}

TEST(test_stopped_in_a_round) {
    for (int rank = 0; rank < 2; rank++) {
        Watch w;
        Comm *comm = comm_of_two(rank);
        CommPeer *peer = &comm->peers[1 - rank];
        watch_begin(&w, comm);
        comm->options.silence = comm->options.watchdog = 3.0;
        peer->watch = open("/dev/null", O_RDWR);
        w.round = seconds_now() - 4.0; // the last round; heard before it
        comm->since = peer->heard = w.round - 0.2;
        check_round(t, &w, false, VERDICT_NONE, VERDICT_NONE);
        check_round(t, &w, true, VERDICT_NONE, VERDICT_NONE);
        w.round -= 3.5, comm->since -= 3.5, peer->heard -= 3.5; // again
        check_round(t, &w, true, VERDICT_NONE, VERDICT_NONE);
        w.round -= 3.5; // both since the stop: a later silence must not be excused as well
        watch_begin_round(&w);
        CHECK(t, peer->heard <= w.round && comm->since <= w.round, "rank %d: the future is excused", rank);
        comm->since = peer->heard = w.round - 3.1;
        check_round(t, &w, true, VERDICT_SILENT, VERDICT_HANGS);
        free_comm(comm);
    }
}

// The most telling reason of a round counts.
TEST(test_verdicts) {
    static const Verdict found[] = {VERDICT_SILENT, VERDICT_DEAD, VERDICT_HANGS};
    Watch w;
    watch_begin(&w, comm_of_two(0));
    w.verdict = VERDICT_NONE;
    FOR_EACH(i, found) { watch_find(&w, found[i], "%zu", i); }
    CHECK(t, w.verdict == VERDICT_DEAD && strcmp(w.words.text, "1") == 0, "%d %s", w.verdict, w.words.text);
    free_comm(w.comm);
}

// ---- How runs end: all at once, because most of them wait ----

#define RANK(i) (1u << (i)) // of a set of ranks
#define MISMATCH "the ranks do not do the same: rank 2 (host2) is in "
#define DEAD "ended without a word (killed, or crashed?)"
#define SILENCE "has not been heard of for 3 s: stopped, or its machine or the network is down"
#define PAPER "no more paper"

// All ranks but those that are killed say this (`end`: see check_message), if it is "" fail without a word, if it is
// NULL end well and in silence. The rank apart says `own`.
typedef struct {
    const char *options;
    int n;
    // Sets of ranks. A signal comes when all are open. Stopped ranks go on when the others have ended.
    unsigned killed, stopped, apart;
    const char *says, *end, *own;
} Outcome;

static const Outcome outcomes[] = {
    {"", .n = 8},
    {"do=nothing", .n = 8}, // nobody takes another's end for a death
    {"count=200000", .n = 3},
    {"do=agree who=1", 4, .says = "rank 1 (host1): disk full on 1"},
    {"do=facts who=2 facts=model,,-t,32", 3, .says = "rank 2 (host2): -t is 32, but 64 on rank 0 (host0)"},
    {"do=facts who=1 facts=model,,-t,64,--new,1", 2,
     .says = "rank 1 (host1): runs another program than rank 0 (host0): ", .end = "'--new'"},
    {"do=mismatch who=2 other=sums", 4, .says = MISMATCH "sums of 8 bytes; rank 0 (host0) ",
     .end = "numbers of 8 bytes"},
    {"do=mismatch who=2", 4, .says = MISMATCH "a broadcast of 16 bytes; ", .end = "a broadcast of 8 bytes"},

    // A rank ends in order: the other ranks go on without it, or miss it.
    {"do=compute seconds=1 who=0 mine=nothing", .n = 3},
    {"do=compute seconds=1 who=1 mine=nothing", .n = 3},
    {"do=wait who=0 mine=nothing", 3, .apart = RANK(0), .says = "rank 0 (host0) has ended (in order, ", .end = "a sum"},
    {"do=wait who=1 mine=nothing", 3, .apart = RANK(1), .says = "rank 1 (host1) has ended (in order, ", .end = "a sum"},
    // A rank fails, or all at once: each says it itself, or is told it by another.
    {"do=wait who=2 mine=fail", 4, .apart = RANK(2), .says = "rank 2 (host2): " PAPER, .own = PAPER},
    {"do=compute who=0 mine=fail", 4, .apart = RANK(0), .says = "rank 0 (host0): " PAPER, .own = PAPER},
    {"do=fail", 5, .says = "", .end = PAPER},
    {"do=mute who=1", 2, .apart = RANK(1), .says = "", .own = PAPER}, // an alarm ends rank 0

    {"do=wait who=2 mine=hang resumable=1", 4, .killed = RANK(2), .says = "rank 2 (host2) " DEAD COMM_REMEDY},
    {"do=compute", 4, .killed = RANK(0), .says = "rank 0 (host0) " DEAD},
    {"do=compute silence=3 resumable=1", 3, .stopped = RANK(0), .says = "rank 0 (host0) " SILENCE COMM_REMEDY},
    {"do=compute silence=3", 3, .stopped = RANK(1), .says = "rank 1 (host1) " SILENCE},

    {"do=wait who=0 mine=hang watchdog=1.5 resumable=1", 3, .says = "rank 0 (host0) hangs: no progress for ",
     .end = " s (--watchdog) in step 1" COMM_REMEDY},
    {"do=wait who=2 mine=hang watchdog=1.5", 3, .says = "rank 2 (host2) hangs: no progress for ", .end = "in step 1"},
    // All wait: for the last one, or for a rank that has ended.
    {"do=gpu who=1 watchdog=1.5", 3, .says = "rank 1 (host1) waits, as all ranks do: a rank has ended, ",
     .end = "(--watchdog) in step 1"},
    {"do=gpu who=0 mine=nothing watchdog=1.5", 3, .apart = RANK(0), .says = "rank ", .end = "(--watchdog) in step 2"},
    // Longer than the watchdog allows, but announced. The other ranks wait, and are not blamed either.
    {"do=wait who=0 mine=slow seconds=5 watchdog=3", .n = 3},
};
enum { NUM_OUTCOMES = COUNT_OF(outcomes) };

static void signal_ranks(Run *run, unsigned set, int number) {
    for (int i = 0; i < run->n; i++) {
        if (set & RANK(i)) { process_signal(&run->p[i], number); }
    }
}

// Waits for the end of a run in which ranks may be stopped; they end when they go on.
static void wait_outcome(Test *t, Run *run, const Outcome *o) {
    for (int i = 0; i < run->n && o->stopped != 0; i++) {
        if (!(o->stopped & RANK(i))) { process_wait_text(&run->p[i], "never", LIMIT); }
    }
    signal_ranks(run, o->stopped, SIGCONT);
    wait_end(t, run);
}

static void check_outcome(Test *t, Run *run, const Outcome *o) {
    int named;
    bool names = o->says != NULL && sscanf(o->says, "rank %d (", &named) == 1;
    for (int i = 0; i < run->n; i++) {
        Process *p = &run->p[i];
        bool apart = o->apart & RANK(i);
        const char *says = apart ? o->own : o->says;
        const char *name = format("%s, rank %d", o->options, i);
        if (o->killed & RANK(i)) { continue; }
        if (says == NULL || (says[0] == '\0' && o->end == NULL)) {
            CHECK(t, p->status == (says != NULL) && p->err.text[0] == '\0', "%s: %d %s", name, p->status, p->err.text);
        } else {
            check_message(t, p, name, says, apart ? NULL : o->end, names && !apart ? run->p[named].pid : 0);
        }
    }
}

TEST(test_outcomes) {
    static Run runs[NUM_OUTCOMES];
    for (int i = 0; i < NUM_OUTCOMES; i++) {
        start_rank_zero(&runs[i], outcomes[i].n, outcomes[i].options);
        start_other_ranks(&runs[i], outcomes[i].options);
    }
    for (int i = 0; i < NUM_OUTCOMES; i++) {
        for (int r = 0; r < runs[i].n && (outcomes[i].killed | outcomes[i].stopped) != 0; r++) {
            process_wait_text(&runs[i].p[r], "open ", LIMIT);
        }
        signal_ranks(&runs[i], outcomes[i].killed, SIGKILL);
        signal_ranks(&runs[i], outcomes[i].stopped, SIGSTOP);
    }
    for (int i = 0; i < NUM_OUTCOMES; i++) {
        wait_outcome(t, &runs[i], &outcomes[i]);
        check_outcome(t, &runs[i], &outcomes[i]);
    }
}

// ---- MPI ----

// The ranks of a launcher share one output: an error is printed once, whether all know it or one of them tells it.
TEST(test_mpi) {
    static const char *const cases[][2] = {{"do=agree who=1", "disk full on 1"},
                                           {"do=wait who=2 mine=fail", "): no more paper"}};
    static Process p[COUNT_OF(cases)];
    bool runs = false;
#ifdef USE_MPI
    runs = system("mpirun --version >/dev/null 2>&1") == 0;
#endif
    if (!runs) { SKIP(t, "built without MPI, or no mpirun that works here"); }
    setenv("ASAN_OPTIONS", "detect_leaks=0", 1); // MPI's own
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1), setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", 1); // more processes than cores: Open MPI 4; MPICH just does it
    setenv("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe", 1); // Open MPI 5
    FOR_EACH(i, cases) {
        const char *command = format("exec mpirun -n 3 %s rank start=mpi host=host %s", self, cases[i][0]);
        const char *const argv[] = {"sh", "-c", command, NULL};
        process_start(&p[i], argv);
    }
    CHECK(t, process_wait_all(p, COUNT_OF(cases), LIMIT), "they do not end");
    FOR_EACH(i, cases) {
        const char *said = strstr(p[i].err.text, cases[i][1]);
        bool once = said != NULL && strstr(said + 1, cases[i][1]) == NULL;
        CHECK(t, p[i].status != 0 && once, "%s: status %d: %s", cases[i][0], p[i].status, p[i].err.text);
    }
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "rank") == 0) { return rank_main(argc, argv); }
    self = argv[0];
    clean_environment();
    signal(SIGPIPE, SIG_IGN); // for what this program writes to processes that have ended
    return test_main(argc, argv);
}
