"""This machine as a rig to plan for, and what was found by calibrating it."""

from __future__ import annotations

from pathlib import Path

from skep.bench.stored_tuning import calibrated_basis, calibrated_rig
from skep.host.facts import read_host
from skep.planner.ranking import BasisOf
from skep.planner.rig_words import Found, rig_of_host


def own_rig(store: Path, link: str | None, price: float | None) -> Found:
    """Its cards; without any, its CPU as `skep calibrate` described it."""
    host = read_host()
    if not host.gpus and (rig := calibrated_rig(store, host)) is not None:
        return Found(rig, ("no GPU here: planned for the CPU as `skep calibrate` found it",))
    return rig_of_host(host, link, price=price)


def own_basis(store: Path, model_id: str, quant_id: str | None) -> BasisOf:
    """The nearest calibration on this machine, if any; its sentence goes with every plan."""
    return calibrated_basis(store, read_host(), model_id, quant_id)
