"""Settings with another number of replicas: which table gets how many, and what is refused."""

import pytest

from skep.errors import UserError
from skep.supervisor.reload import models_of, rescaled


def document(*tables):
    return {"serve": [{"model": "m", "replicas": 1, **table} for table in tables]}


def counts(settings):
    return [table["replicas"] for table in settings["serve"]]


def test_the_models_that_skep_starts_are_told_once_each():
    assert models_of(document({}, {}, {"model": "/models/N.gguf"})) == ("m", "n")


@pytest.mark.parametrize(
    ("have", "total", "ways"),
    [
        ([2], 5, [[5]]),
        ([2, 1], 1, [[1, 0]]),
        ([2, 1], 5, [[4, 1], [3, 2], [2, 3]]),
        ([1, 0, 0], 2, [[2, 0, 0], [1, 1, 0], [1, 0, 1]]),
    ],
)
def test_tables_of_one_model_share_a_number_the_first_ones_first(have, total, ways):
    told = document(*({"replicas": n} for n in have), {"model": "n"})
    assert [counts(way) for way in rescaled(told, "m", total)] == [[*way, 1] for way in ways]


@pytest.mark.parametrize(("model", "replicas", "words"), [("x", 1, "no model `x`"), ("m", 0, "cannot have 0 replicas")])
def test_what_cannot_be_scaled_is_refused(model, replicas, words):
    with pytest.raises(UserError, match=words) as caught:
        next(rescaled(document({}), model, replicas))
    assert caught.value.hint


def test_what_takes_a_model_away_is_named_as_it_can_be_done():
    """Nothing that stands on a cluster is unloaded."""
    for told, words in [({}, "`skep unload m`"), ({"cluster": {"address": "auto"}}, "`skep down`")]:
        with pytest.raises(UserError) as caught:
            next(rescaled({**document({}), **told}, "m", 0))
        assert words in caught.value.hint
        assert ("unload" in caught.value.hint) == (not told)
