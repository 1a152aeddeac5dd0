"""Whether this user may do what only root may: here, and on a node that is entered as somebody."""

from __future__ import annotations

import os

from chaos.place import Node, Place


def lacking(place: Place, what: str) -> str | None:
    """For ``Engine.missing``. Where nodes are remote it is the node that is asked, by ``Engine.refusal``."""
    if os.geteuid() == 0 or any(node.remote for node in place.nodes()):
        return None
    return f"only root may {what} (run it with sudo)"


def lacking_on(node: Node, what: str) -> str | None:
    """For ``Engine.refusal``: the user as whom a node is entered."""
    if node.read(["id", "-u"]).stdout.strip() == "0":
        return None
    return f"only root may {what}, and {node.name} is entered as another user"
