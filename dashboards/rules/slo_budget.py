"""What is left of each objective's error budget: ``slo:exaserve_error_budget_left:ratio``, 1 untouched, below 0 spent.

A group of its own, since it sums weeks: the good and total of ``slo.py`` are kept at a wider interval for it, which
loses nothing, because each is a rate over more time than lies between two samples.
"""

from __future__ import annotations

from collections.abc import Mapping

from dashboards import signals
from dashboards.rulefile import Alert, Group, Record
from dashboards.rules.slo import BAD, TOTAL, error
from dashboards.slo import Slo

#: 30 days are 21,600 samples of a series. Below the 5 minutes of a rate, and of how long a sample stays current.
INTERVAL = "2m"

BUDGET_LEFT = "slo:exaserve_error_budget_left:ratio"
#: Seconds until nothing is left if the errors of the last hour go on; absent while they are within the objective.
EXHAUSTED_IN = "slo:exaserve_error_budget_exhausted_in:seconds"
SAMPLED_BAD, SAMPLED_TOTAL = (f"{series}_sampled{INTERVAL}" for series in (BAD, TOTAL))


def group(slos: Mapping[str, Slo]) -> Group:
    rules: list[Record | Alert] = [Record(SAMPLED_TOTAL, TOTAL), Record(SAMPLED_BAD, BAD)]
    for name, slo in slos.items():
        window = f'{{slo="{name}"}}[{slo.window}d]'
        used = signals.ratio(
            f"sum_over_time({SAMPLED_BAD}{window})", f"sum_over_time({SAMPLED_TOTAL}{window})"
        )
        allowed, seconds = f"{1 - slo.objective:.10g}", slo.window * 86_400
        burning = f'({error("1h")}{{slo="{name}"}} > {allowed})'
        rules.append(Record(BUDGET_LEFT, f"1 - ({used}) / {1 - slo.objective:.10g}", {"slo": name}))
        left = f'clamp_min({BUDGET_LEFT}{{slo="{name}"}}, 0)'
        rules.append(Record(EXHAUSTED_IN, f"{left} * {seconds} * {allowed} / {burning}", {"slo": name}))
    return Group("slo_budget", tuple(rules), interval=INTERVAL)
