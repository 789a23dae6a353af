"""When a process counts as silent, and when as one that hangs."""

import pytest

from skep.wire.silence import Liveness, SilenceLimits, SilenceWatch

ANSWERS, SILENT, HANGS = Liveness
TICK_S = 0.25


def looks(watch, begin, end, **options):
    """Look every quarter of a second; return what was found last."""
    ticks = range(round(begin / TICK_S), round(end / TICK_S) + 1)
    return [watch.look(tick * TICK_S, **options) for tick in ticks][-1]


@pytest.fixture
def watch():
    """Of a process that was last heard at 0."""
    watch = SilenceWatch(SilenceLimits())
    watch.heard()
    watch.look(0.0)
    return watch


@pytest.mark.parametrize(
    ("until_s", "liveness"), [(2.75, ANSWERS), (3.0, SILENT), (9.75, SILENT), (10.0, HANGS)]
)
def test_a_process_is_silent_after_three_seconds_and_hangs_after_ten(watch, until_s, liveness):
    assert looks(watch, 0, until_s) is liveness


def test_a_sign_of_life_ends_the_silence(watch):
    assert looks(watch, 0, 9) is SILENT
    watch.heard()
    assert looks(watch, 9.25, 11) is ANSWERS


@pytest.mark.parametrize("pause_s", [1.25, 60, 86_400])
def test_whoever_looks_and_was_itself_away_counts_anew(watch, pause_s):
    """A machine that slept, or a supervisor that was stopped: what was said meanwhile has not been
    read yet.
    """
    assert looks(watch, 0, 9) is SILENT
    assert watch.look(9 + pause_s) is ANSWERS
    assert looks(watch, 9 + pause_s, 9 + pause_s + 2.5) is ANSWERS


def test_time_without_a_processor_does_not_count(watch):
    """On a machine with too much to do, a process may be ready to run for long."""
    assert looks(watch, 0, 60, waited_s=TICK_S) is ANSWERS


def test_a_process_that_runs_and_says_nothing_hangs(watch):
    """Half of the time it had a processor: an endless loop, and another program beside it."""
    assert looks(watch, 0, 19, waited_s=TICK_S / 2) is SILENT
    assert looks(watch, 19.25, 20.5, waited_s=TICK_S / 2) is HANGS


def test_a_start_takes_longer_than_a_sign_of_life_later():
    watch = SilenceWatch(SilenceLimits())
    assert looks(watch, 0, 119) is ANSWERS
    assert looks(watch, 119.25, 120) is HANGS


def test_one_that_has_started_and_never_gives_signs_of_life_is_left_alone():
    """A gateway of an older version does not know the question."""
    watch = SilenceWatch(SilenceLimits())
    watch.look(0.0)
    watch.started(gives_signs=False)
    assert looks(watch, 0, 600) is ANSWERS


def test_the_start_itself_is_a_sign_of_life():
    watch = SilenceWatch(SilenceLimits())
    watch.look(0.0)
    watch.started(gives_signs=True)
    assert looks(watch, 0, 9.75) is SILENT
    assert watch.look(10.0) is HANGS
