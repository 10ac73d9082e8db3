#!/usr/bin/env python3
"""Makes dev/data/hellaswag/hellaswag_val.bin, the 10,042 validation examples of HellaSwag, for --hellaswag 1.

    python3 dev/data/hellaswag.py

Fetches hellaswag_val.jsonl (12 MB) of the authors' repository rowanz/hellaswag. Context and the four endings are
encoded separately, each ending with a space before it; scored is the mean loss over the tokens of an ending.
"""
import json

import common
import download
import guard
import text
from common import Problem

URL = "https://raw.githubusercontent.com/rowanz/hellaswag/master/data/hellaswag_val.jsonl"
BYTES, SHA256, EXAMPLES = 12246618, "0aa3b88843990f3f10a97b9575c94d7b71fb2205240ba04ae4884d9e9c992588", 10042
SOURCE, OUTPUT = "hellaswag_val.jsonl", "hellaswag_val.bin"


def read_examples(path):
    """The lines of the file as context, completions and label."""
    with guard.open_file(path, "r", encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                example = json.loads(line)
                context, label = example["ctx"], example["label"]
                endings = [" " + ending for ending in example["endings"]]
            except (ValueError, KeyError, TypeError, RecursionError):
                raise Problem(f"{common.show_path(path)}: line {number}: expected an object with ctx, endings and "
                              "label; remove the file and run this again") from None
            yield {"context": context, "completions": endings, "label": label}


def make(folder, vocab, made):
    examples = list(read_examples(folder.join(SOURCE)))
    if made["source"] == SHA256 and len(examples) != EXAMPLES:
        raise Problem(f"{SOURCE}: {len(examples)} examples, expected {EXAMPLES}")
    with text.Work(folder) as work:
        summary = text.tokenize_examples(vocab, work.prefix, examples)
        text.publish(folder, [text.Product(OUTPUT, work.prefix + "_val.bin")], made)
    return summary.splitlines()[0].split(":")[0]


def main():
    parser = common.parser(__doc__, "dev/data/hellaswag")
    text.add_vocab(parser)
    options = common.parse(parser)
    with common.Folder(options.out) as folder:
        source = download.pinned(options, URL, SOURCE, None, SHA256, about=BYTES)
        download.fetch(options, folder, [source], extra_disk=BYTES)
        text.make_unless_there(options, folder, source, OUTPUT, make)


if __name__ == "__main__":
    common.run("hellaswag.py", main)
