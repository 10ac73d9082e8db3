"""The folder of a run says of itself what it is: run.jsonl and speed.log, through resumes, failures, signals and
terminals that go. What one finds there of GPUs and of several ranks: test_gpu_ranks.py.
"""
import os
import re
import signal
import subprocess
import sys
import time

import pytest

import cli
from cli import (ENVIRONMENT, PROGRAM, QUIET, TINY, checkpoints, finish, log_of, logged_steps, losses, new_folder,
                 path, ran, random_tokens, read, refused, shard, start, stopped_after, text_file, weights_hash)
from run_folder import check_machine, check_options, check_times, events_of, record_of, speed_of
from tools import Terminal, wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc and pseudo-terminals as Linux has them")
TEXT = text_file()
RUN = ["-i", TEXT, *TINY, "-s", 0, "-v", 3, "-m", 1, "--lr", 0.0123456789]


def trained_steps(folder):
    """How many updates main.log holds by now; 0 while there is none."""
    try:
        return len(logged_steps(folder))
    except FileNotFoundError:
        return 0


def begin(folder, *more, **keywords):
    """A run without an end, after two steps."""
    process = start(*RUN, "-x", 1000000, "-o", folder, *more, **keywords)
    wait_until(lambda: trained_steps(folder) >= 2, process, "2 steps")
    return process


