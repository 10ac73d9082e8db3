// tokenize: turns text into token shards for training, or questions into a file for evaluation.
//
//   tokenize --tokenizer gpt2_tokenizer.bin --output data/shakespeare --val-fraction 0.1 shakespeare.txt
//   zcat pages.jsonl.gz | tokenize --output data/web --jsonl text --val-tokens 10000000 -
//
//   tokenize --eval --output data/hellaswag questions.jsonl
//   tokenize --tokenizer llama3_tokenizer.bin --output data/llama3 book.txt
//
// Reads files of any size a chunk at a time, encodes each chunk on all cores, and writes shards as the chunks arrive.
// A document is a file, or a line of JSON lines. End-of-text precedes each document. With --eval each line is a
// multiple-choice question, and all questions go into one file. After an error or Ctrl-C all written files are removed,
// so either all files come into being or none.
#include <dirent.h>
#include <signal.h>

#include "llmc/run/args.h"
#include "llmc/data/dataloader.h"
#include "llmc/data/json_line.h"
#include "llmc/data/questions.h"
#include "llmc/base/openmp.h"
#include "llmc/data/tokenizer.h"
#ifdef _OPENMP
#include <omp.h>
#endif

#define CHUNK_BYTES ((size_t)16 << 20)    // of text read at a time
#define MAX_CHUNK_BYTES ((size_t)1 << 30) // the longest JSON line, and the longest text without a place to cut

// ---- Options ----

typedef struct {
    const char *tokenizer, *output, *jsonl;
    int64_t shard_size, val_tokens, threads;
    double val_fraction;
    bool eval, overwrite;
} Options;

static const ArgSpec specs[] = {
    {"tokenizer", "", ARG_TEXT, offsetof(Options, tokenizer), "gpt2_tokenizer.bin", 1, ARGS_MAX_PATH, "FILE", "",
     "the tokens; python3 dev/data/vocab.py makes GPT-2's, dev/hf.py import a model's own"},
    {"jsonl", "", ARG_TEXT, offsetof(Options, jsonl), "", 1, 1000, "FIELD", "!eval",
     "the files are JSON lines, and the string FIELD of each is a document; without it, each file is one"},
    {"eval", "", ARG_FLAG, offsetof(Options, eval), "0", 0, 1, "", "",
     "the files are JSON lines, each a question (see above), whose texts are encoded as they are"},
    {"output", "o", ARG_TEXT, offsetof(Options, output), "", 1, ARGS_MAX_PATH, "PREFIX", "",
     "writes PREFIX_train_000001.bin ..., PREFIX_val_000000.bin, PREFIX.tokenizer; with --eval PREFIX_val.bin only"},
    {"shard-size", "", ARG_INT, offsetof(Options, shard_size), "100000000", 1, INT32_MAX, "N", "!eval",
     "tokens in a shard; the last one has what is left"},
    {"val-tokens", "", ARG_INT, offsetof(Options, val_tokens), "0", 0, 9007199254740992.0, "N", "!eval",
     "the first N tokens are for validation"},
    {"val-fraction", "", ARG_REAL, offsetof(Options, val_fraction), "0", 0, 0.99, "F", "!eval !val-tokens",
     "instead: about this part of all tokens, the first ones; needs files whose size is known"},
    {"overwrite", "", ARG_FLAG, offsetof(Options, overwrite), "0", 0, 1, "", "",
     "remove the files that PREFIX has now; otherwise they are an error"},
    {"threads", "", ARG_INT, offsetof(Options, threads), "0", 0, 1024, "N", "", "threads to use; 0: one for each core"},
};

static const ArgsProgram program = {
    .name = "tokenize",
    .usage = "[options] --output PREFIX FILE... (- is standard input)",
    .summary =
        "Turns text into token shards for training: byte-pair encoding, uint16 (uint32 for more than 65535 tokens), "
        "each\n"
        "document preceded by the end-of-text token (GPT-2's is 50256). The characters <|endoftext|> in a text are\n"
        "ordinary text, not this token. A text need not be valid UTF-8. A question of --eval is {\"context\": text,\n"
        "\"completions\": [4 texts], \"label\": index of the right one}; a completion begins with its space.\n",
    .example = "--output data/shakespeare --val-fraction 0.1 shakespeare.txt",
    .specs = specs,
    .num_specs = sizeof(specs) / sizeof(specs[0]),
    .takes_positionals = true,
};

