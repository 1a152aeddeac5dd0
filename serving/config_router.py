"""The router's part of ``exaserve.yaml``: the router itself, its pools and its tenants."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Annotated, Literal

from pydantic import Field

from serving.config_base import FilePath, Host, Port, Seconds, Section, Size

Strategy = Literal["hybrid", "least_work", "consistent_hash", "round_robin", "least_requests", "power_of_two"]
#: A name that becomes the value of a label.
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
Tokens = Annotated[int, Field(ge=0, le=2**31)]
Share = Annotated[float, Field(ge=0, le=1)]

#: The only pool where the configuration names none.
DEFAULT_POOL = "default"


class TLS(Section):
    """Towards clients. Files are read again when they change."""

    certificate: FilePath | None = Field(None, description="PEM file with the certificate and its chain")
    key: FilePath | None = Field(None, description="PEM file with its private key")
    client_ca: FilePath | None = Field(
        None, description="PEM file: clients must show a certificate of this CA"
    )


class ReplicaTLS(Section):
    """Towards replicas whose URL is https://."""

    ca: FilePath | None = Field(None, description="PEM file of the CA of replicas; none = the system's")
    certificate: FilePath | None = Field(None, description="PEM file: what the router shows to replicas")
    key: FilePath | None = Field(None, description="PEM file with its private key")


class Retry(Section):
    """Only before the first byte of the answer, on another replica."""

    budget: Share = Field(0.1, description="retries as a share of requests (plus a few)")
    max_attempts: int = Field(2, ge=1, le=5, description="attempts of one request, the first included")
    hedge_after: float | None = Field(
        None,
        gt=0,
        le=3600,
        description="seconds without a first byte after which a second replica is asked too; none = never",
    )


class Admission(Section):
    """Requests that no replica can take now wait, a bounded number for a bounded time."""

    max_waiting: int = Field(256, ge=0, description="requests of a pool that may wait in a worker")
    max_wait: Seconds = Field(5.0, description="a request that waited this long gets 503")


class Ejection(Section):
    """Passive health: what answers show."""

    enabled: bool = True
    error_rate: Share = Field(0.5, description="share of failed answers at which a replica is ejected")
    min_requests: int = Field(10, ge=1, description="answers in the window below which nothing is judged")
    window: Seconds = Field(10.0, description="answers of this many seconds are judged")
    slow_factor: float = Field(
        4.0, gt=1, description="a first token this many times slower than the pool's median ejects"
    )
    duration: Seconds = Field(10.0, description="first ejection; doubles with each further one")
    max_duration: Seconds = Field(120.0, description="longest ejection")
    max_share: Share = Field(0.5, description="share of a pool that may be ejected at once")
    slow_start: float = Field(
        30.0, ge=0, le=3600, description="seconds until a returned replica has its full share"
    )


class Intent(Section):
    """Classifies requests by what they are about."""

    enabled: bool = False
    model: str = Field(
        "default", min_length=1, description="default (medical, legal, general) or a model file"
    )
    threshold: Share = Field(0.7, description="confidence below which the second stage is asked")
    second_stage: bool = Field(True, description="a transformer for what the n-gram model is not sure of")
    time_limit: float = Field(0.008, gt=0, le=10, description="seconds that the second stage may take")


class Audit(Section):
    """One JSON line per request, without prompts."""

    enabled: bool = False
    folder: FilePath | None = Field(None, description="where the files lie; none = $EXASERVE_HOME/audit")
    max_bytes: Size = Field("64M", description="a file this large is rotated")
    keep: int = Field(8, ge=1, le=10_000, description="rotated files that are kept")
    queue: int = Field(10_000, ge=100, le=10_000_000, description="lines held while the disk takes none")


class Tracing(Section):
    """OpenTelemetry."""

    endpoint: str | None = Field(
        None,
        pattern=r"^https?://[^\s]{1,2000}$",
        description="OTLP over HTTP, e.g. http://127.0.0.1:4318/v1/traces; none = no spans",
    )
    sample: Share = Field(0.01, description="share of requests without a sampled parent that are traced")


