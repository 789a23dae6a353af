"""`skep.toml` and the environment, checked and turned into settings.

`read_table` also reads presets and keys.toml.
"""

from __future__ import annotations

import math
import re
import tomllib
import unicodedata
from ast import literal_eval
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, get_args, get_origin, get_type_hints
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from skep.config.problems import LONGEST_SHOWN, Problems, TooManyProblems, meant_keys, unknown_key
from skep.config.settings import (
    CliOverrides,
    Cluster,
    GatewaySettings,
    Monitor,
    Serve,
    Settings,
    Upstream,
    check_command,
    check_webhook,
    default_context,
    parse_quiet_hours,
)
from skep.errors import UserError
from skep.paths import Paths
from skep.units import MIB, format_bytes, parse_bytes, shortened
from skep.wire.heads import parse_url

TAKEN_NAMES = ("gateway", "skep", "requests")  # of logs and rows of skep itself

LARGEST_FILE_BYTES = 4 * MIB  # of a file that a person writes
_NOT_PRINTED = ("Cc", "Cf", "Cs", "Zl", "Zp")  # categories of Unicode
_PRINTED_ALL_THE_SAME = "\n\t\u200c\u200d"  # some scripts and emoji need the last two, which join
_MANY_DIGITS = re.compile(r"[0-9a-fA-F_]{3000}")
_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "text in quotes",
    "bool": "true or false, without quotes",
    "datetime": "a date and time",
}
_BOUNDS = {">=": "at least", "<=": "at most", ">": "more than"}
_REFUSAL = re.compile(r"Expected `(\w++)[^`]*+`(?: (>=|<=|>|matching regex) (.+))?")
SLOTS_MATTER = (
    "how many sequences the server decodes at a time: vLLM --max-num-seqs, llama-server -np"
)
# Checks the values of a table against each other. It is given them, the table as it is written,
# and its place.
Check = Callable[[Any, Mapping[str, Any], str, Problems], None]
_NO_CHECKS: Mapping[type, Check] = {}
_MISSING = {  # what a key that must be there is for
    "slots": SLOTS_MATTER,
    "url": "where the server listens, such as http://127.0.0.1:8000",
    "hardware": 'as `skep plan --gpu` takes it: "2x rtx-3090"; "cpu" for none',
    "source": "who published it and where; any text for a preset of your own",
}


@cache
def hints_of(kind: type) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


@cache
def rules_of(kind: type) -> dict[str, dict[str, Any]]:
    """Return how each field stands in a file, as `msgspec.Meta(extra=...)` says.

    `key`: its name there. `kind`: its type there. `parse`: makes the value of a text, and of the
    text at the key `beside`. `hidden`: no file has it."""
    metas = {name: getattr(hint, "__metadata__", ()) for name, hint in hints_of(kind).items()}
    return {name: (meta[0].extra if meta else None) or {} for name, meta in metas.items()}


def file_keys(kind: type) -> dict[str, Any]:
    """Return the keys of a table and the types of their values."""
    hints = get_type_hints(kind)
    keys: dict[str, Any] = {}
    for name, rule in rules_of(kind).items():
        if not rule.get("hidden"):
            keys[rule.get("key", name)] = str if "parse" in rule else hints[name]
            if "beside" in rule:
                keys[rule["beside"]] = str
    return keys


def read_table(
    document: Mapping[str, Any],
    kind: Any,
    origin: str,
    docs: str,
    /,
    *,
    secret: bool = False,
    checks: Mapping[type, Check] = _NO_CHECKS,
    **given: Any,
) -> Any:
    """Return the document as a frozen value. Raise UserError with every wrong key and value.

    `docs`: what describes every key. `secret`: values are not shown. `given`: fields that the file
    does not have."""
    reader = _TableReader(docs, secret, checks)
    settings = None
    with suppress(TooManyProblems):
        settings = reader.table(document, kind, "", **given)
    reader.problems.tell(origin, docs)
    return settings


