"""What a fault file system is told to do wrong: rules, read from a folder that lies outside of the mount.

Each ``*.json`` file of the folder is one set of rules, so that two faults come and go independently; taking
the file away takes the fault away. A file that can't be understood changes nothing and is named in ``state``,
the file in which the daemon says what it obeys::

    {"rules": [{"fault": "latency", "seconds": 0.05, "ops": ["read"], "path": "models/*", "share": 0.5}],
     "until": 1790000000.0}

Every rule may have ``ops`` (operations, or the groups below; all those that the fault makes sense for if
absent), ``path`` (a shell pattern of the path below the mount, ``*`` also matches ``/``) and ``share`` (0-1,
drawn for each operation). ``until`` (unix seconds): afterwards the file counts as gone, whoever has died.

=========  ======================  ====================================================================
fault      needs                   does
=========  ======================  ====================================================================
latency    seconds                 each operation waits that long first
bandwidth  bytes_per_second        reads and writes share that much
error      errno (a name)          fails with it
hang                               waits until the rule is gone; killing the caller frees it
full                               what needs space fails with ENOSPC; no free space is reported
corrupt    start, every (bytes)    the bytes at start, start + every … read inverted; the file stays whole
=========  ======================  ====================================================================

How operations obey is ``faultfs.py``.
"""

from __future__ import annotations

import errno
import json
import os
import time
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

READ = frozenset(("read",))
#: What changes the file system. ``open_write`` is an open of an existing file for writing.
_FILES = ("write", "create", "open_write", "truncate", "fallocate", "fsync", "unlink", "rmdir", "rename")
WRITE = frozenset(
    (*_FILES, "mkdir", "mknod", "symlink", "link", "chmod", "chown", "utimens", "setxattr", "removexattr")
)
META = frozenset(("getattr", "open", "opendir", "readdir", "readlink", "statfs", "getxattr", "listxattr"))
ALL = READ | WRITE | META
#: What needs free space. Removing and opening work on a full file system.
SPACE = frozenset(("write", "create", "fallocate", "mkdir", "mknod", "symlink", "link"))
GROUPS = {"read": READ, "write": WRITE, "meta": META, "*": ALL}
_DEFAULT_OPS = {
    "latency": READ | WRITE,
    "bandwidth": frozenset(("read", "write")),
    "error": ALL,
    "hang": ALL,
    "full": SPACE,
    "corrupt": READ,
}
_NUMBERS = {"latency": "seconds", "bandwidth": "bytes_per_second"}
MAX_LATENCY = 3600.0
STATE = "state"


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. source: the file's name. code: errno of ``error``. until: unix seconds, None for ever."""

    source: str
    fault: str
    ops: frozenset[str]
    path: str = "*"
    share: float = 1.0
    seconds: float = 0.0
    bytes_per_second: float = 0.0
    code: int = 0
    start: int = 0
    every: int = 4096
    until: float | None = None

    def covers(self, op: str, path: str) -> bool:
        return op in self.ops and (self.path == "*" or fnmatchcase(path.lstrip("/"), self.path))

    def over(self) -> bool:
        return self.until is not None and time.time() >= self.until


def parse(text: str, source: str = "") -> list[Rule]:
    """The rules of one file. Raises ValueError with a sentence that names the key."""
    try:
        body = json.loads(text)
    except ValueError as error:
        raise ValueError(f"no JSON: {error}") from None
    if not isinstance(body, dict) or not isinstance(body.get("rules"), list):
        raise ValueError('rules: a list is needed, as in {"rules": [{"fault": "hang"}]}')
    if unknown := sorted(set(body) - {"rules", "until"}):
        raise ValueError(f"{unknown[0]}: not a key (there are rules, until)")
    until = body.get("until")
    if until is not None and not _is_number(until):
        raise ValueError("until: unix seconds are needed")
    return [_rule(raw, source, until) for raw in body["rules"]]


