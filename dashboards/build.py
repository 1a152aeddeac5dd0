"""Writes every board and rule file for one kind of fleet, or says which files differ from the code.

What is generated for exaserve.yaml's defaults is committed in ``dashboards/generated``, so that a Prometheus or a
Grafana can use it without Python: ExaServe's own fleets at the top, the other sources in a folder of their name.
Boards are added to BOARDS or ROUTER_BOARDS, rule files to ``groups``; each is one file in ``boards/`` or ``rules/``
and has that file's name.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from grafanalib import core

from dashboards.boards import capacity, chaos, fleet, loadtest, router, tenants
from dashboards.boards import fabric as fabric_board
from dashboards.boards import intent as intent_board
from dashboards.boards import replica as replica_board
from dashboards.boards import slo as slo_board
from dashboards.normalise import to_json
from dashboards.rulefile import INTERVAL, Group, Links
from dashboards.rules import (
    admission,
    bands,
    engine,
    engine_alerts,
    engine_state,
    fabric,
    gpu,
    intent,
    kv,
    leak,
    network,
    nodes,
    numa,
    replica,
    retries,
    rotation,
    router_edges,
    router_process,
    slo,
    slo_budget,
    spread,
    storage,
    targets,
    thresholds,
    totals,
    usage,
    users,
    watchdog,
)
from dashboards.rules import (
    links as links_rules,
)
from dashboards.signals import Source
from dashboards.slo import DEFAULT, Slo
from dashboards.sources import SOURCES

GENERATED = Path(__file__).parent / "generated"
#: The source whose files stand at the top of GENERATED.
FIRST = "exaserve"

#: Boards of every source.
BOARDS = {
    "fleet": fleet.board,
    "replica": replica_board.board,
    "slo": slo_board.board,
    "capacity": capacity.board,
    "fabric": fabric_board.board,
    "loadtest": loadtest.board,
    "chaos": chaos.board,
}
#: Boards about what only ExaServe's router knows.
ROUTER_BOARDS: dict[str, Callable[[Links, Source], core.Dashboard]] = {
    "router": router.board,
    "intent": intent_board.board,
    "tenants": tenants.board,
}

#: Rules over what the exporter says, the same for every source.
NODE_RULES = {
    "fabric": fabric.group,
    "storage": storage.group,
    "network": network.group,
    "gpu": gpu.group,
    "leak": leak.group,
    "numa": numa.group,
    "links": links_rules.group,
    "engine_state": engine_state.group,
    "nodes": nodes.group,
    "watchdog": watchdog.group,
}
#: Rules over what only ExaServe's router knows.
ROUTER_RULES = {
    "intent": intent.group,
    "admission": admission.group,
    "retries": retries.group,
    "rotation": rotation.group,
    "router_process": router_process.group,
    "router_edges": router_edges.group,
}


def groups(source: Source, slos: Mapping[str, Slo]) -> dict[str, Group]:
    """Every rule file's group by its file's name."""
    everywhere = {
        "users": users.group(source),
        "engine": engine.group(source),
        "engine_alerts": engine_alerts.group(source),
        "kv": kv.group(source),
        "replica": replica.group(source),
        "slo": slo.group(slos),
        "slo_budget": slo_budget.group(slos),
        "thresholds": thresholds.group(),
        "bands": bands.group(),
        "totals": totals.group(source),
        "spread": spread.group(),
        "targets": targets.group(source),
    }
    if source.has_router:
        everywhere["usage"] = usage.group(slos)
    tables = (NODE_RULES, ROUTER_RULES) if source.has_router else (NODE_RULES,)
    return everywhere | {name: group() for table in tables for name, group in table.items()}


def files(
    links: Links | None = None,
    source: str = FIRST,
    slos: Mapping[str, Slo] = DEFAULT,
    interval: str = INTERVAL,
) -> dict[str, str]:
    """Every file of one source: path inside the output folder -> text. Raises KeyError for an unknown source.

    interval: between two evaluations of the groups that keep to no interval of their own. More often than the
    scrape it sees nothing new, and at 3,072 replicas every 5 s takes 3.7 cores, every 15 s a third of that.
    """
    links, of = links or Links(), SOURCES[source]
    texts = {f"{name}.json": board_json(name, links, of) for name in board_names(of)}
    for name, group in groups(of, slos).items():
        kept = replace(group, interval=interval) if group.interval == INTERVAL else group
        texts[f"rules/{name}.yaml"] = kept.to_yaml(links)
    return texts


def board_names(source: Source) -> list[str]:
    """The boards that are built for this kind of fleet, in order."""
    return [*BOARDS, *(ROUTER_BOARDS if source.has_router else ())]


def board_json(name: str, links: Links, source: Source) -> str:
    """One board as Grafana's JSON. Raises KeyError for a name that there is not."""
    text = to_json((BOARDS | ROUTER_BOARDS)[name](links, source))
    return text if source.has_router else _SAID.sub(_without_pools, text)


#: What boards say to people, in their JSON.
_SAID = re.compile(r'"(?:title|description|noValue|content)": ".*"')
#: Pools are the router's; without one, what boards say of pools holds of models.
_POOLS = (("pool, model", "model"), ("model and pool", "model"), ("pools", "models"), ("pool", "model"))


def _without_pools(said: re.Match[str]) -> str:
    text = said[0]
    for pool, model in _POOLS:
        text = text.replace(pool, model)
    return text


def committed() -> dict[str, str]:
    """What GENERATED holds: every source, with the defaults."""
    texts: dict[str, str] = {}
    for source in SOURCES:
        folder = "" if source == FIRST else f"{source}/"
        texts |= {f"{folder}{name}": text for name, text in files(source=source).items()}
    return texts


def differing(out: Path, texts: Mapping[str, str]) -> list[str]:
    """Files in ``out`` that are missing, differ from ``texts``, or are none of them, in order."""
    wrong = [name for name, text in texts.items() if _read(out / name) != text]
    left = [path.relative_to(out).as_posix() for path in _generated_in(out)]
    return sorted(wrong + [f"{name} (nothing writes it)" for name in left if name not in texts])


def write(out: Path, texts: Mapping[str, str]) -> list[Path]:
    """Write every file, each whole or not at all. Returns their paths. Raises OSError."""
    written = []
    for name, text in texts.items():
        path = out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        fd, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(fd, "w", encoding="utf-8") as f:
                f.write(text)
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        written.append(path)
    return written


def _generated_in(out: Path) -> list[Path]:
    folders = (out, *(out / source for source in SOURCES))
    return sorted(path for f in folders for path in (*f.glob("*.json"), *f.glob("rules/*.yaml")))


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