static bool check_options(const Options *o, int num_files, Error *error) {
    if (num_files == 0) { return fail(error, "no input: name text files, or - for standard input (see --help)"); }
    if (o->output[0] == '\0') { return fail(error, "--output (-o): missing, expected the beginning of shard names"); }
    if (ends_with(o->output, "/")) { return fail(error, "--output (-o): '%s' ends with /, add a name", o->output); }
    if (strcmp(o->tokenizer, "byte") == 0) {
        return fail(error, "--tokenizer: shards hold GPT-2 tokens, not bytes; " VOCAB_HINT "; for bytes, give "
                           "train_gpt2 the text itself");
    }
    return true;
}

// ---- Ctrl-C ----

static volatile sig_atomic_t stop_signal = 0;

static void on_signal(int signal_number) { stop_signal = signal_number; }

static void catch_signals(void) {
    struct sigaction action;
    memset(&action, 0, sizeof(action));
    action.sa_handler = on_signal; // without SA_RESTART: a read that waits for input ends
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGHUP, &action, NULL);
    action.sa_handler = SIG_IGN; // exceeding the limit on a file's size then is an error of write()
    sigaction(SIGXFSZ, &action, NULL);
}

static bool check_signal(Error *error) {
    if (stop_signal == 0) { return true; }
    return fail(error, "stopped by %s; nothing was kept",
                stop_signal == SIGINT    ? "Ctrl-C"
                : stop_signal == SIGTERM ? "SIGTERM"
                                         : "SIGHUP");
}

// ---- Shards ----

typedef struct {
    const char *prefix;
    char folder[MAX_PATH_BYTES]; // of the prefix
    int id_bytes;                // of a token in the files
    uint64_t tokenizer;          // its hash
    int64_t shard_size;
    int64_t val_left;     // tokens that still belong to validation
    int64_t train_tokens; // written to training shards
    int next;             // number in the name of the next shard
    AtomicFile file;      // the shard being written
    int64_t room;         // tokens that fit into it
} ShardSet;

static void shard_path(char *path, const char *prefix, bool val, int number) {
    snprintf(path, MAX_PATH_BYTES, "%.*s_%s_%06d.bin", ARGS_MAX_PATH, prefix, val ? "val" : "train", number);
}

// Is a file name `base` and then "_train_000001.bin" or the like, perhaps unfinished (".tmp")?
static bool is_shard_name(const char *name, const char *base) {
    size_t n = strlen(base);
    if (strncmp(name, base, n) != 0) { return false; }
    name += n;
    size_t kind = strncmp(name, "_val_", 5) == 0 ? 5 : strncmp(name, "_train_", 7) == 0 ? 7 : 0;
    if (kind == 0) { return false; }
    name += kind;
    size_t digits = strspn(name, "0123456789");
    return digits >= 6 && (strcmp(name + digits, ".bin") == 0 || strcmp(name + digits, ".bin.tmp") == 0);
}

// Removes the shards of an earlier set, or refuses them. Otherwise the new set would be mixed with them.
static bool clear_old_shards(const ShardSet *set, bool overwrite, Error *error) {
    char path[MAX_PATH_BYTES];
    DIR *directory = opendir(set->folder);
    if (directory == NULL) { return fail_system(error, set->folder, "open folder"); }
    bool ok = true;
    for (struct dirent *entry; ok && (entry = readdir(directory)) != NULL;) {
        if (!is_shard_name(entry->d_name, path_name(set->prefix))) { continue; }
        ok = path_join(path, set->folder, entry->d_name, error);
        if (ok && !overwrite) {
            ok = fail(error, "%s: exists already; --overwrite removes all shards of this prefix first", path);
        }
        ok = ok && files_remove(path, error);
    }
    closedir(directory);
    return ok;
}

