"""The timeline shows one run of one level, and says what it leaves out."""

import pytest
from msgspec.structs import replace

from skep.report import theme
from skep.report.sweep import MOST_BARS, choose_timeline
from skep.store.records import Request


def _rows(level, count, repeat=0):
    return [
        Request(level, repeat, i, "fix", 10.0 + i, 15.0 + i, first_token_s=11.0 + i, last_token_s=14.9 + i)
        for i in range(count)
    ]


def _bars(timeline):
    return timeline.chart()["data"]["values"]


def test_largest_level_that_the_client_did_not_limit_is_drawn(levels):
    """C=16 is client-limited; of C=8 the first run is taken. Where there is no other, the caption says so."""
    timeline = choose_timeline(levels, [*_rows(16, 3), *_rows(8, 4, repeat=1), *_rows(8, 5), *_rows(4, 2)])
    assert (timeline.level, timeline.repeat, len(timeline.rows)) == (8, 0, 5)
    limited = choose_timeline(levels, _rows(16, 3))
    assert limited.level == 16
    assert "client limited" in limited.caption()


def test_no_rows_make_no_timeline(levels):
    """Warm-up rows belong to no level."""
    assert choose_timeline(levels, ()) is None
    assert choose_timeline(levels, _rows(0, 3)) is None


def test_waiting_and_streaming_are_told_apart(levels):
    """Seconds count from the first request of the run, and from when it was due: a late client shortens no wait."""
    waiting, streaming = _bars(choose_timeline(levels, _rows(4, 1)))
    assert (waiting["from"], waiting["to"], waiting["colour"]) == (0.0, 1.0, theme.PALE)
    assert (streaming["from"], streaming["to"], streaming["colour"]) == (1.0, pytest.approx(4.9), theme.SKY)
    late = replace(_rows(4, 1)[0], scheduled_s=8.0)
    assert _bars(choose_timeline(levels, [late]))[0]["to"] == pytest.approx(3.0)


def test_failed_request_is_one_rose_bar(levels):
    """Whatever it had received before."""
    rows = _rows(4, 3)
    rows[1] = replace(rows[1], error_kind="timeout")
    timeline = choose_timeline(levels, rows)
    assert [bar["colour"] for bar in _bars(timeline)].count(theme.ROSE) == 1
    assert "failed (1 of those drawn)" in timeline.caption()


def test_too_many_requests_are_left_out_and_counted(levels):
    """The picture stays small, the reader knows."""
    timeline = choose_timeline(levels, _rows(4, 300))
    assert len(timeline.rows) == MOST_BARS
    assert "The first 120 of 300 requests are drawn." in timeline.caption()
