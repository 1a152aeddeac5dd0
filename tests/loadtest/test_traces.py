"""Traces: each format with its unit, errors that name line and column, prompts of the asked sizes and prefixes."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from loadtest._lib._trace_prompts import TracePrompts
from loadtest._lib._traces import TraceError, read

MOONCAKE = """\
{"timestamp": 0, "input_length": 1030, "output_length": 50, "hash_ids": [1, 2, 3]}
{"timestamp": 3000, "input_length": 700, "output_length": 1, "hash_ids": [1, 9]}
{"timestamp": 1500, "input_length": 20, "output_length": 7, "hash_ids": [4]}
"""
AZURE = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:05.0,3180,8
"""
BURSTGPT = """\
Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,230,1317,Conversation log
"""
OWN = """\
{"format": "exaserve-trace", "version": 1, "unit": "s", "requests": 2}
{"at": 0.0, "input_tokens": 812, "output_tokens": 64, "intent": "code"}
{"at": 0.25, "input_tokens": 40, "output_tokens": 512}
"""


@pytest.fixture
def write(tmp_path: Path):  # type: ignore[no-untyped-def]
    def written(text: str) -> Path:
        path = tmp_path / "trace"
        path.write_text(text)
        return path

    return written


@pytest.mark.parametrize(
    ("kind", "text", "at", "given", "got"),
    [
        ("mooncake", MOONCAKE, [0.0, 1.5, 3.0], [1030, 20, 700], [50, 7, 1]),
        ("azure", AZURE, [0.0, 1.02004], [4808, 3180], [10, 8]),
        ("burstgpt", BURSTGPT, [0.0, 40.0], [472, 1087], [18, 230]),
        ("exaserve", OWN, [0.0, 0.25], [812, 40], [64, 512]),
        ("", OWN, [0.0, 0.25], [812, 40], [64, 512]),
    ],
)
def test_each_format_is_read_in_its_own_unit_and_sorted(write, kind, text, at, given, got) -> None:  # type: ignore[no-untyped-def]
    trace = read(write(text), kind)
    assert list(trace.at) == pytest.approx(at, abs=1e-6)
    assert list(trace.input) == given
    assert list(trace.output) == got


def test_columns_are_found_by_name_whatever_their_order_and_ending(write) -> None:  # type: ignore[no-untyped-def]
    text = "\ufeffGeneratedTokens,other,contexttokens,TIMESTAMP\r\n8,x,5,2024-05-10 00:00:00.009930+00:00\r\n\r\n"
    trace = read(write(text), "azure")
    assert (list(trace.input), list(trace.output)) == ([5], [8])


def test_a_unit_may_be_given_where_a_file_deviates(write) -> None:  # type: ignore[no-untyped-def]
    assert list(read(write(MOONCAKE), "mooncake", unit="s").at) == [0.0, 1500.0, 3000.0]
    assert read(write(MOONCAKE), "mooncake").words() == (
        f"{write(MOONCAKE)}: 3 requests over 3.0 s, 1 requests/s, mooncake format (time in ms), 583 tokens in and 19 out "
        "on average"
    )


def test_a_part_of_a_trace(write) -> None:  # type: ignore[no-untyped-def]
    assert list(read(write(MOONCAKE), "mooncake", begin=1.0).at) == [0.5, 2.0]
    assert list(read(write(MOONCAKE), "mooncake", seconds=2.0).input) == [1030, 20]
    assert list(read(write(MOONCAKE), "mooncake", limit=1).input) == [1030]
    with pytest.raises(TraceError, match="no request from 60 s on; it is 3 s long"):
        read(write(MOONCAKE), "mooncake", begin=60.0)


