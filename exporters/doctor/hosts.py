"""Lists of nodes: the file of ``--nodes`` read, many names folded into few words."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from exporters.doctor.files import natural

MAX_HOSTS = 4096
_MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Host:
    """options: further arguments of ssh."""

    name: str
    options: tuple[str, ...] = ()


def read(path: Path) -> list[Host]:
    """A host a line, options of ssh after it (``gpu-001 -p 2222 -l ops``), ``#`` begins a comment.

    Raises ValueError that names the line.
    """
    try:
        with path.open("rb") as f:
            raw = f.read(_MAX_BYTES + 1)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    if len(raw) > _MAX_BYTES:
        raise ValueError(f"{path}: longer than {_MAX_BYTES} bytes")
    found: dict[str, Host] = {}
    for i, line in enumerate(raw.decode("utf-8-sig", "replace").splitlines(), 1):
        try:
            words = shlex.split(line, comments=True)
        except ValueError as error:
            raise ValueError(f"{path}:{i}: {error}") from None
        if not words:
            continue
        if not re.fullmatch(r"[A-Za-z0-9_\[][A-Za-z0-9_.:@%\[\]-]{0,250}", words[0]):
            raise ValueError(f"{path}:{i}: {words[0]!r} is no host; write it like gpu-001 or ops@gpu-001")
        if words[0] in found:
            raise ValueError(f"{path}:{i}: {words[0]} is there twice")
        found[words[0]] = Host(words[0], tuple(words[1:]))
        if len(found) > MAX_HOSTS:
            raise ValueError(f"{path}: more than {MAX_HOSTS} hosts")
    if not found:
        raise ValueError(f"{path}: no host in it; write one a line")
    return list(found.values())


def fold(names: Iterable[str], limit: int = 6) -> str:
    """``gpu-[001-004,007], login`` for names that differ by one number; ``limit`` groups at most, then how many more.

    The number folded is the last one of the name before its domain: ``gpu-001.cluster``.
    """
    every = sorted(set(names), key=natural)
    groups: dict[tuple[str, int, str], list[tuple[str, int]]] = {}
    for name in every:
        host, dot, domain = name.partition(".")
        numbered = re.fullmatch(r"(.*?)(\d{1,9})(\D*)", host, re.DOTALL)
        if not numbered or re.fullmatch(r"[\d.:]+", name):
            groups[name, 0, ""] = [(name, -1)]
            continue
        digits = numbered[2]
        width = len(digits) if digits[0] == "0" and len(digits) > 1 else 0
        groups.setdefault((numbered[1], width, numbered[3] + dot + domain), []).append((name, int(digits)))
    groups = _padded(groups)
    shown: list[str] = []
    left = 0
    for (before, width, after), members in groups.items():
        if len(shown) < limit:
            shown.append(
                members[0][0] if len(members) == 1 else f"{before}[{_ranges(members, width)}]{after}"
            )
        else:
            left += len(members)
    return ", ".join(shown) + (f" and {left} more" if left else "")


def _padded(
    groups: dict[tuple[str, int, str], list[tuple[str, int]]],
) -> dict[tuple[str, int, str], list[tuple[str, int]]]:
    """``gpu-099`` and ``gpu-100`` are of one series: a number without leading zero joins those of its length."""
    for key in [k for k in groups if k[1]]:
        before, width, after = key
        plain = groups.get((before, 0, after), [])
        same = [m for m in plain if len(str(m[1])) == width]
        if same:
            groups[key] += same
            rest = [m for m in plain if m not in same]
            if rest:
                groups[before, 0, after] = rest
            else:
                del groups[before, 0, after]
    return groups


def _ranges(members: list[tuple[str, int]], width: int) -> str:
    numbers = sorted(number for _, number in members)
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    shown = [f"{a:0{width}d}" if a == b else f"{a:0{width}d}-{b:0{width}d}" for a, b in runs]
    return ",".join(shown[:12]) + (f",… ({len(runs) - 12} more)" if len(runs) > 12 else "")
