"""How far a prediction may be off: the middle 80 % of what it was off by on sources it was not fitted on."""

from __future__ import annotations

from dataclasses import dataclass

from skep.catalog.devices import Device
from skep.catalog.geometry import Geometry
from skep.planner.setup import Layout, Speculation


@dataclass(frozen=True, slots=True)
class Band:
    """Factors on the predicted speed. `why` says what makes it wide."""

    low: float
    high: float
    why: str = ""


def band(
    model: Geometry, card: Device, layout: Layout, spec: Speculation | None, concurrency: int, *,
    engine: str = "vllm", calibrated: bool = False,
) -> Band:  # fmt: skip
    del model, card, layout, spec, concurrency, engine, calibrated
    return Band(0.75, 1.33)
