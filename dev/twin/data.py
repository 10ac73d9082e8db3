"""The random numbers, the order of the data and the checksums of the C trainers (llmc/base/rand.h,
llmc/data/dataloader.h), over numpy arrays."""
import functools
import glob
import os

import numpy as np

from dev.twin import Problem

END_OF_TEXT, BYTE_VOCAB, GPT2_VOCAB = 256, 257, 50257
SHARDS_OF = {(20240520, 1): np.uint16, (20240801, 7): np.uint32}  # (magic, version) -> ids
HEADER_BYTES = 1024

# ---- Random numbers ----

GOLDEN, U64 = 0x9e3779b97f4a7c15, 2**64 - 1
SHARDS, WINDOWS, INIT = 1, 2, 1000  # streams


def rand_mix(x):
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xbf58476d1ce4e5b9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94d049bb133111eb)
    return x ^ (x >> np.uint64(31))


def rand_u64(seed, stream, indices):
    """The numbers of a stream with these indices, uint64."""
    golden = np.uint64(GOLDEN)
    key = rand_mix(rand_mix(np.array([seed], np.uint64) + golden) + np.uint64((stream + 1) * GOLDEN & U64))
    return rand_mix(key + (np.array(indices, np.uint64, ndmin=1) + np.uint64(1)) * golden)


@functools.lru_cache(16)
def permutation(seed, stream, size):
    """The pseudo-random permutation of 0..size-1 of a seed: six rounds of a Feistel network, repeated for what does not
    land below size."""
    half = np.uint64(max(4, ((size - 1).bit_length() + 1) // 2))
    mask = (np.uint64(1) << half) - np.uint64(1)
    out = np.arange(size, dtype=np.uint64)
    moving = np.arange(size)
    while len(moving):
        left, right = out[moving] >> half, out[moving] & mask
        for i in range(6):
            left, right = right, left ^ (rand_u64(seed, stream, (right << np.uint64(3)) | np.uint64(i)) & mask)
        out[moving] = (left << half) | right
        moving = moving[out[moving] >= size]
    return out.astype(np.int64)


# ---- Files ----


def list_files(pattern):
    paths = sorted(glob.glob(pattern), key=os.fsencode)
    if not paths:
        raise Problem(f"{pattern}: no such file")
    return paths


def open_shard(path):
    """The tokens of a shard, which are read from the file when they are used."""
    magic, version, count = (*np.fromfile(path, np.int32, 3), 0, 0, 0)[:3]
    kind = SHARDS_OF.get((magic, version))
    if kind is None:
        raise Problem(f"{path}: is not a token shard of version 1 or 7 (use ./tokenize to make shards of text)")
    held = (os.path.getsize(path) - HEADER_BYTES) / np.dtype(kind).itemsize
    if held != count:
        raise Problem(f"{path}: header says {count} tokens, file holds {int(held)} (fetch it again)")
    return np.memmap(path, kind, "r", offset=HEADER_BYTES) if count else np.zeros(0, kind)


def read_text(pattern):
    """The bytes of the text files that a pattern matches as tokens, end-of-text before each file."""
    parts = []
    for path in list_files(pattern):
        parts += [np.array([END_OF_TEXT], np.uint16), np.fromfile(path, np.uint8).astype(np.uint16)]
        if len(parts[-1]) == 0:
            raise Problem(f"{path}: the file is empty, expected text to train on")
    return np.concatenate(parts)


# ---- Sequences ----


class Sequences:
    """Windows of T + 1 tokens of one or several shards, numbered over the epochs; with shuffle in another order in each
    epoch. Which tokens sequence g holds follows from (seed, g) alone."""

    def __init__(self, name, shards, T, V, shuffle=False, seed=0):
        self.name, self.T, self.V, self.shuffle, self.seed = name, T, V, shuffle, seed
        self.paths, self.tokens = zip(*shards)
        self.windows = np.array([max(0, len(tokens) - 1) // T for tokens in self.tokens], np.int64)
        self.num_sequences, self.num_tokens = int(self.windows.sum()), sum(map(len, self.tokens))
        if self.num_sequences == 0:
            raise Problem(f"{name}: a sequence of --seq-len {T} needs {T + 1} tokens in one piece, the longest piece "
                          f"has {max(map(len, self.tokens))}; choose a shorter sequence or more data")

    @functools.lru_cache(2)
    def order_of(self, epoch):
        """The seed of an epoch, its shards in order, and the first sequence of each of them."""
        seed, order = int(rand_u64(self.seed, SHARDS, epoch)[0]), np.arange(len(self.windows))
        if self.shuffle:
            order = permutation(seed, SHARDS, len(order))
        return seed, order, np.cumsum(self.windows[order]) - self.windows[order]

    def locate(self, sequence):
        """Shard and window of a sequence."""
        epoch, sequence = divmod(sequence, self.num_sequences)
        seed, order, first = self.order_of(epoch)
        place = np.searchsorted(first, sequence, side="right") - 1
        shard, window = int(order[place]), int(sequence - first[place])
        if self.shuffle:
            seed = int(rand_u64(seed, WINDOWS, shard)[0])
            window = int(permutation(seed, WINDOWS, int(self.windows[shard]))[window])
        return shard, window

    def read(self, numbers):
        """The windows of these sequences: (B, T+1) int64."""
        T, places = self.T, [self.locate(number) for number in numbers]
        rows = np.stack([self.tokens[shard][window * T:window * T + T + 1] for shard, window in places])
        for row, i in np.argwhere(rows >= self.V)[:1]:
            shard, window = places[row]
            raise Problem(f"{self.paths[shard]}: token {window * T + i} is id {rows[row, i]}, the model's vocabulary "
                          f"has {self.V} (made by another tokenizer?)")
        return rows.astype(np.int64)


def open_sequences(pattern, T, V, shuffle=False, seed=0, splits=True):
    """The data that a pattern names, and what of a text is for validation, or None. splits: else all is data."""
    if pattern.endswith(".bin"):
        shards = [(path, open_shard(path)) for path in list_files(pattern)]
        return Sequences(pattern, shards, T, V, shuffle, seed), None
    text = read_text(pattern)
    held_out = max(len(text) // 10, T + 1)  # the last tenth, or one window where that is longer
    if not splits or len(text) - held_out < T + 1:
        return Sequences(pattern, [(pattern, text)], T, V, shuffle, seed), None
    return (Sequences(pattern, [(pattern, text[:-held_out])], T, V, shuffle, seed),
            Sequences("(the last part of it)", [(pattern, text[-held_out:])], T, V))


# ---- Checksums ----


def sum64(words):
    """SUM64 of an array of 4-byte words: the hash of the weights that the trainers print."""
    total, block = 0, 1 << 20
    words = words.view(np.uint32)
    for begin in range(0, len(words), block):
        part = words[begin:begin + block].astype(np.uint64)
        places = np.arange(begin + 1, begin + 1 + len(part), dtype=np.uint64)
        total += int(rand_mix(places * np.uint64(GOLDEN) + part).sum(dtype=np.uint64))
    return total & U64
