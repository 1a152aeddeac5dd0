"""TLS on the loop that the router runs on, with certificates made here."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import socket
import ssl
import time
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import trustme

from serving.router.tls import (
    ReplicaTLS,
    ServerTLS,
    TLSError,
    Token,
    bearer,
    looks_like_tls,
    replica_context,
    validity,
    words,
)
from serving.router.tls_listener import TLSListener
from tests.serving.on_loop import run, until

NOW = datetime.datetime.now(datetime.UTC)
DAY = datetime.timedelta(days=1)
CA, OTHER_CA = trustme.CA(), trustme.CA()


def pair(folder: Path, leaf: trustme.LeafCert, name: str = "server") -> tuple[Path, Path]:
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    certificate.write_bytes(b"".join(b.bytes() for b in leaf.cert_chain_pems))
    key.write_bytes(leaf.private_key_pem.bytes())
    key.chmod(0o600)
    return certificate, key


def ca_file(folder: Path, ca: trustme.CA, name: str = "ca.pem") -> Path:
    (folder / name).write_bytes(ca.cert_pem.bytes())
    return folder / name


def leaf(*names: str, ca: trustme.CA = CA, **options: Any) -> trustme.LeafCert:
    return ca.issue_cert(*(names or ("127.0.0.1", "localhost", "::1")), **options)


class Echo(asyncio.Protocol):
    """Sends back what comes; stands in for the router's client protocol."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)  # type: ignore[attr-defined]


@asynccontextmanager
async def listening(
    tls: ServerTLS, sock: socket.socket | None = None, **options: Any
) -> AsyncIterator[tuple[TLSListener, int]]:
    if sock is None:
        sock = socket.create_server(("127.0.0.1", 0))
    listener = TLSListener(sock, Echo, tls, **options)
    name = sock.getsockname()
    try:
        yield listener, name[1] if isinstance(name, tuple) else 0
    finally:
        listener.close()


async def serial(at: int, context: ssl.SSLContext, **where: Any) -> tuple[int, Any, Any]:
    """(serial number of the certificate that the server showed, reader, writer), after one echo."""
    where = where or {"host": "127.0.0.1", "port": at}
    connect = asyncio.open_unix_connection if "path" in where else asyncio.open_connection
    reader, writer = await connect(ssl=context, **where)  # type: ignore[operator]
    writer.write(b"hello")
    assert await reader.readexactly(5) == b"hello"
    return int(writer.get_extra_info("peercert")["serialNumber"], 16), reader, writer


