"""The alert that always fires, ExaServeWatchdog: whoever receives it must miss it when it stops.

It goes the whole way: rules are evaluated, Alertmanager is reached, it reaches the outside. Alertmanager sends it to a
receiver of its own, a dead man's switch (``alertmanager.py``).
"""

from __future__ import annotations

from dashboards.rulefile import Alert, Group

ALERT = "ExaServeWatchdog"


def group() -> Group:
    return Group(
        "watchdog",
        (
            Alert(
                ALERT,
                "vector(1)",
                "info",
                summary="Alerting works (always {{ $value }})",
                description="""
                    It fires all the time and is no problem. If it stops arriving, no other alert arrives either: look at
                    Prometheus and Alertmanager.
                    """,
            ),
        ),
        team="platform",
    )
