"""The programs of dev/data as their users meet them, against a small mirror: over file:// and over a local server that
breaks off, stalls, answers 500 or 429, knows no ranges or serves another file. What they write is compared byte by
byte with what ./tokenize makes of the same texts, and read by ./train_gpt2. Needs both (make). test_tokenizer.c shows
that the tokens of ./tokenize are right.
"""
import array
import compileall
import contextlib
import csv
import email.utils
import functools
import gzip
import hashlib
import http.server
import importlib
import io
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tarfile
import threading
import time
import urllib.parse
import urllib.request

import pytest

from cli import PROGRAM as TRAIN_GPT2
from cli import losses, shard_bytes as shard
from formats import read_tokens
from tools import ROOT, SHARED, WORK, Terminal, limit_files, limit_memory, read, run_closed, wait_until, write
from tools import path as in_work

TOKENIZE = os.path.abspath(os.environ.get("TOKENIZE", os.path.join(ROOT, "tokenize")))
MIRROR = in_work("mirror")
REPOSITORY = in_work("repository")  # holds a copy of dev/data: its root is written to
PROGRAMS = os.path.join(REPOSITORY, "dev", "data")
EOT = 50256
ENVIRONMENT = {key: value for key, value in os.environ.items()
               if not key.lower().endswith("_proxy") and key != "HF_TOKEN"}
ENVIRONMENT.update(TOKENIZE=TOKENIZE, OMP_WAIT_POLICY="passive", OMP_NUM_THREADS="1", TERM="dumb", LC_ALL="C.UTF-8",
                   PYTHONDONTWRITEBYTECODE="")  # a copy may keep what Python compiles
BIG = "kjj0/finewebedu10B-gpt2"  # the set whose shards are large here: a fetch takes several blocks of 1 MiB
SHARD = "finewebedu_train_000001.bin"  # a shard of it, and its name here
OURS = SHARD.replace("finewebedu", "edu_fineweb")
BIG_SHARD = f"/datasets/{BIG}/resolve/main/{SHARD}"
BIG_LIST = f"/api/datasets/{BIG}/tree/main"
BIG_BYTES = 5001024
BLOCK = 1 << 20
ENDLESS = 96 << 20  # bytes for those who take them all; a connection holds a few million that nobody has asked for


# ---- The mirror ----


def setup_module():
    shutil.copytree(os.path.join(ROOT, "dev", "data"), PROGRAMS,
                    ignore=lambda folder, names: [name for name in names if not name.endswith((".py", ".md"))])
    shutil.copy(os.path.join(ROOT, "dev", "guard.py"), os.path.dirname(PROGRAMS))
    compileall.compile_dir(os.path.dirname(PROGRAMS), quiet=1)  # once, not at each of some 200 starts
    command = [sys.executable, os.path.join(ROOT, "dev", "data", "make_mirror.py"), MIRROR]
    made = subprocess.run(command, capture_output=True, check=True, env=ENVIRONMENT)
    assert made.stdout.decode().startswith(f"--mirror file://{MIRROR}\n"), made.stdout
    for number, kind in ((0, "val"), (1, "train"), (2, "train")):
        data = shard([(number * 7 + i * i) % 50000 for i in range(5000)] * 500)
        assert len(data) == BIG_BYTES
        publish(MIRROR, f"finewebedu_{kind}_{number:06d}.bin", data, new=number == 0)
    os.remove(in_mirror(MIRROR, "finewebedu_train_000003.bin"))


def in_mirror(mirror, name, repository=BIG):
    return os.path.join(mirror, "datasets", repository, "resolve", "main", name)


def published(name):
    """The bytes of a file of no repository, by its path in the mirror."""
    return read(os.path.join(MIRROR, name))


def publish(mirror, name, data, new=False, **changes):
    """Puts a file of the big set into a mirror, and into its list. new: begins the list."""
    write(in_mirror(mirror, name), data)
    entries = [] if new else [entry for entry in json.loads(read(mirror + BIG_LIST)) if entry["path"] != name]
    lfs = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
    entries.append({"type": "file", "path": name, "size": len(data), "oid": "0" * 40, "lfs": lfs, **changes})
    write(mirror + BIG_LIST, json.dumps(entries))


def own_mirror(name):
    """A copy of the mirror that a test may spoil."""
    path = in_work(name)
    shutil.copytree(MIRROR, path)
    return path


def overwrite(path, data, at=0, unnoticed=False):
    """Changes bytes of a file. unnoticed: its time stays."""
    status = os.stat(path)
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(data)
    if unnoticed:
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


class Server:
    """Serves a mirror over HTTP on a port of its own. faults: path -> what the next requests for it meet, in order; a
    fault is a function of the handler that answers instead, or returns True."""

    def __init__(self, mirror):
        self.mirror, self.faults, self.log, self.ranges, self.etags = mirror, {}, [], True, {}
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                server.serve(self)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.handle_error = lambda *_: None  # who asked has gone
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def requests(self, path=BIG_SHARD):
        return [entry for entry in self.log if entry["path"] == path]

    def asked(self):
        """The range and the bytes sent of each request for the big shard since the last call."""
        found = [(entry["range"], entry["sent"]) for entry in self.requests()]
        self.log.clear()
        return found

    def serve(self, handler):
        parts, headers = urllib.parse.urlsplit(handler.path), handler.headers
        path = urllib.parse.unquote(parts.path)
        handler.entry = {"path": path, "query": parts.query, "sent": 0, "time": time.monotonic(),
                         "range": headers.get("Range"), "if-range": headers.get("If-Range"),
                         "authorization": headers.get("Authorization")}
        self.log.append(handler.entry)
        faults = self.faults.get(path)
        if faults and not faults.pop(0)(handler):
            handler.close_connection = True
        elif os.path.isfile(self.mirror + path):
            self.answer(handler)
        else:
            handler.send_error(404)

    def answer(self, handler, most=None):
        """Sends a file, or the part asked for; of the body only `most` bytes."""
        path, wanted = handler.entry["path"], handler.entry["range"]
        data = read(self.mirror + path)
        etag = self.etags.get(path) or '"' + hashlib.md5(data).hexdigest() + '"'
        if not wanted or not self.ranges or handler.entry["if-range"] not in (None, etag):
            self.send(handler, 200, {"ETag": etag}, data, most)
            return
        begin = int(re.fullmatch(r"bytes=(\d+)-", wanted).group(1))
        if begin >= len(data):
            self.send(handler, 416)
            return
        headers = {"ETag": etag, "Content-Range": f"bytes {begin}-{len(data) - 1}/{len(data)}"}
        self.send(handler, 206, headers, data[begin:], most)

    def send(self, handler, code, headers=(), body=b"", most=None):
        handler.send_response(code)
        for name, value in {**dict(headers), "Content-Length": str(len(body))}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.entry["sent"] = len(body[:most])
        handler.wfile.write(body[:most])
        handler.wfile.flush()

    # Faults

    def status(self, code, body=b"", **headers):
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return lambda handler: self.send(handler, code, named, body)

    def drop(self, most):
        """Breaks off after so many bytes of the body."""
        return lambda handler: self.answer(handler, most)

    def endless(self, code=200, **headers):
        """Sends zeros without a word of how many, until the other side has enough, or ENDLESS of them."""

        def fault(handler):
            handler.send_response(code)
            for name, value in headers.items():
                handler.send_header(name, value)
            handler.end_headers()
            with contextlib.suppress(ConnectionError):
                while handler.entry["sent"] < ENDLESS:
                    handler.wfile.write(bytes(BLOCK))
                    handler.entry["sent"] += BLOCK

        return fault

    @contextlib.contextmanager
    def stalled(self, most):
        """The next request for the big shard gets so many bytes, and nothing more until the block ends. Gives an event
        that says that they are sent."""
        reached, released = threading.Event(), threading.Event()

        def fault(handler):
            self.answer(handler, most)
            reached.set()
            released.wait(120)

        self.faults[BIG_SHARD] = [fault]
        try:
            yield reached
        finally:
            released.set()


