"""Source code for load: functions in Python and JavaScript that read like code and compute nothing of use.

Not here: what is asked about them (``_code``), prose (``_text``).

A token is counted as what ``_PIECE`` finds: a blank before a word or sign belongs to it, an indentation but its
last blank is one, digits are single, orderBook is two. SmolLM2's own count divided by that is RATIO, and within
ERROR of it for texts of 100 tokens and more.
"""

from __future__ import annotations

import random
import re
from functools import cache

LANGUAGES = ("python", "javascript")
#: SmolLM2's tokens per piece, over the pool.
RATIO = {"python": 1.0, "javascript": 1.05}
#: Largest relative error over texts of 100 tokens and more, that tokenizer, rounded up.
ERROR = 0.12
_POOL = 400
_PIECE = re.compile(r"\n *(?= )|\n| (?=\d)| ?[A-Z]?[a-z]+| ?[A-Z]+|\d| ?[^\w\s]+|_")

_NOUNS = """
order price user account item list value index total count limit batch queue cache record field token score path
node edge group report window event message buffer offset weight rate price stock invoice ticket region
""".split()
_VERBS = "load merge sort filter count update remove insert split group check parse format find collect reduce".split()
_CONDITIONS = ("{a} > {n}", "{a} == {n}", "{a} % {n} == 0", "{a} < {b}", "{a} >= {b} + {n}", "{a} != {b}")
_PYTHON = (
    "def {verb}_{a}s({a}s, {limit}={n}):\n"
    "    result = []\n"
    "    for {a} in {a}s:\n"
    "        if {cond}:\n"
    "            result.append({a} * {m})\n"
    "    return result[:{limit}]\n",
    "def {verb}_{a}({a}, {b}):\n"
    '    """Return the {a} for a given {b}."""\n'
    "    if {cond}:\n"
    '        raise ValueError(f"{a} is out of range: {{{a}}}")\n'
    "    {limit} = {a} + {b} * {m}\n"
    "    return max({limit}, {n})\n",
    "class {A}{B}:\n"
    "    def __init__(self, {a}, {b}={n}):\n"
    "        self.{a} = {a}\n"
    "        self.{b} = {b}\n"
    "        self.{limit}s = {{}}\n"
    "\n"
    "    def {verb}(self, key):\n"
    "        if key not in self.{limit}s:\n"
    "            self.{limit}s[key] = self.{a} - {m}\n"
    "        return self.{limit}s[key]\n",
    "def {verb}_{a}_by_{b}(rows):\n"
    "    {limit} = {{}}\n"
    "    for row in rows:\n"
    '        key = row["{b}"]\n'
    '        {limit}[key] = {limit}.get(key, 0) + row["{a}"]\n'
    "    return sorted({limit}.items(), key=lambda pair: pair[1])[-{n}:]\n",
    "def {verb}_{limit}({a}s, {b}s):\n"
    "    low, high = 0, len({a}s) - 1\n"
    "    while low <= high:\n"
    "        middle = (low + high) // 2\n"
    "        if {a}s[middle] < {b}s[{n}]:\n"
    "            low = middle + 1\n"
    "        else:\n"
    "            high = middle - {m}\n"
    "    return low\n",
)
_JAVASCRIPT = (
    "function {verb}{A}s({a}s, {limit} = {n}) {{\n"
    "  const result = [];\n"
    "  for (const {a} of {a}s) {{\n"
    "    if ({cond}) {{\n"
    "      result.push({a} * {m});\n"
    "    }}\n"
    "  }}\n"
    "  return result.slice(0, {limit});\n"
    "}}\n",
    "export async function {verb}{A}(id) {{\n"
    "  const response = await fetch(`/api/{a}s/${{id}}?{b}={n}`);\n"
    "  if (!response.ok) {{\n"
    '    throw new Error("{a} could not be read");\n'
    "  }}\n"
    "  const {a} = await response.json();\n"
    "  return {a}.{b} ?? {m};\n"
    "}}\n",
    "const {verb}{A}By{B} = (rows) =>\n"
    "  rows\n"
    "    .filter((row) => row.{a} > {n})\n"
    "    .map((row) => ({{ {b}: row.{b}, {limit}: row.{a} * {m} }}))\n"
    "    .sort((x, y) => x.{limit} - y.{limit});\n",
    "class {A}{B} {{\n"
    "  constructor({a}, {b} = {n}) {{\n"
    "    this.{a} = {a};\n"
    "    this.{b} = {b};\n"
    "  }}\n"
    "\n"
    "  {verb}({limit}) {{\n"
    "    return this.{a} + {limit} * {m} - this.{b};\n"
    "  }}\n"
    "}}\n",
)


def source(draw: random.Random, tokens: float, language: str) -> str:
    """Functions of about ``tokens`` tokens in all; the last one is cut where they end, as at an editor's cursor."""
    functions, sizes = _pool(language)
    found: list[str] = []
    left = tokens
    while left > 0:
        index = draw.randrange(_POOL)
        if sizes[index] > left:
            found.append(_cut(functions[index], left, language))
            break
        found.append(functions[index])
        left -= sizes[index]
    return "\n".join(found)


def prepare() -> None:
    """Make the functions, so that no request has to wait for it."""
    for language in LANGUAGES:
        _pool(language)


def estimate(text: str, language: str) -> float:
    """Tokens of a text of ours, as counted here (SmolLM2's vocabulary)."""
    return len(_PIECE.findall(text)) * RATIO[language]


@cache
def _pool(language: str) -> tuple[list[str], list[float]]:
    draw = random.Random(f"functions/{language}")  # noqa: S311 - the same in every run: part of the code
    templates = _PYTHON if language == "python" else _JAVASCRIPT
    functions = [_filled(draw, draw.choice(templates)) for _ in range(_POOL)]
    # One more for the line break between two.
    return functions, [estimate(function + "\n", language) for function in functions]


def _filled(draw: random.Random, template: str) -> str:
    a, b, limit = draw.sample(sorted(set(_NOUNS)), 3)
    n, m = draw.randint(2, 99), draw.randint(1, 9)
    cond = draw.choice(_CONDITIONS).format(a=a, b=b, n=n)
    return template.format(
        verb=draw.choice(_VERBS),
        a=a,
        b=b,
        A=a.capitalize(),
        B=b.capitalize(),
        limit=limit,
        n=n,
        m=m,
        cond=cond,
    )


def _cut(function: str, tokens: float, language: str) -> str:
    pieces = list(_PIECE.finditer(function))
    return function[: pieces[min(len(pieces), max(1, round(tokens / RATIO[language]))) - 1].end()]
