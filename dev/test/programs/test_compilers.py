"""What compilers make of the source, as tables. Every header stands alone. The GPU trainers compile with nvcc without a
warning, start, and no kernel spills registers (without nvcc: skipped). emucc, the emulator's compiler, takes nvcc's
options and translates launches. What the emulator must do as a GPU does, and what it must report: emu_*.cu.

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

from tools import ROOT, path, write

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


def mpi_words():
    """What mpicc adds. Its headers are the system's: warnings in them are not ours."""
    words = run("mpicc", "-show").split() if shutil.which("mpicc") else []
    flags = [flag for word in words if word.startswith("-I") for flag in ("-isystem", word[2:])]
    return flags + ["-DUSE_MPI", "-DOMPI_SKIP_MPICXX", "-DMPICH_SKIP_MPICXX"] * bool(words), [
        word for word in words if word.startswith(("-L", "-l"))]


@pytest.mark.parametrize("kind", ("c", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("cc", "cu"))))
def test_headers_in_two_objects(kind):
    """All of them together link twice: they have nothing but static inline. As C11; as C++17 with MPI, since the CUDA
    trainers include the same headers; those of CUDA in fp32, emulated. Left out: the second model's tables, and the
    trainers' programs."""
    flags, libraries = mpi_words()
    command = {"c": C11, "cc": ["g++", "-std=c++17", "-Wno-unknown-pragmas", *STRICT, *flags],
               "cu": [*EMULATED, "-DPRECISION_FP32"]}[kind]
    all_of_them = "".join(f'#include "{name}"\n' for name in (OF_CUDA if kind == "cu" else OF_C)
                          if not re.search(r"llama3\.h|program\.", name))
    first = write(f"first.{kind}", all_of_them + "int second(void);\nint main(void) { return second(); }\n")
    second = write(f"second.{kind}", all_of_them + "int second(void) { return 0; }\n")
    run(*command, first, second, "-o", path("linked"), "-pthread", "-lm", *(libraries if kind == "cc" else ()))


# ---- nvcc ----

NVCC = shutil.which("nvcc", path=os.pathsep.join((os.environ.get("CUDA_HOME", "") + "/bin", os.environ["PATH"],
                                                  "/usr/local/cuda/bin", "/opt/cuda/bin")))
NOT_OPTIMISED = "-O0 -Xptxas -O0 -Xcicc -O0"  # in a fifth of the time
ALONE, LIBRARIES = ("NCCL=0", "MPI=0", "CUDNN=0"), ("nccl", "cudnn", "nvrtc", "mpi")
BUILDS = {  # name: program, precision, GPUs, nvcc's flags, make's other variables
    "trainer": ("train_gpt2cu", "BF16", "80 90", "-Xcompiler -Og -Xptxas -v", ()),
    "fp32_alone": ("train_gpt2cu", "FP32", "90", NOT_OPTIMISED, ALONE),
    "llama": ("test_llama3cu", "BF16", "90", NOT_OPTIMISED, ALONE),  # and the trainer in it
    "llama_fp32": ("test_llama3cu", "FP32", "90", NOT_OPTIMISED, ALONE)}
if QUICK:  # as PTX only
    BUILDS = {"quick": ("train_gpt2cu", "BF16", "90", NOT_OPTIMISED,
                        ("GENCODE=-gencode arch=compute_90,code=compute_90",))}


@pytest.mark.skipif(NVCC is None, reason="no nvcc here: the CUDA files were compiled for the emulator only")
@pytest.mark.parametrize("name", BUILDS)
def test_nvcc(name):
    program, precision, archs, flags, others = BUILDS[name]
    folder = f"build/nvcc_{name}"
    log = run("make", "WERROR=1", f"NVCC={NVCC}", f"PRECISION={precision}", f"GPU_ARCH={archs}", f"NVCCFLAGS={flags}",
              f"BUILD={folder}", f"BIN={folder}", *others, f"{folder}/{program}")
    if program == "train_gpt2cu":
        # --help reads no GPU, but the program's libraries must be found.
        assert run(f"{folder}/{program}", "--help").startswith("Usage: train_gpt2cu")
        check_libraries(f"{folder}/{program}", () if others == ALONE else LIBRARIES)
    if "-v" in flags:
        check_spills(log, f"{ROOT}/{folder}/kernels")


def is_here(home, header):
    """What the Makefile must find, looked for in another way."""
    places = (os.environ.get(home, os.path.dirname(os.path.dirname(NVCC))), "/usr")
    return any(os.path.exists(f"{place}/include/{header}") for place in places)


