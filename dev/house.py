#!/usr/bin/env python3
"""Holds the code against the house: lines per room, arrows between rooms, include depth, long functions, large structs.

    python3 dev/house.py          # prints the tables
    python3 dev/house.py --check  # prints only what breaks a rule, and exits with 1 if anything does

The rules are those of CONTRIBUTING.md, "The rooms". Run it from anywhere.
"""
import collections
import functools
import glob
import itertools
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# Room: most lines, the design's goal, and the rooms whose headers it may include besides its own. A commit that makes a
# room smaller lowers the first number. The number grows only with a feature that the commit names.
ROOMS = {
    "base": (1255, 1150, ""),
    "model": (1461, 850, "base"),
    "cpu": (1863, 1450, "base model"),
    "cuda": (852, 850, "base model"),
    "layers": (3738, 3150, "base model cuda"),
    "optim": (612, 700, "base model cuda"),
    "ranks": (3042, 2000, "base model cuda"),
    "data": (1687, 1450, "base model"),
    "files": (1068, 1050, "base model"),
    "trainer": (3473, 1000, "base model cpu cuda layers optim ranks data files run"),
    "run": (3393, 2800, "base model data files"),
}
FILES = {"train_gpt2.c": 286, "train_gpt2.cu": 218, "train_llama3.c": 293, "train_llama3.cu": 175,
         "README.md": 200}
# The rest: most lines of all files under a path and under no longer one, fixtures apart.
# A path counts for the longest name that it begins with: "dev" is what no other line names.
BUDGETS = {"dev/test": 28500, "dev/emu": 10500, "dev/exercises": 7000, "dev/figures": 3400, "dev/book": 1000,
           "dev": 8400, "scripts": 1000, "Makefile": 200,
           "doc/simple/train_gpt2_simple.c": 600, "doc/simple/train_gpt2_simple.cu": 700}
RECIPE, RECIPE_LINES = r"scripts/(run|finetune)_\w+\.sh", 80
SHARED_LINES = 40  # that two main files may have in common
README_LINES, DEPTH, FUNCTION_LINES, STRUCT_FIELDS, WIDTH = 15, 5, 80, 25, 120
PROGRAMS = ["train_gpt2.c", "train_gpt2.cu", "train_llama3.c", "train_llama3.cu", "tokenize.c"]
CODE = (".c", ".h", ".cu", ".cuh", ".cpp", ".py", ".sh", ".sbatch")
# dev/emu in layers, the lowest first. The files of a layer may use each other.
EMU = ["report", "settings", "heap", "clocks", "meter meter_arithmetic meter_report",
       "access access_hooks fences faults", "fibers warp_ops", "memory streams device launch",
       "cublas cublaslt cudnn nccl"]
# What stands on all of run/, and the room that stands on all rooms, may be deeper.
DEEPER = {"llmc/run/train_loop.h": 1, "llmc/trainer": 3, "llmc/trainer/program.cuh": 4}


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def headers():
    """Every header of llmc/, as llmc/room/name."""
    return sorted(os.path.relpath(path, ROOT) for path in glob.glob(os.path.join(ROOT, "llmc", "*", "*.*h")))


def tracked():
    """The files of the repository: those that git has, else all but what programs leave here."""
    try:
        git = subprocess.run(["git", "-C", ROOT, "ls-files"], capture_output=True, text=True, check=True)
        paths = git.stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        found = glob.glob(os.path.join(ROOT, "**", "*"), recursive=True)
        paths = [os.path.relpath(path, ROOT) for path in found if not re.search(r"/build/|__pycache__|\.bin$", path)]
    return [path for path in paths if os.path.isfile(os.path.join(ROOT, path))]


@functools.lru_cache(maxsize=None)
def included(path):
    """The headers of llmc/ that a file includes."""
    return re.findall(r'^#include "(llmc/[^"]+)"', read(path), re.M)


def depth(path, above=()):
    """The longest chain of includes below a header. A header that includes none of llmc/ has depth 0."""
    if path in above:
        raise SystemExit(f"house: {path} includes itself through {' -> '.join(above)}")
    return max((1 + depth(name, (*above, path)) for name in included(path)), default=0)


def without_comments(text):
    """The code with comments, strings and characters blanked. The lines stay where they are."""
    pattern = r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\''
    return re.sub(pattern, lambda match: "\n" * match[0].count("\n"), text, flags=re.S)


def comments_blanked(path):
    """The code without its comments of a whole line."""
    return re.sub(r"^\s*//[^\n]*", "", read(path), flags=re.M)


