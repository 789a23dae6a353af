"""Whether a climb kept what was asked for, and what came closest where it did not. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from skep.cli.tune_tables import figure_words
from skep.errors import SkepError
from skep.report.tuning_words import best_of, unit_of
from skep.tuner.measurements import over_limit
from skep.tunings import Config, Sitting, Stage, Tuning


def unmet(tuning: Tuning, stages: Sequence[Stage], sittings: Sequence[Sitting]) -> SkepError | None:
    """An SLO that nothing kept, or a target that nothing reached. None: all is well, or there is no figure at all."""
    best = best_of(stages)
    if best is None or best.figure is None:
        return None
    return _late(tuning, best, sittings) or _short(tuning, best)


def _late(tuning: Tuning, best: Stage, sittings: Sequence[Sitting]) -> SkepError | None:
    if tuning.aim.slo is None:
        return None
    by_config: dict[Config, list[Sitting]] = {}
    for sitting in sittings:
        if sitting.figures:
            by_config.setdefault(sitting.config, []).append(sitting)
    shares = {config: over_limit(seen) for config, seen in by_config.items()}
    if not shares or shares.get(best.config, 0.0) <= 1:
        return None
    closest = min(shares, key=lambda config: shares[config])
    words = ", ".join(map(str, closest.changes_from(tuning.baseline))) or "the baseline"
    if shares[closest] <= 1:
        what = f"the best is over {tuning.aim.slo} ({shares[best.config]:.2f} times it)"
        return SkepError(f"{what}; within it was only {words}, in a first look", hint="a longer --budget may decide it")
    what = f"no configuration kept {tuning.aim.slo} at C={tuning.aim.concurrency}"
    hint = "a wider --slo, or fewer agents; the nearest to it and fastest is kept all the same"
    return SkepError(f"{what}; closest came {words} with {shares[closest]:.2f} times the limit", hint=hint)


def _short(tuning: Tuning, best: Stage) -> SkepError | None:
    target, figure = tuning.aim.target, best.figure
    if target is None or figure is None or figure.estimate >= target:
        return None
    unit = unit_of(tuning)
    what = f"no configuration reached {target:g} {unit}; closest came {figure_words(figure)} {unit}"
    return SkepError(what, hint="a longer --budget, more --knobs or another --checkpoint may; the best is kept")
