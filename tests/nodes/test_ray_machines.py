"""A cluster of machines with networks of their own: docs/cluster.md as it is written, a pulled
cable, a lost head.
"""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from asking import MODEL
from clusters import ready, until
from machines import AgentsAt, Room, cannot

from skep.cluster.ray_processes import Ports

pytestmark = pytest.mark.ray
DOCS = Path(__file__).parents[2] / "docs/cluster.md"
HEAD = "10.0.0.1:6379"
SIZES = ("--slots", "2", "--context", "512", "--threads", "1")
EVERYWHERE = {"*", "0.0.0.0", "::"}


@pytest.fixture
def room(tmp_path_factory, node_env):
    if (why := cannot()) is not None:
        pytest.skip(why)
    room = Room(tmp_path_factory.mktemp, node_env)
    yield room
    room.close()


@pytest.fixture
def three_machines(room):
    """A head that takes no replica, and two nodes."""
    a, b, c = (room.add(name) for name in "abc")
    a.cluster("start", "--address", a.address, "--cpus", "0")
    token = a.run("cluster", "token").stdout
    for node in (b, c):
        node.cluster("join", HEAD, "--token-file", "-", "--cpus", "2", stdin=token)
    return a, b, c


@pytest.fixture
def config(tmp_path):
    """Two replicas; what is under way on a machine that is silent is taken back after 15 s."""
    file = tmp_path / "skep.toml"
    file.write_text(
        f"""[[serve]]
model = "{MODEL}"
replicas = 2
slots = 2
context = 512
threads = 1

[gateway]
dead_after = "15s"

[cluster]
address = "auto"
"""
    )
    return str(file)


def nodes(machine):
    return {
        row["name"]: row
        for row in json.loads(machine.run("cluster", "status", "--json").stdout)["nodes"]
    }


def check_listeners(machine, gateway, *, is_head):
    """Assert that what listens on a machine, beside the gateway, is as documented."""
    ports = Ports()
    sockets = {(address, port) for address, port in machine.listeners() if port != gateway}
    assert all(ports.first <= port <= ports.last for _, port in sockets), sockets
    engines = {(address, port) for address, port in sockets if port >= ports.engines[0]}
    assert engines == (set() if is_head else {(machine.address, 7400)})
    assert (machine.address, 6382) in sockets
    wide = {port for address, port in sockets if address in EVERYWHERE}
    assert wide >= {6380, 6381} | ({6379} if is_head else set())
    assert all(port <= 6381 or ports.workers[0] <= port <= ports.workers[1] for port in wide), wide


def check_usage(machine):
    """Assert that a request through the machine's gateway is answered."""
    assert machine.chat().usage.completion_tokens


def test_the_five_commands_serve_on_three_machines_and_listen_as_documented(three_machines):
    a, b, c = three_machines
    assert {name: (row["address"], row["head"]) for name, row in nodes(c).items()} == {
        "a": ("10.0.0.1", True),
        "b": ("10.0.0.2", False),
        "c": ("10.0.0.3", False),
    }
    a.up("up", "--embedded", *SIZES, "--replicas", "2", "--cluster", "auto")
    assert {row["node"]: row["url"] for row in ready(a, 2)} == {
        "b": "http://10.0.0.2:7400",
        "c": "http://10.0.0.3:7400",
    }
    check_usage(a)

    gateway = int(a.url.rpartition(":")[2])
    assert ("127.0.0.1", gateway) in a.listeners()
    for machine in three_machines:
        check_listeners(machine, gateway, is_head=machine is a)

    assert len(a.run("logs", f"{MODEL}-1", "-n", "3").stdout.splitlines()) == 3
    a.run("drain", f"{MODEL}-0", "--wait")
    check_usage(a)
    a.run("undrain", f"{MODEL}-0")
    a.run("scale", f"{MODEL}=3", "--wait")
    urls = [row["url"] for row in ready(a, 3)]
    assert len(set(urls)) == 3, "two engines of one machine have two ports"
    assert set(urls) < {f"http://10.0.0.{node}:{port}" for node in (2, 3) for port in (7400, 7401)}
    assert a.down().returncode == 0
    assert until(lambda: not b.engines() | c.engines(), 20.0)


@pytest.mark.skipif(shutil.which("nft") is None, reason="there is no nft here")
def test_behind_the_documented_firewall_a_stranger_reaches_nothing_and_all_works_on(
    room, three_machines
):
    a, *_ = three_machines
    stranger = room.add("d")
    a.up("up", "--embedded", *SIZES, "--replicas", "2", "--cluster", "auto")
    for machine in three_machines:
        assert stranger.reaches(machine) >= {6380, 6381}
    (lines,) = re.findall(
        r"```text\n(table inet skep_cluster .*?)```", DOCS.read_text(), re.DOTALL
    )
    for machine in three_machines:
        apply = machine.box.inside("nft", "-f", "-")
        subprocess.run(apply, input=lines, text=True, check=True, timeout=20)
        assert stranger.reaches(machine) == set()
    assert {row["alive"] for row in nodes(a).values()} == {True}
    assert a.chat().usage.completion_tokens
    a.run("scale", f"{MODEL}=3", "--wait")
    assert len(ready(a, 3)) == 3


