"""What is in each engine and what it did, by cluster, model and replica; what for, see ``dashboards/signals.py``."""

from __future__ import annotations

from dashboards.rulefile import Group
from dashboards.signals import Source


def group(source: Source) -> Group:
    return Group("engine", source.engines())
