"""A stand-in for Grafana's HTTP API: folders and dashboards, as strict as its documentation (no Grafana is needed).

It keeps what is saved, counts versions, and refuses what Grafana refuses: a wrong token (401), a token that may not
write (403), an unknown folder (400), a body with keys it doesn't know (400), a version that is not the one it has
(412 version-mismatch), a title that another board of the folder has (412 name-exists, Grafana before 11), a board
that comes from a file (400). Like Grafana 12 it adds defaults of its own to what it gives back.
"""

from __future__ import annotations

import json
import re
import ssl
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_UID = re.compile(r"[a-zA-Z0-9_-]{1,40}")
_SAVE_KEYS = {"dashboard", "folderUid", "overwrite", "message"}


class FakeGrafana(ThreadingHTTPServer):
    """tokens: token -> Editor or Viewer. prefix: path below which it is served. delay: seconds before each answer."""

    daemon_threads = True

    def __init__(self, prefix: str = "", tls: ssl.SSLContext | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.tokens = {"good-token": "Editor", "viewer-token": "Viewer"}
        self.prefix, self.delay = prefix, 0.0
        self.folders: dict[str, dict[str, Any]] = {}
        self.boards: dict[str, dict[str, Any]] = {}
        self.writes: list[str] = []
        #: Called with each board's uid after it was read: somebody else's hand.
        self.after_read = lambda uid: None
        self.one_title_a_folder = False
        self.login_page = False
        if tls:
            self.socket = tls.wrap_socket(self.socket, server_side=True)
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.server_port}{prefix}"
        self._thread = threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.shutdown()
        self.server_close()
        self._thread.join()

    def add_folder(self, uid: str, title: str) -> None:
        self.folders[uid] = {"id": len(self.folders) + 1, "uid": uid, "title": title, "version": 1}

    def handle_error(self, *_: object) -> None: ...

    def save(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if set(body) - _SAVE_KEYS:
            return 400, {"message": f"bad request data: {sorted(set(body) - _SAVE_KEYS)}"}
        board, folder, overwrite = body["dashboard"], body.get("folderUid", ""), body.get("overwrite", False)
        if not board.get("title"):
            return 400, {"message": "Dashboard title cannot be empty"}
        if not _UID.fullmatch(board["uid"]):
            return 400, {"message": "uid contains illegal characters or is too long"}
        if folder and folder not in self.folders:
            return 400, {"message": "folder not found"}
        there = self.boards.get(board["uid"])
        if there and there["meta"].get("provisioned"):
            return 400, {"message": "Cannot save provisioned dashboard"}
        if there is None and board.get("id"):
            return 404, {"message": "Dashboard not found", "status": "not-found"}
        if there and board.get("version") != there["dashboard"]["version"] and not overwrite:
            said = "The dashboard has been changed by someone else"
            return 412, {"message": said, "status": "version-mismatch"}
        same = [
            uid
            for uid, other in self.boards.items()
            if uid != board["uid"]
            and other["dashboard"]["title"] == board["title"]
            and other["meta"]["folderUid"] == folder
        ]
        if same and self.one_title_a_folder:
            if not overwrite:
                said = "A dashboard with the same name in the folder already exists"
                return 412, {"message": said, "status": "name-exists"}
            del self.boards[same[0]]
        version = there["dashboard"]["version"] + 1 if there else 1
        number = there["dashboard"]["id"] if there else len(self.boards) + 1
        kept = json.loads(json.dumps(board)) | {"id": number, "version": version}
        title = self.folders[folder]["title"] if folder else "General"
        self.boards[board["uid"]] = {"dashboard": kept, "meta": {"folderUid": folder, "folderTitle": title}}
        return 200, {"id": number, "uid": board["uid"], "status": "success", "version": version}


def _with_defaults(board: dict[str, Any]) -> dict[str, Any]:
    """What Grafana 12 makes of a board when it is read: a newer schema, defaults filled in."""
    panels = [{"transparent": False, **panel} for panel in board.get("panels", [])]
    return {**board, "panels": panels, "schemaVersion": 42, "preload": False}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeGrafana

    def do_GET(self) -> None:
        self._answered("GET", None)

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.headers.get("Content-Type") != "application/json":
            return self._send(400, {"message": "bad request data"})
        return self._answered("POST", json.loads(raw))

    def _answered(self, method: str, body: Any) -> None:
        grafana = self.server
        time.sleep(grafana.delay)
        if grafana.login_page:
            return self._send_text("<html>Log in</html>", "text/html")
        if not self.path.startswith(f"{grafana.prefix}/api/"):
            return self._send(404, {"message": "Not found"})
        kind, _, token = self.headers.get("Authorization", "").partition(" ")
        role = grafana.tokens.get(token) if kind == "Bearer" else None
        if role is None:
            # A careless proxy may repeat what it was sent.
            return self._send(401, {"message": f"Invalid API key {token}"})
        path = self.path.removeprefix(f"{grafana.prefix}/api").partition("?")[0]
        if method == "POST" and role != "Editor":
            return self._send(403, {"message": "You'll need additional permissions: folders:create"})
        return self._send(*self._of(method, path, body))

    def _of(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        grafana = self.server
        if method == "POST":
            grafana.writes.append(path)
        if (method, path) == ("GET", "/folders"):
            return 200, list(grafana.folders.values())
        if (method, path) == ("POST", "/folders"):
            if body["uid"] in grafana.folders or not _UID.fullmatch(body["uid"]):
                return 412, {"message": "A folder with that uid already exists", "status": "name-exists"}
            grafana.add_folder(body["uid"], body["title"])
            return 200, grafana.folders[body["uid"]]
        if method == "GET" and path.startswith("/folders/"):
            folder = grafana.folders.get(path.removeprefix("/folders/"))
            return (200, folder) if folder else (404, {"message": "folder not found"})
        if method == "GET" and path.startswith("/dashboards/uid/"):
            uid = path.removeprefix("/dashboards/uid/")
            board = grafana.boards.get(uid)
            answer = json.loads(json.dumps(board)) if board else None
            grafana.after_read(uid)
            if answer is None:
                return 404, {"message": "Dashboard not found"}
            return 200, answer | {"dashboard": _with_defaults(answer["dashboard"])}
        if (method, path) == ("POST", "/dashboards/db"):
            return grafana.save(body)
        return 404, {"message": "Not found"}

    def _send(self, status: int, data: Any) -> None:
        self._send_text(json.dumps(data), "application/json", status)

    def _send_text(self, text: str, kind: str, status: int = 200) -> None:
        raw = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *_: object) -> None: ...
