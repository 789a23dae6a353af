"""A gateway that hangs, as its supervisor sees it: `ps` says so, it is replaced, and the engines
stay loaded.
"""

import asyncio
import http.client
import os
import signal
import sys
import time
from pathlib import Path

import pytest
from supervised import GATEWAY_ARGV, LAUNCH, hive_of, until

from forked_processes import alive
from skep.config.gateway_messages import GatewaySetup
from skep.supervisor.lifecycle import ReplicaState
from skep.wire.silence import SilenceLimits

GATEWAY = (sys.executable, "-m", "skep.gateway.main")
QUICK = SilenceLimits(silent_s=0.5, hangs_s=2.0)
PATIENT = SilenceLimits(silent_s=0.5, hangs_s=600.0)


@pytest.fixture(autouse=True)
def forked_children():
    """Start real programs: in a fork of a process in which uvloop has run, a gateway starts no
    workers.
    """


def real_hive(folder, *launches, setup):
    """A hive with a gateway as it is, and no other machines."""
    return hive_of(folder, *launches, remote=None, gateway=GATEWAY, setup=setup)


def gateway_row(hive):
    return hive.last_rows[-1]


async def until_state(hive, changed, state):
    """Wait until the row of the gateway has that state."""
    await changed(lambda: gateway_row(hive)["state"] == state)


def workers_of(gateway):
    children = Path(f"/proc/{gateway}/task/{gateway}/children").read_text()
    return [int(pid) for pid in children.split()]


def health(hive):
    port = hive.listener.getsockname()[1]
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/health")
    status = connection.getresponse().status
    connection.close()
    return status


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_stopped_gateway_is_replaced_and_engines_stay_loaded(tmp_path, workers):
    setup = GatewaySetup(workers=workers, silence=QUICK)
    async with real_hive(tmp_path, LAUNCH, setup=setup) as (hive, changed):
        engine = hive.replica_set.members[0].pid
        stopped = hive.gateway.pid
        os.kill(stopped, signal.SIGSTOP)
        await until_state(hive, changed, "silent")
        assert "it has not answered for 0.5 s" in gateway_row(hive)["why"]
        await until_state(hive, changed, "starting")
        assert "did not answer for 2 s and was killed" in gateway_row(hive)["why"]
        await until_state(hive, changed, "ready")
        assert hive.gateway.pid != stopped
        assert gateway_row(hive)["restarts"] == 1
        assert hive.replica_set.members[0].pid == engine
        assert await asyncio.to_thread(health, hive) == 200


async def test_a_gateway_that_goes_on_in_time_is_not_replaced(tmp_path):
    setup = GatewaySetup(silence=PATIENT)
    async with real_hive(tmp_path, setup=setup) as (hive, changed):
        gateway = hive.gateway.pid
        os.kill(gateway, signal.SIGSTOP)
        await until_state(hive, changed, "silent")
        os.kill(gateway, signal.SIGCONT)
        await until_state(hive, changed, "ready")
        assert hive.gateway.pid == gateway
        assert gateway_row(hive)["why"] is None


async def test_a_worker_that_is_stopped_stands_in_the_row_of_the_gateway(tmp_path):
    setup = GatewaySetup(workers=2, silence=PATIENT)
    async with real_hive(tmp_path, setup=setup) as (hive, _):
        worker = workers_of(hive.gateway.pid)[0]
        os.kill(worker, signal.SIGSTOP)

        async with asyncio.timeout(20):
            row = gateway_row(hive)
            while row["why"] is None:
                await asyncio.sleep(0.05)
                row = hive.rows(await hive.gateway.status())[-1]
        assert row["state"] == "ready"
        assert row["why"] == "1 of 2 workers do not answer"
        os.kill(worker, signal.SIGCONT)


async def test_workers_that_hang_with_their_gateway_are_ended_too(tmp_path):
    """Nobody else would: they are no children of the supervisor."""
    setup = GatewaySetup(workers=2, silence=QUICK)
    async with real_hive(tmp_path, setup=setup) as (hive, changed):
        gateway = hive.gateway.pid
        workers = workers_of(gateway)
        os.killpg(gateway, signal.SIGSTOP)
        await changed(lambda: hive.gateway.restarts == 1)
        await until(lambda: not any(alive(pid) for pid in workers))
        assert len(workers) == 2


async def test_a_gateway_that_knows_no_such_question_is_left_alone(tmp_path):
    setup = GatewaySetup(silence=SilenceLimits(silent_s=0.1, hangs_s=0.2))
    async with hive_of(tmp_path, gateway=GATEWAY_ARGV, setup=setup) as (hive, _):
        gateway = hive.gateway.pid
        await asyncio.sleep(1.0)
        assert hive.gateway.pid == gateway
        assert hive.gateway.restarts == 0


async def test_a_supervisor_that_did_not_get_to_look_ends_no_gateway(tmp_path):
    """Its machine slept, or it was stopped: answers lie unread, and time has passed."""
    async with real_hive(tmp_path, LAUNCH, setup=GatewaySetup(silence=QUICK)) as (hive, changed):
        replica = hive.replica_set.members[0]
        await changed(lambda: replica.life.state is ReplicaState.READY)
        gateway = hive.gateway.pid
        await asyncio.sleep(0.6)
        # Nothing of the supervisor runs, as when its process is stopped.
        time.sleep(3.0)  # noqa: ASYNC251 - it is to block
        await asyncio.sleep(0.6)
        assert hive.gateway.pid == gateway
        assert gateway_row(hive)["state"] == "ready"
