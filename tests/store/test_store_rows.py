"""Rows of every kind read back as they were, are final, and are found by their names."""

import sqlite3
import types
from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sample_tuning import sample_tuning
from skep.errors import StoreError, UserError
from skep.gateway.batch.store import BatchOrder, BatchRequest, BatchResult, StoredFile
from skep.monitor.records import Alert, MonitorEvent, Probe, ProbeSample
from skep.store.database import open_store
from skep.store.records import CalibrationRecord, ClientSample, GatewayRequest, LevelFact, Request
from skep.store.rows import as_stored, insert, read
from skep.store.verdicts import Verdict
from skep.swarm.records import Attempt, TaskResult
from skep.swarm.store import SwarmStore
from skep.tuner.store import TuningStore

AT = 1_794_752_553.25  # 2026-11-15 14:22:33 UTC
OF_A_RUN = {"run_id": "r"}
OF_A_SAMPLE = {"id": 7, "probe_id": 1, "target": "box", "busy": 0}
RECORDS = [
    (Request, "requests", OF_A_RUN),
    (ClientSample, "client_samples", OF_A_RUN),
    (LevelFact, "level_facts", OF_A_RUN),
    (Verdict, "verdicts", {**OF_A_RUN, "checks": "[]", "keywords_missing": "[]"}),
    (GatewayRequest, "gateway_requests", {"outcome": "answered"}),
    (CalibrationRecord, "calibrations", {}),
    (Probe, "probes", {"id": 7, "slots": 1}),
    (ProbeSample, "samples", OF_A_SAMPLE),
    (MonitorEvent, "events", {"id": 7}),
    (Alert, "alerts", {"id": 7}),
    (TaskResult, "swarm_results", {**OF_A_RUN, "task": 1}),
    (Attempt, "swarm_attempts", {**OF_A_RUN, "task": 1}),
    (StoredFile, "files", {}),
    (BatchOrder, "batches", {}),
    (BatchRequest, "batch_requests", {"batch_id": "b"}),
    (BatchResult, "batch_results", {"batch_id": "b"}),
]
PLAIN = {
    int: st.integers(0, 2**53),
    float: st.floats(allow_nan=False),
    str: st.text(st.characters(codec=None, exclude_categories=()), max_size=9),
    bool: st.booleans(),
    bytes: st.binary(max_size=9),
    Any: st.dictionaries(
        st.text(max_size=3), st.none() | st.integers() | st.lists(st.booleans(), max_size=2)
    ),
}


def values(hint):
    """Return a strategy for any value of a type."""
    origin = get_origin(hint)
    inner = get_args(hint)
    if origin is Annotated:
        return values(inner[0])
    if origin in (Union, types.UnionType):
        return st.one_of(*map(values, inner))
    if origin is Literal:
        return st.sampled_from(inner)
    if origin is tuple:
        if ... in inner:
            return st.lists(values(inner[0]), max_size=3).map(tuple)
        return st.tuples(*map(values, inner))
    if origin is Mapping:
        return st.dictionaries(st.text(max_size=5), values(inner[1]), max_size=3)
    if hint is type(None):
        return st.none()
    if isinstance(hint, type) and issubclass(hint, Enum):
        return st.sampled_from(hint)
    if hint in PLAIN:
        return PLAIN[hint]
    return records(hint)


@cache
def records(kind):
    hints = get_type_hints(kind, include_extras=True)
    return st.builds(kind, **{name: values(hints[name]) for name in kind.__struct_fields__})


@pytest.mark.parametrize(
    ("kind", "table", "extra_columns"), RECORDS, ids=lambda kind: getattr(kind, "__name__", "")
)
@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_a_record_reads_back_as_it_was(store, kind, table, extra_columns, data):
    """Each field has a column.

    Halves of a character are joined or replaced; a value without a place counts as not known.
    """
    record = data.draw(records(kind))
    record_fields = {
        name: value for name, value in extra_columns.items() if name in kind.__struct_fields__
    }
    joined = {name for name in ("closed_at", "closed_because") if hasattr(record, name)}
    record = msgspec.structs.replace(
        record, **dict.fromkeys(joined), **{k: v for k, v in record_fields.items() if k != "task"}
    )
    store._connection.execute("PRAGMA foreign_keys = OFF")
    with store.transaction() as connection:
        insert(connection, table, record, **extra_columns)
        read_records = read(connection.execute(f"SELECT * FROM {table}").fetchall(), kind)
        connection.execute("ROLLBACK")
        connection.execute("BEGIN")
    assert read_records == [msgspec.structs.replace(as_stored(record), **record_fields)]


