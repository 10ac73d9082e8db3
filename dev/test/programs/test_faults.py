"""What the trainer does with damaged files, impossible sizes, full disks, numbers that overflow and folders in use.

The rule: it ends with status 1, never a signal, with one line on stderr that names the file or option, what was found
and expected. Nothing is half-written. The unit tests have every damage of every format; here a program reports one of
each kind. Resuming, killing and signals: test_resume.py. Options: test_options.py.
"""
import os
import re
import resource
import shutil
import signal

import formats
from cli import (BATCH, CONFIG, MEMORY_LIMITS, QUIET, TINY, checkpoints, config, finish, log_of,
                 logged_steps, losses, make_params, model, model_bytes, model_header, new_folder, path, ran,
                 random_tokens, read, reference_losses, refused, shard, start, text_file, tokenizer_bytes, val_losses,
                 weights_hash, write)
from tools import WORK, limit_memory, small_disk

TEXT = text_file()
SAMPLE = ["--steps", "0", "--sample-tokens", "4"]


# ---- Rows 1 and 2: model files ----


def test_bad_models():
    """Rows 1 and 2: refused for training, too, and nothing is allocated for what a header says."""
    good = model_bytes(CONFIG, make_params(CONFIG))
    larger = model_header(config(maxT=1 << 20, V=1 << 20, L=1000, NH=1024, C=1 << 16, Vp=1 << 20)) + good[1024:]
    for data, says in ((good[:5000], [f"asks for {len(good)} bytes", "has 5000"]),
                       (larger, ["header asks for 206711594419200 bytes"])):
        name = write("bad.bin", data)
        limits = limit_memory(1 << 28) if MEMORY_LIMITS else None
        refused("--init", name, *SAMPLE, says=[name, *says], preexec_fn=limits)
        refused("-i", TEXT, *BATCH, "-e", name, "-o", path("bad_run"), says=[name, *says], no_files=path("bad_run"))


# ---- Rows 6 and 7: data ----

SHARD_MODEL = ["--vocab", "300", *TINY, *QUIET]


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
            ran("--init", folder, *SAMPLE)


