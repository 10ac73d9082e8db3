"""The programs of dev/data as their users meet them. What they fetch lies in files of the test's folder, where a
stand-in for huggingface_hub takes it from. What they write is compared byte by byte with what ./tokenize makes of the
same texts (make tokenize). test_tokenizer.c shows that its tokens are right.
"""
import csv
import fcntl
import hashlib
import inspect
import io
import json
import os
import signal
import subprocess
import sys
import tarfile

import pytest

from cli import shard_bytes as shard
from cli import tokenizer_bytes
from formats import BYTES, SYMBOLS, read_tokens
from tools import ROOT, WORK, read, wait_until, write
from tools import path as in_work

TOKENIZE = os.path.abspath(os.environ.get("TOKENIZE", os.path.join(ROOT, "tokenize")))
PROGRAMS = os.path.join(ROOT, "dev", "data")
HUB = in_work("hub")  # the data sets of the Hub, by their names
STAND_IN = """
import hashlib, os, shutil, types
HUB = os.environ["HUB"]
class HfApi:
    def list_repo_tree(self, repository, folder, recursive, repo_type):
        for place, _, names in os.walk(os.path.join(HUB, repository, folder or "")):
            for path in (os.path.join(place, name) for name in names):
                data = open(path, "rb").read()
                lfs = types.SimpleNamespace(size=len(data), sha256=hashlib.sha256(data).hexdigest())
                yield types.SimpleNamespace(path=os.path.relpath(path, os.path.join(HUB, repository)), lfs=lfs)
def hf_hub_download(repository, name, repo_type, local_dir):
    os.makedirs(os.path.dirname(os.path.join(local_dir, name)), exist_ok=True)
    wrong = os.path.join(HUB, "wrong", name)
    shutil.copy(wrong if os.path.exists(wrong) else os.path.join(HUB, repository, name), os.path.join(local_dir, name))
    return os.path.join(local_dir, name)
"""
ENVIRONMENT = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
ENVIRONMENT.update(TOKENIZE=TOKENIZE, LC_ALL="C.UTF-8", HUB=HUB,
                   PYTHONPATH=os.path.dirname(write("library/huggingface_hub.py", STAND_IN)))
# Runs a program after it has set variables of its modules, such as addresses: {"hellaswag.URL": "file:///..."}
RUN = """
import importlib, json, sys
sys.path.insert(0, sys.argv[1])
for name, value in json.loads(sys.argv[2]).items():
    setattr(importlib.import_module(name.partition(".")[0]), name.partition(".")[2], value)
program = importlib.import_module(sys.argv[3])
sys.argv[0:4] = [sys.argv[3] + ".py"]
program.common.run(sys.argv[0], program.main)
"""
PAIRS = [(a, b) for a in (BYTES.index(byte) for byte in b" etaoins") for b in range(256)]  # the merges of our tokenizer
TOKENIZER = write("pairs_tokenizer.bin", tokenizer_bytes(
    [*(bytes([byte]) for byte in BYTES), *(bytes([BYTES[a], BYTES[b]]) for a, b in PAIRS), b"<|endoftext|>"]))


def start(program, *arguments, change=(), **keywords):
    command = [sys.executable, "-Bc", RUN, PROGRAMS, json.dumps(dict(change)), program[:-3], *map(str, arguments)]
    return subprocess.Popen(command, cwd=WORK, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, **{"env": ENVIRONMENT, **keywords})


def finish(process, status):
    """What a program prints and says that must end with this status, and without a traceback."""
    out, err = (data.decode() for data in process.communicate(timeout=300))
    assert process.returncode == status and "Traceback" not in err and "Exception ignored" not in err, (out, err)
    return out, err


def ran(program, *arguments, **keywords):
    return finish(start(program, *arguments, **keywords), 0)[0]


def refused(program, *arguments, says, **keywords):
    """A run that must end with status 1, and one line that holds these texts behind the notes."""
    last = finish(start(program, *arguments, **keywords), 1)[1].splitlines()[-1]
    assert last.startswith(f"{program}: ") and all(text in last for text in says), (says, last)


def visible(*names):
    return sorted(name for name in os.listdir(in_work(*names)) if not name.startswith("."))


def pinned(name, data, program):
    """A file in the place of the one that a program fetches: its address and checksum."""
    return {f"{program}.URL": f"file://{write(f'hosts/{name}', data)}",
            f"{program}.SHA256": hashlib.sha256(data).hexdigest()}


# ---- What must come out ----


