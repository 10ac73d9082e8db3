"""What the GPU trainer does with its options, with sizes its kernels cannot do, without a GPU, with too little memory:
the emulated program (make train_gpt2emu; TRAIN_GPT2EMU names another), or the real one where TRAIN_GPT2EMU=./train_gpt2cu
and a GPU is there. What it shares with the CPU trainer is tested there (test_options.py, test_faults.py).
"""
import os
import re
import signal
import sys
import time

PROGRAM = os.environ.get("TRAIN_GPT2EMU", "./train_gpt2emu")
if not os.path.exists(PROGRAM):
    print(f"skip gpu_options: everything: no {PROGRAM} here (make train_gpt2emu)")
    print("gpu_options: 0 passed, 0 failed, 1 skipped")
    sys.exit(0)
CPU_PROGRAM = os.path.abspath(os.environ.get("TRAIN_GPT2", "./train_gpt2"))
os.environ["TRAIN_GPT2"] = PROGRAM

import cli  # noqa: E402
import harness  # noqa: E402
from cli import (CONFIG, FOLDER, QUIET, checkpoints, config, finish, losses, make_params, model, new_folder, path, ran,
                 sample_of, start, text_file, val_losses, weights_hash)  # noqa: E402

EMULATED = PROGRAM.endswith("emu")
TEXT = text_file()
SHAPE = ["--layers", "2", "--heads", "2", "--channels", "16", "--context", "16"]
RUN = ["-i", TEXT, *SHAPE, "-t", "16", "-b", "3"]  # B*T = 48: no multiple of any block
FP32 = False  # set in main, from what the program says of itself


def environment(**variables):
    return dict(cli.ENVIRONMENT, **variables)


def refused(*arguments, says=(), **keywords):
    """A run that must end with status 1 and one line on stderr that holds all of `says`."""
    out, err = finish(start(*arguments, **keywords), 1, arguments)
    assert re.fullmatch(r"train_gpt2cu: [^\n]+\n", err), f"{arguments}: stderr is not one line: {err!r}"
    for text in says:
        assert text in err, f"{arguments}: {text!r} is not in {err!r}"
    return out


def only_emulated():
    if not EMULATED:
        raise harness.Skip("the emulator's switches do nothing on hardware")


# ---- What is refused before the GPU is opened ----


def help_text():
    out = ran("--help")
    for text in ("Usage: train_gpt2cu", "--recompute", "--gpu-log-every", "-ge", "GPU"):
        assert text in out, text
    assert re.match(r"train_gpt2cu .*\d", ran("--version"))


def options_of_the_cpu_trainer():
    refused(*RUN, "--no-kv-cache", says=["--no-kv-cache", "option of the CPU trainer (train_gpt2)"])


def options_of_several_processes():
    for option, value in (("-pn", 2), ("-pr", 1), ("-pi", "tcp"), ("-ps", "10.0.0.1"), ("-pf", "/tmp")):
        refused(*RUN, option, value, says=["several processes", "this version cannot"])


def options_of_the_other_precision():
    if FP32:
        refused(*RUN, "-w", 0, says=["--master-weights (-w)", "bf16"])
        ran(*RUN, *QUIET, "-x", 1, "-f", 0)
    else:
        refused(*RUN, "-f", 0, says=["--tf32 (-f)", "PRECISION=FP32"])
        ran(*RUN, *QUIET, "-x", 1, "-w", 0)


def sizes_that_kernels_cannot_do():
    base = ["-i", TEXT, "--layers", 1, "--context", 16, "-t", 16]
    refused(*base, "--channels", 12, "--heads", 2, says=["12 channels", "multiple of 8", "train_gpt2 takes any"])
    refused(*base, "--channels", 512, "--heads", 1, says=["heads of 512 channels", "up to 256"])
    refused(*base, "--channels", 65536, "--heads", 512, says=["65536 channels"])
    refused(*base[:-1], 17, "--channels", 16, "--heads", 2, says=["--seq-len (-t)", "17 tokens"])


# ---- Machines without what it takes ----


def no_gpu():
    only_emulated()
    out = refused(*RUN, "-x", 1, "-o", path("nothing"), says=["no GPU", "nvidia-smi", "train_gpt2 runs on the CPU"],
                  env=environment(EMU_NO_GPU="1"))
    assert "step " not in out, out


