"""Speculation: what drafting costs a step, and how many tokens the step brings for it."""

from __future__ import annotations

from dataclasses import dataclass

from skep.catalog.geometry import Geometry
from skep.planner.constants import Constants
from skep.planner.parts import parts_of
from skep.planner.rates import Rates
from skep.planner.setup import Speculation

_LAYERS = {"mtp": 1.0, "eagle": 1.0, "dflash": 5.0}  # of the model's own size
_DRAFT_MODEL_PARAMS = 0.6e9
_TIRING = 0.95  # a further draft after right ones: 87, 86, 80 % and 92, 86, 86 % and 75, 63, 57 % were published
_BUILT_IN_LINK = 0.1  # of the drafts' cost on several cards, where they are joined on a board


@dataclass(frozen=True, slots=True)
class Drafting:
    depth: int = 0
    accepted: float = 1.0  # tokens a step brings a sequence
    batch_s: float = 0.0
    sequence_s: float = 0.0


def drafting(
    spec: Speculation | None, model: Geometry, rates: Rates, c: Constants, *,
    ways: int, draft_bits: float, head_s: float, experts_s: float, reduce_s: float, built_in_link: bool = False,
) -> Drafting:  # fmt: skip
    """A draft reads its own layers and the whole output head; with MTP once for every drafted token."""
    if spec is None or spec.depth < 1:
        return Drafting()
    accepted = accepted_tokens(spec, c)
    if spec.method == "ngram":
        return Drafting(spec.depth, accepted)
    passes = 1 if spec.method == "dflash" else spec.depth
    params = _params(spec, model)
    launch_us = c.draft_us_llamacpp
    if not rates.llamacpp:
        launch_us = c.draft_us + (c.draft_us_moe if model.is_moe else 0.0)
        launch_us += (c.draft_us_tp if ways > 1 else 0.0) * (_BUILT_IN_LINK if built_in_link else 1.0)
    one_s = params * draft_bits / 8 / rates.read_half / ways + head_s + launch_us * 1e-6 * rates.host
    one_s += reduce_s / max(1, model.layers)
    if model.is_moe and spec.method == "mtp":
        one_s += experts_s
    compute_s = 2 * (params + parts_of(model).embedding) / rates.compute_half / ways
    return Drafting(spec.depth, accepted, passes * one_s, passes * compute_s)


def accepted_tokens(spec: Speculation, c: Constants) -> float:
    """Expected tokens of a step: a drafted one counts only if all before it were right."""
    chances = {"mtp": c.accept_mtp, "dflash": c.accept_dflash, "eagle": c.accept_eagle, "draft": c.accept_draft}
    right = chances.get(spec.method, c.accept_ngram) if spec.acceptance is None else spec.acceptance
    total, chance = 1.0, 1.0
    for place in range(spec.depth):
        chance *= right * _TIRING**place
        total += chance
    return total


def _params(spec: Speculation, model: Geometry) -> float:
    if spec.method == "draft":
        return _DRAFT_MODEL_PARAMS
    parts = parts_of(model)
    body = parts.small + parts.mlp if model.is_moe else parts.attention + parts.linear + parts.mlp
    return body / max(1, model.layers) * _LAYERS.get(spec.method, 0.0)
