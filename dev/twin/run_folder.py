"""What a run leaves behind, in the files and words of the C trainers: main.log, speed.log, run.json, the step lines."""
import datetime
import json
import os
import platform
import re
import subprocess
import sys

from dev import guard
from dev.twin import ROOT, Problem, header, version

# ---- Lines for people ----


def duration(seconds):
    s = int(seconds + 0.5)
    if s < 3600:
        return f"{s // 60}:{s % 60:02d}"
    return f"{s // 3600}:{s // 60 % 60:02d}:{s % 60:02d}" if s < 86400 else f"{s // 86400}d {s // 3600 % 24:02d}h"


def step_number(step, total):
    return f"step {step:{max(4, len(str(total)))}d}/{total}"


def step_line(step, total, loss, norm, lr, seconds, tokens, peak_fraction, seconds_left):
    peak = f" | {100 * peak_fraction:.0f}% of peak" if peak_fraction > 0 else ""
    return (f"{step_number(step + 1, total)} | loss {loss:.6f} | norm {norm:.4f} | lr {lr:.2e} | {1e3 * seconds:.2f} ms"
            f" | {tokens / max(seconds, 1e-9):.0f} tok/s{peak} | {duration(seconds_left)} left")


def flops_per_token(config, T):
    """To train: 6 for each weight of a matrix multiply, and 6 L C T for causal attention."""
    return 6 * (12 * config.L * config.C**2 + config.V * config.C) + 6 * config.L * config.C * T


def gpu_peak_flops(name, kind):
    """Of the GPU's datasheet (llmc/model/gpu_peak.h), 0 where not known. kind: 0 bf16, 1 TF32, 2 fp32."""
    name = name[7:] if name.startswith("NVIDIA ") else name
    row = r'^    X\((?:"[^"]+", )?"([^"]+)", ([0-9., ]+)\)'
    for pattern, figures in re.findall(row, header("model/gpu_peak.h"), re.M):
        if "MIG" not in name and (name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern):
            return 1e12 * float(figures.split(",")[kind])
    return 0.0


# ---- run.json ----


def output_of(*command):
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def git_state():
    """Of this repository; nothing where it is none."""
    revision = output_of("git", "rev-parse", "HEAD") if os.path.exists(os.path.join(ROOT, ".git")) else None
    if not revision:
        return {}
    return {"git": {"revision": revision,
                    "dirty": bool(output_of("git", "status", "--porcelain", "--untracked-files=no"))}}


def find_in(path, pattern):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            found = re.search(pattern, file.read(), re.M)
        return found.group(1).strip() if found else None
    except OSError:
        return None


def host_facts():
    memory = find_in("/proc/meminfo", r"^MemTotal: *(\d+) kB")
    facts = {"host": platform.node(), "cpu": find_in("/proc/cpuinfo", r"^model name\s*: (.*)$") or platform.machine(),
             "cores": os.cpu_count(), "memory_bytes": 1024 * int(memory) if memory else None}
    return {name: value for name, value in facts.items() if value}


def now():
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


# ---- The folder ----


class RunFolder:
    """main.log, speed.log and run.json of a run; without a folder (None) it writes nothing."""

    def __init__(self, folder):
        self.folder, self.record, self.logs, self.seconds_before = folder, {}, {}, 0.0

    def path(self, name):
        return os.path.join(self.folder, name)

    def claim(self, resume, overwrite):
        """A fresh run does not begin in the folder of an older one unless told to."""
        used = self.folder and any(os.path.exists(self.path(name)) for name in ("main.log", "run.json"))
        if used and not resume and not overwrite:
            raise Problem(f"{self.folder}: holds an earlier run; give --resume to go on with it, --overwrite to start "
                          "afresh in its place, or another --out-dir")
        if self.folder:
            try:
                os.makedirs(self.folder, exist_ok=True)
            except OSError as error:
                raise Problem(f"--out-dir (-o): {self.folder}: {error.strerror}") from None

    def open(self, first_step, record):
        """Begins the logs of a run whose next step is first_step: lines from there on are removed, the run writes them
        again. record: the parts of run.json that are known now."""
        if not self.folder:
            return
        for name in ("main.log", "speed.log"):
            kept = [line for line in self.lines(name) if self.step_of(line) < first_step]
            with guard.new_file(self.path(name), "w", encoding="utf-8") as file:
                file.writelines(kept)
            self.logs[name] = guard.open_file(self.path(name), "a", encoding="utf-8")
            found = re.search(r" sec:(\d+\.\d+)\n", kept[-1]) if name == "speed.log" and kept else None
            self.seconds_before = float(found[1]) if found else self.seconds_before
        before = self.old_starts() if first_step > 0 else []
        start = {"time": now(), "from_step": first_step, "command": sys.argv}
        self.record = {"format": 1, "program": "train_gpt2.py", "version": version(), **git_state(),
                       "command": sys.argv, "directory": os.getcwd(), **record, "starts": before + [start]}
        self.write_record()

    def lines(self, name):
        """The whole lines of a log."""
        try:
            with guard.open_file(self.path(name), "r", encoding="utf-8", errors="replace") as file:
                return [line for line in file if re.fullmatch(r"s:\d{1,18} \S+:.*\n", line)]
        except FileNotFoundError:
            return []

    @staticmethod
    def step_of(line):
        return int(re.match(r"s:(\d+)", line).group(1))

    def old_starts(self):
        try:
            return list(json.loads(guard.read_file(self.path("run.json")))["starts"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            print(f"{self.path('run.json')} cannot be read, it is written anew")
            return []

    def write_record(self):
        with guard.new_file(self.path("run.json"), "w", encoding="utf-8") as file:
            json.dump(self.record, file, indent=1)
            file.write("\n")

    def log(self, name, line):
        if self.folder:
            self.logs[name].write(line + "\n")
            self.logs[name].flush()

    def log_step(self, step, loss, norm, lr, seconds, tokens, since_start):
        self.log("main.log", f"s:{step} trl:{loss:.4f} lr:{lr:.6f} norm:{norm:.2f}")
        self.log("speed.log", f"s:{step} ms:{1e3 * seconds:.3f} tps:{tokens / max(seconds, 1e-9):.0f} "
                              f"sec:{self.seconds_before + since_start:.3f}")

    def log_val(self, step, loss):
        self.log("main.log", f"s:{step} tel:{loss:.4f}")

    def end(self, step, status, seconds, **more):
        """status: done, stopped or failed."""
        if self.logs:
            self.record["end"] = {"time": now(), "step": step, "status": status, **more,
                                  "seconds": round(self.seconds_before + seconds, 3)}
            self.write_record()
