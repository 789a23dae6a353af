"""The columns that a public dashboard may read. Its connection to the store does not have the others.

For this connection only, temporary views replace the tables of the same names.
"""

from __future__ import annotations

import re
from functools import lru_cache

from skep.store.database import Store
from skep.units import public_name

# A path or an address, anywhere in some words: `names_place` in the queries below.
_PLACE = re.compile(
    r"""://|(?:^|[\s`('"=:,<])(?:\.{0,2}/|~)"""  # a path; `50/50` is none
    r"|\b\d{1,3}(?:\.\d{1,3}){3}\b"  # IPv4; `570.86.10` is none
    r"|\b[0-9a-f]{1,4}::|(?<![\w:])::[0-9a-f]|(?:\b[0-9a-f]{1,4}:){7}"  # IPv6; `std::string` is none
    r"|\b[a-z][\w.-]*:(?:\d{4,5}|80|443)\b|\blocalhost\b"  # host and port; `at 10:30` is none
    r"|\b[\w-]+\.(?:local|lan|internal|intranet|home|corp|private|test|example|localdomain|arpa"
    r"|com|net|org|io|ai|dev|cloud|app|co|de|eu|uk|us|ch|fr)\b",
    re.IGNORECASE,
)
_MODEL = "public_name(model)"
_REPLICA = "iif(replica IS NULL, NULL, '')"  # the name of a server elsewhere is made of its address
_FAILED = "iif(error IS NULL, NULL, coalesce(error_kind, 'it failed'))"
_FILE = "({0} GLOB '[/~]*' OR {0} GLOB './*' OR {0} GLOB '../*')"  # nothing but a path
_NAME = "replace({0}, rtrim({0}, replace({0}, '/', '')), '')"  # of a path, what stands behind its last slash
_TELLING = (
    "headers",
    "argv",
    "command",
    "env",
    "extra",
    "before",
    "hostname",
    "user",
    "key",
    "api_key",
    "key_env",
    "token",
    "password",
    "uuid",
    "serial",
)


def _document(column: str) -> str:
    """A free document with the bare names of its files, and no text that holds an address or stands under a key that
    tells what is private. Most have nothing of it, and are handed on as they are.
    """
    asked = " OR ".join(f"{column} LIKE '%\"{key}\"%'" for key in _TELLING)
    private = " OR ".join(f"replace(fullkey, '[', '.') || '.' LIKE '%.{key}.%'" for key in _TELLING)
    name = _NAME.format("atom")
    bare = f"{_FILE.format('atom')} AND NOT ({private}) AND atom NOT GLOB '* *' AND NOT names_place({name})"
    return f"""iif(NOT (names_place({column}) OR {asked}), {column}, (
        WITH RECURSIVE hidden(n, path, instead) AS (
            SELECT row_number() OVER (), fullkey, iif({bare}, {name}, '') FROM json_tree({column})
            WHERE type = 'text' AND (names_place(atom) OR {private})
        ), cleaned(n, document) AS (
            SELECT 0, {column}
            UNION ALL
            SELECT hidden.n, json_replace(document, path, instead) FROM cleaned JOIN hidden ON hidden.n = cleaned.n + 1
        )
        SELECT document FROM cleaned ORDER BY n DESC LIMIT 1))"""  # noqa: S608 - names of columns


# Table, column, what stands in its place. Words of servers may hold addresses and paths; kinds of errors do not.
HIDDEN_COLUMNS: dict[str, dict[str, str]] = {
    "runs": {
        "url": "''",
        "model": _MODEL,
        "config": _document("config"),
        "host": _document("host"),
        "engine": _document("engine"),
    },
    "run_ends": {"error": "iif(error IS NULL, NULL, 'it failed')"},
    "requests": {"prompt": "NULL", "answer": "NULL", "reasoning": "NULL", "error": _FAILED, "replica": _REPLICA},
    "verdicts": {"detail": "iif(detail IS NULL, NULL, '')"},
    "gateway_requests": {"flow": "NULL", "path": "''", "model": _MODEL, "replica": _REPLICA},
    "targets": {
        "document": "json_set(document, '$.url', '', '$.key_env', NULL, '$.model', public_name(document ->> '$.model'))"
    },
    "probes": {"error": _FAILED, "model": _MODEL, "host": _document("host"), "versions": _document("versions")},
    "samples": {"error": _FAILED},
    "events": {
        "text": "iif(kind = 'down' OR names_place(text), kind, text)",
        "detail": "iif(names_place(detail), '{}', detail)",
    },
    "alerts": {"message": "iif(rule = 'down' OR names_place(message), rule, message)"},
    "alert_ends": {"because": "iif(names_place(because), '', because)"},
    "changes": {"because": "iif(names_place(because), NULL, because)"},
    "tunings": {"model": _MODEL, "document": _document("document")},
    "tuning_session_ends": {"reason": "iif(outcome = 'failed' OR names_place(reason), 'it failed', reason)"},
    "tuning_answers": {"errand": _document("errand"), "answer": _document("answer")},
    "tuning_stages": {
        "title": "iif(names_place(title), '', title)",
        "why": "iif(names_place(why), '', why)",
        "config": _document("config"),
        "failure": "iif(names_place(failure), failure_kind, failure)",
        "document": _document("document"),
    },
    "notices": {"via": "''", "error": "iif(error IS NULL, NULL, 'it failed')"},
}
_WITHOUT_ROWID = ("changes", "probes", "samples", "events", "alerts")  # or with an `id` that is the same


def hide_private_columns(store: Store) -> Store:
    """The same store, which from now on has nothing that is not for the public."""
    store.add_function("names_place", names_place)
    store.add_function("public_name", lambda model: None if model is None else public_name(model))
    store.read("BEGIN")
    for table, hidden in HIDDEN_COLUMNS.items():
        columns = [row["name"] for row in store.read(f"PRAGMA main.table_info({table})")]
        assert hidden.keys() <= set(columns), table
        shown = [] if table in _WITHOUT_ROWID else ["rowid AS rowid"]
        shown += [f"{hidden.get(name, name)} AS {name}" for name in columns]
        store.read(f"CREATE TEMP VIEW {table} AS SELECT {', '.join(shown)} FROM main.{table}")  # noqa: S608
    store.read("COMMIT")
    return store


@lru_cache(maxsize=4096)
def names_place(words: str | None) -> bool:
    return words is not None and _PLACE.search(words) is not None
