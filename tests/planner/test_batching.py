"""Continuous batching without a clock: who is in a pass, what it brings,
what is free afterwards.
"""

import pytest
from msgspec.structs import replace

from skep.catalog.gpus import device
from skep.catalog.models import geometry
from skep.planner.batching import Sequence, SimulatedReplica
from skep.planner.predict import lengths, prospect, simulate_load
from skep.planner.setup import Layout, PlannedLoad, Rig, Setup, Speculation, find_kv, find_quant
from skep.planner.step import published_constants, step_model


def step(spec=None):
    setup = Setup(geometry("qwen3-8b"), find_quant("awq"), find_kv("bf16"), "vllm", spec=spec)
    return step_model(setup, device("rtx-3090"), None, published_constants())


def drain(replica, at_most=None):
    """Passes until nothing is left: seconds, steps, and which sequences started and ended, in
    order.
    """
    seconds = 0.0
    steps = 0
    started = []
    ended = []
    while (
        following := replica.next_pass(**({} if at_most is None else {"at_most": at_most}))
    ) is not None:
        assert replica.running <= replica.slots
        seconds = seconds + following.seconds
        steps = steps + following.steps
        progress = replica.finish(following)
        started += [s.id for s in progress.started]
        ended += [s.id for s in progress.ended]
    return seconds, steps, started, ended


def test_a_sequence_waits_for_room_in_the_pool():
    replica = SimulatedReplica(step(), 8, 1000, 2048)
    for place in range(3):
        replica.submit(Sequence(place, 600, 100))
    replica.next_pass()
    assert (replica.running, len(replica.waiting)) == (1, 2)


def test_a_cancelled_sequence_frees_its_slot_wherever_it_is():
    replica = SimulatedReplica(step(), 1, 1e9, 256)
    in_prompt = Sequence(0, 1000, 100)
    replica.submit(in_prompt)
    replica.submit(Sequence(1, 10, 10))
    replica.finish(replica.next_pass(at_most=1))
    replica.cancel(in_prompt)
    replica.cancel(in_prompt)
    assert drain(replica)[3] == [1]
    in_answer = Sequence(2, 10, 100)
    replica.submit(in_answer)
    replica.finish(replica.next_pass(at_most=1))
    replica.cancel(in_answer)
    assert replica.next_pass() is None
    assert replica.kv_tokens == pytest.approx(0)


def taken(at_most=None, spec=None):
    """Return the seconds and steps of four sequences."""
    replica = SimulatedReplica(step(spec), 4, 1e9, 2048)
    for place in range(4):
        replica.submit(Sequence(place, 200, 150))
    return drain(replica, at_most)[:2]


def test_many_steps_at_once_are_as_long_as_one_after_the_other():
    assert taken()[0] == pytest.approx(taken(at_most=1)[0], rel=0.01)


def test_speculation_needs_fewer_steps():
    assert taken(spec=Speculation("mtp", 3))[1] < 0.6 * taken()[1]


def run(concurrency, slots=64, **options):
    load = PlannedLoad(concurrency, 512, 256, **options)
    return simulate_load(step(), load, slots=slots, pool_tokens=1e9, chunk_tokens=2048, replicas=1)


def test_effective_speed_grows_until_the_slots_are_full():
    assert run(1).effective_tok_s < run(4).effective_tok_s < run(16).effective_tok_s
    at = run(8, slots=8)
    beyond = run(32, slots=8)
    assert beyond.effective_tok_s == pytest.approx(at.effective_tok_s, rel=0.1)
    assert beyond.ttft_s > 5 * at.ttft_s


def test_uneven_answers_cost_speed():
    uneven = run(8, shape="burst", spread=1.0)
    even = run(8, shape="burst")
    assert uneven.effective_tok_s < 0.85 * even.effective_tok_s


def test_a_cached_prefix_shortens_the_wait_for_the_first_token():
    assert run(4, cached_share=0.9).ttft_s < 0.5 * run(4).ttft_s


def test_lengths_are_uneven_and_have_their_mean():
    drawn = lengths(500, 200, 1.0)
    assert sum(drawn) / 500 == pytest.approx(200, rel=1e-3)
    assert max(drawn) > 3 * min(drawn)
    assert lengths(3, 10, 0) == [10, 10, 10]


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("agents", [500, 513])
def test_a_long_queue_is_foretold_as_if_all_its_tasks_were_played_through(replicas, agents):
    setup = Setup(
        geometry("qwen3-8b"),
        find_quant("awq"),
        find_kv("bf16"),
        "vllm",
        Layout(replicas=replicas),
        slots=6,
    )
    model = prospect(
        setup, Rig((device("rtx-3090"),) * replicas), published_constants(), context=900
    )
    load = PlannedLoad(agents, 600, 300)
    foretold = model.outcome(load)
    # A number of tasks that is said is always played.
    played = model.outcome(replace(load, tasks=3 * agents))
    assert foretold.tasks == played.tasks == 3 * agents
    for name in ("effective_tok_s", "task_tok_s", "ttft_s", "tpot_s", "wall_s", "running"):
        assert getattr(foretold, name) == pytest.approx(getattr(played, name), rel=0.005), name


def test_agents_without_end_are_foretold_as_fast_as_a_few_rounds_of_all_slots():
    setup = Setup(geometry("qwen3-8b"), find_quant("awq"), find_kv("bf16"), "vllm", slots=6)
    model = prospect(setup, Rig((device("rtx-3090"),)), published_constants(), context=900)
    endless, many = (model.outcome(PlannedLoad(6 * n, 600, 300)) for n in (100_000_000, 1000))
    assert endless.effective_tok_s == pytest.approx(many.effective_tok_s, rel=0.001)
    assert endless.ttft_s == pytest.approx(100_000 * many.ttft_s, rel=0.01)
