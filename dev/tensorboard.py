#!/usr/bin/env python3
"""Writes what training runs have logged for TensorBoard: losses, accuracies, rate, norm, speed.

    dev/tensorboard.py log124M other           into tb/log124M and tb/other
    tensorboard --logdir tb

A run is its folder (--out-dir of the trainers, or a log folder of llm.c's) or a log file. Called again, the program
replaces a run's files. Needs the tensorboard package.
"""
import glob
import os
import sys

import guard
import run_logs

TAGS = {"loss/val": "val", "accuracy/hellaswag": "hellaswag", "accuracy/mmlu": "mmlu", "loss/train": "loss",
        "optimizer/learning_rate": "lr", "optimizer/gradient_norm": "norm", "speed/tokens_per_second": "tps"}


def main():
    parser = guard.Parser(__doc__, prog="tensorboard.py")
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a run's folder, or its main.log")
    parser.add_argument("--out", default="tb", metavar="DIR", help="the folder of a folder for each run (tb)")
    options = parser.parse_args()
    del sys.path[0]  # of this file, which has the package's name
    try:
        from tensorboard.summary import Writer
        for run, label in zip(map(run_logs.read_run, options.runs), run_logs.labels(options.runs)):
            folder = os.path.join(options.out, label)
            for old in glob.glob(os.path.join(glob.escape(folder), "events.out.tfevents.*")):
                os.remove(old)
            writer = Writer(folder)
            for tag, name in TAGS.items():
                for step, value in getattr(run, name).items():
                    writer.add_scalar(tag, value, step)
            writer.close()
    except ImportError as error:
        parser.error(f"needs the tensorboard package: python3 -m pip install tensorboard ({error})")
    except (run_logs.LogError, OSError) as error:
        parser.error(str(error))
    print(f"To see them: tensorboard --logdir {guard.printable(options.out)}")


if __name__ == "__main__":
    main()
