"""dev/gpu_check.sh with stand-ins for nvidia-smi, make, nsys, PyTorch and the programs; then with emulated programs."""
import os
import re
import shutil
import subprocess
import tempfile

import pytest

from tools import ROOT, WORK, stand_ins

pytestmark = pytest.mark.long
# Each stand-in is a shell script. The words in the variable FAULT make some of them misbehave.
TRAINER = """
    options=$*
    while [ $# -gt 0 ]; do
        case $1 in -b) B=$2 ;; -x) steps=$2 ;; -z) stage=$2 ;; --train-data) data=$2 ;; --fp8) bits=$2 ;;
            --process-rank) rank=$2 ;; esac
        shift
    done
    [ "$(od -An -N12 -tu4 "$data" | tr -s ' ') $(wc -c <"$data")" = " 20240520 1 8388608 16778240" ] || exit 1
    is hangs && [ "$stage" = 2 ] && sleep 60
    is old && [ "$bits" = 1 ] && { echo "train_gpt2cu: --fp8: 8-bit matrix multiplies need 8.9" >&2; exit 1; }
    is small && [ $B = 16 ] && { echo "train_gpt2cu: memory plan: needs 70 GiB of GPU memory" >&2; exit 1; }
    is breaks && [[ $options = *muon* ]] && { echo "train_gpt2cu: no" >&2; exit 1; }
    for i in $(seq $steps); do
        ms=$((B * 100)).25; [ $i -gt 3 ] || ms=9999.00
        echo "step $i/$steps | loss 10.8 | norm 1 | lr 3e-4 | $ms ms | 55 tok/s | 41% of peak | 0:01 left"
    done
    hash=7; is other && [ "$stage" = 3 ] && hash=8
    is host && [[ $options = *offload* ]] && hash=8
    [ "${rank:-0}" != 0 ] || echo "weights hash $hash" """
STAND_INS = {
    "nvidia-smi": """
        case "$*" in
            -L) echo "GPU 0: H100 (UUID: GPU-1)"; is mig && { echo "  MIG 1g.10gb Device 0: (UUID: MIG-1)"; exit; }
                for i in 1 2; do echo "GPU $i: H100 (UUID: GPU-2)"; done ;;
            *) is mig && echo "H100, [N/A], [N/A]" || echo "NVIDIA H100 80GB HBM3, 580.1, 81559 MiB" ;;
        esac""",
    "nvcc": 'echo "Cuda compilation tools, release 13.0, V13.0.88"',
    "make": """
        for goal in "$@"; do
            case $goal in *test_kernels) mkdir -p build/cuda; cp "$STAND_INS/tests" $goal ;;
                test_*cu) cp "$STAND_INS/tests" $goal ;; train_*cu) cp "$STAND_INS/trainer" $goal ;; esac
        done""",
    "nsys": 'printf "%s\\n" "[6/8] Executing cuda_gpu_kern_sum" "" " 12.0 gelu_forward_kernel" "" "[7/8] after"',
    "python3": """
        [ "$1" = -c ] && { is no-torch && { echo "No module named torch"; exit 1; }; echo "2.9.0 on H100"; exit; }
        [[ "$*" = *"--batch-size 128"* || "$*" = *"--batch-size 32"* ]] && { echo "out of GPU memory"; exit 1; }
        for i in 1 2 3 4 5; do echo "step $i/5 | loss 1 | norm 1 | lr 1 | 77.00 ms | 5 tok/s | 0:00 left"; done""",
    "tests": """
        is terms && [ "$1" = terms ] && { echo "FAIL terms"; echo "test_kernels: 1 passed, 1 failed"; exit 1; }
        echo "test_kernels: 2 passed, 0 failed, 0 skipped" """,
    "trainer": TRAINER}
# These run the emulated programs, on two GPUs: a tiny model, batches of a sixteenth, and the shortest group of tests.
EMULATED = {
    "nvidia-smi": "echo 'GPU 0: a'; echo 'GPU 1: b'",
    "make": STAND_INS["make"],
    "tests": f'cd {ROOT} && exec build/emu/gpu_tests "${{1:-gelu}}"',
    "trainer": f"""
        while [ $# -gt 0 ]; do
            case $1 in
                --init) options+=(--layers 1 --heads 1 --channels 32 --context 32) ;;
                --train-data) options+=($1 {ROOT}/LICENSE) ;;
                --seq-len) options+=($1 32) ;;
                -b) options+=($1 $((($2 + 15) / 16))) ;;
                *) options+=($1 $2) ;;
            esac
            shift 2
        done
        exec {ROOT}/train_gpt2emu "${{options[@]}}" """}


