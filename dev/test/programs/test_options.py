"""The command line as a user meets it, and what a run shows.

Help, refusals, the memory plan, the screen, the log, the curve, samples, and weights that depend on none of these.
"""
import os
import re
import xml.etree.ElementTree

import pytest

from cli import (ENVIRONMENT, FOLDER, MEMORY_LIMITS, MODEL, PROGRAM, QUIET, TINY, checkpoints, losses, model,
                 new_folder, path, ran, random_tokens, read, refused, sample_of, shard, text_file, val_losses,
                 weights_hash)
from tools import Terminal, limit_memory

TEXT = text_file()
RUN = ["-i", TEXT, *TINY]

# (long name, aliases, takes a value, only for GPUs), from the table itself
with open("llmc/run/train_options.h") as file:
    ROWS = re.findall(r"X\(\w+, \"([\w-]+)\", \"([\w ]*)\", (\w+), (.*?)(?=\n    X\(|\n\n)",
                      file.read().replace("\\\n", "\n"), re.S)
OPTIONS = [(name, aliases.split(), kind != "FLAG", "GPU_ONLY" in rest) for name, aliases, kind, rest in ROWS]

# ---- The command line ----


def test_help_text():
    """--help all names every option, its aliases and its default, in at most 100 columns; --help those of most runs."""
    assert len(OPTIONS) >= 55, len(OPTIONS)
    common, out = ran("--help"), ran("--help", "all")
    assert max(map(len, out.splitlines())) <= 100, max(out.splitlines(), key=len)
    for name, aliases, has_value, gpu_only in OPTIONS:
        line = "".join(f"-{alias}, " for alias in aliases) + f"--{name}" + (" " if has_value else "")
        assert (f"\n  {line}" in out) != gpu_only, line
    for text in ("Usage: train_gpt2 ", "-h, --help", "--version", "default 3e-4", "cosine|linear|constant|wsd",
                 "Examples"):
        assert text in out and text in common, text
    assert "--help all" in common and len(common.splitlines()) < 80, len(common.splitlines())
    assert set(re.findall(r"--[a-z-]+", common)) <= set(re.findall(r"--[a-z-]+", out)) | {"--help"}, common
    for arguments in (["-h"], ["-h", "--seed"], [*RUN, "--help"], [*RUN, "-h"]):
        assert ran(*arguments) == common, arguments
    assert ran("-h", "all") == ran(*RUN, "--help", "all") == out
    refused("--seed", "--help", says=["--seed: value missing"])


def test_version():
    assert re.fullmatch(r"train_gpt2 \d+\.\d+\.\d+\n", ran("--version"))
    assert ran("--version", "--nonsense") == ran("--version")


def test_hellaswag_switch():
    """-h is help, but with 0 or 1 it is llm.c's switch for an evaluation (test_eval.py)."""
    assert "weights hash" in ran(*RUN, *QUIET, "-x", 1, "-h", 0)
    for arguments in (["-h", "1"], ["--hellaswag", "1"], ["--hellaswag"]):
        refused(*RUN, *arguments, cwd=FOLDER, says=["dev/data/hellaswag/hellaswag_val.bin: no such file"])


