"""Replicas that share a card start one after the other, others at once; dormant ones wait until
they are woken.
"""

import asyncio
import os

import pytest
from msgspec.structs import replace
from supervised import FAR, LAUNCH, POLICY, replicas_of

from skep.engines.base import Diagnosis, Launch, PlacementRequest
from skep.supervisor.lifecycle import ReplicaState
from skep.supervisor.replica_set import ReplicaChanges, changes

ONE = replace(LAUNCH, gpus=(0, 1), extra=("--load-s=0.2",))
TWO = replace(ONE, name="m-1")
SLOW = replace(ONE, extra=("--load-s=60",))
ON_DEMAND = replace(LAUNCH, on_demand=True)


def at_work(states):
    return [name for name, state in states.items() if state in ("starting", "warming", "backoff")]


async def test_those_that_share_a_card_start_one_after_the_other(tmp_path):
    apart = replace(ONE, name="n-0", model="n", gpus=(2,))
    async with replicas_of(tmp_path, ONE, replace(TWO, gpus=(1,)), apart) as setup:
        replicas = setup.replicas
        assert setup.history[0]["m-1"] == "waiting"
        await setup.until(lambda: all(member.settled for member in replicas.members))
        for states in setup.history:
            assert not {"m-0", "m-1"} <= set(at_work(states))
        assert any({"m-0", "n-0"} <= set(at_work(states)) for states in setup.history)


@pytest.mark.parametrize(
    "options", [("--exit-code=78",), ()], ids=["given up", "tried again and again"]
)
async def test_one_that_dies_at_its_start_holds_up_nobody(tmp_path, options):
    """Between two starts it measures nothing: whoever waits goes on."""
    broken = replace(ONE, extra=("--crash-at-start=error", *options))
    async with replicas_of(tmp_path, broken, TWO) as setup:
        replicas = setup.replicas
        await setup.until(lambda: replicas.find("m-1").settled)
        for states in setup.history:
            assert list(states.values()).count("starting") < 2
        assert not options or replicas.find("m-0").life.state is ReplicaState.FAILED


async def test_a_dormant_model_is_woken_and_put_to_sleep_with_all_its_replicas(tmp_path):
    async with replicas_of(tmp_path, ON_DEMAND, replace(ON_DEMAND, name="m-1")) as setup:
        replicas = setup.replicas

        def states():
            return [replicas.shown_state(member) for member in replicas.members]

        assert states() == ["unloaded", "unloaded"]
        assert replicas.models == ("m",)
        replicas.wake("m")
        replicas.wake("m")
        await setup.until(lambda: all(member.settled for member in replicas.members))
        assert replicas.serves("m")
        replicas.hold("m")
        assert states() == ["draining", "draining"]
        assert not replicas.serves("m")
        replicas.release("m")
        await replicas.unload_model("m")
        assert states() == ["unloaded", "unloaded"]
        assert [member.pid for member in replicas.members] == [None, None]
        await replicas.unload_model("m")


async def test_one_that_waits_for_its_turn_is_started_once_though_it_is_restarted(tmp_path):
    async with replicas_of(tmp_path, ONE, replace(TWO, extra=())) as setup:
        replicas = setup.replicas
        second = replicas.find("m-1")
        await setup.until(lambda: second.life.state is ReplicaState.WAITING)
        await second.restart()
        await setup.until(lambda: second.settled)
        assert second.life.restarts == 0
        states = [states["m-1"] for states in setup.history]
        assert "waiting" not in states[states.index("starting") :]


async def test_one_that_restarts_by_itself_waits_for_another_that_starts_on_its_card(tmp_path):
    first = replace(LAUNCH, gpus=(0,))
    rival = replace(first, name="n-0", model="n", on_demand=True, extra=("--load-s=0.5",))
    async with replicas_of(tmp_path, first, rival) as setup:
        replicas = setup.replicas
        await setup.until(lambda: replicas.find("m-0").settled)
        replicas.wake("n")
        await setup.until(lambda: replicas.find("n-0").pid is not None)
        setup.history.clear()
        os.kill(replicas.find("m-0").pid, 9)
        await setup.until(lambda: replicas.find("n-0").settled)
        assert not [
            states for states in setup.history if set(states.values()) <= {"starting", "warming"}
        ]


