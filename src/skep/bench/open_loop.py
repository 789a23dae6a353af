"""Loads that follow a clock: arrivals at a rate, classes at once, a trace. Latency counts from when one is due."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice, takewhile
from random import Random
from typing import Any

import msgspec
from msgspec.structs import replace

from skep.bench.endpoint import Endpoint
from skep.bench.load_shapes import TimeWindow, repetition_of
from skep.bench.metrics import SweepSummary
from skep.bench.session import Identity, OnProgress, Recording, RunSession
from skep.bench.tasks import BenchTask, Repetition, TaskMaker, TrafficStream
from skep.catalog.gpus import HostFacts
from skep.errors import UserError
from skep.host.power import PowerMeter
from skep.store.database import Store
from skep.workload.prompts import TokenCalibration, coding_prompts, conversations, shared_prefix
from skep.workload.traffic import TraceItem, TrafficClass, parse_arrivals, trace_messages

CLASS_STEP = 1_000_000  # indexes of one class of traffic do not meet those of the next
CONNECTIONS = 512
AGENTS_WITHOUT_TIMES = 16  # of a trace that has none
MADE_BEFOREHAND = 256  # prompts of a level or a class: making one takes as long as dozens of tokens
MOST_REQUESTS = 100_000  # of one level; all their times are kept


class LevelRun(msgspec.Struct, frozen=True):
    """One run of one level: what is sent, how much of it if that is known, and for how long."""

    level: int
    repeat: int
    streams: list[TrafficStream]
    total: int
    label: str = ""
    for_s: float | None = None  # None: until all is sent


class TimedPlan(msgspec.Struct, frozen=True):
    kind: str  # "open" | "classes" | "replay"
    config: Mapping[str, Any]
    fingerprint: str
    timeout_s: float = 900.0
    keep_text: bool = True
    processes: int = 1  # all runs of a level are to be made in one way


async def run_timed(
    plan: TimedPlan, parts: Sequence[LevelRun], endpoint: Endpoint, store: Store, host: HostFacts, maker: TaskMaker,
    on_progress: OnProgress = lambda _: None, *, meter: PowerMeter | None = None,
) -> SweepSummary:  # fmt: skip
    async with Recording(store, endpoint, host, Identity(plan.kind, plan.fingerprint, plan.config)) as recording:
        how: dict[str, Any] = {"timeout_s": plan.timeout_s, "keep_text": plan.keep_text, "processes": plan.processes}
        session = RunSession(endpoint, recording, on_progress, widest=CONNECTIONS, meter=meter, **how)
        async with session.open():
            await session.warm_up(maker, 1)
            for place, part in enumerate(parts):
                now = {"level": part.level, "repeat": part.repeat, "label": part.label, "total": part.total}
                session.begin(**now, done=0, runs_done=place, runs_left=len(parts) - place)
                await session.driver.run_streams_at_level(
                    part.level, part.repeat, part.streams, session.took, TimeWindow(for_s=part.for_s)
                )
                recording.check()
    return session.summary(closed=False)


def open_part(maker: TaskMaker, level: int, repeat: int, *, rate: float, arrivals: str, for_s: float) -> LevelRun:
    """Requests at a rate, for a time."""
    _check_number(rate, for_s, "", "at each rate")
    rng = Random(f"{maker.workload.seed}/arrivals/{level}/{repeat}")
    offsets = list(takewhile(lambda at: at < for_s, parse_arrivals(arrivals)(rate, rng)))
    tasks = maker.tasks(level, repeat, min(len(offsets), MADE_BEFOREHAND))
    stream = TrafficStream(tasks, min(CONNECTIONS, max(1, round(rate))), offsets, again=repetition_of(tasks))
    return LevelRun(level, repeat, [stream], len(offsets), f"{rate:g}/s")


def replay_part(
    items: Sequence[TraceItem], calibration: TokenCalibration, *, seed: int, default_tokens: int
) -> LevelRun:
    """A trace with times is followed; one without is sent as fast as sixteen agents can."""
    tasks = []
    for place, item in enumerate(items):
        said: Any = trace_messages(item, seed=seed, **calibration.lengths)
        most = item.max_tokens or default_tokens
        fixed = bool(item.blocks)  # the trace says how long the answer was; a batch line only how long it may be
        tasks.append(BenchTask(1, 0, place, "replay", said, most, fixed, body=dict(item.extras)))
    offsets = [item.at_s for item in items if item.at_s is not None]
    due = offsets if len(offsets) == len(tasks) else None
    return LevelRun(1, 0, [TrafficStream(tasks, AGENTS_WITHOUT_TIMES, due)], len(tasks), "replay")


def classes_part(
    classes: Sequence[TrafficClass], calibration: TokenCalibration, repeat: int, *, seed: int, for_s: float
) -> LevelRun:
    """All of them at once, for a time; what is under way then is waited for."""
    for one in classes:
        _check_number(one.rate or 0.0, for_s, f"class `{one.name}`: ", "of a class")
    streams = [
        _class_stream(one, calibration, repeat, f"{seed}/{one.name}/{repeat}", place * CLASS_STEP, for_s)
        for place, one in enumerate(classes)
    ]
    return LevelRun(1, repeat, streams, 0, "mix", for_s)


def _class_stream(
    one: TrafficClass, calibration: TokenCalibration, repeat: int, seed: str, first: int, for_s: float
) -> TrafficStream:
    """Return the traffic of one class; its prompts are made here, before anything is measured."""
    rng, width = Random(seed), one.agents or 1
    base = BenchTask(1, repeat, first, "", [], one.max_tokens, traffic=one.name, priority=one.priority)
    pool = max(MADE_BEFOREHAND, 2 * width)
    if one.shape == "conversation":
        lengths = {"tokens_first": one.prompt_tokens, "tokens_turn": one.turn_tokens, **calibration.lengths}
        scripts = [*islice(conversations(rng, turns=one.turns, think_s=one.think_s, **lengths), pool)]
        firsts = [
            replace(base, kind=script.kind, session=place, index=first + place * one.turns)
            for place, script in enumerate(scripts)
        ]
        return TrafficStream(firsts, width, scripts=scripts, again=Repetition(pool, 0))
    if one.prefix_tokens:
        prefix = {"tokens": one.prefix_tokens, "task_tokens": one.prompt_tokens}
        prompts = shared_prefix(rng, **prefix, **calibration.lengths)
    else:
        prompts = coding_prompts(rng, tokens=one.prompt_tokens, **calibration.lengths)
    tasks = [
        replace(base, kind=prompt.kind, messages=prompt.messages, index=first + place)
        for place, prompt in enumerate(islice(prompts, pool))
    ]
    if one.shape == "open":
        arrivals = parse_arrivals(one.arrivals)(one.rate or 1.0, rng)
        return TrafficStream(tasks, width, [*takewhile(lambda at: at < for_s, arrivals)], again=repetition_of(tasks))
    return TrafficStream(tasks, width, again=repetition_of(tasks), think_s=one.think_s, seed=f"{seed}/think")


def _check_number(rate: float, for_s: float, whose: str, of_what: str) -> None:
    if rate * for_s > MOST_REQUESTS:
        hint = f"at most {MOST_REQUESTS:,} {of_what}: choose a shorter --for"
        raise UserError(f"{whose}{rate:g} requests a second for {for_s:g} s make {rate * for_s:,.0f}", hint=hint)
