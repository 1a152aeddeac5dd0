"""The few paths of the client port that are the router's own: /v1/models and /health."""

from __future__ import annotations

from typing import TYPE_CHECKING

from serving.router.admission import none_ready

if TYPE_CHECKING:
    from serving.router.exchange import Exchange
    from serving.router.server import Server


def answer(server: Server, exchange: Exchange, method: bytes, path: bytes) -> bool:
    """Answer it if it is one of them. False for all others."""
    if method not in (b"GET", b"HEAD") or path not in (b"/v1/models", b"/health"):
        return False
    if not any(p.everyone.rotating for p in server.all_pools):
        none_ready(server, exchange, [r for r in server.replicas if not r.in_rotation][:4])
    elif path == b"/health":
        exchange.answer_json({"status": "ok"})
    else:
        exchange.answer_json({"object": "list", "data": _models(server)})
    return True


def _models(server: Server) -> list[object]:
    seen: dict[object, object] = {}
    for r in server.replicas:
        if r.in_rotation:
            for m in r.models:
                seen.setdefault(str(m.get("id")), m)
    return list(seen.values())
