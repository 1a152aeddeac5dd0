"""The documents name only what is there: commands, make targets, files, configuration keys, environment variables."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "serving/router/README.md",
    ROOT / "exporters/README.md",
    ROOT / "loadtest/_gate/README.md",
    ROOT / "loadtest/README.md",
    *sorted((ROOT / "runbooks").glob("*.md")),
]
IDS = [str(d.relative_to(ROOT)) for d in DOCS]


def code(text: str) -> str:
    """What stands in backticks or in fenced blocks."""
    fenced = re.findall(r"^```.*?\n(.*?)^```", text, re.S | re.M)
    return "\n".join(fenced + re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)))


@pytest.fixture(scope="module")
def commands() -> set[str]:
    shown = subprocess.run(
        [sys.executable, "-m", "serving.cli", "--help"], capture_output=True, text=True, check=True
    )
    return set(re.findall(r"^  ([a-z-]+) ", shown.stdout.partition("Commands:")[2], re.M))


@pytest.mark.parametrize("doc", DOCS, ids=IDS)
def test_every_exaserve_command_exists(doc: Path, commands: set[str]) -> None:
    assert {"up", "down", "exporter", "dashboards"} <= commands
    named = set(re.findall(r"(?:^|[\s|/])exaserve ([a-z-]+)\b", code(doc.read_text()), re.M))
    assert named <= commands


@pytest.mark.parametrize("doc", DOCS, ids=IDS)
def test_every_make_target_exists(doc: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
    named = re.findall(r"(?:^|\s)make ((?:[a-z]+ ?)+)", code(doc.read_text()), re.M)
    assert {t for n in named for t in n.split()} <= targets


@pytest.mark.parametrize("doc", DOCS, ids=IDS)
def test_every_link_and_file_exists(doc: Path) -> None:
    text = doc.read_text()
    links = [x for x in re.findall(r"\]\(([^)#\s]+)\)", text) if "://" not in x]
    folders = "serving|exporters|dashboards|loadtest|chaos|runbooks|tests"
    files = re.findall(rf"(?<![\w/.])((?:{folders})/[\w./-]*\w)", code(text))
    missing = [x for x in links if not (doc.parent / x).exists()]
    missing += [x for x in files if not (ROOT / x).exists()]
    assert missing == []


def test_the_environment_variables_that_documents_name_are_read_somewhere() -> None:
    source = "\n".join(
        p.read_text()
        for f in ("serving", "chaos")
        for p in (ROOT / f).rglob("*")
        if p.suffix in (".py", ".yaml")
    )
    named = {n for d in DOCS for n in re.findall(r"\bEXASERVE_[A-Z]+\b", d.read_text())}
    assert {n for n in named if n not in source} == set()
