"""How many replicas by what waits: up at once, down slowly, and never to and fro."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skep.engines.scaling import Bounds, Scaling, bounds_of, rescaled
from skep.errors import UserError

FOUR = Bounds(1, 4, up_wait_s=5.0, down_after_s=60.0)


def look(scaling, now=0.0, *, replicas=1, ready=None, slots=None, busy=0, queued=0, wait_s=0.0):
    ready = replicas if ready is None else ready
    slots = 4 * ready if slots is None else slots
    return scaling.look(
        now, replicas=replicas, ready=ready, slots=slots, busy=busy, queued=queued, oldest_wait_s=wait_s
    )


@pytest.mark.parametrize(
    ("queued", "wait_s", "wanted"),
    [
        (9, 4.9, None),  # nobody has waited long
        (1, 5.0, 2),
        (8, 5.0, 3),  # 12 at once want three of four slots
        (100, 5.0, 4),  # never more than the most
        (0, 0.0, None),
    ],
)
def test_it_grows_by_as_many_as_all_that_wait_need(queued, wait_s, wanted):
    assert look(Scaling(FOUR), busy=4, queued=queued, wait_s=wait_s) == wanted


def test_those_that_are_coming_count():
    """Two of three still start: with them there is enough, whatever waits now."""
    scaling = Scaling(FOUR)
    assert look(scaling, replicas=3, ready=1, busy=4, queued=8, wait_s=30) is None
    assert look(scaling, replicas=3, ready=1, busy=4, queued=9, wait_s=30) == 4
    assert look(scaling, replicas=2, ready=0, slots=0, queued=50, wait_s=30) is None


def test_requests_that_wait_beside_free_slots_ask_for_one_more():
    """Slots in reserve, a replica that is away: the slots are there, and carry nothing."""
    assert look(Scaling(FOUR), replicas=2, busy=5, queued=1, wait_s=6) == 3


def test_one_goes_when_one_fewer_would_have_done_all_the_time():
    scaling = Scaling(FOUR)
    assert look(scaling, 0, replicas=3, busy=6) is None
    assert look(scaling, 30, replicas=3, busy=7) is None  # too much for two of them: the time begins anew
    assert look(scaling, 40, replicas=3, busy=2) is None
    assert look(scaling, 99, replicas=3, busy=0) is None
    assert look(scaling, 100, replicas=3, busy=0) == 2
    assert look(scaling, 101, replicas=3, busy=0) == 2, "asked again, it says the same"
    assert look(scaling, 102, replicas=2, busy=0) is None, "the next one has its own time"
    assert look(scaling, 162, replicas=2, busy=0) == 1
    assert look(scaling, 900, replicas=1, busy=0) is None


def test_none_goes_while_no_more_serve_than_the_least():
    """Numbers go from the top: what goes may be the one that serves, and what stays one that waits for room."""
    scaling = Scaling(FOUR)
    assert [look(scaling, now, replicas=2, ready=1) for now in (0, 61, 900)] == [None] * 3
    assert look(scaling, 901, replicas=2, ready=2) is None, "the time begins when both serve"
    assert look(scaling, 961, replicas=2, ready=2) == 1
    two = Scaling(Bounds(2, 4, down_after_s=60.0))
    assert [look(two, now, replicas=3, ready=2) for now in (0, 61)] == [None] * 2
    assert [look(two, now, replicas=4, ready=3) for now in (100, 161)] == [None, 3]


def test_another_number_than_the_bounds_allow_is_mended():
    assert look(Scaling(FOUR), replicas=6, busy=24) == 4
    assert look(Scaling(Bounds(2, 4)), replicas=1) == 2


@given(
    load=st.integers(0, 40),
    each=st.integers(1, 6),
    carries=st.integers(1, 6),
    bounds=st.tuples(st.integers(1, 3), st.integers(0, 6)),
    start_s=st.integers(0, 30),
)
def test_a_constant_load_ends_in_a_constant_number(load, each, carries, bounds, start_s):
    """So many clients that ask again and again; a replica has `each` slots and may carry fewer."""
    carries = min(carries, each)
    scaling = Scaling(Bounds(bounds[0], sum(bounds), up_wait_s=2.0, down_after_s=20.0))
    replicas, began, waiting_since, story = bounds[0], [-100.0] * bounds[0], None, []
    for now in range(600):
        ready = sum(now - begin >= start_s for begin in began)
        busy = min(load, ready * carries)
        waiting_since = None if busy == load else now if waiting_since is None else waiting_since
        wait_s = 0.0 if waiting_since is None else now - waiting_since
        wanted = look(
            scaling,
            now,
            replicas=replicas,
            ready=ready,
            slots=ready * each,
            busy=busy,
            queued=load - busy,
            wait_s=wait_s,
        )
        if wanted is not None:
            began = began[:wanted] + [float(now)] * (wanted - replicas)
            replicas = wanted
        story.append(replicas)
    assert len(set(story[300:])) == 1, story
    assert load <= replicas * carries or replicas == sum(bounds)


def document(*tables):
    common = {"model": "m", "replicas": 1, "max_replicas": None, "on_demand": False}
    return {"serve": [{**common, "scale_up_wait_s": 5.0, "scale_down_after_s": 600.0, **table} for table in tables]}


def counts(settings):
    return [table["replicas"] for table in settings["serve"]]


def test_bounds_are_those_of_all_tables_of_a_model():
    told = document({}, {"max_replicas": 4}, {"model": "/models/N.gguf", "replicas": 2, "max_replicas": 3})
    assert bounds_of(told) == {"m": Bounds(2, 5), "n": Bounds(2, 3)}
    assert not bounds_of(document({"on_demand": True, "max_replicas": 3}))["m"].scales


@pytest.mark.parametrize(
    ("have", "most", "total", "ways"),
    [
        ([2], [None], 5, [[5]]),
        ([2, 1], [None, None], 1, [[1, 0]]),
        ([2, 1], [None, None], 5, [[4, 1], [3, 2], [2, 3]]),
        ([2, 1], [3, None], 6, [[3, 3], [2, 4]]),
        ([1, 1], [2, 2], 6, [[5, 1], [4, 2], [3, 3], [2, 4], [1, 5]]),  # more than both may have: as asked for
        ([2, 0], [2, None], 3, [[2, 1]]),
    ],
)
def test_tables_of_one_model_share_a_number_the_first_ones_first(have, most, total, ways):
    told = document(*({"replicas": n, "max_replicas": cap} for n, cap in zip(have, most, strict=True)), {"model": "n"})
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
