"""How the commands of this folder end when they were asked for something wrong: one line, where to look, status 2."""

from __future__ import annotations

import typer


def usage(command: str, problem: str) -> typer.Exit:
    """To be raised. command: as it is typed after ``exaserve``. problem: one line that says what to write."""
    typer.echo(f"{problem}\nsee `exaserve {command} --help`", err=True)
    return typer.Exit(2)
