"""scripts/restart.sh and scripts/multi_node/ with stand-ins for the trainer, nvidia-smi, mpirun, ssh, srun and
scontrol, which note what they are called with, start what they are told to, fail as often as they are told to, and wait
for signals; and with the mpirun that is here."""
import glob
import os
import re
import shutil
import signal
import subprocess

import pytest

import shell
from shell import end, until
from tools import ROOT, WORK, Terminal, new_folder, path, read, text_of, wait_until, write

FAKE = path("fake")  # what the stand-ins note
PROGRAMS = path("fake", "bin")  # and they themselves
TRAINER_PATH = os.path.join(PROGRAMS, "train_gpt2cu")
OUT = path("a run")  # a space, as folders have
DATA = path("data")
RESTART = "scripts/restart.sh"
MULTI_NODE = "scripts/multi_node/"
OPTIONS = ["--train-data", "it's/train*.bin", "--steps", "200"]

# FAKE_STATUS: the statuses of its starts, one after the other, FAKE_SAVES: yes, no or again (the same step) for each;
# the last word holds for all further ones. With FAKE_WAITS it runs until a signal, and as the trainer does, a process
# that got none ends when another has saved.
TRAINER = r"""#!/usr/bin/env bash
rank=${OMPI_COMM_WORLD_RANK:-0} before= out= steps=
for word in "$@"; do
    case $before in
        --process-rank) rank=$word ;;
        --out-dir | -o) out=$word ;;
        --steps) steps=$word ;;
    esac
    case $word in
        --out-dir=*) out=${word#*=} ;;
        --plan) exit 0 ;;
    esac
    before=$word
done
echo "$*" >>"$FAKE/started.$rank"
echo "$GPT2C_SECRET" >>"$FAKE/secrets"
start=$(grep -c . "$FAKE/started.$rank")
nth() { shift $((start < $# ? start : $# - 1)); echo "$1"; }
save() {
    mkdir -p "$out"
    echo "$start" >"$out/new.$rank"
    cp "$out/new.$rank" "$out/model_$1.bin"
    mv "$out/new.$rank" "$out/state_$1.bin"
}
end() { echo "$rank $1" >>"$FAKE/signals"; [ "$1" != USR1 ] || save 00000099; exit $2; }
if [ -n "$FAKE_WAITS" ]; then
    trap 'end USR1 0' USR1
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
if [ "$status" = 0 ] && [ -n "$steps" ]; then save $(printf %08d "$steps"); fi
[ "$status" != kill ] || kill -KILL $$
exit $status
"""
NVIDIA_SMI = """#!/bin/sh
for i in 1 2 3 4; do echo "NVIDIA H100, 80000"; done
"""
MPIRUN = r"""#!/usr/bin/env bash
if [ "$1" = --version ]; then echo "$FAKE_MPI"; exit 0; fi
printf '%s\n' "$@" >>"$FAKE/mpirun"
while [ "${1##*/}" != train_gpt2cu ]; do shift; done
exec "$@"
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
. scripts/children.sh
printf '%s\n' "$*" >>"$FAKE/srun"
while [ "${1#-}" != "$1" ]; do
    case $1 in --ntasks=*) tasks=${1#*=} ;; esac
    shift
done
children=()
trap 'signals=$((signals + 1)); signal_children USR1 "${children[@]}"' USR1
for ((i = 0; i < tasks; i++)); do SLURM_PROCID=$i OMPI_COMM_WORLD_RANK=$i "$@" & children+=($!); done
wait_for_all "${children[@]}"
exit $status
"""
SCONTROL = r"""#!/bin/sh
if [ "$1" = requeue ]; then echo "$2" >>"$FAKE/requeued"; else printf 'first\nsecond\n'; fi
"""
STAND_INS = {"train_gpt2cu": TRAINER, "nvidia-smi": NVIDIA_SMI, "mpirun": MPIRUN, "ssh": SSH, "srun": SRUN,
             "scontrol": SCONTROL, "python3": "#!/bin/sh\nexit 1\n"}  # nothing here is fetched or drawn
