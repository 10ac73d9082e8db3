"""How dev/find_libraries.sh finds nvcc, cuBLASLt, NCCL, cuDNN and NVRTC, in folders with the layouts of NVIDIA's
packages, of conda and of pip. nvcc is a stand-in, and each library has one function. What the Makefile makes of it:
test_build.py. What comes of it with the real libraries: test_compilers.py."""
import functools
import os
import platform
import shutil
import subprocess
import sys
import tempfile

import pytest

from tools import ROOT, WORK, path, read, stand_ins, write

pytestmark = pytest.mark.long
SCRIPT = os.path.join(ROOT, "dev", "find_libraries.sh")
TOOLS = path("tools")
TRIPLET = f"{platform.machine()}-linux-gnu"
TARGET = f"targets/{platform.machine()}-linux"
CXX = shutil.which("g++") or shutil.which("clang++")
NEEDED = "bash env grep sed tr sort readlink mktemp rm cat uname as ld".split()


def setup_module():
    if CXX is None or sys.platform != "linux" or not all(map(shutil.which, NEEDED)):
        pytest.skip("no C++ compiler, or no Linux")
    # -S: no packages but those of PYTHONPATH.
    os.rename(stand_ins({"python3": f"exec {sys.executable} -S \"$@\"\n"}, only=NEEDED), TOOLS)


@functools.lru_cache(None)
def compiled(source):
    command = [CXX, "-shared", "-fPIC", "-w", "-x", "c++", "-", "-o", path("compiled.so")]
    subprocess.run(command, input=source, text=True, check=True)
    return read("compiled.so")


# Each makes a library for a release of CUDA in a place, and returns its path.


def nvcc(place, cuda=13, include="include", lib=None):
    write(f"{place}/{include}/cuda_runtime.h", "")
    says = f"echo 'release {cuda}.0, V{cuda}.0.88'\necho ${{ARCHS:-sm_80}}\n"
    return write(f"{place}/bin/nvcc", "#!/bin/sh\n" + says, 0o755)


def cublaslt(place, cuda=13, include="include", lib="lib"):
    write(f"{place}/{include}/cublasLt.h", "")
    return write(f"{place}/{lib}/libcublasLt.so.{cuda}", "never opened here")


def nvrtc(place, cuda=13, include=None, lib="lib"):
    write(f"{place}/{lib}/libnvrtc-builtins.so.{cuda}.0", "never opened here")
    return write(f"{place}/{lib}/libnvrtc.so.{cuda}", "never opened here")


def cudnn(place, cuda=13, include="include", lib="lib", body="return RELEASE;"):
    write(f"{place}/{include}/cudnn.h", "")
    source = f'extern "C" unsigned long cudnnGetCudartVersion() {{ {body} }}'.replace("RELEASE", f"{cuda}010")
    return write(f"{place}/{lib}/libcudnn.so.9", compiled("#include <stdlib.h>\n" + source))


def nccl(place, cuda=13, include="include", lib="lib"):
    write(f"{place}/{include}/nccl.h", "")
    source = f"""extern "C" const char banner[] = "NCCL version 2.28.9+cuda{cuda}.0";
extern "C" int ncclGetVersion(int *version) {{ *version = 22809; return 0; }}"""
    return write(f"{place}/{lib}/libnccl.so.2", compiled(source))


def toolkit(cuda=13):
    """nvcc with cuBLASLt and NVRTC, as every CUDA toolkit has them."""
    place = new_folder("toolkit")
    for make in nvcc, cublaslt, nvrtc:
        make(place, cuda, lib="lib64")
    return place


def new_folder(name="place"):
    return os.path.realpath(tempfile.mkdtemp(prefix=f"{name}.", dir=WORK))


def find(status=0, system="/nothing", **variables):
    """(what the script printed, what it complained of)."""
    environment = {"PATH": TOOLS, "CXX": CXX, "SYSTEM_ROOT": system, "TMPDIR": WORK, "GPU_ARCH": "80"}
    result = subprocess.run([SCRIPT, "cuda"], env=dict(environment, **variables), cwd=WORK, capture_output=True,
                            text=True, timeout=120)
    assert result.returncode == status, (variables, result)
    return result.stdout, result.stderr


def values_of(out, variable):
    return [value for name, _, value in (line.partition("=") for line in out.splitlines())
            if name.rstrip("+") == variable]


