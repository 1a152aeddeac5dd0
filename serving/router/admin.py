"""The admin API: liveness, readiness, metrics, the fleet and the workers, service discovery, drain.

On its own port and in its own thread of the master: nothing here delays a stream. Reading needs no permission
beyond reaching the port (loopback by default); changes want the token of ``router.admin_token_file`` if there is
one, and never come from another site's page in a browser.
"""

from __future__ import annotations

import asyncio
import hmac
import socket
import threading
import time
from collections.abc import Callable, Coroutine
from importlib.metadata import version
from typing import Any, Protocol, TypeVar

import msgspec
import uvicorn
from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.concurrency import run_in_threadpool

from serving.fleet.replica import Replica
from serving.router import admin_models as models
from serving.router.merge import Numbers, Page
from serving.router.procs import Processes
from serving.router.workers import Place

STUCK_SECONDS = 10.0  # the master's loop turns ten times a second
CALL_SECONDS = 5.0
Result = TypeVar("Result")


class Operated(Protocol):
    """What the API shows and changes: the master. Its coroutines run in its own loop."""

    loop: asyncio.AbstractEventLoop
    started: float
    last_tick: float
    stopping: bool

    @property
    def replicas(self) -> list[Replica]: ...
    @property
    def ready(self) -> bool: ...
    @property
    def places(self) -> list[Place]: ...
    @property
    def admin_token(self) -> bytes | None: ...
    def open_requests(self, worker: int) -> int: ...
    def pools(self) -> list[dict[str, Any]]: ...
    def client_connections(self) -> int: ...
    async def fresh(self) -> Numbers: ...
    async def drain(self, name: str, on: bool) -> Replica | None: ...


