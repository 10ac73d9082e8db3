"""scripts/run_gpt*.sh and scripts/multi_node/ with SMOKE=1, from the machine's check to the summary, in a copy of the
repository: with the emulated trainer, interrupted, with data that do not come, finished before; and what they say where
something is missing. nvidia-smi is a stand-in where a test needs it."""
import glob
import os
import re
import shutil
import subprocess

import pytest

import shell
from shell import COPY, end
from tools import ROOT, WORK, Terminal, before_path, free_port, text_of

PROGRAMS = ["train_gpt2emu", "tokenize"]
RECIPES = ["gpt2_124M", "gpt2_350M", "gpt2_774M", "gpt2_1558M", "gpt3_125M"]


def setup_module():
    shell.copy_repository()
    for name in PROGRAMS:
        if os.path.exists(os.path.join(ROOT, name)):
            shutil.copy(os.path.join(ROOT, name), COPY)


def environment(**changes):
    return shell.environment(**{"TMPDIR": WORK, "SMOKE": "1", "CFLAGS": "-O1", **changes})


def emulated():
    """The setting for two emulated GPUs."""
    if not os.path.exists(os.path.join(COPY, "train_gpt2emu")):
        pytest.skip("no train_gpt2emu (make train_gpt2emu)")
    return {"PROGRAM": "./train_gpt2emu"}


def script_of(name):
    return os.path.join(COPY, "scripts", f"run_{name}.sh")


def folder_of(name):
    return os.path.join(COPY, f"run_smoke_{name}")


def begin(script, *arguments, cwd=WORK, **changes):
    return shell.begin(["bash", script, *arguments], environment(**changes), cwd)


def ran(status, script, *arguments, **keywords):
    """What a script prints that must end with this status."""
    return end(begin(script, *arguments, **keywords), status)


def refused(message, script, **keywords):
    out = ran(1, script, **keywords)
    assert out.endswith(f"{os.path.basename(script)}: {message}\n"), (message, out)


def gpus(count, mib):
    return "".join(f"echo 'NVIDIA H100, {mib}'\n" for _ in range(count))


def draws_curves():
    return any(subprocess.run([python, "-c", "import matplotlib"], capture_output=True, check=False).returncode == 0
               for python in ("python3", "/usr/bin/python3"))


def check_finished(name, out, steps=4):
    """What a run of so many steps leaves that went through all stages."""
    folder = folder_of(name)
    for stage in ("build", "plan", "fetch", "train", "summary"):
        assert re.search(rf"^\d\d:\d\d:\d\d {stage} ", out, re.M), (stage, out[-3000:])
    checkpoint = (f"model_{steps:08}.bin", f"state_{steps:08}.bin")
    for file in (*checkpoint, "hf/model.safetensors", "hf/config.json"):
        assert os.path.getsize(os.path.join(folder, file)) > 0, file
    assert os.path.exists(os.path.join(folder, "curves.png")) == draws_curves(), os.listdir(folder)
    log = text_of(os.path.join(folder, "main.log"))
    losses, scores = (re.findall(rf"^s:{steps} {key}:([\d.]+)$", log, re.M) for key in ("tel", "eval"))
    assert len(losses) == 1 and len(scores) == 1, log
    assert f", step {steps} of {steps}: validation loss {losses[0]}, HellaSwag {scores[0]}\n" in out, out[-1000:]
    planned, = set(re.findall(r"^[\d:]+ plan +memory: ([\d.]+) MiB", out, re.M))
    taken, = set(re.findall(r"^memory +([\d.]+) MiB", out, re.M))  # and the rows of HellaSwag
    assert 0.0 <= float(taken) - float(planned) < 0.02, "the check before the run and the run plan for different GPUs"


# ---- The recipes ----


