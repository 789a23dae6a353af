"""This machine as a node: its record, its token, its processes; and questions to its Ray."""

import contextlib
import importlib
import os
import subprocess
import sys
import time

import pytest
from msgspec import to_builtins

from skep.cluster import ray_processes
from skep.cluster.connect import NOT_A_NODE, ask_ray, checked_connection, explained
from skep.cluster.discover import rows_of
from skep.cluster.node_commands import _make_way, stop_node
from skep.cluster.ray_processes import (
    MARK,
    NodeRecord,
    RayConnection,
    connection_to,
    folder_of,
    keep_token,
    read_node,
    token_of,
    token_path,
    write_node,
)
from skep.errors import DoesNotFit, EngineError, UserError
from skep.host.processes import living
from skep.paths import user_paths
from skep.wire.listen import free_port

NAMED = """
import sys
with open("/proc/self/comm", "w") as comm:
    comm.write(sys.argv[1])
print(flush=True)
sys.stdin.read()
"""


def new_mark():
    return f"test-{os.getpid()}-{os.urandom(4).hex()}"


@pytest.fixture
def paths(tmp_path):
    return user_paths({"HOME": str(tmp_path)})


@pytest.fixture
def raylet():
    """A real process that carries the mark."""
    mark = new_mark()
    child = subprocess.Popen(
        [sys.executable, "-S", "-c", NAMED, "raylet"],
        env={**os.environ, MARK: mark},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        child.stdout.readline()
        yield mark, child
    finally:
        child.kill()
        child.communicate()


def node_with(mark, address="127.0.0.1"):
    return NodeRecord(f"{address}:6379", address, True, "a", "6379-7499", mark)


def test_a_driver_learns_the_way_from_the_node_that_runs_here(paths, tmp_path, raylet):
    mark, _ = raylet
    env = {"HOME": str(tmp_path)}
    assert connection_to("auto", env) == RayConnection("auto")
    write_node(paths, node_with("nobody-has-it"))
    assert connection_to("auto", env) == RayConnection("auto"), "what is written down runs no more"
    write_node(paths, node_with(mark))
    way = connection_to("auto", env)
    assert (way.head, way.node) == ("127.0.0.1:6379", "127.0.0.1")
    assert way.environment["RAY_AUTH_TOKEN_PATH"] == str(token_path(paths))
    assert connection_to("127.0.0.1:6379", env) == way
    assert connection_to("10.0.0.9:6379", env) == RayConnection("10.0.0.9:6379"), "another cluster"


def test_a_record_of_another_version_is_none(paths):
    write_node(paths, node_with("m"))
    assert to_builtins(read_node(paths))["mark"] == "m"
    (paths.state / "ray-node.json").write_text('{"head": 1}')
    assert read_node(paths) is None
    assert stop_node(paths) == (None, [])


def test_only_processes_with_the_mark_are_found_and_ended(paths, raylet):
    mark, child = raylet
    assert ray_processes.marked(mark) == {child.pid: "raylet"}
    assert ray_processes.marked(mark[:-1]) == {}
    write_node(paths, node_with(mark))
    assert stop_node(paths) == (node_with(mark), [])
    child.wait(5)
    assert read_node(paths) is None


def test_a_child_that_wrote_over_its_mark_ends_with_its_node():
    """As Ray's agents do, with their title.

    Where the raylet had to be killed, they held their ports on and on.
    """
    mark = new_mark()
    parent = (
        "import subprocess, sys; print(subprocess.Popen(['sleep', '600'], env={}).pid, "
        "flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-S", "-c", parent],
        env={**os.environ, MARK: mark},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        agent = int(child.stdout.readline())
        assert list(ray_processes.marked(mark)) == [child.pid]
        assert ray_processes.end(mark) == []
        assert until_over(agent)


def until_over(pid):
    deadline = time.monotonic() + 5.0
    while pid in living() and time.monotonic() < deadline:
        time.sleep(0.01)
    return pid not in living()


def test_the_token_is_nobody_elses(paths):
    with pytest.raises(UserError, match="this machine has no cluster token"):
        token_of(paths)
    keep_token(paths, "a-token-for-it-all")
    assert (token_of(paths), token_path(paths).stat().st_mode & 0o777) == (
        "a-token-for-it-all",
        0o600,
    )
    token_path(paths).chmod(0o644)
    with pytest.raises(UserError, match="other users can read the token"):
        token_of(paths)


def test_rays_folder_leaves_room_for_the_names_of_its_sockets(paths):
    longest = "session_2026-12-31_23-59-59_999999_4194304/sockets/plasma_store"
    assert len(str(folder_of(paths) / longest)) < 103


def test_a_roll_has_every_node_its_replicas_and_the_dead_that_did_not_come_back():
    def row(node, name, address, *, alive=True, **has):
        return {
            "NodeID": node,
            "NodeName": name,
            "NodeManagerAddress": address,
            "Alive": alive,
            "Resources": has,
        }

    nodes = [
        row("1", "b", "10.0.0.2", CPU=4.0, memory=8.0),
        row("2", "a", "10.0.0.1", CPU=2.0, **{"node:__internal_head__": 1.0}),
        row("3", "c", "10.0.0.3", alive=False),
        row("4", "b", "10.0.0.2", alive=False),
    ]
    record = {
        "hive": "skep",
        "launch": {"model": "m"},
        "row": {"name": "m-0", "node_id": "1", "state": "ready"},
    }
    rows = rows_of(nodes, {"1": {"CPU": 3.0}}, [record])
    assert [(row["name"], row["alive"], row["head"]) for row in rows] == [
        ("a", True, True),
        ("b", True, False),
        ("c", False, False),
    ]
    assert (rows[1]["cpus"], rows[1]["free_cpus"]) == (4.0, 3.0)
    (standing,) = rows[1]["replicas"]
    assert [standing[key] for key in ("hive", "name", "model", "state")] == [
        "skep",
        "m-0",
        "m",
        "ready",
    ]


@contextlib.contextmanager
def node_processes(paths, *names, head="127.0.0.1:1", is_head=True):
    """The record of a node, and real processes with its mark and these names."""
    mark = new_mark()
    write_node(paths, NodeRecord(head, "127.0.0.1", is_head, "a", "6379-7499", mark))
    with contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-S", "-c", NAMED, name],
                    env={**os.environ, MARK: mark},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                )
            )
            for name in names
        ]
        for child in processes:
            child.stdout.readline()
        try:
            yield processes
        finally:
            for child in processes:
                child.kill()


