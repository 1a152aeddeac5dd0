"""``python -m serving.router``: the same as ``exaserve router``."""

import typer

from serving.router.cli import router

typer.run(router)
