"""HellaSwag and MMLU during a run.

The answers of a straightforward computation, whatever the batches; what is shown and logged, and when; stopping, going
on, and files that cannot be used. Sequences that are cut: test_evalloader.c, test_gpu_trainer.py.
"""
import functools
import re
import signal
import time

import pytest

import cli
import evalfiles
from cli import ENVIRONMENT, PROGRAM, QUIET, new_folder, path, ran, refused
from evalfiles import CONFIG, eval_file, questions, relabelled, results
from tools import Terminal


@functools.lru_cache(None)
def right_answers():
    """The model's file, and 40 questions with the answers of the independent computation as labels."""
    params = cli.make_params(CONFIG, deviation=0.3)
    return cli.model("answers.bin", CONFIG, params), questions(CONFIG, params, 40, 24)


def evaluate(model, *arguments, **keywords):
    return ran("--init", model, "--steps", 0, "--sample-every", 0, "-h", 1, *arguments, **keywords)


@pytest.mark.parametrize("shift, correct, batch, length, sequences", (
    (lambda i: 0, 40, 1, 24, 1), (lambda i: i % 2, 20, 300, 23, 139), (lambda i: i % 8 == 3, 35, 5, 10, 2)))
def test_answers_of_an_independent_computation(shift, correct, batch, length, sequences):
    """All labels right, and some: the accuracy says which answers were given. How many sequences share a batch
    changes no answer, nor does the number of threads."""
    model, examples = right_answers()
    name = eval_file("answers_val.bin", relabelled(examples, shift))
    out = evaluate(model, "--hellaswag-data", name, "-b", batch, "-t", length, "--threads", 2)
    found = re.search(rf"^HellaSwag +{re.escape(name)}: 40 of 40 questions, (\d+) sequences in batches of (\d+) x 24 "
                      "tokens$", out, re.M)
    assert found and int(found.group(2)) == min(sequences, int(found.group(1))), out
    assert results(out) == [(0, correct, 40)], out


# ---- During a run ----


@functools.lru_cache(None)
def toy():
    """A run that learns what follows on what, and answers questions about it."""
    train = cli.shard("chain_train.bin", evalfiles.chain(20000, 1))
    val = cli.shard("chain_val.bin", evalfiles.chain(500, 2))
    name = eval_file("chain_questions.bin", evalfiles.chain_questions())
    return ["-i", train, "-j", val, "--vocab", 61, "--layers", 1, "--heads", 2, "--channels", 32, "--context", 16, "-t",
            16, "-b", 8, "--lr", 0.01, "-m", 1, "-s", 0, "-h", 1, "--hellaswag-data", name]


def test_learns():
    """From chance (4 of 16) to near certainty, with each validation, after it; the log of it."""
    folder = new_folder("learns")
    run = [*toy(), "-x", 120, "-v", 50, "-o", folder, "--mmlu", path("chain_questions.bin")]
    out = ran(*run)
    shown = results(out)
    assert [step for step, _, _ in shown] == [0, 50, 100, 120] and shown[0][1] <= 9 and shown[-1][1] >= 14, shown
    order = re.findall(r"^step +50/120 \| (val loss|HellaSwag|MMLU|loss)", out, re.M)
    assert order == ["loss", "val loss", "HellaSwag", "MMLU"], out
    assert evalfiles.logged(folder) == [(step, f"{correct / 16:.4f}") for step, correct, _ in shown]
    assert evalfiles.logged(folder, "mmlu") == evalfiles.logged(folder)
    assert [step for step, _, _ in results(out, "MMLU")] == [0, 50, 100, 120]
    with open(f"{folder}/main.log") as file:
        lines = [line.split(":")[1].split()[1] for line in file if line.startswith("s:50 ")]
    assert lines == ["tel", "eval", "mmlu", "trl"], lines
    quiet = ran(*toy()[:-4], "-x", 120, "-v", 50, "-o", new_folder("learns_quiet"))
    assert cli.weights_hash(quiet) == cli.weights_hash(out), "evaluating changed the weights"


def test_without_training():
    """--steps 0 evaluates once: beside a validation, without one, and without data for one."""
    folder = new_folder("without")
    ran(*toy()[:-4], *QUIET[:2], "-x", 3, "-o", folder)
    base = ["--init", folder, "-x", 0, "-s", 0, *toy()[-4:], "-b", 2, "-t", 16]
    for more, validations in (([], 0), (["-j", path("chain_val.bin")], 1), (["-j", path("chain_val.bin"), "-v", 0], 0)):
        out = ran(*base, *more)
        assert len(results(out)) == 1 and len(cli.val_losses(out)) == validations, (more, out)


def test_stopped_in_the_middle():
    """An evaluation that takes seconds shows on a terminal how far it is. A signal ends it in order: saved, nothing of
    it logged; the run goes on with it. (test_logger.c: the line and its end.)"""
    model = cli.model("long.bin", cli.config(C=64, L=2, maxT=24))
    name = eval_file("long_val.bin", [(list(range(12)), [list(range(20, 30))] * 4, 0)] * 30000)
    data = cli.shard("long_train.bin", cli.random_tokens(2000, 257))
    folder = new_folder("middle")
    run = ["--init", model, "-i", data, "-x", 2, "-b", 2, "-t", 24, "-v", 1, "-s", 0, "-o", folder, "-h", 1,
           "--hellaswag-data", name]
    with Terminal([PROGRAM, *run], env=ENVIRONMENT) as terminal:
        terminal.until(r"\rHellaSwag [1-9]\d* of 120000 sequences\x1b\[J")
        began = time.monotonic()
        terminal.process.send_signal(signal.SIGINT)
        shown = terminal.finish()
    assert "stopped by a signal after 0 of 2 steps; --resume goes on" in shown, shown
    assert time.monotonic() - began < 20 and not re.search(r"\(\d+/30000\)", shown), shown
    assert evalfiles.logged(folder) == [] and cli.checkpoints(folder) == [0]
    shorter = eval_file("short_val.bin", [(list(range(12)), [[1, 2], [3]], 0)] * 10)
    ran(*[shorter if word == name else word for word in run], "--resume")
    assert [step for step, _ in evalfiles.logged(folder)] == [0, 1, 2]
    assert cli.checkpoints(folder) == [0, 2]


# ---- What is refused ----


def test_bad_files():
    """Before any training, one line with the file, what is wrong and where. (test_evalloader.c has every damage.)"""
    model, _ = right_answers()
    name, folder = eval_file("bad_val.bin", [([1], [[2], [61]], 0)]), new_folder("bad")
    refused("--init", model, "-x", 0, "-b", 2, "-t", 24, "--mmlu", name, says=[name, "the model's vocabulary has 61"])
    refused(*toy()[:-2], "--hellaswag-data", name, "-x", 3, "-o", folder, says=["bad_val.bin: example 0"],
            no_files=folder)
    refused("--init", model, "-x", 0, "-h", 1, cwd=cli.FOLDER, says=[
        "dev/data/hellaswag/hellaswag_val.bin: no such file; `python3 dev/data/hellaswag.py` fetches it"])
