"""`skep bench sweep`: wishes from the command line to a plan, a run with a live view, a table or JSON."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, get_args

from skep.bench.endpoint import Endpoint, find_endpoint
from skep.bench.sweep import Progress, SweepPlan, run_sweep
from skep.cli.output import note, number, print_json, print_table
from skep.errors import EndpointError, SkepError, UserError
from skep.host.facts import read_host
from skep.records import LevelSummary, SweepSummary
from skep.settings import LOOPBACK, user_paths
from skep.store.database import open_store
from skep.units import format_seconds, parse_int_list, parse_seconds
from skep.wire.heads import parse_url
from skep.workload.prompts import Size

MAX_CONCURRENCY = 4096


@dataclass(frozen=True, slots=True)
class SweepWishes:
    url: str
    model: str | None
    concurrency: str
    tasks: int | None
    runs: int
    max_tokens: int
    fixed_output: bool
    size: str
    seed: int | None
    key_env: str | None
    timeout: str
    store_prompts: bool


def plan_of(wishes: SweepWishes) -> SweepPlan:
    levels = parse_int_list(wishes.concurrency, name="--concurrency")
    if levels[-1] > MAX_CONCURRENCY:
        hint = f"one client goes up to {MAX_CONCURRENCY}"
        raise UserError(f"--concurrency {levels[-1]} is too large", hint=hint)
    if wishes.tasks is not None and wishes.tasks < levels[-1]:
        hint = f"use --tasks {levels[-1]} or more, or a smaller --concurrency"
        raise UserError(f"--tasks {wishes.tasks} cannot keep {levels[-1]} agents busy", hint=hint)
    timeout_s = parse_seconds(wishes.timeout)
    if timeout_s <= 0:
        raise UserError(f"--timeout `{wishes.timeout}` leaves no time", hint="write it as 15m")
    if wishes.size not in get_args(Size):
        raise UserError(f"--size `{wishes.size}` is unknown", hint=f"choose one of {', '.join(get_args(Size))}")
    return SweepPlan(
        concurrency=levels,
        tasks=wishes.tasks or 2 * max(levels),
        runs=wishes.runs,
        max_tokens=wishes.max_tokens,
        fixed_output=wishes.fixed_output,
        size=wishes.size,  # type: ignore[arg-type]
        seed=random.SystemRandom().randrange(2**31) if wishes.seed is None else wishes.seed,
        timeout_s=timeout_s,
        keep_text=wishes.store_prompts,
    )


def run_sweep_command(wishes: SweepWishes, *, as_json: bool) -> int:
    """0 when every request was answered, 1 when some failed."""
    plan = plan_of(wishes)
    key = _key(wishes.key_env, wishes.url)
    summary = measure_endpoint(plan, wishes.url, wishes.model, key=key)
    if as_json:
        print_json(sweep_json(summary))
    else:
        print_summary(summary)
        note(f"stored as run {summary.run_id}; `skep report {summary.run_id}` writes the pictures")
    failed = sum(level.failed for level in summary.levels)
    if failed:
        total = sum(level.requests for level in summary.levels)
        what = f"{failed} of {total} requests failed: {_reasons(summary.run_id)}"
        raise EndpointError(what, hint="docs/errors.md says what each kind means; the rows are in the store")
    return 0


def measure_endpoint(plan: SweepPlan, url: str, model: str | None, *, key: str | None = None) -> SweepSummary:
    """Ctrl-C, TERM and a closed terminal end it alike: what was measured is kept, and said."""

    async def run() -> SweepSummary:
        task = asyncio.current_task()
        assert task is not None
        for sign in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(sign, task.cancel)
        endpoint = await find_endpoint(url, model, key=key)
        note(_headline(plan, endpoint))
        with open_store(user_paths(os.environ).store) as store, sweep_progress(plan) as show:
            return await run_sweep(plan, endpoint, store, read_host(), show)

    import uvloop

    try:
        return uvloop.run(run())
    except asyncio.CancelledError:
        raise Interrupted from None


class Interrupted(SkepError):
    exit_code = 130

    def __init__(self) -> None:
        super().__init__("interrupted", hint="what was measured is kept: `skep runs` lists it")


def _reasons(run_id: str) -> str:
    """ "3x http_500 (out of memory), 1x timeout": each kind once, with the first message."""
    with open_store(user_paths(os.environ).store, read_only=True) as store:
        rows = [row for row in store.requests(run_id) if not row.ok and row.level]
    kinds: dict[str, list[str]] = {}
    for row in rows:
        kinds.setdefault(row.error_kind or "", []).append(row.error or "")
    return ", ".join(f"{len(texts)}x {kind} ({texts[0]})" for kind, texts in kinds.items())


def sweep_json(summary: SweepSummary) -> dict[str, Any]:
    """The documented form: docs/json.md."""
    document = asdict(summary)
    for level in document["levels"]:
        level["repeats"] = list(level["repeats"])
    document["levels"] = list(document["levels"])
    return document


def print_summary(summary: SweepSummary) -> None:
    columns = (
        "C",
        "eff tok/s",
        "low..high",
        "task tok/s",
        "contention",
        "TTFT p50",
        "TTFT p95",
        "TPOT p50",
        "engine tok/s",
        "wall",
        "failed",
    )
    print_table(columns, [_cells(level) for level in summary.levels], right=columns)
    if summary.speedup is not None and summary.serial_wall_s is not None and summary.swarm_wall_s is not None:
        most = summary.levels[-1].concurrency
        note(
            f"one after the other {format_seconds(summary.serial_wall_s)}, {most} at once "
            f"{format_seconds(summary.swarm_wall_s)}: {summary.speedup:.2f}x"
        )
    if summary.client_limited:
        note("warning: the client was the limit at some level (marked *); its figures are a lower bound")


def _cells(level: LevelSummary) -> list[str]:
    ttft, tpot = level.ttft_ms, level.tpot_ms
    return [
        f"{level.concurrency}{'*' if level.client_limited else ''}",
        number(level.effective_tok_s),
        f"{number(level.effective_low)}..{number(level.effective_high)}" if len(level.repeats) > 1 else "–",
        number(level.task_tok_s),
        "–" if level.contention_pct is None else f"{level.contention_pct + 0.0:.0f} %".replace("-0 %", "0 %"),
        "–" if ttft is None else f"{ttft.p50:,.0f} ms",
        "–" if ttft is None else f"{ttft.p95:,.0f} ms",
        "–" if tpot is None else f"{tpot.p50:.1f} ms",
        number(level.engine_tok_s),
        format_seconds(level.wall_s),
        str(level.failed),
    ]


def _headline(plan: SweepPlan, endpoint: Endpoint) -> str:
    levels = ",".join(map(str, plan.concurrency))
    simulated = " (simulated)" if endpoint.simulated else ""
    runs = f"{plan.runs} runs" if plan.runs > 1 else "1 run"
    return (
        f"{endpoint.model}{simulated} at {endpoint.url}: C={levels}, {plan.tasks} tasks x {runs} a level, "
        f"{plan.requests} requests in all, seed {plan.seed}"
    )


def _key(variable: str | None, url: str) -> str | None:
    """The variable asked for; else the gateway's own key, which is sent to this machine only."""
    if variable is None:
        return os.environ.get("SKEP_API_KEY") if parse_url(url)[0].host in LOOPBACK else None
    value = os.environ.get(variable)
    if not value:
        raise UserError(f"--key-env `{variable}` is not set", hint=f"export {variable}=... first")
    return value


@contextmanager
def sweep_progress(plan: SweepPlan) -> Iterator[Callable[[Progress], None]]:
    """A bar with level, speed and time left on a terminal; a line per level elsewhere."""
    if not sys.stderr.isatty():
        yield _level_lines(plan)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("warming up", total=plan.requests)

        def show(progress: Progress) -> None:
            bar.update(task, completed=progress.done, description=_describe(plan, progress))

        yield show


def _level_lines(plan: SweepPlan) -> Callable[[Progress], None]:
    said: set[tuple[int, int]] = set()

    def show(progress: Progress) -> None:
        key = (progress.level, progress.repeat)
        if key not in said:
            said.add(key)
            note(f"{_describe(plan, progress)}: {progress.done}/{progress.total} requests done")

    return show


def _describe(plan: SweepPlan, progress: Progress) -> str:
    if progress.level == 0:
        return "warming up"
    speed = f", {progress.tok_s:,.0f} tok/s" if progress.tok_s else ""
    failed = f", {progress.failed} failed" if progress.failed else ""
    return f"C={progress.level} run {progress.repeat + 1} of {plan.runs}{speed}{failed}"
