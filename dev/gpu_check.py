#!/usr/bin/env python3
"""The one command for a machine with a GPU: builds, tests and measures the GPU trainer in under 9 minutes: GPT-2 124M
and 1558M beside PyTorch and the targets, a step kernel by kernel, and what each option of the trainer is worth.

It needs make, gcc or clang, and nvcc. It uses compute-sanitizer, CUPTI and a python3 with PyTorch where they are. It
needs no network. Every part has a time limit. A part that fails does not stop the others, and a part that the time does
not suffice for is skipped, the least valuable first. Tables come at the end. The status is 1 if anything failed. A
missed target is no failure.

OUTDIR gets summary.txt, results.csv (part, what, value, unit), kernels.csv (each kernel's time and floor), steps.csv
(the kernels of whole steps) and the logs. CUDA_VISIBLE_DEVICES chooses GPUs: the first one, and all of them where
several train together. GPU_CHECK_SECONDS=900 grants more time. GPU_CHECK_MODELS=d12 measures one model.
"""
import argparse
import collections
import concurrent.futures
import csv
import datetime
import glob
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "dev", "bench"))
import step_table  # noqa: E402

START = time.monotonic()
TOTAL_SECONDS = float(os.environ.get("GPU_CHECK_SECONDS", 525))
RESERVED_SECONDS = 50  # for the sanitizers and the emulator, which come last
TORCH_SECONDS = 200  # from the start: PyTorch must have compiled by then
ASK_SECONDS = 20  # for a question to nvidia-smi, Python or the trainer's --plan
GIB = 1 << 30
LOGS = ("build.log", "tests.log", "sanitizer.log", "train.log")
CLOSING_LINE = r"^\S+: \d+ passed, \d+ failed, \d+ skipped$"

# All runs of a model have one batch: at most `cap` sequences, for which PyTorch has room on a GPU of 141 GB.
# torch_gib: about what PyTorch takes for the model, and for each sequence. left_out: first steps that are not timed.
Model = collections.namedtuple("Model", "name layers channels vocab seq_len steps few_steps cap left_out torch_gib")
MODELS = {"d12": Model("d12", 12, 768, 50257, 1024, 30, 20, 64, 5, (2, 1.5)),
          "d48": Model("d48", 48, 1600, 50257, 1024, 15, 12, 16, 4, (30, 4.2))}
TINY = Model("tiny", 2, 64, 257, 32, 3, 3, 2, 1, (0, 0))
CONTEXT = Model("context", 1, 64, 50257, 64, 1000, 0, 1, 0, (0, 0))  # shows what CUDA itself takes of the memory

# What is measured against a target: name, unit, relation, and the target of each model. The names are the keys of
# Check.measured.
TARGETS = (("bf16", "tokens/s", "at least", {"d12": 600000, "d48": 62000}),
           ("bf16 as a multiple of PyTorch", "", "at least", {"d12": 1.25, "d48": 1.2}),
           ("fp8", "tokens/s", "at least", {"d12": 660000, "d48": 80000}),
           ("peak memory of PyTorch's", "%", "at most", {"d12": 70, "d48": 70}),
           ("peak memory off its plan", "%", "at most", {"d12": 2, "d48": 2}),
           ("first step after the start", "s", "at most", {"d12": 3, "d48": 3}),
           ("own attention of cuDNN's speed", "%", "at least", {"d12": 70, "d48": 70}))
TITLES = {"d12": "GPT-2 124M", "d48": "GPT-2 1558M"}
BUILD_SECONDS = 20  # the target of the trainer's build

VARIANTS = ("--cuda-graph 0", "--attention own", "--deterministic 0", "--matmul-tune 0", "--matmul-tune 2",
            "--gelu-fusion 0", "--gelu-fusion 2", "--fp8 1", "--head-overlap 1", "--head-rows 8192", "--recompute 1",
            "--recompute 2", "--recompute 3")
EMULATED_VARIANTS = ("--gelu-fusion 1", "--recompute 3")
VARIANTS_A_DEFAULT = 3  # between two runs with the defaults, which show how the machine drifts

# Only sums and roundings can be equal to the bit on a GPU and a CPU: their exp, tanh and square roots differ in the
# last bits, and the order of a tensor core's sum is its own. Such results agree within the tests' tolerances.
EXACT = "checksum|embedding|encoder|sum_losses|global norm|residual_forward|params_from_master|backward_bias|fp8_quantize"

SANITIZERS = ("memcheck", "racecheck", "initcheck", "synccheck")
# The tools report errors in kernels of NVIDIA's libraries that are none. They judge our kernels only: library kernels
# are left out by parts of their names, which no kernel of ours has. initcheck does not see what a left-out kernel
# writes, so it does not run the groups of test_kernels that call a library.
LIBRARY_KERNELS = "cublas cutlass xmma nvjet gemm gemv splitK cudnn fmha".split()
LIBRARY_GROUPS = "matmul tune fp8 cudnn graph".split()

# Random tokens, alike each time: the time of a step does not depend on the text.
TOKENS_C = """#include "llmc/base/rand.h"
#include <stdio.h>
int main(void) {
    int header[256] = {20240520, 1, 8 << 20};
    fwrite(header, 4, 256, stdout);
    for (int i = 0; i < header[2]; i++) {
        unsigned short token = (unsigned short)(rand_u64(1, 1, (uint64_t)i) % 50257);
        fwrite(&token, 2, 1, stdout);
    }
    return ferror(stdout) || fflush(stdout);
}
"""


class Failed(Exception):
    """A part failed. The message is its remark; further arguments are lines that explain it."""


class Skipped(Exception):
    """A part could not run. The message is its remark."""


def stop(message):
    sys.exit(f"dev/gpu_check.py: {message}")


def last_line(text):
    return (text.strip().splitlines() or [""])[-1]


def matching(pattern, text, most):
    """The first lines that match, indented."""
    return ["     " + line for line in text.splitlines() if re.search(pattern, line)][:most]


def status_words(status):
    return "no end within its time limit" if status in (124, 137) else f"status {status}"


