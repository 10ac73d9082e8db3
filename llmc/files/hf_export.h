// Writes the folder of --export, which Hugging Face transformers loads without further arguments, as a model
// (GPT2LMHeadModel, AutoModelForCausalLM), as a tokenizer (AutoTokenizer) and as a pipeline.
//
// All files are first written under temporary names. Then the weights of an earlier export are removed, the small files
// get their names, and the weights get their name last. So a folder with model.safetensors holds one whole model.
#ifndef LLMC_HF_EXPORT_H
#define LLMC_HF_EXPORT_H

#include "llmc/base/files.h"
#include "llmc/model/gpt2.h"
#include "llmc/files/hf_tokenizer.h"
#include "llmc/base/json.h"
#include "llmc/files/safetensors.h"
#include "llmc/base/utils.h"

// The files of an export, in the order in which they get their names. The files from HF_FIRST_OF_TOKENIZER to
// HF_LAST_OF_TOKENIZER exist only when the tokenizer is known.
enum { HF_CONFIG, HF_GENERATION, HF_TOKENIZER, HF_TOKENIZER_CONFIG, HF_SPECIAL, HF_VOCAB, HF_MERGES, HF_WEIGHTS };
enum { HF_FIRST_OF_TOKENIZER = HF_TOKENIZER, HF_LAST_OF_TOKENIZER = HF_MERGES, HF_NUM_FILES = HF_WEIGHTS + 1 };

static const char *const hf_file_names[HF_NUM_FILES] = {
    SAFETENSORS_CONFIG_NAME, "generation_config.json",  HF_TOKENIZER_NAME,
    "tokenizer_config.json", "special_tokens_map.json", HF_VOCAB_NAME,
    HF_MERGES_NAME,          SAFETENSORS_FILE_NAME};

// ---- The folder ----

// Tells whether a name is a file of ours or its temporary name.
static inline bool hf_is_own_name(const char *name) {
    for (int i = 0; i < HF_NUM_FILES; i++) {
        size_t n = strlen(hf_file_names[i]);
        if (strncmp(name, hf_file_names[i], n) != 0) { continue; }
        if (name[n] == '\0' || strcmp(name + n, TEMPORARY_SUFFIX) == 0) { return true; }
    }
    return false;
}

// Tells whether the folder holds an earlier export of ours, by its config.json.
static inline bool hf_is_own_export(const char *dir) {
    char path[MAX_PATH_BYTES];
    Json json;
    Error ignored;
    if (!path_join(path, dir, SAFETENSORS_CONFIG_NAME, &ignored)) { return false; }
    bool own =
        json_load(&json, path, SAFETENSORS_MAX_CONFIG, &ignored) && json_find(&json, 0, SAFETENSORS_VERSION_KEY) >= 0;
    json_free(&json);
    return own;
}

// Looks for files that an export must not be mixed with. stranger becomes the first such name in byte order, or empty.
// Hidden files are allowed, and so are temporary files of an export that was killed.
static inline bool hf_find_stranger(const char *dir, char stranger[256], bool *has_log, Error *error) {
    DIR *folder = opendir(dir);
    if (folder == NULL) { return fail_system(error, dir, "read folder"); }
    stranger[0] = '\0';
    *has_log = false;
    for (struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder)) {
        const char *name = entry->d_name;
        *has_log |= strcmp(name, "main.log") == 0 || strcmp(name, ".lock") == 0;
        bool temporary = hf_is_own_name(name) && ends_with(name, TEMPORARY_SUFFIX);
        if (name[0] == '.' || temporary || (stranger[0] != '\0' && strcmp(name, stranger) >= 0)) { continue; }
        snprintf(stranger, 256, "%s", name);
    }
    closedir(folder);
    return true;
}

// Checks that the folder can be made: what already exists of its path must be a folder that allows writing.
static inline bool hf_check_parent(const char *dir, Error *error) {
    char parent[MAX_PATH_BYTES];
    path_existing(parent, dir);
    if (!path_is_directory(parent)) { return fail(error, "--export %s: %s is a file, not a folder", dir, parent); }
    return access(parent, W_OK | X_OK) == 0 ||
           fail(error, "--export %s: cannot write in %s: %s", dir, parent, strerror(errno));
}

// Refuses a folder that holds anything but an earlier export. Refuses a run's folder, where --init would take the
// export instead of newer checkpoints. Called before a long run begins, and again before the export.
static inline bool hf_export_check(const char *dir, Error *error) {
    char stranger[256];
    bool has_log = false;
    if (!path_check(dir, "--export", error) || !hf_check_parent(dir, error)) { return false; }
    if (!path_exists(dir)) { return true; }
    if (!hf_find_stranger(dir, stranger, &has_log, error)) { return false; }
    if (has_log) {
        return fail(error, "--export %s: is the folder of a run; choose another one, for example %s/hf", dir, dir);
    }
    return stranger[0] == '\0' || hf_is_own_export(dir) ||
           fail(error, "--export %s: holds '%s', which no export wrote; choose a new or an empty folder", dir,
                stranger);
}

// ---- The files ----

typedef struct {
    const char *dir;
    const GPT2Config *config;
    const Tokenizer *tokenizer; // NULL: unknown, or cannot be written
    int trained_positions, end_of_text;
    AtomicFile files[HF_NUM_FILES];
} HfExport;

static inline bool hf_is_left_out(const HfExport *e, int i) {
    return e->tokenizer == NULL && i >= HF_FIRST_OF_TOKENIZER && i <= HF_LAST_OF_TOKENIZER;
}