def test_shards_of_all_sizes():
    """Row 7: unequal, tiny and empty shards."""
    sizes = [16 * 3 + 1, 16, 17, 0, 1, 16 * 5 + 9]
    for i, size in enumerate(sizes):
        shard(f"u_{i}.bin", random_tokens(size, 300, i))
    windows = sum(max(size - 1, 0) // 16 for size in sizes)
    out = ran("-i", path("u_*.bin"), *SHARD_MODEL, "--steps", 20, "--shuffle")
    assert f"{sum(sizes)} tokens, {windows} sequences" in out and len(losses(out)) == 20, out
    assert f"steps       {windows // 2}, " in ran("-i", path("u_*.bin"), *SHARD_MODEL)
    one = path("u_2.bin")  # one window, and a batch has two
    refused("-i", one, *SHARD_MODEL, says=["--steps", "1 sequences", "2 of one step"])
    missing = "dev/data/edu_fineweb100B/edu_fineweb_train_*.bin"
    refused(*BATCH, "-i", missing, cwd=WORK, says=["dev/data", "`python3 dev/data/fineweb.py -t edu -v 100B`"])


# ---- Rows 8 and 9: sizes of a batch ----


def test_odd_lengths():
    """Row 8: a sequence longer than the context is refused; T = 1 and odd B and T give the loss of the reference."""
    c = config(V=61, Vp=128, maxT=13, L=2)
    params = make_params(c)
    name, tokens = model("reference.bin", c, params), random_tokens(200, 61)
    data = shard("reference_data.bin", tokens)
    for T, B in ((1, 3), (5, 3), (13, 2)):
        out = ran("-e", name, "-i", data, "-j", data, "-t", T, "-b", B, "-x", 1, "-m", 1, "-s", 0, "--lr", 0)
        assert len(losses(out)) == 1 and len(val_losses(out)) == 2
        rows = [(tokens[i:i + T], tokens[i + 1:i + T + 1]) for i in range(0, B * T, T)]
        want = sum(sum(reference_losses(c, params, *row)) for row in rows) / (B * T)
        for loss in losses(out) + val_losses(out):
            assert abs(loss - want) <= 1e-5, (T, B, loss, want)
    for data_option, steps in (("-i", 1), ("-j", 0)):
        refused("-e", name, data_option, data, "-t", 14, "-x", steps, says=["--seq-len (-t)", "14 tokens", "13 posit"])


# ---- Row 10: tokenizers ----

BYTES, END = [bytes([i]) for i in range(256)], b"<|endoftext|>"


def test_tokenizers():
    """Row 10: a missing one: training goes on and ids are printed. One that cannot serve is refused."""
    data, folder = shard("byte_shard.bin", random_tokens(100, 257)), new_folder("tokenizer_run")
    base = ["-i", data, "--vocab", 257, *TINY, "--steps", 1, "--val-every", 0, "--sample-tokens", 5]
    ids = r"sample after 1 steps:\n(\d+ ){5}\n"
    out = ran(*base, "--tokenizer", path("no_such.bin"))
    assert "not found" in out and re.search(ids, out), out
    name = write("place/gpt2_tokenizer.bin", tokenizer_bytes([*BYTES, END]))
    assert not re.search(ids, ran(*base, "--tokenizer", name))
    assert not re.search(ids, ran(*base, cwd=path("place")))
    other = write("other_size.bin", tokenizer_bytes([*formats.pair_words()[:257], END]))
    refused("-i", data, "--init", model("byte.bin"), *BATCH, "-x", 1, "--tokenizer", other, "-o", folder,
            says=[other, "has 258 tokens, the model 257"], no_files=folder)
    backward = write("backward.bin", tokenizer_bytes([*BYTES[::-1], END]))
    refused("-i", TEXT, *TINY, "--tokenizer", backward, says=[backward, "are not those of a byte-pair encoding (256 "])
    refused("-i", TEXT, *BATCH, "-e", model("other.bin", config(V=300)), says=["byte has 257 tokens, the model 300"])


# ---- Row 13: sampling ----


def test_sampling_costs_no_checkpoint():
    """Rows 13 and 22: weights grow without limit; a sample fails, but all steps before it are saved."""
    folder = new_folder("growing")
    run = [*TINY, "--lr", 100, "--weight-decay", 100, "-n", 1, "-s", 1, "-g", 3, "-v", 0, "-x", 50, "-o", folder]
    err = refused("-i", TEXT, *run, says=["first found in", "the last checkpoint in"])
    failed = int(re.search(r"step (\d+): the (loss|gradient norm) is (NaN|-?inf)", err).group(1))
    assert checkpoints(folder) == list(range(1, failed)), (failed, checkpoints(folder))
    assert logged_steps(folder) == list(range(failed - 1)), failed


# ---- Rows 22 and 24: numbers in training ----


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
    """Row 22: a run that skips the updates of two spikes goes on as a run that never met them: weights, moments, the
    number of updates, and the statistics, in which the second spike is as large as the first."""
    ordinary = [1, 2, 3, 4] * 8 * 141 + [1]
    spike = [1] + random_tokens(31, 300)  # its first token is the last target of the batch before
    spiked = shard("spiked.bin", ordinary[:32 * 140] + spike + spike + ordinary[32 * 140:])
    flat = shard("flat.bin", ordinary)
    base = ["--vocab", 300, *TINY, *QUIET, "--schedule", "constant", "--lr", 0.02]
    said = r"^step (\d+): update skipped, the (loss|gradient norm) is ([\d.]+) standard deviations above normal$"
    for words in (["--skip-loss-z", 4], ["--skip-grad-z", 4, "--optimizer", "muon", "--muon-warmup", 6]):
        out = ran("-i", spiked, *base, *words, "-x", 143)
        skipped = re.findall(said, out, re.M)
        assert [step for step, _, _ in skipped] == ["141", "142"], out[-900:]
        assert skipped[0][1:] == skipped[1][1:], skipped
        assert weights_hash(out) == weights_hash(ran("-i", flat, *base, *words, "-x", 141))
    assert "skipped" not in ran("-i", spiked, *base, "-x", 142)


# ---- Rows 15, 17 and 25: the folder of a run ----


def check_folder_after_full_disk(folder):
    """Nothing but whole files; every checkpoint can be used."""
    names = set(os.listdir(folder))
    ours = r"(model|state)_(\d{8}|best)\.bin|(main|speed)\.log|run\.jsonl|tokenizer\.bin|\.lock"
    assert all(re.fullmatch(ours, name) for name in names), names
    models = {name[6:14] for name in names if name.startswith("model_0")}
    assert models == {name[6:14] for name in names if name.startswith("state")}, names
    for step in checkpoints(folder):
        ran("--init", os.path.join(folder, f"model_{step:08}.bin"), *SAMPLE)
    for line in log_of(folder).splitlines(True):
        assert re.fullmatch(r"s:\d+ (tel:[\d.]+|trl:[\d.]+ lr:[\d.]+ norm:[\d.]+)\n", line), line


def test_full_disk():
    """Row 15: a disk without room for a checkpoint is refused; on a larger one the run warns, ends when it is full, the
    earlier checkpoints stay, and --resume goes on."""
    run = ["-i", TEXT, *TINY, "-s", 0, "-v", 4, "-m", 1, "-x", 6]
    straight = weights_hash(ran(*run))
    run += ["-n", 1]
    with small_disk("100k") as disk:
        folder = os.path.join(disk, "run")
        says = ["--out-dir", f"{folder}: not enough space: saving takes 21", "100.00 KiB are free"]
        refused(*run, "-o", folder, says=says)
        assert not os.path.exists(folder)
    with small_disk("460k") as disk:
        folder = os.path.join(disk, "run")
        full_out, err = finish(start(*run, "-o", folder), 1)
        assert folder in err and "space" in err and f"warning: the disk of {folder} has" in full_out, full_out
        check_folder_after_full_disk(folder)
        assert len(checkpoints(folder)) == 3, checkpoints(folder)
        refused(*run, "-o", folder, "--resume", says=["not enough space: saving takes 21"])
        assert len(checkpoints(folder)) == 3, "a refused start has removed some"
        # as advised; and an older run's checkpoints are no obstacle for one that removes them
        for how in ("--resume", "--overwrite"):
            out = ran(*run, "-o", folder, how, "--keep", 1)
            assert weights_hash(out) == straight and checkpoints(folder) == [6], out


def test_fresh_run_in_a_used_folder():
    """Row 17: refused whatever is left of the older run, and nothing is touched; --overwrite leaves nothing of it.
    Where models have no states, nothing can go on, and a run afresh would overwrite some and seem to own the rest."""
    run = ["-i", TEXT, *TINY, "-s", 0, "-v", 2, "-m", 1, "-o"]
    older = new_folder("older")
    ran(*run, older, "-n", 2, "-x", 8)
    log = read("older/main.log")
    earlier = [], "earlier run"
    for remove, (words, says) in (("bin$", earlier), ("main.log", earlier),
                                  ("^state", (["--resume"], "has models, but no state file")), ("none", earlier)):
        folder = new_folder("used")
        shutil.copytree(older, folder)
        for name in filter(re.compile(remove).search, os.listdir(folder)):
            os.remove(os.path.join(folder, name))
        before = {name: read(f"used/{name}") for name in os.listdir(folder) if name != ".lock"}
        refused(*run, folder, "-x", 3, *words, says=[folder, says])
        assert before == {name: read(f"used/{name}") for name in os.listdir(folder) if name != ".lock"}
    out = ran(*run, folder, "-x", 3, "--overwrite")
    assert len(losses(out)) == 3 and logged_steps(folder) == [0, 1, 2]
    names = [".lock", "main.log", "model_00000003.bin", "model_best.bin", "run.jsonl", "speed.log",
             "state_00000003.bin", "tokenizer.bin"]
    assert sorted(os.listdir(folder)) == names, os.listdir(folder)
    # an --overwrite that cannot begin removes nothing
    refused(*run, older, "-x", 3, "--overwrite", "-j", path("nothing.bin"), says=["nothing.bin"])
    assert read("older/main.log") == log and checkpoints(older) == [2, 4, 6, 8]
    write("older/model_final.bin", b"mine")  # other people's files stay
    ran(*run, older, "-x", 1, "--overwrite")
    assert read("older/model_final.bin") == b"mine"


def test_two_processes_one_folder():
    """Row 25: the second is refused; --plan may look; the folder is free when the first is gone."""
    folder = new_folder("shared")
    run = ["-i", TEXT, *TINY, *QUIET, "-o"]
    first = start(*run, folder, "-x", 1000000)
    next(line for line in first.stdout if line.startswith(b"step "))
    first.send_signal(signal.SIGSTOP)
    log = read("shared/main.log")
    try:
        for options in (["--resume", "--allow-changes"], ["--overwrite"]):
            refused(*run, os.path.relpath(folder), "-x", 3, *options,
                    says=["in use by another process", f"pid {first.pid}"])
        ran(*run, folder, "-x", 3, "--plan")
        assert read("shared/main.log") == log, "the first one's log was touched"
    finally:
        first.kill()
        first.communicate()
    refused(*run, folder, "-x", 3, says=["earlier run that has saved nothing"])
    ran(*run, folder, "-x", 3, "--overwrite")


# ---- Odd machines ----


def test_small_stack():
    """A run would end in SIGSEGV at its first save."""
    refused("-i", TEXT, *TINY, *QUIET, "-x", 2, "-o", new_folder("stack"), no_files=path("stack"),
            says=["ulimit -s: the stack has 256 KiB, expected at least 2048; run `ulimit -s 8192` first"],
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_STACK, (1 << 18, 1 << 23)))
