"""Shared by the bench commands: the workload, lengths in tokens, files, the view of a run, a clean end on Ctrl-C."""

from __future__ import annotations

import asyncio
import random
import signal
import tomllib
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar, get_args

from skep.bench.endpoint import Endpoint
from skep.bench.session import SessionProgress
from skep.bench.tasks import Shape, TaskMaker, Workload, calibrate_on
from skep.cli.bench import WorkloadOptions
from skep.cli.liveview import Line, Page, progress_bar, progress_view
from skep.cli.output import note, number
from skep.errors import SkepError, UserError, first_of
from skep.host.power import PowerMeter, open_meter
from skep.paths import LOOPBACK
from skep.report.columns import table_lines
from skep.stats.percentiles import runs_interval
from skep.units import format_seconds, parse_seconds
from skep.workload.prompts import Size

T = TypeVar("T")
MAX_CONCURRENCY = 4096
NEEDS_LENGTHS = ("conversation", "shared-prefix", "prefill")


class Interrupted(SkepError):
    exit_code = 130

    def __init__(self) -> None:
        super().__init__("interrupted", hint="what was measured is kept: `skep runs` lists it")


def run_measuring(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Ctrl-C, TERM and a closed terminal end it alike: what was measured is kept, and said."""

    async def run() -> T:
        task = asyncio.current_task()
        assert task is not None
        for sign in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(sign) is not signal.SIG_IGN:  # as `nohup` sets it: the work is to go on
                asyncio.get_running_loop().add_signal_handler(sign, task.cancel)
        return await work()

    import uvloop

    try:
        return uvloop.run(run())
    except asyncio.CancelledError:
        raise Interrupted from None
    except BaseExceptionGroup as group:
        raise first_of(group) from None


async def maker_for(workload: Workload, endpoint: Endpoint, *, salt: str = "") -> TaskMaker:
    """Lengths are measured on the engine where the workload is given in its tokens."""
    if workload.prompt_tokens is None and workload.shape not in NEEDS_LENGTHS:
        return TaskMaker(workload, salt=salt)
    found = await calibrate_on(endpoint, workload.prompt_tokens, workload.seed)
    miss = f", within {100 * found.worst:.1f} % on {found.samples} samples" if found.worst is not None else ""
    template = f", {found.overhead_tokens:.0f} of the chat template" if found.overhead_tokens >= 1 else ""
    note(f"{found.chars_per_token:.2f} characters a token{template}{miss}")
    return TaskMaker(workload, found, salt=salt)


def meter_for(endpoint: Endpoint) -> PowerMeter | None:
    """This machine's GPUs, if they are the ones that serve."""
    return open_meter() if endpoint.origin.host in LOOPBACK else None


def workload_of(options: WorkloadOptions) -> Workload:
    if options.shape not in get_args(Shape):
        raise UserError(f"--shape `{options.shape}` is unknown", hint=f"choose one of {', '.join(get_args(Shape))}")
    if options.size not in get_args(Size):
        raise UserError(f"--size `{options.size}` is unknown", hint=f"choose one of {', '.join(get_args(Size))}")
    return Workload(
        shape=options.shape,  # type: ignore[arg-type]
        size=options.size,  # type: ignore[arg-type]
        prompt_tokens=options.prompt_tokens,
        max_tokens=options.max_tokens,
        fixed_output=options.fixed_output,
        seed=seed_of(options.seed),
        turns=options.turns,
        think_s=parse_seconds(options.think),
    )


def seed_of(seed: int | None) -> int:
    return random.SystemRandom().randrange(2**31) if seed is None else seed


def text_of(path: Path) -> str:
    """Read a file that the user named."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"`{path}` cannot be read: {error.strerror}", hint="check the path") from None
    except UnicodeDecodeError:
        raise UserError(f"`{path}` is not text in UTF-8", hint="check that it is the right file") from None


def toml_of(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(text_of(path))
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"`{path}` is not TOML: {error}", hint="docs/bench.md has an example") from None


def positive_seconds(text: str, option: str, example: str) -> float:
    seconds = parse_seconds(text)
    if seconds <= 0:
        raise UserError(f"{option} `{text}` leaves no time", hint=f"write it as {example}")
    return seconds


def level_view() -> AbstractContextManager[Callable[[SessionProgress], None]]:
    """Return the levels so far and what happens now; a line for each run of a level where there is no terminal."""
    return progress_view(level_lines(), level_frame)


def level_lines() -> Callable[[SessionProgress], None]:
    said: set[tuple[int, int]] = set()

    def show(progress: SessionProgress) -> None:
        key = (progress.level, progress.repeat)
        if key not in said:
            said.add(key)
            how_many = f"{progress.total} requests" if progress.total else "for a time"
            note(f"{where(progress)}: {how_many}{left(progress)}")
        elif progress.ended and progress.figures.get(progress.level):
            speed = progress.figures[progress.level][-1]
            failed = f", {progress.failed} failed so far" if progress.failed else ""
            note(f"{where(progress)}: {number(speed)} tok/s{failed}")

    return show


def level_frame(progress: SessionProgress, _page: Page) -> list[Line]:
    rows = []
    for level, figures in sorted(progress.figures.items()):
        interval = runs_interval(figures)
        spread = "–" if interval is None else f"± {100 * interval.upper_width:.1f} %"
        rows.append([str(level), str(len(figures)), number(sum(figures) / len(figures)), spread])
    table = table_lines(("C", "runs", "eff tok/s", "95 %"), rows, [True] * 4, [0] * 4) if rows else []
    return [[(line, "")] for line in (*table, now_line(progress))]


def now_line(progress: SessionProgress) -> str:
    total = f"/{progress.total}" if progress.total else ""
    speed = f" · {number(progress.tok_s)} tok/s now" if progress.tok_s else ""
    return (
        f"{where(progress)}  {progress_bar(progress.done, progress.total)}  {progress.done}{total} requests{speed}"
        f" · {progress.in_flight} in flight · {progress.failed} failed{left(progress)}"
    )


def where(progress: SessionProgress) -> str:
    if progress.level == 0:
        return "warming up"
    return f"{progress.label or f'C={progress.level}'} run {progress.repeat + 1}"


def left(progress: SessionProgress) -> str:
    if progress.left_s is None or not progress.level:
        return ""
    runs = round(progress.runs_left)
    plural = "s" if runs > 1 else ""
    return f" · about {format_seconds(progress.left_s)} left, {runs} more run{plural} at most" if runs else ""
