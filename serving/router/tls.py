"""Certificates, keys and tokens from files: towards clients and towards replicas, read again when they change.

A new file is tried before it is used; one that is no good leaves the old one in force and says what is wrong.
Connections that are open keep what they began with. Accepting TLS connections is tls_listener.py's work.
"""

from __future__ import annotations

import base64
import binascii
import logging
import os
import re
import ssl
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ALPN = ["http/1.1"]
MAX_TOKEN_BYTES = 8192

log = logging.getLogger("exaserve.tls")

_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----(.+?)-----END CERTIFICATE-----", re.S)
_TOKEN = re.compile(rb"[!-~]+")


class TLSError(ValueError):
    """A certificate, key, CA or token file can't be used; the text names the file and says why."""


class _Files:
    """What makes files look changed: a rename over them, a new link, a write."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = paths
        self.seen = self._look()

    def _look(self) -> list[tuple[int, int, int] | None]:
        looks: list[tuple[int, int, int] | None] = []
        for path in self.paths:
            try:
                s = path.stat()
                looks.append((s.st_ino, s.st_mtime_ns, s.st_size))
            except OSError:
                looks.append(None)
        return looks

    def changed(self) -> bool:
        before, self.seen = self.seen, self._look()
        return before != self.seen


class ServerTLS:
    """The router's own certificate, and the CA of its clients if they have to show one.

    context: for ``connect_accepted_socket`` or ``create_server``; it stays the same object over reloads and hands
    each new connection to the newest certificate. not_after: Unix time at which the first certificate of the file
    expires. Raises TLSError.
    """

    def __init__(self, certificate: Path, key: Path, client_ca: Path | None = None) -> None:
        self.certificate = certificate
        self.key = key
        self.client_ca = client_ca
        self._files = _Files([p for p in (certificate, key, client_ca) if p is not None])
        # A context can take another certificate, but keeps the one it had if that has another type of key, and
        # all CAs that it ever had. So each load makes a context, and the first one passes connections on.
        self._current, self.not_before, self.not_after = self._load()
        self.context = self._current
        self.context.sni_callback = self._pass_on
        if not self._valid_now():
            log.warning("%s is not valid now: %s", certificate, self._validity())

    def reload_if_changed(self) -> bool:
        """Whether new files are in force now. Never raises: bad ones are logged once and the old ones stay."""
        if not self._files.changed():
            return False
        old = (self._current, self.not_before, self.not_after)
        old_valid = self._valid_now()
        try:
            self._current, self.not_before, self.not_after = self._load()
            if old_valid and not self._valid_now():
                raise TLSError(f"{self.certificate} is not valid now: {self._validity()}")
        except TLSError as e:
            self._current, self.not_before, self.not_after = old
            log.error("the certificate was not reloaded, the old one stays in force: %s", e)
            return False
        log.info("%s reloaded: %s", self.certificate, self._validity())
        return True

    def _load(self) -> tuple[ssl.SSLContext, float, float]:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
        context.set_alpn_protocols(ALPN)
        _load_pair(context, self.certificate, self.key)
        if self.client_ca is not None:
            _load_ca(context, self.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
            # A resumed session is not verified again: it would outlive a CA that was taken away.
            context.options |= ssl.OP_NO_TICKET
            context.num_tickets = 0
        dates = [validity(der) for der in _certificates(self.certificate)]
        return context, max(d[0] for d in dates), min(d[1] for d in dates)

    def _pass_on(self, connection: Any, _name: str | None, _context: ssl.SSLContext) -> None:
        """OpenSSL calls it in every handshake, whether or not the client names a server."""
        connection.context = self._current

    def _valid_now(self) -> bool:
        return self.not_before <= time.time() < self.not_after

    def _validity(self) -> str:
        return f"valid from {_date(self.not_before)} until {_date(self.not_after)}"


class ReplicaTLS:
    """What the router shows to replicas and asks of them. ``context`` is another object after a reload."""

    def __init__(self, ca: Path | None, certificate: Path | None, key: Path | None) -> None:
        self._args = (ca, certificate, key)
        self._files = _Files([p for p in self._args if p is not None])
        self.context = replica_context(*self._args)

    def reload_if_changed(self) -> bool:
        """As ServerTLS's."""
        if not self._files.changed():
            return False
        try:
            self.context = replica_context(*self._args)
        except TLSError as e:
            log.error("router.replica_tls was not reloaded, the old files stay in force: %s", e)
            return False
        return True


