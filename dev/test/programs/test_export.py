"""What --export writes, read with Python's own JSON, and --init of such folders: standard library only. What Hugging
Face's library makes of them: test_transformers.py. Also the tokenizer that a run and `tokenize` keep a copy of."""
import hashlib
import json
import os
import re
import signal
import subprocess

import pytest

import cli
import formats
from cli import MODEL, QUIET, TINY, new_folder, path, ran, refused, write
from tools import ROOT, SHARED

TOKENIZE = os.path.abspath(os.environ.get("TOKENIZE", os.path.join(ROOT, "tokenize")))
GPT2_MERGES = os.path.join(SHARED, "vocab.bpe")
FILES = ["config.json", "generation_config.json", "merges.txt", "model.safetensors", "special_tokens_map.json",
         "tokenizer.json", "tokenizer_config.json", "vocab.json"]
WEIGHTS = ["config.json", "generation_config.json", "model.safetensors"]
NO_STEPS = ["--steps", 0, "--sample-tokens", 8]
END = "<|endoftext|>"


def read_json(folder, name):
    """Strictly: no member twice."""
    def members(pairs):
        assert len(dict(pairs)) == len(pairs), (name, pairs)
        return dict(pairs)
    with open(os.path.join(folder, name), encoding="utf-8") as file:
        return json.load(file, object_pairs_hook=members)


def export(*arguments):
    folder = new_folder("hf")
    out = ran(*NO_STEPS, *arguments, "--export", folder)
    assert not [name for name in os.listdir(folder) if name.endswith(".tmp")], os.listdir(folder)
    return folder, out


def check_config(folder, vocab, end, context):
    config, generation = (read_json(folder, name) for name in ("config.json", "generation_config.json"))
    assert config["architectures"] == ["GPT2LMHeadModel"] and config["model_type"] == "gpt2"
    assert config["n_positions"] == config["n_ctx"] == context and config["vocab_size"] == vocab
    assert (config["n_layer"], config["n_head"], config["n_embd"]) == (1, 2, 16)
    assert config["tie_word_embeddings"] is True and config["torch_dtype"] == "float32"
    assert config["activation_function"] == "gelu_new" and config["layer_norm_epsilon"] == 1e-5
    for settings in (config, generation):
        assert settings["bos_token_id"] == settings["eos_token_id"] == end, settings
    assert generation["pad_token_id"] == end
    tensors = formats.read_safetensors(os.path.join(folder, "model.safetensors"))[1]
    assert tensors["wte.weight"][1] == (vocab, 16), "the padding is cut off"


def check_tokenizer(folder, vocab, merges, context):
    """vocab: the tokens' texts in the order of their ids; merges: pairs of texts."""
    whole, settings = read_json(folder, "tokenizer.json"), read_json(folder, "tokenizer_config.json")
    assert read_json(folder, "vocab.json") == whole["model"]["vocab"] == {text: i for i, text in enumerate(vocab)}
    with open(os.path.join(folder, "merges.txt"), encoding="utf-8", newline="") as file:
        assert file.read() == "".join(["#version: 0.2\n", *(f"{a} {b}\n" for a, b in merges)])
    assert whole["model"]["merges"] == [list(pair) for pair in merges] and whole["model"]["type"] == "BPE"
    assert [(token["id"], token["content"], token["special"]) for token in whole["added_tokens"]] == [
        (len(vocab) - 1, END, True)]
    step = whole["pre_tokenizer"]
    assert (step["type"], step["add_prefix_space"], step["use_regex"]) == ("ByteLevel", False, True)
    assert whole["normalizer"] is None and whole["decoder"]["type"] == "ByteLevel"
    assert settings["tokenizer_class"] == "GPT2Tokenizer" and settings["model_max_length"] == context
    assert settings["clean_up_tokenization_spaces"] is False and settings["add_prefix_space"] is False
    assert list(settings["added_tokens_decoder"]) == [str(len(vocab) - 1)]
    assert {settings[f"{name}_token"] for name in ("bos", "eos", "unk")} == {END}
    assert set(read_json(folder, "special_tokens_map.json").values()) == {END}


def symbol(byte):
    return formats.SYMBOLS[formats.BYTES.index(byte)]


