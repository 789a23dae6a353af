"""Calibrations in the store: appended, found newest first, final, and deleted only as a whole."""

import sqlite3

import pytest

from skep.errors import StoreError
from skep.store.database import open_store
from skep.store.records import CalibrationRecord

NOW = 1_794_752_553.25


def calibration(name="c-1", **changes):
    values = {
        "created_at": NOW, "host": "h0", "model": "qwen3-8b", "engine": "vllm", "quant": "awq", "layout": "TP=1",
        "rig": "rtx-3090", "simulated": False, "decode": 1.2, "batch": 0.9, "prompt": 1.5,
        "document": {"runs": ["a", "b"], "deep": {"x": [1, 2.5, None]}}, "skep_version": "0.1.0",
    }  # fmt: skip
    return CalibrationRecord(id=name, **values | changes)


def test_calibrations_come_newest_first_those_of_one_host_or_all(store):
    """Of two at the same time the later row is newer; an id is taken once."""
    for name, host in (("c-1", "here"), ("c-2", "there"), ("c-3", "here")):
        store.append_calibration(calibration(name, host=host))
    assert [row.id for row in store.calibrations()] == ["c-3", "c-2", "c-1"]
    assert [row.id for row in store.calibrations("here")] == ["c-3", "c-1"]
    assert store.calibrations("nowhere") == []
    with pytest.raises(StoreError, match="does not take this row"):
        store.append_calibration(calibration())


def test_deleting_takes_only_those_named(store):
    for name in ("c-1", "c-2"):
        store.append_calibration(calibration(name))
    assert store.delete_calibrations(["c-1", "unknown"]) == 1
    assert [row.id for row in store.calibrations()] == ["c-2"]
    assert store.delete_calibrations([]) == 0


def test_deleting_a_run_leaves_the_calibration(store, begin):
    """It has the figures of its own; `skep store gc` must not take away what plans rest on."""
    run_id = begin(store)
    store.end_run(run_id, NOW, "done")
    store.append_calibration(calibration(document={"runs": [run_id]}))
    assert store.delete_runs([run_id]) == 1
    assert len(store.calibrations()) == 1


def test_people_read_a_view(store, path):
    store.append_calibration(calibration())
    reader = sqlite3.connect(path)
    query = (
        "SELECT calibration_id, measured_utc, step_factor, further_sequences_factor, prompt_factor FROM v_calibrations"
    )
    assert reader.execute(query).fetchall() == [("c-1", "2026-11-15 14:22:33", 1.2, 0.9, 1.5)]
    reader.close()


def test_the_file_of_schema_4_has_its_calibration(old_file):
    with open_store(old_file("4")) as store:
        (row,) = store.calibrations()
        assert (row.id, row.decode, row.document) == ("20261115-143000-c0ffee", 1.25, {"fitted": {"decode": 1.25}})
