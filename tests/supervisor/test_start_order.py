"""Engines that are given a part of the ports: of a cluster's node, so that a firewall can name
them.
"""

import socket
from contextlib import ExitStack, closing

import pytest
from msgspec.structs import replace
from supervised import LAUNCH, ONCE, running

from skep.errors import EngineError
from skep.supervisor.lifecycle import ReplicaState
from skep.supervisor.replica import StartOrder
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


def test_hives_of_one_machine_never_choose_the_same_port_before_anybody_listens():
    ports = few_ports()
    with ExitStack() as stack:
        orders = [stack.enter_context(closing(StartOrder(ports))) for _ in ports]
        assert {order.port_for(LAUNCH, reports_address=True) for order in orders} == set(ports)
        with (
            closing(StartOrder(ports)) as late,
            pytest.raises(EngineError, match=f"are taken on .*{ports[0]} to"),
        ):
            late.port_for(LAUNCH, reports_address=True)
        orders[1].close()
        with closing(StartOrder(ports)) as late:
            assert late.port_for(LAUNCH, reports_address=False) == ports[1]


def test_a_start_after_another_takes_the_next_port_and_one_that_is_said_counts():
    """On one box, an engine that can finds one itself."""
    assert StartOrder().port_for(LAUNCH, reports_address=True) == 0
    assert StartOrder().port_for(LAUNCH, reports_address=False) > 0
    ports = few_ports()
    with closing(StartOrder(ports)) as order:
        assert [order.port_for(LAUNCH, reports_address=True) for _ in range(4)] == [
            *ports,
            ports[0],
        ]
        assert order.port_for(replace(LAUNCH, port=4711), reports_address=True) == 4711


async def test_an_engine_listens_in_the_range_and_where_it_is_used_up_the_replica_says_so(
    tmp_path,
):
    ports = few_ports()

    async def end_of_start():
        with closing(StartOrder(ports)) as order:
            async with running(tmp_path, policy=ONCE, start_order=order) as (replica, changed):
                await changed(
                    lambda: replica.life.state in (ReplicaState.READY, ReplicaState.FAILED)
                )
                return replica.life.state, replica.life.url, replica.life.why

    assert await end_of_start() == (ReplicaState.READY, f"http://127.0.0.1:{ports[0]}", None)
    with ExitStack() as stack:
        for port in ports:
            stack.enter_context(socket.create_server(("127.0.0.1", port)))
        state, _, why = await end_of_start()
    assert state is ReplicaState.FAILED
    assert f"all ports for engines are taken on 127.0.0.1, {ports[0]} to {ports[-1]}" in why
