"""``python -m dashboards build``: the same as ``exaserve dashboards build``."""

from dashboards.cli import app

app(prog_name="python -m dashboards")
