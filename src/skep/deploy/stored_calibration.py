"""Calibrations that the store remembers: kept with all it takes to fit them anew, found again for
a plan.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from skep import __version__
from skep.catalog.gpus import HostFacts
from skep.host.facts import host_json, lasting_json
from skep.planner.calibration import (
    CalibrationData,
    Fitted,
    before_and_after,
    fit,
    speed_model_maker,
)
from skep.planner.ranking import Basis, BasisOf
from skep.planner.setup import Rig, Setup
from skep.planner.step import published_constants
from skep.store.database import Store, open_store
from skep.store.records import CalibrationRecord
from skep.units import GIB, format_seconds

_SOFTWARE = ("os", "python", "driver_version", "cuda_version")  # an update is no other machine


def host_key(host: HostFacts) -> str:
    """Return a digest of what makes the machine: processor, memory, cards, links, power limits."""
    lasting = {key: value for key, value in lasting_json(host).items() if key not in _SOFTWARE}
    # Kernels keep a little more or less to themselves.
    lasting["memory_bytes"] = round((host.memory_bytes or 0) / GIB)
    return hashlib.sha256(json.dumps(lasting, sort_keys=True).encode()).hexdigest()[:16]


def find_calibration(
    store: Store,
    where: HostFacts | Rig,
    model_id: str,
    engine: str,
    quant_id: str | None,
    *,
    now: float | None = None,
) -> Basis | None:
    """Return what plans rest on: the newest calibration for this model and format (None: any);
    else of this model; else of this engine at all. Its note says what is used, from when, and of
    what.

    `where`: this machine's facts, or cards, wherever they were measured.
    """
    rows = [row for row in _rows_of(store, where) if row.engine == engine and not row.simulated]
    if not rows:
        return None
    of_model = [row for row in rows if row.model == model_id]
    exact = [row for row in of_model if quant_id in (row.quant, None)]
    # The newest calibration; a sweep only where there is none.
    row = min(exact or of_model or rows, key=is_sweep)
    difference = ""
    if not of_model:
        difference = f" with {row.model}, not the model planned"
    elif not exact:
        difference = f" with {row.quant} weights, not the format planned"
    rests_on = "measured" if is_sweep(row) else "calibrated"
    on = "such cards" if isinstance(where, Rig) else "this machine"
    age = _age_words(row, time.time() if now is None else now)
    fitted = fitted_now(row)
    # With its version, where it told it.
    server = row.document.get("engine", {}).get("engine") or row.engine
    source = f"({server}, {row.layout} on {row.rig})"
    note = f"{rests_on} on {on} {age} ago{difference} {source}: {fitted}"
    tuning = replace(fitted.tuning, rests_on=rests_on)
    return Basis(published_constants(), tuning, bool(of_model), note)


def _rows_of(store: Store, where: HostFacts | Rig) -> Sequence[CalibrationRecord]:
    """Return the calibrations of a machine, or of any machine with such cards; newest first."""
    if not isinstance(where, Rig):
        return store.calibrations(host_key(where))
    return [row for row in store.calibrations() if _cards(rig_of(row.document)) == _cards(where)]


def _age_words(row: CalibrationRecord, now: float) -> str:
    age_s = max(0.0, now - row.created_at)
    return format_seconds(age_s) if age_s >= 1 else "a moment"


def is_sweep(row: CalibrationRecord) -> bool:
    """Return whether `skep bench sweep` measured the row, and not `skep calibrate`."""
    return row.document.get("by") == "sweep"


def _cards(rig: Rig | None) -> set[str]:
    if rig is None:
        return set()
    return {card.id for card in rig.cards}


def calibrated_basis(
    path: Path, where: HostFacts | Rig, model_id: str, quant_id: str | None = None
) -> BasisOf:
    """Return what plans for this machine, or for such cards, compute with, by engine: the nearest
    calibration in the store at `path`, if any."""

    @cache
    def basis_of(engine: str) -> Basis:
        if path.exists():
            with open_store(path, read_only=True) as store:
                calibration = find_calibration(store, where, model_id, engine, quant_id)
            if calibration is not None:
                return calibration
        return Basis(published_constants())

    return basis_of


def calibrated_rig(path: Path, host: HostFacts) -> Rig | None:
    """Return the rig as the newest calibration on this machine described it: where there is no
    GPU, the CPU it was measured on.
    """
    if not path.exists():
        return None
    with open_store(path, read_only=True) as store:
        rows = [row for row in store.calibrations(host_key(host)) if not row.simulated]
    return rig_of(rows[0].document) if rows else None


def fitted_now(row: CalibrationRecord) -> Fitted:
    """Return the factors as stored; fitted anew where the planner has changed since: they correct
    its predictions.
    """
    stored = msgspec.convert(row.document["fitted"], Fitted)
    rig = rig_of(row.document)
    if row.document["basis"] == basis() or rig is None:
        return stored
    try:
        setup = setup_of(row.document)
        measured = measured_of(row.document)
    except (KeyError, msgspec.ValidationError):
        return stored  # written by a skep that described setups in other words
    return fit(speed_model_maker(setup, rig, published_constants(), measured), measured)


def basis() -> str:
    """Return a digest of what predictions are made with: skep's version and its constants."""
    parts = [__version__, msgspec.to_builtins(published_constants())]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def calibration_for(
    setup: Setup,
    rig: Rig,
    measured: CalibrationData,
    fitted: Fitted,
    host: HostFacts,
    *,
    name: str,
    at: float,
    where: str,
    simulated: bool,
    extra: Mapping[str, Any],
) -> CalibrationRecord:
    """Return the calibration as the store keeps it.

    `where`: the host's key. `extra`: what else is kept, such as the runs it was made from.
    """
    setup_json, rig_json = (msgspec.to_builtins(record, enc_hook=dict) for record in (setup, rig))
    del rig_json["price"]
    for described in (setup_json["model"], *rig_json["cards"]):
        del described["origins"]
    document = {
        **extra,
        "basis": basis(),
        "host": host_json(host),
        "setup": setup_json,
        "rig": rig_json,
        "measured": msgspec.to_builtins(measured),
        "fitted": msgspec.to_builtins(fitted),
    }
    tuning = fitted.tuning
    return CalibrationRecord(
        id=name,
        created_at=at,
        host=where,
        model=setup.model.id,
        engine=setup.engine,
        quant=setup.quant.id,
        layout=str(setup.layout),
        rig=rig.title,
        simulated=simulated,
        decode=tuning.decode,
        batch=tuning.batch if fitted.batch else None,
        prompt=tuning.prompt,
        document=document,
        skep_version=__version__,
    )


