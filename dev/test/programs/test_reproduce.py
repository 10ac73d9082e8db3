"""scripts/run_gpt*.sh and scripts/multi_node/ with SMOKE=1, from the machine's check to the summary, in a copy of the
repository: with the emulated trainer, with the CPU's, interrupted, with data that do not come, finished before; and
what they say where something is missing. nvidia-smi, srun and scontrol are stand-ins where a test needs them."""
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys

import pytest

import shell
from shell import COPY, end, until
from tools import ROOT, WORK, Terminal, before_path, free_port, stand_ins

PROGRAMS = ["train_gpt2emu", "train_gpt2", "tokenize"]
RECIPES = ["gpt2_124M", "gpt2_350M", "gpt2_774M", "gpt2_1558M", "gpt3_125M"]
sys.path.insert(0, os.path.join(ROOT, "dev"))


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


def on_the_cpu():
    return {"PROGRAM": "./train_gpt2"} if os.path.exists(os.path.join(COPY, "train_gpt2")) else {}


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


def read(*names):
    with open(os.path.join(*names), encoding="utf-8", errors="replace") as file:
        return file.read()


def gpus(count, mib, capability="9.0"):
    return "".join(f"echo 'NVIDIA H100, {mib}, {capability}'\n" for _ in range(count))


def draws_curves():
    return subprocess.run(["python3", "-c", "import matplotlib"], stderr=subprocess.DEVNULL).returncode == 0


def check_finished(name, out, steps=4):
    """What a run of so many steps leaves that went through all stages."""
    folder = folder_of(name)
    for stage in ("check", "build", "plan", "fetch", "train", "export", "plot", "summary"):
        assert re.search(rf"^\d\d:\d\d:\d\d {stage} ", out, re.M), (stage, out[-3000:])
    checkpoint = (f"model_{steps:08}.bin", f"state_{steps:08}.bin")
    for file in (*checkpoint, "hf/model.safetensors", "hf/config.json"):
        assert os.path.getsize(os.path.join(folder, file)) > 0, file
    assert os.path.exists(os.path.join(folder, "curves.png")) == draws_curves(), os.listdir(folder)
    log = read(folder, "main.log")
    losses, scores = (re.findall(rf"^s:{steps} {key}:([\d.]+)$", log, re.M) for key in ("tel", "eval"))
    assert len(losses) == 1 and len(scores) == 1, log
    assert re.search(rf"^ +validation loss +{losses[0]} ", out, re.M), out[-1000:]
    assert re.search(rf"^ +HellaSwag +{scores[0]} ", out, re.M), out[-1000:]
    assert out.rstrip("\n") in read(folder, "console.log"), out[-500:]
    planned, = set(re.findall(r"^[\d:]+ plan +memory: (.*)$", out, re.M))
    taken, = set(re.findall(r"^memory +(.*, planned)$", out, re.M))
    assert planned == taken, "the check before the run and the run plan for different GPUs"
    options = json.loads(read(folder, "run.jsonl").splitlines()[0])["options"]
    assert options["stop-on-divergence"] == "1", "a lost run would go on for days"


# ---- The recipes ----


def test_124M_dies_and_goes_on():
    """Under nohup, from another folder, started by mpirun where that is."""
    out = end(shell.begin(["nohup", "bash", script_of("gpt2_124M")], environment(**emulated()), WORK), 0)
    check_finished("gpt2_124M", out)
    assert re.search(r"start 2 of 20, from step 2: ", out) and "ended without a word" in out, out[-3000:]
    assert (" --nccl-init mpi " in out) == (shutil.which("mpirun") is not None), out