static bool shard_begin(ShardSet *set, Error *error) {
    static const char header[DATA_HEADER_BYTES]; // filled in at the end, when the number of tokens is known
    char path[MAX_PATH_BYTES];
    bool val = set->val_left > 0;
    if (!val && set->next == 0) { set->next = 1; } // shard 0 is always validation, as in the FineWeb shards
    shard_path(path, set->prefix, val, set->next);
    set->room = val ? min_i64(set->shard_size, set->val_left) : set->shard_size;
    return atomic_open(&set->file, path, 0666, error) && atomic_write(&set->file, header, DATA_HEADER_BYTES, error);
}

// Fills in the header of shards or questions. most: bytes of the longest question.
static bool write_header(const ShardSet *set, AtomicFile *file, BinKind kind, int64_t count, int64_t most,
                         Error *error) {
    const BinFormat *format = &bin_formats[kind];
    bool late = set->id_bytes == format->late_element;
    int32_t header[DATA_HEADER_INTS] = {late ? format->late_magic : format->magic, late ? format->late_version : 1,
                                        (int32_t)count, (int32_t)most};
    bin_set_tokenizer(header, set->tokenizer);
    return atomic_write_at(file, 0, header, DATA_HEADER_BYTES, error);
}

static bool shard_end(ShardSet *set, Error *error) {
    int64_t tokens = (set->file.bytes - DATA_HEADER_BYTES) / set->id_bytes;
    if (!write_header(set, &set->file, BIN_SHARD, tokens, 0, error)) { return false; }
    set->next++; // before the commit: if it fails half-way, the file is removed with the shards before it
    return atomic_commit(&set->file, error);
}

// tokens: as the files have them.
static bool shards_write(ShardSet *set, const uint8_t *tokens, int64_t count, Error *error) {
    while (count > 0) {
        if (set->file.fd < 0 && !shard_begin(set, error)) { return false; }
        int64_t n = min_i64(count, set->room);
        if (!atomic_write(&set->file, tokens, set->id_bytes * n, error)) { return false; }
        tokens += set->id_bytes * n, count -= n, set->room -= n;
        if (set->val_left > 0) {
            set->val_left -= n;
        } else {
            set->train_tokens += n;
        }
        if (set->room == 0 && !shard_end(set, error)) { return false; }
    }
    return true;
}

static bool shards_finish(ShardSet *set, Error *error) {
    if (set->train_tokens == 0) {
        return fail(error, "validation would take all tokens; choose a smaller --val-tokens or --val-fraction");
    }
    return set->file.fd < 0 || shard_end(set, error);
}

// Leaves a copy of the tokenizer beside the shards, where the trainers find it.
static bool shards_keep_tokenizer(const ShardSet *set, const Tokenizer *t, Error *error) {
    char shard[MAX_PATH_BYTES], path[MAX_PATH_BYTES];
    shard_path(shard, set->prefix, false, 1);
    return !tokenizer_beside_shard(path, shard) || tokenizer_copy_to(t, path, error);
}

// Removes what this run has written. clear_old_shards made sure that no older shards have these names.
static void shards_remove(ShardSet *set) {
    char path[MAX_PATH_BYTES];
    Error ignored;
    atomic_close(&set->file);
    for (int i = 0; i < set->next; i++) {
        for (int val = 0; val < 2; val++) {
            shard_path(path, set->prefix, val == 1, i);
            files_remove(path, &ignored);
        }
    }
}

// ---- Input ----

typedef struct {
    const char *path; // for messages
    int fd;
    bool at_end;              // nothing is left to read
    uint8_t *text;            // (capacity), read and not yet encoded
    uint32_t *tokens;         // (1+capacity)
    size_t bytes, capacity;   // of text
    bool new_document;        // the text begins a document
    int64_t line, documents;  // line: of this file; documents: of all files
    int64_t read, tokens_out; // of all files
    int64_t questions;        // of all files
    int64_t longest;          // bytes of the longest question
} Input;

