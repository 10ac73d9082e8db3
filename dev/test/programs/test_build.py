"""What the Makefile makes of NCCL, cuDNN and MPI: in folders made for the purpose, with a stand-in for nvcc. Nothing is
built but what the Makefile itself builds to find out. Where NCCL and cuDNN are found: test_find_libraries.py. What
comes of it with the real ones: test_compilers.py. Which revision of the source a program says it is, in a repository
with a trainer of three lines. And the Dockerfile, by which nothing is built here, since few machines may."""
import fnmatch
import glob
import os
import re
import shutil
import subprocess
import sys

import pytest

from test_find_libraries import CXX, compiled, cublaslt, cudnn, nccl, nvcc, nvrtc
from tools import ROOT, path, text_of, write

CUDA, NCCL, MPI, EMPTY, BUILD = (path(name) for name in ("cuda", "nccl", "mpi", "empty", "build"))
NVCC = os.path.join(CUDA, "bin", "nvcc")


def setup_module():
    if CXX is None or shutil.which("make") is None or sys.platform != "linux":
        pytest.skip("no compiler, no make, or no Linux")
    for library in nvcc, cublaslt, cudnn, nvrtc:
        library(CUDA, lib="lib64")
    nccl(NCCL)
    write(os.path.join(MPI, "include", "mpi.h"), "int MPI_Init(void *argc, void *argv);\n")
    write(os.path.join(MPI, "lib", "libmpi.so"), compiled('extern "C" int MPI_Init(void *, void *) { return 0; }'))
    os.mkdir(EMPTY)


def make(*arguments, status=0, **variables):
    """What `make -n` says that it would do."""
    environment = {name: value for name, value in os.environ.items()
                   if not re.match("MAKE|MFLAGS|GNUMAKE|NCCL|CUDNN|MPI|CUDA|C(C|XX|FLAGS)$", name)}
    environment.update({"GPU_ARCH": "80", "ARCHS": "sm_75 sm_80 sm_90", **variables})
    result = subprocess.run(["make", "-n", f"BUILD={BUILD}", f"BIN={BUILD}", "ARCH=", *arguments], cwd=ROOT,
                            env=environment, capture_output=True, text=True, timeout=300)
    assert result.returncode == status, (arguments, result)
    return result.stdout + result.stderr


def compile_line(*arguments, program="train_gpt2cu", **variables):
    """The command that links a program."""
    out = make(f"{BUILD}/{program}", f"NVCC={NVCC}", *arguments, **variables)
    return next(line for line in out.splitlines() if f"-o {BUILD}/{program} " in line)


def has_mpi(line):
    return "-DUSE_MPI" in line and " -lmpi" in line


@pytest.mark.long
def test_libraries():
    """What is found goes into the command, and not what is switched off, nor cuDNN in fp32, where nothing uses it."""
    line = compile_line("MPI=0", "CUDNN=1", f"NCCL_HOME={NCCL}")
    for folder, library in ((f"{NCCL}/lib", "nccl.so.2"), (f"{CUDA}/lib64", "cudnn.so.9")):
        assert f" -L{folder} -Xlinker -rpath -Xlinker {folder} -l:lib{library} " in line, line
    for option, missing in (("NCCL=0", "nccl"), ("CUDNN=0", "cudnn"), ("PRECISION=FP32", "cudnn")):
        line = compile_line(option, "MPI=0")
        assert f"USE_{missing.upper()}" not in line and f"lib{missing}" not in line and "-lmpi" not in line, line


@pytest.mark.long
def test_mpi_in_a_folder():
    """With a compiler of its own that quotes, as Intel's does."""
    write(os.path.join(MPI, "bin", "mpicc"), f"""#!/bin/sh
echo 'gcc -I"{MPI}/include" -L"{MPI}/lib" -Xlinker --enable-new-dtags -Wl,-z,now -lmpi -lm'
""", 0o755)
    line, emulated = (compile_line(f"MPI_HOME={MPI}", program=name) for name in ("train_gpt2cu", "train_gpt2emu"))
    assert has_mpi(line) and f" -isystem {MPI}/include " in line and f" -L{MPI}/lib " in line, line
    assert f"-Xlinker -rpath -Xlinker {MPI}/lib" in line and "new-dtags" not in line and "-Wl" not in line, line
    assert has_mpi(emulated) and f" -Wl,-rpath,{MPI}/lib " in emulated, emulated


@pytest.mark.parametrize("word, says", (
    ("NCCL=yes", "expected 0 (build without) or 1 (refuse to build without)"),
    (f"MPI_HOME={EMPTY}", f"No MPI in MPI_HOME={EMPTY} that ")), ids=("value", "folder"))
def test_refused(word, says):
    out = make(f"{BUILD}/train_gpt2emu", word, status=2)
    assert word in out and says in out, out


@pytest.mark.long
def test_a_switch_rebuilds():
    """What is built depends on the record of its flags, which changes with them, and not without."""
    for program, record, switch in (("train_gpt2cu", "flags.cuda", "CUDNN=0"),
                                    ("train_gpt2emu", "flags.emu", "NCCL=0")):
        seen = []
        for arguments in (["MPI=0"], ["MPI=0"], ["MPI=0", switch]):
            make(f"{BUILD}/{program}", f"NVCC={NVCC}", *arguments)
            with open(os.path.join(BUILD, record)) as file:
                seen.append((file.read(), os.stat(os.path.join(BUILD, record)).st_ino))
        assert seen[0] == seen[1] and seen[1][0] != seen[2][0], (program, switch, seen)


