"""FineWeb from its text: parquet files of the Hub, read with pyarrow, through tokenize, into shards of equal size.

A file is fetched while the one before it is encoded. The tokens of a file are appended to the shards when all of it is
encoded, and then progress.json says so: whatever happens, at most the work on one file is lost (of some 15 for 10B, 150
for 100B). The shards of a given list of files are the same, however often it was stopped.
"""
import os
import re

import common
import download
import guard
import text
from common import Problem

STATE = "progress.json"
OPEN = ".open"  # the end of the name of a shard that is not full
TOKEN_BYTES = 75  # of shards, per 100 bytes of parquet: 20.7 GB from 30.6 GB of FineWeb's sample, and some more
BATCH_ROWS = 1000


def check_pyarrow():
    """Returns the module, or says how to get it."""
    try:
        import pyarrow.parquet
        return pyarrow.parquet
    except ImportError:
        raise Problem("--source parquet reads parquet files with pyarrow, which is not installed here: "
                      "python3 -m pip install pyarrow; or take --source shards, which needs nothing") from None


# ---- Reading ----


class Documents:
    """The texts of a parquet file in order, up to `most` bytes of text (None: all)."""

    def __init__(self, path, most):
        self.path, self.most, self.complete = path, most, False

    def __iter__(self):
        import pyarrow
        name = os.path.basename(self.path)
        try:
            with check_pyarrow().ParquetFile(self.path) as file:
                if "text" not in file.schema_arrow.names:
                    raise Problem(f"{name}: has no column text; is it FineWeb's?")
                yield from self.read(file, common.Progress(f"encoding {name}", text_bytes(file)))
        except (pyarrow.ArrowException, OSError) as error:
            reason = str(error).splitlines()[0]
            raise Problem(f"{common.show_path(self.path)}: {reason}; remove the file and run this again") from None

    def read(self, file, progress):
        taken = 0
        try:
            for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=["text"]):
                for document in batch.column(0).to_pylist():
                    if document is not None:
                        yield document
                        taken += len(document)
                progress.add(taken - progress.done)
                progress.draw()
                if self.most is not None and taken >= self.most:
                    return
            self.complete = True
        finally:
            progress.finish()


def text_bytes(file):
    """About how many bytes of text a parquet file holds."""
    groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
    columns = [group.column(i) for group in groups for i in range(group.num_columns)]
    return sum(column.total_uncompressed_size for column in columns if column.path_in_schema == "text")


# ---- Shards ----