static bool input_grow(Input *in, size_t capacity, Error *error) {
    uint8_t *text = (uint8_t *)realloc(in->text, capacity);
    if (text != NULL) { in->text = text; }
    uint32_t *tokens = (uint32_t *)realloc(in->tokens, (1 + capacity) * sizeof(uint32_t));
    if (tokens != NULL) { in->tokens = tokens; }
    if (text == NULL || tokens == NULL) { return fail(error, "%s: out of memory (%zu bytes)", in->path, 5 * capacity); }
    in->capacity = capacity;
    return true;
}

static void input_free(Input *in) {
    free(in->text);
    free(in->tokens);
}

// Reads until the buffer is full or the input ends.
static bool input_fill(Input *in, Error *error) {
    while (!in->at_end && in->bytes < in->capacity) {
        if (!check_signal(error)) { return false; }
        ssize_t n = read(in->fd, in->text + in->bytes, in->capacity - in->bytes);
        if (n < 0 && errno == EINTR) { continue; }
        if (n < 0) { return fail_system(error, in->path, "read"); }
        in->at_end = n == 0;
        in->bytes += (size_t)n;
        in->read += n;
    }
    return true;
}

// How many of the bytes read can be encoded now, independently of later bytes. 0: more must be read first.
static size_t input_cut(const Input *in, const Tokenizer *t, bool lines) {
    if (in->at_end) { return in->bytes; }
    if (!lines) { return tokenizer_last_split(t, in->text, in->bytes); }
    size_t n = in->bytes;
    while (n > 0 && in->text[n - 1] != '\n') { n--; }
    return n;
}

// ---- JSON lines ----

static bool is_blank(const uint8_t *line, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (line[i] != ' ' && line[i] != '\t' && line[i] != '\r' && line[i] != '\n') { return false; }
    }
    return true;
}

// Encodes the line at `start` into tokens + start: end-of-text, then its document. The quotes of a JSON line take more
// bytes than end-of-text needs, so the tokens never reach the tokens of the next line.
static bool encode_document(Input *in, const Tokenizer *t, const char *field, size_t start, size_t end, int64_t *count,
                            Error *error) {
    JsonLine value;
    Text text = {NULL, 0, 0, false};
    in->tokens[start] = (uint32_t)t->eot_token;
    bool ok = json_line_find((const char *)in->text + start, end - start, field, &value, error) &&
              json_line_string(&value, &text) &&
              tokenizer_encode(t, (const uint8_t *)text.data, text.used, in->tokens + start + 1, count, error);
    text_free(&text);
    ++*count;
    return ok;
}

// Numbers the examples of tokens[0 .. count) and notes the longest.
static bool number_questions(Input *in, int64_t count, int id_bytes, Error *error) {
    for (int64_t i = 0; i < count; i += in->tokens[i + EVAL_BYTES] / (uint32_t)id_bytes) {
        if (in->questions == EVAL_MAX_EXAMPLES) {
            return fail(error, "%s: more than %d questions", in->path, EVAL_MAX_EXAMPLES);
        }
        in->tokens[i + EVAL_INDEX] = (uint32_t)in->questions++;
        in->longest = max_i64(in->longest, in->tokens[i + EVAL_BYTES]);
    }
    return true;
}

// ---- Lines ----

static bool encode_line(Input *in, const Tokenizer *t, const char *field, size_t start, size_t end, int64_t *count,
                        Error *error) {
    *count = 0;
    if (is_blank(in->text + start, end - start)) { return true; }
    if (field == NULL) {
        return question_encode(t, (const char *)in->text + start, end - start, in->tokens + start, count, error);
    }
    return encode_document(in, t, field, start, end, count, error);
}

// Finds where the lines of text[0 .. n) start; the last start is n. The caller frees *starts.
static bool find_lines(const Input *in, size_t n, size_t **starts, int64_t *count, Error *error) {
    int64_t lines = 1;
    for (size_t i = 0; i + 1 < n; i++) { lines += in->text[i] == '\n'; }
    *starts = (size_t *)malloc((size_t)(lines + 1) * sizeof(size_t));
    if (*starts == NULL) { return fail(error, "%s: out of memory for %lld lines", in->path, (long long)lines); }
    *count = 0;
    (*starts)[(*count)++] = 0;
    for (size_t i = 0; i + 1 < n; i++) {
        if (in->text[i] == '\n') { (*starts)[(*count)++] = i + 1; }
    }
    (*starts)[*count] = n;
    return true;
}