class _TableReader:
    """Fills frozen values by the names and types of their fields; msgspec checks each value.

    What is wrong is gathered in `problems` and left out of the values.
    """

    def __init__(self, docs: str, secret: bool, checks: Mapping[type, Check]) -> None:
        self.problems = Problems()
        self._docs = docs
        self._secret = secret
        self._checks = checks

    def table(self, value: Any, kind: Any, place: str, **values: Any) -> Any:
        """Return the table as a frozen value; None where it is none, or lacks a key it needs."""
        if not isinstance(value, dict):
            self.problems.add(self._wrong(place, value, "must be a table"))
            return None
        misspelt = self._check_keys(value, kind, place)
        inside = f"{place}." if place else ""
        for field in msgspec.structs.fields(kind):
            rule = rules_of(kind)[field.name]
            if "hidden" in rule or field.name in values:
                continue
            key = rule.get("key", field.name)
            if "parse" in rule and (key in value or rule.get("beside") in value):
                with self.problems.gathered():
                    values[field.name] = self._parsed(value, key, rule, inside)
            elif key in value:
                hint = rule.get("kind", hints_of(kind)[field.name])
                read = self._gathered(value[key], hint, f"{inside}{key}")
                if read is not None:
                    values[field.name] = read
            elif field.required and key not in misspelt:
                hint = _MISSING.get(key, self._docs)
                self.problems.add(UserError(f"`{inside}{key}` is missing", hint=hint))
        if not _required_fields(kind) <= values.keys():
            return None
        return self._checked(kind(**values), value, place)

    def _checked(self, record: Any, table: Mapping[str, Any], place: str) -> Any:
        """Return the value of a table, once its check has looked at it."""
        check = self._checks.get(type(record))
        if check is not None:
            check(record, table, place, self.problems)
        return record

    def _check_keys(self, table: Mapping[str, Any], kind: Any, place: str) -> set[str]:
        """Return the keys that unknown ones stand for: they are not missing as well."""
        known_keys = tuple(file_keys(kind))
        misspelt: set[str] = set()
        for key in table:
            if key not in known_keys:
                self.problems.add(unknown_key(place, key, known_keys))
                misspelt.update(meant_keys(key, known_keys))
        return misspelt

    def _parsed(
        self, table: Mapping[str, Any], key: str, rule: Mapping[str, Any], inside: str
    ) -> Any:
        texts = [table.get(name) for name in (key, rule.get("beside")) if name is not None]
        for text in texts:
            if text is not None and not isinstance(text, str):
                raise self._wrong(f"{inside}{key}", text, f"must be {_KINDS['str']}")
        return rule["parse"](*texts, key=re.sub(r"\.\d+\.", ".", f"{inside}{key}"))

    def _gathered(self, value: Any, hint: Any, place: str) -> Any:
        """Return the value as its type has it; None where it is wrong, which is a problem then."""
        try:
            return self._value(value, hint, place)
        except UserError as error:
            self.problems.add(error)
            return None

    def _value(self, value: Any, hint: Any, place: str) -> Any:
        kind = _plain_type(hint)
        origin = get_origin(kind)
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            return self.table(value, kind, place)
        if origin is Mapping:
            return self._texts(value, place)
        if kind == tuple[tuple[str, str], ...]:
            return tuple(self._texts(value, place).items())
        if origin is tuple:
            return self._items(value, get_args(kind)[0], place)
        try:
            read = msgspec.convert(value, hint, builtin_types=(datetime,))
        except msgspec.ValidationError as error:
            words = "must not be empty" if value == "" else _words(error, get_args(kind))
            raise self._wrong(place, value, words) from None
        if isinstance(read, float) and not math.isfinite(read):
            raise self._wrong(place, value, "must be a number that is not infinite")
        return read

    def _texts(self, value: Any, place: str) -> dict[str, str]:
        """Return a table of texts, without those that are wrong."""
        if not isinstance(value, dict):
            raise self._wrong(place, value, "must be a table")
        texts = {key: self._gathered(entry, str, f"{place}.{key}") for key, entry in value.items()}
        return {key: text for key, text in texts.items() if text is not None}

    def _items(self, value: Any, kind: Any, place: str) -> tuple[Any, ...]:
        """Return a list of values, without those that are wrong."""
        if not isinstance(value, list):
            raise self._wrong(place, value, "must be a list")
        items = [
            self._gathered(entry, kind, f"{place}.{number}") for number, entry in enumerate(value)
        ]
        return tuple(item for item in items if item is not None)

    def _wrong(self, place: str, value: Any, words: str) -> UserError:
        value_words = "" if self._secret else f" = {_written(value)}:"
        return UserError(f"`{place}`{value_words} {words}", hint=self._docs)


def _required_fields(kind: type) -> set[str]:
    return {field.name for field in msgspec.structs.fields(kind) if field.required}


