"""Checks of a request body that name the field, before a replica sees it.

Only what no engine accepts is refused; unknown fields pass, and so does all that is in doubt. The body itself
is never changed.
"""

from __future__ import annotations

import re
from collections.abc import Set as AbstractSet
from typing import Any

import msgspec
from msgspec import UNSET

from serving.router.bodies import Any_, Chat, Completion, Embedding, Message, Problem, Sampling

_DECODERS: dict[str, msgspec.json.Decoder[Any]] = {
    "chat_completions": msgspec.json.Decoder(Chat),
    "completions": msgspec.json.Decoder(Completion),
    "embeddings": msgspec.json.Decoder(Embedding),
}
_ANY = msgspec.json.Decoder(Any_)
#: Roles whose message says nothing without content (an assistant's may be a tool call).
_NEEDS_CONTENT = frozenset(("user", "system", "developer", "tool"))


def decode(route: str, body: bytes) -> Chat | Completion | Embedding | Problem | None:
    """The body of a POST as far as it is read here, what is wrong with it, or None for routes that aren't read."""
    decoder = _DECODERS.get(route)
    if decoder is None:
        return None
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as e:
        return _words(str(e))
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as e:
        return _not_json(str(e), body)


def check(request: Chat | Completion | Embedding, models: AbstractSet[str]) -> Problem | None:
    """What no engine would accept in a decoded body.

    models: names that replicas serve; empty while none is known, and then any name passes.
    """
    model = request.model
    if models and model.__class__ is str and model not in models:
        return _model(model, models)
    kind = request.__class__
    if kind is Chat:
        problem = _messages(request.messages)  # type: ignore[union-attr]
        if problem is not None:
            return problem
    if kind is not Embedding:
        return _numbers(request)  # type: ignore[arg-type]
    return None


def named(body: bytes, models: AbstractSet[str]) -> tuple[str | None, bool, int | None]:
    """(known model, stream, max_output_tokens) of a body of another route, as far as it is JSON that names them.

    Nothing is refused.
    """
    if body[:1] != b"{":
        return None, False, None
    try:
        found = _ANY.decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None, False, None
    model, most = found.model, found.max_output_tokens
    return (
        model if isinstance(model, str) and model in models else None,
        found.stream is True,
        most if isinstance(most, int) and most > 0 else None,
    )


def text_of(request: Chat | Completion | Embedding) -> str:
    """What the user asks: the last user message, or the prompt; "" if there is no text."""
    if request.__class__ is Chat:
        for message in reversed(request.messages):
            if message.role == "user":
                return _plain(message.content)
        return ""
    return _plain(getattr(request, "prompt", ""))


def _plain(content: Any) -> str:
    if content.__class__ is str:
        return content
    if not isinstance(content, list):
        return ""
    if content and isinstance(content[0], str):
        return content[0]
    parts = [p.get("text") for p in content if isinstance(p, dict) and p.get("type") == "text"]
    return " ".join([p for p in parts if isinstance(p, str)])


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


def _model(model: object, models: AbstractSet[str]) -> Problem:
    known = ", ".join(sorted(models)[:20])
    message = f"model: `{str(model)[:100]}` is not served here; known: {known}"
    return Problem(404, "model_not_found", message, "model", "unknown_model")


def _messages(messages: list[Message]) -> Problem | None:
    if not messages:
        return Problem(400, "empty_messages", "messages must have at least one message", "messages")
    for i, m in enumerate(messages):
        if (m.content is UNSET or m.content is None) and m.role in _NEEDS_CONTENT:
            path = f"messages[{i}].content"
            return Problem(400, "missing_field", f"{path} is missing; a {m.role} message needs it", path)
    return None


def _numbers(request: Sampling) -> Problem | None:
    if request.max_tokens is not None and request.max_tokens < 0:
        return _too_small("max_tokens", request.max_tokens, 0)
    if request.max_completion_tokens is not None and request.max_completion_tokens < 1:
        return _too_small("max_completion_tokens", request.max_completion_tokens, 1)
    if request.n is not None and request.n < 1:
        return _too_small("n", request.n, 1)
    if request.temperature is not None and request.temperature < 0:
        return Problem(
            400,
            "invalid_value",
            f"temperature must not be negative, got {request.temperature:g}",
            "temperature",
        )
    return None


def _too_small(name: str, value: int, least: int) -> Problem:
    return Problem(400, "invalid_value", f"{name} must be at least {least}, got {value}", name)
