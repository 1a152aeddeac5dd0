"""What a probe asks: which model a replica serves, and one token of it. What the answer means is health.py's."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from serving.fleet import load
from serving.fleet.ask import Asker
from serving.fleet.replica import Replica

#: That the page with the size of the KV cache may take; the rest of a probe's time is for what it is about.
PAGE_SECONDS = 1.0


async def learn_model(asker: Asker, replica: Replica) -> list[dict[str, Any]]:
    """Fills ``replica.models`` from its /v1/models, ``model`` with the first, and ``kv_tokens``; returns what the
    models were before.

    Raises ValueError if the answer is no such list, OSError as the asker does.
    """
    status, body = await asker.ask(replica, "GET", "/v1/models")
    try:
        models = json.loads(body)["data"]
        name = str(models[0]["id"])
    except (ValueError, LookupError, TypeError, RecursionError):
        raise ValueError(f"/v1/models: {status_words(status, body)}") from None
    before, replica.models = replica.models, [m for m in models if isinstance(m, dict)]
    replica.model = name
    replica.kv_tokens = await _kv_tokens(asker, replica)
    return before


async def _kv_tokens(asker: Asker, replica: Replica) -> int | None:
    """An engine that does not say how large its KV cache is, or whose page hangs, serves all the same."""
    try:
        async with asyncio.timeout(PAGE_SECONDS):
            status, page = await asker.ask(replica, "GET", load.CAPACITY_PAGE)
    except (OSError, TimeoutError):
        return None
    return load.kv_tokens(page) if status == 200 else None


async def infer(asker: Asker, replica: Replica) -> tuple[int, bytes]:
    """(status, body) of one token, or of one embedding where the model can't generate."""
    body = json.dumps({"model": replica.model, "prompt": "1", "max_tokens": 1, "temperature": 0}).encode()
    status, answer = await asker.ask(replica, "POST", "/v1/completions", body)
    if (status in (400, 404, 405, 501) and b"does not support" in answer) or status in (405, 501):
        body = json.dumps({"model": replica.model, "input": "1"}).encode()
        status, answer = await asker.ask(replica, "POST", "/v1/embeddings", body)
    elif status == 404:
        replica.model = ""  # restarted with another model: learn it again at the next probe
    return status, answer


def status_words(status: int, body: bytes) -> str:
    """The status for people, with the cure where there is a likely one."""
    cure = {
        401: "; it wants an API key: give the router its key (router.replica_token_file)",
        403: "; it wants an API key: give the router its key (router.replica_token_file)",
        404: "; is it a vLLM OpenAI server?",
    }.get(status, "")
    said = f": {body[:120].decode(errors='replace')}" if status >= 400 else ""
    return f"status {status}{cure}{said}"
