"""Keys of sessions and shared prefixes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.router import schema
from serving.router.session import HEAD, LONG_PROMPT, session_of

LONG = "You answer questions about the harbour. " * (LONG_PROMPT // 40 + 1)


def chat(*messages: tuple[str, Any], **fields: Any) -> Any:
    body = {"messages": [{"role": role, "content": content} for role, content in messages], **fields}
    decoded = schema.decode("chat_completions", msgspec.json.encode(body))
    assert not isinstance(decoded, schema.Problem)
    return decoded


def key(*messages: tuple[str, Any], **fields: Any) -> int:
    return session_of(None, chat(*messages, **fields))


def test_all_turns_from_the_second_on_have_one_key() -> None:
    first = [("system", "Short."), ("user", "Where is the boat?")]
    second = [*first, ("assistant", "In the harbour."), ("user", "Which?")]
    third = [*second, ("assistant", "The northern one."), ("user", "Thanks.")]
    assert key(*second) == key(*third) != 0
    assert key(*second) != key(("system", "Short."), ("user", "Where is the car?"), *second[2:])
    assert key(*second) != key(("system", "Other."), *second[1:])
    assert key(*first) == 0


def test_the_first_turn_under_a_long_system_prompt_goes_where_that_is_cached() -> None:
    assert key(("system", LONG), ("user", "a")) == key(("system", LONG), ("user", "b")) != 0
    assert key(("developer", LONG), ("user", "a"), ("user", "b")) == key(("system", LONG), ("user", "a"))
    assert key(("system", LONG + "!"), ("user", "a")) != key(("system", LONG), ("user", "a"))
    # Later turns have a key of their own, or all conversations of an application would have one.
    later = [("assistant", "x"), ("user", "y")]
    assert key(("system", LONG), ("user", "a"), *later) != key(("system", LONG), ("user", "b"), *later)


def test_a_single_question_has_no_session_however_long() -> None:
    assert key(("user", "a")) == 0
    assert key(("user", LONG)) == 0
    assert key(("user", LONG), ("user", LONG)) == 0
    assert key(("system", "a" * (LONG_PROMPT - 2)), ("user", "b")) == 0


def test_what_names_the_session_counts_first_and_user_never() -> None:
    talk = [("user", "a"), ("assistant", "b"), ("user", "c")]
    by_header = session_of(b"s-1", chat(*talk, prompt_cache_key="k"))
    assert by_header == session_of(b"s-1", None) != session_of(b"s-2", None)
    assert session_of(b"", chat(*talk)) == key(*talk)
    assert key(*talk, prompt_cache_key="k") == key(("user", "z"), prompt_cache_key="k", session_id="s")
    assert key(("user", "z"), session_id="s") not in (0, key(("user", "z"), prompt_cache_key="k"))
    assert key(("user", "z"), user="everybody") == 0


@pytest.mark.parametrize("odd", [7, ["k"], {"k": 1}, "", None, True])
def test_a_key_of_another_type_counts_as_none(odd: Any) -> None:
    assert key(("user", "z"), prompt_cache_key=odd) == 0


def test_parts_count_by_their_text_and_images_by_their_address() -> None:
    def talk(*parts: dict[str, Any]) -> int:
        return key(("user", list(parts)), ("assistant", "b"), ("user", "c"))

    text = {"type": "text", "text": "What is this?"}
    images = [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{c * 500}"}} for c in "AB"]
    assert len({talk(text), talk(text, images[0]), talk(text, images[1]), talk(images[0])}) == 4
    assert talk(text, images[0]) == talk(text, images[0])


def test_a_greeting_before_the_first_question_belongs_to_the_prompt() -> None:
    greeting = ("assistant", "Welcome!")
    assert key(greeting, ("user", "a")) == 0
    assert key(greeting, ("user", "a"), ("assistant", "b"), ("user", "c")) != 0


def test_texts_of_other_lengths_differ_though_beginning_and_end_are_the_same() -> None:
    def talk(middle: int) -> int:
        return key(("user", "x" * HEAD + "m" * middle + "y" * HEAD), ("assistant", "b"), ("user", "c"))

    assert len({talk(n) for n in range(1000, 1020)}) == 20


def test_a_key_is_the_same_in_every_process_and_version() -> None:
    assert session_of(b"s-1", None) == 3668289437530116582
    assert key(("user", "a"), ("assistant", "b"), ("user", "c")) == 5711675077238252409


def test_keys_use_all_of_the_ring() -> None:
    top = {session_of(b"session-%d" % i, None) >> 60 for i in range(400)}
    assert top == set(range(16))


scalars = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
json = (
    scalars
    | st.lists(scalars, max_size=3)
    | st.dictionaries(st.sampled_from(["text", "image_url", "x"]), scalars, max_size=3)
)
messages_of_any_kind = st.lists(
    st.tuples(
        st.sampled_from(["user", "assistant", "system", "x"]),
        st.text(max_size=9) | st.lists(json, max_size=3),
    ),
    max_size=6,
)


@given(
    st.none() | st.binary(), messages_of_any_kind, json, json,
)  # fmt: skip
def test_whatever_a_client_sends_gives_a_key_of_64_bits(
    header: bytes | None, messages: list[tuple[str, Any]], a: Any, b: Any
) -> None:
    class Request:
        prompt_cache_key, session_id = a, b

    Request.messages = [type("M", (), {"role": role, "content": content}) for role, content in messages]  # type: ignore[attr-defined]
    got = session_of(header, Request)
    assert 0 <= got < 2**64
    assert got == session_of(header, Request)
