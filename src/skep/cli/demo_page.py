"""What `skep demo` shows: one real answer, then a SIMULATED rig with and without the gateway, and
a swarm on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from skep.catalog.presets import Published
from skep.config.presets import shipped_presets
from skep.config.settings import EMBEDDED_MODEL
from skep.deploy.plan_request import PlanFlags
from skep.deploy.resolve import best_plan
from skep.errors import EndpointError
from skep.report.comparison import comparison_page
from skep.report.plan_sessions import SessionRow, session_rows
from skep.report.terminal import note
from skep.store.database import Store, open_store
from skep.units import format_seconds, milliseconds, number, times
from skep.wire.client import Pool

DEMO_QUESTION = "What is a GPU? Answer in one sentence."
# The simulated rig, whose figures are published.
DEMO_MODEL = "qwen3.6-27b"
DEMO_PRESET = "qwen3.6-27b-2x3090-replicas"
DEMO_RIG = "2x rtx-3090"
DEMO_SESSIONS = 4  # planned for; up to twice as many are played


async def demonstrate(url: str, engines: Sequence[str], key: str | None, store_path: Path) -> str:
    """Return the report: the same simulated engines without a gateway and behind skep's."""
    note("2/5 one question to the real model")
    await _ask_one_question(await find_endpoint(url, EMBEDDED_MODEL))
    gateway = await find_endpoint(url, DEMO_MODEL)
    direct = [
        replace(await find_endpoint(engine, None, key=key), engine=gateway.engine)
        for engine in engines
    ]
    published = {figure.concurrency: figure for figure in shipped_presets()[DEMO_PRESET].published}
    _say_what_is_simulated()
    with open_store(store_path) as store:
        summaries = await _measure_both_ways(store, direct, gateway, published)
        _say_sessions(store_path)
        note(
            f"5/5 {DEMO_TASKS} tasks on the SIMULATED rig through skep: one after the "
            "other, then as a swarm"
        )
        swarm = await _measure_swarm(store, gateway)
        runs = [(store.run(summary.run_id), summary) for summary in summaries]
    labels = [f"SIMULATED 2x RTX 3090, {way}" for way in ("no gateway", "skep")]
    figures = ", ".join(
        f"{published[agents].tok_s:.0f} tok/s with {agents} agents"
        for agents in DEMO_LEVELS
        if agents in published
    )
    verdict = f"published behind nginx: {figures}. {swarm}"
    return comparison_page(runs, labels=labels, verdict=verdict)


async def _measure_both_ways(
    store: Store,
    direct: Sequence[Endpoint],
    gateway: Endpoint,
    published: Mapping[int, Published],
) -> tuple[SweepSummary, SweepSummary]:
    """Return the sweeps past the gateway and through it; each level is printed as it ends, below
    its published figure.
    """
    past_gateway = simulated_run(store, "sweep", direct, DEMO_LEVELS, DEMO_TOKENS)
    through_gateway = simulated_run(store, "sweep", [gateway], DEMO_LEVELS, DEMO_TOKENS)
    async with past_gateway as measure_past, through_gateway as measure_through:
        for agents in DEMO_LEVELS:
            figure = published.get(agents)
            if figure is not None:
                words = _figures(figure.tok_s, figure.ttft_ms)
                _say(f"published {agents:3} agents  nginx      {words}")
            past = await measure_past(agents)
            _say(_level_line("no gateway", past.levels[-1]))
            through = await measure_through(agents)
            _say(_level_line("skep", through.levels[-1]))
    return past, through


