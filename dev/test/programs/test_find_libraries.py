"""How dev/find_libraries.sh finds nvcc, cuBLASLt, NCCL, cuDNN and NVRTC, in folders with the layouts of NVIDIA's
packages, of conda and of pip. nvcc is a stand-in, and each library has one function. What the Makefile makes of it:
test_build.py. What comes of it with the real libraries: test_nvcc.sh."""
import os
import platform
import shutil
import subprocess
import sys
import tempfile

import pytest

import tools
from tools import ROOT, WORK, stand_ins

SCRIPT = os.path.join(ROOT, "dev", "find_libraries.sh")
TOOLS = tools.path("tools")
MACHINE = platform.machine()
TRIPLET = f"{MACHINE}-linux-gnu"
TARGET = f"targets/{MACHINE}-linux"
CXX = shutil.which("g++") or shutil.which("clang++")
NEEDED = "bash env awk grep sed tr sort readlink dirname mktemp rm cat uname as ld".split()


def write(path, text="", mode=0o644):
    return tools.write(path, text, mode)


def setup_module():
    if CXX is None or sys.platform != "linux" or not all(map(shutil.which, NEEDED)):
        pytest.skip("no C++ compiler, or no Linux")
    # -S: no packages but those of PYTHONPATH.
    programs = {"python3": f"exec {sys.executable} -S \"$@\"\n",
                "sh": f"#!{shutil.which('bash')}\nexec {shutil.which('sh')} \"$@\"\n"}
    os.rename(stand_ins(programs, only=NEEDED), TOOLS)


def compile_library(path, source):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    command = [CXX, "-shared", "-fPIC", "-w", "-x", "c++", "-", "-o", path]
    subprocess.run(command, input=source, text=True, check=True)
    return path


COMPILED = {}


def library(path, key, source):
    """A library at this path. Each source is compiled once."""
    if (key, source) not in COMPILED:
        COMPILED[key, source] = compile_library(os.path.join(WORK, "compiled", f"{len(COMPILED)}.so"), source)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    return shutil.copy(COMPILED[key, source], path)


def nvcc(folder, release="13.0", include="include"):
    write(os.path.join(folder, include, "cuda_runtime.h"))
    script = f"#!/bin/sh\necho 'release {release}, V{release}.88'\necho sm_80\n"
    return write(os.path.join(folder, "bin", "nvcc"), script, 0o755)


def cublaslt(folder, major=13, include="include", lib="lib", name=None):
    write(os.path.join(folder, include, "cublasLt.h"))
    version = f"#define CUBLAS_VER_MAJOR {major}\n#define CUBLAS_VER_MINOR 1\n"
    write(os.path.join(folder, include, "cublas_api.h"), version)
    return write(os.path.join(folder, lib, name or f"libcublasLt.so.{major}"), "never opened here")


def nvrtc(folder, major=13, lib="lib"):
    write(os.path.join(folder, lib, f"libnvrtc-builtins.so.{major}.0"), "never opened here")
    return write(os.path.join(folder, lib, f"libnvrtc.so.{major}"), "never opened here")


def cudnn(folder, cuda=13, include="include", lib="lib", name="libcudnn.so.9", version="9.10.2"):
    major, minor, patch = version.split(".")
    write(os.path.join(folder, include, "cudnn.h"))
    write(os.path.join(folder, include, "cudnn_version.h"),
          f"#define CUDNN_MAJOR {major}\n#define CUDNN_MINOR {minor}\n#define CUDNN_PATCHLEVEL {patch}\n"
          "#define CUDNN_VERSION (CUDNN_MAJOR * 10000)\n")
    source = f'extern "C" unsigned long cudnnGetCudartVersion() {{ return {cuda}010; }}'
    return library(os.path.join(folder, lib, name), "cudnn", source)


def nccl(folder, cuda=13, include="include", lib="lib", name="libnccl.so.2"):
    write(os.path.join(folder, include, "nccl.h"),
          "#define NCCL_MAJOR 2\n#define NCCL_MINOR 28\n#define NCCL_PATCH 9\n#define NCCL_SUFFIX \"\"\n")
    source = f"""extern "C" const char banner[] = "NCCL version 2.28.9+cuda{cuda}.0";
extern "C" int ncclGetVersion(int *version) {{ *version = 22809; return 0; }}"""
    return library(os.path.join(folder, lib, name), "nccl", source)


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


