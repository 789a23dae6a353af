"""The same tasks one at a time and all at once. Pure.

The serial side may be a sample of the tasks: its time is scaled to all of them, with an interval.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

import msgspec
from msgspec.structs import replace

from skep.bench.metrics import Speedup, by_repeat, combined_tokens, count_truncated, repeat_of
from skep.stats.percentiles import mean_t_interval
from skep.store.records import LevelFact, Request
from skep.units import Interval

# The name of the fact that says that C=1 did some of the tasks only, and of how many.
SERIAL_SAMPLE = "serial_sample"
SAME_LENGTH = 0.05  # prompts whose mean lengths differ by no more are the same work


class SampledTasks(msgspec.Struct, frozen=True):
    """What a fact of the name `SERIAL_SAMPLE` says."""

    of: int  # tasks that the swarm did


def speedup_of(
    rows: Sequence[Request], widest: int, facts: Sequence[LevelFact] = ()
) -> Speedup | None:
    """Return the speedup of the widest level over C=1.

    None where there is nothing to compare, or where a request failed: work that was not done
    takes no time.
    """
    sampled_of = {
        fact.repeat: msgspec.convert(fact.fact, SampledTasks).of
        for fact in facts
        if fact.name == SERIAL_SAMPLE
    }
    serial, swarm = _same_tasks(rows, widest, sampled_of)
    if not serial or not swarm or not all(row.ok for row in (*serial, *swarm)):
        return None
    runs = len(by_repeat(swarm))
    serial_wall_s = len(swarm) / len(serial) * _wall_s(serial)
    swarm_wall_s = _wall_s(swarm)
    speedup = Speedup(
        tasks=len(swarm) // runs,
        concurrency=swarm[0].level,
        serial_wall_s=serial_wall_s,
        swarm_wall_s=swarm_wall_s,
        by_wall=serial_wall_s / swarm_wall_s,
        by_tokens=_by_tokens(serial, swarm, runs),
        truncated_serial=count_truncated(serial),
        truncated_swarm=count_truncated(swarm),
        tokens_serial=_output_tokens(serial),
        tokens_swarm=_output_tokens(swarm),
        combined_serial_tok_s=_combined_tok_s(serial, runs),
        combined_swarm_tok_s=_combined_tok_s(swarm, runs),
    )
    if len(serial) == len(swarm):
        return speedup
    interval = _scaled_interval(serial, speedup.tasks, serial_wall_s)
    return replace(
        speedup,
        sampled=len(serial) // runs,
        serial_wall_interval=interval,
        by_wall_interval=_divided(interval, swarm_wall_s) if interval else None,
    )


def _output_tokens(rows: Sequence[Request]) -> int:
    return sum(row.output_tokens or 0 for row in rows)


def _by_tokens(serial: Sequence[Request], swarm: Sequence[Request], runs: int) -> float | None:
    """Return the ratio of effective tok/s; None if the serial side has no tokens."""
    tokens_serial = _output_tokens(serial)
    if not tokens_serial:
        return None
    serial_tok_s = tokens_serial / _wall_s(serial) / runs
    swarm_tok_s = _output_tokens(swarm) / _wall_s(swarm) / runs
    return swarm_tok_s / serial_tok_s


def _same_tasks(
    rows: Sequence[Request], widest: int, sampled_of: Mapping[int, int]
) -> tuple[list[Request], list[Request]]:
    """Return the rows of C=1 and of the widest level, of the runs in which both did the same
    tasks; often none.

    `sampled_of`: the tasks of the swarm, by run in which C=1 did only the first ones.
    """
    if widest <= 1:
        return [], []
    serial = by_repeat(row for row in rows if row.level == 1)
    swarm = by_repeat(row for row in rows if row.level == widest)
    runs = [
        run
        for run in serial
        if run in swarm and _is_same_work(serial[run], swarm[run], sampled_of.get(run))
    ]
    return (
        [row for run in runs for row in serial[run]],
        [row for run in runs for row in swarm[run]],
    )


def _is_same_work(
    serial: Sequence[Request], swarm: Sequence[Request], sampled_of: int | None
) -> bool:
    """Return whether one run of both did as many tasks, with prompts of the same length as far as
    the server counted them.
    """
    partners = swarm
    if sampled_of is not None:
        if len(swarm) != sampled_of:
            return False
        indexes = {row.index for row in serial}
        partners = [row for row in swarm if row.index in indexes]
    if len(serial) != len(partners):
        return False
    serial_lengths = _prompt_lengths(serial)
    swarm_lengths = _prompt_lengths(partners)
    if not serial_lengths or not swarm_lengths:
        return True
    mean_length = fmean(serial_lengths)
    return abs(fmean(swarm_lengths) - mean_length) <= SAME_LENGTH * mean_length


def _prompt_lengths(rows: Sequence[Request]) -> list[int]:
    return [row.prompt_tokens for row in rows if row.prompt_tokens is not None]


def _wall_s(rows: Sequence[Request]) -> float:
    """Return the wall time of a run, the mean over runs."""
    return fmean(
        repeat_of(run, run_rows, None).wall_s for run, run_rows in by_repeat(rows).items()
    )


def _scaled_interval(sample: Sequence[Request], tasks: int, estimate_s: float) -> Interval | None:
    """Return the 95 % interval of the time that all tasks take one at a time, never below the
    time that the sample took.

    A sample of nearly all tasks leaves little open: the spread counts by the share of tasks that
    was not measured.
    """
    durations = [row.ended_s - row.started_s for row in sample]
    interval = mean_t_interval(durations)
    if interval is None:
        return None
    measured = len(sample) / len(by_repeat(sample))
    reach_s = (
        (interval.high - interval.estimate) * tasks * math.sqrt(max(0.0, 1 - measured / tasks))
    )
    return Interval(max(_wall_s(sample), estimate_s - reach_s), estimate_s, estimate_s + reach_s)


def _divided(interval: Interval, by: float) -> Interval:
    return Interval(interval.low / by, interval.estimate / by, interval.high / by)


def _combined_tok_s(rows: Sequence[Request], runs: int) -> float | None:
    """Return prompt and output tokens over the wall time; None where the server did not count the
    prompts.
    """
    tokens = combined_tokens(rows)
    if tokens is None:
        return None
    return tokens / runs / _wall_s(rows)
