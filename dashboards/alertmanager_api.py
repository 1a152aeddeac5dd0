"""What ``exaserve alerts test`` asks an Alertmanager: its API v2, its configuration and its counters.

Works with Alertmanager 0.22 and later. Every error is an AlertmanagerError.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Self
from urllib.parse import urlsplit

import httpx
import yaml

_SAMPLE = re.compile(r"^(alertmanager_notification_requests(?:_failed)?_total)\{(.*)\} (\S+)$", re.M)
_INTEGRATION = re.compile(r'integration="([^"]*)"')

#: Keys of a receiver -> what Alertmanager calls the integration in its counters.
_INTEGRATIONS = {
    "webhook_configs": "webhook",
    "email_configs": "email",
    "pagerduty_configs": "pagerduty",
    "slack_configs": "slack",
    "opsgenie_configs": "opsgenie",
    "victorops_configs": "victorops",
    "pushover_configs": "pushover",
    "wechat_configs": "wechat",
    "sns_configs": "sns",
    "telegram_configs": "telegram",
    "webex_configs": "webex",
    "discord_configs": "discord",
    "msteams_configs": "msteams",
    "msteamsv2_configs": "msteamsv2",
    "jira_configs": "jira",
    "rocketchat_configs": "rocketchat",
    "incidentio_configs": "incidentio",
    "mattermost_configs": "mattermost",
}


class AlertmanagerError(Exception):
    """What went wrong, for people."""


class Alertmanager:
    """One Alertmanager. url: with its path prefix, if it has one, and user and password, if it asks for them.

    timeout: seconds for each request.
    """

    def __init__(self, url: str, timeout: float = 10.0) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise AlertmanagerError("no address of an Alertmanager; give one like http://alertmanager:9093")
        self._url = url.rstrip("/")
        #: The address for messages: without password.
        self.shown = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl().rstrip("/")
        self._client = httpx.Client(timeout=timeout, follow_redirects=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def status(self) -> tuple[str, dict[str, Any]]:
        """(version, configuration). Secrets are hidden in it by Alertmanager itself."""
        data = self._json("/api/v2/status")
        try:
            config = yaml.safe_load(data["config"]["original"]) or {}
            return str(data["versionInfo"]["version"]), config
        except (KeyError, TypeError, yaml.YAMLError) as error:
            raise AlertmanagerError(f"{self.shown}: its status can't be read ({error!r})") from None

    def post(self, alert: Mapping[str, Any]) -> None:
        self._ask("POST", "/api/v2/alerts", json=[alert])

    def alerts(self, *matchers: str) -> list[dict[str, Any]]:
        """Alerts that it holds, whatever their state. matchers: like ``alertname="X"``."""
        found = self._json("/api/v2/alerts", params=[("filter", matcher) for matcher in matchers])
        return found if isinstance(found, list) else []

    def groups(self) -> list[dict[str, Any]]:
        found = self._json("/api/v2/alerts/groups")
        return found if isinstance(found, list) else []

    def silence(self, silence: str) -> dict[str, Any]:
        found = self._json(f"/api/v2/silence/{silence}")
        return found if isinstance(found, dict) else {}

    def sent(self) -> dict[str, tuple[float, float]]:
        """Integration -> (requests made, of which failed), since Alertmanager's start.

        Raises AlertmanagerError where its counters are not shown (some hosted ones).
        """
        text = self._ask("GET", "/metrics").text
        made: dict[str, float] = {}
        failed: dict[str, float] = {}
        for name, labels, value in _SAMPLE.findall(text):
            integration = _INTEGRATION.search(labels)
            if integration:
                of = failed if "_failed_" in name else made
                of[integration[1]] = of.get(integration[1], 0.0) + float(value)
        if not made:
            raise AlertmanagerError(f"{self.shown}/metrics does not count notifications")
        return {name: (count, failed.get(name, 0.0)) for name, count in made.items()}

    def _json(self, path: str, **more: Any) -> Any:
        try:
            return self._ask("GET", path, **more).json()
        except ValueError:
            raise AlertmanagerError(f"{self.shown}{path} is not Alertmanager's (no JSON)") from None

    def _ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        try:
            answer = self._client.request(method, f"{self._url}{path}", **more)
        except httpx.TimeoutException:
            raise AlertmanagerError(f"{self.shown} did not answer in time") from None
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            raise AlertmanagerError(f"no connection to {self.shown}: {error}") from None
        if answer.status_code >= 400:
            said = " ".join(answer.text.split())[:300]
            raise AlertmanagerError(f"{method} {self.shown}{path}: {answer.status_code} {said}")
        return answer


def integrations(config: Mapping[str, Any], receiver: str) -> dict[str, int]:
    """What a receiver of Alertmanager's configuration sends through: integration -> how many of it."""
    for each in config.get("receivers") or []:
        if each.get("name") == receiver:
            found = {
                _INTEGRATIONS.get(key, key.removesuffix("_configs")): each[key]
                for key in each
                if key != "name"
            }
            return {
                name: len(entries) for name, entries in found.items() if isinstance(entries, list) and entries
            }
    return {}
