// The headers of model files, training states and checkpoints, and damage in each part. (Damage at any byte:
// fuzz_checkpoint.c and fuzz_model_bin.c. What a kill leaves: test_kill.c. Pieces of arrays: test_pieces.c. Whole files
// and bf16: test_formats.py.)
#include "dev/test/files/checkpoint_run.h"
#include "dev/test/files/whole_model.h"
#include "dev/test/refused.h"
#include "dev/test/temp_dir.h"

static Run run;

enum { TINY_PARAMS = 90, TINY_BYTES = 1024 + 4 * TINY_PARAMS };

// ---- Model files ----

TEST(test_model_header_fields) {
    static const struct {
        int slot;
        int32_t value;
        const char *message;
    } cases[] = {
        {0, 0, ": is not a model: magic 0, expected 20240326; --init takes a size, a model's file or a run's folder"},
        {1, 4, ": model of version 4, expected 3 or 5"},
        {1, 5, ": header asks for 1204 bytes, file has 1384 (damaged?)"},
        {2, 0, ": context length is 0, expected 1 to 1048576"},
        {3, 5, ": padded vocabulary is 4, expected 5 to 1048576"},
        {5, 3, ": 2 channels, 3 heads of size 0, 3 heads of keys and values: choose heads that divide channels"},
        {6, -2, ": channels is -2, expected 1 to 65536"},
    };
    const char *path = test_path(t, "m.bin");
    ModelConfig config = tiny_config();
    float params[TINY_PARAMS] = {0};
    size_t size;
    OK(t, model_bin_write(path, &config, params, &error));
    uint8_t *bytes = temp_read(path, &size), copy[TINY_BYTES];
    FOR_EACH(i, cases) {
        memcpy(copy, bytes, TINY_BYTES);
        memcpy(copy + 4 * cases[i].slot, &cases[i].value, 4);
        temp_write(path, copy, TINY_BYTES);
        REFUSED(t, model_bin_read_config(path, &config, &error), path, cases[i].message);
    }
    free(bytes);
}

// ---- Training states ----

TEST(test_facts) {
    static StateHeader header;
    state_init(&header);
    int64_t i = 0;
    char text[64];
    state_add(&header, "step %lld\ndata a path with  spaces \nempty \n", (long long)-LARGEST_WHOLE);
    CHECK(t, state_get_number(&header, "s", "step", -LARGEST_WHOLE, 0, &i, &error) && i == -LARGEST_WHOLE, "a number");
    CHECK(t, state_get_text(&header, "data", text, sizeof(text)) && strcmp(text, "a path with  spaces ") == 0, "text");
    CHECK(t, state_get_text(&header, "empty", text, sizeof(text)) && text[0] == '\0', "empty text");
    CHECK(t, !state_get_text(&header, "data", text, 10), "a text that does not fit");
    CHECK(t, !state_get_text(&header, "ste", text, 64) && !state_get_text(&header, "step2", text, 64), "no such key");
    for (int j = 0; j < 10000; j++) { state_add(&header, "key%d 0123456789\n", j); }
    state_add(&header, "a 1\n");
    CHECK(t, header.length == -1, "more than fits, and is not forgotten");
    CHECK(t, strlen(header.text) > 65500 && ends_with(header.text, "789\n"), "whole lines");
}

// ---- Checkpoints ----

// Makes a run of the tiny model, and saves generation 5 as step 1.
static void save_tiny(Test *t, Run *run, OptimizerKind optimizer) {
    run_init(run, tiny_config());
    run->optimizer = optimizer;
    OK(t, run_save(run, test_folder(t), 1, 5, &error));
}

