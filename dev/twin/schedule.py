"""The learning rate as a function of the step (llmc/optim/schedulers.h)."""
import math


def learning_rate(step, peak, warmup, total, final_fraction, schedule="cosine"):
    """Linear warm-up to peak, then down to peak * final_fraction at step total."""
    if step < warmup:
        return peak * ((step + 1) / warmup)
    start = max(warmup, total - -(-total // 5)) if schedule == "wsd" else warmup
    x = 1.0 if step >= total else max(step - start, 0) / (total - start)
    shape = {"cosine": 0.5 * (1 + math.cos(math.pi * x)), "linear": 1 - x, "wsd": 1 - math.sqrt(x), "constant": 1}
    return peak * (final_fraction + (1 - final_fraction) * shape[schedule])
