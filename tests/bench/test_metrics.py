"""The figures, from rows made by hand so that each can be checked in one's head."""

import pytest

from skep.bench.summary import summarise
from skep.store.records import EngineTimings, Request


def row(level=1, repeat=0, index=0, start=0.0, first=1.0, last=2.0, end=2.0, tokens=10, **fields):
    return Request(
        level=level,
        repeat=repeat,
        index=index,
        kind="fix",
        started_s=start,
        ended_s=end,
        first_token_s=first,
        last_token_s=last,
        output_tokens=tokens,
        **{"arrivals_s": spread(first, last, tokens), **fields},
    )


def spread(first, last, tokens):
    """A token at a time, evenly."""
    if first is None or not tokens:
        return ()
    steps = max(1, tokens - 1)
    return tuple(first + (last - first) * n / steps for n in range(steps)) + ((last,) if tokens > 1 else ())


def levels_of(*rows):
    return {level.concurrency: level for level in summarise("r", rows).levels}


def test_effective_speed_is_output_tokens_over_wall_time():
    """Two requests of 10 tokens, at once, from 0 to 4 s: 5 tok/s."""
    level = levels_of(row(2, end=3.0), row(2, index=1, end=4.0))[2]
    assert (level.effective_tok_s, level.wall_s, level.output_tokens) == (5.0, 4.0, 20)


def test_wall_time_is_summed_over_the_runs_of_a_level():
    """The pause between two runs belongs to neither."""
    level = levels_of(row(1, 0, end=2.0), row(1, 1, start=100.0, first=101.0, last=102.0, end=104.0))[1]
    assert level.wall_s == 6.0
    assert level.effective_tok_s == pytest.approx(20 / 6)
    assert (level.effective_low, level.effective_high) == (2.5, 5.0)


def test_task_speed_is_the_median_of_tokens_from_first_to_last_token():
    rows = [row(1, 0, n, first=1.0, last=1.0 + seconds) for n, seconds in enumerate((1.0, 2.0, 10.0))]
    assert levels_of(*rows)[1].task_tok_s == 5.0


def test_contention_is_what_a_task_loses_against_one_alone():
    levels = levels_of(row(1, last=2.0), row(4, last=3.0))
    assert levels[1].contention_pct == 0.0
    assert levels[4].contention_pct == 50.0


def test_without_c_1_contention_and_speedup_are_unknown():
    summary = summarise("r", [row(4)])
    assert summary.levels[0].contention_pct is None
    assert summary.speedup is None
    assert summary.serial_wall_s is None


def test_speedup_is_serial_wall_over_the_wall_at_the_largest_c():
    summary = summarise("r", [row(1, end=8.0), row(2, end=5.0), row(8, end=2.0)])
    assert (summary.serial_wall_s, summary.swarm_wall_s, summary.speedup) == (8.0, 2.0, 4.0)


def test_time_per_token_does_not_count_the_first_one():
    level = levels_of(row(1, first=1.0, last=2.0, tokens=11))[1]
    assert level.tpot_ms.p50 == pytest.approx(100.0)


def test_ttft_counts_from_sending():
    assert levels_of(row(1, start=0.25, first=1.0))[1].ttft_ms.mean == 750.0


def test_failed_requests_count_with_their_time_and_without_their_tokens():
    level = levels_of(row(2), row(2, index=1, end=10.0, tokens=99, error_kind="cut"))[2]
    assert (level.requests, level.failed, level.effective_tok_s) == (2, 1, 1.0)


def test_a_level_where_all_failed_has_no_speed():
    level = levels_of(row(2, error_kind="connect", tokens=None, first=None, last=None))[2]
    assert level.effective_tok_s is None
    assert level.ttft_ms is None


def test_warm_up_rows_are_not_counted():
    assert list(levels_of(row(0), row(1))) == [1]


def test_one_token_answers_have_no_speed_of_their_own():
    """First and last token are the same byte: dividing by zero time would invent a figure."""
    level = levels_of(row(1, first=1.0, last=1.0, tokens=1))[1]
    assert level.task_tok_s is None
    assert level.tpot_ms is None
    assert level.effective_tok_s == 0.5


def test_the_engines_own_speed_and_cache_hits_stand_beside():
    timings = EngineTimings(cached_tokens=10, decode_tok_s=40.0)
    level = levels_of(row(1, prompt_tokens=40, engine=timings))[1]
    assert (level.engine_tok_s, level.cached_prompt_share) == (40.0, 0.25)
