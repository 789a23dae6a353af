"""`skep.toml` and the environment, checked and turned into settings.

`TableReader` fills any frozen values from a file. It knows how a field stands there by its name and type, and by the
rules of its class, and gathers everything that is wrong.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints
from urllib.parse import urlsplit

from skep.catalog.options import Draft, EngineOptions
from skep.config.monitor import Monitor, check_command, check_webhook, parse_quiet_hours
from skep.config.settings import CliOverrides, Cluster, GatewaySettings, Serve, Settings, Upstream, default_context
from skep.errors import UserError
from skep.paths import Paths
from skep.units import parse_bytes, parse_percent, parse_seconds
from skep.wire.heads import parse_url

TAKEN_NAMES = ("gateway", "skep", "requests")  # of logs and rows of skep itself
MIN_BODY_BYTES = 1024
DRAFT_METHODS = ("mtp", "ngram", "draft", "eagle", "dflash")


KeyPath = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class InFile:
    """How a field stands in a file, where its name and type do not tell, and which values it may have."""

    key: str | None = None
    parse: Callable[..., Any] | None = None  # it is a text; `key` names it in errors
    beside: str | None = None  # the key of another text that `parse` needs
    at_least: float | None = None
    at_most: float | None = None
    above: float | None = None
    pattern: str | None = None
    one_of: tuple[str, ...] = ()
    default: str | None = None  # where the field has none
    hidden: bool = False  # no file has it


@dataclass(frozen=True, slots=True)
class FileProblem:
    """Something that is wrong in a file. `known`: the keys there are, where one is unknown."""

    place: KeyPath
    kind: Literal["unknown", "missing", "wrong", "refused"]
    words: str = ""
    value: Any = None
    hint: str | None = None
    known: tuple[str, ...] = ()


FileRules = Mapping[type, Mapping[str, InFile]]
_PLAIN = InFile()
_KINDS = {
    int: "a whole number",
    float: "a number",
    str: "text in quotes",
    bool: "true or false, without quotes",
    datetime: "a date and time",
}


def file_keys(kind: type, rules: FileRules) -> dict[str, Any]:
    """Return the keys of a table and the types of their values."""
    hints = get_type_hints(kind)
    found: dict[str, Any] = {}
    for field in fields(kind):
        rule = rules.get(kind, {}).get(field.name, _PLAIN)
        if not rule.hidden:
            found[rule.key or field.name] = hints[field.name] if rule.parse is None else str
            found |= {rule.beside: str} if rule.beside else {}
    return found


class TableReader:
    """Reads a document as frozen values. What comes back is whole if there are no `problems`."""

    def __init__(self, rules: FileRules) -> None:
        self.problems: list[FileProblem] = []
        self._rules = rules

    def table(self, value: Any, kind: Any, place: KeyPath = (), **given: Any) -> Any:
        """`given`: fields that the file does not have."""
        if not isinstance(value, dict):
            return self._wrong(place, value, "must be a table")
        before, values, hints = len(self.problems), given, get_type_hints(kind)
        known = tuple(file_keys(kind, self._rules))
        self.problems += [FileProblem((*place, key), "unknown", known=known) for key in value if key not in known]
        for field in fields(kind):
            rule = self._rules.get(kind, {}).get(field.name, _PLAIN)
            key = rule.key or field.name
            if rule.hidden or field.name in given:
                continue
            if key in value or rule.beside in value:
                values[field.name] = self._field(value, key, hints[field.name], rule, place)
            elif rule.default is not None:
                values[field.name] = rule.default
            elif field.default is MISSING and field.default_factory is MISSING:
                self.problems.append(FileProblem((*place, key), "missing"))
        return kind(**values) if len(self.problems) == before else None

    def _field(self, table: Mapping[str, Any], key: str, hint: Any, rule: InFile, place: KeyPath) -> Any:
        if rule.parse is None:
            return self._value(table[key], hint, rule, (*place, key))
        texts = [table.get(name) for name in (key, rule.beside) if name is not None]
        wrong = next((text for text in texts if text is not None and not isinstance(text, str)), None)
        if wrong is not None:
            return self._wrong((*place, key), wrong, f"must be {_KINDS[str]}")
        try:
            return rule.parse(*texts, key=".".join(part for part in (*place, key) if isinstance(part, str)))
        except UserError as error:
            where = key if key in table else rule.beside or key
            self.problems.append(FileProblem((*place, where), "refused", error.message, hint=error.hint))

    def _value(self, value: Any, hint: Any, rule: InFile, place: KeyPath) -> Any:
        kind = next(one for one in get_args(hint) if one is not NoneType) if NoneType in get_args(hint) else hint
        origin, inner = get_origin(kind), get_args(kind)
        if is_dataclass(kind):
            return self.table(value, kind, place)
        if origin is Mapping or kind == tuple[tuple[str, str], ...]:
            if not isinstance(value, dict):
                return self._wrong(place, value, "must be a table")
            read = {key: self._value(one, str, rule, (*place, key)) for key, one in value.items()}
            return read if origin is Mapping else tuple(read.items())
        if origin is tuple:
            if not isinstance(value, list):
                return self._wrong(place, value, "must be a list")
            return tuple(self._value(one, inner[0], rule, (*place, number)) for number, one in enumerate(value))
        words = _fault(value, str if origin is Literal else kind, rule, inner or rule.one_of)
        if words:
            return self._wrong(place, value, words)
        return float(value) if kind is float else value

    def _wrong(self, place: KeyPath, value: Any, words: str) -> None:
        self.problems.append(FileProblem(place, "wrong", words, value))


def _fault(value: Any, kind: type, rule: InFile, options: tuple[str, ...]) -> str | None:
    told: Any = type(value)  # `True` is no whole number here
    if told is not kind and (told, kind) != (int, float):
        return f"must be {_KINDS[kind]}"
    if kind is float and not math.isfinite(value):
        return "must be a number that is not infinite"
    if options and value not in options:
        return f"must be {', '.join(map(repr, options[:-1]))} or {options[-1]!r}"
    if rule.at_least is not None and value < rule.at_least:
        return f"must be at least {rule.at_least}"
    if rule.at_most is not None and value > rule.at_most:
        return f"must be at most {rule.at_most}"
    if rule.above is not None and value <= rule.above:
        return f"must be more than {rule.above}"
    if rule.pattern is not None and not re.search(rule.pattern, value):
        return f"must match {rule.pattern}" if value else "must not be empty"
    return None


def written(value: object) -> str:
    """Return a value as it stands in a file: `true`, not Python's `True`; of a table or a list, that it is one."""
    if isinstance(value, bool):
        return str(value).lower()
    return "a table" if isinstance(value, dict) else "a list" if isinstance(value, list) else repr(value)


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