@pytest.mark.parametrize("words, says", (
    (["--bach-size", "3"], "'--bach-size': unknown option; the nearest is --batch-size"),
    (["--x\n\x1b[31my"], "unknown option"),
    (["-i", TEXT, "train.bin"], "'train.bin': unexpected word"),
    (["-i", TEXT, ""], "unexpected word"),
    (["--batch-size=", "4"], "--batch-size (-b): got '', expected a whole number from 1 to 65536 (default 4)"),
    (["-b", "1e4"], "--batch-size (-b): got '1e4', expected a whole number"),
    (["--lr", "nan"], "--lr (-l): got 'nan', expected a number from 0 to 100"),
    (["-k", "COSINE"], "--schedule (-k): got 'COSINE', expected one of cosine|linear|constant|wsd"),
    (["--shuffle", "yes"], "--shuffle: got 'yes', expected 0 or 1"),
    (["--seed", 2**32], "--seed: got '4294967296', expected a whole number from 0 to 4294967295"),
    (["-i", TEXT, "--heads", 7, "--channels", 16], "16 channels cannot be divided among 7 heads"),
    (["-i", TEXT, "-x", 1, "--train-data", TEXT], "--train-data (-i): given twice"),
    ([], "--train-data (-i): missing"),
    ([*RUN, "-o", "x", "--resume", "--overwrite"], "contradicts"),
    ([*RUN, "-o", "x", "--steps", 0], "--out-dir (-o): a run of 0 steps"),
    (["-i", TEXT, "-e", model("made.bin"), "--layers", 16], "--layers: is for new models"),
    (["-i", TEXT, "-e", model("made.bin"), "--vocab", 16], "--vocab: is for new models"),
    (["--init", "d6", "--steps", 0, "--prompt", "To be", "--vocab", 300], "--prompt"),
    (["-i", TEXT, "-x", 1, "-o", "*" * 5000], "--out-dir (-o): got 5000 bytes, expected DIR of 1 to 4000 bytes"),
    ([*RUN, "-j", "x" * 4000], "x" * 200),  # the option allows what the system may not
    ([*RUN, "-o", "/proc/" + "x/" * 1990], "/proc"),
), ids=map(str, range(21)))
def test_refusals(words, says):
    """One of each kind: test_args.c has every option and value."""
    assert len(refused(*words, says=[says])) < 5000
    assert not os.path.exists("x")


def test_missing_values():
    for name, aliases, has_value, gpu_only in OPTIONS:
        if has_value and not gpu_only:
            refused(f"-{aliases[0]}" if aliases else f"--{name}", says=[f"--{name}", "value missing, expected"])


def test_gpu_options():
    for name, aliases, has_value, gpu_only in OPTIONS:
        if gpu_only:
            typed = f"-{aliases[-1]}" if aliases else f"--{name}"
            refused(*RUN, typed, 1, says=[f"--{name}", "is an option of the GPU trainer (train_gpt2cu)"])
    assert sum(gpu_only for *_, gpu_only in OPTIONS) >= 16  # the table has been understood


def test_llmc_command_line():
    """The flags of an llm.c script, as they are, for a CPU."""
    data = shard("llmc_train_000001.bin", random_tokens(3000, 257))
    shard("llmc_val_000000.bin", random_tokens(300, 257))
    folder = new_folder("llmc")
    out = ran("-i", path("llmc_train_*.bin"), "-j", path("llmc_val_*.bin"), "-o", folder, "-e", model("llmc.bin"), "-v",
              "5", "-s", "10", "-g", "8", "-h", "0", "-b", "2", "-t", "16", "-d", "64", "-r", "0", "-c", "0.1", "-l",
              "0.0006", "-q", "0.0", "-u", "2", "-n", "5", "-y", "0", "-x", "10", "-a", "0", "-k", "cosine", "-sl", "0",
              "-sg", "0", "-nk", "1", "-nm", "5", "-m", "3")
    assert len(losses(out)) == 10 and len(
        val_losses(out)) == 3 and checkpoints(folder) == [5, 10] and data in path("llmc_train_000001.bin")
    assert "64 tokens a step" in out and "2 micro-batches" in out and "warm-up 2" in out


def test_forms_of_a_value():
    """--name value, --name=value and -alias value are the same; equal numbers are, however written."""
    hashes = {
        weights_hash(ran("-i", TEXT, *MODEL, *QUIET, "-x", 2, *form))
        for form in (["--seq-len", "16", "--batch-size", "2", "--lr", "6e-4"],
                     ["--seq-len=16", "--batch-size=2", "--lr=0.0006"], ["-t", "16", "-b", "2", "-l", "0.00060"],
                     ["-t=16", "-b=2", "-l", "6E-4"])
    }
    assert len(hashes) == 1, hashes