def test_124M_finished_before():
    """Only what is missing is made again; nothing is trained."""
    changes = emulated()
    folder = folder_of("gpt2_124M")
    if not os.path.exists(os.path.join(folder, "state_00000004.bin")):
        pytest.skip("no finished run: test_124M_dies_and_goes_on failed or was left out")
    log = read(folder, "main.log")
    shutil.rmtree(os.path.join(folder, "hf"))
    out = ran(0, "scripts/run_gpt2_124M.sh", cwd=COPY, **changes)
    assert "step 4 of 4 is saved in run_smoke_gpt2_124M: nothing to train\n" in out, out
    assert "start 1 of" not in out and " fetch " not in out and read(folder, "main.log") == log, out
    assert os.path.exists(os.path.join(folder, "hf", "model.safetensors")) and "summary" in out, out
    assert "run_smoke_gpt2_124M/curves.png is here" in out or not draws_curves(), out
    again = ran(0, "scripts/run_gpt2_124M.sh", cwd=COPY, **changes)
    assert "export   run_smoke_gpt2_124M/hf is here" in again, again


@pytest.mark.long
def test_350M_interrupted_on_a_terminal():
    """Ctrl-C; then the command that it prints finishes the run. Without mpirun. A busy machine hands Ctrl-C over late,
    so there are more steps."""
    changes = dict(emulated(), STEPS="20", PATH=stand_ins({}, ("mpirun", "mpiexec", "orterun")))
    with Terminal(["bash", script_of("gpt2_350M")], cwd=WORK, env=environment(**changes)) as terminal:
        terminal.until(r"step +1/20 \|")
        terminal.press(b"\x03")
        seen = terminal.finish(130).replace("\r\n", "\n")
    stopped = re.search(r"stopped by SIGINT at step (\d+) of 20. The same command goes on:\n    (.*)\n", seen)
    assert stopped and 1 <= int(stopped[1]) < 20, seen[-3000:]
    assert stopped[2].endswith("scripts/run_gpt2_350M.sh") and "SMOKE=1" in stopped[2], stopped[2]
    out = end(shell.begin(["bash", "-c", stopped[2]], environment(SMOKE=None, PATH=changes["PATH"]), "/"), 0)
    assert f"step {stopped[1]} of 20, to step 20" in out and " --nccl-init fs " in out, out
    check_finished("gpt2_350M", out, 20)


def test_links_and_pipes_in_the_folder():
    """What a link leads to stays as it is, and no pipe is waited for. The lock is nobody else's to hold."""
    folder, precious = os.path.join(WORK, "shared"), os.path.join(WORK, "precious")
    os.mkdir(folder)
    with open(precious, "w", encoding="ascii") as file:
        file.write("x")
    changes = {"OUT_DIR": folder, "STAGES": "summary"}
    for name in ("console.log", ".script.lock", "build.log"):
        os.symlink(precious, os.path.join(folder, name))
        refused(f"{folder}/{name}: is a link, and links are not followed here; remove it", script_of("gpt2_124M"),
                **changes)
        os.remove(os.path.join(folder, name))
        os.mkfifo(os.path.join(folder, name))
        refused(f"{folder}/{name}: is a device or pipe, expected an ordinary file", script_of("gpt2_124M"), **changes)
        os.remove(os.path.join(folder, name))
    os.mkdir(os.path.join(folder, "mirror"))
    assert "has no main.log" in ran(1, script_of("gpt2_124M"), **changes)
    assert read(precious) == "x" and os.stat(os.path.join(folder, ".script.lock")).st_mode & 0o777 == 0o600


def test_774M_data_that_do_not_come():
    """A shard that the mirror lacks; then it is there, and the same command goes on with what came before."""
    changes = on_the_cpu()
    out = ran(0, script_of("gpt2_774M"), STAGES="check build", **changes)
    shard, = glob.glob(os.path.join(folder_of("gpt2_774M"), "mirror/**/fineweb100B-gpt2/**/fineweb_train_000002.bin"),
                       recursive=True)
    os.rename(shard, shard + ".gone")
    out = ran(1, script_of("gpt2_774M"), **changes)
    assert out.endswith("the data did not come; what has come stays, and the same command goes on with it\n"), out
    assert "fineweb_train_000002.bin" in out and "restart.sh" not in out, out
    os.rename(shard + ".gone", shard)
    check_finished("gpt2_774M", ran(0, script_of("gpt2_774M"), **changes))