@pytest.fixture
def server():
    with Server(MIRROR) as started:
        yield started


# ---- Running ----

FAST = ["--retry-wait", "0.01"]


def command(program, *arguments, mirror=MIRROR):
    """mirror: a folder, a server, an address, or None."""
    address = mirror.url if isinstance(mirror, Server) else mirror
    if address and address.startswith("/"):
        address = "file://" + urllib.request.pathname2url(address)
    source = ["--mirror", address] if address else []
    return [sys.executable, os.path.join(PROGRAMS, program), *source, *map(str, arguments)]


def start(program, *arguments, mirror=MIRROR, **keywords):
    keywords.setdefault("env", ENVIRONMENT)
    return subprocess.Popen(command(program, *arguments, mirror=mirror), cwd=WORK, stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, **keywords)


def finish(process, status=0):
    out, err = (data.decode() for data in process.communicate(timeout=300))
    assert process.returncode == status, f"{process.args}\nstatus {process.returncode}\n{out}\n{err}"
    assert "Traceback" not in err, err
    return out, err


def ran(program, *arguments, **keywords):
    """The standard output of a run that must succeed, and the notes."""
    return finish(start(program, *arguments, **keywords))


def refused(program, *arguments, says, notes=(), **keywords):
    """A run that must end with status 1; its last line holds each text of `says`, those before it match `notes`."""
    _, err = finish(start(program, *arguments, **keywords), 1)
    lines = err.splitlines()
    assert len(lines) == 1 + len(notes) and lines[-1].startswith(f"{program}: "), err
    for pattern, line in zip(notes, lines):
        assert re.search(pattern, line), (pattern, line)
    for text in says:
        assert text in lines[-1], f"{text!r} is not in {lines[-1]!r}"
    return lines[-1]


def big(folder, *arguments, run=ran, mirror=MIRROR, **keywords):
    """Fetches the big set: validation and one shard for training. After a run that succeeds they are there, whole."""
    result = run("fineweb.py", "-t", "edu", "--limit", 1, "--jobs", 1, *FAST, "--out", in_work(folder), *arguments,
                 mirror=mirror, **keywords)
    if run is ran:
        check_big(folder, mirror)
    return result


def check_big(folder, mirror=MIRROR):
    """The two shards are there, whole, under their names, and nothing else."""
    assert visible(in_work(folder)) == [OURS, "edu_fineweb_val_000000.bin"]
    for name in visible(in_work(folder)):
        theirs = in_mirror(getattr(mirror, "mirror", mirror), name.replace("edu_fineweb", "finewebedu"))
        assert read(in_work(folder, name)) == read(theirs), name


def visible(folder):
    return sorted(name for name in os.listdir(folder) if not name.startswith("."))


def part(folder):
    return in_work(folder, OURS + ".part")


def made(*names):
    """A path in a data set's own folder."""
    return in_work("repository", "dev", "data", *names)


# ---- What must come out ----


def mirror_tokenizer():
    """The tokenizer that follows from the mirror's merges."""
    path = in_work("of_the_mirror", "gpt2_tokenizer.bin")
    if not os.path.exists(path):
        ran("vocab.py", "--merges", os.path.join(MIRROR, "gpt-2/encodings/main/vocab.bpe"), "--out", "of_the_mirror")
    return path


def tokenized(lines, *options):
    """Runs ./tokenize on these JSON lines."""
    command = [TOKENIZE, "--tokenizer", mirror_tokenizer(), *options, "--output", in_work("expected"), "--overwrite",
               "-"]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    subprocess.run(command, input=text.encode(), capture_output=True, check=True, env=ENVIRONMENT)


def encoded(texts):
    """The tokens of these texts, each behind an end-of-text."""
    tokenized([{"text": text} for text in texts], "--jsonl", "text")
    return list(read_tokens(in_work("expected_train_000001.bin")))


def eval_file(examples):
    """The bytes of a file of multiple-choice questions."""
    tokenized([dict(zip(("context", "completions", "label"), example)) for example in examples], "--eval")
    return read(in_work("expected_val.bin"))


def run_trainer(train_data, val_data, context, *more):
    result = subprocess.run([TRAIN_GPT2, "--train-data", train_data, "--val-data", val_data, "--vocab", "50257",
                             "--layers", "1", "--heads", "1", "--channels", "8", "--context", context, "--seq-len",
                             context, "--batch-size", "1", "--sample-every", "0", *more],
                            cwd=WORK, capture_output=True, env=ENVIRONMENT, timeout=300, text=True)
    assert result.returncode == 0 and result.stderr == "", (result.stdout, result.stderr)
    return result.stdout


def train(train_data, val_data):
    """The trainer reads these shards and makes steps with them."""
    out = run_trainer(train_data, val_data, "8", "--steps", "2", "--val-sequences", "2")
    found = losses(out)
    assert len(found) == 2 and all(10.0 < loss < 12.0 for loss in found), out  # ln 50257 is 10.8


def score(name):
    """The trainer reads the questions."""
    data = [made("fineweb10B", f"fineweb_{kind}_*.bin") for kind in ("train", "val")]
    questions = made(name, f"{name}_val.bin")
    words = ["--mmlu", questions] if name == "mmlu" else ["--hellaswag", "1", "--hellaswag-data", questions]
    run_trainer(*data, "256", "--steps", "0", "--val-sequences", "1", *words)


# ---- Every program ----


def test_vocab():
    out, err = ran("vocab.py")
    made = "repository/gpt2_tokenizer.bin: 50257 tokens\n"
    assert out == "repository/vocab.bpe: fetched, verified\n" + made, out
    assert err == "vocab.bpe: by the mirror's SHA256SUMS this is not the published file, but another\n", err
    assert read(in_work("repository", "vocab.bpe")) == published("gpt-2/encodings/main/vocab.bpe")
    tokenizer = read(in_work("repository", "gpt2_tokenizer.bin"))
    assert ran("vocab.py")[0] == "repository/vocab.bpe: already there, verified\n" + made
    assert ran("vocab.py", "--merges", in_work("repository", "vocab.bpe"))[0] == made
    assert read(in_work("repository", "gpt2_tokenizer.bin")) == tokenizer
    symbols = "\u0120 a\n"
    for merges, says in ((symbols + "x", "line 2: ends in mid-line"), ("ab c\n", "line 1: a symbol is neither"),
                         (symbols * 2, "line 2: makes a token that is there"), ("a\n", "line 1: expected two symbols"),
                         ("#version: 0.2\n", "has 0 merges")):
        refused("vocab.py", "--merges", write(in_work("bad.bpe"), merges.encode()), says=["bad.bpe: " + says],
                notes=[".* is not GPT-2's vocab.bpe .*"])
    assert read(in_work("repository", "gpt2_tokenizer.bin")) == tokenizer
    refused("hellaswag.py", "--out", in_work("wrong_vocab"),
            says=["repository/gpt2_tokenizer.bin: is not GPT-2's (checksum)", "--vocab"],
            notes=[".* not the published file"])
    remove_vocabulary()


def remove_vocabulary():
    for name in ("vocab.bpe", "gpt2_tokenizer.bin", ".lock", ".fetched.json"):
        os.remove(in_work("repository", name))


