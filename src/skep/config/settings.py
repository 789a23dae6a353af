"""The settings as frozen values, the monitor's among them.

`skep.config.load` fills them from `skep.toml`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, tzinfo
from functools import partial
from pathlib import PurePath
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from skep.catalog.engines import EMBEDDED, kind_of
from skep.catalog.presets import AtLeast1, CardNumber, Context, EngineOptions
from skep.errors import UserError
from skep.paths import DEFAULT_PORT, LOOPBACK
from skep.units import GIB, MIB, parse_bytes, parse_percent, parse_seconds, shortened
from skep.wire.heads import Origin, parse_url

EMBEDDED_MODEL = "smollm2-135m"
DEFAULT_CONTEXT = 2048
MIN_BODY_BYTES = 1024
Shape = Literal["json", "ntfy", "slack"]
Alert = Literal["down", "slower", "ttft", "disk", "shift"]
# What `{...}` of a command stands for.
COMMAND_WORDS = (
    "event", "message", "title", "host", "rule", "target", "value", "limit", "opened_at",
    "closed_at",
)  # fmt: skip
DAY_MINUTES = 24 * 60
QUIET_HINT = 'write them as "22:00-07:00"; the end may lie on the next day'


def _body_limit(text: str, *, key: str) -> int:
    limit = parse_bytes(text, key=key)
    if limit < MIN_BODY_BYTES:
        raise UserError(f"`{key}` = `{text}` would reject every request", hint="write it as 64MiB")
    return limit


AtLeast0 = Annotated[int, Meta(ge=0)]
Port = Annotated[int, Meta(ge=0, le=65535)]
_UpTo1024 = Annotated[int, Meta(ge=1, le=1024)]
_HIDDEN = Meta(extra={"hidden": True})


def parse_seconds_or_off(text: str, *, key: str) -> float | None:
    if text.strip().lower() == "off":
        return None
    return parse_seconds(text, key=key)


def _seconds(key: str, *, above: float | None = 0.0) -> Meta:
    return Meta(extra={"key": key, "parse": partial(parse_seconds, above=above)})


class QuietHours(msgspec.Struct, frozen=True):
    """From one minute of the day to another, as the clock on the wall shows it in any season."""

    start: int
    end: int

    @property
    def length_s(self) -> float:
        return 60.0 * ((self.end - self.start) % DAY_MINUTES)

    def hold(self, at: float, zone: tzinfo | None = None) -> bool:
        """Return whether it is quiet then. `zone` None: the machine's own."""
        local = datetime.fromtimestamp(at, zone)
        minute = local.hour * 60 + local.minute
        if self.start <= self.end:
            return self.start <= minute < self.end
        return minute >= self.start or minute < self.end


def parse_quiet_hours(text: str) -> QuietHours:
    match = re.fullmatch(r"\s*(\d{1,2}):(\d\d)\s*-\s*(\d{1,2}):(\d\d)\s*", text)
    numbers = [int(part) for part in match.groups()] if match else []
    minutes = [
        hour * 60 + minute
        for hour, minute in zip(numbers[::2], numbers[1::2], strict=True)
        if minute < 60
    ]
    if len(minutes) != 2 or max(minutes) > DAY_MINUTES:
        raise UserError(f"quiet hours `{shortened(text, 60)}` are not understood", hint=QUIET_HINT)
    start, end = (minute % DAY_MINUTES for minute in minutes)
    if start == end:
        raise UserError(f"quiet hours `{text}` begin and end at the same time", hint=QUIET_HINT)
    return QuietHours(start, end)


def _milliseconds(text: str, *, key: str) -> float:
    return 1000 * parse_seconds(text, key=key, above=0)


class Monitor(msgspec.Struct, frozen=True):
    """When something is wrong, who is told, and when nobody is.

    Addresses and tokens in it are never shown.
    """

    with_up: bool = True  # the loop runs beside the gateway
    # below its own 7-day median; None: no such alert
    slower_pct: Annotated[float | None, Meta(extra={"key": "slower", "parse": parse_percent})] = (
        10.0
    )
    ttft_ms: Annotated[float | None, Meta(extra={"key": "ttft", "parse": _milliseconds})] = None
    down_after: Annotated[int, Meta(ge=1, le=100)] = 2  # failed probes in a row
    # 0: the disk is not watched
    disk_free_bytes: Annotated[int, Meta(extra={"key": "disk_free", "parse": parse_bytes})] = (
        2 * GIB
    )
    quiet_hours: str | None = None  # "22:00-07:00", of the machine's own time
    quiet_except: tuple[Alert, ...] = ()  # rules that are told all the same
    command: tuple[str, ...] = ()
    webhook: str | None = None
    webhook_env: str | None = None  # the variable with the address, where that is a secret
    webhook_shape: Shape = "json"
    webhook_token_env: str | None = None


