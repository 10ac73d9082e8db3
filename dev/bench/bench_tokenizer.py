#!/usr/bin/env python3
"""Encoding speed of llmc/tokenizer.h beside OpenAI's tiktoken: one thread each, the same vocabulary, the same texts, in
alternation; the best of several runs. The ids are compared as well.

    pip install tiktoken==0.14.0
    python3 dev/bench/bench_tokenizer.py vocab.bpe [text files]

Without text files only the built-in mixture of scripts is measured.
"""
import array
import ctypes
import os
import platform
import random
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "dev"))
import tiktoken_gpt2  # noqa: E402

ROUNDS = 7
FLAGS = ["-std=gnu11", "-O3", "-march=native", "-fPIC", "-shared", "-I", ROOT]  # the Makefile's
SOURCE = """
#include "llmc/tokenizer.h"
static Tokenizer tokenizer;
static Error error;
const char *bench_open(const char *path) { return tokenizer_load(&tokenizer, path, &error) ? NULL : error.text; }
int64_t bench_encode(const uint8_t *text, size_t bytes, uint16_t *tokens) {
    int64_t count;
    return tokenizer_encode(&tokenizer, text, bytes, tokens, &count, &error) ? count : -1;
}
"""
SENTENCES = [
    "The quick brown fox jumps over the lazy dog; it's 7:45 and we'll be late.",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.",
    "Voix ambiguë d’un cœur qui, au zéphyr, préfère les jattes de kiwis.",
    "Съешь же ещё этих мягких французских булок.",
    "天地玄黃，宇宙洪荒。日月盈昃，辰宿列張。",
    "いろはにほへと ちりぬるを わかよたれそ",
    "نص حكيم له سر قاطع وذو شأن",
    "ऋषियों को सताने वाले",
    "😀 👍🏽 ❤️ 3.14159 ½ ≤ ∞",
    "for (int i = 0; i < n; i++) {\n        sum += x[i] * y[i];\n    }\n",
]


def mixed_scripts(size):
    rng = random.Random(1)
    parts, total = [], 0
    while total < size:
        words = rng.choice(SENTENCES).split(" ")
        rng.shuffle(words)
        parts.append(" ".join(words) + rng.choice([" ", "\n", "\n\n"]))
        total += len(parts[-1].encode())
    return "".join(parts)


def build(vocab):
    with tempfile.TemporaryDirectory() as folder:
        source, library = os.path.join(folder, "bench.c"), os.path.join(folder, "bench.so")
        with open(source, "w", encoding="ascii") as file:
            file.write(SOURCE)
        subprocess.run([os.environ.get("CC", "cc"), *FLAGS, source, "-o", library], check=True)
        ours = ctypes.CDLL(library)
    ours.bench_open.restype, ours.bench_open.argtypes = ctypes.c_char_p, [ctypes.c_char_p]
    ours.bench_encode.restype = ctypes.c_int64
    ours.bench_encode.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p]
    message = ours.bench_open(vocab.encode())
    if message is not None:
        sys.exit(message.decode())
    return ours


def seconds(function):
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def measure(name, text, ours, theirs):
    data = text.encode()
    tokens = (ctypes.c_uint16 * len(data))()
    best_ours = best_theirs = float("inf")
    for _ in range(ROUNDS):
        best_theirs = min(best_theirs, seconds(lambda: theirs.encode_ordinary(text)))
        best_ours = min(best_ours, seconds(lambda: ours.bench_encode(data, len(data), tokens)))
    count = ours.bench_encode(data, len(data), tokens)
    same = array.array("H", bytes(memoryview(tokens).cast("B"))[:2 * count]).tolist() == theirs.encode_ordinary(text)
    print(f"{name:24} {len(data):9} bytes  {count:8} tokens  tiktoken {1e-6 * len(data) / best_theirs:6.1f} MB/s  "
          f"ours {1e-6 * len(data) / best_ours:6.1f} MB/s  ratio {best_theirs / best_ours:5.2f}  "
          f"{'same ids' if same else 'DIFFERENT IDS'}", flush=True)
    return same


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    ours, theirs = build(sys.argv[1]), tiktoken_gpt2.gpt2(sys.argv[1])
    texts = [("mixed scripts", mixed_scripts(2000000))]
    for path in sys.argv[2:]:
        with open(path, encoding="utf-8", newline="") as file:
            texts.insert(0, (os.path.basename(path), file.read()))
    print(f"{platform.machine()}, Python {platform.python_version()}, tiktoken {tiktoken_gpt2.tiktoken.__version__}, "
          f"best of {ROUNDS}")
    results = [measure(name, text, ours, theirs) for name, text in texts]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