def test_fineweb():
    """Names and contents of all four sets, and the trainer reads them."""
    for kind, version, folder, prefix, repository in (
            ("classic", "10B", "fineweb10B", "fineweb", "kjj0/fineweb10B-gpt2"),
            ("classic", "100B", "fineweb100B", "fineweb", "kjj0/fineweb100B-gpt2"),
            ("edu", "100B", "edu_fineweb100B", "edu_fineweb", "karpathy/fineweb-edu-100B-gpt2-token-shards")):
        out, err = ran("fineweb.py", "-t", kind, "-v", version, "-m", "gpt-2", "-s", 100000000)
        folder = os.path.join("repository", "dev", "data", folder)
        assert out == (f"{folder}: 4 shards, 4 fetched now; training 50000 tokens, validation 20000\n"
                       f"train with: --train-data '{folder}/{prefix}_train_*.bin' "
                       f"--val-data '{folder}/{prefix}_val_*.bin'\n") and err == "", (out, err)
        names = visible(in_work(folder))
        assert names == [f"{prefix}_train_{i:06d}.bin" for i in (1, 2, 3)] + [f"{prefix}_val_000000.bin"], names
        for name in names:
            assert read(in_work(folder, name)) == read(in_mirror(MIRROR, name, repository)), name
    train(f"{folder}/{prefix}_train_*.bin", f"{folder}/{prefix}_val_*.bin")
    big("edu")
    out = ran("fineweb.py", "-t", "edu", "--out", in_work("edu"))[0]  # without the limit: what is there stays
    assert "edu: 3 shards, 1 fetched now; " in out, out
    train(in_work("edu", "edu_fineweb_train_*.bin"), in_work("edu", "edu_fineweb_val_000000.bin"))
    refused("fineweb.py", "-t", "classic", "--out", in_work("edu"),
            says=["edu: holds files of another kind (repository kjj0/finewebedu10B-gpt2, now kjj0/fineweb10B-gpt2)"])


def test_tinyshakespeare():
    out, err = ran("tinyshakespeare.py")
    text = published("karpathy/char-rnn/master/data/tinyshakespeare/input.txt").decode()
    assert any(ord(character) > 127 for character in text)
    pieces = text.split("\n\n")
    tokens = encoded([piece + "\n\n" for piece in pieces[:-1]] + [pieces[-1]])
    folder, shown = made("tinyshakespeare"), os.path.join("repository", "dev", "data", "tinyshakespeare")
    names = [os.path.join(folder, f"tiny_shakespeare_{kind}.bin") for kind in ("train", "val")]
    assert [read(name) for name in names] == [shard(tokens[32768:]), shard(tokens[:32768])]
    assert out == (f"{shown}/tiny_shakespeare_train.bin: {len(tokens) - 32768} tokens\n"
                   f"{shown}/tiny_shakespeare_val.bin: 32768 tokens\n"), out
    assert len(err.splitlines()) == 2, err  # the mirror's text and vocabulary are not the published ones
    before = os.stat(names[0])
    out = ran("tinyshakespeare.py", "--verify")[0]
    assert out.count(", already there\n") == 2, out
    assert os.stat(names[0]).st_mtime_ns == before.st_mtime_ns
    train(*names)
    overwrite(names[0], b"x")  # what was made is made again when it has changed
    assert "already there" not in ran("tinyshakespeare.py")[0]
    assert read(names[0]) == shard(tokens[32768:])
    assert visible(folder) == ["gpt2_tokenizer.bin", "tiny_shakespeare.txt", "tiny_shakespeare_train.bin",
                               "tiny_shakespeare_val.bin", "vocab.bpe"]


def test_real_shakespeare():
    """The published text with GPT-2's vocabulary, through a mirror of nothing but the two files: pins hold."""
    if not os.path.exists(os.path.join(SHARED, "tinyshakespeare.txt")):
        pytest.skip("../shared/data is not here")
    mirror = in_work("real")
    for name, path in (("tinyshakespeare.txt", "karpathy/char-rnn/master/data/tinyshakespeare/input.txt"),
                       ("vocab.bpe", "gpt-2/encodings/main/vocab.bpe")):
        write(os.path.join(mirror, path), read(os.path.join(SHARED, name)))
    out, err = ran("tinyshakespeare.py", "--out", in_work("real_out"), mirror=mirror)
    assert out.splitlines()[0] == "real_out/tiny_shakespeare_train.bin: 305260 tokens", out
    assert out.splitlines()[1] == "real_out/tiny_shakespeare_val.bin: 32768 tokens", out
    assert err == "made repository/gpt2_tokenizer.bin\n", err
    remove_vocabulary()


def test_hellaswag():
    out = ran("hellaswag.py")[0]
    source = published("rowanz/hellaswag/master/data/hellaswag_val.jsonl")
    questions = [json.loads(line) for line in source.splitlines()]
    expected = eval_file([(q["ctx"], [" " + ending for ending in q["endings"]], q["label"]) for q in questions])
    assert read(made("hellaswag", "hellaswag_val.bin")) == expected
    assert read(made("hellaswag", "hellaswag_val.jsonl")) == source
    assert f"/hellaswag_val.bin: {len(questions)} questions, the longest " in out, out
    assert ran("hellaswag.py")[0].endswith("/hellaswag_val.bin: already there\n")
    score("hellaswag")
    mirror = own_mirror("bad_questions")
    lines = source.splitlines(keepends=True)
    path = os.path.join(mirror, "rowanz/hellaswag/master/data/hellaswag_val.jsonl")
    sums = os.path.join(mirror, "SHA256SUMS")
    for bad, message in ((b'{"ctx": "a"}\n', "line 3: expected an object with ctx, endings and label"),
                         (b'{"ctx": "a", "endings": [1, 2, 3, 4], "label": 0}\n', "line 3: expected an object"),
                         (b'{"ctx": "a", "endings": ["b"], "label": 0}\n', "line 3: JSON line: 1 completions")):
        old, new = read(path), b"".join(lines[:2]) + bad + b"".join(lines[2:])
        write(path, new)
        digests = [hashlib.sha256(data).hexdigest().encode() for data in (old, new)]
        write(sums, read(sums).replace(*digests))
        refused("hellaswag.py", mirror=mirror, says=[message],
                notes=["not the published", "fetched again", "not the published"])
        assert read(made("hellaswag", "hellaswag_val.bin")) == expected  # the good one stays


def mmlu_questions(archive):
    with tarfile.open(archive) as tar:
        names = sorted(name for name in tar.getnames() if "/test/" in name)
        for name in names:
            for row in csv.reader(io.StringIO(tar.extractfile(name).read().decode(), newline="")):
                yield f"Question: {row[0]}\n\nAnswer:", [" " + answer for answer in row[1:5]], "ABCD".index(row[5])


def test_mmlu():
    out = ran("mmlu.py")[0]
    questions = list(mmlu_questions(os.path.join(MIRROR, "~hendrycks", "data.tar")))
    assert len(questions) == 60 and '"Which" word follows,\n' in questions[0][0]
    assert read(made("mmlu", "mmlu_val.bin")) == eval_file(questions)
    assert "/mmlu_val.bin: 60 questions, the longest " in out and out.endswith(" bytes, 2 subjects\n"), out
    assert ran("mmlu.py", "--verify")[0].endswith("/mmlu_val.bin: already there\n")
    score("mmlu")


def test_tinystories():
    """The archive holds its files out of order; a run that was stopped keeps the files it has encoded."""
    archive = in_mirror(MIRROR, "TinyStories_all_data.tar.gz", "roneneldan/TinyStories")
    files = {}
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(read(archive)))) as tar:
        for name in tar.getnames():
            files[name] = encoded([story["story"].strip().replace("\ud83d", "\ufffd")
                                   for story in json.load(tar.extractfile(name))])
    assert list(files) == ["data01.json", "data00.json", "data02.json"]
    folder = made("tinystories")
    train_data, val_data = (os.path.join(folder, f"TinyStories_{kind}.bin") for kind in ("train", "val"))

    def check():
        assert read(val_data) == shard(files["data00.json"])
        assert read(train_data) == shard(files["data01.json"] + files["data02.json"])

    ran("tinystories.py")
    check()
    assert ran("tinystories.py")[0].count("already there") == 2
    assert not os.path.exists(os.path.join(folder, "TinyStories_all_data.tar.gz"))
    train(train_data, val_data)
    # A part that is there is not encoded again: here it says something else, and that is what comes out. A part of
    # another archive is not taken.
    own = json.loads(read(os.path.join(folder, ".fetched.json")))["files"]["TinyStories_train.bin"]["made"]
    for archive_of_part, tokens in ((own, [EOT, 7]), ({}, files["data01.json"])):
        os.remove(val_data)
        write(os.path.join(folder, ".parts", "made.json"), json.dumps(archive_of_part))
        write(os.path.join(folder, ".parts", "data01.bin"), shard([EOT, 7]))
        ran("tinystories.py")
        assert read(train_data) == shard(tokens + files["data02.json"])
    check()
    assert not os.path.exists(os.path.join(folder, ".parts")) and not os.path.exists(os.path.join(folder, ".work"))
    os.remove(val_data)
    check_killed(folder)
    ran("tinystories.py")
    check()