def check_account(account, *, cut):
    """Assert that every request has ended, none was refused, and at most so many were cut."""
    assert account.ended == account.begun
    assert sum(account.refused.values()) == 0, account
    assert sum(account.cut.values()) <= cut, "more than was under way on the lost machine"


def check_replica_rows(states):
    """Assert that every replica stays on node b and never has more requests than slots."""
    for rows in states:
        for row in rows.values():
            if row["kind"] == "replica":
                assert (row["node"], row["slots"]) == ("b", 2)
                assert row["busy"] <= 2


def test_after_a_pulled_cable_every_request_ends_and_the_old_engine_when_it_is_back(
    room, three_machines, config
):
    """Nothing is closed then: both sides believe in the connection.

    What was under way there is taken back.
    """
    a, b, c = three_machines
    a.up("up", "--config", config)
    assert {row["node"] for row in ready(a, 2)} == {"b", "c"}
    with AgentsAt(a, 6) as agents:
        agents.until_answered(6)
        room.pull("c")
        moved = until(lambda: [row for row in ready(a, 2) if row["node"] == "b"][1:])
        assert moved, a.run("ps").stdout
        agents.until_answered(6)
    check_account(agents.account, cut=2)  # no more than its slots, with the cable still out
    assert c.engines(), "it cannot know"

    with AgentsAt(a, 6) as agents:
        agents.until_answered(2)
        room.plug("c")
        states = []
        assert until(lambda: states.append(a.rows()) or not c.engines(), 60.0)
        agents.until_answered(6)
    assert agents.account.answered == agents.account.begun, agents.account
    check_replica_rows(states)
    assert len(b.engines()) == 2
    assert until(
        lambda: not c.processes("raylet/raylet") and not c.processes("ray::ReplicaActor"), 90.0
    ), "Ray gave it up"
    c.cluster("join", HEAD, "--cpus", "2")
    assert nodes(a)["c"]["alive"]


def test_a_gateway_that_is_cut_off_serves_from_its_own_machine_until_it_joins_again(room, config):
    """Its replica cannot move, for there is no room: it waits, and its slots are nobody else's
    meanwhile.
    """
    a, b, c = (room.add(name) for name in "abc")
    a.cluster("start", "--address", a.address, "--cpus", "0")
    token = a.run("cluster", "token").stdout
    for node in (b, c):
        node.cluster("join", HEAD, "--token-file", "-", "--cpus", "1", stdin=token)
    b.up("up", "--config", config)
    assert {row["node"] for row in ready(b, 2)} == {"b", "c"}
    with AgentsAt(b, 3) as agents:
        agents.until_answered(3)
        room.pull("b")
        assert until(lambda: b.rows()["cluster"]["state"] == "lost", 30.0)
        agents.until_answered(3)
        assert until(lambda: not nodes(a)["b"]["alive"], 60.0)
        assert (len(b.engines()), len(c.engines())) == (1, 1), "nothing stands twice"
        room.plug("b")
        assert until(lambda: not b.processes("raylet/raylet") and not b.engines(), 90.0), (
            "Ray gave it up"
        )
        agents.until_answered(2)
        b.cluster("join", HEAD, "--cpus", "1")
        assert until(lambda: {row["node"] for row in ready(b, 2)} == {"b", "c"} and b.engines()), (
            b.run("ps").stdout
        )
        agents.until_answered(3)
    check_account(agents.account, cut=4)  # what was under way where the machine could not go on
    assert (len(b.engines()), len(c.engines())) == (1, 1)


def check_refused(machine, code, message, *arguments):
    """Assert that a command of `skep cluster` fails with this code and message."""
    done = machine.run("cluster", *arguments, check=False)
    assert (done.returncode, message in done.stderr) == (code, True)


def test_after_a_lost_head_replicas_serve_on_and_a_new_head_takes_over_by_joins(three_machines):
    """The old head's nodes do not know the new one: they leave it and join, and the gateway goes
    on by itself.
    """
    a, b, c = three_machines
    b.up("up", "--embedded", *SIZES, "--replicas", "2", "--cluster", "auto")
    assert ready(b, 2)
    with AgentsAt(b, 2) as agents:
        agents.until_answered(2)
        a.kill_all()
        assert until(lambda: b.rows()["cluster"]["state"] == "lost", 60.0)
        agents.until_answered(4)
        check_refused(c, 1, f"the head node at {HEAD} is lost", "status")
        # It may only be cut off.
        check_refused(c, 2, "already", "start", "--address", c.address)
        agents.until_answered(2)
    assert agents.account.answered == agents.account.begun, agents.account

    before = b.engines() | c.engines()
    a.cluster("start", "--address", a.address, "--cpus", "0")
    for node in (c, b):
        node.run("cluster", "stop")
        node.cluster("join", HEAD, "--cpus", "2")
    check_refused(b, 2, "already", "join", HEAD)
    assert until(lambda: b.rows()["cluster"]["state"] == "ready" and ready(b, 2)), b.run(
        "ps"
    ).stdout
    check_usage(b)
    assert len(b.engines()) + len(c.engines()) == 2 == len(before)
    assert b.down().returncode == 0
    assert until(lambda: not b.engines() | c.engines(), 20.0)
