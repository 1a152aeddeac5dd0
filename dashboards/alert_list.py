"""The alerts that there are, read from the generated rules: for ``exaserve alerts list`` and ``alerts test``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dashboards import build
from dashboards.rulefile import Alert, Links
from dashboards.slo import DEFAULT, Slo
from dashboards.sources import SOURCES

#: Most urgent first.
SEVERITIES = ("critical", "warning", "info")


@dataclass(frozen=True, slots=True)
class Rule:
    """One alerting rule, with its templates as they stand. An alert may have several, of different severity."""

    name: str
    severity: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    wait: str
    file: str


def rules(
    source: str = build.FIRST, links: Links | None = None, slos: Mapping[str, Slo] = DEFAULT
) -> list[Rule]:
    """Every alerting rule of a source, by name, the most urgent of a name first. Raises KeyError: no such source."""
    links = links or Links()
    found = [
        _rule(rule.to_data(links), file)
        for file, group in build.groups(SOURCES[source], slos).items()
        for rule in group.rules
        if isinstance(rule, Alert)
    ]
    return sorted(found, key=lambda rule: (rule.name, _urgency(rule.severity)))


def _rule(data: dict[str, Any], file: str) -> Rule:
    labels, annotations = data["labels"], data["annotations"]
    return Rule(str(data["alert"]), labels["severity"], labels, annotations, str(data["for"]), file)


def _urgency(severity: str) -> int:
    return SEVERITIES.index(severity) if severity in SEVERITIES else len(SEVERITIES)
