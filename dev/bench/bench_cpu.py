#!/usr/bin/env python3
"""`make bench-cpu`: times training steps and samples of a model on the CPU, ours and PyTorch's by turns. Prints the
ratios, and how much of the peak of this machine our steps reach.

    make && python3 dev/bench/bench_cpu.py              # GPT-2 124M, all of it: about 15 minutes on two cores
    python3 dev/bench/bench_cpu.py --init smollm2:135M --shapes 4x64,sample --rounds 3

PyTorch runs where this Python can import it and transformers, at its best: fused AdamW, sdpa, torch.autocast for bf16,
generate with its cache. A ratio above 1 means that ours is faster. Weights are random and tokens are bytes of LICENSE:
times do not depend on them. The trainer measures the peak of multiply-adds at its start. Threads that wait spin in both
programs (OMP_WAIT_POLICY=active), unless the environment says more.
"""
import importlib.util
import os
import re
import statistics
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "dev"))
import guard  # noqa: E402: it lies in the folder that was just added
import sizes  # noqa: E402

STEPS, WARM_UP = 6, 2  # the first steps touch memory for the first time
LENGTHS = 16, 272      # tokens of two samples; the difference leaves out the start


def output_of(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT,
                          env={"OMP_WAIT_POLICY": "active", **os.environ})
    if done.returncode != 0:
        sys.exit(f"bench_cpu.py: status {done.returncode} of {' '.join(command)}: {done.stdout[-500:].strip()}")
    return done.stdout


def step(command):
    """The median step in ms, without the first ones, and what part of the peak it reached, where this is printed."""
    text = output_of(command)
    rows = re.findall(r"^step .*\| *([\d.]+) ms \|(?:.*\| (\d+%) of peak)?", text, re.M)[WARM_UP:]
    if not rows:
        sys.exit(f"bench_cpu.py: no step was timed by {' '.join(command)}")
    peak = re.search(r"measured peak (.*)", text)
    return statistics.median(float(ms) for ms, _ in rows), f"{rows[-1][1]} of {peak[1]}" if peak else ""


def token(command):
    """The time of a token in ms, from a short and a long sample."""
    def seconds(tokens):
        start = time.monotonic()
        output_of([*command, "--sample-tokens", str(tokens)])
        return time.monotonic() - start
    short, long = map(seconds, LENGTHS)
    return 1e3 * (long - short) / (LENGTHS[1] - LENGTHS[0]), ""


def commands(shape, model, precision, threads):
    """What runs a step of B x T tokens, or a sample: (who, command)."""
    llama, vocab = sizes.models()[model].KV > 0, sizes.models()[model].vocab
    trainer = ["./train_llama3" if llama else "./train_gpt2", "--init", model, "--vocab", str(vocab), "--train-data",
               "LICENSE", "--tokenizer", "byte", "--precision", precision, "--threads", str(threads)]
    if shape == "sample":
        yield "ours", [*trainer, "--steps", "0", "--val-every", "0", "--prompt", "a", "--seq-len", "1024"]
    else:
        B, T = shape.split("x")
        yield "ours", [*trainer, "--steps", str(STEPS), "--val-every", "0", "--sample-every", "0", "--batch-size", B,
                       "--seq-len", T]
    if all(map(importlib.util.find_spec, ("torch", "transformers"))):
        yield "PyTorch", [sys.executable, os.path.abspath(__file__), "--torch", shape, model, precision, str(threads)]


# ---- In PyTorch ----


def torch_model(shape):
    import transformers
    common = {"vocab_size": shape.vocab, "attn_implementation": "sdpa"}
    if not shape.KV:
        return transformers.GPT2LMHeadModel(transformers.GPT2Config(
            n_embd=shape.C, n_layer=shape.L, n_head=shape.heads, n_positions=1024, resid_pdrop=0, embd_pdrop=0,
            attn_pdrop=0, activation_function="gelu_pytorch_tanh", **common))
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        hidden_size=shape.C, intermediate_size=shape.F, num_hidden_layers=shape.L, num_attention_heads=shape.heads,
        num_key_value_heads=shape.KV, head_dim=shape.HS, tie_word_embeddings=bool(shape.tied),
        max_position_embeddings=shape.context, **common))


def torch_run(shape, model, precision, threads, _=None, tokens=0):
    """Trains and prints steps as ours are printed, or writes a sample."""
    import torch
    torch.set_num_threads(int(threads))
    model, bf16 = torch_model(sizes.models()[model]), precision == "bf16"
    if shape == "sample":
        model.to(torch.bfloat16 if bf16 else torch.float32).eval()
        model.generate(torch.tensor([[97]]), max_new_tokens=int(tokens), min_new_tokens=int(tokens), do_sample=True,
                       pad_token_id=0)
        return
    B, T = map(int, shape.split("x"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    ids = torch.randint(0, 256, (B, T + 1))
    for step in range(STEPS):
        begin = time.monotonic()
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            logits = model(input_ids=ids[:, :-1], use_cache=False).logits.float().flatten(0, 1)
            loss = torch.nn.functional.cross_entropy(logits, ids[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        print(f"step {step + 1} | loss {loss.item():.6f} | {1e3 * (time.monotonic() - begin):.2f} ms |", flush=True)


def main():
    parser = guard.Parser(__doc__)
    parser.add_argument("--init", default="d12", choices=sizes.models(), help="the model's size (default d12)")
    parser.add_argument("--shapes", default="4x64,4x256,1x1024,sample",
                        help="B x T of the steps, and sample: a token of one (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=1, help="runs of each, of which the median counts (default 1)")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of both (default: one per core)")
    o = parser.parse_args()
    if min(o.rounds, o.threads) < 1:
        parser.error("--rounds and --threads: expected at least 1")
    for shape in o.shapes.split(","):
        if not re.fullmatch(r"[1-9]\d*x[1-9]\d*|sample", shape):
            parser.error(f"--shapes {shape}: expected sequences x tokens, such as 4x64, or sample")
    print(f"{o.init}, {o.threads} threads, medians of {o.rounds}\nB x T    numbers      ours      PyTorch   ratio")
    for shape in o.shapes.split(","):
        taken, parts = {}, {}
        for precision in ("fp32", "bf16") * o.rounds:
            for who, command in commands(shape, o.init, precision, o.threads):
                ms, part = (token if shape == "sample" else step)(command)
                taken.setdefault((precision, who), []).append(ms)
                parts[precision, who] = part
        for precision in ("fp32", "bf16"):
            ours, torch = (statistics.median(taken.get((precision, who), [0])) for who in ("ours", "PyTorch"))
            print(f"{shape:<8} {precision:<6} {ours:9.1f} ms",
                  f"{torch:9.1f} ms {torch / ours:7.2f}" if torch else "no PyTorch and transformers",
                  parts[precision, "ours"], flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--torch"]:
        torch_run(*sys.argv[2:])
    else:
        main()
