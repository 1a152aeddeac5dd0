"""Pages: what Prometheus' own Python parsers read from them is what was put in; which format a client gets."""

from __future__ import annotations

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from exporters.catalog import CATALOG, Metric
from exporters.exposition import openmetrics, text, wants_openmetrics

AWKWARD = 'a "quoted" \\ back\nnext line {x="1"} ü'


def everything() -> dict[str, dict[tuple[str, ...], float]]:
    """One sample of every metric that a collector may give, with awkward label values."""
    return {
        m.name: {tuple(f"{AWKWARD}-{label}" for label in m.labels): i + 0.5}
        for i, m in enumerate(CATALOG.values())
        if m.kind != "histogram"
    }


@pytest.mark.parametrize(("write", "read"), [(text, read_text), (openmetrics, read_openmetrics)])
def test_every_metric_of_the_catalogue_comes_back_as_it_went(write: object, read: object) -> None:
    page = everything()
    found = {}
    for family in read(write(page).decode()):  # type: ignore[operator]
        for s in family.samples:
            m = CATALOG[s.name]
            assert (family.type, family.documentation) == (m.kind, m.help)
            found[s.name] = {tuple(s.labels[label] for label in m.labels): s.value}
    assert found == page


def test_a_page_is_exactly_so(monkeypatch: pytest.MonkeyPatch) -> None:
    moved = Metric("fan_moved_bytes_total", "counter", 'Air, "moved".', ("fan", "slot"), "bytes")
    for m in (Metric("fan_up", "gauge", "1 or\n0.", ("fan",)), moved):
        monkeypatch.setitem(CATALOG, m.name, m)
    page = {"fan_up": {("a",): 1.0, ('b"',): 0.0}, "fan_moved_bytes_total": {("a", "m"): 2.0**60}}
    assert text(page).decode().splitlines() == [
        "# HELP fan_up 1 or\\n0.",
        "# TYPE fan_up gauge",
        'fan_up{fan="a"} 1.0',
        'fan_up{fan="b\\""} 0.0',
        '# HELP fan_moved_bytes_total Air, "moved".',
        "# TYPE fan_moved_bytes_total counter",
        'fan_moved_bytes_total{fan="a",slot="m"} 1.152921504606847e+18',
    ]
    assert openmetrics(page).decode().splitlines()[4:] == [
        "# TYPE fan_moved_bytes counter",
        "# UNIT fan_moved_bytes bytes",
        '# HELP fan_moved_bytes Air, \\"moved\\".',
        'fan_moved_bytes_total{fan="a",slot="m"} 1.152921504606847e+18',
        "# EOF",
    ]


def test_a_name_that_is_no_utf8_does_not_cost_the_page() -> None:
    page = {"exaserve_engine_up": {(b"caf\xe9".decode("utf-8", "surrogateescape"),): 1.0}}
    assert b'replica="caf?"' in text(page)
    odd: dict[str, dict[tuple[str, ...], float]] = {"exaserve_engine_up": {(7,): 1.0}}  # type: ignore[dict-item]
    assert b'replica="7"' in text(odd)


def test_an_empty_page() -> None:
    assert (text({}), openmetrics({})) == (b"", b"# EOF\n")


@pytest.mark.parametrize(
    ("accept", "modern"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain", False),
        ("text/html,application/xhtml+xml,*/*;q=0.8", False),
        ("application/openmetrics-text", True),
        ("application/openmetrics-text; version=1.0.0; charset=utf-8", True),
        ("application/openmetrics-text;version=2.0.0", False),
        ("application/openmetrics-text;version=1.0.0;q=0", False),
        ("application/openmetrics-text;version=1.0.0;q=x", False),
        # Prometheus 2.42
        (
            "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
            "text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            True,
        ),
        # Prometheus 3
        (
            "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,application/openmetrics-text;"
            "version=0.0.1;q=0.4,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,text/plain;version=0.0.4;q=0.2,"
            "*/*;q=0.1",
            True,
        ),
        # Prometheus 3 with scrape_protocols: [PrometheusText0.0.4, OpenMetricsText1.0.0]
        ("text/plain;version=0.0.4;q=0.3,application/openmetrics-text;version=1.0.0;q=0.2,*/*;q=0.1", False),
        (",;=,;q=;;", False),
    ],
)
def test_a_client_gets_openmetrics_if_it_asks_for_it_no_less_than_for_text(accept: str, modern: bool) -> None:
    assert wants_openmetrics(accept) is modern
