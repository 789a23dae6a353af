"""The accuracy that is promised, held against published rows by constants never fitted on their source."""

from pathlib import Path

import pytest

from skep.planner.constants import Constants, constants_without, fitted_constants, honest_constants, published_constants
from skep.planner.validation import read_rows, source_of, spread, validate

DATA = Path(__file__).parent.parent / "data"


def read(name):
    return read_rows((DATA / name).read_text(encoding="utf-8"), name)


@pytest.fixture(scope="module")
def report():
    return validate(read("published_points.csv"))


def test_the_promise_is_kept_on_sources_that_were_not_fitted_on(report):
    assert report.spreads()["all"].median_ape <= 0.20
    assert report.spreads()["all"].p90_ape <= 0.60
    assert 0.75 <= report.covered <= 0.85


def test_it_is_at_least_twice_as_good_as_the_better_simple_formula(report):
    better = min(groups["all"].median_ape for groups in report.baselines().values())
    alone = min(groups["C=1"].median_ape for groups in report.baselines().values())
    assert report.spreads()["all"].median_ape <= better / 2
    assert report.spreads()["C=1"].median_ape <= alone / 2


def test_no_row_is_dropped_silently(report):
    assert report.rows == len(report.points) + len(report.unpredicted) == 914
    assert len({row for row, _ in report.unpredicted} | {point.case.row for point in report.points}) == 914
    assert all(": " in why for _, why in report.unpredicted)


def test_rows_of_the_writeups_are_predicted_too():
    report = validate(read("writeup_points.csv"))
    assert report.unpredicted == ()
    assert report.spreads()["all"].median_ape <= 0.25


def test_a_source_that_was_fitted_on_has_constants_of_its_own_without_it():
    for _, cells in read("published_points.csv"):
        source = source_of(cells["source_url"])
        without = constants_without(source)
        if without is not None:
            assert set(without) == set(Constants.names())
    assert honest_constants("nowhere.example") == published_constants()
    assert honest_constants("github.com/gpustack/gpustack") != published_constants()
    assert set(fitted_constants()) == set(Constants.names())


def test_a_spread_of_nothing_is_unknown():
    assert spread([]).median_ape is None
    assert spread([0.1, 0.3]).median_ape == pytest.approx(0.2)
