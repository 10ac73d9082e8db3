"""Prints the two tables of doc/several_gpus.md: python3 dev/test/programs/ranks_table.py losses|faults

losses: 20 steps with every number of ranks, stage and length of accumulation of test_gpu_ranks.py, in bf16 and fp32.
faults: its tests of faults, which note how each fault ends.
"""
import argparse
import inspect
import re
import socket
import sys

import pytest

import cli

STEPS = 20


def results(tests, program):
    """For each number of ranks and accumulation: the stages that gave the same bits, losses and hash of the weights."""
    found = {}
    limit = tests.limits(tests.is_bf16(program))
    outs = tests.check_matrix(tests.matrix_cases(), STEPS, program, limit)
    for (count, accumulation, stage), out in outs.items():
        key = count, accumulation, cli.weights_hash(out)
        found.setdefault(key, ([], cli.losses(out)))[0].append(stage)
    first = next(iter(found.values()))[1]
    return {(count, accumulation, tuple(stages)): (losses, weights, max(abs(a - b) / a for a, b in zip(first, losses)))
            for (count, accumulation, weights), (stages, losses) in found.items()}


def print_losses(tests):
    tables = [results(tests, program) for program in (tests.PROGRAM, tests.FP32)]
    print("| ranks | micro-batches | `--zero-stage` |" + "".join(
        f" {name}: loss of step {STEPS} | largest difference | weights hash |" for name in ("bf16", "fp32")))
    print("|---|---|---|---|---|---|---|---|---|")
    for count, accumulation, stages in tables[0]:
        row = f"| {count} | {accumulation} | {', '.join(map(str, stages)) if count > 1 else 'any'} |"
        for table in tables:
            losses, weights, difference = table[count, accumulation, stages]
            row += f" {losses[-1]:.6f} | {difference:.1e} | `{weights}` |"
        print(row.replace("0.0e+00", "0"), flush=True)


def plain(message):
    """Without what is only this machine's: its name, its folders, numbers of processes."""
    message = message.replace(cli.FOLDER + "/", "").replace(socket.gethostname().split(".")[0], "host")
    message = re.sub(r"ranks_\d+\.start", "start", message)
    return re.sub(r"127\.0\.0\.1:\d+", "ADDRESS:PORT", re.sub(r"pid \d+", "pid N", message)).replace("|", "\\|")


def print_faults(tests):
    for name, test in vars(tests).items():
        if name.startswith("test_") and "record(" in inspect.getsource(test):
            try:
                test()
            except pytest.skip.Exception as skip:
                print(f"{name}: left out: {skip}", file=sys.stderr)
    print("| fault | all have ended after | what they print |")
    print("|---|---|---|")
    for fault, seconds, message, end in tests.RECORDS:
        after = f"{seconds:.1f} s" if seconds >= 0.1 else "at once"
        print(f"| {fault} | {after}{', ' + end if end != 'status 1' else ''} | {plain(message)} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=("losses", "faults"))
    wanted = parser.parse_args().table
    import test_gpu_ranks  # needs the trainers that it runs
    (print_losses if wanted == "losses" else print_faults)(test_gpu_ranks)
