"""The command line as a user meets it, and what a run shows: help, refusals, the memory plan, the screen, the log,
samples."""
import os
import re

import pytest

import cli
from cli import (ENVIRONMENT, FOLDER, MEMORY_LIMITS, PROGRAM, QUIET, TINY, check_memory_sum, checkpoints, losses,
                 model, new_folder, path, ran, random_tokens, read, refused, sample_of, shard, text_file,
                 val_losses)
from tools import Terminal, limit_memory

TEXT = text_file()
RUN = ["-i", TEXT, *TINY]

# ---- The command line: test_args.c has every option, value, form and refusal that needs no file ----


def test_help_and_version():
    """At once, whatever else is asked."""
    assert "\nExample: train_gpt2 --train-data book.txt" in ran("--help") == ran("-h", "--seed") == ran(*RUN, "--help")
    assert "cosine|linear" in ran(*RUN, "--help", "all")
    assert re.fullmatch(r"train_gpt2 \d+\.\d+\.\d+\n", ran("--version", "--nonsense"))


@pytest.mark.parametrize("words, says", (
    (["-i", TEXT, "--heads", 7, "--channels", 16], "--channels and --heads: 16 channels, 7 heads of size 2, "),
    ([*RUN, "--vocab", 256], "--vocab: 256 is less than the 257 tokens of byte; leave it out"),
    (["-i", TEXT, "-e", model("made.bin"), "--layers", 16], "--layers: is for new models"),
    ([*RUN, "-j", "x" * 4000], "x" * 200),  # the option allows what the system may not
    ([*RUN, "-o", "/proc/" + "x/" * 1990], "/proc")), ids=map(str, range(5)))
def test_refusals(words, says):
    assert len(refused(*words, cwd=FOLDER, says=[says])) < 5000


def test_copies_under_mpirun():
    """This trainer knows no ranks: mpirun -np 2 would train the same run twice. One process speaks for all."""
    def launched(rank, size):
        return dict(OMPI_COMM_WORLD_RANK=rank, OMPI_COMM_WORLD_SIZE=size, OMPI_COMM_WORLD_LOCAL_RANK=rank)

    refused(*RUN, says=["mpirun has started 2 processes", "runs as one", "train_gpt2cu"], **launched("0", "2"))
    assert "weights hash" in ran(*RUN, *QUIET, "--steps", 1, **launched("0", "1"))
    assert ran("--help", **launched("0", "2")) == ran("--help") and ran("--help", **launched("1", "2")) == ""


