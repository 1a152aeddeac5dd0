"""``python -m exporters``: the same as ``exaserve exporter``."""

from exporters.cli import app

app(prog_name="python -m exporters")
