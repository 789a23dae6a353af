"""Replicas that share a card start one after the other, others at once; dormant ones wait until they are wanted."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

from skep.engines.base import Diagnosis, Launch
from skep.supervisor.lifecycle import ReplicaState, RestartPolicy
from skep.supervisor.replica_set import ReplicaChanges, ReplicaSet

POLICY = RestartPolicy(first_delay_s=0.05, grace_s=0.3)
ONE = Launch("m-0", "fake", "m", None, slots=1, context_tokens=100, threads=1, gpus=(0, 1), extra=("--load-s=0.2",))


@asynccontextmanager
async def crew_of(tmp_path, *launches):
    """A crew that has been enlisted, what it was like after each change, and a way to wait for something of it."""
    history, moved = [], asyncio.Event()

    def changed():
        history.append({member.launch.name: crew.state(member) for member in crew.members})
        moved.set()

    async def nobody(_name):
        return 0

    async def until(condition):
        async with asyncio.timeout(30):
            while not condition():
                moved.clear()
                await moved.wait()

    crew = ReplicaSet(tmp_path, POLICY, changed, nobody)
    async with asyncio.TaskGroup() as tasks:
        crew.add_replicas(launches, tasks)
        changed()
        yield crew, history, until, tasks
        await crew.end_all()


def at_work(states):
    return [name for name, state in states.items() if state in ("starting", "warming", "backoff")]


def test_those_that_share_a_card_start_one_after_the_other(tmp_path):
    async def run():
        second = replace(ONE, name="m-1", gpus=(1,))
        apart = replace(ONE, name="n-0", model="n", gpus=(2,))
        async with crew_of(tmp_path, ONE, second, apart) as (crew, history, until, _):
            assert history[0]["m-1"] == "waiting"
            await until(lambda: all(member.settled for member in crew.members))
            for states in history:
                assert not {"m-0", "m-1"} <= set(at_work(states))
            assert any({"m-0", "n-0"} <= set(at_work(states)) for states in history)

    asyncio.run(run())


def test_one_that_is_given_up_holds_up_nobody(tmp_path):
    async def run():
        broken = replace(ONE, extra=("--crash-at-start=error", "--exit-code=78"))
        async with crew_of(tmp_path, broken, replace(ONE, name="m-1")) as (crew, _, until, _):
            await until(lambda: crew.find("m-1").settled)
            assert crew.find("m-0").life.state is ReplicaState.FAILED

    asyncio.run(run())


def test_one_that_waits_for_its_turn_can_be_dismissed(tmp_path):
    async def run():
        async with crew_of(tmp_path, replace(ONE, extra=("--load-s=60",)), replace(ONE, name="m-1")) as (crew, *_):
            await crew.remove_replica("m-1")
            assert crew.names == ["m-0"]

    asyncio.run(run())


def test_a_dormant_model_is_woken_and_put_to_sleep_with_all_its_replicas(tmp_path):
    async def run():
        first = replace(ONE, on_demand=True, gpus=(), extra=())
        async with crew_of(tmp_path, first, replace(first, name="m-1")) as (crew, _, until, tasks):
            assert [crew.state(member) for member in crew.members] == ["unloaded", "unloaded"]
            assert crew.models == ("m",)
            crew.wake("m", tasks)
            crew.wake("m", tasks)
            await until(lambda: all(member.settled for member in crew.members))
            assert crew.serves("m")
            crew.hold("m")
            assert [crew.state(member) for member in crew.members] == ["draining", "draining"]
            assert not crew.serves("m")
            crew.hold("m", back=True)
            await crew.unload_model("m")
            assert [(crew.state(member), member.pid) for member in crew.members] == [("unloaded", None)] * 2
            await crew.unload_model("m")

    asyncio.run(run())


def test_one_that_waits_for_its_turn_is_started_once_though_it_is_restarted(tmp_path):
    async def run():
        second = replace(ONE, name="m-1", extra=())
        async with crew_of(tmp_path, ONE, second) as (crew, history, until, _):
            await until(lambda: crew.find("m-1").life.state is ReplicaState.WAITING)
            crew.find("m-1").restart()
            await until(lambda: crew.find("m-1").settled)
            assert crew.find("m-1").life.restarts == 0
            states = [states["m-1"] for states in history]
            assert "waiting" not in states[states.index("starting") :]

    asyncio.run(run())


def test_one_that_dies_again_and_again_does_not_keep_its_place(tmp_path):
    """Between two starts it measures nothing: whoever waits goes on."""

    async def run():
        broken = replace(ONE, extra=("--crash-at-start=error",))
        async with crew_of(tmp_path, broken, replace(ONE, name="m-1")) as (crew, history, until, _):
            await until(lambda: crew.find("m-1").settled)
            for states in history:
                assert list(states.values()).count("starting") < 2

    asyncio.run(run())


def test_what_a_replica_fell_back_to_is_kept_and_told_when_its_model_comes_back(tmp_path):
    async def run():
        first = replace(ONE, on_demand=True, gpus=(), extra=(), slots=4)
        async with crew_of(tmp_path, first) as (crew, _, until, tasks):
            crew.wake("m", tasks)
            await until(lambda: crew.find("m-0").settled)
            fewer = Diagnosis("out of memory", change=replace(first, slots=2), changed="slots 4 -> 2")
            crew.find("m-0").life.policy = replace(POLICY, fallbacks=1)
            assert crew.find("m-0")._fall_back(fewer)
            await crew.unload_model("m")
            crew.wake("m", tasks)
            await until(lambda: crew.find("m-0").settled)
            assert crew.find("m-0").life.why == "fell back: slots 4 -> 2"
            assert (crew.find("m-0").launch.slots, crew.table(crew.views())["replicas"][0]["slots"]) == (4, 2)

    asyncio.run(run())


def test_two_that_end_the_same_one_both_wait_for_its_end(tmp_path):
    async def run():
        async with crew_of(tmp_path, replace(ONE, extra=("--load-s=60",))) as (crew, _, until, _):
            await until(lambda: crew.find("m-0").pid is not None)
            member = crew.find("m-0")
            await asyncio.gather(crew.unload_model("m"), crew.remove_replica("m-0"))
            assert (member.pid, member.life.state, crew.members) == (None, ReplicaState.STOPPED, [])

    asyncio.run(run())


def test_a_new_model_on_demand_is_there_before_a_reload_is_done(tmp_path):
    async def run():
        new = replace(ONE, name="n-0", model="n", on_demand=True, gpus=(), extra=())
        async with crew_of(tmp_path, ONE) as (crew, _, until, tasks):
            await until(lambda: crew.find("m-0").settled)
            slow, known = replace(ONE, extra=("--load-s=60",)), asyncio.Event()
            plan = ReplicaChanges(added=("n-0",), changed=("m-0",))
            reload = tasks.create_task(crew.become(plan, [slow, new], 0.0, tasks, known.set))
            await known.wait()
            crew.wake("n", tasks)
            await until(lambda: crew.find("n-0").settled)
            assert not reload.done()
            reload.cancel()

    asyncio.run(run())
