#!/usr/bin/env python3
"""Makes dev/data/mmlu/mmlu_val.bin, the 14,042 questions of MMLU on 57 subjects, for --mmlu.

    python3 dev/data/mmlu.py

Fetches data.tar (166 MB) of the authors, Hendrycks and others. The file is called val, but holds MMLU's test split, as
llm.c's did: these are the questions that published accuracies are about. Zero-shot: the context is "Question: ...",
an empty line and "Answer:", the completions are the four answers themselves with a space before each, encoded
separately; scored is the mean loss over the tokens of an answer. (Published few-shot accuracies, where the letters
A to D are scored, are another measure.) Subjects in alphabetical order, questions as in the authors' files.
"""
import csv
import io
import os

import archive
import common
import download
import guard
import text
from common import Problem

URL = "https://people.eecs.berkeley.edu/~hendrycks/data.tar"
BYTES, SHA256 = 166184960, "bec563ba4bac1d6aaf04141cd7d1605d7a5ca833e38f994051e818489592989b"
EXAMPLES, SUBJECTS = 14042, 57
SOURCE, OUTPUT = "data.tar", "mmlu_val.bin"
MOST_BYTES = 32 << 20  # of the questions on a subject


def read_subjects(path):
    """Subject -> the text of its file of test questions."""
    subjects, shown = {}, common.show_path(path)
    with archive.refusing(shown), guard.open_file(path) as file:
        for member, stream in archive.read_members(shown, file, "r:", is_test, MOST_BYTES, os.path.getsize(path)):
            subjects[os.path.basename(member)[:-len("_test.csv")]] = stream.read().decode()
    return subjects


def is_test(path):
    folder, name = os.path.split(path)
    return os.path.basename(folder) == "test" and name.endswith("_test.csv")


def read_questions(subject, content):
    """The rows (question, four answers, letter) of a subject as context, completions and label."""
    try:
        rows = list(csv.reader(io.StringIO(content, newline="")))
    except csv.Error as error:
        raise Problem(f"{SOURCE}: {subject}: {error}; remove the file and run this again") from None
    for number, row in enumerate(rows, 1):
        if len(row) != 6 or row[5] not in ("A", "B", "C", "D"):
            raise Problem(f"{SOURCE}: {subject}, row {number}: expected a question, four answers and a letter A to D")
        yield {"context": f"Question: {row[0]}\n\nAnswer:", "completions": [" " + answer for answer in row[1:5]],
               "label": "ABCD".index(row[5])}


def make(folder, vocab, made):
    subjects = read_subjects(folder.join(SOURCE))
    examples = [question for name in sorted(subjects) for question in read_questions(name, subjects[name])]
    if not examples:
        raise Problem(f"{SOURCE}: holds no test/*_test.csv")
    if made["source"] == SHA256 and (len(examples), len(subjects)) != (EXAMPLES, SUBJECTS):
        raise Problem(f"{SOURCE}: {len(examples)} questions on {len(subjects)} subjects, expected {EXAMPLES} on "
                      f"{SUBJECTS}")
    with text.Work(folder) as work:
        summary = text.tokenize_examples(vocab, work.prefix, examples)
        text.publish(folder, [text.Product(OUTPUT, work.prefix + "_val.bin")], made)
    return summary.splitlines()[0].split(":")[0] + f", {len(subjects)} subjects"


def main():
    parser = common.parser(__doc__, "dev/data/mmlu")
    text.add_vocab(parser)
    options = common.parse(parser)
    with common.Folder(options.out) as folder:
        source = download.pinned(options, URL, SOURCE, None, SHA256, about=BYTES)
        download.fetch(options, folder, [source], extra_disk=BYTES // 10)
        text.make_unless_there(options, folder, source, OUTPUT, make)


if __name__ == "__main__":
    common.run("mmlu.py", main)
