"""Who is asking: API keys and the tenants they belong to, taken over from the tenants file while running.

The file itself is ``tenants_file.py``; what a tenant may use is ``limits.py``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from serving.config_errors import ConfigError
from serving.router import tenants_file
from serving.router.limits import Budget, Grant, Refusal, Report
from serving.router.tenants_file import Price, TenantEntry, TenantsFile

#: Longer keys are not looked at: hashing 32 KiB of header for a stranger costs more than the whole request.
MAX_KEY_BYTES = 512
_sha256 = hashlib.sha256


class Tenant:
    """One tenant. The object stays the same over reloads for as long as the file has the name.

    priority: 0 is served first; None: the pool's. pools: those it may use; None: all. budget: its limits.
    """

    __slots__ = ("budget", "name", "pools", "priority")

    def __init__(self, entry: TenantEntry, share: float) -> None:
        self.name = entry.name
        self.priority = entry.priority
        self.pools = None if entry.pools is None else frozenset(entry.pools)
        self.budget = Budget(
            entry.name, entry.requests_per_minute, entry.tokens_per_minute, entry.max_in_flight,
            entry.max_tokens, share=share,
        )  # fmt: skip

    def change(self, entry: TenantEntry, now: float) -> None:
        self.priority = entry.priority
        self.pools = None if entry.pools is None else frozenset(entry.pools)
        self.budget.change(
            entry.requests_per_minute, entry.tokens_per_minute, entry.max_in_flight, entry.max_tokens, now
        )


class Tenants:
    """All tenants, by name and by key. Not for several threads, except ``read``.

    ``required``: whether a key must be shown; without a tenants file none is, and there are no tenants.
    ``share``: the part of every limit that this worker starts with (1 / workers).
    """

    def __init__(self, path: Path | None = None, share: float = 1.0) -> None:
        self.path = path
        self.share = share
        self.required = path is not None
        self.by_name: dict[str, Tenant] = {}
        self.prices: Mapping[str, Price] = {}
        self._by_digest: dict[bytes, Tenant] = {}
        self._version: tuple[int, int, int] | None = None

    @classmethod
    def load(cls, path: Path | None, share: float = 1.0) -> Tenants:
        """From a file; None: no keys are asked for. Raises ConfigError with every error of the file."""
        tenants = cls(path, share)
        if path is not None:
            tenants.take(*tenants.read(), now=0.0)
        return tenants

    # --- the hot path ---

    def authenticate(self, authorization: bytes | None, x_api_key: bytes | None) -> Tenant | Refusal | None:
        """The tenant of the key in ``Authorization: Bearer …`` or, without that header, ``x-api-key``.

        None where no keys are asked for. A Refusal is a 401.
        """
        if not self.required:
            return None
        if authorization is not None:
            if authorization[:7] != b"Bearer " and authorization[:7].lower() != b"bearer ":
                return _refusal("the Authorization header must be: Bearer, a blank, the API key", b"")
            key = authorization[7:].strip()
        elif x_api_key is not None:
            key = x_api_key.strip()
        else:
            key = b""
        if not key:
            return _refusal("an API key is needed here: Authorization: Bearer, a blank, the key", b"")
        # Found by digest, so that how long it takes says nothing about the keys: who guesses chooses the key and
        # not its SHA-256, and learns nothing usable from how far two digests agree. A compare in constant time
        # with each of the digests would be no safer, and slower with each tenant. No key is kept in memory.
        if len(key) <= MAX_KEY_BYTES:
            tenant = self._by_digest.get(_sha256(key).digest())
            if tenant is not None:
                return tenant
        return _refusal("the API key is not known here", b', error="invalid_token"')

    # --- reload ---

    def changed(self) -> bool:
        """Whether the file was written since it was read last (one stat; not on the hot path)."""
        return self.path is not None and tenants_file.version(self.path) != self._version

    def read(self) -> tuple[TenantsFile, tuple[int, int, int] | None]:
        """The file as it is now, for ``take``. Any thread. Raises ConfigError."""
        if self.path is None:
            return TenantsFile(), None
        version = tenants_file.version(self.path)
        return tenants_file.read(self.path), version

    def take(self, file: TenantsFile, version: tuple[int, int, int] | None, now: float) -> None:
        """Use it from now on. What tenants have spent and have open stays counted.

        A tenant that is gone keeps what it has open and gets nothing new.
        """
        by_name: dict[str, Tenant] = {}
        by_digest: dict[bytes, Tenant] = {}
        for entry in file.tenants:
            tenant = self.by_name.get(entry.name)
            if tenant is None:
                tenant = Tenant(entry, self.share)
            else:
                tenant.change(entry, now)
            by_name[entry.name] = tenant
            for digest in entry.keys:
                by_digest[bytes.fromhex(digest)] = tenant
        self.by_name, self._by_digest, self.prices = by_name, by_digest, file.prices
        self._version = version

    def reload(self, now: float) -> list[str]:
        """Read and take the file, in one go. Errors (the old tenants stay then), or nothing.

        A file that is refused is not read again before it changes.
        """
        version = None if self.path is None else tenants_file.version(self.path)
        try:
            self.take(*self.read(), now=now)
        except ConfigError as error:
            self._version = version
            return error.errors
        return []

    def warnings(self) -> list[str]:
        """What is unwise about the file's permissions."""
        return [] if self.path is None else tenants_file.warnings(self.path)

    # --- between workers ---

    def report(self, now: float) -> dict[str, Report]:
        """How each tenant with a limit stands here, for the master's ``limits.balance``."""
        return {name: t.budget.report(now) for name, t in self.by_name.items() if _limited(t.budget)}

    def grant(self, grants: Mapping[str, Grant]) -> None:
        """What the master answered. Tenants that are not known (any more) are passed over."""
        for name, grant in grants.items():
            tenant = self.by_name.get(name)
            if tenant is not None:
                tenant.budget.grant(grant)


def digest(key: str) -> str:
    """What stands in the file for an API key. Keys are long and random, so a plain hash gives nothing away."""
    return _sha256(key.encode()).hexdigest()


def unknown_pools(file: TenantsFile, pools: Iterable[str]) -> list[str]:
    """Errors for pools that tenants name and the configuration has not."""
    known = set(pools)
    return [
        f"tenants.{i}.pools: {tenant.name} may use {pool}, which is no pool; pools: {', '.join(sorted(known))}"
        for i, tenant in enumerate(file.tenants)
        for pool in tenant.pools or ()
        if pool not in known
    ]


def _limited(budget: Budget) -> bool:
    return (budget.requests_per_minute, budget.tokens_per_minute, budget.max_in_flight) != (None, None, None)


def _refusal(message: str, detail: bytes) -> Refusal:
    return Refusal(
        401, "unauthorized", "invalid_request_error", "invalid_api_key", message, None,
        b'www-authenticate: Bearer realm="exaserve"' + detail + b"\r\n",
    )  # fmt: skip
