"""The programs of dev/data as their users meet them, against a small mirror: over file:// and over a local server that
breaks off, stalls, answers 500 or 429, knows no ranges or serves another file. What they write is compared byte by
byte with a computation of its own (a byte-pair encoder in Python) and read by ./train_gpt2. Needs ./tokenize and
./train_gpt2 (make).
"""
import array
import csv
import email.utils
import functools
import gzip
import hashlib
import http.server
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
import unicodedata
import urllib.parse
import urllib.request

import pytest

from cli import PROGRAM as TRAIN_GPT2
from cli import losses, shard_bytes as shard
from evalfiles import eval_bytes
from formats import BYTES, SYMBOLS
from tools import ROOT, SHARED, WORK, Terminal, limit_files, read, run_closed, small_disk, wait_until, write
from tools import path as in_work

TOKENIZE = os.path.abspath(os.environ.get("TOKENIZE", os.path.join(ROOT, "tokenize")))
MIRROR = in_work("mirror")
REPOSITORY = in_work("repository")  # holds a copy of dev/data: its root is written to
PROGRAMS = os.path.join(REPOSITORY, "dev", "data")
EOT = 50256
ENVIRONMENT = {key: value for key, value in os.environ.items()
               if not key.lower().endswith("_proxy") and key != "HF_TOKEN"}
ENVIRONMENT.update(TOKENIZE=TOKENIZE, OMP_WAIT_POLICY="passive", OMP_NUM_THREADS="1", TERM="dumb", LC_ALL="C.UTF-8",
                   PYTHONDONTWRITEBYTECODE="1")
BIG = "kjj0/finewebedu10B-gpt2"  # the set whose shards are large here: a fetch takes several blocks of 1 MiB
BIG_SHARD = f"/datasets/{BIG}/resolve/main/finewebedu_train_000001.bin"
BLOCK = 1 << 20


# ---- The mirror ----


def setup_module():
    shutil.copytree(os.path.join(ROOT, "dev", "data"), PROGRAMS,
                    ignore=lambda folder, names: [name for name in names if not name.endswith((".py", ".md"))])
    command = [sys.executable, os.path.join(ROOT, "dev", "data", "make_mirror.py"), MIRROR]
    made = subprocess.run(command, capture_output=True, check=True, env=ENVIRONMENT)
    assert made.stdout.decode().startswith(f"--mirror file://{MIRROR}\n"), made.stdout
    for number, kind in ((0, "val"), (1, "train"), (2, "train")):
        data = shard([(number * 7 + i * i) % 50000 for i in range(5000)] * 500)
        publish(MIRROR, f"finewebedu_{kind}_{number:06d}.bin", data, new=number == 0)
    os.remove(in_mirror(MIRROR, "finewebedu_train_000003.bin"))


def in_mirror(mirror, name, repository=BIG):
    return os.path.join(mirror, "datasets", repository, "resolve", "main", name)


def tree(mirror, repository=BIG):
    return os.path.join(mirror, "api", "datasets", repository, "tree", "main")


def publish(mirror, name, data, new=False, **changes):
    """Puts a file of the big set into a mirror, and into its list. new: begins the list."""
    write(in_mirror(mirror, name), data)
    entries = [] if new else [entry for entry in json.loads(read(tree(mirror))) if entry["path"] != name]
    lfs = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
    entries.append({"type": "file", "path": name, "size": len(data), "oid": "0" * 40, "lfs": lfs, **changes})
    write(tree(mirror), json.dumps(entries).encode())


def own_mirror(name):
    """A copy of the mirror that a test may spoil."""
    path = in_work(name)
    shutil.copytree(MIRROR, path)
    return path


def file_url(path):
    return "file://" + urllib.request.pathname2url(path)


class Server:
    """Serves a mirror over HTTP on a port of its own. faults: path -> what the next requests for it meet, in order; a
    fault is a function of the handler that returns whether it has answered."""

    def __init__(self, mirror):
        self.mirror, self.faults, self.log, self.ranges, self.etags = mirror, {}, [], True, {}
        self.pages = 0
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
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True)
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def requests(self, path=BIG_SHARD):
        return [entry for entry in self.log if entry["path"] == path]

    def serve(self, handler):
        path = urllib.parse.unquote(urllib.parse.urlsplit(handler.path).path)
        entry = {"path": path, "query": urllib.parse.urlsplit(handler.path).query, "sent": 0, "time": time.monotonic(),
                 "range": handler.headers.get("Range"), "if-range": handler.headers.get("If-Range"),
                 "authorization": handler.headers.get("Authorization")}
        self.log.append(entry)
        handler.entry = entry
        faults = self.faults.get(path, [])
        if faults and faults.pop(0)(handler):
            handler.close_connection = True
            return
        try:
            data = read(self.mirror + path)
        except OSError:
            handler.send_error(404)
            return
        self.answer(handler, path, data)

    def answer(self, handler, path, data, most=None):
        """Sends a file, or the part asked for; of the body only `most` bytes."""
        etag = self.etags.get(path) or '"' + hashlib.md5(data).hexdigest() + '"'
        begin, wanted = 0, handler.headers.get("Range")
        if wanted and self.ranges and handler.headers.get("If-Range") in (None, etag):
            begin = int(re.fullmatch(r"bytes=(\d+)-", wanted).group(1))
            if begin >= len(data):
                handler.send_response(416)
                handler.send_header("Content-Length", "0")
                handler.end_headers()
                return
            handler.send_response(206)
            handler.send_header("Content-Range", f"bytes {begin}-{len(data) - 1}/{len(data)}")
        else:
            handler.send_response(200)
        body = data[begin:]
        handler.send_header("Content-Length", str(len(body)))
        handler.send_header("ETag", etag)
        handler.end_headers()
        body = body if most is None else body[:most]
        handler.entry["sent"] = len(body)
        handler.wfile.write(body)
        handler.wfile.flush()

    # Faults

    def status(self, code, **headers):

        def fault(handler):
            handler.send_response(code)
            for name, value in headers.items():
                handler.send_header(name.replace("_", "-"), value)
            handler.send_header("Content-Length", "0")
            handler.end_headers()
            return True

        return fault

    def drop(self, most):
        """Breaks off after so many bytes of the body."""

        def fault(handler):
            self.answer(handler, handler.entry["path"], read(self.mirror + handler.entry["path"]), most)
            return True

        return fault

    def stall(self, most, reached, released):
        """Says that so many bytes are sent, and then nothing more until it is released."""

        def fault(handler):
            self.answer(handler, handler.entry["path"], read(self.mirror + handler.entry["path"]), most)
            reached.set()
            released.wait(120)
            return True

        return fault

    def wait_for(self, barrier):

        def fault(_):
            barrier.wait()
            return False

        return fault


