#!/usr/bin/env python3
"""OpenAI's tiktoken with GPT-2's vocabulary, built from vocab.bpe: the reference for llmc/data/tokenizer.h.

    pip install tiktoken==0.14.0
    python3 dev/tiktoken_gpt2.py vocab.bpe > dev/test/fixtures/gpt2_encodings.txt

writes texts that are hard to get right and their ids, one a line: the UTF-8 bytes in hexadecimal, then the ids.
"""
import random
import sys

import tiktoken

PATTERN = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""

TEXTS = [
    "Hello world", "hello  world   ", " ", "  ", "   a", "\n", "\n\n", "a\n\nb", "\t\tx", " \n \n a", "a \n", "\r\n",
    "It's we'll I'd you've they're I'm don't", "IT'S WE'LL", "'s", "''s", "' s", "'sx", "x'll'll", "'", "l'l", "'l",
    "'re're", "don\u2019t", "1234567890", "3.14159e-10", "a1b2c3", "\u00b2\u00bd\u2167\u0664", "100%", "$5 #tag @me",
    "...", "!?!?", "-----", "=" * 64, "/* comment */ x += y[i]->z;", "if (a) {\n        return b;\n}\n",
    "<|endoftext|>", "foo<|endoftext|>bar", "SolidGoldMagikarp", "antidisestablishmentarianism", "aaaaaaaaaa",
    "na\u00efve caf\u00e9", "nai\u0308ve", "\u00c3\u00c2" * 70, "Stra\u00dfe \u00c4\u00d6\u00dc", "\ufb01 \u01c5",
    "\u0421\u044a\u0435\u0448\u044c \u0435\u0449\u0451", "\u05e9\u05dc\u05d5\u05dd", "\u0645\u0631\u062d\u0628\u0627",
    "\u0928\u092e\u0938\u094d\u0924\u0947", "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35",
    "\u4f60\u597d\uff0c\u4e16\u754c\u3002",
    "\u3053\u3093\u306b\u3061\u306f", "\u30ab\u30bf\u30ab\u30ca\u30fc", "\uc548\ub155\ud558\uc138\uc694",
    "\U0001f600", "\U0001f44d\U0001f3fd", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\u2764\ufe0f x",
    "a\u00a0b", "a \u00a0 b", "\u3000\u3000x", "\u2028\u2029y", "\u200bx", "\ufeffx", "\u180ex", "\u0085x", "\x1c\x1dx",
    "\x00\x01\x7f", "\U00020000\U0002ebf0\U00031350x", "\U000105c0\u1c89\ua7cb", "\U0010ffff", "\ud7ff\ue000",
    "\u200e\u202e text", "e\u0301\u0302\u0303", "\u0130\u0131\u017f", "\u2460\u24ea\u3220", "a" * 300, " " * 100 + "b",
]


def gpt2(path):
    """The tiktoken.Encoding of a vocab.bpe file, in which a byte is a visible letter."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    values = visible + sorted(set(range(256)) - set(visible))
    byte_of = dict(zip(map(chr, [*visible, *range(256, 512)]), values))
    ranks = {bytes([byte]): i for i, byte in enumerate(values)}
    with open(path, encoding="utf-8") as file:
        for merge in file.read().split("\n")[1:-1]:
            ranks[bytes(byte_of[letter] for letter in merge.replace(" ", ""))] = len(ranks)
    return tiktoken.Encoding("gpt2", pat_str=PATTERN, mergeable_ranks=ranks,
                             special_tokens={"<|endoftext|>": len(ranks)})


def random_text(rng):
    """Letters, numbers, spaces and others of all planes, close together."""
    pools = ["etaoin'sdmlv ", "0123456789", " \n\t\r\u00a0\u2003", ".,;!-'\u2019\"", "\u00e9\u00f1\u0434\u4e2d\u3042",
             "\u0663\u00bc\u2166", "\U0001f600\u0301\u200d", "THE the ing "]
    return "".join(rng.choice(rng.choice(pools)) for _ in range(rng.randint(1, 60)))


if __name__ == "__main__":
    encoding = gpt2(sys.argv[1])
    rng = random.Random(20190214)
    for text in TEXTS + [random_text(rng) for _ in range(100)]:
        print(text.encode().hex(), *encoding.encode_ordinary(text))
