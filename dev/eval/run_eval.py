#!/usr/bin/env python3
"""Scores an exported model on public tasks with EleutherAI's lm-evaluation-harness.

    pip install "lm_eval[hf]"
    python3 dev/eval/run_eval.py hf                       a folder of dev/hf.py export; results go to hf_eval
    python3 dev/eval/run_eval.py hf --tasks leaderboard   the six tasks of the first Open LLM Leaderboard
    python3 dev/eval/run_eval.py --hub openai-community/gpt2 --out gpt2_eval
    python3 dev/eval/summarize.py hf_eval gpt2_eval       a table of both

Each task's result is a file of its own, written when the task is done: the same command goes on where it was stopped.
The harness fetches the tasks' data from the Hugging Face Hub, once; HF_HOME says where they are kept.
"""
import argparse
import difflib
import hashlib
import importlib.metadata
import importlib.util
import json
import math
import os
import shutil
import signal
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import guard  # noqa: E402

PROGRAM = "run_eval"
SETS = {
    "zero-shot": "hellaswag lambada_openai piqa winogrande arc_easy arc_challenge wikitext mmlu",
    "leaderboard": "arc_challenge:25 hellaswag:10 mmlu:5 truthfulqa_mc2:0 winogrande:5 gsm8k:5"
}
NEEDED = ["config.json", "model.safetensors", "tokenizer_config.json"]
PACKAGES = ["lm_eval", "torch", "transformers", "datasets", "accelerate"]
DATA_BYTES = 2 << 30  # what the data of all these tasks take, unpacked, and some room
OLDEST = (0, 4, 5)  # of the harness: its Python interface is as used here


class Problem(Exception):
    """What a user is told in one line."""


def parse_arguments():
    sets = "; ".join(f"{name}: {tasks}" for name, tasks in SETS.items())
    parser = guard.Parser(__doc__, prog="run_eval.py", epilog=f"Sets of tasks: {sets}")
    parser.add_argument("model", metavar="MODEL", help="a folder that dev/hf.py export wrote, or any of Hugging Face's")
    parser.add_argument("--hub", action="store_true", help="MODEL is the name of a model on the Hugging Face Hub")
    parser.add_argument("--out", metavar="DIR", help="where the results go; without it: MODEL_eval")
    parser.add_argument("--name", help="what the table calls the model; without it: the folder's name")
    parser.add_argument("--tasks", default="zero-shot", metavar="LIST",
                        help="zero-shot, leaderboard, or names with commas between them, NAME:N for N examples before "
                        "each question (without: as the task says)")
    parser.add_argument("--limit", type=positive, metavar="N", help="only the first N examples of each task: a trial")
    parser.add_argument("--device", default="auto", help="cpu, cuda, cuda:N; auto: a GPU if there is one")
    parser.add_argument("--dtype", default="auto", choices=["auto", "float32", "bfloat16", "float16"],
                        help="what to compute in; auto: as the weights are")
    parser.add_argument("--batch-size", default="auto", type=batch_size, metavar="N",
                        help="sequences at once; auto: as many as fit a GPU, 8 on a CPU")
    parser.add_argument("--include-path", metavar="DIR", help="a folder with tasks of your own (YAML)")
    parser.add_argument("--again", action="store_true", help="run tasks whose results are there, too")
    return parser.parse_args()


def positive(text):
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return int(text)


def batch_size(text):
    return text if text == "auto" else positive(text)


# ---- Before it starts ----


def check_folder(folder):
    if not os.path.isdir(folder):
        raise Problem(f"{folder}: no such folder; give one that dev/hf.py export wrote, or a name and --hub")
    missing = [name for name in NEEDED if not os.path.isfile(os.path.join(folder, name))]
    if missing:
        raise Problem(f"{folder}: {missing[0]} is missing, expected a model with its tokenizer (python3 dev/hf.py "
                      "export RUN FOLDER)")
    try:
        if not isinstance(json.loads(guard.read_file(os.path.join(folder, "config.json"))), dict):
            raise ValueError("not an object")
    except (OSError, ValueError, RecursionError) as error:
        raise Problem(f"{folder}/config.json: cannot be read: {error}") from None


def check_packages():
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise Problem(f"{missing[0]} is not installed here: pip install \"lm_eval[hf]\" (in a virtual environment)")
    version = importlib.metadata.version("lm_eval")
    numbers = tuple(int(part) for part in version.split(".")[:3] if part.isdigit())
    if numbers < OLDEST:
        raise Problem(f"lm_eval is version {version}, expected {'.'.join(map(str, OLDEST))} or later: "
                      "pip install --upgrade \"lm_eval[hf]\"")


