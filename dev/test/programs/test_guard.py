"""dev/guard.py: what reaches a terminal, the errors of options, and which files are opened and written."""
import importlib.util
import json
import os
import stat
import subprocess
import sys

import pytest

from tools import ROOT, WORK, path, read, write

SPEC = importlib.util.spec_from_file_location("guard", os.path.join(ROOT, "dev", "guard.py"))
guard = importlib.util.module_from_spec(SPEC)
sys.dont_write_bytecode = True
SPEC.loader.exec_module(guard)

BIDI = [*range(0x2028, 0x202f), *range(0x2066, 0x206a), 0x200e, 0x200f, 0x61c]


# ---- Texts ----


def test_every_character():
    """Of all characters, controls and those that change the direction of writing are spelled out, and nothing else."""
    controls = [*range(0x20), *range(0x7f, 0xa0), *BIDI, *range(0xdc80, 0xdca0)]
    changed = [code for code in range(0x110000) if guard.printable(chr(code)) != chr(code)]
    assert changed == sorted(controls)
    assert guard.printable("a\n\t\x1b[2J\x9b\u202e\udc9bz") == "a\\x0a\\x09\\x1b[2J\\u009b\\u202e\\x9bz"
    assert guard.printable("a\n\tb\r\x1b", lines=True) == "a\n\tb\\x0d\\x1b"
    shown = "".join(map(guard.printable, map(chr, controls)))
    assert shown.isascii() and shown.isprintable()


PRINTING = """
import os, sys
sys.path.insert(0, "dev")
import guard
guard.screens("stdout", "stderr")
sys.stdout.reconfigure(errors="surrogateescape")
print("one\\x1b[31m", "two\\x9b", sep="\\n")
print("three\\u202e", os.fsdecode(b"\\x9b"), file=sys.stderr)
sys.stderr.draw("four\\x1b")
sys.stderr.writelines(["five\\x07\\n"])
raise ValueError("six\\x1b")
"""


def test_screens():
    """print(), sys.stderr and a traceback go through it; the line of a progress keeps its own controls alone."""
    result = subprocess.run([sys.executable, "-c", PRINTING], cwd=ROOT, capture_output=True, check=False,
                            env=dict(os.environ, PYTHONDONTWRITEBYTECODE="1", LC_ALL="C.UTF-8"))
    assert result.stdout == b"one\\x1b[31m\ntwo\\u009b\n", result.stdout
    assert result.stderr.startswith(b"three\\u202e \\x9b\n\rfour\\x1b\x1b[Kfive\\x07\n"), result.stderr
    assert result.stderr.endswith(b"ValueError: six\\x1b\n") and result.returncode == 1, result.stderr


EVIL = "\x1b]0;title\x07\x9b31m\u202e\nspoof"
SHOWN = "\\x1b]0;title\\x07\\u009b31m\\u202e\\x0aspoof"


@pytest.mark.parametrize("program, arguments", (
    ("compare.py", [f"no{EVIL}", "run"]), ("compare.py", ["run", "other"]), ("plot.py", ["run", "-o", f"no{EVIL}"])),
    ids=["compare_path", "compare_record", "plot"])
def test_programs(program, arguments):
    """Of paths and run.jsonl, whatever the program prints."""
    for name, text in (("run", EVIL), ("other", "")):
        write(f"{name}/main.log", "s:0 trl:1.0000 lr:0.000600 norm:1.00\n")
        write(f"{name}/run.jsonl", json.dumps({"event": "start", "options": {f"o{text}": text}, "model": text}) + "\n")
    result = subprocess.run([sys.executable, os.path.join(ROOT, "dev", program), *arguments], cwd=WORK, check=False,
                            capture_output=True, env=dict(os.environ, LC_ALL="C.UTF-8", PYTHONDONTWRITEBYTECODE="1"))
    printed = (result.stdout + result.stderr).decode()
    assert SHOWN in printed and guard.printable(printed, lines=True) == printed, printed


# ---- Options ----


@pytest.mark.parametrize("words, says", (
    (["--limt", "3", "a"], "'--limt': unknown option; the nearest is --limit (--help lists all)"),
    (["--lim=3", "a"], "'--lim': unknown option; the nearest is --limit (--help lists all)"),
    (["--news", "a"], "'--news': unknown option; --help lists all"),
    (["a", "\x1bb"], "'\\x1bb': unexpected (--help lists all)"),
    (["--limit", "x", "a"], "argument --limit: invalid int value: 'x'"),
    ([], "the following arguments are required: RUN; see --help")))
