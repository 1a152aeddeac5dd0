"""Faults as Chaos Mesh 2 has them: what it can do the same way, what differs, and what it can't.

Fields are those of ``chaos-mesh.org/v1alpha1`` (api/v1alpha1/*_types.go of Chaos Mesh). A fault without a counterpart is
named, with what to do in its place, and nothing is guessed.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Spec = dict[str, Any]


@dataclass(frozen=True)
class Cluster:
    """Where things are in Kubernetes. labels: of the pods of ``replica``, ``router``, ``prometheus``. volumes: name of a
    mount (as in targets ``node-2/shared``) -> its path in the engine's container. container: the engine's, port: its.

    cores: of the machine, for faults that take processor time.
    """

    namespace: str = "exaserve"
    labels: dict[str, dict[str, str]] = field(
        default_factory=lambda: {
            part: {"app.kubernetes.io/part-of": "exaserve", "app.kubernetes.io/component": part}
            for part in ("replica", "router", "prometheus")
        }
    )
    volumes: dict[str, str] = field(default_factory=lambda: {"shared": "/models", "local": "/cache"})
    container: str = "engine"
    port: int = 8000
    cores: int = 8


@dataclass(frozen=True)
class Chaos:
    """kind and spec without selector, mode and duration. part: whose pods. differs: from what the fault does elsewhere.

    held: it lasts for a duration.
    """

    kind: str
    spec: Spec
    part: str = "replica"
    differs: str = ""
    held: bool = True


@dataclass(frozen=True)
class NoCounterpart:
    """why, and what to do in its place."""

    why: str


Answer = Chaos | NoCounterpart
_Make = Callable[[Cluster, dict[str, Any], float, str], Answer]
#: What a write is, as IOChaos names methods.
_WRITES = ["WRITE", "CREATE", "MKDIR", "MKNOD", "RENAME", "UNLINK", "RMDIR", "TRUNCATE", "SYMLINK", "LINK"]
_READS = ["READ"]
_OVER_SSH = "reach the machines over ssh (exaserve chaos inject --place inventory.yaml)"
_BY_LOAD = "traffic needs no Chaos Mesh: exaserve chaos inject --place inventory.yaml, with the router's address in it"


def answer(fault: str, cluster: Cluster, p: dict[str, Any], seconds: float, mount: str = "shared") -> Answer:
    """What the fault is there. p: its parameters, all of them. mount: which storage, for faults of storage."""
    return _FAULTS[fault](cluster, p, seconds, mount)


def known() -> list[str]:
    """Every fault that is answered for."""
    return sorted(_FAULTS)


def selector(cluster: Cluster, part: str) -> Spec:
    return {"namespaces": [cluster.namespace], "labelSelectors": dict(cluster.labels[part])}


def _none(why: str) -> _Make:
    return lambda cluster, p, seconds, mount: NoCounterpart(why)


def _network(cluster: Cluster, direction: str, **spec: Any) -> Spec:
    """Traffic between the pod and the router. in: towards the pod; Chaos Mesh says ``from`` the target."""
    target = {"mode": "all", "selector": selector(cluster, "router")}
    return {**spec, "direction": {"in": "from", "out": "to", "both": "both"}[direction], "target": target}


def _partition(direction: str, differs: str) -> _Make:
    def make(cluster: Cluster, p: dict[str, Any], seconds: float, mount: str) -> Answer:
        way = p.get("direction", direction)
        return Chaos("NetworkChaos", _network(cluster, way, action="partition"), differs=differs)

    return make


def _loss(cluster: Cluster, p: dict[str, Any], seconds: float, mount: str) -> Answer:
    loss = {"loss": f"{p['percent']:g}", "correlation": "0"}
    return Chaos(
        "NetworkChaos", _network(cluster, p["direction"], action="loss", loss=loss), differs=_ROUTER_ONLY
    )


def _slow(cluster: Cluster, p: dict[str, Any], seconds: float, mount: str) -> Answer:
    # On what leaves the pod, once a round trip.
    delay = {"latency": f"{p['milliseconds']:g}ms", "jitter": f"{p['jitter']:g}ms", "correlation": "0"}
    return Chaos("NetworkChaos", {"action": "delay", "delay": delay, "direction": "to"})


def _capped(cluster: Cluster, p: dict[str, Any], seconds: float, mount: str) -> Answer:
    # bps are bytes a second there. 64 KiB of burst, and what waits for 50 ms.
    rate = round(p["megabits"] * 1e6 / 8)
    cap = {"rate": f"{rate}bps", "limit": max(65536, rate // 20), "buffer": 65536}
    return Chaos(
        "NetworkChaos",
        {"action": "bandwidth", "bandwidth": cap, "direction": "to"},
        differs="only what leaves the pod",
    )


def _error(cluster: Cluster, p: dict[str, Any], seconds: float, mount: str) -> Answer:
    if p["probability"] < 1:
        return NoCounterpart("HTTPChaos answers every request: give probability 1")
    replace: Spec = {"code": p["status"]}
    if p["status"] == 429 and p["retry_after"]:
        replace["headers"] = {"retry-after": f"{p['retry_after']:g}"}
    spec = {"target": "Response", "port": cluster.port, "path": "/v1/*", "replace": replace}
    return Chaos("HTTPChaos", spec, differs="the engine computes the answer before it is replaced")


def _memory(key: str, differs: str) -> _Make:
    def make(cluster: Cluster, p: dict[str, Any], seconds: float, mount: str) -> Answer:
        memory = {"workers": 1, "size": f"{p[key]:g}MiB"}
        spec = {"containerNames": [cluster.container], "stressors": {"memory": memory}}
        return Chaos("StressChaos", spec, differs=differs)

    return make


def _cpu(cluster: Cluster, p: dict[str, Any], seconds: float, mount: str) -> Answer:
    cpu = {"workers": cluster.cores, "load": round(p["busy"] * 100)}
    spec = {"containerNames": [cluster.container], "stressors": {"cpu": cpu}}
    return Chaos(
        "StressChaos", spec, differs="within the container's own limit; other pods of the node keep theirs"
    )


def _clock(part: str) -> _Make:
    def make(cluster: Cluster, p: dict[str, Any], seconds: float, mount: str) -> Answer:
        spec = {"timeOffset": f"{p['seconds']:g}s", "clockIds": ["CLOCK_REALTIME"]}
        return Chaos("TimeChaos", spec, part=part, differs="of the pod's processes, not of the machine")

    return make


def _io(cluster: Cluster, mount: str, path: str = "*", **spec: Any) -> Answer:
    volume = cluster.volumes.get(mount)
    if volume is None:
        return NoCounterpart(f"it is not known where {mount!r} is mounted in the pod: --volume {mount}=PATH")
    where = {"volumePath": volume, "path": f"{volume}/**/{path}", "containerNames": [cluster.container]}
    return Chaos(
        "IOChaos", {**where, "percent": 100, **spec}, differs="files that are mapped or cached may be spared"
    )


def _fails(number: int, methods: list[str]) -> _Make:
    def make(cluster: Cluster, p: dict[str, Any], seconds: float, mount: str) -> Answer:
        more: Spec = {"methods": methods} if methods else {}
        return _io(cluster, mount, action="fault", errno=number, **more)

    return make


def _io_error(cluster: Cluster, p: dict[str, Any], seconds: float, mount: str) -> Answer:
    methods = {"read": _READS, "write": _WRITES}.get(p["operations"])
    more: Spec = {"methods": methods} if methods else {}
    number = getattr(errno, p["error"])
    percent = round(p["share"] * 100)
    return _io(cluster, mount, p["path"], action="fault", errno=number, **more, percent=percent)


def _io_slow(cluster: Cluster, p: dict[str, Any], seconds: float, mount: str) -> Answer:
    if p["bytes_per_second"]:
        return NoCounterpart(f"IOChaos caps no throughput (bytes_per_second): {_OVER_SSH}")
    delay, percent = f"{p['latency'] * 1000:g}ms", round(p["share"] * 100)
    methods = ["READ", "WRITE"]
    return _io(cluster, mount, p["path"], action="latency", delay=delay, percent=percent, methods=methods)


def _io_stuck(cluster: Cluster, p: dict[str, Any], seconds: float, mount: str) -> Answer:
    methods = {"read": _READS, "write": _WRITES}.get(p["operations"])
    more: Spec = {"methods": methods} if methods else {}
    return _io(cluster, mount, p["path"], action="latency", delay=f"{seconds:g}s", **more)


def _corrupt(cluster: Cluster, p: dict[str, Any], seconds: float, mount: str) -> Answer:
    mistake = {"filling": "random", "maxOccurrences": 1, "maxLength": 1}
    return _io(cluster, mount, p["file"], action="mistake", mistake=mistake, methods=_READS)


def _prometheus(cluster: Cluster, p: dict[str, Any], seconds: float, mount: str) -> Answer:
    if p["how"] == "kill":
        return Chaos("PodChaos", {"action": "pod-kill", "gracePeriod": 0}, part="prometheus", held=False)
    return Chaos(
        "PodChaos",
        {"action": "pod-failure"},
        part="prometheus",
        differs="it is gone, where ours stands still",
    )


def _dns(cluster: Cluster, p: dict[str, Any], seconds: float, mount: str) -> Answer:
    spec = {"action": "random", "patterns": [p["host"]]}
    return Chaos(
        "DNSChaos", spec, part="router", differs="the name gets a random address, not the one that was given"
    )


def _crash(cluster: Cluster, p: dict[str, Any], seconds: float, mount: str) -> Answer:
    return Chaos("PodChaos", {"action": "container-kill", "containerNames": [cluster.container]}, held=False)


def _node_killed(cluster: Cluster, p: dict[str, Any], seconds: float, mount: str) -> Answer:
    return Chaos(
        "PodChaos", {"action": "pod-failure"}, differs="one replica's pod is gone; its machine lives on"
    )


_ROUTER_ONLY = "only traffic with the router"
_FAULTS: dict[str, _Make] = {
    "replica_crash": _crash,
    "replica_freeze": _none(f"Chaos Mesh stops no process of a pod (SIGSTOP): {_OVER_SSH}"),
    "replica_slow": _none(f"taking processor time makes no GPU slow by a given factor: {_OVER_SSH}"),
    "replica_cut": _none(f"HTTPChaos aborts no answer in its middle: {_OVER_SSH}"),
    "replica_error": _error,
    "replica_leak": _memory("limit_mib", "all of it at once, beside the engine's process"),
    "node_killed": _node_killed,
    "node_isolated": _partition("both", _ROUTER_ONLY),
    "node_cpu": _cpu,
    "node_memory": _memory("mib", "within the container's own limit"),
    "node_clock": _clock("replica"),
    "link_down": _partition("both", _ROUTER_ONLY + "; packets are dropped and the link keeps its carrier"),
    "link_flapping": _none(f"a Schedule begins experiments too late for a flap of seconds: {_OVER_SSH}"),
    "link_one_way": _partition("in", _ROUTER_ONLY),
    "link_loss": _loss,
    "link_slow": _slow,
    "link_capped": _capped,
    "link_mtu": _none(f"NetworkChaos drops no packets by their size: {_OVER_SSH}"),
    "storage_slow": _io_slow,
    "storage_io_error": _io_error,
    "storage_full": _fails(errno.ENOSPC, _WRITES),
    "storage_read_only": _fails(errno.EROFS, _WRITES),
    "storage_gone": _fails(errno.ENOTCONN, []),
    "storage_stuck": _io_stuck,
    "storage_corrupt_file": _corrupt,
    "storage_cache_empty": _none("empty the volume of the cache, or give the pod a new one"),
    "gpu_lost": _none("no kind of Chaos Mesh is about GPUs; drain the pod and take the device from its node"),
    "router_worker_killed": _none(
        f"container-kill ends the whole router, not one of its workers: {_OVER_SSH}"
    ),
    "prometheus_gone": _prometheus,
    "configuration_broken": _none("change the ConfigMap, and change it back"),
    "clock_skew": _clock("router"),
    "dns_change": _dns,
    **{
        f"traffic_{name}": _none(_BY_LOAD)
        for name in ("peak", "long", "retry_storm", "vanish", "slow_reader")
    },
}
