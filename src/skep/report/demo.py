"""What `skep demo` shows: one real answer, then a SIMULATED rig with and without the gateway, and
a swarm on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from skep.bench.demo import (
    DEMO_LEVELS,
    DEMO_SCALE,
    DEMO_TASKS,
    DEMO_TOKENS,
    fault_of,
    simulated_run,
)
from skep.bench.endpoint import Endpoint, find_endpoint
from skep.bench.metrics import LevelSummary, SweepSummary, tpot_ms
from skep.bench.tasks import BenchTask, Sender
from skep.config.presets import shipped_presets
from skep.config.settings import EMBEDDED_MODEL
from skep.errors import EndpointError
from skep.report.comparison import comparison_page
from skep.report.terminal import note
from skep.store.database import open_store
from skep.units import format_seconds, milliseconds, number, times
from skep.wire.client import Pool

DEMO_QUESTION = "What is a GPU? Answer in one sentence."
# of the simulated rig; its published figures
DEMO_MODEL = "qwen3.6-27b"
DEMO_PRESET = "qwen3.6-27b-2x3090-replicas"


async def demonstrate(url: str, engines: Sequence[str], key: str | None, store_path: Path) -> str:
    """Return the report: the same simulated engines without a gateway and behind skep's."""
    say = partial(print, flush=True)
    note("2/4 one question to the real model")
    await _ask_one_question(await find_endpoint(url, EMBEDDED_MODEL))
    gateway = await find_endpoint(url, DEMO_MODEL)
    direct = [
        replace(await find_endpoint(engine, None, key=key), engine=gateway.engine)
        for engine in engines
    ]
    published = {one.concurrency: one for one in shipped_presets()[DEMO_PRESET].published}
    note(
        (
            f"3/4 agents on the SIMULATED rig: {DEMO_MODEL}, 2 engines of 2 slots, "
            f"{DEMO_TOKENS:,} tokens in and out"
        ),
        (
            f"    SIMULATED time runs {1 / DEMO_SCALE:.0f}x as fast as the clock; the gateway "
            "and the requests are real"
        ),
        (
            "    beyond 4 agents, requests queue in the SIMULATED engines and slow them; skep "
            "keeps them in the gateway"
        ),
        (
            "    published: the real rig behind nginx least_conn; first token: the median, "
            "waiting included"
        ),
    )
    with open_store(store_path) as store:
        past_gateway = simulated_run(store, "sweep", direct, DEMO_LEVELS, DEMO_TOKENS)
        through_gateway = simulated_run(store, "sweep", [gateway], DEMO_LEVELS, DEMO_TOKENS)
        async with past_gateway as past, through_gateway as through:
            for agents in DEMO_LEVELS:
                if (real := published.get(agents)) is not None:
                    say(
                        f"published {agents:3} agents  nginx      "
                        f"{_figures(real.tok_s, real.ttft_ms)}"
                    )
                without = await past(agents)
                say(_level_line("no gateway", without.levels[-1]))
                ours = await through(agents)
                say(_level_line("skep", ours.levels[-1]))
        note(
            f"4/4 {DEMO_TASKS} tasks on the SIMULATED rig through skep: one after the "
            "other, then as a swarm"
        )
        both = {1: DEMO_TASKS, DEMO_TASKS: DEMO_TASKS}
        async with simulated_run(
            store, "serial-vs-swarm", [gateway], both, DEMO_TOKENS // 2
        ) as run:
            say(swarm := _swarm_line([await run(agents) for agents in both][-1]))
        runs = [(store.run(one.run_id), one) for one in (without, ours)]
    labels = [f"SIMULATED 2x RTX 3090, {way}" for way in ("no gateway", "skep")]
    told = ", ".join(
        f"{published[n].tok_s:.0f} tok/s with {n} agents" for n in DEMO_LEVELS if n in published
    )
    return comparison_page(runs, labels=labels, verdict=f"published behind nginx: {told}. {swarm}")


async def _ask_one_question(endpoint: Endpoint) -> None:
    pool = Pool(endpoint.origin)
    task = BenchTask(0, 0, 0, "demo", [{"role": "user", "content": DEMO_QUESTION}], 80)
    try:
        row, answer = await Sender(endpoint, pool, 0.0, timeout_s=300).ask(task)
    finally:
        await pool.close()
    each_ms = tpot_ms(row)
    if row.first_token_s is None or each_ms is None:
        raise EndpointError(
            f"{endpoint.model} did not answer: {row.error}",
            hint="`skep doctor` checks this machine",
        )
    first = format_seconds(row.first_token_s - row.started_s)
    speed = f"{number(1000 / each_ms)} tok/s, first token after {first} (real)"
    print(  # noqa: T201
        f"question: {DEMO_QUESTION}",
        f"answer:   {' '.join(answer.split())}",
        speed,
        sep="\n",
        flush=True,
    )


def _level_line(way: str, level: LevelSummary) -> str:
    line = f"SIMULATED {level.concurrency:3} agents  {way:10} "
    tok_s = level.effective_tok_s
    ttft = level.ttft_ms
    if (why := fault_of([level])) or tok_s is None or ttft is None:
        return f"{line} left out: {why}"
    return line + _figures(tok_s, ttft.p50)


def _figures(tok_s: float, ttft_ms: float | None) -> str:
    return (
        f"{number(tok_s):>5} tok/s {'█' * round(tok_s / 14):16} first token "
        f"{milliseconds(ttft_ms):>6}"
    )


def _swarm_line(summary: SweepSummary) -> str:
    speedups = summary.speedups
    why = fault_of(summary.levels)
    if why or speedups is None:
        return f"SIMULATED {DEMO_TASKS} tasks: left out: {why}"
    one = format_seconds(speedups.serial_wall_s)
    all_at_once = format_seconds(speedups.swarm_wall_s)
    gain = speedups.by_wall
    return (
        f"SIMULATED {DEMO_TASKS} tasks: {one} one after the other, {all_at_once} as a swarm, "
        f"{times(gain)} as fast"
    )
