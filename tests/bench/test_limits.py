"""A promise as it is written, held against rows made by hand."""

from math import inf

import pytest

from skep.bench.summary import promise_of, worst_share
from skep.errors import UserError
from skep.stats.slo import SloLimit, SloLimits
from skep.store.records import Request


def row(ttft_s=0.5, total_s=2.0, tokens=11, index=0, **fields):
    """Ten tokens after the first, evenly."""
    steps = tuple(ttft_s + (total_s - ttft_s) * n / 10 for n in range(11))
    return Request(
        level=1,
        repeat=0,
        index=index,
        kind="fix",
        started_s=0.0,
        ended_s=total_s,
        first_token_s=steps[0],
        last_token_s=steps[-1],
        output_tokens=tokens,
        arrivals_s=steps,
        **fields,
    )


def failed(index=0):
    return row(index=index, error_kind="timeout")


# As they are written


def test_names_units_and_percentiles_are_read():
    assert SloLimits.parse("ttft=1s,tpot=50ms, total_p50 = 2m").limits == (
        SloLimit("ttft", 1000.0),
        SloLimit("tpot", 50.0),
        SloLimit("total", 120_000.0, 50.0),
    )
    assert SloLimits.parse("TTFT_p99=2s").limits == (SloLimit("ttft", 2000.0, 99.0),)


@pytest.mark.parametrize(
    "text",
    [
        "", ",", "ttft", "ttft=", "ttft=soon", "ttft=-1s", "ttft=0s", "latency=1s", "ttft_p0=1s", "ttft_p100=1s",
        "ttft_px=1s", "ttft_pnan=1s", "=1s", "ttft==1s", "ttft=1s;tpot=2s", "ttft=1 day", "_p95=1s",
    ],
)  # fmt: skip
def test_what_is_no_limit_is_one_line_with_a_way_out(text):
    with pytest.raises(UserError) as caught:
        SloLimits.parse(text)
    assert caught.value.hint
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    "text",
    ["ttft_p99=2s,tpot=50ms", "tpot_p99.9=0.5ms", "ttft=999.9s", "ttft=1234567ms", "tpot=33.33333ms"],
)
def test_what_is_stored_is_read_back_as_it_was(text):
    limits = SloLimits.parse(text)
    assert SloLimits.parse(str(limits)) == limits


# Against rows


def test_the_share_is_that_of_the_worst_limit():
    """TTFT half of its limit, 150 ms a token of 100."""
    assert worst_share(SloLimits.parse("ttft=1s,tpot=100ms"), [row()]) == pytest.approx(1.5)


def test_the_percentile_asked_for_decides():
    rows = [row(ttft_s=0.1, index=n) for n in range(9)] + [row(ttft_s=1.9, index=9)]
    assert worst_share(SloLimits.parse("ttft_p50=1s"), rows) < 1
    assert worst_share(SloLimits.parse("ttft_p99=1s"), rows) > 1


def test_latency_counts_from_when_it_was_due():
    assert worst_share(SloLimits.parse("ttft=1s"), [row(scheduled_s=-1.0)]) == pytest.approx(1.5)
    assert worst_share(SloLimits.parse("total=1s"), [row(scheduled_s=-1.0)]) == pytest.approx(3.0)


def test_five_failures_in_a_hundred_are_tolerated_and_six_are_not():
    answered = [row(index=n) for n in range(95)]
    limits = SloLimits.parse("ttft=1s")
    assert worst_share(limits, [*answered, *(failed(n) for n in range(95, 100))]) == pytest.approx(0.5)
    assert worst_share(limits, [*answered[:94], *(failed(n) for n in range(94, 100))]) == inf


def test_what_was_not_seen_was_not_kept():
    assert worst_share(SloLimits.parse("ttft=1s"), []) == inf
    assert worst_share(SloLimits.parse("tpot=1s"), [row(tokens=1)]) == inf


# A whole run


def promise(shares, limits="ttft=1s"):
    """Level → a run for each time to first token in seconds; None: all failed."""
    runs = {
        level: [[failed() if ttft is None else row(ttft_s=ttft)] for ttft in some] for level, some in shares.items()
    }
    return promise_of(SloLimits.parse(limits), runs)


def test_the_highest_level_that_kept_it_and_the_lowest_that_did_not():
    found = promise({1: [0.1], 4: [0.5], 8: [1.5]})
    assert (found.highest_met, found.lowest_failed, found.safe, found.limits) == (4, 8, 4, "ttft_p95=1000ms")


def test_a_level_that_passes_above_one_that_failed_is_not_safe():
    found = promise({1: [0.1], 4: [1.5], 8: [0.9]})
    assert (found.highest_met, found.lowest_failed, found.safe) == (8, 4, 1)


def test_nothing_kept_and_nothing_failed():
    assert promise({1: [1.5]}).highest_met is None
    assert promise({1: [0.5]}).lowest_failed is None


def test_the_middle_run_decides():
    assert promise({4: [0.9, 1.5, 0.8]}).safe == 4


def test_the_middle_run_decides_also_where_one_failed_altogether():
    assert promise({4: [0.5, 0.6, None]}).safe == 4
