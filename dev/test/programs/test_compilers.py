"""What compilers make of the source. Every header stands alone. The GPU trainers compile with nvcc without a warning,
start, and no kernel spills registers (without nvcc: skipped). emucc, the emulator's compiler, takes nvcc's options.
What it translates, and what it lacks: test_emu_courses.py. What the emulator does as a GPU does: emu_*.cu.

    python3 -m pytest dev/test/programs/test_compilers.py -k headers
    python3 -m pytest dev/test/programs/test_compilers.py -k nvcc -s      with the registers of each kernel
"""
import glob
import os
import re
import shutil
import subprocess
import sys

import pytest

from tools import ROOT, path, read, text_of, write

QUICK = "TEST_QUICK" in os.environ
CXX = os.environ.get("CXX", "g++")
EMUCC = ["dev/emu/emucc", "--build", "build/emu", "-I.", "-Wall", "-Wextra", "-Werror"]
LIMIT = 600


def run(*command, status=0, **environment):
    """What a command prints that must end with this status."""
    if command[0] == EMUCC[0] and sys.platform != "linux" or "/" not in command[0] and not shutil.which(command[0]):
        pytest.skip(f"no {command[0]} here")
    done = subprocess.run(command, cwd=ROOT, env=dict(os.environ, CXX=CXX, **environment), stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, errors="replace", timeout=LIMIT, check=False)
    assert done.returncode == status, (command, done.returncode, done.stdout[-4000:])
    return done.stdout


# ---- Headers ----

HEADERS = sorted(os.path.relpath(name, ROOT) for end in ("h", "cuh") for name in glob.glob(f"{ROOT}/llmc/*/*.{end}"))
OF_CUDA = [name for name in HEADERS if name.endswith(".cuh") or re.search(
    r'^#include (<(cuda|cublas|nccl|nvtx)|"llmc/cuda/(cuda|cublas)|".*\.cuh")', open(f"{ROOT}/{name}").read(), re.M)]
OF_C = [name for name in HEADERS if name not in OF_CUDA]
STRICT = ["-I.", "-Wall", "-Wextra", "-Werror"]
OPENMP = "-fopenmp" if sys.platform == "linux" else "-Wno-unknown-pragmas"
C11 = ["gcc", "-std=gnu11", OPENMP, "-march=native", *STRICT]
EMULATED = [*EMUCC, "-O0", "-g0", "-DUSE_NCCL", "-Wno-unknown-pragmas"]


def rooms_of(headers):
    return sorted({os.path.dirname(name) for name in headers})


@pytest.mark.long
@pytest.mark.parametrize("room", rooms_of(OF_C))
def test_headers_of_c_alone(room):
    run(*C11, "-fsyntax-only", "-x", "c", *(name for name in OF_C if name.startswith(room + "/")))


@pytest.mark.long
@pytest.mark.parametrize("header", OF_CUDA)
def test_headers_of_cuda_alone(header):
    """As C++17, with the emulator's compiler; test_nvcc compiles them with nvcc."""
    run(*EMULATED, "-fsyntax-only", "-c", write("alone.cu", f'#include "{header}"\n'), "-o", path("alone.o"))


@pytest.mark.parametrize("kind", ("c", pytest.param("cu", marks=pytest.mark.long)))
def test_headers_in_two_objects(kind):
    """All of them together link twice: they have nothing but static inline. As C11; those of CUDA in fp32, emulated.
    Left out: the second model's tables, and the trainers' programs."""
    command = C11 if kind == "c" else [*EMULATED, "-DPRECISION_FP32"]
    all_of_them = "".join(f'#include "{name}"\n' for name in (OF_CUDA if kind == "cu" else OF_C)
                          if not re.search(r"llama3\.h|program\.", name))
    first = write(f"first.{kind}", all_of_them + "int second(void);\nint main(void) { return second(); }\n")
    second = write(f"second.{kind}", all_of_them + "int second(void) { return 0; }\n")
    run(*command, first, second, "-o", path("linked"), "-pthread", "-lm")


# ---- nvcc ----

NVCC = shutil.which("nvcc", path=os.pathsep.join((os.environ.get("CUDA_HOME", "") + "/bin", os.environ["PATH"],
                                                  "/usr/local/cuda/bin", "/opt/cuda/bin")))
NOT_OPTIMISED = "-O0 -Xptxas -O0 -Xcicc -O0"  # in a fifth of the time
ALONE = ("NCCL=0", "MPI=0", "CUDNN=0")
BUILDS = {  # name: program, precision, GPUs, nvcc's flags, make's other variables
    "trainer": ("train_gpt2cu", "BF16", "80 90", "-Xcompiler -Og -Xptxas -v", ()),
    "fp32_alone": ("train_gpt2cu", "FP32", "90", NOT_OPTIMISED, ALONE),
    "llama": ("test_llama3cu", "BF16", "90", NOT_OPTIMISED, ALONE)}  # and the trainer in it
