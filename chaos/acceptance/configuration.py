"""The configuration of a lab's router, changed while a row runs: what its user would have written.

Only of a lab that was built for the run. The router reads its files again by itself; that it has is seen in ``/fleet``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml

from chaos.acceptance.bench import Bench
from chaos.acceptance.result import Result
from chaos.fault import ActivityFailed
from chaos.lab import control
from chaos.place import Place


@contextmanager
def changed(
    bench: Bench,
    result: Result,
    pools: dict[str, Any],
    router: dict[str, Any] | None = None,
    replicas: str = "",
) -> Iterator[None]:
    """The first region's router has these pools, keys of ``router`` and further replicas (lines of its file).

    Raises ActivityFailed if it does not take them over.
    """
    if not bench.own:
        raise ActivityFailed(
            "the lab is not of this command's making, so its routers' configuration is left alone"
        )
    run = Path(bench.lab.regions[0]["run"])  # type: ignore[attr-defined]
    config, listed = run / control.CONFIG, run / "replicas.txt"
    before = config.read_text(), listed.read_text()
    settings = yaml.safe_load(before[0])
    names = {line.partition("=")[0] for line in (before[1] + replicas).split()}
    shown = {"pools": pools, **({"router": router} if router else {})}
    bench.keep(result, "exaserve.yaml", yaml.safe_dump(shown, sort_keys=False))
    settings["pools"] = pools
    settings["router"] |= router or {}
    try:
        _put(listed, before[1] + replicas)
        _put(config, yaml.safe_dump(settings, sort_keys=False))
        _wait_for(bench.place, names, set(pools))
        yield
    finally:
        _put(listed, before[1])
        _put(config, before[0])


def _put(path: Path, text: str) -> None:
    """Whole or not at all: the router may read it at any moment."""
    part = path.with_name(f".{path.name}.part")
    part.write_text(text)
    part.replace(path)


def _wait_for(place: Place, replicas: set[str], pools: set[str], seconds: float = 20.0) -> None:
    """Until the router serves with those replicas and pools. Raises ActivityFailed."""
    end, seen = time.monotonic() + seconds, ""
    while time.monotonic() < end:
        try:
            view = httpx.get(f"{place.addresses['admin']}/fleet", timeout=2.0, trust_env=False).json()
            ready = {r["name"] for r in view["replicas"] if r["state"] in ("ready", "degraded")}
            there = {str(p["name"]) for p in view["pools"]}
            seen = f"replicas {', '.join(sorted(ready))}; pools {', '.join(sorted(there))}"
            if ready == replicas and there == pools:
                return
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            seen = repr(error)
        time.sleep(0.2)
    raise ActivityFailed(f"the router did not take over its new configuration within {seconds:g} s: {seen}")
