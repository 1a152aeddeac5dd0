"""An experiment file: a Chaos Toolkit experiment with a block ``extensions: [{name: exaserve, …}]`` of ours.

The block says what load runs beside it, which requests are good, what is allowed for each figure, and where to read on.
``chaos run`` of the Chaos Toolkit leaves the block alone.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from exporters.catalog.chaos import FIGURES

FOLDER = Path(__file__).parents[1] / "experiments"
#: Figures in seconds, in the order in which they come true, and those that count requests.
SECONDS = FIGURES
COUNTS = (
    "lost_requests",
    "cut_streams",
    "failed_requests",
    "refused_requests",
    "refused_without_retry_after",
    "failed_after_injection",
    "recomputed_tokens",
)
#: Figures of which more is better: their goal is the least, every other's is the most.
SHARES = ("good_admitted", "good_during")
ALL = (*SECONDS, *COUNTS, *SHARES)


class PlanError(Exception):
    """The file or one of its keys is wrong; the message names it and the cure."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class LoadPlan(_Strict):
    """What ``locust`` sends, open loop."""

    profile: str = Field("chat", pattern=r"^[a-z_]+$", description="file of loadtest/")
    rate: float = Field(40.0, gt=0, le=2000, description="requests a second")
    arrivals: Literal["constant", "poisson"] = "constant"
    max_tokens: int = Field(8, ge=1, le=4096, description="tokens of each answer")
    options: list[str] = Field([], description="more options of locust")


class Objective(_Strict):
    """Which requests are good: answered whole and within these seconds. None: not looked at."""

    ttft: float | None = Field(2.5, gt=0, description="until the first token, from when it was due")
    itl: float | None = Field(None, gt=0, description="the longest gap between tokens")
    e2e: float | None = Field(None, gt=0, description="until the end")
    attainment: float = Field(0.99, gt=0, le=1, description="share of a window's requests that must be good")


class Plan(_Strict):
    """The block. window: seconds of one window of the figures; settle: seconds watched after the method."""

    name: Literal["exaserve"]
    runbook: str = Field(pattern=r"^\w+$", description="page of runbooks/")
    load: LoadPlan = LoadPlan()
    objective: Objective = Objective()
    window: float = Field(0.5, ge=0.1, le=60)
    least: int = Field(8, ge=1, description="ended requests without which a window does not meet anything")
    baseline: float = Field(
        10.0, ge=1, le=600, description="seconds before the fault that after is compared with"
    )
    settle: float = Field(3.0, ge=0, le=600)
    goals: dict[str, float] = {}
    victims: list[str] = Field(
        [], description="replicas that bear the fault, where its target does not say it"
    )
    data: list[str] = Field(
        ["pool:exaserve_requests:rate1m > 0"], description="PromQL that must give something before it begins"
    )

    def window_at(self, rate: float) -> float:
        """Seconds of a window at that rate: never so short that fewer than twice ``least`` requests are due in it."""
        return max(self.window, 2 * self.least / rate)

    @field_validator("goals")
    @classmethod
    def _known(cls, goals: dict[str, float]) -> dict[str, float]:
        for name in goals:
            if name not in ALL:
                raise ValueError(f"{name} is no figure; figures are {', '.join(ALL)}")
        return goals


@dataclass(frozen=True)
class Experiment:
    """path, name (the file's), content (as parsed), plan."""

    path: Path
    name: str
    content: dict[str, Any]
    plan: Plan

    @property
    def title(self) -> str:
        return str(self.content["title"])

    def injections(self) -> list[dict[str, Any]]:
        """Arguments of every ``inject_fault`` of the method, with what the file's configuration puts in them."""
        found = []
        for activity in self.content.get("method") or []:
            provider = activity.get("provider") or {}
            if provider.get("func") == "inject_fault":
                found.append(dict(provider.get("arguments") or {}))
        return found


def names() -> list[str]:
    """The experiments that come with ExaServe."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def read(text: str) -> Experiment:
    """The experiment of that name, or of that file. Raises PlanError."""
    path = FOLDER / f"{text}.yaml"
    if text not in names():
        path = Path(text)
        if not path.is_file():
            near = difflib.get_close_matches(text, names(), 3)
            hint = f"did you mean {' or '.join(near)}?" if near else "exaserve chaos experiments lists them"
            raise PlanError(f"no experiment {text!r}, neither by name nor as a file; {hint}")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PlanError(f"{path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise PlanError(f"{path} is no YAML: {str(error).splitlines()[0]}") from None
    if not isinstance(content, dict) or not content.get("title") or not content.get("method"):
        raise PlanError(f"{path}: an experiment has at least a title and a method")
    blocks = [
        e for e in content.get("extensions") or [] if isinstance(e, dict) and e.get("name") == "exaserve"
    ]
    if not blocks:
        raise PlanError(
            f"{path}: no block of ours; add extensions: [{{name: exaserve, runbook: …, goals: {{…}}}}], or run it with "
            "chaos run"
        )
    try:
        plan = Plan.model_validate(blocks[0])
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"])) or "the block"
        raise PlanError(
            f"{path}: extensions.exaserve.{key}: {first['msg'].removeprefix('Value error, ')}"
        ) from None
    return Experiment(path, path.stem, content, plan)
