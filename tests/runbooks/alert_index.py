"""The table of alerts in runbooks/README.md: ``python tests/runbooks/alert_index.py`` writes it anew.

Each row is an alert of any source's rules, its severities, and the first sentence of its runbook.
"""

from __future__ import annotations

import re
import sys
from typing import Any

from runbook_text import ROOT, RUNBOOKS

sys.path.insert(0, str(ROOT / "tests" / "dashboards"))

from queries import FOLDERS, rules

INDEX = ROOT / "runbooks" / "README.md"
_HEAD = "| alert | severity | what has happened |\n|---|---|---|\n"
_ROW = re.compile(r"^\| \[ExaServe.*\n", re.M)


def alert_rules() -> list[dict[str, Any]]:
    """Every alerting rule of every source that is generated."""
    return [rule for folder in FOLDERS.values() for rule in rules(folder) if "alert" in rule]


def about(name: str) -> str:
    """What stands below a runbook's title, on one line; "no runbook" where there is none."""
    if name not in RUNBOOKS:
        return "no runbook"
    return " ".join(RUNBOOKS[name].read_text().split("\n\n")[1].split())


def table() -> str:
    severities: dict[str, set[str]] = {}
    for rule in alert_rules():
        severities.setdefault(rule["alert"], set()).add(rule["labels"]["severity"])
    rows = (
        f"| [{a}]({a}.md) | {', '.join(sorted(s))} | {about(a)} |\n" for a, s in sorted(severities.items())
    )
    return _HEAD + "".join(rows)


def written() -> str:
    """The table that the index has now."""
    return _HEAD + "".join(_ROW.findall(INDEX.read_text()))


if __name__ == "__main__":
    before, _, after = INDEX.read_text().partition(_HEAD)
    INDEX.write_text(before + table() + _ROW.sub("", after))
