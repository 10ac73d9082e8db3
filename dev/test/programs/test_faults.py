"""What the trainer does with damaged files, impossible sizes, full disks, numbers that overflow and folders in use.

The rule: it ends with status 1, never a signal, with one line on stderr that names the file or option, what was found
and expected. Nothing is half-written. The unit tests have every damage of every format (test_checkpoint.c,
test_safetensors.c, test_dataloader.c, test_tokenizer.c); here a program reports one of each kind. Resuming, killing and
signals: test_resume.py. Options: test_options.py.
"""
import array
import json
import math
import os
import re
import shutil
import signal
import struct

import pytest

from cli import (BATCH, CONFIG, FOLDER, MEMORY_LIMITS, MODEL, QUIET, TINY, checkpoints, config, losses, make_params,
                 model, model_bytes, model_header, new_folder, num_params, path, ran, random_tokens, read,
                 reference_loss, refused, sample_of, shard, shard_bytes, start, tensor_shapes, text_file,
                 tokenizer_bytes, val_losses, weights_hash, write)
from tools import limit_files, limit_memory, small_disk

TEXT = text_file()
SAMPLE = ["--steps", "0", "--sample-tokens", "4"]
FP32_MAX = 3e38


def train(*arguments, **keywords):
    return ran("-i", TEXT, *BATCH, *QUIET, *arguments, **keywords)


def model_sample(init, **keywords):
    return ran("--init", init, *SAMPLE, **keywords)


# ---- Rows 1 to 4: model files ----

GOOD = model_bytes(CONFIG, make_params(CONFIG))
FIELD = {"magic": 0, "version": 1, "heads": 5, "padded": 7}


def field(name, value):
    return GOOD[:4 * FIELD[name]] + struct.pack("<i", value) + GOOD[4 * FIELD[name] + 4:]


BAD_MODELS = {
    "empty": (b"", ["0 bytes", "1024"]),
    "header cut": (GOOD[:1023], ["1023 bytes", "1024"]),
    "tensor cut": (GOOD[:5000], [f"asks for {len(GOOD)} bytes", "has 5000"]),
    "padded": (GOOD + b"\0", [f"asks for {len(GOOD)} bytes", f"has {len(GOOD) + 1}"]),
    "other width": (field("version", 5), [f"asks for {512 + len(GOOD) // 2} bytes"]),
    "magic": (field("magic", 20240520), ["is not a model", "a token shard"]),
    "text": (b"To be, or not to be: " * 100, ["is not a model: magic"]),
    "obsolete": (field("version", 1), ["version 1", "export an older model again"]),
    "version": (field("version", 4), ["version 4", "3: float32, 5: bfloat16"]),
    "heads": (field("heads", 3), ["16 channels", "3 heads"]),
    "padding": (field("padded", 256), ["padded vocabulary is 256", "257"]),
    "larger than memory": (model_header(config(maxT=1 << 20, V=1 << 20, L=1000, NH=1024, C=1 << 16, Vp=1 << 20))
                           + GOOD[1024:], ["header asks for 206711594419200 bytes"]),
}


@pytest.mark.parametrize("data, says", BAD_MODELS.values(), ids=BAD_MODELS)
def test_bad_model(data, says):
    """Rows 1 and 2: refused for training, too, and nothing is allocated for what a header says."""
    name = write("bad.bin", data)
    limits = limit_memory(1 << 28) if MEMORY_LIMITS else None
    refused("--init", name, *SAMPLE, says=[name, *says], preexec_fn=limits)
    refused("-i", TEXT, *BATCH, "-e", name, "-o", path("bad_run"), says=[name, *says], no_files=path("bad_run"))


