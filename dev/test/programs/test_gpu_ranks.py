"""Several ranks end to end: the GPU trainer in the emulator as two to four processes.

How they start, that a run goes on with another number of ranks, and how each fault ends: with which message, and what
the next start makes of it. Ranks that stand still, and refusals of a start: dev/test/ranks/test_comm.c. That
they compute what one rank computes: test_grid.py. In each stage of sharding with equal bits: test_runs.py.
"""
import functools
import os
import re
import shutil
import signal
import subprocess

import pytest

import cli
import gpu_program
from cli import log_of, losses, steps_of, stopped_after, weights_hash
from evalfiles import eval_file
from ranks import PROGRAM, Ranks, has_mpi, ran, refused
from run_folder import check_machine, check_options, record_of, speed_of

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
    """By MPI, TCP, and a folder: the same run. Its run.jsonl has all GPUs."""
    results, help_text = {}, gpu_program.ran("--help", "all")
    for count, hows in ((2, ("fs", "tcp", "mpi")), (4, ("tcp", "mpi")))[:1 if QUICK else 2]:
        for how in hows:
            if how == "mpi" and has_mpi():
                continue
            folder = cli.new_folder(f"start_{how}_{count}")
            out = ran(count, *options(4, 1, 4, "--val-every", 4), "-z", 1, "-o", folder, how=how, TERM="xterm")
            assert f"ranks       {count} on 1 machine" in out and f" x {count} ranks x " in out, out
            assert not re.search("[\r\x1b]", out), out  # mpirun has given its processes a terminal
            results[how, count] = weights_hash(out), log_of(folder), losses(out)
            assert cli.read(f"{folder}/model_best.bin") == cli.read(f"{folder}/model_00000004.bin"), out
            record = record_of(folder)
            check_options(record, {"zero-stage": 1, "tf32": 1, "watchdog": 45}, help_text)
            check_machine(record, count)
            gpus = record["hardware"]["gpus"]
            assert gpus["number"] == count and gpus["name"] in out and gpus["memory_bytes"] > 2**28, gpus
            assert f"compute capability {gpus['compute_capability']}" in out, gpus
            assert {"cuda_runtime", "cuda_driver", "cublaslt", "nccl"} <= set(record["versions"]), record["versions"]
            assert record["end"]["weights_hash"] == weights_hash(out) and len(speed_of(folder)) == 4, record
        assert len({str(results[key]) for key in results if key[1] == count}) == 1, results
    if has_mpi():
        pytest.skip(f"by MPI: {has_mpi()}")


def test_switches_do_not_add_up():
    """NCCL finds NVLS switched off on every rank, unless the user has said something else."""
    if not gpu_program.EMULATED:
        pytest.skip("the emulator's NCCL tells on stderr what it finds")
    gpu_program.GPU.environment.pop("NCCL_NVLS_ENABLE", None)
    for given, found in (({}, "0"), ({"NCCL_NVLS_ENABLE": "1"}, "1")):
        ranks = Ranks(2, *options(2, 1, 1), NCCL_DEBUG="INFO", **given)
        ranks.wait()
        said = f"emu: NCCL INFO NCCL_NVLS_ENABLE set by environment to {found}.\n"
        assert ranks.err(0) == ranks.err(1) == said, ranks.outputs()


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


# ---- Checkpoints: test_gpt2.cu compares those of any number of ranks ----


def test_damaged_replicas_are_found():
    """A bit that is wrong in one rank's copy of what all gather is found with the next step, before anything is saved,
    and the checkpoint before goes on. The collectives of stage 0: at the start 4 gathers for each of 4 buckets; a step
    has 4 reduce-scatters and 4 gathers of gradients and a gather of results."""
    run = options(4, 1, 8, "-n", 3)
    want = ran(2, *run, "-o", cli.new_folder("sound"))
    folder = cli.new_folder("corrupt")
    refused(2, *run, "-o", folder, EMU_NCCL_FAULT=f"corrupt@1:{16 + 9 * 4 + 2}",
            says=[re.compile("after step [56]: the weights of rank 1 "), "are not those of rank 0",
                  "these weights are not saved"])
    assert cli.checkpoints(folder) == [3]
    out = ran(2, *run, "-o", folder, "--resume")
    assert steps_of(out)[0] == 4 and weights_hash(out) == weights_hash(want)


