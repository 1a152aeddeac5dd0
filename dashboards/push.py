"""Boards into a running Grafana, through its HTTP API: a folder, and each board by its uid.

What is there already as it should be is not written again, so that a second push makes no new versions. A board is
written over the version that was read: where somebody saved it meanwhile, Grafana refuses and nothing is lost.
Command line: ``push_cli.py``; what counts as a difference: ``board_diff.py``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from dashboards.board_diff import differences

#: How long a uid may be (Grafana's HTTP API).
_MAX_UID = 40


class PushError(Exception):
    """What went wrong, for people: with the cure, without the token."""


@dataclass(frozen=True, slots=True)
class Change:
    """What a push does to one thing. lines: what differs, for "update". folder: its uid, if it is the folder."""

    what: str
    kind: Literal["create", "update", "unchanged"]
    lines: list[str] = field(default_factory=list)
    folder: str = ""


class Grafana:
    """A Grafana's folders and boards. Every error is a PushError.

    url: with its path, if Grafana is below one. token: of a service account that may write folders and dashboards;
    None where anybody may. timeout: seconds for each request. ca: file with the certificate that signed Grafana's.
    """

    def __init__(self, url: str, token: str | None, timeout: float = 15.0, ca: Path | None = None) -> None:
        from grafana_client import GrafanaApi

        parts, port = address(url)
        prefix = parts.path.strip("/")
        host = f"[{parts.hostname}]" if parts.hostname and ":" in parts.hostname else parts.hostname
        self.url, self._token = url, token
        self._api = GrafanaApi(
            token,
            host=host,
            port=port,
            url_path_prefix=f"{prefix}/" if prefix else "",
            protocol=parts.scheme,
            verify=str(ca) if ca else True,
            timeout=timeout,
        )

    def folder(self, uid: str) -> dict[str, Any] | None:
        return self._asked("read the folder", lambda: self._api.folder.get_folder(uid), missing=True)

    def folders(self) -> list[dict[str, Any]]:
        """Folders at the top."""
        return self._asked("read the folders", self._api.folder.get_all_folders)

    def create_folder(self, title: str, uid: str) -> dict[str, Any]:
        return self._asked("create the folder", lambda: self._api.folder.create_folder(title, uid))

    def board(self, uid: str) -> dict[str, Any] | None:
        """{"dashboard": …, "meta": …}; None where there is none."""
        return self._asked(f"read {uid}", lambda: self._api.dashboard.get_dashboard(uid), missing=True)

    def save(self, board: dict[str, Any], folder: str, overwrite: bool) -> None:
        body = {
            "dashboard": board,
            "folderUid": folder,
            "overwrite": overwrite,
            "message": "exaserve dashboards push",
        }
        self._asked(f"save {board['uid']}", lambda: self._api.dashboard.update_dashboard(body))

    def _asked(self, doing: str, call: Any, missing: bool = False) -> Any:
        """The answer's JSON; None for 404 where ``missing`` allows it."""
        from grafana_client.client import GrafanaException

        try:
            answer = call()
        except GrafanaException as error:
            status = error.status_code
            if status == 404 and missing and isinstance(error.response, dict):
                return None
            raise PushError(self._clean(f"can't {doing}: {_refused(status, error)}")) from None
        except (OSError, ValueError) as error:
            raise PushError(self._clean(f"can't {doing}: {_broken(self.url, error)}")) from None
        if not isinstance(answer, dict | list):
            raise PushError(f"can't {doing}: {_NOT_GRAFANA.format(self.url)}")
        return answer

    def _clean(self, text: str) -> str:
        return text.replace(self._token, "(token)") if self._token else text


