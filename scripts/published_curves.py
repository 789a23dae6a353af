"""Rows of one published curve, and the planner scaled to the curve's own row at C=1."""

from __future__ import annotations

import re
from collections.abc import Mapping

from skep.planner.constants import Constants
from skep.planner.step import StepTuning
from skep.planner.validation import PublishedCase, predict, value_of

_SAME = ("source_url", "gpu", "n_gpu", "interconnect", "model", "quant_bits", "kv_dtype", "engine", "tp", "ep",
         "replicas", "spec")  # fmt: skip
_LEAST, _MOST = 0.1, 10.0


def curve_of(cells: Mapping[str, str]) -> tuple[str, ...]:
    """What stays the same in a table of measurements while concurrency changes."""
    profile = re.search(r"(?:profile|weights)=([\w.-]+)", (cells.get("notes") or "").lower())
    return (*((cells.get(name) or "").strip() for name in _SAME), profile[1] if profile else "")


def tuning_from(case: PublishedCase, constants: Constants) -> StepTuning:
    """How much longer a step takes on this machine than predicted, from one measured point at C=1.

    Prompts are left as predicted: they are bound by the tensor cores, of which decoding says nothing.
    """
    slow = 1.0
    for _ in range(4):  # the value is nearly proportional to 1 / slow: a few corrections settle it
        value = value_of(case, predict(case, constants, StepTuning(decode=slow)), constants)
        slow = min(_MOST, max(_LEAST, slow * value / case.published))
    return StepTuning(decode=slow)
