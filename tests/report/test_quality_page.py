"""The report of a quality test: what may be claimed, and never more."""

import re

import pytest
from msgspec.structs import replace
from reading import plain, values_of

from skep.quality.trial_figures import (
    ArmFigures,
    LevelQuality,
    QualitySummary,
    claim_words,
    conclusion,
)
from skep.report.quality import difference_chart, quality_page
from skep.stats.noninferiority import Claim, PairedDifference
from skep.store.records import RunState
from skep.store.verdicts import VerdictOutcome

ITEMS = 690


def _difference(base, rate, low, high, lost, gained):
    return PairedDifference(ITEMS, ITEMS, base, rate, rate - base, low, high, lost, gained)


def _arm(c, outcomes, ttft=(64.0, 90.0), total=(1.1, 2.0)):
    return ArmFigures(c, ITEMS, tuple(outcomes.items()), *ttft, *total, 80.0, 0.0)


ALONE = _arm(1, {"passed": 428, "wrong": 230, "truncated": 32})
HOLDS = LevelQuality(
    4,
    _difference(0.62, 0.617, -0.019, 0.013, 11, 9),
    Claim.HOLDS,
    ALONE,
    _arm(4, {"passed": 426, "wrong": 225, "truncated": 39}, (140.0, 260.0), (2.0, 3.5)),
    None,
    0.12,
)
UNSHOWN = LevelQuality(
    8,
    _difference(0.62, 0.60, -0.042, 0.002, 30, 16),
    Claim.UNSHOWN,
    ALONE,
    _arm(8, {"passed": 414, "wrong": 205, "timed out": 71}, (290.0, 560.0), (3.8, 7.5)),
    1210,
    0.2,
)
LOST = LevelQuality(
    16,
    _difference(0.62, 0.51, -0.14, -0.082, 95, 19),
    Claim.LOST,
    ALONE,
    _arm(16, {outcome.value: 86 for outcome in VerdictOutcome}, (900.0, 3560.0), (9.8, 19.5)),
    None,
    0.5,
)
SUMMARY = QualitySummary(
    run_id="01Q",
    bank="drills:2",
    delta=0.03,
    items=ITEMS,
    noise=_difference(0.62, 0.623, -0.012, 0.018, 8, 10),
    noise_texts_changed=0.06,
    levels=(HOLDS, UNSHOWN),
    holds_up_to=4,
    skipped=(16,),
)


@pytest.fixture(scope="module")
def tested(run):
    return replace(run, id="01Q", kind="quality")


@pytest.fixture(scope="module")
def page(tested):
    return plain(quality_page(tested, SUMMARY))


def test_the_conclusion_leads_and_says_what_ended_the_walk(page):
    held = (
        "Quality holds up to C=4: a loss of 3 points or more is excluded (95 %); C=8 is not shown"
    )
    assert page.index(held) < page.index("The same items with and without load")
    assert re.search("16[ –]+not measured: a lower level already fails", page)


@pytest.mark.parametrize("levels", [(), (UNSHOWN,), (LOST,)])
def test_without_a_level_that_holds_nothing_is_called_fine(tested, levels):
    """Neither in words nor in the picture, whatever the reason."""
    summary = replace(SUMMARY, levels=levels, holds_up_to=None)
    assert "holds" not in conclusion(summary)
    assert not any(claim_words(level, summary.delta).startswith("no worse") for level in levels)
    assert not levels or "no worse" not in values_of(difference_chart(summary), "claim")


def test_not_shown_is_explained_where_it_occurs(tested, page):
    """An underpowered test is no clean bill of health."""
    assert "claims neither that quality was lost" in page
    assert "claims neither that quality" not in plain(
        quality_page(tested, replace(SUMMARY, levels=(HOLDS,)))
    )


def test_tables_have_the_noise_floor_first(page):
    assert "1 and 1 690 690 62.0 % 62.3 % +0.3 −1.2 .. +1.8 8 10 6 % the noise floor" in page
    assert "4 690 690 62.0 % 61.7 % −0.3 −1.9 .. +1.3 11 9 12 % no worse than 3 points" in page


def test_claims_differ_in_shape_as_in_colour():
    spec = difference_chart(replace(SUMMARY, levels=(HOLDS, UNSHOWN, LOST)))
    (points,) = [layer for layer in spec["layer"] if layer["mark"]["type"] == "point"]
    assert {row["claim"] for row in points["data"]["values"]} == {claim.value for claim in Claim}
    for channel in ("shape", "stroke"):
        scale = points["encoding"][channel]["scale"]
        assert set(scale["domain"]) == {claim.value for claim in Claim}
        assert len(set(scale["range"])) == 3


def test_the_line_at_delta_is_always_in_the_picture():
    """Even where every difference lies far above it."""
    spec = difference_chart(replace(SUMMARY, delta=0.2))
    low, high = spec["encoding"]["y"]["scale"]["domain"]
    assert low < -20 < 0 < high


def test_a_noise_floor_that_was_not_measured_has_no_band(tested):
    bare = replace(SUMMARY, noise=None, noise_texts_changed=None)
    assert len(difference_chart(bare)["layer"]) == len(difference_chart(SUMMARY)["layer"]) - 1
    assert "C = 1 against itself was not measured" in plain(quality_page(tested, bare))


def test_requests_that_all_failed_have_no_latency_and_still_a_picture(tested):
    silent = replace(
        _arm(4, {"failed": ITEMS}),
        ttft_p50_ms=None,
        ttft_p95_ms=None,
        total_p50_s=None,
        total_p95_s=None,
    )
    summary = replace(
        SUMMARY, levels=(replace(UNSHOWN, base=silent, load=silent),), holds_up_to=None
    )
    text = plain(quality_page(tested, summary))
    assert "not measured" in text


def test_a_run_that_was_cut_short_or_simulated_says_so(tested):
    odd = replace(
        SUMMARY,
        incomplete="the budget was over after 64 items",
        simulated=True,
        levels=(),
        holds_up_to=None,
    )
    tested = replace(tested, simulated=True)
    text = plain(quality_page(replace(tested, state=RunState.FAILED, error="boom"), odd))
    assert (
        "Incomplete 192 requests are stored; the budget was over after 64 items; the run is "
        "failed; boom."
    ) in text
    assert "Simulated No model ran." in text
