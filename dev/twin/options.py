"""The command line: the rows of the C trainers' option table (llmc/run/train_options.h) that this program takes, with
the same names, aliases, ranges and defaults, and some rows of its own."""
import collections
import difflib
import math
import os
import re
import sys
import textwrap
import types

from dev.twin import Problem, header, schedule, version

Row = collections.namedtuple("Row", "field name aliases type default minimum maximum value shapes needs group help")

# Rows of the table that this program takes as they are.
TAKEN = set("""train-data val-data tokenizer shuffle overfit init layers heads channels context vocab batch-size
    seq-len total-batch steps lr schedule warmup final-lr-frac optimizer muon-lr muon-warmup muon-scale
    weight-decay adam-eps grad-clip val-every val-sequences val-batches out-dir checkpoint-every resume
    overwrite seed threads tf32""".split())
# Rows of which it takes one value, which switches off what it does not do, so that one command line serves both.
OFF = {"sample-every": 0, "hellaswag": 0, "skip-loss-z": 0, "skip-grad-z": 0, "recompute": 0,
       "gelu-fusion": 0, "master-weights": 1}
HELP = {  # where this program does less
    "tokenizer": "only byte: of other tokens make shards with ./tokenize",
    "seq-len": "tokens in a sequence, at most the model's context; 0: 64 or 1024, or the context if that is less",
    "steps": "steps of the whole run; -1: once through the data; 0: only validate",
    "out-dir": "the folder for main.log, speed.log, run.jsonl and checkpoints; without it, nothing is written",
    "resume": "go on from the newest checkpoint in --out-dir",
    "seed": "of the initial weights and the order of the data",
    "threads": "CPU threads; 0: as many as PyTorch likes"}
OWN = [
    Row("device", "device", "", "CHOICE", "auto", 0, 0, "auto|cpu|cuda", 0, "", "PyTorch",
        "auto: cuda where PyTorch sees a GPU"),
    Row("precision", "precision", "", "CHOICE", ("fp32", "bf16"), 0, 0, "fp32|bf16|autocast", 1, "", "PyTorch",
        "bf16: as train_gpt2cu computes, all activations in bf16, weights cast from an fp32 master, gradients, moments "
        "and sums in fp32 (but weights round to nearest, not at random); autocast: matrix multiplies in bf16, the "
        "residual stream in fp32, PyTorch's usual way"),
    Row("compile", "compile", "", "FLAG", ("0", "1"), 0, 1, "", 0, "", "PyTorch",
        "torch.compile forward and backward"),
    Row("attention", "attention", "", "CHOICE", "auto", 0, 0, "auto|flash|efficient|cudnn|math", 0, "", "PyTorch",
        "the kernel of scaled_dot_product_attention; auto: PyTorch chooses the fastest it has"),
    Row("zero_stage", "zero-stage", "z", "INT", "0", 0, 1, "STAGE", 0, "", "PyTorch",
        "1: each process keeps a part of AdamW's state (ZeroRedundancyOptimizer), and all of Muon's"),
]
GROUPS = ["Data", "Model", "Batch", "Optimizer", "Evaluation", "Output", "Machine", "PyTorch"]
USAGE = "python3 train_gpt2.py --train-data FILES [options]"
SUMMARY = ("Trains GPT-2 in PyTorch: the twin of ./train_gpt2 and ./train_gpt2cu, with their command line, initial "
           "weights, batches and files. Where a default differs, the first is for a CPU, the second for a GPU.")
EXAMPLES = """Examples
  python3 train_gpt2.py --train-data book.txt --out-dir run --steps 1000
  python3 train_gpt2.py -i 'shards/*_train_*.bin' -j 'shards/*_val_*.bin' -e d12 -b 64 -t 1024 -o run
  torchrun --standalone --nproc-per-node 8 train_gpt2.py -i 'shards/*_train_*.bin' -b 64 -t 1024 -d 524288 -o run
"""

# ---- The table ----

TOKEN = re.compile(r'"((?:[^"\\]|\\.)*)"|([A-Za-z_]\w*)|(-?[0-9.]+(?:e[-+]?[0-9]+)?)|([(),])')


