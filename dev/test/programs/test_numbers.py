"""Numbers that a training state brings, from somebody who can compute its checksums: refused in one line, or harmless.

What a reader does with a number by itself: test_checkpoint.c, test_dataloader.c, test_outlier.c.
The headers of other files: test_faults.py and the readers' own tests.
"""
import math

import pytest

from cli import QUIET, TINY, losses, new_folder, path, random_tokens, ran, refused, shard, stopped_after
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
