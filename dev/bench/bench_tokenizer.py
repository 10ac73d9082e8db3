#!/usr/bin/env python3
"""Encoding speed of llmc/data/tokenizer.h beside OpenAI's tiktoken: the same vocabulary, texts and number of threads,
in alternation; the best of several runs. The ids are compared as well.

    make tokenize
    pip install tiktoken==0.14.0
    python3 dev/bench/bench_tokenizer.py vocab.bpe [text files]

Without text files only the built-in mixture of scripts is measured. Of each text two cases, with one thread and with
two: the text in memory; and JSON lines, as the programs in dev/data stream them: the program tokenize from a pipe to
a shard, start included, against Python that parses the lines and encodes them with tiktoken. "CPU": by the processor
time of all threads, which says what a core does even where other programs take their share of the time.
"""
import array
import ctypes
import json
import os
import platform
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "dev"))
import guard  # noqa: E402
import tiktoken_gpt2  # noqa: E402

ROUNDS = 7
JSON_BYTES, DOCUMENT = 24 << 20, 3000  # of text in the JSON lines, and characters of a document: as in FineWeb
FLAGS = ["-std=gnu11", "-O3", "-march=native", "-fopenmp", "-fPIC", "-shared", "-I", ROOT]  # the Makefile's
SOURCE = """
#include "llmc/data/tokenizer.h"
#include <omp.h>
static Tokenizer tokenizer;
static Error error;
const char *bench_open(const char *path) { return tokenizer_load(&tokenizer, path, &error) ? NULL : error.text; }
int64_t bench_encode(const uint8_t *text, size_t bytes, uint32_t *tokens) {
    int64_t count;
    return tokenizer_encode(&tokenizer, text, bytes, tokens, &count, &error) ? count : -1;
}
int64_t bench_encode_parallel(const uint8_t *text, size_t bytes, uint32_t *tokens, int threads) {
    int64_t count;
    omp_set_num_threads(threads);
    return tokenizer_encode_parallel(&tokenizer, text, bytes, tokens, &count, &error) ? count : -1;
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
        with guard.open_file(source, "w", encoding="ascii") as file:
            file.write(SOURCE)
        subprocess.run([os.environ.get("CC", "cc"), *FLAGS, source, "-o", library], check=True)
        ours = ctypes.CDLL(library)
    ours.bench_open.restype, ours.bench_open.argtypes = ctypes.c_char_p, [ctypes.c_char_p]
    ours.bench_encode.restype = ctypes.c_int64
    ours.bench_encode.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p]
    ours.bench_encode_parallel.restype = ctypes.c_int64
    ours.bench_encode_parallel.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int]
    message = ours.bench_open(vocab.encode())
    if message is not None:
        sys.exit(message.decode())
    return ours


def clocks():
    """Wall time, and processor time of this process and of those it has waited for."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.perf_counter(), time.process_time() + children.ru_utime + children.ru_stime


def alternate(functions):
    """The best wall and processor times of each function in several rounds."""
    best = [[float("inf")] * 2 for _ in functions]
    for _ in range(ROUNDS):
        for times, function in zip(best, functions):
            wall, cpu = clocks()
            function()
            now_wall, now_cpu = clocks()
            times[:] = min(times[0], now_wall - wall), min(times[1], now_cpu - cpu)
    return best


def report(name, size, tokens, theirs, ours, same):
    speeds = [f"{1e-6 * size / value:6.1f}" for value in (theirs[0], ours[0], theirs[1], ours[1])]
    print(f"{name:38} {size:9} bytes {tokens:8} tokens | wall: tiktoken {speeds[0]} MB/s, ours {speeds[1]}, ratio "
          f"{theirs[0] / ours[0]:5.2f} | CPU: {speeds[2]}, {speeds[3]}, ratio {theirs[1] / ours[1]:5.2f} | "
          f"{'same ids' if same else 'DIFFERENT IDS'}", flush=True)
    return same


