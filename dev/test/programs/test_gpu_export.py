"""--export by the GPU trainer in the emulator: alone and as two ranks in every ZeRO stage, the CPU trainer's files to
the byte."""
import os

import cli
import formats
import ranks

FILES = ["config.json", "generation_config.json", "merges.txt", "model.safetensors", "special_tokens_map.json",
         "tokenizer.json", "tokenizer_config.json", "vocab.json"]


def files_of(folder):
    assert sorted(os.listdir(folder)) == FILES, os.listdir(folder)
    return {name: formats.read_bytes(os.path.join(folder, name)) for name in FILES}


def test_ranks():
    init = cli.model("in.bin", cli.config(L=2))
    arguments = ["--init", init, "--steps", 0, "-s", 0]
    ours = cli.new_folder("cpu")
    cli.ran(*arguments, "--export", ours)
    for count, stage in ((1, 0), (2, 0), (2, 1), (2, 2), (2, 3)):
        folder = cli.new_folder("gpu")
        out = ranks.ran(count, *arguments, "-z", stage, "--export", folder)
        assert f"exported    {folder}: the model and its tokenizer" in out, out
        assert files_of(folder) == files_of(ours), (count, stage)


def test_refusal_is_shared():
    """Rank 0 sees that the folder holds something else; all end with its words, before a step."""
    folder = cli.new_folder("other")
    os.makedirs(folder)
    cli.write("other/thesis.txt", b"years of work")
    line, _, _ = ranks.refused(2, "--init", cli.model("in.bin"), "--steps", 0, "-s", 0, "--export", folder,
                               says=["holds 'thesis.txt', which no export wrote"])
    assert "thesis.txt" in line and os.listdir(folder) == ["thesis.txt"]


def test_only_one_exports():
    """Told by name, not found out as ranks that do not do the same."""
    ranks.refused(2, "--init", cli.model("in.bin"), "--steps", 0, "-s", 0, says=["--export is "],
                  only={1: {"arguments": ["--export", cli.new_folder("one")]}})