def test_deep_folder():
    deep = "/".join([FOLDER, "deep"] + ["d" * 200] * 8)
    ran(*RUN, *QUIET, "-x", 1, "-o", deep)
    assert checkpoints(deep) == [1]


def test_every_zero_steps():
    """An every-N option of 0 means never."""
    folder = new_folder("never")
    out = ran(*RUN, "-x", 4, "-v", 0, "-s", 0, "-n", 0, "-o", folder)
    assert val_losses(out) == [] and "sample" not in out and checkpoints(folder) == [4]
    out = ran(*RUN, "-x", 4, "-v", 2, "-s", 3, "-g", 2, "-n", 1, "-o", new_folder("often"))
    assert len(val_losses(out)) == 3 and re.findall(r"sample after (\d+) steps", out) == ["3", "4"]
    assert checkpoints(path("often")) == [1, 2, 3, 4]


# ---- The plan ----

PHASES = ["forward", "lm_head", "backward mlp", "backward attention", "update", "generate"]
TYPES = {"f32": 4, "i32": 4, "f64": 8}
CATEGORIES = ["parameter", "gradient", "optimizer", "activation", "workspace", "data"]


def plan_of(*arguments, **keywords):
    """The rows of a plan (name, bytes, offset, category, first and last phase), and its total."""
    out = ran(*arguments, "--plan", **keywords)
    rows = []
    for line in out[out.index("buffer "):].splitlines()[1:-1]:
        match = re.fullmatch(r"(\w+) +\(([\d, ]+)\) +(f32|i32|f64) +(\d+) +(\d+)  (\w+) +([a-z_ .]+)", line)
        assert match, line
        name, shape, kind, size, offset, category, life = match.groups()
        count = 1
        for dimension in shape.split(", "):
            count *= int(dimension)
        assert count * TYPES[kind] == int(size), line
        first, last = (PHASES.index(phase) for phase in (life.split("..") * 2)[:2])
        assert first <= last and category in CATEGORIES, line
        rows.append((name, int(size), int(offset), category, first, last))
    total, shown = re.fullmatch(r"total (\d+) bytes \(([\d.]+ \w+)\) in one allocation; [\d.]+ \w+ without sharing .*",
                                out.splitlines()[-1]).groups()
    assert f"memory      {shown}, planned" in out, shown
    return rows, int(total)


def check_plan(rows, total):
    size = lambda row: (row[1] + 255) // 256 * 256
    assert total == max(row[2] + size(row) for row in rows)
    assert len({row[0] for row in rows}) == len(rows), "a name stands for two buffers"
    for i, a in enumerate(rows):
        assert a[2] % 256 == 0, a
        for b in rows[:i]:
            meet = a[4] <= b[5] and b[4] <= a[5]
            assert not meet or a[2] + size(a) <= b[2] or b[2] + size(b) <= a[2], f"{a} lies over {b}"


def test_plan_is_consistent():
    """Bytes follow from shape and type, what lives at the same time does not overlap, the total is the end."""
    name = model("planned.bin")
    text, still = f"-i {TEXT} ", f"-e {name} -x 0 "
    for arguments in ("-e gpt3:c768 -b 1 -t 2048 -x 9", text, text + "-e d12 -b 4 -t 64", still, still + f"-j {TEXT}",
                      text + " ".join(TINY) + " -d 320", text + "-b 3 -t 7 -r 2 --vocab 999", text + "-r 3 -b 1"):
        check_plan(*plan_of(*arguments.split()))


def test_plan_with_recompute():
    """Each level of --recompute plans less than the one before."""
    for size in ("-e d12 -b 8 -t 256", "--layers 5 --channels 48 --heads 3 -b 16 -t 64"):
        totals = []
        for level in range(4):
            rows, total = plan_of("-i", TEXT, *size.split(), "-r", level)
            check_plan(rows, total)
            totals.append(total)
        assert totals == sorted(totals, reverse=True) and len(set(totals)) == 4, totals