// Encodes text[0 .. n), complete lines, in parallel, and moves the tokens together at the beginning of in->tokens.
// field: the JSON field that holds a document. NULL: the lines are questions.
static bool encode_lines(Input *in, const Tokenizer *t, const char *field, size_t n, int64_t *count, Error *error) {
    size_t *starts;
    int64_t lines = 0, bad_line = INT64_MAX;
    if (!find_lines(in, n, &starts, &lines, error)) { return false; }
    int64_t *counts = (int64_t *)malloc((size_t)lines * sizeof(int64_t));
    bool ok = counts != NULL || fail(error, "%s: out of memory for %lld lines", in->path, (long long)lines);
#pragma omp parallel for schedule(dynamic, 16) if (ok)
    for (int64_t i = 0; i < (ok ? lines : 0); i++) {
        Error local;
        if (encode_line(in, t, field, starts[i], starts[i + 1], &counts[i], &local)) { continue; }
#pragma omp critical
        if (i < bad_line) { // reports the first bad line, in whatever order threads run
            bad_line = i;
            fail(error, "%s: line %lld: %.*s", in->path, (long long)(in->line + i + 1), MAX_PATH_BYTES, local.text);
        }
    }
    ok = ok && bad_line == INT64_MAX;
    *count = 0;
    for (int64_t i = 0; ok && i < lines; i++) {
        memmove(in->tokens + *count, in->tokens + starts[i], (size_t)counts[i] * sizeof(uint32_t));
        *count += counts[i];
        in->documents += counts[i] > 0;
    }
    in->line += lines;
    free(counts);
    free(starts);
    return ok;
}

// ---- Text ----

// Encodes text[0 .. n) in parallel. End-of-text comes first if a document begins.
static bool encode_text(Input *in, const Tokenizer *t, size_t n, int64_t *count, Error *error) {
    int before = in->new_document ? 1 : 0;
    in->tokens[0] = (uint32_t)t->eot_token;
    if (!tokenizer_encode_parallel(t, in->text, n, in->tokens + before, count, error)) { return false; }
    in->new_document = false;
    in->documents += before;
    *count += before;
    return true;
}

// ---- The run ----

typedef struct {
    const Options *options;
    const Tokenizer *tokenizer;
    Input in;
    ShardSet shards;
    AtomicFile questions; // with --eval, instead of the shards
    int64_t total_bytes;  // of all files; -1: not known
    double start;         // seconds_now()
} Run;

static void questions_path(char *path, const char *prefix) {
    snprintf(path, MAX_PATH_BYTES, "%.*s_val.bin", ARGS_MAX_PATH, prefix);
}

static bool questions_begin(Run *run, Error *error) {
    static const char header[DATA_HEADER_BYTES]; // filled in at the end
    char path[MAX_PATH_BYTES];
    questions_path(path, run->options->output);
    if (!run->options->overwrite && path_exists(path)) {
        return fail(error, "%s: exists already; --overwrite replaces it", path);
    }
    return atomic_open(&run->questions, path, 0666, error) &&
           atomic_write(&run->questions, header, sizeof(header), error);
}

static bool questions_finish(Run *run, Error *error) {
    const Input *in = &run->in;
    return write_header(&run->shards, &run->questions, BIN_EVAL, in->questions, in->longest, error) &&
           atomic_commit(&run->questions, error);
}

static bool write_tokens(Run *run, int64_t count, Error *error) {
    const int id_bytes = run->shards.id_bytes;
    if (run->options->eval && !number_questions(&run->in, count, id_bytes, error)) { return false; }
    data_narrow(run->in.tokens, count, id_bytes);
    const uint8_t *tokens = (const uint8_t *)run->in.tokens;
    return run->options->eval ? atomic_write(&run->questions, tokens, id_bytes * count, error)
                              : shards_write(&run->shards, tokens, count, error);
}

