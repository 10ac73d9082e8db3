"""What the trainer does with damaged files, impossible sizes, full disks, numbers that overflow and folders in use.

The common rule, checked everywhere: it ends with status 1, never a signal, with one line on stderr that names the file
or option, what was found and expected; nothing is half-written. Resuming, killing and signals: test_resume.py. Options:
test_options.py.
"""
import array
import contextlib
import json
import math
import os
import random
import re
import resource
import shutil
import signal
import struct
import subprocess

import pytest

from cli import (BATCH, CONFIG, FOLDER, MEMORY_LIMITS, MODEL, QUIET, TINY, checkpoints, config, losses, make_params,
                 model, model_bytes, model_header, new_folder, num_params, path, ran, random_tokens, read,
                 reference_loss, refused, sample_of, shard, shard_bytes, start, tensor_shapes, text_file,
                 tokenizer_bytes, val_losses, weights_hash, write)

TEXT = text_file()
SAMPLE = ["--steps", "0", "--sample-tokens", "4"]
FP32_MAX = 3e38


def train(*arguments, **keywords):
    return ran("-i", TEXT, *BATCH, *QUIET, *arguments, **keywords)


def model_sample(init, **keywords):
    return ran("--init", init, *SAMPLE, **keywords)


# ---- Rows 1 to 4: model files ----


def test_model_cut_anywhere():
    """Row 1: a model file that is too short or too long is refused, whatever its length."""
    for version, element in ((3, 4), (5, 2)):
        whole = model_bytes(CONFIG, make_params(CONFIG), version)
        cuts = [
            0, 1, 3, 4, 500, 1023, 1024, 1025,
            len(whole) - 1,
            len(whole) - element,
            len(whole) + 1,
            len(whole) + element,
            len(whole) + 1024
        ]
        at = 1024
        for shape in list(tensor_shapes(CONFIG).values())[:-1]:
            at += element * math.prod(shape)
            cuts += [at] if version == 5 else [at - 1, at, at + element]
        for cut in cuts:
            name = write("cut.bin", (whole + bytes(1024))[:cut])
            sizes = [f"{cut} bytes", "1024"] if cut < 1024 else [f"asks for {len(whole)} bytes", f"has {cut}"]
            refused("--init", name, *SAMPLE, says=[name, *sizes])
    # a body of the other version's width
    fp32, bf16 = (model_bytes(CONFIG, make_params(CONFIG), version) for version in (3, 5))
    for data in (fp32[:1024] + bf16[1024:], bf16[:1024] + fp32[1024:]):
        name = write("cut.bin", data)
        refused("-i", TEXT, *BATCH, "-e", name, "-o", path("cut_run"), says=[name, "bytes"], no_files=path("cut_run"))


def test_model_file_that_is_none():
    """Row 1: other files, folders, pipes and nothing at all in place of a model."""
    empty = path("empty_folder")
    os.makedirs(empty, exist_ok=True)
    os.makedirs(path("folder.bin"), exist_ok=True)
    os.mkfifo(path("pipe.bin"))
    tokens, letters = shard("shard.bin", [1, 2, 3]), write("text.bin", b"To be, or not to be: " * 100)
    for init, says in ((path("none.bin"), "No such file"), (path("none"), "neither a size"), (empty, "holds no model"),
                       (path("folder.bin"), "holds no model"), (path("pipe.bin"), "pipe"), ("d13", "neither a size"),
                       ("gpt3:c769", "neither a size"), (TEXT, "neither a size"), ("D12", "neither a size"),
                       (path("none.safetensors"), "No such file"), (tokens, "is a token shard, expected a model"),
                       (letters, "magic number is")):
        refused("--init", init, *SAMPLE, says=[init, says])


def test_model_headers():
    """Row 2: every field of the header, with values that are wrong alone or together; nothing is allocated for them."""
    fields = {
        "context length": 2,
        "vocabulary size": 3,
        "number of layers": 4,
        "number of heads": 5,
        "channels": 6,
        "padded vocabulary": 7
    }
    edges = [0, -1, -2**31, 2**31 - 1, 2**20 + 1]
    cases = [(0, value, ["magic number is", value])
             for value in (0, -1, 1, struct.unpack(">i", struct.pack("<i", 20240326))[0])]
    cases += [(0, magic, ["expected a model"]) for magic in (20240520, 20240327, 20240328, 20240522, 20240801)]
    cases += [(1, value, ["obsolete", value]) for value in (1, 2)]
    cases += [(1, value, ["version is", value, "3 (float32) or 5 (bfloat16)"]) for value in (0, -1, 4, 6, 2**31 - 1)]
    cases += [(index, value, [name, value, "expected"]) for name, index in fields.items() for value in edges]
    cases += [(5, 3, ["16 channels", "3 heads"]), (5, 1024, ["16 channels", "1024 heads"]),
              (3, 385, ["padded vocabulary is 384", "385"]), (7, 256, ["padded vocabulary is 256", "257"])]
    whole = model_bytes(CONFIG, make_params(CONFIG))
    limits = (lambda: resource.setrlimit(resource.RLIMIT_AS, (1 << 28, 1 << 28))) if MEMORY_LIMITS else None
    for index, value, says in cases:
        header = bytearray(whole[:1024])
        struct.pack_into("<i", header, 4 * index, value)
        name = write("header.bin", bytes(header) + whole[1024:])
        refused("--init", name, *SAMPLE, says=[name, *says], preexec_fn=limits)
    # Within each field's bounds, but larger than any file: sizes are computed without overflow.
    for c in (config(maxT=1 << 20, V=1 << 20, L=1000, NH=1024, C=1 << 16, Vp=1 << 20), config(L=1000, C=1 << 16),
              config(V=1 << 20, Vp=1 << 20, C=4096), config(L=2), config(C=18), config(maxT=17), config(Vp=512)):
        name = write("header.bin", model_header(c) + whole[1024:])
        size = f"asks for {1024 + 4 * num_params(c)} bytes"
        refused("--init", name, *SAMPLE, says=[name, size, len(whole)], preexec_fn=limits)
        refused("-i", TEXT, "--init", name, "--plan", says=[name, size])


