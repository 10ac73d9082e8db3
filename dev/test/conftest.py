"""What pytest collects here, beside plain Python tests: the suites of unit_tests, fuzzers, kernels.

    python3 -m pytest dev/test/base                          the tests of a room
    python3 -m pytest dev/test/programs/test_faults.py -k disk
    python3 -m pytest dev/test/base/test_hash.c              one suite
    python3 -m pytest --builds=build,build/sanitize dev/test

pytest builds nothing. --builds names the folders that hold what make has built: their tests run. A folder without a
program has no tests of that program. scripts/test.sh builds and calls pytest. The last line has the counts: one for
each Python test, and one for each line of a program that begins with ok, FAIL or skip.
"""
import atexit
import collections
import functools
import importlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LIMIT = 600.0  # seconds for one program: many times what it takes, for machines that do much else
CLOSING = re.compile(r"^\S+: (\d+) passed, (\d+) failed, (\d+) skipped$", re.M)
PROGRAMS = os.path.join(ROOT, "dev", "test", "programs")
HELPERS = [name[:-3] for name in os.listdir(PROGRAMS) if name.endswith(".py") and not name.startswith("test_")]
PROGRAMS_OF = {"TRAIN_GPT2": "train_gpt2", "TOKENIZE": "tokenize", "TRAIN_GPT2CU": "train_gpt2emu"}

KERNEL_PROGRAMS = ("emu/gpu_tests", "emu/test_kernels")
SHORT = ("gemm", "kill", "tokenizer")  # suites that leave out their long parts where they are sanitized
# The tests of a file share what its first ones build, and run one after another, except those of these files. Those
# come last, one by one, so that no file is left over at the end, alone with all the cores.
APART = ("test_targets", "test_gpu_ranks", "test_grid", "test_gpu_fp8", "test_plot", "test_faults", "test_runs",
         "test_compilers")

# Programs run side by side: their threads sleep, not spin, while they wait for each other. Looking for leaks takes half
# the time of a short run: test_resume's runs are enough.
ENVIRONMENT = {"OMP_WAIT_POLICY": "passive", "KMP_BLOCKTIME": "0", "OMP_NUM_THREADS": "1", "LC_ALL": "C",
               "UBSAN_OPTIONS": "print_stacktrace=1", "ASAN_OPTIONS": "allocator_may_return_null=1"}
os.environ.update(ENVIRONMENT)
# A shell that starts this in the background makes it ignore SIGINT, and nohup SIGHUP, and with it every program that a
# test starts.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, handler)


def pytest_addoption(parser):
    parser.addoption("--builds", default="build", help="folders that make built in, with commas between them (build)")
    parser.addoption("--quick", action="store_true", help="without the long tests, as scripts/test.sh without --all")


def temporary_base():
    """Memory, where there is enough that may hold programs: to flush the tests' thousand files takes a disk minutes."""
    if not os.access("/dev/shm", os.W_OK):
        return None
    memory = os.statvfs("/dev/shm")
    fits = memory.f_bavail * memory.f_frsize >= 8 << 30 and not memory.f_flag & os.ST_NOEXEC
    return "/dev/shm" if fits else None


def pytest_configure(config):
    os.chdir(ROOT)
    # All that tests leave behind. A test becomes another user, who must come through.
    folder = tempfile.mkdtemp(prefix="gpt2c_tests.", dir=os.environ.get("TMPDIR", temporary_base()))
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    os.chmod(folder, 0o755)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    if config.getoption("--quick"):
        os.environ["TEST_QUICK"] = "1"  # C tests and scripts then leave out their long parts
    config.is_there = is_there
    config.builds = [folder.rstrip("/") for folder in config.getoption("--builds").split(",")]
    if config.builds[0] != "build":  # the programs of the Python tests
        os.environ.update((name, f"./{config.builds[0]}/{program}") for name, program in PROGRAMS_OF.items())
    sys.path.insert(0, PROGRAMS)


# ---- Programs ----


def run_program(command, node):
    """Runs a program that prints a line for each test, and notes the counts in the report of the node. A fuzzer prints
    no counts: its status says all."""
    words = " ".join(command)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                               start_new_session=True, encoding="utf-8", errors="replace")
    try:
        output = process.communicate(timeout=LIMIT)[0]
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)  # and what it has started
        pytest.fail(f"{words}: no end\n{process.communicate()[0]}", pytrace=False)
    closing, bad = CLOSING.findall(output), process.returncode != 0
    if closing:
        passed, failed, skipped = map(int, closing[-1])
        node.user_properties.append(("counts", (passed, max(failed, int(bad)), skipped)))
        bad = bad or failed > 0
    node.user_properties += [("skip", line) for line in output.splitlines() if line.startswith("skip ")]
    if bad or not closing and "/fuzz_" not in command[0]:
        pytest.fail(f"{words}: status {process.returncode}\n{output}", pytrace=False)


class Program(pytest.Item):
    """A command of a source file."""

    def __init__(self, command, **keywords):
        super().__init__(**keywords)
        self.command = command

    def runtest(self):
        run_program(self.command, self)

    def reportinfo(self):
        return self.path, None, self.name


@pytest.fixture
def runs(request):
    """For Python tests: runs a program that prints a line for each test."""
    return lambda command: run_program(command, request.node)


def is_there(program):
    """Is it built? scripts/test.sh names what it has built: a program of another run beside it may be old."""
    targets = os.environ.get("TEST_TARGETS", "").split()
    return os.access(os.path.join(ROOT, program), os.X_OK) and (not targets or program in targets)


