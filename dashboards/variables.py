"""The variables of our boards, and the matchers and queries that carry them.

Values come from series that only our fleets have, so that no other exporter's ``model`` or ``replica`` is offered:
each source names its own. Later variables follow the earlier ones. A label that a fleet does not have (``cluster``
where one Prometheus has one cluster) offers only All, and All matches series without the label too.
"""

from __future__ import annotations

from collections.abc import Sequence

from grafanalib import core

from dashboards import signals
from dashboards.signals import Source

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}

#: Matchers without braces. A selector of a board carries those of its variables that its series can have.
CLUSTER = 'cluster=~"$cluster"'
MODEL = f'{CLUSTER}, model=~"$model"'
REPLICA = f'{MODEL}, replica=~"$replica"'
#: For what the exporter says of a replica without knowing its model.
NODE_REPLICA = f'{CLUSTER}, replica=~"$replica"'

_ORDER = ("cluster", "model", "pool", "replica")


def pool(source: Source) -> str:
    """Matchers for series about users; only a router has pools."""
    return f'{MODEL}, pool=~"$pool"' if source.has_router else MODEL


def variables(source: Source, *names: str, one_replica: bool = False) -> list[core.Template]:
    """Variables by name, of cluster, model, pool, replica; ``pool`` is left out where there is no router.

    one_replica: exactly one replica is chosen. Raises KeyError for another name.
    """
    models, replicas = source.model_values, source.replica_values
    selectors = {
        "cluster": models,
        "model": _with(models, CLUSTER),
        "pool": f"{signals.requests(signals.LONG)}{{{MODEL}}}",
        "replica": _with(replicas, MODEL if "model=~" not in replicas else CLUSTER),
    }
    chosen = [name for name in _ORDER if name in names and (name != "pool" or source.has_router)]
    unknown = set(names) - set(_ORDER)
    if unknown:
        raise KeyError(f"no such variable: {', '.join(sorted(unknown))}")
    return [
        label_variable(name, name, selectors[name], several=not (one_replica and name == "replica"))
        for name in chosen
    ]


def label_variable(name: str, label: str, selector: str, several: bool = True) -> core.Template:
    """A variable with the values of ``label``. several: several or all may be chosen, else one."""
    return core.Template(
        name=name,
        label=name,
        dataSource=DATASOURCE,
        query=f"label_values({selector}, {label})",
        includeAll=several,
        multi=several,
        allValue=".*" if several else None,
        default="$__all" if several else None,
        refresh=2,
    )


def datasource() -> core.Template:
    """The Prometheus that a board asks; on every board."""
    return core.Template(
        name="datasource", label="data source", type="datasource", query="prometheus", refresh=1
    )


def top(
    n: int, series: str, matchers: str, *, bottom: bool = False, on: Sequence[str] = signals.BY_REPLICA
) -> str:
    """PromQL: the n replicas that have the highest (bottom: lowest) ``series`` at the end of the time shown, all
    through it.

    ``topk`` alone chooses anew at each point: a panel over a day would draw each replica that once was among them.
    on: the labels by which one series is the same at both times; other things than replicas have others.
    """
    return f"{series}{{{matchers}}} and on ({', '.join(on)}) {_last(n, series, matchers, bottom)}"


def counted(rate: str, label: str = "") -> str:
    """PromQL: a rate of the router's counter, grouped; 0 under the name "none" where it has counted nothing yet.

    A counter that nothing has raised has no series. Beside a router that is there that means 0, not unknown.
    """
    nothing = f"0 * max(exaserve_router_build_info{{{CLUSTER}}})"
    if label:
        nothing = f'label_replace({nothing}, "{label}", "none", "", "")'
    return f"{rate} or on () {nothing}"


def beside(series: str, n: int, of: str, matchers: str, *, bottom: bool = False) -> str:
    """PromQL: ``series`` of the replicas that ``top`` chooses by another series, for the columns of a table."""
    return f"{series}{{{matchers}}} and on (cluster, model, replica) {_last(n, of, matchers, bottom)}"


def _last(n: int, series: str, matchers: str, bottom: bool) -> str:
    return f"{'bottomk' if bottom else 'topk'}({n}, {series}{{{matchers}}} @ end())"


def _with(selector: str, matchers: str) -> str:
    """The selector with more matchers."""
    return f"{selector[:-1]}, {matchers}}}" if selector.endswith("}") else f"{selector}{{{matchers}}}"
