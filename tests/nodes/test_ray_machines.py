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
def three(room):
    """A head that takes no replica, and two nodes."""
    a, b, c = (room.add(name) for name in "abc")
    a.cluster("start", "--address", a.address, "--cpus", "0")
    token = a.run("cluster", "token").stdout
    for node in (b, c):
        node.cluster("join", HEAD, "--token-file", "-", "--cpus", "2", told=token)
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


def nodes(one):
    return {
        row["name"]: row
        for row in json.loads(one.run("cluster", "status", "--json").stdout)["nodes"]
    }


def test_the_five_commands_serve_on_three_machines_and_what_listens_is_as_documented(three):
    a, b, c = three
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
    assert a.chat().usage.completion_tokens

    ports = Ports()
    gateway = int(a.url.rpartition(":")[2])
    assert ("127.0.0.1", gateway) in a.listeners()
    for machine in three:
        found = {(address, port) for address, port in machine.listeners() if port != gateway}
        assert all(ports.first <= port <= ports.last for _, port in found), found
        engines = {(address, port) for address, port in found if port >= ports.engines[0]}
        assert engines == (set() if machine is a else {(machine.address, 7400)})
        assert (machine.address, 6382) in found
        wide = {port for address, port in found if address in EVERYWHERE}
        assert wide >= {6380, 6381} | ({6379} if machine is a else set())
        assert all(
            port <= 6381 or ports.workers[0] <= port <= ports.workers[1] for port in wide
        ), wide

    assert len(a.run("logs", f"{MODEL}-1", "-n", "3").stdout.splitlines()) == 3
    a.run("drain", f"{MODEL}-0", "--wait")
    assert a.chat().usage.completion_tokens
    a.run("undrain", f"{MODEL}-0")
    a.run("scale", f"{MODEL}=3", "--wait")
    urls = [row["url"] for row in ready(a, 3)]
    assert len(set(urls)) == 3, "two engines of one machine have two ports"
    assert set(urls) < {f"http://10.0.0.{node}:{port}" for node in (2, 3) for port in (7400, 7401)}
    assert a.down().returncode == 0
    assert until(lambda: not b.engines() | c.engines(), 20.0)


@pytest.mark.skipif(shutil.which("nft") is None, reason="there is no nft here")
def test_behind_the_documented_firewall_a_stranger_reaches_nothing_and_the_cluster_works_on(
    room, three
):
    a, *_ = three
    stranger = room.add("d")
    a.up("up", "--embedded", *SIZES, "--replicas", "2", "--cluster", "auto")
    for machine in three:
        assert stranger.reaches(machine) >= {6380, 6381}
    (lines,) = re.findall(
        r"```text\n(table inet skep_cluster .*?)```", DOCS.read_text(), re.DOTALL
    )
    for machine in three:
        apply = machine.box.inside("nft", "-f", "-")
        subprocess.run(apply, input=lines, text=True, check=True, timeout=20)
        assert stranger.reaches(machine) == set()
    assert {row["alive"] for row in nodes(a).values()} == {True}
    assert a.chat().usage.completion_tokens
    a.run("scale", f"{MODEL}=3", "--wait")
    assert len(ready(a, 3)) == 3


def test_a_pulled_cable_costs_no_request_its_end_and_the_old_engine_ends_when_it_is_back(
    room, three, config
):
    """Nothing is closed then: both sides believe in the connection.

    What was under way there is taken back.
    """
    a, b, c = three
    a.up("up", "--config", config)
    assert {row["node"] for row in ready(a, 2)} == {"b", "c"}
    with AgentsAt(a, 6) as agents:
        agents.until_answered(6)
        room.pull("c")
        moved = until(lambda: [row for row in ready(a, 2) if row["node"] == "b"][1:])
        assert moved, a.run("ps").stdout
        agents.until_answered(6)
    account = agents.account
    assert account.ended == account.begun, "with the cable still out"
    assert sum(account.refused.values()) == 0, account
    assert sum(account.cut.values()) <= 2, "no more than its slots were under way there"
    assert c.engines(), "it cannot know"

    with AgentsAt(a, 6) as agents:
        agents.until_answered(2)
        room.plug("c")
        seen = []
        assert until(lambda: seen.append(a.rows()) or not c.engines(), 60.0)
        agents.until_answered(6)
    assert agents.account.answered == agents.account.begun, agents.account
    for row in (row for rows in seen for row in rows.values() if row["kind"] == "replica"):
        assert (row["node"], row["slots"]) == ("b", 2)
        assert row["busy"] <= 2
    assert len(b.engines()) == 2
    assert until(
        lambda: not c.processes("raylet/raylet") and not c.processes("ray::ReplicaActor"), 90.0
    ), "Ray gave it up"
    c.cluster("join", HEAD, "--cpus", "2")
    assert nodes(a)["c"]["alive"]


def test_a_gateway_that_is_cut_off_serves_from_its_own_machine_and_has_all_again_after_a_join(
    room, config
):
    """Its replica cannot move, for there is no room: it waits, and its slots are nobody else's
    meanwhile.
    """
    a, b, c = (room.add(name) for name in "abc")
    a.cluster("start", "--address", a.address, "--cpus", "0")
    token = a.run("cluster", "token").stdout
    for node in (b, c):
        node.cluster("join", HEAD, "--token-file", "-", "--cpus", "1", told=token)
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
    assert agents.account.ended == agents.account.begun
    assert sum(agents.account.refused.values()) == 0, agents.account
    assert sum(agents.account.cut.values()) <= 4, (
        "what was under way where the machine could not go on"
    )
    assert (len(b.engines()), len(c.engines())) == (1, 1)


def test_after_a_lost_head_what_serves_goes_on_and_a_new_head_takes_over_with_a_join_on_each_node(
    three,
):
    """The old head's nodes do not know the new one: they leave it and join, and the gateway goes
    on by itself.
    """
    a, b, c = three
    b.up("up", "--embedded", *SIZES, "--replicas", "2", "--cluster", "auto")
    assert ready(b, 2)
    with AgentsAt(b, 2) as agents:
        agents.until_answered(2)
        a.kill_all()
        assert until(lambda: b.rows()["cluster"]["state"] == "lost", 60.0)
        agents.until_answered(4)
        lost = c.run("cluster", "status", check=False)
        assert (lost.returncode, f"the head node at {HEAD} is lost" in lost.stderr) == (1, True)
        other = c.run("cluster", "start", "--address", c.address, check=False)
        assert (other.returncode, "already" in other.stderr) == (2, True), "it may only be cut off"
        agents.until_answered(2)
    assert agents.account.answered == agents.account.begun, agents.account

    before = b.engines() | c.engines()
    a.cluster("start", "--address", a.address, "--cpus", "0")
    for node in (c, b):
        node.run("cluster", "stop")
        node.cluster("join", HEAD, "--cpus", "2")
    again = b.run("cluster", "join", HEAD, check=False)
    assert (again.returncode, "already" in again.stderr) == (2, True)
    assert until(lambda: b.rows()["cluster"]["state"] == "ready" and ready(b, 2)), b.run(
        "ps"
    ).stdout
    assert b.chat().usage.completion_tokens
    assert len(b.engines()) + len(c.engines()) == 2 == len(before)
    assert b.down().returncode == 0
    assert until(lambda: not b.engines() | c.engines(), 20.0)
