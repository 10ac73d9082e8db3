"""Text of others that the trainer prints: paths, options, the training state, tokenizers. No byte of it may steer the
terminal or forge a line, on stdout, stderr or in a file that a person reads. test_text_out.c has every character."""
import os
import re
import shutil

import pytest

from cli import TINY, config, finish, model, path, ran, random_tokens, shard_bytes, start, tokenizer_bytes
from formats import BYTES, rewrite_state
from tools import read, write

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
RUN = [*TINY, "--vocab", len(TOKENS) + 1, "-x", 2, "-s", 2, "-g", 60, "--temperature", 9, "-v", 1]


def test_a_whole_run():
    """Every path of a run, its samples and all that it writes; a resume with everything that it reads of the folder."""
    data = put("tokens", shard_bytes(random_tokens(600, len(TOKENS) + 1)))
    put("shard_of_many", shard_bytes(random_tokens(600, len(TOKENS) + 1)), HOSTILE)
    tokenizer = put("tokenizer", tokenizer_bytes(TOKENS + [b"<|endoftext|>"]))
    folder = hostile_path("run")
    words = ["-i", data, "-j", path("shard_of_many*.bin"), "--tokenizer", tokenizer, *RUN]
    out = plain(ran(*words, "-o", folder), "stdout")
    for where in ("train data", "tokenizer", "output", "saved the checkpoint"):
        shown = HIGH_SHOWN if where[0] == "t" else SHOWN
        assert re.search(rf"^{where} .*{re.escape(shown + FRIENDLY.decode())}", out, re.M), (where, out)
    for name in ("run.jsonl", "main.log", "speed.log"):
        plain(read(os.path.join(folder, name)), name)

    rewrite_state(os.path.join(folder, "state_00000002.bin"), {"--schedule": os.fsdecode(HOSTILE)})
    out = plain(ran(*words, "-o", folder, "--resume", "--allow-changes"), "stdout")
    assert "--schedule was " + SHOWN in out, out
    for name in ("run.jsonl", "main.log", "speed.log"):
        plain(read(os.path.join(folder, name)), name)
    shutil.rmtree(folder)


ARGUMENT = os.fsdecode(HOSTILE + b"\nforged: line")
REFUSALS = {
    "option": lambda: [ARGUMENT, 3],
    "choice": lambda: ["--schedule", ARGUMENT],
    "data": lambda: ["-i", ARGUMENT],
    "shard": lambda: ["-i", put("bad", shard_bytes([1, 2, 3], count=9), HOSTILE) and path("bad*.bin")],
    "folder": lambda: ["-i", write("plain.txt", "some text " * 400), *TINY, "-o", "/proc/" + ARGUMENT],
    "init": lambda: ["--init", ARGUMENT, "-x", 0],
    "tokenizer": lambda: ["--init", model("m.bin", config(V=257)), "-x", 0, "--tokenizer",
                          put("t", tokenizer_bytes(TOKENS, count=999))],
}


@pytest.mark.parametrize("what", REFUSALS)
def test_errors_are_one_plain_line(what):
    words = REFUSALS[what]()
    out, err = finish(start(*words), 1, what)
    plain(out, what)
    assert re.fullmatch(r"train_gpt2: [^\n]*\\[xu][^\n]+\n", plain(err, what)), err