def test_describes_the_run():
    """Each field against the command, the data and this machine."""
    for name, count in (("t_0.bin", 300), ("t_1.bin", 500), ("v.bin", 100)):
        shard(name, random_tokens(count, 300))
    folder = new_folder("described")
    since = time.time()
    words = ["--train-data", path("t_*.bin"), "-j", path("v.bin"), "--vocab", 300, *TINY, "--total-batch", 64, "-x", 4,
             "-v", 2, "-s", 4, "-g", 3, "--lr", 0.0123456789, "--adam-eps", "1e-10", "--shuffle", "--out-dir", folder,
             "-n", 2, "--keep", 5, "--seed", 4294967295, "--threads", 1]
    out = ran(*words)
    record, end = events_of(folder)
    assert sorted(record) == sorted(("event format time step program version revision command directory options model "
                                     "tokens_per_step steps sequences_per_epoch data hardware versions").split())
    assert (record["event"], record["format"], record["step"]) == ("start", 2, 0), record
    assert record["program"] == "train_gpt2" and record["options"]["computed-in"] == "fp32"
    assert record["version"] == ran("--version").split()[1] and record["directory"] == os.getcwd()
    assert record["command"] == [PROGRAM, *map(str, words)], record["command"]
    check_options(record, {"train-data": path("t_*.bin"), "tokenizer": "", "vocab": 300, "total-batch": 64,
                           "lr": 0.0123456789, "adam-eps": 1e-10, "muon-warmup": 300, "shuffle": 1, "overfit": 0,
                           "schedule": "cosine", "out-dir": folder, "seed": 4294967295}, ran("--help", "all"))
    assert record["model"] == {
        "layers": 1, "heads": 2, "channels": 16, "context": 16, "vocab": 300, "padded_vocab": 384,
        "parameters": (300 + 16) * 16 + 12 * 16 * 16 + 13 * 16 + 2 * 16}, record["model"]
    assert (record["tokens_per_step"], record["steps"], record["sequences_per_epoch"]) == (64, 4, 299 // 16 + 499 // 16)
    data = record["data"]
    assert [(data[kind]["files"], data[kind]["tokens"]) for kind in ("train", "val")] == [(2, 800), (1, 100)], data
    assert data["train"]["fingerprint"] != data["val"]["fingerprint"], data
    check_machine(record, 1)
    assert "gpus" not in record["hardware"] and not {"cuda_runtime", "nccl", "mpi"} & set(record["versions"])
    logged, shown = cli.logged_losses(folder), [float(loss) for loss in re.findall(r"tel:([\d.]+)", cli.log_of(folder))]
    assert end["tokens"] == 4 * 64 and 0 < end["seconds"] < time.time() - since + 2, end
    results = [(end[key]["step"], end[key]["loss"]) for key in ("train_loss", "val_loss", "lowest_val_loss")]
    lowest = min(range(3), key=shown.__getitem__)
    for found, want in zip(results, ((4, logged[3]), (4, shown[2]), (2 * lowest, shown[lowest]))):
        assert found[0] == want[0] and abs(found[1] - want[1]) <= 0.00006, (results, logged, shown)
    assert (end["status"], end["step"], end["weights_hash"]) == ("done", 4, weights_hash(out)), end
    check_times([record["time"], end["time"]], since)
    assert len(speed_of(folder)) == 4
    for _, milliseconds, speed in speed_of(folder):
        assert abs(speed * 1e-3 * milliseconds / 64 - 1) <= 0.51 / speed + 0.001 / milliseconds, (milliseconds, speed)
    assert len(os.listdir(folder)) == 2 * 2 + 5, os.listdir(folder)  # no temporary file is left


def test_closed_standard_files():
    """Without standard output and the others, what is said goes nowhere, and not into a file of the run."""
    folders = new_folder("open"), new_folder("closed")
    ran(*RUN, "-x", 2, "-o", folders[0])
    closed = subprocess.run(["sh", "-c", 'exec "$0" "$@" <&- >&- 2>&-', PROGRAM, *map(str, RUN), "-x", "2", "-o",
                             folders[1]], env=ENVIRONMENT, check=False)
    assert closed.returncode == 1, closed  # its output could not be written
    for name in ("main.log", "model_00000002.bin", "state_00000002.bin"):
        assert read(os.path.join(folders[0], name)) == read(os.path.join(folders[1], name)), name


def test_resume_appends():
    """Starts and ends add up; every step of a run that ended in order has one line."""
    straight = new_folder("straight")
    words = [*RUN, "-x", 9, "-n", 2, "-o"]
    since = time.time()
    ran(*words, straight)
    folder = stopped_after(4, straight)
    before = read(os.path.join(folder, "run.jsonl"))
    ran(*words, folder, "--resume", "--threads", 2)
    assert read(os.path.join(folder, "run.jsonl")).startswith(before), "a line was changed"
    record = record_of(folder)
    assert record["options"]["threads"] == "2" and record["options"]["resume"] == "1"
    assert len(speed_of(folder)) == 9 and record["end"]["status"] == "done"
    assert log_of(folder) == log_of(straight), "main.log is not that of a straight run"
    ran(*words, folder, "--resume")  # nothing is left to do
    folder = stopped_after(0, folder, "begun")  # a run that never came to a checkpoint begins again, and remembers
    ran(*words, folder, "--resume")
    starts = record_of(folder)["starts"]
    assert [start["step"] for start in starts] == [0, 4, 9, 0]
    assert [start["end"]["step"] for start in starts] == [9, 9, 9, 9]
    check_times([start["time"] for start in starts], since)
    ran(*words, folder, "--overwrite")
    assert len(record_of(folder)["starts"]) == 1


def test_ends():
    """A stopped, a failed and a killed run; and one that was refused leaves what is there as it was."""
    folder = new_folder("ends")
    process = begin(folder)
    assert "end" not in record_of(folder)
    process.terminate()
    out, _ = finish(process)
    end = record_of(folder)["end"]
    assert end["status"] == "stopped" and end["message"] == "by a signal" and end["step"] == checkpoints(folder)[0]
    assert end["weights_hash"] == weights_hash(out) and end["step"] == len(speed_of(folder)), end
    before = read("ends/run.jsonl")
    refused(*RUN, "-x", 5, "-o", folder, says=["earlier run"])
    refused(*RUN, "-x", 5, "-o", folder, "--resume", says=["--steps"])
    assert read("ends/run.jsonl") == before
    process = begin(folder, "--resume")
    wait_until(lambda: trained_steps(folder) >= end["step"] + 2, process, "2 steps")
    process.kill()
    process.communicate()
    record = record_of(folder)
    assert "end" not in record and record["starts"][0]["end"] == end and len(record["starts"]) == 2, record
    folder = new_folder("fails")
    err = refused("-i", TEXT, *TINY, *QUIET, "-x", 50, "--lr", 100, "-c", 0, "--weight-decay", 100, "-o", folder,
                  says=[re.compile("the (loss|gradient norm) is")])
    end = record_of(folder)["end"]
    assert end["status"] == "failed" and f"train_gpt2: {end['message']}\n" == err, (end, err)
    assert end["step"] == len(speed_of(folder)) == trained_steps(folder), end


# ---- Signals and terminals ----


@pytest.mark.parametrize("ignore, steps, status", (([], 1000000, "stopped"), ([signal.SIGHUP], 300, "done")))
def test_terminal_that_goes(ignore, steps, status):
    """The run saves and ends in order, as it does for SIGTERM. With SIGHUP ignored it goes on to its end, without a
    terminal to write to."""
    folder = new_folder("terminal")
    words = [PROGRAM, *RUN, "-d", 320, "-n", 1, "--keep", 1, "-o", folder, "-x", steps]
    with Terminal(words, ignore=ignore, env=ENVIRONMENT) as terminal:
        terminal.until(lambda: trained_steps(folder) >= 3)
        terminal.close()
        terminal.finish()
    end = record_of(folder)["end"]
    assert end["status"] == status and checkpoints(folder) == [end["step"]] and end["step"] >= 3, end
    assert status == "stopped" or end["step"] == steps, end
    assert trained_steps(folder) == end["step"] == len(speed_of(folder)), end


def test_into_a_file():
    """Whole lines, each as it comes, the beginning included: a run that is killed has no time to write them later."""
    folder = new_folder("file")
    with open(path("out"), "wb") as file:
        process = subprocess.Popen([PROGRAM, *map(str, RUN), "-o", folder, "-x", "1000000"], stdout=file)
        wait_until(lambda: trained_steps(folder) >= 3, process)
        process.kill()
        process.wait()
    logged, text = trained_steps(folder), read("out").decode()
    assert text.endswith("\n") and re.search("^machine ", text, re.M) and not re.search("[\r\x1b]", text), text
    assert logged - 1 <= len(losses(text)) <= logged + 1, (logged, text)
