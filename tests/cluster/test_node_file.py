"""This machine as a node: its record, its token, its processes and where they listen."""

import os
import socket
import subprocess
import sys
import time
from dataclasses import asdict

import pytest

from skep.cluster import ray_processes
from skep.cluster.node_commands import stop_node
from skep.cluster.node_file import (
    NodeRecord,
    RayConnection,
    connection_to,
    ensure_token,
    folder_of,
    keep_token,
    read_node,
    token_of,
    token_path,
    write_node,
)
from skep.cluster.ray_command import MARK
from skep.cluster.status import rows_of
from skep.errors import UserError
from skep.paths import user_paths

LISTENING = """
import socket, sys
with open("/proc/self/comm", "w") as comm:
    comm.write("raylet")
held = socket.create_server(("127.0.0.1", 0))
wide = socket.create_server(("", 0))
print(held.getsockname()[1], wide.getsockname()[1], flush=True)
sys.stdin.read()
"""


@pytest.fixture
def paths(tmp_path):
    return user_paths({"HOME": str(tmp_path)})


@pytest.fixture
def raylet():
    """A real process that carries the mark and listens."""
    mark = f"test-{os.getpid()}-{os.urandom(4).hex()}"
    child = subprocess.Popen(
        [sys.executable, "-S", "-c", LISTENING],
        env={**os.environ, MARK: mark}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield mark, child, [int(port) for port in child.stdout.readline().split()]
    finally:
        child.kill()
        child.communicate()


def node_with(mark, address="127.0.0.1"):
    return NodeRecord(f"{address}:6379", address, True, "a", "6379-7499", mark)


def test_a_driver_learns_the_way_from_the_node_that_runs_here(paths, tmp_path, raylet):
    mark, _, _ = raylet
    env = {"HOME": str(tmp_path)}
    assert connection_to("auto", env) == RayConnection("auto")
    write_node(paths, node_with("nobody-has-it"))
    assert connection_to("auto", env) == RayConnection("auto"), "what is written down runs no more"
    write_node(paths, node_with(mark))
    way = connection_to("auto", env)
    assert (way.head, way.options) == ("127.0.0.1:6379", {"_node_ip_address": "127.0.0.1"})
    assert way.environment["RAY_AUTH_TOKEN_PATH"] == str(token_path(paths))
    assert connection_to("127.0.0.1:6379", env) == way
    assert connection_to("10.0.0.9:6379", env) == RayConnection("10.0.0.9:6379"), "another cluster"


def test_a_record_of_another_version_is_none(paths):
    write_node(paths, node_with("m"))
    assert asdict(read_node(paths))["mark"] == "m"
    (paths.state / "ray-node.json").write_text('{"head": 1}')
    assert read_node(paths) is None
    assert stop_node(paths) == (None, [])


def test_only_processes_with_the_mark_are_found_told_and_ended(paths, raylet):
    mark, child, (held, wide) = raylet
    (found,) = ray_processes.marked(mark)
    assert (found.pid, found.name) == (child.pid, "raylet")
    told = {one.port: one for one in ray_processes.listeners([found])}
    assert (told[held].address, told[held].is_everywhere) == ("127.0.0.1", False)
    assert (told[wide].address, told[wide].is_everywhere) == ("0.0.0.0", True)
    assert ray_processes.marked(mark[:-1]) == []
    write_node(paths, node_with(mark))
    assert stop_node(paths) == (node_with(mark), [])
    child.wait(5)
    assert read_node(paths) is None


def test_a_child_that_wrote_over_its_mark_ends_with_its_node():
    """As Ray's agents do, with their title. Where the raylet had to be killed, they held their ports on and on."""
    mark = f"test-{os.getpid()}-{os.urandom(4).hex()}"
    parent = (
        "import subprocess, sys; print(subprocess.Popen(['sleep', '600'], env={}).pid, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-S", "-c", parent],
        env={**os.environ, MARK: mark}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as child:  # fmt: skip
        agent = int(child.stdout.readline())
        assert [process.pid for process in ray_processes.marked(mark)] == [child.pid]
        assert ray_processes.end(mark) == []
        assert until_over(agent)


def until_over(pid):
    deadline = time.monotonic() + 5.0
    while ray_processes._birth(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not ray_processes._birth(pid)


def test_addresses_of_both_families_are_read():
    head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
    row = "   0: {}:1F90 {}:0000 {} 00000000:00000000 00:00000000 00000000 0 0 {} 1\n"
    four = head + row.format("0100007F", "00000000", "0A", 7) + row.format("0100007F", "00000000", "01", 8)
    assert ray_processes.parse_table(four, socket.AF_INET) == [(7, "127.0.0.1", 8080)]
    six = head + "".join(
        row.format(address, "0" * 32, "0A", inode)
        for inode, address in enumerate(["0" * 32, "0000000000000000FFFF00000100007F", "0" * 24 + "01000000"])
    )
    assert [address for _, address, _ in ray_processes.parse_table(six, socket.AF_INET6)] == ["::", "127.0.0.1", "::1"]


def test_the_token_is_made_once_and_is_nobody_elses(paths):
    with pytest.raises(UserError, match="there is no token here"):
        token_of(paths)
    ensure_token(paths)
    made = token_of(paths)
    assert (len(made), token_path(paths).stat().st_mode & 0o777) == (64, 0o600)
    ensure_token(paths)
    assert token_of(paths) == made
    keep_token(paths, "another-token-for-it")
    assert token_of(paths) == "another-token-for-it"
    token_path(paths).chmod(0o644)
    with pytest.raises(UserError, match="other users may read the token"):
        ensure_token(paths)


def test_rays_folder_leaves_room_for_the_names_of_its_sockets(paths):
    longest = "session_2026-12-31_23-59-59_999999_4194304/sockets/plasma_store"
    assert len(str(folder_of(paths) / longest)) < 103


def test_a_roll_has_every_node_its_replicas_and_the_dead_that_did_not_come_back():
    def row(node, name, address, *, alive=True, **has):
        return {"NodeID": node, "NodeName": name, "NodeManagerAddress": address, "Alive": alive, "Resources": has}

    nodes = [
        row("1", "b", "10.0.0.2", CPU=4.0, memory=8.0),
        row("2", "a", "10.0.0.1", CPU=2.0, **{"node:__internal_head__": 1.0}),
        row("3", "c", "10.0.0.3", alive=False),
        row("4", "b", "10.0.0.2", alive=False),
    ]
    hives = {"skep": {"rows": {"m-0": {"name": "m-0", "node_id": "1", "model": "m", "state": "ready"}}}}
    told = rows_of(nodes, {"1": {"CPU": 3.0}}, hives)
    assert [(one["name"], one["alive"], one["head"]) for one in told] == [
        ("a", True, True),
        ("b", True, False),
        ("c", False, False),
    ]
    assert (told[1]["cpus"], told[1]["free_cpus"]) == (4.0, 3.0)
    (standing,) = told[1]["replicas"]
    assert (standing["hive"], standing["name"], standing["state"]) == ("skep", "m-0", "ready")
