"""What the Python programs do about options, about texts of others that they print, and about files that must be whole.
Standard library only."""
import argparse
import contextlib
import difflib
import os
import re

# What steers a terminal or the order of reading, as text_steers() in llmc/base/utils.h has it. The last range: bytes of
# a path that is not UTF-8 (surrogateescape), which cannot be printed.
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\udc80-\udcff]")


def escaped(match):
    code = ord(match[0])
    return f"\\x{code & 0xff:02x}" if code < 0x80 or code >= 0xdc80 else f"\\u{code:04x}"


def printable(text):
    """The text with its control characters spelled out, such as \\x1b. For paths, logs and whatever others wrote."""
    return CONTROL.sub(escaped, text)


class Parser(argparse.ArgumentParser):
    """argparse with errors of one line. status: of a program that ends with an error."""

    def __init__(self, description, status=1, **more):
        super().__init__(description=description, formatter_class=argparse.RawDescriptionHelpFormatter,
                         allow_abbrev=False, **more)
        self.status = status

    def error(self, message):
        unknown = re.match(r"unrecognized arguments: (\S+)", message)
        if unknown:
            word = unknown.group(1).split("=")[0]
            known = [name for action in self._actions for name in action.option_strings]
            near = difflib.get_close_matches(word, known, 1, 0.7)
            hint = f"the nearest is {near[0]} (--help lists all)" if near else "--help lists all"
            message = f"'{word}': unknown option; {hint}" if word.startswith("-") else f"'{word}': unexpected ({hint})"
        elif message.startswith("the following arguments are required"):
            message += "; see --help"
        self.exit(self.status, printable(f"{self.prog}: {message}") + "\n")


@contextlib.contextmanager
def new_file(path):
    """A file that takes its name when the block ends without an exception: whole or not at all."""
    temporary = path + ".tmp"
    try:
        with open(temporary, "wb") as file:
            yield file
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.remove(temporary)
        raise
