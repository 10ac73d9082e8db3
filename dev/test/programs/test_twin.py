"""train_gpt2.py against ./train_gpt2: data order, initial weights, rates (these need no PyTorch), then whole runs in
fp32 and bf16, several processes, the files of a run."""
import contextlib
import io
import os
import re
import signal
import subprocess
import sys

import numpy as np
import pytest

import cli
import run_folder
from cli import weights_hash
from tools import ROOT

FIXTURES = os.path.join(ROOT, "dev", "test", "fixtures")
EMULATED = os.path.join(ROOT, "train_gpt2emu")
FLT_EPSILON = 2.0**-23
LIMIT = 600  # seconds for a process: generous, machines that run tests are busy
# One thread; and oneDNN believes a virtual machine that claims to have AMX, and dies there.
ENVIRONMENT = dict(os.environ, OMP_NUM_THREADS="1", OMP_WAIT_POLICY="passive", EMU_THREADS="1", EMU_CHECK="0",
                   ONEDNN_MAX_CPU_ISA="AVX512_CORE_BF16", PYTHONDONTWRITEBYTECODE="1")
os.environ.update({name: ENVIRONMENT[name] for name in ("OMP_NUM_THREADS", "ONEDNN_MAX_CPU_ISA")})
sys.path.insert(0, ROOT)
sys.dont_write_bytecode = True


@pytest.fixture
def folder(tmp_path):
    return str(tmp_path)


# ---- What needs no PyTorch ----


def test_order_of_the_data(folder):
    """Over epochs, of shards of all sizes: the losses of the sequences that the twin names are those of the C trainer
    with a learning rate of 0."""
    from dev.twin.data import open_sequences
    config, T = cli.config(), 7
    params = cli.make_params(config)
    model = cli.model("order.bin", config, params)
    several, large = (100, 8, 9, 300, 15), (8000, 3001)  # tokens; the first are 61 windows, two epochs in 130 steps
    for counts, words, seed in ((several, [], 0), (several, ["--shuffle"], 0), (several, ["--shuffle"], 2**32 - 1),
                                (large, ["--shuffle"], 7)):
        files = f"{folder}/{len(counts)}_*.bin"
        for i, count in enumerate(counts):
            cli.shard(files.replace("*", str(i)), cli.random_tokens(count, 257, seed=i))
        out = run_c("-i", files, "--init", model, "-t", T, "-b", 1, "--steps", 130, "--lr", 0, "--seed", seed, *words)
        rows = open_sequences(files, T, 257, words != [], seed)[0].read(range(130)).tolist()
        want = [sum(cli.reference_losses(config, params, row[:-1], row[1:])) / T for row in rows]
        found = cli.losses(out)
        assert len(found) == 130 and all(abs(a - b) <= 1e-5 for a, b in zip(found, want)), (counts, words, seed)


def test_initial_weights(folder):
    """The hash of the C trainer's weights after an update with a learning rate of 0."""
    from dev.twin import data, weights
    seed = 4294967295
    ours = weights.initial(weights.Config(20, 257, 384, 3, 6, 384), seed)
    out = run_c("-i", write_text(folder), "--init", "d6", "--layers", 3, "--context", 20, "-t", 20, "-b", 1,
                "--steps", 1, "--lr", 0, "--seed", seed)
    assert f"{data.sum64(ours):016x}" == weights_hash(out)


def test_schedules(folder):
    """Every schedule that the options name: the same rates as C's, which main.log has to 6 digits."""
    from dev.twin import options
    for name in options.SHAPES:
        for warmup, total, final in ((0, 10, 0.0), (3, 10, 0.1), (9, 10, 0.0), (1, 1, 1.0), (10, 10, 0.1)):
            words = [] if name == "constant" else ["--final-lr-frac", final]
            run_c("-i", write_text(folder), *cli.TINY, "--lr", 1, "--schedule", name, "--warmup", warmup,
                  "--steps", total, "-o", folder, "--overwrite", *words)
            rates = [float(rate) for rate in re.findall(r" lr:([\d.]+)", cli.log_of(folder))]
            want = [options.learning_rate(step, 1, warmup, total, final if words else 1, name) for step in range(total)]
            assert len(rates) == total and all(abs(a - b) <= 1e-6 for a, b in zip(rates, want)), (name, rates, want)