// Damage in each part of the files, and who is named for it.
TEST(test_damage_is_named) {
    save_tiny(t, &run, OPTIMIZER_ADAMW);
    const char *paths[2] = {test_path(t, "model_00000001.bin"), test_path(t, "state_00000001.bin")};
    size_t sizes[2];
    uint8_t *files[2] = {temp_read(paths[0], &sizes[0]), temp_read(paths[1], &sizes[1])};
    const long array = 4 * TINY_PARAMS, section = (long)sizes[1] - (long)sizeof(run.generation);
    enum { MODEL, STATE, FLIPPED = -1 };
    const struct {
        int file;
        long at;
        int value; // of the byte
        const char *text;
    } cases[] = {
        {MODEL, 1024, FLIPPED, ": section \"params\" is damaged: its checksum does not match"},
        {MODEL, 1000, FLIPPED, ": is damaged: its header is not the one its training state expects"},
        {STATE, section - 2 * array, FLIPPED, ": section \"adam_m\" is damaged: its checksum does not match"},
        {STATE, section - array, FLIPPED, ": section \"adam_v\" is damaged: its checksum does not match"},
        {STATE, section, FLIPPED, ": section \"generation\" is damaged: its checksum does not match"},
        {STATE, section - 2 * array - 1, FLIPPED, ": header is damaged: its checksum does not match"},
        {STATE, 8, 2,
         ": training state version is 2, expected 4; resume with the program that wrote it, or give the "
         "model of this step to --init"},
        {STATE, 0, 'X', ": not a training state: it does not begin with GPT2STAT"},
        {STATE, (long)sizes[1], 0, ": has 1830 bytes, its header tells another size (truncated?)"},
    };
    FOR_EACH(i, cases) {
        int file = cases[i].file;
        size_t at = (size_t)cases[i].at;
        uint8_t *copy = (uint8_t *)calloc(1, sizes[file] + 1);
        memcpy(copy, files[file], sizes[file]);
        copy[at] = (uint8_t)(cases[i].value == FLIPPED ? ~copy[at] : cases[i].value);
        temp_write(paths[file], copy, sizes[file] + (at == sizes[file]));
        REFUSED(t, run_load(&run, test_folder(t), 1, &error) != -1, paths[file], cases[i].text);
        bool elsewhere = file == STATE && cases[i].at >= section - 2 * array && at < sizes[STATE]; // not in the model
        CHECK(t, checkpoint_verify(test_folder(t), 1, &error) == elsewhere, "case %zu: without loading", i);
        temp_write(paths[file], files[file], sizes[file]);
        free(copy);
    }
    unlink(paths[MODEL]);
    REFUSED(t, run_load(&run, test_folder(t), 1, &error) != -1, paths[MODEL],
            ": cannot open: No such file or directory");
    free(files[0]), free(files[1]);
}

// A reader that skips the moments accepts what they hold, reads the other parts, and finds damage there.
TEST(test_skipped_moments) {
    static CheckpointReader r;
    size_t bytes;
    save_tiny(t, &run, OPTIMIZER_MUON);
    const char *state = test_path(t, "state_00000001.bin");
    free(temp_read(state, &bytes));
    temp_flip(state, (long)(bytes - sizeof(run.generation)) - 1); // the end of adam_v
    for (int damaged = 0; damaged < 2; damaged++) {
        if (damaged) { temp_flip(test_path(t, "model_00000001.bin"), 1024); }
        memset(run.arrays[CHECKPOINT_PARAMS], 0, 4 * TINY_PARAMS);
        memset(run.generation, 0, sizeof(run.generation));
        run.arrays[CHECKPOINT_ADAM_M][0] = run.arrays[CHECKPOINT_ADAM_V][0] = -7.0f;
        OK(t, run_read_begin(&run, &r, test_folder(t), 1, &error));
        r.skips_moments = true;
        OK(t, checkpoint_read_whole(&r, run.arrays, &error));
        CHECK(t, run_read_end(&run, &r, 1, &error) == !damaged, "%d: %s", damaged, error.text);
        float found = run.arrays[CHECKPOINT_PARAMS][param_place(&run.config, PARAM_qkvw, 0) + 4];
        bool read = run.generation[0] == 5 && found == run_value(&run, 0, 20, 5);
        CHECK(t, damaged || read, "the parameters and the section");
        CHECK(t, run.arrays[CHECKPOINT_ADAM_M][0] == -7.0f && run.arrays[CHECKPOINT_ADAM_V][0] == -7.0f, "moments");
    }
    FAILS(t, false, "model_00000001.bin: section \"params\" is damaged: its checksum does not match");
}