def test_124M_dies_and_goes_on():
    """Under nohup, from another folder."""
    settings = environment(CDPATH=".:" + ROOT, **emulated())  # where cd looks, and says so
    out = end(shell.begin(["nohup", "bash", script_of("gpt2_124M")], settings, WORK), 0)
    check_finished("gpt2_124M", out)
    assert re.search(r"start 2 of 20, from step 2: ", out) and "ended without a word" in out, out[-3000:]


def test_124M_finished_before():
    """Only what is missing is made again; nothing is trained."""
    changes = emulated()
    folder = folder_of("gpt2_124M")
    if not os.path.exists(os.path.join(folder, "state_00000004.bin")):
        pytest.skip("no finished run: test_124M_dies_and_goes_on failed or was left out")
    log = text_of(os.path.join(folder, "main.log"))
    os.remove(os.path.join(folder, "hf", "model.safetensors"))  # as an export that was killed leaves it
    with open(os.path.join(folder, "hf", "thesis.txt"), "w", encoding="ascii") as file:
        file.write("years of work")
    out = ran(1, "scripts/run_gpt2_124M.sh", cwd=COPY, **changes)
    assert "run_smoke_gpt2_124M/hf: is not empty" in out, out
    assert os.listdir(os.path.join(folder, "hf")) == ["thesis.txt"]
    os.remove(os.path.join(folder, "hf", "thesis.txt"))
    out = ran(0, "scripts/run_gpt2_124M.sh", cwd=COPY, **changes)
    assert "step 4 of 4 is saved in run_smoke_gpt2_124M: nothing to train\n" in out, out
    assert "start 1 of" not in out and " fetch " not in out, out
    assert text_of(os.path.join(folder, "main.log")) == log
    assert os.path.exists(os.path.join(folder, "hf", "model.safetensors")) and "summary" in out, out
    again = ran(0, "scripts/run_gpt2_124M.sh", cwd=COPY, **changes)
    assert "export   run_smoke_gpt2_124M/hf is here" in again, again


@pytest.mark.long
def test_350M_interrupted_on_a_terminal():
    """Ctrl-C; then the same command finishes the run. Two scripts hand Ctrl-C on, each within a second."""
    command, settings = ["bash", script_of("gpt2_350M"), "--steps", "60"], environment(**emulated())
    with Terminal(command, cwd=WORK, env=settings) as terminal:
        terminal.until(r"step +1/60 \|")
        terminal.press(b"\x03")
        seen = terminal.finish(130).replace("\r\n", "\n")
    stopped = re.search(r"stopped by SIGINT at step (\d+) of 60. The same command goes on.\n", seen)
    assert stopped and 1 <= int(stopped[1]) < 60, seen[-3000:]
    out = end(shell.begin(command, settings, "/"), 0)
    assert f"step {stopped[1]} of 60, to step 60" in out and " --nccl-init fs " in out, out
    check_finished("gpt2_350M", out, 60)


def test_774M_data_that_do_not_come():
    """A shard that the mirror lacks; then it is there, and the same command goes on with what came before."""
    ran(0, script_of("gpt2_774M"), STAGES="build", **emulated())
    shard, = glob.glob(os.path.join(folder_of("gpt2_774M"), "mirror/**/fineweb100B-gpt2/**/fineweb_train_000002.bin"),
                       recursive=True)
    os.rename(shard, shard + ".gone")
    out = ran(1, script_of("gpt2_774M"), **emulated())
    assert out.endswith("the data did not come; what has come stays, and the same command goes on with it\n"), out
    assert "fineweb_train_000002.bin" in out and "restart.sh" not in out, out
    os.rename(shard + ".gone", shard)
    check_finished("gpt2_774M", ran(0, script_of("gpt2_774M"), **emulated()))


@pytest.mark.long
@pytest.mark.parametrize("name", ("gpt2_1558M", "gpt3_125M"))
def test_on_one_gpu(name):
    check_finished(name, ran(0, script_of(name), GPUS_PER_NODE="1", **emulated()))


# ---- What is missing or wrong ----


