"""More connections than a gateway may have open: streams go on, and everybody is served again
afterwards.
"""

import http.client
import math
import resource
import socket
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from gateway_client import metrics, open_stream, post, read_until, until

OPEN_FILES = 128
FLOOD = 400
BOTH = pytest.mark.parametrize("workers", [1, 2])


@pytest.fixture
def scarce(serving):
    """Start a gateway that may open few files,
    in front of an engine with slots for all streams.
    """

    def start(workers, **setup):
        return serving(
            {"slots": 16, "token_ms": 20},
            slots=16,
            workers=workers,
            open_files=OPEN_FILES,
            **setup,
        )

    return start


def flood(gateway, stack, count=FLOOD):
    """Open connections that send nothing, as many as the kernel takes for the gateway."""
    for _ in range(count):
        client = stack.enter_context(socket.socket())
        client.setblocking(False)
        client.connect_ex(("127.0.0.1", gateway.port))


def is_served(gateway):
    """Return whether a request is answered: until the gateway has closed the flood, it may be
    refused or dropped.
    """
    with suppress(OSError, http.client.HTTPException):
        return post(gateway)[0] == 200
    return False


def connections(gateway):
    """Return how many connections the gateway counts; infinitely many while it refuses to say."""
    with suppress(OSError, http.client.HTTPException, ValueError):
        return metrics(gateway)["skep_client_connections"]
    return math.inf


def refused(gateway):
    name = "skep_connections_refused_total"
    return {key: value for key, value in metrics(gateway).items() if key.startswith(name)}


def processes_of(gateway):
    children = Path(f"/proc/{gateway.process.pid}/task/{gateway.process.pid}/children").read_text()
    return {gateway.process.pid, *map(int, children.split())}


def open_files(pid):
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


@BOTH
def test_streams_survive_more_connections_than_files(scarce, workers):
    """A worker took a connection that the kernel had dropped for the end of the gateway, and ended
    itself.
    """
    gateway, engine = scarce(workers)
    with ExitStack() as stack:
        streams = [stack.enter_context(open_stream(gateway, max_tokens=60)) for _ in range(8)]
        before = processes_of(gateway)
        flood(gateway, stack)
        answers = [read_until(stream, b"0\r\n\r\n") for stream in streams]
    assert [b"[DONE]" in answer for answer in answers] == [True] * 8
    assert processes_of(gateway) == before
    assert engine.state()["hangups"] == 0


@BOTH
def test_after_a_flood_everybody_is_served_again(scarce, workers):
    gateway, _ = scarce(workers)
    with ExitStack() as stack:
        flood(gateway, stack)
        until(lambda: any(open_files(pid) > OPEN_FILES // 2 - 32 for pid in processes_of(gateway)))
    until(lambda: connections(gateway) <= 2)
    assert [post(gateway)[0] for _ in range(20)] == [200] * 20
    assert sum(refused(gateway).values()) > 0


def test_connections_that_the_kernel_drops_are_counted_and_end_no_worker(serving):
    """The limit of files is lowered while the workers run:
    they believe that they have thousands.
    """
    gateway, _ = serving({"slots": 8, "token_ms": 20}, slots=8, workers=2)
    with ExitStack() as stack:
        streams = [stack.enter_context(open_stream(gateway, max_tokens=60)) for _ in range(4)]
        workers = processes_of(gateway) - {gateway.process.pid}
        for pid in workers:
            files = open_files(pid) + 4
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (files, files))
        flood(gateway, stack, 60)
        answers = [read_until(stream, b"0\r\n\r\n") for stream in streams]
    assert [b"[DONE]" in answer for answer in answers] == [True] * 4
    assert processes_of(gateway) - {gateway.process.pid} == workers
    until(lambda: is_served(gateway))
    assert refused(gateway)['skep_connections_refused_total{why="files"}'] > 0
    until(lambda: connections(gateway) <= 2)
