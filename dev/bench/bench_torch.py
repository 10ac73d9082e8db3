#!/usr/bin/env python3
"""Times training steps of train_gpt2.py on a GPU, as fast as PyTorch does them without new kernels: torch.compile, bf16
autocast, fused AdamW, and whichever fused attention scaled_dot_product_attention chooses (flash or cuDNN).

    python3 dev/bench/bench_torch.py --train-data 'shards/*.bin' --init d12 --batch-size 64 --seq-len 1024 --steps 30

Takes the options of train_gpt2.py (--precision bf16: the arithmetic of ./train_gpt2cu). The first steps, which compile,
are left out: made in addition to --steps, and not shown. --device cpu: to try this program.
"""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
import train_gpt2  # noqa: E402: it lies in the folder that was just added

WARM_UP = 3  # steps: the first compiles, the second may compile again
DEFAULTS = {"--init": "d12", "--seq-len": "1024", "--batch-size": "16", "--steps": "30", "--val-every": "0"}
ON_GPU = {"--device": "cuda", "--precision": "autocast", "--compile": "1"}


class TimedRun(train_gpt2.Run):
    fuses_on_cpu = True

    def settle_batch(self):
        super().settle_batch()
        self.steps += WARM_UP

    def settle(self, done):
        if done["step"] >= WARM_UP:
            super().settle(done)
        elif done["step"] == WARM_UP - 1:
            self.clock.seconds(done["begin"], done["end"])
            self.restart_clock(WARM_UP)


def arguments_of(given):
    """The command line with our defaults for what it leaves open."""
    named = {argument.split("=")[0] for argument in given}
    defaults = dict(DEFAULTS) if "--device" in named else {**DEFAULTS, **ON_GPU}
    return [*given, *(word for name, value in defaults.items() if name not in named for word in (name, value))]


if __name__ == "__main__":
    train_gpt2.guard.screens("stdout", "stderr")
    train_gpt2.main(arguments_of(sys.argv[1:]), TimedRun, "bench_torch.py")
