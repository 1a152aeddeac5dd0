"""Service level objectives: the section ``slos`` of exaserve.yaml. What alerts are made of them: ``rules/slo.py``.

A leaf: the reader of exaserve.yaml imports it too, so that a wrong objective is refused before anything starts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from exporters.catalog import GAP_BUCKETS, LATENCY_BUCKETS

#: Thresholds must be bucket edges, or the share of requests inside them is a guess. These are the router's; a source
#: without it has others (``Source.edges``), and ``exaserve dashboards build`` refuses what is none of them.
Edges = Mapping[str, Collection[float]]
ROUTER_EDGES: Edges = {"ttft": LATENCY_BUCKETS, "e2e": LATENCY_BUCKETS, "inter_token": GAP_BUCKETS}


class Slo(BaseModel):
    """One objective, judged by cluster, model and pool.

    kind: availability (requests that did not fail), or the share of ttft, inter_token, e2e within ``threshold``.
    What the keys must be together says ``problems``.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    kind: Literal["availability", "ttft", "inter_token", "e2e"] = Field(description="what is promised")
    objective: float = Field(ge=0.5, lt=1, description="share of good requests promised, e.g. 0.999")
    threshold: float | None = Field(None, gt=0, description="seconds, a bucket edge; not for availability")
    window: int = Field(30, ge=7, le=90, description="days over which the budget is kept")
    min_requests: int = Field(
        100, ge=0, description="requests in an alert's long window below which it keeps quiet"
    )
    pool: str | None = Field(None, description="only this pool; null: each pool is judged by itself")
    page: bool = Field(True, description="false: no burn rate of it wakes anybody")


SloName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")]
#: The section: all objectives there are.
Slos = dict[SloName, Slo]

#: What holds where exaserve.yaml says nothing.
DEFAULT: Slos = {
    "availability": Slo(kind="availability", objective=0.999),
    "ttft": Slo(kind="ttft", objective=0.99, threshold=2.5),
    "inter_token": Slo(kind="inter_token", objective=0.99, threshold=0.15),
    "e2e": Slo(kind="e2e", objective=0.95, threshold=60.0, page=False),
}


def problems(
    slos: Mapping[str, Slo], pools: Collection[str] | None = None, edges: Edges = ROUTER_EDGES
) -> Iterator[tuple[str, str]]:
    """Keys (``ttft.threshold``) that are well by themselves and not together, and what is wrong.

    pools: names that there are; None if they are not known. edges: of the source's histograms.
    """
    for name, slo in slos.items():
        if slo.kind == "availability":
            if slo.threshold is not None:
                yield f"{name}.threshold", "availability has none; remove it"
        elif slo.threshold is None:
            yield f"{name}.threshold", f"must be given, in seconds: {slo.kind} is judged by it"
        elif slo.threshold not in edges[slo.kind]:
            near = min(edges[slo.kind], key=lambda edge: abs(edge - (slo.threshold or 0)))
            yield (
                f"{name}.threshold",
                f"{slo.threshold:g} is no edge of the histogram's buckets, so what is within it can't be counted;"
                f" the nearest is {near:g}",
            )
        if pools is not None and slo.pool is not None and slo.pool not in pools:
            known = ", ".join(pools) or "none"
            yield f"{name}.pool", f"no pool {slo.pool}; pools: {known}"


def read(path: Path, edges: Edges = ROUTER_EDGES) -> Slos:
    """``slos`` of an exaserve.yaml; DEFAULT without the section. Raises ValueError that names the key; OSError.

    Whether pools exist is for the reader of the whole file to say.
    """
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not YAML: {error}") from None
    if not isinstance(data, dict):
        raise ValueError(f"{path}: holds no keys, so it is no exaserve.yaml")
    section = data.get("slos")
    if not section:
        return DEFAULT
    try:
        slos = TypeAdapter(Slos).validate_python(section)
    except ValidationError as error:
        first = error.errors()[0]
        at = ".".join(str(part) for part in ("slos", *first["loc"]) if part != "[key]")
        raise ValueError(f"{path}: {at}: {first['msg']}") from None
    for key, problem in problems(slos, edges=edges):
        raise ValueError(f"{path}: slos.{key}: {problem}")
    return slos
