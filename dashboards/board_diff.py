"""What of a board differs between our text of it and a Grafana's, for people.

Grafana adds what we leave out (``id``, ``version``, its defaults) and may raise ``schemaVersion``; neither is a
difference. So whatever somebody added there in a place where ours says nothing does not show.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

#: Grafana's own count, different on every server.
_THEIRS = {"id", "version", "iteration", "schemaVersion"}


def differences(ours: Any, theirs: Any, at: str = "") -> Iterator[str]:
    """One line for each value of ``ours`` that ``theirs`` lacks or has otherwise; none if all are there."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key, value in ours.items():
            if at or key not in _THEIRS:
                below = f"{at}.{key}" if at else key
                if key not in theirs:
                    if value not in (None, "", [], {}, False):
                        yield f"{below}: none -> {_short(value)}"
                else:
                    yield from differences(value, theirs[key], below)
    elif isinstance(ours, list) and isinstance(theirs, list):
        yield from _of_lists(ours, theirs, at)
    elif ours != theirs:
        yield f"{at}: {_short(theirs)} -> {_short(ours)}"


def _of_lists(ours: list[Any], theirs: list[Any], at: str) -> Iterator[str]:
    names, old_names = [_name(item) for item in ours], [_name(item) for item in theirs]
    if not (_tells_apart(names) and _tells_apart(old_names)):
        if len(ours) != len(theirs):
            yield f"{at}: {len(theirs)} entries -> {len(ours)}"
            return
        for i, (item, old) in enumerate(zip(ours, theirs, strict=True)):
            yield from differences(item, old, f"{at}[{i}]")
        return
    old_by_name = dict(zip(old_names, theirs, strict=True))
    for name, item in zip(names, ours, strict=True):
        if name in old_by_name:
            yield from differences(item, old_by_name[name], f"{at}[{name}]")
        else:
            yield f"{at}[{name}]: new"
    for name in old_names:
        if name not in names:
            yield f"{at}[{name}]: goes"
    if sorted(map(str, names)) == sorted(map(str, old_names)) and names != old_names:
        yield f"{at}: in another order"


def _name(item: Any) -> str | None:
    """By what people know an entry of a list: a panel's title, a variable's name, a query's letter."""
    if not isinstance(item, dict):
        return None
    for key in ("title", "name", "refId"):
        if isinstance(item.get(key), str) and item[key]:
            return f'"{item[key]}"'
    return None


def _tells_apart(names: list[str | None]) -> bool:
    return None not in names and len(set(names)) == len(names)


def _short(value: Any) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= 60 else f"{text[:57]}…"