# ---- Running ----

FAST = ["--retry-wait", "0.01"]


def command(program, *arguments, mirror=MIRROR):
    source = ["--mirror", file_url(mirror) if mirror.startswith("/") else mirror] if mirror else []
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


def big(folder, *arguments, run=ran, jobs=1, **keywords):
    """Fetches the big set: validation and one shard for training."""
    return run("fineweb.py", "-t", "edu", "--limit", 1, "--jobs", jobs, *FAST, "--out", in_work(folder), *arguments,
               **keywords)


def check_big(folder, mirror=MIRROR):
    """The two shards are there, whole, under their names, and nothing else."""
    names = sorted(name for name in os.listdir(in_work(folder)) if name not in (".lock", ".fetched.json"))
    assert names == ["edu_fineweb_train_000001.bin", "edu_fineweb_val_000000.bin"], names
    for name in names:
        assert read(in_work(folder, name)) == read(in_mirror(mirror, name.replace("edu_fineweb", "finewebedu"))), name


def part(folder):
    return in_work(folder, "edu_fineweb_train_000001.bin.part")


# ---- A byte-pair encoder of its own ----

LETTER, NUMBER, SPACE, OTHER = "\u00e9", "\u00b2", "\u00a0", "\u20ac"
WORDS = re.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?[A-Za-z\u00e9]+| ?[0-9\u00b2]+| ?[^\sA-Za-z\u00e90-9\u00b2]+"
                   r"|\s+(?!\S)|\s+")


@functools.lru_cache(None)
def stand_in(character):
    """A character that the pattern above treats like this one: Python's re knows no classes of Unicode."""
    if ord(character) < 128:
        return character
    category = unicodedata.category(character)[0]
    return SPACE if character.isspace() else {"L": LETTER, "N": NUMBER}.get(category, OTHER)


class Encoder:
    """GPT-2's byte-pair encoding from a vocab.bpe, as slow as it is plain."""

    def __init__(self, path):
        self.symbols = dict(zip(BYTES, SYMBOLS))
        self.ids = {symbol: i for i, symbol in enumerate(SYMBOLS)}
        self.ranks = {}
        for rank, line in enumerate(read(path).decode().split("\n")[1:-1]):
            left, right = line.split(" ")
            self.ranks[left, right] = rank
            self.ids[left + right] = 256 + rank
        self.cache = {}

    def word(self, text):
        if text not in self.cache:
            pieces = [self.symbols[byte] for byte in text.encode()]
            while len(pieces) > 1:
                best = min(zip(pieces, pieces[1:]), key=lambda pair: self.ranks.get(pair, 1 << 30))
                if best not in self.ranks:
                    break
                merged, i = [], 0
                while i < len(pieces):
                    both = tuple(pieces[i:i + 2]) == best
                    merged.append(pieces[i] + pieces[i + 1] if both else pieces[i])
                    i += 2 if both else 1
                pieces = merged
            self.cache[text] = [self.ids[piece] for piece in pieces]
        return self.cache[text]

    def encode(self, text):
        plain = "".join(map(stand_in, text))
        return [token for match in WORDS.finditer(plain) for token in self.word(text[match.start():match.end()])]

    def documents(self, texts):
        return [token for text in texts for token in [EOT] + self.encode(text)]


@functools.lru_cache(None)
def encoder():
    return Encoder(os.path.join(MIRROR, "gpt-2", "encodings", "main", "vocab.bpe"))


def eval_file(examples, encode):
    """The bytes of a file of multiple-choice questions."""
    return eval_bytes([(encode(context), [encode(completion) for completion in completions], label)
                       for context, completions, label in examples])


def run_trainer(train_data, val_data, context, *more):
    result = subprocess.run([TRAIN_GPT2, "--train-data", train_data, "--val-data", val_data, "--vocab", "50257",
                             "--layers", "1", "--heads", "1", "--channels", "8", "--context", context, "--seq-len",
                             context, "--batch-size", "1", "--sample-every", "0", *more],
                            cwd=WORK, capture_output=True, env=ENVIRONMENT, timeout=300, text=True)
    assert result.returncode == 0 and result.stderr == "", (result.stdout, result.stderr)
    return result.stdout


def train(train_data, val_data):
    """The trainer reads these shards and makes steps with them."""
    out = run_trainer(train_data, val_data, "8", "--steps", "2", "--val-batches", "2")
    found = losses(out)
    assert len(found) == 2 and all(10.0 < loss < 12.0 for loss in found), out  # ln 50257 is 10.8


def score(name, questions):
    """The trainer reads the questions."""
    data = [in_work("repository", "dev", "data", "fineweb10B", f"fineweb_{kind}_*.bin") for kind in ("train", "val")]
    run_trainer(*data, "256", "--steps", "0", "--val-batches", "1", f"--{name}", "1", f"--{name}-data", questions)


# ---- Every program ----


def test_vocab():
    out, err = ran("vocab.py")
    assert out == "repository/vocab.bpe: fetched, verified\n", out
    assert err == "vocab.bpe: by the mirror's SHA256SUMS this is not the published file, but another\n", err
    assert read(in_work("repository", "vocab.bpe")) == read(os.path.join(MIRROR, "gpt-2/encodings/main/vocab.bpe"))
    assert ran("vocab.py")[0] == "repository/vocab.bpe: already there, verified\n"
    refused("hellaswag.py", "--out", in_work("wrong_vocab"), says=["repository/vocab.bpe: is not GPT-2's (checksum)",
            "--vocab"], notes=[".* not the published file"])
    for name in ("vocab.bpe", ".lock", ".fetched.json"):
        os.remove(in_work("repository", name))