def check_libraries(program, wanted):
    needed = re.findall(r"NEEDED.*\[lib(nccl|mpi|cudnn|nvrtc)\.so", run("readelf", "-d", program))
    cudnn = is_here("CUDNN_HOME", "cudnn.h")
    here = {"nccl": is_here("NCCL_HOME", "nccl.h"), "cudnn": cudnn, "nvrtc": cudnn,  # cuDNN opens it by itself
            "mpi": shutil.which("mpicc") is not None or "MPI_HOME" in os.environ}
    assert sorted(needed) == sorted(name for name in wanted if here[name]), (needed, here)
    # Ranks on machines that build for themselves must get equal files.
    with open(f"{ROOT}/{program}", "rb") as file:
        assert b"tmpxft" not in file.read(), "the random name of a temporary file is in it: no two builds are equal"


def check_spills(log, table):
    """Prints what each kernel takes of a multiprocessor. Where make had nothing to do: as it was then."""
    kernels = re.findall(r"Compiling entry function '(\w+)' for '(sm_\w+)'.*?(\d+) bytes spill stores, (\d+) bytes "
                         r"spill loads.*?Used (\d+) registers", log, re.S)
    if kernels:
        names = run("c++filt", *(kernel[0] for kernel in kernels)).splitlines()
        with open(table, "w", encoding="utf-8") as file:
            file.writelines(sorted(f"{re.sub(r'^void |[(].*', '', name):<60} {arch} {registers:>4} registers, "
                                   f"{int(stores) + int(loads)} bytes spilled\n"
                                   for name, (_, arch, stores, loads, registers) in zip(names, kernels)))
    with open(table, encoding="utf-8") as file:
        lines = file.read().splitlines()
    print("\n".join(lines))
    bad = [line for line in lines if not line.endswith(" 0 bytes spilled")]
    assert len(lines) > 50 and not bad, (bad, "registers are short; smaller tiles, or a launch bound")


# ---- emucc: translation ----

LAUNCH = '::emu::Launch("{}", __builtin_FILE(), __builtin_LINE(), {})'
KEPT = r"""s = "K<<<1, 2>>>(x) __shared__ \" \\";
c = '"'; // K<<<1, 2>>>(x)
r = R"x(K<<<1,2>>>() )" )x"; /* K<<<
1, 2>>>(x) */ n = 1'000 << 2 >> 1; std::cout << a <b; template <class T> void operator<< <T>(T);
"""
SHARED = "a __shared__ variable with an initializer, or several pointers in one declaration"
TRANSLATIONS = {  # what: source, translation
    "strings, comments and shifts": (KEPT, KEPT),
    "a launch over several lines keeps them": (
        "if (x) ns::K<A<int>, (1 > 2)><<<f<int>(a, b),\n    (n + 1) >> 2, 0, s\n>>>(x[i >> 1],\n    y);\n",
        f"if (x) {LAUNCH.format('ns::K<A<int>, (1 > 2)>', 'f<int>(a, b),@    (n + 1) >> 2, 0, s@')}"
        ".of(ns::K<A<int>, (1 > 2)>)(x[i >> 1],\n    y);\n".replace("@", "\n")),
    "a launch without arguments, of the global scope": ("{ ::K<<<1, 2>>>(); }\n",
                                                        f"{{ {LAUNCH.format('::K', '1, 2')}.of(::K)(); }}\n"),
    "a launch of a template without its arguments, with a null pointer, and of pointers to kernels": (
        "template <class T> void K(T *x); namespace n { void L(); }\nK<<<1, 2>>>(x);\nn::K<<<1, 2>>>(0, x < y);\n"
        "K<int><<<1, 2>>>(x);\np->k[2]<<<1, 2>>>(x);\n",
        "template <class T> void K(T *x); namespace n { void L(); }\n"
        f"{LAUNCH.format('K', '1, 2')}.deduce([](auto a0) {{ K(a0); }}, x);\n"
        f"{LAUNCH.format('n::K', '1, 2')}.deduce([](auto a1) {{ n::K(0, a1); }}, x < y);\n"
        f"{LAUNCH.format('K<int>', '1, 2')}.of(K<int>)(x);\n{LAUNCH.format('p->k[2]', '1, 2')}.of(p->k[2])(x);\n"),
    "built-in variables, and variables of their names": (
        "int i = blockDim.x * c.blockDim.y + p->gridDim.z; dim3 blockDim(2), gridDim = {1};\n",
        "int i = emu_dim(blockDim).x * c.blockDim.y + p->gridDim.z; dim3 blockDim(2), gridDim = {1};\n"),
    "inline PTX": ('asm volatile("ld.global.nc.v2.f32 {%0, %1}, [%2 + 16];" : "=f"(a), "=f"(b) : "l"(p));\n',
                   "::emu::ptx::ld<::emu::ptx::f32>(::emu::ptx::at((p), 16), (a), (b));\n"),
    "device functions and variables": (
        "__device__ static float f(float x) { return x; }\n__device__ float a[3], b = 1;__constant__ const int c = 2;\n"
        "template <int N> __device__ inline int g(); __device__ inline S operator+(S a, S b);\n",
        ' static float f(float x) { return x; }\n__attribute__((section("emu_device"), used)) float a[3], b = 1; '
        "const int c = 2;\ntemplate <int N>  inline int g();  inline S operator+(S a, S b);\n"),
    "two shared pointers in one declaration": ("void k() { __shared__ int *a, *b; }\n", f"k.cu:7: error: {SHARED}\n"),
    "a shared variable with an initializer": ("void k() { __shared__ int a = 1; }\n", f"k.cu:7: error: {SHARED}\n"),
    "a shared variable outside of functions": (
        "\nextern __shared__ int a[];\n", "k.cu:8: error: __shared__ outside of a function: declare it inside\n"),
    "a launch without end": ("void f() { k<<<1, 2>>(3); }\n", "k.cu:7: error: no >>> ends the launch\n")}