def trusting(ca: trustme.CA = CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    ca.configure_trust(context)
    return context


def sockets() -> int:
    """How many this process has open."""
    return len(psutil.Process().net_connections("all"))


# --- certificates from files ---


def test_the_dates_of_a_certificate_are_read_from_it(tmp_path: Path) -> None:
    before, after = NOW.replace(microsecond=0) - DAY, NOW.replace(microsecond=0) + 40 * 365 * DAY
    certificate = leaf(not_before=before, not_after=after)  # after 2049: the other form of a date
    der = ssl.PEM_cert_to_DER_cert(certificate.cert_chain_pems[0].bytes().decode())
    assert validity(der) == (before.timestamp(), after.timestamp())


def test_the_expiry_is_that_of_the_first_certificate_of_the_chain_to_expire(tmp_path: Path) -> None:
    short = NOW.replace(microsecond=0) + DAY
    certificate, key = pair(tmp_path, leaf(not_after=short))
    certificate.write_bytes(certificate.read_bytes() + CA.cert_pem.bytes())
    assert ServerTLS(certificate, key).not_after == short.timestamp()


def test_every_file_that_is_no_good_is_named_with_the_reason(tmp_path: Path) -> None:
    certificate, key = pair(tmp_path, leaf())
    other = pair(tmp_path, leaf(), "other")[1]
    empty, rubbish, missing = tmp_path / "empty.pem", tmp_path / "rubbish.pem", tmp_path / "missing.pem"
    empty.write_bytes(b"")
    rubbish.write_bytes(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    for args, said in (
        ((certificate, other), "other.key is not the key of"),
        ((missing, key), "missing.pem: No such file"),
        ((certificate, missing), "missing.pem: No such file"),
        ((empty, key), "empty.pem holds no certificate"),
        ((rubbish, key), "rubbish.pem holds a certificate that can't be read"),
        ((certificate, empty), "empty.pem"),
        ((certificate, key, rubbish), "rubbish.pem"),
        ((tmp_path, key), "Is a directory"),
    ):
        with pytest.raises(TLSError, match=said):
            ServerTLS(*args)


def test_an_encrypted_key_is_refused_and_asks_nobody(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization as s

    certificate, key = pair(tmp_path, leaf())
    loaded = s.load_pem_private_key(key.read_bytes(), None)
    how = s.BestAvailableEncryption(b"secret")
    key.write_bytes(loaded.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, how))
    with pytest.raises(TLSError, match="is encrypted"):
        ServerTLS(certificate, key)


def test_a_key_that_others_can_read_is_warned_about(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    certificate, key = pair(tmp_path, leaf())
    ServerTLS(certificate, key)
    assert caplog.text == ""
    key.chmod(0o640)
    ServerTLS(certificate, key)
    assert "mode 640" in caplog.text


def test_an_expired_certificate_serves_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tls = ServerTLS(*pair(tmp_path, leaf(not_before=NOW - 2 * DAY, not_after=NOW - DAY)))
    assert tls.not_after < time.time()
    assert "is not valid now" in caplog.text


def test_a_reload_takes_only_what_is_better(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tls = ServerTLS(*pair(tmp_path, leaf(not_after=NOW + DAY)))
    first = tls.not_after
    assert not tls.reload_if_changed()
    assert caplog.text == ""
    bad = leaf(not_before=NOW - 3 * DAY, not_after=NOW - 2 * DAY)
    (tmp_path / "server.pem").write_bytes(bad.cert_chain_pems[0].bytes())
    assert not tls.reload_if_changed()
    assert "server.key is not the key of" in caplog.text  # half of the pair is there
    caplog.clear()
    pair(tmp_path, bad)
    assert not tls.reload_if_changed()
    assert "is not valid now" in caplog.text
    caplog.clear()
    assert not tls.reload_if_changed()  # said once
    assert caplog.text == ""
    assert tls.not_after == first
    pair(tmp_path, leaf(not_after=NOW + 5 * DAY))
    assert tls.reload_if_changed()
    assert tls.not_after > first


def test_a_reload_sees_a_link_that_points_elsewhere(tmp_path: Path) -> None:
    """As Kubernetes replaces the files of a secret."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        pair(tmp_path / name, leaf())
    link = tmp_path / "now"
    link.symlink_to("a")
    tls = ServerTLS(link / "server.pem", link / "server.key")
    (tmp_path / "next").symlink_to("b")
    (tmp_path / "next").replace(link)
    assert tls.reload_if_changed()


# --- towards clients ---


def test_handshakes_get_the_newest_certificate_and_open_connections_stay(tmp_path: Path) -> None:
    old = leaf(key_type=trustme.KeyType.RSA)
    tls = ServerTLS(*pair(tmp_path, old))

    @run
    async def go() -> None:
        async with listening(tls) as (listener, port):
            before, reader, writer = await serial(port, trusting())
            assert writer.get_extra_info("ssl_object").selected_alpn_protocol() is None
            assert writer.get_extra_info("ssl_object").version() == "TLSv1.3"
            pair(tmp_path, leaf())  # another type of key
            assert tls.reload_if_changed()
            after, _, other = await serial(port, trusting())
            assert before != after
            writer.write(b"still")
            assert await reader.readexactly(5) == b"still"
            assert sum(listener.failures.values()) == 0
            for w in (writer, other):
                w.transport.abort()

    go()


def test_http_1_1_is_negotiated_and_old_tls_refused(tmp_path: Path) -> None:
    tls = ServerTLS(*pair(tmp_path, leaf()))

    @run
    async def go() -> None:
        async with listening(tls) as (listener, port):
            context = trusting()
            context.set_alpn_protocols(["h2", "http/1.1"])
            _, _, writer = await serial(port, context)
            assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"
            writer.transport.abort()
            old = trusting()
            old.set_ciphers("DEFAULT@SECLEVEL=0")
            with warnings.catch_warnings(action="ignore"):
                old.minimum_version = ssl.TLSVersion.TLSv1
                old.maximum_version = ssl.TLSVersion.TLSv1_1
            with pytest.raises((ssl.SSLError, OSError)):
                await serial(port, old)
            await until(lambda: listener.failures["protocol"] == 1)

    go()


def test_a_client_certificate_is_asked_for_and_checked_by_the_ca_of_now(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ca = ca_file(tmp_path, CA)
    tls = ServerTLS(*pair(tmp_path, leaf()), ca)

    def client(ca: trustme.CA | None) -> ssl.SSLContext:
        context = trusting()
        if ca is not None:
            leaf("client", ca=ca).configure_cert(context)
        return context

    async def refused(port: int, context: ssl.SSLContext) -> None:
        with pytest.raises((ssl.SSLError, OSError, asyncio.IncompleteReadError)):
            await serial(port, context)

    @run
    async def go() -> None:
        async with listening(tls) as (listener, port):
            _, _, writer = await serial(port, client(CA))
            writer.transport.abort()
            await refused(port, client(None))
            await refused(port, client(OTHER_CA))
            await until(lambda: not listener.pending)
            assert (listener.failures["no_certificate"], listener.failures["bad_certificate"]) == (1, 1)
            ca_file(tmp_path, OTHER_CA)
            assert tls.reload_if_changed()
            await refused(port, client(CA))
            _, _, writer = await serial(port, client(OTHER_CA))
            writer.transport.abort()

    go()
    assert "showed no certificate" in caplog.text
    assert "Traceback" not in caplog.text


def test_plain_http_is_told_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tls = ServerTLS(*pair(tmp_path, leaf()))

    @run
    async def go() -> None:
        async with listening(tls) as (listener, port):
            for _ in range(3):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(
                    b"POST /v1/completions HTTP/1.1\r\ncontent-length: 100000\r\n\r\n" + b"x" * 100000
                )
                answer = await reader.read()
                assert answer.startswith(b"HTTP/1.1 400 ")
                assert b"use https://" in answer
                writer.transport.abort()
            await until(lambda: not listener.pending)
            assert listener.failures["plain_http"] == 3

    go()
    assert caplog.text.count("plain HTTP") == 1  # not a line for each


def test_clients_that_stall_or_leave_or_send_rubbish_are_counted_and_cost_nothing(tmp_path: Path) -> None:
    tls = ServerTLS(*pair(tmp_path, leaf()))

    @run
    async def go() -> None:
        async with listening(tls, handshake_timeout=0.5) as (listener, port):
            before = sockets()
            for first in (b"", b"\x16\x03\x01\x02\x00\x01"):
                timeouts = listener.failures["timeout"]
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(first)
                await until(lambda n=timeouts: listener.failures["timeout"] == n + 1)
                writer.transport.abort()
            await until(lambda: sockets() <= before)
        async with listening(tls) as (listener, port):
            before = sockets()
            for first in (b"", b"\x16\x03\x01\x02\x00\x01"):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(first)
                writer.close()
            await until(lambda: listener.failures["closed"] == 2)
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"\x16\x03\x01\x00\x05hello")
            await until(lambda: listener.failures["protocol"] == 1)
            writer.transport.abort()
            await until(lambda: sockets() <= before)

    go()


def test_closing_the_listener_drops_handshakes_and_keeps_connections(tmp_path: Path) -> None:
    tls = ServerTLS(*pair(tmp_path, leaf()))

    @run
    async def go() -> None:
        async with listening(tls) as (listener, port):
            _, reader, writer = await serial(port, trusting())
            stalled, other = await asyncio.open_connection("127.0.0.1", port)
            other.write(b"\x16\x03\x01")
            await until(lambda: listener.pending)
            listener.close()
            with contextlib.suppress(ConnectionResetError):
                assert await stalled.read() == b""
            writer.write(b"again")
            assert await reader.readexactly(5) == b"again"
            with pytest.raises(OSError, match="111"):
                await asyncio.open_connection("127.0.0.1", port)
            writer.transport.abort()

    go()


def test_a_unix_socket_and_ipv6_are_served_alike(tmp_path: Path) -> None:
    tls = ServerTLS(*pair(tmp_path, leaf()))

    @run
    async def go() -> None:
        path = str(tmp_path / "s")
        sock = socket.socket(socket.AF_UNIX)
        sock.bind(path)
        sock.listen()
        async with listening(tls, sock):
            _, _, writer = await serial(0, trusting(), path=path, server_hostname="localhost")
            writer.transport.abort()
        try:
            six = socket.create_server(("::1", 0), family=socket.AF_INET6)
        except OSError:
            pytest.skip("no IPv6 loopback here")
        async with listening(tls, six) as (_, port):
            _, _, writer = await serial(port, trusting(), host="::1", port=port)
            writer.transport.abort()

    go()


def test_the_context_also_works_without_the_listener(tmp_path: Path) -> None:
    tls = ServerTLS(*pair(tmp_path, leaf()))

    @run
    async def go() -> None:
        server = await asyncio.get_running_loop().create_server(Echo, "127.0.0.1", 0, ssl=tls.context)
        port = server.sockets[0].getsockname()[1]
        before, _, a = await serial(port, trusting())
        pair(tmp_path, leaf())
        assert tls.reload_if_changed()
        after, _, b = await serial(port, trusting())
        assert before != after
        for w in (a, b):
            w.transport.abort()
        server.close()

    go()


# --- towards replicas ---


@pytest.mark.parametrize(
    ("certificate", "said"),
    [
        (leaf(not_before=NOW - 2 * DAY, not_after=NOW - DAY), "certificate has expired"),
        (leaf(ca=OTHER_CA), "unable to get local issuer certificate"),
        (leaf("elsewhere.example"), "IP address mismatch"),
    ],
    ids=["expired", "unknown_ca", "wrong_name"],
)
def test_a_replica_whose_certificate_is_no_good_is_refused_in_words(
    tmp_path: Path, certificate: trustme.LeafCert, said: str
) -> None:
    tls = ServerTLS(*pair(tmp_path, certificate))
    context = replica_context(ca_file(tmp_path, CA), None, None)

    @run
    async def go() -> None:
        async with listening(tls) as (_, port):
            with pytest.raises(ssl.SSLCertVerificationError) as e:
                await serial(port, context)
            assert words(e.value).startswith("its certificate is refused: ")
            assert said in words(e.value)

    go()


def test_a_self_signed_replica_is_refused(tmp_path: Path) -> None:
    certificate, key = tmp_path / "self.pem", tmp_path / "self.key"
    certificate.write_bytes(CA.cert_pem.bytes())
    key.write_bytes(CA.private_key_pem.bytes())
    tls = ServerTLS(certificate, key)

    @run
    async def go() -> None:
        async with listening(tls) as (_, port):
            with pytest.raises(ssl.SSLCertVerificationError) as e:
                await serial(port, replica_context(None, None, None))
            assert "self-signed certificate" in words(e.value)

    go()


def test_a_plain_replica_behind_https_is_named_as_such(tmp_path: Path) -> None:
    @run
    async def go() -> None:
        async def plain(_: Any, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        server = await asyncio.start_server(plain, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(ssl.SSLError) as e:
            await serial(port, replica_context(None, None, None))
        assert "does not speak TLS" in words(e.value)
        server.close()

    go()


def test_mutual_tls_with_a_replica_and_a_reload_of_what_is_shown(tmp_path: Path) -> None:
    ca = ca_file(tmp_path, CA)
    tls = ServerTLS(*pair(tmp_path, leaf()), ca)
    shown = pair(tmp_path, leaf("router"), "router")
    replica = ReplicaTLS(ca, *shown)
    first = replica.context

    @run
    async def go() -> None:
        async with listening(tls) as (_, port):
            _, _, writer = await serial(port, replica.context)
            writer.transport.abort()

    go()
    shown[0].write_bytes(b"half")
    assert not replica.reload_if_changed()
    assert replica.context is first
    pair(tmp_path, leaf("router"), "router")
    assert replica.reload_if_changed()
    assert replica.context is not first
    go()


def test_half_a_pair_for_replicas_is_refused(tmp_path: Path) -> None:
    certificate, _ = pair(tmp_path, leaf())
    with pytest.raises(TLSError, match="give both or neither"):
        replica_context(None, certificate, None)


def test_a_token_is_read_and_read_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "token"
    file.write_bytes(b"s3cret-1\n")
    file.chmod(0o600)
    token = Token(file)
    assert token.line == b"authorization: Bearer s3cret-1\r\n"
    assert not token.reload_if_changed()
    file.write_bytes(b"s3cret-22\n")
    assert token.reload_if_changed()
    assert token.line == bearer(file) == b"authorization: Bearer s3cret-22\r\n"
    file.write_bytes(b"a\r\nx-evil: 1")
    assert not token.reload_if_changed()
    assert token.line == b"authorization: Bearer s3cret-22\r\n"
    assert "must hold one token" in caplog.text
    assert "evil" not in caplog.text


@pytest.mark.parametrize("content", [b"", b"\n", b"two words", b"\xff", b"x" * 9000])
def test_a_token_file_that_holds_no_token_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "token"
    file.write_bytes(content)
    with pytest.raises(TLSError, match="token must hold one token"):
        bearer(file)


def test_a_tls_handshake_on_a_plain_port_is_recognised_by_its_first_bytes() -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="x")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    assert looks_like_tls(outgoing.read())
    assert not looks_like_tls(b"GET / HTTP/1.1")


@pytest.fixture(autouse=True)
def _log_level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
