"""A stored series as it is shown: its points, what changed in it, and how it compares with another
or with before.
"""

import pytest
from monitor_samples import KEY, START, noisy
from monitor_samples import add_probes as add
from msgspec.structs import replace

from skep.config.settings import Monitor
from skep.monitor import history
from skep.monitor.alerts import findings_of
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
    SeriesChange,
    SeriesKey,
    SeriesMetric,
)
from skep.monitor.status import target_statuses
from skep.stats.versus import Judgement

BOX = ProbeTarget("box", "http://127.0.0.1:1/v1")
COLD = SeriesKey("box", Heat.COLD, ProbeShape.SHORT, 1, SeriesMetric.TOK_S)


@pytest.fixture
def upgraded(series):
    """Ten days of one speed, then a driver upgrade and 60 slower hours. Return the time then."""
    series.put_target(ProbeTarget("box", "http://127.0.0.1:1/v1"))
    add(series, noisy((70, 10 * 24 + 3), (67.1, 60)))
    at = START + 10 * DAY_S + 3 * HOUR_S
    series.append_event(
        MonitorEvent(
            at, EventKind.VERSION, "driver", "box", {"what": "driver", "from": "570", "to": "580"}
        )
    )
    return START + 303 * HOUR_S


def test_a_driver_upgrade_is_a_change_for_the_worse_with_its_cause(series, upgraded):
    [change] = history.find_changes(series, "box", upgraded)
    assert change.worse
    assert change.because == "the driver changed from 570 to 580"
    assert series.changes("box") == [change]


def test_a_driver_upgrade_is_named_with_its_size_and_its_moment(series, upgraded):
    changes = history.find_changes(series, "box", upgraded)
    shown_history = history.history_of(series, KEY, upgraded - 14 * DAY_S, upgraded)
    assert shown_history.changes == tuple(changes)
    assert shown_history.sentences[0].startswith("-4.")
    assert shown_history.sentences[0].endswith(
        "since Tuesday 3 November 03:00, when the driver changed from 570 to 580"
    )


def test_the_band_leaves_out_the_first_values_after_a_step(series, upgraded):
    """Their medians tell little."""
    history.find_changes(series, "box", upgraded)
    shown_history = history.history_of(series, KEY, upgraded - 14 * DAY_S, upgraded)
    assert (len(shown_history.points), len(shown_history.band)) == (303, 299)
    assert shown_history.stats.count == 303
    assert shown_history.coverage == {"done": 303, "failed": 0, "missed": 0}


def test_busy_values_are_shown_and_left_out_of_the_rest(series):
    add(series, noisy((70, 60)))
    add(series, [20.0] * 30, start=START + 60 * HOUR_S, running=3)
    now = START + 90 * HOUR_S
    assert history.find_changes(series, "box", now) == []
    shown_history = history.history_of(series, KEY, START, now)
    assert (len(shown_history.points), shown_history.busy, len(shown_history.band)) == (90, 30, 60)
    assert shown_history.stats.low > 60
    assert (
        "values while other clients used the target: 30, shown and not counted"
        in shown_history.sentences
    )


def test_cold_runs_have_statistics_and_no_changes(series):
    add(series, noisy((70, 40), (20, 40)), heat=Heat.COLD)
    shown_history = history.history_of(series, COLD, START, START + 80 * HOUR_S)
    assert shown_history.changes == ()
    assert shown_history.stats.count == 80
    [sentence] = shown_history.sentences
    assert sentence.startswith("median")


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 2.0], [0.0] * 30, [1.0] * 60])
def test_nothing_and_nearly_nothing_is_shown_as_such(series, values):
    add(series, values)
    now = START + 100 * HOUR_S
    assert (
        history.find_changes(series, "box", now)
        == history.find_changes(series, "nobody", now)
        == []
    )
    shown_history = history.history_of(series, KEY, START, now)
    assert len(shown_history.points) == len(values)
    assert (shown_history.stats is None) is (not values)


