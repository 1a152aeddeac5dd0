"""How far the mix of intents has moved from a saved reference (exporter, intent drift collector).

The headline is the Jensen-Shannon distance; whether it is more than noise is decided by PSI against a
threshold that grows as samples get fewer. What is in it::

    exaserve_intent_drift_distance_ratio                      0: the same mix, 1: nothing in common
    exaserve_intent_drift_psi / exaserve_intent_drift_psi_threshold    above 1: more than chance explains
    exaserve_intent_drift_share_ratio - on (intent) exaserve_intent_drift_reference_share_ratio    what grew
"""

from __future__ import annotations

from exporters.catalog.metric import Metric

_SOURCE = "exporter, intent drift collector: exaserve_router_classifications_total"
_FILE = "exporter, intent drift collector: the file of `exaserve intent reference save`"

METRICS = (
    Metric(
        "exaserve_intent_drift_distance_ratio",
        "gauge",
        "Jensen-Shannon distance (base 2) of the window from the reference; absent below 200 samples.",
        unit="ratio",
        source=_SOURCE,
    ),
    Metric(
        "exaserve_intent_drift_psi",
        "gauge",
        "Population stability index of the window against the reference; absent below 200 samples.",
        source=_SOURCE,
    ),
    Metric(
        "exaserve_intent_drift_psi_threshold",
        "gauge",
        "PSI above which the mix has shifted: 0.25, or what chance reaches in 1 of 20 windows if more.",
        source=_SOURCE,
    ),
    Metric(
        "exaserve_intent_drift_shifted",
        "gauge",
        "1 if PSI is above its threshold in this window and in the one before it, else 0; absent if unknown.",
        source=_SOURCE,
    ),
    Metric(
        "exaserve_intent_drift_window_samples",
        "gauge",
        "Requests with an intent in the window.",
        source=_SOURCE,
    ),
    Metric(
        "exaserve_intent_drift_window_seconds",
        "gauge",
        "Time that the window covers; shorter than configured until the exporter has run that long.",
        unit="seconds",
        source=_SOURCE,
    ),
    Metric(
        "exaserve_intent_drift_share_ratio",
        "gauge",
        "Share of the window's requests, by intent.",
        ("intent",),
        "ratio",
        _SOURCE,
    ),
    Metric(
        "exaserve_intent_drift_reference_samples",
        "gauge",
        "Requests that the reference was counted from.",
        source=_FILE,
    ),
    Metric(
        "exaserve_intent_drift_reference_share_ratio",
        "gauge",
        "Share of the reference's requests, by intent.",
        ("intent",),
        "ratio",
        _FILE,
    ),
    Metric(
        "exaserve_intent_drift_reference_timestamp_seconds",
        "gauge",
        "Unix time of the last request in the reference.",
        unit="seconds",
        source=_FILE,
    ),
)
