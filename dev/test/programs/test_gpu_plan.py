"""What --plan tells about a step's time and about several GPUs: tables that documents take from it, and its sums. No
GPU, no NCCL and no MPI are needed."""
import glob
import os
import re
import sys

import pytest

import cli
from cli import planned_bytes
from gpu_program import PROGRAM, only_emulated, ran, refused
from tools import ROOT, text_of

sys.path[:0] = [os.path.join(ROOT, "dev"), os.path.join(ROOT, "dev", "bench")]
import plan_table  # noqa: E402 (its folder had to be named first)
import step_table  # noqa: E402


def plan(*arguments):
    return ran("--plan", "all", *arguments, CUDA_VISIBLE_DEVICES="")  # not for the GPU of this machine


@pytest.mark.long
def test_documents_have_these_tables():
    for name, text in plan_table.documents(PROGRAM).items():
        missing = [line for line in text.splitlines() if line not in plan_table.read(name).splitlines()]
        assert not missing, f"{name}: python3 dev/plan_table.py --write: {missing}"


def test_table_is_the_plan():
    """The memory that the table of stages shows is that of the plan of each stage."""
    for ranks in (2, 8):
        for stage in range(4):
            out = plan("-e", "d12", "-b", 4, "-np", ranks, "-z", stage)
            rows = out.split("\n--zero-stage", 1)[1]
            row = re.search(rf"^{stage} +(\d+) +([\d.]+) +(\d+) +(\d+) +([\d.]+) ", rows, re.M)
            assert planned_bytes(out) == int(row[1]) and row[2] == f"{int(row[1]) / 2**30:.2f}", (ranks, stage, out)
            assert row[5] == f"{(int(row[3]) + int(row[4])) / 1e9:.2f}", (ranks, stage, out)
            cli.check_memory_sum(out)


def test_one_gpu_shards_nothing():
    outs = [plan("-e", "d12", "-b", 4, "-z", stage) for stage in range(4)]
    assert len(set(outs)) == 1 and "--zero-stage" not in outs[0], outs


def test_faster_links_and_slower_gpus():
    def step(*arguments):
        return float(re.search(r"^3 .* ([\d.]+) s", plan("-np", 64, "-z", 3, *arguments), re.M).group(1))

    assert step("--link-speed", 10) > step("--link-speed", 100) >= step("--link-speed", 1000)
    alone = [kernels(plan("-b", 32, *gpu))["the step"][0] for gpu in
             (["--gpu", "a100"], ["--gpu", "h100"], [], ["--gpu", "b200"])]
    assert alone[0] > alone[1] == alone[2] > alone[3], alone


def test_says_what_the_link_is():
    for more, says in ((["--gpu", "RTX 4090"], "25.6 GB/s\nover the bus (PCIe) while"),
                       (["--gpu", "4090", "-pg", 1], "25.6 GB/s\nover the bus (PCIe) while"),
                       (["--gpu", "4090", "--link-speed", 25.6], "25.6 GB/s\nwhile"),
                       (["--gpu", "h100"], "360 GB/s\nwhile"), (["--gpu", "h100-pcie", "-pg", 1], "50 GB/s\nwhile")):
        out = plan("-e", "d12", "-b", 1, "-np", 2, *more)
        assert f"Assumed: a GPU sends {says} all send" in out, (more, out)


# ---- The kernels of a step ----


def kernels(out):
    """Name -> ms, calls, GB, GFLOP; the sum is "the step"."""
    rows = re.findall(r"^ +([\d.]+) +(\d+) +([\d.]+) +([\d.]+)  (?:memory|math|link|-) +(\S.*)$", out, re.M)
    return {name: tuple(map(float, numbers)) for *numbers, name in rows}


