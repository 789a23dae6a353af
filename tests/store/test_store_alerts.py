"""Events, alerts and who was told of them, changes: what stands beside the series."""

import pytest
from msgspec.structs import replace

from skep.errors import StoreError
from skep.monitor import records

ALWAYS = (float("-inf"), float("inf"))
KEY = records.SeriesKey(
    "box", records.Heat.HOT, records.ProbeShape.SHORT, 1, records.SeriesMetric.TOK_S
)
CHANGE = records.SeriesChange(
    KEY,
    100.0,
    (90.0, 100.0),
    50.0,
    48.0,
    0.95,
    0.97,
    24,
    12,
    "when the driver changed from 570 to 580",
)


def test_events_come_oldest_first_and_notices_say_who_was_told_and_what_went_wrong(series):
    """Every field is kept."""
    detail = {"what": "driver", "from": "570", "to": "580"}
    later = records.MonitorEvent(
        20.0, records.EventKind.VERSION, "driver 570 -> 580", "box", detail
    )
    for event in (
        later,
        records.MonitorEvent(10.0, records.EventKind.NOTE, "NVLink bridges removed"),
        records.MonitorEvent(15.0, records.EventKind.DOWN, "", "cloud"),
    ):
        series.append_event(event)
    assert [event.at for event in series.events(*ALWAYS)] == [10.0, 15.0, 20.0]
    assert [event.at for event in series.events(*ALWAYS, target="box")] == [10.0, 20.0]
    assert series.events(20.0, 30.0) == [replace(later, id=1)]
    assert series.events(10.0, 10.0) == []
    # In the order they were tried.
    number = series.open_alert(records.Alert(records.AlertRule.DOWN, "box", 10.0, "box is down"))
    series.append_notice(number, "opened", 11.0, "webhook", "connection refused")
    series.append_notice(number, "opened", 11.0, "log", None)
    assert series.notices(number) == [
        ("opened", 11.0, "webhook", "connection refused"),
        ("opened", 11.0, "log", None),
    ]
    with pytest.raises(StoreError, match="does not take this row"):
        series.append_notice(number, "shouted", 12.0, "log", None)


def test_an_alert_is_open_until_it_is_closed(series):
    """Every field is kept; its end is a row of its own."""
    alert = records.Alert(records.AlertRule.TTFT, "box", 10.0, "box: TTFT 900 ms", 900.0, 500.0)
    first = series.open_alert(alert)
    second = series.open_alert(records.Alert(records.AlertRule.DISK, None, 20.0, "1.5 GiB left"))
    assert series.alerts()[1] == replace(alert, id=first)
    series.close_alert(first, 30.0, "it is quick again")
    closed = replace(alert, id=first, closed_at=30.0, closed_because="it is quick again")
    assert [alert.id for alert in series.alerts()] == [second, first]
    assert series.alerts()[1] == closed
    assert [alert.id for alert in series.alerts(open_only=True)] == [second]
    assert [alert.id for alert in series.alerts(since=30.5)] == [second]
    assert [alert.id for alert in series.alerts(since=29.5)] == [second, first]
    series.close_alert(first, 40.0, "it is quicker")  # the first end counts
    assert series.alerts()[1] == closed
    with pytest.raises(StoreError, match="FOREIGN KEY"):
        series.close_alert(99, 20.0, "it answers")


def test_changes_take_the_place_of_those_found_before(series, store):
    """Of their series only; the same ones again cost no write."""
    other_key = replace(KEY, target="cloud")
    series.set_changes(KEY, [CHANGE])
    series.set_changes(other_key, [replace(CHANGE, key=other_key, at=50.0)])
    assert [change.at for change in series.changes()] == [50.0, 100.0]
    moved = replace(CHANGE, at=110.0, because=None)
    series.set_changes(KEY, [moved, replace(CHANGE, at=300.0)])
    assert series.changes("box") == [moved, replace(CHANGE, at=300.0)]
    assert series.changes("box", since=200.0) == [replace(CHANGE, at=300.0)]
    written = store._connection.total_changes
    series.set_changes(KEY, series.changes("box"))
    assert store._connection.total_changes == written
    series.set_changes(KEY, [])
    assert [change.key.target for change in series.changes()] == ["cloud"]


def test_the_views_speak_in_words_people_know(series, store):
    """Times are UTC, names are those of the command line."""
    at = 1_794_752_553.25
    series.append_event(records.MonitorEvent(at, records.EventKind.NOTE, "bridges out", "box"))
    number = series.open_alert(records.Alert(records.AlertRule.DOWN, "box", at, "box is down"))
    series.append_notice(number, "opened", at, "log", None)
    series.close_alert(number, at + 60.0, "it answers")
    series.set_changes(KEY, [replace(CHANGE, at=at)])
    (event,) = store.read("SELECT at_utc, kind, target, text FROM v_events")
    (alert,) = store.read(
        "SELECT rule, opened_utc, duration_s, closed_because, notices FROM v_alerts"
    )
    (change,) = store.read("SELECT series, at_utc, ratio, because FROM v_changes")
    assert tuple(event) == ("2026-11-15 14:22:33", "note", "box", "bridges out")
    assert tuple(alert) == ("down", "2026-11-15 14:22:33", 60.0, "it answers", 1)
    assert tuple(change) == ("box/hot/short/c1/tok_s", "2026-11-15 14:22:33", 0.96, CHANGE.because)
