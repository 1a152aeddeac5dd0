"""Faults of the control node against a real router: in, proven, out, nothing left."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos import ask, identity, inject
from chaos.engines import storage_reader
from chaos.fault import Refused, Target
from chaos.place import Node, Part
from tests.chaos.framework import Here, answer, eventually, records
from tests.chaos.small_stack import SmallStack, small_stack

pytestmark = pytest.mark.xdist_group("control")  # one worker sets up what they share

_PRELOAD = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallStack]:
    with small_stack(tmp_path_factory.mktemp("control")) as one:
        yield one


@pytest.fixture(autouse=True)
def nothing_left(own_home: Path) -> Iterator[None]:
    yield
    assert records(own_home) == []


def test_a_router_worker_is_killed_and_replaced(stack: SmallStack) -> None:
    injection = inject.start("router_worker_killed", "router", stack.place(), 30)[0]
    assert injection.proof is not None
    assert injection.proof.measured.endswith("is gone, the router counts 1 died")
    assert injection.over
    assert eventually(lambda: stack.metric("exaserve_router_workers") == 2)


def test_a_worker_that_is_not_of_the_router_here_is_refused(stack: SmallStack) -> None:
    parts = {"router": Part("router", stack.url, identity.of(os.getpid()))}
    place = Here(parts=parts, admin="http://127.0.0.1:9")
    with pytest.raises(Refused, match="can't be read"):
        inject.start("router_worker_killed", "router", place, 30)


@pytest.mark.parametrize("how", ["syntax", "value", "cut"])
def test_a_broken_configuration_is_noticed_and_the_old_file_comes_back(how: str, stack: SmallStack) -> None:
    stack.config.write_text(
        stack.config.read_text() if how != "cut" else "# a long file\n" * 30 + stack.config.read_text()
    )
    text, mode = stack.config.read_text(), stack.config.stat().st_mode
    with inject.held("configuration_broken", "router", stack.place(), 60, {"how": how}) as (injection,):
        assert injection.proof is not None
        assert injection.proof.value == 0
        assert stack.config.read_text() != text
        got = answer(stack.url, "m", 2)
        assert (got.status, got.done) == (200, True), "the configuration that ran still runs"
    assert (stack.config.read_text(), stack.config.stat().st_mode) == (text, mode)
    assert eventually(lambda: stack.metric("exaserve_router_config_last_reload_successful") == 1)


def test_the_configuration_is_the_one_that_the_router_reads_not_one_beside_us(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its --config counts from where it was started; a link stays one; line ends come back as they were."""
    from chaos.faults import configuration_broken

    real, started = tmp_path / "real.yaml", tmp_path / "started"
    started.mkdir()
    real.write_bytes(b"router:\r\n  workers: 2\r\n")
    (started / "exaserve.yaml").symlink_to(real)
    monkeypatch.chdir(tmp_path)
    argv = [
        sys.executable,
        "-c",
        "import time; print(1, flush=True); time.sleep(60)",
        "--config",
        "exaserve.yaml",
    ]
    with subprocess.Popen(argv, cwd=started, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        part = Part("router", "", identity.of(process.pid))
        target = Target("router", Here(), part=part)
        assert configuration_broken._file(target) == real
        plan = configuration_broken.Replaced().plan(target, configuration_broken.BrokenParameters(), 5)
        process.kill()
    assert plan.undo[0]["text"] == "router:\r\n  workers: 2\r\n"


def test_a_configuration_that_somebody_mends_meanwhile_is_left_to_them(stack: SmallStack) -> None:
    mended = stack.config.read_text() + "# mended\n"
    with inject.held("configuration_broken", "router", stack.place(), 60):
        stack.config.write_text(mended)
    assert stack.config.read_text() == mended


def test_a_router_without_a_file_has_none_to_break(stack: SmallStack) -> None:
    parts = {"router": Part("router", stack.url, identity.of(os.getpid()))}
    with pytest.raises(Refused, match="the router was started without a configuration file"):
        inject.start("configuration_broken", "router", Here(parts=parts, admin=stack.admin), 30)


def test_a_clock_of_a_process_that_was_not_started_for_it_is_refused(stack: SmallStack) -> None:
    with pytest.raises(
        Refused, match=r"was not started with libfaketime .* shifts monotonic and boot time only"
    ):
        inject.start("clock_skew", "replica-0", stack.place(), 30)
    with pytest.raises(Refused, match="a skew under 2 s can't be measured"):
        inject.start("clock_skew", "router", stack.place(), 30, {"seconds": 1})


_SERVER = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.send_header("content-length", "0"); self.end_headers()
    def log_message(self, *args): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""


@pytest.fixture
def prometheus() -> Iterator[tuple[Here, subprocess.Popen[str]]]:
    """What plays Prometheus: all that counts is that it answers."""
    process = subprocess.Popen([sys.executable, "-c", _SERVER], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    url = f"http://127.0.0.1:{int(process.stdout.readline())}"
    yield Here(parts={"prometheus": Part("prometheus", url, identity.of(process.pid))}), process
    process.kill()
    process.communicate()


def test_prometheus_is_silent_and_answers_again(prometheus: tuple[Here, subprocess.Popen[str]]) -> None:
    place, _ = prometheus
    url = place.parts()["prometheus"].url
    with inject.held("prometheus_gone", "prometheus", place, 60) as (injection,):
        assert injection.engine.name == "stop"
        assert injection.proof is not None
        assert injection.proof.measured == "1 of 1 processes are stopped, /-/ready: no answer within 0.5 s"
    assert eventually(lambda: ask.status(url) == (200, ""))


def test_prometheus_is_killed(prometheus: tuple[Here, subprocess.Popen[str]]) -> None:
    place, process = prometheus
    injection = inject.start("prometheus_gone", "prometheus", place, 30, {"how": "kill"})[0]
    assert (injection.engine.name, injection.over) == ("kill", True)
    assert process.wait(30) == -9
    with pytest.raises(Refused, match="the processes of prometheus can't be seen from here"):
        inject.start("prometheus_gone", "prometheus", place, 30, {"how": "kill"})


@pytest.mark.skipif(not _PRELOAD.exists(), reason="libfaketime is not installed (Debian package libfaketime)")
def test_a_clock_is_skewed_and_right_again(tmp_path: Path) -> None:
    skew = tmp_path / "skew"
    skew.write_text("+0")
    env = {"LD_PRELOAD": str(_PRELOAD), "FAKETIME_TIMESTAMP_FILE": str(skew), "FAKETIME_NO_CACHE": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVER],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **env, "FAKETIME_DONT_FAKE_MONOTONIC": "1"},
    )
    try:
        assert process.stdout is not None
        url = f"http://127.0.0.1:{int(process.stdout.readline())}"
        place = Here({"replica-0": (url, process.pid)})
        with inject.held("clock_skew", "replica-0", place, 60, {"seconds": -300}) as (injection,):
            assert injection.proof is not None
            assert -302 < (injection.proof.value or 0) < -298
            assert skew.read_text() == "-300"
        assert skew.read_text() == "+0"
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def node() -> Iterator[Node]:
    """A mount namespace of its own, as a lab's node has one."""
    if os.getuid() != 0:
        pytest.skip("mount namespaces need root")
    holder = subprocess.Popen(["unshare", "--mount", "--propagation", "private", "sleep", "600"])
    comm = Path(f"/proc/{holder.pid}/comm")
    assert eventually(lambda: holder.poll() is not None or comm.read_text() == "sleep\n")
    if holder.returncode is not None:
        pytest.skip("this kernel or container gives no mount namespace")
    yield Node("node-1", ["nsenter", "-t", str(holder.pid), "-m", "--"], identity.of(holder.pid))
    holder.kill()
    holder.wait()


