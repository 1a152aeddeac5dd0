"""Faults that an experiment put in, and how the fleet recovered; declared here, exported by ``chaos/`` while it runs.

All times of a figure count from the moment of injection. ``experiment`` is the file's name, ``run`` one execution of
it, ``fault`` the fault's file in ``chaos/faults/``, ``target`` what it was done to (a replica, node, link or mount by
its configured name). A figure is absent until it is known, and stays absent if it never came::

    exaserve_chaos_fault_active == 1                                          which faults are in now
    exaserve_chaos_reroute_seconds > on (experiment, run) group_left ()
      exaserve_chaos_goal_seconds{figure="reroute"}                           too slow

A run ends and its series with it; ask with ``last_over_time`` over the time that is wanted.
"""

from __future__ import annotations

from exporters.catalog.metric import Kind, Metric

#: Values of ``figure`` of the goals, in the order in which they come true.
FIGURES = ("detection", "reroute", "slo_recovery", "capacity_recovery")
#: States of a run; a run that was unhealthy before the fault, or whose fault could not be proven, is ``void``.
STATES = ("running", "passed", "failed", "void")

_RUN = ("experiment", "run")
_FAULT = ("experiment", "run", "fault", "target")
_SOURCE = "chaos (chaos/)"


def _metric(
    name: str,
    help: str,
    labels: tuple[str, ...] = _FAULT,
    unit: str = "",
    source: str = _SOURCE,
    kind: Kind = "gauge",
) -> Metric:
    return Metric(f"exaserve_chaos_{name}", kind, help, labels, unit, source)


METRICS = (
    _metric(
        "run_state",
        "1 for the state that the run is in, 0 for the others.",
        ("experiment", "run", "state"),
        source=f"{_SOURCE}; state: {', '.join(STATES)}",
    ),
    _metric(
        "fault_active",
        "1 while the fault is in, by its own proof; 0 before and after.",
        source=f"{_SOURCE}: the fault's probe, not that its command returned",
    ),
    _metric(
        "fault_injected_timestamp_seconds",
        "Unix time of the injection; the figures count from here.",
        unit="seconds",
    ),
    _metric(
        "undo_pending",
        "Undo records of the run that have not been carried out; above 0 after a run something is left behind.",
        _RUN,
        source=f"{_SOURCE}: records are written before a fault is injected",
    ),
    _metric(
        "detection_seconds",
        "Until the first sign: a replica's state changed in the router, or an alert began to fire.",
        unit="seconds",
        source=f"{_SOURCE}: router's and Alertmanager's own times",
    ),
    _metric(
        "reroute_seconds",
        "Until the last request was sent to the victim.",
        unit="seconds",
        source=f"{_SOURCE}: the load's own records",
    ),
    _metric(
        "slo_recovery_seconds",
        "Until the beginning of the first of three windows in a row that meet the objective again; 0 if it was"
        " never missed.",
        unit="seconds",
        source=f"{_SOURCE}: the load's own records",
    ),
    _metric(
        "capacity_recovery_seconds",
        "Until throughput is at 95 % of what it was before.",
        unit="seconds",
        source=f"{_SOURCE}: the load's own records",
    ),
    _metric(
        "goal_seconds",
        "What the experiment allows for a figure.",
        ("experiment", "run", "figure"),
        "seconds",
        f"{_SOURCE}: the experiment's file; figure: {', '.join(FIGURES)}",
    ),
    _metric(
        "resolution_seconds",
        "How exact the figures of the run are: the longest of its windows and probe intervals.",
        _RUN,
        "seconds",
    ),
    _metric(
        "lost_requests_total",
        "Requests of the load that failed before anything of their answer had come.",
        _RUN,
        source=f"{_SOURCE}: the load's own records",
        kind="counter",
    ),
    _metric(
        "cut_streams_total",
        "Answers that broke off after they had begun.",
        _RUN,
        source=f"{_SOURCE}: the load's own records",
        kind="counter",
    ),
    _metric(
        "recomputed_tokens_total",
        "Prompt tokens that were computed once more because their request was sent again.",
        _RUN,
        source=f"{_SOURCE}: the load's own records",
        kind="counter",
    ),
)
