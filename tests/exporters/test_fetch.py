"""GETs side by side over plain sockets: what HTTP allows is read, what it does not is refused, nothing waits too long."""

from __future__ import annotations

import base64
import socket
import ssl
import threading
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trustme

from exporters.collectors import _addresses, _fetch, _get
from exporters.collectors._fetch import Ask, Fetcher
from exporters.collectors._get import Refusal

#: say(answer, ...) -> (address, requests): a server that answers each connection with these bytes and closes it.
Say = Callable[..., tuple[str, list[bytes]]]


@pytest.fixture
def say() -> Iterator[Say]:
    listeners: list[socket.socket] = []

    def start(
        *answer: bytes, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
    ) -> tuple[str, list[bytes]]:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, 0), family=family)
        listeners.append(listener)
        requests: list[bytes] = []

        def work() -> None:
            while True:
                try:
                    connection = listener.accept()[0]
                    connection = tls.wrap_socket(connection, server_side=True) if tls else connection
                except ssl.SSLError:
                    continue
                except OSError:
                    return
                with connection:
                    data = b""
                    while b"\r\n\r\n" not in data:
                        piece = connection.recv(65536)
                        if not piece:
                            break
                        data += piece
                    requests.append(data)
                    for part in answer:
                        connection.sendall(part)
                        time.sleep(0.01)

        threading.Thread(target=work, daemon=True).start()
        port = listener.getsockname()[1]
        return (
            f"{'https' if tls else 'http'}://{f'[{host}]' if family != socket.AF_INET else host}:{port}",
            requests,
        )

    yield start
    for listener in listeners:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def get(url: str, seconds: float = 60.0, most: int = 1000, until: float = 120.0) -> bytes | Exception:
    answers: list[bytes | Exception] = []
    Fetcher().run([Ask(url, seconds, most, answers.append)], time.monotonic() + until)
    assert len(answers) == 1
    return answers[0]