def over_hosts(node: Node) -> list[storage_reader.Mount]:
    """Mounts of the fault's, and whatever lies over the file: of a node's other mounts those of other tests come and go."""
    return [
        m
        for m in storage_reader.mounts(node)
        if m.point == "/etc/hosts" or "exaserve-chaos-hosts" in f"{m.root} {m.source}"
    ]


def test_a_name_means_another_address_on_one_node_only(node: Node, own_home: Path) -> None:
    hosts, given = Path("/etc/hosts").read_text(), {"host": "weights.example", "address": "192.0.2.7"}
    mounts = over_hosts(node)
    with inject.held("dns_change", "node-1", Here(nodes=[node]), 60, given) as (injection,):
        assert injection.proof is not None
        assert injection.proof.measured == "weights.example means 192.0.2.7 there, before nothing"
        assert Path("/etc/hosts").read_text() == hosts
        assert node.read(["cat", "/etc/hosts"]).stdout == "192.0.2.7\tweights.example\n" + hosts
        assert len(over_hosts(node)) == len(mounts) + 1
    assert node.read(["cat", "/etc/hosts"]).stdout == hosts
    assert over_hosts(node) == mounts
    assert list((own_home / "chaos" / "hosts").iterdir()) == []


def test_a_name_on_the_control_node_and_bad_addresses_are_refused() -> None:
    control = Here(nodes=[Node("control", control=True)])
    with pytest.raises(Refused, match="the control node's names are this machine's"):
        inject.start("dns_change", "control", control, 30, {"host": "x"})
    with pytest.raises(
        Refused, match="dns_change: address: 'nowhere' does not appear to be an IPv4 or IPv6 address"
    ):
        inject.start("dns_change", "control", control, 30, {"host": "x", "address": "nowhere"})