def measure(name, text, ours, theirs):
    """A text in memory, with one thread."""
    data = text.encode()
    tokens = (ctypes.c_uint32 * len(data))()
    their_times, our_times = alternate([lambda: theirs.encode_ordinary(text),
                                        lambda: ours.bench_encode(data, len(data), tokens)])
    count = ours.bench_encode(data, len(data), tokens)
    same = array.array("I", bytes(memoryview(tokens).cast("B"))[:4 * count]).tolist() == theirs.encode_ordinary(text)
    return report(f"{name}, 1 thread", len(data), count, their_times, our_times, same)


def measure_threads(name, text, ours, theirs, threads):
    """A text in memory: tiktoken gets it in documents, ours finds the places to cut."""
    data, documents = text.encode(), cut(text)
    tokens = (ctypes.c_uint32 * len(data))()
    their_times, our_times = alternate([lambda: theirs.encode_ordinary_batch(documents, num_threads=threads),
                                        lambda: ours.bench_encode_parallel(data, len(data), tokens, threads)])
    count = ours.bench_encode_parallel(data, len(data), tokens, threads)
    same = array.array("I", bytes(memoryview(tokens).cast("B"))[:4 * count]).tolist() == theirs.encode_ordinary(text)
    return report(f"{name}, {threads} threads", len(data), count, their_times, our_times, same)


def cut(text):
    return [text[i:i + DOCUMENT] for i in range(0, len(text), DOCUMENT)]


def measure_json_lines(name, text, vocab, theirs, threads):
    """JSON lines through a pipe into a shard, against parsing and encoding in Python."""
    documents = cut(text) * (1 + JSON_BYTES // len(text.encode()))
    lines = "".join(json.dumps({"text": document}, ensure_ascii=False) + "\n" for document in documents).encode()
    size = sum(len(document.encode()) for document in documents)
    result = []

    def with_tiktoken():
        parsed = [json.loads(line)["text"] for line in lines.splitlines()]
        encoded = theirs.encode_ordinary_batch(parsed, num_threads=threads) if threads > 1 else [
            theirs.encode_ordinary(document) for document in parsed]
        shard = array.array("H")
        for tokens in encoded:
            shard.append(theirs.eot_token)
            shard.extend(tokens)
        result[:] = [shard]

    with tempfile.TemporaryDirectory() as folder:
        command = [os.path.join(ROOT, "tokenize"), "--tokenizer", vocab, "--jsonl", "text", "--threads", str(threads),
                   "--output", os.path.join(folder, "x"), "--overwrite", "-"]
        their_times, our_times = alternate([with_tiktoken, lambda: subprocess.run(
            command, input=lines, stdout=subprocess.DEVNULL, check=True)])
        with open(os.path.join(folder, "x_train_000001.bin"), "rb") as file:
            same = file.read()[1024:] == result[0].tobytes()
    return report(f"{name}, JSON lines, {threads} thread{'s' * (threads > 1)}", size, len(result[0]), their_times,
                  our_times, same)


def measure_all(name, text, vocab, ours, theirs):
    return [measure(name, text, ours, theirs), measure_threads(name, text, ours, theirs, 2),
            measure_json_lines(name, text, vocab, theirs, 1), measure_json_lines(name, text, vocab, theirs, 2)]


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    theirs, folder = tiktoken_gpt2.gpt2(sys.argv[1]), tempfile.mkdtemp()
    subprocess.run([sys.executable, os.path.join(ROOT, "dev", "data", "vocab.py"), "--merges", sys.argv[1], "--out",
                    folder], check=True)
    vocab = os.path.join(folder, "gpt2_tokenizer.bin")
    ours = build(vocab)
    texts = [("mixed scripts", mixed_scripts(2000000))]
    for path in sys.argv[2:]:
        with open(path, encoding="utf-8", newline="") as file:
            texts.insert(0, (os.path.basename(path), file.read()))
    print(f"{platform.machine()}, Python {platform.python_version()}, tiktoken {tiktoken_gpt2.tiktoken.__version__}, "
          f"best of {ROUNDS}")
    results = [same for name, text in texts for same in measure_all(name, text, vocab, ours, theirs)]
    shutil.rmtree(folder)
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    guard.screens("stdout", "stderr")
    main()