async def _measure_swarm(store: Store, gateway: Endpoint) -> str:
    """Print and return what is gained by sending the tasks at once."""
    tasks = {1: DEMO_TASKS, DEMO_TASKS: DEMO_TASKS}
    run = simulated_run(store, "serial-vs-swarm", [gateway], tasks, DEMO_TOKENS // 2)
    async with run as measure:
        for agents in tasks:
            summary = await measure(agents)
        line = _swarm_line(summary)
        _say(line)
    return line


def _say_what_is_simulated() -> None:
    tokens = f"{DEMO_TOKENS:,} tokens in and out"
    note(
        f"3/5 requests of agents on the SIMULATED rig: {DEMO_MODEL}, 2 engines of 2 slots, "
        f"{tokens}"
    )
    note(
        f"    SIMULATED time runs {1 / DEMO_SCALE:.0f}x as fast as the clock; the gateway "
        "and the requests are real"
    )
    note(
        "    beyond 4 agents, requests queue in the SIMULATED engines and slow them; skep "
        "keeps them in the gateway"
    )
    note(
        "    published: the real rig behind nginx least_conn; first token: the median, "
        "waiting included"
    )


def _say_sessions(store_path: Path) -> None:
    """Print what sessions of coding agents would get from the rig, by their number."""
    note(
        f"4/5 sessions of coding agents on the SIMULATED rig: {DEMO_MODEL}, played in virtual time"
    )
    note(
        "    a session sends one growing prompt, turn after turn; where the KV cache holds no "
        "more of them, each is read again"
    )
    flags = PlanFlags(DEMO_MODEL, gpu=(DEMO_RIG,), agents=DEMO_SESSIONS)
    outlook = best_plan(flags, store_path).outlook
    assert outlook is not None
    for row in session_rows(outlook):
        _say(_session_line(row))


def _session_line(row: SessionRow) -> str:
    level = row.level
    bar = "█" * round(2 * level.turns_per_min)
    first = format_seconds(level.first_token_s)
    noun = "session " if level.sessions == 1 else "sessions"
    line = (
        f"SIMULATED {level.sessions:3} {noun} {level.turns_per_min:5.1f} turns/min {bar:16} "
        f"first token {first:>6}"
    )
    if row.with_ram is None:
        return line
    return f"{line}, with KV in RAM {row.with_ram.turns_per_min:.1f} turns/min"


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201


async def _ask_one_question(endpoint: Endpoint) -> None:
    pool = Pool(endpoint.origin)
    task = BenchTask(0, 0, 0, "demo", [{"role": "user", "content": DEMO_QUESTION}], 80)
    try:
        row, answer = await Sender(endpoint, pool, 0.0, timeout_s=300).ask(task)
    finally:
        await pool.close()
    token_ms = tpot_ms(row)
    if row.first_token_s is None or token_ms is None:
        raise EndpointError(
            f"{endpoint.model} did not answer: {row.error}",
            hint="`skep doctor` checks this machine",
        )
    first = format_seconds(row.first_token_s - row.started_s)
    speed = f"{number(1000 / token_ms)} tok/s, first token after {first} (real)"
    print(  # noqa: T201
        f"question: {DEMO_QUESTION}",
        f"answer:   {' '.join(answer.split())}",
        speed,
        sep="\n",
        flush=True,
    )


def _level_line(way: str, level: LevelSummary) -> str:
    line = f"SIMULATED {level.concurrency:3} agents  {way:10} "
    fault = fault_of([level])
    if fault or level.effective_tok_s is None or level.ttft_ms is None:
        return f"{line} left out: {fault}"
    return line + _figures(level.effective_tok_s, level.ttft_ms.p50)


def _figures(tok_s: float, ttft_ms: float | None) -> str:
    bar = "█" * round(tok_s / 14)
    return f"{number(tok_s):>5} tok/s {bar:16} first token {milliseconds(ttft_ms):>6}"


def _swarm_line(summary: SweepSummary) -> str:
    speedups = summary.speedups
    fault = fault_of(summary.levels)
    if fault or speedups is None:
        return f"SIMULATED {DEMO_TASKS} tasks: left out: {fault}"
    one_by_one = format_seconds(speedups.serial_wall_s)
    all_at_once = format_seconds(speedups.swarm_wall_s)
    return (
        f"SIMULATED {DEMO_TASKS} tasks: {one_by_one} one after the other, {all_at_once} as a "
        f"swarm, {times(speedups.by_wall)} as fast"
    )