def median_ms(log, left_out):
    """The median of the milliseconds in a run's step lines without the first steps, or None."""
    times = [float(ms) for ms in re.findall(r"^step .*\| *([\d.]+) ms \|", log, re.M)][left_out:]
    return statistics.median(times) if times else None


def compare_hashes(hardware, emulated):
    """(number of equal hashes, names with other bits). Each line is `hash NAME VALUE`; names may come several times."""
    def hashes(log):
        counts, found = collections.Counter(), {}
        for name, value in re.findall(r"^hash (.*) (\S+)$", log, re.M):
            counts[name] += 1
            found[name, counts[name]] = value
        return found
    first, second = hashes(hardware), hashes(emulated)
    both = first.keys() & second.keys()
    return sum(first[key] == second[key] for key in both), \
        sorted({name for name, count in both if first[name, count] != second[name, count]})


class Check:
    """One run of this program: where things lie, what is left of the time, what was measured."""

    def __init__(self, out, emulate, make_arguments):
        self.out, self.emulate, self.make_arguments = out, emulate, make_arguments
        self.work = tempfile.mkdtemp(prefix="gpu_check.")
        self.deadline, self.lock, self.processes = TOTAL_SECONDS, threading.Lock(), set()
        self.part, self.parts, self.failures = "", [], 0
        self.gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
        self.gpu_name, self.free_bytes, self.capability, self.torch, self.no_torch = "", 0, 0.0, "", ""
        self.precisions = ("BF16",) if emulate else ("BF16", "FP32")
        self.groups = ["encoder", "gelu"] if emulate else []  # of test_kernels; none: all
        self.trainer, self.tokens = self.program("BF16", "train_gpt2"), self.path("tokens.bin")
        self.help, self.peak_teraflops, self.context_mib, self.trace_library, self.no_trace = "", 0.0, None, "", ""
        self.measured, self.batches, self.torch_batches, self.torch_log = {}, {}, {}, {}
        self.kernel_tables, self.steps, self.option_tables, self.speeds, self.kernel_logs = [], [], [], [], {}
        self.results = open(os.path.join(out, "results.csv"), "w", encoding="utf-8", newline="")
        self.result("what", "value", "unit", part="part")
        for log in LOGS:
            open(os.path.join(out, log), "w", encoding="utf-8").close()

    # --- what a part reports ---
    def result(self, what, value, unit="", part=None):
        csv.writer(self.results, lineterminator="\n").writerow([part or self.part, what, value, unit])

    def run_part(self, name, function, *arguments):
        """Runs a part and prints its verdict: ok with the remark that it returns, FAIL or skip."""
        self.part, start, details = name, time.monotonic(), ()
        print(f"== {name}", flush=True)
        try:
            verdict, remark = "ok", function(*arguments)
        except Skipped as skipped:
            verdict, remark = "skip", skipped.args[0]
        except Failed as failed:
            verdict, (remark, *details) = "FAIL", failed.args
            self.failures += 1
        seconds = int(time.monotonic() - start)
        self.parts.append(f"{verdict:4} {name:22} {seconds:4d} s  {remark}")
        print("\n".join([self.parts[-1], *details]), flush=True)
        self.result("verdict", verdict)
        self.result("time", seconds, "s")

    def show(self, table, text):
        table.append(text)
        print(text, flush=True)

    # --- running programs ---
    def path(self, name):
        return os.path.join(self.work, name)

    def log(self, name, text):
        with self.lock, open(os.path.join(self.out, name), "a", encoding="utf-8") as file:
            file.write(text)

    def remaining(self):
        return self.deadline - (time.monotonic() - START)

    def need(self, seconds):
        if not self.enough(seconds):
            raise Skipped("no time left")

    def enough(self, seconds):
        """Is there so much time, and what the last parts need?"""
        return self.remaining() >= seconds + RESERVED_SECONDS

    def run(self, seconds, command, log="", watch=None, **environment):
        """(status, what it printed). The command gets at most so many seconds, and what time is left. 124: it took
        longer. log: the file in OUTDIR that gets its words. watch: called with the file that it prints to."""
        seconds, status = min(seconds, self.remaining()), 124
        with tempfile.NamedTemporaryFile("w+", dir=self.work, encoding="utf-8", errors="replace") as file:
            if seconds >= 1:
                try:
                    process = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=file,
                                               stderr=file, cwd=ROOT, env={**os.environ, **environment},
                                               start_new_session=True)
                except OSError as error:
                    return 127, str(error)
                self.processes.add(process)
                if watch:
                    watch(file.name)
                try:
                    status = process.wait(seconds)
                except subprocess.TimeoutExpired:
                    self.kill(process)
                self.processes.discard(process)
            file.seek(0)
            text = file.read()
        if log:
            self.log(log, f"$ {' '.join(map(str, command))}\n{text}")
        return status, text

    def ask(self, *command):
        """What a command prints, or nothing if it fails."""
        status, text = self.run(ASK_SECONDS, command)
        return text.strip() if status == 0 else ""

    def kill(self, process):
        for signal_number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(process.pid, signal_number)
                process.wait(5)
                return
            except ProcessLookupError:
                process.wait()
                return
            except subprocess.TimeoutExpired:
                pass

    def close(self):
        for process in list(self.processes):
            self.kill(process)
        self.results.close()
        shutil.rmtree(self.work, ignore_errors=True)

    # --- the machine ---
    def query_gpu(self, what):
        return self.ask("nvidia-smi", f"--id={self.gpu}", f"--query-gpu={what}",
                        "--format=csv,noheader,nounits").split("\n")[0]

    def find_torch(self):
        """Sets torch to the version of a PyTorch that sees the GPU, else no_torch to the reason. The import may hang."""
        seconds = TOTAL_SECONDS // 10
        status, text = self.run(seconds, ["python3", "-c", "import torch\n"
                                          "print(torch.__version__ if torch.cuda.is_available() else '')"])
        self.torch = last_line(text) if status == 0 else ""
        self.no_torch = f"importing PyTorch takes longer than {seconds:.0f} s" if status == 124 else \
            "no python3 with a PyTorch that sees the GPU"

    def check_machine(self):
        if self.emulate:
            self.free_bytes, self.gpu_name, self.capability = 4 * GIB, "emulated GPU", 9.0
            self.no_torch = "not with emulated programs"
            return "emulated: a test of this program, not of a GPU"
        self.find_torch()
        release = (re.findall(r"release ([\d.]+)", self.ask("nvcc", "--version")) or ["?"])[0]
        self.free_bytes = int(self.query_gpu("memory.free")) << 20
        self.capability, driver = float(self.query_gpu("compute_cap") or 0), self.query_gpu("driver_version")
        for what, value, unit in (("gpu", self.gpu_name, ""), ("compute_capability", self.capability, ""),
                                  ("driver", driver, ""), ("cuda", release, ""), ("torch", self.torch or "none", ""),
                                  ("free_memory", self.free_bytes, "bytes")):
            self.result(what, value, unit)
        return (f"{self.gpu_name}, {self.free_bytes >> 20} MiB free, driver {driver}, CUDA {release}, PyTorch "
                f"{self.torch or 'none'}, {datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d}")

    # --- building ---
    def program(self, precision, name):
        """Where a program lies. The emulated ones are those of the usual build, which need not be made again."""
        folder = "build" if self.emulate else f"build/gpu_check_{precision}"
        if name == "emulated_test_kernels":
            return f"{folder}/emu/test_kernels"
        if name in ("test_kernels", "bench_gpu"):
            return f"{folder}/{'emu' if self.emulate else 'cuda'}/{name}"
        return f"./{name}emu" if self.emulate else f"{folder}/{name}cu"

    def make(self, precision, names):
        folder = f"build/gpu_check_{precision}"
        command = ["make", "-k", f"-j{os.cpu_count() or 2}", f"PRECISION={precision}", *self.make_arguments,
                   *([] if self.emulate else [f"BUILD={folder}", f"BIN={folder}"]),
                   *(self.program(precision, name).removeprefix("./") for name in names)]
        return self.run(240, command, "build.log")

    def check_build_trainer(self):
        """Alone and first, because a user waits for it."""
        start = time.monotonic()
        status, text = self.make("BF16", ["train_gpt2"])
        if status != 0:
            raise Failed(f"make: BF16 ({status_words(status)}), see build.log", *matching("[eE]rror", text, 5))
        seconds = time.monotonic() - start
        if not self.emulate:
            self.measured["build"] = round(seconds, 1)
        self.result("one program", f"{seconds:.1f}", "s")
        return f"{seconds:.1f} s"

    def check_build(self):
        names = ["test_kernels", *([] if self.emulate else ["test_gpt2", "emulated_test_kernels"])]
        with concurrent.futures.ThreadPoolExecutor() as pool:
            builds = {precision: pool.submit(self.make, precision, names + ["bench_gpu"] * (precision == "BF16"))
                      for precision in self.precisions}
        text = "".join(build.result()[1] for build in builds.values())
        bad = "".join(f" {precision} ({status_words(build.result()[0])})" for precision, build in builds.items()
                      if build.result()[0] != 0)
        if bad:
            raise Failed(f"make:{bad}, see build.log", *matching("[eE]rror", text, 5))
        return f"{' '.join(self.precisions)}, {len(matching('warning', text, None))} warnings"

    # --- tests ---
    def run_test(self, name, precision, *arguments):
        """The closing line of a test program that passed."""
        status, text = self.run(90, [self.program(precision, name), *arguments], "tests.log")
        self.kernel_logs[name, precision] = text
        line = (re.findall(CLOSING_LINE, text, re.M) or [""])[-1]
        if status == 127:
            raise Failed(f"{self.program(precision, name)} was not built")
        if status != 0:
            raise Failed(f"{status_words(status)}; {line or 'no closing line'}; see tests.log",
                         *matching("^FAIL |failed:|^emu:", text, 5))
        if not line:
            raise Failed("it ended without its closing line; see tests.log")
        return line

    def check_tests(self):
        for precision in self.precisions:
            self.run_part(f"kernels {precision}", self.run_test, "test_kernels", precision, "--hashes", *self.groups)
            if not self.emulate:
                self.run_part(f"test_gpt2 {precision}", self.run_test, "test_gpt2", precision)

    # --- the emulator against the hardware ---
    def run_emulated(self, precision):
        return self.run(200, [self.program(precision, "emulated_test_kernels"), "--hashes", *self.groups])[1]

    def check_emulator(self, precision, emulated):
        if not re.search("^hash ", emulated, re.M):
            raise Failed("the emulated test_kernels printed no hash", *matching("", emulated, None)[-3:])
        same, other = compare_hashes(self.kernel_logs.get(("test_kernels", precision), ""), emulated)
        self.result("equal_hashes", same)
        self.result("other_hashes", len(other))
        self.log("tests.log", "".join(f"emulator {precision}: other {name}\n" for name in other))
        wrong = [name for name in other if re.search(EXACT, name)]
        if wrong:
            raise Failed(f"other bits where they must be equal: {', '.join(wrong)}")
        if same == 0:
            raise Failed(f"no hash is equal; other bits: {', '.join(other) or 'none to compare'}")
        return f"{same} hashes equal; within tolerance but with other bits: {', '.join(other) or 'none'}"

    # --- compute-sanitizer ---
    def sanitize(self, tool, seconds):
        option = "--kernel-name-exclude"  # --kernel-regex-exclude before 2023
        if option not in self.ask("compute-sanitizer", "--help"):
            option = "--kernel-regex-exclude"
        tests = self.program("BF16", "test_kernels")
        groups = [group for group in self.ask(tests, "--list").split() if group not in LIBRARY_GROUPS]
        return self.run(seconds, ["compute-sanitizer", "--tool", tool, "--error-exitcode", 97, option,
                                  ",".join(f"kns={part}" for part in LIBRARY_KERNELS), tests,
                                  *(groups if tool == "initcheck" else [])], "sanitizer.log")

    def check_sanitizers(self):
        """All tools side by side: they test, they do not measure."""
        if self.emulate or shutil.which("compute-sanitizer") is None:
            reason = "the emulator's own checks are on in every part" if self.emulate else \
                "no compute-sanitizer here; it comes with the CUDA toolkit"
            self.run_part("sanitizer", self.skip, reason)
            return
        seconds = min(self.remaining() - 15, 110)
        with concurrent.futures.ThreadPoolExecutor() as pool:
            runs = {tool: pool.submit(self.sanitize, tool, seconds) for tool in SANITIZERS}
            for tool, run in runs.items():
                self.run_part(tool, self.sanitizer_remark, run)

    def skip(self, reason):
        raise Skipped(reason)

    def sanitizer_remark(self, run):
        status, text = run.result()
        errors = (re.findall(r"(?:ERROR|RACECHECK) SUMMARY.*", text) or [""])[-1]
        found = matching("^========= (Invalid|Uninit|Error|Warning|Barrier|Race)|^FAIL ", text, 3)
        refusal = re.search(r"(?im)^.*(not supported|unable to|LibraryNotLoaded|internal sanitizer error|cannot find).*$",
                            text)
        passed = len(re.findall("^ok  ", text, re.M))
        if status == 0:
            return errors or "no errors"
        if status != 97 and refusal and not passed:
            raise Skipped(f"it refuses: {refusal[0].removeprefix('========= ')}")
        if status in (124, 137) and not found:
            raise Skipped(f"no error in {passed} tests, then its time was up")
        words = "errors, and no end within its time limit" if status in (124, 137) else \
            f"{status_words(status)}; {errors or 'no summary'}"
        raise Failed(f"{words}; see sanitizer.log", *found)

    # --- training runs ---
    def check_trainer(self):
        """The trainer's options, and the tokens that it trains on."""
        os.environ["XDG_CACHE_HOME"] = self.path("cache")  # what the trainer keeps from run to run
        os.mkdir(self.path("cache"))
        self.help = self.run(ASK_SECONDS, [self.trainer, "--help", "all"])[1]
        compiler = next((name for name in ("gcc", "clang", "cc") if shutil.which(name)), "cc")
        with open(self.path("tokens.c"), "w", encoding="utf-8") as file:
            file.write(TOKENS_C)
        status, text = self.run(60, [compiler, "-O2", "-I.", "-o", self.path("tokens"), self.path("tokens.c"), "-lm"])
        if status == 0:
            with open(self.tokens, "wb") as file:
                status = subprocess.run([self.path("tokens")], stdout=file, check=False).returncode
        if status != 0:
            raise Failed(f"the tokens for training could not be made with {compiler}: {last_line(text)}")
        return "8 Mi random tokens"

    def usable(self, option):
        """Does the trainer have this option, and can this GPU do it?"""
        return re.search(rf"(^|[ ,]){option}( |$)", self.help, re.M) and (option != "--fp8" or self.capability >= 8.9)

    def words(self, model, batch, *options):
        """The trainer's command line for a model."""
        shape = ["--init", model.name] if model.name in MODELS else \
            ["--layers", model.layers, "--heads", 1, "--channels", model.channels, "--context", model.seq_len]
        return [self.trainer, *shape, "--seq-len", model.seq_len, "--train-data",
                "LICENSE" if self.emulate else self.tokens, "--val-every", 0, "--sample-every", 0, "--seed", 1,
                "--batch-size", batch, *options]

    def planned_bytes(self, model, batch, *options):
        """(what the plan says that a run takes on the GPU or None, what the trainer said)."""
        text = self.run(ASK_SECONDS, [*self.words(model, batch, *options), "--plan"])[1]
        total = re.search(r"^total (\d+) bytes", text, re.M)
        return int(total[1]) if total else None, text

    def refusal(self, model, batch, *options):
        """Why a run does not fit: the plan, and a gibibyte for CUDA itself, beside what is free. "" if it fits."""
        planned, text = self.planned_bytes(model, batch, *options)
        if planned is None:
            return f"--plan says nothing: {last_line(text)}"
        return "" if planned + GIB <= self.free_bytes else "does not fit the memory"

    def train(self, model, batch, *options, steps=None, watch=None, **environment):
        """(median ms of a step, what it printed) of a run of ours."""
        steps, who = steps or model.steps, " ".join(map(str, (f"batch {batch}", *options)))
        status, text = self.run(90, self.words(model, batch, "--steps", steps, *options), "train.log", watch,
                                **environment)
        ms = median_ms(text, model.left_out)
        if status != 0:
            raise Failed(f"{who}: {status_words(status)}: {last_line(text)}")
        if not ms or re.search(r"^step.*\| *(-[\d.]+|0\.00) ms", text, re.M):
            raise Failed(f"{who}: not every step took a positive time, see train.log")
        if not re.search(rf"^step *{steps}/{steps} ", text, re.M) or re.search("(?i)^step.*loss -?(nan|inf)", text, re.M):
            raise Failed(f"{who}: not every step has a finite loss, see train.log")
        return ms, text

    def watched_train(self, model, batch, steps):
        """(seconds to the first step, MiB in use at the peak above those before) of a run that is not timed: looking
        takes time."""
        start, done, first, used = time.monotonic(), threading.Event(), [], [self.query_gpu("memory.used")]

        def look_at_memory():
            while not done.is_set():
                used.append(self.query_gpu("memory.used"))
                done.wait(0.1)

        def look_at_steps(path):
            while not done.is_set() and not first:
                with open(path, encoding="utf-8", errors="replace") as file:
                    if re.search("^step ", file.read(), re.M):
                        first.append(round(time.monotonic() - start, 2))
                done.wait(0.02)

        with concurrent.futures.ThreadPoolExecutor() as pool:
            if not self.emulate:
                pool.submit(look_at_memory)
            try:
                self.train(model, batch, steps=steps, watch=lambda path: pool.submit(look_at_steps, path))
            finally:
                done.set()
        used = [int(mib) for mib in used if mib.isdigit()]
        return first[0] if first else None, max(used) - used[0] if len(used) > 1 else None

    # --- ours and PyTorch by turns ---
    def run_torch(self, model, batch, steps, left_out):
        """(median ms or None, bytes at the peak, what it printed) of a run of PyTorch."""
        status, text = self.run(130, ["python3", "-u", "dev/bench/bench_torch.py", "--train-data", self.tokens, "--init",
                                      model.name, "--seq-len", model.seq_len, "--batch-size", batch, "--steps", steps,
                                      "--attention", "flash"], "train.log")
        used = re.search(r"^peak memory: (\d+) bytes allocated", text, re.M)
        return median_ms(text, left_out) if status == 0 else None, int(used[1]) if used else 0, text

    def warm_torch(self, models):
        """Compiles the models for PyTorch while our programs are built, and finds the batches that it has room for. Its
        cache serves the runs that count. A model that has not compiled by its deadline is measured without PyTorch."""
        self.deadline = min(self.deadline, TORCH_SECONDS)
        for model in models:
            batch = model.cap
            while batch > 1 and (model.torch_gib[0] + model.torch_gib[1] * batch) * GIB > self.free_bytes:
                batch //= 2
            while batch:
                ms, _, text = self.run_torch(model, batch, 2, 0)
                self.torch_log[model.name] = text
                if ms:
                    self.torch_batches[model.name] = batch
                batch = batch // 2 if not ms and re.search("(?i)out of.* memory", text) else 0

    def speed_row(self, name, model, batch, ms, memory="-"):
        """Shows and records what a run reached. Returns tokens per second."""
        tokens, mfu = 1000 * batch * model.seq_len / ms, "-"
        # 6 operations for each weight of a multiply and token, and 6 L C T for causal attention.
        flops = 6 * (12 * model.layers * model.channels**2 + model.vocab * model.channels +
                     model.layers * model.channels * model.seq_len)
        if self.peak_teraflops:
            mfu = f"{tokens * flops / self.peak_teraflops / 1e10:.1f}%"
            self.result(f"{name} mfu", mfu[:-1], "percent")
        self.show(self.speeds, f"{name:34} {batch:6} {ms:9.2f} {tokens:10.0f} {mfu:>7} {memory:>20}")
        for what, value, unit in (("batch", batch, "sequences"), ("step", f"{ms:g}", "ms"),
                                  ("speed", f"{tokens:.0f}", "tokens/s")):
            self.result(f"{name} {what}", value, unit)
        return tokens

    def measure_memory(self, model, batch):
        """Memory and the seconds to the first step, in a short run of their own, once the multiplies have been timed."""
        first, used = self.watched_train(model, batch, model.left_out + 3)
        planned = self.planned_bytes(model, batch)[0]
        self.measured[model.name, "first step after the start"] = first
        self.result("gpt2.c first step", first, "s")
        if self.context_mib is None and not self.emulate:
            context_used = self.watched_train(CONTEXT, 1, CONTEXT.steps)[1]
            self.context_mib = context_used - (self.planned_bytes(CONTEXT, 1)[0] >> 20) if context_used else None
        if used is None or self.context_mib is None:
            return 0
        memory = (used - self.context_mib) << 20
        self.measured[model.name, "peak memory off its plan"] = round(100 * abs(memory - planned) / planned, 2)
        self.show(self.speeds, f"{f'gpt2.c {model.name} memory':34} {batch:6} {'-':>9} {'-':>10} {'-':>7} "
                  f"{f'{memory / GIB:.2f}, {planned / GIB:.2f} GiB':>20}")
        self.result("gpt2.c peak memory", memory, "bytes")
        self.result("gpt2.c planned memory", planned, "bytes")
        return memory

    def choose_batch(self, model):
        """The largest batch that both have room for."""
        batch = self.torch_batches.get(model.name, model.cap)
        while refusal := self.refusal(model, batch):
            if batch == 1:
                raise Failed(f"no batch fits: {refusal}")
            batch //= 2
        return batch

    def check_training(self, model):
        batch, ours, theirs, memory, torch_memory, problems = self.choose_batch(model), [], [], 0, 0, []
        for turn in (1, 2):
            start = time.monotonic()
            ours.append(self.train(model, batch)[0])
            self.speed_row(f"gpt2.c {model.name} turn {turn}", model, batch, ours[-1])
            if model.name in self.torch_batches:
                ms, torch_memory, self.torch_log[model.name] = self.run_torch(model, batch, model.steps, model.left_out)
                if ms:
                    theirs.append(ms)
                    self.speed_row(f"PyTorch {model.name} turn {turn}", model, batch, ms, f"{torch_memory / GIB:.2f} GiB")
                    self.result(f"PyTorch turn {turn} peak memory", torch_memory, "bytes")
            if turn == 1 and self.enough(20):
                memory = self.attempt(problems, self.measure_memory, model, batch) or 0
            if not theirs or not self.enough(time.monotonic() - start):
                break
        if self.usable("--fp8") and self.enough(20) and (run := self.attempt(problems, self.train, model, batch, "--fp8")):
            self.measured[model.name, "fp8"] = round(self.speed_row(f"gpt2.c {model.name} fp8", model, batch, run[0]))
        self.batches[model.name] = batch
        tokens = round(1000 * batch * model.seq_len / statistics.mean(ours))
        self.measured[model.name, "bf16"] = tokens
        ratio = f"not measured: {self.no_torch}"
        if theirs:
            ratio = f"{statistics.mean(theirs) / statistics.mean(ours):.3f}"
            self.measured[model.name, "bf16 as a multiple of PyTorch"] = float(ratio)
            self.result("ratio_to_torch", ratio)
            if memory and torch_memory:
                self.measured[model.name, "peak memory of PyTorch's"] = round(100 * memory / torch_memory, 1)
        elif self.torch:
            ratio = f"none: {last_line(self.torch_log.get(model.name, ''))}"
        if problems:
            raise Failed("; ".join(problems))
        return f"batch {batch}, {tokens} tokens/s, ratio to PyTorch {ratio}"

    def attempt(self, problems, function, *arguments):
        """What the function returns, or None if it failed, with the reason added to the problems."""
        try:
            return function(*arguments)
        except Failed as failed:
            problems.append(f"{' '.join(map(str, arguments[2:]))}: {failed.args[0]}".removeprefix(": "))
            return None

    # --- kernels, alone and in a step ---
    def check_kernel_times(self, model):
        self.need(25)
        path = self.path(f"kernels_{model.name}.csv")
        status, text = self.run(60, [self.program("BF16", "bench_gpu"), "--csv", path, "--model", model.name,
                                     "--batch-size", model.cap], "tests.log")
        if status != 0:
            raise Failed(f"{status_words(status)}: {last_line(text)}")
        peak = re.search(r"^datasheet: ([\d.]+) ", text, re.M)
        self.peak_teraflops = float(peak[1]) if peak else 0.0
        self.show(self.kernel_tables, "\n".join(re.findall("^(?:device|shapes):.*", text, re.M) +
                                                [text[text.find("\nkernel ") + 1:].rstrip()]))
        rows = step_table.read_csv(path)
        self.append_csv("kernels.csv", rows)
        for row in rows[1:]:
            self.result(row[0], row[5], "us")
            self.result(f"{row[0]} of floor", row[11], "percent")
        farthest = sorted(rows[3:], key=lambda row: float(row[11]))[:3]
        return f"farthest from their floors: {', '.join(f'{row[0]} {row[11]}%' for row in farthest)}"

    def append_csv(self, name, rows):
        path = os.path.join(self.out, name)
        with open(path, "a", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(rows[1:] if os.path.getsize(path) else rows)

    def build_trace_library(self):
        """Builds the library that the driver loads into the trainer. CUPTI is looked for in the CUDA toolkit, then in
        the packages that come with PyTorch."""
        if self.emulate:
            self.no_trace = "the emulator has no CUPTI"
            return
        cuda = os.path.dirname(os.path.dirname(os.path.realpath(shutil.which("nvcc"))))
        packages = last_line(self.ask("python3", "-c", "import nvidia; print(list(nvidia.__path__)[0])"))
        folders = [f"{cuda}/extras/CUPTI", cuda] + \
            [f"{packages}/{name}" for name in ("cu13", "cu12", "cuda_cupti") if os.path.isabs(packages)]
        headers = [f"{folder}/include/cupti.h" for folder in folders]
        libraries = [path for folder in folders for path in sorted(glob.glob(f"{folder}/lib*/libcupti.so*"))]
        header = next(filter(os.path.exists, headers), None)
        if header is None or not libraries:
            self.no_trace = f"no cupti.h and libcupti.so in {cuda} or {cuda}/extras/CUPTI; they come with the CUDA toolkit"
            return
        compiler = os.environ.get("CXX") or ("g++" if shutil.which("g++") else "clang++")
        status = self.run(60, [compiler, "-std=c++17", "-O1", "-shared", "-fPIC", "-I.", "-isystem",
                               os.path.dirname(header), "-isystem", f"{cuda}/include", "-o", self.path("libtrace.so"),
                               "dev/bench/trace_kernels.cpp", libraries[0],
                               f"-Wl,-rpath,{os.path.dirname(libraries[0])}"], "build.log")[0]
        self.trace_library = self.path("libtrace.so") if status == 0 else ""
        self.no_trace = "the library does not build, see build.log"

    def trace_step(self, model, title, prefix, *options):
        """A run whose step is written down kernel by kernel. Shows it beside its prediction. Returns its CSV file."""
        path, batch = self.path(f"step_{len(self.steps)}.csv"), self.batches[model.name]
        text = self.train(model, batch, *options, steps=model.few_steps, CUDA_INJECTION64_PATH=self.trace_library,
                          TRACE_KERNELS=path, TRACE_KERNELS_SKIP=str(model.left_out))[1]
        if not os.path.exists(path) or not os.path.getsize(path):
            why = (re.findall("^trace_kernels: .*", text, re.M) or ["the library wrote nothing"])[-1]
            raise (Skipped if why.endswith("nothing is traced") else Failed)(why)
        how = (re.findall("^precision +(.*)", text, re.M) or ["?"])[0]
        status, plan = self.run(ASK_SECONDS, [*self.words(model, batch, *options), "--plan", "--gpu", self.gpu_name])
        tables, rows = step_table.tables(path, plan, self.path(f"kernels_{model.name}.csv"))
        self.show(self.steps, f"\nA step of {title} ({how}), batch {batch}:\n" +
                  (f"     no prediction: {last_line(plan)}\n" if status != 0 else "") + tables)
        for row in rows:
            self.result(f"{prefix}{row.name}", f"{row.ms:.3f}", "ms")
            self.result(f"{prefix}{row.name} predicted", f"{row.predicted:.3f}", "ms")
            self.result(f"{prefix}{row.name} of its prediction", f"{row.ms / row.predicted:.3f}")
        trace = step_table.read_csv(path)
        step = f"{model.name} {prefix}".strip(" :")
        self.append_csv("steps.csv", [["step", *trace[0]]] + [[step, *row] for row in trace[1:]])
        return trace

    def check_step(self, model):
        if not self.trace_library or model.name not in self.batches:
            raise Skipped(self.no_trace if not self.trace_library else "our training did not run")
        self.need(25)
        trace, problems = self.trace_step(model, model.name, ""), []
        if any(re.search("fmha|flash|cudnn", row[0]) for row in trace) and self.usable("--attention") and self.enough(15):
            if own := self.attempt(problems, self.trace_step, model, f"{model.name}, --attention own", "own attention: ",
                                   "--attention", "own"):
                self.compare_attention(model, trace, own)
        if self.usable("--fp8") and self.enough(15):
            self.attempt(problems, self.trace_step, model, f"{model.name}, --fp8", "fp8: ", "--fp8")
        for problem in problems:
            print(f"     {problem}")
        times = {row[0].split(":")[0]: row for row in trace}
        return f"{float(times['(step)'][3]):.2f} ms, {float(times['(gap'][4]):.1f}% of it idle"

    def compare_attention(self, model, trace, own_trace):
        cudnn, own = (sum(float(row[3]) for row in rows if re.search("attention|fmha|flash|cudnn", row[0]))
                      for rows in (trace, own_trace))
        percent = self.measured[model.name, "own attention of cuDNN's speed"] = round(100 * cudnn / own, 1)
        self.result("attention by cuDNN", f"{cudnn:g}", "ms")
        self.result("attention of our own", f"{own:g}", "ms")
        self.show(self.steps, f"attention: cuDNN {cudnn:g} ms, our own {own:g} ms a step: {percent}% of cuDNN's speed")

    # --- what each option is worth ---
    def option_runs(self, model, problems):
        """[(option or "defaults", ms)], the defaults before, after and in between; None in the end if the time was up."""
        variants, runs, seconds = EMULATED_VARIANTS if self.emulate else VARIANTS, [], 5
        usable = [variant for variant in variants if self.usable(variant.split()[0])]
        for variant in set(variants) - set(usable):
            print(f"     {variant}: this trainer, or this GPU, has no such option")
        order = ["defaults"]
        for i, variant in enumerate(usable, 1):
            order += [variant] + ["defaults"] * (i % VARIANTS_A_DEFAULT == 0 or i == len(usable))
        for variant in order:
            options = [] if variant == "defaults" else variant.split()
            if not self.enough(seconds + 3):
                print(f"     {variant}: no time left")
                return runs, True
            start, refusal = time.monotonic(), self.refusal(model, self.batches[model.name], *options)
            if options and refusal:
                print(f"     {variant}: {refusal}")
                continue
            if run := self.attempt(problems, lambda *words: self.train(*words, steps=model.few_steps), model,
                                   self.batches[model.name], *options):
                runs.append((variant, run[0]))
                print(f"     {variant:20} {run[0]:9.2f} ms", flush=True)
            seconds = time.monotonic() - start
        return runs, False

    def check_options(self, model):
        """Each option's time beside the mean of the defaults before and after it."""
        if model.name not in self.batches:
            raise Skipped("our training did not run")
        problems = []
        runs, time_is_up = self.option_runs(model, problems)
        if not runs:
            raise Failed("; ".join(problems)) if problems else Skipped("no time left")
        defaults = [ms for name, ms in runs if name == "defaults"]
        spread, rows, before = 100 * (max(defaults) / min(defaults) - 1), [], defaults[0]
        for i, (name, ms) in enumerate(runs):
            if name == "defaults":
                before = ms
                continue
            after = next((later for other, later in runs[i:] if other == "defaults"), before)
            rows.append((name, ms, (before + after) / 2, 2 * ms / (before + after)))
        self.show(self.option_tables, "\n".join([
            f"\n{model.name}, batch {self.batches[model.name]}: one option changed, beside the defaults before and after "
            f"(which differ by {spread:.1f}%)", f"{'option':20} {'ms a step':>10} {'defaults':>10} {'time x':>8}",
            *(f"{name:20} {ms:10.2f} {default:10.2f} {times:8.3f}" for name, ms, default, times in rows)]))
        for name, _, _, times in rows:
            self.result(name, f"{times:.3f}", "of the defaults' time")
        self.result("defaults differ by", f"{spread:.1f}", "percent")
        if problems:
            raise Failed("; ".join(problems))
        return f"{len(rows)} options{', then the time was up' * time_is_up}; the defaults differ by {spread:.1f}%"

    # --- several GPUs ---
    def train_ranks(self, words, stage, ranks):
        """What each rank printed. One process for each GPU; they find each other by a folder."""
        folder = tempfile.mkdtemp(prefix=f"stage_{stage}.", dir=self.work)
        with concurrent.futures.ThreadPoolExecutor(ranks) as pool:
            runs = list(pool.map(lambda rank: self.run(60, [
                *words, "--zero-stage", stage, "--nccl-init", "fs", "--nccl-fs-path", folder, "--num-processes", ranks,
                "--process-rank", rank, "--start-timeout", 30], "train.log"), range(ranks)))
        said = "\n".join(text for _, text in runs)
        if "built without NCCL" in said:
            raise Skipped(f"{ranks} GPUs, but built without NCCL")
        for status, _ in runs:
            if status != 0:
                why = (re.findall("^train_gpt2cu: .*", said, re.M) or ["see train.log"])[0]
                raise Failed(f"stage {stage}: {status_words(status)}: {why}")
        return runs[0][1]

    def check_ranks(self, model):
        """Every stage of sharding makes equal weights, to the bit, since each rank has one micro-batch in a step. One GPU
        alone takes the batch in parts; its sums have another order, so its last loss differs by up to a hundredth."""
        listed = os.environ.get("CUDA_VISIBLE_DEVICES") or \
            ",".join(self.ask("nvidia-smi", "--query-gpu=index", "--format=csv,noheader").split())
        ranks = 2 if self.emulate else min(8, len([index for index in listed.split(",") if index]))
        if ranks < 2:
            raise Skipped("one GPU here")
        share = min(model.cap, 4)
        words = self.words(model, share, "--steps", model.steps, "--total-batch", share * model.seq_len * ranks)
        status, alone = self.run(60, words, "train.log")
        if status != 0:
            raise Failed(f"one GPU alone: {last_line(alone)}")
        self.result("ranks", ranks, "GPUs")
        self.result("alone step", f"{median_ms(alone, model.left_out):g}", "ms")
        hashes, times = [], []
        for stage in range(4):
            text = self.train_ranks(words, stage, ranks)
            hashes.append(last_line("\n".join(re.findall("^weights hash (.*)", text, re.M))))
            if not hashes[-1] or hashes[-1] != hashes[0]:
                raise Failed(f"stage {stage}: weights hash '{hashes[-1]}', '{hashes[0]}' in stage 0")
            times.append(f"{median_ms(text, model.left_out):g}")
            self.result(f"stage {stage} step", times[-1], "ms")
        losses = [float(re.findall(r"^step .*\| loss ([\d.]+) ", log, re.M)[-1]) for log in (text, alone)]
        if not abs(losses[0] - losses[1]) <= losses[1] / 100:
            raise Failed(f"last loss {losses[0]:g} on {ranks} GPUs, {losses[1]:g} on one")
        return f"{ranks} GPUs, the same weights in stages 0 to 3; ms a step: {' '.join(times)}"

    # --- the targets, and all of it ---
    def target_row(self, name, relation, wanted, value, unit):
        verdict = "not measured" if value is None else "missed"
        if value is not None:
            verdict = "met" if (value >= wanted if relation == "at least" else value <= wanted) else "missed"
            self.result(name, value, unit, part="targets")
        self.result(f"{name} target", verdict, part="targets")
        return f"{name:44} {relation:>8} {wanted:7} {unit:9} {'-' if value is None else value:>10}  {verdict}"

    def targets(self):
        here = f"Targets, {self.gpu_name}:" if re.search("H[12]00", self.gpu_name) else \
            f"Targets, which are for one H100 or H200; this is {self.gpu_name}:"
        return "\n".join([here, *(
            self.target_row(f"{title} {what}", relation, wanted[model], self.measured.get((model, what)), unit)
            for model, title in TITLES.items() for what, unit, relation, wanted in TARGETS),
            self.target_row("building the trainer", "at most", BUILD_SECONDS, self.measured.get("build"), "s")])

    def check_model(self, model, kernel_times):
        if kernel_times:
            self.run_part(f"kernel times {model.name}", self.check_kernel_times, model)
        self.run_part(f"step {model.name}", self.check_step, model)
        self.run_part(f"options {model.name}", self.check_options, model)

    def check_all(self, models):
        self.run_part("machine", self.check_machine)
        self.run_part("build trainer", self.check_build_trainer)
        self.run_part("tokens", self.check_trainer)
        with concurrent.futures.ThreadPoolExecutor() as pool:
            warm = pool.submit(self.warm_torch, models) if self.torch else None
            self.run_part("build", self.check_build)
            self.build_trace_library()
            self.check_tests()
            if warm:  # what follows is measured: PyTorch must have compiled by now
                warm.result()
            self.deadline = TOTAL_SECONDS
            self.run_part(f"kernel times {models[0].name}", self.check_kernel_times, models[0])
            for model in models:
                self.run_part(f"training {model.name}", self.check_training, model)
            for model in models:
                self.check_model(model, kernel_times=model is not models[0])
            self.run_part("several GPUs", self.check_ranks, models[0])
            emulated = {precision: pool.submit(self.run_emulated, precision) for precision in self.precisions}
            self.check_sanitizers()
            for precision, run in emulated.items():
                self.run_part(f"emulator {precision}", self.check_emulator, precision, run.result())

    def summary(self):
        revision, seconds = self.ask("git", "rev-parse", "--short", "HEAD"), time.monotonic() - START
        self.result("time", int(seconds), "s", part="all")
        self.result("failures", self.failures, part="all")
        head = f"gpt2.c {revision} on {self.gpu_name}, {datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M} UTC\n"
        speeds = f"{'run':34} {'batch':>6} {'step ms':>9} {'tokens/s':>10} {'MFU':>7} {'memory used, planned':>20}"
        return "\n".join([head, *self.kernel_tables, *self.steps, *self.option_tables, "", *self.parts, "", speeds,
                          *self.speeds, "", self.targets(), "", f"{int(seconds)} s, {self.failures} failed", ""])


def parse_arguments():
    parser = argparse.ArgumentParser(prog="dev/gpu_check.py", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", metavar="OUTDIR", help="the folder for the results")
    parser.add_argument("make_arguments", metavar="NAME=VALUE", nargs="*", help="for make, e.g. GPU_ARCH=90")
    parser.add_argument("--emulate", action="store_true", help="the same steps with emulated programs and a tiny model, "
                        "on any machine: a test of this program, its times mean nothing")
    arguments = parser.parse_args()
    for word in arguments.make_arguments:
        if "=" not in word:
            stop(f"unexpected argument '{word}': expected NAME=VALUE for make; the folder is '{arguments.out}'")
    return arguments


def chosen_models(emulate):
    names = os.environ.get("GPU_CHECK_MODELS", "d12 d48").split()
    for name in names:
        if name not in MODELS:
            stop(f"GPU_CHECK_MODELS: no model '{name}', there are d12 and d48")
    return [TINY] if emulate else [MODELS[name] for name in names]


def main():
    arguments = parse_arguments()
    models = chosen_models(arguments.emulate)
    for name in ("nvcc", "nvidia-smi"):
        if not arguments.emulate and name == "nvcc" and not shutil.which(name):
            os.environ["PATH"] += os.pathsep.join(["", f"{os.environ.get('CUDA_HOME', '')}/bin", "/usr/local/cuda/bin",
                                                   "/opt/cuda/bin"])
        if not arguments.emulate and not shutil.which(name):
            stop(f"no {name}: this needs a GPU's driver and the CUDA toolkit, 12 or later (--emulate tries it without)")
    out = os.path.abspath(arguments.out)
    os.makedirs(out, exist_ok=True)
    for name in ("summary.txt", "kernels.csv", "steps.csv"):
        open(os.path.join(out, name), "w", encoding="utf-8").close()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))
    check = Check(out, arguments.emulate, arguments.make_arguments)
    try:
        if not arguments.emulate:
            check.gpu_name = check.query_gpu("name")
            if not check.gpu_name:
                stop(f"nvidia-smi shows no GPU {check.gpu}; see nvidia-smi and CUDA_VISIBLE_DEVICES")
        check.check_all(models)
        summary = check.summary()
        with open(os.path.join(out, "summary.txt"), "w", encoding="utf-8") as file:
            file.write(summary)
        print("\n" + summary, end="")
        sys.exit(check.failures > 0)
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        check.close()


if __name__ == "__main__":
    main()
