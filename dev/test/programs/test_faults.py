"""What the trainer does with damaged files, impossible sizes, full disks, numbers that overflow and folders in use.

The rule: it ends with status 1, never a signal, with one line on stderr that names the file or option, what was found
and expected. Nothing is half-written. The unit tests have every damage of every format (test_checkpoint.c,
test_dataloader.c, test_tokenizer.c), and what a model computes (test_model.c); here a program
reports one of each kind. Resuming, killing and signals: test_resume.py. Options: test_options.py.
"""
import array
import glob
import math
import os
import re
import resource
import shutil
import signal
import subprocess

import pytest

from cli import (BATCH, CONFIG, FOLDER, MEMORY_LIMITS, MODEL, PROGRAM, QUIET, TINY, check_line, checkpoints, config,
                 divergence, finish, log_of, logged_steps, losses, make_params, model, model_bytes, model_header,
                 new_folder, path, ran, random_tokens, read, reference_loss, refused, sample_of, shard, shard_bytes,
                 start, stopped_after,
                 tensor_shapes, text_file, tokenizer_bytes, val_losses, weights_hash, write)
from run_folder import record_of
from tools import limit_files, limit_memory, small_disk

TEXT = text_file()
SAMPLE = ["--steps", "0", "--sample-tokens", "4"]
FP32_MAX = 3e38


def train(*arguments, **keywords):
    return ran("-i", TEXT, *BATCH, *QUIET, *arguments, **keywords)


def model_sample(init, **keywords):
    return ran("--init", init, *SAMPLE, **keywords)


# ---- Rows 1 to 4: model files ----


@pytest.mark.plain
def test_bad_models():
    """Rows 1 and 2: refused for training, too, and nothing is allocated for what a header says."""
    good = model_bytes(CONFIG, make_params(CONFIG))
    larger = model_header(config(maxT=1 << 20, V=1 << 20, L=1000, NH=1024, C=1 << 16, Vp=1 << 20)) + good[1024:]
    for data, says in ((good[:5000], [f"asks for {len(good)} bytes", "has 5000"]),
                       (b"To be, or not to be: " * 100, ["is not a model: magic"]),
                       (larger, ["header asks for 206711594419200 bytes"])):
        name = write("bad.bin", data)
        limits = limit_memory(1 << 28) if MEMORY_LIMITS else None
        refused("--init", name, *SAMPLE, says=[name, *says], preexec_fn=limits)
        refused("-i", TEXT, *BATCH, "-e", name, "-o", path("bad_run"), says=[name, *says], no_files=path("bad_run"))


def test_no_model():
    """Row 1: folders, pipes and nothing at all in place of a model."""
    os.mkfifo(path("pipe.bin"))
    for init, says in ((path("none.bin"), "No such file"), ("d13", "neither a size"), (FOLDER, "holds no model"),
                       (path("pipe.bin"), "pipe"), (TEXT, "is not a model")):
        refused("--init", init, *SAMPLE, says=[init, says])


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


def test_states_of_another_version():
    """Row 3: one line says so, and its advice is good. An older state alone may as well be damage: a run goes back."""
    folder = new_folder("versions")
    steps = ["-n", 2, *MODEL, "-o", folder]
    train("--steps", 4, *steps)
    more = ["-i", TEXT, *BATCH, *QUIET, "--steps", 5, *steps, "--resume", "--allow-changes"]
    names = [f"versions/state_{step:08}.bin" for step in (4, 2)]
    content = [read(name) for name in names]
    for name, data in zip(names, content):
        write(name, data[:8] + bytes([2]) + data[9:])
    line = refused(*more, says=[names[0], "version is 2, expected 3", "--init"])
    assert "--overwrite" not in line and "damaged" not in read("versions/main.log").decode()
    model_sample(os.path.join(folder, "model_00000004.bin"))
    write(names[1], content[1])
    assert "going back to the checkpoint of step 2" in ran(*more)


