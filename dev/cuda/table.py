#!/usr/bin/env python3
"""Writes the tables of dev/cuda/README.md: what `make ladder` prints.

    python3 dev/cuda/table.py --write    brings them up to date
    python3 dev/cuda/table.py --check    exits with 1 if they are not what `make ladder` prints
"""
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PAGE = os.path.join(ROOT, "dev", "cuda", "README.md")
MARK = "`python3 dev/cuda/table.py --write` writes what follows.\n\n"


def main():
    if sys.argv[1:] not in (["--write"], ["--check"]):
        raise SystemExit("table.py: expected --write or --check")
    ladder = subprocess.run(["make", "-s", "--no-print-directory", "ladder"], cwd=ROOT, capture_output=True, text=True)
    if ladder.returncode != 0:
        raise SystemExit(f"table.py: make ladder ended with status {ladder.returncode}\n{ladder.stdout}{ladder.stderr}")
    with open(PAGE, encoding="utf-8") as file:
        page = file.read()
    head, mark, _ = page.partition(MARK)
    if mark == "":
        raise SystemExit(f"table.py: expected a line '{MARK.strip()}' in dev/cuda/README.md")
    written = head + mark + ladder.stdout.rstrip("\n") + "\n"
    if sys.argv[1:] == ["--check"] and written != page:
        raise SystemExit("table.py: dev/cuda/README.md is not what `make ladder` prints; --write brings it up to date")
    with open(PAGE, "w", encoding="utf-8") as file:
        file.write(written)


if __name__ == "__main__":
    main()
