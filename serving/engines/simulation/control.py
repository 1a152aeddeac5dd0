"""The control port of a process of simulated replicas: which there are, how they do, their faults.

A replica that refuses connections can't be told over its own port to stop doing so; and one address is enough
to break a third of a fleet. ``GET /replicas``, ``GET`` and ``POST /replicas/NAME/fault``; NAME may be a pattern
like ``sim-1*``. Only on loopback.
"""

from __future__ import annotations

import fnmatch
import re
from typing import Any

from . import api, faults
from .connections import Connections, Owner
from .http import Connection, HttpRequest
from .replicas import Replica

_FAULT = re.compile(r"/replicas/([^/]{1,200})/fault")


class Control(Owner):
    """Answers on the control port. The replicas are those of this process."""

    def __init__(self, replicas: list[Replica], connections: Connections) -> None:
        super().__init__()
        self._replicas = replicas
        self._everywhere = connections

    def protocol(self) -> Connection:
        """A new connection's protocol, for ``loop.create_server``."""
        return Connection(self, self._everywhere)

    def handle(self, connection: Connection, request: HttpRequest) -> None:
        try:
            status, answer = 200, self._answer(request)
            body = api.encode(answer)
        except api.ApiError as error:
            status, body = error.status, error.body
        connection.respond(status, body, "application/json")

    def _answer(self, request: HttpRequest) -> dict[str, Any]:
        if request.path in ("/replicas", "/livez"):
            if request.method != "GET":
                raise api.ApiError(405, f"{request.path} takes GET", "MethodNotAllowedError")
            return {"replicas": [_state(r) for r in self._replicas]} if request.path == "/replicas" else {}
        if not (found := _FAULT.fullmatch(request.path)):
            raise api.ApiError(
                404, "there are GET /replicas, GET and POST /replicas/NAME/fault", "NotFoundError"
            )
        match = re.compile(fnmatch.translate(found[1])).match
        chosen = [r for r in self._replicas if match(r.name)]
        if not chosen:
            raise api.ApiError(404, f"no replica is called {found[1]}", "NotFoundError", "name")
        if request.method == "POST":
            body = api.parse_body(request.headers.get("content-type", "application/json"), request.body)
            faults.parse(body)  # all of them or none
            for replica in chosen:
                replica.server.faults.set(body)
        elif request.method != "GET":
            raise api.ApiError(405, "a fault takes GET and POST", "MethodNotAllowedError")
        return {"replicas": {r.name: {"fault": r.server.faults.state()} for r in chosen}}


def _state(replica: Replica) -> dict[str, Any]:
    """What one replica is doing. aborted: requests whose client went away, since it started."""
    server = replica.server
    return {
        "name": replica.name,
        "url": replica.url,
        "running": len(server.engine.running),
        "waiting": len(server.engine.waiting),
        "kv_usage": server.engine.blocks.usage,
        "aborted": server.metrics.aborted,
        "fault": server.faults.state(),
    }
