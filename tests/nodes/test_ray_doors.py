"""Several gateways before one hive, one of them killed; and a head that is lost while answers go on."""

import contextlib
import os
import signal
from pathlib import Path

import pytest
from asking import MODEL, Agents
from clusters import processes, until
from test_ray_hive import UP, chat, engines_left, ready

from skep.cluster.envoy import MEND_EVERY_S
from skep.cluster.logparts import TAIL_BYTES
from skep.cluster.shares import LEASE_S

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


@contextlib.contextmanager
def stopped(door):
    """All processes of a door, as those of a machine that sleeps."""
    pids = processes("skep", door.home)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    assert len(pids) >= 3, "supervisor, gateway, envoy"
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


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


def test_a_door_that_was_away_and_lost_its_hive_leaves_what_the_other_one_serves_alone(nodes, door):
    """It ended the new door's replicas and its ledger, and until then both placed and ended against each other."""
    nodes.add("b")
    first, second = door(), door()
    first.up(*UP, "--replicas", "2", "--cluster", nodes.address)
    with stopped(first):
        until(lambda: False, LEASE_S + 1)
        second.up(*UP, "--replicas", "1", "--cluster", nodes.address)
        assert until(lambda: ready(second, 1))
    (before,) = ready(second, 1)
    assert until(lambda: "has taken over" in (first.rows()["cluster"]["why"] or ""), 30.0), first.run("ps").stdout
    with Agents(second.url, 2) as agents:
        agents.until_answered(2)
        until(lambda: False, 2 * MEND_EVERY_S)
        agents.until_answered(2)
        told = first.down()
        assert (told.returncode, "has taken over the hive `skep`: what it serves goes on" in told.stderr) == (0, True)
        agents.until_answered(4)
    assert agents.account.answered == agents.account.begun, agents.account
    (after,) = ready(second, 1)
    assert (after["pid"], after["restarts"]) == (before["pid"], before["restarts"])
    assert second.down().returncode == 0
    assert until(lambda: not engines_left(), 20.0)


def test_a_door_that_lost_its_hive_has_it_back_when_the_other_one_is_down(nodes, door):
    nodes.add("b")
    first, second = door(), door()
    first.up(*UP, "--replicas", "1", "--cluster", nodes.address)
    with stopped(first):
        until(lambda: False, LEASE_S + 1)
        second.up(*UP, "--replicas", "1", "--cluster", nodes.address)
    assert until(lambda: "has taken over" in (first.rows()["cluster"]["why"] or ""), 30.0), first.run("ps").stdout
    assert second.down().returncode == 0
    assert until(lambda: first.rows()["cluster"]["why"] is None and ready(first, 1), 90.0), first.run("ps").stdout
    assert chat(first.url).usage.completion_tokens


def test_a_door_that_comes_back_and_wants_fewer_cuts_no_answer_of_another_one(nodes, door):
    """What the load had called was ended at the first look, without a word to the doors that sent to it."""
    nodes.add("b")
    first, second = door(), door()
    first.up(*UP, "--replicas", "2", "--cluster", nodes.address)
    second.up("gateway", "--cluster", nodes.address)
    with Agents(second.url, 4) as agents:
        agents.until_answered(4)
        killed(first)
        until(lambda: False, LEASE_S + 1)
        first.up(*UP, "--replicas", "1", "--cluster", nodes.address)
        assert until(lambda: list(shares(second)) == [f"{MODEL}-0"], 60.0), second.run("ps").stdout
        agents.until_answered(4)
    assert agents.account.answered == agents.account.begun, agents.account


def test_a_long_log_elsewhere_is_shown_as_one_here_is_and_costs_no_envoy(nodes, door):
    """Its answer was longer than the link to the envoy takes, and the cluster was away for seconds."""
    nodes.add("b")
    one = door()
    one.up(*UP, "--replicas", "1", "--cluster", nodes.address)
    log = Path(os.environ["XDG_STATE_HOME"], "skep/logs/posts", f"skep@{nodes.address}", f"{MODEL}-0.log")
    with log.open("ab") as file:
        file.write(b"INFO [loggers.py:118] Engine 000: Avg prompt throughput: 0.0 tokens/s\n" * 100_000)
    (envoy,) = processes("skep.cluster.envoy", one.home)
    told = one.run("logs", f"{MODEL}-0", "-n", "1000000").stdout.encode()
    assert told == log.read_bytes()[-TAIL_BYTES:]
    assert len(one.run("logs", f"{MODEL}-0", "-n", "50000").stdout.splitlines()) == 50_000
    assert processes("skep.cluster.envoy", one.home) == [envoy]
    assert one.rows()["cluster"]["state"] == "ready"


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
