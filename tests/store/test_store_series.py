"""Watching over time: targets, probes with their samples, series, hours and days."""

import statistics

import pytest
from msgspec.structs import replace

from skep.errors import UserError
from skep.monitor.records import (
    DAY_S,
    HOUR_S,
    Heat,
    Probe,
    ProbeOutcome,
    ProbeSample,
    ProbeShape,
    ProbeTarget,
    SeriesKey,
    SeriesMetric,
    SeriesPoint,
    SpanKind,
    TargetKind,
)
from skep.monitor.schedule import LastSlot
from skep.store import database

DAY = 20_000 * DAY_S  # a midnight of UTC
KEY = SeriesKey("box", Heat.HOT, ProbeShape.SHORT, 1, SeriesMetric.TOK_S)
ALWAYS = (float("-inf"), float("inf"))


def probe(slot: int = 0, at: float = DAY, **changes) -> Probe:
    values = {
        "target": "box",
        "era": 0,
        "due_at": at,
        "ended_at": at + 9.0,
        "outcome": ProbeOutcome.DONE,
    }
    return Probe(slot=slot, **values | {"started_at": at} | changes)


def sample(at: float = DAY, tok_s: float | None = 50.0, **changes) -> ProbeSample:
    values = {"heat": Heat.HOT, "shape": ProbeShape.SHORT, "concurrency": 1, "tok_s": tok_s}
    return ProbeSample(at, **values | changes)


def add(
    series, values, *, every_s: float = HOUR_S, start: float = DAY, first: int = 0, **changes
) -> None:
    for number, value in enumerate(values):
        at = start + number * every_s
        series.append_probe(probe(first + number, at, **changes), [sample(at, value)])


def gap(slot: int, slots: int, **changes) -> Probe:
    """Return a gap of hourly slots since 1970, noticed a little after the last of them was due."""
    due = slot * HOUR_S + 60.0
    values = {
        "due_at": due,
        "ended_at": due + (slots - 0.5) * HOUR_S,
        "outcome": ProbeOutcome.MISSED,
    }
    return Probe("box", 0, slot, slots=slots, **values | changes)


FULL_TARGET = ProbeTarget(
    "box",
    "http://127.0.0.1:8400/v1",
    "smol",
    TargetKind.GATEWAY,
    "BOX_KEY",
    "ollama",
    600.0,
    128,
    32,
    256,
    4,
    60.0,
    12.5,
    900.0,
    added_at=DAY,
)


def test_a_target_reads_back_as_it_was_and_a_removed_one_is_listed_no_more_but_known(series):
    """Every field of it; a changed one takes its place.

    A removed one can come back under its name.
    """
    series.put_target(FULL_TARGET)
    assert series.targets() == [FULL_TARGET]
    series.put_target(replace(FULL_TARGET, every_s=60.0))
    assert series.target("box").every_s == 60.0
    series.remove_target("box", DAY + 5.0)
    assert series.targets() == []
    assert [target.removed_at for target in series.targets(removed=True)] == [DAY + 5.0]
    assert series.target("box", removed=True).removed_at == DAY + 5.0
    for ask in (series.target, lambda name: series.remove_target(name, DAY + 9.0)):
        with pytest.raises(UserError, match="target `box` was removed"):
            ask("box")
    series.put_target(FULL_TARGET)
    assert series.targets() == [FULL_TARGET]


@pytest.mark.parametrize("slot", [10, 12, 14])
def test_a_slot_is_covered_once(series, slot):
    """The second row for it is refused whole, and so is one inside a gap."""
    series.append_probe(gap(10, 5))
    assert series.append_probe(probe(slot), [sample()]) is None
    assert series.count_samples() == 0
    assert series.append_probe(probe(9), [sample()]) is not None
    assert series.append_probe(probe(15, DAY + 1), [sample(DAY + 1)]) is not None
    # The clock was set back since.
    assert series.append_probe(probe(slot, era=1), [sample()]) is not None
    assert series.append_probe(probe(slot, target="other"), [sample()]) is not None


@pytest.mark.parametrize(("slot", "slots"), [(8, 3), (10, 1), (10, 9), (5, 20), (14, 2)])
def test_a_gap_covers_nothing_that_is_covered(series, slot, slots):
    """That holds for a gap that reaches into a row, and for one over several."""
    series.append_probe(probe(10))
    series.append_probe(gap(14, 1))
    assert series.append_probe(gap(slot, slots)) is None
    assert len(series.probes("box", *ALWAYS)) == 2


