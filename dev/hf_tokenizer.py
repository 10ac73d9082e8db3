"""Tokenizers in Hugging Face's tokenizer.json and in the trainers' .bin, for dev/hf.py: GPT-2's, Llama 3's, SmolLM2's.

A .bin file lists the tokens, and the merges follow from their order (rule 0) or from their bytes (rule 1).
tokenizer.json spells each byte of a token as a visible character, and lists the merges.
"""
import math
import struct
import typing

import numpy as np

from dev import guard
from dev.twin import Problem
from dev.twin.data import U64, rand_mix, sum64
from dev.twin.weights import file_header

MAGIC, MOST_BYTES = 20240328, 1 << 26
END, STOP = "<|endoftext|>", "<|end_of_text|>"  # STOP: what Llama 3 ends a text with

VISIBLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
ORDER = VISIBLE + [byte for byte in range(256) if byte not in VISIBLE]  # the bytes in the order of GPT-2's ids
SYMBOLS = {byte: chr(byte if i < len(VISIBLE) else 256 + i - len(VISIBLE)) for i, byte in enumerate(ORDER)}
VALUES = {symbol: byte for byte, symbol in SYMBOLS.items()}
BYTES = [bytes([byte]) for byte in range(256)]

# What cuts texts into words before the bytes of each are merged, by the number of the rule.
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
          r"\s+(?!\S)|\s+")
BEFORE = ([], [{"type": "Split", "pattern": {"Regex": LLAMA3}, "behavior": "Isolated", "invert": False}],
          [{"type": "Digits", "individual_digits": True}])


class Tokenizer(typing.NamedTuple):
    """tokens: the bytes of each id. end: the id that precedes each document. version: of its file, 2 or 3. words,
    merge: its rules. Ids first to first + ranked - 1 are tokens of text, of which a lower one merges first; the others
    are special."""
    tokens: list
    end: int
    version: int
    words: int
    merge: int
    first: int
    ranked: int

    def of_text(self):
        return self.tokens[self.first:self.first + self.ranked]

    def specials(self):
        ranked = range(self.first, self.first + self.ranked)
        return {i: token.decode() for i, token in enumerate(self.tokens) if i not in ranked}

    def stop(self):
        """The id that ends a text."""
        return next((i for i, token in self.specials().items() if token == STOP), self.end)


# ---- Merges ----


def recovered_merges(tokens):
    """The merges, as pairs of symbols, that make these tokens of text in this order. None: no merges do. All earlier
    merges leave two parts of a token's bytes, and its own merge joins them."""
    ranks, known = {}, {token for token in tokens if len(token) == 1}
    for token in tokens:
        parts = [token[i:i + 1] for i in range(len(token))]
        while len(parts) > 2:
            rank, at = min((ranks.get(pair, math.inf), i) for i, pair in enumerate(zip(parts, parts[1:])))
            if rank == math.inf:
                return None
            parts[at:at + 2] = [parts[at] + parts[at + 1]]
        if tuple(parts) in ranks or not known.issuperset(part for part in parts if len(part) == 1):
            return None
        if len(parts) == 2:
            ranks[tuple(parts)] = len(ranks)
    return [[spelled(part) for part in pair] for pair in ranks]


def all_merges(tokens):
    """All pairs of tokens whose bytes together are a token: in the order of these, as transformers lists them."""
    ids, merges = {token: i for i, token in enumerate(tokens)}, []
    for token in tokens:
        pairs = ((token[:i], token[i:]) for i in range(1, len(token)))
        merges += sorted((pair for pair in pairs if pair[0] in ids and pair[1] in ids),
                         key=lambda pair: (ids[pair[0]], ids[pair[1]]))
    return [[spelled(part) for part in pair] for pair in merges]


def merges_of(tokenizer):
    """None: its tokens are not those of a byte-pair encoding."""
    tokens = tokenizer.of_text()
    if len(set(tokens)) != len(tokens) or (tokenizer.merge == 1 and not set(BYTES).issubset(tokens)):
        return None
    return all_merges(tokens) if tokenizer.merge == 1 else recovered_merges(tokens)


def spelled(token):
    return "".join(SYMBOLS[byte] for byte in token)


