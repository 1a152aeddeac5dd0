"""The token counts that an engine reports at the end of an answer, found in its bytes."""

from __future__ import annotations

import re

#: The report is at the end of a JSON answer, and in one of the last events of a stream.
LOOK_BACK = 4096
_PROMPT = re.compile(rb'"(?:prompt|input)_tokens": ?(\d{1,12})').search
_COMPLETION = re.compile(rb'"(?:completion|output)_tokens": ?(\d{1,12})').search


def usage_in(tail: bytes) -> tuple[int, int] | None:
    """(prompt tokens, completion tokens) of the last ``usage`` in ``tail``; None if there is none.

    Text that a model wrote can't be taken for it: within JSON strings quotes are escaped.
    """
    at = tail.rfind(b'"usage"', -LOOK_BACK)
    if at < 0:
        return None
    found = _PROMPT(tail, at, at + 400)
    if found is None:
        return None
    completion = _COMPLETION(tail, at, at + 400)
    return int(found[1]), int(completion[1]) if completion is not None else 0
