"""dev/hf.py on Llama-style models: what it makes of Hugging Face's files and of ours, and what it refuses. The layouts
are written down here once more. It needs numpy. What Hugging Face's own library makes of it: test_transformers.py."""
import json
import os
import re
import struct

import numpy as np
import pytest

import formats
from cli import tokenizer_bytes
from test_hf import FIXTURES, called, fails, hf, plain, small_words
from tools import new_folder, path, read, write

LLAMA = os.path.join(FIXTURES, "llama")
NAMES = sorted(name[:-4] for name in os.listdir(LLAMA) if re.fullmatch(r"g\d_\w+(?<!_state)\.bin", name))
JSON = {"model_type": "llama", "hidden_size": 10, "intermediate_size": 14, "num_hidden_layers": 2, "vocab_size": 131,
        "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 4, "rms_norm_eps": 1e-5, "hidden_act": "silu",
        "max_position_embeddings": 40, "rope_theta": 5e5, "tie_word_embeddings": True, "eos_token_id": [1, 2]}
SCALING = {"factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}


def layout(tied=True, bias=False, V=131, Vp=256, L=2, NH=6, C=10, KV=2, HS=4, F=14, **_):
    """(name in Hugging Face's files, layers, shape) in the order of a .bin file."""
    block, q, kv = "model.layers.{}.", NH * HS, KV * HS
    return [("model.embed_tokens.weight", 1, (Vp, C)), (block + "input_layernorm.weight", L, (C,)),
            *((f"{block}self_attn.{x}_proj.weight", L, (n, C)) for x, n in (("q", q), ("k", kv), ("v", kv))),
            *((f"{block}self_attn.{x}_proj.bias", L, (n,)) for x, n in (("q", q), ("k", kv), ("v", kv)) if bias),
            (block + "self_attn.o_proj.weight", L, (C, q)), (block + "post_attention_layernorm.weight", L, (C,)),
            (block + "mlp.gate_proj.weight", L, (F, C)), (block + "mlp.up_proj.weight", L, (F, C)),
            (block + "mlp.down_proj.weight", L, (C, F)), ("model.norm.weight", 1, (C,)),
            *([] if tied else [("lm_head.weight", 1, (Vp, C))])]


def random_model(seed=1, **more):
    """Name -> values that bfloat16 and half precision hold, without padding."""
    generator = np.random.default_rng(seed)
    return {pattern.format(layer): (generator.integers(-128, 129, (min(size[0], more.get("V", 131)), *size[1:])) / 32
                                    ).astype("f") for pattern, L, size in layout(**more) for layer in range(L)}


def expected_bin(model, header, kind="F32", **more):
    """A .bin file of these tensors."""
    out = struct.pack("<256i", 20240326, 3 if kind == "F32" else 5, *header, *[0] * (254 - len(header)))
    for pattern, L, size in layout(**more):
        for layer in range(L):
            values = np.zeros(size, "f")
            values[:len(model[pattern.format(layer)])] = model[pattern.format(layer)]
            out += formats.WRITE[kind](values)
    return out


def header_of(tied=1, bias=0, epsilon=1e-5, theta=5e5, scaling=(1.0, 1.0, 1.0), context=0):
    floats = struct.unpack("<5i", struct.pack("<5f", epsilon, theta, *scaling))
    return (40, 131, 2, 6, 10, 256, 3, 2, 4, 14, tied, bias, *floats, context)


def their_folder(name, model, kind="F32", more=(), **config):
    named = {**{key: (kind, values.shape, values) for key, values in model.items()}, **dict(more)}
    write(f"{name}/config.json", json.dumps({key: x for key, x in {**JSON, **config}.items() if x != "absent"}))
    formats.write_safetensors(f"{name}/model.safetensors", named)
    return path(name)


# ---- In ----


@pytest.mark.parametrize("kind", ("F32", "F16", "BF16"))
@pytest.mark.parametrize("tied", (True, False))
def test_import(kind, tied):
    """bfloat16 stays bfloat16, to the bit."""
    model = random_model(tied=tied)
    more = {"model.layers.1.self_attn.rotary_emb.inv_freq": ("F32", (2,), np.zeros(2))}
    if tied:
        embeddings = model["model.embed_tokens.weight"]
        more["lm_head.weight"] = (kind, embeddings.shape, embeddings)
    folder = their_folder("in", model, kind, more, tie_word_embeddings=tied)
    assert "./train_llama3 --init" in called("import", folder, path("out.bin"))
    want = expected_bin(model, header_of(tied=int(tied)), "BF16" if kind == "BF16" else "F32", tied=tied)
    assert read("out.bin") == want


def test_biases():
    """Qwen 2.5, as transformers 4 writes it. A model of several types is float32."""
    model = random_model(2, bias=True)
    folder = their_folder("in", model, "BF16", model_type="qwen2", use_sliding_window=False, sliding_window=4096,
                          rms_norm_eps=1e-6, layer_types=["full_attention"] * 2)
    hf.import_model(folder, path("out.bin"))
    assert read("out.bin") == expected_bin(model, header_of(bias=1, epsilon=1e-6), "BF16", bias=True)
    norm = model["model.norm.weight"]
    their_folder("in", model, "BF16", {"model.norm.weight": ("F32", norm.shape, norm)}, model_type="qwen2")
    hf.import_model(folder, path("out.bin"))
    assert read("out.bin") == expected_bin(model, header_of(bias=1), bias=True)


@pytest.mark.parametrize("config, header", (
    ({"rope_scaling": {"rope_type": "llama3", **SCALING}}, {"scaling": (32, 1, 4), "context": 16}),
    ({"rope_scaling": {"type": "llama3", **SCALING, "factor": 8}}, {"scaling": (8, 1, 4), "context": 16}),
    ({"rope_theta": "absent", "rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4, **SCALING}},
     {"theta": 1e4, "scaling": (32, 1, 4), "context": 16}),
    ({"rope_theta": "absent", "rope_parameters": {"rope_type": "default", "rope_theta": 1e5}}, {"theta": 1e5}),
    ({"rope_theta": "absent", "rope_scaling": None, "rms_norm_eps": "absent"}, {"theta": 1e4, "epsilon": 1e-6}),
    ({"pretraining_tp": 1, "attention_bias": False, "rope_interleaved": False, "layer_types": None}, {})))
def test_config(config, header):
    model = random_model()
    hf.import_model(their_folder("in", model, **config), path("out.bin"))
    assert read("out.bin") == expected_bin(model, header_of(**header))


def test_what_a_config_leaves_out():
    """As many heads of k and v as of q, and a head size of C/NH."""
    model = random_model(NH=5, KV=5, HS=2, F=20)
    hf.import_model(their_folder("in", model, num_attention_heads=5, num_key_value_heads="absent", head_dim=None,
                                 intermediate_size=20), path("out.bin"))
    assert struct.unpack("<12i", read("out.bin")[:48])[5:11] == (5, 10, 256, 3, 5, 2)


def test_their_config():
    """What transformers 5 saved of two fixtures."""
    for name in ("g2_tied_scaled", "g2_tied_bias"):
        hf.export_model(f"{LLAMA}/{name}.bin", new_folder("theirs"))
        write("theirs/config.json", read(f"{LLAMA}/{name}.json"))
        hf.import_model(path("theirs"), path("out.bin"))
        assert read("out.bin") == read(f"{LLAMA}/{name}.bin"), name


def test_tokenizer():
    """It lies beside the model, whose header has its hash."""
    write("out.bin", expected_bin(random_model(V=300, Vp=384), (40, 300, *header_of()[2:5], 384, *header_of()[6:]),
                                  V=300, Vp=384))
    called("export", path("out.bin"), new_folder("bytes"), "--tokenizer", "byte")
    assert "back_tokenizer.bin: its tokenizer of 257 tokens" in called("import", path("bytes"), path("back.bin"))
    assert read("back_tokenizer.bin") == tokenizer_bytes([*(bytes([byte]) for byte in range(256)), b"<|endoftext|>"])
    assert struct.unpack("<Q", read("back.bin")[1016:1024])[0] == formats.hash64(read("back_tokenizer.bin"))
    assert read("back.bin")[:1016] + read("back.bin")[1024:] == read("out.bin")[:1016] + read("out.bin")[1024:]
    write("back_tokenizer.bin", tokenizer_bytes(small_words()))
    fails("back_tokenizer.bin: is not the tokenizer that", hf.export_model, path("back.bin"), path("never"))


# ---- Out ----


@pytest.mark.parametrize("name", NAMES)
def test_export_and_back(name):
    folder = new_folder("out")
    hf.export_model(f"{LLAMA}/{name}.bin", folder)
    hf.import_model(folder, path("back.bin"))
    assert read("back.bin") == read(f"{LLAMA}/{name}.bin")


def test_exported_files():
    """Of a bfloat16 model, whose weights stay as they are."""
    model = random_model(3, tied=False)
    write("model.bin", expected_bin(model, header_of(tied=0, scaling=(8, 1, 4), context=16), "BF16", tied=False))
    folder = new_folder("out")
    called("export", path("model.bin"), folder)
    config = json.loads(read("out/config.json"))
    assert {**JSON, "tie_word_embeddings": False, "eos_token_id": None}.items() <= config.items()
    want = {"rope_type": "llama3", **SCALING, "factor": 8.0}
    assert config["rope_scaling"] == want and config["rope_parameters"] == {"rope_theta": 5e5, **want}
    assert config["architectures"] == ["LlamaForCausalLM"] and config["torch_dtype"] == "bfloat16"
    metadata, tensors = formats.read_safetensors(path("out/model.safetensors"))
    assert metadata == {"format": "pt"} and plain(tensors) == {
        key: ("BF16", values.shape, values.tobytes()) for key, values in model.items()}
    hf.import_model(folder, path("back.bin"))
    assert read("back.bin") == read("model.bin")


def test_pieces(monkeypatch):
    """Rows are in memory a few at a time, so that a model may be larger than it."""
    monkeypatch.setattr(hf, "PIECE", 64)
    model = random_model()
    folder = their_folder("in", model)
    stored = hf.read_folder(folder)["model.embed_tokens.weight"]
    assert [len(piece) for piece in stored.pieces()] == [60] * 21 + [50]  # rows of 10, of which there are 131
    hf.import_model(folder, path("out.bin"))
    assert read("out.bin") == expected_bin(model, header_of())


# ---- What is refused ----


@pytest.mark.parametrize("config, says", (
    ({"model_type": "qwen3"}, "model_type is qwen3, expected gpt2, llama or qwen2"),
    ({"hidden_act": "gelu"}, '"hidden_act" is gelu, a variant of Llama that is not supported'),
    ({"attention_bias": True}, '"attention_bias" is True'), ({"mlp_bias": True}, '"mlp_bias" is True'),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"), ({"rope_interleaved": True}, "interleaved"),
    ({"quantization_config": {"bits": 4}}, '"quantization_config" is'),
    ({"use_sliding_window": True}, '"use_sliding_window" is True'),
    ({"layer_types": ["full_attention", "sliding_attention"]}, '"layer_types" is'),
    ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "the rotary embedding's scaling is {'type': 'linear'"),
    ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.25}}, "scaling is"),
    ({"rope_scaling": {"rope_type": "llama3", **SCALING, "factor": None}}, "the rotary embedding's numbers are"),
    ({"rope_theta": 0}, "these numbers do not fit"), ({"rms_norm_eps": None}, "rms_norm_eps None"),
    ({"num_key_value_heads": 4}, "6 heads read 4 heads of k and v"), ({"head_dim": 3}, "of 3 components"),
    ({"head_dim": True}, "expected whole numbers"), ({"num_attention_heads": 0}, "number of heads is 0"),
    ({"tie_word_embeddings": "absent"}, "tensor lm_head.weight is missing"),
    ({"model_type": "qwen2"}, "tensor model.layers.0.self_attn.q_proj.bias is missing")))
