"""Whether an answer that had to be a refusal is a good one: the right status, and words that help.

Not here: which requests must be refused (``_profiles/_overlong.py``), answers with tokens (``_sender``).
"""

from __future__ import annotations

import json
import re

#: Words of vLLM, of OpenAI and of ExaServe's router for "too long".
_LIMIT = re.compile(r"context|maximum|max_model_len|too (long|large|many)|limit|exceed", re.IGNORECASE)


def unclear(status: int, body: bytes, expect: int) -> str | None:
    """Why this is not the clear refusal that was due, or None if it is.

    Clear: status ``expect`` and ``{"error": {"message": …}}`` with a message that names a limit and a number.
    """
    if status != expect:
        return f"HTTP {status} where a clear {expect} was due"
    try:
        message = json.loads(body)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return f"HTTP {expect} without an OpenAI-shaped error in it"
    if not isinstance(message, str) or not _LIMIT.search(message) or not re.search(r"\d", message):
        return f"HTTP {expect} whose message names no limit"
    return None