def test_plan_allocates_nothing():
    """A model that no machine holds is planned in little memory; to train it is refused by its size."""
    if not MEMORY_LIMITS:
        pytest.skip("the memory of this program cannot be limited")
    for size, least in (("d84", 2e11), ("gpt3:c12288", 2.7e12)):
        rows, total = plan_of("-i", TEXT, "-e", size, "-t", 1024, "-b", 64, "-x", 9, preexec_fn=limit_memory(1 << 28))
        check_plan(rows, total)
        assert total > least, total
    folder = new_folder("too_large")
    says = ["memory plan", "TiB", "--batch-size", "--plan"]
    refused("-i", TEXT, "-e", "gpt3:c12288", "-x", 1, "-o", folder, says=says, no_files=folder)
    plan_of(*RUN, "-o", path("not_made"))
    assert not os.path.exists(path("not_made")), "a plan made a folder"
    run = [
        "-i", TEXT, "--layers", 2, "--heads", 4, "--channels", 512, "--context", 64, "-x", 1, *QUIET, "-b", 8,
        "--threads", 1
    ]
    _, total = plan_of(*run)
    refused(*run, says=["memory plan: cannot allocate", "--batch-size"], preexec_fn=limit_memory(total))
    ran(*run, preexec_fn=limit_memory(total + (32 << 20)))  # the program itself, its libraries and the text


# ---- Screen, log, curve ----


def on_a_terminal(arguments, columns, term="xterm"):
    with Terminal([PROGRAM, *arguments], columns=columns, term=term, env=ENVIRONMENT) as terminal:
        return terminal.finish()


STEP_LINE = (
    r"step +(\d+)/(\d+) \| loss \d+\.\d{6} \| norm \d+\.\d{4} \| lr \d\.\d\de[+-]\d\d \| \d+\.\d\d ms \| \d+ tok/s"
    r" \| \d+% of peak \| (\d+:\d\d|\d+:\d\d:\d\d|\d+d \d\dh) left")


# As many parts as fit, each whole.
BAR = (r"step +\d+/250 \[#*-*\] loss \d+\.\d{6}( \| norm \d+\.\d{4})?( \| lr \d\.\d\de[+-]\d\d)?( \| \d+\.\d\d ms)?"
       r"( \| \d+ tok/s)?( \| \d+% of peak)?( \| \d+:\d\d left)?")


def test_progress_bar():
    """On a terminal a bar is redrawn in place, never wider than the terminal; lines scroll above it."""
    run = [*RUN, "-x", 250, "-v", 100, "-s", 200, "-g", 5, "-o"]
    for columns in (20, 48, 80, 200):
        shown = on_a_terminal([*run, new_folder("terminal"), "--lr", 0.01], columns)
        bars = re.findall(r"\r(step[^\r\n]*)\x1b\[J\r", shown)
        assert len(bars) >= 5, shown
        for bar in bars:
            assert len(bar) < columns, (columns, bar)
            assert columns == 20 or re.fullmatch(BAR, bar), bar
        assert not re.search(r"step +\d+/250 \| loss", shown), "plain lines on a terminal"
        assert columns == 20 or re.match(r"step  250/250 \[#+\] loss \d", bars[-1] + " loss 0"), bars[-1]
        assert columns < 80 or " left" in bars[-1] and "tok/s" in bars[-1], bars[-1]
        assert len(re.findall(r"step +\d+/250 \| val loss \d+\.\d{6}\r\n", shown)) == 4, shown
        assert re.search(r"weights hash [0-9a-f]{16}\r\n\Z", shown)
    assert [
        line for line in on_a_terminal([*run, new_folder("terminal")], 80, term="dumb").splitlines() if "loss" in line
    ][1:4]


