"""Queries of boards as they would be without recording rules, for ``boards.py``."""

from __future__ import annotations

import re
from typing import Any

from tests.dashboards.queries import FOLDERS, metrics_of, rules


class Unrecorded:
    """Queries as they would be without recording rules."""

    _SELECTOR = re.compile(r"([a-z_]+:[a-zA-Z0-9_:]+)(\{[^}]*\})?(\s*@ end\(\))?(\s*\[|\s*offset\b)?")

    def __init__(self) -> None:
        self._rules: dict[str, list[dict[str, Any]]] = {}
        for rule in rules(FOLDERS["exaserve"]):
            if "record" in rule:
                self._rules.setdefault(rule["record"], []).append(rule)

    def of(self, promql: str) -> str:
        """Each recorded series by the expression that it is recorded from, down to what was scraped.

        Over windows (a day's band) and offsets the recorded series stays: nobody would ask for that anew. Matchers are
        left out: they choose everything here, but for an edge or an objective, which costs the same.
        """
        return self._SELECTOR.sub(self._expanded, promql)

    def _expanded(self, found: re.Match[str]) -> str:
        name, _, at_end, window = found.groups()
        if window or name not in self._rules:
            return found[0]
        wholes = []
        for rule in self._rules[name]:
            expr = re.sub(r"(?m)#.*$", "", rule["expr"])
            if name in metrics_of(expr):  # one that goes on from itself
                return found[0]
            whole = f"({self.of(expr)})"
            for label, value in rule.get("labels", {}).items():
                whole = f'label_replace({whole}, "{label}", "{value}", "", "")'
            wholes.append(whole)
        expanded = f"({' or '.join(wholes)})"
        return _at_end(expanded) if at_end else expanded


def _at_end(promql: str) -> str:
    """``@ end()`` after every selector."""
    names = "|".join(sorted(map(re.escape, metrics_of(promql)), key=len, reverse=True))
    return re.sub(rf"(?<![\w:])((?:{names})(?![\w:])(?:\{{[^}}]*\}})?(?:\[\w+\])?)", r"\1 @ end()", promql)
