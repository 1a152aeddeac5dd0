"""What vLLM's OpenAI server says: requests checked, answers, chunks and errors in its words and key order.

Held to a real replica by ``tests/serving/test_engines_real.py``. No sockets here (``server.py``) and no
scheduling (``scheduler.py``).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import msgspec

from .text import Prompt, number, pieces

FINGERPRINT = "vllm-0.32.0-simulated"
# SmolLM2's chat template, in pieces: what it puts around each message, before the answer, and in front of a chat
# that has no system message of its own.
_START, _END, _NEWLINE = "<|im_start|>", "<|im_end|>", "\n"
_ANSWER = [_START, "assistant", _NEWLINE]
_SYSTEM_PIECES = pieces("You are a helpful AI assistant named SmolLM, trained by Hugging Face")
_DEFAULT_COMPLETION_TOKENS = 16


class ApiError(Exception):
    """An error for the client. ``body`` is OpenAI-shaped; ``headers``: further lines, each ending in CRLF."""

    def __init__(
        self,
        status: int,
        message: str,
        kind: str = "BadRequestError",
        param: str | None = None,
        headers: str = "",
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers
        self.body = encode({"error": {"message": message, "type": kind, "param": param, "code": status}})


def encode(value: Any) -> bytes:
    """Compact JSON."""
    return msgspec.json.encode(value)


def engine_dead() -> ApiError:
    """What clients get while the engine goes down under them."""
    return ApiError(
        500,
        "EngineCore encountered an issue. See stack trace (above) for the root cause.",
        "InternalServerError",
    )


@dataclass(slots=True)
class Generate:
    """A checked request for text. prompts: one a choice."""

    chat: bool
    prompts: list[Prompt]
    max_tokens: int
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    prompt_tokens: int = field(init=False)

    def __post_init__(self) -> None:
        self.prompt_tokens = sum(map(len, self.prompts))


def parse_body(content_type: str, body: bytes | bytearray) -> dict[str, Any]:
    """The request's JSON object. Raises ApiError."""
    if (
        content_type != "application/json"
        and content_type.partition(";")[0].strip().lower() != "application/json"
    ):
        raise _invalid(None, "Unsupported Media Type: Only 'application/json' is allowed")
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        value = _decode_slowly(body)
    if not isinstance(value, dict):
        kind = f"<{type(value).__name__} of {len(value)} items>" if isinstance(value, list) else str(value)
        text = "Input should be a valid dictionary or object to extract fields from"
        raise _invalid(
            "body", f"{{'type': 'model_attributes_type', 'loc': 'body', 'msg': '{text}', 'input': '{kind}'}}"
        )
    return value


def _decode_slowly(body: bytes | bytearray) -> Any:
    """The standard library's decoder, which says where the fault is, in the words that vLLM passes on."""
    try:
        return json.loads(body)
    except json.JSONDecodeError as e:
        where = f"body.{e.pos}"
        raise _invalid(
            where,
            f"{{'type': 'json_invalid', 'loc': '{where}', 'msg': 'JSON decode error', "
            f"'input': '<dict of 0 items>', 'ctx': {{'error': '{e.msg}'}}}}",
        ) from None
    except (UnicodeDecodeError, RecursionError, ValueError):
        raise ApiError(400, "There was an error parsing the body") from None


def _invalid(param: str | None, detail: str) -> ApiError:
    return ApiError(400, f"1 validation error:\n  {detail}", "Bad Request", param)


def _wrong_type(name: str, kind: str, text: str, value: Any) -> ApiError:
    where = f"body.{name}"
    return _invalid(where, f"{{'type': '{kind}', 'loc': '{where}', 'msg': '{text}', 'input': '{value}'}}")


def _missing(name: str, size: int) -> ApiError:
    return _wrong_type(name, "missing", "Field required", f"<dict of {size} items>")


def parse_chat(body: dict[str, Any], model: str, max_model_len: int) -> Generate:
    """A checked chat completion. Raises ApiError."""
    if "messages" not in body:
        raise _missing("messages", len(body))
    messages = body["messages"]
    if messages is None:
        raise ApiError(400, "'NoneType' object is not iterable")
    if not isinstance(messages, list):
        raise _wrong_type("messages", "list_type", "Input should be a valid list", messages)
    prompt = _templated(messages)
    options = _options(body)
    _check_model(body, model)
    if not messages:
        raise ApiError(
            400, "Cannot apply chat template to an empty conversation. Provide at least one message."
        )
    limit = _max_tokens(body, ("max_completion_tokens", "max_tokens"), max_model_len)
    _check_length(prompt, max_model_len)
    return Generate(True, [prompt], min(limit or max_model_len, max_model_len - len(prompt)), **options)


def parse_completion(body: dict[str, Any], model: str, max_model_len: int) -> Generate:
    """A checked text completion; a list of prompts gives one choice each. Raises ApiError."""
    options = _options(body)
    prompts = _prompts(body.get("prompt"), "prompt")
    _check_model(body, model)
    limit = _max_tokens(body, ("max_tokens",), max_model_len) or _DEFAULT_COMPLETION_TOKENS
    for prompt in prompts:
        if len(prompt) == max_model_len:  # vLLM 0.32 finds this one later than longer ones, in these words
            raise _too_few_tokens(0)
        _check_length(prompt, max_model_len)
    return Generate(False, prompts, min(limit, max_model_len - max(map(len, prompts))), **options)


def parse_embedding(body: dict[str, Any], model: str, max_model_len: int) -> tuple[list[Prompt], bool]:
    """The tokens of each input, and whether vectors are wanted in base64. Raises ApiError."""
    if "input" not in body:
        raise _missing("input", len(body))
    inputs = _prompts(body["input"], "input")
    _check_model(body, model)
    for tokens in inputs:
        _check_length(tokens, max_model_len, answer=0)
    form = body.get("encoding_format", "float")
    if form not in ("float", "base64"):
        raise _wrong_type("encoding_format", "literal_error", "Input should be 'float' or 'base64'", form)
    return inputs, form == "base64"


