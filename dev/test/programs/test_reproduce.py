"""scripts/run_gpt*.sh and scripts/multi_node/ with SMOKE=1, in a copy of the repository: with the emulated trainer,
finished before, planned only; and what they refuse. nvidia-smi is a stand-in where a test needs it. How they are
interrupted and go on: test_multi_node.py."""
import glob
import os
import re
import shlex
import shutil

import pytest

import shell
from shell import COPY, end
from tools import ROOT, WORK, before_path, free_port, stand_ins, text_of

RECIPES = ["gpt2_124M", "gpt2_350M", "gpt2_774M", "gpt2_1558M", "gpt3_125M", "llama_smollm2_135M",
           "llama_8B"]
TRAINER = os.path.join(COPY, "train_gpt2emu")  # a path of its own is not built


def setup_module():
    shell.copy_repository()
    for name in ("train_gpt2emu", "train_llama3emu", "tokenize"):
        if os.path.exists(os.path.join(ROOT, name)):
            shutil.copy(os.path.join(ROOT, name), COPY)


@pytest.fixture
def emulated():
    if not os.path.exists(TRAINER):
        pytest.skip("no train_gpt2emu (make train_gpt2emu)")


def environment(**changes):
    """python3 is the one that runs the tests: it has numpy."""
    python = before_path({"python3": f'exec {shlex.quote(os.sys.executable)} "$@"\n'})
    return shell.environment(**{"TMPDIR": WORK, "SMOKE": "1", "TRAINER": TRAINER, "PATH": python, **changes})


def script_of(name):
    return os.path.join(COPY, "scripts", f"run_{name}.sh")


def folder_of(name):
    return os.path.join(COPY, f"run_smoke_{name}")


def ran(status, script, *arguments, cwd=WORK, **changes):
    """What a script prints that must end with this status."""
    return end(shell.begin(["bash", script, *arguments], environment(**changes), cwd), status)


def check_finished(name, out, steps=4):
    """What a run of so many steps leaves that went through all of a recipe."""
    folder = folder_of(name)
    for file in (f"model_{steps:08}.bin", f"state_{steps:08}.bin", "hf/model.safetensors", "hf/config.json"):
        assert os.path.getsize(os.path.join(folder, file)) > 0, file
    assert os.path.exists(os.path.join(folder, "curves.png")) or "plot.py: " in out, out[-1000:]
    log = text_of(os.path.join(folder, "main.log"))
    losses, scores = (re.findall(rf"^s:{steps} {key}:([\d.]+)$", log, re.M) for key in ("tel", "eval"))
    assert len(losses) == 1 and len(scores) == 1, log
    assert f": step {steps}: validation loss {losses[0]}, HellaSwag {scores[0]} (" in out.splitlines()[-1], out[-1000:]


# ---- The recipes ----


def test_124M_dies_and_goes_on(emulated):
    """Under nohup, from another folder."""
    out = end(shell.begin(["nohup", "bash", script_of("gpt2_124M")], environment(), WORK), 0)
    check_finished("gpt2_124M", out)
    assert "start 2 of 20, from step 2 of 4" in out and "ended without a word" in out, out[-3000:]


@pytest.mark.long
def test_124M_finished_before(emulated):
    """Only what is missing is made again; nothing is trained or fetched. An export that was cut short is no export."""
    folder = folder_of("gpt2_124M")
    if not os.path.exists(os.path.join(folder, "state_00000004.bin")):
        pytest.skip("no finished run: test_124M_dies_and_goes_on failed or was left out")
    log = text_of(os.path.join(folder, "main.log"))
    os.rename(os.path.join(folder, "hf"), os.path.join(folder, "hf.part"))
    os.remove(os.path.join(folder, "hf.part", "config.json"))
    out = ran(0, "scripts/run_gpt2_124M.sh", cwd=COPY)
    check_finished("gpt2_124M", out)
    assert "start 1 of" not in out and text_of(os.path.join(folder, "main.log")) == log, out
    made = os.path.getmtime(os.path.join(folder, "hf", "config.json"))
    kept = [line for line in log.splitlines(True) if not line.startswith("s:4 ")]  # stopped before its last validation
    with open(os.path.join(folder, "main.log"), "w", encoding="ascii") as file:
        file.writelines(kept)
    out = ran(0, "scripts/run_gpt2_124M.sh", cwd=COPY)
    assert "start 1 of" in out and "start 2 of" not in out and text_of(os.path.join(folder, "main.log")) == log, out
    assert os.path.getmtime(os.path.join(folder, "hf", "config.json")) == made


@pytest.mark.long
@pytest.mark.parametrize("name", ("gpt2_350M", "gpt2_774M", "gpt2_1558M"))
def test_on_one_gpu(name, emulated):
    """Without mpirun."""
    hidden = stand_ins({"python3": f'exec {shlex.quote(os.sys.executable)} "$@"\n'}, hidden=("mpirun",))
    check_finished(name, ran(0, script_of(name), GPUS="1", PATH=hidden))