def test_fineweb():
    """Names and contents of all four sets, and the trainer reads them."""
    for kind, version, folder, prefix in (("classic", "10B", "fineweb10B", "fineweb"),
                                          ("classic", "100B", "fineweb100B", "fineweb"),
                                          ("edu", "100B", "edu_fineweb100B", "edu_fineweb")):
        out, err = ran("fineweb.py", "-t", kind, "-v", version, "-m", "gpt-2", "-s", 100000000)
        folder = os.path.join("repository", "dev", "data", folder)
        assert out == (f"{folder}: 4 shards, 4 fetched now; training 50000 tokens, validation 20000\n"
                       f"train with: --train-data '{folder}/{prefix}_train_*.bin' "
                       f"--val-data '{folder}/{prefix}_val_*.bin'\n") and err == "", (out, err)
        names = sorted(name for name in os.listdir(in_work(folder)) if not name.startswith("."))
        assert names == [f"{prefix}_train_{i:06d}.bin" for i in (1, 2, 3)] + [f"{prefix}_val_000000.bin"], names
        repository = {"fineweb10B": "kjj0/fineweb10B-gpt2", "fineweb100B": "kjj0/fineweb100B-gpt2",
                      "edu_fineweb100B": "karpathy/fineweb-edu-100B-gpt2-token-shards"}[os.path.basename(folder)]
        for name in names:
            assert read(in_work(folder, name)) == read(in_mirror(MIRROR, name, repository)), name
    train(f"{folder}/{prefix}_train_*.bin", f"{folder}/{prefix}_val_*.bin")
    big("edu")
    check_big("edu")
    out = ran("fineweb.py", "-t", "edu", "--out", in_work("edu"))[0]  # without the limit: what is there stays
    assert "edu: 3 shards, 1 fetched now; " in out, out
    train(in_work("edu", "edu_fineweb_train_*.bin"), in_work("edu", "edu_fineweb_val_000000.bin"))
    refused("fineweb.py", "-t", "classic", "--out", in_work("edu"),
            says=["edu: holds files of another kind (repository kjj0/finewebedu10B-gpt2, now kjj0/fineweb10B-gpt2)"])


def shakespeare_tokens(text, encode):
    pieces = text.split("\n\n")
    return encode([piece + "\n\n" for piece in pieces[:-1]] + [pieces[-1]])


def test_tinyshakespeare():
    out, err = ran("tinyshakespeare.py")
    folder = in_work("repository", "dev", "data", "tinyshakespeare")
    text = read(os.path.join(MIRROR, "karpathy/char-rnn/master/data/tinyshakespeare/input.txt")).decode()
    assert any(ord(character) > 127 for character in text)
    tokens = shakespeare_tokens(text, encoder().documents)
    assert read(os.path.join(folder, "tiny_shakespeare_val.bin")) == shard(tokens[:32768])
    assert read(os.path.join(folder, "tiny_shakespeare_train.bin")) == shard(tokens[32768:])
    shown = os.path.relpath(folder, WORK)
    assert out == (f"{shown}/tiny_shakespeare_train.bin: {len(tokens) - 32768} tokens\n"
                   f"{shown}/tiny_shakespeare_val.bin: 32768 tokens\n"), out
    assert len(err.splitlines()) == 2, err  # the mirror's text and vocabulary are not the published ones
    before = os.stat(os.path.join(folder, "tiny_shakespeare_train.bin"))
    out = ran("tinyshakespeare.py", "--verify")[0]
    assert out.count(", already there\n") == 2, out
    assert os.stat(os.path.join(folder, "tiny_shakespeare_train.bin")).st_mtime_ns == before.st_mtime_ns
    train(os.path.join(folder, "tiny_shakespeare_train.bin"), os.path.join(folder, "tiny_shakespeare_val.bin"))
    # What was made is made again when it has changed, and with another vocabulary.
    with open(os.path.join(folder, "tiny_shakespeare_train.bin"), "r+b") as file:
        file.write(b"x")
    assert "already there" not in ran("tinyshakespeare.py")[0]
    assert read(os.path.join(folder, "tiny_shakespeare_train.bin")) == shard(tokens[32768:])
    assert sorted(name for name in os.listdir(folder) if name not in (".lock", ".fetched.json")) == [
        "tiny_shakespeare.txt", "tiny_shakespeare_train.bin", "tiny_shakespeare_val.bin", "vocab.bpe"]


def test_real_shakespeare():
    """The published text with GPT-2's vocabulary, through a mirror of nothing but the two files: pins hold."""
    if not os.path.exists(os.path.join(SHARED, "tinyshakespeare.txt")):
        pytest.skip("../shared/data is not here")
    mirror = in_work("real")
    text = read(os.path.join(SHARED, "tinyshakespeare.txt"))
    write(os.path.join(mirror, "karpathy/char-rnn/master/data/tinyshakespeare/input.txt"), text)
    write(os.path.join(mirror, "gpt-2/encodings/main/vocab.bpe"), read(os.path.join(SHARED, "vocab.bpe")))
    out, err = ran("tinyshakespeare.py", "--out", in_work("real_out"), mirror=mirror)
    assert out.splitlines()[0] == "real_out/tiny_shakespeare_train.bin: 305260 tokens", out
    assert out.splitlines()[1] == "real_out/tiny_shakespeare_val.bin: 32768 tokens", out
    assert err == "fetched repository/vocab.bpe\n", err
    tokens = shakespeare_tokens(text.decode(), Encoder(os.path.join(SHARED, "vocab.bpe")).documents)
    assert read(in_work("real_out", "tiny_shakespeare_val.bin")) == shard(tokens[:32768])
    assert read(in_work("real_out", "tiny_shakespeare_train.bin")) == shard(tokens[32768:])
    for name in ("vocab.bpe", ".lock", ".fetched.json"):
        os.remove(in_work("repository", name))


def test_hellaswag():
    out = ran("hellaswag.py")[0]
    folder = in_work("repository", "dev", "data", "hellaswag")
    source = read(os.path.join(MIRROR, "rowanz/hellaswag/master/data/hellaswag_val.jsonl"))
    examples = [json.loads(line) for line in source.splitlines()]
    expected = eval_file([(e["ctx"], [" " + ending for ending in e["endings"]], e["label"]) for e in examples],
                         encoder().encode)
    assert read(os.path.join(folder, "hellaswag_val.bin")) == expected
    assert read(os.path.join(folder, "hellaswag_val.jsonl")) == source
    assert f"/hellaswag_val.bin: {len(examples)} questions, the longest " in out, out
    assert ran("hellaswag.py")[0].endswith("/hellaswag_val.bin: already there\n")
    score("hellaswag", os.path.join(folder, "hellaswag_val.bin"))
    mirror = own_mirror("bad_questions")
    lines = source.splitlines(keepends=True)
    path = os.path.join(mirror, "rowanz/hellaswag/master/data/hellaswag_val.jsonl")
    sums = os.path.join(mirror, "SHA256SUMS")
    for bad, message in ((b'{"ctx": "a"}\n', "line 3: expected an object with ctx, endings and label"),
                         (b'{"ctx": "a", "endings": [1, 2, 3, 4], "label": 0}\n', "line 3: expected an object"),
                         (b'{"ctx": "a", "endings": ["b"], "label": 0}\n', "line 3: JSON line: 1 completions")):
        old = read(path)
        write(path, b"".join(lines[:2]) + bad + b"".join(lines[2:]))
        write(sums, read(sums).replace(hashlib.sha256(old).hexdigest().encode(),
                                       hashlib.sha256(read(path)).hexdigest().encode()))
        refused("hellaswag.py", mirror=mirror, says=[message], notes=["not the published"] +
                ["fetched again"] + ["not the published"])
        assert read(os.path.join(folder, "hellaswag_val.bin")) == expected  # the good one stays


