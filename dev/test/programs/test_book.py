"""The chapters of doc/: the trainer's functions compute the numbers of their worked examples, their exercises are
red as they are and green with the solutions, and the scripts draw their figures."""
import glob
import os
import re
import subprocess

import pytest

from tools import ROOT, python, text_of

CHAPTERS = sorted(os.path.basename(folder) for folder in glob.glob(os.path.join(ROOT, "dev", "exercises", "[0-9]*")))


def run(kind, chapter):
    """The worked example and the verdicts: exercise to colour. kind: chapter, or solved with our solutions. Where the
    reader's program of this chapter is built, too, it says the same."""
    commands = [["build/emu/book", f"{kind}_{chapter}"], [f"build/{kind}_{chapter}"], [f"build/emu/{kind}_{chapter}"]]
    results = [subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
               for command in commands if os.path.exists(os.path.join(ROOT, command[0]))]
    if not results:
        pytest.skip("no build/emu/book here (make build/emu/book)")
    assert all(result.returncode == 0 and result.stderr == "" for result in results), results
    halves = [result.stdout.split(f"\nExercises, in dev/exercises/{chapter}/exercises.h\n") for result in results]
    said = [(example, dict(re.findall(r"^(\d+\.\d) .*: (red|green)$", colours, re.M))) for example, colours in halves]
    assert said.count(said[0]) == len(said), said
    return said[0]


@pytest.mark.parametrize("chapter", [pytest.param(name, marks=pytest.mark.long if name.startswith("19") else ())
                                     for name in CHAPTERS])
def test_chapter(chapter):
    number, text = int(chapter[:2]), text_of(f"doc/{chapter}.md")
    names = [f"{number}.{i}" for i in (1, 2, 3)]
    example, colours = run("chapter", chapter)
    assert colours == dict.fromkeys(names, "red"), colours
    assert f"make chapter-{number}" in text and f"```text\n{example}```\n" in text, example
    solved_example, colours = run("solved", chapter)
    assert colours == dict.fromkeys(names, "green") and solved_example == example, colours


def test_every_chapter():
    """Chapters, their folders and the table of contents fit together."""
    chapters = sorted(os.path.basename(path)[:-3] for path in glob.glob(os.path.join(ROOT, "doc", "[0-9]*.md")))
    assert set(chapters) == set(CHAPTERS)
    contents = re.findall(r"\]\(((\d\d)_\w+)\.md\)", text_of("doc/README.md"))
    assert sorted({name for name, _ in contents}) == chapters, contents
    for chapter in chapters:
        assert text_of(f"doc/{chapter}.md").startswith(f"# {int(chapter[:2])}. "), chapter


def test_figures():
    """They are drawn by their scripts. doc/muon.md has the numbers that one of these prints."""
    assert python("figures/draw.py", "--check") == ("", "")
    assert f"```text\n{python('figures/fig_muon.py')[0]}```\n" in text_of("doc/muon.md")
    figures = {os.path.basename(path) for path in glob.glob(os.path.join(ROOT, "doc", "*.svg"))}
    shown = {name for path in glob.glob(os.path.join(ROOT, "doc", "*.md"))
             for name in re.findall(r"!\[[^\]]+\]\((\w+\.svg)\)", text_of(os.path.relpath(path, ROOT)))}
    assert figures == shown, figures ^ shown
