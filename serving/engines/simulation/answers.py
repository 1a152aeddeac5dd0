"""Answers of the simulated replica, key for key as vLLM 0.32 writes them: whole ones, chunks, embeddings.

Checking requests is in ``api.py``, sending in ``server.py``.
"""

from __future__ import annotations

import base64
import struct
import time
from typing import Any

from .api import FINGERPRINT, Generate, encode

DONE = b"data: [DONE]\n\n"


def event(value: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + encode(value) + b"\n\n"


def models(model: str, max_model_len: int) -> dict[str, Any]:
    """/v1/models: the one model there is."""
    now = int(time.time())
    permission = {
        "id": f"modelperm-{model}",
        "object": "model_permission",
        "created": now,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
    card = {
        "id": model,
        "object": "model",
        "created": now,
        "owned_by": "vllm",
        "root": model,
        "parent": None,
        "max_model_len": max_model_len,
        "permission": [permission],
    }
    return {"object": "list", "data": [card]}


def embeddings(
    identity: str, model: str, vectors: list[list[float]], tokens: int, packed: bool
) -> dict[str, Any]:
    """/v1/embeddings. packed: each vector as base64 of little-endian float32."""
    data = [
        {
            "index": index,
            "object": "embedding",
            "embedding": base64.b64encode(struct.pack(f"<{len(v)}f", *v)).decode() if packed else v,
        }
        for index, v in enumerate(vectors)
    ]
    return {
        "id": identity,
        "object": "list",
        "created": int(time.time()),
        "model": model,
        "data": data,
        "usage": _usage(tokens, 0),
    }


class Writer:
    """Writes the answer to one ``Generate``.

    identity: the answer's id. Text comes in by ``add``; ``chunk`` makes the event for it, ``whole`` the answer
    without streaming.
    """

    __slots__ = ("_base", "_reasons", "_request", "_stop_reasons", "_texts", "completion_tokens")

    def __init__(self, request: Generate, identity: str, model: str) -> None:
        kind = (
            ("chat.completion" + (".chunk" if request.stream else "")) if request.chat else "text_completion"
        )
        self._base = {"id": identity, "object": kind, "created": int(time.time()), "model": model}
        self._request = request
        self._texts: list[list[str]] = [[] for _ in request.prompts]
        self._reasons: list[str | None] = [None for _ in request.prompts]
        self._stop_reasons: list[str | None] = [None for _ in request.prompts]
        self.completion_tokens = 0

    def add(self, index: int, text: str, reason: str | None, stop_reason: str | None) -> None:
        """Choice ``index`` has more text, and its end if there is a ``reason``. Tokens count apart."""
        if not self._request.stream:
            self._texts[index].append(text)
        if reason:
            self._reasons[index], self._stop_reasons[index] = reason, stop_reason

    @property
    def finished(self) -> bool:
        """Whether every choice has ended."""
        return all(self._reasons)

    def opening(self) -> bytes:
        """The chunk before the first token of a chat: the role. Empty for text completions."""
        if not self._request.chat:
            return b""
        delta = {"role": "assistant", "content": ""}
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
        return event(
            {
                **self._base,
                "choices": [choice],
                **self._running_usage(),
                "prompt_token_ids": None,
                "prompt_text": None,
            }
        )

    def frame(self) -> tuple[bytes, bytes] | None:
        """What stands before and after the text in the usual ``chunk``: one choice, no end, no usage.

        None if this request's chunks are not like that. Text of ``Answer.word`` needs no escaping.
        """
        if self._request.continuous_usage or len(self._request.prompts) != 1:
            return None
        before, _, after = self.chunk(0, "\0", None, None).partition(b"\\u0000")
        return before, after

    def chunk(self, index: int, text: str, reason: str | None, stop_reason: str | None) -> bytes:
        """The chunk of one token, after ``add``."""
        choice: dict[str, Any] = {"index": index}
        if self._request.chat:
            choice |= {"delta": {"content": text}, "logprobs": None, "finish_reason": reason}
            if reason:
                choice["stop_reason"] = stop_reason
            choice["token_ids"] = None
        else:
            choice |= {"text": text, "logprobs": None, "finish_reason": reason, "stop_reason": stop_reason}
            choice |= {"prompt_token_ids": None, "token_ids": None}
        end = {"system_fingerprint": FINGERPRINT} if reason and not self._request.include_usage else {}
        return event({**self._base, "choices": [choice], **self._running_usage(), **end})

    def closing(self) -> bytes:
        """What ends a stream: the usage if it was asked for, and [DONE]."""
        if not self._request.include_usage:
            return DONE
        usage = {key: value for key, value in self._usage().items() if value is not None}
        return event({**self._base, "choices": [], "usage": usage, "system_fingerprint": FINGERPRINT}) + DONE

    def whole(self) -> dict[str, Any]:
        """The answer without streaming."""
        ended = zip(self._texts, self._reasons, self._stop_reasons, strict=True)
        choices = [
            self._choice(index, "".join(text), reason, stop)
            for index, (text, reason, stop) in enumerate(ended)
        ]
        rest = (
            dict.fromkeys(("prompt_logprobs", "prompt_token_ids", "prompt_text"))
            if self._request.chat
            else {}
        )
        return {
            **self._base,
            "choices": choices,
            "service_tier": None,
            "system_fingerprint": FINGERPRINT,
            "usage": self._usage(),
            **rest,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        }

    def _choice(self, index: int, text: str, reason: str | None, stop_reason: str | None) -> dict[str, Any]:
        end = {"logprobs": None, "finish_reason": reason, "stop_reason": stop_reason, "token_ids": None}
        if not self._request.chat:
            more = dict.fromkeys(("prompt_logprobs", "prompt_token_ids", "routed_experts"))
            return {"index": index, "text": text, **end, **more}
        unused = dict.fromkeys(("refusal", "annotations", "audio", "function_call", "reasoning"))
        message = {"role": "assistant", "content": text, **unused}
        return {"index": index, "message": message, **end, "routed_experts": None}

    def _usage(self) -> dict[str, Any]:
        return _usage(self._request.prompt_tokens, self.completion_tokens)

    def _running_usage(self) -> dict[str, Any]:
        if not self._request.continuous_usage:
            return {}
        usage = self._usage()
        del usage["prompt_tokens_details"]
        if not self._request.chat:
            del usage["completion_tokens_details"]
        return {"usage": usage}


def _usage(prompt: int, completion: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
        "prompt_tokens_details": None,
        "completion_tokens_details": None,
    }