def words(variable="CUDA_LIBS", **arguments):
    """The words that the Makefile gets of this variable, with nothing complained of."""
    out, complaints = find(**arguments)
    assert complaints == "", complaints
    return values_of(out, variable)


def values_of(out, variable):
    return [value for name, _, value in (line.partition("=") for line in out.splitlines())
            if name.rstrip("+") == variable]


def linked(libs):
    """The folders in the order in which the linker searches them, and the files."""
    folders = [word[2:] for word in libs if word.startswith("-L")]
    rpath = [folder for before, folder in zip(libs, libs[2:]) if before == "-rpath"]
    assert folders == rpath, libs
    return folders, [word[3:] for word in libs if word.startswith("-l:")]


ALL_FILES = ["libcublasLt.so.13", "libnccl.so.2", "libcudnn.so.9", "libnvrtc.so.13", "libnvrtc-builtins.so.13.0"]


def has_all(libs, *folders):
    return linked(libs) == (list(folders), ALL_FILES) and "--no-as-needed" in libs


def doctor(**arguments):
    """{name: [(state, text), ...]}"""
    lines = {}
    for line in find("doctor", **arguments)[0].splitlines():
        name, state, text = line.split("\t")
        lines.setdefault(name, []).append((state, text))
    return lines


def toolkit(folder=None, release="13.0"):
    """nvcc with cuBLASLt and NVRTC, as every CUDA toolkit has them."""
    folder = folder or new_folder("toolkit")
    nvcc(folder, release)
    cublaslt(folder, int(release.split(".")[0]), lib="lib64")
    nvrtc(folder, int(release.split(".")[0]), lib="lib64")
    return folder


def test_runfile():
    """All under /usr/local/cuda, and nothing is named that nvcc finds by itself."""
    system = new_folder("system")
    cuda = toolkit(f"{system}/usr/local/cuda-13.0")
    os.symlink("cuda-13.0", f"{system}/usr/local/cuda")
    cudnn(cuda, lib="lib64")
    nccl(cuda, lib="lib64")
    libs, link = words(system=system), f"{system}/usr/local/cuda"
    assert has_all(libs, f"{link}/lib64"), libs
    assert words("NVCC", system=system) == [f"{link}/bin/nvcc"] and words("CUDA_RELEASE", system=system) == ["13.0"]
    assert words("CUDA_FLAGS", system=system) == ["-DUSE_NCCL", "-DUSE_CUDNN"]
    for name in "cuBLASLt", "NCCL", "cuDNN", "NVRTC":
        assert [state for state, _ in doctor(system=system)[name]] == ["found"], "two names of a folder are one place"


def test_apt():
    """From cuDNN 9.10 on, the header lies in the machine's own folder, too. nvcc may be a link into the toolkit."""
    system = new_folder("system")
    cuda = toolkit(f"{system}/usr/local/cuda-13.0")
    os.makedirs(f"{system}/usr/bin")
    os.symlink(f"{cuda}/bin/nvcc", f"{system}/usr/bin/nvcc")
    cudnn(f"{system}/usr", include=f"include/{TRIPLET}", lib=f"lib/{TRIPLET}")
    nccl(f"{system}/usr", lib=f"lib/{TRIPLET}", name="libnccl.so.2")
    arguments = dict(system=system, PATH=f"{TOOLS}:{system}/usr/bin")
    libs = words(**arguments)
    assert has_all(libs, f"{cuda}/lib64", f"{system}/usr/lib/{TRIPLET}"), libs
    assert words("CUDA_FLAGS", **arguments) == ["-DUSE_NCCL", "-isystem", f"{system}/usr/include", "-DUSE_CUDNN",
                                                "-isystem", f"{system}/usr/include/{TRIPLET}"]
    assert words("NVCC", **arguments) == [f"{system}/usr/bin/nvcc"]


def test_headers_of_the_system_are_not_named():
    """-isystem /usr/include breaks the order of the compiler's own folders."""
    source = open(SCRIPT).read()
    function = source[source.index("include_flags() {"):source.index("builds() {")]
    for folder, flags in (("/usr/include", ""), (f"/usr/include/{TRIPLET}", ""), ("/cuda/include", ""),
                          ("/usr/local/include", "-isystem /usr/local/include")):
        command = f"machine={MACHINE} cuda_include=/cuda/include\n{function}\ninclude_flags {folder}/cudnn.h"
        assert subprocess.check_output(["bash", "-c", command], text=True).strip() == flags, folder


