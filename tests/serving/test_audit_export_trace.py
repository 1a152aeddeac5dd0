"""``exaserve audit export-trace``: arrivals and tokens of the audit's requests in order, nothing that names anybody."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from serving.audit.cli import app
from serving.audit.export_trace import Export, peak
from serving.audit.file import AuditFile
from serving.audit.record import Line
from serving.audit.writer import Audit
from tests.serving.test_audit_writer import record

START = 1_800_000_000.0  # 2027-01-15T08:00:00Z


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Ends at 1, 2, 3 s; came at 0.25, 1.9 and 0 s; two have no tokens."""
    records = [
        record(
            1, ts=START + 1, duration_s=0.75, input_tokens=10, output_tokens=3, intent="code", tenant="alice"
        ),
        record(2, ts=START + 2, duration_s=0.1, input_tokens=20, output_tokens=4, intent=None, tenant="bob"),
        record(3, ts=START + 3, duration_s=3.0, input_tokens=30, output_tokens=5, intent=None, tenant="bob"),
        record(4, ts=START + 3, outcome="rejected", status=429, input_tokens=None, output_tokens=None),
        record(5, ts=START + 3, input_tokens=None, output_tokens=None),
    ]
    where = tmp_path / "audit"
    audit = Audit(AuditFile(where, 0, 10**6, 2))
    for one in records:
        audit.put(one)
    audit.start()
    audit.close()
    return where


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["export-trace", *arguments])


def test_requests_are_in_the_order_in_which_they_came_without_names(folder: Path) -> None:
    result = run("--since", "all", "--dir", str(folder))
    assert result.exit_code == 0
    head, *rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert head == {
        "format": "exaserve-trace", "version": 1, "unit": "s", "start": "2027-01-15T08:00:00.000Z", "seconds": 1.9,
        "peak_per_second": 0.05, "requests": 3, "left_out": {"rejected": 1, "without_tokens": 1, "beyond_limit": 0},
    }  # fmt: skip
    assert rows == [
        {"at": 0.0, "input_tokens": 30, "output_tokens": 5},
        {"at": 0.25, "input_tokens": 10, "output_tokens": 3, "intent": "code"},
        {"at": 1.9, "input_tokens": 20, "output_tokens": 4},
    ]
    assert "alice" not in result.stdout
    assert "3 requests; left out: 1 rejected, 1 without tokens" in result.stderr


def test_a_file_is_written_whole_and_the_load_test_reads_it(folder: Path, tmp_path: Path) -> None:
    from loadtest._lib._traces import read

    out = tmp_path / "trace.jsonl"
    assert run("--since", "all", "--dir", str(folder), "-o", str(out)).exit_code == 0
    trace = read(out)
    assert list(trace.at) == [0.0, 0.25, 1.9]
    assert list(trace.input) == [30, 10, 20]
    assert not list(tmp_path.glob("*.part"))


def test_a_filter_and_a_limit_leave_out_the_others(folder: Path) -> None:
    result = run("--since", "all", "--dir", str(folder), "--tenant", "bob", "--limit", "1")
    assert [json.loads(line)["input_tokens"] for line in result.stdout.splitlines()[1:]] == [30]
    assert "1 beyond limit" in result.stderr


def test_nothing_to_export_is_said_and_status_1(folder: Path) -> None:
    result = run("--since", "all", "--dir", str(folder), "--tenant", "nobody")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "no request to export since all; --since all?\n"


def test_an_output_that_can_not_be_written_is_usage(folder: Path, tmp_path: Path) -> None:
    result = run("--since", "all", "--dir", str(folder), "-o", str(tmp_path / "none" / "trace"))
    assert result.exit_code == 2
    assert "No such file" in result.stderr


def test_with_a_limit_the_first_that_came_are_kept() -> None:
    export = Export(limit=2)
    for second in (5, 3, 9, 1):
        export.add(
            Line(
                f"2027-01-15T08:00:0{second}.000Z", "x", input_tokens=second, output_tokens=1, duration_s=0.0
            )
        )
    assert [json.loads(line)["input_tokens"] for line in list(export.lines())[1:]] == [1, 3]
    assert export.left_out()["beyond_limit"] == 2


def test_the_peak_is_of_the_busiest_minute() -> None:
    assert peak([0.0, 10.0, 59.9, 60.0, 200.0]) == 3 / 60
