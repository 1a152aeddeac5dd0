"""The admin API in this process, over a master by hand: what it shows, who may change, its schema kept."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings

from serving.fleet.discovery import static
from serving.fleet.replica import Replica
from serving.router.admin import app
from serving.router.merge import Numbers, Totals
from serving.router.workers import Place


class Master:
    """The master's face, without workers."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.started = time.time()
        self.last_tick = time.monotonic()
        self.stopping = False
        self.ready = True
        self.admin_token: bytes | None = None
        self.replicas = static.parse_all(["a=http://127.0.0.1:1", "b=https://[::1]:2", "c=unix:/run/c.sock"])
        for r in self.replicas[:2]:
            r.enter("ready", "by hand")
        self.places = [Place(0, [], []), Place(1, [], [])]

    def open_requests(self, worker: int) -> int:
        return worker

    def client_connections(self) -> int:
        return 3

    def pools(self) -> list[dict[str, Any]]:
        return [{"name": "default", "replicas": 3, "in_rotation": 2, "panic": False, "open": 1, "waiting": 0}]

    async def fresh(self) -> Numbers:
        return Totals().sum()

    async def drain(self, name: str, on: bool) -> Replica | None:
        found = next((r for r in self.replicas if r.name == name), None)
        if found is not None:
            found.drain(on)
        return found


@pytest.fixture
def master() -> Iterator[Master]:
    """With a loop of its own, as the real one has."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield Master(loop)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def call(master: Master, method: str, path: str, **kw: Any) -> httpx.Response:
    async def go() -> httpx.Response:
        transport = httpx.ASGITransport(app(master))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8001") as client:
            return await client.request(method, path, **kw)

    return asyncio.run(go())


def test_readiness_says_what_is_missing(master: Master) -> None:
    assert call(master, "GET", "/readyz").json() == {"status": "ready", "replicas_in_rotation": 2}
    master.ready = False
    found = call(master, "GET", "/readyz")
    assert (found.status_code, found.json()["status"]) == (503, "not ready")
    master.stopping = True
    assert call(master, "GET", "/readyz").json()["status"] == "stopping"


def test_a_master_that_stands_still_is_not_alive(master: Master) -> None:
    assert call(master, "GET", "/livez").json() == {"status": "alive"}
    before = time.monotonic()
    master.last_tick = before - 60
    found = call(master, "GET", "/livez")
    assert found.status_code == 503
    said = re.search(r"(\d+) s", found.json()["status"])
    assert said is not None
    assert 60 <= int(said[1]) <= round(time.monotonic() - master.last_tick)


def test_discovery_names_scheme_and_address_and_leaves_unix_sockets_out(master: Master) -> None:
    assert call(master, "GET", "/sd").json() == [
        {"targets": ["127.0.0.1:1"], "labels": {"replica": "a", "model": "", "__scheme__": "http"}},
        {"targets": ["[::1]:2"], "labels": {"replica": "b", "model": "", "__scheme__": "https"}},
    ]


def test_workers_show_their_process_and_open_requests(master: Master) -> None:
    found = call(master, "GET", "/workers").json()
    assert found[1] == {
        "worker": 1,
        "pid": None,
        "state": "waiting",
        "seconds_in_process": None,
        "open_requests": 1,
        "restarts": {"died": 0, "frozen": 0},
    }


def test_drain_and_undrain_change_the_state_of_a_replica(master: Master) -> None:
    assert call(master, "POST", "/replicas/a/drain").json()["state"] == "draining"
    assert call(master, "GET", "/replicas/a").json()["state"] == "draining"
    assert call(master, "POST", "/replicas/a/undrain").json()["state"] == "ready"


@pytest.mark.parametrize("name", ["nobody", "%00", "a%2Fb", "%F0%9F%98%80", "x" * 5000])
def test_an_unknown_replica_is_404_in_words(master: Master, name: str) -> None:
    for method, path in (("GET", ""), ("POST", "/drain")):
        found = call(master, method, f"/replicas/{name}{path}")
        assert found.status_code == 404
        assert len(found.content) < 2000


def test_changes_need_the_token_where_there_is_one(master: Master) -> None:
    master.admin_token = b"s3cret"
    for headers in (
        {},
        {"authorization": "Bearer s3cre"},
        {"authorization": "Bearer s\xe9"},
        {"authorization": "s3cret"},
    ):
        found = call(
            master, "POST", "/replicas/a/drain", headers={k: v.encode("latin-1") for k, v in headers.items()}
        )
        assert found.status_code == 401
        assert found.headers["www-authenticate"] == "Bearer"
        assert "s3cret" not in found.text
    assert not master.replicas[0].draining
    assert (
        call(master, "POST", "/replicas/a/drain", headers={"authorization": "Bearer s3cret"}).status_code
        == 200
    )
    assert call(master, "GET", "/fleet").status_code == 200, "reading needs none"


def test_a_page_of_another_site_can_not_change_anything(master: Master) -> None:
    evil = {"origin": "http://evil.example"}
    assert call(master, "POST", "/replicas/a/drain", headers=evil).status_code == 403
    own = {"origin": "http://127.0.0.1:8001"}
    assert call(master, "POST", "/replicas/a/drain", headers=own).status_code == 200


def test_no_change_while_the_router_stops(master: Master) -> None:
    master.stopping = True
    assert call(master, "POST", "/replicas/a/drain").status_code == 503


def test_a_master_that_does_not_react_is_503_not_a_hang(
    master: Master, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serving.router.admin.CALL_SECONDS", 0.1)

    async def never() -> Numbers:
        await asyncio.sleep(3600)
        raise AssertionError

    master.fresh = never  # type: ignore[method-assign]
    found = call(master, "GET", "/metrics")
    assert found.status_code == 503
    assert "0.1 s" in found.json()["detail"]


def operations() -> list[str]:
    return [
        f"{method.upper()} {path}"
        for path, methods in app(Master(None)).openapi()["paths"].items()  # type: ignore[arg-type]
        for method in methods
    ]


@pytest.mark.parametrize("label", operations())
@pytest.mark.parametrize("token", [None, b"s3cret"])
def test_every_answer_is_as_the_schema_says(master: Master, label: str, token: bytes | None) -> None:
    """schemathesis: names and methods as they come, against ``/openapi.json``."""
    master.admin_token = token
    schema = schemathesis.openapi.from_asgi("/openapi.json", app(master))
    operation = schema.find_operation_by_label(label)
    assert operation is not None

    @settings(
        max_examples=20,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy())
    def check(case: Any) -> None:
        case.call_and_validate()

    check()