def check(fault="", scripts=STAND_INS, **environment):
    """Runs the script in a tree with stand-ins -> (its result, {part: (verdict, remark)}, its folder)."""
    tree, folder = tempfile.mkdtemp(dir=WORK), tempfile.mkdtemp(dir=WORK)
    os.mkdir(os.path.join(tree, "dev"))
    shutil.copy(os.path.join(ROOT, "dev/gpu_check.sh"), os.path.join(tree, "dev"))
    programs = stand_ins({name: '#!/bin/bash\nis() { [[ " $FAULT " = *" $1 "* ]]; }\n' + script + "\n"
                          for name, script in scripts.items()}, only=())
    environment = dict(os.environ, PATH=f"{programs}:/usr/bin:/bin", FAULT=fault, STAND_INS=programs, **environment)
    environment.pop("CUDA_VISIBLE_DEVICES", None)
    result = subprocess.run([os.path.join(tree, "dev", "gpu_check.sh"), folder], cwd=WORK, env=environment,
                            stdin=subprocess.DEVNULL, text=True, capture_output=True, timeout=300)
    with open(os.path.join(folder, "results.md"), encoding="utf-8") as file:
        table = file.read()
    assert result.stdout == table and result.stderr == "", result.stderr
    rows = re.findall(r"^\| (.*?) \| (ok|FAIL|skip) \| \d+ s \| (.*) \|$", table, re.M)
    assert table.count("\n| ") == len(rows) + 1, table  # and the head
    return result, {name: (verdict, remark) for name, verdict, remark in rows}, folder


def verdicts(parts, wanted):
    return {name for name, (verdict, _) in parts.items() if verdict == wanted}


CARD = "on NVIDIA H100 80GB HBM3, 580.1, 81559 MiB\n\n3 GPUs, Cuda compilation tools, release 13.0, V13.0.88, 20"
CASES = (  # what goes wrong, the head, the parts that fail, the parts that are skipped
    ("", CARD, set(), {"PyTorch d12, batch 128", "PyTorch d48, batch 32"}),
    ("terms other host breaks no-torch", CARD, {"all terms of sums", "weights on 1", "weights on 2", "weights on 3",
                                                "Muon on 3, --fp8 0", "Muon on 3, --fp8 1"}, {"PyTorch"}),
    # One GPU has no other stages.
    ("old other small mig no-torch", "on a MIG slice of H100, [N/A], [N/A]\n\n1 GPUs", set(), {
        "Muon on 1, --fp8 1", "d12, batch 64, --fp8 1", "d48, batch 16, --fp8 0", "d48, batch 16, --fp8 1",
        "llama:1B, batch 16, --fp8 0", "llama:1B, batch 16, --fp8 1", "PyTorch"}))


@pytest.mark.parametrize("fault, head, failed, skipped", CASES)
def test_what_fails_or_is_missing_does_not_stop_the_rest(fault, head, failed, skipped):
    result, parts, folder = check(fault)
    assert (verdicts(parts, "FAIL"), verdicts(parts, "skip")) == (failed, skipped), result.stdout
    assert result.returncode == (len(failed) > 0) and head in result.stdout, result.stdout
    assert parts["d12, batch 64, --fp8 0"] == ("ok", "6400.25 ms, 55 tok/s, 41% of peak"), parts
    with open(os.path.join(folder, "kernels.txt"), encoding="utf-8") as file:
        assert "gelu_forward_kernel" in file.read()


def test_time_limits():
    result, parts, _ = check("hangs no-torch", GPU_CHECK_SECONDS="8")
    assert result.returncode == 1 and re.match(r"no end within \d s$", parts["d12 on 2, stage 2"][1]), parts
    assert parts["d12, batch 64, --fp8 0"] == ("skip", "no time left"), parts


def test_emulated():
    """The real programs, where they are built."""
    if not all(os.path.exists(os.path.join(ROOT, name)) for name in ("train_gpt2emu", "build/emu/gpu_tests")):
        pytest.skip("not built: train_gpt2emu, build/emu/gpu_tests")
    result, parts, _ = check(scripts=EMULATED)
    assert result.returncode == 0 and verdicts(parts, "skip") <= {"kernels' times by nsys", "PyTorch"}, result.stdout
    ranks = [f"d12 on {count}, stage {stage}" for count in (1, 2) for stage in range(4 if count > 1 else 1)]
    ranks += ["all terms of sums", "d12 on 1, --offload all", "Muon on 2, --fp8 1", "llama:1B, batch 16, --fp8 1"]
    assert set(ranks) <= verdicts(parts, "ok"), result.stdout