def app(master: Operated) -> FastAPI:
    """The API over ``master``; its docs are at ``/docs`` of the admin port."""
    api = FastAPI(title="ExaServe router, admin API", version=version("exaserve"))
    processes, page_lock = Processes(), asyncio.Lock()

    async def call(work: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """Run it in the master's loop. 503 if that does not turn."""
        future = asyncio.run_coroutine_threadsafe(work(), master.loop)
        try:
            async with asyncio.timeout(CALL_SECONDS):
                return await asyncio.wrap_future(future)
        except TimeoutError:
            raise HTTPException(503, f"the router's master did not react in {CALL_SECONDS:g} s") from None

    def replica(name: str) -> Replica:
        found = next((r for r in master.replicas if r.name == name), None)
        if found is None:
            raise HTTPException(404, f"no replica {name[:100]!r}; /fleet lists them")
        return found

    def may_change(request: Request) -> None:
        """Raises 401 without the token, 403 for a page of another site."""
        origin = request.headers.get("origin")
        if origin is not None and origin.partition("://")[2] != request.headers.get("host"):
            raise HTTPException(403, "changes can't be asked for by a page of another site")
        token = master.admin_token
        if token is not None:
            given = request.headers.get("authorization", "").encode()
            if not hmac.compare_digest(given, b"Bearer " + token):
                raise HTTPException(
                    401,
                    "the bearer token of router.admin_token_file is wanted",
                    {"www-authenticate": "Bearer"},
                )

    @api.get("/livez", responses={503: {"model": models.Status}})
    def livez() -> models.Status:
        """200 while the master works."""
        late = time.monotonic() - master.last_tick
        if late > STUCK_SECONDS:
            return JSONResponse({"status": f"the master has stood still for {late:.0f} s"}, 503)  # type: ignore[return-value]
        return models.Status(status="alive")

    @api.get("/readyz", response_model=models.Ready, responses={503: {"model": models.Ready}})
    def readyz() -> JSONResponse:
        """200 if a worker listens and a replica may take requests, else 503."""
        n, ready = sum(r.in_rotation for r in master.replicas), master.ready
        status = "ready" if ready else "stopping" if master.stopping else "not ready"
        return JSONResponse({"status": status, "replicas_in_rotation": n}, 200 if ready else 503)

    @api.get("/metrics", response_class=Response, responses=models.METRICS)
    async def metrics(request: Request) -> Response:
        """Prometheus text or OpenMetrics, as asked for; the sum of all workers as they are now."""
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        async with page_lock:  # two pages of a large fleet at once would only share the time
            numbers = await call(master.fresh)
            body = await run_in_threadpool(_page, encode, numbers, master, processes)
        return Response(body, headers={"content-type": content_type})

    @api.get("/fleet", response_model=models.Fleet)
    def fleet() -> Response:
        """Every replica: state, why, since when, load; requests in flight are summed over all workers."""
        return _json(
            {
                "replicas": [r.view() for r in master.replicas],
                "pools": master.pools(),
                "router": {
                    "version": version("exaserve"),
                    "uptime_seconds": time.time() - master.started,
                    "client_connections": master.client_connections(),
                    "workers": sum(p.state == "serving" for p in master.places),
                },
            }
        )

    @api.get("/workers", response_model=list[models.Worker])
    def workers() -> Response:
        """The data-plane processes."""
        return _json(
            [
                {
                    "worker": p.number,
                    "pid": p.pid,
                    "state": p.state,
                    "seconds_in_process": time.monotonic() - p.started if p.process is not None else None,
                    "open_requests": master.open_requests(p.number),
                    "restarts": dict(p.restarts),
                }
                for p in master.places
            ]
        )

    @api.get("/sd", response_model=list[models.Target])
    def sd() -> Response:
        """Prometheus HTTP service discovery of the replicas' own metrics pages."""
        return _json(
            [
                {
                    "targets": [r.address],
                    "labels": {"replica": r.name, "model": r.model, "__scheme__": r.scheme},
                }
                for r in master.replicas
                if not r.path  # Prometheus can't scrape a unix socket
            ]
        )

    @api.get("/replicas/{name}", response_model=models.Replica, responses=models.NO_REPLICA)
    def one(name: str) -> Response:
        """One replica, as in /fleet."""
        return _json(replica(name).view())

    async def set_drain(name: str, on: bool) -> Response:
        if master.stopping:
            raise HTTPException(503, "the router is stopping")
        replica(name)
        found = await call(lambda: master.drain(name, on))
        if found is None:
            raise HTTPException(404, f"{name[:100]!r} is leaving already")
        return _json(found.view())

    allowed = [Depends(may_change)]

    @api.post(
        "/replicas/{name}/drain", response_model=models.Replica, responses=models.CHANGE, dependencies=allowed
    )
    async def drain(name: str) -> Response:
        """No new requests for this replica; open ones may end: then its in_flight is 0."""
        return await set_drain(name, True)

    @api.post(
        "/replicas/{name}/undrain",
        response_model=models.Replica,
        responses=models.CHANGE,
        dependencies=allowed,
    )
    async def undrain(name: str) -> Response:
        """It may get requests again."""
        return await set_drain(name, False)

    return api


def _json(value: Any) -> Response:
    """Not through pydantic: 3,072 replicas twice a second would take a fifth of a core."""
    return Response(msgspec.json.encode(value), media_type="application/json")


def _page(encode: Any, numbers: Numbers, master: Operated, processes: Processes) -> bytes:
    processes.read({p.number: p.pid for p in master.places}, numbers)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Page(numbers, master.replicas))
    return bytes(encode(registry))


class AdminThread(threading.Thread):
    """uvicorn in a thread of its own, on sockets that are bound already."""

    def __init__(self, master: Operated, sockets: list[socket.socket]) -> None:
        super().__init__(name="admin", daemon=True)
        config = uvicorn.Config(
            app(master), log_level="warning", access_log=False, limit_concurrency=256, lifespan="off"
        )
        self.server = uvicorn.Server(config)
        self._sockets = sockets

    def run(self) -> None:
        self.server.run(self._sockets)

    def stop(self) -> None:
        self.server.should_exit = True
