"""What a run leaves behind, as the C trainers write it: main.log, speed.log, run.jsonl, the step lines."""
import contextlib
import datetime
import json
import os
import platform
import re
import subprocess
import sys

from dev.twin import guarded
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
    row = r'^    \{"[^"]*", "([^"]+)", \{([0-9., ]+)\}'
    for pattern, figures in re.findall(row, header("model/gpu_peak.h"), re.M):
        if "MIG" not in name and (name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern):
            return 1e12 * float(figures.split(",")[kind])
    return 0.0


# ---- What run.jsonl says of the machine ----


def output_of(*command):
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def revision():
    """Of this repository, with "-dirty" if files have changed; "" where it is none."""
    known = output_of("git", "rev-parse", "HEAD") if os.path.exists(os.path.join(ROOT, ".git")) else None
    return known + "-dirty" * bool(output_of("git", "status", "--porcelain", "--untracked-files=no")) if known else ""


def find_in(path, pattern):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            found = re.search(pattern, file.read(), re.M)
        return found.group(1).strip() if found else None
    except OSError:
        return None


def host_facts():
    memory = find_in("/proc/meminfo", r"^MemTotal: *(\d+) kB")
    facts = {"host": platform.node(), "cores": os.cpu_count(), "memory_bytes": 1024 * int(memory) if memory else None}
    return {name: value for name, value in facts.items() if value}


def now():
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


# ---- The folder ----


class RunFolder:
    """main.log, speed.log and run.jsonl of a run, which only grow; without a folder (None) it writes nothing."""

    FILES = ("main.log", "speed.log", "run.jsonl")

    def __init__(self, folder):
        self.folder, self.overwrite, self.files = folder, False, {}

    def path(self, name):
        return os.path.join(self.folder, name)

    def claim(self, resume, overwrite):
        """A fresh run does not begin in the folder of an older one unless told to."""
        used = self.folder and any(os.path.exists(self.path(name)) for name in self.FILES)
        if used and not resume and not overwrite:
            raise Problem(f"{self.folder}: holds an earlier run; give --resume to go on with it, --overwrite to start "
                          "afresh in its place, or another --out-dir")
        self.overwrite = overwrite and not resume
        if self.folder:
            try:
                os.makedirs(self.folder, exist_ok=True)
            except OSError as error:
                raise Problem(f"--out-dir (-o): {self.folder}: {error.strerror}") from None

    def open(self, first_step, record):
        """Begins or continues the files of a run whose next step is first_step. Steps that a killed run had logged from
        there on are logged again, and readers take the later line. record: what run.jsonl says of this start."""
        if not self.folder:
            return
        for name in self.FILES:
            if self.overwrite:
                with contextlib.suppress(FileNotFoundError):
                    os.remove(self.path(name))
            self.files[name] = file = guarded.open_file(self.path(name), "a+", encoding="utf-8", errors="replace")
            file.seek(0)
            text = file.read()
            if text and not text.endswith("\n"):  # of a run that was killed while it wrote
                file.write("\n")
        self.log_event("start", first_step, format=2, program="train_gpt2.py", version=version(), revision=revision(),
                       command=sys.argv, directory=os.getcwd(), **record)

    def log(self, name, line):
        if self.folder:
            self.files[name].write(line + "\n")
            self.files[name].flush()

    def log_event(self, event, step, **facts):
        known = {name: fact for name, fact in facts.items() if fact not in (None, "")}
        self.log("run.jsonl", json.dumps({"event": event, "time": now(), "step": step, **known}))

    def log_step(self, step, loss, norm, lr, seconds, tokens):
        self.log("main.log", f"s:{step} trl:{loss:.4f} lr:{lr:.6f} norm:{norm:.2f}")
        self.log("speed.log", f"s:{step + 1} ms:{1e3 * seconds:.3f} tps:{tokens / max(seconds, 1e-9):.0f}")

    def log_val(self, step, loss):
        self.log("main.log", f"s:{step} tel:{loss:.4f}")

    def end(self, step, status, **more):
        """status: done, stopped or failed."""
        if self.files:
            self.log_event("end", step, status=status, **more)
