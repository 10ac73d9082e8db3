"""Runs the shell scripts of this repository, or of a copy of it, as their users do."""
import os
import re
import shutil
import subprocess

from tools import LIMIT, ROOT, path

COPY = path("a copy")  # a space, as folders have
# What the shell that runs the tests must not bring in.
UNWANTED = "NCCL_|EMU_|SLURM_|OMPI_|PMI|MAKE|MFLAGS|CUDA_|(SMOKE|PLAN|OUT_DIR|DATA_DIR|STEPS|GPUS|LAUNCH|HOSTS)$"
MEMBERS = ["Makefile", "README.md", "CONTRIBUTING.md", "doc", "llmc", "scripts", "dev", "train_gpt2.c", "train_gpt2.cu",
           "train_gpt2.py", "tokenize.c"]


def copy_repository():
    """Makes COPY. What is built and fetched is not in it."""
    os.mkdir(COPY)
    for member in MEMBERS:
        source = os.path.join(ROOT, member)
        if os.path.isdir(source):
            shutil.copytree(source, os.path.join(COPY, member), ignore=shutil.ignore_patterns("__pycache__", "*.bin"))
        else:
            shutil.copy(source, COPY)


def environment(**settings):
    """What a script finds. A setting of None: without this variable."""
    inherited = {name: value for name, value in os.environ.items() if not re.match(UNWANTED, name)}
    return {name: value for name, value in {**inherited, **settings}.items() if value is not None}


def begin(command, env, cwd=ROOT):
    return subprocess.Popen(command, cwd=cwd, env=env, text=True, errors="replace", stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def until(process, text):
    """What is shown up to the line with this text."""
    shown = ""
    while text not in shown:
        line = process.stdout.readline()
        assert line, f"ended before {text}\n{shown[-3000:]}"
        shown += line
    return shown


def end(process, status):
    """What is shown by a script that must end with this status."""
    try:
        out = process.communicate(timeout=LIMIT)[0]
    except subprocess.TimeoutExpired:
        process.terminate()
        raise AssertionError(f"no end after {LIMIT} s: {process.communicate(timeout=60)[0][-3000:]}") from None
    assert process.returncode == status, (process.returncode, status, out[-3000:])
    return out
