"""What --export writes, read with Python's own JSON, and --init of such folders: standard library only. What Hugging
Face's library makes of them: test_transformers.py."""
import hashlib
import json
import os
import re
import signal

import pytest

import cli
import formats
from cli import MODEL, QUIET, TINY, new_folder, path, ran, refused, write
from tools import SHARED

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
    assert cli.weights_hash(out) == own and f"tokenizer   {folder}, the model's own\n" in out, out


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