def mmlu_questions(archive):
    with tarfile.open(archive) as tar:
        names = sorted(name for name in tar.getnames() if "/test/" in name)
        for name in names:
            for row in csv.reader(io.StringIO(tar.extractfile(name).read().decode(), newline="")):
                yield f"Question: {row[0]}\n\nAnswer:", [" " + answer for answer in row[1:5]], "ABCD".index(row[5])


def test_mmlu():
    out = ran("mmlu.py")[0]
    folder = in_work("repository", "dev", "data", "mmlu")
    examples = list(mmlu_questions(os.path.join(MIRROR, "~hendrycks", "data.tar")))
    assert len(examples) == 60 and '"Which" word follows,\n' in examples[0][0]
    assert read(os.path.join(folder, "mmlu_val.bin")) == eval_file(examples, encoder().encode)
    assert "/mmlu_val.bin: 60 questions, the longest " in out and out.endswith(" bytes, 2 subjects\n"), out
    assert ran("mmlu.py", "--verify")[0].endswith("/mmlu_val.bin: already there\n")
    score("mmlu", os.path.join(folder, "mmlu_val.bin"))


def test_tinystories():
    """The archive holds its files out of order; a run that was stopped keeps the files it has encoded."""
    archive = in_mirror(MIRROR, "TinyStories_all_data.tar.gz", "roneneldan/TinyStories")
    files = {}
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(read(archive)))) as tar:
        for name in tar.getnames():
            files[name] = encoder().documents([story["story"].strip().replace("\ud83d", "\ufffd")
                                               for story in json.load(tar.extractfile(name))])
    assert list(files) == ["data01.json", "data00.json", "data02.json"]
    folder = in_work("repository", "dev", "data", "tinystories")

    def check():
        assert read(os.path.join(folder, "TinyStories_val.bin")) == shard(files["data00.json"])
        assert read(os.path.join(folder, "TinyStories_train.bin")) == shard(files["data01.json"] + files["data02.json"])

    ran("tinystories.py", "--keep-downloads")
    check()
    assert read(os.path.join(folder, "TinyStories_all_data.tar.gz")) == read(archive)
    assert ran("tinystories.py")[0].count("already there") == 2
    assert not os.path.exists(os.path.join(folder, "TinyStories_all_data.tar.gz"))
    train(os.path.join(folder, "TinyStories_train.bin"), os.path.join(folder, "TinyStories_val.bin"))
    # A part that is there is not encoded again: here it says something else, and that is what comes out.
    os.remove(os.path.join(folder, "TinyStories_val.bin"))
    made = json.loads(read(os.path.join(folder, ".fetched.json")))["files"]["TinyStories_train.bin"]["made"]
    write(os.path.join(folder, ".parts", "made.json"), json.dumps(made).encode())
    write(os.path.join(folder, ".parts", "data01.bin"), shard([EOT, 7]))
    ran("tinystories.py")
    assert read(os.path.join(folder, "TinyStories_train.bin")) == shard([EOT, 7] + files["data02.json"])
    os.remove(os.path.join(folder, "TinyStories_val.bin"))
    write(os.path.join(folder, ".parts", "made.json"), b"{}")  # of another archive: not taken
    write(os.path.join(folder, ".parts", "data01.bin"), shard([EOT, 7]))
    ran("tinystories.py")
    check()
    assert not os.path.exists(os.path.join(folder, ".parts")) and not os.path.exists(os.path.join(folder, ".work"))
    check_killed(folder)
    ran("tinystories.py")
    check()


def check_killed(folder):
    """Kills the program while a tokenize waits for more. That one takes it for the end of the text, and finishes a file
    that nobody may take for the whole."""
    os.remove(os.path.join(folder, "TinyStories_val.bin"))
    wrapper, started, go, ended = (in_work(name) for name in ("slow_tokenize", "started", "go", "ended"))
    write(wrapper, f'#!/bin/sh\n: >"{started}"\nwhile [ ! -e "{go}" ]; do sleep 0.02; done\n"{TOKENIZE}" "$@"\n'
          f': >"{ended}"\n'.encode())
    os.chmod(wrapper, 0o755)
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
    return [table.column("text").to_pylist() for table in tables]


