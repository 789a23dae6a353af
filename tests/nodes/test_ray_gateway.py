"""One gateway a hive: a second one is refused, a killed one comes back; and what must cost no
answer.
"""

import contextlib
import os
import signal
import time

import pytest
from asking import MODEL, Agents
from clusters import UP, chat, engines_left, processes, ready, until

from skep.cluster.ray_driver import MEND_EVERY_S
from skep.cluster.replica_actor import OWNED_S

pytestmark = pytest.mark.ray


def killed(installation):
    """The supervisor and all of its processes at once, as when a machine is lost."""
    rows = installation.rows()
    gateway = rows["gateway"]["pid"]
    with open(f"/proc/{gateway}/status") as file:
        parent = next(int(line.split()[1]) for line in file if line.startswith("PPid:"))
    for pid in (parent, gateway):
        os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def stopped(installation):
    """All processes of an installation, as those of a machine that sleeps."""
    pids = processes("skep", installation.home)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    assert len(pids) >= 3, "supervisor, gateway, driver"
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def test_a_second_hive_of_that_name_is_refused(nodes, up_on, install):
    up_on("b", "c")
    refused = install().run(
        *UP, "--replicas", "1", "--cluster", nodes.address, "--port", "0", "-d", check=False
    )
    assert (refused.returncode, "a deployment `skep` runs in this cluster" in refused.stderr) == (
        1,
        True,
    ), refused.stderr
    assert "if the other skep was killed, try again in 8 s" in refused.stderr


def test_an_abandoned_hive_is_taken_over_with_its_engines_still_loaded(nodes, up_on, install):
    first = up_on("b")
    second = install()
    (before,) = ready(first, 1)
    killed(first)
    until(lambda: False, OWNED_S)
    second.up(*UP, "--replicas", "1", "--cluster", nodes.address)
    (after,) = ready(second, 1)
    assert after["pid"] == before["pid"], "nothing was loaded again"
    assert chat(second.url).usage.completion_tokens


def test_a_gateway_that_lost_its_hive_while_away_ends_and_leaves_the_replicas_alone(
    nodes, up_on, install
):
    """It ended the new one's replicas, and until then both placed and ended against each other."""
    first = up_on("b", replicas=2)
    second = install()
    with stopped(first):
        until(lambda: False, OWNED_S + 1)
        second.up(*UP, "--replicas", "1", "--cluster", nodes.address)
        assert until(lambda: ready(second, 1))
    (before,) = ready(second, 1)
    with Agents(second.url, 2) as agents:
        agents.until_answered(2)
        assert until(lambda: not first.rows(), 30.0), first.run("ps").stdout
        assert (
            "a deployment `skep` runs in this cluster already" in first.run("logs", "skep").stdout
        )
        until(lambda: False, 2 * MEND_EVERY_S)
        agents.until_answered(4)
    assert agents.account.answered == agents.account.begun, agents.account
    (after,) = ready(second, 1)
    assert (after["pid"], after["restarts"]) == (before["pid"], before["restarts"])
    assert second.down().returncode == 0
    assert until(lambda: not engines_left(), 20.0)


def test_a_lost_head_is_said_and_what_serves_goes_on_serving(nodes, up_on):
    installation = up_on("b")
    with Agents(installation.url, 2) as agents:
        agents.until_answered(2)
        nodes.kill_gcs()
        assert until(lambda: installation.rows()["cluster"]["state"] == "lost", 30.0), (
            installation.run("ps").stdout
        )
        agents.until_answered(4)
        assert "running replicas go on serving" in installation.run("ps").stdout
    assert agents.account.answered == agents.account.begun, agents.account
    assert installation.down().returncode == 0
    assert not engines_left(), "without a head the engines are ended all the same"


def test_what_is_ended_under_streams_cuts_none_of_them(up_on):
    """Scaled down, restarted, drained and taken back."""
    installation = up_on("b", "c", replicas=2)
    with Agents(installation.url, 3, tokens=60) as agents:
        agents.until_answered(3)
        installation.run("scale", f"{MODEL}=1", "--wait")
        assert until(lambda: ready(installation, 1), 30.0), installation.run("ps").stdout
        agents.until_answered(3)
        installation.run("restart", f"{MODEL}-0")
        agents.until_answered(3)
        installation.run("drain", f"{MODEL}-0", "--wait")
        installation.run("undrain", f"{MODEL}-0")
        agents.until_answered(3)
    assert not agents.account.cut, agents.account
    installation.run("down", "--wait", "60s")
    assert until(lambda: not engines_left(), 20.0)


def test_a_driver_killed_costs_no_answer(up_on):
    installation = up_on("b", "c", replicas=2)
    with Agents(installation.url, 2) as agents:
        agents.until_answered(2)
        (driver,) = processes("skep.cluster.ray_driver", installation.home)
        os.kill(driver, signal.SIGKILL)
        agents.until_answered(3)
        assert until(lambda: installation.rows()["cluster"]["state"] == "ready", 60.0)
        agents.until_answered(2)
    assert agents.account.answered == agents.account.begun, agents.account
    assert len(ready(installation, 2)) == 2


def test_a_head_that_hesitates_while_a_replica_goes_leaves_nothing_in_the_way(nodes, up_on):
    installation = up_on("b", "c", replicas=2)
    with nodes.head_stopped():
        assert until(lambda: installation.rows()["cluster"]["state"] == "lost", 30.0)
        began = time.monotonic()
        installation.run("restart", f"{MODEL}-0")
        assert time.monotonic() - began < 60.0
    assert until(lambda: installation.rows()["cluster"]["state"] == "ready", 30.0), (
        installation.run("ps").stdout
    )
    assert until(lambda: len(ready(installation, 2)) == 2), installation.run("ps").stdout
    installation.run("scale", f"{MODEL}=1", "--wait")
    installation.run("scale", f"{MODEL}=2", "--wait")
    assert len(ready(installation, 2)) == 2