def test_bytes():
    folder, out = export("--tokenizer", "byte", *MODEL)
    assert f"exported    {folder}: the model and its tokenizer, for Hugging Face transformers\n" in out
    assert sorted(os.listdir(folder)) == FILES
    check_config(folder, 257, 256, 16)
    check_tokenizer(folder, [symbol(byte) for byte in range(256)] + [END], [], 16)


def test_gpt2_to_the_byte():
    """OpenAI published the vocabulary as encoder.json and vocab.bpe: the same files come out."""
    if not os.path.exists(GPT2_MERGES):
        pytest.skip("../shared/data is not here")
    folder, _ = export("--tokenizer", GPT2_MERGES, *MODEL)
    hashes = {name: hashlib.sha256(formats.read_bytes(os.path.join(folder, name))).hexdigest()
              for name in ("vocab.json", "merges.txt")}
    assert hashes == {"vocab.json": "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
                      "merges.txt": "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"}, hashes


def test_a_list_of_tokens():
    """llm.c's gpt2_tokenizer.bin: the merges follow from the order of tokens, or it is exported without."""
    pairs = [(0, 1), (256, 2), (30, 31)]
    words = [bytes([byte]) for byte in formats.BYTES]
    for left, right in pairs:
        words.append(words[left] + words[right])
    words.append(END.encode())
    formats.write_tokenizer(path("t.bin"), words, 259)
    folder, _ = export("--tokenizer", path("t.bin"), *MODEL)
    texts = ["".join(symbol(byte) for byte in word) for word in words]
    check_config(folder, 260, 259, 16)
    check_tokenizer(folder, texts, [(texts[left], texts[right]) for left, right in pairs], 16)
    words[257], words[258] = words[258], words[257] + b"?"  # no merge makes this
    formats.write_tokenizer(path("t.bin"), words, 259)
    out = ran(*NO_STEPS, "--tokenizer", path("t.bin"), *MODEL, "--export", folder)  # over the first
    assert f"exported    {folder}: the model without a tokenizer (this one only decodes); to export both, give " \
           "--tokenizer vocab.bpe (python3 dev/data/vocab.py fetches it)\n" in out, out
    assert sorted(os.listdir(folder)) == WEIGHTS


def test_without_a_tokenizer():
    folder, out = export("--vocab", 50257, *MODEL)
    assert f"exported    {folder}: the model without a tokenizer (none was given); to export both, give " in out, out
    assert sorted(os.listdir(folder)) == WEIGHTS
    check_config(folder, 50257, 50256, 16)
    folder, _ = export("--vocab", 300, *MODEL)
    check_config(folder, 300, 299, 16)


def test_room_for_more_tokens():
    """A model with more rows than tokens: end-of-text is the tokenizer's, and --init takes both again."""
    folder, _ = export("--vocab", 300, "--tokenizer", "byte", *MODEL)
    check_config(folder, 300, 256, 16)
    assert "tokenizer   " + folder + ", the model's own\n" in ran("--init", folder, *NO_STEPS)


def test_init_takes_the_tokenizer():
    name = write("made_up.bpe", formats.merges_text().encode())
    folder, out = export("--tokenizer", name, *MODEL, "--prompt", "a b")
    prompt = ["--prompt", "a b"]
    again = new_folder("again")
    got = ran(*NO_STEPS, "--init", folder, *prompt, "--export", again)
    assert cli.sample_of(got) == cli.sample_of(out) and f"tokenizer   {folder}, the model's own\n" in got, got
    for file in FILES:
        assert formats.read_bytes(f"{folder}/{file}") == formats.read_bytes(f"{again}/{file}"), file
    file = os.path.join(folder, "model.safetensors")
    assert cli.sample_of(ran(*NO_STEPS, "--init", file, *prompt)) == cli.sample_of(out)
    text, tiny = cli.text_file(), ["--seq-len", 16, "-b", 2, "-x", 2, *QUIET]
    own = cli.weights_hash(ran("-i", text, "--init", folder, *tiny))  # trains on a text with it
    assert own == cli.weights_hash(ran("-i", text, "--init", folder, "--tokenizer", name, *tiny))
    resumed = new_folder("resumed")
    ran("-i", text, "--init", folder, *tiny, "-o", resumed)
    out = ran("-i", text, "--init", folder, *tiny, "-o", resumed, "--resume")
    assert cli.weights_hash(out) == own and f"tokenizer   {resumed}/tokenizer.bin, the model's own\n" in out, out


# ---- The copies that runs and shards keep ----

