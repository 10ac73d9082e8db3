"""scripts/restart.sh and scripts/multi_node/ with the GPU trainer, ./train_gpt2emu (make train_gpt2emu; TRAIN_GPT2CU
names another): a process that dies, and a run that is stopped, cost nothing but time. The same scripts with a stand-in
for the trainer: test_multi_node.py."""
import functools
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

PROGRAM = os.path.abspath(os.environ.get("TRAIN_GPT2CU", "./train_gpt2emu"))
if not os.path.exists(PROGRAM) or not PROGRAM.endswith("emu"):
    print(f"skip gpu_restart: all of it: no emulated {PROGRAM} here (make train_gpt2emu)")
    print("gpu_restart: 0 passed, 0 failed, 1 skipped")
    sys.exit(0)
os.environ["TRAIN_GPT2"] = PROGRAM

import cli  # noqa: E402
import harness  # noqa: E402

TCP, MPI = "scripts/multi_node/run_tcp.sh", "scripts/multi_node/run_mpi.sh"
STEPS = 24
SHAPE = ["--layers", "1", "--heads", "1", "--channels", "8", "--context", "16", "--steps", str(STEPS)]
BRIEF = ["--val-batches", "1", "--sample-tokens", "1"]
LIMIT = 300  # seconds for anything, on a machine busy with other things

# The second of two processes ends as if killed, in the first start only.
DIES_ONCE = """#!/bin/sh
case " $* " in
    *" --process-rank 1 "*) mkdir "$DIED" 2>/dev/null && export EMU_NCCL_FAULT=die@1:$DIES_AT ;;
esac
exec "$TRAINER" "$@"
"""


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def begin(script, out_dir, **changes):
    """Two processes on this machine."""
    settings = dict(PROGRAM=PROGRAM, OUT_DIR=out_dir, TRAIN_DATA=cli.text_file(), VAL_DATA=cli.text_file("val.txt"),
                    SEQ_LEN="16", BATCH_SIZE="2", TOTAL_BATCH="128", LR="1e-2", CHECKPOINT_EVERY="4", GPUS_PER_NODE="2",
                    SERVER="127.0.0.1", PORT=str(free_port()), PAUSE="0", EMU_THREADS="1",
                    OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                    OMPI_MCA_rmaps_base_oversubscribe="1")
    return subprocess.Popen(["bash", script, *SHAPE, *BRIEF], env={**cli.ENVIRONMENT, **settings, **changes},
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def end(process, status=0):
    out, err = (text.decode("latin-1") for text in process.communicate(timeout=LIMIT))
    assert process.returncode == status, (process.returncode, out, err)
    return out, err


def starts(err):
    """The steps that restart.sh began from."""
    return [int(step) for step in re.findall(r"^restart\.sh: .* start \d of 20, from step (\d+): ", err, re.M)]


@functools.lru_cache(maxsize=None)
def undisturbed():
    """The hash of the weights that a run of two processes ends with."""
    out, err = end(begin(TCP, cli.new_folder("straight")))
    assert starts(err) == [0], err
    return cli.weights_hash(out)


def a_process_dies():
    folder, wrapper = cli.new_folder("dies"), cli.write("dies_once.sh", DIES_ONCE.encode())
    os.chmod(wrapper, 0o755)
    out, err = end(begin(TCP, folder, PROGRAM=wrapper, TRAINER=PROGRAM, DIED=cli.new_folder("died"), DIES_AT="40"))
    assert len(starts(err)) == 2 and 0 < starts(err)[1] < STEPS, err
    assert re.search(r"^rank 1 .* ended without a word", err.replace("train_gpt2cu: ", ""), re.M), err
    assert cli.weights_hash(out) == undisturbed(), err


def stopped(script):
    """Saves between two checkpoints when it is told to end, and goes on from there when started again."""
    folder = cli.new_folder("stopped")
    process = begin(script, folder, CHECKPOINT_EVERY="1000")
    deadline = time.monotonic() + LIMIT
    while not os.path.exists(os.path.join(folder, "main.log")) or "trl" not in cli.read("stopped/main.log").decode():
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    out, err = end(process)
    at = cli.checkpoints(folder)
    assert starts(err) == [0] and len(at) == 1 and 0 < at[0] < STEPS, (at, out, err)
    out, err = end(begin(script, folder))
    assert starts(err) == at and cli.weights_hash(out) == undisturbed(), (out, err)


def stopped_tcp():
    stopped(TCP)


def stopped_mpi():
    if shutil.which("mpirun") is None:
        raise harness.Skip("no mpirun here")
    stopped(MPI)


TESTS = [a_process_dies, stopped_tcp, stopped_mpi]
harness.run("gpu_restart", TESTS)
