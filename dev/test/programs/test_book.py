"""The chapters of doc/: the trainer's functions compute the numbers of their worked examples, their exercises are
red as they are and green with the solutions, and the scripts draw their figures."""
import glob
import os
import re
import shlex
import subprocess
import sys

import pytest

from tools import ROOT, new_folder, path, python, text_of, write

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
    verdict = re.compile(r"^(\d+\.\d|project \d).*: (red|green)$", re.M)
    said = [(example, dict(verdict.findall(colours))) for example, colours in halves]
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


FAULTY = """static void rms_norm(float *out, const float *x, const float *weight, int C, float epsilon) {
    for (int c = 0; c <= C; c++) { out[c] = x[c] * weight[c] + epsilon; }
}
static void row_gradient(float *dx, const float *dout, const float *x, const float *weight, float mean, float rstd,
                         int C) {
    abort();
    (void)dx, (void)dout, (void)x, (void)weight, (void)mean, (void)rstd, (void)C;
}
static void mean_and_variance(float *mean, float *variance, const float *x, int C) {
    *mean = 4096.0f;
    *variance = (float)C * x[0];
}
"""


@pytest.mark.skipif(not os.path.exists(os.path.join(ROOT, "build", "oracle.o")), reason="no build/oracle.o")
def test_faulty_answers():
    """What `make chapter-3` builds names a read out of bounds, a crash and wrong numbers, each at its exercise, and the
    worked example stays."""
    answers, build = write("faulty/answers.h", FAULTY), new_folder("make")
    commands = subprocess.run(["make", "-n", f"BUILD={build}", f"{build}/chapter_03_layernorm"], cwd=ROOT, check=True,
                              capture_output=True, text=True).stdout.replace(f"{build}/oracle", "build/oracle")
    command = shlex.split(re.search(r"^.*03_layernorm/chapter\.c .*", commands, re.M)[0])
    program = command[command.index("-o") + 1] = path("faulty", "chapter")
    depends = command.index("-MF")
    subprocess.run([*command[:depends], *command[depends + 2:], f'-DANSWERS="{answers}"'], cwd=ROOT, check=True)
    result = subprocess.run([program], cwd=ROOT, capture_output=True, text=True)
    example, said = result.stdout.split("\nExercises, in dev/exercises/03_layernorm/exercises.h\n")
    assert result.returncode == 0 and f"```text\n{example}```\n" in text_of("doc/03_layernorm.md"), result
    parts = re.split(r"^3\.\d .*: red\n", said, flags=re.M)
    assert f"{answers}:2" in parts[0], said
    assert "It crashed: Aborted." in parts[1] and ": variance is " in parts[2], said


def test_basics_in_pytorch():
    """The PyTorch of chapter 0 prints the losses of its C."""
    pytest.importorskip("torch")
    page = text_of("doc/00_basics.md")
    program = re.search(r"^```python\n(.*?)^```", page, re.M | re.S)[1]
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    losses = [(name, *loss) for name, line in re.findall(r"^(bigram|average|attention) +(step 0: .*)$", page, re.M)
              for loss in re.findall(r"step (\d+): (\S+)", line)]
    assert len(losses) == 12 and re.findall(r"(\w+) +step (\d+): (\S+)", printed) == losses, printed


@pytest.mark.parametrize("folder", ["projects_cpu", "projects_gpu"])
def test_projects(folder):
    """They are red as they are and green with our answers, and doc/projects.md tells of each."""
    text = text_of("doc/projects.md")
    names = [f"project {number}" for number in
             re.findall(rf"^\| (\d) \| .*`dev/exercises/{folder}/.*` \|$", text, re.M)]
    assert names and all(f"\n## {name[-1]}. " in text for name in names)
    assert run("chapter", folder) == ("", dict.fromkeys(names, "red"))
    assert run("solved", folder) == ("", dict.fromkeys(names, "green"))


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