def test_parquet():
    """Shards from parquet: exact, the same when stopped after a file, when a shard is damaged, and after a trial."""
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        refused("fineweb.py", "--source", "parquet",
                says=["pyarrow", "not installed", "pip install pyarrow", "--source shards"])
        pytest.skip("pyarrow is not installed")
    files = [encoder().documents(documents) for documents in parquet_documents()]
    tokens, size = sum(files, []), 9000
    pieces = [tokens[i:i + size] for i in range(0, len(tokens), size)]
    names = [f"edu_fineweb_{'train' if i else 'val'}_{i:06d}.bin" for i in range(len(pieces))]
    arguments = ["-t", "edu", "--source", "parquet", "-s", size]
    folder = in_work("repository", "dev", "data", "edu_fineweb10B")

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
    status = os.stat(os.path.join(folder, names[1]))
    with open(os.path.join(folder, names[1]), "r+b") as file:
        file.seek(2000)
        file.write(b"xy")
    os.utime(os.path.join(folder, names[1]), ns=(status.st_atime_ns, status.st_mtime_ns))
    assert "already there" in ran("fineweb.py", *arguments)[0]
    assert f"{names[1]}: has changed since it was made" in ran("fineweb.py", *arguments, "--verify")[1]
    check()
    # Stopped while appending: a shard closed too early, an open one with more than progress.json says.
    state = json.loads(read(os.path.join(folder, "progress.json")))
    state["files"], state["ended"] = state["files"][:1], None
    write(os.path.join(folder, "progress.json"), json.dumps(state).encode())
    os.rename(os.path.join(folder, names[-1]), os.path.join(folder, names[-1] + ".open"))
    _, err = ran("fineweb.py", *arguments, "--keep-downloads")
    assert "going on after 000_00000.parquet" in err, err
    kept = [name for name in os.listdir(folder) if name.endswith(".parquet")]
    assert sorted(kept) == ["001_00000.parquet", "002_00000.parquet"], kept
    for name in kept:
        os.remove(os.path.join(folder, name))
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
    bad = own_mirror("bad_parquet")
    path = "sample/10BT/001_00000.parquet"
    write(in_mirror(bad, path, "HuggingFaceFW/fineweb-edu"), b"PAR1 no parquet")
    entries = json.loads(read(tree(bad, "HuggingFaceFW/fineweb-edu") + "/sample/10BT"))
    for entry in entries:
        if entry["path"] == path:
            entry["lfs"] = {"oid": hashlib.sha256(b"PAR1 no parquet").hexdigest(), "size": 15}
    write(tree(bad, "HuggingFaceFW/fineweb-edu") + "/sample/10BT", json.dumps(entries).encode())
    refused("fineweb.py", *arguments, "--out", in_work("bad_out"), mirror=bad, says=["001_00000.parquet: "],
            notes=["not the published", "000_00000.parquet: "])


# ---- Faults of mirrors and servers ----


def test_skips_what_is_there():
    """A second run fetches only the list; what has changed is found, with --verify whatever its time says."""
    with Server(MIRROR) as server:
        big("again", mirror=server.url)
        assert [entry["query"] for entry in server.requests(f"/api/datasets/{BIG}/tree/main")] == ["recursive=true"]
        server.log.clear()
        out, _ = big("again", mirror=server.url)
        assert "2 shards, 0 fetched now" in out and len(server.log) == 1, server.log
        path = in_work("again", "edu_fineweb_train_000001.bin")
        status = os.stat(path)
        with open(path, "r+b") as file:
            file.seek(BLOCK)
            file.write(b"??")
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        server.log.clear()
        big("again", mirror=server.url)
        assert len(server.log) == 1
        _, err = big("again", "--verify", mirror=server.url)
        assert err == "edu_fineweb_train_000001.bin: its checksum is not the published one; it is fetched again\n", err
        check_big("again")
        os.truncate(path, 5000)
        assert "5000 bytes here, published are" in big("again", mirror=server.url)[1]
        check_big("again")
        # A file that somebody put there: read once, not fetched.
        os.remove(in_work("again", ".fetched.json"))
        server.log.clear()
        out, _ = big("again", mirror=server.url)
        assert "0 fetched now" in out and len(server.log) == 1, server.log


SHARD = "finewebedu_train_000001.bin"


def flip(path):
    """Changes a byte. Returns the two checksums, of what is there and of what was."""
    before = read(path)
    with open(path, "r+b") as file:
        file.seek(4000000)
        file.write(b"?")
    return [hashlib.sha256(data).hexdigest() for data in (read(path), before)]


@pytest.mark.parametrize("name, spoil, says, over_http", (
    ("truncated", lambda path: os.truncate(path, 3000000),
     f"{SHARD}: has 3000000 bytes, 5001024 are published; try again later", None),
    ("flipped", flip, f"{SHARD}: checksum {{}}, published is {{}}; ", None),
    ("missing", os.remove, f"{SHARD}: no such file in the mirror", f"{SHARD}: not found (404)")))
def test_spoilt_mirror(name, spoil, says, over_http):
    """Trying again at once does not help, nothing wrong stays, and a good mirror then has the rest."""
    mirror, out = own_mirror(name), f"{name}_out"
    says = says.format(*spoil(in_mirror(mirror, SHARD)) or ())
    with Server(mirror) as server:
        for url, text in ((mirror, says), (server.url, over_http or says)):
            message = big(out, run=refused, mirror=url, says=[])
            assert all(part in message for part in text.split("; ")), (text, message)
            assert not [file for file in os.listdir(in_work(out)) if "train" in file]
        assert len(server.requests()) == 1
    big(out)
    check_big(out)


def test_no_mirror():
    with Server(MIRROR) as server:
        refused("mmlu.py", "--out", in_work("missing_mmlu"), mirror=server.url + "/nothing/here",
                says=["data.tar: not found (404)"])
    refused("fineweb.py", "--out", in_work("missing_list"), mirror=in_work("no_mirror"),
            says=["tree/main: no such file in the mirror"])


def test_transient_failures():
    """500, 429 with Retry-After, and giving up."""
    with Server(MIRROR) as server:
        server.faults[BIG_SHARD] = [server.status(500), server.status(503), server.status(429, Retry_After="1")]
        _, err = big("transient", mirror=server.url)
        check_big("transient")
        times = [entry["time"] for entry in server.requests()]
        assert len(times) == 4 and times[3] - times[2] >= 1.0, times
        lines = err.splitlines()
        assert len(lines) == 3 and all(line.startswith("edu_fineweb_train_000001.bin: 127.0.0.1:") for line in lines)
        assert "answers 500 Internal Server Error; trying again in a moment (1 of 6)" in lines[0], err
        assert "answers 429 Too Many Requests; trying again in 1s (3 of 6)" in lines[2], err
        server.faults[BIG_SHARD] = [server.status(502)] * 10
        server.log.clear()
        big("gave_up", "--retries", 2, mirror=server.url, run=refused, notes=["1 of 2", "2 of 2"],
            says=["answers 502 Bad Gateway; gave up after 3 attempts", "the same command goes on"])
        assert len(server.requests()) == 3
        server.faults[BIG_SHARD] = [server.status(429, Retry_After="7200")]
        big("gave_up", mirror=server.url, run=refused, says=["asks to wait 2h 00m (429)"])
        server.faults[BIG_SHARD] = [server.status(403)]
        big("gave_up", mirror=server.url, run=refused, says=["refused (403)", "HF_TOKEN"])
        listing = f"/api/datasets/{BIG}/tree/main"
        server.faults = {listing: [server.status(500), server.status(429, Retry_After="0")]}
        _, err = big("gave_up", mirror=server.url)
        assert len(err.splitlines()) == 2, err
        check_big("gave_up")
    big("gave_up_too", "--retries", 0, mirror=server.url, run=refused,
        says=["Connection refused; gave up after 1 attempt;"])


