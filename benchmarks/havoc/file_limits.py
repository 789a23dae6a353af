"""More connections than a gateway may have open files: what is under way must survive, and all be
well after it.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import shlex
import socket
from collections.abc import Sequence
from functools import partial

from havoc.audit import check
from havoc.gateway_stage import ANSWERED, ask_once, gateway_with, good_engine
from havoc.scenario import MODEL, Scenario, ScenarioRow, Stage, chat_request
from havoc.steady import SteadyStreams

OPEN_FILES = 1024
CONNECTIONS = 4096
ADDRESSES = 64  # that they come from: no limit by address helps
STREAMS = 16
TOKENS = 100  # of 50 ms each: every one of them is under way for most of the flood
HELD_S = 3.0
LAST_ROUND = 8


async def flood_row(stage: Stage, name: str, *, workers: int) -> ScenarioRow:
    limited = Stage(stage.folder, limited_python(stage))
    with (
        good_engine() as engine,
        gateway_with(limited, engine=engine, hostile=None, workers=workers) as gateway,
    ):
        async with SteadyStreams(gateway.port, MODEL, STREAMS, TOKENS) as streams:
            opened = await asyncio.to_thread(open_connections, gateway.port)
            await asyncio.sleep(HELD_S)
            held = connected(opened)
            for connection in opened:
                connection.close()
            last_round = await ask_after_it(gateway.port)
        alive = gateway.process.poll() is None
    unanswered = [ending for ending in last_round if ending != ANSWERED]
    figures = {
        **streams.figures,
        "connections_kept": held,
        "answered_after_it": last_round.count(ANSWERED),
    }
    checks = (
        streams.survival(),
        check("the gateway lives", [] if alive else ["it ended"]),
        check("after it, all are answered", unanswered, f"{len(last_round)} requests"),
    )
    action = (
        f"{CONNECTIONS:,} connections at a limit of {OPEN_FILES:,} open files, {workers} "
        "process(es); "
        f"{STREAMS} streams under way"
    )
    return ScenarioRow(name, action, figures, checks)


def limited_python(stage: Stage) -> str:
    """Return a program that is Python with a hard limit of open files."""
    path = stage.folder / "limited-python"
    path.write_text(f'#!/bin/sh\nulimit -n {OPEN_FILES}\nexec {shlex.quote(stage.python)} "$@"\n')
    path.chmod(0o755)
    return str(path)


def open_connections(port: int) -> list[socket.socket]:
    """Return connections on which nothing is said, opened as fast as can be.

    Some may not be made in the end.
    """
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))
    opened = []
    for number in range(CONNECTIONS):
        connection = socket.socket()
        connection.setblocking(False)
        connection.bind((f"127.0.1.{1 + number % ADDRESSES}", 0))
        connection.connect_ex(("127.0.0.1", port))  # the kernel goes on with it
        opened.append(connection)
    return opened


def connected(connections: Sequence[socket.socket]) -> int:
    """Return how many are connections now that the other side has not closed."""
    count = 0
    for connection in connections:
        try:
            connection.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            with contextlib.suppress(OSError):
                connection.getpeername()
                count += 1
        except OSError:
            continue
    return count


async def ask_after_it(port: int) -> list[str]:
    request = chat_request(MODEL, 5)
    endings = await asyncio.gather(*(ask_once(port, request, 20.0) for _ in range(LAST_ROUND)))
    return [ending for ending, _ in endings]


SCENARIOS: dict[str, Scenario] = {
    "file-limit-1": partial(flood_row, workers=1),
    "file-limit-2": partial(flood_row, workers=2),
}
