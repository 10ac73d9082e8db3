#!/usr/bin/env python3
"""Predicts a training step of GPT-2 or Llama 3 on NVIDIA GPUs, kernel by kernel: FLOPs, bytes, and the time that
follows from both. Nothing is measured. The constants below are assumptions, and so are these:

- Every tensor comes from memory. The arithmetic of a kernel hides its bytes, or its bytes hide the arithmetic.
- A multiprocessor computes one tile of a product at a time, and the last wave of tiles takes as long as a whole one.
  cuBLASLt takes the fastest tile, and does not split a sum among multiprocessors.
- What a GPU sends hides behind the computation beside it, but for the first and the last bucket.
- What --tp, --cp and --pp send hides behind nothing. All stages take as long as the last one, which has the head.
- What --offload moves hides behind the passes, or the passes hide behind it. The same holds for the update.

FLOPs, shapes of tensors and bytes that travel are those of --plan (make train_gpt2emu train_llama3emu).

    dev/bench/predict.py --init d12 --batch-size 64      the kernels of a step on one H100
    dev/bench/predict.py -e llama:8B --gpu 4090 -b 16 -t 2048 -d 524288 --recompute 3 --offload all
    dev/bench/predict.py --figures                       predicted figures of the documents and the recipes
"""
import argparse
import collections
import math
import os
import pathlib
import re
import subprocess
import sys

MEMORY = 0.88             # of the datasheet's bytes a second, for a kernel that moves bytes
MATMUL, FP8 = 0.73, 0.65  # of the tensor cores' datasheet figure, on full tiles of 128 x 256
TILES = {256: 1.0, 192: 0.97, 160: 0.94, 128: 0.9, 64: 0.75}  # 128 x so many: speed as a part of that of 128 x 256
FORWARD, BACKWARD = 0.55, 0.45  # of the tensor cores' figure, in cuDNN's attention ...
SOFTMAX = 64              # ... whose softmax costs as much for a score as products over so many channels
OWN_ATTENTION = 0.5       # the FLOPs a second of our attention kernels, as a part of cuDNN's
LAUNCH = 2e-6             # seconds from the end of a kernel to full speed of the next one
LINK = 0.8                # of the datasheet's bytes a second, in a ring of GPUs
CARDS, CARD = 8, 50e9     # network cards of a machine with 8 GPUs, and bytes a second of each. A ring uses all cards
HEAD_ROWS = 8192          # rows of logits at a time
BUSES = 25e9, 50e9        # bytes a second from the host to a GPU, and as many at once back: PCIe 4 and 5
PRICES = {"a100": 1.5, "h100": 2.5}  # dollars for an hour of one

ROOT = pathlib.Path(__file__).resolve().parents[2]
Gpu = collections.namedtuple("Gpu", "flops fp8_flops memory link processors")
Kernel = collections.namedtuple("Kernel", "calls bytes flops seconds", defaults=(0, 0, 0, 0))


def text_of(path):
    return (ROOT / path).read_text(encoding="utf-8")


def gpus():
    """The cards of llmc/model/gpu_peak.h of which all figures are known."""
    row = r'\{"([\w-]+)", "[^"]+", \{([\d.]+), [\d.]+, [\d.]+, ([\d.]+)\}, (\d+), (\d+), (\d+),'
    return {name: Gpu(1e12 * float(bf16), 1e12 * float(fp8), 1e9 * float(memory), 1e9 * float(link), int(processors))
            for name, bf16, fp8, memory, link, processors in re.findall(row, text_of("llmc/model/gpu_peak.h"))}


