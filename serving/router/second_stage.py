"""A request whose intent the first stage is not sure of: the transformer looks at it, while others go on."""

from __future__ import annotations

import sys
from time import monotonic
from typing import TYPE_CHECKING

from serving.router.intake import admit

if TYPE_CHECKING:
    from serving.intent.classifier import Classifier
    from serving.router.exchange import Exchange
    from serving.router.server import Server


async def look(server: Server, classifier: Classifier, exchange: Exchange, text: str) -> None:
    """Set the exchange's intent, if an answer comes in time; a request that was held (``pending``) then goes on."""
    began = monotonic()
    found = None
    try:
        if classifier.second is not None:
            found = await classifier.second.classify(text)
    except Exception as e:  # it is a help, not a condition: the first stage's word stands
        print(f"intent: the second stage failed: {type(e).__name__}: {e}", file=sys.stderr, flush=True)
    if found is not None and not exchange.done:
        exchange.intent, exchange.confidence = found
    server.metrics.classified(exchange.intent, "timeout" if found is None else "second")
    if exchange.pending is not None and not exchange.done:
        pending, exchange.pending = exchange.pending, None
        exchange.waited += monotonic() - began
        admit(server, exchange, *pending)
