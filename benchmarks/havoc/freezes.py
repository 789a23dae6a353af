"""Processes of skep that stand still (SIGSTOP): others serve on within 3 s, and after 10 s there
is a new one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from havoc.audit import Check, check
from havoc.gateway_stage import (
    ANSWERED,
    HANGS,
    ask_once,
    ended_with,
    gateway_with,
    good_engine,
)
from havoc.line import Line
from havoc.scenario import MODEL, Scenario, ScenarioRow, Stage, chat_request
from havoc.unread import own_folders

from skep.host.processes import descendants

NOTICED_S = (
    3.5  # a process that was silent for 3 s gets nothing new; it is looked at 4 times a second
)
REPLACED_S = 10.0  # after that it is killed
SLACK_S = 4.0  # to start another one on a busy machine
OBSERVED_S = REPLACED_S + SLACK_S + 2.0
CLIENTS = 24
TOKENS = 10  # of 50 ms each
VISIT_EVERY_S = 0.1
LAST_ROUND = 8
COMMAND_S = 60


@dataclass(slots=True)
class FreezeVisit:
    """One request, timed from the moment at which the process was stopped."""

    begun_s: float
    ended_s: float = 0.0
    ending: str = HANGS

    @property
    def took_s(self) -> float:
        return self.ended_s - self.begun_s


@dataclass(slots=True)
class FreezeLog:
    """What is seen of one stopped process."""

    stopped_at: float = 0.0
    under_way: list[FreezeVisit] = field(default_factory=list)  # requests that began before it
    # Each on a connection of its own, which it keeps.
    newcomers: list[FreezeVisit] = field(default_factory=list)
    gone_s: float | None = None  # when the stopped process was gone
    replaced_s: float | None = None  # when another one was there

    def now_s(self) -> float:
        return time.monotonic() - self.stopped_at

    def early(self) -> list[FreezeVisit]:
        """Return who came before the stop could be noticed."""
        return [visit for visit in self.newcomers if visit.begun_s < NOTICED_S]

    def late(self) -> list[FreezeVisit]:
        return [visit for visit in self.newcomers if visit.begun_s >= NOTICED_S]

    def figures(self) -> dict[str, Any]:
        late = self.late()
        waits = [visit.took_s for visit in late]
        ends = [visit.ended_s for visit in self.under_way]
        return {
            "under_way": endings_of(self.under_way),
            "last_of_them_ended_after_s": round(max(ends, default=0.0), 1),
            "came_before_3_s": endings_of(self.early()),
            "came_later": endings_of(late),
            "their_longest_wait_s": round(max(waits, default=0.0), 2),
            "gone_after_s": rounded(self.gone_s),
            "replaced_after_s": rounded(self.replaced_s),
        }


def endings_of(visits: Sequence[FreezeVisit]) -> str:
    counts = Counter(visit.ending for visit in visits)
    return ", ".join(f"{count} {ending}" for ending, count in counts.most_common()) or "none"


def rounded(seconds: float | None) -> float | str:
    if seconds is None:
        return "never"
    return round(seconds, 1)


async def observe_stop(port: int, pid: int, members: Callable[[], set[int]]) -> FreezeLog:
    """Stop a process with requests under way, watch what becomes of them and of others, and let it
    go on.

    `members` returns the processes of its kind: a new one among them is its successor.
    """
    log = FreezeLog()
    before = members()
    async with asyncio.TaskGroup() as tasks:
        ready = asyncio.Semaphore(0)
        for _ in range(CLIENTS):
            tasks.create_task(one_under_way(port, log, ready))
        for _ in range(CLIENTS):
            await ready.acquire()
        log.stopped_at = time.monotonic()
        os.kill(pid, signal.SIGSTOP)
        tasks.create_task(watch_members(log, pid, before, members))
        try:
            while log.now_s() < OBSERVED_S:
                tasks.create_task(one_newcomer(port, log))
                await asyncio.sleep(VISIT_EVERY_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
    return log


async def one_under_way(port: int, log: FreezeLog, ready: asyncio.Semaphore) -> None:
    visit = FreezeVisit(0.0)
    log.under_way.append(visit)
    connection = await Line.open(port, silence_s=OBSERVED_S)
    try:
        ready.release()
        while log.stopped_at == 0.0 or visit.ending == HANGS:
            visit.ending = await ended_with(connection, chat_request(MODEL, TOKENS))
            if log.stopped_at:
                visit.ended_s = log.now_s()
                return
            visit.ending = HANGS
    finally:
        connection.close()


async def one_newcomer(port: int, log: FreezeLog) -> None:
    """Ask once, and stay connected as agents do: a stopped process soon has fewer connections than
    its neighbours.
    """
    visit = FreezeVisit(log.now_s())
    log.newcomers.append(visit)
    patience_s = OBSERVED_S + SLACK_S - visit.begun_s
    connection = await Line.open(port, silence_s=patience_s)
    try:
        visit.ending = await ended_with(connection, chat_request(MODEL, TOKENS))
        visit.ended_s = log.now_s()
        await asyncio.sleep(max(0.0, OBSERVED_S - visit.ended_s))
    finally:
        connection.close()


async def watch_members(
    log: FreezeLog, pid: int, before: set[int], members: Callable[[], set[int]]
) -> None:
    while log.now_s() < OBSERVED_S and (log.gone_s is None or log.replaced_s is None):
        await asyncio.sleep(0.1)
        alive = await asyncio.to_thread(members)
        if log.gone_s is None and pid not in alive:
            log.gone_s = log.now_s()
        if log.replaced_s is None and alive - before:
            log.replaced_s = log.now_s()


def freeze_checks(
    log: FreezeLog, last_round: Sequence[str], *, served_within_s: float
) -> tuple[Check, ...]:
    """`served_within_s`: so long after the stop, or after coming, everybody new is answered."""
    unserved = [
        f"came at {visit.begun_s:.1f} s, {visit.ending} after {visit.took_s:.1f} s"
        for visit in log.late()
        if visit.ending != ANSWERED
        or visit.ended_s > max(served_within_s, visit.begun_s + NOTICED_S)
    ]
    hanging = [
        f"{visit.ending} until {visit.ended_s:.1f} s"
        for visit in [*log.under_way, *log.early()]
        if visit.ending == HANGS or visit.ended_s > max(served_within_s, REPLACED_S + SLACK_S)
    ]
    if in_time(log.gone_s):
        slow = []
    else:
        slow = [f"gone after {rounded(log.gone_s)} s"]
    slow += [] if in_time(log.replaced_s) else [f"another one after {rounded(log.replaced_s)} s"]
    return (
        check("who comes 3 s later is served", unserved, f"{len(log.late())} requests"),
        check(
            "who was there or came before has an end", hanging, f"{len(log.under_way)} requests"
        ),
        check("it is replaced after 10 s", slow),
        check("in the end all are answered", [end for end in last_round if end != ANSWERED]),
    )


def in_time(seconds: float | None) -> bool:
    return seconds is not None and seconds <= REPLACED_S + SLACK_S


async def ask_in_the_end(port: int) -> list[str]:
    request = chat_request(MODEL, TOKENS)
    endings = await asyncio.gather(*(ask_once(port, request, 20.0) for _ in range(LAST_ROUND)))
    return [ending for ending, _ in endings]


async def stopped_worker(stage: Stage, name: str) -> ScenarioRow:
    with (
        good_engine() as engine,
        gateway_with(stage, engine=engine, hostile=None, workers=2) as gateway,
    ):
        workers = partial(processes_of, gateway.process.pid, "skep.gateway.worker")
        log = await observe_stop(gateway.port, min(workers()), workers)
        last_round = await ask_in_the_end(gateway.port)
    checks = freeze_checks(log, last_round, served_within_s=NOTICED_S)
    action = f"SIGSTOP of one of 2 relay workers, {CLIENTS} clients"
    return ScenarioRow(name, action, log.figures(), checks)


async def stopped_gateway(stage: Stage, name: str, *, workers: int) -> ScenarioRow:
    """The supervisor's business: while its gateway stands still, nobody else serves."""
    with running_hive(stage, workers) as (port, hive_pid):
        gateways = partial(processes_of, hive_pid, "skep.gateway.main")
        engines = processes_of(hive_pid, "skep.testing.fake_engine")
        log = await observe_stop(port, gateways().pop(), gateways)
        last_round = await ask_in_the_end(port)
        engines_after = processes_of(hive_pid, "skep.testing.fake_engine")
    if engines != engines_after:
        changed = [f"{engines}, then {engines_after}"]
    else:
        changed = []
    checks = (
        *freeze_checks(log, last_round, served_within_s=REPLACED_S + 2 * SLACK_S),
        check("the engine stays loaded", changed),
    )
    action = f"SIGSTOP of the gateway, {workers} process(es) relay, {CLIENTS} clients"
    return ScenarioRow(name, action, log.figures(), checks)


