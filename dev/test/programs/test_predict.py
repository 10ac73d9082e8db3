"""dev/bench/predict.py: its bytes are those of the emulator's meter, and the documents have its figures. No GPU is
needed."""
import os
import re
import sys

from gpu_program import needs, only_emulated
from tools import ROOT, text_of

sys.path.insert(0, os.path.join(ROOT, "dev", "bench"))
import predict  # noqa: E402 (its folder had to be named first)

only_emulated()


def test_bytes_of_the_meter():
    """test_docs.py compares the table in doc/kernels.md with what the meter prints. In so small a step, a LayerNorm's
    weights and the sums that a block of threads leaves are some percent of the bytes."""
    needs("train_gpt2emu")
    page = text_of("doc/kernels.md")
    run = predict.Step(re.search(r"--layers .* --batch-size \d+", page)[0] + " --vocab 257 --attention own")
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


def test_documents_on_gpt2_and_llama():
    """They have all predicted figures."""
    needs("train_gpt2emu", "train_llama3emu")
    figures = list(predict.figures())
    for document, text in figures:
        assert text in text_of(document), f"{document} lacks \"{text}\": dev/bench/predict.py --figures"
    recipes = [name for name in os.listdir(os.path.join(ROOT, "scripts")) if re.match(r"run_.*\.sh", name)]
    assert {f"scripts/{name}" for name in recipes} <= {document for document, _ in figures}, recipes
    mfu = float(re.search(r"#define PREDICTED_MFU (\S+)", text_of("dev/exercises/19_reproducing/chapter.c"))[1])
    assert round(predict.Step("-e d12 -b 64 -d 524288").mfu, 2) == mfu


def test_moments_in_bf16():
    """The update reads and writes m and v of each parameter, and 2 bytes of each number are gone."""
    needs("train_gpt2emu")
    fp32, bf16 = (predict.Step(f"-e d12 -b 4 --moments {words}") for words in ("fp32", "bf16"))
    saved = fp32.kernels["update_elements"].bytes - bf16.kernels["update_elements"].bytes
    assert round(saved) == 8 * fp32.own, saved


def test_between_machines():
    """A network makes GPUs without NVLink no faster, and not much slower."""
    needs("train_gpt2emu")
    waits = [predict.Step(f"-e d12 -d 4194304 -b 64 -np {ranks} -z 1 --gpu 4090").waits() for ranks in (8, 64)]
    assert waits[0] < waits[1] < 1.2 * waits[0], waits
