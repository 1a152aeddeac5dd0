"""Run as a program in a network namespace of its own (``unshare -rn``): a path to measure, for tests.

``narrow``: this host -(1500)- router -(1400)- peer, so that the router says "too big". ``hole``: this host
-(9000)- peer with 1500, whose link drops what is larger and tells nobody. Prints the network collector's
samples of two tries as JSON: [{"name label …": value}, {…}]."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

from exporters.collectors import _mtu
from exporters.collectors.network import NetworkCollector
from exporters.settings import Settings

SERVER = (
    "import socket,time\nfor f,a in ((2,'0.0.0.0'),(10,'::')):\n s=socket.socket(f)\n s.setsockopt(1,2,1)\n "
)
SERVER += (
    "f==10 and s.setsockopt(41,26,1)\n s.bind((a,7))\n s.listen()\n globals()['k%d'%f]=s\ntime.sleep(240)"
)


def run(*words: str, inside: int | None = None) -> None:
    where = ["nsenter", "-t", str(inside), "-n"] if inside else []
    subprocess.run([*where, *words], check=True)


def host(*program: str) -> subprocess.Popen[bytes]:
    """A process in a network namespace of its own, which ends with it."""
    process = subprocess.Popen(["unshare", "-n", *program])
    own = os.readlink("/proc/self/ns/net")
    while os.readlink(f"/proc/{process.pid}/ns/net") == own:
        time.sleep(0.01)
    run("ip", "link", "set", "lo", "up", inside=process.pid)
    return process


def link(mine: str, theirs: str, a: int, b: int, subnet: int, mtus: tuple[int, int]) -> None:
    """A cable between the namespaces of two processes; addresses .1 and .2, with the MTU of each end."""
    run("ip", "link", "add", mine, "netns", str(a), "type", "veth", "peer", theirs, "netns", str(b))
    for name, pid, last, mtu in ((mine, a, 1, mtus[0]), (theirs, b, 2, mtus[1])):
        run("ip", "address", "add", f"10.9.{subnet}.{last}/24", "dev", name, inside=pid)
        run("ip", "address", "add", f"fd00:{subnet}::{last}/64", "dev", name, "nodad", inside=pid)
        run("ip", "link", "set", name, "mtu", str(mtu), "up", inside=pid)


def main(kind: str) -> None:
    me = os.getpid()
    run("ip", "link", "set", "lo", "up")
    peer = host(sys.executable, "-c", SERVER)
    started = [peer]
    try:
        if kind == "hole":
            link("out", "in", me, peer.pid, 1, (9000, 1500))
            names = ("10.9.1.2:7", "[fd00:1::2]:7")
        else:
            router = host("sleep", "240")
            started.append(router)
            link("out", "left", me, router.pid, 1, (1500, 1500))
            link("right", "in", router.pid, peer.pid, 2, (1400, 1400))
            for key in ("net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"):
                run("sysctl", "-qw", f"{key}=1", inside=router.pid)
            for pid, way, net in ((me, 2, 2), (peer.pid, 1, 1)):
                gateway = (
                    f"10.9.{1 if pid == me else 2}.{way if pid == me else 1}",
                    f"fd00:{1 if pid == me else 2}::{way if pid == me else 1}",
                )
                run("ip", "route", "add", f"10.9.{net}.0/24", "via", gateway[0], inside=pid)
                run("ip", "-6", "route", "add", f"fd00:{net}::/64", "via", gateway[1], inside=pid)
            names = ("10.9.2.2:7", "[fd00:2::2]:7")
        _mtu.WAIT = 3.0  # a round trip, however slow this machine is
        clock = [0.0]
        collector = NetworkCollector(Settings(peers=names), clock=lambda: clock[0])
        answers = []
        for _ in range(100):  # until the peer listens
            clock[0] += 100
            answers = [collector.collect(time.monotonic() + 12)]
            if sum(s.value for s in answers[0] if s.name == "exaserve_network_peer_up") == len(names):
                break
            time.sleep(0.05)
        clock[0] += 100
        answers.append(collector.collect(time.monotonic() + 12))
        print(json.dumps([{" ".join((s.name, *s.labels)): s.value for s in a} for a in answers]))
    finally:
        for process in started:
            process.kill()
            process.wait()


if __name__ == "__main__":
    main(sys.argv[1])
