"""How dev/find_libraries.sh finds nvcc, cuBLASLt, NCCL, cuDNN and NVRTC, in folders with the layouts of NVIDIA's
packages, of conda and of pip. nvcc is a stand-in, and each library has one function. What the Makefile makes of it:
test_build.py. What comes of it with the real libraries: test_nvcc.sh."""
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
MACHINE = platform.machine()
TRIPLET = f"{MACHINE}-linux-gnu"
TARGET = f"targets/{MACHINE}-linux"
CXX = shutil.which("g++") or shutil.which("clang++")
NEEDED = "bash env awk grep sed tr sort readlink dirname mktemp rm cat uname as ld".split()


def setup_module():
    if CXX is None or sys.platform != "linux" or not all(map(shutil.which, NEEDED)):
        pytest.skip("no C++ compiler, or no Linux")
    # -S: no packages but those of PYTHONPATH.
    programs = {"python3": f"exec {sys.executable} -S \"$@\"\n",
                "sh": f"#!{shutil.which('bash')}\nexec {shutil.which('sh')} \"$@\"\n"}
    os.rename(stand_ins(programs, only=NEEDED), TOOLS)


@functools.lru_cache(None)
def compiled(source):
    command = [CXX, "-shared", "-fPIC", "-w", "-x", "c++", "-", "-o", path("compiled.so")]
    subprocess.run(command, input=source, text=True, check=True)
    return read("compiled.so")


# Each makes a library in a place, and returns its path.


def nvcc(place, release="13.0", include="include", lib=None):
    write(f"{place}/{include}/cuda_runtime.h", "")
    return write(f"{place}/bin/nvcc", f"#!/bin/sh\necho 'release {release}, V{release}.88'\necho sm_80\n", 0o755)


def cublaslt(place, major=13, include="include", lib="lib"):
    write(f"{place}/{include}/cublasLt.h", "")
    write(f"{place}/{include}/cublas_api.h", f"#define CUBLAS_VER_MAJOR {major}\n#define CUBLAS_VER_MINOR 1\n")
    return write(f"{place}/{lib}/libcublasLt.so{'.13' * (major == 13)}", "never opened here")


def nvrtc(place, major=13, include=None, lib="lib"):
    write(f"{place}/{lib}/libnvrtc-builtins.so.{major}.0", "never opened here")
    return write(f"{place}/{lib}/libnvrtc.so.{major}", "never opened here")


def cudnn(place, cuda=13, include="include", lib="lib", version=9):
    write(f"{place}/{include}/cudnn.h", "")
    write(f"{place}/{include}/cudnn_version.h", f"#define CUDNN_MAJOR {version}\n#define CUDNN_MINOR 7\n"
          "#define CUDNN_PATCHLEVEL 2\n#define CUDNN_VERSION (CUDNN_MAJOR * 10000)\n")
    source = f'extern "C" unsigned long cudnnGetCudartVersion() {{ return {cuda}010; }}'
    return write(f"{place}/{lib}/libcudnn.so.9", compiled(source))


def nccl(place, cuda=13, include="include", lib="lib"):
    write(f"{place}/{include}/nccl.h", "#define NCCL_MAJOR 2\n#define NCCL_MINOR 28\n#define NCCL_PATCH 9\n"
          '#define NCCL_SUFFIX ""\n')
    source = f"""extern "C" const char banner[] = "NCCL version 2.28.9+cuda{cuda}.0";
extern "C" int ncclGetVersion(int *version) {{ *version = 22809; return 0; }}"""
    return write(f"{place}/{lib}/libnccl.so.2", compiled(source))


def toolkit(place=None, release="13.0"):
    """nvcc with cuBLASLt and NVRTC, as every CUDA toolkit has them."""
    place, major = place or new_folder("toolkit"), int(release.split(".")[0])
    nvcc(place, release)
    cublaslt(place, major, lib="lib64")
    nvrtc(place, major, lib="lib64")
    return place


def new_folder(name="place"):
    return os.path.realpath(tempfile.mkdtemp(prefix=f"{name}.", dir=WORK))


def find(mode="make", status=0, system=None, **variables):
    """(what the script printed, what it complained of)."""
    environment = {"PATH": TOOLS, "CXX": CXX, "SYSTEM_ROOT": system or os.path.join(WORK, "no_system"), "TMPDIR": WORK,
                   "GPU_ARCH": "80"}
    result = subprocess.run([SCRIPT, mode], env=dict(environment, **variables), cwd=WORK, capture_output=True,
                            text=True, timeout=120)
    assert result.returncode == status, (variables, result)
    assert not [name for name in os.listdir(WORK) if name.startswith("gpt2c_find.")], "it leaves files behind"
    return result.stdout, result.stderr


