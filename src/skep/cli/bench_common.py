"""Shared by the bench commands: the workload, lengths in tokens, files, the view of a run, a clean end on Ctrl-C."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from typing import Any, TypeVar, get_args

from skep.bench.endpoint import Endpoint
from skep.bench.session import SessionProgress
from skep.bench.tasks import Shape, TaskMaker, Workload, calibrate_on
from skep.cli.bench import WorkloadOptions
from skep.errors import SkepError, UserError, first_of
from skep.host.power import PowerMeter, open_meter
from skep.paths import LOOPBACK
from skep.report.liveview import level_frame, level_lines, progress_view
from skep.report.terminal import note
from skep.units import parse_seconds
from skep.workload.prompts import Size

T = TypeVar("T")
MAX_CONCURRENCY = 4096
NEEDS_LENGTHS = ("conversation", "shared-prefix", "prefill")


class Interrupted(SkepError):
    exit_code = 130

    def __init__(self, where: str = "", hint: str = "what was measured is kept: `skep runs` lists it") -> None:
        super().__init__(f"interrupted{where}", hint=hint)


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
    note(f"{found.chars_per_token:.2f} characters per token{template}{miss}")
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


def level_view() -> AbstractContextManager[Callable[[SessionProgress], None]]:
    """Return the levels so far and what happens now; a line for each run of a level where there is no terminal."""
    return progress_view(level_lines(), level_frame)