@pytest.mark.long
def test_1558M_builds_without_a_c_plus_plus_compiler():
    """The CPU trainer, built here."""
    for name in PROGRAMS:
        if name != "train_gpt2emu" and os.path.exists(os.path.join(COPY, name)):
            os.remove(os.path.join(COPY, name))
    out = ran(0, script_of("gpt2_1558M"), PATH=stand_ins({}, ("g++", "clang++")))
    assert "build    make train_gpt2 tokenize\n" in out and " 1 x no GPU but the CPU" in out, out
    check_finished("gpt2_1558M", out)


@pytest.mark.long
def test_gpt3_125M_told_to_end():
    """SIGTERM reaches the ranks through all scripts: they save and end. The same command goes on from there."""
    changes = dict(emulated(), STEPS="6")
    process = begin(script_of("gpt3_125M"), EMU_NCCL_FAULT="rest@0:22:20", **changes)  # until the signal comes
    shown = until(process, "step    1/6 |")
    process.send_signal(signal.SIGTERM)
    shown += end(process, 143)
    at = re.search(r"stopped by SIGTERM at step ([1-5]) of 6. The same command goes on:\n", shown)
    assert at, shown[-2000:]
    out = ran(0, script_of("gpt3_125M"), **changes)
    assert f"start 1 of 20, from step {at[1]}: " in out, out[-3000:]
    check_finished("gpt3_125M", out, 6)


# ---- What is missing or wrong ----


def test_refusals():
    no_gpu = "nvidia-smi finds no GPU. SMOKE=1 runs everything in small on the CPU"
    no_python = "no python3, which fetches the data (apt-get install python3)"
    real, smi = dict(SMOKE=None, PROGRAM="./none"), {"nvidia-smi": gpus(1, 80000)}
    for message, name, changes in (
        *((no_gpu, "gpt2_124M", dict(real, PATH=before_path({"nvidia-smi": smi_fails})))
          for smi_fails in ("exit 9\n", "echo 'NVIDIA-SMI has failed' >&2\nexit 9\n", "exit 0\n")),
        ("NVIDIA H100 (compute capability 7.5): too old, 8.0 (Ampere) or later is needed", "gpt2_124M",
         dict(real, PATH=before_path({"nvidia-smi": gpus(2, 16000, "7.5")}))),
        (no_python, "gpt2_124M", dict(real, PATH=stand_ins(smi, ["python3"]))),
        (no_python, "gpt2_124M", dict(PROGRAM="./none", OUT_DIR="run_smoke_no_python",
                                      PATH=stand_ins({}, ["python3"]))),
        ("no make, which builds the trainer (apt-get install make)", "gpt2_1558M",
         dict(OUT_DIR="run_smoke_no_make", PATH=stand_ins({}, ["make"]))),
        ("SMOKE is 'yes', expected 1 (everything in small, on the CPU) or 0", "gpt2_124M", dict(SMOKE="yes")),
        ("STAGES: there is no 'trian', expected some of: check build plan fetch train export plot summary",
         "gpt2_124M", dict(STAGES="check trian")),
        ("STEPS is '1e4', expected a whole number above 0", "gpt2_124M", dict(STEPS="1e4", SMOKE="0")),
        ("KEEP is 'all', expected a whole number", "gpt2_124M", dict(KEEP="all")),
        ("BATCH_SIZE is '0', expected a whole number above 0", "gpt2_124M", dict(BATCH_SIZE="0")),
        ("GPUS_PER_NODE is '0', expected a whole number above 0", "gpt2_124M", dict(GPUS_PER_NODE="0")),
        ("PAUSE is '1000', expected whole seconds, 0 to 999", "gpt2_124M", dict(PAUSE="1000")),
        ("MAX_STARTS is 'abc', expected 1 to 99999", "gpt2_124M", dict(MAX_STARTS="abc")),
        ("/proc/nothing: this folder cannot be made: No such file or directory (OUT_DIR names another)", "gpt2_124M",
         dict(OUT_DIR="/proc/nothing")),
        ("/sys/kernel: this folder cannot be written to (OUT_DIR names another)", "gpt2_124M",
         dict(OUT_DIR="/sys/kernel")),
        ("DATA is 'web', expected fineweb10B, fineweb100B, edu_fineweb10B or edu_fineweb100B", "gpt2_124M",
         dict(DATA="web")),
        ("run_smoke_nothing: has no main.log, and so nothing to sum up yet", "gpt2_124M",
         dict(STAGES="summary", PROGRAM="./none", OUT_DIR="run_smoke_nothing")),
        ("run_smoke_nothing: has no checkpoint of step 4, and so nothing to export yet", "gpt2_124M",
         dict(STAGES="export", PROGRAM="./none", OUT_DIR="run_smoke_nothing")),
        ("run_smoke_nothing: has no checkpoint of step 9, and so nothing to export yet", "gpt2_124M",
         dict(STAGES="export", PROGRAM="./none", OUT_DIR="run_smoke_nothing", STEPS="9")),
    ):
        refused(message, script_of(name), **changes)


