"""What a run is used for: the best model and --patience, evaluation as a result, samples for programs, going on by the
folder alone, another optimizer."""
import functools
import json
import math
import os
import re
import signal
import subprocess

import numpy as np
import pytest

import cli
from cli import (ENVIRONMENT, PROGRAM, QUIET, TINY, checkpoints, finish, log_of, logged_steps, new_folder, norms, path,
                 ran, refused, shard, start, stopped_after, text_file, val_losses, weights_hash, write)
from formats import read_checkpoint
from run_folder import events_of
from tools import ROOT, read, text_of

TEXT = text_file()
SHORT = text_file("short.txt", 700)  # is learned by heart
LEARNS = ["-i", SHORT, *TINY, "-s", 0, "-v", 20, "--lr", 0.01, "-u", 0, "--schedule", "constant", "-x", 400]


# ---- The best model ----


def test_the_best_model_is_kept():
    """A run that learns a text by heart: the model of the lowest validation loss is there at the end, whatever --keep
    removes, and a stopped run that goes on finds it as well."""
    folder = new_folder("overfits")
    out = ran(*LEARNS, "-n", 20, "--keep", 1, "-o", folder)
    loss, step = min((float(loss), int(step)) for step, loss in re.findall(r"^s:(\d+) tel:(.*)", log_of(folder), re.M))
    assert 0 < step < 400 and loss < val_losses(out)[-1], out
    assert f"\nlowest validation loss {loss:.4f} after step {step} (model_best.bin)\n" in out, out
    best = os.path.join(folder, "model_best.bin")
    again = ran("-i", SHORT, *TINY[-4:], "--init", best, "-x", 0, "-s", 0, "--val-sequences", 80)
    assert abs(val_losses(again)[0] - loss) <= 0.0001, again
    parts = new_folder("overfits_parts")
    ran(*LEARNS, "-n", 20, "-o", parts)
    for at in (step - 20, step, step + 20):
        copy = stopped_after(at, parts)
        if at <= step:  # the straight run writes it after its checkpoint of this step
            os.remove(os.path.join(copy, "model_best.bin"))
        out = ran(*LEARNS, "-o", copy, "--resume")
        assert f"\nlowest validation loss {loss:.4f} after step {step} (" in out, (at, out)
        assert read(os.path.join(copy, "model_best.bin")) == read(best), at


def test_other_data_begin_anew():
    """Losses of other sequences are not compared with the lowest one."""
    folder = new_folder("other_data")
    ran(*LEARNS[:-1], 60, "-o", folder)
    other = write("other.txt", b"QZXJ\n" * 160)
    out = ran(*LEARNS[:-1], 80, "-o", folder, "--resume", "--allow-changes", "-j", other)
    assert f"lowest validation loss {min(val_losses(out)):.4f} after step" in out, out
    folder = new_folder("first_ones")  # as many sequences, but not the same
    easy_at_first = write("easy_at_first.txt", b"aaaa" * 20 + b"QZXJ\n" * 160)
    run = ["-i", SHORT, "-j", easy_at_first, *TINY, "-s", 0, "-v", 5, "-u", 0]
    ran(*run, "-m", 2, "-x", 10, "-o", folder)
    out = ran(*run, "--val-sequences", 4, "-m", -1, "-x", 20, "-o", folder, "--resume", "--allow-changes")
    assert f"lowest validation loss {min(val_losses(out)):.4f} after step" in out, out


def test_what_overwrite_removes():
    """The best model of the older run, and what a killed save has left of one."""
    folder = new_folder("overwritten")
    ran(*LEARNS[:-1], 20, "-o", folder)
    write(os.path.join(folder, "model_best.bin.tmp"), b"cut")
    ran(*LEARNS[:-1], 20, "-v", 0, "-o", folder, "--overwrite")
    assert not [name for name in os.listdir(folder) if "best" in name], os.listdir(folder)


def test_patience():
    """The run ends after so many validations without a lower loss, is saved there, and goes on if it is told to."""
    straight, folder = new_folder("no_patience"), new_folder("patience")
    whole = ran(*LEARNS, "-o", straight)
    out = ran(*LEARNS, "--patience", 3, "-o", folder)
    losses, since, at = [float(loss) for loss in re.findall(r"tel:([\d.]+)", log_of(straight))], 0, 0
    while since < 3:
        at += 1
        since = 0 if losses[at] < min(losses[:at]) else since + 1
    want = 20 * at
    assert checkpoints(folder) == [want] and logged_steps(folder) == [*range(want)], (want, out)
    assert f"stopped by --patience after {want} of 400 steps; --resume --patience 0 goes on from here\n" in out, out
    assert events_of(folder)[-1]["message"] == "by --patience"
    again = ran("--resume", "-o", folder)  # its patience is still at an end
    assert f"stopped by --patience after {want} of 400 steps" in again and checkpoints(folder) == [want], again
    assert weights_hash(ran("--resume", "-o", folder, "--patience", 0)) == weights_hash(whole)
    refused(*LEARNS, "--val-fraction", 0, "--patience", 3, says=["--patience: there are no data to validate on"])


