"""The interface and the HCAs that NCCL is told to use: there, up, and named in exaserve.yaml's ``network`` section."""

from __future__ import annotations

from collections.abc import Iterator

from exporters.doctor.check import Finding, Node, Verdict, register
from exporters.doctor.checks import _nccl
from exporters.doctor.checks._nccl import Chosen
from exporters.doctor.fabric import ib_ports, interfaces
from exporters.doctor.files import listed


def nccl(node: Node) -> Iterator[Finding]:
    parallel = node.key("engine.tensor_parallel_size", 1) * node.key("engine.pipeline_parallel_size", 1)
    links = interfaces(node.sysfs)
    yield from _interface(
        _nccl.socket_interface(node), parallel, {i.name: i.up for i in links if i.name != "lo"}
    )
    ports = {(p.device, p.port): p.state == "ACTIVE" for p in ib_ports(node.sysfs)}
    yield from _hca(_nccl.hca(node), parallel, ports)


def _interface(chosen: Chosen, parallel: int, links: dict[str, bool]) -> Iterator[Finding]:
    if not chosen.value:
        yield _unset("interface", chosen, parallel, [n for n, up in links.items() if up])
        return
    yield _agreed("interface named", chosen)
    missing = _nccl.unmatched(chosen.value, ((name, "") for name in links))
    taken = [n for n in links if _nccl.matches(chosen.value)(n, "")]
    up = [n for n in taken if links[n]]
    cure = f"{chosen.key}: one of {listed(n for n, u in links.items() if u) or 'no interface is up'}"
    if missing or not taken:
        yield Finding("interface", f"no {listed(missing) or chosen.value}", "fail", "exists and is up", cure)
    elif not up:
        cure = f"ip link set {taken[0]} up; or {cure}"
        yield Finding("interface", f"{listed(taken)} (down)", "fail", "exists and is up", cure)
    else:
        yield Finding("interface", listed(up), "ok", "exists and is up")


def _hca(chosen: Chosen, parallel: int, ports: dict[tuple[str, str], bool]) -> Iterator[Finding]:
    if not ports and not chosen.value:
        yield Finding("HCA", "no InfiniBand or RoCE device", "not here")
        return
    if not chosen.value:
        yield _unset("HCA", chosen, parallel, sorted({d for (d, _), up in ports.items() if up}))
        return
    yield _agreed("HCA named", chosen)
    missing = _nccl.unmatched(chosen.value, ports)
    taken = [f"{d}:{p}" for d, p in ports if _nccl.matches(chosen.value)(d, p)]
    up = [f"{d}:{p}" for (d, p), is_up in ports.items() if is_up and _nccl.matches(chosen.value)(d, p)]
    active = sorted({d for (d, _), is_up in ports.items() if is_up})
    cure = f"{chosen.key}: {','.join(active) or 'no port is active'}"
    if missing or not taken:
        yield Finding("HCA", f"no {listed(missing) or chosen.value}", "fail", "exists and is active", cure)
    elif len(up) < len(taken):
        down = [name for name in taken if name not in up]
        yield Finding("HCA", f"{listed(down)} not active", "fail", "exists and is active", cure)
    else:
        yield Finding("HCA", listed(up, 8), "ok", "exists and is active")


def _agreed(what: str, chosen: Chosen) -> Finding:
    value = f"{chosen.value} by {chosen.origin}"
    if chosen.other and chosen.other != chosen.value:
        cure = f"unset {chosen.variable}, or set {chosen.key} to the same: replicas that ExaServe starts get the key's"
        return Finding(what, f"{value}, {chosen.other} in the environment", "warn", "one of them", cure)
    if chosen.origin.startswith("the environment"):
        cure = f"{chosen.key}: {chosen.value}"
        return Finding(what, value, "warn", f"{chosen.key} in exaserve.yaml", cure, compare="warn")
    return Finding(what, value, "ok", f"{chosen.key} in exaserve.yaml", compare="warn")


def _unset(what: str, chosen: Chosen, parallel: int, choice: list[str]) -> Finding:
    if parallel <= 1:
        value = "not set; a replica on one GPU needs none"
        return Finding(f"{what} named", value, "ok", compare="warn")
    value = f"not set; NCCL chooses among {listed(choice) or 'nothing'}"
    verdict: Verdict = "ok" if len(choice) == 1 else "warn"
    cure = f"{chosen.key}: {choice[0]}" if choice else f"{chosen.key}, once an interface is up"
    return Finding(
        f"{what} named", value, verdict, chosen.key, cure if verdict == "warn" else "", compare="warn"
    )


register("nccl", "interface and HCAs that NCCL is told to use", nccl)
