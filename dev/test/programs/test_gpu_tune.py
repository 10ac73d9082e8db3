"""--matmul-tune end to end: the same weights with and without it, and what becomes of the file of choices.

./train_gpt2emu (make train_gpt2emu; TRAIN_GPT2CU names another). The emulator has several algorithms for each problem
only when EMU_CUBLASLT_ALGOS says so; on a machine with a GPU these tests are left out.
"""
import os
import re

import pytest

import cli
import gpu_program
import ranks
from cli import QUIET, Trainer, losses, stopped_after, text_file, weights_hash

gpu_program.only_emulated()
# B*T = 80 rows and 16 channels: sums of at least 16 terms, so that another order has other bits.
SHAPE = ["-i", text_file(), "--layers", 1, "--heads", 2, "--channels", 16, "--context", 16, "-t", 16, "-x", 2, "-l",
         "1e-2", *QUIET]
RUN = [*SHAPE, "-b", 5]
PROBLEMS = 15  # of a run: forward, weight and input of qkv, attproj, fc, fcproj and the head
CACHE = cli.path("cache")
GPU = Trainer(gpu_program.PROGRAM, gpu_program.NAME, EMU_CHECK="0", EMU_THREADS="1", EMU_CUBLASLT_ALGOS="8",
              XDG_CACHE_HOME=CACHE)


def tuned(*arguments, run=RUN, **environment):
    return GPU.ran(*run, *arguments, **environment)


def counts(out):
    """How many problems were timed, and how many known, by what was printed."""
    line = re.search(r"^matmul      (\d+) shapes(.*); (\d+) faster than by cuBLASLt's first choice$", out, re.M)
    assert line, out
    shapes, how, faster = int(line[1]), line[2], int(line[3])
    assert faster == shapes == PROBLEMS, out
    timed, known = re.search(r"(?:, (\d+))? timed in [\d.]+ s", how), re.search(r"(?:, (\d+))? known from before", how)
    return int(timed[1] or shapes) if timed else 0, int(known[1] or shapes) if known else 0


def milliseconds(out):
    return [float(ms) for ms in re.findall(r"^step .*\| ([\d.]+) ms \|", out, re.M)]


def lines_of(path):
    with open(path) as file:
        return file.readlines()


def test_the_same_weights_sooner():
    """Without the option, and where there is one algorithm only, nothing is said, timed or kept."""
    plain = tuned("--matmul-tune", 0)
    single = tuned(EMU_CUBLASLT_ALGOS="1")
    assert "matmul  " not in plain + single and not os.path.exists(CACHE), (plain, single)
    out = tuned(EMU_CHECK="1")
    assert counts(out) == (PROBLEMS, 0), out
    assert weights_hash(out) == weights_hash(plain) == weights_hash(single), (out, plain)
    # The clock of events, on which the best algorithm takes half the time of the first.
    assert max(milliseconds(out)) < 0.7 * min(milliseconds(plain)), (out, plain)


def test_first_choice_that_leaves_out_terms():
    """It is noticed and replaced, tuned or not: the losses are those of a cuBLASLt without the fault, but for the order
    of sums where nothing is left out and the faulty choice stays."""
    line = r"matmul      cuBLASLt's first choice leaves out the last terms of the sum for (\d+) shapes, where another"
    whole = tuned("--matmul-tune", 0)
    assert "leaves out" not in whole, whole
    outs = [tuned("--matmul-tune", level, "--matmul-tune-file", cli.path("tail.txt"), EMU_CUBLASLT_FAULT="tail")
            if level else tuned("--matmul-tune", level, EMU_CUBLASLT_FAULT="tail") for level in (0, 1)]
    for out in outs:
        assert 10 <= int(re.search(line, out)[1]) <= PROBLEMS, out
        assert all(abs(a - b) <= 2**-8 * a for a, b in zip(losses(whole), losses(out))), (whole, out)
    assert weights_hash(outs[0]) == weights_hash(outs[1]), outs


def test_every_multiply_of_a_step():
    """In training nothing is multiplied that was not tuned: the heuristic is never asked again."""
    for options in (("-ge", 1), ("-ge", 2, "-r", 3), ("--fp8", )):
        keep = ["--matmul-tune-file", cli.path("".join(map(str, options)))]
        process = GPU.start(*RUN, *options, *keep, EMU_CUBLASLT_TRACE="1")
        asked = re.findall(r"asked for (\d+) algorithms: (.*)", cli.finish(process)[1])
        one, many = ([what for number, what in asked if number == wanted] for wanted in ("1", "16"))
        assert one == many and len(set(one)) == len(one) == PROBLEMS, (options, asked)


def test_reused():
    """Found by the second run, and by one with other shapes, which adds its own. A file that is something else is worth
    a line, and stays. (test_tune_file.c has all damages and other machines.)"""
    file = cli.path("choices.txt")
    first = tuned("--matmul-tune-file", file)
    assert counts(first) == (PROBLEMS, 0) and f"kept in {file}\n" in first, first
    lines = lines_of(file)
    assert len(lines) == 1 + PROBLEMS and lines[0].startswith("gpt2.c matmul choices 1 | "), lines
    again = tuned("--matmul-tune-file", file)
    assert counts(again) == (0, PROBLEMS) and "kept in" not in again and lines_of(file) == lines, again
    larger = tuned("--matmul-tune-file", file, run=[*SHAPE, "-b", 4])
    assert counts(larger) == (PROBLEMS, 0) and len(lines_of(file)) == 1 + 2 * PROBLEMS, larger
    poem = cli.write("poem.txt", b"Whose woods these are\n")
    out = tuned("--matmul-tune-file", poem)
    assert counts(out) == (PROBLEMS, 0) and f"{poem}: not a file of choices" in out, out
    assert cli.read("poem.txt") == b"Whose woods these are\n"
    assert weights_hash(first) == weights_hash(again) == weights_hash(out), (first, again, out)


