"""What exaserve.yaml wants of this node: folders whose storage counts, the model, engines, how many workers.

Only names are made here; nothing is touched, as any of them may lie on a mount that hangs.
"""

from __future__ import annotations

import os

from exporters.doctor.check import Node


def model(node: Node) -> str:
    """The folder of the model's weights: ``model.path``, or where ExaServe prepares the default model."""
    path = str(node.key("model.path", "default"))
    folder = str(node.home / "models/smollm2-135m-instruct") if path == "default" else path
    return os.path.abspath(os.path.expanduser(folder))


def folders(node: Node) -> dict[str, str]:
    """Folders whose storage is measured, by what they are for."""
    found = {f"mount {path}": os.path.abspath(path) for path in node.settings.mounts}
    found.setdefault("model", model(node))
    found.setdefault("state", str(node.home))
    return found


def engines(node: Node) -> list[str]:
    """Environments that may hold an engine, as arguments of the engine probe; ``-`` is the one this runs in."""
    own = node.environ.get("VIRTUAL_ENV")
    return [str(node.home / "engines"), *([own] if own else []), "-"]


def workers(node: Node) -> int:
    """Processes that hold weights on this node, a GPU each: replicas × tensor × pipeline. 1 without exaserve.yaml."""
    replicas = node.key("fleet.replicas_per_node", 2) if node.config else 1
    parallel = node.key("engine.tensor_parallel_size", 1) * node.key("engine.pipeline_parallel_size", 1)
    return int(replicas * parallel)
