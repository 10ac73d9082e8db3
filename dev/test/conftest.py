"""What pytest collects here, beside plain Python tests: the suites of unit_tests, fuzzers, kernels, shell scripts.

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
import contextlib
import functools
import glob
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

from changed import changed_files, is_touched

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
HERE = os.path.join(ROOT, "dev", "test")
LIMIT = 600.0  # seconds for one program: many times what it takes, for machines that do much else
FUZZ_RUNS = "2000"
CLOSING = re.compile(r"^\S+: (\d+) passed, (\d+) failed, (\d+) skipped$", re.M)
# Their programs and folders belong to one test file.
HELPERS = ("gpu_program", "tools", "shell", "cli", "ranks", "run_folder", "formats", "evalfiles")

# Python tests that run sanitized programs, too: they lead the trainer through its errors, its numbers and its files. A
# quick run has the first, and of its tests without sanitizers only those that are marked "plain".
SANITIZED = ("test_faults", "test_numbers", "test_resume")
# Seconds of each file in an earlier run: the longest start first, so that none is left over at the end, alone with all
# the cores. A run writes the first; the second is its lines of a second and more, for a fresh clone.
ORDERS = (os.path.join("build", "logs", "order.txt"), os.path.join("dev", "test", "order.txt"))
DURATIONS = os.path.join("build", "logs", "durations.txt")
# The tests of a file share what its first ones build, and run one after another, except those of these files.
APART = ("test_targets", "test_gpu_ranks", "test_gpu_fp8", "test_plot", "test_faults")

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
    parser.addoption("--changed", action="store_true", help="only what the changes since origin/main touch")
    parser.addoption("--quick", action="store_true", help="without the long tests, as scripts/test.sh without --all")


def temporary_base():
    """Memory, where there is enough that may hold programs: to flush the tests' thousand files takes a disk minutes."""
    try:
        memory = os.statvfs("/dev/shm")
    except OSError:
        return None
    fits = memory.f_bavail * memory.f_frsize >= 8 << 30 and not memory.f_flag & os.ST_NOEXEC
    return "/dev/shm" if fits and os.access("/dev/shm", os.W_OK) else None


def remove_openmp_files():
    """clang's OpenMP leaves a file in shared memory for each process that is killed. If that was before it had written
    there, a later process with its number dies by SIGBUS."""
    for name in glob.glob("/dev/shm/__KMP_REGISTERED_LIB_*"):
        if not os.path.exists(f"/proc/{name.split('_')[-2]}"):
            with contextlib.suppress(OSError):  # another user's
                os.remove(name)


def pytest_configure(config):
    os.chdir(ROOT)
    if not hasattr(config, "workerinput"):
        remove_openmp_files()
        atexit.register(remove_openmp_files)
    # All that tests leave behind. Some tests run programs as another user, who must come through.
    folder = tempfile.mkdtemp(prefix="gpt2c_tests.", dir=os.environ.get("TMPDIR", temporary_base()))
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    os.chmod(folder, 0o755)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    if config.getoption("--quick"):
        os.environ["TEST_QUICK"] = "1"  # C tests and scripts then leave out their long parts
    config.is_there = is_there
    config.builds = [folder.rstrip("/") for folder in config.getoption("--builds").split(",")]
    sys.path.insert(0, os.path.join(HERE, "programs"))


# ---- Programs ----


class Failed(Exception):
    """A program that ended badly: what it printed."""


def run_program(command, node):
    """Runs a program that prints a line for each test, and notes the counts in the report of the node. A fuzzer prints
    no counts: its status says all."""
    words = " ".join(command)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                               start_new_session=True, encoding="utf-8", errors="replace")
    try:
        output = process.communicate(timeout=LIMIT)[0]
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)  # and what it has started
        raise Failed(f"{words}: no end\n{process.communicate()[0]}") from error
    closing, bad = CLOSING.findall(output), process.returncode != 0
    if closing:
        passed, failed, skipped = map(int, closing[-1])
        node.user_properties.append(("counts", (passed, max(failed, int(bad)), skipped)))
        bad = bad or failed > 0
    node.user_properties += [("skip", line) for line in output.splitlines() if line.startswith("skip ")]
    if bad or not closing and "/fuzz_" not in command[0]:
        raise Failed(f"{words}: status {process.returncode}\n{output}")


