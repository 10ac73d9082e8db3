"""Dockerfile, read as Docker reads it: what it names is there. Nothing is built here, since few machines may."""
import fnmatch
import os
import re
import sys

from tools import ROOT, text_of

sys.path.insert(0, f"{ROOT}/dev")
import house  # noqa: E402 (its folder had to be named first)


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
    """The repository is in the image, and what is built, fetched and trained here is not."""
    patterns = text_of(".dockerignore").splitlines()[1:]
    here = ["train_gpt2", "test_llama3emu", ".git/HEAD", "build/x", "run_1/main.log", "dev/data/web/x.bin", "doc/a.tmp"]
    ignored = [name for name in [*house.tracked(), *here]
               if any(fnmatch.fnmatch(name, pattern) or fnmatch.fnmatch(name, pattern + "/*") for pattern in patterns)]
    assert ignored == here, ignored