// Values that no run computes with are neither saved nor, from a file with right checksums, loaded.
static void check_value(Test *t, Run *run, int array, float value, const char *says) {
    static CheckpointWriter w;
    int64_t bad = param_offset(&run->config, PARAM_qkvb) + 2;
    bool is_model = array == CHECKPOINT_PARAMS;
    int64_t at = checkpoint_place(&run->config, run->optimizer, array, bad);
    int64_t offset = 4 * at;
    run_fill(run, 8);
    OK(t, run_write_begin(run, &w, test_folder(t), 3, true, &error));
    OK(t, run_write_arrays(run, &w, 0, 1, &error));
    CHECK(t, checkpoint_write(&w, array, bad, &value, 1, &error) == (says == NULL), "%g is saved", (double)value);
    OK(t, says == NULL || strstr(error.text, says) != NULL);
    w.sums.sums[array] -= sum64(at, &run->arrays[array][bad], 1); // checkpoint_write has not counted what it refuses
    if (says != NULL) { w.sums.sums[array] += sum64(at, &value, 1); }
    offset += is_model ? DATA_HEADER_BYTES : state_offset(&w.table, array);
    OK(t, atomic_write_at(is_model ? &w.model : &w.state, offset, &value, 4, &error));
    OK(t, checkpoint_write_flush(&w, &error) && checkpoint_write_commit(&w, &w.sums, &error));
    OK(t, checkpoint_verify(test_folder(t), 3, &error));
    error.text[0] = '\0';
    run_load(run, test_folder(t), 3, &error);
    CHECK(t, says == NULL ? error.text[0] == '\0' : strstr(error.text, says) != NULL, "said %s", error.text);
    OK(t, says == NULL || strstr(error.text, is_model ? "/model_" : "/state_") != NULL);
}

// With Muon, adam_v leaves out the tensor before qkvb.
TEST(test_not_finite) {
    static const struct {
        int array;
        float value;
        const char *says; // NULL: it is good
    } cases[] = {{CHECKPOINT_PARAMS, INFINITY, ": tensor qkvb of layer 0 holds inf at element 2; "},
                 {CHECKPOINT_ADAM_M, NAN, ": adam_m holds nan at element "},
                 {CHECKPOINT_ADAM_M, -INFINITY, ": adam_m holds -inf at element "},
                 {CHECKPOINT_ADAM_M, -3e38f, NULL},
                 {CHECKPOINT_ADAM_V, NAN, ": adam_v holds nan at element "},
                 {CHECKPOINT_ADAM_V, INFINITY, ": adam_v holds inf at element "},
                 {CHECKPOINT_ADAM_V, -1e-45f, ": adam_v holds -1.4013e-45 at element "},
                 {CHECKPOINT_ADAM_V, -0.0f, NULL}};
    run_init(&run, tiny_config());
    for (size_t i = 0; i < 2 * COUNT_OF(cases); i++) {
        run.optimizer = i % 2 == 0 ? OPTIMIZER_ADAMW : OPTIMIZER_MUON;
        check_value(t, &run, cases[i / 2].array, cases[i / 2].value, cases[i / 2].says);
    }
}

TEST(test_names) {
    int64_t steps[2] = {0, 0};
    run_init(&run, tiny_config());
    for (int64_t s = 5; s <= 15; s += 5) { OK(t, run_save(&run, test_folder(t), s, s, &error)); }
    OK(t, run_save(&run, test_folder(t), 123456789012, 7, &error));
    static const char *const foreign[] = {"0000001", "00000001_0", "000000001", "9007199254740993"}; // not our form
    FOR_EACH(i, foreign) { temp_write(test_path(t, format("state_%s.bin", foreign[i])), "", 0); }
    CHECK(t, list_steps(test_folder(t), steps, 2) == 2 && steps[0] == 123456789012 && steps[1] == 15, "newest first");
    OK(t, run_load(&run, test_folder(t), 123456789012, &error) == 7);
    rename(test_path(t, "state_123456789012.bin"), test_path(t, "state_00000020.bin"));
    REFUSED(t, run_load(&run, test_folder(t), 20, &error) != -1, test_path(t, "state_00000020.bin"),
            ": the training state says step 123456789012, expected a whole number from 20 to 20");
}

