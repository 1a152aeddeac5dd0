"""The token counts of an engine, found at the end of its answer."""

from __future__ import annotations

import pytest

from serving.router.usage import usage_in


@pytest.mark.parametrize(
    ("tail", "found"),
    [
        (b'{"usage":{"prompt_tokens":3,"completion_tokens":4}}', (3, 4)),
        (b'{"usage": {"completion_tokens": 4, "total_tokens": 7, "prompt_tokens": 3}}', (3, 4)),
        (b'data: {"usage":{"prompt_tokens":3,"completion_tokens":4}}\n\ndata: [DONE]\n\n', (3, 4)),
        (b'{"usage":{"input_tokens":3,"output_tokens":4,"total_tokens":7}}', (3, 4)),
        (b'{"usage":{"prompt_tokens":3}}', (3, 0)),
        (b'{"usage":null}', None),
        (b'{"content":"\\"usage\\":{\\"prompt_tokens\\":9,\\"completion_tokens\\":9}"}', None),
        (
            b'{"usage":{"prompt_tokens":3,"completion_tokens":4},"x":"\\"usage\\":{\\"prompt_tokens\\":9}"}',
            (3, 4),
        ),
        (b'{"usage":{"prompt_tokens":-3}}', None),
        (b'{"usage":{"prompt_tokens":3.5e99}}', (3, 0)),
        (b"", None),
        (b'{"usage":{"prompt_tokens":3}}' + b" " * 5000, None),
    ],
)
def test_usage_is_found_in_reports_and_never_in_text(tail: bytes, found: tuple[int, int] | None) -> None:
    assert usage_in(tail) == found
