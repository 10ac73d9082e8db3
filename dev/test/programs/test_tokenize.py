"""The program tokenize as its users meet it: shards re-read by an independent reader, streaming, what is refused, a
full disk, Ctrl-C. Also the Unicode tables, against Python's. Needs ./tokenize (make tokenize). The unit tests have
every way in which a line of JSON, a tokenizer or a file can be wrong."""
import array
import glob
import json
import os
import random
import re
import signal
import struct
import subprocess
import sys
import unicodedata

import pytest

from evalfiles import eval_file
from formats import (hash64, pair_tokenizer, pair_words, read_tokens, tokenizer_hash, wide_tokenizer,
                     wide_words)
from tools import ROOT, WORK, path, read, small_disk, text_of, wait_until, write

sys.path.insert(0, os.path.join(ROOT, "dev"))
import gen_unicode_tables  # noqa: E402 (its folder had to be named first)

TOKENIZE = os.path.abspath(os.environ.get("TOKENIZE", os.path.join(ROOT, "tokenize")))
EOT = 50256
VOCAB, WORDS = write("gpt2_tokenizer.bin", pair_tokenizer()), pair_words()


def tokenize(*arguments, stdin=None, vocab=VOCAB, **keywords):
    command = [TOKENIZE, *(["--tokenizer", vocab] if vocab else []), *arguments]
    source = {"stdin": subprocess.DEVNULL} if stdin is None else {"input": stdin}
    return subprocess.run(command, cwd=WORK, capture_output=True, timeout=300, check=False, **source, **keywords)


def accepted(*arguments, **keywords):
    result = tokenize(*arguments, **keywords)
    assert result.returncode == 0 and result.stderr == b"", (result.returncode, result.stdout, result.stderr)
    return result.stdout.decode()


def refused(message, *arguments, output="refused", **keywords):
    """One line on stderr, status 1, nothing on stdout, no shard more or less. message: a pattern where it is
    compiled."""
    before = shards(output)
    result = tokenize("--output", output, *arguments, **keywords)
    assert result.returncode == 1 and result.stdout == b"", (result.returncode, result.stdout, result.stderr)
    pattern = message.pattern if isinstance(message, re.Pattern) else re.escape(message)
    assert re.fullmatch(f"tokenize: {pattern}\n", result.stderr.decode()), result.stderr
    assert shards(output) == before, shards(output)


def shards(prefix):
    return sorted(os.path.basename(path) for path in glob.glob(os.path.join(WORK, prefix + "_*")))


def read_all(prefix):
    """Tokens of the validation shards, then of the training shards: the order in which they were written."""
    ordered = sorted(shards(prefix), key=lambda name: ("_train_" in name, name))
    return [token for name in ordered for token in read_tokens(path(os.path.dirname(prefix), name))]


def documents(tokens):
    """The texts behind the end-of-text tokens, of which the first token must be one."""
    assert tokens[0] == EOT, tokens[:3]
    found = []
    for token in tokens:
        if token == EOT:
            found.append([])
        else:
            found[-1].append(WORDS[token])
    return list(map(b"".join, found))


