"""Dockerfile, read as Docker reads it: what it names is there. Nothing is built here, since few machines may."""
import fnmatch
import glob
import os
import re

from tools import ROOT, text_of


def instructions():
    """(name, rest) of each instruction: comments dropped, continued lines joined."""
    lines = [line for line in text_of("Dockerfile").splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [tuple(line.split(None, 1)) for line in joined.splitlines() if line]


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
    """At most 25 lines, a base with a tag, packages that the scripts install, targets of the Makefile, no root."""
    assert text_of("Dockerfile").count("\n") <= 25
    found = instructions()
    names = [name for name, _ in found]
    assert names[0] == "FROM" and names[-1] == "CMD" and set(names) <= {"FROM", "RUN", "WORKDIR", "COPY", "USER", "CMD"}
    assert re.fullmatch(r"debian:\d[\w.-]*", found[0][1]), found[0]
    assert re.search(r"^# .*\bFROM nvidia/cuda:[\d.]+\S*-devel-\S+", text_of("Dockerfile"), re.M)
    runs = [rest for name, rest in found if name == "RUN"]
    packages = re.search(r"apt-get install -y --no-install-recommends +(.*?) *&&", runs[0])[1].split()
    assert set(packages) <= set(re.findall(r"[\w+.-]+", text_of("scripts/test.sh"))), packages
    makefiles = text_of("Makefile") + text_of("dev/test/tests.mk")
    targets = [rest.split()[-1] for rest in runs if rest.startswith("make ")]
    assert targets == ["all", "test"] and all(re.search(rf"^{name}:", makefiles, re.M) for name in targets), runs
    user = dict(found)["USER"]
    assert f"useradd --create-home {user}" in runs[0] and names.index("USER") < names.index("RUN", 2), found
    assert dict(found)["COPY"] == f"--chown={user}:{user} . ." and f"-o {user} " in runs[0]
    assert dict(found)["WORKDIR"] in runs[0], "the folder belongs to the user"
    command = re.fullmatch(r'\["(\S+)"\]', dict(found)["CMD"])[1]
    assert os.access(os.path.join(ROOT, command), os.X_OK)


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
