"""``exaserve dashboards``: the command line of the boards and rules. The work is in ``build.py``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

import typer

from dashboards.push_cli import EPILOG as PUSH_EPILOG
from dashboards.push_cli import push
from dashboards.snapshot.cli import EPILOG as SNAPSHOT_EPILOG
from dashboards.snapshot.cli import snapshot
from dashboards.usage_error import usage

app = typer.Typer(
    help="Grafana boards and Prometheus rules, generated from the code in dashboards/.",
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
)

_EPILOG = """
\b
Then, in prometheus.yml:
  rule_files: [/path/to/dashboards/generated/rules/*.yaml]
and in Grafana: import dashboards/generated/*.json, or name the folder in a dashboard provider.

\b
For vLLM servers that ExaServe does not run (no router in front), with your own service levels:
  exaserve dashboards build --source vllm --config exaserve.yaml --out /etc/exaserve/boards

\b
With links that lead to your own servers:
  exaserve dashboards build --out /etc/exaserve/boards --runbooks https://wiki.example/runbooks --grafana https://grafana.example

\b
With a data source and a dashboard provider for Grafana, and a prometheus.yml:
  exaserve dashboards build --format provisioning --out /etc/exaserve/boards --prometheus http://prometheus:9090
  (then, in grafana.ini: [paths] provisioning = /etc/exaserve/boards/grafana/provisioning)

\b
For Kubernetes (the label is that of your Helm release, which the operator's selectors ask for):
  exaserve dashboards build --format kubernetes --out manifests --namespace monitoring --label release=prometheus
  kubectl apply --server-side -k manifests
"""


app.command("push", epilog=PUSH_EPILOG)(push)
app.command("snapshot", epilog=SNAPSHOT_EPILOG)(snapshot)


@app.callback()
def dashboards() -> None:
    """Grafana boards and Prometheus rules, generated from the code in dashboards/."""


@app.command(epilog=_EPILOG)
def build(
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where to write. Default: the package's own generated/."),
    ] = None,
    source: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="What the fleet is: exaserve (its router in front), vllm (plain servers), ray (vLLM under Ray). With --out.",
        ),
    ] = "exaserve",
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="exaserve.yaml whose service levels (slos) the rules keep. With --out."
        ),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit 1 and name the files that differ.")
    ] = False,
    runbooks: Annotated[
        str,
        typer.Option(metavar="BASE", help="Folder or address of the runbooks, for links and runbook_url."),
    ] = "runbooks",
    grafana: Annotated[
        str, typer.Option(metavar="BASE", help="Address of Grafana, for dashboard_url; without it: relative.")
    ] = "",
    interval: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Between two evaluations of the rules; your scrape interval. Default: 5s in files, else 15s.",
        ),
    ] = None,
    format_: Annotated[
        Literal["files", "provisioning", "kubernetes"],
        typer.Option(
            "--format",
            help="files: boards and rules. provisioning: and the files that tell Grafana and Prometheus where they"
            " lie. kubernetes: objects for the Prometheus operator and Grafana's chart. With --out.",
        ),
    ] = "files",
    prometheus: Annotated[
        str, typer.Option(metavar="URL", help="provisioning: Prometheus as Grafana reaches it.")
    ] = "http://127.0.0.1:9090",
    namespace: Annotated[
        str, typer.Option(metavar="NAME", help="kubernetes: of every object.")
    ] = "monitoring",
    label: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="kubernetes: label of rules and monitors, as the operator's selectors ask for; repeatable.",
        ),
    ] = None,
) -> None:
    """Write boards and rules as files for Grafana and Prometheus, or as objects of Kubernetes."""
    from dashboards import build as builder
    from dashboards import scraping, slo
    from dashboards.rulefile import INTERVAL, Links
    from dashboards.sources import SOURCES

    if source not in SOURCES:
        raise usage("dashboards build", f"--source: {source!r} is none of {', '.join(SOURCES)}")
    try:
        slos = slo.read(config, SOURCES[source].edges) if config else slo.DEFAULT
    except OSError as error:
        raise usage("dashboards build", f"--config: {config}: {error.strerror or error}") from None
    except ValueError as error:
        raise usage("dashboards build", f"--config: {error}") from None
    links = Links(runbooks.rstrip("/"), grafana.rstrip("/"))
    if interval is not None and not re.fullmatch(r"[1-9]\d{0,3}[sm]", interval):
        raise usage("dashboards build", f"--interval: {interval!r} is no time; write it like 15s or 1m")
    given = (source, config, links, format_, interval)
    own = out is None and given == (builder.FIRST, None, Links(), "files", None)
    if out is None and format_ != "files":
        raise usage("dashboards build", "--format needs --out DIR; generated/ holds plain files")
    if out is None and not own:
        raise usage(
            "dashboards build",
            "--source, --config, --runbooks, --grafana and --interval need --out DIR; generated/ holds the defaults",
        )
    if label and format_ != "kubernetes":
        raise usage("dashboards build", "--label goes with --format kubernetes")
    if format_ == "provisioning" and not prometheus.startswith(("http://", "https://")):
        raise usage(
            "dashboards build",
            f"--prometheus: {prometheus!r} is no address; give one like http://prometheus:9090",
        )
    interval = interval or (INTERVAL if format_ == "files" else scraping.INTERVAL)
    texts = builder.committed() if own else builder.files(links, source, slos, interval)
    out = out or builder.GENERATED
    if format_ == "provisioning":
        from dashboards import provisioning

        texts = provisioning.files(texts, out.absolute(), source, prometheus)
    elif format_ == "kubernetes":
        from dashboards import kubernetes

        try:
            options = kubernetes.Options(namespace, _pairs(label or []))
            texts = kubernetes.files(texts, source, options)
        except ValueError as error:
            raise usage("dashboards build", str(error)) from None
    if check:
        wrong = builder.differing(out, texts)
        for name in wrong:
            typer.echo(f"differs: {out / name}")
        if wrong:
            typer.echo("run `exaserve dashboards build` and commit what it writes", err=True)
            raise typer.Exit(1)
        typer.echo(f"{len(texts)} files in {out} are what the code writes")
        return
    try:
        written = builder.write(out, texts)
    except OSError as error:
        typer.echo(f"can't write into {out}: {error.strerror or error}", err=True)
        raise typer.Exit(1) from None
    for path in written:
        typer.echo(f"wrote {path}")


def _pairs(texts: list[str]) -> dict[str, str]:
    """KEY=VALUE, each. Raises ValueError."""
    for text in texts:
        if "=" not in text:
            raise ValueError(f"--label: {text}: give KEY=VALUE, like release=prometheus")
    return {key: value for key, _, value in (text.partition("=") for text in texts)}
