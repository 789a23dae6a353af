"""The agents of clients.toml, with their settings filled in for an endpoint.

Starts nothing and writes nothing.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import msgspec

from skep.errors import UserError

WAIT_S = 3600  # how long an agent waits in the queue of a busy machine
MOST_OUTPUT = 32_000
MOST_AGENTS = 10  # the default of Claude Code and qwen-code
NO_KEY = "none"  # sent to an endpoint without keys
Values = dict[str, Any]
_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")


class EndpointFacts(msgspec.Struct, frozen=True):
    """What an agent is told of an endpoint. None: not known, and what needs it is left out."""

    root: str  # without /v1
    url: str  # with /v1
    key: str
    model: str
    context: int | None
    slots: int | None
    session: str
    now: str  # as ISO 8601 has it
    own_file: str = ""  # the path of the first file that skep keeps for the client

    @property
    def output(self) -> int | None:
        """Return the longest answer in tokens: at most a quarter of the context, so that a request
        with its answer always fits.
        """
        if self.context is None:
            return None
        return min(MOST_OUTPUT, self.context // 4)

    @property
    def compact_at(self) -> int | None:
        """Return the tokens at which a conversation is shortened: its answer and some results of
        tools still fit.
        """
        if self.context is None or self.output is None:
            return None
        return self.context - self.output - self.context // 20

    @property
    def agents(self) -> int | None:
        """Return how many sub-agents work at once: each takes a slot."""
        if self.slots is None:
            return None
        return max(1, min(MOST_AGENTS, self.slots))

    def named(self) -> dict[str, str | int | None]:
        limits = {"output": self.output, "compact_at": self.compact_at, "agents": self.agents}
        waits = {"wait_s": WAIT_S, "wait_ms": 1000 * WAIT_S}
        return {**msgspec.structs.asdict(self), **limits, **waits}


def context_in(entry: Mapping[str, Any]) -> int | None:
    """Return the tokens that a request may have, as skep, vLLM, llama.cpp or others report it."""
    sizes = (
        _table(entry, "skep").get("context"),
        entry.get("max_model_len"),
        entry.get("context_length"),
        _table(entry, "meta").get("n_ctx"),
    )
    return next((size for size in sizes if isinstance(size, int) and size > 0), None)


def slots_in(entry: Mapping[str, Any]) -> int | None:
    slots = _table(entry, "skep").get("slots")
    if isinstance(slots, int) and slots > 0:
        return slots
    return None


def _table(entry: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    table = entry.get(key)
    if isinstance(table, dict):
        return table
    return {}


class ConfigFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of the client's own. `variables_at`: the key below which the variables stand."""

    paths: list[str]
    format: Literal["json", "toml", "yaml"]
    values: Values = {}
    variables_at: str | None = None


class OwnFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file that skep keeps for a client.

    `extends`: the user's file whose content it also has.
    """

    name: str
    variable: str | None = None
    is_folder: bool = False
    extends: list[str] = []
    wrap: str = "{json}\n"
    values: Values = {}


class Client(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One agent as clients.toml describes it."""

    title: str
    program: str
    install: str
    speaks: str
    files: list[ConfigFile]
    env: dict[str, str] = {}
    unset: list[str] = []
    args: list[str] = []
    own_files: list[OwnFile] = []
    flag: str | None = None
    content_variable: str | None = None
    key_reference: str | None = None
    start_values: Values = {}
    write_values: Values = {}
    min_context: int = 0
    write_note: str = ""

    def variables(self, facts: EndpointFacts) -> dict[str, str]:
        variables = filled(self.env, facts)
        return {name: str(value) for name, value in variables.items()}

    def written_values(self, file: ConfigFile, facts: EndpointFacts) -> Values:
        """Return what belongs into a file of the client's own."""
        if file.variables_at is not None:
            return {file.variables_at: self.variables(facts)}
        values = filled(file.values, facts)
        if file is self.files[0]:
            return merged(values, filled(self.write_values, facts))
        return merged(values, {})

    def started_values(self, facts: EndpointFacts) -> Values:
        """Return what the client is started with; the key may be the name of its variable."""
        if self.key_reference is not None:
            facts = msgspec.structs.replace(facts, key=self.key_reference)
        return merged(filled(self.files[0].values, facts), filled(self.start_values, facts))


@cache
def clients() -> Mapping[str, Client]:
    file = resources.files("skep.clients").joinpath("clients.toml")
    tables = tomllib.loads(file.read_text(encoding="utf-8"))
    return msgspec.convert(tables, dict[str, Client])


def client_named(name: str) -> Client:
    definitions = clients()
    if name in definitions:
        return definitions[name]
    hint = f"skep knows {', '.join(definitions)}"
    similar = get_close_matches(name.lower(), definitions, 1)
    if similar:
        hint = f"did you mean `{similar[0]}`? {hint}"
    raise UserError(f"there is no agent `{name}`", hint=hint)


def filled(value: Any, facts: EndpointFacts) -> Any:
    """Return a value of clients.toml with the facts filled in; None where one is unknown."""
    values = facts.named()
    if isinstance(value, str):
        return _filled_text(value, values)
    if isinstance(value, list):
        parts = [filled(part, facts) for part in value]
        return [part for part in parts if part is not None]
    if isinstance(value, dict):
        pairs = {_filled_text(key, values): filled(part, facts) for key, part in value.items()}
        return {key: part for key, part in pairs.items() if part is not None}
    return value


def _filled_text(text: str, values: Mapping[str, str | int | None]) -> Any:
    """Return a text with its placeholders filled in; one that is all of it keeps its type."""
    only_name = text[1:-1]
    if text == f"{{{only_name}}}" and only_name in values:
        return values[only_name]
    names = _PLACEHOLDER.findall(text)
    if any(values.get(name, "") is None for name in names):
        return None

    def value_of(match: re.Match[str]) -> str:
        return str(values.get(match[1], match[0]))

    return _PLACEHOLDER.sub(value_of, text)


def merged(values: Values, changes: Mapping[str, Any]) -> Values:
    """Return the values with the changes, table by table."""
    result = dict(values)
    for key, value in changes.items():
        inner = result.get(key)
        if isinstance(inner, dict) and isinstance(value, dict):
            result[key] = merged(inner, value)
        else:
            result[key] = value
    return result


def leaves(
    values: Mapping[str, Any], path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield each value that is no table, with its path."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from leaves(value, (*path, key))
        else:
            yield (*path, key), value


def first_path(paths: list[str], env: Mapping[str, str]) -> Path:
    """Return the first path that exists, else the first whose variable is set."""
    home = Path(env.get("HOME") or Path.home())
    expanded = [_expanded(text, env, home) for text in paths]
    candidates = [path for path in expanded if path is not None]
    return next((path for path in candidates if path.exists()), candidates[0])


def _expanded(text: str, env: Mapping[str, str], home: Path) -> Path | None:
    beginning, _, rest = text.partition("/")
    if beginning == "~":
        return home / rest
    folder = env.get(beginning.removeprefix("$"))
    if not folder:
        return None
    return Path(folder, rest)


def toml_value(value: Any) -> str:
    """Return a string, number, flag or list of these as TOML."""
    if isinstance(value, list):
        return f"[{', '.join(map(toml_value, value))}]"
    return json.dumps(value, ensure_ascii=False)  # TOML has no pairs of surrogates