def check_killed(folder):
    """Kills the program while a tokenize waits for more. That one takes it for the end of the text, and finishes a file
    that nobody may take for the whole."""
    started, go, ended = (in_work(name) for name in ("started", "go", "ended"))
    wrapper = write("slow_tokenize", f'#!/bin/sh\n: >"{started}"\nwhile [ ! -e "{go}" ]; do sleep 0.02; done\n'
                    f'"{TOKENIZE}" "$@"\n: >"{ended}"\n', 0o755)
    process = start("tinystories.py", env=dict(ENVIRONMENT, TOKENIZE=wrapper))
    wait_until(lambda: os.path.exists(started), process)
    process.kill()
    process.wait()
    write(go, b"")
    wait_until(lambda: os.path.exists(ended))
    process.stdout.close()
    process.stderr.close()
    assert os.listdir(os.path.join(folder, ".parts")) == ["made.json"], os.listdir(os.path.join(folder, ".parts"))


def parquet_documents():
    import pyarrow.parquet
    folder = os.path.join(MIRROR, "datasets/HuggingFaceFW/fineweb-edu/resolve/main/sample/10BT")
    tables = [pyarrow.parquet.read_table(os.path.join(folder, f"00{i}_00000.parquet")) for i in range(3)]
    return [text for table in tables for text in table.column("text").to_pylist()]


