"""What a climb foresees with, kept with the tuning: taken up again, it must foresee the same.

Weights pulled, a calibration made or a preset edited meanwhile would otherwise lead to other errands than those that
were answered.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from skep.catalog.geometry import Geometry
from skep.catalog.presets import Preset
from skep.cli.tune_ground import Ground
from skep.planner.constants import published_constants
from skep.planner.quants import QUANTS
from skep.planner.ranking import Basis
from skep.planner.setup import Rig
from skep.planner.step import Tuning as Fitted
from skep.tuner.knobs import Box
from skep.tuner.predictions import Foresight, foresight_for
from skep.tunings import Tuning


def terrain_of(ground: Ground, tuning: Tuning, checkpoints: tuple[str, ...]) -> Foresight:
    return foresight_for(
        ground.base, ground.rig, tuning.aim, tuning.knobs, ground.basis, model=ground.model, quant=ground.quant,
        checkpoints=checkpoints,
    )  # fmt: skip


def terrain_document(ground: Ground) -> dict[str, Any]:
    """Constants are the program's own: another version of it climbs differently anyway."""
    return {
        "rig": msgspec.to_builtins(ground.rig, enc_hook=dict),
        "model": msgspec.to_builtins(ground.model, enc_hook=dict),
        "quant": ground.quant.id if ground.quant is not None else None,
        "tuning": msgspec.to_builtins(ground.basis.tuning),
        "calibrated": ground.basis.calibrated,
    }


def ground_again(base: Preset, document: Mapping[str, Any]) -> Ground:
    """As it was kept. What only the choice of knobs wanted to know is not."""
    rig = msgspec.convert(document["rig"], Rig | None)
    model = msgspec.convert(document["model"], Geometry | None)
    fitted = msgspec.convert(document["tuning"], Fitted)
    basis = Basis(published_constants(), fitted, calibrated=document["calibrated"])
    quant = QUANTS[document["quant"]] if document["quant"] is not None else None
    return Ground(base, Box(rig=rig, model=model), rig.title if rig is not None else "", basis, quant)