@pytest.mark.parametrize("statement", ["DELETE FROM {}", "UPDATE {} SET rowid = rowid + 1"])
def test_rows_withstand_a_hand_at_the_database(old_file, statement):
    """Triggers refuse changes even to those who bypass this package."""
    connection = sqlite3.connect(old_file("9"))
    triggers = connection.execute(
        "SELECT tbl_name FROM sqlite_master WHERE name = tbl_name || '_no_delete'"
    ).fetchall()
    filled = [
        table for (table,) in triggers if connection.execute(f"SELECT 1 FROM {table}").fetchone()
    ]
    assert len(filled) == 28
    for table in filled:
        with pytest.raises(sqlite3.IntegrityError, match=f"rows of {table} are final"):
            connection.execute(statement.format(table))
    connection.close()


def begin_swarm_run(store, at: float) -> str:
    fields = {
        "kind": "map",
        "name": "x",
        "url": "u",
        "model": None,
        "config": {},
        "skep_version": "0",
    }
    return SwarmStore(store).begin(**fields, created_at=at, tasks=[])


def begin_tuning(store, at: float) -> str:
    return TuningStore(store).begin(sample_tuning(created_at=at))


NAMED = {
    "run": (None, lambda store, name: store.run(name), lambda store, limit: store.runs(limit)),
    "swarm run": (
        begin_swarm_run,
        lambda store, name: SwarmStore(store).run(name),
        lambda store, limit: SwarmStore(store).runs(limit),
    ),
    "tuning": (
        begin_tuning,
        lambda store, name: TuningStore(store).find(name),
        lambda store, limit: TuningStore(store).tunings(limit),
    ),
}


@pytest.mark.parametrize("noun", NAMED)
def test_rows_are_found_by_id_by_its_beginning_and_as_the_last(store, begin, noun):
    """A mistyped name shows which rows there are; no character is a wildcard."""
    make, find, newest = NAMED[noun]
    make = make or (lambda store, at: begin(store, created_at=at))
    with pytest.raises(UserError, match=f"there are no {noun}s yet"):
        find(store, "last")
    with pytest.raises(UserError, match=f"there is no {noun} `2026`; there are none yet"):
        find(store, "2026")
    older = make(store, AT)
    newer = make(store, AT + 86400)
    assert [row.id for row in newest(store, None)] == [newer, older]
    assert [row.id for row in newest(store, 1)] == [newer]
    ids = [find(store, name).id for name in ("last", "last~1", older, older[:-4], newer)]
    assert ids == [newer, older, older, older, newer]
    with pytest.raises(UserError, match=f"could be `{older}` or `{newer}`") as caught:
        find(store, "2026")
    assert "lists them all" in caught.value.hint
    for name in ("2027", "", "%", "LAST"):
        with pytest.raises(
            UserError, match=f"there is no {noun} `{name}`; the newest are `{newer}`, `{older}`"
        ):
            find(store, name)


def test_whole_id_wins_over_a_longer_one(store, begin):
    """An id that is the beginning of another still names its own run."""
    begin(store, suffix=lambda: "aaa1")
    begin(store, suffix=lambda: "aaa")
    assert store.run("20261115-142233-aaa").id == "20261115-142233-aaa"


@pytest.mark.parametrize(
    ("table", "column", "named", "ask"),
    [
        ("runs", "config", "run `20261115-142233-a1b2c3`", lambda store: store.runs()),
        (
            "calibrations",
            "document",
            "calibration `20261115-143000-c0ffee`",
            lambda store: store.calibrations(),
        ),
    ],
)
def test_unreadable_json_is_named(old_file, table, column, named, ask):
    """A row spoiled from outside is reported, not shown as empty."""
    path = old_file("9")
    with open_store(path) as store:
        store._connection.execute(f"DROP TRIGGER {table}_no_update")
        store._connection.execute(f"UPDATE {table} SET {column} = '{{'")
        with pytest.raises(
            StoreError, match=f"{named} has unreadable JSON in its column `{column}`"
        ):
            ask(store)
