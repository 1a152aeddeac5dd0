"""vLLM under Ray (Ray Serve LLM with engine metrics on): Ray's prefix ``ray_vllm_``, replicas by Ray's ReplicaId.

The node's metrics agent is the target, so ``up`` says nothing of a replica: one is up while its engine's series are
there. Ray gives a replacement another id, and takes replicas away when there is little to do, after their last
request; so one is down that vanished within the last 15 minutes with requests in it, until its model has as many
replicas as before.
"""

from __future__ import annotations

from dashboards.signals import KV_REPLICAS
from dashboards.sources import _engine

NAMES = _engine.EngineNames("ray_vllm_", "ReplicaId", bare_counters=True)


def _up() -> str:
    running = NAMES.name("num_requests_running")
    here = NAMES.by_replica(f"{running} * 0 + 1")
    at_work = NAMES.by_replica(f"last_over_time({running}[15m])")
    return f"""
        group by (cluster, model, replica) ({here})
        or
        (
          sum by (cluster, model, replica) ({at_work}) > 0
          unless on (cluster, model)
          {KV_REPLICAS} >= max_over_time({KV_REPLICAS}[15m])
        ) * 0
        """


SOURCE = _engine.source("ray", "vLLM under Ray", NAMES, _up())
