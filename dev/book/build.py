#!/usr/bin/env python3
"""Builds the book as pages for a browser: doc/*.md with formulas, a search, and figures that move.

    make book                                   writes build/book; open build/book/index.html
    python3 dev/book/build.py FOLDER            writes FOLDER

A page needs no server and loads nothing from the network. Needs markdown-it-py (Debian: python3-markdown-it).
"""
import glob
import html
import json
import os
import re
import shutil
import sys

import formula

try:
    from markdown_it import MarkdownIt
except ImportError:
    sys.exit("build.py: this Python has no markdown-it-py; pip install markdown-it-py, or on Debian and Ubuntu "
             "apt-get install python3-markdown-it")

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
ASSETS = ("style.css", "page.js", "plan.js", "ring.js", "bits.js", "warp.js")
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<link rel="stylesheet" href="style.css">
</head>
<body>
<a class="skip" href="#text">To the text</a>
<header>
<a class="home" href="index.html">gpt2.c: the book</a>
<input id="search" type="search" placeholder="Search the book" aria-label="Search the book" autocomplete="off">
<div id="found" role="status"></div>
</header>
<details id="contents" open><summary>Contents</summary><nav>
{contents}
</nav></details>
<main id="text">
{body}
<footer>{before}{after}</footer>
</main>
{scripts}
</body>
</html>
"""


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


# ---- The planner's tables, for the figure of the memory plan ----


def find(path, pattern):
    """What a pattern finds in a file of llmc/, which may have changed since the pattern was written."""
    found = re.search(pattern, read(path), re.S)
    if found is None:
        raise SystemExit(f"build.py: {path}: expected {pattern!r}, for the figure of the memory plan")
    return found


def rows_of(path, macro):
    """The rows of an X-macro, each a list of its words. Strings lose their quotes."""
    body = find(path, rf"#define {macro}\(X\)((?:[^\n]*\\\n)+[^\n]*)")[1].replace("\\\n", " ")
    return [[word.strip().strip('"') for word in row.split(",")] for row in re.findall(r"X\(([^()]*)\)", body)]


def enum_of(path, first):
    """The values of an enum by name, from the name `first` on."""
    values = {}
    for words in re.sub(r"//[^\n]*", "", find(path, rf"enum \{{\s*({first}\b[^}}]*)\}}")[1]).split(","):
        name, _, value = (word.strip() for word in words.partition("="))
        values[name] = values[value] if value else len(set(values.values()))
    return values


def constant(path, name):
    """The value of a #define: a whole number, or two with <<."""
    number, shift = find(path, rf"#define {name} \(*(?:int64_t\))?(\d+)(?: << (\d+))?").groups()
    return int(number) << int(shift or 0)


def plan_tables():
    gpt2, activations = "llmc/model/gpt2.h", "llmc/model/activations.h"
    numbers = {"PLAN_ALIGNMENT": "model/memory_plan.h", "ZERO_ALIGNMENT": "ranks/zero.h",
               "ZERO_BLOCK_SLOTS": "ranks/zero.h", "GLOBAL_NORM_SPAN": "optim/global_norm.cuh",
               "CUBLAS_WORKSPACE": "cuda/cublas_common.h", "GELU_BACKWARD_ROWS": "layers/gelu.cuh",
               "BIAS_ROWS": "layers/linear.cuh", "GPT2_VOCAB_SIZE": "model/gpt2.h"}
    sizes = [[row[0], *row[2:]] for row in rows_of(gpt2, "MODEL_RELEASED")] + rows_of(gpt2, "MODEL_UNRELEASED")
    head_rows = find("llmc/run/train_options.h", r'X\(head_rows, "head-rows", "", INT, "(\d+)"')[1]
    return {"parameters": rows_of(gpt2, "MODEL_PARAMETERS"), "activations": rows_of(gpt2, "MODEL_ACTIVATIONS"),
            "phases": enum_of(activations, "FORWARD"), "levels": enum_of(activations, "RECOMPUTE_NOTHING"),
            "sizes": [[row[0], *map(int, row[1:])] for row in sizes], "HEAD_ROWS": int(head_rows),
            **{name: constant(f"llmc/{path}", name) for name, path in numbers.items()}}


# ---- Pages ----


def slug(heading):
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def plain(token):
    """The words of a paragraph or a heading."""
    return "".join(child.content or " " for child in token.children)