def is_gpt2s(tokens):
    """Whether a file of version 2 holds these tokens: GPT-2's bytes (or the byte tokenizer's), and END at last."""
    return tokens[:256] == (BYTES if len(tokens) == 257 else [bytes([byte]) for byte in ORDER]) and (
        tokens[-1] == END.encode())


# ---- tokenizer.json ----


def word_rule(words):
    """The number of the rule of a pre_tokenizer, or None."""
    steps = words["pretokenizers"] if words["type"] == "Sequence" else [words]
    level, rule = steps[-1], BEFORE.index(steps[:-1]) if steps[:-1] in BEFORE else None
    plain = level["type"] == "ByteLevel" and not level["add_prefix_space"]
    return rule if plain and level.get("use_regex", True) == (rule != 1) else None


def what_differs(whole):
    """What gives a tokenizer.json other ids than the trainers', or None."""
    model = whole["model"]
    if whole["normalizer"] is not None:
        return f"its normalizer is {whole['normalizer']['type']}, expected none"
    if word_rule(whole["pre_tokenizer"]) is None:
        return "its pre_tokenizer cuts texts into words by another rule than those of GPT-2, Llama 3 and SmolLM2"
    for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"):
        if model.get(name):
            return f"its model's {name} is {model[name]}, expected none"
    plain = [token["content"] for token in whole.get("added_tokens", []) if not token["special"]]
    return f"its added token {plain[0]} is not special" if plain else None


def end_of(whole, ids, specials):
    """The id that precedes each document: what the template puts before a text, or END."""
    steps = whole.get("post_processor") or {}
    for step in steps.get("processors", [steps]):
        if step.get("type") == "TemplateProcessing" and "SpecialToken" in step["single"][0]:
            return ids[step["single"][0]["SpecialToken"]["id"]]
    return ids[END] if END in ids else min(specials)


def read_tokens(whole):
    added, vocab = {token["content"]: token["id"] for token in whole.get("added_tokens", [])}, whole["model"]["vocab"]
    ids, specials = {**vocab, **added}, set(added.values()) or {vocab[END]}
    ranked = [i for i in range(len(ids)) if i not in specials]
    texts = sorted(ids, key=ids.get)
    tokens = [text.encode() if i in specials else bytes(VALUES[symbol] for symbol in text)
              for i, text in enumerate(texts)]
    fits = sorted(ids.values()) == list(range(len(ids))) and {**added, **vocab} == ids
    if not fits or ranked[-1] - ranked[0] >= len(ranked) or not all(1 <= len(token) <= 255 for token in tokens):
        raise ValueError
    rules = word_rule(whole["pre_tokenizer"]), 0, ranked[0], len(ranked)
    old = rules[:3] == (0, 0, 0) and specials == {len(ids) - 1} and is_gpt2s(tokens)
    return Tokenizer(tokens, end_of(whole, ids, specials), 2 if old else 3, *rules)


