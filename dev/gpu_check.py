#!/usr/bin/env python3
"""The one command for a machine with a GPU: builds, tests and measures the GPU trainer in under 9 minutes: GPT-2 124M
and 1558M beside PyTorch and the targets, a step kernel by kernel, and what each option of the trainer is worth.

It needs make, gcc or clang, and nvcc. It uses compute-sanitizer, ncu, CUPTI and a python3 with PyTorch where they are.
It needs no network. Every part has a time limit. A part that fails does not stop the others, and a part that the time
does not suffice for is skipped, the least valuable first. Tables come at the end. The status is 1 if anything failed. A
missed target is no failure.

OUTDIR gets summary.txt, results.csv (part, what, value, unit), kernels.csv (each kernel's time and floor), steps.csv
(the kernels of whole steps) and the logs. CUDA_VISIBLE_DEVICES chooses GPUs: the first one, and all of them where
several train together. GPU_CHECK_SECONDS=900 grants more time. GPU_CHECK_MODELS=d12 measures one model.
"""
import collections
import concurrent.futures
import csv
import datetime
import os
import re
import shutil
import signal
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "bench"))
import guard  # noqa: E402
from gpu_runner import START, TOTAL_SECONDS, Failed, Skipped, last_line, matching, status_words  # noqa: E402
from gpu_training import MODELS, TINY, Training, median_ms  # noqa: E402

CLOSING_LINE = r"^\S+: \d+ passed, \d+ failed, \d+ skipped$"

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

# Only sums and roundings can be equal to the bit on a GPU and a CPU: their exp, tanh and square roots differ in the
# last bits, and the order of a tensor core's sum is its own. Such results agree within the tests' tolerances.
EXACT = "checksum|embedding|sum_losses|global norm|params_from_master|backward_bias|fp8_quantize"

SANITIZERS = ("memcheck", "racecheck", "initcheck", "synccheck")
# The tools report errors in kernels of NVIDIA's libraries that are none. They judge our kernels only: library kernels
# are left out by parts of their names, which no kernel of ours has. initcheck does not see what a left-out kernel
# writes, so it does not run the groups of test_kernels that call a library.
LIBRARY_KERNELS = "cublas cutlass xmma nvjet gemm gemv splitK cudnn fmha".split()
LIBRARY_GROUPS = "matmul tune fp8 cudnn".split()


# What the emulator's meter counts, and the hardware's counters for it (Nsight Compute's documentation).
COUNTERS = {"load_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
            "load_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
            "store_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",
            "store_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
            "shared_load_wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
            "shared_store_wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum"}


def stop(message):
    sys.exit(f"dev/gpu_check.py: {message}")


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


def hardware_counts(text):
    """{(kernel, count): value} of what ncu --csv prints: a row for each kernel and counter."""
    names = {counter: name for name, counter in COUNTERS.items()}
    rows = list(csv.DictReader(line for line in text.splitlines() if line.startswith('"')))
    return {(re.sub(r"[<(].*", "", row["Kernel Name"]), names[row["Metric Name"]]):
            int(float(row["Metric Value"].replace(",", ""))) for row in rows if row["Metric Name"] in names}


