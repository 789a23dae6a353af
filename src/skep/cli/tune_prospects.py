"""What a climb could try first, before anything is started: a line for each knob, with what is foreseen of its values.

On stderr with the rest of the story: the data of the command is the ladder.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from skep.cli.output import note
from skep.cli.swarm_words import one_line
from skep.tunings import Change, value_words
from skep.units import format_seconds

LONGEST = 200


@dataclass(frozen=True, slots=True)
class Prospect:
    """A change that could be tried first. `seconds`: that deciding about it is expected to take."""

    change: Change
    predicted: float | None  # ratio over the baseline; None: the planner has nothing to say
    seconds: float


def print_prospects(prospects: Sequence[Prospect]) -> None:
    for line in prospect_lines(prospects):
        note(f"  {line}")


def prospect_lines(prospects: Iterable[Prospect]) -> list[str]:
    """In the order of each knob's best change."""
    by_knob: dict[str, list[Prospect]] = {}
    for one in prospects:
        by_knob.setdefault(one.change.knob, []).append(one)
    times = {knob: f"about {format_seconds(min(one.seconds for one in same))}" for knob, same in by_knob.items()}
    width = max((len(said) for said in times.values()), default=0)
    return [f"{times[knob]:>{width}}  {one_line(_values(knob, same), LONGEST)}" for knob, same in by_knob.items()]


def _values(knob: str, prospects: Sequence[Prospect]) -> str:
    """`slots 4 → 6, 8 (+0 %), 2 (-12 %)`: values of which the same is foreseen stand together."""
    by_gain: dict[str, list[str]] = {}
    for one in prospects:
        by_gain.setdefault(_gain(one.predicted), []).append(value_words(one.change.after))
    told = ", ".join(f"{', '.join(values)} ({gain})" for gain, values in by_gain.items())
    return f"{knob} {value_words(prospects[0].change.before)} → {told}"


def _gain(ratio: float | None) -> str:
    return "not foreseen" if ratio is None else f"{round(100 * (ratio - 1)):+d} %"