def test_parquet():
    """Shards from parquet: exact, the same when stopped after a file, when a shard is damaged, and after a trial."""
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        refused("fineweb.py", "--source", "parquet",
                says=["pyarrow", "not installed", "pip install pyarrow", "--source shards"])
        pytest.skip("pyarrow is not installed")
    tokens, size = encoded(parquet_documents()), 9000
    pieces = [tokens[i:i + size] for i in range(0, len(tokens), size)]
    names = [f"edu_fineweb_{'train' if i else 'val'}_{i:06d}.bin" for i in range(len(pieces))]
    arguments = ["-t", "edu", "--source", "parquet", "-s", size]
    folder = made("edu_fineweb10B")

    def check(folder=folder, count=len(pieces)):
        found = sorted(name for name in os.listdir(folder) if name.endswith((".bin", ".open", ".parquet")))
        assert found == sorted(names[:count]), found
        for name, piece in zip(names, pieces[:count]):
            assert read(os.path.join(folder, name)) == shard(piece), name

    out, _ = ran("fineweb.py", *arguments)
    check()
    assert f": {len(pieces)} shards; training {len(tokens) - size} tokens, validation {size}\n" in out, out
    assert "already there" in ran("fineweb.py", *arguments, "--verify")[0]
    train(os.path.join(folder, "edu_fineweb_train_*.bin"), os.path.join(folder, "edu_fineweb_val_*.bin"))
    # A shard of the last file is gone: only that file is fetched and encoded again.
    os.remove(os.path.join(folder, names[-2]))
    _, err = ran("fineweb.py", *arguments)
    assert "going on after 001_00000.parquet" in err and "\n000_" not in err and "\n002_00000.parquet: " in err, err
    check()
    # A changed byte: --verify finds it, and only it.
    overwrite(os.path.join(folder, names[1]), b"xy", 2000, unnoticed=True)
    assert "already there" in ran("fineweb.py", *arguments)[0]
    assert f"{names[1]}: has changed since it was made" in ran("fineweb.py", *arguments, "--verify")[1]
    check()
    # Stopped while appending: a shard closed too early, an open one with more than progress.json says.
    state = json.loads(read(os.path.join(folder, "progress.json")))
    state["files"], state["ended"] = state["files"][:1], None
    write(os.path.join(folder, "progress.json"), json.dumps(state))
    os.rename(os.path.join(folder, names[-1]), os.path.join(folder, names[-1] + ".open"))
    assert "going on after 000_00000.parquet" in ran("fineweb.py", *arguments)[1]
    check()
    # A trial of two shards, then the whole.
    trial = in_work("trial")
    out, _ = ran("fineweb.py", *arguments, "--limit", 2, "--out", trial)
    check(trial, 3)
    assert "already there" in ran("fineweb.py", *arguments, "--limit", 2, "--out", trial)[0]
    ran("fineweb.py", *arguments, "--out", trial)
    check(trial)
    refused("fineweb.py", *arguments[:-1], size + 1, "--out", trial, says=["another kind (shard_size 9000, now 9001)"],
            notes=["not the published"])
    refused("fineweb.py", *arguments[:-1], 10**6, "--out", in_work("one_shard"), says=["choose a smaller --shard_size"],
            notes=["not the published"] + ["tokens, .* in all"] * 3)
    bad, repository = own_mirror("bad_parquet"), "HuggingFaceFW/fineweb-edu"
    path, data = "sample/10BT/001_00000.parquet", b"PAR1 no parquet"
    write(in_mirror(bad, path, repository), data)
    listing = f"{bad}/api/datasets/{repository}/tree/main/sample/10BT"
    entries = json.loads(read(listing))
    for entry in entries:
        if entry["path"] == path:
            entry["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data)}
    write(listing, json.dumps(entries))
    refused("fineweb.py", *arguments, "--out", in_work("bad_out"), mirror=bad, says=["001_00000.parquet: "],
            notes=["not the published", "000_00000.parquet: "])


# ---- Faults of mirrors and servers ----


def test_skips_what_is_there(server):
    """A second run fetches only the list; what has changed is found, with --verify whatever its time says."""

    def again(*arguments):
        """What it says, when it asks for nothing but the list."""
        server.log.clear()
        outputs = big("again", *arguments, mirror=server)
        assert [(entry["path"], entry["query"]) for entry in server.log] == [(BIG_LIST, "recursive=true")], server.log
        return outputs

    big("again", mirror=server)
    assert "2 shards, 0 fetched now" in again()[0]
    path = in_work("again", OURS)
    overwrite(path, b"??", BLOCK, unnoticed=True)
    server.log.clear()
    finish(big("again", mirror=server, run=start))
    assert server.asked() == []
    _, err = big("again", "--verify", mirror=server)
    assert err == f"{OURS}: its checksum is not the published one; it is fetched again\n", err
    os.truncate(path, 5000)
    assert "5000 bytes here, published are" in big("again", mirror=server)[1]
    os.remove(in_work("again", ".fetched.json"))  # files that somebody put there: read once, not fetched
    assert "0 fetched now" in again()[0]
    os.remove(in_work("again", ".fetched.json"))  # the right size is not enough
    overwrite(path, b"??", BLOCK)
    assert big("again", mirror=server)[1] == f"{OURS}: its checksum is not the published one; it is fetched again\n"


def flip(path):
    """Changes a byte. Returns the two checksums, of what is there and of what was."""
    before = read(path)
    overwrite(path, b"?", 4000000)
    return [hashlib.sha256(data).hexdigest() for data in (read(path), before)]


@pytest.mark.parametrize("name, spoil, says, over_http", (
    ("truncated", lambda path: os.truncate(path, 3000000),
     f"{SHARD}: has 3000000 bytes, {BIG_BYTES} are published; try again later", None),
    ("flipped", flip, f"{SHARD}: checksum {{}}, published is {{}}; ", None),
    ("missing", os.remove, f"{SHARD}: no such file in the mirror", f"{SHARD}: not found (404)")))
def test_spoilt_mirror(name, spoil, says, over_http):
    """Trying again at once does not help, nothing wrong stays, and a good mirror then has the rest."""
    mirror, out = own_mirror(name), f"{name}_out"
    says = says.format(*spoil(in_mirror(mirror, SHARD)) or ())
    with Server(mirror) as server:
        for place, text in ((mirror, says), (server, over_http or says)):
            big(out, run=refused, mirror=place, says=text.split("; "))
            assert not [file for file in os.listdir(in_work(out)) if "train" in file]
        assert len(server.requests()) == 1
    big(out)


def test_no_mirror(server):
    refused("mmlu.py", "--out", in_work("missing_mmlu"), mirror=server.url + "/nothing/here",
            says=["data.tar: not found (404)"])
    refused("fineweb.py", "--out", in_work("missing_list"), mirror=in_work("no_mirror"),
            says=["tree/main: no such file in the mirror"])


def test_transient_failures(server):
    """500, 429 with Retry-After, and giving up."""
    server.faults[BIG_SHARD] = [server.status(500), server.status(503), server.status(429, Retry_After="1")]
    _, err = big("transient", mirror=server)
    times = [entry["time"] for entry in server.requests()]
    assert len(times) == 4 and times[3] - times[2] >= 1.0, times
    lines = err.splitlines()
    assert len(lines) == 3 and all(line.startswith(f"{OURS}: 127.0.0.1:") for line in lines)
    assert "answers 500 Internal Server Error; trying again in a moment (1 of 6)" in lines[0], err
    assert "answers 429 Too Many Requests; trying again in 1s (3 of 6)" in lines[2], err
    for faults, arguments, notes, says in (
            ([server.status(502)] * 10, ["--retries", 2], ["1 of 2", "2 of 2"],
             ["answers 502 Bad Gateway; gave up after 3 attempts", "the same command goes on"]),
            ([server.status(429, Retry_After="7200")], [], [], ["asks to wait 2h 00m (429)"]),
            ([server.status(403)], [], [], ["refused (403)", "HF_TOKEN"])):
        server.faults, server.log[:] = {BIG_SHARD: list(faults)}, []
        big("gave_up", *arguments, mirror=server, run=refused, notes=notes, says=says)
        assert len(server.requests()) == 1 + len(notes)
    server.faults = {BIG_LIST: [server.status(500), server.status(429, Retry_After="0")]}
    _, err = big("gave_up", mirror=server)
    assert len(err.splitlines()) == 2, err
    with Server(MIRROR) as gone:
        pass
    big("gave_up_too", "--retries", 0, mirror=gone, run=refused,
        says=["Connection refused; gave up after 1 attempt;"])
    port = gone.server.server_port
    refused("vocab.py", "--retries", 0, "--mirror", "http://mirror.test", "--out", in_work("no_proxy"), mirror=None,
            says=[f": mirror.test by the proxy 127.0.0.1:{port} (http_proxy): Connection refused; gave up"],
            env=dict(ENVIRONMENT, http_proxy=f"http://me:secret@127.0.0.1:{port}", no_proxy=""))


def test_broken_connection_resumes(server):
    """Only what is missing is sent again, in one run and in the next."""
    server.faults[BIG_SHARD] = [server.drop(3000000), server.drop(1000000)]
    _, err = big("dropped", mirror=server)
    assert server.asked() == [(None, 3000000), ("bytes=3000000-", 1000000), ("bytes=4000000-", BIG_BYTES - 4000000)]
    assert "broke off after 3.0 MB of 5.0 MB; trying again" in err, err
    # Progress is no failure: with two attempts allowed, four breaks in a row are survived.
    server.faults[BIG_SHARD] = [server.drop(1000000) for _ in range(4)]
    big("dropped_often", "--retries", 1, mirror=server)


def begin(folder, server):
    """A fetch that ends with a part of the big shard."""
    server.faults[BIG_SHARD] = [server.drop(3000000)]
    big(folder, "--retries", 0, mirror=server, run=refused, says=["broke off", "goes on"])
    assert os.path.getsize(part(folder)) == 3000000
    server.log.clear()


REST, ALL = ("bytes=3000000-", BIG_BYTES - 3000000), (None, BIG_BYTES)  # what is asked for and sent
IGNORED = ("bytes=3000000-", BIG_BYTES)


def change_list(server, _):
    tokens = array.array("H", range(50000)).tobytes() * 50
    publish(server.mirror, SHARD, struct.pack("<256i", 20240520, 1, 2500000, *[0] * 253) + tokens)


@pytest.mark.parametrize("change, wanted, says", (
    # The same bytes.
    (lambda server, folder: None, [REST], ""),
    # A server that knows no ranges sends all.
    (lambda server, folder: setattr(server, "ranges", False), [IGNORED], ""),
    # The same bytes under another tag: the server sends all of them.
    (lambda server, folder: server.etags.update({BIG_SHARD: '"another"'}), [IGNORED], ""),
    # Another file by the list: nothing is asked for with a range.
    (change_list, [ALL], ""),
    # What is there is damaged, and the server notices nothing.
    (lambda server, folder: overwrite(part(folder), b"damaged"), [REST, ALL], "the parts do not fit together"),
    # A part without a word of whose it is.
    (lambda server, folder: os.remove(part(folder) + ".json"), [ALL], ""),
    # All is there: nothing but the check is left.
    (lambda server, folder: write(part(folder), read(in_mirror(MIRROR, SHARD))), [], "")),
    ids=["same", "no_ranges", "tag", "list", "bytes", "no_name", "whole"])
def test_broken_fetch_goes_on(request, change, wanted, says):
    """The part of an earlier run is continued if it is of the same file, whether the list, the tag, or only the bytes
    tell."""
    folder = request.node.callspec.id + "_part"
    with Server(own_mirror(folder + "_mirror")) as server:
        begin(folder, server)
        change(server, folder)
        _, err = big(folder, mirror=server)
        assert server.asked() == wanted and says in err, err


def stop_in_the_middle(folder, server, number):
    """Sends a signal when part of a shard has come in. Returns status and the last line."""
    server.log.clear()
    with server.stalled(3 * BLOCK + 77) as reached:
        process = big(folder, mirror=server, run=start)
        assert reached.wait(120)
        wait_until(lambda: os.path.exists(part(folder)) and os.path.getsize(part(folder)) >= 3 * BLOCK, process)
        process.send_signal(number)
        _, err = process.communicate(timeout=120)
    return process.returncode, err.decode()


def test_signals(server):
    said = ("fineweb.py: stopped by {}: 1 of 2 files complete, parts of others stay; the same command goes on\n")
    for number, status, message in ((signal.SIGINT, 130, said.format("Ctrl-C")),
                                    (signal.SIGTERM, 143, said.format("SIGTERM")), (signal.SIGKILL, -9, "")):
        folder = f"stopped_{status}"
        assert stop_in_the_middle(folder, server, number) == (status, message)
        assert os.path.getsize(part(folder)) == 3 * BLOCK and os.path.exists(part(folder) + ".json")
        assert not os.path.exists(in_work(folder, OURS))
        big(folder, mirror=server)
        assert server.asked()[1:] == [(f"bytes={3 * BLOCK}-", BIG_BYTES - 3 * BLOCK)]


def test_stopped_while_encoding():
    """Ctrl-C and SIGTERM also end the tokenize that is fed, and leave no unfinished file."""
    started = in_work("encoding")
    wrapper = write("endless_tokenize", f'#!/bin/sh\nread line; echo $$ >"{started}.new"; mv "{started}.new" '
                    f'"{started}"; exec sleep 300\n', 0o755)
    for number, status, name in ((signal.SIGINT, 130, "Ctrl-C"), (signal.SIGTERM, 143, "SIGTERM")):
        process = start("hellaswag.py", "--out", in_work("encoding_out"), env=dict(ENVIRONMENT, TOKENIZE=wrapper),
                        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))
        wait_until(lambda: os.path.exists(started), process)
        process.send_signal(number)
        _, err = finish(process, status)
        assert err.splitlines()[-1] == f"hellaswag.py: stopped by {name}; the same command goes on", err
        with pytest.raises(ProcessLookupError):
            os.kill(int(read(started)), 0)
        os.remove(started)
        assert visible(in_work("encoding_out")) == ["gpt2_tokenizer.bin", "hellaswag_val.jsonl", "vocab.bpe"]


