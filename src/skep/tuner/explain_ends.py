"""Dead ends in words: those with one remedy together, each with the way around it that was found. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from skep.tuner.verdicts import share_words
from skep.tunings import FAILURES, Decision, Failure, Stage

MOST_NAMED = 6


def dead_end_words(stages: Sequence[Stage]) -> list[str]:
    groups: dict[tuple[str, str | None], list[tuple[Stage, Failure]]] = {}
    for stage in stages:
        if stage.failure is not None and stage.decision is Decision.FAILED:
            groups.setdefault((stage.failure.kind, stage.failure.remedy), []).append((stage, stage.failure))
    return [_told(stages, found) for found in groups.values()]


def _told(stages: Sequence[Stage], found: Sequence[tuple[Stage, Failure]]) -> str:
    first, failure = found[0]
    kind = FAILURES.get(failure.kind, failure.kind)
    if len(found) == 1:
        return f"dead end: {first.title} {kind}: {failure}{_way_out(stages, first)}"
    named = "; ".join(f"{stage.title}{_way_out(stages, stage, ', which ran with ')}" for stage, _ in found[:MOST_NAMED])
    more = f"; and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
    return f"{len(found)} dead ends, {kind}: {named}{more}; of the first: {failure}"


def _way_out(stages: Iterable[Stage], dead: Stage, lead: str = "; it ran with ") -> str:
    """A later stage that turned the same and something besides, and ran."""
    wanted = {(change.knob, change.after) for change in dead.changes}
    for stage in stages:
        turned = {(change.knob, change.after) for change in stage.changes}
        ran = stage.decision is not Decision.FAILED and stage.ratio is not None
        if stage.number > dead.number and wanted < turned and ran:
            besides = ", ".join(str(one) for one in stage.changes if (one.knob, one.after) not in wanted)
            return f"{lead}{besides}: {stage.decision}, {share_words(stage.ratio)}"
    return ""
