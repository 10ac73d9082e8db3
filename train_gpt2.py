#!/usr/bin/env python3
"""The PyTorch twin of ./train_gpt2 and ./train_gpt2cu: the same model, initial weights, batches, optimizer, command
line and files, in PyTorch's operators. The peer in comparisons of losses and of speed.

    python3 train_gpt2.py --train-data book.txt --out-dir run
    torchrun --standalone --nproc-per-node 8 train_gpt2.py --train-data 'shards/*_train_*.bin' --total-batch 524288
    python3 train_gpt2.py --help

Needs torch (2.3 or later) and numpy. What needs no torch is in dev/twin/. Vocabulary: B T C V Vp L NH HS as in llmc/.
"""
import contextlib
import glob
import math
import os
import sys
import time

try:
    import numpy as np
    import torch
    from torch import distributed, nn
    from torch.nn import functional as F
except ImportError as missing:
    sys.exit(f"train_gpt2.py: {sys.executable} has no {missing.name}; python3 -m pip install torch numpy")
if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 3):
    sys.exit(f"train_gpt2.py: {sys.executable} has PyTorch {torch.__version__}, 2.3 or later is needed; python3 -m pip "
             "install --upgrade torch")

from dev import guard
from dev.twin import guarded
from dev.twin import Problem, muon, options as command_line, run_folder, schedule, version, weights
from dev.twin.data import BYTE_VOCAB, GPT2_VOCAB, open_sequences, open_validation, sum64
from dev.twin.weights import PARAMETERS, pad_vocab

# ---------------------------------------------------------------------------------------------------------------------
# The model


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
    """Parameters are fp32 (the fixtures: fp64). Activations are of the precision `compute`, None: the parameters'; each
    use casts its parameters, so that their gradients arrive, and are added up, in the parameters' own precision.
    pads_head: multiplies by a vocabulary rounded up to 128, as ./train_gpt2cu does; faster on a GPU, the same logits.
    """

    def __init__(self, context, V, L, num_heads, C, compute=None, pads_head=False):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(V, C), nn.Embedding(context, C)
        self.h = nn.ModuleList(Block(C, num_heads) for _ in range(L))
        self.ln_f = nn.LayerNorm(C)
        self.compute, self.pads_head = compute, pads_head

    def logits(self, inputs):
        """inputs (B, T) -> logits (B, T, V). The head is wte."""
        compute, V = self.compute or self.wte.weight.dtype, self.wte.num_embeddings
        x = self.wte(inputs).to(compute) + self.wpe.weight[:inputs.size(1)].to(compute)
        for block in self.h:
            x = block(x)
        head = self.wte.weight.to(compute)
        if self.pads_head:
            head = F.pad(head, (0, 0, 0, pad_vocab(V) - V))
        return (layer_norm(self.ln_f, x) @ head.T)[..., :V]

    def forward(self, inputs, targets):
        """The mean loss, computed in fp32 (fp64) from logits of any precision."""
        logits = self.logits(inputs)
        if logits.dtype == torch.bfloat16:
            logits = logits.float()
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def layers_of(self, pattern):
        """The tensors of one row of PARAMETERS: one per layer, or the only one."""
        count = len(self.h) if "{}" in pattern else 1
        return [self.get_parameter(pattern.format(layer)) for layer in range(count)]

    def in_file_order(self):
        return [p for _, pattern, _, _ in PARAMETERS for p in self.layers_of(pattern)]


def flatten(model, tensors):
    """Tensors shaped as the parameters, in file order, as one float32 array with wte padded to Vp rows by zeros."""
    V, C = model.wte.weight.shape
    padding = torch.zeros(pad_vocab(V) - V, C)
    return torch.cat([t.detach().float().cpu().flatten() for t in (tensors[0], padding, *tensors[1:])])


