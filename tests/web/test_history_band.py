"""The band of a picture begins anew at a change, so that a step looks like one."""

import re

import pytest
import watched_store
from running_site import folders

from skep.monitor.history import history_of
from skep.monitor.records import DAY_S, Heat, ProbeShape, SeriesKey, SeriesMetric
from skep.paths import user_paths
from skep.report.series_chart import Picture, Track, series_svg
from skep.web.context import Site
from skep.web.history_data import stepped, with_steps

BOX = SeriesKey("box", Heat.HOT, ProbeShape.SHORT, 1, SeriesMetric.TOK_S)
COLD = SeriesKey("box", Heat.COLD, ProbeShape.SHORT, 1, SeriesMetric.TOK_S)


@pytest.fixture(scope="module")
def series(tmp_path_factory):
    paths = user_paths(folders(tmp_path_factory.mktemp("stepped")))
    watched_store.fill(paths)
    with Site(paths).series() as found:
        yield found


def test_after_a_step_the_median_is_of_what_came_after(series):
    now = watched_store.NOW
    history, steps = with_steps(series, history_of(series, BOX, now - 9 * DAY_S, now))
    (step,) = steps
    before = [row[1] for row in history.band if row[0] < step]
    after = [row[1] for row in history.band if row[0] >= step]
    assert min(before) > 98
    assert max(after) < 94


def test_a_step_before_the_window_has_no_say_in_it(series):
    now = watched_store.NOW
    history, steps = with_steps(series, history_of(series, BOX, now - 3 * DAY_S, now))
    assert steps == ()
    assert max(row[1] for row in history.band) < 94


def test_cold_runs_step_where_hot_ones_do(series):
    now = watched_store.NOW
    _, steps = with_steps(series, history_of(series, COLD, now - 9 * DAY_S, now))
    assert len(steps) == 1


def test_without_a_step_nothing_is_changed():
    values = [(float(hour), 1.0) for hour in range(20)]
    assert len(stepped(values, (), 5.0)) == 20
    assert [row[0] for row in stepped(values, (10.0,), 5.0)] == [*range(10), *range(14, 20)]


def test_no_line_joins_both_sides_of_a_step():
    band = [(float(at), 5.0 if at < 50 else 3.0, 2.0, 6.0) for at in range(100)]
    whole, cut = (
        series_svg(Picture("box", "", "tok/s", 0.0, 100.0, [Track("box", (), band, steps=steps)]), "c")
        for steps in ((), (50.0,))
    )
    pieces = [[path.count("M") for path in re.findall(r' d="([^"]*)"', drawn)] for drawn in (whole, cut)]
    assert sum(pieces[1]) == sum(pieces[0]) + 2  # of the line and of the shade
