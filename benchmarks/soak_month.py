"""A month of watching in a minute: the real loop and a real SQLite file, with everything that goes
wrong in a month.

    .venv/bin/python benchmarks/soak_month.py

The loop runs in child processes with a clock of its own that jumps from one timer to the next.
They are killed with SIGKILL at random moments of real time, also in the middle of a transaction,
and now and then told to stop. The machine sleeps, its clock is set forward and back, the disk is
full for hours (the kernel lets no file grow: RLIMIT_FSIZE), targets hang, are added, removed,
taken up again and probed at another pace.

The prober is made up: it takes some simulated seconds and brings samples with numbers of their
own, which it tells over a pipe before it hands them on. At the end every slot of every target must
be accounted for exactly once; what was stored must have been made; what was acknowledged must be
there once; what was made, at most once; and while there is room on the disk, a kill may cost one
probe."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import os
import random
import resource
import secrets
import select
import selectors
import signal
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from skep.monitor.loop import Loop
from skep.monitor.records import (
    DAY_S,
    HOUR_S,
    Heat,
    MonitorEvent,
    Probe,
    ProbeOutcome,
    ProbeSample,
    ProbeShape,
    ProbeTarget,
)
from skep.monitor.schedule import Due, Moment
from skep.monitor.store import SeriesStore
from skep.store.database import open_store

RESULTS = Path(__file__).parent / "results" / "soak_month.json"
EPOCH = 1_800_000_000.0  # the wall clock at the beginning
FULL_BYTES = 4096  # a file may not grow beyond it while the disk is full
POLL_S = 300.0


@dataclass(frozen=True, slots=True)
class Script:
    """What happens, in true seconds since the beginning."""

    days: float
    sleeps: tuple[tuple[float, float], ...]  # when, how long
    jumps: tuple[tuple[float, float], ...]  # when, how far the wall clock is set
    full: tuple[tuple[float, float], ...]  # from, to
    changes: tuple[tuple[float, str], ...]  # when, what is done to the targets

    def wall(self, true: float) -> float:
        return EPOCH + true + sum(by for at, by in self.jumps if at <= true)

    def is_full(self, true: float) -> bool:
        return any(begin <= true < end for begin, end in self.full)


def script_of(days: float, rng: random.Random) -> Script:
    def times(number: int) -> list[float]:
        return sorted(rng.uniform(0.02, 0.98) * days * DAY_S for _ in range(number))

    per_week = max(1, round(days / 7))
    far = [
        rng.choice((-1, 1)) * rng.choice((30.0, 900.0, 5 * HOUR_S, 2 * DAY_S))
        for _ in range(2 * per_week)
    ]
    return Script(
        days=days,
        sleeps=tuple((at, rng.uniform(60, 9 * HOUR_S)) for at in times(4 * per_week)),
        jumps=tuple(zip(times(2 * per_week), far, strict=True)),
        full=tuple((at, at + rng.uniform(HOUR_S, 12 * HOUR_S)) for at in times(2 * per_week)),
        changes=tuple(
            zip(times(4), ("add late", "pace box", "remove cloud", "revive cloud"), strict=True)
        ),
    )


def first_targets() -> list[ProbeTarget]:
    common: dict[str, Any] = {"added_at": EPOCH}
    return [
        ProbeTarget("box", "http://127.0.0.1:1", every_s=HOUR_S, **common),
        ProbeTarget(
            "box-gateway", "http://localhost:2", every_s=HOUR_S / 2, **common
        ),  # shares the machine
        ProbeTarget("cloud", "https://cloud.example", every_s=HOUR_S, **common),
        ProbeTarget("hangs", "https://hangs.example", every_s=HOUR_S / 4, **common),
        ProbeTarget("often", "http://10.0.0.7:8000", every_s=HOUR_S / 6, **common),
    ]


class VirtualLoop(asyncio.SelectorEventLoop):
    """Its time passes only when nothing is left to do, and then at once."""

    def __init__(self) -> None:
        self.passed_s = 0.0
        super().__init__(_Impatient(self))

    def time(self) -> float:
        return self.passed_s


class _Impatient(selectors.DefaultSelector):  # type: ignore[valid-type,misc]
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._of = loop

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(None if timeout is None else 0)
        if not ready and timeout:
            self._of.passed_s += timeout
        return ready


class Telling(SeriesStore):
    """Acknowledges over the pipe what the store has taken."""

    def __init__(self, store: Any, tell: Any) -> None:
        super().__init__(store)
        self._tell = tell

    def append_probe(
        self,
        probe: Probe,
        samples: Sequence[ProbeSample] = (),
        events: Sequence[MonitorEvent] = (),
    ) -> int | None:
        row = super().append_probe(probe, samples, events)
        if row is not None:
            for sample in samples:
                self._tell(f"stored {sample.tok_s!r}")
        return row


class Life:
    """One process: from `begins_at` (true seconds) until it is killed, told to stop, or the month
    is over.
    """

    def __init__(
        self, script: Script, begins_at: float, number: int, store: Path, pipe: int, seed: int
    ) -> None:
        self.script = script
        self.begins_at = begins_at
        self.number = number
        self.store = store
        self.pipe = pipe
        self.rng = random.Random(f"{seed}/{number}")
        self.loop = VirtualLoop()
        self.made = 0
        self.disk = "free"
        self.hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]

    def tell(self, text: str) -> None:
        os.write(self.pipe, f"{text} {self.true():.3f}\n".encode())

    def true(self) -> float:
        now = self.begins_at + self.loop.passed_s
        for at, long_s in self.script.sleeps:
            if self.begins_at <= at <= now:
                now += long_s
        return now

    def moment(self) -> Moment:
        true = self.true()
        return Moment(self.script.wall(true), self.loop.passed_s)

    async def probe(self, due: Due) -> tuple[Probe, list[ProbeSample]]:
        started = self.moment().wall
        hangs = due.target.name == "hangs" and self.rng.random() < 0.05
        await asyncio.sleep(self.rng.uniform(1200, 4000) if hangs else self.rng.uniform(3, 90))
        if hangs:
            samples = []
        else:
            samples = [self._sample(heat) for heat in (Heat.COLD, Heat.HOT)]
        outcome = ProbeOutcome.FAILED if hangs else ProbeOutcome.DONE
        where = (due.target.name, due.era, due.slot, due.at)
        kind = "timeout" if hangs else None
        probe = Probe(
            *where, started + 60.0, outcome, started_at=started, error_kind=kind, error=kind
        )
        for sample in samples:
            self.tell(f"made {sample.tok_s!r} {self.disk}")
        return probe, samples

    def _sample(self, heat: Heat) -> ProbeSample:
        self.made += 1
        return ProbeSample(
            self.moment().wall,
            heat,
            ProbeShape.SHORT,
            1,
            tok_s=float(self.number * 1_000_000 + self.made),
        )

    async def weather(self, series: SeriesStore) -> None:
        """The disk and the targets; ends the process when the month is over."""
        done = {what for at, what in self.script.changes if at < self.begins_at}
        while self.true() < self.script.days * DAY_S:
            if self.script.is_full(self.true()):
                soft = FULL_BYTES
            else:
                soft = self.hard
            if resource.getrlimit(resource.RLIMIT_FSIZE)[0] != soft:
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, self.hard))
                self.disk = "full" if soft == FULL_BYTES else "free"
                self.tell(f"disk {self.disk}")
            for at, what in self.script.changes:
                if at <= self.true() and what not in done and soft == self.hard:
                    done.add(what)
                    change_targets(series, what, self.script.wall(self.true()))
            self.tell("time")
            await asyncio.sleep(120)

    def live(self) -> None:
        with open_store(self.store) as store:
            series = Telling(store, self.tell)
            for at, what in self.script.changes:
                if at < self.begins_at:
                    change_targets(series, what, self.script.wall(at))
            asyncio.set_event_loop(self.loop)
            self.loop.run_until_complete(self._until_over(series))

    async def _until_over(self, series: SeriesStore) -> None:
        loop = Loop(
            series,
            self.probe,
            say=lambda text: self.tell("log " + text.split()[0]),
            moment=self.moment,
            look_for_changes=lambda *_: None,
            in_thread=_here,
            poll_s=POLL_S,
        )
        watching = self.loop.create_task(loop.run())
        self.loop.add_signal_handler(signal.SIGTERM, watching.cancel)
        weather = self.loop.create_task(self.weather(series))
        await asyncio.wait([watching, weather], return_when=asyncio.FIRST_COMPLETED)
        weather.cancel()
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.hard, self.hard))
        watching.cancel()
        await asyncio.wait([watching, weather])
        if not watching.cancelled():
            watching.result()  # it never ends by itself


async def _here(function: Any, *arguments: Any) -> Any:
    return function(*arguments)


def change_targets(series: SeriesStore, what: str, now: float) -> None:
    """Doing it twice has the effect of doing it once."""
    known = {target.name: target for target in series.targets(removed=True)}
    if what == "add late" and "late" not in known:
        series.put_target(ProbeTarget("late", "http://10.0.0.9", every_s=HOUR_S, added_at=now))
    elif what == "pace box" and known["box"].every_s == HOUR_S:
        series.put_target(replace(known["box"], every_s=HOUR_S / 3, added_at=now))
    elif (
        what == "remove cloud"
        and known["cloud"].added_at == EPOCH
        and known["cloud"].removed_at is None
    ):
        series.remove_target("cloud", now)
    elif what == "revive cloud" and known["cloud"].added_at == EPOCH:
        series.put_target(replace(known["cloud"], added_at=now, removed_at=None))


@dataclass(slots=True)
class Account:
    made: dict[str, str] = field(default_factory=dict)  # and how the disk was then
    stored: set[str] = field(default_factory=set)
    log: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    true: float = 0.0


def soak(days: float, seed: int, folder: Path, *, life_s: tuple[float, float]) -> dict[str, Any]:
    """`life_s`: real seconds after which a process is killed, from and to."""
    rng = random.Random(seed)
    script = script_of(days, rng)
    account = Account()
    began = time.monotonic()
    path = folder / "soak.sqlite3"
    with open_store(path) as store:
        for target in first_targets():
            SeriesStore(store).put_target(target)
    number = 0
    while account.true < days * DAY_S:
        number += 1
        one_life(
            script, account, number, path, seed, rng.uniform(*life_s), clean=rng.random() < 0.2
        )
        # Until somebody starts it again.
        account.true += rng.choice((5.0, 300.0, rng.uniform(0, 8 * HOUR_S)))
    last = dataclasses.replace(script, days=account.true / DAY_S + 0.25, full=())
    # So that there is an end to count up to.
    one_life(last, account, number + 1, path, seed, 600.0, clean=True)
    report = audit(path, script, account)
    return {
        "days": days,
        "seed": seed,
        "lives": number + 1,
        "seconds": round(time.monotonic() - began, 1),
        **report,
    }


def one_life(
    script: Script,
    account: Account,
    number: int,
    path: Path,
    seed: int,
    life_s: float,
    *,
    clean: bool,
) -> None:
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.close(ours)
            Life(script, account.true, number, path, theirs, seed).live()
            status = 0
        finally:
            os._exit(status)
    os.close(theirs)
    deadline = time.monotonic() + life_s
    told = False
    text = b""
    while True:
        if not told and time.monotonic() >= deadline:
            os.kill(pid, signal.SIGTERM if clean else signal.SIGKILL)
            told = True
        if select.select(
            [ours], [], [], max(0.0, deadline - time.monotonic()) if not told else 5.0
        )[0]:
            part = os.read(ours, 1 << 16)
            if not part:
                break
            text += part
    os.close(ours)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    ends = {-signal.SIGKILL: "killed", -signal.SIGTERM: "stopped", 0: "stopped"}
    account.ends[ends.get(status, f"exit {status}")] += 1
    for line in text.decode().splitlines(keepends=True):
        if line.endswith("\n"):
            _read(line.split(), account)


def _read(words: list[str], account: Account) -> None:
    account.true = max(account.true, float(words[-1]))
    if words[0] == "made":
        account.made[words[1]] = words[2]
    elif words[0] == "stored":
        account.stored.add(words[1])
    elif words[0] in ("log", "disk"):
        account.log[f"{words[0]} {words[1]}"] += 1


def audit(path: Path, script: Script, account: Account) -> dict[str, Any]:
    """What is wrong, if anything, and how much there was."""
    wrong: list[str] = []
    connection = sqlite3.connect(path)
    if connection.execute("PRAGMA integrity_check").fetchone()[0] != "ok":
        wrong.append("the database is damaged")
    values = Counter(repr(row[0]) for row in connection.execute("SELECT tok_s FROM samples"))
    made = account.made
    stored = account.stored
    wrong += [
        f"sample {value} is there {count} times" for value, count in values.items() if count > 1
    ]
    wrong += [
        f"sample {value} was acknowledged and is lost" for value in stored if value not in values
    ]
    wrong += [f"sample {value} was never made" for value in values if value not in made]
    lost = Counter(disk for value, disk in made.items() if value not in values)
    if lost["free"] > 2 * account.ends["killed"]:
        wrong.append(
            f"{lost['free']} samples were lost in {account.ends['killed']} kills: more than "
            "those in hand"
        )
    spans = (
        connection.execute("SELECT sum(count + busy) FROM spans WHERE kind = 'hour'").fetchone()[0]
        or 0
    )
    connection.close()
    if spans != len(values):
        wrong.append(f"the hours count {spans} samples, there are {len(values)}")
    wrong += [
        f"a process ended by itself: {end}" for end in account.ends if end.startswith("exit")
    ]
    with open_store(path, read_only=True) as store:
        rows, faults = _slots(SeriesStore(store), script.wall(account.true) - 2 * HOUR_S)
    return {
        "targets": rows,
        "samples": {"made": len(made), "acknowledged": len(stored), "stored": len(values)},
        "not_stored": {"in hand when killed": lost["free"], "lost with a full disk": lost["full"]},
        "ends": dict(account.ends),
        "sleeps": len(script.sleeps),
        "clock_jumps": len(script.jumps),
        "disk_full_h": round(sum(end - begin for begin, end in script.full) / HOUR_S, 1),
        "log": dict(sorted(account.log.items())),
        "wrong": [*wrong, *faults],
    }


def _slots(series: SeriesStore, until: float) -> tuple[dict[str, dict[str, int]], list[str]]:
    rows: dict[str, dict[str, int]] = {}
    wrong: list[str] = []
    for target in series.targets(removed=True):
        name = target.name
        probes = series.probes(target.name, float("-inf"), float("inf"))
        counts = Counter[str]()
        for probe in probes:
            if probe.outcome is not ProbeOutcome.MISSED:
                kind = probe.outcome.value
            else:
                kind = f"missed: {probe.error_kind}"
            counts[kind] += probe.slots
        eras = sorted({probe.era for probe in probes})
        for era in eras:
            wrong += _tiles(name, era, sorted((p.slot, p.slots) for p in probes if p.era == era))
        if eras:
            covered = max((p.slot + p.slots for p in probes if p.era == eras[-1]), default=0)
        else:
            covered = 0
        if target.removed_at is None and covered * target.every_s < until:
            wrong.append(f"{name}: nothing accounts for the slots from {covered} on")
        rows[name] = {
            "eras": len(eras),
            "slots": sum(counts.values()),
            **dict(sorted(counts.items())),
        }
    return rows, wrong


def _tiles(name: str, era: int, rows: list[tuple[int, int]]) -> list[str]:
    for (slot, slots), (following, _) in pairwise(rows):
        if slot + slots != following:
            return [f"{name}: era {era} has slot {following} where {slot + slots} is due"]
    return []


def print_report(report: dict[str, Any]) -> None:
    print(
        f"{report['days']:g} days in {report['seconds']} s, seed {report['seed']}: "
        f"{report['lives']} processes"
    )
    for name in ("ends", "sleeps", "clock_jumps", "disk_full_h", "log", "samples", "not_stored"):
        print(f"  {name:12} {report[name]}")
    for name, row in report["targets"].items():
        print(f"  {name:12} {row}")
    for line in report["wrong"] or [
        "every slot once, every acknowledged sample once, none doubled"
    ]:
        print(("FAIL  " if report["wrong"] else "pass  ") + line)


def main() -> int:
    parser = argparse.ArgumentParser(
        description="a month of watching with everything that goes wrong"
    )
    parser.add_argument("--days", type=float, default=30.0)
    parser.add_argument("--seed", type=int, help="drawn and printed without it")
    args = parser.parse_args()
    if args.seed is None:
        seed = secrets.randbelow(1_000_000)
    else:
        seed = args.seed
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        report = soak(args.days, seed, Path(folder), life_s=(0.05, 1.5))
    print_report(report)
    if args.days >= 28:
        RESULTS.write_text(json.dumps(report, indent=1) + "\n")
    return 1 if report["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
