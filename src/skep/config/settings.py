"""The settings as frozen values. `skep.config.load` fills them from `skep.toml`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from skep.catalog.options import EngineOptions
from skep.config.monitor import Monitor as Monitor  # noqa: PLC0414 - part of the settings, whoever defines it
from skep.paths import DEFAULT_PORT, LOOPBACK
from skep.units import GIB, MIB

EMBEDDED_MODEL = "smollm2-135m"
OWN_ENGINES = ("embedded", "fake", "simulated")  # that skep starts within its own package
DEFAULT_CONTEXT = 2048


@dataclass(frozen=True, slots=True)
class Serve:
    """One model to serve."""

    model: str = EMBEDDED_MODEL
    engine: str = "embedded"
    replicas: int = 1
    slots: int = 4
    context_tokens: int = DEFAULT_CONTEXT  # per slot; 0: as the engine has it
    threads: int | None = None  # None: the cores divided among the replicas
    engine_port: int = 0  # of the first replica; the next ones follow. 0: free ones
    extra: tuple[str, ...] = ()
    reserve: int = 0  # slots of each replica for interactive requests only
    soft_slots: int | None = None  # requests at once while anything but batch is there; None: all slots
    about: str = ""  # for records, where the engine's version does not say what serves
    checkpoint: str | None = None  # folder, file or hub name; None: the model's own name
    options: EngineOptions = field(default_factory=EngineOptions)
    gpus: tuple[int, ...] = ()  # for all replicas, divided among them in this order; empty: chosen where needed
    env: tuple[tuple[str, str], ...] = ()
    binary: str | None = None  # the engine's program; None: looked for on PATH
    preset: str | None = None  # that it was made from
    on_demand: bool = False  # loaded when somebody asks for it
    pinned: bool = False  # stays loaded, whoever needs the room
    idle_unload_s: float | None = None
    room: str | None = None  # memory it takes, where that cannot be worked out: "8GiB"
    kind: str = ""  # of cluster node it was planned for; empty: any


def default_context(engine: str) -> int:
    """Return the tokens of a slot where none are set; 0: the engine's own default."""
    return DEFAULT_CONTEXT if engine in OWN_ENGINES else 0


@dataclass(frozen=True, slots=True)
class Upstream:
    """A server that skep did not start. `url` has no path."""

    url: str
    slots: int
    name: str
    model: str | None = None  # None: the only one it serves
    reserve: int = 0
    soft_slots: int | None = None
    health_path: str = "/health"
    key_env: str | None = None  # the environment variable with the key it wants


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    max_queue: int = 256
    max_wait_s: float = 900.0
    api_key: str | None = None
    aging_s: float = 30.0
    dead_after_s: float = 60.0
    first_byte_timeout_s: float = 1800.0
    idle_timeout_s: float = 300.0
    total_timeout_s: float = 7200.0
    body_limit_bytes: int = 64 * MIB
    files_quota_bytes: int = 4 * GIB
    cors_origins: tuple[str, ...] = ()
    tls_certificate: str | None = None  # both or none
    tls_key: str | None = None
    store_requests: bool = True

    @property
    def open_to_others(self) -> bool:
        return self.host not in LOOPBACK


@dataclass(frozen=True, slots=True)
class Cluster:
    """The Ray cluster that the replicas run on."""

    address: str  # of its head, host:port; "auto": the one that this machine is a node of
    hive: str = "skep"  # hives of one cluster have names


@dataclass(frozen=True, slots=True)
class CliOverrides:
    """Settings of the command line. They win over the file, also when `skep reload` reads the file again."""

    folder: str | None = None  # where skep was started: `skep.toml` is looked for there, relative paths begin there
    config: str | None = None  # the file; None: looked for
    model: str | None = None  # instead of all that the file serves
    served: tuple[Serve, ...] = ()  # likewise, worked out: a preset, or the planner's best
    fallback: bool = False
    serve: Mapping[str, Any] = field(default_factory=dict)  # for every model
    gateway: Mapping[str, Any] = field(default_factory=dict)
    upstream: tuple[Upstream, ...] = ()  # instead of the file's
    only_upstreams: bool = False
    cluster: Cluster | None = None

    def apply(self, settings: Settings) -> Settings:
        serve, upstream = settings.serve, self.upstream or settings.upstream
        if self.only_upstreams:
            serve = ()
        elif self.served:
            serve, upstream = self.served, ()
        elif self.model is not None:
            serve, upstream = (Serve(model=self.model),), ()
        return replace(
            settings,
            gateway=replace(settings.gateway, **self.gateway),
            serve=tuple(replace(table, **self.serve) for table in serve),
            upstream=upstream,
            fallback=self.fallback or settings.fallback,
            cluster=self.cluster or (None if self.only_upstreams else settings.cluster),
            overrides=self,
        )


@dataclass(frozen=True, slots=True)
class Settings:
    gateway: GatewaySettings = field(default_factory=GatewaySettings)
    serve: tuple[Serve, ...] = (Serve(),)
    drain_s: float = 30.0
    start_deadline_s: float | None = None  # None: as long as the slowest of its engines may take
    fallback: bool = False  # an engine that dies is tried again with the remedy, one change at a time
    max_loaded: int | None = None  # models at once, where some are loaded on demand
    upstream: tuple[Upstream, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)  # name or pattern to model; the first that fits
    monitor: Monitor = field(default_factory=Monitor)
    cluster: Cluster | None = None  # None: the replicas run on this machine
    overrides: CliOverrides = field(default_factory=CliOverrides)


def settings_of(document: Mapping[str, Any]) -> Settings:
    """Return the settings of a JSON document that `asdict(settings)` made."""
    return msgspec.convert(document, Settings)


def overrides_of(document: Mapping[str, Any]) -> CliOverrides:
    return msgspec.convert(document, CliOverrides)
