"""``exaserve alerts list`` and ``exaserve alerts test``: their command line, put into the group by ``alerts_cli.py``.

The work is in ``alert_list.py`` and ``drill.py``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from dashboards.usage_error import usage

if TYPE_CHECKING:
    from dashboards.alert_list import Rule

_SOURCE = Annotated[str, typer.Option(metavar="NAME", help="What the fleet is: exaserve, vllm or ray.")]

LIST_EPILOG = """
\b
Examples:
  exaserve alerts list                        every alert: severity, what its summary says
  exaserve alerts list --severity critical    those that wake somebody
  exaserve alerts list --json                 for programs, with labels and annotations
  exaserve runbook ExaServeReplicaDown        what to do
"""

TEST_EPILOG = """
\b
Examples:
  exaserve alerts test ExaServeReplicaDown --alertmanager http://alertmanager:9093
  exaserve alerts test ExaServeReplicaDown --prometheus http://prometheus:9090     its Alertmanagers, its own rule
  exaserve alerts test ExaServeKVPressure --label cluster=prod                     as the routes of prod take it

\b
It is real: whoever is on call is told, with "[TEST]" before the summary and the label test="true" (a route can send
those elsewhere). Labels are made up (replica="test-replica"), unless you set them.
Arrived means: every integration of the receivers has sent something since the route's wait was over. Alertmanager
counts what it sends but not for which alert, so on a busy one ask the receiver too.
Exit code: 0 arrived, 1 not (held back, not sent, no Alertmanager), 2 wrong usage, such as no alert of that name.
"""


def list_(
    severity: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only critical, warning or info.")
    ] = None,
    source: _SOURCE = "exaserve",
    json_: Annotated[bool, typer.Option("--json", help="Everything, for programs.")] = False,
) -> None:
    """Show every alert: its name, how urgent it is, what it says. Its runbook: exaserve runbook NAME."""
    from dashboards.alert_list import SEVERITIES, rules

    _known_source("list", source)
    if severity is not None and severity not in SEVERITIES:
        raise usage("alerts list", f"--severity: {severity!r} is none of {', '.join(SEVERITIES)}")
    found = [rule for rule in rules(source) if severity in (None, rule.severity)]
    if json_:
        keys = ("name", "severity", "wait", "file")
        data = [
            {key: getattr(rule, key) for key in keys}
            | {"labels": dict(rule.labels), "annotations": dict(rule.annotations)}
            for rule in found
        ]
        typer.echo(json.dumps(data, indent=1))
        return
    rows = list(dict.fromkeys((rule.name, rule.severity, rule.annotations["summary"]) for rule in found))
    width = max((len(name) for name, _, _ in rows), default=0)
    for name, urgency, summary in rows:
        typer.echo(f"{urgency:<8}  {name:<{width}}  {summary}")
    typer.echo(f"{len({name for name, _, _ in rows})} alerts; what to do: exaserve runbook NAME")


def try_out(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The alert; exaserve alerts list names them.")],
    alertmanager: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL",
            help="Where to post it; repeatable. Default: Prometheus', else http://127.0.0.1:9093.",
        ),
    ] = None,
    prometheus: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Take the rule, external labels and Alertmanagers of this Prometheus."
        ),
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Set a label; KEY= leaves it out. Repeatable."),
    ] = None,
    severity: Annotated[
        str | None, typer.Option(metavar="NAME", help="Which, if it has several. Default: the most urgent.")
    ] = None,
    value: Annotated[float | None, typer.Option(help="The value that its summary shows.")] = None,
    wait: Annotated[
        float | None,
        typer.Option(min=1, max=3600, help="Seconds to wait. Default: the route's group_wait and 30 s more."),
    ] = None,
    source: _SOURCE = "exaserve",
    runbooks: Annotated[
        str, typer.Option(metavar="BASE", help="Address of the runbooks, as in dashboards build.")
    ] = "runbooks",
    grafana: Annotated[
        str, typer.Option(metavar="BASE", help="Address of Grafana, as in dashboards build.")
    ] = "",
) -> None:
    """Make one alert fire, end to end: post it to Alertmanager, see who is told, resolve it."""
    from dashboards import prometheus_api
    from dashboards.alertmanager_api import Alertmanager, AlertmanagerError
    from dashboards.drill import drill, run
    from dashboards.rulefile import Links

    _known_source("test", source)
    given = {}
    for text in label or []:
        key, equals, of = text.partition("=")
        if not (equals and key.isidentifier()):
            raise usage("alerts test", f"--label: {text}: give KEY=VALUE, like replica=replica-3")
        given[key] = of
    rule = _chosen(name, severity, source, Links(runbooks.rstrip("/"), grafana.rstrip("/")))
    addresses = alertmanager or []
    try:
        if prometheus:
            rule = _loaded(prometheus, rule)
            addresses = addresses or prometheus_api.alertmanagers(prometheus)
            if not addresses:
                raise prometheus_api.PrometheusError(
                    "Prometheus knows no Alertmanager: its alerts go nowhere"
                )
        alert = drill(rule, given, value)
        _tell_alert(alert.labels, alert.annotations)
        arrived = []
        for url in addresses or ["http://127.0.0.1:9093"]:
            with Alertmanager(url) as posted:
                arrived.append(run(posted, alert, wait, _tell))
    except (AlertmanagerError, prometheus_api.PrometheusError) as error:
        typer.echo(f"{error}", err=True)
        raise typer.Exit(1) from None
    typer.echo("arrived" if all(arrived) else "did not arrive")
    if not all(arrived):
        raise typer.Exit(1)


def _tell_alert(labels: Mapping[str, str], annotations: Mapping[str, str]) -> None:
    _tell("labels", ", ".join(f"{key}={of}" for key, of in sorted(labels.items())))
    options = {"runbook_url": "--runbooks", "dashboard_url": "--grafana"}
    for key, text in annotations.items():
        hint = f"   (no address; give {options[key]})" if key in options and "://" not in text else ""
        _tell(key.removesuffix("_url"), f"{text}{hint}")


def _chosen(name: str, severity: str | None, source: str, links: object) -> Rule:
    """The rule of that name, the most urgent one unless ``severity`` says which."""
    from dashboards.alert_list import rules
    from dashboards.rulefile import Links
    from dashboards.runbooks import near

    assert isinstance(links, Links)
    all_rules = rules(source, links)
    of_name = [rule for rule in all_rules if rule.name == name]
    if not of_name:
        meant = near(name, sorted({rule.name for rule in all_rules}))
        hint = f"did you mean {' or '.join(meant)}?" if meant else "exaserve alerts list names them"
        raise usage("alerts test", f"no alert {name} for {source}; {hint}")
    chosen = [rule for rule in of_name if severity in (None, rule.severity)]
    if not chosen:
        there = ", ".join(sorted({rule.severity for rule in of_name}))
        raise usage("alerts test", f"--severity: {name} has only {there}")
    return chosen[0]


def _loaded(prometheus: str, rule: Rule) -> Rule:
    """The same rule as that Prometheus has it. Raises PrometheusError."""
    from dashboards import prometheus_api

    found = prometheus_api.rules(prometheus, rule.name)
    same = [each for each in found if each.severity == rule.severity]
    if not same:
        raise prometheus_api.PrometheusError(f"Prometheus has no rule {rule.name} ({rule.severity}) loaded")
    return same[0]


def _tell(what: str, text: str) -> None:
    typer.echo(f"{what:<12}{' '.join(text.split())}")


def _known_source(command: str, source: str) -> None:
    from dashboards.sources import SOURCES

    if source not in SOURCES:
        raise usage(f"alerts {command}", f"--source: {source!r} is none of {', '.join(SOURCES)}")