# How far losses may lie apart, as a fraction. The runs add the same numbers in another order, so the sums of gradients
# differ by some units of 2^-24. In fp32 that reaches the sixth decimal of a loss, the last one printed. In bf16 the
# weights are rounded at random from their fp32 copies, up or down by up to a unit of 2^-8: where two copies differ in
# their last bits, a few of the thousands of weights come out a unit apart. Their effects have random signs; 2^-11, an
# eighth of a unit, is room for them.
LIMIT = 2.0**-11 if is_bf16() else 1e-6


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
        assert steps_of(out) == [4, 5, 6], out
        assert all(abs(a - b) <= LIMIT * a for a, b in zip(losses(want)[3:], losses(out))), (count, stage, want, out)
        assert count != saved_by or weights_hash(out) == weights_hash(want), (stage, want, out)


# ---- Faults ----

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


@pytest.mark.parametrize("fault, how, lost, says", (
    ("die@1", "fs", 1, ["rank 1 (", "ended without a word"]), ("die@0", "tcp", 0, ["rank 0 (", "ended without a word"]),
    ("hang@1", "fs", None, ["waits, as all ranks do", "in step 8", "the network or a GPU hangs"])),
                         ids=("killed", "killed_0", "hangs"))
def test_fault_in_a_step(fault, how, lost, says):
    """The others end, whoever it was. run.jsonl has no end of a run with a rank that was killed."""
    folder = cli.new_folder("fault")
    Ranks(3, *fault_options(folder, "--watchdog", 5), how=how,
          EMU_NCCL_FAULT=f"{fault}:{collective(8, 3)}").fail([*says, REMEDY], lost)
    assert lost is None or "end" not in record_of(folder)
    goes_on(folder, 6)


def held(seconds, step=5):
    """An environment in which rank 0 rests in a step: time to do something to a run that is going on."""
    return {"EMU_NCCL_FAULT": f"delay@0:{collective(step, 3)}:{seconds}"}


def test_disk_full_on_one_rank():
    folder = cli.new_folder("full")
    limited = {"before": ["sh", "-c", "ulimit -f 8; exec \"$@\"", "sh"]}
    refused(3, *fault_options(folder), only={1: limited}, says=["rank 1 (", "model_00000003.bin"])
    assert not [name for name in os.listdir(folder) if name.endswith(".bin")], os.listdir(folder)
    assert weights_hash(ran(3, *fault_options(folder, "--overwrite"))) == straight()[0]


def test_not_a_number_on_one_rank():
    """A model in which one token overflows, and that token in one sequence of step 5, on rank 1: all stop before the
    update, and the rank is named; and the tensor, if the batch in memory has that token, too."""
    config = cli.config(L=2, C=16, maxT=8, V=VOCAB, Vp=128)
    params = cli.make_params(config)
    bad = 7
    params["wte"][::16] = params["wpe"][::16] = params["attprojw"][:16] = params["attprojb"][0] = 0.0
    params["wte"][16 * bad] = 4.0
    # Of layer 0, number 3 of the inner layer is far below 0 but for that token: its GELU is 0 but for that token.
    params["fcw"][3 * 16:4 * 16] = [2.0**60] + [0.0] * 15
    params["fcb"][3] = -1.5 * 2.0**60
    params["fcprojw"][3:16 * 64:64] = 2.0**70
    sound = [token if token != bad else bad + 1 for token in tokens(600, 4)]
    spoilt, again = list(sound), list(sound)
    spoilt[T * (6 * 4 + 4) + 1] = again[T * (6 * 4 + 4) + 1] = again[T * (6 * 5 + 4) + 1] = bad
    run = changed(fault_options(cli.new_folder("nan")), *NO_SIZE, "--init",
                  cli.model("overflows.bin", config, params), "--train-data", cli.shard("nan.bin", again))
    says = ["step 5: the loss is", "first found in activation residual of layer 1 on rank 1 ("]
    refused(3, *run, says=says)
    assert cli.checkpoints(cli.path("nan")) == [3]
    refused(3, *run, "--resume", says=says, EMU_CHECK="1")
    cli.shard("nan.bin", spoilt)
    refused(3, *run, "--resume", "--allow-changes",
            says=["step 5: the loss is", "first found in the losses of rank 1 ("])
    cli.shard("nan.bin", sound)
    out = ran(3, *run, "--resume", "--allow-changes")
    assert steps_of(out) == [*range(4, FAULT_STEPS + 1)], out