def test_what_outlived_a_dead_raylet_is_ended_before_the_next_one(paths):
    """Its workers do not notice: they and their engines would never be ended."""
    with node_processes(paths, "ray::ReplicaActor") as (child,):
        _make_way(paths)
        assert child.wait(5) != 0
    assert read_node(paths) is None


@pytest.mark.parametrize("names", [("gcs_server", "ray::ReplicaActor"), ("raylet",)])
def test_what_still_runs_is_ended_by_the_user_only(paths, names):
    with node_processes(paths, *names) as children:
        with pytest.raises(UserError, match="already a node of the cluster") as raised:
            _make_way(paths)
        assert "`skep cluster stop`" in raised.value.hint
        assert not any(child.poll() for child in children)
    assert read_node(paths) is not None


def test_auto_on_a_node_whose_head_is_lost_is_told_at_once(paths, tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("XDG_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    head = f"127.0.0.1:{free_port()}"
    with node_processes(paths, "raylet", head=head):
        for address in ("auto", head):
            with pytest.raises(
                EngineError, match=f"the head node at {head} is lost; this machine was its node"
            ):
                checked_connection(address)
    assert checked_connection("auto").head == "auto"


def test_a_refused_token_is_told_as_that_and_not_as_a_strange_machine():
    """Ray gives it with a traceback, which names its own files `node.py` and `_raylet.pyx`."""
    cause = RuntimeError(
        "Failed to connect to GCS. Last connection error: Traceback (most recent call last):\n"
        '  File "ray/_private/node.py", line 996, in _init_gcs_client\n'
        '  File "python/ray/_raylet.pyx", line 3198, in ray._raylet.GcsClient.__cinit__\n'
        "ray.exceptions.AuthenticationError: InvalidAuthToken: Authentication token is "
        "missing or incorrect"
    )
    error = ConnectionError("Failed to connect to Ray cluster at 10.0.0.1:6379")
    error.__cause__ = cause
    for address in ("10.0.0.1:6379", "auto"):
        assert "its token differs" in explained(address, error).message
    assert explained(
        "10.0.0.1:6379", RuntimeError("No node info found for this raylet")
    ).message.startswith(NOT_A_NODE)
    slow = RuntimeError(
        'Traceback:\n  File "ray/_private/node.py"\n  File "python/ray/_raylet.pyx"\nTimed out'
    )
    assert "cannot be joined: Timed out" in explained("10.0.0.1:6379", slow).message


# A question to Ray in a process of its own

CHILD = """
import os, sys, time
from skep.errors import DoesNotFit, UserError

def find(word, token):
    print("what Ray prints is no answer", flush=True)
    os.write(1, b"nor what its C++ part writes\\n")
    match word:
        case "answers":
            timeout_s = os.environ["RAY_gcs_server_request_timeout_seconds"]
            return {"heard": token, "impatient": timeout_s}
        case "refuses":
            raise UserError("no such node", hint="look again")
        case "has no room":
            raise DoesNotFit("2 cards are wanted, the cluster has 1")
        case "hangs":
            time.sleep(600)
    sys.exit("it broke")
"""


@pytest.fixture
def ask(tmp_path, monkeypatch):
    (tmp_path / "asking_child.py").write_text(CHILD)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    find = importlib.import_module("asking_child").find

    def run(word, wait_s=60.0):
        return ask_ray(find, word, "a token", subject="the cluster", wait_s=wait_s, hint="wait")

    yield run
    del sys.modules["asking_child"]


def test_only_what_the_child_tells_is_its_answer(ask):
    assert ask("answers") == {"heard": "a token", "impatient": "8"}


@pytest.mark.parametrize(
    ("word", "error", "message", "hint"),
    [
        ("refuses", UserError, "no such node", "look again"),
        ("has no room", DoesNotFit, "2 cards are wanted, the cluster has 1", None),
        ("breaks", EngineError, "the cluster cannot be queried: it broke", "wait"),
    ],
)
def test_an_error_of_the_child_is_raised_here(ask, word, error, message, hint):
    with pytest.raises(error) as caught:
        ask(word)
    assert (type(caught.value), caught.value.message, caught.value.hint) == (error, message, hint)


def test_a_child_that_hangs_is_ended_and_told(ask):
    with pytest.raises(EngineError, match=r"the cluster did not answer within 0\.2 s"):
        ask("hangs", wait_s=0.2)