@torch.no_grad()
def set_parameters(model, config, flat):
    """From an array of all parameters in file order."""
    for name, values in weights.parts_of(flat, config).items():
        model.get_parameter(name).copy_(torch.from_numpy(np.ascontiguousarray(values)))


# ---------------------------------------------------------------------------------------------------------------------
# The update


def decay_groups(parameters, weight_decay):
    """AdamW decays matrices and embeddings, and leaves biases and LayerNorms alone."""
    return [{"params": [p for p in parameters if (p.dim() >= 2) == decays], "weight_decay": decay}
            for decays, decay in ((True, weight_decay), (False, 0.0))]


def make_adamw(model, beside, beta1, beta2, eps, weight_decay, shards=False, **how):
    """beside: a Muon, whose matrices AdamW leaves out, or None. shards: each process keeps the moments of its part of
    the parameters (ZeRO stage 1)."""
    parameters = [p for p in model.parameters() if beside is None or p not in beside.state]
    groups, settings = decay_groups(parameters, weight_decay), {"lr": 0.0, "betas": (beta1, beta2), "eps": eps, **how}
    if not shards:
        return torch.optim.AdamW(groups, **settings)
    from torch.distributed.optim import ZeroRedundancyOptimizer
    return ZeroRedundancyOptimizer(groups, torch.optim.AdamW, **settings)


def orthogonalize(N, dtype):
    """NS5 of each matrix in N (matrices, rows, cols), in rounds of this precision. Tall matrices are transposed."""
    is_tall = N.size(1) > N.size(2)
    X = (N.mT if is_tall else N) / N.norm(dim=(1, 2), keepdim=True).clamp(min=muon.EPSILON)
    X = X.to(dtype)
    for _ in range(muon.ROUNDS):
        G = X @ X.mT
        X = torch.baddbmm(X, torch.baddbmm(G, G, G, beta=muon.B, alpha=muon.C), X, beta=muon.A)
    return (X.mT if is_tall else X).to(N.dtype)


class Muon(torch.optim.Optimizer):
    """Muon for the matrices of the blocks. torch.optim.Muon makes its rounds in bf16 whatever the precision, and takes
    the weight of qkv for one matrix, so its losses cannot be ./train_gpt2's. rounds: the precision of our rounds."""

    def __init__(self, model, scale, weight_decay, rounds):
        found = [(name, p) for name, p in model.h.named_parameters() if p.dim() == 2]
        groups = [{"params": [p for name, p in found if ("c_attn" in name) == is_qkv], "matrices": count}
                  for is_qkv, count in ((True, 3), (False, 1))]  # matrices: in each weight
        super().__init__(groups, {"lr": 0.0, "momentum": 0.0, "weight_decay": weight_decay, "scale": scale})
        self.rounds = rounds
        for group in groups:
            for W in group["params"]:
                self.state[W]["M"] = torch.zeros_like(W)

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for W in group["params"]:
                self.update(W, **group)

    def update(self, W, lr, momentum, weight_decay, scale, matrices, **_):
        """M = momentum M + G, W -= lr (scale NS5(G + momentum M) + weight_decay W)."""
        G, M = W.grad, self.state[W]["M"]
        M.mul_(momentum).add_(G)
        N = (G + momentum * M).unflatten(0, (matrices, -1))  # (matrices, rows, cols)
        O = muon.scale(scale, *N.shape[1:]) * orthogonalize(N, self.rounds).flatten(0, 1)
        W.sub_(lr * (O + weight_decay * W))


@torch.no_grad()
def clip_gradients(model, grad_clip):
    """Shortens the gradient to the norm grad_clip, 0: never. Returns its norm before, on the device: nothing waits."""
    gradients = [p.grad for p in model.parameters()]
    norm = torch.stack(torch._foreach_norm(gradients)).norm()
    if grad_clip > 0:
        torch._foreach_mul_(gradients, torch.clamp(grad_clip / norm, max=1.0))
    return norm


