"""dev/gpu_check.sh on a machine that only seems to have a GPU: its parts, verdicts and table, with stand-ins for
nvidia-smi, make, the programs, compute-sanitizer and PyTorch. Then, where they are built, with emulated programs."""
import csv
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile

from harness import Skip, run

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
WORK = tempfile.mkdtemp(prefix="gpt2c_gpu_check.")
TREE = os.path.join(WORK, "a tree")
BIN = os.path.join(WORK, "bin")

# Each stand-in is a shell script; the words in the variable FAULT make some of them misbehave.
STAND_INS = {
    "nvidia-smi": """
        case "$*" in
            *=memory.used*) if [ -e "$TMPDIR/training" ]; then echo 9000; else echo 1000; fi ;;
            *=memory.free*) echo 80000 ;;
            *=index*) echo 0; is one-gpu || echo 1 ;;
            *=name*) is no-gpu || echo "NVIDIA H100 80GB HBM3" ;;
            *=compute_cap*) echo 9.0 ;;
            *=driver_version*) echo 580.1 ;;
        esac""",
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
        echo "========= COMPUTE-SANITIZER"
        is refuses && { echo "========= Error: Device not supported"; exit 1; }
        is race && [ "$2" = racecheck ] && { echo "========= Error: Race reported"; exit 97; }
        is slow && [ "$2" = memcheck ] && { echo "ok   kernels: one"; exec sleep 60; }
        echo "========= ERROR SUMMARY: 0 errors" """,
    "python3": """
        case "$*" in
            *bench_torch.py*) is torch-fails && { echo "no kernel image"; exit 1; }
                echo "$*" >>"$TMPDIR/torch-calls"
                case "$*" in
                    *"--batch-size 64"*) echo "bench_torch.py: out of GPU memory with --batch-size 64"; exit 1 ;;
                esac
                for i in 1 2 3 4 5 6 7 8; do
                    echo "step    $i/8 | loss 10.8 | norm 1 | lr 3e-4 | 30.00 ms | 5 tok/s"
                done
                echo "peak memory: 1 bytes allocated, 2147483648 bytes reserved" ;;
            *) is no-torch || echo 2.11.0 ;;
        esac""",
    "test_kernels": """
        is hangs && exec sleep 60
        echo "hash encoder_forward 1"; echo "hash attention of 2"; echo "hash attention of 3"
        is kernels && { echo "FAIL kernels: gelu"; echo "test_kernels: 3 passed, 1 failed, 0 skipped"; exit 1; }
        echo "test_kernels: 4 passed, 0 failed, 0 skipped" """,
    "emulated": """
        if is other-bits; then echo "hash encoder_forward 9"; else echo "hash encoder_forward 1"; fi
        echo "hash attention of 2"; echo "hash attention of 4"
        echo "test_kernels: 4 passed, 0 failed, 0 skipped" """,
    "test_gpt2cu": 'echo "test_gpt2cu: 9 passed, 0 failed, 0 skipped"',
    "bench_gpu": """
        echo "datasheet: 989.4 TFLOP/s dense bf16"; echo "kernel us"; echo "copy 1"
        head="kernel,precision,B,T,C,us,gigabytes,gigaflop,gigabytes_per_s,teraflop_per_s,bound,percent_of_floor"
        printf '%s\\n' "$head" copy,bf16,1,1,1,9,1,1,1,1,memory,100 matmul,bf16,1,1,1,9,1,1,1,1,math,100 \
            gelu,bf16,1,1,1,9,1,1,1,1,memory,91 adamw,bf16,1,1,1,9,1,1,1,1,memory,82 >"$2" """,
    "train_gpt2cu": """
        while [ $# -gt 0 ]; do
            case $1 in --batch-size) B=$2 ;; --steps) steps=$2 ;; --plan) plan=yes ;; --train-data) data=$2 ;;
                --zero-stage) stage=$2 ;; --nccl-fs-path) folder=$2 ;; --process-rank) rank=$2 ;; esac
            shift
        done
        [ $(od -An -N4 -tu4 "$data") = 20240520 ] || { echo "no tokens"; exit 1; }
        if [ "${plan:-}" = yes ]; then echo "total $((1000000000 + B * 400000000)) bytes (x) in one allocation"
            echo "total 5 bytes (x) in one allocation"; exit; fi
        if [ -n "${rank:-}" ]; then
            is alone && { echo "train_gpt2cu: this program was built without NCCL, which several GPUs need" >&2
                          exit 1; }
            is rank-fails && [ $rank$stage = 12 ] && { echo "train_gpt2cu: rank 1 hangs" >&2; exit 1; }
            touch "$folder/$rank"
            for i in $(seq 100); do [ -e "$folder/$((1 - rank))" ] && break; sleep 0.1; done
            [ $i -lt 100 ] || is rank-fails || { echo "train_gpt2cu: alone" >&2; exit 1; }
            [ $rank = 0 ] || exec >/dev/null
        fi
        touch "$TMPDIR/training"; sleep 0.3; rm "$TMPDIR/training"
        is train && { echo "train_gpt2cu: out of memory" >&2; exit 1; }
        for i in $(seq $steps); do
            ms=$((B * 100 / 8)); [ $i -gt 5 ] || ms=9999
            loss=10.8; is nan && loss=nan
            is other-losses && [ -n "${rank:-}" ] && loss=9.9
            printf 'step %4d/%d | loss %s | norm 1 | lr 3e-4 | %d.%02d ms | 5 tok/s\\n' $i $steps $loss \
                $((ms / 100)) $((ms % 100))
        done
        if is other-weights && [ "${stage:-0}" = 3 ]; then echo "weights hash 8"; else echo "weights hash 7"; fi""",
}


def prepare():
    os.makedirs(os.path.join(TREE, "dev", "bench"))
    os.makedirs(os.path.join(TREE, "llmc"))
    os.makedirs(BIN)
    shutil.copy(os.path.join(ROOT, "dev", "gpu_check.sh"), os.path.join(TREE, "dev"))
    shutil.copy(os.path.join(ROOT, "llmc", "rand.h"), os.path.join(TREE, "llmc"))
    for name, script in STAND_INS.items():
        path = os.path.join(BIN, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write('#!/bin/bash\nis() { [[ " $FAULT " = *" $1 "* ]]; }\n' + script + "\n")
        os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)


def check(fault="", seconds="60", without=(), arguments=()):
    """Runs the script -> (result, {part: (verdict, remark)}, rows of results.csv, its folder)."""
    folder = tempfile.mkdtemp(prefix="out.", dir=WORK)
    temporary = tempfile.mkdtemp(prefix="tmp.", dir=WORK)
    stand_ins = tempfile.mkdtemp(prefix="bin.", dir=WORK)
    for name in STAND_INS:
        if name not in without:
            os.symlink(os.path.join(BIN, name), os.path.join(stand_ins, name))
    shutil.rmtree(os.path.join(TREE, "build"), ignore_errors=True)
    environment = dict(os.environ, PATH=stand_ins + ":/usr/bin:/bin", FAULT=fault, STAND_INS=BIN, TMPDIR=temporary,
                       GPU_CHECK_SECONDS=seconds)
    environment.pop("CUDA_HOME", None)
    result = subprocess.run(["bash", os.path.join(TREE, "dev", "gpu_check.sh"), folder, *arguments], cwd=WORK,
                            env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
    parts = {match[2].strip(): (match[1].strip(), match[3]) for match in
             re.finditer(r"^(ok  |FAIL|skip) (.{22}) +\d+ s  (.*)$", result.stdout, re.M)}
    rows = []
    if os.path.exists(os.path.join(folder, "results.csv")):
        with open(os.path.join(folder, "results.csv"), encoding="utf-8", newline="") as file:
            rows = list(csv.reader(file))
    assert all(len(row) == 4 for row in rows), rows
    assert os.listdir(temporary) in ([], ["torch-calls"]), os.listdir(temporary)
    return result, parts, {(part, what): value for part, what, value, _ in rows}, folder


def expect(parts, part, verdict, remark=""):
    assert part in parts, f"{part}: not among {sorted(parts)}"
    assert parts[part][0] == verdict and remark in parts[part][1], f"{part}: {parts[part]}, expected {verdict} {remark}"


def test_all_is_well():
    result, parts, rows, folder = check(seconds="200")  # time for a second turn
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stderr == "", result.stderr
    assert {verdict for verdict, _ in parts.values()} == {"ok"}, parts
    for part in ("machine", "build", "kernels BF16", "kernels FP32", "test_gpt2 BF16", "test_gpt2 FP32",
                 "emulator BF16", "emulator FP32", "memcheck", "racecheck", "initcheck", "synccheck", "kernel times",
                 "training d12", "several GPUs", "PyTorch"):
        expect(parts, part, "ok")
    expect(parts, "emulator BF16", "ok", "2 hashes equal; within tolerance but with other bits: attention of")
    expect(parts, "kernel times", "ok", "adamw 82%, gelu 91%")
    assert sorted(os.listdir(folder)) == sorted(["summary.txt", "results.csv", "kernels.csv", "build.log", "tests.log",
                                                 "sanitizer.log", "train.log", "torch.log"]), os.listdir(folder)
    # 80000 MiB free: 1 + 0.4 * 128 GB and a gibibyte fit, 256 sequences do not. A step of B takes B / 8 ms.
    assert rows["training d12", "gpt2.c largest batch batch"] == "128", rows
    assert rows["training d12", "gpt2.c largest batch step"] == "16", rows
    assert rows["training d12", "gpt2.c largest batch speed"] == "8192000", rows
    assert rows["training d12", "gpt2.c largest batch planned memory"] == "52200000000", rows
    assert rows["training d12", "gpt2.c largest batch peak memory"] == str(8000 << 20), rows
    # 797,815,296 operations a token: 6535.7 TFLOP/s of 989.4.
    assert abs(float(rows["training d12", "gpt2.c largest batch mfu"]) - 660.6) < 0.1, rows
    # Each of two GPUs with 4 sequences takes half a millisecond.
    expect(parts, "several GPUs", "ok", "2 GPUs, the same weights in stages 0 to 3; ms a step: 0.5 0.5 0.5 0.5")
    assert rows["several GPUs", "stage 3 step"] == "0.5" and rows["several GPUs", "ranks"] == "2", rows
    # PyTorch has no room for 64: both are compared at 32, where ours takes 4 ms and PyTorch 30.
    assert rows["PyTorch", "ratio_to_torch"] == "7.500", rows
    assert rows["PyTorch", "PyTorch turn 2 batch"] == "32", rows
    assert rows["all", "failures"] == "0", rows
    with open(os.path.join(folder, "summary.txt"), encoding="utf-8") as file:
        summary = file.read()
    assert summary in result.stdout and "speed, PyTorch = 1" in summary and "7.500" in summary, summary


def test_failures_are_told_and_do_not_stop_the_rest():
    result, parts, rows, _ = check("kernels race other-bits train")
    assert result.returncode == 1, result.stdout
    expect(parts, "kernels BF16", "FAIL", "status 1; test_kernels: 3 passed, 1 failed, 0 skipped")
    expect(parts, "racecheck", "FAIL", "status 97")
    expect(parts, "emulator FP32", "FAIL", "other bits where they must be equal: encoder_forward")
    expect(parts, "training d12", "FAIL", "out of memory")
    expect(parts, "several GPUs", "FAIL", "one GPU alone: train_gpt2cu: out of memory")
    expect(parts, "PyTorch", "FAIL", "out of memory")
    for part in ("build", "test_gpt2 FP32", "kernel times", "memcheck", "synccheck"):
        expect(parts, part, "ok")
    assert rows["all", "failures"] == "8", rows  # kernels and emulator in both precisions

    for fault, message in (("other-weights", "stage 3: weights hash '8', '7' in stage 0"),
                           ("other-losses", "last loss 9.9 on 2 GPUs, 10.8 on one"),
                           ("rank-fails", "stage 2: status 1: train_gpt2cu: rank 1 hangs")):
        result, parts, rows, _ = check(fault)
        assert result.returncode == 1 and rows["all", "failures"] == "1", result.stdout
        expect(parts, "several GPUs", "FAIL", message)

    result, parts, rows, _ = check("no-bench nan")
    assert result.returncode == 1, result.stdout
    expect(parts, "build", "FAIL", "make: BF16 (status 1) FP32 (status 1)")
    expect(parts, "kernel times", "FAIL", "status 127")
    expect(parts, "training d12", "FAIL", "not every step has a finite loss")
    expect(parts, "memcheck", "ok")


def test_what_is_missing_is_skipped():
    result, parts, _, _ = check("torch-fails refuses one-gpu")
    assert result.returncode == 0, result.stdout
    expect(parts, "several GPUs", "skip", "one GPU here")
    expect(parts, "PyTorch", "skip", "the twin did not run: no kernel image")
    expect(parts, "initcheck", "skip", "it refuses: Error: Device not supported")
    expect(parts, "training d12", "ok")

    result, parts, _, _ = check("no-torch alone", without=["compute-sanitizer"])
    assert result.returncode == 0, result.stdout
    expect(parts, "several GPUs", "skip", "2 GPUs, but built without NCCL")
    expect(parts, "PyTorch", "skip", "no python3 with a PyTorch that sees the GPU")
    if not os.path.exists("/usr/bin/compute-sanitizer"):
        expect(parts, "sanitizer", "skip", "no compute-sanitizer here")


def test_time_limits():
    result, parts, _, _ = check("slow", seconds="22")
    expect(parts, "memcheck", "skip", "tests, then its time was up")  # how many it got through is the machine's affair
    remark = "" if parts["racecheck"][0] == "ok" else "no error in 0 tests, then its time was up"
    expect(parts, "racecheck", "skip" if remark else "ok", remark)  # and how much time that left
    assert result.returncode == 0, result.stdout
    result, parts, _, _ = check("hangs", seconds="6")
    expect(parts, "kernels BF16", "FAIL", "no end within its time limit; no closing line")
    assert result.returncode == 1, result.stdout


def test_bad_starts():
    for arguments, fault, message in (
            (("more",), "", "two folders"), (("--fast",), "", "no option '--fast'; see --help"),
            ((), "no-gpu", "nvidia-smi shows no GPU 0; see nvidia-smi and CUDA_VISIBLE_DEVICES")):
        result, parts, _, _ = check(fault, arguments=arguments)
        assert result.returncode == 1 and parts == {}, result.stdout
        assert message in result.stderr and result.stderr.count("\n") == 1, result.stderr


def test_emulated():
    """The whole flow with the real programs, where they are built."""
    programs = ["train_gpt2emu", "build/emu/test_kernels", "build/emu/bench_gpu"]
    missing = [program for program in programs if not os.path.exists(os.path.join(ROOT, program))]
    if missing:
        raise Skip(f"not built: {' '.join(missing)}")
    folder = tempfile.mkdtemp(prefix="out.", dir=WORK)
    result = subprocess.run(["bash", os.path.join(ROOT, "dev", "gpu_check.sh"), folder, "--emulate"], cwd=WORK,
                            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
    for part in ("build", "kernels BF16", "emulator BF16", "kernel times", "training tiny", "several GPUs"):
        assert re.search(rf"^ok   {part} ", result.stdout, re.M), result.stdout


if __name__ == "__main__":
    if sys.platform != "linux" or shutil.which("timeout") is None:
        print("test_gpu_check: 0 passed, 0 failed, 1 skipped")
        sys.exit(0)
    try:
        prepare()
        run("test_gpu_check", [test_all_is_well, test_failures_are_told_and_do_not_stop_the_rest,
                               test_what_is_missing_is_skipped, test_time_limits, test_bad_starts, test_emulated])
    finally:
        shutil.rmtree(WORK)
