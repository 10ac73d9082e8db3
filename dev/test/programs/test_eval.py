"""HellaSwag and MMLU during a run.

The answers of a straightforward computation, whatever the batches; what is shown and logged, and when; stopping, going
on, and files that cannot be used.
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
    (lambda i: 0, 40, 1, 24, 1), (lambda i: 1, 0, 24, 1, 1), (lambda i: i % 2, 20, 300, 23, 139),
    (lambda i: i % 8 == 3, 35, 5, 10, 2)))
def test_answers_of_an_independent_computation(shift, correct, batch, length, sequences):
    """All labels right, none, and some: the accuracy says which answers were given. How many sequences share a batch
    changes no answer, nor does the number of threads."""
    model, examples = right_answers()
    name = eval_file("answers_val.bin", relabelled(examples, shift))
    out = evaluate(model, "--hellaswag-data", name, "-b", batch, "-t", length, "--threads", 2)
    found = re.search(rf"^HellaSwag +{re.escape(name)}: 40 of 40 questions, (\d+) sequences in batches of (\d+) x 24 "
                      "tokens$", out, re.M)
    assert found and int(found.group(2)) == min(sequences, int(found.group(1))), out
    assert results(out) == [(0, correct, 40)], out


def test_contexts_that_are_cut():
    """Sequences longer than the model lose the beginning of their context, which is said once. No sequence does so
    because the batches are small."""
    params = cli.make_params(CONFIG, deviation=0.3)
    model = cli.model("cut.bin", CONFIG, params)
    examples = questions(CONFIG, params, 12, 24, longest=40)
    name = eval_file("cut_val.bin", examples)
    lengths = [len(context) + len(completion) - 1 for context, completions, _ in examples for completion in completions]
    longer = [length for length in lengths if length > 24]
    for batch, length in ((3, 24), (1, 9), (2, 3)):
        out = evaluate(model, "--hellaswag-data", name, "-b", batch, "-t", length)
        assert results(out) == [(0, 12, 12)], out
        assert out.count(f"{len(longer)} of them are longer, up to {max(longer)}, and lose the beginning of their") == 1


def test_both_evaluations():
    """HellaSwag and MMLU, each with its own file and line."""
    model, examples = right_answers()
    hellaswag = eval_file("both_h.bin", relabelled(examples, lambda i: i % 2))
    mmlu = eval_file("both_m.bin", relabelled(examples[:7], lambda i: 0))
    run = ["--mmlu", mmlu, "-b", 4, "-t", 24]
    out = evaluate(model, "--hellaswag-data", hellaswag, *run)
    assert results(out) == [(0, 20, 40)] and results(out, "MMLU") == [(0, 7, 7)], out
    out = ran("--init", model, "--steps", 0, "--sample-every", 0, *run)
    assert results(out) == [] and results(out, "MMLU") == [(0, 7, 7)], out


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
    for more, validations in (([], 0), (["-j", path("chain_val.bin")], 1), (["-j", path("chain_val.bin"), "-v", 0], 0),
                              (["-v", 0], 0)):
        out = ran(*base, *more)
        assert len(results(out)) == 1 and len(cli.val_losses(out)) == validations, (more, out)
    assert "sample" in ran("--init", folder, "-x", 0, "-g", 3, *toy()[-4:])


def test_stop_and_resume():
    """A run that was interrupted logs each accuracy, as one that was not. Of two lines for a step the later counts."""
    whole, parts = new_folder("eval_whole"), new_folder("eval_parts")
    run = [*toy(), "-x", 30, "-v", 5, "-n", 10]
    ran(*run, "-o", whole)
    process = cli.start(*run, "-o", parts)
    while b"step   12/" not in process.stdout.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    cli.finish(process)
    ran(*run, "-o", parts, "--resume")
    logs = [re.findall(r"^(s:\d+ [a-z]+):(.*)$", cli.log_of(folder), re.M) for folder in (whole, parts)]
    assert dict(logs[0]) == dict(logs[1]) and len(logs[0]) == len(dict(logs[0])), logs
    assert [step for step, _ in evalfiles.logged(parts)] == [0, 5, 10, 15, 20, 25, 30]


# ---- On a terminal ----


def on_a_terminal(*arguments):
    return Terminal([PROGRAM, *arguments], env=ENVIRONMENT)


def long_evaluation(examples=30000):
    """Its file, and a model that takes seconds for it."""
    config = cli.config(C=64, L=2, maxT=24)
    name = cli.model("long.bin", config)
    context, completion = list(range(12)), list(range(20, 30))
    return name, eval_file("long_val.bin", [(context, [completion] * 4, 0)] * examples)


PROGRESS = r"\rHellaSwag (\d+) of (\d+) sequences\x1b\[J"


def test_progress():
    """A line redrawn in place, of which nothing is left."""
    examples = 150
    model, name = long_evaluation(examples)
    run = ["--init", model, "-x", 0, "-s", 0, "-h", 1, "--hellaswag-data", name, "-b", 2, "-t", 24, "--eval-examples"]
    with on_a_terminal(*run, examples) as terminal:
        shown = terminal.finish()
    bars = re.findall(PROGRESS, shown)
    done = [int(bar[0]) for bar in bars]
    assert len(done) >= 3 and done == sorted(set(done)) and done[0] > 0, shown
    assert {bar[1] for bar in bars} == {str(4 * examples)} and done[-1] <= 4 * examples, bars
    assert re.search(rf"\r\x1b\[Jevaluation \| HellaSwag 1.0000 \({examples}/{examples}\)\r\n", shown), shown
    out = ran(*run, 50)
    assert "\r" not in out and "\x1b" not in out and out.count("HellaSwag") == 2 and "(50/50)" in out, out


def test_stopped_in_the_middle():
    """A signal ends an evaluation within seconds, in order: saved, nothing of it logged; the run goes on with it."""
    model, name = long_evaluation()
    data = cli.shard("long_train.bin", cli.random_tokens(2000, 257))
    folder = new_folder("middle")
    run = ["--init", model, "-i", data, "-x", 2, "-b", 2, "-t", 24, "-v", 1, "-s", 0, "-o", folder, "-h", 1,
           "--hellaswag-data", name]
    with on_a_terminal(*run) as terminal:
        terminal.until(PROGRESS)
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


def test_missing_files():
    model, _ = right_answers()
    for options in (["--hellaswag", "--hellaswag-data"], ["--mmlu"]):
        name, command = path("none_val.bin"), f"python3 dev/data/{options[0][2:]}.py"
        refused("--init", model, "-x", 0, *options, name,
                says=[f"{name}: no such file; `{command}` fetches it", f"{options[-1]} names another"])
    refused("--init", model, "-x", 0, "-h", 1, cwd=cli.FOLDER, says=["dev/data/hellaswag/", "dev/data/hellaswag.py"])
