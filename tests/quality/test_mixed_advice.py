"""How many at once, computed: what is chosen, and with which reasons."""

import pytest

from skep.quality.mixed_advice import advice_of, fisher_less, smallest_fall
from skep.verdicts import MixedLevel, SideFigures, TurnFigures

NAMES = {1: "P1", 2: "P1+S1", 3: "P1+S1-S2", 5: "P1+S1-S4"}


def level(concurrency, primary_s, wall_s=None, *, passed=3, side_passed=None, repeats=1, tokens=100):
    """`passed` of the conversation's turns and `side_passed` of each side task, over all repeats; `tokens` a turn."""
    each = repeats if side_passed is None else side_passed
    turns = [passed * repeats // 3 + (place < passed * repeats % 3) for place in range(3)]
    beside = range(1, concurrency)
    finished = sum(turns) + each * len(beside)
    wall = (wall_s or primary_s or 1.0) * repeats
    return MixedLevel(
        name=NAMES[concurrency],
        concurrency=concurrency,
        repeats=repeats,
        turns=tuple(
            TurnFigures(f"P1.{n}", repeats, 100.0, 1.0, tokens, 50.0, 0.0, 0.0, count, repeats, None)
            for n, count in enumerate(turns, start=1)
        ),
        side=tuple(SideFigures(f"S{n}", "", repeats, 1.0, 100.0, 50, each, repeats, None) for n in beside),
        primary_s=primary_s,
        primary_low_s=primary_s,
        primary_high_s=primary_s,
        wall_s=wall,
        aggregate_tok_s=100.0,
        seconds_per_task=wall / finished if finished else None,
        held_share=None,
    )


# Published for an RTX 4090: total time of the conversation, and the slowest of all beside it; every answer was right.
PUBLISHED = {
    "gpt-oss-20b": [level(1, 3.2), level(2, 7.1), level(3, 7.4), level(5, 8.2)],
    "qwen3-coder-30b": [level(1, 2.2), level(2, 4.4), level(3, 3.7), level(5, 6.3)],
}


@pytest.mark.parametrize("model", PUBLISHED)
def test_the_published_figures_give_the_published_choice(model):
    advice = advice_of(PUBLISHED[model])
    assert (advice.concurrency, advice.level) == (3, "P1+S1-S2")


def test_the_reasons_carry_the_figures_and_what_more_would_cost():
    reasons = advice_of(PUBLISHED["qwen3-coder-30b"]).reasons
    assert reasons[0] == "C=3: the conversation takes 1.68x of C=1 (3.7 s)"
    assert "81.1 finished tasks a minute, 54.5 at C=2" in reasons[1]
    cost = "the conversation takes 2.86x of C=1 (6.3 s), more than 2.5x"
    assert reasons[-1] == f"C=5: {cost}; 66.7 finished tasks a minute, 81.1 at C=3"


def test_with_one_repeat_it_says_that_no_loss_could_have_been_seen():
    reasons = advice_of(PUBLISHED["gpt-oss-20b"]).reasons
    assert "primary answers: 3 of 3 passed, 3 of 3 at C=1; a loss stands out from chance at 0 of 3" in reasons[2]
    assert "S1: 1 of 1 passed, 1 of 1 at C=2; too few to tell any loss from chance" in reasons[3]


def test_a_level_whose_answers_fail_more_often_than_chance_explains_is_not_advised():
    levels = [level(1, 2.0, repeats=3), level(2, 2.2, repeats=3), level(3, 2.4, repeats=3, passed=1)]
    advice = advice_of(levels)
    assert advice.concurrency == 2
    assert "primary answers: 3 of 9 passed, 9 of 9 at C=1, less than chance explains (p = 0.0045)" in advice.reasons[-1]


def test_one_answer_less_is_chance():
    levels = [level(1, 2.0, repeats=3), level(2, 1.9, repeats=3, passed=2)]
    assert advice_of(levels).concurrency == 2


def test_side_tasks_are_held_against_the_lowest_level_that_had_them():
    levels = [level(1, 2.0, repeats=6), level(2, 2.1, repeats=6), level(3, 2.2, repeats=6, side_passed=0)]
    advice = advice_of(levels)
    assert advice.concurrency == 2
    assert "S1: 0 of 6 passed, 6 of 6 at C=2" in advice.reasons[-1]


def test_side_tasks_are_counted_by_name_with_the_levels_they_are_held_against():
    """S3 and S4 were at no lower level: the count is of fewer tasks than the level has, and says of which."""
    levels = [level(1, 2.0, repeats=3), level(2, 2.1, repeats=3), level(3, 2.2, repeats=3), level(5, 2.3, repeats=3)]
    assert "C=5: S1, S2: 6 of 6 passed, 6 of 6 at C=2 and C=3; a loss" in "\n".join(advice_of(levels).reasons)
    reasons = advice_of([levels[0], levels[2], levels[3]]).reasons
    assert any(reason.startswith("C=5: S1, S2: 6 of 6 passed, 6 of 6 at C=3; ") for reason in reasons)


@pytest.mark.parametrize(
    ("tokens", "says"),
    [
        (56, "C=2: the conversation takes 0.50x of C=1 (1.0 s, for 168 tokens instead of 300)"),
        (125, "C=2: the conversation takes 0.50x of C=1 (1.0 s, for 375 tokens instead of 300)"),
        (90, "C=2: the conversation takes 0.50x of C=1 (1.0 s)"),
        (None, "C=2: the conversation takes 0.50x of C=1 (1.0 s)"),
    ],
)
def test_a_time_of_answers_of_another_length_is_told_with_the_tokens(tokens, says):
    assert says in advice_of([level(1, 2.0), level(2, 1.0, tokens=tokens)]).reasons


def test_a_level_that_finishes_no_more_than_the_one_below_is_not_advised():
    advice = advice_of([level(1, 2.0), level(2, 2.2), level(3, 2.4, wall_s=20.0)])
    assert advice.concurrency == 2
    assert "15.0 finished tasks a minute, 109.1 at C=2" in advice.reasons[-1]


def test_alone_is_advised_where_nothing_more_will_do():
    advice = advice_of([level(1, 1.0), level(5, 9.0)])
    assert (advice.concurrency, advice.level) == (1, "P1")
    assert "no higher level will do" in advice.reasons[0]
    assert "9.00x" in advice.reasons[1]


def test_a_model_that_does_nothing_right_is_given_no_level():
    """As the smallest models are: by speed alone any level would look good."""
    advice = advice_of([level(1, 1.0, passed=0), level(3, 1.1, passed=0, side_passed=0)])
    assert advice.concurrency is None
    assert advice.reasons == (
        "none of 8 answers passed, at any level: no level does this work",
        "C=3: the conversation takes 1.10x of C=1 (1.1 s)",
    )


def test_without_c_1_there_is_no_advice():
    assert "C=1 was not measured" in advice_of([level(3, 2.0)]).reasons[0]
    assert advice_of([]).concurrency is None


def test_a_conversation_that_never_ended_is_no_base_and_no_choice():
    assert advice_of([level(1, None), level(2, 2.0)]).concurrency is None
    advice = advice_of([level(1, 1.0), level(2, None)])
    assert advice.concurrency == 1
    assert "never finished" in advice.reasons[-1]


def test_fisher_agrees_with_the_counts_of_the_tea_tasting_lady():
    """Eight cups, four of each: all right by chance once in 70, three or more in 17 of 70."""
    assert fisher_less(0, 4, 4, 4) == pytest.approx(1 / 70)
    assert fisher_less(1, 4, 3, 4) == pytest.approx(17 / 70)
    assert fisher_less(4, 4, 0, 4) == 1.0
    assert fisher_less(0, 3, 0, 3) == 1.0


def test_the_smallest_fall_that_can_be_seen_is_said_exactly():
    assert smallest_fall(9, 9, 9) == 5
    assert smallest_fall(3, 3, 3) == 0
    assert smallest_fall(1, 1, 1) is None
    assert smallest_fall(9, 0, 9) is None