def test_preempted():
    """A signal to one rank only, while another is late: all save together, and end with status 0."""
    running = []
    for rank, number in ((1, signal.SIGTERM), (2, signal.SIGHUP), (0, signal.SIGINT)):
        folder = cli.new_folder(f"preempted_{rank}")
        ranks = Ranks(3, *fault_options(folder), **held(2))
        ranks.until_printed(r"^step +3/")
        ranks.processes[rank].send_signal(number)
        running.append((folder, ranks))
    for folder, ranks in running:
        out, end = ranks.finish(), record_of(folder)["end"]
        assert f"stopped by a signal after {end['step']} of 9 steps; --resume goes on" in out, out
        assert end["status"] == "stopped" and end["weights_hash"] == weights_hash(out), end
        assert end["step"] == len(speed_of(folder)) == len(steps_of(out)), end
        goes_on(folder, end["step"])


def test_preempted_in_a_validation_and_a_sample():
    run = [*options(6, 1, 12, "--val-every", 12, "--val-sequences", 0), "-z", 3]
    folder = cli.new_folder("preempted_val")
    ranks = Ranks(3, *run, "-o", folder, EMU_NCCL_FAULT="delay@0:9:2")
    ranks.until_caught(1, signal.SIGTERM)  # a moment later than rank 0, which rests in the validation
    ranks.processes[1].send_signal(signal.SIGTERM)
    out = ranks.finish()
    assert "stopped by a signal after 0 of 12 steps" in out and cli.val_losses(out) == [], out
    out = ran(3, *run, "-o", folder, "--resume")
    assert len(cli.val_losses(out)) == 2 and steps_of(out) == [*range(1, 13)], out
    run = changed(run, "--val-every", 0, "--sample-every", 3, "--sample-tokens", 100000)
    ranks = Ranks(3, *run, "-o", folder, "--overwrite")
    ranks.until_printed("^sample after 3 steps:")
    ranks.processes[2].send_signal(signal.SIGTERM)
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
    ranks.fail(["r_train_1.bin: cannot open: No such file"])
    assert "rank 1 (" in ranks.err() and REMEDY in ranks.err(), ranks.outputs()
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
    for changes, only, says in (
            ((), {"arguments": ["--lr", 1e-3]}, ["rank 1 (", "--lr is 0.001, but 0.0003 on rank 0"]),
            (("-i", "u.bin"), {"folder": own}, ["the training data's fingerprint", "on rank 0"]),
            (("-e", "model.bin"), {"folder": own}, ["the model file's fingerprint"]),
            (questions, {"folder": own}, ["the HellaSwag file's fingerprint"]),
            ((), {"program": cli.path("another_program")}, ["the program file's checksum"])):
        refused(2, *changed(run, *changes), folder=cli.FOLDER, only={1: only}, says=says)


def test_unfit_for_the_machine():
    run = options(3, 1, 2)
    refused(3, *run, says=["no GPU for this process", "2 GPUs"], EMU_GPUS="2")
    refused(3, *options(12, 3, 2), says=["--total-batch", "give 36", "3 ranks"])
    # A launcher may show each process one GPU, which it then takes. The emulator's NCCL notices that all have the same.
    if gpu_program.EMULATED:
        ranks = Ranks(2, *options(2, 1, 2), EMU_GPUS="1")
        ranks.wait()
        assert re.search("on device 0, which rank [01] uses", ranks.outputs()), ranks.outputs()
    folders = [cli.new_folder("machine_a"), cli.new_folder("machine_b")]
    for folder in folders:
        os.mkdir(folder)
    refused(3, *run, "-o", "run", only={rank: {"folder": folders[rank == 2]} for rank in range(3)},
            says=["--out-dir (-o): run is not the folder that rank 0 sees"])


