"""Shapes of the admin API's answers, for its schema (``/openapi.json``); the answers themselves are plain data."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict


class Status(BaseModel):
    status: str


class Error(BaseModel):
    detail: str


class Ready(BaseModel):
    status: Literal["ready", "not ready", "stopping"]
    replicas_in_rotation: int


class Replica(BaseModel):
    """null where unknown; times are Unix seconds."""

    model_config = ConfigDict(extra="allow")

    name: str
    url: str
    model: str | None
    state: Literal["starting", "ready", "degraded", "ejected", "draining", "down", "frozen"]
    since: float
    reason: str
    in_flight: int
    running: int | None
    waiting: int | None
    kv_usage: float | None
    probe_seconds: float | None
    consecutive_failures: int


class Pool(BaseModel):
    """open, waiting: requests, all workers together, up to a second old."""

    name: str
    replicas: int
    in_rotation: int
    panic: bool
    open: int
    waiting: int


class Router(BaseModel):
    version: str
    uptime_seconds: float
    client_connections: int
    workers: int


class Fleet(BaseModel):
    replicas: list[Replica]
    pools: list[Pool]
    router: Router


class Worker(BaseModel):
    worker: int
    pid: int | None
    state: Literal["starting", "serving", "stopping", "waiting", "ended"]
    seconds_in_process: float | None
    open_requests: int
    restarts: dict[Literal["died", "frozen"], int]


class Target(BaseModel):
    """A target group of Prometheus' http_sd_configs."""

    targets: list[str]
    labels: dict[str, str]


Responses = dict[int | str, dict[str, Any]]
METRICS: Responses = {
    200: {"content": {"text/plain": {"schema": {"type": "string"}}, "application/openmetrics-text": {"schema": {"type": "string"}}}},
    503: {"model": Error, "description": "The master does not react"},
}  # fmt: skip
NO_REPLICA: Responses = {404: {"model": Error, "description": "No replica of that name"}}
CHANGE: Responses = {
    **NO_REPLICA,
    401: {"model": Error, "description": "Without the token of router.admin_token_file"},
    403: {"model": Error, "description": "Asked for by a page of another site"},
    503: {"model": Error, "description": "The router is stopping"},
}
