// What --init takes: a size, a .bin file, a run's folder. Models of Hugging Face are refused with the command.
#include "dev/test/files/checkpoint_run.h"
#include "dev/test/refused.h"
#include "dev/test/temp_dir.h"
#include "llmc/files/model_file.h"

static Run run;
static ModelFile file;

TEST(test_init_size) {
    OK(t, model_file_open(&file, "d12", &error) && file.path[0] == '\0');
    CHECK(t, file.config.num_layers == 12 && file.config.channels == 768 && file.config.vocab_size == 0, "d12");
}

TEST(test_init_refused) {
    const char *folder = test_path(t, "hf");
    REFUSED(t, model_file_open(&file, "d13", &error), "--init d13",
            ": neither a size (one of" MODEL_SIZE_NAMES ") nor a model's file nor the folder of a run; "
            "`python3 dev/hf.py import NAME model.bin` makes a file of a model of the Hub");
    OK(t, make_directories(folder, &error));
    FAILS(t, model_file_open(&file, folder, &error), "/hf: this folder holds no checkpoint; give a model's .bin file");
    const char *rest =
        format("is a model of Hugging Face; `python3 dev/hf.py import %s model.bin` makes a file", folder);
    static const char *const names[] = {"hf/pytorch_model.bin", "hf/model.safetensors.index.json",
                                        "hf/model.safetensors"};
    FOR_EACH(i, names) {
        const char *path = test_path(t, names[i]);
        temp_write(path, "x", 1);
        FAILS(t, model_file_open(&file, folder, &error), rest);
        if (i == 2) { FAILS(t, model_file_open(&file, path, &error), rest); }
        unlink(path);
    }
}

static void check_opens(Test *t, ModelFile *file, const char *name) {
    OK(t, model_file_open(file, test_folder(t), &error));
    CHECK(t, strcmp(file->path, test_path(t, name)) == 0, "%s, expected %s", file->path, name);
}

TEST(test_init_run_folder) {
    run_init(&run, tiny_config());
    for (int64_t step = 1; step <= 3; step++) { OK(t, run_save(&run, test_folder(t), step, step, &error)); }
    check_opens(t, &file, "model_00000003.bin");
    CHECK(t, file.note.text[0] == '\0', "nothing passed over");
    const char *newest = test_path(t, "model_00000003.bin"), *temporary = test_path(t, "model_00000003.bin.tmp");
    temp_must(rename(newest, temporary) == 0, newest); // killed before the model got its name
    check_opens(t, &file, "model_00000003.bin.tmp");
    temp_must(rename(temporary, newest) == 0, newest);
    temp_flip(test_path(t, "model_00000003.bin"), 1030);
    check_opens(t, &file, "model_00000002.bin");
    error = file.note;
    REFUSED(t, false, test_path(t, "model_00000003.bin"),
            ": section \"params\" is damaged: its checksum does not match");
    for (int i = 1; i <= 3; i++) { temp_write(test_path(t, format("model_%08d.bin", i)), "x", 1); }
    FAILS(t, model_file_open(&file, test_folder(t), &error),
          "model_00000003.bin: 1 bytes, less than the header of a model");
}