def test_plain_lines():
    """Elsewhere each step is a line, and nothing steers a terminal."""
    for out in (ran(*RUN, "-x", 12, "-v", 5, "-m", 1, "-s",
                    0), on_a_terminal([*RUN, "-x", 12, "-v", 5, "-m", 1, "-s", 0], 80, "dumb").replace("\r\n", "\n")):
        lines = [line for line in out.splitlines() if line.startswith("step ")]
        steps = [re.fullmatch(STEP_LINE, line) for line in lines]
        assert [int(step.group(1)) for step in steps if step] == list(range(1, 13)), lines
        assert [line for line, step in zip(lines, steps)
                if not step] == re.findall(r"step +(?:0|5|10|12)/12 \| val loss [\d.]+", out)
        assert "\r" not in out and "\x1b" not in out
        for row in ("model ", "parameters ", "tokenizer ", "train data ", "val data ", "batch ", "steps ", "optimizer ",
                    "memory ", "machine "):
            assert re.search(rf"^{row}", out, re.M), row


def test_main_log():
    """main.log has llm.c's format, a line per event, with the numbers that were shown."""
    folder = new_folder("log")
    out = ran(*RUN, "-x", 23, "-v", 10, "-s", 5, "-g", 2, "-n", 7, "-o", folder, "-l", 1e-3, "-u", 5, "-q", 0.1)
    lines = read("log/main.log").decode().splitlines()
    train = [re.fullmatch(r"s:(\d+) trl:(\d+\.\d{4}) lr:(\d\.\d{6}) norm:(\d+\.\d\d)", line) for line in lines]
    val = [re.fullmatch(r"s:(\d+) tel:(\d+\.\d{4})", line) for line in lines]
    assert all(a or b for a, b in zip(train, val)), lines
    assert [int(line.group(1)) for line in val if line] == [0, 10, 20, 23]
    assert [int(line.group(1)) for line in train if line] == list(range(23))
    assert [line.group(2) for line in train if line] == [f"{loss:.4f}" for loss in losses(out)]
    assert [line.group(2) for line in val if line] == [f"{loss:.4f}" for loss in val_losses(out)]
    rates = [line.group(3) for line in train if line]
    assert rates[:6] == ["0.000200", "0.000400", "0.000600", "0.000800", "0.001000", "0.001000"], rates
    assert rates[6:] == sorted(rates[6:], reverse=True) and 0.0001 <= float(rates[-1]) <= 0.00012, rates


def test_loss_curve():
    """loss.svg is well-formed and shows both curves, also of a run that was very short."""
    for steps, options in ((30, ["-v", 7]), (1, [])):
        folder = new_folder("curve")
        ran(*RUN, "-x", steps, "-s", 0, "-o", folder, *options)
        root = xml.etree.ElementTree.fromstring(read("curve/loss.svg"))
        space = "{http://www.w3.org/2000/svg}"
        assert root.tag == f"{space}svg" and root.get("viewBox")
        drawn = " ".join(part.get("class") or "" for part in root.iter())
        assert "train" in drawn and "val" in drawn, drawn
        words = [part.text for part in root.iter(f"{space}text")]
        assert any("train" in word for word in words) and any("val" in word for word in words), words
        for part in root.iter(f"{space}path"):
            assert re.fullmatch(r"[MHVLhzZ\d.\s-]+", part.get("d")), part.get("d")


# ---- Samples ----


def test_samples():
    """The same seed, the same sample; temperature 0 needs no seed; threads change nothing."""
    folder = new_folder("model")
    ran("-i", TEXT, *TINY, *QUIET, "-x", 60, "--lr", 0.01, "-o", folder)
    base = ["--init", folder, "--steps", 0, "--prompt", "the cat"]
    for count in (1, 16, 17, 100):  # the context is 16
        for options in ([], ["--temperature", 0], ["--top-k", 3], ["--top-p", 0.5, "--seed", 7]):
            text = sample_of(ran(*base, "-g", count, *options))
            assert text.startswith("the cat") and len(text) == 7 + count or "<|endoftext|>" in text, (count, text)
            if count in (16, 100):
                assert text == sample_of(ran(*base, "-g", count, *options, "--threads", 2)), options
    greedy = sample_of(ran(*base, "--temperature", 0))
    assert greedy == sample_of(ran(*base, "--temperature", 0, "--seed", 5)) == sample_of(ran(*base, "--top-k", 1))
    assert greedy == sample_of(ran(*base, "--top-p", 0))
    assert len({sample_of(ran(*base, "--seed", seed)) for seed in range(3)}) == 3
    assert sample_of(ran(*base, "-g", 64, "-t", 8)).startswith("the cat")
    saved = os.path.join(folder, "model_00000060.bin")
    assert sample_of(ran("--init", saved, *base[2:], "--temperature", 0)) == greedy
    assert sample_of(ran(*base, "-g", 20))[:27] == sample_of(ran(*base, "-g", 40))[:27]