def free_bytes(folder):
    """Of the disk where this folder is, or will be."""
    folder = os.path.abspath(folder)
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    return shutil.disk_usage(folder).free


def check_disk(arguments):
    cache = os.environ.get("HF_HOME") or os.path.join(os.path.expanduser("~"), ".cache", "huggingface")
    offline = os.environ.get("HF_DATASETS_OFFLINE") == "1" or os.environ.get("HF_HUB_OFFLINE") == "1"
    if not offline and free_bytes(cache) < DATA_BYTES:
        raise Problem(f"{cache}: {free_bytes(cache) >> 20} MiB are free, the tasks' data take up to "
                      f"{DATA_BYTES >> 20}; free some, or name another folder with HF_HOME")
    if free_bytes(arguments.out) < 16 << 20:
        raise Problem(f"{arguments.out}: less than 16 MiB are free for the results")


def parse_tasks(text):
    """[(name, shots or None)], without repetitions."""
    tasks = []
    for word in SETS.get(text, text).replace(",", " ").split():
        name, colon, shots = word.partition(":")
        if colon and not shots.isdigit():
            raise Problem(f"--tasks: {word}: expected NAME or NAME:N, N the number of examples")
        task = (name, int(shots) if colon else None)
        if task not in tasks:
            tasks.append(task)
    if not tasks:
        raise Problem("--tasks: no task is named")
    return tasks


def check_tasks(tasks, known):
    for name, _ in tasks:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            raise Problem(f"--tasks: the harness knows no task {name}" + (f"; {near[0]}?" if near else ""))


def file_sha256(path):
    digest = hashlib.sha256()
    with guard.open_file(path) as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def identify(arguments):
    """What tells results of this model from another's."""
    if arguments.hub:
        return "hub:" + arguments.model
    return "sha256:" + file_sha256(os.path.join(arguments.model, "model.safetensors"))


# ---- Results ----


def result_path(out, task, limit):
    name, shots = task
    return os.path.join(out, name + (f".{shots}-shot" if shots is not None else "") +
                        (f".first-{limit}" if limit else "") + ".json")


def already_there(path, identity, dtype):
    """Whether this file is the result that would be computed; another model's is refused."""
    try:
        found = json.loads(guard.read_file(path))
        model = found["model"]["identity"], found["dtype"]
    except FileNotFoundError:
        return False
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        print(f"{path}: is damaged, and is made again", flush=True)
        return False
    if model == (identity, dtype):
        return True
    raise Problem(f"{path}: is the result of another model or --dtype; name another folder with --out, or give --again")


