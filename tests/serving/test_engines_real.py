"""One real replica, as ``serving.engines.vllm`` starts it, and the simulated one held to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from .replica_client import chat, events, families, shape, simulated, stream_shape

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def real(real_stack: Any) -> Iterator[httpx.Client]:
    """The stack's first replica itself, not through the router."""
    url = httpx.get(f"{real_stack.admin}/fleet").json()["replicas"][0]["url"]
    with httpx.Client(base_url=url, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def ours() -> Iterator[httpx.Client]:
    with simulated("--tokens-per-second", "1000") as (client, _):
        yield client


def test_the_default_model_knows_the_capital_of_france(real: httpx.Client) -> None:
    answer = real.post("/v1/chat/completions", json=chat(max_tokens=20)).json()
    assert answer["choices"][0]["message"]["content"] == "The capital of France is Paris."
    assert answer["usage"]["prompt_tokens"] == 37  # the chat template and its system prompt are in it


def test_the_tokeniser_splits_as_the_original(real: httpx.Client) -> None:
    """Token numbers of transformers' own reading of the same GGUF file."""
    for text, tokens in (
        ("Hello world", [19556, 905]),
        ("12345 apples 3.14", [33, 34, 35, 36, 37, 13855, 216, 35, 30, 33, 36]),
        ("你好，世界", [18645, 250, 48392, 138, 12831, 7906, 240, 178, 239, 230]),
        ("a\n\n b\tc\r\n", [81, 1116, 278, 197, 83, 2738]),
        ("<|im_start|>user\nHi<|im_end|>", [1, 4093, 198, 26843, 2]),
    ):
        assert real.post("/tokenize", json={"prompt": text}).json()["tokens"] == tokens


BODIES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", chat(max_tokens=4)),
    ("/v1/completions", {"prompt": "Paris is", "max_tokens": 4}),
    ("/v1/completions", {"prompt": ["Paris is", "A"], "max_tokens": 2}),
    ("/tokenize", {"prompt": "Paris is"}),
]


@pytest.mark.parametrize(("path", "body"), BODIES)
def test_whole_answers_have_the_same_keys(
    real: httpx.Client, ours: httpx.Client, path: str, body: dict[str, Any]
) -> None:
    theirs, mine = real.post(path, json=body), ours.post(path, json=body)
    assert (theirs.status_code, mine.status_code) == (200, 200)
    assert shape(mine.json()) == shape(theirs.json())
    assert mine.headers["content-type"] == theirs.headers["content-type"]


@pytest.mark.parametrize("path", ["/v1/models", "/load", "/version"])
def test_information_has_the_same_keys(real: httpx.Client, ours: httpx.Client, path: str) -> None:
    assert shape(ours.get(path).json()) == shape(real.get(path).json())


@pytest.mark.parametrize(
    "options",
    [None, {"include_usage": True}, {"include_usage": True, "continuous_usage_stats": True}],
    ids=["plain", "usage", "continuous"],
)
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", chat(max_tokens=4)),
        ("/v1/completions", {"prompt": "Paris is", "max_tokens": 4, "temperature": 0}),
    ],
    ids=["chat", "completion"],
)
def test_streams_have_the_same_events_in_the_same_order(
    real: httpx.Client, ours: httpx.Client, path: str, body: dict[str, Any], options: dict[str, bool] | None
) -> None:
    ask = {**body, "stream": True, **({"stream_options": options} if options else {})}
    theirs, mine = real.post(path, json=ask), ours.post(path, json=ask)
    assert mine.headers["content-type"] == theirs.headers["content-type"]
    assert stream_shape(events(mine.text)) == stream_shape(events(theirs.text))
    assert len(events(mine.text)) == len(events(theirs.text))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": None}),
        ("/v1/chat/completions", {}),
        ("/v1/chat/completions", {"messages": "x"}),
        ("/v1/chat/completions", {"messages": []}),
        ("/v1/chat/completions", chat(model="nope")),
        ("/v1/chat/completions", chat("word " * 2000)),
        ("/v1/chat/completions", chat(max_tokens=5000)),
        ("/v1/chat/completions", chat(max_tokens=0)),
        ("/v1/chat/completions", chat(max_tokens="x")),
        ("/v1/chat/completions", chat(temperature=-1)),
        ("/v1/chat/completions", chat(stream_options={"include_usage": True})),
        ("/v1/chat/completions", [1]),
        ("/v1/completions", {"max_tokens": 1}),
        ("/v1/completions", {"prompt": []}),
        ("/nope", {}),
        ("/v1/models", {}),
    ],
)
def test_errors_are_the_same(real: httpx.Client, ours: httpx.Client, path: str, body: Any) -> None:
    theirs, mine = real.post(path, json=body), ours.post(path, json=body)
    assert (mine.status_code, mine.json()) == (theirs.status_code, theirs.json())


@pytest.mark.parametrize(
    ("raw", "kind"), [(b'{"model":', "application/json"), (b"{}", "text/plain")], ids=["broken", "media type"]
)
def test_unreadable_bodies_get_the_same_error(
    real: httpx.Client, ours: httpx.Client, raw: bytes, kind: str
) -> None:
    answers = [c.post("/v1/completions", content=raw, headers={"content-type": kind}) for c in (real, ours)]
    assert answers[0].json() == answers[1].json()


def test_metric_families_are_among_the_real_ones(real: httpx.Client, ours: httpx.Client) -> None:
    for client in (real, ours):
        client.post("/v1/chat/completions", json=chat(max_tokens=2))
    theirs, mine = families(real.get("/metrics").text), families(ours.get("/metrics").text)
    assert {name: theirs.get(name) for name in mine} == mine
    assert not any(name.endswith("_created") for name in theirs)


def test_load_reports_are_the_same(real: httpx.Client, ours: httpx.Client) -> None:
    name = "endpoint-load-metrics"

    def reports(form: str) -> list[str]:
        ask, headers = chat(max_tokens=1), {f"{name}-format": form}
        return [c.post("/v1/chat/completions", json=ask, headers=headers).headers[name] for c in (real, ours)]

    for form in ("JSON", "TEXT"):
        # The router's probe may be under way on the real one, which then has more work; it comes every 5 s.
        assert any(theirs == mine for theirs, mine in (reports(form) for _ in range(3))), reports(form)
