"""The exporter's benchmark measures what it says, and holds known numbers against its goals."""

from __future__ import annotations

import pytest

from tests.benchmarks import exporter, vllm_pages

pytestmark = pytest.mark.alone


def test_a_scrape_costs_cpu_time_and_bytes() -> None:
    result = {"fabric": exporter.fabric(1, 3)}
    rows = result["fabric"]["rows"]
    assert result["fabric"]["files"] > 400
    plain, packed = rows["exaserve"], rows["exaserve, gzip"]
    assert plain["bytes"] > 10_000 > packed["bytes"] > 1000
    assert 0 <= plain["p50_ms"] <= plain["p99_ms"]
    assert 5 < plain["rss_mib"] < 200
    assert "| exaserve, gzip " in exporter.markdown(result)


def test_replicas_are_read_by_the_names_that_are_asked_for() -> None:
    (row,) = exporter.replicas((5,), 1)
    assert row["replicas"] == 5
    assert 5 * 500 < row["bytes_in"] < 5 * 47_000  # the whole page has 46,818 bytes


def test_goals_are_held_against_the_medians() -> None:
    def row(*cpu: float) -> dict[str, object]:
        return {"cpu_ms": list(cpu)}

    result = {
        "fabric": {
            "rows": {
                "exaserve": row(3, 9, 4),
                "node_exporter": row(2, 3, 2),  # the second round was disturbed for both
                "exaserve, gzip": row(3, 3, 3),
            }
        },
        "rest": {"rss_mib": 60.5},
        "replicas": [{"replicas": 100, "cpu_s": 1.0}, {"replicas": 1000, "cpu_s": 12.0}],
    }
    found = [(g.measured, g.verdict) for g in exporter.goals(result)]
    assert found == [
        ("2.00 × (1.50–3.00)", "PASS"),
        ("node_exporter is not installed", "not measured"),
        ("60.5 MiB", "**MISSED**"),
        ("1.20 ×", "PASS"),
    ]


@pytest.mark.parametrize("names", [{"vllm:num_requests_running"}, {"vllm:nobody"}])
def test_a_page_is_cut_down_to_the_names_that_are_asked_for(names: set[str]) -> None:
    text = vllm_pages.only(vllm_pages.PAGE.read_bytes(), names).decode()
    samples = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert {s.split("{")[0] for s in samples} == names - {"vllm:nobody"}
