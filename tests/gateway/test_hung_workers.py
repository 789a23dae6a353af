"""Relay workers that hang: clients go to the others, and the one that hangs is replaced."""

import os
import signal
from contextlib import ExitStack, suppress

import pytest
from gateway_client import (
    body,
    call,
    metrics,
    open_post,
    open_stream,
    post,
    read_all,
    read_until,
    status_of,
    until,
)
from test_workers import worker_pids

from skep.store.database import open_store

QUICK = {"silent_s": 0.5, "hangs_s": 2.0}
PATIENT = {"silent_s": 0.5, "hangs_s": 600.0}


@pytest.fixture
def relayed(serving, tmp_path):
    """Start a gateway with two workers; return it, its engine and the pids of the workers."""
    with ExitStack() as stack:

        def start(silence, **options):
            setup = {"store": str(tmp_path / "store"), "silence": silence, **options}
            gateway, engine = serving({"slots": 4, "token_ms": 20}, slots=4, workers=2, **setup)
            pids = worker_pids(gateway)
            for pid in pids.values():
                stack.callback(resume, pid)
            return gateway, engine, pids

        yield start


def resume(pid):
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def stream_by_worker(gateway, stack):
    """A stream through each worker, by its number."""
    streams = {}
    while len(streams) < 2:
        sock = stack.enter_context(open_post(gateway, body(stream=True, max_tokens=4000)))
        head = read_until(sock, b"\r\n\r\n")
        streams[int(head.split(b"x-skep: id=")[1].split(b"-")[1])] = sock
    return streams


def test_new_clients_are_served_by_others_while_a_worker_is_stopped(relayed):
    gateway, _, pids = relayed(PATIENT)
    os.kill(pids[0], signal.SIGSTOP)
    until(lambda: status_of(gateway)["silent_workers"] == 1)
    assert [post(gateway)[0] for _ in range(12)] == [200] * 12
    assert metrics(gateway)["skep_client_connections"] >= 1


def test_a_stopped_worker_is_replaced_and_its_requests_end(relayed, tmp_path):
    """Its clients' connections end; the slots come back, and the log says that the answers were
    not whole.
    """
    gateway, engine, pids = relayed(QUICK)
    with ExitStack() as stack:
        streams = stream_by_worker(gateway, stack)
        os.kill(pids[0], signal.SIGSTOP)
        assert not read_all(streams[0]).endswith(b"0\r\n\r\n")
        read_until(streams[1], b"data:")
        replaced = until(
            lambda: worker_pids(gateway).get(0) not in (None, pids[0]) and worker_pids(gateway)
        )
    assert replaced[1] == pids[1]
    engine.wait_for(running=0)
    until(lambda: status_of(gateway)["in_flight"] == 0)
    assert [post(gateway)[0] for _ in range(4)] == [200] * 4
    with open_store(tmp_path / "store", read_only=True) as store:
        until(lambda: len(store.gateway_requests()) == 6)
        assert [row.code for row in store.gateway_requests() if row.outcome == "broken"] == [
            "stream_cut"
        ]


def test_a_worker_that_goes_on_in_time_is_not_replaced(relayed):
    gateway, _, pids = relayed(PATIENT)
    with ExitStack() as stack:
        streams = stream_by_worker(gateway, stack)
        os.kill(pids[0], signal.SIGSTOP)
        until(lambda: status_of(gateway)["silent_workers"] == 1)
        os.kill(pids[0], signal.SIGCONT)
        until(lambda: status_of(gateway)["silent_workers"] == 0)
        read_until(streams[0], lambda text: text.count(b"data:") > 20)
    assert worker_pids(gateway) == pids


def test_a_decider_that_was_stopped_itself_ends_no_worker(relayed):
    gateway, _, pids = relayed({"silent_s": 0.5, "hangs_s": 1.0})
    with open_stream(gateway, max_tokens=4000) as stream:
        os.kill(gateway.process.pid, signal.SIGSTOP)
        read_until(stream, lambda text: text.count(b"data:") > 100)
        os.kill(gateway.process.pid, signal.SIGCONT)
        read_until(stream, lambda text: text.count(b"data:") > 40)
        assert worker_pids(gateway) == pids
    assert call(gateway, "GET", "/health")[0] == 200