def functions(path):
    """(lines, parameters, name) of each function with a body. The house's style puts the last brace in column 0."""
    found, text = [], re.sub(r"__launch_bounds__\([^()]*(\([^()]*\))?[^()]*\)", "", without_comments(read(path)))
    head = r"^(?!struct|union|enum|typedef|#)[\w<>][^;{}#]*?(\w+)\(([^{};]*)\)\s*(?:const\s*)?\{"
    for match in re.finditer(head, text, re.M):
        end = text.find("\n}", match.end() - 1)
        line_end = text.find("\n", match.end())
        body = text[match.start():end] if "}" not in text[match.end():line_end] else ""
        found.append((body.count("\n") + 2 if body else 1, match[2].count(",") + 1, match[1]))
    return found


def structs(path):
    """(fields, name) of each struct. Names that a macro makes are not counted."""
    found = []
    for match in re.finditer(r"^(?:typedef )?struct\s*(\w*)\s*\{\n(.*?)^\}\s*(\w*)", without_comments(read(path)),
                             re.M | re.S):
        fields = sum(declaration.count(",") + 1 for declaration in re.sub(r"\([^)]*\)", "", match[2]).split(";")
                     if declaration.strip() and not declaration.strip().startswith("#"))
        found.append((fields, match[3] or match[1]))
    return found


def check_rooms(say):
    for room, (most, goal, _) in ROOMS.items():
        lines = sum(read(path).count("\n") for path in headers() if path.split("/")[1] == room)
        say(lines <= most, f"llmc/{room}", f"{lines:6} lines of {most}" + f", goal {goal}" * (most > goal))
        path = f"llmc/{room}/README.md"
        lines = read(path).count("\n") if os.path.exists(os.path.join(ROOT, path)) else None
        say(lines is not None and lines <= README_LINES, path, f"{lines} lines of {README_LINES}")
    for path, most in FILES.items():
        lines = read(path).count("\n")
        say(lines <= most, path, f"{lines:6} lines of {most}")


def check_budgets(say):
    lines = collections.Counter()
    for path in tracked():
        place = max((name for name in BUDGETS if f"{path}/".startswith(f"{name}/")), key=len, default=None)
        if place and not path.startswith("dev/test/fixtures/"):
            lines[place] += read(path).count("\n")
        if re.fullmatch(RECIPE, path):
            say(read(path).count("\n") <= RECIPE_LINES, path, f"more than {RECIPE_LINES} lines", quiet=True)
    for place, most in BUDGETS.items():
        say(lines[place] <= most, place, f"{lines[place]:6} lines of {most}")
    needed = [f"{path} includes dev/" for path in [*headers(), *PROGRAMS] if '\n#include "dev/' in read(path)]
    say(not needed, "llmc", "; ".join(needed) or "     0 lines of dev/ are needed")


def check_shared(say):
    """What several main files need stands in a room. Blank lines and lines of braces do not count."""
    def lines(path):
        return collections.Counter(line for line in map(str.strip, read(path).split("\n")) if line.strip("{}();, "))
    for one, other in itertools.combinations([path for path in PROGRAMS if path.startswith("train_")], 2):
        count = sum((lines(one) & lines(other)).values())
        say(count <= SHARED_LINES, one, f"{count:6} lines of {SHARED_LINES} are in {other}, too")


# All text for people passes the filter of say() (llmc/base/utils.h). The lines with \\033 draw a bar of our own.
def check_prints(say):
    for path in [*headers(), *PROGRAMS]:
        for line in comments_blanked(path).split("\n"):
            found = re.search(r"(?<!\w)(v?f?printf|fputs|puts|putchar|fputc|putc|dprintf|perror)\s*\(", line)
            say(not found or "\\033" in line, path, f"prints past say(): {line.strip()}", quiet=True)


def check_arrows(say):
    for path in headers():
        room = path.split("/")[1]
        for name in included(path):
            say(name.split("/")[1] in [room, *ROOMS[room][2].split()], path, f"-> {name}", quiet=True)
        most = DEPTH + DEEPER.get(path, DEEPER.get(f"llmc/{room}", 0))
        say(depth(path) <= most, path, f"include depth {depth(path)} of {most}", quiet=True)
    say(True, "include depth", f"{max(map(depth, headers()))} of {DEPTH + max(DEEPER.values())}")


