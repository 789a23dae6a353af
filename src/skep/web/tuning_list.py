"""The list of tunings: those of one model on one machine under one shape of load stand together, newest first.

Nothing here is ranked: figures of different shapes of load do not tell which is better.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from skep.report.figures import number, shortened
from skep.report.markup import Markup, banner, join, section, table, tag, text
from skep.report.tuning_words import (
    accepted,
    baseline_of,
    best_of,
    ratio_range,
    ratio_words,
    shape_words,
    tally,
    total_gain,
    unit_of,
)
from skep.store.tunings import KeptTuning, TuningState, TuningStore
from skep.tunings import Stage
from skep.web.runs_list import labelled, minute
from skep.web.site import Site

MOST = 200  # that the page lists; JSON and CSV have all
COLUMNS = (
    "id", "created_at", "state", "model", "machine", "simulated", "engine", "goal", "shape", "metric", "concurrency",
    "input_tokens", "output_tokens", "slo", "baseline", "best", "gain", "gain_low", "gain_high", "step", "stages",
    "accepted", "measured_s",
)  # fmt: skip
_HEAD = ("When", "Goal", "Engine", "From", "To", "Times", "Last step that won", "Tried", "State")
_LEFT = ("When", "Goal", "Engine", "Last step that won", "Tried", "State")
_STATE_STYLES = {TuningState.RUNNING: "left up", TuningState.INTERRUPTED: "left bad"}


@dataclass(frozen=True, slots=True)
class Climbed:
    """A stored tuning with its stages."""

    kept: KeptTuning
    stages: tuple[Stage, ...]

    @property
    def group(self) -> tuple[object, ...]:
        """Equal for those that may stand beside each other."""
        tuning = self.kept.tuning
        return tuning.simulated, tuning.model, tuning.rig, tuning.aim.shape


def climbed(tunings: TuningStore, model: str = "", limit: int | None = None) -> list[Climbed]:
    """Newest first; of one model, where one is named."""
    found = [one for one in tunings.tunings() if not model or one.tuning.model == model]
    return [Climbed(one, tuple(tunings.stages(one.id))) for one in found[:limit]]


def grouped(found: Sequence[Climbed]) -> list[list[Climbed]]:
    """Measured ones before simulated ones, then by model, machine and shape."""
    groups: dict[tuple[object, ...], list[Climbed]] = {}
    for one in found:
        groups.setdefault(one.group, []).append(one)
    return [groups[key] for key in sorted(groups, key=lambda key: tuple(map(str, key)))]


def list_body(found: Sequence[Climbed], site: Site) -> Markup:
    parts = [_section(place, group, site) for place, group in enumerate(grouped(found), 1)]
    if len(found) >= MOST:
        parts.append(tag("p", text(f"The newest {MOST}; JSON and CSV have all."), class_="below"))
    return join(parts)


def tuning_row(one: Climbed, site: Site) -> dict[str, Any]:
    """One tuning of `/api/tuning.json`: the names of COLUMNS."""
    tuning, stages = one.kept.tuning, one.stages
    base, best, gain = baseline_of(stages), best_of(stages), total_gain(stages)
    won = accepted(stages)
    return {
        "id": tuning.id, "created_at": tuning.created_at, "state": one.kept.state.value,
        "model": site.label(tuning.model), "machine": tuning.rig, "simulated": tuning.simulated,
        "engine": tuning.engine, "goal": str(tuning.aim), "shape": tuning.aim.shape, "metric": tuning.aim.metric,
        "concurrency": tuning.aim.concurrency, "input_tokens": tuning.aim.input_tokens,
        "output_tokens": tuning.aim.output_tokens, "slo": tuning.aim.slo,
        "baseline": base.figure.estimate if base and base.figure else None,
        "best": best.figure.estimate if best and best.figure else None,
        "gain": gain.estimate if gain else None, "gain_low": gain.low if gain else None,
        "gain_high": gain.high if gain else None, "step": won[-1].title if won else None, "stages": len(stages),
        "accepted": len(won), "measured_s": one.kept.measured_s,
    }  # fmt: skip


def _section(place: int, group: Sequence[Climbed], site: Site) -> Markup:
    tuning = group[0].kept.tuning
    title = f"{site.label(tuning.model)} on {tuning.rig}: {shape_words(tuning)}"
    story = None
    if tuning.simulated:
        story = banner("simulated", "Simulated", "No model ran: the rig is a prediction with noise.")
        title += " (simulated)"
    head = tag("tr", *(tag("th", text(name), scope="col", class_="left" if name in _LEFT else None) for name in _HEAD))
    made = table(f"Tunings of {title}", [head], [_row(one) for one in group])
    return section(f"group-{place}", title, story, tag("div", made, class_="stacked"))


def _row(one: Climbed) -> Markup:
    tuning, stages = one.kept.tuning, one.stages
    base, best, gain = baseline_of(stages), best_of(stages), total_gain(stages)
    unit, won = unit_of(tuning), accepted(stages)
    when = tag("a", text(minute(tuning.created_at)), href=f"/tuning/{tuning.id}")
    to = number(best.figure.estimate if best and best.figure else None)
    spread = tag("small", text(f" {ratio_range(gain)}")) if gain else text("")
    limits = tag("small", text(f" within {tuning.aim.slo}")) if tuning.aim.slo else text("")
    cells = (
        join([text(str(tuning.aim)), limits]),
        text(tuning.engine),
        text(number(base.figure.estimate if base and base.figure else None)),
        join([tag("b", text(to)), tag("small", text(f" {unit}"))]),
        join([text(ratio_words(gain)), spread]),
        text(shortened(won[-1].title, 80) if won else "none"),
        text(tally(stages) or "nothing yet"),
        text(one.kept.state.value),
    )
    state = _STATE_STYLES.get(one.kept.state, "left")
    styles = ("left wrap", "left", None, None, None, "left wrap soft", "left wrap soft", state)
    return tag(
        "tr",
        tag("th", when, scope="row", data_label="When"),
        *(labelled(name, cell, style) for name, cell, style in zip(_HEAD[1:], cells, styles, strict=True)),
    )