def test_broken_connection_resumes():
    """Only what is missing is sent again, in one run and in the next."""
    size = os.path.getsize(in_mirror(MIRROR, "finewebedu_train_000001.bin"))
    with Server(MIRROR) as server:
        server.faults[BIG_SHARD] = [server.drop(3000000), server.drop(1000000)]
        _, err = big("dropped", mirror=server.url)
        check_big("dropped")
        assert [entry["range"] for entry in server.requests()] == [None, "bytes=3000000-", "bytes=4000000-"]
        assert sum(entry["sent"] for entry in server.requests()) == size
        assert "broke off after 3.0 MB of 5.0 MB; trying again" in err, err
        # Progress is no failure: with two attempts allowed, four breaks in a row are survived.
        server.faults[BIG_SHARD] = [server.drop(1000000) for _ in range(4)]
        big("dropped_often", "--retries", 1, mirror=server.url)
        check_big("dropped_often")
        # The same across two runs.
        server.faults[BIG_SHARD] = [server.drop(3000000)]
        server.log.clear()
        big("dropped_twice", "--retries", 0, mirror=server.url, run=refused, says=["broke off", "goes on"])
        assert os.path.getsize(part("dropped_twice")) == 3000000
        big("dropped_twice", mirror=server.url)
        check_big("dropped_twice")
        assert [entry["range"] for entry in server.requests()] == [None, "bytes=3000000-"]
        assert server.requests()[1]["if-range"] == '"' + hashlib.md5(
            read(in_mirror(MIRROR, "finewebedu_train_000001.bin"))).hexdigest() + '"'
        assert sum(entry["sent"] for entry in server.requests()) == size


def test_server_without_ranges():
    with Server(MIRROR) as server:
        server.ranges = False
        server.faults[BIG_SHARD] = [server.drop(3000000)]
        big("no_ranges", mirror=server.url)
        check_big("no_ranges")
        assert [(entry["range"], entry["sent"]) for entry in server.requests()] == [(None, 3000000),
                                                                                  ("bytes=3000000-", 5001024)]


def test_changed_in_between():
    """A part of another file is never continued, whether the list, the tag, or only the bytes tell."""
    mirror = own_mirror("changed")
    with Server(mirror) as server:

        def begin(folder):
            server.faults[BIG_SHARD] = [server.drop(3000000)]
            big(folder, "--retries", 0, mirror=server.url, run=refused, says=["broke off"])
            assert os.path.getsize(part(folder)) == 3000000
            server.log.clear()

        begin("changed_tag")  # the same bytes under another tag: the server sends all of them
        server.etags[BIG_SHARD] = '"another"'
        big("changed_tag", mirror=server.url)
        check_big("changed_tag")
        assert [(entry["range"], entry["sent"]) for entry in server.requests()] == [("bytes=3000000-", 5001024)]
        begin("changed_list")  # another file by the list: nothing is asked for with a range
        tokens = array.array("H", range(50000)).tobytes() * 50
        publish(mirror, "finewebedu_train_000001.bin", struct.pack("<256i", 20240520, 1, 2500000, *[0] * 253) + tokens)
        big("changed_list", mirror=server.url)
        check_big("changed_list", mirror)
        assert [entry["range"] for entry in server.requests()] == [None]
        begin("changed_bytes")  # what is there is damaged, and the server notices nothing
        with open(part("changed_bytes"), "r+b") as file:
            file.write(b"damaged")
        _, err = big("changed_bytes", mirror=server.url)
        check_big("changed_bytes", mirror)
        assert [entry["range"] for entry in server.requests()] == ["bytes=3000000-", None]
        assert "the parts do not fit together" in err, err
        begin("changed_part")  # a part without a word of whose it is
        os.remove(part("changed_part") + ".json")
        big("changed_part", mirror=server.url)
        check_big("changed_part", mirror)
        assert [entry["range"] for entry in server.requests()] == [None]
        begin("whole_part")  # all is there: nothing but the check is left
        write(part("whole_part"), read(in_mirror(mirror, "finewebedu_train_000001.bin")))
        big("whole_part", mirror=server.url)
        check_big("whole_part", mirror)
        assert server.requests() == []


def stop_in_the_middle(folder, server, number):
    """Sends a signal when part of a shard has come in. Returns status and the last line."""
    reached, released = threading.Event(), threading.Event()
    server.faults[BIG_SHARD] = [server.stall(3 * BLOCK + 77, reached, released)]
    server.log.clear()
    process = big(folder, mirror=server.url, run=start)
    assert reached.wait(120)
    wait_until(lambda: os.path.exists(part(folder)) and os.path.getsize(part(folder)) >= 3 * BLOCK, process)
    process.send_signal(number)
    _, err = process.communicate(timeout=120)
    released.set()
    return process.returncode, err.decode()


def test_signals():
    with Server(MIRROR) as server:
        for number, status, name in ((signal.SIGINT, 130, "Ctrl-C"), (signal.SIGTERM, 143, "SIGTERM")):
            code, err = stop_in_the_middle(f"stopped_{status}", server, number)
            assert code == status and err == (f"fineweb.py: stopped by {name}: 1 of 2 files complete, parts of others "
                                              "stay; the same command goes on\n"), (code, err)
            assert os.path.getsize(part(f"stopped_{status}")) == 3 * BLOCK
            big(f"stopped_{status}", mirror=server.url)
            check_big(f"stopped_{status}")
            assert [entry["range"] for entry in server.requests()] == [None, f"bytes={3 * BLOCK}-"]
        code, err = stop_in_the_middle("killed", server, signal.SIGKILL)
        assert code == -9 and err == "", (code, err)
        assert sorted(name for name in os.listdir(in_work("killed")) if "train" in name) == [
            "edu_fineweb_train_000001.bin.part", "edu_fineweb_train_000001.bin.part.json"]
        big("killed", mirror=server.url)
        check_big("killed")
        assert server.requests()[1]["sent"] == 5001024 - 3 * BLOCK