def test_conda():
    """The toolkit's headers lie under targets/, libraries in lib."""
    conda = new_folder("conda")
    nvcc(conda, include=f"{TARGET}/include")
    cublaslt(conda, include=f"{TARGET}/include")
    nvrtc(conda)
    nccl(conda)
    cudnn(conda)
    for arguments in (dict(CONDA_PREFIX=conda), dict(PATH=f"{TOOLS}:{conda}/bin"), dict(CUDA_HOME=conda)):
        libs = words(**arguments)
        assert has_all(libs, f"{conda}/lib"), (arguments, libs)
        assert words("CUDA_FLAGS", **arguments) == [
            "-DUSE_NCCL", "-isystem", f"{conda}/include", "-DUSE_CUDNN", "-isystem", f"{conda}/include"], arguments
    os.rename(f"{conda}/lib", f"{conda}/{TARGET}/lib")
    assert has_all(words(CONDA_PREFIX=conda), f"{conda}/{TARGET}/lib")


def test_modules_without_a_variable_of_their_own():
    """Modules name the folders of headers and of libraries to the compiler. cuBLASLt need not be beside nvcc."""
    cuda, blas, dnn, ccl = new_folder("cuda"), new_folder("math"), new_folder("cudnn"), new_folder("nccl")
    nvcc(cuda)
    nvrtc(cuda)
    cublaslt(blas, lib="lib64")
    cudnn(dnn)
    nccl(ccl)
    libs = words(PATH=f"{TOOLS}:{cuda}/bin", CPATH=f"{blas}/include:{blas}", LIBRARY_PATH=f"{dnn}/lib/",
                 LD_LIBRARY_PATH=f":{ccl}/lib")
    assert has_all(libs, f"{blas}/lib64", f"{ccl}/lib", f"{dnn}/lib", f"{cuda}/lib"), libs


def test_a_folder_that_is_named_is_taken_or_refused():
    """Even where another has everything. The linker and the loader find the library that was named, too."""
    cuda, named, empty = toolkit(), new_folder("named"), new_folder("empty")
    for make in cudnn, nccl:
        make(cuda, lib="lib64")
    nccl(named)
    folders, _ = linked(words(CUDA_HOME=cuda, NCCL_HOME=named))
    assert folders == [f"{named}/lib", f"{cuda}/lib64"], folders
    cudnn(named)
    complaint = find(status=1, CUDA_HOME=cuda, NCCL_HOME=named)[1]
    assert f"{cuda}/lib64/libnccl.so.2 would be linked instead of {named}/lib/libnccl.so.2" in complaint, complaint
    assert linked(words(CUDA_HOME=cuda, NCCL_HOME=named, CUDNN_HOME=named))[0] == [f"{named}/lib", f"{cuda}/lib64"]
    for name in "NCCL", "CUDNN":
        out, complaint = find(status=1, CUDA_HOME=cuda, **{f"{name}_HOME": empty})
        message = f"in {name}_HOME={empty} that {CXX} builds with: expected include/{name.lower()}.h"
        assert out == "" and message in complaint, complaint
        assert f"{name}=0 leaves it out" in complaint, complaint
    assert "No nvcc in CUDA_HOME=" in find(status=1, CUDA_HOME=empty, PATH=f"{TOOLS}:{cuda}/bin")[1]
    lines = doctor(CUDA_HOME=cuda, NCCL_HOME=empty)
    assert lines["NCCL"] == [("missing", f"NCCL_HOME={empty} has none that fits")], lines
    assert lines["cuDNN"][0][0] == "found", lines


def test_nvcc_that_is_named():
    """NVCC comes before CUDA_HOME, whose libraries are then found all the same."""
    cuda, other = toolkit(), toolkit(release="12.4")
    assert words("CUDA_RELEASE", NVCC=f"{other}/bin/nvcc", CUDA_HOME=cuda, QUIET="1") == ["12.4"]
    assert words("NVCC", NVCC=f"{other}/bin/nvcc", QUIET="1") == []
    assert linked(words(NVCC=f"{other}/bin/nvcc", CUDA_HOME=cuda, QUIET="1"))[0] == [f"{other}/lib64"]
    nvcc(other, "11.8")
    assert "is of CUDA release 11.8, expected 12 or later" in find(status=1, CUDA_HOME=other)[1]
    assert "No nvcc, which builds the GPU programs: install the CUDA toolkit" in find(status=1)[1]