TEST(test_prune) {
    static const struct {
        int keep;
        int64_t major, newest;
        const char *left;
    } cases[] = {{0, 0, 60, "60 50 40 30 20 10 0"},
                 {3, 20, 60, "60 50 40 20 0"},
                 {1, 0, 30, "60 50 40 30"},
                 {9, 7, 60, "60 50 40 30 20 10 0"}};
    run_init(&run, tiny_config());
    FOR_EACH(i, cases) {
        const char *dir = test_new_folder(t);
        int64_t steps[16];
        char left[100] = "";
        for (int64_t s = 0; s <= 60; s += 10) { run_save(&run, dir, s, s, &error); }
        checkpoint_prune(dir, cases[i].newest, cases[i].keep, cases[i].major);
        int count = list_steps(dir, steps, 16);
        for (int j = 0; j < count; j++) {
            size_t n = strlen(left);
            snprintf(left + n, sizeof(left) - n, j ? " %lld" : "%lld", (long long)steps[j]);
        }
        CHECK(t, strcmp(left, cases[i].left) == 0, "case %zu: %s", i, left);
        CHECK(t, count_files(dir) == 2 * count, "case %zu: models go with their states", i);
    }
}

TEST(test_clean_keeps_what_is_not_ours) {
    run_init(&run, tiny_config());
    run_save(&run, test_folder(t), 1, 1, &error);
    static const char *const stay[] = {
        "model_00000007.bin",    "model_00000009.bin",       "model_00000010.bin",      "notes.tmp",
        "model_7.bin.tmp",       "mymodel_00000007.bin.tmp", "model_00000007.bin.tmp2", "state_00000011.bin",
        "model_00000011.bin.tmp"};
    static const char *const go[] = {"model_00000001.bin.tmp", "model_00000008.bin.tmp", "state_00000009.bin.tmp",
                                     "model_00000010.bin.tmp"};
    FOR_EACH(i, stay) { temp_write(test_path(t, stay[i]), "x", 1); }
    FOR_EACH(i, go) { temp_write(test_path(t, go[i]), "x", 1); }
    OK(t, checkpoint_clean(test_folder(t), &error));
    FOR_EACH(i, stay) { CHECK(t, temp_exists(test_path(t, stay[i])), "%s was removed", stay[i]); }
    FOR_EACH(i, go) { CHECK(t, !temp_exists(test_path(t, go[i])), "%s stayed", go[i]); }
    OK(t, run_load(&run, test_folder(t), 1, &error) == 1);
}

// A state that cannot get its name leaves nothing. A model that cannot get its name when its state has one stays under
// the temporary name, where a reader finds it.
TEST(test_file_without_its_name) {
    static CheckpointWriter w;
    run_init(&run, tiny_config());
    for (int model = 0; model < 2; model++) {
        const char *path = test_path(t, model ? "model_00000001.bin" : "state_00000001.bin");
        run_fill(&run, 1);
        OK(t, run_write_begin(&run, &w, test_folder(t), 1, true, &error) && run_write_arrays(&run, &w, 0, 1, &error));
        OK(t, mkdir(path, 0755) == 0);
        FAILS(t, checkpoint_write_commit(&w, &w.sums, &error), "could not rename it"); // not in place of a folder
        checkpoint_write_close(&w);
        if (model) {
            OK(t, run_load(&run, test_folder(t), 1, &error) == 1);
        } else {
            CHECK(t, count_files(test_folder(t)) == 1 && rmdir(path) == 0, "a file stays");
        }
    }
}

// A limit on the size of files stands for the full disk: the model does not fit, or its state does not.
TEST(test_full_disk) {
    static const char *const says[] = {"/model_00000001.bin: could not ", "/state_00000001.bin: could not "};
    const ModelConfig config = GPT2_CONFIG(5, 11, 128, 3, 1, 7); // the model and each moment: 12 kB
    run_init(&run, config);
    OK(t, run_save(&run, test_folder(t), 1, 1, &error));
    FOR_EACH(i, says) {
        rlim_t old = temp_limit_files(i == 0 ? 4000 : 13000);
        bool ok = run_save(&run, test_folder(t), 1, 2, &error);
        temp_limit_files(old);
        FAILS(t, ok, says[i]);
        CHECK(t, run_load(&run, test_folder(t), 1, &error) == 1, "the previous checkpoint stays: %s", error.text);
        CHECK(t, count_files(test_folder(t)) == 2, "half-written: %d files", count_files(test_folder(t)));
    }
}