def test_refusals():
    no_gpu = "nvidia-smi finds no GPU. SMOKE=1 runs everything in small on the CPU"
    one = dict(SMOKE=None, STAGES="plan", PROGRAM="/bin/true", PATH=before_path({"nvidia-smi": gpus(1, 80000)}))
    nothing = dict(PROGRAM="./none", OUT_DIR="run_smoke_nothing")
    for message, changes in (
        *((no_gpu, dict(one, PATH=before_path({"nvidia-smi": says})))
          for says in ("echo 'NVIDIA-SMI has failed' >&2\nexit 9\n", "exit 0\n")),
        ("GPUS_PER_NODE is '0', expected 1 to 1, as many as nvidia-smi finds", dict(one, GPUS_PER_NODE="0")),
        ("GPUS_PER_NODE is 'x', expected 1 to 1, as many as nvidia-smi finds", dict(one, GPUS_PER_NODE="x")),
        ("SMOKE is 'yes', expected 1 (everything in small, on the CPU) or 0", dict(SMOKE="yes")),
        ("STAGES: there is no 'trian', expected some of: build plan fetch train export plot summary",
         dict(STAGES="build trian")),
        ("PAUSE is '1000', expected whole seconds, 0 to 999", dict(PAUSE="1000")),
        ("MAX_STARTS is 'abc', expected 1 to 99999", dict(MAX_STARTS="abc")),
        ("/proc/nothing: this folder cannot be made (OUT_DIR names another)", dict(OUT_DIR="/proc/nothing")),
        ("run_smoke_nothing: has no main.log, and so nothing to sum up yet", dict(nothing, STAGES="summary")),
        ("run_smoke_nothing: has no checkpoint of step 4, and so nothing to export yet",
         dict(nothing, STAGES="export")),
        ("./none: no such program (PROGRAM names it; without it, one is built)", dict(nothing, STAGES="build")),
    ):
        refused(message, script_of("gpt2_124M"), **changes)


def test_help():
    """Of the recipes and of multi_node/: its settings are those that the scripts read."""
    for name in RECIPES:
        text = ran(0, script_of(name), "--help")
        assert f"  SMOKE=1 scripts/run_{name}.sh" in text and "To expect: " in text and "set -eu" not in text, text
    multi_node = os.path.join(COPY, "scripts", "multi_node")
    for script, cwd in (("run_tcp.sh", multi_node), ("multi_node/run_mpi.sh", os.path.dirname(multi_node))):
        text = ran(0, script, "--help", cwd=cwd)
        assert "\nSettings, in the environment:\nSMOKE  " in text, script
    scripts = "".join(text_of(file) for place in ("r*.sh", "multi_node/*")
                      for file in glob.glob(os.path.join(ROOT, "scripts", place)))
    of_others = "TMPDIR|(CUDA|SLURM|OMPI|NCCL|GPT2C)_.*|LD_LIBRARY_PATH"
    takes = {name for name in re.findall(r"\$\{([A-Z]\w*):?[-?]", scripts) if not re.fullmatch(of_others, name)}
    assert takes - {"HOSTS,"} == set(re.findall(r"^([A-Z_]+) +\S", text[text.index("Settings, "):], re.M)), takes


def large(smi):
    """Settings of a machine with these GPUs, whose trainer is the emulated one."""
    return dict(emulated(), SMOKE=None, STAGES="build plan", PATH=before_path({"nvidia-smi": smi}))


