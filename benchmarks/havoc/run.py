"""One run: warm up, rest, load with havoc, heal, drain, rest again, and one last round that all
must survive.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from havoc.asks import EMBEDDED, FAKE, Asker, Diet, write_answers
from havoc.audit import Check, check, of_clients, of_counters, of_rows
from havoc.clients import Crowd, Note
from havoc.engines import SLOTS, Embedded, Engine, Fake, weights_file
from havoc.hive import Hive, calm, memory_mib, open_files
from havoc.line import Line
from havoc.maker import Maker, Pace
from havoc.verdicts import End

from skep.store.database import open_store
from skep.testing.process import GatewayProcess

SPARE_FILES = 2
REST_S = 20.0  # well before the 30 s after which a slot is free whatever its engine says
MORE_MIB = 24.0  # uncollected cycles and worn arenas; a leak of each request would be more


@dataclass(frozen=True, slots=True)
class Effort:
    engine: str
    engines: int
    clients: int
    warm_s: float
    havoc_s: float
    pace: Pace
    silence_s: float = 60.0
    deaf_ms: float = 150.0
    idle_close_s: float = 2.0
    workers: int = 1  # of the gateway


@dataclass(slots=True)
class Report:
    seed: int
    effort: Effort
    requests: int = 0
    ends: dict[str, int] = field(default_factory=dict)
    refusals: dict[str, int] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    retries: int = 0
    havoc: dict[str, int] = field(default_factory=dict)
    worst: dict[str, float] = field(default_factory=dict)
    gateway: dict[str, float] = field(default_factory=dict)
    memory_mib: list[float] = field(default_factory=list)  # every 10 s
    checks: list[Check] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return all(check.ok for check in self.checks)


async def chaos(effort: Effort, seed: int, folder: Path, say: Callable[[str], None]) -> Report:
    rng = Random(seed)
    diet, make = _engine(effort, folder)
    log = folder / "gateway.log"
    store = folder / "skep.sqlite3"
    report = Report(seed, effort)
    with contextlib.ExitStack() as stack:
        setup = calm(effort.pace.scale)
        door = stack.enter_context(
            GatewayProcess(log, store=str(store), workers=effort.workers, **setup)
        )
        hive = Hive(door, make, diet.model)
        stack.callback(hive.close)
        say("starting engines")
        for _ in range(effort.engines):
            await hive.add()
        hive.tell()
        asker = Asker(diet, Random(rng.random()))
        pace = effort.pace
        crowd = Crowd(
            door.port, asker, Random(rng.random()), silence_s=effort.silence_s, scale=pace.scale
        )
        maker = Maker(hive, Random(rng.random()), pace, store)
        await _go(report, hive, crowd, maker, say)
        report.checks += await _of_engines(hive)
        metrics = await _metrics(door.port)
        ended = (await hive.status())["ended"]
        alive = door.process.poll() is None
    with open_store(store, read_only=True) as opened:
        rows = opened.gateway_requests()
    report.checks[:0] = [*of_clients(crowd.notes, effort.silence_s), *of_rows(crowd.notes, rows)]
    checks, report.retries = of_counters(metrics, rows, ended)
    report.checks += checks
    closed = [f"{crowd.closed} connections"] if crowd.closed else []
    report.checks.append(check("no connection closed unannounced between requests", closed))
    said = [line for line in log.read_text().splitlines() if not _is_expected(line)]
    said += [] if alive else ["the process is dead"]
    report.checks.append(check("the gateway lives and has nothing to complain of", said))
    _sum_up(report, crowd.notes, maker, Counter(row.outcome for row in rows))
    return report


def _is_expected(line: str) -> bool:
    """In the gateway's log: requests, a store that was locked and lost no row, an engine that
    spoke no HTTP.
    """
    is_locked = "is locked by another process" in line
    return is_locked or line.startswith(
        ("request.done ", "journal.resumed unwritten=0", "state.unreadable ")
    )


def _engine(effort: Effort, folder: Path) -> tuple[Diet, Callable[[], Engine]]:
    if effort.engine == "embedded":
        weights = weights_file()
        return EMBEDDED, lambda: Embedded(weights)
    answers = write_answers(folder / "answers.jsonl")
    return FAKE, lambda: Fake(answers, deaf_ms=effort.deaf_ms, idle_close_s=effort.idle_close_s)


async def _go(
    report: Report, hive: Hive, crowd: Crowd, maker: Maker, say: Callable[[str], None]
) -> None:
    effort = report.effort
    pid = hive.door.process.pid
    say(f"warming up for {effort.warm_s:g} s")
    await _load(crowd, effort.clients, effort.warm_s)
    report.checks.append(
        check(
            "before it, nobody is refused or cut",
            _not_served(crowd.notes),
            f"{len(crowd.notes)} asked",
        )
    )
    await hive.rest(15.0)
    files_before = await _fewest_files(pid, 0, effort.idle_close_s + 1)
    memory_before = memory_mib(pid)
    say(f"havoc for {effort.havoc_s:g} s, seed {report.seed}")
    sampling = asyncio.create_task(hive.sample(0.25))
    async with asyncio.TaskGroup() as tasks:
        load = tasks.create_task(crowd.run(effort.clients))
        progress = tasks.create_task(_progress(report, pid, crowd, maker, say))
        await maker.run(effort.havoc_s)
        await maker.heal()
        say("healing")
        crowd.stopping.set()
        began = time.monotonic()
        await load
        progress.cancel()
    drained_s = time.monotonic() - began
    calm, status = await hive.rest(REST_S)
    report.checks.append(
        check("queue and slots back to zero, all replicas up", [] if calm else [str(status)])
    )
    say("the last round")
    await _last_round(report, hive, crowd)
    sampling.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await sampling
    for seat in hive.seats.values():
        await hive.look_inside(seat)
    spare = SPARE_FILES + (len(hive.listed) if effort.engine == "embedded" else 0)
    files_after = await _fewest_files(pid, files_before + spare, 12.0)
    report.gateway = {
        "files_before": files_before,
        "files_after": files_after,
        "memory_warm_mib": round(memory_before, 1),
        "memory_end_mib": round(memory_mib(pid), 1),
        "drained_s": round(drained_s, 1),
    }
    grown = report.gateway["memory_end_mib"] - report.gateway["memory_warm_mib"]
    fine = f"{files_before} at rest before, {files_after} after"
    report.checks.append(
        check(
            "no open files left behind",
            [] if files_after <= files_before + spare else [fine],
            fine,
        )
    )
    fine = f"{memory_before:.1f} MiB warm, {grown:+.1f} MiB at the end"
    report.checks.append(
        check(
            f"memory grows by less than {MORE_MIB:g} MiB", [] if grown < MORE_MIB else [fine], fine
        )
    )


async def _load(crowd: Crowd, clients: int, seconds: float) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(crowd.run(clients))
        await asyncio.sleep(seconds)
        crowd.stopping.set()


def _not_served(notes: list[Note]) -> list[str]:
    """Of those who did not leave and set no deadline of their own."""
    well = (End.ANSWERED, End.LEFT)
    asked = [note for note in notes if b"x-skep-max-wait" not in note.ask.head]
    return [
        f"#{note.ask.number} {note.verdict.end.value} {note.verdict.what}"
        for note in asked
        if note.verdict.end not in well
    ]


async def _progress(
    report: Report, pid: int, crowd: Crowd, maker: Maker, say: Callable[[str], None]
) -> None:
    while True:
        await asyncio.sleep(10)
        report.memory_mib.append(round(memory_mib(pid), 1))
        wrong = sum(note.verdict.end is End.WRONG and note.ended_s > 0 for note in crowd.notes)
        say(f"{len(crowd.notes)} requests, {maker.done.total()} events, {wrong} wrong")


async def _last_round(report: Report, hive: Hive, crowd: Crowd) -> None:
    """Everything is well again: everybody is answered, and every replica serves."""
    begun = len(crowd.notes)
    await crowd.run(report.effort.clients, patient=True, asks_each=4)
    last = crowd.notes[begun:]
    wrong = _not_served(last)
    served = Counter(note.head.told.get("replica") for note in last if note.head is not None)
    wrong += [f"{seat.name} served nobody" for seat in hive.listed if not served[seat.name]]
    report.checks.append(
        check("after it, all are answered and all replicas serve", wrong, str(dict(served)))
    )
    calm, status = await hive.rest(15.0)
    report.checks.append(check("at rest in the end", [] if calm else [str(status)]))


async def _of_engines(hive: Hive) -> list[Check]:
    over = [
        f"{one.seat} {one.most} ({one.disturbed or 'undisturbed'})"
        for one in hive.inside.values()
        if one.most > SLOTS
    ]
    most = max((one.most for one in hive.inside.values()), default=0)
    working = {seat.name: await asyncio.to_thread(seat.engine.now) for seat in hive.seats.values()}
    return [
        check(
            f"never more than {SLOTS} inside an engine",
            over,
            f"{len(hive.inside)} processes, most {most}",
        ),
        check(
            "engines idle in the end",
            [f"{name} works on {count}" for name, count in working.items() if count],
        ),
    ]


async def _fewest_files(pid: int, enough: int, seconds: float) -> int:
    """Idle connections come and go with the health checks: the fewest within some time."""
    fewest = open_files(pid)
    until = time.monotonic() + seconds
    while time.monotonic() < until and fewest > enough:
        await asyncio.sleep(0.1)
        fewest = min(fewest, open_files(pid))
    return fewest


async def _metrics(port: int) -> str:
    line = await Line.open(port, silence_s=10)
    await line.send(b"GET /metrics HTTP/1.1\r\nhost: chaos\r\nconnection: close\r\n\r\n")
    head = await line.head()
    text = b"".join([piece async for piece in line.pieces(head)])
    line.close()
    return text.decode()


def _sum_up(report: Report, notes: list[Note], maker: Maker, rows: Counter[str]) -> None:
    report.requests = len(notes)
    report.ends = {
        end.value: count
        for end, count in Counter(note.verdict.end for note in notes).most_common()
    }
    report.refusals = dict(
        Counter(
            note.verdict.what for note in notes if note.verdict.end is End.REFUSED
        ).most_common()
    )
    report.rows = dict(rows.most_common())
    report.havoc = dict(maker.done.most_common())
    report.worst = {
        "silence_s": round(max(note.silence_s for note in notes), 2),
        "first_byte_s": round(max((note.first_s or 0.0) for note in notes), 2),
        "total_s": round(max(note.ended_s for note in notes), 2),
    }


def as_json(report: Report) -> dict[str, Any]:
    effort = {
        name: getattr(report.effort, name)
        for name in ("engine", "engines", "clients", "warm_s", "havoc_s")
    }
    names = (
        "seed",
        "requests",
        "ends",
        "refusals",
        "rows",
        "retries",
        "havoc",
        "worst",
        "gateway",
        "memory_mib",
    )
    plain = {name: getattr(report, name) for name in names}
    checks = [
        {"name": check.name, "ok": check.ok, "detail": check.detail} for check in report.checks
    ]
    return {**effort, **plain, "checks": checks, "ok": report.ok}


def say(text: str) -> None:
    end = "" if sys.stderr.isatty() else "\n"
    print(f"\r{text:78}" if not end else text, end=end, file=sys.stderr, flush=True)