def test_no_model():
    """Row 1: folders, pipes and nothing at all in place of a model."""
    os.makedirs(path("folder.bin"), exist_ok=True)
    os.mkfifo(path("pipe.bin"))
    for init, says in ((path("none.bin"), "No such file"), (path("none"), "neither a size"), ("d13", "neither a size"),
                       (path("folder.bin"), "holds no model"), (path("pipe.bin"), "pipe"), (TEXT, "neither a size"),
                       ("gpt3:c769", "neither a size"), (path("none.safetensors"), "No such file")):
        refused("--init", init, *SAMPLE, says=[init, says])


def test_odd_but_valid_models():
    """Row 2: what the format allows is taken: no padding, a vocabulary of 1, one channel a head, position 1 only."""
    for changes in ({"V": 384}, {"Vp": 257}, {"NH": 16}, {"NH": 1, "maxT": 1}, {"C": 2, "NH": 1}, {"V": 1}):
        ran("--init", model("odd.bin", config(**changes)), *SAMPLE)


def test_numbers_that_are_none():
    """Row 3: a NaN or an infinity is found at load, with its place; a padding row may hold it."""
    for version, tensor, at, value, shown in ((3, "wte", 257 * 16 - 1, math.nan, "-?nan"),
                                              (5, "fcprojw", 7, -math.inf, "-inf")):
        params = make_params(CONFIG)
        params[tensor][at] = value
        name = model("nan.bin", params=params, version=version)
        refused("--init", name, *SAMPLE, says=[name, re.compile(rf"tensor {tensor} holds {shown} at element {at} of")])
    params = make_params(CONFIG)
    params["wte"][257 * 16] = math.nan
    params["wte"][384 * 16 - 1] = math.inf
    assert sample_of(model_sample(model("nan.bin", params=params))) == sample_of(model_sample(model("clean.bin")))


def test_flipped_byte_of_a_checkpoint():
    """Row 3: a run folder's model has a checksum: --init goes back to the checkpoint before, if there is one."""
    folder = new_folder("flipped")
    train("--steps", 4, "-n", 2, "--lr", 0.05, *MODEL, "-o", folder)
    names = [f"model_{step:08}.bin" for step in (2, 4)]
    content = read(f"flipped/{names[1]}")
    good = sample_of(model_sample(os.path.join(folder, names[0])))
    assert good != sample_of(model_sample(folder))
    at = len(content) // 2
    write(f"flipped/{names[1]}", content[:at] + bytes([content[at] ^ 1]) + content[at + 1:])
    out = model_sample(folder)
    assert names[0] in out and sample_of(out) == good, out
    os.remove(os.path.join(folder, names[0]))
    refused("--init", folder, *SAMPLE, says=[names[1]])


def test_bfloat16_and_float32():
    """Row 4: a bfloat16 file gives the same run as a float32 file of the same numbers, and is written as float32."""
    hashes = set()
    for version in (3, 5):
        folder = new_folder("converted")
        out = train("--init", model("any.bin", version=version), "--steps", 2, "-o", folder)
        hashes.add(weights_hash(out))
        written = read("converted/model_00000002.bin")
        assert struct.unpack_from("<2i", written) == (20240326, 3) and len(written) == 1024 + 4 * num_params(CONFIG)
    assert len(hashes) == 1, hashes