// Turns --val-fraction into a number of tokens, once the first chunk shows how many bytes a token has.
static void estimate_val_tokens(Run *run, size_t bytes, int64_t tokens) {
    double total = (double)run->total_bytes / (double)bytes * (double)tokens;
    run->shards.val_left = max_i64(1, (int64_t)(run->options->val_fraction * total + 0.5));
}

// Encodes and writes the first n bytes of the buffer, and moves the rest to its beginning.
static bool encode_chunk(Run *run, size_t n, Error *error) {
    Input *in = &run->in;
    int64_t count;
    const Options *o = run->options;
    bool ok = o->eval || o->jsonl[0] != '\0'
                  ? encode_lines(in, run->tokenizer, o->eval ? NULL : o->jsonl, n, &count, error)
                  : encode_text(in, run->tokenizer, n, &count, error);
    if (!ok) { return false; }
    if (in->tokens_out == 0 && o->val_fraction > 0) { estimate_val_tokens(run, n, count); }
    in->tokens_out += count;
    in->bytes -= n;
    memmove(in->text, in->text + n, in->bytes);
    return write_tokens(run, count, error);
}

// Encodes the open file. Its first bytes show whether it is text.
static bool encode_open_file(Run *run, Error *error) {
    Input *in = &run->in;
    bool lines = run->options->jsonl[0] != '\0' || run->options->eval;
    in->at_end = false;
    in->new_document = true;
    in->bytes = 0;
    in->line = 0;
    if (!input_fill(in, error) || !bin_check_text(in->path, in->text, (int64_t)in->bytes, error)) { return false; }
    if (in->bytes == 0) { return fail(error, "%s: is empty", in->path); }
    while (in->bytes > 0) {
        size_t n = input_cut(in, run->tokenizer, lines);
        if (n > 0 && !encode_chunk(run, n, error)) { return false; }
        if (n == 0 && in->capacity >= MAX_CHUNK_BYTES) {
            return fail(error, "%s: %zu bytes without %s; is it text?", in->path, in->bytes,
                        lines ? "a line end" : "an end of a word");
        }
        if (n == 0 && !input_grow(in, 2 * in->capacity, error)) { return false; }
        if (!input_fill(in, error)) { return false; }
    }
    return true;
}

// Encodes one file. The file is one document unless it holds JSON lines.
static bool encode_file(Run *run, const char *path, Error *error) {
    Input *in = &run->in;
    bool standard_input = strcmp(path, "-") == 0;
    in->path = standard_input ? "standard input" : path;
    in->fd = standard_input ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    if (in->fd < 0) { return fail_system(error, path, "open"); }
    bool ok = encode_open_file(run, error);
    if (!standard_input) { close(in->fd); }
    return ok;
}

// Checks the inputs before anything is written, and adds up their sizes (-1 if one is a pipe).
static bool measure_files(char **files, int num_files, int64_t *total, Error *error) {
    *total = 0;
    for (int i = 0; i < num_files; i++) {
        struct stat info;
        bool standard_input = strcmp(files[i], "-") == 0;
        if (!standard_input && !path_check(files[i], "input file", error)) { return false; }
        if ((standard_input ? fstat(STDIN_FILENO, &info) : stat(files[i], &info)) != 0) {
            return fail_system(error, files[i], "open");
        }
        if (S_ISDIR(info.st_mode)) {
            return fail(error, "%s: is a folder, expected text; name its files: %s/*", files[i], files[i]);
        }
        if (!standard_input && access(files[i], R_OK) != 0) { return fail_system(error, files[i], "open"); }
        if (!S_ISREG(info.st_mode)) { *total = -1; }
        if (*total >= 0) { *total += (int64_t)info.st_size; }
    }
    return true;
}

