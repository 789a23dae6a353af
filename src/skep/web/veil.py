"""What a public dashboard may read at all. Pages need not remember it: the connection itself does not have the rest.

Temporary views stand before the tables of the same names, for this connection only.
"""

from __future__ import annotations

from skep.store.database import Store

_FAILED = "iif(error IS NULL, NULL, coalesce(error_kind, 'it failed'))"
# A path or an address in a sentence, or at its beginning.
_PLACE = """{0} GLOB '*[ `(''"=:,<][/~]*' OR {0} GLOB '[/~]*' OR {0} LIKE '%://%'"""
_FILE = "({0} GLOB '[/~]*' OR {0} GLOB './*' OR {0} GLOB '../*')"  # nothing but a path
_NAME = "replace({0}, rtrim({0}, replace({0}, '/', '')), '')"  # of a path, what stands behind its last slash
_MODEL_OF = "document ->> '$.model'"
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


def _model(column: str) -> str:
    """A model that is a file by the bare name of it."""
    return f"iif({_FILE.format(column)}, {_NAME.format(column)}, {column})"


def _document(column: str) -> str:
    """A free document with the bare names of its files, and no text that holds an address or stands under a key that
    tells what is private. Most have nothing of it, and are handed on as they are.
    """
    asked = " OR ".join(f"{column} LIKE '%\"{key}\"%'" for key in _TELLING)
    private = " OR ".join(f"replace(fullkey, '[', '.') || '.' LIKE '%.{key}.%'" for key in _TELLING)
    some = f"{column} LIKE '%://%' OR {column} GLOB '*[\" `(=][/~.]*' OR {asked}"
    found = f"type = 'text' AND ({_FILE.format('atom')} OR {_PLACE.format('atom')} OR atom GLOB '*=/*' OR {private})"
    instead = f"iif(({private}) OR atom GLOB '* *' OR atom LIKE '%://%', '', {_NAME.format('atom')})"
    return f"""iif(NOT ({some}), {column}, (
        WITH RECURSIVE hidden(n, path, instead) AS (
            SELECT row_number() OVER (), fullkey, {instead} FROM json_tree({column}) WHERE {found}
        ), cleaned(n, document) AS (
            SELECT 0, {column}
            UNION ALL
            SELECT hidden.n, json_replace(document, path, instead) FROM cleaned JOIN hidden ON hidden.n = cleaned.n + 1
        )
        SELECT document FROM cleaned ORDER BY n DESC LIMIT 1))"""  # noqa: S608 - names of columns


# Table, column, what stands in its place. Words of servers may hold addresses and paths; kinds of errors do not.
VEILED: dict[str, dict[str, str]] = {
    "runs": {
        "url": "''",
        "model": _model("model"),
        "config": _document("config"),
        "host": _document("host"),
        "engine": _document("engine"),
    },
    "run_ends": {"error": "iif(error IS NULL, NULL, 'it failed')"},
    "requests": {"prompt": "NULL", "answer": "NULL", "reasoning": "NULL", "error": _FAILED},
    "verdicts": {"detail": "iif(detail IS NULL, NULL, '')"},
    "gateway_requests": {"flow": "NULL", "path": "''", "model": _model("model")},
    "targets": {"document": f"json_set(document, '$.url', '', '$.key_env', NULL, '$.model', {_model(_MODEL_OF)})"},
    "probes": {
        "error": _FAILED,
        "model": _model("model"),
        "host": _document("host"),
        "versions": _document("versions"),
    },
    "samples": {"error": _FAILED},
    "events": {
        "text": f"iif(kind = 'down' OR {_PLACE.format('text')}, kind, text)",
        "detail": "iif(detail LIKE '%://%' OR detail LIKE '%\"/%', '{}', detail)",
    },
    "alerts": {"message": f"iif(rule = 'down' OR {_PLACE.format('message')}, rule, message)"},
    "changes": {"because": f"iif({_PLACE.format('because')}, NULL, because)"},
    "tunings": {"model": _model("model"), "document": _document("document")},
    "tuning_session_ends": {"reason": f"iif(outcome = 'failed' OR {_PLACE.format('reason')}, 'it failed', reason)"},
    "tuning_answers": {"errand": _document("errand"), "answer": _document("answer")},
    "tuning_stages": {
        "title": f"iif({_PLACE.format('title')}, '', title)",
        "why": f"iif({_PLACE.format('why')}, '', why)",
        "config": _document("config"),
        "failure": f"iif({_PLACE.format('failure')}, failure_kind, failure)",
        "document": _document("document"),
    },
    "notices": {"via": "''", "error": "iif(error IS NULL, NULL, 'it failed')"},
}
_WITHOUT_ROWID = ("changes", "probes", "samples", "events", "alerts")  # or with an `id` that is the same


def veil(store: Store) -> Store:
    """The same store, which from now on has nothing that is not for the public."""
    store.read("BEGIN")
    for table, hidden in VEILED.items():
        columns = [row["name"] for row in store.read(f"PRAGMA main.table_info({table})")]
        assert hidden.keys() <= set(columns), table
        shown = [] if table in _WITHOUT_ROWID else ["rowid AS rowid"]
        shown += [f"{hidden.get(name, name)} AS {name}" for name in columns]
        store.read(f"CREATE TEMP VIEW {table} AS SELECT {', '.join(shown)} FROM main.{table}")  # noqa: S608
    store.read("COMMIT")
    return store
