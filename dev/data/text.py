"""Text to tokens for the programs in dev/data: finds GPT-2's tokenizer and the program tokenize (made or built where
they are missing), and feeds documents to it through a pipe while they are still being read.
"""
import codecs
import collections
import json
import os
import queue
import struct
import subprocess
import threading

import common
import download
import guard
from common import Problem

VOCAB_URL = "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/vocab.bpe"
VOCAB_BYTES = 456318
VOCAB_SHA256 = "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"
TOKENIZER = "gpt2_tokenizer.bin"
TOKENIZER_SHA256 = "6f3abc21e444e4e8300e225f4e03da48ea121cf17e30f67009b8dad7a66c2f13"  # made of the published vocab.bpe
MOST_MERGES, MOST_BYTES = 65535 - 257, 255  # ids are uint16, and a length is a byte
SHARD_MAGIC, SHARD_VERSION, SHARD_HEADER_BYTES = 20240520, 1, 1024
ID_BYTES = {(SHARD_MAGIC, SHARD_VERSION): 2, (20240801, 7): 4}  # of a shard's magic and version
MOST_TOKENS = 2**31 - 1  # in a shard
FEED_BYTES = 4 << 20  # documents are handed to tokenize in pieces of about this size


def add_vocab(parser):
    parser.add_argument("--vocab", type=common.existing_file, metavar="FILE", help="the tokenizer (default: GPT-2's, "
                        "gpt2_tokenizer.bin in the root of the repository, made if it is missing)")


# ---- The vocabulary ----


def vocab_remote(options):
    return download.pinned(options, VOCAB_URL, "vocab.bpe", VOCAB_BYTES, VOCAB_SHA256)


def fetch_vocab(options, path):
    """Fetches vocab.bpe unless it is there and as published. Waits for another program that fetches it now. Returns how
    many files were fetched."""
    with common.Folder(path, wait=True) as folder:
        return download.fetch(options, folder, [vocab_remote(options)])


def tokens_of(name, merges):
    """The tokens, in the order of their ids, that the text of a list of merges makes. name begins messages."""
    visible = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174]
    order = visible + [b for b in range(256) if b not in visible]
    byte_of = {chr(b if b in visible else 256 + i - len(visible)): b for i, b in enumerate(order)}
    tokens = {bytes([b]): None for b in order}
    lines = merges.split("\n")
    if lines.pop() != "":
        raise Problem(f"{name}: line {len(lines) + 1}: ends in mid-line (truncated?)")
    first = 1 if lines and lines[0].startswith("#version") else 0
    for number, line in enumerate(lines[first:], first + 1):
        where, pair = f"{name}: line {number}", line.split(" ")
        try:
            left, right = (bytes(byte_of[character] for character in symbol) for symbol in pair)
        except (KeyError, ValueError):
            raise Problem(f"{where}: expected two symbols of GPT-2's alphabet with one space between them") from None
        if left not in tokens or right not in tokens:
            raise Problem(f"{where}: a symbol is neither a byte nor made by an earlier line")
        if left + right in tokens or len(left + right) > MOST_BYTES:
            raise Problem(f"{where}: makes a token that is there already, or has more than {MOST_BYTES} bytes")
        tokens[left + right] = None
    if not 0 < len(tokens) - 256 <= MOST_MERGES:
        raise Problem(f"{name}: has {len(tokens) - 256} merges, expected 1 to {MOST_MERGES}")
    return [*tokens, b"<|endoftext|>"]


def tokenizer_bytes(tokens):
    """llm.c's gpt2_tokenizer.bin, version 2, of these tokens, of which the last one is end-of-text."""
    header = struct.pack("<256I", 20240328, 2, len(tokens), len(tokens) - 1, *[0] * 252)
    return header + b"".join(bytes([len(token)]) + token for token in tokens)


def make_tokenizer(merges, folder):
    """Writes the tokenizer of a list of merges into the folder. Returns its path and the number of its tokens."""
    name, path = common.show_path(merges), os.path.join(folder, TOKENIZER)
    try:
        tokens = tokens_of(name, guard.read_file(merges).decode())
    except UnicodeDecodeError:
        raise Problem(f"{name}: is no list of merges: it is not UTF-8") from None
    common.write_atomically(path, tokenizer_bytes(tokens))
    return path, len(tokens)