# ---- Running both programs ----


def write_text(folder):
    path = os.path.join(folder, "text.txt")
    with open(path, "wb") as file:
        file.write(b"".join(b"line %d: the square of %d is %d.\n" % (i, i, i * i) for i in range(32)))
    return path


def quiet(arguments):
    """These arguments, without validations unless they ask for some."""
    words = list(map(str, arguments))
    return words if "--val-every" in words else [*words, "--val-every", "0"]


def run_c(*arguments, program=cli.PROGRAM):
    """What a C trainer prints."""
    return cli.Trainer(program, **ENVIRONMENT).ran(*quiet(arguments), "--sample-every", "0")


def run_twin(*arguments):
    """What the twin prints, in this process: it takes seconds to start another."""
    import train_gpt2
    from dev.twin import options
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        train_gpt2.Run(options.parse(quiet(arguments), False)).run()
    return out.getvalue()


def start_twin(*arguments, module=()):
    return subprocess.Popen([sys.executable, *module, os.path.join(ROOT, "train_gpt2.py"), *map(str, arguments)],
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT,
                            start_new_session=True)


def finish(process):
    """Output, errors and status; nothing of it lives on."""
    try:
        out, err = process.communicate(timeout=LIMIT)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return out, err, process.returncode


STEP = re.compile(r"^step +(\d+)/(\d+) \| loss +([0-9.]+) \| norm +([0-9.]+) \| lr +(\S+) \|", re.M)
VAL = re.compile(r"^step +(\d+)/(\d+) \| val loss +([0-9.]+) \((\d+ of \d+) sequences\)$", re.M)


def compare(ours, theirs, steps, loss_tolerance, norm_tolerance, what):
    """The step and validation lines of two runs. Tolerances are relative, beside the last printed digit."""
    a, b = STEP.findall(ours), STEP.findall(theirs)
    assert len(a) == len(b) == steps, f"{what}: {len(a)} and {len(b)} step lines, expected {steps} each"
    for x, y in zip(a, b):
        assert x[:2] == y[:2] and x[4] == y[4], f"{what}: {x} against {y}"
        for k, digit, tolerance in ((2, 1e-6, loss_tolerance), (3, 1e-4, norm_tolerance)):
            assert abs(float(x[k]) - float(y[k])) <= digit + tolerance * float(y[k]), f"{what}: {x} against {y}"
    a, b = VAL.findall(ours), VAL.findall(theirs)
    assert len(a) == len(b), f"{what}: {len(a)} and {len(b)} validations"
    for x, y in zip(a, b):
        apart = abs(float(x[2]) - float(y[2]))
        assert x[:2] == y[:2] and apart <= 1e-6 + loss_tolerance * float(y[2]), f"{what}: {x} against {y}"


MODEL = ["--init", "d6", "--layers", "2", "--heads", "3", "--channels", "48", "--context", "40", "--seq-len", "33",
         "--lr", "0.002", "--seed", "7"]
# fp32: a loss is a mean of logarithms of sums over 48 to 257 products, each rounded to 2^-24; some updates later the
# weights, too, differ by a few roundings. With Muon a loss is within 1e-5 after 50 updates, although NS5 enlarges
# roundings: a loss is at most about ln 257, so a relative 12 epsilon beside the printed digit are less than that.
LOSS_FP32, LOSS_MUON, NORM_FP32 = 32 * FLT_EPSILON, 12 * FLT_EPSILON, 512 * FLT_EPSILON


def shards_of(folder):
    """Four shards of unequal size, of a model's 300 tokens; 41 windows in all."""
    generator = np.random.default_rng(3)
    for i, windows in enumerate((3, 25, 1, 12)):
        cli.shard(f"{folder}/part_{i}.bin", (generator.integers(0, 20, 33 * windows + i) ** 2 % 300).tolist())
    return f"{folder}/part_*.bin"