def linked(out):
    """The libraries, in the order in which the linker searches their folders."""
    libs = values_of(out, "CUDA_LIBS")
    folders = [word[2:] for word in libs if word.startswith("-L")]
    assert folders == [folder for before, folder in zip(libs, libs[2:]) if before == "-rpath"], libs
    return [f"{folder}/{word[3:]}" for folder, word in zip(folders, (word for word in libs if word.startswith("-l:")))]


# ---- The layouts of packages ----

CUDA, DEBIAN = ("usr/local/cuda", "include", "lib64"), f"lib/{TRIPLET}"
LAYOUTS = (
    # NVIDIA's runfile
    (dict.fromkeys((nvcc, cublaslt, nccl, cudnn, nvrtc), CUDA), {}),
    # apt. nvcc may be a link into the toolkit. From cuDNN 9.10 on, the header lies in the machine's own folder, too.
    ({**dict.fromkeys((nvcc, cublaslt, nvrtc), CUDA), nccl: ("usr", "include", DEBIAN),
      cudnn: ("usr", f"include/{TRIPLET}", DEBIAN)}, dict(PATH="{system}/link")),
    # conda
    ({**dict.fromkeys((nvcc, cublaslt), ("c", f"{TARGET}/include", f"{TARGET}/lib")),
      **dict.fromkeys((nccl, cudnn, nvrtc), ("c", "include", "lib"))}, dict(CONDA_PREFIX="{system}/c")),
    # Modules name the folders of headers and of libraries to the compiler.
    ({make: (name, "include", "lib") for make, name in zip((nvcc, cublaslt, nccl, cudnn, nvrtc), "abcda")},
     dict(CUDA_PATH="{system}/a", CPATH="{system}/b/include:{system}", LIBRARY_PATH="{system}/c/lib/",
          LD_LIBRARY_PATH=":{system}/d/lib")),
    # nvcc alone, beside what comes with PyTorch.
    ({nvcc: ("cuda", "include", "lib"), nccl: ("nvidia/nccl", "include", "lib"),
      cudnn: ("nvidia/cudnn", "include", "lib"), **dict.fromkeys((cublaslt, nvrtc), ("nvidia/cu13", "include", "lib"))},
     dict(CUDA_HOME="{system}/cuda", PYTHONPATH="{system}")),
)


@pytest.mark.parametrize("places, environment", LAYOUTS, ids=("runfile", "apt", "conda", "modules", "pip"))
def test_layouts(places, environment):
    system = new_folder("system")
    files = {make: make(f"{system}/{place}", include=include, lib=lib)
             for make, (place, include, lib) in places.items()}
    os.symlink(f"{system}/usr/local/cuda/bin", f"{system}/link")
    arguments = {name: value.format(system=system) for name, value in environment.items()}
    if "PATH" in arguments:
        arguments["PATH"] = f"{TOOLS}:{arguments['PATH']}"
    out, complaints = find(system=system, **arguments)
    builtins = files[nvrtc].replace("libnvrtc.so.13", "libnvrtc-builtins.so.13.0")
    assert linked(out) == [files[nccl], files[cudnn], files[nvrtc], builtins, files[cublaslt]] and complaints == ""
    headers = {make: f"{system}/{place}/{include}" for make, (place, include, _) in places.items()}
    flags = values_of(out, "CUDA_FLAGS")
    named = {header for before, header in zip(flags, flags[1:]) if before == "-isystem"}
    toolkit_include = f"{system}/{places[nvcc][0]}/include"  # nvcc finds it by itself
    assert named == {headers[make] for make in (nccl, cudnn, cublaslt)} - {toolkit_include}, out
    assert {"-DUSE_NCCL", "-DUSE_CUDNN"} <= set(flags) and "--no-as-needed" in out, out
    assert values_of(out, "CUDA_RELEASE") == ["13.0"], out


# ---- What is chosen, and what is refused ----


