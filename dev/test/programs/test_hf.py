"""dev/hf.py: what it makes of Hugging Face's files and of ours, read by the independent readers of formats.py, and what
it refuses. It needs numpy. What Hugging Face's own library makes of its exports: test_transformers.py."""
import json
import os
import re
import shlex
import struct
import subprocess
import sys

import numpy as np
import pytest

import cli
import formats
from cli import QUIET, TINY, model, model_bytes, ran
from formats import CONFIG, random_model
from tools import ROOT, new_folder, path, python, read, stand_ins, write

sys.path.insert(0, os.path.join(ROOT, "dev"))
import hf  # noqa: E402

FIXTURES = os.path.join(ROOT, "dev", "test", "fixtures")
JSON = {"model_type": "gpt2", "n_positions": 7, "vocab_size": 150, "n_layer": 3, "n_head": 5, "n_embd": 15,
        "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "n_inner": None}
FILES = ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
END = "<|endoftext|>"


def called(*arguments, status=0):
    return python("hf.py", *arguments, status=status, cwd=ROOT)[status]


def fails(says, function, *arguments):
    """It raises a Problem of one line that holds `says`, and writes nothing."""
    with pytest.raises(hf.Problem) as caught:
        function(*arguments)
    assert says in str(caught.value) and "\n" not in str(caught.value), str(caught.value)
    assert not [name for name in os.listdir(path()) if name.startswith("never")]


def plain(tensors):
    return {name: (kind, shape, bytes(values)) for name, (kind, shape, values) in tensors.items()}


def their_folder(name, tensors, dtype="F32", prefix="", more=(), **config):
    """A folder with a model in Hugging Face's form."""
    named = {**formats.hugging_face_tensors(CONFIG, tensors, dtype, prefix), **dict(more)}
    write(f"{name}/config.json", json.dumps({**JSON, **config}))
    formats.write_safetensors(f"{name}/model.safetensors", named, {"format": "pt"}, padding=11)
    return path(name)


# ---- Models ----


def test_a_model_of_transformers():
    """transformers saved hf_tiny from the weights of tiny.bin, which test_gpt2.c compares with PyTorch's logits."""
    called("import", os.path.join(FIXTURES, "hf_tiny"), path("tiny.bin"))
    assert read("tiny.bin") == read(os.path.join(FIXTURES, "tiny.bin"))


@pytest.mark.parametrize("dtype, prefix", (("F32", ""), ("F16", "transformer."), ("BF16", "transformer.")))
def test_import(dtype, prefix):
    """Of every type, in any order, with the buffers and the head that a file may have."""
    tensors = random_model(5)
    named = formats.hugging_face_tensors(CONFIG, tensors, dtype, prefix)
    more = {f"{prefix}h.{layer}.attn.bias": ("BOOL", (1, 1, 7, 7), bytes(49)) for layer in range(CONFIG["L"])}
    more[f"{prefix}h.0.attn.masked_bias"] = ("F32", (), np.float32(-1e4))
    more["lm_head.weight"] = named[prefix + "wte.weight"]
    write("in/config.json", json.dumps(JSON, indent=2))
    formats.write_safetensors("in/model.safetensors", {**more, **dict(reversed(named.items()))}, padding=11)
    hf.import_model(path("in"), path("out.bin"))
    assert read("out.bin") == model_bytes(CONFIG, tensors)


@pytest.mark.parametrize("version", (3, 5))
def test_export_and_back(version):
    tensors = random_model(9)
    file, folder = model("in.bin", CONFIG, tensors, version), new_folder("out")
    assert "without a tokenizer (--tokenizer names one)" in called("export", file, folder)
    metadata, found = formats.read_safetensors(os.path.join(folder, "model.safetensors"))
    assert metadata == {"format": "pt"} and plain(found) == plain(formats.hugging_face_tensors(CONFIG, tensors))
    config = json.loads(read("out/config.json"))
    assert {name: config.get(name) for name in JSON} == JSON and config["tie_word_embeddings"] is True
    assert config["architectures"] == ["GPT2LMHeadModel"] and config["bos_token_id"] == config["eos_token_id"] == 149
    assert "holds no tokenizer.json" in called("import", folder, path("back.bin"))
    assert read("back.bin") == model_bytes(CONFIG, tensors)
    assert sorted(os.listdir(folder)) == FILES[:3]


def test_several_files():
    """An index names the files. Each tensor is in one of them."""
    tensors = random_model(3)
    items = list(formats.hugging_face_tensors(CONFIG, tensors).items())
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    folder = their_folder("parts", tensors)
    os.remove(path("parts/model.safetensors"))
    for i, name in enumerate(names):
        formats.write_safetensors(f"parts/{name}", dict(items[i::2]))
    places = {name: names[i % 2] for i, (name, _) in enumerate(items)}
    write("parts/model.safetensors.index.json", json.dumps({"metadata": {}, "weight_map": places}))
    hf.import_model(folder, path("out.bin"))
    assert read("out.bin") == model_bytes(CONFIG, tensors)
    formats.write_safetensors(f"parts/{names[1]}", dict(items[1::2] + items[:1]))
    fails(f"{names[1]}: tensor wte.weight is in another file, too", hf.read_folder, folder)
    os.remove(path(f"parts/{names[1]}"))
    fails(f"{names[1]}: no such file of weights", hf.read_folder, folder)


# ---- What is refused ----


def test_cut_anywhere():
    weights = os.path.join(their_folder("cut", random_model(1)), "model.safetensors")
    whole = read("cut/model.safetensors")
    start = 8 + struct.unpack("<Q", whole[:8])[0]
    for size in [*range(0, start, 97), *range(start, len(whole), 1001), len(whole) - 1]:
        write("cut/model.safetensors", whole[:size])
        fails(weights, hf.read_safetensors, weights)
    write("cut/model.safetensors", whole + b"\0")
    fails("its tensors cover", hf.read_safetensors, weights)
    write("cut/model.safetensors", struct.pack("<Q", 2**64 - 1) + whole[8:])
    fails(weights, hf.read_safetensors, weights)


PLACE = '"shape": [150, 15], "data_offsets": [0, 9000]'


@pytest.mark.parametrize("old, new, says", (
    ('"wte.weight"', '"wtf.weight"', "wte.weight is missing"),
    ('"h.0.ln_1.bias"', '"transformer.h.0.ln_1.weight"', "or it is there twice"),
    ('"wpe.weight"', '"wte.weight"', "tensor wte.weight: its type"),  # its first place is a gap
    (PLACE, PLACE.replace("150, 15", "15, 150"), "wte.weight is F32 of shape [15, 150], expected F32, F16 or BF16 of"),
    (PLACE, PLACE.replace("150, 15", "150, 14"), "tensor wte.weight: its type, shape and place do not fit"),
    (PLACE, PLACE.replace("150, 15", "-150, -15"), "tensor wte.weight: its type"),
    (PLACE, PLACE.replace("[0, 9000]", "[4, 9004]"), "tensor wte.weight: its type"),
    ('{"__metadata__": {"format": "pt"}, ', "[" * 5000, "is no sound JSON")))
def test_damaged_header(old, new, says):
    folder = their_folder("damaged", random_model(1))
    data = read("damaged/model.safetensors")
    length = struct.unpack("<Q", data[:8])[0]
    header = data[8:8 + length].decode()
    assert header.count(old) == 1
    header = header.replace(old, new).encode()
    write("damaged/model.safetensors", struct.pack("<Q", len(header)) + header + data[8 + length:])
    fails(says, hf.import_model, folder, path("never.bin"))


@pytest.mark.parametrize("name, kind, shape, value, says", (
    ("h.3.ln_1.bias", "F32", (15,), 0, "tensor h.3.ln_1.bias does not belong to a GPT-2 of 3"),
    ("lm_head.weight", "F32", (150, 15), 0, "lm_head.weight differs from wte.weight"),
    ("ln_f.bias", "F16", (14,), 0, "tensor ln_f.bias is F16 of shape [14], expected F32, F16 or BF16"),
    ("ln_f.bias", "F32", (15,), np.nan, "tensor ln_f.bias holds NaN or infinity"),
    ("wte.weight", "BF16", (150, 15), np.inf, "tensor wte.weight holds NaN or infinity")))
def test_other_tensors(name, kind, shape, value, says):
    more = {name: (kind, shape, np.full(shape, value, "f"))}
    fails(says, hf.import_model, their_folder("others", random_model(1), more=more), path("never.bin"))


@pytest.mark.parametrize("config, says", (
    ({"n_inner": 61}, '"n_inner" is 61, a variant of GPT-2 that is not supported'),
    ({"model_type": "bert"}, "model_type is bert, expected gpt2"), ({"n_head": True}, "expected whole numbers"),
    ({"n_head": 4}, "15 channels cannot be divided among 4 heads"), ({"vocab_size": 1 << 40}, "vocabulary size is"),
    ({"n_layer": 2}, "does not belong to a GPT-2 of 2 layers"), ({"n_layer": 4}, "tensor h.3.ln_1.weight is missing")))
def test_config(config, says):
    fails(says, hf.import_model, their_folder("configs", random_model(1), **config), path("never.bin"))


def test_one_line():
    """As a user sees it."""
    folder = their_folder("line", random_model(1))
    os.remove(path("line/config.json"))
    assert called("import", folder, path("no.bin"), status=1) == \
        f"hf.py: {folder}/config.json: No such file or directory\n"
    assert re.search("no such folder, and names of the Hub need|gpt2: cannot be fetched",
                     called("import", "gpt2", path("no.bin"), status=1))
    write("other/thesis.txt", "years of work")
    assert "other: is not empty; give a new" in called("export", f"{FIXTURES}/tiny.bin", path("other"), status=1)
    assert os.listdir(path("other")) == ["thesis.txt"]
    assert "has 257 tokens, the model 101" in called("export", f"{FIXTURES}/tiny.bin", path("no"), "--tokenizer",
                                                    "byte", status=1)
    assert not os.path.exists(path("no"))


# ---- Tokenizers ----


def check_tokenizer(folder, vocab, merges, context):
    """vocab: the tokens' texts in the order of their ids; merges: pairs of texts."""
    whole, settings = (json.loads(read(os.path.join(folder, name))) for name in FILES[3:])
    assert whole["model"]["vocab"] == {text: i for i, text in enumerate(vocab)} and whole["model"]["type"] == "BPE"
    assert whole["model"]["merges"] == [list(pair) for pair in merges] and whole["normalizer"] is None
    assert [(token["id"], token["content"], token["special"]) for token in whole["added_tokens"]] == [
        (len(vocab) - 1, END, True)]
    step = whole["pre_tokenizer"]
    assert (step["type"], step["add_prefix_space"], step["use_regex"]) == ("ByteLevel", False, True)
    assert settings["tokenizer_class"] == "GPT2Tokenizer" and settings["model_max_length"] == context


MERGES = [(0, 1), (256, 2), (30, 31)]  # of the small tokenizer, by the ids of their tokens


def small_words():
    words = [bytes([byte]) for byte in formats.BYTES]
    for left, right in MERGES:
        words.append(words[left] + words[right])
    return [*words, END.encode()]


def a_model():
    return model("small.bin", cli.config(V=300))


def export_small(words, folder):
    """Exports a model with this tokenizer beside it. Returns what the program prints."""
    write("small_tokenizer.bin", cli.tokenizer_bytes(words))
    return called("export", a_model(), folder)


def test_tokenizer_both_ways():
    words = small_words()
    symbols = dict(zip(formats.BYTES, formats.SYMBOLS))
    texts = ["".join(symbols[byte] for byte in word) for word in words[:-1]] + [END]
    folder = new_folder("small_hf")
    assert f"with its tokenizer {path('small_tokenizer.bin')}" in export_small(words, folder)
    assert sorted(os.listdir(folder)) == FILES
    check_tokenizer(folder, texts, [(texts[left], texts[right]) for left, right in MERGES], 16)
    assert f"{path('m_tokenizer.bin')}: its tokenizer of 260 tokens" in called("import", folder, path("m.bin"))
    assert read("m_tokenizer.bin") == read("small_tokenizer.bin")
    words[257], words[258] = words[258], words[257] + b"?"  # no merge makes this
    write("small_tokenizer.bin", cli.tokenizer_bytes(words))
    fails("small_tokenizer.bin: is not GPT-2's kind", hf.export_model, a_model(), path("no"))


def changed_tokenizer(change):
    """The folder of an exported model whose tokenizer.json was changed."""
    folder = new_folder("changed")
    export_small(small_words(), folder)
    whole = json.loads(read("changed/tokenizer.json"))
    change(whole)
    write("changed/tokenizer.json", json.dumps(whole))
    return folder


def test_old_form_of_merges():
    """"a b" instead of ["a", "b"], as transformers wrote them before 5."""
    hf.import_model(changed_tokenizer(lambda t: t["model"].update(merges=list(map(" ".join, t["model"]["merges"])))),
                    path("m.bin"))
    assert read("m_tokenizer.bin") == read("small_tokenizer.bin")


DAMAGED, MERGED = "not a byte-level byte-pair encoding whose ids", "its merges are neither one for each token"
WORDS = "its pre_tokenizer cuts texts into words by another rule"


@pytest.mark.parametrize("says, change", (
    ("its normalizer is NFC, expected none", lambda t: t.update(normalizer={"type": "NFC"})),
    ("its added token \u20ac is not special", lambda t: t["added_tokens"].append(
        {"id": 260, "content": "\u20ac", "special": False})),
    ("its model's byte_fallback is True", lambda t: t["model"].update(byte_fallback=True)),
    (WORDS, lambda t: t["pre_tokenizer"].update(add_prefix_space=True)),
    (WORDS, lambda t: t.update(pre_tokenizer={"type": "Sequence", "pretokenizers": [
        {"type": "Digits", "individual_digits": False}, t["pre_tokenizer"]]})),
    (DAMAGED, lambda t: t["model"].pop("merges")), (MERGED, lambda t: t["model"]["merges"].reverse()),
    (DAMAGED, lambda t: t["model"]["vocab"].update(a=65)), (DAMAGED, lambda t: t["model"]["vocab"].pop("a"))))
def test_other_tokenizers(says, change):
    fails(f"tokenizer.json: {says}", hf.import_model, changed_tokenizer(change), path("never.bin"))


def test_damaged_tokenizer_file():
    data, file = cli.tokenizer_bytes(small_words()), path("t.bin")
    end_of_text = data[:12] + struct.pack("<I", 260) + data[16:]
    for damaged, says in ((data[:100], file), (data[:-1], file), (end_of_text, "with end-of-text among them")):
        write("t.bin", damaged)
        fails(says, hf.hf_tokenizer.load, file)


# ---- Runs ----


def test_a_run():
    """The newest checkpoint, with the tokenizer that the run keeps."""
    folder, out = new_folder("run"), new_folder("run_hf")
    ran("-i", cli.text_file(), *TINY, *QUIET, "-x", 3, "-o", folder, "--checkpoint-every", 1)
    newest, before = (f"{folder}/model_00000003.bin", read("run/model_00000003.bin"))
    assert f"{out}: {newest} for Hugging Face transformers, with its tokenizer {folder}/tokenizer.bin\n" == \
        called("export", folder, out)
    assert sorted(os.listdir(out)) == FILES
    hf.import_model(out, path("back.bin"))
    back = read("back.bin")
    assert back[:1016] + back[1024:] == before[:1016] + before[1024:]
    assert struct.unpack("<Q", back[1016:1024])[0] == formats.hash64(read("back_tokenizer.bin"))
    train = ["-i", cli.text_file(), *QUIET, "-x", 1, "-t", 16, "-b", 2, "--init"]
    assert cli.weights_hash(ran(*train, path("back.bin"))) == cli.weights_hash(ran(*train, folder))


def test_eval():
    """dev/eval.sh hands a whole export and all options to lm_eval, and says how to install it."""
    folder = new_folder("scored")
    ran("-i", cli.text_file(), *TINY, *QUIET, "-x", 1, "-o", folder)
    without = stand_ins({"python3": f'exec {shlex.quote(sys.executable)} "$@"\n'}, hidden=("lm_eval",))
    lm_eval = 'echo "$@"\nfor word; do case $word in pretrained=*) ls "${word#*=}" ;; esac; done\n'
    installed = stand_ins({"lm_eval": lm_eval}, only=()) + ":" + without

    def run(places, *words):
        return subprocess.run([os.path.join(ROOT, "dev", "eval.sh"), *words], cwd=path(), check=False, text=True,
                              env=dict(os.environ, PATH=places), capture_output=True)

    called("export", folder, new_folder("scored_hf"))
    for source in (folder, path("scored_hf")):
        done = run(installed, source, "--tasks", "piqa")
        words, *files = done.stdout.splitlines()[-1 - len(FILES):]
        assert done.returncode == 0 and files == FILES, done
        assert words.startswith("--model hf ") and words.endswith(f" --output_path {source}_eval --tasks piqa"), done
    done = run(without, folder)
    assert done.returncode == 1 and done.stderr.startswith('eval.sh: lm_eval is not installed: pip install "lm_'), done
