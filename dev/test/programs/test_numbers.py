"""Numbers that a training state brings, from somebody who can compute its checksums: refused in one line, or harmless.

What a reader does with a number by itself: test_checkpoint.c, test_dataloader.c, test_outlier.c.
The headers of other files: test_faults.py and the readers' own tests.
"""
import math
import signal
import struct

import pytest

from cli import (QUIET, TINY, checkpoints, finish, losses, new_folder, path, random_tokens, ran, refused, shard, start,
                 stopped_after)
from formats import read_state, rewrite_state

STATE = "stopped/state_00000002.bin"
MOST = 1 << 53
# What no number of a training state is.
NEVER = (2**63 - 1, -2**63, MOST + 1, -2, "1e308", "nan", "inf", "9" * 5000)
# Each number by which a run goes on: whatever else is refused, and what is not.
FACTS = (("next_sequence", (-1, MOST // 16 + 1, MOST), (0, 2**31, MOST // 16)),
         ("updates", (-1, 3, 2**31), (0, 2)),
         ("step", (0, 1, 3, 2**31, MOST), (2, )),
         ("--seq-len", (-1, 0, 17, 2**20, 2**31), (1, 8, 16)))
OTHERS = {"model_header"}


def setup_module():
    shard("tokens.bin", random_tokens(16 * 20 + 1, 257))
    ran(*words(new_folder("whole")), "-x", 2)


def words(folder):
    return ["-i", path("tokens.bin"), *TINY, "--vocab", 257, *QUIET, "--lr", 1e-3, "--skip-loss-z", 4, "-o", folder]


def resume(facts=(), sections=()):
    """The words that go on with a run whose state has been changed."""
    folder = stopped_after(2, path("whole"))
    rewrite_state(STATE, facts, sections)
    return [*words(folder), "--shuffle", "--resume", "--allow-changes", "-x", 4]


def goes_on(**changes):
    out = ran(*resume(**changes))
    assert len(losses(out)) == 2 and all(map(math.isfinite, losses(out))), out


@pytest.mark.parametrize("fact, bad, good", FACTS)
def test_facts(fact, bad, good):
    for value in (*NEVER, *bad):
        refused(*resume({fact: value}), says=[f"{STATE}: the training state says {fact}",
                                              "none of its checkpoints can be read"])
    for value in good:
        goes_on(facts={fact: value})


def test_texts():
    """Facts that are only compared: a run goes on with whatever they say. Another number would fail here, too."""
    stopped_after(2, path("whole"))
    texts = set(read_state(STATE)[0]) - {fact for fact, *_ in FACTS} - OTHERS
    for value in NEVER[:-1]:
        goes_on(facts=dict.fromkeys(texts, value))
    for value in NEVER:
        refused(*resume({"model_header": value}), says=["none of its checkpoints can be read"])


def test_sections():
    """The statistics of the losses, and the moments of AdamW: not finite, or as no run has them."""
    sections = read_state("whole/state_00000002.bin")[1]
    for count, rejected, value in ((2**64 - 1, 0, 1.0), (128, 2**63 - 1, 1.0), (128, 2**63, 1.0), (128, 0, math.nan),
                                   (128, 0, math.inf), (128, 0, 1e308)):
        data = struct.pack("<2Q128d", count, rejected, *[value] * 128)
        for name in ("loss_outliers", "norm_outliers"):
            refused(*resume(sections={name: data}), says=[f'{STATE}: section "{name}" holds numbers that no run'])
    for name, value in (("adam_m", math.nan), ("adam_m", -math.inf), ("adam_v", math.inf), ("adam_v", -1.0)):
        data = struct.pack("<f", value) + sections[name][4:]
        refused(*resume(sections={name: data}), says=[f"{STATE}: {name} holds", "at element 0"])


def test_signal_far_in_the_data():
    """A run at the last sequence that there can be, shuffled, ends when it is told to."""
    process = start(*resume({"next_sequence": MOST // 16})[:-1], 10**6)
    for line in process.stdout:
        if line.startswith(b"step "):
            break
    process.send_signal(signal.SIGTERM)
    out, _ = finish(process)
    assert "stopped by a signal after" in out and len(checkpoints(path("stopped"))) == 2, out


def test_names_on_one_line():
    """A data path with a newline stands on one line of the training state, and the run goes on."""
    run = ["-i", shard("two\nlines.bin", random_tokens(100, 257)), *TINY, "--vocab", 257, *QUIET, "-x", 2, "-o",
           new_folder("lines")]
    ran(*run)
    assert read_state("lines/state_00000002.bin")[0]["--train-data"].endswith("two\\x0alines.bin")
    ran(*run, "--resume")