def update(model, grad_clip, *optimizers):
    """From the gradients that are there. Each optimizer comes with the settings of this step. Returns the gradients'
    norm before clipping, on the device."""
    norm = clip_gradients(model, grad_clip)
    for optimizer, settings in optimizers:
        for group in optimizer.param_groups:
            group.update(settings)
        optimizer.step()
    return norm


# ---------------------------------------------------------------------------------------------------------------------
# Processes and devices


class Ranks:
    """The processes that torchrun started, or one alone; and the device of this one."""

    def __init__(self, device):
        self.size, self.rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
        local = int(os.environ.get("LOCAL_RANK", 0))
        self.on_gpu = device == "cuda"
        if self.on_gpu and local >= torch.cuda.device_count():
            raise Problem(f"process {local} of this machine has no GPU, PyTorch sees {torch.cuda.device_count()}; "
                          "see nvidia-smi and CUDA_VISIBLE_DEVICES")
        self.device = torch.device("cuda", local) if self.on_gpu else torch.device("cpu")
        if self.on_gpu:
            torch.cuda.set_device(self.device)
        if self.size > 1:
            distributed.init_process_group("nccl" if self.on_gpu else "gloo")

    def leads(self):
        return self.rank == 0

    def say(self, *words):
        if self.leads():
            print(*words, flush=True)

    def sum(self, tensor):
        if self.size > 1:
            distributed.all_reduce(tensor)
        return tensor

    def gather(self, value):
        """What each rank has, in order."""
        if self.size == 1:
            return [value]
        values = [None] * self.size
        distributed.all_gather_object(values, value)
        return values

    def close(self):
        if self.size > 1:
            distributed.destroy_process_group()


def choose_attention(kind):
    """Which kernels scaled_dot_product_attention may take."""
    if kind == "auto":
        return
    switches = {"flash": torch.backends.cuda.enable_flash_sdp, "math": torch.backends.cuda.enable_math_sdp,
                "efficient": torch.backends.cuda.enable_mem_efficient_sdp,
                "cudnn": getattr(torch.backends.cuda, "enable_cudnn_sdp", lambda enabled: None)}
    for name, switch in switches.items():
        switch(name == kind)


def fetch(tensor):
    """A copy in the host's memory, on its way: there when the stream has got that far. Unpinned memory would wait."""
    if not tensor.is_cuda:
        return tensor
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)


class Clock:
    """Points in time on the GPU's own clock, or the host's."""

    def __init__(self, on_gpu):
        self.on_gpu = on_gpu

    def mark(self):
        if not self.on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, begin, end):
        """Waits for the GPU to reach `end`."""
        if not self.on_gpu:
            return end - begin
        end.synchronize()
        return 1e-3 * begin.elapsed_time(end)


# ---------------------------------------------------------------------------------------------------------------------
# A run


def shape_of_model(options, config, vocab):
    """The config of a new model, from a size, its changes and the vocabulary."""
    V = options.vocab or vocab
    if V < vocab and options.vocab and vocab == BYTE_VOCAB:
        raise Problem(f"--vocab {V}: the tokenizer has {vocab} tokens; give at least that many")
    config = weights.Config(options.context or config.context, V, pad_vocab(V), options.layers or config.L,
                            options.heads or config.heads, options.channels or config.C)
    weights.check_config(config, "--init")
    return config


