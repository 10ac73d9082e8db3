"""dev/eval: the table from results written here, what run_eval.py refuses, and, where lm_eval is installed, a task of
our own run through the harness, whose right answers are clear. test_transformers.py compares the logits."""
import importlib.util
import json
import os
import re

import pytest

import cli
from cli import new_folder, path, ran, write
from tools import python, text_of

RUN_EVAL, SUMMARIZE = "eval/run_eval.py", "eval/summarize.py"
INSTALLED = all(importlib.util.find_spec(name) for name in ("lm_eval", "torch", "transformers", "accelerate"))
OFFLINE = dict(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", HF_HOME=path("hub"), OMP_NUM_THREADS="1",
               TOKENIZERS_PARALLELISM="false")


def called(program, *arguments):
    """What a program prints."""
    return python(program, *arguments, **OFFLINE)[0]


def says(program, *arguments):
    """The last line of a call that is refused, without the program's name."""
    err = python(program, *arguments, status=1, **OFFLINE)[1]
    name, _, line = err.strip().split("\n")[-1].partition(": ")
    assert "Traceback" not in err and name in (os.path.basename(program), os.path.basename(program)[:-3]), err
    return line


# ---- The table ----


def result(folder, task, scores, name="small", shots=None, limit=None, file=None):
    """A result as run_eval.py writes it. scores: {metric: (value, standard error)}."""
    table = {}
    for metric, (value, error) in scores.items():
        table[f"{metric},none"], table[f"{metric}_stderr,none"] = value, error
    data = {"format": 1, "task": task, "shots": shots, "limit": limit, "model": {"name": name}, "n-shot": {task: 0},
            "results": {task: table, task + "_part": {"acc,none": 0.9}}}
    write(f"{folder}/{file or task}.json", json.dumps(data))


def test_table():
    """Of a known task its usual metric, of others all."""
    result("a", "hellaswag", {"acc": (0.2893, 0.0045), "acc_norm": (0.31134, 0.00462)})
    result("a", "wikitext", {"word_perplexity": (37.3698, "N/A"), "bits_per_byte": (0.9, "N/A")})
    result("a", "zz_own", {"acc": (0.5, 0.05), "f1": (0.25, 0.01)}, shots=3, limit=10)
    result("b", "hellaswag", {"acc": (0.5, 0.005), "acc_norm": (0.6123, 0.0049)})
    assert called(SUMMARIZE, path("a"), path("b")) == """\
task                      metric                   small      small (2)
------------------------  ---------------  -------------  -------------
hellaswag, 0-shot         acc_norm         31.13 +- 0.46  61.23 +- 0.49
wikitext, 0-shot          word_perplexity          37.37
zz_own, 3-shot, first 10  acc              50.00 +- 5.00
zz_own, 3-shot, first 10  f1               25.00 +- 1.00
"""


def test_published_figures():
    """They appear only beside the same task, number of examples and metric, with their source."""
    result("p", "hellaswag", {"acc_norm": (0.3, 0.0046)}, shots=10)
    result("p", "hellaswag", {"acc_norm": (0.29, 0.0046)}, file="zero")
    out = called(SUMMARIZE, path("p"), "--published", "124M", "--published", "1558M")
    rows = dict(re.findall(r"^(hellaswag, \d+-shot) +acc_norm +(.*)$", out, re.M))
    assert rows["hellaswag, 10-shot"].split() == ["30.00", "+-", "0.46", "31.53", "[1]"], rows
    assert rows["hellaswag, 0-shot"].split() == ["29.00", "+-", "0.46", "50.90", "[4]"], rows
    assert re.findall(r"^\[(\d)\] .*: https://", out, re.M) == ["1", "4"], out
    data = json.loads(text_of("dev/eval/published.json"))
    for entry in data["figures"]:
        assert entry["source"] in data["sources"] and entry["model"] in ("124M", "774M", "1558M"), entry
        assert entry["metric"] == "perplexity" or 0.0 < entry["value"] < 1.0, entry


