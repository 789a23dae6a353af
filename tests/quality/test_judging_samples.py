"""Answers as models write them, right and wrong in many ways. A file's name begins with what it should be judged."""

import pytest
from answers.sample_judge import FOLDER, expected, samples_judged

QUICK = [
    "fastapi1/wrong-forgets-an-import",
    "fastapi3/passed-whole",
    "mutants/passed-class-parametrize-fixture",
    "reader/passed-aiofiles",
    "reader/wrong-swallows-errors",
]
ALL = sorted(str(path.relative_to(FOLDER).with_suffix("")) for path in FOLDER.glob("*/*.md"))
LIGHT = [name for name in ALL if name.startswith(("bug/", "docstring/"))]


def surprises(verdicts):
    return {
        name: (verdict.outcome.value, verdict.detail)
        for name, verdict in verdicts.items()
        if verdict.outcome.value != expected(name)
    }


def test_answers_with_functions_and_docstrings_are_judged_as_they_should_be():
    assert surprises(samples_judged(LIGHT)) == {}


@pytest.mark.slow
def test_answers_with_apps_tests_and_readers_are_judged_as_they_should_be():
    verdicts = samples_judged(QUICK)
    assert surprises(verdicts) == {}
    assert "NameError: name 'uuid4' is not defined" in verdicts["fastapi1/wrong-forgets-an-import"].detail


@pytest.mark.slow
def test_every_sample_answer_is_judged_as_it_should_be():
    verdicts = samples_judged(ALL)
    assert surprises(verdicts) == {}
    assert "a blank name is refused: answered 201, not 422" in verdicts["fastapi2/wrong-lets-blank-names-in"].detail
    assert "event loop" in verdicts["reader/wrong-blocks-the-loop"].detail


def test_every_kind_has_right_and_wrong_samples():
    kinds = {name.partition("/")[0] for name in ALL}
    assert all({"passed", "wrong"} <= {expected(n) for n in ALL if n.startswith(f"{kind}/")} for kind in kinds)
