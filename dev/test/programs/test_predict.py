"""dev/bench/predict.py: FLOPs and traffic are those of --plan, bytes those of the emulator's meter, and the documents
have its figures. No GPU is needed."""
import os
import re
import subprocess
import sys

import pytest

from tools import ROOT, text_of

sys.path.insert(0, os.path.join(ROOT, "dev", "bench"))
import predict  # noqa: E402 (its folder had to be named first)

EMULATED = os.path.join(ROOT, "train_gpt2emu")


def step(words):
    return predict.Step(predict.options(words.split()))


@pytest.mark.parametrize("model", ("-e d12 -b 4", "-e d24 -b 2", "-e gpt3:c768 -t 2048 -b 8", "-e llama:1B -b 4",
                                   "-e llama:8B -b 1", "-e smollm2:135M -b 8"))
def test_flops_and_traffic_of_the_plan(model):
    program = EMULATED.replace("gpt2", "llama3") if "l" in model else EMULATED
    if not os.path.exists(program):
        pytest.skip(f"{os.path.basename(program)} is not built (make {os.path.basename(program)})")
    for more in ("", *(f" -np {ranks} -z {stage}" for ranks in (2, 7, 8) for stage in range(4))):
        words = f"{model} -d {7 * 8 * 32768}{more}"
        run = step(words)
        out = subprocess.run([program, "--plan", *words.split()], capture_output=True, text=True, check=True).stdout
        assert f"\na step      {run.flops:.4g} FLOPs on each GPU\n" in out, (words, run.flops, out)
        sent = re.search(r"^ +(\d+) bytes of gradients, (\d+) of parameters, sent by each GPU$", out, re.M)
        assert run.traffic() == (tuple(map(int, sent.groups())) if sent else (0, 0)), (words, run.traffic(), out)


@pytest.mark.parametrize("grid", (
    "-e llama:8B -np 8 --tp 4 -z 1", "-e llama:8B -np 64 --pp 4 --pp-schedule interleaved -z 1",
    "-e llama:8B -np 64 --tp 2 --cp 2 --pp 2 -z 1", "-e llama:1B -np 8 --cp 2 --tp 2 -z 2",
    "-e d24 -np 8 --tp 4 --cp 2"))
def test_traffic_of_a_grid(grid):
    """Of the last stage. What is left out is small: sums of vectors, and the losses of parts of the vocabulary."""
    program = EMULATED.replace("gpt2", "llama3") if "llama" in grid else EMULATED
    if not os.path.exists(program):
        pytest.skip(f"{os.path.basename(program)} is not built (make {os.path.basename(program)})")
    words = f"{grid} -b 1 -t 1024 -d 1048576"
    run = step(words)
    command = [program, "--plan", "-r", "0", *words.split()]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert f"\na step      {run.flops:.4g} FLOPs on each GPU\n" in out, (run.flops, out)
    last = out[max(out.find(f"\nstage {run.run.pp - 1} "), 0):]
    kinds = [rf"(\d+) {what}" for what in ("bytes of grad", "of param", "bytes for tens", "bytes of keys", "bytes to")]
    for kind, bytes_ in zip(kinds, (*run.traffic(), *run.exchange())):
        found = re.search(kind, last)
        assert abs(bytes_ - (int(found[1]) if found else 0)) <= 0.005 * bytes_, (kind, bytes_, out)


@pytest.mark.parametrize("offload", ("optimizer,gradients", "master,parameters --moments bf16", "residuals", "all"))
def test_bus(offload):
    """Bytes between a GPU and its host, but for padding."""
    for model in ("-e llama:8B -b 2 -t 2048 -d 16384", "-e d12 -b 4 -d 16384"):
        program = EMULATED.replace("gpt2", "llama3") if "llama" in model else EMULATED
        if not os.path.exists(program):
            pytest.skip(f"{os.path.basename(program)} is not built (make {os.path.basename(program)})")
        words = f"{model} -r 3 --offload {offload}"
        out = subprocess.run([program, "--plan", *words.split()], capture_output=True, text=True, check=True).stdout
        found = map(int, re.search(r"^bus +(\d+) bytes to each GPU, (\d+) from it$", out, re.M).groups())
        for bytes_, passes, update in zip(found, *step(words).bus()):
            assert abs(bytes_ - passes - update) <= 1e-4 * bytes_, (words, bytes_, passes, update)