def test_stopped_while_encoding():
    """Ctrl-C and SIGTERM also end the tokenize that is fed, and leave no unfinished file."""
    started, wrapper = in_work("encoding"), in_work("endless_tokenize")
    write(wrapper, f'#!/bin/sh\nread line; echo $$ >"{started}.new"; mv "{started}.new" "{started}"; exec sleep 300\n'
          .encode())
    os.chmod(wrapper, 0o755)
    for number, status, name in ((signal.SIGINT, 130, "Ctrl-C"), (signal.SIGTERM, 143, "SIGTERM")):
        process = start("hellaswag.py", "--out", in_work("encoding_out"), env=dict(ENVIRONMENT, TOKENIZE=wrapper),
                        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))
        wait_until(lambda: os.path.exists(started), process)
        process.send_signal(number)
        _, err = finish(process, status)
        assert err.splitlines()[-1] == f"hellaswag.py: stopped by {name}; the same command goes on", err
        try:
            os.kill(int(read(started)), 0)
            raise AssertionError("tokenize still runs")
        except ProcessLookupError:
            pass
        os.remove(started)
        assert sorted(os.listdir(in_work("encoding_out"))) == [".fetched.json", ".lock", "hellaswag_val.jsonl",
                                                               "vocab.bpe"]


def test_two_at_once():
    """The second program that writes a folder is refused, and the first goes on undisturbed; others run beside it."""
    with Server(MIRROR) as server:
        reached, released = threading.Event(), threading.Event()
        server.faults[BIG_SHARD] = [server.stall(3 * BLOCK, reached, released)]
        first = big("twice", mirror=server.url, run=start)
        assert reached.wait(120)
        big("twice", mirror=server.url, run=refused, says=["twice: another program writes here now", "--out"])
        big("beside", mirror=server.url)
        check_big("beside")
        released.set()
        finish(first)
        check_big("twice")


def test_several_files_at_once():
    """Two requests are under way at the same moment: each waits for the other."""
    with Server(MIRROR) as server:
        barrier = threading.Barrier(2, timeout=120)
        for name in ("train_000001", "train_000002"):
            server.faults[f"/datasets/{BIG}/resolve/main/finewebedu_{name}.bin"] = [server.wait_for(barrier)]
        ran("fineweb.py", "-t", "edu", "--jobs", 3, "--out", in_work("parallel"), mirror=server.url)
        assert not barrier.broken


def test_silent_server():
    with Server(MIRROR) as server:
        reached, released = threading.Event(), threading.Event()
        server.faults[BIG_SHARD] = [server.stall(2 * BLOCK, reached, released)]
        _, err = big("silent", "--timeout", 1.5, "--retries", 50, mirror=server.url)
        released.set()
        check_big("silent")
        assert "is silent; trying again" in err, err
        assert server.requests()[-1]["range"], server.requests()


def test_redirects_and_tokens():
    """The Hub sends large files from other hosts; a token goes to the Hub alone, and never to a mirror."""
    with Server(MIRROR) as server, Server(MIRROR) as elsewhere:
        moved = elsewhere.url.replace("127.0.0.1", "localhost") + BIG_SHARD
        server.faults[BIG_SHARD] = [server.drop(3000000), server.status(302, Location=moved)]
        big("redirected", mirror=server.url, env=dict(ENVIRONMENT, HF_TOKEN="secret"))
        check_big("redirected")
        assert [entry["range"] for entry in elsewhere.requests()] == ["bytes=3000000-"]
        assert all(entry["authorization"] is None for entry in server.log + elsewhere.log)
    download = load_download()
    for text, low, high in (("7", 7, 7), ("", None, None), ("soon", None, None),
                            ("Wed, 01 Jan 2020 00:00:00 GMT", 0, 0),
                            (email.utils.formatdate(time.time() + 100, usegmt=True), 90, 101)):
        after = download.retry_after({"Retry-After": text})
        assert after == low if low is None else low <= after <= high, (text, after)
    request = urllib.request.Request("https://huggingface.co/a")
    request.add_unredirected_header("Authorization", "Bearer secret")
    for url, token in (("https://huggingface.co/b", "Bearer secret"), ("https://cdn.example/b", None)):
        new = download.Redirect().redirect_request(request, None, 302, "Found", {}, url)
        assert new.get_header("Authorization") == token, (url, new.header_items())


def load_download():
    sys.dont_write_bytecode = True
    sys.path.insert(0, PROGRAMS)
    import download
    sys.path.pop(0)
    return download


def test_lists_of_files():
    """Pages, small files without a SHA-256, and lists that are none."""
    with Server(MIRROR) as server:
        listing = f"/api/datasets/{BIG}/tree/main"
        entries = json.loads(read(tree(MIRROR)))

        def page(first, last, link=None):

            def fault(handler):
                body = json.dumps(entries[first:last]).encode()
                handler.send_response(200)
                if link:
                    handler.send_header("Link", link)
                handler.send_header("Content-Length", str(len(body)))
                handler.end_headers()
                handler.wfile.write(body)
                return True

            return fault

        link = f'<https://huggingface.co{listing}?recursive=true&cursor=Q%3D%3D>; rel="next"'
        server.faults[listing] = [page(0, 1, link), page(1, 3)]
        big("pages", mirror=server.url)
        check_big("pages")
        queries = [entry["query"] for entry in server.requests(listing)]
        assert queries == ["recursive=true", "recursive=true&cursor=Q%3D%3D"], queries
    mirror = own_mirror("lists")
    data = read(in_mirror(mirror, "finewebedu_train_000001.bin"))
    git = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    publish(mirror, "finewebedu_train_000001.bin", data, lfs=None, oid=git)
    big("git", mirror=mirror)
    check_big("git")
    publish(mirror, "finewebedu_train_000001.bin", data, lfs=None, oid="1" * 40)
    big("git_wrong", mirror=mirror, run=refused, says=[f"checksum {git}, published is {'1' * 40}"])
    publish(mirror, "finewebedu_train_000001.bin", data, lfs={"size": len(data)})
    big("unverified", mirror=mirror, run=refused,
        says=["no size and checksum for finewebedu_train_000001.bin", "nothing unverified is fetched"])
    assert not os.path.exists(in_work("unverified", "edu_fineweb_train_000001.bin"))
    publish(mirror, "finewebedu_train_000001.bin", b"no shard at all")
    big("no_shard", mirror=mirror, run=refused, says=["edu_fineweb_train_000001.bin: is not a shard of GPT-2 tokens"])
    write(tree(mirror), b"<html>Sign in</html>")
    big("no_list", mirror=mirror, run=refused, says=["tree/main: is not the Hub's list of files"])
    write(tree(mirror), b"[]")
    big("no_list", mirror=mirror, run=refused, says=[f"{BIG}: no shards finewebedu_val_*.bin"])


