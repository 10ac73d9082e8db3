"""README.md, CONTRIBUTING.md and doc/ say only what is true: files, options and make targets that they name exist, and
every command line of the programs in them runs (on small stand-ins for a user's files, for a few steps of a tiny
model)."""
import glob
import os
import re
import shlex
import shutil
import subprocess
import sys

import pytest

from formats import pair_tokenizer
from tools import ROOT, free_port, new_folder, path, text_of, write

DOCUMENTS = ["README.md", "CONTRIBUTING.md", "doc/usage.md", "doc/several_gpus.md", "doc/reproduce.md", "doc/tests.md",
             "doc/muon.md", "doc/glossary.md",
             *(f"doc/{os.path.basename(path)}" for path in sorted(glob.glob(os.path.join(ROOT, "doc", "[0-9]*.md"))))]
PROGRAMS = {name: os.path.join(ROOT, os.environ.get(name.upper(), name))
            for name in ("train_gpt2", "train_llama3", "tokenize")}
# The GPU trainer is run emulated, where that was built.
EMULATED = os.path.join(ROOT, os.environ.get("TRAIN_GPT2CU", "train_gpt2emu"))
GPU_PROGRAMS = ("train_gpt2cu", "train_gpt2emu")
needs_emulator = pytest.mark.skipif(not os.path.exists(EMULATED), reason="no emulated trainer (make train_gpt2emu)")
# Names that stand for a user's own files, or for what a run writes.
OF_THE_USER = re.compile(r"^(run|build/|shards/|(?:gpt2|smollm2)\.bin|book|(main|speed|console)\.log$|state_"
                         r"|model_(best|[\d*])"
                         r"|model\.safetensors|config\.json|(?:gpt2_|smollm2_)?tokenizer\.bin)")


def shell_lines(document):
    """The commands of the ```sh blocks: comments dropped, continued lines joined."""
    for block in re.findall(r"^```sh\n(.*?)^```", text_of(document), re.M | re.S):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words:
                yield words


def code_spans(document):
    text = re.sub(r"^```.*?^```", "", text_of(document), flags=re.M | re.S)
    return [span.replace("\n", " ") for span in re.findall(r"`([^`]+)`", text)]


def help_from(*command):
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, (command, result)
    return result.stdout


def options_in(text):
    return set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", text))


def test_paths_and_links_exist():
    missing = []
    for document in DOCUMENTS:
        for word in " ".join(code_spans(document)).split():
            word = re.sub(r"^\./", "", word.strip("'\"(")).rstrip("'\").,:;")
            looks_like_a_path = re.fullmatch(r"\.?[\w.*/-]+(/|\.(c|h|py|sh|md|yml|cu|cuh|cpp|bin|txt))", word)
            if looks_like_a_path and not OF_THE_USER.match(word) and word not in (".bin", ".h", ".c", ".py"):
                missing += [f"{document}: {word}"] * (not glob.glob(os.path.join(ROOT, word)))
        links = re.findall(r"\]\((?!http)([^)#]+)\)", text_of(document))
        missing += [f"{document}: {link}" for link in links
                    if not os.path.exists(os.path.join(ROOT, os.path.dirname(document), link))]
    assert not missing, missing


def test_make_targets_exist():
    """make knows the targets."""
    targets = {}
    for document in DOCUMENTS:
        spans = [shlex.split(span) for span in code_spans(document) if span.startswith("make ")]
        for words in [words[1:] for words in [*shell_lines(document), *spans] if words[0] == "make"]:
            switches = tuple(word for word in words if "=" in word)
            targets.setdefault(switches, set()).update(set(words) - set(switches))
    assert sum(map(len, targets.values())) >= 8, targets
    for switches, names in targets.items():
        # make notes its flags in the build folder, and other flags would build everything anew.
        build = dict(switch.split("=", 1) for switch in switches).get("BUILD", "build")
        words = [re.sub(rf"(^|=){build}(?=/|$)", rf"\1{path('make')}", word) for word in (*switches, *names)]
        help_from("make", "-n", *words, f"BUILD={new_folder('make')}")


def test_options_exist():
    """Those of commands are tried by test_commands_run and test_python_commands."""
    helps = help_from("bash", "scripts/test.sh", "--help") + help_from(PROGRAMS["tokenize"], "--help")
    rows = re.findall(r"^    X\(\w+, \"([a-z0-9-]+)\"", text_of("llmc/run/train_options.h"), re.M)
    of_launchers = {"--allow-run-as-root", "--bind-to", "--mpi", "--nproc-per-node", "--oversubscribe", "--rm"}
    known = options_in(helps + help_from(PROGRAMS["train_gpt2"], "--help", "all")) | {f"--{name}" for name in rows}
    for name in glob.glob(os.path.join(ROOT, "dev", "**", "*.py"), recursive=True):
        known |= set(re.findall(r"[(\[]\"(?:-\w\", \")?(--[a-z][a-z0-9-]*)\"", text_of(name)))
    for document in DOCUMENTS:
        named = options_in("\n".join(code_spans(document)))
        assert named <= known | of_launchers, f"{document}: no program has {named - known}"


TINY = ["--layers", "1", "--heads", "1", "--channels", "16"]


