"""Several ranks end to end: the GPU trainer in the emulator as two to four processes.

How they start, that they compute what one rank computes, what they send and save, that a run goes on with another
number of ranks, and how each fault ends: after how long, with which message, and what the next start makes of it.
test_grid.py compares the gradients of ranks with those of one rank; dev/test/ranks/test_comm.c has refusals of a start.

Each fault prints its row of the table in doc/several_gpus.md: pytest -qs dev/test/programs/test_gpu_ranks.py
"""
import array
import atexit
import functools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time

import pytest

import cli
import formats
import gpu_program
from cli import log_of, losses, norms, steps_of, stopped_after, weights_hash
from evalfiles import eval_file
from ranks import PROGRAM, Ranks, has_mpi, ran, refused
from run_folder import record_of, speed_of

QUICK = "TEST_QUICK" in os.environ
VOCAB = 61
MODEL = ["--vocab", VOCAB, "--layers", 3, "--heads", 2, "--channels", 16, "--context", 8]
# An epsilon well above rounding errors: AdamW divides a gradient by its own size, so that one which is nothing but
# rounding error (the bias of the keys has no other) would move its weight as far as a real one does.
OPTIMIZER = ["--lr", 3e-3, "--warmup", 2, "--final-lr-frac", 1, "--weight-decay", 0.1, "--adam-eps", 1e-4]
MUON = ["--optimizer", "muon", "--muon-warmup", 3]
T = 4
SECRET = 2 * "0123456789abcdef0123456789abcdef"  # those that do not only use the loopback address need one


def tokens(count, seed):
    """Something that can be learnt: each token leads to one of three."""
    generator = cli.random.Random(seed)
    result = [3]
    while len(result) < count:
        result.append((7 * result[-1] + generator.choice([1, 1, 1, 2, 5])) % VOCAB)
    return result


def data():
    """Two shards of unequal size, and one to validate with: 23 sequences, which no number of ranks divides."""
    for name, count, seed in (("r_train_0.bin", 141, 1), ("r_train_1.bin", 1500, 2), ("r_val.bin", 23 * T + 1, 3)):
        if not os.path.exists(cli.path(name)):
            cli.shard(name, tokens(count, seed))
    return ["--train-data", cli.path("r_train_*.bin"), "--val-data", cli.path("r_val.bin")]


def changed(run, *changes):
    """A run's options with other values for some of them, or some more; None: without this option."""
    run = list(run)
    for name, value in zip(changes[::2], changes[1::2]):
        if name in run:
            at = run.index(name)
            run[at:at + 2] = []
        if value is not None:
            run += [name, value]
    return run


def options(sequences, batch, steps, *changes):
    """A run of so many sequences a step, of which a micro-batch of a rank has `batch`."""
    run = [*data(), *MODEL, *OPTIMIZER, "--seq-len", T, "--total-batch", sequences * T, "--batch-size", batch,
           "--steps", steps, *cli.QUIET]
    return changed(run, *changes)


# Of a run whose model is a file.
NO_SIZE = [word for name in MODEL[::2] for word in (name, None)]


@functools.lru_cache(None)
def is_bf16():
    out = gpu_program.ran(*options(16, 1, 1), "--plan")
    return re.search(r"^precision +(\w+)", out, re.M).group(1) == "bf16"


# ---- Starting ----


def test_starts():
    """By MPI, TCP, and a folder: the same run."""
    results = {}
    for count, hows in ((2, ("fs", "tcp", "mpi")), (4, ("tcp", "mpi")))[:1 if QUICK else 2]:
        for how in hows:
            if how == "mpi" and has_mpi():
                continue
            folder = cli.new_folder(f"start_{how}_{count}")
            out = ran(count, *options(4, 1, 4), "-z", 1, "-o", folder, how=how)
            assert f"ranks       {count} on 1 machine" in out and f" x {count} ranks x " in out, out
            results[how, count] = weights_hash(out), log_of(folder), losses(out)
        assert len({str(results[key]) for key in results if key[1] == count}) == 1, results
    if has_mpi():
        pytest.skip(f"by MPI: {has_mpi()}")


