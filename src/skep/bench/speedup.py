"""The same tasks one at a time and all at once. Pure.

The serial side may be a sample of the tasks: its time is scaled to all of them, with an interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

import msgspec

from skep.bench.metrics import Speedup, by_repeat, combined_tokens, repeat_of
from skep.stats.percentiles import mean_t_interval
from skep.store.records import LevelFact, Request
from skep.units import Interval

SERIAL_SAMPLE = (
    "serial_sample"  # the fact that says that C=1 did some of the tasks, and of how many
)
SAME_LENGTH = 0.05  # prompts whose mean lengths differ by no more are the same work


class SampledTasks(msgspec.Struct, frozen=True):
    """What a fact of the name `SERIAL_SAMPLE` says."""

    of: int  # tasks that the swarm did


def speedup_of(
    rows: Sequence[Request], widest: int, facts: Sequence[LevelFact] = ()
) -> Speedup | None:
    """Of C=1 and the widest level; None where there is nothing to compare, or a request failed:
    work that was not done takes no time."""
    samples = {
        fact.repeat: msgspec.convert(fact.fact, SampledTasks)
        for fact in facts
        if fact.name == SERIAL_SAMPLE
    }
    one, many = _same_tasks(
        rows, widest, {repeat: sample.of for repeat, sample in samples.items()}
    )
    if not one or not many or not all(row.ok for row in (*one, *many)):
        return None
    runs = len(by_repeat(many))
    tasks = len(many) // runs
    is_sample = len(one) < len(many)
    scale = len(many) / len(one)
    serial_wall_s = scale * _wall_s(one)
    swarm_wall_s = _wall_s(many)
    if is_sample:
        serial_interval = _scaled_interval(one, tasks, serial_wall_s)
    else:
        serial_interval = None
    tokens_serial, tokens_swarm = (
        sum(row.output_tokens or 0 for row in some) for some in (one, many)
    )
    serial_tok_s = tokens_serial / _wall_s(one) / runs
    swarm_tok_s = tokens_swarm / swarm_wall_s / runs
    return Speedup(
        tasks=tasks,
        concurrency=many[0].level,
        serial_wall_s=serial_wall_s,
        swarm_wall_s=swarm_wall_s,
        by_wall=serial_wall_s / swarm_wall_s,
        by_tokens=swarm_tok_s / serial_tok_s if tokens_serial else None,
        truncated_serial=sum(row.finish_reason == "length" for row in one),
        truncated_swarm=sum(row.finish_reason == "length" for row in many),
        tokens_serial=tokens_serial,
        tokens_swarm=tokens_swarm,
        sampled=len(one) // runs if is_sample else None,
        serial_wall_interval=serial_interval,
        by_wall_interval=_divided(serial_interval, swarm_wall_s) if serial_interval else None,
        combined_serial_tok_s=_combined_tok_s(one, runs),
        combined_swarm_tok_s=_combined_tok_s(many, runs),
    )


def _same_tasks(
    rows: Sequence[Request], widest: int, sampled: dict[int, int]
) -> tuple[list[Request], list[Request]]:
    """Return the rows of C=1 and of the widest level, of the runs in which both did the same
    tasks; often none.

    `sampled`: of how many tasks C=1 did the first ones, by run.
    """
    one, many = (by_repeat(row for row in rows if row.level == level) for level in (1, widest))

    def is_same_work(run: int) -> bool:
        """As many tasks, and prompts of the same length as far as the server counted them."""
        indexes = {row.index for row in one[run]}
        if run in sampled:
            partners = [row for row in many[run] if row.index in indexes]
        else:
            partners = many[run]
        a, b = (
            [row.prompt_tokens for row in some if row.prompt_tokens is not None]
            for some in (one[run], partners)
        )
        same_length = not a or not b or abs(fmean(b) - fmean(a)) <= SAME_LENGTH * fmean(a)
        is_whole = len(many[run]) == sampled.get(run, len(many[run]))
        return len(one[run]) == len(partners) and is_whole and same_length

    same = [run for run in one if run in many and widest > 1 and is_same_work(run)]
    return [row for run in same for row in one[run]], [row for run in same for row in many[run]]


def _wall_s(rows: Sequence[Request]) -> float:
    """Mean of the runs."""
    return fmean(repeat_of(run, some, None).wall_s for run, some in by_repeat(rows).items())


def _scaled_interval(sample: Sequence[Request], tasks: int, estimate_s: float) -> Interval | None:
    """95 %, of the time that all tasks take one at a time, never below the time that the sample
    took.

    A sample of nearly all tasks leaves little open: the spread counts by the share of tasks that
    was not measured."""
    durations = [row.ended_s - row.started_s for row in sample]
    found = mean_t_interval(durations)
    if found is None:
        return None
    measured = len(sample) / len(by_repeat(sample))
    reach_s = (found.high - found.estimate) * tasks * math.sqrt(max(0.0, 1 - measured / tasks))
    return Interval(max(_wall_s(sample), estimate_s - reach_s), estimate_s, estimate_s + reach_s)


def _divided(interval: Interval, by: float) -> Interval:
    return Interval(interval.low / by, interval.estimate / by, interval.high / by)


def _combined_tok_s(rows: Sequence[Request], runs: int) -> float | None:
    """Prompt and output tokens over the wall time; None where the server did not count the
    prompts.
    """
    tokens = combined_tokens(rows)
    if tokens is None:
        return None
    return tokens / runs / _wall_s(rows)
