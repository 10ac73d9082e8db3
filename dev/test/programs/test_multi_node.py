"""The recipes' loop over starts, and scripts/multi_node/, with stand-ins for the trainer, nvidia-smi, mpirun, ssh, srun
and scontrol, which note what they are called with, start what they are told to, fail as often as they are told to, and
wait for signals."""
import glob
import os
import re
import shutil
import signal
import subprocess

import pytest

import shell
from shell import end, until
from tools import ROOT, Terminal, new_folder, path, read, text_of, wait_until, write

FAKE = path("fake")  # what the stand-ins note
PROGRAMS = path("fake", "bin")  # and they themselves
TRAINER_PATH = os.path.join(PROGRAMS, "train_gpt2cu")
OUT = path("a run")  # a space, as folders have
DATA = path("data")
RECIPE = "scripts/run_gpt2_124M.sh"
MULTI_NODE = "scripts/multi_node/"
OPTIONS = ["--train-data", "it's/train*.bin"]

# FAKE_STATUS: the statuses of its starts, one after the other, FAKE_SAVES: yes, no or again (the same step) for each;
# the last word holds for all further ones. With FAKE_WAITS it runs until a signal, and as the trainer does, a process
# that got none ends when another has saved.
TRAINER = r"""#!/usr/bin/env bash
rank=${OMPI_COMM_WORLD_RANK:-0} before= out= steps=
for word in "$@"; do
    case $before in
        --process-rank) rank=$word ;;
        --out-dir) out=$word ;;
        --steps) steps=$word ;;
    esac
    if [ "$word" = --plan ]; then exit 0; fi
    before=$word
done
echo "$*" >>"$FAKE/started.$rank"
echo "$GPT2C_SECRET" >>"$FAKE/secrets"
start=$(grep -c . "$FAKE/started.$rank")
nth() { shift $((start < $# ? start : $# - 1)); echo "$1"; }
save() {
    echo "$start" >"$out/new.$rank"
    cp "$out/new.$rank" "$out/model_$1.bin"
    mv "$out/new.$rank" "$out/state_$1.bin"
}
end() { echo "$rank $1" >>"$FAKE/signals"; [ "$1" != USR1 ] || save 00000099; exit $2; }
if [ -n "$FAKE_WAITS" ]; then
    [ "$FAKE_WAITS" = deaf ] && trap '' USR1 || trap 'end USR1 0' USR1
    trap 'end TERM 3' TERM
    trap 'end INT 4' INT
    echo $$ >"$FAKE/ready.$rank"
    for ((i = 0; i < 600; i++)); do
        sleep 0.1
        if [ -e "$out/state_00000099.bin" ]; then exit 0; fi
    done
    exit 9
fi
case $(nth - $FAKE_SAVES) in
    yes) save "$(printf %08d $((start * 10)))" ;;
    again) save 00000010 ;;
esac
status=$(nth - $FAKE_STATUS)
if [ "$status" = 0 ]; then save $(printf %08d "$steps"); fi
[ "$status" != kill ] || kill -KILL $$
[ "$status" != told ] || exit 0
exit $status
"""
NVIDIA_SMI = """#!/bin/sh
for i in 1 2 3 4; do echo "GPU $i: H100 (UUID: GPU-$i)"; done
"""
MPIRUN = r"""#!/usr/bin/env bash
if [ "$1" = --version ]; then echo "mpirun (Open MPI) 4.1.4"; exit 0; fi
printf '%s\n' "$@" >>"$FAKE/mpirun"
while [ "${1##*/}" != train_gpt2cu ]; do shift; done
exec env --default-signal=INT "$@" # as mpirun, which takes SIGINT also where a shell makes it ignored
"""
# As a remote shell: another folder, another environment, the words joined by blanks.
SSH = r"""#!/usr/bin/env bash
while [ "${1#-}" != "$1" ]; do [ "$1" != -o ] || shift; shift; done
echo "$1" >>"$FAKE/ssh"
echo "${*:2}" >>"$FAKE/ssh_lines"
cd / && exec env -i "PATH=$PATH" "FAKE=$FAKE" "FAKE_STATUS=$FAKE_STATUS" "FAKE_SAVES=$FAKE_SAVES" \
    "FAKE_WAITS=$FAKE_WAITS" sh -c "${*:2}"
"""
SRUN = r"""#!/usr/bin/env bash
printf '%s\n' "$*" >>"$FAKE/srun"
while [ "${1#-}" != "$1" ]; do
    case $1 in --ntasks=*) tasks=${1#*=} ;; esac
    shift
done
for ((i = 0; i < tasks; i++)); do SLURM_PROCID=$i "$@" & children+=($!); done
trap 'kill -s USR1 "${children[@]}"' USR1
status=0
for child in "${children[@]}"; do while kill -0 $child 2>/dev/null; do wait $child || status=$?; done; done
wait "${children[0]}"
"""
SCONTROL = r"""#!/bin/sh
echo "$*" >>"$FAKE/scontrol"
"""
# Nothing here is built, fetched or drawn.
STAND_INS = {"train_gpt2cu": TRAINER, "nvidia-smi": NVIDIA_SMI, "mpirun": MPIRUN, "ssh": SSH, "srun": SRUN,
             "scontrol": SCONTROL, "make": "#!/bin/sh\n", "python3": "#!/bin/sh\nexit 1\n"}
