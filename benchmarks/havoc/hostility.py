"""A hostile upstream beside a good engine: the good one's streams keep flowing, and the memory
stays bounded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from havoc.audit import Check
from havoc.gateway_stage import (
    BAD_MODEL,
    BAD_SLOTS,
    HANGS,
    HostileProcess,
    ask_once,
    gateway_with,
    get_page,
    good_engine,
    watched_memory,
)
from havoc.line import Ended, Line, Nonsense, Silent
from havoc.scenario import MODEL, Scenario, ScenarioRow, Stage, chat_request, limit_check
from havoc.steady import SteadyStreams

STREAMS = 8
TOKENS = 40  # of 50 ms each
LONGEST_GAP_S = 1.0
MOST_MIB = 32.0
GIVE_UP_MIB = 512.0
ATTACK_S = 8.0
METRICS_S = 10.0

Attack = Callable[
    [int], Awaitable[str]
]  # gets the gateway's port, returns what the bad model's client saw


async def attack_row(
    stage: Stage, name: str, *, mode: str, confirms: str, action: str, attack: Attack
) -> ScenarioRow:
    hostile = HostileProcess(mode)
    try:
        with (
            good_engine() as engine,
            gateway_with(stage, engine=engine, hostile=hostile, confirms=confirms) as gateway,
        ):
            async with (
                watched_memory(
                    gateway.process.pid, most_mib=GIVE_UP_MIB, feeder=hostile
                ) as memory,
                SteadyStreams(gateway.port, MODEL, STREAMS, TOKENS) as streams,
            ):
                await hostile.start()
                ending = await attack(gateway.port)
    finally:
        hostile.close()
    figures = {
        **streams.figures,
        "grown_mib": round(memory.grown_mib),
        "upstream_ended_early": memory.stopped,
        "client_of_the_upstream": ending,
    }
    checks = (
        streams.survival(),
        limit_check("no gap in them", streams.longest_gap_s, LONGEST_GAP_S, "s"),
        limit_check("the gateway's memory is bounded", memory.grown_mib, MOST_MIB, "MiB"),
        Check("the upstream's own client is not left hanging", ending != HANGS, ending),
    )
    return ScenarioRow(name, action, figures, checks)


async def ask_bad_model(port: int) -> str:
    """One request to the hostile upstream, at most as long as the attack lasts."""
    ending, seconds = await ask_once(port, chat_request(BAD_MODEL, 5), ATTACK_S)
    if ending == HANGS:
        return ending
    return f"{ending} after {seconds:.1f} s"


async def leave_bad_model(port: int) -> str:
    """Clients of the upstream leave in the middle, so that the gateway asks it which slots are
    busy.
    """
    for _ in range(BAD_SLOTS // 2):
        connection = await Line.open(port, silence_s=ATTACK_S)
        try:
            await connection.send(chat_request(BAD_MODEL, 5))
            await connection.head()
        except (Silent, Ended, Nonsense):
            break
        finally:
            connection.close()
    await asyncio.sleep(ATTACK_S)
    return "left"


async def ask_engine_metrics(port: int) -> str:
    """Somebody asks the gateway for its engines' own metrics, and clients leave as well."""
    ending = await leave_bad_model(port)
    try:
        page = await get_page(port, f"/metrics/engines?model={BAD_MODEL}", METRICS_S)
    except (Silent, Ended, Nonsense):
        return f"{ending}; no engine metrics within {METRICS_S:g} s"
    return f"{ending}, and got {len(page):,} bytes of engine metrics"


async def hostile_trailers(stage: Stage, name: str) -> ScenarioRow:
    action = f"an upstream ends its answer with trailers without end; {STREAMS} streams of another"
    return await attack_row(
        stage, name, mode="trailers", confirms="slots", action=action, attack=ask_bad_model
    )


async def hostile_extension(stage: Stage, name: str) -> ScenarioRow:
    action = f"an upstream sends a chunk extension without end; {STREAMS} streams of another"
    return await attack_row(
        stage, name, mode="extension", confirms="slots", action=action, attack=ask_bad_model
    )


async def hostile_labels(stage: Stage, name: str, *, mode: str, size: str) -> ScenarioRow:
    action = (
        f"an upstream's /metrics is {size} of label sets that never close; {STREAMS} streams of "
        "another"
    )
    return await attack_row(
        stage, name, mode=mode, confirms="metrics", action=action, attack=ask_engine_metrics
    )


async def hostile_slots(stage: Stage, name: str) -> ScenarioRow:
    action = f"an upstream's /slots is 100 MiB of slots; {STREAMS} streams of another"
    return await attack_row(
        stage, name, mode="slots", confirms="slots", action=action, attack=leave_bad_model
    )


SCENARIOS: dict[str, Scenario] = {
    "hostile-trailers": hostile_trailers,
    "hostile-extension": hostile_extension,
    "hostile-labels-24k": partial(hostile_labels, mode="labels-24k", size="24 KB"),
    "hostile-labels-100m": partial(hostile_labels, mode="labels-100m", size="100 MB"),
    "hostile-slots": hostile_slots,
}
