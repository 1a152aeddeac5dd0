"""What ``exaserve alerts test --prometheus`` asks a Prometheus: the rule as it has it, and whom it tells."""

from __future__ import annotations

from typing import Any

import httpx
import yaml

from dashboards.alert_list import Rule


class PrometheusError(Exception):
    """What went wrong, for people."""


def rules(url: str, name: str, timeout: float = 10.0) -> list[Rule]:
    """The alerting rules of that name as the running Prometheus has them, its external labels among their labels.

    [] where it has none of that name. Raises PrometheusError.
    """
    external = _external_labels(url, timeout)
    found = []
    for group in _data(url, "/api/v1/rules?type=alert", timeout).get("groups", []):
        for rule in group["rules"]:
            if rule["name"] == name:
                if rule.get("health") == "err":
                    raise PrometheusError(f"the rule of {name} fails there: {rule.get('lastError')}")
                labels = {**external, **rule["labels"]}
                wait = f"{rule['duration']:g}s"
                found.append(
                    Rule(name, labels.get("severity", ""), labels, rule["annotations"], wait, group["file"])
                )
    return found


def alertmanagers(url: str, timeout: float = 10.0) -> list[str]:
    """Addresses of the Alertmanagers that it tells. Raises PrometheusError."""
    active = _data(url, "/api/v1/alertmanagers", timeout).get("activeAlertmanagers", [])
    return [each["url"].partition("/api/v")[0] for each in active]


def _external_labels(url: str, timeout: float) -> dict[str, str]:
    text = _data(url, "/api/v1/status/config", timeout).get("yaml", "")
    config = yaml.safe_load(text) or {}
    return {
        key: str(value) for key, value in ((config.get("global") or {}).get("external_labels") or {}).items()
    }


def _data(url: str, path: str, timeout: float) -> dict[str, Any]:
    try:
        answer = httpx.get(f"{url.rstrip('/')}{path}", timeout=timeout, follow_redirects=True)
        answer.raise_for_status()
        data = answer.json()["data"]
    except httpx.HTTPStatusError as error:
        raise PrometheusError(f"Prometheus answers {error.response.status_code} for {path}") from None
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        raise PrometheusError(f"no answer from Prometheus: {error or type(error).__name__}") from None
    except (ValueError, KeyError, TypeError):
        raise PrometheusError(f"what answers for {path} is not Prometheus") from None
    return data if isinstance(data, dict) else {}
