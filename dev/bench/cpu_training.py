#!/usr/bin/env python3
"""Times training steps and samples of GPT-2 124M on the CPU, ours and PyTorch's by turns, and prints the ratios. Of a
Llama only steps, beside transformers' LlamaForCausalLM.

    make && python3 dev/bench/cpu_training.py              # all of it: about 15 minutes on two cores
    python3 dev/bench/cpu_training.py --shapes 4x64 --rounds 3 --no-samples
    python3 dev/bench/cpu_training.py --no-steps
    python3 dev/bench/cpu_training.py --init smollm2:135M --rounds 3 --no-samples

PyTorch runs where this Python can import it, at its best: fused AdamW, torch.autocast for bf16, transformers' generate
with its cache. A ratio above 1 means that ours is faster. Weights are random and tokens are bytes of LICENSE: times do
not depend on them. Threads that wait spin, in both programs: OMP_WAIT_POLICY=active, unless the environment says more.
`make bench-cpu` runs this after build/bench_cpu.
"""
import importlib.util
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "dev"))
sys.path.insert(0, os.path.join(ROOT, "dev", "bench"))
import guard  # noqa: E402: it lies in the folder that was just added
import predict  # noqa: E402

# The targets: how many times as fast as PyTorch, for fp32 and bf16. A Llama's: LLAMA_TARGET.
TARGETS = {"4x64": (1.4, 2.2), "4x256": (1.4, 2.5), "1x1024": (1.4, 2.5), "sample": (2.0, 2.0)}
LLAMA_TARGET = 1.3, 1.3
STEPS, WARM_UP = 6, 2  # the first steps touch memory for the first time
SHORT, LONG = 16, 272  # tokens of two samples; the difference leaves out the start
SAMPLES = 3  # of each: loading the model takes as long as a hundred tokens, and not always as long
DATA = ["--train-data", os.path.join(ROOT, "LICENSE"), "--tokenizer", "byte"]
MODEL = ["--vocab", "50257", *DATA]


def has(module):
    return importlib.util.find_spec(module) is not None


def output_of(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT,
                          env={"OMP_WAIT_POLICY": "active", **os.environ})
    if done.returncode != 0:
        sys.exit(f"cpu_training.py: status {done.returncode} of {' '.join(command)}: {done.stdout[-500:].strip()}")
    return done.stdout


def step_ms(command):
    times = [float(ms) for ms in re.findall(r"^step .*\| *([\d.]+) ms \|", output_of(command), re.M)]
    if len(times) <= WARM_UP:
        sys.exit(f"cpu_training.py: no step was timed by {' '.join(command)}")
    return statistics.median(times[WARM_UP:])


def training_commands(model, shape, precision, threads):
    """Our command and PyTorch's for a step of B x T tokens."""
    B, T = shape.split("x")
    if predict.models()[model].KV:
        vocab = ["--vocab", str(predict.models()[model].vocab), "--sample-every", "0", "--val-every", "0"]
        torch = [sys.executable, os.path.abspath(__file__), "--llama", model, B, T, precision, str(threads)]
        return ["./train_llama3", "--init", model, *vocab, *DATA, "--batch-size", B, "--seq-len", T, "--threads",
                str(threads), "--steps", str(STEPS), "--precision", precision], torch if has("transformers") else None
    run = ["--init", model, *MODEL, "--batch-size", B, "--seq-len", T, "--threads", str(threads), "--val-every", "0"]
    ours = ["./train_gpt2", *run, "--steps", str(STEPS), "--sample-every", "0", "--precision", precision]
    torch = [sys.executable, "dev/bench/bench_torch.py", *run, "--steps", str(STEPS), "--device", "cpu",
             "--precision", "fp32" if precision == "fp32" else "autocast"]
    return ours, torch if has("torch") else None


def seconds_of(command):
    start = time.monotonic()
    output_of(command)
    return time.monotonic() - start


def token_ms(commands):
    """The time of a token, from the commands for a short and a long sample."""
    times = [[seconds_of(command) for command in commands] for _ in range(SAMPLES)]
    short, long = map(min, zip(*times))
    return 1e3 * (long - short) / (LONG - SHORT)


def sample_commands(folder, precision, threads):
    ours = [["./train_gpt2", "--init", folder, "--steps", "0", "--prompt", "a", "--seq-len", "1024", "--sample-tokens",
             str(n), "--threads", str(threads), "--precision", precision] for n in (SHORT, LONG)]
    torch = [[sys.executable, os.path.abspath(__file__), "--generate", folder, precision, str(n), str(threads)]
             for n in (SHORT, LONG)]
    return ours, torch if has("torch") and has("transformers") else None


