"""What a probe asks: which model a replica serves, and one token of it. What the answer means is health.py's."""

from __future__ import annotations

import json
from typing import Any

from serving.fleet.ask import Asker
from serving.fleet.replica import Replica


async def learn_model(asker: Asker, replica: Replica) -> list[dict[str, Any]]:
    """Fills ``replica.models`` from its /v1/models, and ``model`` with the first; returns what they were before.

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
    return before


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
