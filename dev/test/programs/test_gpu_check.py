"""dev/gpu_check.py on a machine that only seems to have a GPU: its parts, verdicts and table, with stand-ins for
nvidia-smi, make, the programs, compute-sanitizer and PyTorch. Then, where they are built, with emulated programs."""
import csv
import glob
import importlib
import os
import re
import shutil
import subprocess
import sys
import tempfile

import pytest

from tools import ROOT, WORK, path, stand_ins, text_of, write

TREE = path("a tree")

# Each stand-in is a shell script; the words in the variable FAULT make some of them misbehave.
STAND_INS = {
    "nvidia-smi": """
        case "$*" in
            *=memory.used*) cat "$TMPDIR/training" 2>/dev/null || echo 1000 ;;
            *=memory.free*) echo 80000 ;;
            *=index*) echo 0; is one-gpu || echo 1 ;;
            *=name*) is no-gpu || echo "NVIDIA H100 80GB HBM3" ;;
            *=compute_cap*) echo 9.0 ;;
            *=driver_version*) echo 580.1 ;;
        esac""",
    "g++": 'is no-cupti && exit 1; while [ "$1" != -o ]; do shift; done; touch "$2"',
    "nvcc": 'echo "Cuda compilation tools, release 13.0, V13.0.88"',
    "make": """
        for goal in "$@"; do
            case $goal in
                build/*/*) mkdir -p "$(dirname "$goal")"; name=$(basename "$goal")
                    is no-bench && [ $name = bench_gpu ] && { echo "error: no"; continue; }
                    case $goal in */emu/*) name=emulated ;; esac
                    cp "$STAND_INS/$name" "$goal" ;;
            esac
        done
        ! is no-bench""",
    "compute-sanitizer": """
        [ "$1" = --help ] && { is old-sanitizer && echo "  --kernel-regex-exclude arg" ||
                               echo "  --kernel-name-exclude arg"; exit; }
        echo "========= COMPUTE-SANITIZER"
        is refuses && { echo "========= Error: Device not supported"; exit 1; }
        is race && [ "$2" = racecheck ] && { echo "========= Error: Race reported"; exit 97; }
        is slow && [ "$2" = memcheck ] && { echo "ok   kernels: one"; exec sleep 60; }
        echo "========= ERROR SUMMARY: 0 errors" """,
    "ncu": """
        is no-counters && { echo "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission"; exit 1; }
        sectors=128; is other-counts && sectors=256
        echo "==PROF== Connected to process 7"
        echo '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"'
        kernel='"0","copy_kernel(float *, const float *)"'
        row() { echo "$kernel,\\"l1tex__t_sectors_pipe_lsu_mem_global_op_$1.sum\\",\\"sector\\",\\"$2\\""; }
        row ld $sectors
        is few-counts || row st 4,096""",
    "meter_kernels": "true",
    "python3": """
        case "$*" in
            *bench_torch.py*) is torch-fails && { echo "no kernel image"; exit 1; }
                echo "$*" >>"$TMPDIR/torch-calls"
                case "$*" in
                    *"--batch-size 32"*) echo "bench_torch.py: out of GPU memory with --batch-size 32"; exit 1 ;;
                esac
                for i in 1 2 3 4 5 6 7 8; do
                    echo "step    $i/8 | loss 10.8 | norm 1 | lr 3e-4 | 30.00 ms | 5 tok/s"
                done
                echo "peak memory: 10000000000 bytes allocated, 20000000000 bytes reserved" ;;
            *"import torch"*) is slow-import && exec sleep 300
                is no-torch || echo 2.11.0 ;;
        esac""",
    "test_kernels": """
        [ "$1" = --list ] && { printf '%s\\n' embedding matmul graph gelu; exit; }
        is hangs && exec sleep 60
        echo "hash embedding_forward 1"; echo "hash attention of 2"; echo "hash attention of 3"
        is kernels && { echo "FAIL kernels: gelu"; echo "test_kernels: 3 passed, 1 failed, 0 skipped"; exit 1; }
        echo "test_kernels: 4 passed, 0 failed, 0 skipped" """,
    "emulated": """
        if is other-bits; then echo "hash embedding_forward 9"; else echo "hash embedding_forward 1"; fi
        echo "hash attention of 2"; echo "hash attention of 4"
        echo "count copy_kernel load_sectors 128"; echo "count copy_kernel store_sectors 4096"
        echo "test_kernels: 4 passed, 0 failed, 0 skipped" """,
    "test_gpt2cu": 'echo "test_gpt2cu: 9 passed, 0 failed, 0 skipped"',
    "bench_gpu": """
        echo "datasheet: 989.4 TFLOP/s dense bf16"; echo "kernel us"; echo "copy 1"
        head="kernel,precision,B,T,C,us,gigabytes,gigaflop,gigabytes_per_s,teraflop_per_s,bound,percent_of_floor"
        printf '%s\\n' "$head" copy,bf16,16,1024,768,9,1,1,4000,1,memory,100 \
            matmul,bf16,16,1024,768,9,1,1,1,800,math,100 gelu,bf16,16,1024,768,9,2,1,1,1,memory,91 \
            global_norm,bf16,1,1,1,9,0.2,0,1,1,memory,99 adamw,bf16,1,1,1,9,2,0,1,1,memory,82 >"$2" """,
    "train_gpt2cu": """
        options=$*
        while [ $# -gt 0 ]; do
            case $1 in --batch-size) B=$2 ;; --steps) steps=$2 ;; --plan) plan=yes ;; --train-data) data=$2 ;;
                --zero-stage) stage=$2 ;; --nccl-fs-path) folder=$2 ;; --process-rank) rank=$2 ;;
                --help) is old || printf '  --%s\\n' fp8 "attention NAME" "deterministic 0" "recompute N" ; exit ;; esac
            shift
        done
        [ $(od -An -N4 -tu4 "$data") = 20240520 ] || { echo "no tokens"; exit 1; }
        bytes=$((1000000000 + B * 400000000))
        if [ "${plan:-}" = yes ]; then
            [[ $options = *"--recompute 1"* ]] && bytes=90000000000
            echo "total $bytes bytes (x) in one allocation"; echo "total 5 bytes (x) in one allocation"
            exit
        fi
        if [ -n "${rank:-}" ]; then
            is alone && { echo "train_gpt2cu: this program was built without NCCL, which several GPUs need" >&2
                          exit 1; }
            is rank-fails && [ $rank$stage = 12 ] && { echo "train_gpt2cu: rank 1 hangs" >&2; exit 1; }
            touch "$folder/$rank"
            for i in $(seq 100); do [ -e "$folder/$((1 - rank))" ] && break; sleep 0.1; done
            [ $i -lt 100 ] || is rank-fails || { echo "train_gpt2cu: alone" >&2; exit 1; }
            [ $rank = 0 ] || exec >/dev/null
        elif [ $steps = 8 ] || [ $steps = 7 ] || [ $steps = 1000 ]; then # the runs whose memory is watched
            echo $((1500 + bytes / 1048576)) >"$TMPDIR/training"
            sleep 0.4
            rm "$TMPDIR/training"
        fi
        is train && { echo "train_gpt2cu: out of memory" >&2; exit 1; }
        echo "precision   bf16, attention by cuDNN"
        ms=$((B * 100 / 8))
        [[ $options = *--fp8* ]] && { is fp8 && { echo "train_gpt2cu: --fp8: no" >&2; exit 1; }; ms=$((ms * 3 / 4)); }
        [[ $options = *"--deterministic 0"* ]] && ms=$((ms * 3 / 2))
        loss=10.8
        is nan && loss=nan
        is other-losses && [ -n "${rank:-}" ] && loss=9.9
        for i in $(seq $steps); do
            shown=$ms; [ $i -gt 5 ] || shown=9999
            printf 'step %4d/%d | loss %s | norm 1 | lr 3e-4 | %d.%02d ms | 5 tok/s\\n' $i $steps $loss \
                $((shown / 100)) $((shown % 100))
        done
        if [ -n "${TRACE_KERNELS:-}" ]; then
            is no-cuda && { echo "trace_kernels: cuptiActivityEnable: no CUDA; nothing is traced" >&2; exit; }
            is no-records && { echo "trace_kernels: CUPTI lost 3 records, expected none" >&2; exit; }
            [ -e "$CUDA_INJECTION64_PATH" ] && {
                echo "kernel,calls,us_per_call,ms,percent,idle_before_us"; echo "(step),1,2000,2,100,100"
                echo "(gap: median and largest),9,1,0.1,5,50"; echo "(two at once),0,0,0.1,5,0"
                echo "nvjet_x,9,100,0.9,45,0"; echo "adamw_update,5,1000,5,1,0"; echo "gelu_forward,2,1000,2,5,3"
                if [[ $options = *own* ]]; then echo "attention_backward,1,1000,1,5,0"
                else echo "cudnn_flash_attention,1,800,0.8,5,0"; fi; } >"$TRACE_KERNELS"
        fi
        if is other-weights && [ "${stage:-0}" = 3 ]; then echo "weights hash 8"; else echo "weights hash 7"; fi""",
}