def test_refused(config, says):
    fails(says, hf.import_model, their_folder("refused", random_model(), **config), path("never.bin"))


@pytest.mark.parametrize("name, shape, says", (
    ("model.layers.0.self_attn.q_norm.weight", (4,), "q_norm.weight does not belong to a Llama"),
    ("lm_head.weight", (131, 10), "lm_head.weight differs from model.embed_tokens.weight; c")))
def test_other_tensors(name, shape, says):
    more = {name: ("F32", shape, np.zeros(shape))}
    fails(says, hf.import_model, their_folder("others", random_model(), more=more), path("never.bin"))


@pytest.mark.parametrize("field, value, says", (
    (8, 4, "holds a model of variant 4, expected 0: GPT-2 (MODEL_VARIANT in gpt2.h) or 3: Llama"),
    (9, 3, "4 heads read 3 heads of k and v"), (11, -1, "MLP's width is -1"), (12, 2, "expected 0 or 1"),
    (13, 1, "header asks for"), (15, 0x7f800000, "these numbers do not")))
def test_damaged_header(field, value, says):
    data = read(f"{LLAMA}/g2_tied_scaled.bin")
    file = write("bad.bin", data[:4 * field] + struct.pack("<i", value) + data[4 * field + 4:])
    fails(says, hf.export_model, file, path("never"))


def test_the_twin_knows_gpt2_alone():
    from dev.twin.weights import open_model
    fails("holds a model of variant 3, expected 0: GPT-2 (MODEL_VARIANT in gpt2.h)", open_model,
          f"{LLAMA}/g1_untied.bin")
