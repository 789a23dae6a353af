"""A store with two targets over ten days: a box that got slower with its driver, and a cloud with
cold starts.
"""

import random

from skep.monitor.history import find_changes
from skep.monitor.records import (
    DAY_S,
    HOUR_S,
    Alert,
    AlertRule,
    EventKind,
    Heat,
    MonitorEvent,
    Probe,
    ProbeOutcome,
    ProbeSample,
    ProbeShape,
    ProbeTarget,
)
from skep.monitor.store import SeriesStore

NOW = 1_800_003_000.0  # 50 minutes after a full hour
DAYS = 10
SHIFT_AT = NOW - 4 * DAY_S
GAP = range(100, 106)  # hours after the beginning, missed
DOWN = range(200, 203)  # failed


def fill(store):
    series = SeriesStore(store)
    for name in ("box", "cloud", "new"):
        series.put_target(
            ProbeTarget(name, f"http://10.9.8.7/{name}", added_at=NOW - DAYS * DAY_S)
        )
    rng = random.Random(7)
    for hour in range(0, DAYS * 24, 2):
        _probe(series, "box", hour, rng)
        _probe(series, "cloud", hour, rng)
    change = {"what": "driver", "from": "570", "to": "580"}
    series.append_event(
        MonitorEvent(SHIFT_AT, EventKind.VERSION, "driver changed from 570 to 580", "box", change)
    )
    series.append_event(MonitorEvent(NOW - 2 * DAY_S, EventKind.NOTE, "fans <cleaned>", None))
    alert = series.open_alert(
        Alert(AlertRule.DOWN, "box", NOW - 2 * DAY_S, "no answer from http://10.9.8.7/box")
    )
    series.close_alert(alert, NOW - DAY_S, "10.9.8.7 answers again")
    find_changes(series, "box", NOW)


def _probe(series, name, hour, rng):
    at = NOW - DAYS * DAY_S + hour * HOUR_S
    slot = int(at // HOUR_S)
    if hour in GAP:
        if hour == GAP[0]:
            end = at + len(GAP) * HOUR_S
            series.append_probe(Probe(name, 0, slot, at, end, ProbeOutcome.MISSED, slots=len(GAP)))
        return
    if name == "box" and hour in DOWN:
        series.append_probe(
            Probe(
                name, 0, slot, at, at + 1, ProbeOutcome.FAILED, started_at=at, error_kind="connect"
            )
        )
        return
    if name == "box":
        base = 100.0 if at < SHIFT_AT else 92.0
    else:
        base = 40.0
    value = rng.gauss(base, base * (0.01 if name == "box" else 0.2))
    cold = value * (0.95 if name == "box" else rng.uniform(0.1, 0.9))
    if name == "box":
        host = {"mean_w": 300.0 + rng.random(), "throttled": ["power cap"]}
    else:
        host = {}
    probe = Probe(
        name,
        0,
        slot,
        at,
        at + 20,
        ProbeOutcome.DONE,
        started_at=at,
        running=int(hour == 40),
        waiting=0,
        model="/models/qwen.gguf",
        host=host,
    )
    samples = [
        ProbeSample(at, Heat.COLD, ProbeShape.SHORT, 1, tok_s=cold, ttft_ms=900.0),
        ProbeSample(
            at + 5, Heat.HOT, ProbeShape.SHORT, 1, tok_s=value, ttft_ms=120.0 + rng.random()
        ),
    ]
    series.append_probe(probe, samples)