def test_kernels_add_up():
    """To the step, to its tokens a second and to what the tables of levels and stages say."""
    for more in ([], ["--fp8"], ["-r", 3], ["-ge", 2], ["-d", 4 * 4096], ["--head-rows", 1024, "--head-overlap"],
                 ["-np", 2, "-d", 4 * 4096, "-z", 2]):
        out = plan("-e", "d12", "-b", 4, *more)
        rows = kernels(out)
        step = rows.pop("the step")
        for i, sum_ in enumerate(step):
            parts = sum(row[i] for row in rows.values())
            digit = (1e-3, 1, 1e-3, 0.1)[i]  # the last one that is shown
            assert abs(parts - sum_) <= 0.5 * digit * (len(rows) + 1) * (i != 1), (more, i, parts, sum_)
        times = [row[0] for row in rows.values()]
        assert times == sorted(times, reverse=True) and times[0] > 0, out
        tokens, tokens_per_second = 4 * 4096 if "-d" in more else 4096, re.search(r"^predicted +(\d+) ", out, re.M)
        assert abs(float(tokens_per_second[1]) - tokens / step[0] * 1e3) <= 1e-3 * float(tokens_per_second[1]), out
        if "-z" in more:
            assert abs(float(re.search(r"^2 .* ([\d.]+) s", out, re.M)[1]) - 1e-3 * step[0]) <= 0.6e-3, out


def test_options_have_their_kernels():
    base = ["-e", "d12", "-b", 4, "-t", 1024]
    plain, again, fused, narrow = (kernels(plan(*base, *more)) for more in (
        ["-r", 0, "-ge", 0], ["-r", 1, "-ge", 0], ["-r", 0, "-ge", 2], ["-r", 0, "--fp8"]))
    assert plain["gelu_forward"][1] == 12 and again["gelu_forward"][1] == 23 and "gelu_forward" not in fused
    assert "gelu_backward" not in fused and fused["matmul_sum_rows"][1] == 24 == 2 * plain["matmul_sum_rows"][1]
    assert "fp8_quantize" in narrow and "gelu_forward" not in narrow and "fp8_quantize" not in plain
    assert narrow["matmul fc forward"][0] < plain["matmul fc forward"][0]
    assert "nccl not hidden" in kernels(plan(*base, "-np", 2)) and "add_checksum" not in plain
    assert kernels(plan(*base, "--head-rows", 1000))["matmul lm_head forward"][1] == 5


def test_rows_are_called_like_kernels():
    """But for the libraries' rows, each is the beginning of a kernel's name, or what a trace calls a memset."""
    names = []
    for path in glob.glob(os.path.join(ROOT, "llmc", "*", "*.cuh")):
        names += re.findall(r"\b(\w+)_kernel\(", text_of(path))
    for more in (["-r", 2], ["-r", 2, "--fp8"], ["-r", 3, "-ge", 2, "-np", 2]):
        for name in kernels(plan("-e", "d12", *more)):
            library = name == "the step" or name.split()[0] in ("matmul", "cudnn", "nccl", "fill")
            assert library or any(kernel.startswith(name) for kernel in names), name


def test_step_table_joins_the_rows():
    """With a trace in which every kernel takes twice its time: those of the libraries by many names."""
    out = plan("-e", "d12", "-b", 8, "-r", 2)
    rows = kernels(out)
    matmuls = [name for name in rows if name.startswith("matmul ")]
    step = rows.pop("the step")
    lines = ["kernel,calls,us_per_call,ms,percent,idle_before_us", f"(step),1,0,{2 * step[0]:.6f},0,0"]
    for i, (name, row) in enumerate(rows.items()):
        library = ["nvjet_hsh_128x256", "sm80_xmma_gemm_x", "cublasLt::splitKreduce"][i % 3]
        kernel = library if name in matmuls else name + "_mma" if "attention" in name else name
        lines.append(f"{kernel},{row[1]},0,{2 * row[0]:.6f},0,0")
    trace = cli.write("step.csv", "\n".join(lines) + "\n")
    table, joined = step_table.tables(trace, out, cli.path("no_kernels.csv"))
    assert {row.name for row in joined} == {"the step", "matmul", *rows} - set(matmuls), joined
    assert all(abs(row.ms / row.predicted - 2) < 5e-4 for row in joined) and " 2.00x " in table, joined


