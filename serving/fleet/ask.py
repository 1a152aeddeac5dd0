"""One small HTTP question to a replica, for probes and load reads; the data path has its own connections."""

from __future__ import annotations

import asyncio
import errno
import re

import httptools

from serving.fleet.replica import Replica

MAX_ANSWER_BYTES = 8 * 2**20


class _Answer:
    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.size = 0
        self.complete = False

    def on_body(self, data: bytes) -> None:
        self.pieces.append(data)
        self.size += len(data)

    def on_message_complete(self) -> None:
        self.complete = True


def was_refused(error: Exception) -> bool:
    """Whether nobody listens. asyncio hides it in a plain OSError where a name has several addresses."""
    if isinstance(error, ConnectionRefusedError):
        return True
    numbers = re.findall(r"\[Errno (\d+)\]", str(error)) if isinstance(error, OSError) else []
    return bool(numbers) and all(int(n) == errno.ECONNREFUSED for n in numbers)


async def ask(
    replica: Replica, method: str, path: str, body: bytes = b"", headers: bytes = b""
) -> tuple[int, bytes]:
    """(status, body). Has no time limit of its own: wrap it in ``asyncio.timeout``.

    Raises ConnectionRefusedError if nobody listens, OSError or ConnectionError if the connection breaks,
    ValueError if the answer is not HTTP or larger than 8 MiB. Every byte counts as heard from the replica.
    """
    reader, writer = await asyncio.open_connection(replica.host, replica.port)
    try:
        kind = b"content-type: application/json\r\n" if body else b""
        head = f"{method} {path} HTTP/1.1\r\nhost: {replica.address}\r\nconnection: close\r\n"
        writer.write(b"%s%s%scontent-length: %d\r\n\r\n%s" % (head.encode(), kind, headers, len(body), body))
        answer = _Answer()
        parser = httptools.HttpResponseParser(answer)
        while not answer.complete:
            data = await reader.read(65536)
            if not data:
                if answer.pieces:
                    break
                raise ConnectionResetError("closed before it answered")
            replica.heard += 1
            parser.feed_data(data)
            if answer.size > MAX_ANSWER_BYTES:
                raise ValueError(f"answered more than {MAX_ANSWER_BYTES} bytes")
        return parser.get_status_code(), b"".join(answer.pieces)
    except httptools.HttpParserError as e:
        raise ValueError(f"answered something that is not HTTP ({e})") from e
    finally:
        writer.transport.abort()
