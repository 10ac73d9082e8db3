"""Runs that are interrupted, damaged and resumed: the end must be the same, bit for bit.

Each test compares with an uninterrupted run of the same options: the hash of the weights it prints, and main.log. What
of a checkpoint is damaged or full: test_checkpoint.c. A killed save: test_kill.c. A second signal: test_signals.c.
"""
import os
import re
import signal

import numpy as np
import pytest

import cli
from cli import checkpoints, log_of, new_folder, path, stopped_after, weights_hash
from formats import rewrite_state

STEPS = 12
# Two shards of unequal size, an epoch that ends within a step, accumulation, outliers skipped: all of it at once.
SHARDS = (("data_train_000.bin", 16 * 9 + 5), ("data_train_001.bin", 16 * 13 + 1), ("data_val.bin", 200))
RUN = {"train-data": path("data_train_*.bin"), "val-data": path("data_val.bin"), "layers": 2, "heads": 2,
       "channels": 32, "context": 32, "vocab": 300, "seq-len": 16, "batch-size": 2, "total-batch": 64, "steps": STEPS,
       "lr": "3e-3", "schedule": "cosine", "final-lr-frac": 0.1, "warmup": 3, "weight-decay": 0.1, "skip-loss-z": 4,
       "skip-grad-z": 4, "val-every": 5, "val-sequences": 6, "sample-every": 4, "sample-tokens": 5, "threads": 2}


def words(folder, *more, **changes):
    options = {**RUN, "out-dir": folder, **{name.replace("_", "-"): value for name, value in changes.items()}}
    return ["--shuffle", *(f"--{name}={value}" for name, value in options.items()), *more]


def start(*arguments, **changes):
    return cli.start(*words(*arguments, **changes))


def train(*arguments, **changes):
    return cli.ran(*words(*arguments, **changes))


REFERENCE = {}  # the uninterrupted run: the hash of its weights, its log


def setup_module():
    for i, (name, count) in enumerate(SHARDS):
        cli.shard(name, cli.random_tokens(count, 300, seed=i))
    out = train(new_folder("reference"), checkpoint_every=4)
    REFERENCE.update(hash=weights_hash(out), log=log_of(path("reference")))


def stopped_after_8():
    return stopped_after(8, path("reference"))


def check_same_end(out, folder):
    assert weights_hash(out) == REFERENCE["hash"], f"{weights_hash(out)} is not {REFERENCE['hash']}"
    assert log_of(folder) == REFERENCE["log"], f"main.log differs:\n{log_of(folder)}\n{REFERENCE['log']}"


def test_resume_from_every_step():
    """Straight, and resumed from each step of the run, across shard and epoch borders; from none, and from the end."""
    folder = new_folder("every")
    out = train(folder, "--resume", checkpoint_every=1)
    assert f"nothing to resume in {folder}: starts afresh\n" in out, out
    check_same_end(out, folder)
    assert checkpoints(folder) == list(range(1, STEPS + 1)), checkpoints(folder)
    for step in range(1, STEPS + 1):
        copy = stopped_after(step, folder)
        out = train(copy, "--resume")
        check_same_end(out, copy)
        says = f"the run in {copy} has done {STEPS} of {STEPS} steps: --steps N --allow-changes goes on to N\n"
        assert ("has done" in out) == (says in out) == (step == STEPS), out


@pytest.mark.parametrize("level", (1, 3))
def test_resume_with_other_threads_and_memory(level):
    """They do not shape the run: nothing has to be allowed."""
    folder = stopped_after_8()
    check_same_end(train(folder, "--resume", recompute=level, threads=1), folder)


def test_resume_with_another_micro_batch():
    """It does not shape the run, but rounds: the last printed digit of a norm may differ."""
    folder = stopped_after_8()
    train(folder, "--resume", batch_size=4)
    numbers = [np.array(re.findall(r" (?:trl|tel|norm):(\S+)", log), "d") for log in (log_of(folder), REFERENCE["log"])]
    assert np.allclose(*numbers, rtol=0, atol=2e-2), numbers