def find_vocab(options, folder):
    """The path of the tokenizer that --vocab names, or of the one in the root, which is made if it is not there. That
    of a mirror's own vocabulary goes into the folder of the data instead: what lies in the root is always GPT-2's."""
    if options.vocab:
        return options.vocab
    path = os.path.join(common.ROOT, TOKENIZER)
    if os.path.exists(path):
        if common.file_sha256(path) != TOKENIZER_SHA256:
            raise Problem(f"{common.show_path(path)}: is not GPT-2's (checksum); remove it, or name it with --vocab if "
                          "you mean it")
        return path
    remote = vocab_remote(options)
    if remote.sha256 != VOCAB_SHA256:
        download.fetch(options, folder, [remote])
        return make_tokenizer(folder.join(remote.name), folder.path)[0]
    fetch_vocab(options, common.ROOT)
    make_tokenizer(os.path.join(common.ROOT, remote.name), common.ROOT)
    common.note(f"made {common.show_path(path)}")
    return path


# ---- The program ----


def find_tokenize():
    """The path of tokenize; it is built if it is not there. TOKENIZE in the environment names another."""
    path = os.environ.get("TOKENIZE") or os.path.join(common.ROOT, "tokenize")
    if os.path.exists(path):
        return os.path.abspath(path)
    if "TOKENIZE" in os.environ:
        raise Problem(f"{path}: no such file; TOKENIZE in the environment names the program tokenize")
    common.note("building tokenize ...")
    try:
        made = subprocess.run(["make", "-C", common.ROOT, "tokenize"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, check=False)
    except FileNotFoundError:
        raise Problem("make: not found; install make and a C compiler, they build the program tokenize") from None
    if made.returncode != 0 or not os.path.exists(path):
        lines = made.stdout.decode(errors="replace").strip().splitlines() or ["no output"]
        raise Problem(f"make tokenize failed: {lines[-1]} (run it in {common.ROOT} to see all)")
    return path


class Tokenize:
    """A run of tokenize that reads JSON lines from us. A thread of its own writes them, so that reading the documents
    and encoding them go on at the same time."""

    def __init__(self, vocab, prefix, *arguments):
        command = [find_tokenize(), "--tokenizer", vocab, "--output", prefix, "--overwrite", *arguments,
                   "-"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.pieces, self.broken = queue.Queue(maxsize=8), False
        self.pending, self.pending_bytes, self.fed = [], 0, 0
        self.thread = threading.Thread(target=self.write, daemon=True)
        self.thread.start()

    def write(self):
        while True:
            piece = self.pieces.get()
            try:
                if piece is None:
                    self.process.stdin.close()
                    return
                if not self.broken:
                    self.process.stdin.write(piece)
            except OSError:  # it has ended; why, it says on stderr
                self.broken = True
                if piece is None:
                    return

    def feed(self, value):
        """One line. Half of a surrogate pair becomes U+FFFD, as tiktoken has it."""
        line = json.dumps(value, ensure_ascii=False)
        try:
            line = line.encode()
        except UnicodeEncodeError:
            line = line.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()
        self.pending.append(line)
        self.pending_bytes += len(line) + 1
        self.fed += len(line) + 1
        if self.pending_bytes >= FEED_BYTES:
            self.flush()

    def flush(self):
        if self.pending:
            self.pending.append(b"")
            self.pieces.put(b"\n".join(self.pending))
            self.pending, self.pending_bytes = [], 0
        if self.broken:
            self.finish()

    def finish(self):
        """Waits until all is written; raises what tokenize complains about. Returns its summary."""
        if not self.broken:
            self.flush()
        self.pieces.put(None)
        self.thread.join()
        out, err = self.process.stdout.read().decode(), self.process.stderr.read().decode(errors="replace").strip()
        if self.process.wait() != 0:
            raise Problem(err.splitlines()[-1] if err else f"tokenize ended with status {self.process.returncode}")
        return out

    def __enter__(self):
        return self

    def __exit__(self, *_):
        """Ends it if it still runs: it removes what it has written."""
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait()
        self.process.stdout.close()
        self.process.stderr.close()


def tokenize_documents(vocab, prefix, documents, *arguments):
    """Encodes texts, each preceded by end-of-text, into PREFIX_train_000001.bin and so on. Returns the summary."""
    with Tokenize(vocab, prefix, "--jsonl", "text", *arguments) as program:
        for text in documents:
            program.feed({"text": text})
        return program.finish()


def tokenize_examples(vocab, prefix, examples):
    """Encodes {"context", "completions", "label"} into PREFIX_val.bin, in the format of multiple-choice evals."""
    with Tokenize(vocab, prefix, "--eval") as program:
        for example in examples:
            program.feed(example)
        return program.finish()


# ---- Shards ----


def open_shard(path):
    """The header of a shard, its number of tokens and the bytes of each; refuses a file that is none."""
    size = os.path.getsize(path)
    with guard.open_file(path) as file:
        header = file.read(SHARD_HEADER_BYTES)
    if len(header) == SHARD_HEADER_BYTES:
        magic, version, tokens = struct.unpack("<3i", header[:12])
        id_bytes = ID_BYTES.get((magic, version), 0)
        if id_bytes and size == SHARD_HEADER_BYTES + id_bytes * tokens:
            return header, tokens, id_bytes
    raise Problem(f"{common.show_path(path)}: is not a shard of tokens, though it is what was published; choose "
                  "another --source or --mirror")


def shard_tokens(path):
    return open_shard(path)[1]


def joined_header(path, tokens):
    """The header of a shard of so many tokens, made of this one and others."""
    header = open_shard(path)[0]
    return header[:8] + struct.pack("<i", tokens) + header[12:]


def shard_header(tokens):
    return struct.pack("<256i", SHARD_MAGIC, SHARD_VERSION, tokens, *[0] * 253)


def append_tokens(file, path):
    """Copies the tokens of a shard to the end of an open, unbuffered file."""
    with guard.open_file(path, buffering=0) as part:
        part.seek(SHARD_HEADER_BYTES)
        _, tokens, id_bytes = open_shard(path)
        left = id_bytes * tokens
        while left > 0:
            block = memoryview(part.read(min(left, 8 << 20)))
            left -= len(block)
            while block:
                block = block[file.write(block):]


def decoded(stream):
    """A stream of bytes as one of UTF-8 text."""
    return codecs.getreader("utf-8")(stream)


def print_products(folder, names, here):
    """The last words of a program: what it made."""
    for name in names:
        path = folder.join(name)
        print(f"{common.show_path(path)}: {shard_tokens(path)} tokens{', already there' if here else ''}")


Product = collections.namedtuple("Product", "name path")


def publish(folder, products, made):
    """Gives finished files their names and records what they were made from."""
    for product in products:
        os.replace(product.path, folder.join(product.name))
    common.sync_folder(folder.path)
    for product in products:
        folder.remember(product.name, common.file_sha256(folder.join(product.name)), made)


class Work:
    """A folder for unfinished files beside the finished ones, removed in the end. Names that begin with its prefix hold
    the number of this process: when a program is killed, its tokenize takes that for the end of the text and finishes
    what it has, which a later program must not take for its own."""

    def __init__(self, folder):
        self.path = folder.join(".work")
        self.prefix = os.path.join(self.path, f"part{os.getpid()}")

    def __enter__(self):
        guard.empty_folder(self.path)
        return self

    def __exit__(self, *_):
        guard.empty_folder(self.path)
        os.rmdir(self.path)


def make_unless_there(options, folder, source, output, make):
    """Makes a file of questions from its source, with make(folder, vocab, made), and says what came of it."""
    vocab = find_vocab(options, folder)
    made = {"source": source.sha256, "vocab": common.file_sha256(vocab)}
    is_there = folder.is_made([output], made, options.verify)
    result = "already there" if is_there else make(folder, vocab, made)
    print(f"{common.show_path(folder.join(output))}: {result}")
