"""``exaserve intent``: train, evaluate and try the classifier, save what is normal. Options and messages
only.

Status 0: done; 1: a file cannot be used, or the model is damaged; 2: wrong usage.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NoReturn

import typer

app = typer.Typer(help="The intent classifier: what a question is about.", no_args_is_help=True)
reference_app = typer.Typer(
    help="The normal mix of intents, which the exporter compares traffic with.", no_args_is_help=True
)
app.add_typer(reference_app, name="reference")

_File = Annotated[Path, typer.Argument(help='JSON lines: {"text": "…", "label": "…"}, "lang" if you like.')]
_Model = Annotated[str, typer.Option(help="A file of `intent train`, or default for the bundled model.")]
_Threshold = Annotated[
    float, typer.Option(min=0.0, max=1.0, help="The second stage is asked below this confidence.")
]


@app.command("train")
def train(
    file: _File,
    out: Annotated[Path, typer.Option(help="Where the model goes.")] = Path("intent.npz"),
    second: Annotated[
        bool,
        typer.Option("--second/--no-second", help="The second stage too: its last layer is fitted anew."),
    ] = True,
) -> None:
    """Train a model on your own texts and labels (numpy; seconds to a minute)."""
    from serving.intent import lines, training
    from serving.intent.classifier import encoder_beside
    from serving.intent.ngram import ModelError, save

    if out.suffix != ".npz":
        _fail(f"--out {out}: the name must end in .npz", 2)
    if not out.parent.is_dir():
        _fail(f"--out {out}: there is no folder {out.parent}", 2)
    try:
        examples = lines.read(file)
        typer.echo(f"{file}: {len(examples)} examples, {len({e.label for e in examples})} labels", err=True)
        model, features, prior = training.train(examples, lambda text: typer.echo(f"  {text}", err=True))
        save(out, model.labels, features, prior, model.temperature, {"examples": len(examples)})
        typer.echo(f"{out}: {out.stat().st_size / 1e6:.1f} MB, {len(features)} features")
        encoder = encoder_beside(out)
        if second:
            from serving.intent.head import fit_second

            typer.echo("second stage: the bundled encoder reads every text", err=True)
            fit_second(examples, model, encoder, lambda text: typer.echo(f"  {text}", err=True))
            typer.echo(f"{encoder}: {encoder.stat().st_size / 1e6:.1f} MB (the second stage)")
        elif encoder.exists():
            typer.echo(
                f"{encoder} is there from an earlier training; delete it if its labels differ", err=True
            )
    except OSError as error:
        _fail(f"{error.filename or out}: {error.strerror or error}", 1)
    except (lines.LinesError, ModelError) as error:
        _fail(str(error), 1)
    except ValueError as error:
        _fail(f"{file}: {error}", 1)


@app.command("eval")
def evaluate(
    file: _File,
    model: _Model = "default",
    threshold: _Threshold = 0.7,
    json_: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Accuracy by label and language, confusion, time, and what plain keywords would get."""
    from serving.intent import evaluate as figures
    from serving.intent import lines
    from serving.intent.classifier import load
    from serving.intent.ngram import ModelError

    try:
        found = figures.evaluate(load(model), lines.read(file), threshold)
    except (lines.LinesError, ModelError) as error:
        _fail(str(error), 1)
    if json_:
        import json

        typer.echo(json.dumps(found, indent=1, ensure_ascii=False))
    else:
        typer.echo(f"{figures.table(found)}\n\n{figures.timing(found)}")


@app.command("classify")
def classify(
    text: Annotated[str, typer.Argument(help="The question.")],
    model: _Model = "default",
    threshold: _Threshold = 0.7,
) -> None:
    """Classify one text."""
    from serving.intent.classifier import load
    from serving.intent.encoder import load_encoder
    from serving.intent.ngram import ModelError

    try:
        classifier = load(model)
        label, confidence = classifier.fast(text)
        stage = "n-grams"
        if confidence < threshold and classifier.encoder_path is not None:
            label, confidence = load_encoder(classifier.encoder_path, classifier.model).classify(text)
            stage = "second stage"
    except ModelError as error:
        _fail(str(error), 1)
    typer.echo(f"{label} {confidence:.2f} ({stage})")


@reference_app.command("save")
def reference_save(
    file: Annotated[Path, typer.Argument(help="Where it goes; an old one is replaced.")],
    router: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="A router's admin API; default: the running stack's, else port 8001."
        ),
    ] = None,
    prometheus: Annotated[
        str | None, typer.Option(metavar="URL", help="Count over a range of time in this Prometheus instead.")
    ] = None,
    since: Annotated[
        str, typer.Option("--from", metavar="TIME", help="With --prometheus: the range begins this long ago.")
    ] = "-7d",
    until: Annotated[
        str | None, typer.Option("--to", metavar="TIME", help="And ends this long ago; default: now.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Name of the intent model, as a note in the file.")
    ] = None,
) -> None:
    """Save the mix of intents as it is now, or was in a normal week, as what is normal.

    From a router: all that it classified since it started.
    """
    from serving.intent import reference

    try:
        if router is not None and prometheus is not None:
            raise reference.NoReference("--router or --prometheus, not both", 2)
        if prometheus is not None:
            found = reference.from_prometheus(prometheus, since, until, model)
        else:
            found = reference.from_router(router or _running(), model)
        reference.write(found, file)
    except reference.NoReference as error:
        _fail(str(error), error.status)
    except OSError as error:
        _fail(f"{file}: {error.strerror or error}", 1)
    typer.echo(f"{file}: {found.size} requests, {len(found.counts)} intents")
    if found.size < reference.ENOUGH:
        typer.echo(
            f"too few: the exporter compares nothing with less than {reference.ENOUGH}; save it again later",
            err=True,
        )


@reference_app.command("show")
def reference_show(file: Annotated[Path, typer.Argument(help="A file of `reference save`.")]) -> None:
    """Show a saved reference: where from, of when, and the share of each intent."""
    from serving.intent import reference

    try:
        typer.echo(reference.table(reference.read(file)))
    except reference.NoReference as error:
        _fail(str(error), error.status)


def _running() -> str:
    from serving import record

    found = record.read() if record.is_up() else None
    return (found.addresses.get("admin") if found else None) or "http://127.0.0.1:8001"


def _fail(text: str, status: int) -> NoReturn:
    typer.echo(text, err=True)
    raise typer.Exit(status)
