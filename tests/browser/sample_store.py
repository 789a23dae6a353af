"""A month of probes that were never made, for pages to be looked at. Every probe of it is marked
as simulated.

Shaped after what a published write-up found: a box whose speed hardly varies, a cloud endpoint
whose cold starts do."""

import math
import random
from pathlib import Path

from msgspec.structs import replace

from sample_swarm import put_swarm_run
from sample_tuning import sample_stages, sample_tuning
from skep.monitor.history import find_changes
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
    TargetKind,
)
from skep.monitor.store import SeriesStore
from skep.store.database import open_store
from skep.tuner.records import TuneGoal
from skep.tuner.store import TuningStore

DAYS = 30
SLOWER_AFTER_DAY = 21
BOX = ProbeTarget("box", "http://127.0.0.1:1/v1", "gemma-4-31b", TargetKind.GATEWAY, concurrency=4)
CLOUD = ProbeTarget("cloud", "https://inference.example/v1", "gemma-4-31b", key_env="CLOUD_KEY")


def fill(path: Path, now: float, *, days: int = DAYS, seed: int = 8) -> None:
    """Two targets, a driver upgrade that cost 4.1 %, a note, a night without power, a busy
    afternoon, cold starts.
    """
    chance = random.Random(seed)
    first = int((now - days * DAY_S) // HOUR_S)
    last = int(now // HOUR_S)
    with open_store(path) as store:
        series = SeriesStore(store)
        for target in (BOX, CLOUD):
            series.put_target(replace(target, added_at=first * HOUR_S))
        away = range(first + 6 * 24, first + 6 * 24 + 9)  # hours
        for target in (BOX, CLOUD):
            from_to = away[0] * HOUR_S, (away[-1] + 1) * HOUR_S
            gap = {"slots": len(away), "error": "skep was not running"}
            series.append_probe(
                Probe(target.name, 0, away[0], *from_to, ProbeOutcome.MISSED, **gap)
            )
        for slot in range(first, last + 1):
            if slot not in away:
                day = (slot - first) / 24
                series.append_probe(*_of_the_box(slot, day, chance))
                series.append_probe(*_of_the_cloud(slot, day, chance))
        upgrade = (first + SLOWER_AFTER_DAY * 24) * HOUR_S
        detail = {"what": "driver", "from": "570.86", "to": "580.95"}
        text = "driver changed from 570.86 to 580.95"
        series.append_event(MonitorEvent(upgrade, EventKind.VERSION, text, "box", detail))
        series.append_event(
            MonitorEvent(
                (first + 12 * 24) * HOUR_S, EventKind.NOTE, "NVLink bridges removed", "box"
            )
        )
        series.append_event(
            MonitorEvent(away[-1] * HOUR_S, EventKind.MONITOR, "watching again after 9 h")
        )
        for target in (BOX, CLOUD):
            find_changes(series, target.name, now)
        _tune(TuningStore(store), now)
        put_swarm_run(store, "reviews.jsonl", done=20, left=4, outcome="stopped")


def _tune(tunings: TuningStore, now: float) -> None:
    """A tuning that has ended, and one under another load that was broken off."""
    ended = tunings.begin(sample_tuning(created_at=now - HOUR_S))
    session = tunings.begin_session(ended, now - HOUR_S)
    tunings.append(ended, sample_stages(), now - 600)
    tunings.end_session(
        ended, session, at=now - 200, outcome="done", reason="nothing is left to try"
    )
    broken = tunings.begin(
        sample_tuning(created_at=now - 2 * HOUR_S, aim=TuneGoal("effective_tok_s", 16))
    )
    session = tunings.begin_session(broken, now - 2 * HOUR_S)
    tunings.append(broken, sample_stages()[:4], now - HOUR_S)
    tunings.end_session(broken, session, at=now - HOUR_S, outcome="stopped")


def _probe(target: ProbeTarget, slot: int, chance: random.Random, **options: object) -> Probe:
    due = slot * HOUR_S + chance.uniform(0, 300)
    return Probe(
        target.name,
        0,
        slot,
        due,
        due + 40,
        ProbeOutcome.DONE,
        started_at=due,
        model=target.model,
        simulated=True,
        **options,
    )


def _of_the_box(slot: int, day: float, chance: random.Random) -> tuple[Probe, list[ProbeSample]]:
    late = day >= SLOWER_AFTER_DAY
    busy = 15.5 <= day < 15.8
    speed = 76.9 * (0.959 if late else 1.0) * (0.72 if busy else 1.0)
    driver = "580.95" if late else "570.86"
    host = {
        "mean_w": chance.gauss(612, 9),
        "temperature_max_c": chance.gauss(64, 2),
        "sm_clock_min_mhz": 1695,
    }
    probe = _probe(
        BOX,
        slot,
        chance,
        running=3 if busy else 0,
        waiting=0,
        versions={"driver": driver, "engine": "vllm 0.11.0"},
        host=host,
    )
    at = probe.due_at
    cold = Heat.COLD
    hot = Heat.HOT
    short = ProbeShape.SHORT
    long = ProbeShape.LONG
    return probe, [
        _sample(at, cold, short, chance.gauss(speed * 0.97, 1.2), chance.gauss(310, 25)),
        _sample(at + 4, hot, short, chance.gauss(speed, 0.8), chance.gauss(182, 8), engine=True),
        _sample(
            at + 8, hot, long, chance.gauss(speed * 0.99, 0.7), chance.gauss(180, 8), engine=True
        ),
        _sample(
            at + 20,
            hot,
            short,
            chance.gauss(speed * 0.83, 1.5),
            chance.gauss(240, 15),
            engine=True,
            many=4,
        ),
    ]


def _of_the_cloud(slot: int, day: float, chance: random.Random) -> tuple[Probe, list[ProbeSample]]:
    probe = _probe(CLOUD, slot, chance, versions={"server": "cloudy"})
    if chance.random() < 0.01:
        failed = replace(
            probe,
            outcome=ProbeOutcome.FAILED,
            error_kind="timeout",
            error="no answer within 300 s",
        )
        return failed, []
    hour = 1 + 0.12 * math.sin(2 * math.pi * day)
    cold = max(2.9, chance.lognormvariate(math.log(12), 0.7))
    return probe, [
        _sample(
            probe.due_at,
            Heat.COLD,
            ProbeShape.SHORT,
            min(54.7, cold),
            chance.lognormvariate(8.2, 0.6),
        ),
        _sample(
            probe.due_at + 20,
            Heat.HOT,
            ProbeShape.SHORT,
            chance.gauss(35 * hour, 4.0),
            chance.gauss(900, 120),
        ),
        _sample(
            probe.due_at + 25,
            Heat.HOT,
            ProbeShape.LONG,
            chance.gauss(34 * hour, 3.5),
            chance.gauss(920, 120),
        ),
    ]


def _sample(
    at: float,
    heat: Heat,
    shape: ProbeShape,
    speed: float,
    ttft_ms: float,
    engine: bool = False,
    many: int = 1,
) -> ProbeSample:
    tokens = 64 if shape is ProbeShape.SHORT else 512
    speed = max(1.0, speed)
    speeds = {
        "tok_s": speed,
        "engine_tok_s": speed * 1.004 if engine else None,
        "ttft_ms": ttft_ms,
    }
    effective = many * tokens / (tokens / speed + ttft_ms / 1000)
    counts = {"prompt_tokens": 256 * many, "output_tokens": tokens * many}
    return ProbeSample(at, heat, shape, many, effective_tok_s=effective, **speeds, **counts)
