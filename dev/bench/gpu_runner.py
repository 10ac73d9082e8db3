"""Runs programs with a time limit each, and reports the parts of dev/gpu_check.py: verdicts, results and logs."""
import csv
import datetime
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

import guard

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
START = time.monotonic()
TOTAL_SECONDS = float(os.environ.get("GPU_CHECK_SECONDS", 525))
TORCH_SECONDS = 200  # from the start: PyTorch must have compiled by then
RESERVED_SECONDS = 50  # for the sanitizers and the emulator, which come last
ASK_SECONDS = 20  # for a question to nvidia-smi, Python or the trainer's --plan
GIB = 1 << 30
LOGS = ("build.log", "tests.log", "sanitizer.log", "meter.log", "train.log")


class Failed(Exception):
    """A part failed. The message is its remark; further arguments are lines that explain it."""


class Skipped(Exception):
    """A part could not run. The message is its remark."""


def last_line(text):
    return (text.strip().splitlines() or [""])[-1]


def matching(pattern, text, most):
    """The first lines that match, indented."""
    return ["     " + line for line in text.splitlines() if re.search(pattern, line)][:most]


def status_words(status):
    return "no end within its time limit" if status in (124, 137) else f"status {status}"


class Runner:
    """One check of a machine: where things lie, what is left of the time, what the parts report."""

    def __init__(self, out, emulate, make_arguments):
        self.out, self.emulate, self.make_arguments = out, emulate, make_arguments
        self.work = tempfile.mkdtemp(prefix="gpu_check.")
        self.deadline, self.lock, self.processes = TOTAL_SECONDS, threading.Lock(), set()
        self.part, self.parts, self.failures = "", [], 0
        self.gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
        self.gpu_name, self.free_bytes, self.capability, self.torch, self.no_torch = "", 0, 0.0, "", ""
        self.precisions = ("BF16",) if emulate else ("BF16", "FP32")
        self.results = guard.open_file(os.path.join(out, "results.csv"), "w", encoding="utf-8", newline="")
        self.result("what", "value", "unit", part="part")
        for log in LOGS:
            guard.open_file(os.path.join(out, log), "w", encoding="utf-8").close()

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
        with self.lock, guard.open_file(os.path.join(self.out, name), "a", encoding="utf-8") as file:
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

    def interrupted(self, *_):
        """For Ctrl-C: nothing starts any more, and what runs is ended."""
        self.deadline = 0
        for process in list(self.processes):
            self.kill(process)
        sys.exit(130)

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
        """Sets torch to the version of a PyTorch that sees the GPU, else no_torch to the reason. It may hang."""
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

    # --- the programs ---
    def program(self, precision, name):
        """Where a program lies. The emulated ones are those of the usual build, which need not be made again."""
        folder = "build" if self.emulate else f"build/gpu_check_{precision}"
        if name.startswith("emulated_"):
            return f"{folder}/emu/{name.removeprefix('emulated_')}"
        if name in ("test_kernels", "bench_gpu", "meter_kernels"):
            return f"{folder}/{'emu' if self.emulate else 'cuda'}/{name}"
        return f"./{name}emu" if self.emulate else f"{folder}/{name}cu"

    def make(self, precision, names):
        folder = f"build/gpu_check_{precision}"
        command = ["make", "-k", f"-j{os.cpu_count() or 2}", f"PRECISION={precision}", *self.make_arguments,
                   *([] if self.emulate else [f"BUILD={folder}", f"BIN={folder}"]),
                   *(self.program(precision, name).removeprefix("./") for name in names)]
        return self.run(240, command, "build.log")