def parse_draft(text: str | None, model: str | None, *, key: str) -> Draft:  # noqa: ARG001 - as all that parse
    """Parse `mtp:3`: a method and how many tokens it drafts a step."""
    if text is None:
        raise UserError("`draft_model` without `speculation`", hint='name the method and depth: "draft:4"')
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


def _milliseconds(text: str, *, key: str) -> float:
    return 1000 * parse_seconds(text, key=key, above=0)


def _body_limit(text: str, *, key: str) -> int:
    limit = parse_bytes(text, key=key)
    if limit < MIN_BODY_BYTES:
        raise UserError(f"`{key}` = `{text}` lets no request in", hint="write it as 64MiB")
    return limit


def _check_page_origin(text: str) -> None:
    if text != "*" and not re.fullmatch(r"https?://[^/\s?#]+", text):
        hint = 'scheme, host and port without a path, such as "http://localhost:3000"; "*" lets every web page in'
        raise UserError(f"`gateway.cors_origins`: `{text}` is not the origin of a web page", hint=hint)


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


def settings_with_overrides(overrides: CliOverrides, paths: Paths, env: Mapping[str, str]) -> Settings:
    """Return the settings of the file as it is now, with the overrides of the command line."""
    config, folder = (Path(one) if one else None for one in (overrides.config, overrides.folder))
    return overrides.apply(load_settings(config, paths, env, folder=folder))