@pytest.fixture
def llama():
    """The emulated trainer of Llamas."""
    trainer = os.path.join(COPY, "train_llama3emu")
    if not os.path.exists(trainer):
        pytest.skip("no train_llama3emu (make train_llama3emu)")
    return trainer


@pytest.mark.long
@pytest.mark.parametrize("name, tokenizer, grid", (
    ("llama_smollm2_135M", "smollm2_tokenizer.bin", ""),
    ("llama_8B", "llama3_tokenizer.bin", "\ngrid        1 data x 2 pipeline x 1 context x 2 tensor parallel\n")))
def test_llama(name, tokenizer, grid, llama):
    """With a tokenizer of another name."""
    out = ran(0, script_of(name), TRAINER=llama)
    check_finished(name, out)
    assert "start 2 of 20, from step 2 of 4" in out, out[-3000:]
    assert tokenizer in out and grid in out, out


# ---- The plan ----


def test_plan_only(emulated):
    """The plan, and the command as it would be started; nothing is fetched or trained."""
    out = ran(0, script_of("gpt2_124M"), "--prompt", "it's", SMOKE=None, GPUS="8", PLAN="1", OUT_DIR="run_plan")
    plan, command = out.partition("\nmpirun ")[::2]
    assert "\nauto        --batch-size 64 --recompute 0: " in plan and "\nfits        yes, 20." in plan, plan
    words = shlex.split(command.replace("\\\n", ""))
    assert words[:3] == ["-np", "8", "--bind-to"] and words[words.index("--prompt") + 1] == "it's", words
    assert words[words.index("--train-data") - 1] == TRAINER and words[-1] == "it's", words
    assert words[words.index("--train-data") + 1] == "dev/data/fineweb10B/fineweb_train_*.bin", words
    assert os.listdir(os.path.join(COPY, "run_plan")) == ["recipe.lock"]


@pytest.mark.parametrize("gpus, grid", ((8, "--tp 2"), (64, "--pp 2 --pp-schedule interleaved --pp-chunks 4")))
def test_plan_of_a_grid(gpus, grid, llama):
    """A card of 80 GB has 79 GiB and some. Nothing is recomputed, as the predicted times of the recipe assume."""
    emulator = dict(TRAINER=llama, EMU_CUDNN="1", EMU_NO_GPU="1")
    out = ran(0, script_of("llama_8B"), SMOKE=None, GPUS=str(gpus), PLAN="1", OUT_DIR="run_plan", **emulator)
    plan, command = out.partition("\nmpirun ")[::2]
    assert "\nauto        --recompute 0: " in plan and re.search(r"^fits +yes, .* \(79.00 GiB less", plan, re.M), plan
    words = " ".join(shlex.split(command.replace("\\\n", "")))
    assert words.startswith(f"-np {gpus} ") and f" --seq-len 8192 --total-batch 4194304 --batch-size 1 {grid} " in words


def test_plan_refuses(emulated):
    """Before the data are fetched, which takes hours."""
    for message, words in (
        ("the trainer refuses the options: train_gpt2emu: '--top_p': unknown option; the nearest is --top-p (--help "
         "all lists all)\n", ["--top_p=1"]),
        ("the run does not fit into the GPUs' memory, as the last line above says\n",
         ["--auto", "0", "-b", "512", "-r", "0"])):
        out = ran(1, script_of("gpt2_1558M"), *words, SMOKE=None, GPUS="1", OUT_DIR="run_plan")
        assert out.endswith("run_gpt2_1558M.sh: " + message) and "start 1" not in out, out


# ---- What is missing or wrong ----


def test_refusals():
    def smi(text):
        return dict(SMOKE=None, GPUS=None, PATH=before_path({"nvidia-smi": text}))

    no_gpu = "no GPU by nvidia-smi -L; GPUS=8 plans for 8; SMOKE=1 runs all"
    elsewhere = "set STEPS, OUT_DIR or PLAN=1 in the environment instead"
    for message, words, changes in (
        *((no_gpu, [], smi(says)) for says in ("echo 'NVIDIA-SMI has failed' >&2\nexit 9\n", "exit 0\n")),
        ("GPUS is '0', expected a whole number from 1 to 65536", [], dict(GPUS="0")),
        ("STEPS is 'x', expected a whole number from 1 to 999999999", [], dict(STEPS="x")),
        ("SMOKE is 'yes', expected a whole number from 0 to 1", [], dict(SMOKE="yes")),
        ("PAUSE is '1000', expected a whole number from 0 to 999", [], dict(PAUSE="1000")),
        ("MAX_STARTS is '0', expected a whole number from 1 to 99999", [], dict(MAX_STARTS="0")),
        ("OUT_DIR: /proc/nothing: not writable", [], dict(OUT_DIR="/proc/nothing")),
        ("TRAINER: /none: no such program; without TRAINER, one is built", [], dict(TRAINER="/none")),
        ("mpirun: no such program; install Open MPI, or start scripts/multi_node/run_tcp.sh, which needs none", [],
         dict(TRAINER="/bin/true", PATH=stand_ins({}, hidden=("mpirun",)))),
        *((f"{word.partition('=')[0]}: {elsewhere}", [word], {}) for word in ("--steps", "-o")),
        *((f"{name}: no such setting; the nearest is {setting} (--help lists all)", [], {name: "1"})
          for name, setting in (("STEP", "STEPS"), ("OUTDIR", "OUT_DIR"), ("PLAIN", "PLAN"), ("SMOEK", "SMOKE"))),
    ):
        out = ran(1, script_of("gpt2_124M"), *words, **changes)
        assert out.splitlines()[-1] == f"run_gpt2_124M.sh: {message}", (message, out)