def test_the_last_slots_are_those_of_the_highest_era(series):
    """Missed ones included: the schedule goes on after them."""
    assert series.last_slots() == {}
    add(series, [1.0, 2.0], first=500)
    series.append_probe(gap(502, 40))
    series.append_probe(probe(3, target="cloud"))
    last_probes = series.last_slots()
    assert [(name, probe.era, probe.slot) for name, probe in last_probes.items()] == [
        ("box", 0, 541),
        ("cloud", 0, 3),
    ]
    series.append_probe(probe(100, era=1))
    assert series.last_slots()["box"] == LastSlot(1, 100, DAY + 9.0)


def test_the_last_probe_is_the_last_that_was_made(series):
    """A gap is no probe, and a clock that was set back does not make an old one new."""
    assert series.latest("box") == (None, [])
    series.append_probe(probe(1, DAY), [sample()])
    series.append_probe(probe(1, DAY - 5 * HOUR_S, era=1, outcome=ProbeOutcome.FAILED))
    series.append_probe(replace(gap(2, 9), era=1))
    latest_probe, samples = series.latest("box")
    assert (latest_probe.outcome, samples) == (ProbeOutcome.FAILED, [])


def test_probes_come_newest_first_with_gaps_that_reach_into_the_window(series):
    """A gap that began before it is part of what happened in it."""
    first = int(DAY / HOUR_S)
    series.append_probe(gap(first - 10, 8))
    series.append_probe(gap(first - 2, 4))
    add(series, [1.0, 2.0, 3.0], start=DAY + 2 * HOUR_S, first=first + 2)
    probes = series.probes("box", DAY, DAY + 4 * HOUR_S)
    assert [probe.slot - first for probe in probes] == [3, 2, -2]
    assert [probe.slot - first for probe in series.probes("box", DAY, DAY + DAY_S, limit=1)] == [4]


def test_coverage_counts_each_slot_of_a_gap_that_was_due_in_the_window(series):
    """A night of sleep is eight missed probes, whichever part of it is asked for."""
    first = int(DAY / HOUR_S)
    series.append_probe(gap(first - 4, 8))
    add(series, [1.0, 2.0], start=DAY + 4 * HOUR_S, first=first + 4)
    series.append_probe(probe(first + 6, DAY + 6 * HOUR_S, outcome=ProbeOutcome.FAILED))
    assert series.coverage("box", *ALWAYS) == {"done": 2, "failed": 1, "missed": 8}
    assert series.coverage("box", DAY, DAY + DAY_S) == {"done": 2, "failed": 1, "missed": 4}
    assert series.coverage("box", DAY - 2 * HOUR_S, DAY + HOUR_S) == {
        "done": 0,
        "failed": 0,
        "missed": 3,
    }
    assert series.coverage("cloud", *ALWAYS) == {"done": 0, "failed": 0, "missed": 0}


def test_points_come_oldest_first_without_what_failed(series):
    """Busy ones are there and marked; the end of a window is not in it."""
    add(series, [50.0, 51.0, 52.0, None])
    series.append_probe(probe(7, DAY + 7 * HOUR_S, running=2), [sample(DAY + 7 * HOUR_S, 30.0)])
    series.append_probe(
        probe(8, DAY + 8 * HOUR_S), [sample(DAY + 8 * HOUR_S, 9.0, error_kind="timeout")]
    )
    assert [(point.value, point.busy) for point in series.points(KEY, *ALWAYS)] == [
        (50.0, False),
        (51.0, False),
        (52.0, False),
        (30.0, True),
    ]
    assert [point.value for point in series.points(KEY, DAY + HOUR_S, DAY + 2 * HOUR_S)] == [51.0]
    assert [point.value for point in series.points(KEY, *ALWAYS, limit=2)] == [52.0, 30.0]
    assert series.points(KEY, *ALWAYS)[0] == SeriesPoint(DAY, 50.0, probe_id=1)


