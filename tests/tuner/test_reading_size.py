"""How much is asked of an engine before a figure of it is taken: by its speed, never endless."""

import pytest

from skep.tuner.reading_size import LONGEST_RUN_S, RUN_S, Waves, run_tasks, tasks_for


@pytest.mark.parametrize(
    ("concurrency", "rates", "count"),
    [
        (1, [], 6),
        (4, [], 12),
        (4, [1.0], 12),
        (4, [5.0], 48),
        (4, [1e9], 768),
        (4, [0.2], 8),  # three of each would take a minute
        (8, [0.2], 8),  # even two of each would take 80 s
        (1, [0.01], 1),
        (4, [0.5, 50.0], 12),  # more would keep the slower one for a minute
        (4, [2.0, 5.0], 48),
        (2, [0.0], 6),
    ],
)
def test_readings_are_long_enough_for_the_fastest_and_not_too_long_for_the_slowest(concurrency, rates, count):
    assert tasks_for(concurrency, rates, RUN_S) == count


def test_a_wave_between_two_levels_takes_a_time_between_theirs():
    waves = Waves()
    assert waves.seconds(4) is None
    waves.took(4, 8, 20.0)
    assert waves.seconds(4) == pytest.approx(10.0)
    assert 2.5 <= waves.seconds(1) <= 10.0
    assert 10.0 <= waves.seconds(8) <= 20.0
    waves.took(1, 1, 9.0)
    assert 9.0 <= waves.seconds(2) <= 10.0


def test_a_level_that_would_take_too_long_is_left_out():
    assert run_tasks(8, LONGEST_RUN_S + 1) is None
    assert run_tasks(8, LONGEST_RUN_S) == 8
    assert run_tasks(8, 2.0) == 24
    assert run_tasks(8, None) == 8
    assert run_tasks(1, 1e-6) == 192
