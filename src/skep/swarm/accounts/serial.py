"""How long the same tasks would have taken one after the other: estimated, never made up. Pure.

The times of a crowd are no measure of it: while others decode, a task takes longer than alone. So the estimate comes
from requests that ran alone, as seconds for a prompt token and for an output token; where there are none, the sum of
the crowd's times is only a bound from above, and says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from statistics import fmean

from skep.report.figures import number, shortened
from skep.report.swarm_story import Serial, SerialSource
from skep.stats.percentiles import percentile
from skep.tasks import Attempt, Result

_DRAWS = 400
_LEAST = 3  # requests alone: with fewer, nothing is said of the spread


@dataclass(frozen=True, slots=True)
class Solo:
    """One request that ran alone. `first_s`: until its first token, without the time in a queue."""

    seconds: float
    first_s: float | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    crowd_s: float | None = None  # what the same task took in the crowd


@dataclass(frozen=True, slots=True)
class Work:
    """The done tasks of a run, as far as an estimate needs them."""

    tasks: int
    prompt_tokens: float | None  # of all of them; what is unknown of some is taken to be as of the others
    output_tokens: float | None
    crowd_s: float | None  # of the attempts that counted, without the time in a queue


def work_of(results: Sequence[Result], counted: Sequence[Attempt]) -> Work:
    """`results`: those that are done; `counted`: the attempts that brought them."""
    many = len(results)
    times = [service_s(one) for one in counted]
    return Work(
        tasks=many,
        prompt_tokens=_scaled([one.prompt_tokens for one in results], many),
        output_tokens=_scaled([one.output_tokens for one in results], many),
        crowd_s=_scaled(times, many),
    )


def service_s(attempt: Attempt) -> float:
    """Its time without that in the gateway's queue: alone, nobody stands before it."""
    return max(0.0, attempt.ended_at - attempt.started_at - (attempt.queued_ms or 0.0) / 1000)


def from_sample(work: Work, solos: Sequence[Solo], *, simulated: bool) -> Serial | None:
    """Of tasks of this very run that were repeated alone."""
    found = _estimated(work, solos)
    if found is None:
        return None
    seconds, low, high, how = found
    many = f"{len(solos)} of the tasks {'was' if len(solos) == 1 else 'were'} repeated alone after the run: {how}"
    return Serial(SerialSource.SAMPLE, seconds, low, high, len(solos), f"{many}, applied to all", simulated)


def from_elsewhere(
    work: Work, solos: Sequence[Solo], source: SerialSource, name: str, *, simulated: bool
) -> Serial | None:
    """Of requests that somebody measured alone at the same model and endpoint; they need not be like the tasks."""
    alone = [one for one in solos if one.output_tokens and one.first_s is not None and one.prompt_tokens]
    if work.prompt_tokens is None or work.output_tokens is None or not alone:
        return None
    found = _estimated(work, alone)
    if found is None:
        return None
    seconds, low, high, how = found
    lengths = f"{number(fmean([one.prompt_tokens or 0 for one in alone]), digits=0)} tokens in"
    here = f"{number(work.prompt_tokens / max(work.tasks, 1), digits=0)} here"
    words = f"{shortened(name, 120)}: {how}, applied to these tasks' tokens; its prompts had {lengths}, {here}"
    return Serial(source, seconds, low, high, len(alone), words, simulated)


def bound(work: Work, *, simulated: bool) -> Serial | None:
    """At most so much: what each task took among the others, added up."""
    if work.crowd_s is None or not work.tasks:
        return None
    words = (
        "no request of this model was measured alone, so it is only a bound: the times of the tasks among the others, "
        "without the gateway's queue, added up; alone each would have been quicker"
    )
    return Serial(SerialSource.BOUND, work.crowd_s, None, None, work.tasks, words, simulated)


def _estimated(work: Work, solos: Sequence[Solo]) -> tuple[float, float | None, float | None, str] | None:
    """Seconds, the interval over redrawn samples, and how: by tokens where they are told, else by time in the crowd."""
    whole = _total(work, solos)
    if whole is None:
        return None
    seconds, how = whole
    if len(solos) < _LEAST:
        return seconds, None, None, how
    rng = Random(len(solos))
    drawn = [_total(work, rng.choices(solos, k=len(solos))) for _ in range(_DRAWS)]
    totals = [one[0] for one in drawn if one is not None]
    return seconds, percentile(totals, 2.5), percentile(totals, 97.5), how


def _total(work: Work, solos: Sequence[Solo]) -> tuple[float, str] | None:
    out = sum(one.output_tokens or 0 for one in solos)
    told = all(one.output_tokens for one in solos) and bool(solos) and work.output_tokens is not None
    split = all(one.first_s is not None and one.prompt_tokens for one in solos) and work.prompt_tokens is not None
    if told and split and work.output_tokens is not None and work.prompt_tokens is not None:
        first = sum(one.first_s or 0.0 for one in solos) / sum(one.prompt_tokens or 0 for one in solos)
        rest = sum(one.seconds - (one.first_s or 0.0) for one in solos) / out
        words = f"{_rate(first)} prompt tok/s until the first token, {_rate(rest)} output tok/s after it"
        return first * work.prompt_tokens + rest * work.output_tokens, words
    if told and work.output_tokens is not None:
        each = sum(one.seconds for one in solos) / out
        return each * work.output_tokens, f"{_rate(each)} output tok/s with all the waiting"
    pairs = [(one.seconds, one.crowd_s) for one in solos if one.crowd_s]
    crowd = sum(many for _, many in pairs)
    if work.crowd_s is None or not crowd:
        return None
    ratio = sum(alone for alone, _ in pairs) / crowd
    return ratio * work.crowd_s, f"alone they took {number(100 * ratio, digits=0)} % of their time among the others"


def _rate(seconds_each: float) -> str:
    return number(1 / seconds_each) if seconds_each > 0 else "very many"


def _scaled(values: Sequence[float | None], many: int) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) * many if known else None