def parse_settings(document: dict[str, Any], origin: str, env: Mapping[str, str], folder: Path = Path()) -> Settings:
    reader = TableReader(RULES)
    found = reader.table(document, Settings)
    try:
        if reader.problems:
            raise _complaint(reader.problems[0])
        return _finished(found, document, env.get("SKEP_API_KEY") or None, folder)
    except UserError as error:
        raise UserError(f"{origin}: {error.message}", hint=error.hint) from None


def _complaint(found: FileProblem) -> UserError:
    where = ".".join(map(str, found.place))
    match found.kind:
        case "unknown":
            return UserError(f"`{where}` is an unknown key", hint=f"known here: {', '.join(found.known)}")
        case "missing":
            return UserError(f"`{where}` is missing", hint=MISSING_KEYS.get(str(found.place[-1])))
        case "refused":
            return UserError(found.words, hint=found.hint)
    hint = "docs/configuration.md has an example of every key"
    return UserError(f"`{where}` = {written(found.value)}: {found.words}", hint=hint)


def _finished(found: Settings, document: Mapping[str, Any], api_key: str | None, folder: Path) -> Settings:
    """Return the settings with what follows from several keys, checked against each other."""
    tables = document.get("serve", [] if found.upstream else [{}])
    if "serve" in document and not tables:
        raise UserError("`serve` has no table", hint="leave it out for the embedded model")
    return replace(
        found,
        gateway=_finished_gateway(found.gateway, api_key, folder),
        serve=tuple(_finished_serve(one, table) for one, table in zip(found.serve, tables, strict=False)),
        upstream=tuple(make_upstream(**asdict(one)) for one in found.upstream),
        monitor=_checked_monitor(found.monitor),
        cluster=None if found.cluster is None else make_cluster(found.cluster.address, found.cluster.hive),
    )


def _finished_serve(serve: Serve, table: Mapping[str, Any]) -> Serve:
    check_words(dict(serve.env), *serve.extra, serve.binary or "", serve.checkpoint or "", serve.model)
    if serve.room is not None:
        parse_bytes(serve.room, key="serve.room")
    if serve.pinned and (serve.on_demand or serve.idle_unload_s is not None):
        other = "idle_unload" if serve.idle_unload_s is not None else "on_demand"
        raise UserError(f"`pinned` and `{other}` of `{serve.model}` contradict each other", hint="leave one out")
    context = serve.context_tokens if "context" in table else default_context(serve.engine)
    return replace(serve, context_tokens=context, on_demand=serve.on_demand or serve.idle_unload_s is not None)


def _finished_gateway(gateway: GatewaySettings, api_key: str | None, folder: Path) -> GatewaySettings:
    certificate, key = gateway.tls_certificate, gateway.tls_key
    if (certificate is None) != (key is None):
        given, missing = ("tls_certificate", "tls_key") if key is None else ("tls_key", "tls_certificate")
        raise UserError(f"`gateway.{given}` without `gateway.{missing}`", hint="TLS wants both files")
    for text in gateway.cors_origins:
        _check_page_origin(text)
    return replace(gateway, api_key=api_key, tls_certificate=_file(certificate, folder), tls_key=_file(key, folder))