class Run:
    """What the options ask for, checked and opened; where the run stands; how it computes."""
    fuses_on_cpu = False  # AdamW in one pass on a CPU; on a GPU it always is

    def __init__(self, options):
        self.options, self.ranks = options, Ranks(options.device)
        self.clock = Clock(self.ranks.on_gpu)
        self.folder = run_folder.RunFolder(options.out_dir if self.ranks.leads() else None)
        self.step, self.saved, self.began = 0, None, time.perf_counter()
        if options.threads:
            torch.set_num_threads(options.threads)
        if self.ranks.on_gpu:
            torch.set_float32_matmul_precision("high" if options.tf32 else "highest")
        choose_attention(options.attention)
        self.open_inputs()
        self.settle_batch()
        self.folder.claim(options.resume, options.overwrite)
        self.make_model()

    # -- Opening --

    def open_inputs(self):
        o = self.options
        self.model_file, config = weights.open_model(o.init)
        is_text = bool(o.train_data) and not o.train_data.endswith(".bin")
        vocab = BYTE_VOCAB if is_text or config.V == BYTE_VOCAB else GPT2_VOCAB
        if self.model_file and (o.layers or o.heads or o.channels or o.context or o.vocab):
            raise Problem(f"--layers, --heads, --channels, --context and --vocab are for new models; --init {o.init} "
                          "names a model that exists")
        if self.model_file and is_text and config.V != vocab:
            raise Problem(f"{o.train_data}: a text becomes {vocab} tokens, the model has {config.V}; make shards of it "
                          "with ./tokenize")
        if o.val_data and not o.val_data.endswith(".bin") and vocab != BYTE_VOCAB:
            raise Problem(f"--val-data (-j): {o.val_data}: a text becomes {BYTE_VOCAB} tokens, the model has other "
                          "ones; make shards of it with ./tokenize")
        self.config = c = config if self.model_file else shape_of_model(o, config, vocab)
        o.seq_len = o.seq_len or min(1024 if self.ranks.on_gpu else 64, c.context)
        if not self.model_file and not o.context:
            self.config = c = c._replace(context=o.seq_len)
        if o.seq_len > c.context:
            raise Problem(f"--seq-len (-t): {o.seq_len} tokens, but the model knows {c.context} positions; give at "
                          "most that many")
        self.train = self.val = None
        if o.train_data:
            self.train, self.val = open_sequences(o.train_data, o.seq_len, c.V, o.shuffle, o.seed)
        if o.val_data:
            self.val = open_validation(o.val_data, o.seq_len, c.V)

    def settle_batch(self):
        """Micro-batches, steps."""
        o = self.options
        micro = o.batch_size * o.seq_len * self.ranks.size
        o.total_batch = o.total_batch or micro
        if o.total_batch % micro:
            ranks = f" x {self.ranks.size} ranks" if self.ranks.size > 1 else ""
            raise Problem(f"--total-batch (-d): {o.total_batch} tokens is not a multiple of B x T{ranks} = {micro}; "
                          f"give {max(o.total_batch // micro, 1) * micro}")
        self.micro_batches, self.sequences_per_step = o.total_batch // micro, o.total_batch // o.seq_len
        self.steps = o.steps
        if o.steps < 0:
            self.steps = self.train.num_sequences // self.sequences_per_step
            if self.steps < 1:
                raise Problem(f"--steps (-x): one epoch is {self.train.num_sequences} sequences, less than the "
                              f"{self.sequences_per_step} of one step; give --steps, a smaller --total-batch or more "
                              "data")
        if o.warmup < 0:
            o.warmup = min(self.steps // 10, 100) if self.model_file is None else 0

    def make_model(self):
        """Model and optimizer; rank 0 fills in the parameters, the others get them from it."""
        o, c, on_gpu = self.options, self.config, self.ranks.on_gpu
        compute = torch.bfloat16 if o.precision == "bf16" else None
        with torch.device("meta"):
            model = GPT2(c.context, c.V, c.L, c.heads, c.C, compute, pads_head=on_gpu)
        self.model = model.to_empty(device=self.ranks.device)
        state = self.read_checkpoint()
        if state is None and self.ranks.leads():
            from_file = self.model_file is not None
            set_parameters(self.model, c, weights.read_model(self.model_file) if from_file
                           else weights.initial(c, o.seed))
        self.parallel = self.model
        if self.ranks.size > 1:  # sends the parameters, too
            from torch.nn.parallel import DistributedDataParallel
            self.parallel = DistributedDataParallel(self.model, gradient_as_bucket_view=True)
        self.make_optimizers()
        if state is not None:
            self.adamw.load_state_dict(state["optimizer"])
            if self.muon:
                self.muon.load_state_dict(state["muon"])
        self.loss_of = torch.compile(self.parallel) if o.compile else self.parallel

    def make_optimizers(self):
        """Each process keeps all of Muon's momentum: --zero-stage shares out AdamW's moments only."""
        o, self.muon = self.options, None
        if o.optimizer == "muon":
            rounds = torch.float32 if o.precision == "fp32" else torch.bfloat16
            self.muon = Muon(self.model, o.muon_scale, o.weight_decay, rounds)
        self.adamw = make_adamw(self.model, self.muon, 0.9, 0.95, o.adam_eps, o.weight_decay,
                                shards=bool(o.zero_stage) and self.ranks.size > 1,
                                **({"fused": True} if self.ranks.on_gpu or self.fuses_on_cpu else {}))

    # -- Computing --

    def loss(self, rows):
        """The mean loss of windows (B, T+1) in the host's memory."""
        rows = torch.from_numpy(rows)
        if self.ranks.on_gpu:
            rows = rows.pin_memory().to(self.ranks.device, non_blocking=True)
        casts = self.options.precision == "autocast"
        with torch.autocast(self.ranks.device.type, torch.bfloat16) if casts else contextlib.nullcontext():
            return self.loss_of(rows[:, :-1].contiguous(), rows[:, 1:].contiguous())  # compiled code wants them aligned

    def batch(self, micro_batch):
        """This rank's part of a micro-batch of the current step: the ranks' sequences follow one another."""
        first = 0 if self.options.overfit else self.step * self.sequences_per_step
        B = self.options.batch_size
        return self.train.read(first + (micro_batch * self.ranks.size + self.ranks.rank) * B, B)

    def queue_step(self):
        """One update. On a GPU nothing here waits for it. Returns the loss and the gradient's norm, on the device."""
        o = self.options
        self.model.zero_grad(set_to_none=True)
        total = torch.zeros((), device=self.ranks.device)
        for i in range(self.micro_batches):
            last = i == self.micro_batches - 1
            with contextlib.nullcontext() if last or self.ranks.size == 1 else self.parallel.no_sync():
                loss = self.loss(self.batch(i)) / self.micro_batches
                loss.backward()
            total += loss.detach()
        norm = update(self.model, o.grad_clip, *self.optimizers())
        return torch.stack([self.ranks.sum(total) / self.ranks.size, norm])

    def rate(self, peak):
        o = self.options
        return schedule.learning_rate(self.step, peak, o.warmup, self.steps, o.final_lr_frac, o.schedule)

    def optimizers(self):
        """Those of the run, with their settings of the current step."""
        o = self.options
        yield self.adamw, {"lr": self.rate(o.lr)}
        if self.muon:
            yield self.muon, {"lr": self.rate(o.muon_lr),
                              "momentum": muon.momentum(muon.MOMENTUM, o.muon_warmup, self.step)}

    @torch.no_grad()
    def validate(self):
        """The mean loss over the validation sequences, always the same ones, spread evenly; the ranks take turns."""
        o, B, total = self.options, self.options.batch_size, torch.zeros((), dtype=torch.float64)
        held_out = self.val.num_sequences
        count = min(o.val_sequences or held_out, held_out)
        for first in range(self.ranks.rank * B, count, self.ranks.size * B):
            numbers = range(first, min(first + B, count))  # with --val-batches, as in llm.c, the first ones
            numbers = numbers if o.val_batches >= 0 else [i * held_out // count for i in numbers]
            rows = np.concatenate([self.val.read(i, 1) for i in numbers])
            total += len(rows) * self.loss(rows).double().cpu()
        total = self.ranks.sum(total.to(self.ranks.device)).item() / count
        self.ranks.say(f"{run_folder.step_number(self.step, self.steps)} | val loss {total:.6f} "
                       f"({count} of {held_out} sequences)")
        self.folder.log_val(self.step, total)

    # -- Checkpoints --

    def parameters(self):
        """All of them, in file order, as the files have them."""
        return flatten(self.model, self.model.in_file_order()).numpy()

    def save(self):
        """model_<step>.bin, which the C trainers read, and beside it the rest of the training's state for PyTorch."""
        o = self.options
        if o.zero_stage and self.ranks.size > 1:
            self.adamw.consolidate_state_dict(0)
        self.saved = self.step
        if not self.ranks.leads():
            return
        weights.write_model(os.path.join(o.out_dir, f"model_{self.step:08d}.bin"), self.config, self.parameters())
        path = os.path.join(o.out_dir, f"twin_{self.step:08d}.pt")
        try:
            with guarded.new_file(path) as file:
                torch.save({"step": self.step, "options": command_line.shaping(o), "data": self.train.fingerprint,
                            "optimizer": self.adamw.state_dict(), "muon": self.muon and self.muon.state_dict()}, file)
        except (OSError, RuntimeError) as error:
            raise Problem(f"{path}: cannot be written: {error}; free some space") from None
        self.ranks.say(f"saved the checkpoint of step {self.step} in {o.out_dir}")

    def read_checkpoint(self):
        """Goes on from the newest checkpoint: sets parameters and step, returns the state. None: a fresh run."""
        o = self.options
        path = next(iter(weights.by_step(o.out_dir, "twin_*.pt")), None) if o.resume else None
        if path is None:
            return None
        try:
            with guarded.open_file(path) as file:
                state = torch.load(file, map_location=self.ranks.device, weights_only=True)
            self.step, options = state["step"], state["options"]
        except Exception as error:  # torch.load raises what it likes for a damaged file
            raise Problem(f"{path}: is damaged: {str(error).splitlines()[0]}; remove it") from None
        changes = [f"--{name} was {options.get(name)}, is {value}" for name, value in command_line.shaping(o).items()
                   if options.get(name) != value]
        if state["data"] != self.train.fingerprint:
            changes.append("the training data is not the same")
        if changes:
            raise Problem(f"--resume (-y): {o.out_dir}: {'; '.join(changes)}; give the same again")
        if self.ranks.leads():
            set_parameters(self.model, self.config, weights.read_model(f"{o.out_dir}/model_{self.step:08d}.bin"))
        return state

    # -- What is said --

    def peak_flops(self):
        """Of all GPUs; 0: not known, as for CPUs."""
        kind = 0 if self.options.precision != "fp32" else 1 if self.options.tf32 else 2
        name = torch.cuda.get_device_name() if self.ranks.on_gpu else ""
        return self.ranks.size * run_folder.gpu_peak_flops(name, kind)

    def gpus(self):
        """One for each rank."""
        if not self.ranks.on_gpu:
            return None
        about = torch.cuda.get_device_properties(self.ranks.device)
        return self.ranks.gather({"name": about.name, "memory_bytes": about.total_memory,
                                  "compute_capability": f"{about.major}.{about.minor}"})

    def describe(self, gpus):
        o, c, say = self.options, self.config, self.ranks.say
        say(f"gpt2.c {version()}, the PyTorch twin\n"
            f"model       {c.L} layers, {c.heads} heads, {c.C} channels, context {c.context}, vocabulary {c.V} "
            f"(padded {c.Vp})\n"
            f"parameters  {weights.num_parameters(c)}, from "
            f"{'a checkpoint' if self.step else self.model_file or 'the seed'}")
        for what, data in (("train data ", self.train), ("val data   ", self.val)):
            if data:
                say(f"{what} {data.name}: {data.num_tokens} tokens, {data.num_sequences} sequences")
        if self.steps > 0:
            epochs = self.steps * self.sequences_per_step / self.train.num_sequences
            adamw = f"{muon.describe(o)}\n            AdamW for the rest" if self.muon else "AdamW"
            ranks = f" x {self.ranks.size} ranks" if self.ranks.size > 1 else ""
            say(f"batch       {o.batch_size} sequences x {o.seq_len} tokens{ranks} x {self.micro_batches} micro-batches"
                f" = {o.total_batch} tokens a step\nsteps       {self.steps}, {epochs:.2f} epochs\n"
                f"optimizer   {adamw}, learning rate {schedule.describe(o, o.lr)}, weight decay {o.weight_decay:g}")
        how = "torch.compile" if o.compile else "eager"
        say(f"precision   {o.precision}; {how}, attention {o.attention}")
        machine = f"{self.ranks.size} x {gpus[0]['name']}" if gpus else f"{torch.get_num_threads()} threads"
        say(f"machine     PyTorch {torch.__version__}, {machine}"
            f"{f', {self.ranks.size} processes' if self.ranks.size > 1 else ''}\n")

    def record(self, gpus):
        """What run.jsonl says of the start."""
        o, c = self.options, self.config
        data = {}
        for name, sequences in (("train", self.train), ("val", self.val)):
            if sequences:
                data[name] = {"files": len(sequences.paths), "tokens": sequences.num_tokens}
                if sequences.fingerprint:
                    data[name]["fingerprint"] = sequences.fingerprint
        versions = {"python": sys.version.split()[0], "torch": torch.__version__, "numpy": np.__version__}
        if gpus:
            versions["cuda_runtime"] = torch.version.cuda
        machines = int(os.environ.get("GROUP_WORLD_SIZE", 1))
        return {"options": command_line.record(o),
                "model": {"layers": c.L, "heads": c.heads, "channels": c.C, "context": c.context, "vocab": c.V,
                          "padded_vocab": c.Vp, "parameters": weights.num_parameters(c)},
                "tokens_per_step": o.total_batch, "steps": self.steps,
                "sequences_per_epoch": self.train.num_sequences if self.train else 0, "data": data,
                "hardware": {**run_folder.host_facts(), **({"gpus": gpus} if gpus else {}), "ranks": self.ranks.size,
                             "machines": machines}, "versions": versions}

    # -- The loop --

    def due(self, every):
        return every > 0 and (self.step % every == 0 or self.step == self.steps)

    def train_steps(self):
        """At a step, in this order: save, validate, update. The results of a step are read while the next one runs, as
        far as nothing is due between them."""
        o, waiting = self.options, None
        while True:
            last, validates = self.step >= self.steps, self.val is not None and self.due(o.val_every)
            saves = bool(o.out_dir) and self.step != self.saved and (last or (self.step > 0 and
                                                                             self.due(o.checkpoint_every)))
            if waiting and (last or saves or validates or not self.ranks.on_gpu):
                self.settle(waiting)
                waiting = None
            if saves:
                self.save()
            if validates:
                self.validate()
            if last:
                return
            begin = waiting["end"] if waiting else self.clock.mark()
            queued = {"step": self.step, "lr": self.rate(o.lr), "begin": begin, "results": fetch(self.queue_step())}
            queued["end"] = self.clock.mark()
            self.step += 1
            if waiting:
                self.settle(waiting)
            waiting = queued

    def restart_clock(self, first_step):
        """What is said of time counts from here."""
        self.began, self.first_step = time.perf_counter(), first_step

    def settle(self, done):
        """Reads, prints and logs the results of a step."""
        seconds = self.clock.seconds(done["begin"], done["end"])
        loss, norm = done["results"].tolist()
        for what, value in (("loss", loss), ("gradient norm", norm)):
            if not math.isfinite(value):
                raise Problem(f"step {done['step'] + 1}: the {what} is {value}; try a lower --lr, more --warmup or "
                              "--grad-clip")
        tokens, since = self.options.total_batch, time.perf_counter() - self.began
        mean = since / (done["step"] + 1 - self.first_step)
        peak = self.flops * tokens / seconds / self.peak if self.peak else 0
        self.ranks.say(run_folder.step_line(done["step"], self.steps, loss, norm, done["lr"], seconds, tokens, peak,
                                            mean * (self.steps - done["step"] - 1)))
        self.folder.log_step(done["step"], loss, norm, done["lr"], seconds, tokens)

    def run(self):
        gpus = self.gpus()
        self.flops, self.peak = run_folder.flops_per_token(self.config, self.options.seq_len), self.peak_flops()
        self.describe(gpus)
        self.folder.open(self.step, self.record(gpus))
        if self.options.overwrite and self.ranks.leads():
            for path in glob.glob(os.path.join(glob.escape(self.options.out_dir), "*_????????.*")):
                if os.path.basename(path).split("_")[0] in ("model", "state", "twin"):
                    os.remove(path)
        self.restart_clock(self.step)
        self.train_steps()
        if self.steps > 0:
            self.finish()

    def end(self, status, **more):
        self.folder.end(self.step, status, **more)

    def finish(self):
        if self.ranks.on_gpu:
            self.ranks.say(f"peak memory: {torch.cuda.max_memory_allocated()} bytes allocated, "
                           f"{torch.cuda.max_memory_reserved()} bytes reserved")
        if self.ranks.leads():
            hashed = f"{sum64(self.parameters()):016x}"
            self.end("done", weights_hash=hashed)
            print(f"weights hash {hashed}", flush=True)


def finds_gpu(device):
    """Does a run with this --device compute on a GPU?"""
    if device == "cuda" and not torch.cuda.is_available():
        raise Problem("--device cuda: PyTorch sees no GPU; see nvidia-smi and CUDA_VISIBLE_DEVICES")
    return device != "cpu" and torch.cuda.is_available()


def explain(error, options):
    """One line for an error of PyTorch that a user can cause, or None."""
    first = str(error).split("\n")[0]
    if isinstance(error, torch.cuda.OutOfMemoryError) or "can't allocate memory" in first:
        return f"out of memory with --batch-size {options.batch_size}; give a smaller one ({first[:160]})"
    if "No available kernel" in first or "No viable backend" in first:
        return f"--attention {options.attention}: PyTorch has no such kernel for this device and precision; give auto"
    return None


def train(options, kind=Run):
    """Trains as the options say. Raises Problem."""
    run = None
    try:
        run = kind(options)
        run.run()
        run.ranks.close()
    except BaseException as error:
        message = explain(error, options)
        if run is not None:
            run.end("stopped" if isinstance(error, KeyboardInterrupt) else "failed", message=message or str(error))
        if message is not None:
            raise Problem(message) from None
        raise


def main(arguments, kind=Run, program="train_gpt2.py"):
    try:
        if not command_line.print_if_asked(arguments):
            train(command_line.parse(arguments, finds_gpu), kind)
    except Problem as problem:
        rank = int(os.environ.get("RANK", 0))
        print(guard.printable(f"{program}: {f'rank {rank}: ' if rank else ''}{problem}"), file=sys.stderr, flush=True)
        os._exit(1)  # other ranks may be waiting for this one: nothing is left to wait for
    except BrokenPipeError:  # whoever read the output has gone
        os._exit(1)
    except OSError as error:
        where, what = error.filename or "standard output", error.strerror or error
        print(guard.printable(f"{program}: {where}: {what}"), file=sys.stderr, flush=True)
        os._exit(1)
    except KeyboardInterrupt:
        print("\nstopped", flush=True)
        os._exit(130)


if __name__ == "__main__":
    guarded.screens("stdout", "stderr", errors="surrogateescape")  # names of files are bytes, which need not be UTF-8
    main(sys.argv[1:])