def test_no_time_without_training():
    out = plan("-e", "d12", "-x", 0)
    assert "On the GPU" in out and "predicted" not in out and "--zero-stage" not in out, out


def test_auto_predicts_what_plan_predicts():
    for more in ([], ["--fp8"], ["-np", 4, "-z", 1]):
        out = plan(*D12, *more, "--auto", "--gpu", "l4")
        B, level, time = re.search(r"^auto +--batch-size (\d+) --recompute (\d): .* ([\d.]+) ms a step", out,
                                   re.M).groups()
        same = plan(*D12, *more, "-b", B, "-r", level, "--gpu", "l4")
        assert kernels(same) == kernels(out), (more, B, level)
        assert float(time) == float(f"{kernels(same)['the step'][0]:.4g}"), (more, out)
        level_0, longer = (re.search(rf"^{r} .* ([\d.]+) ms", same, re.M) for r in (0, level))
        fast = kernels(plan(*D12, *more, "-b", B, "-r", 0, "--gpu", "l4"))["the step"][0]
        assert abs(kernels(same)["the step"][0] - fast - float(longer[1])) <= 2e-3 and float(level_0[1]) == 0, more


# ---- The summary ----


def test_in_short():
    """The last lines say in this order whether it fits, the largest micro-batch, the speed and the time of the run, as
    the tables do. Without "all" the plan has no buffers and no kernels."""
    base = ["-e", "d12", "-b", 4, "-d", 16 * 1024]
    for more, fits in ((["-x", 1000], "yes"), (["-x", 1000, "--gpu-memory", 4, "-r", 1], "no, .* missing")):
        short, out = ran("--plan", *base, *more, CUDA_VISIBLE_DEVICES=""), plan(*base, *more)
        lines = short.splitlines()
        summary = lines[lines.index(next(line for line in lines if line.startswith("In short"))):]
        assert out.splitlines()[-len(summary):] == summary and len(lines) <= 45 and not kernels(short), short
        assert not re.search(r"^(buffer|params|total|residual) ", short, re.M), short
        gib = "4" if "-r" in more else "79"
        patterns = [rf"In short, for one h100 with {gib} GiB \(assumed: --gpu, --gpu-memory\)",
                    rf"memory +(\S+ \w+); fits: {fits}; room: .*",
                    r"largest +--batch-size (\d+), of those that divide the step, with --recompute (\d)",
                    r"predicted +(\d+) tokens/s, [\d.]+% MFU, attention by .*",
                    r" +([\d.]+) ms a step of \S+ FLOPs on each GPU, (\S+) for 1000 steps"]
        assert len(summary) == len(patterns), summary
        _, memory, largest, speed, time = map(re.fullmatch, patterns, summary)
        assert re.search(rf"^memory +{memory[1]} on the GPU, planned$", short, re.M), short
        rows = gpu_rows(*base, *more)
        assert int(largest[1]) in {row[3][int(largest[2])] for row in rows if row[0] in ("80 GB", "--gpu-memory")}, rows
        step = kernels(out)["the step"][0]
        assert abs(float(time[1]) - step) <= 1e-3 * step and abs(float(speed[1]) * step - 16384e3) <= 16384, summary
        minutes, seconds = map(int, time[2].split(":"))
        assert abs(60 * minutes + seconds - step) <= 1, summary
    assert "the run's time follows from --steps" in plan(*base).splitlines()[-1]