def test_mirror_sums():
    """Without SHA256SUMS the published checksums hold on a mirror, too; a list that is none is refused."""
    mirror = own_mirror("sums")
    write(os.path.join(mirror, "SHA256SUMS"), b"no sums\n")
    refused("vocab.py", "--out", in_work("sums_out"), mirror=mirror,
            says=["SHA256SUMS: line 1: expected 64 hexadecimal"])
    os.remove(os.path.join(mirror, "SHA256SUMS"))
    with Server(mirror) as server:
        for url in (mirror, server.url):
            refused("vocab.py", "--out", in_work("sums_out"), mirror=url,
                    says=["vocab.bpe: has 257540 bytes, 456318 are published"])
    path = os.path.join(mirror, "gpt-2", "encodings", "main", "vocab.bpe")
    write(path, read(path) + b"!" * (456318 - 257540))
    refused("vocab.py", "--out", in_work("sums_out"), mirror=mirror,
            says=["published is 1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"])
    assert not os.path.exists(in_work("sums_out", "vocab.bpe"))


# ---- The disk, the folder, the options, the screen ----


def test_disk():
    """Too little space is said before anything is fetched; a disk that fills up later leaves what came in."""
    mirror = own_mirror("huge")
    entries = json.loads(read(tree(mirror)))
    for entry in entries:
        entry["lfs"]["size"] = 10**17
    write(tree(mirror), json.dumps(entries).encode())
    big("huge_out", mirror=mirror, run=refused,
        says=["huge_out: 200 PB are to be written, but ", " are free; ", "--limit"])
    assert sorted(os.listdir(in_work("huge_out"))) == [".fetched.json", ".lock"]
    _, err = finish(big("limited", run=start, preexec_fn=limit_files(3000000)), 1)
    assert re.fullmatch(r"fineweb.py: [^\n]*File too large[^\n]*\n", err), err
    assert [name for name in os.listdir(in_work("limited")) if name.endswith(".bin")] == []
    with Server(MIRROR) as server:
        val = BIG_SHARD.replace("train_000001", "val_000000")
        big("limited", mirror=server.url)
        check_big("limited")
        assert server.requests(val)[0]["range"] == "bytes=3000000-", server.requests(val)


def test_full_disk():
    with small_disk("200k") as disk:
        refused("hellaswag.py", "--out", os.path.join(disk, "out"), notes=["not the published"],
                says=[" are free; free some space, or choose another disk with --out"])


def test_folders():
    blocked = in_work("a_file")
    write(blocked, b"")
    refused("fineweb.py", "--out", blocked, says=["a_file: is a file, expected a folder"])
    refused("fineweb.py", "--out", os.path.join(blocked, "x"), says=["a_file", "file is in the way"])
    os.makedirs(in_work("taken", "edu_fineweb_val_000000.bin"))
    big("taken", run=refused, says=["taken/edu_fineweb_val_000000.bin: is a folder, a file is to be written"])
    read_only = in_work("read_only")
    os.makedirs(read_only, 0o555)
    if os.geteuid() == 0:  # who may write everywhere: as somebody who may not
        os.chmod(WORK, 0o755)
        nobody = lambda: os.setuid(65534)
        try:
            _, err = finish(start("fineweb.py", "--out", read_only, preexec_fn=nobody), 1)
        except PermissionError:
            pytest.skip("nobody but root can run this Python")
    else:
        _, err = finish(start("fineweb.py", "--out", read_only), 1)
    assert re.fullmatch(r"fineweb.py: [^\n]*read_only/.lock: Permission denied; check its [^\n]*\n", err), err


def test_options():
    programs = ["fineweb.py", "hellaswag.py", "mmlu.py", "tinyshakespeare.py", "tinystories.py", "vocab.py"]
    for program in programs:
        out, err = ran(program, "--help", mirror=None)
        assert "--mirror" in out and "--verify" in out and f"python3 dev/data/{program}" in out and err == "", out
        assert max(map(len, out.splitlines())) <= 120, out
    cases = [(["--limt", "3"], "'--limt': unknown option; the nearest is --limit (--help lists all)"),
             (["more"], "'more': unexpected"), (["--limit", "0"], "argument --limit: got '0', expected a whole number"),
             (["--jobs", "1e1"], "argument --jobs: got '1e1'"), (["-t", "news"], "argument -t/--type: invalid choice"),
             (["-v", "1B"], "argument -v/--version"), (["-m", "llama-3"], "argument -m/--model_desc"),
             (["--timeout", "nan"], "argument --timeout: got 'nan', expected seconds"),
             (["--mirror", "ftp://x"], "argument --mirror: got 'ftp://x', expected http://host/..."),
             (["--mirror", "/a b"], "for a folder: file:///a%20b"), (["--mirror", "http://"], "got 'http://', exp"),
             (["--out", ""], "--out: is empty"), (["--shard_size", "5000"], "--shard_size 5000: the published shards "),
             (["--threads", "3"], "--threads: only --source parquet needs it"),
             (["--keep-downloads"], "--keep-downloads: only --source parquet needs it")]
    for arguments, message in cases:
        refused("fineweb.py", *arguments, says=[message], mirror=None)
    refused("hellaswag.py", "--vocab", "none.bpe", "--out", in_work("no_vocab"),
            says=["none.bpe: no such file; --vocab"], notes=["not the published"])
    environment = dict(ENVIRONMENT, TOKENIZE=in_work("no_program"))
    refused("hellaswag.py", "--out", in_work("no_vocab"), says=["no_program: no such file; TOKENIZE"], env=environment,
            notes=["not the published"] * 2)
    environment.pop("TOKENIZE")
    refused("hellaswag.py", "--out", in_work("no_vocab"), says=["make tokenize failed: "], env=environment,
            notes=["not the published"] * 2 + ["building tokenize"])


def test_screen():
    """A terminal shows a bar, which is taken away at the end."""
    with Server(MIRROR) as server:
        released = threading.Event()
        server.faults[BIG_SHARD] = [server.stall(2 * BLOCK, threading.Event(), released)]
        words = command("fineweb.py", "-t", "edu", "--limit", 1, *FAST, "--out", in_work("screen"), mirror=server.url)
        with Terminal(words, cwd=WORK, env=dict(ENVIRONMENT, COLUMNS="80")) as terminal:
            terminal.until(r" \| 1 of 2: edu_fineweb")
            released.set()
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
