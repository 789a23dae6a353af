"""What must cost no answer: the ledger killed, an envoy killed, a head that hesitates; and what must not be left."""

import os
import signal
import time

import pytest
from asking import MODEL, Agents
from clusters import processes, until
from test_ray_gateway import killed
from test_ray_hive import UP, chat, engines_left, ready

pytestmark = pytest.mark.ray


def test_neither_the_ledger_nor_an_envoy_killed_costs_an_answer(nodes, door):
    for name in ("b", "c"):
        nodes.add(name)
    one = door()
    one.up(*UP, "--replicas", "2", "--cluster", nodes.address)
    with Agents(one.url, 2) as agents:
        agents.until_answered(2)
        (ledger,) = processes("ray::RegistryActor", nodes.env["XDG_STATE_HOME"])
        os.kill(ledger, signal.SIGKILL)
        agents.until_answered(3)
        (envoy,) = processes("skep.cluster.ray_driver", one.home)
        os.kill(envoy, signal.SIGKILL)
        agents.until_answered(3)
        assert until(lambda: one.rows()["cluster"]["state"] == "ready", 60.0)
        agents.until_answered(2)
    assert agents.account.answered == agents.account.begun, agents.account
    assert len(ready(one, 2)) == 2


def test_what_a_killed_gateway_left_and_nobody_wants_is_ended(nodes, door):
    for name in ("b", "c"):
        nodes.add(name)
    first, second = door(), door()
    first.up(*UP, "--replicas", "2", "--cluster", nodes.address)
    killed(first)
    until(lambda: False, 10.0)  # the hive counts as its own for a while
    second.up(*UP, "--replicas", "1", "--cluster", nodes.address)
    assert until(lambda: len(engines_left()) <= 2, 30.0), "one keeper's engine and what it starts"
    assert chat(second.url).usage.completion_tokens
    assert second.down().returncode == 0
    assert until(lambda: not engines_left(), 20.0)


def test_a_head_that_hesitates_while_a_replica_goes_leaves_nothing_in_the_way(nodes, door):
    for name in ("b", "c"):
        nodes.add(name)
    one = door()
    one.up(*UP, "--replicas", "2", "--cluster", nodes.address)
    with nodes.head_stopped():
        assert until(lambda: one.rows()["cluster"]["state"] == "lost", 30.0)
        began = time.monotonic()
        one.run("restart", f"{MODEL}-0")
        assert time.monotonic() - began < 60.0
    assert until(lambda: one.rows()["cluster"]["state"] == "ready", 30.0), one.run("ps").stdout
    assert until(lambda: len(ready(one, 2)) == 2), one.run("ps").stdout
    one.run("scale", f"{MODEL}=1", "--wait")
    one.run("scale", f"{MODEL}=2", "--wait")
    assert len(ready(one, 2)) == 2
