"""Several gateways before one hive, one of them killed; and a head that is lost while answers go on."""

import os
import signal

import pytest
from asking import MODEL, Agents
from clusters import until
from test_ray_hive import UP, chat, engines_left, ready

pytestmark = pytest.mark.ray


def shares(door):
    """What this door may use, by replica."""
    rows = [row for row in door.rows().values() if row["kind"] == "replica"]
    return {row["name"]: row.get("share", row["slots"]) for row in rows}


def killed(door):
    """The supervisor and all of its processes at once, as when a machine is lost."""
    rows = door.rows()
    gateway = rows["gateway"]["pid"]
    with open(f"/proc/{gateway}/status") as file:
        parent = next(int(line.split()[1]) for line in file if line.startswith("PPid:"))
    for pid in (parent, gateway):
        os.kill(pid, signal.SIGKILL)


def test_two_gateways_share_the_slots_and_a_dead_one_s_share_returns(nodes, door):
    for name in ("b", "c"):
        nodes.add(name)
    first, second = door(), door()
    first.up(*UP, "--replicas", "2", "--cluster", nodes.address)
    assert shares(first) == {f"{MODEL}-0": 2, f"{MODEL}-1": 2}, "alone, it has all"
    second.up("gateway", "--cluster", nodes.address)
    assert until(lambda: sum(shares(second).values()) == 2, 30.0), second.run("ps").stdout
    assert sum(shares(first).values()) == 2
    with Agents(first.url, 3) as one, Agents(second.url, 3) as other:
        one.until_answered(3)
        other.until_answered(3)
        for _ in range(5):
            both = shares(first), shares(second)
            assert all(both[0][name] + both[1].get(name, 0) <= 2 for name in both[0]), both
        killed(second)
        assert until(lambda: sum(shares(first).values()) == 4, 30.0), first.run("ps").stdout
        one.until_answered(3)
    assert one.account.ended == one.account.begun == one.account.answered, one.account
    assert other.account.ended == other.account.begun, "a door that dies cuts its answers; each is told so"
    assert first.down().returncode == 0
    assert until(lambda: not engines_left(), 20.0)


def test_a_second_hive_of_that_name_is_refused_and_a_gateway_without_a_hive_too(nodes, door):
    for name in ("b", "c"):
        nodes.add(name)
    first, second = door(), door()
    told = second.run("gateway", "--cluster", nodes.address, "--port", "0", "-d", check=False)
    assert (told.returncode, "there is no hive `skep`" in told.stderr) == (1, True), told.stderr
    first.up(*UP, "--replicas", "1", "--cluster", nodes.address)
    told = second.run(*UP, "--replicas", "1", "--cluster", nodes.address, "--port", "0", "-d", check=False)
    assert (told.returncode, "a hive `skep` runs in this cluster already" in told.stderr) == (1, True), told.stderr
    assert "if its door was killed, try again in 8 s" in told.stderr


def test_an_abandoned_hive_is_taken_over_with_its_engines_still_loaded(nodes, door):
    nodes.add("b")
    first, second = door(), door()
    first.up(*UP, "--replicas", "1", "--cluster", nodes.address)
    (before,) = ready(first, 1)
    killed(first)
    until(lambda: False, 8.0)  # the lease of a door that is gone
    second.up(*UP, "--replicas", "1", "--cluster", nodes.address)
    (after,) = ready(second, 1)
    assert after["pid"] == before["pid"], "nothing was loaded again"
    assert chat(second.url).usage.completion_tokens


def test_a_lost_head_is_said_and_what_serves_goes_on_serving(nodes, door):
    nodes.add("b")
    one = door()
    one.up(*UP, "--replicas", "1", "--cluster", nodes.address)
    with Agents(one.url, 2) as agents:
        agents.until_answered(2)
        nodes.kill_gcs()
        assert until(lambda: one.rows()["cluster"]["state"] == "lost", 30.0), one.run("ps").stdout
        agents.until_answered(4)
        assert "goes on serving" in one.run("ps").stdout
    assert agents.account.answered == agents.account.begun, agents.account
    assert one.down().returncode == 0
    assert not engines_left(), "without a head the engines are ended all the same"
