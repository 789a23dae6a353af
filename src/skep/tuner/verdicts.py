"""From a contest or a failure to a stage of the ladder, with its sentence. Words and figures only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from skep.records import Interval
from skep.stats.sequential import Standing, Verdict
from skep.tuner.book import figure_of, over_limit, typical
from skep.tunings import FAILURES, Change, Config, Decision, Failure, Judged, Sitting, Stage


@dataclass(frozen=True, slots=True)
class Evidence:
    """What decided about a configuration: its own sittings, the incumbent's beside them, and how long all took."""

    config: Config
    incumbent: Config
    sittings: tuple[Sitting, ...]
    beside: tuple[Sitting, ...]
    seconds: float
    predicted: float | None  # ratio

    def also(self, sittings: Sequence[Sitting], beside: Sequence[Sitting], seconds: float) -> Evidence:
        return replace(
            self,
            sittings=(*self.sittings, *sittings),
            beside=(*self.beside, *beside),
            seconds=self.seconds + seconds,
        )

    @property
    def changes(self) -> tuple[Change, ...]:
        return self.config.changes_from(self.incumbent)


def stage_of(
    number: int, evidence: Evidence, decision: Decision, why: str, *, ratio: Interval | None = None,
    failure: Failure | None = None,
) -> Stage:  # fmt: skip
    sittings = evidence.sittings
    return Stage(
        number=number,
        changes=evidence.changes,
        config=evidence.config,
        decision=decision,
        why=why,
        figure=figure_of(sittings),
        ratio=ratio,
        predicted=evidence.predicted,
        ttft_ms=typical(sittings, "ttft_ms"),
        tpot_ms=typical(sittings, "tpot_ms"),
        starts=len(sittings),
        readings=sum(len(one.figures) for one in sittings),
        seconds=evidence.seconds,
        failure=failure,
        runs=tuple(one.run_id for one in sittings if one.run_id is not None),
    )


def contested(number: int, evidence: Evidence, verdict: Verdict, standing: Standing | None) -> Stage:
    """The end of a contest, a better one included; limits and answers are looked at elsewhere."""
    ratio = standing.ratio if standing is not None else None
    said = share_words(ratio)
    if verdict is Verdict.BETTER:
        return stage_of(number, evidence, Decision.ACCEPTED, f"{said}, {_starts(evidence)}", ratio=ratio)
    if verdict is Verdict.WORSE:
        return stage_of(number, evidence, Decision.WORSE, f"{said}, {_starts(evidence)}", ratio=ratio)
    if standing is None:
        why = "no reading of both sides counts: the client was the limit, or nothing was answered"
        return stage_of(number, evidence, Decision.SAME, why)
    seen = 100 * (math.exp(standing.reach) - 1)
    why = f"{said}: less than {seen:.1f} % cannot be told from nothing by {_starts(evidence)}"
    return stage_of(number, evidence, Decision.SAME, why, ratio=ratio)


def failed(number: int, evidence: Evidence, failure: Failure) -> Stage:
    what = FAILURES.get(failure.kind, failure.kind)
    return stage_of(number, evidence, Decision.FAILED, f"{what}: {failure}", failure=failure)


def too_late(number: int, evidence: Evidence, slo: str | None, standing: Standing | None) -> Stage:
    share = over_limit(evidence.sittings)
    why = f"beyond {slo or 'its limits'}: the worst figure is {share:.2f} times its limit"
    return stage_of(number, evidence, Decision.OVER_LIMIT, why, ratio=standing.ratio if standing else None)


def answers_worse(number: int, evidence: Evidence, judged: Judged, standing: Standing | None) -> Stage:
    ratio = standing.ratio if standing is not None else None
    return stage_of(number, evidence, Decision.ANSWERS_WORSE, f"{judged.words}; {share_words(ratio)}", ratio=ratio)


def share_words(ratio: Interval | None) -> str:
    """ "+4.1 % (+2.0 to +6.2)"."""
    if ratio is None:
        return "not measured"
    low, middle, high = (100 * (value - 1) for value in (ratio.low, ratio.estimate, ratio.high))
    return f"{middle:+.1f} % ({low:+.1f} to {high:+.1f})"


def _starts(evidence: Evidence) -> str:
    starts = sum(bool(one.figures) for one in evidence.sittings)
    readings = sum(len(one.figures) for one in evidence.sittings)
    return f"{starts} start{'s' if starts != 1 else ''}, {readings} reading{'s' if readings != 1 else ''}"
