"""How replicas are reached: a bearer token, TLS; both from files that are read again when they change."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from pathlib import Path

from serving.config_router import Router
from serving.fleet.replica import Replica
from serving.router.tls import ReplicaTLS, Token


def files_of(settings: Router) -> tuple[object, ...]:
    """Which files it takes; with others in the configuration a new Access is due."""
    return (settings.replica_token_file, settings.replica_tls)


class Access:
    """header: the line with the token, with its CRLF, or nothing. Raises TLSError if a file can't be used."""

    def __init__(self, settings: Router, replicas: Sequence[Replica]) -> None:
        self.files = files_of(settings)
        self.header = b""
        self._token: Token | None = None
        self._tls: ReplicaTLS | None = None
        if settings.replica_token_file is not None:
            self._token = Token(Path(settings.replica_token_file))
            self.header = self._token.line
        tls = settings.replica_tls
        if any(r.scheme == "https" for r in replicas) or tls.ca is not None:
            ca, certificate, key = (
                None if p is None else Path(p) for p in (tls.ca, tls.certificate, tls.key)
            )
            self._tls = ReplicaTLS(ca, certificate, key)

    @property
    def tls(self) -> ssl.SSLContext | None:
        """For the next connection: it follows its files. None: the system's CAs."""
        return self._tls.context if self._tls is not None else None

    def reload(self) -> bool:
        """The files may have changed. Whether ``header`` has."""
        if self._tls is not None:
            self._tls.reload_if_changed()
        if self._token is None or not self._token.reload_if_changed():
            return False
        self.header = self._token.line
        return True
