"""One replica's shell on real processes, with short times."""

import json
import os
import signal
import socket
import sys
from contextlib import closing

import pytest
from msgspec.structs import replace
from supervised import LAUNCH, ONCE, POLICY, running, until

from recorded_server import recorded
from skep.config.gateway_messages import GatewaySetup
from skep.engines.base import Fake
from skep.host.processes import ENGINE_KEY
from skep.supervisor.lifecycle import ReplicaState
from skep.supervisor.replica import StartOrder, explain_exit
from skep.supervisor.replica_set import replica_spec
from skep.supervisor.supervisor import Hive, Supervisor


async def test_a_frozen_engine_is_noticed_and_started_anew(tmp_path):
    """SIGSTOP: connected, silent, its slots taken. Nothing else would ever end it."""
    async with running(tmp_path) as (replica, changed):
        await changed(lambda: replica.life.state is ReplicaState.READY)
        frozen = replica.pid
        os.kill(frozen, signal.SIGSTOP)
        await changed(lambda: replica.life.state is ReplicaState.READY and replica.pid != frozen)
        assert replica.life.restarts == 1


async def test_a_bug_in_a_diagnosis_costs_an_explanation_and_nothing_else(tmp_path):
    def puzzled(*_args, **_options):
        raise ValueError("a rule has a bug")

    broken = replace(LAUNCH, extra=("--crash-at-start=error: no memory", "--exit-code=3"))
    async with running(tmp_path, broken, policy=ONCE, explain=puzzled) as (replica, changed):
        await changed(lambda: replica.life.state is ReplicaState.FAILED)
        assert replica.life.why == "exit code 3, not explained: ValueError (error: no memory)"


async def test_while_its_death_is_being_explained_a_replica_serves_nobody(tmp_path):
    served = []

    def watched(*args, **options):
        served.append(replica.life.serving)
        return explain_exit(*args, **options)

    async with running(tmp_path, explain=watched) as (replica, changed):
        await changed(lambda: replica.life.serving)
        os.kill(replica.pid, signal.SIGKILL)
        await until(lambda: served)
        assert served == [False]


class Unsimulated(Fake):
    """The fake engine as one whose agents matter."""

    simulated = False


async def test_what_agents_need_is_checked_once_and_told_to_the_gateway(tmp_path):
    launch = replace(LAUNCH, context_tokens=2048)
    async with running(tmp_path, launch, Unsimulated()) as (replica, changed):
        await changed(
            lambda: replica.life.state is ReplicaState.READY and len(replica.checks) == 2
        )
        assert [check.name for check in replica.checks] == ["tool_calls", "prefix_cache"]
        checks = replica_spec(replica).checks
        assert {check["state"] for check in checks.values()} <= {"ok", "warning", "unknown"}


async def test_a_restart_after_a_crash_does_not_repeat_the_checks(tmp_path):
    """An engine that never tells of its cache was checked again after each crash."""
    short = replace(LAUNCH, context_tokens=100)  # too few for a prompt that is read twice
    async with running(tmp_path, short, Unsimulated()) as (replica, changed):
        await changed(
            lambda: replica.life.state is ReplicaState.READY and len(replica.checks) == 2
        )
        checks = replica.checks
        crashed = replica.pid
        assert checks[1].state == "unknown"
        os.kill(crashed, signal.SIGKILL)
        await changed(lambda: replica.life.state is ReplicaState.READY and replica.pid != crashed)
        assert replica.checks is checks


async def test_a_check_that_takes_long_or_fails_keeps_no_replica_from_serving(tmp_path):
    """Two tokens a second: the call would take most of a minute."""
    slow = replace(LAUNCH, context_tokens=2048, extra=("--token-ms=400",))
    policy = replace(POLICY, checked_before_ready_s=0.1)
    async with running(tmp_path, slow, Unsimulated(), policy) as (replica, changed):
        await changed(lambda: replica.life.state is ReplicaState.READY)
        assert len(replica.checks) < 2