def test_intents_are_kept(write) -> None:  # type: ignore[no-untyped-def]
    trace = read(write(OWN))
    assert [trace.intents[i] for i in trace.intent] == ["code", None]


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        ("", MOONCAKE, "what format? --trace-format mooncake, azure, burstgpt"),
        ("jsonl", MOONCAKE, "'jsonl' is no format of traces; there are mooncake, azure, burstgpt, exaserve"),
        ("azure", OWN, "is an ExaServe trace, not azure"),
        ("mooncake", "", "no request in it"),
        ("mooncake", '{"timestamp": 0}\n', "line 1, column 'input_length': is missing; there are timestamp"),
        (
            "mooncake",
            MOONCAKE + '{"timestamp": "soon", "input_length": 1, "output_length": 1}',
            "line 4, column 'timestamp': 'soon' is not a number",
        ),
        (
            "mooncake",
            '{"timestamp": 0, "input_length": 1.5, "output_length": 1}',
            "1.5 is not a whole number of tokens",
        ),
        ("mooncake", '{"timestamp": NaN, "input_length": 1, "output_length": 1}', "nan is not a number"),
        ("mooncake", '{"timestamp": true, "input_length": 1, "output_length": 1}', "True is not a number"),
        (
            "mooncake",
            '{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": ["a"]}',
            "line 1, column 'hash_ids': ['a'] is not a list of whole numbers",
        ),
        ("mooncake", "[1]\n", "line 1: is no JSON object"),
        ("mooncake", "x" * (1 << 21), "line 1: is longer than 1 MiB"),
        ("mooncake", "[" * 100_000 + "\n", "line 1: is no JSON"),
        (
            "azure",
            "TIMESTAMP,ContextTokens\n",
            "line 1, column 'GeneratedTokens': is missing; the header has TIMESTAMP",
        ),
        (
            "azure",
            AZURE + "yesterday,1,1\n",
            "line 4, column 'TIMESTAMP': 'yesterday' is no date and time like 2023-11-16",
        ),
        (
            "azure",
            AZURE + "2023-11-16 18:17:06\n",
            "column 'GeneratedTokens': is missing: the line has 1 of 3 columns",
        ),
        (
            "burstgpt",
            BURSTGPT + "50,GPT-4,many,1,1,x\n",
            "line 4, column 'Request tokens': 'many' is not a whole number",
        ),
        ("burstgpt", BURSTGPT + "50,GPT-4,9999999,1,1,x\n", "0 to 4,000,000"),
        ("exaserve", MOONCAKE, 'line 1: is not {"format": "exaserve-trace"'),
    ],
)
def test_a_wrong_trace_is_refused_with_its_place(write, kind: str, text: str, words: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(TraceError) as error:
        read(write(text), kind)
    assert words in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 300


def test_a_file_that_is_not_there_or_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="No such file"):
        read(tmp_path / "none", "azure")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TraceError, match="no UTF-8 text"):
        read(tmp_path / "binary", "azure")
    with pytest.raises(TraceError, match="Is a directory"):
        read(tmp_path, "azure")


# --- prompts ---


def content(prompts: TracePrompts, number: int) -> str:
    text = prompts.ask(number).body["messages"][0]["content"]
    assert isinstance(text, str)
    return text


def test_prompts_have_the_words_of_the_asked_tokens_less_the_template(write) -> None:  # type: ignore[no-untyped-def]
    prompts = TracePrompts(read(write(MOONCAKE), "mooncake"), seed=1)
    assert [len(content(prompts, i).split()) for i in range(3)] == [1030 - 8, 20 - 8, 700 - 8]


def test_requests_with_the_same_hash_ids_share_that_prefix_and_no_more(write) -> None:  # type: ignore[no-untyped-def]
    prompts = TracePrompts(read(write(MOONCAKE), "mooncake"), seed=1)
    first, _, second = (content(prompts, i).split() for i in range(3))
    assert first[:512] == second[:512]
    assert first[512:520] != second[512:520]


def test_prompts_without_hash_ids_have_no_common_beginning(write) -> None:  # type: ignore[no-untyped-def]
    prompts = TracePrompts(read(write(AZURE), "azure"), seed=1)
    assert content(prompts, 0)[:16] != content(prompts, 1)[:16]
    assert len(content(prompts, 0).split()) == 4808 - 8 - 14 + 1  # the beginning is one word of 14 tokens


def test_the_same_seed_makes_the_same_prompts(write) -> None:  # type: ignore[no-untyped-def]
    trace = read(write(MOONCAKE), "mooncake")
    assert content(TracePrompts(trace, 5), 0) == content(TracePrompts(trace, 5), 0)
    assert content(TracePrompts(trace, 5), 0) != content(TracePrompts(trace, 6), 0)


def test_outputs_get_the_length_of_the_trace(write) -> None:  # type: ignore[no-untyped-def]
    trace = read(write(OWN))
    body = TracePrompts(trace, 1).ask(1).body
    assert (body["max_tokens"], body["ignore_eos"]) == (512, True)
    assert "ignore_eos" not in TracePrompts(trace, 1, until_end=True).ask(1).body
    assert TracePrompts(trace, 1).ask(0).intent == "code"


def test_long_inputs_are_cut_where_asked(write) -> None:  # type: ignore[no-untyped-def]
    prompts = TracePrompts(read(write(MOONCAKE), "mooncake"), 1, clip=100)
    assert len(content(prompts, 0).split()) == 92
    assert prompts.clipped() == 2


def test_rows_keep_their_order_and_precision(write) -> None:  # type: ignore[no-untyped-def]
    rows = (f"{i / 10},m,{i % 4000},{i % 100},0,x" for i in range(20_000))
    trace = read(
        write("\n".join(["Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type", *rows])),
        "burstgpt",
    )
    assert len(trace) == 20_000
    assert math.isclose(trace.seconds, 1999.9)
    assert json.dumps(trace.at[1]) == "0.1"