def test_too_many_samples_are_read_by_their_hours(series, monkeypatch):
    add(series, [70.0] * 20, every_s=HOUR_S / 2)
    monkeypatch.setattr(history, "MOST_POINTS", 19)
    window = history.read_window(series, KEY, START, START + 15 * HOUR_S)
    assert (window.span_s, len(window.spans), window.points) == (HOUR_S, 10, ())
    assert window.quiet(START, START + 2 * HOUR_S) == [
        (START + 0.5 * HOUR_S, 70.0),
        (START + 1.5 * HOUR_S, 70.0),
    ]


def test_what_was_deleted_is_read_by_its_hours(series):
    add(series, [70.0] * 72)
    assert series.delete_samples(START + DAY_S) == 24
    assert len(history.read_window(series, KEY, START, START + 3 * DAY_S).spans) == 72
    assert len(history.read_window(series, KEY, START + DAY_S, START + 3 * DAY_S).points) == 48


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
    assert [str(key) for key in history.primary_keys(series, "box")] == [
        "box/hot/short/c1/engine_tok_s",
        "box/hot/long/c1/engine_tok_s",
        "box/hot/short/c4/effective_tok_s",
        "box/hot/short/c1/ttft_ms",
    ]
    probed(2, tok_s=50.0)
    assert str(history.primary_keys(series, "box")[0]) == "box/hot/short/c1/tok_s"
    assert history.primary_keys(series, "nobody") == []


STEP_S = 6 * HOUR_S  # few probes over a long time


def test_a_change_stays_when_the_window_has_moved_past_it(series):
    """Looked at after every probe of seven weeks, a change of the first week is told all the time,
    and only once.
    """
    values = noisy((70, 40), (60, 160))
    add(series, values[:60], every_s=STEP_S)
    [first] = history.find_changes(series, "box", START + 59 * STEP_S)
    for slot in range(60, len(values), 4):
        add(series, values[slot : slot + 4], start=START + slot * STEP_S, every_s=STEP_S)
        [change] = history.find_changes(series, "box", START + (slot + 3) * STEP_S)
        assert change.at == first.at
    assert first.at < START + 199 * STEP_S - history.WINDOW_S


def test_a_change_that_proves_to_be_none_goes_away(series):
    """Inside the window everything is found anew."""
    add(series, noisy((70, 60), seed=3), every_s=STEP_S)
    series.set_changes(
        KEY,
        [SeriesChange(KEY, START + 30 * STEP_S, (START, START), 70.0, 65.0, 0.9, 0.95, 30, 30)],
    )
    assert history.find_changes(series, "box", START + 59 * STEP_S) == []
    assert series.changes("box") == []


def test_the_beginning_of_a_window_is_not_looked_at_for_new_changes(series):
    """A level that reaches into the window with few values was judged when all of them lay inside."""
    add(series, noisy((70, 20), (60, 130), seed=4), every_s=STEP_S)
    now = START + 150 * STEP_S
    begin = now - history.WINDOW_S
    assert begin < START + 40 * STEP_S < begin + history.SETTLED_S
    assert history.find_changes(series, "box", now) == []


END = START + 30 * DAY_S


def test_local_against_cloud(series):
    for name in ("local", "cloud"):
        series.put_target(replace(BOX, name=name))
    add(series, noisy((75, 40)), target="local", model="qwen", figures={"engine_tok_s": 76.0})
    add(series, noisy((34, 40), cv=0.3), target="cloud", model="qwen", figures={"ttft_ms": 900.0})
    comparison = history.compare_targets(series, "local", "cloud", START, END)
    [row] = comparison.rows  # the engine's speed and the wait are each told by one side only
    assert (row.key.metric, row.versus.judgement) == (SeriesMetric.TOK_S, Judgement.WORSE)
    assert comparison.same_model


def test_other_lengths_are_no_comparison(series):
    series.put_target(ProbeTarget("box", "http://a", prompt_tokens=256))
    series.put_target(ProbeTarget("cloud", "http://b", prompt_tokens=16))
    add(series, noisy((70, 48)))
    add(series, noisy((35, 48)), target="cloud")
    comparison = history.compare_targets(series, "box", "cloud", START, END)
    assert comparison.rows[0].versus.judgement is Judgement.UNKNOWN


def around_note(series, at, text):
    note = MonitorEvent(START + at, EventKind.NOTE, text, "box")
    series.append_event(note)
    return history.around_event(series, note, KEY)