def _plain_type(hint: Any) -> Any:
    """Return a type without its annotation, and without None."""
    plain = hint.__origin__ if get_origin(hint) is Annotated else hint
    options = get_args(plain)
    if NoneType not in options:
        return plain
    return next(option for option in options if option is not NoneType)


def _words(error: msgspec.ValidationError, options: tuple[str, ...]) -> str:
    """Return what the value must be, as a sentence goes on after it."""
    refusal = _REFUSAL.match(str(error))
    if refusal is None or isinstance(next(iter(options), None), str):
        return f"must be {', '.join(map(repr, options[:-1]))} or {options[-1]!r}"
    kind, bound, limit = refusal.groups()
    if bound is None:
        return f"must be {_KINDS[kind]}"
    if bound in _BOUNDS:
        return f"must be {_BOUNDS[bound]} {float(limit):g}"
    return f"must match {literal_eval(limit)}"


def _written(value: object) -> str:
    """Return a value as it stands in a file: `true`, not Python's `True`; in a word where it is
    long.
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return "a list"
    # Python writes no number of thousands of digits.
    if isinstance(value, int) and value.bit_length() > 256:
        return "a number of more than 77 digits"
    return shortened(repr(value), LONGEST_SHOWN)


def make_cluster(address: str, hive: str = "skep") -> Cluster:
    """Return the cluster of a typed address. Raise where address or name is not valid."""
    if address != "auto" and not re.fullmatch(
        r"(\[[0-9A-Fa-f:.]+\]|[^\s/:@]+):[0-9]{1,5}", address
    ):
        hint = (
            "write `auto` for the cluster of this machine, or the address of its head, such as "
            "10.0.0.1:6379"
        )
        quoted = shortened(address, LONGEST_SHOWN)
        raise UserError(f"`{quoted}` is not the address of a Ray cluster", hint=hint)
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", hive):
        quoted = shortened(hive, LONGEST_SHOWN)
        raise UserError(
            f"`{quoted}` is not a valid deployment name",
            hint="use letters, digits, dots, dashes: team-a",
        )
    return Cluster(address, hive)


def check_words(env: Mapping[str, str], *words: str) -> None:
    """Raise where a process cannot be given these variables or words: a wrong name, or a NUL."""
    for name in env:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            hint = "letters, digits and underscores: OMP_NUM_THREADS"
            quoted = shortened(repr(name), LONGEST_SHOWN)
            raise UserError(f"`env`: {quoted} is not the name of a variable", hint=hint)
    wrong = next((word for word in (*env.values(), *words) if "\0" in word), None)
    if wrong is not None:
        quoted = shortened(repr(wrong), LONGEST_SHOWN)
        raise UserError(
            f"{quoted} contains a NUL character, which skep cannot pass to a program",
            hint="leave it out",
        )


def make_upstream(url: str, slots: int, *, name: str = "", **fields: Any) -> Upstream:
    """Return the upstream of a typed URL, without `/v1` at its end. Its name is of host and port.

    A path before it (`/api/v1` of a cloud) becomes the prefix of every path. `fields`: of
    `Upstream`."""
    origin, path = parse_url(url, name="upstream")
    if path and not path.endswith("/v1"):
        quoted = shortened(path, LONGEST_SHOWN)
        hint = (
            f"give the server's address, such as {origin}, or what clients use, such as "
            f"{origin}{quoted}/v1"
        )
        raise UserError(
            f"upstream `{shortened(url, LONGEST_SHOWN)}` has the path `{quoted}`", hint=hint
        )
    if "@" in urlsplit(url if "://" in url else f"http://{url}").netloc:
        raise UserError(
            f"upstream `{origin}` contains a user name", hint="leave out what stands before the @"
        )
    chosen = name or re.sub(r"[^A-Za-z0-9._-]+", "-", f"{origin.host}-{origin.port}").strip("-")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", chosen) or chosen in TAKEN_NAMES:
        quoted = shortened(chosen, LONGEST_SHOWN)
        raise UserError(
            f"`{quoted}` is not a valid upstream name",
            hint="use letters, digits, dots, dashes: box-2",
        )
    return Upstream(f"{origin}{path.removesuffix('/v1')}", slots, chosen, **fields)


def find_config(path: Path | None, paths: Paths, folder: Path | None = None) -> Path | None:
    """Return the given file, which must exist; else `skep.toml` here or in the configuration
    folder; else None.
    """
    if path is not None:
        if not path.exists():
            hint = "leave --config out for the embedded model"
            raise UserError(f"the configuration file `{path}` does not exist", hint=hint)
        return path
    local = (folder or Path()) / "skep.toml"
    return next(
        (candidate for candidate in (local, paths.config / "skep.toml") if candidate.exists()),
        None,
    )


def load_settings(
    path: Path | None, paths: Paths, env: Mapping[str, str], *, folder: Path | None = None
) -> Settings:
    """Read the file that `find_config` finds; without one, serve the embedded model."""
    config = find_config(path, paths, folder)
    if config is None:
        return parse_settings({}, "environment", env)
    return parse_settings(_read(config), str(config), env, config.parent.absolute())


def settings_with_overrides(
    overrides: CliOverrides, paths: Paths, env: Mapping[str, str]
) -> Settings:
    """Return the settings of the file as it is now, with the overrides of the command line."""
    config, folder = (
        Path(name) if name else None for name in (overrides.config, overrides.folder)
    )
    return overrides.apply(load_settings(config, paths, env, folder=folder))


def parse_settings(
    document: dict[str, Any], origin: str, env: Mapping[str, str], folder: Path = Path()
) -> Settings:
    docs = "docs/configuration.md has an example of every key"
    settings: Settings = read_table(document, Settings, origin, docs, checks=_CHECKS)
    gateway = settings.gateway

    def from_folder(text: str | None) -> str | None:
        """Return a path, which may be relative to the folder of the file."""
        return text and str(folder / Path(text).expanduser())

    api_key = env.get("SKEP_API_KEY") or None
    tables = document.get("serve", [] if settings.upstream else [{}])
    return replace(
        settings,
        gateway=replace(
            gateway,
            api_key=api_key,
            tls_certificate=from_folder(gateway.tls_certificate),
            tls_key=from_folder(gateway.tls_key),
        ),
        serve=tuple(
            _with_defaults(serve, table)
            for serve, table in zip(settings.serve, tables, strict=False)
        ),
        upstream=tuple(
            make_upstream(**msgspec.structs.asdict(upstream)) for upstream in settings.upstream
        ),
    )


def _with_defaults(serve: Serve, table: Mapping[str, Any]) -> Serve:
    context = serve.context_tokens if "context" in table else default_context(serve.engine)
    on_demand = serve.on_demand or serve.idle_unload_s is not None
    return replace(serve, context_tokens=context, on_demand=on_demand)


def _check_settings(
    _settings: Settings, document: Mapping[str, Any], _place: str, problems: Problems
) -> None:
    if document.get("serve") == []:
        problems.add(UserError("`serve` has no table", hint="leave it out for the embedded model"))


def _check_serve(serve: Serve, _table: Mapping[str, Any], _place: str, problems: Problems) -> None:
    with problems.gathered():
        check_words(
            dict(serve.env), *serve.extra, serve.binary or "", serve.checkpoint or "", serve.model
        )
    if serve.room is not None:
        with problems.gathered():
            parse_bytes(serve.room, key="serve.room")
    if serve.pinned and (serve.on_demand or serve.idle_unload_s is not None):
        key = "idle_unload" if serve.idle_unload_s is not None else "on_demand"
        text = f"`pinned` and `{key}` of `{serve.model}` contradict each other"
        problems.add(UserError(text, hint="leave one out"))


def _check_gateway(
    gateway: GatewaySettings, table: Mapping[str, Any], _place: str, problems: Problems
) -> None:
    for given, missing in (("tls_certificate", "tls_key"), ("tls_key", "tls_certificate")):
        if given in table and missing not in table:
            text = f"`gateway.{given}` is set without `gateway.{missing}`"
            problems.add(UserError(text, hint="TLS needs both files"))
    for text in gateway.cors_origins:
        if text != "*" and not re.fullmatch(r"https?://[^/\s?#]+", text):
            hint = (
                'scheme, host and port without a path, such as "http://localhost:3000"; "*" '
                "allows every web page"
            )
            quoted = shortened(text, LONGEST_SHOWN)
            problems.add(
                UserError(
                    f"`gateway.cors_origins`: `{quoted}` is not the origin of a web page",
                    hint=hint,
                )
            )


def _check_upstream(
    upstream: Upstream, _table: Mapping[str, Any], _place: str, problems: Problems
) -> None:
    with problems.gathered():
        make_upstream(**msgspec.structs.asdict(upstream))


def _check_cluster(
    cluster: Cluster, _table: Mapping[str, Any], _place: str, problems: Problems
) -> None:
    with problems.gathered():
        make_cluster(cluster.address, cluster.hive)


def _check_monitor(
    monitor: Monitor, _table: Mapping[str, Any], _place: str, problems: Problems
) -> None:
    if monitor.quiet_hours is not None:
        with problems.gathered():
            parse_quiet_hours(monitor.quiet_hours)
    with problems.gathered():
        check_words(
            {name: "" for name in (monitor.webhook_env, monitor.webhook_token_env) if name},
            *monitor.command,
        )
    with problems.gathered():
        check_command(monitor.command)
    if monitor.webhook is not None and monitor.webhook_env is not None:
        text = "`monitor.webhook` and `monitor.webhook_env` cannot be combined"
        problems.add(UserError(text, hint="leave one out"))
    if monitor.webhook is not None:
        with problems.gathered():
            check_webhook(monitor.webhook, monitor.webhook_shape, name="`monitor.webhook`")


_CHECKS: Mapping[type, Check] = {  # of each table by itself, where its values have been read
    Settings: _check_settings,
    Serve: _check_serve,
    GatewaySettings: _check_gateway,
    Upstream: _check_upstream,
    Cluster: _check_cluster,
    Monitor: _check_monitor,
}


def _read(path: Path) -> dict[str, Any]:
    hint = "docs/configuration.md has an example"
    try:
        text = read_text_file(path)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}", hint=hint) from None
    try:
        return parse_toml(text)
    except ValueError as error:
        raise UserError(f"{path} cannot be read: {error}", hint=hint) from None


def read_text_file(path: Path, encoding: str = "utf-8") -> str:
    """Return the text of a file that a person has written.

    Raise OSError or ValueError for what is none.
    """
    with path.open("rb") as file:
        data = file.read(LARGEST_FILE_BYTES + 1)
    if len(data) > LARGEST_FILE_BYTES:
        raise ValueError(f"it is larger than {format_bytes(LARGEST_FILE_BYTES)}")
    return data.decode(encoding).replace("\r\n", "\n")


def parse_toml(text: str, *, secret: bool = False) -> dict[str, Any]:
    """Return the document. Raise ValueError of one line for what is none, or too deep to be read.

    `secret`: values are not shown.
    """
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValueError as error:
        raise ValueError(_longest_number(text, secret=secret) or str(error)) from None


def check_printed(document: Mapping[str, Any]) -> None:
    """Raise for a text or a key with a character that commands a terminal or hides others."""
    for place, text in _texts_in(document):
        if text.isprintable():
            continue
        order = next(filter(_is_order, text), None)
        if order is not None:
            message = (
                f"{shortened(place, LONGEST_SHOWN)} contains the character U+{ord(order):04X}, "
                "which is not printed"
            )
            raise UserError(message, hint="delete it")


def _texts_in(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield every key and every text with its place.

    Without recursion: dotted keys nest as deep as a line is long.
    """
    remaining: list[tuple[str, Any]] = [("", document)]
    while remaining:
        place, value = remaining.pop()
        if isinstance(value, str):
            yield f"`{place}`", value
        elif isinstance(value, list):
            remaining += [(f"{place}.{number}", item) for number, item in enumerate(value)]
        elif isinstance(value, dict):
            yield from (("a key", key) for key in value)
            remaining += [
                (shortened(f"{place}.{key}" if place else key, LONGEST_SHOWN), item)
                for key, item in value.items()
            ]


def _is_order(character: str) -> bool:
    return (
        unicodedata.category(character) in _NOT_PRINTED and character not in _PRINTED_ALL_THE_SAME
    )


def _longest_number(text: str, *, secret: bool) -> str | None:
    """Return which key has a number of more digits than Python reads, in words."""
    for number, line in enumerate(text.split("\n"), 1):
        if _MANY_DIGITS.search(line):
            key, _, value = line.partition("=")
            value_words = "" if secret else f" = {shortened(value.strip(), LONGEST_SHOWN)}"
            named = shortened(key.strip(), LONGEST_SHOWN)
            return f"line {number}: `{named}`{value_words}: the number has too many digits"
    return None