def _checked_monitor(monitor: Monitor) -> Monitor:
    if monitor.quiet_hours is not None:
        parse_quiet_hours(monitor.quiet_hours)
    check_words({name: "" for name in (monitor.webhook_env, monitor.webhook_token_env) if name}, *monitor.command)
    check_command(monitor.command)
    if monitor.webhook is not None and monitor.webhook_env is not None:
        raise UserError("`monitor.webhook` and `monitor.webhook_env` exclude each other", hint="leave one out")
    if monitor.webhook is not None:
        check_webhook(monitor.webhook, monitor.webhook_shape, name="`monitor.webhook`")
    return monitor


SLOTS_MATTER = "how many sequences the server decodes at a time: vLLM --max-num-seqs, llama-server -np"
MISSING_KEYS = {"slots": SLOTS_MATTER, "url": "where the server listens, such as http://127.0.0.1:8000"}


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}", hint="docs/configuration.md has an example") from None


_SECONDS = partial(parse_seconds, above=0)
HIDDEN = InFile(hidden=True)
AT_LEAST_0, AT_LEAST_1 = InFile(at_least=0), InFile(at_least=1)
UP_TO_64, UP_TO_1024 = InFile(at_least=1, at_most=64), InFile(at_least=1, at_most=1024)
CONTEXT = InFile("context", at_least=64)
CARD_NUMBER = InFile(at_least=0, at_most=255)
_PORT = InFile(at_least=0, at_most=65535)

RULES: FileRules = {
    EngineOptions: {
        **dict.fromkeys(("tp", "pp", "dp"), UP_TO_64),
        **dict.fromkeys(("batched_tokens", "batch"), AT_LEAST_1),
        "memory_share": InFile(above=0, at_most=1),
        "threads_batch": InFile(at_least=1, at_most=512),
        "kv_layout": InFile(one_of=("unified", "split")),
        "draft": InFile("speculation", parse_draft, beside="draft_model"),
        "p2p": InFile(one_of=("nvlink", "off")),
        "split": InFile(one_of=("layer", "tensor", "row", "none")),
        "card_shares": InFile(above=0),
    },
    Serve: {
        **dict.fromkeys(("replicas", "slots"), UP_TO_1024),
        **dict.fromkeys(("threads", "soft_slots"), AT_LEAST_1),
        **dict.fromkeys(("about", "preset", "kind"), HIDDEN),
        "context_tokens": CONTEXT,
        "engine_port": _PORT,
        "reserve": AT_LEAST_0,
        "gpus": CARD_NUMBER,
        "idle_unload_s": InFile("idle_unload", _SECONDS),
    },
    Upstream: {
        "slots": InFile(at_least=1, at_most=65536),
        "name": InFile(default=""),
        "reserve": AT_LEAST_0,
        "soft_slots": AT_LEAST_1,
        "health_path": InFile(pattern="^/"),
    },
    GatewaySettings: {
        **{
            f"{key}_s": InFile(key, _SECONDS)
            for key in ("aging", "dead_after", "first_byte_timeout", "idle_timeout", "total_timeout")
        },
        "port": _PORT,
        "max_queue": AT_LEAST_0,
        "max_wait_s": InFile("max_wait", parse_seconds),
        "api_key": HIDDEN,
        "body_limit_bytes": InFile("body_limit", _body_limit),
        "files_quota_bytes": InFile("files_quota", parse_bytes),
    },
    Monitor: {
        "slower_pct": InFile("slower", parse_percent),
        "ttft_ms": InFile("ttft", _milliseconds),
        "down_after": InFile(at_least=1, at_most=100),
        "quality_min": InFile(above=0, at_most=1),
        "disk_free_bytes": InFile("disk_free", parse_bytes),
        "quiet_except": InFile(one_of=("down", "slower", "ttft", "quality", "disk", "shift")),
    },
    Cluster: {"address": InFile(default="auto")},
    Settings: {
        "drain_s": InFile("drain", parse_seconds),
        "start_deadline_s": InFile("start_deadline", parse_seconds),
        "max_loaded": AT_LEAST_1,
        "overrides": HIDDEN,
    },
}