def tokenized(lines, *options):
    """Runs ./tokenize on these JSON lines."""
    command = [TOKENIZE, "--tokenizer", TOKENIZER, *options, "--output", in_work("expected"), "--overwrite", "-"]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    subprocess.run(command, input=text.encode(), capture_output=True, check=True, env=ENVIRONMENT)


def encoded(texts):
    """The tokens of these texts, each behind an end-of-text."""
    tokenized([{"text": text} for text in texts], "--jsonl", "text")
    return list(read_tokens(in_work("expected_train_000001.bin")))


def made(name):
    """A shard without the hash of its tokenizer."""
    data = read(name)
    return data[:1016] + bytes(8) + data[1024:]


# ---- Programs that need the standard library alone ----


def test_vocab():
    merges = "#version: 0.2\n" + "".join(f"{SYMBOLS[a]} {SYMBOLS[b]}\n" for a, b in PAIRS)
    out = ran("vocab.py", "--out", in_work("vocabulary"), change=pinned("vocab.bpe", merges.encode(), "vocab"))
    assert out == "vocabulary/gpt2_tokenizer.bin: 2305 tokens\n"
    refused("vocab.py", "--out", in_work("vocabulary"), "--merges", write("bad", "h e\nh e\n"), says=["bad: line 2: "])
    assert read("vocabulary/gpt2_tokenizer.bin") == read(TOKENIZER)


@pytest.mark.long
def test_tinyshakespeare():
    pieces = [f"Speaker {i}:" + "\r\nTo be\u2764 or \x00 not." * 20 for i in range(200)]
    change = pinned("input.txt", "\n\n".join(pieces).encode(), "tinyshakespeare")
    tokens = encoded([piece + "\n\n" for piece in pieces[:-1]] + [pieces[-1]])
    arguments = ("tinyshakespeare.py", "--out", in_work("speeches"), "--vocab", TOKENIZER)
    ran(*arguments, change=change)
    assert made("speeches/tiny_shakespeare_train.bin") == shard(tokens[32768:])
    assert made("speeches/tiny_shakespeare_val.bin") == shard(tokens[:32768])
    assert visible("speeches") == ["tiny_shakespeare.txt", "tiny_shakespeare_train.bin", "tiny_shakespeare_val.bin"]
    change["common.ROOT"] = os.path.dirname(write("root/gpt2_tokenizer.bin", read(TOKENIZER)))
    refused(*arguments[:-2], change=change, says=["root/gpt2_tokenizer.bin: is not GPT-2's (checksum)", "--vocab"])


def hellaswag_file(questions):
    return "".join(json.dumps({"ctx": context, "endings": [end[1:] for end in ends], "label": label}) + "\n"
                   for context, ends, label in questions).encode()


