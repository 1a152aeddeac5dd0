"""Kinds of places, one a file: ``local`` (the stack of ``exaserve up``), ``lab``, ``cluster`` (an inventory file).

Each has ``open(argument)``; what a place tells is ``chaos/place.py``.
"""

from __future__ import annotations

import importlib

from chaos.fault import Refused
from chaos.place import Place


def open(text: str = "local", admin: str = "", router: str = "") -> Place:
    """The place that the text names: ``local``, ``lab``, ``lab:NAME``, or an inventory file (``cluster.yaml``).

    admin, router: the router's admin address and its own, where they are not what the place says. Raises Refused.
    """
    kind, _, name = text.partition(":")
    if text.endswith((".yaml", ".yml")):
        kind, name = "cluster", text
    if kind not in ("local", "lab", "cluster") or (kind == "local" and name):
        raise Refused(f"no place {text!r}: local, lab, lab:NAME or an inventory file (*.yaml)")
    module = importlib.import_module(f"chaos.places.{kind}")
    place: Place = module.open(name) if name else module.open()
    given = {"admin": admin, "router": router}
    place.addresses |= {name: url.rstrip("/") for name, url in given.items() if url}
    return place
