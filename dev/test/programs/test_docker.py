"""Dockerfile, read as Docker reads it: what it names is there. Nothing is built here, since few machines may."""
import fnmatch
import glob
import os
import re

from tools import ROOT, text_of


def ignored(name):
    """Does .dockerignore leave out this path? A pattern without **/ begins at the root, and takes what is below. The
    last one that fits decides, and ! takes back."""
    out, places = False, name.split("/")
    for pattern in text_of(".dockerignore").splitlines():
        parts = pattern.removeprefix("!").removeprefix("**/").split("/")
        for at in range(len(places) if "**/" in pattern else 1):
            here = places[at:at + len(parts)]
            if len(here) == len(parts) and all(map(fnmatch.fnmatch, here, parts)) and pattern[0] != "#":
                out = pattern[0] != "!"
    return out


def test_dockerfile():
    """Packages that the scripts install, targets of the Makefile, a program that is there. Nothing is built as root."""
    text = text_of("Dockerfile").replace("\\\n", "")
    packages = re.search(r"apt-get install -y --no-install-recommends +(.*?) *&&", text)[1].split()
    assert set(packages) <= set(re.findall(r"[\w+.-]+", text_of("scripts/test.sh"))), packages
    makefiles = text_of("Makefile") + text_of("dev/test/tests.mk")
    targets = re.findall(r"^RUN make .* (\w+)$", text, re.M)
    assert targets == ["all", "test"] and all(re.search(rf"^{name}:", makefiles, re.M) for name in targets), targets
    assert text.index("useradd ") < text.index("\nUSER ") < text.index("\nRUN make ")
    assert os.access(os.path.join(ROOT, re.search(r'^CMD \["(\S+)"\]$', text, re.M)[1]), os.X_OK)


def test_what_is_copied():
    """The sources are in the image, and what is built here is not."""
    kinds = ("Makefile", "*.md", "*.c", "*.cu*", "*.py", "llmc/**/*.*h", "scripts/**/*.sh", "doc/*", "dev/*",
             "dev/data/*.*",
             *(f"dev/{room}/**/*.*" for room in ("bench", "cpu", "cuda", "emu", "test", "twin")))
    sources = [name for kind in kinds for name in glob.glob(kind, root_dir=ROOT, recursive=True)]
    assert len(sources) > 300 and [name for name in sources if ignored(name) and "__pycache__" not in name] == []
    own, cuda = (re.search(rf"^{name} += ([\w ]+)", text_of("Makefile"), re.M)[1].split()
                 for name in ("PROGRAMS", "CUDA"))
    for name in (*own, *(f"{name}{end}" for name in cuda for end in ("cu", "emu")), ".git/HEAD", "build/x",
                 "run_1/main.log", "dev/data/web/x.bin", "dev/__pycache__/guard.pyc", "doc/a.tmp"):
        assert ignored(name), name