def tar_of(files, mode="w"):
    """The bytes of an archive of these: name -> bytes, in this order."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode=mode) as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return stream.getvalue()


def mmlu_file(questions):
    """Two subjects, not in order, and another file beside them."""
    rows = io.StringIO(newline="")
    csv.writer(rows).writerows([context[10:-9], *(end[1:] for end in ends), "ABCD"[label]]
                               for context, ends, label in questions)
    lines = rows.getvalue().encode().splitlines(True)
    half = len(lines) // 3  # a row has three lines
    return tar_of({"data/test/b_test.csv": b"".join(lines[half:]), "data/dev/a_dev.csv": b"",
                   "data/test/a_test.csv": b"".join(lines[:half])})


@pytest.mark.long
@pytest.mark.parametrize("name, file, numbers, says", (
    ("hellaswag", hellaswag_file, {"EXAMPLES": 9}, "9 examples, expected 10042"),
    ("mmlu", mmlu_file, {"EXAMPLES": 9, "SUBJECTS": 2}, "9 questions on 2 subjects, expected 14042 on 57")))
def test_questions(name, file, numbers, says):
    questions = [(f'Question: A "word",\n{i}\u2764?\n\nAnswer:', [f" {i}", " b, c", " \u00e9", ' "'], i % 4)
                 for i in range(9)]
    tokenized([dict(zip(("context", "completions", "label"), question)) for question in questions], "--eval")
    change = pinned(name, file(questions), name)
    arguments = (f"{name}.py", "--out", in_work(name), "--vocab", TOKENIZER)
    refused(*arguments, change=change, says=[says])
    change.update({f"{name}.{key}": number for key, number in numbers.items()})
    for _ in range(2):
        assert f"{name}/{name}_val.bin: 9 questions, the longest" in ran(*arguments, change=change)
        change[f"{name}.URL"] = "file:///nothing"  # it is not fetched again
    assert read(f"{name}/{name}_val.bin") == read("expected_val.bin")


@pytest.mark.long
def test_wrong_files():
    """Of a host, of a user and of a data set that has changed. Two programs never write one folder."""
    arguments = ("hellaswag.py", "--out", in_work("wrong"), "--vocab", TOKENIZER)
    change = {**pinned("wrong.jsonl", b'{"ctx": "a"}\n', "hellaswag"), "hellaswag.EXAMPLES": 1}
    refused(*arguments, change={"hellaswag.URL": change["hellaswag.URL"]}, says=["is not the file that is expected"])
    refused(*arguments, change={"hellaswag.URL": "https://127.0.0.1:9/x"}, says=["Connection refused", "wrong/hella"])
    assert visible("wrong") == []
    write("wrong/hellaswag_val.jsonl", b"by somebody else")
    refused(*arguments, change=change, says=["the data have another form than expected: KeyError('endings')"])
    assert visible("wrong") == ["hellaswag_val.jsonl"] and read("wrong/hellaswag_val.jsonl") == b'{"ctx": "a"}\n'
    with open(in_work("wrong/.source"), encoding="ascii") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        refused(*arguments, change=change, says=["wrong: another program writes here now"])


def test_refused_options():
    for words, says in ((["--limit", 0], "--limit 0: expected at least"), (["--mirror", "x"], "'--mirror': unknown"),
                        (["--vocab", TOKENIZER], "--vocab: the published shards")):
        refused("fineweb.py", *words, says=[says])
    none = {"sys.path": [PROGRAMS, *(path for path in sys.path if "-packages" not in path)]}
    refused("fineweb.py", change=none, says=["No module named", "pip install huggingface_hub"])


def test_the_library():
    """huggingface_hub takes what the programs give it."""
    library = pytest.importorskip("huggingface_hub")
    for function, names in ((library.HfApi.list_repo_tree, {"recursive", "repo_type"}),
                            (library.hf_hub_download, {"repo_type", "local_dir"})):
        assert names <= set(inspect.signature(function).parameters)


@pytest.mark.long
def test_stopped_while_encoding():
    """A program that is interrupted ends the tokenize that it feeds, and leaves no unfinished file."""
    wrapper = write("endless", f'#!/bin/sh\nread line; echo $$ >"{in_work("fed")}"; exec sleep 600\n', 0o755)
    change = {**pinned("one.jsonl", hellaswag_file([("a", [" b"] * 4, 0)]), "hellaswag"), "hellaswag.EXAMPLES": 1}
    process = start("hellaswag.py", "--out", in_work("stopped"), "--vocab", TOKENIZER, change=change,
                    env={**ENVIRONMENT, "TOKENIZE": wrapper})
    wait_until(lambda: os.path.exists(in_work("fed")) and read(in_work("fed")), process)
    process.send_signal(signal.SIGINT)
    assert finish(process, 130)[1].splitlines()[-1] == "hellaswag.py: stopped by Ctrl-C; the same command goes on"
    assert sorted(os.listdir(in_work("stopped"))) == [".source", "hellaswag_val.jsonl"]
    with pytest.raises(ProcessLookupError):
        os.kill(int(read(in_work("fed"))), 0)


# ---- Data sets of the Hub ----


NAMES = ["finewebedu_val_000000.bin", "finewebedu_train_000001.bin", "finewebedu_train_000002.bin"]
OURS = ["edu_fineweb_val_000000.bin", "edu_fineweb_train_000001.bin", "edu_fineweb_train_000002.bin"]
SHARDS = [shard([(number * 7 + i * i) % 50000 for i in range(3000)]) for number in range(3)]


def publish(repository, files):
    """Puts these files, name -> bytes, into a data set of the Hub."""
    for name, data in files.items():
        write(f"hub/{repository}/{name}", data)


def edu(folder, *more):
    """The words that fetch FineWeb-Edu's shards."""
    publish("kjj0/finewebedu10B-gpt2", dict(zip([*NAMES, "README.md"], [*SHARDS, b"no shard"])))
    return ("fineweb.py", "-t", "edu", "--out", in_work(folder), *more)


