"""Finds the router's hot modules where ``python -m serving.compile`` has compiled them (mypyc), for those who want them.

What is compiled is the same source; without it the same source runs as plain Python, at about twice the CPU a
request. It is used only where it fits to the byte: beside the libraries lie the hashes of every source that they may
depend on, and the version of Python. After a change of any of them plain Python runs, until it is compiled again.

``use`` must come before the modules are imported, so a process that wants them calls it first
(``router/worker_process.py``).
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import sysconfig
from collections.abc import Sequence
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

PACKAGES = Path(__file__).resolve().parents[1]
#: What is compiled, together: their classes know each other's fields.
MODULES = (
    "serving.fleet.outcomes",
    "serving.fleet.replica",
    "serving.intent.scan",
    "serving.router.admission",
    "serving.router.attempt",
    "serving.router.careful",
    "serving.router.client",
    "serving.router.exchange",
    "serving.router.heads",
    "serving.router.hedge",
    "serving.router.incoming",
    "serving.router.intake",
    "serving.router.limits",
    "serving.router.link",
    "serving.router.metrics",
    "serving.router.policies.consistent_hash",
    "serving.router.policies.eligible",
    "serving.router.policies.hybrid",
    "serving.router.policies.least_work",
    "serving.router.policies.ring",
    "serving.router.pools",
    "serving.router.retry",
    "serving.router.schema",
    "serving.router.server",
    "serving.router.session",
    "serving.router.state",
    "serving.router.tracing",
    "serving.router.upstream",
    "serving.router.usage",
    "serving.router.work",
)
#: ``version``, ``library``, and ``sources``: file below PACKAGES -> SHA-256.
MANIFEST = "fits.json"
#: "0" for plain Python whatever is there.
SWITCH = "EXASERVE_COMPILED"

_active = False


def active() -> bool:
    """Whether this process runs them compiled."""
    return _active


def folder() -> Path:
    """Where they lie compiled, if they do: below the environment that this Python runs in."""
    return Path(sys.prefix) / "exaserve-compiled"


def version() -> str:
    """Of Python and of what libraries have to fit to; and the modules, of which none may be missing."""
    return f"{sys.version} {sysconfig.get_config_var('EXT_SUFFIX')} {' '.join(MODULES)}"


def hash_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def library() -> str:
    """Name of the library that holds the code of all of them; "" where they are not compiled from the sources and
    for the Python as they are now, or are not wanted."""
    if os.environ.get(SWITCH) == "0":
        return ""
    try:
        fits = json.loads((folder() / MANIFEST).read_bytes())
        if fits["version"] != version():
            return ""
        for name, known in fits["sources"].items():
            if hash_of((PACKAGES / name).read_bytes()) != known:
                return ""
        return str(fits["library"])
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return ""


def use() -> bool:
    """Import them compiled from now on, if they are there. What this process has imported already stays plain, so
    then nothing is compiled."""
    global _active
    if _active or any(name in sys.modules for name in MODULES):
        return _active
    place, name = folder(), library()
    if not name:
        return False
    try:
        _load(name, place)
    except ImportError:  # of a library that it was linked with, or of another version of librt
        return False
    sys.meta_path.insert(0, _Finder(place))
    _active = True
    return True


def _load(name: str, place: Path) -> None:
    """The modules look for their library by its name."""
    spec = spec_from_file_location(name, _file(place, name))
    if spec is None or spec.loader is None:
        raise ImportError(name)
    module = sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(module)


def _file(place: Path, name: str) -> Path:
    return place / f"{name}{sysconfig.get_config_var('EXT_SUFFIX')}"


class _Finder:
    """Says where the compiled modules lie."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in MODULES:
            return None
        file = _file(self.place, name)
        return spec_from_file_location(name, file, loader=ExtensionFileLoader(name, str(file)))
