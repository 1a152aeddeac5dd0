"""All profiles by name, and what a listing says of each.

python -m loadtest._lib._profiles._table
"""

from __future__ import annotations

from dataclasses import dataclass

from loadtest._lib._ask import Profile
from loadtest._lib._profiles import (
    _batch,
    _chat,
    _code,
    _completion,
    _embedding,
    _intents,
    _long_document,
    _mixed,
    _multi_turn,
    _overlong,
)
from loadtest._lib._profiles._lengths import Lengths

_MODULES = {
    "chat": _chat,
    "multi_turn": _multi_turn,
    "long_document": _long_document,
    "code": _code,
    "completion": _completion,
    "embedding": _embedding,
    "batch": _batch,
    "intents": _intents,
    "overlong": _overlong,
    "mixed": _mixed,
}


@dataclass(frozen=True, slots=True)
class Entry:
    """A profile. sizes: (what, how long), in tokens, or in words. asks: mean requests a session."""

    name: str
    about: str
    sizes: tuple[tuple[str, Lengths | str], ...]
    asks: float
    session: Profile


PROFILES: dict[str, Entry] = {
    name: Entry(name, module.ABOUT, tuple(module.SIZES), module.ASKS, module.session)
    for name, module in _MODULES.items()
}


def lines() -> list[tuple[str, str, str]]:
    """(name, what it is, its sizes in tokens where the model takes them) for each profile."""
    return [
        (entry.name, entry.about, "; ".join(f"{what}: {lengths}" for what, lengths in entry.sizes))
        for entry in PROFILES.values()
    ]


def main() -> None:
    for name, about, sizes in lines():
        print(f"{name}\n    {about}\n    {sizes}")


if __name__ == "__main__":
    main()