SLURM = {"SLURM_SUBMIT_DIR": ROOT, "SLURM_JOB_ID": "31007", "SLURM_JOB_NUM_NODES": "2", "SLURM_CPUS_ON_NODE": "10"}


@pytest.fixture(autouse=True)
def fresh():
    """Stand-ins without a memory, no run, and all data."""
    new_folder("fake"), new_folder("a run")
    for name in ("gpt2_tokenizer.bin", "hellaswag/hellaswag_val.bin", "fineweb10B/fineweb_val_000000.bin",
                 "fineweb10B/fineweb_train_000001.bin", "edu_fineweb100B/edu_fineweb_val_000000.bin",
                 "edu_fineweb100B/edu_fineweb_train_000001.bin"):
        write(f"data/{name}", "")
    for name, text in STAND_INS.items():
        write(f"fake/bin/{name}", text, 0o755)


def environment(**changes):
    settings = dict(FAKE=FAKE, FAKE_STATUS="0", FAKE_SAVES="no", FAKE_WAITS="", TRAINER=TRAINER_PATH, OUT_DIR=OUT,
                    PAUSE="0", DATA_DIR=DATA, SHARDS="1", STEPS="200", PATH=PROGRAMS + os.pathsep + os.environ["PATH"])
    return shell.environment(**{**settings, **changes})


def begin(script, *words, **changes):
    one = {"GPUS": "1"} if script == RECIPE else {}
    return shell.begin(["bash", script, *OPTIONS, *words], environment(**{**one, **changes}))


def ran(status, *command, **changes):
    """What a script prints that must end with this status."""
    return end(begin(*command, **changes), status)


def noted(name):
    return read(f"fake/{name}").decode().splitlines() if os.path.exists(os.path.join(FAKE, name)) else []


def started():
    """The words of every start of the trainer, by rank."""
    ranks = sorted(int(name.rpartition(".")[2]) for name in glob.glob(os.path.join(FAKE, "started.*")))
    return {rank: noted(f"started.{rank}") for rank in ranks}


def wait_for_ranks(count, process):
    wait_until(lambda: len(glob.glob(os.path.join(FAKE, "ready.*"))) == count, process)


# ---- The loop over starts ----


def test_until_it_succeeds():
    out = ran(0, RECIPE, "--prompt", "it's", FAKE_STATUS="7 kill 0", FAKE_SAVES="yes no")
    (lines,) = started().values()
    assert len(lines) == 3 and len(set(lines)) == 1, lines
    assert lines[0].endswith(" --train-data it's/train*.bin --prompt it's --resume"), lines
    assert " --init d12 --seq-len 1024 --total-batch 524288 " in lines[0] and f" --out-dir {OUT} " in lines[0], lines
    assert re.findall(r"start (\d+ of \d+, from step \d+) of 200", out) == [
        "1 of 20, from step 0", "2 of 20, from step 10", "3 of 20, from step 10"], out
    assert "status 7 after" in out and "status 137 after" in out, out


NOTHING = f"given up: two starts in a row saved nothing in {OUT}; the lines above say why\n"


@pytest.mark.parametrize("statuses, saves, starts, says", (
    ("7 7 7 7 7 8", "yes no yes no yes no", 7, NOTHING),  # forgiven when the next start has a new checkpoint
    ("7", "again again again no", 5, NOTHING),  # a checkpoint that replaces another is new
    ("7", "yes", 8, "given up after 8 starts (MAX_STARTS)\n"),
    # By a signal to the trainer itself, which then saves and ends with status 0.
    ("told", "yes", 1, "the training was told to end\n")), ids=("some", "replaced", "most", "told"))
