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
    machines = []

    def make():
        machines.append(install())
        return machines[-1]

    yield make
    for started in reversed(machines):
        started.run("cluster", "stop", check=False)
        shutil.rmtree(folder_of(user_paths(started.env)).parent, ignore_errors=True)


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
    sockets = []
    for line in subprocess.run(
        ["ss", "-Hltnp"], capture_output=True, text=True, check=True
    ).stdout.splitlines():
        address, _, port = line.split()[3].rpartition(":")
        held_by = [names[int(pid)] for pid in re.findall(r"pid=(\d+)", line) if int(pid) in names]
        sockets += [(name, address.strip("[]"), int(port)) for name in held_by]
    return sockets


def environ(pid):
    words = Path(f"/proc/{pid}/environ").read_text().split("\0")
    return dict(word.split("=", 1) for word in words if "=" in word)


def answer_of_head(address, env, **auth):
    """Return what the head answers to a program that is not skep."""
    argv = [sys.executable, "-c", ASK, address]
    done = subprocess.run(argv, env={**env, **auth}, capture_output=True, text=True, timeout=60)
    return done.stdout.strip() or done.stderr[-500:]


def check_loopback_only(machine, port):
    """Assert that all of Ray listens on loopback, on ports from this one on."""
    sockets = listeners(machine)
    assert {name for name, _, _ in sockets} >= {"gcs_server", "raylet"}
    assert {address.removeprefix("::ffff:") for _, address, _ in sockets} == {"127.0.0.1"}
    assert all(port <= used <= port + 1020 for _, _, used in sockets)


def check_secrecy(machine):
    """Assert that Ray reports nothing, and that no process shows the token."""
    raylet = next(pid for pid, name in processes(machine).items() if name == "raylet")
    assert environ(raylet)["RAY_USAGE_STATS_ENABLED"] == "0"
    token = machine.run("cluster", "token").stdout.strip()
    for pid, name in processes(machine).items():
        for file in ("environ", "cmdline"):
            assert token not in Path(f"/proc/{pid}/{file}").read_text(), name


def test_a_cluster_of_this_machine_alone_listens_on_loopback_only_and_ends_whole(machine):
    host = machine()
    port = first_port()
    done = host.run("cluster", "start", "--port", str(port), "--name", "alone", "--json")
    document = json.loads(done.stdout)
    assert (document["head"], document["name"]) == (f"127.0.0.1:{port}", "alone")
    assert "it listens on loopback only" in done.stderr
    assert "mark" not in document

    (node,) = json.loads(host.run("cluster", "status", "--json").stdout)["nodes"]
    assert (node["name"], node["alive"], node["here"], node["replicas"]) == (
        "alone",
        True,
        True,
        [],
    )

    check_loopback_only(host, port)
    check_secrecy(host)
    check_refused(host, 2, "already a node of the cluster", "start")
    check_refused(machine(), 2, f"port {port} is in use", "start", "--port", str(port))

    mark = read_node(user_paths(host.env)).mark
    assert "stopped: the head" in host.run("cluster", "stop").stderr
    assert ray_processes.marked(mark) == {}
    assert (
        host.run("cluster", "status", "--cluster", f"127.0.0.1:{port}", check=False).returncode
        == 1
    )


def check_authentication(address, env, token):
    """Assert that the head lets in a program with the token, and no other."""
    assert answer_of_head(address, env, RAY_AUTH_MODE="disabled") == "AuthenticationError"
    wrong = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0123456789abcdef0123456789abcdef"}
    assert answer_of_head(address, env, **wrong) == "AuthenticationError"
    right = {**wrong, "RAY_AUTH_TOKEN": token}
    assert answer_of_head(address, env, **right) == "False", "let in"


def check_refused(machine, code, message, *arguments):
    """Assert that a command of `skep cluster` fails with this code and message."""
    done = machine.run("cluster", *arguments, check=False)
    assert (done.returncode, message in done.stderr) == (code, True)


def check_joined(joined, address, node):
    """Assert that the document of a join names the node, and that it keeps to its ports."""
    assert (joined["head"], joined["address"], joined["is_head"]) == (address, "127.0.0.3", False)
    low, high = map(int, joined["ports"].split("-"))
    assert all(low <= used <= high for _, _, used in listeners(node))


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

    not_stored = f"the token of the cluster at {address} is not stored here"
    check_refused(node, 2, not_stored, "join", address, *with_ip)
    token_file = str(node.home / "token")
    (node.home / "token").write_text("0123456789abcdef0123456789abcdef")
    join_wrongly = ("join", address, *with_ip, "--token-file", token_file)
    check_refused(node, 1, "its token differs", *join_wrongly)
    assert node.run("cluster", "token", check=False).returncode == 2, (
        "what was refused is not kept"
    )
    check_authentication(address, node.env, head.run("cluster", "token").stdout.strip())

    (node.home / "token").write_text(head.run("cluster", "token").stdout)
    options = ["--token-file", token_file, "--json"]
    joined = json.loads(node.run("cluster", "join", address, *with_ip, *options).stdout)
    check_joined(joined, address, node)

    for installation, name in ((head, "a"), (node, "b")):
        status = json.loads(installation.run("cluster", "status", "--json").stdout)
        assert {row["name"]: row["here"] for row in status["nodes"]} == {
            "a": name == "a",
            "b": name == "b",
        }

    head.run("cluster", "stop")
    check_refused(node, 1, f"the head node at {address} is lost", "status")
    assert "raylet" in processes(node).values(), "a node outlives its head"
    assert "stopped: a node" in node.run("cluster", "stop").stderr
