"""One replica's shell on real processes, with short times."""

import asyncio
import os
import signal

from skep.engines.base import Launch, engine_named
from skep.engines.lifecycle import RestartPolicy, State
from skep.engines.replica import Replica

POLICY = RestartPolicy(watch_every_s=0.1, watch_timeout_s=0.3, watch_failures=2, first_delay_s=0.05, grace_s=0.3)


def test_a_frozen_engine_is_noticed_and_started_anew(tmp_path):
    """SIGSTOP: connected, silent, its slots taken. Nothing else would ever end it."""

    async def run():
        changed = asyncio.Event()
        launch = Launch("m-0", "fake", "m", None, slots=1, context_tokens=100, threads=1)
        replica = Replica(launch, engine_named("fake"), tmp_path / "m-0.log", changed.set, POLICY)

        async def until(condition):
            while not condition():
                changed.clear()
                await asyncio.wait_for(changed.wait(), 20)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(replica.run())
            await until(lambda: replica.life.state is State.READY)
            frozen = replica.pid
            os.kill(frozen, signal.SIGSTOP)
            await until(lambda: replica.life.state is State.READY and replica.pid != frozen)
            assert replica.life.restarts == 1
            replica.stop()

    asyncio.run(run())
