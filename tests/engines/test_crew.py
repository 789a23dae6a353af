"""Replicas that share a card start one after the other, others at once; dormant ones wait until they are wanted."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

from skep.engines.base import Launch
from skep.engines.crew import Crew
from skep.engines.lifecycle import RestartPolicy, State

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

    crew = Crew(tmp_path, POLICY, changed, nobody)
    async with asyncio.TaskGroup() as tasks:
        crew.enlist(launches, tasks)
        changed()
        yield crew, history, until, tasks
        await crew.dismiss_all()


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
            assert crew.find("m-0").life.state is State.FAILED

    asyncio.run(run())


def test_one_that_waits_for_its_turn_can_be_dismissed(tmp_path):
    async def run():
        async with crew_of(tmp_path, replace(ONE, extra=("--load-s=60",)), replace(ONE, name="m-1")) as (crew, *_):
            await crew.dismiss("m-1")
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
            await crew.put_to_sleep("m")
            assert [(crew.state(member), member.pid) for member in crew.members] == [("unloaded", None)] * 2
            await crew.put_to_sleep("m")

    asyncio.run(run())
