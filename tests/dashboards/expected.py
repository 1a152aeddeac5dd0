"""What a promtool unit test may leave out of an expected alert, because it follows from the alert's rule.

The label ``team``, annotations without a template, and the cluster in a link. Cases say what differs: labels of the series, values in texts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

Data = dict[str, Any]
#: How a link names the cluster (``rulefile.Alert``).
_CLUSTER = re.compile(r"{{ with \$labels\.cluster }}([?&]var-cluster=){{ \. }}{{ end }}")


def complete(test: Data, rules: Iterable[Data]) -> None:
    """Fill in what ``test`` leaves out, from ``rules``: those of the files that it names."""
    alerts = [rule for rule in rules if "alert" in rule]
    for check in test.get("alert_rule_test", ()):
        for expected in check.get("exp_alerts") or ():
            rule = _rule(alerts, check["alertname"], expected["exp_labels"])
            texts = {name: _with_cluster(text, expected) for name, text in rule["annotations"].items()}
            fixed = {name: text for name, text in texts.items() if "{{" not in text}
            expected["exp_labels"] = {"team": rule["labels"]["team"], **expected["exp_labels"]}
            expected["exp_annotations"] = {**fixed, **expected["exp_annotations"]}


def _with_cluster(text: str, expected: Data) -> str:
    """``text`` with the part of a link that names the alert's cluster, if it has one."""
    cluster = expected["exp_labels"].get("cluster")
    return _CLUSTER.sub(rf"\1{cluster}" if cluster else "", text)


def _rule(alerts: list[Data], name: str, labels: dict[str, str]) -> Data:
    """The rule of that name whose own labels are among ``labels``. Raises LookupError."""
    for rule in alerts:
        own = {(label, value) for label, value in rule["labels"].items() if label != "team"}
        if rule["alert"] == name and own <= set(labels.items()):
            return rule
    raise LookupError(f"no rule of {name} has labels that are among {labels}")