def without_functions(value):
    """The harness's tables as JSON has them."""
    if isinstance(value, dict):
        return {str(key): without_functions(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_functions(item) for item in value]
    if hasattr(value, "item"):  # a number of numpy's
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


def write_result(path, result):
    with guard.new_file(path, "w", encoding="utf-8") as file:
        json.dump(result, file, indent=1)
        file.write("\n")


def main_scores(table):
    """`acc 0.2946 +- 0.0045` for each metric."""
    words = []
    for key, value in table.items():
        metric, comma, kind = key.partition(",")
        if not comma or metric.endswith("_stderr") or isinstance(value, str):
            continue
        error = table.get(f"{metric}_stderr,{kind}")
        words.append(f"{metric} {value:.4f}" + (f" +- {error:.4f}" if isinstance(error, float) else ""))
    return ", ".join(words) or "no score"


# ---- The harness ----


def quiet():
    """The libraries speak of what a user of this program cannot change."""
    import logging
    import warnings
    warnings.filterwarnings("ignore")
    for name in ("lm_eval", "lm-eval", "datasets", "transformers", "accelerate", "huggingface_hub"):
        logging.getLogger(name).setLevel(logging.ERROR)


def load_model(arguments):
    import torch
    from lm_eval.models.huggingface import HFLM
    device = arguments.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise Problem(f"--device {device}: PyTorch finds no GPU here")
    size = arguments.batch_size
    if size == "auto" and device == "cpu":
        size = 8
    print(f"model       {arguments.model}, {arguments.dtype if arguments.dtype != 'auto' else 'weights as they are'}, "
          f"on {device}", flush=True)
    try:
        return HFLM(pretrained=arguments.model, device=device, dtype=arguments.dtype, batch_size=size), device
    except Exception as error:
        raise Problem(f"{arguments.model}: the model cannot be loaded: {one_line(error)}") from None


def one_line(error):
    return " ".join(f"{type(error).__name__}: {error}".split())[:600]


def evaluate(lm, manager, task, limit):
    from lm_eval import simple_evaluate
    name, shots = task
    results = simple_evaluate(model=lm, tasks=[name], num_fewshot=shots, limit=limit, task_manager=manager,
                              log_samples=False, bootstrap_iters=1000)
    keep = ("results", "groups", "group_subtasks", "versions", "n-shot", "higher_is_better", "n-samples")
    return {key: without_functions(results[key]) for key in keep if key in results}


def run_task(lm, manager, task, arguments, facts):
    began = time.time()
    tables = evaluate(lm, manager, task, arguments.limit)
    seconds = time.time() - began
    result = {"format": 1, "task": task[0], "shots": task[1], "limit": arguments.limit, **facts,
              "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "seconds": round(seconds, 1), **tables}
    write_result(result_path(arguments.out, task, arguments.limit), result)
    print(f"            {main_scores(tables['results'].get(task[0], {}))}  ({seconds:.0f} s)", flush=True)


def try_task(lm, manager, task, arguments, facts):
    """None, or why the task failed: whatever its own code does, the others go on. A disk that is full ends all."""
    try:
        run_task(lm, manager, task, arguments, facts)
    except Exception as error:
        if isinstance(error, OSError) and str(error.filename or "").startswith(arguments.out):
            raise Problem(f"{error.filename}: {error.strerror}") from None
        print(f"            failed: {one_line(error)}", flush=True)
        return f"{task[0]}: {one_line(error)}"
    return None


def run_tasks(tasks, lm, device, manager, identity, arguments):
    """Returns what failed."""
    versions = {name: importlib.metadata.version(name) for name in PACKAGES}
    facts = {"model": {"name": arguments.name, "path": arguments.model, "identity": identity},
             "dtype": arguments.dtype, "device": device, "packages": versions}
    failed = []
    for number, task in enumerate(tasks, 1):
        shots = f", {task[1]}-shot" if task[1] is not None else ""
        print(f"[{number}/{len(tasks)}]".ljust(12) + task[0] + shots, flush=True)
        failed.append(try_task(lm, manager, task, arguments, facts))
    return [reason for reason in failed if reason is not None]


def stop(*_):
    raise KeyboardInterrupt


def main():
    signal.signal(signal.SIGTERM, stop)
    arguments = parse_arguments()
    model = arguments.model.rstrip("/") or "/"
    arguments.name = arguments.name or os.path.basename(os.path.abspath(model))
    arguments.out = arguments.out or (os.path.basename(model) if arguments.hub else model) + "_eval"
    tasks = parse_tasks(arguments.tasks)
    if not arguments.hub:
        check_folder(arguments.model)
    check_packages()
    check_disk(arguments)
    try:
        os.makedirs(arguments.out, exist_ok=True)
    except OSError as error:
        raise Problem(f"--out: {arguments.out}: cannot be made: {error.strerror}") from None
    identity = identify(arguments)
    to_do = [task for task in tasks if arguments.again or
             not already_there(result_path(arguments.out, task, arguments.limit), identity, arguments.dtype)]
    if len(to_do) < len(tasks):
        print(f"{len(tasks) - len(to_do)} of {len(tasks)} tasks are done, in {arguments.out}", flush=True)
    if to_do:
        quiet()
        from lm_eval.tasks import TaskManager
        manager = TaskManager(include_path=arguments.include_path)
        check_tasks(to_do, manager.all_tasks)
        lm, device = load_model(arguments)
        failed = run_tasks(to_do, lm, device, manager, identity, arguments)
        if failed:
            raise Problem(f"{len(failed)} of {len(to_do)} tasks failed; the first: {failed[0]}; the same command runs "
                          "these again")
    print(f"results     {arguments.out}; python3 dev/eval/summarize.py {arguments.out}", flush=True)


if __name__ == "__main__":
    guard.screens("stdout")  # on standard error the harness draws its bars
    try:
        main()
    except Problem as problem:
        sys.exit(guard.printable(f"{PROGRAM}: {problem}"))
    except KeyboardInterrupt:
        print(f"\n{PROGRAM}: stopped; the same command goes on after the last task that was done", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
