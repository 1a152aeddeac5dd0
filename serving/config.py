"""``exaserve.yaml``: its keys, their ranges, and errors that name the key, the line and the cure.

The whole file is validated before anything starts. A key that is known but not built yet is refused with
the value that works today; an unknown key is refused with the nearest known one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from serving import yamlfile
from serving.config_errors import ConfigError, Places, word
from serving.yamlfile import KeyPath

Seconds = Annotated[float, Field(gt=0, le=3600, description="seconds")]
Port = Annotated[int, Field(ge=1, le=65535)]
Host = Annotated[str, Field(pattern=r"^[0-9A-Za-z.:_-]{1,255}$", description="address to listen on")]


class Section(BaseModel):
    # Strict: YAML already has types, and `port: yes` must not become port 1.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Model(Section):
    """The model that every replica serves."""

    name: str = Field(
        "smollm2-135m",
        pattern=r"^[^\s\x00-\x1f\x7f]{1,200}$",
        description="name that clients ask for, without blanks",
    )
    path: str = Field(
        "default",
        min_length=1,
        description="a folder that vLLM loads, or `default`: SmolLM2-135M-Instruct, prepared locally",
    )
    precision: Literal["auto", "bfloat16", "float16", "float32"] = Field(
        "auto",
        description="of weights and KV cache; auto: on CPU bfloat16 where it multiplies that fast, else float32; "
        "on GPU what the model was saved in",
    )
    max_model_len: int = Field(1024, ge=16, description="tokens of prompt and answer together")


class Engine(Section):
    """How one replica is started."""

    kind: Literal["vllm", "simulated"] = "vllm"
    tensor_parallel_size: int = Field(1, ge=1)
    pipeline_parallel_size: int = Field(1, ge=1)
    kv_cache_memory: str = Field(
        "256M",
        pattern=r"^[1-9][0-9]*[kKmMgGtT]?$",
        description="bytes of one replica's KV cache, like 256M or 4G",
    )
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
    host: Host = "127.0.0.1"
    first_port: Port = Field(8100, description="port of replica-0; the others follow it")
    start_timeout: Seconds = Field(
        900.0, description="a replica that is not ready this long after its start is killed and restarted"
    )
    restart_backoff: Seconds = Field(1.0, description="first pause before a restart; doubles up to 60 s")
    restart_frozen_after: Seconds = Field(
        60.0,
        description="a part that stays frozen, or a replica that stays down, this long is killed and restarted",
    )


class Router(Section):
    """The one address in front, and how it judges replicas."""

    host: Host = "127.0.0.1"
    port: Port = 8000
    admin_host: Host = "127.0.0.1"
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
    host: Host = "127.0.0.1"
    port: Port = 9420


class Monitoring(Section):
    enabled: bool = True
    prometheus_port: Port = 9090
    alertmanager_port: Port = 9093
    scrape_interval: Seconds = 5.0


class Config(Section):
    """The whole file."""

    model: Model = Model()
    engine: Engine = Engine()
    fleet: Fleet = Fleet()
    router: Router = Router()
    network: Network = Network()
    exporter: Exporter = Exporter()
    monitoring: Monitoring = Monitoring()


#: Engine arguments that ExaServe sets itself from other keys; giving them twice would hide one of the two.
_OWN_ARGS = {
    "--host": "fleet.host",
    "--port": "fleet.first_port",
    "--model": "model.path",
    "--served-model-name": "model.name",
    "--dtype": "model.precision",
    "--max-model-len": "model.max_model_len",
    "--tensor-parallel-size": "engine.tensor_parallel_size",
    "--pipeline-parallel-size": "engine.pipeline_parallel_size",
    "--kv-cache-memory-bytes": "engine.kv_cache_memory",
    "--max-num-seqs": "engine.max_num_seqs",
    "--max-num-batched-tokens": "engine.max_num_batched_tokens",
}


def load(path: Path | None = None, options: Mapping[str, tuple[object, str]] | None = None) -> Config:
    """The configuration, checked whole.

    path: the file; None for ``./exaserve.yaml`` if it is there, else the defaults.
    options: values that the command line sets over the file: key (``router.port``) -> value and the option's
    name, which errors then give as the place.
    A relative ``model.path`` is taken from the file's folder and comes back absolute.
    Raises ConfigError with every error found: ``exaserve.yaml:12: router.port: must be …; cure``.
    """
    if path is None and Path("exaserve.yaml").is_file():
        path = Path("exaserve.yaml")
    source = str(path) if path else "defaults"
    data, lines = _read(path, source) if path else ({}, {})
    set_by: dict[KeyPath, str] = {}
    for key, (value, option) in (options or {}).items():
        section, _, name = key.partition(".")
        data.setdefault(section, {})
        if isinstance(data[section], dict):
            data[section][name] = value
        set_by[(section, name)] = option
    places = Places(source, lines, set_by)
    try:
        config = Config.model_validate(data)
    except ValidationError as error:
        found = sorted(error.errors(), key=lambda e: places.line(e["loc"]))
        raise ConfigError(word(e, Config, places) for e in found) from None
    errors = [f"{places.of(tuple(key.split('.')))}: {key}: {problem}" for key, problem in _conflicts(config)]
    if errors:
        raise ConfigError(errors)
    if config.model.path == "default":
        return config
    folder = (path.parent if path else Path()) / Path(config.model.path).expanduser()
    model = config.model.model_copy(update={"path": str(folder.absolute())})
    return config.model_copy(update={"model": model})


def ports(config: Config) -> dict[str, int]:
    """Every port that the stack listens on, by the key that sets it (``fleet.first_port`` + i for replicas)."""
    taken = {"router.port": config.router.port, "router.admin_port": config.router.admin_port}
    taken["exporter.port"] = config.exporter.port
    if config.monitoring.enabled:
        taken["monitoring.prometheus_port"] = config.monitoring.prometheus_port
        taken["monitoring.alertmanager_port"] = config.monitoring.alertmanager_port
    for i in range(config.fleet.replicas_per_node):
        taken["fleet.first_port" + (f" + {i}" if i else "")] = config.fleet.first_port + i
    return taken


def to_schema() -> dict[str, Any]:
    """JSON schema of the file, for editors and for those who write it with a program."""
    return Config.model_json_schema()


def _read(path: Path, source: str) -> tuple[dict[str, Any], dict[KeyPath, int]]:
    try:
        data, lines = yamlfile.read(path)
    except OSError as error:
        raise ConfigError([f"{source}: can't be read: {error.strerror}"]) from None
    except yamlfile.YamlError as error:
        where = f"{source}:{error.line}" if error.line else source
        raise ConfigError([f"{where}: {error}"]) from None
    if data is None:
        return {}, {}
    if not isinstance(data, dict):
        raise ConfigError([f"{source}:1: must be sections (router:, fleet: …), not a {type(data).__name__}"])
    # A section whose keys are all commented out reads as null; it means the defaults.
    return {
        key: {} if value is None and key in Config.model_fields else value for key, value in data.items()
    }, lines


def _conflicts(config: Config) -> Iterator[tuple[str, str]]:
    """Keys that are well by themselves and not together: key and what to do."""
    used: dict[int, str] = {}
    for name, port in ports(config).items():
        key = name.partition(" ")[0]
        if port > 65535:
            last = 65535 - config.fleet.replicas_per_node + 1
            yield key, f"{config.fleet.replicas_per_node} replicas from here pass port 65535; at most {last}"
            break
        if port in used:
            yield key, f"port {port} is also that of {used[port]}; give one of them another"
        used.setdefault(port, name)
    router, engine = config.router, config.engine
    if router.degraded_after >= router.probe_timeout:
        yield "router.degraded_after", f"must be below router.probe_timeout ({router.probe_timeout:g} s)"
    if router.silence_timeout >= 2 * router.health_check_interval:
        yield (
            "router.silence_timeout",
            f"must be below two health_check_intervals ({2 * router.health_check_interval:g} s); "
            "a frozen replica is out of rotation within that",
        )
    if config.fleet.restart_frozen_after <= router.silence_timeout:
        yield (
            "fleet.restart_frozen_after",
            f"must be above router.silence_timeout ({router.silence_timeout:g} s), which decides what is frozen",
        )
    if engine.max_num_batched_tokens < engine.max_num_seqs:
        yield (
            "engine.max_num_batched_tokens",
            f"must be at least engine.max_num_seqs ({engine.max_num_seqs}): each sequence takes one token a step",
        )
    for arg in engine.args:
        name = arg.partition("=")[0].replace("_", "-")
        if name in _OWN_ARGS:
            yield "engine.args", f"{name} is set by {_OWN_ARGS[name]}; set it there"
