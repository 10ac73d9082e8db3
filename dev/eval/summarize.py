#!/usr/bin/env python3
"""Prints the results of run_eval.py as a table: a line for each task, a column for each model.

    python3 dev/eval/summarize.py hf_eval                      one model
    python3 dev/eval/summarize.py hf_eval gpt2_eval            two side by side
    python3 dev/eval/summarize.py hf_eval --published 124M     beside what is published of OpenAI's GPT-2

Accuracies are in percent, +- is one standard error. The files of the results have all metrics. Standard library only.
"""
import glob
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import guard  # noqa: E402

PROGRAM = "summarize"
PUBLISHED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "published.json")
# What each task is usually judged by; of others all metrics are shown.
METRICS = {"hellaswag": ["acc_norm"], "arc_challenge": ["acc_norm"], "arc_easy": ["acc"], "piqa": ["acc"],
           "winogrande": ["acc"], "lambada_openai": ["acc", "perplexity"], "mmlu": ["acc"], "truthfulqa_mc2": ["acc"],
           "wikitext": ["word_perplexity"], "openbookqa": ["acc_norm"], "boolq": ["acc"], "sciq": ["acc"],
           "gsm8k": ["exact_match"]}
PERCENT = ("acc", "exact_match", "f1", "mc1", "mc2", "em")


class Problem(Exception):
    """What a user is told in one line."""


# ---- Reading ----


def read_json(path):
    try:
        data = json.loads(guard.read_file(path))
    except (OSError, ValueError, RecursionError) as error:
        raise Problem(f"{path}: cannot be read: {error}") from None
    if not isinstance(data, dict) or not isinstance(data.get("results"), dict) or "task" not in data:
        raise Problem(f"{path}: holds no results, expected a file of run_eval.py")
    return data


def files_of(run):
    """The result files of a folder, or the file itself."""
    if os.path.isfile(run):
        return [run]
    if not os.path.isdir(run):
        raise Problem(f"{run}: no such file or folder; give the results of run_eval.py")
    files = sorted(glob.glob(os.path.join(glob.escape(run), "*.json")))
    if not files:
        raise Problem(f"{run}: holds no results (*.json); run dev/eval/run_eval.py first")
    return files


def scores_of(data):
    """{(task, shots, limit, metric): (value, standard error or None)} of the task that was asked for."""
    task, shots, scores = data["task"], data.get("shots"), {}
    table = data["results"].get(task, {})
    if shots is None:
        shots = data.get("n-shot", {}).get(task)
    shots = shots if isinstance(shots, int) else None
    for key, value in table.items():
        metric, comma, kind = key.partition(",")
        if not comma or metric.endswith("_stderr") or not isinstance(value, (int, float)):
            continue
        error = table.get(f"{metric}_stderr,{kind}")
        label = metric if kind in ("none", "") else f"{metric} ({kind})"
        scores[task, shots, data.get("limit"), label] = (value, error if isinstance(error, float) else None)
    return scores


def read_run(run):
    """(name, scores) of one column."""
    scores, names = {}, []
    for file in files_of(run):
        data = read_json(file)
        model = data.get("model")
        name = model.get("name") if isinstance(model, dict) else None
        names.append(str(name or os.path.basename(os.path.abspath(run))))
        found = scores_of(data)
        if not found:
            raise Problem(f"{file}: holds no score")
        scores.update(found)
    if len(set(names)) > 1:
        raise Problem(f"{run}: holds results of several models ({', '.join(sorted(set(names)))}); give each a folder")
    return names[0], scores


def read_published(size):
    """The column of a published model, and its sources."""
    with open(PUBLISHED, encoding="utf-8") as file:
        data = json.load(file)
    found = [entry for entry in data["figures"] if entry["model"] == size]
    scores = {(e["task"], e["shots"], None, e["metric"]): (e["value"], e.get("stderr")) for e in found}
    marks = {(e["task"], e["shots"], None, e["metric"]): e["source"] for e in found}
    return scores, marks, data["sources"]


# ---- The table ----


def is_shown(task, metric):
    return task not in METRICS or metric.split(" ")[0] in METRICS[task]


def is_percent(metric):
    return metric.split(" ")[0].split("_")[0] in PERCENT or metric.startswith("exact_match")


def show(metric, score):
    if score is None:
        return ""
    factor = 100.0 if is_percent(metric) else 1.0
    text = f"{factor * score[0]:.2f}"
    return text if score[1] is None else f"{text} +- {factor * score[1]:.2f}"


def order_of(key):
    """Known tasks in their order, others by name; fewer examples first."""
    task, shots, limit, metric = key
    known = list(METRICS)
    place = known.index(task) if task in known else len(known)
    return place, task, -1 if shots is None else shots, limit or 0, metric


def label_of(key):
    task, shots, limit, metric = key
    words = [task]
    if shots is not None:
        words.append(f"{shots}-shot")
    if limit is not None:
        words.append(f"first {limit:g}")
    return ", ".join(words), metric


def rows_of(columns, marks, arguments):
    keys = {key for _, scores in columns[:arguments.measured] for key in scores}
    rows = []
    for key in sorted(keys, key=order_of):
        if not is_shown(key[0], key[3]):
            continue
        cells = [show(key[3], scores.get(key)) for _, scores in columns]
        for i, cell in enumerate(cells):
            if cell and i >= arguments.measured:
                cells[i] += f" [{marks[i][key]}]"
        rows.append([*label_of(key), *cells])
    return rows


def print_table(header, rows):
    header, *rows = ([guard.printable(cell) for cell in row] for row in [header, *rows])
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    for row in [header, *rows]:
        cells = [cell.ljust(width) if i < 2 else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths))]
        print("  ".join(cells).rstrip())
        if row is header:
            print("  ".join("-" * width for width in widths))


def print_sources(rows, sources):
    text = "\n".join(cell for row in rows for cell in row)
    for name, source in sources.items():
        if f"[{name}]" in text:
            print(f"\n[{name}] {source['text']}: {source['url']}")


def unique_names(columns):
    """Two models of the same name are told apart by a number."""
    seen = {}
    for i, (name, scores) in enumerate(columns):
        seen[name] = seen.get(name, 0) + 1
        if seen[name] > 1:
            columns[i] = (f"{name} ({seen[name]})", scores)


def parse_arguments():
    parser = guard.Parser(__doc__, prog="summarize.py")
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a folder of run_eval.py")
    parser.add_argument("--published", metavar="SIZE", action="append", default=[],
                        choices=["124M", "774M", "1558M"],
                        help="a column of figures published of OpenAI's model of this size (124M, 774M, 1558M), with "
                        "their sources; only where task, number of examples and metric are the same")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    columns, marks, sources = [read_run(run) for run in arguments.runs], {}, {}
    unique_names(columns)
    arguments.measured = len(columns)
    for size in arguments.published:
        scores, marks[len(columns)], sources = read_published(size)
        columns.append((f"OpenAI {size}", scores))
    rows = rows_of(columns, marks, arguments)
    print_table(["task", "metric", *(name for name, _ in columns)], rows)
    print_sources(rows, sources)


if __name__ == "__main__":
    guard.screens("stdout", "stderr")
    try:
        main()
        sys.stdout.flush()
    except Problem as problem:
        sys.exit(guard.printable(f"{PROGRAM}: {problem}"))
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