OK = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    "answer",
    [
        (OK + b"content-length: 5\r\n\r\nhello",),
        (OK + b"content-le", b"ngth: 5\r\n\r", b"\nhel", b"lo"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n", b"3;x=1\r\nllo\r\n0\r\n\r\n"),
        (OK + b"\r\nhel", b"lo"),
        (b"HTTP/1.0 200 OK\r\n\r\nhello",),
        (b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n", OK + b"content-length: 5\r\n\r\nhello"),
        (OK + b"content-encoding: identity\r\ncontent-length: 5\r\n\r\nhello",),
    ],
    ids=["length", "in pieces", "chunked", "until close", "http 1.0", "interim answer", "identity"],
)
def test_every_way_to_send_a_body_is_read(say: Say, answer: tuple[bytes, ...]) -> None:
    assert get(say(*answer)[0]) == b"hello"


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ((b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n",), "answered 404"),
        (
            (b"HTTP/1.1 307 Temporary Redirect\r\nlocation: /metrics/\r\ncontent-length: 0\r\n\r\n",),
            "answered 307, a redirect to '/metrics/', which is not followed",
        ),
        ((b"SSH-2.0-OpenSSH_9.2\r\n",), "answered something that is not HTTP"),
        ((OK + b"content-length: 9\r\n\r\nhello",), "closed before its answer was whole"),
        ((OK + b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n",), "closed before its answer was whole"),
        ((b"",), "closed before its answer was whole"),
        ((OK + b"\r\n" + b"x" * 1001,), "its page is longer than 1000 bytes"),
        ((OK + b"x: " + b"y" * 500_000,), "its page is longer than 1000 bytes"),
        (
            (OK + b"content-encoding: gzip\r\ncontent-length: 1\r\n\r\n\x1f",),
            "answered with a compressed page",
        ),
    ],
)
def test_what_is_no_page_says_why(say: Say, answer: tuple[bytes, ...], problem: str) -> None:
    error = get(say(*answer)[0])
    assert isinstance(error, Exception)
    assert str(error).startswith(problem)
    assert isinstance(error, Refusal) == problem.startswith(("answered 404", "answered 307"))


def test_the_question_has_host_path_query_and_no_more_than_it_needs(say: Say) -> None:
    url, requests = say(OK + b"content-length: 0\r\n\r\n")
    assert get(f"{url}/a b/?name[]=vllm:x&name[]=y") == b""
    lines = requests[0].decode().split("\r\n")
    assert lines[0] == "GET /a%20b/?name[]=vllm:x&name[]=y HTTP/1.1"
    assert lines[1] == f"Host: {url.removeprefix('http://')}"
    assert "Accept-Encoding: identity" in lines
    assert not [line for line in lines if "Authorization" in line]


def test_credentials_in_the_address_become_basic_authorization(say: Say) -> None:
    url, requests = say(OK + b"content-length: 0\r\n\r\n")
    get(url.replace("://", "://me:p%40ss@"))
    secret = base64.b64encode(b"me:p@ss").decode()
    assert f"Authorization: Basic {secret}\r\n" in requests[0].decode()
    assert b"@" not in requests[0].split(b"Authorization")[0]


@pytest.mark.parametrize(
    "url", ["ftp://127.0.0.1/", "http:///x", "http://[::1/", "http://a" + "b" * 70 + ".c/"]
)
def test_an_address_that_cannot_be_asked_is_an_error_of_its_own(url: str) -> None:
    assert isinstance(get(url), ValueError)


def test_a_refused_connection_says_so(closed: str) -> None:
    assert isinstance(get(closed), ConnectionRefusedError) or "refused" in str(get(closed))


def test_silence_and_dripping_end_at_the_time_limit(hung: str, dripping: str) -> None:
    began = time.monotonic()
    assert isinstance(get(hung, 0.3), TimeoutError)
    assert isinstance(get(dripping, 0.3), TimeoutError)
    assert time.monotonic() - began < 30  # of 120 in all


def test_at_the_end_of_all_time_nobody_is_left_without_an_answer(
    hung: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is open and hangs, the other has not begun: both are told."""
    monkeypatch.setattr(_fetch, "MAX_OPEN", 1)
    answers: list[bytes | Exception] = []
    asks = [Ask(hung, 60, 10, answers.append) for _ in range(2)]
    monkeypatch.setattr(_fetch.Run, "_full", lambda run: len(run.open) >= 1)
    Fetcher().run(asks, time.monotonic() + 0.3)
    assert [type(a) for a in answers] == [TimeoutError, _fetch.NotAsked]


def test_what_then_returns_is_asked_next(say: Say) -> None:
    answers: list[bytes | Exception] = []
    second = Ask(say(OK + b"\r\nb")[0], 60, 10, answers.append)

    def then(answer: bytes | Exception) -> Ask:
        answers.append(answer)
        return second

    Fetcher().run([Ask(say(OK + b"\r\na")[0], 60, 10, then)], time.monotonic() + 60)
    assert answers == [b"a", b"b"]


def test_more_questions_than_file_descriptors_are_all_answered(
    say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every second socket can't be had while another is open."""
    open_now = 0

    class Scarce(socket.socket):
        def __init__(self, *args: object, **kwargs: object) -> None:
            nonlocal open_now
            if open_now >= 2:
                raise OSError(24, "Too many open files")
            super().__init__(*args, **kwargs)  # type: ignore[arg-type]
            open_now += 1

        def close(self) -> None:
            nonlocal open_now
            open_now -= 1
            super().close()

    url = say(OK + b"\r\nhello")[0]
    scarce = types.SimpleNamespace(**{**vars(socket), "socket": Scarce})
    monkeypatch.setattr(_get, "socket", scarce)
    answers: list[bytes | Exception] = []
    Fetcher().run([Ask(url, 60, 10, answers.append) for _ in range(8)], time.monotonic() + 60)
    assert answers == [b"hello"] * 8
    assert open_now == 0


def test_ipv6(say: Say) -> None:
    try:
        url, requests = say(OK + b"\r\nhello", host="::1")
    except OSError:
        pytest.skip("no IPv6 here")
    assert get(url) == b"hello"
    assert f"Host: {url.removeprefix('http://')}\r\n".encode() in requests[0]


def test_https_is_checked_against_the_systems_authorities(
    say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    url = say(OK + b"content-length: 300000\r\n\r\n", b"x" * 300_000, tls=context)[0]
    error = get(url, most=10**6)
    assert isinstance(error, ssl.SSLCertVerificationError)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    assert get(url, most=10**6) == b"x" * 300_000


def test_a_name_whose_first_address_refuses_is_reached_at_its_second(
    say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the next question goes there at once."""
    url = say(OK + b"\r\nhello")[0]
    asked: list[str] = []
    real = socket.getaddrinfo

    def look(host: str, *args: object, **kwargs: object) -> object:
        if host != "replica.test":
            return real(host, *args, **kwargs)  # type: ignore[arg-type]
        if kwargs.get("flags"):
            raise socket.gaierror(-2, "not a number")
        asked.append(host)
        return [(socket.AF_INET, 1, 6, "", (a, 0)) for a in ("127.0.0.2", "127.0.0.1")]

    monkeypatch.setattr(_addresses.socket, "getaddrinfo", look)
    fetcher, answers = Fetcher(), []
    for _ in range(2):
        ask = Ask(url.replace("127.0.0.1", "replica.test"), 60, 10, answers.append)
        fetcher.run([ask], time.monotonic() + 60)
    assert answers == [b"hello", b"hello"]
    assert asked == ["replica.test"]
    assert fetcher.addresses.of("replica.test", 1) == [
        (socket.AF_INET, ("127.0.0.1", 1)),
        (2, ("127.0.0.2", 1)),
    ]


def test_a_name_server_that_hangs_holds_up_nothing_else(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    url = say(OK + b"\r\nhello")[0]
    stop = threading.Event()
    real = socket.getaddrinfo

    def look(host: str, *args: object, **kwargs: object) -> object:
        if host.endswith(".test"):
            if kwargs.get("flags"):
                raise socket.gaierror(-2, "not a number")
            stop.wait(120)
            raise socket.gaierror(-3, "no name server")
        return real(host, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(_addresses.socket, "getaddrinfo", look)
    answers: list[bytes | Exception] = []
    asks = [Ask(f"http://h{i}.test/", 0.5, 10, answers.append) for i in range(40)]
    began = time.monotonic()
    Fetcher().run([*asks, Ask(url, 60, 10, answers.append)], time.monotonic() + 60)
    stop.set()
    assert time.monotonic() - began < 30
    assert b"hello" in answers
    assert sum(isinstance(a, TimeoutError) for a in answers) == 40
