"""Drills: the same for ever, different from each other, with answers that their checkers take and
a guess does not.
"""

import hashlib
import json
from collections import Counter, defaultdict
from itertools import pairwise

import pytest

from skep.errors import UserError
from skep.workload.drills import FAMILIES, GRADES, drills
from skep.workload.items import item_json
from skep.workload.reading_checks import read_check

MANY = [item for grade in GRADES for item in drills(5, 600, grade)]


def by_family():
    items_by_family = defaultdict(list)
    for item in MANY:
        items_by_family[item.family, item.difficulty].append(item)
    return items_by_family


def test_the_same_seed_gives_the_same_drills_for_ever():
    """Changed on purpose? Raise `VERSION` in the module, and this figure."""
    text = json.dumps([item_json(item) for item in drills(2, 200)], sort_keys=True)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "221856f284d2574e"
    assert drills(3, 20) != drills(2, 20)


def test_an_id_names_the_same_drill_however_many_are_asked_for():
    """More of them begin with the same ones; those of one grade are among those of all."""
    sample = drills(2, 50)
    assert drills(2, 20) == sample[:20]
    assert [item.difficulty for item in sample[:6]] == [1, 2, 3, 4, 5, 1]
    for grade in GRADES:
        assert drills(2, 10, grade) == [item for item in sample if item.difficulty == grade]


def test_no_id_and_no_question_comes_twice_whatever_went_before_it():
    """In no grade and not between grades: answers to one question are nearly copies, and would
    count as two.
    """
    assert (
        len({item.id for item in MANY})
        == len({item.messages[-1]["content"] for item in MANY})
        == len(MANY)
    )


def test_a_family_without_new_questions_leaves_the_turn():
    """There are 19 days and months, and the others go on."""
    items = drills(7, 1500, 1)
    counter = Counter(item.family for item in items)
    assert counter["calendar"] == 19
    assert {item.family for item in items[-12:]} == set(counter) - {"calendar", "add", "sequence"}
    assert len({item.messages[-1]["content"] for item in items}) == len(items)


def test_when_all_have_run_out_it_is_said_how_many_there_are():
    calendar = [family for family in FAMILIES if family.name == "calendar"]
    assert len(drills(1, 19, 1, calendar)) == 19
    with pytest.raises(UserError, match="there are only 19 different drills of grade 1, not 20"):
        drills(1, 20, 1, calendar)
    with pytest.raises(UserError, match="there are only 19 different drills of grade 1, not 20"):
        drills(1, 100, None, calendar)


def test_the_right_answer_passes_and_another_one_does_not():
    """Another one: of the same family and grade, and different."""
    for items in by_family().values():
        for item, following in pairwise(items):
            answer, wrong = (str(drill.checker.values["answer"]) for drill in (item, following))
            assert read_check(item.checker, answer)[0]
            assert read_check(item.checker, f"The answer is **{answer}**.")[0]
            if answer != wrong:
                assert not read_check(item.checker, wrong)[0]


def test_a_constant_answer_scores_low():
    """Half where there are two options, less elsewhere."""
    for (family, grade), items in by_family().items():
        _, best = Counter(str(item.checker.values["answer"]) for item in items).most_common(1)[0]
        options = items[0].checker.values.get("options")
        assert len(items) >= 19
        assert best / len(items) <= (0.65 if options else 0.45), (family, grade)


def test_a_question_is_not_among_its_examples_and_its_answer_fits_into_its_tokens():
    """Even where every character is a token, but for long lists of words."""
    for item in MANY:
        *before, question = item.messages
        assert question not in before
        assert len(before) >= 2
        assert [message["role"] for message in item.messages] == ["user", "assistant"] * (
            len(before) // 2
        ) + ["user"]
        counter = Counter(
            message["content"] for message in before if message["role"] == "assistant"
        )
        if options := item.checker.values.get("options"):
            assert (len(set(counter.values())), set(counter)) == (1, set(options))
        assert len(str(item.checker.values["answer"])) <= 3 * item.max_tokens <= 3 * 64


def test_every_family_and_grade_occurs():
    expected = {(family.name, grade) for family in FAMILIES for grade in family.grades}
    assert set(by_family()) == expected
    assert {grade for _, grade in expected} == set(GRADES)


@pytest.mark.parametrize(
    ("count", "difficulty"), [(0, None), (-1, 1), (10**9, None), (10, 0), (10, 6)]
)
def test_what_is_not_possible_is_refused(count, difficulty):
    with pytest.raises(UserError):
        drills(1, count, difficulty)