def plan_needs_no_gpu():
    only_emulated()
    out = ran(*RUN, "--plan", env=environment(EMU_NO_GPU="1"))
    for text in ("On the GPU", "pinned", "On the host", "total", "logits"):
        assert text in out, (text, out)


def too_little_memory():
    only_emulated()
    refused(*RUN, "-x", 1, says=["memory plan", "GPU memory", "--batch-size", "--recompute", "--plan"],
            env=environment(EMU_MEMORY="8"))


def memory_is_what_was_planned():
    """Recomputing takes less; the plan and the run name the same number."""
    def planned(*arguments):
        return re.search(r"memory +([\d.]+ [KMG]iB) on the GPU, planned", ran(*RUN, *QUIET, *arguments)).group(1)

    def total(level):
        out = ran("-i", TEXT, *SHAPE, "-t", 16, "-b", 16, "--recompute", level, "--plan")
        return int(re.search(r"On the GPU\n.*?total +(\d+) bytes", out, re.S).group(1))

    assert planned("-x", 1) == planned("-x", 1, "--plan")
    totals = [total(level) for level in range(4)]
    assert totals == sorted(totals, reverse=True) and totals[0] > totals[3], totals


# ---- What a run gives ----


def trained(*arguments, env=None):
    return ran(*RUN, *QUIET, "-x", 5, "-l", "1e-2", *arguments, env=env or cli.ENVIRONMENT)


def same_bits():
    """From run to run, in every order of blocks and threads, on any number of cores, and for every --recompute."""
    out = trained()
    runs = [{}]
    if EMULATED:
        runs += [dict(EMU_SCHEDULE="reversed"), dict(EMU_SCHEDULE="random:5"), dict(EMU_THREADS="1")]
    for variables in runs:
        again = trained(env=environment(**variables))
        assert weights_hash(again) == weights_hash(out) and losses(again) == losses(out), (variables, out, again)
    for level in (0, 2, 3):
        assert weights_hash(trained("--recompute", level)) == weights_hash(out), level


def fused_gelu_is_the_same_function():
    """Another rounding, no more: the losses agree to what a bf16 holds."""
    plain = losses(trained())
    for level in (1, 2):
        fused = losses(trained("-ge", level))
        assert len(fused) == 5, fused
        assert all(abs(a - b) <= 2**-8 * a for a, b in zip(plain, fused)), (level, plain, fused)


def accumulated_micro_batches():
    """Two micro-batches of 3 are the batch of 6, but for the order of sums."""
    whole = losses(ran("-i", TEXT, *SHAPE, "-t", 16, "-b", 6, *QUIET, "-x", 5, "-l", "1e-2"))
    parts = losses(trained("-d", 96))
    assert len(whole) == len(parts) == 5, (whole, parts)
    assert all(abs(a - b) <= 2**-8 * a for a, b in zip(whole, parts)), (whole, parts)


def times_are_times():
    """The log comes one step late; each step's time is its own all the same."""
    out = ran(*RUN, *QUIET, "-x", 6)
    times = [float(ms) for ms in re.findall(r"^step .*\| (-?[\d.]+) ms \|", out, re.M)]
    assert len(times) == 6 and all(0.0 < ms < 60000.0 for ms in times), out


def learns():
    out = ran("-i", TEXT, *SHAPE, "-t", 16, "-b", 4, "-x", 30, "-l", "1e-2", "--overfit", *QUIET)
    assert losses(out)[0] >= 5.0 and losses(out)[-1] <= 3.0, out


def samples_do_not_move_checkpoints():
    """With samples at every step: the first and the last one are there, all checkpoints too, and the same weights."""
    folder = new_folder("samples")
    out = trained()
    sampled = ran(*RUN, "-v", 0, "-s", 2, "-g", 4, "-x", 5, "-l", "1e-2", "-o", folder, "-n", 2)
    assert re.findall(r"^sample after (\d+) steps:", sampled, re.M) == ["2", "4", "5"], sampled
    assert checkpoints(folder) == [2, 4, 5], os.listdir(folder)
    assert weights_hash(sampled) == weights_hash(out)


