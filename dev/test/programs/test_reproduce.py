"""scripts/run_gpt*.sh and scripts/multi_node/ with SMOKE=1, in a copy of the repository: with the emulated trainer,
finished before, planned only; and what they refuse. nvidia-smi is a stand-in where a test needs it. How they are
interrupted and go on: test_multi_node.py."""
import os
import re
import shlex
import shutil

import pytest

import shell
from shell import COPY, end
from tools import ROOT, WORK, before_path, free_port, stand_ins, text_of

RECIPES = ["gpt2_124M", "gpt2_350M", "gpt2_774M", "gpt2_1558M", "gpt3_125M", "llama_smollm2_135M", "llama_8B"]
TRAINER, LLAMA = (os.path.join(COPY, name) for name in ("train_gpt2emu", "train_llama3emu"))  # paths: not built


def setup_module():
    shell.copy_repository()
    for name in ("train_gpt2emu", "train_llama3emu", "tokenize"):
        if os.path.exists(os.path.join(ROOT, name)):
            shutil.copy(os.path.join(ROOT, name), COPY)


emulated, llama = (pytest.mark.skipif(not os.path.exists(f"{ROOT}/{name}"), reason=f"no {name} (make {name})")
                   for name in ("train_gpt2emu", "train_llama3emu"))


def environment(**changes):
    """python3 is the one that runs the tests: it has numpy."""
    python = before_path({"python3": f'exec {shlex.quote(os.sys.executable)} "$@"\n'})
    return shell.environment(**{"TMPDIR": WORK, "SMOKE": "1", "TRAINER": TRAINER, "PATH": python, **changes})


def script_of(name):
    return os.path.join(COPY, "scripts", f"run_{name}.sh")


def ran(status, script, *arguments, cwd=WORK, **changes):
    """What a script prints that must end with this status."""
    return end(shell.begin(["bash", script, *arguments], environment(**changes), cwd), status)


def check_finished(name, out):
    """What a run leaves that went through all of a recipe. Returns its log."""
    folder = os.path.join(COPY, f"run_smoke_{name}")
    for file in ("model_00000004.bin", "state_00000004.bin", "hf/model.safetensors", "hf/config.json"):
        assert os.path.getsize(os.path.join(folder, file)) > 0, file
    assert os.path.exists(os.path.join(folder, "curves.png")) or "plot.py: " in out, out[-1000:]
    log = text_of(os.path.join(folder, "main.log"))
    loss, score = (re.search(rf"^s:4 {key}:([\d.]+)$", log, re.M)[1] for key in ("tel", "eval"))
    assert f": step 4: validation loss {loss}, HellaSwag {score} (" in out.splitlines()[-1], out[-1000:]
    return log


# ---- The recipes ----


@emulated
def test_124M_dies_and_goes_on():
    """Under nohup, from another folder."""
    out = end(shell.begin(["nohup", "bash", script_of("gpt2_124M")], environment(), WORK), 0)
    check_finished("gpt2_124M", out)
    assert "start 2 of 20, from step 2 of 4" in out and "ended without a word" in out, out[-3000:]


@pytest.mark.long
def test_124M_finished_before():
    """Started again, it is validated once more, and what is missing is made."""
    folder = os.path.join(COPY, "run_smoke_gpt2_124M")
    if not os.path.exists(os.path.join(folder, "state_00000004.bin")):
        pytest.skip("no finished run: test_124M_dies_and_goes_on failed or was left out")
    os.rename(os.path.join(folder, "hf"), os.path.join(folder, "hf.part"))  # an export that was cut short is no export
    os.remove(os.path.join(folder, "hf.part", "config.json"))
    log = text_of(os.path.join(folder, "main.log"))
    out = ran(0, "scripts/run_gpt2_124M.sh", cwd=COPY)
    again = check_finished("gpt2_124M", out)
    assert "has done 4 of 4 steps" in out and "start 2 of" not in out, out
    assert again.startswith(log) and set(again.splitlines()) == set(log.splitlines()), again


@emulated
@pytest.mark.long
@pytest.mark.parametrize("name", ("gpt2_350M", "gpt2_774M", "gpt2_1558M"))
def test_on_one_gpu(name):
    """Without mpirun."""
    hidden = stand_ins({"python3": f'exec {shlex.quote(os.sys.executable)} "$@"\n'}, hidden=("mpirun",))
    check_finished(name, ran(0, script_of(name), GPUS="1", PATH=hidden))


@llama
@pytest.mark.long
@pytest.mark.parametrize("name, tokenizer, grid", (
    ("llama_smollm2_135M", "smollm2_tokenizer.bin", ""),
    ("llama_8B", "llama3_tokenizer.bin", "\ngrid        1 data x 2 pipeline x 1 context x 2 tensor parallel\n")))
def test_llama(name, tokenizer, grid):
    """With a tokenizer of another name."""
    out = ran(0, script_of(name), TRAINER=LLAMA)
    check_finished(name, out)
    assert "start 2 of 20, from step 2 of 4" in out, out[-3000:]
    assert tokenizer in out and grid in out, out


# ---- The plan ----


def planned(name, *arguments, **changes):
    """The plan of a recipe, and the words behind mpirun."""
    out = ran(0, script_of(name), *arguments, SMOKE=None, PLAN="1", OUT_DIR="run_plan", **changes)
    plan, command = out.partition("\nmpirun ")[::2]
    return plan, shlex.split(command.replace("\\\n", ""))


