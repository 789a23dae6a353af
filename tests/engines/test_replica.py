"""One replica's shell on real processes, with short times."""

import asyncio
import os
import signal
import socket
from contextlib import asynccontextmanager
from dataclasses import replace

from skep.engines.base import Launch, engine_named
from skep.engines.fake import Fake
from skep.supervisor.lifecycle import ReplicaState, RestartPolicy
from skep.supervisor.replica import Replica
from skep.supervisor.start_order import StartOrder

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
            await until(lambda: replica.life.state is ReplicaState.READY)
            frozen = replica.pid
            os.kill(frozen, signal.SIGSTOP)
            await until(lambda: replica.life.state is ReplicaState.READY and replica.pid != frozen)
            assert replica.life.restarts == 1
            replica.stop()

    asyncio.run(run())


LAUNCH = Launch("m-0", "fake", "m", None, slots=1, context_tokens=100, threads=1)


@asynccontextmanager
async def running(tmp_path, launch, engine, policy=POLICY):
    """A replica, and a way to wait for something of it."""
    changed = asyncio.Event()
    replica = Replica(launch, engine, tmp_path / "m-0.log", changed.set, policy)

    async def until(condition):
        while not condition():
            changed.clear()
            await asyncio.wait_for(changed.wait(), 20)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(replica.run())
        yield replica, until
        replica.stop()


class Puzzled(Fake):
    def explain(self, *_said, **_more):
        raise ValueError("a rule has a bug")


def test_a_bug_in_a_diagnosis_costs_an_explanation_and_nothing_else(tmp_path):
    async def run():
        broken = replace(LAUNCH, extra=("--crash-at-start=error: no memory", "--exit-code=3"))
        policy = replace(POLICY, failures_before_ready=1)
        async with running(tmp_path, broken, Puzzled(), policy) as (replica, until):
            await until(lambda: replica.life.state is ReplicaState.FAILED)
            assert replica.life.why == "exit code 3, not explained: ValueError (error: no memory)"

    asyncio.run(run())


class Watched(Fake):
    """Notes whether the replica serves while its death is being explained."""

    def __init__(self):
        self.replica, self.served = None, []

    def explain(self, launch, code, tail, *, oom_kills=None):
        self.served.append(self.replica.life.serving)
        return super().explain(launch, code, tail, oom_kills=oom_kills)


def test_while_its_death_is_being_explained_a_replica_serves_nobody(tmp_path):
    async def run():
        engine = Watched()
        async with running(tmp_path, LAUNCH, engine) as (engine.replica, until):
            await until(lambda: engine.replica.life.serving)
            os.kill(engine.replica.pid, signal.SIGKILL)
            await until(lambda: engine.replica.life.state is ReplicaState.BACKOFF)
            assert engine.served == [False]

    asyncio.run(run())


def test_a_port_that_somebody_has_is_named_and_nothing_is_started(tmp_path):
    async def run(port):
        policy = replace(POLICY, failures_before_ready=1)
        async with running(tmp_path, replace(LAUNCH, port=port), Fake(), policy) as (replica, until):
            await until(lambda: replica.life.state is ReplicaState.FAILED)
            assert f"the port {port} is in use" in replica.life.why
            assert not (tmp_path / "m-0.log").exists()

    with socket.create_server(("127.0.0.1", 0)) as other:
        asyncio.run(run(other.getsockname()[1]))


def test_no_port_is_given_twice_and_keys_of_servers_of_others_are_not_for_engines(monkeypatch):
    monkeypatch.setenv("BOX_KEY", "secret")
    monkeypatch.setenv("SKEP_API_KEY", "secret")
    company = StartOrder()
    assert len({company.free_port() for _ in range(50)}) == 50
    assert "BOX_KEY" in company.environment()
    company.hide([replace(LAUNCH, url="http://box:1", key_env="BOX_KEY")])
    assert not {"BOX_KEY", "SKEP_API_KEY"} & company.environment().keys()