def test_two_at_once(server):
    """The second program that writes a folder is refused, and the first goes on undisturbed; others run beside it."""
    with server.stalled(3 * BLOCK) as reached:
        first = big("twice", mirror=server, run=start)
        assert reached.wait(120)
        big("twice", mirror=server, run=refused, says=["twice: another program writes here now", "--out"])
        big("beside", mirror=server)
    finish(first)
    check_big("twice")


def test_several_files_at_once(server):
    """Two requests are under way at the same moment: each waits for the other."""
    barrier = threading.Barrier(2, timeout=120)
    for name in ("train_000001", "train_000002"):
        server.faults[BIG_SHARD.replace("train_000001", name)] = [lambda _: barrier.wait() >= 0]
    ran("fineweb.py", "-t", "edu", "--jobs", 3, "--out", in_work("parallel"), mirror=server)
    assert not barrier.broken


def test_silent_server(server):
    with server.stalled(2 * BLOCK):
        _, err = big("silent", "--timeout", 1.5, "--retries", 50, mirror=server)
    assert "is silent; trying again" in err, err
    assert server.requests()[-1]["range"], server.requests()


def test_more_than_is_published(server):
    """What goes on behind the published size, or behind the bound where none is published, is not taken; what was
    taken of it is removed."""
    vocab, hellaswag = "/gpt-2/encodings/main/vocab.bpe", "/rowanz/hellaswag/master/data/hellaswag_val.jsonl"
    for path, program, says in (
            (BIG_SHARD, lambda **more: big("longer", **more), f"is longer than {BIG_BYTES} bytes, the published size"),
            (vocab, lambda run, **more: run("vocab.py", "--out", in_work("longer_vocab"), **more),
             f"is longer than {4 * 456318 + BLOCK} bytes, the most that is taken"),
            (hellaswag, lambda run, **more: run("hellaswag.py", "--out", in_work("longer_eval"), **more),
             f"is longer than {4 * 12246618 + BLOCK} bytes, the most that is taken")):
        server.faults[path] = [server.endless()]
        program(run=refused, mirror=server, says=[says, "what was fetched is removed"],
                **({} if path == BIG_SHARD else {"notes": ["not the published"]}))
        assert server.requests(path)[-1]["sent"] < ENDLESS, path
    left = [name for folder in ("longer", "longer_vocab", "longer_eval") for name in os.listdir(in_work(folder))]
    assert not [name for name in left if ".part" in name or "train" in name], left
    # A file of a mirror that is too long; a part of an earlier run that is too long is not continued.
    mirror = own_mirror("long_vocab")
    os.truncate(mirror + vocab, 4 * 456318 + BLOCK + 1)
    refused("vocab.py", "--out", in_work("longer_vocab"), mirror=mirror, says=["the most that is taken"],
            notes=["not the published"])
    write(in_work("longer_vocab", "vocab.bpe.part"), bytes(4 * 456318 + BLOCK + 1))
    ran("vocab.py", "--out", in_work("longer_vocab"), mirror=server)


def test_endless_lists(server, monkeypatch):
    """A list of files has an end: neither its pages nor their number are taken without bound."""
    download = load("download")
    page = json.dumps([]).encode()
    link = f'<https://huggingface.co{BIG_LIST}?recursive=true&cursor=Q>; rel="next"'
    server.faults[BIG_LIST] = [server.status(200, page, Link=link)] * 40
    options = type("Options", (), {"mirror": server.url, "retries": 0, "timeout": 60.0})
    monkeypatch.setattr(download, "LIST_PAGES", 30)
    with pytest.raises(Exception, match="has more than 30 pages"):
        download.hub_files(options, BIG)
    for body in (b"[" * 100000, b'[{"type": "file", "path": "a"}, 7]', b"null"):
        server.faults[BIG_LIST] = [server.status(200, body)]
        big("no_lists", mirror=server, run=refused, says=["is not the Hub's list of files"])


def test_redirects_and_tokens(server):
    """The Hub sends large files from other hosts; a token goes to the Hub alone, over https, and never to a mirror."""
    with Server(MIRROR) as elsewhere:
        moved = elsewhere.url.replace("127.0.0.1", "localhost") + BIG_SHARD
        server.faults[BIG_SHARD] = [server.drop(3000000), server.status(302, Location=moved)]
        big("redirected", mirror=server, env=dict(ENVIRONMENT, HF_TOKEN="secret"))
        assert all(entry["authorization"] is None for entry in server.log + elsewhere.log)
        assert elsewhere.asked() == [REST]
    download = load("download")
    for text, low, high in (("7", 7, 7), ("", None, None), ("soon", None, None),
                            ("Wed, 01 Jan 2020 00:00:00 GMT", 0, 0),
                            (email.utils.formatdate(time.time() + 100, usegmt=True), 90, 101)):
        after = download.retry_after({"Retry-After": text})
        assert after == low if low is None else low <= after <= high, (text, after)
    request = urllib.request.Request("https://huggingface.co/a")
    request.add_unredirected_header("Authorization", "Bearer secret")
    for url, token in (("https://huggingface.co/b", "Bearer secret"), ("https://cdn.example/b", None),
                       ("https://huggingface.co:8443/b", None), ("https://huggingface.co@cdn.example/b", None)):
        new = download.Redirect().redirect_request(request, None, 302, "Found", {}, url)
        assert new.get_header("Authorization") == token, (url, new.header_items())
    for url in ("http://huggingface.co/b", "http://cdn.example/b", "ftp://huggingface.co/b"):
        with pytest.raises(Exception, match=f"sends on to {url}, which is not https"):
            download.Redirect().redirect_request(request, None, 302, "Found", {}, url)
    # Where no https was, none is lost; but only the web is gone to. The body of a redirect is of no interest.
    server.faults[BIG_SHARD] = [server.status(302, Location="ftp://127.0.0.1/a")]
    big("to_ftp", mirror=server, run=refused, says=["sends on to ftp://127.0.0.1/a"])
    server.faults[BIG_SHARD] = [server.endless(302, Location=server.url + BIG_SHARD)]
    server.log.clear()
    big("to_ftp", mirror=server)
    assert [entry["sent"] < ENDLESS for entry in server.requests()] == [True, True], server.requests()


def load(name):
    """A module of dev/data."""
    sys.dont_write_bytecode = True
    before = sys.path[:]
    sys.path.insert(0, PROGRAMS)
    module = importlib.import_module(name)
    sys.path[:] = before
    return module


def test_list_of_several_pages(server):
    entries = json.loads(read(MIRROR + BIG_LIST))
    link = f'<https://huggingface.co{BIG_LIST}?recursive=true&cursor=Q%3D%3D>; rel="next"'
    server.faults[BIG_LIST] = [server.status(200, json.dumps(entries[:1]).encode(), Link=link),
                               server.status(200, json.dumps(entries[1:3]).encode())]
    big("pages", mirror=server)
    queries = [entry["query"] for entry in server.requests(BIG_LIST)]
    assert queries == ["recursive=true", "recursive=true&cursor=Q%3D%3D"], queries


def test_lists_of_files():
    """Small files without a SHA-256, and lists that are none."""
    mirror = own_mirror("lists")
    data = read(in_mirror(mirror, SHARD))
    git = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    publish(mirror, SHARD, data, lfs=None, oid=git)
    big("git", mirror=mirror)
    publish(mirror, SHARD, data, lfs=None, oid="1" * 40)
    big("git_wrong", mirror=mirror, run=refused, says=[f"checksum {git}, published is {'1' * 40}"])
    publish(mirror, SHARD, data, lfs={"size": len(data)})
    big("unverified", mirror=mirror, run=refused,
        says=[f"no size and checksum for {SHARD}", "nothing unverified is fetched"])
    assert not os.path.exists(in_work("unverified", OURS))
    publish(mirror, SHARD, b"no shard at all")
    big("no_shard", mirror=mirror, run=refused, says=[f"{OURS}: is not a shard of GPT-2 tokens"])
    for listing, says in ((b"<html>Sign in</html>", "tree/main: is not the Hub's list of files"),
                          (b"[]", f"{BIG}: no shards finewebedu_val_*.bin")):
        write(mirror + BIG_LIST, listing)
        big("no_list", mirror=mirror, run=refused, says=[says])