class Program(pytest.Item):
    """A command of a source file. Without one it stands for a file that the command line names, and whose program is in
    none of the builds."""

    def __init__(self, command=(), **keywords):
        super().__init__(**keywords)
        self.command = command

    def runtest(self):
        if not self.command:
            raise Failed(f"{self.path.name}: not built in {' or '.join(self.config.builds)}; `make tests` builds the "
                         "unit tests, `make fuzzers` the fuzzers, `make build/emu/test_kernels` the kernels")
        run_program(self.command, self)

    def repr_failure(self, excinfo, style=None):
        return str(excinfo.value) if isinstance(excinfo.value, Failed) else super().repr_failure(excinfo)

    def reportinfo(self):
        return self.path, None, self.name


@pytest.fixture
def runs(request):
    """For Python tests: runs a program that prints a line for each test."""
    return lambda command: run_program(command, request.node)


def is_there(program):
    """Is it built? scripts/test.sh names what it has built: a program of another run beside it may be old."""
    targets = os.environ.get("TEST_TARGETS", "").split()
    return os.access(os.path.join(ROOT, program), os.X_OK) and (not targets or program in targets or ".sh" in program)


def program_in(command):
    """The program itself, where a variable is set before it."""
    return next(word for word in command if "/" in word)


class ProgramFile(pytest.File):
    """A source whose program is built, or a script: an item for each build."""

    def collect(self):
        items = [Program.from_parent(self, name=f"{self.path.stem}[{label}]", command=command)
                 for label, command in self.commands() if is_there(program_in(command))]
        named = any(self.path == pathlib.Path(word).resolve() for word in self.config.args)
        return items or [Program.from_parent(self, name=self.path.stem)] * named

    def commands(self):
        for build in self.config.builds:
            yield from commands_of(self.path, build)


def commands_of(path, build):
    """The label and the command of each item that a source file has in a build."""
    name, suite = path.stem, path.stem.partition("_")[2]
    if path.suffix == ".sh":
        if build == "build":
            yield from script_commands(path)
    elif name.startswith("fuzz_"):
        yield build, [f"{build}/{name}", "500" if "TEST_QUICK" in os.environ else FUZZ_RUNS]
    elif name.startswith("emu_"):
        yield build, [f"{build}/emu/{name}"]
        if name in ("emu_features", "emu_nccl") and "TEST_QUICK" not in os.environ:
            yield build + "-unchecked", ["env", "EMU_CHECK=0", f"{build}/emu/{name}"]
    elif path.parent.name == "cpu" and is_sanitized(build):
        # clang 14 looks for leaks when a program ends, and dies itself where OpenMP's threads wait (4 of 12 runs).
        quiet = f"ASAN_OPTIONS={ENVIRONMENT['ASAN_OPTIONS']}:detect_leaks=0"
        yield from ((label, ["env", quiet, *command]) for label, command in suite_commands(name, suite, build))
    else:
        yield from suite_commands(name, suite, build)


def suite_commands(name, suite, build):
    """The first program of a build that has a suite runs it, in as many parts as PARTS says."""
    for program in (f"{build}/{program}" for program in ("unit_tests", "test_trainer", name, *KERNEL_PROGRAMS)):
        if suite in suites_of(program):
            parts = PARTS.get(suite, 1)
            for part in range(1, parts + 1):
                label = f"{build}-{part}" if parts > 1 else build
                yield label, [program, *(["--part", f"{part}/{parts}"] if parts > 1 else []), suite]
            return


