"""How far a prediction may be off: the middle 80 % of what it was off by on sources it was not fitted on."""

from __future__ import annotations

import math
from dataclasses import dataclass

from skep.catalog.devices import Device
from skep.catalog.fitted import fitted_bands
from skep.catalog.geometry import Geometry
from skep.planner.setup import Layout, Speculation

FEATURES = ("everybody", "agents", "crowd", "spec", "tp", "moe", "elsewhere", "engine")
_WORDS = {
    "crowd": "more than 64 agents",
    "spec": "speculation gains more or less with every prompt",
    "tp": "links between cards differ from box to box",
    "moe": "experts are read as the router likes",
    "elsewhere": "few measurements on such a card",
    "engine": "few measurements with this engine",
}


@dataclass(frozen=True, slots=True)
class Band:
    """Factors on the predicted speed. `why` says what makes it wide."""

    low: float
    high: float
    why: str = ""


def features(
    model: Geometry, card: Device, layout: Layout, spec: Speculation | None, concurrency: int, engine: str
) -> tuple[float, ...]:
    """What makes predictions better or worse, as zeros and ones; the first is always one."""
    known = card.vendor == "nvidia" and card.family in ("ampere", "ada", "blackwell")
    said = (
        True, concurrency > 1, concurrency > 64, spec is not None, layout.tp > 1, model.is_moe, not known,
        engine not in ("vllm", "llamacpp"),
    )  # fmt: skip
    return tuple(float(each) for each in said)


def band(
    model: Geometry, card: Device, layout: Layout, spec: Speculation | None, concurrency: int, *,
    engine: str = "vllm", calibrated: bool = False,
) -> Band:  # fmt: skip
    fitted = fitted_bands()
    seen = features(model, card, layout, spec, concurrency, engine)
    wide = sum(fitted.get(name, 0.0) * value for name, value in zip(FEATURES, seen, strict=True))
    if calibrated:
        wide += fitted.get("calibrated", 0.0)
    half = math.exp(min(wide, 1.6))
    causes = [name for name, value in zip(FEATURES, seen, strict=True) if value and fitted.get(name, 0.0) > 0.15]
    why = "; ".join(_WORDS[name] for name in causes if name in _WORDS)
    return Band(math.exp(-half), math.exp(half), why)