def test_mirror_sums():
    """Without SHA256SUMS the published checksums hold on a mirror, too; a list that is none is refused."""
    mirror, path = own_mirror("sums"), "gpt-2/encodings/main/vocab.bpe"

    def refuses(says, place=mirror):
        refused("vocab.py", "--out", in_work("sums_out"), mirror=place, says=[says])
        assert not os.path.exists(in_work("sums_out", "vocab.bpe"))

    write(os.path.join(mirror, "SHA256SUMS"), b"no sums\n")
    refuses("SHA256SUMS: line 1: expected 64 hexadecimal")
    os.remove(os.path.join(mirror, "SHA256SUMS"))
    with Server(mirror) as server:
        for place in (mirror, server):
            refuses("vocab.bpe: has 257540 bytes, 456318 are published", place)
    write(os.path.join(mirror, path), published(path).ljust(456318, b"!"))
    refuses("published is 1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5")


# ---- Archives that somebody made on purpose ----


def tar_of(*members, mode="w"):
    """An archive of these: (name, content), or (name, type, link or the size that the header says)."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode=mode, format=tarfile.GNU_FORMAT) as archive:
        for name, kind, *more in members:
            info = tarfile.TarInfo(name)
            if not more:
                info.size = len(kind)
                archive.addfile(info, io.BytesIO(kind))
            elif isinstance(more[0], int):
                info.type, info.size = kind, more[0]
                archive.fileobj.write(info.tobuf(tarfile.GNU_FORMAT))
                archive.offset += 512
            else:
                info.type, info.linkname = kind, more[0]
                archive.addfile(info)
    return stream.getvalue()


def sparse_tar(name, size):
    """10 kB that say they hold one file of so many bytes, nearly all of it a hole (GNU's old format)."""
    info = tarfile.TarInfo(name)
    info.type, info.size = tarfile.GNUTYPE_SPARSE, 512
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT)[:512])
    header[386:410] = b"%011o\0%011o\0" % (0, 512)  # the only piece: offset and bytes
    header[483:495] = b"%011o\0" % size
    header[148:156] = b"%06o\0 " % (sum(header[:148]) + sum(header[156:]) + 8 * 32)
    return bytes(header) + bytes(512) + bytes(9 * 1024)


@functools.lru_cache(None)
def spoilt_mirror():
    """For tests that spoil it one after another."""
    return own_mirror("spoilt")


def publish_plain(mirror, path, data):
    """Puts a file of no repository into a mirror, and its checksum into the mirror's list."""
    write(os.path.join(mirror, path), data)
    sums = [line for line in read(os.path.join(mirror, "SHA256SUMS")).decode().splitlines() if path not in line]
    sums.append(f"{hashlib.sha256(data).hexdigest()}  {path}")
    write(os.path.join(mirror, "SHA256SUMS"), "".join(line + "\n" for line in sums))


QUESTION = b"What?,a,b,c,d,A\n"
TEST = "data/test/a_test.csv"
BAD_TARS = {
    "sparse": (sparse_tar(TEST, 7 << 30), "data.tar: unpacks to more than 10240 bytes"),
    "sparse_that_fits": (sparse_tar(TEST, 9000), f"{TEST} is a sparse file, expected a plain one"),
    "header": (tar_of((TEST, tarfile.XHDTYPE, 1 << 30)), "a header says 1073741824 bytes, expected at most 1048576"),
    "long_name": (tar_of((TEST, tarfile.GNUTYPE_LONGNAME, 1 << 30)), "a header says 1073741824 bytes"),
    "no_tar": (b"<html>" * 2000, "remove the file and run this again"),
    "many": (tar_of(*[(f"{i}", b"") for i in range(10001)]), "unpacks to more than 10000 files"),
    "links": (tar_of((TEST, tarfile.SYMTYPE, "/etc/passwd"), ("data/test/b_test.csv", tarfile.LNKTYPE, "/etc/passwd"),
                     ("data/test/c_test.csv", tarfile.FIFOTYPE, "")), "holds no test/*_test.csv"),
    "not_text": (tar_of((TEST, b"\xff" * 100)), "invalid start byte; remove the file"),
}


@pytest.mark.parametrize("name", BAD_TARS)
def test_bad_archive(name):
    """One line, and no more memory than the file gives reason for."""
    data, says = BAD_TARS[name]
    mirror = spoilt_mirror()
    publish_plain(mirror, "~hendrycks/data.tar", data)
    refused("mmlu.py", "--out", in_work(f"mmlu_{name}"), mirror=mirror, says=[says], notes=["not the published"] * 2,
            preexec_fn=limit_memory(1 << 30))


def stories(text):
    return json.dumps([{"story": text}] * 2).encode()


@pytest.mark.parametrize("name, data, says", (
    ("bomb", lambda: tar_of(("data00.json", bytes(8 << 20)), mode="w:gz"), "unpacks to more than "),
    ("bomb_in_header", lambda: gzip.compress(tar_of(("data00.json", tarfile.XHDTYPE, 1 << 40)) + bytes(8 << 20)),
     "a header says 1099511627776 bytes"),
    ("cut", lambda: tar_of(("data00.json", os.urandom(200000)), mode="w:gz")[:100000], "remove the file"),
    ("no_gzip", lambda: tar_of(("data00.json", stories("a"))), "remove the file"),
    ("deep", lambda: tar_of(("data00.json", b"[" * 50000), mode="w:gz"), "is not a list of stories")),
    ids=["bomb", "bomb_in_header", "cut", "no_gzip", "deep"])
def test_bad_packed_archive(name, data, says):
    mirror, archive = spoilt_mirror(), "TinyStories_all_data.tar.gz"
    publish_stories(mirror, data())
    refused("tinystories.py", "--out", in_work(f"stories_{name}"), mirror=mirror, says=[archive, says],
            notes=["not the published"], preexec_fn=limit_memory(1 << 30))


def publish_stories(mirror, data):
    """Puts an archive of stories into a mirror, and into the Hub's list there."""
    repository, archive = "roneneldan/TinyStories", "TinyStories_all_data.tar.gz"
    write(in_mirror(mirror, archive, repository), data)
    lfs = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data)}
    write(f"{mirror}/api/datasets/{repository}/tree/main",
          json.dumps([{"type": "file", "path": archive, "size": len(data), "oid": "0" * 40, "lfs": lfs}]))


def test_names_in_archives():
    """Names that lead out of the folder choose what is read, never where it is written; links are no stories."""
    mirror, out = spoilt_mirror(), in_work("names_out", "inner")
    publish_stories(mirror, tar_of(("../../data00.json", stories("a")), ("/data01.json", stories("b")),
                                   ("data02.json", tarfile.SYMTYPE, "/etc/passwd"), mode="w:gz"))
    ran("tinystories.py", "--out", out, mirror=mirror)
    assert os.listdir(in_work("names_out")) == ["inner"]
    assert visible(out) == ["TinyStories_train.bin", "TinyStories_val.bin", "gpt2_tokenizer.bin",
                            "vocab.bpe"]
    assert len(read_tokens(os.path.join(out, "TinyStories_train.bin"))) == 4


# ---- Folders that others may write to ----


@pytest.mark.parametrize("name", (".lock", OURS + ".part", ".work"))
def test_links_in_the_folder(name):
    """What a link leads to stays as it is (test_guard.py has pipes and the rest)."""
    folder, outside = f"links_{name.strip('.')}", in_work(f"outside_{name.strip('.')}")
    write(os.path.join(outside, "precious"), b"x")
    os.makedirs(in_work(folder))
    os.symlink(outside if name == ".work" else os.path.join(outside, "precious"), in_work(folder, name))
    if name == ".work":
        refused("hellaswag.py", "--out", in_work(folder), says=[f"{name}: is a link, expected a folder"],
                notes=["not the published"] * 2)
    else:
        part_of_another = {"of": json_identity(), "etag": None}
        write(in_work(folder, OURS + ".part.json"), json.dumps(part_of_another))
        big(folder, run=refused, says=[f"{name}: is a link, and links are not followed here"])
    assert read(os.path.join(outside, "precious")) == b"x" and os.listdir(outside) == ["precious"]


