"""A stored series as it is shown: points or summaries, its usual place, what changed, in words."""

from __future__ import annotations

from datetime import UTC, datetime
from random import Random

import pytest

from skep.monitor.changes import find_changes
from skep.monitor.history import history_of, primary_keys, read_window, thinned
from skep.monitor.records import (
    DAY_S,
    HOUR_S,
    EventKind,
    Heat,
    MonitorEvent,
    Probe,
    ProbeOutcome,
    ProbeSample,
    ProbeShape,
    ProbeTarget,
    SeriesKey,
    SeriesMetric,
    SeriesPoint,
    SpanKind,
)

START = datetime(2026, 10, 24, tzinfo=UTC).timestamp()
KEY = SeriesKey("box", Heat.HOT, ProbeShape.SHORT, 1, SeriesMetric.TOK_S)
COLD = SeriesKey("box", Heat.COLD, ProbeShape.SHORT, 1, SeriesMetric.TOK_S)


def add(series, values, *, target="box", start=START, heats=(Heat.HOT,), every_s=HOUR_S, **probed):
    for number, value in enumerate(values):
        at = start + number * every_s
        slot = int(at // every_s)
        probe = Probe(target, 0, slot, at, at + 9, ProbeOutcome.DONE, at, **probed)
        series.append_probe(probe, [ProbeSample(at + 1, heat, ProbeShape.SHORT, 1, tok_s=value) for heat in heats])


def noisy(*levels, cv=0.01, seed=1):
    rng = Random(seed)
    return [level * rng.gauss(1, cv) for level, many in levels for _ in range(many)]


def test_a_driver_upgrade_is_named_with_its_size_and_its_moment(series):
    series.put_target(ProbeTarget("box", "http://127.0.0.1:1/v1"))
    add(series, noisy((70, 10 * 24 + 3), (67.1, 60)))
    at = START + 10 * DAY_S + 3 * HOUR_S
    series.append_event(
        MonitorEvent(at, EventKind.VERSION, "driver", "box", {"what": "driver", "from": "570", "to": "580"})
    )
    now = START + 303 * HOUR_S
    [change] = find_changes(series, "box", now)
    assert change.worse
    assert change.because == "the driver changed from 570 to 580"
    assert series.changes("box") == [change]
    found = history_of(series, KEY, now - 14 * DAY_S, now, zone=UTC)
    assert found.changes == (change,)
    assert found.sentences[0].startswith("-4.")
    assert found.sentences[0].endswith("since Tuesday 3 November 03:00, when the driver changed from 570 to 580")
    assert "from the 36 h before: inside run-to-run noise (CV 0." in found.sentences[1]
    assert len(found.points) == len(found.band) == 303
    assert [found.stats[name].count for name in ("1 d", "7 d", "30 d")] == [24, 168, 303]
    assert found.coverage == {"done": 303, "failed": 0, "missed": 0}


def test_busy_values_are_shown_and_left_out_of_the_rest(series):
    add(series, noisy((70, 60)))
    add(series, [20.0] * 30, start=START + 60 * HOUR_S, running=3)
    now = START + 90 * HOUR_S
    assert find_changes(series, "box", now) == []
    found = history_of(series, KEY, START, now, zone=UTC)
    assert (len(found.points), found.busy, len(found.band)) == (90, 30, 60)
    assert found.stats["7 d"].low > 60
    assert any(one.startswith("30 values were taken while others used the target") for one in found.sentences)


def test_cold_runs_have_statistics_and_no_changes(series):
    add(series, noisy((70, 40), (20, 40)), heats=(Heat.COLD,))
    found = history_of(series, COLD, START, START + 80 * HOUR_S, zone=UTC)
    assert (found.changes, found.late) == ((), None)
    assert found.stats["7 d"].count == 80
    [told] = found.sentences
    assert told.startswith("the last 7 days: median")


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 2.0], [0.0] * 30, [1.0] * 60])
def test_nothing_and_nearly_nothing_is_shown_as_such(series, values):
    add(series, values)
    now = START + 100 * HOUR_S
    assert find_changes(series, "box", now) == []
    found = history_of(series, KEY, START, now, zone=UTC)
    assert len(found.points) == len(values)
    assert (found.stats["30 d"] is None) is (not values)


def test_a_slow_drift_is_told_as_such(series):
    add(series, [70 * (1 - 0.1 * hour / 240) * noise for hour, noise in enumerate(noisy((1, 240)))])
    now = START + 240 * HOUR_S
    assert find_changes(series, "box", now) == []
    found = history_of(series, KEY, START, now, zone=UTC)
    [drift] = found.drifts
    assert drift.ratio_low < 0.9 < drift.ratio_high
    assert found.sentences[0].startswith("a slow drift of -")
    assert found.sentences[0].endswith("% a day, and no step")


def test_a_year_is_shown_by_its_days(series):
    add(series, [70.0] * 30, every_s=DAY_S)
    found = history_of(series, KEY, START - 335 * DAY_S, START + 30 * DAY_S, zone=UTC)
    assert (found.span_kind, len(found.spans), found.points) == (SpanKind.DAY, 30, ())
    assert found.stats["30 d"].count == 30


def test_too_many_samples_are_read_by_their_hours(series):
    add(series, [70.0] * 20, every_s=HOUR_S / 2)
    found = read_window(series, KEY, START, START + DAY_S, most=10)
    assert (found.kind, len(found.spans), found.points) == (SpanKind.HOUR, 10, ())
    assert found.quiet(START, START + 2 * HOUR_S) == [(START + 0.5 * HOUR_S, 70.0), (START + 1.5 * HOUR_S, 70.0)]


def test_what_was_thinned_away_is_read_by_its_hours(series):
    add(series, [70.0] * 72)
    series.thin(START + DAY_S)
    assert read_window(series, KEY, START, START + 3 * DAY_S).kind is SpanKind.HOUR
    assert read_window(series, KEY, START + DAY_S, START + 3 * DAY_S).kind is None


def test_thinned_points_keep_what_stands_out():
    points = [SeriesPoint(float(at), 5.0 if at == 1234 else 70.0 + at % 7) for at in range(9000)]
    kept = thinned(points)
    assert 1000 < len(kept) <= 2000
    assert points[1234] in kept
    assert list(kept) == sorted(kept, key=lambda point: point.at)
    assert thinned(points[:2000]) == tuple(points[:2000])


def test_the_engines_own_speed_stands_for_a_target_as_long_as_it_is_told(series):
    def probed(slot, **figures):
        at = START + slot * HOUR_S
        samples = [
            ProbeSample(at, Heat.HOT, ProbeShape.LONG, 1, **figures),
            ProbeSample(at, Heat.HOT, ProbeShape.SHORT, 1, ttft_ms=80.0, **figures),
            ProbeSample(at, Heat.HOT, ProbeShape.SHORT, 4, effective_tok_s=200.0, **figures),
            ProbeSample(at, Heat.COLD, ProbeShape.SHORT, 1, **figures),
        ]
        series.append_probe(Probe("box", 0, slot, at, at + 1, ProbeOutcome.DONE, at), samples)

    probed(1, tok_s=50.0, engine_tok_s=51.0)
    assert [str(key) for key in primary_keys(series, "box")] == [
        "box/hot/short/c1/engine_tok_s", "box/hot/long/c1/engine_tok_s", "box/hot/short/c4/effective_tok_s",
        "box/hot/short/c1/ttft_ms",
    ]  # fmt: skip
    probed(2, tok_s=50.0)
    assert str(primary_keys(series, "box")[0]) == "box/hot/short/c1/tok_s"
    assert primary_keys(series, "nobody") == []
