"""Ray as `skep cluster` starts it: where it listens, who is let in, and that only our own
processes are ended.
"""

import json
import random
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from skep.cluster import ray_processes
from skep.cluster.ray_processes import Ports, folder_of, read_node
from skep.paths import user_paths

pytestmark = pytest.mark.ray

ASK = """
import sys
from ray._raylet import GcsClient
try:
    print(GcsClient(address=sys.argv[1]).internal_kv_exists(b"x", namespace=b"skep", timeout=5))
except Exception as error:
    print(type(error).__name__)
"""


@pytest.fixture
def machine(install):
    """`machine()` is an installation of its own; what it started of Ray is ended."""
    made = []

    def make():
        made.append(install())
        return made[-1]

    yield make
    for one in reversed(made):
        one.run("cluster", "stop", check=False)
        shutil.rmtree(folder_of(user_paths(one.env)).parent, ignore_errors=True)


def first_port():
    """Below the ports that the kernel hands out."""
    for _ in range(100):
        ports = Ports(random.randrange(12_000, 31_000))
        try:
            for port in (ports.first, *ports.services.values()):
                socket.create_server(("", port)).close()
        except OSError:
            continue
        return ports.first
    raise AssertionError("no ports")


def processes(machine):
    return ray_processes.marked(read_node(user_paths(machine.env)).mark)


def listeners(machine):
    """(process, address, port) of each of its TCP listeners."""
    names = processes(machine)
    found = []
    for line in subprocess.run(
        ["ss", "-Hltnp"], capture_output=True, text=True, check=True
    ).stdout.splitlines():
        address, _, port = line.split()[3].rpartition(":")
        held_by = [names[int(pid)] for pid in re.findall(r"pid=(\d+)", line) if int(pid) in names]
        found += [(name, address.strip("[]"), int(port)) for name in held_by]
    return found


def environ(pid):
    words = Path(f"/proc/{pid}/environ").read_text().split("\0")
    return dict(word.split("=", 1) for word in words if "=" in word)


def asked(address, env, **auth):
    """What the head says to a program that is not skep."""
    argv = [sys.executable, "-c", ASK, address]
    done = subprocess.run(argv, env={**env, **auth}, capture_output=True, text=True, timeout=60)
    return done.stdout.strip() or done.stderr[-500:]


def test_a_cluster_of_this_machine_alone_listens_on_loopback_only_and_ends_whole(machine):
    one = machine()
    port = first_port()
    done = one.run("cluster", "start", "--port", str(port), "--name", "alone", "--json")
    document = json.loads(done.stdout)
    assert (document["head"], document["name"]) == (f"127.0.0.1:{port}", "alone")
    assert "it listens on loopback only" in done.stderr
    assert "mark" not in document

    (node,) = json.loads(one.run("cluster", "status", "--json").stdout)["nodes"]
    assert (node["name"], node["alive"], node["here"], node["replicas"]) == (
        "alone",
        True,
        True,
        [],
    )

    found = listeners(one)
    assert {name for name, _, _ in found} >= {"gcs_server", "raylet"}
    assert {address.removeprefix("::ffff:") for _, address, _ in found} == {"127.0.0.1"}
    assert all(port <= used <= port + 1020 for _, _, used in found)
    raylet = next(pid for pid, name in processes(one).items() if name == "raylet")
    env = environ(raylet)
    assert env["RAY_USAGE_STATS_ENABLED"] == "0"
    token = one.run("cluster", "token").stdout.strip()
    for pid, name in processes(one).items():
        for file in ("environ", "cmdline"):
            assert token not in Path(f"/proc/{pid}/{file}").read_text(), name

    again = one.run("cluster", "start", check=False)
    assert (again.returncode, "already a node of the cluster" in again.stderr) == (2, True)
    taken = machine().run("cluster", "start", "--port", str(port), check=False)
    assert (taken.returncode, f"port {port} is in use" in taken.stderr) == (2, True)

    mark = read_node(user_paths(one.env)).mark
    assert "stopped: the head" in one.run("cluster", "stop").stderr
    assert ray_processes.marked(mark) == {}
    assert (
        one.run("cluster", "status", "--cluster", f"127.0.0.1:{port}", check=False).returncode == 1
    )


def test_whoever_has_no_token_is_refused_and_a_node_with_it_joins(machine):
    """Two addresses of loopback stand for two machines.

    Ray listens on all interfaces then: it is said.
    """
    head = machine()
    node = machine()
    port = first_port()
    stderr = head.run(
        "cluster",
        "start",
        "--address",
        "127.0.0.2",
        "--port",
        str(port),
        "--name",
        "a",
        "--cpus",
        "1",
    ).stderr
    assert f"127.0.0.2:{port}" in stderr
    assert "warning: Ray listens on every interface" in stderr
    address = f"127.0.0.2:{port}"
    with_ip = ["--address", "127.0.0.3", "--port", str(first_port()), "--name", "b"]

    bare = node.run("cluster", "join", address, *with_ip, check=False)
    assert (
        bare.returncode,
        f"the token of the cluster at {address} is not stored here" in bare.stderr,
    ) == (2, True)
    (node.home / "token").write_text("0123456789abcdef0123456789abcdef")
    wrong = node.run(
        "cluster", "join", address, *with_ip, "--token-file", str(node.home / "token"), check=False
    )
    assert (wrong.returncode, "its token differs" in wrong.stderr) == (1, True)
    assert node.run("cluster", "token", check=False).returncode == 2, (
        "what was refused is not kept"
    )
    assert asked(address, node.env, RAY_AUTH_MODE="disabled") == "AuthenticationError"
    wrong = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0123456789abcdef0123456789abcdef"}
    assert asked(address, node.env, **wrong) == "AuthenticationError"
    right = {**wrong, "RAY_AUTH_TOKEN": head.run("cluster", "token").stdout.strip()}
    assert asked(address, node.env, **right) == "False", "let in"

    (node.home / "token").write_text(head.run("cluster", "token").stdout)
    told = ["--token-file", str(node.home / "token"), "--json"]
    joined = json.loads(node.run("cluster", "join", address, *with_ip, *told).stdout)
    assert (joined["head"], joined["address"], joined["is_head"]) == (address, "127.0.0.3", False)
    low, high = map(int, joined["ports"].split("-"))
    assert all(low <= used <= high for _, _, used in listeners(node))

    for who, here in ((head, "a"), (node, "b")):
        told = json.loads(who.run("cluster", "status", "--json").stdout)
        assert {row["name"]: row["here"] for row in told["nodes"]} == {
            "a": here == "a",
            "b": here == "b",
        }

    head.run("cluster", "stop")
    lost = node.run("cluster", "status", check=False)
    assert (lost.returncode, f"the head node at {address} is lost" in lost.stderr) == (1, True)
    assert "raylet" in processes(node).values(), "a node outlives its head"
    assert "stopped: a node" in node.run("cluster", "stop").stderr