def resumed_is_straight():
    folder = new_folder("resumed")
    run = [*RUN, *QUIET, "-x", 5, "-l", "1e-2", "-o", folder, "-n", 2, "--overwrite"]
    straight = weights_hash(ran(*run))
    os.remove(os.path.join(folder, "state_00000005.bin"))
    os.remove(os.path.join(folder, "model_00000005.bin"))
    run.remove("--overwrite")
    out = ran(*run, "--resume")
    assert weights_hash(out) == straight, out


def models_of_the_cpu_trainer():
    """A model goes back and forth between the trainers, and means the same to both."""
    if not os.path.exists(CPU_PROGRAM):
        raise harness.Skip(f"no {CPU_PROGRAM} here (make)")
    name = model("exchanged.bin")
    evaluate = ["-j", TEXT, "-i", TEXT, "-t", "16", "-b", "2", "-m", "3", "-s", "0", "-v", "1", "-x", "1", "-l", "1e-2"]
    folder = new_folder("from_gpu")
    mine = val_losses(ran("-e", name, *evaluate, "-o", folder))
    theirs = val_losses(cpu("-e", name, *evaluate))
    assert len(mine) == len(theirs) == 2, (mine, theirs)
    tolerance = 1e-5 if FP32 else 2**-8  # a bf16 is off by half of 2^-7, and thousands of losses are averaged
    assert all(abs(a - b) <= tolerance * b for a, b in zip(mine, theirs)), (mine, theirs)
    loaded = val_losses(cpu("-e", os.path.join(folder, "model_00000001.bin"), *evaluate))
    assert abs(loaded[0] - mine[1]) <= tolerance * mine[1], (loaded, mine)


def cpu(*arguments):
    program, cli.PROGRAM = cli.PROGRAM, CPU_PROGRAM
    try:
        return ran(*arguments)
    finally:
        cli.PROGRAM = program


def numbers_that_overflow():
    """A loss that is not a number ends the run before it touches a weight, and names where it began."""
    params = make_params(CONFIG)
    params["fcb"][5] = float("inf") if FP32 else 3e38
    params["fcprojw"][5] = 3e38
    name = model("large.bin", config(), params)
    folder = new_folder("overflow")
    out = refused("-e", name, "-i", TEXT, "-t", 16, "-b", 2, *QUIET, "-x", 3, "-o", folder, 
                  says=["step 1", "loss is", "first found in activation", "nothing was saved"])
    assert "weights hash" not in out and not checkpoints(folder), out


def interrupted():
    """Ctrl-C saves, ends with status 0, and the run can be resumed."""
    folder = new_folder("interrupted")
    process = start(*RUN, *QUIET, "-x", 100000, "-o", folder)
    while not os.path.exists(os.path.join(folder, "main.log")) or "trl" not in open(folder + "/main.log").read():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, _ = finish(process)
    steps = checkpoints(folder)
    assert len(steps) == 1 and steps[0] > 0 and "--resume" in out, (steps, out)


def state_of_the_gpu():
    """-lg prints what NVML says, or once why there is nothing."""
    out = ran(*RUN, *QUIET, "-x", 2, "-lg", 1)
    if "no GPU power, clock and temperature:" not in out:
        assert len(re.findall(r"^step [12]: .* W", out, re.M)) == 2, out


def llmc_command_line():
    """The flags of llm.c's scripts that make sense here."""
    out = ran("-i", TEXT, *SHAPE, "-t", 16, "-b", 2, "-d", 64, "-r", 0, "-z", 1, "-c", "0.1", "-l", "0.0006", "-q", "0.0",
              "-u", 1, "-n", 0, "-v", 2, "-m", 2, "-s", 2, "-g", 4, "-h", 0, "-x", 2, "-ge", 1, "-lg", 1)
    assert len(losses(out)) == 2 and len(val_losses(out)) == 2 and sample_of(out) is not None, out


TESTS = [help_text, options_of_the_cpu_trainer, options_of_several_processes, options_of_the_other_precision,
         sizes_that_kernels_cannot_do, no_gpu, plan_needs_no_gpu, too_little_memory, memory_is_what_was_planned,
         same_bits, fused_gelu_is_the_same_function, accumulated_micro_batches, times_are_times, learns,
         samples_do_not_move_checkpoints, resumed_is_straight, models_of_the_cpu_trainer, numbers_that_overflow,
         interrupted, state_of_the_gpu, llmc_command_line]

if __name__ == "__main__":
    FP32 = "precision   fp32" in ran(*RUN, "--plan")
    harness.run("gpu_options", TESTS)
