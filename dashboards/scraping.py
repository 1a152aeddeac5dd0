"""What a Prometheus has to scrape of each kind of fleet: the jobs' names, ports and intervals, for every format.

Rules and boards ask for these job names. Written as Prometheus' own configuration by ``provisioning.py``, as objects
of the Prometheus operator by ``kubernetes.py``.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Recording rules need two samples a minute at the very least; vLLM's own page takes it milliseconds to write.
INTERVAL, TIMEOUT = "15s", "10s"

#: Ports by default: the router's admin API, the exporter, vLLM's server, Ray's metrics agent; load tests and
#: experiments have none, these are examples for their --metrics-port.
ADMIN, EXPORTER, VLLM, RAY, LOADTEST, CHAOS = 8001, 9420, 8000, 8080, 9646, 9647


@dataclass(frozen=True, slots=True)
class Job:
    """One job. targets: examples to replace, host:port. says: comment above it.

    sd: path of a Prometheus HTTP service discovery that lists the targets in place of them, on ``targets``' first.
    pods: matchLabels of its pods (or of its Service, where ``service``) in Kubernetes; port: the port's name there.
    node: whether ``instance`` is to be the node's name, not the pod's.
    """

    name: str
    says: str
    targets: tuple[str, ...]
    port: str
    pods: tuple[tuple[str, str], ...] = ()
    sd: str | None = None
    service: bool = False
    node: bool = False


_ROUTER_JOB = Job(
    "exaserve-router",
    "ExaServe's router: its admin address.",
    (f"router:{ADMIN}",),
    port="admin",
    pods=(("app.kubernetes.io/name", "exaserve-router"),),
    service=True,
)
_REPLICAS_JOB = Job(
    "exaserve-replica",
    "The engines' own pages. The router lists them.",
    (f"router:{ADMIN}",),
    port="admin",
    sd="/sd",
)
_EXPORTER_JOB = Job(
    "exaserve-exporter",
    "One exporter on each node (exporters/README.md). Without it the boards and alerts of nodes stay empty.",
    (f"gpu-1:{EXPORTER}", f"gpu-2:{EXPORTER}"),
    port="metrics",
    pods=(("app.kubernetes.io/name", "exaserve-exporter"),),
    node=True,
)
_VLLM_JOB = Job(
    "vllm",
    "The vLLM servers' own pages. The job's name must have vllm in it: that is how rules know them.",
    (f"gpu-1:{VLLM}", f"gpu-2:{VLLM}"),
    port="http",
    pods=(("app", "vllm"),),
)
_RAY_JOB = Job(
    "ray",
    "Ray's metrics agent of every node; its port is `ray start --metrics-export-port`.",
    (f"ray-head:{RAY}", f"ray-worker-1:{RAY}"),
    port="metrics",
    pods=(("ray.io/is-ray-node", "yes"),),
)

_LOADTEST_JOB = Job(
    "exaserve-loadtest",
    f"A load test while it runs: locust -f loadtest/ --metrics-port {LOADTEST} --metrics-host 0.0.0.0. Down in between.",
    (f"loadtest-1:{LOADTEST}",),
    port="metrics",
    pods=(("app.kubernetes.io/name", "exaserve-loadtest"),),
)

_CHAOS_JOB = Job(
    "exaserve-chaos",
    "An experiment while it runs: exaserve chaos run, whose page is on the loopback of its machine. Down in between.",
    (f"127.0.0.1:{CHAOS}",),
    port="metrics",
    pods=(("app.kubernetes.io/name", "exaserve-chaos"),),
)

#: Jobs of each source.
JOBS: dict[str, tuple[Job, ...]] = {
    "exaserve": (_ROUTER_JOB, _REPLICAS_JOB, _EXPORTER_JOB, _LOADTEST_JOB, _CHAOS_JOB),
    "vllm": (_VLLM_JOB, _EXPORTER_JOB, _LOADTEST_JOB, _CHAOS_JOB),
    "ray": (_RAY_JOB, _EXPORTER_JOB, _LOADTEST_JOB, _CHAOS_JOB),
}