def json_identity():
    """What a part of the big shard says of itself."""
    return {"size": BIG_BYTES, "sha256": hashlib.sha256(read(in_mirror(MIRROR, SHARD))).hexdigest(), "git_sha1": None}


@pytest.mark.parametrize("record", ("[]", '{"files": {"%s": 7}}' % OURS, "[" * 100000),
                         ids=["list", "no_entry", "deep"])
def test_damaged_records(record):
    """A record that says nothing of use is written anew."""
    folder = f"record_{hashlib.md5(record.encode()).hexdigest()[:8]}"
    write(in_work(folder, ".fetched.json"), record)
    big(folder)
    assert OURS in json.loads(read(in_work(folder, ".fetched.json")))["files"]


def test_damaged_progress():
    """A progress.json that says nothing of use means that nothing is encoded yet."""
    parquet, folder = load("fineweb_parquet"), load("common").Folder(in_work("progress"))
    shards = parquet.Shards(folder, "x", 100)
    good = {"path": "a", "sha256": "b", "tokens": 5}
    for record in ("[]", '{"files": [7]}', '{"files": [{"path": "a"}]}', '{"ended": {"goal": 1, "tokens": "x"}}'):
        write(folder.join("progress.json"), record)
        state = parquet.State(folder, shards)
        assert (state.files, state.ended, state.is_ended({})) == ([], None, False), record
    write(folder.join("progress.json"), json.dumps({"files": [good], "ended": {"goal": 1, "tokens": 9}}))
    state = parquet.State(folder, shards)
    assert state.files == [good] and state.ended == {"goal": 1, "tokens": 9} and not state.is_ended(1)
    folder.close()


def test_lock_is_ours_alone():
    assert os.stat(in_work("edu", ".lock")).st_mode & 0o777 == 0o600


CONTROLS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def test_controls_reach_no_terminal(server):
    """Escape sequences and bidi controls from a path, from what a server says, and from a list of files."""
    evil = "\x1b]0;title\x07\x9b31m\u202e\nspoof"
    shown = "\\x1b]0;title\\x07\\u009b31m\\u202e\\x0aspoof"
    out, err = big(f"evil{evil}", mirror=server)
    assert f"evil{shown}: 2 shards" in out and not CONTROLS.search(out + err), (out, err)
    server.faults[BIG_SHARD] = [lambda handler: handler.wfile.write(b"HTTP/1.1 500 \x1b[2J\x9b2J\r\n\r\n") == 0]
    _, err = big("evil_reason", mirror=server)
    assert "answers 500 \\x1b[2J\\u009b2J; trying again" in err and not CONTROLS.search(err), err
    err = refused("fineweb.py", "--\x1b\u202e", says=["'--\\x1b\\u202e': unknown option"], mirror=None)
    assert not CONTROLS.search(err)


# ---- The disk, the folder, the options, the screen ----


def test_disk(server):
    """Too little space is said before anything is fetched; a disk that fills up later leaves what came in."""
    mirror = own_mirror("huge")
    entries = json.loads(read(mirror + BIG_LIST))
    for entry in entries:
        entry["lfs"]["size"] = 10**17
    write(mirror + BIG_LIST, json.dumps(entries))
    big("huge_out", mirror=mirror, run=refused,
        says=["huge_out: 200 PB are to be written, but ", " are free; ", "--limit"])
    assert visible(in_work("huge_out")) == []
    big("limited", run=refused, says=["File too large"], preexec_fn=limit_files(3000000))
    assert [name for name in os.listdir(in_work("limited")) if name.endswith(".bin")] == []
    big("limited", mirror=server)
    assert server.requests(BIG_SHARD.replace("train_000001", "val_000000"))[0]["range"] == "bytes=3000000-", server.log


def test_folders():
    blocked = write("a_file", b"")
    refused("fineweb.py", "--out", blocked, says=["a_file: is a file, expected a folder"])
    refused("fineweb.py", "--out", os.path.join(blocked, "x"), says=["a_file", "file is in the way"])
    os.makedirs(in_work("taken", "edu_fineweb_val_000000.bin"))
    big("taken", run=refused, says=["taken/edu_fineweb_val_000000.bin: is a folder, a file is to be written"])


def test_read_only_folder():
    folder, nobody = in_work("read_only"), None
    os.makedirs(folder, 0o555)
    if os.geteuid() == 0:  # who may write everywhere: as somebody who may not
        os.chmod(WORK, 0o755)
        nobody = lambda: os.setuid(65534)
    try:
        refused("fineweb.py", "--out", folder, preexec_fn=nobody,
                says=["read_only: this folder cannot be written to: Permission denied (it is of user ",
                      ", mode 555; this is user ", "); choose another with --out"])
    except PermissionError:
        pytest.skip("nobody but root can run this Python")


BAD_OPTIONS = (
    (["--limit", "0"], "argument --limit: got '0', expected a whole number"),
    (["--timeout", "nan"], "argument --timeout: got 'nan', expected seconds"),
    (["--mirror", "ftp://x"], "argument --mirror: got 'ftp://x', expected http://host/..."),
    (["--mirror", "/a b"], "for a folder: file:///a%20b"),
    (["--out", ""], "--out: is empty"), (["--shard_size", "5000"], "--shard_size 5000: the published shards "),
    (["--vocab", "none.bpe"], "argument --vocab: none.bpe: no such file"),
    (["--vocab", __file__], "--vocab: only --source parquet needs it"))


def test_options():
    for program in ("fineweb.py", "hellaswag.py", "mmlu.py", "tinyshakespeare.py", "tinystories.py", "vocab.py"):
        out, err = ran(program, "--help", mirror=None)
        assert "--mirror" in out and "--verify" in out and f"python3 dev/data/{program}" in out and err == "", out
        assert max(map(len, out.splitlines())) <= 120, out
    for arguments, message in BAD_OPTIONS:
        refused("fineweb.py", *arguments, says=[message], mirror=None)
    without = {name: value for name, value in ENVIRONMENT.items() if name != "TOKENIZE"}
    no_program = dict(ENVIRONMENT, TOKENIZE=in_work("no_program"))
    for environment, says, more in (
            (no_program, "no_program: no such file; TOKENIZE", ["not the published"]),
            (without, "make tokenize failed: ", ["not the published", "building tokenize"])):
        refused("hellaswag.py", "--out", in_work("no_vocab"), says=[says], env=environment,
                notes=["not the published", *more])


def test_screen(server):
    """A terminal shows a bar, which is taken away at the end."""
    with server.stalled(2 * BLOCK):
        words = command("fineweb.py", "-t", "edu", "--limit", 1, *FAST, "--out", in_work("screen"), mirror=server)
        terminal = Terminal(words, cwd=WORK, env=dict(ENVIRONMENT, COLUMNS="80"))
        terminal.until(r" \| 1 of 2: edu_fineweb")
    with terminal:
        seen = terminal.finish()
    bars = [line for line in seen.split("\r") if line.startswith("[")]
    assert bars and all(re.match(r"\[#*-*\] \d+%, [\d.]+ [kM]?B of 10.0 MB, [\d.]+ MB/s", bar) for bar in bars), seen
    assert any(" | 1 of 2: edu_fineweb" in bar for bar in bars), seen
    assert max(len(bar.replace("\033[K", "")) for bar in bars) < 80
    assert seen.rindex("[" + "#") < seen.rindex("\r\033[K") < seen.rindex("screen: 2 shards, 2 fetched now"), seen


def test_closed_streams():
    """Without standard output and the others, a program does its work and speaks to nobody."""
    out = in_work("mute")
    status = run_closed(*command("hellaswag.py", "--out", out), env=ENVIRONMENT)
    assert status == 0 and read(os.path.join(out, "hellaswag_val.bin"))[:4] == struct.pack("<i", 20240522), status
