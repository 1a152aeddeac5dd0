"""Keeps ``exporters/README.md`` equal to the code: its tables of collectors, settings and metrics.

``python -m exporters.docs`` writes them between the marks in that file; ``--check`` only says whether they are as
they should be (exit status 1 if not). All else in the file is written by hand.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType

from exporters import available, catalog
from exporters.catalog import CATALOG, Metric

README = Path(__file__).with_name("README.md")

#: Heading of each file of the catalogue. What is not here comes last, under its own name.
_TITLES = {
    "exporter": "The exporter itself",
    "infiniband": "InfiniBand, RoCE, EFA",
    "engine": "Engines and their KV cache",
    "numa": "NUMA placement",
    "gpu": "GPUs",
    "process": "Processes of replicas",
    "intent_drift": "Intent drift",
    "storage": "Storage",
    "network": "Network peers",
    "node": "What a node runs",
    "node_infiniband": "node_exporter's names",
    "replica": "Replicas, as the router sees them",
    "router": "The router",
    "loadtest": "Load tests (`locust … --metrics-port`)",
    "chaos": "Chaos experiments (`exaserve chaos run`)",
}


def written(text: str) -> str:
    """``text`` with what stands between each pair of marks made anew. Raises ValueError if a mark is missing."""
    for name, make in _BLOCKS.items():
        begin, end = f"<!-- {name}: made by python -m exporters.docs -->", f"<!-- {name}: end -->"
        before, found, rest = text.partition(begin)
        _, closed, after = rest.partition(end)
        if not found or not closed:
            raise ValueError(f"the marks of {name} are missing")
        text = f"{before}{begin}\n\n{make().strip()}\n\n{end}{after}"
    return text


def _collectors() -> str:
    rows = [[f"`{n}`", "on" if a.default else "off", a.summary] for n, a in available.collectors().items()]
    return _table(["collector", "default", "what it does"], rows)


def _settings() -> str:
    from exporters.config import Exporter

    rows = []
    for name, field in Exporter.model_fields.items():
        default = field.get_default(call_default_factory=True)
        shown = (
            {None: "null", True: "true", False: "false"}.get(default, default) if _plain(default) else default
        )
        rows.append([f"`{name}`", f"`{shown}`", field.description or ""])
    return _table(["key", "default", "meaning"], rows)


def _plain(value: object) -> bool:
    return value is None or isinstance(value, bool)


def _metrics() -> str:
    sections = []
    for name, module in _modules().items():
        metrics = [m for m in module.METRICS if _owner(m) == name]
        rows = [[f"`{m.name}`", m.kind, ", ".join(m.labels), m.help, m.source] for m in metrics]
        table = _table(["metric", "kind", "labels", "meaning", "from"], rows)
        sections.append(f"### {_TITLES.get(name, name)}\n\n{_prose(module.__doc__ or '')}\n\n{table}")
    return "\n\n".join(sections)


def _modules() -> dict[str, ModuleType]:
    """The catalogue's files that declare metrics, in the order of the titles."""
    found = {}
    for entry in pkgutil.iter_modules(catalog.__path__):
        module = importlib.import_module(f"{catalog.__name__}.{entry.name}")
        if any(m.name in CATALOG for m in getattr(module, "METRICS", ())):
            found[entry.name] = module
    order = [*_TITLES, *sorted(found.keys() - _TITLES.keys())]
    return {name: found[name] for name in order if name in found}


def _owner(m: Metric) -> str:
    """The file that declares a metric: another may hand on the whole of it."""
    return min(
        (name for name, module in _modules().items() if m in module.METRICS),
        key=lambda name: len(_modules()[name].METRICS),
    )


def _prose(docstring: str) -> str:
    """A docstring as Markdown: code in single backticks, ``::`` before a block gone."""
    lines = []
    for line in docstring.strip().splitlines():
        lines.append(
            line if line.startswith("    ") else re.sub(r"``(.+?)``", r"`\1`", line).replace("``", "`")
        )
    return re.sub(r"::$", ":", "\n".join(lines), flags=re.MULTILINE)


def _table(head: list[str], rows: Iterable[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in lines)


_BLOCKS: dict[str, Callable[[], str]] = {
    "collectors": _collectors,
    "settings": _settings,
    "metrics": _metrics,
}


def main(arguments: list[str]) -> int:
    before = README.read_text()
    after = written(before)
    if arguments == ["--check"]:
        if before != after:
            print(f"{README} is not as the code is; run: python -m exporters.docs", file=sys.stderr)
        return int(before != after)
    if arguments:
        print("usage: python -m exporters.docs [--check]", file=sys.stderr)
        return 2
    README.write_text(after)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