def packages(cuda=13, folder="cu13"):
    """What pip installs with PyTorch, and nothing else: no libcudnn.so and no libnccl.so."""
    site = new_folder("site-packages")
    cudnn(f"{site}/nvidia/cudnn", cuda)
    nccl(f"{site}/nvidia/nccl", cuda)
    cublaslt(f"{site}/nvidia/{folder or 'cublas'}", cuda)
    nvrtc(f"{site}/nvidia/{folder or 'cuda_nvrtc'}", cuda)
    return site


def test_pip():
    """nvcc alone, for example from a distribution, beside PyTorch's packages for CUDA 13, and for CUDA 12."""
    for release, folder in (("13.0", "cu13"), ("12.4", None)):
        major = int(release.split(".")[0])
        site, cuda = packages(major, folder), new_folder("cuda")
        nvcc(cuda, release)
        folders, files = linked(words(CUDA_HOME=cuda, PYTHONPATH=site))
        assert f"{site}/nvidia/cudnn/lib" in folders and f"{site}/nvidia/nccl/lib" in folders, folders
        assert f"{site}/nvidia/{folder or 'cublas'}/lib" in folders, folders
        assert f"{site}/nvidia/{folder or 'cuda_nvrtc'}/lib" in folders, folders
        assert files == [name.replace("13", str(major)) for name in ALL_FILES], files
        flags = words("CUDA_FLAGS", CUDA_HOME=cuda, PYTHONPATH=site)
        for name in "cudnn", "nccl", folder or "cublas":
            assert f"{site}/nvidia/{name}/include" in flags, flags


def test_a_misfit_is_passed_over():
    """A library for CUDA 12 with nvcc of CUDA 13 is not taken: the next that fits is, and neither links the misfit."""
    cuda, site = toolkit(), packages()
    cublaslt(cuda, 12, lib="lib64", name="libcublasLt.so.12")
    cublaslt(cuda, 13, lib="lib64")
    cudnn(cuda, 12, lib="lib64")
    nccl(cuda, 12, lib="lib64")
    arguments = dict(CUDA_HOME=cuda, PYTHONPATH=site)
    folders, files = linked(words(**arguments))
    assert folders == [f"{site}/nvidia/nccl/lib", f"{site}/nvidia/cudnn/lib", f"{cuda}/lib64"], folders
    assert files == ALL_FILES, files
    lines = doctor(**arguments)
    for name, file in (("NCCL", "libnccl.so.2"), ("cuDNN", "libcudnn.so.9")):
        assert lines[name][0] == ("passed", f"{cuda}/lib64/{file}: made for CUDA 12, but nvcc is of CUDA 13"), lines
        assert lines[name][-1][0] == "found" and site in lines[name][-1][1], lines


def test_a_misfit_alone():
    """The build goes without it and says why. If it was asked for, there is no build."""
    cuda = toolkit()
    misfits = cudnn(cuda, 12), nccl(cuda, 12)
    out, notes = find(CUDA_HOME=cuda)
    assert linked(values_of(out, "CUDA_LIBS"))[1] == ["libcublasLt.so.13"] and values_of(out, "CUDA_FLAGS") == [], out
    assert "--no-as-needed" not in out, out
    for misfit, start, switch in zip(misfits, ("No cuDNN 9 here", "No NCCL here"), ("CUDNN", "NCCL")):
        reason = f" ({misfit}: made for CUDA 12, but nvcc is of CUDA 13)"
        assert start + reason in notes and f"{switch}=0 silences this" in notes, notes
        for asked in ({switch: "1"}, {f"{switch}_HOME": cuda}):
            assert reason in find(status=1, CUDA_HOME=cuda, **asked)[1], asked
        assert start not in find(CUDA_HOME=cuda, **{switch: "0"})[1]
    assert find(CUDA_HOME=cuda, QUIET="1")[1] == ""


def test_cublaslt_of_another_release():
    cuda = new_folder("cuda")
    nvcc(cuda)
    cublaslt(cuda, 12, name="libcublasLt.so")
    complaint = find(status=1, CUDA_HOME=cuda)[1]
    assert "No cuBLASLt that fits CUDA 13.0" in complaint and "made for CUDA 12, but nvcc is of CUDA 13" in complaint
    assert "apt-get install libcublas-dev-13-0" in complaint, complaint