def test_changed_options_are_named():
    """Other options or data are refused by name, and nothing is touched; they are taken with --allow-changes."""
    folder = stopped_after_8()
    for option, value in (("lr", "1e-4"), ("schedule", "linear"), ("steps", 20), ("total-batch", 128)):
        cli.refused(*words(folder, "--resume", **{option: value}), says=[f"--{option} was ", "--allow-changes"])
    assert log_of(folder) == log_of(path("reference")) and checkpoints(folder) == [4, 8], os.listdir(folder)
    for option, value in (("lr", "1e-4"), ("steps", 20), ("seq-len", 32)):
        out = train(stopped_after_8(), "--resume", "--allow-changes", **{option: value})
        assert f"--{option} was " in out and weights_hash(out) != REFERENCE["hash"], out
    folder, content = stopped_after_8(), cli.read(SHARDS[1][0])
    cli.shard(SHARDS[1][0], [7] * SHARDS[1][1])
    try:
        cli.refused(*words(folder, "--resume"), says=["training-data-fingerprint was "])
    finally:
        cli.write(SHARDS[1][0], content)


def test_a_run_of_another_program():
    """What the GPU trainer saved goes on here, if nothing that shapes the run differs; what only rounds is told."""
    state = os.path.join(stopped_after_8(), "state_00000008.bin")
    folder, gpu = os.path.dirname(state), {"arithmetic": None, "--head-rows": 1024, "attention-by": "cuDNN 9.19.0"}
    for facts, says in (({"computed-in": "bf16"}, "computed-in was bf16, is fp32"), ({"--fp8": 1}, "--fp8 was 1, is 0"),
                        ({"--lr": "0.5"}, "--lr was 0.5, is 0.003")):
        rewrite_state(state, {**gpu, "computed-in": "fp32", "--fp8": 0, "--lr": "0.003", **facts})
        cli.refused(*words(folder, "--resume"), says=[f"{folder}: {says}; give these as they were"])
        out = train(stopped_after(8, folder, "allowed"), "--resume", "--allow-changes")
        assert f"resuming with changes: {says}\n" in out and weights_hash(out) == REFERENCE["hash"], out
    rewrite_state(state, {"--lr": "0.003"})
    out = train(folder, "--resume")
    assert "resuming with other roundings: --head-rows was 1024, is 8192" in out and "changes" not in out, out
    check_same_end(out, folder)


@pytest.mark.parametrize("number, line", ((signal.SIGTERM, b"step    3/"), (signal.SIGINT, b"step    4/")))
def test_stop_signals(number, line):
    """SIGTERM and SIGINT save and end with status 0; the resumed run ends like the straight one. Where this process
    gets to run too late, the short run is over before the signal comes: then once more."""
    for _ in range(20):
        folder = new_folder("signal")
        process = start(folder)
        next(shown for shown in process.stdout if shown.startswith(line))
        process.send_signal(number)
        out, _ = cli.finish(process)
        if checkpoints(folder) != [STEPS]:
            break
    assert "stopped by a signal after" in out and "--resume" in out, out
    assert len(checkpoints(folder)) == 1 and 0 < checkpoints(folder)[0] < STEPS, checkpoints(folder)
    check_same_end(train(folder, "--resume"), folder)


def test_stop_within_a_long_step():
    """A step of very many micro-batches does not delay the end: it is given up and taken again later."""
    process = start(new_folder("long"), total_batch=64 * 1000000)
    next(line for line in process.stdout if b"val loss" in line)
    process.send_signal(signal.SIGTERM)
    out, _ = cli.finish(process)
    assert "stopped by a signal after 0 of" in out, out


def test_damaged_checkpoints():
    """The newest one that is whole is used, and why no later one is; without any, nothing is touched. What a killed
    save has left goes. (test_kill.c: death at each moment of a save.)"""
    folder = stopped_after_8()
    cli.write(os.path.join(folder, "model_00000010.bin.tmp"), b"half")
    os.truncate(os.path.join(folder, "state_00000008.bin"), 100)
    out = train(folder, "--resume")
    assert "00000008" in out and "going back to the checkpoint of step 4" in out, out
    check_same_end(out, folder)
    assert not os.path.exists(os.path.join(folder, "model_00000010.bin.tmp"))
    for step in checkpoints(folder):
        os.truncate(os.path.join(folder, f"state_{step:08}.bin"), 100)
    cli.refused(*words(folder, "--resume"), says=["--out-dir", "state_00000012.bin"])
    assert log_of(folder) == REFERENCE["log"], "a refused resume touched the log"