SLURM = {"SLURM_SUBMIT_DIR": ROOT, "SLURM_JOB_ID": "31007", "SLURM_JOB_NUM_NODES": "2",
         "SLURM_JOB_NODELIST": "node[1-2]", "SLURM_CPUS_ON_NODE": "10"}


@pytest.fixture(autouse=True)
def fresh():
    """Stand-ins without a memory, and no run."""
    new_folder("fake"), new_folder("a run")
    for name in ("gpt2_tokenizer.bin", "hellaswag/hellaswag_val.bin"):  # there, and so not fetched
        write(f"data/{name}", "")
    for name, text in STAND_INS.items():
        write(f"fake/bin/{name}", text, 0o755)


def environment(**changes):
    settings = dict(FAKE=FAKE, FAKE_STATUS="0", FAKE_SAVES="no", FAKE_WAITS="", FAKE_MPI="mpirun (Open MPI) 4.1.4",
                    PROGRAM=TRAINER_PATH, OUT_DIR=OUT, PAUSE="0", DATA_ROOT=DATA, STAGES="plan train",
                    PATH=PROGRAMS + os.pathsep + os.environ["PATH"])
    return shell.environment(**{**settings, **changes})


def begin(script, *words, **changes):
    options = OPTIONS if script.startswith(MULTI_NODE + "run") else []
    return shell.begin(["bash", script, *options, *words], environment(**changes))


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


TRAIN = ["train_gpt2cu", "--out-dir", OUT]

# ---- restart.sh ----


def test_restart_until_it_succeeds():
    out = ran(0, RESTART, *TRAIN, FAKE_STATUS="7 kill 0", FAKE_SAVES="yes no")
    assert started() == {0: [f"--out-dir {OUT} --resume"] * 3}, started()
    starts = re.findall(r"^restart\.sh: \d{4}-\d\d-\d\d [\d:]{8} start (\d+ of \d+, from step \d+): (.*)$", out, re.M)
    command = f"train_gpt2cu --out-dir {OUT} --resume"
    assert starts == [("1 of 20, from step 0", command), ("2 of 20, from step 10", command),
                      ("3 of 20, from step 10", command)], out
    assert "status 7 after" in out and "status 137 after" in out, out


@pytest.mark.parametrize("statuses, saves, starts, more", (
    ("7", "no", 2, {}),  # without progress
    ("7 7 7 7 7 8", "yes no yes no yes no", 7, {}),  # forgiven when the next start has a new checkpoint
    ("7", "again again again no", 5, {}),  # a checkpoint that replaces another is new
    ("7", "yes", 3, {"MAX_STARTS": "3", "PAUSE": "1"})), ids=("none", "some", "replaced", "most"))
def test_restart_gives_up(statuses, saves, starts, more):
    out = ran(int(statuses[-1]), RESTART, *TRAIN, FAKE_STATUS=statuses, FAKE_SAVES=saves, **more)
    assert len(started()[0]) == starts, started()
    if more:
        assert out.endswith("given up: 3 starts\n") and re.findall(r"next start in (\d+) s", out) == ["1", "2"], out
    else:
        assert f"given up: two starts without a new checkpoint in {OUT}\n" in out, out


@pytest.mark.parametrize("words", (["-o", OUT], [f"--out-dir={OUT}"], ["--resume", "--out-dir", OUT],
                                   ["-o", OUT, "-y", "1"]))
def test_restart_finds_the_folder(words):
    ran(0, RESTART, "train_gpt2cu", *words)
    assert started() == {0: [" ".join([*words, "--resume"])]}, started()  # the last one counts, also after -y 0


def test_restart_refuses():
    for words, message, changes in (
        (["train_gpt2cu"],
         "restart.sh: the command has no --out-dir (-o), the folder of the checkpoints to go on from", {}),
        ([*TRAIN, "--overwrite"], "restart.sh: --overwrite: would begin anew with every start; leave it out", {}),
        (TRAIN, "restart.sh: MAX_STARTS is '0', expected 1 to 99999", dict(MAX_STARTS="0")),
        (TRAIN, "restart.sh: PAUSE is 'long', expected whole seconds, 0 to 999", dict(PAUSE="long")),
    ):
        assert ran(1, RESTART, *words, **changes) == message + "\n", words
        assert started() == {}, words
    assert "until it ends with status 0" in ran(1, RESTART) and "MAX_STARTS" in ran(0, RESTART, "--help")
    assert ran(1, RESTART, "no_such_program", "--out-dir", OUT) == \
        "restart.sh: no_such_program: no such program; `make help` says how each trainer is built\n"