// Samplers need a token to fill short texts with, and GPT-2 has none of its own.
static inline void hf_add_generation_config(Text *text, const HfExport *e) {
    text_printf(text, "{\n  \"bos_token_id\": %d,\n  \"eos_token_id\": %d,\n  \"pad_token_id\": %d\n}\n",
                e->end_of_text, e->end_of_text, e->end_of_text);
}

static inline void hf_add_special_tokens(Text *text) {
    text_printf(text, "{\n  \"bos_token\": \"%s\",\n  \"eos_token\": \"%s\",\n  \"unk_token\": \"%s\"\n}\n",
                END_OF_TEXT, END_OF_TEXT, END_OF_TEXT);
}

static inline void hf_add_file(Text *text, const HfExport *e, int i, const uint32_t *pairs) {
    switch (i) {
    case HF_CONFIG: safetensors_add_config(text, e->config, e->trained_positions, e->end_of_text); break;
    case HF_GENERATION: hf_add_generation_config(text, e); break;
    case HF_TOKENIZER: hf_add_tokenizer_json(text, e->tokenizer, pairs); break;
    case HF_TOKENIZER_CONFIG: hf_add_tokenizer_config(text, e->tokenizer, e->trained_positions); break;
    case HF_SPECIAL: hf_add_special_tokens(text); break;
    case HF_VOCAB: hf_add_vocab(text, e->tokenizer); break;
    case HF_MERGES: hf_add_merges_text(text, e->tokenizer, pairs); break;
    default: break;
    }
}

// Writes one of the texts under its temporary name.
static inline bool hf_write_text(HfExport *e, int i, const uint32_t *pairs, Error *error) {
    Text text = {NULL, 0, 0, false};
    char path[MAX_PATH_BYTES];
    hf_add_file(&text, e, i, pairs);
    bool ok = !text.failed || fail(error, "%s: out of memory for %s", e->dir, hf_file_names[i]);
    ok = ok && path_join(path, e->dir, hf_file_names[i], error) && atomic_open(&e->files[i], path, error) &&
         atomic_write(&e->files[i], text.data, (int64_t)text.used, error) && atomic_flush(&e->files[i], error);
    text_free(&text);
    return ok;
}

static inline bool hf_write_files(HfExport *e, const float *params, Error *error) {
    char path[MAX_PATH_BYTES];
    uint32_t *pairs = e->tokenizer == NULL ? NULL : hf_merge_pairs(e->tokenizer);
    bool ok = e->tokenizer == NULL || pairs != NULL || fail(error, "%s: out of memory for the merges", e->dir);
    for (int i = 0; ok && i < HF_WEIGHTS; i++) { ok = hf_is_left_out(e, i) || hf_write_text(e, i, pairs, error); }
    free(pairs);
    return ok && path_join(path, e->dir, SAFETENSORS_FILE_NAME, error) &&
           safetensors_write_pending(&e->files[HF_WEIGHTS], path, e->config, params, error);
}

static inline bool hf_remove_file(const HfExport *e, int i, Error *error) {
    char path[MAX_PATH_BYTES];
    if (!path_join(path, e->dir, hf_file_names[i], error)) { return false; }
    return files_remove(path) || fail_system(error, path, "remove");
}

// Gives the files their names, in place of an earlier export's files. All of them are on the disk already.
static inline bool hf_name_files(HfExport *e, Error *error) {
    bool ok = hf_remove_file(e, HF_WEIGHTS, error);
    for (int i = 0; ok && i < HF_NUM_FILES; i++) {
        ok = hf_is_left_out(e, i) ? hf_remove_file(e, i, error) : atomic_commit(&e->files[i], error);
    }
    return ok;
}

// Returns the id that begins and ends documents for a model without a tokenizer: the last id of GPT-2's vocabulary, or
// of the model's vocabulary if it is smaller.
static inline int hf_default_end_of_text(const GPT2Config *config) {
    return (int)min_i64(GPT2_VOCAB_SIZE, config->vocab_size) - 1;
}

// Writes the model into the folder dir, which it creates. Writes the tokenizer too, if it is given (NULL: not known)
// and can encode; *has_tokenizer tells whether it did. trained_positions: of the model, at most its context. params:
// all parameters in fp32, in the order of a checkpoint.
static inline bool hf_export(const char *dir, const GPT2Config *config, int trained_positions, const float *params,
                             const Tokenizer *tokenizer, bool *has_tokenizer, Error *error) {
    *has_tokenizer = tokenizer != NULL && tokenizer_can_encode(tokenizer);
    if (!hf_export_check(dir, error) || !make_directories(dir, error)) { return false; }
    HfExport *e = (HfExport *)calloc(1, sizeof(HfExport));
    if (e == NULL) { return fail(error, "%s: out of memory", dir); }
    e->dir = dir;
    e->config = config;
    e->trained_positions = trained_positions;
    e->tokenizer = *has_tokenizer ? tokenizer : NULL;
    e->end_of_text = tokenizer != NULL ? tokenizer->eot_token : hf_default_end_of_text(config);
    for (int i = 0; i < HF_NUM_FILES; i++) { atomic_init(&e->files[i]); }
    bool ok = hf_write_files(e, params, error) && hf_name_files(e, error);
    for (int i = 0; i < HF_NUM_FILES; i++) { atomic_abort(&e->files[i]); }
    free(e);
    return ok;
}

#endif // LLMC_HF_EXPORT_H
