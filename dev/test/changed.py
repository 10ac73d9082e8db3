"""Which test files a change touches, for scripts/test.sh --changed: those that include a changed file, also through
other files; those that start a program made of one; and those that name one."""
import functools
import os
import re
import subprocess

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# A Python test that has such a word starts the program of this source.
STARTED = {"train_gpt2.c": r"\bcli\b|\btrain_gpt2\b", "tokenize.c": r"\btokenize\b",
           "train_gpt2.cu": r"\bgpu_program\b|\branks\b|train_gpt2emu|train_gpt2cu",
           "train_llama3.c": r"\bof_llama\b|\bLLAMA\b|\btrain_llama3\b",
           "train_llama3.cu": r"\bof_llama\b|train_llama3emu",
           "test_gpt2.c": r"\btest_trainer\b", "test_gpt2.cu": r"\bgpu_tests\b"}
# Tests of whole folders, and what a source that the emulator runs depends on.
FOLDERS = {"test_compilers.py": ("llmc/", "dev/emu/"), ".cu": "dev/emu/", ".cuh": "dev/emu/"}
CODE = (".c", ".h", ".cu", ".cuh", ".cpp")
BUILDS = {"Makefile", "dev/test/tests.mk", "dev/test/conftest.py"}  # all tests depend on these
# What shows in no source: these always run. They take seconds.
ALWAYS = ("test_house.py", "test_targets.py")


def changed_files():
    """The files that differ from what origin/main and HEAD have in common, those that git does not know included."""
    def git(*words):
        return subprocess.run(["git", *words], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                              check=False).stdout.split("\n")[:-1]
    base = (git("merge-base", "HEAD", "origin/main") or ["HEAD"])[0]
    return {*git("diff", "--name-only", base), *git("ls-files", "--others", "--exclude-standard")}


@functools.lru_cache(None)
def text_of(path):
    with open(os.path.join(ROOT, path), encoding="utf-8", errors="replace") as file:
        return file.read()


@functools.lru_cache(None)
def parts_of(source):
    """The file and all that it includes."""
    parts, left = set(), [source]
    while left:
        path = left.pop()
        if path in parts or not os.path.exists(os.path.join(ROOT, path)):
            continue
        parts.add(path)
        for name in re.findall(r'^#include "([^"]+)"', text_of(path), re.M):
            left += [name, os.path.join(os.path.dirname(path), name)]
    return frozenset(parts)


def is_touched(path, changed):
    """Does a change of these files touch the test file?"""
    path = os.path.relpath(path, ROOT)
    if path in changed or not changed.isdisjoint(BUILDS) or os.path.basename(path) in ALWAYS:
        return True
    text = text_of(path)
    started = [path] if path.endswith(CODE) else [source for source, word in STARTED.items() if re.search(word, text)]
    folders = [folder for end, folder in FOLDERS.items() for source in (path, *started) if source.endswith(end)]
    if any(name.startswith(folder) for folder in folders for name in changed):
        return True
    if any(not changed.isdisjoint(parts_of(source)) for source in started):
        return True
    if path.endswith(CODE):
        return False
    # Names of Python modules stand in it without their ending.
    names = {re.sub(r"\.py$", "", os.path.basename(name)) for name in changed if not name.startswith("llmc/")}
    return any(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) for name in names)
