"""A table of a training step: its longest kernels and the gaps between them. The step is the CSV file of
trace_kernels.cpp.
"""
import csv

SHOWN = 31  # kernels of a step that get a line of their own


def read_csv(path):
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def kernels_table(trace):
    """The lines of the table. trace: the rows of the step's file, without its head."""
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
