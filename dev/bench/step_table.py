"""Two tables of a training step: its longest kernels and the gaps between them; and each kernel's time beside the one
that --plan predicts and beside its floor.

The step is the CSV file of trace_kernels.cpp. The plan is what the trainer prints with --plan and --gpu for this run:
each kernel's bytes, operations and predicted time. The floors come from the CSV file of bench_gpu: what this GPU's
memory and arithmetic reach.
"""
import collections
import csv
import re

SHOWN = 31  # kernels of a step that get a line of their own
Row = collections.namedtuple("Row", "name ms calls predicted gigabytes gigaflop")


def read_csv(path):
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def kernels_table(trace):
    """The lines of the first table. trace: the rows of the step's file, without its head."""
    lines = [f"{'ms/step':>8} {'%':>6} {'calls':>7} {'us each':>9} {'idle us':>9}  kernel"]
    kernels = []
    for name, calls, us, ms, percent, idle in trace:
        calls, us, ms, percent, idle = (float(x) for x in (calls, us, ms, percent, idle))
        if name.startswith("(gap"):
            lines.append(f"{ms:8.3f} {percent:5.1f}% {calls:7.1f} gaps of {us:.2f} us by the median, the largest of "
                         f"{idle:.1f} us")
        elif name.startswith("(two"):
            lines.append(f"{ms:8.3f} {percent:5.1f}% of it a second time, beside others")
        else:
            kernels.append((f"{ms:8.3f} {percent:5.1f}% {calls:7.1f} {us:9.2f} {idle:9.2f}  {name}", ms, percent))
    lines += [line for line, _, _ in kernels[:SHOWN]]
    rest = kernels[SHOWN:]
    if rest:
        ms, percent = sum(ms for _, ms, _ in rest), sum(percent for _, _, percent in rest)
        lines.append(f"{ms:8.3f} {percent:5.1f}% {'':>27}  {len(rest)} others")
    return lines


def row_of(kernel, names):
    """The plan's row that a kernel of the trace belongs to: the row with the longest name that begins the kernel's.
    A library's kernel does not tell its layer: all multiplies are one row, and all kernels of cuDNN another."""
    if re.search("fmha|flash|cudnn", kernel):
        return "cudnn"
    if re.search("nvjet|gemm|cutlass|xmma|cublas", kernel):
        return "matmul"
    return max((name for name in names if kernel.startswith(name)), key=len, default=None)


def joined_rows(trace, plan):
    """One Row for each kernel of the plan, the longest first. ms is 0 for a kernel that the trace does not have."""
    predicted = collections.defaultdict(lambda: [0.0, 0.0, 0.0])
    for words in map(str.split, plan.splitlines()):
        if len(words) > 5 and words[4] in ("memory", "math", "link", "-") and re.fullmatch("[0-9.]+", words[0]):
            name = words[5] if words[5] in ("matmul", "cudnn") else " ".join(words[5:])
            for i, word in enumerate((words[0], words[2], words[3])):
                predicted[name][i] += float(word)
    measured = collections.defaultdict(lambda: [0.0, 0.0])
    for kernel, calls, _, ms, _, _ in trace:
        if kernel == "(step)":
            measured["the step"] = [float(ms), 0.0]
        elif not kernel.startswith("(") and (name := row_of(kernel, predicted)):
            measured[name][0] += float(ms)
            measured[name][1] += float(calls)
    rows = [Row(name, *measured[name], *figures) for name, figures in predicted.items()]
    return sorted(rows, key=lambda row: (-row.ms, -row.predicted))


def predictions_table(rows, bandwidth, peak):
    """The lines of the second table. bandwidth: GB/s of a copy; peak: TFLOP/s of a multiply; 0 where not measured."""
    lines = [f"{'ms/step':>8} {'predicted':>9} {'measured':>8} {'calls':>7} {'GB':>9} {'GFLOP':>10} {'GB/s':>8} "
             f"{'TFLOP/s':>8} {'of floor':>9}  kernel", f"{'':>8} {'ms':>9} {'of it':>8}"]
    for row in rows:
        amounts = f"{row.gigabytes:9.3f} {row.gigaflop:10.1f}"
        if row.ms <= 0:
            lines.append(f"{'-':>8} {row.predicted:9.3f} {'-':>8} {'-':>7} {amounts} {'-':>8} {'-':>8} {'-':>9}  "
                         f"{row.name}")
            continue
        floor = max(1000 * row.gigabytes / bandwidth if bandwidth else 0, row.gigaflop / peak if peak else 0)
        ratio = row.ms / row.predicted if row.predicted else 0
        lines.append(f"{row.ms:8.3f} {row.predicted:9.3f} {ratio:7.2f}x {row.calls:7.1f} {amounts} "
                     f"{1000 * row.gigabytes / row.ms:8.0f} {row.gigaflop / row.ms:8.1f} {100 * floor / row.ms:8.1f}%  "
                     f"{row.name}")
    return lines


def reached(path):
    """What a copy and a square multiply reach by bench_gpu's file: (GB/s, TFLOP/s), or (0, 0) without such a file."""
    try:
        rows = read_csv(path)
        return float(rows[1][8]), float(rows[2][9])
    except (OSError, IndexError, ValueError):
        return 0.0, 0.0


def tables(step_csv, plan, kernels_csv):
    """(the text of both tables, the rows that have both a measured and a predicted time)."""
    trace = read_csv(step_csv)[1:]
    rows = joined_rows(trace, plan)
    lines = kernels_table(trace) + (["", *predictions_table(rows, *reached(kernels_csv))] if rows else [])
    return "\n".join(lines), [row for row in rows if row.ms > 0 and row.predicted > 0]
