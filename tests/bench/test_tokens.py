"""When tokens came: figures from rows made by hand, so that each can be checked in one's head."""

import pytest

from skep.bench.metrics import delivered, full_spans, gaps_ms, plateau_tok_s, tpot_ms
from skep.store.records import Request


def row(*arrivals, tokens, start=0.0, end=None, index=0, **fields):
    return Request(
        level=1,
        repeat=0,
        index=index,
        kind="fix",
        started_s=start,
        ended_s=(arrivals[-1] if arrivals else start) if end is None else end,
        first_token_s=arrivals[0] if arrivals else None,
        last_token_s=arrivals[-1] if arrivals else None,
        output_tokens=tokens,
        arrivals_s=arrivals,
        **fields,
    )


def evenly(start, end, tokens=10, **fields):
    """A token at a time over the whole request, the last one at its end."""
    steps = [start + (end - start) * n / tokens for n in range(1, tokens + 1)]
    return row(*steps, tokens=tokens, start=start, end=end, **fields)


# Time per token


def test_a_token_a_read_gives_the_time_over_all_but_the_first():
    assert tpot_ms(row(1.0, 1.1, 1.2, 1.3, tokens=4)) == pytest.approx(100.0)


def test_several_tokens_in_an_event_or_a_read_count_as_tokens():
    """(last - first) / (n - 1), as everybody defines it: by tokens, not by events."""
    assert tpot_ms(row(1.0, 1.3, 1.6, 2.1, tokens=12)) == pytest.approx(100.0)
    assert tpot_ms(row(1.0, 1.0, 1.0, 1.0, 1.7, 1.7, 1.7, 1.7, tokens=8)) == pytest.approx(100.0)


@pytest.mark.parametrize(
    "one",
    [
        row(1.0, tokens=1),
        row(1.0, 1.0, 1.0, tokens=3),
        row(1.0, 1.1, tokens=None),
        row(1.0, 1.1, tokens=0),
        row(tokens=5),
        row(1.0, 1.1, 1.2, tokens=3, error_kind="cut"),
        row(1.0, 2.0, tokens=1),
    ],
    ids=["one token", "one read", "tokens unknown", "no tokens", "no content", "failed", "less than one token later"],
)
def test_where_nothing_came_after_the_first_read_there_is_no_speed(one):
    assert tpot_ms(one) is None


# Gaps


def test_gaps_are_from_read_to_read_over_the_tokens_that_came():
    gaps = list(gaps_ms(row(1.0, 1.1, 1.1, 1.4, tokens=4)))
    assert gaps == pytest.approx([50.0, 50.0, 300.0])


def test_gaps_of_events_with_several_tokens_are_a_tokens_not_an_events():
    assert list(gaps_ms(row(1.0, 1.2, 1.4, tokens=6))) == pytest.approx([100.0, 100.0])


def test_a_failed_request_and_one_without_usage_have_no_gaps():
    assert list(gaps_ms(row(1.0, 1.1, tokens=2, error_kind="timeout"))) == []
    assert list(gaps_ms(row(1.0, 1.1, tokens=None))) == []


# The plateau


def test_a_level_is_full_while_as_many_as_asked_are_in_flight():
    """Two agents: full from 1 to 3."""
    rows = [evenly(0.0, 3.0), evenly(1.0, 4.0, index=1)]
    assert full_spans(rows, 2) == [(1.0, 3.0)]


def test_the_plateau_counts_only_tokens_that_came_in_it():
    """Ten tokens a second each, overlapping for one second: twenty came in it, but for the one on its edge."""
    rows = [evenly(0.0, 2.0, tokens=20), evenly(1.0, 3.0, tokens=20, index=1)]
    assert plateau_tok_s(rows, 2) == pytest.approx(20.0, abs=1.1)


def test_the_moment_between_an_answer_and_the_next_request_does_not_end_a_plateau():
    rows = [evenly(n * 1.004, n * 1.004 + 1.0, index=n) for n in range(3)]
    assert full_spans(rows, 1) == [(0.0, pytest.approx(3.008))]


def test_a_pause_ends_it():
    rows = [evenly(0.0, 1.0), evenly(2.0, 3.0, index=1)]
    assert full_spans(rows, 1) == [(0.0, 1.0), (2.0, 3.0)]


def test_nineteen_of_twenty_are_full_and_eighteen_are_not():
    rows = [evenly(0.0, 1.0, index=n) for n in range(20)]
    assert full_spans(rows[:19], 20) == [(0.0, 1.0)]
    assert full_spans(rows[:18], 20) == []
    assert plateau_tok_s(rows[:18], 20) is None


def test_failed_requests_keep_a_level_full_and_bring_no_tokens():
    rows = [evenly(0.0, 1.0), evenly(0.0, 1.0, index=1, error_kind="cut")]
    assert full_spans(rows, 2) == [(0.0, 1.0)]
    assert plateau_tok_s(rows, 2) == pytest.approx(10.0)


def test_requests_at_the_very_same_moment_are_full():
    rows = [evenly(0.0, 1.0, index=n) for n in range(4)] + [evenly(1.0, 2.0, index=4 + n) for n in range(4)]
    assert full_spans(rows, 4) == [(0.0, 2.0)]
    assert plateau_tok_s(rows, 4) == pytest.approx(40.0)


def test_an_answer_that_comes_whole_at_its_end_counts():
    """The last read is the end: the same moment. With 10 ms between two requests each is a span of its own."""
    rows = [row(n * 1.01 + 1.0, tokens=10, start=n * 1.01, index=n) for n in range(10)]
    assert plateau_tok_s(rows, 1) == pytest.approx(10.0)


def test_one_whole_answer_counts_at_the_end_of_its_span():
    assert plateau_tok_s([row(1.0, tokens=10)], 1) == pytest.approx(10.0)


# Delivered


def test_delivered_is_full_where_the_next_request_follows_at_once():
    rows = [evenly(float(n), n + 1.0, index=2 * n + k) for n in range(5) for k in range(2)]
    assert delivered(rows, 2) == pytest.approx(1.0)


def test_a_client_that_is_late_with_the_next_request_delivers_less():
    """An answer of 0.6 s, then 0.4 s of nothing."""
    rows = [evenly(float(n), n + 0.6, index=n) for n in range(5)]
    assert delivered(rows, 1) == pytest.approx(0.6)


def test_the_tail_where_no_more_requests_are_left_is_not_the_clients_fault():
    rows = [evenly(0.0, 1.0), evenly(0.0, 1.0, index=1), evenly(1.0, 2.0, index=2), evenly(1.0, 9.0, index=3)]
    assert delivered(rows, 2) == pytest.approx(1.0)


def test_of_a_burst_nothing_can_be_said():
    assert delivered([evenly(0.0, 1.0, index=n) for n in range(4)], 4) is None
    assert delivered([], 4) is None