@emulated
def test_plan_only():
    """The plan, and the command as it would be started; nothing is fetched or trained."""
    plan, words = planned("gpt2_124M", "--prompt", "it's", GPUS="8")
    assert "\nauto        --batch-size 64 --recompute 0: " in plan and "\nfits        yes, 20." in plan, plan
    assert words[:3] == ["-np", "8", "--bind-to"] and words[words.index("--prompt") + 1] == "it's", words
    assert words[words.index("--train-data") - 1] == TRAINER and words[-1] == "it's", words
    assert words[words.index("--train-data") + 1] == "dev/data/fineweb10B/fineweb_train_*.bin", words
    assert os.listdir(os.path.join(COPY, "run_plan")) == ["recipe.lock"]


@llama
@pytest.mark.parametrize("gpus, grid", ((8, "--tp 2"), (64, "--pp 2 --pp-schedule interleaved --pp-chunks 4")))
def test_plan_of_a_grid(gpus, grid):
    """A card of 80 GB has 79 GiB and some. Nothing is recomputed, as the predicted times of the recipe assume."""
    plan, words = planned("llama_8B", GPUS=str(gpus), TRAINER=LLAMA, EMU_CUDNN="1", EMU_NO_GPU="1")
    assert "\nauto        --recompute 0: " in plan and re.search(r"^fits +yes, .* \(79.00 GiB less", plan, re.M), plan
    assert words[:2] == ["-np", str(gpus)], words
    assert f" --seq-len 8192 --total-batch 4194304 --batch-size 1 {grid} " in " ".join(words), words


@emulated
def test_plan_refuses():
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
    for message, words, changes in (
        ("no GPU by nvidia-smi -L; GPUS=8 plans for 8; SMOKE=1 runs all", [],
         dict(SMOKE=None, GPUS=None, PATH=before_path({"nvidia-smi": "echo 'NVIDIA-SMI has failed' >&2\nexit 9\n"}))),
        ("STEPS is 'x', expected a whole number from 1 to 999999999", [], dict(STEPS="x")),
        ("SMOKE is 'yes', expected a whole number from 0 to 1", [], dict(SMOKE="yes")),
        ("OUT_DIR: /proc/nothing: not writable", [], dict(OUT_DIR="/proc/nothing")),
        ("TRAINER: /none: no such program; without TRAINER, one is built", [], dict(TRAINER="/none")),
        ("mpirun: no such program; install Open MPI, or start scripts/multi_node/run_tcp.sh, which needs none", [],
         dict(TRAINER="/bin/true", PATH=stand_ins({}, hidden=("mpirun",)))),
        ("--steps=3: set STEPS, OUT_DIR or PLAN=1 in the environment instead", ["--steps=3"], {}),
    ):
        out = ran(1, script_of("gpt2_124M"), *words, **changes)
        assert out.splitlines()[-1] == f"run_gpt2_124M.sh: {message}", (message, out)


def test_help():
    """Every setting that a script reads is in its help."""
    of_all = set(re.findall(r"^#   ([A-Z_]+)(?:=\S.*)?   ", text_of("scripts/common.sh"), re.M))
    for name in [f"run_{recipe}.sh" for recipe in RECIPES] + ["multi_node/run_mpi.sh", "multi_node/run_tcp.sh"]:
        text, source = ran(0, os.path.join(COPY, "scripts", name), "--help"), text_of(f"scripts/{name}")
        assert f"\n  SMOKE=1 scripts/{name}" in text and "set -eu" not in text, text
        listed = set(re.findall(r"^  ([A-Z_]+)(?:=\S.*)?   ", text, re.M))
        own = set(re.findall(r'^: "\$\{([A-Z]+):=', source, re.M))
        assert listed == of_all | own and "MAX_STARTS" in listed, listed


# ---- Fine-tuning on one GPU ----

FINETUNE = os.path.join(COPY, "scripts/finetune_llama_8B.sh")


@llama
def test_finetune_plan():
    """8B fits into 24 GB with what the script names, and its head says how much it takes."""
    out = ran(0, FINETUNE, "README.md", "--gpu-memory", "23", cwd=COPY, SMOKE="0", PLAN="1", TRAINER=LLAMA)
    text = text_of("scripts/finetune_llama_8B.sh")
    gpu, host = (re.search(rf"^#   {place}.*? ([\d.]+ GiB) .* planned", text, re.M)[1]
                 for place in ("on the GPU", "on the host"))
    assert f"\nmemory      {gpu} on the GPU, planned\n" in out, out
    assert f": {host} of pinned memory for each GPU\n" in out and "\nfits        yes, " in out, out


@llama
@pytest.mark.long
def test_finetune():
    out = ran(0, FINETUNE, "README.md", cwd=COPY, OUT_DIR="run_smoke_finetune", TRAINER=LLAMA)
    assert re.search(r": step 4: validation loss [\d.]+, HellaSwag unknown \(for Hugging Face: ", out), out
    assert os.path.getsize(os.path.join(COPY, "run_smoke_finetune/hf/model.safetensors")) > 0
    assert "\noffload     optimizer,master,gradients,residuals: " in out and "moments in bf16" in out, out
    for more, says in (([], "give a text"), (["no_such.txt"], "no_such.txt: there is no such file")):
        assert says in ran(1, FINETUNE, *more, cwd=COPY, TRAINER=LLAMA)


# ---- Several nodes ----

# One node: test_multi_node.py has several, and Slurm, but a machine's emulated GPUs are all of one host.
@emulated
@pytest.mark.long
@pytest.mark.parametrize("script", ("run_mpi.sh", "run_tcp.sh"))
def test_several_nodes(script):
    out = ran(0, os.path.join(COPY, "scripts", "multi_node", script), OUT_DIR="run_smoke_nodes_" + script, STEPS="1",
              PORT=str(free_port()), RECIPE="scripts/run_gpt3_125M.sh")
    assert "\nranks       2 on " in out and ": step 1: validation loss " in out, out[-3000:]