def test_usual_environment():
    """No name that others use is taken for a misspelt setting."""
    names = """CC CFLAGS CPATH CPUS CUDA_HOME CUDA_PATH DISPLAY EDITOR GID HOME HOST HOSTNAME HOSTTYPE LANG LAST LINES
        LOGNAME MAIL MODEL NAME NODE OLDPWD OUT PAGER PARENT PLAN9 PORTS_DIR PWD RANK SHELL SHLVL TERM TMPDIR TRAIN TZ
        USER VERSION""".split()
    script = 'for name in $NAMES; do export "$name=1"; done; . scripts/common.sh'
    variables = dict(NAMES=" ".join(names), PATH=os.environ["PATH"])
    assert end(shell.begin(["bash", "-c", script], variables, ROOT), 0) == ""


def test_help():
    """Every setting that a script reads is one of common.sh's SETTINGS, and the help of a recipe says what it is."""
    common = text_of("scripts/common.sh")
    settings = set(re.search(r'^SETTINGS="(.*)"$', common, re.M)[1].split())
    for name in RECIPES:
        text = ran(0, script_of(name), "--help")
        assert f"\n  SMOKE=1 scripts/run_{name}.sh" in text and "To expect of " in text and "set -eu" not in text, text
        listed = set(re.findall(r"^  ([A-Z_]+)(?:=\S.*)?   ", text, re.M))
        assert listed == settings - {"RECIPE", "HOSTS", "PORT"}, listed ^ settings
    for name in ("run_mpi.sh", "run_tcp.sh"):
        text = ran(0, os.path.join(COPY, "scripts", "multi_node", name), "--help")
        assert "\n  RECIPE=scripts/run_gpt2_124M.sh   what is trained\n" in text, text
    scripts = "".join(text_of(file) for place in ("run*.sh", "common.sh", "multi_node/*")
                      for file in glob.glob(os.path.join(ROOT, "scripts", place)))
    others = "CUDA_VISIBLE_DEVICES|SLURM_SUBMIT_DIR|GPT2C_SECRET"
    reads = {name for name in re.findall(r"\$\{([A-Z]\w*):?[-=?]", scripts) if not re.fullmatch(others, name)}
    assert reads == settings, reads ^ settings


# ---- Fine-tuning on one GPU ----

FINETUNE = os.path.join(COPY, "scripts/finetune_llama_8B.sh")


def test_finetune_plan(llama):
    """8B fits into 24 GB with what the script names, and its head says how much it takes."""
    out = ran(0, FINETUNE, "README.md", "--gpu-memory", "23", cwd=COPY, SMOKE="0", PLAN="1", TRAINER=llama)
    text = text_of("scripts/finetune_llama_8B.sh")
    gpu, host = (re.search(rf"^#   {place}.*? ([\d.]+ GiB) .* planned", text, re.M)[1]
                 for place in ("on the GPU", "on the host"))
    assert f"\nmemory      {gpu} on the GPU, planned\n" in out, out
    assert f": {host} of pinned memory for each GPU\n" in out and "\nfits        yes, " in out, out


@pytest.mark.long
def test_finetune(llama):
    out = ran(0, FINETUNE, "README.md", cwd=COPY, OUT_DIR="run_smoke_finetune", TRAINER=llama)
    assert re.search(r": step 4: validation loss [\d.]+; for Hugging Face: run_smoke_finetune/hf$", out.strip()), out
    assert os.path.getsize(os.path.join(COPY, "run_smoke_finetune/hf/model.safetensors")) > 0
    assert "\noffload     optimizer,master,gradients,residuals: " in out and "moments in bf16" in out, out
    text = ran(0, FINETUNE, "--help")
    assert "TRAINER=./train_llama3cu" in text and "set -eu" not in text, text
    for more, says in (([], "give a text"), (["no_such.txt"], "no_such.txt: there is no such file"),
                       (["README.md", "--steps", "3"], "--steps: set STEPS")):
        assert says in ran(1, FINETUNE, *more, cwd=COPY, TRAINER=llama)


# ---- Several nodes ----

# One node: test_multi_node.py has several, and Slurm, but a machine's emulated GPUs are all of one host.
@pytest.mark.long
@pytest.mark.parametrize("script", ("run_mpi.sh", "run_tcp.sh"))
def test_several_nodes(script, emulated):
    out = ran(0, os.path.join(COPY, "scripts", "multi_node", script), OUT_DIR="run_smoke_nodes_" + script, STEPS="1",
              PORT=str(free_port()), RECIPE="scripts/run_gpt3_125M.sh")
    assert "\nranks       2 on " in out and ": step 1: validation loss " in out, out[-3000:]
