"""What others may plant. In a folder: a link under every name that a program writes, a pipe under those that it reads.
Nothing outside the folder changes, and nothing waits (test_planted.c: each way to open a file). In text that the
trainer prints (paths, options, the training state, tokenizers): no byte of it may steer the terminal or forge a line,
on stdout, stderr or in a file that a person reads (test_text_out.c: each character).
"""
import os
import re
import shutil

from cli import (QUIET, TINY, check_line, checkpoints, config, finish, logged_steps, model, new_folder, path, ran,
                 random_tokens, read, refused, shard_bytes, start, text_file, tokenizer_bytes, write)
from formats import BYTES, rewrite_state
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
    refused("-i", path("pip*.txt"), *TINY, *QUIET, "-x", 1, says=["pipe.txt: is a device or pipe"])
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


# ---- Text ----

# ESC, BEL, CR, DEL, U+009B as UTF-8 and as a raw byte, an override and an isolate of the direction of writing, half a
# character, and then text that must pass.
HIGH = b"\xc2\x9b31m\x9b2J\xe2\x80\xae\xe2\x81\xa6\xe2\x82."
HOSTILE = b"\x1b]0;x\x07\r\x7f" + HIGH
FRIENDLY = "Grüße 世界 👨‍👩‍👧".encode()
HIGH_SHOWN = "\\u009b31m\ufffd2J\\u202e\\u2066\ufffd\ufffd."
SHOWN = "\\x1b]0;x\\x07\\x0d\\x7f" + HIGH_SHOWN
STEERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def plain(data, what):
    """Bytes that a terminal may get, as text."""
    text = data.encode("latin-1").decode() if isinstance(data, str) else data.decode()
    assert not STEERS.search(text), (what, text)
    return text


def hostile_path(name, hostile=HOSTILE):
    return os.fsdecode(os.fsencode(path(name)) + hostile + FRIENDLY)


def put(name, data, hostile=HIGH):
    """Writes a file with a hostile name. Returns its path. An option that a checkpoint records has no C0 in it."""
    file = hostile_path(name, hostile) + ".bin"
    with open(file, "wb") as out:
        out.write(data)
    return file


TOKENS = [bytes([byte]) for byte in BYTES] + [  # and the beginnings of these texts, as merges make them
    text[:n] for text in (HOSTILE, FRIENDLY, b"\n\t", b"\xe2\x80", b"\x1b[") for n in range(2, len(text) + 1)]
TALKS = [*TINY, "--vocab", len(TOKENS) + 1, "-x", 2, "-s", 2, "-g", 60, "--temperature", 9, "-v", 1]


def test_a_whole_run():
    """Every path of a run, its samples and all that it writes; a resume with everything that it reads of the folder."""
    data = put("tokens", shard_bytes(random_tokens(600, len(TOKENS) + 1)))
    put("shard_of_many", shard_bytes(random_tokens(600, len(TOKENS) + 1)), HOSTILE)
    tokenizer = put("tokenizer", tokenizer_bytes(TOKENS + [b"<|endoftext|>"]))
    folder = hostile_path("run")
    words = ["-i", data, "-j", path("shard_of_many*.bin"), "--tokenizer", tokenizer, *TALKS]
    out = plain(ran(*words, "-o", folder), "stdout")
    for where in ("train data", "tokenizer", "output", "saved the checkpoint"):
        shown = HIGH_SHOWN if where[0] == "t" else SHOWN
        assert re.search(rf"^{where} .*{re.escape(shown + FRIENDLY.decode())}", out, re.M), (where, out)
    rewrite_state(os.path.join(folder, "state_00000002.bin"), {"--schedule": os.fsdecode(HOSTILE)})
    out = plain(ran(*words, "-o", folder, "--resume", "--allow-changes"), "stdout")
    assert "--schedule was " + SHOWN in out, out
    for name in ("run.jsonl", "main.log", "speed.log"):
        plain(read(os.path.join(folder, name)), name)
    shutil.rmtree(folder)


ARGUMENT = os.fsdecode(HOSTILE + b"\nforged: line")


def test_errors_are_one_plain_line():
    tokenizer = put("t", tokenizer_bytes(TOKENS, count=999))
    put("bad", shard_bytes([1, 2, 3], count=9), HOSTILE)
    for words in ([ARGUMENT, 3], ["--schedule", ARGUMENT], ["-i", ARGUMENT], ["-i", path("bad*.bin")],
                  ["-i", TEXT, *TINY, "-o", "/proc/" + ARGUMENT], ["--init", ARGUMENT, "-x", 0],
                  ["--init", model("m.bin", config(V=257)), "-x", 0, "--tokenizer", tokenizer]):
        out, err = finish(start(*words), 1, words)
        plain(out, words)
        assert re.fullmatch(r"train_gpt2: [^\n]*\\[xu][^\n]+\n", plain(err, words)), err