def test_odd_but_valid_models():
    """Row 2: what the format allows is taken: no padding, a vocabulary of 1, one channel a head, position 1 only."""
    for changes in ({"V": 384}, {"Vp": 257}, {"NH": 16}, {"NH": 1}, {"maxT": 1}, {"C": 2, "NH": 1}, {"V": 1}):
        ran("--init", model("odd.bin", config(**changes)), *SAMPLE)


def test_numbers_that_are_none():
    """Row 3: a NaN or an infinity in any tensor is found at load, with its place; a padding row may hold it."""
    generator = random.Random(2)
    for version in (3, 5):
        for i, (tensor, shape) in enumerate(tensor_shapes(CONFIG).items()):
            params = make_params(CONFIG)
            n = 257 * 16 if tensor == "wte" else math.prod(shape)
            at = [0, n - 1, generator.randrange(n)][i % 3]
            value, shown = [(math.nan, "nan"), (math.inf, "inf"), (-math.inf, "-inf")][(i + version) % 3]
            params[tensor][at] = value
            name = model("nan.bin", params=params, version=version)
            dimensions = ", ".join(map(str, shape))
            place = re.compile(rf"tensor {tensor} holds -?{shown} at element {at} of \({dimensions}")
            refused("--init", name, *SAMPLE, says=[name, place])
    clean = model("clean.bin")
    params = make_params(CONFIG)
    params["wte"][257 * 16] = math.nan
    params["wte"][384 * 16 - 1] = math.inf
    assert sample_of(model_sample(model("nan.bin", params=params))) == sample_of(model_sample(clean))


