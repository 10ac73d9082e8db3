"""Text to tokens for the programs in dev/data: they feed documents to the program tokenize, which uses all cores."""
import contextlib
import json
import os
import struct
import subprocess
import tempfile

import common
import vocab
from common import Problem

MOST_TOKENS = 2**31 - 1  # in a shard
ID_BYTES = {(20240520, 1): 2, (20240801, 7): 4}  # of a shard's magic and version


def json_lines(values):
    """Half of a surrogate pair becomes U+FFFD, as tiktoken has it."""
    lines = "".join(json.dumps(value, ensure_ascii=False) + "\n" for value in values)
    try:
        return lines.encode()
    except UnicodeEncodeError:
        return lines.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


def tokenize(tokenizer, prefix, arguments, blocks=()):
    """Runs tokenize, on blocks of JSON lines if there is - among the arguments. Returns the first line it prints."""
    program = os.environ.get("TOKENIZE", os.path.join(common.ROOT, "tokenize"))
    if not os.path.exists(program):
        common.note("building tokenize ...")
        subprocess.run(["make", "-s", "-C", common.ROOT, "tokenize"], stdout=subprocess.DEVNULL, check=False)
    command = [program, "--tokenizer", tokenizer, "--output", prefix, "--overwrite", *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            with contextlib.suppress(BrokenPipeError):  # it has ended early, and says why
                for block in blocks:
                    process.stdin.write(block)
            out, err = (data.decode(errors="replace") for data in process.communicate())
        except BaseException:
            process.kill()  # else it would go on with what it has got
            process.wait()
            raise
    if process.returncode != 0:
        raise Problem((err.strip() or f"tokenize ended with status {process.returncode}").splitlines()[-1])
    return out.partition("\n")[0]


def make_questions(options, name, examples):
    """Encodes {"context", "completions", "label"} into a file of multiple-choice questions. Says what came of it."""
    tokenizer, path = vocab.find(options), os.path.join(options.out, name)
    with tempfile.TemporaryDirectory(prefix=".work", dir=options.out) as work:
        summary = tokenize(tokenizer, os.path.join(work, "questions"), ["--eval", "-"], [json_lines(examples)])
        os.replace(os.path.join(work, "questions_val.bin"), path)
    print(f"{common.shown(path)}: {summary.partition(':')[0]}")


def shard_tokens(path):
    """The number of tokens in a shard. A file that is none is refused."""
    with open(path, "rb") as file:
        magic, version, tokens = struct.unpack("<3i", file.read(12).ljust(12, b"\0"))
    if os.path.getsize(path) != 1024 + ID_BYTES.get((magic, version), -1) * tokens:
        raise Problem(f"{common.shown(path)}: is not a shard of tokens; remove it and run this again")
    return tokens


def print_shards(folder, names, here=""):
    """The last words of a program: what it made."""
    for path in (os.path.join(folder, name) for name in names):
        print(f"{common.shown(path)}: {shard_tokens(path)} tokens{here}")
