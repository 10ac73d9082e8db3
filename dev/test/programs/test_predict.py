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


def planned(words):
    """What --plan says."""
    program = EMULATED.replace("gpt2", "llama3") if re.search("llama|smollm", words) else EMULATED
    if not os.path.exists(program):
        pytest.skip(f"{os.path.basename(program)} is not built (make {os.path.basename(program)})")
    return subprocess.run([program, "--plan", *words.split()], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("model", ("-e d12 -b 4", "-e gpt3:c768 -t 2048 -b 8", "-e llama:8B -b 1",
                                   "-e smollm2:135M -b 8"))
def test_flops_and_traffic_of_the_plan(model):
    for more in ("", *(f" -np {ranks} -z {stage}" for ranks in (2, 7) for stage in range(4))):
        words = f"{model} -d {7 * 8 * 32768}{more}"
        run, out = step(words), planned(words)
        assert f"\na step      {run.flops:.4g} FLOPs on each GPU\n" in out, (words, run.flops, out)
        sent = re.search(r"^ +(\d+) bytes of gradients, (\d+) of parameters, sent by each GPU$", out, re.M)
        assert run.traffic() == (tuple(map(int, sent.groups())) if sent else (0, 0)), (words, run.traffic(), out)


@pytest.mark.parametrize("grid", (
    "-e llama:8B -np 8 --tp 4 -z 1", "-e llama:8B -np 64 --pp 4 --pp-schedule interleaved -z 1",
    "-e llama:8B -np 64 --tp 2 --cp 2 --pp 2 -z 1", "-e llama:1B -np 8 --cp 2 --tp 2 -z 2",
    "-e d24 -np 8 --tp 4 --cp 2"))
def test_traffic_of_a_grid(grid):
    """Of the last stage. What is left out is small: sums of vectors, and the losses of parts of the vocabulary."""
    words = f"{grid} -b 1 -t 1024 -d 1048576"
    run, out = step(words), planned(f"-r 0 {words}")
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
        words = f"{model} -r 3 --offload {offload}"
        out = planned(words)
        found = map(int, re.search(r"^bus +(\d+) bytes to each GPU, (\d+) from it$", out, re.M).groups())
        for bytes_, passes, update in zip(found, *step(words).bus()):
            assert abs(bytes_ - passes - update) <= 1e-4 * bytes_, (words, bytes_, passes, update)


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
    mfu = float(re.search(r"#define PREDICTED_MFU (\S+)", text_of("dev/exercises/19_reproducing/chapter.c"))[1])
    assert round(step("-e d12 -b 64 -d 524288").mfu, 2) == mfu


def test_between_machines():
    """A network makes GPUs without NVLink no faster, and not much slower."""
    waits = [step(f"-e d12 -d 4194304 -b 64 -np {ranks} -z 1 --gpu 4090").waits() for ranks in (8, 64)]
    assert waits[0] < waits[1] < 1.2 * waits[0], waits
