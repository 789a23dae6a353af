"""Limits as a user writes them, applied to rows made by hand."""

from math import inf

import pytest
from msgspec.structs import replace
from sample_rows import evenly, request

from skep.bench.summary import promise_of, worst_share
from skep.errors import UserError
from skep.stats.slo import SloLimit, SloLimits


def row(ttft_s=0.5, total_s=2.0, tokens=11, index=0, **fields):
    """Return a request with ten tokens after the first, evenly spread."""
    return request(*evenly(ttft_s, total_s, 11), tokens=tokens, index=index, **fields)


@pytest.mark.parametrize(
    ("limits", "rows", "share"),
    [
        ("ttft=1s,tpot=100ms", [row()], 1.5),
        ("ttft=1s", [row(scheduled_s=-1.0)], 1.5),
        ("total=1s", [row(scheduled_s=-1.0)], 3.0),
        ("ttft=1s", [], inf),
        ("tpot=1s", [row(tokens=1)], inf),
    ],
    ids=[
        "of the worst limit",
        "from when it was due",
        "in total too",
        "nothing seen",
        "no time per token",
    ],
)
def test_the_share_of_a_limit(limits, rows, share):
    """TTFT is half of its limit, time a token 150 of 100 ms; a missing figure breaks a limit."""
    assert worst_share(SloLimits.parse(limits), rows) == pytest.approx(share)


# As they are written


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        (
            "ttft=1s,tpot=50ms, total_p50 = 2m",
            [("ttft", 1000.0), ("tpot", 50.0), ("total", 120_000.0, 50.0)],
        ),
        ("TTFT_p99=2s", [("ttft", 2000.0, 99.0)]),
        ("tpot_p99.9=0.5ms,ttft=999.9s", [("tpot", 0.5, 99.9), ("ttft", 999_900.0)]),
        ("ttft=1234567ms,tpot=33.33333ms", [("ttft", 1_234_567.0), ("tpot", 33.33333)]),
    ],
)
def test_names_units_and_percentiles_are_read_and_read_back_as_they_were(text, limits):
    parsed = SloLimits.parse(text)
    assert parsed.limits == tuple(SloLimit(*limit) for limit in limits)
    assert SloLimits.parse(str(parsed)) == parsed


@pytest.mark.parametrize(
    "text",
    [
        "",
        ",",
        "ttft",
        "ttft=",
        "ttft=soon",
        "ttft=-1s",
        "ttft=0s",
        "latency=1s",
        "ttft_p0=1s",
        "ttft_p100=1s",
        "ttft_px=1s",
        "ttft_pnan=1s",
        "=1s",
        "ttft==1s",
        "ttft=1s;tpot=2s",
        "ttft=1 day",
        "_p95=1s",
    ],
)
def test_what_is_no_limit_is_one_line_with_a_way_out(text):
    with pytest.raises(UserError) as caught:
        SloLimits.parse(text)
    assert caught.value.hint
    assert "\n" not in caught.value.message


# Against rows


def test_the_percentile_asked_for_decides():
    rows = [row(ttft_s=0.1, index=n) for n in range(9)] + [row(ttft_s=1.9, index=9)]
    assert worst_share(SloLimits.parse("ttft_p50=1s"), rows) < 1
    assert worst_share(SloLimits.parse("ttft_p99=1s"), rows) > 1


@pytest.mark.parametrize(("failures", "share"), [(5, 0.5), (6, inf)])
def test_five_failures_in_a_hundred_are_tolerated_and_six_are_not(failures, share):
    rows = [row(index=n, error_kind="timeout" if n < failures else None) for n in range(100)]
    assert worst_share(SloLimits.parse("ttft=1s"), rows) == pytest.approx(share)


# A whole run


@pytest.mark.parametrize(
    ("runs", "met", "failed", "safe"),
    [
        ({1: [0.1], 4: [0.5], 8: [1.5]}, 4, 8, 4),
        ({1: [0.1], 4: [1.5], 8: [0.9]}, 8, 4, 1),
        ({1: [1.5]}, None, 1, None),
        ({1: [0.5]}, 1, None, 1),
        ({4: [0.9, 1.5, 0.8]}, 4, None, 4),
        ({4: [0.5, 0.6, None]}, 4, None, 4),
    ],
    ids=[
        "kept",
        "passes above a failure",
        "none kept",
        "none failed",
        "the middle run decides",
        "one run failed",
    ],
)
def test_the_highest_level_that_kept_it_and_the_lowest_that_did_not(runs, met, failed, safe):
    """Level → a run for each time to first token in seconds; None: all failed."""
    rows = [
        replace(
            row(error_kind="timeout") if ttft is None else row(ttft_s=ttft),
            level=level,
            repeat=repeat,
        )
        for level, run in runs.items()
        for repeat, ttft in enumerate(run)
    ]
    promise = promise_of(SloLimits.parse("ttft=1s"), rows)
    assert (promise.highest_met, promise.lowest_failed, promise.safe, promise.limits) == (
        met,
        failed,
        safe,
        "ttft_p95=1000ms",
    )