def mixed_text(seed, size):
    rng = random.Random(seed)
    pools = ["the quick brown fox", " \n\t\u00a0", "0123456789", "\u4f60\u597d\u4e16\u754c", "it's we'll",
             "\u00e9\u0434\U0001f600", "<|endoftext|>"]
    return "".join(rng.choice(pools) for _ in range(size // 8)).encode()


# ---- The Unicode tables ----

def python_class(character):
    if character.isspace() and not "\x1c" <= character <= "\x1f":  # Python adds these four to White_Space
        return "S"
    category = unicodedata.category(character)[0]
    return category if category in "LN" else None


def test_unicode_tables():
    """The committed table has the generator's form and Python's classes, but for code points that the older of the two
    versions of Unicode does not assign. What the generator takes from this Python is right, too."""
    text, classes = text_of("llmc/data/unicode_tables.h"), [None] * 0x110000
    for letter, name in gen_unicode_tables.NAMES.items():
        numbers, at = re.findall(r"\d+", re.search(rf"unicode_{name}\[\d+\] = {{(.*?)}}", text, re.S)[1]), 0
        for skipped, taken in zip(map(int, numbers[::2]), map(int, numbers[1::2])):
            at += skipped + taken
            classes[at - taken:at] = letter * taken
    version = re.search('UNICODE_VERSION "(.*)"', text)[1]
    assert gen_unicode_tables.render(classes, version) == text
    assert classes.count("L") > 130000 and classes.count("S") == 25
    newer = [int(part) for part in unicodedata.unidata_version.split(".")] > [int(part) for part in version.split(".")]
    for i, found in enumerate(classes):
        wanted, unknown = python_class(chr(i)), found is None if newer else unicodedata.category(chr(i)) == "Cn"
        assert (found == wanted or unknown) and gen_unicode_tables.char_class(unicodedata, i) == wanted, hex(i)


# ---- Shards ----

def test_documents():
    """Several files and standard input: each a document, whatever the bytes."""
    every, third = bytes(range(1, 256)) * 5 + bytes(range(256)) * 15, b"no newline at the end <|endoftext|>"
    summary = accepted("--output", "new/folder/documents", write("a.txt", mixed_text(1, 5000)), "-",
                       write("b.txt", every), stdin=third)
    tokens = read_all("new/folder/documents")
    assert documents(tokens) == [mixed_text(1, 5000), third, every]
    assert re.fullmatch(rf"{len(tokens)} tokens from 3 documents \([\d.]+ KiB\) in 1 shard: new/folder/documents_\*.bin"
                        rf"\ntraining {len(tokens)}, validation 0; .* MB/s on .*\n", summary), summary


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="no /proc here")
def test_streaming():
    """36 MiB through a pipe: chunks join without a seam, and memory stays bounded. A text without a place to cut needs
    a larger buffer, not another result."""
    accepted("--output", "long", "-", stdin=b"a" * (20 << 20))
    assert read("long_train_000001.bin")[1024:] == struct.pack("<H", EOT) + struct.pack("<H", WORDS.index(b"aa")) * (
        10 << 20)
    block = b"x" + mixed_text(2, 700001).strip() + b"\n"  # a letter behind a newline begins a word
    accepted("--output", "block", "-", stdin=block)
    times = (36 << 20) // len(block)
    process = subprocess.Popen([TOKENIZE, "--tokenizer", VOCAB, "--output", "stream", "--threads", "2", "-"], cwd=WORK,
                               stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    for _ in range(times):
        process.stdin.write(block)
    # It has read all but what fits into the pipe. Not wait4's figure, which begins with the memory of who forked.
    kilobytes = int(re.search(r"VmHWM:\s+(\d+) kB", text_of(f"/proc/{process.pid}/status"))[1])
    process.stdin.close()
    assert process.wait() == 0
    expected, got = read("block_train_000001.bin")[1026:], read("stream_train_000001.bin")
    os.remove(path("stream_train_000001.bin"))
    assert got[1026:] == expected * times, (len(got), len(expected), times)
    assert kilobytes < 100 * 1024, f"{kilobytes} KiB"


def test_shard_sizes():
    text = write("sizes.txt", mixed_text(3, 20000))
    accepted("--output", "whole", text)
    tokens = read_all("whole")
    for size in (1000, len(tokens), len(tokens) - 1):
        accepted("--output", "cut", "--shard-size", str(size), text, "--overwrite")
        lengths = [len(read_tokens(path(name))) for name in shards("cut")]
        full, rest = divmod(len(tokens), size)
        assert lengths == [size] * full + ([rest] if rest else []), lengths
        assert shards("cut")[0] == "cut_train_000001.bin" and read_all("cut") == tokens
    accepted("--output", "cut", "--shard-size", "1000", "--val-tokens", "2500", text, "--overwrite")
    assert shards("cut")[-3:] == ["cut_val_000000.bin", "cut_val_000001.bin", "cut_val_000002.bin"], shards("cut")
    assert len(read_tokens(path("cut_val_000002.bin"))) == 500 and shards("cut")[0] == "cut_train_000003.bin"
    assert read_all("cut") == tokens
    accepted("--output", "cut", "--val-fraction", "0.25", text, "--overwrite")
    assert len(read_tokens(path("cut_val_000000.bin"))) == round(len(tokens) / 4)
    refused("validation would take all tokens; choose a smaller --val-tokens or --val-fraction", text, "--val-tokens",
            str(len(tokens)))


def test_json_lines():
    """Blank lines do not count, nor does the number of threads. The first bad line is named."""
    texts = [mixed_text(seed, seed).decode() for seed in range(1500)] + ["", "a\u0000b", "\U0001f600 \\ \" \n"]
    lines = [json.dumps({"id": i, "text": text, "x": [{"text": 1}]}, ensure_ascii=i % 2 == 0)
             for i, text in enumerate(texts)]
    content = "\n".join(lines[:1000]) + "\n\n  \r\n" + "\r\n".join(lines[1000:])
    summary = accepted("--output", "lines", "--jsonl", "text", write("lines.jsonl", content))
    accepted("--output", "lines1", "--jsonl", "text", "--threads", "1", "-", stdin=content.encode())
    assert documents(read_all("lines")) == [text.encode() for text in texts]
    assert read_all("lines") == read_all("lines1")
    assert f" from {len(texts)} documents (" in summary, summary
    refused('standard input: line 2: JSON line: no field "text"', "--jsonl", "text", "-",
            stdin=b'{"text": "ok"}\n' + b'{"txt": "a"}\n' * 3)
    refused("no documents in the input: nothing was written", "--jsonl", "text", "-", stdin=b"\n \n")


# ---- Multiple-choice questions ----

def question(context, completions, label):
    return {"context": context, "completions": completions, "label": label}


def read_questions(name, wide=False):
    """The examples of an eval file as (context, completions, label) of token lists. Its bytes follow from them."""
    stream, at, found = array.array("I" if wide else "H", read(name)[1024:]).tolist(), 0, []
    while at < len(stream):
        label, count, lists, at = stream[at + 3], stream[at + 4], [], at + 5
        for _ in range(count + 1):
            lists.append(stream[at + 1:at + 1 + stream[at]])
            at += 1 + stream[at]
        found.append((lists[0], lists[1:], label))
    assert tokenizer_hash(read(name)) != 0
    assert read(name) == read(eval_file("again.bin", found, wide, tokenizer_hash(read(name))))
    return found


def text_of_tokens(tokens):
    return b"".join(WORDS[token] for token in tokens).decode()


@pytest.mark.long
def test_questions():
    """Thousands of lines over several chunks, in order; blank lines do not count."""
    rng = random.Random(9)
    words = ["one", " two", "\u00e9t\u00e9 \"x\"", "<|endoftext|>", " \n", "a" * 4000, "\U0001f600"]
    asked = [question(rng.choice(words) * 2, [" " + rng.choice(words) + str(i) for i in range(4)], rng.randrange(4))
             for _ in range(6000)]
    lines = [json.dumps(line, ensure_ascii=i % 2 == 0) for i, line in enumerate(asked)]
    content = ("\n".join(lines[:3000]) + "\n \n" + "\n".join(lines[3000:])).encode()
    assert len(content) > 17 << 20, len(content)
    summary = accepted("--eval", "--output", "deep/questions", "-", stdin=content)
    found = read_questions("deep/questions_val.bin")
    assert [question(text_of_tokens(context), list(map(text_of_tokens, completions)), label)
            for context, completions, label in found] == asked
    assert summary == (f"6000 questions, the longest {max(2 * (10 + len(c) + sum(map(len, cs))) for c, cs, _ in found)}"
                       " bytes: deep/questions_val.bin\n"), summary


def test_bad_questions():
    good = json.dumps(question("c", ["w", "x", "y", "z"], 3)) + "\n"
    for line, message in (
            (question("c", ["w", "x", "y"], 0), "3 completions, expected 4"),
            (question("c", ["w", "x", "", "z"], 0), "byte 43: the text is empty, so it has no loss"),
            (question("ab" * 32754, ["w", "x", "y", "z"], 0), "32758 tokens, at most 32757 fit")):
        refused(f"standard input: line 3: JSON line: {message}", "--eval", "-",
                stdin=(good * 2 + json.dumps(line) + "\n" + good).encode())
    largest = json.dumps(question("ab" * 32753, ["w", "x", "y", "z"], 0)).encode()
    accepted("--eval", "--output", "full", "-", stdin=largest)
    assert [len(c) for c, _, _ in read_questions("full_val.bin")] == [32753]
    refused("full_val.bin: exists already; --overwrite replaces it", "--eval", "-", output="full", stdin=good.encode())
    accepted("--eval", "--output", "full", "--overwrite", "-", stdin=good.encode())
    assert len(read_questions("full_val.bin")) == 1
    refused("--jsonl: needs no --eval", "--eval", "--jsonl", "text", "-", stdin=good.encode())


def test_ids_of_32_bits():
    """Shards and questions of a large vocabulary, with the hash of their tokenizer, which lies beside them."""
    vocab, (words, end), text = write("wide_tokenizer.bin", wide_tokenizer()), wide_words(), mixed_text(7, 30000)
    accepted("--output", "wide", "--val-tokens", "1000", write("wide.txt", text), vocab=vocab)
    shards_of_it = [read_tokens(path(f"wide_{name}.bin"), wide=True) for name in ("val_000000", "train_000001")]
    tokens = list(shards_of_it[0] + shards_of_it[1])
    assert len(shards_of_it[0]) == 1000 and tokens[0] == end > 65535 and tokens.count(end) == 1
    assert b"".join(words[token] for token in tokens[1:]) == text
    accepted("--eval", "--output", "wide", "-", vocab=vocab,
             stdin=json.dumps(question("12345 IT'S", [" a", " bc", "漢字", " d"], 2)).encode())
    assert [[b"".join(words[token] for token in found).decode() for found in (context, *completions)] + [label]
            for context, completions, label in read_questions("wide_val.bin", wide=True)] == [
                ["12345 IT'S", " a", " bc", "漢字", " d", 2]]
    assert read("wide.tokenizer") == wide_tokenizer()
    for name in ("wide_val_000000.bin", "wide_train_000001.bin", "wide_val.bin"):
        assert tokenizer_hash(read(name)) == hash64(wide_tokenizer()), name
    accepted("--output", "narrow", "-", stdin=text)
    assert tokenizer_hash(read("narrow_train_000001.bin")) == hash64(pair_tokenizer())


def test_old_shards():
    """A new set never mixes with an old one, nor with what a killed run has left."""
    accepted("--output", "old", "--shard-size", "500", write("long.txt", mixed_text(5, 9000)))
    short = write("short.txt", b"short")
    for name in ("old_val_notes.txt", "older_train_000001.bin"):
        write(name, b"mine")
    removes = "exists already; --overwrite removes all shards of this prefix"
    refused(re.compile(f".*{removes}.*"), short, output="old")
    for left in ("old_train_000002.bin", "old_train_000007.bin.tmp"):
        write(left, b"half")
        accepted("--output", "old", "--overwrite", short)
        assert shards("old") == ["old_train_000001.bin", "old_val_notes.txt"], shards("old")
        os.remove(path("old_train_000001.bin"))
        write("old_train_000007.bin.tmp", b"half")
        refused(re.compile(f"./old_train_000007.bin.tmp: {removes}.*"), short, output="old")
    assert os.path.exists(path("older_train_000001.bin"))


# ---- Bad options, bad files ----

HINT = "give --tokenizer gpt2_tokenizer.bin (python3 dev/data/vocab.py makes it)"
REFUSED = (  # the tokenizer, the words, what is said
    (VOCAB, "", "no input: name text files, or - for standard input (see --help)"),
    (VOCAB, "--val-fraction 0.1 -", "--val-fraction: the size of a pipe is not known; use --val-tokens"),
    (VOCAB, "t.txt none.txt", "none.txt: cannot open: No such file or directory"),
    (VOCAB, "t.txt empty.txt", "empty.txt: is empty"), (VOCAB, "-", "standard input: is empty"),
    ("cut.bin", "t.txt", "cut.bin: ends inside token 50256 of 50257 (truncated? fetch it again)"),
    ("byte", "t.txt", f"--tokenizer: shards hold GPT-2 tokens, not bytes; {HINT}; for bytes, give train_gpt2 the text "
     "itself"))


def test_refused():
    """Before anything is written."""
    text = write("t.txt", b"some text")
    write("empty.txt", b"")
    write("cut.bin", pair_tokenizer()[:-1])
    for vocab, words, message in REFUSED:
        refused(message, *words.split(), stdin=b"", vocab=vocab)
    assert tokenize(text).stderr == b"tokenize: --output (-o): missing, expected the beginning of shard names\n"


# ---- The disk, Ctrl-C ----

def test_full_disk():
    text = write("disk.txt", mixed_text(7, 1000000))
    with small_disk("400k") as disk:
        refused(re.compile(".*No space left on device.*"), "--shard-size", "50000", text, output=f"{disk}/full")
        assert os.listdir(disk) == []


def test_signals():
    for number, name in ((signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM")):
        command = [TOKENIZE, "--tokenizer", VOCAB, "--output", "stopped", "--shard-size", "1000000", "-"]
        process = subprocess.Popen(command, cwd=WORK, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE)
        process.stdin.write(b"some words, " * (20 << 20 >> 3))
        process.stdin.flush()
        wait_until(lambda: len(shards("stopped")) >= 3 and ".tmp" in "".join(shards("stopped")), process)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 1, process.returncode
        assert err.decode() == f"tokenize: stopped by {name}; nothing was kept\n" and out == b"", err
        assert shards("stopped") == [], shards("stopped")
