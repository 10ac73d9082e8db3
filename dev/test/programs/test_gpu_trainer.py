"""The GPU trainer as its users run it, in the emulator: its runs, its files, and what it says when something is wrong.

TRAIN_GPT2CU names the program (./train_gpt2emu; on a machine with a GPU: ./train_gpt2cu), TRAIN_GPT2 the CPU trainer.
"""
import os
import re
import signal
import subprocess

import pytest

import cli
from run_folder import log_of

CPU = cli.PROGRAM
GPU = os.path.abspath(os.environ.get("TRAIN_GPT2CU", "./train_gpt2emu"))
EMULATED = b"EMU_NO_GPU" in open(GPU, "rb").read() if os.path.exists(GPU) else False
MODEL = ["--layers", "2", "--heads", "2", "--channels", "32", "--context", "24", "--vocab", "300"]
only_emulated = pytest.mark.skipif(not EMULATED, reason="stands in for a machine that is not this one")
BATCH = ["--seq-len", "16", "--batch-size", "2", "--total-batch", "64"]
OPTIMIZER = ["--lr", "3e-3", "--warmup", "2", "--final-lr-frac", "0.1", "--weight-decay", "0.1"]
STEPS = 5
# The emulator checks every access where a test asks for it.
cli.ENVIRONMENT.update(EMU_CHECK="0")


def data():
    """Two shards of unequal size, and one to validate with."""
    for name, count, seed in (("a_train_0.bin", 16 * 9 + 5, 1), ("a_train_1.bin", 16 * 23 + 1, 2),
                              ("a_val.bin", 16 * 5 + 3, 3)):
        cli.shard(name, cli.random_tokens(count, 300, seed))
    return ["--train-data", cli.path("a_train_*.bin"), "--val-data", cli.path("a_val.bin")]


RUN = [*data(), *MODEL, *BATCH, *OPTIMIZER, "--steps", STEPS, "--val-every", 2, "--val-batches", 3, "--sample-every", 3,
       "--sample-tokens", 4]  # an ordinary run


def run_with(*changes):
    """RUN with other values for some of its options."""
    options = list(map(str, RUN))
    for name, value in zip(changes[::2], changes[1::2]):
        if name in options:
            options[options.index(name) + 1] = str(value)
        else:
            options += [name, str(value)]
    return options


