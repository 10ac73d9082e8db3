"""What another user may plant in a folder that a program writes to or reads from: a link under every name that the
program writes, a pipe under those that it reads. Nothing outside the folder changes, and nothing waits. What else each
way to open a file refuses: dev/test/base/test_planted.c.
"""
import os

from cli import (QUIET, TINY, check_line, checkpoints, finish, logged_steps, new_folder, path, ran,
                 read, refused, start, text_file, write)
from tools import wait_until

TEXT = text_file()
RUN = ["-i", TEXT, *TINY, "-s", 0, "-v", 2, "-m", 1]
STEPS = ["-x", 4, "-n", 2]
NAMES = ["main.log", "model_00000002.bin", "model_00000004.bin", "model_best.bin", "run.jsonl", "speed.log",
         "state_00000002.bin", "state_00000004.bin", "tokenizer.bin"]
LOGS = ["main.log", "speed.log", "run.jsonl"]  # in the order in which a run opens them
OUTSIDE = path("outside")


def plant(name):
    """In place of a file: a link to a file outside the folder."""
    if os.path.lexists(name):
        os.remove(name)
    os.symlink(write(os.path.join(OUTSIDE, os.path.basename(name)), b"precious"), name)


def check_outside():
    assert {read(os.path.join(OUTSIDE, name)) for name in os.listdir(OUTSIDE)} == {b"precious"}, os.listdir(OUTSIDE)


def test_links_in_a_run_folder():
    """All names of a run, also while they are written, in the folder of a fresh run and of a run that goes on."""
    folder = new_folder("run")
    ran(*RUN, *STEPS, "-o", folder)
    assert sorted(os.listdir(folder)) == [".lock", *NAMES], os.listdir(folder)
    for name in NAMES:
        plant(os.path.join(folder, name))
        if name not in LOGS:
            plant(os.path.join(folder, name + ".tmp"))
    ran(*RUN, *STEPS, "-o", folder, "--overwrite")
    check_outside()
    assert sorted(os.listdir(folder)) == [".lock", *NAMES], os.listdir(folder)
    assert not any(os.path.islink(os.path.join(folder, name)) for name in NAMES)
    for name in (*LOGS, *(name + ".tmp" for name in NAMES if name not in LOGS)):
        plant(os.path.join(folder, name))
    for name in LOGS:  # a run goes on with a file of its own only
        refused(*RUN, "-x", 6, "-n", 2, "-o", folder, "--resume", "--allow-changes", says=[f"{name}: is "])
        os.remove(os.path.join(folder, name))
    ran(*RUN, "-x", 6, "-n", 2, "-o", folder, "--resume", "--allow-changes")
    check_outside()
    assert checkpoints(folder) == [2, 4, 6] and logged_steps(folder) == [4, 5]
    plant(os.path.join(folder, ".lock"))
    refused(*RUN, *STEPS, "-o", folder, "--overwrite", says=[".lock: is ", "remove it"])
    check_outside()


def test_pipes_to_read():
    """A pipe in place of a file of ours is refused at once. A text that the user names may be one."""
    folder, pipe, whole = new_folder("read"), path("pipe.txt"), path("whole")
    ran(*RUN, "-x", 1, "-o", folder)
    os.mkfifo(pipe)
    for name in ("model_00000001.bin", "state_00000001.bin", "tokenizer.bin"):
        file = os.path.join(folder, name)
        os.rename(file, whole)
        os.symlink(pipe, file)
        refused("--init", folder, "-x", 0, "-g", 2, says=[f"{name}: is a device or pipe, expected an ordinary file"])
        os.replace(whole, file)
    for words in (["-i", TEXT, "--tokenizer", pipe], ["-i", path("pip*.txt")]):
        refused(*words, *TINY, *QUIET, "-x", 1, says=["pipe.txt: is a device or pipe"])
    process = start("-i", pipe, *TINY, *QUIET, "-x", 1)
    with open(pipe, "wb") as file:
        file.write(read("text.txt"))
    assert "step    1/1" in finish(process)[0]


def test_lock_that_somebody_removes():
    """A second run may then begin in the folder. The first one stops at its next checkpoint, and keeps those it has."""
    folder = new_folder("run")
    process = start(*RUN, "-x", 1000000, "-n", 1, "--keep", 2, "-o", folder)
    wait_until(lambda: os.path.isdir(folder) and len(checkpoints(folder)) == 2, process, "2 checkpoints")
    os.remove(os.path.join(folder, ".lock"))
    _, err = finish(process, 1)
    check_line("train_gpt2", err, [".lock: was removed or replaced"])
    assert not [name for name in os.listdir(folder) if ".tmp" in name or name == ".lock"], os.listdir(folder)