def parse_tokenize(body: dict[str, Any], model: str) -> list[int]:
    """Token numbers of a prompt or of messages. Raises ApiError."""
    _check_model(body, model)
    if isinstance(body.get("messages"), list):
        return list(map(number, _templated(body["messages"])))
    if not isinstance(body.get("prompt"), str):
        raise _missing("prompt", len(body))
    return list(map(number, pieces(body["prompt"])))


def _templated(messages: list[Any]) -> list[str]:
    """The pieces of a chat, template and all. Raises ApiError for a message that is none."""
    found: list[str] = []
    for index, message in enumerate(messages):
        text = pieces(_message_text(index, message))
        if not index and message["role"] != "system":
            found += (_START, "system", _NEWLINE, *_SYSTEM_PIECES, _END, _NEWLINE)
        found += (_START, message["role"], _NEWLINE, *text, _END, _NEWLINE)
    return found + _ANSWER


def _message_text(index: int, message: Any) -> str:
    if not isinstance(message, dict):
        raise _wrong_type(f"messages.{index}", "dict_type", "Input should be a valid dictionary", message)
    if not isinstance(message.get("role"), str):
        raise _missing(f"messages.{index}.ChatCompletionDeveloperMessageParam.role", len(message))
    content = message.get("content")
    if isinstance(content, list):  # parts; those without text count nothing
        content = "".join(part["text"] for part in content if isinstance(part, dict) and "text" in part)
    if content is not None and not isinstance(content, str):
        name = f"messages.{index}.ChatCompletionDeveloperMessageParam.content"
        raise _wrong_type(name, "string_type", "Input should be a valid string", content)
    return content or ""


def _prompts(value: Any, name: str) -> list[Prompt]:
    if value is None or value == "":
        if name == "prompt":
            raise ApiError(
                400,
                "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)",
                param="prompt",
            )
        value = ""
    if isinstance(value, str):
        return [pieces(value) or [""]]
    if isinstance(value, list):
        if not value:
            raise ApiError(400, "You must pass at least one prompt")
        if all(isinstance(item, str) for item in value):
            return [pieces(item) or [""] for item in value]
        if all(type(item) is int for item in value):
            return [value]
        if all(isinstance(item, list) and item and all(type(i) is int for i in item) for item in value):
            return value
    raise _wrong_type(name, "list_type", "Input should be a valid list", value)


def _check_model(body: dict[str, Any], model: str) -> None:
    asked = body.get("model")
    if asked is not None and asked != model:
        raise ApiError(
            404, f"The model `{asked}` does not exist. Valid aliases: {model}.", "NotFoundError", "model"
        )


def _check_length(prompt: Prompt, max_model_len: int, answer: int = 1) -> None:
    """answer: tokens that have to fit behind it."""
    if len(prompt) + answer > max_model_len:
        at_least = max_model_len + 1
        raise ApiError(
            400,
            f"This model's maximum context length is {max_model_len} tokens. However, your prompt contains at "
            f"least {at_least} input tokens, which exceeds this limit even without any output tokens. Please "
            f"reduce the length of the input prompt. (parameter=input_tokens, value={at_least})",
            param="input_tokens",
        )


def _too_few_tokens(value: int) -> ApiError:
    text = f"max_tokens must be at least 1, got {value}. (parameter=max_tokens, value={value})"
    return ApiError(400, text, param="max_tokens")


def _max_tokens(body: dict[str, Any], names: tuple[str, ...], max_model_len: int) -> int | None:
    for name in names:
        value = body.get(name)
        if value is None:
            continue
        if type(value) is not int:
            text = "Input should be a valid integer, unable to parse string as an integer"
            raise _wrong_type(name, "int_parsing", text, value)
        if value < 1:
            raise _too_few_tokens(value)
        if value > max_model_len:
            raise ApiError(
                400,
                f"max_tokens={value} cannot be greater than max_model_len={max_model_len}. Please request fewer "
                f"output tokens. (parameter=max_tokens, value={value})",
                param="max_tokens",
            )
        return value
    return None


def _options(body: dict[str, Any]) -> dict[str, Any]:
    """What chat and text completions share. ``n`` other than 1 is refused: one request, one sequence."""
    n = body.get("n")
    if n not in (None, 1):
        raise ApiError(
            400, f"the simulated engine answers with one choice; n={n} is not supported", param="n"
        )
    temperature = body.get("temperature")
    if isinstance(temperature, int | float) and temperature < 0:
        value = float(temperature)
        raise ApiError(
            400,
            f"temperature must be non-negative, got {value}. (parameter=temperature, value={value})",
            param="temperature",
        )
    stream = body.get("stream") is True
    stream_options = body.get("stream_options")
    if stream_options is not None and not stream:
        raise ApiError(
            400,
            "Stream options can only be defined when `stream=True`. (parameter=stream_options)",
            param="stream_options",
        )
    chosen = stream_options if isinstance(stream_options, dict) else {}
    stop = body.get("stop")
    if stop is None or stop == "":
        stop = []
    stops = [stop] if isinstance(stop, str) else stop
    if not isinstance(stops, list) or not all(isinstance(item, str) and item for item in stops):
        raise _wrong_type("stop", "list_type", "Input should be a valid list", stop)
    return {
        "stream": stream,
        "include_usage": chosen.get("include_usage") is True,
        "continuous_usage": chosen.get("continuous_usage_stats") is True,
        "ignore_eos": body.get("ignore_eos") is True,
        "stop": tuple(stops),
    }
