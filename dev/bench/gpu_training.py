"""The measurements of dev/gpu_check.py: training runs beside PyTorch, steps kernel by kernel, options."""
import collections
import concurrent.futures
import csv
import glob
import os
import re
import shutil
import statistics
import subprocess
import threading
import time

import guard
import step_table
from gpu_runner import ASK_SECONDS, GIB, TORCH_SECONDS, Failed, Runner, Skipped, last_line, status_words

# All runs of a model have one batch: at most `cap` sequences, for which PyTorch has room on a GPU of 141 GB.
# torch_gib: about what PyTorch takes for the model, and for each sequence. left_out: first steps that are not timed.
Model = collections.namedtuple("Model", "name layers channels vocab seq_len steps few_steps cap left_out torch_gib")
MODELS = {"d12": Model("d12", 12, 768, 50257, 1024, 30, 20, 64, 5, (2, 1.5)),
          "d48": Model("d48", 48, 1600, 50257, 1024, 15, 12, 16, 4, (30, 4.2))}
TINY = Model("tiny", 2, 64, 257, 32, 3, 3, 2, 1, (0, 0))
CONTEXT = Model("context", 1, 64, 50257, 64, 1000, 0, 1, 0, (0, 0))  # shows what CUDA itself takes of the memory

VARIANTS = ("--attention own", "--deterministic 0", "--matmul-tune 0", "--matmul-tune 2",
            "--gelu-fusion 1", "--gelu-fusion 2", "--fp8 1", "--head-overlap 1", "--head-rows 16384", "--recompute 1",
            "--recompute 2", "--recompute 3", "--optimizer muon")
EMULATED_VARIANTS = ("--gelu-fusion 1", "--recompute 3")
VARIANTS_A_DEFAULT = 3  # between two runs with the defaults, which show how the machine drifts

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


def median_ms(log, left_out):
    """The median of the milliseconds in a run's step lines without the first steps, or None."""
    times = [float(ms) for ms in re.findall(r"^step .*\| *([\d.]+) ms \|", log, re.M)][left_out:]
    return statistics.median(times) if times else None


