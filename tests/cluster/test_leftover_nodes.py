"""What a machine still has of a cluster is ended for the next one on proof only, and the next head is asked first."""

import contextlib
import os
import socket
import subprocess
import sys
from dataclasses import replace

import pytest

from skep.cluster.connect import STRANGER, checked_connection, explained
from skep.cluster.node_commands import Head, LeftoverNode, _make_way, why_over
from skep.cluster.node_file import NodeRecord, keep_token, read_node, write_node
from skep.cluster.ray_command import MARK
from skep.errors import EngineError, UserError
from skep.paths import user_paths
from skep.wire.listen import free_port

OURS, OTHERS, TOKEN = "session_1", "session_2", "0123456789abcdef"
LOST = "whose head is lost, with its replicas"
NAMED = """
import sys
with open("/proc/self/comm", "w") as comm:
    comm.write(sys.argv[1])
print(flush=True)
sys.stdin.read()
"""


@pytest.fixture
def paths(tmp_path):
    return user_paths({"HOME": str(tmp_path)})


@pytest.fixture
def listening():
    """HOST:PORT where somebody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@contextlib.contextmanager
def running(paths, *names, head="127.0.0.1:1", is_head=True):
    """The record of a node, and real processes with its mark and these names."""
    mark = f"test-{os.getpid()}-{os.urandom(4).hex()}"
    write_node(paths, NodeRecord(head, "127.0.0.1", is_head, "a", "6379-7499", mark))
    with contextlib.ExitStack() as stack:
        made = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-S", "-c", NAMED, name],
                    env={**os.environ, MARK: mark}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                )
            )
            for name in names
        ]  # fmt: skip
        for child in made:
            child.stdout.readline()
        try:
            yield made
        finally:
            for child in made:
                child.kill()


def node_at(head, *, is_head=False):
    return LeftoverNode(NodeRecord(head, "127.0.0.1", is_head, "b", "6379-7499", "m"), OURS, {"raylet"}, TOKEN)


def says(session):
    """A head that answers whoever has the cluster's token."""

    def ask(address, token):
        if token != TOKEN:
            raise EngineError(f"the cluster at {address} refuses the connection: it has another token")
        return Head(address, session)

    return ask


def nobody(address, _token):
    raise AssertionError(f"{address} was asked")


def test_while_its_own_head_answers_a_node_is_not_ended_wherever_it_is_to_go(listening):
    """Once the old head was asked with the token of the new one, refused it, and was taken for a lost one."""
    remains = node_at(listening)
    for to in (None, Head("10.0.0.9:6379", OTHERS), Head(listening, OURS), Head("its-other-name:6379", OURS)):
        with pytest.raises(UserError, match=f"already a node of the cluster at {listening}"):
            why_over(remains, to, says(OURS))
    assert LOST in why_over(remains, None, says(OTHERS)), "a new cluster has its address"
    assert LOST in why_over(remains, Head("10.0.0.9:6379", OTHERS), says(OTHERS))
    assert LOST in why_over(replace(remains, token="of the old cluster"), Head(listening, OTHERS), nobody)


def test_a_head_that_refuses_to_say_proves_nothing(listening):
    for remains, why in (
        (replace(node_at(listening), token="another-token-for-it"), "it has another token"),
        (replace(node_at(listening), token=None), "its token is not stored here"),
        (replace(node_at(listening), session=None), "its session is not recorded"),
    ):
        for to in (None, Head("10.0.0.9:6379", OTHERS)):
            with pytest.raises(UserError, match="already") as told:
                why_over(remains, to, says(OTHERS))
            assert why in told.value.hint
            assert "`skep cluster stop` leaves it" in told.value.hint


def test_a_head_that_does_not_answer_is_lost_unless_it_may_only_be_cut_off():
    """Who joins has been let in by another head. Who starts one has reached nobody."""
    remains = node_at(f"127.0.0.1:{free_port()}")
    assert LOST in why_over(remains, Head("10.0.0.9:6379", OTHERS), nobody)
    with pytest.raises(UserError, match="already") as told:
        why_over(remains, None, nobody)
    assert "may only be unreachable: `skep cluster stop` leaves it" in told.value.hint
    assert LOST in why_over(node_at(remains.node.head, is_head=True), None, nobody), "it would be here"


def test_what_a_node_left_behind_is_ended_before_the_next_one(paths):
    """Where nobody buries a dead raylet, its workers do not notice: they and their engines would never be ended."""
    said = []
    with running(paths, "ray::ReplicaActor") as (child,):
        _make_way(paths, said.append)
        assert child.wait(5) != 0
    assert said == ["ended: processes left over from a node of the cluster at 127.0.0.1:1"]
    assert read_node(paths) is None


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (
            ("gcs_server", "ray::ReplicaActor"),
            "the head of the cluster at 127.0.0.1:1 still runs here, only its raylet",
        ),
        (("gcs_server", "raylet"), "this machine is already a node of the cluster at 127.0.0.1:1"),
    ],
)  # fmt: skip
def test_a_living_head_is_never_ended(paths, names, why):
    """Its raylet may be gone, for memory: the other nodes would meet a new head, and end themselves."""
    with running(paths, *names) as children:
        for joined in (None, lambda: Head("10.0.0.9:6379", OTHERS)):
            with pytest.raises(UserError, match=why) as told:
                _make_way(paths, pytest.fail, joined)
            assert "`skep cluster stop`" in told.value.hint
        assert [child.poll() for child in children] == [None, None]
    assert read_node(paths) is not None


def test_where_the_next_head_refuses_nothing_is_ended(paths):
    """A mistyped token, or another Ray, once cost a machine what it still served."""

    def refused():
        raise EngineError("it has another token")

    keep_token(paths, TOKEN)
    for names in (["raylet"], ["ray::ReplicaActor"]):
        with running(paths, *names) as (child,):
            with pytest.raises(EngineError, match="it has another token"):
                _make_way(paths, pytest.fail, refused)
            assert child.poll() is None


def test_auto_on_a_node_whose_head_is_lost_is_told_at_once(paths, tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("XDG_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    head = f"127.0.0.1:{free_port()}"
    with running(paths, "raylet", head=head):
        for address in ("auto", head):
            with pytest.raises(EngineError, match=f"the head at {head} is lost; this machine was a node of it"):
                checked_connection(address)
    assert checked_connection("auto").head == "auto"


def test_a_refused_token_is_told_as_that_and_not_as_a_strange_machine():
    """Ray gives it with a traceback, which names its own files `node.py` and `_raylet.pyx`."""
    cause = RuntimeError(
        "Failed to connect to GCS. Last connection error: Traceback (most recent call last):\n"
        '  File "ray/_private/node.py", line 996, in _init_gcs_client\n'
        '  File "python/ray/_raylet.pyx", line 3198, in ray._raylet.GcsClient.__cinit__\n'
        "ray.exceptions.AuthenticationError: InvalidAuthToken: Authentication token is missing or incorrect"
    )
    error = ConnectionError("Failed to connect to Ray cluster at 10.0.0.1:6379")
    error.__cause__ = cause
    for address in ("10.0.0.1:6379", "auto"):
        assert "it has another token" in explained(address, error).message
    assert explained("10.0.0.1:6379", RuntimeError("No node info found for this raylet")).message.startswith(STRANGER)
    slow = RuntimeError('Traceback:\n  File "ray/_private/node.py"\n  File "python/ray/_raylet.pyx"\nTimed out')
    assert "cannot be joined: Timed out" in explained("10.0.0.1:6379", slow).message
