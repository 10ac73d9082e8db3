#!/usr/bin/env python3
"""Makes dev/data/mmlu/mmlu_val.bin, the 14,042 questions of MMLU on 57 subjects, for --mmlu.

    python3 dev/data/mmlu.py

Fetches data.tar (166 MB) of the authors, Hendrycks and others. The file is called val, but holds MMLU's test split, as
llm.c's did: these are the questions that published accuracies are about. Zero-shot: the context is "Question: ...",
an empty line and "Answer:", the completions are the four answers with a space before each, encoded separately. The
score of an answer is the mean loss over its tokens. (Published few-shot accuracies, where the letters A to D are
scored, are another measure.) Subjects in alphabetical order, questions as in the authors' files.
"""
import csv
import io
import os
import tarfile

import common
import text
from common import Problem

URL = "https://people.eecs.berkeley.edu/~hendrycks/data.tar"
SHA256 = "bec563ba4bac1d6aaf04141cd7d1605d7a5ca833e38f994051e818489592989b"
EXAMPLES, SUBJECTS = 14042, 57
SOURCE, OUTPUT = "data.tar", "mmlu_val.bin"


def read_questions(path):
    """The rows (question, four answers, letter) of all subjects as context, completions and label, and the number of
    subjects."""
    with tarfile.open(path, "r:") as archive:
        names = sorted(name for name in archive.getnames() if name.endswith("_test.csv"))
        rows = [row for name in names
                for row in csv.reader(io.StringIO(archive.extractfile(name).read().decode(), newline=""))]
    return [{"context": f"Question: {row[0]}\n\nAnswer:", "completions": [" " + answer for answer in row[1:5]],
             "label": "ABCD".index(row[5])} for row in rows], len(names)


def main():
    options = common.parser(__doc__, "dev/data/mmlu").parse_args()
    common.open_folder(options.out)
    source = os.path.join(options.out, SOURCE)
    common.fetch_url(URL, source, SHA256)
    questions, subjects = read_questions(source)
    if (len(questions), subjects) != (EXAMPLES, SUBJECTS):
        raise Problem(f"{SOURCE}: {len(questions)} questions on {subjects} subjects, expected {EXAMPLES} on {SUBJECTS}")
    text.make_questions(options, OUTPUT, questions)


if __name__ == "__main__":
    common.run("mmlu.py", main)