def processes_of(root: int, module: str) -> set[int]:
    """Return the living processes below this one that run the module."""
    found = set()
    for pid in descendants(root):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if module.encode() in words:
                found.add(pid)
    return found


@contextlib.contextmanager
def running_hive(stage: Stage, workers: int) -> Iterator[tuple[int, int]]:
    """`skep up -d` of one fake engine, in folders of its own; its gateway's port and its process
    id.
    """
    (stage.folder / "skep.toml").write_text(
        f"[gateway]\nport = 0\nworkers = {workers}\n"
        f'[[serve]]\nmodel = "{MODEL}"\nengine = "fake"\nslots = 32\n'
        'extra = ["--token-ms=50"]\n'
    )
    try:
        description = json.loads(skep(stage, "up", "-d", "--json"))
        yield int(description["url"].rpartition(":")[2]), int(description["pid"])
    finally:
        skep(stage, "down")


def skep(stage: Stage, *words: str) -> str:
    """Return what a command prints."""
    argv = [stage.python, "-m", "skep", *words]
    done = subprocess.run(
        argv,
        cwd=stage.folder,
        env=own_folders(stage),
        stdout=subprocess.PIPE,
        check=False,
        text=True,
        timeout=COMMAND_S,
    )
    return done.stdout


SCENARIOS: dict[str, Scenario] = {
    "stopped-worker": stopped_worker,
    "stopped-gateway": partial(stopped_gateway, workers=1),
    "stopped-decider": partial(stopped_gateway, workers=2),
}
