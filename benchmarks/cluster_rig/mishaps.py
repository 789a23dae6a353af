"""What takes time in a cluster besides serving: starting, a node that dies."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import httpx
from cluster_rig.rig import Door, Kind, Nodes, hive, installation, until, wishes

Say = Callable[[str], None]
ASK_EVERY_S = 0.1


def starts(nodes: Nodes, kind: Kind, rounds: int, say: Say) -> dict[str, list[float]]:
    """`skep up -d` to ready and `skep down`, on the cluster and without, in turns; Ray's processes
    are there always.
    """
    found: dict[str, list[float]] = {
        "up": [],
        "up --cluster": [],
        "down": [],
        "down --cluster": [],
    }
    for number in range(rounds):
        both = ((None, ""), (nodes.address, " --cluster"))
        for address, how in both if number % 2 == 0 else both[::-1]:
            say(f"skep up{how}, {number + 1} of {rounds}")
            with installation() as door:
                found[f"up{how}"].append(door.start("up", *wishes(door, kind, address)))
                found[f"down{how}"].append(door.down())
    return found


@dataclass(frozen=True)
class Move:
    """Seconds from the death of a node. `noticed`: `skep ps` no longer calls its replica ready."""

    noticed_s: float
    placed_s: float  # its post stands on another node
    ready_s: float
    answered_s: float  # the first request that was sent after the death has its answer
    refused: int  # requests that were told so meanwhile


def moves(nodes: Nodes, kind: Kind, rounds: int, say: Say) -> list[Move]:
    """One replica, asked all the time; its node is killed;
    a fresh node comes for the next round.
    """
    found = []
    with hive(kind, nodes.address, replicas=1) as door:
        for number in range(rounds):
            say(f"a node is killed, {number + 1} of {rounds}")
            found.append(_move(nodes, door, kind))
            nodes.add()
            time.sleep(2.0)  # it is a node of the cluster when its resources are known
    return found


def _move(nodes: Nodes, door: Door, kind: Kind) -> Move:
    (before,) = door.replicas()
    with _Asking(door.url, kind.model) as asking:
        until(lambda: asking.answered_at)
        asking.from_now()
        killed = time.monotonic()
        nodes.kill(before["node"])

        def seen(is_so: Callable[[dict[str, Any]], bool]) -> float:
            return until(lambda: any(is_so(row) for row in door.replicas())) - killed

        noticed = seen(lambda row: row["state"] != "ready" or row["node"] != before["node"])
        placed = seen(lambda row: row["node"] not in (before["node"], None))
        ready = seen(lambda row: row["state"] == "ready" and row["node"] != before["node"])
        answered = until(lambda: asking.answered_at and asking.answered_at[-1] > killed) - killed
    return Move(noticed, placed, ready, answered, asking.refused)


class _Asking:
    """One short request after another, until the block ends."""

    def __init__(self, url: str, model: str) -> None:
        self._url = url
        self._model = model
        self.answered_at: list[float] = []  # of requests that were sent after `from_now`
        self.refused = 0
        self._since = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask_on, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def from_now(self) -> None:
        self._since = time.monotonic()
        self.refused = 0
        self.answered_at = []

    def _ask_on(self) -> None:
        body = {
            "model": self._model,
            "max_tokens": 1,
            "messages": [{"role": "user", "content": "hello"}],
        }
        with httpx.Client(base_url=self._url, timeout=120.0) as client:
            while not self._over.is_set():
                sent = time.monotonic()
                try:
                    is_answered = client.post("/v1/chat/completions", json=body).status_code == 200
                except httpx.HTTPError:
                    is_answered = False
                if sent >= self._since:
                    self.refused += not is_answered
                    if is_answered:
                        self.answered_at.append(time.monotonic())
                self._over.wait(ASK_EVERY_S)
