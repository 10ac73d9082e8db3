"""Muon's numbers (llmc/model/muon.h): all of it that needs no PyTorch."""
import math

from dev.twin import schedule

# NS5: five rounds of X = A X + (B G + C G G) X, with G = X X^T.
ROUNDS, A, B, C = 5, 3.4445, -4.7750, 2.0315
EPSILON = 1e-7  # the least norm that a matrix is divided by
MOMENTUM = 0.95
FIRST_MOMENTUM = 0.85  # where the momentum's warm-up begins


def scale(kind, rows, cols):
    """The factor of the update of a matrix (rows, cols)."""
    return 0.2 * math.sqrt(max(rows, cols)) if kind == "rms" else math.sqrt(max(1, rows / cols))


def momentum(last, warmup, step):
    """It rises in a straight line over `warmup` steps."""
    first = min(last, FIRST_MOMENTUM)
    return last if step >= warmup else first + (last - first) * step / warmup


def describe(o):
    """What the summary of a run says."""
    return (f"Muon for the matrices of the blocks, learning rate {schedule.describe(o, o.muon_lr)}, "
            f"momentum {MOMENTUM:g}, scale {o.muon_scale}")
