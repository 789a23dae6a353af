"""What a trial asks in which order, and what is said before and after it."""

from collections import Counter

import pytest

from skep.errors import UserError
from skep.quality.trial import ItemPass, TrialPlan, blocks_of, order_of, passes_of_round, uncached
from skep.quality.trial_figures import (
    AGAIN,
    BASE,
    LOAD,
    ArmFigures,
    LevelQuality,
    QualitySummary,
    claim_words,
    conclusion,
    outlook,
    points,
    remarks,
    signed,
)
from skep.stats.noninferiority import Claim, claim_of, paired_difference


def level_of(concurrency, items, lost=0, gained=0, *, base=0.75, needed=None, cached=None):
    both = round(base * items) - lost
    pairs = [(True, False)] * lost + [(False, True)] * gained + [(True, True)] * both
    pairs += [(False, False)] * (items - len(pairs))
    difference = paired_difference({str(n): [pair] for n, pair in enumerate(pairs)})
    arm = ArmFigures(concurrency, items, (), cached_share=cached)
    return LevelQuality(concurrency, difference, claim_of(difference, 0.03), arm, arm, needed)


def summary_of(*levels, noise=None, texts=None, **how):
    held = max((level.concurrency for level in levels if level.claim is Claim.HOLDS), default=None)
    return QualitySummary("r", "b", 0.03, 400, noise, texts, levels, held, **how)


GOOD = level_of(4, 400)
WORSE = level_of(8, 400, lost=40, gained=2)
UNSURE = level_of(8, 40, lost=1, gained=1, needed=690)


def test_points_read_as_people_write_them_and_differences_have_a_sign():
    assert [*map(points, (0.03, 0.01, 0.0512, -0.0))] == [
        "3 points",
        "1 point",
        "5.1 points",
        "0 points",
    ]
    assert [*map(signed, (-0.012, 0.004, 0.0, -0.0001))] == ["-1.2", "+0.4", "0.0", "0.0"]


def test_claims_in_words():
    assert claim_words(GOOD, 0.03) == "no worse than 3 points"
    assert claim_words(WORSE, 0.03).startswith("worse: at least ")
    assert "cannot be excluded; about 690 items would be needed" in claim_words(UNSURE, 0.03)
    small = level_of(4, 4000, lost=40, gained=5)
    assert claim_words(small, 0.03).startswith("no worse than 3 points, though at least")


@pytest.mark.parametrize(
    "levels", [(UNSURE,), (GOOD, UNSURE), (level_of(4, 8),), (level_of(4, 400, base=0.0),), ()]
)
def test_what_was_not_shown_is_never_called_the_same(levels):
    """Too few items are no evidence, neither way."""
    if levels and levels[0].difference.base_rate == 0:
        levels = (
            LevelQuality(4, levels[0].difference, Claim.UNSHOWN, levels[0].base, levels[0].load),
        )
    sentence = conclusion(summary_of(*levels))
    assert "not shown" in sentence or "nothing can be claimed" in sentence
    for comfort in ("no degradation", "no loss", "same", "unchanged", "as good"):
        assert comfort not in sentence
    if levels[:1] != (GOOD,):
        assert sentence.startswith("nothing can be claimed")
        assert "holds" not in sentence


def test_the_conclusion_names_how_far_it_holds_and_what_ended_it():
    sentence = conclusion(summary_of(GOOD, WORSE))
    assert sentence.startswith("quality holds up to C=4: a loss of 3 points or more is excluded")
    assert "C=8 is worse: at least" in sentence
    assert conclusion(summary_of(WORSE)).startswith("C=8 is worse")


def test_an_underpowered_trial_is_told_so_before_it_begins_and_what_helps():
    assert len(outlook(2000, 0.03, 1)) == 1
    few, warning = outlook(164, 0.03, 1, available=164)
    assert "164 are asked" in few
    assert warning.startswith("UNDERPOWERED: expect `not shown`")
    assert all(word in warning for word in ("--delta", "a larger bank"))
    assert "--items" not in warning  # it has no more
    assert "--items" in outlook(164, 0.03, 1)[1]


