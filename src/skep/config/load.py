"""`skep.toml` and the environment, checked and turned into settings."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from skep.catalog.options import Draft, EngineOptions
from skep.config.monitor import Monitor, check_command, check_webhook, parse_quiet_hours
from skep.config.settings import (
    EMBEDDED_MODEL,
    CliOverrides,
    Cluster,
    GatewaySettings,
    Serve,
    Settings,
    Upstream,
    default_context,
)
from skep.errors import UserError
from skep.paths import DEFAULT_PORT, Paths
from skep.units import parse_bytes, parse_percent, parse_seconds
from skep.wire.heads import parse_url

TAKEN_NAMES = ("gateway", "skep", "requests")  # of logs and rows of skep itself
MIN_BODY_BYTES = 1024
DRAFT_METHODS = ("mtp", "ngram", "draft", "eagle", "dflash")


class _ConfigTable(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class OptionsTable(_ConfigTable):
    """`[serve.options]`, and the same in a preset."""

    quant: str | None = None
    dtype: str | None = None
    kv: str | None = None
    tp: int = Field(default=1, ge=1, le=64)
    pp: int = Field(default=1, ge=1, le=64)
    dp: int = Field(default=1, ge=1, le=64)
    ep: bool = False
    memory_share: float | None = Field(default=None, gt=0, le=1)
    graphs: bool | None = None
    chunked_prefill: bool | None = None
    batched_tokens: int | None = Field(default=None, ge=1)
    batch: int | None = Field(default=None, ge=1)
    threads_batch: int | None = Field(default=None, ge=1, le=512)
    flash_attention: bool | None = None
    kv_layout: Literal["unified", "split"] | None = None
    prefix_cache: bool | None = None
    speculation: str | None = None  # "mtp:3"
    draft_model: str | None = None
    p2p: Literal["nvlink", "off"] | None = None
    custom_all_reduce: bool | None = None
    split: Literal["layer", "tensor", "row", "none"] | None = None
    card_shares: list[Annotated[float, Field(gt=0)]] = Field(default_factory=list)
    trust_remote_code: bool = False
    reasoning_parser: str | None = None
    tool_parser: str | None = None
    chat_template: str | None = None

    def to_options(self) -> EngineOptions:
        if self.draft_model is not None and self.speculation is None:
            raise UserError("`draft_model` without `speculation`", hint='name the method and depth: "draft:4"')
        draft = parse_draft(self.speculation, self.draft_model) if self.speculation is not None else None
        told = self.model_dump(exclude={"speculation", "draft_model"})
        return EngineOptions(**{**told, "draft": draft, "card_shares": tuple(self.card_shares)})


class ServeTable(_ConfigTable):
    model: str = EMBEDDED_MODEL
    engine: str = "embedded"
    replicas: int = Field(default=1, ge=1, le=1024)
    slots: int = Field(default=4, ge=1, le=1024)
    context: int | None = Field(default=None, ge=64)
    threads: int | None = Field(default=None, ge=1)
    engine_port: int = Field(default=0, ge=0, le=65535)
    extra: list[str] = Field(default_factory=list)
    reserve: int = Field(default=0, ge=0)
    soft_slots: int | None = Field(default=None, ge=1)
    checkpoint: str | None = None
    gpus: list[Annotated[int, Field(ge=0, le=255)]] = Field(default_factory=list)
    env: dict[str, str] = Field(default_factory=dict)
    binary: str | None = None
    on_demand: bool = False
    pinned: bool = False
    idle_unload: str | None = None
    room: str | None = None
    options: OptionsTable = OptionsTable()

    def to_serve(self) -> Serve:
        check_words(self.env, *self.extra, self.binary or "", self.checkpoint or "", self.model)
        if self.room is not None:
            parse_bytes(self.room, key="serve.room")
        if self.pinned and (self.on_demand or self.idle_unload is not None):
            other = "idle_unload" if self.idle_unload is not None else "on_demand"
            raise UserError(f"`pinned` and `{other}` of `{self.model}` contradict each other", hint="leave one out")
        made: dict[str, Any] = {
            "context_tokens": self.context or default_context(self.engine),
            "extra": tuple(self.extra),
            "options": self.options.to_options(),
            "gpus": tuple(self.gpus),
            "env": tuple(self.env.items()),
            "on_demand": self.on_demand or self.idle_unload is not None,
            "idle_unload_s": _seconds(self.idle_unload, "serve.idle_unload", above=0),
        }
        return Serve(**{**self.model_dump(exclude={"context", "idle_unload"}), **made})


class UpstreamTable(_ConfigTable):
    url: str
    slots: int = Field(ge=1, le=65536)
    model: str | None = None
    name: str | None = None
    reserve: int = Field(default=0, ge=0)
    soft_slots: int | None = Field(default=None, ge=1)
    health_path: str = Field(default="/health", pattern="^/")
    key_env: str | None = None

    def to_upstream(self) -> Upstream:
        return make_upstream(**self.model_dump())


class GatewayTable(_ConfigTable):
    host: str = "127.0.0.1"
    port: int = Field(default=DEFAULT_PORT, ge=0, le=65535)
    max_queue: int = Field(default=256, ge=0)
    max_wait: str = "15m"
    aging: str = "30s"
    dead_after: str = "60s"
    first_byte_timeout: str = "30m"
    idle_timeout: str = "5m"
    total_timeout: str = "2h"
    body_limit: str = "64MiB"
    files_quota: str = "4GiB"
    cors_origins: list[str] = Field(default_factory=list)
    tls_certificate: str | None = None
    tls_key: str | None = None
    store_requests: bool = True

    def to_gateway(self, api_key: str | None, folder: Path) -> GatewaySettings:
        if (self.tls_certificate is None) != (self.tls_key is None):
            given, missing = ("tls_certificate", "tls_key") if self.tls_key is None else ("tls_key", "tls_certificate")
            raise UserError(f"`gateway.{given}` without `gateway.{missing}`", hint="TLS wants both files")
        return GatewaySettings(
            host=self.host,
            port=self.port,
            max_queue=self.max_queue,
            max_wait_s=parse_seconds(self.max_wait, key="gateway.max_wait"),
            api_key=api_key,
            aging_s=parse_seconds(self.aging, key="gateway.aging", above=0),
            dead_after_s=parse_seconds(self.dead_after, key="gateway.dead_after", above=0),
            first_byte_timeout_s=parse_seconds(self.first_byte_timeout, key="gateway.first_byte_timeout", above=0),
            idle_timeout_s=parse_seconds(self.idle_timeout, key="gateway.idle_timeout", above=0),
            total_timeout_s=parse_seconds(self.total_timeout, key="gateway.total_timeout", above=0),
            body_limit_bytes=_body_limit(self.body_limit),
            files_quota_bytes=parse_bytes(self.files_quota, key="gateway.files_quota"),
            cors_origins=tuple(_page_origin(text) for text in self.cors_origins),
            tls_certificate=_file(self.tls_certificate, folder),
            tls_key=_file(self.tls_key, folder),
            store_requests=self.store_requests,
        )


class MonitorTable(_ConfigTable):
    with_up: bool = True
    slower: str = "10%"
    ttft: str | None = None
    down_after: int = Field(default=2, ge=1, le=100)
    quality_min: float | None = Field(default=None, gt=0, le=1)
    disk_free: str = "2GiB"
    quiet_hours: str | None = None
    quiet_except: list[Literal["down", "slower", "ttft", "quality", "disk", "shift"]] = Field(default_factory=list)
    command: list[str] = Field(default_factory=list)
    webhook: str | None = None
    webhook_env: str | None = None
    webhook_shape: Literal["json", "ntfy", "slack"] = "json"
    webhook_token_env: str | None = None

    def to_monitor(self) -> Monitor:
        if self.quiet_hours is not None:
            parse_quiet_hours(self.quiet_hours)
        check_words({name: "" for name in (self.webhook_env, self.webhook_token_env) if name}, *self.command)
        check_command(self.command)
        if self.webhook is not None and self.webhook_env is not None:
            raise UserError("`monitor.webhook` and `monitor.webhook_env` exclude each other", hint="leave one out")
        if self.webhook is not None:
            check_webhook(self.webhook, self.webhook_shape, name="`monitor.webhook`")
        told = self.model_dump(exclude={"slower", "ttft", "disk_free"})
        return Monitor(
            **{**told, "command": tuple(self.command), "quiet_except": tuple(self.quiet_except)},
            slower_pct=parse_percent(self.slower, key="monitor.slower"),
            ttft_ms=None if self.ttft is None else 1000 * parse_seconds(self.ttft, key="monitor.ttft", above=0),
            disk_free_bytes=parse_bytes(self.disk_free, key="monitor.disk_free"),
        )


class ClusterTable(_ConfigTable):
    address: str = "auto"
    hive: str = "skep"

    def to_cluster(self) -> Cluster:
        return make_cluster(self.address, self.hive)


class SettingsFile(_ConfigTable):
    gateway: GatewayTable = GatewayTable()
    monitor: MonitorTable = MonitorTable()
    cluster: ClusterTable | None = None
    serve: list[ServeTable] | None = Field(default=None, min_length=1)
    upstream: list[UpstreamTable] = Field(default_factory=list)
    aliases: dict[str, str] = Field(default_factory=dict)
    drain: str = "30s"
    start_deadline: str | None = None
    fallback: bool = False
    max_loaded: int | None = Field(default=None, ge=1)

    def to_settings(self, env: Mapping[str, str], folder: Path) -> Settings:
        serve = [] if self.serve is None and self.upstream else self.serve or [ServeTable()]
        return Settings(
            gateway=self.gateway.to_gateway(env.get("SKEP_API_KEY") or None, folder),
            serve=tuple(table.to_serve() for table in serve),
            drain_s=parse_seconds(self.drain, key="drain"),
            start_deadline_s=_seconds(self.start_deadline, "start_deadline"),
            fallback=self.fallback,
            max_loaded=self.max_loaded,
            upstream=tuple(table.to_upstream() for table in self.upstream),
            aliases=self.aliases,
            monitor=self.monitor.to_monitor(),
            cluster=None if self.cluster is None else self.cluster.to_cluster(),
        )


def make_cluster(address: str, hive: str = "skep") -> Cluster:
    """Return the cluster of a typed address. Raise where address or name is not valid."""
    if address != "auto" and not re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^\s/:@]+):[0-9]{1,5}", address):
        hint = "`auto`: the cluster that this machine is a node of; or its head's address, such as 10.0.0.1:6379"
        raise UserError(f"`{address}` is no address of a Ray cluster", hint=hint)
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", hive):
        raise UserError(f"`{hive}` is no name for a hive", hint="use letters, digits, dots, dashes: team-a")
    return Cluster(address, hive)


def check_words(env: Mapping[str, str], *words: str) -> None:
    """Raise where a process cannot be given these variables or words: a wrong name, or a NUL."""
    for name in env:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            hint = "letters, digits and underscores: OMP_NUM_THREADS"
            raise UserError(f"`env`: {name!r} is no name of a variable", hint=hint)
    wrong = next((word for word in (*env.values(), *words) if "\0" in word), None)
    if wrong is not None:
        raise UserError(f"{wrong!r} holds a NUL, which no program can be given", hint="leave it out")


def parse_draft(text: str, model: str | None = None) -> Draft:
    """Parse `mtp:3`: a method and how many tokens it drafts a step."""
    method, _, depth = text.strip().lower().partition(":")
    if method not in DRAFT_METHODS or not depth.isdecimal() or not 1 <= int(depth) <= 64:
        hint = f'write it as "mtp:3"; methods: {", ".join(DRAFT_METHODS)}'
        raise UserError(f"`speculation` = `{text}` is not understood", hint=hint)
    return Draft(method, int(depth), model)


def make_upstream(
    url: str,
    slots: int,
    *,
    model: str | None = None,
    name: str | None = None,
    reserve: int = 0,
    soft_slots: int | None = None,
    health_path: str = "/health",
    key_env: str | None = None,
) -> Upstream:
    """Return the upstream of a typed URL: `/v1` at its end is dropped, the name is made of host and port.

    A path before it (`/api/v1` of a cloud) becomes the prefix of every path.
    """
    origin, path = parse_url(url, name="upstream")
    if path and not path.endswith("/v1"):
        hint = f"give the server's address, such as {origin}, or what clients use, such as {origin}{path}/v1"
        raise UserError(f"upstream `{url}` has the path `{path}`", hint=hint)
    if "@" in urlsplit(url if "://" in url else f"http://{url}").netloc:
        raise UserError(f"upstream `{origin}` is given with a user name", hint="leave what stands before the @ out")
    chosen = name or re.sub(r"[^A-Za-z0-9._-]+", "-", f"{origin.host}-{origin.port}").strip("-")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", chosen) or chosen in TAKEN_NAMES:
        raise UserError(f"`{chosen}` is no name for an upstream", hint="use letters, digits, dots, dashes: box-2")
    base = f"{origin}{path.removesuffix('/v1')}"
    return Upstream(base, slots, chosen, model or None, reserve, soft_slots, health_path, key_env)


def _seconds(text: str | None, key: str, *, above: float | None = None) -> float | None:
    return None if text is None else parse_seconds(text, key=key, above=above)


def _body_limit(text: str) -> int:
    limit = parse_bytes(text, key="gateway.body_limit")
    if limit < MIN_BODY_BYTES:
        raise UserError(f"`gateway.body_limit` = `{text}` lets no request in", hint="write it as 64MiB")
    return limit


def _page_origin(text: str) -> str:
    if text != "*" and not re.fullmatch(r"https?://[^/\s?#]+", text):
        hint = 'scheme, host and port without a path, such as "http://localhost:3000"; "*" lets every web page in'
        raise UserError(f"`gateway.cors_origins`: `{text}` is not the origin of a web page", hint=hint)
    return text


def _file(text: str | None, folder: Path) -> str | None:
    """Return the path; a relative one starts at the folder of the file."""
    return None if text is None else str(folder / Path(text).expanduser())


def find_config(path: Path | None, paths: Paths, folder: Path | None = None) -> Path | None:
    """Return the given file, which must exist; else `skep.toml` here or in the configuration folder, or None."""
    if path is not None:
        if not path.exists():
            hint = "leave --config out for the embedded model"
            raise UserError(f"the configuration file `{path}` does not exist", hint=hint)
        return path
    here = Path("skep.toml") if folder is None else folder / "skep.toml"
    return next((found for found in (here, paths.config / "skep.toml") if found.exists()), None)


def load_settings(path: Path | None, paths: Paths, env: Mapping[str, str], *, folder: Path | None = None) -> Settings:
    """Read the file that `find_config` finds; without one, serve the embedded model."""
    found = find_config(path, paths, folder)
    if found is None:
        return parse_settings({}, "environment", env)
    return parse_settings(_read(found), str(found), env, found.parent.absolute())


def settings_with_overrides(wishes: CliOverrides, paths: Paths, env: Mapping[str, str]) -> Settings:
    """Return the settings of the file as it is now, with the overrides of the command line."""
    folder = Path(wishes.folder) if wishes.folder else None
    return wishes.apply(load_settings(Path(wishes.config) if wishes.config else None, paths, env, folder=folder))


def parse_settings(document: dict[str, Any], origin: str, env: Mapping[str, str], folder: Path = Path()) -> Settings:
    try:
        return SettingsFile.model_validate(document).to_settings(env, folder)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            known = ", ".join(_known_keys(first["loc"]))
            raise UserError(f"{origin}: `{where}` is an unknown key", hint=f"known here: {known}") from None
        if first["type"] == "missing":
            raise UserError(f"{origin}: `{where}` is missing", hint=MISSING.get(str(first["loc"][-1]))) from None
        message = f"{origin}: `{where}` = {first['input']!r}: {first['msg'].lower()}"
        raise UserError(message, hint="docs/configuration.md has an example of every key") from None
    except UserError as error:
        raise UserError(f"{origin}: {error.message}", hint=error.hint) from None


SLOTS_MATTER = "how many sequences the server decodes at a time: vLLM --max-num-seqs, llama-server -np"
MISSING = {"slots": SLOTS_MATTER, "url": "where the server listens, such as http://127.0.0.1:8000"}


def _known_keys(place: tuple[int | str, ...]) -> list[str]:
    tables: dict[str, type[_ConfigTable]] = {
        "gateway": GatewayTable,
        "serve": ServeTable,
        "upstream": UpstreamTable,
        "monitor": MonitorTable,
        "cluster": ClusterTable,
    }
    table = tables.get(str(place[0]), SettingsFile) if len(place) > 1 else SettingsFile
    if "options" in place[1:-1]:
        table = OptionsTable
    return list(table.model_fields)


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}", hint="docs/configuration.md has an example") from None