def test_switches_do_not_add_up():
    """NCCL finds NVLS switched off on every rank, unless the user has said something else."""
    if not gpu_program.EMULATED:
        pytest.skip("the emulator's NCCL tells on stderr what it finds")
    gpu_program.GPU.environment.pop("NCCL_NVLS_ENABLE", None)
    for given, found in (({}, "0"), ({"NCCL_NVLS_ENABLE": "1"}, "1"), ({"NCCL_NVLS_ENABLE": "2"}, "2")):
        ranks = Ranks(2, *options(2, 1, 1), NCCL_DEBUG="INFO", **given)
        ranks.wait()
        ranks.kill()
        said = f"emu: NCCL INFO NCCL_NVLS_ENABLE set by environment to {found}.\n"
        assert all(ranks.err(rank) == said for rank in (0, 1)), ranks.outputs()


def test_nothing_is_reported_with_all_checks():
    """With the emulator's checks of every access: streams are in order, nothing uninitialised is sent. After an update
    a forward pass waits for each bucket of parameters; what saves or sums them up comes after all."""
    cases = [(2, 0), (3, 1), (3, 2), (2, 3)]
    for count, stage, *fp8 in [*cases, (2, 2, "--fp8")] if is_bf16() else cases:
        more = ["--val-every", 1, "--val-sequences", 5, "--sample-every", 2, "--sample-tokens", 2, "-z", stage]
        ran(count, *options(2 * count, 1, 2, *more), *fp8, "-o", cli.new_folder("checked"), EMU_CHECK="1")
    no_master = ["-w", 0] if is_bf16() else []  # then what is saved is what was gathered
    ran(2, *options(4, 1, 2), "-z", 1, *no_master, "-o", cli.new_folder("checked"), EMU_CHECK="1")
    # Muon's blocks travel between the kernels that write and read them; ranks that own none wait, too.
    for count, stage in () if QUICK else ((2, 1), (3, 2), (2, 3)):
        ran(count, *options(count, 1, 2, *MUON), "-z", stage, "-o", cli.new_folder("checked"), EMU_CHECK="1")



# ---- The same losses ----


# How far losses may lie apart, as a fraction. The runs add the same numbers in another order, so the sums of gradients
# differ by some units of 2^-24. In fp32 that reaches the sixth decimal of a loss, the last one printed. In bf16 the
# weights are rounded at random from their fp32 copies, up or down by up to a unit of 2^-8: where two copies differ in
# their last bits, a few of the thousands of weights come out a unit apart. Their effects have random signs; 2^-11, an
# eighth of a unit, is room for them.
LIMIT = 2.0**-11 if is_bf16() else 1e-6


def close(want, got):
    """Are the losses of two runs within LIMIT of each other?"""
    assert len(want) == len(got) and want, (want, got)
    return all(abs(a - b) <= LIMIT * a for a, b in zip(want, got))


