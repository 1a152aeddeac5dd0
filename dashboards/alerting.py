"""Who is told of alerts: the options of Alertmanager's configuration, read from a YAML file.

What is made of them is ``alertmanager.py``'s. Secrets are never in the options: each is the path of a file that
Alertmanager reads. An annotated example is ``alerting.example.yaml`` beside this file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from dashboards.rulefile import Team

#: The receiver that is always there: alerts are shown in Alertmanager and sent nowhere.
NOBODY = "nobody"

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$")]
File = Annotated[str, Field(pattern=r"^/", description="absolute path: Alertmanager's folder is not yours")]


class _Options(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Webhook(_Options):
    """Alertmanager's JSON by POST. url_file needs Alertmanager 0.26; token_file is a bearer token."""

    url: str | None = None
    url_file: File | None = None
    token_file: File | None = None

    @model_validator(mode="after")
    def _one_url(self) -> Self:
        if (self.url is None) == (self.url_file is None):
            raise ValueError("give url or url_file, one of them")
        return self


class Email(_Options):
    """to: one address, or several with commas between. How mail is sent is ``smtp``."""

    to: str


class PagerDuty(_Options):
    """An Events API v2 integration."""

    routing_key_file: File


class Slack(_Options):
    """api_url_file holds the address of an incoming webhook."""

    api_url_file: File
    channel: str


class Receiver(_Options):
    """All ways in which one group of people is told."""

    webhook: tuple[Webhook, ...] = ()
    email: tuple[Email, ...] = ()
    pagerduty: tuple[PagerDuty, ...] = ()
    slack: tuple[Slack, ...] = ()


class Smtp(_Options):
    """Where mail goes out. smarthost is host:port."""

    smarthost: str
    sender: str
    username: str | None = None
    password_file: File | None = None
    require_tls: bool = True


class Severities(_Options):
    """Receiver of each severity; None: that of ``routes``, and in the end nobody."""

    critical: Name | None = None
    warning: Name | None = None
    info: Name | None = None


class Alerting(_Options):
    """The whole file."""

    receivers: dict[Name, Receiver] = {}
    routes: Severities = Severities()
    teams: dict[Team, Severities] = {}
    watchdog: Name | None = Field(None, description="receiver that must miss ExaServeWatchdog when it stops")
    smtp: Smtp | None = None

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if NOBODY in self.receivers:
            raise ValueError(f"receivers: {NOBODY} is there already: it tells nobody")
        known = {*self.receivers, NOBODY}
        for place, name in self._named():
            if name is not None and name not in known:
                raise ValueError(f"{place}: {name} is none of receivers ({', '.join(sorted(known))})")
        if self.smtp is None and any(r.email for r in self.receivers.values()):
            raise ValueError("smtp: a receiver sends mail, so say where it goes out")
        return self

    def _named(self) -> list[tuple[str, str | None]]:
        places = {"routes": self.routes} | {f"teams.{team}": of for team, of in self.teams.items()}
        named = [(f"{place}.{severity}", name) for place, of in places.items() for severity, name in of]
        return [*named, ("watchdog", self.watchdog)]


def read(path: Path) -> Alerting:
    """The options in a file; an empty one tells nobody. Raises OSError, ValueError with what is wrong where."""
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no YAML: {error}") from None
    try:
        return Alerting.model_validate(data or {})
    except ValidationError as error:
        lines = [
            f"{'.'.join(map(str, e['loc'])) or path.name}: {e['msg'].removeprefix('Value error, ')}"
            for e in error.errors()
        ]
        raise ValueError("\n".join(lines)) from None
