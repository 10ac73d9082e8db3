"""What train_gpt2.py does without PyTorch: the command line, the data and its order, weights and their files. Needs
numpy."""
import os
import re

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class Problem(Exception):
    """Something a user can put right; its text is one line: what, where, expected and found, what to do."""


def header(name):
    """The text of a header in llmc/, given with its room."""
    with open(os.path.join(ROOT, "llmc", name), encoding="utf-8") as file:
        return file.read()


def version():
    return re.search(r'#define GPT2C_VERSION "([^"]*)"', header("base/utils.h")).group(1)