def test_sequences_of_a_validation():
    """--val-sequences counts sequences, whatever the batches; they are spread evenly. -m counts batches, the first
    ones, as in llm.c. A run of 0 steps takes all, in batches of its own."""
    tokens, config = random_tokens(16 * 99 + 1, 257), cli.config()
    params = cli.make_params(config)
    data, name = shard("validated_val.bin", tokens), model("validated.bin", config, params)
    run = ["-j", data, "--init", name, "-t", 16, "-x", 0, "-s", 0]

    def val_with(*options):
        out = ran(*run, *options)
        return (*val_losses(out), re.search(r"\((\d+ of 99) sequences\)", out)[1])

    ten, eighty, all_99 = (val_with("-b", 64, "--val-sequences", count) for count in (10, 80, 10**9))
    first_ten = val_with("-b", 5, "-m", 2)
    for found, numbers in ((ten, (99 * i // 10 for i in range(10))), (first_ten, range(10))):
        rows = [(tokens[at:at + 16], tokens[at + 1:at + 17]) for at in (16 * i for i in numbers)]
        want = sum(sum(cli.reference_losses(config, params, *row)) for row in rows) / 160
        assert abs(found[0] - want) <= 1e-5, (found, want)
    assert len({ten[0], eighty[0], all_99[0], first_ten[0]}) == 4
    assert (ten[1], eighty[1], all_99[1]) == ("10 of 99", "80 of 99", "99 of 99")
    for batch in (1, 3, 8):
        assert val_with("-b", batch, "--val-sequences", 10) == ten and val_with("-b", batch) == all_99, batch
    assert val_with("-m", 0) == val_with("--val-sequences", 0) == val_with() == all_99
    assert val_with("-b", 2, "-m", 5) == first_ten
    assert "(80 of 99 sequences)" in ran(*run[:4], "-t", 16, "-i", data, "-x", 1, "-s", 0)


# ---- The plan ----

def test_plan_is_consistent():
    """The total is the end, and what memory says. (test_model.c: the rows, and that nothing overlaps that meets.)"""
    text, still = f"-i {TEXT} ", f"-e {model('planned.bin')} -x 0 "
    for arguments in ("-e gpt3:c768 -b 1 -t 2048 -x 9", text, still, still + f"-j {TEXT}",
                      text + " ".join(TINY) + " -d 320", text + "-b 3 -t 7 -r 2 --vocab 999"):
        out = ran(*arguments.split(), "--plan", "all")
        table, total, shown = re.search(r"^buffer .*?\n(.*?)^total (\d+) bytes \((.*?)\) in one allocation; ", out,
                                        re.M | re.S).groups()
        assert f"memory      {shown}, planned" in out, shown
        check_memory_sum(out)
        rows = re.findall(r"^(\w+) +\([\d, ]+\) +\w+ +(\d+) +\S+ \w+ +(\d+)  \w", table, re.M)
        assert len(dict(row[:2] for row in rows)) == len(table.splitlines()), "a name stands for two buffers"
        assert int(total) == max(int(offset) + -(-int(size) // 256) * 256 for _, size, offset in rows), arguments


def test_context_of_a_new_model():
    """It is --seq-len, unless --context or a run that only samples asks for more."""
    plan = ["-e", "d6", "--vocab", 257, "--plan"]
    for more, context in ((["-t", 32], 32), ([], 64), (["-t", 2048], 2048), (["-t", 32, "--context", 48], 48),
                          (["--steps", 0], 1024)):
        assert f" context {context}, " in ran(*plan, *more), more
    refused(*plan, "-t", 49, "--context", 48, says=["the model knows 48 positions"])


def test_plan_allocates_nothing():
    """A model that no machine holds is planned in little memory; to train it is refused by its size. (test_model.c: a
    run allocates what is planned.)"""
    if not MEMORY_LIMITS:
        pytest.skip("the memory of this program cannot be limited")
    run = ["-i", TEXT, "-e", "gpt3:c12288", "-o", path("too_large")]
    assert "\nfits        no, " in ran(*run, "-x", 9, "--plan", preexec_fn=limit_memory(1 << 28))
    assert not os.path.exists(path("too_large"))
    refused(*run, "-x", 1, says=["memory plan", "TiB", "--batch-size", "--plan"], no_files=path("too_large"),
            out_says=["\nparameters  17", " TiB, planned\n"])


# ---- Screen and log: test_logger.c has their texts, widths and damages ----


def test_a_terminal():
    """A step takes the place of the one before. Other lines and the last step stay. mpirun gives its processes
    terminals wherever their output goes: there each step is a line."""
    mpirun = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}
    for launched, counts in (({}, (49, 1)), (mpirun, (0, 50))):
        with Terminal([PROGRAM, *RUN, "-x", 50, "-v", 20, "-s", 0], env={**ENVIRONMENT, **launched}) as terminal:
            shown = terminal.finish().replace("\r\n", "\n")
        steps = re.findall(r"\rstep[^\r\n\x1b]*\x1b\[J", shown)
        lines = re.findall(r"step +\d+/50 \| loss [^\r\n\x1b]*\n", shown)
        assert (len(steps), len(lines)) == counts and (steps or not re.search(r"[\r\x1b]", shown)), shown
        assert len(re.findall(r"step +\d+/50 \| val loss \d+\.\d{6} \(24 of 24 sequences\)\n", shown)) == 4, shown


def test_log():
    """Samples, validations and checkpoints come after the steps that options say. The logs that are named are there.
    main.log has the numbers that were shown."""
    folder = new_folder("log")
    out = ran(*RUN, "-x", 23, "-v", 10, "-s", 5, "-g", 2, "-n", 7, "-o", folder, "-l", 1e-3, "-u", 5, "-q", 0.1)
    assert re.findall(r"sample after (\d+) steps", out) == ["5", "10", "15", "20", "23"]
    assert re.findall(r"^step +(\d+)/23 \| val loss", out, re.M) == ["0", "10", "20", "23"]
    assert checkpoints(folder) == [7, 14, 21, 23] and "cosine to 0.0001 after 5 steps of warm-up" in out, out
    named = re.search(rf"^output      {folder}: checkpoints, (.*)$", out, re.M)[1].split(", ")
    assert sorted(named) == sorted(name for name in os.listdir(folder) if not re.search(r"^\.|\.bin$", name)), named
    log = read("log/main.log").decode()
    assert re.findall(r"^s:(\d+) tel:(.*)$", log, re.M) == [
        (step, f"{loss:.4f}") for step, loss in zip(("0", "10", "20", "23"), val_losses(out))]
    train = re.findall(r"^s:(\d+) trl:(\S+) lr:(\S+) norm:\d+\.\d\d$", log, re.M)
    assert [line[:2] for line in train] == [(str(step), f"{loss:.4f}") for step, loss in enumerate(losses(out))]
    rates = [float(rate) for *_, rate in train]
    assert rates[:6] == [2e-4, 4e-4, 6e-4, 8e-4, 1e-3, 1e-3] and 1e-4 <= rates[-1] <= 1.2e-4, rates


# ---- Samples: test_sampler.c has the choice of a token ----


def test_samples():
    """The same seed, the same sample, longer than the context of 16 too; temperature 0 needs no seed; threads change
    nothing."""
    folder = new_folder("model")
    ran("-i", TEXT, *TINY, *QUIET, "-x", 60, "--lr", 0.01, "-q", 1, "-o", folder)
    base = ["--init", folder, "--steps", 0, "--prompt", "the cat"]

    def sample(*options):
        return sample_of(ran(*base, *options))

    for options in (["-g", 1], ["-g", 17], ["-g", 100], ["-g", 100, "--top-p", 0.5, "--seed", 7]):
        text = sample(*options)
        assert text.startswith("the cat") and len(text) == 7 + options[1] or "<|endoftext|>" in text, (options, text)
        assert text == sample(*options, "--threads", 2), options
    greedy = sample("--temperature", 0)
    assert greedy == sample("--temperature", 0, "--seed", 5) == sample("--top-p", 0) != sample("--seed", 5)
    # Without a prompt a sample begins a line.
    assert "\n" + sample_of(ran(*base[:-2], "-g", 40)) == sample_of(ran(*base[:-1], "\n", "-g", 40))
    for prompt in ("x" * 65536, "Grüße, 世界 🌍", "line\nbreak", ""):
        text = sample_of(ran(*base[:-1], prompt, "-g", 3))
        assert text.encode("latin-1").startswith(prompt.encode()), (prompt, text)


def test_samples_in_the_whole_context():
    """A new model has the context of its sequences, and a sample uses all of it, from a run and from a file."""
    folder, base = new_folder("whole_context"), ["--steps", 0, "--prompt", "the cat", "-g", 60]
    model_of_16 = ["--layers", 1, "--heads", 2, "--channels", 16, "-t", 16]
    ran("-i", TEXT, *QUIET, "-x", 20, "--lr", 0.01, "-o", folder, *model_of_16)
    samples = {T: sample_of(ran("--init", folder, *base, "-t", T)) for T in (8, 16)}
    assert samples[8] != samples[16], samples
    for init in (folder, f"{folder}/model_00000020.bin"):
        assert sample_of(ran("--init", init, *base)) == samples[16], init
    refused("--init", folder, *base, "-t", 32, says=["--seq-len (-t)", "16"])


def test_overfitting():
    """One batch again and again: its loss comes near 0."""
    out = ran("-i", TEXT, *TINY, *QUIET, "--overfit", "-x", 300, "--lr", 0.03, "--schedule", "linear", "-q", 0)
    assert losses(out)[0] > 5 and losses(out)[-1] < 0.01, losses(out)[-1]
