"""One gateway a hive: a second one is refused, a killed one comes back; and a head that is lost while answers go on."""

import contextlib
import os
import signal
from pathlib import Path

import pytest
from asking import MODEL, Agents
from clusters import processes, until
from test_ray_hive import UP, chat, engines_left, ready

from skep.cluster.ray_driver import MEND_EVERY_S
from skep.cluster.replica_actor import TAIL_BYTES
from skep.cluster.replica_registry import OWNED_S

pytestmark = pytest.mark.ray


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


def test_a_second_hive_of_that_name_is_refused(nodes, door):
    for name in ("b", "c"):
        nodes.add(name)
    first, second = door(), door()
    first.up(*UP, "--replicas", "1", "--cluster", nodes.address)
    told = second.run(*UP, "--replicas", "1", "--cluster", nodes.address, "--port", "0", "-d", check=False)
    assert (told.returncode, "a hive `skep` runs in this cluster already" in told.stderr) == (1, True), told.stderr
    assert "if its skep was killed, try again in 8 s" in told.stderr


def test_an_abandoned_hive_is_taken_over_with_its_engines_still_loaded(nodes, door):
    nodes.add("b")
    first, second = door(), door()
    first.up(*UP, "--replicas", "1", "--cluster", nodes.address)
    (before,) = ready(first, 1)
    killed(first)
    until(lambda: False, OWNED_S)
    second.up(*UP, "--replicas", "1", "--cluster", nodes.address)
    (after,) = ready(second, 1)
    assert after["pid"] == before["pid"], "nothing was loaded again"
    assert chat(second.url).usage.completion_tokens


def test_a_gateway_that_was_away_and_lost_its_hive_ends_and_leaves_what_the_other_one_serves_alone(nodes, door):
    """It ended the new one's replicas and its ledger, and until then both placed and ended against each other."""
    nodes.add("b")
    first, second = door(), door()
    first.up(*UP, "--replicas", "2", "--cluster", nodes.address)
    with stopped(first):
        until(lambda: False, OWNED_S + 1)
        second.up(*UP, "--replicas", "1", "--cluster", nodes.address)
        assert until(lambda: ready(second, 1))
    (before,) = ready(second, 1)
    with Agents(second.url, 2) as agents:
        agents.until_answered(2)
        assert until(lambda: not first.rows(), 30.0), first.run("ps").stdout
        assert "a hive `skep` runs in this cluster already" in first.run("logs", "skep").stdout
        until(lambda: False, 2 * MEND_EVERY_S)
        agents.until_answered(4)
    assert agents.account.answered == agents.account.begun, agents.account
    (after,) = ready(second, 1)
    assert (after["pid"], after["restarts"]) == (before["pid"], before["restarts"])
    assert second.down().returncode == 0
    assert until(lambda: not engines_left(), 20.0)


def test_a_long_log_elsewhere_is_shown_as_one_here_is_and_costs_no_envoy(nodes, door):
    """Its answer was longer than the link to the envoy takes, and the cluster was away for seconds."""
    nodes.add("b")
    one = door()
    one.up(*UP, "--replicas", "1", "--cluster", nodes.address)
    log = Path(os.environ["XDG_STATE_HOME"], "skep/logs/posts", f"skep@{nodes.address}", f"{MODEL}-0.log")
    with log.open("ab") as file:
        file.write(b"INFO [loggers.py:118] Engine 000: Avg prompt throughput: 0.0 tokens/s\n" * 100_000)
    (envoy,) = processes("skep.cluster.ray_driver", one.home)
    told = one.run("logs", f"{MODEL}-0", "-n", "1000000").stdout.encode()
    assert told == log.read_bytes()[-TAIL_BYTES:]
    assert len(one.run("logs", f"{MODEL}-0", "-n", "50000").stdout.splitlines()) == 50_000
    assert processes("skep.cluster.ray_driver", one.home) == [envoy]
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
