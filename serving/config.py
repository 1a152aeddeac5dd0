"""``exaserve.yaml``: its keys, their ranges, and errors that name the key, the line and the cure.

The whole file is validated before anything starts. A key that is known but not built yet is refused with
the value that works today; an unknown key is refused with the nearest known one.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Seconds = Annotated[float, Field(gt=0, le=3600, description="seconds")]
Port = Annotated[int, Field(ge=1, le=65535)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Model(Section):
    """The model that every replica serves."""

    name: str = Field("smollm2-135m", min_length=1, description="name that clients ask for")
    path: str = Field(
        "default",
        description="a folder that vLLM loads, or `default`: SmolLM2-135M-Instruct, prepared locally",
    )
    precision: Literal["auto", "bfloat16", "float16", "float32"] = "bfloat16"
    max_model_len: int = Field(1024, ge=16, description="tokens of prompt and answer together")


class Engine(Section):
    """How one replica is started."""

    kind: Literal["vllm", "simulated"] = "vllm"
    tensor_parallel_size: int = Field(1, ge=1)
    pipeline_parallel_size: int = Field(1, ge=1)
    kv_cache_memory: str = Field("256M", description="KV cache of one replica (vLLM --kv-cache-memory-bytes)")
    max_num_seqs: int = Field(16, ge=1, description="requests in one batch")
    max_num_batched_tokens: int = Field(
        256,
        ge=16,
        description="tokens of one engine step; small keeps a long prompt from stalling other streams",
    )
    args: list[str] = Field(default_factory=list, description="further vLLM arguments, as they are")
    env: dict[str, str] = Field(default_factory=dict, description="further environment of the replica")


class Fleet(Section):
    """Where replicas run."""

    replicas_per_node: int = Field(2, ge=1, le=256)
    launcher: Literal["local"] = "local"
    host: str = "127.0.0.1"
    first_port: Port = 8100
    restart_backoff: Seconds = Field(1.0, description="first pause before a restart; doubles up to 60 s")
    restart_frozen_after: Seconds = Field(
        60.0, description="a replica that stays frozen this long is killed and restarted"
    )


class Router(Section):
    """The one address in front, and how it judges replicas."""

    host: str = "127.0.0.1"
    port: Port = 8000
    admin_host: str = "127.0.0.1"
    admin_port: Port = 8001
    strategy: Literal["least_work"] = "least_work"
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


class Network(Section):
    """NCCL between the GPUs of one replica; handed to the engine's environment."""

    nccl_socket_ifname: str | None = Field(None, description="interface for NCCL's bootstrap, e.g. ib0")
    nccl_ib_hca: str | None = Field(None, description="HCAs that NCCL uses, e.g. mlx5_0,mlx5_1")


class Exporter(Section):
    host: str = "127.0.0.1"
    port: Port = 9420


class Monitoring(Section):
    enabled: bool = True
    prometheus_port: Port = 9090
    alertmanager_port: Port = 9093
    scrape_interval: Seconds = 5.0


class Config(Section):
    """The whole file."""

    model: Model = Field(default_factory=Model)
    engine: Engine = Field(default_factory=Engine)
    fleet: Fleet = Field(default_factory=Fleet)
    router: Router = Field(default_factory=Router)
    network: Network = Field(default_factory=Network)
    exporter: Exporter = Field(default_factory=Exporter)
    monitoring: Monitoring = Field(default_factory=Monitoring)
