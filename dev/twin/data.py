"""Random numbers and the order of the data: the functions of llmc/base/rand.h and llmc/data/dataloader.h over numpy
arrays."""
import functools
import glob
import os

import numpy as np

from dev.twin import guarded
from dev.twin import Problem

END_OF_TEXT, BYTE_VOCAB, GPT2_VOCAB = 256, 257, 50257
SHARDS_OF = {(20240520, 1): np.uint16, (20240801, 7): np.uint32}  # (magic, version) -> ids
HEADER_BYTES = 1024
TEXT_LIMIT = 1 << 24

# ---- Random numbers ----

GOLDEN = 0x9e3779b97f4a7c15
SHARDS, WINDOWS, INIT = 1, 2, 1000  # streams


def rand_mix(x):
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xbf58476d1ce4e5b9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94d049bb133111eb)
    return x ^ (x >> np.uint64(31))


def rand_u64(seeds, stream, indices):
    """The numbers of a stream with these indices, uint64; one seed, or one for each."""
    seeds, indices = (np.atleast_1d(np.asarray(x, np.uint64)) for x in (seeds, indices))
    golden, one = np.uint64(GOLDEN), np.uint64(1)
    key = rand_mix(rand_mix(seeds + golden) + np.uint64((stream + 1) * GOLDEN % 2**64))
    return rand_mix(key + (indices + one) * golden)


