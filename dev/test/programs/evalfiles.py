"""Evaluation files as FORMATS describes them, and the answers a model gives, computed number by number in double
precision: for the tests of evaluations and of tokenize. Standard library only; shares nothing with the C side."""
import array
import random
import re
import struct

import cli

CONFIG = cli.config(maxT=24, V=61, Vp=128, L=2)


def eval_file(name, examples, wide=False, tokenizer=0):
    """examples: (context, completions, label) each. wide: numbers have 32 bits. tokenizer: its hash."""
    streams, size = [], 4 if wide else 2
    for number, (context, completions, label) in enumerate(examples):
        words = [2**(8 * size) - 1, 0, number, label, len(completions)]
        for tokens in [context, *completions]:
            words += [len(tokens), *tokens]
        words[1] = size * len(words)
        streams.append(words)
    longest = max(words[1] for words in streams)
    header = struct.pack("<4i250iQ", 20240522, 7 if wide else 1, len(streams), longest, *[0] * 250, tokenizer)
    return cli.write(name, header + b"".join(array.array("I" if wide else "H", words).tobytes() for words in streams))


def questions(c, params, count, T, longest=None, margin=0.1):
    """Random questions (context, completions, answer), whose best completion is clear, more so than any rounding: the
    one whose own tokens have the least mean loss. Rows have up to `longest` inputs (T, if it is not given), of which
    the last T are seen. The first question has another answer for who counts one loss too many, that of the zeros
    behind a row."""
    generator, found = random.Random(5), []
    while len(found) < count:
        lengths = [generator.randrange(1, 7) for _ in range(generator.choice([4, 4, 4, 2, 3]))]
        lengths.insert(0, generator.randrange(1, (longest or T) + 2 - max(lengths)))
        context, *completions = [[generator.randrange(c["V"]) for _ in range(n)] for n in lengths]
        means, too_many = [], []
        for completion in completions:
            tokens = (context + completion)[-(T + 1):]
            behind = [0] * (len(tokens) <= T)
            losses = cli.reference_losses(c, params, tokens[:-1] + behind, tokens[1:] + behind)
            scored = losses[len(tokens) - 1 - len(completion):]
            means.append(sum(scored[:len(completion)]) / len(completion))
            too_many.append(sum(scored) / len(scored))
        best, second = sorted(means)[:2]
        differs = too_many.index(min(too_many)) != means.index(best)
        if second - best >= margin and (found or differs):
            found.append((context, completions, means.index(best)))
    return found


def relabelled(examples, shift):
    """The same questions with other labels: shift(number) further, of as many as there are."""
    return [(context, completions, (answer + shift(i)) % len(completions))
            for i, (context, completions, answer) in enumerate(examples)]


RESULT = r"(?:evaluation|step +(\d+)/(\d+)) \| (HellaSwag|MMLU) (\d\.\d{4}) \((\d+)/(\d+)\)"


def results(out, name="HellaSwag"):
    """[(step, correct, questions)] of what was printed, whose accuracy is that fraction."""
    found = []
    for step, _, which, accuracy, correct, total in re.findall(f"^{RESULT}$", out, re.M):
        assert accuracy == f"{int(correct) / int(total):.4f}", out
        if which == name:
            found.append((int(step or 0), int(correct), int(total)))
    return found


def logged(folder, key="eval"):
    """[(step, accuracy as text)] of main.log."""
    with open(f"{folder}/main.log") as file:
        return [(int(step), text) for step, text in re.findall(rf"^s:(\d+) {key}:(\d\.\d{{4}})$", file.read(), re.M)]


# ---- Something that can be learnt: most tokens lead to one other ----


def follower(token):
    return (5 * token + 7) % CONFIG["V"]


def chain(count, seed):
    generator, tokens = random.Random(seed), [3]
    while len(tokens) < count:
        tokens.append(follower(tokens[-1]) if generator.random() < 0.9 else generator.randrange(CONFIG["V"]))
    return tokens


def chain_questions(count=16):
    """How a chain goes on, of four ways."""
    generator, found = random.Random(4), []
    for _ in range(count):
        tokens = [generator.randrange(CONFIG["V"])]
        while len(tokens) < 8:
            tokens.append(follower(tokens[-1]))
        split, label = generator.randrange(2, 7), generator.randrange(4)
        others = [[generator.randrange(CONFIG["V"]) for _ in range(generator.randrange(2, 4))] for _ in range(3)]
        found.append((tokens[:split], others[:label] + [tokens[split:]] + others[label:], label))
    return found
