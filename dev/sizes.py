"""The sizes of models that the trainers know by name."""
import collections
import pathlib
import re

MODEL = pathlib.Path(__file__).resolve().parents[1] / "llmc" / "model"
Shape = collections.namedtuple("Shape", "L heads C context vocab KV HS F tied", defaults=(50257, 0, 0, 0, 1))


def models():
    """The sizes of llmc/model/gpt2.h and llama3.h, by all their names. A GPT-2 has no KV heads of its own: KV is 0."""
    tables = (MODEL / "gpt2.h").read_text("utf-8") + (MODEL / "llama3.h").read_text("utf-8")
    row = r'^    X\("([\w:]+)", (?:"(\w+)", )?(\d[^)]*)\)'
    return {name: Shape(*map(int, shape.split(", ")[:9])) for *names, shape in re.findall(row, tables, re.M)
            for name in filter(None, names)}