def test_no_nvcc():
    if any(os.path.exists(f"{folder}/bin/nvcc") for folder in ("/usr/local/cuda", "/opt/cuda")):
        pytest.skip("the scripts find the nvcc that is here")
    refused("no nvcc, which builds train_gpt2cu: install the CUDA toolkit, 12 or later "
            "(https://developer.nvidia.com/cuda-downloads), or say where it is with CUDA_HOME=/folder",
            script_of("gpt2_124M"), SMOKE=None, PATH=stand_ins({"nvidia-smi": gpus(1, 80000)}, ["nvcc"]))


def test_help():
    for name in RECIPES:
        text = ran(0, script_of(name), "--help")
        assert f"  SMOKE=1 scripts/run_{name}.sh" in text and "To expect: " in text and "set -eu" not in text, text
    multi_node = os.path.join(COPY, "scripts", "multi_node")
    for script, cwd in (("run_gpt2_124M.sh", os.path.dirname(multi_node)), ("run_tcp.sh", multi_node),
                        ("multi_node/run_mpi.sh", os.path.dirname(multi_node))):
        assert "\nSettings, in the environment:\nSMOKE  " in ran(0, script, "--help", cwd=cwd), script


def test_settings():
    """The settings that --help lists are those that the scripts read. One that a script does not take is named."""
    def text(*parts):
        return "".join(read(file) for file in glob.glob(os.path.join(ROOT, "scripts", *parts)))

    of_others = "TMPDIR|(CUDA|SLURM|OMPI|NCCL|GPT2C)_.*|(OPENAI|PUBLISHED).*"
    takes = {name for name in re.findall(r"\$\{([A-Z]\w*):?[-?]", text("r*.*") + text("multi_node", "*"))
             if not re.fullmatch(of_others, name)}
    listed = re.search(r'RUN_SETTINGS="\\\n(.*?)"', text("settings.sh"), re.S)[1]
    assert takes == set(re.findall(r"^([A-Z_]+) ", listed, re.M)), takes
    for script in ("quickstart.sh", "restart.sh", "test.sh"):
        head = text(script).split("\nset -")[0]
        takes = set(re.findall(r"\$\{([A-Z]\w*):?[-?]", text(script)[len(head):]))
        assert all(name in head or re.fullmatch(of_others, name) for name in takes), (script, takes)
    message = "STAGES: there is no 'trian', expected some of: check build plan fetch train export plot summary"
    out = ran(1, script_of("gpt2_124M"), STAGES="trian", TRAIN_SECONDS="3")
    assert out == ("run_gpt2_124M.sh: the setting TRAIN_SECONDS does nothing here (--help)\n"
                   f"run_gpt2_124M.sh: {message}\n"), out


def large(smi):
    """Settings of a machine with these GPUs, whose trainer is the emulated one."""
    return dict(emulated(), SMOKE=None, STAGES="check build plan", PATH=before_path({"nvidia-smi": smi}))


