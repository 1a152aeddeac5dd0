"""A snapshot in a real browser: it runs only its own script, asks nobody for anything, and shows what it should.

Skipped where no Chromium is installed (Debian: chromium, 113 MB); make test installs it where it may.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dashboards.snapshot import units
from tests.dashboards import browser
from tests.dashboards.snapshot_prometheus import serving

pytestmark = [
    pytest.mark.skipif(browser.PROGRAM is None, reason="chromium is not installed (Debian: chromium)"),
    pytest.mark.xdist_group("snapshot in browser"),  # one worker sets up what they share
]

READOUT = "!document.getElementById('readout').hidden"
HOSTILE = """</script><script>alert(1)</script><img src="http://127.0.0.1:1/x" onerror="alert(2)">"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fleet, replica and router of a Prometheus whose labels are hostile."""
    from dashboards.cli import app

    file = tmp_path_factory.mktemp("snapshot") / "page.html"
    with serving() as fake:
        labels = dict.fromkeys(("pool", "model", "replica", "alertname", "severity", "state"), HOSTILE)
        fake.reply = lambda expr: [({**labels, "le": "1"}, 0.0123)]
        fake.values = {"replica": [HOSTILE]}
        options = ["--board", "fleet", "--board", "replica", "--board", "router", "--from", "-10m", "--utc"]
        result = CliRunner().invoke(app, ["snapshot", "-o", str(file), "--prometheus", fake.url, *options])
    assert result.exit_code == 0, result.output
    return file


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Tab]:
    with browser.tab(tmp_path_factory.mktemp("chromium")) as one:
        yield one


def test_nothing_leaves_the_page_and_no_label_runs(page: Path, tab: browser.Tab) -> None:
    tab.open(page)
    tab.point(".area", 0.5)
    assert tab.run("document.title").startswith("ExaServe Fleet, Replica, Router")
    assert tab.told("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded") == []
    assert tab.told("Page.javascriptDialogOpening") == []
    requests = [told["request"]["url"] for told in tab.told("Network.requestWillBeSent")]
    assert requests == [page.as_uri()]
    # Whatever else gets into the page can't ask anybody either.
    assert tab.run("fetch('http://127.0.0.1:1/').then(() => 'sent', () => 'refused')") == "refused"


def test_the_pointer_shows_time_and_values_as_they_are_printed(page: Path, tab: browser.Tab) -> None:
    tab.open(page)
    tab.point(".kind-timeseries .area", 0.9)
    tab.until(READOUT)
    shown = tab.run("document.getElementById('readout').innerText")
    assert HOSTILE.split("<img")[0] in shown
    assert units.text(0.0123, units.unit("s")) == "12.3 ms"
    assert "12.3 ms" in shown
    tab.run("dispatchEvent(new Event('scroll'))")
    assert tab.run("document.getElementById('readout').hidden") is True


@pytest.mark.parametrize("unit", ["s", "bytes", "percentunit", "reqps", "none", "short", "currencyUSD"])
def test_script_and_page_write_numbers_alike(page: Path, tab: browser.Tab, unit: str) -> None:
    """The script's formatter reads the ladders of units.py."""
    tab.open(page)
    values = [0, 1, 0.0042, 0.9999, 12.347, 123.4, 1234.6, 90, 4e3, 3 * 2**30, 2e-6, -2.5, 0.00001234]
    of = units.unit(unit)
    ladder = {"p": of.prefix, "l": [list(rung) for rung in of.ladder], "t": of.moment}
    data = {"n": [str(i) for i in range(len(values))], "c": ["red"] * len(values), "u": [ladder], "d": True}
    data |= {"s": [0] * len(values), "v": [[v] * 400 for v in values]}
    text = json.dumps(json.dumps(data))
    tab.run(
        "(() => { const s = [...document.querySelectorAll('.plot')].find(e => e.offsetParent)"
        f".querySelector('script'); s.textContent = {text}; return 0 }})()"
    )
    tab.point(".area", 0.5)
    tab.until(READOUT)
    rows = "[...document.querySelectorAll('#readout div')].map(d => d.querySelector('b').textContent)"
    shown = [row for row in tab.run(rows) if row]
    assert shown == [units.text(v, of) for v in sorted(values, reverse=True)]


def test_tabs_show_one_board_and_paper_all(page: Path, tab: browser.Tab) -> None:
    visible = "[...document.querySelectorAll('section')].filter(s => s.offsetParent).map(s => s.id)"
    tab.open(page)
    tab.until(visible, ["fleet"])
    tab.run("document.querySelector('.tabs a[href=\"#router\"]').click()")
    tab.until(visible, ["router"])
    tab.call("Emulation.setEmulatedMedia", media="print")
    tab.until(visible, ["fleet", "replica", "router"])
    tab.call("Emulation.setEmulatedMedia", media="")
    tab.open(page, "#replica")
    tab.until(visible, ["replica"])


@pytest.mark.parametrize("width", [390, 800, 1400, 2500])
def test_no_width_needs_sideways_scrolling(page: Path, tab: browser.Tab, width: int) -> None:
    tab.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
    tab.open(page)
    assert tab.run("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0
    tab.call("Emulation.clearDeviceMetricsOverride")


def test_dark_is_dark_and_light_is_light(page: Path, tab: browser.Tab) -> None:
    tab.open(page)
    back = []
    for scheme in ("light", "dark"):
        tab.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        back.append(tab.run("getComputedStyle(document.body).backgroundColor"))
    assert back == ["rgb(244, 245, 247)", "rgb(18, 22, 28)"]
