#!/usr/bin/env python3
"""Predicts a training step of GPT-2 or Llama 3 on NVIDIA GPUs, kernel by kernel: FLOPs, bytes, and the time that
follows from both. Nothing is measured. The constants below are assumptions, and so are these:

- Every tensor comes from memory. The arithmetic of a kernel hides its bytes, or its bytes hide the arithmetic.
- A multiprocessor computes one tile of a product at a time, and the last wave of tiles takes as long as a whole one.
  cuBLASLt takes the fastest tile, and does not split a sum among multiprocessors.
- What a GPU sends hides behind the computation beside it. The first and the last bucket have nothing to hide behind.
- What --tp, --cp and --pp send hides behind nothing. All stages take as long as the last one, which has the head.
- What --offload moves hides behind the passes, or the passes hide behind it. The same holds for the update.
- Nothing is recomputed unless --recompute 3 is given. Kernels below 0.3 % of a step are left out.

    dev/bench/predict.py --init d12 --batch-size 64      the kernels of a step on one H100
    dev/bench/predict.py -e llama:8B --gpu 4090 -b 16 -t 2048 -d 524288 --recompute 3 --offload all
    dev/bench/predict.py --figures                       every predicted figure of the documents and the recipes
"""
import argparse
import collections
import math
import pathlib
import re
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
OFFLOADS = "optimizer", "master", "gradients", "residuals", "parameters"
PRICES = {"a100": 1.5, "h100": 2.5}  # dollars for an hour of one

ROOT = pathlib.Path(__file__).resolve().parents[2]
Gpu = collections.namedtuple("Gpu", "flops fp8_flops memory link processors")
Kernel = collections.namedtuple("Kernel", "calls bytes flops seconds")
Shape = collections.namedtuple("Shape", "L heads C context vocab KV HS F tied", defaults=(50257, 0, 0, 0, 1))


def text_of(path):
    return (ROOT / path).read_text(encoding="utf-8")


def gpus():
    """The cards of llmc/model/gpu_peak.h of which all figures are known."""
    row = r'\{"([\w-]+)", "[^"]+", \{([\d.]+), [\d.]+, [\d.]+, ([\d.]+)\}, (\d+), (\d+), (\d+),'
    return {name: Gpu(1e12 * float(bf16), 1e12 * float(fp8), 1e9 * float(memory), 1e9 * float(link), int(processors))
            for name, bf16, fp8, memory, link, processors in re.findall(row, text_of("llmc/model/gpu_peak.h"))}


def models():
    """The sizes of llmc/model/gpt2.h and llama3.h, by all their names. A GPT-2 has no KV heads of its own: KV is 0."""
    tables = text_of("llmc/model/gpt2.h") + text_of("llmc/model/llama3.h")
    row = r'^    X\("([\w:]+)", (?:"(\w+)", )?(\d[^)]*)\)'
    return {name: Shape(*map(int, shape.split(", ")[:9])) for *names, shape in re.findall(row, tables, re.M)
            for name in filter(None, names)}


