"""The learning rate as a function of the step (llmc/run/schedulers.h)."""
import math

# Each --schedule's way from the peak (1) to the final rate (0), after a part x of the decay.
SHAPES = {"cosine": lambda x: 0.5 * (1 + math.cos(math.pi * x)), "linear": lambda x: 1 - x, "constant": lambda x: 1,
          "wsd": lambda x: 1 - math.sqrt(x)}
PARTS = {"wsd": 5}  # the rate falls in the last fifth of the steps, elsewhere from the warm-up on


def falls(schedule):
    return SHAPES[schedule](1) < 1


def learning_rate(step, peak, warmup, total, final_fraction, schedule):
    """Linear warm-up to peak, then down to peak * final_fraction at step total."""
    if step < warmup:
        return peak * ((step + 1) / warmup)
    start = max(warmup, total - -(-total // PARTS.get(schedule, 1)))
    x = 1.0 if step >= total else max(step - start, 0) / (total - start)
    return peak * (final_fraction + (1 - final_fraction) * SHAPES[schedule](x))


def describe(o, peak):
    """The schedule of a run with these options: "0.0003, cosine to 3e-05 after 100 steps of warm-up"."""
    end = f" to {peak * o.final_lr_frac:g}" if falls(o.schedule) else ""
    warmup = f" after {o.warmup} step{'s' * (o.warmup != 1)} of warm-up" if o.warmup else ""
    return f"{peak:g}, {o.schedule}{end}{warmup}"
