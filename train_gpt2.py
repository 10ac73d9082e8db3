#!/usr/bin/env python3
"""The PyTorch twin of train_gpt2.c: the same model, initialisation, data order and optimizer, in PyTorch's operators.

    python3 train_gpt2.py fixtures     writes dev/test/fixtures: the numbers that test_gpt2.c compares with
    python3 train_gpt2.py train ...    trains; the peer of ./train_gpt2 in tests and benchmarks

Needs torch (1.13 or later) and numpy; `fixtures` also needs transformers. Vocabulary: B T C V Vp L NH HS as in llmc/.
"""
import argparse
import glob
import itertools
import math
import os
import re
import shutil
import sys
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

# ---------------------------------------------------------------------------------------------------------------------
# The model

SIZES = {"d6": (6, 6, 384), "d12": (12, 12, 768), "d24": (24, 16, 1024), "d36": (36, 20, 1280), "d48": (48, 25, 1600),
         "d60": (60, 30, 1920), "d72": (72, 30, 2880), "d84": (84, 36, 3456)}  # L, NH, C

# The 16 tensors in file order: name in the files, name in the module (Hugging Face's), initialisation.
PARAMETERS = [
    ("wte", "wte.weight", "normal"), ("wpe", "wpe.weight", "normal"),
    ("ln1w", "h.{}.ln_1.weight", "one"), ("ln1b", "h.{}.ln_1.bias", "zero"),
    ("qkvw", "h.{}.attn.c_attn.weight", "normal"), ("qkvb", "h.{}.attn.c_attn.bias", "zero"),
    ("attprojw", "h.{}.attn.c_proj.weight", "residual"), ("attprojb", "h.{}.attn.c_proj.bias", "zero"),
    ("ln2w", "h.{}.ln_2.weight", "one"), ("ln2b", "h.{}.ln_2.bias", "zero"),
    ("fcw", "h.{}.mlp.c_fc.weight", "normal"), ("fcb", "h.{}.mlp.c_fc.bias", "zero"),
    ("fcprojw", "h.{}.mlp.c_proj.weight", "residual"), ("fcprojb", "h.{}.mlp.c_proj.bias", "zero"),
    ("lnfw", "ln_f.weight", "one"), ("lnfb", "ln_f.bias", "zero")]


