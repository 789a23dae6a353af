"""How quickly the store answers with a million samples and a million gateway requests in it.

    .venv/bin/python benchmarks/million.py [--keep FILE]

Twelve targets over two years: eleven probed each hour (four runs a probe), one every ten minutes
(three runs), with missed nights, busy hours, a note and a change. The rows are written in bulk,
hours and days included; a sample of the days is then computed anew by the store itself and
compared. Each query is made 20 times on an open file, appends for 20 new slots; beside the time
that passed stands what this process itself took of it, for the machine may be shared. `--keep
FILE` leaves the file, for the timing of the pages; one that is there already is timed as it is.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from pathlib import Path

from msgspec.structs import replace

from skep.monitor.records import (
    DAY_S,
    HOUR_S,
    EventKind,
    Heat,
    MonitorEvent,
    Probe,
    ProbeOutcome,
    ProbeSample,
    ProbeShape,
    ProbeTarget,
    SeriesChange,
    SeriesKey,
    SeriesMetric,
    SpanKind,
)
from skep.monitor.schedule import LastSlot
from skep.monitor.store import PUT_SPAN, SeriesStore, series_id, span_row, start_of, update_spans
from skep.store.database import open_store
from skep.store.rows import insert, insert_all

DAYS = 730
ROUNDS = 20
GATEWAY_ROWS = 1_000_000
FINE = "fine"
TARGETS = {FINE: 600.0} | {f"box-{number}": HOUR_S for number in range(1, 12)}
RUNS = (
    (Heat.COLD, ProbeShape.SHORT, 1, 0.6),
    (Heat.HOT, ProbeShape.SHORT, 1, 1.0),
    (Heat.HOT, ProbeShape.LONG, 1, 0.97),
    (Heat.HOT, ProbeShape.SHORT, 4, 0.7),
)
METRICS = (
    SeriesMetric.TOK_S,
    SeriesMetric.ENGINE_TOK_S,
    SeriesMetric.EFFECTIVE_TOK_S,
    SeriesMetric.TTFT_MS,
)
LONG_SERIES = SeriesKey(FINE, Heat.HOT, ProbeShape.SHORT, 1, SeriesMetric.TOK_S)
HOURLY = SeriesKey("box-1", Heat.HOT, ProbeShape.SHORT, 1, SeriesMetric.TOK_S)


def samples_at(rng: random.Random, at: float, level: float, runs) -> list[ProbeSample]:
    found = []
    for number, (heat, shape, many, share) in enumerate(runs):
        speed = level * share * rng.gauss(1.0, 0.02)
        found.append(
            ProbeSample(
                at + 4.0 * number,
                heat,
                shape,
                many,
                tok_s=round(speed, 3),
                engine_tok_s=round(speed * 1.01, 3),
                effective_tok_s=round(speed * many * 0.93, 3),
                ttft_ms=round(rng.gauss(120, 9) / share, 2),
                prompt_tokens=256,
                output_tokens=64,
            )
        )
    return found


def probes_of(rng: random.Random, name: str, end: float):
    """Rows of one target, oldest first, in the way the monitor makes them."""
    every = TARGETS[name]
    first = int((end - DAYS * DAY_S) // every)
    last = int(end // every)
    runs = RUNS[:3] if name == FINE else RUNS
    level = rng.uniform(40, 120)
    changed = first + (last - first) * 29 // 30
    versions = {"driver": "580.95", "engine": "b7000"}
    host = {"watts": 251.5, "temperature_c": 61}
    slot = first
    while slot < last:
        due = slot * every + 5.0
        if rng.random() < 0.0005:  # a night asleep
            slots = min(int(8 * HOUR_S / every), last - slot)
            found = due + (slots - 0.5) * every
            yield (
                Probe(name, 0, slot, due, found, ProbeOutcome.MISSED, slots=slots, error="asleep"),
                [],
            )
            slot += slots
            continue
        if rng.random() < 0.003:
            error = {"error_kind": "timeout", "error": "no answer within 300 s"}
            yield (
                Probe(name, 0, slot, due, due + 300, ProbeOutcome.FAILED, started_at=due, **error),
                [],
            )
        else:
            busy = 2 if rng.random() < 0.03 else 0
            now = level * (0.96 if slot >= changed else 1.0) * (0.6 if busy else 1.0)
            made = {"running": busy, "waiting": 0, "model": "smol", "host": host}
            done = Probe(
                name,
                0,
                slot,
                due,
                due + 20,
                ProbeOutcome.DONE,
                started_at=due,
                versions=versions,
                **made,
            )
            yield done, samples_at(rng, due, now, runs)
        slot += 1


class Hours:
    """The hours and days of one target, gathered on the way and written at its end."""

    def __init__(self) -> None:
        self.values = {}
        self.busy = {}

    def add(self, probe: Probe, samples: list[ProbeSample]) -> None:
        for sample in samples:
            for metric in METRICS:
                key = (sample.heat, sample.shape, sample.concurrency, metric)
                for kind in SpanKind:
                    place = (key, kind, start_of(sample.at, kind.seconds))
                    if probe.busy:
                        self.busy[place] = self.busy.get(place, 0) + 1
                    else:
                        self.values.setdefault(place, []).append(sample.value(metric))

    def write(self, connection, target: str) -> None:
        keys = {place[0] for place in self.values.keys() | self.busy.keys()}
        ids = {key: series_id(connection, SeriesKey(target, *key)) for key in sorted(keys)}
        rows = (
            span_row(
                ids[place[0]], *place[1:], self.values.get(place, ()), self.busy.get(place, 0)
            )
            for place in sorted(
                self.values.keys() | self.busy.keys(),
                key=lambda place: (ids[place[0]], *place[1:]),
            )
        )
        connection.executemany(PUT_SPAN, rows)


def build(store, end: float) -> None:
    rng = random.Random(8)
    series = SeriesStore(store)
    number = 0
    for name, every in TARGETS.items():
        series.put_target(
            ProbeTarget(name, "http://127.0.0.1:9/v1", every_s=every, added_at=end - DAYS * DAY_S)
        )
        hours = Hours()
        probes = []
        rows = []
        for probe, samples in probes_of(rng, name, end):
            number += 1
            probes.append(replace(probe, id=number))
            rows += [(number, probe.busy, sample) for sample in samples]
            hours.add(probe, samples)
        with store.transaction() as connection:
            insert_all(connection, "probes", probes)
            for probe_id, busy, sample in rows:
                insert(
                    connection,
                    "samples",
                    sample,
                    id=None,
                    probe_id=probe_id,
                    target=name,
                    busy=busy,
                )
            hours.write(connection, name)
        print(f"  {name}: {len(probes):,} probes, {len(rows):,} samples", flush=True)
        at = end - DAYS * DAY_S / 30
        series.append_event(MonitorEvent(at, EventKind.VERSION, "driver 570 -> 580", target=name))
        key = SeriesKey(name, Heat.HOT, ProbeShape.SHORT, 1, SeriesMetric.TOK_S)
        series.set_changes(
            key,
            [
                SeriesChange(
                    key, at, (at - every, at), 80.0, 76.8, 0.955, 0.965, 600, 120, "the driver"
                )
            ],
        )
    series.append_event(MonitorEvent(end - 100 * DAY_S, EventKind.NOTE, "NVLink bridges removed"))


def build_gateway(store, end: float) -> None:
    rng = random.Random(9)
    since = end - 30 * DAY_S
    step = 30 * DAY_S / GATEWAY_ROWS
    of_no_session = (None,) * 8
    for begin in range(0, GATEWAY_ROWS, 50_000):
        rows = []
        for index in range(begin, min(begin + 50_000, GATEWAY_ROWS)):
            first = rng.uniform(0.05, 2.0)
            tokens = rng.randrange(4, 800)
            outcome, status = ("answered", 200) if rng.random() < 0.99 else ("refused", 503)
            rows.append(
                (
                    f"m-{index}",
                    since + index * step,
                    "/v1/chat/completions",
                    f"model-{index % 3}",
                    "normal",
                    "agent",
                    "r0",
                    1,
                    outcome,
                    status,
                    None,
                    True,
                    0.0,
                    first,
                    first + tokens / 60,
                    200,
                    0,
                    tokens,
                    900,
                    9000,
                    *of_no_session,
                )
            )
        store.append_gateway_values(rows)


def check(store, rng: random.Random) -> None:
    """What was written in bulk is what the store makes of the same samples."""
    rows = store.read("SELECT * FROM spans WHERE kind = 'day' ORDER BY series, start")
    for row in rng.sample(rows, 40):
        key = store.read(
            "SELECT target, heat, shape, concurrency FROM series WHERE id = ?", row["series"]
        )[0]
        target, heat, shape, many = tuple(key)
        sample = ProbeSample(row["start"] + 1.0, Heat(heat), ProbeShape(shape), many, *(1.0,) * 4)
        with store.transaction() as connection:
            update_spans(connection, target, [sample])
        same = "SELECT * FROM spans WHERE series = ? AND kind = 'day' AND start = ?"
        assert tuple(store.read(same, row["series"], row["start"])[0]) == tuple(row)


def timed(function, rounds: int = ROUNDS) -> dict[str, list[float]]:
    passed = []
    taken = []
    for number in range(rounds):
        began = time.perf_counter()
        cpu = time.process_time()
        function(number)
        passed.append(time.perf_counter() - began)
        taken.append(time.process_time() - cpu)
    return {"passed": passed, "cpu": taken}


def queries(series: SeriesStore, end: float, slots: dict[str, LastSlot]):
    def append(name: str, runs):
        rng = random.Random(10)
        every = TARGETS[name]
        last = slots[name].slot

        def one(number: int) -> None:
            slot = last + 1 + number
            due = slot * every
            probe = Probe(name, 0, slot, due, due + 20, ProbeOutcome.DONE, started_at=due)
            assert series.append_probe(probe, samples_at(rng, due, 80.0, runs)) is not None

        return one

    yield "append_probe, hourly, 4 samples", append("box-1", RUNS)
    yield "append_probe, every 10 min, 3 samples", append(FINE, RUNS[:3])
    yield "keys", lambda _: series.keys()
    yield "last_slots", lambda _: series.last_slots()
    yield "latest", lambda _: series.latest("box-1")
    for days in (1, 7, 30):
        yield (
            f"points, {days} d, hourly",
            lambda _, d=days: series.points(HOURLY, end - d * DAY_S, end),
        )
        yield (
            f"points, {days} d, every 10 min",
            lambda _, d=days: series.points(LONG_SERIES, end - d * DAY_S, end),
        )
    yield "points, all, every 10 min", lambda _: series.points(LONG_SERIES, 0.0, end)
    yield (
        "spans, hours of 30 d",
        lambda _: series.spans(LONG_SERIES, SpanKind.HOUR, end - 30 * DAY_S, end),
    )
    yield "spans, days of all", lambda _: series.spans(LONG_SERIES, SpanKind.DAY, 0.0, end)
    yield "probes, 7 d, every 10 min", lambda _: series.probes(FINE, end - 7 * DAY_S, end)
    yield "coverage, 30 d", lambda _: series.coverage(FINE, end - 30 * DAY_S, end)
    yield "coverage, all", lambda _: series.coverage(FINE, 0.0, end)
    yield "changes", lambda _: series.changes()
    yield "events, all", lambda _: series.events(0.0, end)
    yield "count_samples", lambda _: series.count_samples()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--keep", type=Path, help="leave the file here, or time the one that is here"
    )
    keep = parser.parse_args().keep
    built = keep is not None and keep.exists()
    end = start_of(time.time(), HOUR_S)
    with (
        tempfile.TemporaryDirectory() as folder,
        open_store(keep or Path(folder) / "skep.sqlite3") as store,
    ):
        series = SeriesStore(store)
        if not built:
            build(store, end)
            check(store, random.Random(11))
            build_gateway(store, end)
        many = series.count_samples()
        requests = store.count_gateway_requests()
        size = store.size_bytes()
        longest = len(series.points(LONG_SERIES, 0.0, end))
        print(
            f"{many:,} samples and {requests:,} requests, {size / 2**20:,.0f} MiB; the "
            f"longest series has {longest:,}"
        )
        print(
            f"{os.cpu_count()} cores, load "
            f"{os.getloadavg()[0]:.1f}\n{'':42}{'median':>11}{'p95':>11}{'cpu':>11}"
        )
        times = {}
        for name, function in queries(series, end, series.last_slots()):
            times[name] = timed(function)
        for name, told in times.items():
            passed = sorted(told["passed"])
            cpu = told["cpu"]
            figures = (
                statistics.median(passed),
                passed[int(0.95 * (len(passed) - 1))],
                statistics.median(cpu),
            )
            print(f"  {name:40}" + "".join(f"{1000 * figure:8.2f} ms" for figure in figures))
        load = os.getloadavg()[0]
    results = Path(__file__).parent / "results"
    results.mkdir(exist_ok=True)
    document = {
        "samples": many,
        "requests": requests,
        "bytes": size,
        "longest": longest,
        "rounds": ROUNDS,
    }
    document |= {"cores": os.cpu_count(), "load": load, "seconds": times}
    (results / "million.json").write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
