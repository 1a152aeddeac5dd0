"""Which session a request belongs to, as a 64-bit key: requests of one key share a prefix worth going back for.

In this order:

1. the header ``x-session-id``;
2. the body's ``prompt_cache_key``, then ``session_id``. Not ``user``: many clients send one name for a whole
   tenant, and who asks says nothing about the prefix;
3. a conversation (an assistant has spoken): everything up to and including the first user message. All later
   turns repeat that, so all go where the turns before are cached;
4. a system prompt of LONG_PROMPT characters or more: the system prompt. That includes the first turn of a
   conversation: at that moment the system prompt is all that can be cached;
5. else none, 0. The first turn of a conversation without a long system prompt goes by load; its second turn
   computes the first once more. Keeping a place for each single question instead costs more than it saves
   (tests/benchmarks/policies.py --turn1 hash).

Keys follow from the bytes alone: they are the same in every worker and after a restart. Of a text its
length, HEAD characters of its beginning and TAIL of its end count; two sessions with the same key only share a
place. What is done with a key is ``policies/hybrid.py``'s business.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from zlib import crc32

#: Characters of a system prompt from which it is worth a key: 512 tokens or so, 32 of vLLM's blocks.
LONG_PROMPT = 2048
HEAD, TAIL = 256, 128
#: Messages and parts of a message that are looked at; a conversation's first user message comes before.
MESSAGES, PARTS = 16, 4
#: Longest explicit key that counts whole.
LONGEST_KEY = 1024
_64 = 0xFFFF_FFFF_FFFF_FFFF
_GOLDEN = 0x9E3779B97F4A7C15


def _spread(crc: int) -> int:
    """A key, not 0, out of a checksum: a place on the ring is in the high bits, which depend on all of it."""
    return (crc * _GOLDEN & _64) or 1


def session_of(header: bytes | None, request: Any) -> int:
    """The key, 1 to 2**64 - 1, or 0 where the request belongs to no session.

    header: value of ``x-session-id``, None or empty where there is none. request: the decoded body
    (``schema.py``) or None; fields that it lacks or that have another type than expected count as absent.
    Never raises.
    """
    if header:
        return _spread(crc32(header[:LONGEST_KEY]))
    key = getattr(request, "prompt_cache_key", None) or getattr(request, "session_id", None)
    if key and isinstance(key, str):
        return _spread(crc32(key[:LONGEST_KEY].encode("utf-8", "surrogatepass")))
    messages = getattr(request, "messages", None)
    if not messages or len(messages) == 1:
        return 0
    if len(messages) == 2:
        content = messages[0].content
        if content.__class__ is str and len(content) < LONG_PROMPT:
            return 0  # most requests
    return _of_messages(messages)


def _of_messages(messages: Sequence[Any]) -> int:
    crc = length = prompt = 0
    asked = False
    last = len(messages) - 1
    for i, message in enumerate(messages[:MESSAGES] if last >= MESSAGES else messages):
        role = message.role
        if asked:
            if role == "assistant":
                return _spread(crc)
            continue
        if role == "user":
            asked = True
            if length >= LONG_PROMPT:
                prompt = _spread(crc)
            if i == last:
                break  # nobody has answered it
        # An assistant's words before any question (a greeting) belong to the prompt.
        content = message.content
        if content.__class__ is str:
            n = len(content)
            short = content if n <= HEAD + TAIL else content[:HEAD] + content[-TAIL:]
            crc = crc32(short.encode("utf-8", "surrogatepass"), crc + n & 0xFFFF_FFFF)
            length += n + 1
        elif content.__class__ is list:
            crc, length = _parts(content, crc, length)
    return prompt


def _parts(content: list[Any], crc: int, length: int) -> tuple[int, int]:
    """Checksum and length so far, with the text and image addresses of a message's parts in them."""
    for part in content[:PARTS]:
        if not isinstance(part, dict):
            continue
        text = part.get("text")
        if text is None:
            image = part.get("image_url")
            text = image.get("url") if isinstance(image, dict) else image
        if isinstance(text, str):
            n = len(text)
            short = text if n <= HEAD + TAIL else text[:HEAD] + text[-TAIL:]
            crc = crc32(short.encode("utf-8", "surrogatepass"), crc + n & 0xFFFF_FFFF)
            length += n + 1
    return crc, length
