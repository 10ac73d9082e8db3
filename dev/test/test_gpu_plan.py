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


# ---- The levels of --recompute, and --auto ----

D12 = ["-e", "d12", "-d", 16 * 1024, "--head-rows", 8192]  # of which the GPU would else decide
RESERVE = 3 << 29  # of one GPU that is only supposed: a GiB, and half of one for CUDA's context


def total(out):
    return int(re.search(r"On the GPU\n.*?total +(\d+) bytes", out, re.S).group(1))


def levels_are_those_of_the_plan():
    """The table of levels has the bytes that each level's plan has, the best bargain first, and level 0 before all."""
    out = plan(*D12, "-b", 4)
    rows = re.findall(r"^([0-3]) +(\d+) +(\d+) +([\d.]+) ms \( *([\d.]+)%\) +([\d.]+)$", out, re.M)
    assert [row[0] for row in rows][0] == "0" and sorted(row[0] for row in rows) == ["0", "1", "2", "3"], out
    for level, bytes_, saved, ms, percent, bargain in rows:
        assert int(bytes_) == total(plan(*D12, "-b", 4, "-r", level)), (level, out)
        assert int(saved) == int(rows[0][1]) - int(bytes_), out
        if level != "0":
            assert abs(float(bargain) - int(saved) / 2**20 / float(ms)) <= 0.01 * float(bargain) and float(percent) > 0
    bargains = [float(row[5]) for row in rows[1:]]
    assert bargains == sorted(bargains, reverse=True) and bargains[-1] > 0.0, out


def lowest_level_is_the_default():
    """Without -r: the first level that fits, to the byte; where none does, the last one."""
    def default(memory):
        out = plan(*D12, "-b", 4, "--gpu-memory", repr(memory / 2**30))
        return int(re.search(r"^auto +--recompute (\d): ", out, re.M).group(1)), total(out)

    totals = [total(plan(*D12, "-b", 4, "-r", level)) for level in range(4)]
    for level, bytes_ in enumerate(totals):
        assert default(bytes_ + RESERVE) == (level, bytes_), (level, totals)
        assert default(bytes_ - 1 + RESERVE)[0] == min(level + 1, 3), (level, totals)
    assert not re.search("^auto ", plan(*D12, "-b", 4, "-r", 1, "-ge", 0), re.M)


def automatic(memory, *arguments):
    """What --auto chooses for a GPU of so many bytes: batch size, level, choices that fit, and the plan's total."""
    out = plan(*arguments, "--auto", "--gpu-memory", repr(memory / 2**30))
    found = re.search(r"^auto +--batch-size (\d+) --recompute (\d): .*, of (\d+) choices of (\d+) that fit", out, re.M)
    return (*(int(word) for word in found.groups()), total(out))


def auto_fits_to_the_byte():
    """All choices by hand: as many fit as --auto says, and so does the one that it takes; with a byte less it takes
    another one."""
    totals = {(B, r): total(plan(*D12, "-b", B, "-r", r)) for B in (1, 2, 4, 8, 16) for r in range(4)}
    for budget in (min(totals.values()), 4 << 30, 6 << 30):
        for _ in range(2):
            B, level, fitting, count, taken = automatic(budget + RESERVE, *D12)
            assert count == 20 and fitting == sum(bytes_ <= budget for bytes_ in totals.values()), (budget, fitting)
            assert taken == totals[B, level] <= budget, (budget, B, level, taken)
            if taken > min(totals.values()):
                assert automatic(taken + RESERVE, *D12)[:2] == (B, level), (B, level)
            budget = taken - 1  # a byte less than the choice takes
            if budget < min(totals.values()):
                break


def auto_keeps_what_is_given():
    memory = 8 << 30
    assert automatic(memory, *D12, "-r", 2)[1:4:2] == (2, 5)
    assert automatic(memory, "-e", "d12", "-b", 3)[0::3] == (3, 4)
    assert automatic(1 << 40, *D12, "-np", 2)[3] == 16  # 8 sequences on each: four batches, four levels
    assert automatic(1 << 40, *D12)[:3] == (16, 0, 20)


def auto_refuses():
    def refused(status, *arguments):
        result = subprocess.run([PROGRAM, "--plan", "-e", "d12", *map(str, arguments)], capture_output=True, text=True,
                                timeout=120)
        assert result.returncode == 1 and re.fullmatch(r"train_gpt2cu: [^\n]+\n", result.stderr), result
        assert status in result.stderr, (status, result.stderr)

    refused("both are given", "--auto", "-b", 4, "-r", 1)
    refused("--total-batch (-d)", "--auto")
    refused("--steps 0", "--auto", "-b", 4, "-x", 0)
    refused("--gpu-memory: does nothing", "--gpu-memory", 4, "-x", 0)
    refused("is not a multiple of B x T = 1024", "--auto", "-d", 1000)
    refused("nothing fits: --batch-size 1 --recompute 3 takes the least GPU memory", "--auto", "-d", 4096,
            "--gpu-memory", 2)
    refused("nothing fits: --batch-size 4 --recompute 3", "--auto", "-b", 4, "--gpu-memory", 1)


def head_rows(*arguments):
    """Of the plan: rows, and bytes in all."""
    out = plan(*D12[:4], *arguments)
    return int(re.search(r"^logits +\((?:2, )?(\d+), \d+\) ", out, re.M).group(1)), total(out)


def fewer_head_rows_take_less_memory():
    few, many, both = (head_rows("-b", 16, "-r", 3, *more)[1] for more in
                       (["--head-rows", 1024], [], ["--head-overlap", "--head-rows", 8192]))
    assert few < many <= both, (few, many, both)


def many_head_rows_where_all_else_fits():
    """16384 at a time where the GPU then need recompute nothing, to the byte, else 8192: whatever the level of recompute
    and the stage of sharding, on which no bit may depend. What is free does not count: test_gpu_auto.py."""
    rows, whole = head_rows("-b", 16, "-r", 0, "--head-rows", 16384)
    assert rows == 16384
    for memory, want in ((whole + RESERVE, 16384), (whole + RESERVE - 1, 8192), (1 << 30, 8192)):
        gib = repr(memory / 2**30)
        for more in ([], ["-r", 3], ["-r", 0], ["-r", 1, "-z", 3]):
            assert head_rows("-b", 16, "--gpu-memory", gib, *more)[0] == want, (memory, more)
    assert head_rows("-b", 16, "--auto", "--gpu-memory", 79)[0] == 16384
    assert head_rows("-b", 16, "--head-rows", 4096)[0] == 4096
    assert head_rows("-b", 8)[0] == 8192  # all that there are


if __name__ == "__main__":
    if not os.path.exists(PROGRAM):
        sys.exit(f"{PROGRAM}: not built (make train_gpt2emu)")
    harness.run("gpu_plan", [readme_has_this_table, table_is_the_plan, one_gpu_shards_nothing,
                             more_gpus_take_less_memory_each, faster_links_and_slower_gpus,
                             levels_are_those_of_the_plan, lowest_level_is_the_default,
                             auto_fits_to_the_byte, auto_keeps_what_is_given,
                             auto_refuses, fewer_head_rows_take_less_memory, many_head_rows_where_all_else_fits])
