"""Alertmanager's configuration: routes by severity and team, grouping, inhibition, receivers.

Made for the alerts of ``rules/``; who is told is ``alerting.py``'s. Works with Alertmanager 0.25 (Debian 12) and later.
"""

from __future__ import annotations

from typing import Any

import yaml

from dashboards.alerting import NOBODY, Alerting, Receiver, Severities
from dashboards.rules import engine_alerts, nodes, replica, rotation, targets, watchdog

Data = dict[str, Any]

#: Alerts of one kind about one model come as one message.
GROUP_BY = ["cluster", "alertname", "model"]
#: Waits of a severity: before the first message of a group, before one about what was added, before it is repeated.
#: A warning waits for what may silence it: that a node is down is known a few scrapes after its replicas are.
WAITS = {
    "critical": ("10s", "1m", "1h"),
    "warning": ("1m", "5m", "4h"),
    "info": ("5m", "1h", "1d"),
}

_TITLE = (
    "[{{ .Status | toUpper }}{{ if eq .Status `firing` }} {{ .Alerts.Firing | len }}{{ end }}]"
    " {{ .CommonLabels.alertname }}{{ with .CommonLabels.model }} {{ . }}{{ end }}"
    "{{ with .CommonLabels.cluster }} ({{ . }}){{ end }}"
)
#: Alerts of a message that are written out; of thousands of replicas that go at once the rest is a number, or chats
#: and pagers refuse it for its length.
SHOWN = 10


def _message(links: str) -> str:
    """What fires, then what has ended. links: of one alert."""
    firing = (
        "{{ range $i, $alert := .Alerts.Firing }}{{ if lt $i %d }}{{ .Annotations.summary }}\n"
        "{{ .Annotations.description }}\n%s\n\n{{ end }}{{ end }}"
        "{{ if gt (len .Alerts.Firing) %d }}{{ len .Alerts.Firing }} in all; the board shows the others.\n\n{{ end }}"
    )
    ended = (
        "{{ range $i, $alert := .Alerts.Resolved }}{{ if lt $i %d }}Over: {{ .Annotations.summary }}\n{{ end }}{{ end }}"
        "{{ if gt (len .Alerts.Resolved) %d }}{{ len .Alerts.Resolved }} are over in all.\n{{ end }}"
    )
    return firing % (SHOWN, links, SHOWN) + ended % (SHOWN, SHOWN)


_SLACK = _message("<{{ .Annotations.runbook_url }}|Runbook> <{{ .Annotations.dashboard_url }}|Board>")
_MAIL = _message("Runbook: {{ .Annotations.runbook_url }}\nBoard: {{ .Annotations.dashboard_url }}")

#: About one replica, and explained by what befell all of them or its node.
_REPLICA_ALERTS = "|".join(
    (replica.ALERT, rotation.EJECTED, rotation.FROZEN, engine_alerts.STALLED, engine_alerts.ERRORS, "ExaServeReplicaSlow")
)  # fmt: skip
#: What an exporter measures of its node.
_NODE_ALERTS = (
    "ExaServe(Fabric|GPU|Storage|Peer|Path|Exporter|Discovery|ReplicaWrongNode|ReplicaMemory|ReplicaFiles).*"
)


def config(alerting: Alerting) -> str:
    """alertmanager.yml, the same text for the same options."""
    data: Data = {
        "global": {"resolve_timeout": "5m", **_smtp(alerting)},
        "route": _routes(alerting),
        "inhibit_rules": inhibitions(),
        "receivers": [
            {"name": NOBODY},
            *(_receiver(name, of, name == alerting.watchdog) for name, of in alerting.receivers.items()),
        ],
    }
    head = "# Written by `exaserve alerts config`; change the options, or dashboards/alertmanager.py.\n"
    return head + yaml.safe_dump(data, sort_keys=False, width=110, allow_unicode=True)