def test_memory_decides_the_micro_batch():
    """By the trainer's --auto, for what the fullest GPU has free; BATCH_SIZE and RECOMPUTE take its place."""
    def auto(script, *arguments, **changes):
        out = ran(0, script_of(script), *arguments, **changes)
        return re.search(r"^[\d:]+ plan +auto: (.*): fits into ", out, re.M)[1], out

    assert auto("gpt2_124M", **large(gpus(8, 80000)))[0] == "--batch-size 64 --recompute 0"
    assert auto("gpt2_124M", **large(gpus(8, 15000)))[0] == "--batch-size 32 --recompute 0"
    first_is_busy = large(gpus(1, 9000) + gpus(3, 80000))
    chosen, out = auto("gpt2_124M", CUDA_VISIBLE_DEVICES="1,3", **first_is_busy)
    assert chosen == "--batch-size 128 --recompute 0" and "2 x NVIDIA H100, 78.1 GiB free" in out, (chosen, out)
    assert "1 x NVIDIA H100, 8.8 GiB free" in auto("gpt2_124M", GPUS_PER_NODE="1", **first_is_busy)[1]
    assert auto("gpt2_124M", BATCH_SIZE="4", **large(gpus(1, 80000)))[0] == "--recompute 0"
    out = ran(0, script_of("gpt2_124M"), BATCH_SIZE="4", RECOMPUTE="1", **large(gpus(1, 80000)))
    assert " plan     fits: yes, " in out and " auto: " not in out, out


def test_too_little_memory():
    out = ran(1, script_of("gpt2_1558M"), **large(gpus(1, 14000)))
    assert re.search(r"run_gpt2_1558M.sh: ./train_gpt2emu --plan: --auto: nothing fits: --batch-size 1 --recompute 3 "
                     r"takes .*; use more GPUs with --zero-stage 3, or choose a smaller model\n$", out), out
    out = ran(1, script_of("gpt2_1558M"), BATCH_SIZE="4", RECOMPUTE="0", **large(gpus(1, 14000)))
    assert re.search(r"\nrun_gpt2_1558M.sh: NVIDIA H100: the run does not fit: no, .* are missing: .*\n$", out), out


def test_arguments_are_planned():
    """What is wrong with them is found before the data are fetched, which takes hours; the plan follows them."""
    settings = large(gpus(8, 80000))
    for arguments, message in (
        (["--prompt", "it's", "--top_p=1"],
         "'--top_p': unknown option; the nearest is --top-p (--help all lists all)"),
        (["--lr", "6e-4x"], "--lr (-l): got '6e-4x', expected a number from 0 to 100 (default 3e-4)"),
        (["stray"], "'stray': unexpected word; options begin with a dash, patterns such as 'x*.bin' need quotes"),
        (["-b", "999"], "--total-batch (-d): 524288 tokens is not a multiple of B x T x 8 ranks = 8183808; the nearest "
         "is 8183808"),
    ):
        out = ran(1, script_of("gpt2_124M"), *arguments, **dict(settings, STAGES="plan fetch"))
        assert out.endswith(f"run_gpt2_124M.sh: ./train_gpt2emu --plan: {message}\n") and " fetch " not in out, out
    out = ran(1, script_of("gpt2_124M"), "-o", "elsewhere", **settings)
    assert out == ("run_gpt2_124M.sh: -o: the setting OUT_DIR names the run's folder, as in OUT_DIR=/disk/run "
                   f"{os.path.relpath(script_of('gpt2_124M'), COPY)}\n"), out

    def planned(*arguments):
        out = ran(0, script_of("gpt2_124M"), *arguments, **settings)
        return float(re.search(r"^[\d:]+ plan +memory: ([\d.]+) GiB", out, re.M)[1])

    short = "-b", "32", "-t", "512"
    assert planned("--batch-size=32", "-t", "512", "-x", "9", "-r", "3") < 0.5 * planned(*short)
    assert planned("--layers", "96", "--eval-examples", "500") > planned()


def test_command_to_go_on_with():
    """It is one that can be typed, also by those whose shell looks for folders elsewhere, too (CDPATH)."""
    refused("run_smoke_typed: has no main.log, and so nothing to sum up yet", "scripts/run_gpt2_124M.sh", cwd=COPY,
            CDPATH=".:" + ROOT, STAGES="summary", OUT_DIR="run_smoke_typed")
    with open(os.path.join(COPY, "run_smoke_typed", "console.log")) as file:
        assert file.read().splitlines()[1].endswith(" scripts/run_gpt2_124M.sh")


