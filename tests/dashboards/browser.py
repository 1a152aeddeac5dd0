"""A headless Chromium, driven over its DevTools protocol: no driver, no package beside websockets."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from websockets.sync.client import ClientConnection, connect

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Tab:
    """One tab. events: everything that the browser told so far."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket, self._number = socket, 0
        self.events: list[dict[str, Any]] = []
        for domain in ("Page", "Network", "Log", "Runtime"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": params}))
        while True:
            message = json.loads(self._socket.recv(120))
            if message.get("id") == self._number:
                assert "error" not in message, message
                return dict(message["result"])
            self.events.append(message)

    def run(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def open(self, page: Path, fragment: str = "") -> None:
        self.call("Page.navigate", url=page.as_uri() + fragment)
        self.until("document.readyState", "complete")

    def until(self, expression: str, value: Any = True) -> None:
        """Wait until the JavaScript expression has this value: what the page does by itself takes its time."""
        end = time.monotonic() + 120
        while (found := self.run(expression)) != value:
            assert time.monotonic() < end, f"{expression} is {found!r} and never became {value!r}"
            time.sleep(0.05)

    def point(self, selector: str, share: float) -> None:
        """Put the pointer onto the first visible such element, ``share`` of its width from the left."""
        box = self.run(
            f"(() => {{ const e = [...document.querySelectorAll({selector!r})].find(e => e.offsetParent);"
            "e.scrollIntoView({block: 'center'}); const r = e.getBoundingClientRect();"
            "return new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() =>"
            "done([r.left, r.top, r.width, r.height])))) })()"
        )
        left, top, width, height = box
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=left + width * share, y=top + height / 2)

    def told(self, *methods: str) -> list[dict[str, Any]]:
        """What the browser told under these names."""
        return [event["params"] for event in self.events if event["method"] in methods]


@contextmanager
def tab(folder: Path) -> Iterator[Tab]:
    """A tab of a browser of its own, whose profile is in ``folder``."""
    assert PROGRAM
    # Chromium's sandbox doesn't start for root, as which CI runs.
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    argv = [PROGRAM, *flags, "--remote-debugging-port=0", f"--user-data-dir={folder}", "about:blank"]
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        address = _address(_port(folder / "DevToolsActivePort"))
        # No pings: a browser that is slow to answer them is no broken one.
        options: dict[str, Any] = {"proxy": None, "open_timeout": 120, "ping_interval": None}
        with connect(address, max_size=2**28, **options) as socket:
            yield Tab(socket)
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _port(file: Path) -> int:
    end = time.monotonic() + 120
    while time.monotonic() < end:
        if file.exists() and (lines := file.read_text().splitlines()):
            return int(lines[0])
        time.sleep(0.05)
    raise AssertionError("the browser did not start")


def _address(port: int) -> str:
    """Of the first tab, which may come after the port."""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        pages = httpx.get(f"http://127.0.0.1:{port}/json", trust_env=False, timeout=60).json()
        if found := [page["webSocketDebuggerUrl"] for page in pages if page["type"] == "page"]:
            return str(found[0])
        time.sleep(0.05)
    raise AssertionError("the browser has no tab")