# ---- Evaluation ----


def test_evaluation_is_a_result():
    """All sequences, the numbers that follow from each other, one line of JSON a run, here of a text of bytes."""
    config = cli.config()
    params = cli.make_params(config)
    model = cli.model("evaluated.bin", config, params)
    text = write("evaluated.txt", bytes(range(32, 122)) * 5)
    run = ["--init", model, "-j", text, "-t", 16, "-x", 0, "-s", 0]
    results = path("results.jsonl")
    out = ran(*run, "--json", results)
    assert re.search(r"^evaluation \| val loss [\d.]+ \(28 of 28 sequences\) \| perplexity [\d.]+ \| [\d.]+ bits per "
                     "byte$", out, re.M), out
    ran(*run, "-b", 1, "--json", results)  # one more line
    tokens = [256, *read("evaluated.txt")]
    want = sum(sum(cli.reference_losses(config, params, tokens[i:i + 16], tokens[i + 1:i + 17]))
               for i in range(0, 28 * 16, 16)) / (28 * 16)
    lines = [json.loads(line) for line in read(results).decode().splitlines()]
    assert len(lines) == 2, lines
    for line in lines:
        assert (line["event"], line["model"], line["data"]) == ("evaluation", model, text), line
        assert (line["sequences"], line["sequences_in_data"], line["tokens"]) == (28, 28, 28 * 16), line
        assert abs(line["loss"] - want) <= 1e-5 and abs(line["perplexity"] - math.exp(line["loss"])) <= 1e-4, line
        assert abs(line["bits_per_byte"] - line["loss"] / math.log(2)) <= 1e-6, line  # a byte is a token
    folder = new_folder("evaluations")
    ran(*run, "-o", folder)
    assert os.listdir(folder) == ["evaluation.jsonl"]
    refused("--init", model, "-x", 0, "--json", results, says=["--json: there is nothing to evaluate", "--val-data"])


def test_interrupted_evaluation():
    """It is no result: no line of JSON, and a status that scripts notice."""
    text = write("long.txt", b"abcdefgh\n" * 200000)
    results = path("interrupted.jsonl")
    model = cli.model("slow.bin", cli.config(C=64, L=2))
    process = start("--init", model, "-j", text, "-t", 16, "-x", 0, "-s", 0, "--json", results)
    next(line for line in process.stderr if line == b"\n")
    process.send_signal(signal.SIGINT)
    out, err = finish(process, 1)
    assert err.endswith("train_gpt2: stopped by a signal, before the end of the evaluation\n"), err
    assert out == "" and not os.path.exists(results)


def test_bytes_of_documents():
    """End-of-text is a token and no byte of the text."""
    data, model = shard("documents.bin", ([256, *range(40, 47)] * 8)[:49]), cli.model("documents_model.bin")
    line = json.loads(finish(start("--init", model, "-j", data, "-t", 16, "-x", 0, "-s", 0, "--json", "-"))[0])
    assert line["tokens"] == 48 and abs(line["bits_per_byte"] - line["loss"] * 48 / (42 * math.log(2))) <= 1e-6, line


# ---- Samples ----


def sampled(*arguments, **keywords):
    """What a run of 0 steps leaves to other programs."""
    process = subprocess.run([PROGRAM, *map(str, arguments)], env=ENVIRONMENT, capture_output=True, check=True,
                             **keywords)
    assert process.stderr.startswith(b"gpt2.c "), process.stderr
    return process.stdout


