"""Any number of replicas that only have a metrics page, for the exporter's benchmark: a captured one of vLLM 0.32.

All share one port, which ``/sd`` lists under as many names as were asked for. As with vLLM, a question for some
names (``name[]=``) is answered with these only.
"""

from __future__ import annotations

import asyncio
import json
import os
from multiprocessing.connection import Connection
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

PAGE = Path(__file__).parents[1] / "fixtures" / "vllm-0.32.0-metrics.txt"


def run(pipe: Connection) -> None:
    """The process of the replicas: they share one port, where a page of vLLM is."""
    asyncio.run(_serve(pipe))


async def _serve(pipe: Connection) -> None:
    whole = PAGE.read_bytes()
    bodies: dict[bytes, bytes] = {}
    state = {"count": 0, "bytes": 0}

    def body_of(target: bytes) -> bytes:
        url = urlsplit(target.decode())
        if url.path == "/sd":
            # All at one address, each under its own name.
            target = [f"127.0.0.1:{port}"]
            groups = [
                {"targets": target, "labels": {"replica": f"replica-{i}"}} for i in range(state["count"])
            ]
            return json.dumps(groups).encode()
        if url.path.endswith("/version"):
            return b'{"version":"0.32.0"}'
        wanted = set(parse_qs(url.query).get("name[]", ()))
        return only(whole, wanted) if wanted else whole

    class Replica(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport, self.seen = transport, b""

        def data_received(self, data: bytes) -> None:
            self.seen += data
            if b"\r\n\r\n" not in self.seen:
                return
            target = self.seen.split(b" ", 2)[1]
            answer = bodies.get(target) if target != b"/sd" else None
            if answer is None:
                body = body_of(target)
                answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (
                    len(body),
                    body,
                )
                bodies[target] = answer
            state["bytes"] += len(answer)
            self.transport.write(answer)  # type: ignore[attr-defined]
            self.transport.close()

    loop = asyncio.get_running_loop()
    server = await loop.create_server(Replica, "127.0.0.1", 0, backlog=1024)
    port = server.sockets[0].getsockname()[1]

    def told() -> None:
        try:
            word = pipe.recv()
        except EOFError:
            os._exit(0)
        if word == "bytes":
            pipe.send(state["bytes"])
        else:
            state["count"] = word

    loop.add_reader(pipe.fileno(), told)
    pipe.send(port)
    await server.serve_forever()


def only(page: bytes, names: set[str]) -> bytes:
    """The page's samples of these names with the comments of their families, as prometheus_client answers."""
    kept, comments = [], []
    for line in page.split(b"\n"):
        if line.startswith(b"#"):
            comments = [*comments[-1:], line]
        elif line.split(b"{")[0].split(b" ")[0].decode() in names:
            kept += [*comments, line]
            comments = []
    return b"\n".join([*kept, b""])
