"""What --plan tells about several GPUs: README's table of it, and its sums. No GPU, no NCCL and no MPI are needed."""
import os
import re
import subprocess
import sys

import harness

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROGRAM = os.path.join(ROOT, os.environ.get("TRAIN_GPT2CU", "train_gpt2emu"))
sys.path.insert(0, os.path.join(ROOT, "dev"))
import plan_table  # noqa: E402 (its folder had to be named first)


def plan(*arguments):
    command = [PROGRAM, "--plan", *(str(argument) for argument in arguments)]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=120).stdout


def readme_has_this_table():
    with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as file:
        lines = file.read().splitlines()
    missing = [line for line in plan_table.table(PROGRAM) if line not in lines]
    assert not missing, missing


def table_is_the_plan():
    """The memory that the table of stages shows is that of the plan of each stage."""
    for ranks in (1, 2, 8):
        for stage in range(4):
            out = plan("-e", "d12", "-b", 4, "-np", ranks, "-z", stage)
            total = re.search(r"On the GPU\n.*?total +(\d+) bytes", out, re.S).group(1)
            row = re.search(rf"^{stage} +(\d+) ", out.split("--zero-stage", 1)[1], re.M).group(1)
            assert total == row, (ranks, stage, total, row)


def one_gpu_shards_nothing():
    rows = plan_table.stages(PROGRAM, "d12", 1024, 4096, 1, 4)
    assert len(set(rows)) == 1 and rows[0][1] == 0, rows


def more_gpus_take_less_memory_each():
    for stage in (1, 2, 3):
        memory = [plan_table.stages(PROGRAM, "d48", 1024, 524288, gpus, 1)[stage][0] for gpus in (2, 8, 64)]
        assert memory == sorted(memory, reverse=True) and memory[0] > memory[2], (stage, memory)


def faster_links_and_slower_gpus():
    def step(*arguments):
        return float(re.search(r"^3 .* ([\d.]+) s", plan("-np", 64, "-z", 3, *arguments), re.M).group(1))

    assert step("--link-speed", 10) > step("--link-speed", 100) >= step("--link-speed", 1000)
    assert step("--gpu-tflops", 100) > step("--gpu-tflops", 1000)


if __name__ == "__main__":
    if not os.path.exists(PROGRAM):
        sys.exit(f"{PROGRAM}: not built (make train_gpt2emu)")
    harness.run("gpu_plan", [readme_has_this_table, table_is_the_plan, one_gpu_shards_nothing,
                             more_gpus_take_less_memory_each, faster_links_and_slower_gpus])