class Hook(msgspec.Struct, frozen=True):
    """Where a webhook is called.

    The path and the query may be the secret: only `str(hook)` is ever shown.
    """

    origin: Origin
    path: str  # with the query
    topic: str | None = None  # of ntfy

    def __str__(self) -> str:
        return str(self.origin)


def check_command(words: Sequence[str]) -> None:
    """Raise for a misspelt `{mesage}`, which the program would be handed as it stands.

    Other braces are not skep's.
    """
    if words and not words[0]:
        raise UserError(
            "`monitor.command` has no program", hint='write it as ["notify-send", "{message}"]'
        )
    for word in words:
        for field in re.findall(r"\{([a-z_]+)\}", word):
            if field not in COMMAND_WORDS:
                hint = f"known: {', '.join(f'{{{name}}}' for name in COMMAND_WORDS)}"
                raise UserError(f"`monitor.command`: `{{{field}}}` is unknown", hint=hint)


def check_webhook(url: str, shape: Shape, *, name: str) -> Hook:
    """Return the address in its parts. An ntfy address is that of its topic.

    A message with a title and a priority goes to the server itself, with the topic inside (ntfy,
    "Publish as JSON")."""
    try:
        origin, path = parse_url(url, name=name)
    except UserError:
        raise UserError(
            f"{name} is not an http(s) URL", hint="write it as https://ntfy.sh/my-topic"
        ) from None
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if "@" in parts.netloc or re.search(r"[\x00-\x20\x7f-\uffff]", url):
        hint = (
            "percent-encode it, and leave out what stands before an @; `webhook_token_env` "
            "names a token"
        )
        raise UserError(f"{name} is not written as a plain http(s) URL", hint=hint)
    if shape != "ntfy":
        return Hook(origin, (path or "/") + (f"?{parts.query}" if parts.query else ""))
    root, _, topic = path.rpartition("/")
    if not re.fullmatch(r"[-_A-Za-z0-9]{1,64}", topic):
        raise UserError(
            f"{name} does not end in an ntfy topic", hint="write it as https://ntfy.sh/my-topic"
        )
    return Hook(origin, f"{root}/", topic)