def causal_attention(qkv, num_heads):
    """softmax(q k^T / sqrt(HS)) v over the positions up to one's own. qkv (B, T, 3C) -> (B, T, C)."""
    B, T, C = qkv.size(0), qkv.size(1), qkv.size(2) // 3
    q, k, v = (x.view(B, T, num_heads, C // num_heads).transpose(1, 2) for x in qkv.split(C, dim=2))
    if hasattr(F, "scaled_dot_product_attention"):
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    else:  # PyTorch 1
        future = torch.ones(T, T, dtype=torch.bool).triu(1)
        scores = q @ k.transpose(2, 3) / math.sqrt(C // num_heads)
        out = scores.masked_fill(future, -math.inf).softmax(dim=3) @ v
    return out.transpose(1, 2).reshape(B, T, C)


class Block(nn.Module):
    def __init__(self, C, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.ln_1, self.ln_2 = nn.LayerNorm(C), nn.LayerNorm(C)  # epsilon 1e-5
        self.attn = nn.ModuleDict({"c_attn": nn.Linear(C, 3 * C), "c_proj": nn.Linear(C, C)})
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(C, 4 * C), "c_proj": nn.Linear(4 * C, C)})

    def forward(self, x):
        x = x + self.attn.c_proj(causal_attention(self.attn.c_attn(self.ln_1(x)), self.num_heads))
        return x + self.mlp.c_proj(F.gelu(self.mlp.c_fc(self.ln_2(x)), approximate="tanh"))


class GPT2(nn.Module):
    def __init__(self, context, V, L, num_heads, C):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(V, C), nn.Embedding(context, C)
        self.h = nn.ModuleList(Block(C, num_heads) for _ in range(L))
        self.ln_f = nn.LayerNorm(C)

    def forward(self, inputs):
        """inputs (B, T) -> logits (B, T, V). The head is wte."""
        x = self.wte(inputs) + self.wpe.weight[:inputs.size(1)]
        for block in self.h:
            x = block(x)
        return self.ln_f(x) @ self.wte.weight.T

    def loss(self, inputs, targets):
        return F.cross_entropy(self(inputs).flatten(0, 1), targets.flatten())

    def layers_of(self, pattern):
        """The tensors of one row of PARAMETERS: one per layer, or the only one."""
        count = len(self.h) if "{}" in pattern else 1
        return [self.get_parameter(pattern.format(layer)) for layer in range(count)]

    def in_file_order(self):
        return [p for _, pattern, _ in PARAMETERS for p in self.layers_of(pattern)]


# ---------------------------------------------------------------------------------------------------------------------
# Random numbers and initialisation: the functions of llmc/rand.h and llmc/gpt2.h, over arrays

GOLDEN = 0x9e3779b97f4a7c15


def rand_mix(x):
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xbf58476d1ce4e5b9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94d049bb133111eb)
    return x ^ (x >> np.uint64(31))


def rand_u64(seed, stream, count):
    """The first count numbers of a stream, uint64."""
    key = rand_mix(np.array([(seed + GOLDEN) % 2**64], np.uint64)) + np.uint64((stream + 1) * GOLDEN % 2**64)
    return rand_mix(rand_mix(key) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(GOLDEN))


def rand_normal(seed, stream, shape):
    """Standard normal float32 numbers: element i is half i%2 of pair i/2 of the stream."""
    count = math.prod(shape)
    bits, f32 = rand_u64(seed, stream, (count + 1) // 2), np.float32
    u = ((bits >> np.uint64(40)).astype(f32) + f32(0.5)) * f32(2.0**-24)
    angle = ((bits >> np.uint64(16)) & np.uint64(0xffffff)).astype(f32) * f32(2 * math.pi / 2**24)
    radius = np.sqrt(f32(-2) * np.log(u))
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).ravel()[:count].reshape(shape)


@torch.no_grad()
def initialise(model, seed):
    for i, (_, pattern, kind) in enumerate(PARAMETERS):
        layers = model.layers_of(pattern)
        shape = (len(layers), *layers[0].shape)
        if kind in ("zero", "one"):
            values = np.full(shape, float(kind == "one"), np.float32)
        else:
            std = np.float32(0.02) / np.sqrt(np.float32(2 * len(model.h) if kind == "residual" else 1))
            values = std * rand_normal(seed, 1000 + i, shape)
        for parameter, value in zip(layers, values):
            parameter.copy_(torch.from_numpy(value))


# ---------------------------------------------------------------------------------------------------------------------
# Model files (.bin: version 3 float32, version 5 bfloat16) and token data

def fail(message):
    sys.exit(f"train_gpt2.py: {message}")


def pad_vocab(V):
    return (V + 127) // 128 * 128


def flatten(model, tensors):
    """Tensors shaped as the parameters, in file order, as one float32 array with wte padded to Vp rows by zeros."""
    V, C = model.wte.weight.shape
    padding = torch.zeros(pad_vocab(V) - V, C)
    return torch.cat([t.detach().float().flatten() for t in (tensors[0], padding, *tensors[1:])])


def header(*values):
    return np.array(list(values) + [0] * (256 - len(values)), np.int32).tobytes()


def write_model(path, model, version=3):
    V, C = model.wte.weight.shape
    values = flatten(model, model.in_file_order())
    if version == 5:
        values = values.bfloat16().view(torch.int16)
    with open(path, "wb") as file:
        file.write(header(20240326, version, len(model.wpe.weight), V, len(model.h), model.h[0].num_heads, C,
                          pad_vocab(V)))
        file.write(values.numpy().tobytes())


@torch.no_grad()
def read_model(path):
    h = np.fromfile(path, np.int32, 256).tolist()
    if len(h) < 256 or h[:2] != [20240326, 3]:
        fail(f"{path}: not a version 3 model file; export one with ./train_gpt2")
    context, V, L, num_heads, C, Vp = h[2:8]
    model = GPT2(context, V, L, num_heads, C)
    values, at = torch.from_numpy(np.fromfile(path, np.float32, offset=1024)), 0
    if len(values) != sum(p.numel() for p in model.parameters()) + (Vp - V) * C:
        fail(f"{path}: its size does not fit its header; copy it again")
    for p in model.in_file_order():
        p.copy_(values[at:at + p.numel()].view(p.shape))
        at += Vp * C if p is model.wte.weight else p.numel()
    return model


def train_part(count, T):
    """How many of a text's tokens are for training: all but the last tenth (llmc/dataloader.h: text_split)."""
    validation = max(count // 10, T + 1)
    return count - validation if count - validation >= T + 1 else count


def load_tokens(pattern, T):
    """A glob of token shards (*.bin) or of text files -> (list of uint16 arrays, vocabulary size).

    Text becomes bytes with end-of-text (256) before each file; the part for validation is left out.
    """
    paths = sorted(glob.glob(pattern))
    if not paths:
        fail(f"--train-data {pattern}: no such file")
    if not pattern.endswith(".bin"):
        text = np.concatenate([np.append(np.uint16(256), np.fromfile(path, np.uint8)) for path in paths])
        return [text[:train_part(len(text), T)]], 257
    for path in paths:
        h = np.fromfile(path, np.int32, 256).tolist()
        if len(h) < 256 or h[:2] != [20240520, 1] or os.path.getsize(path) != 1024 + 2 * h[2]:
            fail(f"{path}: not a complete shard of GPT-2 tokens; make or fetch it again")
    return [np.memmap(path, np.uint16, "r", offset=1024) for path in paths], 50257


def read_batch(shards, T, first, count):
    """Windows first..first+count-1 of the endless sequence of epochs -> inputs, targets (count, T) int64."""
    windows = [(len(shard) - 1) // T for shard in shards]
    if sum(windows) == 0:
        fail(f"--seq-len {T}: no shard holds {T + 1} tokens; choose a smaller one")
    rows = []
    for g in range(first, first + count):
        g, s = g % sum(windows), 0
        while g >= windows[s]:
            g, s = g - windows[s], s + 1
        rows.append(shards[s][g * T:g * T + T + 1].astype(np.int64))
    rows = torch.from_numpy(np.stack(rows))
    return rows[:, :-1], rows[:, 1:]


# ---------------------------------------------------------------------------------------------------------------------
# Training

def learning_rate(step, peak, warmup, total, final_fraction):
    """Linear warm-up to peak, then a half cosine down to peak * final_fraction at step total."""
    if step < warmup:
        return peak * (step + 1) / warmup
    progress = min(1.0, (step - warmup) / max(1, total - warmup))
    return peak * (final_fraction + (1 - final_fraction) * 0.5 * (1 + math.cos(math.pi * progress)))


def make_optimizer(model, beta1, beta2, eps, weight_decay):
    """AdamW that decays matrices and embeddings, and leaves biases and LayerNorms alone."""
    groups = [{"params": [p for p in model.parameters() if (p.dim() >= 2) == decays], "weight_decay": decay}
              for decays, decay in ((True, weight_decay), (False, 0.0))]
    return torch.optim.AdamW(groups, betas=(beta1, beta2), eps=eps)


def train_step(model, optimizer, batches, lr, grad_clip):
    """One update from the mean gradient of the batches. Returns the mean loss and the norm before clipping."""
    optimizer.zero_grad()
    loss = 0.0
    for inputs, targets in batches:
        part = model.loss(inputs, targets) / len(batches)
        part.backward()
        loss += part.item()
    gradients = [p.grad for p in model.parameters()]
    norm = torch.stack([g.norm() for g in gradients]).norm().item()
    if grad_clip > 0 and norm > grad_clip:
        for g in gradients:
            g.mul_(grad_clip / norm)
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.step()
    return loss, norm


def make_model(options, V):
    if os.path.isfile(options.init):
        return read_model(options.init)
    if options.init not in SIZES:
        fail(f"--init {options.init}: neither a file nor one of {' '.join(SIZES)}")
    L, heads, C = (given or default for given, default in
                   zip((options.layers, options.heads, options.channels), SIZES[options.init]))
    if C % heads != 0:
        fail(f"{C} channels cannot be divided among {heads} heads; choose --heads that divides --channels")
    model = GPT2(options.context or 1024, options.vocab or V, L, heads, C)
    initialise(model, options.seed)
    return model


def train(options):
    if options.threads:
        torch.set_num_threads(options.threads)
    B, T = options.batch_size, options.seq_len
    micro_batches, rest = divmod(options.total_batch or B * T, B * T)
    if rest or not micro_batches:
        fail(f"--total-batch {options.total_batch}: not a multiple of batch size x sequence length = {B * T}")
    shards, V = load_tokens(options.train_data, T)
    model = make_model(options, V)
    if T > len(model.wpe.weight):
        fail(f"--seq-len {T}: the model's context is {len(model.wpe.weight)}")
    optimizer = make_optimizer(model, options.beta1, options.beta2, options.adam_eps, options.weight_decay)
    for step in range(options.steps):
        start = time.perf_counter()
        first = step * micro_batches * B
        batches = [read_batch(shards, T, first + i * B, B) for i in range(micro_batches)]
        lr = learning_rate(step, options.lr, options.warmup, options.steps, options.final_lr_frac)
        loss, norm = train_step(model, optimizer, batches, lr, options.grad_clip)
        seconds = time.perf_counter() - start
        print(f"step {step + 1:4d}/{options.steps} | loss {loss:.6f} | norm {norm:.4f} | lr {lr:.2e} | "
              f"{1e3 * seconds:.2f} ms | {micro_batches * B * T / seconds:.0f} tok/s", flush=True)
    if options.save:
        write_model(options.save, model)


# ---------------------------------------------------------------------------------------------------------------------
# Fixtures: small, odd-sized, computed in float64 from float32 weights and rounded once to float32

L, V, CONTEXT, B, T, STEPS = 2, 101, 19, 3, 13, 10
TINY = {"num_heads": 3, "C": 21, "in_bf16": False}  # no size is a multiple of a vector's width
SMALL = {"num_heads": 1, "C": 64, "in_bf16": True}  # for the GPU trainer: whole 16 bytes, weights that bf16 holds
ADAMW = {"beta1": 0.9, "beta2": 0.95, "eps": 1e-3, "weight_decay": 0.1}
SCHEDULE = {"peak": 3e-3, "warmup": 3, "total": STEPS, "final_fraction": 0.1}
GRAD_CLIP = 2.5


def write_arrays(path, arrays):
    """Named arrays; the layout is described in dev/test/fixture.h."""
    with open(path, "wb") as file:
        file.write(np.array([20240601, 1, len(arrays)], np.int32).tobytes())
        for name, array in arrays.items():
            array = np.asarray(array)
            array = array.astype(np.int32 if array.dtype.kind == "i" else np.float32)
            shape = [array.ndim, *array.shape] + [1] * (4 - array.ndim)
            file.write(name.encode().ljust(32, b"\0") + np.array([array.dtype.kind == "i", *shape], np.int32).tobytes())
            file.write(array.tobytes())


@torch.no_grad()
def fixture_model(num_heads, C, in_bf16):
    """Every tensor far from its initialisation, so that no bias, gain or nonlinearity can be forgotten unseen."""
    model = GPT2(CONTEXT, V, L, num_heads, C)
    for i, (_, pattern, kind) in enumerate(PARAMETERS):
        layers = model.layers_of(pattern)
        scale, shift = {"normal": (0.35, 0), "residual": (0.25, 0), "zero": (0.3, 0.1), "one": (0.4, 0.9)}[kind]
        if in_bf16 and kind in ("normal", "residual"):
            scale *= math.sqrt(TINY["C"] / C)  # sums over more channels as large as those of the tiny model
        values = shift + scale * rand_normal(1, 1000 + i, (len(layers), *layers[0].shape))
        for parameter, value in zip(layers, torch.from_numpy(values)):
            parameter.copy_(value.bfloat16() if in_bf16 else value)
    return model


def write_steps(path, model, tokens):
    """Ten updates of a model, one batch each."""
    inputs, targets = tokens[:, :, :-1], tokens[:, :, 1:]
    rates = [learning_rate(step, **SCHEDULE) for step in range(STEPS)]
    optimizer = make_optimizer(model, **ADAMW)
    losses, norms = zip(*(train_step(model, optimizer, [(inputs[step], targets[step])], rates[step], GRAD_CLIP)
                          for step in range(STEPS)))
    write_arrays(path, {
        **{name: [value] for name, value in {**ADAMW, **SCHEDULE, "grad_clip": GRAD_CLIP}.items()},
        "inputs": inputs, "targets": targets, "lr": rates, "loss": losses, "norm": norms})
    print("losses", *(f"{x:.4f}" for x in losses), "\nnorms ", *(f"{x:.4f}" for x in norms))


def write_fixture_model(folder, name, shape):
    """A model's weights, one batch with all gradients, and ten updates."""
    model = fixture_model(**shape)
    write_model(f"{folder}/{name}.bin", model)
    if name == "tiny":
        write_model(f"{folder}/{name}_bf16.bin", model, version=5)
    model = model.double()
    tokens = torch.from_numpy((rand_u64(1, 1, STEPS * B * (T + 1)) % np.uint64(V)).astype(np.int64))
    tokens = tokens.view(STEPS, B, T + 1)
    inputs, targets = tokens[0, :, :-1], tokens[0, :, 1:]
    logits = model(inputs)
    loss = model.loss(inputs, targets)
    loss.backward()
    with open(f"{folder}/{name}_debug_state.bin", "wb") as file:
        file.write(header(20240327, 2, B, T))
        file.write(inputs.int().numpy().tobytes() + targets.int().numpy().tobytes())
        file.write(logits.detach().float().numpy().tobytes() + loss.detach().float().numpy().tobytes())
        file.write(flatten(model, [p.grad for p in model.in_file_order()]).numpy().tobytes())
    if name == "tiny":
        write_hugging_face(folder + "/hf_tiny", model, inputs, logits)
    write_steps(f"{folder}/{name}_steps.bin", model, tokens)
    if name == "tiny":
        write_model(f"{folder}/{name}_after_10.bin", model)


def write_hugging_face(folder, model, inputs, logits):
    """The same model as saved by the transformers library, after checking that it computes the same logits."""
    import transformers
    transformers.utils.logging.disable_progress_bar()
    twin = transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=V, n_positions=CONTEXT, n_embd=TINY["C"], n_layer=L, n_head=TINY["num_heads"],
        bos_token_id=V - 1, eos_token_id=V - 1))
    weights = {name: w.T if re.search(r"(attn|mlp)\.c_\w+\.weight", name) else w
               for name, w in model.state_dict().items()}
    twin.transformer.load_state_dict(weights)
    twin = twin.double().eval()
    with torch.no_grad():
        if not (twin(inputs).logits - logits).abs().max() < 1e-12:
            fail("transformers' GPT-2 computes other logits than this file's")
    twin.float().save_pretrained(folder)
    os.remove(f"{folder}/generation_config.json")
    os.chmod(f"{folder}/model.safetensors", 0o644)


def write_layers(path):
    """Each layer alone: its inputs, its output, a gradient of the output and the gradients of the inputs it causes."""
    arrays, stream = {}, itertools.count(100)

    def record(layer, function, upstream=None, **inputs):
        leaves = {name: torch.from_numpy(value).double().requires_grad_() for name, value in inputs.items()}
        out = function(**leaves)
        upstream = normal(*out.shape) if upstream is None else upstream
        out.backward(torch.from_numpy(upstream).double())
        arrays.update({f"{layer}.{name}": value for name, value in inputs.items()})
        arrays.update({f"{layer}.out": out.detach().numpy(), f"{layer}.dout": upstream})
        arrays.update({f"{layer}.d{name}": leaf.grad.numpy() for name, leaf in leaves.items()})

    def normal(*shape):
        return rand_normal(1, next(stream), shape)

    def integers(limit, *shape):
        return (rand_u64(1, next(stream), math.prod(shape)) % np.uint64(limit)).astype(np.int64).reshape(shape)

    arrays["embedding.tokens"] = tokens = integers(11, 3, 7)
    record("embedding", lambda wte, wpe: F.embedding(torch.from_numpy(tokens), wte) + wpe[:7],
           wte=normal(11, 5), wpe=normal(9, 5))
    record("layernorm", lambda inp, weight, bias: F.layer_norm(inp, (37,), weight, bias, 1e-5),
           inp=np.float32(0.2) * normal(3, 7, 37) + np.float32(0.1), weight=normal(37), bias=normal(37))
    record("linear", lambda inp, weight, bias: F.linear(inp, weight, bias),
           inp=normal(3, 7, 37), weight=normal(53, 37), bias=normal(53))
    record("attention", lambda qkv: causal_attention(qkv, 3), qkv=normal(3, 13, 3 * 3 * 7))
    record("attention_long", lambda qkv: causal_attention(qkv, 2), qkv=2 * normal(1, 67, 3 * 2 * 3))
    record("gelu", lambda inp: F.gelu(inp, approximate="tanh"),
           inp=np.concatenate([2 * normal(57), np.array([0, 1e-4, -1e-4, 5, -5, 12, -12, 100, -100], np.float32)]))
    arrays["crossentropy.targets"] = targets = integers(23, 3, 7)
    record("crossentropy", lambda logits: F.cross_entropy(logits.flatten(0, 1), torch.from_numpy(targets).flatten(),
                                                          reduction="none").view(3, 7),
           upstream=np.full((3, 7), 1 / 21, np.float32), logits=5 * normal(3, 7, 23))
    write_arrays(path, arrays)


def write_init(path):
    """A sample of the initial weights of the tiny model, for gpt2_init_params."""
    model = GPT2(CONTEXT, V, L, TINY["num_heads"], TINY["C"])
    initialise(model, seed=42)
    write_arrays(path, {"seed": [42], "stride": [97], "weights": flatten(model, model.in_file_order())[::97]})


def fixtures(options):
    os.makedirs(options.output, exist_ok=True)
    shutil.rmtree(f"{options.output}/hf_tiny", ignore_errors=True)
    write_fixture_model(options.output, "tiny", TINY)
    write_fixture_model(options.output, "small", SMALL)
    write_layers(f"{options.output}/layers.bin")
    write_init(f"{options.output}/init.bin")
    print(f"wrote {options.output} with torch {torch.__version__}, numpy {np.__version__}")


# ---------------------------------------------------------------------------------------------------------------------
# Command line

def whole(low):
    def parse(text):
        if not re.fullmatch(r"[0-9]+", text) or int(text) < low:
            raise argparse.ArgumentTypeError(f"expected a whole number of at least {low}, found '{text}'")
        return int(text)
    return parse


def real(low, high):
    def parse(text):
        if not re.fullmatch(r"[0-9]*\.?[0-9]+([eE][-+]?[0-9]+)?", text) or not low <= float(text) <= high:
            raise argparse.ArgumentTypeError(f"expected a number from {low} to {high}, found '{text}'")
        return float(text)
    return parse


class Parser(argparse.ArgumentParser):
    def error(self, message):
        fail(message)


TRAIN_OPTIONS = [  # name, type, default, help; names and defaults as in train_gpt2
    ("--train-data", str, None, "glob of token shards (*.bin) or of text files"),
    ("--init", str, "d12", f"{' '.join(SIZES)} or a version 3 model file"),
    ("--layers", whole(0), 0, "of a new model; 0: as --init says"),
    ("--heads", whole(0), 0, "of a new model; 0: as --init says"),
    ("--channels", whole(0), 0, "of a new model; 0: as --init says"),
    ("--context", whole(0), 0, "positions a new model knows; 0: as --init says"),
    ("--vocab", whole(0), 0, "vocabulary of a new model; 0: that of the data"),
    ("--save", str, "", "model file to write at the end"),
    ("--batch-size", whole(1), 4, "sequences at a time"),
    ("--seq-len", whole(1), 64, "tokens of a sequence"),
    ("--total-batch", whole(0), 0, "tokens of an update; 0: batch size x sequence length"),
    ("--steps", whole(0), 10, "updates"),
    ("--lr", real(0, 10), 3e-4, "peak learning rate"),
    ("--warmup", whole(0), 0, "steps of linear warm-up"),
    ("--final-lr-frac", real(0, 1), 1.0, "learning rate at the end of the cosine, as a fraction of the peak"),
    ("--weight-decay", real(0, 10), 0.0, "of matrices and embeddings"),
    ("--beta1", real(0, 1), 0.9, "of AdamW"),
    ("--beta2", real(0, 1), 0.95, "of AdamW"),
    ("--adam-eps", real(0, 1), 1e-8, "of AdamW"),
    ("--grad-clip", real(0, 1e9), 1.0, "largest gradient norm; 0: any"),
    ("--seed", whole(0), 42, "of the initial weights"),
    ("--threads", whole(0), 0, "0: as many as PyTorch likes")]


def main():
    parser = Parser(prog="train_gpt2.py", description="The PyTorch twin of train_gpt2.", allow_abbrev=False)
    commands = parser.add_subparsers(required=True, metavar="fixtures | train", parser_class=Parser)
    command = commands.add_parser("fixtures", help="write the test fixtures", allow_abbrev=False)
    command.add_argument("--output", default="dev/test/fixtures", help="folder (dev/test/fixtures)")
    command.set_defaults(run=fixtures)
    command = commands.add_parser("train", help="train", allow_abbrev=False)
    command.set_defaults(run=train)
    for name, kind, default, text in TRAIN_OPTIONS:
        command.add_argument(name, type=kind, default=default, required=default is None, help=f"{text} ({default})")
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
