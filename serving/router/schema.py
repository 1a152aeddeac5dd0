"""Checks of a request body that name the field, before a replica sees it.

Only what no engine accepts is refused; unknown fields pass, and so does all that is in doubt. The body itself
is never changed.
"""

from __future__ import annotations

import re
from collections.abc import Set as AbstractSet
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


class _Message(msgspec.Struct):
    role: str
    content: str | list[Any] | UnsetType | None = UNSET
    tool_calls: Any = UNSET
    function_call: Any = UNSET
    refusal: Any = UNSET
    reasoning: Any = UNSET
    reasoning_content: Any = UNSET


class _Sampling(msgspec.Struct):
    model: str | UnsetType | None = UNSET
    stream: bool | None = False
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    n: int | None = None
    stream_options: dict[str, Any] | None = None


class _Chat(_Sampling, kw_only=True):
    messages: list[_Message]


class _Completion(_Sampling, kw_only=True):
    prompt: str | list[Any] | UnsetType | None = UNSET


class _Embedding(msgspec.Struct):
    model: str | UnsetType | None = UNSET
    stream: bool | None = False


class _Any(msgspec.Struct):
    model: Any = None


_DECODERS: dict[str, msgspec.json.Decoder[Any]] = {
    "chat_completions": msgspec.json.Decoder(_Chat),
    "completions": msgspec.json.Decoder(_Completion),
    "embeddings": msgspec.json.Decoder(_Embedding),
}
_ANY = msgspec.json.Decoder(_Any)
#: Roles whose message says nothing without content (an assistant's may be a tool call).
_NEEDS_CONTENT = frozenset(("user", "system", "developer", "tool"))


def check(
    route: str, method: bytes, body: bytes, models: AbstractSet[str]
) -> tuple[Problem | None, bool, str | None]:
    """(what is wrong or None, whether the client asks for a stream, the known model that it names).

    models: names that replicas serve; empty while none is known, and then any name passes.
    """
    decoder = _DECODERS.get(route)
    if decoder is None or method != b"POST":
        return None, False, _named(body, models)
    try:
        request = decoder.decode(body)
    except msgspec.ValidationError as e:
        return _words(str(e)), False, None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as e:
        return _not_json(str(e), body), False, None
    problem = _model(request.model, models)
    if problem is None and route == "chat_completions":
        problem = _messages(request.messages)
    if problem is None and route != "embeddings":
        problem = _numbers(request)
    named = request.model if isinstance(request.model, str) and request.model in models else None
    return problem, bool(request.stream), named


def _named(body: bytes, models: AbstractSet[str]) -> str | None:
    """The known model that a body of another route names, if it is JSON that does. Nothing is refused here."""
    if body[:1] != b"{" or len(models) < 2:
        return None
    try:
        model = _ANY.decode(body).model
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
    return model if isinstance(model, str) and model in models else None


def _words(text: str) -> Problem:
    """msgspec's ``Expected `array`, got `null` - at `$.messages``` with the path as clients write it."""
    what, _, place = text.partition(" - at `")
    path = re.sub(r"^\$\.?", "", place.rstrip("`"))
    missing = re.match(r"Object missing required field `(.*)`$", what)
    if missing:
        path = f"{path}.{missing[1]}" if path else missing[1]
        return Problem(400, "missing_field", f"{path} is missing", path)
    return Problem(400, "invalid_type", f"{path or 'the body'}: {what[0].lower()}{what[1:]}", path or None)


def _not_json(text: str, body: bytes) -> Problem:
    at = re.search(r"byte (\d+)", text)
    if not body.strip():
        return Problem(400, "invalid_json", "the body is empty; it must be a JSON object", None)
    where = ""
    if at:
        before = body[: int(at[1])]
        column = len(before) - before.rfind(b"\n")
        where = f" (line {before.count(10) + 1}, column {column})"
    return Problem(400, "invalid_json", f"the body is not valid JSON: {text}{where}", None)


def _model(model: str | UnsetType | None, models: AbstractSet[str]) -> Problem | None:
    if not models or not isinstance(model, str) or model in models:
        return None
    known = ", ".join(sorted(models)[:20])
    message = f"model: `{model[:100]}` is not served here; known: {known}"
    return Problem(404, "model_not_found", message, "model", "unknown_model")


def _messages(messages: list[_Message]) -> Problem | None:
    if not messages:
        return Problem(400, "empty_messages", "messages must have at least one message", "messages")
    for i, m in enumerate(messages):
        if (m.content is UNSET or m.content is None) and m.role in _NEEDS_CONTENT:
            path = f"messages[{i}].content"
            return Problem(400, "missing_field", f"{path} is missing; a {m.role} message needs it", path)
    return None


def _numbers(request: _Sampling) -> Problem | None:
    for name in ("max_tokens", "max_completion_tokens", "n"):
        value = getattr(request, name)
        least = 1 if name != "max_tokens" else 0
        if value is not None and value < least:
            return Problem(400, "invalid_value", f"{name} must be at least {least}, got {value}", name)
    if request.temperature is not None and request.temperature < 0:
        return Problem(
            400,
            "invalid_value",
            f"temperature must not be negative, got {request.temperature:g}",
            "temperature",
        )
    return None