def setup_of(document: Mapping[str, Any]) -> Setup:
    return msgspec.convert(document["setup"], Setup)


def rig_of(document: Mapping[str, Any]) -> Rig | None:
    try:
        return msgspec.convert(document["rig"], Rig)
    except (KeyError, msgspec.ValidationError):
        return None


def measured_of(document: Mapping[str, Any]) -> CalibrationData:
    return msgspec.convert(document["measured"], CalibrationData)


def calibration_json(row: CalibrationRecord) -> dict[str, Any]:
    fitted = fitted_now(row)
    names = (
        "id", "created_at", "host", "model", "engine", "quant", "layout", "rig", "simulated",
        "skep_version",
    )  # fmt: skip
    factors = {"decode": fitted.decode, "batch": fitted.batch, "prompt": fitted.prompt}
    return {
        **{name: getattr(row, name) for name in names},
        "url": row.document.get("url"),
        "runs": row.document.get("runs", []),
        "tuning": {name: factor.estimate if factor else None for name, factor in factors.items()},
        "intervals": {
            name: [factor.low, factor.high] if factor else None for name, factor in factors.items()
        },
        "words": str(fitted),
        "at_limit": list(fitted.at_limit),
        "levels": levels_json(row, fitted),
    }


def levels_json(row: CalibrationRecord, fitted: Fitted) -> list[dict[str, Any]]:
    """Return each level as it was measured, and as it is predicted without and with the
    calibration.
    """
    rig = rig_of(row.document)
    measured = measured_of(row.document)
    if rig is None:
        return []
    foresee = speed_model_maker(setup_of(row.document), rig, published_constants(), measured)
    held_back = {level.concurrency for level in measured.held_back}
    rows = []
    for level in measured.levels:
        before, after = before_and_after(foresee, fitted, level)
        rows.append(
            {
                "concurrency": level.concurrency,
                "runs": level.runs,
                "fitted": level.concurrency not in held_back,
                "task_tok_s": 1 / level.tpot_s.estimate,
                "spread": level.tpot_s.half_width,
                "predicted_before": 1 / before.tpot_s,
                "predicted_after": 1 / after.tpot_s,
            }
        )
    return rows