def test_refusals():
    for option, run in ((["--matmul-tune", 0], RUN), (["--steps", 0], ["--init", "d6"])):
        GPU.refused(*run, *option, "--matmul-tune-file", "x",
                    says=["--matmul-tune-file: needs", f"{option[0]}", "other than 0"])


def test_remedies():
    """A multiply that fails says what to do: less memory, or cuBLASLt's own choice; so does a start that tries in vain
    whether all terms are added up. Multiples of 256 are not tried."""
    model = ["-i", text_file(), "--layers", 1, "--heads", 4, "--channels", 256, "--context", 16, "--vocab", 512]
    for batch, what in ((16, "failed: .*--matmul-tune 0"), (15, "adds up all terms")):
        process = GPU.start(*model, "-b", batch, "-x", 1, *QUIET, "--matmul-tune", 0, EMU_CUBLASLT_FAULT="execution")
        err = cli.finish(process, 1)[1]
        assert re.search(what, err) and "--batch-size" in err and len(err.splitlines()) == 1, err


def test_of_any_bits():
    """Level 2 takes the fastest algorithms, whatever their bits, and keeps to them: another start of the run takes what
    stands in its folder, and not what the clock would say now; with another micro-batch it adds to that."""
    few, many = cli.new_folder("few"), cli.new_folder("many")
    level = ["--matmul-tune", 2, "-n", 1, "--matmul-tune-file"]
    straight = tuned(*level, cli.path("few.txt"), "-o", few, EMU_CUBLASLT_ALGOS="2")
    other = tuned(*level, cli.path("many.txt"), "-o", many)
    assert "whatever their bits" in other and f"the run's own, in {many}/choices.txt" in other, other
    hashes = [weights_hash(out) for out in (straight, other, tuned("--matmul-tune", 0))]
    assert hashes[0] == hashes[2] != hashes[1], hashes
    folder = stopped_after(1, few)
    again = tuned("--matmul-tune", 2, "-n", 1, "-o", folder, "--resume")
    assert f"{PROBLEMS} shapes known from before" in again and weights_hash(again) == hashes[0], (again, straight)
    record = os.path.join(folder, "choices.txt")
    assert len(lines_of(record)) == 1 + PROBLEMS, record
    more = [*SHAPE, "-b", 1, "-d", 80]
    out = tuned("--matmul-tune", 2, "-n", 1, "-o", folder, "--resume", run=more)
    assert f"{PROBLEMS} shapes timed" in out and len(lines_of(record)) == 1 + 2 * PROBLEMS, out


def test_without_its_choices():
    """A resumed run of level 2 is refused where its choices are not to be had; so is one of another level."""
    def resumed(folder, level, *more):
        return [*RUN, "--matmul-tune", level, "-o", cli.path(folder), "--resume", *more]

    def refused(folder, level, what):
        GPU.refused(*resumed(folder, level), says=["--allow-changes", what])

    refused("many", 1, "--matmul-tune was 2, is 1")
    os.remove(cli.path("many/choices.txt"))
    refused("many", 2, "not there, or empty")
    words = resumed("many", 2, "--allow-changes")
    assert f"{PROBLEMS} shapes timed" in GPU.ran(*words) and os.path.exists(words[words.index("-o") + 1])
    one = cli.new_folder("one")
    tuned("-o", one)
    refused("one", 2, "--matmul-tune was 1, is 2")
    GPU.ran(*resumed("one", 0, "--allow-changes"))


@pytest.mark.long
def test_nowhere_to_keep_them():
    """Without a folder of its own a run of level 2 keeps its choices in the user's file, or there is no run."""
    for more, environment in ((["--matmul-tune-file", os.path.join(text_file(), "x")], {}),
                              ([], {"XDG_CACHE_HOME": "", "HOME": ""})):
        GPU.refused(*RUN, "--matmul-tune", 2, *more, says=["--matmul-tune 2: "], **environment)
        tuned("--matmul-tune", 2, *more, "-o", cli.new_folder("kept"), **environment)


@pytest.mark.long
def test_several_ranks_of_any_bits():
    """Rank 0 chooses for all: a rank that would choose otherwise computes as the others do."""
    hashes = []
    for i, (zero, one) in enumerate((("8", "8"), ("8", "2"), ("2", "2"))):
        only = {rank: {"environment": {"EMU_CUBLASLT_ALGOS": count, "XDG_CACHE_HOME": cli.path(f"ranks_cache_{i}")}}
                for rank, count in enumerate((zero, one))}
        out = ranks.ran(2, *RUN, "--matmul-tune", 2, "-o", cli.new_folder(f"ranks_of_{i}"), only=only)
        hashes.append(weights_hash(out))
    assert hashes[0] == hashes[1] != hashes[2], hashes


def test_several_ranks():
    """Each finds its own choices, and one writes the file."""
    file = cli.path("ranks.txt")
    hashes = []
    for how in (["--matmul-tune", 0], ["--matmul-tune-file", file, "-z", 3]):
        hashes.append(weights_hash(ranks.ran(2, *RUN, *how, EMU_CUBLASLT_ALGOS="8")))
    assert counts(tuned("--matmul-tune-file", file)) == (0, PROBLEMS)
    assert len(set(hashes)) == 1 and len(lines_of(file)) == 1 + PROBLEMS, (hashes, lines_of(file))
