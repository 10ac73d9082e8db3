"""The programs of dev/data as their users meet them, against small mirrors: over file:// and over a local server that
breaks off, stalls, answers 500 or 429, knows no ranges or serves another file. What they write is compared byte by
byte with what ./tokenize makes of the same texts. Needs it (make tokenize). test_tokenizer.c shows that its tokens are
right, and test_guard.py how all programs of dev/ print, and open and write files.
"""
import array
import compileall
import contextlib
import csv
import gzip
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
import types
import urllib.parse
import urllib.request

import pytest

from cli import shard_bytes as shard
from formats import read_tokens, tokenizer_hash
from tools import ROOT, SHARED, WORK, Terminal, limit_files, limit_memory, read, run_closed, wait_until, write
from tools import path as in_work

pytestmark = pytest.mark.long
TOKENIZE = os.path.abspath(os.environ.get("TOKENIZE", os.path.join(ROOT, "tokenize")))
MIRROR = in_work("mirror")
REPOSITORY = in_work("repository")  # holds a copy of dev/data: its root is written to
PROGRAMS = os.path.join(REPOSITORY, "dev", "data")
ENVIRONMENT = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
ENVIRONMENT.update(TOKENIZE=TOKENIZE, OMP_WAIT_POLICY="passive", OMP_NUM_THREADS="1", TERM="dumb", LC_ALL="C.UTF-8",
                   PYTHONDONTWRITEBYTECODE="")  # a copy may keep what Python compiles
BIG = "kjj0/finewebedu10B-gpt2"  # the set whose shards are large here: a fetch takes several blocks of 1 MiB
SHARD, VAL_SHARD = "finewebedu_train_000001.bin", "finewebedu_val_000000.bin"  # shards of it
OURS, OUR_VAL = "edu_fineweb_train_000001.bin", "edu_fineweb_val_000000.bin"  # their names here
BIG_FOLDER, BIG_LIST = f"/datasets/{BIG}/resolve/main/", f"/api/datasets/{BIG}/tree/main"
BIG_SHARD, BIG_BYTES = BIG_FOLDER + SHARD, 5001024
VOCAB, MMLU = "/gpt-2/encodings/main/vocab.bpe", "/~hendrycks/data.tar"
HELLASWAG = "/rowanz/hellaswag/master/data/hellaswag_val.jsonl"
SHAKESPEARE = "/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
STORIES = "/datasets/roneneldan/TinyStories/resolve/main/TinyStories_all_data.tar.gz"
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
    names = VAL_SHARD, SHARD, SHARD.replace("1", "2")
    shards = [shard([(number * 7 + i * i) % 50000 for i in range(5000)] * 500) for number in range(3)]
    load("make_mirror").Mirror(MIRROR).hub(BIG, dict(zip(names, shards)))
    assert len(shards[1]) == BIG_BYTES
    ran("vocab.py", "--merges", MIRROR + VOCAB, "--out", in_work("of_the_mirror"))


def load(name):
    """A module of dev/data."""
    sys.dont_write_bytecode = True
    before = sys.path[:]
    sys.path.insert(0, PROGRAMS)
    module = importlib.import_module(name)
    sys.path[:] = before
    return module


def published(path):
    """The bytes of a file by its path in the mirror."""
    return read(MIRROR + path)


def fill(mirror, files):
    """Makes a mirror of these files and the vocabulary, with the Hub's lists of the data sets among them and
    SHA256SUMS, unless they are among the files, too. None: without this file."""
    made, sets = load("make_mirror").Mirror(mirror), {}
    for path, data in {VOCAB: published(VOCAB), **files}.items():
        found = re.fullmatch("/datasets/(.*)/resolve/main/(.*)", path)
        if found:
            sets.setdefault(found[1], {})[found[2]] = data
        elif data is not None:
            made.plain("//host" + path, data)
    made.finish()
    for repository, content in sets.items():
        made.hub(repository, content)
    for path, data in files.items():
        if data is None:
            os.remove(mirror + path)
        else:
            write(mirror + path, data)


def overwrite(path, data, at=0, unnoticed=False):
    """Changes bytes of a file. unnoticed: its time stays."""
    status = os.stat(path)
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(data)
    if unnoticed:
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        parts, server = urllib.parse.urlsplit(self.path), self.server
        path = urllib.parse.unquote(parts.path)
        self.entry = {"path": path, "query": parts.query, "sent": 0, "time": time.monotonic(),
                      "range": self.headers.get("Range")}
        server.log.append(self.entry)
        faults = server.faults.get(path)
        if faults and not faults.pop(0)(self):
            self.close_connection = True
        elif os.path.isfile(server.mirror + path):
            self.answer()
        else:
            self.send_error(404)

    def answer(self, most=None):
        """Sends a file, or the part asked for; of the body only `most` bytes."""
        data, wanted = read(self.server.mirror + self.entry["path"]), self.entry["range"]
        code, begin, headers = 200, 0, {}
        if wanted and self.server.ranges:
            code, begin = 206, int(re.fullmatch(r"bytes=(\d+)-", wanted).group(1))
            headers["Content-Range"] = f"bytes {begin}-{len(data) - 1}/{len(data)}"
        self.send(code, {**headers, "Content-Length": len(data) - begin}, data[begin:][:most])

    def send(self, code, headers, *pieces):
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        with contextlib.suppress(ConnectionError):
            for piece in pieces:
                self.wfile.write(piece)
                self.entry["sent"] += len(piece)
            self.wfile.flush()

    def log_message(self, *_):
        pass


