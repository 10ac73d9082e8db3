"""What the C side writes, read by the independent readers of formats.py, and the reverse; every value must be equal."""
import json
import os
import random
import subprocess
from array import array

import pytest

import formats
from tools import ROOT, compiled_tool, path

CONFIG = {"max_seq_len": 7, "vocab_size": 150, "num_layers": 3, "num_heads": 5, "channels": 15,
          "padded_vocab_size": 256}
JSON = {"model_type": "gpt2", "n_positions": 7, "vocab_size": 150, "n_layer": 3, "n_head": 5, "n_embd": 15,
        "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "n_inner": None}


def tool(*arguments):
    done = subprocess.run([compiled_tool("formats_tool"), *arguments], cwd=ROOT, capture_output=True, text=True,
                          check=False)
    return done.returncode, done.stdout.strip(), done.stderr.strip()


def must(*arguments):
    status, out, error = tool(*arguments)
    assert status == 0, error
    return out


def random_model(seed, limit=4.0):
    """Tensors with values that bfloat16 and half precision hold exactly; the padding of wte is zero."""
    generator = random.Random(seed)
    tensors = {}
    for name, shape in formats.parameter_shapes(CONFIG):
        size = formats.math.prod(shape)
        tensors[name] = array("f", (generator.randrange(-128, 129) * limit / 128 for _ in range(size)))
    used = CONFIG["vocab_size"] * CONFIG["channels"]
    tensors["wte"][used:] = array("f", [0.0] * (len(tensors["wte"]) - used))
    return tensors


def write_hugging_face(name, tensors, **changes):
    os.makedirs(path(name), exist_ok=True)
    formats.write_safetensors(path(f"{name}/model.safetensors"), tensors, {"format": "pt"}, padding=11)
    formats.write_bytes(path(f"{name}/config.json"), json.dumps({**JSON, **changes}, indent=2).encode())


def check_model(file, tensors):
    config, version, found = formats.read_model(path(file))
    assert config == CONFIG and version == 3, (config, version)
    for name in tensors:
        assert found[name].tobytes() == tensors[name].tobytes(), name


def test_model_bin_both_ways():
    for version in (3, 5):
        tensors = random_model(version)
        formats.write_model(path("in.bin"), CONFIG, tensors, version)
        must("convert", path("in.bin"), path("out.bin"))
        must("ranges", path("in.bin"))
        check_model("out.bin", tensors)
    assert formats.read_bytes(path("in.bin")) != formats.read_bytes(path("out.bin"))


def test_rounding_of_bf16_is_seen():
    tensors = random_model(1)
    tensors["lnfb"][3] = 1.001  # not a bfloat16
    formats.write_model(path("in.bin"), CONFIG, tensors, 5)
    must("convert", path("in.bin"), path("out.bin"))
    found = formats.read_model(path("out.bin"))[2]["lnfb"]
    assert found[3] == 1.0 and found[:3] == tensors["lnfb"][:3], found


def test_padding_rows_are_zeroed():
    tensors = random_model(2)
    used = CONFIG["vocab_size"] * CONFIG["channels"]
    dirty = {**tensors, "wte": tensors["wte"][:used] + array("f", [float("nan")] * (len(tensors["wte"]) - used))}
    formats.write_model(path("in.bin"), CONFIG, dirty)
    must("convert", path("in.bin"), path("out.bin"))
    check_model("out.bin", tensors)


def test_safetensors_in():
    cases = [("F32", ""), ("F16", "transformer."), ("BF16", "transformer."), ("F16", "")]
    for seed, (dtype, prefix) in enumerate(cases):
        tensors = random_model(seed)
        named = formats.hugging_face_tensors(CONFIG, tensors, dtype, prefix)
        items = list(named.items())
        random.Random(seed).shuffle(items)  # any order in the file
        for layer in range(CONFIG["num_layers"]):
            items.append((f"{prefix}h.{layer}.attn.bias", ("BOOL", (1, 1, 7, 7), bytes(49))))
            items.append((f"{prefix}h.{layer}.attn.masked_bias", ("F32", (), array("f", [-1e4]))))
        items.append(("lm_head.weight", named[prefix + "wte.weight"]))
        write_hugging_face("hf_in", dict(items))
        must("convert", path("hf_in"), path("out.bin"))
        must("ranges", path("hf_in"))
        check_model("out.bin", tensors)


def test_safetensors_out():
    tensors = random_model(9)
    formats.write_model(path("in.bin"), CONFIG, tensors)
    must("convert", path("in.bin"), path("hf_out"))
    metadata, found = formats.read_safetensors(path("hf_out/model.safetensors"))
    assert metadata == {"format": "pt"}
    assert found == formats.hugging_face_tensors(CONFIG, tensors)
    config = json.loads(formats.read_bytes(path("hf_out/config.json")))
    for key, value in JSON.items():
        assert config.get(key) == value, key
    must("convert", path("hf_out/model.safetensors"), path("back.bin"))
    assert formats.read_bytes(path("in.bin")) == formats.read_bytes(path("back.bin"))


def test_refusals_are_one_line_with_status_1():
    tensors = random_model(3)
    named = formats.hugging_face_tensors(CONFIG, tensors)
    write_hugging_face("bad", named, n_layer=4)
    status, _, error = tool("convert", path("bad"), path("never.bin"))
    assert (status, error) == (1, f"formats_tool: {path('bad/model.safetensors')}: tensor h.3.ln_1.weight is missing")
    write_hugging_face("bad", named, n_positions=8)
    status, _, error = tool("convert", path("bad"), path("never.bin"))
    want = f"formats_tool: {path('bad/model.safetensors')}: tensor wpe.weight: shape is [7, 15], " \
           "config.json asks for [8, 15]"
    assert (status, error) == (1, want), error
    tensors["fcw"][17] = float("nan")
    formats.write_model(path("in.bin"), CONFIG, tensors)
    status, _, error = tool("convert", path("in.bin"), path("never.bin"))
    assert status == 1 and ": tensor fcw holds nan at element 17 of (3, 60, 15); " in error, error
    assert not os.path.exists(path("never.bin")) and not os.path.exists(path("never.bin.tmp"))


def test_state():
    must("state", path("state_00000020.bin"))
    facts, sections, elsewhere = formats.read_state(path("state_00000020.bin"))
    assert elsewhere == {}
    assert facts == {"step": "20", "loss": "0.10000000000000001", "train_data": "a folder/with spaces/*.bin"}
    assert sections["flags"] == b"\x00\x7f\xff" and list(sections) == ["adam_m", "flags"]
    assert list(array("f", sections["adam_m"])) == list(array("f", [0.5, -1.25, 3.0, 1e-30, 65504.0]))
    assert float(facts["loss"]) == 0.1
    data = bytearray(formats.read_bytes(path("state_00000020.bin")))
    for at in (30, 100, len(data) - 1):  # the independent reader finds damage, too
        damaged = bytearray(data)
        damaged[at] ^= 1
        formats.write_bytes(path("damaged.bin"), damaged)
        with pytest.raises(ValueError):
            formats.read_state(path("damaged.bin"))


def test_checkpoint():
    """What was written in pieces, read by the independent reader."""
    tensors = random_model(11)
    formats.write_model(path("in.bin"), CONFIG, tensors)
    sums = must("checkpoint", path("in.bin"), path("run")).split()
    config, found, facts, sections = formats.read_checkpoint(path("run"), 7)
    assert sorted(os.listdir(path("run"))) == ["model_00000007.bin", "state_00000007.bin"]
    assert formats.read_bytes(path("run/model_00000007.bin")) == formats.read_bytes(path("in.bin"))
    assert config == CONFIG and found == tensors and sorted(facts) == ["model_bytes", "model_header", "step"]
    assert list(sections) == ["adam_m", "adam_v", "flags"] and sections["flags"] == b"\x00\x7f\xff"
    everything = array("f", (x for name, _ in formats.parameter_shapes(CONFIG) for x in tensors[name]))
    assert array("f", sections["adam_m"]) == array("f", (x / 2 for x in everything))
    assert array("f", sections["adam_v"]) == array("f", (x / 4 for x in everything))
    arrays = (everything.tobytes(), sections["adam_m"], sections["adam_v"])
    assert sums == [f"{formats.sum64(words):016x}" for words in arrays], sums
    halves = formats.sum64(everything[:5001].tobytes()) + formats.sum64(everything[5001:].tobytes(), 5001)
    assert halves & formats.MASK == int(sums[0], 16)
    with open(path("run/model_00000007.bin"), "r+b") as file:  # the independent reader finds damage, too
        file.seek(9000)
        file.write(b"?")
    with pytest.raises(ValueError, match="^checkpoint: parameters$"):
        formats.read_checkpoint(path("run"), 7)


def test_checksum():
    assert formats.xxh64(b"") == 0xEF46DB3751D8E999 and formats.xxh64(b"abc") == 0x44BC2CF5AD770999
    generator = random.Random(5)
    for size in (0, 1, 5, 8, 13, 31, 32, 33, 64, 1000, 70001):
        data = bytes(generator.randrange(256) for _ in range(size))
        formats.write_bytes(path("any"), data)
        assert must("checksum", path("any")) == f"{formats.xxh64(data):016x}", size


def test_readers_of_other_formats():
    formats.write_tokens(path("t.bin"), [0, 50256, 65535])
    assert list(formats.read_tokens(path("t.bin"))) == [0, 50256, 65535]
    formats.write_tokenizer(path("tok.bin"), [b"a", b"\xff" * 255, b"the"], 2)
    assert formats.read_tokenizer(path("tok.bin")) == ([b"a", b"\xff" * 255, b"the"], 2)
    cases = ((formats.read_tokens, "tok.bin"), (formats.read_tokenizer, "t.bin"), (formats.read_model, "t.bin"))
    for reader, name in cases:
        with pytest.raises(ValueError):
            reader(path(name))