def constants():
    """What the table's words stand for: numbers and texts that the headers define."""
    text = header("model/gpt2.h") + header("run/args.h") + header("run/train_options.h")
    found = {"FREE": 0, "SHAPES": 1, "ROUNDS": 2, "LOCAL": 0}
    for name, string, number in re.findall(r'^#define (\w+) (?:"([^"]*)"|([0-9]+))', text, re.M):
        found[name] = string or int(number)
    return found


def parse_arguments(tokens, words):
    """The arguments of a macro call, after its opening parenthesis: texts joined, PICK(cpu, gpu) as a pair."""
    arguments, parts = [], []
    while True:
        string, word, number, mark = next(tokens)
        if mark in (",", ")"):
            pairs = [part if isinstance(part, tuple) else (part, part) for part in parts]
            sides = [side[0] if len(side) == 1 else "".join(side) for side in zip(*pairs)]
            arguments.append(sides[0] if sides[0] == sides[1] else tuple(sides))
            parts = []
            if mark == ")":
                return arguments
        elif word == "PICK":
            next(tokens)  # (
            parts.append(tuple(parse_arguments(tokens, words)))
        elif word:
            parts.append(words.get(word, word))
        else:
            parts.append(float(number) if number else string)


def read_table():
    text, words = header("run/train_options.h"), constants()
    start = re.search(r"#define TRAIN_OPTIONS\(X, PICK\)", text).end()
    end = re.compile(r"[^\\]\n").search(text, start).end()
    tokens = iter(TOKEN.findall(text[start:end]))
    names = re.findall(r'"([^"]*)"', re.search(r"train_groups\[\] = \{(.*?)\}", text, re.S).group(1))
    headings = dict(zip(names[::2], names[1::2]))  # option -> the heading before it
    rows, group = [], ""
    for token in tokens:
        if token[1] == "X":
            next(tokens)  # (
            *columns, words_of_help = parse_arguments(tokens, words)
            group = headings.get(columns[1], group)
            rows.append(Row(*columns, group, words_of_help))
    return rows


def is_taken(row):
    return row.name in TAKEN or row.name in OFF


def make_rows():
    """What is taken, in the groups of --help, and what else the C trainers take."""
    own = {row.name for row in OWN}
    table = [row for row in read_table() if row.name not in own]
    taken = [row for row in table if is_taken(row)] + OWN
    taken = [row._replace(group=row.group if row.group in GROUPS else "PyTorch") for row in taken]
    return sorted(taken, key=lambda row: GROUPS.index(row.group)), [row for row in table if not is_taken(row)]


def is_for_gpus(row):
    return "GPU" in row.needs.split()


def of_device(value, on_gpu):
    return value[on_gpu] if isinstance(value, tuple) else value


def read_foreign():
    """The names of other trainers' options: name -> what to give in its place."""
    rows = re.findall(r'\{((?:\s*"[^"]*")+),\s*"([^"]*)"\}', header("run/foreign_options.h"))
    return {name: answer for names, answer in rows for name in "".join(re.findall(r'"([^"]*)"', names)).split()}


# ---- --help ----


def number_text(value):
    return f"{value:.17g}" if value == int(value) and abs(value) < 1e16 else repr(value)


def value_range(row):
    return f"{number_text(row.minimum)} to {number_text(row.maximum)}"


def default_text(row, between):
    """The default, of a CPU and of a GPU where they differ."""
    if row.name in OFF:
        return str(OFF[row.name])
    return between.join(row.default) if isinstance(row.default, tuple) else row.default


def describe(row):
    if row.name in OFF:
        return f"only {OFF[row.name]}: this program has no other way"
    notes, default = [], default_text(row, " or ")
    text = HELP.get(row.name, row.help)
    if row.type in ("INT", "REAL"):
        notes.append(value_range(row) if row.maximum < 1e9 else f"at least {number_text(row.minimum)}")
    if default and not (row.type == "FLAG" and default == "0"):
        notes.append(f"default {default}")
    return text + (f" ({'; '.join(notes)})" if notes else "")


