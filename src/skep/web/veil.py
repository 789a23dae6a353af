"""What a public dashboard may read at all. Pages need not remember it: the connection itself does not have the rest.

Temporary views stand before the tables of the same names, for this connection only.
"""

from __future__ import annotations

from skep.store.database import Store

_FAILED = "iif(error IS NULL, NULL, coalesce(error_kind, 'it failed'))"
_PLACE = "{0} GLOB '*[ `(][/~]*' OR {0} LIKE '%://%'"  # a path or an address in a sentence
# Table, column, what stands in its place. Words of servers may hold addresses and paths; kinds of errors do not.
VEILED: dict[str, dict[str, str]] = {
    "runs": {"url": "''"},
    "run_ends": {"error": "iif(error IS NULL, NULL, 'it failed')"},
    "requests": {"prompt": "NULL", "answer": "NULL", "reasoning": "NULL", "error": _FAILED},
    "verdicts": {"detail": "iif(detail IS NULL, NULL, '')"},
    "gateway_requests": {"flow": "NULL"},
    "targets": {"document": "json_set(document, '$.url', '', '$.key_env', NULL)"},
    "probes": {"error": _FAILED},
    "samples": {"error": _FAILED},
    "events": {
        "text": f"iif(kind = 'down' OR {_PLACE.format('text')}, kind, text)",
        "detail": "iif(detail LIKE '%://%' OR detail LIKE '%\"/%', '{}', detail)",
    },
    "alerts": {"message": f"iif(rule = 'down' OR {_PLACE.format('message')}, rule, message)"},
    "changes": {"because": f"iif({_PLACE.format('because')}, NULL, because)"},
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