def inhibitions() -> list[Data]:
    """Which alert silences which. A label that both lack counts as equal."""
    below = 'severity=~"warning|info"'

    def rule(source: list[str], target: list[str], *equal: str) -> Data:
        return {"source_matchers": source, "target_matchers": target, "equal": ["cluster", *equal]}

    def of(names: str) -> str:
        return f'alertname=~"{names}"' if "|" in names or "." in names else f'alertname="{names}"'

    not_itself = f'alertname!~"{nodes.DOWN}|{nodes.ON_DOWN}"'
    return [
        # A node that is down: all about the node, and all about its replicas.
        rule([of(nodes.DOWN)], [below, not_itself], "instance"),
        rule([of(nodes.ON_DOWN)], [below, not_itself], "replica"),
        # All of a model's replicas are out (panic or not): each of them says nothing new. Nor does panic, which knows
        # its pool and not its model; whoever is paged already sees both on the board.
        rule([of(rotation.OUT), 'condition="model"'], [of(f"{_REPLICA_ALERTS}|{rotation.MANY}")], "model"),
        rule([of(rotation.OUT), 'condition="model"'], [of(rotation.PANIC)]),
        rule([of(rotation.MANY)], [of(rotation.EJECTED)], "model"),
        # The same, told with more urgency.
        rule(
            ['severity="critical"'],
            ['severity="warning"'],
            *("alertname", "model", "pool", "instance", "slo"),
        ),
        # What can't be read any more is not worth what it said last.
        rule([of(targets.MISSING), 'condition="exporter"'], [below, of(_NODE_ALERTS)], "instance"),
        # Why a replica is out, and what follows from its being out.
        rule([of(rotation.FROZEN)], [of(replica.ALERT)], "replica"),
        rule([of(replica.ALERT)], [of(f"{engine_alerts.STALLED}|{engine_alerts.STORM}|ExaServeReplicaSlow")], "replica"),
    ]  # fmt: skip


def _routes(alerting: Alerting) -> Data:
    first = [
        {
            "matchers": [f'alertname="{watchdog.ALERT}"'],
            "receiver": alerting.watchdog or NOBODY,
            **_waits("0s", "1m", "1m"),
        },
        {"matchers": [f'alertname="{nodes.ON_DOWN}"'], "receiver": NOBODY},
    ]
    teams = [
        {"matchers": [f'team="{team}"', f'severity="{severity}"'], "receiver": name, **_waits(*WAITS[severity])}
        for team, of in alerting.teams.items()
        for severity, name in _severities(of)
    ]  # fmt: skip
    rest = [
        {"matchers": [f'severity="{severity}"'], "receiver": name or NOBODY, **_waits(*WAITS[severity])}
        for severity, name in alerting.routes
    ]
    return {
        "receiver": NOBODY,
        "group_by": GROUP_BY,
        **_waits(*WAITS["warning"]),
        "routes": [*first, *teams, *rest],
    }


def _severities(of: Severities) -> list[tuple[str, str]]:
    return [(severity, name) for severity, name in of if name is not None]


def _waits(first: str, more: str, again: str) -> Data:
    return {"group_wait": first, "group_interval": more, "repeat_interval": again}


def _smtp(alerting: Alerting) -> Data:
    smtp = alerting.smtp
    if smtp is None:
        return {}
    found = {
        "smtp_smarthost": smtp.smarthost,
        "smtp_from": smtp.sender,
        "smtp_auth_username": smtp.username,
        "smtp_auth_password_file": smtp.password_file,
        "smtp_require_tls": smtp.require_tls,
    }
    return {key: value for key, value in found.items() if value is not None}


def _receiver(name: str, of: Receiver, dead_man: bool) -> Data:
    """A dead man's switch is not told that the alert has ended: that it hears nothing is the message."""
    resolved = {"send_resolved": not dead_man}
    found: Data = {"name": name}
    webhooks = []
    for webhook in of.webhook:
        entry: Data = {"url": webhook.url} if webhook.url is not None else {"url_file": webhook.url_file}
        if webhook.token_file is not None:
            entry["http_config"] = {"authorization": {"credentials_file": webhook.token_file}}
        webhooks.append(entry | resolved)
    mails = [
        {"to": mail.to, "headers": {"subject": _TITLE}, "text": _MAIL, "html": ""} | resolved
        for mail in of.email
    ]
    pages = [
        {
            "routing_key_file": page.routing_key_file,
            "description": _TITLE,
            "severity": "{{ if .CommonLabels.severity }}{{ .CommonLabels.severity }}{{ else }}warning{{ end }}",
            "details": {"alerts": _MAIL},
        }
        | resolved
        for page in of.pagerduty
    ]
    chats = [
        {"api_url_file": slack.api_url_file, "channel": slack.channel, "title": _TITLE, "text": _SLACK}
        | resolved
        for slack in of.slack
    ]
    kinds = {"webhook": webhooks, "email": mails, "pagerduty": pages, "slack": chats}
    return found | {f"{kind}_configs": entries for kind, entries in kinds.items() if entries}