def test_plans_for_the_gpu_here():
    """If its datasheet is known and --gpu names no other: its speed and its memory, but for what --gpu-memory says."""
    only_emulated()

    def short(*more, **environment):
        out = ran("--plan", "-e", "d12", "-b", 4, *more, **environment)
        return re.search(r"^In short, for one (.*)$\n^.*\n^.*\n^predicted +(\d+) ", out, re.M).groups()

    l4 = {"EMU_NAME": "NVIDIA L4", "EMU_MEMORY": "23034"}
    same = short("--gpu", "l4")
    assert same[0] == "l4 with 22 GiB (assumed: --gpu, --gpu-memory)"
    assert short(**l4) == ("l4 with 22.49 GiB (as here, or another: --gpu, --gpu-memory)", same[1])
    assert short("--gpu-memory", 8, **l4)[0].startswith("l4 with 8 GiB ")
    for more, environment in (([], {}), ([], dict(l4, EMU_NO_GPU="1")), (["--gpu", "h100"], l4),
                              (["--fp8"], {"EMU_NAME": "NVIDIA A100-SXM4-80GB"})):
        assert short(*more, **environment)[0] == "h100 with 79 GiB (assumed: --gpu, --gpu-memory)", (more, environment)


# ---- The levels of --recompute, and --auto ----

D12 = ["-e", "d12", "-d", 16 * 1024, "--head-rows", 8192]  # of which the GPU would else decide
SMALL = ["--gpu-memory", 8]  # as all GPUs that --auto plans for here: cuBLAS has less to work in
RESERVE = 3 << 29  # of one GPU that is only supposed: a GiB, and half of one for CUDA's context


def test_levels_are_those_of_the_plan():
    """The table of levels has the bytes that each level's plan has, the best bargain first, and level 0 before all."""
    out = plan(*D12, "-b", 4)
    rows = re.findall(r"^([0-3]) +(\d+) +([\d.]+) +([\d.]+) +([\d.]+) ms \( *([\d.]+)%\) +([\d.]+)$", out, re.M)
    assert [row[0] for row in rows][0] == "0" and sorted(row[0] for row in rows) == ["0", "1", "2", "3"], out
    for level, bytes_, gib, gib_saved, ms, percent, bargain in rows:
        saved = int(rows[0][1]) - int(bytes_)
        assert int(bytes_) == planned_bytes(plan(*D12, "-b", 4, "-r", level)), (level, out)
        assert (gib, gib_saved) == (f"{int(bytes_) / 2**30:.2f}", f"{saved / 2**30:.2f}"), out
        if level != "0":
            assert abs(float(bargain) - saved / 2**20 / float(ms)) <= 0.01 * float(bargain) and float(percent) > 0
    bargains = [float(row[6]) for row in rows[1:]]
    assert bargains == sorted(bargains, reverse=True) and bargains[-1] > 0.0, out


def automatic(memory, *arguments):
    """What --auto chooses for a GPU of so many bytes: batch size, level, choices that fit, and the plan's total."""
    out = plan(*arguments, "--auto", "--gpu-memory", repr(memory / 2**30))
    found = re.search(r"^auto +--batch-size (\d+) --recompute (\d): .*, of (\d+) choices of (\d+) that fit", out, re.M)
    return (*(int(word) for word in found.groups()), planned_bytes(out))


def test_auto_fits_to_the_byte():
    """As many choices fit as --auto says, and so does the one that it takes; with a byte less it takes another one."""
    totals = {(B, r): planned_bytes(plan(*D12, *SMALL, "-b", B, "-r", r)) for B in (1, 2, 4, 8, 16) for r in range(4)}
    budget = 4 << 30
    B, level, fitting, count, taken = automatic(budget + RESERVE, *D12)
    assert count == 20 and fitting == sum(bytes_ <= budget for bytes_ in totals.values()), (budget, fitting)
    assert taken == totals[B, level] <= budget, (budget, B, level, taken)
    assert automatic(taken + RESERVE, *D12)[:2] == (B, level) != automatic(taken - 1 + RESERVE, *D12)[:2]