def test_samples_for_programs():
    """Standard output has the text and nothing else. A prompt comes from a file or a pipe, with its lines."""
    model = cli.model("sampled.bin")
    run = ["--init", model, "-x", 0, "-g", 8, "--temperature", 0]
    prompt = b"two\nlines"
    text = sampled(*run, "--prompt", prompt.decode())
    assert text.startswith(prompt) and text.endswith(b"\n") and len(text) >= len(prompt) + 9, text
    name = write("prompt.txt", prompt + b"\n")
    assert sampled(*run, "--prompt-file", name) == sampled(*run, "--prompt-file", "-", input=prompt) == text
    warm = [*run[:-2], "--num-samples", 3, "--prompt", "x"]
    texts = sampled(*warm).split(b"\n---\n")
    assert len(texts) == len(set(texts)) == 3 and all(text.startswith(b"x") for text in texts), texts
    assert texts[0] + b"\n" == sampled(*warm[:-4], "--prompt", "x")
    refused(*run, "--prompt-file", path("no_prompt.txt"), says=["no_prompt.txt: cannot open"])


def test_reader_that_goes():
    """`| head`: the run saves, and ends as other programs do whose output nobody reads. Nothing is said."""
    folder = new_folder("reader")
    run = ["-i", TEXT, *TINY, "-v", 0, "-s", 0, "-x", 1000000, "-o", folder]
    process = start(*run)
    next(shown for shown in process.stdout if b"step       3/" in shown)
    process.stdout.close()
    assert process.stderr.read() == b"" and process.wait(60) == -signal.SIGPIPE
    assert checkpoints(folder) and events_of(folder)[-1]["status"] == "stopped"


# ---- Going on ----


def test_resume_by_the_folder_alone():
    """--resume --out-dir goes on as the run began: what was given then, also what shapes nothing. What is given beside
    it is compared."""
    data = shard("alone_train.bin", cli.random_tokens(2000, 257))
    run = ["-i", data, "-j", data, "--vocab", 257, *TINY, "-x", 12, "-n", 4, "-v", 3, "-m", 2, "-s", 0, "--lr", 0.005,
           "-d", 64, "--shuffle", "--schedule", "linear", "-q", 0.5, "--weight-decay", 0.1, "--keep", 2, "--log-every",
           5]
    folder = new_folder("alone")
    whole = ran(*run, "-o", folder)
    copy = stopped_after(8, folder)
    out = ran("--resume", "-o", copy)
    assert weights_hash(out) == weights_hash(whole) and log_of(copy) == log_of(folder), out
    assert checkpoints(copy) == [8, 12], checkpoints(copy)
    assert re.findall(r"^step +(\d+)/12 \| loss", out, re.M) == ["10", "12"], out
    options = events_of(copy)[-2]["options"]
    want = dict(events_of(folder)[0]["options"])
    assert {name for name in want if options[name] != want[name]} == {"out-dir", "resume"}, options
    ran("--resume", "-o", copy, "-x", 16, "--allow-changes")  # what was taken is taken again
    options = events_of(copy)[-2]["options"]
    assert {name for name in want if options[name] != want[name]} == {"out-dir", "resume", "steps", "allow-changes"}
    refused("--resume", "-o", copy, "--channels", 32, "--allow-changes", says=["are for new models", copy])
    moved = write("moved_train.bin", read(data))  # the same data under another name are no change
    assert "changes" not in ran("--resume", "-o", stopped_after(8, folder), "-i", moved, "-j", moved)
    refused("--resume", "-o", new_folder("nothing"), says=["holds no checkpoint; --overwrite, with all options"])


def test_more_steps_say_where_the_rate_goes():
    folder = new_folder("more")
    ran("-i", TEXT, *TINY, "-v", 0, "-s", 0, "-x", 10, "-u", 0, "-o", folder)
    out = ran("--resume", "-o", stopped_after(10, folder), "-x", 20, "--allow-changes")
    said = re.search(r"--steps was 10, is 20; the learning rate of the next step was 3e-05, is (\S+) \(--schedule "
                     r"constant, or wsd before its last fifth, goes on without a jump\)\n", out)
    assert said and abs(float(said[1]) - 3e-4 * (0.1 + 0.9 * 0.5)) <= 1e-9, out


def test_warmup_of_a_new_model():
    """A tenth of the steps, for a model that begins from noise only, and a run that goes on keeps it."""
    folder = new_folder("warm")
    assert " after 4 steps of warm-up" in ran("-i", TEXT, *TINY, *QUIET, "-n", 20, "-o", folder, "-x", 40)
    assert " after 4 steps of warm-up" in ran("--resume", "-o", stopped_after(20, folder))
    assert "warm-up" not in ran("-i", TEXT, *TINY[-4:], "--init", folder, "-x", 40)
    assert " after 100 steps of warm-up" in ran("-i", TEXT, *TINY, "-x", 9000, "--plan")


# ---- Texts ----