class Training(Runner):
    """A check that trains. Its measured values, by the names of gpu_check.TARGETS, are what the targets judge."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.trainer, self.tokens = self.program("BF16", "train_gpt2"), self.path("tokens.bin")
        self.help, self.peak_teraflops, self.context_mib, self.trace_library, self.no_trace = "", 0.0, None, "", ""
        self.measured, self.batches, self.torch_batches, self.torch_log = {}, {}, {}, {}
        self.kernel_tables, self.steps, self.option_tables, self.speeds = [], [], [], []

    # --- training runs ---
    def check_trainer(self):
        """The trainer's options, and the tokens that it trains on."""
        os.environ["XDG_CACHE_HOME"] = self.path("cache")  # what the trainer keeps from run to run
        os.mkdir(self.path("cache"))
        self.help = self.run(ASK_SECONDS, [self.trainer, "--help", "all"])[1]
        compiler = next((name for name in ("gcc", "clang", "cc") if shutil.which(name)), "cc")
        with guard.open_file(self.path("tokens.c"), "w", encoding="utf-8") as file:
            file.write(TOKENS_C)
        status, text = self.run(60, [compiler, "-O2", "-I.", "-o", self.path("tokens"), self.path("tokens.c"), "-lm"])
        if status == 0:
            with guard.open_file(self.tokens, "wb") as file:
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
        text = self.run(ASK_SECONDS, [*self.words(model, batch, *options), "--plan", "all"])[1]
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
        if not re.search(rf"^step *{steps}/{steps} ", text, re.M) or re.search("(?im)^step.*loss -?(nan|inf)", text):
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
                first.append(round(time.monotonic() - start, 2))  # counts if the run ended between two looks
            finally:
                done.set()
        used = [int(mib) for mib in used if mib.isdigit()]
        return first[0] if first else None, max(used) - used[0] if len(used) > 1 else None

    # --- ours and PyTorch by turns ---
    def run_torch(self, model, batch, steps, left_out):
        """(median ms or None, bytes at the peak, what it printed) of a run of PyTorch."""
        status, text = self.run(130, ["python3", "-u", "dev/bench/bench_torch.py", "--train-data", self.tokens,
                                      "--init", model.name, "--seq-len", model.seq_len, "--batch-size", batch,
                                      "--steps", steps, "--attention", "flash"], "train.log")
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
        """Memory and the seconds to the first step, in a short run of their own after the multiplies were timed."""
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
                    memory_words = f"{torch_memory / GIB:.2f} GiB"
                    self.speed_row(f"PyTorch {model.name} turn {turn}", model, batch, ms, memory_words)
                    self.result(f"PyTorch turn {turn} peak memory", torch_memory, "bytes")
            if turn == 1 and self.enough(20):
                memory = self.attempt(problems, self.measure_memory, model, batch) or 0
            if not theirs or not self.enough(time.monotonic() - start):
                break
        run = None
        if self.usable("--fp8") and self.enough(20):
            run = self.attempt(problems, self.train, model, batch, "--fp8")
        if run:
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
        with guard.open_file(path, "a", encoding="utf-8", newline="") as file:
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
            self.no_trace = f"no cupti.h and libcupti.so in {cuda} or {cuda}/extras/CUPTI; the CUDA toolkit has them"
            return
        compiler = os.environ.get("CXX") or ("g++" if shutil.which("g++") else "clang++")
        status = self.run(60, [compiler, "-std=c++17", "-O1", "-shared", "-fPIC", "-I.", "-isystem",
                               os.path.dirname(header), "-isystem", f"{cuda}/include", "-o", self.path("libtrace.so"),
                               "dev/bench/trace_kernels.cpp", libraries[0],
                               f"-Wl,-rpath,{os.path.dirname(libraries[0])}"], "build.log")[0]
        self.trace_library = self.path("libtrace.so") if status == 0 else ""
        self.no_trace = "the library does not build, see build.log"

    def trace_step(self, model, title, prefix, *options):
        """A run whose step is written down kernel by kernel. Shows its kernels. Returns its CSV file."""
        path, batch = self.path(f"step_{len(self.steps)}.csv"), self.batches[model.name]
        text = self.train(model, batch, *options, steps=model.few_steps, CUDA_INJECTION64_PATH=self.trace_library,
                          TRACE_KERNELS=path, TRACE_KERNELS_SKIP=str(model.left_out))[1]
        if not os.path.exists(path) or not os.path.getsize(path):
            why = (re.findall("^trace_kernels: .*", text, re.M) or ["the library wrote nothing"])[-1]
            raise (Skipped if why.endswith("nothing is traced") else Failed)(why)
        how = (re.findall("^precision +(.*)", text, re.M) or ["?"])[0]
        trace = step_table.read_csv(path)
        self.show(self.steps, "\n".join([f"\nA step of {title} ({how}), batch {batch}:",
                                         *step_table.kernels_table(trace[1:])]))
        for row in trace[1:]:
            if not row[0].startswith("("):
                self.result(f"{prefix}{row[0]}", f"{float(row[3]):.3f}", "ms")
        step = f"{model.name} {prefix}".strip(" :")
        self.append_csv("steps.csv", [["step", *trace[0]]] + [[step, *row] for row in trace[1:]])
        return trace

    def check_step(self, model):
        if not self.trace_library or model.name not in self.batches:
            raise Skipped(self.no_trace if not self.trace_library else "our training did not run")
        self.need(25)
        trace, problems = self.trace_step(model, model.name, ""), []
        by_cudnn = any(re.search("fmha|flash|cudnn", row[0]) for row in trace)
        if by_cudnn and self.usable("--attention") and self.enough(15):
            own = self.attempt(problems, self.trace_step, model, f"{model.name}, --attention own", "own attention: ",
                               "--attention", "own")
            if own:
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
        """[(option or "defaults", ms)], the defaults first, last and in between. The second value: was the time up?"""
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
            f"\n{model.name}, batch {self.batches[model.name]}: one option changed, beside the defaults before and "
            f"after (which differ by {spread:.1f}%)", f"{'option':20} {'ms a step':>10} {'defaults':>10} {'time x':>8}",
            *(f"{name:20} {ms:10.2f} {default:10.2f} {times:8.3f}" for name, ms, default, times in rows)]))
        for name, _, _, times in rows:
            self.result(name, f"{times:.3f}", "of the defaults' time")
        self.result("defaults differ by", f"{spread:.1f}", "percent")
        if problems:
            raise Failed("; ".join(problems))
        return f"{len(rows)} options{', then the time was up' * time_is_up}; the defaults differ by {spread:.1f}%"