class Step:
    """A step of each GPU. run has the trainer's options by their names."""

    def __init__(self, run, shape=None):
        self.run, self.kernels, self.gpu, shape = run, {}, gpus()[run.gpu], shape or models()[run.init]
        self.C, self.llama = shape.C, shape.KV > 0
        HS, up = shape.HS or shape.C // shape.heads, 2 if self.llama else 1  # up: of fc, for a channel of the MLP
        Q, KV, F = shape.heads * HS, (shape.KV or shape.heads) * HS, shape.F or 4 * shape.C
        padded_vocab = (shape.vocab + 127) // 128 * 128
        weights = 2 * self.C * (Q + KV) + (up + 1) * self.C * F
        per_token = shape.L * (weights + Q * run.seq_len) + shape.vocab * self.C
        self.flops = 6 * per_token * run.total_batch / run.num_processes
        # This GPU's part of the layers, of each layer and of the tokens. ranks: how many share a bucket.
        self.ranks, self.L = run.num_processes // (run.tp * run.pp), math.ceil(shape.L / run.pp)
        self.stage = run.zero_stage if self.ranks > 1 else 0
        self.heads, self.Q, self.KV, self.F, self.padded_vocab = (
            part // run.tp for part in (shape.heads, Q, KV, F, padded_vocab))
        self.tokens = run.batch_size * run.seq_len // run.cp
        self.micro_batches = run.total_batch // (self.tokens * self.ranks)
        self.layers = self.L * self.micro_batches
        self.again = self.layers - self.micro_batches if run.recompute else 0  # blocks whose forward runs again
        self.linears = (("qkv", self.C, self.Q + 2 * self.KV), ("attproj", self.Q, self.C), ("fc", self.C, up * self.F),
                        ("fcproj", self.F, self.C))
        block = sum(C * OC for _, C, OC in self.linears) + (2 if self.llama else 13) * self.C
        tokens, vectors = self.padded_vocab * self.C, (1 if self.llama else shape.context + 2) * self.C
        self.buckets = (tokens + vectors, block, 0) if shape.tied else (  # the last: of a head that is not tied
            tokens if run.pp == 1 else 0, block, tokens + self.C)
        for add in (self.add_linear_layers, self.add_lm_head, self.add_attention, self.add_layers, self.add_update):
            add()
        self.compute = sum(kernel.seconds for kernel in self.kernels.values())
        self.seconds = self.compute + self.waits()
        self.mfu = self.flops / self.seconds / self.gpu.flops
        self.speed = run.total_batch / self.seconds

    # --- kernels ---
    def add(self, name, calls, bytes_, flops, seconds):
        one, before = (1, bytes_, flops, seconds + LAUNCH), self.kernels.get(name, Kernel(0, 0, 0, 0))
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
        for first in range(0, self.tokens, HEAD_ROWS):
            rows = min(HEAD_ROWS, self.tokens - first)
            self.linear("lm_head", self.micro_batches, rows, self.C, self.padded_vocab)
            self.move("cross_entropy", self.micro_batches, 4 * rows * self.padded_vocab)

    def scores(self, name, calls, products, bytes_, efficiency, beside=0):
        """So many products of (T, T) and (T, HS) for each head. The causal mask halves each."""
        flops, bandwidth = products * self.tokens * self.run.seq_len * self.Q, MEMORY * self.gpu.memory
        seconds = flops * (1 + SOFTMAX * self.heads / self.Q) / (efficiency * self.gpu.flops)
        self.add(name, calls, bytes_ + beside, flops, max(seconds, bytes_ / bandwidth) + beside / bandwidth)

    def add_attention(self):
        q, kv, rows = (self.tokens * values for values in (2 * self.Q, 4 * self.KV, 4 * self.heads))
        layers = self.layers
        if self.run.attention == "cudnn":  # its backward writes the gradients of the scores and reads them again
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
        tensor = 2 * rows * self.C
        chunks = self.run.pp_chunks * self.micro_batches  # each begins with a norm and ends with a sum
        self.move("fused_residual_layernorm_forward", 2 * layers - chunks + self.again, 4 * tensor)
        self.move("residual_forward", chunks, 3 * tensor)
        self.move("layernorm_forward", chunks + self.micro_batches + self.again, 2 * tensor)
        self.move("layernorm_backward", 2 * layers, 4 * tensor + 8 * rows)
        self.move("layernorm_backward", self.micro_batches, 3 * tensor + 8 * rows)
        if self.llama:
            self.move("rope", 2 * layers + self.again, 2 * value * (self.Q + self.KV))
            self.move("swiglu_forward", layers + self.again, 3 * value * self.F)
            self.move("swiglu_backward", layers, 5 * value * self.F)
            return
        self.move("fp8_amax" if fp8 else "gelu_forward", layers + self.again, (1 if fp8 else 2) * value * self.F)
        self.move("gelu_backward", layers, 3 * value * self.F)
        self.move("matmul_sum_rows", layers, 3 * value * self.Q)

    def add_update(self):
        """AdamW reads a gradient, reads and writes m, v and the fp32 weight, and writes the bf16 weight: 30 bytes."""
        self.move("fill", self.micro_batches if self.stage > 1 else 1, 4 * self.parameters())
        for calls, bucket in zip((1, self.L, self.buckets[2] > 0), self.buckets):
            own = bucket / (self.ranks if self.stage else 1)
            self.move("global_norm_squared", calls, 4 * own)
            self.move("update_elements", calls, 30 * own)

    # --- between the GPU and its host ---
    def parameters(self):
        return self.buckets[0] + self.L * self.buckets[1] + self.buckets[2]

    def fetches(self, of_bucket):
        """What a pass fetches where parameters are not on the GPU. The last two blocks of the pass before are there."""
        there, turns = min(2, self.L), self.micro_batches if self.buckets[2] else 1
        blocks = there + 2 * self.micro_batches * (self.L - there)
        return turns * (of_bucket(0) + of_bucket(2)) + blocks * of_bucket(1)

    def bus(self):
        """Bytes to and from one GPU in the passes of a step, and in its update."""
        on_host, P, m = self.run.offload.__contains__, self.parameters(), self.micro_batches
        moments = 2 * (2 if self.run.moments == "bf16" else 4)
        sums, weights = 4 * P * on_host("gradients"), 2 * on_host("parameters")
        state = P * (moments * on_host("optimizer") + 4 * on_host("master") + weights)
        residuals = 2 * m * (self.L - 1) * self.tokens * self.C * on_host("residuals")
        fetched = weights * self.fetches(self.buckets.__getitem__)
        return ((m - 1) * sums + residuals + fetched, m * sums + residuals), (state + sums, state)

    def seconds_with_bus(self, speed):
        update = self.seconds_of("global_norm|update_elements")
        parts = zip((self.seconds - update, update), self.bus())
        return sum(max(compute, *(bytes_ / speed for bytes_ in moved)) for compute, moved in parts)

    # --- between GPUs ---
    def sends(self, bucket, sizeof):
        """Bytes that a GPU sends in a ring while all gather or reduce a bucket (llmc/ranks/zero.h)."""
        return (self.ranks - 1) * 64 * math.ceil(self.buckets[bucket] / (64 * self.ranks)) * sizeof

    def traffic(self):
        """Bytes of gradients and of parameters that each GPU sends in a step."""
        everything = self.sends(0, 1) + self.L * self.sends(1, 1) + self.sends(2, 1)
        gradients = everything * (4 if self.stage else 8) * (self.micro_batches if self.stage >= 2 else 1)
        parameters = 2 * everything if self.stage else 0
        if self.stage == 3:
            parameters = self.fetches(lambda bucket: self.sends(bucket, 2))
        return gradients, parameters

    def exchange(self):
        """Bytes that a GPU of the last stage sends in a step: for --tp (with --sp 1), for --cp, and to other stages."""
        tp, cp, values = self.run.tp, self.run.cp, 2 * self.tokens * self.micro_batches
        tensor = (10 * self.L + (2 if self.run.pp > 1 else 4)) * values * self.C / tp * (tp - 1)
        puts = 2 * self.run.pp_chunks - 1 if self.run.pp > 1 else 0
        return tensor, 6 * self.L * values * self.KV * (cp - 1), puts * values * self.C / tp

    def link(self, ranks, apart):
        """Bytes a second in a ring of so many GPUs, each the neighbour of the one so many places on."""
        cards = max(1, CARDS // apart) * CARD  # of those on one machine
        return LINK * (self.gpu.link if ranks * apart <= 8 else min(self.gpu.link, cards))

    def seconds_of(self, pattern):
        return sum(kernel.seconds for name, kernel in self.kernels.items() if re.match(pattern, name))

    def waits(self):
        """Seconds in which nothing is computed. Of a block's time, a third is forward."""
        tp, cp, pp = self.run.tp, self.run.cp, self.run.pp
        passes = self.compute - self.seconds_of("fill|global_norm|update_elements")
        block = (passes - self.seconds_of("matmul lm_head|cross_entropy")) / self.layers
        tensor, context, pipeline = self.exchange()
        sends = tensor / self.link(tp, 1) + context / self.link(cp, tp) + 2 * pipeline / self.link(pp, tp * cp)
        idle = (passes + sends) * (pp - 1) / (self.run.pp_chunks * self.micro_batches)
        return sends + idle + self.waits_for_buckets(block, self.link(self.ranks, tp * pp))

    def waits_for_buckets(self, block, link):
        gradients, gathered = self.sends(1, 4 if self.stage else 8), self.sends(1, 2) if self.stage else 0
        backward = max(0, (gradients + gathered * (self.stage == 3)) / link - 2 / 3 * block)
        forward = max(0, gathered / link - 1 / 3 * block)
        inner = backward * (self.micro_batches if self.stage >= 2 else 1)
        inner += forward * (self.micro_batches if self.stage == 3 else 1)
        ends = self.sends(0, 6 if self.stage else 8) + self.sends(2, 6 if self.stage else 8)
        return (gradients + gathered + ends) / link + (self.L - 1) * inner


# --- what is shown ---
def table(step):
    yield f"{'predicted':36} {'calls':>7} {'MB':>10} {'GFLOP':>10} {'ms':>9}"
    for name, kernel in sorted(step.kernels.items(), key=lambda item: -item[1].seconds):
        yield (f"{name:36} {kernel.calls:7} {kernel.bytes / 1e6:10.1f} {kernel.flops / 1e9:10.1f} "
               f"{1e3 * kernel.seconds:9.3f}")


def figures():
    """(document, text in it) of every predicted figure. A recipe says how many sequences a GPU takes at once."""
    def of(words):
        return Step(options(words.split()))
    for model, words in (("124M", "-e d12 -b 64"), ("1558M", "-e d48 -b 16")):
        for kind, step in (("bf16", of(words)), ("`--fp8`", of(f"{words} --fp8"))):
            speed = float(f"{step.speed:.3g}")
            yield "README.md", f"| GPT-2 {model}, {kind} | {speed:,.0f} tokens/s ({100 * step.mfu:.0f} % MFU) |"
    recipe = r"for (\d+) sequences? at once.*STEPS:=(\d+)}.*(--init \S+ --seq-len \d+ --total-batch \d+) "
    for name in "gpt2_124M gpt2_350M gpt2_774M gpt2_1558M gpt3_125M llama_smollm2_135M llama_8B".split():
        page = text_of(f"scripts/run_{name}.sh")
        batch, steps, words = re.search(recipe, page, re.S).groups()
        grids = re.findall(r'grid="(.*?)" # (8|64):', page) or [("", 1), ("", 8)]
        words += f" -z 1 -b {batch}"
        hours = {(gpu, int(ranks)): int(steps) / 3600 * of(f"{words} --gpu {gpu} -np {ranks} {grid}").seconds
                 for gpu in PRICES for grid, ranks in grids}
        costs = (f"{hour * ranks * PRICES[gpu]:,.0f} dollars" for (gpu, ranks), hour in hours.items())
        for row in (["time", *(f"{hour:,.1f} hours" for hour in hours.values())], ["cost", *costs]):
            yield f"scripts/run_{name}.sh", "#   {}{:>31}{:>17}{:>17}{:>17}   predicted".format(*row)
        of_8 = " | ".join(f"{hour:,.1f} hours" for (_, ranks), hour in hours.items() if ranks == 8)
        yield "doc/reproduce.md", f"| `run_{name}.sh` | {of_8} |"
    tuning = re.search(r"(--seq-len 2048.*?)\n.*(--recompute.*?)\n",
                       text_of("scripts/finetune_llama_8B.sh").replace('"', ""), re.S).groups()
    for row, more, value in (("a step of a GeForce RTX 4090", "", "{0:.1f} s"), ("tokens a second", "", "{1:,.0f}"),
                             ("the same with --fp8", " --fp8", "{1:,.0f}")):
        step = of(f"-e llama:8B --gpu 4090 {' '.join(tuning)}{more}")
        cells = (value.format(seconds, step.run.total_batch / seconds) for seconds in map(step.seconds_with_bus, BUSES))
        yield "scripts/finetune_llama_8B.sh", "#   {:30}{:>17}{:>18}   predicted".format(row, *cells)
    for words in ("-e llama:1B -b 8 -t 2048", "-e llama:8B -b 2 -t 4096 -np 8 -z 3"):
        for kind in ("", " --fp8"):
            step = of(words + kind)
            speed = f"{1e3 * step.seconds:.0f} ms | {step.speed:,.0f} | {100 * step.mfu:.0f} %"
            yield "dev/bench/LOG.md", f"| `{words}{kind}` | {speed} |"
    one, stage_0, stage_1, many = (of(f"-e d12 -d 524288 -b {words}")
                                   for words in ("64", "64 -np 8", "64 -np 8 -z 1", "8 -np 64 -z 1"))
    for text in (f"computes for {1e3 * stage_1.compute:.0f} ms", f"{100 * many.mfu:.0f} % with 64 GPUs",
                 f"{1e3 * stage_1.waits():.1f} ms in stage 1 and {1e3 * stage_0.waits():.1f} ms in stage 0"):
        yield "doc/16_many_gpus.md", text
    yield "doc/19_reproducing.md", f"{100 * one.mfu:.0f} % on one H100 and {100 * stage_1.mfu:.0f} % on eight"


def options(words):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for names, default, choices in (
            ("--init -e", "d12", models()), ("--batch-size -b", 64, None), ("--seq-len -t", 1024, None),
            ("--total-batch -d", 0, None), ("--num-processes -np", 1, None), ("--zero-stage -z", 0, range(4)),
            ("--tp", 1, None), ("--cp", 1, None), ("--pp", 1, None), ("--pp-chunks", 2, None),
            ("--pp-schedule", "1f1b", ("1f1b", "afab", "interleaved")),
            ("--recompute -r", 0, (0, 3)), ("--moments", "fp32", ("fp32", "bf16")), ("--offload", "", None),
            ("--gpu", "h100", gpus()), ("--attention", "cudnn", ("cudnn", "own"))):
        parser.add_argument(*names.split(), type=type(default), default=default, choices=choices)
    parser.add_argument("--fp8", action="store_true")
    parser.add_argument("--figures", action="store_true")
    run = parser.parse_args(words)
    run.offload = OFFLOADS if run.offload == "all" else tuple(filter(None, run.offload.split(",")))
    run.pp_chunks = run.pp_chunks if run.pp_schedule == "interleaved" else 1
    micro_batch = run.batch_size * run.seq_len * (run.num_processes // (run.tp * run.cp * run.pp))
    run.total_batch = run.total_batch or micro_batch
    if run.num_processes % (run.tp * run.cp * run.pp):
        parser.error("--tp, --cp and --pp: their product must divide --num-processes")
    if not micro_batch or run.total_batch % micro_batch or run.fp8 > gpus()[run.gpu].fp8_flops:
        parser.error("a step must be whole micro-batches of all GPUs, and --fp8 needs a GPU that has 8 bits")
    if set(run.offload) - set(OFFLOADS) or (run.offload and run.num_processes > 1):
        parser.error(f"--offload: for one GPU, with commas between {', '.join(OFFLOADS)}; or all")
    return run


def main():
    run = options(sys.argv[1:])
    if run.figures:
        return print(*map(": ".join, figures()), sep="\n")
    step = Step(run)
    print(*table(step), f"a step      {step.flops:.4g} FLOPs on each GPU",
          f"predicted   {1e3 * step.seconds:.1f} ms, {1e3 * step.waits():.1f} of them waiting for other GPUs, "
          f"{step.speed:,.0f} tokens/s, {100 * step.mfu:.1f} % MFU", sep="\n")
    for speed in BUSES if run.offload else ():
        seconds = step.seconds_with_bus(speed)
        print(f"            with a bus of {speed / 1e9:.0f} GB/s: {seconds:,.1f} s, "
              f"{run.total_batch / seconds:,.0f} tokens/s")


if __name__ == "__main__":
    main()
