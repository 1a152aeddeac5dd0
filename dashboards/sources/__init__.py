"""What a fleet's numbers come from, one kind of fleet a file; the signals that each records are in ``signals.py``."""

from __future__ import annotations

from dashboards.signals import Source
from dashboards.sources import exaserve, ray, vllm

SOURCES: dict[str, Source] = {source.name: source for source in (exaserve.SOURCE, vllm.SOURCE, ray.SOURCE)}
