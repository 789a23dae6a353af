"""Cards for replicas, and whether they fit together."""

import pytest
from msgspec.structs import replace

from skep.catalog.presets import EngineOptions
from skep.deploy import gpu_assignment
from skep.engines.base import Launch
from skep.errors import DoesNotFit, UserError
from skep.host.facts import GpuCard
from skep.units import GIB

CARDS = tuple(GpuCard(index, 24 * GIB, GIB) for index in range(4))


def launch(name="m-0", engine="vllm", gpus=(0,), share=None, **changes):
    fields = {
        "slots": 4,
        "context_tokens": 100,
        "threads": 1,
        "gpus": gpus,
        "options": EngineOptions(memory_share=share),
    }
    return Launch(name, engine, "m", None, **fields, **changes)


def with_room(plain, cards=CARDS):
    return replace(plain, room=gpu_assignment.room_of(plain, cards, weights=None, cache=None))


def test_replicas_get_neighbouring_cards_in_order():
    assert gpu_assignment.assign_cards(2, 2, (), CARDS) == [(0, 1), (2, 3)]
    assert gpu_assignment.assign_cards(2, 1, (3, 1), CARDS) == [(3,), (1,)]


def test_a_second_model_gets_the_cards_that_the_first_left():
    assert gpu_assignment.assign_cards(1, 2, (), CARDS, taken=(0, 1)) == [(2, 3)]
    assert gpu_assignment.assign_cards(1, 3, (), CARDS, taken=(0, 1)) == [(0, 1, 2)]


def test_replicas_share_the_cards_they_are_given_together():
    assert gpu_assignment.assign_cards(2, 1, (0,), CARDS) == [(0,), (0,)]


@pytest.mark.parametrize(
    ("replicas", "cards_each", "gpus", "says"),
    [
        (1, 1, (7,), "there is no GPU 7: this machine has 0, 1, 2, 3"),
        (1, 2, (1, 1), "names a card twice"),
        (2, 2, (0, 1, 2), "names 3 cards for 2 replicas of 2"),
    ],
)
def test_cards_that_cannot_be_meant_are_refused(replicas, cards_each, gpus, says):
    with pytest.raises(UserError, match=says):
        gpu_assignment.assign_cards(replicas, cards_each, gpus, CARDS)


def test_more_cards_than_the_machine_has_do_not_fit():
    with pytest.raises(DoesNotFit, match="3 replicas of 2 need 6 GPUs, this machine has 4"):
        gpu_assignment.assign_cards(3, 2, (), CARDS)
    with pytest.raises(DoesNotFit, match="a replica needs 2 GPUs, this machine has none"):
        gpu_assignment.assign_cards(1, 2, (), ())
    assert gpu_assignment.assign_cards(2, 1, (), ()) == [(), ()]


def test_an_engine_takes_its_share_of_every_card_and_a_file_what_it_weighs():
    half = gpu_assignment.room_of(launch(gpus=(0, 1), share=0.5), CARDS, weights=None, cache=None)
    assert half == (("gpu0", 12 * GIB), ("gpu1", 12 * GIB))
    on_cards = gpu_assignment.room_of(
        launch(engine="llamacpp", gpus=(0, 1)), CARDS, weights=8 * GIB, cache=2 * GIB
    )
    assert on_cards == (("gpu0", 5 * GIB), ("gpu1", 5 * GIB))
    assert gpu_assignment.room_of(
        launch(engine="embedded", gpus=()), (), weights=GIB, cache=None
    ) == (("ram", GIB),)
    assert gpu_assignment.room_of(launch(engine="ollama"), CARDS, weights=None, cache=None) == ()


def test_two_replicas_that_profile_one_card_do_not_fit_together():
    pair = [with_room(launch("m-0")), with_room(launch("m-1"))]
    with pytest.raises(DoesNotFit) as refused:
        gpu_assignment.check_together(pair, dict(gpu_assignment.machine_resources(CARDS, None)))
    assert (
        "2 replicas do not fit together on GPU 0 of 24.0 GiB: m-0 21.6 GiB, m-1 21.6 GiB"
        in str(refused.value)
    )
    assert "memory_share = 0.47" in refused.value.hint
    halves = [with_room(launch("m-0", share=0.47)), with_room(launch("m-1", share=0.47))]
    gpu_assignment.check_together(halves, dict(gpu_assignment.machine_resources(CARDS, None)))


def test_models_loaded_on_demand_need_not_fit_together():
    pair = [with_room(launch("a-0")), with_room(launch("b-0", on_demand=True))]
    gpu_assignment.check_together(pair, dict(gpu_assignment.machine_resources(CARDS, None)))


def test_a_busy_card_is_named_with_the_share_that_would_fit():
    busy = (GpuCard(0, 24 * GIB, 8 * GIB),)
    with pytest.raises(DoesNotFit) as refused:
        gpu_assignment.check_free([with_room(launch())], busy)
    assert "GPU 0 is busy: 16.0 GiB of 24.0 GiB are free, `m-0` needs 21.6 GiB" in str(
        refused.value
    )
    assert "(--memory-share) to 0.65" in refused.value.hint
    gpu_assignment.check_free([with_room(launch())], CARDS)
    with pytest.raises(DoesNotFit) as refused:
        gpu_assignment.check_free([with_room(launch())], (GpuCard(0, 24 * GIB, 20 * GIB),))
    assert "memory_share" not in refused.value.hint


def test_pinned_models_leave_room_for_one_on_demand():
    pinned = replace(launch("p-0"), model="p", pinned=True)
    on_demand = replace(launch("g-0"), model="g", on_demand=True)
    gpu_assignment.check_pinned([on_demand], 1)
    with pytest.raises(UserError, match="max_loaded = 1 is too low"):
        gpu_assignment.check_pinned([pinned, on_demand], 1)
