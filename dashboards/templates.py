"""Fills an alert's templates with given labels and a value, as Prometheus would: for tests of the way to on-call.

Prometheus' template language is Go's; this is the part of it that rule files use: labels, the value, ``with``,
``if``, ``range``, ``else``, ``printf``, ``humanize…``, and queries, which answer one series with the same labels and value.
What is not known stays in the text as it is, so that nothing is invented.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from math import isfinite
from typing import Any

_PIECE = re.compile(r"\{\{-?\s*(.*?)\s*-?\}\}", re.S)
_WORD = re.compile(r'"(?:[^"\\]|\\.)*"|`[^`]*`|[^\s|]+|\|')


class _UnknownError(Exception):
    """Part of the language that is not known here."""


#: What a template can end with that asks for more than there is here.
_FAILS = (_UnknownError, ValueError, TypeError, IndexError, KeyError, AttributeError)


def fill(text: str, labels: Mapping[str, str], value: float) -> str:
    """``text`` with its templates filled."""
    pieces = _PIECE.split(text)  # plain text and templates by turns
    out, at = _block(pieces, 0, labels, value, None)
    return out if at >= len(pieces) else text


def labels_of(text: str) -> list[str]:
    """Labels that the templates of ``text`` ask for, in order."""
    return list(dict.fromkeys(re.findall(r"\$labels\.(\w+)", text)))


def _block(pieces: list[str], at: int, labels: Mapping[str, str], value: float, dot: Any) -> tuple[str, int]:
    """The text from ``at`` to the end of this block; where that is: at its ``else`` or ``end``, or past the end."""
    out = ""
    while at < len(pieces):
        if at % 2 == 0:
            out += pieces[at]
            at += 1
            continue
        word, _, rest = pieces[at].partition(" ")
        if word in ("end", "else"):
            return out, at
        if word in ("with", "if", "range"):
            try:
                found = _pipeline(rest, labels, value, dot)
            except _FAILS:
                found = None
            if word == "range" and found:
                found = found[0]  # a query answers one series here
            below = dot if word == "if" else found
            then, at = _block(pieces, at + 1, labels, value, below)
            other = ""
            if at < len(pieces) and pieces[at].startswith("else"):
                other, at = _block(pieces, at + 1, labels, value, dot)
            out += then if found else other
        else:
            try:
                out += _text(_pipeline(pieces[at], labels, value, dot))
            except _FAILS:
                out += "{{ " + pieces[at] + " }}"
        at += 1
    return out, at


def _pipeline(text: str, labels: Mapping[str, str], value: float, dot: Any) -> Any:
    result: Any = None
    stage: list[str] = []
    first = True
    for word in [*_WORD.findall(text), "|"]:
        if word != "|":
            stage.append(word)
            continue
        result = _call(stage, labels, value, dot, () if first else (result,))
        stage, first = [], False
    return result


def _call(words: list[str], labels: Mapping[str, str], value: float, dot: Any, piped: tuple[Any, ...]) -> Any:
    if not words:
        raise _UnknownError
    if len(words) == 1 and not piped and words[0] not in _FUNCTIONS:
        return _atom(words[0], labels, value, dot)
    name, *rest = words
    arguments = [*(_atom(word, labels, value, dot) for word in rest), *piped]
    if name == "query":
        return [{"labels": dict(labels), "value": value}]
    if name not in _FUNCTIONS:
        raise _UnknownError
    return _FUNCTIONS[name](*arguments)


def _atom(word: str, labels: Mapping[str, str], value: float, dot: Any) -> Any:
    if word == "$value":
        return value
    if word == ".":
        return dot
    if word.startswith("$labels."):
        return labels.get(word.removeprefix("$labels."), "")
    if word[0] == '"' and word[-1] == '"' and len(word) > 1:
        return word[1:-1].replace('\\"', '"').replace("\\\\", "\\")
    if word[0] == "`" and word[-1] == "`" and len(word) > 1:
        return word[1:-1]
    if word.startswith(".Labels.") and isinstance(dot, dict):
        return _label(word.removeprefix(".Labels."), dot)
    if word == ".Value" and isinstance(dot, dict):
        return dot["value"]
    try:
        return float(word)
    except ValueError:
        raise _UnknownError from None


def _label(name: str, sample: Any) -> str:
    """Of a queried series, which has labels that the alert lacks."""
    return str(sample["labels"].get(name, f"test-{name}"))


def _text(value: Any) -> str:
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, str):
        return value
    raise _UnknownError


def _number(value: float) -> str:
    """As Go prints a number: the fewest digits that tell it, with an exponent from a million on."""
    if not isfinite(value):
        return {"inf": "+Inf", "-inf": "-Inf"}.get(str(value), "NaN")
    exact = Decimal(repr(value)).normalize()
    if value and not -4 <= exact.adjusted() < 6:
        mantissa, exponent = exact.scaleb(-exact.adjusted()), exact.adjusted()
        return f"{mantissa:f}e{exponent:+03d}"
    return f"{exact:f}"


def _printf(form: str, *values: Any) -> str:
    quoted = form.count("%q")
    if quoted and form.count("%") != quoted:
        raise _UnknownError
    if quoted:
        values = tuple(f'"{value}"' for value in values)
    return form.replace("%v", "%s").replace("%q", "%s") % values


def _humanize(value: Any, base: float = 1000.0) -> str:
    value, prefixes = float(value), "kMGTPEZY" if base == 1000 else ["ki", "Mi", "Gi", "Ti", "Pi", "Ei"]
    prefix = ""
    if abs(value) >= 1:
        for each in prefixes:
            if abs(value) < base:
                break
            value, prefix = value / base, each
    elif base == 1000 and value:
        for each in "munpfazy":
            if abs(value) >= 1:
                break
            value, prefix = value * base, each
    return f"{value:.4g}{prefix}"


def _duration(value: Any) -> str:
    seconds = float(value)
    if abs(seconds) < 1:
        return f"{_humanize(seconds)}s"
    if abs(seconds) < 60:
        return f"{seconds:.4g}s"
    whole = int(abs(seconds))
    days, hours, minutes = whole // 86400, whole // 3600 % 24, whole // 60 % 60
    sign = "-" if seconds < 0 else ""
    if days:
        return f"{sign}{days}d {hours}h {minutes}m {whole % 60}s"
    return f"{sign}{hours}h {minutes}m {whole % 60}s" if hours else f"{sign}{minutes}m {whole % 60}s"


_FUNCTIONS: dict[str, Any] = {
    "printf": _printf,
    "humanize": _humanize,
    "humanize1024": lambda value: _humanize(value, 1024.0),
    "humanizePercentage": lambda value: f"{float(value) * 100:.4g}%",
    "humanizeDuration": _duration,
    "first": lambda samples: samples[0],
    "value": lambda sample: sample["value"],
    "label": lambda name, sample: _label(name, sample),
    "title": str.title,
    "toUpper": str.upper,
    "toLower": str.lower,
    "eq": lambda a, *others: any(a == other for other in others),
    "ne": lambda a, b: a != b,
    "query": None,
}