def push(
    grafana: Grafana,
    boards: Mapping[str, dict[str, Any]],
    folder: str,
    force: bool = False,
    dry: bool = False,
) -> Iterator[Change]:
    """Bring every board into the folder called ``folder``; a Change for the folder and each board, once it is done.

    boards: by name. force: over whatever was saved meanwhile, and over another board of the same title (old
    Grafanas have one a folder). dry: nothing is written. Raises PushError; what was yielded before stays done.
    """
    uid = folder_uid(folder)
    there = grafana.folder(uid)
    if there is None:
        there = next((f for f in grafana.folders() if f.get("title") == folder), None)
    made = there is None
    if there is None:
        there = {"uid": uid, "title": folder} if dry else grafana.create_folder(folder, uid)
    uid, title = there["uid"], there.get("title", folder)
    yield Change(f"folder {title}", "create" if made else "unchanged", folder=uid)
    for name, board in boards.items():
        yield _push_board(grafana, name, board, uid, force, dry)


def folder_uid(title: str) -> str:
    """The uid of a folder that we make: its title as far as a uid may have it."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:_MAX_UID] or "exaserve"


def _push_board(
    grafana: Grafana, name: str, board: dict[str, Any], folder: str, force: bool, dry: bool
) -> Change:
    there = grafana.board(board["uid"])
    if there is None:
        if not dry:
            grafana.save({**board, "id": None}, folder, force)
        return Change(name, "create")
    old, meta = there["dashboard"], there.get("meta", {})
    lines = list(differences(board, old))
    if meta.get("folderUid", "") != folder:
        lines.insert(0, f"folder: {meta.get('folderTitle') or 'none'} -> the one above")
    if not lines:
        return Change(name, "unchanged")
    if meta.get("provisioned"):
        raise PushError(
            f"{name} ({board['uid']}) comes from a file of that Grafana ({meta.get('provisionedExternalId', '?')});"
            " write the files there (exaserve dashboards build), or take it out of its provider"
        )
    if not dry:
        grafana.save({**board, "id": old.get("id"), "version": old.get("version")}, folder, force)
    return Change(name, "update", lines)


def address(url: str) -> tuple[Any, int | None]:
    """The parts of an address of Grafana, and its port. Raises PushError if it is none."""
    try:
        parts, port = urlsplit(url), urlsplit(url).port
    except ValueError as error:
        raise PushError(f"--url: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise PushError("--url: give an address like https://grafana.example, with its path if it has one")
    if parts.username or parts.password:
        raise PushError("--url: no user or password in the address; a token goes into --token-file")
    if parts.query or parts.fragment:
        raise PushError("--url: the address of Grafana itself, without ? or #")
    return parts, port


def _refused(status: int, error: Any) -> str:
    """Grafana's answer of 400 or more, and what helps."""
    response = error.response if isinstance(error.response, dict) else {}
    said = str(response.get("message") or error)[:300]
    if status == 401:
        return "401, it doesn't know the token; make one: Administration, Service accounts, role Editor"
    if status == 403:
        return f"403, the token may not do that ({said}); its service account needs the role Editor"
    if status == 412 and response.get("status") == "name-exists":
        return f"412, another board has that title in this folder ({said}); rename it, or --force replaces it"
    if status == 412:
        return f"412, somebody saved it meanwhile ({said}); look at it and push again, or --force"
    if status == 404:
        return f"404 ({said}); is --url Grafana's address, with its path?"
    return f"{status}: {said}"


def _broken(url: str, error: Exception) -> str:
    """No answer, or none that is Grafana's."""
    said = f"{error}"
    if isinstance(error, ValueError) and not isinstance(error, OSError):
        return _NOT_GRAFANA.format(url)
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if "JSONDecodeError" in kinds:
        return _NOT_GRAFANA.format(url)
    if "SSLError" in kinds or "CERTIFICATE_VERIFY_FAILED" in said:
        return f"no trust in the certificate of {url}; name the one that signed it with --ca-file ({said[-160:]})"
    if "Timeout" in kinds:
        return f"{url} did not answer in time; --timeout gives it more"
    if "ConnectionError" in kinds:
        why = re.search(r"(\[Errno -?\d+\] [\w ]+|[\w ]*timed out[\w ]*)", said)
        return f"no connection to {url}" + (f": {why[0].strip()}" if why else "")
    return f"{url}: {said[:300]}"


_NOT_GRAFANA = (
    "{} does not answer like Grafana (no JSON); is it the address of Grafana, or of a login before it?"
)
