"""Engines: how one replica is installed, started and imitated.

Each kind is a module with ``command(config, index, port) -> Launch``. Starting the process, watching it and
restarting it belong to ``serving/launch``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from serving.config import Config


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start one replica.

    argv: the command, its program first.
    env: what to set over the launcher's own environment.
    """

    argv: list[str]
    env: dict[str, str] = field(default_factory=dict)


#: Kind (``engine.kind`` in exaserve.yaml) -> module.
KINDS = {"vllm": "serving.engines.vllm", "simulated": "serving.engines.simulated"}


def command(config: Config, index: int, port: int) -> Launch:
    """How to start replica ``index`` (0, 1, …) of ``config.engine.kind`` on ``port``.

    Raises ValueError, naming the key and the cure, if the configuration can't be run on this machine;
    KeyError for an unknown kind.
    """
    launch: Launch = import_module(KINDS[config.engine.kind]).command(config, index, port)
    if config.model.cache is None or (config.model.path == "default" and config.engine.kind == "simulated"):
        return launch  # a simulated replica has no model, unless it is given one to copy
    from .model import model_folder
    from .weights import through_cache

    source = model_folder() if config.model.path == "default" else Path(config.model.path)
    return through_cache(launch, source, Path(config.model.cache))
