"""The tokenizer of a GPT-2 in Hugging Face's tokenizer.json and in the trainers' gpt2_tokenizer.bin, for dev/hf.py.

A .bin file lists the tokens, and the merges follow from their order. tokenizer.json spells each byte of a token as a
visible character.
"""
import math
import struct

from dev import guard
from dev.twin import Problem
from dev.twin.weights import file_header

MAGIC, MOST_BYTES = 20240328, 1 << 26
END = "<|endoftext|>"

VISIBLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
ORDER = VISIBLE + [byte for byte in range(256) if byte not in VISIBLE]  # the bytes in the order of GPT-2's ids
SYMBOLS = {byte: chr(byte if i < len(VISIBLE) else 256 + i - len(VISIBLE)) for i, byte in enumerate(ORDER)}
VALUES = {symbol: byte for byte, symbol in SYMBOLS.items()}
BYTES = [bytes([byte]) for byte in range(256)]


def recovered_merges(tokens):
    """The merges, as pairs of symbols, that make these tokens in this order: the bytes, a token for each merge,
    end-of-text. None: no merges do. All earlier merges leave two parts of a token's bytes, and its own merge joins
    them. The byte tokenizer has no merges, and its bytes are in the order of their values."""
    ranks, base = {}, BYTES if len(tokens) == 257 else [bytes([byte]) for byte in ORDER]
    if tokens[:256] != base or tokens[-1] != END.encode():
        return None
    for token in tokens[256:-1]:
        parts = [token[i:i + 1] for i in range(len(token))]
        while len(parts) > 2:
            rank, at = min((ranks.get(pair, math.inf), i) for i, pair in enumerate(zip(parts, parts[1:])))
            if rank == math.inf:
                return None
            parts[at:at + 2] = [parts[at] + parts[at + 1]]
        if len(parts) != 2 or tuple(parts) in ranks:
            return None
        ranks[tuple(parts)] = len(ranks)
    return [[spelled(part) for part in pair] for pair in ranks]


def spelled(token):
    return "".join(SYMBOLS[byte] for byte in token)


def tokens_of(whole, path):
    """The tokens of a tokenizer.json in the order of their ids. The trainers recover the merges from this order and cut
    texts into words as GPT-2 does, so both must be GPT-2's."""
    try:
        model, words = whole["model"], whole["pre_tokenizer"]
        plain = (whole["normalizer"], words["type"], words.get("use_regex", True), words["add_prefix_space"])
        ids = model["vocab"]
        tokens = [bytes(VALUES[symbol] for symbol in word) for word in sorted(ids, key=ids.get)[:-1]] + [END.encode()]
        merges = [pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"]]
        good = plain == (None, "ByteLevel", True, False) and sorted(ids.values()) == list(range(len(ids)))
        if not good or ids[END] != len(ids) - 1 or recovered_merges(tokens) != merges or max(map(len, tokens)) > 255:
            raise ValueError
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        raise Problem(f"{path}: not GPT-2's kind of tokenizer (ids in the order 256 bytes, a token for each merge, "
                      f"{END}; no normalizer, no prefix space), or damaged; remove it to import the model alone"
                      ) from None
    return tokens


def load(path):
    """The tokens of a tokenizer file, or of "byte", and the id of end-of-text."""
    if path == "byte":
        return [*BYTES, END.encode()], 256
    data, tokens, at = guard.read_file(path, MOST_BYTES), [], 1024
    magic, form, count, end = struct.unpack("<4I", data[:16]) if len(data) >= at else (0, 0, 0, 0)
    if magic != MAGIC or form not in (1, 2):
        raise Problem(f"{path}: not a tokenizer file such as gpt2_tokenizer.bin (python3 dev/data/vocab.py)")
    while at < len(data):
        tokens.append(data[at + 1:at + 1 + data[at]])
        at += 1 + data[at]
    end = 50256 if form == 1 else end
    if at != len(data) or len(tokens) != count or end >= count:
        raise Problem(f"{path}: is not {count} tokens with end-of-text among them (truncated? fetch it again)")
    return tokens, end


def save(path, tokens):
    """Writes a tokenizer file of version 2, whose last token is end-of-text."""
    with guard.new_file(path) as file:
        file.write(file_header(MAGIC, 2, len(tokens), len(tokens) - 1))
        file.write(b"".join(bytes([len(token)]) + token for token in tokens))


def files(tokens, merges, context):
    """Name -> content of the files that describe a tokenizer to transformers."""
    special = {"content": END, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
               "special": True}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    vocab = {**{spelled(token): i for i, token in enumerate(tokens[:-1])}, END: len(tokens) - 1}
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
             "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False, "vocab": vocab, "merges": merges}
    return {"tokenizer.json": {"version": "1.0", "truncation": None, "padding": None, "normalizer": None,
                               "added_tokens": [{"id": vocab[END], **special}], "pre_tokenizer": level,
                               "post_processor": {**level, "trim_offsets": False}, "decoder": level, "model": model},
            "tokenizer_config.json": {"tokenizer_class": "GPT2Tokenizer", "add_bos_token": False, "errors": "replace",
                                      "add_prefix_space": False, "clean_up_tokenization_spaces": False,
                                      "model_max_length": context, "bos_token": END, "eos_token": END, "unk_token": END,
                                      "added_tokens_decoder": {vocab[END]: special}}}