def test_a_folder_that_is_named_is_taken_or_refused():
    """Even where another has everything. The linker and the loader find the library that was named, too."""
    cuda, named, empty = toolkit(), new_folder("named"), new_folder("empty")
    nccl(cuda, lib="lib64")
    named_nccl = nccl(named)
    assert linked(find(CUDA_HOME=cuda, NCCL_HOME=named, CUDNN="0")[0])[0] == named_nccl
    complaint = find(status=1, CUDA_HOME=cuda, CUDNN_HOME=empty)[1]
    message = f"in CUDNN_HOME={empty} that {CXX} builds with: expected include/cudnn.h"
    assert message in complaint and "CUDNN=0 leaves it out" in complaint, complaint


def test_nvcc():
    """NVCC comes before CUDA_HOME, whose libraries are then found all the same."""
    cuda, other, old, bare = toolkit(), toolkit(12), new_folder(), new_folder()
    out = find(NVCC=f"{other}/bin/nvcc", CUDA_HOME=cuda, QUIET="1")[0]
    assert values_of(out, "CUDA_RELEASE") == ["12.0"] and values_of(out, "NVCC") == [f"{other}/bin/nvcc"]
    assert linked(out) == [f"{other}/lib64/libcublasLt.so.12"]
    nvcc(old, 11), nvcc(bare)
    missing = "No nvcc of CUDA 12 or later that runs"
    for environment, says in ((dict(CUDA_HOME=old), f"{missing} ({old}/bin/nvcc, release 11."),
                              ({}, f"{missing} (none here, "),
                              (dict(CUDA_HOME=bare), "No cuBLASLt that fits CUDA 13.0")):
        assert says in find(status=1, **environment)[1], environment


OTHER_RELEASE = "made for CUDA 12, but nvcc is of CUDA 13"


@pytest.mark.parametrize("make, damage, why", (
    (lambda place: nccl(place, 12), None, OTHER_RELEASE),
    (nccl, "include/nccl.h", "nccl.h and libnccl.so.2 are not both in this place"),
    (lambda place: cudnn(place, body="exit(1);"), None, "builds no program with it that runs")))
def test_a_misfit_is_passed_over(make, damage, why):
    """The next that fits is taken. If none is left, the build goes without, and says why, unless one was asked for."""
    cuda, other = toolkit(), new_folder("conda")
    make(cuda)
    if damage:
        os.remove(f"{cuda}/{damage}")
    switch = "NCCL" if os.path.exists(f"{cuda}/lib/libnccl.so.2") else "CUDNN"
    fitting = {"NCCL": nccl, "CUDNN": cudnn}[switch](other)
    without = {"NCCL": "0", "CUDNN": "0", switch: ""}
    assert linked(find(CUDA_HOME=cuda, CONDA_PREFIX=other, **without)[0])[0] == fitting
    out, notes = find(CUDA_HOME=cuda, **without)
    assert f"({cuda}" in notes and why in notes and f"{switch}=0 silences this" in notes, notes
    assert "-DUSE" not in out, out
    assert why in find(status=1, CUDA_HOME=cuda, **{**without, switch: "1"})[1]


@pytest.mark.parametrize("nvidia_smi", ("echo 'NVIDIA-SMI has failed'; exit 9", "echo 'NVIDIA B200, 10.0, 580.1'"))
def test_doctor(nvidia_smi):
    """Below each need it says what is here: of the toolkit a path of each library, and how to get what is missing."""
    cuda = toolkit()
    cudnn(cuda, lib="lib64")
    programs = stand_ins({"nvidia-smi": nvidia_smi}, ("clang", "clang++", "mpicc", "python3"))
    environment = {"PATH": programs, "CUDA_HOME": cuda, "SYSTEM_ROOT": "/nothing", "TMPDIR": WORK}
    out = subprocess.run([os.path.join(ROOT, "dev", "doctor.sh")], env=environment, check=True, text=True,
                         stdout=subprocess.PIPE).stdout
    needs = {text.split(":")[0].split(",")[0]: text.split("\n    ")[1:] for text in out.strip().split("\n\n")}
    assert "gcc" in map(os.path.basename, needs["make"]), out
    libraries = ("libcudnn.so.9", "libnvrtc.so.13", "libnvrtc-builtins.so.13.0", "libcublasLt.so.13")
    assert {f"{cuda}/lib64/{name}" for name in libraries} <= set(needs["make train_gpt2cu"]), out
    assert "https://developer.nvidia.com/nccl" in out and "cudnn;" not in out, out
    assert needs["to run it"] == [nvidia_smi.split("'")[1]] and needs["MPI"] == ["nothing here"], out