@functools.lru_cache(None)
def suites_of(program):
    """The suites that a program says it has."""
    if not is_there(program):
        return ()
    return subprocess.run([os.path.join(ROOT, program), "--list"], stdout=subprocess.PIPE, text=True,
                          check=True).stdout.split()


KERNEL_PROGRAMS = ("emu/gpu_tests", "emu/test_kernels")
# Suites that mostly wait: their parts run side by side.
PARTS = {"comm": 4}


def script_commands(path):
    """A script runs once; that of nvcc for each precision, if the run is not a quick one."""
    script = os.path.relpath(path, ROOT)
    if path.stem == "test_nvcc" and "TEST_QUICK" not in os.environ:
        yield from ((precision, [script, precision]) for precision in ("BF16", "FP32"))
    else:
        yield "build", [script]


def pytest_collect_file(file_path, parent):
    name, suffix = file_path.stem, file_path.suffix
    wanted = {".c": ("test_", "fuzz_"), ".cuh": ("kernels_",), ".cu": ("emu_",), ".sh": ("test_",)}.get(suffix, ())
    if name.startswith(wanted) and wanted and name != "fuzz_main":
        return ProgramFile.from_parent(parent, path=file_path)
    return None


# ---- Python tests ----


class PythonFile(pytest.Module):
    """A test file with helper modules of its own, since each has its own program and folder."""
    build = "build"

    def _getobj(self):
        for name in (*HELPERS, self.path.stem):
            sys.modules.pop(name, None)
        before = dict(os.environ)
        os.environ.update(programs_of(self.build))
        sys.dont_write_bytecode = False  # keep the rewritten asserts: that takes most of a collection
        try:
            module = importlib.import_module(self.path.stem)
            self.environment = {name: value for name, value in os.environ.items() if before.get(name) != value}
            return module
        except FileNotFoundError as error:
            raise self.CollectError(f"{error.filename} is not there: make builds it") from error
        finally:
            restore(before)


def programs_of(build):
    folder = "" if build == "build" else build + "/"
    programs = {"TRAIN_GPT2": "train_gpt2", "TOKENIZE": "tokenize", "TRAIN_GPT2CU": "train_gpt2emu"}
    chosen = {name: f"./{folder}{program}" for name, program in programs.items() if build != "build"}
    return dict(chosen, PYTEST_BUILD=build)


def is_sanitized(build):
    """Does this folder hold the sanitized programs for the CPU? Those of the emulator lie in folders of their own."""
    return "sanitize" in build and "emu" not in build


def restore(environment):
    os.environ.clear()
    os.environ.update(environment)


class Builds(pytest.File):
    """A Python file whose tests run in several builds."""

    def collect(self):
        return [python_file(self, self.path, build) for build in builds_of(self.path, self.config)]


def builds_of(path, config):
    sanitized = SANITIZED[:1] if config.getoption("--quick") else SANITIZED
    return [build for build in config.builds if build == "build" or is_sanitized(build) and path.stem in sanitized]


def python_file(parent, path, build):
    nodeid = parent.nodeid + f"[{build}]" if isinstance(parent, Builds) else None
    file = PythonFile.from_parent(parent, path=path, nodeid=nodeid)
    file.build = build
    return file


def pytest_pycollect_makemodule(module_path, parent):
    builds = builds_of(module_path, parent.config)
    if len(builds) > 1:
        return Builds.from_parent(parent, path=module_path)
    return python_file(parent, module_path, *builds or parent.config.builds[:1])


@pytest.hookimpl(wrapper=True) if pytest.version_tuple >= (8,) else pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item):
    file = item.getparent(PythonFile)
    before = dict(os.environ)
    os.environ.update(file.environment if file else {})
    result = yield
    restore(before)
    return result


# ---- Order and counts ----