def values_of(out, variable):
    return [value for name, _, value in (line.partition("=") for line in out.splitlines())
            if name.rstrip("+") == variable]


def linked(out):
    """The folders in the order in which the linker searches them, and the files."""
    libs = values_of(out, "CUDA_LIBS")
    folders = [word[2:] for word in libs if word.startswith("-L")]
    rpath = [folder for before, folder in zip(libs, libs[2:]) if before == "-rpath"]
    assert folders == rpath, libs
    return folders, [word[3:] for word in libs if word.startswith("-l:")]


def doctor(**arguments):
    """{name: [(state, text), ...]}"""
    lines = {}
    for line in find("doctor", **arguments)[0].splitlines():
        name, state, text = line.split("\t")
        lines.setdefault(name, []).append((state, text))
    return lines


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
    """All is found, once, and nothing is named that nvcc finds by itself."""
    system = new_folder("system")
    files = {make: make(f"{system}/{place}", include=include, lib=lib)
             for make, (place, include, lib) in places.items()}
    os.symlink(f"{system}/usr/local/cuda/bin", f"{system}/link")
    arguments = {name: value.format(system=system) for name, value in environment.items()}
    if "PATH" in arguments:
        arguments["PATH"] = f"{TOOLS}:{arguments['PATH']}"
    out, complaints = find(system=system, **arguments)
    found = [files[make] for make in (cublaslt, nccl, cudnn, nvrtc)]
    folders, names = linked(out)
    assert folders == list(dict.fromkeys(map(os.path.dirname, found))) and complaints == "", (out, complaints)
    assert names == [*map(os.path.basename, found), "libnvrtc-builtins.so.13.0"] and "--no-as-needed" in out, out
    headers = {make: f"{system}/{place}/{include}" for make, (place, include, _) in places.items()}
    flags = {make: ["-isystem", headers[make]] * (headers[make] != headers[nvcc]) for make in places}
    assert values_of(out, "CUDA_FLAGS") == [*flags[cublaslt], "-DUSE_NCCL", *flags[nccl], "-DUSE_CUDNN", *flags[cudnn]]
    assert values_of(out, "CUDA_RELEASE") == ["13.0"]
    lines = doctor(system=system, **arguments)
    assert [[state for state, _ in lines[name]] for name in ("cuBLASLt", "NCCL", "cuDNN", "NVRTC")] == [["found"]] * 4


def test_headers_of_the_system_are_not_named():
    """-isystem /usr/include breaks the order of the compiler's own folders."""
    source = open(SCRIPT).read()
    function = source[source.index("include_flags() {"):source.index("builds() {")]
    for folder, flags in (("/usr/include", ""), (f"/usr/include/{TRIPLET}", ""), ("/cuda/include", ""),
                          ("/usr/local/include", "-isystem /usr/local/include")):
        command = f"machine={MACHINE} cuda_include=/cuda/include\n{function}\ninclude_flags {folder}/cudnn.h"
        assert subprocess.check_output(["bash", "-c", command], text=True).strip() == flags, folder


# ---- What is chosen, and what is refused ----


def test_order_of_places():
    """What was not taken is said, with the reason."""
    system, conda, path, cuda, site = (new_folder(name) for name in ("system", "conda", "path", "cuda", "site"))
    places = [cuda, path, conda] + [f"{system}/{name}" for name in ("usr/local/cuda", "opt/cuda", "usr", "usr/local")]
    places.append(f"{site}/nvidia/nccl")
    for place in places:
        nccl(place)
    arguments = dict(CUDA_HOME=cuda, CUDA_PATH=path, CONDA_PREFIX=conda, system=system, PYTHONPATH=site)
    for i, place in enumerate(places):
        toolkit(cuda)
        lines = doctor(**arguments)["NCCL"]
        assert lines == [("passed", f"{other}/lib/libnccl.so.2: an earlier place has it") for other in places[i + 1:]
                         ] + [("found", f"2.28.9 {place}/lib/libnccl.so.2")], lines
        shutil.rmtree(f"{place}/lib")
        shutil.rmtree(f"{place}/include")