def test_like_one_rank():
    """Numbers of ranks, stages and lengths of accumulation, at the same total batch."""
    outs = {}
    for count, micro_batches in ((1, 2), (2, 2), (4, 2)) if QUICK else ((1, 2), (2, 2), (4, 2), (2, 4), (4, 1)):
        for stage in range(4) if count > 1 else (0, ):
            case = count, micro_batches, stage
            outs[case] = ran(count, *options(8, 8 // (count * micro_batches), 2), "-z", stage)
            first = outs[1, 2, 0]
            assert close(losses(first), losses(outs[case])), (case, first, outs[case])
            # The first step's weights are the same, to the bit: its gradient differs by roundings of fp32 sums alone.
            assert abs(norms(outs[case])[0] - norms(first)[0]) <= 1.01e-4, (case, first, outs[case])
            # Gradients of stages 0 and 1 are added up alike, and those of 2 and 3; with one micro-batch, those of all.
            like = outs[count, micro_batches, 0 if stage < 2 or micro_batches == 1 else 2]
            assert (weights_hash(outs[case]), losses(outs[case])) == (weights_hash(like), losses(like)), case


# ---- Validation and samples ----


def test_validation_and_samples():
    """Of one model: the same loss and text on any number of ranks, in batches of any size, also where ranks have too
    little to do. A model of bytes, so that the sample is a text."""
    config = cli.config(L=2)
    model = cli.model("evaluated.bin", config, cli.make_params(config, deviation=0.3))
    cli.shard("e_val.bin", cli.random_tokens(16 * 13 + 1, 257))
    for sequences in (0, 7):
        samples = sequences == 0  # one sample is that of any other validation, too
        run = ["-e", model, "-j", cli.path("e_val.bin"), "--steps", 0, "-t", 16, "--val-sequences", sequences,
               "--json", cli.path(f"ranks_{sequences}.jsonl"),
               *(["--sample-tokens", 20] if samples else ["--sample-every", 0])]
        outs = {(count, stage, batch): ran(count, *run, "-z", stage, "-b", batch)
                for count, stage, batch in ((1, 0, 1), (1, 0, 8), (3, 3, 4), (4, 0, 1))}
        said = {key: (cli.val_losses(out), cli.sample_of(out) if samples else "") for key, out in outs.items()}
        assert len(said[1, 0, 1][0]) == 1 and len(said[1, 0, 1][1]) >= 20 * samples, outs
        lines = [json.loads(line) for line in cli.read(cli.path(f"ranks_{sequences}.jsonl")).decode().splitlines()]
        found = {(line["sequences"], line["loss"], line["bits_per_byte"]) for line in lines}
        assert len(lines) == len(outs) and len(found) == 1, lines
        for key, value in said.items():
            assert value == said[1, 0, 1], (key, said)


# ---- Checkpoints ----


def files_of(folder):
    """The bytes of all checkpoints in a folder, and what the states say but for the sharding that was given."""
    names = [os.path.join(folder, name) for name in sorted(os.listdir(folder)) if name.endswith(".bin")]
    files = {os.path.basename(name): cli.read(name) for name in names if "state_" not in name}
    for name in names:
        if "state_" in name:
            facts, *rest = formats.read_state(name)
            facts.pop("--zero-stage", None)
            files[os.path.basename(name)] = [facts, *rest]
    return files


@pytest.mark.parametrize("more", ([], pytest.param(MUON, marks=pytest.mark.long)), ids=("adamw", "muon"))
def test_checkpoints_know_no_ranks(more):
    """1, 2, 3 and 4 ranks write the same state in the same bytes, and the best model.

    For the state to be the same to the bit, a step is needed whose gradient is: 0. After some ordinary steps, the data
    is one token only, and the model so certain of it that the probability of all others is 0 in fp32. Moments and
    weights still change, by what the moments hold and by weight decay."""
    config = cli.config(L=3, C=16, maxT=8, V=VOCAB, Vp=128)
    params = cli.make_params(config)
    certain = 5
    params["wte"][certain * 16:certain * 16 + 16] = array.array("f", [8.0, -8.0] * 8)
    run = options(12, 1, 4, *NO_SIZE, "--init", cli.model("certain.bin", config, params), *more)
    begun = cli.new_folder("begun")
    ran(1, *run, "-o", begun, "-n", 3)
    run = changed(run, "--train-data", cli.shard("certain_train.bin", [certain] * 200))
    run += ["-j", cli.shard("certain_val.bin", cli.random_tokens(90, VOCAB)), "-v", 1]
    want = None
    for count, stage in ((1, 0), (2, 0), (2, 3), (3, 1), (3, 2), (4, 3)):
        folder = stopped_after(3, begun)
        out = ran(count, *run, "-o", folder, "-z", stage, "--resume", "--allow-changes")
        assert "| loss 0.000000 | norm 0.0000 |" in out, out
        files = dict(files_of(folder), printed=weights_hash(out))
        assert len(files) == 6 and "model_best.bin" in files, files.keys()
        want = want or files
        assert files == want, (count, stage, [name for name in want if files[name] != want[name]])
    assert want["model_00000004.bin"] != want["model_00000003.bin"]


def test_damaged_replicas_are_found():
    """A bit that is wrong in one rank's copy of what all gather is found with the next step, before anything is saved,
    and the checkpoint before goes on. The collectives of stage 0: at the start 4 gathers for each of 4 buckets; a step
    has 4 reduce-scatters and 4 gathers of gradients and a gather of results. Stage 1 gathers parameters instead."""
    run = options(4, 1, 8, "-n", 3)
    want = ran(2, *run, "-o", cli.new_folder("sound"))
    folder = cli.new_folder("corrupt")
    line, _, seconds = refused(2, *run, "-o", folder, EMU_NCCL_FAULT=f"corrupt@1:{16 + 9 * 4 + 2}",
                            says=[re.compile("after step [56]: the weights of rank 1 "), "are not those of rank 0",
                                  "these weights are not saved"])
    assert cli.checkpoints(folder) == [3]
    record("a bit flips on the way to one rank", seconds, line)
    out = ran(2, *run, "-o", folder, "--resume")
    assert steps_of(out)[0] == 4 and weights_hash(out) == weights_hash(want)
    # Of stage 1, the last gather of parameters before a checkpoint, and a gather after the start.
    folder = cli.new_folder("corrupt_1")
    for n, step in ((4 + 9 * 2 + 9, 3), (2, 0)):
        refused(2, *run, "-z", 1, "-o", folder, "--overwrite", EMU_NCCL_FAULT=f"corrupt@0:{n}",
                says=[f"after step {step}: the weights of rank 1 ("])
        assert cli.checkpoints(folder) == []


@pytest.mark.long
@pytest.mark.parametrize("more, saved_by, others", (
    ([], 8, ((1, 0), (2, 1), (4, 2), (16, 3))), (MUON, 2, ((2, 0), (2, 2), (2, 3), (1, 0), (3, 1), (3, 0)))),
                         ids=("adamw", "muon"))
def test_resumed_on_other_ranks(more, saved_by, others):
    """A run goes on in every stage and on any number of ranks, which see the batches that it would have seen. Each rank
    has one micro-batch, so that all stages add up alike: on as many ranks with equal bits. In stage 0 with Muon all
    ranks get the whole momentum, and all of v."""
    sequences, folder = 16 if saved_by == 8 else 6, cli.new_folder("saved")
    want = ran(saved_by, *options(sequences, sequences // saved_by, 6, *more), "-n", 3, "-z", 1, "-o", folder)
    for count, stage in others:
        out = ran(count, *options(sequences, sequences // count, 6, *more), "-n", 3, "-z", stage, "-o",
                  stopped_after(3, folder), "--resume", EMU_GPUS="16")
        assert steps_of(out) == [4, 5, 6] and close(losses(want)[3:], losses(out)), (count, stage, want, out)
        assert count != saved_by or weights_hash(out) == weights_hash(want), (stage, want, out)


# ---- Faults ----

def record(fault, seconds, message, end=""):
    """Prints a row of the table, without what is only this machine's: its name, its folders, numbers of processes."""
    message = message.replace(cli.FOLDER + "/", "").replace(socket.gethostname().split(".")[0], "host")
    after = f"{seconds:.1f} s" if seconds >= 0.1 else "at once"
    print(f"\n| {fault} | {after}{end} |", re.sub(r"pid \d+", "pid N", message), "|")


# Three ranks, one layer, two micro-batches, stage 2; 9 steps, saved every third. In stage 2 they begin with a gather of
# each of 2 buckets; a step has 4 reduce-scatters, a gather of results, and 2 of parameters.
FAULT_STEPS = 9


def collective(step, n):
    """The number of the n-th collective (from 1) of a step (from 1) of such a run."""
    return 2 + 7 * (step - 1) + n


def fault_options(folder, *more):
    return [*options(6, 1, FAULT_STEPS, "-n", 3, "--layers", 1), "-z", 2, "-o", folder, *more]


@functools.lru_cache(None)
def straight():
    """The hash and the log of an undisturbed run."""
    folder = cli.new_folder("straight")
    return weights_hash(ran(3, *fault_options(folder))), log_of(folder)


def goes_on(folder, last):
    """The next start goes on from the last checkpoint, and comes to what an undisturbed run comes to."""
    assert cli.checkpoints(folder)[-1] == last, cli.checkpoints(folder)
    out = ran(3, *fault_options(folder, "--resume"))
    assert steps_of(out) == [*range(last + 1, FAULT_STEPS + 1)], out
    assert (weights_hash(out), log_of(folder)) == straight(), out
    assert not [name for name in os.listdir(folder) if "tmp" in name], os.listdir(folder)


REMEDY = "start again with --resume to go on from the last checkpoint"


def test_killed_in_a_step():
    """The others end within some seconds, whoever it was. run.jsonl has no end of such a run."""
    for rank, how in ((1, "fs"), (0, "tcp")):
        folder = cli.new_folder("killed")
        ranks = Ranks(3, *fault_options(folder), how=how, EMU_NCCL_FAULT=f"die@{rank}:{collective(8, 3)}")
        line = ranks.fail([f"rank {rank} (", "ended without a word", REMEDY], lost=[rank])
        ranks.kill()
        record(f"rank {rank} is killed in a step", ranks.all_ended() - ranks.ended[rank], line)
        assert "end" not in record_of(folder)
        goes_on(folder, 6)


def test_killed_under_mpirun():
    if has_mpi():
        pytest.skip(has_mpi())
    folder = cli.new_folder("killed_mpi")
    ranks = Ranks(3, *fault_options(folder), how="mpi", EMU_NCCL_FAULT=f"die@1:{collective(8, 3)}")
    ranks.wait()
    assert ranks.processes[0].returncode != 0, ranks.outputs()
    ranks.kill()
    goes_on(folder, 6)


def held(seconds, step=5):
    """An environment in which rank 0 rests in a step: time to do something to a run that is going on."""
    return {"EMU_NCCL_FAULT": f"delay@0:{collective(step, 3)}:{seconds}"}


@pytest.mark.long
def test_stopped():
    """A rank that stands still, as when its machine hangs, is missed after 20 seconds; if it comes back, it ends."""
    folder = cli.new_folder("stopped")
    ranks = Ranks(3, *fault_options(folder), **held(5))
    ranks.until_printed("saved the checkpoint of step 3")
    since = ranks.send(2, signal.SIGSTOP)
    line = ranks.fail(["rank 2 (", "has not been heard of for 20 s", REMEDY], lost=[2], killed=None)
    record("rank 2 is stopped (SIGSTOP)", max(ranks.ended[0], ranks.ended[1]) - since, line)
    ranks.send(2, signal.SIGCONT)
    ranks.fail()
    ranks.kill()
    goes_on(folder, 3)


def test_hanging_collective():
    folder = cli.new_folder("hangs")
    ranks = Ranks(3, *fault_options(folder), "--watchdog", 5, EMU_NCCL_FAULT=f"hang@1:{collective(8, 3)}")
    line = ranks.fail(["waits, as all ranks do", "in step 8", "the network or a GPU hangs", REMEDY])
    last_step = os.stat(ranks.file(0, "out")).st_mtime - ranks.wall + ranks.began
    record("a collective hangs, with --watchdog 5", ranks.all_ended() - last_step, line)
    ranks.kill()
    goes_on(folder, 6)


def test_late_rank():
    """Waited for: being late is no fault."""
    out = ran(3, *fault_options(cli.new_folder("late")), EMU_NCCL_FAULT=f"delay@1:{collective(5, 3)}:2")
    assert weights_hash(out) == straight()[0]


def test_disk_full_on_one_rank():
    folder = cli.new_folder("full")
    limited = {"before": ["sh", "-c", "ulimit -f 8; exec \"$@\"", "sh"]}
    line, _, seconds = refused(3, *fault_options(folder), only={1: limited}, says=["rank 1 (", "model_00000003.bin"])
    record("a rank cannot write its part (disk full)", seconds, line)
    assert files_of(folder) == {}
    out = ran(3, *fault_options(folder, "--overwrite"))
    assert weights_hash(out) == straight()[0]


def test_not_a_number_on_one_rank():
    """A model in which one token overflows, and that token in one sequence of step 5, on rank 1: all stop before the
    update, and the rank is named; and the tensor, if the batch in memory has that token, too."""
    config = cli.config(L=2, C=16, maxT=8, V=VOCAB, Vp=128)
    params = cli.make_params(config)
    bad = 7
    for v in range(VOCAB):
        params["wte"][v * 16] = 4.0 if v == bad else 0.0
    for t in range(8):
        params["wpe"][t * 16] = 0.0
    params["attprojw"][0:16] = array.array("f", [0.0] * 16)
    params["attprojb"][0] = 0.0
    # Of layer 0, number 3 of the inner layer is far below 0 but for that token: its GELU is 0 but for that token.
    params["fcw"][3 * 16:4 * 16] = array.array("f", [2.0**60] + [0.0] * 15)
    params["fcb"][3] = -1.5 * 2.0**60
    params["fcprojw"][3:16 * 64:64] = array.array("f", [2.0**70] * 16)
    sound = [token if token != bad else bad + 1 for token in tokens(600, 4)]
    spoilt, again = list(sound), list(sound)
    spoilt[T * (6 * 4 + 4) + 1] = again[T * (6 * 4 + 4) + 1] = again[T * (6 * 5 + 4) + 1] = bad
    run = changed(fault_options(cli.new_folder("nan")), *NO_SIZE, "--init",
                  cli.model("overflows.bin", config, params), "--train-data", cli.shard("nan.bin", again))
    says = ["step 5: the loss is", "first found in activation residual of layer 1 on rank 1 ("]
    line, _, seconds = refused(3, *run, says=says)
    record("a loss is not a number on one rank", seconds, line)
    folder = cli.path("nan")
    assert cli.checkpoints(folder) == [3]
    refused(3, *run, "--resume", says=says, EMU_CHECK="1")
    cli.shard("nan.bin", spoilt)
    refused(3, *run, "--resume", "--allow-changes",
            says=["step 5: the loss is", "first found in the losses of rank 1 ("])
    cli.shard("nan.bin", sound)
    out = ran(3, *run, "--resume", "--allow-changes")
    assert steps_of(out) == [*range(4, FAULT_STEPS + 1)], out


def test_preempted():
    """A signal to one rank only: all save together, and end with status 0."""
    running = []
    for rank, number in ((1, signal.SIGTERM), (2, signal.SIGHUP), (0, signal.SIGINT)):
        folder = cli.new_folder(f"preempted_{rank}")
        ranks = Ranks(3, *fault_options(folder), **held(2))
        ranks.until_printed(r"^step +3/")
        running.append((rank, folder, ranks, ranks.send(rank, number)))
    for rank, folder, ranks, since in running:
        out = ranks.finish()
        said = re.search(r"^stopped by a signal after (\d+) of 9 steps; --resume goes on.*$", out, re.M)
        assert said and steps_of(out) == [*range(1, int(said.group(1)) + 1)], out
        if rank == 1:
            record("SIGTERM to one rank while another is 2 s late", ranks.all_ended() - since, said.group(),
                   ", status 0")
        end = record_of(folder)["end"]
        assert (end["status"], end["step"]) == ("stopped", int(said.group(1))), end
        assert end["weights_hash"] == weights_hash(out) and end["step"] == len(speed_of(folder)), end
        goes_on(folder, end["step"])


def test_preempted_in_a_validation_and_a_sample():
    run = [*options(6, 1, 12, "--val-every", 12, "--val-sequences", 0), "-z", 3]
    folder = cli.new_folder("preempted_val")
    ranks = Ranks(3, *run, "-o", folder, EMU_NCCL_FAULT="delay@0:9:2")
    ranks.until_caught(1, signal.SIGTERM)  # a moment later than rank 0, which rests in the validation
    ranks.send(1, signal.SIGTERM)
    out = ranks.finish()
    assert "stopped by a signal after 0 of 12 steps" in out and cli.val_losses(out) == [], out
    out = ran(3, *run, "-o", folder, "--resume")
    assert len(cli.val_losses(out)) == 2 and steps_of(out) == [*range(1, 13)], out
    run = changed(run, "--val-every", 0, "--sample-every", 3, "--sample-tokens", 100000)
    ranks = Ranks(3, *run, "-o", folder, "--overwrite")
    ranks.until_printed("^sample after 3 steps:")
    ranks.send(2, signal.SIGTERM)
    out = ranks.finish()
    assert "stopped by a signal after 3 of 12 steps" in out and cli.checkpoints(folder) == [3], out


def test_vanished_data():
    """A shard that is gone on one machine when its turn comes."""
    folder, own = cli.new_folder("vanished"), cli.new_folder("vanished_data")
    os.mkdir(own)
    run = changed(fault_options(folder), "--train-data", "r_train_*.bin", "--val-data", "r_val.bin")
    for name in ("r_train_0.bin", "r_train_1.bin", "r_val.bin"):
        shutil.copy(cli.path(name), own)
    ranks = Ranks(3, *run, folder=cli.FOLDER, only={1: {"folder": own}}, **held(2, 4))
    ranks.until_printed(r"^step +2/")
    os.remove(os.path.join(own, "r_train_1.bin"))
    line = ranks.fail(["r_train_1.bin: cannot open: No such file"])
    assert "rank 1 (" in line and REMEDY in line, line
    ranks.kill()
    record("a file of data vanishes on one machine", ranks.all_ended() - ranks.first_word(), line)
    assert cli.checkpoints(folder) == [3, 6]  # the shard's turn comes in step 7
    shutil.copy(cli.path("r_train_1.bin"), own)
    out = ran(3, *run, "--resume", folder=cli.FOLDER, only={1: {"folder": own}})
    assert steps_of(out) == [*range(7, FAULT_STEPS + 1)] and weights_hash(out) == straight()[0], out


# ---- What is refused at the start ----


def test_unlike_ranks():
    """Other options, data, model, questions or program on one rank."""
    config = cli.config(C=16, V=VOCAB, Vp=128)
    own, questions = cli.new_folder("unlike"), ["--val-every", 1, "-h", 1, "--hellaswag-data", "q.bin"]
    os.mkdir(own)
    for seed, folder in ((5, cli.FOLDER), (6, own)):
        eval_file(os.path.join(folder, "q.bin"), [([seed], [[1], [2]], 0)])
        cli.write(os.path.join(folder, "u.bin"), cli.shard_bytes(tokens(500, seed)))
        cli.write(os.path.join(folder, "model.bin"), cli.model_bytes(config, cli.make_params(config, seed=seed)))
    run = ["-i", cli.path("u.bin"), "-e", cli.path("model.bin"), "-b", 1, "-t", T, "-x", 2, *cli.QUIET]
    shutil.copy(PROGRAM, cli.path("another_program"))
    with open(cli.path("another_program"), "ab") as file:
        file.write(b"another version")
    for fault, changes, only, says in (
            ("other options", (), {"arguments": ["--lr", 1e-3]}, ["rank 1 (", "--lr is 0.001, but 0.0003 on rank 0"]),
            ("other data", ("-i", "u.bin"), {"folder": own}, ["the training data's fingerprint", "on rank 0"]),
            ("another model file", ("-e", "model.bin"), {"folder": own}, ["the model file's fingerprint"]),
            ("other questions", questions, {"folder": own}, ["the HellaSwag file's fingerprint"]),
            ("another program", (), {"program": cli.path("another_program")}, ["the program file's checksum"])):
        line, seconds, _ = refused(2, *changed(run, *changes), folder=cli.FOLDER, only={1: only}, says=says)
        record(f"{fault} on one rank", seconds, line)


def test_unfit_for_the_machine():
    run = options(3, 1, 2)
    line, seconds, _ = refused(3, *run, says=["no GPU for this process", "2 GPUs"], EMU_GPUS="2")
    record("fewer GPUs than ranks", seconds, line)
    # A launcher may show each process one GPU, which it then takes. The emulator's NCCL notices that all have the same.
    if gpu_program.EMULATED:
        ranks = Ranks(2, *options(2, 1, 2), EMU_GPUS="1")
        ranks.wait()
        assert re.search("on device 0, which rank [01] uses", ranks.outputs()), ranks.outputs()
    first, second = cli.new_folder("machine_a"), cli.new_folder("machine_b")
    os.mkdir(first)
    os.mkdir(second)
    places = {rank: {"folder": second if rank == 2 else first} for rank in range(3)}
    line, seconds, _ = refused(3, *run, "-o", "run", only=places,
                            says=["--out-dir (-o): run is not the folder that rank 0 sees"])
    record("--out-dir is not shared", seconds, line)
    if is_bf16():
        run = options(2, 1, 2, "--context", 128, "--seq-len", 128, "--total-batch", 256, "--val-data", None)
        line, seconds, _ = refused(2, *run, only={1: {"environment": {"EMU_CUDNN": "none"}}},
                                   says=["rank 1 (", "has no plan for attention", "--attention own goes without cuDNN"],
                                   EMU_CUDNN="1")
        record("cuDNN has no plan for attention on one rank", seconds, line)
        refused(2, *run, says=["has no plan for attention", "--attention own goes without cuDNN"], EMU_CUDNN="none")
        ran(2, *run, "--attention", "own", EMU_CUDNN="none")


def test_a_batch_that_does_not_fit():
    line, seconds, _ = refused(3, *options(12, 3, 2), says=["--total-batch", "give 36", "3 ranks"])
    record("a total batch that ranks do not divide", seconds, line)


# ---- Two hosts ----


class TwoHosts:
    """Two network namespaces joined by a cable, 10.77.0.1 and 10.77.0.2, with host names of their own. Their ports are
    theirs alone."""

    NUMBER = iter(range(1000))
    NOT_HERE = re.compile("not permitted|denied|not supported|Unknown device type|Read-only", re.I)

    def __init__(self):
        if shutil.which("ip") is None or shutil.which("unshare") is None:
            pytest.skip("no ip (iproute2) or no unshare (util-linux)")
        own = f"{os.getpid()}{next(self.NUMBER)}"
        self.names = [f"gpt2c_{own}{letter}" for letter in "ab"]
        self.made, self.cable = [], [f"v{own}{letter}" for letter in "ab"]
        atexit.register(self.remove)
        cable = self.cable
        try:
            for name in self.names:
                self.ip("netns", "add", name)
                self.made.append(name)
            self.ip("link", "add", cable[0], "netns", self.names[0], "type", "veth", "peer", "name", cable[1], "netns",
                    self.names[1])
            for i, name in enumerate(self.names):
                self.ip("-n", name, "addr", "add", f"10.77.0.{i + 1}/24", "dev", cable[i])
                self.ip("-n", name, "link", "set", cable[i], "up")
                self.ip("-n", name, "link", "set", "lo", "up")
            subprocess.run(self.on(0, "true"), check=True, capture_output=True)
        except subprocess.CalledProcessError as problem:
            self.remove()
            why = problem.stderr.decode().strip()
            assert self.NOT_HERE.search(why), why
            pytest.skip(f"network namespaces are not permitted here: {why}")

    def ip(self, *arguments):
        subprocess.run(["ip", *arguments], check=True, capture_output=True)

    def on(self, host, *command):
        script = f"hostname host{'ab'[host]} && exec \"$@\""
        return ["ip", "netns", "exec", self.names[host], "unshare", "--uts", "sh", "-c", script, "sh", *command]

    def run(self, *arguments, **keywords):
        """Four ranks, two on each host."""
        only = {rank: {"before": self.on(rank // 2)} for rank in range(4)}
        return Ranks(4, *arguments, how="tcp", address="10.77.0.1", only=only, GPT2C_SECRET=SECRET, **keywords)

    def remove(self):
        for name in self.made:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
        self.made = []


def host_options():
    return [*options(8, 1, 6), "-z", 1]


def test_two_hosts():
    hosts = TwoHosts()
    try:
        out = hosts.run(*host_options(), "-o", cli.new_folder("two_hosts")).finish()
    finally:
        hosts.remove()
    assert "ranks       4 on 2 machines; sharded: optimizer state" in out, out
    assert weights_hash(out) == weights_hash(ran(4, *host_options()))


@pytest.mark.long
def test_cut_network():
    """Each side misses the other."""
    hosts, folder = TwoHosts(), cli.new_folder("cut")
    # Rank 0 rests in step 5 until the end: a busy machine may take seconds to cut the cable.
    ranks = hosts.run(*host_options(), "-n", 3, "-o", folder, EMU_NCCL_FAULT="delay@0:50:60")
    try:
        ranks.until_printed("saved the checkpoint of step 3")
        hosts.ip("-n", hosts.names[1], "link", "set", hosts.cable[1], "down")
        since = time.monotonic()
        ranks.fail(["has not been heard of for 20 s", REMEDY])
    finally:
        hosts.remove()
    # Of ranks 2 and 3, rank 0 misses first whose last words before the cut are the older ones, and tells rank 1.
    for rank, far in enumerate((r"rank [23] \(hostb", r"rank [23] \(hostb", r"rank 0 \(hosta", r"rank 0 \(hosta")):
        assert re.search(far, ranks.err(rank)), ranks.outputs()
    assert ranks.err(0) == ranks.err(1), ranks.outputs()
    ranks.kill()
    record("the network between two machines is cut", ranks.all_ended() - since,
           ranks.err().split(": ", 1)[1].strip())
    out = ran(4, *host_options(), "-n", 3, "-o", folder, "--resume")
    assert steps_of(out) == [4, 5, 6], out
    assert weights_hash(out) == weights_hash(ran(4, *host_options())), out
