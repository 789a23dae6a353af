"""What is said before and after a trial."""

import pytest

from skep.quality.records import ArmFigures, LevelQuality, QualitySummary
from skep.quality.trial import noise_words, outlook, remarks, signed
from skep.quality.words import claim_words, conclusion, points
from skep.stats.noninferiority import Claim, claim_of, paired_difference


def level_of(concurrency, items, lost=0, gained=0, *, base=0.75, needed=None, cached=None):
    both = round(base * items) - lost
    pairs = [(True, False)] * lost + [(False, True)] * gained + [(True, True)] * both
    pairs += [(False, False)] * (items - len(pairs))
    found = paired_difference({str(n): [pair] for n, pair in enumerate(pairs)})
    arm = ArmFigures(concurrency, items, (), cached_share=cached)
    return LevelQuality(concurrency, found, claim_of(found, 0.03), arm, arm, needed)


def summary_of(*levels, noise=None, texts=None, **how):
    held = max((level.concurrency for level in levels if level.claim is Claim.HOLDS), default=None)
    return QualitySummary("r", "b", 0.03, 400, noise, texts, levels, held, **how)


GOOD = level_of(4, 400)
WORSE = level_of(8, 400, lost=40, gained=2)
UNSURE = level_of(8, 40, lost=1, gained=1, needed=690)


@pytest.mark.parametrize(
    ("share", "text"), [(0.03, "3 points"), (0.01, "1 point"), (0.0512, "5.1 points"), (-0.0, "0 points")]
)
def test_points_read_as_people_write_them(share, text):
    assert points(share) == text


@pytest.mark.parametrize(("share", "text"), [(-0.012, "-1.2"), (0.004, "+0.4"), (0.0, "0.0"), (-0.0001, "0.0")])
def test_differences_have_a_sign(share, text):
    assert signed(share) == text


def test_claims_in_words():
    assert claim_words(GOOD, 0.03) == "no worse than 3 points"
    assert claim_words(WORSE, 0.03).startswith("worse: at least ")
    assert "cannot be excluded; about 690 items would be needed" in claim_words(UNSURE, 0.03)


def test_a_small_loss_within_delta_is_told_with_the_claim():
    level = level_of(4, 4000, lost=40, gained=5)
    assert level.claim is Claim.HOLDS
    assert claim_words(level, 0.03).startswith("no worse than 3 points, though at least")


@pytest.mark.parametrize("levels", [(UNSURE,), (GOOD, UNSURE), (level_of(4, 8),), (level_of(4, 400, base=0.0),), ()])
def test_what_was_not_shown_is_never_called_the_same(levels):
    """Too few items are no evidence, neither way."""
    if levels and levels[0].difference.base_rate == 0:
        levels = (LevelQuality(4, levels[0].difference, Claim.UNSHOWN, levels[0].base, levels[0].load),)
    said = conclusion(summary_of(*levels))
    assert "not shown" in said or "nothing can be claimed" in said
    for comfort in ("no degradation", "no loss", "same", "unchanged", "as good"):
        assert comfort not in said
    if levels[:1] != (GOOD,):
        assert said.startswith("nothing can be claimed")
        assert "holds" not in said


def test_the_conclusion_names_how_far_it_holds_and_what_ended_it():
    said = conclusion(summary_of(GOOD, WORSE))
    assert said.startswith("quality holds up to C=4: a loss of 3 points or more is excluded")
    assert "C=8 is worse: at least" in said
    assert conclusion(summary_of(WORSE)).startswith("C=8 is worse")


def test_an_underpowered_trial_is_told_so_before_it_begins_and_what_helps():
    enough = outlook(2000, 0.03, 1)
    assert len(enough) == 1
    few, warning = outlook(164, 0.03, 1, available=164)
    assert "164 are asked" in few
    assert "assumed" in few
    assert warning.startswith("UNDERPOWERED: expect `not shown`")
    assert "--delta" in warning
    assert "a larger bank" in warning
    assert "--items" not in warning  # it has no more
    assert "--items" in outlook(164, 0.03, 1)[1]


def test_measured_noise_takes_the_place_of_the_assumed():
    quiet, loud = level_of(4, 400), level_of(4, 400, lost=80, gained=80)
    assert len(outlook(400, 0.03, 1, seen=quiet)) == 1
    first, warning = outlook(400, 0.03, 1, seen=loud)
    assert "40.0 % of the verdicts change, for better or worse (as between C=1 and C=4)" in first
    assert warning.startswith("UNDERPOWERED")


def test_the_noise_floor_is_one_line():
    noise = paired_difference({str(n): [(n > 2, n != 5)] for n in range(100)})
    said = noise_words(summary_of(GOOD, noise=noise, texts=0.31))
    assert said.startswith("C=1 against itself: 4 of 100 verdicts changed (4.0 %), 31 % of the texts")
    assert noise_words(summary_of(GOOD)) is None


def test_levels_not_walked_and_prompts_from_a_cache_are_told():
    said = remarks(summary_of(level_of(4, 40, lost=1, cached=0.5), skipped=(8, 16), incomplete="the budget ended"))
    assert said[0] == "incomplete: the budget ended"
    assert said[1] == "not walked: C=8, C=16, as C=4 does not hold"
    assert said[2].startswith("warning: 50 % of the prompts came from a cache")
