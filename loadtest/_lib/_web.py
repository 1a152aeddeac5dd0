"""What the load test adds to locust's own web page: two tabs with exact numbers, and charts below them.

locust takes tabs and tables as data. Charts it does not; they are a page of their own (``exaserve/``, also by itself in
a browser), which ``web_tab.js`` shows below the tables of our tabs.
"""

from __future__ import annotations

from importlib import resources
from typing import Any

from flask import Blueprint, Response, jsonify, request

from exporters.catalog.loadtest import LATENCIES
from loadtest._lib._metrics import ALL, MEASURED, QUANTILES, Digest, attainment, totals
from loadtest._lib._metrics_server import Watch

#: Keys of the tabs; they stand in the page's address.
LATENCY_TAB, RUN_TAB = "exaserve-latency", "exaserve-run"
_COLUMNS = {
    "profile": "Profile",
    "latency": "Latency (ms)",
    "count": "Values",
    "mean": "Mean",
    "p50": "p50",
    "p95": "p95",
    "p99": "p99",
    "p999": "p99.9",
    "max": "Max",
    "limit": "Objective",
}
_FACTS = {"what": "", "value": "", "meaning": "What it is"}
_NOTHING = "–"


def install(environment: Any, watch: Watch) -> None:
    """Add tabs, tables and pages to ``environment.web_ui``. Before it serves."""
    ui = environment.web_ui
    ui.template_args["extended_tabs"] = [
        *ui.template_args.get("extended_tabs", ()),
        {"title": "ExaServe latency", "key": LATENCY_TAB},
        {"title": "ExaServe run", "key": RUN_TAB},
    ]
    ui.template_args["extended_tables"] = [
        *ui.template_args.get("extended_tables", ()),
        {"key": LATENCY_TAB, "structure": _structure(_COLUMNS)},
        {"key": RUN_TAB, "structure": _structure(_FACTS)},
    ]
    base = getattr(environment.parsed_options, "web_base_path", "") or ""
    ui.app.register_blueprint(_blueprint(ui, watch), url_prefix=f"{base.rstrip('/')}/exaserve")

    @ui.app.after_request
    def extend(response: Response) -> Response:
        if response.status_code == 200 and request.method == "GET":
            if request.path == f"{base}/stats/requests" and response.is_json:
                response.set_data(_extended(response.get_json(), watch))
            elif request.path.rstrip("/") == base.rstrip("/") and response.mimetype == "text/html":
                response.set_data(_with_script(response.get_data(as_text=True)))
        return response


def _structure(columns: dict[str, str]) -> list[dict[str, str]]:
    return [{"key": key, "title": title} for key, title in columns.items()]


def _blueprint(ui: Any, watch: Watch) -> Blueprint:
    pages = Blueprint("exaserve", __name__)

    @pages.route("/")
    @ui.auth_required_if_enabled
    def charts() -> Response:
        return Response(_file("web_charts.html"), mimetype="text/html")

    @pages.route("/<name>.js")
    @ui.auth_required_if_enabled
    def script(name: str) -> Response:
        if name == "plotly":
            from plotly.offline import get_plotlyjs

            text = get_plotlyjs()
        elif name in ("web_tab", "web_charts"):
            text = _file(f"{name}.js")
        else:
            return Response("not here", 404)
        return Response(text, mimetype="text/javascript", headers={"Cache-Control": "max-age=3600"})

    @pages.route("/data")
    @ui.auth_required_if_enabled
    def data() -> Response:
        return jsonify(watch.ask(_charted))

    return pages


def _file(name: str) -> str:
    return (resources.files("loadtest._lib") / name).read_text(encoding="utf-8")


def _with_script(page: str) -> str:
    return page.replace("</body>", '<script src="./exaserve/web_tab.js"></script></body>')


