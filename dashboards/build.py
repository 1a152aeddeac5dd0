"""Writes every board and rule file into ``dashboards/generated``, or says which of them differ from the code.

What is generated is committed, so that a Prometheus or a Grafana can use it without Python. Boards are added to
BOARDS, rule files to RULES; each is one file in ``boards/`` or ``rules/`` and has that file's name.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from dashboards.boards import fleet
from dashboards.panels import to_json
from dashboards.rulefile import Links
from dashboards.rules import kv, replica, users

GENERATED = Path(__file__).parent / "generated"

BOARDS = {"fleet": fleet.board}
RULES = {"users": users.group, "replica": replica.group, "kv": kv.group}


def files(links: Links | None = None) -> dict[str, str]:
    """Every generated file: path inside the output folder -> text."""
    links = links or Links()
    texts = {f"{name}.json": to_json(board(links)) for name, board in BOARDS.items()}
    return texts | {f"rules/{name}.yaml": group().to_yaml(links) for name, group in RULES.items()}


def differing(out: Path, links: Links | None = None) -> list[str]:
    """Files in ``out`` that are missing, differ from the code, or that the code doesn't write, in order."""
    texts = files(links)
    wrong = [name for name, text in texts.items() if _read(out / name) != text]
    left = [path.relative_to(out).as_posix() for path in _generated_in(out)]
    return sorted(wrong + [f"{name} (nothing writes it)" for name in left if name not in texts])


def write(out: Path, links: Links | None = None) -> list[Path]:
    """Write every file, each whole or not at all. Returns their paths. Raises OSError."""
    written = []
    for name, text in files(links).items():
        path = out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        fd, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(fd, "w", encoding="utf-8") as f:
                f.write(text)
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        written.append(path)
    return written


def _generated_in(out: Path) -> list[Path]:
    return sorted([*out.glob("*.json"), *out.glob("rules/*.yaml")])


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
