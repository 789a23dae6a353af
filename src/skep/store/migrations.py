"""The schema, as numbered SQL files. `PRAGMA user_version` holds the number of files that a database has seen.

A file that was released is never edited: a change is a new file in `schema/`. Files run inside the caller's
transaction, statement by statement. SQLite 3.34 is enough (no STRICT, no RETURNING).
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from sqlite3 import Connection, complete_statement

APPLICATION_ID = 0x534B4550  # "SKEP": tells our files from other programs' databases
MIGRATIONS = (
    "001_runs_and_requests",
    "002_gateway_requests",
    "003_shapes_of_load",
    "004_calibrations",
    "005_verdicts_and_items",
    "006_series",
    "007_swarm",
    "008_tunings",
    "009_batch_beginnings",
)


def version_of(connection: Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def migrate(connection: Connection) -> None:
    """Bring the schema to the newest version; the caller holds the write transaction."""
    for number, name in enumerate(MIGRATIONS[version_of(connection) :], start=version_of(connection) + 1):
        for statement in _statements(files("skep.store").joinpath("schema", f"{name}.sql").read_text(encoding="utf-8")):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {number}")
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")


def _statements(text: str) -> Iterator[str]:
    """Return the statements one by one. A trigger has semicolons inside, so SQLite says where one ends."""
    statement = ""
    for line in text.splitlines(keepends=True):
        statement += line
        if complete_statement(statement):
            yield statement
            statement = ""