def test_flipped_bytes_of_a_checkpoint():
    """Row 3: a run folder's model has a checksum: a flipped byte anywhere is found when it is used with --init."""
    folder = new_folder("flipped")
    train("--steps", 4, "-n", 2, "--lr", 0.05, *MODEL, "-o", folder)
    names = [f"model_{step:08}.bin" for step in (2, 4)]
    content = read(f"flipped/{names[1]}")
    good = sample_of(model_sample(os.path.join(folder, names[0])))
    assert good != sample_of(model_sample(folder))
    for at in (0, 8, 1023, 1024, 1027, len(content) // 2, len(content) - 1):
        damaged = content[:at] + bytes([content[at] ^ 1]) + content[at + 1:]
        write(f"flipped/{names[1]}", damaged)
        out = model_sample(folder)
        assert names[0] in out and sample_of(out) == good, (at, out)
        os.rename(os.path.join(folder, names[0]), path("aside"))
        refused("--init", folder, *SAMPLE, says=[names[1]])
        os.rename(path("aside"), os.path.join(folder, names[0]))


def test_bfloat16_and_float32():
    """Row 4: a bfloat16 file gives the same run as a float32 file of the same numbers, and is written as float32."""
    fp32, bf16 = model("fp32.bin", version=3), model("bf16.bin", version=5)
    hashes = []
    for name in (fp32, bf16):
        folder = new_folder("converted")
        hashes.append(weights_hash(train("--init", name, "--steps", 2, "-o", folder)))
        written = read("converted/model_00000002.bin")
        assert struct.unpack_from("<2i", written) == (20240326, 3) and len(written) == 1024 + 4 * num_params(CONFIG)
    assert hashes[0] == hashes[1], hashes


# ---- Safetensors: rows 1 to 4 in another format ----


def test_safetensors_files():
    """Rows 1 to 4: what is written is read again; cut, damaged or incomplete files are refused."""
    original = model("hf.bin", params=make_params(CONFIG))
    folder = new_folder("hf")
    out = ran("--init", original, *SAMPLE, "--export", folder)
    names = ["config.json", "generation_config.json", "merges.txt", "model.safetensors", "special_tokens_map.json",
             "tokenizer.json", "tokenizer_config.json", "vocab.json"]
    assert "exported" in out and sorted(os.listdir(folder)) == names, os.listdir(folder)
    name, config_name = (os.path.join(folder, part) for part in ("model.safetensors", "config.json"))
    for init in (folder, name):
        assert sample_of(model_sample(init)) == sample_of(out)
    whole, config_text = read("hf/model.safetensors"), read("hf/config.json")
    header_bytes = struct.unpack_from("<Q", whole)[0]
    header = json.loads(whole[8:8 + header_bytes])

    def refused_file(data, *says):
        write("hf/model.safetensors", data)
        refused("--init", folder, *SAMPLE, says=["model.safetensors", *says])

    def with_header(new):
        text = new if isinstance(new, bytes) else json.dumps(new).encode()
        return struct.pack("<Q", len(text)) + text + whole[8 + header_bytes:]

    for cut in (0, 1, 7, 8, 9, 8 + header_bytes - 1, 8 + header_bytes, len(whole) // 2, len(whole) - 1, len(whole) + 1):
        refused_file((whole + b"\0")[:cut])
    for length in (0, 1, header_bytes - 1, header_bytes + 1, len(whole), 2**31, 2**63, 2**64 - 1):
        refused_file(struct.pack("<Q", length) + whole[8:])
    for key in ("wte.weight", "h.0.attn.c_attn.weight", "ln_f.bias"):
        refused_file(with_header({k: v for k, v in header.items() if k != key}))
        changes = [("dtype", "I32"), ("dtype", "F64"), ("shape", [1, 1]), ("shape", [-1, 16]), ("shape", [2**62, 16]),
                   ("shape", "x"), ("data_offsets", [0, 4]), ("data_offsets", [-4, 4]), ("data_offsets", [0, 2**63])]
        for what, value in changes:
            refused_file(with_header({**header, key: {**header[key], what: value}}))
    refused_file(with_header({**header, "h.1.ln_1.weight": header["h.0.ln_1.weight"]}))
    refused_file(with_header(b"{" * 10000))
    begin, end = (8 + header_bytes + at for at in header["h.0.mlp.c_fc.weight"]["data_offsets"])
    refused_file(whole[:end - 4] + struct.pack("<f", math.nan) + whole[end:], "tensor fcw")
    write("hf/model.safetensors", whole)
    for key, value, says in (("n_layer", 2, ""), ("n_head", 3, "heads"), ("n_head", 0, "n_head"),
                             ("n_embd", 32, "shape"), ("vocab_size", 300, "shape"), ("n_positions", -1, "n_positions"),
                             ("activation_function", "relu", "activation_function"),
                             ("layer_norm_epsilon", 0.1, "layer_norm_epsilon")):
        write("hf/config.json", json.dumps({**json.loads(config_text), key: value}).encode())
        refused("--init", folder, *SAMPLE, says=[folder, says])
    os.remove(config_name)
    refused("--init", folder, *SAMPLE, says=["config.json"])


# ---- Rows 5 to 7: data ----

SHARD_MODEL = ["--vocab", "300", *TINY, *QUIET]


def test_damaged_shards():
    """Row 5: a shard that is cut, padded, miscounted or of another kind is refused, for training and for validation."""
    good = shard_bytes(random_tokens(100, 300))
    counted = [(count, struct.pack("<256i", 20240520, 1, count, *[0] * 253) + good[1024:])
               for count in (-1, -2**31, 0, 1, 50, 99, 101, 2**31 - 1)]
    cases = [(data, ["header says", count]) for count, data in counted if count != 50]
    cases += [(data, ["50 tokens of 4 bytes"]) for count, data in counted if count == 50]
    cases += [(good[:n], [n, "1024"]) for n in (0, 1, 4, 1023)]
    cases += [(good[:n], ["header says 100 tokens", "truncated"])
              for n in (1024, 1025, 1026, len(good) - 2, len(good) - 1)]
    cases += [(good + bytes(n), ["header says 100 tokens", "padded"]) for n in (1, 2, 1024)]
    cases += [(shard_bytes([1] * 100, magic=magic), ["magic", magic]) for magic in (0, -1, 20240326, 20240522)]
    cases += [(shard_bytes([1] * 100, version=version), ["version", version]) for version in (0, 2, 7, -1)]
    cases += [(shard_bytes([1] * 200, magic=20240801, version=7, count=100), ["32-bit", "20240801"]),
              (TEXT.encode() * 100, ["not a token shard"])]
    fine = shard("fine.bin", random_tokens(100, 300))
    for i, (data, says) in enumerate(cases):
        name, folder = write("bad.bin", data), new_folder("bad_run")
        files = ["-i", name] if i % 3 else ["-i", fine, "-j", name]
        refused(*files, *SHARD_MODEL, "-x", 2, "-o", folder, says=[name, *says], no_files=folder)


def test_all_bad_shards_at_once():
    """Row 5: every bad file of a pattern is named in one line, good ones are not."""
    data = shard_bytes(random_tokens(100, 300))
    folder = new_folder("shards")
    os.makedirs(folder)
    bad = {"b.bin": data[:-1], "d.bin": b"", "e.bin": shard_bytes([5] * 50, version=3)}
    for name, content in {**bad, "a.bin": data, "c.bin": data}.items():
        write(f"shards/{name}", content)
    err = refused("-i", f"{folder}/*.bin", *SHARD_MODEL, says=["3 of 5 files", *bad])
    assert "a.bin:" not in err and "c.bin:" not in err, err
    for i in range(40):
        write(f"shards/{'z' * 60}_{i:03}.bin", data[:1024 + i])
    refused("-i", f"{folder}/*.bin", *SHARD_MODEL, says=["43 of 45 files", "b.bin", "and 35 more"])


def test_token_outside_the_vocabulary():
    """Row 6: named with shard, position and id at its first touch, in the last shard, as input or only as target."""
    for name in ("t_0.bin", "t_1.bin"):
        shard(name, random_tokens(16 * 4 + 1, 300))
    whole = random_tokens(16 * 4 + 1, 300)
    for at, token, files in ((40, 300, "-i"), (63, 301, "-i"), (64, 65535, "-i"), (0, 383, "-j"), (64, 32768, "-j")):
        tokens = list(whole)
        tokens[at] = token
        last, folder = shard("t_2.bin", tokens), new_folder("token_run")
        good = ["-i", path("t_0.bin")] if files == "-j" else []
        run = ["--vocab", 300, *TINY, "--sample-every", 0, "--steps", 20, "--val-batches", 0, "-n", 1, "-o", folder]
        refused(files, path("t_[012].bin"), *good, *run, says=[f"{last}: token {at} is id {token}", "300"])
        if files == "-i":
            assert checkpoints(folder) in ([4], list(range(1, 5)), list(range(1, 6))), checkpoints(folder)
            model_sample(folder)
    shard("t_2.bin", whole[:64] + [9999])
    for extra in (["--shuffle"], ["--shuffle", "--seed", "7"], ["--overfit"]):
        arguments = ["-i", path("t_2.bin"), *SHARD_MODEL, "-x", 8, *extra]
        if "--overfit" in extra:
            ran(*arguments)  # the first batch is fine, and there is no other
        else:
            refused(*arguments, says=["t_2.bin: token 64 is id 9999"])


def test_shards_of_all_sizes():
    """Row 7: unequal, tiny and empty shards; folders and patterns that match nothing."""
    sizes = [16 * 3 + 1, 16, 17, 0, 1, 16 * 5 + 9]
    for i, size in enumerate(sizes):
        shard(f"u_{i}.bin", random_tokens(size, 300, i))
    windows = sum(max(size - 1, 0) // 16 for size in sizes)
    out = ran("-i", path("u_*.bin"), "--vocab", 300, *TINY, *QUIET, "--steps", 20, "--shuffle")
    assert f"{sum(sizes)} tokens, {windows} sequences" in out and len(losses(out)) == 20, out
    assert f"steps       {windows // 2}, " in ran("-i", path("u_*.bin"), "--vocab", 300, *TINY, *QUIET)
    one = path("u_2.bin")  # one window, and a batch has two
    assert len(losses(ran("-i", one, "--vocab", 300, *TINY, *QUIET, "--steps", 3))) == 3
    refused("-i", one, "--vocab", 300, *TINY, says=["--steps", "1 sequences", "2 of one step"])
    for name in ("u_1.bin", "u_3.bin", "u_4.bin"):
        refused("-i", path(name), *SHARD_MODEL, says=[name, "needs 17 tokens", f"has {sizes[int(name[2])]}"])
    os.makedirs(path("u_dir.bin"))
    refused("-i", path("u_*.bin"), *SHARD_MODEL, says=["u_dir.bin: is a folder"])
    os.rmdir(path("u_dir.bin"))
    for pattern in (path("nothing_*.bin"), path("nothing.bin"), path("no_folder/*.bin"), path("nothing.txt"),
                    path("n*.txt")):
        refused("-i", pattern, *SHARD_MODEL[2:], says=[pattern, re.compile("no such file", re.I)])
    refused("-i", FOLDER, *TINY, says=[FOLDER, "folder"])
    refused("-i", write("empty.txt", b""), *TINY, says=["empty.txt", "empty"])
    refused("-i", write("short.txt", b"sixteen letters"), *TINY, says=["short.txt", "needs 17 tokens"])


def test_shard_of_four_gigabytes():
    """Row 7: the largest shard there is, 2^31 - 1 tokens, read up to its end."""
    count = 2**31 - 1
    name, last_window = path("huge_train.bin"), (count - 1) // 16 - 1
    with open(name, "wb") as file:
        file.write(struct.pack("<256i", 20240520, 1, count, *[0] * 253))
        file.truncate(1024 + 2 * count)
    out = ran("-i", name, *SHARD_MODEL, "-x", 2, "--shuffle")
    assert f"{count} tokens, {last_window + 1} sequences" in out, out
    flat = weights_hash(ran("-i", name, *SHARD_MODEL, "-x", 2))
    assert flat == weights_hash(out), "a shard of zeros is the same everywhere"
    with open(name, "r+b") as file:
        file.truncate(1024 + 2 * count - 2)
    refused("-i", name, *SHARD_MODEL, says=[f"{count} tokens", f"file holds {count - 1}", "truncated"])
    os.remove(name)


# ---- Rows 8 and 9: sizes of a batch ----


def test_odd_lengths():
    """Row 8: a sequence longer than the context is refused; T = 1 and odd B and T give the loss of the reference."""
    c = config(V=61, Vp=128, maxT=13, L=2)
    params = make_params(c)
    name, tokens = model("reference.bin", c, params), random_tokens(200, 61)
    data = shard("reference_data.bin", tokens)
    for T, B in ((1, 1), (1, 3), (2, 1), (3, 2), (5, 3), (7, 1), (11, 2), (13, 3)):
        out = ran("-e", name, "-i", data, "-j", data, "-t", T, "-b", B, "-x", 1, "-m", 1, "-s", 0, "--lr", 0)
        want = sum(
            reference_loss(c, params, tokens[b * T:b * T + T], tokens[b * T + 1:b * T + T + 1]) for b in range(B)) / B
        for loss in losses(out) + val_losses(out):
            assert abs(loss - want) <= 1e-5, (T, B, loss, want)
        assert len(losses(out)) == 1 and len(val_losses(out)) == 2
    refused("-e", name, "-i", data, "-t", 14, says=["--seq-len (-t)", "14 tokens", "13 positions"])
    refused("-e", name, "-j", data, "-t", 100, "-x", 0, says=["--seq-len (-t)", "100 tokens", "13 positions"])
    refused("-i", TEXT, "--context", 8, "-t", 9, says=["9 tokens", "8 positions"])


def test_total_batches():
    """Row 9: refused with the nearest valid values, which are then accepted; the arithmetic has 64 bits."""
    base = ["-i", TEXT, *TINY, *QUIET, "--steps", 1, "--plan"]
    cases = {1: [32], 31: [32], 33: [32, 64], 63: [32, 64], 100: [96, 128], 2147483647: [2147483616]}
    for total, nearest in cases.items():
        advice = "nearest is " + " or ".join(map(str, nearest))
        refused(*base, "-d", total, says=["--total-batch (-d)", f"{total} tokens", "B x T = 32", advice])
        for value in nearest:
            assert f"= {value} tokens a step" in ran(*base, "-d", value), value
    for total in (-1, -32, 2147483648, 4294967296, 4294967328, 2**53, 10**30):
        refused(*base, "--total-batch", total, says=["--total-batch (-d)", "0 to 2147483647", "default 0"])
    assert "= 32 tokens a step" in ran(*base, "-d", 0)
    large = ["-i", TEXT, "--context", 1048576, "-t", 65536, "--plan", "-b"]
    refused(*large, 65536, says=["--batch-size (-b)", 2**32, 2**31 - 1])
    refused(*large, 32768, says=["--batch-size (-b)", 2**31])


# ---- Row 10: tokenizers ----


def test_tokenizers():
    """Row 10: missing: training goes on and ids are printed; damaged or not the model's: refused at start."""
    tokens = [bytes([i]) for i in range(256)] + [b"<|endoftext|>"]
    good = tokenizer_bytes(tokens)
    data = shard("byte_shard.bin", random_tokens(100, 257))
    base = ["-i", data, "--vocab", 257, *TINY, "--steps", 1, "--val-every", 0, "--sample-tokens", 5]
    out = ran(*base, "--tokenizer", path("no_such.bin"))
    assert "not found" in out and re.search(r"sample after 1 steps:\n(\d+ ){5}\n", out), out
    assert not re.search(r"\n(\d+ ){5}\n", ran(*base, "--tokenizer", write("tokenizer.bin", good)))
    assert not re.search(r"\n(\d+ ){5}\n", ran(*base, cwd=new_place("with_tokenizer", {"gpt2_tokenizer.bin": good})))
    bad = [(good[:n], ["bytes", "1024"]) for n in (4, 100, 1023)]
    bad += [(good[:n], ["ends inside token", "of 257"]) for n in (1024, 1025, len(good) - 1, len(good) - 14)]
    bad += [(good + b"\0", ["1 bytes follow the last of 257 tokens"]), (b"", ["empty"]),
            (good[:1024] + bytes(2000), ["token 0 is empty"]),
            (tokenizer_bytes(tokens[:100] + [b""] + tokens[101:]), ["token 100 is empty"]),
            (tokenizer_bytes(tokens, eot=257), ["end-of-text id 257", "257 tokens"]),
            (tokenizer_bytes(tokens, eot=2**32 - 1), ["end-of-text id 4294967295"]),
            (tokenizer_bytes(tokens, version=1), ["end-of-text id 50256"]),
            (tokenizer_bytes(tokens, version=0), ["version 0"]), (tokenizer_bytes(tokens, version=3), ["version 3"]),
            (tokenizer_bytes(tokens, count=0), ["header says 0 tokens, expected 1 to 65535"]),
            (tokenizer_bytes(tokens, count=258), ["ends inside token 257"]),
            (tokenizer_bytes(tokens, count=2**32 - 1), ["header says -1 tokens, expected 1 to 65535"]),
            (tokenizer_bytes(tokens[:100] + tokens[101:] + [b"x", b"y"]), ["has 258 tokens, the model 257"]),
            (b"#version: 0.2\nh e\n", ["line 2", "50000"]), (b"#version: 0.2\nhello\n", ["line 2"]),
            (b"no merges at all", ["line 1"]), (b"\xff\xfe\x00", ["line 1"])]
    for content, says in bad:
        folder = new_folder("tokenizer_run")
        if "the model" in says[0]:
            base[base.index("--vocab"):base.index("--vocab") + 2] = ["--init", model("byte.bin", config(maxT=16))]
            for option in ("--layers", "--heads", "--channels", "--context"):
                del base[base.index(option):base.index(option) + 2]
        name = write("tokenizer.bin", content)
        refused(*base, "--tokenizer", name, "-o", folder, says=[name, *says], no_files=folder)
    write("tokenizer.bin", good)
    refused("-i", TEXT, *TINY, "--tokenizer", path("tokenizer.bin"), says=["tokenizer.bin", "only decode", "vocab.bpe"])
    refused("-i", TEXT, *TINY, "--tokenizer", path("none.bpe"), says=["none.bpe", "No such file"])
    refused("-i", data, *TINY, "--tokenizer", FOLDER, says=[FOLDER, "folder"])
    refused("-i", TEXT, *BATCH, "-e", model("other.bin", config(V=300)), says=["byte has 257 tokens, the model 300"])
    refused("-i", TEXT, *TINY, "--vocab", 256, says=["257 tokens, the model 256"])


def new_place(name, files):
    """A folder with files, to run in."""
    os.makedirs(new_folder(name))
    for file, content in files.items():
        write(os.path.join(name, file), content)
    return path(name)


# ---- Row 13: sampling ----


def test_extreme_logits():
    """Row 13: logits of +-10,000, all temperatures, more tokens than the context: a sample, and the same one again."""
    params = make_params(CONFIG)
    params["lnfw"] = array.array("f", [1e5] * 16)
    name = model("extreme.bin", params=params)
    for options in ("", "--temperature 0", "--temperature 1e-6", "--temperature 100", "--top-p 0", "--top-k 1",
                    "--top-k 1000000 --top-p 0.5"):
        arguments = ["--init", name, "--steps", 0, "--sample-tokens", 100, *options.split()]
        assert sample_of(ran(*arguments)) == sample_of(ran(*arguments, "--threads", 2)), options
    # No choice to make: the likeliest token of such logits is the only one.
    likeliest = sample_of(ran("--init", name, "--steps", 0, "--temperature", 0))
    assert likeliest == sample_of(ran("--init", name, "--steps", 0, "--top-k", 1, "--seed", 99))


def test_logits_that_are_no_numbers():
    """Row 13: logits overflow in a model whose weights are finite: said, never a hang or a wrong token."""
    params = make_params(CONFIG)
    params["lnfw"] = array.array("f", [FP32_MAX] * 16)
    name = model("overflow.bin", params=params)
    for options in ([], ["--temperature", 0], ["--top-k", 5], ["--top-p", 0.9]):
        refused("--init", name, "--steps", 0, *options, says=["logits are not numbers"])


def test_sampling_costs_no_checkpoint():
    """Rows 13 and 22: weights grow without limit; a sample fails, but all steps before it are saved."""
    folder = new_folder("growing")
    run = [*TINY, "--lr", 100, "--weight-decay", 100, "-n", 1, "-s", 1, "-g", 3, "-v", 0, "-x", 50, "-o", folder]
    what = re.compile(r"step \d+: the (loss|gradient norm) is (NaN|-?inf)")
    err = refused("-i", TEXT, *run, says=[what, "first found in", "the last checkpoint in"])
    failed = int(re.search(r"step (\d+):", err).group(1))
    assert checkpoints(folder) == list(range(1, failed)), (failed, checkpoints(folder))
    assert len([line for line in open(os.path.join(folder, "main.log"))]) == failed - 1
    for step in checkpoints(folder):
        process = start("--init", os.path.join(folder, f"model_{step:08}.bin"), *SAMPLE)
        process.communicate()
        assert process.returncode in (0, 1), process.returncode  # 1: logits overflow, and it says so


# ---- Rows 22 and 24: numbers in training ----


def test_overflow_in_every_tensor():
    """Row 22: each tensor in turn is as large as a float can be. The run ends well or names step and tensor."""
    ended = 0
    for tensor in tensor_shapes(CONFIG):
        params = make_params(CONFIG)
        params[tensor] = array.array("f", [math.copysign(FP32_MAX, v) for v in params[tensor]])
        if tensor == "wte":
            params[tensor][257 * 16:] = array.array("f", [0.0] * (127 * 16))
        folder = new_folder("overflow")
        process = start("-e", model("overflow.bin", params=params), "-i", TEXT, *BATCH, "-v", 0, "-s", 0, "-x", 3, "-n",
                        1, "-o", folder)
        out, err = (text.decode() for text in process.communicate())
        if process.returncode == 0:
            assert all(math.isfinite(loss) for loss in losses(out)) and len(losses(out)) == 3, (tensor, out)
        else:
            ended += 1
            place = r"(activation|gradient of|parameter) \w+( of layer \d)?"
            saved = r"(nothing was saved|the last checkpoint in [^;]+ is that of step \d)"
            what = r"step \d: the (loss|gradient norm) is (NaN|-?inf)"
            line = rf"train_gpt2: {what}, first found in {place}; {saved}; .*\n"
            assert process.returncode == 1 and re.fullmatch(line, err), (tensor, err)
        for step in checkpoints(folder):
            process = start("--init", os.path.join(folder, f"model_{step:08}.bin"), *SAMPLE)
            _, err = process.communicate()
            assert b"tensor" not in err, (tensor, step, err)  # what was saved has finite weights
    assert ended >= 8, ended


def test_bad_weights_are_not_saved():
    """Row 22: weights that became infinite where no loss sees them are not saved, and what was saved before stays."""
    params = make_params(dict(CONFIG, maxT=32))
    params["wpe"][20 * 16] = 1e36  # a position beyond the sequences; the weight decay below makes it grow
    folder = new_folder("grows")
    run = ["-i", TEXT, *BATCH, "-v", 0, "-s", 0, "-x", 9, "-n", 1, "--keep", 1, "--weight-decay", 100, "--lr", 0.2]
    err = refused("-e", model("unseen.bin", dict(CONFIG, maxT=32), params), *run, "-o", folder,
                  says=["the model to be saved", "wpe"])
    assert len(checkpoints(folder)) == 1, (err, checkpoints(folder))
    ran("--init", os.path.join(folder, f"model_{checkpoints(folder)[0]:08}.bin"), *SAMPLE)


def test_names_the_tensor():
    """Row 22: the tensor that overflows first, in the order of the computation."""
    cases = {
        "qkvw": "activation qkv of layer 1",
        "fcw": "activation fc of layer 1",
        "attprojw": "activation residual_mid of layer 1"
    }
    c = config(L=2)
    for tensor, place in cases.items():
        params = make_params(c)
        n = len(params[tensor]) // 2
        for i in range(n, 2 * n):
            params[tensor][i] = FP32_MAX
        name = model("named.bin", c, params)
        for options in ([], ["--recompute", 1], ["--threads", 2]):
            says = ["step 1: the loss is", place, "nothing was saved"]
            refused("-e", name, "-i", TEXT, *BATCH, *QUIET, "-x", 2, *options, says=says)


def test_spikes_are_skipped():
    """Row 22: an update of a spike is skipped, the weights stay as they were, and the statistics know nothing of it."""
    ordinary = [1, 2, 3, 4] * (8 * 140)
    spike = [1] + random_tokens(31, 300)  # its first token is the last target of the batch before
    data = shard("spike.bin", ordinary[:32 * 140] + spike + spike + [1, 2, 3, 4] * 8 + [1])
    flat = shard("flat.bin", ordinary[:32 * 140 + 1])
    for option in ("--skip-loss-z", "--skip-grad-z", "-sl"):
        base = ["--vocab", 300, *TINY, *QUIET, "--schedule", "constant", "--lr", 0.02, option, 4]
        out = ran("-i", data, *base, "-x", 142)
        skipped = re.findall(
            r"^step (\d+): update skipped, the (loss|gradient norm) is ([\d.]+) standard deviations above normal$", out,
            re.M)
        assert [step for step, _, _ in skipped] == ["141", "142"], out[-900:]
        assert skipped[0][1:] == skipped[1][1:], skipped  # the same batch, weights and statistics
        assert weights_hash(out) == weights_hash(ran("-i", flat, *base, "-x", 140))
        after = ran("-i", data, *base, "-x", 143)
        assert after.count("update skipped") == 2 and weights_hash(after) != weights_hash(out)
    assert weights_hash(ran("-i", data, *base[:-2], "-x",
                            142)) != weights_hash(out), "without the option it is not skipped"


def test_padding_rows():
    """Row 24: whatever a file holds in the padding rows of wte, training is the same, and they are written as zeros."""
    clean = make_params(CONFIG)
    dirty = make_params(CONFIG)
    for i in range(257 * 16, 384 * 16):
        dirty["wte"][i] = 1000.0 - i
    hashes = []
    for params in (clean, dirty):
        folder = new_folder("padding")
        hashes.append(
            weights_hash(train("-e", model("padding.bin", params=params), "-x", 3, "--weight-decay", 0.1, "-o",
                               folder)))
        written = read("padding/model_00000003.bin")
        assert not any(written[1024 + 4 * 257 * 16:1024 + 4 * 384 * 16]), "the padding is not zero"
    assert hashes[0] == hashes[1]
    # The width of the padding is nothing the model knows of: no padding at all gives the same losses.
    bare = config(Vp=257)
    params = make_params(CONFIG)
    del params["wte"][257 * 16:]
    wide, narrow = (losses(train("-e", name, "-x", 4))
                    for name in (model("wide.bin", params=clean), model("bare.bin", bare, params)))
    assert wide == narrow, (wide, narrow)


def test_accumulation():
    """Row 24: four sequences at once or in parts: the same losses within rounding."""
    runs = [
        losses(ran("-i", TEXT, *MODEL, *QUIET, "-t", 15, "-b", B, "-d", 60, "-x", 6, "--lr", 0.01)) for B in (4, 2, 1)
    ]
    for run in runs[1:]:
        for a, b in zip(runs[0], run):
            assert abs(a - b) <= 2e-5, runs
    assert len(set(runs[0])) == 6 and all(len(run) == 6 for run in runs)


# ---- Rows 15, 17 and 25: the folder of a run ----


def limited_files(limit):
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))


def check_folder_after_full_disk(folder, err):
    """Nothing but whole files; every checkpoint can be used."""
    names = set(os.listdir(folder))
    ours = r"(model|state)_\d{8}\.bin|(main|speed)\.log|run\.json|loss\.svg|\.lock"
    assert all(re.fullmatch(ours, name) for name in names), names
    models = {name[6:14] for name in names if name.startswith("model")}
    assert models == {name[6:14] for name in names if name.startswith("state")}, names
    for step in checkpoints(folder):
        model_sample(os.path.join(folder, f"model_{step:08}.bin"))
    with open(os.path.join(folder, "main.log")) as file:
        assert all(re.fullmatch(r"s:\d+ (tel:[\d.]+|trl:[\d.]+ lr:[\d.]+ norm:[\d.]+)\n", line) for line in file)
    assert "space" in err or "large" in err, err


def test_files_that_may_not_grow():
    """Row 15: the model, the state or the log meets a limit: one line, no partial file, no signal."""
    run = ["-i", TEXT, *TINY, "-s", 0, "-v", 1, "-m", 1, "-o"]
    for limit in (0, 1, 4):  # not even the lock can be written
        refused(*run, new_folder("limited"), "-x", 40, says=[path("limited")], preexec_fn=limited_files(limit))
    for limit, name, steps in ((200, "run.json", 40), (12000, "(main|speed).log|loss.svg", 1000),
                               (20000, "model_00000002.bin", 40), (50000, "state_00000002.bin", 40)):
        folder = new_folder("limited")
        often = [] if steps > 40 else ["-n", 2]
        err = refused(*run, folder, "-x", steps, *often, says=[re.compile(name)], preexec_fn=limited_files(limit))
        check_folder_after_full_disk(folder, err)
        assert checkpoints(folder) == []
    for limit, name in ((0, ""), (10, ""), (20000, "model.safetensors")):
        folder = new_folder("limited_export")
        arguments = ["--init", model("export.bin"), *SAMPLE, "--export", folder]
        refused(*arguments, says=[folder, name], preexec_fn=limited_files(limit))
        assert not os.path.isdir(folder) or os.listdir(folder) == [], os.listdir(folder)


@contextlib.contextmanager
def small_disk(size):
    folder = path("disk")
    os.makedirs(folder, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", folder]
    if os.getuid() != 0 or subprocess.run(command, stderr=subprocess.DEVNULL).returncode != 0:
        pytest.skip("no right to mount a small disk here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def test_full_disk():
    """Row 15: a disk without room for the last good checkpoint and another one is refused; on a larger one the run
    warns, ends when it is full, the earlier checkpoints stay, and --resume goes on."""
    run = ["-i", TEXT, *TINY, "-s", 0, "-v", 4, "-m", 1, "-x", 6]
    straight = weights_hash(ran(*run))
    run += ["-n", 1]
    for kilobytes in (8, 60, 140, 180, 300):
        with small_disk(f"{kilobytes}k") as disk:
            folder = os.path.join(disk, "run")
            refused(*run, "-o", folder, says=["--out-dir", folder, "not enough space", f"{kilobytes}.00 KiB free"])
            assert not os.path.exists(folder), kilobytes
    for kilobytes in (420, 560):
        with small_disk(f"{kilobytes}k") as disk:
            folder = os.path.join(disk, "run")
            err = refused(*run, "-o", folder, says=[folder, "space"], out_says=[f"warning: the disk of {folder} has"])
            check_folder_after_full_disk(folder, err)
            assert len(checkpoints(folder)) == (kilobytes - 8) // 132, (kilobytes, checkpoints(folder))
            shutil.copytree(folder, new_folder("roomy"))
            says = ["not enough space: 1", "(a checkpoint of 120.00 KiB, and logs)"]
            refused(*run, "-o", folder, "--resume", says=says)
            # an older run's checkpoints are no obstacle for one that removes them
            out = ran(*run, "-o", folder, "--overwrite", "--keep", 1)
            assert weights_hash(out) == straight and "warning" not in out and checkpoints(folder) == [6], out
            out = ran(*run[:-4], "-x", 7, "-o", folder, "--keep", 4, "--resume", "--allow-changes")
            assert "checkpoints 1 of 120.00 KiB, at most 2 at a time: 240.00 KiB\n" in out and "warning" not in out, out
    out = ran(*run, "-o", path("roomy"), "--resume")
    assert weights_hash(out) == straight and len(losses(out)) < 6, out


def test_full_disk_in_the_log():
    """Row 15: the log stands on a full device."""
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    folder = new_folder("full_log")
    os.makedirs(folder)
    os.symlink("/dev/full", os.path.join(folder, "main.log"))
    refused("-i", TEXT, *TINY, *QUIET, "-x", 3, "-o", folder, "--overwrite", says=["main.log", "no space left"])


def test_folders_that_cannot_be():
    """Row 15 and 25: a file in the way, no permission."""
    write("in_the_way", b"")
    for folder in (path("in_the_way"), path("in_the_way/run"), "/dev/null", "/proc/nothing"):
        refused("-i", TEXT, *TINY, "-x", 1, "-o", folder, says=[folder.split("/run")[0]])
        refused("--init", model("export.bin"), *SAMPLE, "--export", folder, says=[folder.split("/run")[0]])
    if os.getuid() != 0:
        folder = new_folder("forbidden")
        os.makedirs(folder, mode=0o555)
        refused("-i", TEXT, *TINY, "-x", 1, "-o", folder, says=[folder, "Permission denied"])


def test_fresh_run_in_a_used_folder():
    """Row 17: refused whatever is left of the older run, and nothing is touched; --overwrite leaves nothing of it."""
    run = ["-i", TEXT, *TINY, "-s", 0, "-v", 2, "-m", 1, "-o"]
    older = new_folder("older")
    ran(*run, older, "-n", 2, "-x", 8)
    log = read("older/main.log")
    for remove in ([], ["main.log"], ["loss.svg"], [name for name in os.listdir(older) if name.endswith(".bin")],
                   ["main.log"] + [f"{kind}_{step:08}.bin" for kind in ("model", "state") for step in (4, 6, 8)]):
        folder = new_folder("used")
        shutil.copytree(older, folder)
        for name in remove:
            os.remove(os.path.join(folder, name))
        before = {name: read(f"used/{name}") for name in os.listdir(folder)}
        refused(*run, folder, "-x", 3, says=[folder, "earlier run", "--resume", "--overwrite"])
        before.pop(".lock")
        assert before == {name: read(f"used/{name}") for name in os.listdir(folder) if name != ".lock"}
        out = ran(*run, folder, "-x", 3, "--overwrite")
        assert checkpoints(folder) == [3] and len(losses(out)) == 3, checkpoints(folder)
        names = [".lock", "loss.svg", "main.log", "model_00000003.bin", "run.json", "speed.log", "state_00000003.bin"]
        assert sorted(os.listdir(folder)) == names, os.listdir(folder)
        assert [line.split()[0]
                for line in read("used/main.log").decode().splitlines()] == ["s:0", "s:0", "s:1", "s:2", "s:2", "s:3"]
    # an --overwrite that cannot begin removes nothing
    refused(*run, older, "-x", 3, "--overwrite", "-j", path("nothing.bin"), says=["nothing.bin"])
    assert read("older/main.log") == log and checkpoints(older) == [2, 4, 6, 8]
    # other people's files stay
    write("older/notes.txt", b"mine")
    write("older/model_final.bin", b"mine too")
    ran(*run, older, "-x", 1, "--overwrite")
    assert read("older/notes.txt") == b"mine" and read("older/model_final.bin") == b"mine too"


def test_two_processes_one_folder():
    """Row 25: the second is refused however it names the folder; --plan may look; it is free when the first is gone."""
    folder = new_folder("shared")
    run = ["-i", TEXT, *TINY, *QUIET, "-o"]
    first = start(*run, folder, "-x", 1000000)
    while not first.stdout.readline().startswith(b"step"):
        assert first.poll() is None
    os.symlink(folder, path("link"))
    first.send_signal(signal.SIGSTOP)
    log = read("shared/main.log")
    try:
        for name in (folder, folder + "/", path("link"), os.path.join(FOLDER, ".", "shared"), os.path.relpath(folder)):
            for options in ([], ["--resume"], ["--overwrite"]):
                refused(*run, name, "-x", 3, *options, says=["in use by another process", f"pid {first.pid}"])
        ran(*run, folder, "-x", 3, "--plan")
        ran(*run, new_folder("own"), "-x", 3)
        assert read("shared/main.log") == log, "the first one's log was touched"
    finally:
        first.kill()
        first.communicate()
    refused(*run, folder, "-x", 3, says=["earlier run"])
    ran(*run, folder, "-x", 3, "--overwrite")