def generate(folder, precision, tokens, threads):
    """Writes a sample with transformers."""
    import torch
    import transformers
    torch.set_num_threads(int(threads))
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    model = transformers.GPT2LMHeadModel.from_pretrained(folder, dtype=dtype).eval()
    with torch.inference_mode():
        model.generate(torch.tensor([[97]]), max_new_tokens=int(tokens), min_new_tokens=int(tokens), do_sample=True,
                       pad_token_id=0)


def train_llama(model, B, T, precision, threads):
    """Trains a Llama with PyTorch, and prints its steps as ours are printed."""
    import torch
    import transformers
    torch.set_num_threads(int(threads))
    B, T, shape = int(B), int(T), predict.models()[model]
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        hidden_size=shape.C, intermediate_size=shape.F, num_hidden_layers=shape.L, num_attention_heads=shape.heads,
        num_key_value_heads=shape.KV, head_dim=shape.HS, vocab_size=shape.vocab, tie_word_embeddings=bool(shape.tied),
        max_position_embeddings=shape.context, attn_implementation="sdpa"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    tokens = torch.randint(0, 256, (B, T + 1))
    for step in range(STEPS):
        begin = time.monotonic()
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            logits = model(input_ids=tokens[:, :-1], use_cache=False).logits.float().flatten(0, 1)
            loss = torch.nn.functional.cross_entropy(logits, tokens[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        print(f"step {step + 1} | loss {loss.item():.6f} | {1e3 * (time.monotonic() - begin):.2f} ms |", flush=True)


def compare(name, time_of, commands_of, rounds, targets=None):
    """Prints a row for each precision: both times, the ratio and its target. The runs are taken by turns."""
    times = {}
    for _ in range(rounds):
        for precision in ("fp32", "bf16"):
            for who, command in zip(("ours", "PyTorch"), commands_of(precision)):
                if command is not None:
                    times.setdefault((precision, who), []).append(time_of(command))
    for precision, target in zip(("fp32", "bf16"), targets or TARGETS.get(name, (None, None))):
        ours = statistics.median(times[precision, "ours"])
        row = f"{name:<8} {precision:<6} {ours:9.1f} ms"
        if (precision, "PyTorch") in times:
            torch = statistics.median(times[precision, "PyTorch"])
            ratio = torch / ours
            row += f" {torch:9.1f} ms {ratio:7.2f}"
            row += f" {target:7.1f}   {'met' if ratio >= target else 'missed'}" if target else ""
        print(row, flush=True)


def main():
    parser = guard.Parser(__doc__)
    parser.add_argument("--init", default="d12", help="the model's size (default d12: GPT-2 124M)")
    parser.add_argument("--shapes", default="4x64,4x256,1x1024", help="B x T of the steps (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=1, help="runs of each, of which the median counts (default 1)")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of both (default: one per core)")
    parser.add_argument("--no-samples", action="store_true", help="only training steps")
    parser.add_argument("--no-steps", action="store_true", help="only samples")
    o = parser.parse_args()
    if o.init not in predict.models() or (predict.models()[o.init].KV and not o.no_samples):
        parser.error(f"--init {o.init}: expected a size such as d12, or with --no-samples such as smollm2:135M")
    if o.no_steps and o.no_samples:
        parser.error("--no-steps leaves nothing for --no-samples")
    shapes = [] if o.no_steps else o.shapes.split(",")
    for shape in shapes:
        if not re.fullmatch(r"[1-9]\d*x[1-9]\d*", shape):
            parser.error(f"--shapes {shape}: expected sequences x tokens, such as 4x64")
    print(f"{o.init}, {o.threads} threads, {'PyTorch by turns' if has('torch') else 'no PyTorch in this Python'}")
    print("B x T    numbers      ours      PyTorch   ratio  target")
    for shape in shapes:
        compare(shape, step_ms, lambda precision, shape=shape: training_commands(o.init, shape, precision, o.threads),
                o.rounds, LLAMA_TARGET if predict.models()[o.init].KV else None)
    if o.no_samples:
        return
    with tempfile.TemporaryDirectory() as folder:
        run, model = os.path.join(folder, "run"), os.path.join(folder, "model")
        output_of(["./train_gpt2", "--init", o.init, *MODEL, "--steps", "1", "--batch-size", "1", "--seq-len", "8",
                   "--val-every", "0", "--sample-every", "0", "--out-dir", run])
        output_of([sys.executable, "dev/hf.py", "export", run, model])
        compare("sample", token_ms, lambda precision: sample_commands(model, precision, o.threads), o.rounds)


if __name__ == "__main__":
    guard.screens("stdout", "stderr")
    if sys.argv[1:2] == ["--generate"]:
        generate(*sys.argv[2:])
    elif sys.argv[1:2] == ["--llama"]:
        train_llama(*sys.argv[2:])
    else:
        main()
