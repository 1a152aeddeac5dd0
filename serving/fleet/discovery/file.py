"""Replicas from a file that another program writes; read again when it changes.

Lines, or YAML or JSON in one of two forms:

    gpu-1=http://10.0.0.1:8100                                             # as `simulate-replicas --list` writes
    - {name: gpu-1, url: "http://10.0.0.1:8100", weight: 2, model: llama}    # or just the URL
    - [{"targets": ["10.0.0.1:8100"], "labels": {"replica": "gpu-1"}}]       # Prometheus file_sd

Of a target's labels ``replica`` names it (only where its group has one target), ``__scheme__`` is its scheme, and
``model`` its model. A file that is broken, or gone, leaves the replicas as they were and says so.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from serving import yamlfile
from serving.fleet.discovery import static
from serving.fleet.replica import Replica

MAX_BYTES = 16 * 2**20
MAX_REPLICAS = 16_384
_KEYS = {"name", "url", "weight", "model"}
_LINE = re.compile(r"([A-Za-z0-9._:-]+=)?(https?://|unix:)\S+$")


class ReplicaFile:
    """``path`` and what was last read of it. error: why the newest content is not in use, None when it is."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.error: str | None = None
        self._seen: tuple[int, int, int] | None = None

    def changed(self) -> list[Replica] | None:
        """The replicas, if the file is another than at the last call and can be used; else None.

        Blocking: a stat, and when it changed a read (3,072 replicas take 20 ms as JSON, 2 s as YAML: call it in a
        thread, every second or so). Merge the result with what is known by ``static.merge``.
        """
        try:
            stat = self.path.stat()
            seen = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            if seen == self._seen:
                return None
            self._seen = seen
            if stat.st_size > MAX_BYTES:
                raise ValueError(f"is larger than {MAX_BYTES // 2**20} MiB")
            replicas = parse(self.path.read_bytes())
        except OSError as e:
            self._seen = None
            self.error = f"{self.path}: can't be read: {e.strerror or e}"
            return None
        except ValueError as e:
            self.error = f"{self.path}: {e}"
            return None
        self.error = None
        return replicas

    def again(self) -> list[Replica] | None:
        """As ``changed``, though nothing may have changed (SIGHUP)."""
        self._seen = None
        return self.changed()


def parse(content: bytes) -> list[Replica]:
    """The replicas in a file's content. Raises ValueError that says which entry is wrong, and how."""
    try:
        text = content.decode("utf-8-sig")
        entries: Any = _lines(text)
        if entries is None:
            try:
                entries = json.loads(text)
            except ValueError:
                entries = yamlfile.parse(text)[0]
    except yamlfile.YamlError as e:
        raise ValueError(f"line {e.line}: {e}" if e.line else str(e)) from None
    except UnicodeDecodeError:
        raise ValueError("not UTF-8 text") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(entries, list):
        raise ValueError("must be a list of replicas")
    replicas: list[Replica] = []
    for i, entry in enumerate(entries):
        try:
            replicas += _targets(entry) if isinstance(entry, dict) and "targets" in entry else [_one(entry)]
        except ValueError as e:
            raise ValueError(f"entry {i + 1}: {e}") from None
        if len(replicas) > MAX_REPLICAS:
            raise ValueError(f"more than {MAX_REPLICAS} replicas")
    if not replicas:
        raise ValueError("names no replica; an empty list would end the service, so the replicas stay")
    static.refuse_twins(replicas)
    return replicas


def _lines(text: str) -> list[str] | None:
    """The lines of the first form; None if it is another."""
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    return lines if lines and all(_LINE.match(line) for line in lines) else None


def _one(entry: Any) -> Replica:
    if isinstance(entry, str):
        return static.parse(entry)
    if not isinstance(entry, dict):
        raise ValueError(f"must be a URL or {{name, url, weight, model}}, not {_kind(entry)}")
    unknown = sorted(str(k) for k in entry.keys() - _KEYS)
    if unknown:
        raise ValueError(f"unknown key {unknown[0]!r}; known are name, url, weight, model")
    if "url" not in entry:
        raise ValueError("has no url")
    weight = entry.get("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight <= 1000:
        raise ValueError("weight must be a number above 0, at most 1000")
    return _make(_text(entry, "name"), _text(entry, "url"), float(weight), _text(entry, "model"))


def _targets(group: dict[Any, Any]) -> list[Replica]:
    targets, labels = group["targets"], group.get("labels") or {}
    if not isinstance(targets, list) or not isinstance(labels, dict):
        raise ValueError("targets must be a list and labels a mapping")
    scheme = _text(labels, "__scheme__") or "http"
    replicas = []
    for target in targets:
        if not isinstance(target, str):
            raise ValueError(f"a target must be HOST:PORT, not {_kind(target)}")
        name = _text(labels, "replica") if len(targets) == 1 else ""
        url = target if target.startswith("unix:") else f"{scheme}://{target}"
        replicas.append(_make(name, url, 1.0, _text(labels, "model")))
    return replicas


def _make(name: str, url: str, weight: float, model: str) -> Replica:
    if name and not static.NAME.fullmatch(name):
        raise ValueError(f"name {name[:80]!r} must be 1 to 64 of A-Z a-z 0-9 . _ : -")
    return static.make(name, url, weight=weight, model=model)


def _text(entry: dict[Any, Any], key: str) -> str:
    value = entry.get(key, "")
    if not isinstance(value, str) or len(value) > 4096:
        raise ValueError(f"{key} must be text, not {_kind(value)}")
    return value


def _kind(value: object) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"
