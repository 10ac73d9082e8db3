#!/usr/bin/env python3
"""Times training steps of the PyTorch twin on a GPU, as fast as PyTorch does them without new kernels: torch.compile,
bf16 autocast, fused AdamW, and whichever fused attention scaled_dot_product_attention chooses (flash or cuDNN).

    python3 dev/bench/bench_torch.py --train-data 'shards/*.bin' --batch-size 64 --steps 30

The model is that of train_gpt2.py, with its vocabulary padded as in ./train_gpt2cu, which is faster for PyTorch too.
All batches are on the GPU before the first step. The lines are those of ./train_gpt2cu; the first steps, which
compile, are left out of the times.
"""
import argparse
import os
import sys
import time

import torch

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
import train_gpt2 as twin  # noqa: E402: it lies in the folder that was just added

WARM_UP = 3  # steps: the first compiles, the second may compile again


def parse_options():
    parser = argparse.ArgumentParser(description="Times training steps of the PyTorch twin.")
    parser.add_argument("--train-data", required=True, help="token shards, or text")
    parser.add_argument("--init", default="d12", choices=twin.SIZES, help="the model's size")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=30, help="that are timed")
    parser.add_argument("--device", default="cuda", help="cpu: to try this program, without torch.compile")
    for name in ("layers", "heads", "channels"):
        parser.add_argument("--" + name, type=int, default=0, help="instead of --init's")
    options = parser.parse_args()
    if options.steps < 1 or options.batch_size < 1 or options.seq_len < 1:
        parser.error("--steps, --batch-size and --seq-len: expected at least 1")
    return options


def make_model(options, V):
    L, heads, C = (given or default for given, default in
                   zip((options.layers, options.heads, options.channels), twin.SIZES[options.init]))
    torch.manual_seed(42)
    model = twin.GPT2(max(1024, options.seq_len), twin.pad_vocab(V), L, heads, C)
    for name, parameter in model.named_parameters():
        if name.endswith("weight") and parameter.dim() == 2:
            torch.nn.init.normal_(parameter, std=0.02)
        elif name.endswith("bias"):
            torch.nn.init.zeros_(parameter)
    return model.to(options.device)


def make_optimizer(model, on_gpu):
    """The groups of the twin, and the settings that ./train_gpt2cu has without options."""
    groups = twin.make_optimizer(model, 0.9, 0.95, 1e-8, 0.0).param_groups
    groups = [{"params": group["params"], "weight_decay": group["weight_decay"]} for group in groups]
    return torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.95), eps=1e-8, fused=on_gpu)


def step(loss_of, model, optimizer, inputs, targets):
    """One update. Nothing here waits for the GPU. Returns loss and norm as tensors."""
    loss = loss_of(inputs, targets)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach(), norm


def describe(options):
    name = torch.cuda.get_device_name() if options.device == "cuda" else options.device
    how = "torch.compile, bf16 autocast, fused AdamW" if options.device == "cuda" else "bf16 autocast"
    print(f"PyTorch {torch.__version__}, CUDA {torch.version.cuda}, {name}: {how}, scaled_dot_product_attention",
          flush=True)


def run(options):
    on_gpu, B, T = options.device == "cuda", options.batch_size, options.seq_len
    if on_gpu and not torch.cuda.is_available():
        sys.exit("bench_torch.py: PyTorch sees no GPU; see nvidia-smi and CUDA_VISIBLE_DEVICES")
    describe(options)
    torch.set_float32_matmul_precision("high")
    shards, V = twin.load_tokens(options.train_data, T)
    model = make_model(options, V)
    optimizer = make_optimizer(model, on_gpu)

    def forward(inputs, targets):
        with torch.autocast(options.device, dtype=torch.bfloat16):
            return model.loss(inputs, targets)

    loss_of = torch.compile(forward) if on_gpu else forward
    total = WARM_UP + options.steps
    batches = [[part.to(options.device) for part in twin.read_batch(shards, T, i * B, B)] for i in range(total)]
    started = time.perf_counter()
    results, marks = [], []
    for i, batch in enumerate(batches):
        if i == WARM_UP and on_gpu:
            torch.cuda.synchronize()
            print(f"warm-up, compiling included: {time.perf_counter() - started:.1f} s", flush=True)
        marks.append(mark(on_gpu))
        results.append(step(loss_of, model, optimizer, *batch))
    marks.append(mark(on_gpu))
    report(options, results[WARM_UP:], marks[WARM_UP:])


def mark(on_gpu):
    """A point in time on the GPU's own clock."""
    if not on_gpu:
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def report(options, results, marks):
    on_gpu, tokens = options.device == "cuda", options.batch_size * options.seq_len
    if on_gpu:
        torch.cuda.synchronize()
    for i, (loss, norm) in enumerate(results):
        ms = marks[i].elapsed_time(marks[i + 1]) if on_gpu else 1e3 * (marks[i + 1] - marks[i])
        print(f"step {i + 1:4d}/{len(results)} | loss {loss.item():.6f} | norm {norm.item():.4f} | lr 3.00e-04 | "
              f"{ms:.2f} ms | {1e3 * tokens / ms:.0f} tok/s", flush=True)
    if on_gpu:
        print(f"peak memory: {torch.cuda.max_memory_allocated()} bytes allocated, "
              f"{torch.cuda.max_memory_reserved()} bytes reserved", flush=True)


if __name__ == "__main__":
    selected = parse_options()
    try:
        run(selected)
    except torch.cuda.OutOfMemoryError:
        sys.exit(f"bench_torch.py: out of GPU memory with --batch-size {selected.batch_size}; give a smaller one")
