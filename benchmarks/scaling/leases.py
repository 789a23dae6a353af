"""What one renewal of one of many doors costs the ledger. No Ray: the real ledger is called, and messages are pickled.

Every door renews every 0.4 s of virtual time, and has its part of the slots when it begins. *rest*: all slots are in
use, and nothing changes. *waiting*: so they are, but for one at a tenth of a door's replicas, every time others; and
two doors have requests that wait, more or fewer from one renewal to the next. A skep from before doors said only what
is new (no `renewals`) is asked as its doors asked it.
"""

from __future__ import annotations

import pickle
import statistics
import time
from collections.abc import Coroutine
from importlib.util import find_spec
from random import Random
from typing import Any

from scaling.traffic import table

from skep.cluster.ledger import Ledger

EVERY_S = 0.4
SETTLE, ROUNDS = 40, 20  # at most so many rounds of all doors; measured are 8 s of virtual time
NEWS_ONLY = find_spec("skep.cluster.renewals") is not None


def doors(replicas: int, many: int, limit_s: float) -> dict[str, Any]:
    """`limit_s`: of wall time, for each of both; what is not settled by then is measured as it is."""
    found = {what: Hive(replicas, many).measured(what, limit_s) for what in ("rest", "waiting")}
    return {"replicas": replicas, "doors": many, **found, "row_us": row_us(replicas, many)}


class Hive:
    def __init__(self, replicas: int, many: int) -> None:
        self.now = 100.0
        self.rng = Random(11)
        self.ledger = Ledger("h", end_post=_never, end_self=_never, now=lambda: self.now)
        self.rows = {spec.name: row(spec.name, spec.slots) for spec in table(replicas)}
        self.names = list(self.rows)
        if NEWS_ONLY:
            for name, said in self.rows.items():
                at_once(self.ledger.announce(name, said))
        else:  # one after the other, the sums of all that came before are made for each: hours
            self.ledger._rows = dict(self.rows)  # noqa: SLF001
            self.ledger._changed()  # noqa: SLF001
        self.doors = [Door(f"d{number}") for number in range(many)]

    def measured(self, what: str, limit_s: float) -> dict[str, Any]:
        until, took, sizes, settled = time.monotonic() + limit_s, [], [], 0
        for _ in range(SETTLE):
            changed = [self.renew(door, "idle")[2] for door in self.doors]
            settled += not any(changed)
            if settled == 2 or time.monotonic() > until - limit_s / 2:
                break
        for door in self.doors:
            self.renew(door, what)
        for number in range(ROUNDS * len(self.doors)):
            ms, size, _ = self.renew(self.doors[number % len(self.doors)], what)
            took.append(ms)
            sizes.append(size)
            if number >= 2 and time.monotonic() > until:
                break
        mean = statistics.mean(took)
        return {
            "mean_ms": mean, "p50_ms": statistics.median(took), "max_ms": max(took), "renewals": len(took),
            "settled": settled == 2, "virtual_s": len(took) * EVERY_S / len(self.doors),
            "bytes": statistics.mean(sizes), "cores": mean / 1000 * len(self.doors) / EVERY_S,
        }  # fmt: skip

    def renew(self, door: Door, what: str) -> tuple[float, int, bool]:
        """CPU ms of the ledger, bytes of both messages, and whether a share has changed."""
        self.now += EVERY_S / len(self.doors)
        waits = what == "waiting" and door in self.doors[:2]
        if what != "idle":
            door.work(self.rng if what == "waiting" else None, self.names)
        said, since = door.question()
        told = {"models": {"m": {"queued": self.rng.randint(30, 70) if waits else 0}}, "drained": []}
        question = pickle.dumps((said, told, since), protocol=5)
        began = time.thread_time_ns()
        (busy, holds), told, since = pickle.loads(question)
        more = {"since": since} if NEWS_ONLY else {}
        answer = at_once(self.ledger.renew(door.name, busy, holds, told, **more))
        reply = pickle.dumps(answer, protocol=5)
        ms = (time.thread_time_ns() - began) / 1e6
        return ms, len(question) + len(reply), door.take(answer)


class Door:
    def __init__(self, name: str) -> None:
        self.name = name
        self.holds: dict[str, int] = {}
        self.busy: dict[str, int] = {}
        if NEWS_ONLY:
            from skep.cluster.renewals import Renewals

            self.renewals = Renewals()

    def work(self, rng: Random | None, names: list[str]) -> None:
        """All that it may, but for a slot here and there."""
        self.busy = dict(self.holds)
        for name in rng.sample(names, max(1, len(names) // 10)) if rng else ():
            self.busy[name] = max(0, self.holds.get(name, 0) - 1)

    def question(self) -> tuple[tuple[Any, Any], int | None]:
        if not NEWS_ONLY:
            return (self.busy, {name: share for name, share in self.holds.items() if share}), None
        said = self.renewals.question(self.busy, self.holds)
        return (said["busy"], said["holds"]), said["since"]

    def take(self, answer: dict[str, Any]) -> bool:
        if NEWS_ONLY:
            assert self.renewals.heard(answer)
        before, self.holds = self.holds, {**self.holds, **answer["shares"]}
        return before != self.holds


def row_us(replicas: int, many: int) -> float:
    """CPU us of a post's word that says something new, such as its state; median of 20."""
    hive, took = Hive(replicas, many), []
    for door in hive.doors:
        hive.renew(door, "idle")
    for number in range(20):
        name = hive.names[number % len(hive.names)]
        said = {**hive.rows[name], "why": str(number)}
        began = time.thread_time_ns()
        at_once(hive.ledger.announce(name, said))
        took.append(time.thread_time_ns() - began)
    return statistics.median(took) / 1000


def row(name: str, slots: int) -> dict[str, Any]:
    told = {"name": name, "model": "m", "slots": slots, "state": "ready", "why": None, "node": "n", "url": "http://n:1"}
    return {**told, "incarnation": f"{name}-1"}


def at_once(work: Coroutine[Any, Any, Any]) -> Any:
    """What it returns: it waits for nothing."""
    try:
        work.send(None)
    except StopIteration as ended:
        return ended.value
    raise AssertionError("it waits")


async def _never(*_: object) -> Any:
    raise AssertionError