def _extended(report: dict[str, Any], watch: Watch) -> str:
    import json

    tables = watch.ask(lambda digest: {LATENCY_TAB: latencies(digest), RUN_TAB: facts(digest)})
    report["extended_stats"] = [
        *report.get("extended_stats", ()),
        *({"key": key, "data": rows} for key, rows in tables.items()),
    ]
    return json.dumps(report)


def latencies(digest: Digest) -> list[dict[str, str]]:
    """Rows of the first tab: all together, then each profile. Milliseconds, as text."""
    taken = digest.taken
    if taken is None or taken.run is None:
        return []
    profiles = sorted({profile for profile, _ in taken.counts})
    rows = []
    for profile in (ALL, *(profiles if len(profiles) > 1 else ())):
        for latency in LATENCIES:
            exact = digest.exact.get((profile, latency))
            if exact is None:
                continue
            quantiles = dict(zip(("p50", "p95", "p99", "p999"), exact.quantiles(QUANTILES), strict=True))
            values = {"mean": exact.mean, **quantiles, "max": exact.max, "limit": taken.run.slo.get(latency)}
            row = {"profile": profile, "latency": latency.upper(), "count": f"{exact.count:,}"}
            rows.append(row | {key: _ms(value) for key, value in values.items()})
    return rows


def facts(digest: Digest) -> list[dict[str, str]]:
    """Rows of the second tab."""
    taken = digest.taken
    if taken is None or taken.run is None:
        return [
            {
                "what": "Run",
                "value": "none yet",
                "meaning": "Start one; numbers of its measured phase come here.",
            }
        ]
    measured = totals(taken, MEASURED)
    point = digest.history[-1] if digest.history else {}
    share = attainment(measured)
    void = "; ".join(taken.void) or "no"
    cpu = max(taken.cpu.values(), default=None)
    rows = [
        ("Run", taken.run.name, "Folder under $EXASERVE_HOME/loadtest, and the label `run` in Prometheus."),
        ("Void", void, "Whether the client itself is too slow; then nothing else here counts."),
        ("SLO attainment", _percent(share), "Good ÷ offered requests whose fate is known, measured phase."),
        (
            "Goodput now",
            f"{point.get('good', 0):,.1f} /s",
            "Requests that met every objective, in the last second.",
        ),
        ("Offered", f"{measured.offered:,}", "Requests that were due, measured phase."),
        ("Completed", f"{measured.completed:,}", "Answered whole and with content."),
        ("Failed", f"{measured.failures:,}", _reasons(measured.failed)),
        ("Never sent", f"{measured.unsent:,}", "Were due and were not sent; they count as bad."),
        (
            "In flight",
            f"{point.get('in_flight', 0):,}",
            "Sent, and not ended. Grows without end above the capacity.",
        ),
        (
            "Output tokens",
            f"{point.get('output_tokens', 0):,.0f} /s",
            "Of the requests that completed in the last second.",
        ),
        ("Schedule lag p99", _ms(point.get("lag_p99")), "Last second, ms; none in a closed loop."),
        ("Client CPU", _percent(cpu), "Busiest process of the load test, share of a core."),
        (
            "Event loop delay",
            _ms(point.get("delay_max")),
            "Greatest of the last second, ms: times may be wrong by as much.",
        ),
    ]
    return [{"what": what, "value": value, "meaning": meaning} for what, value, meaning in rows]


def _reasons(failed: dict[str, int]) -> str:
    return (
        ", ".join(f"{reason}: {number:,}" for reason, number in failed.items() if number) or "nothing failed"
    )


def _ms(seconds: float | None) -> str:
    return _NOTHING if seconds is None else f"{seconds * 1000:,.2f}"


def _percent(share: float | None) -> str:
    return _NOTHING if share is None else f"{share * 100:.2f} %"


def _charted(digest: Digest) -> dict[str, Any]:
    run = digest.taken.run if digest.taken else None
    return {
        "run": run.name if run else None,
        "slo": run.slo if run else {},
        "void": list(digest.taken.void) if digest.taken else [],
        "points": list(digest.history),
    }