def test_two_at_once():
    folder = os.path.join(COPY, "run_smoke_twice")
    os.makedirs(folder)
    with subprocess.Popen(["flock", f"{folder}/.script.lock", "sh", "-c", "echo locked; exec cat"],
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        refused("run_smoke_twice: another script, or a process that one has left behind, is at work there",
                script_of("gpt2_124M"), OUT_DIR="run_smoke_twice")
        other.stdin.close()


# ---- Comments ----


def test_published_figures():
    """OpenAI's are those that dev/plot.py draws; and all are said in the comment."""
    import plot
    for name in RECIPES:
        text = read(script_of(name))
        figure = {key: value for key, value in re.findall(r"^((?:OPENAI|PUBLISHED)\w*)=(\S*)$", text, re.M)}
        expect = text[text.index("# To expect: "):text.index("set -eu")]
        for key in ("OPENAI_LOSS", "PUBLISHED_LOSS"):
            assert figure[key] in expect, (name, key)
        for key in ("OPENAI_HELLASWAG", "PUBLISHED_HELLASWAG"):
            assert not figure[key] or f"{100 * float(figure[key]):.1f} %" in expect, (name, key)
        if figure["OPENAI"]:
            reference = plot.REFERENCES[figure["OPENAI"]]
            assert abs(float(figure["OPENAI_HELLASWAG"]) - reference["hellaswag"]) <= 0.0006, name
            assert not figure["OPENAI_LOSS"] or abs(float(figure["OPENAI_LOSS"]) - reference["fineweb"]) <= 0.006, name


# ---- Several nodes ----

# One node each: test_multi_node.py has several, but a machine's emulated GPUs are all of one host.
SRUN = """while [ "${1#-}" != "$1" ]; do
    case $1 in --ntasks=*) tasks=${1#*=} ;; esac
    shift
done
status=0 children=""
for i in $(seq "$tasks"); do SLURM_PROCID=$((i - 1)) "$@" & children="$children $!"; done
for child in $children; do wait "$child" || status=$?; done
exit $status
"""


def several_nodes(script, **changes):
    """A step of one of them; its data are those of an earlier run."""
    folder = os.path.join(COPY, "run_smoke_nodes")
    shutil.rmtree(folder, ignore_errors=True)
    for name in ("mirror", "data"):
        if os.path.exists(os.path.join(folder_of("gpt2_124M"), name)):
            shutil.copytree(os.path.join(folder_of("gpt2_124M"), name), os.path.join(folder, name))
    changes = dict(emulated(), OUT_DIR="run_smoke_nodes", STEPS="1", OMPI_ALLOW_RUN_AS_ROOT="1",
                   OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", STAGES="check build plan fetch train", **changes)
    out = ran(0, os.path.join(COPY, "scripts", "multi_node", script), **changes)
    assert "train    step 1 of 1 is saved in run_smoke_nodes\n" in out and "\nranks       2 on " in out, out[-3000:]
    assert os.path.exists(os.path.join(folder, "state_00000001.bin"))
    return out


def test_mpi():
    if shutil.which("mpirun") is None:
        pytest.skip("no mpirun here")
    several_nodes("run_mpi.sh")


@pytest.mark.long
def test_tcp():
    several_nodes("run_tcp.sh", PORT=str(free_port()))


@pytest.mark.long
def test_slurm():
    """By a folder. The words for the other two are test_multi_node.py's."""
    slurm = dict(SLURM_SUBMIT_DIR=COPY, SLURM_JOB_ID="7", SLURM_JOB_NUM_NODES="1", SLURM_JOB_NODELIST="node1",
                 SLURM_CPUS_ON_NODE="2", PATH=before_path({"srun": SRUN, "scontrol": "echo localhost\n"}))
    several_nodes("run_folder.sbatch", PORT=str(free_port()), **slurm)