def test_prompts():
    """Any prompt: longer than the context, no ASCII, no text at all, characters that would steer a terminal."""
    name = model("prompt.bin")
    for prompt in ("x" * 100, "x" * 16, "Grüße, 世界 🌍", "line\nbreak", "'\"$&;|*"):
        text = sample_of(ran("--init", name, "-x", 0, "-g", 3, "--prompt", prompt))
        assert text.encode("latin-1").startswith(prompt.encode()), (prompt, text)
    text = sample_of(ran("--init", name, "-x", 0, "-g", 200, "--prompt", "\x1b[31mred\x07\r\x7f"))
    assert text.startswith("?[31mred???") and not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", text), text
    empty = ran("--init", name, "-x", 0, "-g", 8, "--prompt", "")
    assert sample_of(empty) == sample_of(ran("--init", name, "-x", 0, "-g", 8))
    refused("--init", name, "-x", 0, "--prompt", "x" * 65537, says=["--prompt", "65537 bytes", "65536"])
    sample_of(ran("--init", name, "-x", 0, "-g", 1, "--prompt", "x" * 65536))


def test_model_without_training():
    """--steps 0: evaluates, samples, exports; a new model of the seed's weights too."""
    name = model("still.bin")
    out = ran("--init", name, "-x", 0, "-j", TEXT, "-t", 16, "-g", 4)
    assert len(val_losses(out)) == 1 and "sample" in out
    assert val_losses(ran("--init", name, "-x", 0, "-j", TEXT, "-t", 16, "-s", 0)) == val_losses(out)
    assert len(sample_of(ran("--init", "d6", *MODEL, "--vocab", 257, "-x", 0, "-g", 6))) >= 6


# ---- The same result ----


def test_same_weights():
    """Threads, --recompute and sampling change no bit of the weights, nor does a second run."""
    base = [
        "-i", TEXT, "--layers", 3, "--heads", 3, "--channels", 24, "--context", 24, "-t", 21, "-b", 3, "-d", 126, "-x",
        5, "--lr", 0.01, "--weight-decay", 0.1, "--shuffle"
    ]
    hashes = [
        weights_hash(ran(*base, *options))
        for options in ([], [], ["--threads", 1], ["--threads", 2], ["--threads", 5], ["-r", 1], ["-r", 2], ["-r", 3],
                        ["-r", 3, "--threads", 2], ["-v", 0, "-s", 0], ["-v", 1, "-s", 1, "-g", 30],
                        ["-o", new_folder("same"), "-n", 1])
    ]
    assert len(set(hashes)) == 1, hashes
    for other in (["--seed", 1], ["--lr", 0.02], ["--beta1", 0.8], ["--grad-clip", 0.01], ["--warmup", 2]):
        arguments = [part for part in base if part not in ("--lr", 0.01)] if other[0] == "--lr" else base
        assert weights_hash(ran(*arguments, *other)) != hashes[0], other


def test_overfitting():
    """One batch again and again: its loss comes near 0."""
    out = ran("-i", TEXT, *TINY, *QUIET, "--overfit", "-x", 300, "--lr", 0.03, "--schedule", "linear", "-q", 0)
    assert losses(out)[0] > 5 and losses(out)[-1] < 0.01, losses(out)[-1]