def pytest_collection_modifyitems(config, items):
    """Takes out the long tests of a quick run, and what a change does not touch, and sorts the rest."""
    changed = changed_files() if config.getoption("--changed") else None
    out = [item for item in items if "TEST_QUICK" in os.environ and (item.get_closest_marker("long") or is_twice(item))
           or changed is not None and not is_touched(item.path, changed)]
    config.hook.pytest_deselected(items=out)
    out = set(out)
    items[:] = [item for item in items if item not in out]
    seconds = seconds_of_files()
    items.sort(key=lambda item: (item.name == "test_nothing_is_left_to_build",
                                 -seconds.get(file_of(item.nodeid), 0.0)))


def is_twice(item):
    """Does a sanitized build run this test, and show all that it shows here?"""
    file = item.getparent(PythonFile)
    return (file is not None and isinstance(file.parent, Builds) and not is_sanitized(file.build)
            and not item.get_closest_marker("plain"))


def file_of(nodeid):
    """The file of a test, with its build where the file runs in several."""
    return nodeid.partition("::")[0]


def seconds_of_files():
    seconds = {}
    for path in filter(os.path.exists, reversed(ORDERS)):
        with open(path, encoding="utf-8") as file:
            seconds.update((name, float(wall)) for wall, _, name in map(str.split, file))
    return seconds


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Hands a process one file after another, and of some files one test after another."""
    from xdist.scheduler import LoadScopeScheduling  # pylint: disable=import-outside-toplevel

    class FileScheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            file = file_of(nodeid)
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
            for name, count in counts_of(report, outcome).items():
                counts[name] += count
    print(f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")


def counts_of(report, outcome):
    said = dict(getattr(report, "user_properties", ())).get("counts")
    if said:
        return dict(zip(("passed", "failed", "skipped"), said))
    return {"failed" if outcome == "error" else outcome: 1}


def pytest_terminal_summary(terminalreporter, config):
    """What the programs left out, and which tests took longest."""
    reports = [report for outcome in ("passed", "failed") for report in terminalreporter.stats.get(outcome, [])]
    lines = {value for report in reports for name, value in report.user_properties if name == "skip"}
    for line in sorted(lines):
        terminalreporter.write_line(line)
    tests = write_times(terminalreporter)
    if not hasattr(config, "workerinput") and "TEST_TARGETS" in os.environ:
        for (wall, processor), name in tests[:5]:
            terminalreporter.write_line(f"slowest: {wall:.1f} s, {processor:.1f} s of processor time: {name}")


# ---- Times ----

processor_seconds = sum(os.times()[:4])  # of this process and those that it has waited for


@pytest.hookimpl(wrapper=True) if pytest.version_tuple >= (8,) else pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport():
    """Notes the processor time since the last report. A process runs one test at a time."""
    global processor_seconds
    outcome = yield
    report = outcome if pytest.version_tuple >= (8,) else outcome.get_result()
    before, processor_seconds = processor_seconds, sum(os.times()[:4])
    report.processor = processor_seconds - before
    return outcome


def write_times(terminalreporter):
    """Writes the times of tests and of files, the longest first. Returns those of the tests."""
    tests, files = collections.defaultdict(lambda: [0.0, 0.0]), collections.defaultdict(lambda: [0.0, 0.0])
    for report in (report for reports in terminalreporter.stats.values() for report in reports):
        for times in (tests[report.nodeid], files[file_of(report.nodeid)]) if hasattr(report, "processor") else ():
            times[0] += report.duration
            times[1] += report.processor
    written = []
    for path, times in ((ORDERS[0], files), (DURATIONS, tests)):
        written = sorted(((seconds, name) for name, seconds in times.items()), reverse=True)
        if "TEST_TARGETS" in os.environ:
            with open(path, "w", encoding="utf-8") as file:
                file.writelines(f"{wall:8.2f} {processor:8.2f} {name}\n" for (wall, processor), name in written)
    return written
