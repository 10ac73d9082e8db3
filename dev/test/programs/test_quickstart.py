"""scripts/quickstart.sh as a new user meets it: in a fresh copy of the sources, from another folder, with bad input,
with Ctrl-C, without a compiler. Trains for a few seconds only."""
import os
import re
import shutil
import subprocess

import pytest

from shell import COPY, copy_repository
from tools import WORK, Terminal, path, stand_ins, text_of, write

SCRIPT = os.path.join(COPY, "scripts", "quickstart.sh")
HOW = {"CFLAGS": "-O1"}  # compiles in half the time


def setup_module():
    if shutil.which("make") is None:
        pytest.skip("no make")
    copy_repository()
    text = text_of(SCRIPT)
    size = "--layers 4 --heads 4 --channels 128 "
    assert size in text
    write(SCRIPT, text.replace(size, "--layers 1 --heads 2 --channels 48 "))  # learns enough in a tenth of the time


def quickstart(*arguments, seconds="1", cwd=WORK, path=os.environ["PATH"]):
    environment = dict(os.environ, TRAIN_SECONDS=seconds, TMPDIR=WORK, PATH=path, **HOW)
    return subprocess.run(["bash", SCRIPT, *arguments], cwd=cwd, env=environment, stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, errors="replace", timeout=300)


def runs():
    return sorted(name for name in os.listdir(COPY) if name.startswith("run_"))


COPIED = "cannot be copied to COPY/build/run_quickstart.txt; give a plain text file, or nothing (--help)"


@pytest.mark.parametrize("words, seconds, message", (
    (["nothing.txt"], "1", f"nothing.txt: {COPIED}"), (["."], "1", f".: {COPIED}"),
    (["short.txt"], "1", "short.txt: has 19 bytes; give a text of at least 4096"),
    (["my", "book.txt"], "1", "one text file at a time, 2 words given (a name with spaces needs quotes)"),
    ([], "1e3", "TRAIN_SECONDS is '1e3', expected whole seconds, 1 to 9999")))
def test_refused(words, seconds, message):
    """In one line, without a run folder."""
    write("short.txt", b"to be or not to be\n")
    result = quickstart(*words, seconds=seconds)
    said = (result.returncode, result.stdout, result.stderr.replace(COPY, "COPY"))
    assert said == (1, "", f"quickstart.sh: {message}\n"), result
    assert runs() == [], runs()
    result = quickstart("--help")
    assert result.returncode == 0 and "scripts/quickstart.sh book.txt" in result.stdout, result


SYSTEM = "bash sh sed cat mkdir dirname find sort wc tr id mktemp rm tail head env awk grep xargs".split()
ASKED = path("asked")
NOTE = f'printf "%s\\n" "$*" >>{ASKED}\n'
MISSING = "Missing: gcc libc6-dev make (a C compiler and make build the trainer). Please install them"
INSTALL = "update\ninstall -y --no-install-recommends gcc libc6-dev make\n"


@pytest.mark.parametrize("programs, says, asked", (
    ({}, "", ""),
    ({"id": "echo 1000\n", "apt-get": "exit 1\n"}, "", ""),
    ({"id": "echo 0\n", "apt-get": NOTE + '[ "$1" = update ] || { echo "E: no network"; exit 100; }\n'},
     "E: no network\n", INSTALL),
    # Without a terminal nobody can type a password: sudo is told not to ask.
    ({"id": "echo 1000\n", "apt-get": "exit 1\n", "sudo": NOTE + "exit 1\n"}, "", "-n apt-get update\n"),
), ids=("no apt", "no root", "root", "sudo"))
def test_no_compiler(programs, says, asked):
    """apt-get is asked for exactly what is missing, where that is possible."""
    write("asked", "")
    result = quickstart(path=stand_ins(programs, only=[name for name in SYSTEM if name not in programs]))
    assert result.returncode == 1 and says + MISSING in result.stdout and text_of(ASKED) == asked, result
    assert result.stdout.endswith("    apt-get update && apt-get install gcc libc6-dev make\n"), result


def finished_run(result, folder):
    """Checks what a finished run says and leaves."""
    assert result.returncode == 0, (result.returncode, result.stdout[-3000:], result.stderr[-3000:])
    before, after = map(float, re.search(r"Validation loss: (\S+) before, (\S+) after", result.stdout).groups())
    assert abs(before - 5.55) <= 0.2 and after <= before - 1.0, (before, after)  # ln(257): it knew nothing
    curve = re.findall(r"^    step +(\d+)  loss ([\d.]+)  (#+)$", result.stdout, re.M)
    assert len(curve) == 12 and all(abs(len(bar) - 8 * float(loss)) < 1.01 for _, loss, bar in curve), curve
    assert "dev/plot.py" in result.stdout or os.path.exists(os.path.join(COPY, folder, "loss.png")), result.stdout
    for wanted in ("main.log", "speed.log", "run.jsonl"):
        assert os.path.exists(os.path.join(COPY, folder, wanted)) and f"{wanted} (" in result.stdout, wanted


def check_readme(out):
    """README shows these lines, with other numbers; and as many bytes as the sources have, within a fifth."""
    def form(line):
        return re.sub(r" +", " ", re.sub(r"[\d.]*\d", "#", line))

    shown = re.search(r"^\$ ./scripts/quickstart.sh\n(.*?)^What it writes now:$", text_of("README.md"), re.M | re.S)[1]
    forms = {form(line) for line in out.splitlines()}
    missing = [line for line in shown.splitlines() if line != "..." and form(line) not in forms]
    assert not missing, (missing, out[:3000])
    told, real = (int(re.search(r"\((\d+) bytes\)", text)[1]) for text in (shown, out))
    assert abs(told - real) <= 0.2 * real, f"README.md says {told} bytes, the sources have {real}"


@pytest.mark.long
def test_own_sources_then_a_text_with_an_awkward_name():
    result = quickstart()
    finished_run(result, "run_quickstart")
    check_readme(result.stdout)
    text = b"".join(b"%d bottles of beer on the wall, %d bottles of beer.\n" % (i, i) for i in range(2000))
    write("my [song] *.bin", text)
    result = quickstart("my [song] *.bin")
    finished_run(result, "run_quickstart_2")
    assert "bottle" in result.stdout.split("What it writes now:")[1], result.stdout[-2000:]
    assert runs() == ["run_quickstart", "run_quickstart_2"], runs()


def test_interrupt_on_a_terminal_saves_and_says_how_to_go_on():
    before = runs()
    environment = dict(os.environ, TRAIN_SECONDS="20", **HOW)
    with Terminal(["bash", SCRIPT], env=environment) as terminal:
        terminal.until(r"\rstep +\d")  # a step in place
        terminal.press(b"\x03")  # Ctrl-C
        shown = terminal.finish(130)
    assert "Stopped. To go on from here: cd " in shown and "--resume" in shown, shown[-2000:]
    folder, = set(runs()) - set(before)
    assert any(name.startswith("state_") for name in os.listdir(os.path.join(COPY, folder)))
