"""The doctor's JSON: what one node found. Written by ``--json``, read from other nodes.

{"exaserve_doctor": 1, "node": "gpu-001", "time": 1764500000.0, "findings": [{"check", "what", "item", "value",
"expected", "verdict", "cure", "compare"}]}
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any

from exporters.doctor.check import VERDICTS, Finding
from exporters.doctor.files import printable

FORMAT = 1
#: Findings of one node that are read, and characters of one of their texts.
MAX_FINDINGS, MAX_TEXT = 20_000, 1000
#: Unix times beyond this are none.
_LATEST = 1e12


@dataclass(frozen=True, slots=True)
class NodeResult:
    """problem: "" or why there are no findings of this node. time: Unix time, None where it is not told."""

    node: str
    findings: tuple[Finding, ...] = ()
    problem: str = ""
    time: float | None = None

    @property
    def failed(self) -> bool:
        return bool(self.problem) or any(f.verdict == "fail" for f in self.findings)


def to_json(result: NodeResult) -> dict[str, Any]:
    found = [asdict(f) for f in result.findings]
    return {
        "exaserve_doctor": FORMAT,
        "node": result.node,
        "time": result.time,
        "verdicts": counts(result.findings),
        "findings": found,
    }


def counts(findings: Iterable[Finding]) -> dict[str, int]:
    """How many findings of each verdict, every verdict named."""
    found = Counter(f.verdict for f in findings)
    return {verdict: found[verdict] for verdict in VERDICTS}


def parse(raw: bytes | str, name: str | None = None) -> NodeResult:
    """What ``--json`` of a node printed; what stands before it (a login banner) or after it is passed over.

    name: used instead of the node's own. Raises ValueError that says what was there instead.
    """
    text = raw.decode(errors="replace") if isinstance(raw, bytes) else raw
    data = _object(text)
    findings = data.get("findings")
    if data.get("exaserve_doctor") != FORMAT or not isinstance(findings, list):
        raise ValueError("not the result of `exaserve doctor --json`, or of another version of it")
    time = data.get("time")
    return NodeResult(
        name or _text(data.get("node")) or "?",
        tuple(_finding(f) for f in findings[:MAX_FINDINGS]),
        time=float(time) if isinstance(time, int | float) and abs(time) < _LATEST else None,
    )


def _object(text: str) -> dict[str, Any]:
    at = text.find("{")
    while at >= 0:
        try:
            data, _ = json.JSONDecoder().raw_decode(text, at)
        except (ValueError, RecursionError):
            data = None
        if isinstance(data, dict) and "exaserve_doctor" in data:
            return data
        # Only a brace at the start of a line can begin it: a banner full of braces costs little.
        line = text.find("\n{", at)
        at = line + 1 if line >= 0 else -1
    first = next((line.strip() for line in text.splitlines() if line.strip()), "nothing")
    raise ValueError(f"no JSON of the doctor but: {first[:150]}")


def _finding(raw: Any) -> Finding:
    if not isinstance(raw, dict) or not isinstance(raw.get("what"), str):
        raise ValueError("a finding of it has no name")
    values = {f.name: _text(raw.get(f.name)) for f in fields(Finding)}
    if values["verdict"] not in VERDICTS or values["compare"] not in ("", "warn", "fail"):
        raise ValueError(f"{values['check']} {values['what']}: {values['verdict']!r} is no verdict")
    return Finding(**values)  # type: ignore[arg-type]


def _text(value: Any) -> str:
    return printable(value[:MAX_TEXT]) if isinstance(value, str) else ""