async def test_a_simulated_engine_is_not_checked(tmp_path):
    async with running(tmp_path) as (replica, changed):
        await changed(lambda: replica.life.state is ReplicaState.READY)
        assert replica.checks == ()


async def test_a_port_that_somebody_has_is_named_and_nothing_is_started(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        async with running(tmp_path, replace(LAUNCH, port=port), policy=ONCE) as (
            replica,
            changed,
        ):
            await changed(lambda: replica.life.state is ReplicaState.FAILED)
            assert f"the port {port} is in use" in replica.life.why
            assert not (tmp_path / "m-0.log").exists()


@pytest.mark.parametrize(("port", "where"), [(0, "192.0.2.1"), (9001, "192.0.2.1, port 9001")])
async def test_an_address_that_the_machine_does_not_have_is_one_line_and_no_second_try(
    tmp_path, port, where
):
    policy = replace(POLICY, failures_before_ready=3)
    async with running(tmp_path, replace(LAUNCH, host="192.0.2.1", port=port), policy=policy) as (
        replica,
        changed,
    ):
        await changed(lambda: replica.life.state is ReplicaState.FAILED)
        assert replica.life.why.startswith(f"cannot listen on {where}: ")
        assert replica.life.restarts == 0
    assert not [*tmp_path.iterdir()]


class Script(Fake):
    """A process that is a few lines of Python, at a port it is given."""

    reports_address = False

    def __init__(self, script):
        self.script = script

    def argv(self, launch):
        return [sys.executable, "-S", "-c", self.script, str(launch.port)]


async def test_an_engine_does_not_get_the_keys_of_the_gateway_and_of_servers_of_others(
    tmp_path, monkeypatch
):
    keys = ("BOX_KEY", "SKEP_API_KEY", ENGINE_KEY)
    order = StartOrder()
    for name in keys:
        monkeypatch.setenv(name, "secret")
    order.hide([replace(LAUNCH, url="http://box:1", key_env="BOX_KEY")])
    dump = tmp_path / "env.json"
    script = (
        f"import json, os, time; open({str(dump)!r}, 'w').write(json.dumps(dict(os.environ))); "
        "time.sleep(60)"
    )
    async with running(tmp_path, LAUNCH, Script(script), start_order=order):
        await until(lambda: dump.exists() and dump.read_text().endswith("}"))
    assert json.loads(dump.read_text()).keys().isdisjoint(keys)


async def test_a_server_of_others_on_the_engines_port_is_not_the_engine(tmp_path):
    """Though it says yes to everything."""
    engine = Script("import time; time.sleep(60)")  # ours is still loading
    with recorded() as server:
        launch = replace(LAUNCH, port=server.server_port)
        async with running(tmp_path, launch, engine, ONCE) as (replica, changed):
            with pytest.raises(TimeoutError):
                await changed(lambda: replica.life.state is ReplicaState.READY, 0.8)


async def test_a_dormant_replica_is_shown_with_the_version_of_its_own_program(
    tmp_path, monkeypatch
):
    for name, build in (("other", 1111), ("own", 2222)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "llama-server").write_text(
            f"#!/bin/sh\necho 'version: {build} (abc)'\n"
        )
        (tmp_path / name / "llama-server").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'other'}:{os.environ['PATH']}")
    binary = str(tmp_path / "own" / "llama-server")
    launch = replace(
        LAUNCH, engine="llamacpp", on_demand=True, binary=binary, checkpoint="/m.gguf"
    )
    with closing(socket.socket()) as listener:
        hive = Hive((launch,), ("true",), GatewaySetup(), "http://x", tmp_path)
        supervisor = Supervisor(hive, listener, lambda _s: None)
        supervisor.replica_set.add_replicas([launch])
        assert "1111" not in supervisor.rows(None)[0]["engine"]