def check_emu(say):
    """What a file of dev/emu defines for other files is used in its layer and in higher ones."""
    layer = {f"{name}.cpp": number for number, names in enumerate(EMU) for name in names.split()}
    paths = glob.glob(os.path.join(ROOT, "dev/emu/*.*"))
    texts = {os.path.basename(path): without_comments(read(path)) for path in paths}
    variables = set(re.findall(r"^extern .*?(\w+);", "".join(texts.values()), re.M))
    homes = collections.defaultdict(set)
    for name in layer:
        made = re.findall(r"^(?:__thread )?[\w:<>]+ (\w+)(?: = .*)?;", texts[name], re.M)
        for word in variables.intersection(made).union(word for _, _, word in functions(f"dev/emu/{name}")):
            homes[word].add(name)
    for name, own in layer.items():
        used = variables.intersection(re.findall(r"\w+", texts[name]))
        for word in used.union(re.findall(r"(?<![.>\w])(\w+)\(", texts[name])) & set(homes):
            home = min(homes[word])
            say(layer[home] <= own or len(homes[word]) > 1, f"dev/emu/{name}", f"uses {word} of {home}", quiet=True)
    others = {name for name in texts if name.endswith(".cpp")} - {"rewrite.cpp", *layer}
    say(not others, "dev/emu", f"{len(homes)} names in {len(EMU)} layers, in none: {', '.join(others) or 'nothing'}")


def check_widths(say):
    paths = [path for folder in ("*", "dev/**/*", "doc/**/*", "llmc/**/*", "scripts/**/*")
             for path in glob.glob(os.path.join(ROOT, folder), recursive=True) if path.endswith(CODE)]
    for path in (os.path.relpath(path, ROOT) for path in paths):
        for number, line in enumerate(read(path).split("\n"), 1):
            say(len(line) <= WIDTH, path, f"line {number}: {len(line)} columns of {WIDTH}", quiet=True)


# "section 2" in a comment of a program is a heading there ("// 2. The model"), or "section 2 of" the file it names.
def check_sections(say):
    for path in PROGRAMS:
        for number, other in re.findall(r"//.*\bsection (\d+)(?: of (\w+\.cuh?))?", read(path)):
            heading = re.search(rf"^// {number}\. ", read(other or path), re.M)
            say(heading, path, f"section {number}: {other or path} has none", quiet=True)


def check_code(say):
    code = [*headers(), *PROGRAMS, "test_gpt2.c", "test_gpt2.cu"]
    all_functions = sorted(((*function, path) for path in code for function in functions(path)), reverse=True)
    for lines, _, name, path in all_functions:
        say(lines <= FUNCTION_LINES, path, f"{name}: {lines} lines of {FUNCTION_LINES}", quiet=True)
    median = all_functions[len(all_functions) // 2][0]
    say(True, "functions", f"{len(all_functions)}, median {median} lines; the longest: " +
        ", ".join(f"{name} {lines}" for lines, _, name, _ in all_functions[:5]))
    many = sorted(((count, name) for _, count, name, _ in all_functions if "kernel" not in name), reverse=True)[:5]
    say(True, "parameters", "the most: " + ", ".join(f"{name} {count}" for count, name in many))
    all_structs = sorted(((*struct, path) for path in code for struct in structs(path)), reverse=True)
    for fields, name, path in all_structs:
        say(fields <= STRUCT_FIELDS, path, f"struct {name}: {fields} fields of {STRUCT_FIELDS}", quiet=True)
    lines = [line for path in code for line in without_comments(read(path)).split("\n") if line.strip()]
    share = len(lines) / sum(read(path).count("\n") for path in code)
    statements = max(re.sub(r"for .*?;.*?;", "", line).count(";") for line in lines)
    say(True, "code", f"{len(lines)} lines without comments and empty ones, {100 * share:.0f} % of all; at most "
        f"{statements} statements on a line")
    say(True, "structs", f"{len(all_structs)}; the largest: " +
        ", ".join(f"{name} {fields}" for fields, name, _ in all_structs[:5]))


CHECKS = (check_rooms, check_budgets, check_shared, check_prints, check_arrows, check_emu, check_widths, check_sections,
          check_code)


def main():
    only_broken, broken = sys.argv[1:] == ["--check"], 0
    if sys.argv[1:] not in ([], ["--check"]):
        raise SystemExit(f"house: unknown argument '{sys.argv[1]}', expected nothing or --check")

    def say(holds, where, what, quiet=False):
        nonlocal broken
        broken += not holds
        if not holds or not (quiet or only_broken):
            print(f"{'ok  ' if holds else 'FAIL'} {where:24} {what}")

    for check in CHECKS:
        check(say)
    if broken:
        raise SystemExit(f"house: {broken} rules broken")


if __name__ == "__main__":
    main()