def with_merges(tokenizer, model):
    """The tokenizer with the rule that gives its merges, or None."""
    merges = [pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"]]
    singles = sum(len(token) == 1 for token in tokenizer.of_text())
    one_each = len(merges) == tokenizer.ranked - singles and merges_of(tokenizer) == merges
    if one_each and (singles == 256 or model.get("unk_token") is None):  # without one, bytes of no token leave no trace
        return tokenizer
    found = tokenizer._replace(version=3, merge=1)
    expected, ids = merges_of(found) or [], {spelled(token): i for i, token in enumerate(found.of_text())}
    places = [ids["".join(pair)] for pair in merges]
    fits = model.get("ignore_merges") and sorted(merges) == sorted(expected) and places == sorted(places)
    return found if fits else None


def tokens_of(whole, path):
    """The tokenizer of a tokenizer.json. What would give other ids in the trainers is refused."""
    try:
        differs = what_differs(whole)
        found = None if differs else with_merges(read_tokens(whole), whole["model"])
        if found is None and not differs:
            differs = "its merges are neither one for each token, in the order of ids, nor all that make its tokens"
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        differs = "not a byte-level byte-pair encoding whose ids are 0, 1, 2 ..., or damaged"
    if differs:
        raise Problem(f"{path}: {differs}; remove it to import the model alone")
    return found


def files(tokenizer, context):
    """Name -> content of the files that describe a tokenizer to transformers."""
    end, stop = (tokenizer.tokens[i].decode() for i in (tokenizer.end, tokenizer.stop()))
    old, split = tokenizer.version == 2, tokenizer.words == 1
    settings = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    specials = tokenizer.specials()
    vocab = {specials[i] if i in specials else spelled(token): i for i, token in enumerate(tokenizer.tokens)}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    steps = [*BEFORE[tokenizer.words], {**level, "use_regex": not split}]
    ends, text = {"SpecialToken": {"id": end, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
    more = {"Sequence": {"id": "B", "type_id": 1}}
    template = {"type": "TemplateProcessing", "single": [ends, text], "pair": [ends, text, ends, more],
                "special_tokens": {end: {"id": end, "ids": [tokenizer.end], "tokens": [end]}}}
    after = {**level, "trim_offsets": False}
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
             "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False,
             "ignore_merges": tokenizer.merge == 1, "vocab": vocab, "merges": merges_of(tokenizer)}
    return {"tokenizer.json": {"version": "1.0", "truncation": None, "padding": None, "normalizer": None,
                               "added_tokens": [{"id": i, "content": token, **settings}
                                                for i, token in specials.items()],
                               "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps} if steps[1:] else level,
                               "post_processor": {"type": "Sequence", "processors": [after, template]} if split else
                               after, "decoder": level, "model": model},
            "tokenizer_config.json": {"tokenizer_class": "GPT2Tokenizer" if old else "PreTrainedTokenizerFast",
                                      **({"add_bos_token": False, "add_prefix_space": False, "unk_token": end}
                                         if old else {}),
                                      "errors": "replace", "clean_up_tokenization_spaces": False,
                                      "model_max_length": context, "bos_token": end, "eos_token": stop,
                                      "added_tokens_decoder": {i: {"content": token, **settings}
                                                               for i, token in specials.items()}}}


# ---- Files of ours ----


def load(path):
    """The tokenizer of a file, or "byte"."""
    if path == "byte":
        return Tokenizer([*BYTES, END.encode()], 256, 2, 0, 0, 0, 256)
    with open(path, "rb") as file:
        data, tokens, at = file.read(MOST_BYTES), [], 1024
    magic, version, count, end, *rules = struct.unpack("<8i", data[:32]) if len(data) >= at else [0] * 8
    if magic != MAGIC or version not in (1, 2, 3):
        raise Problem(f"{path}: not a tokenizer file such as gpt2_tokenizer.bin (python3 dev/data/vocab.py)")
    while at < len(data):
        tokens.append(data[at + 1:at + 1 + data[at]])
        at += 1 + data[at]
    end = 50256 if version == 1 else end
    if at != len(data) or len(tokens) != count or not 0 <= end < count:
        raise Problem(f"{path}: is not {count} tokens with end-of-text among them (truncated? fetch it again)")
    found = Tokenizer(tokens, end, 3, *rules) if version == 3 else Tokenizer(tokens, end, 2, 0, 0, 0, count - 1)
    ranked = range(found.first, found.first + found.ranked)
    known = found.words in (0, 1, 2) and found.merge in (0, 1) and 0 <= found.first < ranked.stop <= count
    if not known or end in ranked or not (version == 3 or is_gpt2s(tokens)) or merges_of(found) is None:
        raise Problem(f"{path}: is not GPT-2's kind of tokenizer, nor Llama 3's; move it away to export the model "
                      "alone")
    return found


def bin_bytes(tokenizer):
    """Its file, as the trainers write it, too."""
    rules = (tokenizer.words, tokenizer.merge, tokenizer.first, tokenizer.ranked) if tokenizer.version == 3 else ()
    header = file_header(MAGIC, tokenizer.version, len(tokenizer.tokens), tokenizer.end, *rules)
    return header + b"".join(bytes([len(token)]) + token for token in tokenizer.tokens)


def fingerprint(tokenizer):
    """The hash by which models, shards and runs know their tokenizer, as headers hold it: the SUM64 of the words of its
    file, the last one filled up with zeros, and the number of its bytes."""
    data = bin_bytes(tokenizer)
    words = np.frombuffer(data + bytes(-len(data) % 4), np.uint32)
    total = sum64(words) + int(rand_mix(np.array([U64 - len(data)], np.uint64))[0])
    return (total & U64).to_bytes(8, "little")


def save(path, tokenizer):
    with guard.new_file(path) as file:
        file.write(bin_bytes(tokenizer))