if QUICK:  # as PTX only
    BUILDS = {"quick": ("train_gpt2cu", "BF16", "90", NOT_OPTIMISED,
                        ("GENCODE=-gencode arch=compute_90,code=compute_90",))}


@pytest.mark.skipif(NVCC is None, reason="no nvcc here: the CUDA files were compiled for the emulator only")
@pytest.mark.parametrize("name", BUILDS)
def test_nvcc(name):
    program, precision, archs, flags, others = BUILDS[name]
    folder = f"build/nvcc_{name}"
    if "-v" in flags:
        shutil.rmtree(f"{ROOT}/{folder}", ignore_errors=True)  # make says nothing of kernels that it does not compile
    log = run("make", "WERROR=1", f"NVCC={NVCC}", f"PRECISION={precision}", f"GPU_ARCH={archs}", f"NVCCFLAGS={flags}",
              f"BUILD={folder}", f"BIN={folder}", *others, f"{folder}/{program}")
    if program == "train_gpt2cu":  # --help reads no GPU, but the program's libraries must be found
        assert run(f"{folder}/{program}", "--help").startswith("Usage: train_gpt2cu")
    if "-v" in flags:
        check_spills(log)


def check_spills(log):
    """Prints what each kernel takes of a multiprocessor."""
    kernels = re.findall(r"Compiling entry function '(\w+)' for '(sm_\w+)'.*?(\d+) bytes spill stores, (\d+) bytes "
                         r"spill loads.*?Used (\d+) registers", log, re.S)
    names = run("c++filt", *(kernel[0] for kernel in kernels)).splitlines()
    lines = sorted(f"{re.sub(r'^void |[(].*', '', name):<60} {arch} {registers:>4} registers, "
                   f"{int(stores) + int(loads)} bytes spilled"
                   for name, (_, arch, stores, loads, registers) in zip(names, kernels))
    print("\n".join(lines))
    bad = [line for line in lines if not line.endswith(" 0 bytes spilled")]
    assert len(lines) > 50 and not bad, (bad, "registers are short; smaller tiles, or a launch bound")


# ---- emucc: options and programs ----

PART = """#include <cuda_runtime.h>
#include "cuda_value.h" // a name as CUDA's
__global__ void store(int *out) { *out = VALUE + ADD; }
void call(int *out) {
    store<<<1, 1>>>(out);
}
"""
MAIN = """#include <cuda_runtime.h>
void call(int *out);
int main() {
    int *device, host = 0;
    cudaMalloc(&device, sizeof(int));
    call(device);
    cudaMemcpy(&host, device, sizeof(int), cudaMemcpyDeviceToHost);
    return host == 42 ? 0 : 1;
}
"""


def emucc(*words, status=0):
    """Compiles, and says nothing unless it refuses."""
    out = run(*EMUCC, *words, status=status)
    assert status != 0 or out == "", out
    return out


@pytest.mark.long
def test_emucc_compiles_and_links():
    write("include folder/cuda_value.h", "#define VALUE 40\n")
    emucc("-O0", "-c", "-I", path("include folder"), "-DADD=2", "-MMD", write("part.cu", PART), "-o", path("part.o"))
    assert b"cuda_value.h" in read("part.d")
    emucc("-O0", write("main.cu", MAIN), path("part.o"), "-o", path("two"))
    run(path("two"))
    assert "the meter needs a program of dev/emu/emucc --meter" in run(path("two"), status=1, EMU_METER="1")
    wrong = write("wrong.cu", "int main() { return undeclared; }\n")
    assert re.search(f"{wrong}:1:.*undeclared", emucc(wrong, "-o", path("wrong"), status=1))


@pytest.mark.long
def test_emucc_meter():
    """The lines of doc/13_gpu.md are what the meter prints."""
    emucc("--meter", "-g", "-O1" if "clang" not in CXX else "-O0", "dev/emu/transpose.cu", "-o", path("transpose"))
    table = run(path("transpose"), EMU_METER="lines").splitlines()
    row = r"^(?:transpose_tile<\d+> .*|  (?:shared )?load  .*:\d+)$"
    shown = re.findall(row, text_of("doc/13_gpu.md"), re.M)
    assert len(shown) == 4 and [line for line in shown if line not in table] == []


@pytest.mark.long
def test_emucc_debugger():
    """gdb stops in a kernel and shows its arguments."""
    emucc("-O0", "-g", "dev/test/emu/courses/launches.cu", "-o", path("launches"))
    words = [word for line in ("break affine", "run", "bt", "print f.a") for word in ("-ex", line)]
    assert "= 2\n" in run("gdb", "-batch", *words, path("launches"), EMU_THREADS="1")


@pytest.mark.long
@pytest.mark.parametrize("name, before", (("emu_features", []), ("emu_nccl", ["env", "EMU_CHECK=0"])))
def test_emucc_sanitized(name, before, runs):
    """With AddressSanitizer, which has checks of its own. Optimising would take longer than it saves."""
    emucc("--sanitize", "-O0", f"dev/test/emu/{name}.cu", "-o", path(name))
    runs([*before, path(name)])