# ---- Two hosts ----


HOST_RUN = [*options(8, 1, 6), "-z", 1]


class TwoHosts:
    """Two network namespaces joined by a cable, 10.77.0.1 and 10.77.0.2, with host names of their own."""

    NOT_HERE = re.compile("not permitted|denied|not supported|Unknown device type|Read-only", re.I)

    def __init__(self, name):
        own = f"{name}{os.getpid()}"
        self.names, self.cable = [f"gpt2c_{own}{letter}" for letter in "ab"], [f"v{own}{letter}" for letter in "ab"]

    def __enter__(self):
        if shutil.which("ip") is None or shutil.which("unshare") is None:
            pytest.skip("no ip (iproute2) or no unshare (util-linux)")
        (a, b), cable = self.names, self.cable
        try:
            self.ip(f"netns add {a}"), self.ip(f"netns add {b}")
            self.ip(f"link add {cable[0]} netns {a} type veth peer name {cable[1]} netns {b}")
            for i, name in enumerate(self.names):
                self.ip(f"-n {name} addr add 10.77.0.{i + 1}/24 dev {cable[i]}")
                self.ip(f"-n {name} link set {cable[i]} up"), self.ip(f"-n {name} link set lo up")
            subprocess.run(self.on(0, "true"), check=True, capture_output=True)
        except subprocess.CalledProcessError as problem:
            self.__exit__()
            why = problem.stderr.decode().strip()
            assert self.NOT_HERE.search(why), why
            pytest.skip(f"network namespaces are not permitted here: {why}")
        return self

    def __exit__(self, *_):
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)

    def ip(self, words):
        subprocess.run(["ip", *words.split()], check=True, capture_output=True)

    def on(self, host, *command):
        script = f"hostname host{'ab'[host]} && exec \"$@\""
        return ["ip", "netns", "exec", self.names[host], "unshare", "--uts", "sh", "-c", script, "sh", *command]

    def run(self, *arguments, **keywords):
        """Four ranks, two on each host."""
        only = {rank: {"before": self.on(rank // 2)} for rank in range(4)}
        return Ranks(4, *arguments, how="tcp", address="10.77.0.1", only=only, GPT2C_SECRET=SECRET, **keywords)


def test_two_hosts():
    with TwoHosts("w") as hosts:
        out = hosts.run(*HOST_RUN, "-o", cli.new_folder("two_hosts")).finish()
    assert "ranks       4 on 2 machines; sharded: optimizer state" in out, out
    assert weights_hash(out) == weights_hash(ran(4, *HOST_RUN))


@pytest.mark.long
def test_cut_network():
    """Each side misses the other. Of ranks 2 and 3, rank 0 misses first whose last words before the cut are the older
    ones, and tells rank 1."""
    folder = cli.new_folder("cut")
    with TwoHosts("c") as hosts:
        # Rank 0 rests in step 5 until the end: a busy machine may take seconds to cut the cable.
        ranks = hosts.run(*HOST_RUN, "-n", 3, "-o", folder, EMU_NCCL_FAULT="delay@0:50:60")
        ranks.until_printed("saved the checkpoint of step 3")
        hosts.ip(f"-n {hosts.names[1]} link set {hosts.cable[1]} down")
        ranks.fail(["has not been heard of for 20 s", REMEDY])
    for rank, far in enumerate((r"rank [23] \(hostb", r"rank [23] \(hostb", r"rank 0 \(hosta", r"rank 0 \(hosta")):
        assert re.search(far, ranks.err(rank)), ranks.outputs()
    out = ran(4, *HOST_RUN, "-n", 3, "-o", folder, "--resume")
    assert steps_of(out) == [4, 5, 6] and weights_hash(out) == weights_hash(ran(4, *HOST_RUN)), out