class Check(Training):
    """The whole check."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.groups = ["embedding", "gelu"] if self.emulate else []  # of test_kernels; none: all
        self.test_logs = {}

    # --- building ---
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
        once = ["bench_gpu", *([] if self.emulate else ["meter_kernels", "emulated_meter_kernels"])]
        with concurrent.futures.ThreadPoolExecutor() as pool:
            builds = {precision: pool.submit(self.make, precision, names + once * (precision == "BF16"))
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
        self.test_logs[name, precision] = text
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
        same, other = compare_hashes(self.test_logs.get(("test_kernels", precision), ""), emulated)
        self.result("equal_hashes", same)
        self.result("other_hashes", len(other))
        self.log("tests.log", "".join(f"emulator {precision}: other {name}\n" for name in other))
        wrong = [name for name in other if re.search(EXACT, name)]
        if wrong:
            raise Failed(f"other bits where they must be equal: {', '.join(wrong)}")
        if same == 0:
            raise Failed(f"no hash is equal; other bits: {', '.join(other) or 'none to compare'}")
        return f"{same} hashes equal; within tolerance but with other bits: {', '.join(other) or 'none'}"

    # --- the emulator's meter against the hardware's counters ---
    def check_meter(self):
        if self.emulate or shutil.which("ncu") is None:
            raise Skipped("no GPU to compare with" if self.emulate else "no ncu here; it comes with Nsight Compute")
        status, counted = self.run(30, [self.program("BF16", "emulated_meter_kernels")], "meter.log")
        expected = {(kernel, name): int(value) for kernel, name, value in
                    re.findall(r"^count (\w+) (\w+) (\d+)$", counted, re.M)}
        if status != 0 or not expected:
            raise Failed(f"the emulated program: {status_words(status)}, {len(expected)} counts; see meter.log")
        status, text = self.run(90, ["ncu", "--csv", "--metrics", ",".join(COUNTERS.values()),
                                     self.program("BF16", "meter_kernels")], "meter.log")
        if "ERR_NVGPUCTRPERM" in text:
            raise Skipped("the counters are for the administrator only (ERR_NVGPUCTRPERM)")
        found = hardware_counts(text)
        if status != 0 or found.keys() != expected.keys():
            raise Failed(f"ncu: {status_words(status)}, {len(found)} counts of {len(expected)}; see meter.log")
        other = [f"     {kernel} {name}: the meter counts {count}, the GPU {found[kernel, name]}"
                 for (kernel, name), count in expected.items() if found[kernel, name] != count]
        self.result("equal counts", len(expected) - len(other))
        if other:
            raise Failed(f"{len(other)} of {len(expected)} counts differ", *other)
        return f"{len(expected)} counts of the emulator's meter are those of the GPU"

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
        refusal = re.search("(?im)^.*(not supported|unable to|LibraryNotLoaded|internal sanitizer error|cannot find).*",
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
        """Every stage of sharding makes equal weights, to the bit, since each rank has one micro-batch in a step.
        One GPU alone takes the batch in parts. Its sums have another order, so its last loss may differ by 1 %."""
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
            self.run_part("meter", self.check_meter)
            for precision, run in emulated.items():
                self.run_part(f"emulator {precision}", self.check_emulator, precision, run.result())

    def summary(self):
        revision, seconds = self.ask("git", "rev-parse", "--short", "HEAD"), time.monotonic() - START
        self.result("time", int(seconds), "s", part="all")
        self.result("failures", self.failures, part="all")
        now = datetime.datetime.now(datetime.timezone.utc)
        head = f"gpt2.c {revision} on {self.gpu_name}, {now:%Y-%m-%d %H:%M} UTC\n"
        speeds = f"{'run':34} {'batch':>6} {'step ms':>9} {'tokens/s':>10} {'MFU':>7} {'memory used, planned':>20}"
        return "\n".join([head, *self.kernel_tables, *self.steps, *self.option_tables, "", *self.parts, "", speeds,
                          *self.speeds, "", self.targets(), "", f"{int(seconds)} s, {self.failures} failed", ""])


def parse_arguments():
    parser = guard.Parser(__doc__, prog="dev/gpu_check.py")
    parser.add_argument("out", metavar="OUTDIR", help="the folder for the results")
    parser.add_argument("make_arguments", metavar="NAME=VALUE", nargs="*", help="for make, e.g. GPU_ARCH=90")
    parser.add_argument("--emulate", action="store_true", help="the same steps with emulated programs and a tiny "
                        "model, on any machine: a test of this program, its times mean nothing")
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
        guard.open_file(os.path.join(out, name), "w", encoding="utf-8").close()
    check = Check(out, arguments.emulate, arguments.make_arguments)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, check.interrupted)
    try:
        if not arguments.emulate:
            check.gpu_name = check.query_gpu("name")
            if not check.gpu_name:
                stop(f"nvidia-smi shows no GPU {check.gpu}; see nvidia-smi and CUDA_VISIBLE_DEVICES")
        check.check_all(models)
        summary = check.summary()
        with guard.open_file(os.path.join(out, "summary.txt"), "w", encoding="utf-8") as file:
            file.write(summary)
        print("\n" + summary, end="")
        sys.exit(check.failures > 0)
    finally:
        check.close()


if __name__ == "__main__":
    guard.screens("stdout", "stderr")
    main()