def test_bfloat16_and_float32():
    """Row 4: a bfloat16 file gives the same run as a float32 file of the same numbers."""
    hashes = {weights_hash(train("--init", model("any.bin", version=version), "--steps", 2)) for version in (3, 5)}
    assert len(hashes) == 1, hashes


# ---- Rows 5 to 7: data ----

SHARD_MODEL = ["--vocab", "300", *TINY, *QUIET]


def test_bad_shards():
    """Row 5: every bad file of a pattern is named in one line, good ones are not; to train on and to validate."""
    good, folder = shard_bytes(random_tokens(100, 300)), new_folder("bad_run")
    bad = {"b.bin": good[:-1], "d.bin": b"", "e.bin": shard_bytes([5] * 50, version=3)}
    for name, content in {**bad, "a.bin": good, "c.bin": good}.items():
        write(f"shards/{name}", content)
    for files in (["-i", path("shards/*.bin")], ["-i", path("shards/a.bin"), "-j", path("shards/*.bin")]):
        err = refused(*files, *SHARD_MODEL, "-x", 2, "-o", folder, says=["3 of 5 files", *bad], no_files=folder)
        assert "a.bin:" not in err and "c.bin:" not in err, err


def test_token_outside_the_vocabulary():
    """Row 6: named with shard, position and id at its first touch; what was trained before it is saved."""
    whole = random_tokens(16 * 4 + 1, 300)
    for name in ("t_0.bin", "t_1.bin"):
        shard(name, whole)
    for at, token, files in ((64, 65535, "-i"), (0, 383, "-j")):
        last, folder = shard("t_2.bin", whole[:at] + [token] + whole[at + 1:]), new_folder("token_run")
        good = ["-i", path("t_0.bin")] if files == "-j" else []
        run = ["--vocab", 300, *TINY, "--sample-every", 0, "--steps", 20, "--val-sequences", 0, "-n", 1, "-o", folder]
        refused(files, path("t_[012].bin"), *good, *run, says=[f"{last}: token {at} is id {token}", "300"])
        if files == "-i":
            assert checkpoints(folder) in (list(range(1, 5)), list(range(1, 6))), checkpoints(folder)
            model_sample(folder)