def test_auto_keeps_what_is_given():
    memory = 8 << 30
    assert automatic(memory, *D12, "-r", 2)[1:4:2] == (2, 5)
    assert automatic(memory, "-e", "d12", "-b", 3)[0::3] == (3, 4)
    assert automatic(1 << 40, *D12, "-np", 2)[3] == 16  # 8 sequences on each: four batches, four levels
    assert automatic(1 << 40, *D12)[:3] == (16, 0, 20)


def test_auto_refuses():
    for arguments, says in ((["--auto", "-b", 4, "-r", 1], "both are given"),
                            (["--auto", "-d", 1000], "is not a multiple of B x T = 1024"),
                            (["--auto", "-b", 4, "--gpu-memory", 1], "nothing fits: --batch-size 4 --recompute 3")):
        refused("--plan", "-e", "d12", *arguments, says=[says])
    more_gpus = "use more GPUs with --zero-stage 3, or choose a smaller model"  # what helps, and nothing else
    for arguments, helps in ((["-z", 3], more_gpus), (["-np", 4, "-z", 3], more_gpus), (["-b", 1], more_gpus),
                             (["-np", 4, "-z", 1], "raise --zero-stage, " + more_gpus),
                             (["-b", 4], "lower --batch-size, " + more_gpus),
                             (["--gpu-memory", 3], "raise --gpu-memory, " + more_gpus)):
        refused("--plan", "--auto", "--gpu", "l4", "-e", "gpt3:c12288", "-d", 1 << 14, *arguments,
                says=[" missing; " + helps + "\n"])


def gpu_rows(*arguments):
    """The table of GPUs: the name of each, its GiB, whether the run fits, and the largest micro-batch at each level."""
    out = plan(*arguments)
    rows = re.findall(r"^([-\w ]+) \(([\d.]+) GiB\) +(yes|no, .* missing|with .*?)((?: +\d+)*) *$", out, re.M)
    return [(name, float(gib), fits, [int(word) for word in largest.split()]) for name, gib, fits, largest in rows]


def test_the_usual_gpus():
    """--gpu-memory alone has one row. --gpu has a row of its own beside the others."""
    usual = [("24 GB", 22), ("40 GB", 39), ("80 GB", 79), ("141 GB", 139)]
    assert [row[:2] for row in gpu_rows(*D12, "-b", 4)] == usual
    assert [row[:2] for row in gpu_rows(*D12, "-b", 4, "--gpu", "b200")] == [("b200", 178), *usual]
    assert [row[:2] for row in gpu_rows(*D12, "-b", 4, "--gpu", "a100")] == [("a100", 79), *usual[:2], usual[3]]
    assert gpu_rows(*D12, "-b", 4, "--gpu", "a100-40")[0][:2] == ("a100-40gb", 39)
    assert [row[:2] for row in gpu_rows(*D12, "-b", 4, "--gpu-memory", 5.5)] == [("--gpu-memory", 5.5)]
    assert [row[2:] for row in gpu_rows("-e", "d48", "-x", 0)] == [("yes", [])] * 4
    run = ["-e", "d24", "-b", 16, "-r", 1]  # a row says what a plan for this memory alone says
    assert [row[2:] for row in gpu_rows(*run)] == [gpu_rows(*run, "--gpu-memory", gib)[0][2:] for _, gib in usual]


def test_a_run_fits_to_the_byte():
    """Also with the level that the run then takes; with a byte less it says what is missing."""
    taken = [planned_bytes(plan(*D12, *SMALL, "-b", 4, "-r", level)) + RESERVE for level in range(4)]
    for level in range(4):
        rows = [gpu_rows(*D12, "-b", 4, "--gpu-memory", repr((taken[level] - less) / 2**30), "-r", level)[0][2]
                for less in (0, 1, 3 << 20)]
        assert rows == ["yes", "no, 1 B missing", "no, 3.00 MiB missing"], (level, rows)
    run = ["-e", "d48", "-b", 16]
    for name, gib, fits, _ in gpu_rows(*run):
        level = re.search(r"--recompute (\d)", fits)
        out = plan(*run, "--gpu-memory", gib)
        assert fits != "yes" or "--recompute 0: the lowest level" in out, (name, out)
        assert level is None or f"--recompute {level[1]}: the lowest level" in out, (name, out)


