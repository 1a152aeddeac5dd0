"""A server that sends exactly the bytes it is told, each after its pause: for what no well-behaved server does."""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from typing import Any

Script = list[bytes | float | None]


def plain(status: str, content: Any, *headers: str) -> bytes:
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    lines = [f"HTTP/1.1 {status}", "Content-Type: application/json", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


def stream(*events: Any, headers: str = "", end: bool = True) -> bytes:
    """A whole event stream; str events are sent as they are."""
    body = b"".join(
        e.encode() if isinstance(e, str) else b"data: " + json.dumps(e).encode() + b"\n\n" for e in events
    )
    head = (
        f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n{headers}Transfer-Encoding: chunked\r\n\r\n"
    )
    return head.encode() + b"%x\r\n%s\r\n" % (len(body), body) + (b"0\r\n\r\n" if end else b"")


def token(text: str, finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]}


GOOD = stream(
    token("a"),
    token("b", "stop"),
    {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2}},
    "data: [DONE]\n\n",
)


class Scripted:
    """Plays one script a request, the last one over and over: bytes are sent, floats are pauses (s), None closes.

    requests: what was asked, as bytes. ports: of the clients' connections, one a request. played: scripts that are over,
    those that close the connection included.
    """

    def __init__(self, *scripts: Script, tls: ssl.SSLContext | None = None) -> None:
        self._scripts, self._tls = list(scripts), tls
        self.requests: list[bytes] = []
        self.ports: list[int] = []
        self.played = 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{self.port}"
        self._open: list[socket.socket] = []

    def __enter__(self) -> Scripted:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)  # closing alone leaves the thread in accept
        self._listening.close()
        for sock in self._open:
            sock.close()

    def _accept(self) -> None:
        while True:
            try:
                sock, address = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(sock, address[1]), daemon=True).start()

    def _serve(self, sock: socket.socket, port: int) -> None:
        try:
            if self._tls:
                sock = self._tls.wrap_socket(sock, server_side=True)
            self._open.append(sock)
            while request := _request(sock):
                self.requests.append(request)
                self.ports.append(port)
                script = self._scripts.pop(0) if len(self._scripts) > 1 else self._scripts[0]
                for step in script:
                    if step is None:
                        sock.close()
                        self.played += 1
                        return
                    if isinstance(step, float):
                        time.sleep(step)
                    else:
                        sock.sendall(step)
                self.played += 1
        except OSError:
            return


def _request(sock: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        if not (more := sock.recv(65536)):
            return b""
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    length = next((int(h[15:]) for h in head.lower().split(b"\r\n") if h.startswith(b"content-length:")), 0)
    while len(body) < length:
        body += sock.recv(65536)
    return head + b"\r\n\r\n" + body