def start(*arguments, program=GPU, **environment):
    return subprocess.Popen([program, *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, env=dict(cli.ENVIRONMENT, **environment))


def ran(*arguments, **keywords):
    """What a run that must succeed prints; nothing on stderr."""
    out, err = cli.finish(start(*arguments, **keywords), 0, arguments)
    assert err == "", (arguments, err)
    return out


def refused(*arguments, says=(), program=GPU, **environment):
    """A run that must end with status 1 and one line on stderr, which holds each text of `says`. Returns stdout."""
    out, err = cli.finish(start(*arguments, program=program, **environment), 1, arguments)
    assert re.fullmatch(r"train_gpt2(cu)?: [^\n]+\n", err), f"{arguments}: stderr is not one line: {err!r}"
    for text in says:
        assert text in err, f"{arguments}: {text!r} is not in {err!r}"
    return out


def precision():
    return re.search(r"^precision +(\w+)", ran(*RUN, "--plan"), re.M).group(1)


STRAIGHT = {}  # an uninterrupted run: the hash of its weights, its log


def straight():
    if not STRAIGHT:
        folder = cli.new_folder("straight")
        out = ran(*RUN, "--out-dir", folder, EMU_CHECK="1")
        STRAIGHT.update(hash=cli.weights_hash(out), log=log_of(folder), out=out)
    return STRAIGHT


def test_every_step_is_told_once():
    """Results arrive a step late; none may be lost or told twice, also around validations, samples and saves."""
    run = straight()
    assert [int(n) for n in re.findall(r"^step +(\d+)/\d+ \| loss", run["out"], re.M)] == [*range(1, STEPS + 1)]
    assert [int(n) for n in re.findall(r"^s:(\d+) trl:", run["log"], re.M)] == [*range(STEPS)]
    assert [int(n) for n in re.findall(r"^s:(\d+) tel:", run["log"], re.M)] == [0, 2, 4, 5]
    assert [int(n) for n in re.findall(r"^sample after (\d+) steps", run["out"], re.M)] == [3, 5]
    losses = cli.losses(run["out"])
    assert all(4.0 < loss < 7.5 for loss in losses), losses
    assert re.search(r"\| [\d.]+ ms \| \d+", run["out"]), run["out"]


def test_last_checkpoint_is_kept():
    """Neither sampling nor --checkpoint-every 0 costs the checkpoint at the end."""
    assert cli.checkpoints(cli.path("straight")) == [STEPS]


def test_like_the_cpu_trainer():
    """The same steps from the same seed: the same losses, within what the precision allows."""
    limit = 1e-5 if precision() == "fp32" else 1e-2
    cpu, gpu = ran(*RUN, program=CPU), straight()["out"]
    for name, find in (("loss", cli.losses), ("validation loss", cli.val_losses)):
        want, got = find(cpu), find(gpu)
        assert len(want) == len(got) and want, (want, got)
        for a, b in zip(want, got):
            assert abs(a - b) <= limit * a, f"{name}: {a} on the CPU, {b} on the GPU"


def test_same_weights():
    """From run to run, and at every level of recompute, GELU fused or not."""
    want = straight()["hash"]
    for options in (["--recompute", 0], ["-r", 2, "--threads", 1], ["-r", 3]):
        assert cli.weights_hash(ran(*RUN, *options, EMU_CHECK="1")) == want, options
    fused = [cli.weights_hash(ran(*RUN, "-ge", 2, "-r", level)) for level in (0, 1)]
    assert fused[0] == fused[1], fused


def test_resumed_run():
    """Stopped after some steps by --steps; with skipping of outliers, where a step waits for its own results, too."""
    for more in ([], ["--skip-loss-z", 5, "--skip-grad-z", 5]):
        whole, parts = cli.new_folder("whole"), cli.new_folder("parts")
        want = cli.weights_hash(ran(*RUN, *more, "-o", whole, "-n", 3))
        assert cli.checkpoints(whole) == [3, STEPS]
        os.mkdir(parts)
        for name in ("model_00000003.bin", "state_00000003.bin", "main.log"):
            with open(os.path.join(whole, name), "rb") as source, open(os.path.join(parts, name), "wb") as copy:
                copy.write(source.read())
        out = ran(*RUN, *more, "-o", parts, "-n", 3, "--resume")
        assert cli.weights_hash(out) == want, more
        assert log_of(parts) == log_of(whole), more
    assert want == straight()["hash"], "limits that nothing meets change the weights"


@pytest.mark.long
def test_stopped_by_a_signal():
    folder = cli.new_folder("stopped")
    process = start(*run_with("--steps", 48), "-o", folder)
    while b"step    3/" not in process.stdout.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    out, err = cli.finish(process)
    assert err == "" and re.search(r"stopped by a signal after \d+ of 48 steps; --resume goes on", out), (out, err)
    steps = cli.checkpoints(folder)[-1]
    assert 3 <= steps < 48
    assert [int(n) for n in re.findall(r"^s:(\d+) trl:", log_of(folder), re.M)] == [*range(steps)]
    shorter = run_with("--steps", 48, "--sample-every", 0)
    ran(*shorter, "-o", folder, "--resume")
    reference = cli.new_folder("not_stopped")
    ran(*shorter, "-o", reference)
    assert log_of(folder) == log_of(reference)


def test_files_are_exchanged():
    """A checkpoint of one trainer is a model for the other, and a run to go on with when the change is allowed."""
    limit = 1e-4 if precision() == "fp32" else 1e-2
    evaluate = ["--steps", 0, "-b", 2, "-t", 16, "-m", 0, "-s", 0, "-j", cli.path("a_val.bin")]
    folders = {CPU: cli.new_folder("from_cpu"), GPU: cli.new_folder("from_gpu")}
    for program, folder in folders.items():
        ran(*run_with("--steps", 2), "-o", folder, program=program)
        losses = [cli.val_losses(ran("--init", folder, *evaluate, program=p))[0] for p in (CPU, GPU)]
        assert abs(losses[0] - losses[1]) <= limit * losses[0], losses
    for maker, program in ((CPU, GPU), (GPU, CPU)):
        folder, more = folders[maker], [*run_with("--steps", 4), "-o", folders[maker], "--resume"]
        refused(*more, program=program, says=["--steps was 2, is 4", "--allow-changes",
                                              "the precision was" if precision() == "bf16" else "--steps"])
        out = ran(*more, "--allow-changes", program=program)
        assert [int(n) for n in re.findall(r"^s:(\d+) trl:", log_of(folder), re.M)] == [0, 1, 2, 3], out
    export = cli.new_folder("export")
    ran("--init", folders[GPU], "--steps", 0, "-s", 0, "--export", export)
    ran("--init", export, *evaluate, program=CPU)


@pytest.mark.long
def test_without_master_weights():
    if precision() == "fp32":
        refused(*RUN, "-w", 0, says=["--master-weights (-w)", "bf16"])
        return
    whole, parts = cli.new_folder("no_master"), cli.new_folder("no_master_parts")
    want = cli.weights_hash(ran(*RUN, "-w", 0, "-o", whole, EMU_CHECK="1"))
    assert want != straight()["hash"]
    ran(*RUN, "-w", 0, "-o", parts, "-n", 2, "-nk", 2)
    os.remove(os.path.join(parts, f"state_{STEPS:08}.bin"))
    assert cli.weights_hash(ran(*RUN, "-w", 0, "-o", parts, "--resume", "-n", 2)) == want
    refused(*RUN, "-f", 0, says=["--tf32 (-f)", "PRECISION=FP32"])


def test_loss_that_is_no_number():
    """Weights so large that a product overflows: the run ends before an update, and says where it began."""
    config = cli.config(C=32, maxT=24, L=2)
    params = cli.make_params(config)
    params["fcw"][len(params["fcw"]) // 2:] = cli.array.array("f", [2.0**126] * (len(params["fcw"]) // 2))
    overflowing = cli.model("overflowing.bin", config, params)
    cli.shard("b_train.bin", cli.random_tokens(500, 257))
    folder = cli.new_folder("overflow")
    refused("-e", overflowing, "-i", cli.path("b_train.bin"), "-b", 2, "-t", 16, "-x", 5, "-o", folder, *cli.QUIET,
            says=["step 1: the loss is", "first found in activation fc of layer 1", "nothing was saved"])
    assert cli.checkpoints(folder) == []


def test_models_it_cannot_compute():
    for changes, says in ((["--channels", 36, "--heads", 2], ["36 channels", "multiple of 8"]),
                          (["--channels", 512, "--heads", 1], ["heads of 512 channels", "256"]),
                          (["-pn", 2], ["--num-processes is 2", "mpirun -np 2"])):
        refused(*run_with(*changes), says=says)


@only_emulated
def test_plan_needs_no_gpu():
    out = ran(*RUN, "--plan", EMU_NO_GPU="1")
    planned = re.search(r"^memory +([\d.]+ \w+) on the GPU", out, re.M).group(1)
    totals = re.findall(r"^total (\d+) bytes \(([\d.]+ \w+)\) in one allocation", out, re.M)
    assert len(totals) == 3 and totals[0][1] == planned, (planned, totals)


@only_emulated
def test_no_gpu():
    refused(*RUN, EMU_NO_GPU="1", says=["no GPU", "nvidia-smi"])


@only_emulated
def test_too_little_memory():
    out = refused(*RUN, EMU_MEMORY="16",
                  says=["memory plan: needs", "of GPU memory", "are free", "--batch-size", "--plan"])
    assert "memory " in out


def test_generation():
    """--steps 0 with nothing but a model: a sample; likeliest tokens are the CPU trainer's in fp32."""
    common = ["--init", cli.path("straight"), "--steps", 0, "-g", 12, "--temperature", 0]
    gpu, cpu = cli.sample_of(ran(*common)), cli.sample_of(ran(*common, program=CPU))
    assert len(gpu.split()) == 12, gpu
    if precision() == "fp32":
        assert gpu == cpu, (gpu, cpu)
    assert cli.sample_of(ran(*common)) == gpu