def test_a_folder_that_is_named_is_taken_or_refused():
    """Even where another has everything. The linker and the loader find the library that was named, too."""
    cuda, named, empty = toolkit(), new_folder("named"), new_folder("empty")
    for make in cudnn, nccl:
        make(cuda, lib="lib64")
    nccl(named)
    assert linked(find(CUDA_HOME=cuda, NCCL_HOME=named)[0])[0] == [f"{named}/lib", f"{cuda}/lib64"]
    cudnn(named)
    complaint = find(status=1, CUDA_HOME=cuda, NCCL_HOME=named)[1]
    assert f"{cuda}/lib64/libnccl.so.2 would be linked instead of {named}/lib/libnccl.so.2" in complaint, complaint
    for name in "NCCL", "CUDNN":
        out, complaint = find(status=1, CUDA_HOME=cuda, **{f"{name}_HOME": empty})
        message = f"in {name}_HOME={empty} that {CXX} builds with: expected include/{name.lower()}.h"
        assert out == "" and message in complaint and f"{name}=0 leaves it out" in complaint, complaint
    lines = doctor(CUDA_HOME=cuda, NCCL_HOME=empty)
    assert lines["NCCL"] == [("missing", f"NCCL_HOME={empty} has none that fits")], lines
    assert lines["cuDNN"][0][0] == "found", lines


def test_nvcc():
    """NVCC comes before CUDA_HOME, whose libraries are then found all the same."""
    cuda, other, odd = toolkit(), toolkit(release="12.4"), os.path.join(new_folder(), "a b")
    cudnn(other, 12, lib="lib64")
    out = find(NVCC=f"{other}/bin/nvcc", CUDA_HOME=cuda, NCCL="0")[0]
    assert values_of(out, "CUDA_RELEASE") == ["12.4"] and values_of(out, "NVCC") == []
    assert linked(out) == ([f"{other}/lib64"], ["libcublasLt.so", "libcudnn.so.9", "libnvrtc.so.12",
                                                "libnvrtc-builtins.so.12.0"])
    assert values_of(find(CUDA_HOME=cuda, QUIET="1")[0], "NVCC") == [f"{cuda}/bin/nvcc"]
    nvcc(other, "11.8")
    toolkit(odd)
    for environment, says in ((dict(CUDA_HOME=other), "is of CUDA release 11.8, expected 12 or later"),
                              (dict(CUDA_HOME=odd), "no path with a blank or another special character"),
                              (dict(CUDA_HOME=WORK, PATH=f"{TOOLS}:{cuda}/bin"), "No nvcc in CUDA_HOME="),
                              ({}, "No nvcc, which builds the GPU programs: install the CUDA toolkit")):
        assert says in find(status=1, **environment)[1], environment


def test_gpus_it_is_not_for():
    """An older GPU than the program is for, and one that nvcc does not know: named, with what that means."""
    cuda = toolkit()
    for capability, says in (("7.5", "capability 7.5. gpt2.c needs 8.0 (Ampere) or later and will not run on it"),
                             ("12.1", "capability 12.1, which CUDA 13.0 does not know (it knows 80)")):
        programs = stand_ins({"nvidia-smi": f"echo {capability}"}, ("nvidia-smi",))
        assert says in find(CUDA_HOME=cuda, GPU_ARCH="", PATH=programs)[1], capability


OTHER_RELEASE = "made for CUDA 12, but nvcc is of CUDA 13"
STOPS = '#include <stdlib.h>\nextern "C" unsigned long cudnnGetCudartVersion() { exit(1); }'


@pytest.mark.parametrize("name, make, damage, why", (
    ("cuBLASLt", lambda place: cublaslt(place, 12), None, OTHER_RELEASE),
    ("NCCL", lambda place: nccl(place, 12), None, OTHER_RELEASE),
    ("NCCL", nccl, "include/nccl.h", "nccl.h is not in this place"),
    ("NCCL", lambda place: write(nccl(place), "no library\n"), None, f"{CXX} builds no program with it that runs"),
    ("cuDNN", lambda place: cudnn(place, 12), None, OTHER_RELEASE),
    ("cuDNN", lambda place: cudnn(place, version=8), None, "version 8.7.2, expected 9"),
    ("cuDNN", lambda place: write(cudnn(place), compiled(STOPS)), None, "builds no program with it that runs"),
    ("cuDNN", cudnn, "lib/libcudnn.so.9", "include/cudnn.h: libcudnn.so.9 is not in this place")))
