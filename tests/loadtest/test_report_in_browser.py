"""A report in a real browser: it draws, runs only its own scripts, asks nobody, and fits paper and small screens.

Skipped where no Chromium is installed (Debian: chromium, 113 MB); make test installs it where it may.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from loadtest._report._cli import app
from tests.dashboards import browser
from tests.loadtest.fabricate import folder, lively

pytestmark = [
    pytest.mark.skipif(browser.PROGRAM is None, reason="chromium is not installed (Debian: chromium)"),
    pytest.mark.xdist_group("report in browser"),  # one worker sets up what they share
]

HOSTILE = """</script><script>alert(1)</script><a href="http://127.0.0.1:1/x">x</a><img src="http://127.0.0.1:1/x">"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("report")
    base = folder(home / "base", lively(400, 1), profile="mixed")
    run = folder(home / "run", lively(400, 2, 1.1), profile="mixed", model=HOSTILE)
    text = (run / "requests.jsonl").read_text().replace('"billing"', '"<img src=x onerror=alert(3)>"')
    (run / "requests.jsonl").write_text(text)
    (run / "summary.json").unlink()
    result = CliRunner().invoke(
        app, [str(run), "--baseline", str(base), "-o", str(home / "page.html"), "--utc"]
    )
    assert result.exit_code == 0, result.output
    return home / "page.html"


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Tab]:
    with browser.tab(tmp_path_factory.mktemp("chromium")) as one:
        yield one


def drawn(tab: browser.Tab, page: Path) -> int:
    """Open it and wait until its script has drawn everything; how many plots."""
    tab.open(page)
    tab.until("'drawn' in document.documentElement.dataset")
    return int(tab.run("document.documentElement.dataset.drawn"))


def test_it_draws_every_plot_asks_nobody_and_no_name_runs(page: Path, tab: browser.Tab) -> None:
    assert drawn(tab, page) == tab.run("document.querySelectorAll('.plot').length") > 15
    assert tab.run("document.querySelectorAll('.plot .main-svg').length > 15")
    assert tab.told("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded") == []
    assert tab.told("Page.javascriptDialogOpening") == []
    requests = [told["request"]["url"] for told in tab.told("Network.requestWillBeSent")]
    assert [url for url in requests if not url.startswith("data:")] == [page.as_uri()]
    assert tab.run("fetch('http://127.0.0.1:1/').then(() => 'sent', () => 'refused')") == "refused"


def test_zooming_one_plot_over_time_zooms_all(page: Path, tab: browser.Tab) -> None:
    drawn(tab, page)
    ends = "[...document.querySelectorAll('.plot[data-time]')].map(e => String(e.layout.xaxis.range[1]))"
    before = tab.run(ends)
    assert len(before) > 5
    assert len(set(before)) == 1
    tab.run(
        "(async () => { const first = document.querySelector('.plot[data-time]');"
        "const [a, b] = first.layout.xaxis.range; const half = new Date((+new Date(a) + +new Date(b)) / 2);"
        "await Plotly.relayout(first, {'xaxis.range[0]': a, 'xaxis.range[1]': half.toISOString()}); })()"
    )
    to = tab.run(ends)[0]
    assert to != before[0]
    tab.until(ends, [to] * len(before))


@pytest.mark.parametrize("width", [390, 1400])
def test_no_width_needs_sideways_scrolling(page: Path, tab: browser.Tab, width: int) -> None:
    tab.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
    drawn(tab, page)
    assert tab.run("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0
    tab.call("Emulation.clearDeviceMetricsOverride")


def test_dark_is_dark_light_is_light_and_paper_is_white(page: Path, tab: browser.Tab) -> None:
    back = "getComputedStyle(document.body).backgroundColor"
    axis = "document.querySelector('.plot').layout.font.color"
    seen: list[tuple[str, str]] = []
    for scheme in ("light", "dark"):
        tab.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        drawn(tab, page)
        seen.append((tab.run(back), tab.run(axis)))
    tab.call(
        "Emulation.setEmulatedMedia",
        media="print",
        features=[{"name": "prefers-color-scheme", "value": "dark"}],
    )
    tab.until(axis, "#000")  # the plots are drawn anew
    seen.append((tab.run(back), tab.run(axis)))
    tab.call("Emulation.setEmulatedMedia", media="", features=[])
    assert seen == [
        ("rgb(244, 245, 247)", "#1c2430"),
        ("rgb(18, 22, 28)", "#dfe5ee"),
        ("rgb(255, 255, 255)", "#000"),
    ]
