"""What train_gpt2.py does without PyTorch: the command line, the data and its order, weights and their files. Needs
numpy."""
import os
import re

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class Problem(Exception):
    """Something a user can put right; its text is one line: what, where, expected and found, what to do."""


def version():
    with open(os.path.join(ROOT, "llmc/base/utils.h"), encoding="utf-8") as file:
        return re.search(r'#define GPT2C_VERSION "([^"]*)"', file.read()).group(1)