def plan(words, kind="emu"):
    """What --plan all says, as on a GPU of 80 GB with cuDNN."""
    program = f"train_{'llama3' if re.search('llama|smollm', words) else 'gpt2'}{kind}"
    if not (ROOT / program).exists():
        sys.exit(f"{program} is not here, whose --plan is needed: make {program}")
    environment = {**os.environ, "EMU_CUDNN": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([ROOT / program, "--plan", "all", *words.split()], env=environment, stdout=subprocess.PIPE)
    return done.stdout.decode() if done.returncode == 0 else sys.exit(1)  # the program has said why


class Step:
    """A step of each GPU, of a run with the trainer's options. --plan has the shapes of its tensors."""

    def __init__(self, words):
        run = self.run = options(words.split())
        planned = plan(f"-e {run.init} -b {run.batch_size} -t {run.seq_len} -d {run.total_batch} -r {run.recompute} "
                       f"-z {run.zero_stage} {re.sub('--gpu[ =][^ ]+', '', words)}")
        host, flops, traffic = re.search(r"\nOn the host\n(.*)\na step +(\S+)(.*)", planned, re.S).groups()
        kept = re.findall(r"^(?:params|master|grads|adam_.) .*?\) +\w+ +(\d+)", host, re.M)
        self.kept = sum(map(int, kept))  # bytes that AdamW uses and the host keeps
        self.flops, self.traffic = float(flops), traffic.split("\nstage")[-1]
        self.gpu, self.kernels = gpus()[run.gpu], {}
        rows = re.findall(r"^(\w+) +\(([\d, ]+)\)", planned, re.M)
        shapes = {name: [*map(int, shape.split(","))] for name, shape in rows}
        layers, padded_vocab = map(int, re.search(r"^model +(\d+) layers.*padded (\d+)\)$", planned, re.M).groups())
        # This GPU's part of the layers, of each layer and of the tokens. ranks: how many share a bucket.
        self.L, self.padded_vocab = math.ceil(layers / run.pp), padded_vocab // run.tp
        self.C, self.heads, qkv, fc = (shapes[name][-1] for name in ("residual", "att_lse", "qkv", "fc"))
        self.tokens, self.Q = shapes["att"][-2:]
        self.llama, self.KV = "swiglu" in shapes, (qkv - self.Q) // 2
        self.F = fc // 2 if self.llama else fc  # channels of the MLP, of which Llama's fc has two each
        self.ranks = run.num_processes // (run.tp * run.pp)
        self.stage = run.zero_stage if self.ranks > 1 else 0
        self.micro_batches = run.total_batch // (self.tokens * self.ranks)
        self.layers = self.L * self.micro_batches
        self.again = self.layers - self.micro_batches if run.recompute else 0  # blocks whose forward runs again
        self.linears = ("qkv", self.C, qkv), ("attproj", self.Q, self.C), ("fc", self.C, fc), ("fcproj", self.F, self.C)
        self.own = shapes["adam_m"][0]  # the parameters that this GPU updates
        self.parameters = self.own * (self.ranks if self.stage else 1)
        self.blocks = self.L * sum(C * OC for _, C, OC in self.linears) / self.parameters  # the blocks' part of them
        for add in (self.add_linear_layers, self.add_lm_head, self.add_attention, self.add_layers, self.add_update):
            add()
        self.compute = sum(kernel.seconds for kernel in self.kernels.values())
        self.seconds = self.compute + self.waits()
        self.mfu = self.flops / self.seconds / self.gpu.flops
        self.speed = run.total_batch / self.seconds

    # --- kernels ---
    def add(self, name, calls, bytes_, flops, seconds):
        one, before = (1, bytes_, flops, seconds + LAUNCH), self.kernels.get(name, Kernel())
        self.kernels[name] = Kernel(*(sum_ + calls * x for sum_, x in zip(before, one)))

    def move(self, name, calls, bytes_):
        """A kernel that moves so many bytes in each call."""
        self.add(name, calls, bytes_, 0, bytes_ / (MEMORY * self.gpu.memory))

    def matmul(self, name, calls, m, n, k, fp8=False, adds=False):
        """C (m, n) = A (m, k) B (k, n) in bf16. adds: C += in fp32."""
        peak = FP8 * self.gpu.fp8_flops if fp8 else MATMUL * self.gpu.flops
        bytes_, seconds = (m * k + k * n) * (1 if fp8 else 2) + m * n * (8 if adds else 2), []
        for width, speed in TILES.items():
            for rows, columns in ((128, width), (width, 128)):
                waves = math.ceil(math.ceil(m / rows) * math.ceil(n / columns) / self.gpu.processors)
                seconds.append(waves * self.gpu.processors * 2 * rows * columns * k / (peak * speed))
        self.add(name, calls, bytes_, 2 * m * n * k, max(min(seconds), bytes_ / (MEMORY * self.gpu.memory)))

    def linear(self, name, calls, rows, C, OC, fp8=False):
        again = self.again if name in ("qkv", "attproj", "fc") else 0
        self.matmul(f"matmul {name} forward", calls + again, rows, OC, C, fp8)
        self.matmul(f"matmul {name} backward weight", calls, OC, C, rows, fp8, adds=True)
        self.matmul(f"matmul {name} backward input", calls, rows, C, OC, fp8)

    def add_linear_layers(self):
        """In 8 bits, weights, inputs and gradients of outputs are written as they are and transposed."""
        for name, C, OC in self.linears:
            self.linear(name, self.layers, self.tokens, C, OC, self.run.fp8)
            if self.run.fp8:
                updates = 2 * self.layers if self.stage == 3 else self.L
                self.move("fp8_amax", updates, 2 * C * OC)
                self.move("fp8_quantize", updates, 4 * C * OC)
                for width in (C, OC):
                    self.move("fp8_quantize", self.layers, 4 * self.tokens * width)

    def add_lm_head(self):
        parts = math.ceil(self.tokens / HEAD_ROWS)
        rows, calls = self.tokens / parts, parts * self.micro_batches
        self.linear("lm_head", calls, rows, self.C, self.padded_vocab)
        self.move("cross_entropy", calls, 4 * rows * self.padded_vocab)

    def scores(self, name, calls, products, bytes_, efficiency, beside=0):
        """So many products of (T, T) and (T, HS) for each head. The causal mask halves each."""
        flops, bandwidth = products * self.tokens * self.run.seq_len * self.Q, MEMORY * self.gpu.memory
        seconds = flops * (1 + SOFTMAX * self.heads / self.Q) / (efficiency * self.gpu.flops)
        self.add(name, calls, bytes_ + beside, flops, max(seconds, bytes_ / bandwidth) + beside / bandwidth)

    def add_attention(self):
        q, kv, rows = (self.tokens * values for values in (2 * self.Q, 4 * self.KV, 4 * self.heads))
        layers = self.layers
        if self.run.attention == "cudnn" and self.run.cp == 1:
            # Its backward writes the gradients of the scores and reads them again.
            self.scores("cudnn forward", layers + self.again, 2, 2 * q + kv + rows, FORWARD)
            self.scores("cudnn backward", layers, 5, 4 * q + 2 * kv + 2 * rows, BACKWARD, rows * self.run.seq_len / 2)
            if self.run.fp8:
                self.move("fp8_amax", layers, q)
            return
        self.scores("attention_forward", layers + self.again, 2, 2 * q + kv + rows, OWN_ATTENTION * FORWARD)
        self.move("attention_delta", layers, 2 * q + rows)
        self.scores("attention_backward_kv", layers, 4, 2 * q + 2 * kv + 2 * rows, OWN_ATTENTION * BACKWARD)
        self.scores("attention_backward_q", layers, 3, 3 * q + kv + 2 * rows, OWN_ATTENTION * BACKWARD)

    def add_layers(self):
        """Norms, activation, the gradient of qkv's bias or rotations. In 8 bits GELU is a part of fp8_quantize."""
        layers, fp8, value, rows = self.layers, self.run.fp8, 2 * self.tokens, self.tokens // self.run.tp
        tensor, m = 2 * rows * self.C, self.micro_batches
        self.move("fused_residual_layernorm_forward", 2 * layers - m + self.again, 4 * tensor)
        self.move("residual_forward", m, 3 * tensor)
        self.move("layernorm_forward", 2 * m + self.again, 2 * tensor)
        self.move("layernorm_backward", 2 * layers, 4 * tensor + 8 * rows)
        self.move("layernorm_backward", m, 3 * tensor + 8 * rows)
        if self.llama:
            self.move("rope", 2 * layers + self.again, 2 * value * (self.Q + self.KV))
            self.move("swiglu_forward", layers + self.again, 3 * value * self.F)
            self.move("swiglu_backward", layers, 5 * value * self.F)
            return
        self.move("fp8_amax" if fp8 else "gelu_forward", layers + self.again, (1 if fp8 else 2) * value * self.F)
        self.move("gelu_backward", layers, 3 * value * self.F)
        self.move("matmul_sum_rows", layers, 3 * value * self.Q)

    def add_update(self):
        """AdamW reads a gradient, reads and writes m, v and the fp32 weight, and writes the bf16 weight."""
        moment = 2 if self.run.moments == "bf16" else 4
        self.move("fill", self.micro_batches if self.stage > 1 else 1, 4 * self.parameters)
        self.move("global_norm_squared", self.L + 1, 4 * self.own / (self.L + 1))
        self.move("update_elements", self.L + 1, (14 + 4 * moment) * self.own / (self.L + 1))

    # --- between GPUs, and between a GPU and its host ---
    def travels(self, kind):
        """Bytes of a kind that a GPU of the last stage moves in a step."""
        found = re.search(rf"(\d+) (?:bytes )?{kind}", self.traffic)
        return int(found[1]) if found else 0

    def sends(self, kind, ranks, apart):
        """Seconds for bytes of a kind in a ring of so many GPUs, each the neighbour of the one so many places on."""
        cards = max(1, CARDS // apart) * CARD  # of those on one machine
        return self.travels(kind) / (LINK * (self.gpu.link if ranks * apart <= 8 else min(self.gpu.link, cards)))

    def seconds_of(self, pattern):
        return sum(kernel.seconds for name, kernel in self.kernels.items() if re.match(pattern, name))

    def waits(self):
        """Seconds in which nothing is computed."""
        tp, cp, pp, m = self.run.tp, self.run.cp, self.run.pp, self.micro_batches
        gradients, weights = (self.sends(kind, self.ranks, tp * pp) for kind in ("of gradients", "of parameters"))
        sends = self.sends("for tensor", tp, 1) + self.sends("of keys", cp, tp)
        sends += 2 * self.sends("to other stages", pp, tp * cp)
        passes = self.compute - self.seconds_of("fill|global_norm|update_elements")
        idle = (passes + sends) * (pp - 1) / (self.run.pp_chunks * m)
        travel = m if self.stage >= 2 else 1  # micro-batches in which gradients and weights travel
        blocks = (passes - self.seconds_of("matmul lm_head|cross_entropy")) / m
        hides = self.blocks * (self.L - 1) / self.L
        late = max(0, hides * (gradients + weights) - travel * blocks)
        return sends + idle + late + (1 - hides) * (gradients + weights) / travel

    def seconds_with_bus(self, speed):
        """What the host keeps for AdamW moves in the update. All else moves in the passes."""
        moved = max(self.travels("bytes to each GPU"), self.travels("from it"))
        update = self.seconds_of("global_norm|update_elements")
        return max(update, self.kept / speed) + max(self.seconds - update, (moved - self.kept) / speed)


# --- what is shown ---
def figures():
    """(document, text in it) of every predicted figure. A recipe says how many sequences a GPU takes at once."""
    for model, words in (("124M, bf16", "d12 -b 64"), ("124M, `--fp8`", "d12 -b 64 --fp8"),
                         ("1558M, bf16", "d48 -b 16"), ("1558M, `--fp8`", "d48 -b 16 --fp8")):
        step = Step(f"-e {words}")
        speed = float(f"{step.speed:.3g}")
        yield "README.md", f"| GPT-2 {model} | {speed:,.0f} tokens/s ({100 * step.mfu:.0f} % MFU) |"
    recipe = r"for (\d+) sequences? at once.*STEPS:=(\d+)}.*(--init \S+ --seq-len \d+ --total-batch \d+) "
    for name in "gpt2_124M gpt2_350M gpt2_774M gpt2_1558M gpt3_125M llama_smollm2_135M llama_8B".split():
        page = text_of(f"scripts/run_{name}.sh")
        batch, steps, words = re.search(recipe, page, re.S).groups()
        grids = re.findall(r'grid="(.*?)" # (8|64):', page) or [("", 1), ("", 8)]
        words += f" -z 1 -b {batch}"
        hours = {(gpu, int(ranks)): int(steps) / 3600 * Step(f"{words} --gpu {gpu} -np {ranks} {grid}").seconds
                 for gpu in PRICES for grid, ranks in grids}
        costs = (f"{hour * ranks * PRICES[gpu]:,.0f} dollars" for (gpu, ranks), hour in hours.items())
        for row in (["time", *(f"{hour:,.1f} hours" for hour in hours.values())], ["cost", *costs]):
            yield f"scripts/run_{name}.sh", "#   {}{:>31}{:>17}{:>17}{:>17}   predicted".format(*row)
        of_8 = " | ".join(f"{hour:,.1f} hours" for (_, ranks), hour in hours.items() if ranks == 8)
        yield "doc/reproduce.md", f"| `run_{name}.sh` | {of_8} |"
    tuning = re.search(r"(--seq-len 2048.*?)\n.*(--recompute.*?)\n",
                       text_of("scripts/finetune_llama_8B.sh").replace('"', ""), re.S).groups()
    for row, more, value in (("a step of a GeForce RTX 4090", "", "{0:.1f} s"), ("tokens a second", "", "{1:,.0f}"),
                             ("the same with --fp8", "--fp8", "{1:,.0f}")):
        step = Step(f"-e llama:8B --gpu 4090 {' '.join(tuning)} {more}")
        cells = (value.format(seconds, step.run.total_batch / seconds) for seconds in map(step.seconds_with_bus, BUSES))
        yield "scripts/finetune_llama_8B.sh", "#   {:30}{:>17}{:>18}   predicted".format(row, *cells)
    one, stage_0, stage_1, many = (Step(f"-e d12 -d 524288 -b {words}")
                                   for words in ("64", "64 -np 8", "64 -np 8 -z 1", "8 -np 64 -z 1"))
    for text in (f"computes for {1e3 * stage_1.compute:.0f} ms", f"{100 * many.mfu:.0f} % with 64 GPUs",
                 f"{1e3 * stage_1.waits():.1f} ms in stage 1 and {1e3 * stage_0.waits():.1f} ms in stage 0"):
        yield "doc/16_many_gpus.md", text
    yield "doc/19_reproducing.md", f"{100 * one.mfu:.0f} % on one H100 and {100 * stage_1.mfu:.0f} % on eight"


def options(words):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     allow_abbrev=False)
    parser.add_argument("--gpu", default="h100", choices=gpus())
    parser.add_argument("--recompute", "-r", type=int, default=0, choices=(0, 3))
    parser.add_argument("--fp8", action="store_true")
    parser.add_argument("--figures", action="store_true")
    for names, default in (
            ("--init -e", "d12"), ("--layers", 0), ("--heads", 0), ("--channels", 0), ("--context", 0), ("--vocab", 0),
            ("--batch-size -b", 64), ("--seq-len -t", 1024), ("--total-batch -d", 0), ("--num-processes -np", 1),
            ("--zero-stage -z", 0), ("--tp", 1), ("--cp", 1), ("--pp", 1), ("--pp-chunks", 2), ("--pp-schedule", ""),
            ("--attention", "cudnn"), ("--moments", ""), ("--offload", "")):
        parser.add_argument(*names.split(), type=type(default), default=default)
    run = parser.parse_args(words)
    run.pp_chunks = run.pp_chunks if run.pp_schedule == "interleaved" else 1
    if run.fp8 > gpus()[run.gpu].fp8_flops:
        parser.error(f"--fp8: {run.gpu} has no 8 bits")
    ranks = run.num_processes // max(1, run.tp * run.cp * run.pp)
    run.total_batch = run.total_batch or run.batch_size * run.seq_len * ranks
    return run


def main():
    words = " ".join(sys.argv[1:])
    if options(sys.argv[1:]).figures:
        return print(*map(": ".join, figures()), sep="\n")
    step = Step(words)
    print(f"{'predicted':36} {'calls':>7} {'MB':>10} {'GFLOP':>10} {'ms':>9}")
    for name, kernel in sorted(step.kernels.items(), key=lambda item: -item[1].seconds):
        print(f"{name:36} {kernel.calls:7} {kernel.bytes / 1e6:10.1f} {kernel.flops / 1e9:10.1f} "
              f"{1e3 * kernel.seconds:9.3f}")
    print(f"a step      {step.flops:.4g} FLOPs on each GPU\n"
          f"predicted   {1e3 * step.seconds:.1f} ms, {1e3 * step.waits():.1f} of them waiting for other GPUs, "
          f"{step.speed:,.0f} tokens/s, {100 * step.mfu:.1f} % MFU")
    for speed in BUSES if step.run.offload else ():
        seconds = step.seconds_with_bus(speed)
        print(f"            with a bus of {speed / 1e9:.0f} GB/s: {seconds:,.2f} s, "
              f"{step.run.total_batch / seconds:,.0f} tokens/s")


if __name__ == "__main__":
    main()
