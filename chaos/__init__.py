"""ExaServe's extension of the Chaos Toolkit: faults on replicas, probes of the fleet, experiments.

    chaos run chaos/experiments/replica-crash.yaml
    chaos discover --no-install exaserve

``actions.py`` and ``probes.py`` are what experiments name; ``faults/`` holds one fault a file. Nothing here
imports another part of ExaServe but the metric catalogue: a fleet is reached through the router's admin API,
Prometheus and Alertmanager. Without ``--no-install`` the Chaos Toolkit would have pip fetch the package
first.
"""

from __future__ import annotations

from typing import Any


def discover(discover_system: bool = True) -> dict[str, Any]:
    """What ``chaos discover`` asks for: every action and probe with its arguments. ``system`` stays None."""
    from importlib.metadata import PackageNotFoundError, version

    from chaoslib.discovery.discover import discover_actions, discover_probes, initialize_discovery_result

    try:
        release = version("exaserve")
    except PackageNotFoundError:
        release = "unknown"
    result: dict[str, Any] = initialize_discovery_result("exaserve", release, "exaserve")
    result["activities"] = [*discover_actions("chaos.actions"), *discover_probes("chaos.probes")]
    return result