TRAIN = [*TINY, *QUIET, "-x", 2]
PROMPT = [*NO_STEPS, "--prompt", "a b", "--temperature", 0]


def whose(out):
    return re.search("^tokenizer   (.*)$", out, re.M)[1]


@pytest.mark.parametrize("tokenizer, more", (("byte", ()), ("byte", ("--vocab", 300)), ("merges", ())),
                         ids=("bytes", "room", "merges"))
def test_a_run_keeps_its_tokenizer(tokenizer, more):
    """Sampling, resuming and exporting need nothing but the folder, also when the file is gone."""
    name = tokenizer if tokenizer == "byte" else write("made_up.bpe", formats.merges_text())
    folder, text = new_folder("keeps"), cli.text_file()
    train = ["-i", text, *TRAIN, *more, "-o", folder]
    ran(*train, "--tokenizer", name)
    model = os.path.join(folder, "model_00000002.bin")
    good = cli.sample_of(ran("--init", folder, *PROMPT, "--tokenizer", name, "--export", new_folder("named"))) \
        if not more else None  # by name it must fit exactly
    if tokenizer != "byte":
        os.remove(name)
    for init in (folder, model):
        out = ran("--init", init, *PROMPT)
        assert whose(out) == f"{folder}/tokenizer.bin, the model's own" and good in (None, cli.sample_of(out)), out
    kept = new_folder("kept")
    assert "the model and its tokenizer" in ran("--init", folder, *NO_STEPS, "--export", kept)
    for file in FILES if not more else ():
        assert formats.read_bytes(f"{kept}/{file}") == formats.read_bytes(f"{path('named')}/{file}"), file
    assert whose(ran(*train, "--resume")) == f"{folder}/tokenizer.bin, the model's own"
    other = new_folder("tuned")  # a text to go on with takes the model's tokenizer, and the new run keeps it, too
    ran("-i", text, "--init", folder, "--seq-len", 16, "-b", 2, *QUIET, "-x", 1, "-o", other)
    assert formats.read_bytes(f"{other}/tokenizer.bin") == formats.read_bytes(f"{folder}/tokenizer.bin")