def test_keys_are_those_that_ever_had_a_value(series):
    """They are in order; a figure that no engine ever reported is no series."""
    both = sample(ttft_ms=9.0)
    series.append_probe(
        probe(0), [both, sample(DAY, 40.0, heat=Heat.COLD), sample(DAY, None, concurrency=4)]
    )
    series.append_probe(probe(0, target="cloud"), [sample()])
    assert [str(key) for key in series.keys()] == [  # noqa: SIM118
        "box/cold/short/c1/tok_s",
        "box/hot/short/c1/tok_s",
        "box/hot/short/c1/ttft_ms",
        "cloud/hot/short/c1/tok_s",
    ]
    assert [key.target for key in series.keys("cloud")] == ["cloud"]
    assert series.keys("clou") == []


def test_hours_and_days_follow_the_samples(series):
    """In whatever order samples are stored, a span has the figures of its samples."""
    values = [50.0 + (7 * number) % 11 for number in range(60)]
    order = sorted(range(60), key=lambda number: (13 * number) % 60)
    for number in order:
        at = DAY + number * 1800.0
        series.append_probe(probe(number, at), [sample(at, values[number])])
    days = series.spans(KEY, SpanKind.DAY, *ALWAYS)
    hours = series.spans(KEY, SpanKind.HOUR, *ALWAYS)
    assert [(day.start, day.count) for day in days] == [(DAY, 48), (DAY + DAY_S, 12)]
    assert [(hour.start, hour.count) for hour in hours] == [
        (DAY + number * HOUR_S, 2) for number in range(30)
    ]
    first = values[:48]
    deciles = statistics.quantiles(values[:48], n=10, method="inclusive")
    middle = statistics.median(first)
    assert (days[0].low, days[0].median, days[0].high) == (min(first), middle, max(first))
    assert (days[0].p10, days[0].p90) == pytest.approx((deciles[0], deciles[-1]))
    assert days[0].mean == pytest.approx(statistics.fmean(first))
    assert days[0].mad == statistics.median(abs(value - middle) for value in first)
    assert [
        span.start for span in series.spans(KEY, SpanKind.HOUR, DAY + HOUR_S, DAY + 3 * HOUR_S)
    ] == [
        DAY + HOUR_S,
        DAY + 2 * HOUR_S,
    ]


def test_busy_samples_are_counted_and_left_out_of_the_figures(series, store):
    """An hour in which others were always there has no figures at all."""
    add(series, [50.0, 52.0], every_s=60.0)
    add(series, [10.0, 11.0], every_s=60.0, start=DAY + 600.0, first=10, waiting=1)
    add(series, [12.0], start=DAY + HOUR_S, first=20, running=3)
    (hour,) = series.spans(KEY, SpanKind.HOUR, *ALWAYS)
    (day,) = series.spans(KEY, SpanKind.DAY, *ALWAYS)
    assert (hour.count, hour.median, hour.busy) == (2, 51.0, 2)
    assert (day.count, day.high, day.busy) == (2, 52.0, 3)
    rows = store.read("SELECT count, median, busy FROM v_series_hours ORDER BY hour_utc")
    assert [tuple(row) for row in rows] == [(2, 51.0, 2), (0, None, 1)]


def test_deleting_samples_leaves_their_spans_and_their_probes(series, monkeypatch):
    """The figures of days stay when their samples are deleted."""
    monkeypatch.setattr(database, "_DELETED_AT_ONCE", 7)
    add(series, [50.0 + number % 5 for number in range(60)], every_s=HOUR_S)
    days, hours = (series.spans(KEY, kind, *ALWAYS) for kind in (SpanKind.DAY, SpanKind.HOUR))
    assert (series.count_samples(DAY + DAY_S), series.delete_samples(DAY + DAY_S)) == (24, 24)
    assert series.points(KEY, *ALWAYS)[0].at == DAY + DAY_S
    assert series.spans(KEY, SpanKind.DAY, *ALWAYS) == days
    assert series.spans(KEY, SpanKind.HOUR, *ALWAYS) == hours
    assert series.coverage("box", *ALWAYS)["done"] == len(series.probes("box", *ALWAYS)) == 60


def test_series_that_only_an_earlier_skep_kept_are_passed_over(series, store):
    add(series, [50.0])
    with store.transaction() as connection:
        connection.execute(
            "INSERT INTO series VALUES (98, 'gateway:m', 'seen', 'any', 0, 'requests')"
        )
        connection.execute("INSERT INTO series VALUES (99, 'box', 'hot', 'quality', 1, 'quality')")
    assert series.keys() == [KEY]