def replica_context(ca: Path | None, certificate: Path | None, key: Path | None) -> ssl.SSLContext:
    """A context for connections to replicas: their certificate and its name are checked.

    ca: whom to trust; None = whom the system trusts. certificate, key: for mutual TLS, both or neither.
    Raises TLSError.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(ALPN)
    if ca is not None:
        _load_ca(context, ca)
    else:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    if (certificate is None) != (key is None):
        raise TLSError("router.replica_tls: certificate and key belong together; give both or neither")
    if certificate is not None and key is not None:
        _load_pair(context, certificate, key)
    return context


class Token:
    """A bearer token from a file. ``line``: the header line for it, with CR LF."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._files = _Files([file])
        self.line = bearer(file)

    def reload_if_changed(self) -> bool:
        """As ServerTLS's."""
        if not self._files.changed():
            return False
        try:
            self.line = bearer(self.file)
        except TLSError as e:
            log.error("router.replica_token_file was not reloaded, the old token stays in force: %s", e)
            return False
        return True


def bearer(token_file: Path) -> bytes:
    """``authorization: Bearer …`` and CR LF. Raises TLSError, which never quotes the token."""
    _warn_if_readable(token_file)
    token = _read(token_file).strip()
    if not _TOKEN.fullmatch(token) or len(token) > MAX_TOKEN_BYTES:
        raise TLSError(
            f"{token_file} must hold one token of printable ASCII without blanks, up to {MAX_TOKEN_BYTES} bytes"
        )
    return b"authorization: Bearer %s\r\n" % token


def looks_like_tls(data: bytes) -> bool:
    """Whether a connection's first bytes are a TLS handshake (record type 22, version 3.x)."""
    return data[:2] == b"\x16\x03"


def words(error: BaseException) -> str:
    """What went wrong with a TLS connection, in words for logs and ``replica.reason``."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is refused: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        if error.reason == "WRONG_VERSION_NUMBER":
            return "it does not speak TLS (http:// where https:// was meant?)"
        reason = (error.reason or str(error)).replace("_", " ").lower()
        return f"TLS failed: {reason}"
    return str(error) or type(error).__name__


def validity(der: bytes) -> tuple[float, float]:
    """(notBefore, notAfter) of a certificate as Unix times (RFC 5280 4.1).

    The ssl module tells them only of a peer's certificate, and a package to read one field is a lot.
    """
    tbs = _inside(_inside(der, 0)[0], 0)[0]
    fields: list[bytes] = []
    at = 0
    while at < len(tbs) and len(fields) < 6:
        content, after = _inside(tbs, at)
        if tbs[at] != 0xA0:  # [0], the version, is optional
            fields.append(content)
        at = after
    dates = fields[3]  # serial, algorithm, issuer, validity
    first, after = _inside(dates, 0)
    second, _ = _inside(dates, after)
    return _time(first), _time(second)


def _inside(der: bytes, at: int) -> tuple[bytes, int]:
    """The content of the element at ``at``, and where the next one begins."""
    length, at = der[at + 1], at + 2
    if length & 0x80:
        count = length & 0x7F
        length, at = int.from_bytes(der[at : at + count], "big"), at + count
    return der[at : at + length], at + length


def _time(text: bytes) -> float:
    """UTCTime (two digits of a year from 1950 to 2049) or GeneralizedTime."""
    digits = text.decode().rstrip("Z")
    if len(digits) == 12:
        digits = ("19" if digits >= "50" else "20") + digits
    return datetime.strptime(digits, "%Y%m%d%H%M%S").replace(tzinfo=UTC).timestamp()


def _date(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _certificates(path: Path) -> list[bytes]:
    content = _read(path)
    try:
        found = [base64.b64decode(m) for m in _PEM.findall(content)]
        for der in found:
            validity(der)
    except (binascii.Error, ValueError, IndexError):
        raise TLSError(f"{path} holds a certificate that can't be read") from None
    if not found:
        raise TLSError(f"{path} holds no certificate in PEM form")
    return found


def _load_pair(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    _certificates(certificate)
    _read(key)
    _warn_if_readable(key)
    try:
        # The password is asked for only if the key is encrypted; without this, on the terminal.
        context.load_cert_chain(certificate, key, password=_no_password)
    except _EncryptedError:
        raise TLSError(f"{key} is encrypted; give it without a passphrase") from None
    except ssl.SSLError as e:
        if e.reason == "KEY_VALUES_MISMATCH":
            raise TLSError(f"{key} is not the key of {certificate}") from None
        raise TLSError(
            f"{certificate} with {key}: {(e.reason or str(e)).replace('_', ' ').lower()}"
        ) from None


class _EncryptedError(Exception):
    pass


def _no_password() -> bytes:
    raise _EncryptedError


def _load_ca(context: ssl.SSLContext, ca: Path) -> None:
    _certificates(ca)
    try:
        context.load_verify_locations(ca)
    except ssl.SSLError as e:
        raise TLSError(f"{ca}: {(e.reason or str(e)).replace('_', ' ').lower()}") from None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as e:
        raise TLSError(f"{path}: {e.strerror}") from None


def _warn_if_readable(path: Path) -> None:
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return  # reading it says why
    if mode & 0o044:
        log.warning("%s can be read by others than its owner (mode %o); chmod 600 it", path, mode & 0o777)
