"""Two targets over the same time, and one target before and after a note."""

from __future__ import annotations

from datetime import UTC
from random import Random

import pytest

from skep.errors import UserError
from skep.monitor.compare import around_event, compare_targets
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
)
from skep.stats.versus import Judgement

START = 20_000 * DAY_S
END = START + 30 * DAY_S
KEY = SeriesKey("box", Heat.HOT, ProbeShape.SHORT, 1, SeriesMetric.TOK_S)


def add(series, target, values, model="qwen", every_s=HOUR_S, **figures):
    for slot, value in enumerate(values):
        at = START + slot * every_s
        probe = Probe(target, 0, slot, at, at + 1, ProbeOutcome.DONE, at, model=model)
        series.append_probe(probe, [ProbeSample(at, Heat.HOT, ProbeShape.SHORT, 1, tok_s=value, **figures)])


def noisy(level, many, cv=0.01):
    rng = Random(f"{level}")
    return [level * rng.gauss(1, cv) for _ in range(many)]


def test_local_against_cloud(series):
    add(series, "local", noisy(75, 40), engine_tok_s=76.0)
    add(series, "cloud", noisy(34, 40, 0.3), ttft_ms=900.0)
    found = compare_targets(series, "local", "cloud", START, END)
    [row] = found.rows  # the engine's speed and the wait are each told by one side only
    assert (row.metric, row.versus.judgement) == (SeriesMetric.TOK_S, Judgement.WORSE)
    assert found.same_model
    [told] = found.sentences
    assert told.startswith("short runs, one stream, hot: local is 2.")
    assert "as fast as cloud on the same model; ranges " in told


def test_engines_are_compared_by_their_own_clocks_where_both_tell(series):
    add(series, "a", noisy(50, 10), engine_tok_s=60.0)
    add(series, "b", noisy(50, 10), engine_tok_s=66.0, model="other")
    found = compare_targets(series, "a", "b", START, END)
    assert [row.metric for row in found.rows] == [SeriesMetric.ENGINE_TOK_S]
    assert found.sentences[0].startswith("short runs, one stream, hot: b is 10.0 % (10.0..10.0) faster than a (of diff")


def test_other_lengths_are_no_comparison(series):
    series.put_target(ProbeTarget("box", "http://a", prompt_tokens=256))
    series.put_target(ProbeTarget("cloud", "http://b", prompt_tokens=16))
    add(series, "box", noisy(70, 48))
    add(series, "cloud", noisy(35, 48))
    found = compare_targets(series, "box", "cloud", START, END)
    assert found.rows[0].versus.judgement is Judgement.UNKNOWN
    assert "not the same load, prompts of 256 against 16 tokens" in found.sentences[0]


def test_targets_that_share_nothing_have_no_rows(series):
    add(series, "a", [50.0] * 5)
    series.append_probe(
        Probe("b", 0, 0, START, START, ProbeOutcome.FAILED), [ProbeSample(START, Heat.COLD, ProbeShape.LONG, 1)]
    )
    with pytest.raises(UserError, match="there is no target `b`"):
        compare_targets(series, "a", "b", START, END)


def test_one_value_of_a_side_is_not_comparable(series):
    add(series, "a", [50.0])
    add(series, "b", [50.0])
    [row] = compare_targets(series, "a", "b", START, END).rows
    assert (row.versus.judgement, row.sentence) == (Judgement.UNKNOWN, None)


def test_before_and_after_a_note_are_compared_by_themselves(series):
    add(series, "box", [*noisy(70, 48), *noisy(63, 48)])
    note = MonitorEvent(START + 2 * DAY_S - 600, EventKind.NOTE, "NVLink bridges removed", "box")
    series.append_event(note)
    found = around_event(series, note, KEY, zone=UTC)
    assert (found.versus.a.count, found.versus.b.count) == (48, 48)
    assert found.versus.judgement is Judgement.WORSE
    assert "when it was noted: NVLink bridges removed: -9.8 % (" in found.sentence
    assert found.sentence.endswith("48 values against 48 before")


def test_a_note_inside_an_hour_of_many_probes_divides_that_hour(series):
    add(series, "box", [*noisy(70, 20), *noisy(63, 20)], every_s=60)
    note = MonitorEvent(START + 20 * 60 - 10, EventKind.NOTE, "clock locked", "box")
    series.append_event(note)
    found = around_event(series, note, KEY, zone=UTC)
    assert (found.versus.a.count, found.versus.b.count) == (20, 20)


def test_the_windows_end_where_something_else_happened(series):
    add(series, "box", noisy(70, 96))
    note = MonitorEvent(START + 2 * DAY_S, EventKind.NOTE, "new fans", "box")
    for event in (
        note,
        MonitorEvent(START + DAY_S, EventKind.VERSION, "driver", "box"),
        MonitorEvent(START + 2 * DAY_S + 60, EventKind.VERSION, "of the same moment", "box"),
        MonitorEvent(START + 2.5 * DAY_S, EventKind.RESTART, "started anew", "box"),
        MonitorEvent(START + 3 * DAY_S, EventKind.NOTE, "another", "box"),
        MonitorEvent(START + 2.2 * DAY_S, EventKind.NOTE, "of another box", "other"),
    ):
        series.append_event(event)
    found = around_event(series, note, KEY, zone=UTC)
    assert (found.before, found.after) == ((START + DAY_S, START + 2 * DAY_S), (START + 2 * DAY_S, START + 3 * DAY_S))
    assert "inside run-to-run noise (CV 1." in found.sentence


def test_a_note_with_nothing_after_it_is_not_comparable_yet(series):
    add(series, "box", noisy(70, 10))
    note = MonitorEvent(START + DAY_S, EventKind.NOTE, "just now", "box")
    assert around_event(series, note, KEY, zone=UTC).sentence.endswith(
        "not comparable, with 10 values before and 0 after"
    )
