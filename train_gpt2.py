#!/usr/bin/env python3
"""The PyTorch twin of ./train_gpt2 and ./train_gpt2cu: the same model, initial weights, batches, optimizer and logs, in
PyTorch's operators. The peer in comparisons of losses and of speed.

    python3 train_gpt2.py --train-data book.txt --out-dir run
    torchrun --standalone --nproc-per-node 8 train_gpt2.py --train-data 'shards/*_train_*.bin' --total-batch 524288
    python3 train_gpt2.py --help

Needs torch (2.5 or later) and numpy. What needs no torch is in dev/twin/. Vocabulary: B T C V Vp L NH HS as in llmc/.
"""
import contextlib
import json
import math
import os
import sys
import time

from dev import guard
from dev.twin import Problem, options as command_line, version

try:
    import torch
    from torch import distributed, nn
    from torch.nn import functional as F

    from dev.twin import weights
    from dev.twin.data import BYTE_VOCAB, GPT2_VOCAB, open_sequences, sum64
except ImportError as missing:
    sys.exit(f"train_gpt2.py: {sys.executable} has no {missing.name}; python3 -m pip install torch numpy")

# ---- The model ----


def linear(layer, x):
    """A linear layer in the precision of x, whatever that of its parameters."""
    return F.linear(x, layer.weight.to(x.dtype), layer.bias.to(x.dtype))


def layer_norm(layer, x):
    return F.layer_norm(x, layer.normalized_shape, layer.weight.to(x.dtype), layer.bias.to(x.dtype), layer.eps)


