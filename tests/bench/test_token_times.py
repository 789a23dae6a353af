"""Times of tokens: figures from rows made by hand, so that each is easily checked."""

import pytest
from sample_rows import evenly
from sample_rows import request as row

from skep.bench.metrics import delivered, full_spans, gaps_ms, plateau_tok_s, tpot_ms


def spread(start, end, tokens=10, **fields):
    """Return a request whose tokens are spread over its time, the last one at its end."""
    return row(*evenly(start, end, tokens + 1)[1:], tokens=tokens, start=start, **fields)


# Time per token


@pytest.mark.parametrize(
    "answered",
    [
        row(1.0, 1.1, 1.2, 1.3, tokens=4),
        row(1.0, 1.3, 1.6, 2.1, tokens=12),
        row(1.0, 1.0, 1.0, 1.0, 1.7, 1.7, 1.7, 1.7, tokens=8),
    ],
    ids=["a token a read", "several an event", "several a read"],
)
def test_the_time_per_token_is_over_all_tokens_but_the_first(answered):
    """(last - first) / (n - 1), as everybody defines it: by tokens, not by events."""
    assert tpot_ms(answered) == pytest.approx(100.0)


@pytest.mark.parametrize(
    "answered",
    [
        row(1.0, tokens=1),
        row(1.0, 1.0, 1.0, tokens=3),
        row(1.0, 1.1, tokens=None),
        row(1.0, 1.1, tokens=0),
        row(tokens=5),
        row(1.0, 1.1, 1.2, tokens=3, error_kind="cut"),
        row(1.0, 2.0, tokens=1),
    ],
    ids=[
        "one token",
        "one read",
        "tokens unknown",
        "no tokens",
        "no content",
        "failed",
        "less than one token later",
    ],
)
def test_where_nothing_came_after_the_first_read_there_is_no_speed(answered):
    assert tpot_ms(answered) is None


@pytest.mark.parametrize(
    ("answered", "gaps"),
    [
        (row(1.0, 1.1, 1.1, 1.4, tokens=4), [50.0, 50.0, 300.0]),
        (row(1.0, 1.2, 1.4, tokens=6), [100.0, 100.0]),
        (row(1.0, 1.1, tokens=2, error_kind="timeout"), []),
        (row(1.0, 1.1, tokens=None), []),
    ],
    ids=["over the tokens that came", "several tokens an event", "failed", "tokens unknown"],
)
def test_gaps_are_from_read_to_read(answered, gaps):
    assert list(gaps_ms(answered)) == pytest.approx(gaps)


@pytest.mark.parametrize(
    ("rows", "level", "spans", "tok_s"),
    [
        ([spread(0.0, 3.0), spread(1.0, 4.0)], 2, [(1.0, 3.0)], None),
        (
            [spread(n * 1.004, n * 1.004 + 1.0) for n in range(3)],
            1,
            [(0.0, pytest.approx(3.008))],
            None,
        ),
        ([spread(0.0, 1.0), spread(2.0, 3.0)], 1, [(0.0, 1.0), (2.0, 3.0)], None),
        ([spread(0.0, 1.0)] * 19, 20, [(0.0, 1.0)], 190.0),
        ([spread(0.0, 1.0)] * 4 + [spread(1.0, 2.0)] * 4, 4, [(0.0, 2.0)], 40.0),
        ([spread(0.0, 1.0), spread(0.0, 1.0, error_kind="cut")], 2, [(0.0, 1.0)], 10.0),
        ([row(1.0, tokens=10)], 1, [(0.0, 1.0)], 10.0),
    ],
    ids=[
        *(
            "while as many as asked are in flight",
            "a moment between two requests does not end it",
            "a pause does",
        ),
        *(
            "nineteen of twenty",
            "at the very same moment",
            "failures bring no tokens",
            "a whole answer at its end",
        ),
    ],
)
def test_a_level_is_full_while_nearly_all_are_in_flight(rows, level, spans, tok_s):
    assert full_spans(rows, level) == spans
    assert tok_s is None or plateau_tok_s(rows, level) == pytest.approx(tok_s)


def test_eighteen_of_twenty_are_not_full():
    rows = [spread(0.0, 1.0, index=n) for n in range(18)]
    assert (full_spans(rows, 20), plateau_tok_s(rows, 20)) == ([], None)


# The plateau


def test_the_plateau_counts_only_tokens_that_came_in_it():
    """Ten tokens a second each, overlapping for one second: twenty came in it, but for the one on
    its edge.
    """
    rows = [spread(0.0, 2.0, tokens=20), spread(1.0, 3.0, tokens=20, index=1)]
    assert plateau_tok_s(rows, 2) == pytest.approx(20.0, abs=1.1)


@pytest.mark.parametrize(
    ("rows", "level", "share"),
    [
        ([spread(float(n), n + 1.0) for n in range(5) for _ in range(2)], 2, 1.0),
        ([spread(float(n), n + 0.6) for n in range(5)], 1, 0.6),
        ([spread(0.0, 1.0), spread(0.0, 1.0), spread(1.0, 2.0), spread(1.0, 9.0)], 2, 1.0),
        ([spread(0.0, 1.0)] * 4, 4, None),
        ([], 4, None),
    ],
    ids=[
        "the next follows at once",
        "0.4 s of nothing",
        "no more requests are left",
        "a burst",
        "nothing",
    ],
)
def test_delivered_is_what_was_in_flight_of_what_was_asked_for(rows, level, share):
    assert delivered(rows, level) == (None if share is None else pytest.approx(share))
