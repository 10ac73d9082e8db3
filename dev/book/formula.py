"""Turns the formulas of the chapters, which read as text, into MathML, which browsers draw.

    dx[i] = rstd * (g[i] - mean(g))        a note

x[i] is a subscript, x^2 a power, a / b a fraction, "sum over i of" a sum sign. Neighbours are multiplied, as on paper.
Three spaces separate formulas and notes of a line. A block in which a line is no equation stays as it is, and so does
a code span of a sentence that C or Python could read.
"""
import html
import re

TOKEN = re.compile(r"\s*(\d{1,3}(?:,\d{3})+|\d+(?:\.\d+|\.[a-z]+)?(?:e-?\d+)?|"  # 1,024 and 1.5e-3 and 1.mantissa
                   r"[A-Za-z](?:\w|-(?=[a-z]{3}))*(?:'s\b)?|\.\.\.|[-+<>]=|\S)")  # beta1, micro-batches, rank's
RELATION = re.compile(r"(?:^| )(?:[-+<>]?=|<|>)(?= )")
COMMAND = re.compile(r"^\s*(\./|python3|scripts/|dev/|make |mpirun|\$)|[\"`{}]|--\w", re.M)
PAPER = re.compile(r"\w\^|/ ?sqrt\(|\bsum over |^\w+\(\w+\) = | = .*\b\w [A-Za-z]\b")  # x^2, f(x) = y, y = a b: no code
SIGNS = {"*": "⋅", "-": "−", "<=": "≤", ">=": "≥", "...": "…", "-=": "−=", "<": "&lt;", ">": "&gt;"}
GREEK = {"alpha": "α", "beta": "β", "delta": "δ", "epsilon": "ε", "pi": "π", "sigma": "σ", "theta": "θ"}
BIG = {"sum": "∑", "max": "max", "mean": "mean"}
SPACE, CALLED = '<mspace width="0.2em"/>', ("<mi>", "<msub><mi>", "<mrow><mi>")
WIDE = '<mspace width="2.5em"/>'
OPEN, CLOSE = '<mrow class="group"><mo>(</mo>', "<mo>)</mo></mrow>"
MATH = '<math xmlns="http://www.w3.org/1998/Math/MathML"'
SEPARATORS = {"=", "+=", "-=", "<", ">", "<=", ">=", ",", ":", ";", "%"}


def row(parts):
    return parts[0] if len(parts) == 1 else f"<mrow>{''.join(parts)}</mrow>"


def bare(part):
    """Drops the brackets around a whole part: a fraction, a root and a power need none."""
    return f"<mrow>{part[len(OPEN):-len(CLOSE)]}</mrow>" if part.startswith(OPEN) else part


def sign(text):
    return f"<mo>{SIGNS.get(text, html.escape(text))}</mo>"


def name(word):
    """A name: epsilon is a Greek letter, beta1 and m_new have a subscript."""
    parts = re.fullmatch(r"([A-Za-z]+?)_?(\d+|(?<=_)\w+)", word)
    if parts:
        kind = "mn" if parts[2].isdigit() else "mi"
        return f"<msub>{name(parts[1])}<{kind}>{parts[2]}</{kind}></msub>"
    return f"<mi>{GREEK.get(word, html.escape(word))}</mi>"