def prepare():
    """A folder of small stand-ins for the files that the documents' commands name: a book, vocabularies, two models."""
    folder = new_folder("docs")
    write("docs/book.txt", " ".join(f"This is sentence {i} of a book." for i in range(2000)))
    os.mkdir(path("docs", "shards"))
    for program, name in (("train_gpt2", "gpt2"), ("train_llama3", "smollm2")):
        write(f"docs/{name}_tokenizer.bin", pair_tokenizer())
        subprocess.run([PROGRAMS[program], *TINY, "--train-data", "book.txt", "--tokenizer", f"{name}_tokenizer.bin",
                        "--steps", "1", "--out-dir", name], cwd=folder, check=True, capture_output=True)
        os.rename(path("docs", name, "model_00000001.bin"), path("docs", f"{name}.bin"))
    return folder


def shrunk(words):
    """The same command for a tiny model and few steps. A model that exists keeps its size. Of two values of an option
    the last one counts."""
    if "--steps" in words and words[words.index("--steps") + 1] == "0":
        return words
    words = words + ["--steps", "2"] + ["--seq-len", "16"] * ("--plan" not in words)
    init = words[words.index("--init") + 1] if "--init" in words else ""
    is_new = re.fullmatch(r"(llama:|smollm2:)?(d\d+|\d+M)", init) or not init and "--layers" not in words
    return words + TINY if is_new else words


def groups_of_commands(document):
    """The document's commands, each a list of one; those of the processes of one run are one list."""
    groups = []
    for words in shell_lines(document):
        rank = words[words.index("--process-rank") + 1] if "--process-rank" in words else "0"
        if rank == "0":
            groups.append([])
        groups[-1].append(words)
    return groups


def run_together(commands, folder):
    """Runs the processes of one run at the same time; returns their errors."""
    processes = [subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  env=dict(os.environ, OMP_NUM_THREADS="1", EMU_THREADS="1", EMU_CHECK="0"))
                 for command in commands]
    try:
        return [(p.communicate(timeout=120)[1], p.returncode) for p in processes]
    finally:
        for process in processes:
            process.kill()


def run_commands(programs):
    """Runs the documents' commands of these programs (name -> path), in their order, so that a command finds what the
    ones before it left. Returns how many."""
    ran, folder = 0, prepare()
    for document, group in ((document, group) for document in DOCUMENTS for group in groups_of_commands(document)):
        launcher, name = [], group[0][0][2:] if group[0][0].startswith("./") else ""
        if group[0][:2] == ["mpirun", "-np"] and shutil.which("mpirun"):
            launcher = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2"]
            group, name = [group[0][3:]], group[0][3][2:]
        if name not in programs:
            continue
        port, commands = free_port(), []
        for words in group:
            arguments = words[1:] if name == "tokenize" else shrunk(words[1:])
            if name in GPU_PROGRAMS:
                arguments += "--seq-len 8 --batch-size 2 --val-every 0 --sample-every 0".split()
                for option, value in (("--server-ip", f"127.0.0.1:{port}"), ("--total-batch", "32")):
                    arguments += [option, value] * (option in words)
            if "--out-dir" in words and "--resume" not in words:  # the documents reuse one name for many runs
                shutil.rmtree(os.path.join(folder, words[words.index("--out-dir") + 1]), ignore_errors=True)
            commands.append([*launcher, programs[name], *arguments])
        for error, status in run_together(commands, folder):
            told = error == b"" or ["--steps", "0"] in [words[i:i + 2] for words in group for i in range(len(words))]
            assert status == 0 and told, (document, group, status, error)
        ran += name != "tokenize"
    return ran


def test_commands_run():
    ran = run_commands(PROGRAMS)
    assert ran >= 8, ran


@pytest.mark.long
@needs_emulator
def test_gpu_commands_run():
    ran = run_commands(dict(tokenize=PROGRAMS["tokenize"], **{name: EMULATED for name in GPU_PROGRAMS}))
    assert ran >= 4, ran


def test_python_commands():
    """The commands `python3 dev/...` of all blocks: their options exist."""
    blocks = "".join(re.findall(r"^```\w+\n(.*?)^```", "\n".join(map(text_of, DOCUMENTS)), re.M | re.S))
    lines, helps = re.findall(r"^python3 (dev/\S+\.py)(.*?)(?:   .*)?$", blocks, re.M), {}  # ...: what it is good for
    assert len(lines) >= 10, lines
    for program, words in lines:
        if program not in helps:
            helps[program] = help_from(sys.executable, program, "--help")
        for option in re.findall(r" (--?[a-z][a-z_-]*)", words):
            assert re.search(rf"(?<![\w-]){re.escape(option)}\b", helps[program]), (program, words, option)


def test_excerpts():
    """C in a document stands line by line in the file that the line above it names, perhaps further to the right."""
    text = "\n".join(map(text_of, DOCUMENTS))
    excerpts = re.findall(r"(doc/simple/\w+\.cu?)[^\n]*\n\n```c\n(.*?)^```$", text, re.M | re.S)
    assert len(excerpts) == text.count("\n```c\n") > 0
    for file, lines in excerpts:
        lines, source = (re.sub("^ +", "", text, flags=re.M) for text in (lines, text_of(file)))
        assert "\n" + lines in source, (file, lines)


# ---- What the documents show of a program's output ----


@pytest.mark.long
@needs_emulator
def test_meter_table():
    """The emulator's meter prints the table of doc/kernels.md."""
    page = text_of("doc/kernels.md")
    build, command, table = re.search(r"```sh\n(make METER=1 .*?)\n(EMU_METER=1 .*?)\n```\n\n```text\n(.*?)```", page,
                                      re.S).groups()
    subprocess.run(build, shell=True, cwd=ROOT, check=True, capture_output=True)
    result = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0 and result.stderr == table, result.stderr