def test_an_old_cudnn():
    cuda = toolkit()
    old = cudnn(cuda, version="8.9.7", name="libcudnn.so")
    assert f"No cuDNN 9 here ({old}: version 8.9.7, expected 9)" in find(CUDA_HOME=cuda, NCCL="0")[1]


def test_halves():
    """A library without its header, as packages without -dev leave it, and a header without its library."""
    cuda, system = toolkit(), new_folder("system")
    lib, header = nccl(f"{system}/usr", lib="lib64"), f"{cuda}/include/cudnn.h"
    cudnn(cuda)
    os.remove(f"{system}/usr/include/nccl.h")
    shutil.rmtree(f"{cuda}/lib")
    notes = find(CUDA_HOME=cuda, system=system)[1]
    assert f"({lib}: nccl.h is not in this place)" in notes, notes
    assert f"({header}: libcudnn.so.9 is not in this place)" in notes, notes


def test_what_does_not_link_is_passed_over():
    """The next place is tried. The reason is the linker's."""
    cuda, conda = toolkit(), new_folder("conda")
    broken = write(nccl(cuda), "no library\n")
    nccl(conda)
    lines = doctor(CUDA_HOME=cuda, CONDA_PREFIX=conda)["NCCL"]
    assert lines[0][0] == "passed" and lines[0][1].startswith(f"{broken}: {CXX} builds no program with it"), lines
    assert lines[1] == ("found", f"2.28.9 {conda}/lib/libnccl.so.2"), lines
    source = '#include <stdlib.h>\nextern "C" unsigned long cudnnGetCudartVersion() { exit(1); }'
    library(cudnn(cuda), "cudnn", source)
    assert "builds no program with it that runs" in doctor(CUDA_HOME=cuda)["cuDNN"][0][1]


def test_no_nvrtc():
    """cuDNN is taken without it, and the build says what is then missing when the program runs."""
    cuda = toolkit()
    cudnn(cuda)
    nvrtc(cuda, 12, lib="lib64")
    os.remove(f"{cuda}/lib64/libnvrtc.so.13")
    out, notes = find(CUDA_HOME=cuda, NCCL="0")
    assert linked(values_of(out, "CUDA_LIBS"))[1] == ["libcublasLt.so.13", "libcudnn.so.9"], out
    assert "No NVRTC for CUDA 13 here: cuDNN needs it when the program runs" in notes, notes
    assert doctor(CUDA_HOME=cuda)["NVRTC"] == [("missing", "")]


def test_odd_paths():
    """make takes no path with a blank: such a folder is refused if it was named, and passed over otherwise."""
    for odd in "a b", "a$b", "a'b", "a#b":
        folder = os.path.join(new_folder(), odd)
        toolkit(folder)
        assert "no path with a blank or another special character" in find(status=1, CUDA_HOME=folder)[1], odd
        nccl(folder)
        cuda = toolkit()
        assert "no path with a blank" in find(status=1, CUDA_HOME=cuda, NCCL_HOME=folder)[1], odd
        assert "no path with a blank" in find(CUDA_HOME=cuda, CONDA_PREFIX=folder)[1], odd


def test_order_of_places():
    """What was not taken is said, with the reason."""
    system, conda, path, cuda = new_folder("system"), new_folder("conda"), new_folder("path"), toolkit()
    places = [cuda, path, conda] + [f"{system}/{name}" for name in ("usr/local/cuda", "opt/cuda", "usr", "usr/local")]
    for place in places:
        nccl(place)
    site = packages()
    places.append(f"{site}/nvidia/nccl")
    arguments = dict(CUDA_HOME=cuda, CUDA_PATH=path, CONDA_PREFIX=conda, system=system, PYTHONPATH=site)
    lines = doctor(**arguments)["NCCL"]
    assert lines == [("passed", f"{place}/lib/libnccl.so.2: an earlier place has it") for place in places[1:]] + [
        ("found", f"2.28.9 {cuda}/lib/libnccl.so.2")], lines
    for place, following in zip(places, places[1:]):
        shutil.rmtree(f"{place}/lib")
        shutil.rmtree(f"{place}/include")
        nvcc(cuda), cublaslt(cuda)
        assert doctor(**arguments)["NCCL"][-1] == ("found", f"2.28.9 {following}/lib/libnccl.so.2"), following


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