def status(code, body=b"", **headers):
    """A fault: answers so."""
    return lambda handler: handler.send(code, {**headers, "Content_Length": len(body)}, body)


def drop(most):
    """A fault: breaks off after so many bytes of the body."""
    return lambda handler: handler.answer(most)


def endless(code=200, **headers):
    """A fault: sends zeros without a word of how many, until the other side has enough, or ENDLESS of them."""
    return lambda handler: handler.send(code, headers, *[bytes(BLOCK)] * (ENDLESS // BLOCK))


class Server(http.server.ThreadingHTTPServer):
    """Serves a mirror over HTTP on a port of its own. faults: path -> what the next requests for it meet, in order; a
    fault is a function of the handler that answers instead, or returns True."""
    daemon_threads = True

    def __init__(self, mirror):
        super().__init__(("127.0.0.1", 0), Handler)
        self.mirror, self.faults, self.log, self.ranges = mirror, {}, [], True
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def __exit__(self, *_):
        self.shutdown()
        super().__exit__()

    def handle_error(self, *_):
        """Who asked has gone."""

    def requests(self, path=BIG_SHARD):
        return [entry for entry in self.log if entry["path"] == path]

    def asked(self):
        """The range and the bytes sent of each request for the big shard since the last call."""
        found = [(entry["range"], entry["sent"]) for entry in self.requests()]
        self.log.clear()
        return found

    @contextlib.contextmanager
    def stalled(self, most):
        """The next request for the big shard gets so many bytes, and nothing more until the block ends. Gives an event
        that says that they are sent."""
        reached, released = threading.Event(), threading.Event()

        def fault(handler):
            handler.answer(most)
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
NOTES = re.compile("not the published file|is not GPT-2's|trying again|fetched again|^building")


def command(program, *arguments, mirror=MIRROR):
    """mirror: a folder, a server, or None."""
    source = ["--mirror", getattr(mirror, "url", f"file://{mirror}")] if mirror else []
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


def refused(program, *arguments, says, **keywords):
    """A run that must end with status 1; its last line holds each text of `says`, those before it are notes. Returns
    these."""
    *notes, last = finish(start(program, *arguments, **keywords), 1)[1].splitlines()
    assert last.startswith(f"{program}: ") and all(text in last for text in says), (says, last)
    assert all(map(NOTES.search, notes)), notes
    return notes


def big(folder, *arguments, run=ran, mirror=MIRROR, **keywords):
    """Fetches the big set: validation and one shard for training. After a run that succeeds they are there, whole."""
    result = run("fineweb.py", "-t", "edu", "--limit", 1, "--jobs", 1, *FAST, "--out", in_work(folder), *arguments,
                 mirror=mirror, **keywords)
    if run is ran:
        assert visible(in_work(folder)) == [OURS, OUR_VAL]
        for name, theirs in ((OURS, SHARD), (OUR_VAL, VAL_SHARD)):
            assert read(in_work(folder, name)) == read(getattr(mirror, "mirror", mirror) + BIG_FOLDER + theirs), name
    return result


def visible(folder):
    return sorted(name for name in os.listdir(folder) if not name.startswith("."))


def part(folder):
    return in_work(folder, OURS + ".part")


# ---- What must come out ----


def tokenized(lines, *options):
    """Runs ./tokenize on these JSON lines."""
    command = [TOKENIZE, "--tokenizer", in_work("of_the_mirror", "gpt2_tokenizer.bin"), *options, "--output",
               in_work("expected"), "--overwrite", "-"]
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


# ---- Every program ----


def test_vocab():
    folder, says = in_work("vocabulary"), "vocabulary/gpt2_tokenizer.bin: 50257 tokens\n"
    out, err = ran("vocab.py", "--out", folder)
    assert out == "vocabulary/vocab.bpe: fetched, verified\n" + says, out
    assert err == "vocab.bpe: by the mirror's SHA256SUMS this is not the published file, but another\n", err
    assert read(os.path.join(folder, "vocab.bpe")) == published(VOCAB)
    tokenizer = read(os.path.join(folder, "gpt2_tokenizer.bin"))
    assert ran("vocab.py", "--out", folder)[0] == "vocabulary/vocab.bpe: already there, verified\n" + says
    assert tokenizer == read(in_work("of_the_mirror", "gpt2_tokenizer.bin"))
    symbols = "\u0120 a\n"
    for merges, says in ((symbols + "x", "line 2: ends in mid-line"), ("ab c\n", "line 1: a symbol is neither"),
                         (symbols * 2, "line 2: makes a token that is there"), ("a\n", "line 1: expected two symbols"),
                         ("#version: 0.2\n", "has 0 merges")):
        assert ["bad.bpe: is not GPT-2's vocab.bpe (checksum)"] == refused(
            "vocab.py", "--out", folder, "--merges", write(in_work("bad.bpe"), merges.encode()),
            says=["bad.bpe: " + says])
    assert read(os.path.join(folder, "gpt2_tokenizer.bin")) == tokenizer
    root = write(in_work("repository", "gpt2_tokenizer.bin"), tokenizer)
    refused("hellaswag.py", "--out", in_work("wrong_vocab"),
            says=["repository/gpt2_tokenizer.bin: is not GPT-2's (checksum)", "--vocab"])
    os.remove(root)


def test_fineweb():
    """Names and contents of all four sets."""
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
            assert read(in_work(folder, name)) == published(f"/datasets/{repository}/resolve/main/{name}"), name
    big("edu")
    out = ran("fineweb.py", "-t", "edu", "--out", in_work("edu"))[0]  # without the limit: what is there stays
    assert "edu: 3 shards, 1 fetched now; " in out, out
    refused("fineweb.py", "-t", "classic", "--out", in_work("edu"),
            says=["edu: holds files of another kind (repository kjj0/finewebedu10B-gpt2, now kjj0/fineweb10B-gpt2)"])


def made(name):
    """A shard of tokenize without the hash of its tokenizer."""
    data = read(name)
    assert tokenizer_hash(data) != 0
    return data[:1016] + bytes(8) + data[1024:]


def test_tinyshakespeare():
    folder = in_work("shakespeare")
    out, err = ran("tinyshakespeare.py", "--out", folder)
    text = published(SHAKESPEARE).decode()
    assert any(ord(character) > 127 for character in text)
    pieces = text.split("\n\n")
    tokens = encoded([piece + "\n\n" for piece in pieces[:-1]] + [pieces[-1]])
    names = [os.path.join(folder, f"tiny_shakespeare_{kind}.bin") for kind in ("train", "val")]
    assert [made(name) for name in names] == [shard(tokens[32768:]), shard(tokens[:32768])]
    assert out == (f"shakespeare/tiny_shakespeare_train.bin: {len(tokens) - 32768} tokens\n"
                   "shakespeare/tiny_shakespeare_val.bin: 32768 tokens\n"), out
    assert len(err.splitlines()) == 2, err  # the mirror's text and vocabulary are not the published ones
    before = os.stat(names[0])
    assert ran("tinyshakespeare.py", "--out", folder, "--verify")[0].count(", already there\n") == 2
    assert os.stat(names[0]).st_mtime_ns == before.st_mtime_ns
    overwrite(names[0], b"x", unnoticed=True)
    assert "already there" not in ran("tinyshakespeare.py", "--out", folder, "--verify")[0]
    assert made(names[0]) == shard(tokens[32768:])
    fill(in_work("shorter"), {SHAKESPEARE: "\n\n".join(pieces[:-1]).encode()})  # another text
    ran("tinyshakespeare.py", "--out", folder, mirror=in_work("shorter"))
    assert made(names[0]) == shard(encoded([piece + "\n\n" for piece in pieces[:-2]] + [pieces[-2]])[32768:])
    assert visible(folder) == ["gpt2_tokenizer.bin", "tiny_shakespeare.txt", "tiny_shakespeare_train.bin",
                               "tiny_shakespeare_val.bin", "vocab.bpe"]


def test_real_shakespeare():
    """The published text with GPT-2's vocabulary, through a mirror of nothing but the two files: pins hold."""
    if not os.path.exists(os.path.join(SHARED, "tinyshakespeare.txt")):
        pytest.skip("../shared/data is not here")
    mirror = in_work("real")
    for name, path in (("tinyshakespeare.txt", SHAKESPEARE), ("vocab.bpe", VOCAB)):
        write(mirror + path, read(os.path.join(SHARED, name)))
    out, err = ran("tinyshakespeare.py", "--out", in_work("real_out"), mirror=mirror)
    assert out == ("real_out/tiny_shakespeare_train.bin: 305260 tokens\n"
                   "real_out/tiny_shakespeare_val.bin: 32768 tokens\n"), out
    assert err == "made repository/gpt2_tokenizer.bin\n", err
    for name in ("vocab.bpe", "gpt2_tokenizer.bin", ".lock", ".fetched.json"):
        os.remove(in_work("repository", name))


def hellaswag_questions():
    for line in published(HELLASWAG).splitlines():
        question = json.loads(line)
        yield question["ctx"], [" " + ending for ending in question["endings"]], question["label"]


def mmlu_questions():
    with tarfile.open(MIRROR + MMLU) as tar:
        for name in sorted(name for name in tar.getnames() if "/test/" in name):
            for row in csv.reader(io.StringIO(tar.extractfile(name).read().decode(), newline="")):
                yield f"Question: {row[0]}\n\nAnswer:", [" " + answer for answer in row[1:5]], "ABCD".index(row[5])


@pytest.mark.parametrize("name, asked, says", (
    ("hellaswag", hellaswag_questions, "30 questions, the longest \\d+ bytes"),
    ("mmlu", mmlu_questions, "60 questions, the longest \\d+ bytes, 2 subjects")))
def test_questions(name, asked, says):
    questions, words = list(asked()), (f"{name}.py", "--out", in_work(name))
    assert name != "mmlu" or '"Which" word follows,\n' in questions[0][0]
    assert re.fullmatch(f"{name}/{name}_val.bin: {says}\n", ran(*words)[0])
    assert read(in_work(name, f"{name}_val.bin")) == eval_file(questions)
    assert ran(*words, "--verify")[0] == f"{name}/{name}_val.bin: already there\n"


def test_tinystories():
    """The archive holds its files out of order."""
    files = {}
    with tarfile.open(fileobj=io.BytesIO(published(STORIES))) as tar:
        for name in tar.getnames():
            files[name] = encoded([story["story"].strip().replace("\ud83d", "\ufffd")
                                   for story in json.load(tar.extractfile(name))])
    assert list(files) == ["data01.json", "data00.json", "data02.json"]
    folder = in_work("stories")
    ran("tinystories.py", "--out", folder)
    assert made(os.path.join(folder, "TinyStories_val.bin")) == shard(files["data00.json"])
    assert made(os.path.join(folder, "TinyStories_train.bin")) == shard(files["data01.json"] + files["data02.json"])
    assert ran("tinystories.py", "--out", folder)[0].count("already there") == 2
    assert sorted(os.listdir(folder)) == [".fetched.json", ".lock", *visible(folder)] and len(visible(folder)) == 4


def parquet_documents():
    import pyarrow.parquet
    folder = os.path.join(MIRROR, "datasets/HuggingFaceFW/fineweb-edu/resolve/main/sample/10BT")
    tables = [pyarrow.parquet.read_table(os.path.join(folder, f"00{i}_00000.parquet")) for i in range(3)]
    return [text for table in tables for text in table.column("text").to_pylist()]


def test_parquet():
    """Shards from parquet: exact, and the same again when one is damaged."""
    arguments, size = ["fineweb.py", "-t", "edu", "--source", "parquet", "--out", in_work("parquet"), "-s"], 9000
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        refused(*arguments, size, says=["pyarrow", "not installed", "pip install pyarrow", "--source shards"])
        pytest.skip("pyarrow is not installed")
    tokens = encoded(parquet_documents())
    pieces = [tokens[i:i + size] for i in range(0, len(tokens), size)]
    names = [f"edu_fineweb_{'train' if i else 'val'}_{i:06d}.bin" for i in range(len(pieces))]

    def make(*more):
        out, err = ran(*arguments, size, *more)
        assert visible(in_work("parquet")) == sorted([*names, "gpt2_tokenizer.bin", "vocab.bpe"])
        assert [read(in_work("parquet", name)) for name in names] == list(map(shard, pieces))
        assert f"training {len(tokens) - size} tokens, validation {size}\n" in out, out
        return "already there" in out, err

    assert not make()[0] and make("--verify")[0]
    os.remove(in_work("parquet", names[-2]))
    assert not make()[0]
    overwrite(in_work("parquet", names[1]), b"xy", 2000, unnoticed=True)
    assert f"{names[1]}: has changed since it was made" in make("--verify")[1]
    refused(*arguments, size + 1, says=["another kind (shard_size 9000, now 9001)"])
    tokens = encoded(parquet_documents()[:len(parquet_documents()) // 3])  # of the first of three equal files
    out = ran(*arguments, size, "--limit", 1, "--out", in_work("first"))[0]
    assert f"training {len(tokens) - size} tokens, validation {size}\n" in out, out
    refused(*arguments, size, "--limit", 2, "--out", in_work("first"), says=["another kind (limit 1, now 2)"])
    bad, files = in_work("bad_parquet"), {"sample/10BT/000_00000.parquet": b"PAR1 no parquet"}
    fill(bad, {})
    load("make_mirror").Mirror(bad).hub("HuggingFaceFW/fineweb-edu", files, "sample/10BT")
    refused(*arguments, size, "--out", in_work("bad_out"), mirror=bad, says=["000_00000.parquet: "])


# ---- Faults of mirrors and servers ----


def test_skips_what_is_there(server):
    """A second run fetches only the list; what has changed is found, with --verify whatever its time says."""
    big("again", mirror=server)
    path, record = in_work("again", OURS), in_work("again", ".fetched.json")
    differs = f"{OURS}: its checksum is not the published one; it is fetched again\n"
    for change, arguments, says in (
            (lambda: None, (), ""),
            (lambda: overwrite(path, b"??", BLOCK), (), differs),
            (lambda: overwrite(path, b"??", BLOCK, unnoticed=True), ("--verify",), differs),
            (lambda: os.truncate(path, 5000), (), f"{OURS}: 5000 bytes here, published are {BIG_BYTES}; it is fetched "
             "again\n"),
            (lambda: os.remove(record), (), ""),  # files that somebody put there: read once, not fetched
            (lambda: (os.remove(record), overwrite(path, b"??", BLOCK)), (), differs)):
        change()
        server.log.clear()
        out, err = big("again", *arguments, mirror=server)
        assert err == says and f"2 shards, {1 if says else 0} fetched now" in out, (out, err)
        assert [entry["path"] for entry in server.log] == [BIG_LIST] + [BIG_SHARD] * (says != ""), server.log
    overwrite(path, b"??", BLOCK, unnoticed=True)  # a file that matches its record is not read again
    assert " 0 fetched now" in finish(big("again", mirror=server, run=start))[0]


def test_transient_failures(server):
    """What may pass is tried again, and nothing else. What a server says reaches no terminal as it is."""
    server.faults[BIG_SHARD] = [lambda handler: handler.wfile.write(b"HTTP/1.1 500 \x1b[2J\x9b2J\r\n\r\n") == 0,
                                status(503), status(429, Retry_After="1")]
    _, err = big("transient", mirror=server)
    times = [entry["time"] for entry in server.requests()]
    assert len(times) == 4 and times[3] - times[2] >= 1.0, times
    lines = err.splitlines()
    assert len(lines) == 3 and all(line.startswith(f"{OURS}: 127.0.0.1:") for line in lines)
    assert "answers 500 \\x1b[2J\\u009b2J; trying again in a moment (1 of 6)" in lines[0], err
    assert "answers 429 Too Many Requests; trying again in 1s (3 of 6)" in lines[2], err
    for faults, says in (
            ([status(502)] * 10, ["answers 502 Bad Gateway; gave up after 3 attempts", "same command goes on"]),
            ([status(429, Retry_After="7200")], ["asks to wait 2h 00m (429)"]),
            ([status(403)], ["refused (403)"]),
            ([status(404)], [f"{SHARD}: not found (404)"]),
            ([status(302, Location="ftp://127.0.0.1/a")], ["sends on to ftp://127.0.0.1/a"]),
            ([status(200, b"short")], [f"{SHARD}: has 5 bytes, {BIG_BYTES} are published"]),
            ([status(200, bytes(BIG_BYTES))], [f"{SHARD}: checksum ", ", published is "])):
        server.faults, server.log[:] = {BIG_SHARD: list(faults)}, []
        notes = big("gave_up", "--retries", 2, mirror=server, run=refused, says=says)
        assert len(server.requests()) == 1 + len(notes) == min(3, len(faults))
        assert not [name for name in os.listdir(in_work("gave_up")) if "train" in name]
    server.faults = {BIG_LIST: [status(500), status(429, Retry_After="0")]}
    assert len(big("gave_up", mirror=server)[1].splitlines()) == 2
    with Server(MIRROR) as gone:
        pass
    big("gave_up_too", "--retries", 0, mirror=gone, run=refused,
        says=["Connection refused; gave up after 1 attempt;"])


def test_broken_connection_resumes(server):
    """Only what is missing is sent again, in one run and in the next."""
    server.faults[BIG_SHARD] = [drop(3000000), drop(1000000)]
    _, err = big("dropped", mirror=server)
    assert server.asked() == [(None, 3000000), ("bytes=3000000-", 1000000), ("bytes=4000000-", BIG_BYTES - 4000000)]
    assert "broke off after 3.0 MB of 5.0 MB; trying again" in err, err
    # Progress is no failure: with two attempts allowed, four breaks in a row are survived.
    server.faults[BIG_SHARD] = [drop(1000000) for _ in range(4)]
    big("dropped_often", "--retries", 1, mirror=server)


REST, ALL = ("bytes=3000000-", BIG_BYTES - 3000000), (None, BIG_BYTES)  # what is asked for and sent
IGNORED = ("bytes=3000000-", BIG_BYTES)


def change_list(server, folder):
    tokens = array.array("H", range(50000)).tobytes() * 50
    server.mirror = in_work(folder + "_mirror")
    fill(server.mirror, {BIG_SHARD: struct.pack("<256i", 20240520, 1, 2500000, *[0] * 253) + tokens,
                         BIG_FOLDER + VAL_SHARD: published(BIG_FOLDER + VAL_SHARD)})


@pytest.mark.parametrize("change, wanted, says", (
    (lambda server, folder: None, [REST], ""),  # the same bytes
    (lambda server, folder: setattr(server, "ranges", False), [IGNORED], ""),  # a server that knows no ranges sends all
    (change_list, [ALL], ""),  # another file by the list
    (lambda server, folder: overwrite(part(folder), b"damaged"), [REST, ALL], "the parts do not fit together"),
    (lambda server, folder: os.remove(part(folder) + ".json"), [ALL], ""),  # a part without a word of whose it is
    (lambda server, folder: os.truncate(part(folder), BIG_BYTES + 1), [ALL], ""),
    (lambda server, folder: write(part(folder), published(BIG_SHARD)), [], "")),  # all: only the check is left
    ids=["same", "no_ranges", "list", "bytes", "no_name", "long", "whole"])
def test_broken_fetch_goes_on(server, request, change, wanted, says):
    """The part of an earlier run is continued if it is of the same file, whether the list or only the bytes tell."""
    folder = request.node.callspec.id + "_part"
    server.faults[BIG_SHARD] = [drop(3000000)]
    big(folder, "--retries", 0, mirror=server, run=refused, says=["broke off", "goes on"])
    assert os.path.getsize(part(folder)) == 3000000
    server.log.clear()
    change(server, folder)
    _, err = big(folder, mirror=server)
    assert server.asked() == wanted and says in err, err


def test_signals(server):
    said = "fineweb.py: stopped by {}: 1 of 2 files complete, parts of others stay; the same command goes on\n"
    for number, status, message in ((signal.SIGINT, 130, said.format("Ctrl-C")),
                                    (signal.SIGTERM, 143, said.format("SIGTERM")), (signal.SIGKILL, -9, "")):
        folder = f"stopped_{status}"
        server.log.clear()
        with server.stalled(3 * BLOCK + 77) as reached:
            process = big(folder, mirror=server, run=start)
            assert reached.wait(120)
            wait_until(lambda: os.path.exists(part(folder)) and os.path.getsize(part(folder)) >= 3 * BLOCK, process)
            process.send_signal(number)
            assert finish(process, status)[1] == message
        assert os.path.getsize(part(folder)) == 3 * BLOCK and os.path.exists(part(folder) + ".json")
        assert not os.path.exists(in_work(folder, OURS))
        big(folder, mirror=server)
        assert server.asked()[1:] == [(f"bytes={3 * BLOCK}-", BIG_BYTES - 3 * BLOCK)]


def test_stopped_while_encoding():
    """A signal also ends the tokenize that is fed, and leaves no unfinished file."""
    started = in_work("encoding")
    wrapper = write("endless_tokenize", f'#!/bin/sh\nread line; echo $$ >"{started}.new"; mv "{started}.new" '
                    f'"{started}"; exec sleep 300\n', 0o755)
    process = start("hellaswag.py", "--out", in_work("encoding_out"), env=dict(ENVIRONMENT, TOKENIZE=wrapper))
    wait_until(lambda: os.path.exists(started), process)
    process.terminate()
    _, err = finish(process, 143)
    assert err.splitlines()[-1] == "hellaswag.py: stopped by SIGTERM; the same command goes on", err
    with pytest.raises(ProcessLookupError):
        os.kill(int(read(started)), 0)
    assert visible(in_work("encoding_out")) == ["gpt2_tokenizer.bin", "hellaswag_val.jsonl", "vocab.bpe"]


def test_two_at_once(server):
    """The second program that writes a folder is refused, and the first goes on undisturbed; others run beside it."""
    with server.stalled(3 * BLOCK) as reached:
        first = big("twice", mirror=server, run=start)
        assert reached.wait(120)
        big("twice", mirror=server, run=refused, says=["twice: another program writes here now", "--out"])
        big("beside", mirror=server)
    finish(first)
    assert "0 fetched now" in big("twice")[0]
    assert os.stat(in_work("twice", ".lock")).st_mode & 0o777 == 0o600


def test_several_files_at_once(server):
    """Two requests are under way at the same moment: each waits for the other."""
    barrier = threading.Barrier(2, timeout=120)
    for name in ("train_000001", "train_000002"):
        server.faults[BIG_SHARD.replace("train_000001", name)] = [lambda _: barrier.wait() >= 0]
    assert ran("fineweb.py", "-t", "edu", "--jobs", 3, "--out", in_work("parallel"), mirror=server)[1] == ""


def test_silent_server(server):
    with server.stalled(2 * BLOCK):
        _, err = big("silent", "--timeout", 1.5, "--retries", 50, mirror=server)
    assert "is silent; trying again" in err, err
    assert server.requests()[-1]["range"], server.requests()


def test_more_than_is_published(server):
    """What goes on behind the published size, or behind the bound where none is published, is not taken; what was
    taken of it is removed."""
    for path, program, says in (
            (BIG_SHARD, lambda **more: big("longer", **more), f"is longer than {BIG_BYTES} bytes, the published size"),
            (VOCAB, lambda run, **more: run("vocab.py", "--out", in_work("longer_vocab"), **more),
             f"is longer than {4 * 456318 + BLOCK} bytes, the most that is taken")):
        server.faults[path] = [endless()]
        program(run=refused, mirror=server, says=[says, "what was fetched is removed"])
        assert server.requests(path)[-1]["sent"] < ENDLESS, path
    left = [name for folder in ("longer", "longer_vocab") for name in os.listdir(in_work(folder))]
    assert not [name for name in left if ".part" in name or "train" in name], left


def test_redirects(server):
    """The Hub sends large files from other hosts, but not away from https. The body of a redirect is of no interest."""
    with Server(MIRROR) as elsewhere:
        moved = elsewhere.url.replace("127.0.0.1", "localhost") + BIG_SHARD
        server.faults[BIG_SHARD] = [drop(3000000), endless(302, Location=moved)]
        big("redirected", mirror=server)
        assert elsewhere.asked() == [REST] and server.requests()[-1]["sent"] < ENDLESS, server.log
    for url in ("http://huggingface.co/b", "ftp://huggingface.co/b"):
        with pytest.raises(Exception, match=f"sends on to {url}, which is not https"):
            load("download").Redirect().redirect_request(urllib.request.Request("https://huggingface.co/a"), None, 302,
                                                         "Found", {}, url)


def test_lists_of_several_pages(server, monkeypatch):
    """All pages of a list of files are taken, but not without end."""
    entries = json.loads(read(MIRROR + BIG_LIST))
    link = f'<https://huggingface.co{BIG_LIST}?recursive=true&cursor=Q%3D%3D>; rel="next"'
    pages = [status(200, json.dumps(page).encode(), Link=link) for page in (entries[:1], [])]
    server.faults[BIG_LIST] = [pages[0], status(200, json.dumps(entries[1:3]).encode())]
    big("pages", mirror=server)
    queries = [entry["query"] for entry in server.requests(BIG_LIST)]
    assert queries == ["recursive=true", "recursive=true&cursor=Q%3D%3D"], queries
    download = load("download")
    server.faults[BIG_LIST] = pages[1:] * 40
    monkeypatch.setattr(download, "LIST_PAGES", 30)
    with pytest.raises(Exception, match="has more than 30 pages"):
        download.hub_files(types.SimpleNamespace(mirror=server.url, retries=0, timeout=60.0), BIG)


# ---- What is refused, by file:// ----


def listed(**lfs):
    """The Hub's list of the big set. It says this of the files."""
    return json.dumps([{"type": "file", "path": name, "lfs": {"oid": "1" * 64, "size": 9, **lfs}}
                       for name in (SHARD, VAL_SHARD)]).encode()


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


def stories(text):
    return json.dumps([{"story": text}] * 2).encode()


TEST, DATA = "data/test/a_test.csv", "data00.json"
NO_LIST = "tree/main: is not the Hub's list of files"
LINKS = ((TEST, tarfile.SYMTYPE, "/etc/passwd"), ("data/test/b_test.csv", tarfile.LNKTYPE, "/etc/passwd"),
         ("data/test/c_test.csv", tarfile.FIFOTYPE, ""))
GOOD = b'{"ctx": "a", "endings": ["b", "c", "d", "e"], "label": 0}\n'
# A program, files of a mirror, and their content with what the program says of it.
REFUSED = (
    ("fineweb.py", BIG_LIST, (
        (b"<html>Sign in</html>", NO_LIST), (b"null", NO_LIST), (b"[" * 100000, NO_LIST),
        (b'[{"type": "file", "path": "a"}, 7]', NO_LIST), (b"[]", f"{BIG}: no shards finewebedu_val_*.bin"),
        (listed(oid="1" * 40), f"no size and checksum for {SHARD}"), (listed(size=None), "no size and checksum for "),
        (listed(size=10**17), "200 PB are to be written, but "), (listed(), ".bin: no such file in the mirror"))),
    ("fineweb.py", f"{BIG_SHARD} {BIG_FOLDER}{VAL_SHARD}", (
        (b"x" + shard([1, 2])[1:], f"{OURS}: is not a shard of tokens"),
        (shard([1, 2])[:-2], f"{OURS}: is not a shard of tokens"))),
    ("vocab.py", "/SHA256SUMS", ((b"no sums\n", "SHA256SUMS: line 1: expected 64 hexadecimal"),
                                 (None, "vocab.bpe: has 257540 bytes, 456318 are published"))),
    ("hellaswag.py", HELLASWAG, (
        (GOOD * 2 + b'{"ctx": "a"}\n', "line 3: expected an object with ctx, endings and label"),
        (GOOD * 2 + GOOD.replace(b'"c"', b"1"), "line 3: expected an object"),
        (GOOD * 2 + GOOD.replace(b', "c", "d", "e"', b""), "line 3: JSON line: 1 completions"))),
    ("mmlu.py", MMLU, (
        (tar_of((TEST, tarfile.REGTYPE, 7 << 30)), "data.tar: unpacks to more than 10240 bytes"),
        (tar_of((TEST, tarfile.XHDTYPE, 1 << 30)), "a header says 1073741824 bytes, expected at most 1048576"),
        (tar_of((TEST, tarfile.GNUTYPE_LONGNAME, 1 << 30)), "a header says 1073741824 bytes"),
        (b"<html>" * 2000, "remove the file and run this again"),
        (tar_of(*[(f"{i}", b"") for i in range(10001)]), "unpacks to more than 10000 files"),
        (tar_of(*LINKS), "holds no test/*_test.csv"),
        (tar_of((TEST, b"What?,a,b,c,d,E\n")), "a, row 1: expected a question, four answers and a letter A to D"),
        (tar_of((TEST, b"\xff" * 100)), "invalid start byte; remove the file"))),
    ("tinystories.py", STORIES, (
        (tar_of((DATA, bytes(8 << 20)), mode="w:gz"), "tar.gz: unpacks to more than "),
        (gzip.compress(tar_of((DATA, tarfile.XHDTYPE, 1 << 40)) + bytes(8 << 20)), "a header says 1099511627776 bytes"),
        (tar_of((DATA, os.urandom(200000)), mode="w:gz")[:100000], "remove the file"),
        (tar_of((DATA, stories("a"))), "remove the file"),
        (tar_of((DATA, b"[" * 50000), mode="w:gz"), "is not a list of stories"),
        (tar_of((DATA, b'[{"story": 7}]'), mode="w:gz"), 'expected objects with a text "story"'),
        (tar_of((DATA, stories("a")), mode="w:gz"), "holds 1 files data*.json, expected 50"))),
)
CASES = [(program, files.split(), *row) for program, files, rows in REFUSED for row in rows]


@pytest.mark.parametrize("number", range(len(CASES)))
def test_refused(number):
    """One line, no file of tokens, and no more memory than the file gives reason for."""
    program, files, data, says = CASES[number]
    mirror, out = in_work(f"spoilt_{number}"), in_work(f"refused_{number}")
    fill(mirror, dict.fromkeys(files, data))
    refused(program, "--out", out, *["-t", "edu"] * (program == "fineweb.py"), says=[says], mirror=mirror,
            preexec_fn=limit_memory(1 << 30))
    assert not [name for name in visible(out) if re.search(r"^(hellaswag|mmlu|Tiny).*bin|\.part", name)], visible(out)


# ---- The folder ----


def test_names_in_archives():
    """Names that lead out of the folder choose what is read, never where it is written; links are no stories."""
    mirror, out = in_work("names"), in_work("names_out", "inner")
    fill(mirror, {STORIES: tar_of(("../../data00.json", stories("a")), ("/data01.json", stories("b")),
                                  ("data02.json", tarfile.SYMTYPE, "/etc/passwd"), mode="w:gz")})
    ran("tinystories.py", "--out", out, mirror=mirror)
    assert os.listdir(in_work("names_out")) == ["inner"]
    assert visible(out) == ["TinyStories_train.bin", "TinyStories_val.bin", "gpt2_tokenizer.bin", "vocab.bpe"]
    assert len(read_tokens(os.path.join(out, "TinyStories_train.bin"))) == 4


def test_a_link_in_the_folder():
    """What a link leads to stays as it is."""
    precious = write("outside/precious", b"x")
    os.makedirs(in_work("links"))
    os.symlink(os.path.dirname(precious), in_work("links", ".work"))
    refused("hellaswag.py", "--out", in_work("links"), says=[".work: is a link, expected a folder"])
    assert os.listdir(in_work("outside")) == ["precious"] and "hellaswag_val.bin" not in visible(in_work("links"))


def test_damaged_records():
    """A record that says nothing of use is written anew, and means that nothing is fetched yet."""
    common, path = load("common"), in_work("records")
    for record in ("[]", '{"files": [7], "source": 7}', '{"files": {".lock": 7}}', "[" * 100000):
        write(os.path.join(path, ".fetched.json"), record)
        with common.Folder(path) as folder:
            assert folder.entry(".lock") is None
            folder.set_source({"kind": "a"})
            folder.remember(".lock", "sum")
        with common.Folder(path) as folder:
            assert folder.entry(".lock")["sha256"] == "sum"
            with pytest.raises(common.Problem, match=r"another kind \(kind a, now b\)"):
                folder.set_source({"kind": "b"})


def test_full_disk():
    """A disk that fills up leaves what came in, and the next run goes on behind it."""
    big("limited", run=refused, says=["File too large"], preexec_fn=limit_files(3000000))
    assert visible(in_work("limited")) == ["edu_fineweb_val_000000.bin.part", "edu_fineweb_val_000000.bin.part.json"]
    assert big("limited")[1] == ""


def test_folders():
    blocked = write("a_file", b"")
    refused("fineweb.py", "--out", blocked, says=["a_file: is a file, expected a folder"])
    refused("fineweb.py", "--out", os.path.join(blocked, "x"), says=["a_file", "file is in the way"])
    os.makedirs(in_work("taken", "edu_fineweb_val_000000.bin"))
    big("taken", run=refused, says=["taken/edu_fineweb_val_000000.bin: is a folder, a file is to be written"])


# ---- The options, the screen ----

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
    for environment, says in ((dict(ENVIRONMENT, TOKENIZE=in_work("no_program")), "no_program: no such file; TOKENIZE"),
                              (without, "make tokenize failed: ")):
        refused("hellaswag.py", "--out", in_work("no_tokenize"), says=[says], env=environment)


def test_screen(server):
    """A terminal shows a bar, which is taken away at the end. Without streams a program does its work in silence."""
    with server.stalled(2 * BLOCK):
        words = command("fineweb.py", "-t", "edu", "--limit", 1, *FAST, "--out", in_work("screen"), mirror=server)
        terminal = Terminal(words, cwd=WORK, env=dict(ENVIRONMENT, COLUMNS="80"))
        terminal.until(r" \| 1 of 2: edu_fineweb")
    with terminal:
        seen = terminal.finish()
    bars = [line for line in seen.split("\r") if line.startswith("[")]
    assert bars and all(re.match(r"\[#*-*\] \d+%, [\d.]+ [kM]?B of 10.0 MB, [\d.]+ MB/s", bar) for bar in bars), seen
    assert max(len(bar.replace("\033[K", "")) for bar in bars) < 80
    assert seen.rindex("[" + "#") < seen.rindex("\r\033[K") < seen.rindex("screen: 2 shards, 2 fetched now"), seen
    assert run_closed(*command("vocab.py", "--out", in_work("mute")), env=ENVIRONMENT) == 0
    assert read(in_work("mute", "gpt2_tokenizer.bin"))[:4] == struct.pack("<i", 20240328)
