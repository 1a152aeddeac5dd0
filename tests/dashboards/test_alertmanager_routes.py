"""Which routes take an alert and how long they wait; amtool is asked for the same."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from dashboards.alertmanager_routes import routes

#: A routing tree, and labels -> (receiver, wait). amtool agrees below.
TREE = """
route:
  receiver: top
  group_wait: 1m
  routes:
    - matchers: ['severity="critical"', 'team=~"serving|gpu"']
      receiver: page
      group_wait: 1m30s
      continue: true
    - match: {severity: critical}
      receiver: room
      routes:
        - match_re: {team: "net.*"}
          receiver: network
    - matchers: ['a!="b"', 'severity!~"critical|info"']
      receiver: rest
      mute_time_intervals: [nights]
receivers: [{name: top}, {name: page}, {name: room}, {name: network}, {name: rest}]
mute_time_intervals: [{name: nights, time_intervals: [{times: [{start_time: "22:00", end_time: "24:00"}]}]}]
"""


@pytest.mark.parametrize(
    ("labels", "ends"),
    [
        ({"severity": "critical", "team": "gpu"}, [("page", 90), ("room", 60)]),
        ({"severity": "critical", "team": "network"}, [("network", 60)]),
        ({"severity": "critical", "team": "gpus"}, [("room", 60)]),
        ({"severity": "warning"}, [("rest", 60)]),
        ({"severity": "warning", "a": "b"}, [("top", 60)]),
        ({"severity": "info"}, [("top", 60)]),
    ],
)
def test_routes_and_their_waits_are_those_of_alertmanager(
    tmp_path: Path, labels: dict[str, str], ends: list[tuple[str, float]]
) -> None:
    assert [(each.receiver, each.wait) for each in routes(yaml.safe_load(TREE), labels)] == ends
    if shutil.which("amtool"):
        (tmp_path / "am.yml").write_text(TREE)
        argv = ["amtool", "config", "routes", "test", f"--config.file={tmp_path}/am.yml"]
        told = subprocess.run(
            [*argv, *(f"{k}={v}" for k, v in labels.items())], capture_output=True, text=True
        )
        assert told.stdout.strip() == ",".join(receiver for receiver, _ in ends)