def test_memory_decides_the_micro_batch():
    """By the trainer's --auto, for what the fullest GPU has free; options take its place."""
    def auto(*arguments, **changes):
        out = ran(0, script_of("gpt2_124M"), *arguments, **changes)
        return re.search(r"^[\d:]+ plan +auto: (.*): fits into ", out, re.M)[1], out

    assert auto(**large(gpus(8, 80000)))[0] == "--batch-size 64 --recompute 0"
    assert auto(**large(gpus(8, 15000)))[0] == "--batch-size 32 --recompute 0"
    mixed = large("[ \"$3\" != --id=1,3 ] || exec " + gpus(1, 80000).replace("echo", "printf '%s\\n%s\\n'")
                  .rstrip("\n") + " 'NVIDIA H100, 80000'\n" + gpus(1, 9000) + gpus(3, 80000))
    chosen, out = auto(CUDA_VISIBLE_DEVICES="1,3", **mixed)
    assert chosen == "--batch-size 128 --recompute 0" and "2 x NVIDIA H100, 80000 MiB free" in out, (chosen, out)
    assert "4 x NVIDIA H100, 9000 MiB free" in auto(**mixed)[1]
    assert auto("--batch-size=4", **large(gpus(1, 80000)))[0] == "--recompute 0"
    out = ran(0, script_of("gpt2_124M"), "-b", "4", "-r", "1", "--auto", "0", **large(gpus(1, 80000)))
    assert " plan     fits: yes, " in out and " auto: " not in out, out


def test_too_little_memory():
    out = ran(1, script_of("gpt2_1558M"), **large(gpus(1, 14000)))
    assert re.search(r"run_gpt2_1558M.sh: ./train_gpt2emu --plan: --auto: nothing fits: --batch-size 1 --recompute 3 "
                     r"takes .*; use more GPUs with --zero-stage 3, or choose a smaller model\n$", out), out
    out = ran(1, script_of("gpt2_1558M"), "--auto=0", "-b", "4", "-r", "0", **large(gpus(1, 14000)))
    assert re.search(r"\nrun_gpt2_1558M.sh: NVIDIA H100: the run does not fit: no, .* are missing: .*\n$", out), out


def test_arguments_are_planned():
    """What is wrong with them is found before the data are fetched, which takes hours; the plan follows them."""
    settings = large(gpus(8, 80000))
    out = ran(1, script_of("gpt2_124M"), "--prompt", "it's", "--top_p=1", **dict(settings, STAGES="plan fetch"))
    assert out.endswith("run_gpt2_124M.sh: ./train_gpt2emu --plan: '--top_p': unknown option; the nearest is --top-p "
                        "(--help all lists all)\n") and " fetch " not in out, out

    def planned(*arguments):
        out = ran(0, script_of("gpt2_124M"), *arguments, **settings)
        return float(re.search(r"^[\d:]+ plan +memory: ([\d.]+) GiB", out, re.M)[1])

    short = "-b", "32", "-t", "512"
    assert planned("--batch-size=32", "-t", "512", "-x", "9", "-r", "3", "--auto", "0") < 0.5 * planned(*short)
    assert planned("--layers", "96", "--eval-examples", "500", "-h", "1") > planned()


# ---- Several nodes ----

# One node: test_multi_node.py has several, and Slurm, but a machine's emulated GPUs are all of one host.
def several_nodes(script, **changes):
    """A step of one of them; its data are those of an earlier run."""
    folder = os.path.join(COPY, "run_smoke_nodes")
    shutil.rmtree(folder, ignore_errors=True)
    for name in ("mirror", "data"):
        if os.path.exists(os.path.join(folder_of("gpt2_124M"), name)):
            shutil.copytree(os.path.join(folder_of("gpt2_124M"), name), os.path.join(folder, name))
    changes = dict(emulated(), OUT_DIR="run_smoke_nodes", OMPI_ALLOW_RUN_AS_ROOT="1",
                   OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", STAGES="build plan fetch train", **changes)
    out = ran(0, os.path.join(COPY, "scripts", "multi_node", script), "--steps=1", **changes)
    assert "train    step 1 of 1 is saved in run_smoke_nodes\n" in out and "\nranks       2 on " in out, out[-3000:]
    assert os.path.exists(os.path.join(folder, "state_00000001.bin"))


def test_mpi():
    if shutil.which("mpirun") is None:
        pytest.skip("no mpirun here")
    several_nodes("run_mpi.sh")


@pytest.mark.long
def test_tcp():
    several_nodes("run_tcp.sh", PORT=str(free_port()))
