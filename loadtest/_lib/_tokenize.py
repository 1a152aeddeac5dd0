"""How many tokens the served model makes of a text: vLLM's ``POST /tokenize``, once at the start of a run."""

from __future__ import annotations

import http.client
import json
from urllib.parse import urlsplit

#: Seconds that one answer may take.
_PATIENCE = 10.0


def count(host: str, model: str, text: str, api_key: str | None = None) -> int:
    """Tokens of ``text``, template and special tokens not counted. host: as -H has it.

    Raises LookupError that says what is wrong.
    """
    url = urlsplit(host)
    kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
    connection = kind(url.hostname or "", url.port, timeout=_PATIENCE)
    headers = {"Content-Type": "application/json"}
    if api_key:
        headers["Authorization"] = f"Bearer {api_key}"
    body = json.dumps({"model": model, "prompt": text, "add_special_tokens": False}).encode()
    path = url.path.rstrip("/").removesuffix("/v1") + "/tokenize"
    try:
        connection.request("POST", path, body, headers)
        response = connection.getresponse()
        data = response.read(1 << 24)
    except (OSError, http.client.HTTPException) as error:
        raise LookupError(f"{path} can't be asked: {error or type(error).__name__}") from None
    finally:
        connection.close()
    if response.status != 200:
        raise LookupError(f"{path} answered {response.status}")
    try:
        found = json.loads(data)["count"]
    except (ValueError, KeyError, TypeError):
        found = None
    if not isinstance(found, int):
        raise LookupError(f"{path} gave no count")
    return found