def test_gives_up(statuses, saves, starts, says):
    out = ran(1, RECIPE, FAKE_STATUS=statuses, FAKE_SAVES=saves, MAX_STARTS="8")
    assert len(started()[0]) == starts and out.endswith(says), (started(), out)


@pytest.mark.parametrize("number", (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
def test_first_signal(number):
    """The trainer saves and ends, and there is no further start."""
    process = begin(RECIPE, FAKE_WAITS="1")
    wait_for_ranks(1, process)
    process.send_signal(number)
    out = end(process, 128 + number)
    assert noted("signals") == ["0 USR1"] and len(started()[0]) == 1, (number, noted("signals"), out)
    assert f"stopped by {number.name} at step 99 of 200; the same command goes on\n" in out, out


def test_second_signal():
    """The first one finds a trainer that does not mind it."""
    process = begin(RECIPE, FAKE_WAITS="deaf")
    wait_for_ranks(1, process)
    process.send_signal(signal.SIGINT)
    until(process, "SIGINT: saving")
    process.send_signal(signal.SIGTERM)
    until(process, "SIGTERM: ending at once")
    end(process, 3)
    assert noted("signals") == ["0 TERM"] and len(started()[0]) == 1, noted("signals")


def test_signal_in_the_pause():
    """Pauses grow, up to 300 seconds."""
    write("fake/bin/sleep", '#!/bin/sh\necho "$1" >>"$FAKE/slept"\n[ "$1" -lt 300 ] || exec /bin/sleep 999\n', 0o755)
    process = begin(RECIPE, FAKE_STATUS="7", FAKE_SAVES="yes", PAUSE="100")
    wait_until(lambda: len(noted("slept")) == 3, process)
    process.send_signal(signal.SIGTERM)
    out = end(process, 128 + signal.SIGUSR1)  # how sleep ends
    assert noted("slept")[:3] == ["100", "200", "300"] and "stopped by SIGTERM at step 30 of 200" in out, out
    assert len(started()[0]) == 3, started()


def test_data_that_do_not_come():
    """What fetches them fails."""
    os.remove(os.path.join(DATA, "gpt2_tokenizer.bin"))
    out = ran(1, RECIPE)
    assert out.endswith("the data did not come; what has come stays, and the same command goes on with it\n"), out
    assert started() == {}, started()


def test_ctrl_c():
    """On a terminal Ctrl-C goes to a whole group of processes: not to what is to save."""
    with Terminal(["bash", RECIPE], cwd=ROOT, env=environment(FAKE_WAITS="1", GPUS="4")) as terminal:
        terminal.until(lambda: noted("ready.0"))
        terminal.press(b"\x03")
        terminal.finish(130)
    assert noted("signals") == ["0 USR1"], noted("signals")


def test_two_at_once():
    """Also after the first script was killed, as long as its trainer runs."""
    said = f"run_gpt2_124M.sh: {OUT}: another start of a recipe still works here; wait for its end, or set another " \
        "OUT_DIR\n"
    process = begin(RECIPE, FAKE_WAITS="1")
    wait_for_ranks(1, process)
    assert ran(1, RECIPE) == said
    process.kill()
    process.wait()
    assert ran(1, RECIPE) == said
    os.kill(int(noted("ready.0")[0]), signal.SIGUSR1)
    process.communicate()
    wait_until(lambda: noted("signals") == ["0 USR1"])
    ran(0, RECIPE)


# ---- The scripts for several nodes ----


def test_mpi():
    write("fake/bin/id", "#!/bin/sh\necho 1000\n", 0o755)
    ran(0, MULTI_NODE + "run_mpi.sh", "--prompt", "it's", HOSTS="one two", NCCL_DEBUG="INFO", LD_LIBRARY_PATH="/lib")
    words = noted("mpirun")
    launch, train = words[:words.index(TRAINER_PATH)], words[words.index(TRAINER_PATH):]
    assert launch == ["-np", "8", "--host", "one:4,two:4", "--bind-to", "none", "-x", "NCCL_DEBUG", "-x",
                      "LD_LIBRARY_PATH"], launch
    assert train[train.index("--nccl-init") + 1] == "mpi" and train[-3:] == ["--prompt", "it's", "--resume"], train
    assert "--num-processes" not in train and "--process-rank" not in train, train


def test_as_root():
    """Open MPI refuses root without this option."""
    write("fake/bin/id", "#!/bin/sh\necho 0\n", 0o755)
    ran(0, RECIPE, GPUS="4")
    assert "--allow-run-as-root" in noted("mpirun")


def check_ranks(ranks, times=1):
    """Each of these ranks was started so many times, with the same words but for the rank."""
    assert list(started()) == list(ranks), started()
    lines = {re.sub(rf" --process-rank {rank}$", "", start) for rank, starts in started().items() for start in starts}
    assert {len(starts) for starts in started().values()} == {times} and len(lines) == 1, started()
    (line,) = lines
    assert f" --num-processes {len(ranks)} " in line and "--process-rank" not in line, line
    return line


def test_tcp_over_ssh():
    """All nodes start again when one process failed, here each process once. All have one secret at all starts, which
    is no word of a command."""
    out = ran(0, MULTI_NODE + "run_tcp.sh", "--prompt", "it's", HOSTS="one two", PORT="4321", NCCL_DEBUG="INFO",
              FAKE_STATUS="5 0", FAKE_SAVES="yes", GPT2C_SECRET=None)
    line = check_ranks(range(8), times=2)
    assert "start 2 of 20, from step 10 of 200" in out and noted("ssh") == ["two"] * 8, out
    assert " --nccl-init tcp --server-ip one:4321 " in line and " --prompt it's --resume" in line, line
    assert "'NCCL_DEBUG=INFO'" in noted("ssh_lines")[0], noted("ssh_lines")
    (secret,) = set(noted("secrets"))
    assert re.fullmatch("[0-9a-f]{64}", secret) and len(noted("secrets")) == 16, secret
    assert not any(secret in words for words in [line, *noted("ssh_lines")]), line


def test_tcp_signal():
    process = begin(MULTI_NODE + "run_tcp.sh", HOSTS="one two", FAKE_WAITS="1")
    wait_for_ranks(8, process)
    process.send_signal(signal.SIGTERM)
    out = end(process, 143)
    assert "stopped by SIGTERM at step 99 of 200; the same command goes on\n" in out, out
    assert noted("signals") == ["0 USR1"], noted("signals")


# ---- Slurm ----


def test_slurm():
    out = ran(0, MULTI_NODE + "run.sbatch", "--prompt", "it's", FAKE_STATUS="5 0", FAKE_SAVES="yes", **SLURM)
    launch = noted("srun")[0].split(TRAINER_PATH)[0]
    for word in ("--ntasks=8", "--ntasks-per-node=4", "--cpus-per-task=2", "--distribution=block"):
        assert f"{word} " in launch, launch
    line = check_ranks(range(8), times=2)
    assert " --nccl-init fs --nccl-fs-path build/start_31007 " in line and " --prompt it's --resume" in line, line
    assert "start 2 of 20" in out and noted("scontrol") == [], (noted("scontrol"), out)


@pytest.mark.parametrize("number, requeued", ((signal.SIGUSR1, ["requeue 31007"]), (signal.SIGTERM, [])))
def test_slurm_time_limit(number, requeued):
    """Queued again when the signal before the time limit ended it in order, and only then."""
    process = begin(MULTI_NODE + "run.sbatch", FAKE_WAITS="1", **SLURM)
    wait_for_ranks(8, process)
    process.send_signal(number)
    out = end(process, 0 if requeued else 143)
    assert noted("scontrol") == requeued and noted("signals"), (noted("scontrol"), out)


def test_slurm_headers():
    """Slurm reads them up to the first command."""
    text = text_of(MULTI_NODE + "run.sbatch")
    headers = re.findall("^#SBATCH .*", text[:re.search(r"^[^#\n]", text, re.M).start()], re.M)
    assert len(headers) == text.count("#SBATCH"), headers
    assert {"#SBATCH --requeue", "#SBATCH --signal=B:USR1@300"} <= set(headers), headers


@pytest.mark.long
@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="no shellcheck here")
def test_shellcheck():
    scripts = [name for pattern in ("scripts/*.sh", MULTI_NODE + "*", "dev/*.sh", "dev/test/*/*.sh")
               for name in glob.glob(os.path.join(ROOT, pattern))]
    assert subprocess.run(["shellcheck", "-x", *scripts], cwd=ROOT, check=False).returncode == 0