def test_options(words, says, capsys):
    """One line and the program's status."""
    for status in (1, 2):
        parser = guard.Parser("A program.", status=status, prog="program.py")
        parser.add_argument("run", metavar="RUN")
        parser.add_argument("--limit", type=int)
        with pytest.raises(SystemExit) as ended:
            parser.parse_args(words)
        assert (ended.value.code, capsys.readouterr().err) == (status, f"program.py: {says}\n")


# ---- Files ----


def written(name, data=b"new"):
    with guard.new_file(path(name)) as file:
        file.write(data)


def test_new_file_follows_no_link():
    """Neither a link in the place of the file nor one in that of its temporary name is written through."""
    victim = write("victim", b"old")
    for name in ("place", "place.tmp"):
        os.symlink(victim, path(name))
    written("place")
    assert read("victim") == b"old" and read("place") == b"new"
    assert not os.path.islink(path("place")) and not os.path.lexists(path("place.tmp"))
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(os.stat(path("place")).st_mode) == 0o666 & ~mask


def test_new_file_is_whole_or_not_there():
    write("whole", b"old")
    with pytest.raises(RuntimeError):
        with guard.new_file(path("whole"), "w", encoding="utf-8") as file:
            file.write("half")
            raise RuntimeError
    assert read("whole") == b"old" and not os.path.exists(path("whole.tmp"))


def test_new_file_of_two_writers(monkeypatch):
    """The one that comes first, or between the removal of an old file and the making of the new one, is refused, and
    takes nothing of the other's."""
    with pytest.raises(OSError, match="another program writes it"):
        with guard.new_file(path("both")) as first:
            first.write(b"first")
            os.replace(write("rival", b"second"), path("both.tmp"))
    monkeypatch.setattr(guard, "remove_in", lambda place, name: None)
    with pytest.raises(FileExistsError):
        written("both")
    assert read("both.tmp") == b"second" and not os.path.exists(path("both"))


def test_new_file_stays_in_its_folder():
    """While it is written, the folder is renamed and a link to another takes its place."""
    os.makedirs(path("here"))
    os.makedirs(path("elsewhere"))
    with guard.new_file(path("here", "a")) as file:
        file.write(b"a")
        os.rename(path("here"), path("moved"))
        os.symlink(path("elsewhere"), path("here"))
    assert os.listdir(path("elsewhere")) == [] and read("moved/a") == b"a"


@pytest.mark.parametrize("action", (
    lambda name: guard.open_file(name).read(), lambda name: guard.open_file(name, "ab"),
    lambda name: guard.open_file(name, "w", encoding="utf-8"), guard.read_file, lambda name: written(name)),
    ids=["read", "append", "write", "read_file", "new_file"])
def test_no_pipe_is_waited_for(action):
    os.makedirs(path("pipes"), exist_ok=True)
    name = path("pipes", "pipe")
    if not os.path.lexists(name):
        os.mkfifo(name)
    with pytest.raises(OSError, match="is a device or pipe, expected an ordinary file") as raised:
        action(name)
    assert raised.value.filename == name
    assert os.listdir(path("pipes")) == ["pipe"]


def test_open_file():
    """Reading follows links. Writing does not, and changes no file of two names; only a file is cut."""
    target, link, second = write("target", b"there"), path("link"), path("second")
    os.symlink(target, link)
    os.link(target, second)
    assert guard.open_file(link).read() == b"there"
    for mode in ("wb", "ab", "r+b"):
        with pytest.raises(OSError, match="is a link, and links are not followed here"):
            guard.open_file(link, mode)
        with pytest.raises(OSError, match="is also the file of another name"):
            guard.open_file(second, mode)
    os.remove(second)
    assert read("target") == b"there"
    guard.open_file(target, "wb").close()
    assert read("target") == b""
    for name, error in ((path(), IsADirectoryError), (path("nothing"), FileNotFoundError)):
        with pytest.raises(error):
            guard.open_file(name)
    write("ten", b"0123456789")
    assert guard.read_file(path("ten"), 10) == b"0123456789"
    with pytest.raises(OSError, match="is longer than 9 bytes"):
        guard.read_file(path("ten"), 9)


def test_folders():
    """What lies behind a link in the place of a folder of ours is not touched."""
    write("others/precious", b"x")
    os.symlink(path("others"), path("own"))
    for function in (guard.own_folder, guard.empty_folder):
        with pytest.raises(OSError, match="is a link, expected a folder"):
            function(path("own"))
    assert read("others/precious") == b"x"
    guard.empty_folder(path("others"))
    assert os.listdir(path("others")) == []