def test_a_note_inside_an_hour_of_many_probes_divides_that_hour(series):
    add(series, noisy((70, 20), (63, 20)), every_s=60)
    comparison = around_note(series, 20 * 60 - 10, "clock locked")
    assert "when it was noted: clock locked: -9.9 % (" in comparison["sentence"]
    assert (comparison["a"]["count"], comparison["b"]["count"]) == (20, 20)


def test_the_windows_end_where_something_else_happened(series):
    add(series, noisy((70, 96)))
    for days, kind, text, target in (
        (1, EventKind.VERSION, "driver", "box"),
        (2.001, EventKind.VERSION, "of the same moment", "box"),
        (2.5, EventKind.RESTART, "started anew", "box"),
        (3, EventKind.NOTE, "another", "box"),
        (2.2, EventKind.NOTE, "of another box", "other"),
    ):
        series.append_event(MonitorEvent(START + days * DAY_S, kind, text, target))
    comparison = around_note(series, 2 * DAY_S, "new fans")
    assert (comparison["before"], comparison["after"]) == (
        [START + DAY_S, START + 2 * DAY_S],
        [START + 2 * DAY_S, START + 3 * DAY_S],
    )
    assert "inside run-to-run noise" in comparison["sentence"]


def test_a_note_with_nothing_after_it_is_not_comparable_yet(series):
    add(series, noisy((70, 10)))
    comparison = around_note(series, DAY_S, "just now")
    assert comparison["sentence"].endswith("not comparable, with 10 values before and 0 after")


def swap(series, at, version="model", before="qwen3-8b.gguf", after="qwen3-14b.gguf"):
    """As the loop writes it down."""
    detail = {"what": version, "from": before, "to": after}
    series.append_event(MonitorEvent(at, EventKind.VERSION, f"{version} changed", "box", detail))


@pytest.fixture
def swapped(series):
    """Five days of one model, then two days of another one behind the same URL, half as fast."""
    series.put_target(BOX)
    add(series, noisy((80, 120), (40, 48)))
    at = START + 120 * HOUR_S
    swap(series, at)
    swap(series, at, "weights_bytes", "5000", "9000")
    return at


def test_another_model_begins_a_new_series(series, swapped):
    now = START + 168 * HOUR_S
    assert history.find_changes(series, "box", now) == []
    shown_history = history.history_of(series, KEY, START, now)
    assert (shown_history.changes, shown_history.steps) == ((), (swapped,))
    assert shown_history.stats.count == 48
    assert shown_history.stats.median == pytest.approx(40, rel=0.02)
    assert len(shown_history.points) == 168  # both are shown
    first = shown_history.sentences[0]
    expected = (
        "a new series since Thursday 29 October 00:00, when the model changed from "
        "qwen3-8b.gguf to qwen3-14b.gguf"
    )
    assert first == expected


def test_another_model_is_no_regression_of_the_old_one(series, swapped):
    now = START + 168 * HOUR_S
    (standing,) = target_statuses(series, now)
    assert standing.readings[0].ratio == pytest.approx(1, abs=0.05)
    history.find_changes(series, "box", now)
    assert not [finding for finding in findings_of(series, BOX, Monitor(), now) if finding.wrong]


def test_a_change_within_either_model_is_still_found(series):
    add(series, noisy((80, 60), (60, 60), (40, 60), (30, 60)))
    first = START + 60 * HOUR_S
    second = START + 180 * HOUR_S
    assert len(history.find_changes(series, "box", START + 120 * HOUR_S)) == 1
    swap(series, START + 120 * HOUR_S)
    changes = history.find_changes(series, "box", START + 240 * HOUR_S)
    assert [
        round((change.at - at) / HOUR_S)
        for change, at in zip(changes, (first, second), strict=True)
    ] == [0, 0]


def test_targets_are_compared_by_the_model_that_answers_now(series, swapped):
    series.put_target(replace(BOX, name="other"))
    add(series, noisy((40, 168), seed=3), target="other")
    (row,) = history.compare_targets(series, "box", "other", START, END).rows
    assert row.versus.a.count == 48
    assert row.versus.judgement is Judgement.SAME