class Router(Section):
    """The one address in front, and how it judges replicas."""

    host: Host = "127.0.0.1"
    port: Port = 8000
    admin_host: Host = "127.0.0.1"
    admin_port: Port = 8001
    workers: int = Field(1, ge=1, le=64, description="data-plane processes that share the client port")
    unix_socket: FilePath | None = Field(None, description="also listen on this unix socket")
    strategy: Strategy = Field("hybrid", description="which replica gets a request; a pool may have its own")
    health_check_interval: Seconds = Field(
        5.0, description="between two one-token inference probes of a replica"
    )
    probe_timeout: Seconds = Field(5.0, description="a probe without an answer for this long has failed")
    degraded_after: Seconds = Field(2.0, description="a probe slower than this makes the replica degraded")
    silence_timeout: Seconds = Field(
        4.0, description="a replica that sends no byte at all for this long, though asked, is frozen"
    )
    load_interval: Seconds = Field(1.0, description="between two reads of a replica's load")
    max_queue_depth: int = Field(
        32, ge=1, description="requests waiting on a replica above which it gets no new one"
    )
    kv_cache_watermark: float = Field(
        0.85, gt=0, le=1, description="share of KV blocks in use above which a replica gets no new request"
    )
    max_body_bytes: int = Field(16 * 2**20, ge=1024, description="larger request bodies get 413")
    max_header_bytes: int = Field(32 * 2**10, ge=1024, description="larger request heads get 431")
    request_timeout: Seconds = Field(
        10.0, description="a client that sends no further byte of its request for this long gets 408"
    )
    max_connections: int = Field(10_000, ge=1, description="client connections; further ones get 503")
    max_buffered_bytes: Size = Field(
        "1G", description="request bodies that a worker holds at once; further requests get 503"
    )
    send_timeout: Seconds = Field(
        30.0, description="a client that reads nothing of its answer for this long is cut"
    )
    max_request_time: float | None = Field(
        None,
        gt=0,
        le=86400,
        description="seconds for a whole request where the client gives no x-request-timeout; none = no limit",
    )
    drain_timeout: float = Field(
        30.0, ge=0, le=3600, description="seconds that open answers may take after SIGTERM"
    )
    panic: bool = Field(
        True,
        description="when probes and ejections have taken out every replica of a pool, send to those that listen",
    )
    admin_token_file: FilePath | None = Field(
        None, description="file with the bearer token that changes through the admin API need"
    )
    replica_token_file: FilePath | None = Field(
        None, description="file with the bearer token for replicas (their --api-key); replaces the client's"
    )
    tls: TLS = TLS()
    replica_tls: ReplicaTLS = ReplicaTLS()
    retry: Retry = Retry()
    admission: Admission = Admission()
    ejection: Ejection = Ejection()
    intent: Intent = Intent()
    audit: Audit = Audit()
    tracing: Tracing = Tracing()


class Match(Section):
    """All that is given must hold. Nothing given matches everything."""

    min_input_tokens: Tokens | None = None
    max_input_tokens: Tokens | None = None
    min_output_tokens: Tokens | None = None
    max_output_tokens: Tokens | None = None
    intents: list[Name] | None = Field(None, description="the request's intent is one of these")
    tenants: list[Name] | None = Field(None, description="its tenant is one of these")
    headers: dict[Name, str] | None = Field(None, description="header: value, compared as it stands")


class Pool(Section):
    """A kind of requests with its own replicas and limits."""

    match: Match = Match()
    replicas: list[str] | None = Field(
        None, min_length=1, description="names or patterns (replica-[01], big-*); none = all, shared"
    )
    strategy: Strategy | None = Field(None, description="none = router.strategy")
    max_in_flight: int | None = Field(None, ge=1, description="requests of this pool on one replica")
    max_waiting: int | None = Field(None, ge=0, description="none = router.admission.max_waiting")
    max_wait: Seconds | None = Field(None, description="none = router.admission.max_wait")
    priority: int = Field(0, ge=0, le=9, description="0 is served first where pools share replicas")
    fallback: Name | None = Field(None, description="pool that takes what this one can't")

    def takes(self, replica: str) -> bool:
        """Whether the replica of that name is a member."""
        return self.replicas is None or any(fnmatchcase(replica, pattern) for pattern in self.replicas)


class Tenants(Section):
    """Who may ask, and how much."""

    file: FilePath | None = Field(
        None, description="tenants file with hashed API keys; none = no keys are asked for"
    )
