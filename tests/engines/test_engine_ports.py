"""Engines that are given a part of the ports: of a cluster's node, so that a firewall can name them."""

import asyncio
import socket
from contextlib import ExitStack, closing
from dataclasses import replace

import pytest
from test_replica import LAUNCH, POLICY

from skep.engines.fake import Fake
from skep.errors import EngineError
from skep.supervisor.lifecycle import ReplicaState
from skep.supervisor.replica import Replica
from skep.supervisor.start_order import StartOrder
from skep.wire.listen import free_port


def few_ports():
    """Three in a row that nobody has."""
    for _ in range(100):
        first = free_port()
        try:
            for port in range(first, first + 3):
                socket.create_server(("127.0.0.1", port)).close()
        except (OSError, OverflowError):
            continue
        return range(first, first + 3)
    raise AssertionError("no ports")


def test_companies_of_one_machine_never_choose_the_same_port_before_anybody_listens():
    ports = few_ports()
    with ExitStack() as stack:
        posts = [stack.enter_context(closing(StartOrder(ports))) for _ in ports]
        assert {post.port_for(LAUNCH, finds_one=True) for post in posts} == set(ports)
        with closing(StartOrder(ports)) as late, pytest.raises(EngineError, match=f"are taken on .*{ports[0]} to"):
            late.port_for(LAUNCH, finds_one=True)
        posts[1].close()
        with closing(StartOrder(ports)) as late:
            assert late.port_for(LAUNCH, finds_one=False) == ports[1]


def test_a_start_after_another_takes_the_next_port_and_one_that_is_said_counts():
    ports = few_ports()
    with closing(StartOrder(ports)) as company:
        assert [company.port_for(LAUNCH, finds_one=True) for _ in range(4)] == [*ports, ports[0]]
        assert company.port_for(replace(LAUNCH, port=4711), finds_one=True) == 4711


def test_on_one_box_an_engine_that_can_finds_one_itself():
    assert StartOrder().port_for(LAUNCH, finds_one=True) == 0
    assert StartOrder().port_for(LAUNCH, finds_one=False) > 0


def test_an_engine_listens_in_the_range_and_where_it_is_used_up_the_replica_says_so(tmp_path):
    ports = few_ports()

    async def run():
        changed = asyncio.Event()
        with closing(StartOrder(ports)) as company:
            policy = replace(POLICY, failures_before_ready=1)
            replica = Replica(LAUNCH, Fake(), tmp_path / "m-0.log", changed.set, policy, company)

            async def until(condition):
                while not condition():
                    changed.clear()
                    await asyncio.wait_for(changed.wait(), 20)

            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(replica.run())
                await until(lambda: replica.life.state in (ReplicaState.READY, ReplicaState.FAILED))
                state, url, why = replica.life.state, replica.life.url, replica.life.why
                replica.stop()
        return state, url, why

    state, url, _ = asyncio.run(run())
    assert (state, url) == (ReplicaState.READY, f"http://127.0.0.1:{ports[0]}")
    with ExitStack() as stack:
        for port in ports:
            stack.enter_context(socket.create_server(("127.0.0.1", port)))
        state, _, why = asyncio.run(run())
    assert state is ReplicaState.FAILED
    assert f"all ports for engines are taken on 127.0.0.1, {ports[0]} to {ports[-1]}" in why
