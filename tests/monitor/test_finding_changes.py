"""Changes are found anew after each probe; what was found stays when its beginning is no longer looked at."""

from __future__ import annotations

from random import Random

from skep.monitor.changes import SETTLED_S, WINDOW_S, find_changes
from skep.monitor.records import (
    DAY_S,
    HOUR_S,
    Heat,
    Probe,
    ProbeOutcome,
    ProbeSample,
    ProbeShape,
    SeriesChange,
    SeriesKey,
    SeriesMetric,
)

START = 20_000 * DAY_S
KEY = SeriesKey("box", Heat.HOT, ProbeShape.SHORT, 1, SeriesMetric.TOK_S)
STEP_S = 6 * HOUR_S  # few probes over a long time


def add(series, values, first=0):
    for slot, value in enumerate(values, first):
        at = START + slot * STEP_S
        probe = Probe("box", 0, slot, at, at + 1, ProbeOutcome.DONE, at)
        series.append_probe(probe, [ProbeSample(at, Heat.HOT, ProbeShape.SHORT, 1, tok_s=value)])


def noisy(level, many, seed):
    rng = Random(seed)
    return [level * rng.gauss(1, 0.01) for _ in range(many)]


def test_a_change_stays_when_the_window_has_moved_past_it(series):
    """Looked at after every probe of seven weeks, a change of the first week is told all the time, and only once."""
    values = noisy(70, 40, 1) + noisy(60, 160, 2)
    add(series, values[:60])
    [first] = find_changes(series, "box", START + 59 * STEP_S)
    for slot in range(60, len(values), 4):
        add(series, values[slot : slot + 4], slot)
        [change] = find_changes(series, "box", START + (slot + 3) * STEP_S)
        assert change.at == first.at
    assert first.at < START + 199 * STEP_S - WINDOW_S


def test_a_change_that_proves_to_be_none_goes_away(series):
    """Inside the window everything is found anew."""
    add(series, noisy(70, 60, 3))
    series.set_changes(KEY, [SeriesChange(KEY, START + 30 * STEP_S, (START, START), 70.0, 65.0, 0.9, 0.95, 30, 30)])
    assert find_changes(series, "box", START + 59 * STEP_S) == []
    assert series.changes("box") == []


def test_the_beginning_of_a_window_is_not_looked_at_for_new_changes(series):
    """A level that reaches into the window with few values was judged when it lay inside with all of them."""
    add(series, noisy(70, 20, 4) + noisy(60, 130, 5))
    now = START + 150 * STEP_S
    begin = now - WINDOW_S
    assert begin < START + 40 * STEP_S < begin + SETTLED_S
    assert find_changes(series, "box", now) == []


def test_a_target_without_samples_has_no_changes(series):
    assert find_changes(series, "nobody", START) == []
