"""The exporter about itself."""

from __future__ import annotations

from exporters.catalog.metric import Metric

METRICS = (
    Metric(
        "exaserve_exporter_build_info",
        "gauge",
        "Constant 1; the version is a label.",
        ("version",),
        source="exporter",
    ),
    Metric(
        "exaserve_exporter_collector_success",
        "gauge",
        "1 if the collector did its work at this scrape, 0 if it broke; absent if there is nothing of its kind here.",
        ("collector",),
        source="exporter",
    ),
    Metric(
        "exaserve_exporter_collector_duration_seconds",
        "gauge",
        "How long the collector took at this scrape.",
        ("collector",),
        "seconds",
        "exporter",
    ),
    Metric(
        "exaserve_exporter_collector_last_success_timestamp_seconds",
        "gauge",
        "Unix time at which the collector last did its work; absent until it has, and while there is nothing of its kind.",
        ("collector",),
        "seconds",
        "exporter",
    ),
)