def permute(seeds, stream, indices, sizes):
    """Where each index goes under the pseudo-random permutation of 0..size-1 of its seed: six rounds of a Feistel
    network, repeated for what does not land below size."""
    seeds, indices, sizes = np.broadcast_arrays(*(np.atleast_1d(np.asarray(x, np.uint64))
                                                  for x in (seeds, indices, sizes)))
    half = np.array([max(4, ((int(n) - 1).bit_length() + 1) // 2) for n in sizes], np.uint64)
    mask = (np.uint64(1) << half) - np.uint64(1)
    out, left = indices.copy(), np.arange(len(indices))
    while len(left):
        out[left] = feistel(seeds[left], stream, out[left], half[left], mask[left])
        left = left[out[left] >= sizes[left]]
    return out


def feistel(seeds, stream, indices, half, mask):
    left, right = indices >> half, indices & mask
    for i in range(6):
        left, right = right, left ^ (rand_u64(seeds, stream, (right << np.uint64(3)) | np.uint64(i)) & mask)
    return (left << half) | right


# ---- Files ----


def open_shard(path):
    """The tokens of a shard, which are read from the file when they are used; or a text, what is wrong with it."""
    try:
        size = os.path.getsize(path)
        with guarded.open_file(path) as file:
            head = np.fromfile(file, np.int32, 256).tolist()
    except OSError as error:
        return f"{path}: {error.strerror}"
    if len(head) < 256 or head[0] not in [magic for magic, _ in SHARDS_OF]:
        return f"{path}: is not a token shard (use ./tokenize to make shards of text)"
    if (head[0], head[1]) not in SHARDS_OF:
        return f"{path}: token shard of version {head[1]}, expected 1 or 7"
    kind = SHARDS_OF[head[0], head[1]]
    held = (size - HEADER_BYTES) / np.dtype(kind).itemsize
    if held != head[2]:
        return f"{path}: header says {head[2]} tokens, file holds {int(held)} (fetch it again)"
    return np.memmap(path, kind, "r", offset=HEADER_BYTES) if held > 0 else np.zeros(0, kind)


def list_files(pattern):
    paths = sorted(glob.glob(pattern), key=os.fsencode)
    if not paths:
        raise Problem(f"{pattern}: no such file")
    for path in paths:
        if os.path.isdir(path):
            raise Problem(f"{path}: is a folder, expected a file")
    return paths


def open_shards(pattern):
    """Names and tokens."""
    shards = [(path, open_shard(path)) for path in list_files(pattern)]
    bad = [tokens for _, tokens in shards if isinstance(tokens, str)]
    if bad:
        more = f"; and {len(bad) - 8} more" if len(bad) > 8 else ""
        raise Problem("; ".join(bad[:8]) + more)
    return shards


def read_text(pattern):
    """The bytes of the text files that a pattern matches as tokens, end-of-text before each file."""
    parts = []
    for path in list_files(pattern):
        try:
            text = np.fromfile(path, np.uint8)
        except OSError as error:
            raise Problem(f"{path}: {error.strerror}") from None
        if len(text) == 0:
            raise Problem(f"{path}: the file is empty, expected text to train on")
        parts += [np.array([END_OF_TEXT], np.uint16), text.astype(np.uint16)]
    return np.concatenate(parts)


def train_part(count, T):
    """How many of a text's tokens are for training: all but the last tenth, or one window where that is shorter."""
    validation = max(count // 10, T + 1)
    return count - validation if count - validation >= T + 1 else count


# ---- Sequences ----


class Sequences:
    """Windows of T + 1 tokens of one or several shards, numbered over the epochs; with shuffle in another order in each
    epoch. Which tokens sequence g holds follows from (seed, g) alone."""

    def __init__(self, name, shards, T, V, shuffle=False, seed=0):
        self.name, self.T, self.V, self.shuffle, self.seed = name, T, V, shuffle, seed
        self.paths, self.tokens = zip(*shards)
        self.windows = np.array([max(0, len(tokens) - 1) // T for tokens in self.tokens], np.int64)
        self.num_sequences, self.num_tokens = int(self.windows.sum()), sum(map(len, self.tokens))
        self.epoch, self.epoch_seed, self.order, self.first = -1, 0, None, None
        if self.num_sequences == 0:
            raise Problem(f"{name}: a sequence of --seq-len {T} needs {T + 1} tokens in one piece, the longest piece "
                          f"has {max(map(len, self.tokens))}; choose a shorter sequence or more data")

    def set_epoch(self, epoch):
        """Lists the shards in the order of an epoch, and the first sequence of each."""
        if epoch == self.epoch:
            return
        n = len(self.windows)
        self.epoch, self.epoch_seed = epoch, rand_u64(self.seed, SHARDS, epoch)[0]
        places = np.arange(n, dtype=np.uint64)
        order = permute(self.epoch_seed, SHARDS, places, n) if self.shuffle else places
        self.order = order.astype(np.int64)
        self.first = np.concatenate([[0], np.cumsum(self.windows[self.order])[:-1]])

    def locate(self, first, count):
        """Shard and window of sequences first..first+count-1."""
        shards, windows = np.empty(count, np.int64), np.empty(count, np.int64)
        epochs, in_epoch = np.divmod(np.arange(first, first + count), self.num_sequences)
        for epoch in np.unique(epochs):
            here = epochs == epoch
            self.set_epoch(int(epoch))
            place = np.searchsorted(self.first, in_epoch[here], side="right") - 1
            shards[here], windows[here] = self.order[place], in_epoch[here] - self.first[place]
            if self.shuffle:
                seeds = rand_u64(self.epoch_seed, WINDOWS, shards[here])
                windows[here] = permute(seeds, WINDOWS, windows[here], self.windows[shards[here]])
        return shards, windows

    def read(self, first, count):
        """The windows of sequences first..first+count-1: (count, T+1) int64."""
        T = self.T
        rows = np.empty((count, T + 1), np.int64)
        for row, shard, window in zip(rows, *self.locate(first, count)):
            row[:] = self.tokens[shard][window * T:window * T + T + 1]
            if row.max() >= self.V:
                i = int(np.argmax(row >= self.V))
                raise Problem(f"{self.paths[shard]}: token {window * T + i} is id {row[i]}, the model's vocabulary has "
                              f"{self.V} (made by another tokenizer?)")
        return rows

    @functools.cached_property
    def fingerprint(self):
        """The hash that the C trainers record: of sizes and tokens, of files three samples. None for a text of more
        than TEXT_LIMIT tokens, which would take long in Python."""
        hashed = 0
        for tokens in self.tokens:
            pieces = [np.int64(len(tokens)), tokens]
            if self.name.endswith(".bin"):
                count = min(len(tokens), 1024)
                begins = [(len(tokens) - count) // 2 * i for i in range(3)]
                pieces[1:] = [tokens[begin:begin + count] for begin in begins]
            elif len(tokens) > TEXT_LIMIT:
                return None
            for piece in pieces:
                hashed = hash64_join(hashed, piece.tobytes())
        return f"{hashed:016x}"


def open_sequences(pattern, T, V, shuffle, seed):
    """The training data that a pattern names, and what of a text is for validation, or None."""
    if pattern.endswith(".bin"):
        return Sequences(pattern, open_shards(pattern), T, V, shuffle, seed), None
    text = read_text(pattern)
    count = train_part(len(text), T)
    validation = None
    if len(text) - count > T:
        validation = Sequences("(the last part of it)", [(pattern, text[count:])], T, V)
    return Sequences(pattern, [(pattern, text[:count])], T, V, shuffle, seed), validation


def open_validation(pattern, T, V):
    shards = open_shards(pattern) if pattern.endswith(".bin") else [(pattern, read_text(pattern))]
    return Sequences(pattern, shards, T, V)


# ---- Checksums ----

U64 = 2**64 - 1


def sum64(words):
    """SUM64 of an array of 4-byte words: the hash of the weights that the trainers print."""
    total, block = 0, 1 << 20
    words = words.view(np.uint32)
    for begin in range(0, len(words), block):
        part = words[begin:begin + block].astype(np.uint64)
        places = np.arange(begin + 1, begin + 1 + len(part), dtype=np.uint64)
        total = (total + int(rand_mix(places * np.uint64(GOLDEN) + part).sum(dtype=np.uint64))) & U64
    return total


def hash64(data):
    """The hash of bytes: the SUM64 of their words, the last one filled up with zeros, and their number."""
    return hash_of_words(np.frombuffer(data + bytes(-len(data) % 4), np.uint32), len(data))


def hash_of_words(words, size=None):
    """The hash of `size` bytes that lie in 4-byte words; without a size, of all."""
    size = 4 * len(words) if size is None else size
    return (sum64(words) + int(rand_mix(np.array([U64 - size], np.uint64))[0])) & U64


def hash64_join(hashed, data):
    """The hash of a hash and more bytes."""
    return hash64(np.array([hashed, hash64(data)], np.uint64).tobytes())
