"""``exaserve.yaml``: its keys, their ranges, and errors that name the key, the line and the cure.

The whole file is validated before anything starts. A key that is known but not built yet is refused with
the value that works today; an unknown key is refused with the nearest known one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import BaseModel, Field, ValidationError, field_validator

from dashboards import slo
from exporters import config as exporter_config
from exporters.config import Exporter
from serving import yamlfile
from serving.config_base import FilePath, Host, HostPort, Port, Seconds, Section
from serving.config_errors import ConfigError, Places, word
from serving.config_router import DEFAULT_POOL, Match, Name, Pool, Router, Tenants
from serving.yamlfile import KeyPath


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
    cache: FilePath | None = Field(
        None,
        description="folder on a local disk that the model is copied to before a replica starts; for a model.path "
        "on shared storage",
    )


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
    first_port: Port = Field(8100, description="port of the first replica here; the others follow it")
    first_replica: int = Field(
        0, ge=0, le=999_999, description="number of the first replica here; a fleet's names are all different"
    )
    replicas_file: FilePath | None = Field(
        None, description="file that lists the fleet's replicas, for a router whose replicas run elsewhere"
    )
    router: str | None = Field(
        None,
        pattern=r"^https?://[^\s/]{1,255}/?$",
        description="admin API of the router, where that runs on another machine",
    )
    start_timeout: Seconds = Field(
        900.0, description="a replica that is not ready this long after its start is killed and restarted"
    )
    restart_backoff: Seconds = Field(1.0, description="first pause before a restart; doubles up to 60 s")
    restart_frozen_after: Seconds = Field(
        60.0,
        description="a part that stays frozen, or a replica that stays down, this long is killed and restarted",
    )


class Network(Section):
    """NCCL between the GPUs of one replica; handed to the engine's environment."""

    nccl_socket_ifname: str | None = Field(None, description="interface for NCCL's bootstrap, e.g. ib0")
    nccl_ib_hca: str | None = Field(None, description="HCAs that NCCL uses, e.g. mlx5_0,mlx5_1")


class Monitoring(Section):
    enabled: bool = True
    prometheus_port: Port = 9090
    alertmanager_port: Port = 9093
    scrape_interval: Seconds = 5.0
    exporters: list[HostPort] = Field(
        default_factory=list, max_length=4096, description="host:port of the exporters of other machines"
    )
    alertmanager_config: FilePath | None = Field(
        None, description="alertmanager.yml that says who is told of alerts; none = they are shown only"
    )


class Config(Section):
    """The whole file."""

    model: Model = Model()
    engine: Engine = Engine()
    fleet: Fleet = Fleet()
    router: Router = Router()
    pools: dict[Name, Pool] = Field(
        default_factory=dict,
        description="in order: the first that matches takes the request; none = one pool",
    )
    tenants: Tenants = Tenants()
    network: Network = Network()
    exporter: Exporter = Exporter()
    monitoring: Monitoring = Monitoring()
    slos: slo.Slos = Field(slo.DEFAULT, description="service levels; those given are all there are")

    @field_validator("slos")
    @classmethod
    def _none_means_the_defaults(cls, slos: slo.Slos) -> slo.Slos:
        return slos or slo.DEFAULT


