"""The pages of `make book` (dev/book): links lead somewhere, nothing comes from the network, formulas lose no term, the
search finds, and the figures' numbers are those of the planner and of the formats. Skipped without markdown-it-py."""
import html.parser
import importlib
import itertools
import json
import math
import os
import re
import shutil
import struct
import subprocess
import sys
import xml.etree.ElementTree

import pytest

from tools import ROOT, new_folder, path, text_of, write

pytest.importorskip("markdown_it", reason="no markdown-it-py (Debian: python3-markdown-it)")
BUILD = os.path.join(ROOT, "dev", "book", "build.py")
EMULATED = os.path.join(ROOT, os.environ.get("TRAIN_GPT2CU", "train_gpt2emu"))
needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="no node here: the figures' JavaScript is not run")


@pytest.fixture(scope="module")
def book():
    """The folder of the pages."""
    folder = new_folder("book")
    built = subprocess.run([sys.executable, BUILD, folder], capture_output=True, text=True)
    assert built.returncode == 0 and built.stderr == "", built.stderr
    return folder


def read(folder, name):
    with open(os.path.join(folder, name), encoding="utf-8") as file:
        return file.read()


def javascript(book, names, expression):
    """The value of an expression after some of the book's scripts."""
    script = "".join(read(book, name) for name in names) + f"\nconsole.log(JSON.stringify({expression}));"
    ran = subprocess.run(["node", write("figure.js", script)], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


# ---- The pages ----


class Links(html.parser.HTMLParser):
    """Anchors of a page, links that one follows, and files that the page loads by itself."""

    def __init__(self, text):
        super().__init__()
        self.anchors, self.links, self.loaded = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        named = dict(attributes)
        self.anchors += [named["id"]] if "id" in named else []
        self.links += [named["href"]] if tag == "a" else []
        self.loaded += [named[name] for name in ("src", "href", "srcset", "data") if tag != "a" and name in named]


def test_links_lead_somewhere(book):
    pages = {name: Links(read(book, name)) for name in os.listdir(book) if name.endswith(".html")}
    missing = []
    for name, page in pages.items():
        assert len(set(page.anchors)) == len(page.anchors), name
        for link in page.links:
            file, _, anchor = link.partition("#")
            if re.match("https?:", link):
                continue
            there = os.path.exists(os.path.join(book, file)) if file else True
            known = pages[file or name].anchors if (file or name) in pages else [anchor]
            missing += [] if there and (not anchor or anchor in known) else [f"{name}: {link}"]
    chapters = {f"{document[:-len('.md')]}.html" for document in os.listdir(os.path.join(ROOT, "doc"))
                if document.endswith(".md") and document != "README.md"}
    assert not missing and chapters | {"index.html"} == set(pages), missing
    scripts = {name for page in pages.values() for name in page.loaded if name.endswith(".js")}
    assert scripts == {name for name in os.listdir(book) if name.endswith(".js")}, "a figure stands on no page"
    assert set(pages) <= {link.partition("#")[0] for link in pages["index.html"].links}


def test_nothing_from_the_network(book):
    """A page loads only files beside it, and its scripts and styles ask for nothing."""
    for name in os.listdir(book):
        text = read(book, name)
        if name.endswith(".html"):
            outside = [file for file in Links(text).loaded if not os.path.exists(os.path.join(book, file))]
            assert outside == [] and not re.search(r"style=|<iframe|@import", text), (name, outside)
        elif name.endswith((".js", ".css")) and name != "search.js":
            asks = re.findall(r"fetch\(|XMLHttpRequest|\bimport\b|url\(|https?:(?!//www\.w3\.org/2000/svg)", text)
            assert asks == [], (name, asks)


@pytest.fixture(scope="module")
def formula():
    sys.path.insert(0, os.path.dirname(BUILD))
    return importlib.import_module("formula")


def terms(formula, text):
    """The letters and digits of a formula or of its MathML, without the words that become signs."""
    for word, letter in formula.GREEK.items():
        text = text.replace(letter, word)
    return re.findall(r"[^\W_]", re.sub(r"\b(sqrt|sum|over|of)\b", "", text))


def shown_terms(formula, mathml):
    return terms(formula, " ".join(xml.etree.ElementTree.fromstring(mathml).itertext()))


def test_formulas_lose_nothing(formula):
    """Each formula is well-formed MathML with all terms of its text. Programs' output and commands stay text."""
    formulas = 0
    for document in sorted(name for name in os.listdir(os.path.join(ROOT, "doc")) if name.endswith(".md")):
        page = text_of(f"doc/{document}")
        for block in re.findall(r"^```text\n(.*?)^```", page, re.M | re.S):
            shown = formula.render(block)
            if shown is None:
                continue
            formulas += 1
            words = "".join(xml.etree.ElementTree.fromstring(shown).itertext())
            assert shown_terms(formula, shown) == terms(formula, block), (document, block, words)
            assert "[" not in words, (document, block, "an index stands in a note")
            assert words.count("=") >= block.count("=") - len(re.findall("[<>]=", block)), (document, block)
    assert formulas >= 40, formulas
    assert formula.render("x             1.0000    2.0000\n") is None
    assert formula.render("./train_gpt2 --lr = 3\n") is None
    assert formula.render("f(x = 2\n") is None
    root = "<msqrt><mrow><mi>v</mi></mrow></msqrt>"
    assert f"<mfrac><msub><mi>m</mi><mi>i</mi></msub>{root}</mfrac>" in formula.render("w = m[i] / sqrt(v)\n")
    assert "<munder><mo>∑</mo><mi>j</mi></munder>" in formula.render("y = sum over j of x[j]\n")
    assert "<mn>1.mantissa</mn>" in formula.render("x = 1.mantissa * 2^e\n")
    assert "<mi>micro-batches</mi>" in formula.render("y = sum over micro-batches of x - y\n")
    assert "<mtext>a note</mtext>" in formula.render("y = x^2      a note\n")


def test_formulas_in_sentences(book, formula):
    """A code span that only paper has becomes MathML with all its terms. One that C or a shell could read stays."""
    for span in ("gelu(x) = x/2 * (1 + tanh(u))", "1/sqrt(HS)", "q k^T", "gelu' = s + 2 x s (1 - s) u'", "C = A B",
                 "lse[i] = m + log(sum over j of exp(score[i,j] - m))"):
        assert shown_terms(formula, formula.inline(span)) == terms(formula, span), span
    for span in ("x[n * C + c]", "w[i] -= lr * dw[i]", "logits = next[text]", "rank == 0", "sqrtf(x)", "(N,C)", "e r",
                 "llmc/run/sampler.h", "-m N", "--tp 8", "PLAN=1 make x", "table.grad = None", "q k^T (", "./q k^T",
                 "q, k, v = qkv.split(C, dim=-1)", "float *x = calloc(N * C, sizeof(float));", "<"):
        assert formula.inline(span) is None, span
    block = read(book, "06_block.html")
    assert formula.inline("gelu = x s") in block and "<code>gelu = x s</code>" not in block


def test_wrong_use():
    """One line says what is wrong."""
    blocked = write("blocked", "no folder")
    for words, what in (([], "no argument"), (["--help"], "--help"), ([blocked], blocked), (["a", "b"], "a b")):
        ran = subprocess.run([sys.executable, BUILD, *words], capture_output=True, text=True)
        assert ran.returncode == 1 and ran.stdout == "" and what in ran.stderr.splitlines()[0], ran
        assert "Traceback" not in ran.stderr, ran
    bare = subprocess.run([sys.executable, "-S", BUILD, path("bare")], capture_output=True, text=True)
    assert bare.returncode == 1 and "apt-get install python3-markdown-it" in bare.stderr, bare


@needs_node
def test_search(book):
    def found(words):
        return javascript(book, ["search.js", "page.js"], f"search(SECTIONS, {json.dumps(words)})")
    assert found("stochastic ROUNDING")[0]["page"] == "10_bf16"
    assert "05_attention" in [section["page"] for section in found("softmax delta")]
    assert found("attention xyzzy") == [] and found("  ") == []
    for section in found("gradient"):
        assert f'id="{section["anchor"]}"' in read(book, f"{section['page']}.html")


# ---- The figures ----


@needs_node
@pytest.mark.skipif(not os.path.exists(EMULATED), reason="no emulated trainer (make train_gpt2emu)")
def test_plan_is_the_planners(book):
    """Name, bytes and offset of each row, and the total, are those that --plan prints."""
    runs = [dict(size=size, B=B, T=T, recompute=recompute, ranks=ranks, stage=stage)
            for (size, B, T), recompute, (ranks, stage) in itertools.product(
                [("d6", 1, 64), ("d12", 16, 1024), ("gpt3:c2048", 3, 192)], range(4),
                [(1, 0), (8, 0), (3, 1), (8, 2), (8, 3)])]
    plans = javascript(book, ["tables.js", "plan.js"], f"""{json.dumps(runs)}.map((run) => {{
        const rows = planRows(TABLES, run), total = planLayout(TABLES, rows);
        return {{options: planOptions(run), total, rows: rows.map((row) => [row.name, row.bytes, row.offset])}};
    }})""")
    for run, plan in zip(runs, plans):
        out = subprocess.run([EMULATED, *plan["options"].split()], capture_output=True, text=True, check=True).stdout
        device = out.partition("On the host")[0]
        rows = re.findall(r"^(\w+) +\(.*?\) +\w+ +(\d+) +[\d.]+ \w+ +(\d+) ", device, re.M)
        assert plan["total"] == int(re.search(r"^total (\d+) bytes", device, re.M)[1]), run
        assert plan["rows"] == [[name, int(size), int(offset)] for name, size, offset in rows], run


@needs_node
def test_ring_adds_up(book):
    """Its sends, played with numbers, give every rank all sums, in 2 (R - 1) parts sent by each."""
    for ranks in (2, 3, 8):
        states = javascript(book, ["ring.js"], f"ringStates({ranks})")
        held = [[{rank} for _ in range(ranks)] for rank in range(ranks)]
        for state in states[1:]:
            assert sorted(send["from"] for send in state["sends"]) == list(range(ranks))
            before = [[set(part) for part in parts] for parts in held]
            for send in state["sends"]:
                here, part = send["to"], send["part"]
                assert here == (send["from"] + 1) % ranks
                if state["half"] == "reduce-scatter":
                    assert not before[here][part] & before[send["from"]][part], "a term would be added twice"
                    held[here][part] |= before[send["from"]][part]
                else:
                    held[here][part] = before[send["from"]][part]
            assert state["held"] == [[sum(1 << rank for rank in part) for part in parts] for parts in held], state
        assert len(states) == 1 + 2 * (ranks - 1)
        assert all(part == set(range(ranks)) for parts in held for part in parts)


NUMBERS = [0.0, -0.0, 0.3, 1.0, -1.0, 1.00390625, 1.01171875, 0.1, 448.0, 464.0, 465.0, 70000.0, 65519.0, 65520.0, 1e-5,
           6e-8, 2.9e-8, 1e-40, 3.4028235677973366e38, 3.3e38, 1e300, 0.001953125, 0.0009765625, 0.00097657, 57344.0,
           240.0, math.inf, -math.inf, 2 - 2**-24, 2**-126 * (1 - 2**-24)]


def float_bits(x, form, digits):
    """The bits that Python's struct packs. It refuses numbers beyond the largest, which become infinite."""
    try:
        number = struct.pack(f">{form}", x)
    except OverflowError:
        number = struct.pack(f">{form}", math.copysign(math.inf, x))
    return format(int.from_bytes(number, "big"), f"0{digits}b")


@needs_node
def test_bits_are_those_of_the_formats(book):
    words = "[" + ", ".join({math.inf: "Infinity", -math.inf: "-Infinity"}.get(x, repr(x)) for x in NUMBERS) + "]"
    found = javascript(book, ["bits.js"], f"{words}.map((x) => FORMATS.map((f) => bitsOf(x, f)))")
    codes = javascript(book, ["bits.js"], """FORMATS.slice(3).map((f) => Array.from({length: 256}, (_, i) =>
        String(bitsValue(i.toString(2).padStart(8, "0"), f))))""")
    for x, (fp32, bf16, fp16, *eights) in zip(NUMBERS, found):
        assert fp32 == float_bits(x, "f", 32), x
        assert fp16 == float_bits(x, "e", 16), x
        if struct.unpack(">f", int(fp32, 2).to_bytes(4, "big"))[0] == x or math.isinf(x):  # else rounded twice
            number = int(fp32, 2)
            assert int(bf16, 2) == number + 0x7fff + (number >> 16 & 1) >> 16, x
        for bits, values, largest in zip(eights, codes, (448.0, 57344.0)):
            size = min(abs(x), largest)
            near = min((abs(float(value) - size), code & 1, code) for code, value in enumerate(values[:128])
                       if math.isfinite(float(value)))
            assert int(bits, 2) & 127 == near[2] and int(bits[0]) == (math.copysign(1, x) < 0), (x, bits, near)
    e4m3, e5m2 = ([float(value) for value in values] for values in codes)
    assert max(e4m3[:127]) == 448 and e4m3[1] == 2**-9 and math.isnan(e4m3[127]) and e4m3[0b10111000] == -1
    assert max(e5m2[:124]) == 57344 and e5m2[1] == 2**-16 and e5m2[124] == math.inf and math.isnan(e5m2[125])


@needs_node
def test_warp_touches(book):
    """Sectors, their used part and wavefronts, as chapter 13 counts them by hand and by the meter."""
    cases = {(4, 1, 0): (4, 1.0, 1), (4, 1, 4): (5, 0.8, 1), (4, 2, 0): (8, 0.5, 2), (4, 8, 0): (32, 0.125, 8),
             (4, 0, 0): (1, 0.125, 1), (16, 1, 0): (16, 1.0, 4), (4, 32, 0): (32, 0.125, 32),
             (4, 33, 0): (32, 0.125, 1), (2, 1, 0): (2, 1.0, 1), (2, 2, 0): (4, 0.5, 1), (8, 1, 0): (8, 1.0, 2),
             (8, 2, 0): (16, 0.5, 4)}
    found = javascript(book, ["warp.js"], f"""{json.dumps(list(cases))}.map((of) => {{
        const touched = warpTouches(...of);
        return [touched.sectors.length, touched.used, touched.wavefronts];
    }})""")
    assert dict(zip(cases, map(tuple, found))) == cases