@pytest.mark.long
@pytest.mark.parametrize("what", TRANSLATIONS)
def test_emucc_translates(what):
    source, translation = TRANSLATIONS[what]
    refused = translation.startswith("k.cu:")
    program = f"{ROOT}/build/emu/{os.path.basename(CXX)}-plain/rewrite"
    emucc("-c", write("empty.cu", ""), "-o", path("empty.o"))  # builds it if it is old
    done = subprocess.run([program], input=('# 7 "k.cu"\n' if refused else "") + source, capture_output=True, text=True,
                          check=False)
    assert (done.stderr if refused else done.stdout) == translation and (done.returncode != 0) == refused, done


# ---- emucc: options and programs ----

PART = """#include <cuda_runtime.h>
#include "value.h"
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
    write("include folder/value.h", "#define VALUE 40\n")
    emucc("-O0", "-c", "-I", path("include folder"), "-DADD=2", "-MMD", write("part.cu", PART), "-o", path("part.o"))
    with open(path("part.d"), encoding="utf-8") as file:
        assert "value.h" in file.read()
    emucc("-O0", write("main.cu", MAIN), path("part.o"), "-o", path("two"))
    run(path("two"))
    assert "the meter needs a program of dev/emu/emucc --meter" in run(path("two"), status=1, EMU_METER="1")
    wrong = write("wrong.cu", "int main() { return undeclared; }\n")
    assert re.search(f"{wrong}:1:.*undeclared", emucc(wrong, "-o", path("wrong"), status=1))


@pytest.mark.long
@pytest.mark.parametrize("header", "curand.h cuda.h thrust/device_vector.h cuda/barrier cutlass/cutlass.h".split())
def test_emucc_refuses_a_header(header):
    """In one line, whether a CUDA is installed here or not."""
    source = write("header.cu", f"#include <cuda_runtime.h>\n#include <{header}>\nint main() {{ return 0; }}\n")
    assert emucc("-I/usr/local/cuda/include", source, "-o", path("header"), status=1) == (
        f"emucc: {source}: <{header}> is not part of the emulator (dev/emu/README.md lists what is)\n")


@pytest.mark.long
def test_emucc_takes_a_header_named_as_cudas():
    write("cuda_mine.h", "int main() { return 0; }\n")
    emucc("-O0", write("mine.cu", '#include "cuda_mine.h"\n'), "-o", path("mine"))


@pytest.mark.long
def test_emucc_meter():
    """The lines of doc/12_gpu_kernels.md are what the meter prints, and its variables are checked."""
    emucc("--meter", "-g", "-O1" if "clang" not in CXX else "-O0", "dev/emu/transpose.cu", "-o", path("transpose"))
    table = run(path("transpose"), EMU_METER="lines").splitlines()
    with open(f"{ROOT}/doc/12_gpu_kernels.md", encoding="utf-8") as file:
        shown = re.findall(r"^(?:transpose_tile<\d+> .*|  (?:shared )?load  .*:\d+)$", file.read(), re.M)
    assert len(shown) == 4 and [line for line in shown if line not in table] == []
    assert 'emu: EMU_METER is "yes", expected 0, 1 or lines' in run(path("transpose"), status=1, EMU_METER="yes")
    assert 'unknown GPU "tpu" for the meter, expected a short name' in run(
        path("transpose"), status=1, EMU_METER="1", EMU_METER_GPU="tpu")


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
