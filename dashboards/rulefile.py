"""What a Prometheus rule file is made of, and how it is written.

The rules themselves are in ``dashboards/rules/``, one subject a file; ``build.py`` writes them. Rules of a group
are evaluated one after the other, so an alert may ask for what its group has just recorded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from textwrap import dedent
from typing import Any, Literal, get_args

import yaml

#: A killed local replica is back within 15 s; a slower evaluation would not see that it was gone.
INTERVAL = "5s"


#: Who is told: those who run router and replicas, machines and monitoring, the fabric, the storage. Receivers are
#: chosen by it (``alertmanager.py``).
Team = Literal["serving", "platform", "network", "storage"]
TEAMS: tuple[Team, ...] = get_args(Team)

#: ``variables`` of an alert about what one exporter says: the Fabric board is then about that node.
NODE = {"node": "{{ $labels.instance }}"}


@dataclass(frozen=True, slots=True)
class Links:
    """Where the pages are that alerts and panels lead to. Bases end without a slash.

    runbooks: folder or address of the runbooks; the default is their path in the repository.
    grafana: address of Grafana, "" for links that are relative to it.
    """

    runbooks: str = "runbooks"
    grafana: str = ""

    def runbook(self, alert: str) -> str:
        return f"{self.runbooks}/{alert}.md"

    def dashboard(self, board: str, **variables: str) -> str:
        """The board's address; variables are preset (``replica="…"`` becomes ``var-replica=…``)."""
        query = "&".join(f"var-{name}={value}" for name, value in variables.items())
        return f"{self.grafana}/d/exaserve-{board}" + (f"?{query}" if query else "")


@dataclass(frozen=True, slots=True)
class Record:
    """A recording rule. name: level:metric:operation, the level being the labels that are left."""

    name: str
    expr: str
    labels: Mapping[str, str] = field(default_factory=dict)

    def to_data(self, links: Links) -> dict[str, Any]:
        rule: dict[str, Any] = {"record": self.name, "expr": _text(self.expr)}
        return rule | {"labels": dict(self.labels)} if self.labels else rule


@dataclass(frozen=True, slots=True)
class Alert:
    """An alerting rule; its runbook is ``runbooks/<name>.md``.

    summary: one line with the value. description: what to do first. board and variables: the dashboard that it
    leads to, variables being templates over the alert's labels. team: who is told, if others than its group's.
    """

    name: str
    expr: str
    severity: Literal["critical", "warning", "info"]
    summary: str
    description: str
    wait: str = "0s"
    keep_firing: str = "0s"
    board: str = "fleet"
    variables: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    team: Team | None = None

    def to_data(self, links: Links, team: Team = "serving") -> dict[str, Any]:
        return {
            "alert": self.name,
            "expr": _text(self.expr),
            "for": self.wait,
            "keep_firing_for": self.keep_firing,
            "labels": {"severity": self.severity, "team": self.team or team, **self.labels},
            "annotations": {
                "summary": self.summary,
                "description": _text(self.description),
                "runbook_url": links.runbook(self.name),
                "dashboard_url": links.dashboard(self.board, **self.variables) + self._cluster(),
            },
        }

    def _cluster(self) -> str:
        """Presets the board's cluster where the alert has one: nodes and replicas of several may have one name."""
        return f"{{{{ with $labels.cluster }}}}{'&' if self.variables else '?'}var-cluster={{{{ . }}}}{{{{ end }}}}"


@dataclass(frozen=True, slots=True)
class Group:
    """The rules of one file, in the order in which Prometheus evaluates them. team: who its alerts are for."""

    name: str
    rules: tuple[Record | Alert, ...]
    interval: str = INTERVAL
    team: Team = "serving"

    def to_yaml(self, links: Links) -> str:
        """The rule file, the same text for the same rules."""
        group = {
            "name": f"exaserve-{self.name}",
            "interval": self.interval,
            "rules": [
                rule.to_data(links, self.team) if isinstance(rule, Alert) else rule.to_data(links)
                for rule in self.rules
            ],
        }
        head = f"# Written by `exaserve dashboards build` from dashboards/rules/{self.name}.py; change it there.\n"
        return head + yaml.dump({"groups": [group]}, Dumper=_Dumper, sort_keys=False, width=1000)


class _Dumper(yaml.SafeDumper):
    """Long expressions as blocks, so that people can read the file."""


def _as_block(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _as_block)


def _text(indented: str) -> str:
    return dedent(indented).strip()