def test_the_largest_batch_fits_and_no_more():
    """At each level. Where a step is given, the largest that divides it."""
    for memory, more in ((8, ["--head-rows", 8192]), (40, []), (8, ["-np", 2, "-z", 3])):
        run = ["-e", "d12", "--gpu-memory", memory, *more]
        budget = (memory << 30) - RESERVE - (2 << 30) * ("-np" in more)
        _, _, _, largest = gpu_rows(*run)[0]
        for level, B in enumerate(largest):
            fits, does_not = (planned_bytes(plan(*run, "-b", b, "-r", level)) for b in (B, B + 1))
            assert fits <= budget < does_not, (run, level, B)
        divisors = gpu_rows(*run, "-d", 720 * 1024)[0][3]
        sequences = 720 // (2 if "-np" in more else 1)
        assert divisors == [max(b for b in range(1, B + 1) if sequences % b == 0) for B in largest], (divisors, largest)
    assert gpu_rows("-e", "d48", "--gpu-memory", 4)[0][3] == [0, 0, 0, 0]


def test_workspace_of_a_large_gpu():
    """From 40 GB on cuBLAS has 128 MiB to work in, else 32, which is said; nothing else depends on the GPU's size."""
    large, small, above = (plan(*D12, "-b", 4, *memory) for memory in
                           ((), ("--gpu-memory", 37), ("--gpu-memory", 38)))
    rows = [int(re.search(r"^cublas +\(\d+\) +f32 +(\d+) ", out, re.M).group(1)) for out in (large, small, above)]
    assert rows == [128 << 20, 32 << 20, 128 << 20], rows
    assert planned_bytes(large) - planned_bytes(small) == 96 << 20, (large, small)
    assert "Assumed: the GPU is h100 with 79 GiB (--gpu, --gpu-memory). From 40 GB on" in large, large
    assert "with 37 GiB" in small, small


def head_rows(*arguments):
    """Of the plan: rows, and bytes in all."""
    out = plan(*D12[:4], *arguments)
    return int(re.search(r"^logits +\((?:2, )?(\d+), \d+\) ", out, re.M).group(1)), planned_bytes(out)


def test_fewer_head_rows_take_less_memory():
    few, many, both = (head_rows("-b", 16, "-r", 3, *more)[1] for more in
                       (["--head-rows", 1024], [], ["--head-overlap", "--head-rows", 8192]))
    assert few < many <= both, (few, many, both)


def test_many_head_rows_where_all_else_fits():
    """16384 at a time if the model then fits without recomputation, to the byte, else 8192, whatever the level of
    recompute and the stage of sharding, on which no bit may depend. What is free does not count: test_gpu_auto.py."""
    rows, whole = head_rows("-b", 16, "-r", 0, "--head-rows", 16384, *SMALL)
    assert rows == 16384
    for memory, want in ((whole + RESERVE, 16384), (whole + RESERVE - 1, 8192), (1 << 30, 8192)):
        gib = repr(memory / 2**30)
        for more in ([], ["-r", 3], ["-r", 0], ["-r", 1, "-z", 3]):
            assert head_rows("-b", 16, "--gpu-memory", gib, *more)[0] == want, (memory, more)
    assert head_rows("-b", 16, "--auto", "--gpu-memory", 79)[0] == 16384
    assert head_rows("-b", 16, "--head-rows", 4096)[0] == 4096
    assert head_rows("-b", 8)[0] == 8192  # all that there are