class Serve(msgspec.Struct, frozen=True):
    """One model to serve."""

    model: str = EMBEDDED_MODEL
    engine: str = EMBEDDED
    replicas: _UpTo1024 = 1
    slots: _UpTo1024 = 4
    # per slot; 0: as the engine has it
    context_tokens: Annotated[int, Meta(extra={"key": "context", "kind": Context})] = (
        DEFAULT_CONTEXT
    )
    # None: the cores divided among the replicas; embedded: those that are free
    threads: AtLeast1 | None = None
    engine_port: Port = 0  # of the first replica; the next ones follow. 0: free ones
    extra: tuple[str, ...] = ()
    reserve: AtLeast0 = 0  # slots of each replica for interactive requests only
    # requests at once while anything but batch is there; None: all slots
    soft_slots: AtLeast1 | None = None
    # for records, where the engine's version does not say what serves
    about: Annotated[str, _HIDDEN] = ""
    checkpoint: str | None = None  # folder, file or hub name; None: the model's own name
    options: EngineOptions = msgspec.field(default_factory=EngineOptions)
    # for all replicas, divided among them in this order; empty: chosen where needed
    gpus: tuple[CardNumber, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    binary: str | None = None  # the engine's program; None: looked for on PATH
    preset: Annotated[str | None, _HIDDEN] = None  # that it was made from
    on_demand: bool = False  # loaded when somebody asks for it
    pinned: bool = False  # stays loaded, whoever needs the room
    idle_unload_s: Annotated[float | None, _seconds("idle_unload")] = None
    room: str | None = None  # memory it takes, where that cannot be worked out: "8GiB"
    kind: Annotated[str, _HIDDEN] = ""  # of cluster node it was planned for; empty: any

    @property
    def model_id(self) -> str:
        """Return what clients call it: files and folders by their own name, other models as they
        are written.
        """
        path = PurePath(self.model)
        is_path = self.model.startswith(("/", "./", "../", "~"))
        if path.suffix == ".gguf":
            return path.stem.lower()
        if is_path:
            return path.name.lower()
        return self.model


def default_context(engine: str) -> int:
    """Return the tokens of a slot where none are set; 0: the engine's own default."""
    if kind_of(engine).part_of_skep:
        return DEFAULT_CONTEXT
    return 0


class Upstream(msgspec.Struct, frozen=True):
    """A server that skep did not start. `url` has no path."""

    url: str
    slots: Annotated[int, Meta(ge=1, le=65536)]
    name: str = ""
    model: str | None = None  # None: the only one it serves
    reserve: AtLeast0 = 0
    soft_slots: AtLeast1 | None = None
    health_path: Annotated[str, Meta(pattern="^/")] = "/health"
    key_env: str | None = None  # the environment variable with the key it wants


class GatewaySettings(msgspec.Struct, frozen=True):
    host: str = "127.0.0.1"
    port: Port = DEFAULT_PORT
    max_queue: AtLeast0 = 256
    max_wait_s: Annotated[float, _seconds("max_wait", above=None)] = 900.0
    api_key: Annotated[str | None, _HIDDEN] = None
    aging_s: Annotated[float, _seconds("aging")] = 30.0
    dead_after_s: Annotated[float, _seconds("dead_after")] = 60.0
    first_byte_timeout_s: Annotated[float, _seconds("first_byte_timeout")] = 1800.0
    idle_timeout_s: Annotated[float, _seconds("idle_timeout")] = 300.0
    total_timeout_s: Annotated[float, _seconds("total_timeout")] = 7200.0
    body_limit_bytes: Annotated[int, Meta(extra={"key": "body_limit", "parse": _body_limit})] = (
        64 * MIB
    )
    # of the connections, for one address of another machine at most; None: all of them
    address_share_pct: Annotated[
        float | None, Meta(extra={"key": "address_share", "parse": parse_percent})
    ] = 50.0
    cors_origins: tuple[str, ...] = ()
    # a stream of chat or text completions that had no byte for so long gets its head and comments;
    # None: never
    comment_after_s: Annotated[
        float | None, Meta(extra={"key": "comment_after", "parse": parse_seconds_or_off})
    ] = 5.0
    # an unknown model name is refused, also where only one model is served
    strict_models: bool = False
    tls_certificate: str | None = None  # both or none
    tls_key: str | None = None
    store_requests: bool = True
    workers: Annotated[int, Meta(ge=1, le=64)] | None = None  # None: `default_workers`

    @property
    def open_to_others(self) -> bool:
        return self.host not in LOOPBACK


class Cluster(msgspec.Struct, frozen=True):
    """The Ray cluster that the replicas run on."""

    # of its head, host:port; "auto": the one that this machine is a node of
    address: str = "auto"
    hive: str = "skep"  # hives of one cluster have names


class CliOverrides(msgspec.Struct, frozen=True):
    """Settings of the command line.

    They win over the file, also when `skep replica reload` reads the file again.
    """

    # where skep was started: `skep.toml` is looked for there, relative paths begin there
    folder: str | None = None
    config: str | None = None  # the file; None: looked for
    model: str | None = None  # instead of all that the file serves
    served: tuple[Serve, ...] = ()  # likewise, worked out: a preset, or the planner's best
    fallback: bool = False
    serve: Mapping[str, Any] = {}  # for every model
    gateway: Mapping[str, Any] = {}
    aliases: Mapping[str, str] = {}  # before those of the file
    upstream: tuple[Upstream, ...] = ()  # instead of the file's
    only_upstreams: bool = False
    cluster: Cluster | None = None

    def apply(self, settings: Settings) -> Settings:
        serve = settings.serve
        upstream = self.upstream or settings.upstream
        if self.only_upstreams:
            serve = ()
        elif self.served:
            serve = self.served
            upstream = ()
        elif self.model is not None:
            serve = (Serve(model=self.model),)
            upstream = ()
        return replace(
            settings,
            gateway=replace(settings.gateway, **self.gateway),
            aliases={**self.aliases, **settings.aliases, **self.aliases},
            serve=tuple(replace(table, **self.serve) for table in serve),
            upstream=upstream,
            fallback=self.fallback or settings.fallback,
            cluster=self.cluster or (None if self.only_upstreams else settings.cluster),
            overrides=self,
        )


class Settings(msgspec.Struct, frozen=True):
    gateway: GatewaySettings = msgspec.field(default_factory=GatewaySettings)
    serve: tuple[Serve, ...] = (Serve(),)
    drain_s: Annotated[float, _seconds("drain", above=None)] = 30.0
    # None: as long as the slowest of its engines may take
    start_deadline_s: Annotated[float | None, _seconds("start_deadline", above=None)] = None
    # an engine that dies is tried again with the remedy, one change at a time
    fallback: bool = False
    max_loaded: AtLeast1 | None = None  # models at once, where some are loaded on demand
    upstream: tuple[Upstream, ...] = ()
    aliases: Mapping[str, str] = {}  # name or pattern to model; the first that fits
    monitor: Monitor = msgspec.field(default_factory=Monitor)
    cluster: Cluster | None = None  # None: the replicas run on this machine
    overrides: Annotated[CliOverrides, _HIDDEN] = msgspec.field(default_factory=CliOverrides)

    @property
    def secret_variables(self) -> frozenset[str]:
        """Return the environment variables that hold keys, of other servers and of the webhook."""
        names = [upstream.key_env for upstream in self.upstream]
        names += [self.monitor.webhook_env, self.monitor.webhook_token_env]
        return frozenset(name for name in names if name)