def causal_attention(qkv, num_heads):
    """softmax(q k^T / sqrt(HS)) v over the positions up to one's own. qkv (B, T, 3C) -> (B, T, C)."""
    B, T, C = qkv.size(0), qkv.size(1), qkv.size(2) // 3
    q, k, v = (x.view(B, T, num_heads, C // num_heads).transpose(1, 2) for x in qkv.split(C, dim=2))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return out.transpose(1, 2).reshape(B, T, C)


class Block(nn.Module):
    def __init__(self, C, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.ln_1, self.ln_2 = nn.LayerNorm(C), nn.LayerNorm(C)  # epsilon 1e-5
        self.attn = nn.ModuleDict({"c_attn": nn.Linear(C, 3 * C), "c_proj": nn.Linear(C, C)})
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(C, 4 * C), "c_proj": nn.Linear(4 * C, C)})

    def forward(self, x):
        qkv = linear(self.attn.c_attn, layer_norm(self.ln_1, x))
        x = x + linear(self.attn.c_proj, causal_attention(qkv, self.num_heads))
        return x + linear(self.mlp.c_proj, F.gelu(linear(self.mlp.c_fc, layer_norm(self.ln_2, x)), approximate="tanh"))


class GPT2(nn.Module):
    """config: see weights.Config. Parameters are fp32 (the fixtures: fp64). Activations are of the precision `compute`,
    None: the parameters'; each use casts its parameters, so that their gradients arrive, and are added up, in the
    parameters' own precision. pads_head: multiplies by Vp rows as ./train_gpt2cu does, which is faster on a GPU."""

    def __init__(self, config, compute=None, pads_head=False):
        super().__init__()
        self.config, self.compute, self.pads_head, C = config, compute, pads_head, config.C
        self.wte, self.wpe = nn.Embedding(config.V, C), nn.Embedding(config.context, C)
        self.h = nn.ModuleList(Block(C, config.heads) for _ in range(config.L))
        self.ln_f = nn.LayerNorm(C)

    def logits(self, inputs):
        """inputs (B, T) -> logits (B, T, V). The head is wte."""
        compute, V = self.compute or self.wte.weight.dtype, self.config.V
        x = self.wte(inputs).to(compute) + self.wpe.weight[:inputs.size(1)].to(compute)
        for block in self.h:
            x = block(x)
        head = self.wte.weight.to(compute)
        if self.pads_head:
            head = F.pad(head, (0, 0, 0, self.config.Vp - V))
        return (layer_norm(self.ln_f, x) @ head.T)[..., :V]

    def forward(self, inputs, targets):
        """The mean loss, computed in fp32 (fp64) from logits of any precision."""
        logits = self.logits(inputs).flatten(0, 1)
        return F.cross_entropy(logits.float() if logits.dtype == torch.bfloat16 else logits, targets.flatten())

    def in_file_order(self):
        return [self.get_parameter(name) for name, _, _ in weights.tensors(self.config)]


def flatten(config, tensors):
    """Tensors shaped as the parameters, in file order, as one float32 array with wte padded to Vp rows by zeros."""
    padding = torch.zeros(config.Vp - config.V, config.C)
    return torch.cat([t.detach().float().cpu().flatten() for t in (tensors[0], padding, *tensors[1:])])


@torch.no_grad()
def set_parameters(model, flat):
    """From an array of all parameters in file order."""
    for name, values in weights.parts_of(flat, model.config).items():
        model.get_parameter(name).copy_(torch.from_numpy(values))


# ---- The update ----


def make_adamw(model, muon, beta1, beta2, eps, weight_decay, **how):
    """AdamW for the parameters that Muon (or None) leaves. It decays matrices and embeddings, no biases and
    LayerNorms."""
    rest = [p for p in model.parameters() if muon is None or p not in muon.state]
    groups = [{"params": [p for p in rest if p.dim() >= 2], "weight_decay": weight_decay},
              {"params": [p for p in rest if p.dim() < 2], "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=0.0, betas=(beta1, beta2), eps=eps, **how)


def orthogonalize(N, dtype):
    """NS5 of each matrix in N (matrices, rows, cols): five rounds of X = a X + (b G + c G G) X with G = X X^T, in this
    precision. Tall matrices are transposed."""
    is_tall = N.size(1) > N.size(2)
    X = (N.mT if is_tall else N) / N.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    X = X.to(dtype)
    for _ in range(5):
        G = X @ X.mT
        X = torch.baddbmm(X, torch.baddbmm(G, G, G, beta=-4.7750, alpha=2.0315), X, beta=3.4445)
    return (X.mT if is_tall else X).to(N.dtype)


class Muon(torch.optim.Optimizer):
    """Muon for the matrices of the blocks. torch.optim.Muon makes its rounds in bf16 whatever the precision, and takes
    the weight of qkv for one matrix, so its losses cannot be ./train_gpt2's. rounds: the precision of our rounds."""

    def __init__(self, model, scale, weight_decay, rounds):
        matrices = [p for p in model.h.parameters() if p.dim() == 2]
        super().__init__(matrices, {"lr": 0.0, "momentum": 0.0, "weight_decay": weight_decay, "scale": scale})
        self.rounds = rounds
        for W in matrices:
            self.state[W]["M"] = torch.zeros_like(W)

    @torch.no_grad()
    def step(self):
        """M = momentum M + G, W -= lr (scale NS5(G + momentum M) + weight_decay W)."""
        (group,) = self.param_groups
        for W in group["params"]:
            G, M, count = W.grad, self.state[W]["M"], 3 if W.size(0) == 3 * W.size(1) else 1  # qkv: three matrices
            M.mul_(group["momentum"]).add_(G)
            N = (G + group["momentum"] * M).unflatten(0, (count, -1))  # (count, rows, cols)
            O = command_line.muon_scale(group["scale"], *N.shape[1:]) * orthogonalize(N, self.rounds).flatten(0, 1)
            W.sub_(group["lr"] * (O + group["weight_decay"] * W))


@torch.no_grad()
def update(model, grad_clip, *optimizers):
    """From the gradients that are there, shortened to the norm grad_clip, 0: never. Each optimizer comes with the
    settings of this step. Returns the gradients' norm before, on the device: nothing waits."""
    gradients = [p.grad for p in model.parameters()]
    norm = torch.stack(torch._foreach_norm(gradients)).norm()
    if grad_clip > 0:
        torch._foreach_mul_(gradients, torch.clamp(grad_clip / norm, max=1.0))
    for optimizer, settings in optimizers:
        for group in optimizer.param_groups:
            group.update(settings)
        optimizer.step()
    return norm


# ---- A run ----


class Run:
    """What the options ask for, in one of the processes that torchrun started, or in one alone."""

    def __init__(self, options):
        self.options, self.step, self.began = options, 0, 0.0
        self.size, self.rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
        self.on_gpu, self.device = options.device == "cuda", torch.device("cpu")
        if self.on_gpu:
            self.device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
            torch.cuda.set_device(self.device)
            torch.set_float32_matmul_precision("high" if options.tf32 else "highest")
        if self.size > 1:
            distributed.init_process_group("nccl" if self.on_gpu else "gloo")
        if options.out_dir and self.rank == 0:
            os.makedirs(options.out_dir, exist_ok=True)
            if os.path.exists(f"{options.out_dir}/main.log"):
                raise Problem(f"{options.out_dir}: holds an earlier run; remove it, or give another --out-dir")
        self.open_inputs()
        self.settle_batch()
        self.make_model()

    def say(self, *words):
        if self.rank == 0:
            print(*words, flush=True)

    def log(self, name, line):
        """Appends a line to main.log, speed.log or run.jsonl, as the C trainers write them."""
        if self.options.out_dir and self.rank == 0:
            with open(f"{self.options.out_dir}/{name}", "a", encoding="utf-8") as file:
                file.write(f"{line}\n")

    def log_event(self, event, **facts):
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self.log("run.jsonl", json.dumps({"event": event, "time": now, "step": self.step, **facts}))

    def sum(self, tensor):
        """Over all processes."""
        if self.size > 1:
            distributed.all_reduce(tensor)
        return tensor

    def open_inputs(self):
        o = self.options
        self.model_file, c = weights.open_model(o.init)
        if self.model_file and (o.layers or o.heads or o.channels or o.context or o.vocab):
            raise Problem(f"--layers, --heads, --channels, --context and --vocab are for new models; --init {o.init} "
                          "names a model that exists")
        texts = [name for name in (o.train_data, o.val_data) if name and not name.endswith(".bin")]
        in_bytes = c.V == BYTE_VOCAB if self.model_file else o.train_data in texts
        if texts and not in_bytes:
            raise Problem(f"{texts[0]}: a text becomes {BYTE_VOCAB} tokens, the model has other ones; make shards of "
                          "it with ./tokenize")
        if not self.model_file:
            V, context = o.vocab or (BYTE_VOCAB if in_bytes else GPT2_VOCAB), o.context or c.context
            c = weights.Config(context, V, weights.pad_vocab(V), o.layers or c.L, o.heads or c.heads, o.channels or c.C)
            c.check("--init")
        o.seq_len = o.seq_len or min(1024 if self.on_gpu else 64, c.context)
        if not self.model_file and not o.context:
            c = c._replace(context=o.seq_len)
        if o.seq_len > c.context:
            raise Problem(f"--seq-len (-t): {o.seq_len} tokens, but the model knows {c.context} positions; give at "
                          "most that many")
        self.config, self.train, self.val = c, None, None
        if o.train_data:
            self.train, self.val = open_sequences(o.train_data, o.seq_len, c.V, o.shuffle, o.seed)
        if o.val_data:
            self.val, _ = open_sequences(o.val_data, o.seq_len, c.V, splits=False)

    def settle_batch(self):
        """Micro-batches, steps."""
        o = self.options
        micro = o.batch_size * o.seq_len * self.size
        o.total_batch = o.total_batch or micro
        if o.total_batch % micro:
            raise Problem(f"--total-batch (-d): {o.total_batch} tokens is not a multiple of B x T x processes = {micro}"
                          f"; give {max(o.total_batch // micro, 1) * micro}")
        self.micro_batches, self.sequences_per_step = o.total_batch // micro, o.total_batch // o.seq_len
        self.steps = o.steps if o.steps >= 0 else self.train.num_sequences // self.sequences_per_step
        if self.steps == 0 > o.steps:
            raise Problem(f"--steps (-x): one epoch is {self.train.num_sequences} sequences, less than the "
                          f"{self.sequences_per_step} of one step; give --steps, a smaller --total-batch or more data")
        if o.warmup < 0:
            o.warmup = 0 if self.model_file else min(self.steps // 10, 100)

    def make_model(self):
        """Model and optimizers; rank 0 fills in the parameters, the others get them from it."""
        o, c = self.options, self.config
        with torch.device("meta"):
            model = GPT2(c, torch.bfloat16 if o.precision == "bf16" else None, pads_head=self.on_gpu)
        self.model = self.parallel = model.to_empty(device=self.device)
        if self.rank == 0:
            set_parameters(self.model, weights.read_model(self.model_file) if self.model_file
                           else weights.initial(c, o.seed))
        if self.size > 1:  # sends the parameters, too
            self.parallel = nn.parallel.DistributedDataParallel(self.model, gradient_as_bucket_view=True)
        self.loss_of = torch.compile(self.parallel) if o.compile else self.parallel
        rounds = torch.float32 if o.precision == "fp32" else torch.bfloat16
        self.muon = Muon(self.model, o.muon_scale, o.weight_decay, rounds) if o.optimizer == "muon" else None
        self.adamw = make_adamw(self.model, self.muon, 0.9, 0.95, o.adam_eps, o.weight_decay, fused=self.on_gpu)

    def loss(self, rows):
        """The mean loss of windows (B, T+1) in the host's memory."""
        rows = torch.from_numpy(rows)
        if self.on_gpu:
            rows = rows.pin_memory().to(self.device, non_blocking=True)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.options.precision == "autocast"):
            return self.loss_of(rows[:, :-1].contiguous(), rows[:, 1:].contiguous())  # compiled code wants them aligned

    def queue_step(self):
        """One update. In a micro-batch the ranks' sequences follow one another. On a GPU nothing here waits for it.
        Returns the loss and the gradient's norm, on the device."""
        self.model.zero_grad(set_to_none=True)
        total, B = torch.zeros((), device=self.device), self.options.batch_size
        for i in range(self.micro_batches):
            first = self.step * self.sequences_per_step + (i * self.size + self.rank) * B
            is_last = i == self.micro_batches - 1
            with contextlib.nullcontext() if is_last or self.size == 1 else self.parallel.no_sync():
                loss = self.loss(self.train.read(range(first, first + B))) / self.micro_batches
                loss.backward()
            total += loss.detach()
        norm = update(self.model, self.options.grad_clip, *self.optimizers())
        return torch.stack([self.sum(total) / self.size, norm])

    def rate(self, peak):
        o = self.options
        return command_line.learning_rate(self.step, peak, o.warmup, self.steps, o.final_lr_frac, o.schedule)

    def optimizers(self):
        """Those of the run, with their settings of the current step."""
        yield self.adamw, {"lr": self.rate(self.options.lr)}
        if self.muon:
            momentum = command_line.muon_momentum(self.step, self.options.muon_warmup)
            yield self.muon, {"lr": self.rate(self.options.muon_lr), "momentum": momentum}

    @torch.no_grad()
    def validate(self):
        """The mean loss over the validation sequences, always the same ones, spread evenly; the ranks take turns."""
        B, held_out, total = self.options.batch_size, self.val.num_sequences, torch.zeros((), dtype=torch.float64)
        count = min(self.options.val_sequences or held_out, held_out)
        for first in range(self.rank * B, count, self.size * B):
            rows = self.val.read([i * held_out // count for i in range(first, min(first + B, count))])
            total += len(rows) * self.loss(rows).double().cpu()
        mean = self.sum(total.to(self.device)).item() / count
        self.say(f"{self.number(self.step)} | val loss {mean:.6f} ({count} of {held_out} sequences)")
        self.log("main.log", f"s:{self.step} tel:{mean:.4f}")

    def run(self):
        """At a step, in this order: validate, update. On a GPU the results of a step are read while the next one runs,
        unless something is due between them."""
        self.describe()
        pending, every, self.began = [], self.options.val_every, time.perf_counter()
        while True:
            last = self.step == self.steps
            validates = self.val is not None and every > 0 and (last or self.step % every == 0)
            while len(pending) > int(self.on_gpu and not last and not validates):
                self.settle(*pending.pop(0))
            if validates:
                self.validate()
                self.began = time.perf_counter()
            if last:
                return self.finish()
            pending.append((self.step, self.rate(self.options.lr), *self.fetch(self.queue_step())))
            self.step += 1

    def fetch(self, results):
        """A copy in the host's memory, and the event after which it is there. Unpinned memory would wait for it."""
        if not self.on_gpu:
            return results, None
        copy, there = torch.empty(results.shape, pin_memory=True), torch.cuda.Event()
        copy.copy_(results, non_blocking=True)
        there.record()
        return copy, there

    def settle(self, step, lr, results, there):
        """Prints and logs the results of a step. Its time is that since the results of the one before."""
        if there:
            there.synchronize()
        seconds, self.began = time.perf_counter() - self.began, time.perf_counter()
        loss, norm = results.tolist()
        if not math.isfinite(loss + norm):
            raise Problem(f"step {step + 1}: the loss is {loss}, the gradient norm {norm}; try a lower --lr, more "
                          "--warmup or --grad-clip")
        rate = self.options.total_batch / seconds
        self.say(f"{self.number(step + 1)} | loss {loss:.6f} | norm {norm:.4f} | lr {lr:.2e} | {1e3 * seconds:.2f} ms "
                 f"| {rate:.0f} tok/s")
        self.log("main.log", f"s:{step} trl:{loss:.4f} lr:{lr:.6f} norm:{norm:.2f}")
        self.log("speed.log", f"s:{step + 1} ms:{1e3 * seconds:.3f} tps:{rate:.0f}")

    def number(self, step):
        return f"step {step:{max(4, len(str(self.steps)))}d}/{self.steps}"

    def describe(self):
        o, c = self.options, self.config
        size = {"layers": c.L, "heads": c.heads, "channels": c.C, "context": c.context, "vocab": c.V,
                "padded_vocab": c.Vp, "parameters": weights.num_parameters(c)}
        self.say(f"gpt2.c {version()}, the PyTorch twin: PyTorch {torch.__version__} on {self.device}, "
                 f"{'torch.compile' if o.compile else 'eager'}, {o.precision}\n"
                 f"model       {', '.join(f'{name} {n}' for name, n in size.items())}, from "
                 f"{self.model_file or 'the seed'}")
        for what, data in (("train data ", self.train), ("val data   ", self.val)):
            if data:
                self.say(f"{what} {data.name}: {data.num_tokens} tokens, {data.num_sequences} sequences")
        self.say(f"batch       {o.batch_size} sequences x {o.seq_len} tokens x {self.size} processes x "
                 f"{self.micro_batches} micro-batches = {o.total_batch} tokens a step\n")
        self.log_event("start", format=2, program="train_gpt2.py", version=version(), options=command_line.record(o),
                       model=size, tokens_per_step=o.total_batch, steps=self.steps)

    def finish(self):
        """Writes model_<step>.bin, which the C trainers read."""
        if self.on_gpu:
            self.say(f"peak memory: {torch.cuda.max_memory_allocated()} bytes allocated, "
                     f"{torch.cuda.max_memory_reserved()} bytes reserved")
        if self.rank == 0 and self.steps > 0:
            flat = flatten(self.config, self.model.in_file_order()).numpy()
            if self.options.out_dir:
                weights.write_model(f"{self.options.out_dir}/model_{self.step:08d}.bin", self.config, flat)
            self.log_event("end", status="done", weights_hash=f"{sum64(flat):016x}")
            self.say(f"weights hash {sum64(flat):016x}")
        if self.size > 1:
            distributed.destroy_process_group()


def main():
    status = 1
    try:
        Run(command_line.parse(sys.argv[1:], torch.cuda.is_available())).run()
        return
    except (Problem, RuntimeError) as error:  # PyTorch raises RuntimeError, for out of memory, too
        message = str(error).split("\n", maxsplit=1)[0]
    except OSError as error:
        message = f"{error.filename or 'standard output'}: {error.strerror or error}"
    except KeyboardInterrupt:
        message, status = "stopped", 130
    rank = int(os.environ.get("RANK", 0))
    print(guard.printable(f"train_gpt2.py: {f'rank {rank}: ' if rank else ''}{message}"), file=sys.stderr, flush=True)
    os._exit(status)  # other ranks may be waiting for this one: nothing is left to wait for


if __name__ == "__main__":
    main()
