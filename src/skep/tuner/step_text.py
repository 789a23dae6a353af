"""From a contest or a failure to a stage of the ladder, with its sentence. Words and figures only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from skep.stats.sequential import SequentialVerdict
from skep.tuner.measurements import over_limit, typical
from skep.tuner.records import FAILURES, ConfigFailure, KnobChange, KnobConfig, ServerStart, StageDecision, TuneStage
from skep.units import Interval


@dataclass(frozen=True, slots=True)
class Evidence:
    """What decided about a configuration: its own starts, the incumbent's beside them, and how long all took."""

    config: KnobConfig
    incumbent: KnobConfig
    starts: tuple[ServerStart, ...]
    beside: tuple[ServerStart, ...]
    seconds: float
    predicted: float | None  # ratio

    def also(self, starts: Sequence[ServerStart], beside: Sequence[ServerStart], seconds: float) -> Evidence:
        return replace(
            self,
            starts=(*self.starts, *starts),
            beside=(*self.beside, *beside),
            seconds=self.seconds + seconds,
        )

    @property
    def changes(self) -> tuple[KnobChange, ...]:
        return self.config.changes_from(self.incumbent)


def stage_of(
    number: int, evidence: Evidence, decision: StageDecision, why: str, figure: Interval | None, *,
    ratio: Interval | None = None, failure: ConfigFailure | None = None,
) -> TuneStage:  # fmt: skip
    read = [one for one in evidence.starts if one.figures]
    return TuneStage(
        number=number,
        changes=evidence.changes,
        config=evidence.config,
        decision=decision,
        why=why,
        figure=figure,
        ratio=ratio,
        predicted=evidence.predicted,
        ttft_ms=typical(read, "ttft_ms"),
        tpot_ms=typical(read, "tpot_ms"),
        starts=len(read),
        readings=sum(len(one.figures) for one in read),
        seconds=evidence.seconds,
        failure=failure,
        runs=tuple(one.run_id for one in evidence.starts if one.run_id is not None),
    )


def speed_words(evidence: Evidence, verdict: SequentialVerdict, ratio: Interval | None) -> str:
    """Return how a contest of speeds ended."""
    if ratio is None:
        return "no reading of both sides counts: the client was the limit, or nothing was answered"
    if verdict is not SequentialVerdict.SAME:
        return f"{share_words(ratio)}, {_starts(evidence)}"
    if ratio.low > 1:
        return f"{share_words(ratio)} in {_starts(evidence)}, but by all that is known not worth another look"
    seen = 100 * (ratio.high / ratio.estimate - 1)
    return f"{share_words(ratio)}: less than {seen:.1f} % cannot be told from nothing by {_starts(evidence)}"


def limit_words(evidence: Evidence, slo: str | None, ratio: Interval | None) -> str:
    """Return the cases that limits decided."""
    here, there = over_limit(evidence.starts), over_limit(evidence.beside)
    what = "within" if here <= 1 else "beyond"
    return f"{what} {slo or 'its limits'}: {here:.2f} times the limit against {there:.2f}; speed {share_words(ratio)}"


def failure_words(failure: ConfigFailure) -> str:
    return f"{FAILURES.get(failure.kind, failure.kind)}: {failure}"


def share_words(ratio: Interval | None) -> str:
    """ "+4.1 % (+2.0 to +6.2)"."""
    if ratio is None:
        return "not measured"
    low, middle, high = (100 * (value - 1) for value in (ratio.low, ratio.estimate, ratio.high))
    return f"{middle:+.1f} % ({low:+.1f} to {high:+.1f})"


def _starts(evidence: Evidence) -> str:
    starts = sum(bool(one.figures) for one in evidence.starts)
    readings = sum(len(one.figures) for one in evidence.starts)
    return f"{starts} start{'s' if starts != 1 else ''}, {readings} reading{'s' if readings != 1 else ''}"