def test_same_losses_as_c(folder):
    """Same seed, data and options: the same losses, norms, learning rates and validations."""
    pytest.importorskip("torch")
    text, shards, tokens = write_text(folder), shards_of(folder), f"{folder}/tokens.bin"
    cli.shard(tokens, [i * i % 101 for i in range(400)])
    model, batch = " ".join(MODEL), "--batch-size 3 --total-batch 198"
    muon = f"-i {text} --init d6 --layers 2 --heads 4 --channels 64 --context 32 -t 32 -b 4 --optimizer muon "
    muon += "--steps 50 --warmup 0"
    for what, steps, tolerance, options in (
            ("accumulation, clipping, decay, two epochs and a half", 12, LOSS_FP32, f"{model} -i {text} {batch} "
             "--warmup 2 --final-lr-frac 0.1 --weight-decay 0.1 --grad-clip 2.2 --val-every 4 --val-sequences 4 "
             "--steps 12"),
            ("several shards, shuffled, across an epoch's border", 9, LOSS_FP32, f"{model} -i {shards} --vocab 300 "
             f"--shuffle {batch} --val-data {folder}/part_1.bin --val-every 5 --val-sequences 0 --steps 9"),
            ("several shards in order, once, wsd, a large epsilon, no clipping", 10, LOSS_FP32, f"{model} -i {shards} "
             "--vocab 300 --batch-size 4 -k wsd -q 0.2 --adam-eps 1e-5 --grad-clip 0"),
            ("a given model", 4, LOSS_FP32, f"-i {tokens} --init {FIXTURES}/tiny.bin --seq-len 13 --steps 4"),
            ("Muon, Jordan's scale, own rate, a batch in two parts", 50, LOSS_MUON, f"{muon} --muon-lr 0.005 -k linear "
             "--total-batch 256"),
            ("Muon, AdamW's scale, decay, clipping, a warm-up that ends", 50, LOSS_MUON, f"{muon} --muon-scale rms "
             "--weight-decay 0.1 --grad-clip 0.5 --muon-warmup 20 --lr 0.003 --warmup 5")):
        ours, theirs = run_c(*options.split()), run_twin(*options.split())
        compare(ours, theirs, steps, tolerance, NORM_FP32, what)


def test_muon_as_in_pytorch():
    """Six updates in bf16 beside torch.optim.Muon, which gets each third of qkv's weight as a matrix of its own."""
    torch = pytest.importorskip("torch")
    if not hasattr(torch.optim, "Muon"):
        pytest.skip(f"PyTorch {torch.__version__} has no Muon")
    import train_gpt2
    from dev.twin import weights

    def matrices(tensors):
        """Of qkv's weight (3C, C), c_proj's, c_fc's and c_proj's of each block."""
        return [part for W in tensors for part in (W.chunk(3) if W.shape == (144, 48) else [W])]

    generator = torch.Generator().manual_seed(3)
    for scale, theirs in (("original", "original"), ("rms", "match_rms_adamw")):
        model = train_gpt2.GPT2(weights.Config(8, 11, 128, 2, 3, 48))
        ours_are = [p for p in model.h.parameters() if p.dim() == 2]
        start = [part.detach().clone() for part in matrices(ours_are)]
        copies = [torch.nn.Parameter(part.clone()) for part in start]
        ours = train_gpt2.Muon(model, scale, 0.1, torch.bfloat16)
        peer = torch.optim.Muon(copies, lr=0.02, weight_decay=0.1, momentum=0.9, adjust_lr_fn=theirs)
        for _ in range(6):
            for W in ours_are:
                W.grad = torch.randn(W.shape, generator=generator)
            for copy, part in zip(copies, matrices([W.grad for W in ours_are])):
                copy.grad = part.clone()
            for group in ours.param_groups:
                group.update(lr=0.02, momentum=0.9)
            ours.step()
            peer.step()
        assert len(copies) == 12
        for got, want, before in zip(matrices(ours_are), copies, start):
            # Both programs round 15 products in a row to bf16's 8 bits: sqrt(30) 2^-9 is the usual distance.
            apart, moved = (got - want).norm().item(), (want - before).norm().item()
            assert apart <= 2 * 30**0.5 * 2.0**-9 * moved, f"{scale}, {tuple(got.shape)}: moved {moved}, {apart} apart"


def test_bf16_as_in_the_gpu_trainer(folder):
    """bf16 has 8 bits: a hundredth of the norm, and of the loss, which averages over the tokens, a thousandth."""
    pytest.importorskip("torch")
    if not os.path.exists(EMULATED):
        pytest.skip("train_gpt2emu is not built")
    options = ["-i", write_text(folder), *MODEL, "--batch-size", "4", "--total-batch", "264", "--steps", "6",
               "--val-every", "3", "--val-sequences", "4"]
    ours = run_c(*options, program=EMULATED)
    if not re.search(r"^precision +bf16", ours, re.M):
        pytest.skip("train_gpt2emu is not built for bf16")
    for precision in ("bf16", "autocast"):
        compare(ours, run_twin(*options, "--precision", precision), 6, 1e-3, 2e-2, precision)


