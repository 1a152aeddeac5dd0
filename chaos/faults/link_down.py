"""A node's link has no carrier: cable, port or switch gone."""

from __future__ import annotations

from chaos.engines import iplink
from chaos.fault import Fault

FAULT = Fault(
    name="link_down",
    kind="link",
    summary="the node's link loses its carrier",
    engines=(iplink.Down(), iplink.InfinibandPort()),
)