def test_fineweb():
    """Names and contents of the sets. With --limit a start fetches less, and the next one the rest."""
    for kind, version, prefix, repository in (
            ("classic", "100B", "fineweb", "kjj0/fineweb100B-gpt2"),
            ("edu", "100B", "edu_fineweb", "karpathy/fineweb-edu-100B-gpt2-token-shards")):
        files = {f"{prefix}_{'train' if i else 'val'}_{i:06d}.bin": shard([i] * (i + 5)) for i in range(4)}
        publish(repository, files)
        place = f"root/dev/data/{prefix}{version}/{prefix}"
        out = ran("fineweb.py", "-t", kind, "-v", version, change={"common.ROOT": in_work("root")})
        assert out == (f"{place}: 4 shards, 4 fetched now; training 21 tokens, validation 5\n"
                       f"train with: --train-data '{place}_train_*.bin' --val-data '{place}_val_*.bin'\n"), out
        folder = os.path.dirname(place)
        assert visible(folder) == sorted(files) and all(read(f"{folder}/{name}") == files[name] for name in files)
    for limit, count, fetched in ((("--limit", 1), 2, 2), ((), 3, 1), ((), 3, 0)):
        assert f"{count} shards, {fetched} fetched now; " in ran(*edu("edu", *limit))
        assert [read(f"edu/{name}") for name in OURS[:count]] == SHARDS[:count] and len(visible("edu")) == count
    refused("fineweb.py", "--out", in_work("edu"), says=["edu: holds files of another kind", "10B"])


def test_wrong_bytes():
    """A file never gets its name before its checksum was compared. The next start fetches what is missing."""
    words, wrong = edu("failing"), write(f"hub/wrong/{NAMES[1]}", b"??" + SHARDS[1][2:])
    refused(*words, says=[f"{NAMES[1]}: its checksum is not the published one"])
    assert visible("failing") == OURS[:1]
    os.remove(wrong)
    ran(*words)
    assert [read(f"failing/{name}") for name in OURS] == SHARDS
    assert sorted(os.listdir(in_work("failing"))) == [".source", *sorted(OURS)]


def test_tinystories():
    """The archive holds its files out of order. Their names do not decide where anything is written."""
    stories = {name: [{"story": f"\n {name} {i}\ud83d \n", "source": "GPT-4"} for i in range(3)]
               for name in ("../../data01.json", "/data00.json", "data02.json")}
    archive = tar_of({name: json.dumps(content).encode() for name, content in stories.items()}, "w:gz")
    publish("roneneldan/TinyStories", {"TinyStories_all_data.tar.gz": archive})
    arguments = ("tinystories.py", "--out", in_work("tiny", "inner"), "--vocab", TOKENIZER)
    refused(*arguments, says=["holds 3 files data*.json, expected 50"])
    ran(*arguments, change={"tinystories.FILES": 3})
    train, val, more = (encoded([story["story"].strip().replace("\ud83d", "\ufffd") for story in content])
                        for content in stories.values())
    assert made("tiny/inner/TinyStories_val.bin") == shard(val)
    assert made("tiny/inner/TinyStories_train.bin") == shard(train + more)
    assert ran(*arguments).count("already there") == 2
    assert os.listdir(in_work("tiny")) == ["inner"] and len(os.listdir(in_work("tiny", "inner"))) == 3


@pytest.mark.long
def test_parquet():
    """Shards of the text of two files, and of the first alone."""
    pyarrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet")
    texts = [["one \u2764 " * 400, "two\n" * 900, ""], ["three " * 500, "four", "five \x00" * 99]]
    for number, part in enumerate(texts):
        table = pyarrow.table({"id": range(len(part)), "text": part})
        pyarrow.parquet.write_table(table, in_work("text.parquet"), compression="zstd", row_group_size=2)
        publish("HuggingFaceFW/fineweb-edu/sample/10BT", {f"00{number}_00000.parquet": read("text.parquet")})
    for folder, limit, parts in (("parquet", (), texts), ("first", ("--limit", 1), texts[:1])):
        arguments = edu(folder, "--source", "parquet", "--vocab", TOKENIZER, *limit, "-s")
        tokens, outputs = encoded(sum(parts, [])), [ran(*arguments, 1000) for _ in range(2)]
        names = [f"edu_fineweb_{'train' if i else 'val'}_{i:06d}.bin" for i in range(-(-len(tokens) // 1000))]
        for i, name in enumerate(names):
            assert made(f"{folder}/{name}") == shard(tokens[1000 * i:1000 * i + 1000]), name
        assert len(names) > 2 and visible(folder) == sorted(names) and "already there" in outputs[1], outputs
        assert f"training {len(tokens) - 1000} tokens, validation 1000\n" in outputs[0], outputs