def print_help():
    print(f"Usage: {USAGE}\n\n{textwrap.fill(SUMMARY, 100)}")
    taken, others = make_rows()
    for group in GROUPS:
        print(f"\n{group}")
        for row in (row for row in taken if row.group == group):
            aliases = "".join(f"-{alias}, " for alias in row.aliases.split())
            left = f"  {aliases}--{row.name} {row.value}".rstrip()
            lines = textwrap.wrap(describe(row), 68)
            print(left if len(left) > 30 else f"{left:32}{lines.pop(0)}")
            for line in lines:
                print(f"{'':32}{line}")
    print("\nThis program\n  -h, --help                    this text\n  --version                     the version\n")
    print(textwrap.fill("Options of the C trainers that it does not take: " +
                        " ".join(f"--{row.name}" for row in others), 100, break_on_hyphens=False))
    print(f"\n{EXAMPLES}", end="")


# ---- Parsing ----


def label(row):
    return f"--{row.name} (-{row.aliases.split()[0]})" if row.aliases else f"--{row.name}"


def expected(row, on_gpu):
    default = of_device(row.default, on_gpu)
    default = f" (default {default})" if default else ""
    return {"INT": f"a whole number from {value_range(row)}", "REAL": f"a number from {value_range(row)}",
            "TEXT": f"{row.value} of {value_range(row)} bytes", "CHOICE": f"one of {row.value}",
            "FLAG": "0 or 1"}[row.type] + default


def convert(row, text):
    """The value that a text stands for; None if it is none."""
    if row.type in ("INT", "REAL"):
        pattern = r"-?[0-9]+" if row.type == "INT" else r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?"
        if not re.fullmatch(pattern, text):
            return None
        value = int(text) if row.type == "INT" else float(text)
        return value if of_device(row.minimum, False) <= value <= row.maximum and math.isfinite(value) else None
    if row.type == "FLAG":
        return {"0": False, "1": True}.get(text)
    if row.type == "CHOICE":
        return text if text in row.value.split("|") else None
    return text if row.minimum <= len(os.fsencode(text)) <= row.maximum else None


def find(rows, argument):
    """The row that "--name", "--name=value" or "-alias" names, or None."""
    name = argument.split("=")[0]
    for row in rows:
        if name == f"--{row.name}" or name in [f"-{alias}" for alias in row.aliases.split()]:
            return row
    return None


def fail_unknown(rows, others, argument):
    typed = argument.split("=")[0]
    row = find(others, typed)
    if row is not None:
        raise Problem(f"{label(row)}: is an option of the C trainers, and does nothing here; leave it out")
    answer = read_foreign().get(typed.lstrip("-").replace("_", "-"))
    if answer is not None:
        raise Problem(f"'{typed[:42]}': unknown option; {answer}")
    names = [f"--{row.name}" for row in rows] + ["--help", "--version"]
    begins = [name for name in names if len(typed) > 3 and name.startswith(typed)]
    nearest = begins or difflib.get_close_matches(typed, names, 1, 0.7)
    hint = f"; the nearest is {nearest[0]}" if nearest else ""
    raise Problem(f"'{typed[:42]}': unknown option{hint} (--help lists all)")


def take(rows, row, arguments, on_gpu):
    """The value of an option whose name is the first of `arguments`, which loses what was taken."""
    argument = arguments.pop(0)
    after = arguments[0] if arguments else None
    if "=" in argument:
        text = argument.split("=", 1)[1]
    elif row.type == "FLAG" and (after is None or after.startswith("-")):
        text = "1"
    elif after is None or find(rows, after) is not None:
        raise Problem(f"{label(row)}: value missing, expected {expected(row, on_gpu)}")
    else:
        text = arguments.pop(0)
    value = convert(row, text)
    if value is None:
        raise Problem(f"{label(row)}: got '{text[:42]}', expected {expected(row, on_gpu)}")
    if row.name in OFF and value != OFF[row.name]:
        raise Problem(f"{label(row)}: got '{text}', this program takes only {OFF[row.name]}; leave it out")
    if is_for_gpus(row) and not on_gpu and row.name not in OFF:
        raise Problem(f"{label(row)}: is an option of a run on a GPU")
    return value