def _rule(raw: Any, source: str, until: float | None) -> Rule:
    fault = raw.get("fault") if isinstance(raw, dict) else None
    if fault not in _DEFAULT_OPS:
        raise ValueError(f"fault: one of {', '.join(_DEFAULT_OPS)} is needed, not {fault!r}")
    known = {"fault", "ops", "path", "share", *({_NUMBERS[fault]} if fault in _NUMBERS else ())}
    known |= {"errno"} if fault == "error" else {"start", "every"} if fault == "corrupt" else set()
    if unknown := sorted(set(raw) - known):
        raise ValueError(f"{unknown[0]}: not a key of {fault} (there are {', '.join(sorted(known))})")
    fields: dict[str, Any] = {"source": source, "fault": fault, "ops": _ops(raw, fault), "until": until}
    path = raw.get("path", "*")
    if not isinstance(path, str) or not path:
        raise ValueError("path: a pattern below the mount is needed")
    fields["path"] = path.lstrip("/")
    share = raw.get("share", 1.0)
    if not _is_number(share) or not 0 < share <= 1:
        raise ValueError("share: a number over 0, at most 1, is needed")
    fields["share"] = float(share)
    if fault in _NUMBERS:
        value = raw.get(_NUMBERS[fault])
        if not _is_number(value) or not value > 0 or (fault == "latency" and value > MAX_LATENCY):
            raise ValueError(
                f"{_NUMBERS[fault]}: a number over 0 is needed (latency: at most {MAX_LATENCY:g})"
            )
        fields[_NUMBERS[fault]] = float(value)
    elif fault == "error":
        code = getattr(errno, str(raw.get("errno")), None)
        if not isinstance(code, int) or code <= 0:
            raise ValueError(f"errno: a name such as EIO is needed, not {raw.get('errno')!r}")
        fields["code"] = code
    elif fault == "corrupt":
        for key, least, default in (("start", 0, 0), ("every", 1, 4096)):
            value = raw.get(key, default)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ValueError(f"{key}: a whole number of bytes, at least {least}, is needed")
            fields[key] = value
    return Rule(**fields)


def _ops(raw: dict[str, Any], fault: str) -> frozenset[str]:
    names = raw.get("ops")
    if names is None:
        return _DEFAULT_OPS[fault]
    if not isinstance(names, list) or not names:
        raise ValueError("ops: a list of operations or groups is needed")
    found: set[str] = set()
    for name in names:
        if name not in ALL and name not in GROUPS:
            raise ValueError(
                f"ops: {name!r} is none of {', '.join(sorted(GROUPS))}, {', '.join(sorted(ALL))}"
            )
        found |= GROUPS.get(name, {name})
    return frozenset(found)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


class Folder:
    """The rules of a folder, read again when a file of it changes. ``files``: name -> "ok" or what is wrong."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: dict[str, str] = {}
        self._seen: dict[str, tuple[int, int, int]] = {}
        self._rules: dict[str, list[Rule]] = {}

    def changed(self) -> bool:
        """Look at the folder; True if the rules are not the ones of before. A folder that is gone has none."""
        seen = self._scan()
        before = self.rules()
        for name in set(self._rules) - set(seen):
            del self._rules[name]
        for name, stamp in seen.items():
            if self._seen.get(name) != stamp:
                self._read(name)
        self.files = {name: state for name, state in self.files.items() if name in seen}
        self._seen = seen
        for name, rules in list(self._rules.items()):
            if rules and rules[0].over():
                self._rules[name] = []
                self.files[name] = "over"
        return self.rules() != before

    def rules(self) -> list[Rule]:
        return [rule for name in sorted(self._rules) for rule in self._rules[name]]

    def _scan(self) -> dict[str, tuple[int, int, int]]:
        seen = {}
        try:
            with os.scandir(self.folder) as entries:
                for entry in entries:
                    if not entry.name.endswith(".json"):
                        continue
                    try:
                        s = os.stat(entry.path)
                    except OSError:
                        continue  # taken away between the two calls; the others' rules must not lapse with it
                    seen[entry.name] = (s.st_ino, s.st_mtime_ns, s.st_size)
        except OSError:
            pass  # the folder is gone
        return seen

    def _read(self, name: str) -> None:
        """Half-written or wrong files leave the rules as they were."""
        try:
            self._rules[name] = parse((self.folder / name).read_text(), name)
            self.files[name] = "ok"
        except (OSError, ValueError) as error:
            self.files[name] = str(error)

    def write_state(self, hits: dict[str, int]) -> None:
        """``{"pid", "files", "hits"}``: whose daemon it is, which files it obeys, operations that each met."""
        state = {"pid": os.getpid(), "files": self.files, "hits": hits}
        new = self.folder / f"{STATE}.new"
        try:
            new.write_text(json.dumps(state))
            os.replace(new, self.folder / STATE)
        except OSError:
            pass  # the folder is being taken away; the mount goes on