def test_levels_not_walked_and_prompts_from_a_cache_are_told():
    lines = remarks(
        summary_of(
            level_of(4, 40, lost=1, cached=0.5), skipped=(8, 16), incomplete="the budget ended"
        )
    )
    assert lines[0] == "incomplete: the budget ended"
    assert lines[1] == "not measured: C=8, C=16, as C=4 does not hold"
    assert lines[2].startswith("warning: 50 % of the prompts came from a cache")


@pytest.mark.parametrize(
    ("count", "level"), [(1, 4), (63, 4), (64, 4), (127, 4), (128, 4), (1000, 8), (1000, 64)]
)
def test_blocks_hold_every_item_once_and_none_is_small(count, level):
    blocks = blocks_of(count, level)
    assert [index for begin, end in blocks for index in range(begin, end)] == list(range(count))
    if len(blocks) > 1:
        assert min(end - begin for begin, end in blocks) >= max(64, 8 * level)


def test_arms_go_first_in_turns_and_a_coin_of_the_seed_says_which_begins():
    """From block to block and from round to round; the load stands between the two base arms."""
    arms = passes_of_round(Counter(), 4, again=False)
    firsts = [order_of(arms, 1, 4, 0, block)[0].arm for block in range(4)]
    assert firsts in ([BASE, LOAD] * 2, [LOAD, BASE] * 2)
    assert [order_of(arms, 1, 4, 1, block)[0].arm for block in range(4)] == firsts[1:] + firsts[:1]
    assert {order_of(arms, seed, 4, 0, 0)[0].arm for seed in range(20)} == {BASE, LOAD}
    passes = passes_of_round(Counter(), 4, again=True)
    assert [pass_.arm for pass_ in order_of(passes, 1, 4, 0, 0)] in (
        [BASE, LOAD, AGAIN],
        [AGAIN, LOAD, BASE],
    )


def test_passes_of_a_level_are_numbered_as_they_are_begun():
    begun = Counter()
    assert passes_of_round(begun, 4, again=True) == {
        BASE: ItemPass(1, 0, BASE),
        AGAIN: ItemPass(1, 1, AGAIN),
        LOAD: ItemPass(4, 0, LOAD),
    }
    assert passes_of_round(begun, 4, again=False) == {
        BASE: ItemPass(1, 2, BASE),
        LOAD: ItemPass(4, 1, LOAD),
    }


def test_one_is_the_base_whether_it_is_named_or_not_and_a_level_above_it_is_needed():
    assert TrialPlan((8, 1, 4)).levels == TrialPlan((4, 8)).levels == (4, 8)
    with pytest.raises(UserError, match="no level to compare with C=1"):
        TrialPlan((1,))


def test_llama_cpp_is_told_to_use_no_cache_and_vllm_gets_a_salt_for_each_request():
    item_pass = ItemPass(4, 0, LOAD)
    names = ("xllamacpp 2026.1", "llama.cpp b11434-1a2b3c4", "llamacpp")
    for engine_facts in (*({"engine": name} for name in names), {"build": "b6000-abc"}):
        assert uncached(engine_facts, item_pass, 3, "s") == {"cache_prompt": False}
    requests = [(of, index) for of in (item_pass, ItemPass(1, 0, BASE)) for index in range(3)]
    salts = [
        uncached({"engine": "vllm 0.19.1"}, of, index, "5a17")["cache_salt"]
        for of, index in requests
    ]
    assert len(set(salts)) == 6
    assert not set("@/\\\0") & set("".join(salts))  # vLLM refuses these
    assert all(
        not uncached({"engine": name}, item_pass, 3, "s")
        for name in ("sglang 0.5", "ollama 0.12", "")
    )
    both = uncached({"engine": "vllm 0.19.1, xllamacpp 2026.1"}, item_pass, 3, "s")
    assert set(both) == {"cache_prompt", "cache_salt"}
