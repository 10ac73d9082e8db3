"""dev/guard.py: what reaches a terminal, the errors of options, and files that are whole or not there."""
import json
import os
import subprocess
import sys

import pytest

from tools import ROOT, WORK, path, read, write

sys.path.insert(0, f"{ROOT}/dev")
import guard  # noqa: E402 (its folder had to be named first)

BIDI = [*range(0x2028, 0x202f), *range(0x2066, 0x206a), 0x200e, 0x200f, 0x61c]


# ---- Texts ----


def test_every_character():
    """Of all characters, controls and those that change the direction of writing are spelled out, and nothing else."""
    controls = [*range(0x20), *range(0x7f, 0xa0), *BIDI, *range(0xdc80, 0xdd00)]
    changed = [code for code in range(0x110000) if guard.printable(chr(code)) != chr(code)]
    assert changed == sorted(controls)
    assert guard.printable("a\n\t\x1b[2J\x9b\u202e\udc9bz") == "a\\x0a\\x09\\x1b[2J\\u009b\\u202e\\x9bz"
    shown = "".join(map(guard.printable, map(chr, controls)))
    assert shown.isascii() and shown.isprintable()


EVIL = "\x1b]0;title\x07\x9b31m\u202e\nspoof"
SHOWN = "\\x1b]0;title\\x07\\u009b31m\\u202e\\x0aspoof"


@pytest.mark.parametrize("program, arguments", (
    ("compare.py", ["run", "other"]), ("compare.py", ["run", "other", "--csv"]),
    ("plot.py", ["run", "-o", f"no{EVIL}"]), ("hf.py", ["export", f"no{EVIL}", "hf"])),
    ids=["compare", "compare_csv", "plot", "hf"])
def test_programs(program, arguments):
    """Of paths and run.jsonl, whatever the program prints."""
    pytest.importorskip({"hf.py": "numpy", "plot.py": "matplotlib"}.get(program, "json"))
    for name, text in (("run", EVIL), ("other", "")):
        write(f"{name}/main.log", "s:0 trl:1.0000 lr:0.000600 norm:1.00\n")
        write(f"{name}/run.jsonl", json.dumps({"event": "start", "options": {f"o{text}": text}, "model": text}) + "\n")
    result = subprocess.run([sys.executable, os.path.join(ROOT, "dev", program), *arguments], cwd=WORK, check=False,
                            capture_output=True, env=dict(os.environ, LC_ALL="C.UTF-8", PYTHONDONTWRITEBYTECODE="1"))
    printed = (result.stdout + result.stderr).decode()
    assert SHOWN in printed and all(guard.printable(line) == line for line in printed.split("\n")), printed


# ---- Options ----


@pytest.mark.parametrize("words, says", (
    (["--limt", "3", "a"], "'--limt': unknown option; the nearest is --limit (--help lists all)"),
    (["--news", "a"], "'--news': unknown option; --help lists all"),
    (["a", "\x1bb"], "'\\x1bb': unexpected (--help lists all)"),
    ([], "the following arguments are required: RUN; see --help")))
def test_options(words, says, capsys):
    """One line and the program's status."""
    parser = guard.Parser("A program.", status=3, prog="program.py")
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("--limit", type=int)
    with pytest.raises(SystemExit) as ended:
        parser.parse_args(words)
    assert (ended.value.code, capsys.readouterr().err) == (3, f"program.py: {says}\n")


# ---- Files ----


def test_new_file_is_whole_or_not_there():
    write("whole", b"old")
    with pytest.raises(RuntimeError):
        with guard.new_file(path("whole")) as file:
            file.write(b"half")
            raise RuntimeError
    assert read("whole") == b"old" and not os.path.exists(path("whole.tmp"))
    with guard.new_file(path("whole")) as file:
        file.write(b"new")
    assert read("whole") == b"new" and not os.path.exists(path("whole.tmp"))