def test_a_slow_bus_takes_time():
    """Few tokens at a time wait for the bus, many hide it but for the update."""
    words = "-e llama:8B --gpu 4090 -t 2048 -d 131072 -r 3 --offload all -b"
    few, many = step(f"{words} 1"), step(f"{words} 32")
    assert few.seconds_with_bus(25e9) > 1.3 * few.seconds and many.seconds_with_bus(25e9) < 1.1 * many.seconds
    assert many.seconds < many.seconds_with_bus(50e9) < many.seconds_with_bus(25e9)


def test_a_pipeline_waits():
    """A stage is idle for (p - 1) / (m v + p - 1) of a step, and more chunks send more."""
    words = "-e llama:8B -np 4 --pp 4 -b 1 -t 4096 -d 65536"
    line, ring = step(words), step(words + " --pp-schedule interleaved --pp-chunks 4")
    for run, chunks in ((line, 1), (ring, 4)):
        assert abs(run.waits() / run.seconds - 3 / (4 * 4 * chunks + 3)) < 0.02, (chunks, run.waits(), run.seconds)
    assert ring.seconds < line.seconds and ring.exchange()[2] > line.exchange()[2]


def test_bytes_of_the_meter():
    """test_docs.py compares the table in doc/kernels.md with what the meter prints. In so small a step, a LayerNorm's
    weights and the sums that a block of threads leaves are some percent of the bytes."""
    page = text_of("doc/kernels.md")
    sizes = ("layers", "heads", "channels", "context")
    shape = [int(re.search(rf"EMU_METER=1 .*--{name} (\d+)", page)[1]) for name in sizes]
    words = re.search(r"--seq-len \d+ --batch-size \d+", page)[0] + " --attention own"
    run = predict.Step(predict.options(words.split()), predict.Shape(*shape, 257))
    table = page.partition("emu: what the kernels did.")[2].partition("```")[0]
    rows = [(line[:34].strip(), line[34:].split()) for line in table.splitlines()[3:]]
    for name, kernel in run.kernels.items():
        if name.startswith("matmul ") or name == "fill":  # of libraries
            continue
        cells = next(cells for function, cells in rows if function.startswith(name) or name.startswith(function))
        calls, megabytes = int(cells[0]), float(cells[-4])
        assert calls == kernel.calls and 0.999 < 1e6 * megabytes / kernel.bytes < 1.12, (name, kernel, calls, megabytes)
    multiplies = next(cells for function, cells in rows if function == "cublasLtMatmul")
    flops = sum(kernel.flops for name, kernel in run.kernels.items() if name.startswith("matmul "))
    assert abs(1e6 * float(multiplies[-1]) / flops - 1) < 0.05, (flops, multiplies)


def test_documents_have_these_figures():
    figures = list(predict.figures())
    for document, text in figures:
        assert text in text_of(document), f"{document} lacks \"{text}\": dev/bench/predict.py --figures"
    recipes = [name for name in os.listdir(os.path.join(ROOT, "scripts")) if re.match(r"run_.*\.sh", name)]
    assert {f"scripts/{name}" for name in recipes} <= {document for document, _ in figures}, recipes
    mfu = float(re.search(r"#define PREDICTED_MFU (\S+)", text_of("dev/exercises/14_reproducing/chapter.c"))[1])
    assert round(step("-e d12 -b 64 -d 524288").mfu, 2) == mfu


def test_no_kernel_is_faster_than_the_datasheet():
    for words in ("-e d12 -b 64", "-e d48 -b 16 --fp8", "-e d12 -b 4 --attention own", "-e d24 -b 1 --gpu 4090"):
        run = step(words)
        for name, kernel in run.kernels.items():
            peak = run.gpu.fp8_flops if run.run.fp8 and "lm_head" not in name else run.gpu.flops
            least = max(kernel.bytes / run.gpu.memory, kernel.flops / peak) + kernel.calls * predict.LAUNCH
            assert kernel.seconds > least, (words, name, kernel)


def test_between_machines():
    """A ring takes all network cards, and is never faster than NVLink. Fewer sequences hide less."""
    waits = [step(f"-e d12 -d 4194304 -b {batch} -np {ranks} -z 1").waits() for batch, ranks in
             ((64, 8), (64, 64), (8, 64))]
    assert waits[0] < waits[1] <= waits[2], waits
    slow = [step(f"-e d12 -d 4194304 -b 64 -np {ranks} -z 1 --gpu 4090").waits() for ranks in (8, 64)]
    assert slow[0] < slow[1] < 1.2 * slow[0], "a network makes GPUs without NVLink faster, or much slower"