class Shards:
    """Shards of equal size that grow at the end. Where one stands follows from the number of tokens alone, so a state
    of the past is found again by cutting."""

    def __init__(self, folder, prefix, size):
        self.folder, self.prefix, self.size = folder, prefix, size

    def path(self, number):
        return self.folder.join(f"{self.prefix}_{'train' if number else 'val'}_{number:06d}.bin")

    def length(self, number):
        """Tokens in a shard, full or open; 0 if it is not there."""
        for path in (self.path(number), self.path(number) + OPEN):
            if os.path.exists(path):
                return max(0, (os.path.getsize(path) - text.SHARD_HEADER_BYTES) // 2)
        return 0

    def holds(self, tokens):
        """Whether so many tokens are there."""
        full, rest = divmod(tokens, self.size)
        return all(self.length(i) == self.size for i in range(full)) and self.length(full) >= rest

    def check(self):
        """Removes full shards that have changed since they were written."""
        number = 0
        while self.length(number):
            entry = self.folder.entry(os.path.basename(self.path(number)))
            if os.path.exists(self.path(number)) and not (entry and entry.get("sha256") == common.file_sha256(
                    self.path(number))):
                common.note(f"{os.path.basename(self.path(number))}: has changed since it was made; it is made again")
                os.remove(self.path(number))
                return
            number += 1

    def cut(self, tokens):
        """Forgets all behind so many tokens."""
        full, rest = divmod(tokens, self.size)
        for i in range(full):
            if not os.path.exists(self.path(i)):  # stopped between the last token and the new name
                self.close(i)
        number = full if rest == 0 else full + 1
        while self.length(number) or os.path.exists(self.path(number)) or os.path.exists(self.path(number) + OPEN):
            common.remove(self.path(number))
            common.remove(self.path(number) + OPEN)
            number += 1
        if rest:
            if os.path.exists(self.path(full)):
                os.replace(self.path(full), self.path(full) + OPEN)
            with guard.open_file(self.path(full) + OPEN, "r+b") as file:
                file.truncate(text.SHARD_HEADER_BYTES + 2 * rest)

    def close(self, number):
        """Gives a shard its header and its name."""
        with guard.open_file(self.path(number) + OPEN, "r+b", buffering=0) as file:
            tokens = (os.path.getsize(file.name) - text.SHARD_HEADER_BYTES) // 2
            file.write(text.shard_header(tokens))
            os.fsync(file.fileno())
        os.replace(self.path(number) + OPEN, self.path(number))
        name = os.path.basename(self.path(number))
        self.folder.remember(name, common.file_sha256(self.path(number)), "parquet")

    def append(self, part, begin, most):
        """Appends the tokens of a part behind the first `begin`, at most up to `most` tokens in all. Returns how many
        there are then."""
        at, count = 0, text.shard_tokens(part)
        count = count if most is None else min(count, most - begin)
        while at < count:
            number, offset = divmod(begin + at, self.size)
            n = min(count - at, self.size - offset)
            with guard.open_file(self.path(number) + OPEN, "ab", buffering=0) as file:
                if offset == 0:
                    file.truncate(0)
                    file.write(bytes(text.SHARD_HEADER_BYTES))
                text.append_tokens(file, part, at, n)
                os.fsync(file.fileno())
            if offset + n == self.size:
                self.close(number)
            at += n
        common.sync_folder(self.folder.path)
        return begin + count


# ---- The run ----


class State:
    """progress.json: the files that are in the shards, with the number of tokens after each."""

    def __init__(self, folder, shards):
        self.path, self.shards = folder.join(STATE), shards
        known = common.read_json(self.path)
        try:
            self.files = [{"path": entry["path"], "sha256": entry["sha256"], "tokens": max(0, int(entry["tokens"]))}
                          for entry in known.get("files", [])]
            ended = known.get("ended")
            self.ended = None if ended is None else {"goal": ended["goal"], "tokens": max(1, int(ended["tokens"]))}
        except (KeyError, TypeError, ValueError, OverflowError):  # then all is encoded again
            self.files, self.ended = [], None

    def trim(self, remotes):
        """Keeps what is true: the beginning of the list whose tokens are in the shards."""
        good = 0
        for entry, remote in zip(self.files, remotes):
            if entry["path"] != remote.name or entry["sha256"] != remote.sha256:
                break
            if not self.shards.holds(entry["tokens"]):
                break
            good += 1
        self.files = self.files[:good]

    def tokens(self):
        return self.files[-1]["tokens"] if self.files else 0

    def add(self, remote, tokens):
        self.files.append({"path": remote.name, "sha256": remote.sha256, "tokens": tokens})
        self.write()

    def write(self):
        common.write_json(self.path, {"files": self.files, "ended": self.ended})

    def is_ended(self, goal):
        """Whether a run with this goal came to its end and its shards are still there."""
        if self.ended is None or self.ended["goal"] != goal:
            return False
        tokens = self.ended["tokens"]
        last = (tokens - 1) // self.shards.size
        return self.shards.holds(tokens) and os.path.exists(self.shards.path(last))


def parquet_remotes(options, repository):
    folder = f"sample/{options.version}T"
    entries = download.hub_files(options, repository, folder)
    remotes = [download.hub_remote(repository, path, entry, os.path.basename(path))
               for path, entry in entries.items() if re.fullmatch(r"[\w./-]+\.parquet", path)]
    if not remotes:
        raise Problem(f"{repository}: no parquet files in {folder} of the Hub's list of files")
    return remotes


def encode(vocab, path, prefix, needed):
    """Encodes a parquet file, or as much as `needed` tokens take (None: all of it). Returns the path of the part and
    whether all of the file is in it."""
    for most in ([None] if needed is None else [8 * needed, None]):  # a token has four bytes and a half on average
        documents = Documents(path, most)
        text.tokenize_documents(vocab, prefix, documents, "--shard-size", str(text.MOST_TOKENS))
        part = prefix + "_train_000001.bin"
        if documents.complete or needed is None or text.shard_tokens(part) >= needed:
            return part, documents.complete
    raise AssertionError("unreachable: without a limit a file is complete")


def space_needed(remotes):
    """Bytes that the files still to be encoded will take as tokens, and the part of the largest once more."""
    sizes = [remote.size for remote in remotes]
    return TOKEN_BYTES * (sum(sizes) + max(sizes, default=0)) // 100


class Queue:
    """Fetches the next file while the main thread works on another."""

    def __init__(self, options, folder, remotes):
        self.options, self.folder, self.remotes, self.next = options, folder, remotes, None

    def start(self, i):
        self.next = download.Downloads(self.options, self.folder, [self.remotes[i]]) if i < len(self.remotes) else None

    def wait(self):
        self.next.watch()

    def stop(self):
        if self.next is not None:
            self.next.stop.set()


def add_files(options, folder, vocab, remotes, shards, state, most):
    """Appends file after file until all are in the shards, or `most` tokens."""
    queue = Queue(options, folder, remotes)
    tokens, i = state.tokens(), len(state.files)
    queue.start(i)
    try:
        while i < len(remotes) and (most is None or tokens < most):
            queue.wait()
            needed = None if most is None else most - tokens
            if needed is None:
                queue.start(i + 1)
            with text.Work(folder) as work:
                part, complete = encode(vocab, folder.join(remotes[i].name), work.prefix, needed)
                new, taken = shards.append(part, tokens, most), text.shard_tokens(part)
            if complete and new == tokens + taken:  # else a longer run takes this file again
                state.add(remotes[i], new)
            common.remove(folder.join(remotes[i].name))
            folder.forget(remotes[i].name)
            common.note(f"{remotes[i].name}: {new - tokens} tokens, {new} in all")
            tokens = new
            i += 1
            if needed is not None:
                queue.start(i if tokens < most else len(remotes))
    finally:
        queue.stop()
    return tokens


def make_shards(options, folder, vocab, remotes, shards, state, most):
    """Goes on from the state to the end. Returns the number of tokens."""
    state.trim(remotes)
    state.ended = None
    state.write()
    shards.cut(state.tokens())
    if state.files and len(state.files) < len(remotes):
        common.note(f"going on after {state.files[-1]['path']}: {state.tokens()} tokens are there")
    if most is None:
        download.check_disk(folder, space_needed(remotes[len(state.files):]), ", or take fewer with --limit")
    tokens = add_files(options, folder, vocab, remotes, shards, state, most)
    last = tokens // options.shard_size
    if os.path.exists(shards.path(last) + OPEN):
        shards.close(last)
    return tokens


def make(options, folder, repository):
    vocab = text.find_vocab(options, folder)
    folder.set_source({"source": "parquet", "repository": repository, "version": options.version,
                       "shard_size": options.shard_size, "vocab": common.file_sha256(vocab)})
    remotes = parquet_remotes(options, repository)
    shards = Shards(folder, options.prefix, options.shard_size)
    most = None if options.limit is None else (options.limit + 1) * options.shard_size
    goal = {"most": most, "files": [remote.sha256 for remote in remotes]}
    state = State(folder, shards)
    if options.verify:
        shards.check()
    here = state.is_ended(goal)
    if not here:
        tokens = make_shards(options, folder, vocab, remotes, shards, state, most)
        state.ended = {"goal": goal, "tokens": tokens}
        state.write()
    tokens = state.ended["tokens"]
    validation = min(tokens, options.shard_size)
    if tokens == validation:
        raise Problem(f"{repository}: {tokens} tokens make no second shard for training; choose a smaller --shard_size")
    print(f"{common.show_path(folder.path)}: {-(-tokens // options.shard_size)} shards"
          f"{', already there' if here else ''}; training {tokens - validation} tokens, validation {validation}")