def test_shards_of_all_sizes():
    """Row 7: unequal, tiny and empty shards; folders and patterns that match nothing."""
    sizes = [16 * 3 + 1, 16, 17, 0, 1, 16 * 5 + 9]
    for i, size in enumerate(sizes):
        shard(f"u_{i}.bin", random_tokens(size, 300, i))
    windows = sum(max(size - 1, 0) // 16 for size in sizes)
    out = ran("-i", path("u_*.bin"), *SHARD_MODEL, "--steps", 20, "--shuffle")
    assert f"{sum(sizes)} tokens, {windows} sequences" in out and len(losses(out)) == 20, out
    assert f"steps       {windows // 2}, " in ran("-i", path("u_*.bin"), *SHARD_MODEL)
    one = path("u_2.bin")  # one window, and a batch has two
    assert len(losses(ran("-i", one, *SHARD_MODEL, "--steps", 3))) == 3
    refused("-i", one, *SHARD_MODEL, says=["--steps", "1 sequences", "2 of one step"])
    for data, says in ((path("nothing_*.bin"), "no such file"), (FOLDER, "folder"),
                       (write("empty.txt", b""), "empty"), (write("short.txt", b"sixteen letters"), "needs 17 tokens")):
        refused("-i", data, *TINY, says=[data, says])


def test_missing_data():
    """The line names the program that fetches it. A run that does not start does not say that it starts afresh."""
    name = "dev/data/edu_fineweb100B/edu_fineweb_train_*.bin"
    out, err = finish(start(*BATCH, "-i", name, "-o", new_folder("fresh"), "--resume", cwd=FOLDER), 1)
    check_line("train_gpt2", err, ["dev/data", "`python3 dev/data/fineweb.py -t edu -v 100B`"])
    assert out == "" and not os.path.exists(path("fresh")), out


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


# ---- Row 10: tokenizers ----

TOKENS = [bytes([255 - i]) for i in range(256)] + [b"<|endoftext|>"]  # no merges follow from this order
TOKENIZER = tokenizer_bytes(TOKENS)


@pytest.mark.parametrize("data, says", ((TOKENIZER[:-1], ["ends inside token", "of 257"]),
                                        (b"#version: 0.2\nh e\n", ["list of merges", "vocab.py --merges"]),
                                        (tokenizer_bytes(TOKENS + [b"x"]), ["has 258 tokens, the model 257"])),
                         ids=("cut", "merges", "other size"))
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
    assert re.findall(r"^sample after (\d+)", out, re.M) == ["1"], out  # no sample of the untrained model
    name = write("place/gpt2_tokenizer.bin", TOKENIZER)
    assert not re.search(ids, ran(*base, "--tokenizer", name))
    assert not re.search(ids, ran(*base, cwd=path("place")))
    refused("-i", TEXT, *TINY, "--tokenizer", name, says=[name, "only decode", "give --tokenizer gpt2_tokenizer.bin"])
    refused("-i", TEXT, *TINY, "--tokenizer", path("none.bpe"), says=["none.bpe: no such file", "dev/data/vocab.py"])
    refused("-i", data, *TINY, "--tokenizer", FOLDER, says=[FOLDER, "folder"])
    refused("-i", TEXT, *BATCH, "-e", model("other.bin", config(V=300)), says=["byte has 257 tokens, the model 300"])


# ---- Row 13: sampling ----


def test_extreme_logits():
    """Row 13: logits of +-10,000: the likeliest token is the only one; logits that are no numbers are said."""
    params = make_params(CONFIG)
    params["lnfw"] = array.array("f", [1e5] * 16)
    sample = ["--init", model("extreme.bin", params=params), "--steps", 0]
    assert sample_of(ran(*sample, "--temperature", 0)) == sample_of(ran(*sample, "--top-p", 0, "--seed", 99))
    params["lnfw"] = array.array("f", [FP32_MAX] * 16)
    refused("--init", model("overflow.bin", params=params), "--steps", 0, says=["logits are not numbers"])


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


def test_spikes_are_skipped():
    """Row 22: an update of a spike is skipped, the weights stay as they were, and the statistics know nothing of it."""
    ordinary = [1, 2, 3, 4] * (8 * 140)
    spike = [1] + random_tokens(31, 300)  # its first token is the last target of the batch before
    data = shard("spike.bin", ordinary[:32 * 140] + spike + spike + [1, 2, 3, 4] * 8 + [1])
    flat = shard("flat.bin", ordinary[:32 * 140 + 1])
    base = ["--vocab", 300, *TINY, *QUIET, "--schedule", "constant", "--lr", 0.02]
    said = r"^step (\d+): update skipped, the (loss|gradient norm) is ([\d.]+) standard deviations above normal$"
    for option in ("--skip-loss-z", "--skip-grad-z"):
        out = ran("-i", data, *base, option, 4, "-x", 142)
        skipped = re.findall(said, out, re.M)
        assert [step for step, _, _ in skipped] == ["141", "142"], out[-900:]
        assert skipped[0][1:] == skipped[1][1:], skipped  # the same batch, weights and statistics
        assert weights_hash(out) == weights_hash(ran("-i", flat, *base, option, 4, "-x", 140))
        after = ran("-i", data, *base, option, 4, "-x", 143)
        assert after.count("update skipped") == 2 and weights_hash(after) != weights_hash(out)
    assert "skipped" not in ran("-i", data, *base, "-x", 142)


DIVERGES = ["-i", TEXT, *TINY, *QUIET, "--vocab", 257, "--warmup", 100, "-x", 60, "--lr"]


def test_divergence():
    """Row 22: a learning rate that rises until the run is lost. One warning, at one step, wherever the run resumed; or
    its end there."""
    folder = new_folder("diverges")
    out = ran(*DIVERGES, 10, "-o", folder, "-n", 4)
    last = divergence(losses(out), 257)
    says = (r"^warning: step (\d+): the loss has been above 6\.55, .* for 20 steps; try a lower --lr.*; "
            "--stop-on-divergence would end the run here$")
    assert re.findall(says, out, re.M) == [str(last)] and out.count("warning: step") == 1, out
    for step in checkpoints(folder):
        again = ran(*DIVERGES, 10, "-o", stopped_after(step, folder), "--resume")
        told = again.count("warning: step")
        assert told == (step < last) and weights_hash(again) == weights_hash(out), (step, last, again)
    assert "warning: step" not in ran(*DIVERGES, 0.1)
    folder = new_folder("stops")
    run = [*DIVERGES, 10, "-o", folder, "-n", 4, "--stop-on-divergence"]
    err = refused(*run, says=[f"step {last}: the loss has been above 6.55", "--lr"])
    assert checkpoints(folder)[-1] == (last - 1) // 4 * 4 and logged_steps(folder) == [*range(last)]
    end = record_of(folder)["end"]
    assert (end["status"], end["step"]) == ("failed", last) and f"train_gpt2: {end['message']}\n" == err, (end, err)
    refused(*run, "--resume", says=[f"step {last}: the loss"])  # within the streak, and to its end


# ---- Rows 15, 17 and 25: the folder of a run ----


def check_folder_after_full_disk(folder, err):
    """Nothing but whole files; every checkpoint can be used."""
    names = set(os.listdir(folder))
    ours = r"(model|state)_\d{8}\.bin|(main|speed)\.log|run\.jsonl|tokenizer\.bin|\.lock"
    assert all(re.fullmatch(ours, name) for name in names), names
    models = {name[6:14] for name in names if name.startswith("model")}
    assert models == {name[6:14] for name in names if name.startswith("state")}, names
    for step in checkpoints(folder):
        model_sample(os.path.join(folder, f"model_{step:08}.bin"))
    for line in log_of(folder).splitlines(True) if "main.log" in names else ():
        assert re.fullmatch(r"s:\d+ (tel:[\d.]+|trl:[\d.]+ lr:[\d.]+ norm:[\d.]+)\n", line), line
    assert "space" in err or "large" in err, err


def test_files_that_may_not_grow():
    """Row 15: the model, the state or the log meets a limit: one line, no partial file, no signal."""
    run = ["-i", TEXT, *TINY, "-s", 0, "-v", 1, "-m", 1, "-o"]
    least = 1025 if b"libomp." in read(PROGRAM) else 0  # clang's OpenMP writes a file of its own
    if least == 0:  # not even the lock can be written
        refused(*run, new_folder("limited"), "-x", 40, says=[path("limited")], preexec_fn=limit_files(1))
    for size, name, steps in ((200, "tokenizer.bin", 40), (1600, "run.jsonl", 40),
                              (12000, "(main|speed).log", 1000), (20000, "model_00000002.bin", 40),
                              (50000, "state_00000002.bin", 40)):
        if size < least:
            continue
        folder = new_folder("limited")
        often = [] if steps > 40 else ["-n", 2]
        err = refused(*run, folder, "-x", steps, *often, says=[re.compile(name)], preexec_fn=limit_files(size))
        check_folder_after_full_disk(folder, err)
        assert checkpoints(folder) == []


def test_full_disk():
    """Row 15: a disk without room for a checkpoint is refused; on a larger one the run warns, ends when it is full, the
    earlier checkpoints stay, and --resume goes on."""
    run = ["-i", TEXT, *TINY, "-s", 0, "-v", 4, "-m", 1, "-x", 6]
    straight = weights_hash(ran(*run))
    run += ["-n", 1]
    with small_disk("100k") as disk:
        folder = os.path.join(disk, "run")
        says = ["--out-dir", f"{folder}: not enough space: a checkpoint takes 18", "100.00 KiB are free"]
        refused(*run, "-o", folder, says=says)
        assert not os.path.exists(folder)
    with small_disk("420k") as disk:
        folder = os.path.join(disk, "run")
        full_out, err = finish(start(*run, "-o", folder), 1)
        assert folder in err and "space" in err and f"warning: the disk of {folder} has" in full_out, full_out
        check_folder_after_full_disk(folder, err)
        assert len(checkpoints(folder)) == 3, checkpoints(folder)
        shutil.copytree(folder, new_folder("roomy"))
        refused(*run, "-o", folder, "--resume", says=["not enough space: a checkpoint takes 18"])
        assert checkpoints(folder) == checkpoints(path("roomy")), "a refused start has removed some"
        out = ran(*run, "-o", folder, "--resume", "--keep", 1)  # as advised
        assert weights_hash(out) == straight and checkpoints(folder) == [6], out
        shutil.rmtree(folder)
        shutil.copytree(path("roomy"), folder)
        # an older run's checkpoints are no obstacle for one that removes them
        out = ran(*run, "-o", folder, "--overwrite", "--keep", 1)
        assert weights_hash(out) == straight and checkpoints(folder) == [6], out
    out = ran(*run, "-o", path("roomy"), "--resume")
    assert weights_hash(out) == straight and len(losses(out)) < 6, out


def test_folders_that_cannot_be():
    """Row 15 and 25: a file in the way, no permission."""
    write("in_the_way", b"")
    for folder in (path("in_the_way"), path("in_the_way/run"), "/dev/null", "/proc/nothing"):
        refused("-i", TEXT, *TINY, "-x", 1, "-o", folder, says=[folder.split("/run")[0]])
    refused("-i", TEXT, *TINY, "-x", 1, "-o", path("in_the_way"), "--plan", says=["in_the_way is a file; give"])
    if os.getuid() != 0:
        folder = new_folder("forbidden")
        os.makedirs(folder, mode=0o555)
        refused("-i", TEXT, *TINY, "-x", 1, "-o", folder, says=[folder, "Permission denied"])


def test_nothing_to_resume():
    """--resume says so in one line."""
    run = ["-i", TEXT, *TINY, *QUIET, "-x", 1, "-o", path("new-run")]
    says = f"nothing to resume in {path('new-run')}: starts afresh\n"
    assert says in ran(*run, "--resume")
    assert says not in ran(*run, "--resume")
    assert says not in ran(*run, "--overwrite")


def test_models_without_states():
    """A folder that has only models left is no place to start afresh in without a word: they would be overwritten, or
    taken for the new run's."""
    folder = new_folder("models")
    run = ["-i", TEXT, *TINY, *QUIET, "-x", 2, "-o", folder]
    ran(*run)
    for name in glob.glob(f"{folder}/state_*"):
        os.remove(name)
    before = sorted(os.listdir(folder))
    refused(*run, "--resume", says=["has models, but no state file (state_*.bin)", f"--init {folder} with another"])
    assert sorted(os.listdir(folder)) == before
    ran(*run, "--overwrite")


def test_fresh_run_in_a_used_folder():
    """Row 17: refused whatever is left of the older run, and nothing is touched; --overwrite leaves nothing of it."""
    run = ["-i", TEXT, *TINY, "-s", 0, "-v", 2, "-m", 1, "-o"]
    older = new_folder("older")
    ran(*run, older, "-n", 2, "-x", 8)
    log = read("older/main.log")
    for remove in (".bin", "main.log", "nothing"):
        folder = new_folder("used")
        shutil.copytree(older, folder)
        for name in os.listdir(folder):
            if name.endswith(remove):
                os.remove(os.path.join(folder, name))
        before = {name: read(f"used/{name}") for name in os.listdir(folder) if name != ".lock"}
        refused(*run, folder, "-x", 3, says=[folder, "earlier run", "--resume", "--overwrite"])
        assert before == {name: read(f"used/{name}") for name in os.listdir(folder) if name != ".lock"}
    out = ran(*run, folder, "-x", 3, "--overwrite")
    assert len(losses(out)) == 3 and logged_steps(folder) == [0, 1, 2]
    names = [".lock", "main.log", "model_00000003.bin", "run.jsonl", "speed.log", "state_00000003.bin",
             "tokenizer.bin"]
    assert sorted(os.listdir(folder)) == names, os.listdir(folder)
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
            refused(*run, name, "-x", 3, says=["earlier run", "--resume"])
            for options in (["--resume", "--allow-changes"], ["--overwrite"]):
                refused(*run, name, "-x", 3, *options,
                        says=["in use by another process", f"pid {first.pid}"])
        ran(*run, folder, "-x", 3, "--plan")
        ran(*run, new_folder("own"), "-x", 3)
        assert read("shared/main.log") == log, "the first one's log was touched"
    finally:
        first.kill()
        first.communicate()
    refused(*run, folder, "-x", 3, says=["earlier run"])
    ran(*run, folder, "-x", 3, "--overwrite")


# ---- Odd machines ----

needs_preload = pytest.mark.skipif(not MEMORY_LIMITS, reason="a sanitizer must be loaded first")


def odd_machine():
    """The library that makes the machine odd (odd_machine.c)."""
    library = path("odd_machine.so")
    compiler = shutil.which("gcc") or shutil.which("clang") or shutil.which("cc")
    source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "odd_machine.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
    return library


@pytest.mark.plain
@needs_preload
def test_clock_goes_back():
    """The wall clock goes back an hour whenever it is read: the same weights, and speed.log's time only grows."""
    folder = new_folder("clock")
    run = ["-i", TEXT, *TINY, *QUIET, "-x", 6]
    out = ran(*run, "-o", folder, LD_PRELOAD=odd_machine())
    assert weights_hash(out) == weights_hash(ran(*run))
    with open(os.path.join(folder, "speed.log")) as file:
        seconds = [float(text) for text in re.findall(r"sec:([\d.]+)$", file.read(), re.M)]
    assert len(seconds) == 6 and seconds == sorted(seconds), seconds


@pytest.mark.plain
@needs_preload
def test_read_only_midway():
    """The file system becomes read-only between two files: one line, and the checkpoints that are there stay good."""
    library, saved = odd_machine(), set()
    for count in range(1, 12):
        folder = new_folder("read_only")
        refused("-i", TEXT, *TINY, *QUIET, "-x", 40, "-n", 2, "-o", folder, says=[folder, "Read-only file system"],
                LD_PRELOAD=library, ODD_READ_ONLY=str(count))
        for step in checkpoints(folder):
            model_sample(os.path.join(folder, f"model_{step:08}.bin"))
        saved.add(len(checkpoints(folder)))
        assert not [name for name in os.listdir(folder) if name.endswith(".tmp")], os.listdir(folder)
    assert {0, 1} <= saved, saved


def test_small_stack():
    """A run would end in SIGSEGV at its first save."""
    refused("-i", TEXT, *TINY, *QUIET, "-x", 2, "-o", new_folder("stack"), no_files=path("stack"),
            says=["ulimit -s: the stack has 256 KiB, expected at least 2048; run `ulimit -s 8192` first"],
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_STACK, (1 << 18, 1 << 23)))


@pytest.mark.plain
def test_open_files():
    """1,000 files that are open before the start are left alone. Where only few may be open, that is said."""
    run = ["-i", TEXT, *TINY, *QUIET, "-x", 2]
    many = [os.open(os.devnull, os.O_RDONLY) for _ in range(1000)]
    try:
        for descriptor in many:
            os.set_inheritable(descriptor, True)
        ran(*run, "-o", new_folder("many"), close_fds=False)
    finally:
        for descriptor in many:
            os.close(descriptor)
    if MEMORY_LIMITS:  # a sanitizer opens files of its own
        refused(*run, "-o", new_folder("few"), says=["Too many open files"],
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (5, 5)))