def test_safetensors_files():
    """Rows 1 to 4 in another format: what is written is read again; bad files are refused."""
    folder = new_folder("hf")
    out = ran("--init", model("hf.bin"), *SAMPLE, "--export", folder)
    for init in (folder, os.path.join(folder, "model.safetensors")):
        assert sample_of(model_sample(init)) == sample_of(out)
    whole, settings = read("hf/model.safetensors"), json.loads(read("hf/config.json"))
    for data in (whole[:len(whole) // 2], whole.replace(b"ln_f.bias", b"ln_f.bios"), whole.replace(b"F32", b"I32", 1)):
        write("hf/model.safetensors", data)
        refused("--init", folder, *SAMPLE, says=["model.safetensors"])
    write("hf/model.safetensors", whole)
    for key, value, says in (("n_head", 3, "heads"), ("n_embd", 32, "shape"),
                             ("activation_function", "relu", "gelu_new")):
        write("hf/config.json", json.dumps({**settings, key: value}).encode())
        refused("--init", folder, *SAMPLE, says=[folder, says])
    os.remove(os.path.join(folder, "config.json"))
    refused("--init", folder, *SAMPLE, says=["config.json"])


# ---- Rows 5 to 7: data ----

SHARD_MODEL = ["--vocab", "300", *TINY, *QUIET]
SHARD = shard_bytes(random_tokens(100, 300))
BAD_SHARDS = {
    "empty": (b"", ["0", "1024"]),
    "cut": (SHARD[:-1], ["header says 100 tokens", "truncated"]),
    "padded": (SHARD + b"\0\0", ["header says 100 tokens", "padded"]),
    "count": (shard_bytes([1] * 100, count=-1), ["header says -1"]),
    "width": (shard_bytes([1] * 100, count=50), ["50 tokens of 4 bytes"]),
    "magic": (shard_bytes([1] * 100, magic=20240326), ["magic", "20240326"]),
    "version": (shard_bytes([1] * 100, version=2), ["version", "2"]),
    "llama's": (shard_bytes([1] * 200, magic=20240801, version=7, count=100), ["32-bit", "20240801"]),
    "text": (b"no shard " * 400, ["not a token shard"]),
}


@pytest.mark.parametrize("data, says", BAD_SHARDS.values(), ids=BAD_SHARDS)
def test_bad_shard(data, says):
    """Row 5: a shard that is cut, padded, miscounted or of another kind is refused, to train on and to validate."""
    name, folder = write("bad.bin", data), new_folder("bad_run")
    for files in (["-i", name], ["-i", shard("fine.bin", random_tokens(100, 300)), "-j", name]):
        refused(*files, *SHARD_MODEL, "-x", 2, "-o", folder, says=[name, *says], no_files=folder)


def test_all_bad_shards_at_once():
    """Row 5: every bad file of a pattern is named in one line, good ones are not."""
    bad = {"b.bin": SHARD[:-1], "d.bin": b"", "e.bin": shard_bytes([5] * 50, version=3)}
    for name, content in {**bad, "a.bin": SHARD, "c.bin": SHARD}.items():
        write(f"shards/{name}", content)
    err = refused("-i", path("shards/*.bin"), *SHARD_MODEL, says=["3 of 5 files", *bad])
    assert "a.bin:" not in err and "c.bin:" not in err, err


def test_token_outside_the_vocabulary():
    """Row 6: named with shard, position and id at its first touch, in the last shard, as input or only as target."""
    whole = random_tokens(16 * 4 + 1, 300)
    for name in ("t_0.bin", "t_1.bin"):
        shard(name, whole)
    for at, token, files in ((63, 301, "-i"), (64, 65535, "-i"), (0, 383, "-j")):
        last, folder = shard("t_2.bin", whole[:at] + [token] + whole[at + 1:]), new_folder("token_run")
        good = ["-i", path("t_0.bin")] if files == "-j" else []
        run = ["--vocab", 300, *TINY, "--sample-every", 0, "--steps", 20, "--val-batches", 0, "-n", 1, "-o", folder]
        refused(files, path("t_[012].bin"), *good, *run, says=[f"{last}: token {at} is id {token}", "300"])
        if files == "-i":
            assert checkpoints(folder) in ([4], list(range(1, 5)), list(range(1, 6))), checkpoints(folder)
            model_sample(folder)
    shard("t_2.bin", whole[:64] + [9999])
    arguments = ["-i", path("t_2.bin"), *SHARD_MODEL, "-x", 8]
    refused(*arguments, "--shuffle", says=["t_2.bin: token 64 is id 9999"])
    ran(*arguments, "--overfit")  # the first batch is fine, and there is no other


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
    refused("-i", path("u_1.bin"), *SHARD_MODEL, says=["u_1.bin", "needs 17 tokens", "has 16"])
    os.makedirs(path("u_dir.bin"))
    refused("-i", path("u_*.bin"), *SHARD_MODEL, says=["u_dir.bin: is a folder"])
    for pattern in (path("nothing_*.bin"), path("no_folder/*.bin"), path("nothing.txt")):
        refused("-i", pattern, *SHARD_MODEL[2:], says=[pattern, re.compile("no such file", re.I)])
    refused("-i", FOLDER, *TINY, says=[FOLDER, "folder"])
    refused("-i", write("empty.txt", b""), *TINY, says=["empty.txt", "empty"])
    refused("-i", write("short.txt", b"sixteen letters"), *TINY, says=["short.txt", "needs 17 tokens"])


# ---- Rows 8 and 9: sizes of a batch ----


def test_odd_lengths():
    """Row 8: a sequence longer than the context is refused; T = 1 and odd B and T give the loss of the reference."""
    c = config(V=61, Vp=128, maxT=13, L=2)
    params = make_params(c)
    name, tokens = model("reference.bin", c, params), random_tokens(200, 61)
    data = shard("reference_data.bin", tokens)
    for T, B in ((1, 1), (1, 3), (5, 3), (13, 2)):
        out = ran("-e", name, "-i", data, "-j", data, "-t", T, "-b", B, "-x", 1, "-m", 1, "-s", 0, "--lr", 0)
        want = sum(
            reference_loss(c, params, tokens[b * T:b * T + T], tokens[b * T + 1:b * T + T + 1]) for b in range(B)) / B
        for loss in losses(out) + val_losses(out):
            assert abs(loss - want) <= 1e-5, (T, B, loss, want)
        assert len(losses(out)) == 1 and len(val_losses(out)) == 2
    for data_option, steps in (("-i", 1), ("-j", 0)):
        refused("-e", name, data_option, data, "-t", 14, "-x", steps, says=["--seq-len (-t)", "14 tokens", "13 posit"])


def test_total_batches():
    """Row 9: refused with the nearest valid values, which are then accepted."""
    base = ["-i", TEXT, *TINY, *QUIET, "--steps", 1, "--plan"]
    refused(*base, "-d", 100, says=["--total-batch (-d)", "100 tokens", "B x T = 32", "nearest is 96 or 128"])
    for value, tokens in ((96, 96), (128, 128), (0, 32)):
        assert f"= {tokens} tokens a step" in ran(*base, "-d", value), value


# ---- Row 10: tokenizers ----

TOKENS = [bytes([i]) for i in range(256)] + [b"<|endoftext|>"]
TOKENIZER = tokenizer_bytes(TOKENS)
BAD_TOKENIZERS = {
    "empty": (b"", ["empty"]),
    "header cut": (TOKENIZER[:100], ["bytes", "1024"]),
    "cut": (TOKENIZER[:-1], ["ends inside token", "of 257"]),
    "empty token": (tokenizer_bytes(TOKENS[:100] + [b""] + TOKENS[101:]), ["token 100 is empty"]),
    "end of text": (tokenizer_bytes(TOKENS, eot=257), ["end-of-text id 257", "257 tokens"]),
    "merges": (b"#version: 0.2\nh e\n", ["line 2", "50000"]),
    "other size": (tokenizer_bytes(TOKENS + [b"x"]), ["has 258 tokens, the model 257"]),
}


@pytest.mark.parametrize("data, says", BAD_TOKENIZERS.values(), ids=BAD_TOKENIZERS)
def test_bad_tokenizer(data, says):
    """Row 10: damaged or not the model's: refused at the start."""
    name, folder = write("bad_tokenizer.bin", data), new_folder("tokenizer_run")
    refused("-i", shard("byte_shard.bin", random_tokens(100, 257)), "--init", model("byte.bin"), *BATCH, "-x", 1,
            "--tokenizer", name, "-o", folder, says=[name, *says], no_files=folder)


def test_tokenizers():
    """Row 10: a missing one: training goes on and ids are printed. One that cannot serve is refused."""
    data = shard("byte_shard.bin", random_tokens(100, 257))
    base = ["-i", data, "--vocab", 257, *TINY, "--steps", 1, "--val-every", 0, "--sample-tokens", 5]
    ids = r"sample after 1 steps:\n(\d+ ){5}\n"
    out = ran(*base, "--tokenizer", path("no_such.bin"))
    assert "not found" in out and re.search(ids, out), out
    name = write("place/gpt2_tokenizer.bin", TOKENIZER)
    assert not re.search(ids, ran(*base, "--tokenizer", name))
    assert not re.search(ids, ran(*base, cwd=path("place")))
    refused("-i", TEXT, *TINY, "--tokenizer", name, says=[name, "only decode", "vocab.bpe"])
    refused("-i", TEXT, *TINY, "--tokenizer", path("none.bpe"), says=["none.bpe", "No such file"])
    refused("-i", data, *TINY, "--tokenizer", FOLDER, says=[FOLDER, "folder"])
    refused("-i", TEXT, *BATCH, "-e", model("other.bin", config(V=300)), says=["byte has 257 tokens, the model 300"])
    refused("-i", TEXT, *TINY, "--vocab", 256, says=["257 tokens, the model 256"])


# ---- Row 13: sampling ----


def test_extreme_logits():
    """Row 13: logits of +-10,000: a sample, and the same one again; logits that are no numbers are said."""
    params = make_params(CONFIG)
    params["lnfw"] = array.array("f", [1e5] * 16)
    name = model("extreme.bin", params=params)
    for options in ("", "--temperature 1e-6", "--top-k 1000000 --top-p 0.5"):
        arguments = ["--init", name, "--steps", 0, "--sample-tokens", 100, *options.split()]
        assert sample_of(ran(*arguments)) == sample_of(ran(*arguments, "--threads", 2)), options
    # No choice to make: the likeliest token of such logits is the only one.
    likeliest = sample_of(ran("--init", name, "--steps", 0, "--temperature", 0))
    assert likeliest == sample_of(ran("--init", name, "--steps", 0, "--top-k", 1, "--seed", 99))
    params["lnfw"] = array.array("f", [FP32_MAX] * 16)
    name = model("overflow.bin", params=params)
    for options in ([], ["--temperature", 0]):
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
    # not even the lock can be written
    refused(*run, new_folder("limited"), "-x", 40, says=[path("limited")], preexec_fn=limit_files(1))
    for size, name, steps in ((200, "run.json", 40), (12000, "(main|speed).log|loss.svg", 1000),
                               (20000, "model_00000002.bin", 40), (50000, "state_00000002.bin", 40)):
        folder = new_folder("limited")
        often = [] if steps > 40 else ["-n", 2]
        err = refused(*run, folder, "-x", steps, *often, says=[re.compile(name)], preexec_fn=limit_files(size))
        check_folder_after_full_disk(folder, err)
        assert checkpoints(folder) == []
    for size, name in ((0, ""), (20000, "model.safetensors")):
        folder = new_folder("limited_export")
        arguments = ["--init", model("export.bin"), *SAMPLE, "--export", folder]
        refused(*arguments, says=[folder, name], preexec_fn=limit_files(size))
        assert not os.path.isdir(folder) or os.listdir(folder) == [], os.listdir(folder)


def test_full_disk():
    """Row 15: a disk without room for the last good checkpoint and another one is refused; on a larger one the run
    warns, ends when it is full, the earlier checkpoints stay, and --resume goes on."""
    run = ["-i", TEXT, *TINY, "-s", 0, "-v", 4, "-m", 1, "-x", 6]
    straight = weights_hash(ran(*run))
    run += ["-n", 1]
    for kilobytes in (8, 300):
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