def test_which_gpus():
    """The one that is here. Where none is visible: those that the trainer is for and nvcc knows. make says which."""
    smi = path("smi", "nvidia-smi")
    places = os.path.dirname(smi) + ":" + os.environ["PATH"]
    for found, known, archs in (("8.9", "sm_80 sm_89 sm_90", "89"), ("7.5", "sm_75 sm_80 sm_90", "80 90"),
                                ("", "sm_80 sm_90 sm_100 sm_120", "80 90 100")):
        write(smi, f"#!/bin/sh\necho {found}\n", 0o755)
        out = make(f"{BUILD}/train_gpt2cu", f"NVCC={NVCC}", "NCCL=0", "CUDNN=0", "MPI=0", PATH=places, GPU_ARCH="",
                   ARCHS=known)
        line = next(line for line in out.splitlines() if " train_gpt2.cu" in line)
        assert re.findall(r"arch=compute_(\d+),code=\[sm_(\d+),compute_(\d+)\]", line) == [
            (arch, arch, arch) for arch in archs.split()], (found, known, out)
        said = f"that CUDA 13.0 knows is visible here: building for sm_{archs.replace(' ', ' sm_')}. GPU_ARCH=90"
        assert (said in out) == (len(archs) > 2), (found, known, out)
        # Ranks refuse another program file. So nothing in it follows from the machine's cores or from a random name.
        assert " -objtemp " in line and re.findall(r"split-compile=(\d+)", line) == ["8", "8"], line


SMALL_TRAINER = """#include <stdio.h>
extern const char *gpt2c_revision(void);
int main(void) { return puts(gpt2c_revision()) < 0; }
"""


def test_the_revision():
    """A commit links and compiles nothing but the revision; without .git there is none; twice in a row does nothing."""
    if shutil.which("git") is None:
        pytest.skip("no git here")
    folder = path("revision")
    environment = {name: value for name, value in os.environ.items() if not re.match("MAKE|MFLAGS|GNUMAKE|GIT_", name)}
    environment.update(GIT_CONFIG_GLOBAL="/dev/null", GIT_CONFIG_SYSTEM="/dev/null")

    def call(*command):
        result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
        assert result.returncode == 0, (command, result)
        return result.stdout

    def git(*arguments):
        return call("git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments).strip()

    def built():
        """What the Makefile compiles and links, and what the program says then."""
        out = call("make", "train_gpt2", "ARCH=", "OPENMP=0", "CFLAGS=-O0")
        assert call("make", "train_gpt2", "ARCH=", "OPENMP=0", "CFLAGS=-O0").strip().endswith("is up to date.")
        return re.findall(r"-o (\S+)", out), call("./train_gpt2").strip()

    write(os.path.join(folder, "train_gpt2.c"), SMALL_TRAINER)
    for name in ("Makefile", "dev/test/tests.mk", "dev/find_libraries.sh"):
        write(os.path.join(folder, name), text_of(name), 0o755)
    linked = ["build/revision.o", "train_gpt2"]
    assert built() == (["build/train_gpt2.o", *linked], "")
    git("init", "-q")
    write(os.path.join(folder, ".gitignore"), "build\ntrain_gpt2\n")
    git("add", ".gitignore", "Makefile", "dev", "train_gpt2.c")
    git("commit", "-q", "-m", "one")
    assert built() == (linked, git("rev-parse", "HEAD"))
    write(os.path.join(folder, ".gitignore"), "build\ntrain_gpt2\nx\n")
    assert built() == (linked, git("rev-parse", "HEAD") + "-dirty")


# ---- Docker ----


def test_dockerfile():
    """Its packages are some that the scripts install, its targets those of the Makefile. Nothing is built as root."""
    text = text_of("Dockerfile").replace("\\\n", "")
    packages = re.search(r"apt-get install -y --no-install-recommends +(.*?) *&&", text)[1].split()
    assert set(packages) <= set(re.findall(r"[\w+.-]+", text_of("scripts/test.sh"))), packages
    makefiles = text_of("Makefile") + text_of("dev/test/tests.mk")
    targets = re.findall(r"^RUN make .* (\w+)$", text, re.M)
    assert targets == ["all", "test"] and all(re.search(rf"^{name}:", makefiles, re.M) for name in targets), targets
    assert text.index("useradd ") < text.index("\nUSER ") < text.index("\nRUN make ")
    assert os.access(os.path.join(ROOT, re.search(r'^CMD \["(\S+)"\]$', text, re.M)[1]), os.X_OK)


def test_what_is_copied():
    """The sources are in the image, and what is built, fetched and trained here is not."""
    patterns = text_of(".dockerignore").splitlines()[1:]
    kinds = "Makefile *.md *.c *.cu* *.py llmc/**/*.*h scripts/**/*.sh doc/*.md dev/**/*.py dev/**/*.[ch] dev/**/*.cu*"
    sources = [name for kind in kinds.split() for name in glob.glob(kind, recursive=True)]
    here = ["train_gpt2", "test_llama3emu", ".git/HEAD", "build/x", "run_1/main.log", "dev/data/web/x.bin", "doc/a.tmp"]
    ignored = [name for name in sources + here
               if any(fnmatch.fnmatch(name, pattern) or fnmatch.fnmatch(name, pattern + "/*") for pattern in patterns)]
    assert len(sources) > 300 and ignored == here, ignored
