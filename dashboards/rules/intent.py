"""Intent drift: the mix of what users ask about against a saved reference, and the alert ExaServeIntentDrift.

The exporter compares and judges (two windows in a row over a threshold that knows how few the samples are);
nothing of that is repeated here. A verdict counts until the next one, for at most VERDICT, so that an
exporter which restarts (and has no verdict for two windows) resolves nothing. It warns and never pages: a mix
that moved harms nobody by itself."""

from __future__ import annotations

from dashboards.rulefile import Alert, Group, Record

DISTANCE = "fleet:exaserve_intent_drift_distance:max"
SHIFTED = "fleet:exaserve_intent_drift_shifted:max"
ALERT = "ExaServeIntentDrift"

#: Two windows of the default length and 10 minutes.
VERDICT = "70m"


def group() -> Group:
    return Group(
        "intent",
        (
            # Several exporters may watch one router; they see the same.
            Record(
                DISTANCE,
                f"max by (cluster) (last_over_time(exaserve_intent_drift_distance_ratio[{VERDICT}]))",
            ),
            Record(SHIFTED, f"max by (cluster) (last_over_time(exaserve_intent_drift_shifted[{VERDICT}]))"),
            Alert(
                ALERT,
                f"{DISTANCE} and on (cluster) {SHIFTED} == 1",
                "warning",
                board="intent",
                summary='The mix of intents is {{ printf "%.2f" $value }} away from the reference'
                " (0: the same, 1: nothing in common)",
                description="""
                    Requests are about other things than when the reference was saved, for two windows now.
                    Compare the shares of each intent with the reference: a new client, a changed classifier
                    or a real change in what users want. Save a new reference once the new mix is normal.
                    """,
                wait="5m",
                keep_firing="5m",
            ),
        ),
    )
