"""The power limit of the cards as a knob: only where the user allows it by name.

Lower limits are tried. None is faster; one that costs less than can be told from noise is worth
knowing, as reading prompts takes the power and decoding hardly any less of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from skep.errors import UserError
from skep.host.power_limit import read_power_limits, set_power_limit
from skep.tuner.records import TURNS_MIN, Knob, StageDecision, TuneStage
from skep.tuner.summary import figure_words, ratio_range, ratio_words, turns_per_wh
from skep.units import number

POWER_LIMIT = "power_limit"
ALLOWED = "power-limit"  # as the user writes it
SHARES = (0.6, 0.7, 0.85)  # of what the cards may draw now
STEP_W = 5


def check_allowed(words: str, *, metric: str, simulate: bool) -> None:
    """Raise UserError for what nobody can allow, or where it means nothing."""
    if words != ALLOWED:
        raise UserError(f"--allow `{words}` is unknown", hint=f"write --allow {ALLOWED}")
    if simulate:
        raise UserError(
            f"--allow {ALLOWED} has no effect with --simulate: no card draws power",
            hint="leave it out",
        )
    if metric != TURNS_MIN:
        raise UserError(
            f"--allow {ALLOWED} is for the goal {TURNS_MIN}", hint=f"write --goal {TURNS_MIN}@4"
        )


def power_knob(cards: Sequence[int]) -> Knob:
    """Return the knob of these cards; its last value is what they may draw now.

    Raise UserError where their limits are not told, or may not be set.
    """
    if not cards:
        raise UserError("there is no card whose power could be limited", hint="leave --allow out")
    limits = read_power_limits(cards)
    for limit in limits:
        set_power_limit(limit.card, limit.limit_w)  # changes nothing, and shows whether one may
    now_w = min(limit.limit_w for limit in limits)
    least_w = max(limit.min_w for limit in limits)
    lower = {STEP_W * round(share * now_w / STEP_W) for share in SHARES}
    values = sorted(watts for watts in lower if least_w <= watts < now_w)
    return Knob(
        POWER_LIMIT, "power limit of a card, W", (*values, now_w), ordered=True, expected=0.04
    )


def cheap_limit_words(stages: Sequence[TuneStage]) -> str | None:
    """Return what the lowest limit saves whose cost cannot be told from noise; None: there is
    none.
    """
    cheap = [stage for stage in stages if _costs_nothing(stage)]
    if not cheap:
        return None
    lowest = min(cheap, key=_limit_of)
    words = f"a power limit of {_limit_of(lowest)} W costs less than the noise: "
    assert lowest.figure is not None
    words += f"{figure_words(lowest.figure)} turns/min, {ratio_words(lowest.ratio)}"
    words += f" ({ratio_range(lowest.ratio)})"
    saved_per_wh = turns_per_wh(lowest)
    if lowest.sessions is None or saved_per_wh is None:
        return words
    words += f"; {number(lowest.sessions.mean_w)} W, {number(saved_per_wh)} turns/Wh"
    baseline = next(stage for stage in stages if stage.decision is StageDecision.BASELINE)
    usual_per_wh = turns_per_wh(baseline)
    if baseline.sessions is not None and usual_per_wh is not None:
        words += f" instead of {number(baseline.sessions.mean_w)} W, {number(usual_per_wh)}"
    return words


def _costs_nothing(stage: TuneStage) -> bool:
    knobs = [change.knob for change in stage.changes]
    same = stage.decision in (StageDecision.SAME, StageDecision.ACCEPTED)
    return knobs == [POWER_LIMIT] and same and stage.figure is not None


def _limit_of(stage: TuneStage) -> int:
    watts = stage.config.get(POWER_LIMIT)
    assert isinstance(watts, int)
    return watts
