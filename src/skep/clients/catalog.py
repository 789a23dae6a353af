"""The agents of clients.toml, filled in with what is known of an endpoint.

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

WAIT_S = 3600  # how long an agent bears the queue of a busy box
MOST_OUTPUT = 32_000
MOST_AGENTS = 10  # what Claude Code and qwen-code take by themselves
NO_KEY = "none"  # what an endpoint without keys is shown
Values = dict[str, Any]
_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")


class EndpointFacts(msgspec.Struct, frozen=True):
    """What an agent is told. None: not known, and what needs it is left out."""

    root: str  # without /v1
    url: str  # with /v1
    key: str
    model: str
    context: int | None
    slots: int | None
    session: str
    now: str  # as ISO 8601 has it
    own: str = ""  # the path of the first file of our own

    @property
    def output(self) -> int | None:
        """A quarter of the context at most, so that a request with its answer always fits."""
        if self.context is None:
            return None
        return min(MOST_OUTPUT, self.context // 4)

    @property
    def compact_at(self) -> int | None:
        """Where the conversation is shortened: the answer and some tool results fit behind it."""
        if self.context is None or self.output is None:
            return None
        return self.context - self.output - self.context // 20

    @property
    def agents(self) -> int | None:
        """How many sub-agents work at once: each takes a slot."""
        if self.slots is None:
            return None
        return max(1, min(MOST_AGENTS, self.slots))

    def named(self) -> dict[str, str | int | None]:
        limits = {"output": self.output, "compact_at": self.compact_at, "agents": self.agents}
        return {
            **msgspec.structs.asdict(self),
            **limits,
            "wait_s": WAIT_S,
            "wait_ms": 1000 * WAIT_S,
        }


def context_in(entry: Mapping[str, Any]) -> int | None:
    """Return the tokens that a request may have, as skep, vLLM, others or llama.cpp tell them."""
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
    return table if isinstance(table, dict) else {}


class ConfigFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of the client's own. `variables_at`: the key below which the variables stand."""

    paths: list[str]
    format: Literal["json", "toml", "yaml"]
    values: Values = {}
    variables_at: str | None = None


class OwnFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file that skep keeps for a client.

    `extends`: the user's file whose content it has, too.
    """

    name: str
    variable: str | None = None
    is_folder: bool = False
    extends: list[str] = []
    wrap: str = "{json}\n"
    values: Values = {}


class Client(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One agent as clients.toml has it."""

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
        return {name: str(value) for name, value in filled(self.env, facts).items()}

    def written_values(self, file: ConfigFile, facts: EndpointFacts) -> Values:
        """Return what belongs into a file of the client's own."""
        if file.variables_at is not None:
            return {file.variables_at: self.variables(facts)}
        write_values = self.write_values if file is self.files[0] else {}
        return merged(filled(file.values, facts), filled(write_values, facts))

    def started_values(self, facts: EndpointFacts) -> Values:
        """Return the same for a start, where the key is a variable's."""
        if self.key_reference is not None:
            facts = msgspec.structs.replace(facts, key=self.key_reference)
        return merged(filled(self.files[0].values, facts), filled(self.start_values, facts))


@cache
def clients() -> Mapping[str, Client]:
    text = resources.files("skep.clients").joinpath("clients.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), dict[str, Client])


def client_named(name: str) -> Client:
    definitions = clients()
    if name in definitions:
        return definitions[name]
    near = get_close_matches(name.lower(), definitions, 1)
    instead = f"did you mean `{near[0]}`? " if near else ""
    raise UserError(
        f"there is no agent `{name}`", hint=f"{instead}skep knows {', '.join(definitions)}"
    )


def filled(value: Any, facts: EndpointFacts) -> Any:
    """Return a value of the table with what is known; None where it needs something unknown."""
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


def _filled_text(text: str, known: Mapping[str, str | int | None]) -> Any:
    if text[:1] == "{" and text[1:-1] in known and text[-1:] == "}":
        return known[text[1:-1]]
    missing = [
        name for name in _PLACEHOLDER.findall(text) if name in known and known[name] is None
    ]
    if missing:
        return None
    return _PLACEHOLDER.sub(lambda match: str(known.get(match[1], match[0])), text)


def merged(values: Values, more: Mapping[str, Any]) -> Values:
    """Return both, the second before the first."""
    result = dict(values)
    for key, value in more.items():
        inner = result.get(key)
        both_tables = isinstance(inner, dict) and isinstance(value, dict)
        result[key] = merged(inner, value) if both_tables else value  # type: ignore[arg-type]
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
    """Return the first that exists, else the first whose variable is set."""
    home = Path(env.get("HOME") or Path.home())
    places = [place for text in paths if (place := _expanded(text, env, home)) is not None]
    return next((place for place in places if place.exists()), places[0])


def _expanded(text: str, env: Mapping[str, str], home: Path) -> Path | None:
    beginning, _, rest = text.partition("/")
    if beginning == "~":
        return home / rest
    folder = env.get(beginning.removeprefix("$"))
    return Path(folder, rest) if folder else None


def toml_value(value: Any) -> str:
    """Return a string, number, flag or list of these as TOML."""
    if isinstance(value, list):
        return f"[{', '.join(map(toml_value, value))}]"
    return json.dumps(value, ensure_ascii=False)  # TOML knows no pairs of surrogates