def test_mpirun_as_root():
    """Open MPI refuses root: restart.sh says so before any start, and make doctor names the option."""
    write("fake/bin/id", "#!/bin/sh\necho $FAKE_ID\n", 0o755)
    write("fake/bin/mpicc", "#!/bin/sh\nexec cc \"$@\"\n", 0o755)
    command = ["mpirun", "-np", "2", *TRAIN]
    said = ("restart.sh: mpirun: refuses to run as root; in a container, give it --allow-run-as-root, elsewhere use "
            "another account\n")
    assert ran(1, RESTART, *command, FAKE_ID="0") == said and started() == {}
    for words, changes in ((command, dict(FAKE_ID="1000")), (command, dict(FAKE_ID="0", FAKE_MPI="HYDRA")),
                           (command, dict(FAKE_ID="0", OMPI_ALLOW_RUN_AS_ROOT="1")), (TRAIN, dict(FAKE_ID="0")),
                           (["mpirun", "--allow-run-as-root", *TRAIN], dict(FAKE_ID="0"))):
        assert said not in ran(0, RESTART, *words, **changes), (words, changes)
    assert "as root, as in a container: mpirun --allow-run-as-root" in ran(0, "dev/doctor.sh", FAKE_ID="0")


@pytest.mark.parametrize("number", (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
def test_restart_passes_signals_on(number):
    process = begin(RESTART, *TRAIN, FAKE_WAITS="1")
    wait_for_ranks(1, process)
    process.send_signal(number)
    out = end(process, 0)
    assert noted("signals") == ["0 USR1"] and len(started()[0]) == 1, (number, noted("signals"), out)
    assert f"{number.name}: stopping in order; once more: at once" in out, out


def test_restart_second_signal():
    """The first one finds a command that does not mind it."""
    process = begin(RESTART, "bash", "-c", "trap '' USR1; exec \"$@\"", "deaf", *TRAIN, FAKE_WAITS="1")
    wait_for_ranks(1, process)
    for _ in range(2):
        process.send_signal(signal.SIGTERM)
        until(process, "stopping")
    end(process, 3)
    assert noted("signals") == ["0 TERM"] and len(started()[0]) == 1, noted("signals")


def test_restart_signal_in_the_pause():
    process = begin(RESTART, *TRAIN, FAKE_STATUS="7", FAKE_SAVES="yes", PAUSE="999")
    until(process, "next start in 999 s")
    process.send_signal(signal.SIGTERM)
    end(process, 7)
    assert len(started()[0]) == 1, started()


def test_restart_ctrl_c():
    """On a terminal Ctrl-C goes to a whole group of processes: not to what is to save."""
    with Terminal(["bash", RESTART, *TRAIN], cwd=ROOT, env=environment(FAKE_WAITS="1")) as terminal:
        terminal.until(lambda: noted("ready.0"))
        terminal.press(b"\x03")
        terminal.finish()
    assert noted("signals") == ["0 USR1"], noted("signals")


# ---- The scripts for several nodes ----


def words_of(line, option):
    """The last value of an option of the trainer."""
    return re.findall(rf" --{option} (\S+)", " " + line)[-1]


def test_mpi():
    ran(0, MULTI_NODE + "run_mpi.sh", "--prompt", "it's", HOSTS="one two", NCCL_DEBUG="INFO", LD_LIBRARY_PATH="/lib")
    words = noted("mpirun")
    launch, train = words[:words.index(TRAINER_PATH)], words[words.index(TRAINER_PATH):]
    assert launch == ["-np", "8", "--host", "one:4,two:4", "--bind-to", "none", "-x", "NCCL_DEBUG", "-x",
                      "LD_LIBRARY_PATH"], launch
    assert train[-5:] == ["--prompt", "it's", "--nccl-init", "mpi", "--resume"], train
    assert train[train.index("--out-dir") + 1] == OUT and words_of(" ".join(train), "train-data") == "it's/train*.bin"
    assert "--num-processes" not in train and "--process-rank" not in train, train
    assert " --init d12 --seq-len 1024 --total-batch 524288 " in " ".join(train), train


def check_secret(lines, given=None):
    """All 8 processes have one secret at each of two starts. It is no word of a command."""
    secrets = noted("secrets")
    assert len(secrets) == 16 and len(set(secrets[:8])) == len(set(secrets[8:])) == 1, secrets
    assert set(secrets) == {given} if given else all(re.fullmatch("[0-9a-f]{64}", secret) for secret in secrets)
    assert not any(secret in line for line in lines for secret in secrets), lines


def test_refusals():
    script = MULTI_NODE + "run_tcp.sh"
    for message, changes in (
        ("run_tcp.sh: GPUS_PER_NODE is '5', expected 1 to 4, as many as nvidia-smi finds\n", dict(GPUS_PER_NODE="5")),
        ("run_tcp.sh: NODE is '2', expected 0 to 1: HOSTS names 2\n", dict(HOSTS="a b", NODE="2")),
        ("run_tcp.sh: NODE is 'two', expected 0 to 1\n", dict(HOSTS="a b", NODE="two")),
        ("run_tcp.sh: RECIPE: ./nothing: no such file; expected scripts/run_gpt2_124M.sh or one beside it\n",
         dict(RECIPE="./nothing")),
        (f"run_tcp.sh: the data are not complete in {WORK}: the stage fetch fetches them\n", dict(DATA_ROOT=WORK)),
    ):
        out = ran(1, script, **changes)
        assert out.endswith(message), (message, out)
    assert started() == {}, started()


def check_ranks(ranks, times=1, total=8):
    """Each of these ranks was started so many times, with the same words but for the rank."""
    assert list(started()) == list(ranks), started()
    lines = set()
    for rank, starts in started().items():
        assert len(starts) == times, started()
        assert starts[0].endswith(f" --process-rank {rank}") and f" --num-processes {total} " in starts[0], starts
        lines |= {re.sub(r" --process-rank \d+$", "", start) for start in starts}
    assert len(lines) == 1, lines
    return lines.pop()


@pytest.mark.parametrize("secret", (None, "of my own, \"it's\" long"))
def test_tcp_over_ssh(secret):
    """All nodes start again when one process failed, here each process once."""
    out = ran(0, MULTI_NODE + "run_tcp.sh", "--prompt", "it's", HOSTS="one two", PORT="4321", NCCL_DEBUG="INFO",
              FAKE_STATUS="5 0", FAKE_SAVES="yes", GPT2C_SECRET=secret)
    line = check_ranks(range(8), times=2)
    assert "start 2 of 20, from step 10: " in out and noted("ssh") == ["two", "two"], out
    assert f" --val-data {DATA}/fineweb10B/fineweb_val_*.bin " in line, line
    assert words_of(line, "train-data") == "it's/train*.bin", line
    assert " --prompt it's --nccl-init tcp --server-ip one:4321 " in line, line
    assert "'NCCL_DEBUG=INFO'" in noted("ssh_lines")[0], noted("ssh_lines")
    check_secret([line, *noted("ssh_lines")], secret)


def test_tcp_signal():
    process = begin(MULTI_NODE + "run_tcp.sh", HOSTS="one two", FAKE_WAITS="1")
    wait_for_ranks(8, process)
    process.send_signal(signal.SIGTERM)
    out = end(process, 143)
    assert "stopped by SIGTERM at step 99 of 200. The same command goes on.\n" in out, out
    check_ranks(range(8))
    assert set(noted("signals")) <= {f"{rank} USR1" for rank in range(4)} and noted("signals"), noted("signals")


@pytest.mark.parametrize("node", (0, 1))
def test_tcp_on_each_node(node):
    ran(0, MULTI_NODE + "run_tcp.sh", HOSTS="one two", NODE=str(node))
    line = check_ranks(range(4 * node, 4 * node + 4))
    assert noted("ssh") == [] and " --server-ip one:29500 " in line, line
    secret = os.path.join(OUT, "start", "secret")
    assert f" --secret-file {secret} " in line and os.stat(secret).st_mode & 0o777 == 0o600, line
    assert os.listdir(os.path.dirname(secret)) == ["secret"]
    before = read(secret)
    ran(0, MULTI_NODE + "run_tcp.sh", HOSTS="one two", NODE=str(1 - node))  # the other node takes what is there
    assert read(secret) == before and re.fullmatch(b"[0-9a-f]{64}", before), before


def test_one_machine():
    ran(0, MULTI_NODE + "run_tcp.sh", RECIPE="scripts/run_gpt2_1558M.sh")
    line = check_ranks(range(4), total=4)
    assert " --server-ip localhost:29500 " in line and noted("ssh") == [], line
    assert " --init d48 --seq-len 1024 --total-batch 1048576 " in line, line


@pytest.mark.parametrize("words", (["local_ranks.sh", "3", "2"], ["on_hosts.sh", "one two", "1"]))
def test_first_status_that_failed(words):
    ran(6, MULTI_NODE + words[0], *words[1:], *TRAIN, FAKE_STATUS="6")


# ---- Slurm ----


@pytest.mark.parametrize("kind, mpi, words", (
    ("mpi", "pmix", "mpi"), ("tcp", "none", "tcp --server-ip first:21007"),
    ("folder", "none", f"fs --nccl-fs-path {OUT}/start")), ids=("mpi", "tcp", "folder"))
def test_slurm(kind, mpi, words):
    out = ran(0, MULTI_NODE + "run.sbatch", "--prompt", "it's", START=kind, FAKE_STATUS="5 0", FAKE_SAVES="yes",
              **SLURM)
    launch = noted("srun")[0].split(TRAINER_PATH)[0]
    for word in (f"--mpi={mpi}", "--ntasks=8", "--ntasks-per-node=4", "--cpus-per-task=2", "--distribution=block"):
        assert f"{word} " in launch, launch
    assert list(started()) == list(range(8)), started()
    line = started()[0][0]
    assert f" --prompt it's --nccl-init {words} " in line and " --resume" in line, line
    if kind == "tcp":
        check_secret([check_ranks(range(8), times=2), *noted("srun")])
    assert len(noted("srun")) == 2 and "start 2 of 20" in out and noted("requeued") == [], (noted("srun"), out)


@pytest.mark.long
@pytest.mark.parametrize("kind, number, requeued", (
    ("mpi", signal.SIGUSR1, ["31007"]), ("folder", signal.SIGUSR1, ["31007"]), ("folder", signal.SIGTERM, [])))
def test_slurm_time_limit(kind, number, requeued):
    """Queued again when the signal before the time limit ended it in order, and only then."""
    process = begin(MULTI_NODE + "run.sbatch", FAKE_WAITS="1", START=kind, **SLURM)
    wait_for_ranks(8, process)
    process.send_signal(number)
    out = end(process, 0 if requeued else 143)
    assert noted("requeued") == requeued and noted("signals"), (noted("requeued"), out)


def test_slurm_gives_up():
    out = ran(1, MULTI_NODE + "run.sbatch", FAKE_STATUS="5", **SLURM)
    assert "run.sbatch: the training ended with status 5 at step 0 of 200; " in out, out
    check_ranks(range(8), times=2)
    assert noted("requeued") == [], noted("requeued")


def test_slurm_headers():
    """Slurm reads them up to the first command."""
    for name in glob.glob(os.path.join(ROOT, MULTI_NODE, "*.sbatch")):
        first_command = re.search(r"^[^#\n]", text_of(name), re.M).start()
        headers = re.findall("^#SBATCH .*", text_of(name)[:first_command], re.M)
        assert len(headers) == text_of(name).count("#SBATCH") and "#SBATCH --requeue" in headers, name
        assert "#SBATCH --signal=B:USR1@300" in headers, name


@pytest.mark.long
def test_shellcheck():
    if shutil.which("shellcheck") is None:
        pytest.skip("no shellcheck here")
    scripts = [name for pattern in ("scripts/*.sh", MULTI_NODE + "*", "dev/*.sh", "dev/test/*/*.sh")
               for name in glob.glob(os.path.join(ROOT, pattern))]
    result = subprocess.run(["shellcheck", "-x", *scripts], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout
