"""What every page is made from: where things lie, who may look, what may be shown.

Knows nothing of HTTP.
"""

from __future__ import annotations

import json
import re
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from importlib.resources import files
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from skep.config.keys import keys_path, read_keys
from skep.errors import SkepError, UserError
from skep.monitor.store import SeriesStore
from skep.paths import LOOPBACK, Paths
from skep.store.database import Store, read_store
from skep.units import UNKNOWN, public_name, public_url

_HIDDEN = object()
_PUBLIC = tomllib.loads((files("skep.web") / "public.toml").read_text(encoding="utf-8"))
_WORDS = frozenset(_PUBLIC["words"].split())
_TELLING = frozenset(_PUBLIC["telling"].split())
HIDDEN_COLUMNS: dict[str, dict[str, str]] = _PUBLIC["columns"]
_PLACE, _NOT_A_WORD, _SECRET = (
    re.compile(_PUBLIC[name], re.IGNORECASE | re.VERBOSE)
    for name in ("place", "not_a_word", "secret")
)
_LONGEST_WORDS = 160
_LONGEST_NAME = 40
HIDDEN_ADDRESS = "another machine"  # stands for a hidden address
_TWO_OF_SOMETHING = """
SELECT (SELECT count(*) FROM (SELECT 1 FROM runs LIMIT 2)) = 2
    OR (SELECT count(*) FROM (SELECT 1 FROM targets LIMIT 2)) = 2
"""
_WITHOUT_ROWID = (
    "changes",
    "probes",
    "samples",
    "events",
    "alerts",
)  # or with an `id` that is the same


def hide_private_columns(store: Store) -> Store:
    """Return the same store, which from now on has nothing that is not for the public."""
    for function in (
        names_place,
        public_name,
        public_facts,
        public_document,
        public_word,
        public_place,
    ):
        store.add_function(function.__name__, partial(_unless_none, function))
    store.read("BEGIN")
    for table, hidden in HIDDEN_COLUMNS.items():
        columns = [row["name"] for row in store.read(f"PRAGMA main.table_info({table})")]
        assert hidden.keys() <= set(columns), table
        selected = [] if table in _WITHOUT_ROWID else ["rowid AS rowid"]
        selected += [f"{hidden.get(name, name)} AS {name}" for name in columns]
        fields = ", ".join(selected)
        store.read(f"CREATE TEMP VIEW {table} AS SELECT {fields} FROM main.{table}")  # noqa: S608
    store.read("COMMIT")
    return store


def _unless_none(function: Callable[[str], str | int], text: str | None) -> str | int | None:
    return None if text is None else function(text)


@lru_cache(maxsize=4096)
def names_place(words: str) -> bool:
    return _PLACE.search(words) is not None


def is_near(url: str) -> bool:
    """Return whether what answered ran on the client's own machine, whose facts the run has."""
    try:
        return url != HIDDEN_ADDRESS and urlsplit(url).hostname in (None, *LOOPBACK)
    except ValueError:
        return False


def public_place(url: str) -> str:
    return "" if is_near(url) else HIDDEN_ADDRESS


def public_word(name: str) -> str:
    """Return a name as it may be shown; one that could be an address, a path or somebody's text is
    not told.
    """
    if len(name) <= _LONGEST_NAME and _is_word(name):
        return name
    return "task"


def _is_word(name: str) -> bool:
    return len(name) <= _LONGEST_WORDS and not _NOT_A_WORD.search(name)


def public_facts(document: str) -> str:
    """Return the numbers of a document, and words only under names that hold no others."""
    return json.dumps(_public("", json.loads(document)))


def _public(name: str, value: Any) -> Any:
    match value:
        case dict():
            named = {
                key: field
                for key, field in value.items()
                if _is_word(key) and not _SECRET.search(key)
            }
            return {
                key: public_field
                for key, field in named.items()
                if (public_field := _public(key, field)) is not _HIDDEN
            }
        case list():
            return [
                element
                for element in (_public(name, item) for item in value)
                if element is not _HIDDEN
            ]
        case str():
            if value and name in _WORDS and _is_word(value):
                return value
            return _HIDDEN
        case _:
            return value


def public_document(document: str) -> str:
    """Return a free document with the bare names of its files, and no text that holds an address
    or is private.
    """
    if not names_place(document) and not any(f'"{key}"' in document.lower() for key in _TELLING):
        return document
    return json.dumps(_cleaned(json.loads(document), private=False))


def _cleaned(value: Any, *, private: bool) -> Any:
    match value:
        case dict():
            return {
                key: _cleaned(field, private=private or key.lower() in _TELLING)
                for key, field in value.items()
            }
        case list():
            return [_cleaned(element, private=private) for element in value]
        case str() if private or names_place(value):
            name = value.rpartition("/")[2]
            is_file = value.startswith(("/", "~", "./", "../")) and " " not in value
            if is_file and not private and not names_place(name):
                return name
            return ""
        case _:
            return value


class Site(msgspec.Struct, frozen=True):
    """One dashboard, or what clients see of it. A public one is read-only.

    Neither the public nor a client is shown prompts, answers, keys, addresses, flows or paths.
    """

    paths: Paths
    public: bool = False
    client: bool = False  # as a key without the mark `admin` sees it
    guarded: bool = False  # a key is wanted
    api_key: str | None = None  # SKEP_API_KEY, an admin's
    clock: Callable[[], float] = time.time
    hosts: frozenset[str] | None = None  # names it may be asked by; None: any

    @property
    def hides_private(self) -> bool:
        return self.public or self.client

    def for_clients(self) -> Site:
        return replace(self, client=True)

    @contextmanager
    def store(self) -> Iterator[Store]:
        """Open for reading, for one request; empty where nothing is stored yet.

        Without what this view hides.
        """
        with read_store(self.paths.store) as store:
            yield hide_private_columns(store) if self.hides_private else store

    @contextmanager
    def series(self) -> Iterator[SeriesStore]:
        """Open the store for reading what was watched over time."""
        with self.store() as store:
            yield SeriesStore(store)

    def can_compare(self) -> bool:
        """Return whether there are two runs, or two targets, to stand beside each other."""
        try:
            with self.store() as store:
                return bool(store.read(_TWO_OF_SOMETHING)[0][0])
        except SkepError:
            return False

    def hide(self, url: str | None) -> str:
        """Return an address, a path or the name of a flow as it may be shown here."""
        if url is None or self.hides_private:
            return UNKNOWN
        return public_url(url)

    def label(self, model: str | None) -> str:
        """Return the name of a model.

        Where it is a file or an address, its last part alone is for everybody.
        """
        if model is None:
            return UNKNOWN
        if self.hides_private:
            return public_name(model)
        return model


def make_site(
    paths: Paths,
    *,
    host: str,
    public: bool = False,
    api_key: str | None = None,
    clock: Callable[[], float] = time.time,
) -> Site:
    """Return the site; beyond loopback a key is required, as at the gateway.

    Raise UserError where there is none.
    """
    if public:
        return Site(paths, public=True, clock=clock)
    if host in LOOPBACK:  # no page of somebody else's reaches in by a name that it lets point here
        return Site(paths, api_key=api_key, clock=clock, hosts=frozenset((*LOOPBACK, host)))
    if not api_key and not read_keys(keys_path(paths)):
        hint = (
            "`skep key add NAME` makes a key; or set SKEP_API_KEY, or bind 127.0.0.1, or say "
            "--public"
        )
        raise UserError(
            f"showing the dashboard on `{host}` without an API key would let anybody in", hint=hint
        )
    return Site(paths, guarded=True, api_key=api_key, clock=clock)
