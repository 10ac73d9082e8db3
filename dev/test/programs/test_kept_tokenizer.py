"""The copies of the tokenizer that a run and `tokenize` keep, and the tokenizer beside a model's file: sampling and
resuming need no option. What dev/hf.py makes of them: test_hf.py."""
import os
import re
import subprocess

import pytest

import cli
import formats
from cli import QUIET, TINY, new_folder, path, ran, refused, write
from tools import ROOT, read

TOKENIZE = os.path.abspath(os.environ.get("TOKENIZE", os.path.join(ROOT, "tokenize")))
NO_STEPS = ["--steps", 0, "--sample-tokens", 8]
TRAIN = [*TINY, *QUIET, "-x", 2]
PROMPT = [*NO_STEPS, "--prompt", "a b", "--temperature", 0]


def whose(out):
    return re.search("^tokenizer   (.*)$", out, re.M)[1]


@pytest.mark.parametrize("tokenizer", ("byte", "merges"))
def test_a_run_keeps_its_tokenizer(tokenizer):
    """Sampling and resuming need nothing but the folder, also when the file is gone."""
    name = tokenizer if tokenizer == "byte" else write("made_up.bin", formats.pair_tokenizer())
    folder, text = new_folder("keeps"), cli.text_file()
    train = ["-i", text, *TRAIN, "-o", folder]
    ran(*train, "--tokenizer", name)
    model = os.path.join(folder, "model_00000002.bin")
    good = cli.sample_of(ran("--init", folder, *PROMPT, "--tokenizer", name))
    if tokenizer != "byte":
        os.remove(name)
    write("moved.bin", read(model))  # as dev/hf.py names the two
    write("moved_tokenizer.bin", read(f"{folder}/tokenizer.bin"))
    for init, of in ((folder, f"{folder}/tokenizer.bin"), (model, f"{folder}/tokenizer.bin"),
                     (path("moved.bin"), path("moved_tokenizer.bin"))):
        out = ran("--init", init, *PROMPT)
        assert whose(out) == f"{of}, the model's own" and cli.sample_of(out) == good, out
    assert whose(ran(*train, "--resume")) == f"{folder}/tokenizer.bin, the model's own"
    other = new_folder("tuned")  # a text to go on with takes the model's tokenizer, and the new run keeps it, too
    ran("-i", text, "--init", folder, "--seq-len", 16, "-b", 2, *QUIET, "-x", 1, "-o", other)
    assert read(f"{other}/tokenizer.bin") == read(f"{folder}/tokenizer.bin")


def other_tokenizer():
    """One of equal size."""
    words = formats.pair_words()
    words[300], words[301] = words[301], words[300]
    return write("other.bin", cli.tokenizer_bytes(words))


def test_resume_with_another_tokenizer():
    """Its tokens count, not its name. An older version's folder, which has no copy, is used as before."""
    name, folder = write("made_up.bin", formats.pair_tokenizer()), new_folder("changes")
    same, other = write("same.bin", read(name)), other_tokenizer()
    train = ["-i", cli.shard("ids.bin", cli.random_tokens(200, 50257)), *TRAIN, "-o", folder]
    ran(*train, "--tokenizer", name)
    ran(*train, "--tokenizer", same, "--resume")
    refused(*train, "--tokenizer", other, "--resume", says=["tokenizer-fingerprint was"])
    model = os.path.join(folder, "model_00000002.bin")  # which knows its tokenizer wherever it is
    refused("--init", model, *PROMPT, "--tokenizer", other, says=[f"{model}: was made with another tokenizer (", other])
    os.remove(os.path.join(folder, "tokenizer.bin"))
    assert whose(ran(*train, "--resume")).startswith("none")
    refused("--init", folder, *PROMPT, says=["--prompt", "--tokenizer gpt2_tokenizer.bin"])
    ran(*train, "--tokenizer", name, "--resume")
    assert "tokenizer.bin" in os.listdir(folder)
    ran(*train, "--overwrite")
    assert "tokenizer.bin" not in os.listdir(folder), "a run without a tokenizer has an older run's"


def test_shards_of_tokenize():
    """`tokenize` leaves a copy beside the shards, which no pattern for shards matches: samples are text. The ids have
    32 bits, and a run on the text itself has equal losses."""
    name, text = write("wide_tokenizer.bin", formats.wide_tokenizer()), cli.text_file(size=3000)
    subprocess.run([TOKENIZE, "--tokenizer", name, "--output", path("shards/a_book"), text], check=True,
                   stdout=subprocess.DEVNULL)
    copy, folder = path("shards/a_book.tokenizer"), new_folder("of_shards")
    train = [*TRAIN, "-o", folder, "-i", path("shards/*.bin")]
    out = ran(*train)
    assert whose(out) == f"{copy}, the data's own", out
    same = ran("-i", text, "--tokenizer", name, "--val-fraction", 0, *TRAIN)
    assert cli.losses(out) == cli.losses(same) and len(cli.losses(out)) == 2, (out, same)
    out = ran("--init", folder, *PROMPT)
    assert whose(out) == f"{folder}/tokenizer.bin, the model's own" and cli.sample_of(out).startswith("a b"), out
    os.remove(copy)
    out = ran(*train, "--overwrite", "--vocab", len(formats.wide_words()[0]))
    assert whose(out).startswith("none, samples are token ids; give --tokenizer gpt2_tokenizer.bin ("), out
    ran("--init", folder, *PROMPT, "--tokenizer", name)  # as advised


def test_data_of_another_tokenizer():
    """Shards, validation's and questions know their tokenizer by its hash. One of equal size is refused, one line."""
    name, text = write("made_up.bin", formats.pair_tokenizer()), cli.text_file(size=20000)
    other = other_tokenizer()
    for tokenizer, prefix in ((name, "mine"), (other, "theirs")):
        command = [TOKENIZE, "--tokenizer", tokenizer, "--output", path(prefix), "--overwrite"]
        subprocess.run([*command, text], check=True, stdout=subprocess.DEVNULL)
        subprocess.run([*command, "--eval", "-"], check=True, stdout=subprocess.DEVNULL,
                       input=b'{"context": "a", "completions": [" b", " c", " d", " e"], "label": 1}')
    hashes = [f"{formats.hash64(read(file)):016x}" for file in (name, other)]
    train = ["-i", path("mine_train_*.bin"), "--tokenizer", name, *TINY, "-s", 0, "-v", 2, "-x", 2]
    ran(*train, "-j", path("mine_train_000001.bin"), "--hellaswag", 1, "--hellaswag-data", path("mine_val.bin"))
    for bad, options in (("theirs_train_000001.bin", ["-i", path("theirs_train_*.bin"), *train[2:]]),
                         ("theirs_train_000001.bin", [*train, "-j", path("theirs_train_000001.bin")]),
                         ("theirs_val.bin", [*train, "--mmlu", path("theirs_val.bin")])):
        refused(*options, says=[f"{path(bad)}: was made with another tokenizer ({hashes[1]}) than {name} ({hashes[0]});"
                                " give --tokenizer the file's own"])
