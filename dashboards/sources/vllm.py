"""Plain vLLM servers (0.11 or later), scraped by their own pages: no router, no exporter of ExaServe needed.

Replicas go by ``instance``. Whether one is up is what its target says (``up`` of the jobs named in UP_JOBS). A target
that is down says no model; the record itself remembers the one that it had, for as long as the target is scraped.
"""

from __future__ import annotations

from dashboards.signals import UP
from dashboards.sources import _engine

NAMES = _engine.EngineNames("vllm:", "instance")
#: Jobs whose targets are vLLM servers.
UP_JOBS = ".*vllm.*"


def _up() -> str:
    serving = NAMES.by_replica(
        f"max by (cluster, instance, model_name) ({NAMES.name('num_requests_running')} * 0 + 1)"
    )
    return f"""
        min by (cluster, model, replica) (
          {_TARGET}
          * on (cluster, replica) group_right ()
          (
            group by (cluster, model, replica) ({serving})
            or on (cluster, replica)
            group by (cluster, model, replica) ({UP})
          )
        )
        or on (cluster, replica)
        {_TARGET} == 0
        """


_TARGET = f"""max by (cluster, replica) (
            label_replace(up{{job=~"{UP_JOBS}"}}, "replica", "$1", "instance", "(.*)")
          )"""

SOURCE = _engine.source("vllm", "plain vLLM servers", NAMES, _up())