def setup_module():
    if sys.platform != "linux" or shutil.which("timeout") is None:
        pytest.skip("no Linux, or no timeout")
    for name in ("include/cupti.h", "lib/libcupti.so.13"):  # beside the folder of nvcc
        write(name, "")
    for name in ("dev/gpu_check.py", "dev/guard.py", "dev/bench/gpu_runner.py", "dev/bench/gpu_training.py",
                 "dev/bench/step_table.py", "llmc/base/rand.h"):
        write(os.path.join(TREE, name), text_of(name))


def check(fault="old", seconds="600", without=(), arguments=(), models="d12"):
    """Runs the script -> (result, {part: (verdict, remark)}, {(part, what): value of results.csv}, its folder)."""
    folder, temporary = (tempfile.mkdtemp(dir=WORK) for _ in range(2))
    programs = stand_ins({name: '#!/bin/bash\nis() { [[ " $FAULT " = *" $1 "* ]]; }\n' + script + "\n"
                          for name, script in STAND_INS.items() if name not in without}, only=())
    shutil.rmtree(os.path.join(TREE, "build"), ignore_errors=True)
    environment = dict(os.environ, PATH=programs + ":/usr/bin:/bin", FAULT=fault, STAND_INS=programs, TMPDIR=temporary,
                       GPU_CHECK_SECONDS=seconds, GPU_CHECK_MODELS=models)
    environment.pop("CUDA_HOME", None)
    result = subprocess.run([sys.executable, os.path.join(TREE, "dev", "gpu_check.py"), folder, *arguments], cwd=WORK,
                            env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
    parts = {match[2].strip(): (match[1].strip(), match[3]) for match in
             re.finditer(r"^(ok  |FAIL|skip) (.{22}) +\d+ s  (.*)$", result.stdout, re.M)}
    rows = table(folder, "results.csv")
    assert all(len(row) == 4 for row in rows), rows
    assert os.listdir(temporary) in ([], ["torch-calls"]), os.listdir(temporary)
    return result, parts, {(part, what): value for part, what, value, _ in rows}, folder


def table(folder, name):
    """The rows of a table that it writes; none if it does not."""
    if not os.path.exists(os.path.join(folder, name)):
        return []
    with open(os.path.join(folder, name), encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def expect(parts, part, verdict, remark=""):
    assert part in parts, f"{part}: not among {sorted(parts)}"
    assert parts[part][0] == verdict and remark in parts[part][1], f"{part}: {parts[part]}, expected {verdict} {remark}"


STEP = {"gelu_forward": "2.000", "nvjet_x": "0.900"}
STEPS = {prefix + what: value for prefix in ("", "fp8: ", "own attention: ") for what, value in STEP.items()}
OWN = {"own attention: attention_backward": "1.000", "own attention: cudnn_flash_attention": None}
VALUES = {  # of results.csv, where all is well. None: no row.
    # PyTorch has no room for more than 16 sequences, by what it says; ours takes B / 8 ms for B, PyTorch 30 ms. The
    # memory is without the 500 MiB of CUDA itself.
    "training d12": {
        "gpt2.c d12 turn 1 batch": "16", "gpt2.c d12 turn 1 step": "2", "gpt2.c d12 turn 2 speed": "8192000",
        "PyTorch d12 turn 2 speed": "546133", "ratio_to_torch": "15.000", "gpt2.c d12 fp8 step": "1.5",
        "gpt2.c planned memory": "7400000000"},
    "training d48": {"gpt2.c d48 turn 2 batch": "8"},
    "step d12": {"attention by cuDNN": "0.8", "attention of our own": "1", **STEPS, **OWN},
    "step d48": {**STEPS, **OWN},
    "options d12": {"--deterministic 0": "1.500", "--recompute 3": "1.000", "--fp8 1": "0.750",
                    "defaults differ by": "0.0", "--recompute 1": None, "--head-overlap 1": None},
    # Each of two GPUs with 4 sequences takes half a millisecond.
    "several GPUs": {"stage 3 step": "0.5", "ranks": "2"},
    "all": {"failures": "0"}}


def test_all_is_well():
    result, parts, rows, folder = check("", models="d12 d48")
    assert result.returncode == 0 and result.stderr == "", result.stdout + result.stderr
    assert {verdict for verdict, _ in parts.values()} == {"ok"} and len(parts) == 24, parts
    expect(parts, "emulator BF16", "ok", "2 hashes equal; within tolerance but with other bits: attention of")
    expect(parts, "kernel times d12", "ok", "adamw 82%, gelu 91%")
    expect(parts, "meter", "ok", "2 counts of the emulator's meter are those of the GPU")
    files = ["summary.txt", "results.csv", "kernels.csv", "steps.csv"]
    logs = ["build.log", "tests.log", "sanitizer.log", "meter.log", "train.log"]
    assert sorted(os.listdir(folder)) == sorted(files + logs), os.listdir(folder)
    assert {part: {what: rows.get((part, what)) for what in values} for part, values in VALUES.items()} == VALUES
    # Memory is watched in MiB. 797,815,296 operations a token: 6535.7 TFLOP/s of 989.4.
    assert abs(int(rows["training d12", "gpt2.c peak memory"]) - 7400000000) < 2 << 20, rows
    assert abs(float(rows["training d12", "gpt2.c d12 turn 1 mfu"]) - 660.6) < 0.1, rows
    steps = table(folder, "steps.csv")
    assert [row[0] for row in steps].count("d12") == 7, steps
    assert ["d48 own attention", "gelu_forward"] in [row[:2] for row in steps], steps
    assert [row[:2] for row in table(folder, "kernels.csv")].count(["kernel", "precision"]) == 1
    check_sanitizer_calls(folder, "--kernel-name-exclude")
    expect(parts, "several GPUs", "ok", "2 GPUs, the same weights in stages 0 to 3; ms a step: 0.5 0.5 0.5 0.5")
    check_targets(result, rows, folder)


def check_sanitizer_calls(folder, option):
    """Library kernels are left out; initcheck, which then misses what they write, runs no group that calls one."""
    calls = dict(re.findall(r"^\$ compute-sanitizer --tool (\w+) --error-exitcode 97 (.*)$",
                            text_of(os.path.join(folder, "sanitizer.log")), re.M))
    assert sorted(calls) == ["initcheck", "memcheck", "racecheck", "synccheck"], calls
    for tool, words in calls.items():
        assert re.fullmatch(option + r" kns=\w+(,kns=\w+)+ \S*test_kernels( embedding gelu)?", words), (tool, words)
        assert words.endswith("embedding gelu") == (tool == "initcheck"), (tool, words)


def test_library_kernels():
    """The words that name kernels of libraries are in no name of ours, and the groups that call a library are right."""
    sys.path.insert(0, os.path.join(ROOT, "dev"))
    check = importlib.import_module("gpu_check")
    words, groups = check.LIBRARY_KERNELS, check.LIBRARY_GROUPS
    sources = [name for room in ("llmc", "dev/test")
               for name in glob.glob(os.path.join(ROOT, room, "**", "*.cuh"), recursive=True)]
    names, users = set(), set()
    for source in sources:
        text = text_of(source)
        names |= set(re.findall(r"__global__ void (?:__launch_bounds__\(.*?\)\s+)?(\w+)\(", text, re.S))
        if re.search(r"cublas|cudnn|(matmul|linear)_(forward|backward)", text) and "/kernels_" in source:
            users.add(os.path.basename(source)[len("kernels_"):-len(".cuh")])
    assert len(names) > 20 and not [name for name in names for word in words if word in name], names
    assert users == set(groups), (users, groups)


def check_targets(result, rows, folder):
    summary = text_of(os.path.join(folder, "summary.txt"))
    assert summary in result.stdout, summary
    for name, value, verdict in (("GPT-2 124M bf16", "8192000", "met"), ("GPT-2 124M fp8", "10922667", "met"),
                                 ("GPT-2 124M bf16 as a multiple of PyTorch", "15.0", "met"),
                                 ("GPT-2 124M peak memory of PyTorch's", "74.0", "missed"),
                                 ("GPT-2 1558M own attention of cuDNN's speed", "80.0", "met")):
        assert rows["targets", name] == value and rows["targets", name + " target"] == verdict, (name, rows)
        assert re.search(rf"^{re.escape(name)} .* {re.escape(value)}  {verdict}$", summary, re.M), (name, summary)
    assert float(rows["targets", "GPT-2 124M peak memory off its plan"]) < 0.03, rows
    assert 0.4 <= float(rows["targets", "GPT-2 124M first step after the start"]) < 60, rows
    for line in (r"d12, batch 16: one option changed, .* \(which differ by 0\.0%\)", r"A step of d12 \(bf16, attention",
                 r"A step of d48, --fp8 \(bf16, attention",
                 r" +2\.000 +5\.0% +2\.0 +1000\.00 +3\.00  gelu_forward",
                 r"     --recompute 1: does not fit the memory", r"     --head-rows 16384: this trainer, or this GPU"):
        assert re.search("^" + line, result.stdout, re.M), (line, result.stdout)


TIMES_PYTORCH = "bf16 as a multiple of PyTorch"
NOT_TRAINED = "our training did not run"
FAILED = (  # what goes wrong, how many parts fail, the target that is then not measured, what is said of some parts
    # kernels and emulator in both precisions
    ("old kernels race other-bits train", 7, "bf16", {
        "kernels BF16": ("FAIL", "status 1; test_kernels: 3 passed, 1 failed, 0 skipped"),
        "racecheck": ("FAIL", "status 97"),
        "emulator FP32": ("FAIL", "other bits where they must be equal: embedding_forward"),
        "training d12": ("FAIL", "out of memory"), "step d12": ("skip", NOT_TRAINED),
        "several GPUs": ("FAIL", "one GPU alone: train_gpt2cu: out of memory"), "options d12": ("skip", NOT_TRAINED),
        "synccheck": ("ok", "")}),
    ("old no-torch other-weights other-counts", 2, TIMES_PYTORCH, {
        "meter": ("FAIL", "1 of 2 counts differ"),
        "several GPUs": ("FAIL", "stage 3: weights hash '8', '7' in stage 0")}),
    ("old no-torch other-losses few-counts", 2, TIMES_PYTORCH, {
        "meter": ("FAIL", "ncu: status 0, 1 counts of 2"),
        "several GPUs": ("FAIL", "last loss 9.9 on 2 GPUs, 10.8 on one")}),
    ("old one-gpu no-bench nan", 4, "bf16", {
        "build": ("FAIL", "make: BF16 (status 1) FP32 (status 1)"), "kernel times d12": ("FAIL", "status 127"),
        "training d12": ("FAIL", "not every step has a finite loss"), "memcheck": ("ok", "")}),
    ("no-torch no-records fp8 rank-fails", 4, "fp8", {
        "several GPUs": ("FAIL", "stage 2: status 1: train_gpt2cu: rank 1 hangs"),
        "training d12": ("FAIL", "--fp8: batch 64 --fp8: status 1: train_gpt2cu: --fp8: no"),
        "step d12": ("FAIL", "CUPTI lost 3 records"), "options d12": ("FAIL", "batch 64 --fp8 1: status 1")}),
    ("old torch-fails refuses one-gpu no-cuda", 0, TIMES_PYTORCH, {
        "several GPUs": ("skip", "one GPU here"), "initcheck": ("skip", "it refuses: Error: Device not supported"),
        "step d12": ("skip", "trace_kernels: cuptiActivityEnable: no CUDA; nothing is traced"),
        "training d12": ("ok", "ratio to PyTorch none: no kernel image")}),
    ("old no-torch alone no-cupti no-counters", 0, TIMES_PYTORCH, {
        "meter": ("skip", "the counters are for the administrator only"),
        "several GPUs": ("skip", "2 GPUs, but built without NCCL"),
        "step d12": ("skip", "the library does not build, see build.log"),
        "training d12": ("ok", "not measured: no python3 with a PyTorch that sees the GPU")}))


@pytest.mark.parametrize("fault, failures, unmeasured, wanted", FAILED)
def test_what_fails_or_is_missing_does_not_stop_the_rest(fault, failures, unmeasured, wanted):
    result, parts, rows, _ = check(fault)
    assert result.returncode == (failures > 0) and rows["all", "failures"] == str(failures), result.stdout
    for part, (verdict, remark) in wanted.items():
        expect(parts, part, verdict, remark)
    assert rows["targets", f"GPT-2 124M {unmeasured} target"] == "not measured", rows


def test_without_a_sanitizer():
    if os.path.exists("/usr/bin/compute-sanitizer"):
        pytest.skip("here is one")
    expect(check("old no-torch one-gpu", without=["compute-sanitizer"])[1], "sanitizer", "skip",
           "no compute-sanitizer here")


def test_time_limits():
    result, parts, _, folder = check("old slow-import one-gpu old-sanitizer", seconds="60")
    assert result.returncode == 0, result.stdout
    expect(parts, "training d12", "ok", "not measured: importing PyTorch takes longer than 6 s")
    check_sanitizer_calls(folder, "--kernel-regex-exclude")
    result, parts, _, _ = check("old slow no-torch one-gpu", seconds="22")
    expect(parts, "memcheck", "skip", "tests, then its time was up")  # how many it got through is the machine's affair
    remark = "" if parts["racecheck"][0] == "ok" else "no error in 0 tests, then its time was up"
    expect(parts, "racecheck", "skip" if remark else "ok", remark)  # and how much time that left
    for part in ("kernel times d12", "step d12", "options d12"):
        expect(parts, part, "skip", "no time left")
    assert result.returncode == 0, result.stdout
    result, parts, _, _ = check("old hangs no-torch", seconds="6")
    expect(parts, "kernels BF16", "FAIL", "no end within its time limit; no closing line")
    assert result.returncode == 1, result.stdout


def test_bad_starts():
    for changes, message in (
            (dict(arguments=("more",)), "unexpected argument 'more'"),
            (dict(fault="no-gpu"), "nvidia-smi shows no GPU 0; see nvidia-smi and CUDA_VISIBLE_DEVICES"),
            (dict(models="d13"), "GPU_CHECK_MODELS: no model 'd13', there are d12 and d48")):
        result, parts, _, _ = check(**changes)
        assert result.returncode == 1 and parts == {}, result.stdout
        assert message in result.stderr and result.stderr.count("\n") == 1, result.stderr


def test_trace_library_compiles():
    """Against NVIDIA's headers, where they are; it can run on a GPU only."""
    nvcc = shutil.which("nvcc", path=os.environ["PATH"] + ":/usr/local/cuda/bin:/opt/cuda/bin")
    cuda = os.path.dirname(os.path.dirname(os.path.realpath(nvcc))) if nvcc else ""
    folders = [folder for folder in (f"{cuda}/extras/CUPTI/include", f"{cuda}/include")
               if os.path.exists(f"{folder}/cupti.h")]
    if not folders or shutil.which("g++") is None:
        pytest.skip("no cupti.h, which comes with the CUDA toolkit, or no g++")
    subprocess.run(["g++", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-I.", "-isystem", folders[0],
                    "-isystem", f"{cuda}/include", "dev/bench/trace_kernels.cpp"], cwd=ROOT, check=True)


def test_emulated():
    """The whole flow with the real programs, where they are built."""
    programs = ["train_gpt2emu", "build/emu/test_kernels", "build/emu/bench_gpu"]
    missing = [program for program in programs if not os.path.exists(os.path.join(ROOT, program))]
    if missing:
        pytest.skip(f"not built: {' '.join(missing)}")
    folder = tempfile.mkdtemp(prefix="out.", dir=WORK)
    result = subprocess.run([sys.executable, os.path.join(ROOT, "dev", "gpu_check.py"), folder, "--emulate"], cwd=WORK,
                            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
    for part in ("build", "kernels BF16", "emulator BF16", "kernel times tiny", "training tiny", "options tiny",
                 "several GPUs"):
        assert re.search(rf"^ok   {part} ", result.stdout, re.M), result.stdout