def parse(arguments, on_gpu):
    """The options of a command line: an object with a field for each. on_gpu(device) tells where a run computes."""
    rows, others = make_rows()
    device = "auto"
    for i, argument in enumerate(arguments):  # the defaults depend on it
        if argument.split("=")[0] == "--device":
            device = (argument.split("=") + arguments[i + 1:i + 2] + [""])[1]
    gpu = on_gpu(device)
    values, given, left = {}, set(), list(arguments)
    while left:
        if not left[0].startswith("-") or left[0] == "-":
            raise Problem(f"'{left[0][:42]}': unexpected word; options begin with a dash, patterns ('x*.bin') need "
                          "quotes")
        row = find(rows, left[0])
        if row is None:
            fail_unknown(rows, others, left[0])
        value = take(rows, row, left, gpu)
        given.add(row.name)
        values[row.field] = value
    for row in rows:
        default = OFF.get(row.name, of_device(row.default, gpu))
        values.setdefault(row.field, convert(row, str(default)) if row.type != "TEXT" else default)
    options = types.SimpleNamespace(**values)
    if options.val_batches >= 0:
        options.val_sequences = options.val_batches * options.batch_size
    options.device = "cuda" if gpu else "cpu"
    if not schedule.falls(options.schedule):
        options.final_lr_frac = 1.0
    if options.optimizer == "muon" and options.muon_lr == 0:
        options.muon_lr = options.lr if options.muon_scale == "rms" else 0.02
    check_needs({row.name: row for row in rows}, options, given)
    check(options, given)
    return options


def check_needs(rows, options, given):
    """Refuses an option without what the column `needs` says (llmc/run/args.h)."""
    for row in (rows[name] for name in given):
        value = getattr(options, row.field)
        terms = [term.split("|") for term in row.needs.split() if term.islower() and ":" not in term]
        for term in terms if value not in (0, -1, "") or str(row.default) not in ("0", "-1", "") else ():
            names = []
            for need in term:
                name, _, wanted = need.lstrip("!").partition("=")
                other, no = rows[name], "no " if need.startswith("!") else ""
                got = getattr(options, other.field)
                if (got == wanted if wanted else bool(got)) != bool(no):
                    break
                zero = " other than 0" if other.type == "INT" and got == 0 and not wanted else ""
                names.append(no + (f"--{name} {wanted}" if wanted else label(other) + zero))
            else:
                raise Problem(f"{label(row)}: needs {' or '.join(names)}")


def check(o, given):
    """Refuses what contradicts itself, or would do nothing."""
    for bad, message in (
            (not o.train_data and o.steps != 0, "--train-data (-i): missing; give a text file or token shards"),
            (not o.train_data and not o.val_data, "--val-data (-j): missing; a run of 0 steps only validates"),
            (o.tokenizer not in ("", "byte"), "--tokenizer: this program knows only byte; make shards with ./tokenize"),
            (o.val_batches >= 0 and "val-sequences" in given,
             "--val-batches (-m): contradicts --val-sequences; give one of the two")):
        if bad:
            raise Problem(message)


def is_help(arguments):
    """Is it a request for help? "-h" with a value is --hellaswag, as in llm.c."""
    return any(a == "--help" or (a == "-h" and not re.match(r"(?!all$)[^-]|-\d", (arguments[i + 1:i + 2] or ["-"])[0]))
               for i, a in enumerate(arguments))


def print_if_asked(arguments):
    """Prints what --help and --version ask for. True if one was there."""
    if is_help(arguments):
        print_help()
    elif "--version" in arguments:
        print(f"train_gpt2.py {version()}")
    else:
        return False
    return True


def record(options):
    """Every option by its long name, as the text that run.jsonl has of it."""
    on_gpu = options.device == "cuda"
    values = {row.name: getattr(options, row.field) for row in make_rows()[0] if on_gpu or not is_for_gpus(row)}
    return {name: value if isinstance(value, str) else number_text(value) for name, value in values.items()}


def shaping(options):
    """Those of which another value gives other weights."""
    return {row.name: getattr(options, row.field) for row in make_rows()[0] if row.shapes and row.name not in OFF}