async def test_what_a_replica_fell_back_to_is_kept_and_told_when_its_model_comes_back(tmp_path):
    first = replace(ON_DEMAND, slots=4)
    async with replicas_of(tmp_path, first) as setup:
        replicas = setup.replicas
        replicas.wake("m")
        await setup.until(lambda: replicas.find("m-0").settled)
        member = replicas.find("m-0")
        fewer = Diagnosis("out of memory", change=replace(first, slots=2), changed="slots 4 -> 2")
        member.life.policy = replace(POLICY, fallbacks=1)
        assert member._fall_back(fewer)
        assert changes([member.launch], [first]).changed == (), "a reload leaves it alone"
        await replicas.unload_model("m")
        replicas.wake("m")
        await setup.until(lambda: replicas.find("m-0").settled)
        assert replicas.find("m-0").life.why == "fell back: slots 4 -> 2"
        assert (
            replicas.find("m-0").launch.slots,
            replicas.table({}).replicas[0].slots,
        ) == (4, 2)


async def test_one_that_waits_for_its_turn_can_be_removed(tmp_path):
    async with replicas_of(tmp_path, SLOW, TWO) as setup:
        replicas = setup.replicas
        await replicas.remove_replica("m-1", 0.0)
        assert replicas.names == ["m-0"]


async def test_two_that_end_the_same_replica_both_wait_for_its_end(tmp_path):
    async with replicas_of(tmp_path, SLOW) as setup:
        replicas = setup.replicas
        member = replicas.find("m-0")
        await setup.until(lambda: member.pid is not None)
        await asyncio.gather(replicas.unload_model("m"), replicas.remove_replica("m-0", 0.0))
        assert member.pid is None
        assert member.life.state is ReplicaState.STOPPED
        assert replicas.members == []


async def test_a_new_model_on_demand_is_there_before_a_reload_is_done(tmp_path):
    new = replace(ON_DEMAND, name="n-0", model="n")
    async with replicas_of(tmp_path, ONE) as setup:
        replicas = setup.replicas
        await setup.until(lambda: replicas.find("m-0").settled)
        event = asyncio.Event()
        plan = ReplicaChanges(added=("n-0",), changed=("m-0",))
        reload = setup.tasks.create_task(
            replicas.become(plan, [SLOW, new], 0.0, event.set, patient=True)
        )
        await event.wait()
        replicas.wake("n")
        await setup.until(lambda: replicas.find("n-0").settled)
        assert not reload.done()
        reload.cancel()


async def test_a_reload_during_an_unload_leaves_no_process_that_counts_as_unloaded(tmp_path):
    async with replicas_of(tmp_path, ON_DEMAND) as setup:
        replicas = setup.replicas
        replicas.wake("m")
        await setup.until(lambda: replicas.find("m-0").settled)
        going = setup.tasks.create_task(replicas.unload_model("m"))
        while replicas._replicas["m-0"].has_process:  # it is being ended
            await asyncio.sleep(0)
        plan = ReplicaChanges(changed=("m-0",))
        await replicas.become(plan, [replace(ON_DEMAND, slots=2)], 0.0, dict, patient=True)
        await going
        member = replicas.find("m-0")
        has_stopped = member.life.state is ReplicaState.STOPPED
        assert replicas.is_dormant(member) == has_stopped, replicas.shown_state(member)


# What a reload changes

UPSTREAM = Launch(
    "box-1", "remote", "", None, slots=8, context_tokens=0, threads=0, url="http://10.0.0.2:8000"
)


@pytest.mark.parametrize(
    ("launch", "change", "restarts"),
    [
        (LAUNCH, {"slots": 4}, True),
        (LAUNCH, {"context_tokens": 200}, True),
        (LAUNCH, {"extra": ("-x",)}, True),
        (LAUNCH, {"model": "n"}, True),
        (LAUNCH, {"reserve": 1}, False),
        (LAUNCH, {"soft_slots": 1}, False),
        (LAUNCH, {"health_path": "/ping"}, False),
        (UPSTREAM, {"slots": 16}, False),
        (UPSTREAM, {"url": "http://10.0.0.3:8000"}, True),
        (FAR, {"place": PlacementRequest(nodes=("x", "y"))}, False),
        (FAR, {"place": PlacementRequest(nodes=("x", "y")), "slots": 4}, True),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_only_what_an_engine_is_started_with_wants_a_new_start(launch, change, restarts):
    """The rest is told to the gateway; where a replica may stand matters when it is started
    anew.
    """
    plan = changes([launch], [replace(launch, **change)])
    names = (launch.name,)
    assert plan.changed == (names if restarts else ())
    assert plan.adjusted == (() if restarts else names)