def test_resume_with_another_tokenizer():
    """Its tokens count, not its name. An older version's folder, which has no copy, is used as before."""
    name, folder = write("made_up.bpe", formats.merges_text()), new_folder("changes")
    words = [bytes([byte]) for byte in formats.BYTES] + [bytes([formats.BYTES[i // 256], formats.BYTES[i % 256]])
                                                         for i in range(50000)] + [END.encode()]
    formats.write_tokenizer(path("moved.bin"), words, 50256)
    shard = cli.shard("ids.bin", cli.random_tokens(200, 50257))
    train = ["-i", shard, *TRAIN, "-o", folder]
    ran(*train, "--tokenizer", name)
    ran(*train, "--tokenizer", path("moved.bin"), "--resume")  # the same tokens
    words[300], words[301] = words[301], words[300]
    formats.write_tokenizer(path("moved.bin"), words, 50256)
    refused(*train, "--tokenizer", path("moved.bin"), "--resume", says=["tokenizer-fingerprint was"])
    os.replace(path("moved.bin"), name)
    refused(*train, "--tokenizer", name, "--resume", says=["tokenizer-fingerprint was"])
    write("made_up.bpe", formats.merges_text())
    os.remove(os.path.join(folder, "tokenizer.bin"))
    assert whose(ran(*train, "--resume")).startswith("none")
    refused("--init", folder, *PROMPT, says=["--prompt", "--tokenizer vocab.bpe"])
    ran("--init", folder, *PROMPT, "--tokenizer", name)
    ran(*train, "--tokenizer", name, "--resume")
    assert "tokenizer.bin" in os.listdir(folder)
    ran(*train, "--overwrite")
    assert "tokenizer.bin" not in os.listdir(folder), "a run without a tokenizer has an older run's"


def test_shards_of_tokenize():
    """`tokenize` leaves a copy beside the shards, which no pattern for shards matches: samples are text."""
    name, text = write("made_up.bpe", formats.merges_text()), cli.text_file(size=20000)
    command = [TOKENIZE, "--tokenizer", name, "--val-fraction", "0.1", "--shard-size", "4000", "--output"]
    subprocess.run([*command, path("shards/a_book"), text], check=True, stdout=subprocess.DEVNULL)
    copy, folder = path("shards/a_book.tokenizer"), new_folder("of_shards")
    assert os.path.exists(copy) and len(os.listdir(path("shards"))) > 4
    train = [*TINY, "-v", 0, "-x", 1, "-s", 1, "-g", 4, "-o", folder, "-i"]
    for pattern in ("shards/*_train_*.bin", "shards/*.bin"):
        out = ran(*train, path(pattern), "--overwrite")
        assert whose(out) == f"{copy}, the data's own" and not re.search(r"steps:\n(\d+ ){4}\n", out), out
    assert whose(ran("--init", folder, *PROMPT)) == f"{folder}/tokenizer.bin, the model's own"
    write("shards/a_book.tokenizer", formats.read_bytes(copy)[:-1])
    refused(*train, path(pattern), "--overwrite", says=[copy, "truncated"])
    os.remove(copy)
    out = ran(*train, path(pattern), "--overwrite")
    assert whose(out).startswith("none, samples are token ids; give --tokenizer vocab.bpe ("), out
    ran("--init", folder, *PROMPT, "--tokenizer", name)  # as advised
    questions = write("questions.jsonl", '{"context": "a", "completions": ["b", "c", "d", "e"], "label": 0}\n')
    subprocess.run([TOKENIZE, "--tokenizer", name, "--eval", "--output", path("asked/q"), questions], check=True,
                   stdout=subprocess.DEVNULL)
    assert os.listdir(path("asked")) == ["q_val.bin"]


def test_untrained_positions():
    """The export has all positions, and one line says how many of them are trained."""
    train = ["-i", cli.text_file(), *MODEL, *QUIET, "-b", 2, "-x", 2, "--export", new_folder("hf")]
    for length, says in ((8, True), (16, False)):
        out = ran(*train, "-t", length, "-o", new_folder("short"))
        line = (f"\n            all 16 positions, of which {length} are trained: "
                f"give this model at most {length} tokens\n")
        assert (line in out) == says and ("of which" in out) == says, out
        again, out = export("--init", path("short"))
        assert (line in out) == says and read_json(again, "tokenizer_config.json")["model_max_length"] == length


def test_damaged_tokenizer():
    folder, _ = export("--tokenizer", "byte", *MODEL)
    os.truncate(os.path.join(folder, "vocab.json"), 100)
    refused(*NO_STEPS, "--init", folder, says=[folder, "vocab.json: byte"])
    ran(*NO_STEPS, "--init", folder, "--tokenizer", "byte")  # as the message says


def test_places_for_an_export():
    """Said before the first step. (test_hf.c has all places.)"""
    text, folder = cli.text_file(), new_folder("run")
    train = ["-i", text, *TINY, *QUIET, "-x", 2]
    for out_dir, target, says in ((folder, folder + "/", folder + "/hf"), (folder + "/a/b", folder, "is inside "),
                                  (folder, os.path.relpath(folder), "is --out-dir")):
        refused(*train, "-o", out_dir, "--export", target, says=["--export", says])
        assert not os.path.exists(folder)
    write("other/thesis.txt", b"years of work")
    refused(*train, "--export", path("other"), says=["--export", "holds 'thesis.txt', which no export wrote"])
    assert os.listdir(path("other")) == ["thesis.txt"]
    for _ in range(2):  # a new folder, and an earlier export
        out = ran(*train, "-o", folder, "--overwrite", "--export", folder + "/hf")
        assert re.search("^exported ", out, re.M) and sorted(os.listdir(folder + "/hf")) == FILES


def test_a_stopped_run():
    """It has not become what was to be exported: that is said, and --resume makes it."""
    text, folder, hf = cli.text_file(), new_folder("stopped"), new_folder("hf")
    arguments = ["-i", text, *TINY, *QUIET, "-x", 100000, "-o", folder, "--export", hf]
    process = cli.start(*arguments)
    while b"| loss" not in process.stdout.readline():
        pass
    process.send_signal(signal.SIGINT)
    out, _ = cli.finish(process, 0, arguments)
    assert "exported    nothing: the run was stopped before its end\n" in out and not os.path.exists(hf), out
    saved = max(cli.checkpoints(folder))
    out = ran(*(saved if word == 100000 else word for word in arguments), "--resume", "--allow-changes")
    assert sorted(os.listdir(hf)) == FILES, out