def test_text_from_a_pipe():
    """It is the text of a file."""
    run = [*TINY, "-v", 0, "-s", 0, "-x", 3]
    with open(TEXT, "rb") as text:
        assert weights_hash(ran("-i", "-", *run, stdin=text)) == weights_hash(ran("-i", TEXT, *run))


# ---- Models that compute something else ----


@pytest.mark.long
def test_an_edited_activation(tmp_path):
    """It asks for another number in the headers of models, which have the tensors of GPT-2."""
    edited = text_of("train_gpt2.c").replace("vf_set1(0.5f) * x * (vf_set1(1.0f) + gelu_tanh(x))", "vf_set1(0.5f) * x")
    assert edited != text_of("train_gpt2.c")
    program = str(tmp_path / "train_gpt2")
    (tmp_path / "edited.c").write_text(edited, encoding="utf-8")
    subprocess.run(["gcc", "-O0", "-march=native", "-DGEMM_UNROLL=", "-I", ROOT, tmp_path / "edited.c", "-o", program,
                    "-lm", "-pthread"], check=True)
    cli.Trainer(program).refused("-i", TEXT, *TINY, "-x", 2, "-o", new_folder("edited"),
                                 says=["needs another MODEL_VARIANT"])


# ---- Another optimizer ----

MUON_RUN = ["-i", TEXT, *TINY, *QUIET, "--weight-decay", 0.1]
OPTIMIZERS = {"adamw": [], "muon": ["--optimizer", "muon", "--muon-warmup", 6]}
LEFT_OUT = ("qkvw", "attprojw", "fcw", "fcprojw")  # of the second moment


@functools.lru_cache(None)
def trained(optimizer):
    """The folder of a run with checkpoints after 4, 8 and 9 steps."""
    folder = new_folder(optimizer)
    ran(*MUON_RUN, *OPTIMIZERS[optimizer], "-x", 9, "-n", 4, "-o", folder)
    return folder


@pytest.mark.parametrize("then, now", (("adamw", "muon"), ("muon", "adamw")))
def test_another_optimizer(then, now):
    """It is refused, or begins anew. From moments of zero, AdamW's first update of an element is as large as the rate,
    unless its gradient is next to nothing."""
    changed, rate = f"--optimizer was {then}, is {now}", 1e-3
    folder = stopped_after(4, trained(then))
    words = [*OPTIMIZERS[now], "--optimizer", now, "--resume", "-o", folder]
    refused(*MUON_RUN, *words, "-x", 9, says=[f"{folder}: {changed}; ", "; give these as they were"])
    before = read_checkpoint(folder, 4)[1]
    out = ran(*MUON_RUN[:-2], *words, "-x", 5, "--lr", rate, "--schedule", "constant", "--allow-changes")
    assert changed in out and "\nthe optimizer begins anew, from moments of zero\n" in out, out
    after = read_checkpoint(folder, 5)[1]
    for name in ("fcb", "ln2w", *(LEFT_OUT if now == "adamw" else ())):
        changes = np.sort(abs(before[name] - after[name])) / rate
        assert changes[len(changes) // 4] >= 0.99 and changes[-1] <= 1.01, (name, changes)


def test_back_to_another_optimizer():
    """Moments of a damaged checkpoint, which were read in vain, do not stay."""
    words = [*MUON_RUN, *OPTIMIZERS["muon"], "-x", 9, "-n", 4, "--resume", "--allow-changes", "-o"]
    folder = stopped_after(4, trained("adamw"))
    want = weights_hash(ran(*words, folder))
    copy = stopped_after(8, folder, "back")
    state = os.path.join(copy, "state_00000008.bin")
    whole = read(state)
    write(state, whole[:-1] + bytes([whole[-1] ^ 1]))
    out = ran(*words, copy)
    assert "going back to the checkpoint of step 4" in out and weights_hash(out) == want, out


def test_clipped_gradients():
    """Momentum adds up gradients that are clipped, here to a norm of 1."""
    words = [*MUON_RUN, *OPTIMIZERS["muon"], "--lr", 0, "-x", 1, "-o"]
    (norm, ) = norms(ran(*words, new_folder("free"), "--grad-clip", 0))
    ran(*words, new_folder("clipped"), "--grad-clip", 1)
    free, clipped = (np.frombuffer(read_checkpoint(path(name), 1)[3]["adam_m"], "f") for name in ("free", "clipped"))
    assert norm > 1.1 and np.allclose(clipped * norm, free, rtol=1e-3, atol=1e-9), norm
