"""Bodies of requests as far as the router reads them, and what can be wrong with one. Reading is ``schema.py``'s."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a body is refused. param: the field's path, e.g. ``messages[1].content``."""

    status: int
    code: str
    message: str
    param: str | None
    reason: str = "schema"


class Message(msgspec.Struct):
    role: str
    content: str | list[Any] | UnsetType | None = UNSET
    tool_calls: Any = UNSET
    function_call: Any = UNSET
    refusal: Any = UNSET
    reasoning: Any = UNSET
    reasoning_content: Any = UNSET


class Sampling(msgspec.Struct):
    model: str | UnsetType | None = UNSET
    stream: bool | None = False
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    n: int | None = None
    stream_options: dict[str, Any] | None = None
    prompt_cache_key: Any = None
    session_id: Any = None
    user: Any = None


class Chat(Sampling, kw_only=True):
    """A chat request, as far as the router reads it."""

    messages: list[Message]


class Completion(Sampling, kw_only=True):
    prompt: str | list[Any] | UnsetType | None = UNSET


class Embedding(msgspec.Struct):
    model: str | UnsetType | None = UNSET
    stream: bool | None = False


class Any_(msgspec.Struct):
    model: Any = None
    stream: Any = None
    max_output_tokens: Any = None
