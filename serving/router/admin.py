"""The admin API: liveness, readiness, metrics, the fleet as the router sees it, service discovery.

On its own port and in its own thread, so that a large answer here never delays a stream. It only reads.
"""

from __future__ import annotations

import threading
import time
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

if TYPE_CHECKING:
    from serving.router.server import Server


def app(server: Server) -> FastAPI:
    """The API over ``server``; see docs at ``/docs`` of the admin port."""
    api = FastAPI(title="ExaServe router, admin API", version=version("exaserve"))
    registry = CollectorRegistry(auto_describe=False)
    registry.register(server.collector())
    started = time.time()

    @api.get("/livez")
    def livez() -> dict[str, str]:
        """The router's process answers."""
        return {"status": "alive"}

    @api.get("/readyz")
    def readyz() -> JSONResponse:
        """200 if any replica is in rotation, else 503."""
        n = sum(r.in_rotation for r in list(server.replicas))
        ready = n > 0 and not server.stopping
        return JSONResponse(
            {"status": "ready" if ready else "not ready", "replicas_in_rotation": n}, 200 if ready else 503
        )

    @api.get("/metrics")
    def metrics(request: Request) -> Response:
        """Prometheus text or OpenMetrics, as asked for."""
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(registry), headers={"content-type": content_type})

    @api.get("/fleet")
    def fleet() -> dict[str, Any]:
        """Every replica: state, why, since when, load. null where unknown."""
        return {
            "replicas": [r.view() for r in list(server.replicas)],
            "router": {
                "version": version("exaserve"),
                "uptime_seconds": time.time() - started,
                "client_connections": len(server.clients),
            },
        }

    @api.get("/sd")
    def sd() -> list[dict[str, Any]]:
        """Prometheus HTTP service discovery of the replicas' own metrics pages."""
        return [
            {"targets": [r.address], "labels": {"replica": r.name, "model": r.model}}
            for r in list(server.replicas)
        ]

    return api


class AdminThread(threading.Thread):
    """uvicorn in a thread of its own. ``failed`` holds what stopped it from starting, if anything."""

    def __init__(self, server: Server, host: str, port: int) -> None:
        super().__init__(name="admin", daemon=True)
        config = uvicorn.Config(
            app(server), host=host, port=port, log_level="warning", access_log=False, limit_concurrency=256
        )
        self.server = uvicorn.Server(config)
        self.failed: str | None = None

    def run(self) -> None:
        try:
            self.server.run()
        except SystemExit:
            self.failed = (
                f"admin API: could not listen on {self.server.config.host}:{self.server.config.port}"
            )

    def stop(self) -> None:
        self.server.should_exit = True