class Page:
    """A page of the book: its title, its HTML, its sections for the search, and the figures that it shows."""

    def __init__(self, name, repository):
        self.repository = repository  # the way there from the folder of the pages
        self.name = "index" if name == "README" else name
        self.sections, self.figures, anchors = [], [], {}
        markdown = MarkdownIt("commonmark").enable("table")
        tokens, heading = markdown.parse(read(f"doc/{name}.md")), None
        for i, token in enumerate(tokens):
            if token.type == "heading_open":
                heading = slug(plain(tokens[i + 1]))
                anchors[heading] = anchors.get(heading, -1) + 1
                heading += f"-{anchors[heading]}" if anchors[heading] else ""
                token.attrSet("id", heading)
                self.sections.append({"page": self.name, "anchor": heading, "title": plain(tokens[i + 1]), "text": ""})
            elif token.type == "inline":
                self.links(token)
                self.note(plain(token))
                self.formulas(token)
            elif token.type == "fence":
                self.note(token.content)
                shown = formula.render(token.content) if token.info == "text" else None
                token.type, token.content = "html_block", shown or self.listing(token)
            elif token.type == "html_block":
                token.content = self.figure(token.content)
        body = markdown.renderer.render(tokens, markdown.options, {})
        self.body = re.sub(r"(<table>.*?</table>)", r'<div class="wide">\1</div>', body, flags=re.S)
        self.title = self.sections[0]["title"]

    def note(self, words):
        if self.sections:
            self.sections[-1]["text"] += " " + " ".join(words.split())

    def links(self, token):
        """Links to chapters become links to pages. Those to other files of the repository lead there."""
        for child in token.children:
            href = child.attrGet("href") or ""
            if child.type == "link_open" and href and not re.match(r"https?:|#", href):
                path, _, anchor = href.partition("#")
                page = re.fullmatch(r"(\w+)\.md", path)
                to = f"{page[1]}.html".replace("README.html", "index.html") if page else f"{self.repository}/doc/{path}"
                child.attrSet("href", to.replace("/doc/../", "/") + (f"#{anchor}" if anchor else ""))

    def formulas(self, token):
        """Code spans that are formulas become MathML."""
        for child in token.children:
            shown = formula.inline(child.content) if child.type == "code_inline" else None
            if shown:
                child.type, child.content = "html_inline", shown

    def listing(self, token):
        return f'<pre class="{html.escape(token.info or "text")}"><code>{html.escape(token.content)}</code></pre>\n'

    def figure(self, comment):
        """<!-- figure: plan --> is the place of a figure that moves; other comments vanish."""
        found = re.fullmatch(r"<!-- figure: (\w+) -->\s*", comment)
        if not found:
            return "" if comment.startswith("<!--") else comment
        if f"{found[1]}.js" not in ASSETS:
            raise SystemExit(f"build.py: doc/{self.name}.md: there is no figure '{found[1]}' in dev/book")
        self.figures.append(found[1])
        return f'<div class="figure" id="figure-{found[1]}"></div>\n'


def link(page, words, name=""):
    return f'<a{name and f" class={name}"} href="{page.name}.html">{html.escape(words)}</a>'


def contents(pages, here):
    """The list of pages at the side. The chapters have their numbers."""
    items = "".join(f"<li>{link(page, page.title, 'here' if page is here else '')}</li>" for page in pages)
    return f"<ul>{items}</ul>"


def html_of(pages, i):
    page = pages[i]
    before = link(pages[i - 1], f"← {pages[i - 1].title}") if i > 0 else ""
    after = link(pages[i + 1], f"{pages[i + 1].title} →", "next") if i + 1 < len(pages) else ""
    figures = [*["tables.js"] * ("plan" in page.figures), *(f"{name}.js" for name in page.figures)]
    scripts = ["search.js", "page.js", *figures]
    loaded = "\n".join(f'<script src="{name}"></script>' for name in scripts)
    return PAGE.format(title=html.escape(page.title), contents=contents(pages, page), body=page.body, before=before,
                       after=after, scripts=loaded)


def in_order():
    """The names of doc/*.md as the table of contents has them; then what it does not name."""
    listed = re.findall(r"\]\((\w+)\.md\)", read("doc/README.md"))
    every = sorted(os.path.basename(path)[:-len(".md")] for path in glob.glob(os.path.join(ROOT, "doc", "*.md")))
    return list(dict.fromkeys(["README", *(name for name in listed if name in every), *every]))


def write(folder, name, text):
    with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
        file.write(text)


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(f"build.py: {' '.join(sys.argv[1:]) or 'no argument'}: expected the folder of the pages, as in\n"
                 "    python3 dev/book/build.py build/book")
    folder = sys.argv[1]
    os.makedirs(folder, exist_ok=True)
    repository = os.path.relpath(ROOT, folder).replace(os.sep, "/")
    pages = [Page(name, repository) for name in in_order()]
    for i, page in enumerate(pages):
        write(folder, f"{page.name}.html", html_of(pages, i))
    write(folder, "search.js", f"const SECTIONS = {json.dumps([s for page in pages for s in page.sections])};\n")
    write(folder, "tables.js", f"const TABLES = {json.dumps(plan_tables())};\n")
    for path in [*(os.path.join(HERE, name) for name in ASSETS), *glob.glob(os.path.join(ROOT, "doc", "*.svg"))]:
        shutil.copy(path, folder)
    print(f"{len(pages)} pages in {folder}: open {os.path.join(folder, 'index.html')}")


if __name__ == "__main__":
    try:
        main()
    except OSError as problem:
        sys.exit(f"build.py: {problem.filename}: {problem.strerror}")
