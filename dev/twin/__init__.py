"""What train_gpt2.py does without PyTorch: the command line, the data and its order, weights and their files, the run
folder. Needs numpy. The tables that these modules and the C trainers share are read from the C headers in llmc/."""
import os
import re

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class Problem(Exception):
    """Something a user can put right; its text is one line: what, where, expected and found, what to do."""


def header(name):
    """The text of a header in llmc/, given with its room."""
    path = os.path.join(ROOT, "llmc", name)
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError as error:
        raise Problem(f"{path}: {error.strerror}; train_gpt2.py runs in a copy of the whole repository") from None


def version():
    return re.search(r'#define GPT2C_VERSION "([^"]*)"', header("base/utils.h")).group(1)
