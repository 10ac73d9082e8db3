"""Computes the documents' tables of memory anew, from --plan. No GPU is needed.

    make train_gpt2 train_llama3 train_gpt2emu train_llama3emu && python3 dev/plan_table.py

A header has an option in `backticks`, and its cells are values. Or it names a result, perhaps beside one more option.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "dev" / "bench"))
import predict  # noqa: E402 (its folder had to be named first)

DOCUMENTS = ROOT / "README.md", *sorted(ROOT.glob("doc/*.md"))
RESULT = re.compile("GiB of [a-z ]+|GiB|GB sent|s predicted")
TABLE = rf"^\| (.*(?:{RESULT.pattern}).*) \|\n(\|-.*)\n((?:\|.*\n)+)"


def code(text):
    return (re.findall("`(.*?)`", text) or [""])[-1]


def result(header, words):
    """The largest stage has the memory. What is sent is that of the stage that sends most."""
    words += f" {code(header)}"
    if "s predicted" in header:
        return predict.Step(words).seconds
    out = predict.plan(words, "" if "CPU" in header else "emu")
    memory = int(re.search(r"^total (\d+) bytes", out, re.M)[1]) / 2**30
    kinds = re.search(r"= (\S+) parameter \+ (\S+) gradient \+ (\S+) optimizer", out).groups()
    weights, gradients, state = map(float, kinds)
    stages = re.split("^stage", out.partition("\na step")[2], flags=re.M)
    sent = (map(int, re.findall(r" (\d+) (?:bytes )?(?:of|for|to) ", stage)) for stage in stages)
    numbers = {"GiB": memory, "GiB of weights": weights, "GiB of gradients": gradients, "GiB of the optimizer": state,
               "GiB of activations": memory - weights - gradients - state, "GB sent": max(map(sum, sent)) / 1e9}
    return numbers[RESULT.search(header)[0].strip()]


def computed(table):
    """The text of a table with its results. Each row is a run."""
    head, lines = table[1].split(" | "), []
    for line in table[3].splitlines():
        columns = [*zip(head, line[2:-2].split(" | "))]
        words = " ".join(f"{code(header)} {code(cell) or cell.replace(',', '')}" for header, cell in columns
                         if code(header) and not RESULT.search(header))
        cells = (f"{result(header, words):,.1f}" if RESULT.search(header) else cell for header, cell in columns)
        lines.append(f"| {' | '.join(cells)} |\n")
    return f"| {table[1]} |\n{table[2]}\n{''.join(lines)}"


def computed_text(document):
    return re.sub(TABLE, computed, document.read_text("utf-8"), flags=re.M)


if __name__ == "__main__":
    for document in DOCUMENTS:
        document.write_text(computed_text(document), "utf-8")
