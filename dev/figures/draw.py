#!/usr/bin/env python3
"""Draws the figures of doc/. Each fig_NAME.py here has a function picture(), which returns the text of doc/NAME.svg.

    python3 dev/figures/draw.py           # writes them
    python3 dev/figures/draw.py --check   # exits with 1 if a file is not what its script draws
"""
import glob
import importlib
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def main():
    if sys.argv[1:] not in ([], ["--check"]):
        raise SystemExit(f"draw.py: unknown argument '{sys.argv[1]}', expected nothing or --check")
    for script in sorted(glob.glob(os.path.join(HERE, "fig_*.py"))):
        module = os.path.basename(script)[:-len(".py")]
        drawn, name = importlib.import_module(module).picture(), f"doc/{module[len('fig_'):]}.svg"
        path = os.path.join(HERE, "..", "..", name)
        if sys.argv[1:] == []:
            with open(path, "w", encoding="utf-8") as file:
                file.write(drawn)
        with open(path, encoding="utf-8") as file:
            if file.read() != drawn:
                raise SystemExit(f"draw.py: {name} is not what dev/figures/{module}.py draws")


if __name__ == "__main__":
    main()