def test_a_misfit_is_passed_over(name, make, damage, why):
    """The next that fits is taken, and nothing links the misfit."""
    cuda, other = new_folder("cuda"), new_folder("conda")
    nvcc(cuda)
    make(cuda)
    if damage:
        os.remove(f"{cuda}/{damage}")
    for fits in (cublaslt, nvrtc, {"NCCL": nccl, "cuDNN": cudnn}.get(name, nvrtc)):
        fits(other)
    out, lines = find(CUDA_HOME=cuda, CONDA_PREFIX=other)[0], doctor(CUDA_HOME=cuda, CONDA_PREFIX=other)[name]
    assert linked(out)[0] == [f"{other}/lib"], out
    assert [state for state, _ in lines] == ["passed", "found"] and other in lines[1][1], lines
    assert lines[0][1].startswith(cuda) and why in lines[0][1], lines


def test_without_a_library():
    """The build goes without NCCL, cuDNN and NVRTC, and says why. If one was asked for, there is no build."""
    cuda, spaced = toolkit(), new_folder("a b")
    misfits = cudnn(cuda, 12), nccl(cuda, 12)
    out, notes = find(CUDA_HOME=cuda)
    assert linked(out)[1] == ["libcublasLt.so.13"] and values_of(out, "CUDA_FLAGS") == [], out
    assert "--no-as-needed" not in out and find(CUDA_HOME=cuda, QUIET="1")[1] == "", out
    for misfit, start, switch in zip(misfits, ("No cuDNN 9 here", "No NCCL here"), ("CUDNN", "NCCL")):
        reason = f" ({misfit}: {OTHER_RELEASE})"
        assert start + reason in notes and f"{switch}=0 silences this" in notes, notes
        for asked in ({switch: "1"}, {f"{switch}_HOME": cuda}):
            assert reason in find(status=1, CUDA_HOME=cuda, **asked)[1], asked
        assert start not in find(CUDA_HOME=cuda, **{switch: "0"})[1]
    nccl(spaced)
    assert "make takes no path with a blank" in find(status=1, CUDA_HOME=cuda, NCCL_HOME=spaced)[1]
    cudnn(cuda)
    os.remove(f"{cuda}/lib64/libnvrtc.so.13")
    out, notes = find(CUDA_HOME=cuda, NCCL="0")
    assert linked(out)[1] == ["libcublasLt.so.13", "libcudnn.so.9"], out
    assert "No NVRTC for CUDA 13 here: cuDNN needs it when the program runs" in notes, notes
    os.remove(f"{cuda}/lib64/libcublasLt.so.13")
    complaint = find(status=1, CUDA_HOME=cuda)[1]
    assert "No cuBLASLt that fits CUDA 13.0" in complaint and "apt-get install libcublas-dev-13-0" in complaint


@pytest.mark.parametrize("nvidia_smi, says", [
    (None, "no GPU to run it (there is no nvidia-smi, which comes with the driver)"),
    ("echo; echo 'NVIDIA-SMI has failed'; exit 9", "no GPU to run it (nvidia-smi: NVIDIA-SMI has failed)"),
    ("echo 'Tesla T4, 7.5, 535.1'", "the GPU's compute capability is below 8.0 (Tesla T4, 7.5, 535.1)"),
    ("echo 'NVIDIA B200, 10.0, 580.1'", None)])
def test_doctor_says_what_runs(nvidia_smi, says):
    """Its last lines name what the GPU trainer lacks to run here; that is no failure. What they do not depend on is
    looked for once."""
    unneeded = ("clang", "clang++", "python3") if nvidia_smi and shutil.which("gcc") and shutil.which("g++") else ()
    programs = stand_ins({"nvidia-smi": nvidia_smi} if nvidia_smi else {}, ("nvidia-smi", *unneeded))
    out = subprocess.run([os.path.join(ROOT, "dev", "doctor.sh")], env=dict(os.environ, PATH=programs), check=True,
                         stdout=subprocess.PIPE, text=True).stdout.splitlines()[-3:]
    assert [line.split(":")[0] for line in out] == ["train_gpt2", "train_gpt2cu", "train_gpt2emu"], out
    assert out[0].startswith("train_gpt2: builds and runs here: make, ") and "optional" not in out[1], out
    assert out[1].endswith(f"; {says}") if says else ";" not in out[1] and "no GPU" not in out[1], out