#: What of the stack can run on a machine of its own (``exaserve up --parts``).
PARTS = ("replicas", "router", "exporter", "monitoring")

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
    options: values that the command line sets over the file: key (``router.port``, ``router.retry.budget``) -> value
    and the option's name, which errors then give as the place.
    A relative ``model.path`` is taken from the file's folder and comes back absolute.
    Raises ConfigError with every error found: ``exaserve.yaml:12: router.port: must be …; cure``.
    """
    if path is None and Path("exaserve.yaml").is_file():
        path = Path("exaserve.yaml")
    source = str(path) if path else "defaults"
    data, lines = _read(path, source) if path else ({}, {})
    set_by: dict[KeyPath, str] = {}
    for key, (value, option) in (options or {}).items():
        *sections, last = key.split(".")
        place: Any = data
        for depth, section in enumerate(sections):
            if place.get(section) is None:
                place[section] = {}
            place = place[section]
            if not isinstance(place, dict):
                if depth:
                    raise ConfigError([f"{option}: {key}: {'.'.join(sections[: depth + 1])} has no keys"])
                break  # the file has something else than a section there; the check below says so
        else:
            place[last] = value
        set_by[(*sections, last)] = option
    places = Places(source, lines, set_by)
    try:
        config = Config.model_validate(data)
    except ValidationError as error:
        found = sorted(error.errors(), key=lambda e: places.line(e["loc"]))
        raise ConfigError(word(e, Config, places) for e in found) from None
    errors = [f"{places.of(tuple(key.split('.')))}: {key}: {problem}" for key, problem in _conflicts(config)]
    if errors:
        raise ConfigError(errors)
    return _with_absolute_paths(config, path.parent if path else Path())


#: Keys whose value is a path, and the words that are none.
_PATHS = {
    "model.path": "default",
    "model.cache": None,
    "fleet.replicas_file": None,
    "router.unix_socket": None,
    "router.admin_token_file": None,
    "router.replica_token_file": None,
    "router.tls.certificate": None,
    "router.tls.key": None,
    "router.tls.client_ca": None,
    "router.replica_tls.ca": None,
    "router.replica_tls.certificate": None,
    "router.replica_tls.key": None,
    "router.intent.model": "default",
    "router.audit.folder": None,
    "tenants.file": None,
    "monitoring.alertmanager_config": None,
    **{f"exporter.{key}": None for key in exporter_config.PATHS},
}


def _with_absolute_paths(config: Config, folder: Path) -> Config:
    for key, word_for_none in _PATHS.items():
        sections: list[BaseModel] = [config]
        *names, last = key.split(".")
        for name in names:
            sections.append(getattr(sections[-1], name))
        value = getattr(sections[-1], last)
        if value in (None, word_for_none):
            continue
        changed: BaseModel = sections[-1].model_copy(
            update={last: str((folder / Path(value).expanduser()).absolute())}
        )
        for section, name in zip(reversed(sections[:-1]), reversed(names), strict=True):
            changed = section.model_copy(update={name: changed})
        config = cast(Config, changed)
    return config


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
    yield from _pool_conflicts(config)
    for section, parts in (("router.tls", router.tls), ("router.replica_tls", router.replica_tls)):
        if (parts.certificate is None) != (parts.key is None):
            missing = "key" if parts.key is None else "certificate"
            yield f"{section}.{missing}", "must be given too: a certificate and its key come together"
    if router.tls.client_ca is not None and router.tls.certificate is None:
        yield "router.tls.client_ca", "needs router.tls.certificate and router.tls.key"
    for key, problem in exporter_config.problems(config.exporter):
        yield f"exporter.{key}", problem
    for key, problem in slo.problems(config.slos, list(config.pools) or [DEFAULT_POOL]):
        yield f"slos.{key}", problem
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


def _pool_conflicts(config: Config) -> Iterator[tuple[str, str]]:
    names = list(config.pools)
    for i, (name, pool) in enumerate(config.pools.items()):
        key = f"pools.{name}"
        if pool.match == Match() and i < len(names) - 1:
            yield (
                f"{key}.match",
                f"matches everything, so {', '.join(names[i + 1 :])} would get nothing; put it last",
            )
        if pool.match != Match() and i == len(names) - 1:
            yield f"{key}.match", "the last pool takes what no other matches: it must be without match"
        if pool.match.intents and not config.router.intent.enabled:
            yield f"{key}.match.intents", "needs router.intent.enabled: true"
        if pool.match.tenants and config.tenants.file is None:
            yield f"{key}.match.tenants", "needs tenants.file"
        for what in ("input", "output"):
            least = getattr(pool.match, f"min_{what}_tokens")
            most = getattr(pool.match, f"max_{what}_tokens")
            if least is not None and most is not None and least > most:
                yield f"{key}.match.min_{what}_tokens", f"must be at most max_{what}_tokens ({most})"
        if pool.fallback is not None:
            if pool.fallback not in config.pools:
                yield f"{key}.fallback", f"no pool {pool.fallback}; pools: {', '.join(names)}"
            elif pool.fallback == name:
                yield f"{key}.fallback", "must be another pool"
            elif config.pools[pool.fallback].fallback is not None:
                yield f"{key}.fallback", f"{pool.fallback} has a fallback of its own; only one step is taken"
