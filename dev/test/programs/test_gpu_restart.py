"""scripts/restart.sh and scripts/multi_node/ with the GPU trainer, ./train_gpt2emu (make train_gpt2emu; TRAIN_GPT2CU
names another): a process that dies, and a run that is stopped, cost nothing but time. The same scripts with a stand-in
for the trainer: test_multi_node.py."""
import functools
import os
import re
import shutil
import signal
import subprocess
import time

import pytest

import gpu_program
import cli
from tools import free_port, stand_ins

gpu_program.only_emulated()
TCP, MPI = "scripts/multi_node/run_tcp.sh", "scripts/multi_node/run_mpi.sh"
STEPS = 24
SHAPE = ["--layers", "1", "--heads", "1", "--channels", "8", "--context", "16", "--sample-tokens", "1"]
LIMIT = 300  # seconds for anything, on a machine busy with other things

# Trains on bytes, which the scripts do not: GPT-2's vocabulary would take its time here. With DIED, the second of two
# processes ends as if killed, in the first start only.
TRAINER = """#!/usr/bin/env bash
words=()
while [ $# -gt 0 ]; do
    case $1 in
        --tokenizer | --hellaswag | --hellaswag-data | --eval-examples) shift ;;
        *) words+=("$1") ;;
    esac
    shift
done
case " ${words[*]} " in
    *" --process-rank 1 "*) [ -n "$DIED" ] && mkdir "$DIED" 2>/dev/null && export EMU_NCCL_FAULT=die@1:$DIES_AT ;;
esac
exec "$TRAINER" "${words[@]}"
"""
NVIDIA_SMI = """#!/bin/sh
echo "emulated GPU, 80000, 9.0"
echo "emulated GPU, 80000, 9.0"
"""


@functools.lru_cache(maxsize=None)
def places():
    """A folder with programs, and one with data that are there, and so not fetched."""
    for name in ("vocab.bpe", "hellaswag/hellaswag_val.bin"):
        cli.write(f"data/{name}", b"")
    return stand_ins({"trainer": TRAINER, "nvidia-smi": NVIDIA_SMI}, only=()), cli.path("data")


def begin(script, out_dir, **changes):
    """Two processes on this machine."""
    programs, data = places()
    settings = dict(PROGRAM=os.path.join(programs, "trainer"), TRAINER=gpu_program.PROGRAM, DIED="", OUT_DIR=out_dir,
                    TRAIN_DATA=cli.text_file(), VAL_DATA=cli.text_file("val.txt"), DATA_ROOT=data, MODEL="d6",
                    PATH=programs + os.pathsep + cli.ENVIRONMENT["PATH"], STAGES="check plan train", STEPS=str(STEPS),
                    SEQ_LEN="16", BATCH_SIZE="2", TOTAL_BATCH="64", VAL_TOKENS="32", LR="1e-2", KEEP_MAJOR="0",
                    CHECKPOINT_EVERY="4", GPUS_PER_NODE="2", SERVER="127.0.0.1", PORT=str(free_port()), PAUSE="0",
                    EMU_THREADS="1", OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                    OMPI_MCA_rmaps_base_oversubscribe="1")
    return subprocess.Popen(["bash", script, *SHAPE], env={**cli.ENVIRONMENT, **settings, **changes},
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def end(process, status=0):
    out = process.communicate(timeout=LIMIT)[0].decode("latin-1")
    assert process.returncode == status, (process.returncode, out)
    return out


def starts(out):
    """The steps that restart.sh began from."""
    return [int(step) for step in re.findall(r"^restart\.sh: .* start \d of 20, from step (\d+): ", out, re.M)]


@functools.lru_cache(maxsize=None)
def undisturbed():
    """The hash of the weights that a run of two processes ends with."""
    out = end(begin(TCP, cli.new_folder("straight")))
    assert starts(out) == [0], out
    return cli.weights_hash(out)


@pytest.mark.long
def test_a_process_dies():
    out = end(begin(TCP, cli.new_folder("dies"), DIED=cli.new_folder("died"), DIES_AT="40"))
    assert len(starts(out)) == 2 and 0 < starts(out)[1] < STEPS, out
    assert re.search(r"^rank 1 .* ended without a word", out.replace("train_gpt2cu: ", ""), re.M), out
    assert cli.weights_hash(out) == undisturbed(), out


def stopped(script):
    """Saves between two checkpoints when it is told to end, and goes on from there when started again."""
    folder = cli.new_folder("stopped")
    process = begin(script, folder, CHECKPOINT_EVERY="1000", EMU_NCCL_FAULT="rest@0:40:20")  # until it is told
    deadline = time.monotonic() + LIMIT
    while not os.path.exists(os.path.join(folder, "main.log")) or "trl" not in cli.read("stopped/main.log").decode():
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    out = end(process, 128 + signal.SIGTERM)
    at = cli.checkpoints(folder)
    assert starts(out) == [0] and len(at) == 1 and 0 < at[0] < STEPS, (at, out)
    out = end(begin(script, folder))
    assert starts(out) == at and cli.weights_hash(out) == undisturbed(), out


def test_stopped_tcp():
    stopped(TCP)


@pytest.mark.long
def test_stopped_mpi():
    if shutil.which("mpirun") is None:
        pytest.skip("no mpirun here")
    stopped(MPI)