static bool encode_files(Run *run, char **files, int num_files, Error *error) {
    for (int i = 0; i < num_files; i++) {
        if (!encode_file(run, files[i], error)) { return false; }
    }
    if (run->in.tokens_out == 0) {
        return fail(error, "no %s in the input: nothing was written", run->options->eval ? "questions" : "documents");
    }
    if (!check_signal(error)) { return false; }
    if (run->options->eval) { return questions_finish(run, error); }
    return shards_finish(&run->shards, error) && shards_keep_tokenizer(&run->shards, run->tokenizer, error);
}

static void print_questions(const Run *run) {
    char path[MAX_PATH_BYTES];
    questions_path(path, run->options->output);
    say(stdout, "%lld question%s, the longest %lld bytes: %s\n", (long long)run->in.questions,
        run->in.questions == 1 ? "" : "s", (long long)run->in.longest, path);
}

static void print_summary(const Run *run) {
    int threads = omp_get_max_threads();
    double seconds = seconds_now() - run->start;
    int first = run->options->val_tokens > 0 || run->options->val_fraction > 0 ? 0 : 1;
    say(stdout, "%lld tokens from %lld document%s (%s) in %d shard%s: %s_*.bin\n", (long long)run->in.tokens_out,
        (long long)run->in.documents, run->in.documents == 1 ? "" : "s", bytes_text(run->in.read).text,
        run->shards.next - first, run->shards.next - first == 1 ? "" : "s", run->options->output);
    say(stdout, "training %lld, validation %lld; %.2f s, %.1f MB/s on %d thread%s\n",
        (long long)run->shards.train_tokens, (long long)(run->in.tokens_out - run->shards.train_tokens), seconds,
        1e-6 * (double)run->in.read / seconds, threads, threads == 1 ? "" : "s");
}

// Does everything between the options and the exit status.
static bool run_all(const Options *options, char **files, int num_files, Error *error) {
    Run run;
    Tokenizer tokenizer;
    memset(&run, 0, sizeof(run));
    run.options = options;
    run.tokenizer = &tokenizer;
    run.shards.prefix = options->output;
    path_parent(run.shards.folder, options->output);
    run.shards.shard_size = options->shard_size;
    run.shards.val_left = options->val_tokens;
    atomic_init(&run.shards.file);
    atomic_init(&run.questions);
    run.in.path = "input";
    if (!measure_files(files, num_files, &run.total_bytes, error)) { return false; }
    if (options->val_fraction > 0 && run.total_bytes < 0) {
        return fail(error, "--val-fraction: the size of a pipe is not known; use --val-tokens");
    }
    if (!tokenizer_load(&tokenizer, options->tokenizer, error)) { return false; }
    tokenizer.stop = &stop_signal;
    run.shards.id_bytes = data_id_bytes(tokenizer.vocab_size);
    bool ok = tokenizer_hash(&tokenizer, &run.shards.tokenizer, error) && make_directories(run.shards.folder, error) &&
              (options->eval ? questions_begin(&run, error) : clear_old_shards(&run.shards, options->overwrite, error));
    if (ok) {
        run.start = seconds_now();
        ok = input_grow(&run.in, CHUNK_BYTES, error) && encode_files(&run, files, num_files, error);
        ok = check_signal(error) && ok; // a signal also ends the encoding of a word
        if (!ok) { shards_remove(&run.shards); }
    }
    atomic_close(&run.questions);
    if (ok && options->eval) { print_questions(&run); }
    if (ok && !options->eval) { print_summary(&run); }
    input_free(&run.in);
    tokenizer_free(&tokenizer);
    return ok;
}

int main(int argc, char **argv) {
    static Error error;
    Options options;
    ArgsOutcome outcome;
    int num_files;
    openmp_wait_briefly(argv);
    reserve_standard_files();
    exit_unless(args_parse(&program, &options, argc, argv, &num_files, &outcome, &error), "tokenize", &error);
    if (outcome != ARGS_RUN) { return EXIT_SUCCESS; }
    exit_unless(check_options(&options, num_files, &error), "tokenize", &error);
    exit_unless(openmp_set_threads(options.threads, &error), "tokenize", &error);
    catch_signals();
    exit_unless(run_all(&options, argv + 1, num_files, &error), "tokenize", &error);
    return EXIT_SUCCESS;
}