def test_table_refuses():
    assert says(SUMMARIZE, path("none")) == f"{path('none')}: no such file or folder; give the results of run_eval.py"
    os.makedirs(new_folder("empty"))
    assert "holds no results (*.json)" in says(SUMMARIZE, path("empty"))
    for name, data in (("cut.json", b'{"results": {'), ("list.json", b"[]"), ("other.json", b'{"a": 1}')):
        assert says(SUMMARIZE, write(name, data)).startswith(f"{path(name)}: "), name
    result("mixed", "hellaswag", {"acc_norm": (0.3, 0.01)}, name="one")
    result("mixed", "piqa", {"acc": (0.6, 0.01)}, name="two")
    assert "holds results of several models (one, two)" in says(SUMMARIZE, path("mixed"))


# ---- The runner ----


def exported():
    run, folder = new_folder("model"), new_folder("model_hf")
    ran("-i", cli.text_file(), "--layers", 2, "--heads", 2, "--channels", 24, "--context", 64, "--seq-len", 64, "-b", 4,
        "-x", 25, "-l", 0.01, *cli.QUIET, "-o", run)
    called("hf.py", "export", run, folder)
    return folder


def test_runner_refuses():
    folder = exported()
    assert "no such folder; give one that dev/hf.py export wrote" in says(RUN_EVAL, path("nowhere"))
    assert "hellaswag:x: expected NAME or NAME:N" in says(RUN_EVAL, folder, "--tasks", "piqa,hellaswag:x")
    assert "no task is named" in says(RUN_EVAL, folder, "--tasks", ",")
    if not INSTALLED:
        assert "is not installed here: pip install \"lm_eval[hf]\"" in says(RUN_EVAL, folder)
    for name in ("model.safetensors", "tokenizer_config.json"):
        os.rename(os.path.join(folder, name), path("away"))
        assert f"{folder}: {name} is missing, expected a model with its tokenizer" in says(RUN_EVAL, folder)
        os.rename(path("away"), os.path.join(folder, name))
    write("model_hf/config.json", b'{"cut": ')
    assert f"{folder}/config.json: cannot be read" in says(RUN_EVAL, folder)
    assert not os.path.exists(folder + "_eval")
    assert "argument --batch-size: '0' is not" in says(RUN_EVAL, folder, "--batch-size", "0")
    assert "leaderboard" in called(RUN_EVAL, "--help")


# ---- With the harness ----

TASK = """\
task: tiny_choice
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: label
"""


def questions():
    """What may follow in the text, beside letters that never do. Five times these are as many: every measure prefers
    the right ones. Three times these are two, whose whole probability is higher. So acc is 5 / 8, and acc_norm is 1."""
    right, never = "sees the dog and runs far away.", "zqxjvbmp"
    docs = []
    for i in range(8):
        choices = [never[:2] if i < 3 else (never * 4)[:len(right)]] * 3
        choices.insert(i % 4, right)
        docs.append({"question": "the cat", "choices": choices, "label": i % 4})
    return docs


def test_with_the_harness():
    if not INSTALLED:
        pytest.skip("lm_eval is not installed here (pip install \"lm_eval[hf]\")")
    folder, out = exported(), new_folder("scores")
    data = write("tiny.jsonl", "".join(json.dumps(doc) + "\n" for doc in questions()))
    write("tasks/tiny.yaml", TASK.format(data=data))
    options = [folder, "--out", out, "--include-path", path("tasks"), "--device", "cpu", "--tasks"]
    assert "knows no task tiny_choise; tiny_choice?" in says(RUN_EVAL, *options, "tiny_choise")
    done = called(RUN_EVAL, *options, "tiny_choice")
    table = json.loads(text_of(os.path.join(out, "tiny_choice.json")))["results"]["tiny_choice"]
    assert [table["acc,none"], table["acc_norm,none"]] == [0.625, 1.0], table
    assert "acc 0.6250 +- " in done and "[1/1]" in done, done
    assert "62.50 +- " in called(SUMMARIZE, out)
    before = os.stat(os.path.join(out, "tiny_choice.json")).st_mtime_ns
    assert "1 of 1 tasks are done" in called(RUN_EVAL, *options, "tiny_choice")
    assert os.stat(os.path.join(out, "tiny_choice.json")).st_mtime_ns == before
    ran("--init", path("model"), "-i", cli.text_file(), "-x", 1, *cli.QUIET, "-o", path("more"))
    called("hf.py", "export", path("more"), new_folder("model_hf"))  # another model in its place
    assert "is the result of another model" in says(RUN_EVAL, *options, "tiny_choice")
