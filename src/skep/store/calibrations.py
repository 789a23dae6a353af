"""Calibrations as rows: what was measured on one machine with one setup, and the factors that were fitted to it.

The newest of a kind wins; older ones are its history. `document` has all that it takes to fit anew.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from sqlite3 import Row
from typing import Any

from skep.errors import StoreError
from skep.store.rows import insert, json_text


@dataclass(frozen=True, slots=True)
class CalibrationRecord:
    """`host` is a fingerprint of the machine, or the address of one elsewhere. Factors multiply predicted times."""

    id: str
    created_at: float  # unix time
    host: str
    model: str
    engine: str  # as the planner names it: vllm, llamacpp
    quant: str
    layout: str
    rig: str
    simulated: bool
    decode: float
    batch: float | None  # None: no higher level was measured
    prompt: float
    document: Mapping[str, Any]
    skep_version: str


CALIBRATION_COLUMNS = tuple(field.name for field in fields(CalibrationRecord))
INSERT_CALIBRATION = insert("calibrations", CALIBRATION_COLUMNS)
CALIBRATIONS = f"SELECT {', '.join(CALIBRATION_COLUMNS)} FROM calibrations"  # noqa: S608
NEWEST_FIRST = " ORDER BY created_at DESC, rowid DESC"


def calibration_row(found: CalibrationRecord) -> tuple[Any, ...]:
    """Values in the order of `CALIBRATION_COLUMNS`."""
    values = {name: getattr(found, name) for name in CALIBRATION_COLUMNS}
    return tuple((values | {"document": json_text(found.document)}).values())


def calibration_of(row: Row) -> CalibrationRecord:
    values = dict(zip(CALIBRATION_COLUMNS, row, strict=True))
    try:
        document = json.loads(values["document"])
    except ValueError as error:
        raise StoreError(f"calibration `{values['id']}` has an unreadable document: {error}") from error
    return CalibrationRecord(**values | {"simulated": bool(values["simulated"]), "document": document})