class Parser:
    """Reads a formula by descent: relations hold sums, sums hold products, products hold factors."""

    def __init__(self, text):
        self.tokens = [(match[1], match.start(1) > match.start()) for match in TOKEN.finditer(text)]
        self.at, self.bars, self.bounds = 0, False, False  # bars: within |x|; bounds: between "sum over" and "of"

    def peek(self):
        return self.tokens[self.at][0] if self.at < len(self.tokens) else ""

    def take(self, wanted=None):
        token = self.peek()
        if token == "" or wanted not in (None, token):
            raise ValueError(f"expected {wanted or 'more'}, found {token!r}")
        self.at += 1
        return token

    def until(self, *ends):
        """Sums and what separates them, up to one of the ends, which is taken."""
        parts = []
        while self.peek() not in ends:
            parts.append(sign(self.take()) if self.peek() in SEPARATORS else self.sum())
        self.at += self.peek() != ""
        return row(parts) if parts else ""

    def sum(self):
        parts = []
        while True:
            while self.peek() in ("+", "-"):
                parts.append(sign(self.take()))
            parts.append(self.product())
            if self.peek() not in ("+", "-"):
                return row(parts)

    def product(self):
        parts = [self.factor()]
        while self.goes_on():
            operator = self.take() if self.peek() in "*/." else ""
            if operator == "/":
                parts = [f"<mfrac>{bare(row(parts))}{bare(self.factor())}</mfrac>"]
            else:
                parts += [sign("*") if operator else SPACE, self.factor()]
        return row(parts)

    def goes_on(self):
        token = self.peek()
        ends = token == "" or token == "|" and self.bars or token == "of" and self.bounds
        return not ends and (token[0].isalnum() or token in ("(", "*", "/", ".", "|", "..."))

    def factor(self):
        base = self.atom()
        while True:
            if self.peek() == "[":
                indices = []
                while self.peek() == "[":
                    self.take()
                    indices += [sign(",")] * bool(indices) + [self.until("]")]
                base = f"<msub>{base}{row(indices)}</msub>"
            elif self.peek() == "'":
                self.take()
                base = f"<mrow>{base}<mo>′</mo></mrow>"
            elif self.peek() == "^":
                self.take()
                minus = sign(self.take()) if self.peek() == "-" else ""
                base = f"<msup>{base}<mrow>{minus}{bare(self.atom())}</mrow></msup>"
            elif self.peek() == "(" and not self.tokens[self.at][1] and base.startswith(CALLED):
                base = f"<mrow>{base}{self.atom()}</mrow>"
            else:
                return base

    def atom(self):
        token = self.take()
        if token == "(":
            return f"{OPEN}{self.until(')')}{CLOSE}"
        if token == "|" and not self.bars:
            self.bars = True
            inside = self.until("|")
            self.bars = False
            return f"<mrow><mo>|</mo>{inside}<mo>|</mo></mrow>"
        if token == "sqrt" and self.peek() == "(":
            return f"<msqrt>{bare(self.atom())}</msqrt>"
        if token in BIG and self.peek() == "over":
            self.take()
            self.bounds = True
            bounds = self.until("of")
            self.bounds = False
            return f"<mrow><munder><mo>{BIG[token]}</mo>{bounds}</munder>{self.product()}</mrow>"
        if token[0].isalpha():
            return name(token)
        if token[0].isdigit() or token == "...":
            return f"<mn>{SIGNS.get(token, token)}</mn>"
        raise ValueError(f"found {token!r}")


def mathml(text):
    """A formula on one line. Raises ValueError if it is none."""
    return Parser(text).until("")


def lines_of(block):
    """The lines of a block of formulas, each as [left, right, note]. Raises ValueError if it holds anything else."""
    if COMMAND.search(block):
        raise ValueError("a command")
    lines = []
    for line in filter(str.strip, block.splitlines()):
        line = re.sub(r" +(?=([-+<>]?=|[-+*]) )", " ", line.strip())
        parts = re.split(r"(?: {3,}|(?<=,) {2,})", line)
        if not RELATION.search(parts[0]):
            raise ValueError("no equation")
        relation = RELATION.search(parts[0])
        left, right = parts[0][:relation.start()], parts[0][relation.start():]
        note = html.escape(parts.pop()) if not RELATION.search(parts[-1]) else ""
        more = [WIDE + (mathml(part) if RELATION.search(part) else f"<mtext>{html.escape(part)}</mtext>")
                for part in parts[1:]]
        lines.append((mathml(left), "".join([mathml(right), *more]), note))
    return lines


def render(block):
    """The block as a table of MathML, or None if a line of it is no formula."""
    try:
        lines = lines_of(block)
    except ValueError:
        return None
    rows = "".join(f"<mtr><mtd>{left}</mtd><mtd>{right}</mtd><mtd><mtext>{note}</mtext></mtd></mtr>"
                   for left, right, note in lines)
    return f'<div class="formula">{MATH} display="block"><mtable>{rows}</mtable></math></div>'


def inline(span):
    """A code span of a sentence as MathML, or None if it may be code."""
    try:
        return f"{MATH}>{mathml(span)}</math>" if PAPER.search(span) and not COMMAND.search(span) else None
    except ValueError:
        return None