class ProgramFile(pytest.File):
    """A source whose program is built: an item for each build."""

    def collect(self):
        items = [Program.from_parent(self, name=f"{self.path.stem}[{label}]", command=command)
                 for build in self.config.builds for label, command in commands_of(self.path, build)
                 if is_there(next(word for word in command if "/" in word))]  # before it a variable may be set
        if not items and any(self.path == pathlib.Path(word).resolve() for word in self.config.args):
            raise self.CollectError(f"not built in {' or '.join(self.config.builds)}; `make tests` builds the unit "
                                    "tests, `make fuzzers` the fuzzers, `make build/emu/test_kernels` the kernels")
        return items


def commands_of(path, build):
    """The label and the command of each item that a source file has in a build."""
    name, suite = path.stem, path.stem.partition("_")[2]
    if name.startswith("fuzz_"):
        return [(build, [f"{build}/{name}", "500" if "TEST_QUICK" in os.environ else "2000"])]
    if name.startswith("emu_"):
        return [(build, [f"{build}/emu/{name}"])]
    found = suite_commands(name, suite, build)
    if path.parent.name == "cpu" and is_sanitized(build):
        # clang 14 looks for leaks when a program ends, and dies itself where OpenMP's threads wait (4 of 12 runs).
        quiet = f"ASAN_OPTIONS={ENVIRONMENT['ASAN_OPTIONS']}:detect_leaks=0"
        return [(label, ["env", quiet, *command]) for label, command in found]
    return found


def suite_commands(name, suite, build):
    """The first program of a build that has a suite runs it."""
    both = {} if "TEST_QUICK" in os.environ else {"llama3": "model llama3"}  # test_model.c for Llama, too
    for program in (f"{build}/{program}" for program in
                    ("unit_tests", "test_trainer", "test_llama3", name, *KERNEL_PROGRAMS)):
        if suite in suites_of(program):
            short = ["env", "TEST_QUICK=1"] if suite in SHORT and is_sanitized(build) else []
            return [(build, [*short, program, *both.get(suite, suite).split()])]
    return []


@functools.lru_cache(None)
def suites_of(program):
    """The suites that a program says it has."""
    if not is_there(program):
        return ()
    return subprocess.run([os.path.join(ROOT, program), "--list"], stdout=subprocess.PIPE, text=True,
                          check=True).stdout.split()


def pytest_collect_file(file_path, parent):
    wanted = {".c": ("test_", "fuzz_"), ".cuh": "kernels_", ".cu": "emu_"}.get(file_path.suffix)
    if wanted and file_path.stem.startswith(wanted) and file_path.stem != "fuzz_main":
        return ProgramFile.from_parent(parent, path=file_path)
    return None


# ---- Python tests ----


class PythonFile(pytest.Module):
    """A test file with helper modules of its own, since each has its own folder."""

    def _getobj(self):
        for name in (*HELPERS, self.path.stem):
            sys.modules.pop(name, None)
        sys.dont_write_bytecode = False  # keep the rewritten asserts: that takes most of a collection
        try:
            return importlib.import_module(self.path.stem)
        except FileNotFoundError as error:
            raise self.CollectError(f"{error.filename} is not there: make builds it") from error


def pytest_pycollect_makemodule(module_path, parent):
    return PythonFile.from_parent(parent, path=module_path)


def is_sanitized(build):
    """Does this folder hold the sanitized programs for the CPU? Those of the emulator lie in folders of their own."""
    return "sanitize" in build and "emu" not in build


# ---- Order and counts ----


def pytest_collection_modifyitems(config, items):
    """Takes out the long tests of a quick run, but for those of files that its user names. Sorts the rest."""
    named = [pathlib.Path(word.partition("::")[0]).resolve() for word in config.args]
    out = {item for item in items
           if "TEST_QUICK" in os.environ and item.get_closest_marker("long") and item.path not in named}
    config.hook.pytest_deselected(items=list(out))
    items[:] = [item for item in items if item not in out]
    items.sort(key=lambda item: (item.name == "test_nothing_is_left_to_build", item.path.stem in APART))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Hands a process one file after another, and of some files one test after another."""
    from xdist.scheduler import LoadScopeScheduling  # pylint: disable=import-outside-toplevel

    class FileScheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            file = nodeid.partition("::")[0]
            return nodeid if os.path.basename(file).partition(".")[0] in APART else file

    config.option.loadscopereorder = False  # the order is that of pytest_collection_modifyitems
    return FileScheduling(config, log)


def pytest_unconfigure(config):
    """The last line: Python tests count one each, programs what they say of themselves."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or hasattr(config, "workerinput"):
        return
    counts = collections.Counter()
    for outcome in ("passed", "failed", "error", "skipped"):
        for report in reporter.stats.get(outcome, []):
            said = dict(getattr(report, "user_properties", ())).get("counts")
            one = {"failed" if outcome == "error" else outcome: 1}
            counts.update(dict(zip(("passed", "failed", "skipped"), said)) if said else one)
    print(f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")


def pytest_terminal_summary(terminalreporter):
    """What the programs left out."""
    reports = [report for outcome in ("passed", "failed") for report in terminalreporter.stats.get(outcome, [])]
    lines = {value for report in reports for name, value in report.user_properties if name == "skip"}
    for line in sorted(lines):
        terminalreporter.write_line(line)
