"""Writes a page of samples in Prometheus' text format (0.0.4) or OpenMetrics (1.0.0), and says which a client wants.

Written by hand because it is the hot path: prometheus_client's encoders take three times as long for a page of
infiniband counters, and importing them costs 12 MB. Its parsers read our pages in the tests. What the samples are
is the registry's business; how they travel, ``exporters/http.py``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from exporters.catalog import Metric, metric

#: Values by metric and by label values (in the catalogue's order). Every value is finite.
Page = Mapping[str, Mapping[tuple[str, ...], float]]

_Head = Callable[[Metric], str]

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_SPECIAL = re.compile(r'[\\\n"]')
_HELP_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n"})


def text(page: Page) -> bytes:
    """The page in the text format."""
    return _encoded(_lines(page, _text_head))


def openmetrics(page: Page) -> bytes:
    """The page in OpenMetrics: counters are declared without ``_total``, units by name, ``# EOF`` at the end."""
    lines = _lines(page, _openmetrics_head)
    lines.append("# EOF\n")
    return _encoded(lines)


def wants_openmetrics(accept: str) -> bool:
    """Whether a client with this Accept header gets OpenMetrics: it asks for it no less than for plain text.

    Prometheus asks for both with weights; curl and browsers ask for neither by name and get the text format.
    """
    modern = plain = 0.0
    for item in accept.split(","):
        kind, *parameters = (part.strip() for part in item.split(";"))
        if kind not in ("application/openmetrics-text", "text/plain"):
            continue
        weight, version = 1.0, ""
        for parameter in parameters:
            key, _, value = parameter.partition("=")
            if key == "q":
                weight = _weight(value)
            elif key == "version":
                version = value
        if kind == "text/plain":
            plain = max(plain, weight)
        elif version in ("", "1.0.0"):
            modern = max(modern, weight)
    return modern > 0 and modern >= plain


def _weight(text: str) -> float:
    try:
        return min(1.0, max(0.0, float(text)))
    except ValueError:
        return 0.0


def _encoded(lines: list[str]) -> bytes:
    # A file or process name that is no UTF-8 reaches us with lone surrogates; Prometheus would refuse the page.
    return "".join(lines).encode("utf-8", "replace")


def _lines(page: Page, head: _Head) -> list[str]:
    lines: list[str] = []
    # A hundred metrics of one port have the same labels; their text is made once. Only for this page: label sets
    # come and go with devices and replicas.
    texts: dict[tuple[str, ...], dict[tuple[str, ...], str]] = {}
    for name, values in page.items():
        m = metric(name)
        lines.append(head(m))
        known, template = texts.setdefault(m.labels, {}), _template(m.labels)
        for labels, value in values.items():
            said = known.get(labels)
            if said is None:
                said = known[labels] = template % _escaped(labels)
            lines.append(f"{name}{said} {value!r}\n")
    return lines


def _template(names: tuple[str, ...]) -> str:
    """``{device="%s",port="%s"}`` for ``%``; nothing where there are no labels."""
    return "{" + ",".join(f'{name}="%s"' for name in names) + "}" if names else ""


def _escaped(values: tuple[str, ...]) -> tuple[str, ...]:
    try:
        if not _SPECIAL.search("".join(values)):
            return values
    except TypeError:  # a collector gave a number where a label's text belongs; no reason to lose the page
        pass
    return tuple(str(v).translate(_ESCAPES) for v in values)


def _text_head(m: Metric) -> str:
    return f"# HELP {m.name} {m.help.translate(_HELP_ESCAPES)}\n# TYPE {m.name} {m.kind}\n"


def _openmetrics_head(m: Metric) -> str:
    family = m.name.removesuffix("_total") if m.kind == "counter" else m.name
    # OpenMetrics allows a unit only where the name ends with it.
    unit = f"# UNIT {family} {m.unit}\n" if m.unit and family.endswith(f"_{m.unit}") else ""
    said = m.help.translate(_ESCAPES)
    return f"# TYPE {family} {m.kind}\n{unit}# HELP {family} {said}\n"
