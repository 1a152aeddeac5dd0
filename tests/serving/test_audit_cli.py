"""``exaserve audit`` as a user meets it: files that a router wrote, tables, JSON, mistakes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from serving.audit.cli import app
from serving.audit.file import AuditFile
from serving.audit.writer import Audit
from tests.serving.test_audit_writer import record


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two workers' files: 3 requests of alice (one failed), 1 of bob, 1 refused, 1 of last week."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EXASERVE_HOME", str(tmp_path / "home"))
    now = time.time()
    records = [
        [
            record(1, ts=now - 500, request_id=b"first", duration_s=0.1),
            record(2, ts=now - 400, tokens_estimated=True, duration_s=0.2, tenant="bob", model="big"),
            record(3, ts=now - 300, status=502, outcome="error", decision="admitted", replica="replica-1"),
        ],
        [
            record(4, ts=now - 7 * 86_400, tenant="old"),
            record(
                5, ts=now - 200, status=429, outcome="rejected", decision="tenant_tokens", input_tokens=None,
                output_tokens=None, replica=None,
            ),
            record(6, ts=now - 100, request_id=b"last", input_tokens=1_000_000, output_tokens=500_000),
        ],
    ]  # fmt: skip
    where = tmp_path / "home" / "audit"
    for worker, given in enumerate(records):
        audit = Audit(AuditFile(where, worker, 10**6, 2))
        for one in given:
            audit.put(one)
        audit.start()
        audit.close()
    return where


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


def cells(output: str) -> list[list[str]]:
    return [line.split() for line in output.splitlines()]


def test_requests_tokens_and_errors_per_tenant(folder: Path) -> None:
    found = run()
    assert found.exit_code == 0, found.output
    head, alice, bob, total, estimated = found.stdout.splitlines()
    assert head.split() == [
        "TENANT", "REQUESTS", "ERRORS", "REJECTED", "INPUT", "TOKENS", "OUTPUT", "TOKENS", "P50", "s", "P99", "s",
    ]  # fmt: skip
    assert alice.split() == ["alice", "4", "1", "1", "1,000,024", "500,006", "0.2", "0.2"]
    assert bob.split()[:6] == ["bob", "1", "0", "0", "12", "3"]
    assert total.split()[:6] == ["total", "5", "1", "1", "1,000,036", "500,009"]
    assert estimated == "tokens are estimated for 1 requests and unknown for 0"


def test_cost_by_a_price_table_as_json(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "prices.yaml").write_text("prices:\n  m: {input: 1.5, output: 2}\n")
    found = run("--since", "all", "--by", "tenant", "--by", "model", "--prices", "prices.yaml", "--json")
    assert found.exit_code == 0, found.output
    answer = json.loads(found.stdout)
    assert answer["since"] is None
    costs = {(g["tenant"], g["model"]): g["cost"] for g in answer["groups"]}
    assert costs == {
        ("alice", "m"): pytest.approx(2.5 + (24 * 1.5 + 6 * 2) / 1e6),
        ("bob", "big"): 0.0,
        ("old", "m"): pytest.approx((12 * 1.5 + 3 * 2) / 1e6),
    }
    assert answer["total"]["models_without_price"] == ["big"]
    assert found.stderr == "no price, so not in the cost: big\n"


def test_prices_come_from_the_tenants_file_of_the_configuration(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text("prices:\n  m: {input: 1, output: 2}\n  big: {input: 1, output: 1}\n")
    (tmp_path / "exaserve.yaml").write_text("tenants: {file: t.yaml}\n")
    assert cells(run().stdout)[1][6] == "2.0000"
    assert cells(run("--dir", str(folder)).stdout)[0][8] == "P50"


@pytest.mark.parametrize(
    ("arguments", "rows"),
    [
        (["--status", "5xx", "--by", "replica"], [["replica-1", "1", "1"]]),
        (["--outcome", "rejected", "--by", "decision"], [["tenant_tokens", "1", "0"]]),
        (["--tenant", "bob", "--by", "model"], [["big", "1", "0"]]),
        (["--since", "8d", "--until", "2d"], [["old", "1", "0"]]),
        (["--since", "250s"], [["alice", "2", "0"]]),
        (["--since", "250s", "--model", "big"], []),
    ],
)
def test_what_is_asked_for_is_what_is_summed(
    folder: Path, arguments: list[str], rows: list[list[str]]
) -> None:
    found = run(*arguments)
    assert found.exit_code == 0
    if rows:
        assert [c[:3] for c in cells(found.stdout)[1:-1] if c[0] not in ("total", "tokens")] == rows
    else:
        assert found.stdout == "no records pass since 250s; --since all?\n"


def test_the_last_requests_are_lines(folder: Path) -> None:
    found = run("tail", "-n", "2")
    first, second = found.stdout.splitlines()
    assert first[25:] == "429 tenant_tokens alice completions m - -+- tokens 0.012/0.200 s id-5"
    assert second.split()[1:4] == ["200", "ok", "alice"]
    assert second.endswith(" last")
    assert [
        json.loads(x)["request_id"] for x in run("tail", "--json", "--tenant", "bob").stdout.splitlines()
    ] == ["id-2"]


def test_one_request_is_shown_whole(folder: Path) -> None:
    found = run("show", "first")
    assert ["tenant", "alice"] in cells(found.stdout)
    assert ["base_revision", "-"] in cells(found.stdout)
    assert json.loads(run("show", "first", "--json").stdout)["duration_s"] == 0.1
    missing = run("show", "\x1b[31mno")
    assert (missing.exit_code, missing.stderr) == (1, "no record of ?[31mno\n")


def test_torn_lines_and_missing_records_are_said(folder: Path) -> None:
    with (folder / "audit-0.jsonl").open("a") as f:
        f.write('{"ts":"2026-11-30T08:00:00.000Z","lost":3}\n{"ts":"20')
    found = run()
    assert found.exit_code == 0
    assert found.stderr == (
        "3 records are missing: the router could not write them\n"
        "1 lines are no audit records (torn or foreign); passed over\n"
    )


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--since", "1y"], 2, "give a span (90s, 15m, 1h, 7d)"),
        (["--status", "9xx"], 2, "give statuses like 429"),
        (["--by", "colour"], 2, "is not one of"),
        (["--file", "none.jsonl"], 2, "none.jsonl: no such file"),
        (
            ["--dir", "none"],
            1,
            "no audit files in none; the router writes them with router.audit.enabled: true",
        ),
        (["tail", "--dir", "none"], 1, "no audit files in none"),
        (["--since", "1h", "tail"], 2, "options of tail come after it: exaserve audit tail"),
    ],
)
def test_mistakes_are_one_line_and_a_status(
    folder: Path, arguments: list[str], status: int, said: str
) -> None:
    found = run(*arguments)
    assert found.exit_code == status, found.output
    assert said in " ".join(found.stderr.split())
    assert "Traceback" not in found.output


def test_the_command_itself_reads_one_file_and_follows_it(folder: Path) -> None:
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "serving.cli",
            "audit",
            "tail",
            "-f",
            "-n",
            "1",
            "--file",
            "home/audit/audit-1.jsonl",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().endswith(" last\n")
        audit = Audit(AuditFile(folder, 1, 10, 2))  # the next line rotates the file
        audit.put(record(request_id=b"and on"))
        audit.start()
        audit.close()
        assert process.stdout.readline().endswith(" and on\n")
    finally:
        process.terminate()
        process.wait(60)
