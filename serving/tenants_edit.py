"""Adds an API key to the tenants file: as a change of its text, so that comments and order stay.

The changed text is read again and must mean exactly the old file and the new key. Where it does not (an
unusual layout), the file is written anew from its data and the old one is kept beside it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import stat
import string
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from serving import yamlfile
from serving.home import write_whole
from serving.router import tenants_file
from serving.router.tenants import digest

PREFIX = "sk-exa-"
#: Letters and digits only, so that a double click marks all of it; 40 of them are 238 bits.
KEY_LETTERS = 40
_ALPHABET = string.ascii_letters + string.digits


class EditError(Exception):
    """The key can't be added; in words."""


@dataclass(frozen=True)
class Made:
    """key: the new API key. keys: how many the tenant has now. new: whether the tenant is new. rewritten: where
    the old file is kept if comments could not be kept in the new one."""

    key: str
    keys: int
    new: bool
    rewritten: Path | None


def add_key(path: Path, name: str, new: bool) -> Made:
    """Make a key for tenant ``name``. new: make the tenant, and the file, where they are missing.

    Two at once do not lose each other's key. Raises EditError; ConfigError if the file is not well as it is.
    """
    path = path.resolve()  # a link stays a link
    with _alone(path.parent):
        try:
            text = path.read_bytes().decode("utf-8-sig") if path.exists() else ""
        except (OSError, UnicodeDecodeError) as error:
            raise EditError(f"can't be read: {error}") from None
        if not path.exists() and not new:
            raise EditError("no such file; --new makes it")
        # Checked before the file is touched; all further errors would be ours.
        before = tenants_file.read(path) if path.exists() else tenants_file.TenantsFile()
        entry = next((t for t in before.tenants if t.name == name), None)
        if entry is None and not new:
            known = ", ".join(t.name for t in before.tenants[:20]) or "none"
            raise EditError(f"no tenant {name} (there are: {known}); --new makes it")
        try:
            tenants_file.TenantEntry(name=name)
        except ValidationError:
            raise EditError(f"{name!r} can't be a tenant's name: letters, digits and . _ - only") from None
        key = PREFIX + "".join(secrets.choice(_ALPHABET) for _ in range(KEY_LETTERS))
        data, _ = yamlfile.parse(text)
        after = _with_key(data, name, digest(key))
        changed, kept = _changed(text, name, digest(key)), None
        if not _means(changed, after):
            changed = yaml.safe_dump(after, sort_keys=False, allow_unicode=True)
            if "#" in text:
                kept = path.with_name(f"{path.name}.before")
                _write(kept, text, path)
        _write(path, changed, path)
    return Made(key, len(entry.keys) + 1 if entry else 1, entry is None, kept)


def _write(path: Path, text: str, like: Path) -> None:
    """With the permissions of the file that was there; a new one is for its owner only."""
    try:
        mode = stat.S_IMODE(like.stat().st_mode) if like.exists() else 0o600
        write_whole(path, text, mode)
    except OSError as error:
        raise EditError(f"can't be written: {error.strerror}") from None


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise EditError(f"{folder}: {error.strerror}") from None
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _with_key(data: Any, name: str, hashed: str) -> dict[str, Any]:
    """The file's data with the key in it."""
    after = dict(data or {})
    tenants = [dict(t) for t in after.get("tenants") or []]
    mine = next((t for t in tenants if t["name"] == name), None)
    if mine is None:
        mine = {"name": name}
        tenants.append(mine)
    mine["keys"] = [*(mine.get("keys") or []), hashed]
    after["tenants"] = tenants
    return after


def _means(text: str, data: dict[str, Any]) -> bool:
    try:
        return bool(yamlfile.parse(text)[0] == data)
    except yamlfile.YamlError:
        return False


def _changed(text: str, name: str, hashed: str) -> str:
    """The text with the key put in where it seems to belong; whether it does is for the caller to check."""
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    tenants = _child(root, "tenants")
    added = f"- name: {_scalar(name)}\n{{0}}  keys:\n{{0}}  - {hashed}"
    if tenants is None and not _is_flow(root):
        newline = "" if not text or text.endswith("\n") else "\n"
        return f"{text}{newline}tenants:\n{added.format('')}\n"
    if _is_empty(tenants):
        return _insert_line(text, tenants, added.format(""))
    if not isinstance(tenants, yaml.SequenceNode):
        return text
    mine = next((t for t in tenants.value if (n := _child(t, "name")) and n.value == name), None)
    if mine is None:
        if _is_flow(tenants):
            comma = ", " if tenants.value else ""
            entry = f"{comma}{{name: {_scalar(name)}, keys: [{hashed}]}}"
            return _insert(text, tenants.end_mark.index - 1, entry)
        dash = " " * tenants.start_mark.column
        return _insert_line(text, tenants, dash + added.format(dash))
    keys = _child(mine, "keys")
    indent = " " * mine.start_mark.column
    if _is_empty(keys):
        return _insert_line(text, keys, f"{indent}- {hashed}")
    if isinstance(keys, yaml.SequenceNode):
        if _is_flow(keys):
            return _insert(text, keys.end_mark.index - 1, f"{', ' if keys.value else ''}{hashed}")
        return _insert_line(text, keys, f"{' ' * keys.start_mark.column}- {hashed}")
    if keys is None:
        if _is_flow(mine):
            return _insert(text, mine.end_mark.index - 1, f", keys: [{hashed}]")
        return _insert_line(text, _child(mine, "name"), f"{indent}keys:\n{indent}- {hashed}")
    return text


def _is_flow(node: yaml.Node | None) -> bool:
    """Written as [a, b] or {a: b}."""
    return isinstance(node, yaml.CollectionNode) and bool(node.flow_style)


def _is_empty(node: yaml.Node | None) -> bool:
    """A key with nothing after it."""
    return isinstance(node, yaml.ScalarNode) and node.value == "" and node.style is None


def _child(node: yaml.Node | None, name: str) -> Any:
    if isinstance(node, yaml.MappingNode):
        return next((value for key, value in node.value if key.value == name), None)
    return None


def _insert(text: str, at: int, what: str) -> str:
    return text[:at] + what + text[at:]


def _insert_line(text: str, node: yaml.Node, what: str) -> str:
    """After the line in which the last value of ``node`` ends: a block's own end is after its comments."""
    while isinstance(node, yaml.CollectionNode) and not _is_flow(node) and node.value:
        last = node.value[-1]
        node = last[1] if isinstance(last, tuple) else last
    end = text.find("\n", node.end_mark.index)
    if end < 0:
        return f"{text}\n{what}\n"
    return _insert(text, end + 1, f"{what}\n")


def _scalar(name: str) -> str:
    """Quoted where YAML would read something else than text (a tenant called 007, or yes)."""
    return name if yaml.safe_load(name) == name else f'"{name}"'
