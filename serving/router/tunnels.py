"""Ties a WebSocket tunnel to the request that asked for it: counted on its replica, tried again, accounted for."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

from serving.fleet.replica import Replica
from serving.router.metrics import RETRY_REASONS
from serving.router.websocket import Tunnel

if TYPE_CHECKING:
    from serving.router.exchange import Exchange
    from serving.router.server import Server


def open_tunnel(server: Server, exchange: Exchange, replica: Replica, tls: ssl.SSLContext | None) -> None:
    """The exchange was assigned to ``replica``; from here on the tunnel is what is open there."""
    client = exchange.client
    transport = client.transport
    assert transport is not None

    def ended(outcome: str, reason: str) -> None:
        exchange.tunnel = None
        server.metrics.count("exaserve_router_tunnels_total", (outcome,))
        if outcome == "failed":
            server.attempt_lost(exchange, replica, reason, begun=False)
            exchange.release("failed")
            exchange.body = tunnel.early
            server.try_again(exchange, reason if reason in RETRY_REASONS else "reset")
            return
        exchange.release(outcome)
        exchange.finish_tunnel(tunnel.status, outcome)

    def closed() -> None:
        server.clients.discard(client)
        client.exchange = None

    # The tunnel counts itself in: one open request, not two.
    replica.attempts.discard(exchange)
    tunnel = exchange.tunnel = Tunnel(
        transport, exchange.head, replica, ended, closed, early=exchange.body,
        answer_lines=b"x-request-id: %s\r\n%s" % (exchange.request_id, server.replica_lines[replica]), tls=tls,
    )  # fmt: skip
    tunnel.pool = exchange.pool
    tunnel.start()
