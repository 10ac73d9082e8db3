#!/usr/bin/env python3
"""Makes dev/data/hellaswag/hellaswag_val.bin, the 10,042 validation examples of HellaSwag, for --hellaswag 1.

    python3 dev/data/hellaswag.py

Fetches hellaswag_val.jsonl (12 MB) of the authors' repository rowanz/hellaswag. Context and the four endings are
encoded separately, each ending with a space before it. The score of an ending is the mean loss over its tokens.
"""
import json
import os

import common
import text
from common import Problem

URL = "https://raw.githubusercontent.com/rowanz/hellaswag/master/data/hellaswag_val.jsonl"
SHA256, EXAMPLES = "0aa3b88843990f3f10a97b9575c94d7b71fb2205240ba04ae4884d9e9c992588", 10042
SOURCE, OUTPUT = "hellaswag_val.jsonl", "hellaswag_val.bin"


def main():
    options = common.parser(__doc__, "dev/data/hellaswag").parse_args()
    common.open_folder(options.out)
    source = os.path.join(options.out, SOURCE)
    common.fetch_url(URL, source, SHA256)
    with open(source, encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    if len(lines) != EXAMPLES:
        raise Problem(f"{SOURCE}: {len(lines)} examples, expected {EXAMPLES}")
    text.make_questions(options, OUTPUT, [{"context": line["ctx"], "completions": [" " + e for e in line["endings"]],
                                           "label": line["label"]} for line in lines])


if __name__ == "__main__":
    common.run("hellaswag.py", main)