def test_several_processes(folder):
    """Two processes train like one."""
    pytest.importorskip("torch")
    options = ["-i", write_text(folder), *MODEL, "--total-batch", "396", "--steps", "4", "--val-every", "2",
               "--val-sequences", "4", "--weight-decay", "0.1", "--shuffle", "--batch-size", "3"]
    cases = [options, [*options, "--optimizer", "muon"]]
    two = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    processes = [start_twin(*words, "--device", "cpu", module=two) for words in cases]
    for process, words in zip(processes, cases):
        out, err, status = finish(process)
        assert status == 0 and " x 2 processes x " in out, (out, err)
        compare(run_twin(*words), out, 4, LOSS_FP32, NORM_FP32, f"two processes {words[-1]}")


def test_files_of_a_run(folder):
    """main.log, speed.log and run.jsonl as the trainers write them, and the model, which the C trainer reads."""
    pytest.importorskip("torch")
    text, run = write_text(folder), f"{folder}/run"
    options = ["-i", text, *MODEL, "--steps", "3", "--val-every", "2", "--val-sequences", "4", "-o", run]
    out = run_twin(*options)
    number = r"\d+\.\d+"
    lines = [rf"s:0 tel:{number}", rf"s:0 trl:{number} lr:0\.002000 norm:{number}", rf"s:1 trl:{number} .*",
             rf"s:2 tel:{number}", rf"s:2 trl:{number} .*", rf"s:3 tel:{number}", ""]
    log, record = cli.log_of(run), run_folder.record_of(run)
    assert re.fullmatch("\n".join(lines), log) and len(run_folder.speed_of(run)) == 3, log
    assert (record["format"], record["program"], record["steps"], record["options"]["lr"]) == (
        2, "train_gpt2.py", 3, "0.002"), record
    end = record["end"]
    assert (end["step"], end["status"], end["weights_hash"]) == (3, "done", weights_hash(out)), end
    with pytest.raises(Exception, match="holds an earlier run; remove it"):
        run_twin(*options)
    model = run_c("--init", f"{run}/model_00000003.bin", "-i", text, "-t", 33, "--steps", 1, "--lr", 0)
    assert weights_hash(model) == weights_hash(out), "the C trainer reads other weights than were written"


def test_one_line():
    """What a user is told."""
    pytest.importorskip("torch")
    out, err, status = finish(start_twin("-i", "none*", "--device", "cpu"))
    assert (out, err, status) == ("", "train_gpt2.py: none*: no such file\n", 1)


# ---- The fixtures ----


@pytest.mark.long
def test_fixtures_are_reproducible(folder):
    """Another version of PyTorch may round a last bit differently, no more."""
    pytest.importorskip("transformers")
    pytest.importorskip("torch")
    result = subprocess.run([sys.executable, f"{ROOT}/dev/test/fixtures/make_fixtures.py", "--output", folder],
                            capture_output=True, text=True, cwd=ROOT, timeout=LIMIT)
    assert result.returncode == 0, result.stderr
    for name in ("tiny.bin", "tiny_bf16.bin", "tiny_debug_state.bin", "tiny_steps.bin", "tiny_after_10.bin",
                 "init.bin", "hf_tiny/model.safetensors", "tiny_muon_steps.bin", "tiny_muon_after_10.bin", "ns5.bin"):
        got, want = (np.fromfile(f"{place}/{name}", "f") for place in (folder, FIXTURES))
        assert len(got) == len(want), f"{name}: {4 * len(got)} bytes, committed {4 * len(want)}"
        # Most of the bytes are floats or whole numbers, which must be equal.
        near = np.abs(got - want) <= 4 * FLT_EPSILON * np.maximum(np.abs(want), 1e-3)
        bad = np.flatnonzero(~near & (got.view("i4") != want.view("i4")))
        assert len(bad) == 0, f"{name}: number {bad[0]} is {got[bad[0]]}, committed {want[bad[0]]}"
