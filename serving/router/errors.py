"""What the router says when it refuses: OpenAI-shaped bodies, reasons that metrics count, words for bad HTTP."""

from __future__ import annotations

import json
from http import HTTPStatus

REASONS = {s.value: s.phrase.encode() for s in HTTPStatus}

#: Values of the label ``reason`` of exaserve_router_rejected_requests_total; nothing else appears there.
REJECTION_REASONS = (
    "schema", "unknown_model", "control_endpoint", "bad_http", "pipelining", "headers_too_large",
    "body_too_large", "request_timeout", "upgrade_refused", "too_many_connections", "stopping",
    "no_replica_ready", "capacity", "replica_failed", "queue_full", "queue_timeout", "deadline", "retry_budget",
    "too_many_bytes", "client_stalled", "unauthorized", "pool_forbidden", "max_tokens", "tenant_requests",
    "tenant_tokens", "tenant_in_flight",
)  # fmt: skip
RETRY_AFTER_SECONDS = 2


def body(message: str, kind: str, param: str | None, code: str) -> bytes:
    return json.dumps({"error": {"message": message, "type": kind, "param": param, "code": code}}).encode()


def answer(
    status: int, code: str, message: str, param: str | None, request_id: bytes, close: bool, extra: bytes = b"",
    kind: str | None = None,
) -> bytes:  # fmt: skip
    """A whole HTTP answer. 4xx are invalid_request_error, 5xx server_error, as OpenAI's clients expect.

    extra: further header lines, each with its CRLF. kind: ``error.type`` where it is another.
    """
    kind = kind or ("server_error" if status >= 500 else "invalid_request_error")
    content = body(message, kind, param, code)
    if status == 503 and b"retry-after" not in extra:
        extra += b"retry-after: %d\r\n" % RETRY_AFTER_SECONDS
    return b"".join(
        (
            b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\n" % (status, REASONS.get(status, b"-")),
            b"content-length: %d\r\nx-request-id: %s\r\n" % (len(content), request_id),
            extra,
            b"connection: close\r\n\r\n" if close else b"\r\n",
            content,
        )
    )


def parser_words(error: Exception) -> str:
    """llhttp's own message, without its internals."""
    text = str(error).strip() or "it could not be parsed"
    return f"the request is not valid HTTP/1.1: {text}"
